/* A stand-in for libnvidia-ml.so.1. It answers from a file, with the real layouts, and does what a second file
 * says: lose a GPU, hang, crash, answer a code, be slow, leak. tests/fakes/nvml/__init__.py writes both files and
 * says what may stand in them. ABI_* come from tests/hardware/tables/nvml-abi.json. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, BAD_VERSION = 25 };
enum { KEYS = 8192, GPUS = 64, MIGS = 64, NAME = 96 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { u32 version; u64 total, reserved, free, used; } memory2_t;
typedef struct { u32 sm, ce, dec, enc, jpg, ofa, gpu_slices, compute_slices; u64 memory; } attributes_t;
typedef struct { u32 start, size; } placement_t;
typedef struct { u32 id, p2p, slices, instances, sm, ce, dec, enc, jpg, ofa; u64 memory; } profile_t;
typedef struct { u32 version, id, p2p, slices, instances, sm, ce, dec, enc, jpg, ofa; u64 memory; char name[96]; } profile2_t;
typedef struct { void *device; u32 id, profile; placement_t placement; } instance_t;
typedef struct { unsigned char uuid[16]; u32 status, clique, state; } fabric_t;
typedef struct { u32 version; unsigned char uuid[16]; u32 status, clique, state, health; } fabric2_t;
typedef struct { u32 version; unsigned char uuid[16]; u32 status, clique, state, health; unsigned char summary; } fabric3_t;
typedef struct { void *device; u64 type, data; u32 gi, ci; } event_t;
typedef struct { u64 total, free, used; } bar1_t;
typedef struct { u32 version; unsigned char guid[16], chassis[16], slot, tray, host, peer, module; } platform_t;
typedef struct { u32 field, scope; long long time, latency; int type, code; union { double d; u32 u; u64 ull; } value; } field_t;
typedef struct { pci_t pci; char uuid[80]; } excluded_t;
typedef struct { u32 pid; u64 memory; u32 gi, ci; } process_t;

_Static_assert(sizeof(pci_t) == ABI_nvmlPciInfo_t, "");
_Static_assert(sizeof(memory_t) == ABI_nvmlMemory_t && sizeof(memory2_t) == ABI_nvmlMemory_v2_t, "");
_Static_assert(sizeof(attributes_t) == ABI_nvmlDeviceAttributes_t, "");
_Static_assert(sizeof(placement_t) == ABI_nvmlGpuInstancePlacement_t, "");
_Static_assert(sizeof(profile_t) == ABI_nvmlGpuInstanceProfileInfo_t, "");
_Static_assert(sizeof(profile2_t) == ABI_nvmlGpuInstanceProfileInfo_v2_t, "");
_Static_assert(sizeof(instance_t) == ABI_nvmlGpuInstanceInfo_t, "");
_Static_assert(sizeof(fabric_t) == ABI_nvmlGpuFabricInfo_t && sizeof(fabric2_t) == ABI_nvmlGpuFabricInfo_v2_t, "");
_Static_assert(sizeof(fabric3_t) == ABI_nvmlGpuFabricInfo_v3_t && sizeof(event_t) == ABI_nvmlEventData_t, "");
_Static_assert(sizeof(bar1_t) == ABI_nvmlBAR1Memory_t && sizeof(platform_t) == ABI_nvmlPlatformInfo_v2_t, "");

/* ------------------------------------------------------------------------------------------ the files */

static struct { char key[NAME], value[NAME]; } store[KEYS];
static int stored;
static char folder[512];
static struct { struct timespec written; long inode, size; } seen[2];

static void read_file(const char *name) {
    char path[600], line[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file) && stored < KEYS) {
        char *is = strchr(line, '=');
        line[strcspn(line, "\n")] = 0;
        if (!is) continue;
        *is = 0;
        snprintf(store[stored].key, NAME, "%.*s", NAME - 1, line);
        snprintf(store[stored].value, NAME, "%.*s", NAME - 1, is + 1);
        stored++;
    }
    fclose(file);
}

static void refresh(void) {
    static const char *names[] = {"answers", "control"};
    const char *wanted = getenv("XCE_TEST_NVML");
    int changed = 0;
    if (!wanted) wanted = ".";
    if (strcmp(folder, wanted)) snprintf(folder, sizeof folder, "%s", wanted), changed = 1;
    for (int i = 0; i < 2; i++) {
        char path[600];
        struct stat st = {0};
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        stat(path, &st);
        typeof(seen[0]) now = {st.st_mtim, st.st_ino, st.st_size};
        if (memcmp(&now, &seen[i], sizeof now)) changed = 1, seen[i] = now;
    }
    if (!changed) return;
    stored = 0;
    read_file("control"); /* first: the first line that has a key counts */
    read_file("answers");
}

static const char *find(const char *key) {
    for (int i = 0; i < stored; i++)
        if (!strcmp(store[i].key, key)) return store[i].value;
    return NULL;
}

#define KEY(buffer, ...) (snprintf(buffer, sizeof buffer, __VA_ARGS__), buffer)

static const char *of(int gpu, const char *name) {
    char key[NAME];
    return find(KEY(key, "%d.%s", gpu, name));
}

static long number(const char *text, long otherwise) { return text ? strtol(text, NULL, 0) : otherwise; }

/* ------------------------------------------------------------------------- what a call does before it answers */

static int initialised, generation;

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static const char *order(const char *what, const char *function, int gpu) {
    char key[NAME];
    const char *value = find(KEY(key, "%s.%s.%d", what, function, gpu));
    if (!value) value = find(KEY(key, "%s.%s.*", what, function));
    if (!value) value = find(KEY(key, "%s.*.%d", what, gpu));
    return value ? value : find(KEY(key, "%s.*.*", what));
}

static int enter(const char *function, int gpu) {
    static int slept;
    static void *volatile leaked;
    const char *value;
    refresh();
    if ((value = order("sleep", function, gpu))) pause_ms(number(value, 0));
    if (!slept && (value = order("once", function, gpu))) slept = 1, pause_ms(number(value, 0));
    if (order("hang", function, gpu)) for (;;) pause();
    if (order("crash", function, gpu)) *(volatile int *)8 = 1;
    if ((value = order("leak", function, gpu))) memset(leaked = malloc(number(value, 0)), 1, number(value, 0));
    if ((value = order("code", function, gpu))) return number(value, OK);
    return OK;
}

/* ------------------------------------------------------------------------------------------------- handles */

typedef struct { int generation, layout, gpu, part; } handle_t; /* part: -1 the GPU, else a MIG device or GPU instance */

static int layout(int gpu) { return number(of(gpu, "mig.layout"), 0); }

static void *handle(int gpu, int part) {
    static handle_t *all[GPUS][MIGS + 1];
    handle_t **slot = &all[gpu][part + 1];
    if (*slot && (*slot)->generation == generation && (*slot)->layout == layout(gpu)) return *slot;
    handle_t *made = malloc(sizeof *made); /* an old one stays readable, so that its use is told from a crash */
    *made = (handle_t){generation, part < 0 ? 0 : layout(gpu), gpu, part};
    if (part < 0 && *slot && (*slot)->generation == generation) { free(made); return *slot; }
    return *slot = made;
}

static int check(const char *function, handle_t *h) {
    int code;
    if (!initialised) return UNINITIALIZED;
    if (!h || h->generation != generation) return INVALID;
    if ((code = enter(function, h->gpu))) return code;
    if (h->part >= 0 && h->layout != layout(h->gpu)) return INVALID;
    return OK;
}

#define CALL(name, ...) int name(handle_t *h, ##__VA_ARGS__)
#define CHECK() do { int code_ = check(__func__, h); if (code_) return code_; } while (0)
#define WANT(variable, name) const char *variable = of(h->gpu, name); if (!variable) return NOT_SUPPORTED

#define TEXT(function, name) \
    CALL(function, char *out, u32 size) { CHECK(); WANT(v, name); \
        if (strlen(v) >= size) { return TOO_SMALL; } strcpy(out, v); return OK; }
#define WORD(function, name) CALL(function, u32 *out) { CHECK(); WANT(v, name); *out = number(v, 0); return OK; }
#define TWO(function, one, other) \
    CALL(function, u32 *a, u32 *b) { CHECK(); WANT(v, one); WANT(w, other); *a = number(v, 0); *b = number(w, 0); return OK; }

/* ------------------------------------------------------------------------------------------------ library */

int nvmlInitWithFlags(u32 flags) {
    int code = enter(__func__, -1);
    (void)flags;
    if (code) return code;
    if (!initialised++) generation++;
    return OK;
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return enter(__func__, -1);
}

#define LIBRARY() do { if (!initialised) return UNINITIALIZED; int c_ = enter(__func__, -1); if (c_) return c_; } while (0)

const char *nvmlErrorString(int code) {
    static char text[40];
    return KEY(text, "stand-in error %d", code);
}

static int library_text(const char *name, char *out, u32 size) {
    const char *value = find(name);
    if (!value) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return OK;
}

int nvmlSystemGetDriverVersion(char *out, u32 size) { LIBRARY(); return library_text("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, u32 size) { LIBRARY(); return library_text("nvml", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    LIBRARY();
    *out = number(find("cuda"), 0);
    return *out ? OK : NOT_SUPPORTED;
}

static u32 count(void) {
    u32 gpus = 0;
    while (gpus < GPUS && of(gpus, "uuid")) gpus++;
    return number(find("count"), gpus);
}

int nvmlDeviceGetCount_v2(u32 *out) { LIBRARY(); *out = count(); return OK; }

static void fill_pci(pci_t *out, const char *address) {
    u32 domain = 0, bus = 0, device = 0;
    sscanf(address, "%x:%x:%x", &domain, &bus, &device);
    memset(out, 0, sizeof *out);
    out->domain = domain, out->bus = bus, out->device = device;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", domain, bus, device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus, device);
}

int nvmlGetExcludedDeviceCount(u32 *out) {
    char key[NAME];
    LIBRARY();
    for (*out = 0; find(KEY(key, "excluded.%u", *out)); ++*out);
    return OK;
}

int nvmlGetExcludedDeviceInfoByIndex(u32 index, excluded_t *out) {
    char key[NAME];
    LIBRARY();
    const char *address = find(KEY(key, "excluded.%u", index));
    if (!address) return INVALID;
    memset(out, 0, sizeof *out);
    fill_pci(&out->pci, address);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **out) {
    if (!initialised) return UNINITIALIZED;
    int code = enter(__func__, index);
    if (code) return code;
    if (index >= count() || index >= GPUS || !of(index, "uuid")) return INVALID;
    *out = handle(index, -1);
    return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **out) {
    pci_t wanted, each;
    if (!initialised) return UNINITIALIZED;
    refresh();
    fill_pci(&wanted, address);
    for (int gpu = 0; gpu < GPUS && of(gpu, "uuid"); gpu++) {
        if (!of(gpu, "pci")) continue;
        fill_pci(&each, of(gpu, "pci"));
        if (strcmp(each.bus_id, wanted.bus_id)) continue;
        int code = enter(__func__, gpu);
        if (code) return code;
        *out = handle(gpu, -1);
        return OK;
    }
    return NOT_FOUND;
}

/* ------------------------------------------------------------------------------------------------- a GPU */

CALL(nvmlDeviceGetUUID, char *out, u32 size) {
    char key[NAME];
    CHECK();
    const char *value = h->part < 0 ? of(h->gpu, "uuid") : of(h->gpu, KEY(key, "mig.%d.uuid", h->part));
    if (!value) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return OK;
}

CALL(nvmlDeviceGetName, char *out, u32 size) {
    char key[NAME];
    CHECK();
    const char *value = h->part < 0 ? of(h->gpu, "name") : of(h->gpu, KEY(key, "mig.%d.name", h->part));
    if (!value) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return OK;
}

CALL(nvmlDeviceGetPciInfo_v3, pci_t *out) { CHECK(); WANT(v, "pci"); fill_pci(out, v); return OK; }
WORD(nvmlDeviceGetIndex, "index")
WORD(nvmlDeviceGetMinorNumber, "minor")
TEXT(nvmlDeviceGetSerial, "serial")
WORD(nvmlDeviceGetBoardId, "board_id")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part")
WORD(nvmlDeviceGetMultiGpuBoard, "multi_board")
WORD(nvmlDeviceGetModuleId, "module")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
CALL(nvmlDeviceGetGspFirmwareVersion, char *out) { CHECK(); WANT(v, "gsp"); strcpy(out, v); return OK; }
WORD(nvmlDeviceGetBrand, "brand")
WORD(nvmlDeviceGetArchitecture, "architecture")
TWO(nvmlDeviceGetCudaComputeCapability, "cc_major", "cc_minor")
WORD(nvmlDeviceGetNumGpuCores, "cores")
WORD(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
WORD(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
WORD(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
WORD(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
WORD(nvmlDeviceGetNumaNodeId, "numa_memory")
WORD(nvmlDeviceGetPersistenceMode, "persistence")
WORD(nvmlDeviceGetComputeMode, "compute_mode")
TWO(nvmlDeviceGetEccMode, "ecc", "ecc_pending")
WORD(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
CALL(nvmlDeviceGetC2cModeInfoV, u32 *out) { CHECK(); WANT(v, "c2c"); *out = number(v, 0); return OK; }
CALL(nvmlDeviceGetVirtualizationMode, u32 *out) { CHECK(); WANT(v, "virtualization"); *out = number(v, 0); return OK; }

CALL(nvmlDeviceGetAddressingMode, u32 *out) {
    CHECK(); WANT(v, "addressing");
    if (out[0] != 0x1000008) return BAD_VERSION;
    out[1] = number(v, 0);
    return OK;
}

CALL(nvmlDeviceGetMemoryInfo, memory_t *out) {
    CHECK(); WANT(v, "memory");
    *out = (memory_t){strtoull(v, NULL, 0), 0, 0};
    return OK;
}

CALL(nvmlDeviceGetMemoryInfo_v2, memory2_t *out) {
    CHECK(); WANT(v, "memory");
    if (out->version != 0x02000028) return BAD_VERSION;
    out->total = strtoull(v, NULL, 0);
    out->reserved = number(of(h->gpu, "reserved"), 0);
    return OK;
}

CALL(nvmlDeviceGetBAR1MemoryInfo, bar1_t *out) {
    CHECK(); WANT(v, "bar1");
    *out = (bar1_t){strtoull(v, NULL, 0), 0, 0};
    return OK;
}

CALL(nvmlDeviceGetTotalEccErrors, int kind, int counter, u64 *out) {
    CHECK(); WANT(v, "uncorrected");
    if (kind != 1 || counter != 0) return INVALID;
    *out = number(v, 0);
    return OK;
}

CALL(nvmlDeviceGetRemappedRows, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    CHECK(); WANT(v, "remapped");
    return sscanf(v, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? OK : INVALID;
}

CALL(nvmlDeviceGetRetiredPages_v2, int cause, u32 *size, u64 *pages, u64 *times) {
    CHECK(); WANT(v, cause ? "retired_double" : "retired_single");
    u32 have = number(v, 0), room = *size;
    *size = have;
    if (!pages) return have ? TOO_SMALL : OK;
    if (room < have) return TOO_SMALL;
    for (u32 i = 0; i < have; i++) pages[i] = i, times[i] = i;
    return OK;
}

CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, u32 *size, process_t *out) {
    CHECK(); WANT(v, "mps");
    u32 have = number(v, 0), room = *size;
    *size = have;
    if (!out || room < have) return have ? TOO_SMALL : OK;
    memset(out, 0, have * sizeof *out);
    return OK;
}

CALL(nvmlDeviceGetFieldValues, int fields, field_t *out) {
    char key[NAME];
    CHECK();
    for (int i = 0; i < fields; i++) {
        const char *value = of(h->gpu, KEY(key, "field.%u", out[i].field));
        out[i].code = value ? OK : NOT_SUPPORTED;
        out[i].type = 1;
        out[i].value.u = number(value, 0);
    }
    return OK;
}

CALL(nvmlDeviceGetPlatformInfo, platform_t *out) {
    CHECK(); WANT(v, "platform");
    if (out->version != 0x200002c) return BAD_VERSION;
    memset(out->guid, 0, sizeof(platform_t) - sizeof(u32));
    char chassis[20] = "";
    int slot = 0, tray = 0, host = 0, peer = 0;
    u64 guid = 0;
    sscanf(v, "%llx %d %d %d %d %16s", &guid, &slot, &tray, &host, &peer, chassis);
    for (int i = 0; i < 8; i++) out->guid[i] = guid >> (56 - 8 * i);
    memcpy(out->chassis, chassis, strlen(chassis));
    out->slot = slot, out->tray = tray, out->host = host, out->peer = peer;
    return OK;
}

/* --------------------------------------------------------------------------------------- NVLink and fabric */

static const char *of_link(int gpu, u32 link, const char *name) {
    char key[NAME];
    return of(gpu, KEY(key, "link.%u.%s", link, name));
}

#define LINK(function, name) \
    CALL(function, u32 link, u32 *out) { CHECK(); \
        if (!of_link(h->gpu, link, "active")) return link ? INVALID : NOT_SUPPORTED; \
        const char *v = of_link(h->gpu, link, name); \
        if (!v) return NOT_SUPPORTED; \
        *out = number(v, 0); return OK; }
LINK(nvmlDeviceGetNvLinkState, "active")
LINK(nvmlDeviceGetNvLinkVersion, "version")
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, "type")

CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2, u32 link, pci_t *out) {
    CHECK();
    const char *v = of_link(h->gpu, link, "remote");
    if (!v) return NOT_SUPPORTED;
    fill_pci(out, v);
    return OK;
}

static int fabric(int gpu, fabric3_t *out) {
    const char *state = of(gpu, "fabric.state"), *uuid = of(gpu, "fabric.cluster");
    if (!state) return NOT_SUPPORTED;
    memset(out->uuid, 0, sizeof *out - sizeof(u32));
    out->state = number(state, 0);
    out->status = number(of(gpu, "fabric.status"), 0);
    out->clique = number(of(gpu, "fabric.clique"), 0);
    out->health = number(of(gpu, "fabric.health"), 0);
    out->summary = number(of(gpu, "fabric.summary"), 0);
    for (int i = 0; uuid && *uuid && i < 16; uuid += *uuid == '-') {
        u32 byte;
        sscanf(uuid, "%2x", &byte);
        out->uuid[i++] = byte, uuid += 2;
    }
    return OK;
}

CALL(nvmlDeviceGetGpuFabricInfoV, fabric3_t *out) {
    fabric3_t full;
    CHECK();
    int code = fabric(h->gpu, &full);
    if (out->version == 0x02000024) { if (!code) memcpy(out->uuid, full.uuid, sizeof(fabric2_t) - 4); return code; }
    if (out->version != 0x03000028 || find("fabric.old")) return BAD_VERSION;
    full.version = out->version;
    if (!code) *out = full;
    return code;
}

CALL(nvmlDeviceGetGpuFabricInfo, fabric_t *out) {
    fabric3_t full;
    CHECK();
    int code = fabric(h->gpu, &full);
    if (!code) memcpy(out, full.uuid, sizeof *out);
    return code;
}

/* ----------------------------------------------------------------------------------------------------- MIG */

TWO(nvmlDeviceGetMigMode, "mig.current", "mig.pending")
WORD(nvmlDeviceGetMaxMigDeviceCount, "mig.max")

static long mig(handle_t *h, const char *name) {
    char key[NAME];
    return number(of(h->gpu, KEY(key, "mig.%d.%s", h->part, name)), 0);
}

CALL(nvmlDeviceGetMigDeviceHandleByIndex, u32 index, void **out) {
    char key[NAME];
    CHECK();
    if (h->part >= 0 || !number(of(h->gpu, "mig.current"), 0)) return NOT_SUPPORTED;
    if (index >= (u32)number(of(h->gpu, "mig.max"), 0)) return INVALID;
    if (!of(h->gpu, KEY(key, "mig.%u.uuid", index))) return NOT_FOUND;
    *out = handle(h->gpu, index);
    return OK;
}

CALL(nvmlDeviceGetGpuInstanceId, u32 *out) { CHECK(); if (h->part < 0) return INVALID; *out = mig(h, "gi"); return OK; }
CALL(nvmlDeviceGetComputeInstanceId, u32 *out) { CHECK(); if (h->part < 0) return INVALID; *out = mig(h, "ci"); return OK; }

CALL(nvmlDeviceGetAttributes_v2, attributes_t *out) {
    CHECK();
    if (h->part < 0) return INVALID;
    *out = (attributes_t){mig(h, "sm"), mig(h, "ce"), mig(h, "dec"), mig(h, "enc"), mig(h, "jpg"), mig(h, "ofa"),
                          mig(h, "gpu_slices"), mig(h, "compute_slices"), mig(h, "memory")};
    return OK;
}

static const char *of_profile(int gpu, u32 profile, const char *name) {
    char key[NAME];
    return of(gpu, KEY(key, "profile.%u.%s", profile, name));
}

static int profile_of_id(int gpu, u32 id) {
    for (u32 profile = 0; profile < 32; profile++)
        if (number(of_profile(gpu, profile, "id"), -1) == (long)id) return profile;
    return -1;
}

static int fill_profile(int gpu, u32 profile, profile2_t *out) {
    static const char *names[] = {"id", "p2p", "slices", "instances", "sm", "ce", "dec", "enc", "jpg", "ofa"};
    if (profile >= 0x12) return INVALID;
    if (!of_profile(gpu, profile, "id")) return NOT_SUPPORTED;
    for (int i = 0; i < 10; i++) (&out->id)[i] = number(of_profile(gpu, profile, names[i]), 0);
    out->memory = number(of_profile(gpu, profile, "memory"), 0);
    snprintf(out->name, sizeof out->name, "%s", of_profile(gpu, profile, "name"));
    return OK;
}

CALL(nvmlDeviceGetGpuInstanceProfileInfoV, u32 profile, profile2_t *out) {
    CHECK();
    if (out->version != 0x02000098) return BAD_VERSION;
    return fill_profile(h->gpu, profile, out);
}

CALL(nvmlDeviceGetGpuInstanceProfileInfo, u32 profile, profile_t *out) {
    profile2_t full;
    CHECK();
    int code = fill_profile(h->gpu, profile, &full);
    if (!code) memcpy(out, &full.id, 10 * sizeof(u32)), out->memory = full.memory;
    return code;
}

CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, u32 id, placement_t *out, u32 *size) {
    CHECK();
    int profile = profile_of_id(h->gpu, id);
    const char *text = profile < 0 ? NULL : of_profile(h->gpu, profile, "placements");
    u32 room = *size, start, length;
    if (!text) return NOT_SUPPORTED;
    for (*size = 0; sscanf(text, "%u:%u", &start, &length) == 2; text += strspn(text, " "), ++*size) {
        if (out && *size < room) out[*size] = (placement_t){start, length};
        text += strcspn(text, " ");
    }
    return out && room < *size ? TOO_SMALL : OK;
}

CALL(nvmlDeviceGetGpuInstanceRemainingCapacity, u32 id, u32 *out) {
    CHECK();
    int profile = profile_of_id(h->gpu, id);
    const char *value = profile < 0 ? NULL : of_profile(h->gpu, profile, "remaining");
    if (!value) return NOT_SUPPORTED;
    *out = number(value, 0);
    return OK;
}

static const char *of_instance(int gpu, int at, const char *name) {
    char key[NAME];
    return of(gpu, KEY(key, "gi.%d.%s", at, name));
}

CALL(nvmlDeviceGetGpuInstances, u32 profile, void **out, u32 *size) {
    CHECK();
    *size = 0;
    for (int at = 0; of_instance(h->gpu, at, "id"); at++)
        if (number(of_instance(h->gpu, at, "profile"), -1) == (long)profile) out[(*size)++] = handle(h->gpu, at);
    return OK;
}

CALL(nvmlDeviceGetGpuInstanceById, u32 id, void **out) {
    CHECK();
    for (int at = 0; of_instance(h->gpu, at, "id"); at++)
        if (number(of_instance(h->gpu, at, "id"), -1) == (long)id) { *out = handle(h->gpu, at); return OK; }
    return NOT_FOUND;
}

CALL(nvmlGpuInstanceGetInfo, instance_t *out) {
    CHECK();
    *out = (instance_t){handle(h->gpu, -1), number(of_instance(h->gpu, h->part, "id"), 0),
                        number(of_instance(h->gpu, h->part, "profile"), 0),
                        {number(of_instance(h->gpu, h->part, "start"), 0), number(of_instance(h->gpu, h->part, "size"), 0)}};
    return OK;
}

/* -------------------------------------------------------------------------------------------------- events */

typedef struct { int generation, told; u64 gpus; } set_t;

static int told_at(int wanted, event_t *out, u64 gpus) { /* the event number `wanted`, or how many there are */
    char path[600];
    int gpu, xid, gi, ci, number_ = 0;
    snprintf(path, sizeof path, "%s/events", folder);
    FILE *file = fopen(path, "re");
    while (file && fscanf(file, "%d %d %d %d", &gpu, &xid, &gi, &ci) == 4) {
        if (out && number_ == wanted && gpus >> gpu & 1)
            *out = (event_t){handle(gpu, -1), 8, xid, gi, ci};
        number_++;
    }
    if (file) fclose(file);
    return number_;
}

int nvmlEventSetCreate(set_t **out) {
    LIBRARY();
    *out = malloc(sizeof **out);
    **out = (set_t){generation, told_at(-1, NULL, 0), 0};
    return OK;
}

int nvmlEventSetFree(set_t *set) { LIBRARY(); free(set); return OK; }

CALL(nvmlDeviceGetSupportedEventTypes, u64 *out) { CHECK(); WANT(v, "events"); *out = number(v, 0); return OK; }

CALL(nvmlDeviceRegisterEvents, u64 types, set_t *set) {
    CHECK(); WANT(v, "events");
    if (types & ~(u64)number(v, 0)) return NOT_SUPPORTED;
    if (types & 8) set->gpus |= 1ull << h->gpu;
    return OK;
}

int nvmlEventSetWait_v2(set_t *set, event_t *out, u32 ms) {
    LIBRARY();
    if (set->generation != generation) return INVALID;
    for (u32 waited = 0;; waited += 5) {
        for (int there = told_at(-1, NULL, 0); set->told < there;) {
            out->device = NULL;
            told_at(set->told++, out, set->gpus);
            if (out->device) return OK;
        }
        if (waited >= ms) return TIMEOUT;
        pause_ms(5);
    }
}

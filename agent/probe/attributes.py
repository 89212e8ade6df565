"""What the attributes of a found instance are called, in what unit, and where they come from.

One table: `instances.py` uses these names and no other, docs/attributes.md is made from it. An attribute that
is not known is absent. What moves by itself (clocks, link speed of an idle GPU) is none: it would make every
reading a new generation.
"""

from enum import StrEnum

import msgspec

from xce.model.value import Value


class Form(StrEnum):
    """What a value of an attribute looks like."""

    TEXT = "text"
    NUMBER = "whole number"
    REAL = "number"
    SWITCH = "true or false"
    LIST = "list of texts"


class Attribute(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    form: Form
    kinds: str
    """Kinds of instances that may have it."""
    meaning: str
    source: str
    unit: str = ""


_T, _N, _R, _S, _L = Form
_DEVICE, _GPU, _NVIDIA, _AMD = "gpu, accelerator, nic", "gpu", "gpu (NVIDIA)", "gpu (AMD)"
_MIG, _NIC, _PORT = "mig", "nic", "nic-port"
_ALL_GPUS = "gpu, mig, gpu-partition"

TABLE: tuple[Attribute, ...] = (
    Attribute("pci", _T, _DEVICE, "PCI address, lower case, domain of at least four digits", "sysfs, NVML"),
    Attribute("vendor", _T, "all", "`nvidia`, `amd`, `intel`, `mellanox`, ... or the PCI id", "sysfs"),
    Attribute("pci_id", _T, _DEVICE, "vendor and device: `10de:2330`", "sysfs"),
    Attribute("driver", _T, _DEVICE, "kernel driver that is bound; absent: none", "sysfs"),
    Attribute(
        "numa", _N, "all", "NUMA node that it is closest to; absent: the platform does not say", "sysfs"
    ),
    Attribute("cpus", _T, _DEVICE, "CPUs that are closest: `0-7,16-23`", "sysfs"),
    Attribute("pci_root", _T, _DEVICE, "host bridge: `pci0000:17`", "sysfs"),
    Attribute("bridges", _L, _DEVICE, "every PCI bridge above it, from the root down", "sysfs"),
    Attribute("group", _T, _DEVICE, "group that an admin's topology file puts it in", "topology file"),
    Attribute("pcie_gen", _N, _DEVICE, "generation of PCIe that device and slot can do", "NVML, sysfs"),
    Attribute("pcie_width", _N, _DEVICE, "lanes that device and slot can do", "NVML, sysfs"),
    Attribute("rails", _L, "gpu, mig, gpu-partition, nic", "rails that it belongs to", "topology file, rule"),
    Attribute("nearest_nics", _L, _ALL_GPUS, "ids of the NICs that it reaches best", "topology"),
    Attribute(
        "nearest_level",
        _T,
        _ALL_GPUS,
        "how it reaches them: `bridge`, `hostbridge`, `numa`, `system`, `unknown`",
        "topology",
    ),
    Attribute("product", _T, "all", "product name", "NVML, sysfs"),
    Attribute("architecture", _T, _ALL_GPUS, "`hopper`, `blackwell`; AMD: `gfx942`", "NVML, KFD"),
    Attribute("memory_mib", _N, _ALL_GPUS, "memory, all of it", "NVML, KFD", "MiB"),
    Attribute("cores", _N, _ALL_GPUS, "CUDA cores; AMD: SIMDs", "NVML, KFD"),
    Attribute("index", _N, _NVIDIA, "number in `nvidia-smi`; only for showing", "NVML"),
    Attribute("minor", _N, _NVIDIA, "number of /dev/nvidiaN; only for showing", "NVML"),
    Attribute("module", _N, _NVIDIA, "number of the module on its board; only for showing", "NVML"),
    Attribute("render", _N, "gpu, gpu-partition", "minor number of its /dev/dri/renderDN", "KFD, DRM"),
    Attribute("brand", _T, _NVIDIA, "brand", "NVML"),
    Attribute("serial", _T, _NVIDIA, "serial number of the board; two GPUs may share one", "NVML"),
    Attribute("board", _T, _NVIDIA, "id of the board: equal for GPUs on one board", "NVML"),
    Attribute("board_part", _T, _NVIDIA, "part number of the board", "NVML"),
    Attribute("vbios", _T, _NVIDIA, "version of its BIOS", "NVML"),
    Attribute("firmware", _T, "gpu, nic", "version of its firmware", "NVML, sysfs"),
    Attribute("driver_version", _T, "gpu, mig (NVIDIA)", "version of the GPU driver", "NVML"),
    Attribute("cuda_version", _T, "gpu, mig (NVIDIA)", "newest CUDA that the driver can do", "NVML"),
    Attribute("compute_capability", _T, "gpu, mig (NVIDIA)", "CUDA compute capability: `9.0`", "NVML"),
    Attribute("bar1_mib", _N, _NVIDIA, "size of the BAR1 window", "NVML", "MiB"),
    Attribute("ecc", _S, _NVIDIA, "ECC is on", "NVML"),
    Attribute("compute_mode", _T, _NVIDIA, "`default`, `exclusive-process`, `prohibited`", "NVML"),
    Attribute("persistence", _S, _NVIDIA, "persistence mode is on", "NVML"),
    Attribute("mig", _S, _NVIDIA, "MIG is on; absent: the GPU cannot", "NVML"),
    Attribute("mig_pending", _S, _NVIDIA, "MIG after the next reset, where it differs", "NVML"),
    Attribute("mig_profiles", _L, _NVIDIA, "names of the profiles that it offers", "NVML"),
    Attribute("addressing", _T, _NVIDIA, "`hmm`, `ats`, `none`", "NVML"),
    Attribute("c2c", _S, _NVIDIA, "joined to its CPU by NVLink-C2C", "NVML"),
    Attribute("memory_numa", _N, _NVIDIA, "NUMA node that is its own memory", "NVML, /proc"),
    Attribute("virtualization", _T, _NVIDIA, "`none`, `pass-through`, `vgpu`, `host-vgpu`, ...", "NVML"),
    Attribute("fabric", _T, _NVIDIA, "NVLink domain beyond the host: `CLUSTER.CLIQUE`", "NVML"),
    Attribute("fabric_guid", _T, _NVIDIA, "its GUID in the NVLink fabric", "NVML"),
    Attribute("chassis", _T, _NVIDIA, "serial number of the rack or chassis", "NVML"),
    Attribute("slot", _T, _NVIDIA, "slot of the compute tray in the rack", "NVML"),
    Attribute("tray", _T, _NVIDIA, "number of the compute tray", "NVML"),
    Attribute("nvlink_version", _N, _NVIDIA, "version of NVLink", "NVML"),
    Attribute("nvlinks", _N, _NVIDIA, "NVLinks that are up", "NVML"),
    Attribute("nvlink_switches", _N, _NVIDIA, "NVSwitches at the other ends", "NVML"),
    Attribute(
        "link_peers", _L, _GPU, "`ID=18`: GPU at the other end and links to it (xGMI: `ID`)", "NVML, KFD"
    ),
    Attribute("link_kind", _T, _GPU, "`nvlink` or `xgmi`: what `link_peers` are joined by", "NVML, KFD"),
    Attribute("link_domain", _T, "gpu, gpu-partition", "equal for GPUs that are joined by links", "topology"),
    Attribute("sharing", _L, "gpu, mig", "how several may use it at once: `mps`, `time-slicing`", "NVML"),
    Attribute("mps_clients", _N, "gpu, mig", "clients that one MPS server can have", "vendor's manual"),
    Attribute("unique_id", _T, "gpu, gpu-partition (AMD)", "the vendor's unique id, 16 hex digits", "KFD"),
    Attribute("kfd_id", _N, "gpu, gpu-partition (AMD)", "`gpu_id` of KFD; only for showing", "KFD"),
    Attribute("xcc", _N, "gpu, gpu-partition (AMD)", "compute dies (XCC)", "KFD"),
    Attribute("partitions", _N, _AMD, "partitions that it is shown as, if more than one", "KFD"),
    Attribute(
        "devices", _L, "accelerator, gpu", "its names in the kernel's classes: `ve0`, `card0`", "sysfs"
    ),
    Attribute("profile", _T, _MIG, "profile of its compute instance: `1c.3g.20gb`, `3g.20gb`", "NVML"),
    Attribute("gi", _N, _MIG, "id of its GPU instance; only for showing", "NVML"),
    Attribute("ci", _N, _MIG, "id of its compute instance; only for showing", "NVML"),
    Attribute("placement", _T, _MIG, "first memory slice and how many: `4:4`", "NVML"),
    Attribute("multiprocessors", _N, _MIG, "streaming multiprocessors", "NVML"),
    Attribute("gpu_slices", _N, _MIG, "GPU slices", "NVML"),
    Attribute("compute_slices", _N, _MIG, "compute slices", "NVML"),
    Attribute("copy_engines", _N, _MIG, "copy engines", "NVML"),
    Attribute("decoders", _N, _MIG, "video decoders", "NVML"),
    Attribute("encoders", _N, _MIG, "video encoders", "NVML"),
    Attribute("jpeg_engines", _N, _MIG, "JPEG engines", "NVML"),
    Attribute("flow_engines", _N, _MIG, "optical flow engines", "NVML"),
    Attribute("function", _T, _NIC, "`physical`, `virtual`, `representor`", "sysfs"),
    Attribute("physical_function", _T, _NIC, "id of the physical function of a virtual one", "sysfs"),
    Attribute("virtual_functions", _N, _NIC, "virtual functions that are switched on", "sysfs"),
    Attribute("virtual_functions_max", _N, _NIC, "virtual functions that it can have", "sysfs"),
    Attribute(
        "fabric_kind", _T, "nic, nic-port", "`ethernet`, `infiniband`, `roce`, `omnipath`, ...", "sysfs"
    ),
    Attribute("rdma", _T, "nic, nic-port, rdma", "RDMA device: `mlx5_0`", "sysfs"),
    Attribute("uverbs", _T, "nic, rdma", "its /dev/infiniband node: `uverbs0`", "sysfs"),
    Attribute("node_guid", _T, "nic, rdma", "GUID of the RDMA device", "sysfs"),
    Attribute("system_guid", _T, "nic, rdma", "GUID of the card", "sysfs"),
    Attribute(
        "nets", _L, "nic, nic-port, bond", "network devices: `ib0`; a bond: its members", "sysfs, netlink"
    ),
    Attribute("mac", _T, "nic-port, bond", "hardware address", "sysfs, netlink"),
    Attribute("port", _N, _PORT, "number of the port, from 1", "sysfs"),
    Attribute("state", _T, "nic-port, bond", "`ACTIVE`, `DOWN`, ... (RDMA), `up`, `down` (network)", "sysfs"),
    Attribute("gbps", _R, "nic-port, nic", "rate; of a NIC: its fastest port", "sysfs, netlink", "Gb/s"),
    Attribute("lid", _N, _PORT, "local identifier in its InfiniBand subnet", "sysfs"),
    Attribute("mtu", _N, "nic-port, bond", "largest packet of the network device", "sysfs, netlink", "bytes"),
    Attribute("master", _T, _PORT, "bond or bridge that it is a member of", "sysfs, netlink"),
)

BY_NAME = {row.name: row for row in TABLE}


def known(**values: Value | tuple[str, ...] | None) -> dict[str, Value]:
    """Attributes of those values that are known, by name: None, '' and empty lists are left out."""
    found: dict[str, Value] = {}
    for name, value in values.items():
        if value is None or value in ("", (), []):
            continue
        found[name] = list(value) if isinstance(value, tuple) else value
    return found

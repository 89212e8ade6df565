/* A directory seen through a disk that can fall ill: FUSE passes every call on, unless it is told to fail or hang.
 *
 *     faultfs MOUNTPOINT SOURCE CONTROL -f
 *
 * CONTROL is four native ints, which a test changes while it runs: the error of what writes, of what syncs and of
 * what reads, 0 for none, and who waits: everybody (1), or who syncs (2). Caches of the kernel are off: each call comes here.
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { WRITES, SYNCS, READS, HANGS };
static volatile int *control;
static int source;

static int ill(int kind)
{
    while (control[HANGS] == 1 || (control[HANGS] == 2 && kind == SYNCS))
        usleep(5000);
    return -control[kind];
}

static int full(int error) { return error == -ENOSPC || error == -EDQUOT; }
static const char *at(const char *path) { return path[1] ? path + 1 : "."; }
static int done(int result) { return result < 0 ? -errno : 0; }
static char *proc(const char *path, char *buffer)
{
    snprintf(buffer, 4200, "/proc/self/fd/%d/%s", source, at(path));
    return buffer;
}

#define FAILS(kind)                  \
    do {                             \
        int error = ill(kind);       \
        if (error) return error;     \
    } while (0)
#define FAILS_BUT_FULL(kind)         /* what needs no room */ \
    do {                                                      \
        int error = ill(kind);                                \
        if (error && !full(error)) return error;              \
    } while (0)

static int f_getattr(const char *p, struct stat *s, struct fuse_file_info *i)
{
    FAILS(READS);
    return done(i ? fstat(i->fh, s) : fstatat(source, at(p), s, AT_SYMLINK_NOFOLLOW));
}
static int f_readlink(const char *p, char *b, size_t n)
{
    FAILS(READS);
    ssize_t got = readlinkat(source, at(p), b, n - 1);
    if (got < 0) return -errno;
    b[got] = 0;
    return 0;
}
static int f_mknod(const char *p, mode_t m, dev_t d) { FAILS(WRITES); return done(mknodat(source, at(p), m, d)); }
static int f_mkdir(const char *p, mode_t m) { FAILS(WRITES); return done(mkdirat(source, at(p), m)); }
static int f_unlink(const char *p) { FAILS_BUT_FULL(WRITES); return done(unlinkat(source, at(p), 0)); }
static int f_rmdir(const char *p) { FAILS_BUT_FULL(WRITES); return done(unlinkat(source, at(p), AT_REMOVEDIR)); }
static int f_symlink(const char *t, const char *p) { FAILS(WRITES); return done(symlinkat(t, source, at(p))); }
static int f_rename(const char *a, const char *b, unsigned f)
{
    FAILS_BUT_FULL(WRITES);
    return done(renameat2(source, at(a), source, at(b), f));
}
static int f_link(const char *a, const char *b) { FAILS(WRITES); return done(linkat(source, at(a), source, at(b), 0)); }
static int f_chmod(const char *p, mode_t m, struct fuse_file_info *i)
{
    (void)i;
    FAILS(WRITES);
    return done(fchmodat(source, at(p), m, 0));
}
static int f_chown(const char *p, uid_t u, gid_t g, struct fuse_file_info *i)
{
    (void)i;
    FAILS(WRITES);
    return done(fchownat(source, at(p), u, g, AT_SYMLINK_NOFOLLOW));
}
static int f_truncate(const char *p, off_t n, struct fuse_file_info *i)
{
    char b[4200];
    FAILS(WRITES);
    return done(i ? ftruncate(i->fh, n) : truncate(proc(p, b), n));
}
static int f_utimens(const char *p, const struct timespec t[2], struct fuse_file_info *i)
{
    (void)i;
    FAILS(WRITES);
    return done(utimensat(source, at(p), t, AT_SYMLINK_NOFOLLOW));
}
static int f_open(const char *p, struct fuse_file_info *i)
{
    FAILS(READS);
    int fd = openat(source, at(p), i->flags & ~O_NOFOLLOW);
    if (fd < 0) return -errno;
    i->fh = fd;
    i->direct_io = 1;
    return 0;
}
static int f_create(const char *p, mode_t m, struct fuse_file_info *i)
{
    FAILS(WRITES);
    int fd = openat(source, at(p), i->flags | O_CREAT, m);
    if (fd < 0) return -errno;
    i->fh = fd;
    i->direct_io = 1;
    return 0;
}
static int f_read(const char *p, char *b, size_t n, off_t o, struct fuse_file_info *i)
{
    (void)p;
    FAILS(READS);
    ssize_t got = pread(i->fh, b, n, o);
    return got < 0 ? -errno : (int)got;
}
static int f_write(const char *p, const char *b, size_t n, off_t o, struct fuse_file_info *i)
{
    (void)p;
    FAILS(WRITES);
    ssize_t got = pwrite(i->fh, b, n, o);
    return got < 0 ? -errno : (int)got;
}
static int f_fallocate(const char *p, int m, off_t o, off_t n, struct fuse_file_info *i)
{
    (void)p;
    FAILS(WRITES);
    return done(fallocate(i->fh, m, o, n));
}
static int f_statfs(const char *p, struct statvfs *s) { (void)p; FAILS(READS); return done(fstatvfs(source, s)); }
static int f_flush(const char *p, struct fuse_file_info *i) { (void)p; (void)i; return ill(HANGS) ? 0 : 0; }
static int f_release(const char *p, struct fuse_file_info *i) { (void)p; return done(close(i->fh)); }
static int f_fsync(const char *p, int d, struct fuse_file_info *i)
{
    (void)p;
    (void)d;
    FAILS(SYNCS);
    return done(fdatasync(i->fh));
}
static int f_fsyncdir(const char *p, int d, struct fuse_file_info *i) { (void)p; (void)d; (void)i; return ill(SYNCS); }
static int f_setxattr(const char *p, const char *k, const char *v, size_t n, int f)
{
    char b[4200];
    FAILS(WRITES);
    return done(lsetxattr(proc(p, b), k, v, n, f));
}
static int f_getxattr(const char *p, const char *k, char *v, size_t n)
{
    char b[4200];
    FAILS(READS);
    ssize_t got = lgetxattr(proc(p, b), k, v, n);
    return got < 0 ? -errno : (int)got;
}
static int f_listxattr(const char *p, char *v, size_t n)
{
    char b[4200];
    FAILS(READS);
    ssize_t got = llistxattr(proc(p, b), v, n);
    return got < 0 ? -errno : (int)got;
}
static int f_removexattr(const char *p, const char *k)
{
    char b[4200];
    FAILS(WRITES);
    return done(lremovexattr(proc(p, b), k));
}
static int f_readdir(const char *p, void *b, fuse_fill_dir_t fill, off_t o, struct fuse_file_info *i,
                     enum fuse_readdir_flags f)
{
    (void)o;
    (void)i;
    (void)f;
    FAILS(READS);
    int fd = openat(source, at(p), O_RDONLY | O_DIRECTORY);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) return -errno;
    for (struct dirent *e; (e = readdir(d));)
        fill(b, e->d_name, NULL, 0, 0);
    closedir(d);
    return 0;
}
static void *f_init(struct fuse_conn_info *c, struct fuse_config *g)
{
    (void)c;
    g->entry_timeout = g->attr_timeout = g->negative_timeout = 0;
    g->use_ino = 1;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = f_init, .getattr = f_getattr, .readlink = f_readlink, .mknod = f_mknod, .mkdir = f_mkdir,
    .unlink = f_unlink, .rmdir = f_rmdir, .symlink = f_symlink, .rename = f_rename, .link = f_link,
    .chmod = f_chmod, .chown = f_chown, .truncate = f_truncate, .utimens = f_utimens, .open = f_open,
    .create = f_create, .read = f_read, .write = f_write, .fallocate = f_fallocate, .statfs = f_statfs,
    .flush = f_flush, .release = f_release, .fsync = f_fsync, .fsyncdir = f_fsyncdir, .setxattr = f_setxattr,
    .getxattr = f_getxattr, .listxattr = f_listxattr, .removexattr = f_removexattr, .readdir = f_readdir,
};

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    source = open(argv[2], O_RDONLY | O_DIRECTORY);
    int fd = open(argv[3], O_RDWR);
    control = mmap(NULL, 4 * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (source < 0 || fd < 0 || control == MAP_FAILED) return 3;
    umask(0);
    char *args[] = {argv[0], argv[1], "-f", "-o", "allow_other,default_permissions,suid,dev", NULL};
    return fuse_main(5, args, &operations, NULL);
}

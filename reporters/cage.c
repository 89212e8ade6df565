/* The way of a run into its cage (cage.py), in one process and before anything of the reporter runs:
 *     xce-cage PROCS DIRECTORY UID GID [WHICH=VALUE ...] -- PROGRAM [ARGUMENT ...]
 * joins the control group whose cgroup.procs PROCS is, goes to DIRECTORY, sets limits (WHICH: RLIMIT_*, soft and
 * hard), becomes UID and GID without groups, keys or capabilities, gives up new privileges, and executes PROGRAM.
 * PROCS and UID may be '': not asked for. Root (UID 0) keeps its keys and capabilities. What cannot be done ends it,
 * in words on stderr, with 125; a PROGRAM that cannot be executed ends it with 126. A '+' before a variable of the
 * environment is dropped on the way: LD_PRELOAD, and what else a loader obeys, is for PROGRAM, not for root here. */
#define _FILE_OFFSET_BITS 64 /* rlim_t has them everywhere */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BROKEN = 125, NOT_EXECUTED = 126 };

static void die(int status, const char *what, const char *whom)
{
    fprintf(stderr, "xce-cage: cannot %s %s: %s\n", what, whom, strerror(errno));
    _exit(status);
}

static void join(const char *procs)
{
    int fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1)
        die(BROKEN, "join the control group of", procs);
}

static void enter(const char *directory)
{
    int fd = open(directory, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fchdir(fd))
        die(BROKEN, "enter", directory);
}

/* What the agent may have been given for itself. */
static void be_like_any_other(void)
{
    static const char sparing[] = "/proc/self/oom_score_adj"; /* below 0: spared by the OOM killer */
    char sign = '\0';
    int fd = open(sparing, O_RDONLY | O_CLOEXEC);
    umask(022);
    if (fd < 0 || read(fd, &sign, 1) != 1 || sign != '-')
        return;
    fd = open(sparing, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1)
        die(BROKEN, "write", sparing);
}

/* The number at the beginning of text, and what follows the `end` behind it. */
static rlim_t number(const char *text, char end, rlim_t most, const char **rest)
{
    char *behind;
    errno = 0;
    rlim_t value = strtoull(text, &behind, 10);
    if (errno || *text < '0' || *text > '9' || *behind != end || value > most) {
        errno = EINVAL;
        die(BROKEN, "read the number", text);
    }
    if (rest)
        *rest = behind + 1;
    return value;
}

static void limit(const char *text)
{
    const char *value;
    int which = (int)number(text, '=', INT_MAX, &value);
    struct rlimit limit;
    limit.rlim_cur = limit.rlim_max = number(value, '\0', RLIM_INFINITY, NULL);
    if (setrlimit(which, &limit))
        die(BROKEN, "set the limit", text);
}

static void become(const char *user, const char *group)
{
    uid_t uid = (uid_t)number(user, '\0', UINT_MAX - 1, NULL); /* the last one means "as it is" */
    gid_t gid = (gid_t)number(group, '\0', UINT_MAX - 1, NULL);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    if (uid) {
        for (int which = 0; prctl(PR_CAPBSET_DROP, which, 0, 0, 0) == 0; which++)
            ;
        if (errno != EINVAL) /* which is past the last one that this kernel has */
            die(BROKEN, "give up the capabilities of", "root");
        /* Not there, or forbidden as in a container, it is so for PROGRAM as well. */
        if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS && errno != EPERM)
            die(BROKEN, "leave the session keyring of", "root");
    }
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        die(BROKEN, "become uid", user);
    if (uid && syscall(SYS_capset, &header, none)) /* ambient ones go with these */
        die(BROKEN, "give up the capabilities of uid", user);
}

int main(int count, char **words)
{
    char **next = words + 5;
    errno = EINVAL;
    if (count < 7)
        die(BROKEN, "be started by hand", "(see cage.c)");
    if (*words[1])
        join(words[1]);
    enter(words[2]);
    be_like_any_other();
    for (; *next && strcmp(*next, "--"); next++)
        limit(*next);
    if (*words[3])
        become(words[3], words[4]);
    if (!*next || !next[1])
        die(BROKEN, "find", "--");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        die(BROKEN, "give up new privileges for", next[1]);
    for (char **variable = environ; *variable; variable++)
        *variable += **variable == '+';
    execv(next[1], next + 1);
    die(NOT_EXECUTED, "execute", next[1]);
}

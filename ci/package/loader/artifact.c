#define _GNU_SOURCE
#include "artifact.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "message.h"

int open_artifact(void)
{
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    int error = errno;
    /* Without /proc: the path that was given to exec, still relative to the same folder. */
    const char *path = (const char *)getauxval(AT_EXECFN);
    fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        fail(EXIT_STORAGE, "make the file readable (chmod +r), or mount /proc", "cannot read the artifact %s: %s",
             path != NULL ? path : "itself", strerror(path != NULL ? errno : error));
    return fd;
}

static bool leads_to(const char *path, int fd)
{
    struct stat there, open_one;
    return stat(path, &there) == 0 && fstat(fd, &open_one) == 0 && there.st_dev == open_one.st_dev &&
           there.st_ino == open_one.st_ino;
}

const char *artifact_path(int fd)
{
    const char *path = realpath("/proc/self/exe", NULL);
    if (path == NULL)
        path = realpath((const char *)getauxval(AT_EXECFN), NULL);
    if (path != NULL && leads_to(path, fd))
        return path;
    /* It was renamed or deleted since: the engine inherits a descriptor of it. */
    int kept = dup(fd);
    if (kept < 0)
        fail(EXIT_STORAGE, "start it again", "cannot keep the artifact open: %s", strerror(errno));
    return format_text("/proc/self/fd/%d", kept);
}

/* Else the next file that is opened would take number 2, and a message would be written into it. */
void guard_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/", O_PATH | O_CLOEXEC) != fd)
            fail(EXIT_STORAGE, "start it with its standard streams open", "cannot start: %s", strerror(errno));
}

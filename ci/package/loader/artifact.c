#define _GNU_SOURCE
#include "artifact.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
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

/* Else the next file that is opened would take number 2, and a message would be written into it. */
void guard_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/", O_PATH | O_CLOEXEC) != fd)
            fail(EXIT_STORAGE, "start it with its standard streams open", "cannot start: %s", strerror(errno));
}

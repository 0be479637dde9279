#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "message.h"

/* The engine finds its libraries by DT_RUNPATH, over which the caller's LD_LIBRARY_PATH wins: a libggml-base of
 * another build there, or in the working directory for an empty element, would be loaded instead of the verified
 * one (case B25). So the folder is put in front; without the variable there is nothing to win over. */
static void put_folder_first(const struct folder *folder)
{
    const char *given = getenv("LD_LIBRARY_PATH");
    if (given && setenv("LD_LIBRARY_PATH", format_text("%s:%s", folder->path, given), 1) != 0)
        fail(EXIT_STORAGE, "free some memory", "cannot set LD_LIBRARY_PATH: %s", strerror(errno));
}

_Noreturn void launch(const struct index *index, const struct folder *folder, char **argv)
{
    const char *path = format_text("%s/%s", folder->path, index->entry->name);
    put_folder_first(folder);
    execv(path, argv);
    switch (errno) {
    case ENOENT: /* the file is there, we have just checked it: what is missing is its interpreter */
        fail(EXIT_MISSING, "run it on a Linux distribution with glibc (in a container, for example debian:stable-slim)",
             "cannot start %s: this system lacks the dynamic loader of glibc", path);
    case ENOEXEC:
        fail(EXIT_MISSING, "get the artifact for the architecture of this machine (uname -m)",
             "cannot start %s: it is for another kind of processor", path);
    case E2BIG:
        fail(EXIT_USAGE, "pass fewer or shorter arguments", "cannot start %s: %s", path, strerror(errno));
    case EACCES:
    case EPERM:
        fail(EXIT_STORAGE, "set OPENCOTI_EXTRACT_DIR to a folder from which programs may be started",
             "cannot start %s: %s although it has its x bit: a security policy forbids it", path, strerror(errno));
    default:
        fail(EXIT_MISSING, "see what the system log says about it", "cannot start %s: %s", path, strerror(errno));
    }
}

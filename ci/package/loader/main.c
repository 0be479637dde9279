/* The loader of an elf-lane artifact: unpacks the engine that follows it in its file, and becomes it. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "archive.h"
#include "args.h"
#include "artifact.h"
#include "folder.h"
#include "index.h"
#include "install.h"
#include "launch.h"
#include "options.h"

int main(int argc, char **argv)
{
    guard_standard_streams();
    int fd = open_artifact();
    if (is_own_option(argc, argv))
        return run_own_option(fd, argc, argv);
    struct archive archive = archive_open(fd);
    struct index index = index_load(&archive);
    mode_t umask_of_caller = umask(077);
    struct folder folder = folder_open(&index);
    install(&archive, &index, &folder);
    char **arguments = merge_arguments(&archive, &index, &folder, argc, argv);
    umask(umask_of_caller);
    launch(&index, &folder, arguments);
}

/* Owns: the folder that the engine runs from: where it is, who may own it, and the lock on it.
 *
 * `$HOME/.llamafile/v/<version>-<12 hex digits of the hash of the index>/`, or the last part below
 * OPENCOTI_EXTRACT_DIR. From `.llamafile` on, each folder is ours, writable by us alone, and no link.
 */
#ifndef OPENCOTI_FOLDER_H
#define OPENCOTI_FOLDER_H

#include <stdbool.h>

#include "index.h"

#define LOCK_NAME ".lock"

struct folder {
    int fd;
    const char *path; /* absolute */
};

/* Open the folder of this artifact and make it if it is missing; ends the program when it is not safe. */
struct folder folder_open(const struct index *index);

/* Wait for the lock of the folder; -1 where the file system has no locks. Close it to let go. */
int folder_lock(const struct folder *folder);

/* Bytes that this user can still write there. */
unsigned long long folder_free_bytes(int fd);

#endif

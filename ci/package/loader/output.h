/* Owns: writing one member to a file so that a wrong or partial one never has the good name, and hashing files. */
#ifndef OPENCOTI_OUTPUT_H
#define OPENCOTI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "index.h"

#define TEMPORARY_PREFIX ".tmp-"
#define TEMPORARY_NAME_SIZE 32

/* Where members are written. */
struct target {
    int fd;           /* the folder */
    const char *path; /* its name, for messages */
    uint64_t missing_bytes; /* what is still to be written, for the message when the disk is full */
    bool may_replace; /* whether a file that is in the way is replaced */
};

/* Create a file of mode 0600 with a new name in the folder; -1 with errno. */
int create_temporary(int folder_fd, char name[TEMPORARY_NAME_SIZE]);

/* Write `file` into the folder: a new file, hashed, compared with the index, synced, then renamed. Returns the state
 * of the file under its name. Ends the program when the member is wrong or the disk refuses. */
struct stat write_member(const struct archive *archive, const struct index_file *file, const struct target *target);

/* Hash `size` bytes from `offset` of a file; false when it has fewer. */
bool hash_range(int fd, uint64_t offset, uint64_t size, uint8_t digest[SHA256_SIZE]);

#endif

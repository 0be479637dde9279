/* Owns: reading a zip at the end of a file: its directory, and the bytes of its stored members.
 *
 * Only the form that our packager writes is accepted: members stored, not encrypted, no data descriptors, no
 * comments, the directory and its end record as the last bytes of the file. The content is not trusted here:
 * whoever uses a member compares its hash.
 */
#ifndef OPENCOTI_ARCHIVE_H
#define OPENCOTI_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMBER_NAME_MAX 200
#define MEMBER_COUNT_MAX 4096

struct member {
    char name[MEMBER_NAME_MAX + 1];
    uint64_t size;
    uint32_t crc32;
    uint64_t header_offset;
    uint64_t limit; /* where the next member's header, or the directory, begins */
};

struct archive {
    int fd;
    struct member *members; /* sorted by name */
    size_t count;
};

/* Read the directory of the file `fd`; ends the program when it is damaged. */
struct archive archive_open(int fd);

/* The member of that name, or NULL. */
const struct member *archive_find(const struct archive *archive, const char *name);

/* Where the bytes of `member` begin; all of them lie inside the file and overlap no other member. */
uint64_t archive_data_offset(const struct archive *archive, const struct member *member);

/* Read a small member whole; ends the program when it is larger than `size_max`. A NUL follows the bytes. */
uint8_t *archive_read(const struct archive *archive, const struct member *member, uint64_t size_max);

/* Fill `buffer` from `offset` of the artifact; ends the program where the file is shorter or cannot be read. */
void archive_read_at(int fd, void *buffer, size_t size, uint64_t offset);

/* End the program: the artifact is damaged. */
_Noreturn void fail_damaged(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

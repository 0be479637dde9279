#define _GNU_SOURCE
#include "archive.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "message.h"

/* Sizes and signatures of the zip format (APPNOTE 4.3); the layout stands beside each reader below. */
#define END_SIZE 22
#define LOCATOR_SIZE 20
#define END64_SIZE 56
#define TAIL_SIZE (END64_SIZE + LOCATOR_SIZE + END_SIZE)
#define ENTRY_SIZE 46
#define HEADER_SIZE 30
#define DIRECTORY_SIZE_MAX (8U << 20)
#define FLAG_UTF8 0x0800U
#define SENTINEL16 0xffffU
#define SENTINEL32 0xffffffffU
#define EXTRA_ZIP64 1

struct directory {
    uint64_t offset, size, count;
};

/* What is left of a buffer that is read from front to back. */
struct cursor {
    const uint8_t *at;
    size_t left;
};

_Noreturn void fail_damaged(const char *format, ...)
{
    char why[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    fail(EXIT_DAMAGED, "get this file again from its publisher, and compare its SHA-256",
         "this artifact is damaged: %s", why);
}

void archive_read_at(int fd, void *buffer, size_t size, uint64_t offset)
{
    uint8_t *at = buffer;
    while (size != 0) {
        ssize_t got = pread(fd, at, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail(EXIT_STORAGE, "check the disk that holds this file", "cannot read the artifact: %s", strerror(errno));
        if (got == 0)
            fail_damaged("it ends before byte %llu", (unsigned long long)(offset + size));
        at += got;
        size -= (size_t)got;
        offset += (uint64_t)got;
    }
}

static const uint8_t *take(struct cursor *cursor, size_t size)
{
    if (cursor->left < size)
        fail_damaged("its zip directory is cut short");
    const uint8_t *at = cursor->at;
    cursor->at += size;
    cursor->left -= size;
    return at;
}

static uint64_t file_size(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 0)
        fail(EXIT_STORAGE, "run the artifact as a plain file", "cannot read the artifact: it is not a regular file");
    return (uint64_t)info.st_size;
}

/* A 32-bit field of the old record must say the same as the zip64 one, or that it does not fit. */
static bool agrees(uint64_t old_value, uint64_t sentinel, uint64_t value)
{
    return old_value == sentinel || old_value == value;
}

/* End record: 0 signature, 4 disk, 6 disk of directory, 8 entries here, 10 entries, 12 size, 16 offset, 20 comment. */
static struct directory read_end(const uint8_t *end)
{
    if (memcmp(end, "PK\5\6", 4) != 0)
        fail_damaged("no zip directory at its end: it is cut short, or something was appended");
    if (read_le16(end + 4) != 0 || read_le16(end + 6) != 0 || read_le16(end + 8) != read_le16(end + 10) ||
        read_le16(end + 20) != 0)
        fail_damaged("its zip end record is not in the expected form");
    return (struct directory){read_le32(end + 16), read_le32(end + 12), read_le16(end + 10)};
}

/* Zip64 end record: 0 signature, 4 size of the rest, 16 disk, 20 disk of directory, 24 entries here, 32 entries,
 * 40 size, 48 offset. Locator: 0 signature, 4 disk, 8 offset of the record, 16 number of disks. */
static struct directory read_end64(const uint8_t *tail, uint64_t tail_offset, struct directory old)
{
    const uint8_t *locator = tail + END64_SIZE;
    if (read_le32(locator + 4) != 0 || read_le32(locator + 16) > 1 || read_le64(locator + 8) != tail_offset ||
        memcmp(tail, "PK\6\6", 4) != 0 || read_le64(tail + 4) != END64_SIZE - 12 || read_le32(tail + 16) != 0 ||
        read_le32(tail + 20) != 0 || read_le64(tail + 24) != read_le64(tail + 32))
        fail_damaged("its zip64 end record is not in the expected form");
    struct directory found = {read_le64(tail + 48), read_le64(tail + 40), read_le64(tail + 32)};
    if (!agrees(old.offset, SENTINEL32, found.offset) || !agrees(old.size, SENTINEL32, found.size) ||
        !agrees(old.count, SENTINEL16, found.count))
        fail_damaged("its two zip end records contradict each other");
    return found;
}

static struct directory find_directory(int fd)
{
    uint8_t tail[TAIL_SIZE] = {0};
    uint64_t size = file_size(fd);
    if (size < TAIL_SIZE)
        fail_damaged("it has only %llu bytes", (unsigned long long)size);
    archive_read_at(fd, tail, TAIL_SIZE, size - TAIL_SIZE);
    uint64_t directory_end = size - END_SIZE;
    struct directory found = read_end(tail + TAIL_SIZE - END_SIZE);
    if (memcmp(tail + END64_SIZE, "PK\6\7", 4) == 0) {
        directory_end = size - TAIL_SIZE;
        found = read_end64(tail, directory_end, found);
    }
    if (found.offset > directory_end || directory_end - found.offset != found.size)
        fail_damaged("its zip directory is not where its end record says");
    if (found.size > DIRECTORY_SIZE_MAX || found.count == 0 || found.count > MEMBER_COUNT_MAX)
        fail_damaged("its zip directory has %llu entries in %llu bytes", (unsigned long long)found.count,
                     (unsigned long long)found.size);
    return found;
}

/* Replace the fields that did not fit by those of the zip64 extra field: id, length, then only what is missing. */
static void read_zip64_extra(struct cursor extra, struct member *member, uint64_t *stored_size)
{
    struct cursor found = {NULL, 0};
    while (extra.left != 0) {
        const uint8_t *head = take(&extra, 4);
        size_t length = read_le16(head + 2);
        const uint8_t *body = take(&extra, length);
        if (read_le16(head) == EXTRA_ZIP64 && found.at == NULL)
            found = (struct cursor){body, length};
    }
    if (member->size == SENTINEL32)
        member->size = read_le64(take(&found, 8));
    if (*stored_size == SENTINEL32)
        *stored_size = read_le64(take(&found, 8));
    if (member->header_offset == SENTINEL32)
        member->header_offset = read_le64(take(&found, 8));
}

static void copy_name(struct member *member, const uint8_t *name, size_t length)
{
    if (length == 0 || length > MEMBER_NAME_MAX || memchr(name, 0, length) != NULL)
        fail_damaged("a member has a name of %zu bytes, or with a NUL in it", length);
    memcpy(member->name, name, length);
}

/* Directory entry: 0 signature, 8 flags, 10 method, 16 crc, 20 stored size, 24 size, 28 name, 30 extra and 32 comment
 * length, 34 disk, 42 offset of the header. */
static void read_entry(struct cursor *cursor, struct member *member, uint64_t directory_offset)
{
    const uint8_t *entry = take(cursor, ENTRY_SIZE);
    if (memcmp(entry, "PK\1\2", 4) != 0)
        fail_damaged("its zip directory holds something that is no entry");
    size_t name_length = read_le16(entry + 28), extra_length = read_le16(entry + 30);
    copy_name(member, take(cursor, name_length), name_length);
    struct cursor extra = {take(cursor, extra_length), extra_length};
    if ((read_le16(entry + 8) & ~FLAG_UTF8) != 0 || read_le16(entry + 10) != 0)
        fail_damaged("member %s is compressed, encrypted or streamed; only stored members are allowed", member->name);
    if (read_le16(entry + 32) != 0 || read_le16(entry + 34) != 0)
        fail_damaged("member %s has a comment or lies on another disk", member->name);
    uint64_t stored_size = read_le32(entry + 20);
    member->crc32 = read_le32(entry + 16);
    member->size = read_le32(entry + 24);
    member->header_offset = read_le32(entry + 42);
    read_zip64_extra(extra, member, &stored_size);
    if (stored_size != member->size)
        fail_damaged("member %s has two different sizes", member->name);
    if (member->header_offset > directory_offset || member->size > directory_offset - member->header_offset)
        fail_damaged("member %s reaches beyond the end of its data", member->name);
}

static int compare_offsets(const void *left, const void *right)
{
    uint64_t a = ((const struct member *)left)->header_offset, b = ((const struct member *)right)->header_offset;
    return a < b ? -1 : a > b;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct member *)left)->name, ((const struct member *)right)->name);
}

/* Give each member the range up to the next one; its header is read, and checked against it, when it is used. */
static void set_limits(struct member *members, size_t count, uint64_t directory_offset)
{
    qsort(members, count, sizeof *members, compare_offsets);
    for (size_t i = 0; i < count; i++) {
        members[i].limit = i + 1 < count ? members[i + 1].header_offset : directory_offset;
        uint64_t room = members[i].limit - members[i].header_offset;
        uint64_t least = HEADER_SIZE + strlen(members[i].name);
        if (room < least || room - least < members[i].size)
            fail_damaged("member %s overlaps another one", members[i].name);
    }
}

struct archive archive_open(int fd)
{
    struct directory directory = find_directory(fd);
    size_t count = (size_t)directory.count;
    uint8_t *bytes = allocate((size_t)directory.size, 1);
    archive_read_at(fd, bytes, (size_t)directory.size, directory.offset);
    struct member *members = allocate(count, sizeof *members);
    struct cursor cursor = {bytes, (size_t)directory.size};
    for (size_t i = 0; i < count; i++)
        read_entry(&cursor, &members[i], directory.offset);
    if (cursor.left != 0)
        fail_damaged("its zip directory has more bytes than entries");
    free(bytes);
    set_limits(members, count, directory.offset);
    qsort(members, count, sizeof *members, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(members[i - 1].name, members[i].name) == 0)
            fail_damaged("member %s is in it twice", members[i].name);
    return (struct archive){fd, members, count};
}

const struct member *archive_find(const struct archive *archive, const char *name)
{
    struct member key = {.size = 0};
    size_t length = strlen(name);
    if (length > MEMBER_NAME_MAX)
        return NULL;
    memcpy(key.name, name, length);
    return bsearch(&key, archive->members, archive->count, sizeof key, compare_names);
}

/* Header: 0 signature, 6 flags, 8 method, 18 stored size, 22 size, 26 name and 28 extra length, then both, then data.
 * Sizes may be the sentinel; the directory has the true ones. */
uint64_t archive_data_offset(const struct archive *archive, const struct member *member)
{
    uint8_t header[HEADER_SIZE + MEMBER_NAME_MAX];
    size_t name_length = strlen(member->name);
    archive_read_at(archive->fd, header, HEADER_SIZE + name_length, member->header_offset);
    if (memcmp(header, "PK\3\4", 4) != 0 || (read_le16(header + 6) & ~FLAG_UTF8) != 0 || read_le16(header + 8) != 0 ||
        !agrees(read_le32(header + 18), SENTINEL32, member->size) ||
        !agrees(read_le32(header + 22), SENTINEL32, member->size) || read_le16(header + 26) != name_length ||
        memcmp(header + HEADER_SIZE, member->name, name_length) != 0)
        fail_damaged("the header of member %s contradicts the zip directory", member->name);
    uint64_t before_data = HEADER_SIZE + name_length + read_le16(header + 28);
    uint64_t room = member->limit - member->header_offset;
    if (room < before_data || room - before_data < member->size)
        fail_damaged("member %s overlaps another one", member->name);
    return member->header_offset + before_data;
}

uint8_t *archive_read(const struct archive *archive, const struct member *member, uint64_t size_max)
{
    if (member->size > size_max)
        fail_damaged("member %s has %llu bytes, more than allowed", member->name, (unsigned long long)member->size);
    uint64_t offset = archive_data_offset(archive, member);
    uint8_t *bytes = allocate((size_t)member->size + 1, 1);
    archive_read_at(archive->fd, bytes, (size_t)member->size, offset);
    return bytes;
}

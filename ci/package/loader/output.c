#define _GNU_SOURCE
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "folder.h"
#include "message.h"

/* Larger writes make the kernel look for larger pieces of free memory. Where those are rare, or a hypervisor has taken
 * them back, that costs more than all system calls: 2 GB took 4.9 s in pieces of 1 MiB and 2.1 s in these. */
#define BUFFER_SIZE (1U << 16)
#define ALIGNMENT 65536U              /* of members in the artifact; a multiple of every block size */
#define LARGE_SIZE (1U << 20)         /* from here on cloning and reserving space are worth their calls */
#define WRITEBACK_SIZE (16U << 20)    /* the disk starts with these while we hash the next */

/* A member on its way to its file. */
struct output {
    const struct archive *archive;
    const struct index_file *file;
    const struct target *target;
    int fd;
    char temporary[TEMPORARY_NAME_SIZE];
};

static uint8_t *shared_buffer(void)
{
    static uint8_t *buffer;
    if (buffer == NULL)
        buffer = allocate(BUFFER_SIZE, 1);
    return buffer;
}

int create_temporary(int folder_fd, char name[TEMPORARY_NAME_SIZE])
{
    for (unsigned attempt = 0; attempt < 16; attempt++) {
        uint64_t number = 0;
        if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
            number = (uint64_t)getpid() << 8 | attempt;
        snprintf(name, TEMPORARY_NAME_SIZE, TEMPORARY_PREFIX "%016llx", (unsigned long long)number);
        int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static _Noreturn void fail_output(const struct output *output, int error)
{
    const struct target *target = output->target;
    if (output->fd >= 0)
        unlinkat(target->fd, output->temporary, 0);
    if (error == ENOSPC || error == EDQUOT)
        fail(EXIT_STORAGE, storage_hint(error), "cannot write %s to %s: %s: %llu bytes needed, %llu free",
             output->file->name, target->path, strerror(error), (unsigned long long)target->missing_bytes,
             folder_free_bytes(target->fd));
    fail(EXIT_STORAGE, storage_hint(error), "cannot write %s to %s: %s", output->file->name, target->path,
         strerror(error));
}

static void write_all(const struct output *output, const uint8_t *bytes, size_t size)
{
    while (size != 0) {
        ssize_t done = write(output->fd, bytes, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            fail_output(output, done < 0 ? errno : EIO);
        bytes += done;
        size -= (size_t)done;
    }
}

/* Copy bytes [from, size) of the member, and hash them on the way: what is hashed is what is written. */
static void copy_bytes(const struct output *output, uint64_t data, uint64_t from, struct sha256 *hash)
{
    uint8_t *buffer = shared_buffer();
    uint64_t started = from;
    for (uint64_t at = from; at < output->file->size;) {
        uint64_t left = output->file->size - at;
        size_t part = left < BUFFER_SIZE ? (size_t)left : BUFFER_SIZE;
        archive_read_at(output->archive->fd, buffer, part, data + at);
        sha256_update(hash, buffer, part);
        write_all(output, buffer, part);
        at += part;
        if (at - started >= WRITEBACK_SIZE) {
            sync_file_range(output->fd, (off_t)started, (off_t)(at - started), SYNC_FILE_RANGE_WRITE);
            started = at;
        }
    }
}

/* Share the blocks of the member with the artifact, where the file system can. Returns the bytes that are in place;
 * they are hashed from the new file, since nothing else says what it holds. */
static uint64_t clone_bytes(const struct output *output, uint64_t data, struct sha256 *hash)
{
    uint64_t whole = output->file->size - output->file->size % ALIGNMENT;
    if (output->file->size < LARGE_SIZE || data % ALIGNMENT != 0)
        return 0;
    struct file_clone_range range = {
        .src_fd = output->archive->fd, .src_offset = data, .src_length = whole, .dest_offset = 0};
    if (ioctl(output->fd, FICLONERANGE, &range) != 0)
        return 0;
    uint8_t *buffer = shared_buffer();
    for (uint64_t at = 0; at < whole;) {
        size_t part = whole - at < BUFFER_SIZE ? (size_t)(whole - at) : BUFFER_SIZE;
        ssize_t got = pread(output->fd, buffer, part, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            fail_output(output, got < 0 ? errno : EIO);
        sha256_update(hash, buffer, (size_t)got);
        at += (uint64_t)got;
    }
    if (lseek(output->fd, (off_t)whole, SEEK_SET) < 0)
        fail_output(output, errno);
    return whole;
}

/* A full disk shows before the copy, not after half of it. File systems that cannot reserve are fine too. */
static void reserve_space(const struct output *output)
{
    if (output->file->size >= LARGE_SIZE && fallocate(output->fd, 0, 0, (off_t)output->file->size) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        fail_output(output, errno);
}

static void fill(const struct output *output)
{
    struct sha256 hash;
    uint8_t digest[SHA256_SIZE];
    uint64_t data = archive_data_offset(output->archive, output->file->member);
    sha256_start(&hash);
    uint64_t cloned = clone_bytes(output, data, &hash);
    if (cloned == 0)
        reserve_space(output);
    copy_bytes(output, data, cloned, &hash);
    sha256_finish(&hash, digest);
    if (memcmp(digest, output->file->sha256, SHA256_SIZE) != 0) {
        unlinkat(output->target->fd, output->temporary, 0);
        fail_damaged("the SHA-256 of member %s is not the one in its index", output->file->name);
    }
}

static int rename_into_place(const struct output *output)
{
    int folder = output->target->fd;
    if (output->target->may_replace)
        return renameat(folder, output->temporary, folder, output->file->name);
    long result = syscall(SYS_renameat2, folder, output->temporary, folder, output->file->name, RENAME_NOREPLACE);
    if (result != 0 && (errno == ENOSYS || errno == EINVAL))
        result = renameat(folder, output->temporary, folder, output->file->name);
    return (int)result;
}

/* Exchange the descriptor of the finished file for one that only reads: while one that writes is open, another start
 * that already sees the new name could not execute it (ETXTBSY). */
static void reopen_for_reading(struct output *output)
{
    struct stat written, opened;
    int fd = openat(output->target->fd, output->temporary, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(output->fd, &written) != 0 || fstat(fd, &opened) != 0)
        fail_output(output, errno);
    if (written.st_ino != opened.st_ino || close(output->fd) != 0)
        fail_output(output, EIO);
    output->fd = fd;
}

struct stat write_member(const struct archive *archive, const struct index_file *file, const struct target *target)
{
    struct stat info;
    struct output output = {.archive = archive, .file = file, .target = target, .fd = -1};
    output.fd = create_temporary(target->fd, output.temporary);
    if (output.fd < 0)
        fail_output(&output, errno);
    fill(&output);
    /* Synced before the rename: after a power cut the good name has the good bytes, or does not exist. */
    if (fchmod(output.fd, file->mode) != 0 || fsync(output.fd) != 0)
        fail_output(&output, errno);
    reopen_for_reading(&output);
    if (rename_into_place(&output) != 0 || fstat(output.fd, &info) != 0)
        fail_output(&output, errno);
    close(output.fd);
    return info;
}

bool hash_range(int fd, uint64_t offset, uint64_t size, uint8_t digest[SHA256_SIZE])
{
    struct sha256 hash;
    uint8_t *buffer = shared_buffer();
    sha256_start(&hash);
    while (size != 0) {
        ssize_t got = pread(fd, buffer, size < BUFFER_SIZE ? (size_t)size : BUFFER_SIZE, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        sha256_update(&hash, buffer, (size_t)got);
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    sha256_finish(&hash, digest);
    return true;
}

#define _GNU_SOURCE
#include "stamp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "message.h"
#include "output.h"

#define LINE_SIZE (MEMBER_NAME_MAX + 200)
#define STAMP_SIZE_MAX ((off_t)MEMBER_COUNT_MAX * LINE_SIZE)

static void format_line(char line[LINE_SIZE], const struct index_file *file, const struct stat *info)
{
    snprintf(line, LINE_SIZE, "%lld %o %lld.%09ld %lld.%09ld %llu %s", (long long)info->st_size,
             (unsigned)info->st_mode, (long long)info->st_mtim.tv_sec, info->st_mtim.tv_nsec,
             (long long)info->st_ctim.tv_sec, info->st_ctim.tv_nsec, (unsigned long long)info->st_ino, file->name);
}

static char *header_of(const struct index *index)
{
    return format_text("opencoti-verified 1 %s", index->sha256_hex);
}

/* The text of the note with a NUL behind it, or NULL when there is none that can be ours. */
static char *read_text(const struct folder *folder)
{
    struct stat info;
    char *text = NULL;
    int fd = openat(folder->fd, STAMP_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() && info.st_size <= STAMP_SIZE_MAX) {
        text = allocate((size_t)info.st_size + 1, 1);
        if (pread(fd, text, (size_t)info.st_size, 0) != info.st_size)
            text[0] = '\0';
    }
    close(fd);
    return text;
}

static size_t count_used(const struct index *index)
{
    size_t count = 0;
    for (size_t i = 0; i < index->count; i++)
        count += is_used(&index->files[i]);
    return count;
}

/* The state of a part is that of the artifact, which can belong to anyone and has a size of its own. */
static bool is_as_listed(const struct index_file *file, const struct stat *info)
{
    if (!S_ISREG(info->st_mode) || file->is_part)
        return S_ISREG(info->st_mode);
    return info->st_uid == geteuid() && (info->st_mode & 07777) == file->mode && (uint64_t)info->st_size == file->size;
}

/* Cut `text` at its line ends; true when it has the header and exactly `count` lines after it. */
static bool split_lines(char *text, const char *header, char **lines, size_t count)
{
    char *rest = text;
    char *line = strsep(&rest, "\n");
    if (strcmp(line, header) != 0)
        return false;
    for (size_t i = 0; i < count; i++)
        if ((lines[i] = strsep(&rest, "\n")) == NULL)
            return false;
    return rest != NULL && *rest == '\0';
}

struct stamp stamp_load(const struct folder *folder, const struct index *index)
{
    struct stamp stamp = {NULL};
    char *text = read_text(folder);
    if (text == NULL)
        return stamp;
    char *header = header_of(index);
    size_t count = count_used(index);
    char **lines = allocate(count, sizeof *lines);
    if (split_lines(text, header, lines, count))
        stamp.lines = lines;
    free(header);
    return stamp;
}

bool stamp_matches(const struct stamp *stamp, size_t position, const struct index_file *file, const struct stat *info)
{
    char line[LINE_SIZE];
    if (stamp->lines == NULL || !is_as_listed(file, info))
        return false;
    format_line(line, file, info);
    return strcmp(stamp->lines[position], line) == 0;
}

int stamp_save(const struct folder *folder, const struct index *index, const struct stat *infos)
{
    char name[TEMPORARY_NAME_SIZE], line[LINE_SIZE];
    int fd = create_temporary(folder->fd, name);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL)
        return errno;
    char *header = header_of(index);
    fprintf(file, "%s\n", header);
    free(header);
    for (size_t i = 0, position = 0; i < index->count; i++) {
        if (!is_used(&index->files[i]))
            continue;
        format_line(line, &index->files[i], &infos[position++]);
        fprintf(file, "%s\n", line);
    }
    /* Not synced: a torn note is only a note that does not match. */
    errno = 0;
    bool is_written = ferror(file) == 0;
    is_written = fclose(file) == 0 && is_written;
    if (is_written && renameat(folder->fd, name, folder->fd, STAMP_NAME) == 0)
        return 0;
    int error = errno != 0 ? errno : EIO;
    unlinkat(folder->fd, name, 0);
    return error;
}

#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "index.h"
#include "message.h"
#include "output.h"

#define OPTION_PREFIX "--opencoti-"

static const char help_text[] =
    "This file is a loader with an inference engine inside. It unpacks the engine once and starts it; every\n"
    "argument goes to the engine, except these, when they come first:\n"
    "\n"
    "  --opencoti-list         name, size and SHA-256 of each member\n"
    "  --opencoti-verify       compare each member of this file with its SHA-256; exit code 6 if one differs\n"
    "  --opencoti-extract DIR  write all members to DIR; nothing that is there and differs is overwritten\n"
    "  --opencoti-help         this text\n"
    "\n"
    "The engine is unpacked below $HOME/.llamafile/v, or below $OPENCOTI_EXTRACT_DIR if that is set.\n"
    "Exit codes of the loader: 2 wrong usage, 4 this system cannot run the engine, 6 damaged file, 8 disk or\n"
    "permission. Any other code is the engine's.\n";

bool is_own_option(int argc, char **argv)
{
    return argc > 1 && strncmp(argv[1], OPTION_PREFIX, strlen(OPTION_PREFIX)) == 0;
}

static int list_members(const struct index *index)
{
    char hex[2 * SHA256_SIZE + 1];
    for (size_t i = 0; i < index->count; i++) {
        sha256_to_hex(index->files[i].sha256, hex);
        printf("%s %llu %s\n", index->files[i].name, (unsigned long long)index->files[i].size, hex);
    }
    return 0;
}

static int verify_members(const struct archive *archive, const struct index *index)
{
    size_t bad = 0;
    uint8_t digest[SHA256_SIZE];
    for (size_t i = 0; i < index->count; i++) {
        const struct index_file *file = &index->files[i];
        uint64_t offset = archive_data_offset(archive, file->member);
        bool is_good = hash_range(archive->fd, offset, file->size, digest) &&
                       memcmp(digest, file->sha256, SHA256_SIZE) == 0;
        printf("%s %s\n", is_good ? "ok" : "bad", file->name);
        bad += !is_good;
    }
    if (bad == 0)
        return 0;
    fflush(stdout);
    fail_damaged("%zu of %zu members differ from its index", bad, index->count);
}

static int open_target(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        fail(EXIT_STORAGE, "name a folder in one that exists and that you can write to", "cannot make the folder %s: %s",
             path, strerror(errno));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        fail(EXIT_STORAGE, "name another folder", "cannot use the folder %s: %s", path, strerror(errno));
    return fd;
}

/* Whether the target has the file already; ends the program when it has another one of that name. */
static bool is_present(const struct target *target, const struct index_file *file)
{
    struct stat info;
    uint8_t digest[SHA256_SIZE];
    int fd = openat(target->fd, file->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return false;
    bool is_same = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                   (uint64_t)info.st_size == file->size && hash_range(fd, 0, file->size, digest) &&
                   memcmp(digest, file->sha256, SHA256_SIZE) == 0;
    if (!is_same)
        fail(EXIT_STORAGE, "name an empty folder, or move that file away",
             "refusing to overwrite %s/%s: it differs from this artifact", target->path, file->name);
    close(fd);
    return true;
}

/* Every file is looked at before the first one is written: a refusal leaves the folder as it was. */
static int extract_members(const struct archive *archive, const struct index *index, const char *path)
{
    struct target target = {.fd = open_target(path), .path = path, .missing_bytes = 0, .may_replace = false};
    bool *present = allocate(index->count, sizeof *present);
    for (size_t i = 0; i < index->count; i++) {
        present[i] = is_present(&target, &index->files[i]);
        target.missing_bytes += present[i] ? 0 : index->files[i].size;
    }
    for (size_t i = 0; i < index->count; i++) {
        if (!present[i]) {
            write_member(archive, &index->files[i], &target);
            target.missing_bytes -= index->files[i].size;
        }
        printf("%s %s/%s\n", present[i] ? "kept" : "wrote", path, index->files[i].name);
    }
    return 0;
}

static void expect_arguments(int argc, char **argv, int count)
{
    if (argc != 2 + count || (count == 1 && argv[2][0] == '\0'))
        fail(EXIT_USAGE, "see --opencoti-help", "%s takes %s", argv[1], count == 0 ? "no argument" : "one folder");
}

static int dispatch(int fd, int argc, char **argv)
{
    const char *word = argv[1] + strlen(OPTION_PREFIX);
    bool is_extract = strcmp(word, "extract") == 0;
    bool is_help = strcmp(word, "help") == 0, is_list = strcmp(word, "list") == 0;
    if (!is_extract && !is_help && !is_list && strcmp(word, "verify") != 0)
        fail(EXIT_USAGE, "see --opencoti-help", "unknown option %s: the loader knows list, verify, extract and help",
             argv[1]);
    expect_arguments(argc, argv, is_extract ? 1 : 0);
    if (is_help)
        return fputs(help_text, stdout) < 0;
    struct archive archive = archive_open(fd);
    struct index index = index_load(&archive);
    if (is_extract)
        return extract_members(&archive, &index, argv[2]);
    return is_list ? list_members(&index) : verify_members(&archive, &index);
}

int run_own_option(int fd, int argc, char **argv)
{
    int code = dispatch(fd, argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout) != 0)
        fail(EXIT_STORAGE, "check where the output goes", "cannot write the result: %s", strerror(errno));
    return code;
}

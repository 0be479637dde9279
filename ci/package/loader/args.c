#define _GNU_SOURCE
#include "args.h"

#include <stdbool.h>
#include <string.h>

#include "artifact.h"
#include "message.h"

#define ARGS_SIZE_MAX (1U << 20)
#define USER_ARGUMENTS "..."
#define ZIP_PREFIX "/zip/"

/* A vector under construction. */
struct list {
    char **items;
    size_t count;
};

/* The text of `.args`, checked against the index; NULL without that member. A NUL follows it. */
static char *read_text(const struct archive *archive, const struct index *index, size_t *size)
{
    uint8_t digest[SHA256_SIZE];
    const struct index_file *file = index_find(index, ARGS_NAME);
    if (file == NULL)
        return NULL;
    uint8_t *bytes = archive_read(archive, file->member, ARGS_SIZE_MAX);
    *size = (size_t)file->size;
    struct sha256 hash;
    sha256_start(&hash);
    sha256_update(&hash, bytes, *size);
    sha256_finish(&hash, digest);
    if (memcmp(digest, file->sha256, SHA256_SIZE) != 0)
        fail_damaged("the SHA-256 of member " ARGS_NAME " is not the one in its index");
    if (memchr(bytes, '\0', *size) != NULL || memchr(bytes, '\r', *size) != NULL)
        fail_damaged("member " ARGS_NAME " holds a NUL or a carriage return");
    return (char *)bytes;
}

static size_t count_lines(const char *text, size_t size)
{
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    return lines;
}

/* What the options need to be understood. */
struct context {
    const struct archive *archive;
    const struct index *index;
    const struct folder *folder;
};

/* `/zip/name` names a member as on the ape lane: the unpacked file, or the engine's way to name a member that it reads
 * where it is. A user's path of that form that is no member stays what it is. */
static char *resolve(char *argument, const struct context *context, bool is_users)
{
    size_t length = strlen(ZIP_PREFIX);
    if (strncmp(argument, ZIP_PREFIX, length) != 0)
        return argument;
    const struct index_file *file = index_find(context->index, argument + length);
    if (file != NULL && file->is_part)
        return format_text("%s!/%s", artifact_path(context->archive->fd), file->name);
    if (file != NULL && is_extracted(file))
        return format_text("%s/%s", context->folder->path, file->name);
    if (!is_users)
        fail_damaged("member " ARGS_NAME " names %s, which is not in it", argument);
    return argument;
}

static void add_users(struct list *list, const struct context *context, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        list->items[list->count++] = resolve(argv[i], context, true);
}

static bool has_placeholder(const char *text, size_t size)
{
    static const char line[] = "\n" USER_ARGUMENTS "\n";
    bool is_first = size >= 4 && memcmp(text, line + 1, 4) == 0;
    bool is_last = size == 3 ? memcmp(text, USER_ARGUMENTS, 3) == 0 : size > 3 && memcmp(text + size - 4, line, 4) == 0;
    return is_first || is_last || memmem(text, size, line, 5) != NULL;
}

static void add_file_arguments(struct list *list, char *text, const struct context *context, int argc, char **argv)
{
    bool is_inserted = false;
    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        if (strcmp(line, USER_ARGUMENTS) != 0) {
            if (*line != '\0')
                list->items[list->count++] = resolve(line, context, false);
            continue;
        }
        if (is_inserted)
            fail_damaged("member " ARGS_NAME " has two lines " USER_ARGUMENTS);
        is_inserted = true;
        add_users(list, context, argc, argv);
    }
}

char **merge_arguments(const struct archive *archive, const struct index *index, const struct folder *folder,
                       int argc, char **argv)
{
    size_t size = 0;
    size_t users = argc > 1 ? (size_t)argc - 1 : 0;
    char *text = read_text(archive, index, &size);
    size_t lines = text != NULL ? count_lines(text, size) : 0;
    const struct context context = {archive, index, folder};
    struct list list = {allocate(1 + users + lines + 1, sizeof *list.items), 0};
    list.items[list.count++] = argc > 0 ? argv[0] : format_text("%s", index->entry->name);
    if (text != NULL && (users == 0 || has_placeholder(text, size)))
        add_file_arguments(&list, text, &context, argc, argv);
    else
        add_users(&list, &context, argc, argv);
    return list.items;
}

#define _GNU_SOURCE
#include "index.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "message.h"

#define INDEX_SIZE_MAX (2U << 20)
#define SIZE_DIGITS_MAX 18 /* below 10^18: no sum of 4096 of them that we make can overflow */

/* The part of the index that was not read yet. */
struct text {
    const char *at;
    const char *end;
    size_t line;
};

static _Noreturn void fail_line(const struct text *text, const char *expected)
{
    fail_damaged("line %zu of its index is malformed: expected %s", text->line, expected);
}

static void expect(struct text *text, const char *literal)
{
    size_t length = strlen(literal);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, literal, length) != 0)
        fail_line(text, *literal == '\n' ? "the end of the line" : literal);
    text->at += length;
    if (literal[length - 1] == '\n')
        text->line++;
}

static bool is_name_character(char character)
{
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || (character != '\0' && strchr("._+-", character) != NULL);
}

/* Copy a word of the safe alphabet into `name`, which has room for `length_max` characters and a NUL. */
static void read_name(struct text *text, char *name, size_t length_max)
{
    size_t length = 0;
    while (text->at + length < text->end && is_name_character(text->at[length]))
        length++;
    bool is_dots = length != 0 && length <= 2 && memcmp(text->at, "..", length) == 0;
    if (length == 0 || length > length_max || is_dots)
        fail_line(text, "a name of letters, digits and . _ + -");
    memcpy(name, text->at, length);
    name[length] = '\0';
    text->at += length;
}

static uint8_t read_hex_digit(struct text *text)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = text->at < text->end && *text->at != '\0' ? strchr(digits, *text->at) : NULL;
    if (found == NULL)
        fail_line(text, "64 lowercase hex digits");
    text->at++;
    return (uint8_t)(found - digits);
}

static void read_sha256(struct text *text, uint8_t digest[SHA256_SIZE])
{
    for (size_t i = 0; i < SHA256_SIZE; i++) {
        uint8_t high = read_hex_digit(text);
        digest[i] = (uint8_t)(high << 4 | read_hex_digit(text));
    }
}

static uint64_t read_size(struct text *text)
{
    uint64_t value = 0;
    size_t digits = 0;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9' && digits <= SIZE_DIGITS_MAX) {
        value = value * 10 + (uint64_t)(*text->at++ - '0');
        digits++;
    }
    bool has_leading_zero = digits > 1 && text->at[-(ptrdiff_t)digits] == '0';
    if (digits == 0 || digits > SIZE_DIGITS_MAX || has_leading_zero)
        fail_line(text, "a decimal size");
    return value;
}

static mode_t read_mode(struct text *text)
{
    mode_t mode = 0;
    if (text->end - text->at >= 4 && memcmp(text->at, "0644", 4) == 0)
        mode = 0644;
    else if (text->end - text->at >= 4 && memcmp(text->at, "0755", 4) == 0)
        mode = 0755;
    else
        fail_line(text, "mode 0644 or 0755");
    text->at += 4;
    return mode;
}

static void read_file(struct text *text, struct index_file *file)
{
    const char part[] = "part ";
    file->is_part = text->end - text->at >= (ptrdiff_t)strlen(part) && memcmp(text->at, part, strlen(part)) == 0;
    expect(text, file->is_part ? part : "file ");
    read_sha256(text, file->sha256);
    expect(text, " ");
    file->size = read_size(text);
    expect(text, " ");
    file->mode = read_mode(text);
    expect(text, " ");
    read_name(text, file->name, MEMBER_NAME_MAX);
    expect(text, "\n");
    if (file->is_part && (file->mode != 0644 || !is_used(file)))
        fail_damaged("its index has %s as a part, which must have mode 0644 and no dot in front", file->name);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct index_file *)left)->name, ((const struct index_file *)right)->name);
}

static int compare_case(const void *left, const void *right)
{
    return strcasecmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorted and unique, also on a file system that takes A and a for the same. */
static void check_names(const struct index *index)
{
    const char **names = allocate(index->count, sizeof *names);
    for (size_t i = 0; i < index->count; i++) {
        names[i] = index->files[i].name;
        if (i != 0 && strcmp(names[i - 1], names[i]) >= 0)
            fail_damaged("its index is not sorted by name, or has %s twice", names[i]);
    }
    qsort(names, index->count, sizeof *names, compare_case);
    for (size_t i = 1; i < index->count; i++)
        if (strcasecmp(names[i - 1], names[i]) == 0)
            fail_damaged("%s and %s differ in case only", names[i - 1], names[i]);
    free(names);
}

/* Every file of the index is a member of that size, and every member is in the index. */
static void match_members(struct index *index, const struct archive *archive)
{
    for (size_t i = 0; i < index->count; i++) {
        struct index_file *file = &index->files[i];
        file->member = archive_find(archive, file->name);
        if (file->member == NULL)
            fail_damaged("%s is in its index and not in its zip directory", file->name);
        if (file->member->size != file->size)
            fail_damaged("%s has %llu bytes, its index says %llu", file->name,
                         (unsigned long long)file->member->size, (unsigned long long)file->size);
    }
    for (size_t i = 0; i < archive->count; i++)
        if (strcmp(archive->members[i].name, INDEX_NAME) != 0 && index_find(index, archive->members[i].name) == NULL)
            fail_damaged("member %s is not in its index", archive->members[i].name);
}

/* CRC-32 of zip, bit by bit: it covers the index alone, which nothing else inside the file does. */
static uint32_t crc32_of(const uint8_t *bytes, size_t size)
{
    uint32_t crc = 0xffffffffU;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320U : 0);
    }
    return ~crc;
}

static void hash_index(struct index *index, const uint8_t *bytes, size_t size)
{
    struct sha256 hash;
    uint8_t digest[SHA256_SIZE];
    sha256_start(&hash);
    sha256_update(&hash, bytes, size);
    sha256_finish(&hash, digest);
    sha256_to_hex(digest, index->sha256_hex);
}

static void read_lines(struct index *index, struct text *text, char *entry)
{
    expect(text, "opencoti-index 1\n");
    expect(text, "version ");
    read_name(text, index->version, VERSION_MAX);
    expect(text, "\n");
    expect(text, "entry ");
    read_name(text, entry, MEMBER_NAME_MAX);
    expect(text, "\n");
    for (; text->at < text->end; index->count++) {
        if (index->count == MEMBER_COUNT_MAX)
            fail_damaged("its index has more than %d files", MEMBER_COUNT_MAX);
        read_file(text, &index->files[index->count]);
    }
}

struct index index_load(const struct archive *archive)
{
    struct index index = {.count = 0};
    char entry[MEMBER_NAME_MAX + 1];
    const struct member *member = archive_find(archive, INDEX_NAME);
    if (member == NULL)
        fail_damaged("it has no member %s", INDEX_NAME);
    uint8_t *bytes = archive_read(archive, member, INDEX_SIZE_MAX);
    size_t size = (size_t)member->size;
    if (crc32_of(bytes, size) != member->crc32)
        fail_damaged("its index has another CRC-32 than the zip directory says");
    hash_index(&index, bytes, size);
    index.files = allocate(MEMBER_COUNT_MAX, sizeof *index.files);
    struct text text = {(const char *)bytes, (const char *)bytes + size, 1};
    read_lines(&index, &text, entry);
    free(bytes);
    check_names(&index);
    match_members(&index, archive);
    index.entry = index_find(&index, entry);
    if (index.entry == NULL || index.entry->mode != 0755 || !is_extracted(index.entry))
        fail_damaged("the program %s that it should start is not in its index with mode 0755", entry);
    if (index.version[0] == '.')
        fail_damaged("its version %s begins with a dot", index.version);
    return index;
}

const struct index_file *index_find(const struct index *index, const char *name)
{
    struct index_file key = {.size = 0};
    size_t length = strlen(name);
    if (length > MEMBER_NAME_MAX)
        return NULL;
    memcpy(key.name, name, length);
    return bsearch(&key, index->files, index->count, sizeof key, compare_names);
}

bool is_used(const struct index_file *file)
{
    return file->name[0] != '.';
}

bool is_extracted(const struct index_file *file)
{
    return is_used(file) && !file->is_part;
}

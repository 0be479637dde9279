/* Owns: the member `.opencoti/index`: what the artifact is, and name, size, mode and SHA-256 of each other member.
 *
 *     opencoti-index 1
 *     version opencoti-0.5.0-g0c1e570-c1
 *     entry llama-server
 *     file <sha256> <size> <0644|0755> <name>
 *     part <sha256> <size> 0644 <name>          a model that stays where it is
 */
#ifndef OPENCOTI_INDEX_H
#define OPENCOTI_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "archive.h"
#include "sha256.h"

#define INDEX_NAME ".opencoti/index"
#define ARGS_NAME ".args"
#define VERSION_MAX 160

struct index_file {
    char name[MEMBER_NAME_MAX + 1];
    uint8_t sha256[SHA256_SIZE];
    uint64_t size;
    mode_t mode;
    bool is_part; /* the engine reads it in the artifact itself */
    const struct member *member;
};

struct index {
    char version[VERSION_MAX + 1];
    char sha256_hex[2 * SHA256_SIZE + 1]; /* of the bytes of the index itself */
    const struct index_file *entry;       /* the program to start */
    struct index_file *files;             /* sorted by name */
    size_t count;
};

/* Read the index and check that it and the zip directory list the same members; ends the program otherwise. */
struct index index_load(const struct archive *archive);

/* The file of that name, or NULL. */
const struct index_file *index_find(const struct index *index, const char *name);

/* Whether the engine uses a file, so that its bytes are compared with the index: all but names that begin with a dot. */
bool is_used(const struct index_file *file);

/* Whether a file is written to the engine's folder: those that are used and are no parts. */
bool is_extracted(const struct index_file *file);

#endif

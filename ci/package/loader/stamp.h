/* Owns: `.verified`, the note in the engine's folder that says which files were compared with the index by hash.
 *
 *     opencoti-verified 1 <sha256 of the index>
 *     <size> <mode> <mtime s>.<ns> <ctime s>.<ns> <inode> <name>
 *
 * A file whose line is still true was not touched since: the next start needs no read of it. The line of a part has the
 * numbers of the artifact that holds it.
 */
#ifndef OPENCOTI_STAMP_H
#define OPENCOTI_STAMP_H

#include <stdbool.h>
#include <sys/stat.h>

#include "folder.h"
#include "index.h"

#define STAMP_NAME ".verified"

struct stamp {
    char **lines; /* one per used file, in the order of the index; NULL without a usable note */
};

struct stamp stamp_load(const struct folder *folder, const struct index *index);

/* Whether `info`, of the file at `position` among the used ones, is what was noted. */
bool stamp_matches(const struct stamp *stamp, size_t position, const struct index_file *file, const struct stat *info);

/* Write the note; `infos` has one element per used file, taken from the very files that were verified.
 * Returns 0, or the error that prevented it: the note only saves time, so the caller goes on. */
int stamp_save(const struct folder *folder, const struct index *index, const struct stat *infos);

#endif

/* Owns: the member `.args` and how its arguments and the user's become one list.
 *
 * One argument per line, taken as it is; empty lines are skipped. A line `...` stands for the user's arguments;
 * without one the file's arguments are used only when the user gives none. `/zip/<name>` becomes the extracted file.
 */
#ifndef OPENCOTI_ARGS_H
#define OPENCOTI_ARGS_H

#include "archive.h"
#include "folder.h"
#include "index.h"

/* The argument vector of the engine, NULL at its end; ends the program when `.args` is not what the index says. */
char **merge_arguments(const struct archive *archive, const struct index *index, const struct folder *folder,
                       int argc, char **argv);

#endif

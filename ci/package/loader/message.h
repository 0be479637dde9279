/* Owns: everything the loader says on standard error, its exit codes, and memory that is there or ends the program. */
#ifndef OPENCOTI_MESSAGE_H
#define OPENCOTI_MESSAGE_H

#include <stddef.h>

/* The part of the project's exit codes that the loader can give. */
enum exit_code {
    EXIT_USAGE = 2,   /* wrong usage */
    EXIT_MISSING = 4, /* this system cannot run the engine */
    EXIT_DAMAGED = 6, /* the artifact or a member is not what it should be */
    EXIT_STORAGE = 8, /* disk full, permission, read-only */
};

/* Print `opencoti: notice: ...`: something the user should know although the start goes on. */
void notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Print `opencoti: error: ...` and, on a second line, what to do next; exit with `code`. */
_Noreturn void fail(enum exit_code code, const char *next, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The next step for a file operation that gave `error`. */
const char *storage_hint(int error);

/* Zeroed memory for `count` things of `size` bytes; never returns NULL. */
void *allocate(size_t count, size_t size);

/* Formatted text in memory of its own. */
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

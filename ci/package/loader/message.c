#define _GNU_SOURCE
#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE_SIZE 12288 /* two paths of 4096 bytes and the words around them */

/* Names and paths come from outside: a control character in one must not reach the terminal. */
static void blank_controls(char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == 0x7f)
            text[i] = '?';
    }
}

/* Append to `buffer` at `used`, cut at its end; return the new length. */
static size_t append(char *buffer, size_t used, const char *format, va_list arguments)
{
    int written = vsnprintf(buffer + used, MESSAGE_SIZE - used, format, arguments);
    size_t length = written < 0 ? 0 : (size_t)written;
    size_t room = MESSAGE_SIZE - used - 1;
    length = length < room ? length : room;
    blank_controls(buffer + used, length);
    return used + length;
}

/* One write for the whole text, so that the lines of several processes do not mix. */
static void put(char *buffer, size_t used)
{
    buffer[used < MESSAGE_SIZE - 1 ? used : MESSAGE_SIZE - 2] = '\n';
    ssize_t ignored = write(STDERR_FILENO, buffer, used + 1 < MESSAGE_SIZE ? used + 1 : MESSAGE_SIZE - 1);
    (void)ignored;
}

void notice(const char *format, ...)
{
    static char buffer[MESSAGE_SIZE] = "opencoti: notice: ";
    va_list arguments;
    va_start(arguments, format);
    size_t used = append(buffer, strlen("opencoti: notice: "), format, arguments);
    va_end(arguments);
    put(buffer, used);
}

_Noreturn void fail(enum exit_code code, const char *next, const char *format, ...)
{
    static char buffer[MESSAGE_SIZE] = "opencoti: error: ";
    va_list arguments;
    va_start(arguments, format);
    size_t used = append(buffer, strlen("opencoti: error: "), format, arguments);
    va_end(arguments);
    if (next != NULL && used + strlen(next) + 16 < MESSAGE_SIZE)
        used += (size_t)snprintf(buffer + used, MESSAGE_SIZE - used, "\n  next: %s", next);
    put(buffer, used);
    exit((int)code);
}

const char *storage_hint(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "free some space, or set OPENCOTI_EXTRACT_DIR to a folder on another disk";
    case EROFS:
        return "the file system is read-only: set OPENCOTI_EXTRACT_DIR to a folder that you can write to";
    case EACCES:
    case EPERM:
        return "check owner and mode of the folder, or set OPENCOTI_EXTRACT_DIR to one that you can write to";
    default:
        return "set OPENCOTI_EXTRACT_DIR to another folder";
    }
}

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count != 0 ? count : 1, size != 0 ? size : 1);
    if (memory == NULL)
        fail(EXIT_STORAGE, "close other programs", "cannot start: out of memory");
    return memory;
}

char *format_text(const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        fail(EXIT_STORAGE, "close other programs", "cannot start: out of memory");
    return text;
}

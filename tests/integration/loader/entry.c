/* Stands for the engine: tells how it was started, then ends as the environment says. Wire form: one `key value` a
 * line, so that a test reads it without a parser. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static void show_file(const char *key, const char *path)
{
    char line[256];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        printf("%s %s", key, line);
    if (file != NULL)
        fclose(file);
}

static void show_state(void)
{
    char path[4096] = "";
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    printf("exe %.*s\n", (int)(length > 0 ? length : 0), path);
    printf("cwd %s\n", getcwd(path, sizeof path) != NULL ? path : "?");
    printf("pid %d\n", (int)getpid());
    mode_t mask = umask(0);
    printf("umask %03o\n", (unsigned)mask);
    for (int fd = 0; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("fd %d\n", fd);
    struct sigaction action;
    for (int number = 1; number < 32; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            printf("ignored %d\n", number);
    show_file("io", "/proc/self/io");
}

int main(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        printf("arg %s\n", argv[i]);
    for (char **variable = environ; *variable != NULL; variable++)
        printf("env %s\n", *variable);
    show_state();
    if (getenv("ENTRY_CAT") != NULL)
        for (int byte; (byte = getchar()) != EOF;)
            putchar(byte);
    fflush(stdout);
    if (getenv("ENTRY_SIGNAL") != NULL)
        raise(atoi(getenv("ENTRY_SIGNAL")));
    return getenv("ENTRY_EXIT") != NULL ? atoi(getenv("ENTRY_EXIT")) : 0;
}

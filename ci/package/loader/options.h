/* Owns: the loader's own options, which are looked for in the first argument only. */
#ifndef OPENCOTI_OPTIONS_H
#define OPENCOTI_OPTIONS_H

#include <stdbool.h>

/* Whether the first argument is one of ours, or looks like one. */
bool is_own_option(int argc, char **argv);

/* Do what it says on the artifact `fd`; returns the exit code. */
int run_own_option(int fd, int argc, char **argv);

#endif

/* Hashes standard input with the implementation named by the first argument, in updates of the size of the second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sha256.h"

int main(int argc, char **argv)
{
    uint8_t digest[SHA256_SIZE];
    char hex[2 * SHA256_SIZE + 1];
    if (argc != 3)
        return 2;
    sha256_mixer *mix = strcmp(argv[1], "hardware") == 0 ? sha256_hardware_mixer() : sha256_mix_portable;
    if (mix == NULL)
        return 4;
    size_t step = (size_t)atol(argv[2]);
    uint8_t *buffer = malloc(step);
    struct sha256 hash;
    sha256_start_with(&hash, mix);
    for (size_t got; (got = fread(buffer, 1, step, stdin)) != 0;)
        sha256_update(&hash, buffer, got);
    sha256_finish(&hash, digest);
    sha256_to_hex(digest, hex);
    puts(hex);
    return 0;
}

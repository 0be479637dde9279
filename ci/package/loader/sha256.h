/* Owns: SHA-256 (FIPS 180-4) of a stream, with the processor's instructions where it has them. */
#ifndef OPENCOTI_SHA256_H
#define OPENCOTI_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE 32
#define SHA256_BLOCK_SIZE 64

/* Mix `count` blocks of 64 bytes into the eight words of `state`. */
typedef void sha256_mixer(uint32_t state[8], const uint8_t *blocks, size_t count);

struct sha256 {
    uint32_t state[8];
    uint64_t length_bytes;
    uint8_t pending[SHA256_BLOCK_SIZE];
    sha256_mixer *mix;
};

/* The round constants, shared by every implementation. */
extern const uint32_t sha256_constants[64];

sha256_mixer sha256_mix_portable;

/* The fastest implementation this processor can run. */
sha256_mixer *sha256_best_mixer(void);

/* The implementation with the processor's own SHA instructions; NULL where there are none. */
sha256_mixer *sha256_hardware_mixer(void);

void sha256_start_with(struct sha256 *hash, sha256_mixer *mix);
void sha256_start(struct sha256 *hash);
void sha256_update(struct sha256 *hash, const uint8_t *data, size_t size);
void sha256_finish(struct sha256 *hash, uint8_t digest[SHA256_SIZE]);

/* Write a digest as 64 lowercase hex digits and a NUL. */
void sha256_to_hex(const uint8_t digest[SHA256_SIZE], char hex[2 * SHA256_SIZE + 1]);

#endif

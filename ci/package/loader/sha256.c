#include "sha256.h"

#include <string.h>

#include "bytes.h"

const uint32_t sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static const uint32_t initial_state[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static inline uint32_t rotate_right(uint32_t word, unsigned count)
{
    return word >> count | word << (32 - count);
}

static void expand_block(uint32_t words[64], const uint8_t *block)
{
    for (size_t i = 0; i < 16; i++)
        words[i] = read_be32(block + 4 * i);
    for (size_t i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];
        uint32_t s0 = rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3;
        uint32_t s1 = rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10;
        words[i] = words[i - 16] + s0 + words[i - 7] + s1;
    }
}

static void mix_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t words[64], v[8];
    expand_block(words, block);
    memcpy(v, state, sizeof v);
    for (size_t i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + sha256_constants[i] + words[i];
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (size_t i = 0; i < 8; i++)
        state[i] += v[i];
}

void sha256_mix_portable(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    for (; count != 0; count--, blocks += SHA256_BLOCK_SIZE)
        mix_block(state, blocks);
}

sha256_mixer *sha256_best_mixer(void)
{
    sha256_mixer *hardware = sha256_hardware_mixer();
    return hardware != NULL ? hardware : sha256_mix_portable;
}

void sha256_start_with(struct sha256 *hash, sha256_mixer *mix)
{
    memcpy(hash->state, initial_state, sizeof initial_state);
    hash->length_bytes = 0;
    hash->mix = mix;
}

void sha256_start(struct sha256 *hash)
{
    sha256_start_with(hash, sha256_best_mixer());
}

void sha256_update(struct sha256 *hash, const uint8_t *data, size_t size)
{
    size_t held = hash->length_bytes % SHA256_BLOCK_SIZE;
    hash->length_bytes += size;
    if (held != 0) {
        size_t room = SHA256_BLOCK_SIZE - held;
        size_t part = size < room ? size : room;
        memcpy(hash->pending + held, data, part);
        data += part;
        size -= part;
        if (part < room)
            return;
        hash->mix(hash->state, hash->pending, 1);
    }
    size_t blocks = size / SHA256_BLOCK_SIZE;
    if (blocks != 0)
        hash->mix(hash->state, data, blocks);
    size_t rest = size % SHA256_BLOCK_SIZE;
    if (rest != 0)
        memcpy(hash->pending, data + blocks * SHA256_BLOCK_SIZE, rest);
}

void sha256_finish(struct sha256 *hash, uint8_t digest[SHA256_SIZE])
{
    uint64_t length_bits = hash->length_bytes * 8;
    uint8_t padding[SHA256_BLOCK_SIZE + 8] = {0x80};
    size_t held = hash->length_bytes % SHA256_BLOCK_SIZE;
    size_t zeros_to = held < 56 ? 56 - held : 120 - held;
    write_be32(padding + zeros_to, (uint32_t)(length_bits >> 32));
    write_be32(padding + zeros_to + 4, (uint32_t)length_bits);
    sha256_update(hash, padding, zeros_to + 8);
    for (size_t i = 0; i < 8; i++)
        write_be32(digest + 4 * i, hash->state[i]);
}

void sha256_to_hex(const uint8_t digest[SHA256_SIZE], char hex[2 * SHA256_SIZE + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < SHA256_SIZE; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * SHA256_SIZE] = '\0';
}

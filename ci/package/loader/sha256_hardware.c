/* Owns: SHA-256 with the SHA instructions of x86-64 and of ARMv8; the processor is asked at run time. */
#define _GNU_SOURCE
#include "sha256.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define WITH_SHA __attribute__((target("sha,sse4.1,ssse3")))

/* Both halves of the state while in registers; the instructions want it as ABEF and CDGH. */
struct halves {
    __m128i abef, cdgh;
};

WITH_SHA static inline void four_rounds(struct halves *state, __m128i words, const uint32_t *constants)
{
    __m128i sum = _mm_add_epi32(words, _mm_loadu_si128((const __m128i *)(const void *)constants));
    state->cdgh = _mm_sha256rnds2_epu32(state->cdgh, state->abef, sum);
    state->abef = _mm_sha256rnds2_epu32(state->abef, state->cdgh, _mm_shuffle_epi32(sum, 0x0e));
}

/* The four message words that follow the sixteen words a, b, c, d. */
WITH_SHA static inline __m128i next_words(__m128i a, __m128i b, __m128i c, __m128i d)
{
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4));
    return _mm_sha256msg2_epu32(sum, d);
}

WITH_SHA static inline __m128i load_words(const uint8_t *at)
{
    const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)at), big_endian);
}

WITH_SHA static inline void mix_block(struct halves *state, const uint8_t *block)
{
    struct halves before = *state;
    __m128i a = load_words(block), b = load_words(block + 16);
    __m128i c = load_words(block + 32), d = load_words(block + 48);
    for (size_t round = 0; round < 64; round += 16) {
        four_rounds(state, a, sha256_constants + round);
        four_rounds(state, b, sha256_constants + round + 4);
        four_rounds(state, c, sha256_constants + round + 8);
        four_rounds(state, d, sha256_constants + round + 12);
        if (round == 48)
            break;
        a = next_words(a, b, c, d);
        b = next_words(b, c, d, a);
        c = next_words(c, d, a, b);
        d = next_words(d, a, b, c);
    }
    state->abef = _mm_add_epi32(state->abef, before.abef);
    state->cdgh = _mm_add_epi32(state->cdgh, before.cdgh);
}

WITH_SHA static void mix_with_sha_ni(uint32_t words[8], const uint8_t *blocks, size_t count)
{
    __m128i *memory = (__m128i *)(void *)words;
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(memory), 0xb1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(memory + 1), 0x1b);
    struct halves state = {_mm_alignr_epi8(badc, hgfe, 8), _mm_blend_epi16(hgfe, badc, 0xf0)};
    for (; count != 0; count--, blocks += SHA256_BLOCK_SIZE)
        mix_block(&state, blocks);
    __m128i abef = _mm_shuffle_epi32(state.abef, 0x1b), cdgh = _mm_shuffle_epi32(state.cdgh, 0xb1);
    _mm_storeu_si128(memory, _mm_blend_epi16(abef, cdgh, 0xf0));
    _mm_storeu_si128(memory + 1, _mm_alignr_epi8(cdgh, abef, 8));
}

sha256_mixer *sha256_hardware_mixer(void)
{
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0 || (c & bit_SSSE3) == 0)
        return NULL;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & bit_SHA) == 0)
        return NULL;
    return mix_with_sha_ni;
}

#elif defined(__aarch64__)

#include <arm_neon.h>
#include <sys/auxv.h>

#define HWCAP_WITH_SHA2 (1UL << 6) /* asm/hwcap.h */
#define WITH_SHA __attribute__((target("sha2")))

struct halves {
    uint32x4_t abcd, efgh;
};

WITH_SHA static inline void four_rounds(struct halves *state, uint32x4_t words, const uint32_t *constants)
{
    uint32x4_t sum = vaddq_u32(words, vld1q_u32(constants));
    uint32x4_t abcd = state->abcd;
    state->abcd = vsha256hq_u32(abcd, state->efgh, sum);
    state->efgh = vsha256h2q_u32(state->efgh, abcd, sum);
}

/* The four message words that follow the sixteen words a, b, c, d. */
WITH_SHA static inline uint32x4_t next_words(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d)
{
    return vsha256su1q_u32(vsha256su0q_u32(a, b), c, d);
}

static inline uint32x4_t load_words(const uint8_t *at)
{
    return vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(at)));
}

WITH_SHA static inline void mix_block(struct halves *state, const uint8_t *block)
{
    struct halves before = *state;
    uint32x4_t a = load_words(block), b = load_words(block + 16);
    uint32x4_t c = load_words(block + 32), d = load_words(block + 48);
    for (size_t round = 0; round < 64; round += 16) {
        four_rounds(state, a, sha256_constants + round);
        four_rounds(state, b, sha256_constants + round + 4);
        four_rounds(state, c, sha256_constants + round + 8);
        four_rounds(state, d, sha256_constants + round + 12);
        if (round == 48)
            break;
        a = next_words(a, b, c, d);
        b = next_words(b, c, d, a);
        c = next_words(c, d, a, b);
        d = next_words(d, a, b, c);
    }
    state->abcd = vaddq_u32(state->abcd, before.abcd);
    state->efgh = vaddq_u32(state->efgh, before.efgh);
}

WITH_SHA static void mix_with_armv8(uint32_t words[8], const uint8_t *blocks, size_t count)
{
    struct halves state = {vld1q_u32(words), vld1q_u32(words + 4)};
    for (; count != 0; count--, blocks += SHA256_BLOCK_SIZE)
        mix_block(&state, blocks);
    vst1q_u32(words, state.abcd);
    vst1q_u32(words + 4, state.efgh);
}

sha256_mixer *sha256_hardware_mixer(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_WITH_SHA2) != 0 ? mix_with_armv8 : NULL;
}

#else

sha256_mixer *sha256_hardware_mixer(void)
{
    return NULL;
}

#endif

/* Owns: reading little- and big-endian numbers from bytes whose bounds the caller has checked. */
#ifndef OPENCOTI_BYTES_H
#define OPENCOTI_BYTES_H

#include <stdint.h>

static inline uint16_t read_le16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t read_le32(const uint8_t *at)
{
    return (uint32_t)read_le16(at) | (uint32_t)read_le16(at + 2) << 16;
}

static inline uint64_t read_le64(const uint8_t *at)
{
    return (uint64_t)read_le32(at) | (uint64_t)read_le32(at + 4) << 32;
}

static inline uint32_t read_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
}

static inline void write_be32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

#endif

/* half.h: conversion of one f16 or bf16 to f32 and back. Rounded once, to nearest, ties to even; overflow gives
 * infinity, subnormals are preserved, NaN keeps its sign and leading bits and becomes quiet.
 *
 * Static inline on purpose: translation units compiled for different instruction sets include it, and a shared
 * symbol would be linked from any of them. */
#ifndef TARN__HALF_H
#define TARN__HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tarn__float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float tarn__float_from(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A bf16 is the upper half of an f32. */
static inline float tarn__bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x = tarn__float_from(u);
    return x != x ? tarn__float_from(u | 0x00400000u) : x;
}

/* Adds half of the last kept bit, less one if that bit is even: this carries into it exactly when rounding goes up.
 * The carry may run on into the exponent and to infinity, which is the correct result. */
static inline uint16_t tarn__f32_to_bf16(float x)
{
    uint32_t u = tarn__float_bits(x);
    uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (uint16_t)((x != x ? u | 0x00400000u : rounded) >> 16);
}

/* The instructions of this architecture round as described and keep NaNs' bits. */
#if defined(__aarch64__)

static inline float tarn__f16_to_f32(uint16_t h)
{
    __fp16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}

static inline uint16_t tarn__f32_to_f16(float x)
{
    __fp16 y = (__fp16)x;
    uint16_t h;
    memcpy(&h, &y, sizeof h);
    return h;
}

#else

/* Rebiases the exponent to f32's. A subnormal is read as 2^-14 · (1 + m), then 2^-14 is subtracted, which is exact. */
static inline float tarn__f16_to_f32(uint16_t h)
{
    uint32_t sign = ((uint32_t)h & 0x8000u) << 16;
    int32_t a = (int32_t)h & 0x7fff;
    uint32_t moved = (uint32_t)a << 13;
    uint32_t normal = moved + 0x38000000u;
    uint32_t small = tarn__float_bits(tarn__float_from(moved + 0x38800000u) - 0x1p-14f);
    uint32_t special = moved | (a > 0x7c00 ? 0x7fc00000u : 0x7f800000u);
    uint32_t u = a < 0x0400 ? small : normal;
    u = a >= 0x7c00 ? special : u;
    return tarn__float_from(u | sign);
}

/* Normal results are rounded like bf16. For subnormal results, adding 1/2 moves the last place of f32 to where f16
 * has its last, so the addition itself rounds. */
static inline uint16_t tarn__f32_to_f16(float x)
{
    uint32_t u = tarn__float_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    int32_t a = (int32_t)(u & 0x7fffffffu);
    uint32_t normal = ((uint32_t)a - 0x38000000u + 0xfffu + (((uint32_t)a >> 13) & 1u)) >> 13;
    uint32_t small = tarn__float_bits(tarn__float_from((uint32_t)a) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | (((uint32_t)a >> 13) & 0x3ffu);
    uint32_t h = a < 0x38800000 ? small : normal;
    h = a >= 0x477ff000 ? 0x7c00u : h;
    h = a > 0x7f800000 ? nan : h;
    return (uint16_t)(h | sign);
}

#endif

#endif

/* iquants.c: formats of GGUF files that are dequantized on load, bitwise identical to the gguf package: IQ1, IQ2 and
 * IQ3, whose groups of 8 or 4 elements are rows of a grid, the ternary TQ1_0 and TQ2_0, and the 4-bit floats MXFP4 and
 * NVFP4.
 *
 * Blocks lie at any address and are read by bytes. No product may be contracted into an FMA (see quant.c). */
#include <math.h>

#include "base/half.h"
#include "base/quant/quant.h"

#include "base/quant/iquant_grids.inc"

/* The values of the elements of a grid. */
static const float iq2_values[] = {8, 25, 43}, iq1_values[] = {-1, 0, 1},
                   iq3_xxs_values[] = {4, 12, 20, 28, 36, 44, 52, 62}, iq3_s_values[] = {1, 3, 5, 7, 9, 11, 13, 15},
                   fp4_values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* twice E2M1's */

static uint32_t u16_at(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8;
}

static uint32_t u32_at(const uint8_t *from)
{
    return u16_at(from) | u16_at(from + 2) << 16;
}

static float f16_at(const uint8_t *from)
{
    return tarn__f16_to_f32((uint16_t)u16_at(from));
}

/* Signs of 8 elements in 7 bits: the eighth makes their number even. */
static uint32_t signs_of(uint32_t seven)
{
    seven &= 127;
    uint32_t parity = seven ^ seven >> 4;
    return seven | (0x6996u >> (parity & 15) & 1) << 7;
}

static float sign_at(uint32_t signs, int i)
{
    return signs >> i & 1 ? -1.0f : 1.0f;
}

/* A row of 8 with 2 bits per element, times scale and signs. */
static void put_8(uint32_t row, float scale, uint32_t signs, float *to)
{
    for (int i = 0; i < 8; i++)
        to[i] = scale * iq2_values[row >> 2 * i & 3] * sign_at(signs, i);
}

/* Two rows of 4 with 3 bits per element. */
static void put_4_4(uint32_t first, uint32_t second, const float *values, float scale, uint32_t signs, float *to)
{
    for (int i = 0; i < 8; i++)
        to[i] = scale * values[(i < 4 ? first : second) >> 3 * (i & 3) & 7] * sign_at(signs, i);
}

static float iq2_scale(float scale, uint32_t code)
{
    return scale * (0.5f + (float)code) * 0.25f;
}

/* f16 scale; per 32 elements four bytes of rows, then 7 bits of signs for each and 4 bits of scale. */
static void iq2_xxs(const uint8_t *block, float *to)
{
    float scale = f16_at(block);
    for (int g = 0; g < 32; g++) {
        const uint8_t *group = block + 2 + g / 4 * 8;
        uint32_t word = u32_at(group + 4);
        put_8(iq2_xxs_grid[group[g % 4]], iq2_scale(scale, word >> 28), signs_of(word >> g % 4 * 7), to + g * 8);
    }
}

/* 9 bits of row and 7 of signs; nibbles of scales per 16 elements. */
static void iq2_xs(const uint8_t *block, float *to)
{
    float scale = f16_at(block);
    for (int g = 0; g < 32; g++) {
        uint32_t word = u16_at(block + 2 + g * 2), code = block[66 + g / 4] >> g / 2 % 2 * 4 & 15;
        put_8(iq2_xs_grid[word & 511], iq2_scale(scale, code), signs_of(word >> 9), to + g * 8);
    }
}

/* Low bytes of the rows, signs, upper two bits of the rows, nibbles of scales per 16 elements. */
static void iq2_s(const uint8_t *block, float *to)
{
    float scale = f16_at(block);
    for (int g = 0; g < 32; g++) {
        uint32_t row = block[2 + g] | (block[66 + g / 4] >> g % 4 * 2 & 3u) << 8,
                 code = block[74 + g / 4] >> g / 2 % 2 * 4 & 15;
        put_8(iq2_s_grid[row], iq2_scale(scale, code), block[34 + g], to + g * 8);
    }
}

/* Bytes of rows; then per 32 elements 7 bits of signs for each 8 and 4 bits of scale. */
static void iq3_xxs(const uint8_t *block, float *to)
{
    float scale = f16_at(block);
    for (int g = 0; g < 32; g++) {
        uint32_t word = u32_at(block + 66 + g / 4 * 4);
        const uint8_t *rows = block + 2 + g * 2;
        put_4_4(iq3_xxs_grid[rows[0]], iq3_xxs_grid[rows[1]], iq3_xxs_values,
                scale * (0.5f + (float)(word >> 28)) * 0.5f, signs_of(word >> g % 4 * 7), to + g * 8);
    }
}

/* Low bytes of the rows, their ninth bits, signs, nibbles of scales per 32 elements. */
static void iq3_s(const uint8_t *block, float *to)
{
    float scale = f16_at(block);
    for (int g = 0; g < 32; g++) {
        const uint8_t *rows = block + 2 + g * 2;
        uint32_t high = (uint32_t)block[66 + g / 4] >> g % 4 * 2, code = block[106 + g / 8] >> g / 4 % 2 * 4 & 15;
        put_4_4(iq3_s_grid[rows[0] | (high & 1) << 8], iq3_s_grid[rows[1] | (high >> 1 & 1) << 8], iq3_s_values,
                scale * (float)(1 + 2 * code), block[74 + g], to + g * 8);
    }
}

/* Elements of IQ1 are -1, 0 or 1, all moved by ±1/8. */
static void put_iq1(uint32_t row, float scale, bool is_down, float *to)
{
    for (int i = 0; i < 8; i++)
        to[i] = scale * (iq1_values[iq1_s_grid[row] >> 2 * i & 3] + (is_down ? -0.125f : 0.125f));
}

/* Low bytes of the rows; per 32 elements 16 bits: upper three bits of four rows, three of scale, direction. */
static void iq1_s(const uint8_t *block, float *to)
{
    float scale = f16_at(block);
    for (int g = 0; g < 32; g++) {
        uint32_t word = u16_at(block + 34 + g / 4 * 2), row = block[2 + g] | (word >> g % 4 * 3 & 7) << 8;
        put_iq1(row, scale * (float)(2 * (word >> 12 & 7) + 1), word >> 15, to + g * 8);
    }
}

/* The f16 scale is in the upper nibbles of the four words of scales, whose other bits are 3 per 16 elements. */
static void iq1_m(const uint8_t *block, float *to)
{
    const uint8_t *words = block + 48;
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= u16_at(words + 2 * i) >> 12 << 4 * i;
    float scale = tarn__f16_to_f32((uint16_t)bits);
    for (int g = 0; g < 32; g++) {
        uint32_t high = (uint32_t)block[32 + g / 2] >> g % 2 * 4, code = u16_at(words + g / 8 * 2) >> g / 2 % 4 * 3 & 7;
        put_iq1(block[g] | (high & 7) << 8, scale * (float)(2 * code + 1), high >> 3 & 1, to + g * 8);
    }
}

/* Digit k of a byte that holds five digits of base 3 as a fraction of 243 / 256. */
static float ternary_digit(uint32_t byte, int k)
{
    static const uint8_t powers[] = {1, 3, 9, 27, 81};
    return (float)((int)((byte * powers[k] & 255) * 3 >> 8) - 1);
}

/* 32 bytes of 5 digits, 16 of 5 and 4 of 4; digit k of byte i is element i of run k. */
static void tq1_0(const uint8_t *block, float *to)
{
    float scale = f16_at(block + 52);
    for (int i = 0; i < 160; i++)
        to[i] = scale * ternary_digit(block[i % 32], i / 32);
    for (int i = 0; i < 80; i++)
        to[160 + i] = scale * ternary_digit(block[32 + i % 16], i / 16);
    for (int i = 0; i < 16; i++)
        to[240 + i] = scale * ternary_digit(block[48 + i % 4], i / 4);
}

/* Two bits per element, as in Q2_K. */
static void tq2_0(const uint8_t *block, float *to)
{
    float scale = f16_at(block + 64);
    for (int i = 0; i < 256; i++)
        to[i] = scale * (float)((block[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - 1);
}

/* A power of two, halved for the doubled values, and 32 nibbles, as in Q4_0. */
static void mxfp4(const uint8_t *block, float *to)
{
    uint32_t e = block[0];
    float scale = tarn__float_from(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (int i = 0; i < 32; i++)
        to[i] = scale * fp4_values[block[1 + i % 16] >> i / 16 * 4 & 15];
}

/* Unsigned E4M3 without NaN, halved. */
static float ue4m3(uint32_t x)
{
    int e = (int)(x >> 3 & 15), m = (int)(x & 7);
    return x == 127 ? 0 : e == 0 ? ldexpf((float)m, -10) : ldexpf((float)(8 + m), e - 11);
}

/* Four scales, each of 16 nibbles in 8 bytes. */
static void nvfp4(const uint8_t *block, float *to)
{
    for (int i = 0; i < 64; i++)
        to[i] = ue4m3(block[i / 16]) * fp4_values[block[4 + i / 16 * 8 + i % 8] >> i / 8 % 2 * 4 & 15];
}

static const struct {
    void (*dequantize)(const uint8_t *block, float *to);
    int elements, bytes;
} formats[] = {
    [TARN__IQ1_S] = {iq1_s, 256, 50},   [TARN__IQ1_M] = {iq1_m, 256, 56}, [TARN__IQ2_XXS] = {iq2_xxs, 256, 66},
    [TARN__IQ2_XS] = {iq2_xs, 256, 74}, [TARN__IQ2_S] = {iq2_s, 256, 82}, [TARN__IQ3_XXS] = {iq3_xxs, 256, 98},
    [TARN__IQ3_S] = {iq3_s, 256, 110},  [TARN__TQ1_0] = {tq1_0, 256, 54}, [TARN__TQ2_0] = {tq2_0, 256, 66},
    [TARN__MXFP4] = {mxfp4, 32, 17},    [TARN__NVFP4] = {nvfp4, 64, 36},
};

int tarn__iquant_elements(tarn__iquant format)
{
    return formats[format].elements;
}

int64_t tarn__iquant_bytes(tarn__iquant format, int64_t count)
{
    return count / formats[format].elements * formats[format].bytes;
}

void tarn__dequantize_iquant(tarn__iquant format, const void *blocks, int64_t count, float *values)
{
    const uint8_t *block = blocks;
    for (int64_t i = 0; i < count; i += formats[format].elements, block += formats[format].bytes)
        formats[format].dequantize(block, values + i);
}

/* amx.h: tile registers of AMX: who may use them, and how a kernel configures them.
 *
 * A kernel configures the tiles at the start of its work in a thread and releases them at the end: a released
 * thread's tiles need not be saved at a context switch. */
#ifndef TARN__CPU_AMX_H
#define TARN__CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

#define TILE_LANES 16   /* rows of a full tile */
#define TILE_BYTES 1024 /* 16 rows of 64 bytes */

/* True where the processor has AMX with bf16 and int8 and VNNI, and the kernel lets this process use tiles: Linux wants
 * to be asked, once. */
bool tarn__cpu_amx_usable(void);

#if defined(TARN__AMX)
#include <immintrin.h>
#include <string.h>

/* Operand of ldtilecfg, by its definition in the instruction's description. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Precedes tile loads: gcc's intrinsics do not say which memory they read, so stores to it might move behind them. */
static inline void memory_is_written(void)
{
    __asm__ volatile("" ::: "memory");
}

/* All eight tiles full. */
static inline void configure_full_tiles(void)
{
    tile_config config;
    memset(&config, 0, sizeof(config));
    config.palette = 1;
    for (int i = 0; i < 8; i++)
        config.row_bytes[i] = 64, config.rows[i] = TILE_LANES;
    memory_is_written();
    _tile_loadconfig(&config);
}

/* Transposes 16 × 16 words of 32 bits. */
static inline void transpose_16(__m512i x[TILE_LANES])
{
    __m512i t[TILE_LANES];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + 4 + j], 0x88);
            t[i + 4 + j] = _mm512_shuffle_i32x4(x[i + j], x[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        x[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        x[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    }
}
#endif

#endif

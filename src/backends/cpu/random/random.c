/* random.c: uniform, normal and dropout. Element i, row-major, uses word i % 4 of Philox counter offset + i / 4, for
 * any layout, number of threads and order of evaluation: reproducible by construction.
 *
 * Values are computed in f32 and rounded to the output's dtype; dropout multiplies in f64 and rounds once. */
#include <math.h>

#include "backends/cpu/common/scalar_math.h"
#include "backends/cpu/common/scalar_math_trig.h"
#include "backends/cpu/random/dropout.h"
#include "backends/cpu/runtime/level.h"

#define GRAIN 16384 /* a multiple of four: chunks begin at a whole counter */

/* One call; `tile` turns random words into values. */
typedef struct draw {
    const tarn__view *to, *from; /* from: dropout's input */
    const tarn__random *random;
    void (*tile)(const struct draw *d, const uint32_t *word, float *value, int n);
} draw;

/* Offset of row-major element `at`, in elements. */
static int64_t offset_of(const tarn__view *view, int64_t at)
{
    int64_t offset = 0;
    for (int i = view->rank - 1; i >= 0; i--) {
        offset += at % view->shape[i] * view->stride[i];
        at /= view->shape[i];
    }
    return offset;
}

/* 24 random bits per value, in [a, b). */
static void uniform_tile(const draw *d, const uint32_t *word, float *value, int n)
{
    float low = (float)d->random->a, span = (float)(d->random->b - d->random->a), high = (float)d->random->b;
    for (int i = 0; i < n; i++) {
        float x = low + span * tarn__unit_f32(word[i]);
        value[i] = x < high || span <= 0 ? x : low; /* rounding up would reach the excluded end */
    }
}

/* Box-Muller: a pair of words gives a pair of normals. Always whole counters: `value` has space for them. */
static void normal_tile(const draw *d, const uint32_t *word, float *value, int n)
{
    float mean = (float)d->random->a, std = (float)d->random->b;
    for (int i = 0; i < n; i += 2) {
        float u = ((float)(word[i] >> 8) + 0.5f) * 0x1p-24f, angle = tarn__unit_f32(word[i + 1]) * 6.283185307179586f;
        float radius = sqrtf(-2.0f * tarn__log_f32(u));
        value[i] = mean + std * (radius * tarn__cos_f32(angle));
        value[i + 1] = mean + std * (radius * tarn__sin_f32(angle));
    }
}

static void factor_tile(const draw *d, const uint32_t *word, float *value, int n)
{
    dropout_factors(d->random, word, value, n);
}

#define TILE DROPOUT_TILE

/* A task begins at a whole counter and draws in tiles; strided views are written element by element. */
static void draw_range(int64_t begin, int64_t end, void *ctx)
{
    const draw *d = ctx;
    uint32_t word[TILE];
    float value[TILE];
    char *to = tarn__view_at(d->to);
    const char *from = d->from ? tarn__view_at(d->from) : NULL;
    tarn_dtype dtype = d->to->dtype;
    int64_t size = (int64_t)tarn__dtype_bytes(dtype);
    /* Contiguous views take whole tiles; others go element by element. */
    bool dense = tarn__view_is_contiguous(d->to) && (!from || tarn__view_is_contiguous(d->from));
    for (; begin < end; begin += TILE) {
        int n = (int)(end - begin < TILE ? end - begin : TILE);
        /* Whole counters, also past the end of a partial tile. */
        for (int i = 0; i < n; i += 4)
            tarn__philox(d->random->seed, d->random->offset + (uint64_t)(begin + i) / 4, word + i);
        d->tile(d, word, value, (n + 3) / 4 * 4);
        if (from && dense)
            dropout_tile(dtype, from + begin * size, to + begin * size, value, n);
        for (int i = 0; from && !dense && i < n; i++)
            dropout_tile(dtype, from + offset_of(d->from, begin + i) * size, to + offset_of(d->to, begin + i) * size,
                         value + i, 1);
        if (!from && dense)
            tarn__store[dtype][COMPUTE_F32](value, to + begin * size, 1, n);
        for (int i = 0; !from && !dense && i < n; i++)
            tarn__store[dtype][COMPUTE_F32](value + i, to + offset_of(d->to, begin + i) * size, 1, 1);
    }
}

/* 4 bytes written per f32 element; Philox dominates. */
static void run(const tarn__call *call, void (*tile)(const draw *, const uint32_t *, float *, int))
{
    draw d = {call->out[0], call->inputs ? call->in[0] : NULL, call->params, tile};
    tarn__parallel_for(tarn__view_count(call->out[0]), GRAIN, draw_range, &d);
}

static void kernel_uniform(const tarn__call *call)
{
    run(call, uniform_tile);
}

/* Two Philox words and one sqrt, log, sin and cos per pair of values, all in f32. */
static void kernel_normal(const tarn__call *call)
{
    run(call, normal_tile);
}

static void kernel_dropout(const tarn__call *call)
{
    run(call, factor_tile);
}

void TARN__AT_LEVEL(tarn__cpu_register_random)(tarn__kernel_row *rows)
{
    rows[TARN__K_uniform] = tarn__row(kernel_uniform, TARN__FLOATS);
    rows[TARN__K_normal] = tarn__row(kernel_normal, TARN__FLOATS);
    rows[TARN__K_dropout] = tarn__row(kernel_dropout, TARN__FLOATS);
}

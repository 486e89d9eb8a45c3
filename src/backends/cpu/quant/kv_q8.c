/* kv_q8.c: rows of the KV cache in 8 bits with one f16 scale per group of TARN__KV_Q8_GROUP elements, and back. A group
 * equals a Q8_0 block bit for bit (round half away from zero, scale = absmax / 127), except that a non-finite group
 * keeps zeros and its non-finite scale.
 *
 * Tensors are (B, KV heads, T, D); groups run along D, the last one may be short. One task per group; groups are
 * independent. */
#include "backends/cpu/common/rows.h"
#include "base/quant/quant.h"

#define GROUP TARN__KV_Q8_GROUP

typedef struct job {
    const tarn__view *x, *q8, *scales; /* x: the elements, read or written */
} job;

/* Address of group `group` of row (b, h, t) in a view with `each` elements per group along its last axis. */
static char *group_of(const tarn__view *view, int64_t row, int64_t group, int64_t each)
{
    int64_t t = row % view->shape[2], h = row / view->shape[2] % view->shape[1],
            b = row / view->shape[2] / view->shape[1];
    int64_t offset = b * view->stride[0] + h * view->stride[1] + t * view->stride[2] + group * each * view->stride[3];
    return (char *)tarn__view_at(view) + offset * (int64_t)tarn__dtype_bytes(view->dtype);
}

/* Largest magnitude; NaN counts as the largest of all, by comparing bit patterns. */
static float largest_of(const float *x, int64_t n)
{
    uint32_t max_bits = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = tarn__float_bits(x[i]) & 0x7fffffffu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return tarn__float_from(max_bits);
}

/* 1 / scale; 0 for a zero scale and where 1 / scale overflows. */
static float reciprocal(float scale)
{
    float by = scale != 0 ? 1 / scale : 0;
    return isfinite(by) ? by : 0;
}

/* Rounds to nearest, ties away from 0, as Q8_0 does. */
static void quantize_group(const float *x, float by, int64_t n, uint8_t *q)
{
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        float value = x[i] * by;
        int32_t truncated = (int32_t)value;
        float fraction = value - (float)truncated;
        q[i] = (uint8_t)(truncated + (fraction >= 0.5f) - (fraction <= -0.5f) + TARN__KV_Q8_ZERO);
    }
}

/* A range of groups; x may have any strides, q8 too. */
static void quantize_groups(int64_t at, int64_t end, void *ctx)
{
    const job *j = ctx;
    int64_t depth = j->x->shape[3], groups = j->scales->shape[3];
    float values[GROUP];
    uint8_t q[GROUP];
    for (; at < end; at++) {
        int64_t row = at / groups, group = at % groups,
                n = depth - group * GROUP < GROUP ? depth - group * GROUP : GROUP;
        tarn__load[j->x->dtype][COMPUTE_F32](group_of(j->x, row, group, GROUP), j->x->stride[3], values, n);
        /* Scales are stored as f16, but elements are divided by the unrounded scale, as Q8_0 does. */
        float scale = largest_of(values, n) / 127;
        uint16_t half = tarn__f32_to_f16(scale);
        if (isfinite(scale))
            quantize_group(values, reciprocal(scale), n, q);
        else
            memset(q, TARN__KV_Q8_ZERO, sizeof(q));
        memcpy(group_of(j->scales, row, group, 1), &half, sizeof(half));
        char *to = group_of(j->q8, row, group, GROUP);
        for (int64_t i = 0; i < n; i++)
            to[i * j->q8->stride[3]] = (char)q[i];
    }
}

/* The inverse: (q - zero) · scale, rounded to x's dtype. */
static void dequantize_groups(int64_t at, int64_t end, void *ctx)
{
    const job *j = ctx;
    int64_t depth = j->x->shape[3], groups = j->scales->shape[3];
    float values[GROUP];
    for (; at < end; at++) {
        int64_t row = at / groups, group = at % groups,
                n = depth - group * GROUP < GROUP ? depth - group * GROUP : GROUP, step = j->q8->stride[3];
        const uint8_t *q = (const uint8_t *)group_of(j->q8, row, group, GROUP);
        uint16_t half;
        memcpy(&half, group_of(j->scales, row, group, 1), sizeof(half));
        float scale = tarn__f16_to_f32(half);
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) values[i] =
            (float)((int32_t)q[i * step] - TARN__KV_Q8_ZERO) * scale;
        tarn__store[j->x->dtype][COMPUTE_F32](values, group_of(j->x, row, group, GROUP), j->x->stride[3], n);
    }
}

/* Appends to the cache during decode: few rows. */
static void kernel_quantize_kv(const tarn__call *call)
{
    job j = {call->in[0], call->out[0], call->out[1]};
    tarn__parallel_for(tarn__view_count(j.scales), ROWS_GRAIN / GROUP, quantize_groups, &j);
}

static void kernel_dequantize_kv(const tarn__call *call)
{
    job j = {call->out[0], call->in[0], call->in[1]};
    tarn__parallel_for(tarn__view_count(j.scales), ROWS_GRAIN / GROUP, dequantize_groups, &j);
}

void TARN__AT_LEVEL(tarn__cpu_register_kv_q8)(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize_kv] = tarn__row(kernel_quantize_kv, TARN__FLOATS);
    rows[TARN__K_dequantize_kv] = tarn__row(kernel_dequantize_kv, TARN__BIT(TARN_U8));
}

/* clip.c: sums of squares over the segments of a flat gradient, and the factor that clips its global norm.
 *
 * f32 gradients are squared and summed in f64: no square overflows, and sums keep their precision. Each chunk is
 * summed in an order fixed by its length, and the chunks of a segment are added in order: the norm does not depend
 * on threads. */
#include <math.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/runtime/level.h"

#define F64_LOAD(vector, to, from) TARN__VEC_LOAD(vector, to, from)

/* Four f64 vector accumulators, merged pairwise, lanes in order. */
#define SUM(name, type, LOAD) \
    static double squares_of_##name(const type *x, int64_t n) \
    { \
        enum { LANES = sizeof(tarn__f64v) / sizeof(double) }; \
        tarn__f64v a = {0}, b = {0}, c = {0}, d = {0}, p, q, r, s; \
        double sum = 0; \
        int64_t i = 0; \
        for (; i + 4 * LANES <= n; i += 4 * LANES) { \
            LOAD(tarn__f64v, p, x + i); \
            LOAD(tarn__f64v, q, x + i + LANES); \
            LOAD(tarn__f64v, r, x + i + 2 * LANES); \
            LOAD(tarn__f64v, s, x + i + 3 * LANES); \
            a += p * p, b += q * q, c += r * r, d += s * s; \
        } \
        a = (a + b) + (c + d); \
        for (int k = 0; k < LANES; k++) \
            sum += a[k]; \
        for (; i < n; i++) \
            sum += (double)x[i] * (double)x[i]; \
        return sum; \
    }
SUM(f32, float, TARN__VEC_LOAD_F32)
SUM(f64, double, F64_LOAD)

/* Chunks [begin, end) of the flat gradient, and the first chunk of each segment. */
typedef struct job {
    const tarn__view *gradient;
    const int64_t *chunk, *first; /* (chunks, 2), (segments + 1) */
    double *partial;
    double *sum;
} job;

/* First pass: one f64 sum per chunk, in parallel. */
static void sum_chunks(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    const char *base = tarn__view_at(j->gradient);
    for (; begin < end; begin++) {
        int64_t from = j->chunk[2 * begin], n = j->chunk[2 * begin + 1] - from;
        j->partial[begin] = j->gradient->dtype == TARN_F64
                                ? squares_of_f64((const double *)(const void *)base + from, n)
                                : squares_of_f32((const float *)(const void *)base + from, n);
    }
}

/* Second pass: chunks of a segment in order. */
static void sum_segments(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    for (; begin < end; begin++) {
        j->sum[begin] = 0;
        for (int64_t k = j->first[begin]; k < j->first[begin + 1]; k++)
            j->sum[begin] += j->partial[k - j->first[0]];
    }
}

/* One partial sum per chunk. */
static tarn__plan_status prepare_square_sums(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = sizeof(double) * (size_t)call->in[1]->shape[0];
    return TARN__PLAN_READY;
}

/* Reads the gradient once. */
static void kernel_square_sums(const tarn__call *call)
{
    job j = {call->in[0], tarn__view_at(call->in[1]), tarn__view_at(call->in[2]), call->scratch,
             tarn__view_at(call->out[0])};
    tarn__parallel_for(call->in[1]->shape[0], 1, sum_chunks, &j);
    tarn__parallel_for(call->out[0]->shape[0], 256, sum_segments, &j);
}

/* As torch.nn.utils.clip_grad_norm_: NaN stays NaN, and an infinite norm gives a factor of 0. */
static void kernel_clip_factor(const tarn__call *call)
{
    const tarn__clip *clip = call->params;
    const double *sum = tarn__view_at(call->in[0]);
    double squares = 0, *factor = tarn__view_at(call->out[1]), so_far = clip->again ? *factor : 1;
    for (int64_t i = 0; i < call->in[0]->shape[0]; i++)
        squares += sum[i];
    /* A second clip of the same gradient sees the norm after the first. */
    double norm = sqrt(squares) * so_far, by = clip->max_norm / (norm + 1e-6);
    tarn__store[call->out[0]->dtype][COMPUTE_F64](&norm, tarn__view_at(call->out[0]), 1, 1);
    *factor = so_far * (by >= 1 ? 1 : by);
}

void TARN__AT_LEVEL(tarn__cpu_register_clip)(tarn__kernel_row *rows)
{
    rows[TARN__K_square_sums] =
        tarn__row_planned(prepare_square_sums, kernel_square_sums, TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64));
    rows[TARN__K_clip_factor] = tarn__row(kernel_clip_factor, TARN__BIT(TARN_F64));
}

/* layernorm.h: what a norm works on: where its rows lie, its weight and bias, and the numbers that are kept of a row.
 */
#ifndef TARN__CPU_LAYERNORM_H
#define TARN__CPU_LAYERNORM_H

#include "backends/cpu/common/rows.h"

/* Of a row: mean (0 for rmsnorm) and 1 / deviation. Where the mean is no more than a deviation away from 0, x̂ is x ·
 * rstd - mean · rstd, one operation, which loses no more than the rounding of the mean does; else the difference comes
 * first. */
typedef struct scaling {
    double mean, rstd;
    bool has_large_mean;
} scaling;

static inline scaling scaling_of(double mean, double rstd)
{
    return (scaling){mean, rstd, !(fabs(mean) * rstd <= 1)};
}

/* A block in backward. The sums of g · weight (layernorm's alone) and of g · weight · x̂ become means over the row
 * before grad() takes them. */
typedef struct grad_block {
    const void *x, *g;
    scaling c;
    double sums[2];
} grad_block;

/* Blocks of one type. Weight and bias are never NULL: ones and zeros stand in; gweight and gbias may be. */
typedef struct row_ops {
    int64_t size;
    /* the sums of elements (0 if not centred) and of their squares */
    void (*raw_sums)(const void *x, bool is_centered, int64_t n, double *sums);
    /* those become the mean and the sum of squared distances from it */
    void (*moments)(const void *x, int64_t n, double *sums);
    void (*normalize)(const void *x, const void *weight, const void *bias, void *y, const scaling *c, int64_t n);
    /* adds g · x̂ and g to the last two */
    void (*sums)(grad_block *r, const void *weight, void *gweight, void *gbias, bool is_centered, int64_t n);
    void (*grad)(const grad_block *r, const void *weight, void *gx, int64_t n);
    void (*add)(const void *x, const void *y, void *sum, int64_t n);
    void (*add_to_sum)(const void *x, double *sum, int64_t n);
    /* normalise() and powers() of the next row; grad() and sums() of the next row, where neither mean is far and
     * gweight is wanted. The same bits; NULL where rows do not go ahead. */
    void (*normalize_pipelined)(const void *x, const void *weight, const void *bias, void *y, const scaling *c,
                                const void *next, bool is_centered, int64_t n, double *sums);
    void (*grad_pipelined)(const grad_block *r, const void *weight, void *gx, grad_block *next, void *gweight,
                           void *gbias, bool is_centered, int64_t n);
} row_ops;

#define EACH UNROLLED for (int64_t i = 0; i < n; i++)

#define T float
#define NAMED(x) x##_f32
#include "backends/cpu/norm/layernorm_row.inc"

#define T double
#define NAMED(x) x##_f64
#include "backends/cpu/norm/layernorm_row.inc"

#define SHORT_ROW 32 /* rows this short are computed in f64: their gradient is what little normalising leaves */

#define EACH_BLOCK(begin, n, length) \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); \
         begin += BLOCK)

typedef struct job {
    /* forward: y, x, mean, rstd; backward: gx (or x), x, mean, rstd, g. Of a sum, x is that; then its terms, or the
     * gradient that it has itself */
    row_set r;
    const row_ops *row_ops;
    bool is_centered; /* layernorm */
    double epsilon;
    const tarn__random *random; /* a sum's second term is dropped out by it; NULL: it is not */
    char *dropped;              /* where its gradient goes, dense; NULL: nowhere */
    const tarn__view *weight, *bias;
    bool wants_gx;
    int64_t chunk_rows, chunks;
    char *partial; /* (chunks, 2, length) */
    const tarn__view *gweight, *gbias;
} job;

static void choose_ops(job *j)
{
    if (j->r.length <= SHORT_ROW)
        j->r.compute = COMPUTE_F64;
    j->row_ops = j->r.compute == COMPUTE_F64 ? &row_ops_f64 : &row_ops_f32;
}

/* n elements of a vector in the type computed in; `stand_in` where there is none. */
static const void *fetch_vector(const job *j, const tarn__view *vector, int64_t begin, int64_t n, void *buffer,
                                double fallback)
{
    if (!vector) {
        tarn__load[TARN_F64][j->r.compute](&fallback, 0, buffer, n);
        return buffer;
    }
    int64_t stride = vector->stride[vector->rank - 1];
    const char *from = (char *)tarn__view_at(vector) + begin * stride * (int64_t)tarn__dtype_bytes(vector->dtype);
    if (stride == 1 && (int64_t)tarn__dtype_bytes(vector->dtype) == j->row_ops->size)
        return from;
    tarn__load[vector->dtype][j->r.compute](from, stride, buffer, n);
    return buffer;
}

/* A vector of at most one block need not be fetched for every row. */
typedef struct vectors {
    _Alignas(64) char weight_buffer[BLOCK * 8];
    _Alignas(64) char bias_buffer[BLOCK * 8];
    const void *weight, *bias;
} vectors;

static void fetch_vectors(const job *j, int64_t begin, int64_t n, vectors *v)
{
    v->weight = fetch_vector(j, j->weight, begin, n, v->weight_buffer, 1);
    v->bias = fetch_vector(j, j->bias, begin, n, v->bias_buffer, 0);
}

/* Whether rows are short and can be used where they lie. */
static bool pipelines_rows(const job *j)
{
    return PIPELINES_ROWS && j->r.length <= BLOCK && is_in_place(&j->r, 0) && is_in_place(&j->r, 1);
}

static void store_row_scalar(const job *j, int k, int64_t row, double value)
{
    char *to = row_at(&j->r, k, row);
    if (to)
        tarn__store[j->r.operand[k].dtype][COMPUTE_F64](&value, to, 1, 1);
}

static double load_row_scalar(const job *j, int k, int64_t row)
{
    double value = 0;
    const char *from = row_at(&j->r, k, row);
    if (from)
        tarn__load[j->r.operand[k].dtype][COMPUTE_F64](from, 1, &value, 1);
    return value;
}

#endif

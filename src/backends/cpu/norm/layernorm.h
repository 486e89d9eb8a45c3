/* layernorm.h: operands of a norm, per-row statistics, and the table of row operations in f32 and f64
 * (layernorm_row.inc). Private to layernorm.c. */
#ifndef TARN__CPU_LAYERNORM_H
#define TARN__CPU_LAYERNORM_H

#include "backends/cpu/common/rows.h"

/* Statistics of a row: mean (0 for rmsnorm) and 1 / std. Where |mean| is at most one std, x̂ is x · rstd - mean ·
 * rstd, one FMA, which loses no more than the rounding of the mean does; otherwise the subtraction comes first. */
typedef struct scaling {
    double mean, rstd;
    bool has_large_mean;
} scaling;

/* !(a <= b) instead of a > b: NaN takes the careful form. */
static inline scaling scaling_of(double mean, double rstd)
{
    return (scaling){mean, rstd, !(fabs(mean) * rstd <= 1)};
}

/* A block in backward. Σ g · weight (layernorm only) and Σ g · weight · x̂ become means over the row before grad()
 * uses them. */
typedef struct grad_block {
    const void *x, *g;
    scaling c;
    double sums[2];
} grad_block;

/* Operations on blocks of one type. weight and bias are never NULL: ones and zeros replace them; gweight and gbias
 * may be. */
typedef struct row_ops {
    int64_t size;
    /* Σ x (0 if not centered) and Σ x² */
    void (*raw_sums)(const void *x, bool is_centered, int64_t n, double *sums);
    /* from these to the mean and the sum of squared deviations */
    void (*moments)(const void *x, int64_t n, double *sums);
    void (*normalize)(const void *x, const void *weight, const void *bias, void *y, const scaling *c, int64_t n);
    /* also adds g · x̂ to gweight and g to gbias */
    void (*sums)(grad_block *r, const void *weight, void *gweight, void *gbias, bool is_centered, int64_t n);
    void (*grad)(const grad_block *r, const void *weight, void *gx, int64_t n);
    void (*add)(const void *x, const void *y, void *sum, int64_t n);
    void (*add_to_sum)(const void *x, double *sum, int64_t n);
    /* normalize() with raw_sums() of the next row; grad() with sums() of the next row, where neither mean is large
     * and gweight is wanted. Bitwise identical to separate calls; NULL where rows are not pipelined. */
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

#define SHORT_ROW 32 /* rows this short are computed in f64: little of their gradient survives normalization */

#define EACH_BLOCK(begin, n, length) \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); \
         begin += BLOCK)

/* One call. Borrows all views for its duration; a plan has none of the addresses. */
typedef struct job {
    /* forward: y, x, mean, rstd; backward: gx (or x), x, mean, rstd, g. With a residual, x is the sum; then come its
     * terms, or the gradient that reaches the sum directly */
    row_set r;
    const row_ops *row_ops;
    bool is_centered;           /* layernorm */
    double epsilon, offset;     /* offset: of the weight */
    const tarn__random *random; /* dropout of the residual's second term; NULL: none */
    char *dropped;              /* gradient of the dropped term, contiguous; NULL: not wanted */
    const tarn__view *weight, *bias;
    bool wants_gx;
    int64_t chunk_rows, chunks;
    char *partial; /* (chunks, 2, length) */
    const tarn__view *gweight, *gbias;
} job;

/* Short rows switch the whole job to f64: loads convert, stores round once. */
static void choose_ops(job *j)
{
    if (j->r.length <= SHORT_ROW)
        j->r.compute = COMPUTE_F64;
    j->row_ops = j->r.compute == COMPUTE_F64 ? &row_ops_f64 : &row_ops_f32;
}

/* Adds the offset in the compute type: a 16-bit sum would round. */
static void add_offset(const job *j, void *vector, int64_t n)
{
    double *f64 = vector;
    float *f32 = vector;
    for (int64_t i = 0; i < n; i++)
        if (j->r.compute == COMPUTE_F64)
            f64[i] += j->offset;
        else
            f32[i] += (float)j->offset;
}

/* n elements of a vector in the compute type: in place, or in `buffer`; `fallback` where the vector is absent. */
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

/* Weight and bias in the compute type. One block or less is fetched once per task instead of once per row. */
typedef struct vectors {
    _Alignas(64) char weight_buffer[BLOCK * 8];
    _Alignas(64) char bias_buffer[BLOCK * 8];
    const void *weight, *bias;
} vectors;

static void fetch_vectors(const job *j, int64_t begin, int64_t n, vectors *v)
{
    v->weight = fetch_vector(j, j->weight, begin, n, v->weight_buffer, 1);
    if (j->weight && j->offset != 0) {
        if (v->weight != v->weight_buffer)
            memcpy(v->weight_buffer, v->weight, (size_t)(n * j->row_ops->size));
        v->weight = v->weight_buffer;
        add_offset(j, v->weight_buffer, n);
    }
    v->bias = fetch_vector(j, j->bias, begin, n, v->bias_buffer, 0);
}

/* True where rows are short and in place, so that pipelining pays. */
static bool pipelines_rows(const job *j)
{
    return PIPELINES_ROWS && j->r.length <= BLOCK && is_in_place(&j->r, 0) && is_in_place(&j->r, 1);
}

/* Statistics of a row; nothing where the output is absent. */
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

/* layernorm.h: what a norm works on: where its rows lie, its weight and bias, and the numbers that are kept of a row.
 */
#ifndef TARN__NORM_JOB_H
#define TARN__NORM_JOB_H

#include "backends/cpu/norm/norm_maths.h"

#define SHORT_ROW 32 /* rows this short are computed in f64: their gradient is what little normalising leaves */

#define EACH_BLOCK(begin, n, length) \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); \
         begin += BLOCK)

typedef struct job {
    /* forward: y, x, mean, rstd; backward: gx (or x), x, mean, rstd, g. Of a sum, x is that; then its terms, or the
     * gradient that it has itself */
    row_set r;
    const maths *maths;
    bool centred; /* layernorm */
    double epsilon;
    const tarn__random *random; /* a sum's second term is dropped out by it; NULL: it is not */
    char *dropped;              /* where its gradient goes, dense; NULL: nowhere */
    const tarn__view *weight, *bias;
    bool wants_gx;
    int64_t chunk_rows, chunks;
    char *partial; /* (chunks, 2, length) */
    const tarn__view *gweight, *gbias;
} job;

static void choose_maths(job *j)
{
    if (j->r.length <= SHORT_ROW)
        j->r.compute = COMPUTE_F64;
    j->maths = j->r.compute == COMPUTE_F64 ? &maths_f64 : &maths_f32;
}

/* n elements of a vector in the type computed in; `stand_in` where there is none. */
static const void *fetch_vector(const job *j, const tarn__view *vector, int64_t begin, int64_t n, void *buffer,
                                double stand_in)
{
    if (!vector) {
        tarn__load[TARN_F64][j->r.compute](&stand_in, 0, buffer, n);
        return buffer;
    }
    int64_t stride = vector->stride[vector->rank - 1];
    const char *from = (char *)tarn__view_at(vector) + begin * stride * (int64_t)tarn__dtype_bytes(vector->dtype);
    if (stride == 1 && (int64_t)tarn__dtype_bytes(vector->dtype) == j->maths->size)
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
static bool goes_ahead(const job *j)
{
    return GOES_AHEAD && j->r.length <= BLOCK && is_native(&j->r, 0) && is_native(&j->r, 1);
}

static void write_number(const job *j, int k, int64_t row, double value)
{
    char *to = row_at(&j->r, k, row);
    if (to)
        tarn__store[j->r.operand[k].dtype][COMPUTE_F64](&value, to, 1, 1);
}

static double read_number(const job *j, int k, int64_t row)
{
    double value = 0;
    const char *from = row_at(&j->r, k, row);
    if (from)
        tarn__load[j->r.operand[k].dtype][COMPUTE_F64](from, 1, &value, 1);
    return value;
}

#endif

/* rope.c: rotary position embedding (RoPE). cos and sin of position · frequency are computed once per position, in f64
 * (angles reach thousands of radians), stored in the compute type, and reused by all heads.
 *
 * x and y are (B, T, H, D) or (B, H, T, D), by params->axis. The inverse rotation (backward) negates the sines.
 * ops/attention/rope.c computes the frequencies, with their scaling, and the factor of cos and sin. */
#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/scalar_math_trig.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/runtime/level.h"

#define GRAIN 16384 /* elements per task */

/* One call. The tables are in scratch: written by the first pass, read by the second. */
typedef struct job {
    int compute;
    int64_t batches, length, heads, head_dim, pairs; /* B, T, H, D, dims / 2 */
    int heads_axis;
    bool shared;        /* all batches share the positions */
    size_t table_bytes; /* of each table */
    /* addresses, set by run() */
    const tarn__rope *params;
    const tarn__view *x, *positions, *y;
    char *cos, *sin; /* (batches or 1, length, pairs), in the compute type */
} job;

/* ---- the cos/sin table ------------------------------------------------------------------------------------------- */

/* Position of row `row` of the table: the row itself, or an element of positions (T) or (B, T). */
static double position_of(const job *j, int64_t row)
{
    const tarn__view *p = j->positions;
    int64_t position, at = p && p->rank == 2 ? row / j->length * p->stride[0] + row % j->length * p->stride[1]
                           : p               ? row * p->stride[0]
                                             : 0;
    if (!p)
        return (double)row;
    tarn__load[p->dtype][COMPUTE_I64]((char *)tarn__view_at(p) + at * (int64_t)tarn__dtype_bytes(p->dtype), 1,
                                      &position, 1);
    return (double)position;
}

/* One row of both tables per position: pairs cosines and sines. */
static void fill_rows(int64_t row, int64_t end, void *ctx)
{
    const job *j = ctx;
    double angle[TARN__ROPE_PAIRS], value[TARN__ROPE_PAIRS];
    int64_t size = j->compute == COMPUTE_F64 ? 8 : 4;
    tarn_dtype buffer = j->compute == COMPUTE_F64 ? TARN_F64 : TARN_F32;
    for (; row < end; row++) {
        double position = position_of(j, row);
        for (int64_t i = 0; i < j->pairs; i++)
            angle[i] = position * j->params->frequency[i];
        tarn__cos_tile_f64(angle, value, j->pairs);
        for (int64_t i = 0; i < j->pairs; i++)
            value[i] *= j->params->magnitude;
        tarn__store[buffer][COMPUTE_F64](value, j->cos + row * j->pairs * size, 1, j->pairs);
        tarn__sin_tile_f64(angle, value, j->pairs);
        for (int64_t i = 0; i < j->pairs; i++)
            value[i] *= j->params->inverse ? -j->params->magnitude : j->params->magnitude;
        tarn__store[buffer][COMPUTE_F64](value, j->sin + row * j->pairs * size, 1, j->pairs);
    }
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

#define ROTATE(T, type) \
    static void rotate_##type(const T *x, T *y, const T *c, const T *s, int64_t pairs, bool interleaved) \
    { \
        int64_t step = interleaved ? 2 : 1, other = interleaved ? 1 : pairs; \
        TARN__INDEPENDENT for (int64_t i = 0; i < pairs; i++) \
        { \
            T a = x[i * step], b = x[i * step + other]; \
            y[i * step] = a * c[i] - b * s[i]; \
            y[i * step + other] = b * c[i] + a * s[i]; \
        } \
    }
ROTATE(float, f32)
ROTATE(double, f64)

/* Address of row (b, t, h) of a view. */
static char *row_at(const job *j, const tarn__view *view, int64_t b, int64_t t, int64_t h)
{
    int64_t offset = b * view->stride[0] + t * view->stride[j->params->axis] + h * view->stride[j->heads_axis];
    return (char *)tarn__view_at(view) + offset * (int64_t)tarn__dtype_bytes(view->dtype);
}

/* Elements past the rotated dims are copied; through f64, which every float dtype fits exactly. */
static void copy_unrotated(const job *j, const char *from, char *to)
{
    double buffer[TARN__ROPE_PAIRS];
    int64_t in = (int64_t)tarn__dtype_bytes(j->x->dtype), out = (int64_t)tarn__dtype_bytes(j->y->dtype);
    for (int64_t at = 2 * j->pairs; at < j->head_dim; at += TARN__ROPE_PAIRS) {
        int64_t n = j->head_dim - at < TARN__ROPE_PAIRS ? j->head_dim - at : TARN__ROPE_PAIRS;
        tarn__load[j->x->dtype][COMPUTE_F64](from + at * j->x->stride[3] * in, j->x->stride[3], buffer, n);
        tarn__store[j->y->dtype][COMPUTE_F64](buffer, to + at * j->y->stride[3] * out, j->y->stride[3], n);
    }
}

/* A task is a range of (b, t, h) rows; a row is loaded, rotated in a buffer and stored, so y may be x. */
static void rotate_rows(int64_t at, int64_t end, void *ctx)
{
    const job *j = ctx;
    _Alignas(64) char buffer[2 * TARN__ROPE_PAIRS * 8];
    for (; at < end; at++) {
        int64_t h = at % j->heads, t = at / j->heads % j->length, b = at / j->heads / j->length;
        int64_t size = j->compute == COMPUTE_F64 ? 8 : 4,
                table = ((j->shared ? 0 : b * j->length) + t) * j->pairs * size;
        const char *from = row_at(j, j->x, b, t, h), *cos = j->cos + table, *sin = j->sin + table;
        char *to = row_at(j, j->y, b, t, h);
        tarn__load[j->x->dtype][j->compute](from, j->x->stride[3], buffer, 2 * j->pairs);
        if (j->compute == COMPUTE_F64)
            rotate_f64((const double *)(const void *)buffer, (double *)(void *)buffer,
                       (const double *)(const void *)cos, (const double *)(const void *)sin, j->pairs,
                       j->params->interleaved);
        else
            rotate_f32((const float *)(const void *)buffer, (float *)(void *)buffer, (const float *)(const void *)cos,
                       (const float *)(const void *)sin, j->pairs, j->params->interleaved);
        tarn__store[j->y->dtype][j->compute](buffer, to, j->y->stride[3], 2 * j->pairs);
        copy_unrotated(j, from, to);
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static tarn__plan_status prepare_rope(const tarn__call *call, tarn__plan *plan)
{
    const tarn__rope *params = call->params;
    const tarn__view *x = call->in[0], *positions = call->in[1];
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    *j = (job){.compute = tarn__compute_of(x->dtype),
               .batches = x->shape[0],
               .length = x->shape[params->axis],
               .heads_axis = 3 - params->axis,
               .heads = x->shape[3 - params->axis],
               .head_dim = x->shape[3],
               .pairs = params->dims / 2,
               .shared = !positions || positions->rank == 1};
    j->table_bytes = round_up_64((size_t)((j->shared ? 1 : j->batches) * j->length * j->pairs) *
                                 (j->compute == COMPUTE_F64 ? 8 : 4));
    plan->scratch_bytes = 2 * j->table_bytes;
    return TARN__PLAN_READY;
}

static void kernel_rope(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    j.params = call->params;
    j.x = call->in[0], j.positions = call->in[1], j.y = call->out[0];
    j.cos = call->scratch;
    if (tarn__view_count(j.x) == 0)
        return;
    j.sin = j.cos + j.table_bytes;
    tarn__parallel_for((j.shared ? 1 : j.batches) * j.length, GRAIN / 16 / j.pairs + 1, fill_rows, &j);
    tarn__parallel_for(j.batches * j.length * j.heads, GRAIN / j.head_dim + 1, rotate_rows, &j);
}

void TARN__AT_LEVEL(tarn__cpu_register_rope)(tarn__kernel_row *rows)
{
    rows[TARN__K_rope] = tarn__row_planned(prepare_rope, kernel_rope, TARN__FLOATS);
}

/* decode_gemv.cl: products of a few rows of x with rows of weights, bound by the bytes of the weights; the norm of x,
 * bias, activation, gate and residual are fused.
 *
 * A team of TEAM work-items multiplies JOBS rows of the weights at once; its work-items take every TEAM-th unit, a few
 * adjacent elements, and their sums are added in order in local memory. Weights that begin at whole vectors are loaded
 * straight into registers, the next batch before the last one is used (UNROLL units per work-item and row); others are
 * copied through local memory in tiles of CHUNK elements (STAGED). Every work-group normalizes x into local
 * memory for itself, as f32, CHUNK elements of each row at a time.
 *
 * Options: T, dtype of x, norm, residual and y; FORMAT, dtype of the weights, and IS_ with its name; ROWS, at least the
 * rows of x; GROUP, TEAM, JOBS, UNROLL, CHUNK; WEIGHTS, 1 to 3; NORM, CENTRED (layernorm), NORM_BIAS; BIAS, of the
 * results; GATED: y = act(first) · second; RESIDUAL. */

#define TEAMS (GROUP / TEAM)
#ifdef GATED
#define OUTPUTS (JOBS / 2) /* of a team */
#else
#define OUTPUTS JOBS
#endif
#ifdef IS_CPU /* PoCL takes minutes over unrolled loops */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif

/* gemv_args of decode_gemv.c, passed by value. Offsets: weights in bytes, all others in elements. */
typedef struct gemv_args {
    long x, x_down, norm, norm_bias;
    long weight[3], pitch[3], bias[3], bias_step[3], y[3], y_down[3];
    long sum, sum_down;
    long jobs; /* elements of a row, of all results together */
    int out[3], bias_dtype[3];
    int in, rows, act;
    float epsilon, offset, scale, cap;
} gemv_args;

#include "backends/opencl/common/round.cl"
#include "backends/opencl/common/vec4.cl"

#include "backends/opencl/decode/decode_weights.cl"

/* Weights in flight: in registers as they will be multiplied, or as the bytes of a tile. */
#ifdef STAGED
#define BATCH (CHUNK / UNIT)
#define TILE_VECTORS (CHUNK / BLOCK_ELEMENTS * BLOCK_BYTES / 16)
#define TILE_EACH ((TILE_VECTORS + TEAM - 1) / TEAM)
#define A_BATCH(name) uint4 name[TILE_EACH][JOBS]
#else
#define BATCH (TEAM * UNROLL)
#define A_BATCH(name) raw name[UNROLL][JOBS]
#endif
#if CHUNK % (BATCH * UNIT) != 0
#error a chunk is whole batches
#endif
#define VECTORS (UNIT / 4)
#ifndef PLACE
#define PLACE(e) ((e) % UNIT / 4)
#define UNIT_OF(e) ((e) / UNIT)
#endif

/* A row of x in local memory: vectors of four f32, or of eight 16-bit elements (X16). */
#ifdef X16
typedef uint4 x_vector;
#define X_VECTORS (UNIT / 8)
#else
typedef float4 x_vector;
#define X_VECTORS VECTORS
#endif

/* ---- x ----------------------------------------------------------------------------------------------------------- */

/* Sums the work-items' x in a fixed order; all get the sum. `space` has GROUP + ROOT elements, and may be used again
 * only after a barrier. */
#define ROOT 16
float group_sum(float x, __local float *space)
{
    const int item = (int)get_local_id(0);
    float sum = 0;
    space[item] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < ROOT) {
        for (int i = item; i < GROUP; i += ROOT)
            sum += space[i];
        space[GROUP + item] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = 0;
    EACH(i, ROOT) sum += space[GROUP + i];
    return sum;
}

float sum4(float4 x)
{
    return (x.x + x.y) + (x.z + x.w);
}

#ifdef NORM
/* Mean, 0 for an rmsnorm, and 1 / sqrt(mean of squares + epsilon) of a row of x. */
float2 statistics(const __global void *x, long from, const gemv_args *a, __local float *space)
{
    float mean = 0, squares = 0;
#ifdef CENTRED
    for (int e = (int)get_local_id(0) * 4; e < a->in; e += GROUP * 4)
        mean += sum4(LOAD_4(T, x, from + e));
    mean = group_sum(mean, space) / (float)a->in;
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (int e = (int)get_local_id(0) * 4; e < a->in; e += GROUP * 4) {
        const float4 d = LOAD_4(T, x, from + e) - mean;
        squares += sum4(d * d);
    }
    squares = group_sum(squares, space);
    barrier(CLK_LOCAL_MEM_FENCE);
    return (float2)(mean, 1 / sqrt(squares / (float)a->in + a->epsilon));
}
#endif

#ifdef X16
#define STORE_4_LOCAL(T, to, at, v) JOIN(store_4_local_, T)(to, at, v)
void store_4_local_bf16(__local uint4 *to, long at, float4 v)
{
    const uint4 u = as_uint4(v); /* rounded before */
    ((__local uint2 *)to)[at] = (uint2)(u.x >> 16 | (u.y & 0xffff0000u), u.z >> 16 | (u.w & 0xffff0000u));
}
void store_4_local_f16(__local uint4 *to, long at, float4 v)
{
    vstore_half4_rte(v, at, (__local half *)to);
}
#endif

/* Stages CHUNK elements of each row of x from `first` on, normalized and rounded to T as the norm's result would be;
 * zeros past the end and for missing rows. */
void stage_x(__local x_vector *to, const __global void *x, const __global void *norm, const __global void *norm_bias,
             const __local float2 *stats, int first, const gemv_args *a)
{
    for (int e = (int)get_local_id(0) * 4; e < CHUNK; e += GROUP * 4) {
        const bool is_inside = first + e < a->in;
#ifdef NORM
        const float4 weight = is_inside ? LOAD_4(T, norm, a->norm + first + e) + a->offset : (float4)0;
#ifdef NORM_BIAS
        const float4 bias = is_inside ? LOAD_4(T, norm_bias, a->norm_bias + first + e) : (float4)0;
#else
        const float4 bias = 0;
#endif
#endif
        EACH(r, ROWS)
        {
            float4 v = is_inside && r < a->rows ? LOAD_4(T, x, a->x + r * a->x_down + first + e) : (float4)0;
#ifdef NORM
            v = (v - stats[r].x) * stats[r].y * weight + bias;
            v = (float4)(ROUND(T, v.x), ROUND(T, v.y), ROUND(T, v.z), ROUND(T, v.w));
#endif
#ifdef X16
            const long at_ = ((r * X_VECTORS + PLACE(e) / 2) * (CHUNK / UNIT) + UNIT_OF(e)) * 2 + PLACE(e) % 2;
            STORE_4_LOCAL(T, to, at_, v);
#else
            to[(r * X_VECTORS + PLACE(e)) * (CHUNK / UNIT) + UNIT_OF(e)] = v;
#endif
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Vector v of a unit of row r. */
#ifdef X16
#define X_AT(r, v) JOIN(half_vector_, T)(x[((r)*X_VECTORS + (v) / 2) * (CHUNK / UNIT) + unit], (v) % 2)
float4 half_vector_bf16(uint4 w, int half_)
{
    const uint2 u = half_ ? w.hi : w.lo;
    return as_float4((uint4)(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
float4 half_vector_f16(uint4 w, int half_)
{
    const uint2 u = half_ ? w.hi : w.lo;
    return vload_half4(0, (const half *)&u);
}
#else
#define X_AT(r, v) x[((r)*X_VECTORS + (v)) * (CHUNK / UNIT) + unit]
#endif

/* Adds the products of a unit of each of the JOBS rows with the chunk x. */
void add_units(const raw *w, int unit, const __local x_vector *x, float (*sum)[ROWS])
{
#ifndef PARTS
    EACH(v, VECTORS)
    {
        float4 q[JOBS];
        EACH(j, JOBS) q[j] = VECTOR_OF(w[j], v);
        EACH(r, ROWS)
        {
            const float4 at = X_AT(r, v);
            EACH(j, JOBS) sum[j][r] += q[j].x * at.x + q[j].y * at.y + (q[j].z * at.z + q[j].w * at.w);
        }
    }
#else
    EACH(part, PARTS)
    {
        float products[JOBS][ROWS], all[ROWS];
        EACH(r, ROWS)
        {
            all[r] = 0;
            EACH(j, JOBS) products[j][r] = 0;
        }
        EACH(i, VECTORS / PARTS)
        {
            const int v = part * (VECTORS / PARTS) + i;
            float4 q[JOBS];
            EACH(j, JOBS) q[j] = VECTOR_OF(w[j], v);
            EACH(r, ROWS)
            {
                const float4 at = X_AT(r, v);
#ifdef HAS_MIN
                all[r] += sum4(at);
#endif
                EACH(j, JOBS) products[j][r] += q[j].x * at.x + q[j].y * at.y + (q[j].z * at.z + q[j].w * at.w);
            }
        }
        EACH(j, JOBS)
        {
            const float2 factors = scale_and_min(&w[j], unit, part);
            EACH(r, ROWS)
            {
#ifdef HAS_MIN
                sum[j][r] += factors.x * products[j][r] - factors.y * all[r];
#else
                sum[j][r] += factors.x * products[j][r];
#endif
            }
        }
    }
#endif
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* A tarn__act. */
float activate(float x, int act)
{
    switch (act) {
    case 1: return x / (1 + exp(-x));
    case 2: return x / (1 + exp(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    case 3: return x * erfc(-0.70710678118654752f * x) / 2;
    case 4: return x < 0 ? 0 : x;
    default: return x;
    }
}

/* Each weight may have a bias of another dtype: one of enum bias_dtype of decode_gemv.c. */
float load_bias(const __global void *bias, long at, int dtype)
{
    return dtype == 0 ? LOAD(f32, bias, at) : dtype == 1 ? LOAD(bf16, bias, at) : LOAD(f16, bias, at);
}

#define PARAMETERS(name) , const __global void *name##0, const __global void *name##1, const __global void *name##2
#define OF_WEIGHT(name, which) ((which) == 0 ? name##0 : (which) == 1 ? name##1 : name##2)

/* Which weight the row of a job belongs to; *row becomes its row there. */
int weight_of_job(const gemv_args *a, long *row)
{
    int which = 0;
#if WEIGHTS > 1 && !defined(GATED)
    for (; which < WEIGHTS - 1 && *row >= a->out[which]; which++)
        *row -= a->out[which];
#endif
    return which;
}

/* Sums in four accumulators, whose lengths differ by at most one. */
float sum_of(const __local float *x)
{
    float4 sum = 0;
    EACH(i, TEAM / 4) sum += (float4)(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    return sum4(sum);
}

/* Adds the sums of a team's work-items through local memory, PASS outputs of a team at a time. */
#if ROWS > 2
#define PASS 1
#define BUFFERS 1
#else
#define PASS OUTPUTS
#define BUFFERS 2
#endif

/* Grid: work-groups of GROUP; each takes TEAMS · OUTPUTS elements of y at a time, and the next ones as many groups on.
 * Bytes: the weights, once; x by every work-group, from a cache. */
__attribute__((reqd_work_group_size(GROUP, 1, 1))) __kernel void gemv(gemv_args a, const __global void *x
#ifdef NORM
                                                                      ,
                                                                      const __global void *norm
#endif
#ifdef NORM_BIAS
                                                                      ,
                                                                      const __global void *norm_bias
#endif
                                                                      ,
                                                                      const __global uchar *weight0
#if WEIGHTS > 1
                                                                      ,
                                                                      const __global uchar *weight1
#endif
#if WEIGHTS > 2
                                                                      ,
                                                                      const __global uchar *weight2
#endif
#ifdef BIAS
                                                                          PARAMETERS(bias)
#endif
#ifdef RESIDUAL
                                                                              ,
                                                                      const __global void *residual
#endif
                                                                      ,
                                                                      __global void *y0
#if WEIGHTS > 1 && !defined(GATED)
                                                                      ,
                                                                      __global void *y1
#endif
#if WEIGHTS > 2
                                                                      ,
                                                                      __global void *y2
#endif
)
{
#ifndef NORM
    const __global void *norm = 0;
#endif
#ifndef NORM_BIAS
    const __global void *norm_bias = 0;
#endif
#if WEIGHTS < 2
    const __global uchar *weight1 = weight0;
#endif
#if WEIGHTS < 3
    const __global uchar *weight2 = weight0;
#endif
#if WEIGHTS < 2 || defined(GATED)
    __global void *y1 = y0;
#endif
#if WEIGHTS < 3
    __global void *y2 = y0;
#endif
    __local x_vector chunk[ROWS * X_VECTORS * (CHUNK / UNIT)];
#ifdef STAGED
    __local uint4 tile[TEAMS * JOBS][TILE_VECTORS];
#endif
    __local float sums[BUFFERS][PASS * (JOBS / OUTPUTS)][TEAMS * ROWS][TEAM + 1], space[GROUP + ROOT];
    __local float2 stats[ROWS];
    const int item = (int)get_local_id(0), team = item / TEAM, lane = item % TEAM;
    const int units = a.in / UNIT, batches = (units + BATCH - 1) / BATCH;
    const long step = (long)get_num_groups(0) * (TEAMS * OUTPUTS);
    A_BATCH(next);
    const __global uchar *from[JOBS];
    int buffer = 0;
#define FIND_ROWS(first) \
    EACH(j, JOBS) \
    { \
        long row_ = min((first) + team * OUTPUTS + j % OUTPUTS, a.jobs - 1); \
        const int which_ = j < OUTPUTS ? weight_of_job(&a, &row_) : 1; \
        from[j] = OF_WEIGHT(weight, which_) + a.weight[which_] + row_ * a.pitch[which_]; \
    }
#ifdef STAGED
#define LOAD_BATCH(batch) \
    EACH(u, TILE_EACH) \
    { \
        const int vector_ = (batch)*TILE_VECTORS + min(u * TEAM + lane, TILE_VECTORS - 1); \
        EACH(j, JOBS) next[u][j] = ((const __global uint4 *)from[j])[min(vector_, vectors - 1)]; \
    }
    const int vectors = units / (BLOCK_ELEMENTS / UNIT) * BLOCK_BYTES / 16;
#else
#define LOAD_BATCH(batch) \
    EACH(u, UNROLL) \
    { \
        const int unit_ = min(((batch)*UNROLL + u) * TEAM + lane, units - 1); \
        EACH(j, JOBS) next[u][j] = LOAD_RAW(from[j], unit_); \
    }
#endif
    long job = (long)get_group_id(0) * (TEAMS * OUTPUTS);
    FIND_ROWS(job)
    LOAD_BATCH(0) /* in flight while x is normalized */
#ifdef NORM
    for (int r = 0; r < a.rows; r++) {
        const float2 found = statistics(x, a.x + r * a.x_down, &a, space);
        if (item == 0)
            stats[r] = found;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    stage_x(chunk, x, norm, norm_bias, stats, 0, &a);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (bool is_first = true; job < a.jobs; job += step, is_first = false) {
        float sum[JOBS][ROWS];
        EACH(j, JOBS)
        EACH(r, ROWS) sum[j][r] = 0;
        for (int batch = 0; batch < batches; batch++) {
            const int begin = batch * BATCH % (CHUNK / UNIT);
#ifdef STAGED
            if (!(is_first && batch == 0))
                barrier(CLK_LOCAL_MEM_FENCE);
            EACH(u, TILE_EACH)
            EACH(j, JOBS)
            if (u * TEAM + lane < TILE_VECTORS)
                tile[team * JOBS + j][u * TEAM + lane] = next[u][j];
#else
            A_BATCH(now);
            EACH(u, UNROLL)
            EACH(j, JOBS) now[u][j] = next[u][j];
#endif
            if (batch + 1 < batches) {
                LOAD_BATCH(batch + 1)
            } else if (job + step < a.jobs) {
                FIND_ROWS(job + step)
                LOAD_BATCH(0)
            }
            if (begin == 0 && a.in > CHUNK && !(is_first && batch == 0)) {
#ifndef STAGED
                barrier(CLK_LOCAL_MEM_FENCE);
#endif
                stage_x(chunk, x, norm, norm_bias, stats, batch * BATCH * UNIT, &a);
#ifndef STAGED
                barrier(CLK_LOCAL_MEM_FENCE);
#endif
            }
#ifdef STAGED
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int unit = lane; unit < min(BATCH, units - batch * BATCH); unit += TEAM) {
                raw now[JOBS];
                EACH(j, JOBS) now[j] = LOAD_RAW(tile[team * JOBS + j], unit);
                add_units(now, unit, chunk, sum);
            }
#else
            EACH(u, UNROLL)
            {
                const int unit = u * TEAM + lane;
                if (batch * BATCH + unit < units)
                    add_units(now[u], begin + unit, chunk, sum);
            }
#endif
        }
        for (int pass = 0; pass < OUTPUTS; pass += PASS, buffer = (buffer + 1) % BUFFERS) {
            if (BUFFERS == 1)
                barrier(CLK_LOCAL_MEM_FENCE);
            EACH(j, JOBS)
            EACH(r, ROWS)
            if (j % OUTPUTS / PASS * PASS == pass)
                sums[buffer][j / OUTPUTS * PASS + j % PASS][team * ROWS + r][lane] = sum[j][r];
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int at = item; at < TEAMS * PASS * ROWS; at += GROUP) {
                const int r = at % ROWS, output = at / ROWS % PASS, of = at / ROWS / PASS;
                long row = job + of * OUTPUTS + pass + output;
                if (row >= a.jobs || r >= a.rows)
                    continue;
                const int which = weight_of_job(&a, &row);
                float value = sum_of(sums[buffer][output][of * ROWS + r]);
#ifdef GATED
                const float second = sum_of(sums[buffer][PASS + output][of * ROWS + r]);
                value = activate(value, a.act) * second;
#else
#ifdef BIAS
                const __global void *bias = OF_WEIGHT(bias, which);
                if (bias)
                    value += load_bias(bias, a.bias[which] + row * a.bias_step[which], a.bias_dtype[which]);
#endif
                value = activate(value, a.act) * a.scale;
                if (a.cap > 0)
                    value = a.cap * tanh(value / a.cap);
#ifdef RESIDUAL
                value += LOAD(T, residual, a.sum + r * a.sum_down + row);
#endif
#endif
                STORE(T, OF_WEIGHT(y, which), a.y[which] + r * a.y_down[which] + row, value);
            }
        }
    }
}

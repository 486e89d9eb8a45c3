/* decode_attention.cl: attention of one token per sequence: rotates its queries and key (RoPE), appends key and value
 * to the KV cache, and attends to all keys. A work-group computes a query head, or a split of its keys; `merge`
 * joins splits.
 *
 * Keys are processed TILE at a time. LANES work-items share a key, with eight elements each and AHEAD keys in flight;
 * their partial products are added in local memory. Then the weights relative to the running max are computed, and the
 * same work-items add the weighted values. All sums run in a fixed order. The token's own key and value are in local
 * memory: every work-group computes them, and one writes them to the cache.
 *
 * Options: T, dtype of q, k, v and y; T_KV of the cache, with QUANTIZED u8 with scales; T_POSITION; DEPTH, elements of
 * a head, a multiple of eight; GROUP; TILE; SPLIT: results are partial; SOFTCAP. */

#include "backends/opencl/common/round.cl"
#include "backends/opencl/common/vec4.cl"

#define LANES (DEPTH / 8)
#define SLOTS (GROUP / LANES) /* keys at a time */
#define KV_GROUP 32           /* elements that share a scale in the quantized cache */
#define ZERO 128
#define MAX_PAIRS 64
#define PARTIAL (DEPTH + 2)                    /* floats of a split: weighted values, running maximum, sum of weights */
#define OWN_EACH ((DEPTH + GROUP - 1) / GROUP) /* elements of the token per work-item */
#define AHEAD 8                                /* rows of a work-item in flight */
#ifdef IS_CPU                                  /* PoCL takes minutes over unrolled loops */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif

/* decode_args of decode_attention.c, passed by value: offsets and strides in elements. */
typedef struct decode_args {
    long q, k, v, y, key, value, key_scale, value_scale, position;
    long q_stride[2], k_stride[2], v_stride[2], y_stride[2]; /* along batch and head */
    long cache_stride[3], scale_stride[3];                   /* along batch, head and key */
    long position_stride, capacity, window, partial;
    int heads, group, pairs, is_interleaved, splits, split_keys;
    float scale, cap, magnitude;
} decode_args;

/* In turns per position, each a sum of two floats. */
typedef struct frequencies {
    float2 at[MAX_PAIRS];
} frequencies;

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Eight elements of a cache row as loaded, to keep several in flight; and as floats. */
#if defined(QUANTIZED)
typedef struct loaded {
    uchar8 q;
    ushort scale;
} loaded;
loaded load_kv(const __global void *rows, long at, const __global void *scales, long scale_at, int d)
{
    loaded x;
    x.q = *(const __global uchar8 *)((const __global uchar *)rows + at + d);
    x.scale = ((const __global ushort *)scales)[scale_at + d / KV_GROUP];
    return x;
}
float8 floats_of(loaded x)
{
    return (convert_float8(x.q) - (float)ZERO) * vload_half(0, (const half *)&x.scale);
}
#else
#define LOADED(T) JOIN(loaded_, T)
typedef float8 loaded_f32;
typedef ushort8 loaded_bf16;
typedef ushort8 loaded_f16;
typedef LOADED(T_KV) loaded;
float8 load_8_f32(const __global f32 *p)
{
    return (float8)(LOAD_4(f32, p, 0), LOAD_4(f32, p, 4));
}
ushort8 load_8_bf16(const __global bf16 *p)
{
    return *(const __global ushort8 *)p;
}
#define load_8_f16 load_8_bf16
float8 floats_f32(float8 x)
{
    return x;
}
float8 floats_bf16(ushort8 x)
{
    return as_float8(convert_uint8(x) << 16);
}
float8 floats_f16(ushort8 x)
{
    return vload_half8(0, (const half *)&x);
}
#define load_kv(rows, at, scales, scale_at, d) JOIN(load_8_, T_KV)((const __global T_KV *)(rows) + (at) + (d))
#define floats_of(x) JOIN(floats_, T_KV)(x)
#endif

float dot_8(float8 a, float8 b)
{
    const float8 p = a * b;
    const float4 q = p.lo + p.hi;
    return (q.x + q.y) + (q.z + q.w);
}

/* ---- reductions over the work-group ------------------------------------------------------------------------------ */

#define ROOT 16
#define OVER_GROUP(name, FIRST, COMBINE) \
    float name(float x, __local float *space) \
    { \
        const int item = (int)get_local_id(0); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        space[item] = x; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        x = FIRST; \
        if (item < ROOT) { \
            for (int i = item; i < GROUP; i += ROOT) \
                x = COMBINE(x, space[i]); \
            space[GROUP + item] = x; \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        x = FIRST; \
        for (int i = 0; i < ROOT; i++) \
            x = COMBINE(x, space[GROUP + i]); \
        return x; \
    }
#define PLUS(a, b) ((a) + (b))
OVER_GROUP(group_sum, 0, PLUS)
OVER_GROUP(group_max, -INF_F, fmax)

/* ---- the token --------------------------------------------------------------------------------------------------- */

/* x / 127, correctly rounded, and 1 / x by Newton steps, as in kv_q8.cl. */
float div_127(float x)
{
    const float part = 0x1.020408p-7f, estimate = x * part;
    return fma(fma(-127.0f, estimate, x), part, estimate);
}
float inverse_of(float x)
{
    float y = x != 0 ? 1 / x : 0;
    y = fma(fma(-x, y, 1.0f), y, y);
    y = fma(fma(-x, y, 1.0f), y, y);
    return isfinite(y) ? y : 0;
}

/* Rounds elements [first, end) of a row as the cache stores them, and stores them if `to` is not NULL. */
#ifdef QUANTIZED
void store_row(__local float *row, int first, int end, __global void *to, long at, __global void *scales, long scale_at)
{
    uint max_bits = 0;
    for (int d = first; d < end; d++)
        max_bits = max(max_bits, as_uint(row[d]) & 0x7fffffffu);
    const float scale = div_127(as_float(max_bits)), inverse = inverse_of(scale), stored = round_f16(scale);
    const bool is_finite = isfinite(scale);
    for (int d = first; d < end; d++) {
        const int q = is_finite ? ZERO + (int)round(row[d] * inverse) : ZERO;
        row[d] = (float)(q - ZERO) * stored;
        if (to)
            STORE(u8, to, at + d, q);
    }
    if (to)
        STORE(f16, scales, scale_at + first / KV_GROUP, scale);
}
#define STORED_EACH KV_GROUP
#else
void store_row(__local float *row, int first, int end, __global void *to, long at, __global void *scales, long scale_at)
{
    for (int d = first; d < end; d++) {
        row[d] = ROUND(T_KV, row[d]);
        if (to)
            STORE(T_KV, to, at + d, row[d]);
    }
}
#define STORED_EACH 1
#endif

/* The element that d is rotated with; *pair becomes the index of their angle. */
int partner_of(int d, const decode_args *a, int *pair)
{
    *pair = a->is_interleaved ? d / 2 : d < a->pairs ? d : d - a->pairs;
    return a->is_interleaved ? d ^ 1 : d < a->pairs ? d + a->pairs : d - a->pairs;
}

/* Element d of a head of the token, and its partner, as loaded: long before the angles are known. */
float2 load_pair(const __global void *x, long from, int d, const decode_args *a)
{
    int pair;
    return (float2)(LOAD(T, x, from + d), d < 2 * a->pairs ? LOAD(T, x, from + partner_of(d, a, &pair)) : 0);
}

/* Rotated, and rounded as a tensor would be. */
float rotated(float2 x, int d, const __local float2 *angle, const decode_args *a)
{
    int pair;
    if (d >= 2 * a->pairs)
        return x.x;
    const int with = partner_of(d, a, &pair);
    const float y = x.y * angle[pair].y;
    return ROUND(T, x.x * angle[pair].x + (with > d ? -y : y));
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#ifndef MERGE
/* Grid: (splits · GROUP, heads, sequences). Bytes: keys and values, once per query head. */
__attribute__((reqd_work_group_size(GROUP, 1, 1))) __kernel void
attend(decode_args a, frequencies turns, const __global void *q, const __global void *k, const __global void *v,
       const __global void *position, __global void *key, __global void *value, __global void *key_scale,
       __global void *value_scale, __global void *y, FAULT_PARAMETERS)
{
    __local float space[GROUP + ROOT], query[DEPTH], own_key[DEPTH], own_value[DEPTH], weight[TILE];
    __local float2 angle[MAX_PAIRS];
    __local float partial[TILE * (LANES + 1) > GROUP * 8 ? TILE * (LANES + 1) : GROUP * 8];
    const int item = (int)get_local_id(0), slot = item / LANES, d = item % LANES * 8;
    const long split = get_group_id(0), head = get_global_id(1), batch = get_global_id(2), kv_head = head / a.group,
               at = LOAD(T_POSITION, position, a.position + batch * a.position_stride);
    const bool is_valid = at >= 0 && at < a.capacity;
    if (!is_valid && item == 0 && head == 0 && split == 0)
        report_fault(fault, at, a.capacity);
    const long begin = a.window > 0 && at >= a.window ? at + 1 - a.window : 0;
    const long first = begin + split * a.split_keys, end = !is_valid      ? first
                                                           : a.splits > 1 ? min(first + a.split_keys, at + 1)
                                                                          : at + 1;
    const bool has_own = first <= at && at < end;
    const long key_row = a.key + batch * a.cache_stride[0] + kv_head * a.cache_stride[1],
               value_row = a.value + batch * a.cache_stride[0] + kv_head * a.cache_stride[1],
               key_scales = a.key_scale + batch * a.scale_stride[0] + kv_head * a.scale_stride[1],
               value_scales = a.value_scale + batch * a.scale_stride[0] + kv_head * a.scale_stride[1];
    loaded ahead[AHEAD];
/* Loads this work-item's next rows of keys or values, from the tile's row i on; past the end any row. */
#define LOAD_ROWS(name, i) \
    if ((i) < cached && slot < SLOTS) { \
        EACH(u, AHEAD) \
        { \
            const long s_ = tile + min((i) + u * SLOTS, cached - 1); \
            ahead[u] = load_kv(name, name##_row + s_ * a.cache_stride[2], name##_scale, \
                               name##_scales + s_ * a.scale_stride[2], d); \
        } \
    }
    float2 own_q[OWN_EACH], own_k[OWN_EACH];
    float own_v[OWN_EACH];
    EACH(u, OWN_EACH)
    {
        const int i = item + u * GROUP;
        if (i < DEPTH) {
            own_q[u] = load_pair(q, a.q + batch * a.q_stride[0] + head * a.q_stride[1], i, &a);
            own_k[u] = load_pair(k, a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1], i, &a);
            own_v[u] = LOAD(T, v, a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1] + i);
        }
    }
    { /* in flight while the token is rotated */
        const long tile = first;
        const int cached = (int)min(min(end, at) - first, (long)TILE);
        LOAD_ROWS(key, slot)
    }
    /* the angle is the fractional part of the turns */
    for (int i = item; i < a.pairs; i += GROUP) {
        const float p = (float)at, high = p * turns.at[i].x, low = fma(p, turns.at[i].x, -high) + p * turns.at[i].y,
                    turn = 2 * ((high - rint(high)) + low);
        angle[i] = (float2)(a.magnitude * cospi(turn), a.magnitude * sinpi(turn));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(u, OWN_EACH)
    {
        const int i = item + u * GROUP;
        if (i < DEPTH) {
            query[i] = rotated(own_q[u], i, angle, &a) * a.scale;
            own_key[i] = rotated(own_k[u], i, angle, &a);
            own_value[i] = own_v[u];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (has_own) {
        const bool is_writer = head % a.group == 0;
        for (int i = item * STORED_EACH; i < DEPTH; i += GROUP * STORED_EACH) {
            const int stop = min(i + STORED_EACH, DEPTH);
            store_row(own_key, i, stop, is_writer ? key : 0, key_row + at * a.cache_stride[2], key_scale,
                      key_scales + at * a.scale_stride[2]);
            store_row(own_value, i, stop, is_writer ? value : 0, value_row + at * a.cache_stride[2], value_scale,
                      value_scales + at * a.scale_stride[2]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float running_max = -INF_F, total = 0;
    float8 sum = 0, own = 0;
    if (slot < SLOTS)
        own = vload8(0, query + d);
    for (long tile = first; tile < end; tile += TILE) {
        const int keys = (int)min(end - tile, (long)TILE), cached = keys - (has_own && tile + keys == end);
        if (tile > first) {
            LOAD_ROWS(key, slot)
        }
        for (int i = slot; i < cached && slot < SLOTS; i += SLOTS * AHEAD) {
            EACH(u, AHEAD)
            if (i + u * SLOTS < cached)
                partial[(i + u * SLOTS) * (LANES + 1) + d / 8] = dot_8(own, floats_of(ahead[u]));
            LOAD_ROWS(key, i + SLOTS * AHEAD)
        }
        LOAD_ROWS(value, slot) /* in flight while the weights are computed */
        if (cached < keys && slot == 0)
            partial[cached * (LANES + 1) + d / 8] = dot_8(own, vload8(0, own_key + d));
        barrier(CLK_LOCAL_MEM_FENCE);
        float largest = running_max;
        for (int i = item; i < keys; i += GROUP) {
            float score = 0;
            EACH(lane, LANES) score += partial[i * (LANES + 1) + lane];
#ifdef SOFTCAP
            score = a.cap * tanh(score / a.cap);
#endif
            weight[i] = score;
            largest = fmax(largest, score);
        }
        largest = group_max(largest, space);
        const float rescale = running_max == largest  ? 1
                              : running_max == -INF_F ? 0
                                                      : exp(running_max - largest),
                    shift = largest == -INF_F ? 0 : largest;
        running_max = largest;
        float part = 0;
        for (int i = item; i < keys; i += GROUP) {
            weight[i] = exp(weight[i] - shift);
            part += weight[i];
        }
        total = total * rescale + group_sum(part, space); /* its barriers make the weights visible */
        sum *= rescale;
        for (int i = slot; i < cached && slot < SLOTS; i += SLOTS * AHEAD) {
            EACH(u, AHEAD)
            if (i + u * SLOTS < cached)
                sum += weight[i + u * SLOTS] * floats_of(ahead[u]);
            LOAD_ROWS(value, i + SLOTS * AHEAD)
        }
        if (cached < keys && slot == 0)
            sum += weight[cached] * vload8(0, own_value + d);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (slot < SLOTS)
        vstore8(sum, item, partial);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < DEPTH; i += GROUP) {
        float all = 0;
        for (int s = 0; s < SLOTS; s++)
            all += partial[s * DEPTH + i];
#ifdef SPLIT
        STORE(f32, y, a.partial + ((batch * a.heads + head) * a.splits + split) * PARTIAL + i, all);
#else
        STORE(T, y, a.y + batch * a.y_stride[0] + head * a.y_stride[1] + i, total == 0 ? 0 : all / total);
#endif
    }
#ifdef SPLIT
    if (item == 0) {
        const long to = a.partial + ((batch * a.heads + head) * a.splits + split) * PARTIAL + DEPTH;
        STORE(f32, y, to, running_max);
        STORE(f32, y, to + 1, total);
    }
#endif
}

#else

/* Grid: (DEPTH, heads, sequences): an element of the result per work-item, from all splits in order. */
__kernel void merge(decode_args a, const __global void *partial, __global void *y)
{
    const long d = get_global_id(0), head = get_global_id(1), batch = get_global_id(2),
               from = a.partial + (batch * a.heads + head) * a.splits * PARTIAL;
    float largest = -INF_F, total = 0, sum = 0;
    if (d >= DEPTH)
        return;
    for (int s = 0; s < a.splits; s++)
        largest = fmax(largest, LOAD(f32, partial, from + s * PARTIAL + DEPTH));
    for (int s = 0; s < a.splits && largest != -INF_F; s++) {
        const float own = LOAD(f32, partial, from + s * PARTIAL + DEPTH),
                    factor = own == -INF_F ? 0 : exp(own - largest);
        total += factor * LOAD(f32, partial, from + s * PARTIAL + DEPTH + 1);
        sum += factor * LOAD(f32, partial, from + s * PARTIAL + d);
    }
    STORE(T, y, a.y + batch * a.y_stride[0] + head * a.y_stride[1] + d, total == 0 ? 0 : sum / total);
}
#endif

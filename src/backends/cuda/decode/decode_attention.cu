/* decode_attention.cu: the token of a decoding step attends to a cache: its query and key are turned by its position,
 * key and value join the cache, and the query looks at all that is there, in the cache's own dtype.
 *
 * A block has some keys of one head, and up to HEADS queries that look at it. 8 elements of a key have a lane, a key
 * some neighbouring lanes, which keep largest, sum and values of their own keys; lanes, warps and blocks are put
 * together in order. The block that comes to its end last adds up those of all blocks. How keys are shared out depends
 * on their number alone, not on the room that there is. */
#include "backends/cuda/decode/decode_attention.cuh"

#define AHEAD 2 /* keys of a lane whose loads are under way */
#define SHORT_HEAD \
    64 /* elements: up to here a block has 64 keys at least, which its lanes ask for at once; beyond, 32 */

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* What some lanes have seen. */
struct seen {
    float most[HEADS], sum[HEADS], values[HEADS][8];
};

/* What weights relative to `most` are multiplied by to be relative to `larger_most`; 0 of what has seen nothing. */
__device__ __forceinline__ float fading(float most, float larger_most)
{
    return larger_most == -CUDART_INF_F ? 0 : exp2f(most - larger_most);
}

/* Where a lane's part of the keys of a block begins, in elements, and their scales; that of the values lies alike. */
template <typename S> struct lane_of_past {
    int64_t rows, scales;

    __device__ __forceinline__ lane_of_past(const next_args &a, int64_t batch, int64_t head, int64_t first, int d)
    {
        rows = batch * a.key.stride[0] + head * a.key.stride[1] + first * a.key.stride[2] + d;
        scales = sizeof(S) == 1 ? batch * a.key.scale_stride[0] + head * a.key.scale_stride[1] +
                                      first * a.key.scale_stride[2] + d / TARN__KV_Q8_GROUP
                                : 0;
    }
};

/* Keys and values of a lane that are under way. */
template <typename S> struct under_way {
    eight<S> key[AHEAD], value[AHEAD];
    uint32_t key_scale[AHEAD], value_scale[AHEAD]; /* bits of f16 */

    /* From key `first` on, `step` apart; those before `end`. */
    __device__ __forceinline__ void ask(const next_args &a, const lane_of_past<S> &past, int first, int step, int end)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t at = first + i * step;
            key[i] = eight<S>{}, value[i] = eight<S>{};
            key_scale[i] = value_scale[i] = 0;
            if (at >= end)
                continue;
            const int64_t row = (past.rows + at * a.key.stride[2]) * (int64_t)sizeof(S),
                          scale = past.scales + at * a.key.scale_stride[2];
            key[i].load(a.key.base + row);
            value[i].load(a.value.base + row);
            if (sizeof(S) == 1) {
                key_scale[i] = ((const uint16_t *)a.key.scale)[scale];
                value_scale[i] = ((const uint16_t *)a.value.scale)[scale];
            }
        }
    }
};

/* Adds the keys under way that come before `end`, of which number `own` is the token's; `lanes` have one key. */
template <typename S, int ROOM>
__device__ __forceinline__ void look_at(const under_way<S> &u, const token_space<ROOM> &t, const float (*query)[8],
                                        int first, int step, int end, int own, int d, int depth, int lanes, seen *s)
{
    float score[AHEAD][HEADS], values[AHEAD][8];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        float keys[8];
        u.key[i].open(scale_of((uint16_t)u.key_scale[i]), keys);
        u.value[i].open(scale_of((uint16_t)u.value_scale[i]), values[i]);
        if (first + i * step == own && d < depth) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                keys[e] = t.key[d + e], values[i][e] = t.value[d + e];
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum += query[h][e] * keys[e];
            score[i][h] = sum;
        }
    }
#pragma unroll
    for (int width = WARP / 2; width > 0; width /= 2)
        if (width < lanes)
#pragma unroll
            for (int k = 0; k < AHEAD * HEADS; k++)
                score[k / HEADS][k % HEADS] += __shfl_xor_sync(FULL_WARP, score[k / HEADS][k % HEADS], width);
#pragma unroll
    for (int k = 0; k < AHEAD * HEADS; k++)
        score[k / HEADS][k % HEADS] = first + k / HEADS * step < end ? score[k / HEADS][k % HEADS] : -CUDART_INF_F;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float most = s->most[h], weight[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            most = fmaxf(most, score[i][h]);
        float fade = fading(s->most[h], most);
        s->sum[h] *= fade;
        s->most[h] = most;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            weight[i] = score[i][h] == -CUDART_INF_F ? 0 : exp2f(score[i][h] - most);
            s->sum[h] += weight[i];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float value = s->values[h][e] * fade;
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                value += weight[i] * values[i][e];
            s->values[h][e] = value;
        }
    }
}

/* Puts together what the lanes of a warp have seen, each `lanes` of them keys of their own. */
__device__ __forceinline__ void join_lanes(seen *s, int lanes)
{
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        if (step < lanes)
            continue;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float other = __shfl_xor_sync(FULL_WARP, s->most[h], step), most = fmaxf(s->most[h], other);
            float mine = fading(s->most[h], most), theirs = fading(other, most);
            s->sum[h] = s->sum[h] * mine + __shfl_xor_sync(FULL_WARP, s->sum[h], step) * theirs;
            s->most[h] = most;
#pragma unroll
            for (int e = 0; e < 8; e++)
                s->values[h][e] = s->values[h][e] * mine + __shfl_xor_sync(FULL_WARP, s->values[h][e], step) * theirs;
        }
    }
}

/* ---- putting together -------------------------------------------------------------------------------------------- */

/* From memory that other blocks have written, past the first-level cache; or from shared memory. */
template <bool is_shared> __device__ __forceinline__ float read(const float *from)
{
    return is_shared ? *from : __ldcg(from);
}

/* Element d of `count` rows of values, largest and sum, which lie `step` apart, in order; some of them are asked for at
 * a time. */
template <bool is_shared>
__device__ __forceinline__ float join_rows(const float *rows, int count, int64_t step, int d, int depth,
                                           float *most_of_all, float *sum_of_all)
{
    enum { at_once = is_shared ? NEXT_WARPS : 16 };
    float most = -CUDART_INF_F, sum = 0, value = 0;
    for (int begin = 0; begin < count; begin += at_once) {
        float mosts[at_once], sums[at_once], values[at_once], larger = most;
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            const float *row = rows + (begin + i) * step;
            const bool is_there = begin + i < count;
            mosts[i] = is_there ? read<is_shared>(row + depth) : -CUDART_INF_F;
            sums[i] = is_there ? read<is_shared>(row + depth + 1) : 0;
            values[i] = is_there ? read<is_shared>(row + d) : 0;
        }
#pragma unroll
        for (int i = 0; i < at_once; i++)
            larger = fmaxf(larger, mosts[i]);
        float fade = fading(most, larger);
        sum *= fade, value *= fade;
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            float factor = fading(mosts[i], larger);
            sum += sums[i] * factor;
            value += values[i] * factor;
        }
        most = larger;
    }
    *most_of_all = most;
    *sum_of_all = sum;
    return value;
}

__device__ __forceinline__ void write_value(const next_args &a, int64_t batch, int head, int d, float value, float sum)
{
    /* scores that are all -infinity: 0 */
    store_float(a.y, a.dtype, batch * a.y_stride[0] + head * a.y_stride[1] + d, sum == 0 ? 0 : value / sum);
}

/* Heads of DEPTH elements, or of any number if that is 0. */
template <typename S, int DEPTH>
static __global__ void __launch_bounds__(NEXT_WARPS *WARP, 2) next_kernel(const __grid_constant__ next_args a)
{
    enum { room = DEPTH ? DEPTH : MOST_DEPTH };
    __shared__ token_space<room> token;
    __shared__ float joined[NEXT_WARPS][HEADS][room + 2];
    const int depth = DEPTH ? DEPTH : a.depth;
    const int64_t batch = blockIdx.z, head = blockIdx.y / a.parts,
                  at = index_at(a.begin, a.are_long, batch * a.begin_stride);
    const int part = blockIdx.y % a.parts, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int lanes = 1, shift = depth <= SHORT_HEAD ? 6 : 5;
    call_next();
    if (at < 0 || at >= a.reach) {
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            report_fault(a.fault, at, a.reach);
        wait_for_front();
        return;
    }
#pragma unroll
    for (int i = 0; i < 5; i++)
        lanes = lanes * 8 < depth ? lanes * 2 : lanes;
    while (at >> shift >= MOST_SPLITS)
        shift++;
    const int splits = (int)(at >> shift) + 1, d = lane % lanes * 8, step = NEXT_WARPS * (WARP / lanes);
    if ((int)blockIdx.x >= splits)
        return;
    const bool is_last = (int)blockIdx.x == splits - 1;
    const int64_t first = (int64_t)blockIdx.x << shift;
    const int end = (int)min((int64_t)1 << shift, at + 1 - first), own = is_last ? end - 1 : -1,
              stored = d >= depth ? 0
                       : is_last  ? end - 1
                                  : end;
    const lane_of_past<S> past(a, batch, head, first, d);
    int key = warp * (WARP / lanes) + lane / lanes; /* the lane's next */
    under_way<S> ahead;
    ahead.ask(a, past, key, step, stored);
    make_angles(a, token, at);
    wait_for_front();
    token_part<S, room> mine;
    mine.ask(a, depth, batch, head, part, is_last);
    __syncthreads();
    mine.take(a, token, depth, batch, head, at, is_last, part == 0);
    __syncthreads();
    float query[HEADS][8];
    seen s;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s.most[h] = -CUDART_INF_F, s.sum[h] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            query[h][e] = d < depth ? token.query[h][d + e] : 0;
            s.values[h][e] = 0;
        }
    }
    for (int base = 0; base < end; base += AHEAD * step, key += AHEAD * step) {
        look_at<S>(ahead, token, query, key, step, end, own, d, depth, lanes, &s);
        ahead.ask(a, past, key + AHEAD * step, step, stored);
    }
    join_lanes(&s, lanes);
    if (lane < lanes && d < depth)
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                joined[warp][h][d + e] = s.values[h][e];
            joined[warp][h][depth] = s.most[h], joined[warp][h][depth + 1] = s.sum[h];
        }
    __syncthreads();
    const int queries = min(HEADS, a.group - part * HEADS), head_0 = (int)head * a.group + part * HEADS;
    float most, sum;
    for (int i = threadIdx.x; i < queries * depth; i += NEXT_WARPS * WARP) {
        int h = i / depth, e = i - h * depth;
        float value = join_rows<true>(&joined[0][h][0], NEXT_WARPS, HEADS * (room + 2), e, depth, &most, &sum);
        if (splits == 1) {
            write_value(a, batch, head_0 + h, e, value, sum);
            continue;
        }
        float *to = a.partial + ((batch * a.heads + head_0 + h) * MOST_SPLITS + blockIdx.x) * (depth + 2);
        to[e] = value;
        if (e == 0)
            to[depth] = most, to[depth + 1] = sum;
    }
    if (splits == 1 || !is_last_of(&a.counters[batch * gridDim.y + blockIdx.y], splits))
        return;
    for (int i = threadIdx.x; i < queries * depth; i += NEXT_WARPS * WARP) {
        int h = i / depth, e = i - h * depth;
        const float *from = a.partial + (batch * a.heads + head_0 + h) * MOST_SPLITS * (depth + 2);
        float value = join_rows<false>(from, splits, depth + 2, e, depth, &most, &sum);
        write_value(a, batch, head_0 + h, e, value, sum);
    }
}

/* ---- starting it ------------------------------------------------------------------------------------------------- */

static fresh fresh_of(const tarn__view *view)
{
    return fresh{tarn__view_at(view), {view->stride[0], view->stride[2]}};
}

static stored stored_of(const tarn__view *rows, const tarn__view *scale)
{
    stored s = {};
    s.base = (char *)tarn__view_at(rows);
    s.scale = data_of<f16>(scale);
    for (int i = 0; i < 3; i++) {
        s.stride[i] = rows->stride[i];
        s.scale_stride[i] = scale ? scale->stride[i] : 0;
    }
    return s;
}

static next_args next_of(const tarn__call *call)
{
    const tarn__attention_decode *params = (const tarn__attention_decode *)call->params;
    const tarn__view *q = call->in[0], *begin = call->in[3], *y = call->out[0], *key = call->out[1];
    next_args a = {};
    a.q = fresh_of(q), a.k = fresh_of(call->in[1]), a.v = fresh_of(call->in[2]);
    a.key = stored_of(key, call->out[3]), a.value = stored_of(call->out[2], call->out[4]);
    a.y = tarn__view_at(y), a.y_stride[0] = y->stride[0], a.y_stride[1] = y->stride[2], a.dtype = q->dtype;
    a.begin = tarn__view_at(begin), a.are_long = begin->dtype == TARN_I64, a.begin_stride = begin->stride[0];
    a.reach = key->shape[2];
    a.heads = (int)q->shape[2], a.group = (int)(q->shape[2] / key->shape[1]), a.parts = (a.group + HEADS - 1) / HEADS,
    a.depth = (int)q->shape[3];
    a.pairs = (int)(params->rope.dims / 2), a.is_interleaved = params->rope.interleaved != 0;
    a.scale = (float)(params->scale * LOG2_E);
    a.partial = (float *)call->scratch;
    a.counters = tarn__cuda_at(call->device)->counters;
    a.fault = faults_of(call);
    for (int i = 0; i < a.pairs; i++)
        a.frequency[i] = params->rope.frequency[i] / (2 * CUDART_PI);
    return a;
}

static size_t scratch(const tarn__call *call)
{
    const int64_t *q = call->in[0]->shape;
    return (size_t)(q[0] * q[2] * MOST_SPLITS * (q[3] + 2)) * sizeof(float);
}

/* Grid: blocks of keys, heads of the cache or parts of the queries that look at them, sequences. Bytes: keys and
 * values, once for each part. */
template <typename S> static void launch(const tarn__call *call, const next_args &a)
{
    unsigned splits = blocks_for(a.reach, a.depth <= SHORT_HEAD ? 64 : 32);
    void (*kernel)(next_args) = a.depth == 64    ? next_kernel<S, 64>
                                : a.depth == 128 ? next_kernel<S, 128>
                                                 : next_kernel<S, 0>;
    launch_step(call, kernel,
                dim3(splits < MOST_SPLITS ? splits : MOST_SPLITS, (unsigned)(a.heads / a.group * a.parts),
                     (unsigned)call->in[0]->shape[0]),
                NEXT_WARPS * WARP, 0, a);
}

static void kernel_attention_next(const tarn__call *call)
{
    if (tarn__view_count(call->in[0]) == 0)
        return;
    next_args a = next_of(call);
    switch (call->out[1]->dtype) {
    case TARN_F32: launch<float>(call, a); break;
    case TARN_BF16: launch<bf16>(call, a); break;
    case TARN_F16: launch<f16>(call, a); break;
    default: launch<uint8_t>(call, a); break;
    }
}

void tarn__cuda_decode_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention_decode] = tarn__kernel_row{
        kernel_attention_next, TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BIT(TARN_U8),
        scratch};
}

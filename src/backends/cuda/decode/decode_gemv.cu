/* decode_gemv.cu: products of a few rows of x, as decoding has them: bound by the weights' bytes. A norm of x before,
 * and a sum or a gate after them, are part of the kernel.
 *
 * A warp makes an element of y, or after another some of them. Pieces of the weight's row go to a ring in the warp's
 * own shared memory, as many ahead as it has places for; all blocks together have megabytes under way, and go on asking
 * while they compute. x stands in the block's shared memory, as f32 for weights of floats, else rounded to bytes: see
 * decode_x.cuh. Sums are added in an order given by the shape. */
#include "backends/cuda/decode/decode_gemv.cuh"

#define OWN_SHARED \
    1024 /* bytes, at most, of what the kernel has beside rings and rows: the limit is that of all together */
#define ROWS_AT_ONCE 4 /* of x, where there are several */

/* ---- pieces of weights ------------------------------------------------------------------------------------------- */

/* Elements of a piece, its bytes, and places of the ring. A place has room for a row that begins anywhere within 16
 * bytes, and for reading behind it. */
template <tarn_dtype Q> struct piece_of;
template <> struct piece_of<TARN_F32> {
    enum { elements = 512, bytes = 2048, place = 2048, places = 2, is_bytes = 0 };
};
template <> struct piece_of<TARN_BF16> {
    enum { elements = 1024, bytes = 2048, place = 2048, places = 2, is_bytes = 0 };
};
template <> struct piece_of<TARN_F16> {
    enum { elements = 1024, bytes = 2048, place = 2048, places = 2, is_bytes = 0 };
};
template <> struct piece_of<TARN_Q8_0> {
    enum { elements = 2048, bytes = 64 * 34, place = bytes + 32, places = 2, is_bytes = 1 };
};
template <> struct piece_of<TARN_Q4_0> {
    enum { elements = 2048, bytes = 64 * 18, place = bytes + 32, places = 3, is_bytes = 1 };
};
template <> struct piece_of<TARN_Q4_K> {
    enum { elements = 2048, bytes = 8 * 144, place = bytes, places = 3, is_bytes = 1 };
};
template <> struct piece_of<TARN_Q6_K> {
    enum { elements = 2048, bytes = 8 * 210, place = bytes + 32, places = 2, is_bytes = 1 };
};

/* Where a warp is: an element of y, or the two rows that make one; which of the two; which piece. */
struct cursor {
    int64_t job;
    int half, piece;
};

__device__ __forceinline__ void advance(const step_args &a, cursor &c)
{
    if (++c.piece < a.pieces)
        return;
    c.piece = 0;
    if (++c.half <= a.is_gated)
        return;
    c.half = 0;
    c.job += (int64_t)gridDim.x * STEP_WARPS;
}

/* The weight that a job's row is of; and the row's number there. */
__device__ __forceinline__ int weight_of_job(const step_args &a, const cursor &c, int64_t *row)
{
    int which = c.half;
    *row = c.job;
    if (!a.is_gated)
        while (which < 2 && *row >= a.weight[which].out)
            *row -= a.weight[which++].out;
    return which;
}

/* What a warp asks for next, and where that begins. */
struct asking {
    cursor c;
    const char *from;

    __device__ __forceinline__ void find_row(const step_args &a)
    {
        int64_t row;
        int which = weight_of_job(a, c, &row);
        if (c.job < a.jobs)
            from = a.weight[which].base + row * a.weight[which].pitch;
    }
    /* Asks for a piece, if there is one, and goes on; bytes before its begin that share its first 16 come along. The
     * group of copies ends in any case. */
    template <tarn_dtype Q> __device__ __forceinline__ void ask(const step_args &a, char *place)
    {
        if (c.job < a.jobs) {
            const int shift = piece_of<Q>::is_bytes ? (int)((uintptr_t)from & 15) : 0, at = threadIdx.x % WARP * 16;
            const int left =
                min((int)a.row_bytes - c.piece * (int)piece_of<Q>::bytes, (int)piece_of<Q>::bytes) + shift - at;
            const char *first = from - shift + at;
#pragma unroll
            for (int i = 0; i < piece_of<Q>::place; i += WARP * 16)
                if (i < left)
                    copy_pack(place + at + i, first + i, piece_of<Q>::is_bytes ? min(left - i, 16) : 16);
            from += piece_of<Q>::bytes;
            advance(a, c);
            if (c.piece == 0)
                find_row(a);
        }
        end_copies();
    }
};

/* ---- products ---------------------------------------------------------------------------------------------------- */

template <typename T> __device__ __forceinline__ void open_pack(const char *from, float *w);
template <> __device__ __forceinline__ void open_pack<bf16>(const char *from, float *w)
{
    widen_pack(*(const pack<bf16, 8> *)from, w);
}
template <> __device__ __forceinline__ void open_pack<f16>(const char *from, float *w)
{
    widen_pack(*(const pack<f16, 8> *)from, w);
}

/* Adds the products of a piece of 16-bit floats, from group `first` of x on. */
template <typename T, int R>
__device__ __forceinline__ void add_short(const char *piece, int bytes, const held_x &x, int first, float *sums)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int pack = threadIdx.x % WARP + i * WARP;
        if (pack * 16 >= bytes)
            return;
        float w[8];
        open_pack<T>(piece + pack * 16, w);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 low = x.floats(r, first + pack, 0), high = x.floats(r, first + pack, 1);
            sums[r] += w[0] * low.x + w[1] * low.y + w[2] * low.z + w[3] * low.w +
                       (w[4] * high.x + w[5] * high.y + w[6] * high.z + w[7] * high.w);
        }
    }
}

template <int R>
__device__ __forceinline__ void add_f32(const char *piece, int bytes, const held_x &x, int first, float *sums)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int pack = threadIdx.x % WARP + i * WARP;
        if (pack * 16 >= bytes)
            return;
        float4 w = *(const float4 *)(piece + pack * 16);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 v = x.floats(r, first + pack / 2, pack % 2);
            sums[r] += w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w;
        }
    }
}

__device__ __forceinline__ int dot_16(const int *q, const int4 &x)
{
    return __dp4a(q[0], x.x, __dp4a(q[1], x.y, __dp4a(q[2], x.z, __dp4a(q[3], x.w, 0))));
}

/* Two groups of 32 share their bytes: a lane has both. Pieces of Q4_K lie at 16 bytes' alignment. */
template <int R>
__device__ __forceinline__ void add_q4_k(const char *piece, int units, const held_x &x, int first, float *sums)
{
    int pair = threadIdx.x % WARP;
    if (pair * 2 >= units)
        return;
    const tarn__q4_k *block = (const tarn__q4_k *)piece + pair / 4;
    const uint4 *from = (const uint4 *)(block->q + pair % 4 * 32);
    uint4 a = from[0], b = from[1];
    uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float scale = scale_of(block->scale), least = scale_of(block->least);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int q[8], of_group, least_of_group, unit = first + pair * 2 + k;
#pragma unroll
        for (int i = 0; i < 8; i++)
            q[i] = (int)(words[i] >> k * 4 & 0x0f0f0f0fu);
        q4_k_scales(block->scales, pair % 4 * 2 + k, &of_group, &least_of_group);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float2 of_x = x.scale(r, unit);
            int sum = dot_16(q, x.bytes(r, unit, 0)) + dot_16(q + 4, x.bytes(r, unit, 1));
            sums[r] += scale * (float)of_group * of_x.x * (float)sum - least * (float)least_of_group * of_x.y;
        }
    }
}

/* A unit of 32 elements a lane. The two groups of a unit have scales of their own in Q6_K alone. */
template <tarn_dtype Q, int R>
__device__ __forceinline__ void add_units(const char *piece, int units, const held_x &x, int first, float *sums)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = threadIdx.x % WARP + i * WARP;
        if (at >= units)
            return;
        unit_of_weight w = open_unit<Q>(piece, at);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float2 of_x = x.scale(r, first + at);
            int one = dot_16(w.q, x.bytes(r, first + at, 0)), two = dot_16(w.q + 4, x.bytes(r, first + at, 1));
            if (Q == TARN_Q6_K) {
                int2 sum = x.sums(r, first + at);
                sums[r] += of_x.x * (w.scale[0] * (float)(one - 32 * sum.x) + w.scale[1] * (float)(two - 32 * sum.y));
            } else {
                sums[r] += w.scale[0] * of_x.x * (float)(one + two) - (Q == TARN_Q4_0 ? w.least[0] * of_x.y : 0);
            }
        }
    }
}

/* Adds the products of a piece with R rows of x. */
template <tarn_dtype Q, int R>
__device__ __forceinline__ void add_piece(const step_args &a, const cursor &c, const char *place, const held_x &x,
                                          float *sums)
{
    int64_t row, skip = (int64_t)c.piece * piece_of<Q>::bytes;
    int which = weight_of_job(a, c, &row), bytes = (int)min(a.row_bytes - skip, (int64_t)piece_of<Q>::bytes);
    int left = min(a.x.in - c.piece * piece_of<Q>::elements, (int)piece_of<Q>::elements);
    if (Q == TARN_BF16)
        add_short<bf16, R>(place, bytes, x, c.piece * (piece_of<Q>::elements / 8), sums);
    else if (Q == TARN_F16)
        add_short<f16, R>(place, bytes, x, c.piece * (piece_of<Q>::elements / 8), sums);
    else if (Q == TARN_F32)
        add_f32<R>(place, bytes, x, c.piece * (piece_of<Q>::elements / 8), sums);
    else if (Q == TARN_Q4_K)
        add_q4_k<R>(place, left / UNIT, x, c.piece * (piece_of<Q>::elements / UNIT), sums);
    else if constexpr (piece_of<Q>::is_bytes)
        add_units<Q, R>(place + ((uintptr_t)(a.weight[which].base + row * a.weight[which].pitch + skip) & 15),
                        left / UNIT, x, c.piece * (piece_of<Q>::elements / UNIT), sums);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* A lane has one of the rows of x. */
__device__ __forceinline__ void ask_more(const step_args &a, const cursor &c, int64_t first, int rows, addition &more)
{
    int64_t row = c.job;
    int lane = threadIdx.x % WARP;
    if (c.job < a.jobs && lane < rows && !a.is_gated)
        more.ask(a, a.weight[weight_of_job(a, c, &row)], row, first + lane);
}

/* y of a job in all rows of x. */
template <int R>
__device__ __forceinline__ void write_job(const step_args &a, const cursor &c, int64_t first, int rows,
                                          const float *sums, const float *gates, const addition &more)
{
    int64_t row = c.job;
    const step_weight &w = a.weight[a.is_gated ? 0 : weight_of_job(a, c, &row)];
    int lane = threadIdx.x % WARP;
    float value = sums[0], gate = gates[0];
#pragma unroll
    for (int r = 1; r < R; r++) {
        value = lane == r ? sums[r] : value;
        gate = lane == r ? gates[r] : gate;
    }
    if (lane >= rows)
        return;
    if (a.is_gated)
        value *= gate / (1 + expf(-gate));
    else
        value = more.added_to(a, w, value);
    store_float(w.y, a.x.dtype, (first + lane) * w.y_down + row, value);
}

template <tarn_dtype Q> static __host__ __device__ __forceinline__ constexpr layout layout_of(void)
{
    return piece_of<Q>::is_bytes ? OF_UNITS : OF_FLOATS;
}

template <tarn_dtype Q, int R>
static __global__ void __launch_bounds__(STEP_WARPS *WARP, R == 1 ? BLOCKS_AT_ONCE : 1)
    step_kernel(const __grid_constant__ step_args a)
{
    extern __shared__ __align__(16) char space[];
    enum { places = piece_of<Q>::places };
    const int64_t first = (int64_t)blockIdx.y * R;
    const int rows = (int)min(a.x.rows - first, (int64_t)R), warp = threadIdx.x / WARP;
    const held_x x = held_at(space + STEP_WARPS * places * piece_of<Q>::place, a.x.in, layout_of<Q>());
    char *ring = space + warp * places * piece_of<Q>::place;
    cursor now = {(int64_t)blockIdx.x * STEP_WARPS + warp, 0, 0};
    asking ahead = {now, NULL};
    call_next();
    ahead.find_row(a);
#pragma unroll 1
    for (int i = 0; i < places; i++)
        ahead.ask<Q>(a, ring + i * piece_of<Q>::place);
    expect_norm(a.x);
    wait_for_front();
    addition more = {};
    ask_more(a, now, first, rows, more);
    hold_rows<layout_of<Q>()>(a.x, first, rows, x);
    __syncthreads();
    float sums[R] = {}, gates[R] = {};
    for (int at = 0; now.job < a.jobs; at = at + 1 < places ? at + 1 : 0) {
        wait_for_copies<places - 1>();
        __syncwarp();
        add_piece<Q, R>(a, now, ring + at * piece_of<Q>::place, x, sums);
        __syncwarp();
        ahead.ask<Q>(a, ring + at * piece_of<Q>::place);
        if (now.piece + 1 == a.pieces) {
#pragma unroll
            for (int r = 0; r < R; r++)
                sums[r] = over_warp<add_up>(sums[r]);
            if (now.half == a.is_gated)
                write_job<R>(a, now, first, rows, sums, gates, more);
#pragma unroll
            for (int r = 0; r < R; r++)
                gates[r] = sums[r], sums[r] = 0;
        }
        advance(a, now);
        if (now.piece == 0 && now.half == 0)
            ask_more(a, now, first, rows, more);
    }
}

/* ---- starting it ------------------------------------------------------------------------------------------------- */

/* Grid: as many blocks as there is room for at once, or fewer, with the same number of jobs each; y: groups of rows of
 * x, for each of which the weights are read. Bytes: the weights'. */
template <tarn_dtype Q, int R> static void launch(const tarn__call *call, const step_args &a)
{
    size_t shared =
        (size_t)(STEP_WARPS * piece_of<Q>::places * piece_of<Q>::place + R * held_pitch(a.x.in, layout_of<Q>()));
    int at_once = 0;
    cudaFuncSetAttribute(step_kernel<Q, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, step_kernel<Q, R>, STEP_WARPS * WARP, shared);
    int64_t needed = (a.jobs + STEP_WARPS - 1) / STEP_WARPS,
            room = (int64_t)(at_once > 0 ? at_once : 1) * tarn__cuda_at(call->device)->multiprocessors;
    int64_t rounds = (needed + room - 1) / room;
    launch_step(call, step_kernel<Q, R>, dim3(blocks_for(needed, rounds), blocks_for(a.x.rows, R)), STEP_WARPS * WARP,
                shared, a);
}

/* Several rows of x share what is read of the weights, where their shared memory is enough. */
template <tarn_dtype Q> static void launch_rows(const tarn__call *call, step_args &a)
{
    a.row_bytes = tarn__bytes_of(Q, a.x.in);
    a.pieces = (a.x.in + piece_of<Q>::elements - 1) / piece_of<Q>::elements;
    int64_t shared = STEP_WARPS * piece_of<Q>::places * piece_of<Q>::place +
                     (int64_t)ROWS_AT_ONCE * held_pitch(a.x.in, layout_of<Q>());
    if (a.x.rows > 1 && shared + OWN_SHARED <= tarn__cuda_at(call->device)->shared_bytes)
        launch<Q, ROWS_AT_ONCE>(call, a);
    else
        launch<Q, 1>(call, a);
}

static void launch_dtype(const tarn__call *call, step_args &a, tarn_dtype dtype)
{
    if (a.jobs == 0 || a.x.rows == 0 || tarn__cuda_decode_gemv_quant(call, a, dtype))
        return;
    switch (dtype) {
    case TARN_F32: launch_rows<TARN_F32>(call, a); break;
    case TARN_BF16: launch_rows<TARN_BF16>(call, a); break;
    case TARN_F16: launch_rows<TARN_F16>(call, a); break;
    case TARN_Q8_0: launch_rows<TARN_Q8_0>(call, a); break;
    case TARN_Q4_0: launch_rows<TARN_Q4_0>(call, a); break;
    case TARN_Q4_K: launch_rows<TARN_Q4_K>(call, a); break;
    default: launch_rows<TARN_Q6_K>(call, a); break;
    }
}

static step_x x_of(const tarn__call *call, const tarn__view *norm)
{
    const tarn__view *x = call->in[0];
    return step_x{tarn__view_at(x),
                  x->dtype,
                  x->stride[0],
                  data_of<void>(norm),
                  (float)((const tarn__norm *)call->params)->epsilon,
                  (int)x->shape[1],
                  (int)x->shape[0]};
}

static step_weight weight_of(const tarn__view *weight, const tarn__view *bias, const tarn__view *y)
{
    step_weight w = {};
    int64_t down = weight->stride[0];
    w.base = (const char *)tarn__view_at(weight), w.out = weight->shape[0];
    w.pitch = down < 0 ? -tarn__bytes_of(weight->dtype, -down) : tarn__bytes_of(weight->dtype, down);
    if (bias)
        w.bias = tarn__view_at(bias), w.bias_dtype = bias->dtype, w.bias_across = bias->stride[0];
    if (y)
        w.y = tarn__view_at(y), w.y_down = y->stride[0];
    return w;
}

static void kernel_norm_linear(const tarn__call *call)
{
    step_args a = {};
    a.x = x_of(call, call->in[1]);
    for (int i = 0; i < 3 && call->in[2 + i]; i++) {
        a.weight[i] = weight_of(call->in[2 + i], call->in[5 + i], call->out[i]);
        a.jobs += a.weight[i].out;
    }
    launch_dtype(call, a, call->in[2]->dtype);
}

static void kernel_norm_gated(const tarn__call *call)
{
    step_args a = {};
    a.x = x_of(call, call->in[1]);
    a.weight[0] = weight_of(call->in[2], NULL, call->out[0]);
    a.weight[1] = weight_of(call->in[3], NULL, NULL);
    a.jobs = a.weight[0].out, a.is_gated = 1;
    launch_dtype(call, a, call->in[2]->dtype);
}

static void kernel_linear_sum(const tarn__call *call)
{
    step_args a = {};
    a.x = x_of(call, NULL);
    a.weight[0] = weight_of(call->in[1], call->in[2], call->out[0]);
    a.sum = tarn__view_at(call->in[3]), a.sum_down = call->in[3]->stride[0];
    a.jobs = a.weight[0].out;
    launch_dtype(call, a, call->in[1]->dtype);
}

void tarn__cuda_decode_gemv(tarn__kernel_row *rows)
{
    const uint32_t takes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__QUANTIZED;
    rows[TARN__K_norm_linear] = tarn__kernel_row{kernel_norm_linear, takes, NULL};
    rows[TARN__K_norm_gate_up] = tarn__kernel_row{kernel_norm_gated, takes, NULL};
    rows[TARN__K_linear_residual] = tarn__kernel_row{kernel_linear_sum, takes, NULL};
}

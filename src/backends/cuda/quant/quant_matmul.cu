/* quant_matmul.cu: y = x · weightᵀ + bias with a quantized weight.
 *
 * Few rows of x, as in decoding: bound by the weight's bytes, which are read once. x is quantized to 8 bits with a
 * scale per 32 elements, as on the CPU; then one warp computes one element of y: it loads a chunk of the weight's row
 * into shared memory, 16 bytes at a time, and each lane multiplies 32 elements in integers, four at once (dp4a). Sums
 * are scaled in f32.
 *
 * Dozens to hundreds of rows, as in decoding many sequences: backends/cuda/matmul/rows_wgmma.cuh, where it fits.
 *
 * Many rows, as in a prefill: bound by arithmetic. Some rows of the weight at a time are dequantized to x's dtype for
 * the device's matmul. */
#include "backends/cuda/matmul/rows_matmul.h"
#include "backends/cuda/quant/dequantize.cuh"
#include "backends/cuda/quant/dot.cuh"

#define MAX_ROWS 16           /* of x in the GEMV path */
#define CHUNK 2048            /* elements of a row per warp in shared memory: whole 16-byte vectors of every dtype */
#define CHUNK_BYTES (64 * 34) /* of the largest: Q8_0 */
#define WARPS 8               /* per block */
/* elements of the weight dequantized at a time: 16 MiB of 16 bits, which fit the L2 cache */
#define TILE ((int64_t)8 << 20)
#define TILE_ROWS 4096 /* but at least these rows: with fewer, the GEMM leaves multiprocessors idle */
/* weights up to this size are dequantized whole; of larger ones at most half, so that a small model needs little extra
 * memory */
#define TILE_WHOLE ((int64_t)12 << 20)
/* tile rows are a multiple of this: 16-bit elements of y at any alignment that matmul distinguishes */
#define ROW_MULTIPLE 128

/* ---- quantizing x ------------------------------------------------------------------------------------------------ */

/* Rows of x: `units` of 32 bytes each, their scales, and the sums of their halves. */
struct quantized_x {
    int8_t *q;
    float *scale;
    int2 *sum;
    int64_t units;
};

/* x (rows, in) with any strides. */
struct quantize_args {
    const void *x;
    tarn_dtype dtype;
    int64_t down, across, count; /* strides in elements; units of all rows */
    quantized_x to;
};

struct max_op {
    template <typename C> static __device__ __forceinline__ C of(C a, C b)
    {
        return a > b ? a : b;
    }
};

/* One warp per unit. A non-finite element makes the scale NaN, and so the result; units entirely below 2^-118 become
 * 0. */
static __global__ void __launch_bounds__(THREADS) quantize_kernel(const __grid_constant__ quantize_args a)
{
    int64_t unit = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (unit >= a.count)
        return;
    int64_t row = unit / a.to.units, at = (unit - row * a.to.units) * UNIT + lane;
    float x = load_float(a.x, a.dtype, row * a.down + at * a.across);
    uint32_t max_bits = warp_reduce<max_op>(__float_as_uint(x) & 0x7fffffffu);
    bool is_finite = max_bits < 0x7f800000u, is_tiny = max_bits < 0x04800000u;
    float largest = __uint_as_float(max_bits), inverse = is_finite && !is_tiny ? __fdiv_rn(127.0f, largest) : 0;
    /* adding 1.5 · 2^23 leaves the nearest integer in the low bits */
    int q = (int8_t)(uint8_t)__float_as_uint(__fadd_rn(__fmul_rn(is_finite ? x : 0, inverse), 12582912.0f)), sum = q;
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, step);
    /* sums of both halves of the unit */
    int second = __shfl_sync(FULL_WARP, sum, 16);
    a.to.q[unit * UNIT + lane] = (int8_t)q;
    if (lane == 0) {
        a.to.scale[unit] = !is_finite ? CUDART_NAN_F : is_tiny ? 0 : __fdiv_rn(largest, 127.0f);
        a.to.sum[unit] = make_int2(sum, second);
    }
}

/* ---- few rows: GEMV ---------------------------------------------------------------------------------------------- */

/* y (rows, out) = x (rows, in) · weightᵀ. */
struct gemv_args {
    const char *weight;
    int64_t pitch; /* row stride of the weight, in bytes */
    int64_t in, out, row_bytes, chunk_bytes;
    const void *bias;
    void *y;
    tarn_dtype bias_dtype, y_dtype;
    int64_t bias_across, y_down, y_across;
    int rows;
    quantized_x x;
};

/* Loads a chunk of a row into the warp's own shared memory; an even number of bytes, in 16-byte vectors if both sides
 * are aligned. */
__device__ __forceinline__ void load_chunk(const char *from, char *to, int bytes, bool is_vectorized)
{
    int lane = threadIdx.x % WARP;
    if (is_vectorized)
        for (int i = lane; i < bytes / 16; i += WARP)
            ((uint4 *)to)[i] = __ldg((const uint4 *)from + i);
    else
        for (int i = lane; i < bytes / 2; i += WARP)
            ((uint16_t *)to)[i] = __ldg((const uint16_t *)from + i);
    __syncwarp();
}

/* Adds the products of a unit with R rows of x. */
template <int R>
__device__ __forceinline__ void add_unit(const quant_unit &w, const quantized_x &x, int64_t first, int64_t unit,
                                         int rows, float *sums)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r >= rows)
            break;
        int64_t at = (first + r) * x.units + unit;
        const int4 *q = (const int4 *)(x.q + at * UNIT);
        int4 a = __ldg(q), b = __ldg(q + 1);
        int2 sum = __ldg(&x.sum[at]);
        int one = __dp4a(w.q[0], a.x, __dp4a(w.q[1], a.y, __dp4a(w.q[2], a.z, __dp4a(w.q[3], a.w, 0))));
        int two = __dp4a(w.q[4], b.x, __dp4a(w.q[5], b.y, __dp4a(w.q[6], b.z, __dp4a(w.q[7], b.w, 0))));
        float part =
            w.scale[0] * (float)one - w.min[0] * (float)sum.x + (w.scale[1] * (float)two - w.min[1] * (float)sum.y);
        sums[r] += __ldg(&x.scale[at]) * part;
    }
}

/* Blocks per multiprocessor that registers must allow, 0: ptxas chooses. With descriptions it would spill. */
template <tarn_dtype Q> static constexpr int min_blocks(void)
{
    return is_described(Q) ? 4 : 0;
}

/* One warp per element of y, for R rows of x. FLOPs: 2 · rows · in · out. */
template <tarn_dtype Q, int R>
static __global__ void __launch_bounds__(WARPS *WARP, min_blocks<Q>()) gemv_kernel(const __grid_constant__ gemv_args a)
{
    __shared__ alignas(16) char space[WARPS][CHUNK_BYTES + 16];
    char *chunk = space[threadIdx.x / WARP];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, first = (int64_t)blockIdx.y * R;
    int lane = threadIdx.x % WARP, rows = (int)(a.rows - first < R ? a.rows - first : R);
    if (row >= a.out)
        return;
    const char *from = a.weight + row * a.pitch;
    float sums[R] = {};
    /* chunk by chunk through the row */
    for (int64_t at = 0, skip = 0; at < a.in; at += CHUNK, skip += a.chunk_bytes) {
        int count = (int)(a.in - at < CHUNK ? a.in - at : CHUNK),
            bytes = (int)(a.row_bytes - skip < a.chunk_bytes ? a.row_bytes - skip : a.chunk_bytes);
        load_chunk(from + skip, chunk, bytes, ((uintptr_t)(from + skip) | (uintptr_t)bytes) % 16 == 0);
        for (int unit = lane; unit < count / UNIT; unit += WARP)
            add_unit<R>(unpack_unit<Q>(chunk, unit), a.x, first, at / UNIT + unit, rows, sums);
        __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float sum = warp_reduce<plus>(sums[r]);
        if (lane == 0 && r < rows)
            store_float(a.y, a.y_dtype, (first + r) * a.y_down + row * a.y_across,
                        a.bias ? sum + load_float(a.bias, a.bias_dtype, row * a.bias_across) : sum);
    }
}

/* Grid: (8 elements of y, groups of 4 rows of x) per block of 8 warps. Bytes: the weight once per group. */
template <tarn_dtype Q> static void launch_gemv(const gemv_args &a, cudaStream_t stream)
{
    unsigned across = blocks_for(a.out, WARPS);
    if (a.rows == 1)
        gemv_kernel<Q, 1><<<dim3(across, 1), WARPS * WARP, 0, stream>>>(a);
    else
        gemv_kernel<Q, 4><<<dim3(across, blocks_for(a.rows, 4)), WARPS * WARP, 0, stream>>>(a);
}

/* Assigns scratch; returns its bytes. */
static size_t layout_quantized(char *scratch, int64_t rows, int64_t in, quantized_x *to)
{
    size_t units = (size_t)(rows * (in / UNIT)), q = tarn__cuda_align(units * UNIT),
           scale = tarn__cuda_align(units * sizeof(float));
    *to = quantized_x{(int8_t *)scratch, (float *)(scratch + q), (int2 *)(scratch + q + scale), in / UNIT};
    return q + scale + units * sizeof(int2);
}

/* Row stride in bytes; negative for a flipped view. */
static int64_t pitch_of(const tarn__view *weight)
{
    int64_t down = weight->stride[0];
    return down < 0 ? -tarn__bytes_of(weight->dtype, -down) : tarn__bytes_of(weight->dtype, down);
}

/* Bytes: the weight once per four rows of x; x, 1.3 bytes per element, once per row of the weight, from the caches. */
static void run_gemv(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *weight = call->in[1], *bias = call->inputs > 2 ? call->in[2] : NULL,
                     *y = call->out[0];
    gemv_args a = {};
    a.weight = (const char *)tarn__view_at(weight), a.pitch = pitch_of(weight);
    a.in = x->shape[1], a.out = weight->shape[0], a.row_bytes = tarn__bytes_of(weight->dtype, a.in);
    a.chunk_bytes = tarn__bytes_of(weight->dtype, CHUNK), a.rows = (int)x->shape[0];
    a.bias = bias ? tarn__view_at(bias) : NULL, a.bias_dtype = bias ? bias->dtype : TARN_F32,
    a.bias_across = bias ? bias->stride[0] : 0;
    a.y = tarn__view_at(y), a.y_dtype = y->dtype, a.y_down = y->stride[0], a.y_across = y->stride[1];
    layout_quantized((char *)call->scratch, a.rows, a.in, &a.x);
    quantize_args r = {tarn__view_at(x), x->dtype, x->stride[0], x->stride[1], a.rows * a.x.units, a.x};
    if (r.count > 0)
        quantize_kernel<<<blocks_for(r.count, THREADS / WARP), THREADS, 0, stream_of(call)>>>(r);
    with_format(weight->dtype, [&](auto format) { launch_gemv<decltype(format)::dtype>(a, stream_of(call)); });
}

/* ---- many rows: dequantize and GEMM ------------------------------------------------------------------------------ */

/* Rows of quant blocks to contiguous elements. */
struct dequantize_args {
    const char *from;
    int64_t pitch, groups; /* of eight elements */
    divider across;        /* groups per row */
    void *to;
};

/* Eight elements per thread. */
template <typename T, tarn_dtype Q>
static __global__ void __launch_bounds__(THREADS) dequantize_kernel(const __grid_constant__ dequantize_args a)
{
    const uint32_t at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.groups)
        return;
    const uint32_t row = divide_small(at, a.across), group = at - row * (uint32_t)a.across.by;
    float values[8];
    dequantize8<Q>(a.from + row * a.pitch, (int)group * 8, values);
    T *to = (T *)a.to + (int64_t)at * 8;
    if constexpr (sizeof(T) == 2) {
        vec<T, 8> rounded;
        narrow_vec(values, rounded);
        store_vec(to, rounded);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i += 4)
            *(float4 *)(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
}

/* Selects the element type. */
template <tarn_dtype Q> static void dequantize_as(tarn_dtype dtype, const dequantize_args &a, cudaStream_t stream)
{
    unsigned blocks = blocks_for(a.groups, THREADS);
    if (dtype == TARN_F32)
        dequantize_kernel<float, Q><<<blocks, THREADS, 0, stream>>>(a);
    else if (dtype == TARN_BF16)
        dequantize_kernel<bf16, Q><<<blocks, THREADS, 0, stream>>>(a);
    else
        dequantize_kernel<f16, Q><<<blocks, THREADS, 0, stream>>>(a);
}

/* Dequantizes `rows` rows of `in` elements. Bytes: quant blocks read, floats written. */
static void dequantize_rows(tarn_dtype from, tarn_dtype to, const char *blocks, int64_t pitch, int64_t rows, int64_t in,
                            void *scratch, cudaStream_t stream)
{
    const dequantize_args a = {blocks, pitch, rows * in / 8, divider_of(in / 8), scratch};
    with_format(from, [&](auto format) { dequantize_as<decltype(format)::dtype>(to, a, stream); });
}

static int64_t ceil_div(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

/* Tiles of about one size, a multiple of ROW_MULTIPLE: every tile of y is aligned like the first, so all GEMMs but the
 * last are the one whose scratch is known. */
static int64_t tile_rows(const tarn__view *weight)
{
    int64_t rows = TILE / weight->shape[1], all = weight->shape[0], half = ceil_div(all, 2);
    rows = rows > TILE_ROWS ? rows : TILE_ROWS;
    if (all * weight->shape[1] > TILE_WHOLE && rows > half)
        rows = half;
    int64_t tiles = ceil_div(all, rows),
            each = ceil_div(ceil_div(all, tiles > 0 ? tiles : 1), ROW_MULTIPLE) * ROW_MULTIPLE;
    return each < all ? each : all;
}

/* A GEMM with rows `begin` … `end` of the weight, dequantized at `scratch`. The call points into the struct. */
struct tile_gemm {
    tarn__view x, weight, bias, y;
    tarn__matmul params;
    tarn__call call;
};

/* The dequantized tile is (in, rows) transposed: matmul reads it without packing. */
static void describe_tile(tile_gemm *t, const tarn__call *call, int64_t begin, int64_t end, char *scratch)
{
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL;
    t->x = *call->in[0], t->y = *call->out[0];
    t->y.shape[1] = end - begin, t->y.offset += begin * t->y.stride[1];
    t->weight = tarn__view{};
    t->weight.memory = scratch, t->weight.dtype = t->x.dtype, t->weight.rank = 2;
    t->weight.shape[0] = t->x.shape[1], t->weight.shape[1] = end - begin;
    t->weight.stride[0] = 1, t->weight.stride[1] = t->x.shape[1];
    t->params = tarn__matmul{1, 0, 0, 1};
    t->call = *call;
    t->call.in[0] = &t->x, t->call.in[1] = &t->weight, t->call.in[2] = NULL, t->call.inputs = 3, t->call.out[0] = &t->y;
    if (bias) {
        t->bias = *bias;
        t->bias.shape[0] = end - begin, t->bias.offset += begin * bias->stride[0];
        t->call.in[2] = &t->bias;
    }
    t->call.params = &t->params, t->call.params_bytes = sizeof(t->params);
}

static size_t tile_bytes(const tarn__call *call)
{
    return tarn__cuda_align((size_t)(tile_rows(call->in[1]) * call->in[1]->shape[1]) *
                            tarn__dtype_bytes(call->in[0]->dtype));
}

/* The GEMMs of all tiles but the last, and of the last, which may be smaller. */
struct tiles_job {
    tarn__part full, last;
};

/* Bytes: the quant blocks once, the elements written and read, x once per tile. */
static void run_tiles(const tarn__call *call)
{
    const tarn__view *weight = call->in[1];
    const tiles_job *j = job_of<tiles_job>(call);
    int64_t step = tile_rows(weight), pitch = pitch_of(weight), in = weight->shape[1];
    char *scratch = (char *)call->scratch;
    for (int64_t begin = 0; begin < weight->shape[0]; begin += step) {
        int64_t end = begin + step < weight->shape[0] ? begin + step : weight->shape[0];
        dequantize_rows(weight->dtype, call->in[0]->dtype, (const char *)tarn__view_at(weight) + begin * pitch, pitch,
                        end - begin, in, scratch, stream_of(call));
        tile_gemm t;
        describe_tile(&t, call, begin, end, scratch);
        t.call.scratch = scratch + tile_bytes(call);
        tarn__part_run(call, end == weight->shape[0] ? &j->last : &j->full, &t.call);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* An empty K takes the GEMV path: sums of nothing plus the bias. */
static bool fits_gemv(const tarn__call *call)
{
    return call->in[0]->shape[0] <= MAX_ROWS || call->in[1]->shape[1] == 0;
}

static tarn__plan_status prepare_gemv(const tarn__call *call, tarn__plan *plan)
{
    quantized_x none;
    plan->scratch_bytes = layout_quantized(NULL, call->in[0]->shape[0], call->in[0]->shape[1], &none);
    return TARN__PLAN_READY;
}

static void kernel_gemv(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) > 0)
        run_gemv(call);
}

static tarn__plan_status prepare_tile(const tarn__call *call, tarn__plan *plan, tarn__part *part, int64_t begin,
                                      int64_t end)
{
    tile_gemm t;
    describe_tile(&t, call, begin, end, NULL);
    return tarn__part_prepare(plan, part, &tarn__cuda_rows()[TARN__K_matmul], &t.call);
}

/* Scratch: a tile, then that of the larger GEMM. */
static tarn__plan_status prepare_tiles(const tarn__call *call, tarn__plan *plan)
{
    const tarn__view *weight = call->in[1];
    if (tarn__view_count(call->out[0]) == 0)
        return TARN__PLAN_READY;
    int64_t step = tile_rows(weight), last = (weight->shape[0] - 1) / step * step;
    tiles_job *j = reserve_job<tiles_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    tarn__plan_status status = prepare_tile(call, plan, &j->last, last, weight->shape[0]);
    j->full = j->last;
    if (status == TARN__PLAN_READY && last > 0)
        status = prepare_tile(call, plan, &j->full, 0, step);
    plan->scratch_bytes = tile_bytes(call) + (j->full.scratch_bytes > j->last.scratch_bytes ? j->full.scratch_bytes
                                                                                            : j->last.scratch_bytes);
    return status;
}

static void kernel_tiles(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) > 0)
        run_tiles(call);
}

/* "gemv" multiplies quant blocks, "wgmma" dequantizes them in registers, "gemm" tiles of the weight in memory. */
void tarn__cuda_register_quant_matmul(tarn__kernel_row *rows)
{
    static tarn__kernel_row tiles, some_rows;
    uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__QUANTIZED;
    rows[TARN__K_matmul_quant] = tarn__row_named(tarn__row_planned(prepare_tiles, kernel_tiles, dtypes), "gemm");
    tarn__push_row(rows, TARN__K_matmul_quant, tarn__cuda_rows_matmul_quant(), &tiles);
    tarn__kernel_row gemv = tarn__row_fits(tarn__row_planned(prepare_gemv, kernel_gemv, dtypes), fits_gemv);
    tarn__push_row(rows, TARN__K_matmul_quant, tarn__row_named(gemv, "gemv"), &some_rows);
}

/* quant_matmul.cu: y = x · weightᵀ + bias with a weight of blocks.
 *
 * Few rows of x, as in decoding: bound by the weight's bytes, which are read once. x is rounded to 8 bits with a scale
 * for each 32 elements, as on the CPU; then one warp makes one element of y: it brings a piece of the weight's row into
 * shared memory, 16 bytes at a time, and each lane multiplies 32 elements of it in integers, four at once. What a block
 * adds is scaled in f32.
 *
 * Many rows, as in a prompt: bound by arithmetic. Some rows of the weight at a time are turned into elements of x's
 * dtype, for the device's matmul. */
#include "backends/cuda/quant/blocks_open.cuh"
#include "backends/cuda/quant/dot.cuh"

#define MOST_ROWS 16 /* of x that are multiplied as bytes */
#define PIECE 2048   /* elements of a row that a warp has in shared memory: whole packs of 16 bytes of every dtype */
#define PIECE_BYTES (64 * 34) /* of the largest: Q8_0 */
#define WARPS 8               /* of a block */
#define TILE \
    ((int64_t)8 << 20) /* elements of the weight that stand in scratch at a time: 16 MiB of 16 bits, which the second \
                          cache has room for */
#define TILE_ROWS 4096 /* but no fewer rows than these: with less of y the product leaves multiprocessors idle */
#define TILE_WHOLE \
    ((int64_t)12 << 20) /* elements of a weight that may be opened whole: of a larger one at most half at a time, so \
                           that a small model needs little room beside itself */
#define EVEN 128        /* elements of y, of 16 bits or more, that are a multiple of any alignment that is asked for */

/* ---- x to bytes -------------------------------------------------------------------------------------------------- */

/* Rows of x: `units` bytes of 32 elements each, their scales, and the sums of their halves. */
struct bytes_of_x {
    int8_t *q;
    float *scale;
    int2 *sum;
    int64_t units;
};

struct round_args {
    const void *x;
    tarn_dtype dtype;
    int64_t down, across, count; /* strides in elements; units of all rows */
    bytes_of_x to;
};

struct larger {
    template <typename C> static __device__ __forceinline__ C of(C a, C b)
    {
        return a > b ? a : b;
    }
};

/* A warp for each unit. Elements that are not finite make the scale NaN, and so the result; those all below 2^-118
 * count as 0. */
static __global__ void __launch_bounds__(THREADS) round_kernel(const __grid_constant__ round_args a)
{
    int64_t unit = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (unit >= a.count)
        return;
    int64_t row = unit / a.to.units, at = (unit - row * a.to.units) * UNIT + lane;
    float x = load_float(a.x, a.dtype, row * a.down + at * a.across);
    uint32_t most = over_warp<larger>(__float_as_uint(x) & 0x7fffffffu);
    bool finite = most < 0x7f800000u, tiny = most < 0x04800000u;
    float largest = __uint_as_float(most), inverse = finite && !tiny ? __fdiv_rn(127.0f, largest) : 0;
    /* The last bits of a sum with 1.5 · 2^23 are the nearest whole number. */
    int q = (int8_t)(uint8_t)__float_as_uint(__fadd_rn(__fmul_rn(finite ? x : 0, inverse), 12582912.0f)), sum = q;
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, step);
    int second = __shfl_sync(FULL_WARP, sum, 16);
    a.to.q[unit * UNIT + lane] = (int8_t)q;
    if (lane == 0) {
        a.to.scale[unit] = !finite ? CUDART_NAN_F : tiny ? 0 : __fdiv_rn(largest, 127.0f);
        a.to.sum[unit] = make_int2(sum, second);
    }
}

/* ---- products with few rows -------------------------------------------------------------------------------------- */

struct product_args {
    const char *weight;
    int64_t pitch; /* bytes from row to row of the weight */
    int64_t in, out, row_bytes, piece_bytes;
    const void *bias;
    void *y;
    tarn_dtype bias_dtype, y_dtype;
    int64_t bias_across, y_down, y_across;
    int rows;
    bytes_of_x x;
};

/* Brings a piece of a row into the warp's own shared memory; the bytes are even, and whole packs where both sides are
 * aligned. */
__device__ __forceinline__ void bring(const char *from, char *to, int bytes, bool in_packs)
{
    int lane = threadIdx.x % WARP;
    if (in_packs)
        for (int i = lane; i < bytes / 16; i += WARP)
            ((uint4 *)to)[i] = __ldg((const uint4 *)from + i);
    else
        for (int i = lane; i < bytes / 2; i += WARP)
            ((uint16_t *)to)[i] = __ldg((const uint16_t *)from + i);
    __syncwarp();
}

/* Adds the products of a unit with `R` rows of x. */
template <int R>
__device__ __forceinline__ void add_unit(const unit_of_weight &w, const bytes_of_x &x, int64_t first, int64_t unit,
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

/* One warp an element of y in each of `R` rows of x. */
template <tarn_dtype Q, int R>
static __global__ void __launch_bounds__(WARPS *WARP) product_kernel(const __grid_constant__ product_args a)
{
    __shared__ alignas(16) char space[WARPS][PIECE_BYTES + 16];
    char *piece = space[threadIdx.x / WARP];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, first = (int64_t)blockIdx.y * R;
    int lane = threadIdx.x % WARP, rows = (int)(a.rows - first < R ? a.rows - first : R);
    if (row >= a.out)
        return;
    const char *from = a.weight + row * a.pitch;
    float sums[R] = {};
    for (int64_t at = 0, skip = 0; at < a.in; at += PIECE, skip += a.piece_bytes) {
        int count = (int)(a.in - at < PIECE ? a.in - at : PIECE),
            bytes = (int)(a.row_bytes - skip < a.piece_bytes ? a.row_bytes - skip : a.piece_bytes);
        bring(from + skip, piece, bytes, ((uintptr_t)(from + skip) | (uintptr_t)bytes) % 16 == 0);
        for (int unit = lane; unit < count / UNIT; unit += WARP)
            add_unit<R>(open_unit<Q>(piece, unit), a.x, first, at / UNIT + unit, rows, sums);
        __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float sum = over_warp<add_up>(sums[r]);
        if (lane == 0 && r < rows)
            store_float(a.y, a.y_dtype, (first + r) * a.y_down + row * a.y_across,
                        a.bias ? sum + load_float(a.bias, a.bias_dtype, row * a.bias_across) : sum);
    }
}

template <tarn_dtype Q> static void launch_product(const product_args &a, cudaStream_t stream)
{
    unsigned across = blocks_for(a.out, WARPS);
    if (a.rows == 1)
        product_kernel<Q, 1><<<dim3(across, 1), WARPS * WARP, 0, stream>>>(a);
    else
        product_kernel<Q, 4><<<dim3(across, blocks_for(a.rows, 4)), WARPS * WARP, 0, stream>>>(a);
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Places in scratch, and how many bytes they take. */
static size_t lay_bytes(char *scratch, int64_t rows, int64_t in, bytes_of_x *to)
{
    size_t units = (size_t)(rows * (in / UNIT)), q = round_up(units * UNIT), scale = round_up(units * sizeof(float));
    *to = bytes_of_x{(int8_t *)scratch, (float *)(scratch + q), (int2 *)(scratch + q + scale), in / UNIT};
    return q + scale + units * sizeof(int2);
}

static int64_t pitch_of(const tarn__view *weight)
{
    int64_t down = weight->stride[0];
    return down < 0 ? -tarn__bytes_of(weight->dtype, -down) : tarn__bytes_of(weight->dtype, down);
}

/* Reads the weight once for each four rows of x, and 1.3 bytes for each element of x as often as there are rows of the
 * weight, out of the caches. */
static void multiply_bytes(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *weight = call->in[1], *bias = call->inputs > 2 ? call->in[2] : NULL,
                     *y = call->out[0];
    product_args a = {};
    a.weight = (const char *)tarn__view_at(weight), a.pitch = pitch_of(weight);
    a.in = x->shape[1], a.out = weight->shape[0], a.row_bytes = tarn__bytes_of(weight->dtype, a.in);
    a.piece_bytes = tarn__bytes_of(weight->dtype, PIECE), a.rows = (int)x->shape[0];
    a.bias = bias ? tarn__view_at(bias) : NULL, a.bias_dtype = bias ? bias->dtype : TARN_F32,
    a.bias_across = bias ? bias->stride[0] : 0;
    a.y = tarn__view_at(y), a.y_dtype = y->dtype, a.y_down = y->stride[0], a.y_across = y->stride[1];
    lay_bytes((char *)call->scratch, a.rows, a.in, &a.x);
    round_args r = {tarn__view_at(x), x->dtype, x->stride[0], x->stride[1], a.rows * a.x.units, a.x};
    if (r.count > 0)
        round_kernel<<<blocks_for(r.count, THREADS / WARP), THREADS, 0, stream_of(call)>>>(r);
    switch (weight->dtype) {
    case TARN_Q8_0: launch_product<TARN_Q8_0>(a, stream_of(call)); break;
    case TARN_Q4_0: launch_product<TARN_Q4_0>(a, stream_of(call)); break;
    case TARN_Q4_K: launch_product<TARN_Q4_K>(a, stream_of(call)); break;
    default: launch_product<TARN_Q6_K>(a, stream_of(call)); break;
    }
}

/* ---- products with many rows ------------------------------------------------------------------------------------- */

struct open_args {
    const char *from;
    int64_t pitch, groups; /* of eight elements */
    divider across;        /* groups of a row */
    void *to;
};

/* Eight elements a thread. */
template <typename T, tarn_dtype Q>
static __global__ void __launch_bounds__(THREADS) open_kernel(const __grid_constant__ open_args a)
{
    const uint32_t at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.groups)
        return;
    const uint32_t row = divide_small(at, a.across), group = at - row * (uint32_t)a.across.by;
    float values[8];
    open_eight<Q>(a.from + row * a.pitch, (int)group * 8, values);
    T *to = (T *)a.to + (int64_t)at * 8;
    if constexpr (sizeof(T) == 2) {
        pack<T, 8> packed;
        narrow_pack(values, packed);
        store_pack(to, packed);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i += 4)
            *(float4 *)(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
}

template <tarn_dtype Q> static void open_as(tarn_dtype dtype, const open_args &a, cudaStream_t stream)
{
    unsigned blocks = blocks_for(a.groups, THREADS);
    if (dtype == TARN_F32)
        open_kernel<float, Q><<<blocks, THREADS, 0, stream>>>(a);
    else if (dtype == TARN_BF16)
        open_kernel<bf16, Q><<<blocks, THREADS, 0, stream>>>(a);
    else
        open_kernel<f16, Q><<<blocks, THREADS, 0, stream>>>(a);
}

/* `rows` of them, of `in` elements, to floats of a dtype. Bytes: the blocks' and the floats'. */
static void open_rows(tarn_dtype from, tarn_dtype to, const char *blocks, int64_t pitch, int64_t rows, int64_t in,
                      void *place, cudaStream_t stream)
{
    const open_args a = {blocks, pitch, rows * in / 8, divider_of(in / 8), place};
    switch (from) {
    case TARN_Q8_0: open_as<TARN_Q8_0>(to, a, stream); break;
    case TARN_Q4_0: open_as<TARN_Q4_0>(to, a, stream); break;
    case TARN_Q4_K: open_as<TARN_Q4_K>(to, a, stream); break;
    default: open_as<TARN_Q6_K>(to, a, stream); break;
    }
}

static int64_t parts_of(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

/* Tiles of about one size, a multiple of EVEN: then y's part of every tile is aligned as that of the first, and the
 * product of all tiles but the last is the one whose scratch is known. */
static int64_t tile_rows(const tarn__view *weight)
{
    int64_t rows = TILE / weight->shape[1], all = weight->shape[0], half = parts_of(all, 2);
    rows = rows > TILE_ROWS ? rows : TILE_ROWS;
    if (all * weight->shape[1] > TILE_WHOLE && rows > half)
        rows = half;
    int64_t tiles = parts_of(all, rows), each = parts_of(parts_of(all, tiles > 0 ? tiles : 1), EVEN) * EVEN;
    return each < all ? each : all;
}

/* A product with rows `begin` to `end` of the weight, which stand as elements at `place`. */
struct tile_call {
    tarn__view x, weight, bias, y;
    tarn__matmul params;
    tarn__call call;
};

static void describe_tile(tile_call *t, const tarn__call *call, int64_t begin, int64_t end, char *place)
{
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL;
    t->x = *call->in[0], t->y = *call->out[0];
    t->y.shape[1] = end - begin, t->y.offset += begin * t->y.stride[1];
    t->weight = tarn__view{};
    t->weight.memory = place, t->weight.dtype = t->x.dtype, t->weight.rank = 2;
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
    return round_up((size_t)(tile_rows(call->in[1]) * call->in[1]->shape[1]) * tarn__dtype_bytes(call->in[0]->dtype));
}

/* Reads the weight's bytes, writes and reads its elements, and reads x for each tile. */
static void multiply_tiles(const tarn__call *call)
{
    const tarn__view *weight = call->in[1];
    int64_t step = tile_rows(weight), pitch = pitch_of(weight), in = weight->shape[1];
    char *place = (char *)call->scratch;
    for (int64_t begin = 0; begin < weight->shape[0]; begin += step) {
        int64_t end = begin + step < weight->shape[0] ? begin + step : weight->shape[0];
        open_rows(weight->dtype, call->in[0]->dtype, (const char *)tarn__view_at(weight) + begin * pitch, pitch,
                  end - begin, in, place, stream_of(call));
        tile_call t;
        describe_tile(&t, call, begin, end, place);
        t.call.scratch = place + tile_bytes(call), t.call.scratch_bytes = call->scratch_bytes - tile_bytes(call);
        tarn__cuda_rows()[TARN__K_matmul].run(&t.call);
    }
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static bool is_few(const tarn__call *call)
{
    return call->in[0]->shape[0] <= MOST_ROWS;
}

static void kernel_matmul_blocks(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    if (is_few(call) || call->in[1]->shape[1] == 0)
        multiply_bytes(call);
    else
        multiply_tiles(call);
}

/* The last tile may be smaller than the others, and its product another one. */
static size_t scratch_matmul_blocks(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *weight = call->in[1];
    bytes_of_x none;
    if (is_few(call) || weight->shape[1] == 0 || tarn__view_count(call->out[0]) == 0)
        return lay_bytes(NULL, x->shape[0], x->shape[1], &none);
    int64_t step = tile_rows(weight), last = (weight->shape[0] - 1) / step * step;
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        tile_call t;
        describe_tile(&t, call, i ? last : 0, i ? weight->shape[0] : step, NULL);
        size_t (*ask)(const tarn__call *) = tarn__cuda_rows()[TARN__K_matmul].scratch;
        size_t bytes = ask ? ask(&t.call) : 0;
        most = bytes > most ? bytes : most;
    }
    return tile_bytes(call) + most;
}

void tarn__cuda_quant_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul_quant] = {kernel_matmul_blocks,
                                  TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__QUANTIZED,
                                  scratch_matmul_blocks};
}

/* decode_gemv_in_out.cu: GEMV with a few rows of x and float weights stored as [in, out] (GPT-2's): y = x @ weight.
 *
 * Why a kernel: rows of the transposed view are columns in memory, which the kernels of decode_gemv.cu would read one
 * element at a time; a transposed copy would double the weights (5.9 GB of a GPT-2 of 1.5 billion parameters in f32),
 * and transposing in place would change the layout of parameters that the caller may train or save.
 *
 * A block computes a tile of adjacent elements of y, `lanes` vectors of 16 bytes. Its threads share the rows of the
 * weight: each takes one vector of every row that it owns, several rows in flight, the first of them before the
 * previous kernel has finished. x is staged in shared memory as f32 (decode_x.cuh). Sums run in an order fixed by the
 * shape: within a thread, over the lanes of a warp, over the warps. */
#include "backends/cuda/decode/decode_gemv.cuh"

#define MAX_SHIFT 3 /* lanes: 2, 4 or 8; 8 vectors are a cache line */

struct gemv_in_out_args {
    gemv_args s;  /* a weight's pitch: bytes from one of its `in` rows to the next */
    int shift;    /* log2 of lanes */
    int tiles[3]; /* per weight */
};

/* A vector of the weight: 16 bytes. */
template <typename T> struct in_out_vec {
    enum { size = 16 / (int)sizeof(T) };
};

/* A thread's vector of the weight in every `step`-th row: a batch is in flight while the one before is multiplied. */
struct weight_rows {
    enum { batch = 4 };
    const char *from;
    int64_t pitch; /* bytes from one of the thread's rows to the next */
    int left;      /* rows that are not loaded yet */
    uint4 words[batch];

    __device__ __forceinline__ void load(void)
    {
#pragma unroll
        for (int k = 0; k < batch; k++)
            words[k] = k < left ? __ldg((const uint4 *)(from + k * pitch)) : make_uint4(0, 0, 0, 0);
        from += batch * pitch, left -= batch;
    }
};

/* Element `at` of a staged row. */
__device__ __forceinline__ float staged_float(const staged_x &x, int row, int at)
{
    return *(const float *)(x.base + row * x.pitch + ((at / 4 % 2) * x.count + at / 8) * 16 + at % 4 * 4);
}

/* The weight and the first of its elements of y that a block computes. */
__device__ __forceinline__ int weight_of_tile(const gemv_in_out_args &a, int tile_size, int64_t *first)
{
    int which = 0, tile = (int)blockIdx.x;
    while (which < 2 && tile >= a.tiles[which])
        tile -= a.tiles[which++];
    *first = (int64_t)tile * tile_size;
    return which;
}

/* T: dtype of the weight; R: rows of x per block. FLOPs: 2 · rows · in · out; bytes: the weight once per R rows. */
template <typename T, int R>
static __global__ void __launch_bounds__(DECODE_WARPS *WARP, R == 1 ? BLOCKS_PER_SM : 1)
    gemv_in_out_kernel(const __grid_constant__ gemv_in_out_args a)
{
    enum { size = in_out_vec<T>::size };
    extern __shared__ __align__(16) char space[];
    const int lanes = 1 << a.shift, tile_size = lanes * size, in = a.s.x.in, slices = DECODE_WARPS * WARP >> a.shift;
    const int lane = threadIdx.x & (lanes - 1), slice = threadIdx.x >> a.shift;
    const int64_t first_x = (int64_t)blockIdx.y * R;
    const int rows = (int)min(a.s.x.rows - first_x, (int64_t)R);
    int64_t first;
    const gemv_weight &w = a.s.weight[weight_of_tile(a, tile_size, &first)];
    const staged_x x = staged_x_at(space, in, F32_ROWS);
    float *parts = (float *)(space + R * x.pitch); /* (warps, R, tile_size) */
    pdl_launch_dependents();

    /* rows slice, slice + slices … of the weight; none of a column beyond the last */
    weight_rows ahead = {};
    const int64_t column = first + lane * size;
    ahead.from = w.base + slice * w.pitch + column * (int)sizeof(T), ahead.pitch = slices * w.pitch;
    ahead.left = column < w.out && slice < in ? (in - slice + slices - 1) / slices : 0;
    ahead.load();
    prefetch_norm(a.s.x);
    /* weights are in flight; x is written by the previous kernel */
    pdl_wait();
    const int of_x = (int)threadIdx.x / tile_size, of_y = (int)threadIdx.x % tile_size;
    const bool is_writer = of_x < rows && first + of_y < w.out;
    addend extra = {};
    if (is_writer)
        extra.load(a.s, w, first + of_y, first_x + of_x);
    stage_rows<F32_ROWS, true>(a.s.x, first_x, rows, x);
    __syncthreads();

    float sums[R][size] = {};
    for (int row = slice; row < in; row += weight_rows::batch * slices) {
        weight_rows now = ahead;
        ahead.load();
#pragma unroll
        for (int k = 0; k < weight_rows::batch; k++) {
            const int at = row + k * slices;
            float v[size];
            if (at >= in)
                break;
            widen_vec(*(const vec<T, size> *)&now.words[k], v);
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float factor = r < rows ? staged_float(x, r, at) : 0;
#pragma unroll
                for (int i = 0; i < size; i++)
                    sums[r][i] += factor * v[i];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < size; i++) {
            for (int step = WARP / 2; step >= lanes; step /= 2)
                sums[r][i] += __shfl_xor_sync(FULL_WARP, sums[r][i], step);
            if ((int)threadIdx.x % WARP < lanes)
                parts[(threadIdx.x / WARP * R + r) * tile_size + lane * size + i] = sums[r][i];
        }
    __syncthreads();
    if (!is_writer)
        return;
    float value = 0;
#pragma unroll
    for (int i = 0; i < DECODE_WARPS; i++)
        value += parts[(i * R + of_x) * tile_size + of_y];
    store_float(w.y, a.s.x.dtype, (first_x + of_x) * w.y_down + first + of_y, extra.add_general(a.s, w, value));
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

template <typename T, int R> static size_t shared_for(const gemv_in_out_args &a)
{
    return (size_t)R *
           (staged_pitch(a.s.x.in, F32_ROWS) + (size_t)DECODE_WARPS * (in_out_vec<T>::size << a.shift) * sizeof(float));
}

/* Grid: (tiles, groups of R rows of x, each of which reads the weights). Bytes: the weights'. */
template <typename T, int R> static void launch(const tarn__call *call, const gemv_in_out_args &a)
{
    size_t shared = shared_for<T, R>(a);
    static_assert(R * (in_out_vec<T>::size << MAX_SHIFT) <= DECODE_WARPS * WARP, "one thread per result of a block");
    cudaFuncSetAttribute(gemv_in_out_kernel<T, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    launch_decode(call, gemv_in_out_kernel<T, R>,
                  dim3((unsigned)(a.tiles[0] + a.tiles[1] + a.tiles[2]), blocks_for(a.s.x.rows, R)),
                  DECODE_WARPS * WARP, shared, a);
}

/* The widest tiles of which every multiprocessor has one, else the narrowest: longer reads against idle
 * multiprocessors. */
template <typename T> static void launch_tiles(const tarn__call *call, gemv_in_out_args &a)
{
    const tarn__cuda_device *d = tarn__cuda_at(call->device);
    int total = 0;
    for (a.shift = MAX_SHIFT + 1; a.shift > 1 && total < d->multiprocessors;) {
        a.shift--, total = 0;
        for (int i = 0; i < 3; i++) {
            const int64_t size = in_out_vec<T>::size << a.shift;
            a.tiles[i] = (int)((a.s.weight[i].out + size - 1) / size);
            total += a.tiles[i];
        }
    }
    if (a.s.x.rows > 1 && (int64_t)shared_for<T, ROWS_AT_ONCE>(a) + STATIC_SHARED <= d->shared_bytes)
        launch<T, ROWS_AT_ONCE>(call, a);
    else
        launch<T, 1>(call, a);
}

static void launch_dtype(const tarn__call *call, gemv_in_out_args &a, tarn_dtype dtype)
{
    if (a.s.jobs == 0 || a.s.x.rows == 0)
        return;
    switch (dtype) {
    case TARN_BF16: launch_tiles<bf16>(call, a); break;
    case TARN_F16: launch_tiles<f16>(call, a); break;
    default: launch_tiles<float>(call, a); break;
    }
}

/* The view of a weight is [out, in]. */
static gemv_weight weight_in_out(const tarn__view *weight, const tarn__view *bias, const tarn__view *y)
{
    gemv_weight w = weight_of(weight, bias, y);
    w.pitch = weight->stride[1] * tarn__bytes_of(weight->dtype, 1);
    return w;
}

static void kernel_norm_linear(const tarn__call *call)
{
    gemv_in_out_args a = {};
    a.s = args_of(call, call->in[1], call->in[8]);
    for (int i = 0; i < 3 && call->in[2 + i]; i++) {
        a.s.weight[i] = weight_in_out(call->in[2 + i], call->in[5 + i], call->out[i]);
        a.s.jobs += a.s.weight[i].out;
    }
    launch_dtype(call, a, call->in[2]->dtype);
}

static void kernel_linear_residual(const tarn__call *call)
{
    gemv_in_out_args a = {};
    a.s = args_of(call, NULL, NULL);
    a.s.weight[0] = weight_in_out(call->in[1], call->in[2], call->out[0]);
    a.s.sum = tarn__view_at(call->in[3]), a.s.sum_down = call->in[3]->stride[0];
    a.s.jobs = a.s.weight[0].out;
    launch_dtype(call, a, call->in[1]->dtype);
}

/* ---- which calls fit --------------------------------------------------------------------------------------------- */

/* Floats whose `out` elements are contiguous, in rows of whole vectors. */
static bool weight_fits(const tarn__view *weight)
{
    return weight->stride[0] == 1 && weight->stride[1] > 1 && weight->shape[0] % 8 == 0 &&
           weight->shape[0] < INT32_MAX && weight->shape[1] <= MAX_ROW && !tarn__is_quantized(weight->dtype) &&
           (uintptr_t)tarn__view_at(weight) % 16 == 0 && tarn__bytes_of(weight->dtype, weight->stride[1]) % 16 == 0;
}

static bool fits_norm_linear(const tarn__call *call)
{
    bool good =
        x_fits(call->in[0], call->in[1], call->inputs > 8 ? call->in[8] : NULL) && !(call->inputs > 9 && call->in[9]);
    for (int i = 2; good && i < 5 && i < call->inputs && call->in[i]; i++)
        good = weight_fits(call->in[i]);
    return good;
}

static bool fits_linear_residual(const tarn__call *call)
{
    return x_fits(call->in[0], NULL, NULL) && weight_fits(call->in[1]) && call->in[3]->stride[1] == 1;
}

static tarn__kernel_row row_of(tarn__kernel_fn run, bool (*fits)(const tarn__call *))
{
    const uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16);
    return tarn__row_named(tarn__row_fits(tarn__row(run, dtypes), fits), "in_out");
}

tarn__kernel_row tarn__cuda_norm_linear_in_out(void)
{
    return row_of(kernel_norm_linear, fits_norm_linear);
}

tarn__kernel_row tarn__cuda_linear_residual_in_out(void)
{
    return row_of(kernel_linear_residual, fits_linear_residual);
}

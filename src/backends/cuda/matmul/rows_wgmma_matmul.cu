/* rows_wgmma_matmul.cu: launches the kernel of rows_wgmma.cuh, for linear layers with quantized weights and for the
 * operations of a decode step of many sequences, where a norm is a kernel of its own. */
#include "backends/cuda/matmul/rows_matmul.h"
#include "backends/cuda/matmul/rows_wgmma.cuh"

#define MAJOR 9     /* compute capability; later ones have no wgmma */
#define MIN_ROWS 17 /* of x; fewer run decode_mma.cu or quant_matmul.cu */
#define MAX_ROWS 256
#define MAX_PLAIN_ROWS 64 /* without norm or residual: beyond, dequantizing for cuBLASLt is as fast */
#define FULL_DEVICE 128   /* thread blocks */
#define NORM_THREADS 256
#define NORM_VECTORS 8 /* of 8 elements, of a thread: rows of up to 16,384 elements */

/* ---- norms ------------------------------------------------------------------------------------------------------- */

struct norm_rows_args {
    const bf16 *x, *weight, *bias;
    bf16 *y;
    int64_t x_down;
    int in;
    float epsilon, offset;
    bool is_centred;
};

/* Sum over the block, in all threads. */
__device__ __forceinline__ float sum_of_block(float part, float *space)
{
    return block_reduce<plus>(part, space, 0.0f);
}

/* A block per row, which it keeps in registers; y is contiguous. */
template <int VECTORS>
static __global__ void __launch_bounds__(NORM_THREADS) norm_rows_kernel(const __grid_constant__ norm_rows_args a)
{
    __shared__ float space[WARP];
    const bf16 *x = a.x + blockIdx.x * a.x_down;
    float value[VECTORS][8], total = 0;
    pdl_launch_dependents();
    pdl_wait();
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int at = (k * NORM_THREADS + (int)threadIdx.x) * 8;
        vec<bf16, 8> words = {};
        if (at < a.in)
            words = *(const vec<bf16, 8> *)(x + at);
        widen_vec(words, value[k]);
    }
    if (a.is_centred) {
#pragma unroll
        for (int k = 0; k < VECTORS * 8; k++)
            total += value[k / 8][k % 8];
        const float mean = sum_of_block(total, space) / (float)a.in;
#pragma unroll
        for (int k = 0; k < VECTORS * 8; k++)
            value[k / 8][k % 8] -= (k / 8 * NORM_THREADS + (int)threadIdx.x) * 8 < a.in ? mean : 0;
        total = 0;
    }
#pragma unroll
    for (int k = 0; k < VECTORS * 8; k++)
        total += value[k / 8][k % 8] * value[k / 8][k % 8];
    const float factor = rsqrtf(sum_of_block(total, space) / (float)a.in + a.epsilon);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int at = (k * NORM_THREADS + (int)threadIdx.x) * 8;
        if (at >= a.in)
            continue;
        float weight[8], bias[8] = {};
        widen_vec(*(const vec<bf16, 8> *)(a.weight + at), weight);
        if (a.bias)
            widen_vec(*(const vec<bf16, 8> *)(a.bias + at), bias);
#pragma unroll
        for (int i = 0; i < 8; i++)
            value[k][i] = value[k][i] * factor * (weight[i] + a.offset) + bias[i];
        vec<bf16, 8> words;
        narrow_vec(value[k], words);
        store_vec(a.y + blockIdx.x * (int64_t)a.in + at, words);
    }
}

/* x as the matmuls read it. */
struct rows_x {
    const bf16 *base;
    int64_t down; /* elements */
    int in;
};

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* With programmatic dependent launch where the device uses it, as decode.cuh describes. */
template <typename A>
static void launch_rows(const tarn__call *call, void (*kernel)(A), dim3 grid, int threads, int cluster, size_t shared,
                        const A &args)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = dim3((unsigned)threads), config.dynamicSmemBytes = shared,
    config.stream = stream_of(call), config.attrs = attributes;
    config.numAttrs = tarn__cuda_uses_pdl(call->device) ? 2 : 1;
    if (shared > 48 << 10)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&config, kernel, args);
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled(), looked up since the library does not link the driver; NULL: the driver has none. */
static encode_fn tensor_map_encoder(void)
{
    static void *const found = [] {
        void *function = NULL;
        cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status) !=
            cudaSuccess)
#else
        if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &status) != cudaSuccess)
#endif
            cudaGetLastError();
        return function;
    }();
    return (encode_fn)found;
}

/* Describes x (rows, in) in boxes of a panel, with rows of zeros up to `tokens`. */
static bool describe_x(const tarn__call *call, rows_args *a, const rows_x *x, int tokens)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)x->in, (cuuint64_t)a->rows},
                     line[1] = {(cuuint64_t)x->down * sizeof(bf16)};
    const cuuint32_t box[2] = {PANEL, (cuuint32_t)tokens}, steps[2] = {1, 1};
    if (tensor_map_encoder()(&a->x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x->base, sizes, line, box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS)
        return true;
    tarn__cuda_fail("%s: cannot describe x to the copy engine", call->function);
    tarn__cuda_set_failed(call->device);
    return false;
}

/* Number of slices of `in`: enough blocks to occupy a device on which `resident` blocks share a multiprocessor. A slice
 * has at least two stages, and at least eight once there is one block per multiprocessor. */
static int slices_of(int tiles, int stages, int resident)
{
    int slices = 1;
    while (slices < MAX_CLUSTER && tiles * slices * 2 <= resident * FULL_DEVICE &&
           stages >= slices * (tiles * slices < FULL_DEVICE ? 4 : 16))
        slices *= 2;
    return slices;
}

template <tarn_dtype Q, int TOKENS, int STAGES, int BLOCKS>
static void launch_kernel(const tarn__call *call, rows_args &a, const rows_x &x, int tiles)
{
    if (!describe_x(call, &a, &x, TOKENS))
        return;
    const int slices = slices_of(tiles, a.stages, BLOCKS);
    launch_rows(call, rows_kernel<Q, TOKENS, STAGES, BLOCKS>, dim3((unsigned)slices, (unsigned)tiles), BLOCK_THREADS,
                slices, rows_shared<Q, TOKENS, STAGES>(), a);
}

/* Number of stages that fit in shared memory with one block per multiprocessor, or with two. */
template <tarn_dtype Q, int TOKENS> static constexpr int stages_for(int blocks)
{
    return (int)(((227 << 10) / blocks - 2048) / stage_layout<Q, TOKENS>::bytes);
}

template <tarn_dtype Q> static void launch_tokens(const tarn__call *call, rows_args &a, const rows_x &x, int tiles)
{
    if (a.rows <= 64)
        launch_kernel<Q, 64, stages_for<Q, 64>(2), 2>(call, a, x, tiles);
    else if (a.rows <= 128)
        launch_kernel<Q, 128, stages_for<Q, 128>(1), 1>(call, a, x, tiles);
    else
        launch_kernel<Q, 256, stages_for<Q, 256>(1), 1>(call, a, x, tiles);
}

/* Sets the tiles of the weights. */
static void launch(const tarn__call *call, rows_args &a, const rows_x &x, const tarn__view *weight)
{
    const int each = a.is_gated ? GROUP_ROWS : TILE_ROWS;
    int tiles = 0;
    for (int i = 0; i < (a.is_gated ? 1 : a.weights); i++) {
        a.weight[i].first_tile = tiles;
        tiles += (a.weight[i].out + each - 1) / each;
    }
    a.stages = (int)(weight->shape[1] / DEPTH);
    if (tiles == 0 || a.rows == 0)
        return;
    if (weight->dtype == TARN_Q8_0)
        launch_tokens<TARN_Q8_0>(call, a, x, tiles);
    else
        launch_tokens<TARN_Q4_K>(call, a, x, tiles);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static rows_weight rows_weight_of(const tarn__view *weight, const tarn__view *bias, const tarn__view *y)
{
    rows_weight w = {};
    w.base = (const char *)tarn__view_at(weight), w.pitch = tarn__bytes_of(weight->dtype, weight->stride[0]);
    w.out = (int)weight->shape[0];
    if (bias)
        w.bias = (const bf16 *)tarn__view_at(bias), w.bias_across = bias->stride[0];
    if (y)
        w.y = (bf16 *)tarn__view_at(y), w.y_down = y->stride[0];
    return w;
}

/* Activation, scale and soft cap of the call. */
static rows_args rows_args_of(const tarn__call *call, bool has_params)
{
    rows_args a = {};
    a.rows = (int)call->in[0]->shape[0], a.scale = 1;
    if (has_params) {
        const tarn__decode_linear *params = (const tarn__decode_linear *)call->params;
        a.act = params->act, a.scale = (float)params->scale, a.cap = (float)params->softcap;
    }
    return a;
}

static rows_x x_of_call(const tarn__call *call)
{
    const tarn__view *x = call->in[0];
    return rows_x{(const bf16 *)tarn__view_at(x), x->stride[0], (int)x->shape[1]};
}

/* Returns x, normalized into the call's scratch if there is a norm. */
static rows_x normalize(const tarn__call *call, const tarn__view *norm, const tarn__view *bias)
{
    const tarn__decode_linear *params = (const tarn__decode_linear *)call->params;
    const rows_x x = x_of_call(call);
    if (!norm)
        return x;
    const norm_rows_args n = {x.base,
                              (const bf16 *)tarn__view_at(norm),
                              bias ? (const bf16 *)tarn__view_at(bias) : NULL,
                              (bf16 *)call->scratch,
                              x.down,
                              x.in,
                              (float)params->epsilon,
                              (float)params->offset,
                              params->centred != 0};
    const dim3 grid((unsigned)call->in[0]->shape[0]);
    if (n.in <= NORM_THREADS * 8)
        launch_rows(call, norm_rows_kernel<1>, grid, NORM_THREADS, 1, 0, n);
    else if (n.in <= NORM_THREADS * 8 * 2)
        launch_rows(call, norm_rows_kernel<2>, grid, NORM_THREADS, 1, 0, n);
    else
        launch_rows(call, norm_rows_kernel<NORM_VECTORS>, grid, NORM_THREADS, 1, 0, n);
    return rows_x{n.y, n.in, n.in};
}

/* ---- which calls fit --------------------------------------------------------------------------------------------- */

/* Rows of x in whole stages, copied by 16 bytes. */
static bool rows_fit(const tarn__call *call, const tarn__view *weight)
{
    const tarn__view *x = call->in[0];
    const tarn__cuda_device *device = tarn__cuda_at(call->device);
    return device && device->major == MAJOR && tensor_map_encoder() && x->rank == 2 && x->dtype == TARN_BF16 &&
           x->shape[0] >= MIN_ROWS && x->shape[0] <= MAX_ROWS && x->shape[1] > 0 &&
           x->shape[1] % (weight->dtype == TARN_Q4_K ? 256 : DEPTH) == 0 && is_aligned(x) &&
           x->stride[0] >= x->shape[1]; /* the copy engine reads neither reversed nor repeated rows */
}

/* One of two formats, rows of whole vectors; outputs by four. */
static bool weight_fits(const tarn__view *weight, const tarn__view *bias)
{
    return (weight->dtype == TARN_Q8_0 || weight->dtype == TARN_Q4_K) && weight->shape[0] % 4 == 0 &&
           weight->stride[0] > 0 && is_aligned(weight) && (!bias || bias->dtype == TARN_BF16);
}

/* y is a result, or a residual, which may be a view of another tensor; NULL fits: absent, or not allocated yet. */
static bool y_fits(const tarn__view *y)
{
    return !y ||
           (y->dtype == TARN_BF16 && y->stride[1] == 1 && y->stride[0] % 4 == 0 && is_aligned(tarn__view_at(y), 8));
}

/* Rows of a norm must fit in registers. Post-norms are not fused here. */
static bool norm_fits(const tarn__call *call, const tarn__view *norm, const tarn__view *bias, int post)
{
    return (call->inputs <= post || !call->in[post]) &&
           (!norm || (is_aligned(norm) && call->in[0]->shape[1] <= NORM_THREADS * NORM_VECTORS * 8)) &&
           (!bias || is_aligned(bias));
}

static bool fits_matmul_quant(const tarn__call *call)
{
    return call->in[0]->shape[0] <= MAX_PLAIN_ROWS && rows_fit(call, call->in[1]) &&
           weight_fits(call->in[1], call->inputs > 2 ? call->in[2] : NULL) &&
           y_fits(call->outputs > 0 ? call->out[0] : NULL);
}

static bool fits_norm_linear(const tarn__call *call)
{
    bool good = rows_fit(call, call->in[2]) && norm_fits(call, call->in[1], call->inputs > 8 ? call->in[8] : NULL, 9);
    for (int i = 0; good && i < 3 && 2 + i < call->inputs && call->in[2 + i]; i++)
        good = weight_fits(call->in[2 + i], 5 + i < call->inputs ? call->in[5 + i] : NULL);
    return good;
}

static bool fits_norm_gate_up(const tarn__call *call)
{
    return rows_fit(call, call->in[2]) && norm_fits(call, call->in[1], call->inputs > 4 ? call->in[4] : NULL, 5) &&
           weight_fits(call->in[2], NULL) && weight_fits(call->in[3], NULL) &&
           call->in[2]->stride[0] == call->in[3]->stride[0];
}

static bool fits_linear_residual(const tarn__call *call)
{
    return rows_fit(call, call->in[1]) && weight_fits(call->in[1], call->in[2]) && y_fits(call->in[3]);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void run_matmul_quant(const tarn__call *call)
{
    rows_args a = rows_args_of(call, false);
    a.weight[0] = rows_weight_of(call->in[1], call->inputs > 2 ? call->in[2] : NULL, call->out[0]), a.weights = 1;
    launch(call, a, x_of_call(call), call->in[1]);
}

/* Up to three weights (q, k, v) share one launch. */
static void run_norm_linear(const tarn__call *call)
{
    rows_args a = rows_args_of(call, true);
    const rows_x x = normalize(call, call->in[1], call->in[8]);
    for (; a.weights < 3 && call->in[2 + a.weights]; a.weights++)
        a.weight[a.weights] = rows_weight_of(call->in[2 + a.weights], call->in[5 + a.weights], call->out[a.weights]);
    launch(call, a, x, call->in[2]);
}

/* act(gate) · up: a tile has the same rows of both. */
static void run_norm_gate_up(const tarn__call *call)
{
    rows_args a = rows_args_of(call, true);
    const rows_x x = normalize(call, call->in[1], call->in[4]);
    a.weight[0] = rows_weight_of(call->in[2], NULL, call->out[0]);
    a.weight[1] = rows_weight_of(call->in[3], NULL, NULL);
    a.weights = 2, a.is_gated = true;
    launch(call, a, x, call->in[2]);
}

/* Output projections: bias and the residual stream are added at the end. */
static void run_linear_residual(const tarn__call *call)
{
    rows_args a = rows_args_of(call, true);
    a.weight[0] = rows_weight_of(call->in[1], call->in[2], call->out[0]), a.weights = 1;
    a.sum = (const bf16 *)tarn__view_at(call->in[3]), a.sum_down = call->in[3]->stride[0];
    launch(call, a, x_of_call(call), call->in[1]);
}

/* x normalized. */
static tarn__plan_status prepare_norm(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = call->in[1] ? (size_t)tarn__view_count(call->in[0]) * sizeof(bf16) : 0;
    return TARN__PLAN_READY;
}

#define ROWS_DTYPES (TARN__BIT(TARN_BF16) | TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_K))

tarn__kernel_row tarn__cuda_rows_matmul_quant(void)
{
    return tarn__row_named(tarn__row_fits(tarn__row(run_matmul_quant, ROWS_DTYPES), fits_matmul_quant), "wgmma");
}
tarn__kernel_row tarn__cuda_rows_norm_linear(void)
{
    return tarn__row_named(
        tarn__row_fits(tarn__row_planned(prepare_norm, run_norm_linear, ROWS_DTYPES), fits_norm_linear), "wgmma");
}
tarn__kernel_row tarn__cuda_rows_norm_gate_up(void)
{
    return tarn__row_named(
        tarn__row_fits(tarn__row_planned(prepare_norm, run_norm_gate_up, ROWS_DTYPES), fits_norm_gate_up), "wgmma");
}
tarn__kernel_row tarn__cuda_rows_linear_residual(void)
{
    return tarn__row_named(tarn__row_fits(tarn__row(run_linear_residual, ROWS_DTYPES), fits_linear_residual), "wgmma");
}

/* decode_gemv.cuh: operands of the GEMV kernels of a decode step, their epilogue, and limits that they share. */
#ifndef TARN__CUDA_DECODE_GEMV_CUH
#define TARN__CUDA_DECODE_GEMV_CUH

#include "backends/cuda/decode/decode_x.cuh"

#define STATIC_SHARED 1024 /* bytes of static shared memory, at most: the device's limit counts both kinds */
#define ROWS_AT_ONCE 4     /* of x, if there are several */

/* A weight (out, in): floats or quant blocks, rows contiguous. */
struct gemv_weight {
    const char *base;
    int64_t pitch, out; /* row stride in bytes; rows */
    const void *bias;   /* NULL: none */
    tarn_dtype bias_dtype;
    int64_t bias_across;
    void *y;
    int64_t y_down;
};

/* A job is one element of y per row of x: a row of a weight, or of both gated weights. */
struct gemv_args {
    decode_x x;
    gemv_weight weight[3]; /* missing weights have no rows */
    int64_t jobs, row_bytes;
    int chunks;      /* chunks per row */
    int is_gated;    /* y = act(first) · second */
    const void *sum; /* residual added to the result; NULL: none */
    int64_t sum_down;
    /* with is_general; else silu if gated, none if not, and 1: */
    int act;     /* tarn__act, of the gate or of the result */
    float scale; /* of the result, before soft cap and residual */
    float cap;   /* soft cap; 0: none */
};

/* True if the kernels of rmsnorm and SiLU gates do not do. */
static inline bool is_general(const gemv_args &a)
{
    return a.x.post || a.x.is_centred || a.x.norm_bias || a.x.offset != 0 || a.scale != 1 || a.cap > 0 ||
           a.act != (a.is_gated ? TARN__ACT_SILU : TARN__ACT_NONE);
}

/* In f32; results are rounded to the dtype of x, or quantized. */
__device__ __forceinline__ float activate(int act, float x)
{
    switch (act) {
    case TARN__ACT_SILU: return x / (1 + expf(-x));
    case TARN__ACT_GELU: return x / (1 + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    case TARN__ACT_GELU_ERF: return x * normcdff(x);
    case TARN__ACT_RELU: return x < 0 ? 0 : x;
    default: return x;
    }
}

/* Bias and residual of an element of y, loaded long before they are needed. */
struct addend {
    uint32_t bias, sum;

    /* Of element `row` of y, for row `of_x` of x. */
    __device__ __forceinline__ void load(const gemv_args &a, const gemv_weight &w, int64_t row, int64_t of_x)
    {
        if (w.bias)
            bias = load_bits(w.bias, w.bias_dtype, row * w.bias_across);
        if (a.sum)
            sum = load_bits(a.sum, a.x.dtype, of_x * a.sum_down + row);
    }
    __device__ __forceinline__ float add_to(const gemv_args &a, const gemv_weight &w, float value) const
    {
        if (w.bias)
            value += widen_bits(bias, w.bias_dtype);
        if (a.sum)
            value += widen_bits(sum, a.x.dtype);
        return value;
    }
    __device__ __forceinline__ float add_general(const gemv_args &a, const gemv_weight &w, float value) const
    {
        if (w.bias)
            value += widen_bits(bias, w.bias_dtype);
        value = activate(a.act, value) * a.scale;
        if (a.cap > 0)
            value = a.cap * tanhf(value / a.cap);
        if (a.sum)
            value += widen_bits(sum, a.x.dtype);
        return value;
    }
};

/* ---- operands of a call ------------------------------------------------------------------------------------------ */

/* An optional input; NULL: absent. */
static inline const tarn__view *input_at(const tarn__call *call, int i)
{
    return i < call->inputs ? call->in[i] : NULL;
}

/* The params of a call; defaults if it has none, as when a kernel row is asked whether it fits. */
static inline const tarn__decode_linear *params_of(const tarn__call *call)
{
    static const tarn__decode_linear none = {};
    return call->params ? (const tarn__decode_linear *)call->params : &none;
}

/* x is (rows, in), rows contiguous; `norm` NULL: no norm. */
static inline decode_x x_of(const tarn__call *call, const tarn__view *norm, const tarn__view *norm_bias)
{
    const tarn__view *x = call->in[0];
    const tarn__decode_linear *params = params_of(call);
    return decode_x{tarn__view_at(x),
                    x->dtype,
                    x->stride[0],
                    data_of<void>(norm),
                    (float)params->epsilon,
                    (int)x->shape[1],
                    (int)x->shape[0],
                    data_of<void>(norm_bias),
                    norm ? (float)params->offset : 0,
                    norm && params->centred};
}

/* Makes x a branch with a post-norm, if the call has one. */
static inline void set_post(const tarn__call *call, decode_x *x, int post, int sum, int new_sum)
{
    const tarn__decode_linear *params = params_of(call);
    if (!input_at(call, post) || !call->out[new_sum])
        return;
    x->post = tarn__view_at(call->in[post]);
    x->sum = tarn__view_at(call->in[sum]), x->sum_down = call->in[sum]->stride[0];
    x->new_sum = tarn__view_at(call->out[new_sum]), x->new_sum_down = call->out[new_sum]->stride[0];
    x->post_epsilon = (float)params->post_epsilon, x->post_offset = (float)params->post_offset,
    x->post_scale = (float)params->post_scale;
}

/* Norm, activation and scale of a call; weights and jobs follow. */
static inline gemv_args args_of(const tarn__call *call, const tarn__view *norm, const tarn__view *norm_bias)
{
    const tarn__decode_linear *params = params_of(call);
    gemv_args a = {};
    a.x = x_of(call, norm, norm_bias);
    a.act = params->act, a.scale = (float)params->scale, a.cap = (float)params->softcap;
    return a;
}

/* Strides in bytes: rows of quant blocks. */
static inline gemv_weight weight_of(const tarn__view *weight, const tarn__view *bias, const tarn__view *y)
{
    gemv_weight w = {};
    int64_t down = weight->stride[0];
    w.base = (const char *)tarn__view_at(weight), w.out = weight->shape[0];
    w.pitch = down < 0 ? -tarn__bytes_of(weight->dtype, -down) : tarn__bytes_of(weight->dtype, down);
    if (bias)
        w.bias = tarn__view_at(bias), w.bias_dtype = bias->dtype, w.bias_across = bias->stride[0];
    if (y)
        w.y = tarn__view_at(y), w.y_down = y->stride[0];
    return w;
}

/* ---- which calls fit --------------------------------------------------------------------------------------------- */

#define MAX_GEMV_ROWS 8 /* rows of x; more are a matmul */
/* elements of x in shared memory, as f32: within 99 KiB, the smallest limit of the supported devices; decode_gemv.cu
 * takes more where the device has the memory */
#define MAX_ROW 8192
#define MAX_BYTE_ROW 16384 /* as bytes, for quantized weights */

/* True when the last axis is contiguous and every row begins at a multiple of 16 bytes, for vector loads. */
static inline bool is_aligned(const tarn__view *view)
{
    int last = view->rank - 1;
    bool good = view->stride[last] == 1 && (uintptr_t)tarn__view_at(view) % 16 == 0;
    for (int i = 0; good && i < last; i++)
        good = view->shape[i] == 1 ||
               tarn__bytes_of(view->dtype, view->stride[i] < 0 ? -view->stride[i] : view->stride[i]) % 16 == 0;
    return good;
}

/* Rows in whole vectors, and a norm whose weight and bias can be read by vectors. */
static inline bool is_x_aligned(const tarn__view *x, const tarn__view *norm, const tarn__view *norm_bias)
{
    return x->rank == 2 && x->shape[1] > 0 && x->shape[1] % 8 == 0 && is_aligned(x) && (!norm || is_aligned(norm)) &&
           (!norm_bias || is_aligned(norm_bias));
}

/* The same, and few enough rows. */
static inline bool x_fits(const tarn__view *x, const tarn__view *norm, const tarn__view *norm_bias)
{
    return x->shape[0] <= MAX_GEMV_ROWS && is_x_aligned(x, norm, norm_bias);
}

/* True if a multiprocessor has shared memory for two blocks with so many dynamic bytes: it has 1 KiB more than a block
 * may have, and keeps 1 KiB of each. */
static inline bool two_blocks_fit(const tarn__call *call, size_t dynamic)
{
    return BLOCKS_PER_SM * (dynamic + STATIC_SHARED + 256) <=
           (size_t)tarn__cuda_at(call->device)->shared_bytes + STATIC_SHARED;
}

/* True without a post-norm, or where a block normalizes the branch in one batch of loads. */
static inline bool post_fits(const tarn__call *call, int post)
{
    if (call->inputs <= post + 1 || !call->in[post])
        return true;
    const int64_t batch = DECODE_WARPS * WARP * 8 * (call->in[0]->dtype == TARN_F32 ? 1 : 2);
    return is_aligned(call->in[post]) && is_aligned(call->in[post + 1]) && call->in[0]->shape[1] <= batch;
}

/* ---- other kernels ----------------------------------------------------------------------------------------------- */

/* decode_gemv_in_out.cu: rows for float weights stored as [in, out]. */
tarn__kernel_row tarn__cuda_norm_linear_in_out(void);
tarn__kernel_row tarn__cuda_linear_residual_in_out(void);

/* decode_gemv_quant.cu: launches the two-rows-per-warp kernel if it supports the operands; else false. */
bool tarn__cuda_decode_gemv_quant(const tarn__call *call, const gemv_args &args, tarn_dtype dtype);

/* decode_mma.cu: launches the tensor-core kernel if it supports the operands; else false. Without is_launched it only
 * checks, and reads nothing of the call but the device. */
bool tarn__cuda_decode_mma(const tarn__call *call, const gemv_args &args, tarn_dtype dtype, bool is_launched);

#endif

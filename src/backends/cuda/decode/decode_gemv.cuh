/* decode_gemv.cuh: operands of the GEMV kernels of a decode step, and their epilogue. */
#ifndef TARN__CUDA_DECODE_GEMV_CUH
#define TARN__CUDA_DECODE_GEMV_CUH

#include "backends/cuda/decode/decode_x.cuh"

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
    float scale; /* of the result, before the residual */
};

/* True if the kernels of rmsnorm and SiLU gates do not do. */
static inline bool is_general(const gemv_args &a)
{
    return a.x.is_centred || a.x.norm_bias || a.x.offset != 0 || a.scale != 1 ||
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
        if (a.sum)
            value += widen_bits(sum, a.x.dtype);
        return value;
    }
};

/* decode_gemv_quant.cu: launches the two-rows-per-warp kernel if it supports the operands; else false. */
bool tarn__cuda_decode_gemv_quant(const tarn__call *call, const gemv_args &args, tarn_dtype dtype);

#endif

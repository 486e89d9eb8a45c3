/* decode_gemv.cuh: operands of the products of a decoding step, and what is added to them. */
#ifndef TARN__CUDA_STEP_PRODUCT_CUH
#define TARN__CUDA_STEP_PRODUCT_CUH

#include "backends/cuda/decode/decode_x.cuh"

struct step_weight {
    const char *base;
    int64_t pitch, out; /* bytes from row to row */
    const void *bias;   /* NULL: none */
    tarn_dtype bias_dtype;
    int64_t bias_across;
    void *y;
    int64_t y_down;
};

struct step_args {
    step_x x;
    step_weight weight[3]; /* those that are not there have no rows */
    int64_t jobs, row_bytes;
    int pieces;      /* of a row */
    int is_gated;    /* y = silu(first) · second */
    const void *sum; /* to which the product is added; NULL: none */
    int64_t sum_down;
};

/* What is added to an element of y, as it lies in memory: asked for long before it is needed. */
struct addition {
    uint32_t bias, sum;

    /* Element `row` of y, in row `of_x`. */
    __device__ __forceinline__ void ask(const step_args &a, const step_weight &w, int64_t row, int64_t of_x)
    {
        if (w.bias)
            bias = bits_at(w.bias, w.bias_dtype, row * w.bias_across);
        if (a.sum)
            sum = bits_at(a.sum, a.x.dtype, of_x * a.sum_down + row);
    }
    __device__ __forceinline__ float added_to(const step_args &a, const step_weight &w, float value) const
    {
        if (w.bias)
            value += opened(bias, w.bias_dtype);
        if (a.sum)
            value += opened(sum, a.x.dtype);
        return value;
    }
};

/* Starts the product by pairs of rows, if it is one of those that can be made so: see decode_gemv_quant.cu. */
bool tarn__cuda_decode_gemv_quant(const tarn__call *call, const step_args &args, tarn_dtype dtype);

#endif

/* quantize.cu: f32 to quant blocks by the shared source, bitwise identical with the CPU. The build passes -fmad=false
 * for this file: the source's products and sums are rounded one by one. */
#include "backends/cuda/common/kernel.cuh"

extern "C" {
#include "base/quant/quant.h"
}

#define QUANT_FN static __device__
#define QUANT_SPACE
#define QUANT_MUL(a, b) __fmul_rn(a, b)
#define F16_TO_F32(bits) __half2float(__ushort_as_half(bits))
#define F32_TO_F16(x) __half_as_ushort(__float2half_rn(x))
#define QUANTIZE_K
#include "base/quant/quantize.inc"

#define BLOCK_THREADS 64 /* few: a tensor has a quant block of 256 elements per thread */

/* One quant block per thread, from and to contiguous tensors. */
template <typename B, int ELEMENTS, void (*quantize)(const float *, B *)>
static __global__ void __launch_bounds__(BLOCK_THREADS) quantize_kernel(const float *x, B *y, int64_t blocks)
{
    const int64_t at = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (at < blocks)
        quantize(x + at * ELEMENTS, y + at);
}

template <typename B, int ELEMENTS, void (*quantize)(const float *, B *)> static void launch(const tarn__call *call)
{
    const int64_t blocks = tarn__view_count(call->in[0]) / ELEMENTS;
    if (blocks > 0)
        quantize_kernel<B, ELEMENTS, quantize>
            <<<blocks_for(blocks, BLOCK_THREADS), BLOCK_THREADS, 0, stream_of(call)>>>(
                data_of<float>(call->in[0]), (B *)tarn__view_at(call->out[0]), blocks);
}

/* Grid: one thread per quant block. Bytes: 4 read per element, the quant blocks written. */
static void kernel_quantize(const tarn__call *call)
{
    switch (call->out[0]->dtype) {
    case TARN_Q8_0: launch<tarn__q8_0, 32, quantize_q8_0>(call); break;
    case TARN_Q4_0: launch<tarn__q4_0, 32, quantize_q4_0>(call); break;
    case TARN_Q4_1: launch<tarn__q4_1, 32, quantize_q4_1>(call); break;
    case TARN_Q5_0: launch<tarn__q5_0, 32, quantize_q5_0>(call); break;
    case TARN_Q5_1: launch<tarn__q5_1, 32, quantize_q5_1>(call); break;
    case TARN_Q4_K: launch<tarn__q4_k, 256, quantize_q4_k>(call); break;
    default: launch<tarn__q6_k, 256, quantize_q6_k>(call);
    }
}

void tarn__cuda_register_quantize(tarn__kernel_row *rows)
{
    const uint32_t dtypes = TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_0) | TARN__BIT(TARN_Q4_K) | TARN__BIT(TARN_Q6_K) |
                            TARN__BIT(TARN_Q4_1) | TARN__BIT(TARN_Q5_0) | TARN__BIT(TARN_Q5_1);
    rows[TARN__K_quantize] = tarn__row(kernel_quantize, TARN__BIT(TARN_F32) | dtypes);
}

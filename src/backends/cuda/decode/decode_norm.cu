/* decode_norm.cu: the end of a residual branch with a post-norm in a decode step: sum + scale · norm(x). */
#include "backends/cuda/decode/decode_gemv.cuh"

struct norm_residual_args {
    decode_x x;
    const void *sum; /* (rows, in), of x's dtype */
    void *y;
    int64_t sum_down, y_down;
    float scale;
};

/* One block per row. The norm is rounded to T as the operation would; scale and sum are not rounded in between. */
template <typename T>
static __global__ void __launch_bounds__(DECODE_WARPS *WARP)
    norm_residual_kernel(const __grid_constant__ norm_residual_args a)
{
    extern __shared__ __align__(16) char space[];
    const int64_t row = blockIdx.x;
    const staged_x normed = staged_x_at(space, a.x.in, F32_ROWS);
    const char *sum = (const char *)((const T *)a.sum + row * a.sum_down);
    char *y = (char *)((T *)a.y + row * a.y_down);
    pdl_launch_dependents();
    prefetch_norm(a.x);
    pdl_wait();
    stage_general_rows<T, F32_ROWS>(a.x, row, 1, normed);
    __syncthreads();
    for (int group = threadIdx.x; group < a.x.in / 8; group += DECODE_WARPS * WARP) {
        float4 low = normed.floats(0, group, 0), high = normed.floats(0, group, 1);
        float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, s[8];
        vec8<T> words;
        words.load(sum + group * 8 * (int)sizeof(T));
        words.unpack(0, s);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = s[i] + a.scale * v[i];
        words.pack(v);
        words.store(y + group * 8 * (int)sizeof(T));
    }
}

/* Grid: rows. Bytes: x, sum, y and the norm's weight, all small: the time is that of a launch. */
template <typename T> static void launch(const tarn__call *call, const norm_residual_args &a)
{
    launch_decode(call, norm_residual_kernel<T>, dim3((unsigned)a.x.rows), DECODE_WARPS * WARP,
                  (size_t)staged_pitch(a.x.in, F32_ROWS), a);
}

static void kernel_norm_residual(const tarn__call *call)
{
    norm_residual_args a = {};
    a.x = x_of(call, call->in[1], call->in[2]);
    a.sum = tarn__view_at(call->in[3]), a.sum_down = call->in[3]->stride[0];
    a.y = tarn__view_at(call->out[0]), a.y_down = call->out[0]->stride[0];
    a.scale = (float)((const tarn__decode_linear *)call->params)->scale;
    if (a.x.rows == 0)
        return;
    switch (a.x.dtype) {
    case TARN_BF16: launch<bf16>(call, a); break;
    case TARN_F16: launch<f16>(call, a); break;
    default: launch<float>(call, a); break;
    }
}

/* Rows of whole vectors, in shared memory as f32: 32 KiB at most, which needs no opt-in. The result is contiguous, so
 * its rows are aligned as well. */
static bool fits(const tarn__call *call)
{
    return call->in[1] && is_x_aligned(call->in[0], call->in[1], call->in[2]) && call->in[0]->shape[1] <= MAX_ROW &&
           is_aligned(call->in[3]);
}

void tarn__cuda_register_decode_norm(tarn__kernel_row *rows)
{
    rows[TARN__K_norm_residual] = tarn__row_fits(
        tarn__row(kernel_norm_residual, TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16)), fits);
}

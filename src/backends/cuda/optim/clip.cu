/* clip.cu: sums of squares over the segments of a flat gradient, and the factor that clips its norm.
 *
 * Squares are summed in f64. A block sums a chunk to scratch; a warp adds the chunks of a segment; one block computes
 * the factor. Bytes: the gradient, read once. The chunks are the optimizer's, so the result does not depend on the
 * device. */
#include "backends/cuda/common/element.cuh"

/* Warps per block, one segment each. */
#define WARPS 4

/* One block per chunk [begin, end), in 16-byte vectors if its start is aligned. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) sum_chunks(const T *gradient, const int64_t *chunk, double *partial)
{
    constexpr int N = vec_size<T>::value;
    __shared__ double space[WARP];
    const int64_t begin = chunk[2 * (int64_t)blockIdx.x], end = chunk[2 * (int64_t)blockIdx.x + 1];
    /* chunks start anywhere in the flat buffer */
    const bool has_vecs = (uintptr_t)(gradient + begin) % 16 == 0;
    const int64_t vecs = has_vecs ? (end - begin) / N : 0;
    double sum = 0;
#pragma unroll 4
    for (int64_t p = threadIdx.x; p < vecs; p += THREADS) {
        vec<T, N> x = *(const vec<T, N> *)(gradient + begin + p * N);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += (double)x.at[i] * (double)x.at[i];
    }
    for (int64_t at = begin + vecs * N + threadIdx.x; at < end; at += THREADS)
        sum += (double)gradient[at] * (double)gradient[at];
    /* fixed order: the result is deterministic */
    sum = block_reduce<plus>(sum, space, 0.0);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

/* One warp per segment: its chunks in order, over the lanes. */
static __global__ void __launch_bounds__(WARP *WARPS)
    sum_segments(const int64_t *first, const double *partial, double *sums, int64_t segments)
{
    int64_t segment = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (segment >= segments)
        return;
    double sum = 0;
    for (int64_t at = first[segment] + threadIdx.x % WARP; at < first[segment + 1]; at += WARP)
        sum += partial[at - first[0]];
    sum = warp_reduce<plus>(sum);
    if (threadIdx.x % WARP == 0)
        sums[segment] = sum;
}

/* Grid: a block per chunk, then a warp per segment. */
static void run_square_sums(const tarn__call *call)
{
    int64_t chunks = call->in[1]->shape[0], segments = call->out[0]->shape[0];
    const int64_t *chunk = data_of<const int64_t>(call->in[1]), *first = data_of<const int64_t>(call->in[2]);
    double *partial = (double *)call->scratch;
    if (segments == 0)
        return;
    if (chunks > 0 && call->in[0]->dtype == TARN_F64)
        sum_chunks<double>
            <<<(unsigned)chunks, THREADS, 0, stream_of(call)>>>(data_of<const double>(call->in[0]), chunk, partial);
    else if (chunks > 0)
        sum_chunks<float>
            <<<(unsigned)chunks, THREADS, 0, stream_of(call)>>>(data_of<const float>(call->in[0]), chunk, partial);
    sum_segments<<<blocks_for(segments, WARPS), WARP * WARPS, 0, stream_of(call)>>>(
        first, partial, data_of<double>(call->out[0]), segments);
}

/* One f64 per chunk. */
static tarn__plan_status prepare_square_sums(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = sizeof(double) * (size_t)call->in[1]->shape[0];
    return TARN__PLAN_READY;
}

/* One block. As torch.nn.utils.clip_grad_norm_: NaN stays NaN, and an infinite norm gives a factor of 0. */
static __global__ void __launch_bounds__(THREADS)
    find_factor(const double *sums, int64_t count, const __grid_constant__ tarn__clip clip, void *norm,
                tarn_dtype norm_dtype, double *factor)
{
    __shared__ double space[WARP];
    double squares = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        squares += sums[i];
    squares = block_reduce<plus>(squares, space, 0.0);
    if (threadIdx.x != 0)
        return;
    double previous = clip.again ? *factor : 1, found = sqrt(squares) * previous,
           ratio = clip.max_norm / (found + 1e-6);
    /* the norm before clipping */
    store_any(norm, norm_dtype, 0, found);
    *factor = previous * (ratio >= 1 ? 1 : ratio);
}

/* `again`: the gradient has a pending factor from an earlier clip. */
static void run_clip_factor(const tarn__call *call)
{
    find_factor<<<1, THREADS, 0, stream_of(call)>>>(data_of<const double>(call->in[0]), call->in[0]->shape[0],
                                                    *(const tarn__clip *)call->params, tarn__view_at(call->out[0]),
                                                    call->out[0]->dtype, data_of<double>(call->out[1]));
}

void tarn__cuda_register_clip(tarn__kernel_row *rows)
{
    rows[TARN__K_square_sums] =
        tarn__row_planned(prepare_square_sums, run_square_sums, TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64));
    rows[TARN__K_clip_factor] = tarn__row(run_clip_factor, TARN__BIT(TARN_F64));
}

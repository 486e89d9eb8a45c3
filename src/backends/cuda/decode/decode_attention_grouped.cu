/* decode_attention_grouped.cu: launches the kernel of decode_attention_grouped.cuh, and decides which calls fit it. */
#include "backends/cuda/decode/decode_attention_grouped.cuh"
#include "backends/cuda/decode/decode_attention_grouped.h"

#define MIN_BLOCKS 64 /* sequences times KV heads: fewer blocks leave multiprocessors idle */

/* The grid covers the capacity of the cache, since a captured graph keeps it while the sequences grow. */
template <typename T, int D> static void launch(const tarn__call *call, const decode_args &a)
{
    const int64_t keys = a.window > 0 && a.window < a.capacity ? a.window : a.capacity;
    const unsigned splits = blocks_for(keys, GROUPED_SPLIT);
    launch_decode(
        call, grouped_kernel<T, D>,
        dim3(splits < MAX_SPLITS ? splits : MAX_SPLITS, (unsigned)(a.heads / a.group), (unsigned)call->in[0]->shape[0]),
        GROUPED_THREADS, 0, a);
}

void tarn__cuda_decode_attention_grouped(const tarn__call *call)
{
    if (tarn__view_count(call->in[0]) == 0)
        return;
    const decode_args a = args_of(call);
    const bool is_short = a.head_dim == 64;
    if (a.dtype == TARN_BF16)
        is_short ? launch<bf16, 64>(call, a) : launch<bf16, 128>(call, a);
    else
        is_short ? launch<f16, 64>(call, a) : launch<f16, 128>(call, a);
}

/* True if every row consists of aligned vectors of 8 elements. */
static bool has_vectors(const tarn__view *rows)
{
    return rows->stride[3] == 1 && rows->stride[0] % 8 == 0 && rows->stride[1] % 8 == 0 && rows->stride[2] % 8 == 0 &&
           is_aligned(tarn__view_at(rows), 16);
}

/* Many sequences, 16-bit keys of the queries' dtype, groups of at most MAX_GROUP. */
bool tarn__cuda_decode_attention_grouped_fits(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *keys = call->out[1], *values = call->outputs > 2 ? call->out[2] : NULL;
    const int64_t heads = keys->shape[1], blocks = q->shape[0] * heads;
    return (q->dtype == TARN_BF16 || q->dtype == TARN_F16) && keys->dtype == q->dtype &&
           (q->shape[3] == 64 || q->shape[3] == 128) && q->shape[2] <= heads * MAX_GROUP && q->stride[3] == 1 &&
           blocks >= MIN_BLOCKS && blocks <= TARN__CUDA_COUNTERS && has_vectors(keys) &&
           (!values || has_vectors(values));
}

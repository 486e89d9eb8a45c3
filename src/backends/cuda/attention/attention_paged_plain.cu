/* attention_paged_plain.cu: attention over a paged KV cache for f64, odd head sizes and any strides: what the vectors
 * of attention_paged.cu do not fit.
 *
 * A block takes one row and one query head, and walks its keys in tiles of TILE_KEYS: a thread computes the score of a
 * key, then columns of the weighted values. Tiles lie at multiples of TILE_KEYS from the sequence's first key, so a
 * row's bits do not depend on the batch. Bytes: keys and values once per query head; sums in f64 for f64, else in f32.
 */
#include "backends/cuda/attention/attention_paged.cuh"

#define TILE_KEYS 128
#define MAX_PLAIN_DIM 2048 /* elements of a head: a query and its values are in shared memory */

/* A view with its last axis strided, read element by element. */
struct plain_rows {
    const void *base;
    tarn_dtype dtype;
    int64_t stride[4];     /* in elements; q and y have three axes */
    const uint16_t *scale; /* bits of f16; NULL: not quantized */
    int64_t scale_stride[4];
};

struct plain_args {
    plain_rows q, key, value, y;
    paged_sequences rows;
    int group, head_dim;
    double scale, cap; /* cap 0: none */
};

/* The element at `at`, an offset in elements. */
template <typename A> __device__ __forceinline__ A load_element(const plain_rows &p, int64_t at)
{
    switch (p.dtype) {
    case TARN_F64: return (A)((const double *)p.base)[at];
    case TARN_BF16: return (A)widen(((const bf16 *)p.base)[at]);
    case TARN_F16: return (A)widen(((const f16 *)p.base)[at]);
    case TARN_U8: return (A)((int)((const uint8_t *)p.base)[at] - TARN__KV_Q8_ZERO);
    default: return (A)((const float *)p.base)[at];
    }
}

template <typename A>
__device__ __forceinline__ A load_page(const plain_rows &p, int64_t page, int64_t row, int64_t head, int d)
{
    const A x =
        load_element<A>(p, page * p.stride[0] + row * p.stride[1] + head * p.stride[2] + (int64_t)d * p.stride[3]);
    if (!p.scale)
        return x;
    const int64_t at = page * p.scale_stride[0] + row * p.scale_stride[1] + head * p.scale_stride[2] +
                       (int64_t)(d / TARN__KV_Q8_GROUP) * p.scale_stride[3];
    return x * (A)__half2float(__ushort_as_half(p.scale[at]));
}

template <typename A> __device__ __forceinline__ void store_element(const plain_rows &p, int64_t at, A x)
{
    switch (p.dtype) {
    case TARN_F64: ((double *)p.base)[at] = (double)x; break;
    case TARN_BF16: ((bf16 *)p.base)[at] = narrow<bf16>((float)x); break;
    case TARN_F16: ((f16 *)p.base)[at] = narrow<f16>((float)x); break;
    default: ((float *)p.base)[at] = (float)x; break;
    }
}

/* Score of a key: scaled, and capped. */
template <typename A>
__device__ __forceinline__ A score_of(const plain_args &a, const A *query, int64_t page, int64_t row, int64_t head)
{
    A sum = 0;
    for (int d = 0; d < a.head_dim; d++)
        sum += query[d] * load_page<A>(a.key, page, row, head, d);
    sum *= (A)a.scale;
    return a.cap > 0 ? (A)a.cap * tanh(sum / (A)a.cap) : sum;
}

/* Block (row, query head). Shared memory: query (D), values (D), weights and pages of a tile. */
template <typename A>
static __global__ void __launch_bounds__(TILE_KEYS) plain_kernel(const __grid_constant__ plain_args a)
{
    extern __shared__ double shared[];
    A *query = (A *)shared, *values = query + a.head_dim, *weight = values + a.head_dim;
    int64_t *pages = (int64_t *)(weight + TILE_KEYS);
    const int64_t row = blockIdx.x, head = blockIdx.y, kv_head = head / a.group;
    const int thread = threadIdx.x;
    const row_keys keys(a.rows, row, blockIdx.y == 0 && thread == 0);
    for (int d = thread; d < a.head_dim; d += TILE_KEYS) {
        query[d] = load_element<A>(a.q, row * a.q.stride[0] + head * a.q.stride[1] + (int64_t)d * a.q.stride[2]);
        values[d] = 0;
    }
    A row_max = -(A)CUDART_INF, sum = 0; /* the same in all threads */
    __syncthreads();
    for (int64_t base = keys.first / TILE_KEYS * TILE_KEYS; base < keys.end; base += TILE_KEYS) {
        const int64_t key = base + thread;
        const int64_t page = key >= keys.first && key < keys.end ? a.rows.page_of(keys.sequence, key) : -1;
        const A score = page >= 0 ? score_of(a, query, page, key % TARN__KV_PAGE, kv_head) : -(A)CUDART_INF;
        weight[thread] = score, pages[thread] = page;
        __syncthreads();
        A new_max = row_max;
        for (int i = 0; i < TILE_KEYS; i++)
            new_max = weight[i] > new_max || weight[i] != weight[i] ? weight[i] : new_max;
        __syncthreads();
        weight[thread] = score == -(A)CUDART_INF ? 0 : exp(score - new_max);
        __syncthreads();
        const A rescale = row_max == -(A)CUDART_INF ? 0 : exp(row_max - new_max);
        sum *= rescale;
        for (int i = 0; i < TILE_KEYS; i++)
            sum += weight[i];
        for (int d = thread; d < a.head_dim; d += TILE_KEYS) {
            A value = values[d] * rescale;
            for (int i = 0; i < TILE_KEYS; i++)
                if (pages[i] >= 0)
                    value += weight[i] * load_page<A>(a.value, pages[i], (base + i) % TARN__KV_PAGE, kv_head, d);
            values[d] = value;
        }
        row_max = new_max;
        __syncthreads();
    }
    for (int d = thread; d < a.head_dim; d += TILE_KEYS)
        store_element<A>(a.y, row * a.y.stride[0] + head * a.y.stride[1] + (int64_t)d * a.y.stride[2],
                         sum == 0 ? 0 : values[d] / sum);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static plain_rows plain_rows_of(const tarn__view *rows, const tarn__view *scale)
{
    plain_rows p = {};
    p.base = tarn__view_at(rows), p.dtype = rows->dtype;
    p.scale = data_of<const uint16_t>(scale);
    for (int i = 0; i < rows->rank; i++)
        p.stride[i] = rows->stride[i];
    for (int i = 0; scale && i < scale->rank; i++)
        p.scale_stride[i] = scale->stride[i];
    return p;
}

static bool fits(const tarn__call *call)
{
    const tarn__view *q = call->in[0];
    return q->shape[2] <= MAX_PLAIN_DIM && q->shape[1] <= 65535;
}

/* Inputs q, k, v, table, row starts, lengths, scales of k and of v. Grid: rows, query heads. */
static void kernel_attention_paged_plain(const tarn__call *call)
{
    const tarn__attention *params = (const tarn__attention *)call->params;
    const tarn__view *q = call->in[0], *k = call->in[1];
    if (tarn__view_count(q) == 0)
        return;
    plain_args a = {};
    a.q = plain_rows_of(q, NULL), a.y = plain_rows_of(call->out[0], NULL);
    a.key = plain_rows_of(k, call->in[6]), a.value = plain_rows_of(call->in[2], call->in[7]);
    a.rows = paged_sequences_of(call);
    a.group = (int)(q->shape[1] / k->shape[2]), a.head_dim = (int)q->shape[2];
    a.scale = params->scale, a.cap = params->softcap;
    const dim3 grid((unsigned)q->shape[0], (unsigned)q->shape[1]);
    const size_t element = q->dtype == TARN_F64 ? sizeof(double) : sizeof(float),
                 bytes = (2 * (size_t)a.head_dim + TILE_KEYS) * element + TILE_KEYS * sizeof(int64_t);
    if (q->dtype == TARN_F64)
        plain_kernel<double><<<grid, TILE_KEYS, bytes, stream_of(call)>>>(a);
    else
        plain_kernel<float><<<grid, TILE_KEYS, bytes, stream_of(call)>>>(a);
}

void tarn__cuda_register_attention_paged_plain(tarn__kernel_row *rows)
{
    rows[TARN__K_attention_paged] = tarn__row_fits(
        tarn__row_named(tarn__row(kernel_attention_paged_plain, TARN__FLOATS | TARN__BIT(TARN_U8)), "plain"), fits);
}

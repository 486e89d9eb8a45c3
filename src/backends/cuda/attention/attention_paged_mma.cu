/* attention_paged_mma.cu: attention over a paged KV cache on tensor cores, for bf16 and f16.
 *
 * A warp has 16 pairs of a row (token) and one of the query heads that share a KV head. It reads the pages of a split
 * of SPLIT keys, a page of TARN__KV_PAGE keys at a time: scores, online softmax, weighted values. Splits are joined in
 * order. paged_mma_kernel() has two forms. For prompts a block is four warps with 64 pairs of one sequence, which share
 * the pages (chunks); for sequences with one row each it is one warp (decode). A block either computes all splits of
 * its pairs one after the other, or a single split; merge_splits_kernel() then joins the splits.
 *
 * Batch invariance: splits and pages begin at multiples of their size from the sequence's first key, pairs never
 * exchange values, and a page or split in which a row has no key changes nothing. In both forms the bits of a row
 * depend on its query and its keys alone. */
#include "backends/cuda/attention/attention_mma.cuh"
#include "backends/cuda/attention/attention_paged.cuh"

#define PAGE TARN__KV_PAGE
#define SPLIT (16 * PAGE)
#define PAIRS 16                        /* of a warp */
#define MAX_PARTIAL_BYTES (128ll << 20) /* of the states of splits */
#define FULL_DEVICE 256                 /* with this many blocks, splits are not blocks of their own */
#define STAGES 3                        /* pages in flight in the decode form */

/* Pages (P, PAGE, KV, D); innermost stride 1. */
struct page_matrix {
    const char *base;
    int64_t stride[3]; /* in elements */
};

struct mma_paged_args {
    const void *q;
    void *y;
    int64_t q_stride[2], y_stride[2];
    page_matrix key, value;
    paged_sequences rows;
    int heads, group, head_dim;
    int splits; /* of a full table */
    float scale, cap;
    float *partial; /* (tokens, H, splits, D + 2): weighted values, max, sum; NULL: a block has all splits */
};

/* ---- rows of a block --------------------------------------------------------------------------------------------- */

/* Some rows of one sequence. The blocks of sequence i begin at row_starts[i] / ROWS + i + 1: there is a block for every
 * ROWS of its rows, and at most one empty block. Blocks before the first sequence, from 0 on, and after the last have
 * rows of no sequence. */
struct row_tile {
    int sequence; /* -1: of no sequence */
    int64_t row, end;
    int64_t length, stop; /* of the sequence: keys, and its last row + 1 */

    __device__ __forceinline__ row_tile(const paged_sequences &s, int64_t block, int rows, bool is_reporter)
    {
        int low = -1, high = s.sequences + 1; /* the last sequence whose blocks begin at or before this one */
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (s.starts[middle * s.starts_stride] / rows + middle + 1 <= block)
                low = middle;
            else
                high = middle;
        }
        const int64_t start = low < 0 ? 0 : s.starts[low * s.starts_stride],
                      first_block = low < 0 ? 0 : start / rows + low + 1;
        stop = low == s.sequences ? s.tokens : s.starts[(low + 1) * s.starts_stride];
        sequence = low == s.sequences ? -1 : low;
        length = sequence < 0 ? 0 : s.lengths[low * s.lengths_stride];
        row = start + (block - first_block) * rows;
        end = min(min(row + rows, stop), s.tokens);
        const int64_t limit = s.table_pages * PAGE;
        if (sequence >= 0 && (length < 0 || length > limit || start < 0 || stop > s.tokens)) {
            if (is_reporter && block == first_block)
                report_fault(s.fault, length, limit);
            sequence = -1;
        }
        row = max(row, (int64_t)0); /* an invalid row start may be negative */
    }

    __device__ __forceinline__ int64_t end_key(int64_t at) const
    {
        return max(length - (stop - at) + 1, (int64_t)0);
    }

    __device__ __forceinline__ int64_t first_key(const paged_sequences &s, int64_t at) const
    {
        return s.window > 0 ? max(end_key(at) - s.window, (int64_t)0) : 0;
    }
};

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* Joins a state (max, sum) with a later one; sets the rescale factors of both states' values. A later state without
 * keys changes nothing. */
__device__ __forceinline__ void join_sums(float *row_max, float *sum, float other_max, float other_sum, float *mine,
                                          float *theirs)
{
    const float new_max = fmaxf(*row_max, other_max);
    const bool is_empty = other_max == -CUDART_INF_F;
    *mine = is_empty ? 1 : exp2_approx(*row_max - new_max);
    *theirs = is_empty ? 0 : exp2_approx(other_max - new_max);
    *sum = is_empty ? *sum : __fmaf_rn(other_sum, *theirs, __fmul_rn(*sum, *mine));
    *row_max = new_max;
}

__device__ __forceinline__ float join_value(float value, float other, float mine, float theirs)
{
    return theirs == 0 && mine == 1 ? value : __fmaf_rn(other, theirs, __fmul_rn(value, mine));
}

/* Weighted values of a warp's pairs, with max and sum of a lane's two pairs. */
template <int DEPTH> struct pair_states {
    float value[DEPTH / 8][4];
    two_rows rows;

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int n = 0; n < DEPTH / 8; n++)
            value[n][0] = value[n][1] = value[n][2] = value[n][3] = 0;
        rows.row_max[0] = rows.row_max[1] = -CUDART_INF_F;
        rows.sum[0] = rows.sum[1] = 0;
    }

    /* Adds up the sums of the four lanes of a row. */
    __device__ __forceinline__ void finish()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.sum[half] += __shfl_xor_sync(FULL_WARP, rows.sum[half], 1);
            rows.sum[half] += __shfl_xor_sync(FULL_WARP, rows.sum[half], 2);
        }
    }

    /* Joins a later, finished state. */
    __device__ __forceinline__ void join(const pair_states &later)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float mine, theirs;
            join_sums(&rows.row_max[half], &rows.sum[half], later.rows.row_max[half], later.rows.sum[half], &mine,
                      &theirs);
#pragma unroll
            for (int n = 0; n < DEPTH / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    value[n][i] = join_value(value[n][i], later.value[n][i], mine, theirs);
        }
    }
};

/* ---- a page ------------------------------------------------------------------------------------------------------ */

/* Waits until at most `PENDING` of this thread's groups of copies are in flight. */
template <int PENDING> __device__ __forceinline__ void wait_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void commit_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Keys or values of a page, from key `key` of the sequence; those outside [first, end) are 0. `page`: -1: none. */
template <typename T, int DEPTH, int THREADS_OF_BLOCK>
__device__ __forceinline__ void stage_page(T *to, const mma_paged_args &a, const page_matrix &m, int64_t page, int head,
                                           int64_t key, int64_t first, int64_t end)
{
    constexpr int VECS = DEPTH / 8, STEPS = PAGE * VECS / THREADS_OF_BLOCK;
    const T *from = (const T *)m.base + page * m.stride[0] + head * m.stride[2];
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        const int at = step * THREADS_OF_BLOCK + threadIdx.x, i = at / VECS, vec = at % VECS;
        const bool is_there = page >= 0 && key + i >= first && key + i < end && vec * 8 < a.head_dim;
        copy_async16(to + i * line_of<DEPTH> + vec * 8, is_there ? from + i * m.stride[1] + vec * 8 : (const T *)m.base,
                     is_there);
    }
}

/* Keys and values of a page, as one group. */
template <typename T, int DEPTH, int THREADS_OF_BLOCK>
__device__ __forceinline__ void stage_both(T *to, const mma_paged_args &a, int sequence, int head, int64_t key,
                                           int64_t first, int64_t end)
{
    if (key < end) {
        const int64_t page = a.rows.page_of(sequence, key);
        stage_page<T, DEPTH, THREADS_OF_BLOCK>(to, a, a.key, page, head, key, first, end);
        stage_page<T, DEPTH, THREADS_OF_BLOCK>(to + PAGE * line_of<DEPTH>, a, a.value, page, head, key, first, end);
    }
    commit_group();
}

/* A warp's pairs and one page: `q` are the pairs' queries, `keys` is followed by the values. */
template <typename T, int DEPTH>
__device__ __forceinline__ void add_page(const mma_paged_args &a, pair_states<DEPTH> &s, const T *q, const T *keys,
                                         const key_ranges &ranges, int64_t key)
{
    float score[PAGE / 8][4], rescale[2];
    gemm_nt<T, DEPTH, PAGE>(score, q, keys);
    if (a.cap > 0)
        cap_scores<PAGE>(score, a.scale, a.cap);
    const bool is_whole =
        key >= ranges.start[0] && key >= ranges.start[1] && key + PAGE <= ranges.end[0] && key + PAGE <= ranges.end[1];
    if (!__all_sync(FULL_WARP, is_whole))
        mask<PAGE, true>(score, 1, spans_of<PAGE>(ranges, key));
    online_softmax<PAGE>(score, (float)LOG2_E * (a.cap > 0 ? 1 : a.scale), s.rows, rescale);
#pragma unroll
    for (int n = 0; n < DEPTH / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.value[n][i] *= rescale[i / 2];
    gemm_nn<T, DEPTH, PAGE, DEPTH>(s.value, score, keys + PAGE * line_of<DEPTH>);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Queries of COUNT pairs from the tile's first row; 0 beyond its last. */
template <typename T, int DEPTH, int COUNT, int THREADS_OF_BLOCK>
__device__ __forceinline__ void load_queries(T *to, const mma_paged_args &a, const row_tile &tile, int head)
{
    for (int at = threadIdx.x; at < COUNT * (DEPTH / 8); at += THREADS_OF_BLOCK) {
        const int pair = at / (DEPTH / 8), vec = at % (DEPTH / 8);
        const int64_t row = tile.row + pair / a.group;
        uint4 bits = make_uint4(0, 0, 0, 0);
        if (row < tile.end && pair / a.group < COUNT / a.group && vec * 8 < a.head_dim)
            bits = *(const uint4 *)((const T *)a.q + row * a.q_stride[0] +
                                    (head * a.group + pair % a.group) * a.q_stride[1] + vec * 8);
        *(uint4 *)(to + pair * line_of<DEPTH> + vec * 8) = bits;
    }
}

/* A lane's two pairs of those from `pair` on: row, query head. False: there is none. */
template <int COUNT>
__device__ __forceinline__ bool find_pair(const mma_paged_args &a, const row_tile &tile, int head, int pair, int half,
                                          int64_t *row, int64_t *query)
{
    const int own = pair + threadIdx.x % WARP / 4 + half * 8;
    *row = tile.row + own / a.group;
    *query = head * a.group + own % a.group;
    return *row < tile.end && own / a.group < COUNT / a.group;
}

/* The keys of a lane's two pairs. */
template <int COUNT>
__device__ __forceinline__ key_ranges ranges_of(const mma_paged_args &a, const row_tile &tile, int head, int pair)
{
    key_ranges r = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row, query;
        if (!find_pair<COUNT>(a, tile, head, pair, half, &row, &query))
            continue;
        r.start[half] = tile.first_key(a.rows, row);
        r.end[half] = tile.end_key(row);
    }
    return r;
}

/* Writes a warp's pairs: their results, or with a.partial their states of `split`. */
template <typename T, int DEPTH, int COUNT>
__device__ __forceinline__ void write_pairs(const mma_paged_args &a, const pair_states<DEPTH> &s, const row_tile &tile,
                                            int head, int pair, int64_t split)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row, query;
        if (!find_pair<COUNT>(a, tile, head, pair, half, &row, &query))
            continue;
        float *part = a.partial ? a.partial + ((row * a.heads + query) * a.splits + split) * (a.head_dim + 2) : NULL;
        const float factor = s.rows.sum[half] == 0 ? 0 : 1 / s.rows.sum[half];
#pragma unroll
        for (int n = 0; n < DEPTH / 8; n++) {
            const int d = n * 8 + lane % 4 * 2;
            const float x = s.value[n][2 * half], next = s.value[n][2 * half + 1];
            if (d >= a.head_dim)
                continue;
            if (part)
                *(float2 *)(part + d) = make_float2(x, next);
            else
                *(uint32_t *)((T *)a.y + row * a.y_stride[0] + query * a.y_stride[1] + d) =
                    pack2<T>(x * factor, next * factor);
        }
        if (part && lane % 4 == 0)
            *(float2 *)(part + a.head_dim) = make_float2(s.rows.row_max[half], s.rows.sum[half]);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* The pages of one split, or of all: [begin, end) in keys, both multiples of PAGE but for the end. */
struct page_span {
    int64_t first, begin, end; /* first: before it, keys are not read */

    __device__ __forceinline__ page_span(const mma_paged_args &a, const row_tile &tile)
    {
        first = tile.first_key(a.rows, tile.row);
        begin = first / PAGE * PAGE;
        end = tile.end > tile.row ? tile.end_key(tile.end - 1) : 0;
        if (a.partial) {
            begin = max(begin, (int64_t)blockIdx.z * SPLIT);
            end = min(end, (int64_t)(blockIdx.z + 1) * SPLIT);
        }
    }
};

/* Block (rows of a sequence, KV head, split): WARPS_OF_BLOCK warps with PAIRS pairs each. Bytes: keys and values once
 * per block; FLOPs: 4 · D per pair and key. */
template <typename T, int DEPTH, int WARPS_OF_BLOCK, int DEEP>
static __global__ void __launch_bounds__(WARPS_OF_BLOCK *WARP)
    paged_mma_kernel(const __grid_constant__ mma_paged_args a)
{
    constexpr int COUNT = WARPS_OF_BLOCK * PAIRS, THREADS_OF_BLOCK = WARPS_OF_BLOCK * WARP,
                  STAGE = 2 * PAGE * line_of<DEPTH>;
    extern __shared__ uint4 smem[];
    T *const q = (T *)smem, *const pages = q + COUNT * line_of<DEPTH>;
    const int head = blockIdx.y, pair = threadIdx.x / WARP * PAIRS;
    const row_tile tile(a.rows, blockIdx.x, COUNT / a.group, head == 0 && blockIdx.z == 0 && threadIdx.x == 0);
    if (tile.row >= tile.end)
        return;
    const page_span span(a, tile);
    const bool has_keys = tile.sequence >= 0 && span.begin < span.end;
    if (a.partial && !has_keys)
        return; /* no row has keys in this split, and merge_splits_kernel() reads none */
    pair_states<DEPTH> split, total;
    total.clear();
    if (has_keys) {
#pragma unroll
        for (int i = 0; i < DEEP - 1; i++)
            stage_both<T, DEPTH, THREADS_OF_BLOCK>(pages + i * STAGE, a, tile.sequence, head, span.begin + i * PAGE,
                                                   span.first, span.end);
        load_queries<T, DEPTH, COUNT, THREADS_OF_BLOCK>(q, a, tile, head);
        const key_ranges ranges = ranges_of<COUNT>(a, tile, head, pair);
        split.clear();
        int stage = 0;
        for (int64_t key = span.begin; key < span.end; key += PAGE) {
            wait_groups<DEEP - 2>();
            __syncthreads(); /* the page has arrived, and all warps are done with the one before */
            const int ahead = stage == 0 ? DEEP - 1 : stage - 1;
            stage_both<T, DEPTH, THREADS_OF_BLOCK>(pages + ahead * STAGE, a, tile.sequence, head,
                                                   key + (DEEP - 1) * PAGE, span.first, span.end);
            add_page<T, DEPTH>(a, split, q + pair * line_of<DEPTH>, pages + stage * STAGE, ranges, key);
            if (key + PAGE >= span.end || (key + PAGE) % SPLIT == 0) {
                split.finish();
                total.join(split);
                split.clear();
            }
            stage = stage + 1 == DEEP ? 0 : stage + 1;
        }
        wait_groups<0>();
    }
    write_pairs<T, DEPTH, COUNT>(a, total, tile, head, pair, blockIdx.z);
}

/* Block (row, query head): joins the splits in order. */
template <typename T> static __global__ void merge_splits_kernel(const __grid_constant__ mma_paged_args a)
{
    const int64_t row = blockIdx.x, query = blockIdx.y;
    const row_keys keys(a.rows, row, false);
    const float *from = a.partial + (row * a.heads + query) * a.splits * (a.head_dim + 2);
    for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
        float row_max = -CUDART_INF_F, sum = 0, value = 0, mine, theirs;
        for (int64_t split = keys.first / SPLIT; split * SPLIT < keys.end; split++) {
            const float *some = from + split * (a.head_dim + 2);
            join_sums(&row_max, &sum, some[a.head_dim], some[a.head_dim + 1], &mine, &theirs);
            value = join_value(value, some[d], mine, theirs);
        }
        ((T *)a.y)[row * a.y_stride[0] + query * a.y_stride[1] + d] = narrow<T>(value * (sum == 0 ? 0 : 1 / sum));
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* How a call is distributed over blocks; changes no bit of a result. */
struct paged_cut {
    bool is_decode;
    int64_t tiles;
    int splits;
    size_t partial_bytes; /* 0: a block has all splits of its rows */
};

/* The decode form is used if, by the shapes, every sequence may have one row. */
static paged_cut cut_of(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *k = call->in[1], *table = call->in[3];
    const int64_t group = q->shape[1] / k->shape[2], tokens = q->shape[0], sequences = table->shape[0];
    paged_cut c = {};
    c.is_decode = tokens <= sequences;
    c.tiles = tokens / ((c.is_decode ? 1 : MMA_WARPS) * PAIRS / group) + sequences + 2;
    c.splits = (int)((table->shape[1] * PAGE + SPLIT - 1) / SPLIT);
    const int64_t bytes = tokens * q->shape[1] * c.splits * (q->shape[2] + 2) * 4,
                  blocks = (c.tiles - sequences / 2) * k->shape[2];
    if (c.splits > 1 && c.splits <= 65535 && bytes <= MAX_PARTIAL_BYTES && (c.is_decode || blocks < FULL_DEVICE))
        c.partial_bytes = (size_t)bytes;
    return c;
}

/* Vectors of 16 bytes in every row. */
static bool has_vectors_of_8(const tarn__view *x)
{
    bool good = x->stride[x->rank - 1] == 1 && is_aligned(tarn__view_at(x), 16);
    for (int i = 0; i < x->rank - 1; i++)
        good = good && (x->shape[i] <= 1 || x->stride[i] % 8 == 0);
    return good;
}

/* Bytes of shared memory for one row of queries and its pages in flight. */
template <int DEPTH> constexpr size_t decode_shared = (PAIRS + STAGES * 2 * PAGE) * line_of<DEPTH> * sizeof(bf16);

/* Compute capability 8.6 has too little shared memory for the decode form with a head_dim above 64. Chunks need less,
 * but are declined as well, so that a row is always computed by the same kernel. */
static bool has_shared_memory(const tarn__call *call, int64_t head_dim)
{
    const tarn__cuda_device *device = tarn__cuda_at(call->device);
    return device && (head_dim > 64 ? decode_shared<128> : decode_shared<64>) <= (size_t)device->shared_bytes;
}

/* Inputs only: the result may not be allocated yet. */
static bool fits(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *k = call->in[1], *v = call->in[2];
    return has_shared_memory(call, q->shape[2]) && (q->dtype == TARN_BF16 || q->dtype == TARN_F16) &&
           k->dtype == q->dtype && v->dtype == q->dtype && !call->in[6] && !call->in[7] && q->shape[2] % 8 == 0 &&
           q->shape[2] <= 128 && q->shape[1] / k->shape[2] <= PAIRS && k->shape[2] <= 65535 && q->shape[1] <= 65535 &&
           has_vectors_of_8(q) && has_vectors_of_8(k) && has_vectors_of_8(v) &&
           ((const tarn__attention *)call->params)->scale > 0;
}

static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = cut_of(call).partial_bytes;
    return TARN__PLAN_READY;
}

template <auto kernel, int THREADS_OF_BLOCK>
static void launch_grid(const tarn__call *call, const mma_paged_args &a, dim3 grid, size_t bytes)
{
    static std::atomic<bool> is_set[TARN__CUDA_MAX_DEVICES];
    if (!is_set[call->device].load(std::memory_order_relaxed)) {
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        is_set[call->device].store(true, std::memory_order_relaxed);
    }
    kernel<<<grid, THREADS_OF_BLOCK, bytes, stream_of(call)>>>(a);
}

/* Shared memory: the queries and the pages in flight. */
template <typename T, int DEPTH> static void launch(const tarn__call *call, const mma_paged_args &a, const paged_cut &c)
{
    constexpr size_t line = line_of<DEPTH> * sizeof(T), page = 2 * PAGE * line;
    const dim3 grid((unsigned)c.tiles, (unsigned)call->in[1]->shape[2], a.partial ? (unsigned)c.splits : 1);
    if (c.is_decode)
        launch_grid<paged_mma_kernel<T, DEPTH, 1, STAGES>, WARP>(call, a, grid, decode_shared<DEPTH>);
    else
        launch_grid<paged_mma_kernel<T, DEPTH, MMA_WARPS, 2>, MMA_THREADS>(call, a, grid, MMA_ROWS * line + 2 * page);
    if (a.partial)
        merge_splits_kernel<T><<<dim3((unsigned)a.rows.tokens, (unsigned)a.heads),
                                 (unsigned)(a.head_dim > 64 ? 128 : 64), 0, stream_of(call)>>>(a);
}

static page_matrix page_matrix_of(const tarn__view *v)
{
    page_matrix m = {};
    m.base = (const char *)tarn__view_at(v);
    for (int i = 0; i < 3; i++)
        m.stride[i] = v->stride[i];
    return m;
}

/* Inputs q, k, v, table, row starts, lengths. Grid: tiles of rows, KV heads, splits. */
static void kernel_attention_paged_mma(const tarn__call *call)
{
    const tarn__attention *params = (const tarn__attention *)call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *y = call->out[0];
    if (tarn__view_count(q) == 0)
        return;
    const paged_cut c = cut_of(call);
    mma_paged_args a = {};
    a.q = tarn__view_at(q), a.y = tarn__view_at(y);
    for (int i = 0; i < 2; i++)
        a.q_stride[i] = q->stride[i], a.y_stride[i] = y->stride[i];
    a.key = page_matrix_of(k), a.value = page_matrix_of(call->in[2]);
    a.rows = paged_sequences_of(call);
    a.heads = (int)q->shape[1], a.group = (int)(q->shape[1] / k->shape[2]), a.head_dim = (int)q->shape[2];
    a.splits = c.splits, a.scale = (float)params->scale, a.cap = (float)params->softcap;
    a.partial = c.partial_bytes ? (float *)call->scratch : NULL;
    const bool is_deep = a.head_dim > 64;
    if (q->dtype == TARN_BF16)
        is_deep ? launch<bf16, 128>(call, a, c) : launch<bf16, 64>(call, a, c);
    else
        is_deep ? launch<f16, 128>(call, a, c) : launch<f16, 64>(call, a, c);
}

/* Ahead of the rows of attention_paged.cu. */
void tarn__cuda_register_attention_paged_mma(tarn__kernel_row *rows)
{
    static tarn__kernel_row vectors;
    const tarn__kernel_row row =
        tarn__row_planned(prepare, kernel_attention_paged_mma, TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16));
    tarn__push_row(rows, TARN__K_attention_paged, tarn__row_fits(tarn__row_named(row, "mma"), fits), &vectors);
}

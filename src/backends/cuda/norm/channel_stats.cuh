/* channel_stats.cuh: per-channel statistics of a tensor [N, C, ...], for batchnorm and groupnorm: element addresses,
 * and the work of each thread block.
 *
 * A set is the elements that share a mean: a channel (batchnorm: one batch, groups of one channel), or the channels of
 * a group in one of the N samples. Passes work on the channels of batches; the statistics of sets are f64, in scratch.
 * Two layouts:
 *
 *   NCHW   adjacent elements belong to one channel. A block takes a chunk of one channel. If the last axis is long,
 *          chunks end with it, so that a chunk is one line and offsets are plain sums.
 *   NHWC   adjacent elements belong to different channels. A block takes a chunk of positions of a tile of channels:
 *          `across` adjacent threads own a vector of channels each, and the rows of threads take positions in turn.
 *
 * The kernels are in batchnorm_nchw.cuh and batchnorm_nhwc.cuh.
 *
 * Chunks and tiles depend on shapes and dtypes alone, and their sums are added in a fixed order. A pass that rereads a
 * tensor runs in reverse: the end is still in the cache. */
#ifndef TARN__CUDA_CHANNEL_STATS_CUH
#define TARN__CUDA_CHANNEL_STATS_CUH

#include "backends/cuda/norm/layernorm.cuh"

/* x; y or gx; gradient of y; with relu: the residual added before it, or in backward its result; gradient after relu */
enum { X, OUT, G, AUX, GATED, CHANNEL_OPERANDS };

#define CHUNK_BYTES ((int64_t)32768) /* of a channel in NCHW, at least */
#define WARP_PARTS ((int64_t)128)    /* chunk partials that one warp adds up; more take a block */
#define MIN_LINE ((int64_t)2048)     /* elements of a line that are worth a chunk of their own */
#define MAX_CHUNKS ((int64_t)1024)
#define COLUMN_VEC 4               /* channels per thread in NHWC, if they form vectors */
#define GRID_NHWC ((int64_t)528)   /* NHWC thread blocks: four per multiprocessor of 132, all resident */
#define MIN_POSITIONS ((int64_t)8) /* per thread in NHWC, at least */
/* per thread in NHWC: beyond, four times as many blocks, so that the last ones are not waited for long */
#define MANY_POSITIONS ((int64_t)64)
#define F64_VALUES 32 /* sets this small are computed in f64: the gradient is the small remainder of a cancellation */

/* A call in kernel form. Fields from `chunk` on are the launch plan; statistics and partials are in scratch. */
struct channel_args {
    int64_t batches, channels, count; /* count: elements of one channel of one batch */
    int64_t groups, members;          /* members: channels per group */
    double values;                    /* of a set */
    bool is_nchw, is_double;
    row_operand operand[CHANNEL_OPERANDS]; /* base NULL: no such operand */
    int64_t channel_stride[CHANNEL_OPERANDS], batch_stride[CHANNEL_OPERANDS];
    offset_calc<CHANNEL_OPERANDS> at; /* over all axes but the channel's and, with batches, the first */
    int64_t chunk, chunks;            /* elements, or positions */
    int64_t line;                     /* chunks do not cross a line: the last axis, or the whole channel */
    /* elements of a chunk have one stride; in NHWC all positions do, the same in all operands */
    bool is_linear;
    bool is_reversed;   /* last chunks first */
    bool writes_scaled; /* the summing kernel writes g · scale to OUT */
    bool has_relu;      /* after the result, or backward: before the gradient */
    double relu_zero;   /* values up to this round to 0 as relu's result */
    divider by_chunks, by_channels, by_tiles, by_line_chunks, by_members; /* chunks per line */
    int across, across_bits;                                              /* NHWC: adjacent threads, a power of two */
    int64_t tiles;
    row_operand weight, bias;
    double *mean, *rstd, *mean_g, *mean_gx; /* (batches, groups) */
    double *partial_one, *partial_two;      /* (batches, chunks, channels) */
};

/* ---- describing a call ------------------------------------------------------------------------------------------- */

/* `given`: a view per operand, NULL if there is none; x is required. */
static channel_args channel_args_of(bool with_batches, int64_t groups, const tarn__view *const *given)
{
    channel_args a = {};
    const tarn__view *x = given[X], *rest[CHANNEL_OPERANDS] = {};
    tarn__view copy[CHANNEL_OPERANDS];
    tarn__nest nest;
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        if (!given[k])
            continue;
        a.operand[k] = row_operand{tarn__view_at(given[k]), 1, given[k]->dtype};
        a.channel_stride[k] = given[k]->stride[1];
        a.batch_stride[k] = with_batches ? given[k]->stride[0] : 0;
        copy[k] = *given[k];
        copy[k].shape[1] = 1;
        if (with_batches)
            copy[k].shape[0] = 1;
        rest[k] = &copy[k];
    }
    tarn__nest_make(&nest, CHANNEL_OPERANDS, rest);
    a.at = offset_calc_of<CHANNEL_OPERANDS>(&nest);
    a.batches = with_batches ? x->shape[0] : 1;
    a.channels = x->shape[1];
    a.count = nest.count;
    a.groups = with_batches ? groups : a.channels;
    a.members = a.groups > 0 ? a.channels / a.groups : 1;
    a.values = (double)(a.count * a.members);
    a.is_double = x->dtype == TARN_F64 || a.values <= F64_VALUES;
    a.is_nchw = nest.rank > 0 && magnitude(nest.stride[X][nest.rank - 1]) <= magnitude(x->stride[1]);
    return a;
}

/* A plan keeps the arguments without the addresses of a call; run() sets them again. */
static void clear_addresses(channel_args *a)
{
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        a->operand[k].base = NULL;
}
static void set_addresses(channel_args *a, const tarn__view *const *given)
{
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        a->operand[k].base = data_of<void>(given[k]);
}

/* True if vectors of `width` elements are whole and aligned in every operand. */
static bool has_vecs(const channel_args &a, tarn_dtype dtype, int width)
{
    const int last = a.at.rank - 1;
    if (a.is_nchw ? (int64_t)a.at.size[last].by % width != 0 : a.channels % width != 0)
        return false;
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        const row_operand &o = a.operand[k];
        if (!o.base)
            continue;
        if (o.dtype != dtype || !is_aligned(o.base, tarn__dtype_bytes(dtype) * (size_t)width) ||
            a.batch_stride[k] % width != 0)
            return false;
        if (a.is_nchw ? a.at.stride[k][last] != 1 || a.channel_stride[k] % width != 0 : a.channel_stride[k] != 1)
            return false;
        for (int i = 0; i < a.at.rank - (a.is_nchw ? 1 : 0); i++)
            if (a.at.stride[k][i] % width != 0)
                return false;
    }
    return true;
}

/* Mixtures are processed element by element. */
static bool has_one_dtype(const channel_args &a)
{
    for (int k = 1; k < CHANNEL_OPERANDS; k++)
        if (a.operand[k].base && a.operand[k].dtype != a.operand[X].dtype)
            return false;
    return true;
}

/* Elements per thread and access; known before the scratch is. */
static int width_of(const channel_args &a)
{
    if (a.is_double || !has_one_dtype(a))
        return 1;
    int width = a.is_nchw ? (int)(16 / tarn__dtype_bytes(a.operand[X].dtype)) : COLUMN_VEC;
    return has_vecs(a, a.operand[X].dtype, width) ? width : 1;
}

/* Equal chunks of a channel's lines; of the whole channel if lines are short or many. */
static void choose_chunks_nchw(channel_args *a)
{
    int64_t inner = (int64_t)a->at.size[a->at.rank - 1].by,
            min_chunk = CHUNK_BYTES / (int64_t)tarn__dtype_bytes(a->operand[X].dtype);
    int64_t lines = a->count / inner, line_chunks = (inner + min_chunk - 1) / min_chunk;
    /* lines long enough for chunks of their own, and not too many of them */
    a->is_linear = lines == 1 || (inner >= MIN_LINE && lines * line_chunks <= MAX_CHUNKS);
    if (!a->is_linear || lines == 1) {
        a->line = a->count;
        line_chunks = (a->count + min_chunk - 1) / min_chunk;
        line_chunks = line_chunks < MAX_CHUNKS ? line_chunks : MAX_CHUNKS;
    } else {
        a->line = inner;
    }
    int64_t per_block = (a->line + line_chunks - 1) / line_chunks;
    a->chunk = (per_block + 7) / 8 * 8; /* whole vectors */
}

/* True if positions have one stride, and the same 32-bit offset in every operand. */
static bool has_one_stride(const channel_args &a)
{
    const int64_t step = a.at.stride[X][0], batch_step = a.batch_stride[X];
    bool matches = a.at.rank <= 1;
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        if (a.operand[k].base)
            matches = matches && a.at.stride[k][0] == step && a.batch_stride[k] == batch_step;
    return matches &&
           magnitude(batch_step) * (a.batches - 1) + magnitude(step) * (a.count - 1) + a.channels <= INT32_MAX;
}

/* Equal chunks for a grid that fills the device once, or about four times; whole rows of threads. */
static void choose_chunks_nhwc(channel_args *a)
{
    int64_t width = width_of(*a), vecs = (a->channels + width - 1) / width;
    /* adjacent threads: a power of two, at most a warp */
    while (1 << a->across_bits < WARP && 1 << a->across_bits < vecs)
        a->across_bits++;
    a->across = 1 << a->across_bits;
    a->tiles = (vecs + a->across - 1) / a->across;
    int64_t rows = THREADS / a->across, rounds = (a->count * a->tiles * a->batches + rows - 1) / rows;
    int64_t blocks = rounds > MANY_POSITIONS * GRID_NHWC ? 4 * GRID_NHWC : GRID_NHWC,
            per_block = (rounds + blocks - 1) / blocks;
    a->line = a->count;
    a->chunk = rows * (per_block < MIN_POSITIONS ? MIN_POSITIONS : per_block);
    a->is_linear = has_one_stride(*a);
}

/* Also the dividers for the block index. */
static void choose_chunks(channel_args *a)
{
    if (a->count == 0)
        return; /* nothing to launch */
    if (a->is_nchw)
        choose_chunks_nchw(a);
    else
        choose_chunks_nhwc(a);
    int64_t line_chunks = (a->line + a->chunk - 1) / a->chunk;
    a->chunks = a->count / a->line * line_chunks;
    a->by_line_chunks = divider_of(line_chunks);
    a->by_chunks = divider_of(a->chunks);
    a->by_channels = divider_of(a->channels);
    a->by_tiles = divider_of(a->tiles);
    a->by_members = divider_of(a->members);
}

/* Blocks of a pass; 0 without elements. */
static inline int64_t blocks_of(const channel_args &a)
{
    return a.batches * a.chunks * (a.is_nchw ? a.channels : a.tiles);
}

static inline int64_t partial_count(const channel_args &a)
{
    return a.batches * a.chunks * a.channels;
}

/* Block size in NCHW: whole warps, fewer for short channels. */
static inline unsigned threads_of(const channel_args &a, int width)
{
    return a.is_nchw ? warps_for(a.count < a.chunk ? a.count : a.chunk, 4 * width, THREADS) : THREADS;
}

/* LAUNCH(NCHW and NHWC kernels, relu, call, args): launches kernel<R, relu> for the dtype and vector width of the call.
 * Grid: one block per chunk of a channel, or of a tile of channels. */
#define LAUNCH_AS(kernel, R, relu, call, a) \
    kernel<R, relu><<<blocks_for(blocks_of(a), 1), threads_of(a, R::width), 0, stream_of(call)>>>(a)
#define LAUNCH_NCHW(kernel, T, relu, call, a) \
    do { \
        typedef typed<T, vec_size<T>::value> vecs; \
        typedef typed<T, 1> singles; \
        if (width_of(a) > 1) \
            LAUNCH_AS(kernel, vecs, relu, call, a); \
        else \
            LAUNCH_AS(kernel, singles, relu, call, a); \
    } while (0)
#define LAUNCH_NHWC(kernel, T, relu, call, a) \
    do { \
        typedef typed<T, COLUMN_VEC> vecs; \
        typedef typed<T, 1> singles; \
        if (width_of(a) > 1 && (a).is_linear) \
            LAUNCH_AS(kernel, linear<T>, relu, call, a); \
        else if (width_of(a) > 1) \
            LAUNCH_AS(kernel, vecs, relu, call, a); \
        else \
            LAUNCH_AS(kernel, singles, relu, call, a); \
    } while (0)
#define LAUNCH(nchw_kernel, nhwc_kernel, relu, call, a) \
    do { \
        if (blocks_of(a) == 0) \
            break; \
        if ((a).is_nchw) \
            LAUNCH_FORM(LAUNCH_NCHW, nchw_kernel, relu, call, a); \
        else \
            LAUNCH_FORM(LAUNCH_NHWC, nhwc_kernel, relu, call, a); \
    } while (0)
#define LAUNCH_FORM(LAUNCH_TYPED, kernel, relu, call, a) \
    do { \
        tarn_dtype dtype_ = (a).is_double || !has_one_dtype(a) ? TARN_I64 : (a).operand[X].dtype; \
        if (dtype_ == TARN_F32) \
            LAUNCH_TYPED(kernel, float, relu, call, a); \
        else if (dtype_ == TARN_BF16) \
            LAUNCH_TYPED(kernel, bf16, relu, call, a); \
        else if (dtype_ == TARN_F16) \
            LAUNCH_TYPED(kernel, f16, relu, call, a); \
        else if ((a).is_double) \
            LAUNCH_AS(kernel, untyped<double>, relu, call, a); \
        else \
            LAUNCH_AS(kernel, untyped<float>, relu, call, a); \
    } while (0)

/* ---- device ------------------------------------------------------------------------------------------------------ */

/* The work of a block. In NHWC `channel` is the thread's first one, and may be past the last. */
struct block_range {
    int64_t batch, channel, begin, end;
    int64_t tile;    /* NHWC: the block's first channel */
    int64_t partial; /* index of the partial sums of the block's first channel */
};

/* Splits the fastest-varying index off a block index; there are fewer than 2^31 blocks. */
__device__ __forceinline__ uint32_t pop_index(uint32_t &rest, const divider &size)
{
    uint32_t next = divide_small(rest, size), index = rest - next * (uint32_t)size.by;
    rest = next;
    return index;
}

/* Splits the batch off an index over (batches, each). Most calls have one batch, and a 64-bit division is slow. */
__device__ __forceinline__ int64_t pop_batch(const channel_args &a, int64_t &rest, int64_t each)
{
    int64_t batch = a.batches > 1 ? rest / each : 0;
    rest -= batch * each;
    return batch;
}

/* Range of a chunk. */
__device__ __forceinline__ void chunk_bounds(const channel_args &a, uint32_t chunk, int64_t *begin, int64_t *end)
{
    uint32_t line = chunk, chunk_of_line = pop_index(line, a.by_line_chunks);
    int64_t stop = (line + 1) * a.line;
    *begin = line * a.line + chunk_of_line * a.chunk;
    *end = *begin + a.chunk < stop ? *begin + a.chunk : stop;
}

/* Offsets of position `at` of a channel in all operands. */
__device__ __forceinline__ void offsets_of(const channel_args &a, const block_range &p, int64_t at, int64_t *offset)
{
    if (a.at.rank <= 1) {
#pragma unroll
        for (int k = 0; k < CHANNEL_OPERANDS; k++)
            offset[k] = at * a.at.stride[k][0];
    } else if (a.at.rank == 2 && a.at.is_small) { /* images: one division */
        uint32_t line = divide_small((uint32_t)at, a.at.size[1]),
                 inside = (uint32_t)at - line * (uint32_t)a.at.size[1].by;
#pragma unroll
        for (int k = 0; k < CHANNEL_OPERANDS; k++)
            offset[k] = line * a.at.stride[k][0] + inside * a.at.stride[k][1];
    } else {
        locate(a.at, at, offset);
    }
#pragma unroll
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        offset[k] += p.batch * a.batch_stride[k] + p.channel * a.channel_stride[k];
}

/* `default_value` if there is no such vector. */
__device__ __forceinline__ double load_param(const row_operand &vector, int64_t at, double default_value)
{
    return vector.base ? load_any<double>(vector.base, vector.dtype, at * vector.along) : default_value;
}

/* Statistics and parameters of one channel in the compute type. The mean is the sum of two values: x - mean is then
 * exact to that type, even if the mean is much larger than the std. */
template <typename C> struct channel_stats {
    C high, low, rstd, scale, bias, mean_g, mean_gx;

    __device__ __forceinline__ void fetch(const channel_args &a, int64_t batch, int64_t channel)
    {
        int64_t group = a.channels >> 31 ? channel / a.members : divide_small((uint32_t)channel, a.by_members),
                set = batch * a.groups + group;
        double mean_gw = a.mean_g ? a.mean_g[set] : 0, mean_gwx = a.mean_g ? a.mean_gx[set] : 0;
        double weight = load_param(a.weight, channel, 1);
        make(a.mean[set], a.rstd[set], weight,
             a.bias.base ? load_any<C>(a.bias.base, a.bias.dtype, channel * a.bias.along) : (C)0, mean_gw, mean_gwx);
    }
    __device__ __forceinline__ void make(double mean, double inverse_std, double weight, C shift, double mean_gw,
                                         double mean_gwx)
    {
        high = (C)mean;
        low = (C)(mean - (double)high);
        rstd = (C)inverse_std;
        scale = (C)(inverse_std * weight);
        bias = shift;
        mean_g = (C)mean_gw;
        mean_gx = (C)(inverse_std * mean_gwx); /* times x - mean */
    }
    __device__ __forceinline__ C centered(C x) const
    {
        return (x - high) - low;
    }
    /* One expression for all kernels: relu's gradient must see the same rounding as relu. */
    __device__ __forceinline__ C normalized(C x) const
    {
        return fma(centered(x), scale, bias);
    }
};

/* relu's gradient. A NaN result lets g through, as in relu itself. */
template <typename C> __device__ __forceinline__ C relu_grad(C g, C y, C relu_zero)
{
    return y <= relu_zero ? (C)0 : g;
}

#endif

/* channel_stats.cuh: numbers for each channel of a tensor [N, C, ...], for batchnorm and groupnorm: where elements lie,
 * and what threads of a block own.
 *
 * A set is what shares a mean: a channel (batchnorm: one batch, groups of one channel), or the channels of a group in
 * one of the N parts. Passes work on channels of batches; a set's numbers are f64 and lie in scratch. Two forms, chosen
 * by layout:
 *
 *   rows      neighbours in memory belong to one channel. A block has a chunk of one channel. Where the last axis is
 * long, chunks end with it, so that a chunk lies on one line and offsets are plain sums. columns   neighbours belong to
 * different channels ("channels last"). A block has a chunk of positions of a tile of channels: `across` threads side
 * by side own a pack of channels each, and the block's rows of threads take positions in turn (channel_nhwc.cuh).
 *
 * Chunks and tiles depend on shapes and dtypes alone, and their sums are put together in a fixed order. A pass that
 * reads again what another has read begins at its end: that is what the cache still holds. */
#ifndef TARN__CHANNELS_CUH
#define TARN__CHANNELS_CUH

#include "backends/cuda/norm/layernorm.cuh"

/* x; y or gx; the gradient of y; with relu what is added before it, or in backward its result; and the gradient that it
 * lets through. */
enum { X, TO, G, BESIDE, PASSED, CHANNEL_OPERANDS };

#define CHUNK_BYTES ((int64_t)32768) /* of a channel by rows, at least */
#define FOR_A_WARP ((int64_t)128)    /* parts of chunks that a warp puts together; a block does more of them */
#define LONG_LINE ((int64_t)2048)    /* elements that are worth a chunk of their own */
#define MOST_CHUNKS ((int64_t)1024)
#define COLUMN_PACK 4              /* channels that a thread owns by columns, where they make packs */
#define FULL_GRID ((int64_t)528)   /* blocks by columns: four for each of 132 multiprocessors, all at once */
#define FEW_POSITIONS ((int64_t)8) /* of a thread by columns, at least */
#define MANY_POSITIONS \
    ((int64_t)64)     /* of a thread by columns: four times as many blocks then, so that none is waited for long */
#define AT_ONCE 4     /* packs that a thread loads before it computes, where it reads one operand */
#define FEW_VALUES 32 /* of a set are computed in f64: their gradient is what little normalising leaves */

struct channel_args {
    int64_t batches, channels, count; /* count: elements of one channel of one batch */
    int64_t groups, members;          /* channels of a group */
    double values;                    /* of a set */
    bool by_rows, is_double;
    row_operand operand[CHANNEL_OPERANDS]; /* base NULL where there is none */
    int64_t channel_stride[CHANNEL_OPERANDS], batch_stride[CHANNEL_OPERANDS];
    places<CHANNEL_OPERANDS> at; /* over all axes but the channel's and, with batches, the first */
    int64_t chunk, chunks;       /* elements, or positions */
    int64_t line;                /* elements that chunks do not go beyond: of the last axis, or all */
    /* a chunk's elements lie a step apart; by columns all positions do, in all operands alike */
    bool is_straight;
    bool from_end;      /* the last chunks first */
    bool writes_scaled; /* the kernel of sums writes g · scale to TO */
    bool is_remade;     /* backward of relu: its result comes from x, as forward made it, not from BESIDE */
    double least;       /* what is not above this is 0 as relu's result */
    divider by_chunks, by_channels, by_tiles, by_pieces, by_members; /* pieces: chunks of a line */
    int across, across_bits; /* by columns: threads side by side, a power of two */
    int64_t tiles;
    row_operand weight, bias;
    double *mean, *rstd, *first, *second; /* (batches, groups) */
    double *part_one, *part_two;          /* (batches, chunks, channels) */
};

/* ---- describing a call ------------------------------------------------------------------------------------------- */

static inline int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* given: a view for each operand, NULL where there is none, but never x. */
static channel_args channels_of(bool with_batches, int64_t groups, const tarn__view *const *given)
{
    channel_args a = {};
    const tarn__view *x = given[X], *rest[CHANNEL_OPERANDS] = {};
    tarn__view held[CHANNEL_OPERANDS];
    tarn__nest nest;
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        if (!given[k])
            continue;
        a.operand[k] = row_operand{tarn__view_at(given[k]), 1, given[k]->dtype};
        a.channel_stride[k] = given[k]->stride[1];
        a.batch_stride[k] = with_batches ? given[k]->stride[0] : 0;
        held[k] = *given[k];
        held[k].shape[1] = 1;
        if (with_batches)
            held[k].shape[0] = 1;
        rest[k] = &held[k];
    }
    tarn__nest_make(&nest, CHANNEL_OPERANDS, rest);
    a.at = places_of<CHANNEL_OPERANDS>(&nest);
    a.batches = with_batches ? x->shape[0] : 1;
    a.channels = x->shape[1];
    a.count = nest.count;
    a.groups = with_batches ? groups : a.channels;
    a.members = a.groups > 0 ? a.channels / a.groups : 1;
    a.values = (double)(a.count * a.members);
    a.is_double = x->dtype == TARN_F64 || a.values <= FEW_VALUES;
    a.by_rows = nest.rank > 0 && distance(nest.stride[X][nest.rank - 1]) <= distance(x->stride[1]);
    return a;
}

/* True where packs of `width` elements are whole, aligned and of dtype `dtype` in every operand. */
static bool has_packs(const channel_args &a, tarn_dtype dtype, int width)
{
    const int last = a.at.rank - 1;
    if (a.by_rows ? (int64_t)a.at.size[last].by % width != 0 : a.channels % width != 0)
        return false;
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        const row_operand &o = a.operand[k];
        if (!o.base)
            continue;
        if (o.dtype != dtype || !is_aligned(o.base, tarn__dtype_bytes(dtype) * (size_t)width) ||
            a.batch_stride[k] % width != 0)
            return false;
        if (a.by_rows ? a.at.stride[k][last] != 1 || a.channel_stride[k] % width != 0 : a.channel_stride[k] != 1)
            return false;
        for (int i = 0; i < a.at.rank - (a.by_rows ? 1 : 0); i++)
            if (a.at.stride[k][i] % width != 0)
                return false;
    }
    return true;
}

static bool has_one_dtype(const channel_args &a)
{
    for (int k = 1; k < CHANNEL_OPERANDS; k++)
        if (a.operand[k].base && a.operand[k].dtype != a.operand[X].dtype)
            return false;
    return true;
}

/* How many elements a thread takes at once: known before scratch is. */
static int width_of(const channel_args &a)
{
    if (a.is_double || !has_one_dtype(a))
        return 1;
    int width = a.by_rows ? (int)(16 / tarn__dtype_bytes(a.operand[X].dtype)) : COLUMN_PACK;
    return has_packs(a, a.operand[X].dtype, width) ? width : 1;
}

/* Even chunks of a channel's lines; of all its elements where lines are short or many. */
static void choose_row_chunks(channel_args *a)
{
    int64_t inner = (int64_t)a->at.size[a->at.rank - 1].by,
            least = CHUNK_BYTES / (int64_t)tarn__dtype_bytes(a->operand[X].dtype);
    int64_t lines = a->count / inner, pieces = (inner + least - 1) / least;
    a->is_straight = lines == 1 || (inner >= LONG_LINE && lines * pieces <= MOST_CHUNKS);
    if (!a->is_straight || lines == 1) {
        a->line = a->count;
        pieces = (a->count + least - 1) / least;
        pieces = pieces < MOST_CHUNKS ? pieces : MOST_CHUNKS;
    } else {
        a->line = inner;
    }
    int64_t even = (a->line + pieces - 1) / pieces;
    a->chunk = (even + 7) / 8 * 8; /* whole packs */
}

/* True where positions lie a step apart, and at the same offset, of 32 bits, in every operand. */
static bool is_line(const channel_args &a)
{
    const int64_t step = a.at.stride[X][0], batch_step = a.batch_stride[X];
    bool is_alike = a.at.rank <= 1;
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        if (a.operand[k].base)
            is_alike = is_alike && a.at.stride[k][0] == step && a.batch_stride[k] == batch_step;
    return is_alike &&
           distance(batch_step) * (a.batches - 1) + distance(step) * (a.count - 1) + a.channels <= INT32_MAX;
}

/* Even chunks for a grid that fills the device once, or some four times, whole rows of threads. */
static void choose_column_chunks(channel_args *a)
{
    int64_t width = width_of(*a), packs = (a->channels + width - 1) / width;
    while (1 << a->across_bits < WARP && 1 << a->across_bits < packs)
        a->across_bits++;
    a->across = 1 << a->across_bits;
    a->tiles = (packs + a->across - 1) / a->across;
    int64_t rows = THREADS / a->across, turns = (a->count * a->tiles * a->batches + rows - 1) / rows;
    int64_t blocks = turns > MANY_POSITIONS * FULL_GRID ? 4 * FULL_GRID : FULL_GRID,
            even = (turns + blocks - 1) / blocks;
    a->line = a->count;
    a->chunk = rows * (even < FEW_POSITIONS ? FEW_POSITIONS : even);
    a->is_straight = is_line(*a);
}

static void choose_chunks(channel_args *a)
{
    if (a->count == 0)
        return; /* no chunks, and nothing is launched over them */
    if (a->by_rows)
        choose_row_chunks(a);
    else
        choose_column_chunks(a);
    int64_t pieces = (a->line + a->chunk - 1) / a->chunk;
    a->chunks = a->count / a->line * pieces;
    a->by_pieces = divider_of(pieces);
    a->by_chunks = divider_of(a->chunks);
    a->by_channels = divider_of(a->channels);
    a->by_tiles = divider_of(a->tiles);
    a->by_members = divider_of(a->members);
}

/* Blocks of a pass; 0 where there are no elements. */
static inline int64_t blocks_of(const channel_args &a)
{
    return a.batches * a.chunks * (a.by_rows ? a.channels : a.tiles);
}

static inline int64_t partial_count(const channel_args &a)
{
    return a.batches * a.chunks * a.channels;
}

/* Threads of a block by rows: whole warps, fewer for short channels. */
static inline unsigned threads_of(const channel_args &a, int width)
{
    return a.by_rows ? warps_for(a.count < a.chunk ? a.count : a.chunk, 4 * width, THREADS) : THREADS;
}

/* LAUNCH(kernels by rows and by columns, relu, call, args): kernel<R, relu> for the way that elements of this call are
 * moved. */
#define LAUNCH_AS(kernel, R, relu, call, a) \
    kernel<R, relu><<<blocks_for(blocks_of(a), 1), threads_of(a, R::width), 0, stream_of(call)>>>(a)
#define LAUNCH_ROWS(kernel, T, relu, call, a) \
    do { \
        typedef typed<T, pack_size<T>::value> packs; \
        typedef typed<T, 1> singles; \
        if (width_of(a) > 1) \
            LAUNCH_AS(kernel, packs, relu, call, a); \
        else \
            LAUNCH_AS(kernel, singles, relu, call, a); \
    } while (0)
#define LAUNCH_COLUMNS(kernel, T, relu, call, a) \
    do { \
        typedef typed<T, COLUMN_PACK> packs; \
        typedef typed<T, 1> singles; \
        if (width_of(a) > 1 && (a).is_straight) \
            LAUNCH_AS(kernel, straight<T>, relu, call, a); \
        else if (width_of(a) > 1) \
            LAUNCH_AS(kernel, packs, relu, call, a); \
        else \
            LAUNCH_AS(kernel, singles, relu, call, a); \
    } while (0)
#define LAUNCH(rows_kernel, columns_kernel, relu, call, a) \
    do { \
        if (blocks_of(a) == 0) \
            break; \
        if ((a).by_rows) \
            LAUNCH_FORM(LAUNCH_ROWS, rows_kernel, relu, call, a); \
        else \
            LAUNCH_FORM(LAUNCH_COLUMNS, columns_kernel, relu, call, a); \
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

/* ---- inside a kernel --------------------------------------------------------------------------------------------- */

/* What a block works on. By columns `channel` is the thread's first one, and may lie beyond the last. */
struct channel_piece {
    int64_t batch, channel, begin, end;
    int64_t tile; /* by columns: the block's first channel */
    int64_t part; /* where the numbers of the block's first channel go */
};

/* Takes the last digit off a block's number: there are fewer than 2^31 blocks. */
__device__ __forceinline__ uint32_t block_digit(uint32_t &rest, const divider &size)
{
    uint32_t next = divide_small(rest, size), digit = rest - next * (uint32_t)size.by;
    rest = next;
    return digit;
}

/* Number `rest` of (batches, each): its batch, and in `rest` what it is there. Most calls have one, and a division of
 * 64 bits takes long. */
__device__ __forceinline__ int64_t batch_digit(const channel_args &a, int64_t &rest, int64_t each)
{
    int64_t batch = a.batches > 1 ? rest / each : 0;
    rest -= batch * each;
    return batch;
}

/* Where a chunk begins and ends. */
__device__ __forceinline__ void chunk_bounds(const channel_args &a, uint32_t chunk, int64_t *begin, int64_t *end)
{
    uint32_t line = chunk, piece = block_digit(line, a.by_pieces);
    int64_t stop = (line + 1) * a.line;
    *begin = line * a.line + piece * a.chunk;
    *end = *begin + a.chunk < stop ? *begin + a.chunk : stop;
}

__device__ __forceinline__ channel_piece piece_by_rows(const channel_args &a)
{
    channel_piece p;
    uint32_t id = a.from_end ? gridDim.x - 1 - blockIdx.x : blockIdx.x, chunk = block_digit(id, a.by_chunks);
    p.channel = block_digit(id, a.by_channels);
    p.batch = id;
    p.part = (p.batch * a.chunks + chunk) * a.channels + p.channel;
    chunk_bounds(a, chunk, &p.begin, &p.end);
    return p;
}

/* Offsets of position `at` of a channel in all operands. */
__device__ __forceinline__ void place(const channel_args &a, const channel_piece &p, int64_t at, int64_t *offset)
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

/* The offsets of a piece's positions by rows: worked out once where they lie on a line, whose elements are neighbours
 * where packs are. */
template <typename R> struct row_walk {
    int64_t base[CHANNEL_OPERANDS];

    __device__ __forceinline__ row_walk(const channel_args &a, const channel_piece &p)
    {
        place(a, p, p.begin, base);
    }
    __device__ __forceinline__ void to(const channel_args &a, const channel_piece &p, int64_t at, int64_t *offset) const
    {
        if (!a.is_straight) {
            place(a, p, at, offset);
            return;
        }
#pragma unroll
        for (int k = 0; k < CHANNEL_OPERANDS; k++)
            offset[k] = base[k] + (at - p.begin) * (R::width > 1 ? 1 : a.at.stride[k][a.at.rank - 1]);
    }
};

/* One channel's numbers in the type computed in. The mean is two of them: what is left of an element after it is then
 * exact to that type even where the mean is much larger than the deviation. */
template <typename C> struct channel_numbers {
    C high, low, rstd, scale, bias, first, second;

    __device__ __forceinline__ void fetch(const channel_args &a, int64_t batch, int64_t channel)
    {
        int64_t group = a.channels >> 31 ? channel / a.members : divide_small((uint32_t)channel, a.by_members),
                set = batch * a.groups + group;
        double one = a.first ? a.first[set] : 0, two = a.first ? a.second[set] : 0;
        double weight = a.weight.base ? load_any<double>(a.weight.base, a.weight.dtype, channel * a.weight.along) : 1.0;
        make(a.mean[set], a.rstd[set], weight,
             a.bias.base ? load_any<C>(a.bias.base, a.bias.dtype, channel * a.bias.along) : (C)0, one, two);
    }
    __device__ __forceinline__ void make(double mean, double deviation, double weight, C shift, double one, double two)
    {
        high = (C)mean;
        low = (C)(mean - (double)high);
        rstd = (C)deviation;
        scale = (C)(deviation * weight);
        bias = shift;
        first = (C)one;
        second = (C)(deviation * two); /* times the distance from the mean */
    }
    __device__ __forceinline__ C distance(C x) const
    {
        return (x - high) - low;
    }
    /* Written so that every kernel rounds it in the same way: relu's gradient must see what relu saw. */
    __device__ __forceinline__ C normal(C x) const
    {
        return fma(distance(x), scale, bias);
    }
};

/* relu's gradient: one that is not a number goes through, as its value does. */
template <typename C> __device__ __forceinline__ C passed(C g, C y, C least)
{
    return y <= least ? (C)0 : g;
}

#endif

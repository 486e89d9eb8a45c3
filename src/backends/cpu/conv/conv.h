/* conv.h: the geometry of a two-dimensional convolution, of its forward and of the gradient of x alike.
 *
 * Both read a source (x, or the gradient g of the result) at a few places around each output, and sum what they read
 * under weights. The source of one band of output rows is first loaded into planes: converted, with zeros around it,
 * every row `width` long. Then element p of the output lies beside p of the planes: whatever the padding and dilation,
 * a tap is one offset, and whole vectors of outputs, which run on from row to row, read whole vectors. The few outputs
 * beyond a row's end are computed and thrown away.
 *
 *   forward      a stride is undone by the load: rows and columns are dealt out to one plane for each remainder, and a
 * tap reads one of them gradient     outputs of the same remainder see the same taps and are a phase: each phase is a
 * convolution of stride 1 with some of the taps
 *
 * Nothing is cut by the number of threads, and every sum runs over channels and taps in order: the bits depend on the
 * shape alone. */
#ifndef TARN__CPU_CONV_H
#define TARN__CPU_CONV_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/fma_lane.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/common/transpose4.h"
#include "backends/cpu/runtime/level.h"

/* Rows of the register tile: with three vectors each they fill the registers, less what they are multiplied with. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define MR 8
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#else
#define MR 4
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
#endif

/* The weights of a register tile's rows, side by side at a: X(row, where it is, place in it). */
#if defined(__aarch64__)
#define LOAD_WEIGHTS(a) NAMED(LOAD_8)(a)
#define EACH_WEIGHT(X) NAMED(EACH_OF_8)(X)
#define FMA_WEIGHT(sum, x, of, at) NAMED(FMA_LANE)(sum, x, of, at);
#else
#define LOAD_WEIGHTS(a)
#define FMA_WEIGHT(sum, x, of, at) sum += x * of[at];
#if MR == 8
#define EACH_WEIGHT(X) X(0, a, 0) X(1, a, 1) X(2, a, 2) X(3, a, 3) X(4, a, 4) X(5, a, 5) X(6, a, 6) X(7, a, 7)
#else
#define EACH_WEIGHT(X) X(0, a, 0) X(1, a, 1) X(2, a, 2) X(3, a, 3)
#endif
#endif

#define TILE_ROWS 64 /* output channels that are summed at once */
#define K_BLOCK 192  /* channels and taps together after which the next channels of the output take over */
#define FEW_ROWS 2   /* rows beyond whole panels that are computed one by one */
#define PLANES_BYTES \
    (INT64_C(384) << 10)             /* of the source of one band: what stays in a core's cache beside the weights */
#define ENOUGH_UNITS 16              /* where there is work enough, so many pieces that several threads find some */
#define UNIT_WORK (INT64_C(1) << 18) /* multiplications below which a piece is not worth a hand-over */

/* Outputs that see the same taps. */
typedef struct phase {
    int64_t at[2];   /* output (i, j) of it lies at row at[0] + i · spread[0], column at[1] + j · spread[1] */
    int64_t size[2]; /* rows and columns */
    int64_t taps;
    const int64_t *offset; /* of each tap, in a channel's planes */
    /* of each tap of the channels that are summed at once, in the planes of all; two more behind them */
    const int64_t *position;
    int64_t earlier; /* taps of the phases before it */
} phase;

typedef struct plan {
    const tarn__view *from, *to, *weight, *bias; /* (N, C, H, W); the weight (O, C / groups, KH, KW) */
    bool gradient;
    int64_t images, groups, in, out; /* channels of source and output, of one group */
    int64_t kernel[2], stride[2], padding[2], dilation[2];

    int64_t groups_per_load;        /* groups whose planes are loaded at once */
    int64_t step[2], remainders[2]; /* one plane for each remainder of rows and columns by the step */
    int64_t pad_before[2];          /* zeros in front; negative: rows and columns left out */
    int64_t halo, width;            /* rows of a plane beyond those of its band; the length of its rows */
    int64_t rows, band, bands;      /* output rows: all, those done at a time, and how often */
    int64_t plane, channel;         /* elements of a plane, and of a channel's planes */

    int64_t out_step[2], phase_count[2];
    phase *phases;
    /* (taps): offsets phase by phase; the phase of each tap, -1: none, and its place in it */
    int64_t *offsets, *tap_phase, *tap_index;
    int64_t *positions;     /* of all phases */
    void *weights, *biases; /* packed; of all outputs, zeros where there is no bias */
} plan;

/* a modulo b, from 0 to b - 1; and the quotient that goes with it. */
static inline int64_t remainder_of(int64_t a, int64_t b)
{
    return (a % b + b) % b;
}

static inline int64_t quotient_of(int64_t a, int64_t b)
{
    return (a - remainder_of(a, b)) / b;
}

static inline int64_t tap_count(const plan *s)
{
    return s->kernel[0] * s->kernel[1];
}

/* Channels whose taps are summed before the next channels of the output take over. */
static inline int64_t channels_per_step(const plan *s, const phase *f)
{
    return min_i64(s->in, max_i64(1, K_BLOCK / max_i64(1, f->taps)));
}

/* The places of a plane's row that lie inside the source: from *low up to, not including, *high. */
static inline void inside_range(int64_t size, int64_t step, int64_t first, int64_t count, int64_t *low, int64_t *high)
{
    *low = max_i64(0, min_i64(count, -quotient_of(first, step)));
    *high = max_i64(*low, min_i64(count, quotient_of(size - 1 - first, step) + 1));
}

#endif

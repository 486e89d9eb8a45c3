/* conv.h: geometry of a 2-D convolution, shared by forward and dgrad.
 *
 * Both read a source (x, or the output gradient g) at a few taps around each output and sum it under weights. Implicit
 * GEMM without im2col: the source of one band of output rows is loaded into planes, converted and zero-padded, every
 * row `width` elements long. Then element p of the output lines up with element p of the planes: for any padding and
 * dilation a tap is one constant offset, and whole vectors of outputs, which run on from row to row, read whole
 * vectors. The few outputs past a row's end are computed and discarded.
 *
 *   forward   the load undoes strides: rows and columns go to one plane per remainder, and a tap reads one of these
 *   dgrad     outputs with equal remainders see the same taps and form a phase: a stride-1 convolution with these taps
 *
 * Work is cut by shape alone, and every sum runs over channels and taps in order: results do not depend on threads.
 * FLOPs: 2 · N · O · C / groups · KH · KW · OH · OW. */
#ifndef TARN__CPU_CONV_H
#define TARN__CPU_CONV_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/fma_lane.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/common/transpose4.h"
#include "backends/cpu/runtime/level.h"

/* Rows (output channels) of the register tile: with three vectors each they fill the registers, less the operands. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define MR 8
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#else
#define MR 4
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
#endif

/* Weights of a tile's rows, contiguous at a: X(row, register or pointer, lane or index). */
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

#define TILE_ROWS 64 /* output channels per pass */
#define K_BLOCK 192  /* channels × taps summed before moving to the next output channels: their weights stay in L1 */
#define FEW_ROWS 2   /* leftover rows computed one by one instead of padding a panel */
#define PLANES_BYTES (INT64_C(384) << 10) /* bytes of a band's planes: what stays in L2 next to the weights */
#define ENOUGH_UNITS 16                   /* tasks, where there is work enough, so that several threads get some */
#define UNIT_WORK (INT64_C(1) << 18)      /* multiplications below which a task is not worth scheduling */

/* A phase: outputs that see the same taps. */
typedef struct phase {
    int64_t at[2];   /* its output (i, j) is row at[0] + i · out_step[0], column at[1] + j · out_step[1] */
    int64_t size[2]; /* rows and columns */
    int64_t taps;
    const int64_t *offset; /* per tap, in a channel's planes */
    /* per term (tap of a channel summed in one step), in the planes of all channels; two extra entries */
    const int64_t *position;
    int64_t earlier; /* number of taps of the phases before it */
} phase;

/* A described convolution. A plan has none of the addresses: run() sets them in a copy. */
typedef struct job {
    bool gradient;
    int64_t images, groups, in, out; /* channels of source and output per group */
    int64_t kernel[2], stride[2], padding[2], dilation[2];

    int64_t groups_per_load;        /* groups whose planes are loaded together */
    int64_t step[2], remainders[2]; /* stride of the source, and planes per axis: one per remainder */
    int64_t pad_before[2];          /* zeros before the source; negative: rows and columns skipped */
    int64_t halo, width;            /* rows of a plane beyond those of its band; row length of a plane */
    int64_t rows, band, bands;      /* output rows: all, per band, and the number of bands */
    int64_t plane, channel;         /* elements of a plane, and of a channel's planes */

    int64_t out_step[2], phase_count[2];

    /* offsets in scratch */
    size_t phases_at, positions_at, offsets_at, tap_phase_at, tap_index_at, weights_at, biases_at;
    slots plane_slots; /* planes of a task */

    /* addresses */
    const tarn__view *from, *to, *weight, *bias; /* (N, C, H, W); weight (O, C / groups, KH, KW) */
    phase *phases;
    /* (taps): offsets by phase; phase of each tap or -1, and its index there */
    int64_t *offsets, *tap_phase, *tap_index;
    int64_t *positions;     /* of all phases */
    void *weights, *biases; /* packed weights; biases of all outputs, zeros where there is none */
} job;

/* a mod b in [0, b), and the matching (floor) quotient. */
static inline int64_t remainder_of(int64_t a, int64_t b)
{
    return (a % b + b) % b;
}

static inline int64_t quotient_of(int64_t a, int64_t b)
{
    return (a - remainder_of(a, b)) / b;
}

static inline int64_t tap_count(const job *s)
{
    return s->kernel[0] * s->kernel[1];
}

/* Channels whose taps are summed before the next output channels. */
static inline int64_t channels_per_step(const job *s, const phase *f)
{
    return min_i64(s->in, max_i64(1, K_BLOCK / max_i64(1, f->taps)));
}

/* Positions [*low, *high) of a plane's row that fall inside the source. */
static inline void inside_range(int64_t size, int64_t step, int64_t first, int64_t count, int64_t *low, int64_t *high)
{
    *low = max_i64(0, min_i64(count, -quotient_of(first, step)));
    *high = max_i64(*low, min_i64(count, quotient_of(size - 1 - first, step) + 1));
}

#endif

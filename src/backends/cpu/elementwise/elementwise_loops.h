/* elementwise_loops.h: the element-wise engine. A loop nest over several operands is cut into tiles that fit the
 * first-level cache (on AArch64 into longer ones where no operand needs a buffer); each operand of a tile is either
 * used where it lies (its dtype is the one computed in, and its elements are neighbours) or brought into a buffer by a
 * loader of convert.h. So an expression is compiled once for each type it computes in, and dtypes and strides do not
 * multiply it. */
#ifndef TARN__CPU_ELEMENTWISE_LOOPS_H
#define TARN__CPU_ELEMENTWISE_LOOPS_H

#include "backends/cpu/runtime/level.h"
#include "base/kernel/kernels.h"

/* n elements; in and out point to dense tiles of the type computed in. An output may be the same memory as an input. */
typedef void (*tarn__tile_fn)(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params);

/* Floats are computed in a multiple of so many elements, since a compiler gives what is left after whole vectors other
 * instructions, which may choose another NaN of several. A multiple of what a loop takes at a time: clang's has up to
 * four vectors. */
#if defined(__clang__)
#define TARN__TILE_MULTIPLE 64
#else
#define TARN__TILE_MULTIPLE 16
#endif

typedef struct tarn__tile_job {
    tarn__tile_fn tile;
    int compute;      /* COMPUTE_F32 … */
    bool bool_output; /* the tile writes bytes of 0 and 1 instead of the type it computes in */
    bool simple;      /* the same bits in any instructions: elements after whole vectors may have their own */
    bool multipass;   /* the tile goes over its elements several times: they should stay in the first cache */
    /* of two inputs: the same, but in[1] is one element, for all n; NULL: there is no such form */
    tarn__tile_fn broadcast;
} tarn__tile_job;

/* Runs a tile function over all elements of a call whose outputs have one shape, to which the inputs broadcast. */
void TARN__AT_LEVEL(tarn__run_tiles)(const tarn__call *call, const tarn__tile_job *job);

/* The tiles of the elementwise kernels in f64 and i64, by kernel: elementwise_f64.c. */
typedef struct tarn__f64_tile {
    tarn__tile_fn f64, i64; /* i64 is NULL where a kernel has no integers */
} tarn__f64_tile;

#define tarn__f64_tiles TARN__AT_F64_LEVEL(tarn__f64_tiles_of)
extern const tarn__f64_tile tarn__f64_tiles[TARN__KERNEL_COUNT];

#endif

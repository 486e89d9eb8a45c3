/* elementwise_loops.h: the elementwise engine. A loop nest over several operands is cut into tiles that fit L1
 * (longer ones on AArch64 where no operand needs a buffer). Each operand of a tile is used in place, where it is
 * contiguous in the compute type, or copied to a buffer by a loader of convert.h. So an expression is compiled once
 * per compute type, and dtypes and strides do not multiply it. */
#ifndef TARN__CPU_ELEMENTWISE_LOOPS_H
#define TARN__CPU_ELEMENTWISE_LOOPS_H

#include "backends/cpu/runtime/level.h"
#include "base/kernel/kernels.h"

/* n elements; in and out point to contiguous tiles of the compute type. An output may alias an input exactly. */
typedef void (*tarn__tile_fn)(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params);

/* Floats are computed in multiples of this many elements: compilers use other instructions for a remainder, which
 * may select a different NaN of several. A multiple of any loop's step: clang's has up to four vectors. */
#if defined(__clang__)
#define TARN__TILE_MULTIPLE 64
#else
#define TARN__TILE_MULTIPLE 16
#endif

/* What a kernel passes to the engine; the caller keeps it alive during the call. */
typedef struct tarn__tile_job {
    tarn__tile_fn tile;
    int compute;      /* COMPUTE_F32 … */
    bool bool_output; /* writes bytes of 0 and 1 instead of the compute type */
    bool simple;      /* result independent of the instructions: a remainder may use its own */
    bool multipass;   /* reads its elements several times: they should stay in L1 */
    /* for two inputs: in[1] is one element for all n; NULL: no such form */
    tarn__tile_fn broadcast;
} tarn__tile_job;

/* Runs a tile function over all elements of a call. Outputs have one shape, to which inputs broadcast; NULL inputs
 * are constants of params. */
void TARN__AT_LEVEL(tarn__run_tiles)(const tarn__call *call, const tarn__tile_job *job);

/* Tiles of the elementwise kernels in f64 and i64, by kernel (elementwise_f64.c). */
typedef struct tarn__f64_tile {
    tarn__tile_fn f64, i64; /* i64: NULL where a kernel has no integers */
} tarn__f64_tile;

#define tarn__f64_tiles TARN__AT_F64_LEVEL(tarn__f64_tiles_of)
extern const tarn__f64_tile tarn__f64_tiles[TARN__KERNEL_COUNT];

#endif

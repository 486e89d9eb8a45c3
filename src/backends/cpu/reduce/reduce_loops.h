/* reduce_loops.h: the engine of all reductions. A reduction keeps one or two values per output, its state, and defines
 * how elements enter it; the engine decides which elements, in which order and on which thread.
 *
 * Two forms, by layout. By rows: the reduced elements of an output are contiguous, and enter in pieces of up to
 * TARN__PIECE. By columns: neighbors belong to different outputs, and whole rows enter a tile of columns.
 *
 * Accumulators have the compute type for one piece (or TARN__BLOCK_ROWS rows) only; then they are added to the state,
 * which is f64 or i64. So the rounding error of a long sum is that of a short one. */
#ifndef TARN__CPU_REDUCE_LOOPS_H
#define TARN__CPU_REDUCE_LOOPS_H

#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/runtime/level.h"

/* Chosen so that an f32 accumulator takes 64 steps: several vectors of them by rows, four rows per step by columns. */
#define TARN__PIECE (16 * TARN__ACCUMULATORS * VECTOR_BYTES) /* elements per call by rows */
#define TARN__BLOCK_ROWS 256                                 /* rows per narrow accumulator by columns */
#define TARN__ROWS 16                                        /* rows per call by columns */
#define TARN__COLUMNS 2048                                   /* columns per tile, at most */

/* Prefetch for runs along memory: arithmetic keeps the processor from looking as far ahead itself. To L2 on AArch64. */
#if defined(__aarch64__)
#define TARN__PREFETCH(line) __builtin_prefetch((line) + 8192, 0, 2)
#else
#define TARN__PREFETCH(line) __builtin_prefetch((line) + 2048)
#endif

/* A state value: f64 for floats, i64 for integers and indices. */
typedef union tarn__acc {
    double real;
    int64_t integer;
} tarn__acc;

/* Narrow accumulators of a tile of columns; their meaning is the reducer's. */
typedef struct tarn__columns {
    _Alignas(64) char first[TARN__COLUMNS * 8];
    _Alignas(64) char second[TARN__COLUMNS * 8];
} tarn__columns;

/* A kind of reduction. `aux` is one value of the compute type per column (NULL without an auxiliary operand). */
typedef struct tarn__reducer {
    int compute;        /* type elements are loaded as: COMPUTE_F32 … */
    int parts;          /* values per state: 1 or 2 */
    bool joins_rows;    /* columns do not depend on row numbers, so narrow rows may be joined */
    tarn__acc start[2]; /* state before the first element */
    /* By rows: n contiguous elements into the state a, b, after `at` others. */
    void (*add_row)(tarn__acc *a, tarn__acc *b, const void *x, int64_t n, int64_t at, const void *aux);
    /* By columns: resets accumulators; adds rows, after `at` others; writes them to states. */
    void (*init_columns)(tarn__columns *columns, int64_t width);
    void (*add_columns)(tarn__columns *columns, const void *const *row, int rows, int64_t width, int64_t at,
                        const void *aux);
    void (*read_columns)(const tarn__columns *columns, int64_t width, tarn__acc *const *state);
    /* Both directly from contiguous elements of another dtype; NULL: elements are converted first. */
    tarn_dtype other;
    void (*add_row_other)(tarn__acc *a, tarn__acc *b, const void *x, int64_t n, int64_t at, const void *aux);
    void (*add_columns_other)(tarn__columns *columns, const void *const *row, int rows, int64_t width, int64_t at,
                              const void *aux);
    /* Merges states b, of later elements, into a. */
    void (*merge)(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a, int64_t count_b);
    /* Turns states of `count` elements into results, in part `result`; NULL: states are results. */
    void (*finish)(tarn__acc *const *state, int64_t width, int64_t count, const tarn__reduce *params);
    int result;
    bool integer_result; /* stored from i64, else from f64 */
} tarn__reducer;

/* A described reduction: axes sorted, layout chosen, tasks cut. Depends on shapes, strides, dtypes and reducer alone,
 * so it is part of a plan; addresses are set in a copy, by tarn__run_reduction(). */
typedef struct tarn__reduction {
    const tarn__reducer *reducer;
    tarn_dtype x_dtype, y_dtype, aux_dtype;
    int64_t x_size, y_size, aux_size; /* bytes per element */
    bool is_empty;                    /* there is no output */
    bool other, direct;               /* elements are read in place; in the reducer's other dtype */
    bool by_columns;
    int outer_rank, reduced_rank;
    int64_t outer_shape[TARN_MAX_RANK], outer_x[TARN_MAX_RANK], outer_y[TARN_MAX_RANK], outer_aux[TARN_MAX_RANK];
    int64_t reduced_shape[TARN_MAX_RANK], reduced_x[TARN_MAX_RANK]; /* at least one axis, the innermost last */
    int64_t columns, column_x, column_y, column_aux;
    /* reduced elements per output; by columns with joined rows: rows of `joined` elements */
    int64_t rows;
    int64_t count;       /* reduced elements per output */
    int64_t joined;      /* by columns: contiguous rows processed as one; 1: not joined */
    int64_t last_joined; /* of the last row on the innermost reduced axis */
    int64_t outer, tile, tiles, chunk, chunks;
    /* addresses */
    const char *x, *aux;
    char *y;
    double *second;
    const tarn__reduce *params;
    void *scratch;
} tarn__reduction;

/* Operands of one run, of the description's shapes, strides and dtypes. Borrows everything. */
typedef struct tarn__reduction_operands {
    const tarn__view *x;
    const tarn__view *y;   /* x's shape with size 1 on reduced axes, or rank 0 */
    const tarn__view *aux; /* broadcasts to x; constant on reduced axes; NULL: none */
    double *second;        /* also receives the second part, with y's strides; NULL: not wanted */
    const tarn__reduce *params;
    void *scratch; /* 8-byte aligned */
} tarn__reduction_operands;

/* Describes a reduction of x to y; the memory of the views is not read. Returns the bytes of scratch. */
size_t TARN__AT_LEVEL(tarn__describe_reduction)(tarn__reduction *r, const tarn__reducer *reducer, const tarn__view *x,
                                                const tarn__view *y, const tarn__view *aux);
void TARN__AT_LEVEL(tarn__run_reduction)(const tarn__reduction *described, const tarn__reduction_operands *operands);

/* prepare() and run() of kernels that reduce in[0] to out[0] and do nothing else. `reducers` has one per compute type
 * of in[0]; out[0] may have any dtype. */
tarn__plan_status TARN__AT_LEVEL(tarn__prepare_reduce)(const tarn__call *call, tarn__plan *plan,
                                                       const tarn__reducer *reducers);
void TARN__AT_LEVEL(tarn__kernel_reduce)(const tarn__call *call);

#endif

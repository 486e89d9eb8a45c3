/* reduce_loops.h: the engine under all reductions. A reduction keeps one or two numbers for each output, its state, and
 * says how elements are taken into it; which elements, in which order and on which thread is the engine's affair.
 *
 * Two forms, chosen by layout. By rows: the reduced elements of one output lie next to each other, and are taken in
 * pieces of up to TARN__PIECE. By columns: neighbours belong to different outputs, and whole rows are taken into a tile
 * of columns.
 *
 * Accumulators have the narrow type that elements are computed in for a piece (or TARN__QUANT rows) only; then they are
 * added to the state, which is f64 or i64. So the error of a long sum is that of a short one. */
#ifndef TARN__CPU_REDUCE_LOOPS_H
#define TARN__CPU_REDUCE_LOOPS_H

#include "backends/cpu/common/vec_ext.h"
#include "backends/cpu/runtime/level.h"

/* Lengths such that an f32 accumulator takes 64 steps: several vectors of them by rows, four rows a step by columns. */
#define TARN__PIECE (16 * TARN__ACCUMULATORS * VECTOR_BYTES) /* elements taken at once by rows */
#define TARN__QUANT 256                                      /* rows taken into narrow accumulators by columns */
#define TARN__ROWS 16                                        /* rows taken at once by columns */
#define TARN__COLUMNS 2048                                   /* columns of a tile, at most */

/* A run along memory asks for a line ahead of time: arithmetic keeps the processor from looking as far ahead itself.
 * AArch64 into the second cache. */
#if defined(__aarch64__)
#define TARN__PREFETCH(line) __builtin_prefetch((line) + 8192, 0, 2)
#else
#define TARN__PREFETCH(line) __builtin_prefetch((line) + 2048)
#endif

typedef union tarn__acc {
    double real;
    int64_t integer;
} tarn__acc;

/* Narrow accumulators of a tile of columns; a reducer uses them as it likes. */
typedef struct tarn__columns {
    _Alignas(64) char first[TARN__COLUMNS * 8];
    _Alignas(64) char second[TARN__COLUMNS * 8];
} tarn__columns;

/* How a kind of reduction works. `aux` is one number of the computed type for each column (NULL without an auxiliary
 * operand). */
typedef struct tarn__reducer {
    int compute;        /* what elements are loaded as: COMPUTE_F32 … */
    int parts;          /* numbers in a state: 1 or 2 */
    bool joins_rows;    /* columns are independent of row numbers, so several narrow rows may be taken as one */
    tarn__acc start[2]; /* the state before the first element */
    /* By rows: takes n dense elements into the state a, b, which has taken `at` before. */
    void (*add_row)(tarn__acc *a, tarn__acc *b, const void *x, int64_t n, int64_t at, const void *aux);
    /* By columns: clears the accumulators; takes rows, after `at` others; reads them out into states. */
    void (*init_columns)(tarn__columns *columns, int64_t width);
    void (*add_columns)(tarn__columns *columns, const void *const *row, int rows, int64_t width, int64_t at,
                        const void *aux);
    void (*read_columns)(const tarn__columns *columns, int64_t width, tarn__acc *const *state);
    /* The same two straight from dense elements of another dtype, which are converted first otherwise; NULL: none. */
    tarn_dtype other;
    void (*add_row_other)(tarn__acc *a, tarn__acc *b, const void *x, int64_t n, int64_t at, const void *aux);
    void (*add_columns_other)(tarn__columns *columns, const void *const *row, int rows, int64_t width, int64_t at,
                              const void *aux);
    /* Adds the states b, of elements that come after those of a. */
    void (*merge)(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a, int64_t count_b);
    /* Turns states of `count` elements into results, in the part `result`; NULL: they are. */
    void (*finish)(tarn__acc *const *state, int64_t width, int64_t count, const tarn__reduce *params);
    int result;
    bool integer_result; /* stored from i64, else from f64 */
} tarn__reducer;

typedef struct tarn__reduction {
    const tarn__reducer *reducer;
    const tarn__view *x;
    const tarn__view *y;   /* x's shape with size 1 on reduced axes, or rank 0 */
    const tarn__view *aux; /* broadcasts to x; constant on reduced axes; NULL: none */
    double *second;        /* where the second part goes as well, with y's strides; NULL: nowhere */
    const tarn__reduce *params;
    void *scratch;
} tarn__reduction;

size_t TARN__AT_LEVEL(tarn__reduction_scratch)(const tarn__reduction *reduction);
void TARN__AT_LEVEL(tarn__run_reduction)(const tarn__reduction *reduction);

/* The kernels that live in files of their own. */
void TARN__AT_LEVEL(tarn__cpu_prod_grad)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_var)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_argmax)(tarn__kernel_row *rows);
void TARN__AT_LEVEL(tarn__cpu_scan)(tarn__kernel_row *rows);

#endif

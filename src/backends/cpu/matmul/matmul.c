/* matmul.c: matrix multiplication.
 *
 * A matmul is a list of batches of c = alpha · a @ b + beta · c + bias. One of seven paths runs, by shape, dtype and
 * layout alone, never by the number of threads:
 *
 *   split-K   long k, small output: ranges of k are GEMMs of their own, added in order
 *   skinny    few rows or few columns: bound by reading the large operand once
 *   blas      f32 or f64 that OpenBLAS reads in place and computes faster: output tiles, one call on one thread each
 *   small     many batches of small matrices, or one: each by one thread
 *   blocked   every other float matmul: gemm.inc; 16-bit types are converted when packed and rounded once at the end
 *   narrow    few rows of a batch-invariant matmul: the sums of blocked, without packing all of b
 *   integers  summed in i64
 *
 * Instruction level: the file is compiled once per level (backends/cpu/runtime/level.h), which fixes MR and the vector
 * width; fill_table() of backends/cpu/runtime/backend.c registers the best level the processor has. On AArch64 with
 * bf16 instructions matmul_bf16_arm.c, on x86-64 with AMX matmul_bf16_amx.c puts a row for the calls that fit ahead of
 * this kernel's.
 *
 * prepare_matmul() describes operands, splits and path; kernel_matmul() adds addresses to a copy and runs it. The way
 * of a blocked f32 matmul: kernel_matmul, run_unsplit, gemm_f32, run_gemm_block_f32, run_tiles_f32, run_tile_f32,
 * micro_f32 (NAMED() adds the suffixes).
 *
 * BLAS: choose_path() decides per call, by describe_blas(). blas.c loads OpenBLAS, where it is installed, when the
 * first matmul asks for it, and reports whether its kernels fit the processor. */
#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/transpose4.h"
#include "backends/cpu/matmul/blas.h"
#include "backends/cpu/runtime/level.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ROW_CHUNK 512        /* columns of an output row that are stored, or summed on the stack, at a time */
#define STRIP 64             /* elements of k converted at a time */
#define SMALL_MN 128         /* rows, and columns, of a GEMM that one thread packs by itself, at most */
#define SKINNY_ROWS 4        /* rows, or columns, of a skinny GEMM, at most; any number where each is as alone */
#define SKINNY_TOGETHER 8    /* rows of a skinny GEMM that share a read of b */
#define SKINNY_PREFETCH 8192 /* bytes of b between a prefetch and its use */
#define PACKED_BYTES (INT64_C(64) << 20) /* of panels packed at a time, at most, but for very long k */
#define PACK_GRAIN 16384                 /* elements packed per task */
#define SMALL_TILE (INT64_C(2) << 20)    /* multiplications below which a tile is not cut further */
#define ENOUGH_TILES 16                  /* tiles of an output that is not cut further: work for as many threads */
#define BLAS_WORK 32768                  /* multiplications from which a BLAS call pays */

#if defined(__aarch64__)
#define PANELS_TOGETHER 32 /* panels packed per task, where there are enough */
#else
#define PANELS_TOGETHER 1
#endif
#define PACK_STEP_ROWS 8 /* rows packed for all panels before the next ones */

/* Rows of the register tile: with two vectors each they fill the registers, less three. For unpacked rows, row i is
 * a base pointer plus none, one or two strides: few registers for many rows. */
#if defined(__aarch64__)
#define MR 8 /* as many as fma_lane.h loads */
#define EACH_ROW(X) \
    X(0, a, 0) X(1, a, row) X(2, a, twice) X(3, a3, 0) X(4, a3, row) X(5, a3, twice) X(6, a6, 0) X(7, a6, row)
#elif defined(__AVX512F__)
#define MR 12
#define EACH_ROW(X) \
    X(0, a, 0) \
    X(1, a, row) \
    X(2, a, twice) \
    X(3, a3, 0) \
    X(4, a3, row) X(5, a3, twice) X(6, a6, 0) X(7, a6, row) X(8, a6, twice) X(9, a9, 0) X(10, a9, row) X(11, a9, twice)
#elif defined(__AVX__)
#define MR 6
#define EACH_ROW(X) X(0, a, 0) X(1, a, row) X(2, a, twice) X(3, a3, 0) X(4, a3, row) X(5, a3, twice)
#else
#define MR 4
#define EACH_ROW(X) X(0, a, 0) X(1, a, row) X(2, a, twice) X(3, a3, 0)
#endif
#if defined(__aarch64__)
#define FEW_COLUMNS 0 /* columns up to which packing a costs more than it saves; never where rows multiply by lanes */
#else
#define FEW_COLUMNS 1024
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define DOTS_TOGETHER 4 /* rows whose dot products share the loads of b: four accumulators each, in registers */
#else
#define DOTS_TOGETHER 2
#endif
#define MAX_PANEL 32 /* NR of f32 on AVX-512, the widest panel */

/* One operand as strides; a broadcast batch axis has stride 0. */
typedef struct matrix {
    char *base; /* NULL: none, and in a plan */
    tarn_dtype dtype;
    int64_t row_stride, column_stride;
    int64_t batch[TARN_MAX_RANK];
} matrix;

/* A described matmul; also a batch of splits, whose output is scratch. */
typedef struct gemm_args {
    int64_t m, n, k, batches;
    int batch_rank;
    int64_t batch_shape[TARN_MAX_RANK];
    matrix a, b, c, bias; /* bias: (m, n) with row stride 0 */
    double alpha, beta;
    tarn__invariance invariance;
    int64_t splits, split_length; /* of k; 1: none */
    int64_t skinny_columns;
    int64_t tile_rows, tile_columns; /* blas */
    char *scratch;
    const char *function; /* for errors */
} gemm_args;

/* How a GEMM runs. */
enum path { SKINNY, BLAS, SMALL, BLOCKED, NARROW, INTEGERS };

typedef struct gemm_path {
    enum path path;
    int64_t batches, rows, columns; /* blocked: packed at a time */
} gemm_path;

/* The described call. */
typedef struct job {
    gemm_args p;
    gemm_path whole; /* of the call, or of its full splits */
    gemm_path last;  /* of the last split, where it is shorter: for a few of k another path may be better */
} job;

/* Address of an element, in the operand's own dtype. */
static char *element(const gemm_args *p, const matrix *x, int64_t batch, int64_t row, int64_t column)
{
    int64_t offset = row * x->row_stride + column * x->column_stride;
    for (int i = p->batch_rank - 1; i >= 0; i--) {
        offset += batch % p->batch_shape[i] * x->batch[i];
        batch /= p->batch_shape[i];
    }
    return x->base + offset * (int64_t)tarn__dtype_bytes(x->dtype);
}

#define T float
#define COMPUTE COMPUTE_F32
#define NATIVE TARN_F32
#define SQUARE 4
#define NAMED(x) x##_f32
#if defined(__AVX512F__)
#define WIDEN_BF16(from) \
    (vector_f32) _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(from))), 16)
#define WIDEN_F16(from) (vector_f32) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from)))
#elif defined(__AVX2__)
#define WIDEN_BF16(from) \
    (vector_f32) _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(from))), 16)
#define WIDEN_F16(from) (vector_f32) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from)))
#elif defined(__aarch64__)
#define WIDEN_BF16(from) (vector_f32) vshll_n_u16(vld1_u16(from), 16)
#define WIDEN_F16(from) (vector_f32) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)))
#endif
#include "backends/cpu/matmul/gemm.inc"
#undef WIDEN_BF16
#undef WIDEN_F16

#define T double
#define COMPUTE COMPUTE_F64
#define NATIVE TARN_F64
#define SQUARE 2
#define NAMED(x) x##_f64
#include "backends/cpu/matmul/gemm.inc"

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Views of lower rank broadcast over the leading axes. */
static matrix describe_matrix(const tarn__view *view, int rank)
{
    matrix x = {.dtype = view->dtype};
    for (int i = 0; i < rank; i++) {
        int own = i - (rank - view->rank);
        int64_t stride = own < 0 || view->shape[own] == 1 ? 0 : view->stride[own];
        *(i == rank - 2 ? &x.row_stride : i == rank - 1 ? &x.column_stride : &x.batch[i]) = stride;
    }
    /* The stride of an axis of size 1 is arbitrary; packing and BLAS prefer this one. */
    int64_t rows = view->shape[view->rank - 2], columns = view->shape[view->rank - 1];
    if (columns == 1)
        x.column_stride = 1;
    if (rows == 1)
        x.row_stride = columns > 1 && x.column_stride != 1 ? 1 : columns;
    return x;
}

static void swap_strides(matrix *x)
{
    int64_t row_stride = x->row_stride;
    x->row_stride = x->column_stride;
    x->column_stride = row_stride;
}

/* cᵀ = bᵀ @ aᵀ: few columns become few rows. */
static void transpose(gemm_args *p)
{
    matrix a = p->a;
    int64_t m = p->m;
    p->a = p->b, p->b = a;
    p->m = p->n, p->n = m;
    swap_strides(&p->a), swap_strides(&p->b), swap_strides(&p->c), swap_strides(&p->bias);
}

static gemm_args describe(const tarn__call *call)
{
    const tarn__matmul *params = call->params;
    const tarn__view *c = call->out[0], *a = call->in[0];
    int rank = c->rank;
    gemm_args p = {.m = c->shape[rank - 2],
                   .n = c->shape[rank - 1],
                   .k = a->shape[a->rank - 1],
                   .batches = 1,
                   .batch_rank = rank - 2,
                   .alpha = params->alpha,
                   .beta = params->beta,
                   .invariance = params->batch_invariant,
                   .splits = 1};
    for (int i = 0; i < rank - 2; i++) {
        p.batch_shape[i] = c->shape[i];
        p.batches *= c->shape[i];
    }
    p.a = describe_matrix(a, rank);
    p.b = describe_matrix(call->in[1], rank);
    p.c = describe_matrix(c, rank);
    if (call->inputs > 2 && call->in[2]) {
        const tarn__view *bias = call->in[2];
        p.bias = (matrix){.dtype = bias->dtype, .column_stride = p.n > 1 ? bias->stride[bias->rank - 1] : 0};
    }
    return p;
}

/* Addresses of the call: a plan has none. */
static void bind(gemm_args *p, const tarn__call *call)
{
    p->a.base = tarn__view_at(call->in[0]);
    p->b.base = tarn__view_at(call->in[1]);
    p->c.base = tarn__view_at(call->out[0]);
    p->bias.base = call->inputs > 2 && call->in[2] ? tarn__view_at(call->in[2]) : NULL;
    p->scratch = call->scratch;
    p->function = call->function;
}

/* ---- BLAS -------------------------------------------------------------------------------------------------------- */

/* True where rows, or columns, are contiguous and do not overlap. */
static bool is_blas_layout(const matrix *x, tarn_dtype native, int64_t rows, int64_t columns, bool *transposed,
                           int64_t *ld)
{
    bool by_row = x->column_stride == 1 && x->row_stride >= columns,
         by_column = x->row_stride == 1 && x->column_stride >= rows;
    *transposed = !by_row;
    *ld = by_row ? x->row_stride : x->column_stride;
    *ld = *ld > 1 ? *ld : 1;
    return x->dtype == native && (by_row || by_column) && *ld < INT32_MAX;
}

/* On AArch64 gemm.inc is faster than OpenBLAS, except where one side is so short that packing dominates. */
static bool blas_is_faster_f32(const gemm_args *p)
{
#if defined(__aarch64__)
    int64_t few = min_i64(p->m, p->n), many = p->m + p->n - few;
    return few < 64 && many >= 512;
#else
    (void)p;
    return true;
#endif
}

/* True where OpenBLAS can read all three operands in place and is expected to be faster; fills in transposes and
 * leading dimensions. */
static bool describe_blas(const gemm_args *p, tarn__blas_call *call)
{
    tarn_dtype native = p->a.dtype;
    bool transposed;
    return (native == TARN_F64 || (native == TARN_F32 && blas_is_faster_f32(p))) &&
           is_blas_layout(&p->a, native, p->m, p->k, &call->transpose_a, &call->lda) &&
           is_blas_layout(&p->b, native, p->k, p->n, &call->transpose_b, &call->ldb) &&
           is_blas_layout(&p->c, native, p->m, p->n, &transposed, &call->ldc) && !transposed && p->k < INT32_MAX &&
           tarn__blas_usable(VECTOR_BYTES);
}

/* On top of a finished tile of c, row by row. */
static void add_bias(const gemm_args *p, int64_t batch, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    gemm_args finished = *p; /* alpha and beta are applied */
    finished.alpha = 1, finished.beta = 0;
    for (int64_t j = 0; j < columns; j += ROW_CHUNK)
        for (int64_t i = 0; i < rows; i++) {
            int64_t n = min_i64(columns - j, ROW_CHUNK);
            char *to = element(p, &p->c, batch, row + i, column + j);
            if (p->c.dtype == TARN_F32)
                store_row_f32(&finished, batch, row + i, column + j, (float *)(void *)to, n);
            else
                store_row_f64(&finished, batch, row + i, column + j, (double *)(void *)to, n);
        }
}

/* A task is a range of output tiles, one BLAS call each. */
static void run_blas_tiles(int64_t begin, int64_t end, void *ctx)
{
    const gemm_args *p = ctx;
    tarn__blas_call call = {0};
    describe_blas(p, &call);
    call.k = p->k, call.alpha = p->alpha, call.beta = p->beta;
    int64_t row_tiles = ceil_div(p->m, p->tile_rows), column_tiles = ceil_div(p->n, p->tile_columns);
    for (; begin < end; begin++) {
        int64_t batch = begin / (row_tiles * column_tiles), row = begin / column_tiles % row_tiles * p->tile_rows,
                column = begin % column_tiles * p->tile_columns;
        call.m = min_i64(p->m - row, p->tile_rows);
        call.n = min_i64(p->n - column, p->tile_columns);
        call.a = element(p, &p->a, batch, row, 0);
        call.b = element(p, &p->b, batch, 0, column);
        call.c = element(p, &p->c, batch, row, column);
        if (p->c.dtype == TARN_F32)
            tarn__blas_sgemm(&call);
        else
            tarn__blas_dgemm(&call);
        if (p->bias.base)
            add_bias(p, batch, row, column, call.m, call.n);
    }
}

/* Large tiles, since each call packs its operands again; halved until several threads have work. OpenBLAS is
 * prepared before threads start: raising an error inside a task would be too late. */
static void run_blas(gemm_args *p)
{
    if (!tarn__blas_prepare(p->function))
        return;
    p->tile_rows = min_i64(p->m, 512);
    p->tile_columns = min_i64(p->n, 2048);
    while (p->batches * ceil_div(p->m, p->tile_rows) * ceil_div(p->n, p->tile_columns) < 4 &&
           p->tile_rows * p->tile_columns * p->k > 4 * SMALL_TILE)
        *(p->tile_rows >= p->tile_columns ? &p->tile_rows : &p->tile_columns) /= 2;
    int64_t tiles = p->batches * ceil_div(p->m, p->tile_rows) * ceil_div(p->n, p->tile_columns);
    tarn__parallel_for(tiles, ceil_div(SMALL_TILE / 2, p->tile_rows * p->tile_columns * p->k + 1), run_blas_tiles, p);
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

#define INTEGER_ROWS 8

/* INTEGER_ROWS rows at a time, so that a row of b is converted once for all of them. Sums wrap modulo 2^64. */
static void run_integer_rows(int64_t begin, int64_t end, void *ctx)
{
    const gemm_args *p = ctx;
    int64_t sum[INTEGER_ROWS][ROW_CHUNK], values[ROW_CHUNK], left;
    int64_t row_tiles = ceil_div(p->m, INTEGER_ROWS), column_tiles = ceil_div(p->n, ROW_CHUNK),
            alpha = (int64_t)p->alpha, beta = (int64_t)p->beta;
    for (; begin < end; begin++) {
        int64_t batch = begin / (row_tiles * column_tiles), row = begin / column_tiles % row_tiles * INTEGER_ROWS,
                column = begin % column_tiles * ROW_CHUNK;
        int64_t rows = min_i64(p->m - row, INTEGER_ROWS), n = min_i64(p->n - column, ROW_CHUNK);
        memset(sum, 0, sizeof(sum));
        for (int64_t k = 0; k < p->k; k++) {
            tarn__load[p->b.dtype][COMPUTE_I64](element(p, &p->b, batch, k, column), p->b.column_stride, values, n);
            for (int64_t i = 0; i < rows; i++) {
                tarn__load[p->a.dtype][COMPUTE_I64](element(p, &p->a, batch, row + i, k), 1, &left, 1);
                for (int64_t j = 0; j < n; j++)
                    sum[i][j] += left * values[j];
            }
        }
        for (int64_t i = 0; i < rows; i++) {
            char *to = element(p, &p->c, batch, row + i, column);
            memset(values, 0, sizeof(values));
            if (beta != 0)
                tarn__load[p->c.dtype][COMPUTE_I64](to, p->c.column_stride, values, n);
            for (int64_t j = 0; j < n; j++)
                sum[i][j] = alpha * sum[i][j] + beta * values[j];
            if (p->bias.base)
                tarn__load[p->bias.dtype][COMPUTE_I64](element(p, &p->bias, batch, row + i, column),
                                                       p->bias.column_stride, values, n);
            for (int64_t j = 0; p->bias.base && j < n; j++)
                sum[i][j] += values[j];
            tarn__store[p->c.dtype][COMPUTE_I64](sum[i], to, p->c.column_stride, n);
        }
    }
}

/* Integer matmul is for counts and indices: simple rather than fast. */
static void run_integers(gemm_args *p)
{
    int64_t work = INTEGER_ROWS * min_i64(p->n, ROW_CHUNK) * p->k + 1;
    tarn__parallel_for(p->batches * ceil_div(p->m, INTEGER_ROWS) * ceil_div(p->n, ROW_CHUNK),
                       ceil_div(PACK_GRAIN, work), run_integer_rows, p);
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

#define LONG_K 4096         /* k from which split-K pays */
#define LITTLE_OUTPUT 16384 /* output elements up to which it does: larger outputs have tiles for all threads */

/* Up to 64 splits of k, each long enough that adding them costs nothing in comparison. */
static void choose_splits(gemm_args *p)
{
    int64_t rows = p->invariance == TARN__INVARIANT_ALONE ? 1 : p->m;
    p->splits = 1;
    if (p->invariance == TARN__INVARIANT_BATCH || p->batches != 1 || p->k < LONG_K || rows * p->n > LITTLE_OUTPUT)
        return;
    int64_t sixty_fourth = ceil_div(p->k, 64);
    p->split_length = sixty_fourth > LONG_K / 2 ? sixty_fourth : LONG_K / 2;
    p->splits = ceil_div(p->k, p->split_length);
}

/* `count` splits of k as batches of one GEMM into the partial sums, without addresses. */
static gemm_args describe_split(const gemm_args *p, int64_t count, int64_t length)
{
    gemm_args split = *p;
    split.k = length;
    split.batches = split.batch_shape[0] = count;
    split.batch_rank = 1;
    split.a.batch[0] = p->split_length * p->a.column_stride;
    split.b.batch[0] = p->split_length * p->b.row_stride;
    split.c = (matrix){.dtype = p->a.dtype == TARN_F64 ? TARN_F64 : TARN_F32, .row_stride = p->n, .column_stride = 1};
    split.c.batch[0] = p->m * p->n;
    split.bias.base = NULL;
    split.alpha = 1, split.beta = 0, split.splits = 1;
    return split;
}

/* The same from split `first` on. */
static gemm_args split_of(const gemm_args *p, int64_t first, int64_t count, int64_t length)
{
    gemm_args split = describe_split(p, count, length);
    int64_t size = p->a.dtype == TARN_F64 ? 8 : 4, begin = first * p->split_length;
    split.a.base = element(p, &p->a, 0, 0, begin);
    split.b.base = element(p, &p->b, 0, begin, 0);
    split.c.base = p->scratch + first * p->m * p->n * size;
    split.scratch = p->scratch + p->splits * p->m * p->n * size;
    return split;
}

/* One thread's work: few rows and columns, with other batches for other threads, or too little to share. */
static bool is_small(const gemm_args *p)
{
    return p->m <= SMALL_MN && p->n <= SMALL_MN && (p->batches >= 4 || p->m * p->n * p->k < SMALL_TILE);
}

/* Fewer rows or columns than a register tile has. */
static bool is_skinny(const gemm_args *p)
{
    return p->m <= SKINNY_ROWS || p->n <= SKINNY_ROWS;
}

/* By shape, dtype and layout only. Order matters: the first that applies. One row alone is skinny. */
static enum path choose_path(const gemm_args *p)
{
    tarn__blas_call call;
    if (p->invariance == TARN__INVARIANT_BATCH)
        return p->m <= MR && p->batches == 1 && p->k > 0 ? NARROW : BLOCKED;
    if (p->invariance == TARN__INVARIANT_ALONE || is_skinny(p))
        return SKINNY;
    if (p->m * p->n * p->k >= BLAS_WORK && describe_blas(p, &call))
        return BLAS;
    return is_small(p) ? SMALL : BLOCKED;
}

/* One path for all batches. Returns the bytes of scratch. */
static size_t describe_path(const gemm_args *p, gemm_path *how)
{
    *how = (gemm_path){.path = choose_path(p)};
    if (how->path == NARROW)
        return p->a.dtype == TARN_F64 ? narrow_bytes_f64(p) : narrow_bytes_f32(p);
    if (how->path != BLOCKED)
        return 0;
    return p->a.dtype == TARN_F64 ? choose_block_f64(p, how) : choose_block_f32(p, how);
}

/* Few columns are transposed into few rows; chunks of columns keep PACK_GRAIN multiplications per task. */
static void run_skinny(gemm_args *p)
{
    if (p->m > SKINNY_ROWS && p->invariance != TARN__INVARIANT_ALONE)
        transpose(p);
    int64_t by_work = ceil_div(4 * PACK_GRAIN, p->k + 1);
    p->skinny_columns = by_work < 16 ? 16 : min_i64(by_work, ROW_CHUNK);
    if (p->b.row_stride != 1 || p->b.column_stride == 1)
        p->skinny_columns = ROW_CHUNK;
    int64_t chunks = p->batches * ceil_div(p->n, p->skinny_columns), work = min_i64(p->n, p->skinny_columns) * p->k + 1;
    tarn__parallel_for(chunks, ceil_div(PACK_GRAIN, work), p->a.dtype == TARN_F64 ? run_skinny_f64 : run_skinny_f32, p);
}

static void run_unsplit(gemm_args *p, const gemm_path *how)
{
    bool is_f64 = p->a.dtype == TARN_F64;
    switch (how->path) {
    case SKINNY: run_skinny(p); break;
    case BLAS: run_blas(p); break;
    case SMALL:
        tarn__parallel_for(p->batches, ceil_div(SMALL_TILE / 4, p->m * p->n * p->k + 1),
                           is_f64 ? run_small_f64 : run_small_f32, p);
        break;
    case BLOCKED: (is_f64 ? gemm_f64 : gemm_f32)(p, how); break;
    case NARROW: (is_f64 ? gemm_narrow_f64 : gemm_narrow_f32)(p); break;
    case INTEGERS: run_integers(p); break;
    }
}

/* Full splits as one batched GEMM, the shorter last one by itself, then the sum over splits. */
static void run_split_k(gemm_args *p, const job *j)
{
    int64_t whole = p->k / p->split_length, left = p->k % p->split_length;
    gemm_args split = split_of(p, 0, whole, p->split_length);
    run_unsplit(&split, &j->whole);
    if (left > 0) {
        split = split_of(p, whole, 1, left);
        run_unsplit(&split, &j->last);
    }
    tarn__parallel_for(p->m, ceil_div(PACK_GRAIN, p->n * p->splits),
                       p->a.dtype == TARN_F64 ? sum_splits_f64 : sum_splits_f32, p);
}

/* Split-K: scratch is partial sums, then the larger one of full and last split. */
static size_t describe_split_k(job *j)
{
    const gemm_args *p = &j->p;
    int64_t left = p->k % p->split_length;
    gemm_args split = describe_split(p, p->k / p->split_length, p->split_length);
    size_t bytes = describe_path(&split, &j->whole), last_bytes = 0;
    if (left > 0) {
        split = describe_split(p, 1, left);
        last_bytes = describe_path(&split, &j->last);
    }
    return (size_t)(p->splits * p->m * p->n) * (p->a.dtype == TARN_F64 ? 8 : 4) +
           (bytes > last_bytes ? bytes : last_bytes);
}

static tarn__plan_status prepare_matmul(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    j->p = describe(call);
    if (!tarn__is_float(j->p.a.dtype)) {
        j->whole.path = INTEGERS;
        return TARN__PLAN_READY;
    }
    choose_splits(&j->p);
    size_t bytes = j->p.splits > 1 ? describe_split_k(j) : describe_path(&j->p, &j->whole);
    plan->scratch_bytes = j->p.m * j->p.n * j->p.k * j->p.batches > 0 ? bytes : 0;
    return TARN__PLAN_READY;
}

/* 2 · batches · m · n · k FLOPs. */
static void kernel_matmul(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    gemm_args p = j->p;
    if (p.m * p.n * p.batches == 0)
        return;
    bind(&p, call);
    if (p.splits > 1)
        run_split_k(&p, j);
    else
        run_unsplit(&p, &j->whole);
}

void TARN__AT_LEVEL(tarn__cpu_register_matmul)(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul] = tarn__row_planned(prepare_matmul, kernel_matmul, TARN__NUMBERS);
}

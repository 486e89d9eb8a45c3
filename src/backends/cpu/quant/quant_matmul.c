/* quant_matmul.c: matmul with quantized weights, and the quantize and dequantize kernels; block formats and the search
 * for their scales are in base/quant.
 *
 * matmul_quant computes y (rows, out) = x (rows, in) · wᵀ + bias with w (out, in) in blocks. x is quantized to 8
 * bits, so the error of a result is at most Σ |w| · s / 2 over its row of w, where s is absmax / 127 of each 32
 * elements of x. One row of x (decode) multiplies blocks as they are read: the memory bandwidth of the weight is the
 * limit. For more rows (prefill) PANEL rows of the weight are unpacked once and multiplied with up to ROW_TILE rows
 * of x. The operations of a result and their order depend on its row and column alone: not on threads, and not on
 * how many rows x has. */
#include "backends/cpu/quant/dot.h"

#include "backends/cpu/quant/quant_matmul.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define ROWS_AT_ONCE 4
#define PANEL 16            /* rows of the weight per task */
#define SEGMENT 8           /* chunks accumulated at a time: four rows of x stay in L1 */
#define PREFETCH_BYTES 4096 /* prefetch distance into the weight: twice the bandwidth of hardware prefetch alone */

#define FORMATS (TARN_DTYPE_COUNT - TARN_Q8_0)

/* One implementation; formats indexed by dtype - TARN_Q8_0. */
typedef struct engine {
    float (*multiply[FORMATS])(const char *blocks, int64_t in, const x_chunk *x);
    void (*dequantize[FORMATS])(const char *blocks, int64_t in, w_chunk *to);
    void (*multiply_chunks[2])(const w_chunk *w, int64_t chunks, const x_chunk *x, int64_t step, int64_t rows,
                               float *to); /* of any format, of narrow ones */
    bool is_unsigned;
} engine;

/* ---- engines ----------------------------------------------------------------------------------------------------- */

#if defined(__AVX2__)
#define NAMED(x) x##_avx2
#define ENGINE
#define UNSIGNED_ONLY false
#include "backends/cpu/quant/dot_avx2.inc"
#include "backends/cpu/quant/dot_rows.inc"
#undef NAMED
#undef ENGINE
#undef UNSIGNED_ONLY
#else
#define NAMED(x) x##_generic
#define ENGINE
#define UNSIGNED_ONLY false
#include "backends/cpu/quant/dot_generic.inc"
#include "backends/cpu/quant/dot_rows.inc"
#undef NAMED
#undef ENGINE
#undef UNSIGNED_ONLY
#endif

#if defined(__AVX512F__)
#define NAMED(x) x##_vnni
#define ENGINE __attribute__((target("avx512vnni")))
#define UNSIGNED_ONLY true
/* Order matters: each uses what the ones before define. */
/* clang-format off */
#include "backends/cpu/quant/dot_vnni.inc"
#include "backends/cpu/quant/dot_rows.inc"
/* clang-format on */
#undef NAMED
#undef ENGINE
#undef UNSIGNED_ONLY
#endif

/* VNNI is asked for at run time: AVX-512 processors before Cascade Lake lack it. */
static const engine *best_engine(void)
{
#if defined(__AVX512F__)
    if (__builtin_cpu_supports("avx512vnni"))
        return &engine_vnni;
#endif
#if defined(__AVX2__)
    return &engine_avx2;
#else
    return &engine_generic;
#endif
}

/* ---- matmul_quant ------------------------------------------------------------------------------------------------ */

/* One call. `x_q8` holds the current tile of quantized x, shared by all tasks. */
typedef struct job {
    gemm_args p;
    int64_t chunks;
    const engine *how;
    slots panels;
    size_t x_groups_at;       /* offset in scratch */
    x_chunk *x_q8;            /* (count, chunks), at the start of scratch; set by run() */
    struct x_group *x_groups; /* (count / 16, groups): x once more, where tiles multiply it; set by run() */
} job;

/* Quantizes rows of x, in tasks of whole rows; the tail of the last chunk is 0. */
static void quantize_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    int shift = shift_of(j->p.w->dtype, j->how->is_unsigned);
    _Alignas(64) float values[CHUNK];
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < j->chunks; i++) {
            memset(values, 0, sizeof(values));
            load_x(&j->p, j->p.first + r, i * CHUNK, values, min_i64(j->p.in - i * CHUNK, CHUNK));
            quantize_chunk(values, shift, has_min(j->p.w->dtype), &j->x_q8[r * j->chunks + i]);
        }
}

/* One row of x: blocks are multiplied as they are read. */
static void multiply_row(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    float values[PANEL];
    for (int64_t panel_index = begin; panel_index < end; panel_index++) {
        int64_t column = panel_index * PANEL, n = min_i64(j->p.out - column, PANEL);
        for (int64_t i = 0; i < n; i++)
            values[i] = j->how->multiply[j->p.type](row_of(j->p.w, column + i), j->p.in, j->x_q8);
        store_results(&j->p, j->p.first, column, values, n);
    }
}

/* All rows of the tile times n unpacked weight rows: sums of [rows of x / 4][n][4] stay on the stack. */
static void multiply_panel(const job *j, const w_chunk *panel, int64_t column, int64_t n)
{
    float sums[ROW_TILE / ROWS_AT_ONCE][PANEL][ROWS_AT_ONCE] = {0}, values[PANEL];
    bool narrow = is_narrow(j->p.w->dtype);
    for (int64_t k = 0; k < j->chunks; k += SEGMENT)
        for (int64_t r = 0; r < j->p.count; r += ROWS_AT_ONCE)
            for (int64_t i = 0; i < n; i++)
                j->how->multiply_chunks[narrow](panel + i * j->chunks + k, min_i64(j->chunks - k, SEGMENT),
                                                j->x_q8 + r * j->chunks + k, j->chunks,
                                                min_i64(j->p.count - r, ROWS_AT_ONCE), sums[r / ROWS_AT_ONCE][i]);
    for (int64_t r = 0; r < j->p.count; r++) {
        for (int64_t i = 0; i < n; i++)
            values[i] = sums[r / ROWS_AT_ONCE][i][r % ROWS_AT_ONCE];
        store_results(&j->p, j->p.first + r, column, values, n);
    }
}

/* A range of panels on one slot: unpacks PANEL weight rows, then multiplies them with the tile. */
static void multiply_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    int slot;
    w_chunk *panel = (void *)slot_acquire(&j->panels, &slot, NULL);
    for (int64_t panel_index = begin; panel_index < end; panel_index++) {
        int64_t column = panel_index * PANEL, n = min_i64(j->p.out - column, PANEL);
        for (int64_t i = 0; i < n; i++)
            j->how->dequantize[j->p.type](row_of(j->p.w, column + i), j->p.in, panel + i * j->chunks);
        multiply_panel(j, panel, column, n);
    }
    slot_release(&j->panels, slot);
}

#if defined(TARN__AMX)
#include "backends/cpu/quant/tiles_amx.inc"

static void reserve_panels(job *j, arena *c)
{
    bool by_tiles = j->p.rows >= TILE_ROWS_MIN;
    size_t groups = (size_t)groups_of(j->chunks), chunks = (size_t)j->chunks;
    if (by_tiles)
        j->x_groups_at =
            arena_reserve(c, sizeof(x_group) * groups * (size_t)ceil_div(min_i64(j->p.rows, ROW_TILE), TILE_LANES));
    if (j->p.rows > 1)
        j->panels = arena_slots(c, sizeof(w_chunk) * PANEL * chunks + (by_tiles ? sizeof(w_group) * groups : 0),
                                slot_count(ceil_div(j->p.out, PANEL)));
}

/* Few rows of x would be padded to 16: VNNI multiplies them sooner. */
static bool multiply_by_tiles(job *j, int64_t panels_count, int64_t bytes)
{
    if (j->p.count < TILE_ROWS_MIN)
        return false;
    tarn__parallel_for(ceil_div(j->p.count, TILE_LANES), 1 + 16384 / (TILE_LANES * j->p.in + 1), arrange_x, j);
    tarn__parallel_for(panels_count, 1 + 3 * MIN_BYTES / (bytes * j->p.count), multiply_rows_by_tiles, j);
    return true;
}
#else

static void reserve_panels(job *j, arena *c)
{
    if (j->p.rows > 1)
        j->panels =
            arena_slots(c, sizeof(w_chunk) * (size_t)(PANEL * j->chunks), slot_count(ceil_div(j->p.out, PANEL)));
}

static bool multiply_by_tiles(job *j, int64_t panels_count, int64_t bytes)
{
    (void)j, (void)panels_count, (void)bytes;
    return false;
}
#endif

static tarn__plan_status prepare_matmul_quant(const tarn__call *call, tarn__plan *plan)
{
    arena c = {0};
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    *j = (job){.p = describe_matmul(call), .how = best_engine()};
    j->chunks = chunks_of(j->p.in);
    arena_reserve(&c, sizeof(x_chunk) * (size_t)(min_i64(j->p.rows, ROW_TILE) * j->chunks));
    reserve_panels(j, &c);
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

/* Tiles of ROW_TILE rows one after the other: the weight is read once per tile. About 0.6 (Q4) to 1.1 (Q8) bytes per
 * weight. */
static void kernel_matmul_quant(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    job j = *(const job *)tarn__plan_job(call->plan);
    bind_matmul(&j.p, call);
    j.x_q8 = call->scratch;
    j.x_groups = (void *)((char *)call->scratch + j.x_groups_at);
    if (j.p.rows > 1)
        slots_init(&j.panels, call->scratch);
    int64_t panels_count = (j.p.out + PANEL - 1) / PANEL, bytes = tarn__bytes_of(j.p.w->dtype, j.p.in) * PANEL + 1;
    for (; j.p.first < j.p.rows; j.p.first += ROW_TILE) {
        j.p.count = min_i64(j.p.rows - j.p.first, ROW_TILE);
        tarn__parallel_for(j.p.count, 1 + 16384 / (j.p.in + 1), quantize_rows, &j);
        if (j.p.rows == 1)
            tarn__parallel_for(panels_count, 1 + MIN_BYTES / bytes, multiply_row, &j);
        else if (!multiply_by_tiles(&j, panels_count, bytes))
            tarn__parallel_for(panels_count, 1 + MIN_BYTES / (bytes * j.p.count), multiply_rows, &j);
    }
}

/* ---- dequantize, quantize ---------------------------------------------------------------------------------------- */

/* quantize or dequantize: rows of blocks against contiguous f32 rows. */
typedef struct conversion {
    const tarn__view *blocks;
    char *at;        /* first block */
    float *elements; /* (rows, columns), contiguous */
    int64_t columns;
    bool quantizes;
} conversion;

/* Address of a row of blocks; the last axis is contiguous. */
static char *quant_row(const conversion *w, int64_t row)
{
    const tarn__view *view = w->blocks;
    int64_t offset = 0;
    for (int i = view->rank - 2; i >= 0; i--) {
        offset += row % view->shape[i] * view->stride[i];
        row /= view->shape[i];
    }
    return w->at + tarn__bytes_of(view->dtype, offset);
}

static void convert_rows(int64_t begin, int64_t end, void *ctx)
{
    const conversion *w = ctx;
    for (int64_t row = begin; row < end; row++)
        if (w->quantizes)
            tarn__quantize_blocks(w->blocks->dtype, w->elements + row * w->columns, w->columns, quant_row(w, row));
        else
            tarn__dequantize_blocks(w->blocks->dtype, quant_row(w, row), w->columns, w->elements + row * w->columns);
}

/* Quantizing is about 16 times the work of dequantizing: its tasks are that much smaller. */
static void convert(const tarn__view *blocks, const tarn__view *elements, bool quantizes)
{
    conversion w = {blocks, tarn__view_at(blocks), tarn__view_at(elements), blocks->shape[blocks->rank - 1], quantizes};
    int64_t count = tarn__view_count(blocks);
    if (count > 0)
        tarn__parallel_for(count / w.columns, 1 + (quantizes ? 1024 : 16384) / w.columns, convert_rows, &w);
}

static void kernel_dequantize(const tarn__call *call)
{
    convert(call->in[0], call->out[0], false);
}

static void kernel_quantize(const tarn__call *call)
{
    convert(call->out[0], call->in[0], true);
}

#if defined(TARN__AMX) /* everything above is of the level avx512 */
#undef TARN__LEVEL
#define TARN__LEVEL amx
void tarn__cpu_register_quant_matmul_amx(tarn__kernel_row *rows);
#endif

void TARN__AT_LEVEL(tarn__cpu_register_quant_matmul)(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul_quant] =
        tarn__row_planned(prepare_matmul_quant, kernel_matmul_quant, TARN__FLOATS | TARN__QUANTIZED);
    rows[TARN__K_dequantize] = tarn__row(kernel_dequantize, TARN__QUANTIZED);
    rows[TARN__K_quantize] = tarn__row(kernel_quantize, TARN__BIT(TARN_F32) | TARN__QUANTIZED);
}

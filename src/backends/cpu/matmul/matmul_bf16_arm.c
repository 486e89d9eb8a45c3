/* matmul_bf16_arm.c: bf16 matmul on AArch64 processors with bf16 instructions, where both operands are contiguous along
 * k, as x and a layer's weight are: c = a @ b + bias, a (m, k) row-major, b (k, n) column-major. Every other matmul
 * falls back to the kernel registered before.
 *
 * bfmmla and bfdot add two exact products, then the running sum, in f32; they round to odd rather than to nearest,
 * and flush subnormals to 0. Few rows of a are bound by reading b once, in place. For more, a is packed once and b a
 * few columns and a segment of k at a time, so that a vector holds four elements of two rows (columns of b) and one
 * instruction computes 2 × 2 results. The operations of a result and their order depend on shapes alone. */
#include <arm_neon.h>

#include "backends/cpu/quant/quant_matmul.h"

#define FEW_ROWS 4     /* TARN__ALONE_ROWS where each row is as alone */
#define FEW_COLUMNS 64 /* fewer columns are left to the fallback, which splits k or transposes */
#define COLUMNS MAX_COLUMNS
#define PANEL_WIDTH 8 /* rows of a, or columns of b, per panel */
#define K_STEP 8      /* elements of k packed at a time */
#define PANEL_STEP \
    (PANEL_WIDTH * K_STEP)   /* elements: [half of K_STEP][pair of rows][4 of the first, 4 of the second] */
#define SEGMENT 64           /* steps per segment: eight rows of a and 32 columns fit L1 */
#define PREFETCH_BYTES 40960 /* prefetch distance into b, to L2 */
#define PANEL_STEPS(k) (((k) + K_STEP - 1) / K_STEP)

/* [pair of b's columns][pair of a's rows]{b0·a0, b0·a1, b1·a0, b1·a1} */
typedef float sums[PANEL_WIDTH / 2][PANEL_WIDTH / 2][4];

/* One call. p describes the output; a and b are read directly. */
typedef struct job {
    gemm_args p;
    int64_t k, steps, a_step, b_step; /* a_step, b_step: strides of rows of a, columns of b */
    bool is_few;                      /* rows */
    slots panels;
    /* addresses, set by run() */
    const uint16_t *a, *b;
    uint16_t *packed; /* a: (rows / 8, steps, PANEL_STEP), at the start of scratch */
} job;

static const uint16_t *a_row(const job *j, int64_t row)
{
    return j->a + row * j->a_step;
}

/* Column `column` of b; the last one stands in for columns past the end. */
static const uint16_t *b_column(const job *j, int64_t column)
{
    return j->b + min_i64(column, j->p.out - 1) * j->b_step;
}

static inline bfloat16x8_t load_8(const uint16_t *from)
{
    return vreinterpretq_bf16_u16(vld1q_u16(from));
}

/* ---- few rows ---------------------------------------------------------------------------------------------------- */

/* One row of a times four columns of b. */
static void multiply_4_columns(const uint16_t *a, const uint16_t *const *b, int64_t k, float *to)
{
    float32x4_t sum[4][2] = {{vdupq_n_f32(0)}};
    int64_t i = 0;
    for (; i + 2 * K_STEP <= k; i += 2 * K_STEP) {
        bfloat16x8_t a0 = load_8(a + i), a1 = load_8(a + i + K_STEP);
        __builtin_prefetch((const char *)(b[0] + 4 * i) + PREFETCH_BYTES, 0, 2);
        __builtin_prefetch((const char *)(b[0] + 4 * i) + PREFETCH_BYTES + 64, 0, 2);
        for (int r = 0; r < 4; r++) {
            sum[r][0] = vbfdotq_f32(sum[r][0], a0, load_8(b[r] + i));
            sum[r][1] = vbfdotq_f32(sum[r][1], a1, load_8(b[r] + i + K_STEP));
        }
    }
    for (; i < k; i += K_STEP) {
        uint16_t tail[5][K_STEP] = {{0}};
        size_t bytes = sizeof(uint16_t) * (size_t)min_i64(k - i, K_STEP);
        memcpy(tail[4], a + i, bytes);
        for (int r = 0; r < 4; r++) {
            memcpy(tail[r], b[r] + i, bytes);
            sum[r][0] = vbfdotq_f32(sum[r][0], load_8(tail[4]), load_8(tail[r]));
        }
    }
    float32x4_t each[4];
    for (int r = 0; r < 4; r++)
        each[r] = vaddq_f32(sum[r][0], sum[r][1]);
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(each[0], each[1]), vpaddq_f32(each[2], each[3])));
}

/* b is read once, four columns at a time, for all rows. */
static void multiply_few(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    float values[TARN__ALONE_ROWS][COLUMNS];
    for (int64_t panel_index = begin; panel_index < end; panel_index++) {
        int64_t column = panel_index * COLUMNS, n = min_i64(j->p.out - column, COLUMNS);
        for (int64_t i = 0; i < n; i += 4) {
            const uint16_t *b[] = {b_column(j, column + i), b_column(j, column + i + 1), b_column(j, column + i + 2),
                                   b_column(j, column + i + 3)};
            for (int64_t r = 0; r < j->p.rows; r++)
                multiply_4_columns(a_row(j, r), b, j->k, values[r] + i);
        }
        for (int64_t r = 0; r < j->p.rows; r++)
            store_results(&j->p, r, column, values[r], n);
    }
}

/* ---- many rows --------------------------------------------------------------------------------------------------- */

/* Packs n elements of a pair of rows, or columns of b; the last K_STEP is zero-padded. */
static void pack_pair(const uint16_t *first, const uint16_t *second, int64_t n, int pair, uint16_t *to)
{
    uint16_t tail[2][K_STEP] = {{0}};
    for (int64_t i = 0; i < n; i += K_STEP, to += PANEL_STEP) {
        if (n - i < K_STEP) {
            memcpy(tail[0], first + i, sizeof(uint16_t) * (size_t)(n - i));
            memcpy(tail[1], second + i, sizeof(uint16_t) * (size_t)(n - i));
        }
        uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(n - i < K_STEP ? tail[0] : first + i));
        uint64x2_t b = vreinterpretq_u64_u16(vld1q_u16(n - i < K_STEP ? tail[1] : second + i));
        vst1q_u16(to + pair * K_STEP, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
        vst1q_u16(to + PANEL_STEP / 2 + pair * K_STEP, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
    }
}

/* Packs eight rows of a per step; the last row stands in for rows past the end. */
static void pack_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    for (int64_t i = begin; i < end; i++)
        for (int pair = 0; pair < PANEL_WIDTH / 2; pair++) {
            int64_t row = i * PANEL_WIDTH + 2 * pair, last = j->p.count - 1;
            pack_pair(a_row(j, j->p.first + min_i64(row, last)), a_row(j, j->p.first + min_i64(row + 1, last)), j->k,
                      pair, j->packed + i * j->steps * PANEL_STEP);
        }
}

/* Eight columns times `pairs` pairs of rows from `first`. */
static inline __attribute__((always_inline)) void add_tile(const uint16_t *b, const uint16_t *a, int64_t steps,
                                                           int first, int pairs, sums to)
{
    float32x4_t sum[PANEL_WIDTH / 2][PANEL_WIDTH / 2];
    for (int v = 0; v < PANEL_WIDTH / 2; v++)
        for (int u = 0; u < pairs; u++)
            sum[v][u] = vld1q_f32(to[v][first + u]);
    for (int64_t i = 0; i < 2 * steps; i++, a += PANEL_STEP / 2, b += PANEL_STEP / 2) {
        bfloat16x8_t of_b[] = {load_8(b), load_8(b + K_STEP), load_8(b + 2 * K_STEP), load_8(b + 3 * K_STEP)};
        for (int u = 0; u < pairs; u++) {
            bfloat16x8_t of_a = load_8(a + (first + u) * K_STEP);
            for (int v = 0; v < PANEL_WIDTH / 2; v++)
                sum[v][u] = vbfmmlaq_f32(sum[v][u], of_b[v], of_a);
        }
    }
    for (int v = 0; v < PANEL_WIDTH / 2; v++)
        for (int u = 0; u < pairs; u++)
            vst1q_f32(to[v][first + u], sum[v][u]);
}

static void multiply_tile(const uint16_t *b, const uint16_t *a, int64_t steps, int64_t rows, sums to)
{
    if (rows > PANEL_WIDTH - 2)
        add_tile(b, a, steps, 0, PANEL_WIDTH / 2, to);
    else
        for (int u = 0; u < (rows + 1) / 2; u++)
            add_tile(b, a, steps, u, 1, to);
}

/* Packs steps `at` to `at` + `count` of n columns. Prefetches the next ones, or those of the next columns. */
static void pack_columns(const job *j, int64_t column, int64_t n, int64_t at, int64_t count, uint16_t *panel)
{
    int64_t k = min_i64(j->k - at * K_STEP, count * K_STEP),
            prefetch_at = at + count < j->steps ? k : COLUMNS * j->b_step - at * K_STEP;
    for (int64_t i = 0; i < n; i += 2) {
        const uint16_t *first = b_column(j, column + i) + at * K_STEP,
                       *second = b_column(j, column + i + 1) + at * K_STEP;
        for (int64_t at_k = 0; at_k < k; at_k += 32) { /* cache lines */
            __builtin_prefetch(first + prefetch_at + at_k, 0, 2);
            __builtin_prefetch(second + prefetch_at + at_k, 0, 2);
        }
        pack_pair(first, second, k, (int)(i % PANEL_WIDTH / 2), panel + i / PANEL_WIDTH * SEGMENT * PANEL_STEP);
    }
}

/* A task is a range of panels of b: packed a segment at a time, multiplied with all rows of the tile. */
static void multiply_many(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    int slot;
    uint16_t *panel = (void *)slot_acquire(&j->panels, &slot, NULL);
    sums each[ROW_TILE / PANEL_WIDTH][COLUMNS / PANEL_WIDTH];
    float values[COLUMNS];
    for (int64_t panel_index = begin; panel_index < end; panel_index++) {
        int64_t column = panel_index * COLUMNS, n = min_i64(j->p.out - column, COLUMNS),
                packed = (n + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
        memset(each, 0, sizeof(each));
        for (int64_t at = 0; at < j->steps; at += SEGMENT) {
            int64_t count = min_i64(j->steps - at, SEGMENT);
            pack_columns(j, column, packed, at, count, panel);
            for (int64_t r = 0; r < j->p.count; r += PANEL_WIDTH)
                for (int64_t i = 0; i < n; i += PANEL_WIDTH)
                    multiply_tile(panel + i / PANEL_WIDTH * SEGMENT * PANEL_STEP,
                                  j->packed + (r / PANEL_WIDTH * j->steps + at) * PANEL_STEP, count,
                                  min_i64(j->p.count - r, PANEL_WIDTH), each[r / PANEL_WIDTH][i / PANEL_WIDTH]);
        }
        for (int64_t r = 0; r < j->p.count; r++) {
            for (int64_t i = 0; i < n; i++)
                values[i] =
                    each[r / PANEL_WIDTH][i / PANEL_WIDTH][i % PANEL_WIDTH / 2][r % PANEL_WIDTH / 2][i % 2 * 2 + r % 2];
            store_results(&j->p, j->p.first + r, column, values, n);
        }
    }
    slot_release(&j->panels, slot);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* True where b is read once and nothing is packed: the bits of a row are those that it has alone. */
static bool is_few(const tarn__matmul *params, int64_t rows)
{
    return rows <= (params->batch_invariant == TARN__INVARIANT_ALONE ? TARN__ALONE_ROWS : FEW_ROWS);
}

/* bf16 operands contiguous along k, any float output but f64, no scaling, no batches. */
static bool fits(const tarn__call *call)
{
    const tarn__matmul *params = call->params;
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0],
                     *bias = call->inputs > 2 ? call->in[2] : NULL;
    return params->batch_invariant != TARN__INVARIANT_BATCH && params->alpha == 1 && params->beta == 0 &&
           a->rank == 2 && b->rank == 2 && c->rank == 2 && (!bias || bias->rank == 1) && a->dtype == TARN_BF16 &&
           b->dtype == TARN_BF16 && tarn__is_float(c->dtype) && c->dtype != TARN_F64 &&
           (!bias || (tarn__is_float(bias->dtype) && bias->dtype != TARN_F64)) && a->stride[1] == 1 &&
           b->stride[0] == 1 && a->shape[0] > 0 && a->shape[1] > 0 && b->shape[1] >= FEW_COLUMNS;
}

/* Few rows need no scratch. */
static tarn__plan_status prepare_matmul(const tarn__call *call, tarn__plan *plan)
{
    const tarn__view *a = call->in[0], *b = call->in[1];
    arena c = {0};
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    *j = (job){.p = {.rows = a->shape[0], .in = a->shape[1], .out = b->shape[1]},
               .k = a->shape[1],
               .steps = PANEL_STEPS(a->shape[1]),
               .a_step = a->stride[0],
               .b_step = b->stride[1],
               .is_few = is_few(call->params, a->shape[0])};
    if (!j->is_few) {
        arena_reserve(
            &c, sizeof(uint16_t) *
                    (size_t)(PANEL_STEP * j->steps * ((min_i64(j->p.rows, ROW_TILE) + PANEL_WIDTH - 1) / PANEL_WIDTH)));
        j->panels = arena_slots(&c, sizeof(uint16_t) * SEGMENT * PANEL_STEP * COLUMNS / PANEL_WIDTH,
                                slot_count((j->p.out + COLUMNS - 1) / COLUMNS));
    }
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

static void kernel_matmul(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    j.p.bias = call->inputs > 2 ? call->in[2] : NULL;
    j.p.y = call->out[0];
    j.a = tarn__view_at(call->in[0]);
    j.b = tarn__view_at(call->in[1]);
    j.packed = call->scratch;
    if (!j.is_few)
        slots_init(&j.panels, call->scratch);
    int64_t panels_count = (j.p.out + COLUMNS - 1) / COLUMNS, bytes = 2 * j.k * COLUMNS + 1;
    if (j.is_few) {
        tarn__parallel_for(panels_count, 1 + MIN_BYTES / bytes, multiply_few, &j);
        return;
    }
    for (; j.p.first < j.p.rows; j.p.first += ROW_TILE) {
        j.p.count = min_i64(j.p.rows - j.p.first, ROW_TILE);
        tarn__parallel_for((j.p.count + PANEL_WIDTH - 1) / PANEL_WIDTH, 1 + 16384 / (PANEL_WIDTH * j.k), pack_rows, &j);
        tarn__parallel_for(panels_count, 1 + MIN_BYTES / (bytes * j.p.count), multiply_many, &j);
    }
}

void TARN__PASTE(tarn__cpu_register_matmul, TARN__ARM_LEVEL)(tarn__kernel_row *rows);

void TARN__PASTE(tarn__cpu_register_matmul, TARN__ARM_LEVEL)(tarn__kernel_row *rows)
{
    static tarn__kernel_row base; /* the row for all other calls */
    tarn__kernel_row row = tarn__row_fits(tarn__row_planned(prepare_matmul, kernel_matmul, TARN__BIT(TARN_BF16)), fits);
    row.variant = "bf16";
    tarn__push_row(rows, TARN__K_matmul, row, &base);
}

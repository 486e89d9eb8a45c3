/* matmul_bf16_amx.c: bf16 matmul on x86-64 processors with AMX: c = a @ b + beta · c + bias, matrices of any strides.
 * Every other matmul, and few rows or columns, fall back to the kernel registered before.
 *
 * tdpbf16ps multiplies a tile of 16 rows of 32 elements with one of 16 columns, stored as pairs of k. Of a result, the
 * 16 products of even k and the 16 of odd k are added each in order, then both sums to each other and to the running
 * sum, all in f32; subnormals count as 0. So the bits of a result depend on its row of a, its column of b and k alone:
 * not on threads, nor on the number of rows. Batch-invariant matmuls run here with any number of rows, for that reason.
 *
 * The larger of the two operands is read in panels of 32 rows (of columns, for b), a segment of k at a time, which stay
 * in L1; of the other one a block is packed whole and stays in L2. One of both is stored as rows, the other as pairs:
 * as pairs, if its lanes are contiguous, the panel, which then needs no transpose. A panel of rows contiguous along k
 * is read in place where it is read only once: a weight with few rows of x.
 *
 * Traffic: the panels' operand once per block of the other one. Peak: 1024 FLOPs per cycle. */
#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/runtime/amx.h"
#include "backends/cpu/runtime/level.h"

#define K_STEP 32                      /* elements of k per tile */
#define TILE (TILE_LANES * K_STEP)     /* elements of a tile of operands */
#define SUMS (TILE_LANES * TILE_LANES) /* elements of a tile of results */
#define PANEL 32                       /* lanes of a panel: two tiles */
#define SEGMENT 16                     /* steps of k per segment: 32 KiB of the panel */
#define BLOCK_BYTES (INT64_C(1) << 20) /* of the packed block, about */
#define BLOCK_LANES 256                /* lanes of a block, at most */
#define FEW 4                          /* rows or columns that are left to the fallback */
#define LITTLE_WORK 65536              /* multiplications below which the fallback is as fast */
#define TASK_WORK (INT64_C(4) << 20)   /* multiplications per task, at least */
#define PREFETCH_BYTES 1024            /* prefetch distance along k of a panel that is read in place */

/* An operand as lanes (rows of a, columns of b) by k. */
typedef struct side {
    const uint16_t *base; /* set by kernel_matmul() */
    int64_t lanes, lane_stride, k_stride;
} side;

typedef struct job {
    side panel, block;
    int64_t k, steps, block_lanes;
    bool panel_is_b, panel_has_pairs;
    double beta;
    slots buffers; /* a segment of a panel, then its results with a block */
    /* set by kernel_matmul() */
    int64_t first, count; /* lanes of the current block */
    uint16_t *packed;     /* the block: (lanes / 16, steps, TILE), at the start of scratch */
    const tarn__view *c, *bias;
} job;

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* 16 lanes from `lane`, 32 elements from `k`, of an operand contiguous along its lanes: as pairs of k. */
static inline void load_pairs(const side *s, int64_t lane, int64_t k, int64_t end, __m512i x[TILE_LANES])
{
    __mmask16 there = (__mmask16)((1u << min_i64(s->lanes - lane, TILE_LANES)) - 1);
    for (int64_t i = 0; i < TILE_LANES; i++) {
        const uint16_t *even = s->base + lane + (k + 2 * i) * s->k_stride;
        bool has_even = k + 2 * i < end, has_odd = k + 2 * i + 1 < end;
        __m256i low = _mm256_maskz_loadu_epi16(has_even ? there : 0, even),
                high = _mm256_maskz_loadu_epi16(has_odd ? there : 0, even + s->k_stride);
        x[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
}

/* The same of any other operand: as rows. */
static inline void load_rows(const side *s, int64_t lane, int64_t k, int64_t end, __m512i x[TILE_LANES])
{
    int64_t n = min_i64(end - k, K_STEP);
    __mmask32 there = (__mmask32)((UINT64_C(1) << n) - 1);
    for (int64_t i = 0; i < TILE_LANES; i++) {
        const uint16_t *row = s->base + min_i64(lane + i, s->lanes - 1) * s->lane_stride + k * s->k_stride;
        uint16_t gathered[K_STEP];
        for (int64_t j = 0; s->k_stride != 1 && j < n; j++)
            gathered[j] = row[j * s->k_stride];
        x[i] = _mm512_maskz_loadu_epi16(lane + i < s->lanes ? there : 0, s->k_stride != 1 ? gathered : row);
    }
}

static bool has_contiguous_lanes(const side *s)
{
    return s->k_stride != 1 && s->lane_stride == 1;
}

/* Packs one tile; lanes and elements past the end are 0. */
static inline void pack_tile(const side *s, int64_t lane, int64_t k, int64_t end, bool as_pairs, uint16_t *to)
{
    __m512i x[TILE_LANES];
    bool is_pairs = has_contiguous_lanes(s);
    if (is_pairs)
        load_pairs(s, lane, k, end, x);
    else
        load_rows(s, lane, k, end, x);
    if (is_pairs != as_pairs)
        transpose_16(x);
    for (int i = 0; i < TILE_LANES; i++)
        _mm512_store_si512(to + i * K_STEP, x[i]);
}

/* A task packs 16 lanes of the block. */
static void pack_block(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    for (; begin < end; begin++)
        for (int64_t i = 0; i < j->steps; i++)
            pack_tile(&j->block, j->first + begin * TILE_LANES, i * K_STEP, j->k, !j->panel_has_pairs,
                      j->packed + (begin * j->steps + i) * TILE);
}

/* Packs `count` steps of a panel: [tile][step]. */
static void pack_panel(const job *j, int64_t lane, int64_t at, int64_t count, uint16_t *to)
{
    for (int64_t t = 0; t < PANEL / TILE_LANES; t++)
        for (int64_t i = 0; i < count; i++) {
            uint16_t *tile = to + (t * SEGMENT + i) * TILE;
            if (lane + t * TILE_LANES < j->panel.lanes)
                pack_tile(&j->panel, lane + t * TILE_LANES, (at + i) * K_STEP, j->k, j->panel_has_pairs, tile);
            else
                memset(tile, 0, TILE_BYTES);
        }
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* `count` steps of a panel: its tiles have rows `stride` bytes apart, the second is `second` bytes after the first, the
 * next step `step` bytes further. */
typedef struct panel_steps {
    const char *at;
    int64_t stride, second, step, count;
    bool in_place;
} panel_steps;

/* Rows of a panel that is read in place, ahead of their use. */
static inline void prefetch_panel(const panel_steps *p, int64_t i)
{
    if (p->in_place)
        for (int64_t row = 0; row < PANEL; row++)
            __builtin_prefetch(p->at + i * p->step + row * p->stride + PREFETCH_BYTES, 0, 2);
}

/* Adds the products of a panel with 32 lanes of the block to 2 × 2 tiles of sums: [of the block][of the panel]. The
 * names of tiles are literals, hence a macro for the operands in either order. */
#define MULTIPLY_32(name, PRODUCT) \
    static void name(const panel_steps *p, const uint16_t *block, int64_t second, float *sums) \
    { \
        memory_is_written(); \
        _tile_loadd(0, sums, 64); \
        _tile_loadd(1, sums + SUMS, 64); \
        _tile_loadd(2, sums + 2 * SUMS, 64); \
        _tile_loadd(3, sums + 3 * SUMS, 64); \
        for (int64_t i = 0; i < p->count; i++, block += TILE) { \
            const char *at = p->at + i * p->step; \
            prefetch_panel(p, i); \
            _tile_loadd(4, at, p->stride); \
            _tile_loadd(6, block, 64); \
            PRODUCT(0, 4, 6); \
            _tile_loadd(5, at + p->second, p->stride); \
            PRODUCT(1, 5, 6); \
            _tile_loadd(7, block + second, 64); \
            PRODUCT(2, 4, 7); \
            PRODUCT(3, 5, 7); \
        } \
        _tile_stored(0, sums, 64); \
        _tile_stored(1, sums + SUMS, 64); \
        _tile_stored(2, sums + 2 * SUMS, 64); \
        _tile_stored(3, sums + 3 * SUMS, 64); \
    }

/* The same with the last 16 lanes. */
#define MULTIPLY_16(name, PRODUCT) \
    static void name(const panel_steps *p, const uint16_t *block, float *sums) \
    { \
        memory_is_written(); \
        _tile_loadd(0, sums, 64); \
        _tile_loadd(1, sums + SUMS, 64); \
        for (int64_t i = 0; i < p->count; i++, block += TILE) { \
            const char *at = p->at + i * p->step; \
            prefetch_panel(p, i); \
            _tile_loadd(4, at, p->stride); \
            _tile_loadd(6, block, 64); \
            PRODUCT(0, 4, 6); \
            _tile_loadd(5, at + p->second, p->stride); \
            PRODUCT(1, 5, 6); \
        } \
        _tile_stored(0, sums, 64); \
        _tile_stored(1, sums + SUMS, 64); \
    }

#define PANEL_ROWS(sum, panel, block) _tile_dpbf16ps(sum, panel, block)
#define PANEL_PAIRS(sum, panel, block) _tile_dpbf16ps(sum, block, panel)
MULTIPLY_32(multiply_32_rows, PANEL_ROWS)
MULTIPLY_32(multiply_32_pairs, PANEL_PAIRS)
MULTIPLY_16(multiply_16_rows, PANEL_ROWS)
MULTIPLY_16(multiply_16_pairs, PANEL_PAIRS)

/* Some steps of a panel with all of the block; `at` is the first. */
static void multiply_block(const job *j, const panel_steps *p, int64_t at, float *sums)
{
    const uint16_t *block = j->packed + at * TILE;
    int64_t left = ceil_div(j->count, TILE_LANES), second = j->steps * TILE;
    for (; left > 1; left -= 2, block += 2 * second, sums += 4 * SUMS)
        (j->panel_has_pairs ? multiply_32_pairs : multiply_32_rows)(p, block, second, sums);
    if (left > 0)
        (j->panel_has_pairs ? multiply_16_pairs : multiply_16_rows)(p, block, sums);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Stores one tile of results: rows and columns of c from `row` and `column`. */
static void store_tile(const job *j, int64_t row, int64_t column, float *sums)
{
    int64_t rows = min_i64(j->c->shape[0] - row, TILE_LANES), n = min_i64(j->c->shape[1] - column, TILE_LANES);
    int64_t size = (int64_t)tarn__dtype_bytes(j->c->dtype);
    __mmask16 there = (__mmask16)((1u << n) - 1);
    _Alignas(64) float bias[TILE_LANES] = {0}, old[TILE_LANES] = {0};
    if (j->panel_is_b != j->panel_has_pairs) {
        __m512i x[TILE_LANES];
        for (int i = 0; i < TILE_LANES; i++)
            x[i] = _mm512_load_si512(sums + i * TILE_LANES);
        transpose_16(x);
        for (int i = 0; i < TILE_LANES; i++)
            _mm512_store_si512(sums + i * TILE_LANES, x[i]);
    }
    if (j->bias)
        tarn__load[j->bias->dtype][COMPUTE_F32](
            (char *)tarn__view_at(j->bias) + column * j->bias->stride[0] * (int64_t)tarn__dtype_bytes(j->bias->dtype),
            j->bias->stride[0], bias, n);
    for (int64_t i = 0; i < rows; i++, sums += TILE_LANES) {
        char *to = (char *)tarn__view_at(j->c) + ((row + i) * j->c->stride[0] + column * j->c->stride[1]) * size;
        __m512 values = _mm512_load_ps(sums);
        if (j->beta != 0) {
            tarn__load[j->c->dtype][COMPUTE_F32](to, j->c->stride[1], old, n);
            values = _mm512_fmadd_ps(_mm512_set1_ps((float)j->beta), _mm512_load_ps(old), values);
        }
        if (j->bias)
            values = _mm512_add_ps(values, _mm512_load_ps(bias));
        _mm512_store_ps(sums, values);
        if (j->c->stride[1] == 1 && j->c->dtype == TARN_F32)
            _mm512_mask_storeu_ps(to, there, values);
        else if (j->c->stride[1] == 1 && j->c->dtype == TARN_BF16)
            _mm512_mask_cvtepi32_storeu_epi16(to, there, tarn__bf16_of_16(sums));
        else
            tarn__store[j->c->dtype][COMPUTE_F32](sums, to, j->c->stride[1], n);
    }
}

/* Results of a panel with the block. */
static void store_results(const job *j, int64_t lane, float *sums)
{
    for (int64_t i = 0; i < j->count; i += TILE_LANES)
        for (int64_t t = 0; t < PANEL; t += TILE_LANES, sums += SUMS) {
            if (lane + t >= j->panel.lanes)
                continue;
            if (j->panel_is_b)
                store_tile(j, j->first + i, lane + t, sums);
            else
                store_tile(j, lane + t, j->first + i, sums);
        }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Whether a panel's steps are read in place: whole lanes, contiguous along k, read once. */
static bool reads_in_place(const job *j, int64_t lane)
{
    return j->panel.k_stride == 1 && j->count <= PANEL && lane + PANEL <= j->panel.lanes && j->k >= K_STEP;
}

static void multiply_panel(const job *j, int64_t lane, uint16_t *buffer, float *sums)
{
    int64_t at = 0;
    memset(sums, 0, sizeof(float) * (size_t)(round_up(j->count, TILE_LANES) * PANEL));
    if (reads_in_place(j, lane)) {
        int64_t stride = j->panel.lane_stride * (int64_t)sizeof(uint16_t);
        panel_steps p = {.at = (const char *)(j->panel.base + lane * j->panel.lane_stride),
                         .stride = stride,
                         .second = TILE_LANES * stride,
                         .step = K_STEP * (int64_t)sizeof(uint16_t),
                         .count = at = j->k / K_STEP,
                         .in_place = true};
        multiply_block(j, &p, 0, sums);
    }
    for (int64_t count; at < j->steps; at += count) {
        count = min_i64(j->steps - at, SEGMENT);
        pack_panel(j, lane, at, count, buffer);
        panel_steps p = {.at = (const char *)buffer,
                         .stride = 64,
                         .second = SEGMENT * TILE_BYTES,
                         .step = TILE_BYTES,
                         .count = count};
        multiply_block(j, &p, at, sums);
    }
    store_results(j, lane, sums);
}

/* A task is a range of panels. */
static void multiply_panels(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    int slot;
    uint16_t *buffer = (void *)slot_acquire(&j->buffers, &slot, NULL);
    configure_full_tiles();
    for (; begin < end; begin++)
        multiply_panel(j, begin * PANEL, buffer, (float *)(void *)(buffer + PANEL / TILE_LANES * SEGMENT * TILE));
    _tile_release();
    slot_release(&j->buffers, slot);
}

/* bf16 operands without batches, any float output but f64. Few rows are left to the fallback, which reads b as fast as
 * memory does, unless bits may not depend on their number; rows with the bits that each has alone are its own, too. */
static bool fits(const tarn__call *call)
{
    const tarn__matmul *params = call->params;
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0],
                     *bias = call->inputs > 2 ? call->in[2] : NULL;
    if (params->alpha != 1 || a->rank != 2 || b->rank != 2 || (c && c->rank != 2) || (bias && bias->rank != 1) ||
        a->dtype != TARN_BF16 || b->dtype != TARN_BF16 || (c && (!tarn__is_float(c->dtype) || c->dtype == TARN_F64)) ||
        (bias && (!tarn__is_float(bias->dtype) || bias->dtype == TARN_F64)))
        return false;
    int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    if (m <= 0 || k <= 0 || n <= 0)
        return false;
    if (params->batch_invariant == TARN__INVARIANT_ALONE && m <= TARN__ALONE_ROWS)
        return false;
    return params->batch_invariant == TARN__INVARIANT_BATCH || (m > FEW && n > FEW && m * n * k >= LITTLE_WORK);
}

/* A block of about BLOCK_BYTES; all blocks about as large. */
static int64_t choose_block(const job *j)
{
    int64_t most = BLOCK_BYTES / (j->steps * K_STEP * (int64_t)sizeof(uint16_t)) / PANEL * PANEL;
    most = min_i64(max_i64(most, PANEL), BLOCK_LANES);
    return min_i64(round_up(ceil_div(j->block.lanes, ceil_div(j->block.lanes, most)), PANEL), most);
}

static tarn__plan_status prepare_matmul(const tarn__call *call, tarn__plan *plan)
{
    const tarn__matmul *params = call->params;
    const tarn__view *a = call->in[0], *b = call->in[1];
    arena memory = {0};
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    side of_a = {.lanes = a->shape[0], .lane_stride = a->stride[0], .k_stride = a->stride[1]},
         of_b = {.lanes = b->shape[1], .lane_stride = b->stride[1], .k_stride = b->stride[0]};
    bool panel_is_b = of_b.lanes >= of_a.lanes;
    *j = (job){.panel = panel_is_b ? of_b : of_a,
               .block = panel_is_b ? of_a : of_b,
               .panel_is_b = panel_is_b,
               .k = a->shape[1],
               .steps = ceil_div(a->shape[1], K_STEP),
               .beta = params->beta};
    j->panel_has_pairs = has_contiguous_lanes(&j->panel);
    j->block_lanes = choose_block(j);
    arena_reserve(&memory, TILE_BYTES * (size_t)(j->block_lanes / TILE_LANES * j->steps));
    j->buffers = arena_slots(&memory, PANEL / TILE_LANES * TILE_BYTES * (size_t)(SEGMENT + j->block_lanes / TILE_LANES),
                             slot_count(ceil_div(j->panel.lanes, PANEL)));
    plan->scratch_bytes = memory.used;
    return TARN__PLAN_READY;
}

/* 2 · m · n · k FLOPs. */
static void kernel_matmul(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    const uint16_t *a = tarn__view_at(call->in[0]), *b = tarn__view_at(call->in[1]);
    j.panel.base = j.panel_is_b ? b : a;
    j.block.base = j.panel_is_b ? a : b;
    j.bias = call->inputs > 2 ? call->in[2] : NULL;
    j.c = call->out[0];
    j.packed = call->scratch;
    slots_init(&j.buffers, call->scratch);
    for (; j.first < j.block.lanes; j.first += j.block_lanes) {
        j.count = min_i64(j.block.lanes - j.first, j.block_lanes);
        tarn__parallel_for(ceil_div(j.count, TILE_LANES), 1 + 65536 / (TILE_LANES * j.k), pack_block, &j);
        tarn__parallel_for(ceil_div(j.panel.lanes, PANEL), 1 + TASK_WORK / (PANEL * j.k * j.count), multiply_panels,
                           &j);
    }
}

void tarn__cpu_register_matmul_amx(tarn__kernel_row *rows, tarn__kernel_row *avx512);

/* `avx512` keeps the row for all other calls and must live as long as the table. */
void tarn__cpu_register_matmul_amx(tarn__kernel_row *rows, tarn__kernel_row *avx512)
{
    tarn__kernel_row row = tarn__row_fits(tarn__row_planned(prepare_matmul, kernel_matmul, TARN__BIT(TARN_BF16)), fits);
    tarn__push_row(rows, TARN__K_matmul, tarn__row_named(row, "amx"), avx512);
}

/* quant_matmul_arm.c: matmul with quantized weights on AArch64 processors with byte dot products; compiled for dotprod
 * and for i8mm, and selected at run time (backend.c).
 *
 * x is quantized to 8 bits, 32 elements per scale; quant_matmul.c states the error bound. Four rows of the weight are
 * processed together. Per group of 32 elements the integer sums are exact, also times the group's integer scale
 * (unpack_arm.h); blocks follow in order:
 *
 *   blocks of 32    result += sum · (scale of x · scale of the block) + min · (scale of x · sum of x)
 *   blocks of 256   result += (Σ sum · group scale · scale of x) · d - (Σ min · (scale of x · sum of x)) · dmin
 *
 * without the second term where a format has no min.
 *
 * One row of x (decode) multiplies blocks as they are read, at memory bandwidth. For more rows, segments of some
 * weight rows are packed into a panel (tile_arm.h) that all rows of x use. The operations of a result and their
 * order depend on its row and column alone. */
#include <math.h>

#include "backends/cpu/quant/quant_matmul.h"
#include "backends/cpu/quant/tile_arm.h"

#define SEGMENT 32          /* groups packed at a time: with eight rows of x they fit L1 */
#define COLUMNS MAX_COLUMNS /* rows of the weight per panel and per task */
#define PANEL_TILES (COLUMNS / W_ROWS)
#define PREFETCH_BYTES 40960 /* prefetch distance into the weight, to L2: four rows of 8192 elements and some more */

/* One call. x is quantized into `x_q8`, or for one row into q, scale and sum. */
typedef struct job {
    gemm_args p;
    int64_t groups;
    size_t x_at, scale_at, sum_at; /* offsets in scratch */
    slots panels;
    /* addresses, set by run() */
    x_group *x_q8; /* (rows / 8, groups); for a single row q (groups, 32), scale (groups), sums (groups) instead */
    int8_t *q;
    float *scale, *sum[2];
} job;

/* ---- x ----------------------------------------------------------------------------------------------------------- */

typedef struct quantized {
    int8x16_t q[2];
    float scale, sum[2];
} quantized;

/* Quantizes 32 elements to 8 bits. A non-finite element makes the scale NaN, and with it the result; magnitudes all
 * below 2^-118 count as 0. */
static inline quantized quantize_group(const float *x, tarn_dtype dtype)
{
    quantized to;
    uint32x4_t max_bits = vdupq_n_u32(0);
    for (int i = 0; i < 8; i++)
        max_bits = vmaxq_u32(max_bits, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * i))));
    uint32_t bits = vmaxvq_u32(max_bits);
    bool finite = bits < 0x7f800000u, tiny = bits < 0x04800000u;
    float largest = tarn__float_from(bits), inverse = finite && !tiny ? 127.0f / largest : 0;
    for (int h = 0; h < 2; h++) {
        int32x4_t q[4];
        for (int i = 0; i < 4; i++)
            q[i] = finite ? vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * i), inverse)) : zero_s32();
        to.q[h] = vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]))),
                              vmovn_s16(vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]))));
    }
    to.scale = !finite ? NAN : tiny ? 0 : largest / 127.0f;
    /* only where needed: may be infinite, and 0 · infinity would be NaN */
    int first = vaddlvq_s8(to.q[0]), second = vaddlvq_s8(to.q[1]);
    to.sum[0] = has_min(dtype) ? to.scale * (float)(dtype == TARN_Q2_K ? first : first + second) : 0;
    to.sum[1] = dtype == TARN_Q2_K ? to.scale * (float)second : 0;
    return to;
}

/* Stores row r of eight. */
static void place_group(const quantized *from, int r, x_group *to)
{
    int8_t q[GROUP];
    vst1q_s8(q, from->q[0]), vst1q_s8(q + 16, from->q[1]);
    for (int t = 0; t < GROUP / X_STEP; t++)
        memcpy(to->q + x_offset(r, t), q + t * X_STEP, X_STEP);
    set_x(to->scale[x_unit(r)], r, from->scale);
    set_x(to->sum[0][x_unit(r)], r, from->sum[0]);
    set_x(to->sum[1][x_unit(r)], r, from->sum[1]);
}

#define X_CHUNK 256

/* Quantizes rows 8 i to 8 i + 7 of the tile; rows past the end are 0. */
static void quantize_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    float values[X_CHUNK];
    for (int64_t r = begin * X_ROWS; r < end * X_ROWS; r++)
        for (int64_t k = 0; k < j->p.in; k += X_CHUNK) {
            int64_t n = min_i64(j->p.in - k, X_CHUNK);
            if (r < j->p.count)
                load_x(&j->p, j->p.first + r, k, values, n);
            else
                memset(values, 0, sizeof(values));
            for (int64_t i = 0; i < n; i += GROUP) {
                quantized group = quantize_group(values + i, j->p.w->dtype);
                place_group(&group, (int)(r % X_ROWS), &j->x_q8[r / X_ROWS * j->groups + (k + i) / GROUP]);
            }
        }
}

static void quantize_row(const job *j)
{
    float values[X_CHUNK];
    for (int64_t k = 0; k < j->p.in; k += X_CHUNK) {
        int64_t n = min_i64(j->p.in - k, X_CHUNK);
        load_x(&j->p, 0, k, values, n);
        for (int64_t i = 0; i < n; i += GROUP) {
            quantized group = quantize_group(values + i, j->p.w->dtype);
            vst1q_s8(j->q + k + i, group.q[0]), vst1q_s8(j->q + k + i + 16, group.q[1]);
            j->scale[(k + i) / GROUP] = group.scale, j->sum[0][(k + i) / GROUP] = group.sum[0];
            j->sum[1][(k + i) / GROUP] = group.sum[1];
        }
    }
}

/* ---- rows of the weight ------------------------------------------------------------------------------------------ */

/* Horizontal sums of four vectors, one per lane. */
static inline int32x4_t four_dots(int32x4_t *part)
{
    return vpaddq_s32(vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3]));
}

/* Running result, or the sums of one block and of its mins. */
typedef struct parts {
    float32x4_t sum, min;
} parts;

/* One group of four weight rows times one row of x. */
static inline void add_group(parts *p, int8x16_t w[W_ROWS][2], const scales4 *n, int g, const job *j, int64_t at,
                             enum kind kind)
{
    int8x16_t x[2] = {vld1q_s8(j->q + at * GROUP), vld1q_s8(j->q + at * GROUP + 16)};
    int32x4_t first[W_ROWS], both[W_ROWS], dots;
    for (int r = 0; r < W_ROWS; r++) {
        first[r] = vdotq_s32(zero_s32(), w[r][0], x[0]);
        both[r] = vdotq_s32(HAS_HALVES(kind) ? zero_s32() : first[r], w[r][1], x[1]);
    }
    dots = four_dots(both);
    if (HAS_HALVES(kind))
        dots = vmlaq_s32(vmulq_s32(four_dots(first), half_scale(half_byte_of(n, g, 0), kind)), dots,
                         half_scale(half_byte_of(n, g, 1), kind));
    if (kind == WITH_MIN)
        dots = vmulq_s32(dots, scale_of(n, g));
    float32x4_t dots_f32 = vcvtq_f32_s32(dots);
    p->sum = IS_SMALL(kind) ? vfmaq_f32(p->sum, dots_f32, vmulq_n_f32(n->scale, j->scale[at]))
                            : vfmaq_n_f32(p->sum, dots_f32, j->scale[at]);
    if (kind == SCALE_MIN)
        p->sum = vfmaq_n_f32(p->sum, n->min_scale, j->sum[0][at]);
    if (kind == WITH_MIN)
        p->min = vfmaq_n_f32(p->min, min_of(n, g), j->sum[0][at]);
    for (int h = 0; h < 2 && kind == HALF_MINS; h++)
        p->min = vfmaq_n_f32(p->min, half_min(half_byte_of(n, g, h)), j->sum[h][at]);
}

#define ONE(X, type, kind) X(type, 0, kind)
#define EIGHT(X, type, kind) \
    X(type, 0, kind) \
    X(type, 1, kind) \
    X(type, 2, kind) X(type, 3, kind) X(type, 4, kind) X(type, 5, kind) X(type, 6, kind) X(type, 7, kind)

#define UNPACK(type, g) \
    int8x16_t w[W_ROWS][2]; \
    for (int r = 0; r < W_ROWS; r++) \
        group_##type(b[r], g, w[r]);
#define MULTIPLY(type, g, kind) \
    { \
        UNPACK(type, g) \
        add_group(&p, w, &n, g, j, at + (g), kind); \
    }
#define PACK(type, g, kind) \
    { \
        UNPACK(type, g) \
        pack_group(w, &n, g, kind, &to[at + (g)]); \
    }

/* Four weight rows: times a single row of x, and `groups` groups of them into a panel. `prefetch_at` bytes ahead is
 * the data packed next. */
#define ROWS_OF(type, dtype, per_block, EACH, kind) \
    static void multiply_##type(const char *const *row, const job *j, float *to) \
    { \
        const tarn__##type *b[] = {(const void *)row[0], (const void *)row[1], (const void *)row[2], \
                                   (const void *)row[3]}; \
        float32x4_t sum = vdupq_n_f32(0); \
        for (int64_t at = 0; at < j->groups; at += (per_block)) { \
            scales4 n; \
            parts p = {IS_SMALL(kind) ? sum : vdupq_n_f32(0), vdupq_n_f32(0)}; \
            for (int line = 0; line < W_ROWS * (int)sizeof(*b[0]); line += 64) \
                __builtin_prefetch(row[0] + PREFETCH_BYTES + at / (per_block)*W_ROWS * (int64_t)sizeof(*b[0]) + line, \
                                   0, 2); \
            scales_##type(b, &n); \
            EACH(MULTIPLY, type, kind) \
            sum = IS_SMALL(kind) ? p.sum : vfmaq_f32(sum, p.sum, n.scale); \
            if ((kind) == WITH_MIN || (kind) == HALF_MINS) \
                sum = vfmsq_f32(sum, p.min, n.min_scale); \
            b[0]++, b[1]++, b[2]++, b[3]++; \
        } \
        vst1q_f32(to, sum); \
    } \
\
    static void unpack_rows_##type(const char *const *row, int64_t prefetch_at, int64_t groups, w_group *to) \
    { \
        const tarn__##type *b[] = {(const void *)row[0], (const void *)row[1], (const void *)row[2], \
                                   (const void *)row[3]}; \
        for (int64_t at = 0; at < groups; at += (per_block)) { \
            scales4 n; \
            for (int r = 0; r < W_ROWS; r++) \
                for (int line = 0; line < (int)sizeof(*b[r]); line += 64) \
                    __builtin_prefetch((const char *)b[r] + prefetch_at + line, 0, 2); \
            scales_##type(b, &n); \
            EACH(PACK, type, kind) \
            b[0]++, b[1]++, b[2]++, b[3]++; \
        } \
    }

#define FORMATS(X) \
    X(q8_0, Q8_0, 1, ONE, SCALE_ONLY) \
    X(q4_0, Q4_0, 1, ONE, SCALE_ONLY) \
    X(q4_k, Q4_K, GROUPS, EIGHT, WITH_MIN) \
    X(q6_k, Q6_K, GROUPS, EIGHT, HALF_SCALES) \
    X(q4_1, Q4_1, 1, ONE, SCALE_MIN) \
    X(q5_0, Q5_0, 1, ONE, SCALE_ONLY) \
    X(q5_1, Q5_1, 1, ONE, SCALE_MIN) \
    X(q2_k, Q2_K, GROUPS, EIGHT, HALF_MINS) \
    X(q3_k, Q3_K, GROUPS, EIGHT, HALF_SCALES) \
    X(q5_k, Q5_K, GROUPS, EIGHT, WITH_MIN) \
    X(iq4_nl, IQ4_NL, 1, ONE, SCALE_ONLY) \
    X(iq4_xs, IQ4_XS, GROUPS, EIGHT, HALF_SCALES)

FORMATS(ROWS_OF)

#define KERNELS_OF(type, dtype, per_block, EACH, kind) \
    [TARN_##dtype - TARN_Q8_0] = {multiply_##type, unpack_rows_##type, tile_##kind},

/* Indexed by dtype - TARN_Q8_0. */
static const struct {
    void (*multiply)(const char *const *row, const job *j, float *to);
    void (*dequantize)(const char *const *row, int64_t prefetch_at, int64_t groups, w_group *to);
    void (*tile)(const w_group *w, const x_group *x, int64_t count, int64_t rows, float to[W_UNITS][X_UNITS][4]);
} kernels[] = {FORMATS(KERNELS_OF)};

/* ---- matmul_quant ------------------------------------------------------------------------------------------------ */

static int64_t row_bytes(const job *j)
{
    return tarn__bytes_of(j->p.w->dtype, j->p.w->stride[0]);
}

/* Addresses of four rows from `column`, `bytes` apart; the last row stands in for rows past the end. */
static void find_rows(const job *j, const char *rows, int64_t bytes, int64_t column, const char **row)
{
    for (int r = 0; r < W_ROWS; r++)
        row[r] = rows + min_i64(column + r, j->p.out - 1) * bytes;
}

/* Decode: one row of x; weight rows four at a time. */
static void multiply_row(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    const char *rows = row_of(j->p.w, 0), *row[W_ROWS];
    int64_t bytes = row_bytes(j);
    float values[COLUMNS];
    for (int64_t panel_index = begin; panel_index < end; panel_index++) {
        int64_t column = panel_index * COLUMNS, n = min_i64(j->p.out - column, COLUMNS);
        for (int64_t i = 0; i < n; i += W_ROWS) {
            find_rows(j, rows, bytes, column + i, row);
            kernels[j->p.type].multiply(row, j, values + i);
        }
        store_results(&j->p, 0, column, values, n);
    }
}

/* Packs groups `at` to `at` + `count` of n rows from `column`. Prefetches the next groups of these rows, or the
 * first groups of the next rows. */
static void unpack_panel(const job *j, int64_t column, int64_t n, int64_t at, int64_t count, w_group *panel)
{
    int64_t from = tarn__bytes_of(j->p.w->dtype, at * GROUP), length = tarn__bytes_of(j->p.w->dtype, count * GROUP),
            bytes = row_bytes(j);
    int64_t prefetch_at = at + count < j->groups ? length : COLUMNS * bytes - from;
    const char *rows = row_of(j->p.w, 0) + from, *row[W_ROWS];
    for (int64_t i = 0; i < n; i += W_ROWS) {
        find_rows(j, rows, bytes, column + i, row);
        kernels[j->p.type].dequantize(row, prefetch_at, count, panel + i / W_ROWS * SEGMENT);
    }
}

/* Prefill: a task is a range of panels; sums of the whole tile of x are on the stack. */
static void multiply_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    int slot;
    w_group *panel = (void *)slot_acquire(&j->panels, &slot, NULL);
    float sums[ROW_TILE / X_ROWS][PANEL_TILES][W_UNITS][X_UNITS][4], values[COLUMNS];
    for (int64_t panel_index = begin; panel_index < end; panel_index++) {
        int64_t column = panel_index * COLUMNS, n = min_i64(j->p.out - column, COLUMNS);
        memset(sums, 0, sizeof(sums));
        for (int64_t at = 0; at < j->groups; at += SEGMENT) {
            int64_t count = min_i64(j->groups - at, SEGMENT);
            unpack_panel(j, column, n, at, count, panel);
            for (int64_t r = 0; r < j->p.count; r += X_ROWS)
                for (int64_t i = 0; i < n; i += W_ROWS)
                    kernels[j->p.type].tile(panel + i / W_ROWS * SEGMENT, j->x_q8 + r / X_ROWS * j->groups + at, count,
                                            min_i64(j->p.count - r, X_ROWS), sums[r / X_ROWS][i / W_ROWS]);
        }
        for (int64_t r = 0; r < j->p.count; r++) {
            for (int64_t i = 0; i < n; i++)
                values[i] = result_of(sums[r / X_ROWS][i / W_ROWS], (int)(i % W_ROWS), (int)(r % X_ROWS));
            store_results(&j->p, j->p.first + r, column, values, n);
        }
    }
    slot_release(&j->panels, slot);
}

static void describe(job *j, arena *c)
{
    j->groups = j->p.in / GROUP;
    if (j->p.rows == 1) {
        j->x_at = arena_reserve(c, (size_t)j->p.in);
        j->scale_at = arena_reserve(c, sizeof(float) * (size_t)j->groups);
        j->sum_at = arena_reserve(c, 2 * sizeof(float) * (size_t)j->groups);
        return;
    }
    j->x_at =
        arena_reserve(c, sizeof(x_group) * (size_t)((min_i64(j->p.rows, ROW_TILE) + X_ROWS - 1) / X_ROWS * j->groups));
    j->panels = arena_slots(c, sizeof(w_group) * PANEL_TILES * SEGMENT, slot_count((j->p.out + COLUMNS - 1) / COLUMNS));
}

static tarn__plan_status prepare_matmul_quant(const tarn__call *call, tarn__plan *plan)
{
    arena c = {0};
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    *j = (job){.p = describe_matmul(call)};
    describe(j, &c);
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

static void bind(job *j, const tarn__call *call)
{
    char *scratch = call->scratch;
    bind_matmul(&j->p, call);
    if (j->p.rows == 1) {
        j->q = (void *)(scratch + j->x_at);
        j->scale = (void *)(scratch + j->scale_at);
        j->sum[0] = (void *)(scratch + j->sum_at);
        j->sum[1] = j->sum[0] + j->groups;
        return;
    }
    j->x_q8 = (void *)(scratch + j->x_at);
    slots_init(&j->panels, scratch);
}

/* As in quant_matmul.c, with panels of COLUMNS rows. */
static void kernel_matmul_quant(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    job j = *(const job *)tarn__plan_job(call->plan);
    bind(&j, call);
    int64_t panels_count = (j.p.out + COLUMNS - 1) / COLUMNS,
            bytes = tarn__bytes_of(j.p.w->dtype, j.p.in) * COLUMNS + 1;
    if (j.p.rows == 1) {
        quantize_row(&j);
        tarn__parallel_for(panels_count, 1 + MIN_BYTES / bytes, multiply_row, &j);
        return;
    }
    for (; j.p.first < j.p.rows; j.p.first += ROW_TILE) {
        j.p.count = min_i64(j.p.rows - j.p.first, ROW_TILE);
        tarn__parallel_for((j.p.count + X_ROWS - 1) / X_ROWS, 1 + 16384 / (X_ROWS * j.p.in + 1), quantize_rows, &j);
        tarn__parallel_for(panels_count, 1 + MIN_BYTES / (bytes * j.p.count), multiply_rows, &j);
    }
}

void TARN__PASTE(tarn__cpu_register_quant_matmul, TARN__ARM_LEVEL)(tarn__kernel_row *rows);

void TARN__PASTE(tarn__cpu_register_quant_matmul, TARN__ARM_LEVEL)(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul_quant].prepare = prepare_matmul_quant;
    rows[TARN__K_matmul_quant].run = kernel_matmul_quant;
}

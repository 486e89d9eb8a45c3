/* attention.c: attention softmax(cap(q · kᵀ · scale)) · v and its gradients, without ever storing the (T, S) weights of
 * all rows. cap() is a soft cap, c · tanh(s / c), or nothing.
 *
 * q is (B, H, T, D), k and v (B, KV, S, D); H / KV heads of q share a head of k and v (grouped-query attention). A unit
 * is one KV head of one batch with all its query heads. A task is a unit or, where there are few units, a part
 * of its row blocks: the number of parts depends on the shape alone. A task packs its keys and values once, in f32 (f64
 * for f64), and walks its row blocks in order; where only a few rows use a key (decode), nothing is packed.
 *
 * A block of rows computes the weights of at most KEY_CHUNK keys at a time, in memory that stays in L2. Forward is
 * online softmax: a running max and sum per row, rescaled when a later chunk has a larger score. Backward recomputes
 * the weights from the saved logsumexp (LSE); with several chunks it computes them twice, first for the row sums that
 * every gradient needs. It reads nothing from the rounded output, and divides by the recomputed sum, so that the
 * rounding of the LSE does not matter. Gradients of k and v are summed in the order of blocks, then of parts: results
 * do not depend on the number of threads. Keys before a sliding window, or before the documents of a block's rows, are
 * neither packed nor multiplied.
 *
 *   FLOPs     forward 4 · B · H · T · S · D, backward 10 · B · H · T · S · D (14 with several chunks); causal: half;
 *             with a window W instead of S about W + ROW_BLOCK
 *   scratch   per thread packed k and v (S, D) and weights (ROW_BLOCK, KEY_CHUNK); partial gk and gv where parts > 1 */
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/rows.h"
#include "backends/cpu/common/scalar_math_special.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/common/transpose4.h"
#include "base/philox.h"
#include "base/quant/quant.h"

#define STRIP 64
#define MAX_PANEL 32
#define ROW_BLOCK 64
#define SHORT_BLOCK 32 /* of a short causal triangle: larger blocks would compute twice as many masked scores */
#define SHORT_ROWS 256
#define KEY_CHUNK 1920  /* a multiple of 48: chunks end where tiles of every level end */
#define WINDOW_STEP 96  /* of shorter chunks, which also begin where dropout counters and packed panels do */
#define DEPTH_BLOCK 256 /* terms of a dot product per pass over a tile */
#define SKINNY_ROWS 3
#define MIN_TASKS 16
#define TASK_WORK (INT64_C(1) << 17) /* multiplications that are worth a task */

/* Rows of a register tile: with two vectors each they hide the FMA latency, and most head sizes are multiples. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_ROWS 8
#define EACH_ROW(X) \
    X(0, a, 0) X(1, a, row) X(2, a, twice) X(3, a3, 0) X(4, a3, row) X(5, a3, twice) X(6, a6, 0) X(7, a6, row)
#elif defined(__AVX__)
#define TILE_ROWS 6
#define EACH_ROW(X) X(0, a, 0) X(1, a, row) X(2, a, twice) X(3, a3, 0) X(4, a3, row) X(5, a3, twice)
#else
#define TILE_ROWS 4
#define EACH_ROW(X) X(0, a, 0) X(1, a, row) X(2, a, twice) X(3, a3, 0)
#endif

/* ---- operands and masks ------------------------------------------------------------------------------------------ */

/* A tensor (B, heads, rows, D), or (B, heads, rows). */
typedef struct tensor4 {
    tarn_dtype dtype;
    bool is_quantized; /* rows have f16 scales, one per TARN__KV_Q8_GROUP elements */
    int64_t size;
    int64_t stride[4];
    int64_t scale_stride[4];
    /* addresses, set by bind4(); NULL: absent */
    char *base;
    const char *scale;
} tensor4;

static tensor4 tensor4_of(const tarn__view *view)
{
    tensor4 c = {0};
    if (!view)
        return c;
    c = (tensor4){.dtype = view->dtype, .size = (int64_t)tarn__dtype_bytes(view->dtype)};
    for (int i = 0; i < view->rank; i++)
        c.stride[i] = view->stride[i];
    return c;
}

/* The same for a quantized tensor; scale NULL: not quantized. */
static tensor4 quant_tensor4_of(const tarn__view *view, const tarn__view *scale)
{
    tensor4 c = tensor4_of(view);
    c.is_quantized = scale != NULL;
    for (int i = 0; scale && i < 4; i++)
        c.scale_stride[i] = scale->stride[i];
    return c;
}

static void bind4(tensor4 *c, const tarn__view *view, const tarn__view *scale)
{
    c->base = view ? tarn__view_at(view) : NULL;
    c->scale = scale ? tarn__view_at(scale) : NULL;
}

/* Address of the scales of a row. */
static const char *scales_of(const tensor4 *c, int64_t batch, int64_t head, int64_t row)
{
    return c->scale + (batch * c->scale_stride[0] + head * c->scale_stride[1] + row * c->scale_stride[2]) *
                          (int64_t)sizeof(uint16_t);
}

/* Scale of one group of the row. */
static float scale_of(const tensor4 *c, const char *scales, int64_t group)
{
    uint16_t half;
    memcpy(&half, scales + group * c->scale_stride[3] * (int64_t)sizeof(half), sizeof(half));
    return tarn__f16_to_f32(half);
}

/* Address of row (batch, head, row), in the dtype of the tensor. */
static char *row_of(const tensor4 *c, int64_t batch, int64_t head, int64_t row)
{
    return c->base + (batch * c->stride[0] + head * c->stride[1] + row * c->stride[2]) * c->size;
}

/* One call: operands, masks and cuts. A plan has none of the addresses: bind() sets them in a copy, which is read-only
 * while tasks run. */
typedef struct job {
    int64_t batches, heads, kv_heads, group, rows, keys, head_dim; /* B, H, KV, H / KV, T, S, D */
    double scale, softcap;                                         /* softcap 0: none */
    bool causal;
    int64_t window; /* 0: none */
    tensor4 q, k, v, y, lse, g, gq, gk, gv;
    int64_t row_block, blocks; /* per head */
    int64_t parts;             /* per unit */
    int64_t padded_dim;        /* D rounded up to whole vectors */
    int64_t chunk, line;       /* keys per chunk, and the row stride of their weights */
    bool backward;
    bool skinny;           /* too few rows per key for packing to pay */
    size_t partial_offset; /* in scratch */
    slots slots;
    /* addresses */
    const tarn__random *random; /* NULL: no dropout */
    const tarn__view *lengths;
    const tarn__view *starts; /* (B, T): first key of each row's document; NULL: rows attend from key 0 */
    char *partial;            /* (units, parts, 2, keys + TILE_ROWS, padded_dim): partial gk and gv, where parts > 1 */
} job;

#define MASK_FN static inline
#define MASK_ARGS const job *j
#define MASK_CAUSAL j->causal
#define MASK_ROWS j->rows
#define MASK_KEYS j->keys
#define MASK_WINDOW j->window
#include "base/kernel/attention_mask.inc"

/* Keys of a batch: lengths has one element, or one per batch. Clamped, so that an invalid length cannot read out of
 * bounds. */
static int64_t valid_keys(const job *j, int64_t batch)
{
    int64_t length = j->keys;
    if (j->lengths) {
        const tarn__view *l = j->lengths;
        int64_t at = l->rank > 0 && l->shape[0] > 1 ? batch * l->stride[0] : 0;
        tarn__load[l->dtype][COMPUTE_I64]((char *)tarn__view_at(l) + at * (int64_t)tarn__dtype_bytes(l->dtype), 1,
                                          &length, 1);
    }
    return clamp_to_keys(j, length);
}

/* Checked before any thread starts, so that the first invalid length is the one reported. */
static void check_lengths(const job *j, tarn__fault *fault)
{
    int64_t count = j->lengths ? tarn__view_count(j->lengths) : 0;
    for (int64_t i = 0; i < count && !fault->raised; i++) {
        int64_t length, stride = j->lengths->rank > 0 ? j->lengths->stride[0] : 0;
        const char *from =
            (char *)tarn__view_at(j->lengths) + i * stride * (int64_t)tarn__dtype_bytes(j->lengths->dtype);
        tarn__load[j->lengths->dtype][COMPUTE_I64](from, 1, &length, 1);
        if (!is_within_keys(j, length))
            *fault = (tarn__fault){1, fault->function, length, j->keys};
    }
}

/* First key of the document that row `row` belongs to, unchecked. */
static int64_t start_at(const job *j, int64_t batch, int64_t row)
{
    int64_t start;
    const tarn__view *s = j->starts;
    const char *from =
        (char *)tarn__view_at(s) + (batch * s->stride[0] + row * s->stride[1]) * (int64_t)tarn__dtype_bytes(s->dtype);
    tarn__load[s->dtype][COMPUTE_I64](from, 1, &start, 1);
    return start;
}

static void check_starts(const job *j, tarn__fault *fault)
{
    for (int64_t batch = 0; j->starts && batch < j->batches; batch++)
        for (int64_t row = 0; row < j->rows && !fault->raised; row++) {
            int64_t start = start_at(j, batch, row);
            if (!is_within_keys(j, start))
                *fault = (tarn__fault){1, fault->function, start, j->keys};
        }
}

/* A block of rows of one query head, and the keys it can attend to. */
typedef struct block {
    int64_t batch, head, first, rows;
    int64_t valid; /* keys of the batch: its length, or S */
    int64_t from;  /* no row attends to a key before this one; a multiple of the tile width */
    int64_t keys;  /* nor to this one or any after it */
} block;

/* First key that row i of a block attends to: of its document and its window. Starts out of range were reported; here
 * they are only clamped. */
static int64_t start_of(const job *j, const block *b, int64_t i)
{
    int64_t start = j->starts ? clamp_to_keys(j, start_at(j, b->batch, b->first + i)) : 0;
    return j->window > 0 ? max_i64(start, window_start_of(j, b->valid, b->first + i)) : start;
}

/* Keys of a chunk from `begin` that row i attends to, relative to the chunk: [first, end), or {0, 0} for none. */
typedef struct key_range {
    int64_t first, end;
} key_range;

static key_range key_range_of(const job *j, const block *b, int64_t i, int64_t begin, int64_t chunk)
{
    int64_t first = start_of(j, b, i) - begin, end = min_i64(keys_of(j, b->valid, b->first + i) - begin, chunk);
    first = first < 0 ? 0 : first;
    return first < end ? (key_range){first, end} : (key_range){0, 0};
}

/* Such rows have output 0 and no gradient. */
static bool attends_to_none(const job *j, const block *b, int64_t i)
{
    return start_of(j, b, i) >= keys_of(j, b->valid, b->first + i);
}

/* Smallest start of a block's rows, rounded down to a tile and to a dropout counter. */
static int64_t first_start(const job *j, const block *b)
{
    bool limited = j->starts || j->window > 0;
    int64_t first = limited ? b->keys : 0;
    for (int64_t i = 0; limited && i < b->rows; i++)
        first = min_i64(first, start_of(j, b, i));
    return first / MAX_PANEL * MAX_PANEL;
}

/* Block `at` of a unit: all blocks of one query head, then those of the next. */
static block block_of(const job *j, int64_t unit, int64_t at)
{
    block b = {.batch = unit / j->kv_heads,
               .head = unit % j->kv_heads * j->group + at / j->blocks,
               .first = at % j->blocks * j->row_block};
    b.rows = min_i64(j->row_block, j->rows - b.first);
    b.valid = valid_keys(j, b.batch);
    b.keys = keys_of(j, b.valid, b.first + b.rows - 1);
    b.from = first_start(j, &b);
    return b;
}

/* The range of a unit's blocks that a task computes. */
static void blocks_of(const job *j, int64_t task, int64_t *begin, int64_t *end)
{
    int64_t all = j->group * j->blocks, part = task % j->parts;
    *begin = all * part / j->parts;
    *end = all * (part + 1) / j->parts;
}

/* The keys that any block of a task attends to, from a whole panel on; others are not packed. */
static key_range keys_of_task(const job *j, int64_t unit, int64_t begin, int64_t end)
{
    key_range keys = {j->keys, 0};
    for (int64_t at = begin; at < end; at++) {
        block b = block_of(j, unit, at);
        keys = (key_range){min_i64(keys.first, b.from), max_i64(keys.end, b.keys)};
    }
    return keys.first < keys.end ? keys : (key_range){0, 0};
}

/* Dropout factors of n keys from `begin` (a multiple of 8) of one row: 0, or 1 / (1 - p). 16 random bits per weight,
 * eight weights per Philox counter, keyed by (row, key): the mask does not depend on blocks or threads, and backward
 * draws the same. */
static void draw_factors(const job *j, const block *b, int64_t i, int64_t begin, int64_t n, float *factor)
{
    uint64_t number = (uint64_t)((b->batch * j->heads + b->head) * j->rows + b->first + i);
    uint64_t counter = j->random->offset + number * (uint64_t)((j->keys + 7) / 8) + (uint64_t)begin / 8;
    uint32_t limit = tarn__limit_16(j->random->a), word[4];
    float keep = (float)(0x1p16 / (0x1p16 - limit));
    for (int64_t s = 0; s < n; s++) {
        if (s % 8 == 0)
            tarn__philox(j->random->seed, counter + (uint64_t)s / 8, word);
        factor[s] = tarn__half_word(word[s % 8 / 2], s % 2) < limit ? 0 : keep;
    }
}

/* n quantized elements of a row as contiguous bytes: in place, or in `buffer`. */
static const uint8_t *contiguous_q8(const char *from, int64_t stride, uint8_t *buffer, int64_t n)
{
    if (stride == 1)
        return (const uint8_t *)from;
    for (int64_t i = 0; i < n; i++)
        buffer[i] = (uint8_t)from[i * stride];
    return buffer;
}

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)

#define T float
#define EXP tarn__exp_f32
#define TANH tarn__tanh_f32
#define COMPUTE COMPUTE_F32
#define NATIVE TARN_F32
#define SQUARE 4
#define NAMED(x) x##_f32
#include "backends/cpu/attention/attention_tile.inc"

#define T double
#define EXP tarn__exp_f64
#define TANH tarn__tanh_f64
#define COMPUTE COMPUTE_F64
#define NATIVE TARN_F64
#define SQUARE 2
#define NAMED(x) x##_f64
#include "backends/cpu/attention/attention_tile.inc"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static bool is_f64(const job *j)
{
    return j->q.dtype == TARN_F64;
}

/* Row blocks of nearly equal size, and as many parts per unit as keep MIN_TASKS tasks. */
static void choose_blocks(job *j)
{
    int64_t max_rows = j->causal && j->rows < SHORT_ROWS ? SHORT_BLOCK : ROW_BLOCK;
    j->blocks = (j->rows + max_rows - 1) / max_rows;
    j->row_block = j->blocks > 0 ? round_up((j->rows + j->blocks - 1) / j->blocks, TILE_ROWS) : 0;
    j->blocks = j->row_block > 0 ? (j->rows + j->row_block - 1) / j->row_block : 0;
    int64_t units = j->batches * j->kv_heads, max = j->group * j->blocks;
    j->parts = units > 0 ? (MIN_TASKS + units - 1) / units : 1;
    j->parts = j->parts > max ? max : j->parts;
    j->parts = j->parts < 1 ? 1 : j->parts;
    int64_t panel = 2 * VECTOR_BYTES / (is_f64(j) ? 8 : 4);
    j->padded_dim = round_up(j->head_dim, panel);
    j->chunk = min_i64(j->keys, KEY_CHUNK);
    if (j->window > 0) /* a block's keys in one chunk, where that is shorter */
        j->chunk = min_i64(j->chunk, round_up(j->window + j->row_block + MAX_PANEL, WINDOW_STEP));
    j->line = round_up(j->chunk, panel) + panel;
    j->skinny = !j->backward && j->group * j->rows <= SKINNY_ROWS;
}

/* Inputs q, k, v, lengths; for the gradient also y, LSE, g; last the document starts, where the kernel has them. */
static void describe(const tarn__call *call, bool backward, job *j)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1];
    *j = (job){.batches = q->shape[0],
               .heads = q->shape[1],
               .kv_heads = k->shape[1],
               .rows = q->shape[2],
               .keys = k->shape[2],
               .head_dim = q->shape[3],
               .scale = params->scale,
               .softcap = params->softcap,
               .causal = params->causal,
               .window = params->window,
               .backward = backward,
               .q = tensor4_of(q),
               .k = tensor4_of(k),
               .v = tensor4_of(call->in[2])};
    j->group = j->kv_heads > 0 ? j->heads / j->kv_heads : 0;
    if (backward) {
        j->lse = tensor4_of(call->in[5]), j->g = tensor4_of(call->in[6]);
        j->gq = tensor4_of(call->out[0]), j->gk = tensor4_of(call->out[1]), j->gv = tensor4_of(call->out[2]);
    } else {
        j->y = tensor4_of(call->out[0]), j->lse = tensor4_of(call->outputs > 1 ? call->out[1] : NULL);
    }
    choose_blocks(j);
}

/* Scratch: partial gradients, then a slot per running task. Returns the bytes. */
static size_t lay_out_scratch(job *j)
{
    arena c = {0};
    size_t each = is_f64(j) ? 8 : 4;
    int64_t tasks = j->batches * j->kv_heads * j->parts;
    if (j->backward && j->parts > 1)
        j->partial_offset = arena_reserve(&c, (size_t)(tasks * 2 * (j->keys + TILE_ROWS) * j->padded_dim) * each);
    j->slots = arena_slots(&c, is_f64(j) ? slot_bytes_f64(j) : slot_bytes_f32(j), slot_count(tasks));
    return c.used;
}

static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan, bool backward)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(call, backward, j);
    plan->scratch_bytes = lay_out_scratch(j);
    return TARN__PLAN_READY;
}

/* The plan's job with the addresses of the call that all kernels have. */
static job bind(const tarn__call *call)
{
    const tarn__attention *params = call->params;
    job j = *(const job *)tarn__plan_job(call->plan);
    j.random = params->random.a > 0 ? &params->random : NULL;
    bind4(&j.q, call->in[0], NULL), bind4(&j.k, call->in[1], NULL), bind4(&j.v, call->in[2], NULL);
    j.lengths = call->in[3];
    /* attention_quant_kv has 6 inputs, and no starts */
    j.starts = call->inputs == (j.backward ? 8 : 5) ? call->in[call->inputs - 1] : NULL;
    j.partial = (char *)call->scratch + j.partial_offset;
    slots_init(&j.slots, call->scratch);
    return j;
}

/* Grain size: tasks that a thread takes at a time. */
static int64_t grain_of(const job *j)
{
    int64_t keys = j->window > 0 ? min_i64(j->keys, j->window) : j->keys;
    int64_t work = j->group * j->rows * keys * j->head_dim / j->parts + 1;
    return (TASK_WORK + work - 1) / work;
}

static void run_forward(const tarn__call *call, job *j)
{
    bind4(&j->y, call->out[0], NULL), bind4(&j->lse, call->outputs > 1 ? call->out[1] : NULL, NULL);
    check_lengths(j, call->fault);
    check_starts(j, call->fault);
    int64_t tasks = j->batches * j->kv_heads * j->parts;
    tarn__parallel_for(tasks, grain_of(j), is_f64(j) ? forward_tasks_f64 : forward_tasks_f32, j);
}

static tarn__plan_status prepare_attention(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, false);
}

static void kernel_attention(const tarn__call *call)
{
    job j = bind(call);
    run_forward(call, &j);
}

/* The same with k and v as the KV cache stores them: q, k, v, lengths, then the scales of k and v where these are
 * quantized. */
static tarn__plan_status prepare_attention_quant_kv(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(call, false, j);
    j->k = quant_tensor4_of(call->in[1], call->in[4]);
    j->v = quant_tensor4_of(call->in[2], call->in[5]);
    plan->scratch_bytes = lay_out_scratch(j);
    return TARN__PLAN_READY;
}

static void kernel_attention_quant_kv(const tarn__call *call)
{
    job j = bind(call);
    bind4(&j.k, call->in[1], call->in[4]), bind4(&j.v, call->in[2], call->in[5]);
    run_forward(call, &j);
}

static tarn__plan_status prepare_attention_grad(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, true);
}

/* Parallel over tasks, then over keys where parts must be summed. */
static void kernel_attention_grad(const tarn__call *call)
{
    job j = bind(call);
    bind4(&j.lse, call->in[5], NULL), bind4(&j.g, call->in[6], NULL);
    bind4(&j.gq, call->out[0], NULL), bind4(&j.gk, call->out[1], NULL), bind4(&j.gv, call->out[2], NULL);
    int64_t units = j.batches * j.kv_heads;
    tarn__parallel_for(units * j.parts, grain_of(&j), is_f64(&j) ? backward_tasks_f64 : backward_tasks_f32, &j);
    if (j.parts > 1)
        tarn__parallel_for(units * j.keys, (ROWS_GRAIN + j.padded_dim * j.parts) / (j.padded_dim * j.parts + 1),
                           is_f64(&j) ? sum_parts_f64 : sum_parts_f32, &j);
}

void TARN__AT_LEVEL(tarn__cpu_register_attention)(tarn__kernel_row *rows)
{
    rows[TARN__K_attention] = tarn__row_planned(prepare_attention, kernel_attention, TARN__FLOATS);
    rows[TARN__K_attention_quant_kv] =
        tarn__row_planned(prepare_attention_quant_kv, kernel_attention_quant_kv, TARN__FLOATS | TARN__BIT(TARN_U8));
    rows[TARN__K_attention_grad] = tarn__row_planned(prepare_attention_grad, kernel_attention_grad, TARN__FLOATS);
    rows[TARN__K_attention_documents] = rows[TARN__K_attention];
    rows[TARN__K_attention_documents_grad] = rows[TARN__K_attention_grad];
}

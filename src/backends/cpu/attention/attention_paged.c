/* attention_paged.c: attention over a paged KV cache, for the rows of many sequences at once: decode rows and rows of
 * prompt chunks in one call.
 *
 * q is (tokens, H, D), the rows of all sequences one after the other; k and v are (pages, PAGE, KV, D), floats or
 * quantized rows with scales; the page table (sequences, pages of one) says where the keys of a sequence are. A task is
 * a block of rows of one sequence with the query heads of one KV head, which share its keys. It walks the pages of its
 * rows in order: scores of a page, online softmax, weighted values.
 *
 * Batch invariance: a row's result depends on its query and its own keys alone. Pages are the only cuts of the keys,
 * and a page is always computed in full width: a dot product runs over D in order, a weighted sum over the keys of a
 * page in order, whatever the number of rows (attention_gemm.inc). A page that a row does not see leaves the row's
 * state as it is.
 *
 *   FLOPs     4 · H · D per pair of row and key
 *   scratch   first task of each sequence; per thread packed keys and values of a page, and a block of rows */
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/rows.h"
#include "backends/cpu/common/scalar_math_special.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/common/transpose4.h"
#include "base/quant/quant.h"

#define PAGE TARN__KV_PAGE
#define STRIP 64
#define MAX_PANEL 32
#define TASK_ROWS 64                 /* rows times query heads of a task, unless one row has more heads */
#define DEPTH_BLOCK 256              /* terms of a dot product per pass over a tile */
#define TASK_WORK (INT64_C(1) << 17) /* multiplications that are worth a task */

/* Rows of a register tile, as in attention.c. */
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

/* Keys or values: (pages, PAGE, KV, D), and f16 scales (pages, PAGE, KV, groups) of quantized rows. */
typedef struct page_tensor {
    tarn_dtype dtype;
    int64_t size; /* of an element, in bytes */
    int64_t stride[4], scale_stride[4];
    /* addresses */
    const char *base, *scale; /* scale NULL: not quantized */
} page_tensor;

/* One call. A plan has none of the addresses. */
typedef struct job {
    int64_t tokens, heads, kv_heads, group, head_dim, sequences, table_pages, pages;
    double scale, softcap;
    int64_t window;
    page_tensor k, v;
    int64_t task_rows;  /* rows of a task */
    int64_t line_rows;  /* rows times heads of a task, rounded up to whole tiles */
    int64_t padded_dim; /* D rounded up to whole tiles */
    size_t first_task_offset;
    slots slots;
    /* addresses */
    const tarn__view *q, *y;
    const tarn__view *table, *starts, *lengths; /* i32 */
    int64_t *first_task;                        /* (sequences + 1): row blocks before those of a sequence */
} job;

static int64_t element_of(const tarn__view *view, int64_t at)
{
    return ((const int32_t *)tarn__view_at(view))[at * view->stride[0]];
}

static int64_t page_at(const job *j, int64_t sequence, int64_t at)
{
    const tarn__view *t = j->table;
    return ((const int32_t *)tarn__view_at(t))[sequence * t->stride[0] + at * t->stride[1]];
}

/* Rows of one sequence within a task, and the keys that they see. */
typedef struct block {
    int64_t sequence, head;   /* of k and v */
    int64_t first, rows;      /* in q */
    int64_t position;         /* of the first row; negative: rows before the sequence's first key see none */
    int64_t from_page, pages; /* no row sees a key of another page */
} block;

/* Keys [first, end) that the row at a position sees. */
typedef struct key_range {
    int64_t first, end;
} key_range;

static key_range keys_of(const job *j, int64_t position)
{
    int64_t end = max_i64(position + 1, 0);
    return (key_range){j->window > 0 ? max_i64(end - j->window, 0) : 0, end};
}

static block block_of(const job *j, int64_t task)
{
    int64_t at = task / j->kv_heads, low = 0, high = j->sequences;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(j->first_task[middle] <= at ? &low : &high) = middle;
    }
    int64_t start = element_of(j->starts, low), end = element_of(j->starts, low + 1);
    block b = {.sequence = low, .head = task % j->kv_heads};
    b.first = start + (at - j->first_task[low]) * j->task_rows;
    b.rows = min_i64(end - b.first, j->task_rows);
    b.position = element_of(j->lengths, low) - (end - b.first);
    b.from_page = keys_of(j, b.position).first / PAGE;
    b.pages = (keys_of(j, b.position + b.rows - 1).end + PAGE - 1) / PAGE;
    return b;
}

/* Prefetches the rows of one head in a page: they are as far apart as all heads are wide, which no hardware follows. */
static void prefetch_rows(const job *j, const page_tensor *p, int64_t page, int64_t head)
{
    const char *row = p->base + (page * p->stride[0] + head * p->stride[2]) * p->size;
    for (int64_t key = 0; key < PAGE; key++, row += p->stride[1] * p->size)
        for (int64_t at = 0; at < j->head_dim * p->size; at += 64)
            __builtin_prefetch(row + at);
}

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)

#define T float
#define EXP tarn__exp_f32
#define TANH tarn__tanh_f32
#define COMPUTE COMPUTE_F32
#define NATIVE TARN_F32
#define SQUARE 4
#define NAMED(x) x##_f32
#include "backends/cpu/attention/attention_paged.inc"

#define T double
#define EXP tarn__exp_f64
#define TANH tarn__tanh_f64
#define COMPUTE COMPUTE_F64
#define NATIVE TARN_F64
#define SQUARE 2
#define NAMED(x) x##_f64
#include "backends/cpu/attention/attention_paged.inc"

/* ---- planning ---------------------------------------------------------------------------------------------------- */

static page_tensor page_tensor_of(const tarn__view *view, const tarn__view *scale)
{
    page_tensor p = {.dtype = view->dtype, .size = (int64_t)tarn__dtype_bytes(view->dtype)};
    for (int i = 0; i < 4; i++) {
        p.stride[i] = view->stride[i];
        p.scale_stride[i] = scale ? scale->stride[i] : 0;
    }
    return p;
}

/* Inputs q, k, v, table, row starts, lengths, scales of k and of v. */
static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    const tarn__attention *params = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *table = call->in[3];
    bool is_f64 = q->dtype == TARN_F64;
    *j = (job){.tokens = q->shape[0],
               .heads = q->shape[1],
               .kv_heads = k->shape[2],
               .group = q->shape[1] / k->shape[2],
               .head_dim = q->shape[2],
               .sequences = table->shape[0],
               .table_pages = table->shape[1],
               .pages = k->shape[0],
               .scale = params->scale,
               .softcap = params->softcap,
               .window = params->window,
               .k = page_tensor_of(k, call->in[6]),
               .v = page_tensor_of(call->in[2], call->in[7])};
    j->task_rows = max_i64(TASK_ROWS / j->group, 1);
    j->line_rows = round_up(j->task_rows * j->group, TILE_ROWS);
    j->padded_dim = round_up(j->head_dim, 2 * VECTOR_BYTES / (is_f64 ? 8 : 4));
    arena c = {0};
    int64_t tasks = (j->tokens / j->task_rows + j->sequences) * j->kv_heads;
    j->first_task_offset = arena_reserve(&c, sizeof(int64_t) * (size_t)(j->sequences + 1));
    j->slots = arena_slots(&c, is_f64 ? slot_bytes_f64(j) : slot_bytes_f32(j), slot_count(tasks));
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static void check(tarn__fault *fault, int64_t value, int64_t low, int64_t high)
{
    if (!fault->raised && (value < low || value > high))
        *fault = (tarn__fault){1, fault->function, value, high};
}

/* Row starts that do not rise, lengths beyond the table and pages that do not exist are found before any thread
 * starts. Pages before every row's window may be anything: their memory is free. */
static bool check_operands(const job *j, tarn__fault *fault)
{
    for (int64_t s = 0; s < j->sequences && !fault->raised; s++) {
        int64_t start = element_of(j->starts, s), end = element_of(j->starts, s + 1),
                length = element_of(j->lengths, s);
        check(fault, start, 0, j->tokens);
        check(fault, end, start, j->tokens);
        check(fault, length, 0, j->table_pages * PAGE);
        if (fault->raised || start == end)
            continue;
        int64_t first = keys_of(j, length - (end - start)).first / PAGE;
        for (int64_t at = first; at * PAGE < length; at++)
            check(fault, page_at(j, s, at), 0, j->pages - 1);
    }
    return !fault->raised;
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

/* Cuts the rows of every sequence into tasks. Returns the multiplications of all. */
static double cut_tasks(const job *j)
{
    double work = 0;
    j->first_task[0] = 0;
    for (int64_t s = 0; s < j->sequences; s++) {
        int64_t rows = element_of(j->starts, s + 1) - element_of(j->starts, s), keys = element_of(j->lengths, s);
        j->first_task[s + 1] = j->first_task[s] + (rows + j->task_rows - 1) / j->task_rows;
        work += (double)rows * (double)(j->window > 0 ? min_i64(keys, j->window) : keys);
    }
    return work * (double)(j->heads * j->head_dim);
}

/* Rows of no sequence are 0. */
static void clear_rows(const job *j, int64_t begin, int64_t end)
{
    const double zero = 0;
    const tarn__view *y = j->y;
    for (int64_t at = begin * j->heads * j->head_dim; at < end * j->heads * j->head_dim; at++) {
        int64_t d = at % j->head_dim, head = at / j->head_dim % j->heads, row = at / j->head_dim / j->heads;
        char *to = (char *)tarn__view_at(y) +
                   (row * y->stride[0] + head * y->stride[1] + d * y->stride[2]) * (int64_t)tarn__dtype_bytes(y->dtype);
        tarn__store[y->dtype][COMPUTE_F64](&zero, to, 1, 1);
    }
}

static void bind_pages(page_tensor *p, const tarn__view *view, const tarn__view *scale)
{
    p->base = tarn__view_at(view);
    p->scale = scale ? tarn__view_at(scale) : NULL;
}

static void kernel_attention_paged(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    j.q = call->in[0], j.table = call->in[3], j.starts = call->in[4], j.lengths = call->in[5], j.y = call->out[0];
    bind_pages(&j.k, call->in[1], call->in[6]);
    bind_pages(&j.v, call->in[2], call->in[7]);
    j.first_task = (int64_t *)(void *)((char *)call->scratch + j.first_task_offset);
    slots_init(&j.slots, call->scratch);
    if (!check_operands(&j, call->fault))
        return;
    double work = cut_tasks(&j);
    int64_t tasks = j.first_task[j.sequences] * j.kv_heads;
    clear_rows(&j, 0, j.sequences > 0 ? element_of(j.starts, 0) : j.tokens);
    clear_rows(&j, j.sequences > 0 ? element_of(j.starts, j.sequences) : j.tokens, j.tokens);
    int64_t grain = (int64_t)((double)TASK_WORK * (double)tasks / (work + 1)) + 1;
    tarn__parallel_for(tasks, grain, j.q->dtype == TARN_F64 ? run_tasks_f64 : run_tasks_f32, &j);
}

void TARN__AT_LEVEL(tarn__cpu_register_attention_paged)(tarn__kernel_row *rows)
{
    rows[TARN__K_attention_paged] =
        tarn__row_planned(prepare, kernel_attention_paged, TARN__FLOATS | TARN__BIT(TARN_U8));
}

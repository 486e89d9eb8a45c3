/* sort.c: sort and topk along an axis.
 *
 * Elements become unsigned keys in the requested order: NaN the largest, -0 and 0 equal, all bits inverted when
 * descending. Pairs of key and index are sorted by key, stably; values are gathered by index, so that their bits are
 * preserved.
 *
 * Long rows use an LSD radix sort with 8-bit digits, short ones insertion sort. A small topk keeps the k best of a
 * row in a heap with the worst on top; a large one sorts the row. Rows are independent tasks; each running task
 * uses one of as many scratch slots as there are threads.
 *
 * Cost per row of n elements: one pass per byte of the dtype that differs, or n log k comparisons at worst with the
 * heap. Scratch: 32 bytes per element of a row and thread, or 16 per result with the heap. */
#include <stdatomic.h>
#include <string.h>

#include "backends/cpu/runtime/level.h"

#define GRAIN 8192      /* elements per task */
#define TILE 256        /* keys computed at a time */
#define INSERTION 40    /* rows up to this length use insertion sort */
#define HEAP_DIVISOR 16 /* the heap is used where k is at most 1 / 16 of the row */
#define MAX_SLOTS 256

/* 16 bytes per element while sorting. */
typedef struct pair {
    uint64_t key;
    int64_t index;
} pair;

/* How a dtype's bits become a key. */
typedef struct order {
    int size;          /* bytes */
    uint64_t sign;     /* sign bit; 0: unsigned */
    uint64_t infinity; /* bits of infinity, 0 for integers: larger magnitudes are NaN */
    uint64_t flip;     /* all bits of the dtype when descending, else 0 */
} order;

/* One call; slots are acquired with an atomic flag each. run() sets addresses in a copy of the plan's. */
typedef struct sort_job {
    tarn__nest nest; /* x, values, indices across the axis */
    order order;
    char *x, *values; /* values and indices may be NULL */
    int64_t *indices;
    int64_t length, taken; /* of x and of the results along the axis */
    int64_t x_step, values_step, indices_step;
    bool heap;
    char *scratch;
    int64_t slots, slot_bytes;
    atomic_flag *slot_in_use; /* (slots) */
} sort_job;

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Unsigned dtypes have no sign bit; bool counts as u8. */
static order order_of(tarn_dtype dtype, bool descending)
{
    order o = {.size = (int)tarn__dtype_bytes(dtype)};
    uint64_t all = UINT64_MAX >> (64 - 8 * o.size);
    o.sign = dtype == TARN_U8 || dtype == TARN_BOOL ? 0 : all / 2 + 1;
    o.infinity = dtype == TARN_F32    ? 0x7f800000u
                 : dtype == TARN_F64  ? UINT64_C(0x7ff0000000000000)
                 : dtype == TARN_BF16 ? 0x7f80u
                 : dtype == TARN_F16  ? 0x7c00u
                                      : 0;
    o.flip = descending ? all : 0;
    return o;
}

/* Negative floats grow with falling bits: theirs are inverted; everything else moves above them. */
static uint64_t key_of(const order *o, uint64_t bits)
{
    if (o->infinity) {
        uint64_t magnitude = bits & (o->sign - 1);
        if (magnitude > o->infinity)
            return (o->sign | (o->sign - 1)) ^ o->flip;
        if (magnitude == 0)
            return o->sign ^ o->flip;
        if (bits & o->sign)
            return (~bits & (o->sign | (o->sign - 1))) ^ o->flip;
    }
    return (bits ^ o->sign) ^ o->flip;
}

static void load_keys(const order *o, const char *from, int64_t step, int64_t n, uint64_t *keys)
{
    const order local = *o;
#define LOAD(type) \
    for (int64_t i = 0; i < n; i++) \
        keys[i] = key_of(&local, ((const type *)from)[i * step]);
    if (o->size == 4) {
        LOAD(uint32_t)
    } else if (o->size == 2) {
        LOAD(uint16_t)
    } else if (o->size == 8) {
        LOAD(uint64_t)
    } else {
        LOAD(uint8_t)
    }
#undef LOAD
}

/* ---- sorting a row ----------------------------------------------------------------------------------------------- */

/* Stable; fastest for short rows. */
static void insertion_sort(pair *row, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        pair one = row[i];
        int64_t k = i;
        for (; k > 0 && row[k - 1].key > one.key; k--)
            row[k] = row[k - 1];
        row[k] = one;
    }
}

/* One radix pass, stable by the digit at `shift`; `at` has the digit counts and is consumed. False, without moving
 * anything, where all digits are equal. */
static bool move_by_digit(const pair *from, pair *to, int64_t n, int shift, int64_t *at)
{
    /* Common for small integers and for equal exponents: the pass is skipped. */
    if (at[(from[0].key >> shift) & 255] == n)
        return false;
    int64_t next = 0;
    for (int d = 0; d < 256; d++) {
        int64_t count = at[d];
        at[d] = next;
        next += count;
    }
    for (int64_t i = 0; i < n; i++)
        to[at[(from[i].key >> shift) & 255]++] = from[i];
    return true;
}

/* Sorts n pairs with `spare` space for n more. Returns the one that holds the result. */
static pair *sort_pairs(pair *row, pair *spare, int64_t n, int digits)
{
    if (n <= INSERTION) {
        insertion_sort(row, n);
        return row;
    }
    int64_t counts[8][256];
    memset(counts, 0, sizeof(counts[0]) * (size_t)digits);
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < digits; d++)
            counts[d][(row[i].key >> (8 * d)) & 255]++;
    for (int d = 0; d < digits; d++)
        if (move_by_digit(row, spare, n, 8 * d, counts[d])) {
            pair *swapped = row;
            row = spare;
            spare = swapped;
        }
    return row;
}

/* Keys of the whole row, sorted. `pairs` has space for twice the row. */
static const pair *sorted_row(const sort_job *job, const char *x, pair *pairs)
{
    uint64_t keys[TILE];
    for (int64_t i = 0; i < job->length; i += TILE) {
        int64_t n = job->length - i < TILE ? job->length - i : TILE;
        load_keys(&job->order, x + i * job->x_step * job->order.size, job->x_step, n, keys);
        for (int64_t k = 0; k < n; k++)
            pairs[i + k] = (pair){keys[k], i + k};
    }
    return sort_pairs(pairs, pairs + job->length, job->length, job->order.size);
}

/* ---- the k best of a row ----------------------------------------------------------------------------------------- */

/* Order of the heap: by key, then by index, so that ties keep the earlier element. */
static bool comes_after(pair a, pair b)
{
    return a.key > b.key || (a.key == b.key && a.index > b.index);
}

/* Replaces the top of a heap of n by `one` and sifts it down. */
static void sift_down(pair *heap, int64_t n, pair one)
{
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && comes_after(heap[child + 1], heap[child]))
            child++;
        if (!comes_after(heap[child], one))
            break;
        heap[i] = heap[child];
    }
    heap[i] = one;
}

static void sift_up(pair *heap, int64_t i, pair one)
{
    for (; i > 0 && comes_after(one, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = one;
}

/* An element equal to the worst one kept comes later in the row, so only a smaller key replaces it. */
static const pair *top_k_of_row(const sort_job *job, const char *x, pair *heap)
{
    uint64_t keys[TILE];
    int64_t count = 0, k = job->taken;
    for (int64_t i = 0; i < job->length; i += TILE) {
        int64_t n = job->length - i < TILE ? job->length - i : TILE;
        load_keys(&job->order, x + i * job->x_step * job->order.size, job->x_step, n, keys);
        for (int64_t j = 0; j < n; j++)
            if (count < k)
                sift_up(heap, count++, (pair){keys[j], i + j});
            else if (keys[j] < heap[0].key)
                sift_down(heap, k, (pair){keys[j], i + j});
    }
    for (int64_t last = k - 1; last > 0; last--) {
        pair worst = heap[0];
        sift_down(heap, last, heap[last]);
        heap[last] = worst;
    }
    return heap;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The first `taken` pairs: indices, and values gathered from x. */
static void write_row(const sort_job *job, const pair *sorted, const char *x, char *values, int64_t *indices)
{
    if (job->indices)
        for (int64_t i = 0; i < job->taken; i++)
            indices[i * job->indices_step] = sorted[i].index;
    if (!job->values)
        return;
#define MOVE(type) \
    for (int64_t i = 0; i < job->taken; i++) \
        ((type *)values)[i * job->values_step] = ((const type *)x)[sorted[i].index * job->x_step];
    if (job->order.size == 4) {
        MOVE(uint32_t)
    } else if (job->order.size == 2) {
        MOVE(uint16_t)
    } else if (job->order.size == 8) {
        MOVE(uint64_t)
    } else {
        MOVE(uint8_t)
    }
#undef MOVE
}

static int64_t acquire_slot(const sort_job *job)
{
    for (int64_t i = 0;; i = (i + 1) % job->slots)
        if (!atomic_flag_test_and_set_explicit(&job->slot_in_use[i], memory_order_acquire))
            return i;
}

/* A range of rows on one slot. */
static void row_range(int64_t begin, int64_t end, void *ctx)
{
    const sort_job *job = ctx;
    int64_t slot = acquire_slot(job);
    pair *pairs = (pair *)(job->scratch + slot * job->slot_bytes);
    for (int64_t row = begin; row < end; row++) {
        int64_t offset[3] = {0}, rest = row;
        for (int i = job->nest.rank - 1; i >= 0; i--) {
            for (int k = 0; k < 3; k++)
                offset[k] += rest % job->nest.shape[i] * job->nest.stride[k][i];
            rest /= job->nest.shape[i];
        }
        const char *x = job->x + offset[0] * job->order.size;
        write_row(job, job->heap ? top_k_of_row(job, x, pairs) : sorted_row(job, x, pairs), x,
                  job->values ? job->values + offset[1] * job->order.size : NULL,
                  job->indices ? job->indices + offset[2] : NULL);
    }
    atomic_flag_clear_explicit(&job->slot_in_use[slot], memory_order_release);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* sort and topk share everything: topk takes fewer results. One slot per thread, at most one per row. */
static tarn__plan_status prepare_sort(const tarn__call *call, tarn__plan *plan)
{
    const tarn__along *along = call->params;
    const tarn__view *x = call->in[0], *values = call->out[0], *indices = call->outputs > 1 ? call->out[1] : NULL;
    int axis = along->axis;
    sort_job *job = tarn__plan_reserve(plan, sizeof(*job));
    if (!job)
        return TARN__PLAN_FAILED;
    *job = (sort_job){.order = order_of(x->dtype, along->reverse != 0),
                      .length = tarn__axis_size(x, axis),
                      .taken = tarn__axis_size(values ? values : indices, axis),
                      .x_step = tarn__axis_stride(x, axis),
                      .values_step = tarn__axis_stride(values, axis),
                      .indices_step = tarn__axis_stride(indices, axis)};
    if (job->length == 0 || job->taken == 0)
        return TARN__PLAN_READY;
    job->heap = job->taken <= job->length / HEAP_DIVISOR;
    tarn__view across[] = {tarn__view_across(x, axis, x), values ? tarn__view_across(values, axis, values) : *x,
                           indices ? tarn__view_across(indices, axis, indices) : *x};
    tarn__nest_make(&job->nest, 3,
                    (const tarn__view *[]){&across[0], values ? &across[1] : NULL, indices ? &across[2] : NULL});
    int64_t rows = tarn__view_count(x) / job->length, threads = tarn_threads();
    threads = threads < MAX_SLOTS ? threads : MAX_SLOTS;
    job->slots = rows < threads ? rows : threads;
    job->slot_bytes = (int64_t)sizeof(pair) * (job->heap ? job->taken : 2 * job->length);
    plan->scratch_bytes = (size_t)(job->slot_bytes * job->slots);
    return TARN__PLAN_READY;
}

static void kernel_sort(const tarn__call *call)
{
    const tarn__view *values = call->out[0], *indices = call->outputs > 1 ? call->out[1] : NULL;
    sort_job job = *(const sort_job *)tarn__plan_job(call->plan);
    atomic_flag slot_in_use[MAX_SLOTS];
    if (job.length == 0 || job.taken == 0)
        return;
    job.x = tarn__view_at(call->in[0]);
    job.values = values ? tarn__view_at(values) : NULL;
    job.indices = indices ? tarn__view_at(indices) : NULL;
    job.scratch = call->scratch;
    job.slot_in_use = slot_in_use;
    for (int64_t i = 0; i < job.slots; i++)
        atomic_flag_clear_explicit(&slot_in_use[i], memory_order_relaxed);
    int64_t grain = GRAIN / job.length;
    tarn__parallel_for(job.nest.count, grain > 0 ? grain : 1, row_range, &job);
}

void TARN__AT_F64_LEVEL(tarn__cpu_register_sort)(tarn__kernel_row *rows)
{
    rows[TARN__K_sort] = rows[TARN__K_topk] = tarn__row_planned(prepare_sort, kernel_sort, TARN__ALL);
}

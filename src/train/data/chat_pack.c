/* chat_pack.c: the split into training and validation, and packing of documents into rows.
 *
 * Best-fit decreasing: the longest documents first, each into the row with the least sufficient free capacity, or into
 * a new row. Documents of equal length keep the order of the split, so rows depend on lengths and seed alone. Rows with
 * equal free capacity are in a list, and a bitmap finds the next capacity: O(count x context / 64) at worst. */
#include "base/error.h"
#include "base/memory.h"
#include "data/random.h"
#include "train/data/chat_dataset.h"

#define SPLIT_EPOCH (-1) /* of the shuffle that splits the documents; row orders use epochs from 0 */

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Singly linked lists of row and document numbers; -1 ends a list. Indices of documents are positions in the sorted
 * list. */
typedef struct packing {
    int64_t context, count, rows;
    int64_t *with_capacity; /* [context + 1]: first row with that free capacity */
    int64_t *next_row;      /* [count]: next row with the same free capacity */
    int64_t *last_in_row;   /* [count]: last document of a row */
    int64_t *before;        /* [count]: previous document of the same row */
    int64_t *row_of;        /* [count] */
    uint64_t *has_rows;     /* bitmap over capacities: some row has it */
    void *memory;           /* owned: all arrays above */
    size_t bytes;
} packing;

static bool packing_open(packing *p, int64_t context, int64_t count)
{
    int64_t words = context / 64 + 1, elements = context + 1 + 4 * count + words;
    *p = (packing){.context = context, .count = count, .bytes = sizeof(int64_t) * (size_t)elements};
    int64_t *at = p->memory = tarn__alloc(p->bytes);
    if (!at)
        return false;
    p->with_capacity = at;
    p->next_row = p->with_capacity + context + 1;
    p->last_in_row = p->next_row + count;
    p->before = p->last_in_row + count;
    p->row_of = p->before + count;
    p->has_rows = (uint64_t *)(p->row_of + count);
    for (int64_t capacity = 0; capacity <= context; capacity++)
        p->with_capacity[capacity] = -1;
    return true;
}

/* Smallest free capacity of any row that is at least `length`; -1: none. */
static int64_t find_capacity(const packing *p, int64_t length)
{
    for (int64_t word = length / 64; word <= p->context / 64; word++) {
        uint64_t bits = p->has_rows[word] & (word == length / 64 ? ~UINT64_C(0) << length % 64 : ~UINT64_C(0));
        for (int bit = 0; bits && bit < 64; bit++)
            if (bits >> bit & 1)
                return 64 * word + bit;
    }
    return -1;
}

/* Adds a row to the list of its free capacity. */
static void list_row(packing *p, int64_t row, int64_t capacity)
{
    p->next_row[row] = p->with_capacity[capacity];
    p->with_capacity[capacity] = row;
    p->has_rows[capacity / 64] |= UINT64_C(1) << capacity % 64;
}

/* Removes the first row of a list and returns it. */
static int64_t unlist_row(packing *p, int64_t capacity)
{
    int64_t row = p->with_capacity[capacity];
    p->with_capacity[capacity] = p->next_row[row];
    if (p->with_capacity[capacity] < 0)
        p->has_rows[capacity / 64] &= ~(UINT64_C(1) << capacity % 64);
    return row;
}

static void pack_document(packing *p, int64_t at, int64_t length)
{
    int64_t capacity = find_capacity(p, length), row = capacity < 0 ? p->rows++ : unlist_row(p, capacity);
    p->before[at] = capacity < 0 ? -1 : p->last_in_row[row];
    p->last_in_row[row] = at;
    p->row_of[at] = row;
    list_row(p, row, (capacity < 0 ? p->context : capacity) - length);
}

/* Counting sort by length, longest first, stable. False without memory. */
static bool sort_by_length(const tarn__chat_dataset *c, const int64_t *from, int64_t *to, int64_t count)
{
    size_t bytes = sizeof(int64_t) * (size_t)(c->context + 2);
    int64_t *first = tarn__alloc(bytes);
    if (!first)
        return false;
    for (int64_t i = 0; i < count; i++)
        first[c->context - tarn__chat_document_at(c, from[i])->length + 1]++;
    for (int64_t shorter = 1; shorter <= c->context; shorter++)
        first[shorter] += first[shorter - 1];
    for (int64_t i = 0; i < count; i++)
        to[first[c->context - tarn__chat_document_at(c, from[i])->length]++] = from[i];
    tarn__release(first, bytes);
    return true;
}

/* Lists the documents row by row, in the order of packing: from last to first by the `before` links. */
static void list_rows(const packing *p, const int64_t *sorted, tarn__chat_split *s)
{
    for (int64_t at = 0; at < p->count; at++)
        s->row_first[p->row_of[at] + 1]++;
    for (int64_t row = 0; row < p->rows; row++)
        s->row_first[row + 1] += s->row_first[row];
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t at = p->last_in_row[row], to = s->row_first[row + 1] - 1; at >= 0; at = p->before[at], to--)
            s->documents[to] = sorted[at];
    s->rows = p->rows;
}

/* Packs the listed documents. The split owns its arrays, also after a failure. False without memory. */
static bool pack(const tarn__chat_dataset *c, const int64_t *list, int64_t count, tarn__chat_split *s)
{
    packing p = {0};
    size_t bytes = sizeof(int64_t) * (size_t)count;
    int64_t *sorted = tarn__alloc(bytes);
    s->count = count;
    s->documents = tarn__alloc(bytes);
    s->row_first = tarn__alloc(bytes + sizeof(int64_t));
    bool good = sorted && s->documents && s->row_first && sort_by_length(c, list, sorted, count) &&
                packing_open(&p, c->context, count);
    for (int64_t at = 0; good && at < count; at++)
        pack_document(&p, at, tarn__chat_document_at(c, sorted[at])->length);
    if (good)
        list_rows(&p, sorted, s);
    tarn__release(p.memory, p.bytes);
    tarn__release(sorted, bytes);
    return good;
}

/* ---- the split --------------------------------------------------------------------------------------------------- */

/* Documents for validation: the fraction, rounded, but at least one and not all; 0 for a fraction of 0. */
static int64_t val_count_of(int64_t count, double fraction)
{
    int64_t val_count = (int64_t)(fraction * (double)count + 0.5);
    if (fraction == 0)
        return 0;
    return val_count < 1 ? 1 : val_count >= count ? count - 1 : val_count;
}

bool tarn__chat_pack(tarn__chat_dataset *c, double val_fraction)
{
    int64_t all = (int64_t)c->documents.count, count = c->first_val_document,
            val_count = val_count_of(count, val_fraction);
    size_t bytes = sizeof(int64_t) * (size_t)all;
    if (val_fraction > 0 && count < 2)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the data has one document; val_fraction needs at least 2",
                           c->function);
    int64_t *order = tarn__alloc(bytes);
    if (!order)
        return false;
    tarn__shuffled(tarn__epoch_keys_of(c->seed, SPLIT_EPOCH).order, order, count);
    for (int64_t i = count; i < all; i++)
        order[i] = i;
    bool good = pack(c, order + val_count, count - val_count, &c->split[TARN__CHAT_TRAINING]);
    /* validation documents: those of their own file, or the first of the order */
    int64_t first = all > count ? count : 0;
    if (good && (val_count > 0 || all > count))
        good = pack(c, order + first, all > count ? all - count : val_count, &c->split[TARN__CHAT_VALIDATION]);
    tarn__release(order, bytes);
    return good;
}

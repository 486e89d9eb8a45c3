/* samples.c: samples of a language model's dataset: windows of text, in order or at random, and packed rows of chats.
 * Both are datasets like any other, so that the loader draws, transfers and resumes them. A sample is a function of its
 * index and the random state it is drawn with: prefetch workers read in any order. */
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "train/data/chat_dataset.h"
#include "train/data/corpus.h"

#define IGNORED (-100) /* ignored target, as in PyTorch */

/* ---- windows of text ----------------------------------------------------------------------------------------------
 */

/* Context of a dataset of windows, owned by it. Read-only, so prefetch workers share it. */
typedef struct windows {
    tarn__token_span span;
    int64_t context;
    int64_t total, count; /* in order: number of windows, and of samples */
} windows;

static bool read_ids(const tarn__token_span *span, int64_t position, int64_t count, int32_t *ids)
{
    if (span->mapped)
        return tarn_tokens_read(span->mapped, position, count, ids);
    memcpy(ids, span->ids + position, sizeof(*ids) * (size_t)count);
    return true;
}

/* Writes the window at `position`: `count` tokens and their successors as targets; padding has ignored targets. */
static bool write_window(const windows *w, int64_t position, int64_t count, void *const *memory)
{
    int32_t *tokens = memory[0], *targets = memory[1];
    for (int64_t i = count; i < w->context; i++) {
        tokens[i] = 0;
        targets[i] = IGNORED;
    }
    return read_ids(&w->span, position, count, tokens) && read_ids(&w->span, position + 1, count, targets);
}

static bool get_in_order(int64_t index, void *const *memory, void *ctx)
{
    const windows *w = ctx;
    int64_t number = w->count < w->total ? (int64_t)((double)index * (double)w->total / (double)w->count) : index;
    int64_t position = number * w->context, left = w->span.count - 1 - position;
    return write_window(w, position, left < w->context ? left : w->context, memory);
}

/* tarn__windows_draw() draws the position and writes the window. */
static bool get_nothing(int64_t index, void *const *memory, void *ctx)
{
    (void)index, (void)memory, (void)ctx;
    return true;
}

bool tarn__windows_draw(int64_t index, tarn_random_state *random, void *const *memory, void *ctx)
{
    const windows *w = ctx;
    (void)index;
    return write_window(w, tarn_random_below(random, w->span.count - w->context), w->context, memory);
}

void *tarn__windows_ctx(const tarn_dataset *dataset)
{
    return dataset->ctx;
}

static void free_windows(void *ctx)
{
    tarn__release(ctx, sizeof(windows));
}

static tarn_dataset *create_windows(const char *function, const windows *values, int64_t count, tarn_get_fn get)
{
    tarn_field fields[] = {{"tokens", TARN_I32, TARN_SHAPE(values->context)},
                           {"targets", TARN_I32, TARN_SHAPE(values->context)}};
    windows *w = tarn__alloc(sizeof(*w));
    if (!w)
        return NULL;
    *w = *values;
    return tarn__dataset_new(function, fields, 2, count, get, w, free_windows);
}

static bool check_count(const char *function, const tarn__token_span *span, int64_t min_tokens, const char *purpose)
{
    return span->count >= min_tokens ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: %lld tokens %s; at least %lld are needed: give more text, or a smaller context", function,
                       (long long)span->count, purpose, (long long)min_tokens);
}

tarn_dataset *tarn__windows_in_order(const char *function, const tarn__token_span *span, int64_t context,
                                     int64_t max_windows)
{
    if (tarn_failed() || !check_count(function, span, 2, "for validation"))
        return NULL;
    int64_t total = (span->count - 1 + context - 1) / context;
    windows w = {*span, context, total, max_windows > 0 && max_windows < total ? max_windows : total};
    return create_windows(function, &w, w.count, get_in_order);
}

tarn_dataset *tarn__windows_at_random(const char *function, const tarn__token_span *span, int64_t context,
                                      int64_t count)
{
    if (tarn_failed() || !check_count(function, span, context + 1, "for training"))
        return NULL;
    return create_windows(function, &(windows){.span = *span, .context = context}, count, get_nothing);
}

/* ---- rows of chats ----------------------------------------------------------------------------------------------- */

typedef struct chat_rows {
    tarn__chat_dataset *chats; /* borrowed */
    int split;
    int64_t total, count; /* number of rows, and of samples */
    pthread_mutex_t lock; /* a dataset caches the order of its epoch: one thread at a time */
} chat_rows;

/* Row `index`; fewer samples than rows are spread evenly. After the last training row comes the next epoch's first. */
static bool get_row(int64_t index, void *const *memory, void *ctx)
{
    chat_rows *r = ctx;
    int64_t number = r->count < r->total ? (int64_t)((double)index * (double)r->total / (double)r->count) : index;
    tarn__chat_dataset_rows row = {memory[0], memory[1], memory[2], memory[3]};
    pthread_mutex_lock(&r->lock);
    bool good = tarn__chat_dataset_batch(r->chats, r->split, number, 1, &row);
    pthread_mutex_unlock(&r->lock);
    return good;
}

static void free_rows(void *ctx)
{
    chat_rows *r = ctx;
    pthread_mutex_destroy(&r->lock);
    tarn__release(r, sizeof(*r));
}

tarn_dataset *tarn__chat_samples(const char *function, tarn__chat_dataset *chats, int split, int64_t context,
                                 int64_t count)
{
    static const char *const names[] = {"tokens", "targets", "positions", "starts"};
    tarn__chat_dataset_summary summary;
    tarn_field fields[4];
    tarn__chat_dataset_counts(chats, &summary);
    if (tarn_failed())
        return NULL;
    if (summary.rows[split] < 1) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: no documents %s", function,
                    split == TARN__CHAT_TRAINING ? "for training"
                                                 : "for validation; give a larger val_fraction, or a file as val");
        return NULL;
    }
    for (int i = 0; i < 4; i++)
        fields[i] = (tarn_field){names[i], TARN_I32, TARN_SHAPE(context)};
    chat_rows *r = tarn__alloc(sizeof(*r));
    if (!r)
        return NULL;
    *r = (chat_rows){.chats = chats, .split = split, .total = summary.rows[split], .count = count};
    pthread_mutex_init(&r->lock, NULL);
    return tarn__dataset_new(function, fields, 4, count, get_row, r, free_rows);
}

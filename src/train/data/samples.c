/* samples.c: windows of a row of tokens as the samples of a dataset, in order or at random. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "train/data/corpus.h"

#define UNCOUNTED (-100) /* a target that does not count, as in PyTorch */

typedef struct windows {
    tarn__token_span stretch;
    int64_t context;
    int64_t all, given; /* in order: windows that there are, and those that are samples */
} windows;

static bool read_ids(const tarn__token_span *stretch, int64_t position, int64_t count, int32_t *ids)
{
    if (stretch->mapped)
        return tarn_tokens_read(stretch->mapped, position, count, ids);
    memcpy(ids, stretch->ids + position, sizeof(*ids) * (size_t)count);
    return true;
}

/* Writes the window from a place on: `count` tokens and what follows each; behind them what does not count. */
static bool write_window(const windows *w, int64_t position, int64_t count, void *const *memory)
{
    int32_t *tokens = memory[0], *targets = memory[1];
    for (int64_t i = count; i < w->context; i++) {
        tokens[i] = 0;
        targets[i] = UNCOUNTED;
    }
    return read_ids(&w->stretch, position, count, tokens) && read_ids(&w->stretch, position + 1, count, targets);
}

static bool get_in_order(int64_t index, void *const *memory, void *ctx)
{
    const windows *w = ctx;
    int64_t number = w->given < w->all ? (int64_t)((double)index * (double)w->all / (double)w->given) : index;
    int64_t position = number * w->context, left = w->stretch.count - 1 - position;
    return write_window(w, position, left < w->context ? left : w->context, memory);
}

/* The place is drawn, and the window written, by tarn__windows_draw(). */
static bool get_nothing(int64_t index, void *const *memory, void *ctx)
{
    (void)index, (void)memory, (void)ctx;
    return true;
}

bool tarn__windows_draw(int64_t index, tarn_random_state *random, void *const *memory, void *ctx)
{
    const windows *w = ctx;
    (void)index;
    return write_window(w, tarn_random_below(random, w->stretch.count - w->context), w->context, memory);
}

void *tarn__windows_ctx(const tarn_dataset *dataset)
{
    return dataset->ctx;
}

static void release(void *ctx)
{
    tarn__release(ctx, sizeof(windows));
}

static tarn_dataset *make(const char *function, const windows *values, int64_t count, tarn_get_fn get)
{
    tarn_field fields[] = {{"tokens", TARN_I32, TARN_SHAPE(values->context)},
                           {"targets", TARN_I32, TARN_SHAPE(values->context)}};
    windows *w = tarn__alloc(sizeof(*w));
    if (!w)
        return NULL;
    *w = *values;
    return tarn__dataset_new(function, fields, 2, count, get, w, release);
}

static bool check_count(const char *function, const tarn__token_span *stretch, int64_t least, const char *purpose)
{
    return stretch->count >= least ||
           tarn__raise(
               TARN_ERROR_FORMAT,
               "%s: there are %lld tokens %s, and at least %lld are needed; give more text or a smaller context",
               function, (long long)stretch->count, purpose, (long long)least);
}

tarn_dataset *tarn__windows_in_order(const char *function, const tarn__token_span *stretch, int64_t context,
                                     int64_t most)
{
    if (tarn_failed() || !check_count(function, stretch, 2, "to judge by"))
        return NULL;
    int64_t all = (stretch->count - 1 + context - 1) / context;
    windows w = {*stretch, context, all, most > 0 && most < all ? most : all};
    return make(function, &w, w.given, get_in_order);
}

tarn_dataset *tarn__windows_at_random(const char *function, const tarn__token_span *stretch, int64_t context,
                                      int64_t count)
{
    if (tarn_failed() || !check_count(function, stretch, context + 1, "to train on"))
        return NULL;
    return make(function, &(windows){.stretch = *stretch, .context = context}, count, get_nothing);
}

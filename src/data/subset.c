/* subset.c: samples of a dataset selected by indices, and random splits in two.
 *
 * A subset retains its dataset and copies no samples: it maps index i to an index of the dataset. */
#include <string.h>

#include "data/dataset.h"
#include "data/random.h"

typedef struct subset {
    tarn_dataset *whole; /* retained */
    int64_t count;
    int64_t index[]; /* [count], into `whole` */
} subset;

static size_t bytes_of(int64_t count)
{
    return sizeof(subset) + sizeof(int64_t) * (size_t)count;
}

static bool get(int64_t index, void *const *memory, void *ctx)
{
    const subset *s = ctx;
    return tarn__dataset_get(s->whole, s->index[index], memory);
}

static bool get_crop(int64_t index, tarn_random_state *random, double min_scale, void *const *memory, void *ctx)
{
    const subset *s = ctx;
    return s->whole->get_crop(s->index[index], random, min_scale, memory, s->whole->ctx);
}

static int64_t source(int64_t index, void *ctx)
{
    const subset *s = ctx;
    return s->whole->source ? s->whole->source(s->index[index], s->whole->ctx) : s->index[index];
}

static void release(void *ctx)
{
    subset *s = ctx;
    tarn_dataset_free(s->whole);
    tarn__release(s, bytes_of(s->count));
}

/* A subset; the indices are in range. The caller owns the result. NULL with an error. */
static tarn_dataset *select_samples(const char *function, tarn_dataset *dataset, const int64_t *indices, int64_t count)
{
    subset *s = tarn__alloc(bytes_of(count));
    if (!s)
        return NULL;
    s->whole = tarn__dataset_retain(dataset);
    s->count = count;
    if (count > 0)
        memcpy(s->index, indices, sizeof(int64_t) * (size_t)count);
    tarn_dataset *result = tarn__dataset_new(function, dataset->field, dataset->field_count, count, get, s, release);
    if (result && dataset->images) {
        result->images = dataset->images;
        result->get_crop = get_crop;
        result->source = source;
    }
    return result;
}

tarn_dataset *tarn_dataset_subset(tarn_dataset *dataset, const int64_t *indices, int64_t count)
{
    if (!tarn__check_dataset("dataset_subset", dataset))
        return NULL;
    if (count < 0 || count > INT64_MAX / 16 || (!indices && count > 0)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_subset: %lld indices%s", (long long)count,
                    indices ? "" : ", but the list is NULL");
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= dataset->count) {
            tarn__raise(TARN_ERROR_ARGUMENT, "dataset_subset: indices[%lld] is %lld; the dataset has %lld samples",
                        (long long)i, (long long)indices[i], (long long)dataset->count);
            return NULL;
        }
    return select_samples("dataset_subset", dataset, indices, count);
}

/* Checks the arguments of a split and clears both results, so that they are NULL after any failure. */
static bool check_split(tarn_dataset *dataset, int64_t first_count, tarn_dataset **first, tarn_dataset **second)
{
    if (first)
        *first = NULL;
    if (second)
        *second = NULL;
    if (!tarn__check_dataset("dataset_split", dataset))
        return false;
    if (!first || !second)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_split: a result pointer is NULL");
    return (first_count >= 0 && first_count <= dataset->count) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "dataset_split: %lld samples for the first part, but the dataset has %lld",
                       (long long)first_count, (long long)dataset->count);
}

bool tarn_dataset_split(tarn_dataset *dataset, int64_t first_count, uint64_t seed, tarn_dataset **first,
                        tarn_dataset **second)
{
    if (!check_split(dataset, first_count, first, second))
        return false;
    size_t bytes = sizeof(int64_t) * (size_t)dataset->count;
    int64_t *order = tarn__alloc(bytes);
    if (!order)
        return false;
    /* Epoch -1: no loader with the same seed shuffles in this order. */
    tarn__shuffled(tarn__epoch_keys_of(seed, -1).order, order, dataset->count);
    *first = select_samples("dataset_split", dataset, order, first_count);
    *second =
        *first ? select_samples("dataset_split", dataset, order + first_count, dataset->count - first_count) : NULL;
    tarn__release(order, bytes);
    if (*second)
        return true;
    tarn_dataset_free(*first);
    *first = NULL;
    return false;
}

/* gradient_buckets.c: sums of gradients in buckets (gradient_buckets.h). */
#include "train/loop/gradient_buckets.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/launch/launch.h"

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

/* Parameters that were created last come first: backward finishes them first. Orders are unique within a module. */
static int compare(const void *a, const void *b)
{
    const tarn__gradient_bucket *x = a, *y = b;
    return (x->order < y->order) - (x->order > y->order);
}

static void divide_group(tarn__gradient_buckets *b, const tarn__flat_group *group, int64_t bytes)
{
    tarn__gradient_bucket *open = NULL;
    for (int i = group->first; i < group->first + group->segments; i++) {
        const tarn__flat_segment *segment = &b->flats->segment[i];
        if (!open || (bytes && (open->end - open->begin) * (int64_t)sizeof(float) >= bytes)) {
            open = &b->bucket[b->count++];
            *open = (tarn__gradient_bucket){.begin = segment->begin, .first = i, .order = segment->order};
        }
        open->checked = open->first;
        open->last = i + 1;
        open->end = segment->begin + segment->count;
        open->order = segment->order < open->order ? segment->order : open->order;
    }
}

/* A bucket ends where the next one of its group begins, so that gaps between parameters belong to one. */
static void close_gaps(const tarn__gradient_buckets *b, int first, int64_t count)
{
    for (int i = first; i < b->count; i++)
        b->bucket[i].end = i + 1 < b->count ? b->bucket[i + 1].begin : count;
}

static bool open_trees(const tarn__gradient_buckets *b, int g, int begin)
{
    bool good = true;
    for (int i = begin; good && i < b->count; i++) {
        tarn__gradient_bucket *bucket = &b->bucket[i];
        bucket->buffer = b->flats->group[g].buffer[TARN__GRADIENT];
        bucket->gradients = tarn__flat_range(bucket->buffer, bucket->begin, bucket->end);
        bucket->tree = tarn__tree_open(b->leaves, b->first_leaf);
        bucket->tree.is_free = b->is_fast;
        good = bucket->gradients != NULL;
    }
    return good;
}

bool tarn__gradient_buckets_open(tarn__gradient_buckets *b, const tarn__gradient_buckets *given, int64_t bytes)
{
    tarn__flat_buffers *flats = given->flats;
    *b = *given;
    b->capacity = flats->segments;
    b->bucket = tarn__alloc(sizeof(*b->bucket) * (size_t)b->capacity);
    bool good = b->bucket != NULL;
    for (int g = 0; good && g < flats->groups; g++) {
        int begin = b->count;
        divide_group(b, &flats->group[g], bytes);
        close_gaps(b, begin, flats->group[g].count);
        good = open_trees(b, g, begin);
    }
    if (good)
        qsort(b->bucket, (size_t)b->count, sizeof(*b->bucket), compare);
    return good;
}

void tarn__gradient_buckets_close(tarn__gradient_buckets *b)
{
    if (b->is_watching)
        tarn__grad_watch_close();
    if (b->queue)
        tarn__sum_queue_wait(b->queue);
    tarn__release(b->bucket, sizeof(*b->bucket) * (size_t)b->capacity);
    *b = (tarn__gradient_buckets){0};
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

/* Parameters without a gradient hold old values: they count as 0. */
static bool clear_unset(const tarn__gradient_buckets *b, const tarn__gradient_bucket *bucket)
{
    bool good = true;
    for (int i = bucket->first; good && i < bucket->last; i++) {
        const tarn__flat_segment *segment = &b->flats->segment[i];
        if (!segment->parameter->grad_is_set)
            good = tarn__fill_with(
                b->function, tarn__flat_range(bucket->buffer, segment->begin, segment->begin + segment->count), 0);
    }
    return good;
}

bool tarn__gradient_buckets_add(tarn__gradient_buckets *b)
{
    bool good = true;
    for (int i = 0; good && i < b->count; i++)
        good = clear_unset(b, &b->bucket[i]) && tarn__tree_add(&b->bucket[i].tree, b->bucket[i].gradients);
    return good;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Nodes of the tree stay until the scope of the step ends: another thread frees none of them. */
static bool begin_sum(tarn__gradient_buckets *b)
{
    tarn__gradient_bucket *bucket = &b->bucket[b->begun++];
    if (!clear_unset(b, bucket) || !tarn__tree_end(&bucket->tree, bucket->gradients))
        return false;
    if (!b->queue)
        return tarn__tree_sum(b->function, &bucket->tree, b->comm, bucket->gradients);
    for (int i = 0; i < bucket->tree.count; i++)
        bucket->tree.node[i].is_owned = false;
    bucket->item = (tarn__sum_item){.tree = &bucket->tree, .sum = bucket->gradients};
    return tarn__sum_queue_put(b->queue, &bucket->item);
}

/* A gradient that is complete stays so: every parameter is looked at once, and a pending one again. */
static bool is_complete(const tarn__gradient_buckets *b, tarn__gradient_bucket *bucket, uint64_t sequence)
{
    while (bucket->checked < bucket->last &&
           tarn__grad_is_complete(&b->watch, b->flats->segment[bucket->checked].parameter, sequence))
        bucket->checked++;
    return bucket->checked == bucket->last;
}

static bool passed(void *ctx, uint64_t sequence)
{
    tarn__gradient_buckets *b = ctx;
    bool good = true;
    while (good && b->begun < b->count && is_complete(b, &b->bucket[b->begun], sequence))
        good = begin_sum(b);
    return good;
}

void tarn__gradient_buckets_watch(tarn__gradient_buckets *b)
{
    if (!b->queue)
        return;
    b->is_watching = true;
    b->watch = (tarn__grad_watch){.passed = passed, .ctx = b};
    tarn__grad_watch_open(&b->watch);
}

bool tarn__gradient_buckets_finish(tarn__gradient_buckets *b)
{
    bool good = true;
    if (b->is_watching)
        tarn__grad_watch_close();
    b->is_watching = false;
    while (good && b->begun < b->count)
        good = begin_sum(b);
    return good && (!b->queue || tarn__sum_queue_wait(b->queue));
}

/* class_results.c: what a classifier's best weights predict for its validation set: the confusion matrix, and the worst
 * mistakes with their pictures. */
#include <string.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "train/report/report.h"
#include "train/tasks/task.h"

#define MAX_PIXELS 96 /* height and width of a picture; larger ones are resized, for the size of the page */

/* ---- predictions ------------------------------------------------------------------------------------------------- */

/* Inserts a mistake by the probability of its own class; of equal ones the first in the data comes first. */
static bool insert(tarn__class_results *r, const tarn_prediction *p)
{
    int at = r->count;
    while (at > 0 && r->worst[at - 1].prediction.label_probability > p->label_probability)
        at--;
    if (at == TARN__MAX_MISTAKES)
        return true;
    tarn__mistake added = {.prediction = *p, .path = p->path ? tarn__string_copy(p->path) : NULL};
    if (p->path && !added.path)
        return false;
    added.prediction.path = NULL;
    if (r->count == TARN__MAX_MISTAKES)
        tarn__string_free(r->worst[--r->count].path);
    memmove(&r->worst[at + 1], &r->worst[at], sizeof(r->worst[0]) * (size_t)(r->count - at));
    r->worst[at] = added;
    r->count++;
    return true;
}

static bool receive(const tarn_prediction *p, void *ctx)
{
    tarn__class_results *r = ctx;
    r->samples++;
    r->class_samples[p->label]++;
    r->class_correct[p->label] += p->label == p->predicted;
    if (r->confusion)
        r->confusion[p->label * r->classes + p->predicted]++;
    return p->label == p->predicted || insert(r, p);
}

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

/* True for samples of u8 in one or three channels. */
static bool has_pictures(const tarn_trainer *t)
{
    const tarn_shape *input = &t->data_spec.input;
    return t->validation->field[0].dtype == TARN_U8 && input->rank == 3 && (input->size[0] == 1 || input->size[0] == 3);
}

/* Height and width of at most MAX_PIXELS. The image is borrowed. */
static bool set_picture(const tarn_array *image, tarn_array *picture)
{
    int64_t height = image->shape.size[1], width = image->shape.size[2], longer = height > width ? height : width;
    if (longer > MAX_PIXELS) {
        height = height * MAX_PIXELS / longer;
        width = width * MAX_PIXELS / longer;
    }
    return tarn_image_resize(image, height > 0 ? height : 1, width > 0 ? width : 1, picture);
}

static bool read_pictures(const tarn_trainer *t, tarn__class_results *r)
{
    const tarn_dataset *d = t->validation;
    void *memory[TARN_MAX_FIELDS] = {0};
    bool good = true;
    for (int i = 0; i < d->field_count && good; i++)
        good = (memory[i] = tarn__alloc(d->bytes[i])) != NULL;
    for (int i = 0; i < r->count && good; i++) {
        const tarn_array image = {.data = memory[0], .dtype = TARN_U8, .shape = t->data_spec.input};
        good = tarn__dataset_get(d, r->worst[i].prediction.index, memory) && set_picture(&image, &r->worst[i].picture);
    }
    for (int i = 0; i < d->field_count; i++)
        tarn__release(memory[i], memory[i] ? d->bytes[i] : 0);
    return good;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* `rows` counts per class, all 0. NULL with an error. */
static int64_t *create_counts(const tarn__class_results *r, int64_t rows)
{
    size_t bytes = sizeof(int64_t) * (size_t)(rows * r->classes);
    int64_t *counts = tarn__alloc(bytes);
    if (counts)
        memset(counts, 0, bytes);
    return counts;
}

static void free_counts(const tarn__class_results *r, int64_t rows, int64_t *counts)
{
    tarn__release(counts, counts ? sizeof(int64_t) * (size_t)(rows * r->classes) : 0);
}

static bool has_matrix(const tarn__class_results *r)
{
    return r->classes <= TARN__MAX_MATRIX;
}

tarn__class_results *tarn__class_results_collect(const tarn_trainer *t)
{
    tarn__class_results *r = tarn_failed() ? NULL : tarn__alloc(sizeof(*r));
    if (!r)
        return NULL;
    *r = (tarn__class_results){
        .classes = t->data_spec.classes, .step = t->state.best_step, .names = t->data_spec.class_name};
    r->class_samples = create_counts(r, 1);
    r->class_correct = create_counts(r, 1);
    r->confusion = has_matrix(r) ? create_counts(r, r->classes) : NULL;
    if (!tarn_failed() && t->task->predict_best(t, receive, r) && (!has_pictures(t) || read_pictures(t, r)))
        return r;
    tarn__class_results_free(r);
    return NULL;
}

void tarn__class_results_free(tarn__class_results *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->count; i++) {
        tarn__string_free(r->worst[i].path);
        tarn_array_free(&r->worst[i].picture);
    }
    free_counts(r, 1, r->class_samples);
    free_counts(r, 1, r->class_correct);
    free_counts(r, r->classes, r->confusion);
    tarn__release(r, sizeof(*r));
}

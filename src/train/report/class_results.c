/* class_results.c: what a classifier's best weights predict for its validation set: the confusion matrix, and the worst
 * mistakes with their pictures. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "train/output/async_checkpoint.h"
#include "train/report/report.h"
#include "train/tasks/task.h"

#define MAX_PIXELS 96 /* height and width of a picture; larger ones are resized, for the size of the page */

/* Of a pass over the validation set; both borrowed. */
typedef struct collection {
    const tarn_trainer *trainer;
    tarn__class_results *results;
} collection;

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

/* False ends the pass: without memory, and when the run is being stopped. */
static bool receive(const tarn_prediction *p, void *ctx)
{
    collection *c = ctx;
    tarn__class_results *r = c->results;
    if (atomic_load(&c->trainer->stop))
        return false;
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

static tarn__class_results *create(const tarn_trainer *t)
{
    tarn__class_results *r = tarn__alloc(sizeof(*r));
    if (!r)
        return NULL;
    *r = (tarn__class_results){
        .classes = t->data_spec.classes, .step = t->state.best_step, .names = t->data_spec.class_name};
    r->class_samples = create_counts(r, 1);
    r->class_correct = create_counts(r, 1);
    r->confusion = has_matrix(r) ? create_counts(r, r->classes) : NULL;
    return r;
}

static bool load(const tarn_trainer *t, const char *name)
{
    tarn__path path;
    return tarn_module_load(t->model, tarn__path_in(t->options.out, name, &path), NULL);
}

/* NULL where the results cannot be had: the run is complete, only a section of its page is missing. */
static tarn__class_results *collect(const tarn_trainer *t)
{
    tarn__class_results *r = create(t);
    bool good = r && !tarn_failed() && t->task->predict(t, receive, &(collection){t, r}) &&
                r->samples == tarn_dataset_count(t->validation) && (!has_pictures(t) || read_pictures(t, r));
    if (good)
        return r;
    if (tarn_failed())
        tarn__log(TARN_LOG_WARNING, "report.html has no confusion matrix: %s", tarn_error());
    tarn_clear_error();
    tarn__class_results_free(r);
    return NULL;
}

/* The best weights, which are averages of a run that has them, are put into the trainer's model, so that no memory is
 * needed for a second one; the last ones come back from the checkpoint. */
bool tarn__class_results_collect(const tarn_trainer *t, tarn__class_results **results)
{
    bool is_best = t->state.best_step == t->state.step && !t->ema;
    if (tarn_failed() || !tarn__async_checkpoint_wait(t->async_checkpoint))
        return false;
    if (is_best || load(t, "best.safetensors")) {
        *results = collect(t);
    } else {
        tarn__log(TARN_LOG_WARNING, "report.html has no confusion matrix: %s", tarn_error());
        tarn_clear_error();
    }
    return is_best || load(t, "model.safetensors");
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

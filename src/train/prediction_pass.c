/* prediction_pass.c: a classifier's prediction for every sample of a dataset, batch by batch. */
#include "train/prediction_pass.h"

#include "base/memory.h"
#include "train/data/data_source.h"

/* Buffers of a pass, owned, and the index of its next sample. */
typedef struct buffers {
    int64_t at;
    double *probability; /* [batch_size, classes] */
    int64_t *label;      /* [batch_size] */
} buffers;

/* Gives the predictions of a batch. False when the receiver ended the pass. */
static bool give_batch(const tarn__prediction_pass *p, buffers *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double *row = b->probability + i * p->classes;
        tarn_prediction one = {.index = b->at, .label = b->label[i], .path = tarn__images_path(p->dataset, b->at)};
        for (int64_t c = 1; c < p->classes; c++)
            one.predicted = row[c] > row[one.predicted] ? c : one.predicted;
        one.probability = row[one.predicted];
        one.label_probability = row[one.label];
        b->at++;
        if (!p->receive(&one, p->ctx))
            return false;
    }
    return true;
}

static bool predict_batches(const tarn__prediction_pass *p, buffers *b)
{
    bool more = true;
    while (more && !tarn_failed()) {
        tarn_tensor *fields[TARN_MAX_FIELDS] = {0};
        tarn_scope *scope = tarn_scope_open();
        tarn_no_grad_open();
        more = scope && tarn_loader_next(p->loader, fields);
        int64_t count = more ? tarn_size(fields[0], 0) : 0;
        more = more &&
               tarn_read_f64(tarn_softmax(tarn_forward(p->model, tarn__batch_input(p->model, fields[0])), 1),
                             b->probability, count * p->classes) &&
               tarn_read(tarn__batch_label(fields[1]), b->label, sizeof(int64_t) * (size_t)count) &&
               give_batch(p, b, count);
        tarn_no_grad_close();
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

bool tarn__predict_each(const tarn__prediction_pass *p)
{
    int64_t count = tarn_dataset_count(p->dataset), size = p->batch_size < count ? p->batch_size : count;
    size_t probability_bytes = sizeof(double) * (size_t)(size * p->classes),
           label_bytes = sizeof(int64_t) * (size_t)size;
    buffers b = {.probability = tarn__alloc(probability_bytes), .label = tarn__alloc(label_bytes)};
    bool good = b.probability && b.label && predict_batches(p, &b);
    tarn__release(b.probability, b.probability ? probability_bytes : 0);
    tarn__release(b.label, b.label ? label_bytes : 0);
    return good;
}

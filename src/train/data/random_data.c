/* random_data.c: random data for measuring steps: tokens of a language model, or images with labels.
 *
 * Values follow from the seed by Philox, so two measurements run on the same data. The content does not matter for the
 * time; its spread does: uniform tokens touch all rows of the embedding. */
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/philox.h"
#include "models/lm/arch.h"
#include "text/tokenizer/tokenizer.h"
#include "train/tasks/task.h"

enum { CHANNELS = 3, SIDE = 32, CLASSES = 10 }; /* of an image: CIFAR-10's */
/* vocab_size is rounded up to this: GPT-2's 50,257 become 50,304, as is usual in training */
enum { VOCAB_MULTIPLE = 128 };
enum { BATCHES = 4 }; /* different batches; then they repeat */

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Uniform tokens from the seed: embedding rows are accessed with as little locality as possible. Owned by the
 * corpus. */
static bool draw_tokens(tarn_trainer *t, int64_t vocab_size, int64_t count)
{
    int32_t *ids = tarn__result_new(sizeof(*ids) * (size_t)count);
    t->corpus.ids = ids;
    if (!ids)
        return false;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word[4];
        tarn__philox((uint64_t)t->options.seed, (uint64_t)i, word);
        ids[i] = (int32_t)((uint64_t)word[0] * (uint64_t)vocab_size >> 32);
    }
    t->corpus.training = t->corpus.validation = (tarn__token_span){.ids = ids, .count = count};
    return true;
}

bool tarn__random_tokens_open(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    tarn__model_sizes named = {.vocab_size = o->vocab_size,
                               .context = o->context,
                               .layers = o->layers,
                               .heads = o->heads,
                               .hidden_size = o->hidden_size};
    if (!tarn__model_complete_sizes(function, o->model, &named))
        return false;
    if (!named.vocab_size)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: vocab_size is missing: the model %s has no default", function,
                           o->model);
    if (!o->vocab_size)
        o->vocab_size = (named.vocab_size + VOCAB_MULTIPLE - 1) / VOCAB_MULTIPLE * VOCAB_MULTIPLE;
    return draw_tokens(t, o->vocab_size, BATCHES * o->batch_size * named.context + 1);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* 16 bytes per Philox call; labels cycle through all classes, so that the data spec finds 10. */
static void draw_images(uint64_t seed, int64_t count, uint8_t *pixels, int64_t *labels)
{
    for (int64_t i = 0; i < count * CHANNELS * SIDE * SIDE / 16; i++) {
        uint32_t word[4];
        tarn__philox(seed, (uint64_t)i, word);
        memcpy(pixels + 16 * i, word, sizeof(word));
    }
    for (int64_t i = 0; i < count; i++)
        labels[i] = i % CLASSES;
}

bool tarn__random_images_open(const char *function, tarn_trainer *t)
{
    int64_t count = BATCHES * t->options.batch_size < CLASSES ? CLASSES : BATCHES * t->options.batch_size;
    size_t pixel_bytes = (size_t)count * CHANNELS * SIDE * SIDE, label_bytes = sizeof(int64_t) * (size_t)count;
    uint8_t *pixels = tarn__alloc(pixel_bytes);
    int64_t *labels = pixels ? tarn__alloc(label_bytes) : NULL;
    if (labels) {
        draw_images((uint64_t)t->options.seed, count, pixels, labels);
        tarn_array arrays[] = {{.data = pixels, .dtype = TARN_U8, .shape = TARN_SHAPE(count, CHANNELS, SIDE, SIDE)},
                               {.data = labels, .dtype = TARN_I64, .shape = TARN_SHAPE(count)}};
        t->training = tarn_dataset_from_arrays((const char *const[]){"image", "label"}, arrays, 2);
        t->validation = tarn_dataset_from_arrays((const char *const[]){"image", "label"}, arrays, 2);
    }
    tarn__release(labels, label_bytes);
    tarn__release(pixels, pixel_bytes);
    return t->training && t->validation &&
           tarn__data_spec_create(function, "random", t->training, t->validation, &t->data_spec);
}

bool tarn__random_data_open(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    t->task = tarn__task_of_model(o->model);
    tarn__precision_resolve(o, t->device, t->task);
    snprintf(o->data, sizeof(o->data), "%s", t->task->random_data);
    return tarn__task_check(function, t->task, o) && t->task->open_random(function, t);
}

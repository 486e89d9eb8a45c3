/* memory.c: what a run will take of its device's memory, by trying its model once, on the device's shadow where it is not there yet, and how much of the model is trained. */
#include <string.h>
#include <tarn/model.h>
#include <tarn/profile.h>

#include "base/dtype.h"
#include "base/error.h"
#include "core/shadow.h"
#include "models/kinds.h"
#include "train/trainer.h"

/* One sample of zeros, applied as in a step; NULL with an error. */
static tarn_tensor *apply_once(tarn_trainer *t, tarn_tensor *x)
{
    return t->description.is_text ? tarn_model_loss(t->model, x, x) : tarn_forward(t->model, tarn__batch_input(t->model, x));
}

static bool count_one(const tarn__parameter *parameter, void *ctx)
{
    tarn__counts *c = ctx;
    bool is_trained = !parameter->is_buffer && tarn_needs_grad(parameter->tensor);
    bool is_weight = !parameter->is_buffer || tarn__is_blocks(parameter->tensor->view.dtype);
    *(is_trained ? &c->trained : &c->frozen) += is_weight ? tarn_count(parameter->tensor) : 0;
    c->bytes += tarn_bytes(parameter->tensor);
    if (is_trained && tarn_count(parameter->tensor) > c->largest)
        c->largest = tarn_count(parameter->tensor);
    return true;
}

tarn__counts tarn__count_weights(const tarn_module *model)
{
    tarn__counts counts = {0};
    tarn__module_walk_over(model, TARN__MODULE_STATE, count_one, &counts);
    return counts;
}

/* Gradients are f32, as are the optimizer's states, and a master weight where a parameter has 16 bits. */
static void estimate_weights(tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    tarn__counts counts = tarn__count_weights(t->model);
    int64_t states = strcmp(o->optimizer, "sgd") == 0 ? o->momentum > 0 : 2, masters = strcmp(o->precision, "bf16") == 0;
    t->weight_bytes = counts.bytes;
    t->gradient_bytes = 4 * counts.trained;
    t->state_bytes = 4 * counts.trained * (states + masters);
}

/* The loss of a language model holds the gradient of its head, where that is trained. */
static int64_t head_bytes(const tarn_trainer *t)
{
    if (!t->description.is_text || !tarn_needs_grad(tarn__module_own(t->model->child[TARN__MODEL_HEAD], "weight")))
        return 0;
    return 4 * t->options.vocab * t->options.width;
}

/* Looks whether model and data fit by applying one to samples of zeros, and estimates what training takes from what that leaves on the
 * device: weights, their gradients and the optimizer's state, what backward needs of a batch, and what it takes while it runs: of a classifier half as
 * much again, and the largest gradient before it is put with the others. */
bool tarn__try_model(const char *function, tarn_trainer *t)
{
    int64_t tried = t->description.is_text ? 1 : 2;
    tarn_shape shape = {t->description.input.rank + 1, {tried}};
    memcpy(&shape.size[1], t->description.input.size, sizeof(int64_t) * (size_t)t->description.input.rank);
    tarn_scope *scope = tarn_scope_open();
    tarn_module_train(t->model, false); /* running means stay as they are */
    tarn_tensor *x = tarn_zeros(shape, t->description.is_text ? TARN_I32 : TARN_F32, t->device);
    int64_t before = tarn_memory_of(t->device).used;
    tarn_tensor *y = apply_once(t, x);
    int64_t head = head_bytes(t); /* of which a larger batch has no more */
    int64_t activations = tarn_memory_of(t->device).used - before - head;
    bool good = y && tarn_module_train(t->model, true);
    tarn_scope_close(scope);
    activations = activations / tried * t->micro_batch;
    estimate_weights(t);
    int64_t largest = 4 * tarn__count_weights(t->model).largest;
    t->activation_bytes = head + activations + (t->description.is_text ? tarn__language_working_bytes(&t->options) : activations / 2 + largest);
    t->memory_needed = t->weight_bytes + t->gradient_bytes + t->state_bytes + t->activation_bytes;
    return good || tarn__raise_within(function);
}

/* What is certain, weights, gradients and state, must find room; of activations there is an estimate alone. */
static bool check_room(const char *function, const tarn_trainer *t)
{
    const double mebibyte = 1 << 20;
    int64_t certain = t->weight_bytes + t->gradient_bytes + t->state_bytes;
    tarn_device_info info = {0};
    if (!tarn_device_query(t->device, &info))
        return tarn__raise_within(function);
    if (info.memory_free == 0 || certain <= info.memory_free)
        return true;
    tarn_empty_cache(t->device); /* what is kept for later is free, too */
    if (!tarn_device_query(t->device, &info))
        return tarn__raise_within(function);
    return certain <= info.memory_free ||
           tarn__raise(TARN_ERROR_MEMORY,
                       "%s: weights, gradients and the optimizer's state of this model take %.1f MiB, %.1f more than %s has free; with activations the run needs about %.1f",
                       function, (double)certain / mebibyte, (double)(certain - info.memory_free) / mebibyte, t->options.device,
                       (double)t->memory_needed / mebibyte);
}

bool tarn__imagine_model(const char *function, tarn_trainer *t)
{
    tarn_trainer imagined = {.options = t->options, .description = t->description, .corpus = t->corpus, .micro_batch = t->micro_batch,
                             .device = tarn__shadow_of(t->device), .is_imagined = true};
    imagined.model = tarn__model_of(function, &imagined);
    bool good = imagined.model && tarn__try_model(function, &imagined);
    t->weight_bytes = imagined.weight_bytes;
    t->gradient_bytes = imagined.gradient_bytes;
    t->state_bytes = imagined.state_bytes;
    t->activation_bytes = imagined.activation_bytes;
    t->memory_needed = imagined.memory_needed;
    tarn_module_free(imagined.model);
    tarn_empty_cache(imagined.device);
    return good && check_room(function, t);
}

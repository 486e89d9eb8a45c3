/* step_graph.c: a step that is captured once as a graph and then launched as a whole, on devices that can.
 *
 * The captured step is the eager one: tarn__next_batch() gives it static tensors instead of the loader's, and its
 * metrics are copied to static tensors. Before each launch the loader's batches are copied into them on the device.
 * Learning rate, step count and random numbers are updated by the launch (core/launch/graph.c), so results are bitwise
 * identical to eager steps. All micro-batches of a step are captured together: they reuse the same memory one after the
 * other.
 *
 * A captured step keeps its memory until the end of the run, next to that of evaluations. */
#include "train/loop/step_graph.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/device/device.h"
#include "core/launch/graph.h"
#include "core/tensor/tensor.h"
#include "train/trainer.h"

enum { WARM_UP = 3 }; /* eager steps first: they autotune and allocate */
enum {
    SMALL_SHARE = 16
}; /* a step captured by default may need 1 / 16 of the free memory: a larger one is not bound by launches, and
    * captured it needs up to twice as much */
/* a step captured by default has at most this many: with more, launch overhead no longer matters */
enum { MOST_MICRO_BATCHES = 16 };

/* ---- decision ---------------------------------------------------------------------------------------------------- */

bool tarn__step_graph_plan(const char *function, tarn_trainer *t)
{
    const char *wish = t->options.capture;
    bool can = tarn__can_capture(t->device), is_on = strcmp(wish, "on") == 0;
    if (is_on && !can)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: capture is on, but %s cannot capture a step; leave capture out, or choose a device that can", function,
            t->options.device);
    bool has_room = t->memory_free == 0 || t->memory_needed <= t->memory_free / SMALL_SHARE;
    t->captured.is_wanted =
        can &&
        (is_on || (strcmp(wish, "off") != 0 && has_room && t->batch_size / t->micro_batch <= MOST_MICRO_BATCHES));
    t->captured.is_required = is_on;
    return true;
}

bool tarn__step_graph_is_due(tarn_trainer *t)
{
    if (t->marks || t->is_profiled)
        return false; /* phases are timed in eager steps, which are bitwise identical */
    return t->captured.is_wanted && !t->captured.is_over && t->captured.eager_steps++ >= WARM_UP;
}

/* ---- static tensors ---------------------------------------------------------------------------------------------- */

static size_t batch_bytes(const tarn__step_graph *c)
{
    return sizeof(tarn_tensor *) * (size_t)c->micro_batches * (size_t)c->fields;
}

/* Allocates the static tensors of the metrics, and the array for those of the batches, still empty. */
static bool make_places(tarn_trainer *t)
{
    tarn__step_graph *c = &t->captured;
    c->figures.loss = tarn__scope_take(tarn_zeros(TARN_SHAPE(1), TARN_F32, t->device));
    if (t->description.is_text)
        c->figures.norm = tarn__scope_take(tarn_zeros(TARN_SHAPE(1), TARN_F32, t->device));
    else
        c->figures.right = tarn__scope_take(tarn_zeros(TARN_SHAPE(1), TARN_I64, t->device));
    c->fields = tarn_dataset_field_count(t->training);
    c->micro_batches = (int)(t->batch_size / t->micro_batch);
    c->batch = tarn_failed() ? NULL : tarn__alloc(batch_bytes(c));
    return c->batch != NULL;
}

/* Copies a batch to its static tensors; the first one creates them. */
static bool put_batch(tarn_tensor *const *fields, tarn_tensor **places, int count)
{
    for (int k = 0; k < count && !tarn_failed(); k++)
        if (places[k])
            tarn_copy(places[k], fields[k]);
        else
            places[k] = tarn__scope_take(tarn_clone(fields[k]));
    return !tarn_failed();
}

/* Reads all micro-batches of the next step. */
static bool put_batches(tarn_trainer *t)
{
    tarn__step_graph *c = &t->captured;
    bool good = c->batch || make_places(t);
    for (int i = 0; good && i < c->micro_batches; i++) {
        tarn_tensor *fields[TARN_MAX_FIELDS];
        tarn_scope *scope = tarn_scope_open();
        good = scope && tarn__next_batch(t, fields) && put_batch(fields, c->batch + i * c->fields, c->fields);
        tarn_scope_close(scope);
    }
    return good;
}

bool tarn__step_graph_batch(tarn_trainer *t, tarn_tensor **fields)
{
    tarn__step_graph *c = &t->captured;
    memcpy(fields, c->batch + c->given++ * c->fields, sizeof(*fields) * (size_t)c->fields);
    return true;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Copies a metric to its static tensor; nothing if there is none. */
static bool leave(tarn_tensor *place, tarn_tensor *figure)
{
    return !place || tarn_copy(place, tarn_reshape(tarn_detach(figure), TARN_SHAPE(1)));
}

/* The function that is captured; also run eagerly if capturing failed. */
static bool step(void *ctx)
{
    tarn_trainer *t = ctx;
    tarn__step_graph *c = &t->captured;
    tarn__step_metrics now;
    c->given = 0;
    c->is_feeding = true;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && tarn__train_gradients(t, &now) && tarn_optimizer_step(t->optimizer) &&
                leave(c->figures.loss, now.loss) && leave(c->figures.right, now.right) &&
                leave(c->figures.norm, now.norm);
    tarn__phase_end(t);
    tarn_scope_close(scope);
    c->is_feeding = false;
    return good;
}

/* Captures the step. A failure is an error only with --capture on; else the run continues eagerly, with a warning. */
static bool record(tarn_trainer *t)
{
    tarn__step_graph *c = &t->captured;
    tarn_empty_cache(t->device); /* the pool still caches the memory of eager steps; the captured one has its own */
    c->graph = tarn_graph_capture(t->device, step, t);
    if (c->graph)
        return true;
    tarn__error_record why;
    tarn__error_save(&why);
    tarn_optimizer_zero_grad(t->optimizer); /* gradients that were captured but never computed */
    c->is_over = true;
    if (c->is_required) {
        tarn__error_restore(&why);
        return tarn__raise_within("trainer_run");
    }
    tarn__log(TARN_LOG_WARNING, "trainer_run: steps are taken one by one, because this one cannot be captured: %s",
              why.text + strlen("tarn: "));
    return true;
}

bool tarn__step_graph_run(tarn_trainer *t, tarn__step_metrics *figures)
{
    tarn__step_graph *c = &t->captured;
    t->lr = tarn_optimizer_lr(t->optimizer); /* of this step: the launch advances the schedule */
    if (!put_batches(t) || (!c->graph && !record(t)) || !(c->graph ? tarn_graph_run(c->graph) : step(t)))
        return false;
    t->place.step++;
    *figures = c->figures;
    return true;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void tarn__step_graph_reset(tarn_trainer *t)
{
    tarn__step_graph *c = &t->captured;
    tarn_graph_free(c->graph);
    for (int i = 0; c->batch && i < c->micro_batches * c->fields; i++)
        tarn_free(c->batch[i]);
    tarn__release(c->batch, batch_bytes(c));
    tarn_free(c->figures.loss);
    tarn_free(c->figures.right);
    tarn_free(c->figures.norm);
    *c = (tarn__step_graph){.is_wanted = c->is_wanted, .is_required = c->is_required};
}

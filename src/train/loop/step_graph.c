/* step_graph.c: a step that is captured once as a graph and then launched as a whole, on devices that can.
 *
 * What is captured is a call of tarn__step(), with a batch of static tensors and with its metrics copied to static
 * tensors. Before each launch the loader's batches are copied into the static batch on the device.
 * Learning rate, step count and random numbers are updated by the launch (core/launch/graph.c), so results are bitwise
 * identical to eager steps. All micro-batches of a step are captured together: they reuse the same memory one after the
 * other.
 *
 * A captured step takes the memory of an eager one and keeps it while the graph lives. Before eager work of the same
 * size, as evaluations and profiled steps, the graph is freed, and the next step is captured again, which takes the
 * host little longer than an eager step. So a run needs no more memory captured than eager. */
#include "train/loop/step_graph.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/device/device.h"
#include "core/launch/graph.h"
#include "core/tensor/tensor.h"
#include "train/tasks/task.h"

enum { WARMUP_STEPS = 3 }; /* eager steps first: they autotune and allocate */
/* a step captured by default has at most this many: with more, launch overhead no longer matters */
enum { MAX_MICRO_BATCHES = 16 };

/* ---- decision ---------------------------------------------------------------------------------------------------- */

bool tarn__step_graph_plan(const char *function, tarn_trainer *t)
{
    const char *mode = t->options.capture;
    bool can = tarn__can_capture(t->device), is_on = strcmp(mode, "on") == 0;
    if (is_on && !can)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: capture is on, but %s does not support graph capture; use .capture auto, or another device", function,
            t->options.device);
    if (is_on && t->ranks.virtual_ranks > 1)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: capture is on, but a step of several virtual_ranks cannot be captured; use .capture auto", function);
    t->step_graph.is_wanted =
        can && t->ranks.virtual_ranks <= 1 &&
        (is_on || (strcmp(mode, "off") != 0 && t->batch_size / t->micro_batch <= MAX_MICRO_BATCHES));
    t->step_graph.is_required = is_on;
    return true;
}

void tarn__step_graph_release(tarn_trainer *t)
{
    tarn_graph_free(t->step_graph.graph);
    t->step_graph.graph = NULL;
}

bool tarn__step_graph_is_due(tarn_trainer *t)
{
    if (t->phase_timer || t->is_profiled) {
        tarn__step_graph_release(t);
        return false; /* phases are timed in eager steps, which are bitwise identical */
    }
    return t->step_graph.is_wanted && !t->step_graph.has_failed && t->step_graph.eager_steps++ >= WARMUP_STEPS;
}

/* ---- static tensors ---------------------------------------------------------------------------------------------- */

static size_t batch_bytes(const tarn__step_graph *c)
{
    return sizeof(tarn_tensor *) * (size_t)c->micro_batches * (size_t)c->fields;
}

/* Allocates the static tensors of the metrics, and the array for those of the batches, still empty. */
static bool alloc_static_tensors(tarn_trainer *t)
{
    tarn__step_graph *c = &t->step_graph;
    c->metrics.loss = tarn__scope_take(tarn_zeros(TARN_SHAPE(1), TARN_F32, t->device));
    if (t->task->has_norm)
        c->metrics.norm = tarn__scope_take(tarn_zeros(TARN_SHAPE(1), TARN_F32, t->device));
    if (t->task->has_accuracy)
        c->metrics.correct = tarn__scope_take(tarn_zeros(TARN_SHAPE(1), TARN_I64, t->device));
    c->fields = tarn_dataset_field_count(t->training);
    c->micro_batches = (int)(t->batch_size / t->micro_batch);
    c->batch = tarn_failed() ? NULL : tarn__alloc(batch_bytes(c));
    return c->batch != NULL;
}

/* Copies a batch to its static tensors; the first one creates them. */
static bool copy_batch(tarn_tensor *const *fields, tarn_tensor **buffers, int count)
{
    for (int k = 0; k < count && !tarn_failed(); k++)
        if (buffers[k])
            tarn_copy(buffers[k], fields[k]);
        else
            buffers[k] = tarn__scope_take(tarn_clone(fields[k]));
    return !tarn_failed();
}

/* Reads all micro-batches of the next step. */
static bool read_batches(tarn_trainer *t)
{
    tarn__step_graph *c = &t->step_graph;
    bool good = c->batch || alloc_static_tensors(t);
    for (int i = 0; good && i < c->micro_batches; i++) {
        tarn_tensor *fields[TARN_MAX_FIELDS];
        tarn_scope *scope = tarn_scope_open();
        good = scope && t->task->next_batch(t, fields) && copy_batch(fields, c->batch + i * c->fields, c->fields);
        tarn_scope_close(scope);
    }
    return good;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Copies a metric to its static tensor; nothing if there is none. */
static bool copy_metric(tarn_tensor *buffer, tarn_tensor *metric)
{
    return !buffer || tarn_copy(buffer, tarn_reshape(tarn_detach(metric), TARN_SHAPE(1)));
}

/* The function that is captured; also run eagerly if capturing failed. */
static bool step(void *trainer)
{
    tarn_trainer *t = trainer;
    tarn__step_graph *c = &t->step_graph;
    tarn__step_ctx ctx = tarn__step_ctx_of(t);
    tarn__step_metrics now;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && tarn__step(&ctx, c->batch, &now) && copy_metric(c->metrics.loss, now.loss) &&
                copy_metric(c->metrics.correct, now.correct) && copy_metric(c->metrics.norm, now.norm);
    tarn_scope_close(scope);
    return good;
}

/* Captures the step. A failure is an error only with --capture on; else the run continues eagerly, with a warning. */
static bool capture(tarn_trainer *t)
{
    tarn__step_graph *c = &t->step_graph;
    c->graph = tarn_graph_capture(t->device, step, t);
    if (c->graph)
        return true;
    tarn__error_record why;
    tarn__error_save(&why);
    tarn_optimizer_zero_grad(t->optimizer); /* gradients that were captured but never computed */
    c->has_failed = true;
    if (c->is_required) {
        tarn__error_restore(&why);
        return tarn__raise_within("trainer_run");
    }
    tarn__log(TARN_LOG_WARNING, "trainer_run: the step could not be captured as a graph; steps run eagerly: %s",
              why.text + strlen("tarn: "));
    return true;
}

bool tarn__step_graph_run(tarn_trainer *t, tarn__step_metrics *metrics)
{
    tarn__step_graph *c = &t->step_graph;
    t->lr = tarn_optimizer_lr(t->optimizer); /* of this step: the launch advances the schedule */
    if (!read_batches(t) || (!c->graph && !capture(t)) || !(c->graph ? tarn_graph_run(c->graph) : step(t)))
        return false;
    t->state.step++;
    *metrics = c->metrics;
    return true;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void tarn__step_graph_reset(tarn_trainer *t)
{
    tarn__step_graph *c = &t->step_graph;
    tarn__step_graph_release(t);
    for (int i = 0; c->batch && i < c->micro_batches * c->fields; i++)
        tarn_free(c->batch[i]);
    tarn__release(c->batch, batch_bytes(c));
    tarn_free(c->metrics.loss);
    tarn_free(c->metrics.correct);
    tarn_free(c->metrics.norm);
    *c = (tarn__step_graph){.is_wanted = c->is_wanted, .is_required = c->is_required};
}

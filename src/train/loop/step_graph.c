/* step_graph.c: a step that is captured once as a graph and then launched as a whole, on devices that can.
 *
 * What is captured is a call of tarn__step(), with a batch of static tensors and with its metrics copied to static
 * tensors. Before each launch the loader's batches are copied into the static batch on the device.
 * Learning rate, step count and random numbers are updated by the launch (core/launch/graph.c), so results are bitwise
 * identical to eager steps. All micro-batches of a step are captured together: they reuse the same memory one after the
 * other.
 *
 * If a step is split among virtual ranks, only a part of it is captured: forward and backward of one virtual rank
 * (virtual_ranks.c), launched once per virtual rank. Sums over ranks and the optimizer follow eagerly: a graph with the
 * messages of a communicator would have to be freed before it, and could not be aborted.
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
#include "optim/optimizer.h"
#include "parallel/comm.h"
#include "train/tasks/task.h"

enum { WARMUP_STEPS = 3 }; /* eager steps first: they autotune and allocate */
/* a step captured by default has at most this many: with more, launch overhead no longer matters */
enum { MAX_MICRO_BATCHES = 16 };

/* ---- decision ---------------------------------------------------------------------------------------------------- */

/* Micro-batches that are captured together. */
static int64_t micro_batches_of(const tarn_trainer *t)
{
    return t->batch_size / t->micro_batch / t->ranks.virtual_ranks;
}

/* Why a step that is split among virtual ranks cannot be captured; NULL: it can, or is not split. */
static const char *split_obstacle(const tarn_trainer *t)
{
    const tarn__ranks *r = &t->ranks;
    if (r->virtual_ranks <= 1)
        return NULL;
    if (r->comm && strcmp(r->comm->row->name, "threads") == 0)
        return "ranks are threads of one process and may share a device, which allows no other thread in a capture";
    if (t->options.sync_batchnorm)
        return "with sync_batchnorm the forward pass exchanges statistics";
    if (r->overlaps)
        return "with overlap the backward pass exchanges gradients";
    if (r->is_fast && r->virtual_ranks > r->size)
        return "with reduce fast a rank accumulates several virtual_ranks";
    return NULL;
}

bool tarn__step_graph_plan(const char *function, tarn_trainer *t)
{
    const char *mode = t->options.capture;
    bool can = tarn__can_capture(t->device), is_on = strcmp(mode, "on") == 0;
    const char *obstacle = split_obstacle(t);
    if (is_on && !can)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: capture is on, but %s does not support graph capture; use .capture auto, or another device", function,
            t->options.device);
    if (is_on && obstacle)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: capture is on, but %s; use .capture auto", function, obstacle);
    t->step_graph.is_wanted =
        can && !obstacle && (is_on || (strcmp(mode, "off") != 0 && micro_batches_of(t) <= MAX_MICRO_BATCHES));
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
    tarn__step_graph *c = &t->step_graph;
    c->is_part_due = false;
    if (t->phase_timer || t->is_profiled) {
        tarn__step_graph_release(t);
        return false; /* phases are timed in eager steps, which are bitwise identical */
    }
    bool is_due = c->is_wanted && !c->has_failed && c->eager_steps++ >= WARMUP_STEPS;
    c->is_part_due = is_due && t->ranks.virtual_ranks > 1;
    return is_due && !c->is_part_due;
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
    bool is_part = t->ranks.virtual_ranks > 1;
    c->fields = tarn_dataset_field_count(t->training);
    c->micro_batches = (int)micro_batches_of(t);
    tarn_shape shape = TARN_SHAPE(is_part ? c->micro_batches : 1);
    c->metrics.loss = tarn__scope_take(tarn_zeros(shape, TARN_F32, t->device));
    if (t->task->has_norm && !is_part)
        c->metrics.norm = tarn__scope_take(tarn_zeros(shape, TARN_F32, t->device));
    if (t->task->has_accuracy)
        c->metrics.correct = tarn__scope_take(tarn_zeros(shape, TARN_I64, t->device));
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

/* Captures a step or a part. A failure is an error only with --capture on; else the run continues eagerly, with a
 * warning. */
static bool capture(tarn_trainer *t, tarn_step_fn run, void *ctx)
{
    tarn__step_graph *c = &t->step_graph;
    c->graph = tarn_graph_capture(t->device, run, ctx);
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
    if (!read_batches(t) || (!c->graph && !capture(t, step, t)) || !(c->graph ? tarn_graph_run(c->graph) : step(t)))
        return false;
    t->state.step++;
    *metrics = c->metrics;
    return true;
}

/* ---- a part of a step -------------------------------------------------------------------------------------------- */

bool tarn__step_graph_set_batch(tarn_trainer *t, int index, tarn_tensor *const *fields)
{
    tarn__step_graph *c = &t->step_graph;
    return (c->batch || alloc_static_tensors(t)) && copy_batch(fields, c->batch + index * c->fields, c->fields);
}

bool tarn__step_graph_set_weight(tarn_trainer *t, tarn_tensor *total_weight)
{
    return !total_weight || copy_batch(&total_weight, &t->step_graph.total_weight, 1);
}

/* Notes which parameters have a gradient, and which buffers differ from their versions before the part. */
static bool note_changes(tarn_trainer *t, const uint32_t *versions)
{
    tarn__step_graph *c = &t->step_graph;
    const tarn__flat_buffers *flats = &t->optimizer->flats;
    c->has_gradient = c->has_gradient ? c->has_gradient : tarn__alloc(sizeof(bool) * (size_t)c->parameters);
    c->is_changed = c->is_changed || !c->buffers ? c->is_changed : tarn__alloc(sizeof(bool) * (size_t)c->buffers);
    if (!c->has_gradient || (c->buffers && !c->is_changed))
        return false;
    for (int i = 0; i < c->parameters; i++)
        c->has_gradient[i] = flats->segment[i].parameter->grad_is_set;
    for (int i = 0; i < c->buffers; i++)
        c->is_changed[i] = tarn_module_buffer(t->model, i)->storage->version != versions[i];
    return true;
}

/* Repeats on the host the changes that the capture made. */
static void repeat_changes(tarn_trainer *t)
{
    const tarn__step_graph *c = &t->step_graph;
    for (int i = 0; i < c->parameters; i++)
        t->optimizer->flats.segment[i].parameter->grad_is_set = c->has_gradient[i];
    for (int i = 0; i < c->buffers; i++)
        if (c->is_changed[i])
            tarn__bump_version(tarn_module_buffer(t->model, i));
}

static bool capture_part(tarn_trainer *t, tarn_step_fn part, void *ctx)
{
    tarn__step_graph *c = &t->step_graph;
    c->parameters = t->optimizer->flats.segments;
    c->buffers = tarn_module_buffer_count(t->model);
    size_t bytes = sizeof(uint32_t) * (size_t)(c->buffers + 1);
    uint32_t *versions = tarn__alloc(bytes);
    for (int i = 0; versions && i < c->buffers; i++)
        versions[i] = tarn_module_buffer(t->model, i)->storage->version;
    bool good = versions && capture(t, part, ctx) && (!c->graph || note_changes(t, versions));
    tarn__release(versions, bytes);
    return good;
}

bool tarn__step_graph_run_part(tarn_trainer *t, tarn_step_fn part, void *ctx)
{
    tarn__step_graph *c = &t->step_graph;
    bool was_captured = c->graph != NULL;
    if (!was_captured && !c->has_failed && !capture_part(t, part, ctx))
        return false;
    if (was_captured)
        repeat_changes(t);
    return c->graph ? tarn_graph_run(c->graph) : part(ctx);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void tarn__step_graph_reset(tarn_trainer *t)
{
    tarn__step_graph *c = &t->step_graph;
    tarn__step_graph_release(t);
    for (int i = 0; c->batch && i < c->micro_batches * c->fields; i++)
        tarn_free(c->batch[i]);
    tarn__release(c->batch, batch_bytes(c));
    tarn_free(c->total_weight);
    tarn_free(c->metrics.loss);
    tarn_free(c->metrics.correct);
    tarn_free(c->metrics.norm);
    tarn__release(c->has_gradient, sizeof(bool) * (size_t)c->parameters);
    tarn__release(c->is_changed, sizeof(bool) * (size_t)c->buffers);
    *c = (tarn__step_graph){.is_wanted = c->is_wanted, .is_required = c->is_required};
}

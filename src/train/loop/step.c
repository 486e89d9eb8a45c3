/* step.c: a training step, without anything of the loop around it. */
#include "train/loop/step.h"

#include <math.h>

#include "train/tasks/task.h"

/* Micro-batches are divided among the ranks; all of them together make the mean that the loss is. */
tarn__step_ctx tarn__step_ctx_of(tarn_trainer *t)
{
    const tarn__ranks *r = &t->ranks;
    int64_t share = r->size > 1 ? tarn__ranks_first(r, r->rank + 1) - tarn__ranks_first(r, r->rank) : 1;
    int micro_batches = (int)(t->batch_size / t->micro_batch);
    return (tarn__step_ctx){.task = t->task,
                            .model = t->model,
                            .optimizer = t->optimizer,
                            .ema = t->ema,
                            .device = t->device,
                            .micro_batches =
                                r->size > 1 ? (int)(micro_batches / r->virtual_ranks * share) : micro_batches,
                            .all_micro_batches = micro_batches,
                            .fields = tarn_dataset_field_count(t->training),
                            .clip_norm = t->options.clip_norm,
                            .label_smoothing = t->options.label_smoothing,
                            .is_split = t->ranks.virtual_ranks > 1,
                            .trainer = t};
}

/* A task that reports the norm measures it in every step; it stays on the device. An infinite bound measures without
 * clipping. */
static bool clip(const tarn__step_ctx *s, tarn__step_metrics *metrics)
{
    if (!s->task->has_norm && !(s->clip_norm > 0))
        return true;
    tarn_tensor *norm = tarn_optimizer_clip_norm(s->optimizer, s->clip_norm > 0 ? s->clip_norm : INFINITY);
    metrics->norm = s->task->has_norm ? norm : NULL;
    return norm != NULL;
}

bool tarn__step_gradients(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics)
{
    if (!(step->is_split ? tarn__ranks_gradients : step->task->gradients)(step, batch, metrics))
        return false;
    tarn__step_phase(step, TARN__PHASE_UPDATE);
    return clip(step, metrics);
}

bool tarn__step(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics)
{
    return tarn__step_gradients(step, batch, metrics) && tarn_optimizer_step(step->optimizer) &&
           (!step->ema || tarn_ema_update(step->ema));
}

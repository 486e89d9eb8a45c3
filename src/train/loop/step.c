/* step.c: a training step, without anything of the loop around it. */
#include "train/loop/step.h"

#include "train/tasks/task.h"

tarn__step_ctx tarn__step_ctx_of(tarn_trainer *t)
{
    return (tarn__step_ctx){.task = t->task,
                            .model = t->model,
                            .optimizer = t->optimizer,
                            .device = t->device,
                            .micro_batches = (int)(t->batch_size / t->micro_batch),
                            .fields = tarn_dataset_field_count(t->training),
                            .clip_norm = t->options.clip_norm,
                            .label_smoothing = t->options.label_smoothing,
                            .trainer = t};
}

bool tarn__step(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics)
{
    return step->task->gradients(step, batch, metrics) && tarn_optimizer_step(step->optimizer);
}

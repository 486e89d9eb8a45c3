/* step.h: one training step as a pure function: it reads a batch, changes model and optimizer, and writes metrics. It
 * knows no loader, clock or step count, so that step_graph.c can capture exactly this call. */
#ifndef TARN__STEP_H
#define TARN__STEP_H

#include <tarn/optim.h>
#include <tarn/train.h>

typedef struct tarn__task tarn__task; /* train/tasks/task.h */

/* Metrics of a step, on the device. They belong to the open scope, or to a captured step. */
typedef struct tarn__step_metrics {
    tarn_tensor *loss;
    tarn_tensor *correct; /* correct answers of a classifier; NULL: none */
    tarn_tensor *norm;    /* of the gradients; NULL: not measured */
} tarn__step_metrics;

/* Phases of a step. */
typedef enum tarn__phase {
    TARN__PHASE_BATCH,
    TARN__PHASE_FORWARD,
    TARN__PHASE_BACKWARD,
    TARN__PHASE_UPDATE, /* clipping and the optimizer */
    TARN__PHASES
} tarn__phase;

/* Everything that a step depends on besides its batch, which is [micro_batches][fields]. All is borrowed. */
typedef struct tarn__step_ctx {
    const tarn__task *task;
    tarn_module *model;
    tarn_optimizer *optimizer;
    tarn_ema *ema; /* NULL: none */
    tarn_device device;
    int micro_batches, fields;
    /* Of the whole step, whose mean the loss is; a part of a step, run for one virtual rank, has fewer micro-batches.
     */
    int all_micro_batches;
    tarn_tensor *total_weight; /* of the step, for tasks with weights; NULL: that of the micro-batches above */
    double clip_norm, label_smoothing;
    bool is_split; /* among virtual ranks: gradients by tarn__ranks_gradients() */
    /* Called when a phase begins, and after a micro-batch with the number of finished ones. NULL: not called; so in a
     * captured step. */
    void (*on_phase)(tarn_trainer *trainer, tarn__phase phase);
    void (*on_micro_batch)(tarn_trainer *trainer, int finished);
    tarn_trainer *trainer; /* for both */
} tarn__step_ctx;

/* The context of a trainer's steps, without calls. */
tarn__step_ctx tarn__step_ctx_of(tarn_trainer *trainer);

/* Gradients of a step and their norm, clipped if asked for. */
bool tarn__step_gradients(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics);

/* A step: gradients of the batch, then the optimizer and the average. Metrics belong to the open scope. */
bool tarn__step(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics);

/* For tasks: marks the start of a phase. */
static inline void tarn__step_phase(const tarn__step_ctx *step, tarn__phase phase)
{
    if (step->on_phase)
        step->on_phase(step->trainer, phase);
}

#endif

/* step_graph.h: a training step that is captured once and launched as a whole. If the step is split among virtual
 * ranks, a part of it is captured: the gradients of one virtual rank. Owned by the trainer, used by one thread. */
#ifndef TARN__STEP_GRAPH_H
#define TARN__STEP_GRAPH_H

#include <tarn/graph.h>

#include "train/loop/step.h"

/* A trainer's captured step. Zeroed: none. */
typedef struct tarn__step_graph {
    bool is_wanted, is_required; /* by the options: capture a step, and fail if that is impossible */
    bool has_failed;             /* capturing failed: the rest of the run is eager */
    bool is_part_due;            /* parts of the current step are captured */
    int64_t eager_steps;         /* of this run, before the first captured one */
    tarn_graph *graph;           /* NULL: not captured yet */
    tarn_tensor **batch;         /* static inputs: [micro_batches][fields], owned */
    int fields, micro_batches;
    tarn_tensor *total_weight;  /* static input of a part, owned; NULL: the task has none */
    tarn__step_metrics metrics; /* static outputs, owned: [1] each; of a part [micro_batches] each, without a norm */
    /* Changes on the host by the capture of a part, which a launch does not repeat. Owned; NULL: not captured yet. */
    int parameters, buffers;
    bool *has_gradient; /* [parameters] of the optimizer's segments, after the part */
    bool *is_changed;   /* [buffers] of the model: the part changes it */
} tarn__step_graph;

/* Decides by options and device whether steps are captured. False with an error if that is required and
 * impossible. */
bool tarn__step_graph_plan(const char *function, tarn_trainer *trainer);

/* True when the next step is a captured one; counts the eager ones before. Frees the graph before an eager step. */
bool tarn__step_graph_is_due(tarn_trainer *trainer);

/* Copies a micro-batch of a part, or the weight of its step (NULL: none), to the static inputs. */
bool tarn__step_graph_set_batch(tarn_trainer *trainer, int index, tarn_tensor *const *fields);
bool tarn__step_graph_set_weight(tarn_trainer *trainer, tarn_tensor *total_weight);

/* Runs a part with the static inputs set; the first call captures it. `part` and ctx are borrowed for the call. Random
 * numbers of a launch begin at the generator's position. */
bool tarn__step_graph_run_part(tarn_trainer *trainer, tarn_step_fn part, void *ctx);

/* Runs the next step as a captured one; the first call captures it. The metrics belong to the captured step and are
 * valid until the next one. */
bool tarn__step_graph_run(tarn_trainer *trainer, tarn__step_metrics *metrics);

/* Frees the graph, whose memory eager work may use then. The next captured step captures again. */
void tarn__step_graph_release(tarn_trainer *trainer);

/* Frees the captured step; the next run starts anew. Works while an error is pending. */
void tarn__step_graph_reset(tarn_trainer *trainer);

#endif

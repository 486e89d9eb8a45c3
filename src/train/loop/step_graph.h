/* step_graph.h: a training step that is recorded once and repeated as a whole. */
#ifndef TARN__CAPTURED_H
#define TARN__CAPTURED_H

#include <tarn/graph.h>
#include <tarn/train.h>

/* What a step gives, on the device. It belongs to the scope that was open, or to a recorded step. */
typedef struct tarn__step_metrics {
    tarn_tensor *loss;
    tarn_tensor *right; /* right answers of a classifier; NULL: none */
    tarn_tensor *norm;  /* of the gradients; NULL: not measured */
} tarn__step_metrics;

/* A trainer's recorded step. All zero: there is none. */
typedef struct tarn__step_graph {
    bool is_wanted, is_required; /* by the options: record a step, and fail where that cannot be */
    bool is_over;                /* it was tried in vain: the rest of the run is taken step by step */
    int64_t eager_steps;         /* of this run, before the first recorded one */
    tarn_graph *graph;           /* NULL: not recorded yet */
    tarn_tensor **batch;         /* what the step reads, kept: the fields of its first micro-batch, of its second … */
    int fields, micro_batches;
    bool is_feeding;            /* the step is being called: tarn__next_batch() gives it what is in `batch` */
    int given;                  /* micro-batches that it has taken */
    tarn__step_metrics figures; /* what it leaves, [1] each, kept */
} tarn__step_graph;

/* Decides by options, device and memory whether the steps of a run are to be recorded. False with an error where that
 * is wanted and cannot be. */
bool tarn__step_graph_plan(const char *function, tarn_trainer *trainer);

/* True when the next step is to be a recorded one; counts those before. */
bool tarn__step_graph_is_due(tarn_trainer *trainer);

/* Takes the next step as a recorded one; the first one records it. The figures belong to the recorded step, and hold
 * until the next one. */
bool tarn__step_graph_run(tarn_trainer *trainer, tarn__step_metrics *figures);

/* For tarn__next_batch(): the next micro-batch of the step that is being called. Borrowed from the recorded step. */
bool tarn__step_graph_batch(tarn_trainer *trainer, tarn_tensor **fields);

/* Frees what a recorded step holds; the next run begins anew. Works while an error is pending. */
void tarn__step_graph_reset(tarn_trainer *trainer);

#endif

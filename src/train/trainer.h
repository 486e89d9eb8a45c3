/* trainer.h: a run in memory, for the files of train/ that work on it.
 *
 * A step changes the model, the optimizer, the loader and the thread's random numbers; together with `place` they are
 * everything that the next step depends on. A checkpoint is all of them, and nothing else may be carried from step to
 * step. */
#ifndef TARN__TRAINER_H
#define TARN__TRAINER_H

#include <stdatomic.h>
#include <tarn/optim.h>
#include <tarn/train.h>

#include "base/os/files.h"
#include "core/tensor/random.h"
#include "train/data/chat_dataset.h"
#include "train/data/corpus.h"
#include "train/data/data_source.h"
#include "train/loop/step_graph.h"
#include "train/tasks/frozen_hash.h"

/* Where a run stands. */
typedef struct tarn__run_state {
    int64_t step; /* steps taken */
    tarn_loader_state loader;
    int64_t best_step; /* 0: no evaluation yet */
    double best_loss, best_accuracy;
    int64_t stale;  /* evaluations since the best */
    double seconds; /* of all parts of the run */
    bool finished;
} tarn__run_state;

typedef struct tarn__metrics tarn__metrics;
typedef struct tarn__phase_timer tarn__phase_timer;
typedef struct tarn__async_checkpoint tarn__async_checkpoint;

struct tarn_trainer {
    tarn_train_options options; /* complete; .out is the folder */
    tarn__data_spec description;
    tarn_device device;
    tarn__corpus corpus;       /* of a language model; all zero otherwise */
    tarn__chat_dataset *chats; /* that a language model learns from in the corpus' place; NULL: none */
    tarn_dataset *training, *validation;
    tarn_module *model;
    tarn_optimizer *optimizer;
    tarn_loader *loader;
    int64_t batch_size, steps_in_epoch, steps, eval_every;
    int64_t micro_batch; /* samples that the loader gives at once: the batch, or a part of it that divides it */
    /* by estimate; the last is all together */
    int64_t weight_bytes, gradient_bytes, state_bytes, activation_bytes, memory_needed;
    int64_t memory_min;                   /* lower bound of memory_needed */
    tarn_train_fit fits[TARN_TRAIN_FITS]; /* settings that would, where it does not fit */
    int fit_count;
    int64_t memory_free;      /* on the device, before the run had allocated anything; 0: not known */
    tarn__frozen_hash frozen; /* as the run began; of one with adapters alone */
    tarn__lock claim; /* on the folder: from when its checkpoint is read, or it is made, to the end of the run */
    bool is_batch_given, is_length_given; /* by the options of a new run: batch_size; steps or epochs */
    char chosen[256];                     /* sizes that the run was given none of, and why these; "": none */
    bool is_resumed;
    bool is_imagined; /* all of it lies on the shadow of a device: it has a plan, and cannot run */
    tarn__run_state place;
    tarn__rng_state random; /* the run's own numbers, while it does not run */

    /* What the last steps gave, on the device, until it is read. */
    tarn_tensor *losses, *hits, *norms; /* f32, i64 and f32 [log_every], kept */
    int64_t waiting;                    /* steps whose figures wait there */
    double since;                       /* when the first of them began */
    double lr;                          /* of the last step */
    /* of the last line of metrics, and of the last evaluation; NaN: none yet in this part of the run */
    double last_loss, last_judged;

    tarn__step_graph captured;      /* a step that was recorded, while it runs */
    tarn__async_checkpoint *behind; /* a checkpoint on its way to the disk; NULL: there was none yet */
    tarn__metrics *metrics;         /* NULL: not running */
    bool replaces;                  /* a run in the folder that this one overwrites */
    bool is_aside;                  /* it is under this name now: */
    char aside[1100];
    tarn__phase_timer *marks; /* NULL: nobody measures the parts of a step */
    bool in_phase;            /* a part of a step is a span of the profile that is being taken */

    /* Of profile.c. */
    int64_t profile_wanted, profile_taken; /* steps */
    int64_t steps_in_run;                  /* taken since the run began or went on */
    bool is_profiled;                      /* the profile is being taken now */
    bool is_sampled;                       /* the step that is being taken tells how busy the device is */
    double sampled_at;                     /* when the last one was */
    /* that the device worked in it; 0: there was none since the last line of metrics */
    double busy_seconds;
    double utilization; /* as a share of the steps' time then; 0: not known yet */
    atomic_bool stop;

    /* For other threads: tarn_trainer_progress(). */
    struct {
        atomic_int phase;
        _Atomic int64_t step, samples; /* steps taken, and samples of the next one that are done */
    } progress;
};

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* The model that options and description name. The caller owns it. */
tarn_module *tarn__classifier_create(const char *function, const tarn_train_options *options,
                                     const tarn__data_spec *description, tarn_device device);

/* config.json of a folder: what a run is. That of a language model says all that Hugging Face's says, too. False with
 * an error. */
bool tarn__config_write(const char *function, const tarn_trainer *trainer);
bool tarn__config_read(const char *function, const char *folder, tarn_train_options *options,
                       tarn__data_spec *description);

/* True when a run's config.json has its own checksum, or none. False with an error. */
bool tarn__config_verify(const tarn__json_file *document);

/* "FOLDER/NAME", in `path`. */
typedef struct tarn__path {
    char text[1100];
} tarn__path;
const char *tarn__path_in(const char *folder, const char *name, tarn__path *path);

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* Writes all that the next step depends on. Atomic: a program stopped meanwhile leaves this checkpoint or the one
 * before. */
bool tarn__checkpoint_save(tarn_trainer *trainer);

/* Takes the folder's checkpoint; where there is none yet, the run is at its beginning and stays so. */
bool tarn__checkpoint_load(const char *function, tarn_trainer *trainer);

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

/* Opens the records of a run: metrics.jsonl, events, curves. What they hold beyond `step` did not last, and is dropped.
 */
tarn__metrics *tarn__metrics_open(const tarn_trainer *trainer);
bool tarn__metrics_add(tarn__metrics *metrics, const tarn_train_report *report);
bool tarn__metrics_flush(tarn__metrics *metrics); /* brings everything to the files */
void tarn__metrics_close(tarn__metrics *metrics); /* NULL is allowed; works while an error is pending */

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Notes for tarn_trainer_progress() what begins here, and how many samples of the step under way are done. */
void tarn__progress_enter(tarn_trainer *trainer, tarn_train_phase phase);
void tarn__progress_in_step(tarn_trainer *trainer, int64_t samples);

/* One step: the next batch, forward, backward, and the change of the weights. False with an error. */
bool tarn__train_step(tarn_trainer *trainer, tarn__step_metrics *figures);

/* The same up to the gradients, without the change. */
bool tarn__train_gradients(tarn_trainer *trainer, tarn__step_metrics *figures);

/* The gradients of one micro-batch that the caller has; where a step has more, of two: the second adds to the first. */
bool tarn__train_gradients_of(tarn_trainer *trainer, tarn_tensor *const *fields, tarn__step_metrics *figures);

/* Numbers that are trained, and that are not: blocks count as what they stand for. */
typedef struct tarn__weight_counts {
    int64_t trained, frozen;
    int64_t bytes; /* of both */
} tarn__weight_counts;
tarn__weight_counts tarn__count_weights(const tarn_module *model);

/* The model that options and description name, on the trainer's device. The caller owns it. */
tarn_module *tarn__model_create(const char *function, const tarn_trainer *trainer);

/* The same, also of a run with a base, which is opened. */
tarn_module *tarn__model_reopen(const char *function, tarn_trainer *trainer);

/* The optimizer that options name. The caller owns it. */
tarn_optimizer *tarn__optimizer_create(const tarn_train_options *options, tarn_module *model);

/* Checks that model and data fit, and sets the trainer's memory_needed, what that consists of, and memory_min: by a
 * step on the meta device, from shapes alone. The trainer has its options, data and sizes, and needs no model. False
 * with an error. */
bool tarn__plan_memory(const char *function, tarn_trainer *trainer);

/* Sets the trainer's memory_free. */
bool tarn__read_memory_free(const char *function, tarn_trainer *trainer);

/* Holds what is needed against what is free. Where the estimate is more, finds settings that fit; a run whose lower
 * bound is more is refused, unless it is only imagined or told to ignore that. */
bool tarn__plan_fit_check(const char *function, tarn_trainer *trainer);

/* The next batch; at the end of an epoch the first of the next. To a recorded step its own tensors. */
bool tarn__next_batch(tarn_trainer *trainer, tarn_tensor **fields);

/* Floating-point operations of a step of a language model, as they are commonly counted; 0: not known. */
double tarn__step_flops(const tarn_trainer *trainer);

/* One step with all that belongs to it: its figures are put aside on the device until they are read. False with an
 * error. */
bool tarn__take_step(tarn_trainer *trainer);

/* What a run changes of the calling thread: its random numbers, and how products are made. */
typedef struct tarn__thread_settings {
    tarn__rng_state random;
    bool tf32;
} tarn__thread_settings;
void tarn__trainer_enter(const tarn_trainer *trainer, tarn__thread_settings *callers);
void tarn__trainer_leave(tarn_trainer *trainer, const tarn__thread_settings *callers);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* The parts of a step. */
typedef enum tarn__phase {
    TARN__PHASE_BATCH,
    TARN__PHASE_FORWARD,
    TARN__PHASE_BACKWARD,
    TARN__PHASE_UPDATE, /* clipping and the optimizer */
    TARN__PHASES
} tarn__phase;

/* Says that a part of the step begins here on the device, where phases are timed. Only eager steps are timed
 * so. */
void tarn__phase_begin(tarn_trainer *trainer, tarn__phase phase);

/* Marks from here on; adds up the device's milliseconds of each part since then; ends the marking. Between the two may
 * be any number of steps. */
bool tarn__phase_timer_open(tarn_trainer *trainer);
bool tarn__phase_timer_read(tarn_trainer *trainer, double *milliseconds);
void tarn__phase_timer_close(tarn_trainer *trainer);

/* The end of the last part. */
void tarn__phase_end(tarn_trainer *trainer);

/* Around each step, and after the last one before an evaluation: where a profile is wanted, or a look at how busy the
 * device is. False with an error. */
bool tarn__profile_before_step(tarn_trainer *trainer);
bool tarn__profile_after_step(tarn_trainer *trainer);
bool tarn__profile_end(tarn_trainer *trainer);

/* A trainer on random numbers instead of data, for measuring: it has no folder and cannot run. Options are checked. */
tarn_trainer *tarn__trainer_on_random_data(const char *function, const tarn_train_options *options);

/* Opens the random numbers: tokens, or images 3 × 32 × 32 of 10 classes. */
bool tarn__random_data_open(const char *function, tarn_trainer *trainer);

/* ---- the log of runs --------------------------------------------------------------------------------------------- */

/* Where a part of a run began, from a start or a resume to its end. */
typedef struct tarn__run_segment {
    int64_t step;
    double seconds;
} tarn__run_segment;

/* Adds a line to the log of runs beside the run's folder; `end` says how the part ended. What keeps it from doing so is
 * a warning: the run itself is whole. Works while an error is pending. */
void tarn__log_run(const tarn_trainer *trainer, const tarn__run_segment *part, const char *end);

/* ---- language models --------------------------------------------------------------------------------------------- */

/* Opens a run's text, completes the sizes of its model, and describes the data; `tokenizer` is the option, or the
 * folder of a run that goes on. Of one that goes on the data must be the described one. False with an error. */
bool tarn__lm_open(const char *function, tarn_trainer *trainer, const char *tokenizer);

/* Completes the sizes of the model alone. A run with a base has its model. */
bool tarn__lm_sizes(const char *function, tarn_trainer *trainer);

/* The same for a trainer that has its corpus, which may be without a tokenizer. */
bool tarn__lm_setup(const char *function, tarn_trainer *trainer);

/* The model that complete options name; its weights are drawn from the run's seed. The caller owns it. */
tarn_module *tarn__lm_model(const char *function, const tarn_trainer *trainer);

/* Options that do not go with text, or with anything else, as `is_text` says. */
bool tarn__lm_check(const char *function, const tarn_train_options *options, bool is_text);

/* The fraction of the documents of a chat dataset for validation. */
double tarn__val_fraction(const tarn_train_options *options);

/* The loss of a batch: fields are tokens and targets, of chats positions and starts as well. Belongs to the open scope.
 */
tarn_tensor *tarn__lm_loss(const char *function, tarn_module *model, tarn_tensor *const *fields, int field_count);

/* Targets that count, as a number on their device. Belongs to the open scope. */
tarn_tensor *tarn__lm_target_count(tarn_tensor *targets, tarn_dtype dtype);

/* The gradients of one step, added up over its micro-batches; or those of one micro-batch, and of the same again where
 * a step has more than one. */
bool tarn__lm_gradients(tarn_trainer *trainer, tarn__step_metrics *figures);
bool tarn__lm_gradients_of(tarn_trainer *trainer, tarn_tensor *const *fields, tarn__step_metrics *figures);

/* Applies a language model to all windows of a dataset, outside training mode and without a record. */
bool tarn__lm_evaluate(const char *function, tarn_module *model, tarn_dataset *windows, int64_t batch_size, int workers,
                       tarn_text_evaluation *evaluation);

/* What the model writes; the caller frees it with tarn_tokenizer_release(). NULL with an error. */
char *tarn__lm_sample(tarn_trainer *trainer, size_t *length);

/* Writes the tokenizer to a folder, so that transformers finds it, too. */
bool tarn__lm_save_tokenizer(const char *function, const tarn_trainer *trainer, const char *folder);

/* Writes the model of the best evaluation, or its adapters, to the folder "best" of the run. */
bool tarn__lm_save_best(const tarn_trainer *trainer);

/* Writes a checkpoint of this evaluation to the folder "step-STEP" of the run, and removes the one that is too old to
 * be kept. */
bool tarn__lm_keep_checkpoint(tarn_trainer *trainer);

/* After a loss that was not finite: goes back to the last checkpoint, repeats the steps from there up to the first that
 * gives a number that is not finite, leaves a checkpoint of the state before it, and raises an error that names step
 * and layer. Is false. */
bool tarn__find_nonfinite(tarn_trainer *trainer, int64_t last_step);

/* After an evaluation whose loss was not finite: repeats it and raises an error that names step and layer. Is false. */
bool tarn__find_nonfinite_evaluation(tarn_trainer *trainer,
                                     bool (*evaluate)(tarn_trainer *trainer, tarn_evaluation *result));

#endif

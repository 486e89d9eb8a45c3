/* trainer.h: a run in memory, for the files of train/ that work on it.
 *
 * A step changes the model, the optimizer, the average, the loader and the thread's random numbers; together with
 * `state` they are everything that the next step depends on. A checkpoint is all of them, and no other state may be
 * carried from step to step: that makes a resumed run bitwise identical to an uninterrupted one.
 *
 * The trainer owns all its members. One thread uses it at a time; `stop` and `progress` are atomic and may be accessed
 * by others. `function` is the public function that an error names. Functions that return bool are false with an error.
 */
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
#include "train/ranks.h"
#include "train/tasks/frozen_hash.h"

/* State of a run, besides weights and optimizer; stored in trainer.json. */
typedef struct tarn__run_state {
    int64_t step; /* steps taken */
    tarn_loader_state loader;
    int64_t best_step; /* 0: no evaluation yet */
    double best_loss, best_accuracy;
    double best_rmse, best_mae, best_r2; /* of a regression; else 0 */
    int64_t stale;                       /* evaluations since the best */
    double seconds;                      /* of all segments of the run */
    bool finished;
} tarn__run_state;

/* Result of a validation; a metric that the task lacks is 0. */
typedef struct tarn__evaluation {
    int64_t samples;
    double loss, accuracy;
    double rmse, mae, r2; /* of a regression */
} tarn__evaluation;

typedef struct tarn__metrics tarn__metrics;
typedef struct tarn__phase_timer tarn__phase_timer;
typedef struct tarn__async_checkpoint tarn__async_checkpoint;

struct tarn_trainer {
    tarn_train_options options; /* with defaults resolved; .out is the run folder */
    const tarn__task *task;     /* what is trained; chosen with the data, static */
    tarn__data_spec data_spec;
    tarn_device device;
    tarn__ranks ranks;         /* place of this process in a data-parallel run */
    tarn__corpus corpus;       /* of a language model; else zeroed */
    tarn__chat_dataset *chats; /* chat dataset, instead of the text of the corpus; NULL: none */
    tarn_dataset *training, *validation;
    tarn_module *model;
    tarn_optimizer *optimizer;
    tarn_ema *ema; /* moving average of the weights; NULL: none */
    tarn_loader *loader;
    int64_t batch_size, steps_in_epoch, steps, eval_every;
    int64_t micro_batch; /* samples per batch of the loader: divides batch_size; smaller with gradient accumulation */
    /* estimates by plan.c; memory_needed is the total */
    int64_t weight_bytes, gradient_bytes, state_bytes, activation_bytes, memory_needed;
    int64_t memory_min;                   /* lower bound of memory_needed */
    tarn_train_fit fits[TARN_TRAIN_FITS]; /* settings that would fit, if these do not */
    int fit_count;
    int64_t memory_free;      /* on the device, before the run allocates; 0: unknown */
    tarn__frozen_hash frozen; /* hashes at the start; only of a run with adapters */
    /* from the creation of the folder, or from loading its checkpoint, to the end of the run */
    tarn__lock folder_lock;
    bool is_batch_given, is_length_given; /* by the options of a new run: batch_size; steps or epochs */
    char chosen[256];                     /* default sizes that were chosen, and why; "": none */
    char notes[2048];                     /* what was found about the data, a sentence per line; "": nothing */
    bool is_resumed;
    bool is_dry_run; /* a dry run: everything is on the meta device; it has a plan and cannot run */
    tarn__run_state state;
    tarn__rng_state random; /* the run's random state, while it is not running */

    /* Metrics of the last steps, on the device until they are read. */
    tarn_tensor *losses, *correct, *norms; /* f32, i64 and f32 [log_every], owned */
    int64_t unread_steps;                  /* steps whose metrics are not read yet */
    double last_time;                      /* seconds: start of the first of them; count_time() */
    double lr;                             /* of the last step */
    /* of the last line of metrics and the last evaluation; NaN: none yet in this segment */
    double last_loss, last_val_loss;

    tarn__step_graph step_graph;              /* the captured step, while the run is running */
    tarn__async_checkpoint *async_checkpoint; /* checkpoint being written; NULL: none yet */
    tarn__metrics *metrics;                   /* NULL: not running */
    bool will_overwrite;                      /* the folder has a run that this one overwrites */
    bool has_backup;                          /* that run was renamed to this path: */
    char backup_path[1100];
    tarn__phase_timer *phase_timer; /* NULL: phases are not timed */
    bool in_phase;                  /* a phase is an open span of the profile */

    /* State of profile.c. */
    int64_t profile_wanted, profile_taken; /* steps */
    int64_t steps_in_run;                  /* steps since the start of this segment */
    bool is_profiled;                      /* a profile is being recorded */
    bool is_sampled;                       /* the current step samples the utilization */
    double sampled_at;                     /* seconds: time of the last sample */
    /* device time of the sampled step; 0: no sample since the last line of metrics */
    double busy_seconds;
    double utilization; /* fraction of the step time; 0: unknown */
    atomic_bool stop;

    /* For other threads: tarn_trainer_progress(). */
    struct {
        atomic_int phase;
        _Atomic int64_t step, samples; /* steps taken, and finished samples of the current one */
    } progress;
};

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Creates the classifier, or regression, that options and data spec name. The caller owns it. NULL with an error. */
tarn_module *tarn__classifier_create(const char *function, const tarn_train_options *options,
                                     const tarn__data_spec *data_spec, tarn_device device);

/* Loads the weights of options.finetune into the model, but for a head of another shape, and describes it in `chosen`
 * (tasks/classify_base.c). On the meta device names and shapes are only compared. */
bool tarn__classifier_load_base(const char *function, tarn_trainer *trainer, tarn_module *model);

/* Freezes all but the head. */
bool tarn__classifier_freeze(tarn_module *model);

/* config.json of a run folder; that of a language model also has the keys of transformers. */
bool tarn__config_write(const char *function, const tarn_trainer *trainer);
bool tarn__config_read(const char *function, const char *folder, tarn_train_options *options,
                       tarn__data_spec *data_spec);

/* True when config.json has a valid checksum, or none. False with an error. */
bool tarn__config_verify(const tarn__json_file *document);

/* "FOLDER/NAME", written to `path` and returned. */
typedef struct tarn__path {
    char text[1100];
} tarn__path;
const char *tarn__path_in(const char *folder, const char *name, tarn__path *path);

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* Writes a checkpoint. A kill at any moment leaves this one or the previous one. All ranks call it: rank 0 writes, and
 * the others their shares of the optimizer's state where it is divided. */
bool tarn__checkpoint_save(tarn_trainer *trainer);

/* "x86-64 avx512": the instruction level of a CPU run; another one rounds differently. False: not on the CPU. */
bool tarn__instruction_level(const tarn_trainer *trainer, char *text, size_t size);

/* Loads the checkpoint of the folder. Without one the run stays at its start. */
bool tarn__checkpoint_load(const char *function, tarn_trainer *trainer);

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

/* Opens metrics.jsonl, samples.jsonl, TensorBoard events and report.html. Lines after the current step are stale and
 * removed. The caller owns the result. NULL with an error. */
tarn__metrics *tarn__metrics_open(const tarn_trainer *trainer);
bool tarn__metrics_add(tarn__metrics *metrics, const tarn_train_report *report);
bool tarn__metrics_add_sample(tarn__metrics *metrics, int64_t step, const char *text, size_t length);
/* Predictions of a classifier's best weights, for report.html: a pass over the validation set. No-op for others. */
bool tarn__metrics_add_classes(tarn__metrics *metrics, const tarn_trainer *trainer);
bool tarn__metrics_flush(tarn__metrics *metrics); /* writes events and report.html */
void tarn__metrics_close(tarn__metrics *metrics); /* NULL is allowed; works while an error is pending */

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Sets the current phase, and the finished samples of the current step, for tarn_trainer_progress(). */
void tarn__progress_enter(tarn_trainer *trainer, tarn_train_phase phase);
void tarn__progress_in_step(tarn_trainer *trainer, int64_t samples);

/* One eager step: fetches its micro-batches, then calls tarn__step(). Metrics belong to the open scope. */
bool tarn__train_step(tarn_trainer *trainer, tarn__step_metrics *metrics);

/* Same without the optimizer step. */
bool tarn__train_gradients(tarn_trainer *trainer, tarn__step_metrics *metrics);

/* Number of trained and frozen weights; quantized weights count as dequantized elements. */
typedef struct tarn__weight_counts {
    int64_t trained, frozen;
    int64_t bytes; /* of both */
} tarn__weight_counts;
tarn__weight_counts tarn__count_weights(const tarn_module *model);

/* Creates the model of the task, on the trainer's device, or opens the base of a run that has one; the trainer's
 * `model` then holds it too. The caller owns it. NULL with an error. */
tarn_module *tarn__model_reopen(const char *function, tarn_trainer *trainer);

/* Creates the optimizer that the options name. The caller owns it. NULL with an error. */
bool tarn__batchnorms_sync(const tarn_train_options *options, tarn_module *model); /* as sync_batchnorm asks */
bool tarn__is_sharded(const tarn_train_options *options); /* the optimizer's state is divided among ranks */
tarn_optimizer *tarn__optimizer_create(const tarn_train_options *options, tarn_module *model);

/* Creates the moving average that the options ask for, if they do. */
bool tarn__ema_create(tarn_trainer *trainer);

/* Sets memory_needed, its parts and memory_min by a step on the meta device, from shapes alone; this also checks that
 * model and data fit together. Needs options, data and sizes of the trainer, but no model. */
bool tarn__plan_memory(const char *function, tarn_trainer *trainer);

/* Sets memory_free. */
bool tarn__read_memory_free(const char *function, tarn_trainer *trainer);

/* Compares needed with free memory. If the estimate exceeds it, finds settings that fit; if the lower bound does,
 * raises an error, except for a dry run and with ignore_memory. */
bool tarn__plan_fit_check(const char *function, tarn_trainer *trainer);

/* The next batch of the loader; after the end of an epoch the first of the next one. */
bool tarn__loader_batch(tarn_trainer *trainer, tarn_tensor **fields);

/* One step, eager or captured; its metrics are stored on the device until they are read. */
bool tarn__take_step(tarn_trainer *trainer);

/* Thread settings that a run changes: random state and TF32. Enter saves the caller's and sets the run's; leave
 * restores them. */
typedef struct tarn__thread_settings {
    tarn__rng_state random;
    bool tf32;
} tarn__thread_settings;
void tarn__trainer_enter(const tarn_trainer *trainer, tarn__thread_settings *callers);
void tarn__trainer_leave(tarn_trainer *trainer, const tarn__thread_settings *callers);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Marks the start of a phase on the device, if phases are timed or profiled. Eager steps only. */
void tarn__phase_begin(tarn_trainer *trainer, tarn__phase phase);

/* Open starts timing phases; read adds up the device's milliseconds per phase since the last read, [TARN__PHASES], over
 * any number of steps; close ends it. */
bool tarn__phase_timer_open(tarn_trainer *trainer);
bool tarn__phase_timer_read(tarn_trainer *trainer, double *milliseconds);
void tarn__phase_timer_close(tarn_trainer *trainer);

/* Ends the current phase. */
void tarn__phase_end(tarn_trainer *trainer);

/* Called before and after each step, and after the last one before an evaluation: starts and ends a profile or a
 * sample. */
bool tarn__profile_before_step(tarn_trainer *trainer);
bool tarn__profile_after_step(tarn_trainer *trainer);
bool tarn__profile_end(tarn_trainer *trainer);

/* Creates a trainer on random data, for measuring: it has no folder and cannot run. Options must be checked. */
tarn_trainer *tarn__trainer_on_random_data(const char *function, const tarn_train_options *options);

/* Chooses the task by the model and opens random data for it: tokens, or images 3 × 32 × 32 of 10 classes. */
bool tarn__random_data_open(const char *function, tarn_trainer *trainer);
bool tarn__random_tokens_open(const char *function, tarn_trainer *trainer); /* the corpus only */
bool tarn__random_images_open(const char *function, tarn_trainer *trainer); /* datasets and data spec */

/* ---- the log of runs --------------------------------------------------------------------------------------------- */

/* Start of a segment of a run: from a start or resume to its end. */
typedef struct tarn__run_segment {
    int64_t step;
    double seconds;
} tarn__run_segment;

/* Appends a segment to the log of runs next to the run folder; `end` is how it ended. A failure is a warning only: the
 * run itself is complete. Works while an error is pending. */
void tarn__log_run(const tarn_trainer *trainer, const tarn__run_segment *segment, const char *end);

/* ---- non-finite values --------------------------------------------------------------------------------------------
 */

/* After a non-finite loss: loads the last checkpoint, repeats the steps up to the first with a non-finite value, saves
 * the state before it, and raises an error that names step and layer. Returns false. */
bool tarn__find_nonfinite(tarn_trainer *trainer, int64_t last_step);

/* After an evaluation with a non-finite loss: repeats it and raises an error that names step and layer. Returns
 * false. */
bool tarn__find_nonfinite_evaluation(tarn_trainer *trainer);

#endif

/* trainer.c: creates a trainer: data, model, optimizer and loader of a run that is new, resumed, or a dry run.
 *
 * A dry run is on the meta device: everything has shapes but no storage. The caller's random state is saved and
 * restored: initial weights come from the run's seed alone. A failure frees everything through tarn_trainer_free().
 * Creation happens on one thread; only tarn_trainer_stop() and tarn_trainer_progress() may be called from others. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "core/device/device.h"
#include "parallel/comm.h"
#include "train/output/async_checkpoint.h"
#include "train/run_folder.h"
#include "train/tasks/finetune.h"
#include "train/tasks/lm.h"

#define DEFAULT_BETA2 0.999 /* default in the table of options */

/* epochs of at least LONG_EPOCH steps are evaluated each; shorter ones at most about MAX_EVALUATIONS times per run */
enum { MAX_EVALUATIONS = 50, LONG_EPOCH = 100 };

/* ---- parts ------------------------------------------------------------------------------------------------------- */

tarn_module *tarn__model_reopen(const char *function, tarn_trainer *t)
{
    if (!t->options.base[0]) {
        tarn_module *model = t->task->create_model(function, t);
        bool good =
            model && (!t->options.finetune[0] || t->is_resumed || tarn__classifier_load_base(function, t, model));
        if (!good)
            tarn_module_free(model);
        return good ? model : NULL;
    }
    bool good = tarn__base_model_open(function, t, t->device) && tarn__lm_sizes(function, t);
    if (!good)
        tarn_module_free(t->model);
    return good ? t->model : (t->model = NULL);
}

bool tarn__batchnorms_sync(const tarn_train_options *o, tarn_module *model)
{
    return !o->sync_batchnorm || tarn_batchnorm_sync(model, o->comm);
}

bool tarn__is_sharded(const tarn_train_options *o)
{
    return o->comm && tarn_comm_size(o->comm) > 1 && strcmp(o->zero, "1") == 0;
}

tarn_optimizer *tarn__optimizer_create(const tarn_train_options *o, tarn_module *model)
{
    tarn_comm *comm = tarn__is_sharded(o) ? o->comm : NULL;
    float lr = (float)o->lr, decay = (float)o->weight_decay, beta2 = (float)o->beta2;
    if (strcmp(o->optimizer, "sgd") == 0)
        return tarn_sgd(
            model, &(tarn_sgd_options){.lr = lr, .momentum = (float)o->momentum, .weight_decay = decay, .comm = comm});
    if (strcmp(o->optimizer, "adam") == 0)
        return tarn_adam(model, &(tarn_adam_options){.lr = lr, .beta2 = beta2, .weight_decay = decay, .comm = comm});
    return tarn_adamw(model, &(tarn_adamw_options){.lr = lr, .beta2 = beta2, .weight_decay = decay, .comm = comm});
}

bool tarn__ema_create(tarn_trainer *t)
{
    if (t->options.ema > 0)
        t->ema = tarn_ema_new(t->model, t->optimizer, &(tarn_ema_options){.decay = t->options.ema, .warmup = true});
    return t->ema || !(t->options.ema > 0);
}

/* The step schedule: lr times gamma every lr_step steps. */
static bool is_step_schedule(const tarn_train_options *o)
{
    return strcmp(o->schedule, "step") == 0;
}

static bool set_schedule(const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    tarn_schedule_kind kind = is_step_schedule(o)                     ? TARN_SCHEDULE_STEP
                              : strcmp(o->schedule, "constant") == 0  ? TARN_SCHEDULE_CONSTANT
                              : strcmp(o->schedule, "linear") == 0    ? TARN_SCHEDULE_LINEAR
                              : strcmp(o->schedule, "one-cycle") == 0 ? TARN_SCHEDULE_ONE_CYCLE
                                                                      : TARN_SCHEDULE_COSINE;
    int64_t step_size = o->lr_step ? o->lr_step : o->lr_step_epochs * t->steps_in_epoch;
    return tarn_optimizer_set_schedule(t->optimizer, &(tarn_schedule){.kind = kind,
                                                                      .warmup_steps = o->warmup,
                                                                      .total_steps = t->steps,
                                                                      .final_factor = o->min_lr / o->lr,
                                                                      .step_size = step_size,
                                                                      .gamma = o->lr_gamma});
}

/* The step schedule needs exactly one of lr_step and lr_step_epochs, and its options apply to no other schedule. */
static bool check_step_schedule(const char *function, const tarn_train_options *o)
{
    const char *inapplicable = o->lr_step          ? "lr_step"
                               : o->lr_step_epochs ? "lr_step_epochs"
                               : o->lr_gamma > 0   ? "lr_gamma"
                                                   : NULL;
    if (!is_step_schedule(o))
        return !inapplicable ||
               tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to the schedule step only; the schedule is %s",
                           function, inapplicable, o->schedule);
    if (!o->lr_step == !o->lr_step_epochs)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the schedule step needs %s", function,
                           o->lr_step ? "lr_step or lr_step_epochs, not both" : "lr_step (in steps) or lr_step_epochs");
    return true;
}

static bool has_tf32(tarn_device device)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    return backend && backend->has_tf32;
}

/* ZeRO-1 divides what an optimizer has besides parameters and gradients, among ranks. */
static bool check_zero(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    if (strcmp(o->zero, "1") != 0)
        return true;
    if (t->ranks.virtual_ranks == 1)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: zero is 1, but the run has one virtual rank: there are no other ranks to divide the "
                           "optimizer's state with; set virtual_ranks or start several ranks",
                           function);
    bool has_state =
        strcmp(o->optimizer, "sgd") != 0 || o->momentum > 0 || o->ema > 0 || strcmp(o->precision, "bf16") == 0;
    return has_state ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: zero is 1, but sgd without momentum has no state to divide among ranks", function);
}

static bool check_reduce(const char *function, const tarn_trainer *t)
{
    return !t->ranks.is_fast || t->ranks.virtual_ranks > 1 ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: reduce is fast, but the run has one virtual rank: there are no sums; set virtual_ranks or "
                       "start several ranks",
                       function);
}

/* With one virtual rank there is nothing to exchange. Ranks with more micro-batches than others would time out. */
static bool check_sync(const char *function, const tarn_trainer *t)
{
    if (t->options.sync_batchnorm && t->ranks.virtual_ranks % t->ranks.size != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: sync_batchnorm is set, but %d ranks do not divide the run's virtual_ranks, %" PRId64,
                           function, t->ranks.size, t->ranks.virtual_ranks);
    return !t->options.sync_batchnorm || t->ranks.virtual_ranks > 1 ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: sync_batchnorm is set, but the run has one virtual rank: its statistics are those of the "
                       "whole batch already",
                       function);
}

/* Options that are valid alone but not together. False with an error. */
static bool check_combinations(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    if (o->momentum > 0 && strcmp(o->optimizer, "sgd") != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: momentum applies to sgd only; the optimizer is %s", function,
                           o->optimizer);
    if (o->beta2 != DEFAULT_BETA2 && strcmp(o->optimizer, "sgd") == 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: beta2 applies to adam and adamw only; the optimizer is sgd",
                           function);
    bool has_min_lr = !is_step_schedule(o) && strcmp(o->schedule, "constant") != 0;
    if (o->min_lr > o->lr)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: min_lr is %g; must be at most lr, %g", function, o->min_lr, o->lr);
    if (o->min_lr > 0 && !has_min_lr)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: min_lr applies to linear, cosine and one-cycle only; the schedule is %s", function,
                           o->schedule);
    if (!check_step_schedule(function, o) || !check_zero(function, t) || !check_sync(function, t) ||
        !check_reduce(function, t))
        return false;
    if (strcmp(o->precision, "tf32") == 0 && !has_tf32(t->device))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: precision tf32 is not supported on %s; use f32", function,
                           o->device);
    if (o->warmup >= t->steps)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: warmup is %" PRId64 " steps; must be less than the run's %" PRId64,
                           function, o->warmup, t->steps);
    return true;
}

/* Steps of the fewest whole epochs with at least `min_steps` steps. */
static int64_t round_up_to_epochs(int64_t steps_in_epoch, int64_t min_steps)
{
    return (min_steps + steps_in_epoch - 1) / steps_in_epoch * steps_in_epoch;
}

/* Evaluation is at the end of every epoch. Very short epochs, and short ones of a run with very many, are evaluated
 * together; the interval is stored in the options, so that a resumed run keeps it. */
static void count_steps(tarn_trainer *t)
{
    t->steps = t->options.steps ? t->options.steps : t->options.epochs * t->steps_in_epoch;
    int64_t min_steps = t->steps / MAX_EVALUATIONS < LONG_EPOCH ? t->steps / MAX_EVALUATIONS : LONG_EPOCH;
    min_steps = min_steps > t->options.log_every ? min_steps : t->options.log_every;
    if (!t->options.eval_every && !t->is_resumed && t->steps_in_epoch < min_steps)
        t->options.eval_every = round_up_to_epochs(t->steps_in_epoch, min_steps);
    t->eval_every = t->options.eval_every ? t->options.eval_every : t->steps_in_epoch;
}

/* ---- creation and release ---------------------------------------------------------------------------------------- */

/* Creates everything that follows from options and data spec. Memory is planned and checked before anything is
 * allocated. */
static bool create_components(const char *function, tarn_trainer *t)
{
    count_steps(t);
    if (!check_combinations(function, t) || !tarn__ranks_plan_overlap(function, t) ||
        !tarn__ranks_check_batch(function, t))
        return false;
    tarn__log(TARN_LOG_INFO, "planning and creating the model");
    tarn__rng_state callers = tarn__random_save();
    tarn_module_free(t->model); /* the base on the meta device: sizes without storage */
    t->model = NULL;
    /* all ranks have read what is free before one of them allocates */
    bool good = tarn__plan_memory(function, t) && tarn__read_memory_free(function, t) && tarn__ranks_wait(t) &&
                tarn__plan_fit_check(function, t);
    tarn_seed((uint64_t)t->options.seed);
    if (good)
        t->model = tarn__model_reopen(function, t);
    t->random = tarn__random_save();
    good = good && t->model && tarn__batchnorms_sync(&t->options, t->model) && tarn__adapters_add(function, t) &&
           (t->is_dry_run || tarn__frozen_record(function, t));
    tarn__random_restore(&callers);
    if (!good || !tarn__step_graph_plan(function, t))
        return false;
    t->optimizer = tarn__optimizer_create(&t->options, t->model);
    t->loader = t->optimizer && tarn__ema_create(t) ? t->task->create_loader(t) : NULL;
    if (t->loader)
        tarn__ranks_select(t);
    t->losses = tarn__scope_take(tarn_zeros(TARN_SHAPE(t->options.log_every), TARN_F32, t->device));
    t->correct = tarn__scope_take(tarn_zeros(TARN_SHAPE(t->options.log_every), TARN_I64, t->device));
    t->norms = tarn__scope_take(tarn_zeros(TARN_SHAPE(t->options.log_every), TARN_F32, t->device));
    return (t->loader && set_schedule(t) && t->losses && t->correct && t->norms) || tarn__raise_within(function);
}

static bool find_device(const char *function, tarn_trainer *t)
{
    t->device = tarn_device_parse(t->options.device);
    if (tarn_failed())
        return tarn__raise_within(function);
    tarn_device_name(t->device, t->options.device,
                     sizeof(t->options.device)); /* config.json names the device that auto selected */
    if (t->is_dry_run)
        t->device = tarn__meta_device_of(t->device);
    return true;
}

/* Chooses the task by the data and opens it; for a base, first its model on the meta device, from which sizes and
 * context follow. */
static bool open_data(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    t->task = tarn__task_of_data(o->data);
    tarn__precision_resolve(o, t->device, t->task);
    tarn__log(TARN_LOG_INFO, "reading %s", o->data);
    return tarn__task_check(function, t->task, o) && tarn__finetune_check(function, o, false) &&
           (!o->base[0] || tarn__base_model_open(function, t, tarn__meta_device_of(t->device))) &&
           t->task->open(function, t);
}

/* A new run. The folder is checked before the model is created, and written by tarn_trainer_run() only. */
static bool start_run(const char *function, tarn_trainer *t)
{
    t->is_batch_given = t->options.batch_size > 0;
    t->is_length_given = t->options.steps > 0 || t->options.epochs > 0;
    tarn__train_options_complete(&t->options);
    if (!tarn__ranks_open(function, t) || !find_device(function, t) || !open_data(function, t))
        return false;
    if (!t->options.out[0])
        tarn__run_folder_name(t);
    return (!tarn__ranks_is_first(&t->ranks) || tarn__run_folder_check(function, t)) &&
           tarn__ranks_compare(function, t) && create_components(function, t);
}

/* Opens the data of a resumed run, which must be unchanged. */
static bool reopen_data(const char *function, tarn_trainer *t, const char *folder)
{
    if (t->options.base[0] && !tarn__base_model_open(function, t, tarn__meta_device_of(t->device)))
        return false;
    return t->task->reopen(function, t, folder);
}

/* Locks the folder, then removes leftovers of a killed process: no other process can be writing them. */
static bool lock_folder(const char *function, tarn_trainer *t, const char *folder)
{
    if (!tarn__folder_lock(&t->folder_lock, function, folder))
        return false;
    if (!t->is_dry_run) {
        tarn__folder_sweep(folder);
        tarn__run_folder_drop_leftovers(folder);
    }
    return true;
}

/* Data may be given under a new path; the data spec shows that it is the same. Runs without that record reject it. */
static bool check_data_path(const char *function, const tarn_trainer *t, const tarn_train_options *changes)
{
    bool is_new_path = changes->data[0] && strcmp(changes->data, t->options.data) != 0;
    return !is_new_path || tarn__data_spec_has_hash(&t->data_spec) ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: data cannot be changed: the run's config.json has no hash of its data to compare with; "
                       "start a new run",
                       function);
}

/* The precision of a run does not change: `auto` is no request, and a config.json without one is of a version that had
 * f32 only. */
static bool keep_precision(const char *function, tarn_trainer *t, tarn_train_options *changes)
{
    if (strcmp(changes->precision, "auto") == 0)
        memset(changes->precision, 0, sizeof(changes->precision));
    tarn__precision_resolve(&t->options, tarn_device_cpu(), NULL);
    return tarn__train_options_change(function, &t->options, changes);
}

/* Resumes a run: config.json, then data, model, and the checkpoint. `given` has the options to change; only resumable
 * ones may be set. */
static bool resume_run(const char *function, tarn_trainer *t, const char *folder, const tarn_train_options *given)
{
    tarn_train_options own = *given, *changes = &own;
    t->is_resumed = true;
    if (!tarn__config_read(function, folder, &t->options, &t->data_spec) || !check_data_path(function, t, changes) ||
        !keep_precision(function, t, changes))
        return false;
    t->options.comm = given->comm;
    if (!tarn__ranks_open(function, t))
        return false;
    t->task = tarn__task_of_spec(&t->data_spec, t->options.data);
    if (!tarn__task_check(function, t->task, &t->options) || !tarn__finetune_check(function, &t->options, false) ||
        !find_device(function, t) || (tarn__ranks_is_first(&t->ranks) && !lock_folder(function, t, folder)) ||
        !reopen_data(function, t, folder) || !tarn__ranks_compare(function, t) || !create_components(function, t) ||
        !tarn__checkpoint_load(function, t))
        return false;
    if (t->state.step > t->steps)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%s' is already at step %" PRId64 "; the run cannot end at step %" PRId64, function,
                           folder, t->state.step, t->steps);
    return set_schedule(t) || tarn__raise_within(function); /* the number of steps may have been changed */
}

/* Opens a new run (folder is NULL) or resumes one. The caller owns the trainer. NULL with an error. */
static tarn_trainer *open_trainer(const char *folder, const tarn_train_options *options, bool is_dry_run)
{
    const char *function = is_dry_run ? "trainer_dry_run" : folder ? "trainer_resume" : "trainer_new";
    tarn_trainer *trainer = tarn_failed() ? NULL : tarn__alloc(sizeof(*trainer));
    if (!trainer)
        return NULL;
    trainer->is_dry_run = is_dry_run;
    trainer->options = folder ? (tarn_train_options){0} : *options;
    trainer->ranks = (tarn__ranks){.comm = options->comm, .size = options->comm ? tarn_comm_size(options->comm) : 1};
    if (tarn__train_options_check(function, options) &&
        (folder ? resume_run(function, trainer, folder, options) : start_run(function, trainer)))
        return trainer;
    tarn__ranks_fail(trainer, false);
    tarn_trainer_free(trainer);
    return NULL;
}

/* Copies options of a caller whose struct may be of an older, shorter version. */
static tarn_train_options copy_options(const tarn_train_options *options, size_t size)
{
    tarn_train_options own = {0};
    if (options)
        memcpy(&own, options, size < sizeof(own) ? size : sizeof(own));
    return own;
}

static bool check_folder(const char *function, const char *folder)
{
    return (folder && folder[0] && strlen(folder) < sizeof(((tarn_train_options *)NULL)->out)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the folder name is %s", function,
                       !folder     ? "NULL"
                       : folder[0] ? "too long"
                                   : "empty");
}

tarn_trainer *tarn_trainer_new_sized(const tarn_train_options *options, size_t options_size)
{
    tarn_train_options own = copy_options(options, options_size);
    return open_trainer(NULL, &own, false);
}

tarn_trainer *tarn_trainer_resume_sized(const char *folder, const tarn_train_options *changes, size_t changes_size)
{
    tarn_train_options own = copy_options(changes, changes_size);
    return !tarn_failed() && check_folder("trainer_resume", folder) ? open_trainer(folder, &own, false) : NULL;
}

tarn_trainer *tarn_trainer_dry_run_sized(const char *folder, const tarn_train_options *options, size_t options_size)
{
    tarn_train_options own = copy_options(options, options_size);
    if (tarn_failed() || (folder && !check_folder("trainer_dry_run", folder)))
        return NULL;
    return open_trainer(folder, &own, true);
}

tarn_trainer *tarn__trainer_on_random_data(const char *function, const tarn_train_options *options)
{
    tarn_trainer *trainer = tarn__alloc(sizeof(*trainer));
    if (!trainer)
        return NULL;
    trainer->options = *options;
    tarn__train_options_complete(&trainer->options);
    trainer->ranks = (tarn__ranks){.size = 1, .virtual_ranks = 1};
    if (tarn__finetune_check(function, &trainer->options, true) && find_device(function, trainer) &&
        tarn__random_data_open(function, trainer) && create_components(function, trainer))
        return trainer;
    tarn_trainer_free(trainer);
    return NULL;
}

/* In reverse order of creation: the checkpoint thread first, which borrows the trainer; datasets after their loader. */
void tarn_trainer_free(tarn_trainer *trainer)
{
    if (!trainer)
        return;
    tarn__async_checkpoint_free(trainer->async_checkpoint);
    tarn__metrics_close(trainer->metrics);
    tarn__phase_timer_close(trainer);
    tarn_free(trainer->losses);
    tarn_free(trainer->correct);
    tarn_free(trainer->norms);
    tarn_loader_free(trainer->loader);
    tarn_ema_free(trainer->ema);
    tarn_optimizer_free(trainer->optimizer);
    tarn_module_free(trainer->model);
    tarn_dataset_free(trainer->training);
    tarn_dataset_free(trainer->validation);
    tarn__chat_dataset_close(trainer->chats);
    tarn__corpus_free(&trainer->corpus);
    tarn__frozen_hash_free(&trainer->frozen);
    tarn__folder_unlock(&trainer->folder_lock);
    tarn__data_spec_free(&trainer->data_spec);
    tarn__sum_queue_free(trainer->ranks.queue);
    tarn__release(trainer, sizeof(*trainer));
}

tarn_module *tarn_trainer_model(const tarn_trainer *trainer)
{
    if (tarn_failed())
        return NULL;
    if (!trainer)
        tarn__raise(TARN_ERROR_ARGUMENT, "trainer_model: the trainer is NULL");
    return trainer ? trainer->model : NULL;
}

/* Async-signal-safe: atomic stores. The loop reads the flag after each step. */
void tarn_trainer_stop(tarn_trainer *trainer)
{
    if (!trainer)
        return;
    atomic_store(&trainer->stop, true);
    tarn__comm_hurry(trainer->ranks.comm);
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

/* Progress of a run, for a display on another thread. Members are separate atomics: a reader may see a new step with
 * the samples of the last one, which a display tolerates. */

void tarn__progress_enter(tarn_trainer *t, tarn_train_phase phase)
{
    atomic_store(&t->progress.samples, 0);
    atomic_store(&t->progress.step, t->state.step);
    atomic_store(&t->progress.phase, (int)phase);
}

void tarn__progress_in_step(tarn_trainer *t, int64_t samples)
{
    atomic_store(&t->progress.samples, samples);
}

bool tarn_trainer_progress(const tarn_trainer *trainer, tarn_train_progress *progress)
{
    if (tarn_failed())
        return false;
    if (!trainer || !progress)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_progress: the %s is NULL", trainer ? "result" : "trainer");
    *progress = (tarn_train_progress){.phase = (tarn_train_phase)atomic_load(&trainer->progress.phase),
                                      .step = atomic_load(&trainer->progress.step),
                                      .steps = trainer->steps,
                                      .fraction = (double)atomic_load(&trainer->progress.samples) /
                                                  (double)trainer->batch_size};
    return true;
}

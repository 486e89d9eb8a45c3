/* loop.c: the training loop.
 *
 * In a steady step nothing is transferred between host and device but the batch: losses, correct answers and norms stay
 * in tensors on the device, [log_every], and are read when a line of metrics is due. So a non-finite loss is noticed
 * late; nonfinite.c then repeats the steps from the last checkpoint.
 *
 * Order per segment: steps, log, evaluation, best weights, checkpoint. Everything runs on the caller's thread;
 * checkpoints are written by a thread of their own, and tarn_trainer_stop() may be called from any thread or signal
 * handler. */
#include <math.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "core/profile/profiler.h"
#include "data/prefetch.h"
#include "ops/op.h"
#include "train/output/async_checkpoint.h"
#include "train/run_folder.h"
#include "train/tasks/finetune.h"
#include "train/tasks/task.h"

/* The caller's report function. */
typedef struct report_target {
    tarn_report_fn report; /* NULL: no reports */
    void *ctx;
} report_target;

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The end of an epoch gives no batch and no error: the second call starts the next one. */
bool tarn__loader_batch(tarn_trainer *t, tarn_tensor **fields)
{
    return tarn_loader_next(t->loader, fields) || (!tarn_failed() && tarn_loader_next(t->loader, fields));
}

/* Size of a step's array of fields. */
static size_t batch_bytes(const tarn__step_ctx *s)
{
    return sizeof(tarn_tensor *) * (size_t)s->micro_batches * (size_t)s->fields;
}

/* Fetches all micro-batches of the next step, [micro_batches][fields]; the tensors belong to the open scope, the array
 * to the caller. NULL with an error. */
static tarn_tensor **fetch_batch(tarn_trainer *t, const tarn__step_ctx *s)
{
    tarn_tensor **batch = tarn__alloc(batch_bytes(s));
    bool good = batch != NULL;
    tarn__phase_begin(t, TARN__PHASE_BATCH);
    for (int i = 0; good && i < s->micro_batches; i++)
        good = t->task->next_batch(t, batch + i * s->fields);
    if (good)
        return batch;
    tarn__release(batch, batch_bytes(s));
    return NULL;
}

/* The next step's first micro-batch is uploaded while this step computes. */
static void after_micro_batch(tarn_trainer *t, int finished)
{
    tarn__loader_send_ahead(t->loader);
    tarn__progress_in_step(t, finished * t->micro_batch * t->ranks.size);
}

/* `run` is tarn__step() or tarn__step_gradients(). */
static bool run_eagerly(tarn_trainer *t, tarn__step_metrics *metrics,
                        bool (*run)(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics))
{
    tarn__step_ctx s = tarn__step_ctx_of(t);
    s.on_phase = tarn__phase_begin;
    s.on_micro_batch = after_micro_batch;
    tarn_tensor **batch = fetch_batch(t, &s);
    bool good = batch && run(&s, batch, metrics);
    tarn__release(batch, batch_bytes(&s));
    return good;
}

bool tarn__train_gradients(tarn_trainer *t, tarn__step_metrics *metrics)
{
    return run_eagerly(t, metrics, tarn__step_gradients);
}

bool tarn__train_step(tarn_trainer *t, tarn__step_metrics *metrics)
{
    t->lr = tarn_optimizer_lr(t->optimizer); /* of this step: optimizer_step() advances the schedule */
    bool good = run_eagerly(t, metrics, tarn__step);
    tarn__phase_end(t);
    t->state.step += good;
    return good;
}

/* Copies a metric of a step, [] or NULL, to its slot on the device. */
static bool store_metric(tarn_tensor *slots, int64_t index, tarn_tensor *metric)
{
    if (!metric)
        return true;
    tarn_tensor *slot = tarn_slice(slots, 0, index, index + 1);
    return tarn_copy(slot, tarn_reshape(tarn_detach(metric), TARN_SHAPE(1)));
}

/* One scope per step: only parameters, optimizer state and the slots survive it. */
bool tarn__take_step(tarn_trainer *t)
{
    tarn__step_metrics metrics;
    tarn_profile_span_open("step");
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && (tarn__step_graph_is_due(t) ? tarn__step_graph_run : tarn__train_step)(t, &metrics) &&
                store_metric(t->losses, t->unread_steps, metrics.loss) &&
                store_metric(t->correct, t->unread_steps, metrics.correct) &&
                store_metric(t->norms, t->unread_steps, metrics.norm);
    tarn_scope_close(scope);
    tarn_profile_span_close();
    t->unread_steps++;
    return good;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static tarn_train_report report_of(const tarn_trainer *t, tarn_report_kind kind)
{
    int64_t epochs = (t->steps + t->steps_in_epoch - 1) / t->steps_in_epoch;
    return (tarn_train_report){.kind = kind,
                               .step = t->state.step,
                               .steps = t->steps,
                               .epoch = (t->state.step - 1) / t->steps_in_epoch + 1,
                               .epochs = epochs,
                               .lr = t->lr,
                               .val_loss = t->last_val_loss,
                               .task = t->task->name,
                               .unit = t->task->unit(t),
                               .seconds = t->state.seconds};
}

/* metrics.jsonl first: the caller's function sees a report that is already on disk. */
static bool send_report(tarn_trainer *t, tarn_train_report *report, const report_target *to)
{
    tarn__task_set_metrics(t->task, report);
    if (t->metrics && !tarn__metrics_add(t->metrics, report))
        return false;
    if (to->report)
        to->report(report, to->ctx);
    return true;
}

/* Adds the time since the last call to the run's seconds. */
static void count_time(tarn_trainer *t)
{
    double now = tarn__platform_seconds();
    t->state.seconds += now - t->last_time;
    t->last_time = now;
}

/* Mean of a metric over the steps since the last line; NaN if one of them was not finite. Waits for the device. */
static bool read_mean(const tarn_trainer *t, tarn_tensor *slots, double *mean)
{
    tarn_scope *scope = tarn_scope_open();
    size_t bytes = sizeof(double) * (size_t)t->unread_steps;
    double *values = tarn__alloc(bytes);
    bool good = values && tarn_read_f64(tarn_slice(slots, 0, 0, t->unread_steps), values, t->unread_steps);
    *mean = 0;
    for (int64_t i = 0; good && i < t->unread_steps; i++)
        *mean += values[i] / (double)t->unread_steps;
    tarn__release(values, bytes);
    tarn_scope_close(scope);
    return good;
}

/* Utilization, MFU and ETA from the mean seconds per step. MFU needs a known peak; utilization is of the last sampled
 * step. */
static void add_speed(tarn_trainer *t, tarn_train_report *report, double seconds)
{
    double peak = t->task->step_flops ? tarn_device_peak_flops(t->device, t->options.precision) : 0;
    if (t->busy_seconds > 0)
        t->utilization = fmin(t->busy_seconds / fmax(seconds, 1e-9), 1);
    t->busy_seconds = 0;
    report->utilization = t->utilization;
    report->mfu = peak > 0 ? t->task->step_flops(t) / fmax(seconds, 1e-9) / peak : 0;
    report->eta = seconds * (double)(t->steps - t->state.step);
}

/* Reports the steps since the last line. */
static bool log_steps(tarn_trainer *t, const report_target *to)
{
    double loss, correct = 0, norm = 0;
    int64_t steps = t->unread_steps;
    if (steps == 0)
        return true;
    if (!read_mean(t, t->losses, &loss) || (t->task->has_norm && !read_mean(t, t->norms, &norm)) ||
        (t->task->has_accuracy && !read_mean(t, t->correct, &correct)))
        return false;
    double now = tarn__platform_seconds(), rate = (double)(steps * t->batch_size) / fmax(now - t->last_time, 1e-9);
    t->unread_steps = 0;
    if (!isfinite(loss) || !isfinite(norm)) {
        tarn__step_graph_reset(t); /* repeated steps run eagerly, from another state */
        return tarn__find_nonfinite(t, t->state.step);
    }
    double seconds = now - t->last_time;
    count_time(t);
    tarn_train_report report = report_of(t, TARN_REPORT_TRAINING);
    report.loss = t->last_loss = loss;
    report.accuracy = correct / (double)t->batch_size;
    t->task->set_speed(t, rate, &report);
    report.gradient_norm = norm;
    report.memory = tarn_memory_of(t->device).peak_used;
    add_speed(t, &report, seconds / (double)steps);
    bool good = send_report(t, &report, to);
    count_time(t);
    return good;
}

/* ---- evaluations and checkpoints --------------------------------------------------------------------------------- */

static tarn__evaluation best_of(const tarn__run_state *s)
{
    return (tarn__evaluation){
        .loss = s->best_loss, .accuracy = s->best_accuracy, .rmse = s->best_rmse, .mae = s->best_mae, .r2 = s->best_r2};
}

static bool is_best(const tarn_trainer *t, const tarn__evaluation *now)
{
    const tarn__evaluation before = best_of(&t->state);
    return t->state.best_step == 0 || tarn__task_is_better(t->task, now, &before);
}

/* A pending checkpoint is written first: best weights without any checkpoint look like a run that has lost it, which
 * cannot be resumed. */
static bool save_best(const tarn_trainer *t)
{
    return tarn__async_checkpoint_wait(t->async_checkpoint) && t->task->save_best(t);
}

/* Generates a sample, if --sample asks for one; stores it for report.html, then reports it. */
static bool report_sample(tarn_trainer *t, const report_target *to)
{
    if (!t->options.sample || !t->task->sample || !tarn__ranks_is_first(&t->ranks))
        return true;
    tarn__progress_enter(t, TARN_TRAIN_SAMPLE);
    tarn_train_report report = report_of(t, TARN_REPORT_SAMPLE);
    char *text = t->task->sample(t, &report.text_length);
    report.text = text;
    bool good = text && tarn__metrics_add_sample(t->metrics, t->state.step, text, report.text_length);
    if (good && to->report)
        to->report(&report, to->ctx);
    tarn_tokenizer_release(text);
    return good;
}

/* Evaluates the weights in the model on the val set, with the same result on all ranks, saves them if they are the
 * best, and reports. */
static bool evaluate_weights(tarn_trainer *t, const report_target *to)
{
    tarn__evaluation now = {0};
    bool is_first = tarn__ranks_is_first(&t->ranks);
    if (!t->task->evaluate(t, &now))
        return false;
    if (!isfinite(now.loss))
        return tarn__find_nonfinite_evaluation(t);
    bool best = is_best(t, &now);
    t->state.stale = best ? 0 : t->state.stale + 1;
    if (best) {
        t->state.best_step = t->state.step;
        t->state.best_loss = now.loss;
        t->state.best_accuracy = now.accuracy;
        t->state.best_rmse = now.rmse;
        t->state.best_mae = now.mae;
        t->state.best_r2 = now.r2;
        if (is_first && !save_best(t))
            return false;
    }
    count_time(t);
    tarn_train_report report = report_of(t, TARN_REPORT_EVALUATION);
    report.loss = t->last_val_loss = now.loss;
    report.accuracy = now.accuracy;
    report.rmse = now.rmse;
    report.mae = now.mae;
    report.r2 = now.r2;
    report.is_best = best;
    return send_report(t, &report, to) && report_sample(t, to);
}

/* The model's own weights come back after a failure too, whose error is kept. */
static bool restore_weights(tarn_trainer *t)
{
    tarn__error_record pending;
    tarn__error_save(&pending);
    bool good = tarn_ema_restore(t->ema);
    tarn__error_restore(&pending);
    return good;
}

/* An evaluation, of the averaged weights where the run has them, and a numbered checkpoint. */
static bool evaluate_and_save(tarn_trainer *t, const report_target *to)
{
    bool is_averaged = t->ema != NULL;
    tarn__progress_enter(t, TARN_TRAIN_EVALUATION);
    tarn__step_graph_release(t);
    if (is_averaged && !tarn_ema_apply(t->ema))
        return false;
    bool good = evaluate_weights(t, to) && tarn__ranks_wait(t);
    if (is_averaged && (good || t->ranks.size == 1)) /* after a failure other ranks do not come here */
        good = restore_weights(t) && good;
    good = good && (!t->task->keep_checkpoint || t->task->keep_checkpoint(t));
    count_time(t);
    return good;
}

static bool save_checkpoint(tarn_trainer *t)
{
    tarn__progress_enter(t, TARN_TRAIN_CHECKPOINT);
    bool good = (!tarn__ranks_is_first(&t->ranks) || tarn__metrics_flush(t->metrics)) && tarn__async_checkpoint_save(t);
    good = good && tarn__ranks_wait(t);
    count_time(t);
    return good;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static bool out_of_patience(const tarn_trainer *t)
{
    return t->options.patience > 0 && t->state.stale >= t->options.patience;
}

/* Steps up to the next evaluation, the end, or a stop; at least one. */
static bool run_steps(tarn_trainer *t, const report_target *to)
{
    do {
        tarn__progress_enter(t, TARN_TRAIN_STEPS);
        if (!tarn__profile_before_step(t) || !tarn__take_step(t) || !tarn__profile_after_step(t))
            return false;
        if (t->unread_steps == t->options.log_every &&
            (!log_steps(t, to) || !tarn__async_checkpoint_poll(t->async_checkpoint)))
            return false;
    } while (t->state.step < t->steps && t->state.step % t->eval_every != 0 && !tarn__ranks_is_stopped(t));
    return tarn__profile_end(t) && log_steps(t, to);
}

/* A stop still saves: the checkpoint is at the last finished step. */
static bool run_loop(tarn_trainer *t, const report_target *to)
{
    t->last_time = tarn__platform_seconds();
    t->steps_in_run = 0;
    while (t->state.step < t->steps && !out_of_patience(t) && !tarn__ranks_is_stopped(t)) {
        if (!run_steps(t, to))
            return false;
        if ((t->state.step == t->steps || t->state.step % t->eval_every == 0) && !evaluate_and_save(t, to))
            return false;
        t->state.finished = t->state.step == t->steps;
        if (!save_checkpoint(t))
            return false;
    }
    tarn__step_graph_reset(t);
    bool good = tarn__async_checkpoint_wait(t->async_checkpoint);
    count_time(t);
    return good;
}

/* Creates the folder with config.json, tokenizer and a first checkpoint. A second call on the same trainer continues in
 * it. */
static bool init_folder(tarn_trainer *t)
{
    const char *function = "trainer_run", *folder = t->options.out;
    if (!t->is_resumed && t->state.step == 0 && !tarn__folder_make(function, folder))
        return false;
    if (!t->folder_lock.is_taken && !tarn__folder_lock(&t->folder_lock, function, folder))
        return false;
    if (t->task->write_files && !t->is_resumed && !t->task->write_files(function, t, folder))
        return false;
    if (!tarn__config_write(function, t) || (t->state.step == 0 && !tarn__adapters_write_files(t)))
        return false;
    t->is_resumed = true;
    t->metrics = tarn__metrics_open(t);
    return t->metrics && (t->state.step > 0 || tarn__async_checkpoint_save(t));
}

/* Same, with --overwrite: the old run is removed once the first checkpoint of the new one is on disk, and restored if
 * that fails. */
static bool open_folder(tarn_trainer *t)
{
    if (!tarn__ranks_is_first(&t->ranks)) {
        t->is_resumed = true;
        return t->state.step > 0 || tarn__async_checkpoint_save(t);
    }
    if (!tarn__run_folder_back_up("trainer_run", t))
        return false;
    bool good = init_folder(t) && (!t->has_backup || tarn__async_checkpoint_wait(t->async_checkpoint));
    if (good)
        tarn__run_folder_remove_backup(t);
    else
        tarn__run_folder_restore_backup(t);
    return good;
}

/* Ends a profile that a failed step left open. The pending error is kept. */
static void end_profile(tarn_trainer *t)
{
    tarn__error_record pending;
    double utilization;
    tarn__phase_end(t);
    tarn__error_save(&pending);
    if (t->is_sampled)
        tarn__sample_stop(&utilization);
    else if (t->is_profiled)
        tarn_profile_stop();
    tarn_clear_error();
    tarn__error_restore(&pending);
    t->is_sampled = t->is_profiled = false;
    t->profile_wanted = 0;
}

void tarn__trainer_enter(const tarn_trainer *trainer, tarn__thread_settings *callers)
{
    *callers = (tarn__thread_settings){tarn__random_save(), tarn__tf32()};
    tarn__random_restore(&trainer->random);
    tarn_set_tf32(strcmp(trainer->options.precision, "tf32") == 0);
}

void tarn__trainer_leave(tarn_trainer *trainer, const tarn__thread_settings *callers)
{
    trainer->random = tarn__random_save();
    tarn__random_restore(&callers->random);
    tarn_set_tf32(callers->tf32);
}

/* Result of a run: its state, and the metrics of the best evaluation. */
static tarn_train_result result_of(const tarn_trainer *t, tarn_train_end end)
{
    const tarn__run_state *s = &t->state;
    tarn_train_result result = {.end = end,
                                .step = s->step,
                                .best_step = s->best_step,
                                .best_loss = s->best_loss,
                                .best_accuracy = s->best_accuracy,
                                .seconds = s->seconds,
                                .profiled = t->profile_taken};
    tarn__evaluation none = {.loss = NAN, .accuracy = NAN, .rmse = NAN, .mae = NAN, .r2 = NAN}, found = best_of(s);
    tarn_train_report best = tarn__report_of_evaluation(s->best_step ? &found : &none);
    tarn__task_set_metrics(t->task, &best);
    memcpy(result.best, best.metrics, sizeof(result.best));
    result.best_count = best.metric_count;
    return result;
}

/* Once the run has ended, by all steps or out of patience: --merge, and what a classifier mistakes. A stopped run is
 * left at once. */
static bool complete_run(const tarn_trainer *t)
{
    return (t->state.step < t->steps && !out_of_patience(t)) ||
           (tarn__adapters_merge(t) && tarn__metrics_add_classes(t->metrics, t));
}

bool tarn_trainer_run(tarn_trainer *trainer, tarn_report_fn report, void *ctx, tarn_train_result *result)
{
    if (tarn_failed())
        return false;
    if (!trainer || trainer->metrics)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_run: the trainer is %s", trainer ? "already running" : "NULL");
    if (trainer->is_dry_run)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "trainer_run: the trainer is a dry run; create it with tarn_trainer_new()");
    tarn__thread_settings callers;
    tarn__trainer_enter(trainer, &callers);
    trainer->last_loss = trainer->last_val_loss = NAN;
    tarn__progress_enter(trainer, TARN_TRAIN_PREPARING);
    tarn__run_segment segment = {trainer->state.step, trainer->state.seconds};
    trainer->ranks.is_stopped = false;
    bool is_first = tarn__ranks_is_first(&trainer->ranks), is_open = open_folder(trainer);
    bool good = is_open && tarn__ranks_wait(trainer) &&
                run_loop(trainer, &(report_target){is_first ? report : NULL, ctx}) &&
                tarn__frozen_verify("trainer_run", trainer) && (!is_first || complete_run(trainer));
    if (!good)
        tarn__ranks_fail(trainer, true); /* before the wait below: the others wait for this rank */
    good = tarn__async_checkpoint_wait(trainer->async_checkpoint) &&
           good; /* after a failure too: the thread borrows the trainer */
    end_profile(trainer);
    tarn__step_graph_reset(trainer);
    tarn__trainer_leave(trainer, &callers);
    good = good && (!is_first || tarn__metrics_flush(trainer->metrics));
    tarn__metrics_close(trainer->metrics);
    trainer->metrics = NULL;
    const tarn__run_state *p = &trainer->state;
    tarn_train_end end = p->step == trainer->steps  ? TARN_TRAIN_FINISHED
                         : out_of_patience(trainer) ? TARN_TRAIN_PATIENCE
                                                    : TARN_TRAIN_STOPPED;
    static const char *const end_names[] = {
        [TARN_TRAIN_FINISHED] = "finished", [TARN_TRAIN_STOPPED] = "stopped", [TARN_TRAIN_PATIENCE] = "patience"};
    tarn__folder_unlock(&trainer->folder_lock);
    if (is_open && is_first)
        tarn__log_run(trainer, &segment, good ? end_names[end] : "failed");
    if (result)
        *result = result_of(trainer, end);
    if (!good)
        tarn__ranks_fail(trainer, true);
    atomic_store(&trainer->stop, false);
    return good;
}

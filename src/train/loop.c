/* loop.c: the training loop.
 *
 * In a steady step nothing crosses to or from the device but the batch: losses and right answers are left in a tensor, one place for each
 * step, and read when a line of metrics is due. */
#include <math.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/platform.h"
#include "train/options.h"
#include "train/trainer.h"

typedef struct telling {
    tarn_report_fn report; /* NULL: nobody listens */
    void *ctx;
} telling;

/* ---- a step ---------------------------------------------------------------------------------------------------------------- */

/* The next batch; at the end of an epoch the first of the next. */
static bool next_batch(tarn_trainer *t, tarn_tensor **fields)
{
    return tarn_loader_next(t->loader, fields) || (!tarn_failed() && tarn_loader_next(t->loader, fields));
}

bool tarn__train_gradients(tarn_trainer *t, tarn_tensor **loss, tarn_tensor **right)
{
    tarn_tensor *fields[TARN_MAX_FIELDS];
    if (!next_batch(t, fields))
        return false;
    tarn_tensor *label = tarn__batch_label(fields[1]), *logits = tarn_forward(t->model, fields[0]);
    *loss = tarn_cross_entropy(logits, label, &(tarn_cross_entropy_options){.label_smoothing = t->options.label_smoothing});
    if (right)
        *right = tarn_sum(tarn_eq(tarn_argmax(logits, 1, false), label), TARN_ALL_AXES, false);
    return tarn_backward(*loss) && (!(t->options.clip_norm > 0) || tarn_optimizer_clip_norm(t->optimizer, t->options.clip_norm));
}

bool tarn__train_step(tarn_trainer *t, tarn_tensor **loss, tarn_tensor **right)
{
    t->lr = tarn_optimizer_lr(t->optimizer); /* of this step: the schedule moves it on */
    if (!tarn__train_gradients(t, loss, right) || !tarn_optimizer_step(t->optimizer))
        return false;
    t->place.step++;
    return true;
}

/* Puts a step's figure into its place on the device. */
static bool put_aside(tarn_tensor *places, int64_t index, tarn_tensor *figure)
{
    tarn_tensor *place = tarn_slice(places, 0, index, index + 1);
    return tarn_copy(place, tarn_reshape(tarn_detach(figure), TARN_SHAPE(1)));
}

static bool take_step(tarn_trainer *t)
{
    tarn_tensor *loss, *right;
    tarn_scope *scope = tarn_scope_open();
    bool good =
        scope && tarn__train_step(t, &loss, &right) && put_aside(t->losses, t->waiting, loss) && put_aside(t->hits, t->waiting, right);
    tarn_scope_close(scope);
    t->waiting++;
    return good;
}

/* ---- what is told ---------------------------------------------------------------------------------------------------------- */

static tarn_train_report report_of(const tarn_trainer *t, tarn_report_kind kind)
{
    int64_t epochs = (t->steps + t->steps_in_epoch - 1) / t->steps_in_epoch;
    return (tarn_train_report){.kind = kind,
                               .step = t->place.step,
                               .steps = t->steps,
                               .epoch = (t->place.step - 1) / t->steps_in_epoch + 1,
                               .epochs = epochs,
                               .lr = t->lr,
                               .seconds = t->place.seconds};
}

static bool tell(tarn_trainer *t, const tarn_train_report *report, const telling *to)
{
    if (!tarn__metrics_add(t->metrics, report))
        return false;
    if (to->report)
        to->report(report, to->ctx);
    return true;
}

/* Reads the figures of the steps since the last time. NaN in the result: one of them was not finite. */
static bool read_figures(const tarn_trainer *t, double *loss, double *right)
{
    tarn_scope *scope = tarn_scope_open();
    size_t bytes = sizeof(double) * (size_t)t->waiting;
    double *losses = tarn__alloc(bytes), *hits = tarn__alloc(bytes);
    bool good = losses && hits && tarn_read_f64(tarn_slice(t->losses, 0, 0, t->waiting), losses, t->waiting) &&
                tarn_read_f64(tarn_slice(t->hits, 0, 0, t->waiting), hits, t->waiting);
    *loss = *right = 0;
    for (int64_t i = 0; good && i < t->waiting; i++) {
        *loss += losses[i] / (double)t->waiting;
        *right += hits[i] / (double)t->waiting;
    }
    tarn__release(losses, bytes);
    tarn__release(hits, bytes);
    tarn_scope_close(scope);
    return good;
}

/* A line of metrics for the steps since the last one. */
static bool log_steps(tarn_trainer *t, const telling *to)
{
    double loss, right;
    int64_t steps = t->waiting;
    if (steps == 0)
        return true;
    if (!read_figures(t, &loss, &right))
        return false;
    double now = tarn__platform_seconds();
    t->waiting = 0;
    if (!isfinite(loss))
        return tarn__find_nonfinite(t, t->place.step);
    t->place.seconds += now - t->since;
    tarn_train_report report = report_of(t, TARN_REPORT_TRAINING);
    report.loss = loss;
    report.accuracy = right / (double)t->batch_size;
    report.images_per_second = (double)(steps * t->batch_size) / fmax(now - t->since, 1e-9);
    bool good = tell(t, &report, to);
    t->since = tarn__platform_seconds();
    return good;
}

/* ---- evaluations and checkpoints ------------------------------------------------------------------------------------------- */

static bool evaluate(tarn_trainer *t, tarn_evaluation *result)
{
    tarn_loader_options options = tarn__description_loading(&t->description, t->batch_size, t->device);
    options.workers = (int)t->options.workers;
    tarn_loader *loader = tarn_loader_new(t->validation, &options);
    bool good = loader && tarn_evaluate(t->model, loader, t->description.classes, result, NULL, NULL);
    tarn_loader_free(loader);
    return good;
}

/* Better: more are right, or as many with a smaller loss. */
static bool is_better(const tarn__place *place, const tarn_evaluation *now)
{
    return place->best_step == 0 || now->accuracy > place->best_accuracy ||
           (now->accuracy >= place->best_accuracy && now->loss < place->best_loss);
}

static bool judge(tarn_trainer *t, const telling *to)
{
    tarn__path path;
    tarn_evaluation now;
    if (!evaluate(t, &now))
        return false;
    bool best = is_better(&t->place, &now);
    t->place.stale = best ? 0 : t->place.stale + 1;
    if (best) {
        t->place.best_step = t->place.step;
        t->place.best_loss = now.loss;
        t->place.best_accuracy = now.accuracy;
        if (!tarn_module_save(t->model, tarn__path_in(t->options.out, "best.safetensors", &path)))
            return false;
    }
    t->place.seconds += tarn__platform_seconds() - t->since;
    tarn_train_report report = report_of(t, TARN_REPORT_EVALUATION);
    report.loss = now.loss;
    report.accuracy = now.accuracy;
    report.is_best = best;
    bool good = tell(t, &report, to);
    t->since = tarn__platform_seconds();
    return good;
}

static bool save(tarn_trainer *t)
{
    bool good = tarn__metrics_flush(t->metrics) && tarn__checkpoint_save(t);
    t->since = tarn__platform_seconds();
    return good;
}

/* ---- the run --------------------------------------------------------------------------------------------------------------- */

static bool out_of_patience(const tarn_trainer *t)
{
    return t->options.patience > 0 && t->place.stale >= t->options.patience;
}

/* Steps up to the next evaluation, the end, or a stop. */
static bool run_stretch(tarn_trainer *t, const telling *to)
{
    do {
        if (!take_step(t))
            return false;
        if (t->waiting == t->options.log_every && !log_steps(t, to))
            return false;
    } while (t->place.step < t->steps && t->place.step % t->eval_every != 0 && !atomic_load(&t->stop));
    return log_steps(t, to);
}

static bool run_steps(tarn_trainer *t, const telling *to)
{
    t->since = tarn__platform_seconds();
    while (t->place.step < t->steps && !out_of_patience(t) && !atomic_load(&t->stop)) {
        if (!run_stretch(t, to))
            return false;
        if ((t->place.step == t->steps || t->place.step % t->eval_every == 0) && !judge(t, to))
            return false;
        t->place.finished = t->place.step == t->steps;
        if (!save(t))
            return false;
    }
    return true;
}

/* The folder, its config.json, and a checkpoint of the beginning. */
static bool open_folder(tarn_trainer *t)
{
    const char *function = "trainer_run", *folder = t->options.out;
    if (!t->is_resumed && t->place.step == 0 && !tarn__folder_make(function, folder))
        return false;
    if (!tarn__config_write(function, folder, &t->options, &t->description))
        return false;
    t->is_resumed = true;
    t->metrics = tarn__metrics_open(t);
    return t->metrics && (t->place.step > 0 || tarn__checkpoint_save(t));
}

bool tarn_trainer_run(tarn_trainer *trainer, tarn_report_fn report, void *ctx, tarn_train_result *result)
{
    if (tarn_failed())
        return false;
    if (!trainer || trainer->metrics)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_run: the trainer is %s", trainer ? "running already" : "NULL");
    tarn__generator callers = tarn__random_save();
    tarn__random_restore(&trainer->random);
    bool good = open_folder(trainer) && run_steps(trainer, &(telling){report, ctx});
    trainer->random = tarn__random_save();
    tarn__random_restore(&callers);
    good = good && tarn__metrics_flush(trainer->metrics);
    tarn__metrics_close(trainer->metrics);
    trainer->metrics = NULL;
    const tarn__place *p = &trainer->place;
    if (result)
        *result = (tarn_train_result){.end = p->step == trainer->steps  ? TARN_TRAIN_FINISHED
                                             : out_of_patience(trainer) ? TARN_TRAIN_PATIENCE
                                                                        : TARN_TRAIN_STOPPED,
                                      .step = p->step,
                                      .best_step = p->best_step,
                                      .best_loss = p->best_loss,
                                      .best_accuracy = p->best_accuracy,
                                      .seconds = p->seconds};
    atomic_store(&trainer->stop, false);
    return good;
}

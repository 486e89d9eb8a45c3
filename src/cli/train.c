/* train.c: `tarn train`: says what it is going to do, trains, shows how it goes, and can be stopped at any step. */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* The trainer that a signal stops. */
static tarn_trainer *running;

static void stop(int signal)
{
    (void)signal;
    tarn_trainer_stop(running);
}

/* The first signal saves and stops; a second one ends the program as ever. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- what will be done ----------------------------------------------------------------------------------------------------- */

static const char *shape_text(tarn_shape shape, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < shape.rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? " × " : "", (long long)shape.size[i]);
    return text;
}

static void print_plan(const tarn_train_plan *p)
{
    char shape[80];
    const tarn_train_options *o = &p->options;
    tarn_device_info info = {.description = ""};
    tarn_device_query(tarn_device_parse(p->device), &info);
    tarn__heading("%s %s", p->first_step ? "going on with" : "training", o->model);
    printf("  device      %s, %s; f32\n", p->device, info.description[0] ? info.description : "unknown processor");
    printf("  data        %s: %lld samples of %s to train on, %lld to judge by, %lld classes\n", o->data, (long long)p->training_samples,
           shape_text(p->input, shape, sizeof(shape)), (long long)p->validation_samples, (long long)p->classes);
    printf("  parameters  %lld trained, %lld frozen\n", (long long)p->trained, (long long)p->frozen);
    printf("  memory      about %s", tarn__bytes_text(p->memory_needed));
    printf(p->memory_free ? ", %s free\n" : "\n", tarn__bytes_text(p->memory_free));
    printf("  optimizer   %s, learning rate %g, %s\n", o->optimizer, o->lr, o->schedule);
    printf("  steps       %lld to %lld, %lld samples in each, %lld in an epoch\n", (long long)p->first_step, (long long)p->steps,
           (long long)(o->batch_size < p->training_samples ? o->batch_size : p->training_samples), (long long)p->steps_in_epoch);
    printf("  folder      %s\n", p->folder);
    fflush(stdout);
}

static void print_plan_json(const tarn_train_plan *p)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "event", "plan");
    tarn__json_text(&json, "model", p->options.model);
    tarn__json_text(&json, "data", p->options.data);
    tarn__json_text(&json, "device", p->device);
    tarn__json_text(&json, "precision", "f32");
    tarn__json_shape(&json, "input", p->input);
    tarn__json_whole(&json, "classes", p->classes);
    tarn__json_whole(&json, "training_samples", p->training_samples);
    tarn__json_whole(&json, "validation_samples", p->validation_samples);
    tarn__json_whole(&json, "trained", p->trained);
    tarn__json_whole(&json, "frozen", p->frozen);
    tarn__json_whole(&json, "memory_needed", p->memory_needed);
    tarn__json_whole(&json, "memory_free", p->memory_free);
    tarn__json_whole(&json, "first_step", p->first_step);
    tarn__json_whole(&json, "steps", p->steps);
    tarn__json_whole(&json, "steps_in_epoch", p->steps_in_epoch);
    tarn__json_text(&json, "folder", p->folder);
    tarn__json_end(&json);
}

/* ---- how it goes ----------------------------------------------------------------------------------------------------------- */

typedef struct display {
    bool json, quiet, terminal;
} display;

static void print_report_json(const tarn_train_report *r)
{
    tarn__json json = {stdout, false};
    bool evaluation = r->kind == TARN_REPORT_EVALUATION;
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "event", evaluation ? "evaluation" : "training");
    tarn__json_whole(&json, "step", r->step);
    tarn__json_whole(&json, "epoch", r->epoch);
    tarn__json_real(&json, "loss", r->loss, 6);
    tarn__json_real(&json, "accuracy", r->accuracy, 6);
    if (evaluation) {
        tarn__json_bool(&json, "best", r->is_best);
    } else {
        tarn__json_real(&json, "lr", r->lr, 9);
        tarn__json_real(&json, "images_per_second", r->images_per_second, 1);
    }
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_end(&json);
}

/* One line that is written over and over. */
static void print_bar(const tarn_train_report *r)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    int filled = (int)(WIDTH * r->step / r->steps);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(WIDTH - filled));
    bar[WIDTH] = 0;
    printf("\r[%s] %lld of %lld  loss %.4f  %.1f %% right  %.0f images/s \033[K", bar, (long long)r->step, (long long)r->steps, r->loss,
           100 * r->accuracy, r->images_per_second);
}

static void show(const tarn_train_report *r, void *ctx)
{
    const display *d = ctx;
    if (d->quiet)
        return;
    if (d->json)
        print_report_json(r);
    else if (r->kind == TARN_REPORT_EVALUATION)
        printf("%sstep %lld  epoch %lld of %lld  validation loss %.4f  %.2f %% right%s\n", d->terminal ? "\r\033[K" : "",
               (long long)r->step, (long long)r->epoch, (long long)r->epochs, r->loss, 100 * r->accuracy, r->is_best ? "  (best)" : "");
    else if (d->terminal)
        print_bar(r);
    else
        printf("step %lld of %lld  epoch %lld of %lld  loss %.4f  %.2f %% right  lr %.3g  %.0f images/s\n", (long long)r->step,
               (long long)r->steps, (long long)r->epoch, (long long)r->epochs, r->loss, 100 * r->accuracy, r->lr, r->images_per_second);
    fflush(stdout);
}

/* ---- the end --------------------------------------------------------------------------------------------------------------- */

static void print_end_json(const tarn_train_plan *p, const tarn_train_result *r)
{
    static const char *const ends[] = {
        [TARN_TRAIN_FINISHED] = "finished", [TARN_TRAIN_STOPPED] = "stopped", [TARN_TRAIN_PATIENCE] = "patience"};
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "event", ends[r->end]);
    tarn__json_whole(&json, "step", r->step);
    tarn__json_whole(&json, "best_step", r->best_step);
    tarn__json_real(&json, "best_loss", r->best_step ? r->best_loss : NAN, 6);
    tarn__json_real(&json, "best_accuracy", r->best_step ? r->best_accuracy : NAN, 6);
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_text(&json, "folder", p->folder);
    tarn__json_end(&json);
}

static void print_end(const tarn_train_plan *p, const tarn_train_result *r, const display *d)
{
    if (d->quiet)
        return;
    if (d->json) {
        print_end_json(p, r);
        return;
    }
    if (r->end == TARN_TRAIN_STOPPED)
        printf("%sstopped after step %lld; everything is saved; go on with: tarn train --resume %s\n", d->terminal ? "\r\033[K" : "",
               (long long)r->step, p->folder);
    else if (r->end == TARN_TRAIN_PATIENCE)
        printf("ended early after step %lld: no better evaluation for %lld times\n", (long long)r->step, (long long)p->options.patience);
    if (r->best_step)
        printf("best: %.2f %% right, validation loss %.4f, after step %lld; %.1f s in all\n", 100 * r->best_accuracy, r->best_loss,
               (long long)r->best_step, r->seconds);
}

/* Options that do not fit together or name nothing are misuse; a disk or a device that fails is not. */
static int refused(void)
{
    int misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
    tarn__complain("train");
    return misused ? TARN__MISUSED : TARN__FAILED;
}

static int run(const tarn__options *options, tarn_trainer *trainer)
{
    tarn_train_plan plan;
    tarn_train_result result;
    display d = {options->json, options->quiet, isatty(STDOUT_FILENO) != 0};
    if (!tarn_trainer_plan(trainer, &plan))
        return tarn__complain("train");
    if (options->json && !options->quiet)
        print_plan_json(&plan);
    else if (!options->quiet)
        print_plan(&plan);
    if (options->dry_run)
        return TARN__DONE;
    running = trainer;
    catch_signals();
    if (!tarn_trainer_run(trainer, show, &d, &result)) {
        if (d.terminal && !d.quiet && !d.json)
            printf("\n");
        return tarn__complain("train");
    }
    print_end(&plan, &result, &d);
    return TARN__DONE;
}

int tarn__train(const tarn__options *options)
{
    if (options->resume && options->word_count) {
        fprintf(stderr, "tarn train: --resume takes its configuration from the run; leave out '%s'\n", options->words[0]);
        return TARN__MISUSED;
    }
    tarn_trainer *trainer = options->resume ? tarn_trainer_resume(options->resume, &options->train) : tarn_trainer_new(&options->train);
    if (!trainer)
        return refused();
    int status = run(options, trainer);
    running = NULL;
    tarn_trainer_free(trainer);
    return status;
}

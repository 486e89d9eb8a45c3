/* train.c: `tarn train`: prints the plan of a run, trains, shows progress, and can be stopped at any step.
 *
 * The first SIGINT or SIGTERM asks the trainer to stop after the current step and to save a checkpoint; a second one
 * ends the process. The handler calls async-signal-safe functions only and reaches the trainer through `running`.
 * Progress is drawn by progress.c, from a thread of its own: other output goes between tarn__progress_pause() and
 * tarn__progress_resume(). */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/parallel.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/train/train.h"

/* Seconds during which further signals count as the same request to stop. A user presses Ctrl-C twice faster than a
 * supervisor retries. */
#define SIGTERM_GRACE 1.0
#define SIGINT_GRACE 0.3

/* The trainer that the signal handler stops (borrowed), and whether a progress line is on the terminal. */
static tarn_trainer *running;
static volatile sig_atomic_t is_drawn;

/* Ends the process by the signal's default action, with a line break after the progress line. A terminal that blocks
 * the write must not keep the process alive: signals are unblocked first, so that the next one ends it. */
static void end_now(int number)
{
    sigset_t all;
    sigfillset(&all);
    signal(number, SIG_DFL);
    if (is_drawn) {
        sigprocmask(SIG_UNBLOCK, &all, NULL);
        if (write(STDOUT_FILENO, "\n", 1) != 1)
            is_drawn = 0;
    }
    raise(number);
}

/* The first signal saves and stops; a second one ends the process. A signal that arrives together with the first is
 * ignored: supervisors signal both the process and its group. */
static void stop(int number)
{
    static volatile sig_atomic_t is_stopping;
    static struct timespec first;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!is_stopping) {
        first = now;
        is_stopping = 1;
        tarn_trainer_stop(running);
        tarn__progress_stopping();
    } else if ((double)(now.tv_sec - first.tv_sec) + (double)(now.tv_nsec - first.tv_nsec) * 1e-9 >
               (number == SIGINT ? SIGINT_GRACE : SIGTERM_GRACE)) {
        end_now(number);
    }
}

/* SA_RESTART: reads and writes of the run are not cut short by the request to stop. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask); /* the handler is not interrupted by the other signal */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* --merge is written when a run ends, not when it is stopped. */
static bool is_merged(const tarn_train_plan *p, const tarn_train_result *r)
{
    return p->options.merge[0] && r->end != TARN_TRAIN_STOPPED;
}

/* The last object of a run with --json. best_loss is null without an evaluation. */
static void print_end_json(const tarn_train_plan *p, const tarn_train_result *r)
{
    char name[48];
    static const char *const ends[] = {
        [TARN_TRAIN_FINISHED] = "finished", [TARN_TRAIN_STOPPED] = "stopped", [TARN_TRAIN_PATIENCE] = "patience"};
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "event", ends[r->end]);
    tarn__json_int(&json, "step", r->step);
    tarn__json_int(&json, "best_step", r->best_step);
    for (int i = 0; i < r->best_count; i++) {
        snprintf(name, sizeof(name), "best_%s", r->best[i].name);
        tarn__json_real(&json, name, r->best[i].value, r->best[i].json_decimals);
    }
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_string(&json, "folder", p->folder);
    if (is_merged(p, r)) {
        tarn__json_string(&json, "merged", strcmp(p->options.merge, "gguf") == 0 ? "merged.gguf" : "merged");
        tarn__json_string(&json, "checkpoint", "best");
    }
    tarn__json_end(&json);
}

/* "best: accuracy 97.25 %, validation loss 0.0812, after step 300; 12.5 s in total": the deciding metric first. */
static void print_best(const tarn_train_result *r)
{
    char text[96];
    printf("best: ");
    for (int i = r->best_count; i-- > 0;)
        printf("%s, ", tarn__metric_text(&r->best[i], false, text));
    printf("after step %lld; %.1f s in total\n", (long long)r->best_step, r->seconds);
}

/* One line per fact; --quiet prints none. */
static void print_end(const tarn_train_plan *p, const tarn_train_result *r, const tarn__display *d)
{
    if (d->quiet)
        return;
    if (d->json) {
        print_end_json(p, r);
        return;
    }
    if (r->end == TARN_TRAIN_STOPPED)
        printf("stopped after step %lld; checkpoint saved; resume with: tarn train --resume %s\n", (long long)r->step,
               tarn__escaped(p->folder));
    else if (r->end == TARN_TRAIN_PATIENCE)
        printf("stopped early after step %lld: no improvement in %lld evaluations\n", (long long)r->step,
               (long long)p->options.patience);
    if (r->best_step)
        print_best(r);
    if (is_merged(p, r))
        printf("merged: %s/%s, from the best weights, step %lld\n", p->folder,
               strcmp(p->options.merge, "gguf") == 0 ? "merged.gguf" : "merged", (long long)r->best_step);
}

/* Prints the pending error. Options that exclude each other or name nothing are misuse; a disk or device that fails is
 * not. */
static int report_error(void)
{
    int misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
    tarn__print_error("train");
    return misused ? TARN__MISUSED : TARN__FAILED;
}

/* The library's log. Levels below a notice are progress texts for the bottom line; the rest is printed to standard
 * error. */
static void print_log(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level < TARN_LOG_NOTICE) {
        tarn__progress_text(text);
        return;
    }
    tarn__progress_pause();
    fprintf(stderr, "tarn: %s\n", text);
    tarn__progress_resume();
}

/* The device counts as chosen automatically if no --device was given, except for a resumed run, which keeps its own. */
static void show_plan(const tarn__options *options, const tarn_train_plan *plan)
{
    tarn__progress_pause();
    if (options->json)
        tarn__train_plan_print_json(plan);
    else
        tarn__train_plan_print(plan, strcmp(options->train.device, "auto") == 0 ||
                                         (!options->resume && !options->train.device[0]));
    tarn__progress_resume();
}

/* Trains with the progress line, which is removed afterwards. Signals are caught from here on only: before, nothing
 * needs saving and their default action is right. */
static bool train(tarn_trainer *trainer, tarn__display *d, tarn_train_result *result)
{
    running = trainer;
    is_drawn = d->terminal && !d->json && !d->quiet;
    catch_signals();
    tarn__progress_watch(trainer);
    bool good = tarn_trainer_run(trainer, tarn__print_report, d, result);
    tarn__progress_close();
    is_drawn = 0;
    return good;
}

/* Prints the pending error after the progress line is removed. */
static int failed(const tarn__options *options)
{
    tarn__progress_close();
    return tarn__rank_reports(options->train.comm) ? tarn__print_error("train") : TARN__FAILED;
}

/* Everything after the trainer is open. A dry run ends after the plan. */
static int run(const tarn__options *options, tarn_trainer *trainer)
{
    tarn_train_plan plan;
    tarn_train_result result;
    tarn__display d = {options->json, options->quiet, tarn__on_terminal()};
    if (!tarn_trainer_plan(trainer, &plan))
        return failed(options);
    if (!options->quiet)
        show_plan(options, &plan);
    if (options->dry_run)
        return TARN__DONE;
    if (options->profile && !tarn_trainer_profile(trainer, options->profile_steps ? options->profile_steps : 10))
        return failed(options);
    if (!train(trainer, &d, &result))
        return tarn_error_code() == TARN_ERROR_MEMORY && tarn__rank_reports(options->train.comm)
                   ? tarn__out_of_memory(&plan)
                   : failed(options);
    print_end(&plan, &result, &d);
    return options->profile ? tarn__train_profile(&plan, result.profiled, !d.quiet && !d.json) : TARN__DONE;
}

/* Opens the trainer and runs it; the trainer is freed on every path. */
static int open_and_run(const tarn__options *options)
{
    /* before the trainer: opening data and weights reports progress too */
    tarn__progress_open(tarn__on_terminal() && !options->json && !options->quiet, options->quiet);
    if (!options->quiet)
        tarn_set_log(print_log, NULL);
    tarn_trainer *trainer = options->dry_run  ? tarn_trainer_dry_run(options->resume, &options->train)
                            : options->resume ? tarn_trainer_resume(options->resume, &options->train)
                                              : tarn_trainer_new(&options->train);
    if (!trainer) {
        tarn__progress_close();
        if (!tarn__rank_reports(options->train.comm))
            return TARN__FAILED;
        return tarn_error_code() == TARN_ERROR_MEMORY ? tarn__print_memory_error() : report_error();
    }
    tarn__progress_text("");
    int status = run(options, trainer);
    tarn__progress_close();
    running = NULL;
    tarn_trainer_free(trainer);
    return status;
}

/* One rank of several: rank 0 alone prints. */
static int run_rank(const tarn__options *options)
{
    tarn__options own = *options;
    tarn_comm *comm = own.train.comm = tarn__rank_comm();
    if (!comm)
        return tarn__is_first_launched() ? report_error() : TARN__FAILED;
    tarn__rank_mute(comm, own.quiet);
    if (tarn_comm_rank(comm) != 0) {
        own.quiet = true;
        own.json = false;
        own.profile = false; /* rank 0 has the run folder */
    }
    int status = tarn__place_rank("train", &own, comm);
    if (status == TARN__DONE)
        status = open_and_run(&own);
    tarn_comm_free(comm);
    return status;
}

/* Checks what the library cannot know: combinations of flags. */
int tarn__train(const tarn__options *options)
{
    if (options->resume && options->word_count) {
        fprintf(stderr, "tarn train: --resume uses the configuration of the run; remove '%s'\n",
                tarn__escaped(options->words[0]));
        return TARN__MISUSED;
    }
    /* 0 means "not given" in tarn_train_options: the library would silently keep the old value */
    if (options->resume && options->zero) {
        fprintf(stderr,
                "tarn train: %s: a resumed run cannot be set to 0, which means \"unchanged\"; give another value, or "
                "start a new run\n",
                options->zero);
        return TARN__MISUSED;
    }
    if (options->profile_steps && !options->profile) {
        fprintf(stderr, "tarn train: --profile-steps needs --profile\n");
        return TARN__MISUSED;
    }
    int status = tarn__check_ranks("train", options);
    if (status)
        return status;
    if (tarn__is_launcher(options))
        return tarn__launch("train", options);
    return tarn__is_rank() ? run_rank(options) : open_and_run(options);
}

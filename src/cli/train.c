/* train.c: `tarn train`: says what it is going to do, trains, shows how it goes, and can be stopped at any step. */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/train_memory.h"
#include "cli/train_show.h"

/* Seconds in which signals are one request to stop. Somebody at a keyboard is quicker than programs that try again. */
#define ONE_REQUEST 1.0
#define ONE_KEY 0.3

/* The trainer that a signal stops, and whether a line is on the terminal meanwhile. */
static tarn_trainer *running;
static volatile sig_atomic_t is_drawn;

/* What follows the run on a terminal begins a line. A terminal that takes no more does not keep the program: the next signal ends it. */
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

/* The first signal saves and stops; a second one ends the program as ever, but for one that comes with the first: programs that end others tell them, and their group. */
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
    } else if ((double)(now.tv_sec - first.tv_sec) + (double)(now.tv_nsec - first.tv_nsec) * 1e-9 > (number == SIGINT ? ONE_KEY : ONE_REQUEST)) {
        end_now(number);
    }
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask); /* the handler is not interrupted by the other signal */
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

static void print_chats(const tarn_train_plan *p)
{
    printf("  data        %s: %lld documents to train on (%lld tokens, %lld of them learnt, in %lld rows), %lld to judge by\n", tarn__shown(p->options.data),
           (long long)p->training_documents, (long long)p->training_tokens, (long long)p->answer_tokens, (long long)p->training_samples,
           (long long)p->validation_documents);
    if (p->documents_cut)
        printf("              %lld documents were longer than the context, and cut\n", (long long)p->documents_cut);
}

static void print_data(const tarn_train_plan *p)
{
    char shape[80];
    const tarn_train_options *o = &p->options;
    if (!p->is_text) {
        printf("  data        %s: %lld samples of %s to train on, %lld to judge by, %lld classes\n", tarn__shown(o->data),
               (long long)p->training_samples, shape_text(p->input, shape, sizeof(shape)), (long long)p->validation_samples,
               (long long)p->classes);
        return;
    }
    if (p->is_chats)
        print_chats(p);
    else
        printf("  data        %s: %lld tokens to train on, %lld to judge by\n", tarn__shown(o->data), (long long)p->training_tokens,
               (long long)p->validation_tokens);
    printf("  model       %lld layers, %lld heads", (long long)o->layers, (long long)o->heads);
    if (o->kv_heads != o->heads)
        printf(" (of keys %lld)", (long long)o->kv_heads);
    printf(", width %lld, context %lld, vocabulary %lld, inner %lld, dropout %g\n", (long long)o->width, (long long)o->context,
           (long long)p->classes, (long long)o->inner, o->dropout);
    if (p->chosen[0])
        printf("              chosen %s\n", p->chosen);
}

static void print_steps(const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    int64_t batch = p->is_text || o->batch_size < p->training_samples ? o->batch_size : p->training_samples;
    printf("  steps       %lld to %lld, %lld %s in each, %lld in an epoch\n", (long long)p->first_step, (long long)p->steps,
           (long long)batch, p->is_text ? "windows" : "samples", (long long)p->steps_in_epoch);
    if (p->is_text && o->micro_batch < batch)
        printf("              %lld at a time, gradients added up\n", (long long)o->micro_batch);
    if (p->captures)
        printf("              recorded once, then repeated as a whole\n");
}

/* "learning rate 0.1, times 0.1 every 30 epochs" */
static void print_rate(const tarn_train_options *o)
{
    printf("  optimizer   %s, learning rate %g, ", o->optimizer, o->lr);
    if (strcmp(o->schedule, "step") != 0)
        printf("%s\n", o->schedule);
    else
        printf("times %g every %lld %s\n", o->drop_factor, (long long)(o->drop_every ? o->drop_every : o->drop_epochs),
               o->drop_every ? "steps" : "epochs");
}

/* Where the weights come from, and what becomes of them. */
static void print_base(const tarn_train_options *o)
{
    if (o->base[0])
        printf("  weights     %s%s%s\n", tarn__shown(o->base), o->quantize[0] ? ", linear layers as " : "", o->quantize);
    if (o->lora)
        printf("  adapters    rank %lld, alpha %g, dropout %g, in %s\n", (long long)o->lora, o->lora_alpha, o->lora_dropout,
               o->lora_targets[0] ? o->lora_targets : "all linear layers but the head");
}

/* "; taken by auto (cuda, opencl missing)": backends that auto would have preferred. `tarn info` has the reasons. Without CUDA a GPU of another maker
 * lacks nothing. */
static void print_choice(const tarn_device_info *info)
{
    bool on_cpu = strcmp(info->name, "cpu") == 0, is_nvidia = strstr(info->vendor, "NVIDIA") != NULL;
    bool no_cuda = (on_cpu || is_nvidia) && tarn_backend_missing("cuda")[0], no_opencl = on_cpu && tarn_backend_missing("opencl")[0];
    printf("; taken by auto%s%s%s%s%s", no_cuda || no_opencl ? " (" : "", no_cuda ? "cuda" : "", no_cuda && no_opencl ? ", " : "",
           no_opencl ? "opencl" : "", no_cuda || no_opencl ? " missing)" : "");
}

static void print_plan(const tarn_train_plan *p, bool is_auto)
{
    const tarn_train_options *o = &p->options;
    tarn_device_info info = {.description = ""};
    tarn_device_query(tarn_device_parse(p->device), &info);
    tarn__heading("%s %s", p->first_step ? "going on with" : o->base[0] ? "fine-tuning" : "training", o->model);
    printf("  device      %s, %s; %s", p->device, info.description[0] ? info.description : "unknown processor", o->precision);
    if (is_auto)
        print_choice(&info);
    printf("\n");
    print_data(p);
    print_base(o);
    printf("  parameters  %lld trained, %lld frozen\n", (long long)p->trained, (long long)p->frozen);
    tarn__print_memory(p);
    print_rate(o);
    print_steps(p);
    printf("  folder      %s\n", tarn__shown(p->folder));
    fflush(stdout);
}

/* "fits": [{"settings": "micro_batch=4", "memory_needed": 123}]; only of a run that does not fit. */
static void print_fits_json(tarn__json *json, const tarn_train_plan *p)
{
    if (!p->fit_count)
        return;
    tarn__json_open(json, "fits", '[');
    for (int i = 0; i < p->fit_count; i++) {
        tarn__json_open(json, NULL, '{');
        tarn__json_text(json, "settings", p->fits[i].settings);
        tarn__json_whole(json, "memory_needed", p->fits[i].memory_needed);
        tarn__json_close(json, '}');
    }
    tarn__json_close(json, ']');
}

static void print_plan_json(const tarn_train_plan *p)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "event", "plan");
    tarn__json_text(&json, "model", p->options.model);
    tarn__json_text(&json, "data", p->options.data);
    tarn__json_text(&json, "device", p->device);
    tarn__json_text(&json, "precision", p->options.precision);
    tarn__json_shape(&json, "input", p->input);
    tarn__json_whole(&json, "classes", p->classes);
    tarn__json_whole(&json, "training_samples", p->training_samples);
    tarn__json_whole(&json, "validation_samples", p->validation_samples);
    if (p->is_text) {
        tarn__json_whole(&json, "training_tokens", p->training_tokens);
        tarn__json_whole(&json, "validation_tokens", p->validation_tokens);
    }
    if (p->chosen[0])
        tarn__json_text(&json, "chosen", p->chosen);
    tarn__json_whole(&json, "trained", p->trained);
    tarn__json_whole(&json, "frozen", p->frozen);
    if (p->is_chats) {
        tarn__json_whole(&json, "training_documents", p->training_documents);
        tarn__json_whole(&json, "validation_documents", p->validation_documents);
        tarn__json_whole(&json, "answer_tokens", p->answer_tokens);
        tarn__json_whole(&json, "documents_cut", p->documents_cut);
    }
    if (p->options.base[0])
        tarn__json_text(&json, "base", p->options.base);
    if (p->options.lora)
        tarn__json_whole(&json, "lora", p->options.lora);
    tarn__json_whole(&json, "weight_bytes", p->weight_bytes);
    tarn__json_whole(&json, "gradient_bytes", p->gradient_bytes);
    tarn__json_whole(&json, "state_bytes", p->state_bytes);
    tarn__json_whole(&json, "activation_bytes", p->activation_bytes);
    tarn__json_whole(&json, "memory_needed", p->memory_needed);
    tarn__json_whole(&json, "memory_min", p->memory_min);
    tarn__json_whole(&json, "memory_free", p->memory_free);
    print_fits_json(&json, p);
    tarn__json_whole(&json, "first_step", p->first_step);
    tarn__json_whole(&json, "steps", p->steps);
    tarn__json_whole(&json, "steps_in_epoch", p->steps_in_epoch);
    tarn__json_bool(&json, "captures", p->captures);
    tarn__json_text(&json, "folder", p->folder);
    tarn__json_end(&json);
}

/* ---- the end --------------------------------------------------------------------------------------------------------------- */

/* A run that reached its end has written what --merge asks for. */
static bool is_merged(const tarn_train_plan *p, const tarn_train_result *r)
{
    return p->options.merge[0] && r->end != TARN_TRAIN_STOPPED;
}

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
    if (!p->is_text)
        tarn__json_real(&json, "best_accuracy", r->best_step ? r->best_accuracy : NAN, 6);
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_text(&json, "folder", p->folder);
    if (is_merged(p, r)) {
        tarn__json_text(&json, "merged", strcmp(p->options.merge, "gguf") == 0 ? "merged.gguf" : "merged");
        tarn__json_text(&json, "checkpoint", "best");
    }
    tarn__json_end(&json);
}

static void print_end(const tarn_train_plan *p, const tarn_train_result *r, const tarn__display *d)
{
    if (d->quiet)
        return;
    if (d->json) {
        print_end_json(p, r);
        return;
    }
    if (r->end == TARN_TRAIN_STOPPED)
        printf("stopped after step %lld; everything is saved; go on with: tarn train --resume %s\n", (long long)r->step,
               tarn__shown(p->folder));
    else if (r->end == TARN_TRAIN_PATIENCE)
        printf("ended early after step %lld: no better evaluation for %lld times\n", (long long)r->step, (long long)p->options.patience);
    if (r->best_step && p->is_text)
        printf("best: validation loss %.4f, after step %lld; %.1f s in all\n", r->best_loss, (long long)r->best_step, r->seconds);
    else if (r->best_step)
        printf("best: %.2f %% right, validation loss %.4f, after step %lld; %.1f s in all\n", 100 * r->best_accuracy, r->best_loss,
               (long long)r->best_step, r->seconds);
    if (is_merged(p, r))
        printf("merged: %s/%s, from the best weights, step %lld\n", p->folder, strcmp(p->options.merge, "gguf") == 0 ? "merged.gguf" : "merged",
               (long long)r->best_step);
}

/* Options that do not fit together or name nothing are misuse; a disk or a device that fails is not. */
static int refused(void)
{
    int misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
    tarn__complain("train");
    return misused ? TARN__MISUSED : TARN__FAILED;
}

/* What the library tells: how it gets on, for the line at the bottom, or what is to be read. */
static void tell(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level < TARN_LOG_NOTICE) {
        tarn__progress_say(text);
        return;
    }
    tarn__progress_pause();
    fprintf(stderr, "tarn: %s\n", text);
    tarn__progress_resume();
}

static void show_plan(const tarn__options *options, const tarn_train_plan *plan)
{
    tarn__progress_pause();
    if (options->json)
        print_plan_json(plan);
    else
        print_plan(plan, strcmp(options->train.device, "auto") == 0 || (!options->resume && !options->train.device[0]));
    tarn__progress_resume();
}

/* Trains, with the line at the bottom, which is gone afterwards. */
static bool train(tarn_trainer *trainer, tarn__display *d, tarn_train_result *result)
{
    running = trainer;
    is_drawn = d->terminal && !d->json && !d->quiet;
    catch_signals();
    tarn__progress_watch(trainer);
    bool good = tarn_trainer_run(trainer, tarn__train_show, d, result);
    tarn__progress_close();
    is_drawn = 0;
    return good;
}

/* The line at the bottom is gone before the sentence is there. */
static int failed(void)
{
    tarn__progress_close();
    return tarn__complain("train");
}

static int run(const tarn__options *options, tarn_trainer *trainer)
{
    tarn_train_plan plan;
    tarn_train_result result;
    tarn__display d = {options->json, options->quiet, tarn__on_terminal()};
    if (!tarn_trainer_plan(trainer, &plan))
        return failed();
    if (!options->quiet)
        show_plan(options, &plan);
    if (options->dry_run)
        return TARN__DONE;
    if (options->profile && !tarn_trainer_profile(trainer, options->profile_steps ? options->profile_steps : 10))
        return failed();
    if (!train(trainer, &d, &result))
        return tarn_error_code() == TARN_ERROR_MEMORY ? tarn__out_of_memory(&plan) : failed();
    print_end(&plan, &result, &d);
    return options->profile ? tarn__train_profile(&plan, result.profiled, !d.quiet && !d.json) : TARN__DONE;
}

int tarn__train(const tarn__options *options)
{
    if (options->resume && options->word_count) {
        fprintf(stderr, "tarn train: --resume takes its configuration from the run; leave out '%s'\n", tarn__shown(options->words[0]));
        return TARN__MISUSED;
    }
    if (options->resume && options->zero) {
        fprintf(stderr, "tarn train: %s: 0 is no change: with --resume a run keeps what it has; give another value, or begin a new run\n", options->zero);
        return TARN__MISUSED;
    }
    if (options->profile_steps && !options->profile) {
        fprintf(stderr, "tarn train: --profile-steps belongs to --profile\n");
        return TARN__MISUSED;
    }
    tarn__progress_open(tarn__on_terminal() && !options->json && !options->quiet, options->quiet);
    if (!options->quiet)
        tarn_set_log(tell, NULL);
    tarn_trainer *trainer = options->dry_run  ? tarn_trainer_imagine(options->resume, &options->train)
                            : options->resume ? tarn_trainer_resume(options->resume, &options->train)
                                              : tarn_trainer_new(&options->train);
    if (!trainer) {
        tarn__progress_close();
        return tarn_error_code() == TARN_ERROR_MEMORY ? tarn__refuse_memory() : refused();
    }
    tarn__progress_say("");
    int status = run(options, trainer);
    tarn__progress_close();
    running = NULL;
    tarn_trainer_free(trainer);
    return status;
}

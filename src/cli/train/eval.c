/* eval.c: `tarn eval`: loss and accuracy of a run's classifier per class, errors of its regression, or loss and
 * perplexity of its language model.
 *
 * The data is the run's own validation set, or that of --data. Results go to standard output as a table, or with --json
 * as one object; messages go to standard error. Exit status: MISUSED for wrong arguments, FAILED for anything else. */
#include <stdlib.h>
#include <string.h>
#include <tarn/lora.h>

#include "cli/lm/lm_common.h"
#include "cli/train/train.h"

/* The arrays are owned by evaluate(). */
typedef struct results {
    tarn_evaluation all;
    int64_t *samples, *correct; /* [classes] */
} results;

/* All classes are listed, also those without samples. */
static void print_json(const tarn__options *options, const tarn_run *run, const char *data, const results *f,
                       const tarn__mistakes *mistakes)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", tarn_run_kind(run));
    tarn__json_string(&json, "data", data);
    tarn__checkpoint_json(&json, options);
    tarn__json_int(&json, "samples", f->all.samples);
    tarn__json_real(&json, "loss", f->all.loss, 6);
    tarn__json_real(&json, "accuracy", f->all.accuracy, 6);
    tarn__json_open(&json, "classes", '[');
    for (int64_t i = 0; i < tarn_run_classes(run); i++) {
        tarn__json_open(&json, NULL, '{');
        tarn__json_string(&json, "name", tarn_run_class_name(run, i));
        tarn__json_int(&json, "samples", f->samples[i]);
        tarn__json_int(&json, "correct", f->correct[i]);
        tarn__json_close(&json, '}');
    }
    tarn__json_close(&json, ']');
    if (mistakes)
        tarn__mistakes_print_json(mistakes, options, run, &json);
    tarn__json_end(&json);
}

/* Classes without a sample are omitted: they have no accuracy. */
static void print_table(const tarn_run *run, const char *data, const results *f)
{
    tarn__heading("%s on %s", tarn_run_kind(run), data);
    printf("  %-16s %8s %8s %9s\n", "class", "samples", "correct", "accuracy");
    for (int64_t i = 0; i < tarn_run_classes(run); i++)
        if (f->samples[i])
            printf("  %-16s %8lld %8lld %7.2f %%\n", tarn__escaped(tarn_run_class_name(run, i)),
                   (long long)f->samples[i], (long long)f->correct[i],
                   100.0 * (double)f->correct[i] / (double)f->samples[i]);
    printf("loss %.4f, accuracy %.2f %% on %lld samples\n", f->all.loss, 100 * f->all.accuracy,
           (long long)f->all.samples);
}

/* Prints the pending error, of ranks on one. Wrong arguments are misuse; a file or device that fails is not. */
static int report_error(const tarn__options *options)
{
    bool misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
    if (tarn__rank_reports(options->train.comm))
        tarn__print_error("eval");
    return misused ? TARN__MISUSED : TARN__FAILED;
}

/* True on the rank that prints the results, and without ranks. */
static bool is_first(const tarn__options *options)
{
    return !options->train.comm || tarn_comm_rank(options->train.comm) == 0;
}

/* Classifiers. Class names belong to the run, so everything is printed before it is closed. */
static int evaluate(const tarn__options *options, tarn_run *run)
{
    int64_t classes = tarn_run_classes(run);
    results f = {.samples = calloc((size_t)classes, sizeof(int64_t)),
                 .correct = calloc((size_t)classes, sizeof(int64_t))};
    int status = TARN__DONE;
    if (!f.samples || !f.correct) {
        tarn_set_error(TARN_ERROR_MEMORY, "eval: out of memory");
        status = report_error(options);
    } else if (!tarn_run_evaluate(run, options->data, options->batch_size, &f.all, f.samples, f.correct)) {
        status = report_error(options);
    } else if (is_first(options)) {
        const char *data = options->data ? options->data : tarn_run_data(run);
        tarn__mistakes *mistakes = tarn__mistakes_find(options, run, &status);
        if (options->json && status == TARN__DONE)
            print_json(options, run, data, &f, mistakes);
        else if (status == TARN__DONE)
            print_table(run, data, &f);
        if (mistakes && !options->json)
            tarn__mistakes_print(mistakes, options, run);
        tarn__mistakes_free(mistakes);
    }
    free(f.samples);
    free(f.correct);
    return status;
}

/* ---- regressions ------------------------------------------------------------------------------------------------- */

/* Errors are in the units of the target. */
static int evaluate_regression(const tarn__options *options, tarn_run *run)
{
    tarn_regression_evaluation e;
    tarn_table_encoder_info info;
    const char *data = options->data ? options->data : tarn_run_data(run);
    if (!tarn_run_evaluate_regression(run, options->data, options->batch_size, &e) ||
        !tarn_table_encoder_query(tarn_run_encoder(run), &info))
        return report_error(options);
    if (!is_first(options))
        return TARN__DONE;
    if (!options->json) {
        tarn__heading("%s on %s", tarn_run_kind(run), data);
        printf("target %s: RMSE %.6g, MAE %.6g, R2 %.4f, loss %.4f on %lld rows\n", tarn__escaped(info.target), e.rmse,
               e.mae, e.r2, e.loss, (long long)e.samples);
        return TARN__DONE;
    }
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", tarn_run_kind(run));
    tarn__json_string(&json, "data", data);
    tarn__checkpoint_json(&json, options);
    tarn__json_string(&json, "target", info.target);
    tarn__json_int(&json, "samples", e.samples);
    tarn__json_real(&json, "loss", e.loss, 6);
    tarn__json_real(&json, "rmse", e.rmse, 6);
    tarn__json_real(&json, "mae", e.mae, 6);
    tarn__json_real(&json, "r2", e.r2, 6);
    tarn__json_end(&json);
    return TARN__DONE;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Tokens per batch, at most: bounds the logits, [B, T, vocab_size], at long contexts. */
enum { MAX_BATCH_TOKENS = 16384 };

/* Text has no classes: one line, or one object. */
static void print_text(const tarn__options *options, const tarn_run *run, const tarn_text_evaluation *e)
{
    const char *data = options->data ? options->data : tarn_run_data(run);
    if (!options->json) {
        tarn__heading("%s on %s", tarn_run_kind(run), data);
        printf("loss %.4f, perplexity %.4f over %lld tokens\n", e->loss, e->perplexity, (long long)e->tokens);
        return;
    }
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", tarn_run_kind(run));
    tarn__json_string(&json, "data", data);
    tarn__checkpoint_json(&json, options);
    tarn__json_int(&json, "tokens", e->tokens);
    tarn__json_real(&json, "loss", e->loss, 6);
    tarn__json_real(&json, "perplexity", e->perplexity, 6);
    tarn__json_end(&json);
}

/* Language models. --batch-size counts windows of a whole context, so it is lowered to stay below MAX_BATCH_TOKENS. */
static int evaluate_text(const tarn__options *options, tarn_run *run)
{
    tarn_model_info info;
    tarn_text_evaluation evaluation;
    if (!tarn_model_query(tarn_run_model(run), &info))
        return report_error(options);
    int64_t max_windows = MAX_BATCH_TOKENS / info.context > 0 ? MAX_BATCH_TOKENS / info.context : 1;
    if (!tarn_run_evaluate_text(run, options->data,
                                options->batch_size < max_windows ? options->batch_size : max_windows, &evaluation))
        return report_error(options);
    if (is_first(options))
        print_text(options, run, &evaluation);
    return TARN__DONE;
}

/* The evaluation of a task. */
static int evaluate_by_task(const tarn__options *options, tarn_run *run)
{
    static const struct {
        const char *task;
        int (*evaluate)(const tarn__options *options, tarn_run *run);
    } rows[] = {
        {"classify", evaluate}, {"regress", evaluate_regression}, {"lm", evaluate_text}, {"chat", evaluate_text}};
    const char *task = tarn_run_task(run);
    if ((options->confusion || options->mistakes) && strcmp(task, "classify") != 0)
        return tarn__rank_misuse("eval", options->train.comm, "%s applies to classifiers only",
                                 options->confusion ? "--confusion" : "--mistakes");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].task, task) == 0)
            return rows[i].evaluate(options, run);
    fprintf(stderr, "tarn eval: runs of the task '%s' are not supported\n", task);
    return TARN__FAILED;
}

/* Adapters of --adapter are added to the opened model, in memory only. */
static int open_and_evaluate(const tarn__options *options)
{
    tarn_run_weights weights;
    int found = tarn__checkpoint_use("eval", options, &weights);
    if (found != TARN__DONE)
        return found;
    /* the run reports its own errors: a missing template, layers of a classifier */
    tarn_run_open_options how = {.device_layers = options->gpu_layers,
                                 .chat_template = options->template_name,
                                 .checkpoint = weights.checkpoint,
                                 .comm = options->train.comm};
    tarn_model_split split;
    const tarn_model_open_options opened = {.quantize = weights.quantize};
    const tarn_model_split_options no_cache = {.kv_tokens = -1};
    if (options->device_count > 1) {
        if (!tarn__lm_split(options, weights.path, &opened, &no_cache, &split))
            return report_error(options);
        how.split = &split;
    }
    tarn_run *run = tarn_run_open_with(options->words[0], options->device, &how);
    if (!run)
        return report_error(options);
    int status = options->adapter && !tarn_lora_load(tarn_run_model(run), options->adapter)
                     ? report_error(options)
                     : evaluate_by_task(options, run);
    tarn_run_close(run);
    return status;
}

/* One rank of several, on its own device. */
static int run_rank(const tarn__options *options)
{
    tarn__options own = *options;
    tarn_comm *comm = own.train.comm = tarn__rank_comm();
    if (!comm)
        return tarn__is_first_launched() ? tarn__print_error("eval") : TARN__FAILED;
    tarn__rank_mute(comm, false);
    own.quiet = own.quiet || !is_first(&own);
    snprintf(own.train.device, sizeof(own.train.device), "%s", own.device_text);
    int status = tarn__place_rank("eval", &own, comm);
    if (status == TARN__DONE) {
        own.device = own.devices[0] = tarn_device_parse(own.train.device);
        status = tarn_failed() ? report_error(&own) : open_and_evaluate(&own);
    }
    tarn_comm_free(comm);
    return status;
}

int tarn__eval(const tarn__options *options)
{
    /* eval has no --kv-type; the call checks --gpu-layers. */
    tarn_kv_type none;
    int status = tarn__lm_options("eval", options, &none);
    if (status == TARN__DONE)
        status = tarn__check_ranks("eval", options);
    if (status != TARN__DONE)
        return status;
    bool has_ranks = tarn__is_launcher(options) || tarn__is_rank();
    if (has_ranks && options->device_count > 1) {
        fprintf(stderr, "tarn eval: a rank has one device; give --device %s to one process, or one device to each\n",
                tarn__escaped(options->device_text));
        return TARN__MISUSED;
    }
    if (tarn__is_launcher(options))
        return tarn__launch("eval", options);
    return has_ranks ? run_rank(options) : open_and_evaluate(options);
}

/* run_inference.c: using a trained model: a run folder opened for evaluation and prediction.
 *
 * A tarn_run owns model, tokenizer and data spec. Its folder is only read, and not locked: a run may be opened while it
 * trains. Folders of transformers and GGUF files open as runs without options. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>
#include <tarn/predict.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "core/tensor/tensor.h"
#include "data/dataset.h"
#include "formats/file_type.h"
#include "models/hf/weights.h"
#include "models/lm/arch.h"
#include "train/data/table_source.h"
#include "train/options.h"
#include "train/prediction_pass.h"
#include "train/run_folder.h"
#include "train/run_open.h"
#include "train/tasks/finetune.h"
#include "train/tasks/lm.h"

enum { MAX_WORKERS = 8 }; /* that decode image files */
enum {
    MAX_DEFAULT_WINDOW = 4096
}; /* default window of an evaluation, in tokens: longer ones take long and change little */

/* True when a folder's config.json is that of a language model. Errors are cleared: they are raised again when the
 * folder is opened. */
static bool holds_language_model(const char *folder)
{
    tarn__path path;
    tarn__error_record none;
    tarn__json_file *document = tarn__json_file_open("run_open", tarn__path_in(folder, "config.json", &path));
    const char *name =
        document && tarn__json_file_has(document, "model_type") ? tarn__json_file_string(document, "model_type") : NULL;
    bool is_one = name && tarn__arch_find(name);
    tarn__json_file_free(document);
    tarn__error_save(&none);
    return is_one;
}

/* Reads the options of a run; a folder not written by tarn has none. False with an error. */
static bool read_options(tarn_run *run, const char *folder)
{
    const char *function = "run_open";
    tarn__path path;
    tarn__json_file *document = tarn__json_file_open(function, tarn__path_in(folder, "config.json", &path));
    bool good = document &&
                (!tarn__json_file_has(document, "train") ||
                 tarn__train_options_read(function, &run->options, document, "train")) &&
                tarn__config_verify(document) && tarn__data_paths_read(document, &run->options);
    tarn__json_file_free(document);
    return good;
}

/* Opens the best or last weights of a run, or its base with adapters; the only weights of any other folder. */
static bool open_language_model(tarn_run *run, const char *folder, tarn_run_checkpoint checkpoint,
                                tarn_model_open_options how)
{
    const char *function = "run_open";
    tarn_run_weights weights;
    if (!read_options(run, folder) || !tarn__run_weights_find(function, folder, checkpoint, &weights))
        return false;
    how.quantize = tarn__quant_type_named(run->options.quantize);
    run->tokenizer = tarn_tokenizer_open(folder);
    run->model = run->tokenizer ? tarn_model_open(weights.path, run->device, &how) : NULL;
    tarn_model_info info;
    bool good = run->model && tarn_model_query(run->model, &info);
    if (good)
        snprintf(run->options.model, sizeof(run->options.model), "%s", info.type);
    snprintf(run->folder, sizeof(run->folder), "%s", folder);
    return good || tarn__raise_within(function);
}

/* Opens a GGUF file, which does not name its data. */
static bool open_gguf(tarn_run *run, const char *path, const tarn_model_open_options *how)
{
    tarn_model_info info;
    run->tokenizer = tarn_tokenizer_open(path);
    run->model = run->tokenizer ? tarn_model_open(path, run->device, how) : NULL;
    if (!run->model || !tarn_model_query(run->model, &info))
        return tarn__raise_within("run_open");
    snprintf(run->options.model, sizeof(run->options.model), "%s", info.type);
    snprintf(run->folder, sizeof(run->folder), "%s", path);
    return true;
}

/* Replaces the run's chat template by a named one. */
static bool set_template(tarn_run *run, const char *name)
{
    run->is_given_template = name != NULL;
    return !name || tarn_train_options_set(&run->options, "template", name) || tarn__raise_within("run_open");
}

static bool open_run(tarn_run *run, const char *folder, const tarn_run_open_options *options)
{
    const char *function = "run_open";
    tarn__path path;
    const tarn_model_open_options how = {.device_layers = options->device_layers, .split = options->split};
    if (tarn__ends_with(folder, ".gguf"))
        return open_gguf(run, folder, &how) && set_template(run, options->chat_template);
    if (!tarn__check_model_path(function, folder, "the folder of a run or a model, or a .gguf file,"))
        return false;
    if (holds_language_model(folder))
        return open_language_model(run, folder, options->checkpoint, how) && set_template(run, options->chat_template);
    if (options->device_layers || options->split || options->chat_template)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to language models only; '%s' is none", function,
                           options->device_layers ? "device_layers"
                           : options->split       ? "a split"
                                                  : "chat_template",
                           folder);
    if (!tarn__config_read(function, folder, &run->options, &run->data_spec))
        return false;
    /* creating a model draws its initial weights: the caller's random state is kept */
    tarn__rng_state callers = tarn__random_save();
    run->model = tarn__classifier_create(function, &run->options, &run->data_spec, run->device);
    tarn__random_restore(&callers);
    if (!run->model)
        return false;
    bool is_best =
        options->checkpoint == TARN_RUN_BEST && tarn__path_exists(tarn__path_in(folder, "best.safetensors", &path));
    return (tarn_module_load(run->model,
                             tarn__path_in(folder, is_best ? "best.safetensors" : "model.safetensors", &path), NULL) &&
            tarn_module_train(run->model, false)) ||
           tarn__raise_within(function);
}

tarn_run *tarn_run_open_with_sized(const char *folder, tarn_device device, const tarn_run_open_options *options,
                                   size_t options_size)
{
    tarn_run_open_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    if (!folder || !folder[0] || strlen(folder) >= sizeof(((tarn_train_options *)0)->out)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "run_open: the folder name is %s",
                    !folder     ? "NULL"
                    : folder[0] ? "too long"
                                : "empty");
        return NULL;
    }
    tarn_run *run = tarn__alloc(sizeof(*run));
    if (!run)
        return NULL;
    run->device = device;
    run->ranks = (tarn__ranks){.comm = chosen.comm,
                               .rank = chosen.comm ? tarn_comm_rank(chosen.comm) : 0,
                               .size = chosen.comm ? tarn_comm_size(chosen.comm) : 1,
                               .virtual_ranks = 1};
    if (open_run(run, folder, &chosen)) {
        run->task = run->tokenizer ? tarn__task_of_text(run->options.data)
                                   : tarn__task_of_spec(&run->data_spec, run->options.data);
        return run;
    }
    tarn_run_close(run);
    return NULL;
}

tarn_run *tarn_run_open(const char *folder, tarn_device device)
{
    return tarn_run_open_with(folder, device, NULL);
}

void tarn_run_close(tarn_run *run)
{
    if (!run)
        return;
    tarn_module_free(run->model);
    tarn_tokenizer_free(run->tokenizer);
    tarn__data_spec_free(&run->data_spec);
    tarn__release(run, sizeof(*run));
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

static bool check_run(const char *function, const tarn_run *run)
{
    return !tarn_failed() && (run || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the run is NULL", function));
}

/* Raises an error for NULL and for a language model. */
static bool check_samples(const char *function, const tarn_run *run)
{
    return check_run(function, run) &&
           (!run->tokenizer ||
            tarn__raise(
                TARN_ERROR_ARGUMENT,
                "%s: the run is a language model, not a classifier; see tarn_run_evaluate_text() and tarn_generate()",
                function));
}

/* Raises an error for a regression, too. */
static bool check_classifier(const char *function, const tarn_run *run)
{
    return check_samples(function, run) &&
           (!tarn__data_spec_is_regression(&run->data_spec) ||
            tarn__raise(TARN_ERROR_ARGUMENT,
                        "%s: the run is a regression, not a classifier; see tarn_run_evaluate_regression() and "
                        "tarn_run_predict_table()",
                        function));
}

static bool check_language(const char *function, const tarn_run *run)
{
    return check_run(function, run) &&
           (run->tokenizer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the run is a classifier (%s), not a language model",
                                          function, run->options.model));
}

const char *tarn_run_task(const tarn_run *run)
{
    return check_run("run_task", run) ? run->task->name : NULL;
}

const tarn_tokenizer *tarn_run_tokenizer(const tarn_run *run)
{
    return check_language("run_tokenizer", run) ? run->tokenizer : NULL;
}

tarn_module *tarn_run_model(const tarn_run *run)
{
    return check_run("run_model", run) ? run->model : NULL;
}

const char *tarn_run_kind(const tarn_run *run)
{
    return check_run("run_kind", run) ? run->options.model : NULL;
}

const char *tarn_run_data(const tarn_run *run)
{
    return check_run("run_data", run) ? run->options.data : NULL;
}

bool tarn_run_input(const tarn_run *run, tarn_shape *input)
{
    if (!check_samples("run_input", run))
        return false;
    if (!input)
        return tarn__raise(TARN_ERROR_ARGUMENT, "run_input: the result is NULL");
    *input = run->data_spec.input;
    return true;
}

int64_t tarn_run_classes(const tarn_run *run)
{
    return check_classifier("run_classes", run) ? run->data_spec.classes : -1;
}

const char *tarn_run_class_name(const tarn_run *run, int64_t index)
{
    if (!check_classifier("run_class_name", run))
        return NULL;
    if (index >= 0 && index < run->data_spec.classes)
        return run->data_spec.class_name[index];
    tarn__raise(TARN_ERROR_ARGUMENT, "run_class_name: class %lld does not exist; must be from 0 to %lld",
                (long long)index, (long long)run->data_spec.classes - 1);
    return NULL;
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* True for data that the run's encoder reads: its samples are then normalized. */
static bool is_table(const tarn_run *run, const char *data)
{
    return run->data_spec.table && (!data || tarn__data_is_table(data));
}

/* The run's own val set, or the named data. The caller frees it. */
static tarn_dataset *open_data(const char *function, const tarn_run *run, const char *data)
{
    tarn_dataset *training, *validation;
    bool is_images = tarn__data_is_images(run->options.data);
    if (is_table(run, data))
        return tarn__run_table_data(function, run, data);
    if (data && tarn__data_is_images(data))
        return tarn__images_open_for_evaluation(function, data, &run->options, &run->data_spec);
    if (data)
        return tarn__data_open_for_evaluation(function, data);
    if (is_images ? !tarn__images_open(function, &run->options, &training, &validation)
                  : !tarn__data_open(function, run->options.data, &training, &validation))
        return NULL;
    tarn_dataset_free(training);
    return validation;
}

/* A loader over all samples in their order, and its dataset; the caller frees both, also after a failure. */
static tarn_loader *open_loader(const char *function, const tarn_run *run, const char *data, int64_t batch_size,
                                tarn_dataset **dataset)
{
    *dataset = open_data(function, run, data);
    if (!*dataset || !tarn__data_spec_fits(function, &run->data_spec, *dataset) ||
        (data && !tarn__data_is_images(data) && !tarn__data_spec_check_labels(function, &run->data_spec, *dataset)))
        return NULL;
    tarn_loader_options options =
        (is_table(run, data) ? tarn__data_spec_loader_options
                             : tarn__data_spec_raw_loader_options)(&run->data_spec, batch_size, run->device);
    if ((*dataset)->images)
        options.workers = tarn_threads() < MAX_WORKERS ? tarn_threads() : MAX_WORKERS;
    return tarn_loader_new(*dataset, &options);
}

/* What ranks compare before they share an evaluation. */
typedef struct share {
    int64_t samples, batch_size, parameters;
} share;

bool tarn__run_compare(const char *function, const tarn_run *run, const tarn_dataset *dataset, int64_t batch_size)
{
    const tarn__ranks *r = &run->ranks;
    if (r->size == 1)
        return true;
    const share own = {tarn_dataset_count(dataset), batch_size, tarn_module_element_count(run->model)};
    size_t bytes = sizeof(size_t) * (size_t)r->size, *sizes = tarn__alloc(bytes);
    share *all = tarn__alloc(sizeof(own) * (size_t)r->size);
    for (int i = 0; sizes && i < r->size; i++)
        sizes[i] = sizeof(own);
    bool good = sizes && all && tarn__ranks_gather(r, &own, all, sizes);
    for (int i = 1; good && i < r->size; i++)
        if (memcmp(&all[i], &all[0], sizeof(own)) != 0)
            good =
                tarn__raise(TARN_ERROR_ARGUMENT,
                            "%s: rank %d on %s evaluates %lld samples in batches of %lld with %lld parameters, rank 0 "
                            "%lld in batches of %lld with %lld; give all the same run and data",
                            function, i, tarn_comm_host(r->comm, i), (long long)all[i].samples,
                            (long long)all[i].batch_size, (long long)all[i].parameters, (long long)all[0].samples,
                            (long long)all[0].batch_size, (long long)all[0].parameters);
    tarn__release(all, sizeof(own) * (size_t)r->size);
    tarn__release(sizes, bytes);
    return good;
}

bool tarn_run_evaluate(tarn_run *run, const char *data, int64_t batch_size, tarn_evaluation *evaluation,
                       int64_t *class_samples, int64_t *class_correct)
{
    if (!check_classifier("run_evaluate", run))
        return false;
    if (batch_size < 1 || !evaluation)
        return tarn__raise(TARN_ERROR_ARGUMENT, "run_evaluate: %s",
                           evaluation ? "batch_size must be at least 1" : "the result is NULL");
    tarn_dataset *dataset;
    tarn_loader *loader = open_loader("run_evaluate", run, data, batch_size, &dataset);
    bool good = loader && tarn__run_compare("run_evaluate", run, dataset, batch_size) &&
                tarn__classify_evaluate(&run->ranks, run->model, loader, run->data_spec.classes, evaluation,
                                        class_samples, class_correct);
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
    return good;
}

bool tarn_run_predict_data(tarn_run *run, const char *data, int64_t batch_size, tarn_prediction_fn receive, void *ctx)
{
    const char *function = "run_predict_data";
    if (!check_classifier(function, run))
        return false;
    if (batch_size < 1 || !receive)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           receive ? "batch_size must be at least 1" : "the receiver is NULL");
    tarn_dataset *dataset;
    tarn_loader *loader = open_loader(function, run, data, batch_size, &dataset);
    tarn__prediction_pass pass = {.model = run->model,
                                  .dataset = dataset,
                                  .loader = loader,
                                  .classes = run->data_spec.classes,
                                  .batch_size = batch_size,
                                  .receive = receive,
                                  .ctx = ctx};
    bool good = loader && tarn__predict_each(&pass);
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
    return good || tarn__raise_within(function);
}

/* Every token id must be below the model's vocab_size. */
static bool fits(const char *function, int64_t vocab_size, const tarn__corpus *corpus)
{
    int64_t tokens = tarn_tokenizer_count(corpus->tokenizer);
    return tokens <= vocab_size ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: the tokenizer has %lld tokens, but the model's vocabulary has %lld",
                       function, (long long)tokens, (long long)vocab_size);
}

/* A template given at opening must apply to the data: an option without effect is an error. */
static bool check_template(const char *function, const tarn_run *run, const tarn__task *task, const char *data)
{
    return !run->is_given_template || !data[0] || tarn__train_option_applies("template", task->bit) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: template applies to chats (FILE.jsonl) only; the data is '%.200s'",
                       function, data);
}

static bool check_loss(const char *function, const tarn_text_evaluation *evaluation)
{
    return isfinite(evaluation->loss) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: the loss is not finite; the weights are damaged, or the run has diverged", function);
}

/* The run's own context, so that the loss equals that of its evaluations; of other models their context, up to
 * MAX_DEFAULT_WINDOW. */
static int64_t window_of(const tarn_run *run, int64_t context)
{
    bool is_own = run->options.context > 0 && run->options.context <= context;
    return is_own ? run->options.context : context < MAX_DEFAULT_WINDOW ? context : MAX_DEFAULT_WINDOW;
}

bool tarn_run_evaluate_text(tarn_run *run, const char *data, int64_t batch_size, tarn_text_evaluation *evaluation)
{
    const char *function = "run_evaluate_text";
    tarn_model_info info;
    if (!check_language(function, run))
        return false;
    if (batch_size < 1 || !evaluation)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           evaluation ? "batch_size must be at least 1" : "the result is NULL");
    const tarn__task *task = data ? tarn__task_of_text(data) : run->task;
    if (!tarn_model_query(run->model, &info) || !check_template(function, run, task, data ? data : run->options.data))
        return false;
    tarn__eval_data eval = {.function = function,
                            .options = &run->options,
                            .folder = run->folder,
                            .data = data,
                            .context = window_of(run, info.context)};
    tarn_dataset *windows = task->open_windows(&eval);
    bool good = windows && fits(function, info.vocab_size, &eval.corpus) &&
                tarn__run_compare(function, run, windows, batch_size) &&
                tarn__lm_evaluate(function, &run->ranks, run->model, windows, batch_size, 0, evaluation);
    tarn_dataset_free(windows);
    tarn__eval_data_free(&eval);
    return good && check_loss(function, evaluation);
}

/* ---- prediction -------------------------------------------------------------------------------------------------- */

bool tarn_run_load_image(const tarn_run *run, const char *path, tarn_array *sample)
{
    tarn_array image = {0}, converted = {0};
    if (!check_classifier("run_load_image", run))
        return false;
    if (!sample)
        return tarn__raise(TARN_ERROR_ARGUMENT, "run_load_image: the result is NULL");
    *sample = (tarn_array){0};
    const tarn_shape *input = &run->data_spec.input;
    if (input->rank != 3 || (input->size[0] != 1 && input->size[0] != 3))
        return tarn__raise(TARN_ERROR_SHAPE, "run_load_image: the model of the run does not take grey or RGB images");
    bool good = tarn__data_is_images(run->options.data)
                    ? tarn_image_load_square(path, input->size[1], input->size[0], sample)
                    : tarn_image_load(path, &image) && tarn_image_convert(&image, input->size[0], &converted) &&
                          tarn_image_resize(&converted, input->size[1], input->size[2], sample);
    tarn_array_free(&image);
    tarn_array_free(&converted);
    return good || tarn__raise_within("run_load_image");
}

static bool check_sample(const tarn_run *run, const tarn_array *sample)
{
    const tarn_shape *want = &run->data_spec.input;
    bool same = sample->shape.rank == want->rank;
    for (int i = 0; same && i < want->rank; i++)
        same = sample->shape.size[i] == want->size[i];
    if (!same)
        return tarn__raise(TARN_ERROR_SHAPE, "run_predict: the sample has shape %s; the model takes %s",
                           tarn__shape_string(sample->shape.size, sample->shape.rank, &(tarn__shape_buffer){{0}}),
                           tarn__shape_string(want->size, want->rank, &(tarn__shape_buffer){{0}}));
    if (sample->dtype == TARN_U8 && run->data_spec.is_real)
        return tarn__raise(TARN_ERROR_DTYPE,
                           "run_predict: the sample is u8, but the model was trained on f32 or f64; only u8 inputs are "
                           "scaled to 0…1: give f32 as in training, or train on u8");
    return sample->dtype == TARN_U8 || sample->dtype == TARN_F32 ||
           tarn__raise(TARN_ERROR_DTYPE, "run_predict: the sample is %s; it must be u8 or f32",
                       tarn_dtype_name(sample->dtype));
}

/* Uses a loader of one sample, so that it is normalized as in training. */
static bool predict(tarn_run *run, const tarn_array *sample, double *probabilities)
{
    tarn_array one = {.data = sample->data, .dtype = sample->dtype, .shape = {sample->shape.rank + 1, {1}}};
    memcpy(&one.shape.size[1], sample->shape.size, sizeof(int64_t) * (size_t)sample->shape.rank);
    tarn_dataset *dataset = tarn_dataset_from_arrays((const char *const[]){"x"}, &one, 1);
    tarn_loader_options options = tarn__data_spec_raw_loader_options(&run->data_spec, 1, run->device);
    tarn_loader *loader = dataset ? tarn_loader_new(dataset, &options) : NULL;
    tarn_tensor *fields[1] = {NULL};
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    bool good = loader && tarn_loader_next(loader, fields) &&
                tarn_read_f64(tarn_softmax(tarn_forward(run->model, tarn__batch_input(run->model, fields[0])), 1),
                              probabilities, run->data_spec.classes);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
    return good || tarn__raise_within("run_predict");
}

bool tarn_run_predict(tarn_run *run, const tarn_array *sample, double *probabilities)
{
    if (!check_classifier("run_predict", run))
        return false;
    if (!sample || !sample->data || !probabilities)
        return tarn__raise(TARN_ERROR_ARGUMENT, "run_predict: %s is NULL", probabilities ? "the sample" : "the result");
    return check_sample(run, sample) && predict(run, sample, probabilities);
}

/* classify.c: the task of classifying samples: data, model, step, and evaluation with loss, accuracy and correct
 * samples per class.
 *
 * In an evaluation, sums stay on the device and are read once at the end, so that no batch waits for the host. The loss
 * is summed in f64 and counts in i64: the result depends on the samples only, not on the batch size, up to rounding
 * within a batch. The model is in eval mode meanwhile, without gradients; its mode is restored after a failure too. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/memory.h"
#include "nn/module.h"
#include "train/batch_sums.h"
#include "train/data/table_source.h"
#include "train/prediction_pass.h"
#include "train/tasks/task.h"

enum { DEFAULT_MLP_SIZE = 128 }; /* default size of an MLP's hidden layer */
enum { DEFAULT_IMAGE_SIZE = 64, LARGE_IMAGE_SIZE = 224, MAX_DEFAULT_WORKERS = 8 };
#define DEFAULT_CROP_SCALE 0.25
enum { SHIFT_DIVISOR = 8 }; /* augment shifts images by up to 1 / SHIFT_DIVISOR of their rows */

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* Sums over the batches so far, on the device. They belong to the scope of tarn__classify_evaluate(). */
typedef struct sums {
    tarn__batch_sums loss;
    tarn_tensor *samples, *correct; /* i64 [classes] */
} sums;

/* fields[0] is the input, fields[1] the label, [B]. A one-hot matrix, [B, classes], makes the counts per class two
 * sums. */
static bool add_batch(tarn_module *model, int64_t classes, tarn_tensor *const *fields, sums *s)
{
    tarn_tensor *label = tarn__batch_label(fields[1]),
                *logits = tarn_forward(model, tarn__batch_input(model, fields[0]));
    tarn_tensor *loss = tarn_cross_entropy(logits, label, &(tarn_cross_entropy_options){.reduction = TARN_REDUCE_SUM});
    tarn_tensor *of_class = tarn_one_hot(label, classes, TARN_I64);
    tarn_tensor *correct = tarn_cast(tarn_eq(tarn_argmax(logits, 1, true), tarn_unsqueeze(label, 1)), TARN_I64);
    return tarn__batch_sums_add(&s->loss, (tarn_tensor *[]){tarn_cast(loss, TARN_F64)}) &&
           tarn_add_inplace(s->samples, tarn_sum(of_class, TARN_AXES(0), false)) &&
           tarn_add_inplace(s->correct, tarn_sum(tarn_mul(of_class, correct), TARN_AXES(0), false));
}

/* One scope per batch: only the sums survive it. The end of an epoch and an error both end the loop; tarn_failed()
 * tells them apart. */
static bool add_batches(tarn_module *model, tarn_loader *loader, int64_t classes, sums *s)
{
    bool good = true;
    while (good) {
        tarn_tensor *fields[TARN_MAX_FIELDS] = {0};
        tarn_scope *scope = tarn_scope_open();
        bool more = scope && tarn_loader_next(loader, fields);
        if (more && !fields[1])
            tarn__raise(TARN_ERROR_ARGUMENT, "evaluate: the loader gives no labels");
        good = more && !tarn_failed() && add_batch(model, classes, fields, s);
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

/* The only transfer to the host. class_samples and class_correct, [classes], may be NULL. Without samples, loss and
 * accuracy are NaN. */
static bool read_sums(const sums *s, int64_t classes, tarn_evaluation *evaluation, int64_t *class_samples,
                      int64_t *class_correct)
{
    size_t bytes = sizeof(int64_t) * (size_t)classes;
    int64_t *samples = tarn__alloc(bytes), *correct = tarn__alloc(bytes), all = 0, all_correct = 0;
    double loss = 0;
    bool good = samples && correct && tarn_read(s->samples, samples, bytes) && tarn_read(s->correct, correct, bytes) &&
                tarn__ranks_add(s->loss.ranks, samples, classes) && tarn__ranks_add(s->loss.ranks, correct, classes) &&
                tarn__batch_sums_read(&s->loss, &loss);
    for (int64_t i = 0; good && i < classes; i++) {
        all += samples[i];
        all_correct += correct[i];
        if (class_samples)
            class_samples[i] = samples[i];
        if (class_correct)
            class_correct[i] = correct[i];
    }
    tarn__release(samples, bytes);
    tarn__release(correct, bytes);
    loss = good ? loss : NAN;
    *evaluation = (tarn_evaluation){all, loss / (double)all, (double)all_correct / (double)all};
    return good && !tarn_failed();
}

bool tarn__classify_evaluate(const tarn__ranks *ranks, tarn_module *model, tarn_loader *loader, int64_t classes,
                             tarn_evaluation *evaluation, int64_t *class_samples, int64_t *class_correct)
{
    tarn_device device = tarn_device_of(tarn_module_parameter(model, 0));
    bool was_training = tarn_module_is_training(model);
    tarn_scope *scope = tarn_scope_open();
    sums s = {.samples = tarn_zeros(TARN_SHAPE(classes), TARN_I64, device),
              .correct = tarn_zeros(TARN_SHAPE(classes), TARN_I64, device)};
    tarn_module_train(model, false);
    tarn_no_grad_open();
    bool good = !tarn_failed() && tarn__batch_sums_open(&s.loss, ranks, loader, 1, device) &&
                add_batches(model, loader, classes, &s) &&
                read_sums(&s, classes, evaluation, class_samples, class_correct);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    tarn__error_record error; /* the mode is restored after a failure too, without losing the error */
    tarn__error_save(&error);
    tarn_module_train(model, was_training);
    tarn__error_restore(&error);
    return good || tarn__raise_within("evaluate");
}

/* A loader in the middle of its epoch is an error: it would evaluate a part of the data in silence. */
bool tarn_evaluate(tarn_module *model, tarn_loader *loader, int64_t classes, tarn_evaluation *evaluation,
                   int64_t *class_samples, int64_t *class_correct)
{
    const char *missing = !model ? "the model" : !loader ? "the loader" : !evaluation ? "the result" : NULL;
    tarn_loader_state state;
    if (tarn_failed())
        return false;
    if (missing)
        return tarn__raise(TARN_ERROR_ARGUMENT, "evaluate: %s is NULL", missing);
    if (classes < 1 || tarn_module_parameter_count(model) < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "evaluate: %s",
                           classes < 1 ? "there must be at least 1 class" : "the model has no parameters");
    if (!tarn_loader_tell(loader, &state))
        return tarn__raise_within("evaluate");
    if (state.batch != 0)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "evaluate: the loader is %lld batches into its epoch; use a new loader, or seek to the start",
            (long long)state.batch);
    return tarn__classify_evaluate(NULL, model, loader, classes, evaluation, class_samples, class_correct);
}

/* ---- data and model ---------------------------------------------------------------------------------------------- */

static bool is_images(const tarn_trainer *t)
{
    return tarn__data_is_images(t->options.data);
}

/* Decoding takes longer than a step of a small model: image files have workers by default. */
static int workers_of(const tarn_trainer *t)
{
    int threads = tarn_threads();
    if (t->options.workers || !is_images(t))
        return (int)t->options.workers;
    return threads < MAX_DEFAULT_WORKERS ? threads : MAX_DEFAULT_WORKERS;
}

static int64_t elements_of(tarn_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    return count;
}

tarn_module *tarn__classifier_create(const char *function, const tarn_train_options *options, const tarn__data_spec *d,
                                     tarn_device device)
{
    tarn_module *model = NULL;
    bool is_mlp = strcmp(options->model, "mlp") == 0;
    if (tarn_failed())
        return NULL;
    if (!is_mlp && d->input.rank != 3) {
        tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: the model %s needs images, but samples of this data are vectors of %lld values; use the model mlp",
            function, options->model, (long long)d->input.size[0]);
        return NULL;
    }
    if (is_mlp)
        model = tarn_model_mlp(elements_of(d->input), options->mlp_sizes, options->mlp_size_count, d->classes, device);
    else if (strcmp(options->model, "lenet") == 0)
        model = tarn_model_lenet(d->input.size[0], d->input.size[1], d->input.size[2], d->classes, device);
    else if (strcmp(options->model, "resnet20") == 0)
        model = tarn_model_resnet20_with(d->classes, device, &(tarn_resnet20_options){.channels = d->input.size[0]});
    else if (strncmp(options->model, "resnet", 6) == 0)
        model = tarn_model_resnet(atoi(options->model + 6), d->classes, device,
                                  &(tarn_resnet_options){.channels = d->input.size[0]});
    else
        tarn__raise(TARN_ERROR_FORMAT, "%s: unknown model '%s'", function, options->model);
    if (model && strcmp(options->precision, "bf16") == 0 && !tarn__module_cast(model, TARN_BF16)) {
        tarn_module_free(model);
        model = NULL;
    }
    if (!model)
        tarn__raise_within(function);
    return model;
}

/* Default model: ResNet-20 for image files, LeNet for other images, an MLP for other data. The choice goes into the
 * options, and so into config.json: a later version with other defaults opens the run as it is. */
static bool choose_model(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    if (!o->model[0])
        snprintf(o->model, sizeof(o->model), "%s",
                 is_images(t)                   ? "resnet20"
                 : t->data_spec.input.rank == 3 ? "lenet"
                                                : "mlp");
    bool is_mlp = strcmp(o->model, "mlp") == 0;
    if (!is_mlp && o->mlp_size_count > 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: mlp_sizes applies to the model mlp only; the model is %s",
                           function, o->model);
    if (is_mlp && o->mlp_size_count == 0)
        o->mlp_sizes[o->mlp_size_count++] = DEFAULT_MLP_SIZE;
    return true;
}

/* A batch is never larger than the data, and is computed at once, or as one micro-batch per virtual rank. */
static bool resize(const char *function, tarn_trainer *t)
{
    int64_t samples = tarn_dataset_count(t->training);
    (void)function;
    t->batch_size = t->options.batch_size < samples ? t->options.batch_size : samples;
    t->micro_batch = t->ranks.virtual_ranks > 1 ? t->batch_size / t->ranks.virtual_ranks : t->batch_size;
    t->micro_batch = t->micro_batch > 0 ? t->micro_batch : 1;
    t->steps_in_epoch = samples / t->batch_size;
    return true;
}

/* A shift of less than a pixel would be none; data that can be mirrored has that instead. */
static bool check_augment(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    if (o->augment && t->data_spec.input.rank != 3)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: augment needs images, (C, H, W); samples of this data have %d axes", function,
                           t->data_spec.input.rank);
    if (o->augment && t->data_spec.input.size[1] < SHIFT_DIVISOR && !t->data_spec.can_be_mirrored)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: augment shifts images by up to 1/8 of their height; it must be at least 8 pixels, and is %" PRId64,
            function, t->data_spec.input.size[1]);
    return true;
}

static bool complete(const char *function, tarn_trainer *t)
{
    return choose_model(function, t) && check_augment(function, t) &&
           tarn__data_spec_fits(function, &t->data_spec, t->validation) && resize(function, t);
}

/* Networks made for ImageNet. */
static bool is_large(const char *model)
{
    return strncmp(model, "resnet", 6) == 0 && strcmp(model, "resnet20") != 0;
}

/* The size of image files must be known before they are opened. */
static bool open_images(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    if (!o->image_size)
        o->image_size = is_large(o->model) ? LARGE_IMAGE_SIZE : DEFAULT_IMAGE_SIZE;
    if (o->augment && !(o->crop_scale > 0))
        o->crop_scale = DEFAULT_CROP_SCALE;
    return tarn__images_open(function, o, &t->training, &t->validation);
}

/* Options of image files are errors for other data. */
static bool check_image_options(const char *function, const tarn_train_options *o)
{
    const char *given = o->image_size       ? "image_size"
                        : o->grey           ? "grey"
                        : o->crop_scale > 0 ? "crop_scale"
                        : o->jitter > 0     ? "jitter"
                                            : NULL;
    return !given || tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to images:FOLDER only; the data is '%.200s'",
                                 function, given, o->data);
}

/* Opens a table. A target of numbers makes the run a regression. */
static bool open_table(const char *function, tarn_trainer *t)
{
    if (!tarn__table_data_open(function, &t->options, &t->data_spec, &t->training, &t->validation, t->notes,
                               sizeof(t->notes)))
        return false;
    t->task = tarn__task_of_spec(&t->data_spec, t->options.data);
    return tarn__task_check(function, t->task, &t->options) && complete(function, t);
}

static bool open_new(const char *function, tarn_trainer *t)
{
    if (!tarn__table_options_check(function, &t->options))
        return false;
    if (is_images(t))
        return open_images(function, t) &&
               tarn__images_spec_create(function, &t->options, t->training, t->validation, &t->data_spec) &&
               complete(function, t);
    if (!check_image_options(function, &t->options))
        return false;
    if (tarn__data_is_table(t->options.data))
        return open_table(function, t);
    return tarn__data_open(function, t->options.data, &t->training, &t->validation) &&
           tarn__data_spec_create(function, t->options.data, t->training, t->validation, &t->data_spec) &&
           complete(function, t);
}

/* The data must be what it was: another number or order of samples would make the position of a resumed run mean
 * something else. */
static bool reopen(const char *function, tarn_trainer *t, const char *folder)
{
    const char *data = t->options.data;
    (void)folder;
    if (is_images(t) ? !open_images(function, t)
        : t->data_spec.table
            ? !tarn__table_data_reopen(function, &t->options, &t->data_spec, &t->training, &t->validation)
            : !tarn__data_open(function, data, &t->training, &t->validation))
        return tarn__data_paths_hint(function, data);
    return (is_images(t) ? tarn__images_spec_matches(function, data, &t->data_spec, t->training, t->validation)
                         : tarn__data_spec_matches(function, data, &t->data_spec, t->training, t->validation)) &&
           check_augment(function, t) && resize(function, t);
}

static bool open_random(const char *function, tarn_trainer *t)
{
    return tarn__random_images_open(function, t) && complete(function, t);
}

static tarn_module *create_model(const char *function, const tarn_trainer *t)
{
    tarn_module *model = tarn__classifier_create(function, &t->options, &t->data_spec, t->device);
    if (!model || !t->options.freeze || tarn__classifier_freeze(model))
        return model;
    tarn_module_free(model);
    return NULL;
}

static tarn_loader *create_loader(const tarn_trainer *t)
{
    tarn_loader_options options = tarn__data_spec_loader_options(&t->data_spec, t->micro_batch, t->device);
    options.shuffle = true;
    options.drop_last = true; /* a batch of a few samples makes a poor step, and a batchnorm needs more than one */
    options.seed = (uint64_t)t->options.seed;
    options.workers = workers_of(t);
    if (is_images(t)) {
        options.crop_scale = (float)t->options.crop_scale;
        options.flip = t->options.augment;
        options.jitter = (float)t->options.jitter;
    } else if (t->options.augment) {
        options.crop_padding = (int)(t->data_spec.input.size[1] / SHIFT_DIVISOR);
        options.flip = t->data_spec.can_be_mirrored;
    }
    return tarn_loader_new(t->training, &options);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The loader gives inputs as f32, whatever their dtype, and labels as i64. */
static bool create_batch(const tarn_trainer *t, int64_t count, tarn_tensor **fields)
{
    tarn_shape shape = {t->data_spec.input.rank + 1, {count}};
    memcpy(&shape.size[1], t->data_spec.input.size, sizeof(int64_t) * (size_t)t->data_spec.input.rank);
    fields[0] = tarn_zeros(shape, TARN_F32, t->device);
    fields[1] = tarn_zeros(TARN_SHAPE(count), TARN_I64, t->device);
    return !tarn_failed();
}

/* One micro-batch: fields[0] is the input, [B, ...], fields[1] the label, [B]. The metrics belong to the open scope. */
static bool gradients(const tarn__step_ctx *s, tarn_tensor *const *fields, tarn__step_metrics *metrics)
{
    *metrics = (tarn__step_metrics){0};
    tarn__step_phase(s, TARN__PHASE_FORWARD);
    tarn_tensor *label = tarn__batch_label(fields[1]),
                *logits = tarn_forward(s->model, tarn__batch_input(s->model, fields[0]));
    metrics->loss =
        tarn_cross_entropy(logits, label, &(tarn_cross_entropy_options){.label_smoothing = s->label_smoothing});
    if (s->all_micro_batches > 1)
        metrics->loss = tarn_mul(metrics->loss, tarn_scalar(1 / (double)s->all_micro_batches));
    metrics->correct = tarn_sum(tarn_eq(tarn_argmax(logits, 1, false), label), TARN_ALL_AXES, false);
    tarn__step_phase(s, TARN__PHASE_BACKWARD);
    return tarn_backward(metrics->loss);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool evaluate_run(tarn_trainer *t, tarn__evaluation *result)
{
    tarn_evaluation found;
    tarn_loader_options options = tarn__data_spec_loader_options(&t->data_spec, tarn__evaluation_batch(t), t->device);
    options.workers = workers_of(t);
    tarn_loader *loader = tarn_loader_new(t->validation, &options);
    bool good =
        loader && tarn__classify_evaluate(&t->ranks, t->model, loader, t->data_spec.classes, &found, NULL, NULL);
    tarn_loader_free(loader);
    if (good)
        *result = (tarn__evaluation){.samples = found.samples, .loss = found.loss, .accuracy = found.accuracy};
    return good;
}

static bool save_best(const tarn_trainer *t)
{
    tarn__path path;
    return tarn_module_save(t->model, tarn__path_in(t->options.out, "best.safetensors", &path));
}

static bool predict(const tarn_trainer *t, tarn_prediction_fn receive, void *ctx)
{
    bool was_training = tarn_module_is_training(t->model);
    tarn_loader_options options = tarn__data_spec_loader_options(&t->data_spec, t->batch_size, t->device);
    options.workers = workers_of(t);
    tarn_loader *loader = tarn_loader_new(t->validation, &options);
    bool good = loader && tarn_module_train(t->model, false) &&
                tarn__predict_each(&(tarn__prediction_pass){.model = t->model,
                                                            .dataset = t->validation,
                                                            .loader = loader,
                                                            .classes = t->data_spec.classes,
                                                            .batch_size = t->batch_size,
                                                            .receive = receive,
                                                            .ctx = ctx});
    tarn_loader_free(loader);
    tarn__error_record error;
    tarn__error_save(&error);
    tarn_module_train(t->model, was_training);
    tarn__error_restore(&error);
    return good;
}

static bool write_model(const char *function, const tarn_trainer *t, tarn__json_file *document)
{
    (void)function;
    return tarn__json_file_set_string(document, "model_type", t->options.model);
}

static void describe(const tarn_trainer *t, tarn_train_plan *plan)
{
    plan->classes = t->data_spec.classes;
    plan->skipped_files = tarn__images_skipped(t->training, t->validation);
}

static const char *unit(const tarn_trainer *t)
{
    return t->data_spec.input.rank == 3 ? "images" : "rows";
}

static void set_speed(const tarn_trainer *t, double samples_per_second, tarn_train_report *report)
{
    (void)t;
    report->images_per_second = samples_per_second;
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

#define ACCURACY \
    .name = "accuracy", .label = "accuracy", .unit = "%", .decimals = 2, .json_decimals = 6, .rank = 1, \
    .higher_is_better = true

static const tarn__metric training_lines[] = {TARN__METRIC_LOSS,
                                              {.key = "accuracy",
                                               .tag = "accuracy/training",
                                               .offset = offsetof(tarn_train_report, accuracy),
                                               .digits = 9,
                                               .shown = {ACCURACY}},
                                              TARN__METRIC_LR,
                                              TARN__METRIC_SPEED(images_per_second),
                                              {.key = NULL}};

static const tarn__metric evaluation_lines[] = {TARN__METRIC_VAL_LOSS,
                                                {.key = "val_accuracy",
                                                 .tag = "accuracy/validation",
                                                 .offset = offsetof(tarn_train_report, accuracy),
                                                 .digits = 9,
                                                 .shown = {ACCURACY}},
                                                {.key = NULL}};

const tarn__task tarn__task_classify = {.name = "classify",
                                        .bit = TARN__TASK_CLASSIFY,
                                        .sample_name = "sample",
                                        .has_accuracy = true,
                                        .random_data = "random images",
                                        .training_lines = training_lines,
                                        .evaluation_lines = evaluation_lines,
                                        .open = open_new,
                                        .reopen = reopen,
                                        .open_random = open_random,
                                        .resize = resize,
                                        .create_model = create_model,
                                        .create_loader = create_loader,
                                        .next_batch = tarn__loader_batch,
                                        .create_batch = create_batch,
                                        .gradients = gradients,

                                        .evaluate = evaluate_run,
                                        .save_best = save_best,
                                        .predict = predict,
                                        .write_model = write_model,
                                        .describe = describe,
                                        .unit = unit,
                                        .set_speed = set_speed};

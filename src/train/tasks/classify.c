/* classify.c: evaluation of a classifier: loss, accuracy, and correct samples per class.
 *
 * Sums stay on the device and are read once at the end, so that no batch waits for the host. The loss is summed in f64
 * and counts in i64: the result depends on the samples only, not on the batch size, up to rounding within a batch. The
 * model is in eval mode meanwhile, without gradients; its mode is restored after a failure too. */
#include <math.h>

#include "base/error.h"
#include "base/memory.h"
#include "train/data/data_source.h"

/* Sums over the batches so far, on the device. They belong to the scope of evaluate(). */
typedef struct sums {
    tarn_tensor *loss;              /* f64 [] */
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
    return tarn_add_inplace(s->loss, tarn_cast(loss, TARN_F64)) &&
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
    bool good = samples && correct && tarn_read(s->samples, samples, bytes) && tarn_read(s->correct, correct, bytes);
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
    double loss = good ? tarn_item(s->loss) : NAN;
    *evaluation = (tarn_evaluation){all, loss / (double)all, (double)all_correct / (double)all};
    return good && !tarn_failed();
}

static bool evaluate(tarn_module *model, tarn_loader *loader, int64_t classes, tarn_evaluation *evaluation,
                     int64_t *class_samples, int64_t *class_correct)
{
    tarn_device device = tarn_device_of(tarn_module_parameter(model, 0));
    bool was_training = tarn_module_is_training(model);
    tarn_scope *scope = tarn_scope_open();
    sums s = {tarn_zeros(TARN_SCALAR, TARN_F64, device), tarn_zeros(TARN_SHAPE(classes), TARN_I64, device),
              tarn_zeros(TARN_SHAPE(classes), TARN_I64, device)};
    tarn_module_train(model, false);
    tarn_no_grad_open();
    bool good = !tarn_failed() && add_batches(model, loader, classes, &s) &&
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
    return evaluate(model, loader, classes, evaluation, class_samples, class_correct);
}

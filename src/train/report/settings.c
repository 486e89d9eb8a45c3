/* settings.c: the settings of a run for its page: those that apply to this run, in words.
 *
 * config.json has every option; here options without effect (another architecture's, clipping that is off) are omitted.
 * Values come from the plan, so defaults are resolved. Strings are stored in tarn__report_settings itself. */
#include "train/report/report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "train/tasks/task.h"

/* Adds a setting; a longer value is truncated, and settings beyond TARN__MAX_SETTINGS are dropped. */
static void add(tarn__report_settings *settings, const char *name, const char *format, ...) TARN_PRINTF(3, 4);
static void add(tarn__report_settings *settings, const char *name, const char *format, ...)
{
    if (settings->count == TARN__MAX_SETTINGS)
        return;
    char *text = settings->text[settings->count];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(settings->text[0]), format, arguments);
    va_end(arguments);
    settings->row[settings->count++] = (tarn__report_setting){name, text};
}

/* ", momentum 0.9", or "" for 0. Returns `text`. */
static const char *part(char text[64], const char *name, double value)
{
    text[0] = 0;
    if (value > 0)
        snprintf(text, 64, ", %s %.6g", name, value);
    return text;
}

/* An integer: "12,500", or with a word "1 step" and "2 steps". */
static void add_count(tarn__report_settings *settings, const char *name, int64_t count, const char *word)
{
    char number[64];
    tarn__step_text((double)count, number, sizeof(number));
    add(settings, name, "%s%s%s%s", number, word[0] ? " " : "", word, word[0] && count != 1 ? "s" : "");
}

/* ---- model and data ---------------------------------------------------------------------------------------------- */

/* Architecture, base, adapters and sizes; sizes of a language model only. */
static void add_model(tarn__report_settings *settings, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    char mlp_sizes[200] = "";
    size_t used = 0;
    for (int i = 0; i < o->mlp_size_count && used < sizeof(mlp_sizes) - 24; i++)
        used += (size_t)snprintf(mlp_sizes + used, sizeof(mlp_sizes) - used, "%s%" PRId64,
                                 i ? ", " : " with hidden layer sizes ", o->mlp_sizes[i]);
    add(settings, "Model", "%s%s", o->model, mlp_sizes);
    if (o->base[0])
        add(settings, "Base model", "%s%s%s", o->base, o->quantize[0] ? ", linear layers as " : "", o->quantize);
    if (o->lora)
        add(settings, "Adapters", "rank %" PRId64 ", alpha %.6g, dropout %.6g, in %s", o->lora, o->lora_alpha,
            o->lora_dropout, o->lora_targets[0] ? o->lora_targets : "all linear layers but the head");
    if (o->lora_modules_to_save[0])
        add(settings, "Trained whole", "%s", o->lora_modules_to_save);
    if (o->add_tokens[0])
        add(settings, "Added tokens", "%s", o->add_tokens);
    add_count(settings, "Parameters", p->trained, "");
    if (p->frozen)
        add_count(settings, "Frozen parameters", p->frozen, "");
    if (!o->layers) /* not a language model */
        return;
    char kv_heads[40] = "";
    if (o->kv_heads != o->heads)
        snprintf(kv_heads, sizeof(kv_heads), " (%" PRId64 " KV heads)", o->kv_heads);
    add(settings, "Size", "%" PRId64 " layer%s, %" PRId64 " head%s%s, hidden size %" PRId64 ", FFN size %" PRId64,
        o->layers, o->layers == 1 ? "" : "s", o->heads, o->heads == 1 ? "" : "s", kv_heads, o->hidden_size,
        o->ffn_size);
    add_count(settings, "Context", o->context, "token");
    add_count(settings, "Vocabulary", o->vocab_size, "token");
    if (o->dropout > 0)
        add(settings, "Dropout", "%.6g", o->dropout);
}

/* What was found about the data: the sentences as one. */
static void add_notes(tarn__report_settings *settings, const char *notes)
{
    char text[1024];
    snprintf(text, sizeof(text), "%s", notes);
    for (char *at = text; (at = strchr(at, '\n')) != NULL;)
        *at = ';';
    add(settings, "Table", "%s", text);
}

/* The tokenizer is named by its source: base model, option, shards, or the default. Samples other than text have
 * none. */
static void add_data(tarn__report_settings *settings, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    add(settings, "Data", "%s", o->data);
    if (p->training_tokens) {
        add_count(settings, "Training data", p->training_tokens, "token");
        add_count(settings, "Validation data", p->validation_tokens, "token");
        add(settings, "Tokenizer", "%s",
            o->base[0]                            ? "the model's"
            : o->tokenizer[0]                     ? o->tokenizer
            : strncmp(o->data, "shards:", 7) == 0 ? "the shards'"
                                                  : "characters");
    } else {
        add_count(settings, "Training data", p->training_samples, "sample");
        add_count(settings, "Validation data", p->validation_samples, "sample");
        if (p->classes)
            add_count(settings, "Classes", p->classes, "");
        if (p->notes[0])
            add_notes(settings, p->notes);
    }
    if (o->augment)
        add(settings, "Augmentation", "random shifts of images");
    if (o->label_smoothing > 0)
        add(settings, "Label smoothing", "%.6g", o->label_smoothing);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static void add_optimizer(tarn__report_settings *settings, const tarn_train_options *o)
{
    char momentum[64], decay[64], beta2[64];
    bool is_sgd = strcmp(o->optimizer, "sgd") == 0;
    add(settings, "Optimizer", "%s%s%s%s",
        is_sgd                              ? "SGD"
        : strcmp(o->optimizer, "adam") == 0 ? "Adam"
                                            : "AdamW",
        part(momentum, "momentum", o->momentum), part(beta2, "beta2", is_sgd ? 0 : o->beta2),
        part(decay, "weight decay", o->weight_decay));
    if (o->clip_norm > 0)
        add(settings, "Gradient clipping", "norm %.6g", o->clip_norm);
    if (o->ema > 0)
        add(settings, "Averaged weights", "decay %.9g; evaluations and best weights", o->ema);
}

/* The learning rate schedule in words. */
static void add_rate(tarn__report_settings *settings, const tarn_train_options *o)
{
    if (strcmp(o->schedule, "constant") == 0)
        add(settings, "Learning rate", "%.6g", o->lr);
    else if (strcmp(o->schedule, "one-cycle") == 0)
        add(settings, "Learning rate", "%.6g, one cycle to %.6g", o->lr, o->min_lr);
    else if (strcmp(o->schedule, "step") != 0)
        add(settings, "Learning rate", "%.6g, %s decay to %.6g", o->lr, o->schedule, o->min_lr);
    else
        add(settings, "Learning rate", "%.6g, times %.6g every %" PRId64 " %s", o->lr, o->lr_gamma,
            o->lr_step ? o->lr_step : o->lr_step_epochs, o->lr_step ? "steps" : "epochs");
    if (o->warmup)
        add_count(settings, "Warm-up", o->warmup, "step");
}

static void add_steps(tarn__report_settings *settings, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    add_count(settings, "Length", p->steps, "step");
    add_count(settings, "Epoch", p->steps_in_epoch, "step");
    if (o->micro_batch && o->micro_batch < o->batch_size)
        add(settings, "Batch", "%" PRId64 " %ss, in micro-batches of %" PRId64, o->batch_size, p->sample_name,
            o->micro_batch);
    else
        add_count(settings, "Batch", o->batch_size, p->sample_name);
    if (o->eval_every)
        add(settings, "Evaluation", "every %" PRId64 " steps", o->eval_every);
    if (o->patience)
        add_count(settings, "Patience", o->patience, "evaluation");
    add(settings, "Seed", "%" PRId64, o->seed);
}

/* Names of the CPU, and of the device that trains, if it is another. False with an error. */
static bool add_processors(tarn__report_settings *settings, tarn_device device)
{
    tarn_device_info info;
    if (!tarn_device_query(tarn_device_cpu(), &info))
        return false;
    add(settings, "CPU", "%s, %d thread%s", info.description, tarn_threads(), tarn_threads() == 1 ? "" : "s");
    if (tarn_device_equal(device, tarn_device_cpu()))
        return true;
    if (!tarn_device_query(device, &info))
        return false;
    add(settings, strcmp(info.type, "gpu") == 0 ? "GPU" : "Accelerator", "%s", info.description);
    return true;
}

/* Device, precision and folder. */
static void add_place(tarn__report_settings *settings, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    add(settings, "Device", "%s", p->device);
    add(settings, "Precision", "%s", strcmp(o->precision, "bf16") == 0 ? "bf16, master weights in f32" : o->precision);
    if (strcmp(o->recompute, "full") == 0)
        add(settings, "Recomputation", "whole layers, in backward");
    add(settings, "Folder", "%s", p->folder);
}

/* The order of the page: what, on what data, how long, how, and where. */
bool tarn__report_settings_collect(const tarn_trainer *trainer, tarn__report_settings *settings)
{
    tarn_train_plan plan;
    if (!tarn_trainer_plan(trainer, &plan))
        return false;
    settings->count = 0;
    add_model(settings, &plan);
    add_data(settings, &plan);
    add_steps(settings, &plan);
    add_optimizer(settings, &plan.options);
    add_rate(settings, &plan.options);
    add_place(settings, &plan);
    return add_processors(settings, trainer->device);
}

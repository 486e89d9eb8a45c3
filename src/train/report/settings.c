/* settings.c: what a run is, for those who look at its page: the settings that mean something for this run, in words.
 *
 * config.json holds every option; here one that does nothing (another model's, a clipping that is off) is left out. */
#include "train/report/facts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "train/report/curves_parts.h"

/* A fact of this name; what is too long for it is cut. */
static void add(tarn__report_settings *facts, const char *name, const char *format, ...) TARN_PRINTF(3, 4);
static void add(tarn__report_settings *facts, const char *name, const char *format, ...)
{
    if (facts->count == TARN__MAX_SETTINGS)
        return;
    char *text = facts->text[facts->count];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(facts->text[0]), format, arguments);
    va_end(arguments);
    facts->fact[facts->count++] = (tarn__report_setting){name, text};
}

/* ", momentum 0.9", or nothing where the number is 0: a part of a fact that may be missing. */
static const char *part(char text[64], const char *name, double value)
{
    text[0] = 0;
    if (value > 0)
        snprintf(text, 64, ", %s %.6g", name, value);
    return text;
}

/* A whole number: "12,500", with a word behind it "1 step" and "2 steps". */
static void add_count(tarn__report_settings *facts, const char *name, int64_t count, const char *word)
{
    char number[64];
    tarn__step_text((double)count, number, sizeof(number));
    add(facts, name, "%s%s%s%s", number, word[0] ? " " : "", word, word[0] && count != 1 ? "s" : "");
}

/* ---- model and data ---------------------------------------------------------------------------------------------- */

static void add_model(tarn__report_settings *facts, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    char hidden[200] = "";
    size_t used = 0;
    for (int i = 0; i < o->hidden_count && used < sizeof(hidden) - 24; i++)
        used += (size_t)snprintf(hidden + used, sizeof(hidden) - used, "%s%" PRId64,
                                 i ? ", " : " with hidden layers of ", o->hidden[i]);
    add(facts, "Model", "%s%s", o->model, hidden);
    if (o->base[0])
        add(facts, "Weights from", "%s%s%s", o->base, o->quantize[0] ? ", linear layers as " : "", o->quantize);
    if (o->lora)
        add(facts, "Adapters", "rank %" PRId64 ", alpha %.6g, dropout %.6g, in %s", o->lora, o->lora_alpha,
            o->lora_dropout, o->lora_targets[0] ? o->lora_targets : "all linear layers but the head");
    add_count(facts, "Parameters", p->trained, "");
    if (p->frozen)
        add_count(facts, "Frozen parameters", p->frozen, "");
    if (!p->is_text)
        return;
    char kv_heads[40] = "";
    if (o->kv_heads != o->heads)
        snprintf(kv_heads, sizeof(kv_heads), " (of keys %" PRId64 ")", o->kv_heads);
    add(facts, "Size", "%" PRId64 " layer%s, %" PRId64 " head%s%s, width %" PRId64 ", inner %" PRId64, o->layers,
        o->layers == 1 ? "" : "s", o->heads, o->heads == 1 ? "" : "s", kv_heads, o->width, o->inner);
    add_count(facts, "Context", o->context, "token");
    add_count(facts, "Vocabulary", o->vocab, "token");
    if (o->dropout > 0)
        add(facts, "Dropout", "%.6g", o->dropout);
}

static void add_data(tarn__report_settings *facts, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    add(facts, "Data", "%s", o->data);
    if (p->is_text) {
        add_count(facts, "Training data", p->training_tokens, "token");
        add_count(facts, "Validation data", p->validation_tokens, "token");
        add(facts, "Tokenizer", "%s",
            o->base[0]                            ? "the model's"
            : o->tokenizer[0]                     ? o->tokenizer
            : strncmp(o->data, "shards:", 7) == 0 ? "the shards'"
                                                  : "characters");
    } else {
        add_count(facts, "Training data", p->training_samples, "sample");
        add_count(facts, "Validation data", p->validation_samples, "sample");
        add_count(facts, "Classes", p->classes, "");
    }
    if (o->augment)
        add(facts, "Augmentation", "images are moved at random");
    if (o->label_smoothing > 0)
        add(facts, "Label smoothing", "%.6g", o->label_smoothing);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static void add_optimizer(tarn__report_settings *facts, const tarn_train_options *o)
{
    char momentum[64], decay[64], beta2[64];
    bool is_sgd = strcmp(o->optimizer, "sgd") == 0;
    add(facts, "Optimizer", "%s%s%s%s",
        is_sgd                              ? "SGD"
        : strcmp(o->optimizer, "adam") == 0 ? "Adam"
                                            : "AdamW",
        part(momentum, "momentum", o->momentum), part(beta2, "beta2", is_sgd ? 0 : o->beta2),
        part(decay, "weight decay", o->weight_decay));
    if (o->clip_norm > 0)
        add(facts, "Gradient norm", "at most %.6g", o->clip_norm);
}

static void add_rate(tarn__report_settings *facts, const tarn_train_options *o)
{
    if (strcmp(o->schedule, "constant") == 0)
        add(facts, "Learning rate", "%.6g", o->lr);
    else if (strcmp(o->schedule, "step") != 0)
        add(facts, "Learning rate", "%.6g, %s down to %.6g", o->lr, o->schedule, o->min_lr);
    else
        add(facts, "Learning rate", "%.6g, times %.6g every %" PRId64 " %s", o->lr, o->drop_factor,
            o->drop_every ? o->drop_every : o->drop_epochs, o->drop_every ? "steps" : "epochs");
    if (o->warmup)
        add_count(facts, "Warm-up", o->warmup, "step");
}

static void add_steps(tarn__report_settings *facts, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    add_count(facts, "Length", p->steps, "step");
    add_count(facts, "An epoch", p->steps_in_epoch, "step");
    if (p->is_text && o->micro_batch < o->batch_size)
        add(facts, "Batch", "%" PRId64 " windows, %" PRId64 " at a time", o->batch_size, o->micro_batch);
    else
        add_count(facts, "Batch", o->batch_size, p->is_text ? "window" : "sample");
    if (o->eval_every)
        add(facts, "Evaluation", "every %" PRId64 " steps", o->eval_every);
    if (o->patience)
        add_count(facts, "Patience", o->patience, "evaluation");
    add(facts, "Seed", "%" PRId64, o->seed);
}

static void add_place(tarn__report_settings *facts, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    add(facts, "Device", "%s", p->device);
    add(facts, "Precision", "%s", strcmp(o->precision, "bf16") == 0 ? "bf16, master weights in f32" : o->precision);
    if (strcmp(o->recompute, "block") == 0)
        add(facts, "Recomputation", "blocks, in backward");
    add(facts, "Folder", "%s", p->folder);
}

bool tarn__report_settings_collect(const tarn_trainer *trainer, tarn__report_settings *facts)
{
    tarn_train_plan plan;
    if (!tarn_trainer_plan(trainer, &plan))
        return false;
    facts->count = 0;
    add_model(facts, &plan);
    add_data(facts, &plan);
    add_steps(facts, &plan);
    add_optimizer(facts, &plan.options);
    add_rate(facts, &plan.options);
    add_place(facts, &plan);
    return true;
}

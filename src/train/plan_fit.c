/* plan_fit.c: rejects a run that cannot fit into memory, with a breakdown of its memory and with settings that would
 * fit.
 *
 * Each suggestion is planned like a run (plan.c), never guessed, so it fits by the same estimate. A run whose estimate
 * exceeds the free memory, but whose lower bound does not, starts with a warning. Planning costs no device memory. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "models/lm/arch.h"
#include "train/options.h"
#include "train/tasks/lm.h"

/* ---- planning another run ---------------------------------------------------------------------------------------- */

/* Memory needed with other options; INT64_MAX if they exclude each other. Errors are cleared. Borrows data and corpus
 * of the run. */
static int64_t memory_with(const tarn_trainer *t, const tarn_train_options *o)
{
    tarn_trainer other = {.options = *o,
                          .task = t->task,
                          .data_spec = t->data_spec,
                          .corpus = t->corpus,
                          .training = t->training,
                          .ranks = t->ranks,
                          .device = t->device};
    bool good = tarn__task_check("trainer_new", t->task, o) && t->task->resize("trainer_new", &other) &&
                tarn__plan_memory("trainer_new", &other);
    tarn_clear_error();
    return good ? other.memory_needed : INT64_MAX;
}

static bool has_option(const tarn_trainer *t, const char *name)
{
    return tarn__train_option_applies(name, t->task->bit);
}

static bool fits(const tarn_trainer *t, const tarn_train_options *o)
{
    return memory_with(t, o) <= t->memory_free;
}

/* Adds a suggestion: "micro_batch=4 recompute=full". At most TARN_TRAIN_FITS. */
static void add(tarn_trainer *t, const char *settings, const tarn_train_options *o)
{
    if (t->fit_count == TARN_TRAIN_FITS)
        return;
    tarn_train_fit *fit = &t->fits[t->fit_count++];
    snprintf(fit->settings, sizeof(fit->settings), "%s", settings);
    fit->memory_needed = memory_with(t, o);
}

/* An integer option whose memory grows with it; the value must divide `must_divide`, if that is not 0. `also` (may be
 * NULL) gets the same value. */
typedef struct int_setting {
    int64_t *field, *also;
    int64_t max_value, must_divide;
} int_setting;

static int64_t memory_of(const tarn_trainer *t, const tarn_train_options *o, const int_setting *a, int64_t value)
{
    *a->field = value;
    if (a->also)
        *a->also = value;
    return memory_with(t, o);
}

/* The largest allowed value up to `value`. */
static int64_t divisor_up_to(const int_setting *a, int64_t value)
{
    while (a->must_divide && value > 1 && a->must_divide % value != 0)
        value--;
    return value;
}

/* The largest value that fits, which the options then have; 0: none. A linear guess from the memory of 1 and 2, lowered
 * by 1/16 until a plan confirms it. */
static int64_t find_largest(const tarn_trainer *t, const tarn_train_options *o, const int_setting *a)
{
    int64_t one = a->max_value > 0 ? memory_of(t, o, a, 1) : INT64_MAX,
            two = a->max_value > 1 ? memory_of(t, o, a, 2) : INT64_MAX;
    if (one > t->memory_free)
        return 0;
    if (two > t->memory_free)
        return memory_of(t, o, a, 1) == one;
    double each = two > one ? (double)(two - one) : 1, guess = 1 + (double)(t->memory_free - one) / each;
    int64_t value = divisor_up_to(a, guess < (double)a->max_value ? (int64_t)guess : a->max_value);
    while (value > 1 && memory_of(t, o, a, value) > t->memory_free)
        value = divisor_up_to(a, value - (value + 15) / 16);
    if (value == 1)
        memory_of(t, o, a, 1);
    return value;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static int64_t largest_micro_batch(const tarn_trainer *t, tarn_train_options *o)
{
    return find_largest(t, o,
                        &(int_setting){&o->micro_batch, NULL, t->micro_batch, o->batch_size / t->ranks.virtual_ranks});
}

/* Smaller micro-batches: the same steps up to rounding, by gradient accumulation. */
static int64_t try_micro_batch(tarn_trainer *t)
{
    tarn_train_options o = t->options;
    char text[64];
    int64_t found = largest_micro_batch(t, &o);
    snprintf(text, sizeof(text), "micro_batch=%" PRId64, found);
    if (found > 0)
        add(t, text, &o);
    return found;
}

/* An option that shrinks activations, alone or with a micro-batch larger than is possible without it. */
static void try_setting(tarn_trainer *t, const char *name, const char *word, int64_t micro_batch)
{
    tarn_train_options o = t->options;
    char text[96];
    if (!tarn_train_options_set(&o, name, word)) {
        tarn_clear_error();
        return;
    }
    snprintf(text, sizeof(text), "%s=%s", name, word);
    if (fits(t, &o)) {
        add(t, text, &o);
        return;
    }
    int64_t found = has_option(t, "micro_batch") && !t->is_resumed ? largest_micro_batch(t, &o) : 0;
    snprintf(text, sizeof(text), "%s=%s micro_batch=%" PRId64, name, word, found);
    if (found > micro_batch)
        add(t, text, &o);
}

/* A smaller batch: changes the training. */
static void try_batch_size(tarn_trainer *t)
{
    tarn_train_options o = t->options;
    char text[64];
    bool has_micro_batch = has_option(t, "micro_batch");
    int64_t found = find_largest(
        t, &o, &(int_setting){&o.batch_size, has_micro_batch ? &o.micro_batch : NULL, t->batch_size - 1, 0});
    snprintf(text, sizeof(text), "batch_size=%" PRId64, found);
    if (found > 0 && t->micro_batch == t->batch_size)
        add(t, text, &o);
}

/* ---- smaller models ---------------------------------------------------------------------------------------------- */

/* Parameters of the model that the options name; 0 if it is unknown. */
static double parameter_count_of(const tarn_train_options *o)
{
    const tarn__arch *kind = tarn__arch_find_trainable(o->model);
    tarn__model_sizes sizes = {.vocab_size = o->vocab_size,
                               .context = o->context,
                               .layers = o->layers,
                               .heads = o->heads,
                               .kv_heads = o->kv_heads,
                               .hidden_size = o->hidden_size,
                               .ffn_size = o->ffn_size};
    return kind ? tarn__model_parameter_count(o->model, &sizes) : 0;
}

/* Replaces the run's model by a published one. False: it has no sizes of its own, or they do not fit the data. */
static bool set_model(const tarn_trainer *t, const char *name, tarn_train_options *o)
{
    *o = t->options;
    snprintf(o->model, sizeof(o->model), "%s", name);
    o->layers = o->heads = o->kv_heads = o->hidden_size = o->ffn_size = 0;
    if (tarn__default_sizes_needed(o))
        return false;
    tarn_trainer other = {.options = *o, .data_spec = t->data_spec, .corpus = t->corpus};
    bool good = tarn__lm_sizes("trainer_new", &other);
    tarn_clear_error();
    *o = other.options;
    return good;
}

/* The largest smaller published model that fits, with the settings as they are, else with a micro-batch of 1. */
static void try_models(tarn_trainer *t)
{
    const tarn__arch *kind = tarn__arch_find_trainable(t->options.model);
    tarn_train_options best = {0}, o;
    double max_value = 0, own = parameter_count_of(&t->options);
    for (int pass = 0; kind && pass < 2 && max_value == 0; pass++)
        for (int i = 0; kind->sizes && kind->sizes[i]; i++) {
            if (!set_model(t, kind->sizes[i], &o))
                continue;
            o.micro_batch = pass ? 1 : o.micro_batch;
            if (parameter_count_of(&o) < own && parameter_count_of(&o) > max_value && fits(t, &o)) {
                max_value = parameter_count_of(&o);
                best = o;
            }
        }
    char text[96];
    snprintf(text, sizeof(text), best.micro_batch < t->micro_batch ? "model=%s micro_batch=1" : "model=%s", best.model);
    if (max_value > 0)
        add(t, text, &best);
}

static void try_layers(tarn_trainer *t)
{
    tarn_train_options o = t->options;
    char text[64];
    int64_t found = find_largest(t, &o, &(int_setting){&o.layers, NULL, t->options.layers - 1, 0});
    snprintf(text, sizeof(text), "layers=%" PRId64, found);
    if (found > 0)
        add(t, text, &o);
}

/* Halves all hidden layers of an MLP until it fits. */
static void try_mlp_sizes(tarn_trainer *t)
{
    tarn_train_options o = t->options;
    char text[96];
    while (o.mlp_size_count > 0 && o.mlp_sizes[0] > 1) {
        size_t used = (size_t)snprintf(text, sizeof(text), "mlp_sizes=");
        for (int i = 0; i < o.mlp_size_count; i++) {
            o.mlp_sizes[i] = o.mlp_sizes[i] > 1 ? o.mlp_sizes[i] / 2 : 1;
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%" PRId64, i ? "," : "", o.mlp_sizes[i]);
        }
        if (!fits(t, &o))
            continue;
        add(t, text, &o);
        return;
    }
}

/* A published model is replaced by a smaller one, own sizes lose layers, and a base gets adapters. */
static void try_smaller(tarn_trainer *t)
{
    tarn_train_options named;
    if (has_option(t, "mlp_sizes"))
        try_mlp_sizes(t);
    else if (!t->options.base[0] && set_model(t, t->options.model, &named) &&
             parameter_count_of(&named) == parameter_count_of(&t->options))
        try_models(t);
    else if (!t->options.base[0])
        try_layers(t);
    else if (!t->options.lora)
        try_setting(t, "lora", "8", 0);
}

/* In order of preference: settings that keep the result come first. */
static void find_fits(tarn_trainer *t)
{
    bool is_bf16 = strcmp(t->options.precision, "bf16") == 0;
    int64_t micro_batch = has_option(t, "micro_batch") && !t->is_resumed ? try_micro_batch(t) : 0;
    if (has_option(t, "recompute") && strcmp(t->options.recompute, "full") != 0)
        try_setting(t, "recompute", "full", micro_batch);
    if (t->is_resumed) /* it keeps the rest */
        return;
    if (!is_bf16)
        try_setting(t, "precision", "bf16", micro_batch);
    if (t->batch_size > 1)
        try_batch_size(t);
    try_smaller(t);
}

/* ---- the error --------------------------------------------------------------------------------------------------- */

/* Appends a line of the table: "1.5 GiB  weights". Returns the new length. */
static size_t append_line(char *text, size_t size, size_t used, int64_t bytes, const char *what, const char *settings)
{
    static const char *const units[] = {"MiB", "GiB", "TiB"};
    double in_unit = (double)bytes / (1 << 20);
    int unit = 0;
    for (; in_unit >= 1024 && unit < 2; unit++)
        in_unit /= 1024;
    if (used < size)
        used += (size_t)snprintf(text + used, size - used, "\n%10.1f %s  %s%s", in_unit, units[unit], what, settings);
    return used;
}

/* The command recognizes this message and prints settings as flags (cli/train/train_memory.c). */
static bool raise_too_large(const char *function, const tarn_trainer *t)
{
    char text[800] = "";
    size_t size = sizeof(text), used = append_line(text, size, 0, t->weight_bytes, "weights", "");
    used = append_line(text, size, used, t->gradient_bytes, "gradients", "");
    used = append_line(text, size, used, t->state_bytes, "optimizer state", "");
    used = append_line(text, size, used, t->activation_bytes, "activations", "");
    used = append_line(text, size, used, t->memory_needed, "needed (estimate)", "");
    used = append_line(text, size, used, t->memory_min, "needed (lower bound)", "");
    used = append_line(text, size, used, t->memory_free, "free on ", t->options.device);
    for (int i = 0; i < t->fit_count; i++)
        used = append_line(text, size, used, t->fits[i].memory_needed, "would fit, with ", t->fits[i].settings);
    return tarn__raise(TARN_ERROR_MEMORY, "%s: the run does not fit in memory; ignore_memory starts it anyway\n%s",
                       function, text + 1);
}

bool tarn__plan_fit_check(const char *function, tarn_trainer *t)
{
    if (t->memory_free == 0 || t->memory_needed <= t->memory_free)
        return true;
    find_fits(t);
    if (t->is_dry_run)
        return true;
    if (t->memory_min > t->memory_free && !t->options.ignore_memory)
        return raise_too_large(function, t);
    tarn__log(TARN_LOG_WARNING, "the run may not fit in memory: it needs about %.1f MiB, and %s has %.1f MiB free",
              (double)t->memory_needed / (1 << 20), t->options.device, (double)t->memory_free / (1 << 20));
    return true;
}

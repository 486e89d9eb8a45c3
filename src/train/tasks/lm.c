/* lm.c: language models in a run: completing their options, opening data and model, and the gradients of a step.
 *
 * An epoch is as many windows as the text has without overlap, at random offsets that a loader draws. The state of a
 * run is thus the state of its loader, as for any other data, and the samples of a step do not depend on the
 * micro-batch. Gradient accumulation weighs each micro-batch by its targets, so that a step equals one with the whole
 * batch up to rounding. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "models/lm/arch.h"
#include "train/default_sizes.h"
#include "train/options.h"
#include "train/tasks/finetune.h"
#include "train/trainer.h"

#define DEFAULT_VAL_FRACTION 0.1 /* default fraction of the documents of a chat dataset */

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Name of a given option that does not apply to the task (text or classes); NULL: none. */
static const char *inapplicable_option(const tarn_train_options *o, bool is_text)
{
    const struct {
        const char *name;
        bool for_text, given;
    } rows[] = {{"mlp_sizes", false, o->mlp_size_count > 0},
                {"augment", false, o->augment},
                {"label_smoothing", false, o->label_smoothing > 0},
                {"tokenizer", true, o->tokenizer[0] != 0},
                {"layers", true, o->layers > 0},
                {"heads", true, o->heads > 0},
                {"kv_heads", true, o->kv_heads > 0},
                {"hidden_size", true, o->hidden_size > 0},
                {"ffn_size", true, o->ffn_size > 0},
                {"context", true, o->context > 0},
                {"vocab_size", true, o->vocab_size > 0},
                {"dropout", true, o->dropout > 0},
                {"micro_batch", true, o->micro_batch > 0},
                {"eval_batches", true, o->eval_batches > 0},
                {"sample", true, o->sample > 0},
                {"keep", true, o->keep > 0},
                {"base", true, o->base[0] != 0},
                {"lora", true, o->lora > 0},
                {"recompute", true, o->recompute[0] && strcmp(o->recompute, "none") != 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].given && rows[i].for_text != is_text)
            return rows[i].name;
    return NULL;
}

/* The architecture must fit the data too. False with an error. */
bool tarn__lm_check(const char *function, const tarn_train_options *o, bool is_text)
{
    const char *name = inapplicable_option(o, is_text);
    bool is_language = tarn__arch_find_trainable(o->model) != NULL;
    if (name)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to %s only; the data is '%.200s'", function, name,
                           is_text ? "classifiers" : "language models", o->data);
    if (o->model[0] && is_language != is_text)
        return tarn__raise(
            TARN_ERROR_ARGUMENT, "%s: the model %s needs %s, but the data is '%.200s'", function, o->model,
            is_language ? "text (text:FILE, shards:FOLDER or FILE.jsonl)" : "samples with labels", o->data);
    return true;
}

/* A resumed run has all sizes in its config.json, and weights of these sizes: a damaged file must not create another
 * model, or a huge one. Compared by the bytes of model.safetensors, before anything is allocated. False with an error.
 */
static bool check_checkpoint_size(const char *function, const tarn_trainer *t, const tarn__arch *kind,
                                  const tarn__model_sizes *sizes)
{
    const tarn_train_options *o = &t->options;
    tarn__path path;
    double wanted = kind->parameter_count(o->model, sizes) * (strcmp(o->precision, "bf16") == 0 ? 2 : 4);
    int64_t found = tarn__platform_file_bytes(tarn__path_in(o->out, "model.safetensors", &path));
    return found < 0 || wanted <= (double)found ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s/config.json' describes a model with %.0f bytes of weights, but '%s' has only %" PRId64,
                       function, o->out, wanted, path.text, found);
}

/* 0 is a size that was not given. */
static tarn__model_sizes sizes_of(const tarn_train_options *o)
{
    return (tarn__model_sizes){.vocab_size = o->vocab_size,
                               .context = o->context,
                               .layers = o->layers,
                               .heads = o->heads,
                               .kv_heads = o->kv_heads,
                               .hidden_size = o->hidden_size,
                               .ffn_size = o->ffn_size,
                               .dropout = o->dropout,
                               .dtype = strcmp(o->precision, "bf16") == 0 ? TARN_BF16 : TARN_F32,
                               .recompute = strcmp(o->recompute, "full") == 0        ? TARN_RECOMPUTE_FULL
                                            : strcmp(o->recompute, "selective") == 0 ? TARN_RECOMPUTE_SELECTIVE
                                                                                     : TARN_RECOMPUTE_NONE};
}

/* Sizes that were not given are the defaults of the named architecture, or those of the base model. */
bool tarn__lm_sizes(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    const tarn__arch *kind = tarn__arch_find_trainable(o->model);
    tarn__model_sizes sizes = sizes_of(o);
    if (o->base[0])
        return tarn__base_model_complete(function, t, &sizes);
    if (!kind)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown language model '%.64s'", function, o->model);
    if (!kind->complete(function, o->model, &sizes) ||
        (t->is_resumed && !check_checkpoint_size(function, t, kind, &sizes)))
        return false;
    o->layers = sizes.layers;
    o->heads = sizes.heads;
    o->kv_heads = sizes.kv_heads;
    o->hidden_size = sizes.hidden_size;
    o->ffn_size = sizes.ffn_size;
    o->context = sizes.context;
    o->vocab_size = sizes.vocab_size;
    return true;
}

/* Completes the options. vocab_size is the tokenizer's unless a larger one was given; a smaller one would put ids out
 * of range. */
static bool complete(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    int64_t tokens = t->corpus.tokenizer ? tarn_tokenizer_count(t->corpus.tokenizer) : 0;
    if (t->is_resumed && (o->layers < 1 || o->heads < 1 || o->hidden_size < 1 || o->context < 1 || o->vocab_size < 1 ||
                          o->micro_batch < 1))
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "%s: '%s/config.json' lacks one of layers, heads, hidden_size, context, vocab_size and micro_batch",
            function, o->out);
    if (!o->model[0] && !o->base[0])
        snprintf(o->model, sizeof(o->model), "gpt2");
    o->vocab_size = o->vocab_size || o->base[0] ? o->vocab_size : tokens;
    /* random tokens have no tokenizer; they measure a model whose sizes are named */
    bool is_new = !t->is_resumed && t->corpus.tokenizer;
    if (is_new && tarn__default_sizes_needed(o) && !tarn__default_sizes_choose(function, t))
        return false;
    o->micro_batch = o->micro_batch ? o->micro_batch : o->batch_size;
    if (!tarn__lm_sizes(function, t))
        return false;
    if (o->vocab_size < tokens)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: vocab_size is %" PRId64 ", but the tokenizer has %" PRId64 " tokens", function,
                           o->vocab_size, tokens);
    if (o->batch_size % o->micro_batch != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: a micro_batch of %" PRId64 " does not divide the batch_size of %" PRId64, function,
                           o->micro_batch, o->batch_size);
    return true;
}

/* ---- data and model ---------------------------------------------------------------------------------------------- */

/* The data of a resumed run must be the data that it started with: the loader state is an index into it. */
static bool check_same_text(const char *function, const tarn_trainer *t, const tarn__data_spec *found)
{
    const tarn__data_spec *d = &t->data_spec;
    return (d->training_tokens == found->training_tokens && d->validation_tokens == found->validation_tokens &&
            d->hash == found->hash) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%.200s' is not the text that the run was started with; it had %" PRId64
                       " training tokens, and has %" PRId64,
                       function, t->options.data, d->training_tokens, found->training_tokens);
}

/* A folder of shards has its own tokenizer, which must equal the base model's. */
static bool check_shards(const char *function, const tarn_trainer *t)
{
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(t->options.base);
    if (!tokenizer)
        return tarn__raise_within(function);
    bool same = tarn_tokenizer_hash(tokenizer) == tarn_tokenizer_hash(t->corpus.tokenizer);
    tarn_tokenizer_free(tokenizer);
    return same ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: the tokens of '%.200s' are of another tokenizer than that of '%s'",
                       function, t->options.data, t->options.base);
}

/* Opens the tokenizer of a chat dataset. The documents are read later, when the context is known. */
static bool open_tokenizer(const char *function, tarn_trainer *t, const char *tokenizer)
{
    if (!tokenizer[0] || strcmp(tokenizer, "characters") == 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: chats need a base model or a tokenizer other than characters",
                           function);
    const char *template = t->options.chat_template;
    t->corpus.tokenizer = strcmp(tokenizer, "bytes") == 0 ? tarn_tokenizer_bytes() : tarn_tokenizer_open(tokenizer);
    /* --template is stored with the tokenizer, so that the run folder chats as it was trained */
    bool good = t->corpus.tokenizer && (!template[0] || tarn_tokenizer_set_chat(t->corpus.tokenizer, template));
    return good || tarn__raise_within(function);
}

/* `tokenizer`: "characters", "bytes" or a path. A base model's shards bring their own. */
bool tarn__lm_open(const char *function, tarn_trainer *t, const char *tokenizer)
{
    const tarn_train_options *o = &t->options;
    bool is_shards = strncmp(o->data, "shards:", strlen("shards:")) == 0;
    if (tarn__data_is_chats(o->data))
        return open_tokenizer(function, t, tokenizer) && tarn__lm_setup(function, t);
    return tarn__corpus_open(function, o->data, is_shards && o->base[0] ? "" : tokenizer, &t->corpus) &&
           (!is_shards || !o->base[0] || check_shards(function, t)) && tarn__lm_setup(function, t);
}

/* Datasets over the corpus: random windows for training, consecutive ones for the val set, so that every evaluation has
 * the same samples. An epoch has at least one step. */
static bool open_windows(const char *function, tarn_trainer *t, tarn__data_spec *found)
{
    const tarn_train_options *o = &t->options;
    const tarn__corpus *c = &t->corpus;
    int64_t windows = (c->training.count - 1) / o->context;
    *found = (tarn__data_spec){.is_text = true,
                               .training_tokens = c->training.count,
                               .validation_tokens = c->validation.count,
                               .hash = c->hash};
    t->steps_in_epoch = windows > o->batch_size ? windows / o->batch_size : 1;
    t->training = tarn__windows_at_random(function, &c->training, o->context, t->steps_in_epoch * o->batch_size);
    t->validation = t->training
                        ? tarn__windows_in_order(function, &c->validation, o->context, o->eval_batches * o->micro_batch)
                        : NULL;
    return t->validation != NULL;
}

double tarn__val_fraction(const tarn_train_options *o)
{
    return o->val[0] ? 0 : o->val_fraction > 0 ? o->val_fraction : DEFAULT_VAL_FRACTION;
}

/* Datasets over the packed rows of the chats. eval_batches of 0 evaluates all rows. */
static bool open_chats(const char *function, tarn_trainer *t, tarn__data_spec *found)
{
    const tarn_train_options *o = &t->options;
    tarn__chat_dataset_summary s;
    t->chats = tarn__chat_dataset_open(&(tarn__chat_dataset_options){.function = function,
                                                                     .path = o->data,
                                                                     .val_path = o->val,
                                                                     .val_fraction = tarn__val_fraction(o),
                                                                     .tokenizer = t->corpus.tokenizer,
                                                                     .template_name = o->chat_template,
                                                                     .context = o->context,
                                                                     .seed = (uint64_t)o->seed});
    if (!t->chats)
        return false;
    tarn__chat_dataset_counts(t->chats, &s);
    *found = (tarn__data_spec){
        .is_text = true, .training_tokens = s.tokens[0], .validation_tokens = s.tokens[1], .hash = s.hash};
    int64_t max_val_rows = o->eval_batches * o->micro_batch, val_rows = s.rows[TARN__CHAT_VALIDATION],
            rows = s.rows[TARN__CHAT_TRAINING];
    t->steps_in_epoch = rows > o->batch_size ? rows / o->batch_size : 1;
    t->training = tarn__chat_samples(function, t->chats, TARN__CHAT_TRAINING, o->context,
                                     rows > o->batch_size ? rows : o->batch_size);
    t->validation = t->training
                        ? tarn__chat_samples(function, t->chats, TARN__CHAT_VALIDATION, o->context,
                                             max_val_rows > 0 && max_val_rows < val_rows ? max_val_rows : val_rows)
                        : NULL;
    return t->validation != NULL;
}

/* Everything that depends on the options but not on the device. False with an error. */
bool tarn__lm_setup(const char *function, tarn_trainer *t)
{
    if (!complete(function, t))
        return false;
    tarn__data_spec found;
    t->batch_size = t->options.batch_size;
    t->micro_batch = t->options.micro_batch;
    if (!(tarn__data_is_chats(t->options.data) ? open_chats : open_windows)(function, t, &found) ||
        (t->is_resumed && !check_same_text(function, t, &found)))
        return false;
    t->data_spec = found;
    t->data_spec.input = TARN_SHAPE(t->options.context);
    return true;
}

/* The caller owns the model. Random weights follow from the seed. */
tarn_module *tarn__lm_model(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    const tarn__arch *kind = tarn__arch_find_trainable(o->model);
    tarn__model_sizes sizes = sizes_of(o);
    int32_t end = t->corpus.tokenizer ? tarn_tokenizer_end_of_text(t->corpus.tokenizer) : -1;
    sizes.has_eos = end >= 0;
    sizes.eos = end >= 0 ? end : 0;
    return kind->create(function, o->model, &sizes, t->device, (uint64_t)o->seed);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Fields 2 and 3 are positions and document starts, [B, T] each: packed rows attend within a document only. */
tarn_tensor *tarn__lm_loss(const char *function, tarn_module *model, tarn_tensor *const *fields, int field_count)
{
    if (field_count < 4)
        return tarn_model_loss(model, fields[0], fields[1]);
    return tarn__model_loss_of(function, model, fields[0], fields[1], &(tarn__documents){fields[2], fields[3]});
}

/* Targets below 0 are outside the loss mask. */
tarn_tensor *tarn__lm_target_count(tarn_tensor *targets, tarn_dtype dtype)
{
    return tarn_sum(tarn_cast(tarn_ge(targets, tarn_scalar(0)), dtype), TARN_ALL_AXES, false);
}

/* Accumulates the gradients and the loss of a micro-batch, weighted by `weight`. Its activations are freed by the
 * backward pass. */
static bool add_micro_batch(tarn_trainer *t, tarn_tensor *const *fields, tarn_tensor *weight, tarn_tensor *loss)
{
    tarn__phase_begin(t, TARN__PHASE_FORWARD);
    tarn_tensor *weighted =
        tarn_mul(tarn__lm_loss("trainer_run", t->model, fields, tarn_dataset_field_count(t->training)), weight);
    tarn__phase_begin(t, TARN__PHASE_BACKWARD);
    return tarn_backward(weighted) && tarn_add_inplace(loss, tarn_detach(weighted));
}

/* All windows have equally many targets: each micro-batch has the same weight, and is read when it is due. */
static bool add_windows(tarn_trainer *t, tarn_tensor *loss)
{
    tarn_tensor *fields[TARN_MAX_FIELDS], *weight = tarn_scalar((double)t->micro_batch / (double)t->batch_size);
    tarn__phase_begin(t, TARN__PHASE_BATCH);
    return tarn__next_batch(t, fields) && add_micro_batch(t, fields, weight, loss);
}

/* Completions differ in length: a micro-batch weighs as much as it has targets under the loss mask, as if the batch
 * were one. The total must be known first, so all micro-batches are read before the first forward. */
static bool add_chats(tarn_trainer *t, tarn_tensor *loss)
{
    int64_t micro_batches = t->batch_size / t->micro_batch;
    size_t bytes = sizeof(tarn_tensor *[TARN_MAX_FIELDS]) * (size_t)micro_batches;
    tarn_tensor *(*fields)[TARN_MAX_FIELDS] = tarn__alloc(bytes), *total = tarn_zeros(TARN_SCALAR, TARN_F32, t->device);
    bool good = fields && total;
    tarn__phase_begin(t, TARN__PHASE_BATCH);
    for (int64_t i = 0; good && i < micro_batches; i++)
        good = tarn__next_batch(t, fields[i]) && tarn_add_inplace(total, tarn__lm_target_count(fields[i][1], TARN_F32));
    for (int64_t i = 0; good && i < micro_batches; i++) {
        tarn_scope *scope = tarn_scope_open();
        good = scope &&
               add_micro_batch(t, fields[i], tarn_div(tarn__lm_target_count(fields[i][1], TARN_F32), total), loss);
        tarn_scope_close(scope);
        tarn__progress_in_step(t, (i + 1) * t->micro_batch);
    }
    tarn__release(fields, bytes);
    return good;
}

/* Global gradient norm, for the report; clips to clip_norm if that is given. The norm stays on the device. */
static bool clip(tarn_trainer *t, tarn__step_metrics *metrics)
{
    tarn__phase_begin(t, TARN__PHASE_UPDATE);
    metrics->norm = tarn_optimizer_clip_norm(t->optimizer, t->options.clip_norm > 0 ? t->options.clip_norm : INFINITY);
    return metrics->norm != NULL;
}

/* Measures memory: at most two micro-batches of the same fields. The second one is needed because gradients exist by
 * then. */
bool tarn__lm_gradients_of(tarn_trainer *t, tarn_tensor *const *fields, tarn__step_metrics *metrics)
{
    metrics->loss = tarn_zeros(TARN_SCALAR, TARN_F32, t->device);
    for (int64_t i = 0; i < 2 && i < t->batch_size / t->micro_batch; i++) {
        tarn_scope *scope = tarn_scope_open();
        bool good = scope && metrics->loss && add_micro_batch(t, fields, tarn_scalar(0.5), metrics->loss);
        tarn_scope_close(scope);
        if (!good)
            return false;
    }
    return clip(t, metrics);
}

/* Gradients of one step. One scope per micro-batch; chats need all of them at once (add_chats). */
bool tarn__lm_gradients(tarn_trainer *t, tarn__step_metrics *metrics)
{
    *metrics = (tarn__step_metrics){.loss = tarn_zeros(TARN_SCALAR, TARN_F32, t->device)};
    int64_t chunk = t->chats ? t->batch_size : t->micro_batch;
    for (int64_t done = 0; metrics->loss && done < t->batch_size; done += chunk) {
        tarn_scope *scope = tarn_scope_open();
        bool good = scope && (t->chats ? add_chats : add_windows)(t, metrics->loss);
        tarn_scope_close(scope);
        if (!good)
            return false;
        tarn__progress_in_step(t, done + chunk);
    }
    return clip(t, metrics);
}

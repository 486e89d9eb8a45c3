/* lm.c: the task of training a language model on text, and what chats (chat.c) share with it: completing options, the
 * model, the gradients of a step.
 *
 * An epoch is as many windows as the text has without overlap, at random offsets that a loader draws. The state of a
 * run is thus the state of its loader, as for any other data, and the samples of a step do not depend on the
 * micro-batch. Gradient accumulation weighs each micro-batch by its targets, so that a step equals one with the whole
 * batch up to rounding. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "models/lm/arch.h"
#include "train/data/data_source.h"
#include "train/options.h"
#include "train/tasks/finetune.h"
#include "train/tasks/lm.h"

/* ---- options ------------------------------------------------------------------------------------------------------
 */

/* A resumed run has all sizes in its config.json, and weights of these sizes: a damaged file must not create another
 * model, or a huge one. Compared by the bytes of model.safetensors, before anything is allocated. False with an error.
 */
static bool check_checkpoint_size(const char *function, const tarn_trainer *t, const tarn__model_sizes *sizes)
{
    const tarn_train_options *o = &t->options;
    tarn__path path;
    double wanted = tarn__model_parameter_count(o->model, sizes) * (strcmp(o->precision, "bf16") == 0 ? 2 : 4);
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
    tarn__model_sizes sizes = sizes_of(o);
    if (o->base[0])
        return tarn__base_model_complete(function, t, &sizes);
    if (!tarn__model_complete_sizes(function, o->model, &sizes) ||
        (t->is_resumed && !check_checkpoint_size(function, t, &sizes)))
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

/* A base model keeps its sizes. */
bool tarn__lm_resize(const char *function, tarn_trainer *t)
{
    t->batch_size = t->options.batch_size;
    t->micro_batch = t->options.micro_batch;
    return t->options.base[0] || tarn__lm_sizes(function, t);
}

/* vocab_size is the tokenizer's unless a larger one was given; a smaller one would put ids out of range. */
bool tarn__lm_complete(const char *function, tarn_trainer *t, int64_t known_tokens)
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
    if (is_new && tarn__default_sizes_needed(o) && !tarn__default_sizes_choose(function, t, known_tokens))
        return false;
    if (!o->micro_batch)
        o->micro_batch = o->batch_size / (t->ranks.virtual_ranks > 1 ? t->ranks.virtual_ranks : 1);
    o->micro_batch = o->micro_batch > 0 ? o->micro_batch : 1;
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
    t->batch_size = o->batch_size;
    t->micro_batch = o->micro_batch;
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

/* Datasets over the corpus: random windows for training, consecutive ones for the val set, so that every evaluation has
 * the same samples. An epoch has at least one step. */
static bool open_windows(const char *function, tarn_trainer *t, tarn__data_spec *found)
{
    const tarn_train_options *o = &t->options;
    const tarn__corpus *c = &t->corpus;
    int64_t windows = (c->training.count - 1) / o->context;
    *found = (tarn__data_spec){
        .training_tokens = c->training.count, .validation_tokens = c->validation.count, .hash = c->hash};
    t->steps_in_epoch = windows > o->batch_size ? windows / o->batch_size : 1;
    t->training = tarn__windows_at_random(function, &c->training, o->context, t->steps_in_epoch * o->batch_size);
    t->validation = t->training
                        ? tarn__windows_in_order(function, &c->validation, o->context, o->eval_batches * o->micro_batch)
                        : NULL;
    return t->validation != NULL;
}

bool tarn__lm_set_data_spec(const char *function, tarn_trainer *t, const tarn__data_spec *found)
{
    if (t->is_resumed && !check_same_text(function, t, found))
        return false;
    t->data_spec = *found;
    t->data_spec.input = TARN_SHAPE(t->options.context);
    return true;
}

/* For a trainer that has its corpus, perhaps without a tokenizer. */
static bool setup(const char *function, tarn_trainer *t)
{
    tarn__data_spec found;
    return tarn__lm_complete(function, t, t->corpus.training.count) && open_windows(function, t, &found) &&
           tarn__lm_set_data_spec(function, t, &found);
}

static bool is_shards(const tarn_train_options *o)
{
    return strncmp(o->data, "shards:", strlen("shards:")) == 0;
}

/* `tokenizer`: "characters", "bytes" or a path. A base model's shards bring their own. */
static bool open_text(const char *function, tarn_trainer *t, const char *tokenizer)
{
    const tarn_train_options *o = &t->options;
    bool of_base = is_shards(o) && o->base[0];
    return tarn__corpus_open(function, o->data, of_base ? "" : tokenizer, &t->corpus) &&
           (!of_base || check_shards(function, t)) && setup(function, t);
}

static bool open_new(const char *function, tarn_trainer *t)
{
    return open_text(function, t, t->options.base[0] ? t->options.base : t->options.tokenizer);
}

/* With the tokenizer in the run folder, unless shards have their own. */
static bool reopen(const char *function, tarn_trainer *t, const char *folder)
{
    return open_text(function, t, is_shards(&t->options) ? "" : folder) ||
           tarn__data_paths_hint(function, t->options.data);
}

/* The run's own val set, or the named data. The corpus takes ownership of its tokenizer, so a second one is opened. */
static bool open_eval_text(tarn__eval_data *d)
{
    tarn__path path;
    const char *data = d->data ? d->data : d->options->data;
    if (!data[0])
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: the model does not record its training data; give the data to evaluate on",
                           d->function);
    if (!d->data)
        return tarn__corpus_open(d->function, data,
                                 is_shards(d->options) ? "" : tarn__path_in(d->folder, "tokenizer.json", &path),
                                 &d->corpus);
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(d->folder);
    return tokenizer ? tarn__corpus_open_for_evaluation(d->function, data, tokenizer, &d->corpus)
                     : tarn__raise_within(d->function);
}

static tarn_dataset *open_eval_windows(tarn__eval_data *d)
{
    return open_eval_text(d) ? tarn__windows_in_order(d->function, &d->corpus.validation, d->context, 0) : NULL;
}

static bool open_random(const char *function, tarn_trainer *t)
{
    return tarn__random_tokens_open(function, t) && setup(function, t);
}

/* Windows at random offsets: nothing to shuffle. */
static tarn_loader *create_loader(const tarn_trainer *t)
{
    return tarn_loader_new(t->training, &(tarn_loader_options){.batch_size = t->micro_batch,
                                                               .drop_last = true,
                                                               .seed = (uint64_t)t->options.seed,
                                                               .workers = (int)t->options.workers,
                                                               .device = t->device,
                                                               .augment = tarn__windows_draw,
                                                               .augment_ctx = tarn__windows_ctx(t->training)});
}

/* The caller owns the model. Random weights follow from the seed. */
tarn_module *tarn__lm_model(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    tarn__model_sizes sizes = sizes_of(o);
    int32_t end = t->corpus.tokenizer ? tarn_tokenizer_end_of_text(t->corpus.tokenizer) : -1;
    sizes.has_eos = end >= 0;
    sizes.eos = end >= 0 ? end : 0;
    return tarn__model_create(function, o->model, &sizes, t->device, (uint64_t)o->seed);
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
static bool add_micro_batch(const tarn__step_ctx *s, tarn_tensor *const *fields, tarn_tensor *weight, tarn_tensor *loss)
{
    tarn__step_phase(s, TARN__PHASE_FORWARD);
    tarn_tensor *weighted = tarn_mul(tarn__lm_loss("trainer_run", s->model, fields, s->fields), weight);
    tarn__step_phase(s, TARN__PHASE_BACKWARD);
    return tarn_backward(weighted) && tarn_add_inplace(loss, tarn_detach(weighted));
}

/* Sum of the weights of a step, [], in the open scope. */
static tarn_tensor *total_weight(const tarn__step_ctx *s, tarn_tensor *const *batch)
{
    tarn_tensor *total = tarn_zeros(TARN_SCALAR, TARN_F32, s->device);
    for (int i = 0; total && i < s->micro_batches; i++)
        if (!tarn_add_inplace(total, s->task->weight(batch + i * s->fields)))
            return NULL;
    return total;
}

/* All windows have equally many targets, and thus equal shares. One scope per micro-batch. */
static bool add_micro_batches(const tarn__step_ctx *s, tarn_tensor *const *batch, tarn_tensor *loss)
{
    bool is_weighted = s->task->weight != NULL;
    tarn_tensor *total = !is_weighted ? NULL : s->total_weight ? s->total_weight : total_weight(s, batch);
    bool good = loss && (total || !is_weighted);
    for (int i = 0; good && i < s->micro_batches; i++) {
        tarn_tensor *const *fields = batch + i * s->fields;
        tarn_scope *scope = tarn_scope_open();
        good = scope && add_micro_batch(s, fields,
                                        is_weighted ? tarn_div(s->task->weight(fields), total)
                                                    : tarn_scalar(1 / (double)s->all_micro_batches),
                                        loss);
        tarn_scope_close(scope);
        if (s->on_micro_batch)
            s->on_micro_batch(s->trainer, i + 1);
    }
    return good;
}

bool tarn__lm_gradients(const tarn__step_ctx *s, tarn_tensor *const *batch, tarn__step_metrics *metrics)
{
    *metrics = (tarn__step_metrics){.loss = tarn_zeros(TARN_SCALAR, TARN_F32, s->device)};
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && add_micro_batches(s, batch, metrics->loss);
    tarn_scope_close(scope);
    return good;
}

bool tarn__lm_create_batch(const tarn_trainer *t, int64_t count, tarn_tensor **fields)
{
    for (int i = 0; i < tarn_dataset_field_count(t->training); i++)
        fields[i] = tarn_zeros(TARN_SHAPE(count, t->options.context), TARN_I32, t->device);
    return !tarn_failed();
}

double tarn__lm_step_flops(const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    tarn_model_info info;
    if (!tarn_model_query(t->model, &info))
        return 0;
    tarn__weight_counts counts =
        tarn__count_weights(t->model); /* frozen weights pass gradients on but need no wgrad: 4 instead of 6 */
    double attended = (double)(info.layers * info.heads * info.head_dim * o->context);
    return (double)(t->batch_size * o->context) *
           (6 * (double)counts.trained + 4 * (double)counts.frozen + 12 * attended);
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

const tarn__metric tarn__lm_training_lines[] = {
    TARN__METRIC_LOSS,
    TARN__METRIC_LR,
    {.key = "gradient_norm",
     .tag = "gradient norm",
     .offset = offsetof(tarn_train_report, gradient_norm),
     .digits = 9,
     .shown = {.name = "gradient_norm", .label = "norm", .decimals = 3, .json_decimals = 6, .rank = 3}},
    TARN__METRIC_SPEED(tokens_per_second),
    {.key = "memory", .offset = offsetof(tarn_train_report, memory)},
    {.key = NULL}};

const tarn__metric tarn__lm_evaluation_lines[] = {TARN__METRIC_VAL_LOSS, {.key = NULL}};

const tarn__task tarn__task_lm = {.name = "lm",
                                  .bit = TARN__TASK_LM,
                                  .sample_temperature = 0.8,
                                  .random_data = "random tokens",
                                  .accepts = tarn__data_is_corpus,
                                  .open = open_new,
                                  .reopen = reopen,
                                  .open_random = open_random,
                                  .create_loader = create_loader,
                                  .next_batch = tarn__loader_batch,
                                  .open_windows = open_eval_windows,
                                  .prompt = tarn__lm_prompt,
                                  .describe = tarn__lm_describe,
                                  TARN__LM_ROW};

/* language.c: language models in a run: what options make of one, and a step of its training.
 *
 * An epoch is as many windows as the text has room for side by side, at random places that a loader draws: where a run stands is a place of its loader,
 * as for any other data, and with micro-batches the samples of a step are the same. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tarn/generate.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/file.h"
#include "base/platform.h"
#include "models/kinds.h"
#include "train/options.h"
#include "train/trainer.h"

/* ---- options ----------------------------------------------------------------------------------------------------------------- */

/* The name of an option that was given though it means nothing here; NULL: none was. */
static const char *out_of_place(const tarn_train_options *o, bool is_text)
{
    const struct {
        const char *name;
        bool for_text, given;
    } rows[] = {{"hidden", false, o->hidden_count > 0},
                {"augment", false, o->augment},
                {"label_smoothing", false, o->label_smoothing > 0},
                {"tokenizer", true, o->tokenizer[0] != 0},
                {"layers", true, o->layers > 0},
                {"heads", true, o->heads > 0},
                {"kv_heads", true, o->kv_heads > 0},
                {"width", true, o->width > 0},
                {"inner", true, o->inner > 0},
                {"context", true, o->context > 0},
                {"vocab", true, o->vocab > 0},
                {"dropout", true, o->dropout > 0},
                {"micro_batch", true, o->micro_batch > 0},
                {"eval_batches", true, o->eval_batches > 0},
                {"sample", true, o->sample > 0},
                {"keep", true, o->keep > 0},
                {"recompute", true, o->recompute[0] && strcmp(o->recompute, "none") != 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].given && rows[i].for_text != is_text)
            return rows[i].name;
    return NULL;
}

bool tarn__language_check(const char *function, const tarn_train_options *o, bool is_text)
{
    const char *name = out_of_place(o, is_text);
    bool is_language = tarn__model_kind_trained(o->model) != NULL;
    if (name)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is for %s, but the data is '%.200s'", function, name,
                           is_text ? "classifiers" : "language models", o->data);
    if (o->model[0] && is_language != is_text)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a %s learns from %s, but the data is '%.200s'", function, o->model,
                           is_language ? "text (text:FILE or shards:FOLDER)" : "samples with labels", o->data);
    return is_text || strcmp(o->precision, "bf16") != 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: precision bf16 is for language models, but the data is '%.200s'", function, o->data);
}

/* A run that goes on has all sizes in its config.json, and weights for them: a damaged one must not make another model, or a huge one. False with an
 * error. */
static bool check_sizes_again(const char *function, const tarn_trainer *t, const tarn__model_kind *kind, const tarn__model_sizes *sizes)
{
    const tarn_train_options *o = &t->options;
    tarn__path path;
    double wanted = kind->numbers(o->model, sizes) * (strcmp(o->precision, "bf16") == 0 ? 2 : 4);
    int64_t found = tarn__platform_file_bytes(tarn__path_in(o->out, "model.safetensors", &path));
    return found < 0 || wanted <= (double)found ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s/config.json' tells of a model whose weights take %.0f bytes, but '%s' has only %" PRId64, function, o->out,
                       wanted, path.text, found);
}

static tarn__model_sizes sizes_of(const tarn_train_options *o)
{
    return (tarn__model_sizes){.vocab = o->vocab,
                               .context = o->context,
                               .layers = o->layers,
                               .heads = o->heads,
                               .kv_heads = o->kv_heads,
                               .width = o->width,
                               .inner = o->inner,
                               .dropout = o->dropout,
                               .dtype = strcmp(o->precision, "bf16") == 0 ? TARN_BF16 : TARN_F32,
                               .recompute = strcmp(o->recompute, "block") == 0   ? TARN_RECOMPUTE_BLOCK
                                            : strcmp(o->recompute, "cheap") == 0 ? TARN_RECOMPUTE_CHEAP
                                                                                 : TARN_RECOMPUTE_NONE};
}

/* Sizes that were not given are those of the model that is named. */
static bool complete_sizes(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    const tarn__model_kind *kind = tarn__model_kind_trained(o->model);
    tarn__model_sizes sizes = sizes_of(o);
    if (!kind)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: there is no language model '%.64s'", function, o->model);
    if (!kind->complete(function, o->model, &sizes) || (t->is_resumed && !check_sizes_again(function, t, kind, &sizes)))
        return false;
    o->layers = sizes.layers;
    o->heads = sizes.heads;
    o->kv_heads = sizes.kv_heads;
    o->width = sizes.width;
    o->inner = sizes.inner;
    o->context = sizes.context;
    o->vocab = sizes.vocab;
    return true;
}

/* The vocabulary is the tokenizer's, unless more was given. */
static bool complete(const char *function, tarn_trainer *t)
{
    tarn_train_options *o = &t->options;
    int64_t tokens = t->corpus.tokenizer ? tarn_tokenizer_count(t->corpus.tokenizer) : 0;
    if (t->is_resumed && (o->layers < 1 || o->heads < 1 || o->width < 1 || o->context < 1 || o->vocab < 1 || o->micro_batch < 1))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s/config.json' does not say all of layers, heads, width, context, vocab and micro_batch", function,
                           o->out);
    if (!o->model[0])
        snprintf(o->model, sizeof(o->model), "gpt2");
    o->vocab = o->vocab ? o->vocab : tokens;
    o->micro_batch = o->micro_batch ? o->micro_batch : o->batch_size;
    if (!complete_sizes(function, t))
        return false;
    if (o->vocab < tokens)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: vocab is %" PRId64 ", but the tokenizer has %" PRId64 " tokens", function, o->vocab,
                           tokens);
    if (o->batch_size % o->micro_batch != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a micro_batch of %" PRId64 " does not divide the batch_size of %" PRId64, function,
                           o->micro_batch, o->batch_size);
    return true;
}

/* ---- data and model ------------------------------------------------------------------------------------------------------------ */

static bool is_described(const char *function, const tarn_trainer *t, const tarn__description *found)
{
    const tarn__description *d = &t->description;
    return (d->training_tokens == found->training_tokens && d->validation_tokens == found->validation_tokens && d->hash == found->hash) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%.200s' is other text than the run began with; it had %" PRId64 " tokens to train on, and has %" PRId64,
                       function, t->options.data, d->training_tokens, found->training_tokens);
}

bool tarn__language_open(const char *function, tarn_trainer *t, const char *tokenizer)
{
    return tarn__corpus_open(function, t->options.data, tokenizer, &t->corpus) && tarn__language_take(function, t);
}

bool tarn__language_take(const char *function, tarn_trainer *t)
{
    if (!complete(function, t))
        return false;
    const tarn_train_options *o = &t->options;
    const tarn__corpus *c = &t->corpus;
    tarn__description found = {
        .is_text = true, .training_tokens = c->training.count, .validation_tokens = c->validation.count, .hash = c->hash};
    if (t->is_resumed && !is_described(function, t, &found))
        return false;
    t->description = found;
    t->description.input = TARN_SHAPE(o->context);
    t->batch_size = o->batch_size;
    t->micro_batch = o->micro_batch;
    int64_t windows = (c->training.count - 1) / o->context;
    t->steps_in_epoch = windows > o->batch_size ? windows / o->batch_size : 1;
    t->training = tarn__windows_at_random(function, &c->training, o->context, t->steps_in_epoch * o->batch_size);
    t->validation = t->training ? tarn__windows_in_order(function, &c->validation, o->context, o->eval_batches * o->micro_batch) : NULL;
    return t->validation != NULL;
}

tarn_module *tarn__language_model(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    const tarn__model_kind *kind = tarn__model_kind_trained(o->model);
    tarn__model_sizes sizes = sizes_of(o);
    int32_t end = t->corpus.tokenizer ? tarn_tokenizer_end_of_text(t->corpus.tokenizer) : -1;
    sizes.has_end = end >= 0;
    sizes.end = end >= 0 ? end : 0;
    return kind->fresh(function, o->model, &sizes, t->device, (uint64_t)o->seed);
}

/* Backward frees what was stored as it goes, so its own tensors count for one block alone. Or the logits of the loss, made a part at a time, where those
 * are more. */
int64_t tarn__language_working_bytes(const tarn_train_options *o)
{
    const int64_t most_logits = INT64_C(256) << 20;
    tarn__model_sizes sizes = sizes_of(o);
    int64_t bytes = strcmp(o->precision, "bf16") == 0 ? 2 : 4, tokens = o->micro_batch * o->context;
    int64_t block = tokens * bytes * tarn__model_kind_trained(o->model)->working(&sizes), logits = tokens * o->vocab * bytes;
    logits = logits < most_logits ? logits : most_logits;
    return block > logits ? block : logits;
}

/* ---- a step -------------------------------------------------------------------------------------------------------------------- */

/* Adds a micro-batch's share to the gradients and to the loss. Its activations are gone afterwards. */
static bool add_micro_batch(tarn_trainer *t, tarn_tensor *loss)
{
    tarn_tensor *fields[TARN_MAX_FIELDS];
    tarn_tensor *share = tarn_scalar((double)t->micro_batch / (double)t->batch_size);
    tarn__mark(t, TARN__PHASE_BATCH);
    if (!tarn__next_batch(t, fields))
        return false;
    tarn__mark(t, TARN__PHASE_FORWARD);
    tarn_tensor *part = tarn_mul(tarn_model_loss(t->model, fields[0], fields[1]), share);
    tarn__mark(t, TARN__PHASE_BACKWARD);
    return tarn_backward(part) && tarn_add_inplace(loss, tarn_detach(part));
}

bool tarn__language_gradients(tarn_trainer *t, tarn__figures *figures)
{
    *figures = (tarn__figures){.loss = tarn_zeros(TARN_SCALAR, TARN_F32, t->device)};
    for (int64_t done = 0; figures->loss && done < t->batch_size; done += t->micro_batch) {
        tarn_scope *scope = tarn_scope_open();
        bool good = scope && add_micro_batch(t, figures->loss);
        tarn_scope_close(scope);
        if (!good)
            return false;
    }
    tarn__mark(t, TARN__PHASE_UPDATE);
    figures->norm = tarn_optimizer_clip_norm(t->optimizer, t->options.clip_norm > 0 ? t->options.clip_norm : INFINITY);
    return figures->norm != NULL;
}

/* ---- evaluation ---------------------------------------------------------------------------------------------------------------- */

/* Sums on the device, f64 []: of the losses, and of the targets that count. */
static bool add_batch(tarn_module *model, tarn_tensor *const *fields, tarn_tensor *losses, tarn_tensor *counts)
{
    tarn_tensor *counted = tarn_cast(tarn_ge(fields[1], tarn_scalar(0)), TARN_F64);
    tarn_tensor *count = tarn_sum(counted, TARN_ALL_AXES, false);
    tarn_tensor *loss = tarn_cast(tarn_model_loss(model, fields[0], fields[1]), TARN_F64);
    return tarn_add_inplace(losses, tarn_mul(loss, count)) && tarn_add_inplace(counts, count);
}

static bool add_batches(tarn_module *model, tarn_loader *loader, tarn_tensor *losses, tarn_tensor *counts)
{
    for (bool more = true; more;) {
        tarn_tensor *fields[TARN_MAX_FIELDS];
        tarn_scope *scope = tarn_scope_open();
        more = scope && tarn_loader_next(loader, fields) && add_batch(model, fields, losses, counts);
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

bool tarn__language_evaluate(const char *function, tarn_module *model, tarn_dataset *windows, int64_t batch_size, int workers,
                             tarn_text_evaluation *evaluation)
{
    if (tarn_failed())
        return false;
    tarn_device device = tarn_device_of(tarn_module_parameter(model, 0));
    bool was_training = tarn_module_is_training(model);
    tarn_loader *loader = tarn_loader_new(windows, &(tarn_loader_options){.batch_size = batch_size, .workers = workers, .device = device});
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *losses = tarn_zeros(TARN_SCALAR, TARN_F64, device), *counts = tarn_zeros(TARN_SCALAR, TARN_F64, device);
    tarn_module_train(model, false);
    tarn_no_grad_open();
    bool good = loader && !tarn_failed() && add_batches(model, loader, losses, counts);
    tarn_no_grad_close();
    double tokens = good ? tarn_item(counts) : 0, loss = good ? tarn_item(losses) / tokens : NAN;
    tarn_scope_close(scope);
    tarn_loader_free(loader);
    tarn__error_record error; /* the mode comes back after a failure too */
    tarn__error_save(&error);
    tarn_module_train(model, was_training);
    tarn__error_restore(&error);
    *evaluation = (tarn_text_evaluation){(int64_t)tokens, loss, exp(loss)};
    return !tarn_failed() || tarn__raise_within(function);
}

/* ---- what it writes, and where it is kept ---------------------------------------------------------------------------------------- */

/* What a sample begins with: the end of the text before, a new line, or the first token there is to judge by. */
static int32_t first_token(const tarn_trainer *t)
{
    const tarn__stretch *s = &t->corpus.validation;
    int32_t token = tarn_tokenizer_end_of_text(t->corpus.tokenizer);
    if (token < 0)
        token = tarn_tokenizer_find(t->corpus.tokenizer, "\n", 1);
    if (token < 0 && s->ids)
        token = s->ids[0];
    else if (token < 0)
        tarn_tokens_read(s->mapped, 0, 1, &token);
    return token;
}

/* Leaves out numbers that the model has room for, but the tokenizer no token. Returns how many are left. */
static int64_t drop_unknown(const tarn_tokenizer *tokenizer, int32_t *ids, int64_t count)
{
    int64_t kept = 0, known = tarn_tokenizer_count(tokenizer);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < known && tarn_tokenizer_piece(tokenizer, ids[i], NULL))
            ids[kept++] = ids[i];
    return kept;
}

char *tarn__language_sample(tarn_trainer *t, size_t *length)
{
    const tarn_train_options *o = &t->options;
    int32_t first = first_token(t);
    int64_t most = o->sample < o->context ? o->sample : o->context - 1;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *room = tarn_zeros(TARN_SHAPE(most > 0 ? most : 1), TARN_I32, tarn_device_cpu());
    int32_t *ids = room ? tarn_data(room) : NULL;
    int64_t count =
        !ids || most == 0
            ? 0
            : tarn_generate(t->model, &first, 1, ids,
                            &(tarn_generate_options){.tokens = most, .temperature = 0.8, .seed = (uint64_t)(o->seed + t->place.step)});
    if (count > 0)
        count = drop_unknown(t->corpus.tokenizer, ids, count);
    char *text = ids && count >= 0 ? tarn_tokenizer_decode(t->corpus.tokenizer, ids, count, length) : NULL;
    tarn_scope_close(scope);
    return text;
}

/* transformers takes the tokenizer of a GPT-2's folder for GPT-2's own, unless it is told to go by tokenizer.json. That comes first: a tokenizer with a chat template, or
 * tokens that begin and end a text, says all of it in a file of its own in that place. */
bool tarn__language_save_tokenizer(const char *function, const tarn_trainer *t, const char *folder)
{
    tarn__path path;
    tarn__document *document = tarn__document_new(function);
    bool good = document && tarn__document_set_text(document, "tokenizer_class", "PreTrainedTokenizerFast") &&
                (tarn__path_exists(folder) || tarn__folder_make(function, folder)) &&
                tarn__document_save(document, tarn__path_in(folder, "tokenizer_config.json", &path)) && tarn_tokenizer_save(t->corpus.tokenizer, folder);
    tarn__document_free(document);
    return good;
}

static bool save_as(const tarn_trainer *t, const char *name)
{
    tarn__path path;
    return tarn__language_save_tokenizer("trainer_run", t, tarn__path_in(t->options.out, name, &path)) &&
           tarn_model_write(t->model, path.text);
}

bool tarn__language_save_best(const tarn_trainer *t)
{
    return save_as(t, "best");
}

/* A whole checkpoint in a folder of its own below the run's, which can be gone on with by itself. A kill leaves the folder without trainer.json; the run
 * comes by this step again, and writes it anew. */
static bool keep_as(tarn_trainer *t, const char *name)
{
    char *out = t->options.out, own[sizeof(t->options.out)];
    tarn__path path;
    if (strlen(out) + strlen(name) + 2 > sizeof(own))
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_run: the name of the folder '%s/%s' is too long", out, name);
    memcpy(own, out, sizeof(own));
    snprintf(out, sizeof(own), "%s", tarn__path_in(own, name, &path));
    bool good = (tarn__path_exists(out) || tarn__folder_make("trainer_run", out)) && tarn__language_save_tokenizer("trainer_run", t, out) &&
                tarn__config_write("trainer_run", t) && tarn__checkpoint_save(t);
    memcpy(out, own, sizeof(own));
    return good;
}

/* Leaves a folder alone in which a run was gone on with. */
static void remove_kept(const tarn_trainer *t, const char *name)
{
    static const char *const files[] = {"trainer.json",   "optimizer.safetensors", "config.json", "model.safetensors",
                                        "tokenizer.json", "tokenizer_config.json"};
    tarn__path folder, path;
    tarn__path_in(t->options.out, name, &folder);
    if (tarn__path_exists(tarn__path_in(folder.text, "metrics.jsonl", &path)))
        return;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        tarn__file_remove(tarn__path_in(folder.text, files[i], &path));
    remove(folder.text); /* which leaves it where it is if anybody put something else there */
}

bool tarn__language_keep(tarn_trainer *t)
{
    char name[40];
    int64_t number = (t->place.step + t->eval_every - 1) / t->eval_every, too_old = (number - t->options.keep) * t->eval_every;
    if (!t->options.keep)
        return true;
    snprintf(name, sizeof(name), "step-%" PRId64, t->place.step);
    if (!keep_as(t, name))
        return false;
    snprintf(name, sizeof(name), "step-%" PRId64, too_old);
    if (too_old > 0)
        remove_kept(t, name);
    return true;
}

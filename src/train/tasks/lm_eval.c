/* lm_eval.c: a language model of a run in use: evaluation, samples, best weights, and numbered checkpoints.
 *
 * Folders are those that transformers, or PEFT for adapters, opens. Evaluation sums in f64 and reads once at the
 * end. Samples are deterministic: their seed is the run's seed plus the step. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tarn/generate.h>
#include <tarn/lora.h>
#include <tarn/model.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "models/lm/arch.h"
#include "train/batch_sums.h"
#include "train/run_folder.h"
#include "train/tasks/finetune.h"
#include "train/tasks/lm.h"

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* The values of a batch, f64 []: losses, and targets under the loss mask. The mean loss is weighted by its targets, so
 * that the result does not depend on the batch size. */
enum { LOSSES, TARGETS, SUMS };

static bool add_batch(tarn_module *model, tarn_tensor *const *fields, int field_count, tarn__batch_sums *sums)
{
    tarn_tensor *count = tarn__lm_target_count(fields[1], TARN_F64),
                *loss = tarn_cast(tarn__lm_loss("trainer_run", model, fields, field_count), TARN_F64);
    return tarn__batch_sums_add(sums, (tarn_tensor *[]){[LOSSES] = tarn_mul(loss, count), [TARGETS] = count});
}

static bool add_batches(tarn_module *model, tarn_loader *loader, int field_count, tarn__batch_sums *sums)
{
    for (bool more = true; more;) {
        tarn_tensor *fields[TARN_MAX_FIELDS];
        tarn_scope *scope = tarn_scope_open();
        more = scope && tarn_loader_next(loader, fields) && add_batch(model, fields, field_count, sums);
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

/* The loader is new per evaluation, so each one has the same batches. Perplexity is exp(loss). The model's mode is
 * restored. */
bool tarn__lm_evaluate(const char *function, const tarn__ranks *ranks, tarn_module *model, tarn_dataset *windows,
                       int64_t batch_size, int workers, tarn_text_evaluation *evaluation)
{
    if (tarn_failed())
        return false;
    tarn_device device = tarn_device_of(tarn_module_parameter(model, 0));
    bool was_training = tarn_module_is_training(model);
    tarn_loader *loader = tarn_loader_new(
        windows, &(tarn_loader_options){.batch_size = batch_size, .workers = workers, .device = device});
    tarn_scope *scope = tarn_scope_open();
    tarn__batch_sums sums;
    double sum[SUMS] = {0};
    tarn_module_train(model, false);
    tarn_no_grad_open();
    bool good = loader && tarn__batch_sums_open(&sums, ranks, loader, SUMS, device) &&
                add_batches(model, loader, tarn_dataset_field_count(windows), &sums) &&
                tarn__batch_sums_read(&sums, sum);
    tarn_no_grad_close();
    double loss = good ? sum[LOSSES] / sum[TARGETS] : NAN;
    tarn_scope_close(scope);
    tarn_loader_free(loader);
    tarn__error_record error; /* the mode is restored after a failure too, without losing the error */
    tarn__error_save(&error);
    tarn_module_train(model, was_training);
    tarn__error_restore(&error);
    *evaluation = (tarn_text_evaluation){(int64_t)sum[TARGETS], loss, exp(loss)};
    return !tarn_failed() || tarn__raise_within(function);
}

bool tarn__lm_evaluate_run(tarn_trainer *t, tarn__evaluation *result)
{
    tarn_text_evaluation text;
    bool good = tarn__lm_evaluate("trainer_run", &t->ranks, t->model, t->validation, t->micro_batch,
                                  (int)t->options.workers, &text);
    *result = (tarn__evaluation){.samples = text.tokens, .loss = text.loss};
    return good;
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

bool tarn__lm_write_model(const char *function, const tarn_trainer *t, tarn__json_file *document)
{
    return tarn__arch_of(function, t->model) && tarn__model_write_config(tarn__model_config(t->model), document);
}

void tarn__lm_describe(const tarn_trainer *t, tarn_train_plan *plan)
{
    plan->classes = t->options.vocab_size;
    plan->training_tokens = t->data_spec.training_tokens;
    plan->validation_tokens = t->data_spec.validation_tokens;
}

const char *tarn__lm_unit(const tarn_trainer *t)
{
    (void)t;
    return "tokens";
}

void tarn__lm_set_speed(const tarn_trainer *t, double samples_per_second, tarn_train_report *report)
{
    report->tokens_per_second = samples_per_second * (double)t->options.context;
}

/* ---- samples and saved models ------------------------------------------------------------------------------------ */

/* First token of a sample: the end-of-text token, else a newline, else the first token of the val set. */
static int32_t first_token(const tarn_trainer *t)
{
    const tarn__token_span *s = &t->corpus.validation;
    int32_t token = tarn_tokenizer_end_of_text(t->corpus.tokenizer);
    if (token < 0)
        token = tarn_tokenizer_find(t->corpus.tokenizer, "\n", 1);
    if (token < 0 && s->ids)
        token = s->ids[0];
    else if (token < 0)
        tarn_tokens_read(s->mapped, 0, 1, &token);
    return token;
}

int64_t tarn__lm_prompt(const tarn_trainer *t, int32_t *ids, int64_t max_count)
{
    (void)max_count; /* at least 1 */
    ids[0] = first_token(t);
    return 1;
}

/* Drops ids without a token: vocab_size may be larger than the tokenizer. Returns the number of ids left. */
static int64_t drop_unknown(const tarn_tokenizer *tokenizer, int32_t *ids, int64_t count)
{
    int64_t kept = 0, known = tarn_tokenizer_count(tokenizer);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < known && tarn_tokenizer_piece(tokenizer, ids[i], NULL))
            ids[kept++] = ids[i];
    return kept;
}

char *tarn__lm_sample(tarn_trainer *t, size_t *length)
{
    const tarn_train_options *o = &t->options;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *buffer = tarn_zeros(TARN_SHAPE(o->sample + o->context), TARN_I32, tarn_device_cpu());
    int32_t *ids = buffer ? tarn_data(buffer) : NULL, *prompt = ids ? ids + o->sample : NULL;
    int64_t prompt_length = ids ? t->task->prompt(t, prompt, o->context) : 0;
    tarn_generate_options options = {.max_tokens = o->sample,
                                     .temperature = t->task->sample_temperature,
                                     .seed = (uint64_t)(o->seed + t->state.step),
                                     .slide = true};
    int64_t count = !ids || prompt_length < 0 ? -1
                    : o->context < 2          ? 0
                                              : tarn_generate(t->model, prompt, prompt_length, ids, &options);
    if (count > 0)
        count = drop_unknown(t->corpus.tokenizer, ids, count);
    char *text = ids && count >= 0 ? tarn_tokenizer_decode(t->corpus.tokenizer, ids, count, length) : NULL;
    tarn_scope_close(scope);
    return text;
}

/* transformers assumes GPT-2's own tokenizer for a folder with a GPT-2, unless tokenizer_config.json names another
 * class. That file is written first: a tokenizer with a chat template, BOS or EOS overwrites it with a complete one. */
bool tarn__lm_save_tokenizer(const char *function, const tarn_trainer *t, const char *folder)
{
    tarn__path path;
    tarn__json_file *document = tarn__json_file_new(function);
    bool good = document && tarn__json_file_set_string(document, "tokenizer_class", "PreTrainedTokenizerFast") &&
                (tarn__path_exists(folder) || tarn__folder_make(function, folder)) &&
                tarn__json_file_save(document, tarn__path_in(folder, "tokenizer_config.json", &path)) &&
                tarn_tokenizer_save(t->corpus.tokenizer, folder);
    tarn__json_file_free(document);
    return good;
}

/* The model, or the adapters alone, in a subfolder of the run. */
static bool save_as(const tarn_trainer *t, const char *name)
{
    tarn__path path;
    return tarn__lm_save_tokenizer("trainer_run", t, tarn__path_in(t->options.out, name, &path)) &&
           (t->options.lora ? tarn_lora_save(t->model, path.text, t->options.base)
                            : tarn_model_write(t->model, path.text));
}

bool tarn__lm_save_best(const tarn_trainer *t)
{
    return save_as(t, "best");
}

/* Writes a checkpoint to a subfolder that can be resumed by itself. options.out is replaced meanwhile, since all
 * writers go by it, and restored after a failure too. */
static bool write_checkpoint_folder(tarn_trainer *t, const char *name)
{
    char *out = t->options.out, own[sizeof(t->options.out)];
    tarn__path path;
    if (strlen(out) + strlen(name) + 2 > sizeof(own))
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_run: the folder name '%s/%s' is too long", out, name);
    memcpy(own, out, sizeof(own));
    snprintf(out, sizeof(own), "%s", tarn__path_in(own, name, &path));
    bool good = (tarn__path_exists(out) || tarn__folder_make("trainer_run", out)) &&
                tarn__lm_save_tokenizer("trainer_run", t, out) && tarn__config_write("trainer_run", t) &&
                tarn__adapters_write_files(t) && tarn__checkpoint_save(t);
    memcpy(out, own, sizeof(own));
    return good;
}

/* True if a run was resumed in the folder: it is not touched then. */
static bool is_in_use(const tarn_trainer *t, const char *name)
{
    tarn__path folder, path;
    return tarn__path_exists(tarn__path_in(tarn__path_in(t->options.out, name, &folder), "metrics.jsonl", &path));
}

/* Writes a numbered checkpoint under a temporary name and renames it: an atomic write, so that a kill leaves no folder
 * that looks like a checkpoint. */
static bool write_numbered(tarn_trainer *t, const char *name)
{
    char new_name[80];
    tarn__path from, to;
    snprintf(new_name, sizeof(new_name), "%s" TARN__RUN_FOLDER_NEW, name);
    bool is_first = tarn__ranks_is_first(&t->ranks), is_skipped = is_first && is_in_use(t, name);
    if (!tarn__ranks_broadcast(t, &is_skipped, sizeof(is_skipped)) || is_skipped)
        return !tarn_failed();
    if (!is_first)
        return tarn__checkpoint_save(t);
    if (!write_checkpoint_folder(t, new_name))
        return false;
    tarn__run_folder_drop(t->options.out, name);
    return tarn__file_rename("trainer_run", tarn__path_in(t->options.out, new_name, &from),
                             tarn__path_in(t->options.out, name, &to));
}

/* Keeps the last `keep` checkpoints, one per evaluation. The oldest one is computed from the step, so that no listing
 * is needed. */
bool tarn__lm_keep_checkpoint(tarn_trainer *t)
{
    char name[40];
    int64_t number = (t->state.step + t->eval_every - 1) / t->eval_every,
            oldest = (number - t->options.keep) * t->eval_every;
    if (!t->options.keep)
        return true;
    snprintf(name, sizeof(name), "step-%" PRId64, t->state.step);
    if (!write_numbered(t, name) || !tarn__ranks_is_first(&t->ranks))
        return !tarn_failed();
    snprintf(name, sizeof(name), "step-%" PRId64, oldest);
    if (oldest > 0 && !is_in_use(t, name))
        tarn__run_folder_drop(t->options.out, name);
    return true;
}

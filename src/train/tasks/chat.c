/* chat.c: the task of fine-tuning a language model on chats: documents packed into rows, with a loss mask.
 *
 * Completions differ in length, so the micro-batches of a step differ in their number of targets and weigh as much as
 * they have. What chats share with other text is in lm.c and lm_eval.c. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "train/data/data_source.h"
#include "train/tasks/lm.h"

#define DEFAULT_VAL_FRACTION 0.1 /* default fraction of the documents of a chat dataset */

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Adds the tokens of add_tokens before the template, which may need them. The tokenizer of a resumed run has them. */
static bool add_tokens(const tarn_trainer *t)
{
    const char *tokens = t->options.add_tokens;
    return !tokens[0] || tarn_tokenizer_add_tokens(t->corpus.tokenizer, tokens) >= 0;
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
    bool good = t->corpus.tokenizer && add_tokens(t) &&
                (!template[0] || tarn_tokenizer_set_chat(t->corpus.tokenizer, template));
    return good || tarn__raise_within(function);
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
    snprintf(t->notes, sizeof(t->notes), "%s", s.formats);
    *found = (tarn__data_spec){.training_tokens = s.tokens[0], .validation_tokens = s.tokens[1], .hash = s.hash};
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

/* Tokens are counted once the context is known. */
static bool open_with(const char *function, tarn_trainer *t, const char *tokenizer)
{
    tarn__data_spec found;
    return open_tokenizer(function, t, tokenizer) && tarn__lm_complete(function, t, -1) &&
           open_chats(function, t, &found) && tarn__lm_set_data_spec(function, t, &found);
}

static bool open_new(const char *function, tarn_trainer *t)
{
    return open_with(function, t, t->options.base[0] ? t->options.base : t->options.tokenizer);
}

static bool reopen(const char *function, tarn_trainer *t, const char *folder)
{
    return open_with(function, t, folder) || tarn__data_paths_hint(function, t->options.data);
}

/* Packed rows, shuffled in every epoch. */
static tarn_loader *create_loader(const tarn_trainer *t)
{
    return tarn_loader_new(t->training, &(tarn_loader_options){.batch_size = t->micro_batch,
                                                               .shuffle = true,
                                                               .drop_last = true,
                                                               .seed = (uint64_t)t->options.seed,
                                                               .workers = (int)t->options.workers,
                                                               .device = t->device});
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* An epoch has whole steps only: its remaining rows, others in every epoch, would make a smaller step. With
 * micro-batches the epoch ends at the same row as without. */
static bool end_epoch(tarn_trainer *t)
{
    tarn_loader_state state;
    if (!tarn_loader_tell(t->loader, &state))
        return false;
    if (state.batch < t->steps_in_epoch * (t->batch_size / t->micro_batch))
        return true;
    return tarn_loader_seek(t->loader, (tarn_loader_state){.epoch = state.epoch + 1});
}

static bool next_batch(tarn_trainer *t, tarn_tensor **fields)
{
    return end_epoch(t) && tarn__loader_batch(t, fields);
}

/* Completions differ in length: a micro-batch weighs as much as it has targets under the loss mask, as if the batch
 * were one. */
static tarn_tensor *weight(tarn_tensor *const *fields)
{
    return tarn__lm_target_count(fields[1], TARN_F32);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Packed rows of the run's val set, or of all of a named file. The tokenizer belongs to the corpus. */
static tarn_dataset *open_windows(tarn__eval_data *d)
{
    const tarn_train_options *o = d->options;
    tarn__chat_dataset_options options = {.function = d->function,
                                          .path = d->data ? d->data : o->data,
                                          .template_name = o->chat_template,
                                          .context = d->context};
    if (!d->data) {
        options.seed = (uint64_t)o->seed;
        options.val_path = o->val;
        options.val_fraction = tarn__val_fraction(o);
    }
    tarn__chat_dataset_summary summary = {0};
    int split = d->data ? TARN__CHAT_TRAINING : TARN__CHAT_VALIDATION;
    options.tokenizer = d->corpus.tokenizer = tarn_tokenizer_open(d->folder);
    if (!options.tokenizer)
        tarn__raise_within(d->function);
    d->chats = options.tokenizer ? tarn__chat_dataset_open(&options) : NULL;
    if (d->chats)
        tarn__chat_dataset_counts(d->chats, &summary);
    return d->chats ? tarn__chat_samples(d->function, d->chats, split, d->context, summary.rows[split]) : NULL;
}

/* The prompt of the val set's first document: its tokens up to the first completion, at most `max_count`. Returns their
 * number; -1 with an error. */
static int64_t first_prompt(const tarn_trainer *t, int32_t *ids, int64_t max_count)
{
    size_t bytes = sizeof(int32_t) * (size_t)t->options.context;
    int32_t *buffer = tarn__alloc(4 * bytes), *targets = buffer + t->options.context;
    if (!buffer)
        return -1;
    tarn__chat_dataset_rows row = {buffer, targets, buffer + 2 * t->options.context, buffer + 3 * t->options.context};
    int64_t count = tarn__chat_dataset_batch(t->chats, TARN__CHAT_VALIDATION, 0, 1, &row) ? 0 : -1;
    for (; count >= 0 && count < max_count; count++) {
        ids[count] = row.ids[count];
        if (targets[count] >= 0)
            break;
    }
    tarn__release(buffer, 4 * bytes);
    return count < 0 ? -1 : count < max_count ? count + 1 : max_count;
}

static void describe(const tarn_trainer *t, tarn_train_plan *plan)
{
    tarn__chat_dataset_summary summary;
    tarn__chat_dataset_counts(t->chats, &summary);
    tarn__lm_describe(t, plan);
    plan->training_documents = summary.documents[TARN__CHAT_TRAINING];
    plan->validation_documents = summary.documents[TARN__CHAT_VALIDATION];
    plan->completion_tokens = summary.completion_tokens[TARN__CHAT_TRAINING];
    plan->documents_truncated = summary.truncated;
}

const tarn__task tarn__task_chat = {.name = "chat",
                                    .bit = TARN__TASK_CHAT,
                                    .accepts = tarn__data_is_chats,
                                    .open = open_new,
                                    .reopen = reopen,
                                    .create_loader = create_loader,
                                    .next_batch = next_batch,
                                    .weight = weight,
                                    .open_windows = open_windows,
                                    .prompt = first_prompt,
                                    .describe = describe,
                                    TARN__LM_ROW};

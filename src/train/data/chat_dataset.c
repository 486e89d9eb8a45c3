/* chat_dataset.c: chat datasets for fine-tuning: opening, counts, and batches of packed rows.
 *
 * A batch is a function of its number and the seed: epochs of the training split follow each other without a gap, each
 * with its own order of rows. So the position of a run is one number, and resuming needs no other state. The order of
 * the current epoch is cached in the dataset, which is therefore not thread-safe (samples.c locks it). */
#include "train/data/chat_dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/random.h"
#include "models/hf/weights.h"
#include "text/chat/chat.h"

#define DEFAULT_CONTEXT 1024

static const char prefix[] = "chats:";

/* The path without its optional prefix. */
static const char *path_of(const char *name)
{
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

/* True for a longer name that ends so. */
static bool has_ending(const char *name, const char *ending)
{
    return tarn__ends_with(name, ending) && strcmp(name, ending) != 0;
}

/* "chats:PATH", or a path that ends as JSON lines do; names of other data may end so, too, and keep their meaning. */
bool tarn__data_is_chats(const char *name)
{
    static const char *const others[] = {"text:", "shards:", "digits:", "mnist:", "cifar10:", "idx:", "csv:", "npy:"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return false;
    return path_of(name) != name || has_ending(name, ".jsonl") || has_ending(name, ".json");
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool check_options(const tarn__chat_dataset_options *o)
{
    if (!o->path || !path_of(o->path)[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: path is missing; must be a JSON lines file", o->function);
    if (!o->tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer is NULL", o->function);
    if (o->context < 2 || o->context > INT32_MAX)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: context is %" PRId64 "; must be from 2 to %d", o->function,
                           o->context, INT32_MAX);
    if (!(o->val_fraction >= 0 && o->val_fraction < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: val_fraction is %g; must be at least 0 and below 1", o->function,
                           o->val_fraction);
    return o->val_fraction == 0 || !o->val_path || !o->val_path[0] ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: val_path and val_fraction exclude each other; give one of them",
                       o->function);
}

/* Documents of the validation file follow those of the first: one buffer, one numbering. */
static bool read_files(tarn__chat_dataset *c, const tarn__chat_dataset_options *o)
{
    const char *name = o->template_name && o->template_name[0] ? o->template_name : NULL;
    if ((name && !tarn__chat_template_named(o->function, o->tokenizer, name)) ||
        !tarn__chat_read(c, path_of(o->path), name))
        return false;
    c->first_val_document = (int64_t)c->documents.count;
    return !o->val_path || !o->val_path[0] || tarn__chat_read(c, path_of(o->val_path), name);
}

tarn__chat_dataset *tarn__chat_dataset_open(const tarn__chat_dataset_options *o)
{
    if (tarn_failed() || !check_options(o))
        return NULL;
    tarn__chat_dataset *c = tarn__alloc(sizeof(*c));
    if (!c)
        return NULL;
    *c = (tarn__chat_dataset){
        .function = o->function, .tokenizer = o->tokenizer, .context = o->context, .seed = o->seed, .epoch = -1};
    bool good = read_files(c, o) && tarn__chat_pack(c, o->val_fraction);
    c->order = good ? tarn__alloc(sizeof(int64_t) * (size_t)c->split[TARN__CHAT_TRAINING].rows) : NULL;
    if (!c->order) {
        tarn__chat_dataset_close(c);
        return NULL;
    }
    if (c->truncated > 0)
        tarn__log(TARN_LOG_WARNING,
                  "%s: %" PRId64 " of %zu documents are longer than the context of %" PRId64
                  " tokens and were truncated",
                  o->function, c->truncated, c->documents.count, c->context);
    return c;
}

void tarn__chat_dataset_close(tarn__chat_dataset *c)
{
    if (!c)
        return;
    tarn__release(c->order, sizeof(int64_t) * (size_t)c->split[TARN__CHAT_TRAINING].rows);
    for (int i = 0; i < 2; i++) {
        tarn__release(c->split[i].documents, sizeof(int64_t) * (size_t)c->split[i].count);
        tarn__release(c->split[i].row_first, sizeof(int64_t) * (size_t)(c->split[i].count + 1));
    }
    tarn__buffer_free(&c->ids, sizeof(int32_t));
    tarn__buffer_free(&c->loss_mask, 1);
    tarn__buffer_free(&c->documents, sizeof(tarn__chat_document));
    tarn__release(c, sizeof(*c));
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* The hash identifies the data of a resumed run: ids, loss mask, context, the split and the packing. With the same seed
 * they make the same batches. */
void tarn__chat_dataset_counts(const tarn__chat_dataset *c, tarn__chat_dataset_summary *summary)
{
    *summary = (tarn__chat_dataset_summary){.truncated = c->truncated};
    snprintf(summary->formats, sizeof(summary->formats), "%s", c->formats);
    summary->hash = tarn__hash(c->ids.data, c->ids.count * sizeof(int32_t), (uint64_t)c->context);
    summary->hash = tarn__hash(c->loss_mask.data, c->loss_mask.count, summary->hash);
    for (int i = 0; i < 2; i++) {
        const tarn__chat_split *s = &c->split[i];
        summary->documents[i] = s->count;
        summary->rows[i] = s->rows;
        for (int64_t k = 0; k < s->count; k++) {
            const tarn__chat_document *d = tarn__chat_document_at(c, s->documents[k]);
            summary->tokens[i] += d->length;
            summary->completion_tokens[i] += d->completion_tokens;
        }
        if (s->count > 0) {
            summary->hash = tarn__hash(s->documents, sizeof(int64_t) * (size_t)s->count, summary->hash);
            summary->hash = tarn__hash(s->row_first, sizeof(int64_t) * (size_t)(s->rows + 1), summary->hash);
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Writes `count` positions of a row from `begin` on: a document, or padding if d is NULL. The target of a position is
 * the next token of its document if that is under the loss mask; a document's last position has none. */
static void write_document(const tarn__chat_dataset *c, const tarn__chat_document *d, int64_t begin, int64_t count,
                           const tarn__chat_dataset_rows *row)
{
    const int32_t *ids = (const int32_t *)(const void *)c->ids.data + (d ? d->begin : 0);
    const uint8_t *mask = (const uint8_t *)c->loss_mask.data + (d ? d->begin : 0);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = begin + i;
        row->ids[at] = d ? ids[i] : 0;
        row->targets[at] = d && i + 1 < count && mask[i + 1] ? ids[i + 1] : TARN__IGNORE_INDEX;
        row->positions[at] = (int32_t)i;
        row->document_starts[at] = (int32_t)begin;
    }
}

/* Writes row `number` of a split; a negative one is padding, without loss. */
static void write_row(const tarn__chat_dataset *c, const tarn__chat_split *s, int64_t number,
                      const tarn__chat_dataset_rows *row)
{
    int64_t begin = 0;
    for (int64_t k = number < 0 ? 0 : s->row_first[number]; number >= 0 && k < s->row_first[number + 1]; k++) {
        const tarn__chat_document *d = tarn__chat_document_at(c, s->documents[k]);
        write_document(c, d, begin, d->length, row);
        begin += d->length;
    }
    write_document(c, NULL, begin, c->context - begin, row);
}

/* Row at index `at`: of training epoch after epoch, shuffled; of validation once, in order, then -1. Only the order
 * of one epoch is cached, so reading to and fro between two epochs shuffles each time. */
static int64_t row_number(tarn__chat_dataset *c, int split, int64_t at)
{
    int64_t rows = c->split[split].rows;
    if (split == TARN__CHAT_VALIDATION)
        return at < rows ? at : -1;
    if (c->epoch != at / rows) {
        c->epoch = at / rows;
        tarn__shuffled(tarn__epoch_keys_of(c->seed, c->epoch).order, c->order, rows);
    }
    return c->order[at % rows];
}

bool tarn__chat_dataset_batch(tarn__chat_dataset *c, int split, int64_t batch_number, int64_t rows,
                              tarn__chat_dataset_rows *out)
{
    const tarn__chat_split *s = &c->split[split];
    if (s->rows == 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: no documents for validation: give val_fraction or val_path",
                           c->function);
    for (int64_t i = 0; i < rows; i++) {
        int64_t first = i * c->context;
        write_row(c, s, row_number(c, split, batch_number * rows + i),
                  &(tarn__chat_dataset_rows){out->ids + first, out->targets + first, out->positions + first,
                                             out->document_starts + first});
    }
    return true;
}

/* ---- public functions -------------------------------------------------------------------------------------------- */

tarn_chat_dataset *tarn_chat_dataset_open_sized(const tarn_chat_dataset_options *options, size_t options_size)
{
    tarn_chat_dataset_options o = {0};
    if (tarn_failed())
        return NULL;
    if (!options) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "chat_dataset_open: the options are NULL; a path and a tokenizer are required");
        return NULL;
    }
    memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    return tarn__chat_dataset_open(&(tarn__chat_dataset_options){.function = "chat_dataset_open",
                                                                 .path = o.path,
                                                                 .val_path = o.val_path,
                                                                 .val_fraction = o.val_fraction,
                                                                 .tokenizer = o.tokenizer,
                                                                 .template_name = o.template_name,
                                                                 .context = o.context ? o.context : DEFAULT_CONTEXT,
                                                                 .seed = o.seed});
}

bool tarn_chat_dataset_counts_of(const tarn_chat_dataset *chats, tarn_chat_dataset_counts *counts)
{
    if (tarn_failed())
        return false;
    if (!chats || !counts)
        return tarn__raise(TARN_ERROR_ARGUMENT, "chat_dataset_counts_of: %s is NULL",
                           chats ? "the result" : "the dataset");
    tarn__chat_dataset_counts(chats, counts);
    return true;
}

bool tarn_chat_dataset_batch(tarn_chat_dataset *chats, int split, int64_t batch_number, int64_t rows,
                             tarn_chat_dataset_rows *out)
{
    if (tarn_failed())
        return false;
    if (!chats || !out || !out->ids || !out->targets || !out->positions || !out->document_starts)
        return tarn__raise(TARN_ERROR_ARGUMENT, "chat_dataset_batch: the dataset or one of the four arrays is NULL");
    if (split != TARN_CHAT_DATASET_TRAINING && split != TARN_CHAT_DATASET_VALIDATION)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "chat_dataset_batch: split is %d; must be 0 (training) or 1 (validation)", split);
    if (batch_number < 0 || rows < 1 || rows > INT64_MAX / chats->context || batch_number > INT64_MAX / rows - 1)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "chat_dataset_batch: batch_number is %" PRId64 " and rows %" PRId64
                           "; must be at least 0 and at least 1",
                           batch_number, rows);
    return tarn__chat_dataset_batch(chats, split, batch_number, rows, out);
}

void tarn_chat_dataset_close(tarn_chat_dataset *chats)
{
    tarn__chat_dataset_close(chats);
}

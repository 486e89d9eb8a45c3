/* data.c: `tarn data`: a chat dataset (JSON lines) as training sees it: counts of documents, tokens and packed rows,
 * and the first rows token by token with their loss mask.
 *
 * It opens the dataset through the same API as training, with the same seed and context, so the rows printed are the
 * rows trained on. Nothing is written. */
#include <stdlib.h>
#include <string.h>
#include <tarn/model.h>

#include "cli/cli.h"

#define USUAL_CONTEXT 2048 /* tokens; the default --context of models with more */

/* The open dataset, and one row of it as a buffer. Everything but `options` is owned and freed by tarn__data(). */
typedef struct view {
    const tarn__options *options;
    tarn_tokenizer *tokenizer;
    tarn_chat_dataset *chats;
    int64_t context;
    const char *template_name; /* NULL: the model has none */
    tarn_chat_dataset_counts counts;
    tarn_chat_dataset_rows row; /* one row; its four arrays of [context] are slices of `memory` */
    int32_t *memory;
} view;

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* Fraction of the positions of all rows that hold a token; the rest is padding. */
static double filled(const view *v, int split)
{
    int64_t places = v->counts.rows[split] * v->context;
    return places > 0 ? (double)v->counts.tokens[split] / (double)places : 0;
}

/* One line of the table; `split` is TARN_CHAT_DATASET_TRAINING or TARN_CHAT_DATASET_VALIDATION. */
static void print_split(const view *v, int split, const char *name)
{
    const tarn_chat_dataset_counts *c = &v->counts;
    printf("%-12s %10lld %12lld %12lld %8lld %7.1f %%\n", name, (long long)c->documents[split],
           (long long)c->tokens[split], (long long)c->completion_tokens[split], (long long)c->rows[split],
           100 * filled(v, split));
}

/* Without a val set its line is omitted. */
static void print_counts(const view *v)
{
    printf("%s\n", v->counts.formats);
    printf("rows of %lld tokens, template: %s\n", (long long)v->context,
           tarn__escaped(v->template_name ? v->template_name : "none"));
    tarn__heading("%-12s %10s %12s %12s %8s %9s", "", "documents", "tokens", "with loss", "rows", "filled");
    print_split(v, TARN_CHAT_DATASET_TRAINING, "training");
    if (v->counts.rows[TARN_CHAT_DATASET_VALIDATION] > 0)
        print_split(v, TARN_CHAT_DATASET_VALIDATION, "validation");
}

/* completion_tokens counts tokens under the loss mask. */
static void print_split_json(tarn__json *json, const view *v, int split, const char *name)
{
    tarn__json_open(json, name, '{');
    tarn__json_int(json, "documents", v->counts.documents[split]);
    tarn__json_int(json, "tokens", v->counts.tokens[split]);
    tarn__json_int(json, "tokens_with_loss", v->counts.completion_tokens[split]);
    tarn__json_int(json, "rows", v->counts.rows[split]);
    tarn__json_real(json, "filled", filled(v, split), 4);
    tarn__json_close(json, '}');
}

/* The hash identifies the packed rows: two machines with equal hashes train on the same data. */
static void print_counts_json(const view *v)
{
    /* as a string: 64 bits are more than a JSON number keeps */
    char hash[24];
    tarn__json json = {stdout, false};
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)v->counts.hash);
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "file", v->options->words[0]);
    tarn__json_string(&json, "template", v->template_name);
    tarn__json_int(&json, "context", v->context);
    tarn__json_int(&json, "truncated", v->counts.truncated);
    tarn__json_string(&json, "hash", hash);
    print_split_json(&json, v, TARN_CHAT_DATASET_TRAINING, "training");
    print_split_json(&json, v, TARN_CHAT_DATASET_VALIDATION, "validation");
    tarn__json_end(&json);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* End of the document that starts at `begin`: document_starts has the start of its document at every position. */
static int64_t end_of(const view *v, int64_t begin)
{
    int64_t end = begin + 1;
    while (end < v->context && v->row.document_starts[end] == begin)
        end++;
    return end;
}

/* True when predicting this token counts in the loss. targets[i] is the token after i, hence at - 1; a document's first
 * token (position 0) has no predecessor. Negative targets are masked. */
static bool has_loss(const view *v, int64_t at)
{
    return v->row.positions[at] > 0 && v->row.targets[at - 1] >= 0;
}

/* Number of tokens in [begin, end) that count in the loss. */
static int64_t losses(const view *v, int64_t begin, int64_t end)
{
    int64_t count = 0;
    for (int64_t at = begin; at < end; at++)
        count += has_loss(v, at);
    return count;
}

/* End of the last document of a row. Every document has a token with loss; the padding after the last one has none. */
static int64_t end_of_row(const view *v)
{
    int64_t end = 0;
    while (end < v->context && losses(v, end, end_of(v, end)) > 0)
        end = end_of(v, end);
    return end;
}

/* Tokens separated by dots; those with loss are green, or in brackets without colour. The piece is borrowed from the
 * tokenizer. */
static void print_document(const view *v, int64_t begin, int64_t end)
{
    bool in_colour = tarn__in_colour();
    printf("  ");
    for (int64_t at = begin; at < end; at++) {
        size_t length = 0;
        const char *piece = tarn_tokenizer_piece(v->tokenizer, v->row.ids[at], &length);
        bool marked = has_loss(v, at);
        fputs(at == begin ? "" : in_colour ? "\033[2m·\033[0m" : "·", stdout);
        fputs(!marked ? "" : in_colour ? "\033[32m" : "[", stdout);
        tarn__print_token(piece ? piece : "", length);
        fputs(!marked ? "" : in_colour ? "\033[0m" : "]", stdout);
    }
    putchar('\n');
}

/* A heading with the counts of the row, then one line per document. */
static void print_row(const view *v, int64_t number)
{
    int64_t end = end_of_row(v), documents = 0;
    for (int64_t at = 0; at < end; at = end_of(v, at))
        documents++;
    tarn__heading("row %lld: %lld document%s, %lld of %lld tokens, %lld with loss", (long long)number,
                  (long long)documents, documents == 1 ? "" : "s", (long long)end, (long long)v->context,
                  (long long)losses(v, 0, end));
    for (int64_t at = 0; at < end; at = end_of(v, at))
        print_document(v, at, end_of(v, at));
}

/* Ids, loss mask (0 or 1) and pieces are parallel arrays per document. */
static void print_row_json(const view *v, int64_t number)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_int(&json, "row", number);
    tarn__json_open(&json, "documents", '[');
    for (int64_t begin = 0, last = end_of_row(v); begin < last; begin = end_of(v, begin)) {
        int64_t end = end_of(v, begin);
        tarn__json_open(&json, NULL, '{');
        tarn__json_open(&json, "ids", '[');
        for (int64_t at = begin; at < end; at++)
            tarn__json_int(&json, NULL, v->row.ids[at]);
        tarn__json_close(&json, ']');
        tarn__json_open(&json, "loss", '[');
        for (int64_t at = begin; at < end; at++)
            tarn__json_int(&json, NULL, has_loss(v, at));
        tarn__json_close(&json, ']');
        tarn__json_open(&json, "pieces", '[');
        for (int64_t at = begin; at < end; at++) {
            size_t length = 0;
            const char *piece = tarn_tokenizer_piece(v->tokenizer, v->row.ids[at], &length);
            tarn__json_bytes(&json, NULL, piece ? piece : "", length);
        }
        tarn__json_close(&json, ']');
        tarn__json_close(&json, '}');
    }
    tarn__json_close(&json, ']');
    tarn__json_end(&json);
}

/* The first --show rows of the training split. `memory` is freed by the caller, also after a failure. */
static int print_rows(view *v)
{
    int64_t rows = v->counts.rows[TARN_CHAT_DATASET_TRAINING],
            count = v->options->show < rows ? v->options->show : rows;
    /* 4 arrays of i32 [context] */
    size_t each = (size_t)v->context;
    v->memory = malloc(sizeof(int32_t) * 4 * each);
    if (!v->memory) {
        fprintf(stderr, "tarn data: out of memory\n");
        return TARN__FAILED;
    }
    v->row = (tarn_chat_dataset_rows){v->memory, v->memory + each, v->memory + 2 * each, v->memory + 3 * each};
    for (int64_t i = 0; i < count; i++) {
        if (!tarn_chat_dataset_batch(v->chats, TARN_CHAT_DATASET_TRAINING, i, 1, &v->row))
            return tarn__print_error("data");
        if (v->options->json)
            print_row_json(v, i);
        else
            print_row(v, i);
    }
    return TARN__DONE;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Wrong usage: message and exit status. */
static int misuse(const char *sentence)
{
    fprintf(stderr, "tarn data: %s; see tarn data --help\n", sentence);
    return TARN__MISUSED;
}

/* Options that exclude each other; checked before any file is opened. */
static int check(const tarn__options *o)
{
    if (!o->model)
        return misuse("--model is missing: the tokenizer and the template are the model's");
    if (o->context == 1)
        return misuse("--context: a row has at least 2 tokens");
    if (o->val_fraction >= 1)
        return misuse("--val-fraction must be below 1: some documents must remain for training");
    return o->val && o->val_fraction > 0 ? misuse("--val and --val-fraction exclude each other") : TARN__DONE;
}

/* Sets the context: --context, or the model's, for which the model is opened on the CPU, in its stored dtype, and freed
 * again. False with an error. */
static bool find_context(view *v)
{
    tarn_model_info info;
    v->context = v->options->context;
    if (v->context > 0)
        return true;
    tarn_module *model =
        tarn_model_open(v->options->model, tarn_device_cpu(), &(tarn_model_open_options){.as_stored = true});
    bool good = model && tarn_model_query(model, &info);
    tarn_module_free(model);
    if (good)
        v->context = info.context < USUAL_CONTEXT ? info.context : USUAL_CONTEXT;
    return good;
}

/* False with an error; the caller frees what was opened. */
static bool open_view(view *v)
{
    const tarn__options *o = v->options;
    v->tokenizer = tarn_tokenizer_open(o->model);
    if (!v->tokenizer || (o->add_tokens && tarn_tokenizer_add_tokens(v->tokenizer, o->add_tokens) < 0) ||
        !find_context(v))
        return false;
    v->chats = tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = o->words[0],
                                                                   .tokenizer = v->tokenizer,
                                                                   .template_name = o->template_name,
                                                                   .val_path = o->val,
                                                                   .val_fraction = o->val_fraction,
                                                                   .context = v->context,
                                                                   .seed = (uint64_t)o->seed});
    if (!v->chats || !tarn_chat_dataset_counts_of(v->chats, &v->counts))
        return false;
    v->template_name = o->template_name ? o->template_name : tarn_chat_name(v->tokenizer);
    tarn_clear_error(); /* a model may have no template, and plain texts need none */
    return true;
}

/* Counts first, then rows. Everything is freed at the end, whatever was opened. */
int tarn__data(const tarn__options *options)
{
    view v = {.options = options};
    int status = check(options);
    if (status != TARN__DONE)
        return status;
    if (!open_view(&v))
        status = tarn__print_error("data");
    if (status == TARN__DONE && options->json)
        print_counts_json(&v);
    else if (status == TARN__DONE)
        print_counts(&v);
    if (status == TARN__DONE)
        status = print_rows(&v);
    free(v.memory);
    tarn_chat_dataset_close(v.chats);
    tarn_tokenizer_free(v.tokenizer);
    return status;
}

/* chat_read.c: JSON lines, or the elements of a JSON array, as documents: ids with a loss mask.
 *
 * The format of a line is recognized by its fields (jsonl.h). Everything is tokenized once, at opening; a line that
 * cannot be used is an error with its number, never skipped. Blank lines are ignored. An array is cut into its elements
 * here, so that errors have line numbers and memory is that of one element. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "text/chat/loss_mask.h"
#include "text/files/jsonl.h"
#include "train/data/chat_dataset.h"

/* State of reading a file. Buffers of `encoder` and `line` are reused from line to line. */
typedef struct reader {
    tarn__chat_dataset *chats;
    const char *path;
    const char *template_name; /* NULL: the tokenizer's own */
    bool has_template;         /* compiled when a line first needs it: plain texts do not */
    tarn__mask_encoder encoder;
    tarn__jsonl_sample line;
    char where[700]; /* "chat_dataset_open: 'FILE', line 3" */
    /* per format: documents, and the line of the first */
    int64_t count[TARN__SAMPLE_FORMATS], first_line[TARN__SAMPLE_FORMATS];
} reader;

/* ---- a document -------------------------------------------------------------------------------------------------- */

/* Compiles the template unless the line is plain text or there is none. False with an error. */
static bool compile_template(reader *r)
{
    bool has_any = r->template_name || r->chats->tokenizer->chat;
    if (r->line.text || !has_any || r->has_template)
        return true;
    r->has_template = tarn__mask_encoder_set_template(&r->encoder, r->template_name);
    return r->has_template || tarn__raise_within(r->where);
}

/* Encodes the line by the template; without one a prompt and its completion are concatenated as they are. */
static bool encode(reader *r)
{
    const tarn__jsonl_sample *l = &r->line;
    if (l->text)
        return tarn__mask_encoder_text(&r->encoder, "", l->text);
    if (l->prompt && !r->has_template)
        return tarn__mask_encoder_text(&r->encoder, l->prompt, l->completion);
    if (l->prompt)
        return tarn__mask_encoder_chat(&r->encoder,
                                       (tarn_chat_message[]){{"user", l->prompt}, {"assistant", l->completion}}, 2);
    if (!r->has_template)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "\"messages\" need a chat template, and the model has none; choose one with --template "
                           "(template_name): chatml, llama2, llama3 or mistral");
    return tarn__mask_encoder_json(&r->encoder,
                                   &(tarn__chat_json){.messages = l->messages.data,
                                                      .length = l->messages.count - 1,
                                                      .tools = l->tools.count ? l->tools.data : NULL,
                                                      .documents = l->documents.count ? l->documents.data : NULL});
}

/* From 1 on: the first token of a document is never predicted. */
static int64_t count_completion_tokens(const tarn__mask_encoder *m, int64_t length)
{
    int64_t completion_tokens = 0;
    for (int64_t i = 1; i < length; i++)
        completion_tokens += m->mask.flags.data[i];
    return completion_tokens;
}

/* Appends the encoded document, truncated to the context. One without a completion token in it is an error: it would
 * train nothing. */
static bool add_document(reader *r)
{
    tarn__chat_dataset *c = r->chats;
    const tarn__mask_encoder *m = &r->encoder;
    int64_t full_length = (int64_t)m->ids.count, length = full_length < c->context ? full_length : c->context;
    tarn__chat_document d = {(int64_t)c->ids.count, length, count_completion_tokens(m, length)};
    if (d.completion_tokens == 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: no completion token within the context of %" PRId64 " tokens; the document has %" PRId64
                           "; use a longer context, or remove the line",
                           r->where, c->context, full_length);
    c->truncated += length < full_length;
    return tarn__buffer_add(&c->ids, m->ids.data, (size_t)length, sizeof(int32_t)) &&
           tarn__buffer_add(&c->loss_mask, m->mask.flags.data, (size_t)length, 1) &&
           tarn__buffer_add(&c->documents, &d, 1, sizeof(d));
}

static void count_format(reader *r, int64_t number)
{
    if (!r->count[r->line.format]++)
        r->first_line[r->line.format] = number;
}

static bool add_line(reader *r, int64_t number, const char *text, size_t length)
{
    snprintf(r->where, sizeof(r->where), "%s: '%.500s', line %" PRId64, r->chats->function, r->path, number);
    if (!tarn__jsonl_sample_read(&r->line, r->where, text, length) || !compile_template(r))
        return false;
    count_format(r, number);
    return encode(r) ? add_document(r) : tarn__raise_within(r->where);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool is_blank(const char *line, size_t length)
{
    while (length > 0 && (*line == ' ' || *line == '\t' || *line == '\r'))
        line++, length--;
    return length == 0;
}

static bool add_lines(reader *r, const tarn__map *file)
{
    int64_t number = 1;
    for (size_t at = 0, length; at < file->bytes; at += length + 1, number++) {
        const char *line = file->memory + at, *end = memchr(line, '\n', file->bytes - at);
        length = end ? (size_t)(end - line) : file->bytes - at;
        if (!is_blank(line, length) && !add_line(r, number, line, length))
            return false;
    }
    return true;
}

/* Length of the element at the front of an array's text: up to the comma or bracket after it. Its lines are added to
 * *lines. */
static size_t element_length(const char *text, size_t length, int64_t *lines)
{
    int depth = 0;
    bool in_string = false;
    size_t at = 0;
    for (; at < length; at++) {
        char c = text[at];
        *lines += c == '\n';
        if (in_string && c == '\\' && at + 1 < length)
            at++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '['))
            depth++;
        else if (!in_string && depth == 0 && (c == ',' || c == ']'))
            break;
        else if (!in_string && (c == '}' || c == ']'))
            depth--;
    }
    return at;
}

static size_t skip_blanks(const char *text, size_t length, int64_t *lines)
{
    size_t at = 0;
    for (; at < length && strchr(" \t\r\n", text[at]) && text[at]; at++)
        *lines += text[at] == '\n';
    return at;
}

/* The elements of an array; `at` is after its opening bracket. */
static bool add_elements(reader *r, const tarn__map *file, size_t at, int64_t number)
{
    for (bool is_empty = true;; is_empty = false) {
        at += skip_blanks(file->memory + at, file->bytes - at, &number);
        int64_t first = number;
        size_t length = element_length(file->memory + at, file->bytes - at, &number);
        bool is_last = at + length < file->bytes && file->memory[at + length] == ']';
        if (at + length == file->bytes)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s', line %" PRId64 ": the array is not closed",
                               r->chats->function, r->path, first);
        if ((length > 0 || !is_last || !is_empty) && !add_line(r, first, file->memory + at, length))
            return false;
        at += length + 1;
        if (is_last)
            break;
    }
    at += skip_blanks(file->memory + at, file->bytes - at, &number);
    return at == file->bytes || tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s', line %" PRId64 ": text after the array",
                                            r->chats->function, r->path, number);
}

/* JSON lines, or an array, by the first character. */
static bool add_documents(reader *r, const tarn__map *file)
{
    int64_t number = 1;
    size_t at = skip_blanks(file->memory, file->bytes, &number);
    if (at < file->bytes && file->memory[at] == '[')
        return add_elements(r, file, at + 1, number);
    return add_lines(r, file);
}

/* "1,204" */
static const char *grouped(int64_t count, char text[32])
{
    if (count < 1000)
        snprintf(text, 32, "%" PRId64, count);
    else
        snprintf(text, 32, "%" PRId64 ",%03d", count / 1000, (int)(count % 1000));
    return text;
}

/* "ShareGPT, 1,204 conversations", or of a mixed file "3 Alpaca pairs, 2 texts (the first in line 4)". */
static void describe(const reader *r, char *text, size_t size)
{
    static const char *const names[][2] = {{"OpenAI messages", "conversations"}, {"ShareGPT", "conversations"},
                                           {"Alpaca", "instructions"},           {"prompts and completions", "pairs"},
                                           {"questions and answers", "pairs"},   {"plain text", "documents"}};
    char number[32];
    int formats = 0;
    size_t used = strlen(text);
    for (int i = 0; i < TARN__SAMPLE_FORMATS; i++)
        formats += r->count[i] > 0;
    for (int i = 0, shown = 0; i < TARN__SAMPLE_FORMATS && used < size; i++) {
        if (!r->count[i])
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s, %s %s",
                                 shown++ ? "; "
                                 : used  ? "; val: "
                                         : "",
                                 names[i][0], grouped(r->count[i], number), names[i][1]);
        if (formats > 1 && used < size)
            used += (size_t)snprintf(text + used, size - used, " (the first in line %" PRId64 ")", r->first_line[i]);
    }
    if (formats > 1)
        tarn__log(TARN_LOG_WARNING, "%s has lines of %d formats: %s", r->path, formats, text);
}

bool tarn__chat_read(tarn__chat_dataset *chats, const char *path, const char *template_name)
{
    size_t before = chats->documents.count;
    reader r = {.chats = chats, .path = path, .template_name = template_name, .encoder.tokenizer = chats->tokenizer};
    tarn__map file;
    if (!tarn__map_open(&file, chats->function, path))
        return false;
    bool good = add_documents(&r, &file);
    if (good)
        describe(&r, chats->formats, sizeof(chats->formats));
    if (good && chats->documents.count == before)
        good =
            tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s' has no documents: all lines are blank", chats->function, path);
    tarn__map_close(&file);
    tarn__mask_encoder_free(&r.encoder);
    tarn__jsonl_sample_free(&r.line);
    return good;
}

/* loss_mask.c: loss masks, and documents encoded with them (loss_mask.h).
 *
 * Tokenizers do not report the offsets of ids. But pieces add up: the beginning of a text, encoded by itself, has as
 * many bytes of pieces as lie before that position in the encoding of the whole, since normalization changes both
 * alike. */
#include "text/chat/loss_mask.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

void tarn__loss_mask_clear(tarn__loss_mask *m)
{
    m->flags.count = m->spans.count = m->next = 0;
}

void tarn__loss_mask_free(tarn__loss_mask *m)
{
    tarn__buffer_free(&m->flags, 1);
    tarn__buffer_free(&m->spans, sizeof(tarn__span));
    tarn__buffer_free(&m->trial, sizeof(int32_t));
}

static const tarn__span *span_at(const tarn__loss_mask *m, size_t index)
{
    return (const tarn__span *)(const void *)m->spans.data + index;
}

bool tarn__loss_mask_span(tarn__loss_mask *m, size_t begin, size_t end)
{
    return begin >= end || tarn__buffer_add(&m->spans, &(tarn__span){begin, end}, 1, sizeof(tarn__span));
}

/* Special tokens are inserted last, not encoded first, so that the text is encoded as the beginning of an input. */
bool tarn__loss_mask_begin(tarn__loss_mask *m, tarn__buffer *ids, const tarn__buffer *before)
{
    size_t more = before->count;
    if (!tarn__buffer_reserve(ids, more, sizeof(int32_t)) || !tarn__buffer_reserve(&m->flags, more, 1))
        return false;
    if (more == 0)
        return true;
    memmove(ids->data + more * sizeof(int32_t), ids->data, ids->count * sizeof(int32_t));
    memcpy(ids->data, before->data, more * sizeof(int32_t));
    memmove(m->flags.data + more, m->flags.data, m->flags.count);
    memset(m->flags.data, 0, more);
    ids->count += more;
    m->flags.count += more;
    return true;
}

/* Skips the spans that end before a position. */
static void skip_spans(tarn__loss_mask *m, size_t begin)
{
    while (m->next < m->spans.count && span_at(m, m->next)->end <= begin)
        m->next++;
}

bool tarn__loss_mask_token(tarn__loss_mask *m, size_t begin, size_t end)
{
    skip_spans(m, begin);
    uint8_t flag = m->next < m->spans.count && span_at(m, m->next)->begin < end;
    return tarn__buffer_add(&m->flags, &flag, 1, 1);
}

/* Sum of the bytes of pieces of ids from … end - 1. */
static size_t bytes_of(const tarn_tokenizer *tokenizer, const tarn__buffer *ids, size_t from, size_t end)
{
    size_t sum = 0;
    for (size_t i = from; i < end; i++) {
        size_t length = 0;
        tarn__vocab_bytes(&tokenizer->vocab, ((const int32_t *)(const void *)ids->data)[i], &length);
        sum += length;
    }
    return sum;
}

/* Bytes of pieces before an offset of the text: encodes the section up to there. */
static bool piece_bytes_before(tarn__loss_mask *m, const tarn_tokenizer *tokenizer, tarn__encoder *encoder,
                               const tarn__section *s, size_t at, size_t *offset)
{
    m->trial.count = 0;
    *offset = 0;
    if (at <= s->begin)
        return true;
    bool good = tarn__tokenizer_append_section(tokenizer, encoder, s->text + s->begin, at - s->begin, s->with_special,
                                               s->first > 0, &m->trial);
    *offset = good ? bytes_of(tokenizer, &m->trial, 0, m->trial.count) : 0;
    return good;
}

/* Flags the ids that contain bytes of pieces from `begin` to `end`. */
static void set_flags(tarn__loss_mask *m, const tarn_tokenizer *tokenizer, const tarn__section *s,
                      const tarn__buffer *ids, size_t begin, size_t end)
{
    for (size_t i = s->first, at = 0; i < ids->count; i++) {
        size_t next = at + bytes_of(tokenizer, ids, i, i + 1);
        if (next > begin && at < end)
            m->flags.data[i] = 1;
        at = next;
    }
}

/* All ids of the section get a flag of 0 first; those of completions are then set. */
bool tarn__loss_mask_section(tarn__loss_mask *m, const tarn_tokenizer *tokenizer, tarn__encoder *encoder,
                             const tarn__section *s, const tarn__buffer *ids)
{
    const uint8_t none = 0;
    size_t total = bytes_of(tokenizer, ids, s->first, ids->count), begin = 0, end = 0;
    bool good = true;
    for (size_t i = s->first; good && i < ids->count; i++)
        good = tarn__buffer_add(&m->flags, &none, 1, 1);
    skip_spans(m, s->begin);
    for (size_t i = m->next; good && i < m->spans.count && span_at(m, i)->begin < s->end; i++) {
        const tarn__span *span = span_at(m, i);
        end = total;
        good = piece_bytes_before(m, tokenizer, encoder, s, span->begin, &begin) &&
               (span->end >= s->end || piece_bytes_before(m, tokenizer, encoder, s, span->end, &end));
        if (good)
            set_flags(m, tokenizer, s, ids, begin, end);
    }
    return good;
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static void clear(tarn__mask_encoder *m)
{
    m->ids.count = 0;
    tarn__rendering_clear(&m->rendering);
    tarn__loss_mask_clear(&m->mask);
}

/* Renders, finds the completions and encodes. Takes the context; NULL: an error is pending. */
static bool encode(tarn__mask_encoder *m, tarn__chat *chat, tarn__jinja_context *context)
{
    if (!context)
        return false;
    tarn__jinja_context_set_time(context, &tarn__chat_training_day);
    clear(m);
    bool good = tarn__chat_render(chat, context, &m->rendering) &&
                tarn__chat_completions(chat, context, &m->rendering, &m->mask) &&
                tarn__chat_encode(m->tokenizer, &m->encoder, &m->rendering, &m->mask, &m->ids);
    tarn__jinja_context_free(context);
    return good;
}

bool tarn__mask_encoder_chat(tarn__mask_encoder *m, const tarn_chat_message *messages, int count)
{
    return encode(m, &m->chat, tarn__chat_context(&m->chat, messages, count, false));
}

/* True if the template prints the arguments of a call as the object {"tarn-key": 1}. */
static bool prints_arguments(tarn__mask_encoder *m, const tarn__chat *chat, const char *arguments)
{
    static const char wanted[] = "tarn-key\": 1";
    char talk[400];
    snprintf(talk, sizeof(talk),
             "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", "
             "\"tool_calls\": [{\"id\": \"call00001\", \"type\": \"function\", \"function\": {\"name\": \"f\", "
             "\"arguments\": %s}}]}]",
             arguments);
    tarn__jinja_context *context =
        tarn__chat_context_json(chat, &(tarn__chat_json){.messages = talk, .length = strlen(talk)});
    bool found = false;
    if (context && tarn__chat_render(chat, context, &m->rendering))
        for (size_t i = 0; !found && i + strlen(wanted) <= m->rendering.text.count; i++)
            found = memcmp(m->rendering.text.data + i, wanted, strlen(wanted)) == 0;
    tarn__jinja_context_free(context);
    if (tarn_error_code() != TARN_ERROR_MEMORY)
        tarn_clear_error();
    return found;
}

/* OpenAI's format has arguments as strings of JSON. Templates that write JSON themselves would write such a string in
 * quotes: they get objects. */
static bool choose_arguments(tarn__mask_encoder *m, tarn__chat *chat)
{
    if (!chat->is_call_probed)
        chat->parses_arguments =
            !prints_arguments(m, chat, "\"{\\\"tarn-key\\\": 1}\"") && prints_arguments(m, chat, "{\"tarn-key\": 1}");
    chat->is_call_probed = true;
    return !tarn_failed();
}

bool tarn__mask_encoder_json(tarn__mask_encoder *m, const tarn__chat_json *json)
{
    tarn__chat *chat = m->tools_chat.program && json->tools && json->tools[0] ? &m->tools_chat : &m->chat;
    tarn__jinja_context *context = choose_arguments(m, chat) ? tarn__chat_context_json(chat, json) : NULL;
    if (context && chat->parses_arguments && !tarn__jinja_context_parse_arguments(context)) {
        tarn__jinja_context_free(context);
        context = NULL;
    }
    return encode(m, chat, context);
}

/* The text is one section, without special tokens; EOS and the tokens before it are no part of it. */
bool tarn__mask_encoder_text(tarn__mask_encoder *m, const char *prompt, const char *completion)
{
    int32_t eos = tarn_tokenizer_eos(m->tokenizer);
    tarn__buffer *text = &m->rendering.text;
    clear(m);
    if (eos < 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "the tokenizer has no EOS token: the model could not learn to stop");
    size_t begin = strlen(prompt), end = begin + strlen(completion);
    if (!tarn__buffer_add(text, prompt, begin, 1) || !tarn__buffer_add(text, completion, end - begin, 1) ||
        !tarn__loss_mask_span(&m->mask, begin, end + 1))
        return false;
    const tarn__section all = {text->data, 0, end, 0, false};
    return (end == 0 ||
            tarn__tokenizer_append_section(m->tokenizer, &m->encoder, text->data, end, false, false, &m->ids)) &&
           tarn__loss_mask_section(&m->mask, m->tokenizer, &m->encoder, &all, &m->ids) && tarn__ids_add(&m->ids, eos) &&
           tarn__loss_mask_token(&m->mask, end, end + 1) &&
           tarn__loss_mask_begin(&m->mask, &m->ids, &m->tokenizer->before);
}

/* A name stands for one of tarn's own templates, which has no other for tools. */
bool tarn__mask_encoder_set_template(tarn__mask_encoder *m, const char *name)
{
    const tarn_tokenizer *t = m->tokenizer;
    const char *source = name ? tarn__chat_template_named("chat", t, name) : tarn__chat_template_of(t, false),
               *tools = name ? NULL : tarn__chat_template_of(t, true);
    return source && tarn__chat_open(&m->chat, t, tarn__chat_template_name(source), source) &&
           (!tools || tools == source || tarn__chat_open(&m->tools_chat, t, "tool_use", tools));
}

void tarn__mask_encoder_free(tarn__mask_encoder *m)
{
    tarn__chat_close(&m->chat);
    tarn__chat_close(&m->tools_chat);
    tarn__rendering_free(&m->rendering);
    tarn__buffer_free(&m->ids, sizeof(int32_t));
    tarn__encoder_free(&m->encoder);
    tarn__loss_mask_free(&m->mask);
}

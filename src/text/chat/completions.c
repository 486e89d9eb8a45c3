/* completions.c: which bytes of a rendered conversation the assistant wrote, for the loss mask and the stop token.
 *
 * A template with generation blocks says it itself. For others, every byte's origin names the message it stems from,
 * whatever the template did to it: answers are found where their bytes are, stripped or without their thoughts. What
 * else a model has to write, from the end of the generation prompt to the end of the turn, is template text; it is
 * found by rendering the conversation up to the answer with the prompt (the text before the answer), and up to and with
 * the answer (the text after it). Both are compared with the whole rendering, which may differ from either. */
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chat/loss_mask.h"

#define NONE ((size_t)-1)

static const uint8_t *origins_of(const tarn__rendering *r)
{
    return (const uint8_t *)r->masks.origins.data;
}

static uint8_t origin_at(const tarn__rendering *r, size_t at)
{
    return origins_of(r)[at] & TARN__JINJA_ORIGIN;
}

static uint8_t origin_of(size_t message)
{
    return (uint8_t)(TARN__JINJA_MESSAGE + message % TARN__JINJA_MESSAGES);
}

/* ---- texts in renderings ----------------------------------------------------------------------------------------- */

/* The position after the last byte of [begin, end) that is not the template's, or of one origin if that is not 0;
 * `begin`: there is none. */
static size_t after_last(const tarn__rendering *r, size_t begin, size_t end, uint8_t origin)
{
    while (end > begin && (origin ? origin_at(r, end - 1) != origin : origin_at(r, end - 1) == 0))
        end--;
    return end;
}

/* The first byte of [begin, end) that is not the template's; `end`: none. */
static size_t first_foreign(const tarn__rendering *r, size_t begin, size_t end)
{
    while (begin < end && origin_at(r, begin) == 0)
        begin++;
    return begin;
}

static bool is_own(const tarn__rendering *r, size_t begin, size_t end)
{
    return first_foreign(r, begin, end) == end;
}

/* The first occurrence of a text in [from, end), all of it the template's, or the last one; NONE: there is none. */
static size_t find(const tarn__rendering *r, size_t from, size_t end, const char *text, size_t length, bool last)
{
    size_t found = NONE;
    for (size_t at = from; length && at < end && length <= end - at && (last || found == NONE); at++)
        if (r->text.data[at] == text[0] && memcmp(r->text.data + at, text, length) == 0 && is_own(r, at, at + length))
            found = at;
    return found;
}

/* Length of a text without trailing whitespace. */
static size_t stripped(const char *text, size_t length)
{
    while (length > 0 && strchr(" \t\r\n", text[length - 1]) && text[length - 1])
        length--;
    return length;
}

static bool copy(tarn__buffer *to, const char *text, size_t length)
{
    to->count = 0;
    return tarn__buffer_add(to, text, length, 1);
}

/* Special tokens next to each other: the first ones of a text. */
typedef struct token_run {
    const tarn__added_token *first, *last, *eos; /* NULL: none; eos: the tokenizer's, if it is among them */
    size_t begin;
} token_run;

static token_run first_run(const tarn_tokenizer *tokenizer, const tarn__rendering *r, size_t from, size_t end)
{
    token_run run = {0};
    int32_t eos = tarn_tokenizer_eos(tokenizer);
    size_t at, next = from;
    const tarn__added_token *token;
    while ((token = tarn__chat_next_special(tokenizer, r, next, end, &at)) != NULL && (!run.first || at == next)) {
        run.begin = run.first ? run.begin : at;
        run.first = run.first ? run.first : token;
        run.last = token;
        run.eos = token->id == eos ? token : run.eos;
        next = at + token->length;
    }
    return run;
}

/* ---- the probe --------------------------------------------------------------------------------------------------- */

/* Renders the first `count` messages: 1; 0 if the template refuses them; -1 with an error. */
static int try_render(const tarn__chat *chat, tarn__jinja_context *context, size_t count, bool add_generation_prompt,
                      tarn__rendering *rendering)
{
    tarn__jinja_context_limit(context, count, add_generation_prompt);
    if (tarn__chat_render(chat, context, rendering))
        return 1;
    if (tarn_error_code() == TARN_ERROR_MEMORY)
        return -1;
    tarn_clear_error();
    return 0;
}

/* The end of an answer that a question follows: of the special tokens after it EOS, else the first; without any, the
 * text between the answer and what also precedes the first question. */
static bool learn_end(tarn__chat *chat, const tarn__rendering *r)
{
    size_t end = r->text.count, after = after_last(r, 0, end, origin_of(1)), before = first_foreign(r, 0, end);
    size_t question = first_foreign(r, after, end), same = 0;
    if (after == 0)
        return true;
    token_run run = first_run(chat->tokenizer, r, after, question);
    const tarn__added_token *token = run.eos ? run.eos : run.first;
    if (token)
        return copy(&chat->end, token->text, token->length);
    size_t at, next = 0; /* a token before the question, such as BOS, is not of its heading */
    while ((token = tarn__chat_next_special(chat->tokenizer, r, next, before, &at)) != NULL)
        next = at + token->length;
    while (same < before - next && same < question - after &&
           r->text.data[before - 1 - same] == r->text.data[question - 1 - same])
        same++;
    return copy(&chat->end, r->text.data + after, stripped(r->text.data + after, question - after - same));
}

/* The token that ends the last answer. */
static void learn_stop(tarn__chat *chat, const tarn__rendering *r)
{
    size_t end = r->text.count, after = after_last(r, 0, end, origin_of(1)), at = NONE;
    token_run run = first_run(chat->tokenizer, r, after, end);
    if (after == 0 || !run.first)
        return;
    if (chat->end.count)
        at = find(r, run.begin, end, chat->end.data, chat->end.count, false);
    chat->stop = run.eos ? run.eos->id : run.first->id;
    if (!run.eos && at != NONE && at < run.begin + run.first->length + run.last->length)
        chat->stop = tarn_tokenizer_find(chat->tokenizer, chat->end.data, chat->end.count);
}

/* The generation prompt: what it adds to a question. */
static bool learn_prompt(tarn__chat *chat, tarn__jinja_context *context)
{
    tarn__rendering *with = &chat->prefix, *without = &chat->answer;
    int good = try_render(chat, context, 1, true, with);
    good = good > 0 ? try_render(chat, context, 1, false, without) : good;
    size_t length = good > 0 ? without->text.count : 0;
    if (good > 0 && with->text.count > length && (!length || memcmp(with->text.data, without->text.data, length) == 0))
        return copy(&chat->prompt, with->text.data + length, with->text.count - length);
    return good >= 0;
}

bool tarn__chat_probe(tarn__chat *chat)
{
    static const tarn_chat_message talk[] = {
        {"user", "tarn-question"}, {"assistant", "tarn-answer"}, {"user", "tarn-more"}};
    if (chat->is_probed)
        return true;
    tarn__jinja_context *context = tarn__chat_context(chat, talk, 3, false);
    int good = context ? try_render(chat, context, 3, false, &chat->answer) : -1;
    bool done = good >= 0 && (good == 0 || learn_end(chat, &chat->answer));
    good = done ? try_render(chat, context, 2, false, &chat->answer) : -1;
    if (good > 0)
        learn_stop(chat, &chat->answer);
    chat->is_probed = good >= 0 && learn_prompt(chat, context);
    tarn__jinja_context_free(context);
    return chat->is_probed;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* The search for one answer. */
typedef struct search {
    const tarn__chat *chat;
    const tarn__rendering *whole;
    const tarn__rendering *prefix; /* up to the answer, with the generation prompt; NULL: refused */
    const tarn__rendering *answer; /* up to and with the answer; NULL: refused */
    size_t message;
    size_t from;        /* the end of the answer before */
    size_t first, last; /* its bytes in the whole; NONE: there are none */
    size_t limit;       /* the first byte of something else after them */
} search;

/* Templates may print parts of a message once more, such as the name of a function before its result. If the bytes
 * begin as they do where the answer is the last, they end where those end. */
static void align(search *s)
{
    const tarn__rendering *r = s->answer, *whole = s->whole;
    uint8_t origin = origin_of(s->message);
    size_t at = s->first, last = NONE;
    for (size_t i = 0; r && i < r->text.count; i++) {
        if (origin_at(r, i) != origin)
            continue;
        while (at < s->last && origin_at(whole, at) != origin)
            at++;
        if (at == s->last || whole->text.data[at] != r->text.data[i])
            return;
        last = ++at;
    }
    if (last != NONE)
        s->last = last;
}

/* Finds the bytes of the message. Messages come in order: bytes of a later one end the search. Earlier ones may come
 * again, as names of functions do. */
static void locate(search *s)
{
    const tarn__rendering *r = s->whole;
    s->first = s->last = NONE;
    s->limit = r->text.count;
    for (size_t at = s->from; at < r->text.count && s->first == NONE; at++) {
        uint8_t origin = origin_at(r, at);
        if (origin < TARN__JINJA_MESSAGE)
            continue;
        size_t ahead = (origin + (size_t)TARN__JINJA_MESSAGES - origin_of(s->message)) % TARN__JINJA_MESSAGES;
        if (ahead == 0)
            s->first = at;
        else if (ahead <= TARN__JINJA_MESSAGES / 2) {
            s->limit = at;
            return;
        }
    }
    if (s->first == NONE)
        return;
    for (size_t at = s->last = s->first; at < r->text.count; at++)
        if (origin_at(r, at) == origin_of(s->message))
            s->last = at + 1;
        else if (origin_at(r, at) != 0)
            break;
    align(s);
    s->limit = first_foreign(r, s->last, r->text.count);
}

/* The template's text at the end of the prefix: what stands between a question and its answer. */
static size_t heading_of(const search *s, const char **text)
{
    size_t begin = s->prefix ? after_last(s->prefix, 0, s->prefix->text.count, 0) : 0;
    *text = s->prefix && s->prefix->text.data ? s->prefix->text.data + begin : "";
    return s->prefix ? s->prefix->text.count - begin : 0;
}

/* Cuts a common beginning of two texts, at `at` in `r`, back to where it does not split a special token, nor a word. */
static size_t whole_words(const tarn__chat *chat, const tarn__rendering *r, size_t begin, size_t length)
{
    size_t at, next = begin, end = begin + length, safe = begin;
    const tarn__added_token *token;
    while ((token = tarn__chat_next_special(chat->tokenizer, r, next, r->text.count, &at)) != NULL && at < end) {
        next = at + token->length;
        if (next > end)
            end = at;
        safe = next <= end ? next : safe;
    }
    while (end > safe && !strchr(" \t\r\n", r->text.data[end - 1]))
        end--;
    return end - begin;
}

/* The longest beginning of the heading that is in [from, end): a prompt may go on where an answer does not, as with an
 * open <think>. It has a special token at least. Returns the position after it; NONE: there is none. */
static size_t find_beginning(const search *s, size_t from, size_t end)
{
    const char *text;
    size_t length = heading_of(s, &text), place = NONE, size = 0, at;
    size_t begin = s->prefix ? s->prefix->text.count - length : 0, next = begin;
    const tarn__added_token *token;
    while (s->prefix &&
           (token = tarn__chat_next_special(s->chat->tokenizer, s->prefix, next, s->prefix->text.count, &at)) != NULL) {
        next = at + token->length;
        size_t found = find(s->whole, from, end, text, next - begin, true);
        if (found == NONE)
            break;
        place = found;
        size = next - begin;
    }
    while (place != NONE && size < length && place + size < end && s->whole->text.data[place + size] == text[size])
        size++;
    return place != NONE ? place + whole_words(s->chat, s->whole, place, size) : NONE;
}

/* The longest end of the heading, from one of its special tokens on, that is in [from, end): a prompt may begin in
 * another way, as after a system message that is only printed there. The position after it; NONE: there is none. */
static size_t find_closing(const search *s, size_t from, size_t end)
{
    size_t at, place, count = s->prefix ? s->prefix->text.count : 0;
    const tarn__added_token *token;
    for (size_t next = s->prefix ? after_last(s->prefix, 0, count, 0) : 0;
         s->prefix && (token = tarn__chat_next_special(s->chat->tokenizer, s->prefix, next, count, &at)) != NULL;
         next = at + token->length)
        if ((place = find(s->whole, from, end, s->prefix->text.data + at, count - at, true)) != NONE)
            return place + count - at;
    return NONE;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The same from one of its words on, for tokenizers that have no special tokens of the template's. */
static size_t find_last_words(const search *s, size_t from, size_t end)
{
    const char *text;
    size_t length = heading_of(s, &text), place;
    for (size_t at = 0; at < length; at++)
        if (!is_blank(text[at]) && (at == 0 || is_blank(text[at - 1])) &&
            (place = find(s->whole, from, end, text + at, length - at, true)) != NONE)
            return place + length - at;
    return NONE;
}

/* Where the answer begins in [from, end), which ends at its first byte: after the heading; after the generation prompt;
 * after a part of the heading; else there. */
static size_t find_begin(const search *s, size_t from, size_t end)
{
    const char *text;
    size_t length = heading_of(s, &text), at = find(s->whole, from, end, text, length, true);
    if (at != NONE)
        return at + length;
    at = find(s->whole, from, end, s->chat->prompt.data, s->chat->prompt.count, true);
    if (at != NONE)
        return at + s->chat->prompt.count;
    at = find_closing(s, from, end);
    at = at != NONE ? at : find_beginning(s, from, end);
    at = at != NONE ? at : find_last_words(s, from, end);
    return at != NONE ? at : end;
}

/* Bytes of template text that follow the answer both here and where it is the last. */
static size_t common_tail(const search *s)
{
    const tarn__rendering *r = s->answer;
    size_t end = r ? r->text.count : 0, after = r ? after_last(r, 0, end, origin_of(s->message)) : 0, same = 0;
    if (after == 0)
        return 0;
    while (same < end - after && same < s->limit - s->last &&
           r->text.data[after + same] == s->whole->text.data[s->last + same])
        same++;
    return same == end - after ? same : whole_words(s->chat, s->whole, s->last, same);
}

/* The position after a special token that follows with no more than whitespace before it; else `at`. */
static size_t after_next(const search *s, size_t at)
{
    size_t place;
    const tarn__added_token *token = tarn__chat_next_special(s->chat->tokenizer, s->whole, at, s->limit, &place);
    return token && stripped(s->whole->text.data + at, place - at) == 0 ? place + token->length : at;
}

/* True if the answer, where it is the last, ends as others do. */
static bool ends_as_usual(const search *s)
{
    const tarn__rendering *r = s->answer;
    const tarn__buffer *ending = &s->chat->end;
    size_t end = r ? r->text.count : 0, after = r ? after_last(r, 0, end, origin_of(s->message)) : 0;
    return !r || find(r, after, end, ending->data, ending->count, false) != NONE;
}

/* Where the answer ends: after what ends other answers; else after EOS or all of the text that always follows it, as
 * for a turn that calls tools; without a special token in that after the next one, which may begin the next turn (GLM's
 * models stop at <|user|>). */
static size_t find_end(const search *s)
{
    const tarn__rendering *r = s->whole;
    const tarn__buffer *ending = &s->chat->end;
    size_t tail = s->last + common_tail(s), at = NONE, place;
    const tarn__added_token *token;
    bool has_token = false;
    if (ends_as_usual(s))
        at = find(r, s->last, s->limit, ending->data, ending->count, false);
    if (at != NONE)
        return at + ending->count;
    for (at = s->last; (token = tarn__chat_next_special(s->chat->tokenizer, r, at, tail, &place)) != NULL;) {
        at = place + token->length;
        has_token = true;
        if (token->id == tarn_tokenizer_eos(s->chat->tokenizer))
            return at;
    }
    at = s->last + stripped(r->text.data + s->last, tail - s->last);
    return has_token ? at : after_next(s, at);
}

/* An answer without bytes in the rendering, such as one that was only thoughts: it lies between a heading and an
 * ending. */
static bool find_empty(const search *s, tarn__span *span)
{
    const char *text;
    size_t from = after_last(s->whole, 0, s->limit, 0), length = heading_of(s, &text), at = NONE;
    /* a heading may begin with the end of the answer before */
    for (size_t next = from; (at = find(s->whole, next, s->limit, text, length, false)) != NONE; next = at + 1)
        if (at + length > s->from)
            break;
    if (at == NONE) {
        length = s->chat->prompt.count;
        from = from > s->from ? from : s->from;
        at = find(s->whole, from, s->limit, s->chat->prompt.data, length, false);
    }
    size_t end =
        at != NONE ? find(s->whole, at + length, s->limit, s->chat->end.data, s->chat->end.count, false) : NONE;
    if (end == NONE)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: nothing of message %zu, which is the assistant's, is in the rendering: its tokens "
                           "cannot be found for the loss; remove it, or choose another template",
                           s->chat->name, s->message + 1);
    *span = (tarn__span){at + length, end + s->chat->end.count};
    return true;
}

/* Renders the prefixes of an answer and finds it. */
static bool find_answer(tarn__chat *chat, tarn__jinja_context *context, search *s, size_t count, tarn__span *span)
{
    int before = s->message > 0 ? try_render(chat, context, s->message, true, &chat->prefix) : 0;
    bool is_last = s->message + 1 == count;
    int after = before < 0 ? -1 : is_last ? 1 : try_render(chat, context, s->message + 1, false, &chat->answer);
    if (before < 0 || after < 0)
        return false;
    s->prefix = before ? &chat->prefix : NULL;
    s->answer = !after ? NULL : is_last ? s->whole : &chat->answer;
    locate(s);
    if (s->first == NONE)
        return find_empty(s, span);
    span->begin = find_begin(s, after_last(s->whole, 0, s->first, 0), s->first);
    span->begin = span->begin > s->from ? span->begin : s->from;
    span->end = find_end(s);
    return true;
}

/* ---- whole conversations ----------------------------------------------------------------------------------------- */

/* True if bytes of [begin, end) stem from a message whose weight is 0. */
static bool is_excluded(const tarn__jinja_context *context, const tarn__rendering *r, size_t begin, size_t end)
{
    for (size_t i = 0; i < tarn__jinja_context_count(context); i++)
        if (!tarn__jinja_context_has_weight(context, i) && after_last(r, begin, end, origin_of(i)) > begin)
            return true;
    return false;
}

/* Spans of generation blocks. */
static bool add_blocks(const tarn__jinja_context *context, const tarn__rendering *r, tarn__loss_mask *mask)
{
    for (size_t at = 0, begin; at < r->text.count; at++) {
        for (begin = at; at < r->text.count && (origins_of(r)[at] & TARN__JINJA_GENERATION); at++) {
        }
        if (begin < at && !is_excluded(context, r, begin, at) && !tarn__loss_mask_span(mask, begin, at))
            return false;
    }
    return true;
}

/* A message of which the template prints nothing, though it says something or calls tools. Calls are an error: the
 * answer would be empty. For others there is a warning, since some templates have no place for them: Mistral's print a
 * system message only before a question that ends the conversation. An answer may be all thoughts, which templates
 * drop. */
static bool check_printed(tarn__chat *chat, const tarn__jinja_context *context, const tarn__rendering *r)
{
    bool printed[TARN__JINJA_MESSAGE + TARN__JINJA_MESSAGES] = {false};
    size_t count = tarn__jinja_context_count(context);
    for (size_t at = 0; at < r->text.count; at++)
        printed[origin_at(r, at)] = true;
    for (size_t i = 0; i < count && count <= TARN__JINJA_MESSAGES; i++) {
        bool is_blank = tarn__jinja_context_is_blank(context, i);
        if (printed[origin_of(i)])
            continue;
        if (is_blank && tarn__jinja_context_calls_tools(context, i))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: the template prints nothing of message %zu, which calls tools",
                               chat->name, i + 1);
        if (!is_blank && !chat->has_warned && !tarn__jinja_context_role(context, i, "assistant")) {
            tarn__log(TARN_LOG_WARNING, "%s: the template prints nothing of message %zu; does it know its role?",
                      chat->name, i + 1);
            chat->has_warned = true;
        }
    }
    return true;
}

bool tarn__chat_completions(tarn__chat *chat, tarn__jinja_context *context, const tarn__rendering *rendering,
                            tarn__loss_mask *mask)
{
    size_t count = tarn__jinja_context_count(context);
    if (!check_printed(chat, context, rendering))
        return false;
    if (tarn__jinja_has_generation(chat->program))
        return add_blocks(context, rendering, mask);
    bool good = tarn__chat_probe(chat);
    search s = {.chat = chat, .whole = rendering};
    for (size_t i = 0; good && i < count; i++) {
        tarn__span span = {0};
        if (!tarn__jinja_context_role(context, i, "assistant") || !tarn__jinja_context_has_weight(context, i))
            continue;
        s.message = i;
        good = find_answer(chat, context, &s, count, &span) && tarn__loss_mask_span(mask, span.begin, span.end);
        tarn__jinja_context_limit(context, count, false);
        s.from = good ? span.end : 0;
    }
    return good;
}

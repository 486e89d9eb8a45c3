/* chat.c: renders messages as the text, and the ids, that a model was trained on.
 *
 * The template's own tokens become ids where the vocabulary has them. Message contents stay text, whatever they look
 * like: a user who types <|im_end|> cannot end a turn. Results equal those of transformers' apply_chat_template(). */
#include "text/chat/chat.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/chat/loss_mask.h"

#define MAX_MESSAGES 1000000

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The output being written: text only, or ids and the text after the last token. */
typedef struct writer {
    const tarn_tokenizer *tokenizer;
    const tarn__chat_template *template;
    bool to_ids;
    tarn__buffer text, ids;
    tarn__encoder encoder;
    bool skips_spaces;     /* the token before absorbs whitespace after it (rstrip) */
    tarn__loss_mask *mask; /* NULL: no loss mask */
} writer;

/* Python's str.isspace(): White_Space and four control characters. */
static bool is_space(uint32_t code)
{
    return tarn__is_space(code) || (code >= 0x1C && code <= 0x1F);
}

/* The length of a text without trailing whitespace. */
static size_t spaces_before(const char *text, size_t length)
{
    while (length > 0) {
        size_t begin = length - 1;
        uint32_t code;
        while (begin > 0 && length - begin < 4 && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        if (tarn__utf8_decode(text + begin, length - begin, &code) != length - begin || !is_space(code))
            break;
        length = begin;
    }
    return length;
}

static void trim(const char **text, size_t *length)
{
    uint32_t code;
    *length = spaces_before(*text, *length);
    for (size_t size; (size = tarn__utf8_decode(*text, *length, &code)) != 0 && is_space(code); *length -= size)
        *text += size;
}

static bool put_part(writer *w, const char *text, size_t length)
{
    return tarn__buffer_add(&w->text, text, length, 1);
}

static bool put(writer *w, const char *text)
{
    return put_part(w, text, strlen(text));
}

static bool put_trimmed(writer *w, const char *text, bool trims)
{
    size_t length = strlen(text);
    if (trims)
        trim(&text, &length);
    return put_part(w, text, length);
}

/* Encodes the pending text and appends its ids, and their mask. */
static bool flush(writer *w)
{
    const char *text = w->text.data ? w->text.data : "";
    size_t length = w->text.count, from = 0;
    uint32_t code;
    for (size_t size;
         w->skips_spaces && (size = tarn__utf8_decode(text + from, length - from, &code)) != 0 && tarn__is_space(code);)
        from += size;
    w->text.count = 0;
    w->skips_spaces = false;
    size_t first = w->ids.count;
    bool good = from == length || tarn__tokenizer_append_section(w->tokenizer, &w->encoder, text + from, length - from,
                                                                 false, first > 0, &w->ids);
    return good && (!w->mask || tarn__loss_mask_section(w->mask, w->tokenizer, &w->encoder,
                                                        &(tarn__section){text, from, length, first}, &w->ids));
}

/* A completion begins or ends at this position of the pending text. */
static bool toggle_mask(writer *w)
{
    return !w->mask || tarn__loss_mask_toggle(w->mask, w->text.count);
}

static const tarn__added_token *find_token(const tarn_tokenizer *t, const char *text)
{
    const tarn__added_token *tokens = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (tokens[i].length == strlen(text) && memcmp(tokens[i].text, text, tokens[i].length) == 0)
            return &tokens[i];
    return NULL;
}

/* Writes a token of the template: its id if the vocabulary has it, else its text. */
static bool put_token(writer *w, const char *text)
{
    const tarn__added_token *token = w->to_ids ? find_token(w->tokenizer, text) : NULL;
    if (!token)
        return put(w, text);
    if (token->strip_left && w->text.count)
        w->text.count = spaces_before(w->text.data, w->text.count);
    if (!flush(w) || !tarn__ids_add(&w->ids, token->id) || (w->mask && !tarn__loss_mask_add_token(w->mask)))
        return false;
    w->skips_spaces = token->strip_right;
    return true;
}

/* Writes BOS or EOS. Raises an error if the tokenizer has none. */
static bool put_id(writer *w, int32_t id, const char *what)
{
    if (!tarn__vocab_has(&w->tokenizer->vocab, id))
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "the template has %s, but the tokenizer's files name none", what);
    size_t length;
    return put_token(w, tarn__vocab_bytes(&w->tokenizer->vocab, id, &length));
}

static bool put_bos(writer *w)
{
    return put_id(w, tarn_tokenizer_bos(w->tokenizer), "BOS");
}

static bool put_eos(writer *w)
{
    return put_id(w, tarn_tokenizer_eos(w->tokenizer), "EOS");
}

/* Writes a string of the template that contains a token, such as " [INST] ". */
static bool put_around(writer *w, const char *text, const char *token)
{
    const char *at = strstr(text, token);
    return put_part(w, text, (size_t)(at - text)) && put_token(w, token) && put(w, at + strlen(token));
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bool is_role(const tarn_chat_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

/* Checks that user and assistant alternate after the system message. */
static bool check_turns(const tarn_chat_message *messages, int count)
{
    if (count > 0 && is_role(&messages[0], "system"))
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "a 'system' message is out of place: in this model's template user and assistant take turns");
    for (int i = 0; i < count; i++)
        if (!is_role(&messages[i], i % 2 ? "assistant" : "user"))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "message %d after the system's has the role '%.40s'; in this model's template user and "
                               "assistant take turns",
                               i, messages[i].role);
    return true;
}

/* ---- ChatML ------------------------------------------------------------------------------------------------------ */

/* Writes a ChatML message. */
static bool put_turn(writer *w, const char *role, const char *content, bool trims)
{
    bool is_completion = strcmp(role, "assistant") == 0;
    return put_token(w, "<|im_start|>") && put(w, role) && put(w, "\n") && (!is_completion || toggle_mask(w)) &&
           put_trimmed(w, content, trims) && put_token(w, "<|im_end|>") && (!is_completion || toggle_mask(w)) &&
           put(w, "\n");
}

static const char *skip_newlines(const char *text)
{
    return text + strspn(text, "\n");
}

/* The length of a text without trailing newlines. */
static size_t without_newlines(const char *text, size_t length)
{
    while (length > 0 && text[length - 1] == '\n')
        length--;
    return length;
}

static const char *find_last(const char *text, size_t length, const char *part)
{
    const char *found = NULL;
    size_t size = strlen(part);
    for (size_t i = 0; i + size <= length; i++)
        if (memcmp(text + i, part, size) == 0)
            found = text + i;
    return found;
}

/* Writes a completion of a thinking model (Qwen3): <think> blocks are dropped except after the last question. The
 * splitting transcribes the template's content.split() and strip() calls. */
static bool put_thinking(writer *w, const char *content, bool is_after_question, bool is_last)
{
    const char *first = strstr(content, "</think>"), *last = find_last(content, strlen(content), "</think>");
    const char *thought = content, *reply = last ? skip_newlines(last + strlen("</think>")) : content;
    size_t length = first ? without_newlines(content, (size_t)(first - content)) : 0;
    const char *opening = first ? find_last(content, length, "<think>") : NULL;
    if (opening) {
        length -= (size_t)(opening + strlen("<think>") - content);
        thought = opening + strlen("<think>");
    }
    for (; length > 0 && *thought == '\n'; thought++)
        length--;
    bool shows = is_after_question && (is_last || length > 0);
    return put_token(w, "<|im_start|>") && put(w, "assistant\n") && toggle_mask(w) &&
           (!shows || (put_token(w, "<think>") && put(w, "\n") && put_part(w, thought, length) && put(w, "\n") &&
                       put_token(w, "</think>") && put(w, "\n\n"))) &&
           put(w, shows ? skip_newlines(reply) : reply) && put_token(w, "<|im_end|>") && toggle_mask(w) && put(w, "\n");
}

/* Writes ChatML. `question` is the last user message, or the last message if there is none. */
static bool put_chatml(writer *w, const tarn_chat_message *messages, int count)
{
    const tarn__chat_template *template = w->template;
    int question = count - 1;
    while (question > 0 && !is_role(&messages[question], "user"))
        question--;
    question = is_role(&messages[question], "user") ? question : count - 1;
    bool good = (!template->adds_bos || put_bos(w)) && (!template->has_default || is_role(&messages[0], "system") ||
                                                        put_turn(w, "system", template->system, false));
    for (int i = 0; good && i < count; i++)
        good = template->thinks && is_role(&messages[i], "assistant")
                   ? put_thinking(w, messages[i].content, i > question, i == count - 1)
                   : put_turn(w, messages[i].role, messages[i].content, template->trims);
    return good;
}

/* ---- Llama 2 and Mistral ----------------------------------------------------------------------------------------- */

/* Writes Llama 2's format: the system message is inside the first user message, and both are stripped together. */
static bool put_llama2(writer *w, const tarn_chat_message *messages, int count)
{
    const char *system = is_role(&messages[0], "system") ? messages[0].content : NULL;
    messages += system != NULL;
    count -= system != NULL;
    bool good = check_turns(messages, count);
    for (int i = 0; good && i < count; i++) {
        if (i % 2)
            good = toggle_mask(w) && put(w, " ") && put_trimmed(w, messages[i].content, true) && put(w, " ") &&
                   put_eos(w) && toggle_mask(w);
        else {
            char *both = NULL;
            size_t size = (i == 0 && system ? strlen(system) : 0) + strlen(messages[i].content) + 32;
            good = (both = tarn__alloc(size)) != NULL; /* both are stripped as one string */
            if (good)
                snprintf(both, size, "%s%s%s%s", i == 0 && system ? "<<SYS>>\n" : "", i == 0 && system ? system : "",
                         i == 0 && system ? "\n<</SYS>>\n\n" : "", messages[i].content);
            good = good && put_bos(w) && put_around(w, "[INST] ", "[INST]") && put_trimmed(w, both, true) &&
                   put_around(w, " [/INST]", "[/INST]");
            tarn__release(both, size);
        }
    }
    return good;
}

/* Writes Mistral's format, with the strings found in the template. */
static bool put_mistral(writer *w, const tarn_chat_message *messages, int count)
{
    const tarn__chat_template *template = w->template;
    const char *system = is_role(&messages[0], "system") && template->system_position != TARN__SYSTEM_UNSUPPORTED
                             ? messages[0].content
                             : NULL;
    messages += system != NULL;
    count -= system != NULL;
    bool good = check_turns(messages, count) && put_bos(w);
    for (int i = 0; good && i < count; i++) {
        bool is_here = system && i == (template->system_position == TARN__SYSTEM_FIRST ? 0 : count - 1);
        if (i % 2)
            good = toggle_mask(w) && put(w, template->before_completion) &&
                   put_trimmed(w, messages[i].content, template->trims) && put_eos(w) && toggle_mask(w) &&
                   put(w, template->after_completion);
        else
            good = put_around(w, template->before_user, "[INST]") && (!is_here || (put(w, system) && put(w, "\n\n"))) &&
                   put(w, messages[i].content) && put_around(w, template->after_user, "[/INST]");
    }
    return good;
}

/* ---- Llama 3 ----------------------------------------------------------------------------------------------------- */

/* Writes the header of a Llama 3 message. */
static bool put_header(writer *w, const char *role)
{
    return put_token(w, "<|start_header_id|>") && put(w, role) && put_token(w, "<|end_header_id|>") && put(w, "\n\n");
}

/* Writes the dates before a system message of Llama 3.1. Training data must not change from day to day: with a mask the
 * date is the fallback of Llama's own template. */
static bool put_dates(writer *w)
{
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char today[32];
    time_t seconds = time(NULL);
    struct tm now = {.tm_mday = 1};
    localtime_r(&seconds, &now);
    snprintf(today, sizeof(today), "%02d %s %d", now.tm_mday, months[now.tm_mon], now.tm_year + 1900);
    if (w->mask)
        snprintf(today, sizeof(today), "26 Jul 2024");
    return put(w, "Cutting Knowledge Date: December 2023\nToday Date: ") &&
           put(w, w->template->date[0] ? w->template->date : today) && put(w, "\n\n");
}

/* Writes Llama 3's format. With dates (3.1) there is always a system message, and the first message may supply its
 * text. */
static bool put_llama3(writer *w, const tarn_chat_message *messages, int count)
{
    bool has_system = w->template->has_dates && is_role(&messages[0], "system"), good = put_bos(w);
    if (w->template->has_dates)
        good = good && put_header(w, "system") && put_dates(w) &&
               (!has_system || put_trimmed(w, messages[0].content, true)) && put_token(w, "<|eot_id|>");
    for (int i = has_system; good && i < count; i++) {
        bool is_completion = is_role(&messages[i], "assistant");
        good = put_header(w, messages[i].role) && (!is_completion || toggle_mask(w)) &&
               put_trimmed(w, messages[i].content, true) && put_token(w, "<|eot_id|>") &&
               (!is_completion || toggle_mask(w));
    }
    return good;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* Writes all messages and, if asked, the generation prompt. Llama 2 and Mistral have none. */
static bool put_all(writer *w, const tarn_chat_message *messages, int count, bool add_generation_prompt)
{
    /* no completion follows in training data */
    bool prompts = add_generation_prompt || (w->template->always_prompts && !w->mask);
    switch (w->template->kind) {
    case TARN__CHATML:
        return put_chatml(w, messages, count) && (!prompts || (put_token(w, "<|im_start|>") && put(w, "assistant\n")));
    case TARN__CHAT_LLAMA3: return put_llama3(w, messages, count) && (!prompts || put_header(w, "assistant"));
    case TARN__CHAT_LLAMA2: return put_llama2(w, messages, count);
    case TARN__CHAT_MISTRAL: break;
    }
    return put_mistral(w, messages, count);
}

/* Recognizes the tokenizer's template. False with an error. */
static bool read_template(const char *function, const tarn_tokenizer *tokenizer, tarn__chat_template *template)
{
    if (tarn_failed())
        return false;
    if (!tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer is NULL", function);
    if (!tokenizer->chat)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: the model has no chat template (in tokenizer_config.json, chat_template.jinja or its "
                           "GGUF file); tarn_tokenizer_set_chat() (--template) sets one",
                           function);
    return tarn__chat_template_match(function, tokenizer->chat, template);
}

/* Checks that there are messages, each with a role and a content. */
static bool check(const char *function, const tarn_chat_message *messages, int count)
{
    if (!messages || count < 1 || count > MAX_MESSAGES)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: at least one message is required", function);
    for (int i = 0; i < count; i++)
        if (!messages[i].role || !messages[i].content || !messages[i].role[0])
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: message %d has no role or no content", function, i);
    return true;
}

/* Checks the arguments and writes the messages. `length` is the caller's result pointer. */
static bool write(writer *w, const char *function, const tarn_chat_message *messages, int count,
                  bool add_generation_prompt, void *length)
{
    if (!length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result pointer is NULL", function);
    if (!check(function, messages, count))
        return false;
    return (put_all(w, messages, count, add_generation_prompt) && (!w->to_ids || flush(w))) ||
           tarn__raise_within(function);
}

static void free_writer(writer *w)
{
    tarn__buffer_free(&w->text, 1);
    tarn__buffer_free(&w->ids, sizeof(int32_t));
    tarn__encoder_free(&w->encoder);
}

char *tarn_chat_render(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                       bool add_generation_prompt, size_t *length)
{
    tarn__chat_template template;
    writer w = {tokenizer, &template, false, {0}, {0}, {0}, false, NULL};
    char *result = NULL;
    if (length)
        *length = 0;
    if (read_template("chat_render", tokenizer, &template) &&
        write(&w, "chat_render", messages, count, add_generation_prompt, length) &&
        (result = tarn__result_new(w.text.count + 1)) != NULL) {
        if (w.text.count)
            memcpy(result, w.text.data, w.text.count);
        result[w.text.count] = 0;
        *length = w.text.count;
    }
    free_writer(&w);
    return result;
}

int32_t *tarn_chat_encode(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                          bool add_generation_prompt, int64_t *id_count)
{
    tarn__chat_template template;
    writer w = {tokenizer, &template, true, {0}, {0}, {0}, false, NULL};
    int32_t *result = NULL;
    if (id_count)
        *id_count = 0;
    if (read_template("chat_encode", tokenizer, &template) &&
        write(&w, "chat_encode", messages, count, add_generation_prompt, id_count) &&
        (result = tarn__result_new(w.ids.count * sizeof(int32_t))) != NULL) {
        if (w.ids.count)
            memcpy(result, w.ids.data, w.ids.count * sizeof(int32_t));
        *id_count = (int64_t)w.ids.count;
    }
    free_writer(&w);
    return result;
}

/* ---- loss masks -------------------------------------------------------------------------------------------------- */

/* Moves the buffers back to the mask encoder, which reuses them for the next document. */
static bool finish_masked(tarn__mask_encoder *m, writer *w, bool good)
{
    m->encoder = w->encoder;
    m->text = w->text;
    m->ids = w->ids;
    return good;
}

static writer mask_writer(tarn__mask_encoder *m)
{
    m->text.count = m->ids.count = 0;
    tarn__loss_mask_clear(&m->mask);
    return (writer){m->tokenizer, &m->template, true, m->text, m->ids, m->encoder, false, &m->mask};
}

bool tarn__mask_encoder_chat(tarn__mask_encoder *m, const tarn_chat_message *messages, int count)
{
    writer w = mask_writer(m);
    return finish_masked(m, &w, put_all(&w, messages, count, false) && flush(&w));
}

bool tarn__mask_encoder_text(tarn__mask_encoder *m, const char *prompt, const char *before_completion)
{
    writer w = mask_writer(m);
    int32_t end = tarn_tokenizer_eos(m->tokenizer);
    bool good = end >= 0 || tarn__raise(TARN_ERROR_UNSUPPORTED,
                                        "the tokenizer has no EOS token: the model could not learn to stop");
    good = good && put(&w, prompt) && toggle_mask(&w) && put(&w, before_completion) && flush(&w) &&
           tarn__ids_add(&w.ids, end) && tarn__loss_mask_add_token(&m->mask) &&
           tarn__loss_mask_begin(&m->mask, &w.ids, &m->tokenizer->before);
    return finish_masked(m, &w, good);
}

bool tarn__mask_encoder_set_template(tarn__mask_encoder *m, const char *function, const char *chat)
{
    m->has_template = tarn__chat_template_match(function, chat, &m->template);
    return m->has_template;
}

void tarn__mask_encoder_free(tarn__mask_encoder *m)
{
    tarn__buffer_free(&m->text, 1);
    tarn__buffer_free(&m->ids, sizeof(int32_t));
    tarn__encoder_free(&m->encoder);
    tarn__loss_mask_free(&m->mask);
}

const char *tarn_chat_name(const tarn_tokenizer *tokenizer)
{
    static const char *const names[] = {"chatml", "llama2", "llama3", "mistral"};
    tarn__chat_template template;
    return read_template("chat_name", tokenizer, &template) ? names[template.kind] : NULL;
}

/* ChatML and Llama 3 end a turn with a token of their own; the others with EOS. */
int32_t tarn_chat_eot(const tarn_tokenizer *tokenizer)
{
    tarn__chat_template template;
    if (!read_template("chat_eot", tokenizer, &template))
        return -1;
    const char *name = template.kind == TARN__CHATML        ? "<|im_end|>"
                       : template.kind == TARN__CHAT_LLAMA3 ? "<|eot_id|>"
                                                            : NULL;
    int32_t id = name ? tarn_tokenizer_find(tokenizer, name, strlen(name)) : -1;
    return id >= 0 ? id : tarn_tokenizer_eos(tokenizer);
}

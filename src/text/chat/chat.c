/* chat.c: conversations rendered and encoded by the model's chat template, with the variables and the results of
 * transformers' apply_chat_template(). Errors of templates are raised without a function's name, which the public
 * functions put before them; a failure leaves nothing behind but the error. */
#include "text/chat/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/chat/loss_mask.h"

#define MAX_MESSAGES 1000000

/* 26 July 2024: the date that templates see in training, so that a run does not depend on its day. */
const struct tm tarn__chat_training_day = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_wday = 5, .tm_yday = 207};

/* ---- renderings -------------------------------------------------------------------------------------------------- */

void tarn__rendering_clear(tarn__rendering *r)
{
    r->text.count = r->masks.origins.count = 0;
}

void tarn__rendering_free(tarn__rendering *r)
{
    tarn__buffer_free(&r->text, 1);
    tarn__buffer_free(&r->masks.origins, 1);
}

/* The text of the last rendering is dropped first. */
bool tarn__chat_render(const tarn__chat *chat, const tarn__jinja_context *context, tarn__rendering *rendering)
{
    tarn__rendering_clear(rendering);
    return tarn__jinja_render(chat->program, context, &rendering->text, &rendering->masks);
}

/* ---- templates --------------------------------------------------------------------------------------------------- */

/* The source may go afterwards; the tokenizer is borrowed. False with an error; closing is allowed then. */
bool tarn__chat_open(tarn__chat *chat, const tarn_tokenizer *tokenizer, const char *name, const char *source)
{
    *chat = (tarn__chat){.tokenizer = tokenizer, .stop = -1};
    bool is_own = strcmp(name, "model") == 0;
    snprintf(chat->name, sizeof(chat->name), is_own ? "chat template" : "chat template '%.40s'", name);
    chat->program = tarn__jinja_compile("", chat->name, source, strlen(source));
    return chat->program != NULL;
}

void tarn__chat_close(tarn__chat *chat)
{
    tarn__jinja_program_free(chat->program);
    tarn__buffer_free(&chat->end, 1);
    tarn__buffer_free(&chat->prompt, 1);
    tarn__rendering_free(&chat->prefix);
    tarn__rendering_free(&chat->answer);
    *chat = (tarn__chat){0};
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* Sets a token's variable; without the token it stays undefined. */
static bool set_token(tarn__jinja_context *context, const tarn_tokenizer *t, const char *name, int32_t id)
{
    size_t length;
    if (!tarn__vocab_has(&t->vocab, id))
        return true;
    const char *text = tarn__vocab_bytes(&t->vocab, id, &length);
    return tarn__jinja_context_set(context, name, text, length);
}

/* True for the variables of a conversation, which a token must not replace. */
static bool is_own_name(const char *name)
{
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(own[i], name) == 0)
            return true;
    return false;
}

/* Sets the tokens that transformers sets: those that the files name, then BOS, EOS and the unknown token where they do
 * not. A class without defaults has no unknown token but that of its config. */
static bool set_tokens(tarn__jinja_context *context, const tarn_tokenizer *t)
{
    const tarn__special_token *tokens = (const tarn__special_token *)(const void *)t->special.data;
    bool good =
        (tarn__tokenizer_special(t, "bos_token") || set_token(context, t, "bos_token", tarn_tokenizer_bos(t))) &&
        (tarn__tokenizer_special(t, "eos_token") || set_token(context, t, "eos_token", tarn_tokenizer_eos(t))) &&
        (tarn__tokenizer_special(t, "unk_token") || t->is_generic ||
         set_token(context, t, "unk_token", tarn__tokenizer_unknown(t)));
    for (size_t i = 0; good && i < t->special.count; i++)
        good = is_own_name(tokens[i].name) ||
               tarn__jinja_context_set(context, tokens[i].name, tokens[i].text, strlen(tokens[i].text));
    return good;
}

tarn__jinja_context *tarn__chat_context(const tarn__chat *chat, const tarn_chat_message *messages, int count,
                                        bool add_generation_prompt)
{
    tarn__jinja_context *context = tarn__jinja_context_messages("", messages, count, add_generation_prompt);
    if (context && set_tokens(context, chat->tokenizer))
        return context;
    tarn__jinja_context_free(context);
    return NULL;
}

/* Checks that there are messages, each an object with a role. */
static bool check_messages(const tarn__jinja_context *context)
{
    size_t count = tarn__jinja_context_count(context);
    if (count < 1 || count > MAX_MESSAGES)
        return tarn__raise(TARN_ERROR_FORMAT, "messages must be an array of 1 to %d objects", MAX_MESSAGES);
    for (size_t i = 0; i < count; i++)
        if (!tarn__jinja_context_role(context, i, NULL))
            return tarn__raise(TARN_ERROR_FORMAT, "message %zu is not an object with a string \"role\"", i + 1);
    return true;
}

/* Without a text the variable keeps its value. */
static bool set_json(tarn__jinja_context *context, const char *name, const char *text)
{
    return !text || !text[0] || tarn__jinja_context_set_json("", context, name, text, strlen(text));
}

/* Variables first: messages, tools and documents of the call's own replace those of that name. */
tarn__jinja_context *tarn__chat_context_json(const tarn__chat *chat, const tarn__chat_json *json)
{
    static const tarn_chat_message none[1];
    tarn__jinja_context *context = tarn__jinja_context_messages("", none, 0, json->add_generation_prompt);
    bool good = context && set_tokens(context, chat->tokenizer) && set_json(context, NULL, json->variables) &&
                tarn__jinja_context_set_json("", context, "messages", json->messages, json->length) &&
                set_json(context, "tools", json->tools) && set_json(context, "documents", json->documents) &&
                check_messages(context) && tarn__jinja_context_prepare(context);
    if (good)
        return context;
    tarn__jinja_context_free(context);
    return NULL;
}

/* ---- public functions -------------------------------------------------------------------------------------------- */

/* "tool_use" is the name that transformers prefers for calls with tools. Borrowed; NULL: none. */
const char *tarn__chat_template_of(const tarn_tokenizer *tokenizer, bool has_tools)
{
    const tarn__chat_source *tools = has_tools ? tarn__tokenizer_chat(tokenizer, "tool_use") : NULL;
    return tools ? tools->text : tokenizer->chat;
}

/* Compiles the tokenizer's template. False with an error. */
static bool open_own(tarn__chat *chat, const char *function, const tarn_tokenizer *tokenizer, bool has_tools)
{
    *chat = (tarn__chat){0};
    if (tarn_failed())
        return false;
    if (!tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer is NULL", function);
    const char *source = tarn__chat_template_of(tokenizer, has_tools);
    if (!source && tokenizer->chats.count)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: the model has several chat templates but no default; tarn_tokenizer_set_chat() "
                           "(--template) chooses one, such as '%s'",
                           function, ((const tarn__chat_source *)(const void *)tokenizer->chats.data)->name);
    if (!source)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: the model has no chat template (in tokenizer_config.json, chat_template.jinja or its "
                           "GGUF file); tarn_tokenizer_set_chat() (--template) sets one",
                           function);
    return tarn__chat_open(chat, tokenizer, tarn__chat_template_name(source), source) || tarn__raise_within(function);
}

/* Checks that there are messages, each with a role and a content. */
static bool check(const char *function, const tarn_chat_message *messages, int count, const void *result)
{
    if (!result)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result pointer is NULL", function);
    if (!messages || count < 1 || count > MAX_MESSAGES)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: at least one message is required", function);
    for (int i = 0; i < count; i++)
        if (!messages[i].role || !messages[i].content || !messages[i].role[0])
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: message %d has no role or no content", function, i);
    return true;
}

/* A copy of bytes, with a 0 after them, for the caller. NULL with an error. */
static void *result_of(const tarn__buffer *from, size_t element)
{
    size_t bytes = from->count * element;
    char *result = tarn__result_new(bytes + 1);
    if (result && bytes)
        memcpy(result, from->data, bytes);
    if (result)
        result[bytes] = 0;
    return result;
}

/* A conversation on its way from a context to text or ids. */
typedef struct passage {
    tarn__chat chat;
    tarn__jinja_context *context;
    tarn__rendering rendering;
} passage;

static bool render(passage *p, const char *function)
{
    return (p->context && tarn__chat_render(&p->chat, p->context, &p->rendering)) || tarn__raise_within(function);
}

static void free_passage(passage *p)
{
    tarn__jinja_context_free(p->context);
    tarn__rendering_free(&p->rendering);
    tarn__chat_close(&p->chat);
}

/* Belongs to the caller. */
static char *text_of(const passage *p, size_t *length)
{
    char *result = result_of(&p->rendering.text, 1);
    *length = result ? p->rendering.text.count : 0;
    return result;
}

/* The ids, and the mask's flags unless NULL. */
static int32_t *ids_of(const passage *p, const char *function, tarn__loss_mask *mask, int64_t *count)
{
    tarn__encoder encoder = {0};
    tarn__buffer ids = {0};
    int32_t *result = NULL;
    if (!tarn__chat_encode(p->chat.tokenizer, &encoder, &p->rendering, mask, &ids))
        tarn__raise_within(function);
    else
        result = result_of(&ids, sizeof(int32_t));
    *count = result ? (int64_t)ids.count : 0;
    tarn__buffer_free(&ids, sizeof(int32_t));
    tarn__encoder_free(&encoder);
    return result;
}

char *tarn_chat_render(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                       bool add_generation_prompt, size_t *length)
{
    passage p = {0};
    char *result = NULL;
    if (length)
        *length = 0;
    if (open_own(&p.chat, "chat_render", tokenizer, false) && check("chat_render", messages, count, length)) {
        p.context = tarn__chat_context(&p.chat, messages, count, add_generation_prompt);
        result = render(&p, "chat_render") ? text_of(&p, length) : NULL;
    }
    free_passage(&p);
    return result;
}

int32_t *tarn_chat_encode(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                          bool add_generation_prompt, int64_t *id_count)
{
    passage p = {0};
    int32_t *result = NULL;
    if (id_count)
        *id_count = 0;
    if (open_own(&p.chat, "chat_encode", tokenizer, false) && check("chat_encode", messages, count, id_count)) {
        p.context = tarn__chat_context(&p.chat, messages, count, add_generation_prompt);
        result = render(&p, "chat_encode") ? ids_of(&p, "chat_encode", NULL, id_count) : NULL;
    }
    free_passage(&p);
    return result;
}

/* ---- messages in JSON -------------------------------------------------------------------------------------------- */

/* Opens the template and makes the context. False with an error. */
static bool open_json(passage *p, const char *function, const tarn_tokenizer *tokenizer, const tarn__chat_json *json,
                      const void *result)
{
    if (!open_own(&p->chat, function, tokenizer, json->tools && json->tools[0]))
        return false;
    if (!json->messages || !result)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is NULL", function,
                           json->messages ? "the result pointer" : "messages");
    p->context = tarn__chat_context_json(&p->chat, json);
    return p->context || tarn__raise_within(function);
}

/* The options that this version knows, with the messages. */
static tarn__chat_json json_of(const char *messages, size_t length, const tarn_chat_options *options,
                               size_t options_size)
{
    tarn_chat_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    return (tarn__chat_json){.messages = messages,
                             .length = length,
                             .tools = o.tools,
                             .documents = o.documents,
                             .variables = o.variables,
                             .add_generation_prompt = o.add_generation_prompt};
}

char *tarn_chat_render_json_sized(const tarn_tokenizer *tokenizer, const char *messages, size_t length,
                                  const tarn_chat_options *options, size_t options_size, size_t *result_length)
{
    passage p = {0};
    const tarn__chat_json json = json_of(messages, length, options, options_size);
    if (result_length)
        *result_length = 0;
    bool good = open_json(&p, "chat_render_json", tokenizer, &json, result_length) && render(&p, "chat_render_json");
    char *result = good ? text_of(&p, result_length) : NULL;
    free_passage(&p);
    return result;
}

static bool find_completions(passage *p, tarn__loss_mask *mask)
{
    return tarn__chat_completions(&p->chat, p->context, &p->rendering, mask) || tarn__raise_within("chat_encode_json");
}

int32_t *tarn_chat_encode_json_sized(const tarn_tokenizer *tokenizer, const char *messages, size_t length,
                                     const tarn_chat_options *options, size_t options_size, uint8_t **loss_mask,
                                     int64_t *id_count)
{
    static const char function[] = "chat_encode_json";
    passage p = {0};
    tarn__loss_mask mask = {0};
    int32_t *result = NULL;
    const tarn__chat_json json = json_of(messages, length, options, options_size);
    if (id_count)
        *id_count = 0;
    if (loss_mask)
        *loss_mask = NULL;
    bool good = open_json(&p, function, tokenizer, &json, id_count);
    if (good && loss_mask) {
        tarn__jinja_context_set_time(p.context, &tarn__chat_training_day);
        good =
            !json.add_generation_prompt ||
            tarn__raise(TARN_ERROR_ARGUMENT, "%s: a loss mask and add_generation_prompt exclude each other", function);
    }
    if (good && render(&p, function) && (!loss_mask || find_completions(&p, &mask)))
        result = ids_of(&p, function, loss_mask ? &mask : NULL, id_count);
    if (result && loss_mask && !(*loss_mask = result_of(&mask.flags, 1))) {
        tarn_tokenizer_release(result);
        result = NULL;
        *id_count = 0;
    }
    tarn__loss_mask_free(&mask);
    free_passage(&p);
    return result;
}

/* ---- about a template -------------------------------------------------------------------------------------------- */

/* Compiled too, so that a template that cannot be run has no name. */
const char *tarn_chat_name(const tarn_tokenizer *tokenizer)
{
    tarn__chat chat;
    const char *name = NULL;
    if (open_own(&chat, "chat_name", tokenizer, false))
        name = tarn__chat_template_name(tokenizer->chat);
    tarn__chat_close(&chat);
    return name;
}

/* The token by which the template ends a message of the assistant, found by rendering one (completions.c). */
int32_t tarn_chat_eot(const tarn_tokenizer *tokenizer)
{
    tarn__chat chat;
    int32_t id = -1;
    if (open_own(&chat, "chat_eot", tokenizer, false)) {
        if (!tarn__chat_probe(&chat))
            tarn__raise_within("chat_eot");
        else
            id = chat.stop >= 0 ? chat.stop : tarn_tokenizer_eos(tokenizer);
    }
    tarn__chat_close(&chat);
    return id;
}

/* messages.c: the messages of a context: what transformers does to them before a template sees them, and views of the
 * first few, for renderings of prefixes. Contexts of any JSON are possible, so nothing about the messages' form is
 * assumed: a question about a message that is no dict is answered as for an empty one. */
#include <string.h>

#include "text/jinja/value.h"

/* The list of messages; NULL: none. */
static tarn__jinja_list *messages_of(const tarn__jinja_context *context)
{
    const tarn__jinja_value *v = tarn__jinja_dict_find_text(&context->variables, "messages", 8);
    return v && v->kind == TARN__JINJA_LIST ? v->as.list : NULL;
}

size_t tarn__jinja_context_count(const tarn__jinja_context *context)
{
    const tarn__jinja_list *messages = messages_of(context);
    return messages ? messages->count : 0;
}

/* Only the list's count changes: the items beyond it stay where they are, so a later call can raise it again. A context
 * without add_generation_prompt gets none. */
void tarn__jinja_context_limit(tarn__jinja_context *context, size_t count, bool add_generation_prompt)
{
    tarn__jinja_list *messages = messages_of(context);
    tarn__jinja_value *prompts = (tarn__jinja_value *)(uintptr_t)tarn__jinja_dict_find_text(
        &context->variables, "add_generation_prompt", strlen("add_generation_prompt"));
    if (messages)
        messages->count = count;
    if (prompts)
        *prompts = tarn__jinja_bool(add_generation_prompt);
}

/* True for a text of whitespace only, and for anything but text. */
static bool is_blank(tarn__jinja_value v)
{
    bool blank = true;
    uint32_t code;
    for (size_t at = 0, size; v.kind == TARN__JINJA_STRING && blank && at < v.as.string->length; at += size) {
        size = tarn__jinja_decode(v.as.string->text + at, v.as.string->length - at, &code);
        blank = tarn__jinja_is_space(code);
    }
    /* The content of OpenAI's format is a string or a list of parts, {"type": "text", "text": …} or plain strings; a
     * part without text, such as an image, is blank. */
    for (size_t i = 0; v.kind == TARN__JINJA_LIST && blank && i < v.as.list->count; i++) {
        const tarn__jinja_value *part = &v.as.list->items[i];
        const tarn__jinja_value *text =
            part->kind == TARN__JINJA_DICT ? tarn__jinja_dict_find_text(part->as.dict, "text", 4) : part;
        blank = !text || text->kind != TARN__JINJA_STRING || is_blank(*text);
    }
    return blank;
}

/* A member of a message; NULL: none. */
static const tarn__jinja_value *member_of(const tarn__jinja_context *context, size_t index, const char *name)
{
    const tarn__jinja_list *messages = messages_of(context);
    bool is_there = messages && index < messages->count && messages->items[index].kind == TARN__JINJA_DICT;
    return is_there ? tarn__jinja_dict_find_text(messages->items[index].as.dict, name, strlen(name)) : NULL;
}

bool tarn__jinja_context_role(const tarn__jinja_context *context, size_t index, const char *role)
{
    const tarn__jinja_value *v = member_of(context, index, "role");
    return v && v->kind == TARN__JINJA_STRING && (!role || tarn__jinja_is_text(*v, role));
}

bool tarn__jinja_context_is_blank(const tarn__jinja_context *context, size_t index)
{
    const tarn__jinja_value *content = member_of(context, index, "content");
    return !content || is_blank(*content);
}

bool tarn__jinja_context_calls_tools(const tarn__jinja_context *context, size_t index)
{
    const tarn__jinja_value *calls = member_of(context, index, "tool_calls");
    return calls && calls->kind == TARN__JINJA_LIST && calls->as.list->count > 0;
}

/* Trainers of other projects leave a message out of the loss by "weight": 0; without the member it counts. */
bool tarn__jinja_context_has_weight(const tarn__jinja_context *context, size_t index)
{
    const tarn__jinja_value *weight = member_of(context, index, "weight");
    return !weight || !tarn__jinja_is_number(*weight) || tarn__jinja_number_of(*weight) != 0;
}

/* ---- as transformers passes them --------------------------------------------------------------------------------- */

/* What a message thinks, under the first of its three names; NULL: nothing. */
static const tarn__jinja_value *reasoning_of(const tarn__jinja_dict *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < 3; i++) {
        const tarn__jinja_value *v = tarn__jinja_dict_find_text(message, names[i], strlen(names[i]));
        if (v && v->kind != TARN__JINJA_NONE)
            return v;
    }
    return NULL;
}

/* The message without members that are null, and with its reasoning under both names that templates read. */
static tarn__jinja_value prepared(tarn__jinja_run *r, const tarn__jinja_dict *message)
{
    tarn__jinja_value result = tarn__jinja_dict_new(r);
    const tarn__jinja_value *reasoning = reasoning_of(message);
    if (reasoning)
        tarn__jinja_dict_set(r, result.as.dict, TARN__JINJA_TEXT("thinking"), *reasoning);
    for (size_t i = 0; i < message->count; i++)
        if (message->pairs[i].value.kind != TARN__JINJA_NONE)
            tarn__jinja_dict_set(r, result.as.dict, message->pairs[i].key, message->pairs[i].value);
    if (reasoning)
        tarn__jinja_dict_set(r, result.as.dict, TARN__JINJA_TEXT("reasoning_content"), *reasoning);
    return result;
}

/* A prepared message replaces the old one in the list; running it twice changes nothing more. */
static void prepare_all(tarn__jinja_run *r, const tarn__jinja_list *messages)
{
    for (size_t i = 0; messages && i < messages->count; i++)
        if (messages->items[i].kind == TARN__JINJA_DICT)
            messages->items[i] = prepared(r, messages->items[i].as.dict);
}

bool tarn__jinja_context_prepare(tarn__jinja_context *context)
{
    jmp_buf escape;
    context->arena.escape = &escape;
    if (setjmp(escape))
        return false;
    tarn__jinja_run r = {.function = "", .name = "messages", .code = TARN_ERROR_FORMAT, .arena = &context->arena};
    prepare_all(&r, messages_of(context));
    return true;
}

/* context.c: the variables of a rendering, from JSON or from messages. The reader is our own: a context is built in an
 * arena, and it exists without jansson.
 *
 * Every string of a context is marked with its origin once, when its variable is set; concatenation and slicing carry
 * the marks along, so that the tokenizer can tell a template's special tokens from the same characters in a message. A
 * context grows until it is freed: a variable that is set again leaves its old value in the arena. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number_format.h"
#include "base/utf8.h"
#include "text/jinja/value.h"

/* A position in JSON text; errors name the byte. */
typedef struct reader {
    tarn__jinja_run *r;
    const char *text;
    size_t at, length;
} reader;

static tarn__jinja_value read_value(reader *in);

static _Noreturn void fail(const reader *in, const char *what)
{
    tarn__jinja_fail(in->r, "byte %zu: %s", in->at, what);
}

/* JSON's whitespace, not Unicode's. The test for 0 keeps strchr() from finding its own terminator. */
static void skip_space(reader *in)
{
    while (in->at < in->length && in->text[in->at] && strchr(" \t\r\n", in->text[in->at]))
        in->at++;
}

/* Consumes one character after whitespace, if it is `c`. */
static bool skip(reader *in, char c)
{
    skip_space(in);
    bool found = in->at < in->length && in->text[in->at] == c;
    in->at += found;
    return found;
}

static uint32_t read_hex(reader *in)
{
    uint32_t code = 0;
    for (int i = 0; i < 4; i++, in->at++) {
        char c = in->at < in->length ? in->text[in->at] : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            fail(in, "an escape of a string is incomplete");
        code = code * 16 + (uint32_t)digit;
    }
    return code;
}

/* The escape after a backslash. A surrogate without its other half becomes U+FFFD. */
static void read_escape(reader *in, tarn__jinja_builder *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = in->at < in->length ? in->text[in->at++] : 0;
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        tarn__jinja_build(in->r, b, to + (found - from), 1, NULL);
        return;
    }
    if (c != 'u')
        fail(in, "an escape of a string is unknown");
    uint32_t code = read_hex(in);
    /* A character above U+FFFF is a pair of surrogates: \ud83d\ude00. If the second escape is no low surrogate, the
     * reader returns to it and reads it as an escape of its own. */
    bool has_pair = in->length - in->at >= 6 && in->text[in->at] == '\\' && in->text[in->at + 1] == 'u';
    if (code >= 0xD800 && code < 0xDC00 && has_pair) {
        size_t back = in->at;
        in->at += 2;
        uint32_t low = read_hex(in);
        if (low >= 0xDC00 && low < 0xE000)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else
            in->at = back;
    }
    tarn__jinja_build_code(in->r, b, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code, 0);
}

/* Control characters are taken as they are, which JSON forbids and Python's reader refuses: messages come from many
 * writers. */
static tarn__jinja_value read_string(reader *in)
{
    tarn__jinja_builder b = {0};
    if (!skip(in, '"'))
        fail(in, "a string is expected");
    for (;;) {
        size_t end = in->at;
        while (end < in->length && in->text[end] != '"' && in->text[end] != '\\')
            end++;
        if (end >= in->length)
            fail(in, "a string does not end");
        if (tarn__utf8_prefix(in->text + in->at, end - in->at) != end - in->at)
            fail(in, "a string is not valid UTF-8");
        tarn__jinja_build(in->r, &b, in->text + in->at, end - in->at, NULL);
        in->at = end + 1;
        if (in->text[end] == '"')
            return tarn__jinja_built(in->r, &b);
        read_escape(in, &b);
    }
}

/* Integers that fit 64 bits are exact; larger ones, and all with a point or exponent, become floats. */
static tarn__jinja_value read_number(reader *in)
{
    char text[400];
    size_t length = 0;
    bool is_float = false;
    while (in->at < in->length && in->text[in->at] && strchr("+-0123456789.eE", in->text[in->at]) &&
           length + 1 < sizeof(text)) {
        is_float |= strchr(".eE", in->text[in->at]) != NULL;
        text[length++] = in->text[in->at++];
    }
    text[length] = 0;
    if (length == 0 || !strpbrk(text, "0123456789"))
        fail(in, "a value is expected");
    int64_t number = 0;
    /* Added up with its sign, as the smallest integer has no positive counterpart. A sign inside is found here. */
    for (size_t i = text[0] == '-'; i < length && !is_float; i++) {
        int digit = text[0] == '-' ? '0' - text[i] : text[i] - '0';
        if (text[i] < '0' || text[i] > '9')
            fail(in, "a number is malformed");
        is_float = __builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, digit, &number);
    }
    return is_float ? tarn__jinja_float(tarn__number_parse(text)) : tarn__jinja_int(number);
}

/* `count` tells whether an item was read, so a comma is demanded between items and refused before the bracket, where
 * read_value() finds no value. */
static tarn__jinja_value read_list(reader *in)
{
    tarn__jinja_value list = tarn__jinja_list_new(in->r, TARN__JINJA_LIST, 0);
    in->at++;
    while (!skip(in, ']')) {
        if (list.as.list->count && !skip(in, ','))
            fail(in, "a comma is expected");
        tarn__jinja_append(in->r, list.as.list, read_value(in));
    }
    return list;
}

/* A key that occurs twice has the last value, at the place of the first, as in Python. */
static tarn__jinja_value read_dict(reader *in)
{
    tarn__jinja_value dict = tarn__jinja_dict_new(in->r);
    in->at++;
    while (!skip(in, '}')) {
        if (dict.as.dict->count && !skip(in, ','))
            fail(in, "a comma is expected");
        tarn__jinja_value key = read_string(in);
        if (!skip(in, ':'))
            fail(in, "a colon is expected");
        tarn__jinja_dict_set(in->r, dict.as.dict, key, read_value(in));
    }
    return dict;
}

/* Whatever is no word is a number, or an error. */
static tarn__jinja_value read_word(reader *in)
{
    static const char *const words[] = {"null", "false", "true"};
    for (int i = 0; i < 3; i++)
        if (in->length - in->at >= strlen(words[i]) && memcmp(in->text + in->at, words[i], strlen(words[i])) == 0) {
            in->at += strlen(words[i]);
            return i == 0 ? tarn__jinja_none() : tarn__jinja_bool(i == 2);
        }
    return read_number(in);
}

/* Nesting is bounded by the run's depth, as everywhere. */
static tarn__jinja_value read_value(reader *in)
{
    tarn__jinja_value v;
    tarn__jinja_enter(in->r);
    skip_space(in);
    char c = in->at < in->length ? in->text[in->at] : 0;
    switch (c) {
    case '"': v = read_string(in); break;
    case '[': v = read_list(in); break;
    case '{': v = read_dict(in); break;
    default: v = read_word(in); break;
    }
    tarn__jinja_leave(in->r);
    return v;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

/* Marks all strings of a value, keys included. */
static void mark(tarn__jinja_run *r, tarn__jinja_value *v, uint8_t origin)
{
    if (v->kind == TARN__JINJA_STRING && v->as.string->length) {
        /* A copy: strings are immutable, and the same one may be shared. */
        tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
        uint8_t *origins = tarn__jinja_alloc(r->arena, v->as.string->length, 1);
        memset(origins, origin, v->as.string->length);
        *s = *v->as.string;
        s->origin = origins;
        v->as.string = s;
    }
    for (size_t i = 0; v->kind == TARN__JINJA_LIST && i < v->as.list->count; i++)
        mark(r, &v->as.list->items[i], origin);
    for (size_t i = 0; v->kind == TARN__JINJA_DICT && i < v->as.dict->count; i++) {
        mark(r, &v->as.dict->pairs[i].key, origin);
        mark(r, &v->as.dict->pairs[i].value, origin);
    }
}

/* True for letters, digits, _ and -: templates build tokens of roles, as in '<|' + role + '|>'. */
static bool is_identifier(const tarn__jinja_string *s)
{
    for (size_t i = 0; i < s->length; i++) {
        char c = s->text[i];
        if (!(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z') && c != '_' && c != '-')
            return false;
    }
    return true;
}

/* Marks what a message says; its keys are the template's, and so is its role. */
static void mark_message(tarn__jinja_run *r, const tarn__jinja_dict *message, size_t index)
{
    for (size_t i = 0; i < message->count; i++) {
        tarn__jinja_pair *member = &message->pairs[i];
        bool is_role = tarn__jinja_is_text(member->key, "role") && member->value.kind == TARN__JINJA_STRING;
        if (!is_role || !is_identifier(member->value.as.string))
            mark(r, &member->value, (uint8_t)(TARN__JINJA_MESSAGE + index % TARN__JINJA_MESSAGES));
    }
}

/* bos_token, eos_token and their like, which transformers passes to every template. */
static bool is_token(const tarn__jinja_string *name)
{
    return name->length >= 6 && memcmp(name->text + name->length - 6, "_token", 6) == 0;
}

/* Variables of the template's own side stay unmarked, messages have a number each, and all else (tools, documents,
 * arguments of the caller) is an input. */
static void mark_variable(tarn__jinja_run *r, tarn__jinja_pair *variable)
{
    if (tarn__jinja_is_text(variable->key, "messages") && variable->value.kind == TARN__JINJA_LIST) {
        tarn__jinja_list *messages = variable->value.as.list;
        for (size_t k = 0; k < messages->count; k++)
            if (messages->items[k].kind == TARN__JINJA_DICT)
                mark_message(r, messages->items[k].as.dict, k);
            else
                mark(r, &messages->items[k], TARN__JINJA_INPUT);
    } else if (!is_token(variable->key.as.string))
        mark(r, &variable->value, TARN__JINJA_INPUT);
}

/* ---- building ---------------------------------------------------------------------------------------------------- */

/* A whole text as one value. */
static tarn__jinja_value read_all(tarn__jinja_run *r, const char *text, size_t length)
{
    reader in = {r, text, 0, length};
    tarn__jinja_value v = read_value(&in);
    skip_space(&in);
    if (in.at != length)
        fail(&in, "text follows the value");
    return v;
}

/* Both are copied. The value is not marked: what comes this way counts as the template's. */
static void set_text(tarn__jinja_run *r, tarn__jinja_dict *dict, const char *key, const char *text, size_t length)
{
    tarn__jinja_dict_set(r, dict, tarn__jinja_text(r, key, strlen(key)), tarn__jinja_text(r, text, length));
}

/* The messages' dicts, as the JSON reader would make them. */
static tarn__jinja_value list_messages(tarn__jinja_run *r, const tarn_chat_message *messages, int count)
{
    tarn__jinja_value list = tarn__jinja_list_new(r, TARN__JINJA_LIST, (size_t)count);
    for (int i = 0; i < count; i++) {
        tarn__jinja_value message = tarn__jinja_dict_new(r);
        set_text(r, message.as.dict, "role", messages[i].role, strlen(messages[i].role));
        set_text(r, message.as.dict, "content", messages[i].content, strlen(messages[i].content));
        tarn__jinja_append(r, list.as.list, message);
    }
    return list;
}

/* What is added to a context: a string, JSON, or messages. */
typedef struct source {
    const char *function, *name, *text;
    size_t length;
    bool is_json; /* without a name: the members of an object */
    const tarn_chat_message *messages;
    int count;
    bool add_generation_prompt;
} source;

/* Sets a variable and marks it. */
static void set_marked(tarn__jinja_run *r, tarn__jinja_context *context, tarn__jinja_value name, tarn__jinja_value v)
{
    tarn__jinja_pair variable = {name, v};
    mark_variable(r, &variable);
    tarn__jinja_dict_set(r, &context->variables, variable.key, variable.value);
}

static void add_json(tarn__jinja_run *r, tarn__jinja_context *context, const source *from)
{
    tarn__jinja_value v = read_all(r, from->text, from->length);
    if (from->name) {
        set_marked(r, context, tarn__jinja_text(r, from->name, strlen(from->name)), v);
        return;
    }
    if (v.kind != TARN__JINJA_DICT)
        tarn__jinja_fail(r, "an object is expected");
    for (size_t i = 0; i < v.as.dict->count; i++)
        set_marked(r, context, v.as.dict->pairs[i].key, v.as.dict->pairs[i].value);
}

/* Without tools and documents both are none, as transformers passes them. */
static void add_messages(tarn__jinja_run *r, tarn__jinja_context *context, const source *from)
{
    tarn__jinja_dict *variables = &context->variables;
    set_marked(r, context, TARN__JINJA_TEXT("messages"), list_messages(r, from->messages, from->count));
    tarn__jinja_dict_set(r, variables, TARN__JINJA_TEXT("tools"), tarn__jinja_none());
    tarn__jinja_dict_set(r, variables, TARN__JINJA_TEXT("documents"), tarn__jinja_none());
    tarn__jinja_dict_set(r, variables, TARN__JINJA_TEXT("add_generation_prompt"),
                         tarn__jinja_bool(from->add_generation_prompt));
}

/* Adds a source within reach of a setjmp(): all failures below return here. `escape` is of this call alone; nothing
 * allocates in the context's arena outside such calls. An error leaves the context as far as it came, still to be
 * freed. */
static bool add(tarn__jinja_context *context, const source *from)
{
    jmp_buf escape;
    context->arena.escape = &escape;
    if (setjmp(escape))
        return false;
    tarn__jinja_run r = {.function = from->function,
                         .name = from->name ? from->name : "context",
                         .line = 1,
                         .code = TARN_ERROR_FORMAT,
                         .arena = &context->arena};
    /* Exactly one of the three: messages, JSON, or a string. */
    if (from->messages)
        add_messages(&r, context, from);
    else if (from->is_json)
        add_json(&r, context, from);
    else
        set_text(&r, &context->variables, from->name, from->text, from->length);
    return true;
}

/* The error of a reader without a function's name gets it here. NULL also while an error is pending. */
static tarn__jinja_context *context_new(const source *from)
{
    tarn__jinja_context *context = tarn_failed() ? NULL : tarn__alloc(sizeof(*context));
    if (!context)
        return NULL;
    context->arena.max_bytes = TARN__JINJA_MAX_BYTES;
    if (!add(context, from)) {
        tarn__raise_within(from->function);
        tarn__jinja_context_free(context);
        return NULL;
    }
    return context;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

tarn__jinja_context *tarn__jinja_context_json(const char *function, const char *text, size_t length)
{
    return context_new(&(source){.function = function, .text = text, .length = length, .is_json = true});
}

tarn__jinja_context *tarn__jinja_context_messages(const char *function, const tarn_chat_message *messages, int count,
                                                  bool add_generation_prompt)
{
    return context_new(&(source){
        .function = function, .messages = messages, .count = count, .add_generation_prompt = add_generation_prompt});
}

/* A string that counts as the template's, as bos_token. The only possible failure is memory. */
bool tarn__jinja_context_set(tarn__jinja_context *context, const char *name, const char *text, size_t length)
{
    return add(context, &(source){.function = "jinja", .name = name, .text = text, .length = length});
}

bool tarn__jinja_context_set_json(const char *function, tarn__jinja_context *context, const char *name,
                                  const char *text, size_t length)
{
    return add(context, &(source){.function = function, .name = name, .text = text, .length = length, .is_json = true});
}

/* ---- arguments of tool calls ------------------------------------------------------------------------------------- */

/* Replaces a string that is a JSON object by the object; any other stays. False with an error: out of memory. */
static bool parse_argument(tarn__jinja_context *context, tarn__jinja_value *v, size_t message)
{
    jmp_buf escape;
    context->arena.escape = &escape;
    if (setjmp(escape)) {
        if (tarn_error_code() == TARN_ERROR_MEMORY)
            return false;
        tarn_clear_error();
        return true;
    }
    tarn__jinja_run r = {.function = "", .name = "arguments", .code = TARN_ERROR_FORMAT, .arena = &context->arena};
    tarn__jinja_value parsed = read_all(&r, v->as.string->text, v->as.string->length);
    if (parsed.kind != TARN__JINJA_DICT)
        return true;
    mark(&r, &parsed, (uint8_t)(TARN__JINJA_MESSAGE + message % TARN__JINJA_MESSAGES));
    *v = parsed;
    return true;
}

/* The member's place, so that it can be replaced: a context under construction is the one mutable dict. */
static tarn__jinja_value *member(tarn__jinja_value *v, const char *name)
{
    return v && v->kind == TARN__JINJA_DICT
               ? (tarn__jinja_value *)(uintptr_t)tarn__jinja_dict_find_text(v->as.dict, name, strlen(name))
               : NULL;
}

static tarn__jinja_list *list_of(tarn__jinja_value *v)
{
    return v && v->kind == TARN__JINJA_LIST ? v->as.list : NULL;
}

/* messages[].tool_calls[].function.arguments: OpenAI's clients send them as text, templates iterate over them. */
bool tarn__jinja_context_parse_arguments(tarn__jinja_context *context)
{
    tarn__jinja_value all = {TARN__JINJA_DICT, {.dict = &context->variables}};
    tarn__jinja_list *messages = list_of(member(&all, "messages"));
    for (size_t i = 0; messages && i < messages->count; i++) {
        tarn__jinja_list *calls = list_of(member(&messages->items[i], "tool_calls"));
        for (size_t k = 0; calls && k < calls->count; k++) {
            tarn__jinja_value *arguments = member(member(&calls->items[k], "function"), "arguments");
            if (arguments && arguments->kind == TARN__JINJA_STRING && !parse_argument(context, arguments, i))
                return false;
        }
    }
    return true;
}

void tarn__jinja_context_set_time(tarn__jinja_context *context, const struct tm *now)
{
    context->has_time = true;
    context->now = *now;
}

void tarn__jinja_context_free(tarn__jinja_context *context)
{
    if (!context)
        return;
    tarn__jinja_arena_free(&context->arena);
    tarn__release(context, sizeof(*context));
}

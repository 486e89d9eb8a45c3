/* json.c: tojson as transformers defines it: json.dumps() with ensure_ascii, indent, separators and sort_keys, without
 * the escapes of HTML that Jinja's own filter makes: {"a": [1, null], "b": "é"}. Characters keep their origin, also as
 * escapes; brackets, quotes and numbers are the template's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/eval.h"

/* The options of a call, and the level of indentation. */
typedef struct writer {
    tarn__jinja_run *r;
    tarn__jinja_builder *b;
    bool is_ascii, sorts;
    const tarn__jinja_string *indent; /* NULL: one line */
    const tarn__jinja_string *comma, *colon;
    int level;
} writer;

/* A character of a string. Beyond U+FFFF an escape is a pair of surrogates, whose halves these sums give. ASCII output
 * escapes DEL too, as json.dumps() does. */
static void put_escaped(writer *w, uint32_t code, uint8_t origin)
{
    static const char special[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    /* The escapes of one letter; `special` and `letters` are in the same order. */
    const char *found = code && code < 0x80 ? strchr(special, (int)code) : NULL;
    char text[16];
    uint8_t origins[16];
    if (found)
        snprintf(text, sizeof(text), "\\%c", letters[found - special]);
    else if (code >= 0x20 && (!w->is_ascii || code < 0x7F)) {
        tarn__jinja_build_code(w->r, w->b, code, origin);
        return;
    } else if (code < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", code);
    else
        snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    memset(origins, origin, sizeof(origins));
    tarn__jinja_build(w->r, w->b, text, strlen(text), origin ? origins : NULL);
}

/* Bytes that are not UTF-8 become U+FFFD. */
static void put_string(writer *w, const tarn__jinja_string *s)
{
    uint32_t code;
    tarn__jinja_build_text(w->r, w->b, "\"");
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        put_escaped(w, code, s->origin ? s->origin[at] : 0);
    }
    tarn__jinja_build_text(w->r, w->b, "\"");
}

/* The break before an item or a closing bracket, with an indent only. */
static void put_line(writer *w)
{
    if (!w->indent)
        return;
    tarn__jinja_build_text(w->r, w->b, "\n");
    for (int i = 0; i < w->level; i++)
        tarn__jinja_build_string(w->r, w->b, w->indent);
}

/* Numbers that are not finite have Python's names, which are no JSON. */
static void put_scalar(writer *w, tarn__jinja_value v)
{
    static const char *const not_finite[] = {"NaN", "-Infinity", "Infinity"};
    if (v.kind == TARN__JINJA_NONE)
        tarn__jinja_build_text(w->r, w->b, "null");
    else if (v.kind == TARN__JINJA_BOOL)
        tarn__jinja_build_text(w->r, w->b, v.as.flag ? "true" : "false");
    else if (v.kind == TARN__JINJA_FLOAT && !isfinite(v.as.number))
        tarn__jinja_build_text(w->r, w->b, not_finite[isnan(v.as.number) ? 0 : v.as.number < 0 ? 1 : 2]);
    else if (tarn__jinja_is_number(v))
        tarn__jinja_print(w->r, w->b, v);
    else
        tarn__jinja_fail(w->r, "Object of type %s is not JSON serializable", tarn__jinja_type_name(v));
}

static void put(writer *w, tarn__jinja_value v);

static void put_list(writer *w, const tarn__jinja_list *list)
{
    /* Empty lists and dicts stay on their line: [] and {}. */
    tarn__jinja_build_text(w->r, w->b, "[");
    w->level++;
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            tarn__jinja_build_string(w->r, w->b, w->comma);
        put_line(w);
        put(w, list->items[i]);
    }
    w->level--;
    if (list->count)
        put_line(w);
    tarn__jinja_build_text(w->r, w->b, "]");
}

/* Keys are strings in JSON: {1: 2} becomes {"1": 2}, {none: 2} {"null": 2}. */
static void put_key(writer *w, tarn__jinja_value key)
{
    if (key.kind == TARN__JINJA_STRING) {
        put_string(w, key.as.string);
        return;
    }
    if (!tarn__jinja_is_number(key) && key.kind != TARN__JINJA_NONE)
        tarn__jinja_fail(w->r, "keys must be str, int, float, bool or None, not %s", tarn__jinja_type_name(key));
    tarn__jinja_build_text(w->r, w->b, "\"");
    put_scalar(w, key);
    tarn__jinja_build_text(w->r, w->b, "\"");
}

/* Sorted keys are compared as Python compares them, so keys of mixed types are an error. */
static void put_dict(writer *w, const tarn__jinja_dict *dict)
{
    /* A list of keys in the order of the output. */
    tarn__jinja_list *keys = tarn__jinja_list_new(w->r, TARN__JINJA_LIST, 0).as.list;
    for (size_t i = 0; i < dict->count; i++)
        tarn__jinja_append(w->r, keys, dict->pairs[i].key);
    if (w->sorts)
        keys = tarn__jinja_sorted(w->r, keys, keys, false).as.list;
    tarn__jinja_build_text(w->r, w->b, "{");
    w->level++;
    for (size_t i = 0; i < keys->count; i++) {
        if (i)
            tarn__jinja_build_string(w->r, w->b, w->comma);
        put_line(w);
        put_key(w, keys->items[i]);
        tarn__jinja_build_string(w->r, w->b, w->colon);
        /* Without sorting, the list and the dict have the same order. */
        put(w, w->sorts ? *tarn__jinja_dict_find(w->r, dict, keys->items[i]) : dict->pairs[i].value);
    }
    w->level--;
    if (keys->count)
        put_line(w);
    tarn__jinja_build_text(w->r, w->b, "}");
}

/* One value of any kind. Markup is a string, iterators are no JSON. */
static void put(writer *w, tarn__jinja_value v)
{
    tarn__jinja_enter(w->r);
    tarn__jinja_step(w->r, 1);
    if (v.kind == TARN__JINJA_STRING)
        put_string(w, v.as.string);
    else if (tarn__jinja_is_sequence(v))
        put_list(w, v.as.list);
    else if (v.kind == TARN__JINJA_DICT)
        put_dict(w, v.as.dict);
    else
        put_scalar(w, v);
    tarn__jinja_leave(w->r);
}

/* What a level is indented by; NULL: everything on one line. indent=0 is an empty string, which still breaks lines. */
static const tarn__jinja_string *indent_of(tarn__jinja_run *r, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_NONE || v.kind == TARN__JINJA_STRING)
        return v.kind == TARN__JINJA_NONE ? NULL : v.as.string;
    if (!tarn__jinja_is_integer(v))
        tarn__jinja_fail(r, "tojson: indent must be an int or a string, not %s", tarn__jinja_type_name(v));
    tarn__jinja_builder b = {0};
    /* A negative indent is 0, as in Python. */
    for (int64_t i = 0; i < tarn__jinja_integer_of(v); i++)
        tarn__jinja_build_text(r, &b, " ");
    return tarn__jinja_built(r, &b).as.string;
}

/* separators is a pair, (", ", ": ") unless there is an indent, which drops the space after the comma. */
void tarn__jinja_json(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments,
                      tarn__jinja_builder *b)
{
    tarn__jinja_value options[4] = {tarn__jinja_bool(false), tarn__jinja_none(), tarn__jinja_none(),
                                    tarn__jinja_bool(false)};
    tarn__jinja_bind(r, "tojson", arguments, "ensure_ascii indent separators sort_keys", 0, options);
    /* is_ascii, sorts and indent are set here; the separators depend on the indent. */
    writer w = {
        r,    b, tarn__jinja_truth(r, options[0]), tarn__jinja_truth(r, options[3]), indent_of(r, options[1]), NULL,
        NULL, 0};
    w.comma = w.indent ? TARN__JINJA_TEXT(",").as.string : TARN__JINJA_TEXT(", ").as.string;
    w.colon = TARN__JINJA_TEXT(": ").as.string;
    if (options[2].kind != TARN__JINJA_NONE) {
        const tarn__jinja_list *both = tarn__jinja_iterate(r, options[2]);
        /* Any iterable of two strings, as a list or tuple. */
        if (both->count != 2)
            tarn__jinja_fail(r, "tojson: separators must be two strings");
        w.comma = tarn__jinja_want_string(r, "tojson", both->items[0]);
        w.colon = tarn__jinja_want_string(r, "tojson", both->items[1]);
    }
    put(&w, v);
}

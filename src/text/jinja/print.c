/* print.c: values as Python's str() and repr() write them. {{ }} prints the str(): strings as they are, undefined
 * values as nothing, all else as repr(), within which strings have quotes. Escapes and quotes of a repr take the origin
 * of the character they stand for, or the template's. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number_format.h"
#include "base/utf8.h"
#include "text/jinja/eval.h"

void tarn__jinja_build_code(tarn__jinja_run *r, tarn__jinja_builder *b, uint32_t code, uint8_t origin)
{
    char text[4];
    uint8_t origins[4] = {origin, origin, origin, origin};
    tarn__jinja_build(r, b, text, tarn__utf8_encode(text, code), origin ? origins : NULL);
}

/* repr() of a float: the shortest digits that read back as the same number, with a point or exponent always. */
static void build_float(tarn__jinja_run *r, tarn__jinja_builder *b, double number)
{
    char text[TARN__NUMBER_SIZE];
    if (isfinite(number))
        tarn__jinja_build_text(r, b, tarn__number_format(number, text));
    else
        tarn__jinja_build_text(r, b, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
}

/* One character between quotes. `quote` is the one around the string; the other is not escaped. */
static void repr_code(tarn__jinja_run *r, tarn__jinja_builder *b, uint32_t code, char quote, uint8_t origin)
{
    char text[16];
    const char *const format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
    uint8_t origins[16];
    if (code == (uint32_t)quote || code == '\\')
        snprintf(text, sizeof(text), "\\%c", (char)code);
    else if (code == '\n' || code == '\r' || code == '\t')
        snprintf(text, sizeof(text), "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else if (tarn__jinja_is_printable(code)) {
        tarn__jinja_build_code(r, b, code, origin);
        return;
    } else
        snprintf(text, sizeof(text), format, code);
    memset(origins, origin, sizeof(origins));
    tarn__jinja_build(r, b, text, strlen(text), origin ? origins : NULL);
}

/* Python prefers single quotes, and takes double ones if that avoids escapes. */
static void repr_string(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_string *s)
{
    bool has_single = s->length && memchr(s->text, '\'', s->length),
         has_double = s->length && memchr(s->text, '"', s->length);
    char quote = has_single && !has_double ? '"' : '\'';
    uint32_t code;
    tarn__jinja_build_text(r, b, s->is_markup ? "Markup(" : "");
    tarn__jinja_build(r, b, &quote, 1, NULL);
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        repr_code(r, b, code, quote, s->origin ? s->origin[at] : 0);
    }
    tarn__jinja_build(r, b, &quote, 1, NULL);
    tarn__jinja_build_text(r, b, s->is_markup ? ")" : "");
}

/* Items of a list with a comma and a space between them. */
static void repr_items(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        tarn__jinja_build_text(r, b, i ? ", " : "");
        tarn__jinja_repr(r, b, list->items[i]);
    }
}

/* Lists, tuples and the views of dicts, in the order of their kinds; a tuple of one has a comma. */
static void repr_list(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_value v)
{
    static const char *const open[] = {"[", "(", "dict_keys([", "dict_values([", "dict_items(["}, *const close[] = {
                                                                                                      "]", ")", "])",
                                                                                                      "])", "])"};
    tarn__jinja_build_text(r, b, open[v.kind - TARN__JINJA_LIST]);
    repr_items(r, b, v.as.list);
    tarn__jinja_build_text(r, b, v.kind == TARN__JINJA_TUPLE && v.as.list->count == 1 ? "," : "");
    tarn__jinja_build_text(r, b, close[v.kind - TARN__JINJA_LIST]);
}

/* {'a': 1}, keys and values as repr() has them. */
static void repr_dict(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_dict *dict)
{
    tarn__jinja_build_text(r, b, "{");
    for (size_t i = 0; i < dict->count; i++) {
        tarn__jinja_build_text(r, b, i ? ", " : "");
        tarn__jinja_repr(r, b, dict->pairs[i].key);
        tarn__jinja_build_text(r, b, ": ");
        tarn__jinja_repr(r, b, dict->pairs[i].value);
    }
    tarn__jinja_build_text(r, b, "}");
}

/* range(0, 3): the bounds as they were given, the end though it is no item. */
static void repr_range(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_range *range)
{
    char text[96];
    int length = snprintf(text, sizeof(text), "range(%" PRId64 ", %" PRId64, range->begin, range->end);
    if (range->step != 1)
        snprintf(text + length, sizeof(text) - (size_t)length, ", %" PRId64, range->step);
    tarn__jinja_build_text(r, b, text);
    tarn__jinja_build_text(r, b, ")");
}

static void repr_loop(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_loop *loop)
{
    char text[64];
    snprintf(text, sizeof(text), "<LoopContext %zu/%zu>", loop->index + 1, loop->items->count);
    tarn__jinja_build_text(r, b, text);
}

/* <Macro 'name'>; the block of a call has no name. */
static void repr_macro(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_macro *macro)
{
    tarn__jinja_build_text(r, b, macro->name ? "<Macro " : "<Macro anonymous");
    if (macro->name)
        repr_string(r, b, macro->name);
    tarn__jinja_build_text(r, b, ">");
}

/* Objects that Python prints with their address. */
static void repr_object(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_value v)
{
    tarn__jinja_build_text(r, b, "<");
    tarn__jinja_build_text(r, b, tarn__jinja_type_name(v));
    tarn__jinja_build_text(r, b, " object>");
}

/* Depth ends what contains itself: a namespace can. */
void tarn__jinja_repr(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_value v)
{
    char text[32];
    tarn__jinja_enter(r);
    tarn__jinja_step(r, 1);
    switch (v.kind) {
    /* Within a list; alone it prints as nothing. */
    case TARN__JINJA_UNDEFINED: tarn__jinja_build_text(r, b, "Undefined"); break;
    case TARN__JINJA_NONE: tarn__jinja_build_text(r, b, "None"); break;
    case TARN__JINJA_BOOL: tarn__jinja_build_text(r, b, v.as.flag ? "True" : "False"); break;
    case TARN__JINJA_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.as.integer);
        tarn__jinja_build_text(r, b, text);
        break;
    case TARN__JINJA_FLOAT: build_float(r, b, v.as.number); break;
    case TARN__JINJA_STRING: repr_string(r, b, v.as.string); break;
    case TARN__JINJA_LIST:
    case TARN__JINJA_TUPLE:
    case TARN__JINJA_KEYS:
    case TARN__JINJA_VALUES:
    case TARN__JINJA_ITEMS: repr_list(r, b, v); break;
    case TARN__JINJA_DICT: repr_dict(r, b, v.as.dict); break;
    case TARN__JINJA_NAMESPACE:
        tarn__jinja_build_text(r, b, "<Namespace ");
        repr_dict(r, b, v.as.dict);
        tarn__jinja_build_text(r, b, ">");
        break;
    case TARN__JINJA_RANGE: repr_range(r, b, v.as.range); break;
    case TARN__JINJA_LOOP: repr_loop(r, b, v.as.loop); break;
    case TARN__JINJA_MACRO: repr_macro(r, b, v.as.macro); break;
    default: repr_object(r, b, v); break;
    }
    tarn__jinja_leave(r);
}

void tarn__jinja_print(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_STRING)
        tarn__jinja_build_string(r, b, v.as.string);
    else if (v.kind != TARN__JINJA_UNDEFINED)
        tarn__jinja_repr(r, b, v);
}

/* str(v): markup stays markup. */
const tarn__jinja_string *tarn__jinja_str(tarn__jinja_run *r, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_STRING)
        return v.as.string;
    tarn__jinja_builder b = {0};
    tarn__jinja_print(r, &b, v);
    return tarn__jinja_built(r, &b).as.string;
}

/* schema_values.c: strings and numbers of a schema. A single constraint of a string becomes its expression; several, as
 * a pattern with a length, are intersected as automata over the escaped text. Formats are patterns that match the whole
 * string. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "text/grammar/schema.h"

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* Days of the month, and leap years from 1000 to 9999. */
#define DATE \
    "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
/* Leap seconds are left out; an offset is Z or hours and minutes. */
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 "(?:" OCTET "\\.){3}" OCTET
#define H16 "[0-9A-Fa-f]{1,4}"
/* Of a host name: 1 to 63 characters, no hyphen at either end (RFC 1123). */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST "(?:" LABEL "\\.)*" LABEL
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"},
    {"ipv4", IPV4},
    {"ipv6", "(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16
             "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16 "){1,4}|(?:" H16 ":){1,2}(?::" H16
             "){1,5}|" H16 ":(?::" H16 "){1,6}|:(?:(?::" H16 "){1,7}|:)"},
    {"hostname", HOST},
    {"email", ATOM "(?:\\." ATOM ")*@(?:" LABEL "\\.)+[A-Za-z]{2,63}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*://" HOST "(?::\\d{1,5})?(?:/" PCHAR "*)*(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR
            "|[/?])*)?"},
};

/* A format that is unknown is an error: JSON Schema would ignore it. */
static const char *format_pattern(const tarn__schema *s, uint32_t node)
{
    const tarn__json_node *n = tarn__json_at(&s->tree, node);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strlen(formats[i].name) == n->length &&
            memcmp(formats[i].name, tarn__json_text(&s->tree, node), n->length) == 0)
            return formats[i].pattern;
    char problem[160];
    snprintf(problem, sizeof(problem), "the format '%.*s' is not supported", (int)(n->length < 60 ? n->length : 60),
             tarn__json_text(&s->tree, node));
    tarn__schema_fail(s, node, problem);
    return NULL;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

/* The start of messages about a keyword. */
static void describe(const tarn__schema *s, uint32_t node, char *where, size_t capacity)
{
    int used = snprintf(where, capacity, "%s: ", s->function);
    tarn__json_pointer(&s->tree, node, where + used, capacity - (size_t)used);
}

/* The contents of strings by a pattern or format. A pattern is searched for, a format matches the whole. */
static uint32_t pattern_expr(const tarn__schema *s, tarn__gb *gb, uint32_t node, bool is_format)
{
    char where[400];
    const char *text = is_format ? format_pattern(s, node) : tarn__json_text(&s->tree, node);
    describe(s, node, where, sizeof(where));
    if (tarn_failed())
        return 0;
    return tarn__regex_parse(gb, where, text, is_format ? strlen(text) : tarn__json_at(&s->tree, node)->length,
                             !is_format, tarn__json_class);
}

/* The language of one expression of a builder of its own. */
static bool own_dfa(tarn__gb *own, uint32_t expr, const char *where, tarn__dfa *dfa)
{
    own->root = tarn__gb_rule(own, NULL, 0);
    tarn__gb_rule_set(own, own->root, expr);
    return tarn__dfa_build(dfa, own, where);
}

/* Narrows *dfa, or sets it where it is empty. */
static bool narrow(tarn__dfa *dfa, tarn__gb *own, uint32_t expr, const char *where)
{
    tarn__dfa other;
    if (!own_dfa(own, expr, where, &other)) {
        tarn__dfa_free(dfa);
        return false;
    }
    if (dfa->count)
        return tarn__dfa_intersect(dfa, &other, where);
    *dfa = other;
    return true;
}

/* Every pattern, or every format, of the conjunction. */
static bool narrow_by(const tarn__schema *s, const tarn__buffer *items, const char *key, tarn__dfa *dfa)
{
    size_t at = 0;
    for (uint32_t node; (node = tarn__schema_next(s, items, key, &at, NULL));) {
        tarn__gb own;
        char where[400];
        describe(s, node, where, sizeof(where));
        if (!tarn__gb_open(&own) || !narrow(dfa, &own, pattern_expr(s, &own, node, key[0] == 'f'), where))
            return false;
    }
    return true;
}

/* Several constraints at once: the intersection of their languages. */
static uint32_t intersection(tarn__schema *s, const tarn__buffer *items, uint32_t node, int64_t min, int64_t max)
{
    tarn__dfa dfa = {0};
    tarn__gb own;
    char where[400];
    describe(s, node, where, sizeof(where));
    bool good = narrow_by(s, items, "pattern", &dfa) && narrow_by(s, items, "format", &dfa);
    /* Lengths count characters: an escape is one. */
    if (good && (min > 0 || max >= 0)) {
        good = tarn__gb_open(&own);
        uint32_t any = good ? tarn__json_class(&own, NULL, 0, true) : 0;
        good =
            good && narrow(&dfa, &own, tarn__gb_repeat(&own, any, (int32_t)(min > 0 ? min : 0), (int32_t)max), where);
    }
    if (!good)
        tarn__dfa_free(&dfa);
    return good ? tarn__gb_dfa(s->gb, &dfa) : 0;
}

/* Without constraints any escape may be used; with a pattern or format only the shortest, since the automaton is over
 * escaped text. */
uint32_t tarn__schema_string(tarn__schema *s, const tarn__buffer *items)
{
    size_t p = 0, f = 0;
    tarn__gb *gb = s->gb;
    int64_t min = tarn__schema_count(s, items, "minLength", true),
            max = tarn__schema_count(s, items, "maxLength", false);
    uint32_t pattern = tarn__schema_next(s, items, "pattern", &p, NULL);
    uint32_t format = tarn__schema_next(s, items, "format", &f, NULL), contents;
    bool has_more = (pattern && format) || (pattern && tarn__schema_next(s, items, "pattern", &p, NULL)) ||
                    (format && tarn__schema_next(s, items, "format", &f, NULL));
    if (tarn_failed())
        return 0;
    if (max >= 0 && min > max)
        return tarn__gb_alt(gb, NULL, 0);
    if (!pattern && !format && min <= 0 && max < 0)
        return tarn__json_call(&s->rules, TARN__RULE_STRING);
    if (!pattern && !format)
        contents = tarn__gb_repeat(gb, tarn__json_call(&s->rules, TARN__RULE_CHARACTER), (int32_t)(min > 0 ? min : 0),
                                   (int32_t)max);
    else if (has_more || min > 0 || max >= 0)
        contents = intersection(s, items, pattern ? pattern : format, min, max);
    else
        contents = pattern_expr(s, gb, pattern ? pattern : format, !pattern);
    uint32_t quote = tarn__gb_text(gb, "\"");
    return tarn__gb_seq_of(gb, quote, contents, quote);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Narrows one side of the bounds by a keyword. Of equal bounds the excluding one is narrower. */
static bool narrow_bound(const tarn__schema *s, const tarn__buffer *items, const char *key, bool is_low, bool excluded,
                         tarn__bounds *b)
{
    size_t at = 0;
    tarn__decimal d;
    for (uint32_t node; (node = tarn__schema_next(s, items, key, &at, NULL));) {
        if (!tarn__decimal_parse(&d, tarn__json_text(&s->tree, node), tarn__json_at(&s->tree, node)->length))
            return tarn__schema_fail(s, node, "the bound has too many digits");
        bool *has = is_low ? &b->has_low : &b->has_high, *is_out = is_low ? &b->low_excluded : &b->high_excluded;
        tarn__decimal *bound = is_low ? &b->low : &b->high;
        int order = *has ? tarn__decimal_compare(&d, bound) : 0;
        if (!*has || (is_low ? order > 0 : order < 0))
            *is_out = excluded;
        else if (order == 0)
            *is_out = *is_out || excluded;
        if (!*has || (is_low ? order > 0 : order < 0))
            *bound = d;
        *has = true;
    }
    return true;
}

/* `b` is cleared first. Draft 4's exclusiveMinimum, a boolean, is refused by the check of keywords. */
bool tarn__schema_bounds(const tarn__schema *s, const tarn__buffer *items, tarn__bounds *b)
{
    *b = (tarn__bounds){0};
    return narrow_bound(s, items, "minimum", true, false, b) &&
           narrow_bound(s, items, "exclusiveMinimum", true, true, b) &&
           narrow_bound(s, items, "maximum", false, false, b) &&
           narrow_bound(s, items, "exclusiveMaximum", false, true, b);
}

/* The least common multiple is not needed: two different multiples are an error. The value is formed after its digits
 * were counted, so it cannot overflow. */
static bool add_multiple(const tarn__schema *s, const tarn__buffer *items, bool is_integer, tarn__bounds *b)
{
    size_t at = 0;
    for (uint32_t node; (node = tarn__schema_next(s, items, "multipleOf", &at, NULL));) {
        tarn__decimal d;
        uint32_t value = 0;
        bool good = tarn__decimal_parse(&d, tarn__json_text(&s->tree, node), tarn__json_at(&s->tree, node)->length) &&
                    !d.is_negative && d.fractions == 0 && d.integers <= 5;
        for (int i = 0; good && i < d.integers; i++)
            value = value * 10 + (uint32_t)(d.digits[i] - '0');
        if (!is_integer || !good || value == 0 || value > 10000 || (b->multiple && b->multiple != value))
            return tarn__schema_fail(s, node, "multipleOf is supported for integers, once, and from 1 to 10000");
        b->multiple = value;
    }
    return true;
}

/* Bounds need numbers without an exponent (decimal.c); without them any form of a number is taken. */
uint32_t tarn__schema_number(tarn__schema *s, const tarn__buffer *items, bool is_integer)
{
    tarn__bounds b;
    if (!tarn__schema_bounds(s, items, &b) || !add_multiple(s, items, is_integer, &b))
        return 0;
    if (!b.has_low && !b.has_high && b.multiple <= 1)
        return tarn__json_call(&s->rules, is_integer ? TARN__RULE_INTEGER : TARN__RULE_NUMBER);
    return tarn__gb_number(s->gb, &b, is_integer);
}

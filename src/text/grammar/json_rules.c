/* json_rules.c: the rules of JSON texts (RFC 8259), narrowed where a model could run on without end: whitespace, and
 * the digits of an exponent. Without a schema all of JSON can be written: any escape, any form of a number. */
#include <stdio.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_INDENT 40 /* spaces or tabs after a newline */
/* Doubles end at e308. */
#define EXPONENT_DIGITS 3 /* of a number */

static uint32_t range(tarn__gb *gb, uint32_t low, uint32_t high)
{
    return tarn__gb_class(gb, &(tarn__range){low, high}, 1, false);
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

/* The shortest escape of a character that needs one; NULL: it stands for itself. */
static const char *escape_of(uint32_t code, char text[8])
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *found = code && code < 128 ? strchr(from, (int)code) : NULL;
    if (found)
        snprintf(text, 8, "\\%c", to[found - from]);
    else if (code < 0x20)
        snprintf(text, 8, "\\u%04x", (unsigned)code);
    else
        return NULL;
    return text;
}

/* A string's contents as the only form that a schema's constants and names accept; quotes are the caller's. Bytes above
 * 127 stand for themselves. */
uint32_t tarn__json_literal(tarn__gb *gb, const char *text, size_t length)
{
    tarn__buffer bytes = {0};
    for (size_t i = 0; i < length && !tarn_failed(); i++) {
        char escape[8];
        const char *form = escape_of((uint8_t)text[i], escape);
        tarn__buffer_add(&bytes, form ? form : text + i, form ? strlen(form) : 1, 1);
    }
    uint32_t expr = tarn_failed() ? 0 : tarn__gb_string(gb, bytes.data, bytes.count);
    tarn__buffer_free(&bytes, 1);
    return expr;
}

static bool contains(const tarn__range *ranges, size_t count, uint32_t code)
{
    for (size_t i = 0; i < count; i++)
        if (ranges[i].low <= code && code <= ranges[i].high)
            return true;
    return false;
}

/* Characters that stand for themselves as a class, and each of the others as its escape. */
uint32_t tarn__json_class(tarn__gb *gb, const tarn__range *ranges, size_t count, bool negated)
{
    uint32_t parts[40], plain = tarn__gb_class(gb, ranges, count, negated);
    size_t used = 0;
    tarn__buffer kept = {0};
    if (tarn_failed())
        return 0;
    tarn__expr all = *tarn__gb_expr(gb, plain);
    for (uint32_t i = 0; i < all.count; i++) {
        /* What may stand for itself is all but controls, the quote and the backslash. */
        tarn__range r = tarn__gb_ranges(gb, &all)[i];
        const tarn__range parts_of[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, TARN__MAX_CODE}};
        for (size_t k = 0; k < 3; k++) {
            tarn__range both = {r.low > parts_of[k].low ? r.low : parts_of[k].low,
                                r.high < parts_of[k].high ? r.high : parts_of[k].high};
            if (both.low <= both.high)
                tarn__buffer_add(&kept, &both, 1, sizeof(both));
        }
    }
    for (uint32_t code = 0; code <= '\\'; code++) {
        char escape[8];
        /* Only code points up to the backslash have escapes. */
        if (contains(ranges, count, code) != negated && escape_of(code, escape))
            parts[used++] = tarn__gb_text(gb, escape);
    }
    if (kept.count && !tarn_failed())
        parts[used++] = tarn__gb_class(gb, (const tarn__range *)(const void *)kept.data, kept.count, false);
    tarn__buffer_free(&kept, sizeof(tarn__range));
    return tarn_failed() ? 0 : tarn__gb_alt(gb, parts, used);
}

/* A hexadecimal digit in either case. */
static uint32_t hex(tarn__gb *gb)
{
    return tarn__gb_class(gb, (const tarn__range[]){{'0', '9'}, {'a', 'f'}, {'A', 'F'}}, 3, false);
}

/* One character: itself, a short escape, \u of a code point, or of two surrogates. \uD800 to \uDBFF must be followed by
 * \uDC00 to \uDFFF and not stand alone, as no text has halves of a character. */
static uint32_t character(tarn__gb *gb)
{
    const tarn__range special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    const tarn__range shorts[] = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'},
                                  {'f', 'f'}, {'n', 'n'}, {'r', 'r'},   {'t', 't'}};
    const tarn__range not_d[] = {{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}},
                      d[] = {{'d', 'd'}, {'D', 'D'}};
    const tarn__range high[] = {{'8', '9'}, {'a', 'b'}, {'A', 'B'}}, low[] = {{'c', 'f'}, {'C', 'F'}};
    uint32_t h = hex(gb), hh = tarn__gb_seq_of(gb, h, h), dd = tarn__gb_class(gb, d, 2, false);
    /* \u0000 to \uFFFF by their first digits: not D, D0 to D7, and the pairs of D8 to DB with DC to DF. */
    uint32_t usual = tarn__gb_seq_of(gb, tarn__gb_class(gb, not_d, 5, false), h, hh);
    uint32_t below = tarn__gb_seq_of(gb, dd, range(gb, '0', '7'), hh);
    uint32_t pair = tarn__gb_seq_of(gb, dd, tarn__gb_class(gb, high, 3, false), hh, tarn__gb_text(gb, "\\u"), dd,
                                    tarn__gb_class(gb, low, 2, false), hh);
    uint32_t code = tarn__gb_seq_of(gb, tarn__gb_text(gb, "u"), tarn__gb_alt_of(gb, usual, below, pair));
    uint32_t escape =
        tarn__gb_seq_of(gb, tarn__gb_text(gb, "\\"), tarn__gb_alt_of(gb, tarn__gb_class(gb, shorts, 8, false), code));
    return tarn__gb_alt_of(gb, tarn__gb_class(gb, special, 3, true), escape);
}

/* ---- numbers, values --------------------------------------------------------------------------------------------- */

static uint32_t digits(tarn__gb *gb, int32_t min, int32_t max)
{
    return tarn__gb_repeat(gb, range(gb, '0', '9'), min, max);
}

static uint32_t optional(tarn__gb *gb, uint32_t expr)
{
    return tarn__gb_repeat(gb, expr, 0, 1);
}

/* From 1 on, without leading zeros. */
static uint32_t natural(tarn__gb *gb)
{
    return tarn__gb_seq_of(gb, range(gb, '1', '9'), digits(gb, 0, -1));
}

/* There is no -0, which equals 0. */
static uint32_t integer(tarn__gb *gb)
{
    return tarn__gb_alt_of(gb, tarn__gb_text(gb, "0"),
                           tarn__gb_seq_of(gb, optional(gb, tarn__gb_text(gb, "-")), natural(gb)));
}

/* -0.5e+10: RFC 8259's number. */
static uint32_t number(tarn__gb *gb)
{
    const tarn__range e[] = {{'e', 'e'}, {'E', 'E'}}, sign[] = {{'+', '+'}, {'-', '-'}};
    uint32_t fraction = tarn__gb_seq_of(gb, tarn__gb_text(gb, "."), digits(gb, 1, -1));
    uint32_t exponent =
        tarn__gb_seq_of(gb, tarn__gb_class(gb, e, 2, false), optional(gb, tarn__gb_class(gb, sign, 2, false)),
                        digits(gb, 1, EXPONENT_DIGITS));
    return tarn__gb_seq_of(gb, optional(gb, tarn__gb_text(gb, "-")),
                           tarn__gb_alt_of(gb, tarn__gb_text(gb, "0"), natural(gb)), optional(gb, fraction),
                           optional(gb, exponent));
}

/* Nothing, one space, or a newline with its indentation: unlimited space would let a model stall. */
static uint32_t space(tarn__gb *gb)
{
    const tarn__range blanks[] = {{' ', ' '}, {'\t', '\t'}};
    uint32_t indent = tarn__gb_repeat(gb, tarn__gb_class(gb, blanks, 2, false), 0, MAX_INDENT);
    return tarn__gb_alt_of(gb, 0, tarn__gb_text(gb, " "), tarn__gb_seq_of(gb, tarn__gb_text(gb, "\n"), indent));
}

/* Brackets around parts that commas separate, perhaps none. */
static uint32_t list(tarn__json_rules *rules, const char *opening, uint32_t part, const char *closing)
{
    tarn__gb *gb = rules->gb;
    uint32_t ws = tarn__json_call(rules, TARN__RULE_SPACE);
    uint32_t more = tarn__gb_repeat(gb, tarn__gb_seq_of(gb, tarn__gb_text(gb, ","), ws, part, ws), 0, -1);
    return tarn__gb_seq_of(gb, tarn__gb_text(gb, opening), ws, optional(gb, tarn__gb_seq_of(gb, part, ws, more)),
                           tarn__gb_text(gb, closing));
}

/* `rule` is entered before its body is built, since values contain themselves. */
static uint32_t body(tarn__json_rules *rules, tarn__json_rule rule)
{
    tarn__gb *gb = rules->gb;
    uint32_t quote = tarn__gb_text(gb, "\"");
    switch (rule) {
    case TARN__RULE_SPACE: return space(gb);
    case TARN__RULE_CHARACTER: return character(gb);
    case TARN__RULE_STRING:
        return tarn__gb_seq_of(gb, quote, tarn__gb_repeat(gb, tarn__json_call(rules, TARN__RULE_CHARACTER), 0, -1),
                               quote);
    case TARN__RULE_NUMBER: return number(gb);
    case TARN__RULE_INTEGER: return integer(gb);
    case TARN__RULE_ARRAY: return list(rules, "[", tarn__json_call(rules, TARN__RULE_VALUE), "]");
    case TARN__RULE_OBJECT: {
        uint32_t ws = tarn__json_call(rules, TARN__RULE_SPACE);
        return list(rules, "{",
                    tarn__gb_seq_of(gb, tarn__json_call(rules, TARN__RULE_STRING), ws, tarn__gb_text(gb, ":"), ws,
                                    tarn__json_call(rules, TARN__RULE_VALUE)),
                    "}");
    }
    default:
        return tarn__gb_alt_of(gb, tarn__json_call(rules, TARN__RULE_OBJECT), tarn__json_call(rules, TARN__RULE_ARRAY),
                               tarn__json_call(rules, TARN__RULE_STRING), tarn__json_call(rules, TARN__RULE_NUMBER),
                               tarn__gb_text(gb, "true"), tarn__gb_text(gb, "false"), tarn__gb_text(gb, "null"));
    }
}

uint32_t tarn__json_call(tarn__json_rules *rules, tarn__json_rule rule)
{
    if (!rules->rule[rule] && !tarn_failed()) {
        uint32_t index = tarn__gb_rule(rules->gb, NULL, 0);
        rules->rule[rule] = index + 1;
        tarn__gb_rule_set(rules->gb, index, body(rules, rule));
    }
    return tarn_failed() ? 0 : tarn__gb_call(rules->gb, rules->rule[rule] - 1);
}

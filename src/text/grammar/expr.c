/* expr.c: the expressions and rules of a grammar under construction, and code points as byte ranges.
 *
 * Expressions are a directed graph in one array: a child comes before its parents and may have several, so that front
 * ends can build a part once and use it often. Only calls of rules may close a circle. Expression 0 is the empty
 * string, which is also what every function returns after an error; nothing needs to be checked before the end. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/grammar/grammar.h"

bool tarn__gb_open(tarn__gb *gb)
{
    *gb = (tarn__gb){0};
    return tarn__buffer_add(&gb->exprs, &(tarn__expr){.kind = TARN__E_EMPTY}, 1, sizeof(tarn__expr));
}

void tarn__gb_close(tarn__gb *gb)
{
    tarn__dfa *dfa = (tarn__dfa *)(void *)gb->dfas.data;
    for (size_t i = 0; i < gb->dfas.count; i++) {
        tarn__release(dfa[i].next, sizeof(*dfa[i].next) * 256 * dfa[i].count);
        tarn__release(dfa[i].final, dfa[i].count);
    }
    tarn__buffer_free(&gb->dfas, sizeof(tarn__dfa));
    tarn__buffer_free(&gb->exprs, sizeof(tarn__expr));
    tarn__buffer_free(&gb->children, sizeof(uint32_t));
    tarn__buffer_free(&gb->ranges, sizeof(tarn__range));
    tarn__buffer_free(&gb->bytes, 1);
    tarn__buffer_free(&gb->rules, sizeof(tarn__grammar_rule));
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

/* The error has no function's name yet: the front end's caller puts it before it. */
static uint32_t add(tarn__gb *gb, tarn__expr expr)
{
    if (tarn_failed())
        return 0;
    if (gb->exprs.count >= TARN__G_MAX_NODES) {
        tarn__raise(TARN_ERROR_FORMAT, "the grammar is too large: it has more than %zu expressions", TARN__G_MAX_NODES);
        return 0;
    }
    return tarn__buffer_add(&gb->exprs, &expr, 1, sizeof(expr)) ? (uint32_t)(gb->exprs.count - 1) : 0;
}

/* No bytes are the empty string: expression 0. */
uint32_t tarn__gb_string(tarn__gb *gb, const char *bytes, size_t length)
{
    uint32_t first = (uint32_t)gb->bytes.count;
    if (length == 0 || tarn_failed() || !tarn__buffer_add(&gb->bytes, bytes, length, 1))
        return 0;
    return add(gb, (tarn__expr){.kind = TARN__E_STRING, .first = first, .count = (uint32_t)length});
}

uint32_t tarn__gb_text(tarn__gb *gb, const char *text)
{
    return tarn__gb_string(gb, text, strlen(text));
}

static int by_low(const void *a, const void *b)
{
    const tarn__range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

/* Surrogates (U+D800 to U+DFFF) have no UTF-8, so a range that contains them is split around them. */
static bool add_range(tarn__gb *gb, uint32_t low, uint32_t high)
{
    if (low > high)
        return true;
    if (low <= 0xDFFF && high >= 0xD800) /* surrogates are not characters */
        return (low >= 0xD800 || add_range(gb, low, 0xD7FF)) && (high <= 0xDFFF || add_range(gb, 0xE000, high));
    return tarn__buffer_add(&gb->ranges, &(tarn__range){low, high}, 1, sizeof(tarn__range));
}

/* Sorted and merged ranges are appended, or the gaps between them. */
uint32_t tarn__gb_class(tarn__gb *gb, const tarn__range *ranges, size_t count, bool negated)
{
    uint32_t first = (uint32_t)gb->ranges.count, next = 0; /* the first code point after the ranges so far */
    tarn__range *sorted = count && !tarn_failed() ? tarn__alloc(sizeof(*sorted) * count) : NULL;
    if (tarn_failed())
        return 0;
    if (count) {
        memcpy(sorted, ranges, sizeof(*sorted) * count);
        qsort(sorted, count, sizeof(*sorted), by_low);
    }
    for (size_t i = 0; i < count;) {
        uint32_t low = sorted[i].low, high = sorted[i].high;
        /* Adjacent ranges are merged as well as those that overlap. */
        for (i++; i < count && sorted[i].low <= (high < TARN__MAX_CODE ? high + 1 : high); i++)
            high = sorted[i].high > high ? sorted[i].high : high;
        if (negated ? low > next && !add_range(gb, next, low - 1) : !add_range(gb, low, high))
            break;
        next = high + 1;
    }
    tarn__release(sorted, sizeof(*sorted) * count);
    if (tarn_failed() || (negated && next <= TARN__MAX_CODE && !add_range(gb, next, TARN__MAX_CODE)))
        return 0;
    return add(gb, (tarn__expr){.kind = TARN__E_CLASS, .first = first, .count = (uint32_t)(gb->ranges.count - first)});
}

/* A parent of one child is the child. */
static uint32_t add_parent(tarn__gb *gb, tarn__expr_kind kind, const uint32_t *children, size_t count)
{
    uint32_t first = (uint32_t)gb->children.count;
    if (count == 1)
        return children[0];
    if (tarn_failed() || (count && !tarn__buffer_add(&gb->children, children, count, sizeof(*children))))
        return 0;
    return add(gb, (tarn__expr){.kind = (uint8_t)kind, .first = first, .count = (uint32_t)count});
}

uint32_t tarn__gb_seq(tarn__gb *gb, const uint32_t *children, size_t count)
{
    return count ? add_parent(gb, TARN__E_SEQ, children, count) : 0;
}

/* No children: nothing matches. This is not expression 0, the empty string. */
uint32_t tarn__gb_alt(tarn__gb *gb, const uint32_t *children, size_t count)
{
    return add_parent(gb, TARN__E_ALT, children, count);
}

/* min <= max, or max -1. The child may be the empty string. */
uint32_t tarn__gb_repeat(tarn__gb *gb, uint32_t child, int32_t min, int32_t max)
{
    return add(gb, (tarn__expr){.kind = TARN__E_REPEAT, .first = child, .min = min, .max = max});
}

uint32_t tarn__gb_call(tarn__gb *gb, uint32_t rule)
{
    return add(gb, (tarn__expr){.kind = TARN__E_CALL, .first = rule});
}

uint32_t tarn__gb_anchor(tarn__gb *gb, tarn__expr_kind kind)
{
    return add(gb, (tarn__expr){.kind = (uint8_t)kind});
}

/* The memory is the builder's from here on, with an error too: it is freed then. */
uint32_t tarn__gb_dfa(tarn__gb *gb, tarn__dfa *dfa)
{
    uint32_t first = (uint32_t)gb->dfas.count;
    if (tarn_failed() || !tarn__buffer_add(&gb->dfas, dfa, 1, sizeof(*dfa))) {
        tarn__release(dfa->next, sizeof(*dfa->next) * 256 * dfa->count);
        tarn__release(dfa->final, dfa->count);
        *dfa = (tarn__dfa){0};
        return 0;
    }
    *dfa = (tarn__dfa){0};
    return add(gb, (tarn__expr){.kind = TARN__E_DFA, .first = first});
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* Its expression is set later, so that rules can call each other. */
uint32_t tarn__gb_rule(tarn__gb *gb, const char *name, size_t length)
{
    tarn__grammar_rule rule = {.name = gb->bytes.count, .name_length = name ? length : 0};
    if (tarn_failed() || (rule.name_length && !tarn__buffer_add(&gb->bytes, name, length, 1)))
        return 0;
    if (gb->rules.count >= TARN__G_MAX_NODES) {
        tarn__raise(TARN_ERROR_FORMAT, "the grammar is too large: it has more than %zu rules", TARN__G_MAX_NODES);
        return 0;
    }
    return tarn__buffer_add(&gb->rules, &rule, 1, sizeof(rule)) ? (uint32_t)(gb->rules.count - 1) : 0;
}

void tarn__gb_rule_set(tarn__gb *gb, uint32_t rule, uint32_t expr)
{
    if (tarn_failed())
        return;
    tarn__gb_rule_at(gb, rule)->expr = expr;
    tarn__gb_rule_at(gb, rule)->is_defined = true;
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

/* Last code points of 1, 2, 3 and 4 bytes. */
static const uint32_t last_code[] = {0x7F, 0x7FF, 0xFFFF, TARN__MAX_CODE};

/* A range of code points of equal length. Where continuation bytes below the first difference do not cover all their
 * values, the range is split: first up to the next multiple of 64, 4096 …, then down from the last one. */
static bool split(uint32_t low, uint32_t high, tarn__utf8_range_fn see, void *ctx)
{
    char low_bytes[4], high_bytes[4];
    size_t count = tarn__utf8_encode(low_bytes, low);
    for (size_t i = 1; i < count; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((low & ~mask) == (high & ~mask))
            continue;
        if (low & mask)
            return split(low, low | mask, see, ctx) && split((low | mask) + 1, high, see, ctx);
        if ((high & mask) != mask)
            return split(low, (high & ~mask) - 1, see, ctx) && split(high & ~mask, high, see, ctx);
    }
    tarn__utf8_encode(high_bytes, high);
    return see((const uint8_t *)low_bytes, (const uint8_t *)high_bytes, (int)count, ctx);
}

/* U+0000 to U+FFFF is 00-7F | C2-DF 80-BF | E0 A0-BF 80-BF | E1-EF 80-BF 80-BF: `see` gets four sequences. A range is
 * cut where the number of bytes changes, then split() cuts what is left. */
bool tarn__utf8_ranges(tarn__range range, tarn__utf8_range_fn see, void *ctx)
{
    uint32_t low = range.low;
    for (size_t i = 0; i < 4 && low <= range.high; i++)
        if (low <= last_code[i]) {
            uint32_t high = range.high < last_code[i] ? range.high : last_code[i];
            if (!split(low, high, see, ctx))
                return false;
            low = high + 1;
        }
    return true;
}

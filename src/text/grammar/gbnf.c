/* gbnf.c: the parser of llama.cpp's GBNF, by recursive descent.
 *
 *   rule     = name "::=" alternatives newline
 *   sequence = (literal | class | "." | name | "(" alternatives ")") with "*" "+" "?" "{m}" "{m,}" "{m,n}"
 *
 * A rule ends with its line, except inside parentheses and after "::=" and "|". "#" begins a comment. References to
 * tokens, <[1000]> and <name>, are not supported.
 *
 *   root   ::= "yes" | "no" reason?
 *   reason ::= ": " [^\n]{1,80}          # a class has ranges, escapes, and ^ for all other characters */
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/vocab.h"

#define BUCKETS 4096

/* Errors name the line. Rules are found by name through chains, as a grammar may have thousands. */
typedef struct parser {
    tarn__gb *gb;
    const char *function, *at, *end;
    uint32_t line;
    int nesting;
    uint32_t buckets[BUCKETS]; /* rules by the hash of their names: index + 1 */
    tarn__buffer chains;       /* uint32_t, by rule: the next of the same hash, index + 1 */
} parser;

static bool fail(const parser *p, const char *problem)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: line %u of the grammar: %s", p->function, (unsigned)p->line, problem);
}

/* Letters, digits and -, as in llama.cpp, and _. */
static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static bool is_next(const parser *p, char c)
{
    return p->at < p->end && *p->at == c;
}

/* Consumes a character without skipping spaces: callers decide where those may stand. */
static bool skip_char(parser *p, char c)
{
    bool found = is_next(p, c);
    p->at += found;
    return found;
}

/* Skips spaces and comments, and with `lines` also newlines. */
static void skip_space(parser *p, bool lines)
{
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#')
            while (p->at + 1 < p->end && p->at[1] != '\n' && p->at[1] != '\r')
                p->at++;
        else if (*p->at == '\n' && lines)
            p->line++;
        else if (*p->at != ' ' && *p->at != '\t' && !(*p->at == '\r' && lines))
            return;
    }
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* *code is checked before each digit, so eight of them cannot overflow. */
static bool parse_hex(parser *p, int digits, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int value = p->at < p->end ? hex_value(*p->at) : -1;
        if (value < 0 || *code > TARN__MAX_CODE)
            return fail(p, "\\x needs 2 hexadecimal digits, \\u 4, and \\U 8");
        *code = *code * 16 + (uint32_t)value;
    }
    if (*code > TARN__MAX_CODE || (*code >= 0xD800 && *code <= 0xDFFF))
        return fail(p, "an escape is a surrogate or beyond U+10FFFF");
    return true;
}

/* One character of a literal or class, escapes included. */
static bool parse_character(parser *p, uint32_t *code)
{
    size_t bytes = tarn__utf8_decode(p->at, (size_t)(p->end - p->at), code);
    if (bytes == 0)
        return fail(p, p->at < p->end ? "the text is not valid UTF-8" : "a literal or class is not closed");
    p->at += bytes;
    if (*code == '\n')
        p->line++;
    if (*code != '\\')
        return true;
    char c = p->at < p->end ? *p->at++ : 0;
    switch (c) {
    case 'x': return parse_hex(p, 2, code);
    case 'u': return parse_hex(p, 4, code);
    case 'U': return parse_hex(p, 8, code);
    case 't': *code = '\t'; return true;
    case 'r': *code = '\r'; return true;
    case 'n': *code = '\n'; return true;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^': *code = (uint32_t)c; return true;
    default: return fail(p, "the escape is unknown; GBNF has \\x41 \\u0041 \\U00000041 \\t \\r \\n \\\\ \\\" \\[ \\]");
    }
}

/* The text between quotes as UTF-8; "" is the empty string. */
static uint32_t parse_literal(parser *p)
{
    tarn__buffer bytes = {0};
    uint32_t code, expr = 0;
    char text[4];
    while (!tarn_failed() && !skip_char(p, '"'))
        if (parse_character(p, &code))
            tarn__buffer_add(&bytes, text, tarn__utf8_encode(text, code), 1);
    if (!tarn_failed())
        expr = tarn__gb_string(p->gb, bytes.data, bytes.count);
    tarn__buffer_free(&bytes, 1);
    return expr;
}

/* [a-z0-9_], [^"\\]. A - before ] stands for itself. */
static uint32_t parse_class(parser *p)
{
    tarn__buffer ranges = {0};
    bool negated = skip_char(p, '^');
    uint32_t expr = 0;
    while (!tarn_failed() && !skip_char(p, ']')) {
        tarn__range range = {0};
        if (!parse_character(p, &range.low))
            break;
        range.high = range.low;
        bool is_range = is_next(p, '-') && p->at + 1 < p->end && p->at[1] != ']';
        if (is_range) {
            p->at++;
            if (!parse_character(p, &range.high))
                break;
        }
        if (range.low > range.high)
            fail(p, "a range of a class runs backwards");
        tarn__buffer_add(&ranges, &range, 1, sizeof(range));
    }
    if (!tarn_failed() && ranges.count == 0)
        fail(p, "a class is empty");
    if (!tarn_failed())
        expr = tarn__gb_class(p->gb, (const tarn__range *)(const void *)ranges.data, ranges.count, negated);
    tarn__buffer_free(&ranges, sizeof(tarn__range));
    return expr;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* The rule of a name, created by its first use. */
static uint32_t rule_of(parser *p, const char *name, size_t length)
{
    tarn__gb *gb = p->gb;
    uint32_t *bucket = &p->buckets[tarn__hash(name, length, 0) % BUCKETS];
    for (uint32_t i = *bucket; i; i = ((const uint32_t *)(const void *)p->chains.data)[i - 1]) {
        const tarn__grammar_rule *rule = tarn__gb_rule_at(gb, i - 1);
        if (rule->name_length == length && memcmp(gb->bytes.data + rule->name, name, length) == 0)
            return i - 1;
    }
    uint32_t rule = tarn__gb_rule(gb, name, length);
    if (tarn_failed() || !tarn__buffer_add(&p->chains, bucket, 1, sizeof(*bucket)))
        return 0;
    tarn__gb_rule_at(gb, rule)->line = p->line;
    *bucket = rule + 1;
    return rule;
}

/* No name is not an error here: the caller knows what else may stand there. */
static bool parse_name(parser *p, const char **name, size_t *length)
{
    *name = p->at;
    while (p->at < p->end && is_word(*p->at))
        p->at++;
    *length = (size_t)(p->at - *name);
    return *length > 0;
}

/* Refused as soon as it is too large, so it cannot overflow. */
static bool parse_number(parser *p, int32_t *value)
{
    const char *begin = p->at;
    for (*value = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if ((*value = *value * 10 + (*p->at - '0')) > TARN__G_MAX_REPEAT)
            return fail(p, "a repetition is above 100000");
    return p->at > begin || fail(p, "a repetition must be {m}, {m,} or {m,n}");
}

/* The bounds between braces. */
static bool parse_bounds(parser *p, int32_t *min, int32_t *max)
{
    skip_space(p, false);
    *min = 0;
    if (!is_next(p, ',') && !parse_number(p, min))
        return false;
    skip_space(p, false);
    *max = *min;
    if (skip_char(p, ',')) {
        skip_space(p, false);
        *max = -1;
        if (!is_next(p, '}') && !parse_number(p, max))
            return false;
        skip_space(p, false);
    }
    if (!skip_char(p, '}'))
        return fail(p, "a repetition must be {m}, {m,} or {m,n}");
    return *max == -1 || *max >= *min || fail(p, "the bounds of a repetition run backwards");
}

/* Several repetitions may follow each other: (a{2})* is written a{2}*. */
static uint32_t parse_repeats(parser *p, uint32_t expr, bool is_nested)
{
    for (skip_space(p, is_nested); !tarn_failed(); skip_space(p, is_nested)) {
        int32_t min = 0, max = -1;
        if (skip_char(p, '*'))
            min = 0;
        else if (skip_char(p, '+'))
            min = 1;
        else if (skip_char(p, '?'))
            max = 1;
        else if (!skip_char(p, '{'))
            return expr;
        else if (!parse_bounds(p, &min, &max))
            return 0;
        expr = tarn__gb_repeat(p->gb, expr, min, max);
    }
    return 0;
}

/* Nested: within parentheses, where newlines are spaces. */
static uint32_t parse_alternatives(parser *p, bool is_nested);

/* One symbol without its repetition; *found is false at the end of a sequence. */
static uint32_t parse_symbol(parser *p, bool *found)
{
    const char *name;
    size_t length;
    *found = true;
    if (skip_char(p, '"'))
        return parse_literal(p);
    if (skip_char(p, '['))
        return parse_class(p);
    if (skip_char(p, '.'))
        return tarn__gb_class(p->gb, NULL, 0, true);
    if (skip_char(p, '(')) {
        uint32_t expr = parse_alternatives(p, true);
        if (!tarn_failed() && !skip_char(p, ')'))
            fail(p, "a parenthesis is not closed");
        return expr;
    }
    if (is_next(p, '<') || is_next(p, '!')) {
        fail(p, "references to tokens, such as <[1000]>, are not supported");
        return 0;
    }
    if (parse_name(p, &name, &length))
        return tarn__gb_call(p->gb, rule_of(p, name, length));
    *found = false;
    return 0;
}

/* Symbols up to one that is none: the end of a line, | or ). Without any it is the empty string. */
static uint32_t parse_sequence(parser *p, bool is_nested)
{
    tarn__buffer parts = {0};
    uint32_t expr = 0;
    while (!tarn_failed()) {
        bool found;
        expr = parse_symbol(p, &found);
        if (!found)
            break;
        expr = parse_repeats(p, expr, is_nested);
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
    }
    expr = tarn_failed() ? 0 : tarn__gb_seq(p->gb, (const uint32_t *)(const void *)parts.data, parts.count);
    tarn__buffer_free(&parts, sizeof(uint32_t));
    return expr;
}

static uint32_t parse_alternatives(parser *p, bool is_nested)
{
    tarn__buffer parts = {0};
    uint32_t expr = 0;
    if (++p->nesting > TARN__G_MAX_NESTING)
        fail(p, "parentheses are nested too deeply");
    while (!tarn_failed()) {
        /* A line may end after ::= and |, also outside of parentheses. */
        skip_space(p, true);
        expr = parse_sequence(p, is_nested);
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
        if (tarn_failed() || !skip_char(p, '|'))
            break;
    }
    p->nesting--;
    expr = tarn_failed() ? 0 : tarn__gb_alt(p->gb, (const uint32_t *)(const void *)parts.data, parts.count);
    tarn__buffer_free(&parts, sizeof(uint32_t));
    return expr;
}

/* A rule may be called before it is defined; is_defined tells both apart. */
static bool parse_rule(parser *p)
{
    const char *name;
    size_t length;
    uint32_t line = p->line;
    if (!parse_name(p, &name, &length))
        return fail(p, "a rule must begin with its name: letters, digits and dashes");
    uint32_t rule = rule_of(p, name, length);
    skip_space(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0)
        return fail(p, "'::=' is missing after the name of a rule");
    p->at += 3;
    if (!tarn_failed() && tarn__gb_rule_at(p->gb, rule)->is_defined)
        return fail(p, "the rule is already defined");
    uint32_t expr = parse_alternatives(p, false);
    if (!tarn_failed() && p->at < p->end && *p->at != '\n' && *p->at != '\r')
        return fail(p, "a rule must end with its line");
    tarn__gb_rule_set(p->gb, rule, expr);
    if (!tarn_failed())
        tarn__gb_rule_at(p->gb, rule)->line = line;
    return !tarn_failed();
}

/* Every rule must be defined; finds the root. */
static bool check_rules(tarn__gb *gb, const char *function)
{
    bool has_root = false;
    for (uint32_t i = 0; i < gb->rules.count; i++) {
        const tarn__grammar_rule *rule = tarn__gb_rule_at(gb, i);
        const char *name = gb->bytes.data + rule->name;
        if (!rule->is_defined)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: line %u of the grammar: the rule '%.*s' is not defined",
                               function, (unsigned)rule->line, (int)(rule->name_length < 100 ? rule->name_length : 100),
                               name);
        if (rule->name_length == 4 && memcmp(name, "root", 4) == 0) {
            gb->root = i;
            has_root = true;
        }
    }
    return has_root || tarn__raise(TARN_ERROR_FORMAT, "%s: the grammar has no rule named root", function);
}

/* Rules in any order; the text may begin and end with comments and empty lines. */
bool tarn__gbnf_parse(tarn__gb *gb, const char *function, const char *text, size_t length)
{
    parser p = {.gb = gb, .function = function, .at = text, .end = text + length, .line = 1};
    for (skip_space(&p, true); p.at < p.end && !tarn_failed(); skip_space(&p, true))
        parse_rule(&p);
    tarn__buffer_free(&p.chains, sizeof(uint32_t));
    return !tarn_failed() && check_rules(gb, function);
}

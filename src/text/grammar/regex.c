/* regex.c: the parser of regular expressions as ECMAScript and Python write them, by recursive descent.
 *
 * What both languages read alike is supported; where they differ, or where a regular language is left (back references,
 * look-around), the construct is an error by its name. Greedy and lazy quantifiers accept the same texts. The parser
 * keeps anchors as expressions; place() then removes them at the ends of the pattern, and lets a pattern that only has
 * to be found match anything around it:
 *
 *     found anywhere     ^a|b$     becomes     a.* | .*b     with . for any character at all */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/grammar/grammar.h"

/* `where` begins errors; `encode` makes the classes, for patterns of text or of JSON strings. */
typedef struct parser {
    tarn__gb *gb;
    const char *where, *begin, *at, *end;
    tarn__class_fn encode;
    int nesting;
} parser;

static bool fail(const parser *p, const char *problem)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: the regular expression, at byte %lld: %s", p->where,
                       (long long)(p->at - p->begin), problem);
}

static bool is_next(const parser *p, const char *text)
{
    size_t length = strlen(text);
    return (size_t)(p->end - p->at) >= length && memcmp(p->at, text, length) == 0;
}

/* A fixed text, here or not at all. */
static bool skip(parser *p, const char *text)
{
    bool found = is_next(p, text);
    p->at += found ? strlen(text) : 0;
    return found;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* \d and \w are ASCII's, as in ECMAScript; \s is ECMAScript's list, of which Python's differs in rare characters. */
static const tarn__range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const tarn__range spaces[] = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                     {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                     {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
/* What . does not match in ECMAScript. */
static const tarn__range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
#define COUNT(ranges) (sizeof(ranges) / sizeof((ranges)[0]))

/* The class of \d, \w, \s; NULL: another letter. */
static const tarn__range *named_class(char letter, size_t *count)
{
    *count = letter == 'd' ? COUNT(digits) : letter == 'w' ? COUNT(words) : COUNT(spaces);
    return letter == 'd' ? digits : letter == 'w' ? words : letter == 's' ? spaces : NULL;
}

static bool parse_hex(parser *p, int count, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < count; i++, p->at++) {
        char c = p->at < p->end ? *p->at : 0;
        int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0)
            return fail(p, "\\x needs 2 hexadecimal digits and \\u needs 4");
        *code = *code * 16 + (uint32_t)value;
    }
    return true;
}

/* \u0041, \u{1F600}, or two escapes that are a surrogate pair. */
static bool parse_unicode(parser *p, uint32_t *code)
{
    uint32_t low = 0;
    /* ECMAScript's form, of one to six digits. */
    if (skip(p, "{")) {
        for (*code = 0; p->at < p->end && *p->at != '}' && *code <= TARN__MAX_CODE;) {
            uint32_t digit;
            if (!parse_hex(p, 1, &digit))
                return false;
            *code = *code * 16 + digit;
        }
        if (!skip(p, "}"))
            return fail(p, "\\u{ must end with }, and be at most 10FFFF");
    } else if (!parse_hex(p, 4, code)) {
        return false;
    }
    if (*code >= 0xD800 && *code <= 0xDBFF && skip(p, "\\u")) {
        if (!parse_hex(p, 4, &low))
            return false;
        if (low >= 0xDC00 && low <= 0xDFFF)
            *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (*code > TARN__MAX_CODE || (*code >= 0xD800 && *code <= 0xDFFF))
        return fail(p, "an escape is a lone surrogate or beyond U+10FFFF");
    return true;
}

/* The escape of one character, after the backslash. */
static bool parse_escape(parser *p, uint32_t *code)
{
    char problem[80], c = p->at < p->end ? *p->at : 0;
    if (c == 0)
        return fail(p, "a backslash ends the pattern");
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
        size_t bytes = tarn__utf8_decode(p->at, (size_t)(p->end - p->at), code);
        p->at += bytes;
        return bytes || fail(p, "the text is not valid UTF-8");
    }
    p->at++;
    switch (c) {
    case 't': *code = '\t'; return true;
    case 'n': *code = '\n'; return true;
    case 'r': *code = '\r'; return true;
    case 'f': *code = '\f'; return true;
    case 'v': *code = '\v'; return true;
    case 'x': return parse_hex(p, 2, code);
    case 'u': return parse_unicode(p, code);
    case '0':
        *code = 0;
        return !(p->at < p->end && *p->at >= '0' && *p->at <= '9') || fail(p, "octal escapes are not supported");
    case 'b':
    case 'B': return fail(p, "the word boundary \\b is not supported");
    case 'p':
    case 'P': return fail(p, "Unicode properties, \\p{…}, are not supported");
    case 'k': return fail(p, "back references, \\k<…>, are not supported");
    default:
        snprintf(problem, sizeof(problem),
                 c >= '1' && c <= '9' ? "the back reference \\%c is not supported" : "the escape \\%c is not supported",
                 c);
        return fail(p, problem);
    }
}

/* One character inside a class, or a named class, which is appended to `ranges`. */
static bool parse_class_part(parser *p, tarn__buffer *ranges, uint32_t *code, bool *is_class)
{
    size_t count, bytes = tarn__utf8_decode(p->at, (size_t)(p->end - p->at), code);
    *is_class = false;
    if (bytes == 0)
        return fail(p, p->at < p->end ? "the text is not valid UTF-8" : "a class is not closed");
    p->at += bytes;
    if (*code != '\\')
        return true;
    const tarn__range *named = p->at < p->end ? named_class(*p->at, &count) : NULL;
    if (named) {
        p->at++;
        *is_class = true;
        return tarn__buffer_add(ranges, named, count, sizeof(*named));
    }
    if (p->at < p->end && (*p->at == 'D' || *p->at == 'W' || *p->at == 'S')) {
        uint32_t low = 0;
        named = named_class((char)(*p->at++ + 'a' - 'A'), &count);
        *is_class = true;
        /* The gaps between the ranges of the small letter's class: they are sorted. */
        for (size_t i = 0; i < count; low = named[i++].high + 1)
            if (named[i].low > low &&
                !tarn__buffer_add(ranges, &(tarn__range){low, named[i].low - 1}, 1, sizeof(*named)))
                return false;
        return tarn__buffer_add(ranges, &(tarn__range){low, TARN__MAX_CODE}, 1, sizeof(*named));
    }
    /* In a class \b is a backspace, in both languages. */
    if (skip(p, "b")) {
        *code = '\b';
        return true;
    }
    return parse_escape(p, code);
}

/* A - at the beginning or end stands for itself; [\d-x] and [a-\d] are errors in one language or the other. */
static bool parse_ranges(parser *p, tarn__buffer *ranges)
{
    while (!tarn_failed() && !skip(p, "]")) {
        tarn__range range;
        bool is_class, is_class_end = false;
        if (!parse_class_part(p, ranges, &range.low, &is_class))
            return false;
        range.high = range.low;
        if (is_next(p, "-") && !is_next(p, "-]")) {
            p->at++;
            if (!parse_class_part(p, ranges, &range.high, &is_class_end))
                return false;
            if (is_class || is_class_end || range.low > range.high)
                return fail(p, "a range of a class runs backwards, or ends in a class such as \\d");
        }
        if (!is_class)
            tarn__buffer_add(ranges, &range, 1, sizeof(range));
    }
    return !tarn_failed();
}

static uint32_t parse_class(parser *p)
{
    tarn__buffer ranges = {0};
    bool negated = skip(p, "^");
    uint32_t expr = 0;
    if (is_next(p, "]"))
        fail(p, "[] and [^] are not supported: ECMAScript and Python read them differently");
    else if (parse_ranges(p, &ranges))
        expr = p->encode(p->gb, (const tarn__range *)(const void *)ranges.data, ranges.count, negated);
    tarn__buffer_free(&ranges, sizeof(tarn__range));
    return expr;
}

/* A single character goes through `encode` too: in JSON it may need an escape. */
static uint32_t character(const parser *p, uint32_t code)
{
    return p->encode(p->gb, &(tarn__range){code, code}, 1, false);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* a|bc|: sequences up to ) or the end; an empty one is the empty string. */
static uint32_t parse_alternatives(parser *p);

/* Constructs that begin with "(?" and are not supported. */
static const struct {
    const char *text, *problem;
} refused_groups[] = {{"(?=", "look-ahead, (?=…), is not supported"},
                      {"(?!", "negative look-ahead, (?!…), is not supported"},
                      {"(?<=", "look-behind, (?<=…), is not supported"},
                      {"(?<!", "negative look-behind, (?<!…), is not supported"},
                      {"(?>", "atomic groups, (?>…), are not supported"},
                      {"(?P=", "back references, (?P=…), are not supported"},
                      {"(?(", "conditional groups, (?(…)…), are not supported"}};

/* Groups, named or not, capture nothing here: only which texts match counts. A comment is the empty string. */
static uint32_t parse_group(parser *p)
{
    for (size_t i = 0; i < COUNT(refused_groups); i++)
        if (is_next(p, refused_groups[i].text))
            return (uint32_t)fail(p, refused_groups[i].problem);
    if (skip(p, "(?#")) {
        while (p->at < p->end && *p->at != ')')
            p->at++;
        return skip(p, ")") ? 0 : (uint32_t)fail(p, "a comment is not closed");
    }
    if (skip(p, "(?P<") || skip(p, "(?<")) {
        while (p->at < p->end && *p->at != '>' && *p->at != ')')
            p->at++;
        if (!skip(p, ">"))
            return (uint32_t)fail(p, "the name of a group is not closed");
    } else if (!skip(p, "(?:")) {
        if (is_next(p, "(?"))
            return (uint32_t)fail(p, "flags, (?i), are not supported");
        p->at++;
    }
    uint32_t expr = parse_alternatives(p);
    if (!tarn_failed() && !skip(p, ")"))
        fail(p, "a parenthesis is not closed");
    return expr;
}

/* After a backslash outside of classes: \A, \Z and \z are Python's and others' anchors, then classes, then
 * characters. */
static uint32_t parse_backslash(parser *p)
{
    size_t count;
    uint32_t code;
    char c = p->at < p->end ? *p->at : 0;
    if (c == 'A' || c == 'Z' || c == 'z') {
        p->at++;
        return tarn__gb_anchor(p->gb, c == 'A' ? TARN__E_BEGIN : TARN__E_END);
    }
    bool negated = c == 'D' || c == 'W' || c == 'S';
    const tarn__range *named = named_class(negated ? (char)(c + 'a' - 'A') : c, &count);
    if (named) {
        p->at++;
        return p->encode(p->gb, named, count, negated);
    }
    return parse_escape(p, &code) ? character(p, code) : 0;
}

/* ] and } alone stand for themselves, as in ECMAScript without the flag u. */
static uint32_t parse_atom(parser *p)
{
    uint32_t code;
    size_t bytes = tarn__utf8_decode(p->at, (size_t)(p->end - p->at), &code);
    if (bytes == 0)
        return (uint32_t)fail(p, "the text is not valid UTF-8");
    if (is_next(p, "("))
        return parse_group(p);
    if (strchr("*+?", (int)(code < 128 ? code : 'x')))
        return (uint32_t)fail(p, "a quantifier has nothing to repeat");
    p->at += bytes;
    switch (code) {
    case '[': return parse_class(p);
    case '.': return p->encode(p->gb, line_ends, COUNT(line_ends), true);
    case '^': return tarn__gb_anchor(p->gb, TARN__E_BEGIN);
    case '$': return tarn__gb_anchor(p->gb, TARN__E_END);
    case '\\': return parse_backslash(p);
    default: return character(p, code);
    }
}

/* ---- quantifiers ------------------------------------------------------------------------------------------------- */

/* False without an error if there are no digits. */
static bool parse_number(parser *p, int32_t *value)
{
    const char *begin = p->at;
    for (*value = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if ((*value = *value * 10 + (*p->at - '0')) > TARN__G_MAX_REPEAT)
            return fail(p, "a repetition is above 100000");
    return p->at > begin;
}

/* {m}, {m,} or {m,n}; a brace that is none of them is a character. False, without an error, for that. */
static bool parse_bounds(parser *p, int32_t *min, int32_t *max)
{
    const char *begin = p->at++;
    if (is_next(p, ","))
        return fail(p, "{,n} is not supported: ECMAScript and Python read it differently; write {0,n}");
    bool good = parse_number(p, min);
    *max = *min;
    if (good && skip(p, ",")) {
        *max = -1;
        if (!is_next(p, "}"))
            good = parse_number(p, max);
    }
    good = good && skip(p, "}");
    if (good && *max != -1 && *max < *min)
        return fail(p, "the bounds of a repetition run backwards");
    if (!good)
        p->at = begin;
    return good;
}

/* An atom with at most one quantifier: a** is an error in both languages. */
static uint32_t parse_quantified(parser *p)
{
    int32_t min = 0, max = -1;
    uint32_t expr = parse_atom(p);
    if (tarn_failed())
        return 0;
    if (skip(p, "+"))
        min = 1;
    else if (skip(p, "?"))
        max = 1;
    else if (!skip(p, "*") && !(is_next(p, "{") && parse_bounds(p, &min, &max)))
        return expr;
    skip(p, "?"); /* lazy */
    if (is_next(p, "+"))
        return (uint32_t)fail(p, "possessive quantifiers are not supported");
    if (is_next(p, "*") || is_next(p, "?"))
        return (uint32_t)fail(p, "a quantifier has nothing to repeat");
    return tarn__gb_repeat(p->gb, expr, min, max);
}

static uint32_t parse_alternatives(parser *p)
{
    tarn__buffer parts = {0}, sequence = {0};
    uint32_t expr = 0;
    if (++p->nesting > TARN__G_MAX_NESTING)
        fail(p, "parentheses are nested too deeply");
    while (!tarn_failed()) {
        sequence.count = 0;
        while (!tarn_failed() && p->at < p->end && *p->at != '|' && *p->at != ')') {
            expr = parse_quantified(p);
            tarn__buffer_add(&sequence, &expr, 1, sizeof(expr));
        }
        expr = tarn_failed() ? 0 : tarn__gb_seq(p->gb, (const uint32_t *)(const void *)sequence.data, sequence.count);
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
        if (!skip(p, "|"))
            break;
    }
    p->nesting--;
    expr = tarn_failed() ? 0 : tarn__gb_alt(p->gb, (const uint32_t *)(const void *)parts.data, parts.count);
    tarn__buffer_free(&parts, sizeof(uint32_t));
    tarn__buffer_free(&sequence, sizeof(uint32_t));
    return expr;
}

/* ---- anchors ----------------------------------------------------------------------------------------------------- */

/* Linear in the expression, for each level of place_expr(): patterns are short. */
static bool has_anchor(const tarn__gb *gb, uint32_t expr)
{
    const tarn__expr *e = tarn__gb_expr(gb, expr);
    if (e->kind == TARN__E_REPEAT)
        return has_anchor(gb, e->first);
    for (uint32_t i = 0; (e->kind == TARN__E_SEQ || e->kind == TARN__E_ALT) && i < e->count; i++)
        if (has_anchor(gb, tarn__gb_children(gb, e)[i]))
            return true;
    return e->kind == TARN__E_BEGIN || e->kind == TARN__E_END;
}

/* What a pattern is among: `before` and `after` match what may stand around it; 0: nothing. `at_begin` and `at_end` say
 * that it is at that end of the pattern, so that an anchor may stand there. */
typedef struct place {
    uint32_t before, after;
    bool at_begin, at_end;
} place;

static uint32_t place_expr(parser *p, uint32_t expr, place at);

/* A copy, since new expressions move the builder's. NULL with an error. */
static uint32_t *copy_children(const uint32_t *children, size_t count)
{
    uint32_t *copy = tarn__alloc(sizeof(*copy) * count);
    if (copy)
        memcpy(copy, children, sizeof(*copy) * count);
    return copy;
}

/* A sequence: anchors at its ends are dropped with what would stand outside of them. */
static uint32_t place_seq(parser *p, const uint32_t *children, size_t count, place at)
{
    size_t first = 0;
    while (at.at_begin && first < count && tarn__gb_expr(p->gb, children[first])->kind == TARN__E_BEGIN) {
        first++;
        at.before = 0;
    }
    while (at.at_end && count > first && tarn__gb_expr(p->gb, children[count - 1])->kind == TARN__E_END) {
        count--;
        at.after = 0;
    }
    if (first == count)
        return tarn__gb_seq_of(p->gb, at.before, at.after);
    uint32_t *parts = copy_children(children + first, count - first);
    for (size_t i = 0; parts && i < count - first; i++) {
        bool is_first = i == 0, is_last = i + 1 == count - first;
        parts[i] = place_expr(
            p, parts[i],
            (place){is_first ? at.before : 0, is_last ? at.after : 0, at.at_begin && is_first, at.at_end && is_last});
    }
    uint32_t result = parts ? tarn__gb_seq(p->gb, parts, count - first) : 0;
    tarn__release(parts, sizeof(*parts) * (count - first));
    return result;
}

/* Each branch stands where the whole stands. */
static uint32_t place_alt(parser *p, const uint32_t *children, size_t count, place at)
{
    uint32_t *parts = copy_children(children, count);
    for (size_t i = 0; parts && i < count; i++)
        parts[i] = place_expr(p, parts[i], at);
    uint32_t result = parts ? tarn__gb_alt(p->gb, parts, count) : 0;
    tarn__release(parts, sizeof(*parts) * count);
    return result;
}

/* An expression without anchors: what may stand around it is added. */
static uint32_t place_expr(parser *p, uint32_t expr, place at)
{
    if (tarn_failed())
        return 0;
    tarn__expr e = *tarn__gb_expr(p->gb, expr);
    if (!has_anchor(p->gb, expr))
        return at.before || at.after ? tarn__gb_seq_of(p->gb, at.before, expr, at.after) : expr;
    if (e.kind == TARN__E_ALT)
        return place_alt(p, tarn__gb_children(p->gb, &e), e.count, at);
    if (e.kind == TARN__E_SEQ)
        return place_seq(p, tarn__gb_children(p->gb, &e), e.count, at);
    if (e.kind == TARN__E_BEGIN && at.at_begin)
        return at.after;
    if (e.kind == TARN__E_END && at.at_end)
        return at.before;
    return (uint32_t)tarn__raise(TARN_ERROR_FORMAT, "%s: the regular expression: %s", p->where,
                                 e.kind == TARN__E_REPEAT ? "a quantifier repeats an anchor"
                                                          : "an anchor is not at the end of the pattern");
}

uint32_t tarn__regex_parse(tarn__gb *gb, const char *where, const char *pattern, size_t length, bool searches,
                           tarn__class_fn encode)
{
    parser p = {gb, where, pattern, pattern, pattern + length, encode ? encode : tarn__gb_class, 0};
    uint32_t expr = parse_alternatives(&p);
    if (!tarn_failed() && p.at < p.end)
        fail(&p, "a parenthesis closes nothing");
    /* Without `searches` the whole text must match, as with fullmatch(): nothing may stand around it. */
    uint32_t any = searches ? tarn__gb_repeat(gb, p.encode(gb, NULL, 0, true), 0, -1) : 0;
    expr = tarn_failed() ? 0 : place_expr(&p, expr, (place){any, any, true, true});
    return tarn_failed() ? 0 : expr;
}

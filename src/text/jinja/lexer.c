/* lexer.c: the text of a template as tokens, with the whitespace rules of trim_blocks and lstrip_blocks, in the
 * environment of transformers:
 *
 *     {% … %}    the newline after it goes (trim_blocks); so do the whitespace of its line before it
 *                (lstrip_blocks)
 *     {# … #}    the same
 *     {{ … }}    keeps what is around it
 *     {%- -%}    remove all whitespace on their side, newlines included; so do {{- and -}}
 *     {%+ +%}    keep it, against the two options; {{+ is a sign of the expression's
 *
 * Tokens are copied to the arena, so the source may go afterwards. Line numbers count newlines of the source. */
#include <string.h>

#include "base/number_format.h"
#include "base/utf8.h"
#include "text/jinja/program.h"

typedef struct lexer {
    tarn__jinja_run *r;
    const char *text;
    size_t at, length;
    int line;
    bool line_starting; /* what was matched last ended with a newline */
    tarn__jinja_token *tokens;
    size_t count, capacity;
    char open[256]; /* brackets to close, innermost last */
    int depth;
} lexer;

/* The token's line, not the one the run is at. */
static void fail_at(lexer *x, const char *text)
{
    x->r->line = x->line;
    tarn__jinja_fail(x->r, "%s", text);
}

static void add(lexer *x, tarn__jinja_token_kind kind, tarn__jinja_value value)
{
    if (x->count == x->capacity) {
        x->capacity = x->capacity ? x->capacity * 2 : 64;
        tarn__jinja_token *tokens = tarn__jinja_alloc(x->r->arena, x->capacity, sizeof(*tokens));
        if (x->count)
            memcpy(tokens, x->tokens, x->count * sizeof(*tokens));
        x->tokens = tokens;
    }
    x->tokens[x->count++] = (tarn__jinja_token){kind, x->line, value};
}

/* Moves on to `to`, and remembers whether a line begins there: lstrip_blocks asks at the next tag. */
static void advance(lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++)
        x->line += x->text[i] == '\n';
    x->line_starting = to > x->at && x->text[to - 1] == '\n';
    x->at = to;
}

static bool is_at(const lexer *x, size_t at, const char *text)
{
    size_t length = strlen(text);
    return length <= x->length - at && memcmp(x->text + at, text, length) == 0;
}

/* The first position that is no whitespace. */
static size_t skip_space(const lexer *x, size_t at)
{
    uint32_t code;
    for (size_t size; at < x->length && (size = tarn__jinja_decode(x->text + at, x->length - at, &code)) != 0 &&
                      tarn__jinja_is_space(code);)
        at += size;
    return at;
}

/* The end of text[begin … end) without trailing whitespace. */
static size_t without_space(const lexer *x, size_t begin, size_t end)
{
    while (end > begin) {
        size_t last = end - 1;
        uint32_t code;
        while (last > begin && end - last < 4 && ((unsigned char)x->text[last] & 0xC0) == 0x80)
            last--;
        if (tarn__utf8_decode(x->text + last, end - last, &code) != end - last || !tarn__jinja_is_space(code))
            break;
        end = last;
    }
    return end;
}

/* Adds the data before a tag at `tag`, of which a sign or lstrip_blocks removes whitespace. lstrip_blocks needs the
 * line's beginning: a newline in the data, or data that begins where a line does. Data of no bytes is no token. */
static void add_data(lexer *x, size_t tag, char sign, bool is_block)
{
    size_t begin = x->at, end = tag;
    if (sign == '-')
        end = without_space(x, begin, end);
    else if (sign != '+' && is_block) {
        size_t line = end;
        while (line > begin && x->text[line - 1] != '\n')
            line--;
        if ((line > begin || x->line_starting) && skip_space(x, line) >= end)
            end = line;
    }
    if (end > begin)
        add(x, TARN__JINJA_T_DATA, tarn__jinja_text(x->r, x->text + begin, end - begin));
}

/* The end of "-%}" with whitespace after it, "+%}", or "%}" with a newline; 0: not here. */
static size_t end_of(const lexer *x, size_t at, const char *end, bool trims, bool has_plus)
{
    if (at >= x->length)
        return 0;
    if (x->text[at] == '-' && is_at(x, at + 1, end))
        return skip_space(x, at + 1 + strlen(end));
    if (has_plus && x->text[at] == '+' && is_at(x, at + 1, end))
        return at + 1 + strlen(end);
    if (!is_at(x, at, end))
        return 0;
    at += strlen(end);
    return trims && at < x->length && x->text[at] == '\n' ? at + 1 : at;
}

/* ---- inside tags ------------------------------------------------------------------------------------------------- */

/* The value of a digit in any base up to 16; 99 is no digit of any base. */
static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Exactly `count` digits, as Python wants them after \x, \u and \U. */
static uint32_t escape_digits(lexer *x, const char *at, const char *end, int count, int base)
{
    uint32_t code = 0;
    for (int i = 0; i < count; i++) {
        if (at + i >= end || digit_of(at[i]) >= base)
            fail_at(x, "an escape in a string is incomplete");
        code = code * (uint32_t)base + (uint32_t)digit_of(at[i]);
    }
    return code;
}

/* Resolves the escape after a backslash at `at`; the position after it. */
static const char *add_escape(lexer *x, tarn__jinja_builder *b, const char *at, const char *end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = *at ? strchr(from, *at) : NULL;
    uint32_t code;
    int count = *at == 'x' ? 2 : *at == 'u' ? 4 : *at == 'U' ? 8 : 0;
    if (simple) {
        tarn__jinja_build(x->r, b, to + (simple - from), 1, NULL);
        return at + 1;
    }
    /* A backslash before a newline continues the line. */
    if (*at == '\n')
        return at + 1;
    if (*at == 'N')
        fail_at(x, "escapes \\N{name} are not supported");
    /* Octal: one to three digits, \0 to \777. An unknown escape keeps its backslash. */
    if (digit_of(*at) < 8)
        for (code = 0; count < 3 && at + count < end && digit_of(at[count]) < 8; count++)
            code = code * 8 + (uint32_t)digit_of(at[count]);
    else if (count) {
        code = escape_digits(x, at + 1, end, count, 16);
        count++;
    } else {
        tarn__jinja_build_text(x->r, b, "\\");
        return at;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        fail_at(x, "an escape in a string is no code point");
    tarn__jinja_build_code(x->r, b, code, 0);
    return at + count;
}

/* A string with its escapes resolved. It may span lines; a quote after a backslash does not end it. */
static void add_string(lexer *x)
{
    char quote = x->text[x->at];
    size_t end = x->at + 1;
    for (; end < x->length && x->text[end] != quote; end++)
        end += x->text[end] == '\\';
    if (end >= x->length)
        fail_at(x, "a string does not end");
    tarn__jinja_builder b = {0};
    for (const char *at = x->text + x->at + 1, *stop = x->text + end; at < stop;) {
        if (*at == '\\')
            at = add_escape(x, &b, at + 1, stop);
        else
            tarn__jinja_build(x->r, &b, at++, 1, NULL);
    }
    add(x, TARN__JINJA_T_STRING, tarn__jinja_built(x->r, &b));
    advance(x, end + 1);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The end of digits with underscores between them. */
static size_t digits_end(const lexer *x, size_t at, int base)
{
    if (at >= x->length || digit_of(x->text[at]) >= base)
        return at;
    for (at++; at < x->length; at++)
        if (digit_of(x->text[at]) >= base &&
            !(x->text[at] == '_' && at + 1 < x->length && digit_of(x->text[at + 1]) < base))
            break;
    return at;
}

/* The end of e or E, a sign and digits; `at` itself if there are no digits: 1.e3 is the attribute e3. */
static size_t exponent_end(const lexer *x, size_t at)
{
    size_t digits = at + 1;
    if (at >= x->length || (x->text[at] != 'e' && x->text[at] != 'E'))
        return at;
    if (digits < x->length && (x->text[digits] == '+' || x->text[digits] == '-'))
        digits++;
    size_t end = digits_end(x, digits, 10);
    return end > digits ? end : at;
}

/* The digits of 0x, 0o and 0b begin after the prefix. */
static void add_integer(lexer *x, size_t begin, size_t end, int base)
{
    int64_t number = 0;
    for (size_t i = begin; i < end; i++) {
        if (x->text[i] == '_')
            continue;
        if (number > (INT64_MAX - digit_of(x->text[i])) / base)
            fail_at(x, "an integer is too large");
        number = number * base + digit_of(x->text[i]);
    }
    add(x, TARN__JINJA_T_INTEGER, tarn__jinja_int(number));
    advance(x, end);
}

/* Digits beyond the buffer cannot change a double and are dropped. */
static void add_float(lexer *x, size_t end)
{
    char text[400];
    size_t length = 0;
    for (size_t i = x->at; i < end; i++)
        if (x->text[i] != '_' && length + 1 < sizeof(text))
            text[length++] = x->text[i];
    text[length] = 0;
    add(x, TARN__JINJA_T_FLOAT, tarn__jinja_float(tarn__number_parse(text)));
    advance(x, end);
}

/* Jinja's expressions for numbers: a point needs digits on both sides, so 1.x is an attribute; after a point there are
 * integers only, so that x.0.1 is two subscripts. "007" is 00 and 7, which no grammar joins: an error, as in Jinja. */
static void add_number(lexer *x)
{
    size_t at = x->at, end = digits_end(x, at, 10), fraction = end, last;
    char letter = at + 1 < x->length ? x->text[at + 1] : 0;
    int base = letter == 'x' || letter == 'X'   ? 16
               : letter == 'o' || letter == 'O' ? 8
               : letter == 'b' || letter == 'B' ? 2
                                                : 0;
    bool after_dot = at > 0 && x->text[at - 1] == '.';
    if (end < x->length && x->text[end] == '.' && digits_end(x, end + 1, 10) > end + 1)
        fraction = digits_end(x, end + 1, 10);
    last = exponent_end(x, fraction);
    if (!after_dot && last > end) {
        add_float(x, last);
        return;
    }
    size_t digits = at + 2 < x->length && x->text[at + 2] == '_' ? at + 3 : at + 2;
    if (x->text[at] == '0' && base && digits_end(x, digits, base) > digits)
        add_integer(x, at + 2, digits_end(x, digits, base), base);
    else if (x->text[at] == '0') { /* 0 is followed by zeros only */
        for (end = at + 1; end < x->length && (x->text[end] == '0' || x->text[end] == '_'); end++)
            continue;
        add_integer(x, at, x->text[end - 1] == '_' ? at + 1 : end, 10);
    } else
        add_integer(x, at, end, 10);
}

/* All of UTF-8 beyond ASCII is part of names, more than Python's identifiers. */
static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static void add_name(lexer *x)
{
    size_t end = x->at;
    while (end < x->length && (is_name_start(x->text[end]) || is_digit(x->text[end])))
        end++;
    add(x, TARN__JINJA_T_NAME, tarn__jinja_text(x->r, x->text + x->at, end - x->at));
    advance(x, end);
}

/* Within brackets }} and %} do not end a tag: {{ {"a": {}} }}. */
static void balance(lexer *x, char c)
{
    const char *open = "([{", *close = ")]}", *closing = strchr(close, c);
    if (strchr(open, c)) {
        if (x->depth == (int)sizeof(x->open))
            fail_at(x, "too many nested brackets");
        x->open[x->depth++] = c;
    } else if (closing && (x->depth == 0 || x->open[--x->depth] != open[closing - close]))
        fail_at(x, "a closing bracket is out of place");
}

/* Longer operators come first in the table: the first that fits is taken. */
static void add_operator(lexer *x)
{
    static const struct {
        const char *text;
        tarn__jinja_token_kind kind;
    } operators[] = {{"//", TARN__JINJA_T_FLOORDIV}, {"**", TARN__JINJA_T_POW},     {"==", TARN__JINJA_T_EQ},
                     {"!=", TARN__JINJA_T_NE},       {">=", TARN__JINJA_T_GTEQ},    {"<=", TARN__JINJA_T_LTEQ},
                     {"+", TARN__JINJA_T_ADD},       {"-", TARN__JINJA_T_SUB},      {"/", TARN__JINJA_T_DIV},
                     {"*", TARN__JINJA_T_MUL},       {"%", TARN__JINJA_T_MOD},      {"~", TARN__JINJA_T_TILDE},
                     {"[", TARN__JINJA_T_LBRACKET},  {"]", TARN__JINJA_T_RBRACKET}, {"(", TARN__JINJA_T_LPAREN},
                     {")", TARN__JINJA_T_RPAREN},    {"{", TARN__JINJA_T_LBRACE},   {"}", TARN__JINJA_T_RBRACE},
                     {">", TARN__JINJA_T_GT},        {"<", TARN__JINJA_T_LT},       {"=", TARN__JINJA_T_ASSIGN},
                     {".", TARN__JINJA_T_DOT},       {":", TARN__JINJA_T_COLON},    {"|", TARN__JINJA_T_PIPE},
                     {",", TARN__JINJA_T_COMMA},     {";", TARN__JINJA_T_SEMICOLON}};
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
        if (is_at(x, x->at, operators[i].text)) {
            if (!operators[i].text[1])
                balance(x, operators[i].text[0]);
            add(x, operators[i].kind, tarn__jinja_none());
            advance(x, x->at + strlen(operators[i].text));
            return;
        }
    x->r->line = x->line;
    tarn__jinja_fail(x->r, "unexpected character '%.1s'", x->text + x->at);
}

/* The tokens of a tag up to its end. */
static void lex_tag(lexer *x, bool is_block)
{
    const char *end = is_block ? "%}" : "}}";
    x->depth = 0;
    for (;;) {
        size_t after = x->depth ? 0 : end_of(x, x->at, end, is_block, is_block);
        if (after) {
            add(x, is_block ? TARN__JINJA_T_BLOCK_END : TARN__JINJA_T_VARIABLE_END, tarn__jinja_none());
            advance(x, after);
            return;
        }
        if (x->at >= x->length)
            fail_at(x, "a tag does not end");
        size_t next = skip_space(x, x->at);
        if (next > x->at)
            advance(x, next);
        else if (x->text[x->at] == '"' || x->text[x->at] == '\'')
            add_string(x);
        else if (is_digit(x->text[x->at]))
            add_number(x);
        else if (is_name_start(x->text[x->at]))
            add_name(x);
        else
            add_operator(x);
    }
}

/* ---- tags -------------------------------------------------------------------------------------------------------- */

/* The whitespace sign after {{, {% or {#. */
static char sign_at(const lexer *x, size_t at)
{
    return at < x->length && (x->text[at] == '-' || x->text[at] == '+') ? x->text[at] : 0;
}

/* The end of {% word %} at `at`; 0: another tag. Raw blocks are found by their text, since nothing in them is lexed;
 * {%- raw -%} has signs as every tag. */
static size_t word_tag_end(const lexer *x, size_t at, const char *word, bool trims, bool has_plus)
{
    at += 2;
    at = skip_space(x, at + (sign_at(x, at) != 0));
    if (!is_at(x, at, word))
        return 0;
    return end_of(x, skip_space(x, at + strlen(word)), "%}", trims, has_plus);
}

/* The first #} ends a comment; they do not nest. */
static void lex_comment(lexer *x, size_t tag)
{
    for (size_t at = tag + 2; at < x->length; at++) {
        size_t end = end_of(x, at, "#}", true, true);
        if (end) {
            advance(x, end);
            return;
        }
    }
    fail_at(x, "a comment does not end");
}

/* Data up to {% endraw %}. */
static void lex_raw(lexer *x, size_t begin)
{
    advance(x, begin);
    for (size_t at = begin; at < x->length; at++) {
        size_t end = is_at(x, at, "{%") ? word_tag_end(x, at, "endraw", true, true) : 0;
        if (end) {
            add_data(x, at, sign_at(x, at + 2), true);
            advance(x, end);
            return;
        }
    }
    fail_at(x, "a raw block does not end");
}

/* Lexes up to the next tag and the tag. */
static void lex_next(lexer *x)
{
    size_t tag = x->at;
    while (tag < x->length &&
           !(x->text[tag] == '{' && tag + 1 < x->length && strchr("{%#", x->text[tag + 1]) && x->text[tag + 1]))
        tag++;
    if (tag == x->length) {
        add_data(x, tag, '+', false);
        advance(x, tag);
        return;
    }
    char kind = x->text[tag + 1], sign = sign_at(x, tag + 2);
    /* The tag itself removes no newline after it: what follows is the block's text. */
    size_t raw = kind == '%' ? word_tag_end(x, tag, "raw", false, false) : 0;
    add_data(x, tag, sign, kind != '{');
    if (raw)
        lex_raw(x, raw);
    else if (kind == '#')
        lex_comment(x, tag);
    else {
        advance(x, tag + 2 + (sign != 0));
        add(x, kind == '%' ? TARN__JINJA_T_BLOCK_BEGIN : TARN__JINJA_T_VARIABLE_BEGIN, tarn__jinja_none());
        lex_tag(x, kind == '%');
    }
}

/* A copy with \n for every newline, without the last one (keep_trailing_newline is off). */
static void normalize(lexer *x, const char *source, size_t length)
{
    char *text = tarn__jinja_alloc(x->r->arena, length + 1, 1);
    for (size_t i = 0; i < length; i++) {
        if (source[i] == '\r' && i + 1 < length && source[i + 1] == '\n')
            continue;
        text[x->length++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (x->length && text[x->length - 1] == '\n')
        x->length--;
    x->text = text;
}

tarn__jinja_token *tarn__jinja_tokenize(tarn__jinja_run *r, const char *source, size_t length, size_t *count)
{
    lexer x = {.r = r, .line = 1, .line_starting = true};
    normalize(&x, source, length);
    while (x.at < x.length)
        lex_next(&x);
    add(&x, TARN__JINJA_T_END, tarn__jinja_none());
    *count = x.count;
    return x.tokens;
}

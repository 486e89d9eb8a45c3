/* filters_text.c: filters of strings and numbers. Filters of strings take anything and work on its str(), but for those
 * that Jinja writes with methods of str only; methods (methods_text.c) take strings alone. A result keeps the origins
 * of the bytes that it copies.
 *
 * A new filter is a function and a row of the table at the end; the row's mode is what its function is called with. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number_format.h"
#include "text/jinja/eval.h"

/* "aB"|upper is "AB", |lower "ab", |capitalize "Ab". */
static tarn__jinja_value change_case(tarn__jinja_run *r, tarn__jinja_value input,
                                     const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_bind(r, "case", arguments, "", 0, NULL);
    return tarn__jinja_change_case(r, tarn__jinja_str(r, input), mode);
}

/* Words begin after whitespace and opening brackets, other than str.title()'s. */
static tarn__jinja_value title(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                               int mode)
{
    const tarn__jinja_string *s = tarn__jinja_str(r, input);
    tarn__jinja_builder b = {0};
    bool begins = true;
    uint32_t code;
    (void)mode;
    tarn__jinja_bind(r, "title", arguments, "", 0, NULL);
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        const tarn__jinja_string *part = tarn__jinja_slice_of(r, s, at, at + size).as.string;
        tarn__jinja_build_string(
            r, &b, tarn__jinja_change_case(r, part, begins ? TARN__JINJA_UPPER : TARN__JINJA_LOWER).as.string);
        /* The separators of Jinja's filter: whitespace, - ( { [ and <. */
        begins = tarn__jinja_is_space(code) || (code && code < 0x80 && strchr("-({[<", (int)code));
    }
    return tarn__jinja_built(r, &b);
}

/* " a "|trim is "a"; "xax"|trim("x") too: the argument is a set of characters. */
static tarn__jinja_value trim(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    tarn__jinja_value characters = tarn__jinja_none();
    (void)mode;
    tarn__jinja_bind(r, "trim", arguments, "chars", 0, &characters);
    return tarn__jinja_strip(r, tarn__jinja_str(r, input), characters, 3);
}

/* "aaa"|replace("a", "b", 2) is "bba". A count of none or below 0 replaces all. */
static tarn__jinja_value replace(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                 int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_none(), tarn__jinja_none(), tarn__jinja_none()};
    (void)mode;
    tarn__jinja_bind(r, "replace", arguments, "old new count", 2, values);
    int64_t count = values[2].kind == TARN__JINJA_NONE ? -1 : tarn__jinja_index(r, "replace", values[2]);
    return tarn__jinja_replace(r, tarn__jinja_str(r, input), tarn__jinja_str(r, values[0]),
                               tarn__jinja_str(r, values[1]), count);
}

/* 1|string is "1"; markup stays markup. */
static tarn__jinja_value string(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "string", arguments, "", 0, NULL);
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = tarn__jinja_str(r, input)}};
}

/* A copy that counts as escaped. Nothing is escaped by itself here (autoescape is off), so markup matters for + and the
 * methods of markup only. */
static tarn__jinja_value marked_safe(tarn__jinja_run *r, tarn__jinja_value v)
{
    tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
    *s = *tarn__jinja_str(r, v);
    s->is_markup = true;
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = s}};
}

/* "<b>"|safe: the text is HTML already. */
static tarn__jinja_value safe(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "safe", arguments, "", 0, NULL);
    return marked_safe(r, input);
}

/* escape leaves markup alone, forceescape does not. */
static tarn__jinja_value escape(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_bind(r, "escape", arguments, "", 0, NULL);
    if (mode && input.kind == TARN__JINJA_STRING) { /* forceescape */
        tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
        *s = *input.as.string;
        s->is_markup = false;
        input.as.string = s;
    }
    return tarn__jinja_escape(r, input);
}

/* {"a": [1, none]}|tojson is {"a": [1, null]}; the result is no markup, as transformers replaces Jinja's filter. */
static tarn__jinja_value tojson(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_builder b = {0};
    (void)mode;
    tarn__jinja_json(r, input, arguments, &b);
    return tarn__jinja_built(r, &b);
}

/* "%s and %d"|format("a", 1): the arguments are those of the % operator, as a tuple or, by keywords, a dict. */
static tarn__jinja_value format(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_value values = {TARN__JINJA_TUPLE, {.list = (tarn__jinja_list *)(uintptr_t)&arguments->positional}};
    (void)mode;
    if (arguments->positional.count && arguments->keywords.count)
        tarn__jinja_fail(r, "can't handle positional and keyword arguments at the same time");
    if (arguments->keywords.count)
        values = (tarn__jinja_value){TARN__JINJA_DICT, {.dict = (tarn__jinja_dict *)(uintptr_t)&arguments->keywords}};
    return tarn__jinja_format_percent(r, tarn__jinja_str(r, input), values);
}

/* ---- lines and words --------------------------------------------------------------------------------------------- */

/* The ends of lines of str.splitlines(), which are more than \n. */
static bool is_line_end(uint32_t code)
{
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

/* "a\nb"|indent(2) is "a\n  b". The first line is indented with `first`, lines without text with `blank`; every end of
 * a line becomes \n, as Jinja joins what splitlines() returned. A width may be a string. */
static tarn__jinja_value indent(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_int(4), tarn__jinja_bool(false), tarn__jinja_bool(false)};
    const tarn__jinja_string *s = tarn__jinja_want_string(r, "indent", input);
    tarn__jinja_builder b = {0}, margin = {0};
    (void)mode;
    tarn__jinja_bind(r, "indent", arguments, "width first blank", 0, values);
    if (values[0].kind == TARN__JINJA_STRING)
        tarn__jinja_build_string(r, &margin, values[0].as.string);
    else
        for (int64_t i = 0, width = tarn__jinja_index(r, "indent", values[0]); i < width; i++)
            tarn__jinja_build_text(r, &margin, " ");
    /* The margin before the first line, and before lines without text. */
    bool begins = tarn__jinja_truth(r, values[1]), blanks = tarn__jinja_truth(r, values[2]);
    if (begins)
        tarn__jinja_build(r, &b, margin.text, margin.length, NULL);
    uint32_t code;
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        if (!is_line_end(code)) {
            tarn__jinja_build(r, &b, s->text + at, size, s->origin ? s->origin + at : NULL);
            continue;
        }
        size += code == '\r' && at + 1 < s->length && s->text[at + 1] == '\n';
        /* An end of the text looks like an end of a line: nothing is indented after it. */
        uint32_t next = '\n';
        tarn__jinja_decode(s->text + at + size, s->length - at - size, &next);
        tarn__jinja_build_text(r, &b, "\n");
        if (blanks || (at + size < s->length && !is_line_end(next)))
            tarn__jinja_build(r, &b, margin.text, margin.length, NULL);
    }
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), s);
}

/* "hello world foo"|truncate(9) is "hello...": at most `length` code points with `end`, cut before the last word that
 * does not fit unless killwords. A text that is too long by `leeway` code points or fewer stays whole. */
static tarn__jinja_value truncate(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    tarn__jinja_value values[4] = {tarn__jinja_int(255), tarn__jinja_bool(false), TARN__JINJA_TEXT("..."),
                                   tarn__jinja_none()};
    (void)mode;
    tarn__jinja_bind(r, "truncate", arguments, "length killwords end leeway", 0, values);
    const tarn__jinja_string *end = tarn__jinja_want_string(r, "truncate", values[2]);
    /* The end counts as part of the length, so a length below it cannot be met. */
    int64_t length = tarn__jinja_index(r, "truncate", values[0]), end_length = (int64_t)tarn__jinja_count(end),
            leeway = values[3].kind == TARN__JINJA_NONE ? 5 : tarn__jinja_index(r, "truncate", values[3]);
    if (length < end_length || leeway < 0)
        tarn__jinja_fail(r, "truncate: a length of at least %d is expected, and a leeway of at least 0",
                         (int)end_length);
    /* Anything with a length that fits is returned as it is; only what must be cut has to be a string. */
    int64_t given = tarn__jinja_length(r, input);
    if (given <= length || given - length <= leeway)
        return input;
    const tarn__jinja_string *s = tarn__jinja_want_string(r, "truncate", input);
    size_t stop = tarn__jinja_offset(s, (size_t)(length - end_length));
    /* rsplit(" ", 1): without a space nothing more is cut. */
    for (size_t at = stop; !tarn__jinja_truth(r, values[1]) && at > 0; at--)
        if (s->text[at - 1] == ' ') {
            stop = at - 1;
            break;
        }
    tarn__jinja_builder b = {0};
    tarn__jinja_build(r, &b, s->text, stop, s->origin);
    tarn__jinja_build_string(r, &b, end);
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), s);
}

/* The number of matches of \w+. */
static tarn__jinja_value wordcount(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                   int mode)
{
    const tarn__jinja_string *s = tarn__jinja_str(r, input);
    int64_t count = 0;
    bool inside = false;
    uint32_t code;
    (void)mode;
    tarn__jinja_bind(r, "wordcount", arguments, "", 0, NULL);
    for (size_t at = 0; at < s->length;) {
        at += tarn__jinja_decode(s->text + at, s->length - at, &code);
        bool is_word = tarn__jinja_is_alpha(code) || code == '_' || (code >= '0' && code <= '9');
        count += is_word && !inside;
        inside = is_word;
    }
    return tarn__jinja_int(count);
}

/* The method of strings, for any value; the width is 80 unless given. */
static tarn__jinja_value center(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_value width = tarn__jinja_int(80), text = {TARN__JINJA_STRING, {.string = tarn__jinja_str(r, input)}};
    (void)mode;
    tarn__jinja_bind(r, "center", arguments, "width", 0, &width);
    tarn__jinja_arguments *inner = tarn__jinja_alloc(r->arena, 1, sizeof(*inner));
    tarn__jinja_append(r, &inner->positional, width);
    return tarn__jinja_call(r, tarn__jinja_attribute(r, text, TARN__JINJA_TEXT("center").as.string), inner);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Python's int(text, base): true if the text, without whitespace around it, is a number of that base that fits 64 bits.
 * 0x, 0o and 0b may stand before digits of bases 16, 8 and 2, underscores between digits: "1_000". */
static bool parse_int(const tarn__jinja_string *s, int64_t base, int64_t *number)
{
    size_t at = 0;
    bool is_negative = s->length && s->text[0] == '-';
    at += s->length && (s->text[0] == '-' || s->text[0] == '+');
    char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : 0;
    bool has_prefix = letter && s->length > at + 1 && s->text[at] == '0' && (s->text[at + 1] | 32) == letter;
    at += has_prefix ? 2 : 0;
    if (at == s->length)
        return false;
    uint64_t sum = 0;
    for (bool was_digit = has_prefix; at < s->length; at++) { /* 0x_1f is a number too */
        char c = s->text[at];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
        /* An underscore needs a digit on both sides. */
        if (c == '_' && was_digit && at + 1 < s->length) {
            was_digit = false;
            continue;
        }
        /* Before the sum is formed, which could overflow. */
        if (digit >= base || sum > (uint64_t)(INT64_MAX - digit) / (uint64_t)base)
            return false;
        sum = sum * (uint64_t)base + (uint64_t)digit;
        was_digit = true;
    }
    *number = is_negative ? -(int64_t)sum : (int64_t)sum;
    return true;
}

/* Compares without regard to case, after a sign. `word` is in small letters; | 32 maps no other character to one of
 * them that a number could have. */
static bool is_word(const char *text, const char *word)
{
    text += *text == '-' || *text == '+';
    for (; *word; text++, word++)
        if ((*text | 32) != *word)
            return false;
    return *text == 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The grammar of a decimal number; strtod() alone accepts more. */
static bool is_decimal(const char *text)
{
    size_t whole, fraction = 0;
    text += *text == '-' || *text == '+';
    whole = strspn(text, "0123456789");
    text += whole;
    if (*text == '.') {
        fraction = strspn(text + 1, "0123456789");
        text += 1 + fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*text == 'e' || *text == 'E') {
        text += 1 + (text[1] == '-' || text[1] == '+');
        size_t exponent = strspn(text, "0123456789");
        text += exponent;
        return exponent && *text == 0;
    }
    return *text == 0;
}

/* Python's float(text). The texts of the three special values have any case and a sign; underscores may stand between
 * digits. */
static bool parse_float(tarn__jinja_run *r, const tarn__jinja_string *s, double *number)
{
    char text[400];
    const tarn__jinja_string *stripped = tarn__jinja_strip(r, s, tarn__jinja_none(), 3).as.string;
    if (stripped->length == 0 || stripped->length >= sizeof(text))
        return false;
    /* A longer text is no number: digits beyond 400 characters do not occur. */
    size_t length = 0;
    for (size_t i = 0; i < stripped->length; i++) {
        bool is_between =
            i > 0 && i + 1 < stripped->length && is_digit(stripped->text[i - 1]) && is_digit(stripped->text[i + 1]);
        if (stripped->text[i] != '_' || !is_between)
            text[length++] = stripped->text[i];
    }
    text[length] = 0;
    if (is_word(text, "inf") || is_word(text, "infinity"))
        *number = *text == '-' ? -INFINITY : INFINITY;
    else if (is_word(text, "nan"))
        *number = NAN;
    else if (is_decimal(text))
        *number = tarn__number_parse(text);
    else
        return false;
    return true;
}

/* int and float have a default for what is no number, but not for what is undefined. */
static void check_defined(tarn__jinja_run *r, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_UNDEFINED)
        tarn__jinja_fail(r, "'%.*s' is undefined", (int)v.as.name->length, v.as.name->text);
}

/* "12.7"|int is 12: texts that are no int are read as a float and cut. "x"|int(5) is 5; infinity of a text gives the
 * default, of a float an error, as in Jinja. */
static tarn__jinja_value to_int(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_int(0), tarn__jinja_int(10)};
    int64_t integer;
    double number;
    (void)mode;
    check_defined(r, input);
    tarn__jinja_bind(r, "int", arguments, "default base", 0, values);
    int64_t base = tarn__jinja_index(r, "int", values[1]);
    if (tarn__jinja_is_integer(input))
        return tarn__jinja_int(tarn__jinja_integer_of(input));
    if (input.kind == TARN__JINJA_STRING && base >= 2 && base <= 36 &&
        parse_int(tarn__jinja_strip(r, input.as.string, tarn__jinja_none(), 3).as.string, base, &integer))
        return tarn__jinja_int(integer);
    bool is_float = input.kind == TARN__JINJA_FLOAT;
    if (!is_float && !(input.kind == TARN__JINJA_STRING && parse_float(r, input.as.string, &number)))
        return values[0];
    number = is_float ? input.as.number : number;
    if (isinf(number) && is_float)
        tarn__jinja_fail(r, "cannot convert float infinity to integer");
    if (!isfinite(number))
        return values[0];
    /* Below 2^63, 9.223e18, with a margin: the cast of a larger number has no defined result. */
    if (fabs(number) >= 9.2e18)
        tarn__jinja_fail(r, "an integer is too large");
    return tarn__jinja_int((int64_t)number);
}

/* "1.5"|float is 1.5, "x"|float is 0.0. */
static tarn__jinja_value to_float(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    tarn__jinja_value fallback = tarn__jinja_float(0);
    double number;
    (void)mode;
    check_defined(r, input);
    tarn__jinja_bind(r, "float", arguments, "default", 0, &fallback);
    if (tarn__jinja_is_number(input))
        return tarn__jinja_float(tarn__jinja_number_of(input));
    return input.kind == TARN__JINJA_STRING && parse_float(r, input.as.string, &number) ? tarn__jinja_float(number)
                                                                                        : fallback;
}

/* The smallest int has no absolute value; the unary minus fails for it. */
static tarn__jinja_value absolute(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "abs", arguments, "/", 0, NULL);
    if (!tarn__jinja_is_number(input))
        tarn__jinja_fail(r, "bad operand type for abs(): '%s'", tarn__jinja_type_name(input));
    if (input.kind == TARN__JINJA_FLOAT)
        return tarn__jinja_float(fabs(input.as.number));
    int64_t integer = tarn__jinja_integer_of(input);
    return integer < 0 ? tarn__jinja_unary(r, TARN__JINJA_T_SUB, input) : tarn__jinja_int(integer);
}

/* round(number, digits) of Python: half to even, in decimal: 2.675 to 2 digits is 2.67, as the double is below it.
 * printf() rounds the exact value correctly, so digits after the point are rounded by writing and reading them; for
 * digits before it the number is scaled. */
static double round_to(double number, int64_t digits)
{
    char text[400];
    if (!isfinite(number) || digits > 300)
        return number;
    if (digits >= 0) {
        snprintf(text, sizeof(text), "%.*f", (int)digits, number);
        /* The point of another locale. */
        for (char *at = text; *at; at++)
            if (*at == ',')
                *at = '.';
        return tarn__number_parse(text);
    }
    /* The number is nearer to 0 than to any multiple of a power of ten that is infinite. */
    double scale = pow(10, (double)-digits);
    return isinf(scale) ? copysign(0, number) : nearbyint(number / scale) * scale;
}

/* An int to a power of ten, half to even, exactly: 25 to tens is 20, 35 is 40. */
static tarn__jinja_value round_int(tarn__jinja_run *r, int64_t number, int64_t digits)
{
    int64_t unit = 1;
    for (; digits < 0 && unit <= INT64_MAX / 10; digits++)
        unit *= 10;
    /* Beyond 10^18 the result is 0 or ±10^19, which no integer here can be. */
    if (digits < 0) {
        if (digits == -1 && (number > 5 * unit || number < -5 * unit))
            tarn__jinja_fail(r, "an integer is too large");
        return tarn__jinja_int(0);
    }
    int64_t rest = number % unit, down = number - rest, size = rest < 0 ? -rest : rest;
    bool grows = size > unit - size || (size == unit - size && down / unit % 2 != 0);
    if (grows && __builtin_add_overflow(down, number < 0 ? -unit : unit, &down))
        tarn__jinja_fail(r, "an integer is too large");
    return tarn__jinja_int(down);
}

/* 2.5|round is 2.0, 25|round(-1) is 20: an int stays an int. method="ceil" and "floor" always give floats. */
static tarn__jinja_value round_number(tarn__jinja_run *r, tarn__jinja_value input,
                                      const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_int(0), TARN__JINJA_TEXT("common")};
    (void)mode;
    tarn__jinja_bind(r, "round", arguments, "precision method", 0, values);
    bool is_common = tarn__jinja_is_text(values[1], "common"), is_ceil = tarn__jinja_is_text(values[1], "ceil");
    if (!is_common && !is_ceil && !tarn__jinja_is_text(values[1], "floor"))
        tarn__jinja_fail(r, "method must be common, ceil or floor");
    if (!tarn__jinja_is_number(input))
        tarn__jinja_fail(r, "type %s doesn't define __round__ method", tarn__jinja_type_name(input));
    int64_t digits = tarn__jinja_index(r, "round", values[0]);
    if (is_common && tarn__jinja_is_integer(input))
        return round_int(r, tarn__jinja_integer_of(input), digits);
    if (is_common)
        return tarn__jinja_float(round_to(tarn__jinja_number_of(input), digits));
    /* floor(x * 10^n) / 10^n, with the rounding errors that Jinja's own formula has. */
    double scale = pow(10, (double)digits), number = tarn__jinja_number_of(input) * scale;
    return tarn__jinja_float((is_ceil ? ceil(number) : floor(number)) / scale);
}

const tarn__jinja_filter tarn__jinja_text_filters[] = {{"upper", change_case, TARN__JINJA_UPPER},
                                                       {"lower", change_case, TARN__JINJA_LOWER},
                                                       {"capitalize", change_case, TARN__JINJA_CAPITALIZE},
                                                       {"title", title, 0},
                                                       {"trim", trim, 0},
                                                       {"replace", replace, 0},
                                                       {"string", string, 0},
                                                       {"safe", safe, 0},
                                                       {"escape", escape, 0},
                                                       {"e", escape, 0},
                                                       {"forceescape", escape, 1},
                                                       {"tojson", tojson, 0},
                                                       {"format", format, 0},
                                                       {"indent", indent, 0},
                                                       {"truncate", truncate, 0},
                                                       {"wordcount", wordcount, 0},
                                                       {"center", center, 0},
                                                       {"int", to_int, 0},
                                                       {"float", to_float, 0},
                                                       {"abs", absolute, 0},
                                                       {"round", round_number, 0},
                                                       {NULL, NULL, 0}};

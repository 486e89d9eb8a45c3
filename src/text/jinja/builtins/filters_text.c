/* filters_text.c: filters of strings and numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number_format.h"
#include "text/jinja/eval.h"

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
        begins = tarn__jinja_is_space(code) || (code && code < 0x80 && strchr("-({[<", (int)code));
    }
    return tarn__jinja_built(r, &b);
}

static tarn__jinja_value trim(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    tarn__jinja_value characters = tarn__jinja_none();
    (void)mode;
    tarn__jinja_bind(r, "trim", arguments, "chars", 0, &characters);
    return tarn__jinja_strip(r, tarn__jinja_str(r, input), characters, 3);
}

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

static tarn__jinja_value string(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "string", arguments, "", 0, NULL);
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = tarn__jinja_str(r, input)}};
}

static tarn__jinja_value marked_safe(tarn__jinja_run *r, tarn__jinja_value v)
{
    tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
    *s = *tarn__jinja_str(r, v);
    s->is_markup = true;
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = s}};
}

static tarn__jinja_value safe(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "safe", arguments, "", 0, NULL);
    return marked_safe(r, input);
}

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

static tarn__jinja_value tojson(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_builder b = {0};
    (void)mode;
    tarn__jinja_json(r, input, arguments, &b);
    return tarn__jinja_built(r, &b);
}

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

static bool is_line_end(uint32_t code)
{
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

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
        uint32_t next = '\n';
        tarn__jinja_decode(s->text + at + size, s->length - at - size, &next);
        tarn__jinja_build_text(r, &b, "\n");
        if (blanks || (at + size < s->length && !is_line_end(next)))
            tarn__jinja_build(r, &b, margin.text, margin.length, NULL);
    }
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), s);
}

static tarn__jinja_value truncate(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    tarn__jinja_value values[4] = {tarn__jinja_int(255), tarn__jinja_bool(false), TARN__JINJA_TEXT("..."),
                                   tarn__jinja_none()};
    (void)mode;
    tarn__jinja_bind(r, "truncate", arguments, "length killwords end leeway", 0, values);
    const tarn__jinja_string *end = tarn__jinja_want_string(r, "truncate", values[2]);
    int64_t length = tarn__jinja_index(r, "truncate", values[0]), end_length = (int64_t)tarn__jinja_count(end),
            leeway = values[3].kind == TARN__JINJA_NONE ? 5 : tarn__jinja_index(r, "truncate", values[3]);
    if (length < end_length || leeway < 0)
        tarn__jinja_fail(r, "truncate: a length of at least %d is expected, and a leeway of at least 0",
                         (int)end_length);
    int64_t given = tarn__jinja_length(r, input);
    if (given <= length || given - length <= leeway)
        return input;
    const tarn__jinja_string *s = tarn__jinja_want_string(r, "truncate", input);
    size_t stop = tarn__jinja_offset(s, (size_t)(length - end_length));
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

/* Python's int(text, base) and float(text): true if the text is a number. */
static bool parse_int(const tarn__jinja_string *s, int64_t base, int64_t *number)
{
    size_t at = 0;
    bool is_negative = s->length && s->text[0] == '-';
    at += s->length && (s->text[0] == '-' || s->text[0] == '+');
    if (base == 16 && s->length > at + 1 && s->text[at] == '0' && (s->text[at + 1] | 32) == 'x')
        at += 2;
    if (at == s->length)
        return false;
    uint64_t sum = 0;
    for (bool was_digit = false; at < s->length; at++) {
        char c = s->text[at];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
        if (c == '_' && was_digit && at + 1 < s->length) {
            was_digit = false;
            continue;
        }
        if (digit >= base || sum > (uint64_t)(INT64_MAX - digit) / (uint64_t)base)
            return false;
        sum = sum * (uint64_t)base + (uint64_t)digit;
        was_digit = true;
    }
    *number = is_negative ? -(int64_t)sum : (int64_t)sum;
    return true;
}

static bool is_word(const char *text, const char *word)
{
    text += *text == '-' || *text == '+';
    for (; *word; text++, word++)
        if ((*text | 32) != *word)
            return false;
    return *text == 0;
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

static bool parse_float(tarn__jinja_run *r, const tarn__jinja_string *s, double *number)
{
    char text[400];
    const tarn__jinja_string *stripped = tarn__jinja_strip(r, s, tarn__jinja_none(), 3).as.string;
    if (stripped->length == 0 || stripped->length >= sizeof(text))
        return false;
    memcpy(text, stripped->text, stripped->length);
    text[stripped->length] = 0;
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

static void check_defined(tarn__jinja_run *r, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_UNDEFINED)
        tarn__jinja_fail(r, "'%.*s' is undefined", (int)v.as.name->length, v.as.name->text);
}

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
    if (fabs(number) >= 9.2e18)
        tarn__jinja_fail(r, "an integer is too large");
    return tarn__jinja_int((int64_t)number);
}

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

/* round(number, digits) of Python: half to even, in decimal. */
static double round_to(double number, int64_t digits)
{
    char text[400];
    if (!isfinite(number) || digits > 300)
        return number;
    if (digits >= 0) {
        snprintf(text, sizeof(text), "%.*f", (int)digits, number);
        for (char *at = text; *at; at++)
            if (*at == ',')
                *at = '.';
        return tarn__number_parse(text);
    }
    double scale = pow(10, (double)-digits);
    return isinf(scale) ? copysign(0, number) : nearbyint(number / scale) * scale;
}

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
    if (is_common && tarn__jinja_is_integer(input) && digits >= 0)
        return tarn__jinja_int(tarn__jinja_integer_of(input));
    if (is_common) {
        double number = round_to(tarn__jinja_number_of(input), digits);
        return tarn__jinja_is_integer(input) ? tarn__jinja_int((int64_t)number) : tarn__jinja_float(number);
    }
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

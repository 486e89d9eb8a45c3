/* format.c: Python's two ways to format: "%s" % value and "{}".format(value). Both become a spec, and both print text,
 * ints and floats with the same functions.
 *
 *     "%05d|%-5s|%+d" % (42, "ab", 3)           00042|ab   |+3
 *     "{:>5}|{0.name}|{n!r:^7}|{:,}"            positions, attributes, conversions, groups of digits
 *
 * Widths count code points. Padding is the template's own, whatever was padded; the text keeps its origins. A width
 * above MAX_WIDTH is an error, so that a format cannot ask for memory without end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/eval.h"

/* What stands after % or the colon of {}. */
typedef struct spec {
    uint32_t fill;
    char align, sign, type;   /* 0: none */
    bool zero, alternate;     /* 0, # */
    char group;               /* between digits: ',' or '_'; 0: none */
    int64_t width, precision; /* precision -1: none */
} spec;

#define MAX_WIDTH 100000

/* `align` is <, > or ^; the middle has the larger half after the text. */
static void pad(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, const tarn__jinja_string *text, char align)
{
    int64_t count = s->width - (int64_t)tarn__jinja_count(text);
    /* A text wider than the width is not cut. */
    int64_t before = count <= 0 ? 0 : align == '>' ? count : align == '^' ? count / 2 : 0;
    for (int64_t i = 0; i < before; i++)
        tarn__jinja_build_code(r, b, s->fill, 0);
    tarn__jinja_build_string(r, b, text);
    for (int64_t i = before; i < count; i++)
        tarn__jinja_build_code(r, b, s->fill, 0);
}

/* Digits with their sign and prefix; what fills a width with zeros or by = comes after both: -0x00ff. */
static void put_number(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, const char *prefix,
                       const char *digits, bool is_negative)
{
    char sign[2] = {is_negative ? '-' : s->sign == '+' || s->sign == ' ' ? s->sign : 0, 0};
    bool has_zeros = s->zero && !s->align, is_inside = has_zeros || s->align == '=';
    int64_t missing = s->width - (int64_t)(strlen(sign) + strlen(prefix) + strlen(digits));
    tarn__jinja_builder text = {0};
    tarn__jinja_build_text(r, &text, sign);
    tarn__jinja_build_text(r, &text, prefix);
    for (int64_t i = 0; is_inside && i < missing; i++)
        tarn__jinja_build_code(r, &text, has_zeros ? '0' : s->fill, 0);
    tarn__jinja_build_text(r, &text, digits);
    pad(r, b, s, tarn__jinja_built(r, &text).as.string, s->align && !is_inside ? s->align : '>');
}

/* 1234567 becomes 1,234,567; what follows the integer part stays. `to` has room for a third more. */
static void group(char *to, const char *from, char separator, size_t each)
{
    size_t whole = strspn(from, each == 4 ? "0123456789abcdefABCDEF" : "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (i && separator && (whole - i) % each == 0)
            *to++ = separator;
        *to++ = from[i];
    }
    strcpy(to, from + whole);
}

/* The sign is printed apart, so the digits are those of the absolute value; 800 bytes hold the largest double (309
 * digits) with 300 digits after the point. */
static void format_float(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, double number, char type)
{
    /* The type replaces the f; % is f of a hundred times the number. */
    char format[] = "%.*f", digits[800], grouped[1100];
    int precision = s->precision < 0 ? 6 : s->precision > 300 ? 300 : (int)s->precision;
    double size = type == '%' ? fabs(number) * 100 : fabs(number);
    format[3] = type == '%' ? 'f' : type;
    if (isfinite(number))
        snprintf(digits, sizeof(digits), format, precision, size);
    else
        strcpy(digits, isnan(number) ? "nan" : "inf");
    for (char *at = digits; *at; at++)
        if (*at == ',')
            *at = '.'; /* the point of another locale */
    if (type == '%')
        strcat(digits, "%");
    group(grouped, digits, s->group, 3);
    put_number(r, b, s, "", grouped, signbit(number) && !isnan(number));
}

/* The absolute value of INT64_MIN is formed unsigned. */
static void format_int(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, int64_t number, char type)
{
    char digits[80], grouped[110];
    uint64_t size = number < 0 ? (uint64_t)0 - (uint64_t)number : (uint64_t)number;
    if (type == 'b') {
        /* printf() has no binary digits; 0 has one. */
        int count = 1;
        while (count < 64 && size >> count)
            count++;
        for (int i = 0; i < count; i++)
            digits[i] = size >> (count - 1 - i) & 1 ? '1' : '0';
        digits[count] = 0;
    } else
        snprintf(digits, sizeof(digits),
                 type == 'x'   ? "%" PRIx64
                 : type == 'X' ? "%" PRIX64
                 : type == 'o' ? "%" PRIo64
                               : "%" PRIu64,
                 size);
    char prefix[3] = {'0', type, 0};
    bool has_prefix = s->alternate && strchr("xXob", type);
    group(grouped, digits, s->group, strchr("xXob", type) ? 4 : 3);
    put_number(r, b, s, has_prefix ? prefix : "", grouped, number < 0);
}

/* A precision cuts the text to as many code points: "%.2s". */
static void format_text(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, const tarn__jinja_string *text,
                        char align)
{
    size_t end = s->precision < 0 ? text->length : tarn__jinja_offset(text, (size_t)s->precision);
    pad(r, b, s, tarn__jinja_slice_of(r, text, 0, end).as.string, s->align ? s->align : align);
}

/* A code point: an int that UTF-8 can write. */
static bool is_code(tarn__jinja_value v)
{
    int64_t code = tarn__jinja_is_integer(v) ? tarn__jinja_integer_of(v) : -1;
    return code >= 0 && code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
}

static const tarn__jinja_string *character_of(tarn__jinja_run *r, tarn__jinja_value v)
{
    tarn__jinja_builder text = {0};
    tarn__jinja_build_code(r, &text, (uint32_t)tarn__jinja_integer_of(v), 0);
    return tarn__jinja_built(r, &text).as.string;
}

/* Types that print ints as floats too. */
static bool is_float_type(char type)
{
    return type && strchr("eEfFgG%", type);
}

/* ---- percent ----------------------------------------------------------------------------------------------------- */

/* Digits as a number; the position after them. It stops growing above MAX_WIDTH, which the caller refuses. */
static size_t read_count(const tarn__jinja_string *f, size_t at, int64_t *count)
{
    for (*count = 0; at < f->length && f->text[at] >= '0' && f->text[at] <= '9'; at++)
        *count = *count > MAX_WIDTH ? *count : *count * 10 + (f->text[at] - '0');
    return at;
}

/* %[flags][width][.precision]type; the position after it. * for a width from the arguments is not supported. */
static size_t read_percent(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, spec *s)
{
    *s = (spec){.fill = ' ', .precision = -1};
    /* Flags have any order. - overrides 0, and + a space. */
    for (; at < f->length && f->text[at] && strchr("#0- +", f->text[at]); at++) {
        s->zero |= f->text[at] == '0';
        s->alternate |= f->text[at] == '#';
        s->align = f->text[at] == '-' ? '<' : s->align;
        s->sign = f->text[at] == '+' || (f->text[at] == ' ' && !s->sign) ? f->text[at] : s->sign;
    }
    at = read_count(f, at, &s->width);
    if (at < f->length && f->text[at] == '.')
        at = read_count(f, at + 1, &s->precision);
    if (at >= f->length)
        tarn__jinja_fail(r, "incomplete format");
    if (s->width > MAX_WIDTH)
        tarn__jinja_fail(r, "a width is too large");
    s->type = f->text[at];
    return at + 1;
}

/* %s and %r print anything. %d takes floats and cuts them; %x does not. */
static void put_percent(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, tarn__jinja_value v)
{
    tarn__jinja_builder text = {0};
    /* i and u are old names of d. */
    bool is_int = strchr("diu", s->type) != NULL;
    if (s->type == 's' || s->type == 'r' || s->type == 'a') {
        if (s->type == 's')
            tarn__jinja_print(r, &text, v);
        else
            tarn__jinja_repr(r, &text, v);
        /* Zeros do not pad text. */
        spec plain = *s;
        plain.zero = false;
        format_text(r, b, &plain, tarn__jinja_built(r, &text).as.string, '>');
    } else if (is_int && v.kind == TARN__JINJA_FLOAT && isfinite(v.as.number) && fabs(v.as.number) < 9e18)
        format_int(r, b, s, (int64_t)v.as.number, 'd');
    else if ((is_int || strchr("xXo", s->type)) && tarn__jinja_is_integer(v))
        format_int(r, b, s, tarn__jinja_integer_of(v), is_int ? 'd' : s->type);
    else if (strchr("eEfFgG", s->type) && tarn__jinja_is_number(v))
        format_float(r, b, s, tarn__jinja_number_of(v), s->type);
    else if (s->type == 'c' && (is_code(v) || (v.kind == TARN__JINJA_STRING && tarn__jinja_count(v.as.string) == 1)))
        format_text(r, b, s, is_code(v) ? character_of(r, v) : v.as.string, '>');
    else
        tarn__jinja_fail(r, "%%%c format: '%s' does not fit", s->type, tarn__jinja_type_name(v));
}

/* The key of %(key)s, if any. */
static size_t read_key(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, tarn__jinja_value arguments,
                       tarn__jinja_value *v, bool *has_key)
{
    *has_key = at < f->length && f->text[at] == '(';
    if (!*has_key)
        return at;
    const char *end = memchr(f->text + at, ')', f->length - at);
    /* Keys need a dict as the one argument. */
    if (!end || arguments.kind != TARN__JINJA_DICT)
        tarn__jinja_fail(r, "format requires a mapping");
    /* %(key)s: no parentheses within the key. */
    size_t stop = (size_t)(end - f->text);
    const tarn__jinja_value *found = tarn__jinja_dict_find_text(arguments.as.dict, f->text + at + 1, stop - at - 1);
    if (!found)
        tarn__jinja_fail(r, "a key of the format is missing");
    *v = *found;
    return stop + 1;
}

/* What Python takes for a mapping, which may have more than the format asks for: whatever has subscripts, but for
 * strings and tuples. */
static bool is_mapping(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_DICT || v.kind == TARN__JINJA_LIST || v.kind == TARN__JINJA_RANGE ||
           v.kind == TARN__JINJA_UNDEFINED;
}

/* A tuple gives its items in turn, anything else is the one value. %% consumes nothing. */
tarn__jinja_value tarn__jinja_format_percent(tarn__jinja_run *r, const tarn__jinja_string *f,
                                             tarn__jinja_value arguments)
{
    tarn__jinja_builder b = {0};
    size_t used = 0, count = arguments.kind == TARN__JINJA_TUPLE ? arguments.as.list->count : 1;
    bool any_key = false;
    for (size_t at = 0; at < f->length;) {
        const char *percent = memchr(f->text + at, '%', f->length - at);
        size_t stop = percent ? (size_t)(percent - f->text) : f->length;
        tarn__jinja_build(r, &b, f->text + at, stop - at, f->origin ? f->origin + at : NULL);
        if (!percent)
            break;
        tarn__jinja_value v = tarn__jinja_none();
        bool has_key;
        spec s;
        at = read_key(r, f, stop + 1, arguments, &v, &has_key);
        at = read_percent(r, f, at, &s);
        any_key |= has_key;
        if (s.type == '%') {
            tarn__jinja_build_text(r, &b, "%");
            continue;
        }
        if (!has_key && used >= count)
            tarn__jinja_fail(r, "not enough arguments for format string");
        if (!has_key)
            v = arguments.kind == TARN__JINJA_TUPLE ? arguments.as.list->items[used] : arguments;
        used += !has_key;
        put_percent(r, &b, &s, f->is_markup && s.type == 's' ? tarn__jinja_escape(r, v) : v);
    }
    /* Only a mapping may have more than the format uses: the rest of a tuple is an error. */
    if (used < count && !any_key && !is_mapping(arguments))
        tarn__jinja_fail(r, "not all arguments converted during string formatting");
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), f);
}

/* ---- braces ------------------------------------------------------------------------------------------------------ */

/* [[fill]align][sign][#][0][width][, or _][.precision][type]: the fill is any code point, if an alignment follows it.
 */
static spec read_spec(tarn__jinja_run *r, const tarn__jinja_string *f)
{
    spec s = {.fill = ' ', .precision = -1};
    size_t at = 0, size;
    uint32_t code;
    bool has_fill = false;
    if ((size = tarn__jinja_decode(f->text, f->length, &code)) != 0 && size < f->length && f->text[size] &&
        strchr("<>^=", f->text[size])) {
        s.fill = code;
        s.align = f->text[size];
        at = size + 1;
        has_fill = true;
    } else if (f->length && f->text[0] && strchr("<>^=", f->text[0]))
        s.align = f->text[at++];
    if (at < f->length && f->text[at] && strchr("+- ", f->text[at]))
        s.sign = f->text[at++];
    if (at < f->length && f->text[at] == '#') {
        s.alternate = true;
        at++;
    }
    /* A 0 is the fill, unless there is one, and without an alignment also says where it goes. */
    if (at < f->length && f->text[at] == '0' && !has_fill) {
        s.zero = true;
        s.fill = '0';
        at++;
    }
    at = read_count(f, at, &s.width);
    if (at < f->length && (f->text[at] == ',' || f->text[at] == '_'))
        s.group = f->text[at++];
    if (at < f->length && f->text[at] == '.')
        at = read_count(f, at + 1, &s.precision);
    s.type = at < f->length ? f->text[at++] : 0;
    if (at < f->length || s.width > MAX_WIDTH)
        tarn__jinja_fail(r, "invalid format specifier");
    if (s.group && s.zero)
        tarn__jinja_fail(r, "a format with zeros and groups of digits is not supported");
    return s;
}

/* The digits of a float without type and precision: repr()'s, with what the spec puts around them. */
static void format_repr(tarn__jinja_run *r, tarn__jinja_builder *b, const spec *s, double number)
{
    char grouped[64];
    const tarn__jinja_string *digits = tarn__jinja_str(r, tarn__jinja_float(fabs(number)));
    char own[32];
    snprintf(own, sizeof(own), "%.*s", (int)digits->length, digits->text);
    group(grouped, own, s->group, 3);
    put_number(r, b, s, "", grouped, signbit(number) && !isnan(number));
}

/* The default alignment is left for text, right for numbers. With an empty spec anything prints as by str(); a bool
 * with another one is an int. A precision alone means g: "{:.3}" of 3.14159 is 3.14. */
static void put_braces(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_string *f, tarn__jinja_value v)
{
    spec s = read_spec(r, f);
    if (f->length == 0)
        tarn__jinja_print(r, b, v);
    else if (v.kind == TARN__JINJA_STRING && (!s.type || s.type == 's') && s.align != '=' && !s.group && !s.sign)
        format_text(r, b, &s, v.as.string, '<');
    else if (tarn__jinja_is_number(v) && is_float_type(s.type))
        format_float(r, b, &s, tarn__jinja_number_of(v), s.type);
    else if (v.kind == TARN__JINJA_FLOAT && !s.type && s.precision >= 0)
        format_float(r, b, &s, v.as.number, 'g');
    else if (v.kind == TARN__JINJA_FLOAT && !s.type)
        format_repr(r, b, &s, v.as.number);
    else if (tarn__jinja_is_integer(v) && s.precision < 0 &&
             (!s.type || s.type == 'd' || (strchr("xXob", s.type) && s.group != ',')))
        format_int(r, b, &s, tarn__jinja_integer_of(v), s.type ? s.type : 'd');
    else if (s.type == 'c' && is_code(v))
        format_text(r, b, &s, character_of(r, v), '>');
    else
        tarn__jinja_fail(r, "the format '%.*s' does not fit '%s'", tarn__jinja_shown(f->length), f->text,
                         tarn__jinja_type_name(v));
}

/* The value of a field: a number, a name, or nothing for the next one; then .attributes and [subscripts]. */
static tarn__jinja_value field_value(tarn__jinja_run *r, const tarn__jinja_string *name,
                                     const tarn__jinja_arguments *arguments, size_t *next)
{
    size_t end = 0;
    while (end < name->length && name->text[end] != '.' && name->text[end] != '[')
        end++;
    int64_t index = (int64_t)*next;
    tarn__jinja_value v;
    /* {} takes the positions in turn; {0} and {name} do not count. */
    if (end == 0)
        (*next)++;
    if (end == 0 || read_count(name, 0, &index) == end) {
        if (index < 0 || (size_t)index >= arguments->positional.count)
            tarn__jinja_fail(r, "replacement index %" PRId64 " out of range", index);
        v = arguments->positional.items[index];
    } else {
        const tarn__jinja_value *found = tarn__jinja_dict_find_text(&arguments->keywords, name->text, end);
        if (!found)
            tarn__jinja_fail(r, "a field of the format is missing");
        v = *found;
    }
    /* Attributes and subscripts, as "0.name[key][2]". */
    while (end < name->length) {
        size_t begin = end + 1;
        char open = name->text[end];
        for (end = begin; end < name->length &&
                          (open == '[' ? name->text[end] != ']' : name->text[end] != '.' && name->text[end] != '[');)
            end++;
        tarn__jinja_value key = tarn__jinja_slice_of(r, name, begin, end);
        bool is_index = open == '[' && end > begin && read_count(key.as.string, 0, &index) == end - begin;
        v = open == '[' ? tarn__jinja_subscript(r, v, is_index ? tarn__jinja_int(index) : key)
                        : tarn__jinja_attribute(r, v, key.as.string);
        if (v.kind == TARN__JINJA_UNDEFINED)
            tarn__jinja_fail(r, "a field of the format is missing");
        end += open == '[';
    }
    return v;
}

/* The inside of braces: name[!conversion][:spec]; the name may be empty. */
static void put_field(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_string *field,
                      const tarn__jinja_arguments *arguments, size_t *next)
{
    /* The first colon ends the name, so a subscript cannot contain one. */
    const char *colon = field->length ? memchr(field->text, ':', field->length) : NULL;
    size_t end = colon ? (size_t)(colon - field->text) : field->length, name = end;
    char conversion = 0;
    /* !r and !s turn the value into text before the spec applies to it. */
    if (end >= 2 && field->text[end - 2] == '!') {
        conversion = field->text[end - 1];
        name = end - 2;
    }
    tarn__jinja_value v = field_value(r, tarn__jinja_slice_of(r, field, 0, name).as.string, arguments, next);
    if (conversion == 'r' || conversion == 's') {
        tarn__jinja_builder text = {0};
        if (conversion == 'r')
            tarn__jinja_repr(r, &text, v);
        else
            tarn__jinja_print(r, &text, v);
        v = tarn__jinja_built(r, &text);
    } else if (conversion)
        tarn__jinja_fail(r, "unknown conversion '%c'", conversion);
    put_braces(r, b, tarn__jinja_slice_of(r, field, colon ? end + 1 : field->length, field->length).as.string, v);
}

/* {{ and }} stand for braces. A spec cannot have fields in itself, as in "{:{width}}". */
tarn__jinja_value tarn__jinja_format_braces(tarn__jinja_run *r, const tarn__jinja_string *f,
                                            const tarn__jinja_arguments *arguments)
{
    tarn__jinja_builder b = {0};
    size_t next = 0;
    for (size_t at = 0; at < f->length; at++) {
        char c = f->text[at];
        bool is_double = at + 1 < f->length && f->text[at + 1] == c;
        if ((c == '{' || c == '}') && is_double)
            at++;
        else if (c == '{') {
            const char *end = memchr(f->text + at, '}', f->length - at);
            if (!end)
                tarn__jinja_fail(r, "expected '}' before end of string");
            put_field(r, &b, tarn__jinja_slice_of(r, f, at + 1, (size_t)(end - f->text)).as.string, arguments, &next);
            at = (size_t)(end - f->text);
            continue;
        } else if (c == '}')
            tarn__jinja_fail(r, "single '}' encountered in format string");
        tarn__jinja_build(r, &b, f->text + at, 1, f->origin ? f->origin + at : NULL);
    }
    return tarn__jinja_built(r, &b);
}

/* format_percent.c: "%s" % value, as Python formats it.
 *
 *     "%05d|%-5s|%+.3d|%*.*f" % (42, "ab", 3, 8, 2, 0.5)        00042|ab   |+003|    0.50
 *     "%(name)s is %(n)#x" % {"name": "n", "n": 255}            n is 0xff
 *
 * A tuple gives its items in turn; anything else is one value. The value of a %(key)s is the one value from there on,
 * which that field uses up. */
#include <math.h>
#include <string.h>

#include "text/jinja/builtins/format.h"

/* The values in the order of fields. A count of -1: one value, not a tuple, unused while `index` is -2. */
typedef struct feed {
    tarn__jinja_value values;
    int64_t count, index;
} feed;

static feed feed_one(tarn__jinja_value v)
{
    return (feed){.values = v, .count = -1, .index = -2};
}

static tarn__jinja_value next_of(tarn__jinja_run *r, feed *f)
{
    if (f->index >= f->count)
        tarn__jinja_fail(r, "not enough arguments for format string");
    int64_t at = f->index++;
    return f->count < 0 ? f->values : f->values.as.list->items[at];
}

/* The character at a position that a format must have. */
static char character_at(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at)
{
    if (at >= f->length)
        tarn__jinja_fail(r, "incomplete format");
    return f->text[at];
}

/* Digits, or * for the next value; the position after them. */
static size_t read_size(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, feed *values, int64_t *count)
{
    if (character_at(r, f, at) != '*')
        return tarn__jinja_read_count(r, f, at, count);
    tarn__jinja_value v = next_of(r, values);
    if (!tarn__jinja_is_integer(v))
        tarn__jinja_fail(r, "* wants int");
    *count = tarn__jinja_integer_of(v);
    if (*count > INT32_MAX || *count < -INT32_MAX)
        tarn__jinja_fail(r, "a number in a format is too large");
    return at + 1;
}

/* %[flags][width][.precision][h, l or L]type; the position after it. A negative width is the flag -, a negative
 * precision 0. */
static size_t read_spec(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, feed *values, tarn__jinja_spec *s)
{
    *s = (tarn__jinja_spec){.fill = ' ', .precision = -1};
    bool has_zeros = false;
    /* Flags have any order. - overrides 0, and + a space. */
    for (char c; (c = character_at(r, f, at)) != 0 && strchr("#0- +", c); at++) {
        has_zeros |= c == '0';
        s->alternate |= c == '#';
        s->align = c == '-' ? '<' : s->align;
        s->sign = c == '+' || (c == ' ' && !s->sign) ? c : s->sign;
    }
    at = read_size(r, f, at, values, &s->width);
    if (s->width < 0) {
        s->align = '<';
        s->width = -s->width;
    }
    if (character_at(r, f, at) == '.') {
        at = read_size(r, f, at + 1, values, &s->precision);
        s->precision = s->precision < 0 ? 0 : s->precision;
    }
    at += strchr("hlL", character_at(r, f, at)) && f->text[at];
    s->type = character_at(r, f, at);
    /* i and u are old names of d. Zeros do not pad texts. */
    s->type = s->type == 'i' || s->type == 'u' ? 'd' : s->type;
    if (has_zeros && !s->align && s->type && strchr("doxXeEfFgG", s->type)) {
        s->fill = '0';
        s->align = '=';
    }
    return at + 1;
}

/* %s, %r and %a print anything. %d takes floats and truncates them; %x does not. */
static void put(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_spec *s, tarn__jinja_value v, bool escapes)
{
    bool is_float_type = s->type && strchr("eEfFgG", s->type);
    bool is_character = s->type == 'c' && (tarn__jinja_is_code(v) ||
                                           (v.kind == TARN__JINJA_STRING && tarn__jinja_count(v.as.string) == 1));
    tarn__jinja_check_spec(r, s, false);
    if (s->type && strchr("sra", s->type)) {
        /* markup stays as it is in %s */
        tarn__jinja_value text =
            escapes && s->type == 's' ? tarn__jinja_escape(r, v) : tarn__jinja_convert(r, v, s->type);
        text = escapes && s->type != 's' ? tarn__jinja_escape(r, text) : text;
        tarn__jinja_put_text(r, b, s, text.as.string, '>');
    } else if (s->type == 'd' && v.kind == TARN__JINJA_FLOAT)
        tarn__jinja_put_truncated(r, b, s, v.as.number);
    else if (s->type && strchr("doxX", s->type) && tarn__jinja_is_integer(v))
        tarn__jinja_put_int(r, b, s, tarn__jinja_integer_of(v));
    else if (is_float_type && tarn__jinja_is_number(v))
        tarn__jinja_put_float(r, b, s, tarn__jinja_number_of(v));
    else if (is_character) {
        s->precision = -1;
        tarn__jinja_put_text(r, b, s, tarn__jinja_is_code(v) ? tarn__jinja_character_of(r, v) : v.as.string, '>');
    } else
        tarn__jinja_fail(r, "%%%c format: '%s' does not fit", s->type, tarn__jinja_type_name(v));
}

/* The key of %(key)s, if any: its value becomes the one of `values`. Parentheses nest. */
static size_t read_key(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, tarn__jinja_value arguments,
                       feed *values)
{
    if (character_at(r, f, at) != '(')
        return at;
    size_t end = at + 1;
    for (int depth = 1; depth > 0; end++) {
        if (end >= f->length)
            tarn__jinja_fail(r, "incomplete format key");
        depth += f->text[end] == '(' ? 1 : f->text[end] == ')' ? -1 : 0;
    }
    if (arguments.kind != TARN__JINJA_DICT)
        tarn__jinja_fail(r, "format requires a mapping");
    const tarn__jinja_value *found = tarn__jinja_dict_find_text(arguments.as.dict, f->text + at + 1, end - at - 2);
    if (!found)
        tarn__jinja_fail(r, "a key of the format is missing");
    *values = feed_one(*found);
    return end;
}

/* What Python takes for a mapping, which may have more than the format asks for: whatever has subscripts, but for
 * strings and tuples. */
static bool is_mapping(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_DICT || v.kind == TARN__JINJA_LIST || v.kind == TARN__JINJA_RANGE ||
           v.kind == TARN__JINJA_UNDEFINED;
}

/* %% alone is a percent sign: %5% is an error. */
tarn__jinja_value tarn__jinja_format_percent(tarn__jinja_run *r, const tarn__jinja_string *f,
                                             tarn__jinja_value arguments)
{
    tarn__jinja_builder b = {0};
    feed values = feed_one(arguments);
    if (arguments.kind == TARN__JINJA_TUPLE)
        values = (feed){.values = arguments, .count = (int64_t)arguments.as.list->count};
    for (size_t at = 0; at < f->length;) {
        const char *percent = memchr(f->text + at, '%', f->length - at);
        size_t stop = percent ? (size_t)(percent - f->text) : f->length;
        tarn__jinja_build(r, &b, f->text + at, stop - at, f->origin ? f->origin + at : NULL);
        if (!percent)
            break;
        if (character_at(r, f, stop + 1) == '%') {
            tarn__jinja_build_text(r, &b, "%");
            at = stop + 2;
            continue;
        }
        tarn__jinja_spec s;
        at = read_key(r, f, stop + 1, arguments, &values);
        at = read_spec(r, f, at, &values, &s);
        put(r, &b, &s, next_of(r, &values), f->is_markup);
    }
    /* Only a mapping may have more than the format uses: the rest of a tuple is an error. */
    if (values.index < values.count && !is_mapping(arguments))
        tarn__jinja_fail(r, "not all arguments converted during string formatting");
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), f);
}

/* format_braces.c: "{}".format(value), as the sandbox of jinja2 formats it: by Python's string.Formatter, which looks
 * up attributes and subscripts as templates do.
 *
 *     "{:>5}|{0.name}|{n!r:^7}|{:,}"            positions, attributes, conversions, groups of digits
 *     "{:{}.{}f}".format(0.5, 8, 2)             "    0.50": fields in the spec of a field, one level deep
 */
#include <inttypes.h>
#include <string.h>

#include "text/jinja/builtins/format.h"

/* One call of format(). */
typedef struct call {
    const tarn__jinja_arguments *arguments;
    int64_t next;   /* position of the next {} */
    bool is_manual; /* a {0} came before: {} is an error */
    bool is_markup; /* fields are escaped */
} call;

/* The parts of {name!conversion:spec}. */
typedef struct field {
    const tarn__jinja_string *name, *spec;
    char conversion; /* 0: none */
} field;

/* ---- the spec ---------------------------------------------------------------------------------------------------- */

/* True if the character at `at` is one of `characters`. */
static bool is_any(const tarn__jinja_string *f, size_t at, const char *characters)
{
    return at < f->length && f->text[at] && strchr(characters, f->text[at]);
}

/* [[fill]align]: the fill is any code point, if an alignment follows it. */
static size_t read_align(const tarn__jinja_string *f, tarn__jinja_spec *s, bool *has_fill)
{
    uint32_t code;
    size_t size = tarn__jinja_decode(f->text, f->length, &code);
    *has_fill = f->length && is_any(f, size, "<>^=");
    if (*has_fill) {
        s->fill = code;
        s->align = f->text[size];
        return size + 1;
    }
    if (!is_any(f, 0, "<>^="))
        return 0;
    s->align = f->text[0];
    return 1;
}

/* [[fill]align][sign][z][#][0][width][, or _][.precision][type] */
static tarn__jinja_spec read_spec(tarn__jinja_run *r, const tarn__jinja_string *f, bool is_number)
{
    tarn__jinja_spec s = {.fill = ' ', .precision = -1};
    bool has_fill;
    size_t at = read_align(f, &s, &has_fill), digits;
    if (is_any(f, at, "+- "))
        s.sign = f->text[at++];
    s.no_negative_zero = is_any(f, at, "z");
    at += s.no_negative_zero;
    s.alternate = is_any(f, at, "#");
    at += s.alternate;
    /* A 0 is the fill, unless there is one, and for numbers without an alignment also says where it goes. */
    if (is_any(f, at, "0") && !has_fill) {
        s.fill = '0';
        s.align = s.align || !is_number ? s.align : '=';
        at++;
    }
    at = tarn__jinja_read_count(r, f, at, &s.width);
    if (is_any(f, at, ",_"))
        s.group = f->text[at++];
    if (is_any(f, at, ".")) {
        digits = at + 1;
        at = tarn__jinja_read_count(r, f, digits, &s.precision);
        if (at == digits)
            tarn__jinja_fail(r, "format specifier missing precision");
    }
    s.type = at < f->length ? f->text[at++] : 0;
    if (at < f->length)
        tarn__jinja_fail(r, "invalid format specifier '%.*s'", tarn__jinja_shown(f->length), f->text);
    tarn__jinja_check_spec(r, &s, false);
    return s;
}

/* Commas and underscores group decimal digits, underscores also those of other bases. */
static bool group_fits(const tarn__jinja_spec *s)
{
    return !s->group || !s->type || (s->type && strchr("defgEG%F", s->type)) ||
           (s->group == '_' && strchr("boxX", s->type));
}

/* Prints an int or bool. False: the spec does not fit. */
static bool put_int(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, tarn__jinja_value v)
{
    if (s->precision >= 0 || s->no_negative_zero)
        return false;
    bool is_character = s->type == 'c' && !s->sign && !s->alternate && tarn__jinja_is_code(v);
    if (is_character)
        tarn__jinja_put_text(r, b, s, tarn__jinja_character_of(r, v), '>');
    else if (s->type && !strchr("dboxXn", s->type))
        return false;
    else
        tarn__jinja_put_int(r, b, s, tarn__jinja_integer_of(v));
    return true;
}

/* The default alignment is left for text, right for numbers. With an empty spec anything prints as by str(); a bool
 * with another one is an int. */
static void put(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_string *f, tarn__jinja_value v)
{
    if (f->length == 0) {
        tarn__jinja_print(r, b, v);
        return;
    }
    const tarn__jinja_spec s = read_spec(r, f, tarn__jinja_is_number(v));
    bool fits = group_fits(&s), is_plain = !s.sign && !s.group && !s.alternate && !s.no_negative_zero && s.align != '=';
    if (fits && v.kind == TARN__JINJA_STRING && (!s.type || s.type == 's') && is_plain)
        tarn__jinja_put_text(r, b, &s, v.as.string, '<');
    else if (fits && tarn__jinja_is_number(v) &&
             (tarn__jinja_is_float_type(s.type) || (v.kind == TARN__JINJA_FLOAT && (!s.type || s.type == 'n'))))
        tarn__jinja_put_float(r, b, &s, tarn__jinja_number_of(v));
    else if (!fits || !tarn__jinja_is_integer(v) || !put_int(r, b, &s, v))
        tarn__jinja_fail(r, "the format '%.*s' does not fit '%s'", tarn__jinja_shown(f->length), f->text,
                         tarn__jinja_type_name(v));
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

/* True for digits alone; then their number is the index. */
static bool is_index(tarn__jinja_run *r, const tarn__jinja_string *name, int64_t *index)
{
    return name->length && tarn__jinja_read_count(r, name, 0, index) == name->length;
}

/* The argument that the first part of a name stands for: a number, a keyword, or nothing for the next position. {} and
 * {0} in one format are an error, {} and {0.name} are not. */
static tarn__jinja_value argument_of(tarn__jinja_run *r, call *c, const tarn__jinja_string *first, bool is_whole)
{
    int64_t index = c->next;
    bool is_next = !first->length && is_whole, is_number = is_index(r, first, &index);
    if ((is_next && c->is_manual) || (is_number && is_whole && c->next > 0))
        tarn__jinja_fail(r, "{} and {0} cannot be in one format");
    c->next += is_next;
    c->is_manual |= is_number && is_whole;
    if (is_next || is_number) {
        if ((size_t)index >= c->arguments->positional.count)
            tarn__jinja_fail(r, "replacement index %" PRId64 " out of range", index);
        return c->arguments->positional.items[index];
    }
    const tarn__jinja_value *found = tarn__jinja_dict_find_text(&c->arguments->keywords, first->text, first->length);
    if (!found)
        tarn__jinja_fail(r, "a field of the format is missing");
    return *found;
}

/* The value of a field's name, as "0.name[key][2]": an argument, then attributes and subscripts. */
static tarn__jinja_value value_of(tarn__jinja_run *r, call *c, const tarn__jinja_string *name)
{
    size_t end = 0;
    while (end < name->length && name->text[end] != '.' && name->text[end] != '[')
        end++;
    tarn__jinja_value v = argument_of(r, c, tarn__jinja_slice_of(r, name, 0, end).as.string, end == name->length);
    while (end < name->length) {
        size_t begin = end + 1;
        char open = name->text[end];
        if (open != '.' && open != '[')
            tarn__jinja_fail(r, "only '.' or '[' may follow ']' in a field of a format");
        for (end = begin; end < name->length && !(open == '[' ? name->text[end] == ']' : is_any(name, end, ".["));)
            end++;
        if (open == '[' && end == name->length)
            tarn__jinja_fail(r, "missing ']' in a field of a format");
        if (begin == end)
            tarn__jinja_fail(r, "empty attribute in a field of a format");
        tarn__jinja_value key = tarn__jinja_slice_of(r, name, begin, end);
        int64_t index;
        if (open == '.')
            v = tarn__jinja_attribute(r, v, key.as.string);
        else
            v = tarn__jinja_subscript(r, v, is_index(r, key.as.string, &index) ? tarn__jinja_int(index) : key);
        end += open == '[';
    }
    return v;
}

/* Reads a field after its brace; the position after the closing one. A subscript may contain what else ends a name. */
static size_t read_field(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, field *found)
{
    size_t begin = at;
    while (at < f->length && !is_any(f, at, "}:!")) {
        if (f->text[at] == '{')
            tarn__jinja_fail(r, "unexpected '{' in a field of a format");
        if (f->text[at] == '[')
            while (at < f->length && f->text[at] != ']')
                at++;
        at += at < f->length;
    }
    *found = (field){.name = tarn__jinja_slice_of(r, f, begin, at).as.string};
    if (is_any(f, at, "!")) {
        if (at + 1 >= f->length || !is_any(f, at + 2, ":}"))
            tarn__jinja_fail(r, "expected ':' after the conversion of a field");
        found->conversion = f->text[at + 1];
        at += 2;
    }
    begin = at + is_any(f, at, ":");
    for (int depth = 1; at < f->length; at++) {
        depth += f->text[at] == '{' ? 1 : f->text[at] == '}' ? -1 : 0;
        if (depth == 0) {
            found->spec = tarn__jinja_slice_of(r, f, begin, at).as.string;
            return at + 1;
        }
    }
    tarn__jinja_fail(r, "expected '}' before end of string");
    return at;
}

static void put_format(tarn__jinja_run *r, tarn__jinja_builder *b, call *c, const tarn__jinja_string *f, int depth);

/* Markup escapes what it is given, unless that is markup, which has no specs. */
static void put_field(tarn__jinja_run *r, tarn__jinja_builder *b, call *c, const field *read, int depth)
{
    tarn__jinja_builder spec = {0}, text = {0};
    tarn__jinja_value v = value_of(r, c, read->name);
    v = read->conversion ? tarn__jinja_convert(r, v, read->conversion) : v;
    put_format(r, &spec, c, read->spec, depth - 1);
    const tarn__jinja_string *expanded = tarn__jinja_built(r, &spec).as.string;
    if (!c->is_markup) {
        put(r, b, expanded, v);
        return;
    }
    bool is_markup = v.kind == TARN__JINJA_STRING && v.as.string->is_markup;
    if (is_markup && expanded->length)
        tarn__jinja_fail(r, "the format '%.*s' does not fit markup", tarn__jinja_shown(expanded->length),
                         expanded->text);
    put(r, &text, expanded, v);
    tarn__jinja_value made = tarn__jinja_built(r, &text);
    tarn__jinja_build_string(r, b, is_markup ? v.as.string : tarn__jinja_escape(r, made).as.string);
}

/* {{ and }} stand for braces. `depth`: levels of fields that may follow. */
static void put_format(tarn__jinja_run *r, tarn__jinja_builder *b, call *c, const tarn__jinja_string *f, int depth)
{
    if (depth < 0)
        tarn__jinja_fail(r, "the fields of a format are nested too deep");
    for (size_t at = 0; at < f->length;) {
        char brace = f->text[at];
        bool is_brace = brace == '{' || brace == '}',
             is_double = is_brace && at + 1 < f->length && f->text[at + 1] == brace;
        if (is_brace && !is_double) {
            field read;
            if (brace == '}' || at + 1 == f->length)
                tarn__jinja_fail(r, "single '%c' encountered in format string", brace);
            at = read_field(r, f, at + 1, &read);
            put_field(r, b, c, &read, depth);
            continue;
        }
        tarn__jinja_build(r, b, f->text + at, 1, f->origin ? f->origin + at : NULL);
        at += is_double ? 2 : 1;
    }
}

tarn__jinja_value tarn__jinja_format_braces(tarn__jinja_run *r, const tarn__jinja_string *f,
                                            const tarn__jinja_arguments *arguments)
{
    tarn__jinja_builder b = {0};
    call c = {.arguments = arguments, .is_markup = f->is_markup};
    put_format(r, &b, &c, f, 2);
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), f);
}

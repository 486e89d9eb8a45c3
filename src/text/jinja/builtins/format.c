/* format.c: Python's formatted texts, ints and floats, for both of its notations (format_percent.c, format_braces.c).
 *
 * A number is a sign, a prefix such as 0x, digits and the rest (a fraction, an exponent, "inf"). Padding goes around
 * all of it or after the prefix; zeros after the prefix are digits, and grouped like them: {:010,} of 1234 is
 * 00,001,234. Widths count code points. Padding is the template's own, whatever was padded; the text keeps its
 * origins. */
#include "text/jinja/builtins/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number_format.h"

/* Digits that a double has at most after the point, with room; further ones are zeros. */
#define EXACT_DIGITS 1100

/* A number before padding. */
typedef struct number {
    bool is_negative;
    char prefix[3];
    const char *digits; /* not terminated */
    size_t count;
    const char *rest;
    size_t rest_length;
} number;

size_t tarn__jinja_read_count(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, int64_t *count)
{
    for (*count = 0; at < f->length && f->text[at] >= '0' && f->text[at] <= '9'; at++) {
        *count = *count * 10 + (f->text[at] - '0');
        if (*count > INT32_MAX)
            tarn__jinja_fail(r, "a number in a format is too large");
    }
    return at;
}

void tarn__jinja_check_spec(tarn__jinja_run *r, const tarn__jinja_spec *s, bool is_number)
{
    if (s->width > TARN__JINJA_MAX_WIDTH)
        tarn__jinja_fail(r, "the width %" PRId64 " of a format is above %d", s->width, TARN__JINJA_MAX_WIDTH);
    if (is_number && s->precision > TARN__JINJA_MAX_WIDTH)
        tarn__jinja_fail(r, "the precision %" PRId64 " of a format is above %d", s->precision, TARN__JINJA_MAX_WIDTH);
}

static void repeat(tarn__jinja_run *r, tarn__jinja_builder *b, uint32_t code, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        tarn__jinja_build_code(r, b, code, 0);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The middle has the larger half after the text. A text wider than the width is not cut. */
void tarn__jinja_put_text(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s,
                          const tarn__jinja_string *text, char align)
{
    size_t end = s->precision < 0 ? text->length : tarn__jinja_offset(text, (size_t)s->precision);
    const tarn__jinja_string *cut = tarn__jinja_slice_of(r, text, 0, end).as.string;
    int64_t missing = s->width - (int64_t)tarn__jinja_count(cut);
    align = s->align ? s->align : align;
    int64_t before = missing <= 0 || align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    repeat(r, b, s->fill, before);
    tarn__jinja_build_string(r, b, cut);
    repeat(r, b, s->fill, missing - before);
}

bool tarn__jinja_is_code(tarn__jinja_value v)
{
    int64_t code = tarn__jinja_is_integer(v) ? tarn__jinja_integer_of(v) : -1;
    return code >= 0 && code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
}

const tarn__jinja_string *tarn__jinja_character_of(tarn__jinja_run *r, tarn__jinja_value v)
{
    tarn__jinja_builder text = {0};
    tarn__jinja_build_code(r, &text, (uint32_t)tarn__jinja_integer_of(v), 0);
    return tarn__jinja_built(r, &text).as.string;
}

/* repr() has escaped what cannot be printed; ascii() escapes all that is not ASCII. */
static tarn__jinja_value ascii(tarn__jinja_run *r, const tarn__jinja_string *text)
{
    tarn__jinja_builder b = {0};
    for (size_t at = 0, size; at < text->length; at += size) {
        uint32_t code;
        char escaped[16];
        size = tarn__jinja_decode(text->text + at, text->length - at, &code);
        snprintf(escaped, sizeof(escaped),
                 code <= 0xFF     ? "\\x%02" PRIx32
                 : code <= 0xFFFF ? "\\u%04" PRIx32
                                  : "\\U%08" PRIx32,
                 code);
        if (code < 0x80)
            tarn__jinja_build(r, &b, text->text + at, size, text->origin ? text->origin + at : NULL);
        else
            tarn__jinja_build_text(r, &b, escaped);
    }
    return tarn__jinja_built(r, &b);
}

tarn__jinja_value tarn__jinja_convert(tarn__jinja_run *r, tarn__jinja_value v, char conversion)
{
    tarn__jinja_builder text = {0};
    if (conversion == 's')
        tarn__jinja_print(r, &text, v);
    else if (conversion == 'r' || conversion == 'a')
        tarn__jinja_repr(r, &text, v);
    else
        tarn__jinja_fail(r, "unknown conversion '%c'", conversion);
    tarn__jinja_value made = tarn__jinja_built(r, &text);
    return conversion == 'a' ? ascii(r, made.as.string) : made;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static int64_t largest(int64_t a, int64_t b, int64_t c)
{
    return a > b ? (a > c ? a : c) : b > c ? b : c;
}

/* Digits with the zeros that fill a width, of which separators take a part. A separator never comes first, so that the
 * result may be one wider than the width. */
static int64_t digits_to_fill(int64_t digits, int64_t width, int64_t each)
{
    for (int64_t total = 0;; width--) {
        int64_t most = largest(digits, width, 1), taken = most < each ? most : each;
        total += taken;
        digits -= taken < digits ? taken : digits;
        width -= taken;
        if (digits <= 0 && width <= 0)
            return total;
    }
}

/* Hexadecimal, octal and binary digits have groups of four. */
static void put_number(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, const number *n)
{
    char sign[2] = {n->is_negative ? '-' : s->sign == '+' || s->sign == ' ' ? s->sign : 0, 0};
    char align = s->align ? s->align : '>';
    int64_t each = n->prefix[0] || (s->type && strchr("box", s->type | 0x20)) ? 4 : 3, total = (int64_t)n->count;
    int64_t apart = (int64_t)(strlen(sign) + (s->alternate ? strlen(n->prefix) : 0) + n->rest_length);
    int64_t least = s->fill == '0' && align == '=' ? s->width - apart : 0;
    if (n->count && s->group)
        total = digits_to_fill(total, least, each);
    else if (n->count && total < least)
        total = least;
    int64_t missing = s->width - apart - total - (s->group && total ? (total - 1) / each : 0);
    missing = missing > 0 ? missing : 0;
    int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0, inside = align == '=' ? missing : 0;
    repeat(r, b, s->fill, before);
    tarn__jinja_build_text(r, b, sign);
    tarn__jinja_build_text(r, b, s->alternate ? n->prefix : "");
    repeat(r, b, s->fill, inside);
    for (int64_t i = 0, zeros = total - (int64_t)n->count; i < total; i++) {
        if (i && s->group && (total - i) % each == 0)
            repeat(r, b, (uint32_t)s->group, 1);
        repeat(r, b, i < zeros ? '0' : (uint32_t)n->digits[i - zeros], 1);
    }
    tarn__jinja_build(r, b, n->rest, n->rest_length, NULL);
    repeat(r, b, s->fill, missing - before - inside);
}

/* Digits with zeros in front, up to the precision. */
static void put_digits(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, const char *digits,
                       const char *prefix, bool is_negative)
{
    number n = {.is_negative = is_negative, .rest = ""};
    tarn__jinja_builder text = {0};
    tarn__jinja_check_spec(r, s, true);
    repeat(r, &text, '0', s->precision - (int64_t)strlen(digits));
    tarn__jinja_build_text(r, &text, digits);
    const tarn__jinja_string *all = tarn__jinja_built(r, &text).as.string;
    n.digits = all->text;
    n.count = all->length;
    snprintf(n.prefix, sizeof(n.prefix), "%s", prefix);
    put_number(r, b, s, &n);
}

/* The absolute value of INT64_MIN is formed unsigned. printf() has no binary digits; 0 has one. */
void tarn__jinja_put_int(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, int64_t value)
{
    char digits[80], prefix[3] = {'0', s->type, 0};
    uint64_t size = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    bool has_base = s->type && strchr("xXob", s->type);
    if (s->type == 'b') {
        int count = 1;
        while (count < 64 && size >> count)
            count++;
        for (int i = 0; i < count; i++)
            digits[i] = size >> (count - 1 - i) & 1 ? '1' : '0';
        digits[count] = 0;
    } else
        snprintf(digits, sizeof(digits),
                 s->type == 'x'   ? "%" PRIx64
                 : s->type == 'X' ? "%" PRIX64
                 : s->type == 'o' ? "%" PRIo64
                                  : "%" PRIu64,
                 size);
    put_digits(r, b, s, digits, has_base ? prefix : "", value < 0);
}

/* printf() writes all digits of a double, which Python's int has too. */
void tarn__jinja_put_truncated(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, double value)
{
    char digits[320];
    if (!isfinite(value))
        tarn__jinja_fail(r, "a float that is not finite cannot be an int");
    snprintf(digits, sizeof(digits), "%.0f", trunc(fabs(value)));
    put_digits(r, b, s, digits, "", trunc(value) < 0);
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

bool tarn__jinja_is_float_type(char type)
{
    return type && strchr("eEfFgG%", type);
}

/* printf()'s digits of a number that is not negative, with a point in any locale. */
static void print_digits(char *to, size_t capacity, const char *format, int precision, double size)
{
    snprintf(to, capacity, format, precision, size);
    for (char *at = to; *at; at++)
        *at = *at == ',' ? '.' : *at;
}

/* Drops zeros at the end of the fraction, and a point without one: "1.50e+20" to "1.5e+20". */
static void strip_zeros(char *text)
{
    char *end = text + strcspn(text, "e"), *last = end;
    while (last > text && last[-1] == '0')
        last--;
    last -= last > text && last[-1] == '.';
    memmove(last, end, strlen(end) + 1);
}

/* The exponent of a number rounded to `digits` digits, which `to` gets in the form of %e. */
static int print_exponent(char *to, size_t capacity, const char *format, int digits, double size)
{
    int exponent = 0;
    print_digits(to, capacity, format, digits - 1, size);
    sscanf(to + strcspn(to, "eE") + 1, "%d", &exponent);
    return exponent;
}

/* %#g, composed: glibc's drops the zeros of 99999.5 with five digits. */
static void print_padded(char *to, size_t capacity, bool is_upper, int precision, double size)
{
    precision = precision ? precision : 1;
    int exponent = print_exponent(to, capacity, is_upper ? "%#.*E" : "%#.*e", precision, size);
    if (exponent >= -4 && exponent < precision)
        print_digits(to, capacity, "%#.*f", precision - 1 - exponent, size);
}

/* Type 0: the digits of repr(), and with a precision those of %g, which here has an exponent one digit earlier, so that
 * there is one after the point: {:.3} of 12.0 is 12.0, of 123.0 is 1.23e+02. */
static void print_general(char *to, size_t capacity, const tarn__jinja_spec *s, int precision, double size)
{
    if (s->precision < 0) {
        char *exponent = strchr(tarn__number_format(size, to), 'e');
        if (s->alternate && exponent && !strchr(to, '.')) {
            memmove(exponent + 1, exponent, strlen(exponent) + 1);
            *exponent = '.';
        }
        return;
    }
    precision = precision ? precision : 1;
    int exponent = print_exponent(to, capacity, s->alternate ? "%#.*e" : "%.*e", precision, size);
    if (exponent >= -4 && exponent < precision - 1) {
        print_digits(to, capacity, s->alternate ? "%#.*f" : "%.*g", s->alternate ? precision - 1 - exponent : precision,
                     size);
        strcat(to, strchr(to, '.') ? "" : ".0");
    } else if (!s->alternate && precision > 1)
        strip_zeros(to);
}

/* The digits of the absolute value. */
static void print_float(char *to, size_t capacity, const tarn__jinja_spec *s, int precision, double size)
{
    /* the type replaces the f; % is f */
    char format[] = "%#.*f", *plain = format + 1;
    if (!isfinite(size)) {
        bool is_upper = s->type && strchr("EFG", s->type);
        strcpy(to, isnan(size) ? (is_upper ? "NAN" : "nan") : is_upper ? "INF" : "inf");
        return;
    }
    if (!s->type) {
        print_general(to, capacity, s, precision, size);
        return;
    }
    if (s->alternate && strchr("gGn", s->type)) {
        print_padded(to, capacity, s->type == 'G', precision, size);
        return;
    }
    format[4] = s->type == '%' ? 'f' : s->type == 'n' ? 'g' : s->type;
    plain[0] = s->alternate ? '#' : '%';
    print_digits(to, capacity, s->alternate ? format : plain, precision, size);
}

/* True for "0.00" and "0e+00". */
static bool is_zero(const char *text)
{
    size_t digits = strspn(text, "0.");
    return digits && (!text[digits] || strchr("eE", text[digits]));
}

/* 309 digits and EXACT_DIGITS after the point fit into the buffer. Zeros beyond these are added before the exponent,
 * for types that do not drop them. */
void tarn__jinja_put_float(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, double value)
{
    char digits[EXACT_DIGITS + 400];
    tarn__jinja_check_spec(r, s, true);
    int64_t precision = s->precision < 0 ? 6 : s->precision;
    int exact = precision < EXACT_DIGITS ? (int)precision : EXACT_DIGITS;
    bool keeps_zeros = isfinite(value) && (s->alternate || (s->type && strchr("eEfF%", s->type)));
    print_float(digits, sizeof(digits), s, exact, s->type == '%' ? fabs(value) * 100 : fabs(value));
    size_t count = strspn(digits, "0123456789"), exponent = strcspn(digits, "eE");
    tarn__jinja_builder rest = {0};
    tarn__jinja_build(r, &rest, digits + count, exponent > count ? exponent - count : 0, NULL);
    repeat(r, &rest, '0', keeps_zeros ? precision - exact : 0);
    tarn__jinja_build_text(r, &rest, digits + (exponent > count ? exponent : count));
    tarn__jinja_build_text(r, &rest, s->type == '%' ? "%" : "");
    const tarn__jinja_string *tail = tarn__jinja_built(r, &rest).as.string;
    number n = {.digits = digits, .count = count, .rest = tail->text, .rest_length = tail->length};
    n.is_negative = signbit(value) && !isnan(value) && !(s->no_negative_zero && is_zero(digits));
    put_number(r, b, s, &n);
}

/* format.h: what "%05d" % n and "{:05}".format(n) share: the spec of one field, and printing a text, an int or a float
 * by it.
 *
 * format.c has the printing, format_percent.c and format_braces.c read their notations into a spec. */
#ifndef TARN__FORMAT_H
#define TARN__FORMAT_H

#include "text/jinja/eval.h"

/* Maximum width, and precision of numbers, so that a format cannot ask for memory without end; Python has no such
 * limit. */
#define TARN__JINJA_MAX_WIDTH 100000

/* What stands after the % or the colon. */
typedef struct tarn__jinja_spec {
    uint32_t fill;            /* code point */
    char align;               /* <, >, ^, or = for padding after the sign and prefix; 0: none given */
    char sign, type;          /* 0: none */
    bool alternate;           /* # */
    bool no_negative_zero;    /* z */
    char group;               /* between digits: ',' or '_'; 0: none */
    int64_t width, precision; /* precision -1: none */
} tarn__jinja_spec;

/* Digits at `at` as a number; returns the position after them. A number above 2^31 - 1 is an error. */
size_t tarn__jinja_read_count(tarn__jinja_run *r, const tarn__jinja_string *f, size_t at, int64_t *count);

/* Fails for a width, or a precision of a number, above the maximum. */
void tarn__jinja_check_spec(tarn__jinja_run *r, const tarn__jinja_spec *s, bool is_number);

/* A text, cut to the precision and padded; `align` is the default. */
void tarn__jinja_put_text(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s,
                          const tarn__jinja_string *text, char align);

/* An int by its decimal digits, or in base 2, 8 or 16 (types b, o, x, X); any other type is decimal. A precision is
 * the least number of digits. */
void tarn__jinja_put_int(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, int64_t number);

/* A float without its fraction, of any size. Infinity and NaN are errors. */
void tarn__jinja_put_truncated(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, double number);

/* A float; type 0 is repr() without a precision, and with one %g with a digit after the point. */
void tarn__jinja_put_float(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_spec *s, double number);

/* True for types that print floats, and ints as floats. */
bool tarn__jinja_is_float_type(char type);

/* A code point: an int that UTF-8 can write. */
bool tarn__jinja_is_code(tarn__jinja_value v);
const tarn__jinja_string *tarn__jinja_character_of(tarn__jinja_run *r, tarn__jinja_value v);

/* str(), repr() or ascii() of a value by the conversion 's', 'r' or 'a'; another one is an error. */
tarn__jinja_value tarn__jinja_convert(tarn__jinja_run *r, tarn__jinja_value v, char conversion);

#endif

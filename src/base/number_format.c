/* number_format.c: shortest decimal of a number by trial: print it with 1, 2, … digits, correctly rounded, until the
 * result reads back as the number. At most 17 strtod() calls, which is fast enough for config files.
 *
 * Below a power of two neighbouring numbers are closer than above it. There the shortest decimal may be the next one
 * above the rounded one, so both are tried. */
#include "base/number_format.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 17 digits tell all doubles apart. */
enum { MAX_DIGITS = 17 };

/* |value| = 0.d₁d₂… · 10^exponent */
typedef struct decimal {
    char digit[MAX_DIGITS + 2];
    int digits, exponent;
} decimal;

/* The decimal point of the current locale, which printf() and strtod() use. */
static const char *point(void)
{
    const struct lconv *locale = localeconv();
    return locale && locale->decimal_point[0] ? locale->decimal_point : ".";
}

/* `value` rounded to `digits` digits, taken apart from printf's "d.ddde±xx". */
static decimal rounded(double value, int digits)
{
    char text[64];
    decimal d = {.digits = digits};
    snprintf(text, sizeof(text), "%.*e", digits - 1, value);
    const char *exponent = strrchr(text, 'e');
    int used = 0;
    for (const char *c = text; c < exponent; c++)
        if (*c >= '0' && *c <= '9' && used < digits)
            d.digit[used++] = *c;
    d.exponent = atoi(exponent + 1) + 1;
    return d;
}

/* The next larger decimal with the same number of digits. */
static decimal above(decimal d)
{
    int i = d.digits - 1;
    while (i >= 0 && d.digit[i] == '9')
        d.digit[i--] = '0';
    if (i >= 0) {
        d.digit[i]++;
    } else {
        d.digit[0] = '1';
        d.exponent++;
    }
    return d;
}

/* The double that a decimal reads back as. */
static double value_of(const decimal *d)
{
    char text[64];
    snprintf(text, sizeof(text), "0%s%.*se%d", point(), d->digits, d->digit, d->exponent);
    return strtod(text, NULL);
}

/* Whether a decimal, read as a double, is the number: as f64, or rounded to f32. */
typedef bool (*same_fn)(double read, double value);

static bool same_f64(double read, double value)
{
    return read == value;
}

static bool same_f32(double read, double value)
{
    return (float)read == (float)value;
}

/* The shortest decimal of a positive number. */
static decimal shortest(double value, same_fn same)
{
    int exponent;
    bool is_power_of_2 = frexp(value, &exponent) == 0.5;
    for (int digits = 1; digits < MAX_DIGITS; digits++) {
        decimal d = rounded(value, digits), next = above(d);
        if (same(value_of(&d), value))
            return d;
        if (is_power_of_2 && same(value_of(&next), value))
            return next;
    }
    return rounded(value, MAX_DIGITS);
}

/* Positional notation: 0.001, 12.5, 100.0. */
static void write_plain(const decimal *d, char *text)
{
    int used = 0;
    if (d->exponent <= 0) {
        used = sprintf(text, "0.");
        for (int i = 0; i < -d->exponent; i++)
            text[used++] = '0';
    }
    for (int i = 0; i < d->digits; i++) {
        text[used++] = d->digit[i];
        if (i + 1 == d->exponent && i + 1 < d->digits)
            text[used++] = '.';
    }
    for (int i = d->digits; i < d->exponent; i++)
        text[used++] = '0';
    strcpy(text + used, d->digits <= d->exponent ? ".0" : "");
}

/* Scientific notation with at least two digits of exponent: 1.5e-07. */
static void write_exponent(const decimal *d, char *text)
{
    int used = sprintf(text, "%c", d->digit[0]);
    if (d->digits > 1)
        used += sprintf(text + used, ".%.*s", d->digits - 1, d->digit + 1);
    sprintf(text + used, "e%+03d", d->exponent - 1);
}

/* Python's repr(): positional notation from 1e-4 up to 1e16. */
const char *tarn__number_format(double value, char text[TARN__NUMBER_SIZE])
{
    bool is_negative = signbit(value);
    char *at = text;
    if (!isfinite(value))
        return strcpy(text, "null");
    if (is_negative)
        *at++ = '-';
    if (value == 0) {
        strcpy(at, "0.0");
        return text;
    }
    decimal d = shortest(fabs(value), same_f64);
    while (d.digits > 1 && d.digit[d.digits - 1] == '0')
        d.digits--;
    if (d.exponent > -4 && d.exponent <= 16)
        write_plain(&d, at);
    else
        write_exponent(&d, at);
    return text;
}

/* strtod() reads the locale's point only, and files have '.'. */
double tarn__number_parse(const char *text)
{
    char own[128];
    const char *dot = strchr(text, '.');
    if (!dot || strcmp(point(), ".") == 0)
        return strtod(text, NULL);
    snprintf(own, sizeof(own), "%.*s%s%s", (int)(dot - text), text, point(), dot + 1);
    return strtod(own, NULL);
}

/* 0.1f is 0.1, not 0.10000000149011612: the double that the shortest decimal of the f32 reads as. */
double tarn__number_of_f32(float value)
{
    if (!isfinite(value) || value == 0)
        return (double)value;
    decimal d = shortest(fabs((double)value), same_f32);
    double read = value_of(&d);
    return value < 0 ? -read : read;
}

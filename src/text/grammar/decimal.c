/* decimal.c: exact decimals, and numbers within bounds as digits.
 *
 * Bounds apply to the digits of a number without an exponent. Rounding to a double keeps the order of numbers, so that
 * inclusive bounds hold for every reader. An excluded bound could be reached by rounding: there numbers have at most 15
 * significant digits, which doubles tell apart.
 *
 * A bound becomes an expression over digits: at least 27 is [1-9]\d{2,} | [3-9]\d | 2[8-9] | 27, each with any
 * fraction. Both bounds, the multiple and the number of digits are automata that are intersected; their sum of states
 * stays small, since each depends on the digits of one number. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/schema.h"

#define EXACT_DIGITS 15
/* The automaton of a multiple has a state for each remainder. */
#define MAX_MULTIPLE 10000

/* ---- decimals ---------------------------------------------------------------------------------------------------- */

/* Appends the digits before the exponent; *point is the number of those before the point. */
static bool add_digits(tarn__decimal *d, const char *text, size_t length, size_t *at, int *point)
{
    int count = 0;
    *point = -1;
    for (; *at < length && text[*at] != 'e' && text[*at] != 'E'; (*at)++) {
        if (text[*at] == '.') {
            *point = count;
            continue;
        }
        if (count == TARN__MAX_DIGITS)
            return false;
        d->digits[count++] = text[*at];
    }
    *point = *point < 0 ? count : *point;
    d->integers = count;
    return true;
}

/* Cut at a size that no number of TARN__MAX_DIGITS digits can make up for. */
static long exponent_of(const char *text, size_t length, size_t at)
{
    long exponent = 0;
    bool is_negative = at + 1 < length && text[at + 1] == '-';
    for (at++; at < length; at++)
        if (text[at] >= '0' && text[at] <= '9' && exponent < 100000)
            exponent = exponent * 10 + (text[at] - '0');
    return is_negative ? -exponent : exponent;
}

/* "12.50" is 12.5, "1e2" is 100, "-0.0" is 0 without a sign. `point` counts the digits before the point as the exponent
 * moves it, and may be negative or beyond the last digit; zeros fill what is missing. */
bool tarn__decimal_parse(tarn__decimal *d, const char *text, size_t length)
{
    size_t at = length > 0 && text[0] == '-';
    int written;
    char digits[TARN__MAX_DIGITS + 1];
    *d = (tarn__decimal){.is_negative = at == 1};
    if (!add_digits(d, text, length, &at, &written))
        return false;
    long count = d->integers, point = written + (at < length ? exponent_of(text, length, at) : 0), first = 0;
    while (count > 0 && d->digits[count - 1] == '0' && count > 0)
        count--;
    while (first < count && d->digits[first] == '0')
        first++;
    if (count == first) {
        *d = (tarn__decimal){.integers = 1, .digits = "0"};
        return true;
    }
    long integers = point > first ? point - first : 1, fractions = count > point ? count - point : 0;
    if (integers + fractions > TARN__MAX_DIGITS)
        return false;
    memcpy(digits, d->digits, sizeof(digits));
    memset(d->digits, 0, sizeof(d->digits));
    for (long i = 0; i < integers + fractions; i++) { /* the digit of 10^(integers - 1 - i) */
        long source = point - integers + i;
        d->digits[i] = source >= first && source < count ? digits[source] : '0';
    }
    d->integers = (int)integers;
    d->fractions = (int)fractions;
    return true;
}

/* Without leading zeros, more digits before the point mean a larger number. */
static int compare_magnitudes(const tarn__decimal *a, const tarn__decimal *b)
{
    if (a->integers != b->integers)
        return a->integers < b->integers ? -1 : 1;
    return strcmp(a->digits, b->digits); /* a prefix is smaller: it has no trailing zeros */
}

int tarn__decimal_compare(const tarn__decimal *a, const tarn__decimal *b)
{
    if (a->is_negative != b->is_negative)
        return a->is_negative ? -1 : 1;
    int order = compare_magnitudes(a, b);
    return a->is_negative ? -order : order;
}

/* ---- magnitudes -------------------------------------------------------------------------------------------------- */

/* A digit from low to high; nothing matches if there is none, as below '0' and above '9'. */
static uint32_t digit(tarn__gb *gb, char low, char high)
{
    return low > high ? tarn__gb_alt(gb, NULL, 0)
                      : tarn__gb_class(gb, &(tarn__range){(uint32_t)low, (uint32_t)high}, 1, false);
}

/* `max` -1: without end. */
static uint32_t digits(tarn__gb *gb, int32_t min, int32_t max)
{
    return tarn__gb_repeat(gb, digit(gb, '0', '9'), min, max);
}

/* Nothing, or a point with at least one digit. */
static uint32_t any_fraction(tarn__gb *gb)
{
    return tarn__gb_repeat(gb, tarn__gb_seq_of(gb, tarn__gb_text(gb, "."), digits(gb, 1, -1)), 0, 1);
}

static uint32_t add_or(tarn__gb *gb, uint32_t all, uint32_t part)
{
    return tarn__gb_alt_of(gb, all, part);
}

/* A fraction, with its point, of at least `f`; without one it is 0. From .25 on: a larger digit at some position, the
 * digits before it equal (.3…, .26…), or .25 with anything after it; if .25 is excluded, with anything that is not all
 * zeros. */
static uint32_t fraction_from(tarn__gb *gb, const char *f, int count, bool excluded)
{
    uint32_t more = tarn__gb_seq_of(gb, digits(gb, 0, -1), digit(gb, '1', '9'), digits(gb, 0, -1));
    uint32_t point = tarn__gb_text(gb, "."), all = tarn__gb_alt(gb, NULL, 0);
    if (count == 0)
        return excluded ? tarn__gb_seq_of(gb, point, more) : any_fraction(gb);
    for (int i = 0; i < count; i++)
        all = add_or(gb, all,
                     tarn__gb_seq_of(gb, tarn__gb_string(gb, f, (size_t)i), digit(gb, (char)(f[i] + 1), '9'),
                                     digits(gb, 0, -1)));
    all = add_or(gb, all,
                 tarn__gb_seq_of(gb, tarn__gb_string(gb, f, (size_t)count), excluded ? more : digits(gb, 0, -1)));
    return tarn__gb_seq_of(gb, point, all);
}

/* A fraction of at most `f`: a smaller digit at some position (.1…, .24…), fewer digits (.2), .25 with zeros after it,
 * or none at all. */
static uint32_t fraction_to(tarn__gb *gb, const char *f, int count, bool excluded)
{
    uint32_t point = tarn__gb_text(gb, "."), zeros = tarn__gb_repeat(gb, tarn__gb_text(gb, "0"), 0, -1);
    uint32_t all = tarn__gb_alt(gb, NULL, 0);
    if (count == 0)
        return excluded ? all : tarn__gb_repeat(gb, tarn__gb_seq_of(gb, point, tarn__gb_text(gb, "0"), zeros), 0, 1);
    for (int i = 0; i < count; i++) {
        all = add_or(gb, all,
                     tarn__gb_seq_of(gb, tarn__gb_string(gb, f, (size_t)i), digit(gb, '0', (char)(f[i] - 1)),
                                     digits(gb, 0, -1)));
        if (i > 0)
            all = add_or(gb, all, tarn__gb_string(gb, f, (size_t)i));
    }
    if (!excluded)
        all = add_or(gb, all, tarn__gb_seq_of(gb, tarn__gb_string(gb, f, (size_t)count), zeros));
    return tarn__gb_repeat(gb, tarn__gb_seq_of(gb, point, all), 0, 1);
}

/* Magnitudes of at least, or at most, a bound: more or fewer digits before the point; the same number of them, and one
 * that differs; or the same before the point. */
static uint32_t magnitude(tarn__gb *gb, const tarn__decimal *d, bool is_low, bool excluded)
{
    const char *f = d->digits + d->integers;
    uint32_t tail = any_fraction(gb), all = tarn__gb_alt(gb, NULL, 0);
    if (is_low)
        all = tarn__gb_seq_of(gb, digit(gb, '1', '9'), digits(gb, d->integers, -1), tail);
    else if (d->integers > 1)
        all = tarn__gb_alt_of(gb, tarn__gb_seq_of(gb, tarn__gb_text(gb, "0"), tail),
                              tarn__gb_seq_of(gb, digit(gb, '1', '9'), digits(gb, 0, d->integers - 2), tail));
    for (int i = 0; i < d->integers; i++) {
        char first = i == 0 && d->integers > 1 ? '1' : '0';
        uint32_t other = is_low ? digit(gb, (char)(d->digits[i] + 1), '9') : digit(gb, first, (char)(d->digits[i] - 1));
        all = add_or(gb, all,
                     tarn__gb_seq_of(gb, tarn__gb_string(gb, d->digits, (size_t)i), other,
                                     digits(gb, d->integers - 1 - i, d->integers - 1 - i), tail));
    }
    uint32_t fraction =
        is_low ? fraction_from(gb, f, d->fractions, excluded) : fraction_to(gb, f, d->fractions, excluded);
    return add_or(gb, all, tarn__gb_seq_of(gb, tarn__gb_string(gb, d->digits, (size_t)d->integers), fraction));
}

/* ---- languages --------------------------------------------------------------------------------------------------- */

/* The language of an expression of `own`, which is closed in any case. */
static bool to_dfa(tarn__gb *own, uint32_t expr, tarn__dfa *dfa)
{
    own->root = tarn__gb_rule(own, NULL, 0);
    tarn__gb_rule_set(own, own->root, expr);
    return tarn__dfa_build(dfa, own, "bounds of numbers");
}

/* Narrows a language by another, of a builder of its own. */
static bool narrow(tarn__dfa *dfa, tarn__gb *own, uint32_t expr)
{
    tarn__dfa other;
    if (to_dfa(own, expr, &other))
        return tarn__dfa_intersect(dfa, &other, "bounds of numbers");
    tarn__dfa_free(dfa);
    return false;
}

/* Numbers whose digits before the point are divisible; there must be none after it. State r is the remainder of the
 * digits so far. */
static bool narrow_multiple(tarn__dfa *dfa, uint32_t multiple)
{
    tarn__dfa other = {.count = multiple};
    other.next = tarn__alloc(sizeof(*other.next) * 256 * multiple);
    other.final = other.next ? tarn__alloc(multiple) : NULL;
    if (!other.final) {
        tarn__release(other.next, sizeof(*other.next) * 256 * multiple);
        tarn__dfa_free(dfa);
        return false;
    }
    for (uint32_t r = 0; r < multiple; r++)
        for (uint32_t c = 0; c < 10; c++)
            other.next[(size_t)r * 256 + '0' + c] = (r * 10 + c) % multiple + 1;
    other.final[0] = 1;
    return tarn__dfa_intersect(dfa, &other, "multipleOf");
}

/* Magnitudes from a bound to another; either may be NULL. 0 with an error. */
static uint32_t magnitudes(tarn__gb *gb, const tarn__bounds *b, bool is_integer, const tarn__decimal *low,
                           bool low_excluded, const tarn__decimal *high, bool high_excluded)
{
    tarn__gb own;
    tarn__dfa dfa = {0};
    if (!tarn__gb_open(&own))
        return 0;
    /* No leading zeros: JSON forbids them. */
    uint32_t whole = tarn__gb_alt_of(&own, tarn__gb_text(&own, "0"),
                                     tarn__gb_seq_of(&own, digit(&own, '1', '9'), digits(&own, 0, -1)));
    bool good = to_dfa(&own, is_integer ? whole : tarn__gb_seq_of(&own, whole, any_fraction(&own)), &dfa);
    if (good && low)
        good = tarn__gb_open(&own) && narrow(&dfa, &own, magnitude(&own, low, true, low_excluded));
    if (good && high)
        good = tarn__gb_open(&own) && narrow(&dfa, &own, magnitude(&own, high, false, high_excluded));
    if (good && b->multiple > 1)
        good = narrow_multiple(&dfa, b->multiple);
    if (good && !is_integer && (b->low_excluded || b->high_excluded)) {
        good = tarn__gb_open(&own);
        /* i digits before the point leave EXACT_DIGITS - i for those after it. */
        uint32_t all = tarn__gb_alt(&own, NULL, 0);
        for (int i = 1; good && i <= EXACT_DIGITS; i++)
            all = add_or(&own, all,
                         tarn__gb_seq_of(&own, digits(&own, i, i),
                                         tarn__gb_repeat(&own,
                                                         tarn__gb_seq_of(&own, tarn__gb_text(&own, "."),
                                                                         digits(&own, 0, EXACT_DIGITS - i)),
                                                         0, 1)));
        good = good && narrow(&dfa, &own, all);
    }
    if (!good)
        tarn__dfa_free(&dfa);
    return good ? tarn__gb_dfa(gb, &dfa) : 0;
}

/* Two halves: numbers from 0 on, and a minus with the magnitudes of those below 0, whose bounds change places. */
uint32_t tarn__gb_number(tarn__gb *gb, const tarn__bounds *b, bool is_integer)
{
    const tarn__decimal zero = {.integers = 1, .digits = "0"};
    uint32_t parts[2];
    size_t count = 0;
    int low_sign = b->has_low ? tarn__decimal_compare(&b->low, &zero) : -1;
    int high_sign = b->has_high ? tarn__decimal_compare(&b->high, &zero) : 1;
    if (b->multiple > MAX_MULTIPLE)
        return (uint32_t)tarn__raise(TARN_ERROR_FORMAT, "multipleOf is above %d", MAX_MULTIPLE);
    if (high_sign > 0 || (high_sign == 0 && !b->high_excluded)) {
        bool from_low = b->has_low && low_sign >= 0;
        parts[count++] = magnitudes(gb, b, is_integer, from_low ? &b->low : NULL, b->low_excluded,
                                    b->has_high ? &b->high : NULL, b->high_excluded);
    }
    if (low_sign < 0) { /* "-0" is not a form of 0 */
        bool from_high = b->has_high && high_sign < 0;
        uint32_t m = magnitudes(gb, b, is_integer, from_high ? &b->high : &zero, from_high ? b->high_excluded : true,
                                b->has_low ? &b->low : NULL, b->low_excluded);
        parts[count++] = tarn__gb_seq_of(gb, tarn__gb_text(gb, "-"), m);
    }
    return tarn_failed() ? 0 : tarn__gb_alt(gb, parts, count);
}

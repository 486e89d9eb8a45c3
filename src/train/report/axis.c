/* axis.c: axes of charts: their range, and ticks at 1, 2 and 5 times a power of ten.
 *
 * Comparisons allow for a relative error of 1e-4 (1e-9 for exponents): the steps come out of pow() and log10(), which
 * need not be exact, and a tick at 0.30000000000000004 would otherwise be missed or written in full. Pure functions;
 * values are finite, which chart.c ensures. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/report/report.h"

#define TICKS_WANTED 5
#define MIN_SPREAD .05          /* range of an axis of values, relative to the largest of them, at least */
#define MIN_FRACTION_SPREAD .05 /* range of an axis of fractions, at least: 5 percentage points */
#define SMALLEST 1e-280         /* smaller ranges are subnormal after the divisions below */

/* The least of 1, 2, 5, 10 … times a power of ten that is not below `step`. */
static double round_step(double step)
{
    double power = pow(10, floor(log10(step))), lead = step / power;
    return power * (lead <= 1.0001 ? 1 : lead <= 2.0001 ? 2 : lead <= 5.0001 ? 5 : 10);
}

/* A tight axis ends at the values and has ticks inside; else the ends are ticks. Ticks are multiples of the step, at
 * least min_step apart, and not sums: no error accumulates. */
static tarn__axis create_linear(double low, double high, bool is_tight, double min_step)
{
    double spread = high - low, size = fmax(fabs(low), fabs(high));
    if (!(spread > size * 1e-9) || spread < SMALLEST) { /* constant values: a margin around them */
        double margin = size > SMALLEST ? size * .1 : 1;
        low -= margin;
        high += margin;
    }
    tarn__axis axis = {.low = low, .high = high};
    /* divided first: the difference of two huge values of opposite sign would overflow */
    axis.step = fmax(min_step, round_step(high / TICKS_WANTED - low / TICKS_WANTED));
    double first = is_tight ? ceil(low / axis.step - 1e-9) : floor(low / axis.step + 1e-9);
    double last = is_tight ? floor(high / axis.step + 1e-9) : ceil(high / axis.step - 1e-9);
    for (double i = first; i <= last && axis.tick_count < TARN__MAX_TICKS; i++)
        axis.tick[axis.tick_count++] = i == 0 ? 0 : i * axis.step;
    if (!is_tight) {
        axis.low = first * axis.step;
        axis.high = last * axis.step;
    }
    return axis;
}

tarn__axis tarn__axis_linear(double low, double high, bool is_tight)
{
    return create_linear(low, high, is_tight, 0);
}

/* Steps are integers: an axis of three steps has no tick at 0.5. */
tarn__axis tarn__axis_steps(double first, double last)
{
    if (first > 0 && first < .1 * last)
        first = 0;
    return first < last ? create_linear(first, last, true, 1) : create_linear(first - 1, first + 1, true, 1);
}

/* An axis that magnifies a change of 0.02 % to its full height shows noise as if it were progress. */
tarn__axis tarn__axis_of_values(double low, double high, bool is_fraction)
{
    double min_spread = is_fraction ? MIN_FRACTION_SPREAD : MIN_SPREAD * fmax(fabs(low), fabs(high)),
           missing = min_spread - (high - low);
    if (low > 0 && low < .4 * high) /* an axis from 0 shows ratios */
        low = 0;
    else if (missing > 0) {
        low -= missing / 2;
        high += missing / 2;
    }
    bool is_inside = is_fraction && high - low <= 1;
    double shift = is_inside && high > 1 ? high - 1 : is_inside && low < 0 ? low : 0;
    tarn__axis axis = tarn__axis_linear(low - shift, high - shift, false);
    axis.is_fraction = is_fraction;
    return axis;
}

/* The greatest of 1, 2, 5 times a power of ten that is not above `value`. */
static double round_down(double value)
{
    double power = pow(10, floor(log10(value) + 1e-12)), lead = value / power;
    return power * (lead >= 4.999 ? 5 : lead >= 1.999 ? 2 : 1);
}

/* The ends are round values. Up to three decades have ticks at 1, 2 and 5; more have powers of ten only. */
tarn__axis tarn__axis_log(double low, double high)
{
    tarn__axis axis = {.low = round_down(low), .is_log = true};
    double top = round_down(high);
    axis.high = top >= high * .999 ? top : round_step(high * .99);
    if (axis.high <= axis.low)
        axis.high = axis.low * 10;
    double first = floor(log10(axis.low) + 1e-9), last = ceil(log10(axis.high) - 1e-9), decades = last - first;
    double stride = ceil(decades / 8); /* decades between ticks: at most 8 ticks on a long axis */
    static const int leads[] = {1, 2, 5};
    for (double exponent = first; exponent <= last; exponent += stride)
        for (int k = 0; k < (decades > 3 ? 1 : 3) && axis.tick_count < TARN__MAX_TICKS; k++) {
            double tick = leads[k] * pow(10, exponent);
            if (tick >= axis.low * .999 && tick <= axis.high * 1.001)
                axis.tick[axis.tick_count++] = tick;
        }
    return axis;
}

double tarn__axis_position(const tarn__axis *axis, double value)
{
    return axis->is_log ? log(value / axis->low) / log(axis->high / axis->low)
                        : (value - axis->low) / (axis->high - axis->low);
}

/* ---- labels ------------------------------------------------------------------------------------------------------ */

/* "1e-05" becomes "1e-5": narrow labels fit on a phone. */
static void shorten_exponent(char *text)
{
    char *exponent = strchr(text, 'e');
    if (!exponent)
        return;
    char *from = exponent + 2, *to = exponent[1] == '-' ? exponent + 2 : exponent + 1;
    while (*from == '0' && from[1] >= '0' && from[1] <= '9')
        from++;
    memmove(to, from, strlen(from) + 1);
}

/* Large ticks are abbreviated (20k, 1.5M) only where the step is coarse enough that neighbours stay distinct; others
 * have as many digits as tell them from their neighbours. */
void tarn__tick_text(const tarn__axis *axis, double tick, char *text, size_t size)
{
    double factor = axis->is_fraction ? 100 : 1, step = factor * (axis->is_log ? tick : axis->step),
           value = factor * tick;
    const char *unit = axis->is_fraction ? " %" : "";
    int digits = (int)fmax(0, -floor(log10(step) + 1e-9));
    if (value == 0)
        snprintf(text, size, "0%s", unit);
    else if (fabs(value) >= 1e6 && step >= 1e5 && fabs(value) < 1e9)
        snprintf(text, size, "%.10gM%s", value / 1e6, unit);
    else if (fabs(value) >= 1e4 && step >= 1e2 && fabs(value) < 1e6)
        snprintf(text, size, "%.10gk%s", value / 1e3, unit);
    else if (digits > 4 || fabs(value) >= 1e6) {
        double significant = floor(log10(fabs(value)) + 1e-9) - floor(log10(step) + 1e-9) + 1;
        snprintf(text, size, "%.*g%s", (int)fmin(17, fmax(4, significant)), value, unit);
        shorten_exponent(text);
    } else
        snprintf(text, size, "%.*f%s", digits, value, unit);
}

/* Four digits below 1000, thousands separators above. */
void tarn__value_text(double value, bool is_fraction, char *text, size_t size)
{
    if (is_fraction)
        snprintf(text, size, "%.2f %%", 100 * value);
    else if (fabs(value) >= 1000 && fabs(value) < 1e15)
        tarn__step_text(round(value), text, size);
    else
        snprintf(text, size, "%.4g", value);
}

void tarn__step_text(double step, char *text, size_t size)
{
    char plain[64];
    if (fabs(step) >= 1e15) {
        snprintf(text, size, "%.4g", step);
        return;
    }
    int length = snprintf(plain, sizeof(plain), "%.0f", step);
    size_t to = 0;
    for (int i = 0; i < length && to + 2 < size; i++) {
        bool after_digit = i > 0 && plain[i - 1] != '-';
        if (after_digit && (length - i) % 3 == 0)
            text[to++] = ',';
        text[to++] = plain[i];
    }
    text[to] = 0;
}

void tarn__duration_text(double seconds, char *text, size_t size)
{
    double whole = floor(seconds + .5), minutes = floor(whole / 60), hours = floor(minutes / 60);
    if (seconds < 99.95)
        snprintf(text, size, "%.1f s", seconds);
    else if (hours < 1)
        snprintf(text, size, "%.0f min %02.0f s", minutes, whole - 60 * minutes);
    else
        snprintf(text, size, "%.0f h %02.0f min", hours, minutes - 60 * hours);
}

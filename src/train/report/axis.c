/* axis.c: axes: what they span, and ticks at numbers that people count in: 1, 2 and 5 times a power of ten. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/report/curves_parts.h"

#define WISHED_TICKS 5
#define SMALLEST 1e-280 /* below it numbers lose digits */

/* The number of 1, 2, 5, 10 ... that is nearest above. */
static double round_step(double step)
{
    double power = pow(10, floor(log10(step))), lead = step / power;
    return power * (lead <= 1.0001 ? 1 : lead <= 2.0001 ? 2 : lead <= 5.0001 ? 5 : 10);
}

tarn__scale tarn__axis_linear(double low, double high, bool is_tight)
{
    double spread = high - low, size = fmax(fabs(low), fabs(high));
    if (!(spread > size * 1e-9) || spread < SMALLEST) { /* all the same: something around it */
        double room = size > SMALLEST ? size * .1 : 1;
        low -= room;
        high += room;
    }
    tarn__scale scale = {.low = low, .high = high};
    scale.step = round_step((high / WISHED_TICKS - low / WISHED_TICKS));
    double first = is_tight ? ceil(low / scale.step - 1e-9) : floor(low / scale.step + 1e-9);
    double last = is_tight ? floor(high / scale.step + 1e-9) : ceil(high / scale.step - 1e-9);
    for (double i = first; i <= last && scale.tick_count < TARN__MAX_TICKS; i++)
        scale.tick[scale.tick_count++] = i == 0 ? 0 : i * scale.step;
    if (!is_tight) {
        scale.low = first * scale.step;
        scale.high = last * scale.step;
    }
    return scale;
}

/* The greatest of 1, 2, 5 times a power of ten that is not above the value. */
static double round_down(double value)
{
    double power = pow(10, floor(log10(value) + 1e-12)), lead = value / power;
    return power * (lead >= 4.999 ? 5 : lead >= 1.999 ? 2 : 1);
}

tarn__scale tarn__axis_log(double low, double high)
{
    tarn__scale scale = {.low = round_down(low), .is_log = true};
    double top = round_down(high);
    scale.high = top >= high * .999 ? top : round_step(high * .99);
    if (scale.high <= scale.low)
        scale.high = scale.low * 10;
    double first = floor(log10(scale.low) + 1e-9), last = ceil(log10(scale.high) - 1e-9), decades = last - first;
    double stride = ceil(decades / 8); /* powers of ten between ticks, where there are many */
    static const int leads[] = {1, 2, 5};
    for (double exponent = first; exponent <= last; exponent += stride)
        for (int k = 0; k < (decades > 3 ? 1 : 3) && scale.tick_count < TARN__MAX_TICKS; k++) {
            double tick = leads[k] * pow(10, exponent);
            if (tick >= scale.low * .999 && tick <= scale.high * 1.001)
                scale.tick[scale.tick_count++] = tick;
        }
    return scale;
}

double tarn__axis_position(const tarn__scale *scale, double value)
{
    return scale->is_log ? log(value / scale->low) / log(scale->high / scale->low)
                         : (value - scale->low) / (scale->high - scale->low);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

void tarn__tick_text(const tarn__scale *scale, double tick, char *text, size_t size)
{
    double factor = scale->is_share ? 100 : 1, step = factor * (scale->is_log ? tick : scale->step),
           value = factor * tick;
    const char *unit = scale->is_share ? " %" : "";
    int digits = (int)fmax(0, -floor(log10(step) + 1e-9));
    if (value == 0)
        snprintf(text, size, "0%s", unit);
    else if (fabs(value) >= 1e6 && step >= 1e5 && fabs(value) < 1e9)
        snprintf(text, size, "%.10gM%s", value / 1e6, unit);
    else if (fabs(value) >= 1e4 && step >= 1e2 && fabs(value) < 1e6)
        snprintf(text, size, "%.10gk%s", value / 1e3, unit);
    else if (digits > 4 || fabs(value) >= 1e6)
        snprintf(text, size, "%.4g%s", value, unit);
    else
        snprintf(text, size, "%.*f%s", digits, value, unit);
}

void tarn__value_text(double value, bool is_share, char *text, size_t size)
{
    if (is_share)
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

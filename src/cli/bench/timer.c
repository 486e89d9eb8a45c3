/* timer.c: the stop-watch behind `tarn bench`. */
#include "cli/bench/timer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUN_MICROSECONDS 4000 /* a run of short calls is repeated until it takes about this long */

double tarn__clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static bool time_turns(tarn__timer *meter, tarn_device device, int turns, double *microseconds)
{
    tarn_event *start = tarn_event_record(device), *end = NULL;
    bool good = start != NULL;
    for (int i = 0; good && i < turns; i++)
        good = meter->work(meter->ctx, i % meter->sets);
    if (good && (end = tarn_event_record(device)) != NULL)
        *microseconds = tarn_event_elapsed(start, end) / turns;
    tarn_event_free(end);
    tarn_event_free(start);
    return good && !tarn_failed();
}

bool tarn__timer_start(tarn__timer *meter, tarn_device device)
{
    double once;
    if (!time_turns(meter, device, meter->sets, &once) || !time_turns(meter, device, meter->sets, &once))
        return false;
    double turns = ceil((meter->length > 0 ? meter->length : RUN_MICROSECONDS) / fmax(once, 1e-3));
    meter->turns = turns < 1 ? 1 : turns > 100000 ? 100000 : (int)turns;
    return true;
}

bool tarn__timer_run(tarn__timer *meter, tarn_device device)
{
    return meter->runs < TARN__MAX_RUNS && time_turns(meter, device, meter->turns, &meter->figures[meter->runs++]);
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which the given share of the figures lies. */
static double quantile(const tarn__timer *meter, double share)
{
    double sorted[TARN__MAX_RUNS];
    if (meter->runs == 0)
        return NAN;
    memcpy(sorted, meter->figures, sizeof(double) * (size_t)meter->runs);
    qsort(sorted, (size_t)meter->runs, sizeof(double), rising);
    double at = share * (meter->runs - 1);
    int below = (int)at, above = below + 1 < meter->runs ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

double tarn__timer_median(const tarn__timer *meter)
{
    return quantile(meter, 0.5);
}

double tarn__timer_spread(const tarn__timer *meter)
{
    return (quantile(meter, 0.75) - quantile(meter, 0.25)) / quantile(meter, 0.5);
}

const char *tarn__cell(double value, int digits)
{
    static char buffers[16][24];
    static int turn;
    char *text = buffers[turn++ % 16];
    snprintf(text, sizeof(buffers[0]), isnan(value) ? "-" : "%.*f", digits, value);
    return text;
}

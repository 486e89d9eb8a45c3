/* timer.c: timing for `tarn bench`. Times are taken between two events in the device's stream, so that the host's
 * enqueueing is hidden as it is in real use. Not for several threads: tarn__cell() has static buffers. */
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

/* Mean microseconds per call over `turns` calls. tarn_event_elapsed() waits for the end. */
static bool time_turns(tarn__timer *timer, tarn_device device, int turns, double *microseconds)
{
    tarn_event *start = tarn_event_record(device), *end = NULL;
    bool good = start != NULL;
    for (int i = 0; good && i < turns; i++)
        good = timer->work(timer->ctx, i % timer->sets);
    if (good && (end = tarn_event_record(device)) != NULL)
        *microseconds = tarn_event_elapsed(start, end) / turns;
    tarn_event_free(end);
    tarn_event_free(start);
    return good && !tarn_failed();
}

/* Two warm-up rounds: the first one allocates and tunes, the second one is timed to choose the calls per run. */
bool tarn__timer_start(tarn__timer *timer, tarn_device device)
{
    double once;
    if (!time_turns(timer, device, timer->sets, &once) || !time_turns(timer, device, timer->sets, &once))
        return false;
    /* a call may be too short to measure: at least a nanosecond is assumed */
    double turns = ceil((timer->length > 0 ? timer->length : RUN_MICROSECONDS) / fmax(once, 1e-3));
    timer->turns = turns < 1 ? 1 : turns > 100000 ? 100000 : (int)turns;
    return true;
}

/* False without an error when TARN__MAX_RUNS is reached: --runs is bounded by it. */
bool tarn__timer_run(tarn__timer *timer, tarn_device device)
{
    return timer->runs < TARN__MAX_RUNS && time_turns(timer, device, timer->turns, &timer->times[timer->runs++]);
}

/* For qsort(); times are never NaN. */
static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantile of the times, with linear interpolation. */
static double quantile(const tarn__timer *timer, double fraction)
{
    double sorted[TARN__MAX_RUNS];
    if (timer->runs == 0)
        return NAN;
    memcpy(sorted, timer->times, sizeof(double) * (size_t)timer->runs);
    qsort(sorted, (size_t)timer->runs, sizeof(double), rising);
    double at = fraction * (timer->runs - 1);
    int below = (int)at, above = below + 1 < timer->runs ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

double tarn__timer_median(const tarn__timer *timer)
{
    return quantile(timer, 0.5);
}

/* Interquartile range: one outlier does not change it. */
double tarn__timer_spread(const tarn__timer *timer)
{
    return (quantile(timer, 0.75) - quantile(timer, 0.25)) / quantile(timer, 0.5);
}

const char *tarn__cell(double value, int digits)
{
    static char buffers[16][24];
    static int turn;
    char *text = buffers[turn++ % 16];
    snprintf(text, sizeof(buffers[0]), isnan(value) ? "-" : "%.*f", digits, value);
    return text;
}

/* bench_copy.c: the time of a plain copy, measured once for each number of bytes. */
#include <math.h>
#include <stdlib.h>

#include "cli/bench/bench_case.h"

#define MOST_PAIRS 6
#define PAIR_BYTES ((int64_t)400000000) /* buffers take turns until they fill about this much */
#define COPY_RUN 15000                  /* microseconds of a run */

typedef struct pairs {
    tarn_tensor *from[MOST_PAIRS], *to[MOST_PAIRS];
} pairs;

static bool run_copy(void *ctx, int i)
{
    const pairs *p = ctx;
    return tarn_copy(p->to[i], p->from[i]);
}

static double measure(const tarn__copy_times *copies, int64_t half)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *meter = calloc(1, sizeof(*meter));
    pairs p;
    int64_t count = PAIR_BYTES / half < 1 ? 1 : PAIR_BYTES / half > MOST_PAIRS ? MOST_PAIRS : PAIR_BYTES / half;
    for (int i = 0; i < count; i++) {
        p.from[i] = tarn_zeros(TARN_SHAPE(half), TARN_U8, copies->device);
        p.to[i] = tarn_zeros(TARN_SHAPE(half), TARN_U8, copies->device);
    }
    bool good = meter && !tarn_failed();
    if (good) {
        *meter = (tarn__timer){.work = run_copy, .ctx = &p, .sets = (int)count, .length = COPY_RUN};
        good = tarn__timer_start(meter, copies->device);
    }
    for (int64_t i = 0; good && i < copies->runs; i++)
        good = tarn__timer_run(meter, copies->device);
    double time = good ? tarn__timer_median(meter) : (double)NAN;
    free(meter);
    tarn_scope_close(scope);
    return time;
}

double tarn__copy_time(tarn__copy_times *copies, int64_t bytes)
{
    int64_t half = bytes / 2 / 16 * 16; /* whole vectors */
    half = half < 16 ? 16 : half;
    for (int i = 0; i < copies->count; i++)
        if (copies->bytes[i] == half)
            return copies->times[i];
    double time = measure(copies, half);
    if (!isnan(time) && copies->count < TARN__MAX_COPY_TIMES) {
        copies->bytes[copies->count] = half;
        copies->times[copies->count++] = time;
    }
    return time;
}

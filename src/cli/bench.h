/* bench.h: measuring. A figure is the median of several runs; what is compared is run in turn, so that noise hits all alike. */
#ifndef TARN__BENCH_H
#define TARN__BENCH_H

#include "cli/cli.h"

#define TARN__MOST_RUNS 1000

/* Microseconds of a clock that only goes forward. */
double tarn__clock(void);

/* One thing to measure: run(ctx, i) does it once, on buffers of set i % sets. False with an error pending. */
typedef bool (*tarn__work_fn)(void *ctx, int i);

typedef struct tarn__meter {
    tarn__work_fn work;
    void *ctx;
    int sets;      /* how many buffers take turns */
    int turns;     /* calls in one run, found by tarn__meter_start() */
    int runs;      /* figures so far */
    double figures[TARN__MOST_RUNS]; /* microseconds a call, one for each run */
} tarn__meter;

/* Warms up, and finds how many calls make a run long enough to be timed. */
bool tarn__meter_start(tarn__meter *meter, tarn_device device);

/* One run: adds one figure. */
bool tarn__meter_run(tarn__meter *meter, tarn_device device);

/* The median, and the middle half of the figures as a share of it. NaN when there are none. */
double tarn__meter_median(const tarn__meter *meter);
double tarn__meter_spread(const tarn__meter *meter);

#endif

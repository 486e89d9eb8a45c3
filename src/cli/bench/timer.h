/* timer.h: measuring. A figure is the median of several runs, timed by the device; what is compared is run in turn, so
 * that noise hits all alike. */
#ifndef TARN__BENCH_H
#define TARN__BENCH_H

#include "cli/cli.h"

#define TARN__MAX_RUNS 1000

/* Microseconds of a clock that only goes forward. */
double tarn__clock(void);

/* One thing to measure: run(ctx, i) does it once, on buffers of set i % sets. False with an error pending. */
typedef bool (*tarn__work_fn)(void *ctx, int i);

typedef struct tarn__timer {
    tarn__work_fn work;
    void *ctx;
    int sets;                       /* how many buffers take turns */
    double length;                  /* microseconds that a run of short calls takes about; 0: 4000 */
    int turns;                      /* calls in one run, found by tarn__timer_start() */
    int runs;                       /* figures so far */
    double figures[TARN__MAX_RUNS]; /* microseconds a call, one for each run */
} tarn__timer;

/* Warms up, and finds how many calls make a run long enough to be timed. */
bool tarn__timer_start(tarn__timer *meter, tarn_device device);

/* One run: adds one figure. */
bool tarn__timer_run(tarn__timer *meter, tarn_device device);

/* The median, and the middle half of the figures as a share of it. NaN when there are none. */
double tarn__timer_median(const tarn__timer *meter);
double tarn__timer_spread(const tarn__timer *meter);

/* A square product of n rows, in microseconds; NaN where it was not measured: BLAS and the plain loop run on the CPU
 * only. */
typedef struct tarn__matmul_times {
    double tarn, blas, naive;
    double tarn_spread, blas_spread;
} tarn__matmul_times;
bool tarn__measure_matmul(int64_t n, tarn_dtype dtype, tarn_device device, int64_t runs, tarn__matmul_times *found);

/* The figure as text in one of a few buffers that are used in turn, "-" where there is none. */
const char *tarn__cell(double value, int digits);

/* `tarn bench ops` on two devices. */
int tarn__bench_devices(const tarn__options *options);

#endif

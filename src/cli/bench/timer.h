/* timer.h: timing for `tarn bench`: repeated runs of a piece of work, and the roofline that results are compared with.
 *
 * A time is the median of several runs, by the device's clock (events), with the interquartile range as its spread.
 * Alternatives that are compared run in turn, so that noise and thermal drift affect all alike. */
#ifndef TARN__TIMER_H
#define TARN__TIMER_H

#include "cli/cli.h"

#define TARN__MAX_RUNS 1000

/* Microseconds of the monotonic clock. */
double tarn__clock(void);

/* Work to measure: run(ctx, i) performs it once, on buffer set i % sets. False with an error pending. */
typedef bool (*tarn__work_fn)(void *ctx, int i);

typedef struct tarn__timer {
    tarn__work_fn work;
    void *ctx;
    int sets;                     /* buffer sets to rotate through, so that inputs are not all cached */
    double length;                /* target microseconds of a run of short calls; 0: 4000 */
    int turns;                    /* calls per run, set by tarn__timer_start() */
    int runs;                     /* times so far */
    double times[TARN__MAX_RUNS]; /* microseconds per call, one per run */
} tarn__timer;

/* Warms up, and chooses the calls per run so that a run is long enough to be timed. */
bool tarn__timer_start(tarn__timer *timer, tarn_device device);

/* One run: adds one time. */
bool tarn__timer_run(tarn__timer *timer, tarn_device device);

/* Median, and interquartile range over the median. NaN without a run. */
double tarn__timer_median(const tarn__timer *timer);
double tarn__timer_spread(const tarn__timer *timer);

/* Times of a square matmul of n rows, in microseconds; NaN where not measured: BLAS and the naive loop are for CPUs. */
typedef struct tarn__matmul_times {
    double tarn, blas, naive;
    double tarn_spread, blas_spread;
} tarn__matmul_times;
bool tarn__measure_matmul(int64_t n, tarn_dtype dtype, tarn_device device, int64_t runs, tarn__matmul_times *found);

/* Formats a value, "-" for NaN. The result stays valid for the next 15 calls. */
const char *tarn__cell(double value, int digits);

/* `tarn bench ops` on two devices. */
int tarn__bench_devices(const tarn__options *options);

/* ---- roofline (roofline.c) --------------------------------------------------------------------------------------- */

/* Reachable throughput of a device, measured once per command. */
typedef struct tarn__roofline {
    int64_t rows;  /* of the square matrices of the matmul */
    double matmul; /* FLOP/s of it */
    double copy;   /* bytes per second, read plus written, of a large copy */
    double peak;   /* peak FLOP/s stated by the vendor; NaN: unknown */
} tarn__roofline;

/* Measures for a precision ("f32", "tf32", "bf16"). False with an error pending. */
bool tarn__roofline_measure(tarn_device device, const char *precision, tarn__roofline *roofline);

/* Prints peak memory by kind: "memory  8 GiB at most: parameters 1 GiB, …". */
void tarn__print_memory_kinds(const tarn_memory_kinds *memory);
void tarn__json_memory_kinds(tarn__json *json, const tarn_memory_kinds *memory);

#endif

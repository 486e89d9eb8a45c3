/* bench_case.h: one row of `tarn bench ops`: a case measured forward and backward, next to a copy of as many bytes.
 *
 * Rows and plans are the caller's; nothing here is shared between threads. */
#ifndef TARN__BENCH_CASE_H
#define TARN__BENCH_CASE_H

#include "cases/cases.h"
#include "cli/bench/timer.h"

/* Times of copies by bytes, measured once: rows that move the same number of bytes share one. */
#define TARN__MAX_COPY_TIMES 128
typedef struct tarn__copy_times {
    tarn_device device;
    int64_t runs;
    int count;
    int64_t bytes[TARN__MAX_COPY_TIMES];
    double times[TARN__MAX_COPY_TIMES];
} tarn__copy_times;

/* Microseconds of a copy that reads one half of the bytes and writes the other. NaN with an error pending. */
double tarn__copy_time(tarn__copy_times *copies, int64_t bytes);

/* Baseline of a row. */
typedef enum tarn__baseline {
    TARN__BASELINE_NONE,
    TARN__BASELINE_COPY,  /* a copy measured in turn with the row, for devices whose clock changes */
    TARN__BASELINE_SHARED /* a copy out of tarn__copy_times */
} tarn__baseline;

/* What to measure. */
typedef struct tarn__bench_case {
    const tarn__case *letters; /* the case, with sizes as letters */
    tarn__scale scale;         /* values of the letters */
    tarn__element element;
    tarn_device device;
    int64_t runs;
    int64_t size; /* bytes of the main operand, or TARN__MODEL_SIZE */
    tarn__baseline baseline;
    tarn__copy_times *copies; /* borrowed; for TARN__BASELINE_SHARED */
} tarn__bench_case;

/* Median in microseconds, and interquartile range over the median. NaN where not measured. */
typedef struct tarn__bench_time {
    double median, spread;
} tarn__bench_time;

/* The result. */
typedef struct tarn__bench_row {
    tarn__case one; /* with its sizes resolved */
    tarn__element element;
    tarn_device device;
    int64_t size;
    tarn_shape result;
    int64_t forward_bytes, backward_bytes; /* 0: compute-bound, not compared by bytes */
    double flops;                          /* of a matmul's forward; else 0 */
    double host;                           /* microseconds to enqueue and record a short forward; else NaN */
    tarn__bench_time forward, backward, both;
    double forward_copy, backward_copy; /* microseconds of a copy of as many bytes; NaN without one */
} tarn__bench_row;

/* Measures a row. False with an error pending. */
bool tarn__bench_case_measure(const tarn__bench_case *plan, tarn__bench_row *row);

/* Prints a row as text, under a heading that states the size, or as JSON. */
void tarn__print_heading(int64_t size);
void tarn__print_row(const tarn__bench_row *row, bool json);

/* Shape in the output of a row: that of the first input; with the columns of a matmul, or the indices of a gather. */
tarn_shape tarn__row_shape(const tarn__case *one);
void tarn__json_row_shape(tarn__json *json, const tarn__case *one);

/* "32768x3072". The result stays valid for a few calls. */
const char *tarn__shape_string(tarn_shape shape);

/* True when --only names the row or its operation. */
bool tarn__is_selected(const tarn__options *options, const char *row, const char *operation);

/* Rows without a case: a multiplication of one element; an AdamW step over 124 million parameters; a copy of 4 GiB. */
bool tarn__bench_tiny(const tarn__options *options);
bool tarn__bench_adamw(const tarn__options *options, tarn__copy_times *copies);
bool tarn__bench_copy(const tarn__options *options, tarn__copy_times *copies);

#endif

/* bench_case.h: one row of `tarn bench ops`: a case measured forward and backward, beside a plain copy of the same
 * number of bytes. */
#ifndef TARN__BENCH_ROW_H
#define TARN__BENCH_ROW_H

#include "cases/cases.h"
#include "cli/bench/timer.h"

/* Times of copies that were measured apart from the rows, by the bytes they move: rows that move as many share one. */
#define TARN__MAX_COPY_TIMES 128
typedef struct tarn__copy_times {
    tarn_device device;
    int64_t runs;
    int count;
    int64_t bytes[TARN__MAX_COPY_TIMES];
    double times[TARN__MAX_COPY_TIMES];
} tarn__copy_times;

/* Microseconds of a copy that reads half of the bytes and writes half of them. NaN with an error pending. */
double tarn__copy_time(tarn__copy_times *copies, int64_t bytes);

/* What stands beside a row. */
typedef enum tarn__baseline {
    TARN__BASELINE_NONE,
    TARN__BASELINE_COPY,  /* a copy that takes turns with it: for devices whose speed changes from moment to moment */
    TARN__BASELINE_SHARED /* one of the copies that were measured apart */
} tarn__baseline;

typedef struct tarn__bench_case {
    const tarn__case *letters;
    tarn__scale scale;
    tarn__element element;
    tarn_device device;
    int64_t runs;
    int64_t size; /* bytes of the main operand, or TARN__MODEL_SIZE */
    tarn__baseline beside;
    tarn__copy_times *copies;
} tarn__bench_case;

/* A median in microseconds and the middle half of the figures as a share of it. NaN where there is none. */
typedef struct tarn__bench_time {
    double median, spread;
} tarn__bench_time;

typedef struct tarn__bench_row {
    tarn__case one;
    tarn__element element;
    tarn_device device;
    int64_t size;
    tarn_shape result;
    int64_t forward_bytes, backward_bytes; /* 0: not measured by its bytes */
    double flops;                          /* of a product's forward; else 0 */
    /* microseconds to enqueue and record a forward that is short on the device; else NaN */
    double host;
    tarn__bench_time forward, backward, both;
    double forward_copy, backward_copy; /* microseconds of a copy of as many bytes; NaN where there is none */
} tarn__bench_row;

/* Measures a row. False with an error pending. */
bool tarn__bench_case_measure(const tarn__bench_case *plan, tarn__bench_row *row);

/* Prints a row; as text, under a heading that says what the sizes are. */
void tarn__print_heading(int64_t size);
void tarn__print_row(const tarn__bench_row *row, bool json);

/* The shape a row goes by: the first input's; the columns behind it for a product, the number of indices for a look-up.
 */
tarn_shape tarn__row_shape(const tarn__case *one);
void tarn__json_row_shape(tarn__json *json, const tarn__case *one);

/* "32768x3072", in one of a few buffers that are used in turn. */
const char *tarn__shape_string(tarn_shape shape);

/* True when --only names the row or its operation. */
bool tarn__is_selected(const tarn__options *options, const char *row, const char *operation);

/* Rows that are no case: a product of one element; a step of AdamW over 124 million parameters; a copy of 4 GiB. */
bool tarn__bench_tiny(const tarn__options *options);
bool tarn__bench_adamw(const tarn__options *options, tarn__copy_times *copies);
bool tarn__bench_copy(const tarn__options *options, tarn__copy_times *copies);

#endif

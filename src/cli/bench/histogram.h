/* histogram.h: times of a load test in constant memory: counts per interval of 1 %, from 1 microsecond to 28 hours.
 *
 * A percentile is the upper end of its interval, at most the maximum, which is exact. */
#ifndef TARN__HISTOGRAM_H
#define TARN__HISTOGRAM_H

#include <stdint.h>

enum { TARN__HISTOGRAM_BINS = 2560 };

typedef struct tarn__histogram {
    int64_t count;
    double sum, max; /* seconds */
    int64_t bins[TARN__HISTOGRAM_BINS];
} tarn__histogram;

/* Counts a time in seconds. */
void tarn__histogram_add(tarn__histogram *histogram, double seconds);

/* The time that `fraction` of the times do not exceed, in seconds; NaN without times. */
double tarn__histogram_percentile(const tarn__histogram *histogram, double fraction);

#endif

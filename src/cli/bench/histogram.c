/* histogram.c: times of a load test: logarithmic bins and their percentiles. */
#include "cli/bench/histogram.h"

#include <math.h>

#define SHORTEST 1e-6 /* seconds; all below share the first bin */
#define GROWTH 1.01

void tarn__histogram_add(tarn__histogram *h, double seconds)
{
    int bin = seconds > SHORTEST ? (int)ceil(log(seconds / SHORTEST) / log(GROWTH)) : 0;
    h->bins[bin < TARN__HISTOGRAM_BINS ? bin : TARN__HISTOGRAM_BINS - 1]++;
    h->count++;
    h->sum += seconds;
    h->max = seconds > h->max ? seconds : h->max;
}

double tarn__histogram_percentile(const tarn__histogram *h, double fraction)
{
    int64_t rank = (int64_t)ceil(fraction * (double)h->count), seen = 0;
    if (!h->count)
        return NAN;
    for (int i = 0; i < TARN__HISTOGRAM_BINS - 1; i++) {
        seen += h->bins[i];
        if (seen >= (rank > 1 ? rank : 1)) {
            double end = SHORTEST * pow(GROWTH, i);
            return end < h->max ? end : h->max;
        }
    }
    return h->max;
}

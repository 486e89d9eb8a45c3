/* conv_accuracy.h: how near to the truth a convolution in f32 must be. Of numbers on the host, so that it is tested
 * where there is no device. */
#ifndef TARN__CUDA_CONV_TRUTH_H
#define TARN__CUDA_CONV_TRUTH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define TARN__TRUTH_ROUNDING \
    (4 * 0x1p-24) /* distance that is allowed for each root of a term: twice that of terms added one after another */
#define TARN__TRUTH_LEAST 1e-6
#define TARN__TRUTH_MOST 1e-5
#define TARN__TRUTH_MOST_OF_LONG_SUMS 1e-4
#define TARN__TRUTH_LONG_SUM 10000 /* terms */

/* What a convolution is, as far as it is compared. */
typedef struct tarn__conv_truth {
    float *values; /* and room for as many */
    int64_t count;
    double size, allowed; /* root of the mean square; distance, by the larger of that and an element's size */
} tarn__conv_truth;

static inline double tarn__conv_truth_allowed(int64_t terms)
{
    double most = terms > TARN__TRUTH_LONG_SUM ? TARN__TRUTH_MOST_OF_LONG_SUMS : TARN__TRUTH_MOST,
           allowed = TARN__TRUTH_ROUNDING * sqrt((double)terms);
    return allowed < TARN__TRUTH_LEAST ? TARN__TRUTH_LEAST : allowed < most ? allowed : most;
}

/* The values are there: fills in their size, and what is allowed for sums of so many terms. */
static inline void tarn__conv_truth_measure(tarn__conv_truth *truth, int64_t terms)
{
    double squares = 0;
    for (int64_t i = 0; i < truth->count; i++)
        squares += (double)truth->values[i] * (double)truth->values[i];
    truth->size = sqrt(squares / (double)truth->count);
    truth->allowed = tarn__conv_truth_allowed(terms);
}

static inline bool tarn__conv_truth_is_near(const tarn__conv_truth *truth, const float *got)
{
    bool is_near = true;
    for (int64_t i = 0; is_near && i < truth->count; i++) {
        double wanted = (double)truth->values[i], size = fabs(wanted) > truth->size ? fabs(wanted) : truth->size;
        is_near = fabs((double)got[i] - wanted) <= truth->allowed * size; /* not so where one is not a number */
    }
    return is_near;
}

#endif

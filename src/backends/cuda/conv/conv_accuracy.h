/* conv_accuracy.h: how near to the truth a convolution in f32 must be. Of numbers on the host, so that it is tested
 * where there is no device. */
#ifndef TARN__CUDA_CONV_TRUTH_H
#define TARN__CUDA_CONV_TRUTH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define TARN__CONV_ROUNDING \
    (4 * 0x1p-24) /* distance that is allowed for each root of a term: twice that of terms added one after another */
#define TARN__CONV_TOLERANCE_MIN 1e-6
#define TARN__CONV_TOLERANCE_MAX 1e-5
#define TARN__CONV_TOLERANCE_MAX_LONG_SUM 1e-4
#define TARN__CONV_LONG_SUM 10000 /* terms */

/* What a convolution is, as far as it is compared. */
typedef struct tarn__conv_reference {
    float *values; /* and room for as many */
    int64_t count;
    double size, allowed; /* root of the mean square; distance, by the larger of that and an element's size */
} tarn__conv_reference;

static inline double tarn__conv_tolerance(int64_t terms)
{
    double most = terms > TARN__CONV_LONG_SUM ? TARN__CONV_TOLERANCE_MAX_LONG_SUM : TARN__CONV_TOLERANCE_MAX,
           allowed = TARN__CONV_ROUNDING * sqrt((double)terms);
    return allowed < TARN__CONV_TOLERANCE_MIN ? TARN__CONV_TOLERANCE_MIN : allowed < most ? allowed : most;
}

/* The values are there: fills in their size, and what is allowed for sums of so many terms. */
static inline void tarn__conv_reference_measure(tarn__conv_reference *truth, int64_t terms)
{
    double squares = 0;
    for (int64_t i = 0; i < truth->count; i++)
        squares += (double)truth->values[i] * (double)truth->values[i];
    truth->size = sqrt(squares / (double)truth->count);
    truth->allowed = tarn__conv_tolerance(terms);
}

static inline bool tarn__conv_is_accurate(const tarn__conv_reference *truth, const float *got)
{
    bool is_near = true;
    for (int64_t i = 0; is_near && i < truth->count; i++) {
        double wanted = (double)truth->values[i], size = fabs(wanted) > truth->size ? fabs(wanted) : truth->size;
        is_near = fabs((double)got[i] - wanted) <= truth->allowed * size; /* not so where one is not a number */
    }
    return is_near;
}

#endif

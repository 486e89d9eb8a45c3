/* conv_accuracy.h: accuracy check of f32 convolutions. Host code on plain arrays, so that it is tested without a
 * device. */
#ifndef TARN__CUDA_CONV_ACCURACY_H
#define TARN__CUDA_CONV_ACCURACY_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* tolerance per square root of the number of terms: twice the error of sequential summation */
#define TARN__CONV_ROUNDING (4 * 0x1p-24)
#define TARN__CONV_TOLERANCE_MIN 1e-6
#define TARN__CONV_TOLERANCE_MAX 1e-5
#define TARN__CONV_TOLERANCE_MAX_LONG_SUM 1e-4
#define TARN__CONV_LONG_SUM 10000 /* terms */

/* A reference result, as far as candidates are compared to it. */
typedef struct tarn__conv_reference {
    float *values; /* owned; with space for a candidate's values after them */
    int64_t count;
    double rms, tolerance; /* root mean square; tolerance, relative to the larger of it and an element's magnitude */
} tarn__conv_reference;

/* Grows with the square root of the number of terms, within fixed bounds: long sums may lose more, but never pass
 * TF32's error. */
static inline double tarn__conv_tolerance(int64_t terms)
{
    double limit = terms > TARN__CONV_LONG_SUM ? TARN__CONV_TOLERANCE_MAX_LONG_SUM : TARN__CONV_TOLERANCE_MAX,
           tolerance = TARN__CONV_ROUNDING * sqrt((double)terms);
    return tolerance < TARN__CONV_TOLERANCE_MIN ? TARN__CONV_TOLERANCE_MIN : tolerance < limit ? tolerance : limit;
}

/* Call once the values are there: computes the RMS, and the tolerance for sums of `terms` terms. */
static inline void tarn__conv_reference_measure(tarn__conv_reference *ref, int64_t terms)
{
    double squares = 0;
    for (int64_t i = 0; i < ref->count; i++)
        squares += (double)ref->values[i] * (double)ref->values[i];
    ref->rms = sqrt(squares / (double)ref->count);
    ref->tolerance = tarn__conv_tolerance(terms);
}

/* Every element within the tolerance, relative to the larger of its magnitude and the RMS: elements near 0 are not held
 * to relative precision. */
static inline bool tarn__conv_is_accurate(const tarn__conv_reference *ref, const float *got)
{
    bool is_close = true;
    for (int64_t i = 0; is_close && i < ref->count; i++) {
        double wanted = (double)ref->values[i], size = fabs(wanted) > ref->rms ? fabs(wanted) : ref->rms;
        is_close = fabs((double)got[i] - wanted) <= ref->tolerance * size; /* false for NaN */
    }
    return is_close;
}

#endif

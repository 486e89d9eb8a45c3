/* int_math.h: integer helpers for sizes and strides. None checks for overflow: operands are element counts. */
#ifndef TARN__CPU_INT_MATH_H
#define TARN__CPU_INT_MATH_H

#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* For strides: INT64_MIN does not occur. */
static inline int64_t abs_i64(int64_t a)
{
    return a < 0 ? -a : a;
}

/* a / b rounded up, for a >= 0 and b > 0. */
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* n rounded up to a multiple of `to`. */
static inline int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

#endif

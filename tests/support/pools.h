/* pools.h: pooling on a device against naive references. */
#ifndef TESTS_POOLS_H
#define TESTS_POOLS_H

#include "check.h"

/* Largest elements and their gradients, exactly, in both layouts and all floats, or one of them in turn where programs
 * are slow to make: windows with as many elements as a byte can number, and with one more; padding, dilation, ties,
 * NaN, -inf, and windows that see nothing of the image. */
void check_windows(tarn_device device, bool all_dtypes);

/* Averages of windows side by side and their gradients, exactly, in both layouts and all floats or one of them in turn.
 */
void check_averages(tarn_device device, bool all_dtypes);

#endif

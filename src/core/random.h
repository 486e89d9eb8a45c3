/* random.h: each thread's generator: a seed and how many counters each device has used. */
#ifndef TARN__RANDOM_H
#define TARN__RANDOM_H

#include "core/device.h"

/* Reserves the counters for `count` numbers on a device and returns where they begin. */
tarn__random tarn__random_reserve(tarn_device device, int64_t count);

/* Where the generator of a device stands, and setting it: checkpointing draws the same numbers twice. */
uint64_t tarn__random_offset(tarn_device device);
void tarn__random_rewind(tarn_device device, uint64_t offset);

#endif

/* random.h: each thread's generator: a seed and how many counters each device has used. */
#ifndef TARN__RANDOM_H
#define TARN__RANDOM_H

#include "core/device/device.h"

/* Reserves the counters for `count` numbers on a device and returns where they begin. */
tarn__random tarn__random_reserve(tarn_device device, int64_t count);

/* Where the device's counters stand, in the calling thread's generator. */
uint64_t *tarn__random_offset(tarn_device device);

/* The calling thread's generators as a whole: checkpointing and gradient checks draw the same numbers twice. */
#define TARN__RANDOM_DEVICES 16
typedef struct tarn__rng_state {
    uint64_t seed;
    uint64_t offset[TARN__MAX_BACKENDS][TARN__RANDOM_DEVICES];
} tarn__rng_state;
tarn__rng_state tarn__random_save(void);
void tarn__random_restore(const tarn__rng_state *saved);

#endif

/* random.h: the random number generator: per thread, a seed and one Philox counter per device. Operations reserve
 * counters when they are called, so results depend on the sequence of calls, not on when kernels run. */
#ifndef TARN__RANDOM_H
#define TARN__RANDOM_H

#include "core/device/device.h"

/* Reserves counters for `count` values on a device, four values each, and returns the first. */
tarn__random tarn__random_reserve(tarn_device device, int64_t count);

/* The next counter of a device, in the calling thread's generator. */
uint64_t *tarn__random_offset(tarn_device device);

/* The state of the calling thread's generator: checkpointing and gradcheck draw the same numbers twice. */
#define TARN__RANDOM_DEVICES 16
typedef struct tarn__rng_state {
    uint64_t seed;
    uint64_t offset[TARN__MAX_BACKENDS][TARN__RANDOM_DEVICES];
} tarn__rng_state;
tarn__rng_state tarn__random_save(void);
void tarn__random_restore(const tarn__rng_state *saved);

#endif

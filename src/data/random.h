/* random.h: randomness of the loader: shuffled orders, and a random state per sample.
 *
 * All are pure functions of seed, epoch and sample index. Neither the number of threads nor a pause changes them, and a
 * resumed run sees the same batches. */
#ifndef TARN__DATA_RANDOM_H
#define TARN__DATA_RANDOM_H

#include <tarn/data.h>

/* Keys of one epoch: one for the order of samples, one for augmentation. */
typedef struct tarn__epoch_keys {
    uint64_t order, samples;
} tarn__epoch_keys;

tarn__epoch_keys tarn__epoch_keys_of(uint64_t seed, int64_t epoch);

/* The random state of one sample in the epoch. */
tarn_random_state tarn__sample_random(const tarn__epoch_keys *keys, int64_t index);

/* Writes a permutation of 0 … count - 1 that depends on the key alone. */
void tarn__shuffled(uint64_t key, int64_t *order, int64_t count);

#endif

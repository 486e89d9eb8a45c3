/* random.h: what is random in loading: orders of samples, and the numbers of one sample. Functions of seed, epoch and
 * sample, so that neither threads nor a pause change them. */
#ifndef TARN__DATA_RANDOM_H
#define TARN__DATA_RANDOM_H

#include <tarn/data.h>

/* The keys of one epoch: one for the order, one for the samples. */
typedef struct tarn__epoch_keys {
    uint64_t order, samples;
} tarn__epoch_keys;

tarn__epoch_keys tarn__epoch_keys_of(uint64_t seed, int64_t epoch);

/* The random numbers of one sample in the epoch. */
tarn_random_state tarn__sample_random(const tarn__epoch_keys *keys, int64_t index);

/* Writes 0 … count - 1 in an order that depends on the key alone. */
void tarn__shuffled(uint64_t key, int64_t *order, int64_t count);

#endif

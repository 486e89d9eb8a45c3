/* random.c: Philox in counter mode for orders and samples. Keys are derived in a chain: seed → epoch → sample. */
#include "data/random.h"

#include "base/error.h"
#include "base/philox.h"

static uint64_t word64(const uint32_t *word)
{
    return (uint64_t)word[1] << 32 | word[0];
}

tarn__epoch_keys tarn__epoch_keys_of(uint64_t seed, int64_t epoch)
{
    uint32_t word[4];
    tarn__philox(seed, (uint64_t)epoch, word);
    return (tarn__epoch_keys){word64(word), word64(word + 2)};
}

tarn_random_state tarn__sample_random(const tarn__epoch_keys *keys, int64_t index)
{
    uint32_t word[4];
    tarn__philox(keys->samples, (uint64_t)index, word);
    return (tarn_random_state){.key = word64(word)};
}

static uint64_t next64(tarn_random_state *random)
{
    uint32_t word[4];
    tarn__philox(random->key, random->drawn++, word);
    return word64(word);
}

/* An unbiased integer below the limit: values above its last multiple are rejected and drawn again. */
static uint64_t below(tarn_random_state *random, uint64_t limit)
{
    uint64_t remainder = (UINT64_MAX % limit + 1) % limit; /* 2^64 mod limit */
    for (;;) {
        uint64_t value = next64(random);
        if (value <= UINT64_MAX - remainder)
            return value % limit;
    }
}

int64_t tarn_random_below(tarn_random_state *random, int64_t limit)
{
    if (!random || limit < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "random_below: %s", random ? "the limit is below 1" : "the state is NULL");
        return -1;
    }
    return (int64_t)below(random, (uint64_t)limit);
}

double tarn_random_unit(tarn_random_state *random)
{
    if (!random) {
        tarn__raise(TARN_ERROR_ARGUMENT, "random_unit: the state is NULL");
        return 0;
    }
    /* 53 bits: every result is exact in a double, and 1 is never reached. */
    return (double)(next64(random) >> 11) * 0x1p-53;
}

void tarn__shuffled(uint64_t key, int64_t *order, int64_t count)
{
    tarn_random_state random = {.key = key};
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    /* Fisher and Yates, from the end. Runs resume by these orders: do not change which numbers are drawn. */
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = (int64_t)below(&random, (uint64_t)i + 1), swapped = order[i];
        order[i] = order[other];
        order[other] = swapped;
    }
}

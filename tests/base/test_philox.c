/* test_philox.c: the generator against the published test vectors of Philox 4x32-10, and values drawn from it. */
#include "base/philox.h"
#include "support/check.h"

/* The same rounds over a whole 128-bit counter, to compare with answers whose upper half is not 0. */
static void whole_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t word[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k[1],
                            (uint32_t)p0};
        memcpy(c, next, sizeof(c));
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(word, c, sizeof(c));
}

static void the_published_answers_come_out(void **state)
{
    (void)state;
    uint32_t word[4];
    tarn__philox(0, 0, word);
    const uint32_t zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(word, zero, sizeof(zero));
    const uint32_t ones[] = {~0u, ~0u, ~0u, ~0u}, all[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    whole_philox(ones, ones, word);
    assert_memory_equal(word, all, sizeof(all));
    const uint32_t pi[] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, key[] = {0xa4093822, 0x299f31d0};
    const uint32_t digits[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    whole_philox(pi, key, word);
    assert_memory_equal(word, digits, sizeof(digits));
}

static void ours_is_the_whole_with_stream_zero(void **state)
{
    (void)state;
    uint64_t seed = test_seed(11);
    for (int i = 0; i < 1000; i++) {
        uint64_t key = random_bits(&seed), counter = random_bits(&seed);
        uint32_t ours[4], whole[4];
        tarn__philox(key, counter, ours);
        whole_philox((const uint32_t[]){(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0},
                     (const uint32_t[]){(uint32_t)key, (uint32_t)(key >> 32)}, whole);
        assert_memory_equal(ours, whole, sizeof(ours));
    }
}

static void a_unit_is_below_one(void **state)
{
    (void)state;
    assert_true(tarn__unit_f32(0) == 0);
    assert_true(tarn__unit_f32(0xffffffffu) < 1);
    assert_true(tarn__unit_f32(0x80000000u) == 0.5f);
}

static void uniform_f32_is_the_words_in_order(void **state)
{
    (void)state;
    tarn_seed(1234);
    tarn_tensor *first = good(tarn_uniform(TARN_SHAPE(3, 3), 0, 1, TARN_F32, tarn_device_cpu()));
    tarn_tensor *second = good(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, tarn_device_cpu()));
    float values[13];
    assert_true(tarn_read_f32(first, values, 9) && tarn_read_f32(second, values + 9, 4));
    for (int i = 0; i < 13; i++) {
        uint32_t word[4];
        int counter = i < 9 ? i / 4 : 3, which = i < 9 ? i % 4 : i - 9; /* 9 numbers use up three counters */
        tarn__philox(1234, (uint64_t)counter, word);
        assert_true(values[i] == tarn__unit_f32(word[which]));
    }
}

static void seeds_repeat_and_differ(void **state)
{
    (void)state;
    tarn_seed(5);
    tarn_tensor *a = good(tarn_normal(TARN_SHAPE(1000), 0, 1, TARN_F32, tarn_device_cpu()));
    tarn_tensor *b = good(tarn_normal(TARN_SHAPE(1000), 0, 1, TARN_F32, tarn_device_cpu()));
    tarn_seed(5);
    tarn_tensor *c = good(tarn_normal(TARN_SHAPE(1000), 0, 1, TARN_F32, tarn_device_cpu()));
    tarn_seed(6);
    tarn_tensor *d = good(tarn_normal(TARN_SHAPE(1000), 0, 1, TARN_F32, tarn_device_cpu()));
    assert_close(a, c, 0);
    float x[4][1000];
    tarn_tensor *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        assert_true(tarn_read_f32(all[i], x[i], 1000));
    assert_memory_not_equal(x[0], x[1], sizeof(x[0]));
    assert_memory_not_equal(x[0], x[3], sizeof(x[0]));
}

static void moments_are_right(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
    tarn_seed(test_seed(77));
    for (int k = 0; k < 4; k++) {
        double *u = values_of(good(tarn_uniform(TARN_SHAPE(N), -1, 3, dtypes[k], tarn_device_cpu())));
        double *n = values_of(good(tarn_normal(TARN_SHAPE(N), 2, 0.5, dtypes[k], tarn_device_cpu())));
        double mean = 0, square = 0, uniform_mean = 0, low = INFINITY, high = -INFINITY;
        for (int i = 0; i < N; i++) {
            uniform_mean += u[i] / N;
            low = fmin(low, u[i]);
            high = fmax(high, u[i]);
            mean += n[i] / N;
            square += (n[i] - 2) * (n[i] - 2) / N;
        }
        assert_true(low >= -1 && high <= 3 && low < -0.98 && high > 2.98);
        if (dtypes[k] == TARN_F32 || dtypes[k] == TARN_F64)
            assert_true(high < 3);
        assert_true(fabs(uniform_mean - 1) < 0.02 && fabs(mean - 2) < 0.01 && fabs(sqrt(square) - 0.5) < 0.01);
        free(u);
        free(n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_published_answers_come_out),
        in_scope(ours_is_the_whole_with_stream_zero),
        in_scope(a_unit_is_below_one),
        in_scope(uniform_f32_is_the_words_in_order),
        in_scope(seeds_repeat_and_differ),
        in_scope(moments_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_xxh64.c: the checksum against the published test vectors of XXH64 with seed 0. */
#include "base/xxh64.h"
#include "support/check.h"

/* The bytes of the reference implementation's own check. */
static void fill(unsigned char *bytes, size_t count)
{
    uint64_t generator = 2654435761u;
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (unsigned char)(generator >> 56);
        generator *= UINT64_C(11400714785074694797);
    }
}

static void the_published_answers_come_out(void **state)
{
    (void)state;
    unsigned char bytes[222];
    fill(bytes, sizeof(bytes));
    assert_int_equal(tarn__xxh64_of("", 0), UINT64_C(0xEF46DB3751D8E999));
    assert_int_equal(tarn__xxh64_of("a", 1), UINT64_C(0xD24EC4F1A98C6E5B));
    assert_int_equal(tarn__xxh64_of("abc", 3), UINT64_C(0x44BC2CF5AD770999));
    assert_int_equal(tarn__xxh64_of(bytes, 1), UINT64_C(0xE934A84ADB052768));
    assert_int_equal(tarn__xxh64_of(bytes, 4), UINT64_C(0x9136A0DCA57457EE));
    assert_int_equal(tarn__xxh64_of(bytes, 14), UINT64_C(0x8282DCC4994E35C8));
    assert_int_equal(tarn__xxh64_of(bytes, 222), UINT64_C(0xB641AE8CB691C174));
}

static void parts_give_what_the_whole_gives(void **state)
{
    (void)state;
    uint64_t seed = test_seed(3);
    unsigned char bytes[1000];
    fill(bytes, sizeof(bytes));
    for (int round = 0; round < 500; round++) {
        size_t count = (size_t)random_below(&seed, sizeof(bytes) + 1), at = 0;
        tarn__xxh64 sum;
        tarn__xxh64_begin(&sum);
        while (at < count) {
            size_t part = (size_t)random_below(&seed, (int64_t)(count - at) + 1);
            tarn__xxh64_add(&sum, bytes + at, part);
            at += part;
        }
        assert_int_equal(tarn__xxh64_end(&sum), tarn__xxh64_of(bytes, count));
    }
}

static void every_bit_counts(void **state)
{
    (void)state;
    unsigned char bytes[70];
    fill(bytes, sizeof(bytes));
    for (size_t count = 0; count <= sizeof(bytes); count++) {
        uint64_t whole = tarn__xxh64_of(bytes, count);
        for (size_t bit = 0; bit < 8 * count; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_int_not_equal(tarn__xxh64_of(bytes, count), whole);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_answers_come_out),
        cmocka_unit_test(parts_give_what_the_whole_gives),
        cmocka_unit_test(every_bit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

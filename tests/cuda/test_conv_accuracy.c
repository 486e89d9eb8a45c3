/* test_conv_accuracy.c: the accuracy check of f32 convolutions: f32 sums pass, those of TF32 operands do not. Runs
 * without a device. */
#include "backends/cuda/conv/conv_accuracy.h"
#include "support/check.h"

enum { COUNT = 200 };

static float values[2 * COUNT];

static float uniform(uint64_t *random)
{
    return (float)((double)random_below(random, 1 << 24) / (1 << 23) - 1);
}

/* The ten mantissa bits that tensor cores keep of an f32. */
static float truncated(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits &= 0xffffe000;
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

/* Sums of `terms` random products: the reference, sequentially in f32, and of truncated operands. */
static tarn__conv_reference sums_of(int64_t terms, uint64_t *random, float *one_by_one, float *of_truncated)
{
    tarn__conv_reference reference = {.values = values, .count = COUNT};
    for (int i = 0; i < COUNT; i++) {
        double exact = 0, rough = 0;
        float sum = 0;
        for (int64_t k = 0; k < terms; k++) {
            float x = uniform(random), w = uniform(random);
            exact += (double)x * (double)w;
            rough += (double)truncated(x) * (double)truncated(w);
            sum = fmaf(x, w, sum);
        }
        values[i] = (float)exact, one_by_one[i] = sum, of_truncated[i] = (float)rough;
    }
    tarn__conv_reference_measure(&reference, terms);
    return reference;
}

static void f32_sums_pass_and_those_of_truncated_operands_do_not(void **state)
{
    (void)state;
    static const int64_t terms[] = {1, 9, 576, 2304, 9000, 50000};
    float one_by_one[COUNT], of_truncated[COUNT];
    uint64_t random = test_seed(7);
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++) {
        tarn__conv_reference reference = sums_of(terms[i], &random, one_by_one, of_truncated);
        assert_true(tarn__conv_is_accurate(&reference, one_by_one));
        assert_false(tarn__conv_is_accurate(&reference, of_truncated));
    }
}

/* All as expected, but for one element. */
static bool passes_with(const tarn__conv_reference *reference, int at, double off)
{
    float got[COUNT];
    memcpy(got, reference->values, sizeof(got));
    got[at] = (float)((double)got[at] + off);
    return tarn__conv_is_accurate(reference, got);
}

static void one_wrong_element_is_noticed(void **state)
{
    (void)state;
    tarn__conv_reference reference = {.values = values, .count = COUNT};
    for (int i = 0; i < COUNT; i++)
        values[i] = i % 2 ? 3 : -3;
    values[5] = 0, values[COUNT - 1] = 300;
    tarn__conv_reference_measure(&reference, 2000);
    assert_true(reference.tolerance == 1e-5); /* an error of 5e-6 is f32, 5e-5 is not */
    assert_true(fabs(reference.rms - sqrt((198.0 * 9 + 300.0 * 300) / COUNT)) < 1e-12);
    for (int sign = -1; sign < 2; sign += 2) {
        /* 0 is compared at the size of the others */
        assert_true(passes_with(&reference, 5, sign * 5e-6 * reference.rms));
        assert_false(passes_with(&reference, 5, sign * 5e-5 * reference.rms));
        assert_true(passes_with(&reference, 0, sign * 5e-6 * reference.rms));
        assert_false(passes_with(&reference, 0, sign * 5e-5 * reference.rms));
        assert_true(passes_with(&reference, COUNT - 1, sign * 300 * 5e-6)); /* a large element at its own size */
        assert_false(passes_with(&reference, COUNT - 1, sign * 300 * 5e-5));
    }
}

static void nan_never_passes(void **state)
{
    (void)state;
    tarn__conv_reference reference = {.values = values, .count = COUNT};
    for (int i = 0; i < COUNT; i++)
        values[i] = 1;
    tarn__conv_reference_measure(&reference, 9);
    assert_true(passes_with(&reference, 0, 0));
    assert_false(passes_with(&reference, 0, NAN));
    assert_false(passes_with(&reference, COUNT - 1, INFINITY));
    values[3] = NAN;
    tarn__conv_reference_measure(&reference, 9);
    assert_false(passes_with(&reference, 0, 0));
    assert_false(passes_with(&reference, 3, 0));
}

static void the_tolerance_grows_with_the_square_root_of_the_terms_within_bounds(void **state)
{
    (void)state;
    assert_true(tarn__conv_tolerance(1) == 1e-6);
    assert_true(fabs(tarn__conv_tolerance(400) - 20 * 4 * 0x1p-24) < 1e-15);
    assert_true(tarn__conv_tolerance(10000) == 1e-5);
    assert_true(fabs(tarn__conv_tolerance(40000) - 200 * 4 * 0x1p-24) < 1e-15);
    assert_true(tarn__conv_tolerance(INT64_C(1) << 40) == 1e-4);
    for (int64_t terms = 1; terms < 1 << 22; terms = terms * 3 / 2 + 1)
        assert_true(tarn__conv_tolerance(terms) <= tarn__conv_tolerance(terms + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(f32_sums_pass_and_those_of_truncated_operands_do_not),
        in_scope(one_wrong_element_is_noticed),
        in_scope(nan_never_passes),
        in_scope(the_tolerance_grows_with_the_square_root_of_the_terms_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

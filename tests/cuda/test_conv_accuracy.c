/*
 * What is taken for a convolution in f32, and what is not: sums that were added one after another, sums of numbers cut
 * to TF32, and single elements that are off. Computed on the host: needs no device.
 */
#include "backends/cuda/conv/conv_accuracy.h"
#include "support/check.h"

enum { COUNT = 200 };

static float values[2 * COUNT];

static float uniform(uint64_t *random)
{
    return (float)((double)random_below(random, 1 << 24) / (1 << 23) - 1);
}

/* The ten bits after the point that tensor cores keep of an f32. */
static float cut(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits &= 0xffffe000;
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

/* Sums of so many random products: the truth, one after another in f32, and of cut numbers. */
static tarn__conv_reference sums_of(int64_t terms, uint64_t *random, float *one_by_one, float *of_cut)
{
    tarn__conv_reference truth = {.values = values, .count = COUNT};
    for (int i = 0; i < COUNT; i++) {
        double exact = 0, rough = 0;
        float sum = 0;
        for (int64_t k = 0; k < terms; k++) {
            float x = uniform(random), w = uniform(random);
            exact += (double)x * (double)w;
            rough += (double)cut(x) * (double)cut(w);
            sum = fmaf(x, w, sum);
        }
        values[i] = (float)exact, one_by_one[i] = sum, of_cut[i] = (float)rough;
    }
    tarn__conv_reference_measure(&truth, terms);
    return truth;
}

static void sums_in_f32_are_taken_and_those_of_cut_numbers_are_not(void **state)
{
    (void)state;
    static const int64_t terms[] = {1, 9, 576, 2304, 9000, 50000};
    float one_by_one[COUNT], of_cut[COUNT];
    uint64_t random = test_seed(7);
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++) {
        tarn__conv_reference truth = sums_of(terms[i], &random, one_by_one, of_cut);
        assert_true(tarn__conv_is_accurate(&truth, one_by_one));
        assert_false(tarn__conv_is_accurate(&truth, of_cut));
    }
}

/* All as they should be, but for one element. */
static bool is_near_with(const tarn__conv_reference *truth, int at, double off)
{
    float got[COUNT];
    memcpy(got, truth->values, sizeof(got));
    got[at] = (float)((double)got[at] + off);
    return tarn__conv_is_accurate(truth, got);
}

static void one_element_that_is_off_is_seen(void **state)
{
    (void)state;
    tarn__conv_reference truth = {.values = values, .count = COUNT};
    for (int i = 0; i < COUNT; i++)
        values[i] = i % 2 ? 3 : -3;
    values[5] = 0, values[COUNT - 1] = 300;
    tarn__conv_reference_measure(&truth, 2000);
    assert_true(truth.allowed == 1e-5); /* 5e-6 off is f32, 5e-5 is not */
    assert_true(fabs(truth.size - sqrt((198.0 * 9 + 300.0 * 300) / COUNT)) < 1e-12);
    for (int sign = -1; sign < 2; sign += 2) {
        assert_true(is_near_with(&truth, 5, sign * 5e-6 * truth.size)); /* 0 is as large as all are */
        assert_false(is_near_with(&truth, 5, sign * 5e-5 * truth.size));
        assert_true(is_near_with(&truth, 0, sign * 5e-6 * truth.size));
        assert_false(is_near_with(&truth, 0, sign * 5e-5 * truth.size));
        assert_true(is_near_with(&truth, COUNT - 1, sign * 300 * 5e-6)); /* a large one by its own size */
        assert_false(is_near_with(&truth, COUNT - 1, sign * 300 * 5e-5));
    }
}

static void what_is_no_number_is_never_near(void **state)
{
    (void)state;
    tarn__conv_reference truth = {.values = values, .count = COUNT};
    for (int i = 0; i < COUNT; i++)
        values[i] = 1;
    tarn__conv_reference_measure(&truth, 9);
    assert_true(is_near_with(&truth, 0, 0));
    assert_false(is_near_with(&truth, 0, NAN));
    assert_false(is_near_with(&truth, COUNT - 1, INFINITY));
    values[3] = NAN;
    tarn__conv_reference_measure(&truth, 9);
    assert_false(is_near_with(&truth, 0, 0));
    assert_false(is_near_with(&truth, 3, 0));
}

static void what_is_allowed_grows_with_the_root_of_the_terms_between_its_ends(void **state)
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
        in_scope(sums_in_f32_are_taken_and_those_of_cut_numbers_are_not),
        in_scope(one_element_that_is_off_is_seen),
        in_scope(what_is_no_number_is_never_near),
        in_scope(what_is_allowed_grows_with_the_root_of_the_terms_between_its_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_quant.c: quant blocks: known blocks dequantize to known values; quantizing keeps within the error of its
 * steps, and is never worse than scaling by the extremes. tests/parity/gguf.py compares with the gguf package. */
#include <math.h>

#include "base/half.h"
#include "base/quant/quant.h"
#include "support/quant.h"

static const tarn_dtype kinds[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q4_1,   TARN_Q5_0,
                                   TARN_Q5_1, TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
#define KINDS (int)(sizeof(kinds) / sizeof(kinds[0]))

static void known_blocks_dequantize_to_known_values(void **state)
{
    (void)state;
    float values[256];
    tarn__q8_0 eight = {0x4000, {127, -128, 0, 1}}; /* a scale of 2 */
    tarn__dequantize_blocks(TARN_Q8_0, &eight, 32, values);
    assert_true(values[0] == 254 && values[1] == -256 && values[2] == 0 && values[3] == 2);
    tarn__q4_0 four = {0xb800, {0xf0, 0x08}}; /* -0.5 */
    tarn__dequantize_blocks(TARN_Q4_0, &four, 32, values);
    assert_true(values[0] == 4 && values[16] == -3.5f && values[1] == 0 && values[17] == 4);
    tarn__q4_k k4 = {.scale = 0x3c00, .min = 0x3800};
    k4.scales[1] = 0x80 | 3; /* group 1: 3; group 5: 2 << 4 */
    k4.scales[4] = 0x40 | 5; /* least of group 0: 5; of group 4: 1 << 4 */
    k4.scales[9] = 0x2f;     /* group 5: 15, least 2 */
    k4.q[0] = 0xa7, k4.q[64] = 0x40;
    tarn__dequantize_blocks(TARN_Q4_K, &k4, 256, values);
    assert_true(values[0] == -2.5f && values[32] == 30 && values[128] == -8 && values[160] == 47 * 4 - 1);
    tarn__q6_k k6 = {.scale = 0x3c00, .scales = {1, -2, [10] = 3}};
    k6.low[0] = 0x05, k6.high[0] = 0x03, k6.low[16] = 0x01, k6.low[96] = 0x0f, k6.high[32] = 0x04;
    tarn__dequantize_blocks(TARN_Q6_K, &k6, 256, values);
    assert_true(values[0] == 0x35 - 32 && values[16] == (1 - 32) * -2 && values[160] == (0x1f - 32) * 3);
}

static void known_blocks_of_the_other_formats_too(void **state)
{
    (void)state;
    float values[256];
    tarn__q4_1 b41 = {0x4000, 0xbc00, {0xf3}}; /* 2 and -1 */
    tarn__dequantize_blocks(TARN_Q4_1, &b41, 32, values);
    assert_true(values[0] == 5 && values[16] == 29 && values[1] == -1);
    tarn__q5_0 b50 = {0x4000, {0x01, 0, 0x02, 0x80}, {0xf3, 0x40}};
    tarn__dequantize_blocks(TARN_Q5_0, &b50, 32, values);
    assert_true(values[0] == 6 && values[16] == -2 && values[17] == 8 && values[31] == 0 && values[1] == -32);
    tarn__q5_1 b51 = {0x4000, 0xbc00, {0x01}, {0xf3}};
    tarn__dequantize_blocks(TARN_Q5_1, &b51, 32, values);
    assert_true(values[0] == 37 && values[16] == 29 && values[2] == -1);
    tarn__q2_k k2 = {.scale = 0x3c00, .min = 0x3800, .scales = {0x21, [9] = 0x0f}};
    k2.q[0] = 3, k2.q[32 + 16] = 2;
    tarn__dequantize_blocks(TARN_Q2_K, &k2, 256, values);
    assert_true(values[0] == 2 && values[1] == -1 && values[144] == 30 && values[145] == 0);
    tarn__q3_k k3 = {.scale = 0x3c00, .scales = {[1] = 0x53, [9] = 0x30}}; /* group 1: 3; group 9: 5 + (3 << 4) - 32 */
    k3.high[16] = 0x11, k3.q[16] = 2, k3.q[48] = 1;
    tarn__dequantize_blocks(TARN_Q3_K, &k3, 256, values);
    assert_true(values[16] == 2 * (3 - 32) && values[17] == -4 * (3 - 32) && values[144] == 5 + 48 - 32);
    tarn__q5_k k5 = {.scale = 0x3c00, .min = 0x3800, .scales = {[1] = 3, [5] = 4}};
    k5.q[1] = 0x70, k5.high[1] = 0x02;
    tarn__dequantize_blocks(TARN_Q5_K, &k5, 256, values);
    assert_true(values[33] == 23 * 3 - 2 && values[32] == -2);
    static const int8_t iq4[] = {TARN__IQ4_VALUES};
    tarn__iq4_nl nl = {.scale = 0x3c00};
    tarn__iq4_xs xs = {.scale = 0x3c00, .scales_high = 3 << 10, .scales_low = {[2] = 0x20}}; /* group 5: 2 + 48 - 32 */
    for (int i = 0; i < 16; i++)
        nl.q[i] = xs.q[5 * 16 + i] = (uint8_t)(i | (15 - i) << 4);
    tarn__dequantize_blocks(TARN_IQ4_NL, &nl, 32, values);
    for (int i = 0; i < 16; i++)
        assert_true(values[i] == iq4[i] && values[16 + i] == iq4[15 - i]);
    tarn__dequantize_blocks(TARN_IQ4_XS, &xs, 256, values);
    for (int i = 0; i < 16; i++)
        assert_true(values[160 + i] == 18 * iq4[i] && values[176 + i] == 18 * iq4[15 - i]);
}

/* tests/parity/gguf_files.py compares random blocks of all formats with the package's. */
static void formats_without_a_dtype_dequantize_to_known_values(void **state)
{
    (void)state;
    float values[256];
    const uint8_t mxfp4[17] = {128, 0xa1, 0x7f}; /* 1 · (0.5, -1, 12 / 2, -6) · 2 */
    tarn__dequantize_iquant(TARN__MXFP4, mxfp4, 32, values);
    assert_true(values[0] == 1 && values[16] == -2 && values[1] == -12 && values[17] == 12 && values[2] == 0);
    uint8_t tq2[66] = {0x1b, [32] = 2, [65] = 0x40}; /* a scale of 2 */
    tarn__dequantize_iquant(TARN__TQ2_0, tq2, 256, values);
    assert_true(values[0] == 4 && values[32] == 2 && values[64] == 0 && values[96] == -2 && values[128] == 2);
    uint8_t tq1[54] = {255, [53] = 0x40};
    tarn__dequantize_iquant(TARN__TQ1_0, tq1, 256, values);
    assert_true(values[0] == 2 && values[32] == 2 && values[128] == 2 && values[1] == -2);
    uint8_t iq1[50] = {0, 0x40, [34] = 0, [35] = 0x90}; /* row 0: all -1; scale 3 · 2; down by 1/8 */
    tarn__dequantize_iquant(TARN__IQ1_S, iq1, 256, values);
    assert_true(values[0] == -6.75f && values[7] == -6.75f && values[32] == 2 * -0.875f);
    uint8_t iq2[66] = {0, 0x40, [2] = 0, [6] = 1, [9] = 0x10}; /* row 0: all 8; the first and last element negative */
    tarn__dequantize_iquant(TARN__IQ2_XXS, iq2, 256, values);
    assert_true(values[0] == -6 && values[1] == 6 && values[7] == -6 && values[8] == 6);
    assert_true(tarn__iquant_elements(TARN__NVFP4) == 64 && tarn__iquant_bytes(TARN__NVFP4, 128) == 72);
}

static double uniform(uint64_t *random)
{
    return (double)(random_bits(random) >> 11) * 0x1p-53;
}

/* Numbers of several kinds, by number: normal, with a heavy tail, constant in blocks, all positive, tiny, mostly zero.
 */
static void fill(int kind, float *x, int count, uint64_t *random)
{
    float constant = (float)uniform(random) - 0.5f;
    for (int i = 0; i < count; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++)
            sum += uniform(random);
        float normal = (float)sum, divisor = (float)uniform(random) + 0.01f;
        const float all[] = {0.02f * normal, normal / divisor, constant,
                             3 + divisor,    1e-4f * normal,   divisor < 0.1f ? normal : 0};
        x[i] = all[kind];
    }
}

static double error_of(tarn_dtype dtype, const float *x, const void *block, int count)
{
    float decoded[256];
    double sum = 0;
    tarn__dequantize_blocks(dtype, block, count, decoded);
    for (int i = 0; i < count; i++)
        sum += ((double)decoded[i] - x[i]) * ((double)decoded[i] - x[i]);
    return sum;
}

/* The error of scaling each group by its extremes, with scales of any precision. */
static double plain_error(const float *x, bool has_least, int group)
{
    double sum = 0;
    for (int from = 0; from < 256; from += group) {
        double low = 0, high = 0, largest = 0;
        for (int i = from; i < from + group; i++) {
            low = fmin(low, x[i]);
            high = fmax(high, x[i]);
            largest = fmax(largest, fabs(x[i]));
        }
        double scale = has_least ? (high - low) / 15 : largest / 31, min = has_least ? low : 0;
        for (int i = from; i < from + group; i++) {
            double off = scale > 0 ? round((x[i] - min) / scale) * scale + min - x[i] : 0;
            sum += off * off;
        }
    }
    return sum;
}

static void searched_scales_are_better_than_the_extremes(void **state)
{
    (void)state;
    uint64_t random = test_seed(7);
    for (int kind = 0; kind < 2; kind++) {
        double error[2] = {0}, plain[2] = {0};
        for (int i = 0; i < 200; i++) {
            float x[256];
            tarn__q4_k k4;
            tarn__q6_k k6;
            fill(kind, x, 256, &random);
            tarn__quantize_blocks(TARN_Q4_K, x, 256, &k4);
            tarn__quantize_blocks(TARN_Q6_K, x, 256, &k6);
            error[0] += error_of(TARN_Q4_K, x, &k4, 256);
            error[1] += error_of(TARN_Q6_K, x, &k6, 256);
            plain[0] += plain_error(x, true, 32);
            plain[1] += plain_error(x, false, 16);
        }
        print_message("error by error of the extremes: q4_k %.3f, q6_k %.3f\n", sqrt(error[0] / plain[0]),
                      sqrt(error[1] / plain[1]));
        assert_true(error[0] < 0.9 * plain[0] && error[1] < 0.95 * plain[1]);
    }
}

/* Elements that matter come out closer, in every format but Q8_0, whose steps are small anyway. */
static void importance_moves_the_error_to_other_elements(void **state)
{
    (void)state;
    uint64_t random = test_seed(9);
    for (int k = 1; k < KINDS; k++) {
        double with = 0, without = 0;
        for (int i = 0; i < 100; i++) {
            float x[256], importance[256], decoded[2][256];
            char blocks[8 * 34];
            fill(0, x, 256, &random);
            for (int j = 0; j < 256; j++)
                importance[j] = uniform(&random) < 0.2 ? 10 : 0.1f;
            tarn__quantize_searched(kinds[k], x, importance, 256, blocks);
            tarn__dequantize_blocks(kinds[k], blocks, 256, decoded[0]);
            tarn__quantize_searched(kinds[k], x, NULL, 256, blocks);
            tarn__dequantize_blocks(kinds[k], blocks, 256, decoded[1]);
            for (int j = 0; j < 256; j++) {
                with += importance[j] * pow((double)decoded[0][j] - x[j], 2);
                without += importance[j] * pow((double)decoded[1][j] - x[j], 2);
            }
        }
        print_message("%s: weighted error by that without importance %.3f\n", tarn_dtype_name(kinds[k]),
                      sqrt(with / without));
        assert_true(with < 0.95 * without);
    }
}

/* Normal numbers, one in a hundred 20 times as large, and an importance for each of 1024 columns. */
static void fill_outliers(float *x, float *importance, int count)
{
    uint64_t random = 271828;
    for (int i = 0; i < count; i++) {
        double sum = -6, rare = uniform(&random), u = uniform(&random);
        for (int k = 0; k < 12; k++)
            sum += uniform(&random);
        x[i] = (float)(rare < 0.01 ? 20 * sum : sum);
        importance[i] = i < 1024 ? (float)(9 * u * u * u * u + 0.01) : importance[i - 1024];
    }
}

/* Errors of llama.cpp (xllamacpp 2026.10.11549) for the same numbers, beside their root mean square, without and with
 * importance. tests/parity/llama_cpp_files.py compares random numbers of more kinds. */
static const struct {
    tarn_dtype dtype;
    double error[2];
} llama_cpp[] = {
    {TARN_Q4_0, {0.144973, 0.133888}},   {TARN_Q4_K, {0.098686, 0.085763}},  {TARN_Q6_K, {0.031977, 0.029441}},
    {TARN_Q4_1, {0.109825, 0.083250}},   {TARN_Q5_0, {0.086285, 0.080309}},  {TARN_Q5_1, {0.051935, 0.041538}},
    {TARN_Q2_K, {0.254883, 0.218786}},   {TARN_Q3_K, {0.149680, 0.134727}},  {TARN_Q5_K, {0.050323, 0.044864}},
    {TARN_IQ4_NL, {0.119743, 0.104367}}, {TARN_IQ4_XS, {0.121545, 0.107918}}};

static void errors_are_at_most_those_of_llama_cpp(void **state)
{
    (void)state;
    enum { COUNT = 64 * 1024 };
    float *x = malloc(COUNT * sizeof(float)), *importance = malloc(COUNT * sizeof(float)),
          *decoded = malloc(COUNT * sizeof(float));
    unsigned char *blocks = malloc(COUNT * 2);
    assert_true(x && importance && decoded && blocks);
    fill_outliers(x, importance, COUNT);
    for (size_t k = 0; k < sizeof(llama_cpp) / sizeof(llama_cpp[0]); k++)
        for (int with = 0; with < 2; with++) {
            double error = 0, size = 0;
            if (with)
                tarn__quantize_searched(llama_cpp[k].dtype, x, importance, COUNT, blocks);
            else
                tarn__quantize_blocks(llama_cpp[k].dtype, x, COUNT, blocks);
            tarn__dequantize_blocks(llama_cpp[k].dtype, blocks, COUNT, decoded);
            for (int i = 0; i < COUNT; i++) {
                double weight = with ? (double)importance[i] : 1, off = (double)decoded[i] - x[i];
                error += weight * off * off;
                size += weight * x[i] * x[i];
            }
            error = sqrt(error / size);
            if (error > llama_cpp[k].error[with] + 5e-7) /* its digits */
                fail_msg("%s %s importance: error %.6f, llama.cpp's %.6f", tarn_dtype_name(llama_cpp[k].dtype),
                         with ? "with" : "without", error, llama_cpp[k].error[with]);
        }
    free(x), free(importance), free(decoded), free(blocks);
}

/* Scales so small that f16 has few digits for them: one that is rounded up would be farther off than the nearest. */
static void small_numbers_that_are_all_the_same_take_the_nearest_scale(void **state)
{
    (void)state;
    static const float numbers[] = {0.0067867017f, 0.004354258f, -0.0067867017f, 0.0021f, -3e-4f};
    for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++) {
        float x[256], decoded[256], steps = numbers[k] < 0 ? 63 : 63 * 15;
        tarn__q4_k block;
        for (int i = 0; i < 256; i++)
            x[i] = numbers[k];
        tarn__quantize_blocks(TARN_Q4_K, x, 256, &block);
        tarn__dequantize_blocks(TARN_Q4_K, &block, 256, decoded);
        double plain =
            fabs((double)tarn__f16_to_f32(tarn__f32_to_f16(fabsf(x[0]) / steps)) * steps - fabs((double)x[0]));
        for (int i = 0; i < 256; i++)
            assert_true(fabs((double)decoded[i] - (double)x[i]) <= plain * (1 + 1e-6));
    }
}

/* No element is farther off than a step or two of its block. */
static void packing_stays_within_the_steps(void **state)
{
    (void)state;
    const double steps[] = {127, 8, 15, 31, 15, 16, 31, 3, 4, 31, 5, 5};
    uint64_t random = test_seed(8);
    for (int kind = 0; kind < 6; kind++)
        for (int k = 0; k < KINDS; k++) {
            float x[256], decoded[256];
            char blocks[8 * 34];
            double largest = 0;
            fill(kind, x, 256, &random);
            for (int i = 0; i < 256; i++)
                largest = fmax(largest, fabs(x[i]));
            tarn__quantize_blocks(kinds[k], x, 256, blocks);
            tarn__dequantize_blocks(kinds[k], blocks, 256, decoded);
            for (int i = 0; i < 256; i++)
                if (fabs((double)decoded[i] - x[i]) >
                    2 * largest / steps[k] + 127 * 0x1p-25) /* and what f16 rounds a small scale by */
                    fail_msg("%s, kind %d, element %d: %g became %g", tarn_dtype_name(kinds[k]), kind, i, x[i],
                             decoded[i]);
        }
}

static void zeros_and_extreme_numbers_are_packed_too(void **state)
{
    (void)state;
    const float extremes[] = {0, -0.0f, 1e-45f, -1e-39f, 1e38f, -3e38f};
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 6; i++) {
            float x[256], decoded[256];
            char blocks[8 * 34];
            for (int j = 0; j < 256; j++)
                x[j] = j % 3 ? extremes[i] : -extremes[i] / 2;
            tarn__quantize_blocks(kinds[k], x, 256, blocks);
            tarn__dequantize_blocks(kinds[k], blocks, 256, decoded);
            for (int j = 0; i < 4 && j < 256; j++)
                assert_true(fabsf(decoded[j]) < 1e-7f); /* those that f16 has no scale for are the caller's to refuse */
        }
}

/* The bytes of all formats, by their FNV-1a hashes: kernels of devices are compared with these (tests/cuda,
 * tests/opencl), files are written with them. */
static void quantized_bytes_never_change(void **state)
{
    (void)state;
    static const uint64_t expected[] = {0x3d2a2137627aae97, 0xfd738f3b682b4a0b, 0x290c275492ac2233, 0x4b3584044eb77954,
                                        0x399d7295c3203ad3, 0x4557944eda00515b, 0xa87237632b9c5d5b, 0xadb41d4870010bb3,
                                        0x4699e5e91ba40124, 0xc15e05b9bbfa6494, 0xa08e5dbe30d97ddc, 0x09708f315688d5ff};
    enum { COUNT = 256 * 800 };
    float *x = malloc(COUNT * sizeof(float));
    unsigned char *blocks = malloc(COUNT * 2);
    assert_true(x && blocks);
    fill_quant_patterns(x, COUNT);
    for (int k = 0; k < KINDS; k++) {
        uint64_t hash = 0xcbf29ce484222325;
        tarn__quantize_blocks(kinds[k], x, COUNT, blocks);
        for (int64_t i = 0; i < tarn__bytes_of(kinds[k], COUNT); i++)
            hash = (hash ^ blocks[i]) * 0x100000001b3;
        if (hash != expected[k])
            fail_msg("%s: 0x%016llx, not 0x%016llx", tarn_dtype_name(kinds[k]), (unsigned long long)hash,
                     (unsigned long long)expected[k]);
    }
    free(x), free(blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_blocks_dequantize_to_known_values),
        cmocka_unit_test(known_blocks_of_the_other_formats_too),
        cmocka_unit_test(formats_without_a_dtype_dequantize_to_known_values),
        cmocka_unit_test(searched_scales_are_better_than_the_extremes),
        cmocka_unit_test(importance_moves_the_error_to_other_elements),
        cmocka_unit_test(errors_are_at_most_those_of_llama_cpp),
        cmocka_unit_test(small_numbers_that_are_all_the_same_take_the_nearest_scale),
        cmocka_unit_test(packing_stays_within_the_steps),
        cmocka_unit_test(zeros_and_extreme_numbers_are_packed_too),
        cmocka_unit_test(quantized_bytes_never_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_number_format.c: formatted numbers read back as they were, and no shorter string does. With --print it writes
 * the string of each double on standard input, given by its bits in hexadecimal: tests/project/numbers.py compares
 * these with Python's. */
#include <locale.h>

#include "base/number_format.h"
#include "support/check.h"

static double random_double(uint64_t *seed)
{
    double value;
    uint64_t word = random_bits(seed);
    memcpy(&value, &word, sizeof(value));
    return isfinite(value) ? value : 0;
}

/* Digits of a text, without zeros before and after them. */
static int digits_of(const char *text)
{
    char digits[TARN__NUMBER_SIZE] = "";
    int used = 0;
    for (const char *c = text; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9' && (used || *c != '0'))
            digits[used++] = *c;
    while (used && digits[used - 1] == '0')
        used--;
    return used;
}

static void numbers_have_the_text_that_python_gives_them(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {0.0, "0.0"},
                 {-0.0, "-0.0"},
                 {1, "1.0"},
                 {-2.5, "-2.5"},
                 {1e-4, "0.0001"},
                 {1e-5, "1e-05"},
                 {1e15, "1000000000000000.0"},
                 {1e16, "1e+16"},
                 {123456789, "123456789.0"},
                 {5e-324, "5e-324"},
                 {0x1p-44, "5.684341886080802e-14"},
                 {1.0 / 3, "0.3333333333333333"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"},
                 {9007199254740992.0, "9007199254740992.0"},
                 {INFINITY, "null"},
                 {NAN, "null"}};
    char text[TARN__NUMBER_SIZE];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(tarn__number_format(cases[i].value, text), cases[i].text);
}

static void they_read_back_and_are_the_shortest(void **state)
{
    (void)state;
    uint64_t seed = test_seed(9);
    char text[TARN__NUMBER_SIZE], shorter[64];
    for (int i = 0; i < 5000; i++) {
        double value = i % 2 ? random_double(&seed) : (double)random_below(&seed, 1000000) / 1000;
        tarn__number_format(value, text);
        double read = strtod(text, NULL);
        assert_memory_equal(&read, &value, sizeof(value));
        int digits = digits_of(text);
        snprintf(shorter, sizeof(shorter), "%.*e", digits > 1 ? digits - 2 : 0, value);
        assert_true(digits <= 1 || strtod(shorter, NULL) != value);
    }
}

static void floats_read_back_from_fewer_digits(void **state)
{
    (void)state;
    uint64_t seed = test_seed(10);
    char text[TARN__NUMBER_SIZE];
    assert_string_equal(tarn__number_format(tarn__number_of_f32(0.1f), text), "0.1");
    assert_string_equal(tarn__number_format(tarn__number_of_f32(-0.0f), text), "-0.0");
    assert_string_equal(tarn__number_format(tarn__number_of_f32(0.1307f), text), "0.1307");
    for (int i = 0; i < 5000; i++) {
        uint32_t word = (uint32_t)random_bits(&seed);
        float value, read;
        memcpy(&value, &word, sizeof(value));
        if (!isfinite(value))
            continue;
        tarn__number_format(tarn__number_of_f32(value), text);
        read = (float)strtod(text, NULL);
        assert_memory_equal(&read, &value, sizeof(value));
        assert_true(digits_of(text) <= 9);
    }
}

/* A locale whose point is a comma changes nothing. */
static void the_locale_does_not_matter(void **state)
{
    (void)state;
    char text[TARN__NUMBER_SIZE];
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8"))
        skip();
    assert_string_equal(tarn__number_format(0.25, text), "0.25");
    assert_true(tarn__number_parse("0.25") == 0.25);
    setlocale(LC_NUMERIC, "C");
}

static int print_texts(void)
{
    unsigned long long word;
    char text[TARN__NUMBER_SIZE];
    while (scanf("%llx", &word) == 1) {
        uint64_t own = word;
        double value;
        memcpy(&value, &own, sizeof(value));
        puts(tarn__number_format(value, text));
    }
    return 0;
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_the_text_that_python_gives_them),
        cmocka_unit_test(they_read_back_and_are_the_shortest),
        cmocka_unit_test(floats_read_back_from_fewer_digits),
        cmocka_unit_test(the_locale_does_not_matter),
    };
    if (count > 1 && strcmp(words[1], "--print") == 0)
        return print_texts();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

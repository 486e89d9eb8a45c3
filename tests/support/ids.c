/* ids.c: what tests of tokenizers ask of texts and their ids. */
#include "support/ids.h"

void expect_ids(const tarn_tokenizer *t, const char *text, size_t length, const tarn_encode_options *options,
                const int32_t *ids, int64_t n)
{
    int64_t count;
    int32_t *found = tarn_tokenizer_encode(t, text, length, options, &count);
    assert_ok();
    if (count != n || (n && memcmp(found, ids, (size_t)n * sizeof(*ids)) != 0)) {
        print_error("'%.60s':", text);
        for (int64_t i = 0; i < count; i++)
            print_error(" %d", (int)found[i]);
        print_error("\n");
    }
    assert_int_equal(count, n);
    assert_true(n == 0 || memcmp(found, ids, (size_t)n * sizeof(*ids)) == 0);
    tarn_tokenizer_release(found);
}

void round_trip(const tarn_tokenizer *t, const char *text, size_t length, const tarn_encode_options *options)
{
    int64_t count;
    size_t back_length;
    int32_t *ids = tarn_tokenizer_encode(t, text, length, options, &count);
    char *back = tarn_tokenizer_decode(t, ids, count, &back_length);
    assert_ok();
    assert_int_equal(back_length, length);
    assert_true(length == 0 || memcmp(back, text, length) == 0);
    assert_int_equal(back[length], 0);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_release(back);
}

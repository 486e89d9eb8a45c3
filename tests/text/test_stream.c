/* test_stream.c: text from ids as they are generated: whole characters, valid UTF-8, and together the text of all
 * ids. */
#include "support/files.h"
#include "support/small_model.h"

/* Pushes bytes through a tokenizer of bytes; everything that comes out, with '|' behind each push. */
static const char *pushed(const char *input, size_t count)
{
    static char all[256];
    size_t used = 0, length;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_text_stream *stream = tarn_text_stream_new(t, NULL);
    for (size_t i = 0; i < count; i++) {
        const char *text = tarn_text_stream_push(stream, (unsigned char)input[i], &length);
        assert_ok();
        assert_int_equal(text[length], 0);
        used += (size_t)snprintf(all + used, sizeof(all) - used, "%s|", text);
    }
    snprintf(all + used, sizeof(all) - used, "%s", tarn_text_stream_end(stream, &length));
    assert_ok();
    tarn_text_stream_free(stream);
    tarn_tokenizer_free(t);
    return all;
}
#define PUSHED(text) pushed(text, sizeof(text) - 1)

static void characters_come_whole(void **state)
{
    (void)state;
    assert_string_equal(PUSHED("ab"), "a|b|");
    assert_string_equal(PUSHED("é!"), "|é|!|");
    assert_string_equal(PUSHED("日\U0001F600"), "||日||||\U0001F600|");
    assert_string_equal(PUSHED(""), "");
}

static void invalid_bytes_are_replaced(void **state)
{
    (void)state;
    assert_string_equal(PUSHED("\xFF"), "\uFFFD|");
    assert_string_equal(PUSHED("\x80x"), "\uFFFD|x|");
    assert_string_equal(PUSHED("\xE6\x97x"), "||\uFFFDx|");                          /* cut by what follows */
    assert_string_equal(PUSHED("\xF0\x9F\x98"), "|||\uFFFD");                        /* cut by the end */
    assert_string_equal(PUSHED("\xC0\xAF"), "\uFFFD|\uFFFD|");                       /* overlong */
    assert_string_equal(PUSHED("\xED\xA0\x80"), "|\uFFFD\uFFFD|\uFFFD|");            /* a surrogate */
    assert_string_equal(PUSHED("\xF4\x90\x80\x80"), "|\uFFFD\uFFFD|\uFFFD|\uFFFD|"); /* beyond Unicode */
    assert_string_equal(PUSHED("\xE6\xE6\x97\xA5"), "|\uFFFD||日|");
}

static void random_texts_come_back(void **state)
{
    (void)state;
    static const char *const parts[] = {"hello", " ", "é", "日本", "\U0001F600", "\n", "w", "  "};
    char model[8192], text[1024], back[2048];
    uint64_t random = test_seed(23);
    tarn_tokenizer *t =
        tarn_tokenizer_open(write_file("small.model", model, small_model(model, &(small_model_options){0})));
    tarn_text_stream *stream = tarn_text_stream_new(t, NULL);
    assert_ok();
    for (int round = 0; round < 1000; round++) {
        size_t used = 0, got = 0, length;
        int64_t count;
        for (int64_t n = random_below(&random, 30); n > 0; n--) {
            const char *part = parts[random_below(&random, 8)];
            memcpy(text + used, part, strlen(part));
            used += strlen(part);
        }
        int32_t *ids = tarn_tokenizer_encode(t, text, used, NULL, &count);
        for (int64_t i = 0; i <= count; i++) { /* the stream begins anew behind its end */
            const char *out =
                i < count ? tarn_text_stream_push(stream, ids[i], &length) : tarn_text_stream_end(stream, &length);
            assert_ok();
            memcpy(back + got, out, length);
            got += length;
        }
        assert_int_equal(got, used);
        assert_memory_equal(back, text, used);
        tarn_tokenizer_release(ids);
    }
    tarn_text_stream_free(stream);
    tarn_tokenizer_free(t);
}

static void options_are_followed(void **state)
{
    (void)state;
    char model[8192];
    size_t length;
    tarn_tokenizer *t =
        tarn_tokenizer_open(write_file("small.model", model, small_model(model, &(small_model_options){0})));
    tarn_text_stream *begins = tarn_text_stream_new(t, &(tarn_stream_options){.skip_special = true});
    tarn_text_stream *goes_on = tarn_text_stream_new(t, &(tarn_stream_options){.continues = true});
    assert_ok();
    assert_string_equal(tarn_text_stream_push(begins, 1, &length), "");
    assert_string_equal(tarn_text_stream_push(begins, 265, &length), "h"); /* the space was put there by the encoder */
    assert_string_equal(tarn_text_stream_push(begins, 265, &length), " h");
    assert_string_equal(tarn_text_stream_push(goes_on, 265, &length), " h");
    assert_string_equal(tarn_text_stream_push(goes_on, 1, &length), "<s>");
    tarn_text_stream_free(begins);
    tarn_text_stream_free(goes_on);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(characters_come_whole), in_scope(invalid_bytes_are_replaced),
                                       in_scope(random_texts_come_back), in_scope(options_are_followed)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

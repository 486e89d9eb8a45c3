/* test_pipelines.c: tokenizers of steps: Unigram, WordPiece, BPE on characters, tiktoken's and BERT's files. Their ids
 * beside Hugging Face's are compared by tests/parity/pipelines.py. */
#include "tarn_features.h"
#include <sys/stat.h>
#include <tarn/text.h>

#include "support/files.h"
#include "support/ids.h"
#include "support/small_model.h"
#include "support/small_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

#define SKIP_WITHOUT_PACKAGES \
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON) \
    skip()

/* Saves a tokenizer and opens it again: it is the same one. */
static void expect_saved(const tarn_tokenizer *t)
{
    assert_true(tarn_tokenizer_save(t, scratch("saved")));
    tarn_tokenizer *again = tarn_tokenizer_open(scratch("saved"));
    assert_ok();
    assert_true(tarn_tokenizer_hash(t) == tarn_tokenizer_hash(again));
    tarn_tokenizer_free(again);
}

static void expect_text(const tarn_tokenizer *t, const int32_t *ids, int64_t count, const char *expected)
{
    size_t length, used = 0;
    char all[256];
    char *text = tarn_tokenizer_decode(t, ids, count, &length);
    assert_ok();
    assert_string_equal(text, expected);
    tarn_tokenizer_release(text);
    tarn_text_stream *stream = tarn_text_stream_new(t, NULL);
    for (int64_t i = 0; i < count; i++)
        used += (size_t)snprintf(all + used, sizeof(all) - used, "%s", tarn_text_stream_push(stream, ids[i], &length));
    snprintf(all + used, sizeof(all) - used, "%s", tarn_text_stream_end(stream, &length));
    tarn_text_stream_free(stream);
    assert_string_equal(all, expected);
}
#define TEXT(t, expected, ...) \
    expect_text(t, (const int32_t[]){__VA_ARGS__}, (int64_t)(sizeof((const int32_t[]){__VA_ARGS__}) / 4), expected)

static void unigram_takes_the_best_sum(void **state)
{
    (void)state;
    SKIP_WITHOUT_PACKAGES;
    tarn_tokenizer *t = tarn_tokenizer_open(write_text("pipeline.json", small_pipeline_text(0)));
    assert_ok();
    assert_string_equal(tarn_tokenizer_kind(t), "unigram");
    EXPECT(t, " hello", NULL, 1, 0, 2, 3); /* "x" is prepended, which has no piece */
    EXPECT(t, "lxxl", NULL, 1, 0, 4, 0, 4);
    TEXT(t, "hello he", 2, 3, 2);
    expect_saved(t);
    tarn_tokenizer_free(t);
}

static void a_long_text_takes_linear_time(void **state)
{
    (void)state;
    SKIP_WITHOUT_PACKAGES;
    size_t length = (size_t)4 << 20;
    char *text = malloc(length);
    int64_t count;
    memset(text, 'l', length);
    tarn_tokenizer *t = tarn_tokenizer_open(write_text("pipeline.json", small_pipeline_text(0)));
    int32_t *ids = tarn_tokenizer_encode(t, text, length, NULL, &count);
    assert_ok();
    assert_true(count == (int64_t)length + 2);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_free(t);
    free(text);
}

static void wordpiece_takes_the_longest_piece(void **state)
{
    (void)state;
    SKIP_WITHOUT_PACKAGES;
    tarn_tokenizer *t = tarn_tokenizer_open(write_text("pipeline.json", small_pipeline_text(1)));
    assert_ok();
    assert_string_equal(tarn_tokenizer_kind(t), "wordpiece");
    EXPECT(t, "HEllo w.", NULL, 3, 4, 7, 6);
    EXPECT(t, "hex", &(tarn_encode_options){.add_special = true}, 1, 0, 2);
    TEXT(t, "hello w.", 3, 4, 7, 6);
    expect_saved(t);
    tarn_tokenizer_free(t);
}

static void bpe_has_a_suffix(void **state)
{
    (void)state;
    SKIP_WITHOUT_PACKAGES;
    tarn_tokenizer *t = tarn_tokenizer_open(write_text("pipeline.json", small_pipeline_text(2)));
    assert_ok();
    EXPECT(t, "Hello hello", NULL, 5, 7, 5, 7);
    EXPECT(t, "xyhe", NULL, 0, 1, 0);
    TEXT(t, "hello hello", 5, 7, 5, 7);
    expect_saved(t);
    tarn_tokenizer_free(t);
}

static void a_unigram_model_is_opened(void **state)
{
    (void)state;
    char model[8192];
    size_t count = small_model(model, &(small_model_options){.type = 1, .more = "hell", .more_type = 4});
    tarn_tokenizer *t = tarn_tokenizer_open(write_file("tokenizer.model", model, count));
    assert_ok();
    assert_string_equal(tarn_tokenizer_kind(t), "unigram");
    EXPECT(t, "\xC3\xB1", NULL, 259, 3 + 0xC3, 3 + 0xB1); /* the bytes of a character without a piece */
    TEXT(t, "\xC3\xB1", 259, 3 + 0xC3, 3 + 0xB1);
    if (TARN__HAVE_JANSSON && TARN__HAVE_PCRE2)
        expect_saved(t);
    tarn_tokenizer_free(t);
    count = small_model(model, &(small_model_options){.type = 1, .rules = "xyz"});
    assert_null(tarn_tokenizer_open(write_file("tokenizer.model", model, count)));
    assert_error_about(TARN_ERROR_FORMAT, "tokenizer.model", "rules are damaged");
}

static void lines_of_tiktoken_and_bert_are_opened(void **state)
{
    (void)state;
    SKIP_WITHOUT_PACKAGES;
    mkdir(scratch("lines"), 0777);
    write_text("lines/tokenizer.model", "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\nIGFi 4\n");
    write_text("lines/tokenizer_config.json",
               "{\"pattern\": \"qwen2\", \"added_tokens_decoder\": {\"5\": {\"content\": "
               "\"<e>\", \"special\": true}}, \"eos_token\": \"<e>\"}");
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("lines"));
    assert_ok();
    EXPECT(t, "ab ab<e>a", NULL, 2, 4, 5, 0);
    assert_int_equal(tarn_tokenizer_eos(t), 5);
    expect_saved(t);
    tarn_tokenizer_free(t);
    write_text("lines/tokenizer_config.json", "{\"tokenizer_class\": \"OtherTokenizer\"}");
    assert_null(tarn_tokenizer_open(scratch("lines")));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "OtherTokenizer", "no known pattern");
    tarn_clear_error();
    remove(scratch("lines/tokenizer.model"));
    remove(scratch("lines/tokenizer_config.json"));
    write_text("lines/vocab.txt", "[UNK]\n[CLS]\n[SEP]\nhe\n##llo\n");
    t = tarn_tokenizer_open(scratch("lines"));
    assert_ok();
    EXPECT(t, "Hello x", &(tarn_encode_options){.add_special = true}, 1, 3, 4, 0, 2);
    expect_saved(t);
    tarn_tokenizer_free(t);
    write_text("lines/vocab.txt", "[UNK]\nhe\nhe\n");
    assert_null(tarn_tokenizer_open(scratch("lines")));
    assert_error_about(TARN_ERROR_FORMAT, "vocab.txt", "line 3");
}

static void damaged_character_maps_stay_within_bounds(void **state)
{
    (void)state;
    uint64_t random = test_seed(21);
    for (int round = 0; round < 20000; round++) {
        size_t units = 1 + random_below(&random, 64), size = 4 + 4 * units + 1 + random_below(&random, 16), count;
        char *map = malloc(size), text[8];
        const char *to;
        for (size_t i = 0; i < size; i++)
            map[i] = (char)(random_below(&random, 3) ? random_below(&random, 8) : random_below(&random, 256));
        map[0] = (char)(4 * units);
        map[1] = (char)(4 * units >> 8);
        map[2] = map[3] = map[size - 1] = 0;
        assert_true(tarn__charsmap_valid(map, size));
        for (size_t i = 0; i < sizeof(text); i++)
            text[i] = (char)random_below(&random, 8);
        size_t found = tarn__charsmap_find(map, size, text, sizeof(text), round & 1, &to, &count);
        assert_true(found <= sizeof(text));
        assert_true(!found || (to > map && to + count < map + size));
        free(map);
    }
    assert_false(tarn__charsmap_valid("", 0));
    assert_false(tarn__charsmap_valid("\xFF\xFF\xFF\xFF\0\0\0\0\0", 9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(unigram_takes_the_best_sum),
                                       in_scope(a_long_text_takes_linear_time),
                                       in_scope(wordpiece_takes_the_longest_piece),
                                       in_scope(bpe_has_a_suffix),
                                       in_scope(a_unigram_model_is_opened),
                                       in_scope(lines_of_tiktoken_and_bert_are_opened),
                                       in_scope(damaged_character_maps_stay_within_bounds)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

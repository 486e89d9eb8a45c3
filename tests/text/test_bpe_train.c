/* test_bpe_train.c: training a BPE: the merges of a reference implementation, rules for ties, bounds. */
#include "support/files.h"
#include "tarn_features.h"

static void needs_pcre2(void)
{
    if (!TARN__HAVE_PCRE2)
        skip();
}

static tarn_tokenizer *train(const char *text, int64_t vocabulary, const tarn_bpe_options *options)
{
    tarn_tokenizer *t = tarn_bpe_train(&text, &(size_t){strlen(text)}, 1, vocabulary, options);
    assert_ok();
    return t;
}

static void expect_piece(const tarn_tokenizer *t, int32_t id, const char *text)
{
    assert_string_equal(tarn_tokenizer_piece(t, id, NULL), text);
}

static void the_reference_corpus_gives_the_reference_merges(void **state)
{
    (void)state;
    needs_pcre2();
    char corpus[4096];
    size_t length, at = 0;
    if (!real_data(""))
        skip();
    snprintf(corpus, sizeof(corpus), "%s", real_data("bpe-train/corpus.en"));
    tarn_tokenizer *t = tarn_bpe_train_files((const char *const[]){corpus}, 1, 500,
                                             &(tarn_bpe_options){.ties = TARN_BPE_GREATER_BYTES});
    assert_ok();
    assert_int_equal(tarn_tokenizer_count(t), 500);
    assert_true(tarn_tokenizer_save(t, scratch("reference")));
    /* Each merge is two written pieces with a space between them; each makes the next id. */
    char *merges = get_file(real_data("bpe-train/train-bpe-reference-merges.txt"), &length);
    int32_t id = 257;
    for (; at < length; id++) {
        char expected[256] = "";
        size_t used = 0;
        for (; at < length && merges[at] != '\n'; at++) {
            bool is_space = strncmp(merges + at, "\u0120", 2) == 0;
            if (merges[at] != ' ')
                expected[used++] = is_space ? ' ' : merges[at];
            at += is_space;
        }
        at++;
        expect_piece(t, id, expected);
    }
    assert_int_equal(id, 500);
    free(merges);
    tarn_tokenizer_free(t);
}

static void the_most_frequent_pair_is_merged_first(void **state)
{
    (void)state;
    needs_pcre2();
    tarn_tokenizer *t = train("ab ab ab abc abc xyz", 260, NULL);
    assert_int_equal(tarn_tokenizer_count(t), 260);
    expect_piece(t, 0, "<|endoftext|>");
    expect_piece(t, 1, "!");
    expect_piece(t, 257, "ab");
    expect_piece(t, 258, " ab");
    expect_piece(t, 259, " abc");
    tarn_tokenizer_free(t);
}

static void ties_follow_the_rule(void **state)
{
    (void)state;
    needs_pcre2();
    tarn_tokenizer *t = train("ab\ncd", 258, NULL);
    expect_piece(t, 257, "ab");
    tarn_tokenizer_free(t);
    t = train("ab\ncd", 258, &(tarn_bpe_options){.ties = TARN_BPE_GREATER_BYTES});
    expect_piece(t, 257, "cd");
    tarn_tokenizer_free(t);
}

static void overlapping_pairs_are_counted(void **state)
{
    (void)state;
    needs_pcre2();
    tarn_tokenizer *t = train("aaaa\naaaa\naa\nbcbc", 600, &(tarn_bpe_options){.min_frequency = 2});
    expect_piece(t, 257, "aa"); /* 7 in 3 words */
    expect_piece(t, 258, "bc");
    expect_piece(t, 259, "aaaa");
    assert_int_equal(tarn_tokenizer_count(t), 260); /* no other pair is there twice */
    tarn_tokenizer_free(t);
}

static void special_tokens_come_first_and_are_not_trained_on(void **state)
{
    (void)state;
    needs_pcre2();
    const char *const special[] = {"<a>", "<b c>"};
    tarn_tokenizer *t =
        train("<a><a><a><b c>xy<b c>xy", 300, &(tarn_bpe_options){.special = special, .special_count = 2});
    assert_int_equal(tarn_tokenizer_count(t), 259);
    expect_piece(t, 0, "<a>");
    expect_piece(t, 1, "<b c>");
    expect_piece(t, 258, "xy");
    assert_true(tarn_tokenizer_save(t, scratch("special")));
    tarn_tokenizer *again = TARN__HAVE_JANSSON ? tarn_tokenizer_open(scratch("special")) : NULL;
    assert_ok();
    assert_true(!again || tarn_tokenizer_hash(again) == tarn_tokenizer_hash(t));
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
    t = train("xyxy", 257, &(tarn_bpe_options){.no_special = true});
    assert_int_equal(tarn_tokenizer_end_of_text(t), -1);
    expect_piece(t, 256, "xy");
    tarn_tokenizer_free(t);
}

/* A file could not tell them from the bytes that it writes so. */
static void special_tokens_are_written_as_nothing_else_is(void **state)
{
    (void)state;
    needs_pcre2();
    static const char *const wrong[] = {"a", "\u0120", "\u0120a", "\u00E9"}, *const right[] = {"aa", "<\u2020>", "a b",
                                                                                               "\u2020"};
    const char *text = "abracadabra abracadabra";
    for (int i = 0; i < 4; i++) {
        assert_null(tarn_bpe_train(&text, &(size_t){strlen(text)}, 1, 270,
                                   &(tarn_bpe_options){.special = &wrong[i], .special_count = 1}));
        assert_error_about(TARN_ERROR_ARGUMENT, wrong[i], i == 2 ? "ordinary bytes" : "a single byte");
        tarn_tokenizer *t = train(text, 270, &(tarn_bpe_options){.special = &right[i], .special_count = 1});
        assert_true(tarn_tokenizer_save(t, scratch("right")));
        tarn_tokenizer *again = TARN__HAVE_JANSSON ? tarn_tokenizer_open(scratch("right")) : NULL;
        assert_ok();
        assert_true(!again || tarn_tokenizer_hash(again) == tarn_tokenizer_hash(t));
        tarn_tokenizer_free(again);
        tarn_tokenizer_free(t);
    }
}

static void several_texts_are_trained_on_together(void **state)
{
    (void)state;
    needs_pcre2();
    const char *texts[] = {"ab", "xab", NULL, "b"};
    tarn_tokenizer *t = tarn_bpe_train(texts, ((const size_t[]){2, 3, 0, 1}), 4, 258, NULL);
    assert_ok();
    expect_piece(t, 257, "ab");
    tarn_tokenizer_free(t);
}

/* What JSON puts around a text, and how it escapes characters, is not trained on. */
static void lines_of_json_are_texts(void **state)
{
    (void)state;
    needs_pcre2();
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *lines =
        write_text("lines.jsonl", "{\"text\": \"ab\\u00e9\", \"other\": \"xy xy xy\"}\r\n\n{\"text\": \"cab\"}");
    tarn_tokenizer *t = tarn_bpe_train_files(&lines, 1, 300, NULL), *other = train("ab\u00E9\ncab", 300, NULL);
    assert_ok();
    assert_int_equal(tarn_tokenizer_count(t), tarn_tokenizer_count(other));
    expect_piece(t, 257, "ab");
    assert_true(tarn_tokenizer_hash(t) == tarn_tokenizer_hash(other));
    tarn_tokenizer_free(t);
    tarn_tokenizer_free(other);
    lines = write_text("lines.txt", "{\"body\": \"xyxy\"}\n");
    t = tarn_bpe_train_files(&lines, 1, 300, &(tarn_bpe_options){.json_lines = true, .field = "body"});
    assert_ok();
    expect_piece(t, 257, "xy");
    assert_int_equal(tarn_tokenizer_count(t), 259);
    tarn_tokenizer_free(t);
    assert_null(tarn_bpe_train_files(&lines, 1, 300, &(tarn_bpe_options){.json_lines = true}));
    assert_error_about(TARN_ERROR_FORMAT, "bpe_train_files", "line 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_reference_corpus_gives_the_reference_merges),
        in_scope(the_most_frequent_pair_is_merged_first),
        in_scope(ties_follow_the_rule),
        in_scope(overlapping_pairs_are_counted),
        in_scope(special_tokens_come_first_and_are_not_trained_on),
        in_scope(special_tokens_are_written_as_nothing_else_is),
        in_scope(several_texts_are_trained_on_together),
        in_scope(lines_of_json_are_texts),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

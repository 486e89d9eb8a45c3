/* test_shards.c: texts to token files and back: the same bytes with any number of threads, splits, damage, no partial
 * results. */
#include <unistd.h>

#include "support/files.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

static void needs_json(void)
{
    if (!TARN__HAVE_JANSSON)
        skip();
}

/* All ids of a split; the caller frees them. */
static int32_t *read_all(const char *folder, const char *split, int64_t *count)
{
    tarn_tokens *tokens = tarn_tokens_open(folder, split);
    assert_ok();
    *count = tarn_tokens_count(tokens);
    int32_t *ids = malloc(((size_t)*count + 1) * sizeof(*ids));
    assert_true(tarn_tokens_read(tokens, 0, *count, ids));
    tarn_tokens_close(tokens);
    return ids;
}

static tarn_shards_summary prepare(const char *input, const tarn_tokenizer *t, const char *folder,
                                   const tarn_shards_options *options)
{
    tarn_shards_summary summary = {0};
    tarn_shards_prepare((const char *const[]){input}, 1, t, folder, &summary, options);
    assert_ok();
    return summary;
}

static void a_text_is_split_at_its_end(void **state)
{
    (void)state;
    needs_json();
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_shards_summary s =
        prepare(write_text("a.txt", "0123456789"), t, scratch("cut"), &(tarn_shards_options){.val_fraction = 0.3});
    assert_int_equal(s.documents, 1);
    assert_int_equal(s.bytes, 10);
    assert_int_equal(s.train_tokens, 7);
    assert_int_equal(s.valid_tokens, 3);
    int64_t count;
    int32_t *ids = read_all(scratch("cut"), "valid", &count);
    assert_int_equal(count, 3);
    assert_int_equal(ids[0], '7');
    free(ids);
    tarn_tokenizer *again = tarn_tokenizer_open(scratch("cut"));
    assert_ok();
    assert_true(tarn_tokenizer_hash(again) == tarn_tokenizer_hash(t));
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
}

static void lines_of_json_are_documents(void **state)
{
    (void)state;
    needs_json();
    const char *path = write_text("a.jsonl", "{\"body\": \"ab\"}\n\n  \n{\"body\": \"\\u00e9\\u0000\", \"more\": "
                                             "[1]}\r\n{\"body\": \"\"}\n{\"body\": \"z\"}");
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_shards_summary s = prepare(path, t, scratch("lines"),
                                    &(tarn_shards_options){.val_fraction = 0.5, .field = "body", .separator = "\n"});
    assert_int_equal(s.documents, 4);
    int64_t count;
    int32_t *ids = read_all(scratch("lines"), "train", &count);
    const int32_t train[] = {'a', 'b', '\n', '\n'}, valid[] = {0xC3, 0xA9, 0, '\n', 'z', '\n'};
    assert_int_equal(count, 4);
    assert_memory_equal(ids, train, sizeof(train));
    free(ids);
    ids = read_all(scratch("lines"), "valid", &count);
    assert_int_equal(count, 6);
    assert_memory_equal(ids, valid, sizeof(valid));
    free(ids);
    tarn_tokenizer_free(t);
}

static void wrong_lines_are_named(void **state)
{
    (void)state;
    needs_json();
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    static const char *const wrong[] = {"{\"text\": \"a\"}\n\n{\"text\": 1}\n",
                                        "{\"text\": \"a\"}\n\n{\"other\": \"a\"}\n", "{\"text\": \"a\"}\n\n[]\n",
                                        "{\"text\": \"a\"}\n\n{\"text\": \"a\n",
                                        "{\"text\": \"a\"}\n\n{\"text\": \"\xFF\"}\n"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *path = write_text("wrong.jsonl", wrong[i]);
        assert_false(tarn_shards_prepare(&path, 1, t, scratch("wrong"), NULL, NULL));
        assert_error_about(TARN_ERROR_FORMAT, "wrong.jsonl", "line 3");
        assert_int_not_equal(access(scratch("wrong/index.json"), F_OK), 0);
        assert_int_not_equal(access(scratch("wrong/train-00000.bin"), F_OK), 0);
    }
    tarn_tokenizer_free(t);
}

/* Several megabytes, so that there are several blocks and files. */
static const char *long_file(void)
{
    size_t length = (size_t)5 << 20;
    char *text = malloc(length);
    uint64_t random = 5;
    for (size_t i = 0; i < length; i++)
        text[i] = "abcdefgh  \n"[random_below(&random, 11)];
    static char path[600]; /* scratch() uses its own again */
    snprintf(path, sizeof(path), "%s", scratch("long.txt"));
    put_file(path, text, length);
    free(text);
    return path;
}

static void expect_same_file(const char *one, const char *other)
{
    size_t first, second;
    char *a = get_file(one, &first), *b = get_file(other, &second);
    assert_int_equal(first, second);
    assert_memory_equal(a, b, first);
    free(a);
    free(b);
}

static void threads_change_nothing(void **state)
{
    (void)state;
    needs_json();
    static const char *const names[] = {"train-00000.bin", "train-00001.bin", "valid-00000.bin", "index.json",
                                        "tokenizer.json"};
    const char *input = long_file();
    const tarn_shards_options options = {.val_fraction = 0.2, .shard_tokens = 1500000};
    tarn_tokenizer *t = TARN__HAVE_PCRE2 ? tarn_bpe_train_files(&input, 1, 300, NULL) : tarn_tokenizer_bytes();
    assert_ok();
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_true(tarn_set_threads(threads));
        tarn_shards_summary s = prepare(input, t, scratch(threads == 1 ? "one" : "three"), &options);
        assert_true(s.train_files >= 2 && s.valid_files == 1);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char one[64], three[64];
        snprintf(one, sizeof(one), "one/%s", names[i]);
        snprintf(three, sizeof(three), "three/%s", names[i]);
        expect_same_file(scratch(one), scratch(three));
    }
    /* And blocks change nothing either: the ids are those of the whole text. */
    size_t length;
    int64_t count, whole;
    char *text = get_file(input, &length);
    size_t most = (size_t)((double)length * 0.8);
    int32_t *ids = read_all(scratch("one"), "train", &count),
            *expected = tarn_tokenizer_encode(t, text, most, NULL, &whole);
    bool ends = tarn_tokenizer_end_of_text(t) >= 0;
    assert_int_equal(count, whole + ends);
    assert_memory_equal(ids, expected, (size_t)whole * sizeof(*ids));
    tarn_tokenizer_release(expected);
    free(ids);
    free(text);
    tarn_tokenizer_free(t);
}

/* A file of more than a block that repeats a line; every part of it may be where a block ends. */
static char *repeated(const char *line, size_t *length)
{
    size_t one = strlen(line), count = ((size_t)5 << 18) / one;
    char *text = malloc(one * count);
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * one, line, one);
    *length = one * count;
    return text;
}

#define PATTERN(text) \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" text \
    "\"}, \"behavior\": " \
    "\"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"
#define GPT2 "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"

/* What could reach across the end of a block: the ids are still those of the whole text. */
static void blocks_change_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *line, *words, *merged; /* `words` is the pre-tokenizer, `merged` becomes a token as two letters */
    } cases[] = {
        {"hello\n", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}", "\\u0120 w"},
        {"<tag>hello\n", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}", "\\u0120 w"},
        {"hello\nw", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}", "\\u010a w"},
        {"hello\n\n", GPT2, "\\u010a \\u010a"},
        {"hello\r\n", GPT2, "\\u010d \\u010a"},
        {"hello!\n", PATTERN(" ?\\\\p{L}+|[^\\\\s\\\\p{L}]+[\\\\r\\\\n/]*|\\\\s+"), "! \\u010a"},
        {"hello!\n/", PATTERN(" ?\\\\p{L}+|[^\\\\s\\\\p{L}]+[\\\\r\\\\n/]*|\\\\s+"), "\\u010a /"},
        {"hello\n\n", PATTERN(" ?\\\\p{L}+|\\\\s+(?!\\\\S)|\\\\s+"), "\\u010a \\u010a"},
        {"hello\n(w", PATTERN("[a-z]+"), "\\u010a ("},
        {"hello.\n(w", PATTERN(" ?[^(\\\\s|.,!?\\u2026\\u3002\\uff0c\\u3001\\u0964\\u06d4\\u060c)]+"), "\\u010a ("},
        {"hello\n<pad>", GPT2, "\\u0120 w"},
        {"hello<pad>\n", GPT2, "\\u0120 w"},
    };
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char folder[16], piece[32], *space;
        size_t length;
        snprintf(piece, sizeof(piece), "%s", cases[i].merged);
        space = strchr(piece, ' ');
        memmove(space, space + 1, strlen(space));
        char *words = replaced(small_tokenizer_text(), GPT2, cases[i].words), *text = repeated(cases[i].line, &length);
        char *vocabulary = replaced(words, "\\u0120w", piece),
             *all = replaced(vocabulary, "\\u0120 w", cases[i].merged);
        tarn_tokenizer *t = tarn_tokenizer_open(write_text("tokenizer.json", all));
        assert_ok();
        snprintf(folder, sizeof(folder), "blocks%zu", i);
        /* Only where it is in the text: a special token that absorbs spaces prevents every cut. */
        bool has_pad = strstr(cases[i].line, "<pad>") != NULL;
        prepare(write_file("blocks.txt", text, length), t, scratch(folder),
                &(tarn_shards_options){.no_separator = true, .parse_special = has_pad});
        int64_t count, whole;
        int32_t *ids = read_all(scratch(folder), "train", &count),
                *expected = tarn_tokenizer_encode(t, text, length, NULL, &whole);
        if (count != whole || memcmp(ids, expected, (size_t)whole * sizeof(*ids)) != 0)
            fail_msg("case %zu: %lld ids instead of %lld, or others", i, (long long)count, (long long)whole);
        tarn_tokenizer_release(expected);
        tarn_tokenizer_free(t);
        free(ids);
        free(text);
        free(words);
        free(vocabulary);
        free(all);
    }
}

static void tinyshakespeare_is_prepared_as_others_do(void **state)
{
    (void)state;
    char input[4096];
    if (!real_data("") || !TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    snprintf(input, sizeof(input), "%s", real_data("tinyshakespeare/input.txt"));
    tarn_tokenizer *t = tarn_tokenizer_open(real_data("gpt2-bpe"));
    tarn_shards_summary s =
        prepare(input, t, scratch("shakespeare"), &(tarn_shards_options){.val_fraction = 0.1, .no_separator = true});
    assert_int_equal(s.train_tokens, 301966);
    assert_int_equal(s.valid_tokens, 36059);
    tarn_tokens *tokens = tarn_tokens_open(scratch("shakespeare"), "valid");
    assert_int_equal(tarn_tokens_vocab_size(tokens), 50257);
    assert_true(tarn_tokens_hash(tokens) == tarn_tokenizer_hash(t));
    tarn_tokens_close(tokens);
    tarn_tokenizer_free(t);
}

static void reading_spans_files(void **state)
{
    (void)state;
    needs_json();
    char text[5000];
    for (int i = 0; i < 5000; i++)
        text[i] = (char)('a' + i % 26);
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_shards_summary s = prepare(write_file("letters.txt", text, sizeof(text)), t, scratch("letters"),
                                    &(tarn_shards_options){.shard_tokens = 1024});
    assert_int_equal(s.train_files, 5);
    tarn_tokens *tokens = tarn_tokens_open(scratch("letters"), "train");
    assert_ok();
    int32_t ids[3000];
    for (int64_t at = 0; at < 2000; at += 501) {
        assert_true(tarn_tokens_read(tokens, at, 3000, ids));
        for (int i = 0; i < 3000; i++)
            assert_int_equal(ids[i], 'a' + (at + i) % 26);
    }
    assert_false(tarn_tokens_read(tokens, 2001, 3000, ids));
    assert_error(TARN_ERROR_ARGUMENT, "5000");
    tarn_tokens_close(tokens);
    tarn_tokens *one = tarn_tokens_open(scratch("letters/train-00004.bin"), NULL);
    assert_int_equal(tarn_tokens_count(one), 5000 - 4 * 1024);
    tarn_tokens_close(one);
    assert_null(tarn_tokens_open(scratch("letters"), "valid"));
    assert_error_about(TARN_ERROR_ARGUMENT, "letters", "prepare the files with a validation fraction");
    assert_null(tarn_tokens_open(scratch("nosuch"), "valid"));
    assert_error_about(TARN_ERROR_IO, "nosuch", "No such file or directory");
    assert_false(
        tarn_shards_prepare((const char *const[]){scratch("letters.txt")}, 1, t, scratch("letters"), NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "already exists");
    tarn_tokenizer_free(t);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    needs_json();
    static const struct {
        size_t at;
        char byte;
        const char *problem;
    } damage[] = {{0, 'X', "TARNTOKS"},
                  {8, 2, "version 2"},
                  {12, 3, "neither 2 nor 4"},
                  {16, 9, "is the file incomplete"},
                  {23, 0x7F, "is the file incomplete"},
                  {24, 0, NULL},
                  {31, 1, "no vocabulary size"}};
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    prepare(write_text("b.txt", "hello"), t, scratch("damage"), NULL);
    size_t length;
    char *good = get_file(scratch("damage/train-00000.bin"), &length);
    assert_int_equal(length, 64 + 2 * 5);
    for (size_t i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        char bad[74];
        memcpy(bad, good, sizeof(bad));
        bad[damage[i].at] = damage[i].byte;
        put_file(scratch("damage/train-00000.bin"), bad, sizeof(bad));
        tarn_tokens *tokens = tarn_tokens_open(scratch("damage"), "train");
        if (damage[i].problem) {
            assert_null(tokens);
            assert_contains(tarn_error(), "train-00000.bin");
            assert_contains(tarn_error(), damage[i].problem);
            tarn_clear_error();
        }
        tarn_tokens_close(tokens);
    }
    for (size_t cut = 0; cut < length; cut++) {
        put_file(scratch("damage/train-00000.bin"), good, cut);
        assert_null(tarn_tokens_open(scratch("damage/train-00000.bin"), NULL));
        assert_error(TARN_ERROR_FORMAT, "train-00000.bin");
    }
    good[65] = 1; /* an id of 256 + 'h' */
    put_file(scratch("damage/train-00000.bin"), good, length);
    int32_t ids[5];
    tarn_tokens *tokens = tarn_tokens_open(scratch("damage"), "train");
    assert_false(tarn_tokens_read(tokens, 0, 5, ids));
    assert_error(TARN_ERROR_FORMAT, "outside its vocabulary");
    tarn_tokens_close(tokens);
    free(good);
    tarn_tokenizer_free(t);
}

static bool stop(int64_t done, int64_t all, void *ctx)
{
    *(int *)ctx += done <= all;
    return false;
}

static void a_caller_may_stop_it(void **state)
{
    (void)state;
    needs_json();
    int calls = 0;
    const char *path = write_text("c.txt", "hello");
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    assert_false(tarn_shards_prepare(&path, 1, t, scratch("stopped"), NULL,
                                     &(tarn_shards_options){.progress = stop, .progress_ctx = &calls}));
    assert_error(TARN_ERROR_ARGUMENT, "stopped");
    assert_int_equal(calls, 1);
    assert_int_not_equal(access(scratch("stopped/index.json"), F_OK), 0);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_text_is_split_at_its_end), in_scope(lines_of_json_are_documents),
        in_scope(wrong_lines_are_named),      in_scope(threads_change_nothing),
        in_scope(blocks_change_nothing),      in_scope(tinyshakespeare_is_prepared_as_others_do),
        in_scope(reading_spans_files),        in_scope(damaged_files_are_refused),
        in_scope(a_caller_may_stop_it),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

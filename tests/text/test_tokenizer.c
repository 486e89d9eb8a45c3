/* test_tokenizer.c: BPE, characters and bytes: the ids of reference implementations, round trips of any bytes and of
 * files. */
#include "support/files.h"
#include "support/ids.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

#define MARK "__ggml_vocab_test__\n"

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static tarn_tokenizer *open_real(const char *name)
{
    const char *path = real_data(name);
    if (!path || !TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(path);
    assert_ok();
    assert_non_null(tokenizer);
    return tokenizer;
}

static tarn_tokenizer *open_small(void)
{
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(write_text("tokenizer.json", small_tokenizer_text()));
    assert_ok();
    return tokenizer;
}

/* The small tokenizer with one thing changed. */
static tarn_tokenizer *open_changed(const char *from, const char *to)
{
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    char *text = replaced(small_tokenizer_text(), from, to);
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(write_text("changed.json", text));
    free(text);
    assert_ok();
    return tokenizer;
}

/* ---- real vocabularies ------------------------------------------------------------------------------------------- */

/* Texts separated by a mark, and a line of ids for each. */
static void check_goldens(const tarn_tokenizer *t, const char *folder)
{
    size_t length, lines_length;
    char name[64];
    snprintf(name, sizeof(name), "%s/golden.inp", folder);
    char *texts = get_file(real_data(name), &length);
    snprintf(name, sizeof(name), "%s/golden.out", folder);
    char *lines = get_file(real_data(name), &lines_length), *line = lines;
    int checked = 0;
    for (char *text = texts, *next; text; text = next, checked++) {
        char *mark = strstr(text, "\n" MARK);
        size_t size = mark ? (size_t)(mark - text) : strlen(text);
        next = mark ? mark + strlen("\n" MARK) : NULL;
        if (!mark && size > 0 && text[size - 1] == '\n')
            size--;
        static int32_t ids[4096];
        int64_t count = 0;
        char *end = strchr(line, '\n');
        for (char *at = line, *rest; at < end; at = rest) {
            long id = strtol(at, &rest, 10);
            if (rest == at || rest > end)
                break;
            ids[count++] = (int32_t)id;
        }
        expect_ids(t, text, size, NULL, ids, count);
        round_trip(t, text, size, NULL);
        line = end + 1;
    }
    print_message("%d texts of %s\n", checked, folder);
    assert_true(checked > 30);
    free(texts);
    free(lines);
}

static void gpt2_gives_the_reference_ids(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_real("gpt2-bpe");
    assert_int_equal(tarn_tokenizer_count(t), 50257);
    assert_string_equal(tarn_tokenizer_kind(t), "bpe");
    assert_int_equal(tarn_tokenizer_end_of_text(t), 50256);
    assert_true(tarn_tokenizer_is_special(t, 50256));
    EXPECT(t, "Hello world<|endoftext|>", NULL, 15496, 995, 50256);
    EXPECT(t, "<|endoftext|>", (&(tarn_encode_options){.special_as_text = true}), 27, 91, 437, 1659, 5239, 91, 29);
    check_goldens(t, "gpt2-bpe");
    tarn_tokenizer_free(t);
}

static void gpt2_opens_by_each_of_its_files(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        tarn_tokenizer *t = open_real(i ? "gpt2-bpe/vocab.bpe" : "gpt2-bpe/encoder.json");
        EXPECT(t, "Hello world", NULL, 15496, 995);
        tarn_tokenizer_free(t);
    }
}

static void qwen2_gives_the_reference_ids(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_real("qwen2-bpe");
    assert_int_equal(tarn_tokenizer_count(t), 151646);
    EXPECT(t, "<|im_start|>I'M<|im_end|>", NULL, 151644, 40, 27603, 151645);
    check_goldens(t, "qwen2-bpe");
    tarn_tokenizer_free(t);
}

static void llama_gives_the_reference_ids(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_real("llama-spm/vocab.gguf");
    assert_int_equal(tarn_tokenizer_count(t), 32000);
    assert_string_equal(tarn_tokenizer_kind(t), "spm");
    EXPECT(t, "Hello world", (&(tarn_encode_options){.add_special = true}), 1, 15043, 3186);
    assert_int_equal(tarn_tokenizer_bos(t), 1);
    assert_int_equal(tarn_tokenizer_eos(t), 2);
    check_goldens(t, "llama-spm");
    tarn_tokenizer_free(t);
}

static void tinyshakespeare_has_as_many_tokens_as_others_count(void **state)
{
    (void)state;
    size_t length;
    int64_t first, second;
    tarn_tokenizer *t = open_real("gpt2-bpe");
    char *text = get_file(real_data("tinyshakespeare/input.txt"), &length);
    size_t most = length * 9 / 10;
    tarn_tokenizer_release(tarn_tokenizer_encode(t, text, most, NULL, &first));
    tarn_tokenizer_release(tarn_tokenizer_encode(t, text + most, length - most, NULL, &second));
    assert_int_equal(first, 301966);
    assert_int_equal(second, 36059);
    free(text);
    tarn_tokenizer_free(t);
}

/* ---- any bytes --------------------------------------------------------------------------------------------------- */

/* Bytes of all kinds: letters, spaces, pieces of UTF-8 whole and cut, special tokens, and noise. */
static size_t random_text(char *text, size_t room, uint64_t *random)
{
    static const char *const parts[] = {
        "hello",         " ",  "\n",  "  ",      " w",   "'s", "é", "日本", "\U0001F600", "\xE6\x97", "\xFF", "\x80",
        "<|endoftext|>", "\t", "123", "e\u0301", "\r\n", ""};
    size_t used = 0;
    for (int64_t n = random_below(random, 40); n > 0 && used + 32 < room; n--) {
        const char *part = parts[random_below(random, sizeof(parts) / sizeof(parts[0]))];
        size_t length = strlen(part);
        if (length == 0)
            text[used++] = (char)random_below(random, 256);
        memcpy(text + used, part, length);
        used += length;
    }
    return used;
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    char text[4096];
    uint64_t random = test_seed(7);
    tarn_tokenizer *small = open_small(), *plain = tarn_tokenizer_bytes();
    for (int i = 0; i < 2000; i++) {
        size_t length = random_text(text, sizeof(text), &random);
        const tarn_encode_options options = {.special_as_text = i % 2};
        round_trip(small, text, length, &options);
        round_trip(plain, text, length, &options);
    }
    tarn_tokenizer_free(small);
    tarn_tokenizer_free(plain);
}

static void a_word_of_a_megabyte_is_no_trouble(void **state)
{
    (void)state;
    size_t length = 1 << 20;
    char *text = malloc(length);
    memset(text, 'l', length);
    tarn_tokenizer *t = open_small();
    int64_t count;
    int32_t *ids = tarn_tokenizer_encode(t, text, length, NULL, &count);
    assert_int_equal(count, length / 2);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(ids[i], 257);
    tarn_tokenizer_release(ids);
    for (size_t i = 0; i < length; i++)
        text[i] = "\t \n"[i % 3];
    round_trip(t, text, length, NULL);
    memset(text, 0xFE, length);
    round_trip(t, text, length, NULL);
    free(text);
    tarn_tokenizer_free(t);
}

/* Stray bytes of characters' ends, and one that begins a character: each was looked at once for each of those behind
 * it. */
static void a_megabyte_of_invalid_utf8_is_normalized(void **state)
{
    (void)state;
    size_t length = 1 << 20;
    char *text = malloc(length);
    tarn_tokenizer *t = open_changed("{\"added", "{\"normalizer\": {\"type\": \"NFC\"}, \"added");
    memset(text, 0x80, length);
    text[length - 1] = '\xCC';
    round_trip(t, text, length, NULL);
    free(text);
    EXPECT(t,
           "\x80\x80\x80\x80\x80"
           "e\u0301",
           NULL, 128, 128, 128, 128, 128, 195, 169);
    EXPECT(t, "\u00E2\u0323", NULL, 225, 186, 173); /* a character of two bytes and what follows it */
    tarn_tokenizer_free(t);
}

/* Short and long words are merged by different code. */
static void long_words_are_merged_as_short_ones(void **state)
{
    (void)state;
    uint64_t random = test_seed(11);
    tarn_tokenizer *t = open_small();
    for (int round = 0; round < 300; round++) {
        char text[256];
        int64_t count, long_count;
        size_t length = (size_t)(1 + random_below(&random, 40));
        for (size_t i = 0; i < length; i++)
            text[i] = "helo"[random_below(&random, 4)];
        memset(text + length, 'x', 60); /* makes it a long word; x merges with nothing */
        int32_t *ids = tarn_tokenizer_encode(t, text, length, NULL, &count);
        int32_t *with_tail = tarn_tokenizer_encode(t, text, length + 60, NULL, &long_count);
        assert_ok();
        assert_int_equal(long_count, count + 60);
        assert_memory_equal(ids, with_tail, (size_t)count * sizeof(*ids));
        tarn_tokenizer_release(ids);
        tarn_tokenizer_release(with_tail);
    }
    tarn_tokenizer_free(t);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static void special_tokens_are_found_first(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_small();
    EXPECT(t, "hello w", NULL, 256, 258, 259);
    EXPECT(t, "he<|endoftext|>he", NULL, 256, 260, 256);
    EXPECT(t, "he \n<pad>\u2003 he", NULL, 256, 261, 256);
    EXPECT(t, "<tag>he", (&(tarn_encode_options){.special_as_text = true}), 262, 256);
    EXPECT(t, "he", (&(tarn_encode_options){.add_special = true}), 260, 256);
    expect_ids(t, "", 0, NULL, NULL, 0);
    expect_ids(t, NULL, 0, NULL, NULL, 0);
    assert_int_equal(tarn_tokenizer_find(t, " w", 2), 259);
    assert_int_equal(tarn_tokenizer_find(t, "<tag>", 5), 262);
    assert_int_equal(tarn_tokenizer_find(t, "nothing", 7), -1);
    size_t length;
    assert_string_equal(tarn_tokenizer_piece(t, 258, &length), "llo");
    assert_int_equal(length, 3);
    assert_false(tarn_tokenizer_is_special(t, 262));
    tarn_tokenizer_free(t);
}

static void whole_words_are_not_added_tokens(void **state)
{
    (void)state;
    const tarn_encode_options as_text = {.special_as_text = true};
    tarn_tokenizer *t = open_changed("\"<|endoftext|>\", \"special\": true}", "\"endoftext\", \"special\": true}");
    EXPECT(t, "endoftext", &as_text, 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't');
    tarn_tokenizer_free(t);
    char *text = replaced(small_tokenizer_text(), "\"type\": \"BPE\"", "\"type\": \"BPE\", \"ignore_merges\": true");
    char *both = replaced(text, "\"<|endoftext|>\", \"special\": true}", "\"endoftext\", \"special\": true}");
    t = tarn_tokenizer_open(write_text("changed.json", both));
    assert_ok();
    EXPECT(t, "endoftext", &as_text, 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't');
    EXPECT(t, "endoftext", NULL, 260);
    EXPECT(t, "llo", NULL, 258);
    tarn_tokenizer_free(t);
    free(text);
    free(both);
}

static void characters_are_numbered_in_order(void **state)
{
    (void)state;
    const char *text = "hello wörld \U0001F600";
    tarn_tokenizer *t = tarn_tokenizer_characters(text, strlen(text));
    assert_string_equal(tarn_tokenizer_kind(t), "characters");
    assert_int_equal(tarn_tokenizer_count(t), 10);
    EXPECT(t, " deh", NULL, 0, 1, 2, 3);
    EXPECT(t, "\U0001F600ö", NULL, 9, 8);
    round_trip(t, text, strlen(text), NULL);
    int64_t count;
    assert_null(tarn_tokenizer_encode(t, "hey", 3, NULL, &count));
    assert_error_about(TARN_ERROR_ARGUMENT, "byte 2", "U+0079");
    assert_null(tarn_tokenizer_encode(t, "h\xFF", 2, NULL, &count));
    assert_error(TARN_ERROR_ARGUMENT, "0xFF");
    tarn_tokenizer_free(t);
    assert_null(tarn_tokenizer_characters("a\xC3", 2));
    assert_error_about(TARN_ERROR_ARGUMENT, "byte 1", "tarn_tokenizer_bytes");
    char good[1200];
    snprintf(good, sizeof(good), "%s", write_text("good.txt", text));
    assert_null(
        tarn_tokenizer_characters_files((const char *const[]){good, write_text("bad.txt", "ab\xFF")}, 2, NULL, false));
    assert_error_about(TARN_ERROR_ARGUMENT, "bad.txt': byte 2", "0xFF");
}

static void bytes_are_their_own_ids(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    EXPECT(t, "A\0\xFF", NULL, 65, 0, 255);
    assert_int_equal(tarn_tokenizer_count(t), 256);
    assert_int_equal(tarn_tokenizer_end_of_text(t), -1);
    tarn_tokenizer_free(t);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void expect_same(const tarn_tokenizer *a, const tarn_tokenizer *b)
{
    char text[4096];
    uint64_t random = test_seed(3);
    assert_string_equal(tarn_tokenizer_kind(a), tarn_tokenizer_kind(b));
    assert_int_equal(tarn_tokenizer_count(a), tarn_tokenizer_count(b));
    assert_true(tarn_tokenizer_hash(a) == tarn_tokenizer_hash(b));
    for (int i = 0; i < 200 && strcmp(tarn_tokenizer_kind(a), "characters") != 0; i++) {
        int64_t count;
        size_t length = random_text(text, sizeof(text), &random);
        int32_t *ids = tarn_tokenizer_encode(a, text, length, &(tarn_encode_options){.add_special = true}, &count);
        expect_ids(b, text, length, &(tarn_encode_options){.add_special = true}, ids, count);
        tarn_tokenizer_release(ids);
    }
}

static void save_and_open(tarn_tokenizer *t)
{
    const char *folder = scratch("saved/deep");
    assert_true(tarn_tokenizer_save(t, folder));
    tarn_tokenizer *again = tarn_tokenizer_open(folder);
    assert_ok();
    expect_same(t, again);
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
}

static void saved_tokenizers_open_the_same(void **state)
{
    (void)state;
    save_and_open(open_small());
    save_and_open(tarn_tokenizer_bytes());
    save_and_open(tarn_tokenizer_characters("a\"\\\n\x01\U0001F600é", 11));
    tarn_tokenizer *nul = tarn_tokenizer_characters("a\0b", 3);
    assert_false(tarn_tokenizer_save(nul, scratch("nul")));
    assert_error(TARN_ERROR_UNSUPPORTED, "NUL");
    tarn_tokenizer_free(nul);
}

/* A BPE without merges whose vocabulary is more than bytes is none of bytes, and stays what it is. */
static void further_vocabulary_makes_no_bytes(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"\"use_regex\": true", "\"use_regex\": false"},
        {"\"merges\": [\"h e\", [\"l\", \"l\"], \"ll o\", \"\\u0120 w\"]", "\"merges\": []"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"ignore_merges\": true"},
        {", \"he\": 256, \"ll\": 257, \"llo\": 258, \"\\u0120w\": 259", ""}};
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    char *text = replaced(small_tokenizer_text(), changes[0][0], changes[0][1]);
    for (int i = 1; i < 4; i++) {
        char *changed = replaced(text, changes[i][0], changes[i][1]);
        free(text);
        text = changed;
        tarn_tokenizer *t = tarn_tokenizer_open(write_text("changed.json", text));
        assert_ok();
        assert_string_equal(tarn_tokenizer_kind(t), "bpe");
        if (i == 2)
            EXPECT(t, "he", NULL, 256);
        else
            EXPECT(t, "he", NULL, 'h', 'e');
        save_and_open(t);
    }
    free(text);
}

static void real_tokenizers_are_saved_too(void **state)
{
    (void)state;
    save_and_open(open_real("gpt2-bpe"));
    save_and_open(open_real("qwen2-bpe"));
    save_and_open(open_real("llama-spm/vocab.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(gpt2_gives_the_reference_ids),
        in_scope(gpt2_opens_by_each_of_its_files),
        in_scope(qwen2_gives_the_reference_ids),
        in_scope(llama_gives_the_reference_ids),
        in_scope(tinyshakespeare_has_as_many_tokens_as_others_count),
        in_scope(any_bytes_come_back),
        in_scope(a_word_of_a_megabyte_is_no_trouble),
        in_scope(long_words_are_merged_as_short_ones),
        in_scope(a_megabyte_of_invalid_utf8_is_normalized),
        in_scope(special_tokens_are_found_first),
        in_scope(whole_words_are_not_added_tokens),
        in_scope(further_vocabulary_makes_no_bytes),
        in_scope(characters_are_numbered_in_order),
        in_scope(bytes_are_their_own_ids),
        in_scope(saved_tokenizers_open_the_same),
        in_scope(real_tokenizers_are_saved_too),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

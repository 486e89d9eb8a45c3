/* test_fuzz.c: valid tokenizer and token files with random damage. A reader must accept or reject each without a crash,
 * without excessive memory, and with an error that names the file; an accepted one must encode, decode and be saved.
 * TARN_TEST_LONG=1 runs many more. */
#include <sys/stat.h>

#include "base/memory.h"
#include "support/fuzz.h"
#include "tarn_features.h"

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":5,\"content\":\"<e>\",\"special\":true,\"normalized\":false,\"lstrip\":true},{\"id\":6,"
    "\"content\":\"ab "
    "\"}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
    "\"pattern\":{"
    "\"Regex\":\" ?[a-b]+|\\\\s+\"},"
    "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{"
    "\"type\":"
    "\"ByteLevel\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<e>\"}},{\"Sequence\":"
    "{\"id\":\"A\"}}],"
    "\"special_tokens\":{\"<e>\":{\"ids\":[5]}}},"
    "\"model\":{\"type\":\"BPE\",\"ignore_merges\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"
    "ab\":4},\"merges\":[\"a b\",[\"\xC4\xA0\",\"ab\"]]}}";
static const char characters_json[] =
    "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\s\\\\S]\"},\"behavior\":\"Isolated\","
    "\"invert\":false},"
    "\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"b\":1,\" "
    "\":2,\"\xC3\xA9\":3},\"unk_token\":\"b\"}}";
static const char vocabulary[] = "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\xC4\xA0\": 3, \"<|endoftext|>\": 4}";
static const char merges[] = "#version: 0.2\na b\n";
static const char config[] =
    "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"add_prefix_space\": false, \"added_tokens_decoder\": "
    "{\"4\": {\"content\": \"<|endoftext|>\", \"special\": true}, \"5\": {\"content\": \"<e>\", \"special\": true}}}";

/* ---- using an accepted file -------------------------------------------------------------------------------------- */

static void use_tokenizer(tarn_tokenizer *t, const char *name)
{
    static const char text[] = "ab a <e> ab \xC3\xA9\xFF b\n<|endoftext|>e\xCC\x81";
    int64_t count;
    size_t length;
    if (!t)
        return;
    int32_t *ids =
        tarn_tokenizer_encode(t, text, sizeof(text) - 1, &(tarn_encode_options){.add_special = true}, &count);
    if (!ids) /* a byte that the damaged vocabulary lacks, or a pattern without end */
        assert_true(tarn_error_code() == TARN_ERROR_ARGUMENT || tarn_error_code() == TARN_ERROR_UNSUPPORTED);
    tarn_clear_error();
    char *back = ids ? tarn_tokenizer_decode(t, ids, count, &length) : NULL;
    assert_ok();
    tarn_tokenizer_release(ids);
    tarn_tokenizer_release(back);
    for (int32_t id = 0; id < tarn_tokenizer_count(t); id++)
        tarn_tokenizer_piece(t, id, &length);
    static int uses; /* a save waits for the disk: not every time */
    if (uses++ % 16 == 0 && tarn_tokenizer_save(t, scratch(name))) {
        tarn_tokenizer *again = tarn_tokenizer_open(scratch(name));
        if (!again)
            print_error("%s\n", tarn_error());
        assert_true(again && tarn_tokenizer_hash(again) == tarn_tokenizer_hash(t));
        tarn_tokenizer_free(again);
    }
    tarn_tokenizer_free(t);
}

static bool open_file(void)
{
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("fuzz"));
    bool accepted = t != NULL;
    if (accepted)
        use_tokenizer(t, "saved");
    return accepted;
}

static bool open_parts(void)
{
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("fuzzed/vocab.json"));
    bool accepted = t != NULL;
    if (accepted)
        use_tokenizer(t, "saved");
    return accepted;
}

static bool open_tokens(void)
{
    int32_t ids[64];
    tarn_tokens *tokens = tarn_tokens_open(scratch("fuzz"), NULL);
    bool accepted = tokens != NULL;
    int64_t count = accepted ? tarn_tokens_count(tokens) : 0;
    if (accepted && !tarn_tokens_read(tokens, 0, count < 64 ? count : 64, ids))
        assert_error(TARN_ERROR_FORMAT, "outside its vocabulary");
    tarn_tokens_close(tokens);
    return accepted;
}

static bool open_index(void)
{
    tarn_tokens *tokens = tarn_tokens_open(scratch("fuzzed-tokens"), "train");
    tarn_tokens_close(tokens);
    return tokens != NULL;
}

static bool open_lines(void)
{
    const char *path = scratch("fuzz");
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    bool accepted = tarn_shards_prepare(&path, 1, t, scratch("prepared"), NULL,
                                        &(tarn_shards_options){.json_lines = true, .val_fraction = 0.3});
    remove(scratch("prepared/index.json"));
    tarn_tokenizer_free(t);
    return accepted;
}

/* ---- the damage -------------------------------------------------------------------------------------------------- */

/* Damages a file under a name and opens it, again and again. `part` must stand in every error. */
static void fuzz(const char *name, const void *good, size_t count, bool (*open)(void), const char *part)
{
    static bytes b;
    uint64_t random = test_seed(20261115);
    int accepted = 0, rounds = fuzz_rounds();
    assert_true(tarn_set_allocator(&fuzz_allocator));
    for (int i = 0; i < rounds; i++) {
        b.count = 0;
        put(&b, good, count);
        fuzz_damage(&b, &random);
        remove(scratch(name)); /* some file systems wait for the disk when a file is emptied and written again */
        put_file(scratch(name), b.data, b.count);
        fuzz_largest = 0;
        bool is_accepted = open();
        size_t max_bytes = 64 * b.count + ((size_t)4 << 20); /* ids may leave 65536 numbers out */
        bool is_right = is_accepted
                            ? !tarn_failed()
                            : tarn_failed() && strstr(tarn_error(), part) && tarn_error_code() != TARN_ERROR_INTERNAL;
        if (!is_right || fuzz_largest > max_bytes)
            print_error("round %d: %zu bytes asked for a file of %zu: %s\n%.*s\n", i, fuzz_largest, b.count,
                        tarn_error(), (int)b.count, (char *)b.data);
        assert_true(is_right && fuzz_largest <= max_bytes);
        tarn_clear_error();
        accepted += is_accepted;
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    put_file(scratch(name), good, count);
    assert_true(open()); /* undamaged */
    assert_ok();
    assert_true(tarn_set_allocator(NULL));
    print_message("%d of %d damaged files were still good\n", accepted, rounds);
    assert_true(accepted < rounds);
}

static void needs(bool feature)
{
    if (!feature)
        skip();
}

static void tokenizer_files(void **state)
{
    (void)state;
    needs(TARN__HAVE_PCRE2 && TARN__HAVE_JANSSON);
    fuzz("fuzz", tokenizer_json, sizeof(tokenizer_json) - 1, open_file, "/fuzz");
}

static void character_files(void **state)
{
    (void)state;
    needs(TARN__HAVE_JANSSON);
    fuzz("fuzz", characters_json, sizeof(characters_json) - 1, open_file, "/fuzz");
}

static void write_parts(void)
{
    mkdir(scratch("fuzzed"), 0777);
    put_file(scratch("fuzzed/vocab.json"), vocabulary, strlen(vocabulary));
    put_file(scratch("fuzzed/merges.txt"), merges, strlen(merges));
    put_file(scratch("fuzzed/tokenizer_config.json"), config, strlen(config));
}

static void vocabularies_merges_and_settings(void **state)
{
    (void)state;
    needs(TARN__HAVE_PCRE2 && TARN__HAVE_JANSSON);
    write_parts();
    fuzz("fuzzed/vocab.json", vocabulary, strlen(vocabulary), open_parts, "fuzzed/");
    fuzz("fuzzed/merges.txt", merges, strlen(merges), open_parts, "fuzzed/");
    fuzz("fuzzed/tokenizer_config.json", config, strlen(config), open_parts, "fuzzed/");
}

static void tokens(void **state)
{
    (void)state;
    needs(TARN__HAVE_JANSSON);
    const char *input = write_text("text.txt", "some text to be bytes");
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    assert_true(tarn_shards_prepare(&input, 1, t, scratch("fuzzed-tokens"), NULL, NULL));
    tarn_tokenizer_free(t);
    size_t count;
    char *shard = get_file(scratch("fuzzed-tokens/train-00000.bin"), &count);
    fuzz("fuzz", shard, count, open_tokens, "/fuzz");
    free(shard);
    char *index = get_file(scratch("fuzzed-tokens/index.json"), &count);
    fuzz("fuzzed-tokens/index.json", index, count, open_index, "fuzzed-tokens");
    free(index);
}

static void lines_of_json(void **state)
{
    (void)state;
    needs(TARN__HAVE_JANSSON);
    static const char lines[] =
        "{\"text\": \"one\\u00e9\", \"n\": [1, 2.5e3, null]}\n{\"text\": \"\\ud83d\\ude00 two\"}\n\n{\"more\": "
        "{\"a\": true}, \"text\": \"\"}\n";
    fuzz("fuzz", lines, sizeof(lines) - 1, open_lines, "shards_prepare");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokenizer_files), cmocka_unit_test(character_files),
                                       cmocka_unit_test(vocabularies_merges_and_settings), cmocka_unit_test(tokens),
                                       cmocka_unit_test(lines_of_json)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

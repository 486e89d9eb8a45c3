/* test_spm.c: SentencePiece's BPE: ids by hand, round trips of any bytes, tokenizer.model with one defect or truncated
 * anywhere, round trips of tokenizer.json. */
#include "support/files.h"
#include "support/ids.h"
#include "support/small_model.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

#include <sys/stat.h>

static const tarn_encode_options as_text = {.special_as_text = true}, around = {.add_special = true};

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static const char *write_model(const char *name, const small_model_options *options)
{
    char model[8192];
    return write_file(name, model, small_model(model, options));
}

static tarn_tokenizer *open_with(const small_model_options *options)
{
    tarn_tokenizer *t = tarn_tokenizer_open(write_model("small.model", options));
    assert_ok();
    assert_non_null(t);
    return t;
}

/* Bytes of all kinds: pieces, spaces, UTF-8 whole and cut, control tokens, and noise. */
static size_t random_text(char *text, size_t room, uint64_t *random)
{
    static const char *const parts[] = {"hello",      " ",        "  ",   "he",  "llo", " w",  "é",  "日本",
                                        "\U0001F600", "\xE6\x97", "\xFF", "<s>", "a",   "aaa", "\n", ""};
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

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static void the_best_score_merges_first(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_with(&(small_model_options){0});
    assert_string_equal(tarn_tokenizer_kind(t), "spm");
    assert_int_equal(tarn_tokenizer_count(t), 275);
    EXPECT(t, "hello", NULL, 265, 261, 268); /* the space before it takes the h */
    EXPECT(t, " hello w", NULL, 259, 265, 261, 268, 270);
    EXPECT(t, "\u2581h", NULL, 259, 265); /* the sign that files have for a space */
    EXPECT(t, "é日\n\xFF", NULL, 259, 272, 3 + 0xE6, 3 + 0x97, 3 + 0xA5, 3 + 0x0A, 3 + 0xFF);
    expect_ids(t, "", 0, NULL, NULL, 0);
    tarn_tokenizer_free(t);
    t = open_with(&(small_model_options){.no_prefix = true});
    EXPECT(t, "hello", NULL, 269);
    EXPECT(t, "aaa", NULL, 273, 274); /* of equals the leftmost */
    EXPECT(t, "aaaaa   ", NULL, 273, 273, 274, 271, 259);
    tarn_tokenizer_free(t);
}

static void control_tokens_are_found_first(void **state)
{
    (void)state;
    size_t length;
    tarn_tokenizer *t = open_with(&(small_model_options){0});
    EXPECT(t, "<s>he</s>", NULL, 1, 265, 261, 2);
    EXPECT(t, "<s>", &as_text, 259, 3 + '<', 3 + 's', 3 + '>');
    EXPECT(t, "he", &around, 1, 265, 261);
    EXPECT(t, "<0x41>", NULL, 259, 3 + '<', 3 + '0', 3 + 'x', 3 + '4', 3 + '1', 3 + '>');
    assert_int_equal(tarn_tokenizer_bos(t), 1);
    assert_int_equal(tarn_tokenizer_eos(t), 2);
    assert_int_equal(tarn_tokenizer_end_of_text(t), 2);
    assert_true(tarn_tokenizer_is_special(t, 0) && tarn_tokenizer_is_special(t, 2) && !tarn_tokenizer_is_special(t, 3));
    assert_string_equal(tarn_tokenizer_piece(t, 265, &length), " h");
    assert_string_equal(tarn_tokenizer_piece(t, 3 + 'x', &length), "x");
    assert_int_equal(tarn_tokenizer_find(t, " h", 2), 265);
    assert_int_equal(tarn_tokenizer_find(t, "\n", 1), 13);
    char *text = tarn_tokenizer_decode(t, (const int32_t[]){1, 265, 261, 2}, 4, &length);
    assert_string_equal(text, "<s> he</s>");
    tarn_tokenizer_release(text);
    tarn_tokenizer_free(t);
}

static void settings_of_a_model_are_followed(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_with(&(small_model_options){.squeezes = true});
    EXPECT(t, "  hello   w  ", NULL, 265, 261, 268, 270);
    expect_ids(t, "   ", 3, NULL, NULL, 0);
    tarn_tokenizer_free(t);
    t = open_with(&(small_model_options){.no_bytes = true});
    EXPECT(t, "日本h語", NULL, 259, 0, 260, 0); /* one for several */
    tarn_tokenizer_free(t);
    t = open_with(&(small_model_options){.more = "hell", .more_type = 4});
    /* a user's piece is found before anything merges, and merges with nothing */
    EXPECT(t, "hello", NULL, 259, 275, 263);
    tarn_tokenizer_free(t);
    /* a piece that reaches into the next word */
    t = open_with(&(small_model_options){.more = "o▁w", .more_score = -3.5f});
    EXPECT(t, "hello w", NULL, 265, 261, 268, 270);
    EXPECT(t, "o w", NULL, 259, 275);
    tarn_tokenizer_free(t);
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    char text[4096];
    uint64_t random = test_seed(17);
    tarn_tokenizer *t = open_with(&(small_model_options){0}),
                   *bare = open_with(&(small_model_options){.no_prefix = true});
    for (int i = 0; i < 2000; i++) {
        size_t length = random_text(text, sizeof(text), &random);
        round_trip(t, text, length, &as_text);
        round_trip(bare, text, length, i % 2 ? &as_text : NULL);
    }
    tarn_tokenizer_free(bare);
    size_t most = 1 << 20;
    char *large = malloc(most);
    memset(large, 'l', most);
    round_trip(t, large, most, NULL);
    for (size_t i = 0; i < most; i++)
        large[i] = "\xFF h"[i % 3];
    round_trip(t, large, most, NULL);
    free(large);
    tarn_tokenizer_free(t);
}

/* Words that are remembered and merged one by one give the ids of the whole text: a piece with a space inside, which
 * never comes up, turns that off. */
static void words_by_themselves_give_the_same_ids(void **state)
{
    (void)state;
    char text[4096];
    uint64_t random = test_seed(5);
    tarn_tokenizer *words = open_with(&(small_model_options){.more = "zz"}),
                   *whole = open_with(&(small_model_options){.more = "z▁z"});
    for (int i = 0; i < 1000; i++) {
        int64_t count;
        size_t length = random_text(text, sizeof(text), &random);
        int32_t *ids = tarn_tokenizer_encode(words, text, length, NULL, &count);
        expect_ids(whole, text, length, NULL, ids, count);
        tarn_tokenizer_release(ids);
    }
    tarn_tokenizer_free(words);
    tarn_tokenizer_free(whole);
}

/* ---- tokenizer.model that is wrong ------------------------------------------------------------------------------- */

static void expect_refused(const char *path, tarn_code code, const char *problem)
{
    tarn_tokenizer *t = tarn_tokenizer_open(path);
    if (t)
        fail_msg("a model was taken that has: %s", problem);
    if (tarn_error_code() != code || !strstr(tarn_error(), problem) || !strstr(tarn_error(), path))
        fail_msg("%s (%s), not '%s'", tarn_error(), tarn_code_name(tarn_error_code()), problem);
    tarn_clear_error();
}

static void wrong_models_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        small_model_options options;
        tarn_code code;
        const char *problem;
    } faults[] = {
        {{.type = 3}, TARN_ERROR_UNSUPPORTED, "Word"},
        {{.type = 4}, TARN_ERROR_UNSUPPORTED, "Char"},
        {{.type = 77}, TARN_ERROR_UNSUPPORTED, "of an unknown type"},
        {{.rules = "xyz"}, TARN_ERROR_UNSUPPORTED, "rules ('identity')"},
        {{.is_suffix = true}, TARN_ERROR_UNSUPPORTED, "treat_whitespace_as_suffix"},
        {{.leave_out_byte = true}, TARN_ERROR_FORMAT, "<0xFF>"},
        {{.more = "he"}, TARN_ERROR_FORMAT, "the piece 275, 'he', is a duplicate"},
        {{.more = "</s>", .more_type = 3}, TARN_ERROR_FORMAT, "duplicate added token"},
        {{.more = "x", .more_type = 5}, TARN_ERROR_UNSUPPORTED, "not used"},
        {{.more = "x", .more_type = 9}, TARN_ERROR_FORMAT, "type"},
        {{.more = "x", .more_score = NAN}, TARN_ERROR_FORMAT, "score"},
        {{.more = "", .more_type = 1}, TARN_ERROR_FORMAT, "empty"},
        {{.more = "\xFF"}, TARN_ERROR_FORMAT, "UTF-8"},
        {{.more = "<0x4>", .more_type = 6}, TARN_ERROR_FORMAT, "<0x0A>"},
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        expect_refused(write_model("wrong.model", &faults[i].options), faults[i].code, faults[i].problem);
    expect_refused(write_text("wrong.model", ""), TARN_ERROR_FORMAT, "is an empty file");
    expect_refused(write_file("wrong.model", "\x0B", 1), TARN_ERROR_FORMAT, "byte 0");
    expect_refused(write_file("wrong.model", "\x0A\x05\x0A\xFF\xFF\xFF\x7F", 7), TARN_ERROR_FORMAT,
                   "exceeds the message");
    expect_refused(write_file("wrong.model", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11), TARN_ERROR_FORMAT,
                   "does not end");
    expect_refused(write_file("wrong.model", "\x08\x05", 2), TARN_ERROR_FORMAT, "another wire type");
}

static void a_truncated_model_is_refused(void **state)
{
    (void)state;
    char model[8192];
    size_t all = small_model(model, &(small_model_options){0});
    for (size_t count = 0; count < all; count++) {
        const char *path = write_file("cut.model", model, count);
        if (tarn_tokenizer_open(path))
            fail_msg("the first %zu of %zu bytes were taken", count, all);
        assert_true(strstr(tarn_error(), path) != NULL);
        assert_true(tarn_error_code() == TARN_ERROR_FORMAT || tarn_error_code() == TARN_ERROR_UNSUPPORTED);
        tarn_clear_error();
    }
    tarn_tokenizer_free(tarn_tokenizer_open(write_file("cut.model", model, all)));
    assert_ok();
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static tarn_tokenizer *open_folder(const char *config)
{
    mkdir(scratch("folder"), 0777);
    write_model("folder/tokenizer.model", &(small_model_options){0});
    write_text("folder/tokenizer_config.json", config);
    return tarn_tokenizer_open(scratch("folder"));
}

static void a_folder_says_more_than_its_model(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_tokenizer *t =
        open_folder("{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": false, \"add_eos_token\": true, "
                    "\"eos_token\": {\"content\": \"<end>\"}, "
                    "\"added_tokens_decoder\": {\"1\": {\"content\": \"<s>\", \"special\": true, \"rstrip\": true}, "
                    "\"275\": {\"content\": \"<end>\", \"special\": true, \"normalized\": false}}}");
    assert_ok();
    EXPECT(t, "he", &around, 265, 261, 275);
    EXPECT(t, "<s>  he<end>he", NULL, 1, 265, 261, 275, 265, 261);
    assert_int_equal(tarn_tokenizer_eos(t), 275);
    tarn_tokenizer_free(t);
    t = open_folder("{\"legacy\": false}");
    EXPECT(t, "he<s>he", &around, 1, 265, 261, 1, 266); /* only the beginning of the whole gets a space */
    EXPECT(t, " he", NULL, 265, 261);                   /* where it has none */
    tarn_tokenizer_free(t);
    t = open_folder("{\"add_prefix_space\": false}");
    EXPECT(t, "hello", NULL, 269);
    tarn_tokenizer_free(t);
    assert_null(open_folder("{\"tokenizer_class\": \"T5Tokenizer\"}"));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "tokenizer_config.json", "T5Tokenizer");
    assert_null(open_folder("{\"add_bos_token\": 1}"));
    assert_error_about(TARN_ERROR_FORMAT, "tokenizer_config.json", "add_bos_token");
    assert_null(open_folder("{\"bos_token\": [1]}"));
    assert_error_about(TARN_ERROR_FORMAT, "tokenizer_config.json", "bos_token");
    assert_null(open_folder("{\"chat_template\": 5}"));
    assert_error_about(TARN_ERROR_FORMAT, "tokenizer_config.json", "chat_template");
}

/* ---- tokenizer.json ---------------------------------------------------------------------------------------------- */

static void expect_same(const tarn_tokenizer *a, const tarn_tokenizer *b)
{
    char text[4096];
    uint64_t random = test_seed(3);
    assert_string_equal(tarn_tokenizer_kind(b), "spm");
    assert_int_equal(tarn_tokenizer_count(a), tarn_tokenizer_count(b));
    for (int i = 0; i < 300; i++) {
        int64_t count;
        size_t length = random_text(text, sizeof(text), &random);
        int32_t *ids = tarn_tokenizer_encode(a, text, length, &around, &count);
        expect_ids(b, text, length, &around, ids, count);
        tarn_tokenizer_release(ids);
    }
}

/* What is saved is the same again; and without the scores, as others read it, by its merges. */
static void saved_tokenizers_open_the_same(void **state)
{
    (void)state;
    static const small_model_options kinds[] = {
        {0}, {.no_prefix = true}, {.squeezes = true}, {.more = "hell", .more_type = 4}};
    if (!TARN__HAVE_JANSSON)
        skip();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t length;
        tarn_tokenizer *t = open_with(&kinds[i]);
        assert_true(tarn_tokenizer_save(t, scratch("saved")));
        tarn_tokenizer *again = tarn_tokenizer_open(scratch("saved"));
        assert_ok();
        expect_same(t, again);
        assert_true(tarn_tokenizer_hash(t) == tarn_tokenizer_hash(again));
        tarn_tokenizer_free(again);
        char *text = get_file(scratch("saved/tokenizer.json"), &length),
             *plain = replaced(text, "\"tarn\":", "\"other\":");
        again = kinds[i].more ? NULL : tarn_tokenizer_open(write_text("plain.json", plain));
        assert_ok();
        if (again)
            expect_same(t, again);
        free(text);
        free(plain);
        tarn_tokenizer_free(again);
        tarn_tokenizer_free(t);
    }
    tarn_tokenizer *t = open_with(&(small_model_options){.no_bytes = true});
    assert_false(tarn_tokenizer_save(t, scratch("saved")));
    assert_error(TARN_ERROR_UNSUPPORTED, "byte pieces");
    tarn_tokenizer_free(t);
}

/* A saved file with something replaced, as others write it. The scores are taken out: merges count. */
static char *changed(const char *from, const char *to)
{
    size_t length;
    tarn_tokenizer *t = open_with(&(small_model_options){0});
    assert_true(tarn_tokenizer_save(t, scratch("saved")));
    tarn_tokenizer_free(t);
    char *text = get_file(scratch("saved/tokenizer.json"), &length), *plain = replaced(text, "\"tarn\":", "\"other\":"),
         *result = replaced(plain, from, to);
    free(text);
    free(plain);
    return result;
}

#define NORMALIZER \
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"▁\"}, " \
    "{\"type\": \"Replace\", " \
    "\"pattern\": " \
    "{\"String\": \" \"}, \"content\": \"▁\"}]},\n  \"pre_tokenizer\": null"

static tarn_tokenizer *open_metaspace(const char *scheme)
{
    char steps[256];
    snprintf(steps, sizeof(steps),
             "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"▁\", "
             "\"prepend_scheme\": \"%s\", "
             "\"split\": false}",
             scheme);
    char *text = changed(NORMALIZER, steps);
    tarn_tokenizer *t = tarn_tokenizer_open(write_text("metaspace.json", text));
    assert_ok();
    free(text);
    return t;
}

static void metaspace_prepends_by_its_scheme(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_tokenizer *t = open_metaspace("first");
    EXPECT(t, "he<s>he", NULL, 265, 261, 1, 266);
    EXPECT(t, " he", NULL, 265, 261);
    assert_true(tarn_tokenizer_save(t, scratch("again")));
    tarn_tokenizer *again = tarn_tokenizer_open(scratch("again"));
    assert_ok();
    expect_same(t, again);
    assert_true(tarn_tokenizer_hash(t) == tarn_tokenizer_hash(again));
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
    t = open_metaspace("always");
    EXPECT(t, "he<s>he", NULL, 265, 261, 1, 265, 261);
    tarn_tokenizer_free(t);
    t = open_metaspace("never");
    EXPECT(t, "hello", NULL, 269);
    tarn_tokenizer_free(t);
}

static void wrong_files_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        tarn_code code;
        const char *problem;
    } faults[] = {
        {NORMALIZER, "\"normalizer\": {\"type\": \"Nmt\"}", TARN_ERROR_UNSUPPORTED, "Nmt"},
        {"\"prepend\": \"▁\"", "\"prepend\": \"\"", TARN_ERROR_UNSUPPORTED, "prepend"},
        {"\"pre_tokenizer\": null", "\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}", TARN_ERROR_UNSUPPORTED,
         "UnicodeScripts"},
        {NORMALIZER,
         "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"▁\", \"prepend_scheme\": \"last\", "
         "\"split\": false}",
         TARN_ERROR_FORMAT, "prepend_scheme"},
        {"{\"type\": \"Fuse\"}", "{\"type\": \"CTC\"}", TARN_ERROR_UNSUPPORTED, "CTC"},
        {"\"start\": 1", "\"start\": 200", TARN_ERROR_UNSUPPORTED, "start"},
        {"\"<0xFE>\"", "\"<0xfe>\"", TARN_ERROR_FORMAT, "<0xFE>"},
        {"[\"h\", \"e\"]", "[\"h\", \"x\"]", TARN_ERROR_FORMAT, "the second is not in the vocabulary"},
        {"\"other\":", "\"tarn\": {}, \"other\":", TARN_ERROR_FORMAT, "scores"},
        {"\"other\": {\"scores\": [0.0", "\"tarn\": {\"scores\": [\"0\"", TARN_ERROR_FORMAT, "token 0"},
    };
    if (!TARN__HAVE_JANSSON)
        skip();
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        char *text = changed(faults[i].from, faults[i].to);
        expect_refused(write_text("wrong.json", text), faults[i].code, faults[i].problem);
        free(text);
    }
}

/* ---- files of tokens --------------------------------------------------------------------------------------------- */

static void token_files_have_the_ids_of_the_whole_text(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    size_t length = 3 << 20;
    char *text = malloc(length);
    uint64_t random = test_seed(9);
    for (size_t i = 0; i < length; i++)
        text[i] = "hello w\n"[random_below(&random, 8)];
    const char *input = write_file("input.txt", text, length);
    tarn_tokenizer *t = open_with(&(small_model_options){0});
    assert_true(
        tarn_shards_prepare(&input, 1, t, scratch("tokens"), NULL, &(tarn_shards_options){.no_separator = true}));
    tarn_tokens *tokens = tarn_tokens_open(scratch("tokens"), "train");
    assert_ok();
    int64_t count = tarn_tokens_count(tokens);
    int32_t *ids = malloc((size_t)count * sizeof(*ids));
    assert_true(tarn_tokens_read(tokens, 0, count, ids));
    expect_ids(t, text, length, NULL, ids, count);
    tarn_tokens_close(tokens);
    tarn_tokenizer_free(t);
    free(ids);
    free(text);
}

/* ---- a real vocabulary ------------------------------------------------------------------------------------------- */

static void the_model_of_stories_is_read(void **state)
{
    (void)state;
    const char *path = real_data("stories260K/tok512.model");
    if (!path)
        skip();
    tarn_tokenizer *t = tarn_tokenizer_open(path);
    assert_ok();
    assert_int_equal(tarn_tokenizer_count(t), 512);
    EXPECT(t, "Once upon a time", &around, 1, 403, 407, 261, 378);
    round_trip(t, "Once upon a time, there was a little girl named Lily.\n", 54, NULL);
    tarn_tokenizer_free(t);
}

/* A score of -0 comes back as -0, and 0.1 as 0.1: a run that is resumed writes the tokenizer of the one that was not
 * stopped. */
static void a_tokenizer_saved_twice_has_the_same_bytes(void **state)
{
    (void)state;
    tarn_tokenizer *t = open_with(&(small_model_options){.more = "zero", .more_score = -0.0f});
    assert_true(tarn_tokenizer_save(t, scratch("first")));
    tarn_tokenizer_free(t);
    t = tarn_tokenizer_open(scratch("first"));
    assert_true(tarn_tokenizer_save(t, scratch("second")));
    tarn_tokenizer_free(t);
    size_t count[2];
    char *first = get_file(scratch("first/tokenizer.json"), &count[0]),
         *second = get_file(scratch("second/tokenizer.json"), &count[1]);
    assert_int_equal(count[0], count[1]);
    assert_memory_equal(first, second, count[0]);
    first = realloc(first, count[0] + 1);
    first[count[0]] = 0;
    assert_contains(first, "-0.0");
    free(first);
    free(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_tokenizer_saved_twice_has_the_same_bytes),
        in_scope(the_best_score_merges_first),
        in_scope(control_tokens_are_found_first),
        in_scope(settings_of_a_model_are_followed),
        in_scope(any_bytes_come_back),
        in_scope(words_by_themselves_give_the_same_ids),
        in_scope(wrong_models_are_refused_by_name),
        in_scope(a_truncated_model_is_refused),
        in_scope(a_folder_says_more_than_its_model),
        in_scope(saved_tokenizers_open_the_same),
        in_scope(metaspace_prepends_by_its_scheme),
        in_scope(wrong_files_are_refused_by_name),
        in_scope(token_files_have_the_ids_of_the_whole_text),
        in_scope(the_model_of_stories_is_read),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

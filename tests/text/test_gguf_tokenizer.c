/* test_gguf_tokenizer.c: tokenizers in GGUF files: written and read back they give the same ids; missing, invalid and
 * unknown keys are errors that name them. */
#include "text/files/gguf_tokenizer.h"

#include "support/files.h"
#include "support/small_model.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

/* ---- there and back ---------------------------------------------------------------------------------------------- */

static size_t random_text(char *text, size_t room, uint64_t *random)
{
    static const char *const parts[] = {"hello", " ", "  ",  "he", "llo",           " w",    "é", "日本", "\xFF", "<s>",
                                        "</s>",  "a", "aaa", "\n", "<|endoftext|>", "I'm 42"};
    size_t used = 0;
    for (int64_t n = random_below(random, 40); n > 0 && used + 32 < room; n--) {
        const char *part = parts[random_below(random, sizeof(parts) / sizeof(parts[0]))];
        memcpy(text + used, part, strlen(part));
        used += strlen(part);
    }
    return used;
}

static void expect_same(const tarn_tokenizer *a, const tarn_tokenizer *b)
{
    char text[2048];
    uint64_t random = test_seed(29);
    assert_int_equal(tarn_tokenizer_bos(a), tarn_tokenizer_bos(b));
    assert_int_equal(tarn_tokenizer_eos(a), tarn_tokenizer_eos(b));
    for (int i = 0; i < 300; i++) {
        int64_t count, other;
        size_t length = random_text(text, sizeof(text), &random);
        const tarn_encode_options options = {.add_special = true, .special_as_text = i % 2};
        int32_t *ids = tarn_tokenizer_encode(a, text, length, &options, &count),
                *again = tarn_tokenizer_encode(b, text, length, &options, &other);
        assert_ok();
        assert_int_equal(count, other);
        assert_true(count == 0 || memcmp(ids, again, (size_t)count * sizeof(*ids)) == 0);
        tarn_tokenizer_release(ids);
        tarn_tokenizer_release(again);
    }
}

static const tarn__gguf_model any = {0, -1, -1, false};

/* Writes a tokenizer alone into a file, and opens it. Takes the tokenizer. */
static void there_and_back(tarn_tokenizer *t, int64_t rows)
{
    assert_ok();
    const char *path = scratch("tokenizer.gguf");
    tarn_gguf_writer *writer = tarn_gguf_create(path);
    assert_true(tarn__tokenizer_to_gguf("test", t, &(tarn__gguf_model){rows, -1, -1, false}, writer));
    assert_true(tarn_gguf_finish(writer));
    tarn_tokenizer *again = tarn_tokenizer_open(path);
    assert_ok();
    assert_int_equal(tarn_tokenizer_count(again), rows ? rows : tarn_tokenizer_count(t));
    assert_string_equal(tarn_tokenizer_kind(again), tarn_tokenizer_kind(t));
    expect_same(t, again);
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
}

static tarn_tokenizer *open_model(const small_model_options *options)
{
    char model[8192];
    return tarn_tokenizer_open(write_file("small.model", model, small_model(model, options)));
}

/* A BPE as files of GPT-2, Llama 3, Qwen2 and SmolLM have it. */
static tarn_tokenizer *open_bpe(const char *steps, const char *settings)
{
    char *one = replaced(small_tokenizer_text(), "\"lstrip\": true, \"rstrip\": true", "\"lstrip\": false");
    char *two = steps ? replaced(one, "\"pre_tokenizer\": {", steps) : replaced(one, "", "");
    char *three = replaced(two, "\"type\": \"BPE\"", settings);
    tarn_tokenizer *t = tarn_tokenizer_open(write_text("bpe.json", three));
    free(one);
    free(two);
    free(three);
    assert_ok();
    return t;
}

#define SPLIT(pattern) \
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": " \
    "\"" pattern "\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, " \
    "\"use_regex\": false}]}, \"x\": {"
#define TAIL "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"

static void tokenizers_come_back(void **state)
{
    (void)state;
    there_and_back(open_model(&(small_model_options){0}), 0);
    there_and_back(open_model(&(small_model_options){.no_prefix = true}), 300);
    there_and_back(open_model(&(small_model_options){.squeezes = true}), 0);
    there_and_back(open_model(&(small_model_options){.type = 1}), 300);
    there_and_back(open_model(&(small_model_options){.type = 1, .squeezes = true, .more = "hell", .more_type = 4}), 0);
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        return;
    there_and_back(open_bpe(NULL, "\"type\": \"BPE\""), 512);
    there_and_back(tarn_tokenizer_open(write_text("unigram.json", small_pipeline_text(0))), 0);
    there_and_back(tarn_tokenizer_open(write_text("wordpiece.json", small_pipeline_text(1))), 0);
    there_and_back(open_bpe(SPLIT(HEAD "\\\\p{N}{1,3}" TAIL), "\"type\": \"BPE\", \"ignore_merges\": true"), 0);
    there_and_back(open_bpe("\"normalizer\": {\"type\": \"NFC\"}, " SPLIT(HEAD "\\\\p{N}" TAIL), "\"type\": \"BPE\""),
                   0);
}

/* SentencePiece's BPE by merges gets scores that give the same ids. */
static void merges_become_scores(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    size_t length;
    tarn_tokenizer *t = open_model(&(small_model_options){0});
    assert_true(tarn_tokenizer_save(t, scratch("saved")));
    tarn_tokenizer_free(t);
    char *text = get_file(scratch("saved/tokenizer.json"), &length), *plain = replaced(text, "\"tarn\":", "\"other\":");
    there_and_back(tarn_tokenizer_open(write_text("plain.json", plain)), 0);
    char *fewer = replaced(plain, "[\"ll\", \"o\"]", "[\"l\", \"l\"]"); /* "llo" is a piece that no merge makes */
    t = tarn_tokenizer_open(write_text("plain.json", fewer));
    tarn_gguf_writer *writer = tarn_gguf_create(scratch("never.gguf"));
    assert_ok();
    assert_false(tarn__tokenizer_to_gguf("test", t, &any, writer));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "test", "scores");
    tarn_gguf_cancel(writer);
    tarn_tokenizer_free(t);
    free(text);
    free(plain);
    free(fewer);
}

static void tokenizers_that_gguf_cannot_store_are_refused(void **state)
{
    (void)state;
    tarn_gguf_writer *writer = tarn_gguf_create(scratch("never.gguf"));
    tarn_tokenizer *t = tarn_tokenizer_bytes(), *small = open_model(&(small_model_options){0});
    assert_false(tarn__tokenizer_to_gguf("test", t, &any, writer));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "test", "bytes");
    assert_false(tarn__tokenizer_to_gguf("test", small, &(tarn__gguf_model){100, -1, -1, false}, writer));
    assert_error_about(TARN_ERROR_ARGUMENT, "100 rows", "275 tokens");
    tarn_tokenizer_free(small);
    small = open_model(&(small_model_options){.no_bytes = true});
    assert_false(tarn__tokenizer_to_gguf("test", small, &any, writer));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "test", "byte pieces");
    tarn_tokenizer_free(small);
    tarn_tokenizer_free(t);
    if (TARN__HAVE_PCRE2 && TARN__HAVE_JANSSON) {
        t = tarn_tokenizer_open(write_text("bpe.json", small_tokenizer_text()));
        assert_false(tarn__tokenizer_to_gguf("test", t, &any, writer));
        assert_error_about(TARN_ERROR_UNSUPPORTED, "test", "lstrip");
        tarn_tokenizer_free(t);
        t = open_bpe(SPLIT("a+"), "\"type\": \"BPE\"");
        assert_false(tarn__tokenizer_to_gguf("test", t, &any, writer));
        assert_error_about(TARN_ERROR_UNSUPPORTED, "test", "this pre-tokenizer");
        tarn_tokenizer_free(t);
    }
    tarn_gguf_cancel(writer);
}

/* ---- files that are wrong ---------------------------------------------------------------------------------------- */

static const char *const tokens[] = {"a", "b", "ab", "<e>"};

/* A file with a BPE of four tokens, but for what is changed: NULL leaves a key out. */
static const char *write_bpe(const char *model, const char *pre, const char *merge, int32_t type, uint32_t end)
{
    const char *path = scratch("wrong.gguf");
    tarn_gguf_writer *w = tarn_gguf_create(path);
    const int32_t types[] = {1, 1, 1, type};
    assert_true(!model || tarn_gguf_add_string(w, "tokenizer.ggml.model", model, strlen(model)));
    assert_true(!pre || tarn_gguf_add_string(w, "tokenizer.ggml.pre", pre, strlen(pre)));
    assert_true(tarn_gguf_add_strings(w, "tokenizer.ggml.tokens", tokens, NULL, 4));
    assert_true(tarn_gguf_add_array(w, "tokenizer.ggml.token_type", TARN_GGUF_I32, types, 4));
    assert_true(!merge || tarn_gguf_add_strings(w, "tokenizer.ggml.merges", &merge, NULL, 1));
    assert_true(tarn_gguf_add_value(w, "tokenizer.ggml.eos_token_id", TARN_GGUF_U32, &end));
    assert_true(tarn_gguf_finish(w));
    return path;
}

static void expect_refused(const char *path, tarn_code code, const char *problem)
{
    tarn_tokenizer *t = tarn_tokenizer_open(path);
    if (t)
        fail_msg("a file was taken that has: %s", problem);
    if (tarn_error_code() != code || !strstr(tarn_error(), problem) || !strstr(tarn_error(), path))
        fail_msg("%s (%s), not '%s'", tarn_error(), tarn_code_name(tarn_error_code()), problem);
    tarn_clear_error();
}

static void wrong_files_are_refused_by_name(void **state)
{
    (void)state;
    int64_t count;
    expect_refused(write_bpe(NULL, "gpt-2", "a b", 3, 3), TARN_ERROR_FORMAT, "tokenizer.ggml.model");
    expect_refused(write_bpe("none", NULL, NULL, 3, 3), TARN_ERROR_FORMAT, "a model without a tokenizer");
    expect_refused(write_bpe("rwkv", "gpt-2", "a b", 3, 3), TARN_ERROR_UNSUPPORTED, "'rwkv'");
    expect_refused(write_bpe("llama", NULL, NULL, 3, 3), TARN_ERROR_FORMAT, "tokenizer.ggml.scores");
    expect_refused(write_bpe("gpt2", NULL, "a b", 3, 3), TARN_ERROR_UNSUPPORTED, "tokenizer.ggml.pre is '(none)'");
    expect_refused(write_bpe("gpt2", "default", "a b", 3, 3), TARN_ERROR_UNSUPPORTED,
                   "tokenizer.ggml.pre is 'default'; supported are gpt-2, olmo, llama-bpe, dbrx, qwen2");
    if (!TARN__HAVE_PCRE2)
        return;
    expect_refused(write_bpe("gpt2", "gpt-2", NULL, 3, 3), TARN_ERROR_FORMAT, "tokenizer.ggml.merges");
    expect_refused(write_bpe("gpt2", "gpt-2", "ab", 3, 3), TARN_ERROR_FORMAT, "merge 1");
    expect_refused(write_bpe("gpt2", "gpt-2", "b a", 3, 3), TARN_ERROR_FORMAT, "their merge");
    expect_refused(write_bpe("gpt2", "gpt-2", "a b", 77, 3), TARN_ERROR_FORMAT, "token 3");
    expect_refused(write_bpe("gpt2", "gpt-2", "a b", 3, 4), TARN_ERROR_FORMAT, "eos_token_id");
    tarn_tokenizer *t = tarn_tokenizer_open(write_bpe("gpt2", "gpt-2", "a b", 3, 3));
    assert_ok();
    int32_t *ids = tarn_tokenizer_encode(t, "ab<e>", 5, NULL, &count);
    assert_int_equal(count, 2);
    assert_true(ids[0] == 2 && ids[1] == 3);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(tokenizers_come_back), in_scope(merges_become_scores),
                                       in_scope(tokenizers_that_gguf_cannot_store_are_refused),
                                       in_scope(wrong_files_are_refused_by_name)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

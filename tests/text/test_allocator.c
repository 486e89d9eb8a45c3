/* test_allocator.c: out of memory at every allocation in turn, in every function of text.h: an error of the right kind,
 * no leak, no partial file. */
#include <pthread.h>
#include <tarn/grammar.h>
#include <unistd.h>

#include "base/memory.h"
#include "support/files.h"
#include "support/small_model.h"
#include "tarn_features.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t calls, fail_at = -1, failed;

static void *count_alloc(size_t size, size_t alignment, void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    bool fails = calls++ == fail_at;
    failed += fails;
    pthread_mutex_unlock(&lock);
    void *memory = NULL;
    return !fails && posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) == 0
               ? memory
               : NULL;
}

static void count_release(void *memory, size_t size, void *ctx)
{
    (void)size, (void)ctx;
    free(memory);
}

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":5,\"content\":\"<e>\",\"special\":true,\"normalized\":false,\"lstrip\":true}],"
    "\"normalizer\":{\"type\":"
    "\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"
    "ab\":4},\"merges\":[\"a b\",\"\xC4\xA0 ab\"]}}";

static char path[512], model[512], lines[512], folder[512], saved[512];

static void open_and_encode(void)
{
    int64_t count;
    size_t length;
    char text[200];
    memset(text, 'a', sizeof(text)); /* a long word */
    tarn_tokenizer *t = tarn_tokenizer_open(path);
    tarn_tokenizer_release(tarn_tokenizer_encode(t, text, sizeof(text), NULL, &count));
    int32_t *ids = tarn_tokenizer_encode(t, "ab ab<e>ab", 10, NULL, &count);
    tarn_tokenizer_release(tarn_tokenizer_decode(t, ids, count, &length));
    tarn_tokenizer_release(ids);
    tarn_tokenizer_free(t);
}

static void compile_and_match(void)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3},"
                                 "\"b\":{\"type\":\"string\",\"pattern\":\"^x\",\"maxLength\":4}},\"required\":[\"a\"],"
                                 "\"additionalProperties\":{\"oneOf\":[{\"type\":\"null\"},{\"enum\":[1]}]}}";
    uint32_t mask[8];
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *g = tarn_grammar_json_schema(v, schema, sizeof(schema) - 1);
    tarn_matcher *m = tarn_matcher_new(g), *copy = tarn_matcher_clone(m);
    tarn_grammar *other = tarn_grammar_gbnf(v, "root ::= (\"a\" | [b-z]+ root){1,9}", 33);
    (void)(tarn_matcher_accept_bytes(m, "{\"a\":", 5) && tarn_matcher_mask(m, mask, 8));
    tarn_grammar_free(other);
    tarn_matcher_free(copy);
    tarn_matcher_free(m);
    tarn_grammar_free(g);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

static void open_model_and_encode(void)
{
    int64_t count;
    size_t length;
    tarn_tokenizer *t = tarn_tokenizer_open(model);
    int32_t *ids =
        tarn_tokenizer_encode(t, "hello w<s>\xE6\x97 aaa", 16, &(tarn_encode_options){.add_special = true}, &count);
    tarn_tokenizer_release(tarn_tokenizer_decode(t, ids, count, &length));
    tarn_text_stream *stream = tarn_text_stream_new(t, NULL);
    for (int64_t i = 0; i < count; i++)
        tarn_text_stream_push(stream, ids[i], &length);
    tarn_text_stream_end(stream, &length);
    tarn_text_stream_free(stream);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_save(t, saved);
    tarn_tokenizer_free(t);
}

static void train(void)
{
    const char *text = "the theatre there<|endoftext|>then";
    tarn_tokenizer_free(tarn_bpe_train(&text, &(size_t){strlen(text)}, 1, 262, NULL));
}

static void make_and_save(void)
{
    tarn_tokenizer *t = tarn_tokenizer_characters("abc", 3);
    tarn_tokenizer_save(t, saved);
    tarn_tokenizer_free(t);
}

static void learn_from_lines(void)
{
    const char *input = lines;
    tarn_tokenizer_free(tarn_tokenizer_characters_files(&input, 1, "text", true));
    tarn_tokenizer_free(tarn_bpe_train_files(&input, 1, 258, &(tarn_bpe_options){.json_lines = true}));
}

static void prepare(void)
{
    const char *input = lines;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    if (tarn_shards_prepare(&input, 1, t, folder, NULL,
                            &(tarn_shards_options){.json_lines = true, .val_fraction = 0.5})) {
        int32_t ids[2];
        tarn_tokens *tokens = tarn_tokens_open(folder, "valid");
        tarn_tokens_read(tokens, 0, 2, ids);
        tarn_tokens_close(tokens);
    }
    tarn_tokenizer_free(t);
    if (access(scratch("prepared/index.json"), F_OK) != 0 && failed) /* what failed has taken its files away again */
        assert_true(access(scratch("prepared/train-00000.bin"), F_OK) != 0 &&
                    access(scratch("prepared/valid-00000.bin"), F_OK) != 0);
    remove(scratch("prepared/index.json"));
    remove(scratch("prepared/train-00000.bin"));
    remove(scratch("prepared/valid-00000.bin"));
}

static void run_failing(void (*run)(void), int64_t step)
{
    for (int64_t n = 0, reached = 1; reached; n += step) {
        calls = failed = 0;
        fail_at = n;
        run();
        fail_at = -1;
        tarn_code code = tarn_error_code();
        reached = failed;
        if (code != (reached ? TARN_ERROR_MEMORY : TARN_OK))
            print_error("allocation %lld: %s\n", (long long)n, tarn_error());
        assert_true(code == (reached ? TARN_ERROR_MEMORY : TARN_OK));
        tarn_clear_error();
        assert_int_equal(tarn__memory_in_use(), 0);
        assert_true(reached || n > 4);
    }
}

static void every_allocation_fails_in_turn(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "%s", write_text("fuzz.json", tokenizer_json));
    char bytes_of[8192];
    snprintf(model, sizeof(model), "%s",
             write_file("small.model", bytes_of, small_model(bytes_of, &(small_model_options){0})));
    snprintf(lines, sizeof(lines), "%s", write_text("lines", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n"));
    snprintf(folder, sizeof(folder), "%s", scratch("prepared"));
    snprintf(saved, sizeof(saved), "%s", scratch("saved"));
    assert_true(tarn_set_allocator(&(tarn_allocator){count_alloc, count_release, NULL}));
    run_failing(make_and_save, 1);
    run_failing(open_model_and_encode, 1);
    run_failing(compile_and_match, 1);
    if (TARN__HAVE_PCRE2)
        run_failing(train, 1);
    if (TARN__HAVE_PCRE2 && TARN__HAVE_JANSSON) {
        run_failing(open_and_encode, 1);
        run_failing(learn_from_lines, 1);
    }
    if (TARN__HAVE_JANSSON)
        run_failing(prepare, 1);
    assert_true(tarn_set_allocator(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_in_turn)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_embeddings.c: /v1/embeddings: forms of inputs and answers, refusals, and decoding beside it. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"

enum { SIZE = 32 };

/* The embedding of tokens by the library. */
static void expected_of(const char *input, float *values)
{
    int32_t tokens[CONTEXT];
    int64_t count = (int64_t)strlen(input);
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (unsigned char)input[i];
    tarn_module *model = make_model();
    tarn_embedder *embedder = tarn_embedder_new(model, NULL);
    assert_true(tarn_embedder_begin(embedder, tokens, count));
    assert_int_equal(tarn_embedder_step(embedder), 0);
    assert_true(tarn_embedder_read(embedder, values, SIZE));
    tarn_embedder_free(embedder);
    tarn_module_free(model);
}

/* Numbers, or the little-endian bytes of them in base64. */
static void read_embedding(const json_t *root, size_t index, float *values)
{
    const json_t *entry = json_array_get(json_object_get(root, "data"), index),
                 *value = json_object_get(entry, "embedding");
    assert_int_equal(json_integer_value(json_object_get(entry, "index")), index);
    assert_string_equal(json_string_value(json_object_get(entry, "object")), "embedding");
    if (json_is_array(value)) {
        assert_int_equal(json_array_size(value), SIZE);
        for (size_t i = 0; i < SIZE; i++)
            values[i] = (float)json_number_value(json_array_get(value, i));
        return;
    }
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *encoded = json_string_value(value);
    unsigned char bytes[3 + 4 * SIZE];
    size_t length = json_string_length(value), count = 0;
    assert_int_equal(length, (4 * SIZE + 2) / 3 * 4);
    for (size_t i = 0; i < length; i += 4) {
        unsigned group = 0;
        for (size_t k = 0; k < 4; k++)
            group = group << 6 | (encoded[i + k] == '=' ? 0 : (unsigned)(strchr(digits, encoded[i + k]) - digits));
        bytes[count++] = group >> 16 & 255, bytes[count++] = group >> 8 & 255, bytes[count++] = group & 255;
    }
    assert_int_equal(encoded[length - 1] == '=', 4 * SIZE % 3 != 0);
    for (size_t i = 0; i < SIZE; i++) {
        unsigned word =
            bytes[4 * i] | bytes[4 * i + 1] << 8 | bytes[4 * i + 2] << 16 | (unsigned)bytes[4 * i + 3] << 24;
        memcpy(&values[i], &word, sizeof(word));
    }
}

static void expect_embeddings(const char *body, const char *const *texts, size_t count)
{
    json_t *root = post("/v1/embeddings", body, 200);
    assert_int_equal(json_array_size(json_object_get(root, "data")), count);
    assert_string_equal(member(root, "object"), "list");
    assert_string_equal(member(root, "model"), "bytes");
    size_t tokens = 0;
    for (size_t i = 0; i < count; i++) {
        float expected[SIZE], got[SIZE];
        expected_of(texts[i], expected);
        read_embedding(root, i, got);
        for (int k = 0; k < SIZE; k++)
            if (!(fabsf(got[k] - expected[k]) <= 1e-5f * (1 + fabsf(expected[k]))))
                fail_msg("%s: element %d of embedding %zu is %g, not %g", body, k, i, got[k], expected[k]);
        tokens += strlen(texts[i]);
    }
    const json_t *usage = json_object_get(root, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), tokens);
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), tokens);
    json_decref(root);
}

static void inputs_have_four_forms_and_answers_two(void **state)
{
    (void)state;
    static const char *const texts[] = {"Hi", "a longer text than that"};
    begin((tarn__api_options){.engine = {.prompt_tokens = 16}});
    expect_embeddings("{\"input\": \"Hi\"}", texts, 1);
    expect_embeddings("{\"input\": [72, 105], \"model\": \"bytes\", \"encoding_format\": \"float\"}", texts, 1);
    expect_embeddings("{\"input\": [\"Hi\", \"a longer text than that\"], \"user\": \"me\"}", texts, 2);
    expect_embeddings("{\"input\": [[72, 105]], \"encoding_format\": \"base64\", \"dimensions\": 32}", texts, 1);
    expect_embeddings("{\"input\": [\"Hi\", \"a longer text than that\"], \"encoding_format\": \"base64\"}", texts, 2);
    assert_int_equal(metric("embedding_tokens_total"), 2 + 2 + 25 + 2 + 25);
    end(1);
}

static void wrong_requests_are_refused_by_name(void **state)
{
    (void)state;
    static char body[16384];
    begin((tarn__api_options){0});
    expect_error("/v1/embeddings", "{}", 400, "input", "input must be a string");
    expect_error("/v1/embeddings", "{\"input\": []}", 400, "input", "input must be a string");
    expect_error("/v1/embeddings", "{\"input\": \"\"}", 400, "input", "text 0 is empty");
    expect_error("/v1/embeddings", "{\"input\": [\"a\", \"\"]}", 400, "input", "text 1 is empty");
    expect_error("/v1/embeddings", "{\"input\": [[]]}", 400, "input", "input[0] must be");
    expect_error("/v1/embeddings", "{\"input\": [[1], 2]}", 400, "input", "input[1] must be");
    expect_error("/v1/embeddings", "{\"input\": [258]}", 400, "input", "from 0 to 257");
    expect_error("/v1/embeddings", "{\"input\": [-1]}", 400, "input", "from 0 to 257");
    expect_error("/v1/embeddings", "{\"input\": \"a\", \"dimensions\": 16}", 400, "dimensions", "have 32");
    expect_error("/v1/embeddings", "{\"input\": \"a\", \"dimensions\": 0}", 400, "dimensions", "dimensions");
    expect_error("/v1/embeddings", "{\"input\": \"a\", \"encoding_format\": \"int8\"}", 400, "encoding_format",
                 "must be float or base64");
    expect_error("/v1/embeddings", "{\"input\": \"a\", \"temperature\": 1}", 400, "temperature", "temperature");
    expect_error("/v1/embeddings", "{\"input\": \"a\", \"model\": \"other\"}", 404, "model", "does not exist");
    snprintf(body, sizeof(body), "{\"input\": \"%0513d\"}", 0);
    json_t *root = post("/v1/embeddings", body, 400);
    assert_string_equal(member(json_object_get(root, "error"), "code"), "context_length_exceeded");
    json_decref(root);
    snprintf(body, sizeof(body), "{\"input\": \"%0512d\"}", 0); /* the whole context */
    json_decref(post("/v1/embeddings", body, 200));
    int length = snprintf(body, sizeof(body), "{\"input\": [\"a\"");
    for (int i = 0; i < TARN__API_INPUTS_MAX; i++)
        length += snprintf(body + length, sizeof(body) - (size_t)length, ",\"a\"");
    snprintf(body + length, sizeof(body) - (size_t)length, "]}");
    expect_error("/v1/embeddings", body, 400, "input", "at most 2048");
    end(1);
}

/* Many inputs of one request, and a stream that goes on between their chunks: tokens come before the answer. */
static void decoding_goes_on_beside_embeddings(void **state)
{
    (void)state;
    static char body[1 << 20]; /* takes far longer than the stream */
    int length = snprintf(body, sizeof(body), "{\"input\": [\"a\"");
    for (int i = 0; i < 2000; i++)
        length += snprintf(body + length, sizeof(body) - (size_t)length, ",\"%0500d\"", i);
    snprintf(body + length, sizeof(body) - (size_t)length, "]}");
    begin((tarn__api_options){.engine = {.prompt_tokens = 4}});
    int many = dial(), stream = dial();
    struct pollfd answer = {many, POLLIN, 0};
    say(many, "POST", "/v1/embeddings", "Content-Type: application/json\r\n", body);
    say(stream, "POST", "/v1/completions", "Content-Type: application/json\r\n",
        "{\"prompt\": \"Hi\", \"max_tokens\": 60, \"stream\": true, \"temperature\": 0, \"ignore_eos\": true}");
    assert_contains(hear(stream, "[DONE]"), "[DONE]");
    assert_int_equal(poll(&answer, 1, 0), 0); /* it is still computed */
    close(many);                              /* the client has gone: the rest is dropped */
    close(stream);
    for (int i = 0; i < 3000 && metric("requests_gone_total") < 1; i++)
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    static const char *const texts[] = {"Hi"};
    expect_embeddings("{\"input\": \"Hi\"}", texts, 1);
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_have_four_forms_and_answers_two),
        cmocka_unit_test(wrong_requests_are_refused_by_name),
        cmocka_unit_test(decoding_goes_on_beside_embeddings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("libevent or jansson is missing: the API is not built\n");
    return 0;
}

#endif

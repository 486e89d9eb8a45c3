/* test_api.c: the API over real sockets, on a random Llama whose tokens are bytes: the same tokens as tarn_generate(),
 * alone and among others; streams; structured output; every error; clients that go; keys, origins and the drain. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"
#include "support/files.h"

static tarn_module *own; /* a model with the weights of the served one, to compare with */
static tarn_tokenizer *own_tokenizer;

/* ---- the expected text ------------------------------------------------------------------------------------------- */

/* What tarn_generate() has for a prompt, in valid UTF-8. The caller frees it. */
static text generated(const char *prompt, const tarn_generate_options *options)
{
    int32_t tokens[CONTEXT], prompt_tokens[CONTEXT];
    int64_t length = (int64_t)strlen(prompt);
    size_t part;
    text result = {0};
    for (int64_t i = 0; i < length; i++)
        prompt_tokens[i] = (unsigned char)prompt[i];
    tarn_scope *scope = tarn_scope_open();
    int64_t count = tarn_generate(own, prompt_tokens, length, tokens, options);
    tarn_scope_close(scope);
    tarn_text_stream *stream = tarn_text_stream_new(own_tokenizer, NULL);
    for (int64_t i = 0; i < count; i++) {
        const char *piece = tarn_text_stream_push(stream, tokens[i], &part);
        assert_ok();
        add(&result, piece, part);
    }
    const char *rest = tarn_text_stream_end(stream, &part);
    add(&result, rest, part);
    tarn_text_stream_free(stream);
    return result;
}

/* The member is that text, which is freed. */
static void expect_text(json_t *object, const char *name, text expected)
{
    json_t *value = json_object_get(object, name);
    assert_int_equal(json_string_length(value), expected.length);
    assert_memory_equal(json_string_value(value), expected.bytes, expected.length);
    free(expected.bytes);
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

static void routes_describe_the_server(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *models = body_of(ask("GET", "/v1/models", "", ""), 200);
    assert_string_equal(member(json_array_get(json_object_get(models, "data"), 0), "id"), "bytes");
    json_t *one = body_of(ask("GET", "/v1/models/bytes", "", ""), 200);
    assert_string_equal(member(one, "object"), "model");
    json_t *other = body_of(ask("GET", "/v1/models/other", "", ""), 404);
    assert_string_equal(member(json_object_get(other, "error"), "code"), "model_not_found");
    json_t *props = body_of(ask("GET", "/props", "", ""), 200);
    assert_int_equal(json_integer_value(json_object_get(props, "context")), CONTEXT);
    assert_int_equal(json_integer_value(json_object_get(props, "vocab_size")), VOCAB);
    json_t *slots = body_of(ask("GET", "/slots", "", ""), 200);
    assert_int_equal(json_array_size(slots), 0);
    const char *metrics = ask("GET", "/metrics", "", "");
    assert_contains(metrics, "# TYPE tarn_new_tokens_total counter\ntarn_new_tokens_total 0\n");
    assert_contains(metrics, "\ntarn_prefix_pages_in_total 0\n");
    assert_contains(ask("HEAD", "/health", "", ""), "200 OK");
    json_decref(models), json_decref(one), json_decref(other), json_decref(props), json_decref(slots);
    end(1);
}

static void texts_become_tokens_and_back(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root = post("/tokenize", "{\"content\": \"hé<|im_end|>\"}", 200);
    char *dumped = json_dumps(root, JSON_COMPACT);
    assert_string_equal(dumped, "{\"tokens\":[104,195,169,257]}");
    free(dumped), json_decref(root);
    root = post("/tokenize", "{\"content\": \"<|im_end|>\", \"parse_special\": false}", 200);
    assert_int_equal(json_array_size(json_object_get(root, "tokens")), 10);
    json_decref(root);
    root = post("/detokenize", "{\"tokens\": [104, 195, 169, 255]}", 200);
    assert_string_equal(member(root, "content"), "hé\xEF\xBF\xBD");
    json_decref(root);
    root = post("/apply-template",
                "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                "\"Hi\"}]}]}",
                200);
    assert_contains(member(root, "prompt"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    json_decref(root);
    end(1);
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

static void a_completion_has_the_tokens_of_generate(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    const tarn_generate_options greedy = {.max_tokens = 40},
                                sampled = {.max_tokens = 40, .temperature = 0.9, .top_k = 50, .seed = 7};
    json_t *root = post("/v1/completions",
                        "{\"model\":\"bytes\",\"prompt\":\"Once\",\"max_tokens\":40,"
                        "\"temperature\":0}",
                        200);
    expect_text(first_choice(root), "text", generated("Once", &greedy));
    assert_string_equal(member(first_choice(root), "finish_reason"), "length");
    json_t *usage = json_object_get(root, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 4);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 40);
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 44);
    json_decref(root);
    root = post("/v1/completions",
                "{\"prompt\":[79,110,99,101],\"max_tokens\":40,\"temperature\":0.9,\"top_k\":50,"
                "\"seed\":7}",
                200);
    expect_text(first_choice(root), "text", generated("Once", &sampled));
    json_decref(root);
    end(1);
}

static void several_prompts_and_answers_keep_their_order(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root = post("/v1/completions",
                        "{\"prompt\":[\"Once\",\"Twice\"],\"n\":2,\"max_tokens\":12,"
                        "\"temperature\":0.8,\"seed\":3}",
                        200);
    json_t *choices = json_object_get(root, "choices");
    assert_int_equal(json_array_size(choices), 4);
    for (int i = 0; i < 4; i++) {
        const tarn_generate_options options = {.max_tokens = 12, .temperature = 0.8, .seed = (uint64_t)(3 + i % 2)};
        json_t *choice = json_array_get(choices, (size_t)i);
        assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
        expect_text(choice, "text", generated(i < 2 ? "Once" : "Twice", &options));
    }
    json_decref(root);
    end(1);
}

/* The prompt of the n-th client. */
static void describe(int i, char *prompt, size_t size, char *body, size_t body_size)
{
    snprintf(prompt, size, "Client %d asks%s", i, i % 3 ? " about the common beginning of its long prompt" : "");
    snprintf(body, body_size,
             "{\"prompt\":\"%s\",\"max_tokens\":%d,\"temperature\":%s,\"seed\":%d,\"stream\":%s,\"ignore_eos\":true}",
             prompt, 10 + i % 20, i % 2 ? "0.7" : "0", i, i % 4 < 2 ? "true" : "false");
}

static void requests_do_not_depend_on_each_other(void **state)
{
    enum { CLIENTS = 32 };
    (void)state;
    int sockets[CLIENTS];
    char prompt[128], body[512], reason[16];
    begin((tarn__api_options){.engine = {.sequences = 8}});
    for (int i = 0; i < CLIENTS; i++) {
        describe(i, prompt, sizeof(prompt), body, sizeof(body));
        sockets[i] = dial();
        say(sockets[i], "POST", "/v1/completions", "", body);
    }
    for (int i = 0; i < CLIENTS; i++) {
        describe(i, prompt, sizeof(prompt), body, sizeof(body));
        const tarn_generate_options options = {
            .max_tokens = 10 + i % 20, .temperature = i % 2 ? 0.7 : 0, .seed = (uint64_t)i, .ignore_eos = true};
        text expected = generated(prompt, &options);
        const char *heard = hear(sockets[i], NULL);
        close(sockets[i]);
        if (i % 4 < 2) {
            text streamed = joined(heard, false, reason);
            assert_int_equal(streamed.length, expected.length);
            assert_memory_equal(streamed.bytes, expected.bytes, expected.length);
            assert_string_equal(reason, "length");
            assert_contains(heard, "Content-Type: text/event-stream");
            free(streamed.bytes), free(expected.bytes);
        } else {
            json_t *root = body_of(heard, 200);
            expect_text(first_choice(root), "text", expected);
            json_decref(root);
        }
    }
    end(1);
}

static void a_chat_is_answered_whole_and_as_a_stream(void **state)
{
    (void)state;
    char reason[16];
    begin((tarn__api_options){0});
    const char *body = "{\"model\":\"bytes\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                       "\"temperature\":0,\"max_completion_tokens\":30";
    char request[512];
    snprintf(request, sizeof(request), "%s}", body);
    json_t *root = post("/v1/chat/completions", request, 200),
           *message = json_object_get(first_choice(root), "message");
    assert_string_equal(member(root, "object"), "chat.completion");
    assert_string_equal(member(message, "role"), "assistant");
    assert_true(json_string_length(json_object_get(message, "content")) > 0);
    snprintf(request, sizeof(request), "%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", body);
    const char *heard = ask("POST", "/v1/chat/completions", "", request);
    expect_text(message, "content", joined(heard, true, reason));
    assert_string_equal(reason, member(first_choice(root), "finish_reason"));
    assert_contains(heard, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    assert_contains(heard, "\"object\":\"chat.completion.chunk\"");
    assert_contains(heard, "\"choices\":[],\"usage\":{\"prompt_tokens\":");
    json_decref(root);
    end(1);
}

static void a_common_prefix_is_counted_as_cached(void **state)
{
    (void)state;
    char body[1024], prompt[301];
    begin((tarn__api_options){0});
    memset(prompt, 'x', sizeof(prompt) - 1);
    prompt[300] = 0;
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"max_tokens\":2}", prompt);
    for (int i = 0; i < 3; i++) {
        if (i == 2) /* pages of others are not used */
            snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"max_tokens\":2,\"cache_salt\":\"mine\"}", prompt);
        json_t *root = post("/v1/completions", body, 200);
        json_t *details = json_object_get(json_object_get(root, "usage"), "prompt_tokens_details");
        json_int_t cached = json_integer_value(json_object_get(details, "cached_tokens"));
        assert_int_equal(cached, i == 1 ? 256 : 0);
        json_decref(root);
    }
    end(1);
}

static void stop_strings_bias_and_logprobs_apply(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root = post("/v1/completions",
                        "{\"prompt\":\"Once\",\"max_tokens\":5,\"temperature\":0,"
                        "\"logit_bias\":{\"65\":100}}",
                        200);
    assert_string_equal(member(first_choice(root), "text"), "AAAAA");
    json_decref(root);
    root = post("/v1/completions",
                "{\"prompt\":\"Once\",\"max_tokens\":9,\"temperature\":0,\"logit_bias\":{\"65\":100},"
                "\"stop\":[\"zz\",\"AAA\"]}",
                200);
    assert_string_equal(member(first_choice(root), "text"), "");
    assert_string_equal(member(first_choice(root), "finish_reason"), "stop");
    json_decref(root);
    root = post("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":3,\"temperature\":0,\"logprobs\":2}", 200);
    json_t *logprobs = json_object_get(first_choice(root), "logprobs");
    assert_int_equal(json_array_size(json_object_get(logprobs, "token_logprobs")), 3);
    assert_true(json_real_value(json_array_get(json_object_get(logprobs, "token_logprobs"), 0)) < 0);
    json_decref(root);
    root = post("/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":3,"
                "\"logprobs\":true,\"top_logprobs\":4,\"temperature\":0}",
                200);
    json_t *content = json_object_get(json_object_get(first_choice(root), "logprobs"), "content");
    assert_int_equal(json_array_size(content), 3);
    json_t *top = json_object_get(json_array_get(content, 0), "top_logprobs");
    assert_int_equal(json_array_size(top), 4);
    assert_true(json_equal(json_object_get(json_array_get(top, 0), "logprob"),
                           json_object_get(json_array_get(content, 0), "logprob")));
    json_decref(root);
    end(1);
}

static void an_echo_has_the_prompt_and_its_logprobs(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    const tarn_generate_options greedy = {.max_tokens = 5};
    text expected = {0}, more = generated("Once", &greedy);
    add(&expected, "Once", 4);
    add(&expected, more.bytes, more.length);
    free(more.bytes);
    json_t *root = post("/v1/completions",
                        "{\"prompt\":\"Once\",\"echo\":true,\"max_tokens\":5,\"temperature\":0,\"logprobs\":1}", 200);
    json_t *logprobs = json_object_get(json_object_get(first_choice(root), "logprobs"), "token_logprobs");
    assert_int_equal(json_array_size(logprobs), 9);
    assert_true(json_is_null(json_array_get(logprobs, 0)));
    for (size_t i = 1; i < 9; i++)
        assert_true(json_real_value(json_array_get(logprobs, i)) < 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "usage"), "completion_tokens")), 5);
    expect_text(first_choice(root), "text", expected);
    json_t *only = post("/v1/completions", "{\"prompt\":\"Once\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1}", 200);
    json_t *of_prompt = json_object_get(json_object_get(first_choice(only), "logprobs"), "token_logprobs");
    assert_string_equal(member(first_choice(only), "text"), "Once");
    assert_int_equal(json_array_size(of_prompt), 4);
    for (size_t i = 0; i < 4; i++)
        assert_true(json_equal(json_array_get(of_prompt, i), json_array_get(logprobs, i)));
    json_decref(root), json_decref(only);
    char reason[16];
    text streamed = joined(
        ask("POST", "/v1/completions", "", "{\"prompt\":\"Once\",\"echo\":true,\"max_tokens\":2,\"stream\":true}"),
        false, reason);
    assert_true(streamed.length > 4);
    assert_memory_equal(streamed.bytes, "Once", 4);
    free(streamed.bytes);
    end(1);
}

static void grammars_constrain_the_answer(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root = post("/v1/completions",
                        "{\"prompt\":\"Once\",\"max_tokens\":20,\"seed\":1,"
                        "\"grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\"}",
                        200);
    const char *word = member(first_choice(root), "text");
    assert_true(strcmp(word, "yes") == 0 || strcmp(word, "no") == 0);
    assert_string_equal(member(first_choice(root), "finish_reason"), "stop");
    json_decref(root);
    root = post("/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"seed\":1,\"max_tokens\":60,"
                "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":"
                "\"object\",\"properties\":{\"on\":{\"type\":\"boolean\"}},\"required\":[\"on\"],"
                "\"additionalProperties\":false}}}}",
                200);
    json_t *value = json_loads(member(json_object_get(first_choice(root), "message"), "content"), 0, NULL);
    assert_true(json_is_boolean(json_object_get(value, "on")));
    json_decref(value);
    json_decref(root);
    expect_error("/v1/completions", "{\"prompt\":\"a\",\"grammar\":\"root ::= missing\"}", 400, "grammar", "missing");
    expect_error("/v1/completions",
                 "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\","
                 "\"json_schema\":{\"schema\":{\"type\":\"nonsense\"}}}}",
                 400, "response_format", "#/type");
    end(1);
}

static void calls_of_tools_are_found(void **state)
{
    (void)state;
    char request[1024], reason[16];
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":120,\"tools\":"
                       "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"obj"
                       "ect\"}}}],\"grammar\":\"root ::= \\\"Sure [1]. <tool_call>{\\\\\\\"name\\\\\\\": \\\\\\\"add"
                       "\\\\\\\", \\\\\\\"arguments\\\\\\\": {\\\\\\\"a\\\\\\\": 1}}</tool_call>\\\"\"";
    begin((tarn__api_options){0});
    snprintf(request, sizeof(request), "%s}", body);
    json_t *root = post("/v1/chat/completions", request, 200), *choice = first_choice(root),
           *message = json_object_get(choice, "message"),
           *call = json_array_get(json_object_get(message, "tool_calls"), 0),
           *function = json_object_get(call, "function");
    assert_string_equal(member(choice, "finish_reason"), "tool_calls");
    assert_string_equal(member(message, "content"), "Sure [1].");
    assert_string_equal(member(function, "name"), "add");
    assert_string_equal(member(function, "arguments"), "{\"a\": 1}");
    assert_int_equal(strlen(member(call, "id")), 9);
    json_decref(root);
    snprintf(request, sizeof(request), "%s,\"stream\":true}", body);
    const char *heard = ask("POST", "/v1/chat/completions", "", request);
    text streamed = joined(heard, true, reason);
    assert_string_equal(reason, "tool_calls");
    assert_int_equal(streamed.length, 9);
    assert_memory_equal(streamed.bytes, "Sure [1].", 9);
    free(streamed.bytes);
    assert_contains(heard, "\"delta\":{\"tool_calls\":[{\"id\":\"");
    assert_contains(heard, "\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}");
    snprintf(request, sizeof(request), "%s,\"tool_choice\":\"none\"}", body); /* then it is text */
    root = post("/v1/chat/completions", request, 200);
    assert_contains(member(json_object_get(first_choice(root), "message"), "content"), "<tool_call>");
    json_decref(root);
    root = post("/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                "\"content\":null,\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\","
                "\"function\":{\"name\":\"add\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
                "\"tool_call_id\":\"call00001\",\"content\":\"3\"}],\"max_tokens\":2}",
                200);
    json_decref(root);
    expect_error("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}", 400,
                 "tools", "tools");
    expect_error("/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\"}", 400,
                 "tool_choice", "required needs tools");
    end(1);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void wrong_bodies_are_refused_by_name(void **state)
{
    static const struct {
        const char *path, *body, *param, *text;
        int status;
    } cases[] = {
        {"/v1/completions", "", "", "not JSON", 400},
        {"/v1/completions", "{\"prompt\":", "", "not JSON", 400},
        {"/v1/completions", "[]", "", "must be a JSON object", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "not JSON", 400},
        {"/v1/completions", "{}", "prompt", "prompt must be", 400},
        {"/v1/completions", "{\"prompt\":[]}", "prompt", "prompt must be", 400},
        {"/v1/completions", "{\"prompt\":[1,258]}", "prompt", "token 1 must be", 400},
        {"/v1/completions", "{\"prompt\":[[]]}", "prompt", "prompt[0]", 400},
        {"/v1/completions", "{\"prompt\":{}}", "prompt", "prompt must be", 400},
        {"/v1/completions", "{\"prompt\":\"\"}", "prompt", "no BOS token", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"model\":\"gpt-4\"}", "model", "'bytes' is served", 404},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", "needs echo", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":\"3\"}", "max_tokens", "must be an integer", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":512}", "prompt", "context has 512 tokens", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":9}", "n", "from 1 to 8", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":-1}", "temperature", "from 0 to 100", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":0.00001}", "temperature", "0 (greedy)", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":1.5}", "top_p", "from 0 to 1", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", "stop", "none empty", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[1]}", "stop", "strings", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs", "from 0 to 20", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias", "token id", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"1\":101}}", "logit_bias", "from -100 to 100", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream\":1}", "stream", "true or false", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream_options\":{}}", "stream_options", "needs stream", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"echo\":1}", "echo", "true or false", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", "not supported", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":2}", "best_of", "not supported", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":2,\"best_of\":1}", "best_of", "not supported", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"messages\":[]}", "messages", "unknown field", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"wrong\":1}", "wrong", "unknown field", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_token\":1}", "max_token", "did you mean 'max_tokens'?", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"grammar\":\"root ::= [a]\",\"ignore_eos\":true}", "grammar",
         "exclude each other", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"response_format\":{\"type\":\"xml\"}}", "response_format",
         "must be text", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\",\"schema\":{}}}", "schema",
         "unknown field", 400},
        {"/v1/completions",
         "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"x\":1}}}",
         "x", "unknown field", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
         "\"name\":"
         "\"f\",\"strict\":true}}]}",
         "tools", "strict", 400},
        {"/v1/chat/completions", "{}", "messages", "array of 1", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"content\":\"a\"}]}", "messages", "a role", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":1}]}", "messages", "a string", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}", "messages",
         "'image_url' are not supported", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"web_search_options\":{}}",
         "web_search_options", "not supported", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}",
         "top_logprobs", "needs logprobs", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,\"max_completion_tokens\":2}",
         "max_tokens", "differ", 400},
        {"/tokenize", "{}", "content", "missing", 400},
        {"/detokenize", "{\"tokens\":[-1]}", "tokens", "tokens[0]", 400},
        {"/detokenize", "{\"tokens\":3}", "tokens", "array", 400},
        {"/apply-template", "{\"messages\":3}", "messages", "array", 400},
    };
    (void)state;
    begin((tarn__api_options){0});
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_error(cases[i].path, cases[i].body, cases[i].status, cases[i].param, cases[i].text);
    char nested[200], body[8192];
    memset(nested, '[', 100);
    nested[100] = 0;
    snprintf(body, sizeof(body), "{\"prompt\":%s", nested);
    expect_error("/v1/completions", body, 400, "", "nested deeper");
    memset(body, 'a', 600);
    memcpy(body, "{\"prompt\":\"", 11);
    snprintf(body + 600, 3, "\"}");
    json_t *root = post("/v1/completions", body, 400);
    assert_string_equal(member(json_object_get(root, "error"), "code"), "context_length_exceeded");
    json_decref(root);
    root = post("/v1/completions", "{\"prompt\":\"still here\",\"max_tokens\":1,\"user\":\"u\",\"suffix\":null}", 200);
    json_decref(root);
    end(1);
}

static void wrong_requests_have_their_status(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    assert_contains(ask("GET", "/v1/completions", "", ""), "405 Method Not Allowed");
    assert_contains(ask("POST", "/health", "", ""), "Allow: GET");
    assert_contains(ask("GET", "/v1/nothing", "", ""), "no such route: 'GET /v1/nothing'; GET /openapi.json lists all");
    assert_contains(ask("POST", "/v1/completions", "Content-Type: text/plain\r\n", "{}"),
                    "the Content-Type is 'text/plain'; it must be application/json");
    assert_contains(ask("POST", "/v1/completions", "", ""), "the body is not JSON: it is empty; it must be an object");
    expect_error("/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{\"id\":\"b\"}]}]}", 400,
                 "messages", "messages[0].tool_calls[0] must be an object with a function and its name");
    int s = dial();
    const char *big = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n";
    assert_int_equal(send(s, big, strlen(big), MSG_NOSIGNAL), (ssize_t)strlen(big));
    assert_contains(hear(s, NULL), "413 Content Too Large");
    close(s);
    s = dial();
    const char *rebound = "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_int_equal(send(s, rebound, strlen(rebound), MSG_NOSIGNAL), (ssize_t)strlen(rebound));
    assert_contains(hear(s, NULL), "403 Forbidden");
    close(s);
    end(1);
}

/* Two streams, one of which waits, and requests beside them. False: the first stream ended too early. */
static bool fill_queue(void)
{
    int held[2];
    begin((tarn__api_options){.engine = {.sequences = 1}, .queue = 1});
    for (int i = 0; i < 2; i++) {
        held[i] = dial();
        say(held[i], "POST", "/v1/chat/completions", "",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":true,\"ignore_eos\":true}");
        await(held[i], "assistant");
    }
    const char *heard = ask("POST", "/v1/completions", "", "{\"prompt\":\"a\",\"max_tokens\":1}");
    const char *more = ask("POST", "/v1/completions", "", "{\"prompt\":\"a\",\"max_tokens\":1,\"n\":3}");
    bool is_full = !has_ended(held[0]);
    if (is_full) {
        assert_contains(heard, "429 Too Many Requests");
        assert_contains(heard, "Retry-After: ");
        json_t *root = body_of(more, 429), *error = json_object_get(root, "error");
        assert_contains(member(error, "message"), "try again");
        assert_string_equal(member(error, "param"), "");
        assert_true(member(error, "type")[0] && json_object_get(error, "code"));
        json_decref(root);
        json_decref(post("/tokenize", "{\"content\":\"a\"}", 200)); /* needs no place */
    }
    close(held[0]), close(held[1]);
    end(1);
    return is_full;
}

static void a_full_queue_is_a_429(void **state)
{
    (void)state;
    int attempts = 0;
    while (attempts < 50 && !fill_queue())
        attempts++;
    assert_true(attempts < 50);
}

/* ---- clients and keys -------------------------------------------------------------------------------------------- */

static void a_client_that_goes_frees_its_sequence(void **state)
{
    (void)state;
    begin((tarn__api_options){.engine = {.sequences = 1}});
    int attempts = 0;
    for (int i = 0; i < 3 && attempts < 50; attempts++) {
        int s = dial();
        say(s, "POST", "/v1/chat/completions", "",
            i % 2 ? "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"ignore_eos\":true}"
                  : "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"ignore_eos\":true,\"stream\":true}");
        if (i % 2 == 0)
            await(s, "assistant");
        i += i % 2 || !has_ended(s); /* another one where this client was too slow to go */
        close(s);
    }
    json_t *root = post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", 200);
    json_decref(root);
    assert_int_equal(metric("requests_gone_total"), 3);
    for (int i = 0; i < 2000 && metric("sequences_running") + metric("sequences_waiting") > 0; i++)
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    assert_int_equal(metric("sequences_running") + metric("sequences_waiting"), 0);
    assert_true(metric("new_tokens_total") < attempts * CONTEXT);
    end(1);
}

static void keys_are_needed_where_given(void **state)
{
    (void)state;
    char error[256];
    tarn__api_keys keys = {0};
    const char *path = write_text("keys", "# of the test\nsk-first-key\n\nsk-second-key\r\n");
    assert_true(tarn__api_keys_read(&keys, path, error, sizeof(error)));
    assert_int_equal(keys.count, 2);
    begin((tarn__api_options){.keys = &keys});
    assert_contains(ask("GET", "/health", "", ""), "200 OK");
    assert_contains(ask("GET", "/v1/models", "", ""), "401 Unauthorized");
    assert_contains(ask("GET", "/v1/models", "Authorization: Bearer sk-first-kez\r\n", ""), "401 Unauthorized");
    assert_contains(ask("GET", "/v1/models", "Authorization: Bearer sk-first-key1\r\n", ""), "401 Unauthorized");
    assert_contains(ask("GET", "/v1/models", "Authorization: sk-first-key\r\n", ""), "401 Unauthorized");
    assert_contains(ask("GET", "/metrics", "", ""), "invalid_api_key");
    assert_contains(ask("GET", "/v1/models", "Authorization: Bearer sk-first-key\r\n", ""), "200 OK");
    assert_contains(ask("GET", "/v1/models", "Authorization: Bearer sk-second-key\r\n", ""), "200 OK");
    int s = dial(); /* without a key, no body is waited for */
    const char *head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n";
    assert_int_equal(send(s, head, strlen(head), MSG_NOSIGNAL), (ssize_t)strlen(head));
    assert_contains(hear(s, NULL), "401 Unauthorized");
    close(s);
    s = dial(); /* under another name, as a proxy may send it */
    const char *named = "GET /v1/models HTTP/1.1\r\nHost: models.example\r\nConnection: close\r\n"
                        "Authorization: Bearer sk-first-key\r\n\r\n";
    assert_int_equal(send(s, named, strlen(named), MSG_NOSIGNAL), (ssize_t)strlen(named));
    assert_contains(hear(s, NULL), "200 OK");
    close(s);
    end(1);
    tarn__api_keys_free(&keys);
    assert_false(tarn__api_keys_read(&keys, write_text("none", "# nothing\n"), error, sizeof(error)));
    assert_contains(error, "has no key");
    assert_false(tarn__api_keys_read(&keys, write_text("short", "abc\n"), error, sizeof(error)));
    assert_contains(error, "line 1");
    assert_false(tarn__api_keys_read(&keys, write_text("space", "long enough key\n"), error, sizeof(error)));
    assert_false(tarn__api_keys_read(&keys, scratch("missing"), error, sizeof(error)));
    FILE *file = fopen(scratch("zero"), "wb");
    fwrite("sk-first-key\0more\n", 1, 18, file);
    fclose(file);
    assert_false(tarn__api_keys_read(&keys, scratch("zero"), error, sizeof(error)));
    assert_contains(error, "0 byte");
}

static void a_name_that_json_cannot_have_is_refused(void **state)
{
    (void)state;
    char error[256];
    static const char *const names[] = {"good", "\xff"};
    tarn__api_options options = {.http = tarn__http_options_default(), .names = names, .name_count = 2, .load = load};
    assert_null(tarn__api_new(&options, error, sizeof(error)));
    assert_contains(error, "not UTF-8");
}

static void pages_need_an_allowed_origin(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://good.example"};
    begin((tarn__api_options){.origins = origins, .origin_count = 1});
    assert_contains(ask("GET", "/v1/models", "Origin: https://evil.example\r\n", ""), "403 Forbidden");
    const char *heard = ask("GET", "/v1/models", "Origin: https://good.example\r\n", "");
    assert_contains(heard, "Access-Control-Allow-Origin: https://good.example");
    heard = ask("OPTIONS", "/v1/chat/completions",
                "Origin: https://good.example\r\nAccess-Control-Request-Method: POST\r\n", "");
    assert_contains(heard, "204 No Content");
    assert_contains(heard, "Access-Control-Allow-Headers: Authorization, Content-Type, *\r\n");
    assert_null(strstr(ask("GET", "/v1/models", "", ""), "Access-Control"));
    end(1);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static void a_server_that_loads_says_so(void **state)
{
    (void)state;
    load_is_held = true;
    begin((tarn__api_options){0});
    const char *heard = ask("GET", "/health", "", "");
    assert_contains(heard, "503 Service Unavailable");
    assert_contains(heard, "Retry-After: ");
    assert_contains(ask("POST", "/v1/completions", "", "{\"prompt\":\"a\"}"), "being loaded");
    load_is_held = false;
    for (int i = 0; i < 3000 && !strstr(ask("GET", "/health", "", ""), "200 OK"); i++)
        nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
    assert_contains(ask("GET", "/health", "", ""), "200 OK");
    end(1);
    load_fails = true;
    begin((tarn__api_options){0});
    pthread_join(thread, NULL);
    assert_true(has_failed);
    assert_string_equal(failure, "there is no such model");
    tarn__api_free(api);
    load_fails = false;
}

static void a_stop_lets_open_requests_finish(void **state)
{
    (void)state;
    char reason[16];
    int seconds = 20;
    begin((tarn__api_options){0});
    int s = dial();
    say(s, "POST", "/v1/chat/completions", "",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":true,\"ignore_eos\":true,"
        "\"max_tokens\":300}");
    await(s, "assistant");
    assert_true(tarn__http_server_post(tarn__api_server(api), stop, &seconds));
    text streamed = joined(hear(s, NULL), true, reason);
    assert_true(streamed.length >= 250);
    assert_string_equal(reason, "length");
    free(streamed.bytes);
    close(s);
    pthread_join(thread, NULL);
    tarn__api_free(api);
    /* and one that does not wait: the client sees the end, nothing is left behind */
    begin((tarn__api_options){0});
    s = dial();
    say(s, "POST", "/v1/chat/completions", "",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":true,\"ignore_eos\":true}");
    hear(s, "assistant");
    end(0);
    close(s);
}

static int open_own(void **state)
{
    own = make_model();
    own_tokenizer = make_tokenizer();
    assert_ok();
    return make_scratch(state);
}

static int close_own(void **state)
{
    tarn_module_free(own);
    tarn_tokenizer_free(own_tokenizer);
    return remove_scratch(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_describe_the_server),
        cmocka_unit_test(texts_become_tokens_and_back),
        cmocka_unit_test(a_completion_has_the_tokens_of_generate),
        cmocka_unit_test(several_prompts_and_answers_keep_their_order),
        cmocka_unit_test(requests_do_not_depend_on_each_other),
        cmocka_unit_test(a_chat_is_answered_whole_and_as_a_stream),
        cmocka_unit_test(a_common_prefix_is_counted_as_cached),
        cmocka_unit_test(stop_strings_bias_and_logprobs_apply),
        cmocka_unit_test(an_echo_has_the_prompt_and_its_logprobs),
        cmocka_unit_test(grammars_constrain_the_answer),
        cmocka_unit_test(calls_of_tools_are_found),
        cmocka_unit_test(wrong_bodies_are_refused_by_name),
        cmocka_unit_test(wrong_requests_have_their_status),
        cmocka_unit_test(a_full_queue_is_a_429),
        cmocka_unit_test(a_client_that_goes_frees_its_sequence),
        cmocka_unit_test(keys_are_needed_where_given),
        cmocka_unit_test(a_name_that_json_cannot_have_is_refused),
        cmocka_unit_test(pages_need_an_allowed_origin),
        cmocka_unit_test(a_server_that_loads_says_so),
        cmocka_unit_test(a_stop_lets_open_requests_finish),
    };
    return cmocka_run_group_tests(tests, open_own, close_own);
}

#else

int main(void)
{
    printf("libevent or jansson is missing: the API is not built\n");
    return 0;
}

#endif

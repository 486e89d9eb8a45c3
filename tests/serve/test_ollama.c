/* test_ollama.c: Ollama's routes: the tokens of the OpenAI side with the same options, its lines and counts, its
 * defaults, and what is refused by name. */
#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api/api_private.h"
#include "serve/api_server.h"

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"
#define GREEDY "\"options\":{\"temperature\":0,\"repeat_penalty\":1,\"num_predict\":12}"
#define CALL "{\"name\":\"add\",\"arguments\":{\"a\":1}}"

static int open_server(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    end(5);
    return 0;
}

/* The text of an answer of OpenAI's. */
static char *their_text(const char *path, const char *body)
{
    json_t *root = post(path, body, 200), *choice = first_choice(root);
    json_t *message = json_object_get(choice, "message");
    char *found = strdup(member(message ? message : choice, message ? "content" : "text"));
    json_decref(root);
    return found;
}

/* Must be refused with that status, in Ollama's form, with that text. */
static void expect_refusal(const char *path, const char *body, int status, const char *reason)
{
    json_t *root = post(path, body, status);
    if (!strstr(member(root, "error"), reason))
        fail_msg("'%s' is not in: %s", reason, member(root, "error"));
    assert_int_equal(json_object_size(root), 1);
    json_decref(root);
}

/* The texts of a stream's lines, joined; the last line is done and is given back. */
static json_t *read_lines(const char *heard, bool is_chat, char *joint, size_t size)
{
    json_t *last = NULL;
    joint[0] = 0;
    assert_contains(heard, "Content-Type: application/x-ndjson");
    for (const char *at = heard; (at = strstr(at, "{\"model\"")) != NULL; at++) {
        json_t *line = json_loadb(at, strcspn(at, "\n"), JSON_ALLOW_NUL, NULL);
        assert_non_null(line);
        json_t *owner = is_chat ? json_object_get(line, "message") : line;
        strncat(joint, member(owner, is_chat ? "content" : "response"), size - strlen(joint) - 1);
        if (last)
            assert_true(json_is_false(json_object_get(last, "done")));
        json_decref(last);
        last = line;
    }
    assert_non_null(last);
    assert_true(json_is_true(json_object_get(last, "done")));
    return last;
}

static void a_chat_has_the_tokens_and_counts_of_openai(void **state)
{
    char streamed[4096];
    (void)state;
    char *expected = their_text("/v1/chat/completions", "{" HELLO ",\"temperature\":0,\"max_tokens\":12}");
    json_t *root = post("/api/chat", "{\"model\":\"bytes\",\"stream\":false," HELLO "," GREEDY "}", 200);
    assert_string_equal(member(json_object_get(root, "message"), "content"), expected);
    assert_string_equal(member(json_object_get(root, "message"), "role"), "assistant");
    assert_string_equal(member(root, "done_reason"), "length");
    assert_int_equal(json_integer_value(json_object_get(root, "eval_count")), 12);
    assert_true(json_integer_value(json_object_get(root, "prompt_eval_count")) > 5);
    json_int_t total = json_integer_value(json_object_get(root, "total_duration"));
    json_int_t prompt = json_integer_value(json_object_get(root, "prompt_eval_duration"));
    json_int_t tokens = json_integer_value(json_object_get(root, "eval_duration"));
    assert_true(prompt > 1000 && tokens > 1000 && total >= prompt + tokens && total < 60 * (json_int_t)1e9);
    assert_true(strlen(member(root, "created_at")) == 27 && member(root, "created_at")[26] == 'Z');
    json_decref(root);
    const char *heard = ask("POST", "/api/chat", "", "{\"model\":\"bytes:latest\"," HELLO "," GREEDY "}");
    json_t *last = read_lines(heard, true, streamed, sizeof(streamed)); /* a stream by default */
    assert_string_equal(streamed, expected);
    assert_int_equal(json_integer_value(json_object_get(last, "eval_count")), 12);
    json_decref(last);
    free(expected);
}

static void a_prompt_is_a_message_unless_it_is_raw(void **state)
{
    char streamed[4096];
    (void)state;
    char *message = their_text("/v1/chat/completions", "{" HELLO ",\"temperature\":0,\"max_tokens\":12}");
    char *raw = their_text("/v1/completions", "{\"prompt\":\"Hello\",\"temperature\":0,\"max_tokens\":12}");
    char *system = their_text("/v1/chat/completions",
                              "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief\"},"
                              "{\"role\":\"user\",\"content\":\"Hello\"}],\"temperature\":0,\"max_tokens\":12}");
    json_t *root = post("/api/generate", "{\"model\":\"bytes\",\"stream\":false,\"prompt\":\"Hello\"," GREEDY "}", 200);
    assert_string_equal(member(root, "response"), message);
    assert_null(json_object_get(root, "message"));
    json_decref(root);
    root = post("/api/generate", "{\"model\":\"bytes\",\"stream\":false,\"prompt\":\"Hello\",\"raw\":true," GREEDY "}",
                200);
    assert_string_equal(member(root, "response"), raw);
    json_decref(root);
    root = post("/api/generate",
                "{\"model\":\"bytes\",\"stream\":false,\"prompt\":\"Hello\",\"system\":\"Be brief\"," GREEDY "}", 200);
    assert_string_equal(member(root, "response"), system);
    json_decref(root);
    const char *heard = ask("POST", "/api/generate", "", "{\"model\":\"bytes\",\"prompt\":\"Hello\"," GREEDY "}");
    json_decref(read_lines(heard, false, streamed, sizeof(streamed)));
    assert_string_equal(streamed, message);
    free(message), free(raw), free(system);
}

/* Ollama's defaults: temperature 0.8, top_k 40, top_p 0.9, repeat_penalty 1.1 over 64 tokens. */
static void options_without_a_value_are_ollamas(void **state)
{
    (void)state;
    char *expected = their_text("/v1/completions", "{\"prompt\":\"Hello\",\"max_tokens\":30,\"seed\":7,"
                                                   "\"temperature\":0.8,\"top_k\":40,\"top_p\":0.9,"
                                                   "\"repeat_penalty\":1.1,\"repeat_last_n\":64}");
    json_t *root = post("/api/generate",
                        "{\"model\":\"bytes\",\"stream\":false,\"prompt\":\"Hello\",\"raw\":true,"
                        "\"options\":{\"seed\":7,\"num_predict\":30,\"num_thread\":4,\"num_ctx\":256}}",
                        200);
    assert_string_equal(member(root, "response"), expected);
    json_decref(root);
    free(expected);
    /* without num_predict up to the end of the context */
    root = post("/api/generate", "{\"model\":\"bytes\",\"stream\":false,\"prompt\":\"Hello\",\"raw\":true}", 200);
    assert_string_equal(member(root, "done_reason"), "length");
    assert_int_equal(json_integer_value(json_object_get(root, "eval_count")), CONTEXT - 5);
    json_decref(root);
}

static void formats_and_calls_come_as_objects(void **state)
{
    char streamed[4096];
    (void)state;
    json_t *root =
        post("/api/chat", "{\"model\":\"bytes\",\"stream\":false," HELLO ",\"format\":{\"enum\":[\"yes\"]}}", 200);
    assert_string_equal(member(json_object_get(root, "message"), "content"), "\"yes\"");
    assert_string_equal(member(root, "done_reason"), "stop");
    json_decref(root);
    static const char tools[] =
        "\"format\":{\"const\":" CALL "},\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}}]}";
    char body[1024];
    snprintf(body, sizeof(body), "{\"model\":\"bytes\",\"stream\":false," HELLO ",%s", tools);
    root = post("/api/chat", body, 200);
    json_t *calls = json_object_get(json_object_get(root, "message"), "tool_calls");
    json_t *function = json_object_get(json_array_get(calls, 0), "function");
    assert_string_equal(member(function, "name"), "add");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(function, "arguments"), "a")), 1);
    json_decref(root);
    snprintf(body, sizeof(body), "{\"model\":\"bytes\"," HELLO ",%s", tools);
    const char *heard = ask("POST", "/api/chat", "", body);
    assert_contains(heard, "\"tool_calls\":[{\"function\":{\"name\":\"add\",\"arguments\":{\"a\":1}}}]");
    json_decref(read_lines(heard, true, streamed, sizeof(streamed)));
}

static void thinking_stands_next_to_the_text(void **state)
{
    static char answer[] = "So", thought[] = "a plan";
    const tarn__api_model model = {.name = "m"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        tarn__api_prompt prompt = {0};
        tarn__api_choice choice = {.text = answer, .length = 2, .reasoning = {.text = thought, .end = 6}};
        tarn__api_job job = {.route = TARN__API_CHAT,
                             .ollama = i ? TARN__OLLAMA_GENERATE : TARN__OLLAMA_CHAT,
                             .choices = &choice,
                             .choice_count = 1,
                             .prompts = &prompt};
        char *whole = tarn__api_whole(&job, &model), *part = tarn__api_reasoning_chunk(&job, &model, &choice, "a p", 3);
        json_t *root = json_loads(whole, 0, NULL), *line = json_loads(part, 0, NULL);
        assert_string_equal(member(i ? root : json_object_get(root, "message"), "thinking"), "a plan");
        assert_string_equal(member(i ? root : json_object_get(root, "message"), i ? "response" : "content"), "So");
        assert_string_equal(member(i ? line : json_object_get(line, "message"), "thinking"), "a p");
        json_decref(root), json_decref(line);
        free(whole), free(part);
    }
}

static void the_model_is_listed_and_shown(void **state)
{
    (void)state;
    json_t *root = body_of(ask("GET", "/api/tags", "", ""), 200);
    assert_string_equal(member(json_array_get(json_object_get(root, "models"), 0), "name"), "bytes");
    json_decref(root);
    root = body_of(ask("GET", "/api/ps", "", ""), 200);
    assert_int_equal(json_array_size(json_object_get(root, "models")), 1);
    json_decref(root);
    root = body_of(ask("GET", "/api/version", "", ""), 200);
    assert_string_equal(member(root, "version"), tarn_version());
    json_decref(root);
    root = post("/api/show", "{\"model\":\"bytes\"}", 200);
    assert_string_equal(member(json_object_get(root, "details"), "family"), "llama");
    json_decref(root);
    root = post("/api/generate", "{\"model\":\"bytes\"}", 200); /* as clients load a model */
    assert_string_equal(member(root, "done_reason"), "load");
    json_decref(root);
    expect_refusal("/api/show", "{\"model\":\"other\"}", 404, "model 'other' does not exist");
    expect_refusal("/api/chat", "{\"model\":\"other\"}", 404, "model 'other' does not exist");
}

#define PROMPT "{\"model\":\"bytes\",\"prompt\":\"a\","

static void what_would_change_the_answer_is_refused_by_name(void **state)
{
    static const struct {
        const char *body, *text;
    } cases[] = {{"{\"prompt\":\"a\"}", "model is missing"},
                 {PROMPT "\"options\":{\"mirostat\":1}}", "options.mirostat"},
                 {PROMPT "\"options\":{\"tfs_z\":0.5}}", "options.tfs_z"},
                 {PROMPT "\"options\":{\"typical_p\":0.5}}", "options.typical_p"},
                 {PROMPT "\"options\":{\"penalize_newline\":false}}", "options.penalize_newline"},
                 {PROMPT "\"options\":{\"num_ctx\":4096}}", "options.num_ctx is 4096"},
                 {PROMPT "\"options\":{\"num_predict\":0}}", "options.num_predict"},
                 {PROMPT "\"options\":{\"nosuch\":1}}", "nosuch"},
                 {PROMPT "\"options\":{\"temperature\":\"hot\"}}", "temperature"},
                 {PROMPT "\"options\":[]}", "options must be an object"},
                 {PROMPT "\"template\":\"x\"}", "template"},
                 {PROMPT "\"suffix\":\"x\"}", "suffix"},
                 {PROMPT "\"images\":[\"aGk=\"]}", "images"},
                 {PROMPT "\"context\":[1]}", "context"},
                 {PROMPT "\"think\":\"high\"}", "think"},
                 {PROMPT "\"think\":true,\"raw\":true}", "think: true needs a chat template"},
                 {PROMPT "\"keep_alive\":0}", "keep_alive 0"},
                 {PROMPT "\"keep_alive\":\"0s\"}", "keep_alive 0"},
                 {PROMPT "\"format\":\"xml\"}", "format must be"},
                 {PROMPT "\"raw\":true,\"system\":\"x\"}", "system needs a chat template"},
                 {PROMPT "\"nosuch\":1}", "nosuch"},
                 {"{", "not JSON"}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refusal("/api/generate", cases[i].body, 400, cases[i].text);
    expect_refusal("/api/chat",
                   "{\"model\":\"bytes\",\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"images\":[\"x\"]}]}", 400,
                   "images");
    expect_refusal("/api/chat", "{\"model\":\"bytes\",\"messages\":[{\"role\":\"user\",\"content\":1}]}", 400,
                   "content must be a string");
    expect_refusal("/api/chat", "{\"model\":\"bytes\",\"messages\":[1]}", 400, "messages[0] must be an object");
    expect_refusal("/api/chat", "{\"model\":\"bytes\",\"messages\":[{\"content\":\"a\"}]}", 400, "role");
    expect_refusal("/api/pull", "{\"model\":\"bytes\"}", 404, "no such route");
    json_t *root = post("/api/generate",
                        PROMPT "\"stream\":false,\"keep_alive\":\"5m\",\"options\":{"
                               "\"num_predict\":1,\"mirostat\":0,\"tfs_z\":1}}",
                        200);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_has_the_tokens_and_counts_of_openai),
        cmocka_unit_test(a_prompt_is_a_message_unless_it_is_raw),
        cmocka_unit_test(options_without_a_value_are_ollamas),
        cmocka_unit_test(formats_and_calls_come_as_objects),
        cmocka_unit_test(thinking_stands_next_to_the_text),
        cmocka_unit_test(the_model_is_listed_and_shown),
        cmocka_unit_test(what_would_change_the_answer_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}

#else

#include <stdio.h>

int main(void)
{
    printf("libevent or jansson is missing: the API is not built\n");
    return 0;
}

#endif

/* test_reasoning.c: the thinking of an answer, in parts of every size, whole and streamed. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* An answer in parts of up to `most` bytes. The parts passed on are never taken back. */
static void expect_parts(bool is_open, const char *answer, const char *thinking, const char *content, size_t most)
{
    tarn__reasoning r = {.state = is_open ? TARN__REASONING_INSIDE : TARN__REASONING_START};
    tarn__reasoning_parts parts;
    text thought = {0}, said = {0};
    size_t length = strlen(answer);
    for (size_t at = 0; at <= length; at += most) {
        size_t count = length - at < most ? length - at : most;
        assert_true(tarn__reasoning_push(&r, answer + at, count, at + most > length, &parts));
        add(&thought, parts.reasoning ? parts.reasoning : "", parts.reasoning_length);
        add(&said, parts.content, parts.content_length);
    }
    add(&thought, "", 1), add(&said, "", 1);
    if (strcmp(thought.bytes, thinking) != 0 || strcmp(said.bytes, content) != 0)
        fail_msg("'%s' in parts of %zu: thinking '%s', content '%s'", answer, most, thought.bytes, said.bytes);
    assert_int_equal(r.end - r.begin, strlen(thinking));
    assert_memory_equal(r.text + r.begin, thinking, r.end - r.begin);
    free(thought.bytes), free(said.bytes);
    tarn__reasoning_close(&r);
}

static void thinking_is_found_in_any_parts(void **state)
{
    static const struct {
        bool is_open;
        const char *answer, *thinking, *content;
    } cases[] = {
        {false, "<think>\na plan\n</think>\n\nHello", "a plan", "Hello"},
        {false, "\n <think>a</think>b", "a", "b"},
        {false, "<think>\n\n</think>\n\nHello <think>", "", "Hello <think>"},
        {false, "<think>a < b </thin </think>c", "a < b </thin", "c"},
        {false, "<think>a <</think></think>", "a <", "</think>"},
        {false, "<think>never closed </thi", "never closed </thi", ""},
        {false, "  <thin", "", "  <thin"},
        {false, " <thing>", "", " <thing>"},
        {false, "Hello <think>a</think>", "", "Hello <think>a</think>"},
        {false, " ", "", " "},
        {true, "\na plan\n\nin two  parts\n</think>\n\nHello\n", "a plan\n\nin two  parts", "Hello\n"},
        {true, "</think>Hello", "", "Hello"},
        {true, "<think>", "<think>", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t most = 1; most <= 40; most++)
            expect_parts(cases[i].is_open, cases[i].answer, cases[i].thinking, cases[i].content, most);
}

static void a_prompt_may_open_it(void **state)
{
    (void)state;
    assert_true(tarn__reasoning_is_open("assistant\n<think>\n", 18));
    assert_true(tarn__reasoning_is_open("<think>", 7));
    assert_false(tarn__reasoning_is_open("<think>\n\n</think>\n\n", 19));
    assert_false(tarn__reasoning_is_open("think>", 6));
    assert_false(tarn__reasoning_is_open("", 0));
}

/* ---- the API ----------------------------------------------------------------------------------------------------- */

#define ASK \
    "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], " \
    "\"grammar\": \"root ::= \\\"<think>\\\\na plan\\\\n</think>\\\\n\\\\nHello\\\"\""

static void an_answer_has_its_thinking_apart(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root = post("/v1/chat/completions", "{" ASK "}", 200),
           *message = json_object_get(first_choice(root), "message"), *usage = json_object_get(root, "usage");
    assert_string_equal(member(message, "reasoning_content"), "a plan");
    assert_string_equal(member(message, "content"), "Hello");
    json_t *details = json_object_get(usage, "completion_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "reasoning_tokens")), 23); /* up to the marker */
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 30);
    json_decref(root);
    root = post("/v1/chat/completions",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"grammar\": \"root ::= \\\"Hello\\\"\"}",
                200);
    message = json_object_get(first_choice(root), "message");
    assert_null(json_object_get(message, "reasoning_content"));
    assert_string_equal(member(message, "content"), "Hello");
    json_decref(root);
    end(1);
}

/* Thinking comes before content, in events of its own, with the log probabilities of all tokens. */
static void a_stream_has_its_thinking_apart(void **state)
{
    (void)state;
    text thinking = {0}, content = {0};
    size_t logprobs = 0;
    begin((tarn__api_options){0});
    const char *heard = ask("POST", "/v1/chat/completions", "Content-Type: application/json\r\n",
                            "{\"stream\": true, \"logprobs\": true, " ASK "}");
    for (const char *at = heard; (at = strstr(at, "data: {")) != NULL;) {
        json_t *root = json_loadb(at + 6, (size_t)(strstr(at, "\n\n") - at - 6), 0, NULL), *choice = first_choice(root),
               *delta = json_object_get(choice, "delta");
        const char *thought = member(delta, "reasoning_content"), *said = member(delta, "content");
        assert_true(!*thought || content.length == 0);
        add(&thinking, thought, strlen(thought));
        add(&content, said, strlen(said));
        logprobs += json_array_size(json_object_get(json_object_get(choice, "logprobs"), "content"));
        json_decref(root);
        at++;
    }
    add(&thinking, "", 1), add(&content, "", 1);
    assert_string_equal(thinking.bytes, "a plan");
    assert_string_equal(content.bytes, "Hello");
    assert_int_equal(logprobs, 30);
    assert_contains(heard, "data: [DONE]");
    free(thinking.bytes), free(content.bytes);
    end(1);
}

/* A call after the thinking is found; what looks like one inside is none. */
static void a_call_follows_the_thinking(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root = post(
        "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tools\": [{\"type\": \"function\", "
        "\"function\": "
        "{\"name\": \"add\", \"parameters\": {\"type\": \"object\"}}}], \"grammar\": \"root ::= "
        "\\\"<think>{\\\\\\\"name\\\\\\\": \\\\\\\"add\\\\\\\", \\\\\\\"arguments\\\\\\\": {}}</think>\\\" "
        "\\\"{\\\\\\\"name\\\\\\\": \\\\\\\"add\\\\\\\", \\\\\\\"arguments\\\\\\\": {\\\\\\\"a\\\\\\\": 1}}\\\"\"}",
        200);
    json_t *choice = first_choice(root), *message = json_object_get(choice, "message"),
           *calls = json_object_get(message, "tool_calls");
    assert_int_equal(json_array_size(calls), 1);
    assert_contains(member(json_object_get(json_array_get(calls, 0), "function"), "arguments"), "1");
    assert_string_equal(member(message, "reasoning_content"), "{\"name\": \"add\", \"arguments\": {}}");
    assert_string_equal(member(choice, "finish_reason"), "tool_calls");
    json_decref(root);
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_is_found_in_any_parts),   cmocka_unit_test(a_prompt_may_open_it),
        cmocka_unit_test(an_answer_has_its_thinking_apart), cmocka_unit_test(a_stream_has_its_thinking_apart),
        cmocka_unit_test(a_call_follows_the_thinking),
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

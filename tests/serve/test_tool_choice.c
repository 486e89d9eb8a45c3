/* test_tool_choice.c: choices of tools: at most one call, and choices that are refused. Calls that are demanded need a
 * template of their own: openai_client.py has some. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"

#define ADD "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\"}}}"
#define CALL "{\\\\\\\"name\\\\\\\": \\\\\\\"add\\\\\\\", \\\\\\\"arguments\\\\\\\": {}}"
#define ASK "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"
#define TWO ASK ", \"tools\": [" ADD "], \"grammar\": \"root ::= \\\"" CALL " " CALL "\\\"\""

static size_t call_count(const char *body)
{
    json_t *root = post("/v1/chat/completions", body, 200);
    size_t count = json_array_size(json_object_get(json_object_get(first_choice(root), "message"), "tool_calls"));
    json_decref(root);
    return count;
}

static size_t occurrences(const char *heard, const char *word)
{
    size_t count = 0;
    for (const char *at = heard; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

static void parallel_calls_can_be_refused(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    assert_int_equal(call_count("{" TWO "}"), 2);
    assert_int_equal(call_count("{" TWO ", \"parallel_tool_calls\": true}"), 2);
    assert_int_equal(call_count("{" TWO ", \"parallel_tool_calls\": false}"), 1);
    assert_int_equal(call_count("{" TWO ", \"parallel_tool_calls\": false, \"tool_choice\": \"none\"}"), 0);
    const char *header = "Content-Type: application/json\r\n";
    const char *two = ask("POST", "/v1/chat/completions", header, "{" TWO ", \"stream\": true}");
    assert_int_equal(occurrences(two, "\"name\":\"add\""), 2);
    const char *one =
        ask("POST", "/v1/chat/completions", header, "{" TWO ", \"stream\": true, \"parallel_tool_calls\": false}");
    assert_int_equal(occurrences(one, "\"name\":\"add\""), 1);
    end(1);
}

static void expect_refusal(const char *more, const char *param, const char *sentence)
{
    char body[1024];
    snprintf(body, sizeof(body), "{" ASK ", %s}", more);
    expect_error("/v1/chat/completions", body, 400, param, sentence);
}

static void wrong_choices_are_refused_by_name(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    expect_refusal("\"tool_choice\": \"always\", \"tools\": [" ADD "]", "tool_choice", "auto, none, required");
    expect_refusal("\"tool_choice\": {\"type\": \"function\"}, \"tools\": [" ADD "]", "tool_choice", "with its name");
    expect_refusal("\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"other\"}}, \"tools\": [" ADD
                   "]",
                   "tool_choice", "there is no tool 'other'");
    expect_refusal("\"tool_choice\": \"required\"", "tool_choice", "needs tools");
    expect_refusal("\"tool_choice\": \"required\", \"tools\": []", "tool_choice", "needs tools");
    expect_refusal("\"tool_choice\": \"required\", \"tools\": [" ADD "], \"grammar\": \"root ::= [a]\"", "tool_choice",
                   "excludes grammar");
    expect_refusal("\"tool_choice\": \"required\", \"tools\": [" ADD "], \"ignore_eos\": true", "tool_choice",
                   "ignore_eos");
    expect_refusal("\"tool_choice\": \"required\", \"tools\": [" ADD "]", "tool_choice",
                   "does not write calls as JSON");
    expect_refusal("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"strict\": true}}]",
                   "tools", "needs a tool_choice that demands a call");
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parallel_calls_can_be_refused),
        cmocka_unit_test(wrong_choices_are_refused_by_name),
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

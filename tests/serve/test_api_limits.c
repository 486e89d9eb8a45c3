/* test_api_limits.c: the API where a request is at an edge: EOS with echo, ids without a token, too many log
 * probabilities, streams of prompts, the end of the context, the end of the server. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api_server.h"

/* ---- log probabilities of prompts -------------------------------------------------------------------------------- */

static json_t *token_logprobs(json_t *root)
{
    return json_object_get(json_object_get(first_choice(root), "logprobs"), "token_logprobs");
}

/* Clients that score a text leave the last entry out, as that of the new token: it must be there, whatever it is. */
static void an_echo_has_an_entry_for_eos(void **state)
{
    (void)state;
    model_eos = 10;
    begin((tarn__api_options){0});
    json_t *root = post("/v1/completions",
                        "{\"prompt\":[79,110,99,101],\"echo\":true,\"max_tokens\":1,\"temperature\":0,\"logprobs\":1,"
                        "\"logit_bias\":{\"10\":100}}",
                        200);
    assert_string_equal(member(first_choice(root), "finish_reason"), "stop");
    assert_string_equal(member(first_choice(root), "text"), "Once");
    assert_int_equal(json_array_size(token_logprobs(root)), 5);
    assert_true(json_real_value(json_array_get(token_logprobs(root), 4)) < 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "usage"), "completion_tokens")), 0);
    json_decref(root);
    root = post("/v1/completions",
                "{\"prompt\":\"Once\",\"max_tokens\":1,\"temperature\":0,\"logprobs\":1,\"logit_bias\":{\"10\":100}}",
                200);
    assert_int_equal(json_array_size(token_logprobs(root)), 0); /* an answer alone ends before it */
    json_decref(root);
    end(1);
    model_eos = -1;
}

static void too_many_logprobs_of_prompts_are_refused(void **state)
{
    enum { PROMPTS = 64, TOKENS = 500 };
    (void)state;
    size_t size = PROMPTS * (TOKENS * 3 + 4) + 256;
    char *body = malloc(size), *at = body;
    at += sprintf(at, "{\"echo\":true,\"max_tokens\":0,\"logprobs\":20,\"prompt\":[");
    for (int i = 0; i < PROMPTS; i++)
        for (int k = 0; k < TOKENS; k++)
            at += sprintf(at, "%s65%s", k ? "," : i ? ",[" : "[", k + 1 < TOKENS ? "" : "]");
    snprintf(at, 3, "]}");
    begin((tarn__api_options){0});
    expect_error("/v1/completions", body, 400, "logprobs", "672000 log probabilities");
    end(1);
    free(body);
}

static void ids_without_a_token_have_no_text(void **state)
{
    (void)state;
    model_vocab = VOCAB + 6;
    begin((tarn__api_options){0});
    json_t *root =
        post("/v1/completions",
             "{\"prompt\":[79,263,110],\"echo\":true,\"max_tokens\":0,\"logprobs\":20,\"temperature\":0}", 200);
    assert_string_equal(member(first_choice(root), "text"), "On");
    assert_int_equal(json_array_size(token_logprobs(root)), 3);
    json_t *tokens = json_object_get(json_object_get(first_choice(root), "logprobs"), "tokens");
    assert_string_equal(json_string_value(json_array_get(tokens, 1)), "");
    assert_string_equal(json_string_value(json_array_get(tokens, 2)), "n");
    json_decref(root);
    end(1);
    model_vocab = VOCAB;
}

static void logprobs_name_their_tokens(void **state)
{
    (void)state;
    begin((tarn__api_options){0});
    json_t *root =
        post("/v1/completions",
             "{\"prompt\":[104,195,169,65],\"echo\":true,\"max_tokens\":0,\"logprobs\":1,\"temperature\":0}", 200);
    json_t *logprobs = json_object_get(first_choice(root), "logprobs"),
           *top = json_object_get(logprobs, "top_logprobs");
    assert_true(json_is_null(json_array_get(top, 0)));
    assert_true(json_equal(json_object_get(json_array_get(top, 3), "A"), json_array_get(token_logprobs(root), 3)));
    for (size_t i = 0; i < 4; i++) /* in characters: each byte of é stands for one that is not whole */
        assert_int_equal(json_integer_value(json_array_get(json_object_get(logprobs, "text_offset"), i)), i);
    json_decref(root);
    end(1);
}

/* ---- streams of prompts ------------------------------------------------------------------------------------------ */

/* The log probabilities of a prompt come in events of bounded size. */
static void a_streamed_prompt_comes_in_parts(void **state)
{
    enum { TOKENS = 480, EVENT = 64 };
    (void)state;
    char body[TOKENS + 128];
    size_t total = 0;
    snprintf(body, sizeof(body), "{\"echo\":true,\"max_tokens\":0,\"logprobs\":3,\"stream\":true,\"prompt\":\"%0*d\"}",
             TOKENS, 1);
    begin((tarn__api_options){0});
    const char *heard = ask("POST", "/v1/completions", "", body);
    for (const char *at = heard; (at = strstr(at, "data: {")) != NULL; at++) {
        json_t *root = json_loadb(at + 6, (size_t)(strstr(at, "\n\n") - at - 6), JSON_ALLOW_NUL, NULL);
        assert_non_null(root);
        assert_true(json_array_size(token_logprobs(root)) <= EVENT);
        total += json_array_size(token_logprobs(root));
        json_decref(root);
    }
    assert_int_equal(total, TOKENS);
    assert_contains(heard, "data: [DONE]");
    end(1);
}

static void a_streamed_prompt_comes_with_its_answer(void **state)
{
    (void)state;
    begin((tarn__api_options){.engine = {.sequences = 1}});
    const char *heard = ask("POST", "/v1/completions", "",
                            "{\"prompt\":[\"Once\",\"Twice\"],\"echo\":true,\"max_tokens\":3,\"stream\":true}");
    const char *first = strstr(heard, "\"text\":\"Once\""), *second = strstr(heard, "\"text\":\"Twice\"");
    const char *end_of_first = strstr(heard, "\"finish_reason\":\"length\"");
    assert_true(first && end_of_first && second && first < end_of_first && end_of_first < second);
    end(1);
}

/* ---- the end of the context, the end of the server --------------------------------------------------------------- */

static void a_default_ends_with_the_context(void **state)
{
    (void)state;
    char body[CONTEXT + 128];
    begin((tarn__api_options){0});
    snprintf(body, sizeof(body), "{\"prompt\":[\"%0*d\",\"a\"],\"ignore_eos\":true}", CONTEXT - 4, 1);
    json_t *root = post("/v1/completions", body, 200);
    assert_string_equal(member(first_choice(root), "finish_reason"), "length");
    json_t *count = json_object_get(json_object_get(root, "usage"), "completion_tokens");
    assert_int_equal(json_integer_value(count), 4 + 16);
    json_decref(root);
    snprintf(body, sizeof(body), "{\"prompt\":\"%0*d\",\"max_tokens\":5}", CONTEXT - 4, 1);
    expect_error("/v1/completions", body, 400, "prompt", "5 more were asked for");
    end(1);
}

/* More answers than there ever are places for: to try again would not help. */
static void more_answers_than_places_are_refused(void **state)
{
    (void)state;
    begin((tarn__api_options){.engine = {.sequences = 1}, .queue = 1});
    expect_error("/v1/completions", "{\"prompt\":\"a\",\"n\":3}", 400, "n", "at most 2");
    end(1);
}

static void count_loaded(const tarn__api_model *model, void *ctx)
{
    (void)model;
    ++*(int *)ctx;
}

static void a_server_that_ends_is_not_loaded(void **state)
{
    (void)state;
    int loaded = 0;
    load_is_held = true;
    begin((tarn__api_options){.loaded = count_loaded, .ctx = &loaded});
    end(0);
    assert_int_equal(loaded, 0);
    begin((tarn__api_options){.loaded = count_loaded, .ctx = &loaded});
    end(0);
    assert_int_equal(loaded, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_echo_has_an_entry_for_eos),     cmocka_unit_test(too_many_logprobs_of_prompts_are_refused),
        cmocka_unit_test(ids_without_a_token_have_no_text), cmocka_unit_test(logprobs_name_their_tokens),
        cmocka_unit_test(a_streamed_prompt_comes_in_parts), cmocka_unit_test(a_streamed_prompt_comes_with_its_answer),
        cmocka_unit_test(a_default_ends_with_the_context),  cmocka_unit_test(more_answers_than_places_are_refused),
        cmocka_unit_test(a_server_that_ends_is_not_loaded),
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

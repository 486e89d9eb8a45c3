/* test_api_limits.c: the API where a request is at an edge: EOS with echo, ids without a token, too many log
 * probabilities. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_echo_has_an_entry_for_eos),
        cmocka_unit_test(too_many_logprobs_of_prompts_are_refused),
        cmocka_unit_test(ids_without_a_token_have_no_text),
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

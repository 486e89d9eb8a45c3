/* test_suggest.c: the suggestion for a name that does not exist: words of other programs, typos, and nothing for a
 * mere guess. */
#include "support/check.h"

static const char *const flags[] = {"lr",    "layers",      "heads",        "hidden-size", "context", "batch-size",
                                    "steps", "epochs",      "model",        "data",        "out",     "max-tokens",
                                    "top-k", "temperature", "weight-decay", "min-lr",      "seed",    "eval-every"};
#define FLAGS ((int)(sizeof(flags) / sizeof(flags[0])))

static void expect_meant(const char *typed, const char *meant)
{
    const char *found = tarn_suggest(typed, flags, FLAGS);
    if (!(found ? meant && strcmp(found, meant) == 0 : !meant))
        fail_msg("'%s' suggests '%s', not '%s'", typed, found ? found : "nothing", meant ? meant : "nothing");
}

static void words_of_other_programs_are_known(void **state)
{
    (void)state;
    expect_meant("learning_rate", "lr");
    expect_meant("--learning-rate", "lr");
    expect_meant("n_layer", "layers");
    expect_meant("num_attention_heads", "heads");
    expect_meant("n_embd", "hidden-size");
    expect_meant("block_size", "context");
    expect_meant("max_iters", "steps");
    expect_meant("max_new_tokens", "max-tokens");
    expect_meant("n-predict", "max-tokens");
    expect_meant("temp", "temperature");
    expect_meant("lerning_rate", "lr"); /* a slip inside a synonym */
}

static void slips_are_found_by_their_letters(void **state)
{
    (void)state;
    expect_meant("modle", "model"); /* two letters swapped are one slip */
    expect_meant("epcohs", "epochs");
    expect_meant("batch_size", "batch-size");
    expect_meant("Batch-Size", "batch-size");
    expect_meant("batchsize", "batch-size");
    expect_meant("topk", "top-k");
    expect_meant("-lr", "lr");
    expect_meant("weight", "weight-decay"); /* the only one that begins so */
}

static void what_is_near_to_nothing_gets_no_suggestion(void **state)
{
    (void)state;
    expect_meant("quux", NULL);
    expect_meant("pull", NULL);
    expect_meant("x", NULL);
    expect_meant("", NULL);
    expect_meant("--", NULL);
    assert_null(tarn_suggest(NULL, flags, FLAGS));
    assert_null(tarn_suggest("lr", NULL, 0));
    char longest[300];
    memset(longest, 'l', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    expect_meant(longest, NULL);
}

static void a_suggestion_is_one_of_the_names_and_works_with_an_error_pending(void **state)
{
    (void)state;
    assert_ptr_equal(tarn_suggest("learning_rate", flags, FLAGS), flags[0]);
    tarn_set_error(TARN_ERROR_ARGUMENT, "something");
    assert_ptr_equal(tarn_suggest("learning_rate", flags, FLAGS), flags[0]);
    tarn_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_other_programs_are_known),
        cmocka_unit_test(slips_are_found_by_their_letters),
        cmocka_unit_test(what_is_near_to_nothing_gets_no_suggestion),
        cmocka_unit_test(a_suggestion_is_one_of_the_names_and_works_with_an_error_pending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_sampler.c: the options of samplers in transformers' order, and log probabilities. */
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { DRAWS = 20000, TOKENS = 6 };

static tarn_tensor *row(const float *values, int64_t count)
{
    return good(tarn_from_f32(values, TARN_SHAPE(1, count), CPU));
}

/* How often each token comes from the logits after some were seen, in DRAWS draws. */
static void expect_shares(const tarn_sampler_options *options, const float *logits, const int64_t *seen,
                          int64_t seen_count, const double *expected)
{
    static int64_t token[DRAWS];
    double share[TOKENS] = {0};
    tarn_sampler *sampler = tarn_sampler_new(options);
    if (seen_count > 0)
        assert_true(tarn_sampler_accept(
            sampler, tarn_expand(tarn_from_i64(seen, TARN_SHAPE(1, seen_count), CPU), TARN_SHAPE(DRAWS, seen_count))));
    tarn_tensor *rows = tarn_expand(row(logits, TOKENS), TARN_SHAPE(DRAWS, TOKENS));
    assert_true(tarn_read(good(tarn_sampler_sample(sampler, rows)), token, sizeof(token)));
    for (int i = 0; i < DRAWS; i++)
        share[token[i]] += 1.0 / DRAWS;
    for (int i = 0; i < TOKENS; i++) {
        double p = expected[i], five = 5 * sqrt(p * (1 - p) / DRAWS) + 1e-12;
        if (!(fabs(share[i] - p) <= five))
            fail_msg("token %d has a share of %g, not %g within %g", i, share[i], p, five);
    }
    tarn_sampler_free(sampler);
}

/* Probabilities 0.4, 0.05, 0.3, 0.05, 0, 0.2. */
static void min_p_drops_unlikely_tokens(void **state)
{
    (void)state;
    const float logits[TOKENS] = {logf(0.4f), logf(0.05f), logf(0.3f), logf(0.05f), -INFINITY, logf(0.2f)};
    expect_shares(&(tarn_sampler_options){.temperature = 1, .min_p = 0.4, .seed = 1}, logits, NULL, 0,
                  (const double[]){4. / 9, 0, 3. / 9, 0, 0, 2. / 9});
    expect_shares(&(tarn_sampler_options){.temperature = 1, .min_p = 0.6, .seed = 2}, logits, NULL, 0,
                  (const double[]){4. / 7, 0, 3. / 7, 0, 0, 0});
    expect_shares(&(tarn_sampler_options){.temperature = 1, .min_p = 1, .seed = 3}, logits, NULL, 0,
                  (const double[]){1, 0, 0, 0, 0, 0});
    /* after the temperature: at 0.5 token 5 has (0.2 / 0.4)², a quarter of the most likely one */
    expect_shares(&(tarn_sampler_options){.temperature = 0.5, .min_p = 0.4, .seed = 4}, logits, NULL, 0,
                  (const double[]){16. / 25, 0, 9. / 25, 0, 0, 0});
    /* after top_k and top_p */
    expect_shares(&(tarn_sampler_options){.temperature = 1, .top_k = 4, .top_p = 0.99, .min_p = 0.4, .seed = 5}, logits,
                  NULL, 0, (const double[]){4. / 9, 0, 3. / 9, 0, 0, 2. / 9});
}

static void the_repetition_penalty_lowers_previous_tokens(void **state)
{
    (void)state;
    const float logits[TOKENS] = {2, 1, -1, -2, -INFINITY, 0};
    double total = exp(1) + exp(1) + exp(-2) + exp(-2) + 1; /* 2 / 2, 1, -1 · 2, -2, 0 */
    const double expected[] = {exp(1) / total, exp(1) / total, exp(-2) / total, exp(-2) / total, 0, 1 / total};
    const int64_t seen[] = {2, 0, 0, 2, 5, 4};
    expect_shares(&(tarn_sampler_options){.temperature = 1, .repeat_penalty = 2, .seed = 1}, logits, seen, 6, expected);
    /* The window leaves 0 and 2 out of the list, once each again: only the last four count. */
    const int64_t long_list[] = {1, 3, 1, 3, 0, 2, 5, 4};
    expect_shares(&(tarn_sampler_options){.temperature = 1, .repeat_penalty = 2, .repeat_last_n = 4, .seed = 2}, logits,
                  long_list, 8, expected);
    /* Before the temperature: (2 / 2) / 0.5, not (2 / 0.5) / 2 is the same; but -1 · 2 / 0.5 and what top_k keeps tell.
     */
    double two = exp(2) + exp(2);
    expect_shares(&(tarn_sampler_options){.temperature = 0.5, .top_k = 2, .repeat_penalty = 2, .seed = 3}, logits, seen,
                  6, (const double[]){exp(2) / two, exp(2) / two, 0, 0, 0, 0});
}

/* Its own samples join the history, greedy ones too; a reset clears it. */
static void a_sampler_adds_its_samples_to_the_history(void **state)
{
    (void)state;
    const float logits[] = {3, 2.9f, 2.8f, -1};
    tarn_sampler *sampler = tarn_sampler_new(&(tarn_sampler_options){.repeat_penalty = 1.5, .repeat_last_n = 2});
    const int expected[] = {0, 1, 2, 0, 1, 2};
    for (int i = 0; i < 6; i++)
        expect(good(tarn_sampler_sample(sampler, row(logits, 4))), TARN_SHAPE(1, 1), VALUES(expected[i]));
    assert_true(tarn_sampler_reset(sampler));
    expect(good(tarn_sampler_sample(sampler, row(logits, 4))), TARN_SHAPE(1, 1), VALUES(0));
    const int64_t both[] = {0, 1};
    assert_false(tarn_sampler_accept(sampler, tarn_from_i64(both, TARN_SHAPE(2, 1), CPU)));
    assert_error(TARN_ERROR_SHAPE, "sampler_accept: the tokens are [2, 1]; the history has 1 sequences");
    tarn_sampler_free(sampler);
}

static void a_logit_bias_is_added(void **state)
{
    (void)state;
    const float logits[TOKENS] = {1, 1, 1, 1, -INFINITY, 1};
    const tarn_logit_bias biases[] = {{1, 0.5}, {3, -100}, {1, 0.5}, {4, 50}};
    double total = 1 + exp(1) + 1 + 1; /* biases of one token add up; what is impossible stays so */
    expect_shares(&(tarn_sampler_options){.temperature = 1, .logit_bias = biases, .logit_bias_count = 4, .seed = 1},
                  logits, NULL, 0, (const double[]){1 / total, exp(1) / total, 1 / total, 0, 0, 1 / total});
    /* before the repetition penalty: (1 + 1) / 2 */
    total = exp(1) + exp(1) + exp(1) + exp(1);
    expect_shares(
        &(tarn_sampler_options){
            .temperature = 1, .logit_bias = biases, .logit_bias_count = 4, .repeat_penalty = 2, .seed = 2},
        logits, (const int64_t[]){1}, 1,
        (const double[]){exp(1) / total, exp(1) / total, exp(1) / total, 0, 0, exp(1) / total});
    const tarn_logit_bias beyond[] = {{6, 1}};
    tarn_sampler *sampler = tarn_sampler_new(&(tarn_sampler_options){.logit_bias = beyond, .logit_bias_count = 1});
    assert_null(tarn_sampler_sample(sampler, row(logits, TOKENS)));
    assert_error(TARN_ERROR_ARGUMENT, "sampler_sample: .logit_bias[0] is for token 6; it must be from 0 to 5");
    tarn_sampler_free(sampler);
}

/* Greedy samples of 3, 2.9 and 2.8 with a frequency penalty of 0.15 go round; with that of the presence each token is
 * penalized once. Tokens that were accepted, but not sampled, are not penalized. */
static void sampled_tokens_are_penalized_by_count_and_presence(void **state)
{
    (void)state;
    const float logits[] = {3, 2.9f, 2.8f, -1};
    const int expected[2][6] = {{0, 1, 0, 2, 1, 0}, {0, 1, 0, 0, 0, 0}};
    const int64_t seen[] = {0, 0, 0};
    for (int kind = 0; kind < 2; kind++) {
        tarn_sampler *sampler = tarn_sampler_new(
            &(tarn_sampler_options){.frequency_penalty = kind ? 0 : 0.15, .presence_penalty = kind ? 0.15 : 0});
        assert_true(tarn_sampler_accept(sampler, tarn_from_i64(seen, TARN_SHAPE(1, 3), CPU)));
        for (int i = 0; i < 6; i++)
            expect(good(tarn_sampler_sample(sampler, row(logits, 4))), TARN_SHAPE(1, 1), VALUES(expected[kind][i]));
        assert_null(tarn_sampler_sample(sampler, row(logits, 3)));
        assert_error(TARN_ERROR_SHAPE, "sampler_sample: the logits are [1, 3]; those sampled before were [1, 4]");
        assert_true(tarn_sampler_reset(sampler));
        expect(good(tarn_sampler_sample(sampler, row(logits, 4))), TARN_SHAPE(1, 1), VALUES(0));
        tarn_sampler_free(sampler);
    }
}

static void tokens_of_the_history_must_be_in_the_vocabulary(void **state)
{
    (void)state;
    const float logits[] = {1, 2};
    const int64_t beyond[] = {2};
    tarn_sampler *sampler = tarn_sampler_new(&(tarn_sampler_options){.repeat_penalty = 2});
    assert_true(tarn_sampler_accept(sampler, tarn_from_i64(beyond, TARN_SHAPE(1, 1), CPU)));
    assert_null(tarn_sampler_sample(sampler, row(logits, 2)));
    assert_error(TARN_ERROR_ARGUMENT, "index 2 is outside");
    tarn_sampler_free(sampler);
}

static void log_probabilities(void **state)
{
    (void)state;
    const float logits[] = {logf(0.5f), logf(0.125f), logf(0.25f), logf(0.125f), 0, 0, 0, 0};
    const int32_t tokens[] = {1, 3};
    tarn_tensor *found = good(tarn_token_logprobs(tarn_from_f32(logits, TARN_SHAPE(2, 4), CPU),
                                                  tarn_from_i32(tokens, TARN_SHAPE(2, 1), CPU), 2));
    assert_int_equal(tarn_dtype_of(found), TARN_F64);
    assert_shape(found, 2, 5);
    assert_values(found, 1e-6, log(0.125), 0, 2, log(0.5), log(0.25), log(0.25), 0, 1, log(0.25), log(0.25));
    found = good(tarn_token_logprobs(tarn_from_f32(logits, TARN_SHAPE(2, 4), CPU),
                                     tarn_from_i32(tokens, TARN_SHAPE(2, 1), CPU), 0));
    assert_values(found, 1e-6, log(0.125), log(0.25));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(min_p_drops_unlikely_tokens),
        in_scope(the_repetition_penalty_lowers_previous_tokens),
        in_scope(a_sampler_adds_its_samples_to_the_history),
        in_scope(a_logit_bias_is_added),
        in_scope(sampled_tokens_are_penalized_by_count_and_presence),
        in_scope(tokens_of_the_history_must_be_in_the_vocabulary),
        in_scope(log_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

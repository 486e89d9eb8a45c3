/* test_engine_step.c: the plan of an engine's steps: which requests start, how many prompt tokens they get, and what a
 * preempted one reports; the queue of their outputs. */
#include <tarn/engine.h>

#include "generate/engine/engine.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
enum {
    VOCAB = 256,
    PAGE = 64,
    CONTEXT = 4 * PAGE,
    PAGE_BYTES = PAGE * 2 * 8 * 4
}; /* keys and values, 8 of them, in f32 */

static tarn_module *small_model(void)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = CONTEXT,
                                      .layers = 1,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .hidden_size = 16,
                                      .ffn_size = 32,
                                      .head_dim = 8};
    tarn_module *model = tarn_model_llama(&config, CPU, 3);
    assert_non_null(model);
    return model;
}

/* An engine with that many pages. */
static tarn_engine *engine_of(tarn_module *model, int64_t pages, int64_t prompt_tokens)
{
    tarn_engine_stats stats;
    tarn_engine *engine =
        tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = pages * PAGE_BYTES, .prompt_tokens = prompt_tokens});
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.pages, pages);
    return engine;
}

/* Adds a prompt of `count` tokens that begins with `first`. */
static int64_t add(tarn_engine *engine, int32_t first, int64_t count, const tarn_generate_options *options)
{
    int32_t tokens[CONTEXT];
    for (int i = 0; i < CONTEXT; i++)
        tokens[i] = (first + i) % VOCAB;
    int64_t number = tarn_engine_add(engine, tokens, count, options);
    assert_ok();
    return number;
}

static tarn_engine_stats stats_of(const tarn_engine *engine)
{
    tarn_engine_stats stats;
    assert_true(tarn_engine_query(engine, &stats));
    return stats;
}

/* Steps until request `number` ends, and returns its last output; others are dropped. */
static tarn_engine_output run_until_end(tarn_engine *engine, int64_t number)
{
    for (;;) {
        int64_t left = tarn_engine_step(engine);
        assert_ok();
        for (tarn_engine_output output; tarn_engine_next(engine, &output);)
            if (output.request == number && output.finish_reason != TARN_FINISH_NONE)
                return output;
        assert_true(left > 0);
    }
}

/* Two prompts of three pages in a pool of five: the first has taken one page when the second could start. */
static void a_request_waits_for_the_pages_that_others_will_take(void **state)
{
    (void)state;
    tarn_module *model = small_model();
    tarn_engine *engine = engine_of(model, 5, PAGE);
    const tarn_generate_options options = {.max_tokens = 2};
    add(engine, 0, 190, &options);
    int64_t second = add(engine, 1, 190, &options);
    assert_true(tarn_engine_step(engine) > 0);
    tarn_engine_stats stats = stats_of(engine);
    assert_true(stats.running == 1 && stats.waiting == 1);
    assert_int_equal(run_until_end(engine, second).finish_reason, TARN_FINISH_LENGTH);
    assert_int_equal(stats_of(engine).preemptions, 0);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* Two samples of one prompt in six pages: the second needs one page of its own, beside three shared ones. */
static void shared_pages_are_not_needed_twice(void **state)
{
    (void)state;
    tarn_module *model = small_model();
    tarn_engine *engine = engine_of(model, 6, CONTEXT);
    const tarn_generate_options options = {.max_tokens = 20};
    add(engine, 0, 200, &options);
    int64_t second = add(engine, 0, 200, &options);
    for (int i = 0; i < 2; i++)
        assert_true(tarn_engine_step(engine) > 0);
    assert_int_equal(stats_of(engine).running, 2);
    assert_int_equal(run_until_end(engine, second).shared, 192);
    assert_int_equal(stats_of(engine).preemptions, 0);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* The first request decodes and takes the fourth page when the second has computed, and published, one of its own. */
static void pages_of_a_preempted_request_are_its_own(void **state)
{
    (void)state;
    tarn_module *model = small_model();
    tarn_engine *engine = engine_of(model, 5, 1);
    tarn_engine_request requests[2];
    add(engine, 0, 126, &(tarn_generate_options){.max_tokens = 100});
    for (int i = 0; i < 126; i++)
        assert_true(tarn_engine_step(engine) > 0);
    int64_t second = add(engine, 1, 127, &(tarn_generate_options){.max_tokens = 1});
    while (stats_of(engine).preemptions == 0)
        assert_true(tarn_engine_step(engine) > 0);
    assert_int_equal(tarn_engine_requests(engine, requests, 2), 2);
    assert_true(requests[1].preemptions == 1 && requests[1].new_tokens == 0);
    int64_t before = stats_of(engine).shared_tokens;
    const tarn_engine_output last = run_until_end(engine, second);
    assert_int_equal(stats_of(engine).shared_tokens - before, PAGE); /* not computed again */
    assert_int_equal(last.finish_reason, TARN_FINISH_LENGTH);
    assert_int_equal(last.shared, 0);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* Rows of logits for all tokens of a long prompt would need memory by the vocabulary. */
static void a_step_has_a_page_of_prompt_log_probabilities(void **state)
{
    (void)state;
    tarn_module *model = small_model();
    tarn_engine *engine = engine_of(model, 8, 2 * CONTEXT);
    int64_t number = add(engine, 0, CONTEXT, &(tarn_generate_options){.prompt_logprobs = true, .prompt_only = true});
    int64_t echoed = 0, steps = 0;
    for (int64_t left = 1; left > 0; steps += left > 0) {
        int64_t now = 0;
        left = tarn_engine_step(engine);
        for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
            assert_int_equal(output.request, number);
            now += output.is_prompt;
        }
        assert_true(now <= PAGE + 1); /* and the first token, which has none */
        echoed += now;
    }
    assert_int_equal(echoed, CONTEXT);
    assert_int_equal(steps, 4);
    add(engine, 1, 200, &(tarn_generate_options){.max_tokens = 1}); /* others are computed at once */
    assert_true(tarn_engine_step(engine) > 0);
    assert_int_equal(stats_of(engine).new_tokens, 1);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* The texts and log probabilities of all outputs of an engine with two requests, of which `late` are always left for
 * after the next step. Returns the number of outputs. */
static int read_outputs(tarn_engine *engine, int late, double *logprob, int32_t *top, size_t *length)
{
    const tarn_generate_options options = {.max_tokens = 100, .top_logprobs = 2, .temperature = 1, .ignore_eos = true};
    int count = 0;
    for (int32_t i = 0; i < 2; i++)
        add(engine, i, 20, &options);
    for (int64_t left = 1; left > 0;) {
        left = tarn_engine_step(engine);
        for (tarn_engine_output output; left > late && tarn_engine_next(engine, &output);) {
            assert_int_equal(output.top_logprob_count, 2);
            assert_int_equal(strlen(output.text), output.length);
            logprob[count] = output.logprob;
            top[count] = output.top_logprobs[1].token;
            length[count++] = output.length;
            if (engine->replies - engine->first_reply <= late && engine->count > 0)
                break;
        }
        late = engine->count > 0 ? late : 0;
        assert_true(engine->replies < 16 && engine->text_length < 128 && engine->candidates < 32);
    }
    return count;
}

/* The queue of a reader that is always behind does not grow. */
static void outputs_that_were_read_are_dropped_before_the_others(void **state)
{
    (void)state;
    static double logprob[2][400];
    static int32_t top[2][400];
    static size_t length[2][400];
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_module *model = small_model();
    for (int late = 0; late < 2; late++) {
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.tokenizer = t});
        assert_int_equal(read_outputs(engine, 3 * late, logprob[late], top[late], length[late]), 200);
        tarn_engine_free(engine);
    }
    assert_memory_equal(logprob[0], logprob[1], sizeof(logprob[0]));
    assert_memory_equal(top[0], top[1], sizeof(top[0]));
    assert_memory_equal(length[0], length[1], sizeof(length[0]));
    tarn_module_free(model);
    tarn_tokenizer_free(t);
}

/* Prompt tokens of all requests that the next step computes. */
static int64_t prompt_of_a_step(tarn_engine *engine)
{
    int64_t before = stats_of(engine).prompt_tokens;
    assert_true(tarn_engine_step(engine) > 0);
    assert_ok();
    for (tarn_engine_output output; tarn_engine_next(engine, &output);)
        continue;
    return stats_of(engine).prompt_tokens - before;
}

/* A prompt of 250 tokens takes one step alone, two while one request decodes, again one while 40 decode; a step never
 * exceeds .prompt_tokens. */
static void prompts_beside_decoding_requests_are_cut(void **state)
{
    (void)state;
    static const struct {
        int decoding;
        int64_t prompt_tokens, first, second;
    } cases[] = {{0, 512, 250, 0},   {1, 512, 128, 122}, {25, 512, 128, 122},
                 {40, 512, 192, 58}, {52, 512, 250, 0},  {1, 100, 100, 100}};
    tarn_module *model = small_model();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tarn_engine *engine = tarn_engine_new(
            model,
            &(tarn_engine_options){.sequences = 64, .prompt_tokens = cases[i].prompt_tokens, .no_sharing = true});
        for (int k = 0; k < cases[i].decoding; k++)
            add(engine, k, 1, &(tarn_generate_options){.max_tokens = 20, .ignore_eos = true});
        if (cases[i].decoding > 0)
            prompt_of_a_step(engine);
        add(engine, 100, 250, &(tarn_generate_options){.max_tokens = 2, .ignore_eos = true});
        assert_int_equal(prompt_of_a_step(engine), cases[i].first);
        assert_int_equal(prompt_of_a_step(engine), cases[i].second);
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(prompts_beside_decoding_requests_are_cut),
        in_scope(a_request_waits_for_the_pages_that_others_will_take),
        in_scope(shared_pages_are_not_needed_twice),
        in_scope(pages_of_a_preempted_request_are_its_own),
        in_scope(a_step_has_a_page_of_prompt_log_probabilities),
        in_scope(outputs_that_were_read_are_dropped_before_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

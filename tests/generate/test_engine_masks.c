/* test_engine_masks.c: an engine computes masks of grammars off the thread that steps. A mask that takes long, here
 * because the test has the grammar's lock, delays the requests of this grammar only; their tokens stay the same. */
#include <pthread.h>
#include <tarn/engine.h>
#include <time.h>

#include "support/check.h"
#include "support/noise.h"
#include "text/grammar/grammar.h"

#define CPU tarn_device_cpu()
enum { CONTEXT = 256, MAX_NEW = 40, REQUESTS = 4 };

typedef struct result {
    int64_t number, count;
    int32_t token[MAX_NEW];
    tarn_finish_reason reason;
} result;

typedef struct fixture {
    tarn_tokenizer *tokenizer;
    tarn_grammar_vocab *vocab;
    tarn_grammar *words, *digits;
    tarn_module *model;
    int32_t prompt[CONTEXT];
} fixture;

static fixture f;

static void open_fixture(void)
{
    static const char words[] = "root ::= [a-z]{2,6} (\" \" [a-z]{2,6})*", digits[] = "root ::= [0-9]{12}";
    f.tokenizer = tarn_tokenizer_bytes();
    f.vocab = tarn_grammar_vocab_new(f.tokenizer, NULL);
    f.words = tarn_grammar_gbnf(f.vocab, words, sizeof(words) - 1);
    f.digits = tarn_grammar_gbnf(f.vocab, digits, sizeof(digits) - 1);
    const tarn_llama_config config = {.vocab_size = tarn_tokenizer_count(f.tokenizer),
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 88,
                                      .head_dim = 8};
    f.model = add_noise(tarn_model_llama(&config, CPU, 9));
    for (int i = 0; i < CONTEXT; i++)
        f.prompt[i] = 32 + 7 * i % 90;
    assert_ok();
}

static void close_fixture(void)
{
    tarn_module_free(f.model);
    tarn_grammar_free(f.words);
    tarn_grammar_free(f.digits);
    tarn_grammar_vocab_free(f.vocab);
    tarn_tokenizer_free(f.tokenizer);
}

static tarn_engine *new_engine(void)
{
    tarn_engine *engine = tarn_engine_new(f.model, &(tarn_engine_options){.tokenizer = f.tokenizer});
    assert_non_null(engine);
    return engine;
}

static void add(tarn_engine *engine, result *r, int64_t count, tarn_grammar *grammar, uint64_t seed)
{
    *r = (result){
        .number = tarn_engine_add(
            engine, f.prompt, count,
            &(tarn_generate_options){
                .max_tokens = 30, .temperature = 1, .grammar = grammar, .ignore_eos = !grammar, .seed = seed})};
    assert_true(r->number > 0);
}

/* One step; returns what it returns. */
static int64_t step(tarn_engine *engine, result *r, int count)
{
    int64_t left = tarn_engine_step(engine);
    assert_ok();
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        int at = 0;
        while (at < count && r[at].number != output.request)
            at++;
        assert_true(at < count && r[at].reason == TARN_FINISH_NONE);
        if (output.token >= 0)
            r[at].token[r[at].count++] = output.token;
        r[at].reason = output.finish_reason;
    }
    return left;
}

static void run(tarn_engine *engine, result *r, int count)
{
    while (step(engine, r, count) > 0) {
    }
}

static void assert_alone(const result *r, int64_t count, tarn_grammar *grammar, uint64_t seed)
{
    result alone;
    tarn_engine *engine = new_engine();
    add(engine, &alone, count, grammar, seed);
    run(engine, &alone, 1);
    assert_int_equal(alone.count, r->count);
    assert_int_equal(alone.reason, r->reason);
    assert_memory_equal(alone.token, r->token, sizeof(*r->token) * (size_t)r->count);
    tarn_engine_free(engine);
}

/* Two requests of the grammar, one without and one of another grammar: these two end, the first two have the prompt
 * computed but no token. */
static void a_mask_that_takes_long_delays_its_grammar_only(void **state)
{
    (void)state;
    open_fixture();
    result r[REQUESTS];
    tarn_engine *engine = new_engine();
    pthread_mutex_lock(&f.words->lock);
    add(engine, &r[0], 100, f.words, 1);
    add(engine, &r[1], 128, f.words, 2); /* its last token fills a page, which the next request could share */
    add(engine, &r[2], 140, NULL, 3);
    add(engine, &r[3], 10, f.digits, 4);
    int steps = 0;
    for (; r[2].reason == TARN_FINISH_NONE || r[3].reason == TARN_FINISH_NONE; steps++) {
        assert_true(step(engine, r, REQUESTS) > 0);
        assert_true(steps < 1000);
    }
    tarn_engine_request left[2];
    assert_int_equal(tarn_engine_requests(engine, left, 2), 2);
    assert_true(left[0].new_tokens == 0 && left[0].computed == 99);
    assert_true(left[1].new_tokens == 0 && left[1].computed == 127);
    pthread_mutex_unlock(&f.words->lock);
    run(engine, r, REQUESTS);
    assert_int_equal(r[2].reason, TARN_FINISH_LENGTH);
    assert_int_equal(r[3].reason, TARN_FINISH_GRAMMAR);
    assert_int_equal(r[3].count, 12);
    assert_alone(&r[0], 100, f.words, 1);
    assert_alone(&r[1], 128, f.words, 2);
    assert_alone(&r[2], 140, NULL, 3);
    assert_alone(&r[3], 10, f.digits, 4);
    tarn_engine_free(engine);
    close_fixture();
}

/* In the middle of a text, too: its tokens stay the same. */
static void a_request_goes_on_when_its_mask_is_there(void **state)
{
    (void)state;
    open_fixture();
    result r[2];
    tarn_engine *engine = new_engine();
    add(engine, &r[0], 20, f.words, 5);
    add(engine, &r[1], 30, f.words, 6);
    while (r[0].count < 4)
        assert_true(step(engine, r, 2) > 0);
    for (int i = 0; i < 3; i++) {
        int64_t before[2] = {r[0].count, r[1].count};
        pthread_mutex_lock(&f.words->lock);
        for (int k = 0; k < 3; k++) /* masks that were there are used up by one step */
            assert_true(step(engine, r, 2) > 0);
        pthread_mutex_unlock(&f.words->lock);
        assert_true(r[0].count <= before[0] + 1 && r[1].count <= before[1] + 1);
    }
    run(engine, r, 2);
    assert_alone(&r[0], 20, f.words, 5);
    assert_alone(&r[1], 30, f.words, 6);
    tarn_engine_free(engine);
    close_fixture();
}

/* Without other requests a step waits for a mask, but not for long; a cancelled request ends at once, and its memory
 * waits for the worker. */
static void a_request_without_its_mask_can_be_cancelled(void **state)
{
    (void)state;
    open_fixture();
    result r;
    tarn_engine_stats stats;
    struct timespec began, ended;
    tarn_engine *engine = new_engine();
    pthread_mutex_lock(&f.words->lock);
    add(engine, &r, 100, f.words, 1);
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < 3; i++)
        assert_true(step(engine, &r, 1) > 0);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec);
    assert_true(seconds > 0.1 && seconds < 60); /* it neither spins nor waits for the worker */
    assert_true(tarn_engine_cancel(engine, r.number));
    assert_true(step(engine, &r, 1) >= 0);
    assert_int_equal(r.reason, TARN_FINISH_CANCELLED);
    assert_true(tarn_engine_query(engine, &stats) && stats.free_pages == stats.pages && stats.running == 0);
    assert_int_equal(step(engine, &r, 1), 0);
    pthread_mutex_unlock(&f.words->lock);
    tarn_engine_free(engine);
    close_fixture();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_mask_that_takes_long_delays_its_grammar_only),
        in_scope(a_request_goes_on_when_its_mask_is_there),
        in_scope(a_request_without_its_mask_can_be_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

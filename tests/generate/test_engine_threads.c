/* test_engine_threads.c: the engine's contract for threads: one thread steps and reads outputs while others add, cancel
 * and query; every request has one last output, and those that were not cancelled have the tokens that they have alone.
 * Runs under the thread sanitizer too. */
#include <pthread.h>
#include <stdatomic.h>
#include <tarn/engine.h>
#include <tarn/lora.h>
#include <time.h>

#include "support/check.h"
#include "support/noise.h"
#include "support/scratch.h"
#include "tarn_features.h"
#include "text/grammar/grammar.h"

#define CPU tarn_device_cpu()
enum { CLIENTS = 4, EACH = 24, REQUESTS = CLIENTS * EACH, PROMPTS = 8, NEW = 6, VOCAB = 61 };

static tarn_engine *engine;
static atomic_int failures, clients_left;
static int32_t prompt[PROMPTS][160];
static int64_t length[PROMPTS];

/* What became of a request; written by the thread that steps. */
typedef struct ending {
    int32_t token[NEW];
    int64_t count;
    int ends;
    tarn_finish_reason reason;
} ending;
static ending endings[REQUESTS + 1]; /* by number */
static int prompt_of[REQUESTS + 1];  /* by number; written by the client that got the number */
static bool is_cancelled[REQUESTS + 1];

/* Two of three prompts have an adapter. */
static tarn_generate_options options_of(int i)
{
    return (tarn_generate_options){.max_tokens = NEW,
                                   .adapter = TARN__HAVE_JANSSON ? i % 3 : 0,
                                   .temperature = i % 2,
                                   .seed = (uint64_t)i,
                                   .repeat_penalty = i % 3 ? 0 : 1.3,
                                   .frequency_penalty = i % 4 ? 0 : 0.7};
}

/* Adds requests, and cancels every third. cmocka's checks are for the main thread: failures are counted. */
static void *client(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg + 1;
    for (int i = 0; i < EACH; i++) {
        int which = (int)random_below(&seed, PROMPTS);
        const tarn_generate_options options = options_of(which);
        int64_t number = tarn_engine_add(engine, prompt[which], length[which], &options);
        if (number < 1 || number > REQUESTS) {
            failures++;
            continue;
        }
        prompt_of[number] = which;
        tarn_engine_stats stats;
        tarn_engine_request requests[8];
        failures += !tarn_engine_query(engine, &stats) || stats.added < number || stats.free_pages > stats.pages;
        failures += tarn_engine_requests(engine, requests, 8) < 0;
        failures += tarn_engine_add(engine, NULL, 1, NULL) != -1; /* an error of this thread only */
        failures += !tarn_failed();
        tarn_clear_error();
        if (i % 3 == 0) {
            is_cancelled[number] = true;
            failures += !tarn_engine_cancel(engine, number);
        }
    }
    clients_left--;
    failures += !tarn_engine_wake(engine);
    return NULL;
}

static void take_outputs(void)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        assert_in_range(output.request, 1, REQUESTS);
        ending *to = &endings[output.request];
        assert_int_equal(to->ends, 0);
        if (output.token >= 0)
            to->token[to->count++] = output.token;
        to->reason = output.finish_reason;
        to->ends += output.finish_reason != TARN_FINISH_NONE;
    }
}

static tarn_module *make_model(int64_t vocab_size)
{
    const tarn_llama_config config = {.vocab_size = vocab_size,
                                      .context = 256,
                                      .layers = 1,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .hidden_size = 16,
                                      .ffn_size = 32,
                                      .head_dim = 8};
    return add_noise(tarn_model_llama(&config, CPU, 3));
}

/* An engine with the two adapters of the folder "1" and "2", which are written first. */
static tarn_engine *open_engine(tarn_module *model, const tarn_engine_options *options)
{
    tarn_engine *opened = tarn_engine_new(model, options);
    for (int i = 1; TARN__HAVE_JANSSON && i < 3; i++)
        assert_int_equal(tarn_engine_add_adapter(opened, scratch(i == 1 ? "1" : "2")), i);
    return opened;
}

static void write_adapters(void)
{
    for (int i = 1; TARN__HAVE_JANSSON && i < 3; i++) {
        tarn_module *model = make_model(VOCAB);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = i}));
        add_noise(model);
        assert_true(tarn_lora_save(model, scratch(i == 1 ? "1" : "2"), NULL));
        tarn_module_free(model);
    }
}

/* The tokens of each prompt alone. */
static void run_alone(tarn_module *model, int32_t (*expected)[NEW])
{
    uint64_t seed = test_seed(7);
    for (int i = 0; i < PROMPTS; i++) {
        const tarn_generate_options options = options_of(i);
        length[i] = 1 + random_below(&seed, 150);
        for (int64_t k = 0; k < length[i]; k++)
            prompt[i][k] = (int32_t)(i < 4 && k < 70 ? k % VOCAB : random_below(&seed, VOCAB));
        tarn_engine *alone = open_engine(model, NULL);
        int64_t count = 0;
        assert_int_equal(tarn_engine_add(alone, prompt[i], length[i], &options), 1);
        while (tarn_engine_step(alone) > 0)
            for (tarn_engine_output output; tarn_engine_next(alone, &output);)
                if (output.token >= 0)
                    expected[i][count++] = output.token;
        assert_int_equal(count, NEW);
        tarn_engine_free(alone);
    }
}

static void requests_come_from_any_thread_while_one_steps(void **state)
{
    (void)state;
    int32_t expected[PROMPTS][NEW];
    pthread_t thread[CLIENTS];
    tarn_engine_stats stats;
    tarn_module *model = make_model(VOCAB);
    write_adapters();
    run_alone(model, expected);
    engine = open_engine(model, &(tarn_engine_options){.sequences = 8, .prompt_tokens = 64});
    assert_ok();
    failures = 0;
    clients_left = CLIENTS;
    for (uintptr_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, client, (void *)i), 0);
    while (clients_left > 0 || tarn_engine_wait(engine, 0)) {
        tarn_engine_wait(engine, 10);
        assert_true(tarn_engine_step(engine) >= 0);
        take_outputs();
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(thread[i], NULL);
    assert_ok();
    assert_int_equal(failures, 0);
    int cancelled = 0;
    for (int i = 1; i <= REQUESTS; i++) {
        assert_int_equal(endings[i].ends, 1);
        cancelled += endings[i].reason == TARN_FINISH_CANCELLED;
        if (is_cancelled[i])
            continue;
        assert_int_equal(endings[i].reason, TARN_FINISH_LENGTH);
        assert_memory_equal(endings[i].token, expected[prompt_of[i]], sizeof(expected[0]));
    }
    assert_true(cancelled > 0);
    assert_true(tarn_engine_query(engine, &stats) && stats.added == REQUESTS && stats.free_pages == stats.pages);
    assert_true(stats.running == 0 && stats.waiting == 0 && stats.finished + stats.cancelled == REQUESTS);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

static void *add_late(void *arg)
{
    const int32_t token = 1;
    (void)arg;
    failures += tarn_engine_add(engine, &token, 1, &(tarn_generate_options){.max_tokens = 1}) != 1;
    return NULL;
}

static void an_idle_engine_waits_for_requests(void **state)
{
    (void)state;
    pthread_t thread;
    tarn_module *model = make_model(VOCAB);
    engine = tarn_engine_new(model, NULL);
    failures = 0;
    memset(endings, 0, sizeof(endings));
    assert_false(tarn_engine_wait(engine, 0.01));
    assert_true(tarn_engine_wake(engine));
    assert_false(tarn_engine_wait(engine, 1e12)); /* it was woken before */
    assert_ok();
    assert_false(tarn_engine_wait(engine, -1));
    assert_error(TARN_ERROR_ARGUMENT, "engine_wait: seconds is -1");
    assert_int_equal(pthread_create(&thread, NULL, add_late, NULL), 0);
    assert_true(tarn_engine_wait(engine, 1e12));
    pthread_join(thread, NULL);
    assert_int_equal(failures, 0);
    assert_int_equal(tarn_engine_step(engine), 1);
    assert_true(tarn_engine_wait(engine, 1e12)); /* an output */
    take_outputs();
    assert_false(tarn_engine_wait(engine, 0));
    tarn_engine_free(engine);
    tarn_module_free(model);
}

static tarn_grammar *grammar;
static atomic_bool is_added;

static void *add_with_grammar(void *arg)
{
    const int32_t token = 1;
    (void)arg;
    failures += tarn_engine_add(engine, &token, 1, &(tarn_generate_options){.max_tokens = 3, .grammar = grammar}) != 1;
    is_added = true;
    return NULL;
}

/* A step that computes a mask has the grammar's lock: the request is there before it is released. */
static void adding_does_not_wait_for_the_mask_of_a_grammar(void **state)
{
    (void)state;
    pthread_t thread;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *vocab = tarn_grammar_vocab_new(t, NULL);
    tarn_module *model = make_model(tarn_tokenizer_count(t));
    grammar = tarn_grammar_regex(vocab, "ab+", 3);
    engine = tarn_engine_new(model, NULL);
    failures = 0;
    is_added = false;
    memset(endings, 0, sizeof(endings));
    pthread_mutex_lock(&grammar->lock);
    assert_int_equal(pthread_create(&thread, NULL, add_with_grammar, NULL), 0);
    for (int i = 0; i < 10000 && !is_added; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    bool was_added = is_added;
    pthread_mutex_unlock(&grammar->lock);
    pthread_join(thread, NULL);
    assert_true(was_added);
    assert_int_equal(failures, 0);
    tarn_grammar_free(grammar); /* the request keeps it */
    while (tarn_engine_step(engine) > 0)
        take_outputs();
    assert_true(endings[1].token[0] == 'a' && endings[1].token[1] == 'b' && endings[1].token[2] == 'b');
    tarn_engine_free(engine);
    tarn_module_free(model);
    tarn_grammar_vocab_free(vocab);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(requests_come_from_any_thread_while_one_steps),
        in_scope(an_idle_engine_waits_for_requests),
        in_scope(adding_does_not_wait_for_the_mask_of_a_grammar),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

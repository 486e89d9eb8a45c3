/* test_eval_ranks.c: evaluations of opened runs, with threads as ranks: bitwise identical for 1 to 4 ranks, for a
 * classifier, a regression and a language model, also with more ranks than batches; other data on a rank is an error
 * on all. */
#include <pthread.h>
#include <tarn/parallel.h>
#include <tarn/train.h>
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

enum { MAX_RANKS = 4, CLASSES = 10 };

/* What an evaluation gives; the members that it does not give are 0. */
typedef struct result {
    tarn_evaluation all;
    tarn_text_evaluation text;
    tarn_regression_evaluation regression;
    int64_t samples[CLASSES], correct[CLASSES];
} result;

typedef struct rank {
    pthread_t thread;
    const char *folder, *data;
    int64_t batch_size;
    unsigned delay; /* microseconds from opening the run to its evaluation */
    tarn_comm *comm;
    result found;
    bool good;
    char error[512];
} rank;

static void *run_rank(void *argument)
{
    rank *r = argument;
    tarn_run *run = tarn_run_open_with(r->folder, tarn_device_cpu(), &(tarn_run_open_options){.comm = r->comm});
    const char *task = run ? tarn_run_task(run) : "";
    usleep(r->delay);
    if (strcmp(task, "lm") == 0)
        r->good = tarn_run_evaluate_text(run, r->data, r->batch_size, &r->found.text);
    else if (strcmp(task, "regress") == 0)
        r->good = tarn_run_evaluate_regression(run, r->data, r->batch_size, &r->found.regression);
    else if (run)
        r->good = tarn_run_evaluate(run, r->data, r->batch_size, &r->found.all, r->found.samples, r->found.correct);
    snprintf(r->error, sizeof(r->error), "%s", tarn_error());
    tarn_clear_error();
    tarn_run_close(run);
    return NULL;
}

static double timeout; /* seconds; 0: the default */

static void run_ranks(rank *ranks, int size)
{
    tarn_comm *comms[MAX_RANKS];
    assert_true(tarn_comm_threads(size, comms));
    for (int i = 0; i < size; i++) {
        assert_true(timeout == 0 || tarn_comm_set_timeout(comms[i], timeout));
        ranks[i].comm = size > 1 ? comms[i] : NULL;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++)
        tarn_comm_free(comms[i]);
}

static void train(const char *model, const char *data, const char *folder)
{
    tarn_train_options o = {.steps = 3, .batch_size = 8, .seed = 3, .device = "cpu"};
    snprintf(o.model, sizeof(o.model), "%s", model);
    snprintf(o.data, sizeof(o.data), "%s", data);
    snprintf(o.out, sizeof(o.out), "%s", folder);
    if (strcmp(model, "gpt2") == 0)
        o.layers = 1, o.heads = 2, o.hidden_size = 16, o.context = 16;
    tarn_trainer *trainer = tarn_trainer_new(&o);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

/* Bitwise identical on 1 to 4 ranks, and on every one of them. */
static void assert_same(const char *folder, const char *data, int64_t batch_size)
{
    result alone = {0};
    for (int size = 1; size <= MAX_RANKS; size++) {
        rank ranks[MAX_RANKS] = {{0}};
        for (int i = 0; i < size; i++)
            ranks[i] = (rank){.folder = folder, .data = data, .batch_size = batch_size};
        run_ranks(ranks, size);
        for (int i = 0; i < size; i++) {
            if (!ranks[i].good)
                fail_msg("rank %d of %d: %s", i, size, ranks[i].error);
            if (size == 1)
                alone = ranks[0].found;
            assert_memory_equal(&ranks[i].found, &alone, sizeof(alone));
        }
    }
    assert_true(alone.all.samples + alone.text.tokens + alone.regression.samples > 0);
}

static const char *text_data(void)
{
    static char data[1100], text[4000];
    for (size_t i = 0; i + 1 < sizeof(text); i++)
        text[i] = "the cat sat on a mat. "[(i * i / 7 + i) % 22];
    snprintf(data, sizeof(data), "text:%s", write_text("text.txt", text));
    return data;
}

static void classifiers_are_evaluated_bitwise_identically(void **state)
{
    (void)state;
    train("mlp", "digits:200", scratch("digits"));
    assert_same(scratch("digits"), NULL, 7);
    assert_same(scratch("digits"), NULL, 1000); /* one batch: ranks without any */
    assert_same(scratch("digits"), "digits:50", 9);
}

static void regressions_are_evaluated_bitwise_identically(void **state)
{
    (void)state;
    char text[4096], data[1100];
    size_t used = (size_t)snprintf(text, sizeof(text), "a,b,y\n");
    for (int i = 0; i < 120; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%d.25,%d,%d.5\n", i % 17, i % 5, i % 17 - i % 5);
    snprintf(data, sizeof(data), "csv:%s", write_text("table.csv", text));
    tarn_train_options o = {.steps = 3, .batch_size = 8, .seed = 3, .device = "cpu"};
    snprintf(o.model, sizeof(o.model), "mlp");
    snprintf(o.data, sizeof(o.data), "%s", data);
    snprintf(o.out, sizeof(o.out), "%s", scratch("table"));
    assert_true(tarn_train_options_set(&o, "target", "y") && tarn_train_options_set(&o, "task", "regress"));
    tarn_trainer *trainer = tarn_trainer_new(&o);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_same(scratch("table"), NULL, 3);
}

static void language_models_are_evaluated_bitwise_identically(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    train("gpt2", text_data(), scratch("lm"));
    assert_same(scratch("lm"), NULL, 3);
    assert_same(scratch("lm"), text_data(), 5);
}

static void other_data_on_a_rank_is_an_error_on_all(void **state)
{
    (void)state;
    train("mlp", "digits:200", scratch("other"));
    rank ranks[2] = {{.folder = scratch("other"), .data = "digits:50", .batch_size = 8}, {0}};
    char folder[1100];
    snprintf(folder, sizeof(folder), "%s", scratch("other"));
    ranks[0].folder = ranks[1].folder = folder;
    ranks[1].data = "digits:60", ranks[1].batch_size = 8;
    run_ranks(ranks, 2);
    for (int i = 0; i < 2; i++) {
        assert_false(ranks[i].good);
        assert_contains(ranks[i].error, "evaluates 12 samples in batches of 8");
    }
}

/* Ranks read their models and data at their own speed, which is no step. */
static void a_slow_rank_is_waited_for_longer_than_in_a_step(void **state)
{
    (void)state;
    train("mlp", "digits:200", scratch("slow"));
    rank ranks[2] = {{.folder = scratch("slow"), .batch_size = 8}, {0}};
    ranks[1] = ranks[0];
    ranks[1].delay = 2500000;
    timeout = 1;
    run_ranks(ranks, 2);
    timeout = 0;
    for (int i = 0; i < 2; i++)
        if (!ranks[i].good)
            fail_msg("rank %d: %s", i, ranks[i].error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classifiers_are_evaluated_bitwise_identically),
        cmocka_unit_test(regressions_are_evaluated_bitwise_identically),
        cmocka_unit_test(language_models_are_evaluated_bitwise_identically),
        cmocka_unit_test(other_data_on_a_rank_is_an_error_on_all),
        cmocka_unit_test(a_slow_rank_is_waited_for_longer_than_in_a_step),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

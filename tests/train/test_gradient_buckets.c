/* test_gradient_buckets.c: sums of gradients in buckets, with threads as ranks: bitwise identical whatever the buckets
 * are and whenever they are summed, sums that have begun before the backward pass ends, and failures in the middle. */
#include <pthread.h>
#include <tarn/parallel.h>
#include <time.h>

#include "support/check.h"
#include "train/loop/gradient_buckets.h"

enum { RANKS = 2, SHARE = 2, PARAMETERS = 6, SIZE = 200, ELEMENTS = PARAMETERS * SIZE };

typedef struct rank_run {
    pthread_t thread;
    tarn_comm *comm;
    int rank;
    int64_t bytes; /* of a bucket */
    bool overlaps, fails;
    tarn__gradient_buckets *buckets;
    bool (*passed)(void *ctx, uint64_t sequence); /* what the buckets do during the pass */
    int count, begun;                             /* buckets, and those that had begun when the pass ended */
    double values[ELEMENTS];
    bool good;
    char error[512];
} rank_run;

static tarn_module *module_of(void)
{
    char name[16];
    tarn_module *module = tarn_module_new("chain", unchanged, NULL, NULL);
    for (int i = 0; i < PARAMETERS; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        tarn_module_add_parameter(
            module, name, tarn_sin(tarn_arange(0.1 * i + 1, 0.1 * i + 1 + SIZE - 0.5, 1, TARN_F32, tarn_device_cpu())));
    }
    return module;
}

/* Parameter 4 is not used. Parameter 0 is used at the end once more. */
static bool run_pass(tarn_module *module, double number)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_mul(tarn_module_parameter(module, 0), tarn_scalar(number));
    for (int i = 1; i < PARAMETERS; i++)
        x = i == 4 ? x : tarn_tanh(tarn_mul(x, tarn_module_parameter(module, i)));
    x = tarn_mul(x, tarn_module_parameter(module, 0));
    bool good = tarn_backward(tarn_sum(x, TARN_ALL_AXES, false));
    tarn_scope_close(scope);
    return good;
}

static bool refuse(void)
{
    return tarn_set_error(TARN_ERROR_FORMAT, "rank 1 does not want to");
}

/* In the middle of the pass: later buckets are not summed, whichever thread is faster. */
static bool pass_or_fail(void *ctx, uint64_t sequence)
{
    rank_run *r = ctx;
    return r->buckets->begun < 2 ? r->passed(r->buckets, sequence) : refuse();
}

static void fail_in_the_pass(rank_run *r, tarn__gradient_buckets *b)
{
    r->buckets = b;
    r->passed = b->watch.passed;
    b->watch.passed = pass_or_fail;
    b->watch.ctx = r;
}

static bool sum_gradients(rank_run *r, tarn_module *module, tarn_optimizer *optimizer, tarn__sum_queue *queue)
{
    tarn__gradient_buckets b;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn__gradient_buckets_open(&b,
                                            &(tarn__gradient_buckets){.function = "test",
                                                                      .flats = &optimizer->flats,
                                                                      .comm = r->comm,
                                                                      .queue = queue,
                                                                      .leaves = (int64_t)RANKS * SHARE,
                                                                      .first_leaf = (int64_t)r->rank * SHARE},
                                            r->bytes);
    r->count = b.count;
    for (int leaf = 0; good && leaf < SHARE; leaf++) {
        bool is_last = leaf == SHARE - 1;
        tarn_optimizer_zero_grad(optimizer);
        if (is_last)
            tarn__gradient_buckets_watch(&b);
        if (is_last && r->fails && r->overlaps)
            fail_in_the_pass(r, &b);
        good = run_pass(module, 0.3 + 0.1 * (r->rank * SHARE + leaf));
        r->begun = b.begun;
        if (good && r->fails && is_last)
            good = refuse();
        good = good && (is_last ? tarn__gradient_buckets_finish : tarn__gradient_buckets_add)(&b);
    }
    tarn__gradient_buckets_close(&b);
    tarn_scope_close(scope);
    return good;
}

static void *run_rank(void *argument)
{
    rank_run *r = argument;
    tarn_module *module = module_of();
    tarn_optimizer *optimizer = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f});
    tarn__sum_queue *queue = r->overlaps ? tarn__sum_queue_new("test", r->comm) : NULL;
    r->good = optimizer && (queue || !r->overlaps) && sum_gradients(r, module, optimizer, queue);
    for (int i = 0; r->good && i < optimizer->flats.segments; i++) {
        const tarn__flat_segment *s = &optimizer->flats.segment[i];
        r->good = tarn_read_f64(s->parameter->grad, r->values + s->order * SIZE, SIZE);
    }
    snprintf(r->error, sizeof(r->error), "%s", tarn_error());
    if (!r->good)
        tarn_comm_abort(r->comm, r->error);
    tarn_clear_error();
    tarn__sum_queue_free(queue);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    return NULL;
}

static void run_ranks(rank_run *ranks, int64_t bytes, bool overlaps, int failing)
{
    tarn_comm *comms[RANKS];
    assert_true(tarn_comm_threads(RANKS, comms));
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (rank_run){.comm = comms[i], .rank = i, .bytes = bytes, .overlaps = overlaps, .fails = i == failing};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < RANKS; i++)
        tarn_comm_free(comms[i]);
}

static void buckets_change_no_bit_and_begin_during_the_pass(void **state)
{
    (void)state;
    static rank_run whole[RANKS], ranks[RANKS];
    run_ranks(whole, 0, false, -1);
    assert_int_equal(whole[0].count, 1);
    for (int i = 0; i < 4; i++) {
        bool overlaps = i >= 2;
        run_ranks(ranks, i % 2 ? 4 * SIZE + 1 : 1, overlaps, -1);
        for (int k = 0; k < RANKS; k++) {
            if (!ranks[k].good)
                fail_msg("rank %d: %s", k, ranks[k].error);
            for (int e = 0; e < ELEMENTS; e++)
                if (ranks[k].values[e] != whole[0].values[e])
                    fail_msg("case %d, rank %d: parameter %d, element %d: %g, not %g", i, k, e / SIZE, e % SIZE,
                             ranks[k].values[e], whole[0].values[e]);
            assert_int_equal(ranks[k].count, i % 2 ? PARAMETERS / 2 : PARAMETERS);
            assert_int_equal(ranks[k].begun, overlaps ? ranks[k].count : 0);
        }
    }
}

/* The other rank is in the middle of its sums, or waits for the first. */
static void a_rank_that_fails_in_the_middle_ends_the_others(void **state)
{
    (void)state;
    static rank_run ranks[RANKS];
    time_t begin = time(NULL);
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        run_ranks(ranks, 1, overlaps, 1);
        assert_false(ranks[0].good || ranks[1].good);
        assert_non_null(strstr(ranks[1].error, "rank 1 does not want to"));
        assert_non_null(strstr(ranks[0].error, "rank 1 on "));
    }
    assert_true(time(NULL) - begin < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_change_no_bit_and_begin_during_the_pass),
        cmocka_unit_test(a_rank_that_fails_in_the_middle_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

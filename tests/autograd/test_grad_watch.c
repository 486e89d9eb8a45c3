/* test_grad_watch.c: a gradient that a watch calls complete does not change any more: of parameters that are used once,
 * several times, inside checkpointed functions, or not at all. */
#include "autograd/tape.h"
#include "support/check.h"

enum { LEAVES = 5, SIZE = 6 };

typedef struct leaf_state {
    tarn_tensor *leaf;
    int seen_at; /* number of the call that found it complete; 0: not yet */
    double then[SIZE];
} leaf_state;

typedef struct watched {
    leaf_state state[LEAVES];
    tarn__grad_watch watch;
    int calls;
    bool fails;
} watched;

static void read_gradient(const tarn_tensor *leaf, double *values)
{
    memset(values, 0, sizeof(double) * SIZE);
    if (tarn_grad(leaf))
        assert_true(tarn_read_f64(tarn_grad(leaf), values, SIZE));
}

static bool passed(void *ctx, uint64_t sequence)
{
    watched *w = ctx;
    w->calls++;
    if (w->fails)
        return tarn_set_error(TARN_ERROR_FORMAT, "the watch does not want to");
    for (int i = 0; i < LEAVES; i++) {
        leaf_state *s = &w->state[i];
        if (s->seen_at || !tarn__grad_is_complete(&w->watch, s->leaf, sequence))
            continue;
        s->seen_at = w->calls;
        read_gradient(s->leaf, s->then);
    }
    return true;
}

static tarn_tensor *block(tarn_tensor *const *inputs, int count, void *ctx)
{
    watched *w = ctx;
    (void)count;
    return tarn_tanh(tarn_mul(tarn_mul(inputs[0], w->state[2].leaf), w->state[1].leaf));
}

/* Leaf 0 is used first, 1 before and in a checkpointed function, 2 inside of it only, 3 last and twice, 4 never. */
static tarn_tensor *loss_of(watched *w)
{
    tarn_tensor *x = tarn_mul(w->state[0].leaf, tarn_scalar(0.3));
    x = tarn_exp(tarn_mul(x, w->state[1].leaf));
    x = tarn_checkpoint(block, w, &x, 1);
    x = tarn_mul(tarn_sin(tarn_mul(x, w->state[3].leaf)), w->state[3].leaf);
    return good(tarn_sum(x, TARN_ALL_AXES, false));
}

static void open_leaves(watched *w)
{
    *w = (watched){.watch.passed = passed};
    w->watch.ctx = w;
    for (int i = 0; i < LEAVES; i++)
        w->state[i].leaf =
            good(tarn_requires_grad(tarn_normal(TARN_SHAPE(SIZE), 0, 1, TARN_F32, tarn_device_cpu()), true));
}

static void complete_gradients_do_not_change(void **state)
{
    (void)state;
    watched w;
    open_leaves(&w);
    /* an earlier pass: leaves have been used before the watch, the last one only there */
    assert_true(tarn_backward(good(tarn_sum(tarn_mul(loss_of(&w), w.state[4].leaf), TARN_ALL_AXES, false))));
    tarn__grad_watch_open(&w.watch);
    assert_true(tarn_backward(loss_of(&w)));
    tarn__grad_watch_close();
    for (int i = 0; i < LEAVES; i++) {
        double end[SIZE];
        read_gradient(w.state[i].leaf, end);
        assert_memory_equal(end, w.state[i].then, sizeof(end));
    }
    assert_int_equal(w.state[4].seen_at, 1);
    assert_true(w.state[3].seen_at > 1);
    assert_true(w.state[2].seen_at > w.state[3].seen_at);
    assert_true(w.state[1].seen_at > w.state[2].seen_at);
    assert_int_equal(w.state[0].seen_at, w.calls);
}

static void a_watch_that_fails_ends_the_pass(void **state)
{
    (void)state;
    watched w;
    open_leaves(&w);
    w.fails = true;
    tarn__grad_watch_open(&w.watch);
    assert_false(tarn_backward(loss_of(&w)));
    tarn__grad_watch_close();
    assert_int_equal(w.calls, 1);
    assert_error(TARN_ERROR_FORMAT, "the watch does not want to");
}

/* Gradients that were complete would change. */
static void a_second_pass_under_a_watch_is_an_error(void **state)
{
    (void)state;
    watched w;
    open_leaves(&w);
    tarn__grad_watch_open(&w.watch);
    assert_true(tarn_backward(loss_of(&w)));
    assert_false(tarn_backward(loss_of(&w)));
    tarn__grad_watch_close();
    assert_error(TARN_ERROR_INTERNAL, "a second pass under one watch");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(complete_gradients_do_not_change),
        in_scope(a_watch_that_fails_ends_the_pass),
        in_scope(a_second_pass_under_a_watch_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

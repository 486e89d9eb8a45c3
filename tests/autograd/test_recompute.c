/* test_recompute.c: selective recompute: norms and GELU are recomputed in backward, bitwise identical, and less is
 * stored. */
#include "autograd/tape.h"

#include <tarn/profile.h>

#include "support/check.h"

#define CPU tarn_device_cpu()
enum { ROWS = 64, WIDTH = 48, LEAVES = 7 };

/* x, delta; a norm's weight and bias; the weights of an mlp, and one of a linear layer. */
static void make_leaves(tarn_tensor **leaf, tarn_dtype dtype)
{
    const tarn_shape shapes[LEAVES] = {
        TARN_SHAPE(ROWS, WIDTH),      TARN_SHAPE(ROWS, WIDTH),      TARN_SHAPE(WIDTH),       TARN_SHAPE(WIDTH),
        TARN_SHAPE(4 * WIDTH, WIDTH), TARN_SHAPE(WIDTH, 4 * WIDTH), TARN_SHAPE(WIDTH, WIDTH)};
    tarn_seed(7);
    for (int i = 0; i < LEAVES; i++)
        leaf[i] = good(tarn_requires_grad(tarn_normal(shapes[i], 0, 0.3, dtype, CPU), true));
}

/* Parts of a block one after the other, and none of the handles but the last. */
static tarn_tensor *network(tarn_tensor **leaf, bool rms)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *sum, *y = tarn_residual_norm(leaf[0], leaf[1], leaf[2], rms ? NULL : leaf[3], rms, 1e-5, &sum);
    y = tarn_mlp(y, leaf[4], leaf[5], NULL, NULL);
    y = rms ? tarn_rmsnorm(y, leaf[2], 1e-5) : tarn_layernorm(y, leaf[2], leaf[3], 1e-5);
    y = tarn_add(tarn_linear_apply(y, leaf[6], NULL), sum);
    y = tarn_sum(tarn_square(y), TARN_ALL_AXES, false);
    good(tarn_scope_return(scope, good(y)));
    tarn_scope_close(scope);
    return y;
}

/* The gradients with or without selective recompute; returns the bytes stored between forward and backward. */
static int64_t gradients(tarn_tensor **leaf, bool rms, bool recompute, tarn_tensor **grad)
{
    int64_t before = tarn_memory_of(CPU).used;
    if (recompute)
        tarn__recompute_open();
    tarn_tensor *y = network(leaf, rms);
    if (recompute)
        tarn__recompute_close();
    int64_t stored = tarn_memory_of(CPU).used - before;
    assert_true(tarn_backward(y));
    for (int i = 0; i < LEAVES; i++) {
        grad[i] = tarn_grad(leaf[i]) ? good(tarn_clone(tarn_grad(leaf[i]))) : NULL;
        tarn_zero_grad(leaf[i]);
    }
    return stored;
}

static void gradients_are_bitwise_identical_and_less_is_stored(void **state)
{
    (void)state;
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
    for (int k = 0; k < 8; k++) {
        bool rms = k % 2 == 1;
        tarn_tensor *leaf[LEAVES], *plain[LEAVES], *recomputed[LEAVES];
        make_leaves(leaf, dtypes[k / 2]);
        int64_t stored = gradients(leaf, rms, false, plain),
                stored_recomputing = gradients(leaf, rms, true, recomputed);
        for (int i = 0; i < LEAVES; i++)
            if (plain[i])
                assert_close(recomputed[i], plain[i], 0);
            else
                assert_null(recomputed[i]);
        /* two norms and a GELU of four widths */
        int64_t saved = ROWS * WIDTH * (int64_t)tarn_dtype_size(dtypes[k / 2]) * 6;
        if (stored - stored_recomputing < saved)
            fail_msg("%lld bytes are stored, %lld with recompute: %lld less expected", (long long)stored,
                     (long long)stored_recomputing, (long long)saved);
    }
}

static void a_record_that_is_retained_is_walked_twice(void **state)
{
    (void)state;
    tarn_tensor *leaf[LEAVES];
    make_leaves(leaf, TARN_F32);
    tarn__recompute_open();
    tarn_tensor *y = network(leaf, false);
    tarn__recompute_close();
    assert_true(tarn_backward_from(y, NULL, &(tarn_backward_options){.retain = true}));
    tarn_tensor *once = good(tarn_clone(tarn_grad(leaf[6])));
    tarn_zero_grad(leaf[6]);
    assert_true(tarn_backward(y));
    assert_close(tarn_grad(leaf[6]), once, 0);
    assert_false(tarn_backward(y));
    assert_error(TARN_ERROR_ARGUMENT, "freed by an earlier backward");
}

static void what_a_norm_is_made_of_must_not_change(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(3, 5), 0, 1, TARN_F32, CPU));
    tarn_tensor *weight = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(5, 5), TARN_F32, CPU), true));
    tarn_tensor *scale = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(5), TARN_F32, CPU), true));
    tarn__recompute_open();
    tarn_tensor *y =
        good(tarn_sum(tarn_linear_apply(tarn_rmsnorm(x, scale, 1e-5), weight, NULL), TARN_ALL_AXES, false));
    tarn__recompute_close();
    assert_true(tarn_add_inplace(x, tarn_scalar(1)));
    assert_false(tarn_backward(y));
    assert_error(TARN_ERROR_ARGUMENT, "rmsnorm needs a tensor [3, 5] that was overwritten");
}

static void anomaly_mode_works_as_ever(void **state)
{
    (void)state;
    tarn_tensor *leaf[LEAVES], *plain[LEAVES], *watched[LEAVES];
    make_leaves(leaf, TARN_F32);
    gradients(leaf, false, true, plain);
    tarn_set_anomaly(true);
    gradients(leaf, false, true, watched);
    tarn_set_anomaly(false);
    assert_close(watched[4], plain[4], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(gradients_are_bitwise_identical_and_less_is_stored),
                                       in_scope(a_record_that_is_retained_is_walked_twice),
                                       in_scope(what_a_norm_is_made_of_must_not_change),
                                       in_scope(anomaly_mode_works_as_ever)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

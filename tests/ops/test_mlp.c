/* test_mlp.c: tarn_mlp() and tarn_mlp_with() against the operations it fuses. TARN_TEST_DEVICE names the device;
 * default: the CPU. */
#include "support/check.h"

static tarn_device device;

enum { X, UP, DOWN, UP_BIAS, DOWN_BIAS, OPERANDS };

typedef struct sizes {
    int64_t rows, in, hidden, out;
} sizes;

static void make_operands(sizes s, tarn_dtype dtype, tarn_tensor **o)
{
    tarn_seed(3);
    o[X] = tarn_normal(TARN_SHAPE(s.rows, s.in), 0, 1, dtype, device);
    o[UP] = tarn_normal(TARN_SHAPE(s.hidden, s.in), 0, 0.3, dtype, device);
    o[DOWN] = tarn_normal(TARN_SHAPE(s.out, s.hidden), 0, 0.3, dtype, device);
    o[UP_BIAS] = tarn_normal(TARN_SHAPE(s.hidden), 0, 1, dtype, device);
    o[DOWN_BIAS] = tarn_normal(TARN_SHAPE(s.out), 0, 1, dtype, device);
    for (int i = 0; i < OPERANDS; i++)
        tarn_requires_grad(good(o[i]), true);
}

static const struct {
    tarn_activation_kind kind;
    tarn_tensor *(*apply)(tarn_tensor *x);
} acts[] = {{TARN_GELU, tarn_gelu}, {TARN_GELU_ERF, tarn_gelu_erf}, {TARN_RELU, tarn_relu}, {TARN_SILU, tarn_silu}};

enum { ACTS = sizeof(acts) / sizeof(acts[0]) };

static tarn_tensor *composed(tarn_tensor **o, int act)
{
    return tarn_linear_apply(acts[act].apply(tarn_linear_apply(o[X], o[UP], o[UP_BIAS])), o[DOWN], o[DOWN_BIAS]);
}

/* The largest difference, as a share of the largest value: what is rounded between the steps, or not, differs by a unit
 * in the last place of a sum. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 0;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void agrees_with_its_steps(sizes s, int act, tarn_dtype dtype, double tolerance)
{
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, dtype, one);
    make_operands(s, dtype, other);
    tarn_tensor *fused = good(tarn_mlp_with(one[X], one[UP], one[DOWN], one[UP_BIAS], one[DOWN_BIAS], acts[act].kind)),
                *steps = good(composed(other, act));
    assert_true(apart(fused, steps) < tolerance);
    tarn_tensor *g = good(tarn_normal_like(fused, 0, 1));
    assert_true(tarn_backward_from(fused, g, NULL) && tarn_backward_from(steps, g, NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) < tolerance);
    assert_ok();
}

static void every_dtype_agrees_with_its_steps(void **state)
{
    (void)state;
    static const sizes all[] = {{64, 32, 128, 48}, {7, 5, 9, 3}, {1, 16, 64, 16}, {256, 64, 256, 64}};
    for (size_t k = 0; k < ACTS * sizeof(all) / sizeof(all[0]); k++) {
        size_t i = k / ACTS;
        int act = (int)(k % ACTS);
        agrees_with_its_steps(all[i], act, TARN_F64, 1e-13);
        agrees_with_its_steps(all[i], act, TARN_F32, 1e-5);
        agrees_with_its_steps(all[i], act, TARN_BF16, 0x1p-7);
        agrees_with_its_steps(all[i], act, TARN_F16, 0x1p-10);
    }
}

static void a_second_backward_adds(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){64, 32, 128, 48}, TARN_BF16, o);
    tarn_tensor *y = good(tarn_mlp(o[X], o[UP], o[DOWN], o[UP_BIAS], o[DOWN_BIAS])),
                *g = good(tarn_normal_like(y, 0, 1));
    assert_true(tarn_backward_from(y, g, &(tarn_backward_options){.retain = true}));
    tarn_tensor *first = good(tarn_clone(tarn_grad(o[UP_BIAS]))), *weight = good(tarn_clone(tarn_grad(o[UP])));
    assert_true(tarn_backward_from(y, g, NULL));
    assert_close(tarn_grad(o[UP_BIAS]), tarn_add(first, first), 1e-5);
    assert_close(tarn_grad(o[UP]), tarn_add(weight, weight), 1e-5);
}

/* Whatever is frozen, the other gradients are the same, and what is frozen has none. */
static void any_operand_may_be_frozen(void **state)
{
    (void)state;
    tarn_tensor *all[OPERANDS], *o[OPERANDS];
    const sizes s = {64, 32, 128, 48};
    make_operands(s, TARN_F32, all);
    tarn_tensor *y = good(tarn_mlp(all[X], all[UP], all[DOWN], all[UP_BIAS], all[DOWN_BIAS])),
                *g = good(tarn_normal_like(y, 0, 1));
    assert_true(tarn_backward_from(y, g, NULL));
    for (unsigned frozen = 0; frozen < (1u << OPERANDS) - 1; frozen++) {
        make_operands(s, TARN_F32, o);
        for (int i = 0; i < OPERANDS; i++)
            tarn_requires_grad(o[i], !(frozen >> i & 1));
        assert_true(tarn_backward_from(tarn_mlp(o[X], o[UP], o[DOWN], o[UP_BIAS], o[DOWN_BIAS]), g, NULL));
        for (int i = 0; i < OPERANDS; i++)
            if (frozen >> i & 1)
                assert_null(tarn_grad(o[i]));
            else
                assert_close(tarn_grad(o[i]), tarn_grad(all[i]), 1e-6);
    }
    assert_ok();
}

static int64_t bytes_stored(tarn_tensor **o)
{
    int64_t before = tarn_memory_of(device).used;
    tarn_scope *scope = tarn_scope_open();
    tarn_scope_return(scope, tarn_mlp(o[X], o[UP], o[DOWN], o[UP_BIAS], o[DOWN_BIAS]));
    tarn_scope_close(scope);
    assert_ok();
    return tarn_memory_of(device).used - before;
}

static void nothing_is_stored_for_gradients_of_frozen_weights(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){64, 32, 1024, 48}, TARN_F32, o);
    int64_t trained = bytes_stored(o);
    tarn_requires_grad(o[DOWN], false);
    assert_true(trained - bytes_stored(o) >= 64 * 1024 * 4); /* what comes out of GELU */
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {in_scope(every_dtype_agrees_with_its_steps), in_scope(a_second_backward_adds),
                                       in_scope(any_operand_may_be_frozen),
                                       in_scope(nothing_is_stored_for_gradients_of_frozen_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

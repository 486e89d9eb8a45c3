/* test_lora_linear.c: LoRA linear layers as one operation against the composed steps: one layer and several with one
 * input, with and without biases and adapters, both layouts of the weight, unused results, accumulated gradients.
 * TARN_TEST_DEVICE names the device; default: the CPU. */
#include "ops/internal.h"
#include "support/check.h"

enum { MOST = TARN__MAX_LORA_LINEARS, IN = 10 };

static tarn_device device;

static const int64_t outs[MOST] = {12, 6, 7}, ranks[MOST] = {3, 2, 4};
static const double scales[MOST] = {2, 0.5, -1.25};

typedef struct trial {
    tarn_dtype dtype;
    tarn_shape shape; /* of x */
    int count;
    unsigned adapted, biased; /* bit i: layer i is */
    unsigned used;            /* bit i: its result is */
    bool in_out;
    double tolerance;
} trial;

typedef struct network {
    tarn_tensor *x;
    tarn__lora_linear layer[MOST];
} network;

static tarn_tensor *draw(tarn_shape shape, tarn_dtype dtype, bool is_trained)
{
    tarn_tensor *x = good(tarn_normal(shape, 0, 1, dtype, device));
    return is_trained ? tarn_requires_grad(x, true) : x;
}

static network make(const trial *t)
{
    network n = {.x = draw(t->shape, t->dtype, true)};
    for (int i = 0; i < t->count; i++) {
        tarn__lora_linear *l = &n.layer[i];
        l->weight = draw(t->in_out ? TARN_SHAPE(IN, outs[i]) : TARN_SHAPE(outs[i], IN), t->dtype, false);
        l->bias = t->biased >> i & 1 ? draw(TARN_SHAPE(outs[i]), t->dtype, false) : NULL;
        if (t->adapted >> i & 1) {
            l->a = draw(TARN_SHAPE(ranks[i], IN), t->dtype, true);
            l->b = draw(TARN_SHAPE(outs[i], ranks[i]), t->dtype, true);
            l->scale = scales[i];
        }
    }
    return n;
}

static tarn_tensor *wide(tarn_tensor *x)
{
    tarn_tensor *y = x ? good(tarn_clone(tarn_detach(tarn_cast(x, TARN_F64)))) : NULL;
    return y && tarn_needs_grad(x) ? tarn_requires_grad(y, true) : y;
}

/* The same numbers in f64, as leaves of their own. */
static network copy_of(const network *n, int count)
{
    network copy = {.x = wide(n->x)};
    for (int i = 0; i < count; i++) {
        const tarn__lora_linear *l = &n->layer[i];
        copy.layer[i] = (tarn__lora_linear){wide(l->weight), wide(l->bias), wide(l->a), wide(l->b), l->scale};
    }
    return copy;
}

static tarn_tensor *in_steps(const network *n, int i, bool in_out)
{
    const tarn__lora_linear *l = &n->layer[i];
    tarn_tensor *y = good((in_out ? tarn__linear_in_out : tarn_linear_apply)(n->x, l->weight, l->bias));
    if (!l->a)
        return y;
    tarn_tensor *h = tarn_mul(tarn_linear_apply(n->x, l->a, NULL), tarn_scalar(l->scale));
    return good(tarn_add(y, tarn_linear_apply(h, l->b, NULL)));
}

static void both_are_close(tarn_tensor *found, tarn_tensor *wanted, double tolerance)
{
    double *a = values_of(good(found)), *b = values_of(good(wanted)), size = 0;
    assert_int_equal(tarn_count(found), tarn_count(wanted));
    for (int64_t i = 0; i < tarn_count(found); i++)
        size = fmax(size, fabs(b[i]));
    for (int64_t i = 0; i < tarn_count(found); i++)
        assert_true(fabs(a[i] - b[i]) <= tolerance * size);
    free(a);
    free(b);
}

/* Twice: the second gradients are added to the first. */
static void agrees(const trial *t)
{
    network n = make(t), other = copy_of(&n, t->count);
    tarn_tensor *y[MOST];
    for (int round = 0; round < 2; round++) {
        assert_true(tarn__lora_linears(n.x, n.layer, t->count, t->in_out, y));
        for (int i = 0; i < t->count; i++) {
            tarn_tensor *wanted = in_steps(&other, i, t->in_out), *g = good(tarn_normal_like(y[i], 0, 1));
            both_are_close(y[i], wanted, t->tolerance);
            if (!(t->used >> i & 1))
                continue;
            y[i] = tarn_sum(tarn_mul(tarn_cast(y[i], TARN_F64), tarn_cast(g, TARN_F64)), TARN_ALL_AXES, false);
            assert_true(tarn_backward_from(wanted, good(tarn_cast(g, TARN_F64)), NULL));
        }
        tarn_tensor *all = NULL; /* one walk through the node */
        for (int i = 0; i < t->count; i++)
            if (t->used >> i & 1)
                all = all ? tarn_add(all, y[i]) : y[i];
        assert_true(tarn_backward(good(all)));
    }
    both_are_close(tarn_grad(n.x), tarn_grad(other.x), t->tolerance);
    for (int i = 0; i < t->count; i++)
        if (t->adapted & t->used & 1u << i) {
            both_are_close(tarn_grad(n.layer[i].a), tarn_grad(other.layer[i].a), t->tolerance);
            both_are_close(tarn_grad(n.layer[i].b), tarn_grad(other.layer[i].b), t->tolerance);
        }
    assert_ok();
}

static void one_layer_is_its_steps(void **state)
{
    (void)state;
    tarn_seed(1);
    for (int in_out = 0; in_out < 2; in_out++)
        for (unsigned biased = 0; biased < 2; biased++) {
            agrees(&(trial){TARN_F64, TARN_SHAPE(2, 5, IN), 1, 1, biased, 1, in_out, 1e-13});
            agrees(&(trial){TARN_F32, TARN_SHAPE(70, IN), 1, 1, biased, 1, in_out, 2e-6});
            agrees(&(trial){TARN_BF16, TARN_SHAPE(3, 30, IN), 1, 1, biased, 1, in_out, 2e-2});
            agrees(&(trial){TARN_F64, TARN_SHAPE(IN), 1, 1, biased, 1, in_out, 1e-13});
        }
}

static void layers_that_share_x_are_their_steps(void **state)
{
    (void)state;
    tarn_seed(2);
    for (unsigned adapted = 1; adapted < 8; adapted++)
        for (unsigned used = 1; used < 8; used++)
            agrees(&(trial){TARN_F64, TARN_SHAPE(2, 40, IN), 3, adapted, adapted & 5, used, used % 2 == 0, 1e-13});
    agrees(&(trial){TARN_F32, TARN_SHAPE(90, IN), 3, 7, 2, 7, false, 3e-6});
    agrees(&(trial){TARN_BF16, TARN_SHAPE(90, IN), 2, 3, 0, 3, false, 2e-2});
}

/* Without a gradient few rows take another way, which is not to be seen. */
static void what_is_not_recorded_has_the_same_values(void **state)
{
    (void)state;
    tarn_seed(3);
    static const int64_t rows[] = {1, 5, 63, 64, 100};
    for (int r = 0; r < 5; r++) {
        network n = make(&(trial){TARN_F32, TARN_SHAPE(rows[r], IN), 3, 5, 6, 7, false, 0});
        tarn_tensor *y[MOST], *other[MOST];
        assert_true(tarn__lora_linears(n.x, n.layer, 3, false, y));
        tarn_no_grad_open();
        assert_true(tarn__lora_linears(n.x, n.layer, 3, false, other));
        tarn_no_grad_close();
        for (int i = 0; i < 3; i++) {
            assert_false(tarn_needs_grad(other[i]));
            both_are_close(other[i], y[i], 2e-6);
        }
    }
}

/* What a frozen x would get is not made, and A and B have theirs. */
static void a_frozen_x_gets_no_gradient(void **state)
{
    (void)state;
    tarn_seed(4);
    trial t = {TARN_F64, TARN_SHAPE(20, IN), 1, 1, 0, 1, false, 1e-13};
    network n = make(&t), other = copy_of(&n, 1);
    tarn_requires_grad(n.x, false);
    tarn_tensor *y, *wanted = in_steps(&other, 0, false), *g = good(tarn_normal_like(wanted, 0, 1));
    assert_true(tarn__lora_linears(n.x, n.layer, 1, false, &y));
    assert_true(tarn_backward_from(y, g, NULL) && tarn_backward_from(wanted, g, NULL));
    assert_null(tarn_grad(n.x));
    both_are_close(tarn_grad(n.layer[0].a), tarn_grad(other.layer[0].a), 1e-13);
    both_are_close(tarn_grad(n.layer[0].b), tarn_grad(other.layer[0].b), 1e-13);
}

static void runs_and_threads_are_bitwise_identical(void **state)
{
    (void)state;
    double *grads[3];
    for (int run = 0; run < 3; run++) {
        tarn_set_threads(run == 2 ? 4 : 1);
        tarn_seed(5);
        network n = make(&(trial){TARN_F32, TARN_SHAPE(300, IN), 3, 7, 0, 7, false, 0});
        tarn_tensor *y[MOST];
        assert_true(tarn__lora_linears(n.x, n.layer, 3, false, y));
        assert_true(
            tarn_backward(good(tarn_add(tarn_sum(y[0], TARN_ALL_AXES, false), tarn_sum(y[2], TARN_ALL_AXES, false)))));
        grads[run] = values_of(good(tarn_grad(n.layer[2].a)));
    }
    for (int run = 1; run < 3; run++)
        assert_memory_equal(grads[run], grads[0], sizeof(double) * 4 * IN);
    for (int run = 0; run < 3; run++)
        free(grads[run]);
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(one_layer_is_its_steps),
        in_scope(layers_that_share_x_are_their_steps),
        in_scope(what_is_not_recorded_has_the_same_values),
        in_scope(a_frozen_x_gets_no_gradient),
        in_scope(runs_and_threads_are_bitwise_identical),
    };
    return cmocka_run_group_tests_name("ops/lora_linear", tests, NULL, NULL);
}

/* Optimizers: SGD and AdamW against their formulas written out in f64, flat buffers, ownership, errors.
 *
 * Gradients are put into parameters directly, by tarn_backward_from(parameter, gradient): what a step does with them
 * needs no network. */
#include "base/memory.h"
#include "support/check.h"

#define PARAMETERS 5
#define LARGEST 3500

static tarn_device cpu;

static const tarn_shape shapes[PARAMETERS] = {{2, {7, 5}}, {1, {7}}, {3, {2, 3, 4}}, {0, {0}}, {2, {50, 70}}};
static const char *const names[PARAMETERS] = {"matrix", "vector", "cube", "number", "large"};

static int64_t size_of(int k)
{
    int64_t count = 1;
    for (int i = 0; i < shapes[k].rank; i++)
        count *= shapes[k].size[i];
    return count;
}

static double initial(int k, int64_t i)
{
    return cos(1.3 * (double)i + 0.5 * k);
}

static double gradient(int k, int64_t i, int step)
{
    return sin(0.7 * step + 0.3 * (double)i + k) * (1 + k);
}

/* A module that holds the parameters above. */
static tarn_module *module_of(tarn_dtype dtype)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = tarn_module_new("parameters", unchanged, NULL, NULL);
    double *values = malloc(sizeof(double) * LARGEST);
    for (int k = 0; k < PARAMETERS; k++) {
        for (int64_t i = 0; i < size_of(k); i++)
            values[i] = initial(k, i);
        tarn_module_add_parameter(module, names[k], tarn_cast(tarn_from_f64(values, shapes[k], cpu), dtype));
    }
    free(values);
    tarn_scope_close(scope);
    assert_ok();
    return module;
}

/* Adds gradient(k, ·, step) to the gradient of parameter k. */
static void give(tarn_module *module, int k, int step)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *parameter = tarn_module_find(module, names[k]);
    double *values = malloc(sizeof(double) * LARGEST);
    for (int64_t i = 0; i < size_of(k); i++)
        values[i] = gradient(k, i, step);
    tarn_tensor *from =
        tarn_to(tarn_cast(tarn_from_f64(values, shapes[k], cpu), tarn_dtype_of(parameter)), tarn_device_of(parameter));
    tarn_backward_from(parameter, from, NULL);
    free(values);
    tarn_scope_close(scope);
    assert_ok();
}

/* Some parameters have no gradient in some steps; "cube" has none at first. */
static bool is_skipped(int k, int step)
{
    return (k == 1 && step % 3 == 0) || (k == 2 && step < 10) || (k == 4 && step % 7 == 2);
}

/* ---- the formulas ------------------------------------------------------------------------------------------------ */

typedef struct reference {
    double value[PARAMETERS][LARGEST], first[PARAMETERS][LARGEST], second[PARAMETERS][LARGEST];
    int steps[PARAMETERS];
} reference;

static reference *reference_new(void)
{
    reference *r = calloc(1, sizeof(*r));
    for (int k = 0; k < PARAMETERS; k++)
        for (int64_t i = 0; i < size_of(k); i++)
            r->value[k][i] = initial(k, i);
    return r;
}

static void reference_sgd(reference *r, int k, int step, const tarn_sgd_options *o)
{
    r->steps[k]++;
    for (int64_t i = 0; i < size_of(k); i++) {
        double g = gradient(k, i, step) + (double)o->weight_decay * r->value[k][i];
        if (o->momentum != 0) {
            double *m = &r->first[k][i];
            *m = r->steps[k] == 1 ? g : (double)o->momentum * *m + (1 - (double)o->dampening) * g;
            g = o->nesterov ? g + (double)o->momentum * *m : *m;
        }
        r->value[k][i] -= (double)o->lr * g;
    }
}

static void reference_adamw(reference *r, int k, int step, const tarn_adamw_options *o)
{
    double beta1 = o->beta1 != 0 ? (double)o->beta1 : 0.9, beta2 = o->beta2 != 0 ? (double)o->beta2 : 0.999;
    double epsilon = o->epsilon != 0 ? (double)o->epsilon : 1e-8, lr = (double)o->lr;
    double decay = o->decay_all || shapes[k].rank >= 2 ? (double)o->weight_decay : 0;
    int t = ++r->steps[k];
    for (int64_t i = 0; i < size_of(k); i++) {
        double g = gradient(k, i, step), *m = &r->first[k][i], *v = &r->second[k][i];
        *m = beta1 * *m + (1 - beta1) * g;
        *v = beta2 * *v + (1 - beta2) * g * g;
        r->value[k][i] *= 1 - lr * decay;
        r->value[k][i] -= lr * (*m / (1 - pow(beta1, t))) / (sqrt(*v / (1 - pow(beta2, t))) + epsilon);
    }
}

static void assert_equal(tarn_module *module, const reference *r, double tolerance)
{
    double *values = malloc(sizeof(double) * LARGEST);
    for (int k = 0; k < PARAMETERS; k++) {
        assert_true(tarn_read_f64(tarn_module_find(module, names[k]), values, size_of(k)));
        for (int64_t i = 0; i < size_of(k); i++)
            if (!(fabs(values[i] - r->value[k][i]) <= tolerance))
                fail_msg("%s[%d] is %.12g, the formula gives %.12g", names[k], (int)i, values[i], r->value[k][i]);
    }
    free(values);
}

#define STEPS 50

static void compare_sgd(tarn_dtype dtype, tarn_sgd_options options, bool skipping, double tolerance)
{
    tarn_module *module = module_of(dtype);
    reference *r = reference_new();
    tarn_optimizer *optimizer = tarn_sgd(module, &options);
    assert_ok();
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < PARAMETERS; k++)
            if (!skipping || !is_skipped(k, step)) {
                give(module, k, step);
                reference_sgd(r, k, step, &options);
            }
        assert_true(tarn_optimizer_step(optimizer));
    }
    assert_equal(module, r, tolerance);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    free(r);
}

static void compare_adamw(tarn_dtype dtype, tarn_adamw_options options, bool skipping, double tolerance)
{
    tarn_module *module = module_of(dtype);
    reference *r = reference_new();
    tarn_optimizer *optimizer = tarn_adamw(module, &options);
    assert_ok();
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < PARAMETERS; k++)
            if (!skipping || !is_skipped(k, step)) {
                give(module, k, step);
                reference_adamw(r, k, step, &options);
            }
        assert_true(tarn_optimizer_step(optimizer));
    }
    assert_equal(module, r, tolerance);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    free(r);
}

static void sgd_follows_its_formula(void **state)
{
    (void)state;
    compare_sgd(TARN_F64, (tarn_sgd_options){.lr = 0.05f}, false, 1e-12);
    compare_sgd(TARN_F64, (tarn_sgd_options){.lr = 0.05f, .weight_decay = 0.1f}, false, 1e-12);
    compare_sgd(TARN_F32, (tarn_sgd_options){.lr = 0.05f, .weight_decay = 0.1f}, false, 2e-5);
}

static void sgd_with_momentum_follows_its_formula(void **state)
{
    (void)state;
    compare_sgd(TARN_F64, (tarn_sgd_options){.lr = 0.02f, .momentum = 0.9f}, false, 1e-11);
    compare_sgd(TARN_F64, (tarn_sgd_options){.lr = 0.02f, .momentum = 0.9f, .dampening = 0.3f, .weight_decay = 0.01f},
                false, 1e-11);
    compare_sgd(TARN_F64, (tarn_sgd_options){.lr = 0.02f, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.01f},
                false, 1e-11);
    compare_sgd(TARN_F32, (tarn_sgd_options){.lr = 0.02f, .momentum = 0.9f, .nesterov = true}, false, 1e-4);
}

static void sgd_begins_momentum_at_a_parameters_own_first_step(void **state)
{
    (void)state;
    compare_sgd(TARN_F64, (tarn_sgd_options){.lr = 0.02f, .momentum = 0.9f, .dampening = 0.5f}, true, 1e-11);
}

static void adamw_follows_its_formula(void **state)
{
    (void)state;
    compare_adamw(TARN_F64, (tarn_adamw_options){.lr = 0.05f}, false, 1e-11);
    compare_adamw(TARN_F64, (tarn_adamw_options){.lr = 0.05f, .beta1 = 0.8f, .beta2 = 0.95f, .epsilon = 1e-4f}, false,
                  1e-11);
    compare_adamw(TARN_F32, (tarn_adamw_options){.lr = 0.05f}, false, 1e-4);
}

static void adamw_decays_matrices_and_by_wish_vectors(void **state)
{
    (void)state;
    compare_adamw(TARN_F64, (tarn_adamw_options){.lr = 0.05f, .weight_decay = 0.2f}, false, 1e-11);
    compare_adamw(TARN_F64, (tarn_adamw_options){.lr = 0.05f, .weight_decay = 0.2f, .decay_all = true}, false, 1e-11);
}

static void adamw_counts_the_steps_of_each_parameter(void **state)
{
    (void)state;
    compare_adamw(TARN_F64, (tarn_adamw_options){.lr = 0.05f, .weight_decay = 0.2f}, true, 1e-11);
}

/* ---- 16-bit parameters ------------------------------------------------------------------------------------------- */

static void a_bf16_parameter_moves_by_steps_below_its_own_precision(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = tarn_module_new("one", unchanged, NULL, NULL);
    tarn_tensor *w = tarn_module_add_parameter(module, "w", tarn_ones(TARN_SHAPE(300), TARN_BF16, cpu));
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1e-4f});
    for (int i = 0; i < 1000; i++) {
        tarn_backward_from(w, tarn_ones(TARN_SHAPE(300), TARN_BF16, cpu), NULL);
        assert_int_equal(tarn_dtype_of(tarn_grad(w)), TARN_F32);
        tarn_optimizer_step(sgd);
    }
    assert_true(fabs(tarn_item_at(w, TARN_SHAPE(299)) - 0.9) < 0.002); /* rounded at each step it would stay 1 */
    tarn_copy(w, tarn_full(TARN_SHAPE(300), 3, TARN_F32, cpu));
    tarn_backward_from(w, tarn_ones(TARN_SHAPE(300), TARN_BF16, cpu), NULL);
    tarn_optimizer_step(sgd);
    assert_true(tarn_item_at(w, TARN_SHAPE(7)) == 3); /* what was written is what the next step begins with */
    assert_ok();
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
    tarn_scope_close(scope);
}

/* ---- flat buffers ------------------------------------------------------------------------------------------------ */

static void flattening_keeps_handles_values_and_gradients(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F64);
    reference *r = reference_new();
    tarn_tensor *handle[PARAMETERS];
    for (int k = 0; k < PARAMETERS; k++)
        handle[k] = tarn_module_find(module, names[k]);
    give(module, 0, 3);
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f, .weight_decay = 0.1f});
    assert_equal(module, r, 0);
    uintptr_t last = 0;
    static const int order[] = {0, 2, 4, 1, 3}; /* those that decay come first */
    for (int i = 0; i < PARAMETERS; i++) {
        assert_ptr_equal(tarn_module_find(module, names[order[i]]), handle[order[i]]);
        uintptr_t at = (uintptr_t)tarn_data(handle[order[i]]), end = last;
        assert_true(at % 256 == 0 && at >= end && at < end + 256 + (last ? 0 : UINTPTR_MAX - 256));
        last = at + (uintptr_t)tarn_bytes(handle[order[i]]);
    }
    assert_true(fabs(tarn_item_at(tarn_grad(handle[0]), TARN_SHAPE(1, 2)) - gradient(0, 7, 3)) < 1e-15);
    assert_null(tarn_grad(handle[1]));
    assert_ok();
    tarn_optimizer_free(adam);
    tarn_module_free(module);
    free(r);
}

static int64_t kernels_of_a_step(tarn_optimizer *optimizer)
{
    int64_t before = tarn_stats().kernels;
    assert_true(tarn_optimizer_step(optimizer));
    return tarn_stats().kernels - before;
}

static void a_step_is_one_kernel_for_all_that_decay_and_one_for_the_rest(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F32);
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f, .weight_decay = 0.1f});
    for (int k = 0; k < PARAMETERS; k++)
        give(module, k, 0);
    assert_int_equal(kernels_of_a_step(adam), 2);
    assert_int_equal(kernels_of_a_step(adam), 0); /* no gradients, nothing to do */
    tarn_optimizer_free(adam);
    adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f});
    for (int k = 0; k < PARAMETERS; k++)
        give(module, k, 0);
    assert_int_equal(kernels_of_a_step(adam), 1);
    tarn_optimizer_free(adam);
    tarn_module_free(module);
}

static void a_step_clears_gradients_and_two_backwards_before_it_add(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F64);
    tarn_tensor *w = tarn_module_find(module, "vector");
    double before = tarn_item_at(w, TARN_SHAPE(4));
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.5f});
    give(module, 1, 0);
    give(module, 1, 1);
    assert_true(tarn_optimizer_step(sgd));
    assert_null(tarn_grad(w));
    assert_true(fabs(tarn_item_at(w, TARN_SHAPE(4)) - (before - 0.5 * (gradient(1, 4, 0) + gradient(1, 4, 1)))) <
                1e-14);
    give(module, 1, 2);
    tarn_optimizer_zero_grad(sgd);
    assert_null(tarn_grad(w));
    before = tarn_item_at(w, TARN_SHAPE(4));
    assert_true(tarn_optimizer_step(sgd));
    assert_true(tarn_item_at(w, TARN_SHAPE(4)) == before);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void frozen_parameters_stay_where_and_what_they_are(void **state)
{
    (void)state;
    tarn_module *trained = module_of(TARN_F32), *frozen = module_of(TARN_F32);
    tarn_module *net = tarn_sequential(trained, frozen, NULL);
    assert_true(tarn_module_freeze(frozen, true));
    tarn_tensor *w = tarn_module_find(net, "1.matrix");
    void *place = tarn_data(w);
    double before = tarn_item_at(w, TARN_SHAPE(2, 2));
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.1f, .weight_decay = 1});
    give(trained, 0, 0);
    assert_true(tarn_optimizer_step(adam));
    assert_ptr_equal(tarn_data(w), place);
    assert_true(tarn_item_at(w, TARN_SHAPE(2, 2)) == before);
    assert_false(tarn_module_freeze(net, true));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_freeze", "'0.matrix'");
    tarn_optimizer_free(adam);
    tarn_module_free(net);
}

static void parameters_of_different_dtypes_are_trained_together(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = tarn_module_new("mixed", unchanged, NULL, NULL);
    tarn_tensor *a = tarn_module_add_parameter(module, "a", tarn_ones(TARN_SHAPE(3), TARN_F32, cpu));
    tarn_tensor *b = tarn_module_add_parameter(module, "b", tarn_ones(TARN_SHAPE(3), TARN_F64, cpu));
    tarn_tensor *c = tarn_module_add_parameter(module, "c", tarn_ones(TARN_SHAPE(0, 3), TARN_F32, cpu));
    tarn_tensor *d = tarn_module_add_parameter(module, "d", tarn_ones(TARN_SHAPE(3), TARN_F16, cpu));
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.5f});
    tarn_tensor *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        tarn_backward_from(all[i], tarn_ones_like(all[i]), NULL);
    assert_true(tarn_optimizer_step(sgd));
    assert_true(tarn_item_at(a, TARN_SHAPE(2)) == 0.5 && tarn_item_at(b, TARN_SHAPE(2)) == 0.5 &&
                tarn_item_at(d, TARN_SHAPE(2)) == 0.5);
    assert_ok();
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
    tarn_scope_close(scope);
}

/* ---- who owns what ----------------------------------------------------------------------------------------------- */

static void a_second_optimizer_on_a_parameter_is_an_error(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F32);
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f});
    assert_null(tarn_sgd(module, &(tarn_sgd_options){.lr = 0.1f}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", "'matrix'");
    tarn_optimizer_free(adam);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.1f});
    assert_non_null(sgd);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void a_module_works_on_after_its_optimizer_is_freed(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = module_of(TARN_F64);
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f});
    give(module, 0, 0);
    tarn_optimizer_step(adam);
    give(module, 1, 0);
    tarn_optimizer_free(adam);
    tarn_tensor *vector = tarn_module_find(module, "vector");
    assert_true(fabs(tarn_item_at(tarn_grad(vector), TARN_SHAPE(3)) - gradient(1, 3, 0)) < 1e-15);
    give(module, 0, 1);
    tarn_tensor *w = tarn_module_find(module, "matrix");
    assert_true(fabs(tarn_item_at(tarn_grad(w), TARN_SHAPE(0, 3)) - gradient(0, 3, 1)) < 1e-15);
    tarn_tensor *sum = tarn_add(w, w);
    assert_true(tarn_item_at(sum, TARN_SHAPE(0, 1)) == 2 * tarn_item_at(w, TARN_SHAPE(0, 1)));
    assert_ok();
    tarn_module_free(module);
    tarn_scope_close(scope);
}

static void freeing_works_in_any_order_and_while_an_error_is_pending(void **state)
{
    (void)state;
    int64_t before = tarn_memory_of(cpu).blocks;
    tarn_module *module = module_of(TARN_F32);
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f});
    give(module, 0, 0);
    tarn_set_error(TARN_ERROR_IO, "an error is pending");
    assert_false(tarn_optimizer_step(adam));
    tarn_module_free(module);
    tarn_optimizer_free(adam);
    tarn_optimizer_free(NULL);
    tarn_clear_error();
    assert_int_equal(tarn_memory_of(cpu).blocks, before);
}

static void a_step_between_forward_and_backward_is_caught(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = module_of(TARN_F32);
    tarn_tensor *w = tarn_module_find(module, "matrix");
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.1f});
    tarn_tensor *y = tarn_mul(w, w);
    give(module, 0, 0);
    assert_true(tarn_optimizer_step(sgd));
    assert_false(tarn_backward_from(y, tarn_ones_like(y), NULL));
    assert_error_about(TARN_ERROR_ARGUMENT, "mul needs", "matrix");
    y = tarn_mul(w, w);
    assert_true(tarn_optimizer_step(sgd)); /* no gradient: the parameter stays what it was */
    assert_true(tarn_backward_from(y, tarn_ones_like(y), NULL));
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
    tarn_scope_close(scope);
}

static void making_an_optimizer_between_forward_and_backward_is_fine(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = module_of(TARN_F64);
    tarn_tensor *w = tarn_module_find(module, "vector");
    tarn_tensor *written = tarn_detach(w);
    tarn_copy(written, tarn_full_like(w, 2));
    tarn_tensor *y = tarn_mul(w, w);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.1f});
    assert_true(tarn_backward_from(y, tarn_ones_like(y), NULL));
    assert_true(tarn_item_at(tarn_grad(w), TARN_SHAPE(6)) == 4);
    assert_ok();
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
    tarn_scope_close(scope);
}

static void moving_a_module_takes_its_optimizer_along(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 2)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    tarn_module *module = module_of(TARN_F64);
    reference *r = reference_new();
    tarn_adamw_options options = {.lr = 0.05f, .weight_decay = 0.1f};
    tarn_optimizer *adam = tarn_adamw(module, &options);
    for (int step = 0; step < 12; step++) {
        for (int k = 0; k < PARAMETERS; k++)
            if (!is_skipped(k, step)) {
                give(module, k, step);
                reference_adamw(r, k, step, &options);
            }
        if (step == 4 || step == 9) /* with gradients that are not used yet */
            assert_true(tarn_module_to(module, step == 4 ? there : cpu));
        assert_true(tarn_optimizer_step(adam));
    }
    assert_true(tarn_device_equal(tarn_device_of(tarn_module_find(module, "cube")), cpu));
    assert_equal(module, r, 1e-11);
    assert_ok();
    tarn_optimizer_free(adam);
    tarn_module_free(module);
    free(r);
    tarn_empty_cache(there); /* its addresses are hidden from leak checkers */
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void options_outside_their_bounds_are_errors(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F32);
    assert_null(tarn_sgd(module, &(tarn_sgd_options){0}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", ".lr is 0");
    assert_null(tarn_sgd(module, NULL));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", ".lr is 0");
    assert_null(tarn_adamw(module, &(tarn_adamw_options){.lr = -1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "adamw", "-1");
    assert_null(tarn_adamw(module, &(tarn_adamw_options){.lr = NAN}));
    assert_error_about(TARN_ERROR_ARGUMENT, "adamw", "nan");
    assert_null(tarn_adamw(module, &(tarn_adamw_options){.lr = 1, .beta1 = 1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "adamw", "beta1");
    assert_null(tarn_adamw(module, &(tarn_adamw_options){.lr = 1, .beta2 = -0.5f}));
    assert_error_about(TARN_ERROR_ARGUMENT, "adamw", "beta2");
    assert_null(tarn_adamw(module, &(tarn_adamw_options){.lr = 1, .epsilon = -1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "adamw", "epsilon");
    assert_null(tarn_adamw(module, &(tarn_adamw_options){.lr = 1, .weight_decay = -1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "adamw", "weight_decay");
    assert_null(tarn_sgd(module, &(tarn_sgd_options){.lr = 1, .momentum = -1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", "momentum");
    assert_null(tarn_sgd(module, &(tarn_sgd_options){.lr = 1, .nesterov = true}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", "nesterov");
    assert_null(tarn_sgd(NULL, &(tarn_sgd_options){.lr = 1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", "NULL");
    tarn_module_free(module);
    tarn_module *nothing = tarn_activation(TARN_RELU);
    assert_null(tarn_sgd(nothing, &(tarn_sgd_options){.lr = 1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", "no parameters");
    tarn_module_free(nothing);
    module = module_of(TARN_F32);
    tarn_module_freeze(module, true);
    assert_null(tarn_sgd(module, &(tarn_sgd_options){.lr = 1}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd", "frozen");
    tarn_module_free(module);
    assert_false(tarn_optimizer_step(NULL));
    assert_error_about(TARN_ERROR_ARGUMENT, "optimizer_step", "NULL");
    assert_true(isnan(tarn_optimizer_lr(NULL)));
    assert_error_about(TARN_ERROR_ARGUMENT, "optimizer_lr", "NULL");
}

static void the_learning_rate_can_be_changed_and_read(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F64);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.5f});
    assert_true(tarn_optimizer_lr(sgd) == 0.5);
    assert_true(tarn_optimizer_set_lr(sgd, 0.1));
    assert_true(tarn_optimizer_lr(sgd) == 0.1);
    tarn_tensor *w = tarn_module_find(module, "number");
    double before = tarn_item(w);
    give(module, 3, 2);
    tarn_optimizer_step(sgd);
    assert_true(fabs(tarn_item(w) - (before - 0.1 * gradient(3, 0, 2))) < 1e-15);
    assert_false(tarn_optimizer_set_lr(sgd, NAN));
    assert_error_about(TARN_ERROR_ARGUMENT, "optimizer_set_lr", "nan");
    assert_false(tarn_optimizer_set_lr(sgd, -0.1));
    assert_error_about(TARN_ERROR_ARGUMENT, "optimizer_set_lr", "-0.1");
    assert_true(tarn_optimizer_lr(sgd) == 0.1);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

/* ---- bitwise identical  ------------------------------------------------------------------------------------------ */

static void a_step_is_bitwise_identical_with_any_number_of_threads(void **state)
{
    (void)state;
    enum { COUNT = 100003 };
    int threads = tarn_threads();
    float *first = malloc(sizeof(float) * COUNT), *other = malloc(sizeof(float) * COUNT);
    for (int count = 1; count <= 4; count *= 2) {
        tarn_set_threads(count);
        tarn_seed(11);
        tarn_scope *scope = tarn_scope_open();
        tarn_module *module = tarn_module_new("one", unchanged, NULL, NULL);
        tarn_tensor *w = tarn_module_add_parameter(module, "w", tarn_uniform(TARN_SHAPE(COUNT), -1, 1, TARN_F32, cpu));
        tarn_optimizer *adam =
            tarn_adamw(module, &(tarn_adamw_options){.lr = 0.01f, .weight_decay = 0.1f, .decay_all = true});
        for (int step = 0; step < 3; step++) {
            tarn_backward_from(w, tarn_uniform(TARN_SHAPE(COUNT), -1, 1, TARN_F32, cpu), NULL);
            tarn_optimizer_step(adam);
        }
        assert_true(tarn_read_f32(w, count == 1 ? first : other, COUNT));
        if (count > 1)
            assert_memory_equal(first, other, sizeof(float) * COUNT);
        tarn_optimizer_free(adam);
        tarn_module_free(module);
        tarn_scope_close(scope);
    }
    tarn_set_threads(threads);
    assert_ok();
    free(first);
    free(other);
}

/* Weights, gradients and two states are 4 times the weights; one parameter beside them would be a tenth more. */
static void setting_up_holds_no_second_copy_of_the_weights(void **state)
{
    (void)state;
    enum { LAYERS = 10, COUNT = 1 << 18 };
    const int64_t weights = (int64_t)sizeof(float) * LAYERS * COUNT;
    tarn_empty_cache(cpu);
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = tarn_module_new("many", unchanged, NULL, NULL);
    tarn_stats_reset();
    int64_t before = tarn_memory_of(cpu).used;
    char name[16];
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof(name), "w%d", i);
        tarn_module_add_parameter(module, name, tarn_full(TARN_SHAPE(COUNT), i, TARN_F32, cpu));
    }
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.5f});
    tarn_memory memory = tarn_memory_of(cpu);
    assert_int_equal(memory.used - before, 4 * weights);
    assert_int_equal(memory.peak_used - before, 4 * weights);
    /* what they had goes back to the system */
    assert_true(memory.used + memory.cached - before < 4 * weights + weights / LAYERS);
    for (int i = 0; i < LAYERS; i++)
        assert_true(tarn_item_at(tarn_module_parameter(module, i), TARN_SHAPE(COUNT - 1)) == i);
    tarn_optimizer_free(adam);
    tarn_module_free(module);
    tarn_scope_close(scope);
    assert_ok();
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_empty_cache(cpu);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    bool done = false;
    for (int room = 0; !done && room < 1000; room++) {
        allocations_left = 1000000;
        tarn_scope *scope = tarn_scope_open();
        tarn_module *module = tarn_module_new("one", unchanged, NULL, NULL);
        tarn_tensor *w = tarn_module_add_parameter(module, "w", tarn_ones(TARN_SHAPE(3, 2), TARN_BF16, cpu));
        tarn_tensor *b = tarn_module_add_parameter(module, "b", tarn_ones(TARN_SHAPE(3), TARN_F32, cpu));
        tarn_tensor *gradient_of_w = tarn_ones_like(w);
        allocations_left = room;
        tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.5f, .weight_decay = 0.1f});
        tarn_backward_from(w, gradient_of_w, NULL);
        done = tarn_optimizer_step(adam);
        allocations_left = 1000000;
        assert_true(done || tarn_error_code() == TARN_ERROR_MEMORY);
        tarn_clear_error();
        assert_true(tarn_item_at(b, TARN_SHAPE(1)) == 1);
        assert_true(tarn_item_at(w, TARN_SHAPE(1, 1)) == (done ? 0.44921875 : 1));
        tarn_optimizer_free(adam);
        tarn_module_free(module);
        tarn_scope_close(scope);
        tarn_empty_cache(cpu);
        if (tarn__memory_in_use() != 0)
            fail_msg("%lld bytes are left after failing at allocation %d", (long long)tarn__memory_in_use(), room);
    }
    assert_true(done);
    assert_true(tarn_set_allocator(NULL));
}

int main(void)
{
    cpu = tarn_device_cpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        cmocka_unit_test_setup(sgd_follows_its_formula, clear_error),
        cmocka_unit_test_setup(sgd_with_momentum_follows_its_formula, clear_error),
        cmocka_unit_test_setup(sgd_begins_momentum_at_a_parameters_own_first_step, clear_error),
        cmocka_unit_test_setup(adamw_follows_its_formula, clear_error),
        cmocka_unit_test_setup(adamw_decays_matrices_and_by_wish_vectors, clear_error),
        cmocka_unit_test_setup(adamw_counts_the_steps_of_each_parameter, clear_error),
        cmocka_unit_test_setup(a_bf16_parameter_moves_by_steps_below_its_own_precision, clear_error),
        cmocka_unit_test_setup(flattening_keeps_handles_values_and_gradients, clear_error),
        cmocka_unit_test_setup(a_step_is_one_kernel_for_all_that_decay_and_one_for_the_rest, clear_error),
        cmocka_unit_test_setup(a_step_clears_gradients_and_two_backwards_before_it_add, clear_error),
        cmocka_unit_test_setup(frozen_parameters_stay_where_and_what_they_are, clear_error),
        cmocka_unit_test_setup(parameters_of_different_dtypes_are_trained_together, clear_error),
        cmocka_unit_test_setup(a_second_optimizer_on_a_parameter_is_an_error, clear_error),
        cmocka_unit_test_setup(a_module_works_on_after_its_optimizer_is_freed, clear_error),
        cmocka_unit_test_setup(freeing_works_in_any_order_and_while_an_error_is_pending, clear_error),
        cmocka_unit_test_setup(a_step_between_forward_and_backward_is_caught, clear_error),
        cmocka_unit_test_setup(making_an_optimizer_between_forward_and_backward_is_fine, clear_error),
        cmocka_unit_test_setup(moving_a_module_takes_its_optimizer_along, clear_error),
        cmocka_unit_test_setup(options_outside_their_bounds_are_errors, clear_error),
        cmocka_unit_test_setup(the_learning_rate_can_be_changed_and_read, clear_error),
        cmocka_unit_test_setup(a_step_is_bitwise_identical_with_any_number_of_threads, clear_error),
        cmocka_unit_test_setup(setting_up_holds_no_second_copy_of_the_weights, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

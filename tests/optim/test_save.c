/* Optimizers in files: a run that is stopped and taken up again has the bits of one that was not; files that do not fit
 * change nothing. */
#include "support/check.h"
#include "support/scratch.h"
#include "tarn_features.h"

enum { BEFORE = 7, AFTER = 6 };

static tarn_device cpu;

static tarn_module *module_of(tarn_dtype dtype)
{
    tarn_module *module = tarn_module_new("two", unchanged, NULL, NULL);
    tarn_module_add_parameter(module, "matrix", tarn_cast(tarn_full(TARN_SHAPE(5, 7), 0.7, TARN_F32, cpu), dtype));
    tarn_module_add_parameter(module, "vector", tarn_cast(tarn_full(TARN_SHAPE(9), -0.3, TARN_F32, cpu), dtype));
    tarn_module_add_parameter(module, "late", tarn_cast(tarn_full(TARN_SHAPE(3), 1.5, TARN_F32, cpu), dtype));
    assert_ok();
    return module;
}

/* "late" has gradients only now and then, so that its steps are fewer. */
static void train(tarn_module *module, tarn_optimizer *optimizer, int from, int steps)
{
    for (int step = from; step < from + steps; step++) {
        tarn_scope *scope = tarn_scope_open();
        for (int k = 0; k < 3; k++) {
            tarn_tensor *parameter = tarn_module_parameter(module, k);
            if (k == 2 && step % 3 != 1)
                continue;
            tarn_tensor *g = tarn_add(
                tarn_sin(tarn_add(tarn_cast(tarn_arange(0, (double)tarn_count(parameter), 1, TARN_F32, cpu), TARN_F64),
                                  tarn_scalar(0.7 * step + k))),
                tarn_scalar(0.1));
            tarn_backward_from(parameter,
                               tarn_cast(tarn_reshape(g, tarn_shape_of(parameter)), tarn_dtype_of(parameter)), NULL);
        }
        tarn_optimizer_clip_norm(optimizer, 2);
        tarn_optimizer_step(optimizer);
        tarn_scope_close(scope);
    }
    assert_ok();
}

typedef tarn_optimizer *(*make_fn)(tarn_module *module, float lr);

static tarn_optimizer *make_sgd(tarn_module *module, float lr)
{
    return tarn_sgd(module, &(tarn_sgd_options){.lr = lr});
}

static tarn_optimizer *make_momentum(tarn_module *module, float lr)
{
    return tarn_sgd(module, &(tarn_sgd_options){.lr = lr, .momentum = 0.9f, .dampening = 0.1f, .weight_decay = 0.01f});
}

static tarn_optimizer *make_adam(tarn_module *module, float lr)
{
    return tarn_adam(module, &(tarn_adam_options){.lr = lr, .weight_decay = 0.01f});
}

static tarn_optimizer *make_adamw(tarn_module *module, float lr)
{
    return tarn_adamw(module, &(tarn_adamw_options){.lr = lr, .weight_decay = 0.01f});
}

static const make_fn makes[] = {make_sgd, make_momentum, make_adam, make_adamw};
enum { MAKES = sizeof(makes) / sizeof(makes[0]) };

static void copy_parameters(tarn_module *to, tarn_module *from)
{
    for (int k = 0; k < 3; k++)
        assert_true(tarn_copy(tarn_module_parameter(to, k), tarn_module_parameter(from, k)));
}

static void assert_same_bits(tarn_module *a, tarn_module *b)
{
    for (int k = 0; k < 3; k++) {
        tarn_tensor *x = tarn_module_parameter(a, k), *y = tarn_module_parameter(b, k);
        assert_memory_equal(tarn_data(x), tarn_data(y), (size_t)tarn_bytes(x));
    }
}

static void a_resumed_run_is_bitwise_identical(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *path = scratch("state.safetensors");
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
        for (int m = 0; m < MAKES; m++) {
            tarn_module *whole = module_of(dtype), *again = module_of(dtype);
            /* the file's rate counts */
            tarn_optimizer *first = makes[m](whole, 0.05f), *second = makes[m](again, 0.5f);
            tarn_schedule schedule = {
                .kind = TARN_SCHEDULE_COSINE, .warmup_steps = 3, .total_steps = 20, .final_factor = 0.1};
            if (m % 2)
                schedule = (tarn_schedule){.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 20, .start_factor = 0.3};
            assert_true(tarn_optimizer_set_schedule(first, &schedule));
            assert_true(tarn_optimizer_set_lr(first, 0.0371));
            train(whole, first, 0, BEFORE);
            assert_true(tarn_optimizer_save(first, path));
            train(again, second, 50, 2); /* a state that must go */
            copy_parameters(again, whole);
            assert_true(tarn_optimizer_load(second, path));
            assert_int_equal(tarn_optimizer_steps(second), BEFORE);
            assert_true(tarn_optimizer_lr(second) == tarn_optimizer_lr(first));
            assert_same_bits(whole, again);
            train(whole, first, BEFORE, AFTER);
            train(again, second, BEFORE, AFTER);
            assert_same_bits(whole, again);
            assert_ok();
            tarn_optimizer_free(first);
            tarn_optimizer_free(second);
            tarn_module_free(whole);
            tarn_module_free(again);
        }
}

static void a_state_goes_to_the_device_where_the_parameters_are(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || tarn_device_count("mirror") < 2)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    const char *path = scratch("state.safetensors");
    tarn_module *here = module_of(TARN_BF16), *away = module_of(TARN_BF16);
    tarn_optimizer *first = make_adamw(here, 0.05f), *second = make_adamw(away, 0.05f);
    train(here, first, 0, BEFORE);
    assert_true(tarn_module_to(away, there));
    assert_true(tarn_optimizer_save(first, path));
    copy_parameters(away, here);
    assert_true(tarn_optimizer_load(second, path));
    assert_true(tarn_module_to(away, cpu));
    train(here, first, BEFORE, AFTER);
    train(away, second, BEFORE, AFTER);
    assert_same_bits(here, away);
    tarn_optimizer_free(first);
    tarn_optimizer_free(second);
    tarn_module_free(here);
    tarn_module_free(away);
    tarn_empty_cache(there);
}

static void a_file_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *path = scratch("state.safetensors");
    tarn_module *module = module_of(TARN_F32), *other = module_of(TARN_F64);
    tarn_module *fewer = tarn_module_new("one", unchanged, NULL, NULL), *more = module_of(TARN_F32);
    tarn_module_add_parameter(fewer, "matrix", tarn_ones(TARN_SHAPE(5, 7), TARN_F32, cpu));
    tarn_module_add_parameter(more, "extra", tarn_ones(TARN_SHAPE(2), TARN_F32, cpu));
    tarn_optimizer *adam = make_adamw(module, 0.05f);
    train(module, adam, 0, 3);
    assert_true(tarn_optimizer_save(adam, path));
    struct {
        tarn_module *module;
        make_fn make;
        const char *sentence;
    } wrong[] = {
        {other, make_adamw, "has 'matrix/first_moment' as F32 [5, 7], not as f64 [5, 7]"},
        {other, make_adam, "is the state of adamw, but the optimizer is adam"},
        {more, make_adamw, "tensor 'extra/steps' not found"},
        {fewer, make_adamw, "of which 6 belong to this optimizer"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_optimizer *optimizer = wrong[i].make(wrong[i].module, 0.25f);
        assert_false(tarn_optimizer_load(optimizer, path));
        assert_contains(tarn_error(), "optimizer_load");
        assert_contains(tarn_error(), wrong[i].sentence);
        tarn_clear_error();
        assert_true(tarn_optimizer_lr(optimizer) == 0.25 && tarn_optimizer_steps(optimizer) == 0);
        tarn_optimizer_free(optimizer);
    }
    tarn_optimizer_free(adam);
    tarn_module_free(module);
    tarn_module_free(other);
    tarn_module_free(fewer);
    tarn_module_free(more);
}

int main(void)
{
    cpu = tarn_device_cpu();
    const struct CMUnitTest tests[] = {
        in_scope(a_resumed_run_is_bitwise_identical),
        in_scope(a_state_goes_to_the_device_where_the_parameters_are),
        in_scope(a_file_that_does_not_fit_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

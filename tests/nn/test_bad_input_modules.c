/* test_bad_input_modules.c: modules, their parameters and children are given what they do not take. */
#include "support/operands.h"

static tarn_tensor *pass(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return x;
}

static tarn_tensor *give_nothing(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)x, (void)ctx;
    return NULL;
}

static void modules(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(3, 2, cpu), *own = tarn_module_new("own", pass, NULL, NULL),
                *empty_handed = tarn_module_new("none", give_nothing, NULL, NULL);
    assert_ok();
    REFUSE(tarn_linear, tarn_linear(0, 2, cpu));
    REFUSE(tarn_linear, tarn_linear(2, -1, cpu));
    REFUSE(tarn_linear, tarn_linear(HUGE_SIZE, HUGE_SIZE, cpu));
    REFUSE(tarn_linear, tarn_linear(2, 2, nowhere));
    REFUSE(tarn_linear, tarn_linear_with_sized(0, 2, cpu, NULL, 0));
    REFUSE(tarn_linear, tarn_linear_with(2, 2, cpu, &(tarn_linear_options){.dtype = TARN_I32}));
    REFUSE(tarn_linear, tarn_linear_with(2, 2, cpu, &(tarn_linear_options){.dtype = BAD_DTYPE}));
    REFUSE(tarn_activation, tarn_activation((tarn_activation_kind)99));
    REFUSE(tarn_activation, tarn_activation((tarn_activation_kind)-1));
    REFUSE(tarn_sequential, tarn_sequential_from(NULL, 2));
    REFUSE(tarn_sequential, tarn_sequential_from((tarn_module *[]){NULL, NULL}, 2)); /* one NULL at the end is taken */
    REFUSE(tarn_sequential, tarn_sequential_from((tarn_module *[]){NULL}, -1));
    REFUSE(tarn_module_new, tarn_module_new(NULL, pass, NULL, NULL));
    REFUSE(tarn_module_new, tarn_module_new("x", NULL, NULL, NULL));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(NULL, "w", tarn_clone(f)));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, NULL, tarn_clone(f)));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, "w", NULL));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, "w", tarn_clone(i64)));
    REFUSE(tarn_module_add_parameter, tarn_module_add_parameter(own, "a.b", tarn_clone(f)));
    REFUSE(tarn_module_add_child, tarn_module_add_child(NULL, "c", tarn_linear(1, 1, cpu)));
    REFUSE(tarn_module_add_child, tarn_module_add_child(own, NULL, tarn_linear(1, 1, cpu)));
    REFUSE(tarn_module_add_child, tarn_module_add_child(own, "c", NULL));
    REFUSE(tarn_forward, tarn_forward(NULL, f));
    REFUSE(tarn_forward, tarn_forward(linear, NULL));
    REFUSE(tarn_linear_apply, tarn_forward(linear, vector(1, 2)));
    REFUSE(tarn_linear_apply, tarn_forward(linear, d));
    REFUSE(tarn_linear_apply, tarn_forward(linear, elsewhere));
    REFUSE(tarn_forward, tarn_forward(empty_handed, f));
    REFUSE(tarn_module_parameter_count, tarn_module_parameter_count(NULL));
    REFUSE(tarn_module_element_count, tarn_module_element_count(NULL));
    REFUSE(tarn_module_parameter, tarn_module_parameter(NULL, 0));
    REFUSE(tarn_module_parameter, tarn_module_parameter(linear, 2));
    REFUSE(tarn_module_parameter, tarn_module_parameter(linear, -1));
    REFUSE(tarn_module_parameter_name, tarn_module_parameter_name(NULL, 0));
    REFUSE(tarn_module_parameter_name, tarn_module_parameter_name(linear, 2));
    REFUSE(tarn_module_find, tarn_module_find(NULL, "weight"));
    REFUSE(tarn_module_find, tarn_module_find(linear, NULL));
    REFUSE(tarn_module_find, tarn_module_find(linear, "wieght"));
    REFUSE(tarn_module_to, tarn_module_to(NULL, cpu));
    REFUSE(tarn_module_to, tarn_module_to(linear, nowhere));
    REFUSE(tarn_module_freeze, tarn_module_freeze(NULL, true));
    ACCEPT(tarn_module_free(NULL));
    tarn_module_free(linear);
    tarn_module_free(own);
    tarn_module_free(empty_handed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

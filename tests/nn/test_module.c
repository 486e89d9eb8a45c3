/* Modules: names, ownership, forward, freezing, moving. */
#include "base/memory.h"
#include "core/tensor/tensor.h"
#include "support/check.h"

static tarn_device cpu;

static tarn_module *two_layers(void)
{
    return tarn_sequential(tarn_linear(3, 4, cpu), tarn_activation(TARN_TANH), tarn_linear(4, 2, cpu), NULL);
}

/* ---- names and counts -------------------------------------------------------------------------------------------- */

static void parameters_of_a_sequence_are_named_and_counted_as_in_torch(void **state)
{
    (void)state;
    tarn_module *net = two_layers();
    static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    assert_int_equal(tarn_module_parameter_count(net), 4);
    assert_int_equal(tarn_module_element_count(net), 3 * 4 + 4 + 4 * 2 + 2);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(tarn_module_parameter_name(net, i), names[i]);
        assert_string_equal(tarn_name(tarn_module_parameter(net, i)), names[i]);
        assert_ptr_equal(tarn_module_find(net, names[i]), tarn_module_parameter(net, i));
        assert_true(tarn_needs_grad(tarn_module_parameter(net, i)));
    }
    assert_int_equal(tarn_size(tarn_module_find(net, "0.weight"), 0), 4);
    assert_int_equal(tarn_size(tarn_module_find(net, "0.weight"), 1), 3);
    assert_ok();
    tarn_module_free(net);
}

static void names_grow_with_the_tree_and_are_relative_to_the_module_asked(void **state)
{
    (void)state;
    tarn_module *inner = two_layers();
    tarn_module *outer = tarn_sequential(tarn_linear(3, 3, cpu), inner, NULL);
    assert_string_equal(tarn_module_parameter_name(outer, 2), "1.0.weight");
    assert_string_equal(tarn_module_parameter_name(inner, 0), "0.weight");
    assert_ptr_equal(tarn_module_find(inner, "2.bias"), tarn_module_find(outer, "1.2.bias"));
    assert_string_equal(tarn_name(tarn_module_find(inner, "2.bias")), "1.2.bias");
    assert_ok();
    tarn_module_free(outer);
}

static void finding_an_unknown_name_suggests_close_ones(void **state)
{
    (void)state;
    tarn_module *net = two_layers();
    assert_null(tarn_module_find(net, "2.wieght"));
    assert_error_about(TARN_ERROR_ARGUMENT, "'2.wieght'", "'2.weight'");
    assert_null(tarn_module_find(net, NULL));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_find", "NULL");
    assert_null(tarn_module_parameter(net, 4));
    assert_error_about(TARN_ERROR_ARGUMENT, "parameter 4 not found", "has 4");
    assert_null(tarn_module_parameter_name(net, -1));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_parameter_name", "-1");
    tarn_module_free(net);
    tarn_module *none = tarn_activation(TARN_RELU);
    assert_null(tarn_module_find(none, "weight"));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_find", "no parameters");
    tarn_module_free(none);
}

static void a_parameter_of_two_modules_counts_once_under_its_first_name(void **state)
{
    (void)state;
    tarn_module *first = tarn_linear_with(4, 4, cpu, &(tarn_linear_options){.no_bias = true});
    tarn_module *second = tarn_linear_with(4, 4, cpu, &(tarn_linear_options){.no_bias = true});
    tarn_tensor *shared = tarn_module_parameter(first, 0);
    assert_ptr_equal(tarn_module_add_parameter(second, "tied", shared), shared);
    tarn_module *net = tarn_sequential(first, second, NULL);
    assert_int_equal(tarn_module_parameter_count(net), 2);
    assert_int_equal(tarn_module_element_count(net), 32);
    assert_int_equal(tarn_module_parameter_count(second), 2);
    assert_string_equal(tarn_name(shared), "0.weight");
    assert_ok();
    tarn_module_free(net);
}

/* ---- initial values ---------------------------------------------------------------------------------------------- */

static void a_linear_layer_begins_uniform_within_one_over_the_root_of_its_inputs(void **state)
{
    (void)state;
    tarn_module *layer = tarn_linear(100, 200, cpu);
    float *values = malloc(sizeof(float) * 20000);
    double sum = 0, largest = 0;
    assert_true(tarn_read_f32(tarn_module_find(layer, "weight"), values, 20000));
    for (int i = 0; i < 20000; i++) {
        sum += (double)values[i];
        largest = fmax(largest, fabs((double)values[i]));
    }
    assert_true(largest <= 0.1 && largest > 0.0999);
    assert_true(fabs(sum / 20000) < 0.002);
    assert_true(tarn_read_f32(tarn_module_find(layer, "bias"), values, 200));
    for (int i = 0; i < 200; i++)
        assert_true(fabsf(values[i]) <= 0.1f);
    free(values);
    tarn_module_free(layer);
}

static void the_same_seed_gives_the_same_layer(void **state)
{
    (void)state;
    float a[12], b[12];
    tarn_seed(7);
    tarn_module *first = tarn_linear(3, 4, cpu);
    tarn_seed(7);
    tarn_module *second = tarn_linear(3, 4, cpu);
    assert_true(tarn_read_f32(tarn_module_find(first, "weight"), a, 12));
    assert_true(tarn_read_f32(tarn_module_find(second, "weight"), b, 12));
    assert_memory_equal(a, b, sizeof(a));
    tarn_module_free(first);
    tarn_module_free(second);
}

static void a_linear_layer_refuses_sizes_and_dtypes_that_it_cannot_have(void **state)
{
    (void)state;
    assert_null(tarn_linear(0, 3, cpu));
    assert_error_about(TARN_ERROR_SHAPE, "linear", "from 0 to 3");
    assert_null(tarn_linear_with(2, 3, cpu, &(tarn_linear_options){.dtype = TARN_I32}));
    assert_error_about(TARN_ERROR_DTYPE, "linear", "i32");
    assert_null(tarn_activation((tarn_activation_kind)99));
    assert_error_about(TARN_ERROR_ARGUMENT, "activation", "99");
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void forward_equals_the_product_written_by_hand(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *net = two_layers();
    tarn_tensor *x = tarn_uniform(TARN_SHAPE(5, 3), -1, 1, TARN_F32, cpu);
    tarn_tensor *hidden = tarn_tanh(tarn_add(tarn_matmul(x, tarn_transpose(tarn_module_find(net, "0.weight"), 0, 1)),
                                             tarn_module_find(net, "0.bias")));
    tarn_tensor *expected = tarn_add(tarn_matmul(hidden, tarn_transpose(tarn_module_find(net, "2.weight"), 0, 1)),
                                     tarn_module_find(net, "2.bias"));
    float a[10], b[10];
    assert_true(tarn_read_f32(tarn_forward(net, x), a, 10));
    assert_true(tarn_read_f32(expected, b, 10));
    for (int i = 0; i < 10; i++)
        assert_true(fabsf(a[i] - b[i]) <= 1e-5f * (1 + fabsf(b[i])));
    assert_ok();
    tarn_module_free(net);
    tarn_scope_close(scope);
}

static void every_activation_is_its_operation(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    float values[] = {-2, -0.5f, 0, 0.25f, 3}, a[5], b[5];
    tarn_tensor *x = tarn_from_f32(values, TARN_SHAPE(5), cpu);
    tarn_tensor *expected[] = {tarn_relu(x), tarn_leaky_relu(x, 0.01), tarn_gelu(x),    tarn_gelu_erf(x), tarn_silu(x),
                               tarn_tanh(x), tarn_sigmoid(x),          tarn_softplus(x)};
    for (int kind = TARN_RELU; kind <= TARN_SOFTPLUS; kind++) {
        tarn_module *module = tarn_activation((tarn_activation_kind)kind);
        assert_true(tarn_read_f32(tarn_forward(module, x), a, 5));
        assert_true(tarn_read_f32(expected[kind], b, 5));
        assert_memory_equal(a, b, sizeof(a));
        assert_int_equal(tarn_module_parameter_count(module), 0);
        tarn_module_free(module);
    }
    tarn_scope_close(scope);
}

static void forward_of_nothing_is_an_error_that_names_it(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_ones(TARN_SHAPE(2, 3), TARN_F32, cpu);
    assert_null(tarn_forward(NULL, x));
    assert_error_about(TARN_ERROR_ARGUMENT, "forward", "module is NULL");
    tarn_module *empty = tarn_sequential(NULL);
    assert_null(tarn_forward(empty, NULL));
    assert_error_about(TARN_ERROR_ARGUMENT, "forward", "x is NULL");
    assert_ptr_equal(tarn_forward(empty, x), x);
    tarn_module_free(empty);
    tarn_scope_close(scope);
}

/* ---- a user's own layer ------------------------------------------------------------------------------------------ */

static int released;

static void count_release(void *ctx)
{
    (void)ctx;
    released++;
}

/* scale · x², by way of temporaries. */
static tarn_tensor *scaled_square(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_tensor *twice = tarn_add(x, x);
    tarn_scope *left_open = tarn_scope_open();
    (void)left_open;
    return tarn_mul(tarn_module_find(module, "scale"), tarn_mul(tarn_mul(twice, twice), tarn_scalar(0.25)));
}

static tarn_tensor *nothing(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    (void)x;
    return ctx ? (tarn_set_error(TARN_ERROR_ARGUMENT, "nothing: no"), NULL) : NULL;
}

static void a_users_layer_runs_in_its_own_scope_and_passes_its_result_out(void **state)
{
    (void)state;
    released = 0;
    int64_t at_first = tarn_memory_of(cpu).blocks;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *layer = tarn_module_new("scaled_square", scaled_square, NULL, count_release);
    tarn_tensor *scale = tarn_module_add_parameter(layer, "scale", tarn_full(TARN_SHAPE(4), 3, TARN_F32, cpu));
    tarn_tensor *x = tarn_full(TARN_SHAPE(4), 2, TARN_F32, cpu);
    tarn_no_grad_open();
    int64_t before = tarn_memory_of(cpu).blocks;
    tarn_tensor *y = tarn_forward(layer, x);
    assert_int_equal(tarn_memory_of(cpu).blocks, before + 1);
    assert_ptr_equal(tarn__scope_top(), scope);
    assert_true(tarn_item_at(y, TARN_SHAPE(3)) == 12);
    tarn_no_grad_close();
    assert_true(tarn_backward_from(tarn_forward(layer, x), tarn_ones(TARN_SHAPE(4), TARN_F32, cpu), NULL));
    assert_true(tarn_item_at(tarn_grad(scale), TARN_SHAPE(3)) == 4);
    assert_ok();
    tarn_module_free(layer);
    assert_int_equal(released, 1);
    tarn_scope_close(scope);
    assert_int_equal(tarn_memory_of(cpu).blocks, at_first);
}

static void a_users_layer_may_return_what_it_was_given(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *layer = tarn_module_new("identity", unchanged, NULL, NULL);
    tarn_tensor *x = tarn_full(TARN_SHAPE(4), 2, TARN_F32, cpu);
    assert_ptr_equal(tarn_forward(layer, x), x);
    assert_true(tarn_item_at(x, TARN_SHAPE(0)) == 2);
    tarn_module_free(layer);
    tarn_scope_close(scope);
}

static void a_users_layer_that_fails_is_an_error(void **state)
{
    (void)state;
    int reason = 1;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_ones(TARN_SHAPE(4), TARN_F32, cpu);
    tarn_module *silent = tarn_module_new("silent", nothing, NULL, NULL),
                *loud = tarn_module_new("loud", nothing, &reason, NULL);
    assert_null(tarn_forward(silent, x));
    assert_error_about(TARN_ERROR_ARGUMENT, "forward", "silent");
    assert_null(tarn_forward(loud, x));
    assert_error_about(TARN_ERROR_ARGUMENT, "nothing: no", "");
    assert_ptr_equal(tarn__scope_top(), scope);
    tarn_module_free(silent);
    tarn_module_free(loud);
    tarn_scope_close(scope);
}

static void a_module_that_cannot_be_made_releases_its_context(void **state)
{
    (void)state;
    released = 0;
    assert_null(tarn_module_new("broken", NULL, NULL, count_release));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_new", "forward");
    assert_null(tarn_module_new(NULL, unchanged, NULL, count_release));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_new", "kind");
    tarn_set_error(TARN_ERROR_IO, "something before");
    assert_null(tarn_module_new("late", unchanged, NULL, count_release));
    assert_int_equal(released, 3);
    assert_error_about(TARN_ERROR_IO, "something before", "");
}

static void parameters_are_checked_when_they_are_added(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *layer = tarn_module_new("mine", unchanged, NULL, NULL);
    assert_null(tarn_module_add_parameter(layer, "a.b", tarn_zeros(TARN_SHAPE(2), TARN_F32, cpu)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_parameter", "'a.b' contains a dot");
    assert_null(tarn_module_add_parameter(layer, "", tarn_zeros(TARN_SHAPE(2), TARN_F32, cpu)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_parameter", "empty");
    assert_null(tarn_module_add_parameter(layer, NULL, tarn_zeros(TARN_SHAPE(2), TARN_F32, cpu)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_parameter", "NULL");
    assert_null(tarn_module_add_parameter(layer, "count", tarn_zeros(TARN_SHAPE(2), TARN_I64, cpu)));
    assert_error_about(TARN_ERROR_DTYPE, "module_add_parameter", "count");
    assert_null(tarn_module_add_parameter(layer, "number", tarn_scalar(1)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_parameter", "number");
    tarn_tensor *w = tarn_module_add_parameter(layer, "w", tarn_zeros(TARN_SHAPE(2), TARN_F32, cpu));
    assert_non_null(w);
    assert_null(tarn_module_add_parameter(layer, "w", tarn_zeros(TARN_SHAPE(2), TARN_F32, cpu)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_parameter", "already has a parameter 'w'");
    assert_null(tarn_module_add_parameter(layer, "made", tarn_add(w, w)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_parameter", "tarn_detach");
    assert_int_equal(tarn_module_parameter_count(layer), 1);
    tarn_module_free(layer);
    tarn_scope_close(scope);
}

static void a_parameter_outlives_its_scope_and_goes_with_its_module(void **state)
{
    (void)state;
    int64_t before = tarn_memory_of(cpu).blocks;
    tarn_module *layer = tarn_module_new("mine", unchanged, NULL, NULL);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *scoped = tarn_module_add_parameter(layer, "scoped", tarn_ones(TARN_SHAPE(2), TARN_F32, cpu));
    tarn_tensor *kept = tarn_keep(tarn_ones(TARN_SHAPE(2), TARN_F32, cpu));
    tarn_tensor *given = good(tarn_module_add_parameter(layer, "kept", kept));
    tarn_scope_close(scope);
    assert_true(tarn_item_at(scoped, TARN_SHAPE(1)) == 1 && tarn_item_at(given, TARN_SHAPE(1)) == 1);
    assert_int_equal(tarn_rank(kept), -1); /* the module took the handle */
    assert_error_about(TARN_ERROR_ARGUMENT, "rank", "was freed: 'kept' f32 [2]");
    tarn_free(scoped);
    assert_error_about(TARN_ERROR_ARGUMENT, "free", "parameter");
    tarn_module_free(layer);
    assert_int_equal(tarn_memory_of(cpu).blocks, before);
}

/* ---- ownership --------------------------------------------------------------------------------------------------- */

static void a_sequence_of_which_one_failed_frees_the_rest_and_keeps_the_error(void **state)
{
    (void)state;
    int64_t before = tarn__memory_in_use();
    tarn_module *first = tarn_linear(2, 3, cpu), *last = tarn_linear(3, 1, cpu);
    tarn_module *net = tarn_sequential(first, tarn_linear(0, 3, cpu), last, NULL);
    assert_null(net);
    assert_error_about(TARN_ERROR_SHAPE, "linear", "from 0 to 3");
    tarn_empty_cache(cpu);
    assert_true(tarn__memory_in_use() <= before);
}

static void a_sequence_with_a_hole_or_a_module_twice_is_an_error_and_frees_all(void **state)
{
    (void)state;
    released = 0;
    tarn_module *a = tarn_module_new("a", unchanged, NULL, count_release),
                *b = tarn_module_new("b", unchanged, NULL, count_release);
    tarn_module *hole[] = {a, NULL, b};
    assert_null(tarn_sequential_from(hole, 3));
    assert_error_about(TARN_ERROR_ARGUMENT, "sequential", "module 1 of 3 is NULL");
    assert_int_equal(released, 2);
    a = tarn_module_new("a", unchanged, NULL, count_release);
    assert_null(tarn_sequential(a, a, NULL));
    assert_error_about(TARN_ERROR_ARGUMENT, "sequential", "0 and 1 are the same");
    assert_int_equal(released, 3);
    assert_null(tarn_sequential_from(NULL, 2));
    assert_error_about(TARN_ERROR_ARGUMENT, "sequential", "NULL");
}

static void a_child_has_one_parent_that_frees_it(void **state)
{
    (void)state;
    released = 0;
    tarn_module *child = tarn_module_new("child", unchanged, NULL, count_release);
    tarn_module *parent = tarn_module_new("parent", unchanged, NULL, NULL),
                *other = tarn_module_new("other", unchanged, NULL, NULL);
    assert_true(tarn_module_add_child(parent, "inner", child));
    assert_false(tarn_module_add_child(other, "inner", child));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_child", "already");
    assert_false(tarn_module_add_child(child, "loop", parent));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_child", "itself");
    tarn_module_free(child);
    assert_error_about(TARN_ERROR_ARGUMENT, "module_free", "inner");
    assert_false(tarn_module_add_child(parent, "inner", tarn_module_new("second", unchanged, NULL, count_release)));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_add_child", "already has a child 'inner'");
    assert_int_equal(released, 1);
    tarn_module_free(other);
    tarn_set_error(TARN_ERROR_IO, "an error is pending");
    tarn_module_free(parent);
    assert_int_equal(released, 2);
    tarn_clear_error();
    tarn_module_free(NULL);
}

/* ---- freezing and moving ----------------------------------------------------------------------------------------- */

static void a_frozen_module_takes_no_gradients_until_it_is_let_go(void **state)
{
    (void)state;
    tarn_module *net = two_layers();
    assert_true(tarn_module_freeze(net, true));
    for (int i = 0; i < 4; i++)
        assert_false(tarn_needs_grad(tarn_module_parameter(net, i)));
    assert_true(tarn_module_freeze(net, false));
    for (int i = 0; i < 4; i++)
        assert_true(tarn_needs_grad(tarn_module_parameter(net, i)));
    assert_false(tarn_module_freeze(NULL, true));
    assert_error_about(TARN_ERROR_ARGUMENT, "module_freeze", "NULL");
    tarn_module_free(net);
}

static void a_module_moves_between_devices_with_its_gradients_under_the_same_handles(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 2)
        skip();
    tarn_device there = tarn_device_parse("mirror:1");
    tarn_scope *scope = tarn_scope_open();
    tarn_module *net = two_layers();
    tarn_tensor *weight = tarn_module_find(net, "0.weight");
    float before[12], after[12];
    assert_true(tarn_read_f32(weight, before, 12));
    assert_true(tarn_backward_from(weight, tarn_full(TARN_SHAPE(4, 3), 5, TARN_F32, cpu), NULL));
    assert_true(tarn_module_to(net, there));
    assert_ptr_equal(tarn_module_find(net, "0.weight"), weight);
    for (int i = 0; i < 4; i++)
        assert_true(tarn_device_equal(tarn_device_of(tarn_module_parameter(net, i)), there));
    assert_true(tarn_device_equal(tarn_device_of(tarn_grad(weight)), there));
    assert_true(tarn_item_at(tarn_grad(weight), TARN_SHAPE(3, 2)) == 5);
    assert_true(tarn_read_f32(weight, after, 12));
    assert_memory_equal(before, after, sizeof(before));
    assert_true(tarn_module_to(net, cpu));
    assert_true(tarn_read_f32(weight, after, 12));
    assert_memory_equal(before, after, sizeof(before));
    assert_ok();
    tarn_module_free(net);
    tarn_scope_close(scope);
    tarn_empty_cache(there); /* its addresses are hidden from leak checkers */
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_empty_cache(cpu);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    bool made = false;
    for (int room = 0; !made && room < 500; room++) {
        allocations_left = room;
        tarn_module *net = tarn_sequential(
            tarn_linear(2, 3, cpu), tarn_sequential(tarn_activation(TARN_RELU), tarn_linear(3, 1, cpu), NULL), NULL);
        allocations_left = 1000000; /* whatever happens, the tests after this one have memory */
        made = net != NULL;
        assert_true(made || tarn_error_code() == TARN_ERROR_MEMORY);
        assert_true(!made || !tarn_failed());
        tarn_clear_error();
        tarn_module_free(net);
        tarn_empty_cache(cpu);
        if (tarn__memory_in_use() != 0)
            fail_msg("%lld bytes are left after failing at allocation %d", (long long)tarn__memory_in_use(), room);
    }
    assert_true(made);
    assert_true(tarn_set_allocator(NULL));
}

int main(void)
{
    cpu = tarn_device_cpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        cmocka_unit_test_setup(parameters_of_a_sequence_are_named_and_counted_as_in_torch, clear_error),
        cmocka_unit_test_setup(names_grow_with_the_tree_and_are_relative_to_the_module_asked, clear_error),
        cmocka_unit_test_setup(finding_an_unknown_name_suggests_close_ones, clear_error),
        cmocka_unit_test_setup(a_parameter_of_two_modules_counts_once_under_its_first_name, clear_error),
        cmocka_unit_test_setup(a_linear_layer_begins_uniform_within_one_over_the_root_of_its_inputs, clear_error),
        cmocka_unit_test_setup(the_same_seed_gives_the_same_layer, clear_error),
        cmocka_unit_test_setup(a_linear_layer_refuses_sizes_and_dtypes_that_it_cannot_have, clear_error),
        cmocka_unit_test_setup(forward_equals_the_product_written_by_hand, clear_error),
        cmocka_unit_test_setup(every_activation_is_its_operation, clear_error),
        cmocka_unit_test_setup(forward_of_nothing_is_an_error_that_names_it, clear_error),
        cmocka_unit_test_setup(a_users_layer_runs_in_its_own_scope_and_passes_its_result_out, clear_error),
        cmocka_unit_test_setup(a_users_layer_may_return_what_it_was_given, clear_error),
        cmocka_unit_test_setup(a_users_layer_that_fails_is_an_error, clear_error),
        cmocka_unit_test_setup(a_module_that_cannot_be_made_releases_its_context, clear_error),
        cmocka_unit_test_setup(parameters_are_checked_when_they_are_added, clear_error),
        cmocka_unit_test_setup(a_parameter_outlives_its_scope_and_goes_with_its_module, clear_error),
        cmocka_unit_test_setup(a_sequence_of_which_one_failed_frees_the_rest_and_keeps_the_error, clear_error),
        cmocka_unit_test_setup(a_sequence_with_a_hole_or_a_module_twice_is_an_error_and_frees_all, clear_error),
        cmocka_unit_test_setup(a_child_has_one_parent_that_frees_it, clear_error),
        cmocka_unit_test_setup(a_frozen_module_takes_no_gradients_until_it_is_let_go, clear_error),
        cmocka_unit_test_setup(a_module_moves_between_devices_with_its_gradients_under_the_same_handles, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_state_dict.c: modules saved and loaded by name, and the table of their layers. */
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

/* A network with a parameter, a buffer of another dtype, and a norm. */
static tarn_module *network(tarn_dtype dtype)
{
    tarn_module *layer = tarn_module_new("counter", unchanged, NULL, NULL);
    tarn_module_add_buffer(layer, "steps", tarn_full(TARN_SCALAR, 7, TARN_I64, CPU));
    tarn_module_add_buffer(layer, "flags", tarn_cast(vector(1, 0, 1), TARN_BOOL));
    return tarn_sequential(tarn_linear_with(3, 4, CPU, &(tarn_linear_options){.dtype = dtype}), layer,
                           tarn_layernorm_layer_with(4, CPU, &(tarn_norm_options){.dtype = dtype}));
}

static const char *saved(tarn_module *module)
{
    assert_true(tarn_module_save(module, scratch("net.safetensors")));
    return scratch("net.safetensors");
}

static double total(const tarn_module *module)
{
    double sum = 0;
    for (int i = 0; i < tarn_module_parameter_count(module); i++)
        sum += tarn_item(tarn_sum(tarn_cast(tarn_module_parameter(module, i), TARN_F64), TARN_ALL_AXES, false));
    return sum;
}

static void what_is_saved_is_loaded_by_name(void **state)
{
    (void)state;
    tarn_module *a = network(TARN_F32), *b = network(TARN_F32);
    const char *path = saved(a);
    tarn_safetensors *file = tarn_safetensors_open(path);
    assert_int_equal(tarn_safetensors_count(file), 6);
    assert_string_equal(tarn_safetensors_metadata(file, "format"), "pt");
    assert_true(tarn_safetensors_find(file, "1.steps") >= 0 && tarn_safetensors_find(file, "2.weight") >= 0);
    tarn_safetensors_close(file);
    tarn_write(tarn_module_find(b, "1.steps"), &(int64_t){0}, 8);
    assert_true(total(a) != total(b));
    assert_true(tarn_module_load(b, path, NULL));
    assert_true(total(a) == total(b));
    assert_true(tarn_item(tarn_module_find(b, "1.steps")) == 7);
    tarn_module_free(a);
    tarn_module_free(b);
}

static void floats_are_converted_and_devices_crossed(void **state)
{
    (void)state;
    tarn_module *a = network(TARN_F32), *b = network(TARN_BF16);
    assert_true(tarn_module_to(b, tarn_device_parse("mirror:0")));
    assert_true(tarn_module_load(b, saved(a), NULL));
    assert_close(tarn_to(tarn_cast(tarn_module_find(b, "0.weight"), TARN_F32), CPU),
                 tarn_cast(tarn_cast(tarn_module_find(a, "0.weight"), TARN_BF16), TARN_F32), 0);
    assert_true(tarn_module_save(b, scratch("net.safetensors")));
    assert_true(tarn_module_load(a, scratch("net.safetensors"), NULL));
    assert_ok();
    tarn_module_free(a);
    tarn_module_free(b);
}

static void loading_reaches_what_an_optimizer_trains(void **state)
{
    (void)state;
    tarn_module *a = network(TARN_BF16), *b = network(TARN_BF16);
    const char *path = saved(a);
    tarn_optimizer *sgd = tarn_sgd(b, &(tarn_sgd_options){.lr = 1e-30f});
    assert_true(tarn_module_load(b, path, NULL));
    tarn_backward(tarn_sum(tarn_cast(tarn_forward(b, tarn_ones(TARN_SHAPE(1, 3), TARN_BF16, CPU)), TARN_F32),
                           TARN_ALL_AXES, false));
    assert_true(tarn_optimizer_step(sgd)); /* its master weights must follow */
    assert_true(total(a) == total(b));
    tarn_optimizer_free(sgd);
    tarn_module_free(a);
    tarn_module_free(b);
}

static void everything_that_does_not_fit_is_listed_and_nothing_changed(void **state)
{
    (void)state;
    tarn_module *a = tarn_sequential(tarn_linear(3, 4, CPU), tarn_layernorm_layer(4, CPU), tarn_linear(4, 4, CPU));
    tarn_module *b = tarn_sequential(tarn_linear(3, 4, CPU), tarn_linear(4, 4, CPU), tarn_linear(5, 4, CPU),
                                     tarn_embedding_layer(2, 2, CPU));
    const char *path = saved(a);
    double before = total(b);
    assert_false(tarn_module_load(b, path, NULL));
    assert_contains(tarn_error(), "net.safetensors': 1 missing: '3.weight'; 2 that do not fit: '1.weight' is [4] F32 "
                                  "in the file and [4, 4] f32 in the module");
    assert_error_about(TARN_ERROR_FORMAT, "module_load: '",
                       "'2.weight' is [4, 4] F32 in the file and [4, 5] f32 in the module; nothing was loaded");
    assert_false(tarn_module_load(a, saved(b), NULL));
    assert_error(TARN_ERROR_FORMAT, "1 unexpected: '3.weight'");
    assert_true(total(b) == before);
    path = saved(a);
    assert_false(tarn_module_load(b, path, &(tarn_module_load_options){.allow_missing = true}));
    assert_error(TARN_ERROR_FORMAT, "2 that do not fit");
    assert_true(tarn_module_load(b, path, &(tarn_module_load_options){.allow_missing = true, .skip_mismatched = true}));
    assert_close(tarn_module_find(b, "0.weight"), tarn_module_find(a, "0.weight"), 0);
    assert_true(
        tarn_module_load(a, saved(b), &(tarn_module_load_options){.allow_unexpected = true, .skip_mismatched = true}));
    assert_ok();
    tarn_module_free(a);
    tarn_module_free(b);
}

static void a_long_list_is_cut_with_its_count(void **state)
{
    (void)state;
    tarn_module *list[60], *none = tarn_sequential(NULL);
    for (int i = 0; i < 60; i++)
        list[i] = tarn_linear(1, 1, CPU);
    tarn_module *net = tarn_sequential_from(list, 60);
    assert_false(tarn_module_load(net, saved(none), NULL));
    assert_error_about(TARN_ERROR_FORMAT, "120 missing: '0.weight', '0.bias'", " more; nothing was loaded");
    assert_false(tarn_module_load(none, saved(net), NULL));
    assert_error_about(TARN_ERROR_FORMAT, "120 unexpected: ", " more; nothing was loaded");
    tarn_module_free(net);
    tarn_module_free(none);
}

static void integers_do_not_become_floats(void **state)
{
    (void)state;
    tarn_module *a = tarn_module_new("a", unchanged, NULL, NULL), *b = tarn_module_new("b", unchanged, NULL, NULL);
    tarn_module_add_buffer(a, "x", tarn_zeros(TARN_SHAPE(2), TARN_I64, CPU));
    tarn_module_add_buffer(b, "x", tarn_zeros(TARN_SHAPE(2), TARN_F32, CPU));
    assert_false(tarn_module_load(b, saved(a), NULL));
    assert_error(TARN_ERROR_FORMAT, "'x' is [2] I64 in the file and [2] f32 in the module");
    tarn_module_free(a);
    tarn_module_free(b);
}

/* Two places, one tensor: saved once; loaded from either name; two names with different values are an error. */
static void a_shared_parameter_is_one_in_files_too(void **state)
{
    (void)state;
    tarn_module *first = tarn_linear_with(2, 2, CPU, &(tarn_linear_options){.no_bias = true}),
                *second = tarn_module_new("tied", unchanged, NULL, NULL);
    tarn_tensor *weight = tarn_module_find(first, "weight");
    good(tarn_module_add_parameter(second, "weight", weight));
    tarn_module *net = tarn_sequential(first, second);
    tarn_safetensors *file = tarn_safetensors_open(saved(net));
    assert_int_equal(tarn_safetensors_count(file), 1);
    tarn_safetensors_close(file);
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("net.safetensors"));
    tarn_safetensors_add(writer, "1.weight", count_up(TARN_SHAPE(2, 2)));
    assert_true(tarn_safetensors_finish(writer));
    assert_true(tarn_module_load(net, scratch("net.safetensors"), NULL));
    expect(weight, TARN_SHAPE(2, 2), VALUES(0, 1, 2, 3));
    writer = tarn_safetensors_create(scratch("net.safetensors"));
    tarn_safetensors_add(writer, "0.weight", tarn_ones(TARN_SHAPE(2, 2), TARN_F32, CPU));
    tarn_safetensors_add(writer, "1.weight", count_up(TARN_SHAPE(2, 2)));
    assert_true(tarn_safetensors_finish(writer));
    assert_false(tarn_module_load(net, scratch("net.safetensors"), NULL));
    assert_error(TARN_ERROR_FORMAT, "'0.weight' and '1.weight' differ, but are one tensor in the module");
    expect(weight, TARN_SHAPE(2, 2), VALUES(0, 1, 2, 3));
    tarn_module_free(net);
}

static void a_bool_that_is_none_changes_nothing(void **state)
{
    (void)state;
    size_t count;
    tarn_module *a = network(TARN_F32), *b = network(TARN_F32);
    const char *path = saved(a);
    drop_checksums(path);
    char *content = get_file(path, &count);
    content[count - 1] = 9; /* bools come last */
    put_file(path, content, count);
    free(content);
    double before = total(b);
    assert_false(tarn_module_load(b, path, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "module_load", "9 is not a bool");
    assert_true(total(b) == before);
    tarn_module_free(a);
    tarn_module_free(b);
}

static void files_that_are_none_are_errors(void **state)
{
    (void)state;
    tarn_module *a = network(TARN_F32);
    assert_false(tarn_module_load(a, scratch("nosuch"), NULL));
    assert_error(TARN_ERROR_IO, "module_load: safetensors_open: '");
    assert_false(tarn_module_save(a, "/nonexistent-folder/x"));
    assert_error(TARN_ERROR_IO, "module_save: safetensors_finish: '");
    tarn_module_free(a);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void the_summary_is_a_table(void **state)
{
    (void)state;
    tarn_module *net = tarn_sequential(tarn_linear(4, 3, CPU), tarn_residual(tarn_activation(TARN_RELU), NULL),
                                       tarn_dropout_layer(0.5));
    tarn_module *frozen = tarn_linear(3, 2, CPU);
    assert_true(tarn_module_freeze(frozen, true));
    assert_true(tarn_module_add_child(net, "3", frozen));
    good(tarn_module_add_buffer(net, "steps", tarn_zeros(TARN_SHAPE(3), TARN_I64, CPU)));
    tarn_seed(5);
    double without = tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F64, CPU));
    tarn_seed(5);
    char *text = tarn_module_summary_string(net, TARN_SHAPE(2, 4), TARN_F32);
    assert_ok();
    const char *expected = "layer                     output                      parameters      memory\n"
                           "sequential                [2, 2]                               0        24 B\n"
                           "  0 linear                [2, 3]                              15        60 B\n"
                           "  1 residual              [2, 3]                               0         0 B\n"
                           "    body relu             [2, 3]                               0         0 B\n"
                           "  2 dropout               [2, 3]                               0         0 B\n"
                           "  3 linear                [2, 2]                               8        32 B\n"
                           "trained  15 parameters, 60 B\n"
                           "frozen   8 parameters, 32 B\n"
                           "buffers  24 B\n"
                           "results  88 B for an input [2, 4] of f32\n";
    assert_string_equal(text, expected);
    tarn_string_free(text);
    assert_true(tarn_module_is_training(net));
    assert_true(tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F64, CPU)) == without);
    FILE *file = fopen(scratch("table"), "w");
    assert_true(tarn_module_summary(net, TARN_SHAPE(2, 4), TARN_F32, file));
    fclose(file);
    size_t count;
    char *written = get_file(scratch("table"), &count);
    assert_string_equal(written, expected);
    free(written);
    assert_null(tarn_module_summary_string(net, TARN_SHAPE(2, 5), TARN_F32));
    assert_error_about(TARN_ERROR_SHAPE, "module_summary_string: linear_apply", "5");
    assert_true(tarn_module_is_training(net));
    tarn_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tables[] = {in_scope(the_summary_is_a_table)};
    const struct CMUnitTest tests[] = {
        in_scope(what_is_saved_is_loaded_by_name),
        in_scope(floats_are_converted_and_devices_crossed),
        in_scope(loading_reaches_what_an_optimizer_trains),
        in_scope(everything_that_does_not_fit_is_listed_and_nothing_changed),
        in_scope(a_long_list_is_cut_with_its_count),
        in_scope(integers_do_not_become_floats),
        in_scope(a_shared_parameter_is_one_in_files_too),
        in_scope(a_bool_that_is_none_changes_nothing),
        in_scope(files_that_are_none_are_errors),
    };
    int failures = cmocka_run_group_tests_name("summary", tables, make_scratch, remove_scratch);
    return failures +
           (TARN__HAVE_JANSSON ? cmocka_run_group_tests_name("files", tests, make_scratch, remove_scratch) : 0);
}

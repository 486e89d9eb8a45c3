/* test_models.c: the networks: their shapes, their names, that they learn, and that ResNet-20 gives the answers of the
 * weights' makers. */
#include "support/files.h"

#define CPU tarn_device_cpu()

static tarn_tensor *random_images(int64_t count, int64_t channels, int64_t side)
{
    return good(tarn_normal(TARN_SHAPE(count, channels, side, side), 0, 1, TARN_F32, CPU));
}

static void an_mlp_is_flatten_linear_relu_linear(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_mlp(12, (const int64_t[]){7, 5}, 2, 3, CPU);
    assert_ok();
    assert_shape(good(tarn_forward(model, random_images(4, 3, 2))), 4, 3);
    assert_int_equal(tarn_module_element_count(model), 12 * 7 + 7 + 7 * 5 + 5 + 5 * 3 + 3);
    assert_shape(good(tarn_module_find(model, "3.weight")), 5, 7);
    tarn_module_free(model);

    model = tarn_model_mlp(12, NULL, 0, 3, CPU); /* no hidden layer: logistic regression */
    assert_int_equal(tarn_module_parameter_count(model), 2);
    tarn_module_free(model);
}

static void a_lenet_takes_images_of_any_size(void **state)
{
    (void)state;
    static const struct {
        int64_t channels, height, width;
    } sizes[] = {{1, 28, 28}, {3, 32, 32}, {2, 5, 7}, {1, 4, 4}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_module *model = tarn_model_lenet(sizes[i].channels, sizes[i].height, sizes[i].width, 10, CPU);
        assert_ok();
        tarn_tensor *x = tarn_zeros(TARN_SHAPE(2, sizes[i].channels, sizes[i].height, sizes[i].width), TARN_F32, CPU);
        assert_shape(good(tarn_forward(model, x)), 2, 10);
        tarn_module_free(model);
    }
}

/* The published network has 269,722 parameters with ten classes. */
static void resnet20_has_the_published_size_and_other_channels_on_request(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_resnet20(10, CPU);
    assert_ok();
    assert_int_equal(tarn_module_element_count(model), 269722);
    assert_shape(good(tarn_forward(model, random_images(2, 3, 32))), 2, 10);
    assert_shape(good(tarn_module_find(model, "layer3.2.bn2.running_var")), 64);
    tarn_module_free(model);

    model = tarn_model_resnet20_with(4, CPU, &(tarn_resnet20_options){.channels = 1});
    assert_shape(good(tarn_forward(model, random_images(2, 1, 28))), 2, 4);
    tarn_module_free(model);
}

/* The sizes of torchvision's networks with a thousand classes, and some of their names. tests/parity/resnets.py
 * compares their results. */
static void resnets_have_the_sizes_and_names_of_torchvision(void **state)
{
    (void)state;
    static const struct {
        int layers;
        int64_t parameters;
        const char *name;
    } rows[] = {{18, 11689512, "layer4.1.conv2.weight"},
                {34, 21797672, "layer3.5.bn2.running_var"},
                {50, 25557032, "layer1.0.downsample.1.running_mean"}};
    for (int i = 0; i < 3; i++) {
        tarn_module *model = tarn_model_resnet(rows[i].layers, 1000, CPU, NULL);
        assert_ok();
        assert_int_equal(tarn_module_element_count(model), rows[i].parameters);
        assert_non_null(tarn_module_find(model, rows[i].name));
        tarn_module_free(model);
    }
    tarn_module *model = tarn_model_resnet(18, 4, CPU, &(tarn_resnet_options){.channels = 1});
    assert_shape(good(tarn_forward(model, random_images(2, 1, 40))), 2, 4);
    tarn_module_free(model);
}

/* Overfits four random images of four classes. */
static void every_model_learns(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        tarn_seed(7);
        tarn_tensor *x = random_images(4, 3, 8),
                    *label = good(tarn_from_i64((const int64_t[]){0, 1, 2, 3}, TARN_SHAPE(4), CPU));
        tarn_module *model = kind == 0   ? tarn_model_mlp(192, (const int64_t[]){32}, 1, 4, CPU)
                             : kind == 1 ? tarn_model_lenet(3, 8, 8, 4, CPU)
                                         : tarn_model_resnet20(4, CPU);
        tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.003f});
        double first = 0, last = 0;
        for (int step = 0; step < 25; step++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *loss = tarn_cross_entropy(tarn_forward(model, x), label, NULL);
            tarn_backward(loss);
            tarn_optimizer_step(adam);
            last = tarn_item(loss);
            first = step == 0 ? last : first;
            tarn_scope_close(scope);
        }
        assert_ok();
        if (!(last < 0.2 * first))
            fail_msg("model %d: the loss went from %g to %g only", kind, first, last);
        tarn_optimizer_free(adam);
        tarn_module_free(model);
    }
}

/* ---- weights trained by others ----------------------------------------------------------------------------------- */

enum { IMAGES = 1000, CLASSES = 10, GOLDEN = 16 };

/* The arrays after each "logits" of the file. */
static void read_golden(const char *path, double logits[GOLDEN][CLASSES])
{
    size_t length;
    char *text = get_file(path, &length), *at = text;
    for (int row = 0; row < GOLDEN; row++) {
        at = strstr(at, "\"logits\"");
        assert_non_null(at);
        at = strchr(at, '[') + 1;
        for (int k = 0; k < CLASSES; k++, at++)
            logits[row][k] = strtod(at, &at);
    }
    free(text);
}

/* Only what nothing reads may be missing from the file. */
static void check_names(const tarn_module *model, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    assert_ok();
    int found = 0;
    for (int i = 0; i < tarn_module_parameter_count(model); i++, found++)
        if (tarn_safetensors_find(file, tarn_module_parameter_name(model, i)) < 0)
            fail_msg("%s is not in the file", tarn_module_parameter_name(model, i));
    for (int i = 0; i < tarn_module_buffer_count(model); i++) {
        const char *name = tarn_module_buffer_name(model, i);
        if (strstr(name, "num_batches_tracked"))
            continue;
        found++;
        if (tarn_safetensors_find(file, name) < 0)
            fail_msg("%s is not in the file", name);
    }
    assert_int_equal(found, tarn_safetensors_count(file));
    tarn_safetensors_close(file);
}

/* logits [images, classes] of all images, 250 at a time. */
static void classify(tarn_module *model, tarn_dataset *dataset, float logits[IMAGES][CLASSES], int64_t labels[IMAGES])
{
    const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
    tarn_loader *loader = tarn_loader_new(
        dataset, &(tarn_loader_options){.batch_size = 250, .normalize = true, .mean = mean, .std = std, .channels = 3});
    tarn_no_grad_open();
    for (int64_t row = 0; row < IMAGES; row += 250) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *fields[2];
        assert_true(tarn_loader_next(loader, fields));
        assert_true(tarn_read_f32(tarn_forward(model, fields[0]), &logits[row][0], 250 * CLASSES));
        assert_true(tarn_read(fields[1], &labels[row], 250 * sizeof(int64_t)));
        tarn_scope_close(scope);
    }
    tarn_no_grad_close();
    tarn_loader_free(loader);
    assert_ok();
}

static void resnet20_gives_the_answers_of_weights_trained_by_others(void **state)
{
    (void)state;
    static float logits[IMAGES][CLASSES];
    static int64_t labels[IMAGES];
    double golden[GOLDEN][CLASSES];
    if (!real_data("resnet20"))
        skip();
    tarn_module *model = tarn_model_resnet20(CLASSES, CPU);
    check_names(model, real_data("resnet20/resnet20.safetensors"));
    assert_true(tarn_module_load(model, real_data("resnet20/resnet20.safetensors"),
                                 &(tarn_module_load_options){.allow_missing = true}));
    tarn_module_train(model, false);
    tarn_dataset *dataset = tarn_dataset_cifar10((const char *const[]){real_data("cifar10/test_first1000.bin")}, 1);
    classify(model, dataset, logits, labels);

    double farthest = 0;
    read_golden(real_data("resnet20/golden_resnet20_first16.json"), golden);
    for (int row = 0; row < GOLDEN; row++)
        for (int k = 0; k < CLASSES; k++)
            farthest = fmax(farthest, fabs((double)logits[row][k] - golden[row][k]));
    int right = 0;
    for (int row = 0; row < IMAGES; row++) {
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            best = logits[row][k] > logits[row][best] ? k : best;
        right += best == labels[row];
    }
    print_message("logits differ by at most %.2g from f64; %d of %d right\n", farthest, right, IMAGES);
    assert_true(farthest < 1e-4);
    assert_int_equal(right, 915);
    tarn_dataset_free(dataset);
    tarn_module_free(model);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static tarn_module *make(int kind)
{
    return kind == 0   ? tarn_model_mlp(4, (const int64_t[]){3}, 1, 2, CPU)
           : kind == 1 ? tarn_model_lenet(1, 4, 4, 2, CPU)
                       : tarn_model_resnet20(2, CPU);
}

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    for (int kind = 0; kind < 3; kind++) {
        bool made = false;
        for (int room = 0; !made && room < 20000; room++) {
            allocations_left = room;
            tarn_module *model = make(kind);
            made = model != NULL;
            tarn_code code = tarn_error_code();
            allocations_left = 1000000;
            tarn_clear_error();
            assert_true(made || code == TARN_ERROR_MEMORY);
            tarn_module_free(model);
            tarn_empty_cache(CPU);
        }
        assert_true(made);
    }
    if (!tarn_set_allocator(NULL)) /* which it refuses while memory is out */
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(an_mlp_is_flatten_linear_relu_linear),
        in_scope(a_lenet_takes_images_of_any_size),
        in_scope(resnet20_has_the_published_size_and_other_channels_on_request),
        in_scope(resnets_have_the_sizes_and_names_of_torchvision),
        in_scope(every_model_learns),
        in_scope(resnet20_gives_the_answers_of_weights_trained_by_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

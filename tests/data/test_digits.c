/* test_digits.c: synthetic digits: a function of seed and index, classes equally frequent, legible, and neither trivial
 * nor impossible: the nearest mean image misclassifies many, and a small network learns them. */
#include "support/check.h"

#define PIXELS 784
#define TRAINED 3000
#define TESTED 500

typedef struct sample {
    unsigned char pixel[PIXELS];
    int64_t label;
} sample;

static sample read_sample(const tarn_dataset *dataset, int64_t index)
{
    sample s;
    assert_true(tarn_dataset_read(dataset, index, (void *const[]){s.pixel, &s.label}));
    assert_true(s.label >= 0 && s.label < 10);
    return s;
}

static void samples_depend_on_seed_and_index_alone(void **state)
{
    (void)state;
    tarn_dataset *a = tarn_dataset_digits(100, 7), *b = tarn_dataset_digits(1000000000000, 7),
                 *c = tarn_dataset_digits(100, 8);
    assert_int_equal(tarn_dataset_count(b), 1000000000000);
    int same_labels = 0;
    for (int64_t i = 99; i >= 0; i--) {
        sample one = read_sample(a, i), again = read_sample(b, i), other = read_sample(c, i),
               next = read_sample(b, i + 1);
        assert_true(one.label == again.label && memcmp(one.pixel, again.pixel, PIXELS) == 0);
        assert_memory_not_equal(one.pixel, other.pixel, PIXELS);
        assert_memory_not_equal(one.pixel, next.pixel, PIXELS);
        same_labels += one.label == other.label;
    }
    assert_true(same_labels < 40);
    read_sample(b, 999999999999);
    tarn_dataset_free(a);
    tarn_dataset_free(b);
    tarn_dataset_free(c);
}

static void fields_are_those_of_mnist(void **state)
{
    (void)state;
    tarn_dataset *dataset = tarn_dataset_digits(1, 0);
    tarn_field image, label;
    assert_true(tarn_dataset_field(dataset, 0, &image) && tarn_dataset_field(dataset, 1, &label));
    assert_true(strcmp(image.name, "image") == 0 && image.dtype == TARN_U8 && image.shape.rank == 3);
    assert_true(image.shape.size[0] == 1 && image.shape.size[1] == 28 && image.shape.size[2] == 28);
    assert_true(strcmp(label.name, "label") == 0 && label.dtype == TARN_I64 && label.shape.rank == 0);
    tarn_dataset_free(dataset);
}

/* Ink in the middle, little at the edge: nothing is drawn outside the image or left out. */
static void digits_lie_inside_the_image(void **state)
{
    (void)state;
    tarn_dataset *dataset = tarn_dataset_digits(2000, 1);
    int count[10] = {0};
    for (int64_t i = 0; i < 2000; i++) {
        sample s = read_sample(dataset, i);
        int ink = 0, edge = 0;
        for (int p = 0; p < PIXELS; p++) {
            bool is_edge = p < 28 || p >= PIXELS - 28 || p % 28 == 0 || p % 28 == 27;
            ink += s.pixel[p] > 128;
            edge += is_edge && s.pixel[p] > 128;
        }
        count[s.label]++;
        if (ink < 10 || ink > 300 || edge > 16)
            print_error("sample %lld, a %lld: %d pixels of ink, %d at the edge\n", (long long)i, (long long)s.label,
                        ink, edge);
        assert_true(ink >= 10 && ink <= 300 && edge <= 16);
    }
    for (int k = 0; k < 10; k++)
        assert_true(count[k] > 150 && count[k] < 250);
    tarn_dataset_free(dataset);
}

/* The share of samples whose nearest mean image is that of their digit. */
static double score_of_means(const tarn_dataset *known, const tarn_dataset *unknown)
{
    static double mean[10][PIXELS];
    int count[10] = {0}, right = 0;
    memset(mean, 0, sizeof(mean));
    for (int64_t i = 0; i < TRAINED; i++) {
        sample s = read_sample(known, i);
        count[s.label]++;
        for (int p = 0; p < PIXELS; p++)
            mean[s.label][p] += s.pixel[p];
    }
    for (int64_t i = 0; i < TESTED; i++) {
        sample s = read_sample(unknown, i);
        double best = INFINITY;
        int64_t found = -1;
        for (int k = 0; k < 10; k++) {
            double distance = 0;
            for (int p = 0; p < PIXELS; p++)
                distance += pow(mean[k][p] / count[k] - s.pixel[p], 2);
            found = distance < best ? k : found;
            best = distance < best ? distance : best;
        }
        right += found == s.label;
    }
    return (double)right / TESTED;
}

static void mean_images_do_not_tell_them_apart(void **state)
{
    (void)state;
    tarn_dataset *known = tarn_dataset_digits(TRAINED, 1), *unknown = tarn_dataset_digits(TESTED, 2);
    double score = score_of_means(known, unknown);
    print_message("the nearest mean image is right for %.1f %%\n", 100 * score);
    assert_true(score > .5 && score < .85);
    tarn_dataset_free(known);
    tarn_dataset_free(unknown);
}

static double score_of_network(tarn_module *network, tarn_dataset *dataset)
{
    tarn_loader *loader = tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = TESTED, .normalize = true});
    tarn_tensor *batch[2];
    assert_true(tarn_loader_next(loader, batch));
    tarn_tensor *guess = tarn_argmax(tarn_forward(network, batch[0]), 1, false);
    double right = tarn_item(tarn_mean(tarn_cast(tarn_eq(guess, batch[1]), TARN_F32), TARN_ALL_AXES, false));
    assert_ok();
    tarn_loader_free(loader);
    return right;
}

static void a_small_network_learns_them(void **state)
{
    (void)state;
    const char *quick = getenv("TARN_TEST_QUICK");
    int epochs = quick && quick[0] == '1' ? 4 : 10;
    tarn_seed(1);
    tarn_dataset *known = tarn_dataset_digits(TRAINED, 1), *unknown = tarn_dataset_digits(TESTED, 2);
    tarn_module *network = tarn_sequential(tarn_flatten(1), tarn_linear(PIXELS, 128, tarn_device_cpu()),
                                           tarn_activation(TARN_RELU), tarn_linear(128, 10, tarn_device_cpu()));
    tarn_optimizer *optimizer = tarn_adamw(network, &(tarn_adamw_options){.lr = 2e-3f});
    tarn_loader *loader =
        tarn_loader_new(known, &(tarn_loader_options){.batch_size = 50, .shuffle = true, .normalize = true});
    tarn_tensor *batch[2];
    for (int epoch = 0; epoch < epochs; epoch++)
        for (bool more = true; more;) {
            tarn_scope *scope = tarn_scope_open();
            more = tarn_loader_next(loader, batch);
            if (more && tarn_backward(tarn_cross_entropy(tarn_forward(network, batch[0]), batch[1], NULL)))
                tarn_optimizer_step(optimizer);
            tarn_scope_close(scope);
        }
    double score = score_of_network(network, unknown);
    print_message("a network of two linear layers is right for %.1f %% after %d epochs\n", 100 * score, epochs);
    assert_true(score > (epochs < 10 ? .8 : .9));
    tarn_optimizer_free(optimizer);
    tarn_module_free(network);
    tarn_loader_free(loader);
    tarn_dataset_free(known);
    tarn_dataset_free(unknown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(samples_depend_on_seed_and_index_alone),
                                       in_scope(fields_are_those_of_mnist), in_scope(digits_lie_inside_the_image),
                                       in_scope(mean_images_do_not_tell_them_apart),
                                       in_scope(a_small_network_learns_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_image_folder.c: image files by class: their order, labels, sizes, broken ones, splits and augmentation. Images
 * are PPM and PGM, which need no library. */
#include <sys/stat.h>

#include "base/memory.h"
#include "data/readers/image_folder.h"
#include "support/files.h"

enum { SIZE = 8, BYTES = 3 * SIZE * SIZE };

static void make_folder(const char *name)
{
    mkdir(scratch(name), 0777);
}

/* An image of one grey value. */
static void write_grey(const char *name, int height, int width, int value)
{
    static bytes b;
    char head[40];
    b.count = 0;
    snprintf(head, sizeof(head), "P5 %d %d 255\n", width, height);
    put_text(&b, head);
    for (int i = 0; i < height * width; i++)
        put(&b, &(unsigned char){(unsigned char)value}, 1);
    write_file(name, b.data, b.count);
}

/* An image whose pixels all differ. */
static void write_colours(const char *name, int height, int width)
{
    static bytes b;
    char head[40];
    b.count = 0;
    snprintf(head, sizeof(head), "P6 %d %d 255\n", width, height);
    put_text(&b, head);
    for (int i = 0; i < 3 * height * width; i++)
        put(&b, &(unsigned char){(unsigned char)(i * 37 + i / 64)}, 1);
    write_file(name, b.data, b.count);
}

static tarn_dataset *open_folder(const char *name)
{
    tarn_dataset *dataset = tarn_dataset_images(scratch(name), &(tarn_images_options){.size = SIZE});
    assert_ok();
    assert_non_null(dataset);
    return dataset;
}

/* The first value and the label of a sample. */
static int value_at(const tarn_dataset *dataset, int64_t index, int64_t *label)
{
    unsigned char pixels[BYTES];
    assert_true(tarn_dataset_read(dataset, index, (void *const[]){pixels, label}));
    return pixels[0];
}

static void no_log(tarn_log_level level, const char *text, void *ctx)
{
    (void)level, (void)text;
    ++*(int *)ctx;
}

/* ---- listing ----------------------------------------------------------------------------------------------------- */

static void a_folder_per_class_in_the_order_of_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int value, label;
    } files[] = {{"a/dog/1.pgm", 10, 1}, {"a/dog/10.pgm", 11, 1},  {"a/dog/2.PGM", 12, 1},
                 {"a/cat/z.pgm", 2, 0},  {"a/cat/in/a.pgm", 1, 0}, {"a/eel/x.pgm", 20, 2}};
    static const int order[] = {1, 2, 10, 11, 12, 20};
    make_folder("a");
    make_folder("a/dog");
    make_folder("a/cat");
    make_folder("a/cat/in");
    make_folder("a/eel");
    make_folder("a/empty");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        write_grey(files[i].path, 5, 9, files[i].value);
    write_text("a/notes.txt", "not an image");
    write_text("a/cat/.hidden.pgm", "not an image");
    tarn_dataset *dataset = open_folder("a");
    assert_int_equal(tarn_dataset_count(dataset), 6);
    assert_int_equal(tarn_dataset_class_count(dataset), 3);
    assert_string_equal(tarn_dataset_class_name(dataset, 0), "cat");
    assert_string_equal(tarn_dataset_class_name(dataset, 2), "eel");
    for (int i = 0; i < 6; i++) {
        int64_t label;
        assert_int_equal(value_at(dataset, i, &label), order[i]);
        assert_int_equal(label, order[i] < 10 ? 0 : order[i] < 20 ? 1 : 2);
    }
    assert_int_equal(tarn_dataset_skipped_count(dataset), 0);
    tarn_dataset_free(dataset);
    /* labels by the classes of another set */
    dataset = tarn_dataset_images(
        scratch("a"), &(tarn_images_options){.size = SIZE,
                                             .class_names = (const char *const[]){"eel", "bat", "dog", "cat"},
                                             .class_count = 4});
    int64_t label;
    assert_true(value_at(dataset, 0, &label) == 1 && label == 3);
    tarn_dataset_free(dataset);
    assert_null(tarn_dataset_images(
        scratch("a"),
        &(tarn_images_options){.size = SIZE, .class_names = (const char *const[]){"cat", "dog"}, .class_count = 2}));
    assert_error(TARN_ERROR_FORMAT, "has the class 'eel', which the other data lacks");
}

static void labels_of_a_csv_file(void **state)
{
    (void)state;
    make_folder("b");
    make_folder("b/in");
    write_grey("b/in/one.pgm", 8, 8, 1);
    write_grey("b/two, or so.pgm", 8, 8, 2);
    write_grey("b/three.pgm", 8, 8, 3);
    write_text("b/labels.csv",
               "file,label,note\r\nin/one.pgm,small\r\n\r\n\"two, or so.pgm\",\"of \"\"any\"\" size\",x\n"
               "three.pgm,small\nnosuch.pgm,small");
    int logged = 0;
    tarn_set_log(no_log, &logged);
    tarn_dataset *dataset = open_folder("b");
    tarn_set_log(tarn_log_stderr, NULL);
    assert_int_equal(tarn_dataset_count(dataset), 3);
    assert_string_equal(tarn_dataset_class_name(dataset, 0), "of \"any\" size");
    assert_string_equal(tarn_dataset_class_name(dataset, 1), "small");
    int64_t label;
    assert_true(value_at(dataset, 0, &label) == 2 && label == 0);
    assert_true(value_at(dataset, 1, &label) == 1 && label == 1);
    assert_int_equal(tarn_dataset_skipped_count(dataset), 1);
    assert_string_equal(tarn_dataset_skipped(dataset, 0), "nosuch.pgm: the file cannot be opened");
    assert_int_equal(logged, 1);
    tarn_dataset_free(dataset);
    static const struct {
        const char *text, *error;
    } rows[] = {{"a.pgm", "line 1 needs an image file and its class"},
                {"a.pgm,x\nb.pgm,\n", "line 2 needs an image file and its class"},
                {"a.pgm,\"x\nb", "has a quote that does not end"},
                {"file,label\n", "has no folders with images"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        write_text("b/labels.csv", rows[i].text);
        assert_null(tarn_dataset_images(scratch("b"), &(tarn_images_options){.size = SIZE}));
        assert_error(TARN_ERROR_FORMAT, rows[i].error);
    }
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* The shorter side becomes SIZE, and the centre is kept. */
static void images_are_resized_and_cropped_at_the_centre(void **state)
{
    (void)state;
    unsigned char pixels[BYTES];
    int64_t label;
    make_folder("c");
    make_folder("c/x");
    write_colours("c/x/1.ppm", 20, 31);
    write_colours("c/x/2.ppm", 8, 8);
    tarn_dataset *dataset = open_folder("c");
    for (int i = 0; i < 2; i++) {
        tarn_array image, resized, square;
        assert_true(tarn_dataset_read(dataset, i, (void *const[]){pixels, &label}));
        assert_true(tarn_image_load(scratch(i ? "c/x/2.ppm" : "c/x/1.ppm"), &image));
        assert_true(tarn_image_resize(&image, 8, i ? 8 : 12, &resized)); /* 8 · 31 / 20 = 12.4 */
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < 8; y++)
                assert_memory_equal(pixels + (c * 8 + y) * 8,
                                    (unsigned char *)resized.data + (c * 8 + y) * (i ? 8 : 12) + (i ? 0 : 2), 8);
        assert_true(tarn_image_load_square(scratch(i ? "c/x/2.ppm" : "c/x/1.ppm"), 8, 3, &square));
        assert_memory_equal(square.data, pixels, BYTES);
        tarn_array_free(&image);
        tarn_array_free(&resized);
        tarn_array_free(&square);
    }
    tarn_dataset_free(dataset);
}

/* A broken file gives the sample of the next good one of its class, at whatever time it is found. */
static void broken_files_are_counted_and_replaced(void **state)
{
    (void)state;
    int64_t label;
    int logged = 0;
    make_folder("d");
    make_folder("d/x");
    make_folder("d/y");
    write_grey("d/x/1.pgm", 8, 8, 1);
    write_text("d/x/2.pgm", "P5 8 8 255 too short");
    write_text("d/x/3.png", "no image at all");
    write_grey("d/x/4.pgm", 8, 8, 4);
    write_text("d/x/5.webp", "RIFF");
    write_text("d/x/6.pgm", "P5 8 8 255 too short");
    write_text("d/y/1.pgm", "P5 8 8 255 too short");
    tarn_set_log(no_log, &logged);
    tarn_dataset *dataset = open_folder("d");
    assert_int_equal(tarn_dataset_count(dataset), 5);
    assert_int_equal(tarn_dataset_skipped_count(dataset), 2); /* 3.png and 5.webp */
    for (int round = 0; round < 2; round++) {
        assert_int_equal(value_at(dataset, 1, &label), 4);
        assert_int_equal(value_at(dataset, 3, &label), 1); /* from the end on to the first */
        assert_int_equal(label, 0);
    }
    assert_int_equal(tarn_dataset_skipped_count(dataset), 4);
    assert_non_null(strstr(tarn_dataset_skipped(dataset, 2), "8 x 8 pixels need"));
    unsigned char pixels[BYTES];
    assert_false(tarn_dataset_read(dataset, 4, (void *const[]){pixels, &label}));
    assert_error(TARN_ERROR_FORMAT, "no file of class 'y'");
    assert_int_equal(logged, 5);
    tarn_set_log(tarn_log_stderr, NULL);
    tarn_dataset_free(dataset);
}

/* ---- splits and batches ------------------------------------------------------------------------------------------ */

static void write_many(void)
{
    char name[64];
    make_folder("e");
    for (int label = 0; label < 3; label++) {
        snprintf(name, sizeof(name), "e/%d", label);
        make_folder(name);
        for (int i = 0; i < (label == 2 ? 1 : 20 + 10 * label); i++) {
            snprintf(name, sizeof(name), "e/%d/%02d.ppm", label, i);
            write_colours(name, 10 + i % 7, 9 + i % 5);
        }
    }
}

static void a_split_has_a_fraction_of_every_class(void **state)
{
    (void)state;
    tarn_dataset *all, *part[2], *again[2];
    write_many();
    all = open_folder("e");
    assert_true(tarn__image_folder_split("test", all, 0.2, 5, &part[0], &part[1]));
    uint64_t hash = tarn__image_folder_hash(part[0]);
    int counts[2][3] = {{0}};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tarn_dataset_count(part[k]); i++) {
            int64_t label;
            value_at(part[k], i, &label);
            counts[k][label]++;
        }
    assert_true(counts[0][0] == 16 && counts[1][0] == 4 && counts[0][1] == 24 && counts[1][1] == 6);
    assert_true(counts[0][2] == 1 && counts[1][2] == 0);
    assert_true(tarn__image_folder_split("test", all, 0.2, 5, &again[0], &again[1]));
    assert_true(tarn__image_folder_hash(again[0]) == hash);
    assert_true(tarn__image_folder_hash(again[1]) != hash);
    for (int k = 0; k < 2; k++) {
        tarn_dataset_free(part[k]);
        tarn_dataset_free(again[k]);
    }
    tarn_dataset_free(all);
}

/* The images of an epoch or two, one batch after the other; the caller frees them. */
static float *batches_of(tarn_dataset *dataset, int workers, int64_t *count)
{
    tarn_loader *loader = tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = 7,
                                                                          .shuffle = true,
                                                                          .seed = 9,
                                                                          .workers = workers,
                                                                          .normalize = true,
                                                                          .flip = true,
                                                                          .crop_scale = 0.3f,
                                                                          .jitter = 0.4f});
    float *all = malloc(sizeof(float) * 2 * 60 * BYTES);
    assert_non_null(loader);
    assert_non_null(all);
    *count = 0;
    for (int epoch = 0; epoch < 2; epoch++)
        for (;;) {
            tarn_tensor *fields[2];
            tarn_scope *scope = tarn_scope_open();
            bool more = tarn_loader_next(loader, fields);
            if (more) {
                int64_t values = tarn_size(fields[0], 0) * BYTES;
                assert_true(tarn_read(fields[0], all + *count, sizeof(float) * (size_t)values));
                *count += values;
            }
            tarn_scope_close(scope);
            if (!more)
                break;
        }
    assert_ok();
    tarn_loader_free(loader);
    return all;
}

static void augmentation_depends_on_the_sample_alone(void **state)
{
    (void)state;
    int64_t count, other;
    write_many();
    tarn_dataset *dataset = open_folder("e");
    float *one = batches_of(dataset, 0, &count);
    assert_int_equal(count, 2 * 51 * BYTES);
    assert_true(memcmp(one, one + count / 2, sizeof(float) * (size_t)count / 2) != 0); /* epochs differ */
    for (int workers = 1; workers < 6; workers += 2) {
        float *more = batches_of(dataset, workers, &other);
        assert_int_equal(other, count);
        assert_memory_equal(more, one, sizeof(float) * (size_t)count);
        free(more);
    }
    free(one);
    tarn_dataset_free(dataset);
}

static void options_of_image_files_need_them(void **state)
{
    (void)state;
    tarn_dataset *digits = tarn_dataset_digits(10, 1);
    assert_null(tarn_loader_new(digits, &(tarn_loader_options){.batch_size = 2, .crop_scale = 0.5f}));
    assert_error(TARN_ERROR_ARGUMENT, ".crop_scale needs a dataset of image files");
    assert_null(tarn_loader_new(digits, &(tarn_loader_options){.batch_size = 2, .jitter = 1.5f}));
    assert_error(TARN_ERROR_ARGUMENT, "both must be from 0 to 1");
    assert_int_equal(tarn_dataset_class_count(digits), 0);
    assert_int_equal(tarn_dataset_skipped_count(digits), 0);
    tarn_dataset_free(digits);
    make_folder("f");
    assert_null(tarn_dataset_images(scratch("f"), &(tarn_images_options){.size = SIZE}));
    assert_error(TARN_ERROR_FORMAT, "needs a folder of images per class, or labels.csv");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_folder_per_class_in_the_order_of_bytes),
                                       cmocka_unit_test(labels_of_a_csv_file),
                                       cmocka_unit_test(images_are_resized_and_cropped_at_the_centre),
                                       cmocka_unit_test(broken_files_are_counted_and_replaced),
                                       cmocka_unit_test(a_split_has_a_fraction_of_every_class),
                                       cmocka_unit_test(augmentation_depends_on_the_sample_alone),
                                       cmocka_unit_test(options_of_image_files_need_them)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_bad_input_images.c: invalid arguments to the functions for digits and images. */
#include "support/files.h"
#include "support/refuse.h"

static void digits(void **state)
{
    (void)state;
    REFUSE(tarn_dataset_digits, tarn_dataset_digits(-1, 0));
}

static void images(void **state)
{
    (void)state;
    tarn_array image, made;
    unsigned char pixels[64] = {0};
    const tarn_array good = {pixels, {3, {1, 4, 4}}, TARN_U8};
    REFUSE(tarn_image_load, tarn_image_load(NULL, &image));
    REFUSE(tarn_image_load, tarn_image_load(scratch("nosuch.png"), &image));
    REFUSE(tarn_image_load, tarn_image_load("/", &image));
    REFUSE(tarn_image_load, tarn_image_load(write_text("empty.png", ""), &image));
    REFUSE(tarn_image_load, tarn_image_load(write_text("good.pgm", "P2 1 1 9 9"), NULL));
    ACCEPT(tarn_image_load(scratch("good.pgm"), &image));
    tarn_array_free(&image);
    const tarn_array bad[] = {{NULL, {3, {1, 4, 4}}, TARN_U8},          {pixels, {3, {1, 4, 4}}, TARN_F32},
                              {pixels, {3, {1, 4, 4}}, (tarn_dtype)99}, {pixels, {2, {4, 4}}, TARN_U8},
                              {pixels, {-1, {1, 4, 4}}, TARN_U8},       {pixels, {3, {0, 4, 4}}, TARN_U8},
                              {pixels, {3, {5, 4, 4}}, TARN_U8},        {pixels, {3, {1, 0, 4}}, TARN_U8},
                              {pixels, {3, {1, 4, -4}}, TARN_U8},       {pixels, {3, {1, 40000, 4}}, TARN_U8}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        REFUSE(tarn_image_resize, tarn_image_resize(&bad[i], 2, 2, &made));
        REFUSE(tarn_image_convert, tarn_image_convert(&bad[i], 1, &made));
    }
    static const int64_t sizes[] = {0, -1, INT64_MIN, 32769, INT64_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        REFUSE(tarn_image_resize, tarn_image_resize(&good, sizes[i], 2, &made));
        REFUSE(tarn_image_resize, tarn_image_resize(&good, 2, sizes[i], &made));
        REFUSE(tarn_image_convert, tarn_image_convert(&good, sizes[i], &made));
    }
    REFUSE(tarn_image_convert, tarn_image_convert(&good, 2, &made));
    REFUSE(tarn_image_convert, tarn_image_convert(&good, 4, &made));
    REFUSE(tarn_image_convert, tarn_image_convert(NULL, 1, &made));
    REFUSE(tarn_image_convert, tarn_image_convert(&good, 1, NULL));
    REFUSE(tarn_image_resize, tarn_image_resize(NULL, 2, 2, &made));
    REFUSE(tarn_image_resize, tarn_image_resize(&good, 2, 2, NULL));
    image = good;
    REFUSE(tarn_image_resize, tarn_image_resize(&image, 2, 2, &image));
    REFUSE(tarn_image_convert, tarn_image_convert(&image, 1, &image));
    tarn_set_error(TARN_ERROR_ARGUMENT,
                   "image_load: image_resize: image_convert: dataset_digits: an error that was there before");
    assert_false(tarn_image_load(scratch("good.pgm"), &made) || tarn_image_resize(&good, 2, 2, &made) ||
                 tarn_image_convert(&good, 3, &made));
    assert_null(tarn_dataset_digits(1, 1));
    tarn_clear_error();
}

static void folders(void **state)
{
    (void)state;
    const tarn_images_options good = {.size = 8};
    tarn_array image;
    REFUSE(tarn_dataset_images, tarn_dataset_images_sized(NULL, &good, sizeof(good)));
    REFUSE(tarn_dataset_images, tarn_dataset_images("", &good));
    REFUSE(tarn_dataset_images, tarn_dataset_images(scratch("nosuch"), &good));
    REFUSE(tarn_dataset_images, tarn_dataset_images(scratch("."), NULL));
    static const int64_t sizes[] = {0, -1, 7, 4097, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        REFUSE(tarn_dataset_images, tarn_dataset_images(scratch("."), &(tarn_images_options){.size = sizes[i]}));
    REFUSE(tarn_dataset_images, tarn_dataset_images(scratch("."), &(tarn_images_options){.size = 8, .class_count = 2}));
    REFUSE(tarn_dataset_images,
           tarn_dataset_images(scratch("."), &(tarn_images_options){.size = 8, .class_count = -1}));
    REFUSE(tarn_dataset_class_count, tarn_dataset_class_count(NULL) < 0 ? NULL : "");
    REFUSE(tarn_dataset_class_name, tarn_dataset_class_name(NULL, 0));
    REFUSE(tarn_dataset_skipped_count, tarn_dataset_skipped_count(NULL) < 0 ? NULL : "");
    REFUSE(tarn_dataset_skipped, tarn_dataset_skipped(NULL, 0));
    tarn_dataset *digits = tarn_dataset_digits(10, 1);
    REFUSE(tarn_dataset_class_name, tarn_dataset_class_name(digits, 0));
    REFUSE(tarn_dataset_skipped, tarn_dataset_skipped(digits, -1));
    tarn_dataset_free(digits);
    REFUSE(tarn_image_load_square, tarn_image_load_square(NULL, 8, 3, &image));
    REFUSE(tarn_image_load_square, tarn_image_load_square(scratch("nosuch.png"), 8, 3, &image));
    write_text("square.pgm", "P2 1 1 9 9");
    REFUSE(tarn_image_load_square, tarn_image_load_square(scratch("square.pgm"), 8, 3, NULL));
    REFUSE(tarn_image_load_square, tarn_image_load_square(scratch("square.pgm"), 0, 3, &image));
    REFUSE(tarn_image_load_square, tarn_image_load_square(scratch("square.pgm"), 4097, 3, &image));
    REFUSE(tarn_image_load_square, tarn_image_load_square(scratch("square.pgm"), 8, 2, &image));
    ACCEPT(tarn_image_load_square(scratch("square.pgm"), 8, 1, &image));
    tarn_array_free(&image);
}

#define with_refusals(test) cmocka_unit_test_setup_teardown(test, open_refusals, close_refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {with_refusals(digits), with_refusals(images), with_refusals(folders)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

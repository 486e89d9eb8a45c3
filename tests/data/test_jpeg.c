/* test_jpeg.c: JPEG files written by Pillow (support/jpeg.h), whole, truncated and damaged. tests/parity/images.py
 * compares many more with Pillow. */
#include "base/memory.h"
#include "data/readers/image.h"
#include "support/files.h"
#include "support/jpeg.h"
#include "tarn_features.h"

#define needs_jpeg() \
    if (!TARN__HAVE_JPEG) \
    skip()

/* libjpeg-turbo computes the same pixels in every version; another IDCT may round to the next level. */
static void files_are_read_as_by_pillow(void **state)
{
    (void)state;
    needs_jpeg();
    for (int k = 0; k < JPEG_SAMPLES; k++) {
        const struct jpeg_sample *s = &jpeg_samples[k];
        tarn_array image;
        assert_true(tarn_image_load(write_file("image", s->file, s->count), &image));
        assert_ok();
        assert_true(image.shape.rank == 3 && image.shape.size[0] == s->channels && image.shape.size[1] == s->height &&
                    image.shape.size[2] == s->width);
        for (int i = 0; i < s->channels * s->height * s->width; i++)
            assert_in_range(((unsigned char *)image.data)[i] - s->pixels[i] + 1, 0, 2);
        tarn_array_free(&image);
    }
}

/* Decoded without the last bytes, an image would have grey areas. */
static void truncated_files_are_errors(void **state)
{
    (void)state;
    needs_jpeg();
    for (int k = 0; k < JPEG_SAMPLES; k++)
        for (size_t count = 2; count < jpeg_samples[k].count; count++) {
            tarn_array image;
            assert_false(tarn_image_load(write_file("image", jpeg_samples[k].file, count), &image));
            assert_null(image.data);
            assert_error_about(TARN_ERROR_FORMAT, "/image: byte ", "");
        }
    assert_int_equal(tarn__memory_in_use(), 0);
}

static void damaged_files_do_no_harm(void **state)
{
    (void)state;
    static bytes b;
    int taken = 0, rounds = getenv("TARN_TEST_LONG") ? 200000 : 1500;
    uint64_t random = test_seed(20261118);
    needs_jpeg();
    for (int i = 0; i < rounds; i++) {
        const struct jpeg_sample *s = &jpeg_samples[random_below(&random, JPEG_SAMPLES)];
        b.count = 0;
        put(&b, s->file, s->count);
        for (int64_t n = 1 + random_below(&random, 3); n > 0; n--)
            b.data[2 + random_below(&random, (int64_t)b.count - 2)] = (unsigned char)random_bits(&random);
        tarn_array image;
        bool is_good = tarn_image_load(write_file("image", b.data, b.count), &image);
        assert_true(is_good == !tarn_failed() && tarn_error_code() != TARN_ERROR_INTERNAL);
        taken += is_good;
        tarn_clear_error();
        tarn_array_free(&image);
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    print_message("%d of %d damaged files were still read\n", taken, rounds);
    assert_true(taken > 0 && taken < rounds);
}

/* Sizes in a header are not believed before the bytes are there. */
static void large_claims_are_refused(void **state)
{
    (void)state;
    static bytes b;
    tarn_array image;
    needs_jpeg();
    put(&b, jpeg_samples[0].file, jpeg_samples[0].count);
    size_t at = 2;
    while (b.data[at + 1] != 0xC0) /* to the frame header */
        at += 2 + (size_t)(b.data[at + 2] << 8 | b.data[at + 3]);
    memcpy(b.data + at + 5, "\x10\0\x10\0", 4); /* 4096 x 4096 */
    assert_false(tarn_image_load(write_file("image", b.data, b.count), &image));
    assert_error_about(TARN_ERROR_FORMAT, "4096 x 4096 pixels are more than", "bytes can hold");
    memcpy(b.data + at + 5, "\xF0\0\xF0\0", 4);
    assert_false(tarn_image_load(write_file("image", b.data, b.count), &image));
    assert_error_about(TARN_ERROR_FORMAT, "61440 x 61440 pixels", "at most 32768 per side");
}

static void builds_without_libjpeg_name_it(void **state)
{
    (void)state;
    tarn_array image;
    if (TARN__HAVE_JPEG)
        skip();
    assert_false(tarn_image_load(write_file("image", jpeg_samples[0].file, jpeg_samples[0].count), &image));
    assert_error(TARN_ERROR_UNSUPPORTED, "install libjpeg62-turbo-dev");
}

/* ---- orientation ------------------------------------------------------------------------------------------------- */

static void exif_orientation_of_both_byte_orders(void **state)
{
    (void)state;
    static const char little[] = "Exif\0\0II*\0\x08\0\0\0\x02\0\x0F\x01\x02\0\x01\0\0\0\0\0\0\0"
                                 "\x12\x01\x03\0\x01\0\0\0\x06\0\0\0",
                      big[] = "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
    const unsigned char *l = (const unsigned char *)little, *m = (const unsigned char *)big;
    assert_int_equal(tarn__exif_orientation(l, sizeof(little) - 1), 6);
    assert_int_equal(tarn__exif_orientation(m, sizeof(big) - 1), 8);
    for (size_t count = 0; count < sizeof(little) - 1; count++) /* exact memory, for the sanitizer */
    {
        unsigned char *own = malloc(count ? count : 1);
        assert_non_null(own);
        memcpy(own, little, count);
        assert_int_equal(tarn__exif_orientation(own, count), 1);
        free(own);
    }
}

static void images_are_turned_upright(void **state)
{
    (void)state;
    /* stored rows 1 2 3 and 4 5 6; the upright images by orientation */
    static const char *const upright[] = {[1] = "123456", [2] = "321654", [3] = "654321", [4] = "456123",
                                          [5] = "142536", [6] = "415263", [7] = "635241", [8] = "362514"};
    for (int orientation = 1; orientation <= 8; orientation++) {
        tarn_array image;
        assert_true(tarn__image_alloc(&image, 1, 2, 3));
        memcpy(image.data, "123456", 6);
        assert_true(tarn__image_orient(&image, orientation));
        assert_memory_equal(image.data, upright[orientation], 6);
        assert_int_equal(image.shape.size[1], orientation > 4 ? 3 : 2);
        tarn_array_free(&image);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_read_as_by_pillow),    cmocka_unit_test(truncated_files_are_errors),
        cmocka_unit_test(damaged_files_do_no_harm),       cmocka_unit_test(large_claims_are_refused),
        cmocka_unit_test(builds_without_libjpeg_name_it), cmocka_unit_test(exif_orientation_of_both_byte_orders),
        cmocka_unit_test(images_are_turned_upright)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_tensor.c: creation of tensors, queries, reading and writing, names, conversions, and printing. */
#include "support/check.h"

static const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_I32, TARN_I64, TARN_U8, TARN_BOOL};
enum { DTYPES = 8 };
#define CPU tarn_device_cpu()

static bool is_float(tarn_dtype dtype)
{
    return dtype == TARN_F32 || dtype == TARN_F64 || dtype == TARN_BF16 || dtype == TARN_F16;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void filled_tensors_have_every_dtype(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        tarn_dtype d = dtypes[i];
        tarn_tensor *like = good(tarn_empty(TARN_SHAPE(2, 3), d, CPU));
        assert_int_equal(tarn_dtype_of(like), d);
        assert_shape(like, 2, 3);
        assert_values(tarn_zeros(TARN_SHAPE(3), d, CPU), 0, 0, 0, 0);
        assert_values(tarn_ones(TARN_SHAPE(3), d, CPU), 0, 1, 1, 1);
        double two = d == TARN_BOOL ? 1 : 2;
        assert_values(tarn_full(TARN_SHAPE(2), 2, d, CPU), 0, two, two);
        assert_values(tarn_zeros_like(like), 0, 0, 0, 0, 0, 0, 0);
        assert_values(tarn_ones_like(like), 0, 1, 1, 1, 1, 1, 1);
        assert_values(tarn_full_like(like, 2), 0, two, two, two, two, two, two);
        assert_int_equal(tarn_dtype_of(tarn_empty_like(like)), d);
        assert_values(tarn_eye(2, 3, d, CPU), 0, 1, 0, 0, 0, 1, 0);
        assert_values(tarn_eye(3, 1, d, CPU), 0, 1, 0, 0);
        if (d != TARN_BOOL)
            assert_values(tarn_arange(1, 8, 3, d, CPU), 0, 1, 4, 7);
        if (is_float(d)) {
            assert_shape(tarn_uniform(TARN_SHAPE(2, 3), 0, 1, d, CPU), 2, 3);
            assert_int_equal(tarn_dtype_of(tarn_normal_like(like, 0, 1)), d);
            assert_int_equal(tarn_dtype_of(tarn_uniform_like(like, 0, 1)), d);
            assert_int_equal(tarn_dtype_of(tarn_normal(TARN_SHAPE(5), 0, 1, d, CPU)), d);
        }
        assert_ok();
    }
}

static void ranges_count_as_numpy_does(void **state)
{
    (void)state;
    assert_values(tarn_arange(0, 1, 0.25, TARN_F64, CPU), 0, 0, 0.25, 0.5, 0.75);
    assert_values(tarn_arange(3, 0, -1, TARN_I64, CPU), 0, 3, 2, 1);
    assert_values(tarn_arange(-2, 2, 1, TARN_I32, CPU), 0, -2, -1, 0, 1);
    assert_int_equal(tarn_count(tarn_arange(3, 0, 1, TARN_F32, CPU)), 0);
    assert_int_equal(tarn_count(tarn_arange(0, 0, 1, TARN_F32, CPU)), 0);
    tarn_tensor *long_one = good(tarn_arange(0, 100000, 1, TARN_F32, CPU));
    assert_true(tarn_item_at(long_one, TARN_SHAPE(99999)) == 99999);
    assert_values(tarn_arange(4294967296.0, 4294967298.0, 1, TARN_I64, CPU), 0, 4294967296.0, 4294967297.0);
}

static void values_beyond_a_dtype_are_held_to_it(void **state)
{
    (void)state;
    int64_t most;
    assert_true(tarn_read(tarn_full(TARN_SHAPE(1), 1e300, TARN_I64, CPU), &most, 8));
    assert_true(most == INT64_MAX);
    assert_true(tarn_read(tarn_full(TARN_SHAPE(1), 9.21e18, TARN_I64, CPU), &most, 8));
    assert_true(most == (int64_t)9.21e18);
    assert_true(tarn_read(tarn_full(TARN_SHAPE(1), NAN, TARN_I64, CPU), &most, 8));
    assert_true(most == 0);
    assert_values(tarn_full(TARN_SHAPE(1), 1e30, TARN_F16, CPU), 0, INFINITY);
    assert_values(tarn_full(TARN_SHAPE(1), NAN, TARN_BOOL, CPU), 0, 1);
    assert_values(tarn_full(TARN_SHAPE(2), -0.0, TARN_BOOL, CPU), 0, 0, 0);
    assert_ok();
}

static void host_arrays_of_every_dtype_go_in_and_out(void **state)
{
    (void)state;
    uint64_t seed = test_seed(3);
    for (int i = 0; i < DTYPES; i++) {
        unsigned char in[8 * 24], out[8 * 24];
        size_t bytes = 24 * tarn_dtype_size(dtypes[i]);
        for (size_t k = 0; k < bytes; k++)
            in[k] = (unsigned char)(dtypes[i] == TARN_BOOL ? random_bits(&seed) >> 63 : random_bits(&seed) >> 40);
        tarn_tensor *x = good(tarn_from(in, TARN_SHAPE(2, 3, 4), dtypes[i], CPU));
        assert_int_equal(tarn_bytes(x), bytes);
        assert_true(tarn_read(x, out, bytes));
        assert_memory_equal(in, out, bytes);
        in[0] ^= 1;
        assert_true(tarn_write(x, in, bytes));
        assert_true(tarn_read(x, out, bytes));
        assert_memory_equal(in, out, bytes);
        tarn_tensor *turned = good(tarn_contiguous(tarn_permute(x, TARN_AXES(2, 0, 1))));
        tarn_tensor *back = good(tarn_permute(turned, TARN_AXES(1, 2, 0)));
        assert_false(tarn_is_contiguous(back));
        assert_true(tarn_read(back, out, bytes));
        assert_memory_equal(in, out, bytes);
    }
}

static void the_typed_forms_agree_with_the_general_one(void **state)
{
    (void)state;
    assert_values(tarn_from_f32((const float[]){1.5f, -2}, TARN_SHAPE(2), CPU), 0, 1.5, -2);
    assert_values(tarn_from_f64((const double[]){1.5, -2}, TARN_SHAPE(2), CPU), 0, 1.5, -2);
    assert_values(tarn_from_i32((const int32_t[]){7, -2}, TARN_SHAPE(2), CPU), 0, 7, -2);
    assert_values(tarn_from_i64((const int64_t[]){7, -2}, TARN_SHAPE(2), CPU), 0, 7, -2);
    assert_values(tarn_from_u8((const uint8_t[]){7, 255}, TARN_SHAPE(2), CPU), 0, 7, 255);
    assert_values(tarn_from_f32((const float[]){4}, TARN_SCALAR, CPU), 0, 4);
    assert_int_equal(tarn_count(good(tarn_from(NULL, TARN_SHAPE(0, 3), TARN_F32, CPU))), 0);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static void a_tensor_knows_its_shape_and_place(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_zeros(TARN_SHAPE(2, 3, 4), TARN_F64, CPU));
    assert_int_equal(tarn_rank(x), 3);
    assert_int_equal(tarn_size(x, 0), 2);
    assert_int_equal(tarn_size(x, -1), 4);
    assert_int_equal(tarn_stride_of(x, 0), 12);
    assert_int_equal(tarn_stride_of(x, -1), 1);
    assert_int_equal(tarn_count(x), 24);
    assert_int_equal(tarn_bytes(x), 192);
    assert_true(tarn_device_equal(tarn_device_of(x), CPU));
    assert_true(tarn_is_contiguous(x));
    tarn_tensor *t = good(tarn_transpose(x, 0, 2));
    assert_false(tarn_is_contiguous(t));
    assert_int_equal(tarn_stride_of(t, 0), 1);
    assert_ptr_equal(tarn_data(t), tarn_data(x));
    assert_int_equal((uintptr_t)tarn_data(x) % 64, 0);
    tarn_tensor *scalar = good(tarn_full(TARN_SCALAR, 3, TARN_F32, CPU));
    assert_int_equal(tarn_rank(scalar), 0);
    assert_int_equal(tarn_count(scalar), 1);
    tarn_size(scalar, 0);
    assert_error(TARN_ERROR_SHAPE, "size: a tensor of rank 0");
    tarn_size(x, 3);
    assert_error(TARN_ERROR_SHAPE, "size: axis 3");
    tarn_size(x, -4);
    assert_error(TARN_ERROR_SHAPE, "size: axis -4");
    tarn_stride_of(x, INT32_MIN);
    assert_error(TARN_ERROR_SHAPE, "stride_of");
}

static void dtypes_have_names_and_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {4, 8, 2, 2, 4, 8, 1, 1};
    for (int i = 0; i < DTYPES; i++) {
        assert_int_equal(tarn_dtype_parse(tarn_dtype_name(dtypes[i])), dtypes[i]);
        assert_int_equal(tarn_dtype_size(dtypes[i]), sizes[i]);
        assert_int_equal(tarn_dtype_block_size(dtypes[i]), 1);
    }
    static const int64_t blocks[][2] = {{34, 32}, {18, 32}, {144, 256}, {210, 256}};
    for (int i = 0; i < 4; i++) {
        tarn_dtype dtype = (tarn_dtype)(TARN_Q8_0 + i);
        assert_int_equal(tarn_dtype_parse(tarn_dtype_name(dtype)), dtype);
        assert_int_equal(tarn_dtype_size(dtype), blocks[i][0]);
        assert_int_equal(tarn_dtype_block_size(dtype), blocks[i][1]);
    }
    assert_string_equal(tarn_dtype_name(TARN_DTYPE_COUNT), "?");
    assert_string_equal(tarn_dtype_name((tarn_dtype)-3), "?");
    assert_int_equal(tarn_dtype_size((tarn_dtype)-3), 0);
    assert_int_equal(tarn_dtype_block_size((tarn_dtype)-3), 0);
    assert_int_equal(tarn_dtype_parse("float32"), TARN_DTYPE_COUNT);
    assert_error(TARN_ERROR_ARGUMENT, "dtype_parse: unknown dtype 'float32'");
}

static void names_are_copied(void **state)
{
    (void)state;
    char name[] = "weight";
    tarn_tensor *x = good(tarn_zeros(TARN_SHAPE(2), TARN_F32, CPU));
    assert_string_equal(tarn_name(x), "");
    assert_ptr_equal(tarn_set_name(x, name), x);
    name[0] = 'W';
    assert_string_equal(tarn_name(x), "weight");
    tarn_set_name(x, "other");
    assert_string_equal(tarn_name(x), "other");
    tarn_set_name(x, "");
    assert_string_equal(tarn_name(x), "");
    tarn_set_name(tarn_detach(x), "of the view");
    assert_string_equal(tarn_name(x), "");
    assert_ok();
}

/* ---- reading and writing ----------------------------------------------------------------------------------------- */

static void views_are_read_in_their_own_order(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_reshape(tarn_arange(0, 12, 1, TARN_I32, CPU), TARN_SHAPE(3, 4)));
    assert_values(tarn_transpose(x, 0, 1), 0, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11);
    assert_values(tarn_flip(x, TARN_AXES(1)), 0, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8);
    assert_values(tarn_slice(x, 1, 1, 3), 0, 1, 2, 5, 6, 9, 10);
    assert_values(tarn_expand(tarn_slice(x, 0, 1, 2), TARN_SHAPE(2, 4)), 0, 4, 5, 6, 7, 4, 5, 6, 7);
    assert_values(tarn_stride(x, TARN_SHAPE(2, 3)), 0, 0, 3, 8, 11);
    int32_t raw[4];
    assert_true(tarn_read(tarn_stride(x, TARN_SHAPE(2, 3)), raw, sizeof(raw)));
    assert_int_equal(raw[3], 11);
    float f[6];
    assert_true(tarn_read_f32(tarn_slice(x, 1, 1, 3), f, 6));
    assert_true(f[5] == 10);
}

static void views_can_be_written(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_zeros(TARN_SHAPE(2, 3), TARN_F32, CPU));
    assert_true(tarn_write(tarn_transpose(x, 0, 1), (const float[]){1, 2, 3, 4, 5, 6}, 24));
    assert_values(x, 0, 1, 3, 5, 2, 4, 6);
    assert_true(tarn_write(tarn_slice(x, 1, 1, 2), (const float[]){7, 8}, 8));
    assert_values(x, 0, 1, 7, 5, 2, 8, 6);
    assert_false(tarn_write(tarn_expand(tarn_slice(x, 0, 0, 1), TARN_SHAPE(2, 3)), (const float[6]){0}, 24));
    assert_error(TARN_ERROR_SHAPE, "write: axis 0 is expanded");
    assert_false(tarn_write(x, (const float[6]){0}, 20));
    assert_error(TARN_ERROR_SHAPE, "write: a tensor [2, 3] of f32 needs 24");
}

static void items_are_single_values(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++)
        assert_true(tarn_item(tarn_ones(TARN_SHAPE(1, 1), dtypes[i], CPU)) == 1);
    tarn_tensor *x = good(tarn_reshape(tarn_arange(0, 6, 1, TARN_BF16, CPU), TARN_SHAPE(2, 3)));
    assert_true(tarn_item_at(x, TARN_SHAPE(1, 2)) == 5);
    assert_true(tarn_item_at(x, TARN_SHAPE(-1, -3)) == 3);
    assert_true(tarn_item_at(tarn_transpose(x, 0, 1), TARN_SHAPE(2, 0)) == 2);
    assert_true(tarn_item_at(good(tarn_full(TARN_SCALAR, 9, TARN_F32, CPU)), TARN_SCALAR) == 9);
    assert_true(tarn_item(tarn_scalar(2.5)) == 2.5);
    assert_true(isnan(tarn_item(x)));
    assert_error(TARN_ERROR_SHAPE, "item: a tensor [2, 3] has 6 elements");
    assert_true(isnan(tarn_item_at(x, TARN_SHAPE(2, 0))));
    assert_error(TARN_ERROR_ARGUMENT, "item_at: index 2 is outside axis 0");
    assert_true(isnan(tarn_item_at(x, TARN_SHAPE(0, -4))));
    assert_error(TARN_ERROR_ARGUMENT, "item_at: index -4");
    assert_true(isnan(tarn_item_at(x, TARN_SHAPE(0))));
    assert_error(TARN_ERROR_SHAPE, "item_at: 1 indices");
}

static void copies_convert_and_may_overlap(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_arange(0, 6, 1, TARN_F32, CPU)), *to = good(tarn_zeros(TARN_SHAPE(6), TARN_I64, CPU));
    assert_true(tarn_copy(to, x));
    assert_values(to, 0, 0, 1, 2, 3, 4, 5);
    assert_true(tarn_copy(x, tarn_flip(x, TARN_AXES(0)))); /* onto itself, backwards */
    assert_values(x, 0, 5, 4, 3, 2, 1, 0);
    assert_true(tarn_copy(tarn_slice(x, 0, 1, 6), tarn_slice(x, 0, 0, 5))); /* shifted by one */
    assert_values(x, 0, 5, 5, 4, 3, 2, 1);
    assert_false(tarn_copy(x, tarn_zeros(TARN_SHAPE(5), TARN_F32, CPU)));
    assert_error(TARN_ERROR_SHAPE, "copy: [5] cannot be copied into [6]");
    assert_false(tarn_copy(tarn_scalar(1), x));
    assert_error(TARN_ERROR_ARGUMENT, "copy");
    tarn_tensor *clone = good(tarn_clone(tarn_transpose(tarn_reshape(x, TARN_SHAPE(2, 3)), 0, 1)));
    assert_true(tarn_is_contiguous(clone));
    assert_values(clone, 0, 5, 3, 5, 2, 4, 1);
    assert_ptr_not_equal(tarn_data(clone), tarn_data(x));
}

/* What a value becomes in a dtype: integers lose the fraction, bool asks for "not zero". */
static double expected_in(double value, tarn_dtype dtype)
{
    if (dtype == TARN_BOOL)
        return value != 0;
    return is_float(dtype) ? value : trunc(value);
}

static void every_dtype_converts_to_every_other(void **state)
{
    (void)state;
    static const double values[] = {0, 1, 2, 7, 100, 0.5, 1.75, 255};
    tarn_tensor *source = good(tarn_from_f64(values, TARN_SHAPE(8), CPU));
    for (int i = 0; i < DTYPES; i++)
        for (int k = 0; k < DTYPES; k++) {
            tarn_tensor *from = good(tarn_cast(source, dtypes[i])), *to = good(tarn_cast(from, dtypes[k]));
            double *found = values_of(to);
            for (int n = 0; n < 8; n++)
                assert_true(found[n] == expected_in(expected_in(values[n], dtypes[i]), dtypes[k]));
            free(found);
        }
    tarn_tensor *x = good(vector(1));
    assert_ptr_equal(tarn_cast(x, TARN_F32), x);
    assert_values(tarn_cast(vector(-1.9f, 1.9f, -0.5f), TARN_I32), 0, -1, 1, 0);
    assert_values(tarn_cast(vector(1e30f, 65519, 65520), TARN_F16), 0, INFINITY, 65504, INFINITY);
    assert_values(tarn_cast(vector(NAN, INFINITY, -INFINITY), TARN_BF16), 0, NAN, INFINITY, -INFINITY);
    assert_values(tarn_cast(vector(NAN, 0, -3), TARN_BOOL), 0, 1, 0, 1);
    assert_values(tarn_cast(tarn_from_i64((const int64_t[]){INT64_MAX, -1}, TARN_SHAPE(2), CPU), TARN_F64), 0,
                  9223372036854775807.0, -1);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void check_text(tarn_tensor *x, const char *expected)
{
    char text[4096];
    size_t length = tarn_format(good(x), text, sizeof(text));
    assert_ok();
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
    assert_int_equal(tarn_format(x, NULL, 0), length);
}

static void prints_as_numpy(void **state)
{
    (void)state;
    check_text(vector(1, 2.5f, -3), "[ 1.   2.5 -3. ]");
    check_text(vector(0.1f, 0.2f), "[0.1 0.2]");
    check_text(vector(1.0f / 3), "[0.33333334]");
    check_text(vector(NAN, INFINITY, -INFINITY, 1), "[ nan  inf -inf   1.]");
    check_text(vector(1e-5f, 1), "[1.e-05 1.e+00]");
    check_text(vector(1e9f, 1.5f), "[1.0e+09 1.5e+00]");
    check_text(tarn_from_f64((const double[]){1.0 / 3, 2.0 / 3}, TARN_SHAPE(2), CPU), "[0.33333333 0.66666667]");
    check_text(tarn_full(TARN_SCALAR, 2.5, TARN_F32, CPU), "2.5");
    check_text(tarn_full(TARN_SCALAR, 3, TARN_F64, CPU), "3.0");
    check_text(tarn_full(TARN_SCALAR, 1e-7, TARN_F64, CPU), "1e-07");
    check_text(tarn_full(TARN_SHAPE(2), 0.1, TARN_F16, CPU), "[0.1 0.1]");
    check_text(tarn_full(TARN_SHAPE(2), 1.5, TARN_BF16, CPU), "[1.5 1.5]");
    check_text(tarn_from_i64((const int64_t[]){INT64_MAX, -1}, TARN_SHAPE(2), CPU),
               "[9223372036854775807                  -1]");
    check_text(tarn_from_u8((const uint8_t[]){1, 20, 255}, TARN_SHAPE(3), CPU), "[  1  20 255]");
    check_text(tarn_cast(vector(1, 0), TARN_BOOL), "[ True False]");
    check_text(tarn_eye(2, 2, TARN_F32, CPU), "[[1. 0.]\n [0. 1.]]");
    check_text(tarn_zeros(TARN_SHAPE(3, 0, 2), TARN_F32, CPU), "[]");
    check_text(tarn_reshape(tarn_arange(0, 8, 1, TARN_I32, CPU), TARN_SHAPE(2, 2, 2)),
               "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
    check_text(tarn_transpose(tarn_reshape(tarn_arange(0, 4, 1, TARN_I32, CPU), TARN_SHAPE(2, 2)), 0, 1),
               "[[0 2]\n [1 3]]");
}

static void large_tensors_are_shortened_and_long_lines_broken(void **state)
{
    (void)state;
    check_text(tarn_arange(0, 2000, 1, TARN_I32, CPU), "[   0    1    2 ... 1997 1998 1999]");
    check_text(tarn_reshape(tarn_arange(0, 10000, 1, TARN_I64, CPU), TARN_SHAPE(100, 100)),
               "[[   0    1    2 ...   97   98   99]\n [ 100  101  102 ...  197  198  199]\n [ 200  201  202 ...  297  "
               "298  299]\n ...\n"
               " [9700 9701 9702 ... 9797 9798 9799]\n [9800 9801 9802 ... 9897 9898 9899]\n [9900 9901 9902 ... 9997 "
               "9998 9999]]");
    check_text(tarn_arange(0, 30, 1, TARN_I32, CPU),
               "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n 24 25 26 27 28 29]");
}

static void text_is_cut_at_the_buffer(void **state)
{
    (void)state;
    char text[8];
    memset(text, 'z', sizeof(text));
    tarn_tensor *x = good(vector(1, 2.5f, -3));
    assert_int_equal(tarn_format(x, text, 5), 16);
    assert_string_equal(text, "[ 1.");
    assert_int_equal(text[5], 'z');
    assert_int_equal(tarn_format(x, text, 1), 16);
    assert_string_equal(text, "");
    assert_int_equal(tarn_format(x, NULL, 4), 0);
    assert_error(TARN_ERROR_ARGUMENT, "format: the buffer is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(filled_tensors_have_every_dtype),
        in_scope(ranges_count_as_numpy_does),
        in_scope(values_beyond_a_dtype_are_held_to_it),
        in_scope(host_arrays_of_every_dtype_go_in_and_out),
        in_scope(the_typed_forms_agree_with_the_general_one),
        in_scope(a_tensor_knows_its_shape_and_place),
        in_scope(dtypes_have_names_and_sizes),
        in_scope(names_are_copied),
        in_scope(views_are_read_in_their_own_order),
        in_scope(views_can_be_written),
        in_scope(items_are_single_values),
        in_scope(copies_convert_and_may_overlap),
        in_scope(every_dtype_converts_to_every_other),
        in_scope(prints_as_numpy),
        in_scope(large_tensors_are_shortened_and_long_lines_broken),
        in_scope(text_is_cut_at_the_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

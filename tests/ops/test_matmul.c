/* test_matmul.c: matmul against naive loops in f64, gradients against differences, and bitwise identical results
 * with any number of threads. */
#include "../support/check.h"

static tarn_device cpu(void)
{
    return tarn_device_cpu();
}

static tarn_tensor *normal(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_normal(shape, 0, 1, dtype, cpu()));
}

/* A tensor of that shape whose last two axes lie transposed in memory, or that takes every second row and column of a
 * larger one. */
static tarn_tensor *laid_out(tarn_shape shape, tarn_dtype dtype, int layout)
{
    int last = shape.rank - 1;
    int64_t rows = shape.size[last - 1], columns = shape.size[last];
    if (layout == 0)
        return normal(shape, dtype);
    if (layout == 1) {
        shape.size[last - 1] = columns, shape.size[last] = rows;
        return good(tarn_transpose(normal(shape, dtype), -1, -2));
    }
    tarn_shape steps = {.rank = shape.rank};
    for (int i = 0; i < shape.rank; i++)
        steps.size[i] = 1;
    shape.size[last - 1] = 2 * rows, shape.size[last] = 2 * columns;
    steps.size[last - 1] = steps.size[last] = 2;
    return good(tarn_stride(normal(shape, dtype), steps));
}

/* Compares y (batches, m, n) with a (batches, m, k) @ b (batches, k, n); an operand without batches is used for all. */
static void assert_product(tarn_tensor *a, tarn_tensor *b, tarn_tensor *y, int64_t batches, int64_t m, int64_t n,
                           int64_t k, double tolerance)
{
    assert_ok();
    double *va = values_of(a), *vb = values_of(b), *vy = values_of(y);
    bool a_batched = tarn_count(a) == batches * m * k, b_batched = tarn_count(b) == batches * k * n;
    assert_int_equal(tarn_count(y), batches * m * n);
    for (int64_t batch = 0; batch < batches; batch++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int64_t p = 0; p < k; p++) {
                    double term = va[(a_batched ? batch * m * k : 0) + i * k + p] *
                                  vb[(b_batched ? batch * k * n : 0) + p * n + j];
                    sum += term;
                    size += term * term;
                }
                double error = fabs(vy[(batch * m + i) * n + j] - sum);
                if (error > tolerance * (fabs(sum) + sqrt(size)))
                    fail_msg("[%d, %d, %d] @ [%d, %d]: element %d, %d, %d is %g, not %g", (int)batches, (int)m, (int)k,
                             (int)k, (int)n, (int)batch, (int)i, (int)j, vy[(batch * m + i) * n + j], sum);
            }
    free(va), free(vb), free(vy);
}

static double tolerance_of(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? 1e-14 : dtype == TARN_F32 ? 2e-6 : dtype == TARN_F16 ? 1e-3 : 8e-3;
}

static void a_product_equals_the_sum_over_k_for_random_shapes_layouts_and_dtypes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 12, 16, 31, 33, 48, 65, 97, 130};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
    uint64_t random = test_seed(11);
    for (int round = 0; round < 150; round++) {
        tarn_scope *scope = tarn_scope_open();
        int64_t m = sizes[random_below(&random, 14)], n = sizes[random_below(&random, 14)],
                k = sizes[random_below(&random, 14)];
        tarn_dtype dtype = dtypes[random_below(&random, 4)];
        tarn_tensor *a = laid_out(TARN_SHAPE(m, k), dtype, (int)random_below(&random, 3));
        tarn_tensor *b = laid_out(TARN_SHAPE(k, n), dtype, (int)random_below(&random, 3));
        assert_product(a, b, good(tarn_matmul(a, b)), 1, m, n, k, tolerance_of(dtype));
        tarn_scope_close(scope);
    }
}

static void large_products_with_edges_are_right(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{300, 517, 291}, {1, 700, 600},  {600, 3, 700},
                                        {5, 1, 9000},    {40, 30, 9001}, {257, 33, 70}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int layout = 0; layout < 3; layout++) {
            tarn_scope *scope = tarn_scope_open();
            int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
            tarn_tensor *a = laid_out(TARN_SHAPE(m, k), TARN_F32, layout),
                        *b = laid_out(TARN_SHAPE(k, n), TARN_F32, 2 - layout);
            assert_product(a, b, good(tarn_matmul(a, b)), 1, m, n, k, 2e-6);
            tarn_scope_close(scope);
        }
}

/* A long k is split; the last split may be so short that it takes another path, with scratch of its own. Without the
 * pool's cache memory checkers see a write beyond it. */
static void short_last_splits_of_k_stay_in_their_scratch(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{256, 64}, {10, 784}, {64, 256}, {130, 130}};
    tarn_set_pool(false);
    for (int i = 0; i < 4; i++)
        for (int64_t left = 0; left < 7; left++) {
            tarn_scope *scope = tarn_scope_open();
            int64_t m = sizes[i][0], n = sizes[i][1], k = 4096 + left * left;
            tarn_dtype dtype = left % 3 == 2 ? TARN_F64 : TARN_F32;
            tarn_tensor *a = laid_out(TARN_SHAPE(m, k), dtype, (int)left % 2),
                        *b = laid_out(TARN_SHAPE(k, n), dtype, i % 2), *y = good(tarn_matmul(a, b));
            /* nine rows of y are enough of a reference */
            int64_t rows = m < 9 ? m : 9;
            assert_product(tarn_contiguous(tarn_slice(a, 0, 0, rows)), b, tarn_contiguous(tarn_slice(y, 0, 0, rows)), 1,
                           rows, n, k, 2e-6);
            tarn_scope_close(scope);
        }
    tarn_set_pool(true);
}

static void vectors_lose_their_axis_in_the_result(void **state)
{
    (void)state;
    tarn_tensor *v = vector(1, 2, 3), *w = vector(4, 5, 6), *m = good(tarn_arange(0, 6, 1, TARN_F32, cpu()));
    tarn_tensor *two_by_three = good(tarn_reshape(m, TARN_SHAPE(2, 3)));
    tarn_tensor *dot = good(tarn_matmul(v, w));
    assert_int_equal(tarn_rank(dot), 0);
    assert_values(dot, 0, 32);
    assert_values(good(tarn_matmul(two_by_three, v)), 0, 8, 26);
    assert_values(good(tarn_matmul(v, good(tarn_transpose(two_by_three, 0, 1)))), 0, 8, 26);
    tarn_tensor *batches = good(tarn_matmul(v, normal(TARN_SHAPE(5, 3, 4), TARN_F32)));
    assert_shape(batches, 5, 4);
    assert_shape(good(tarn_matmul(normal(TARN_SHAPE(2, 5, 3), TARN_F32), v)), 2, 5);
}

static void batches_are_multiplied_one_by_one_and_broadcast(void **state)
{
    (void)state;
    tarn_tensor *a = normal(TARN_SHAPE(6, 5, 9), TARN_F32), *b = normal(TARN_SHAPE(6, 9, 7), TARN_F32),
                *plain = normal(TARN_SHAPE(9, 7), TARN_F32);
    assert_product(a, b, good(tarn_matmul(a, b)), 6, 5, 7, 9, 2e-6);
    assert_product(a, plain, good(tarn_matmul(a, plain)), 6, 5, 7, 9, 2e-6);
    tarn_tensor *left = normal(TARN_SHAPE(5, 9), TARN_F32);
    assert_product(left, b, good(tarn_matmul(left, b)), 6, 5, 7, 9, 2e-6);
    /* batches and rows do not lie evenly */
    tarn_tensor *moved = good(tarn_transpose(normal(TARN_SHAPE(5, 6, 9), TARN_F32), 0, 1));
    assert_product(moved, plain, good(tarn_matmul(moved, plain)), 6, 5, 7, 9, 2e-6);
    tarn_tensor *x = normal(TARN_SHAPE(2, 1, 4, 3), TARN_F32), *y = normal(TARN_SHAPE(5, 3, 6), TARN_F32);
    tarn_tensor *product = good(tarn_matmul(x, y));
    assert_shape(product, 2, 5, 4, 6);
    tarn_tensor *wide_x = good(tarn_contiguous(good(tarn_expand(x, TARN_SHAPE(2, 5, 4, 3)))));
    tarn_tensor *wide_y = good(tarn_contiguous(good(tarn_expand(y, TARN_SHAPE(2, 5, 3, 6)))));
    assert_product(wide_x, wide_y, product, 10, 4, 6, 3, 2e-6);
}

static void an_empty_inner_axis_gives_zeros_and_empty_outer_axes_nothing(void **state)
{
    (void)state;
    tarn_tensor *y = good(tarn_matmul(normal(TARN_SHAPE(2, 0), TARN_F32), normal(TARN_SHAPE(0, 3), TARN_F32)));
    assert_values(y, 0, 0, 0, 0, 0, 0, 0);
    tarn_tensor *tall = good(tarn_matmul(normal(TARN_SHAPE(9, 0), TARN_F32), normal(TARN_SHAPE(0, 8), TARN_F32)));
    assert_true(tarn_item(good(tarn_sum(good(tarn_abs(tall)), TARN_ALL_AXES, false))) == 0);
    assert_shape(good(tarn_matmul(normal(TARN_SHAPE(0, 4), TARN_F32), normal(TARN_SHAPE(4, 3), TARN_F32))), 0, 3);
    assert_shape(good(tarn_matmul(normal(TARN_SHAPE(3, 0, 4), TARN_F32), normal(TARN_SHAPE(4, 3), TARN_F32))), 3, 0, 3);
    tarn_tensor *linear = good(
        tarn_linear_apply(normal(TARN_SHAPE(2, 0), TARN_F32), normal(TARN_SHAPE(3, 0), TARN_F32), vector(1, 2, 3)));
    assert_values(linear, 0, 1, 2, 3, 1, 2, 3);
}

static void infinities_and_nans_stay_in_their_rows_and_columns(void **state)
{
    (void)state;
    float *values = calloc(40 * 40, sizeof(float));
    values[3 * 40 + 5] = NAN;
    values[7 * 40 + 5] = INFINITY;
    tarn_tensor *a = good(tarn_from_f32(values, TARN_SHAPE(40, 40), cpu())),
                *ones = good(tarn_ones(TARN_SHAPE(40, 40), TARN_F32, cpu()));
    double *y = values_of(good(tarn_matmul(a, ones)));
    for (int i = 0; i < 40 * 40; i++)
        assert_true(i / 40 == 3 ? isnan(y[i]) : i / 40 == 7 ? y[i] == INFINITY : y[i] == 0);
    free(y), free(values);
}

static void integers_are_summed_in_i64_and_wrap(void **state)
{
    (void)state;
    int32_t a[] = {1, -2, 3, 1 << 20, 5, 6}, b[] = {7, 8, 9, 1 << 12, 11, 12};
    tarn_tensor *y = good(
        tarn_matmul(good(tarn_from_i32(a, TARN_SHAPE(2, 3), cpu())), good(tarn_from_i32(b, TARN_SHAPE(3, 2), cpu()))));
    int32_t corner = (int32_t)(uint32_t)((INT64_C(8) << 20) + 5 * 4096 + 6 * 12);
    assert_values(y, 0, 7 - 18 + 33, 8 - 2 * 4096 + 36, (7 << 20) + 45 + 66, corner);
    uint8_t bytes[] = {200, 100};
    tarn_tensor *u = good(tarn_from_u8(bytes, TARN_SHAPE(1, 2), cpu()));
    assert_values(good(tarn_matmul(u, good(tarn_transpose(u, 0, 1)))), 0, (200 * 200 + 100 * 100) & 0xff);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static tarn_tensor *multiply(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count, (void)ctx;
    return tarn_matmul(in[0], in[1]);
}

static tarn_tensor *apply_linear(tarn_tensor *const *in, int count, void *ctx)
{
    (void)ctx;
    return tarn_linear_apply(in[0], in[1], count > 2 ? in[2] : NULL);
}

static tarn_tensor *leaf(tarn_shape shape)
{
    return good(tarn_requires_grad(normal(shape, TARN_F64), true));
}

static void gradients_agree_with_differences_for_every_kind_of_shape(void **state)
{
    (void)state;
    const tarn_shape pairs[][2] = {
        {TARN_SHAPE(3, 4), TARN_SHAPE(4, 5)},       {TARN_SHAPE(4), TARN_SHAPE(4)},
        {TARN_SHAPE(4), TARN_SHAPE(4, 3)},          {TARN_SHAPE(3, 4), TARN_SHAPE(4)},
        {TARN_SHAPE(2, 3, 4), TARN_SHAPE(4, 5)},    {TARN_SHAPE(2, 3, 4), TARN_SHAPE(2, 4, 5)},
        {TARN_SHAPE(3, 4), TARN_SHAPE(2, 4, 5)},    {TARN_SHAPE(2, 1, 3, 4), TARN_SHAPE(3, 4, 2)},
        {TARN_SHAPE(2, 3, 4), TARN_SHAPE(4)},       {TARN_SHAPE(4), TARN_SHAPE(2, 4, 3)},
        {TARN_SHAPE(2, 3, 4), TARN_SHAPE(1, 4, 2)}, {TARN_SHAPE(6, 17), TARN_SHAPE(17, 7)}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        tarn_tensor *in[] = {leaf(pairs[i][0]), leaf(pairs[i][1])};
        tarn_gradcheck(multiply, NULL, in, 2, NULL);
        assert_ok();
    }
    tarn_tensor *in[] = {leaf(TARN_SHAPE(2, 3, 4)), leaf(TARN_SHAPE(5, 4)), leaf(TARN_SHAPE(5))};
    tarn_gradcheck(apply_linear, NULL, in, 3, NULL);
    assert_ok();
    tarn_tensor *no_bias[] = {leaf(TARN_SHAPE(4)), leaf(TARN_SHAPE(5, 4))};
    tarn_gradcheck(apply_linear, NULL, no_bias, 2, NULL);
    assert_ok();
}

static void gradients_of_16_bit_weights_are_f32_and_add_up(void **state)
{
    (void)state;
    tarn_tensor *x = normal(TARN_SHAPE(64, 8), TARN_BF16),
                *w = good(tarn_requires_grad(normal(TARN_SHAPE(6, 8), TARN_BF16), true));
    tarn_tensor *g = normal(TARN_SHAPE(64, 6), TARN_BF16);
    for (int i = 0; i < 2; i++)
        assert_true(tarn_backward_from(tarn_linear_apply(x, w, NULL), g, NULL));
    tarn_tensor *grad = good(tarn_grad(w));
    assert_int_equal(tarn_dtype_of(grad), TARN_F32);
    tarn_tensor *twice = good(tarn_mul(
        good(tarn_matmul(good(tarn_transpose(good(tarn_cast(g, TARN_F64)), 0, 1)), good(tarn_cast(x, TARN_F64)))),
        good(tarn_scalar(2))));
    assert_close(good(tarn_cast(grad, TARN_F64)), twice, 1e-5);
}

static void a_tensor_multiplied_with_itself_gets_both_gradients(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(vector(1, 2, 3), true));
    assert_true(tarn_backward(good(tarn_matmul(x, x))));
    assert_values(good(tarn_grad(x)), 0, 2, 4, 6);
}

/* ---- threads, errors --------------------------------------------------------------------------------------------- */

static void the_bits_are_the_same_with_one_two_and_four_threads(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 300, 260, 500}, {1, 9, 10, 20000}, {1, 1, 3000, 700},
                                        {1, 2000, 1, 900},  {40, 33, 20, 64},  {1, 130, 1100, 70}};
    int before = tarn_threads();
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (tarn_dtype dtype = TARN_F32; dtype <= TARN_BF16; dtype++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *a = normal(TARN_SHAPE(shapes[i][0], shapes[i][1], shapes[i][3]), dtype);
            tarn_tensor *b = normal(TARN_SHAPE(shapes[i][0], shapes[i][3], shapes[i][2]), dtype);
            size_t bytes = 0;
            void *one = NULL;
            for (int threads = 1; threads <= 4; threads *= 2) {
                tarn_set_threads(threads);
                tarn_tensor *y = good(tarn_matmul(a, b));
                bytes = (size_t)tarn_bytes(y);
                void *now = malloc(bytes);
                assert_true(tarn_read(y, now, bytes));
                if (one)
                    assert_memory_equal(one, now, bytes);
                free(one);
                one = now;
            }
            free(one);
            tarn_scope_close(scope);
        }
    tarn_set_threads(before);
}

static void wrong_shapes_are_errors_that_name_them(void **state)
{
    (void)state;
    tarn_tensor *a = normal(TARN_SHAPE(32, 768), TARN_F32);
    assert_null(tarn_matmul(a, normal(TARN_SHAPE(512, 64), TARN_F32)));
    assert_string_equal(tarn_error() + strlen("tarn: "),
                        "matmul: inner sizes differ: [32, 768] @ [512, 64] (768 vs 512)");
    tarn_clear_error();
    assert_null(tarn_matmul(a, normal(TARN_SHAPE(64, 768), TARN_F32)));
    assert_error(TARN_ERROR_SHAPE, "(768 vs 64); did you mean to transpose the second operand?");
    assert_null(tarn_matmul(a, normal(TARN_SHAPE(32, 4), TARN_F32)));
    assert_error(TARN_ERROR_SHAPE, "(768 vs 32); did you mean to transpose the first operand?");
    assert_null(tarn_matmul(normal(TARN_SHAPE(2, 3, 4), TARN_F32), normal(TARN_SHAPE(3, 4, 5), TARN_F32)));
    assert_error(TARN_ERROR_SHAPE, "batches do not broadcast: [2, 3, 4] @ [3, 4, 5] (axis -3 has 2 vs 3)");
    assert_null(tarn_matmul(a, tarn_scalar(2)));
    assert_error(TARN_ERROR_SHAPE, "tarn_mul()");
    assert_null(tarn_matmul(a, normal(TARN_SHAPE(768, 2), TARN_F64)));
    assert_error(TARN_ERROR_DTYPE, "f32 and f64");
    assert_null(tarn_linear_apply(a, normal(TARN_SHAPE(768, 4), TARN_F32), NULL));
    assert_error(TARN_ERROR_SHAPE, "linear_apply: x [32, 768] and weight [768, 4] do not fit");
    assert_null(tarn_linear_apply(a, normal(TARN_SHAPE(4, 768), TARN_F32), vector(1, 2, 3)));
    assert_error(TARN_ERROR_SHAPE, "bias [3]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_product_equals_the_sum_over_k_for_random_shapes_layouts_and_dtypes),
        in_scope(large_products_with_edges_are_right),
        in_scope(short_last_splits_of_k_stay_in_their_scratch),
        in_scope(vectors_lose_their_axis_in_the_result),
        in_scope(batches_are_multiplied_one_by_one_and_broadcast),
        in_scope(an_empty_inner_axis_gives_zeros_and_empty_outer_axes_nothing),
        in_scope(infinities_and_nans_stay_in_their_rows_and_columns),
        in_scope(integers_are_summed_in_i64_and_wrap),
        in_scope(gradients_agree_with_differences_for_every_kind_of_shape),
        in_scope(gradients_of_16_bit_weights_are_f32_and_add_up),
        in_scope(a_tensor_multiplied_with_itself_gets_both_gradients),
        in_scope(the_bits_are_the_same_with_one_two_and_four_threads),
        in_scope(wrong_shapes_are_errors_that_name_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_movement.c: views: which are made without a copy, their elements, and their gradients. */
#include "support/check.h"

#define CPU tarn_device_cpu()

static bool shares_memory(tarn_tensor *a, tarn_tensor *b)
{
    return tarn_data(a) == tarn_data(b);
}

/* ---- reshape ----------------------------------------------------------------------------------------------------- */

static void reshape_of_a_dense_tensor_is_a_view(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3, 4)), *y = tarn_reshape(x, TARN_SHAPE(4, -1));
    assert_int_equal(tarn_size(y, 1), 6);
    assert_true(shares_memory(x, y) && tarn_is_contiguous(y));
    assert_true(shares_memory(x, tarn_reshape(x, TARN_SHAPE(1, 2, 1, 12, 1))));
}

static void reshape_of_a_permuted_view_is_a_view_where_strides_allow_it(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_permute(count_up(TARN_SHAPE(2, 3, 4)), TARN_AXES(1, 0, 2)); /* [3, 2, 4], strides 4, 12, 1 */
    tarn_tensor *split = tarn_reshape(x, TARN_SHAPE(3, 2, 2, 2));
    assert_true(shares_memory(x, split));
    expect(tarn_shrink(split, TARN_SHAPE(1, 1, 0, 0), TARN_SHAPE(2, 2, 2, 2)), TARN_SHAPE(1, 1, 2, 2),
           VALUES(16, 17, 18, 19));
    tarn_tensor *merged = tarn_reshape(x, TARN_SHAPE(6, 4));
    assert_false(shares_memory(x, merged));
    assert_true(tarn_is_contiguous(merged));
    expect(merged, TARN_SHAPE(6, 4),
           VALUES(0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 16, 17, 18, 19, 8, 9, 10, 11, 20, 21, 22, 23));
}

static void reshape_of_expanded_and_flipped_views_reads_them_in_order(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_expand(count_up(TARN_SHAPE(2, 1)), TARN_SHAPE(2, 3));
    expect(tarn_reshape(x, TARN_SHAPE(6)), TARN_SHAPE(6), VALUES(0, 0, 0, 1, 1, 1));
    tarn_tensor *same = tarn_reshape(tarn_expand(count_up(TARN_SHAPE(1)), TARN_SHAPE(2, 3)), TARN_SHAPE(3, 2));
    assert_int_equal(tarn_stride_of(same, 0), 0); /* zeros all over: no copy is needed */
    tarn_tensor *flipped = tarn_flip(count_up(TARN_SHAPE(2, 3)), TARN_ALL_AXES),
                *line = tarn_reshape(flipped, TARN_SHAPE(6));
    assert_true(shares_memory(flipped, line));
    expect(line, TARN_SHAPE(6), VALUES(5, 4, 3, 2, 1, 0));
}

static void reshape_of_empty_tensors_and_of_rank_0_works(void **state)
{
    (void)state;
    tarn_tensor *empty = tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, CPU);
    expect(tarn_reshape(empty, TARN_SHAPE(7, 0)), TARN_SHAPE(7, 0), NULL);
    expect(tarn_reshape(empty, TARN_SHAPE(-1, 3)), TARN_SHAPE(0, 3), NULL);
    tarn_tensor *one = tarn_full(TARN_SCALAR, 5, TARN_F32, CPU);
    expect(tarn_reshape(one, TARN_SHAPE(1, 1)), TARN_SHAPE(1, 1), VALUES(5));
    expect(tarn_reshape(tarn_reshape(one, TARN_SHAPE(-1)), TARN_SCALAR), TARN_SCALAR, VALUES(5));
    expect(tarn_reshape(tarn_scalar(3), TARN_SHAPE(1)), TARN_SHAPE(1), VALUES(3));
}

static void reshape_refuses_sizes_that_do_not_fit(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3)), *empty = tarn_zeros(TARN_SHAPE(0), TARN_F32, CPU);
    assert_null(tarn_reshape(x, TARN_SHAPE(4)));
    assert_error(TARN_ERROR_SHAPE, "reshape: [2, 3] has 6 elements, which 4 do not fill");
    assert_null(tarn_reshape(x, TARN_SHAPE(-1, 4)));
    assert_error(TARN_ERROR_SHAPE, "multiples of 4");
    assert_null(tarn_reshape(x, TARN_SHAPE(-1, -1)));
    assert_error(TARN_ERROR_SHAPE, "axes 0 and 1 are both -1");
    assert_null(tarn_reshape(x, TARN_SHAPE(-2, -3)));
    assert_error(TARN_ERROR_SHAPE, "negative");
    assert_null(tarn_reshape(empty, TARN_SHAPE(0, -1)));
    assert_error(TARN_ERROR_SHAPE, "is ambiguous");
    assert_null(tarn_reshape(x, TARN_SHAPE(INT64_C(1) << 40, INT64_C(1) << 40)));
    assert_error(TARN_ERROR_SHAPE, "reshape");
    assert_null(tarn_reshape(x, (tarn_shape){.rank = 9}));
    assert_error(TARN_ERROR_SHAPE, "rank 9");
    assert_null(tarn_reshape(NULL, TARN_SHAPE(1)));
    assert_error(TARN_ERROR_ARGUMENT, "reshape: x is NULL");
}

/* Random chains of views, read back and compared with the same chain on a table of positions. */
static void random_reshapes_of_views_of_views_hold_the_right_elements(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 300; round++) {
        tarn_scope *inner = tarn_scope_open();
        tarn_shape shape = {.rank = 3, .size = {1 + rand() % 4, 1 + rand() % 4, 1 + rand() % 4}};
        tarn_tensor *x = count_up(shape);
        int order[3] = {rand() % 3, 0, 0};
        order[1] = (order[0] + 1 + rand() % 2) % 3;
        order[2] = 3 - order[0] - order[1];
        tarn_tensor *y = tarn_permute(x, TARN_AXES(order[0], order[1], order[2]));
        bool flip = rand() % 2;
        if (flip)
            y = tarn_flip(y, TARN_AXES(1));
        double want[64];
        int64_t n = 0, at[3], size[3] = {shape.size[order[0]], shape.size[order[1]], shape.size[order[2]]};
        for (int64_t i = 0; i < size[0]; i++)
            for (int64_t j = 0; j < size[1]; j++)
                for (int64_t k = 0; k < size[2]; k++) {
                    at[order[0]] = i;
                    at[order[1]] = flip ? size[1] - 1 - j : j;
                    at[order[2]] = k;
                    want[n++] = (double)((at[0] * shape.size[1] + at[1]) * shape.size[2] + at[2]);
                }
        int64_t first = 1 + rand() % (int)n;
        while (n % first)
            first--;
        expect(tarn_reshape(y, TARN_SHAPE(first, -1)), TARN_SHAPE(first, n / first), want);
        tarn_scope_close(inner);
    }
}

static void gradients_go_back_through_reshape_squeeze_and_unsqueeze(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3));
    tarn_tensor *y = tarn_reshape(tarn_permute(x, TARN_AXES(1, 0)), TARN_SHAPE(6)); /* copies */
    expect(y, TARN_SHAPE(6), VALUES(0, 3, 1, 4, 2, 5));
    expect(grad_from(y, x), TARN_SHAPE(2, 3), VALUES(1, 3, 5, 2, 4, 6));
    x = counted_leaf(TARN_SHAPE(2, 1, 3));
    y = tarn_unsqueeze(tarn_squeeze(x, -2), 0);
    expect(y, TARN_SHAPE(1, 2, 3), VALUES(0, 1, 2, 3, 4, 5));
    expect(grad_from(y, x), TARN_SHAPE(2, 1, 3), VALUES(1, 2, 3, 4, 5, 6));
}

/* ---- unsqueeze, squeeze, permute, transpose ---------------------------------------------------------------------- */

static void unsqueeze_and_squeeze_take_negative_axes_and_rank_0(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3));
    assert_int_equal(tarn_size(tarn_unsqueeze(x, -1), 2), 1);
    assert_int_equal(tarn_size(tarn_unsqueeze(x, -3), 0), 1);
    assert_int_equal(tarn_size(tarn_unsqueeze(x, 1), 1), 1);
    tarn_tensor *one = tarn_unsqueeze(tarn_full(TARN_SCALAR, 5, TARN_F32, CPU), 0);
    expect(one, TARN_SHAPE(1), VALUES(5));
    expect(tarn_squeeze(one, -1), TARN_SCALAR, VALUES(5));
    expect(tarn_squeeze(tarn_squeeze(one, 0), 0), TARN_SCALAR, VALUES(5));
    assert_null(tarn_squeeze(x, 1));
    assert_error(TARN_ERROR_SHAPE, "axis 1 of x [2, 3] has size 3");
    assert_null(tarn_unsqueeze(x, 3));
    assert_error(TARN_ERROR_SHAPE, "unsqueeze: axis 3");
    assert_null(tarn_unsqueeze(tarn_zeros(TARN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), TARN_F32, CPU), 0));
    assert_error(TARN_ERROR_SHAPE, "already has 8 axes");
}

static void permute_and_transpose_are_views_with_gradients(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3, 1)), *y = tarn_permute(x, TARN_AXES(-1, 0, 1));
    expect(y, TARN_SHAPE(1, 2, 3), VALUES(0, 1, 2, 3, 4, 5));
    tarn_tensor *z = tarn_transpose(y, -1, 1);
    assert_true(shares_memory(x, z));
    expect(z, TARN_SHAPE(1, 3, 2), VALUES(0, 3, 1, 4, 2, 5));
    expect(grad_from(z, x), TARN_SHAPE(2, 3, 1), VALUES(1, 3, 5, 2, 4, 6));
    tarn_tensor *one = tarn_full(TARN_SCALAR, 5, TARN_F32, CPU);
    expect(tarn_permute(tarn_transpose(one, 0, -1), (tarn_axes){0}), TARN_SCALAR, VALUES(5));
    assert_null(tarn_permute(x, TARN_AXES(0, 1)));
    assert_error(TARN_ERROR_SHAPE, "permute: 2 axes given for x [2, 3, 1] of rank 3");
    assert_null(tarn_permute(x, TARN_AXES(0, 1, 1)));
    assert_error(TARN_ERROR_ARGUMENT, "axis 1 is listed twice");
    assert_null(tarn_transpose(x, 0, 3));
    assert_error(TARN_ERROR_SHAPE, "transpose: axis 3");
}

/* ---- expand, flip ------------------------------------------------------------------------------------------------ */

static void expand_repeats_without_a_copy_and_sums_its_gradient(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 1)), *y = tarn_expand(x, TARN_SHAPE(2, -1, 3));
    assert_true(shares_memory(x, y));
    expect(y, TARN_SHAPE(2, 2, 3), VALUES(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1));
    expect(grad_from(y, x), TARN_SHAPE(2, 1), VALUES(1 + 2 + 3 + 7 + 8 + 9, 4 + 5 + 6 + 10 + 11 + 12));
    expect(tarn_expand(x, TARN_SHAPE(2, 0)), TARN_SHAPE(2, 0), NULL);
    expect(tarn_expand(tarn_scalar(2), TARN_SHAPE(3)), TARN_SHAPE(3), VALUES(2, 2, 2));
    assert_null(tarn_expand(x, TARN_SHAPE(3, 1)));
    assert_error(TARN_ERROR_SHAPE, "axis 0 of x [2, 1] has size 2, which cannot become 3");
    assert_null(tarn_expand(x, TARN_SHAPE(1)));
    assert_error(TARN_ERROR_SHAPE, "cannot have 1 axes");
    assert_null(tarn_expand(x, TARN_SHAPE(-1, 2, 1)));
    assert_error(TARN_ERROR_SHAPE, "negative");
    assert_null(tarn_expand(x, TARN_SHAPE(INT64_MAX / 2, 2, 3)));
    assert_error(TARN_ERROR_SHAPE, "more bytes");
}

static void flip_reverses_the_axes_it_is_given(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3)), *y = tarn_flip(x, TARN_AXES(-1));
    expect(y, TARN_SHAPE(2, 3), VALUES(2, 1, 0, 5, 4, 3));
    expect(tarn_flip(y, TARN_ALL_AXES), TARN_SHAPE(2, 3), VALUES(3, 4, 5, 0, 1, 2));
    expect(grad_from(y, x), TARN_SHAPE(2, 3), VALUES(3, 2, 1, 6, 5, 4));
    expect(tarn_flip(tarn_zeros(TARN_SHAPE(3, 0), TARN_F32, CPU), TARN_AXES(1)), TARN_SHAPE(3, 0), NULL);
    expect(tarn_flip(tarn_full(TARN_SCALAR, 4, TARN_F32, CPU), TARN_AXES(0)), TARN_SCALAR, VALUES(4));
    assert_null(tarn_flip(x, TARN_AXES(0, -2)));
    assert_error(TARN_ERROR_ARGUMENT, "flip: axis 0 is listed twice");
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static void shrink_slice_and_stride_are_windows_that_share_memory(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(4, 5));
    tarn_tensor *y = tarn_shrink(x, TARN_SHAPE(1, 1), TARN_SHAPE(4, 4));
    expect(y, TARN_SHAPE(3, 3), VALUES(6, 7, 8, 11, 12, 13, 16, 17, 18));
    expect(tarn_slice(y, -1, 1, 3), TARN_SHAPE(3, 2), VALUES(7, 8, 12, 13, 17, 18));
    expect(tarn_stride(x, TARN_SHAPE(3, 2)), TARN_SHAPE(2, 3), VALUES(0, 2, 4, 15, 17, 19));
    expect(tarn_stride(x, TARN_SHAPE(INT64_MAX, INT64_MAX)), TARN_SHAPE(1, 1), VALUES(0));
    expect(tarn_slice(tarn_flip(x, TARN_AXES(0)), 0, 0, 1), TARN_SHAPE(1, 5), VALUES(15, 16, 17, 18, 19));
    expect(tarn_slice(x, 0, 4, 4), TARN_SHAPE(0, 5), NULL);
    assert_true(tarn_write(tarn_slice(x, 1, 0, 1), (const float[]){-1, -2, -3, -4}, 16));
    expect(tarn_slice(x, 1, 0, 2), TARN_SHAPE(4, 2), VALUES(-1, 1, -2, 6, -3, 11, -4, 16));
}

static void windows_refuse_ranges_outside_the_axis(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(4, 5));
    assert_null(tarn_slice(x, 0, 2, 5));
    assert_error(TARN_ERROR_SHAPE, "slice: 2 to 5 is outside 0 to 4 of axis 0 of x [4, 5]");
    assert_null(tarn_slice(x, 1, 3, 2));
    assert_error(TARN_ERROR_SHAPE, "3 to 2");
    assert_null(tarn_slice(x, 1, INT64_MIN, INT64_MAX));
    assert_error(TARN_ERROR_SHAPE, "slice");
    assert_null(tarn_slice(tarn_full(TARN_SCALAR, 1, TARN_F32, CPU), 0, 0, 1));
    assert_error(TARN_ERROR_SHAPE, "rank 0");
    assert_null(tarn_shrink(x, TARN_SHAPE(0), TARN_SHAPE(1, 1)));
    assert_error(TARN_ERROR_SHAPE, "shrink: 1 beginnings given for x [4, 5] of rank 2");
    assert_null(tarn_stride(x, TARN_SHAPE(1, 0)));
    assert_error(TARN_ERROR_ARGUMENT, "stride: step 0 of axis 1");
}

static void gradients_of_windows_land_among_zeros_and_add_up(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3));
    expect(grad_from(tarn_shrink(x, TARN_SHAPE(0, 1), TARN_SHAPE(2, 3)), x), TARN_SHAPE(2, 3),
           VALUES(0, 1, 2, 0, 3, 4));
    expect(grad_from(tarn_stride(x, TARN_SHAPE(1, 2)), x), TARN_SHAPE(2, 3), VALUES(1, 1, 4, 3, 3, 8));
    x = counted_leaf(TARN_SHAPE(4));
    tarn_tensor *inner = tarn_mul(x, tarn_scalar(2)); /* not a leaf: parts meet in its pending gradient */
    tarn_tensor *sum =
        tarn_add(tarn_add(tarn_slice(inner, 0, 0, 2), tarn_slice(inner, 0, 1, 3)), tarn_slice(inner, 0, 2, 4));
    expect(grad_from(sum, x), TARN_SHAPE(4), VALUES(2, 6, 6, 4));
}

static void a_bf16_leaf_collects_the_gradients_of_its_windows_in_f32(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_requires_grad(tarn_zeros(TARN_SHAPE(3), TARN_BF16, CPU), true);
    for (int i = 0; i < 2; i++)
        assert_true(tarn_backward_from(tarn_slice(x, 0, i, i + 2), tarn_ones(TARN_SHAPE(2), TARN_BF16, CPU), NULL));
    assert_int_equal(tarn_dtype_of(tarn_grad(x)), TARN_F32);
    expect(tarn_grad(x), TARN_SHAPE(3), VALUES(1, 2, 1));
}

static void split_makes_views_and_one_node_for_all_of_them(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 4)), *part[3];
    assert_true(tarn_split(x, -1, (const int64_t[]){1, 0, 3}, 3, part));
    expect(part[0], TARN_SHAPE(2, 1), VALUES(0, 4));
    expect(part[1], TARN_SHAPE(2, 0), NULL);
    expect(part[2], TARN_SHAPE(2, 3), VALUES(1, 2, 3, 5, 6, 7));
    assert_true(shares_memory(x, part[0]));
    expect(grad_from(part[2], x), TARN_SHAPE(2, 4), VALUES(0, 1, 2, 3, 0, 4, 5, 6)); /* nothing arrived at part 0 */
    assert_true(tarn_split(x, 1, (const int64_t[]){2, 2}, 2, part));
    tarn_tensor *sum = tarn_add(part[0], tarn_mul(part[1], tarn_scalar(10)));
    expect(grad_from(sum, x), TARN_SHAPE(2, 4), VALUES(1, 3, 12, 23, 3, 8, 35, 46)); /* on top of what was there */
}

static void split_into_more_parts_than_a_call_by_name_returns_works(void **state)
{
    (void)state;
    enum { PARTS = 20 };
    tarn_tensor *x = counted_leaf(TARN_SHAPE(PARTS)), *part[PARTS], *sum = NULL;
    int64_t sizes[PARTS];
    for (int i = 0; i < PARTS; i++)
        sizes[i] = 1;
    assert_true(tarn_split(x, 0, sizes, PARTS, part));
    for (int i = 0; i < PARTS; i++) {
        tarn_tensor *term = tarn_mul(part[i], tarn_scalar(i));
        sum = sum ? tarn_add(sum, term) : term;
    }
    double want[PARTS];
    for (int i = 0; i < PARTS; i++)
        want[i] = i;
    expect(grad_from(sum, x), TARN_SHAPE(PARTS), want);
}

static void split_refuses_sizes_that_do_not_add_up(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 4)), *part[2];
    assert_false(tarn_split(x, 1, (const int64_t[]){1, 2}, 2, part));
    assert_error(TARN_ERROR_SHAPE, "split: the 2 sizes add up to 3, but axis 1 of x [2, 4] has 4 elements");
    assert_false(tarn_split(x, 1, (const int64_t[]){3, 2}, 2, part));
    assert_error(TARN_ERROR_SHAPE, "part 1 of size 2 does not fit");
    assert_false(tarn_split(x, 1, (const int64_t[]){5, -1}, 2, part));
    assert_error(TARN_ERROR_SHAPE, "part 0 of size 5");
    assert_false(tarn_split(x, 1, NULL, 2, part));
    assert_error(TARN_ERROR_ARGUMENT, "NULL");
    assert_false(tarn_split(x, 1, (const int64_t[]){4}, 0, part));
    assert_error(TARN_ERROR_ARGUMENT, "0 parts");
}

/* ---- pad, concat, stack ------------------------------------------------------------------------------------------ */

static void pad_surrounds_with_a_value_and_passes_the_inner_gradient(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(1, 2)), *y = tarn_pad(x, TARN_SHAPE(1, 0), TARN_SHAPE(0, 2), 9);
    expect(y, TARN_SHAPE(2, 4), VALUES(9, 9, 9, 9, 0, 1, 9, 9));
    expect(grad_from(y, x), TARN_SHAPE(1, 2), VALUES(5, 6));
    expect(tarn_pad(tarn_zeros(TARN_SHAPE(0), TARN_I32, CPU), TARN_SHAPE(1), TARN_SHAPE(1), -3), TARN_SHAPE(2),
           VALUES(-3, -3));
    expect(tarn_pad(tarn_full(TARN_SCALAR, 4, TARN_F32, CPU), TARN_SCALAR, TARN_SCALAR, 1), TARN_SCALAR, VALUES(4));
    assert_null(tarn_pad(x, TARN_SHAPE(1), TARN_SHAPE(0, 2), 0));
    assert_error(TARN_ERROR_SHAPE, "pad: 1 and 2 values");
    assert_null(tarn_pad(x, TARN_SHAPE(0, -1), TARN_SHAPE(0, 2), 0));
    assert_error(TARN_ERROR_SHAPE, "-1 before and 2 after axis 1");
    assert_null(tarn_pad(x, TARN_SHAPE(0, INT64_MAX), TARN_SHAPE(0, INT64_MAX), 0));
    assert_error(TARN_ERROR_SHAPE, "pad");
    assert_null(tarn_pad(tarn_zeros(TARN_SHAPE(1), TARN_I32, CPU), TARN_SHAPE(1), TARN_SHAPE(1), 0.5));
    assert_error(TARN_ERROR_DTYPE, "0.5 is not representable in i32");
}

static void concat_joins_any_layouts_and_hands_out_the_gradient(void **state)
{
    (void)state;
    tarn_tensor *a = counted_leaf(TARN_SHAPE(2, 1)), *b = counted_leaf(TARN_SHAPE(2, 2)),
                *empty = tarn_zeros(TARN_SHAPE(2, 0), TARN_F32, CPU);
    tarn_tensor *y = tarn_concat((tarn_tensor *[]){a, empty, tarn_transpose(b, 0, 1), a}, 4, -1);
    expect(y, TARN_SHAPE(2, 4), VALUES(0, 0, 2, 0, 1, 1, 3, 1));
    expect(grad_from(y, a), TARN_SHAPE(2, 1), VALUES(1 + 4, 5 + 8));
    expect(tarn_grad(b), TARN_SHAPE(2, 2), VALUES(2, 6, 3, 7));
    expect(tarn_concat(&a, 1, 0), TARN_SHAPE(2, 1), VALUES(0, 1));
    tarn_tensor *many[100];
    double want[200];
    for (int i = 0; i < 200; i++) {
        many[i % 100] = a;
        want[i] = i % 2;
    }
    expect(tarn_concat(many, 100, 0), TARN_SHAPE(200, 1), want);
}

static void stack_joins_along_a_new_axis(void **state)
{
    (void)state;
    tarn_tensor *a = counted_leaf(TARN_SHAPE(2)), *b = counted_leaf(TARN_SHAPE(2));
    tarn_tensor *y = tarn_stack((tarn_tensor *[]){a, b, a}, 3, -1);
    expect(y, TARN_SHAPE(2, 3), VALUES(0, 0, 0, 1, 1, 1));
    expect(grad_from(y, a), TARN_SHAPE(2), VALUES(1 + 3, 4 + 6));
    expect(tarn_grad(b), TARN_SHAPE(2), VALUES(2, 5));
    tarn_tensor *one = tarn_full(TARN_SCALAR, 7, TARN_F32, CPU);
    expect(tarn_stack((tarn_tensor *[]){one, one}, 2, 0), TARN_SHAPE(2), VALUES(7, 7));
}

static void joining_refuses_operands_that_do_not_fit(void **state)
{
    (void)state;
    tarn_tensor *a = count_up(TARN_SHAPE(2, 1)), *b = count_up(TARN_SHAPE(3, 2)),
                *whole = tarn_zeros(TARN_SHAPE(2, 1), TARN_I64, CPU);
    assert_null(tarn_concat((tarn_tensor *[]){a, b}, 2, 1));
    assert_error(TARN_ERROR_SHAPE, "concat: tensor 1 is [3, 2] and tensor 0 is [2, 1]");
    assert_null(tarn_stack((tarn_tensor *[]){a, b}, 2, 0));
    assert_error(TARN_ERROR_SHAPE, "stack: tensor 1");
    assert_null(tarn_concat((tarn_tensor *[]){a, whole}, 2, 0));
    assert_error(TARN_ERROR_DTYPE, "f32 and i64");
    assert_null(tarn_concat((tarn_tensor *[]){a, NULL}, 2, 0));
    assert_error(TARN_ERROR_ARGUMENT, "tensor 1 of 2 is NULL");
    assert_null(tarn_concat((tarn_tensor *[]){tarn_scalar(1)}, 1, 0));
    assert_error(TARN_ERROR_ARGUMENT, "tarn_scalar()");
    assert_null(tarn_concat(&a, 0, 0));
    assert_error(TARN_ERROR_ARGUMENT, "a list of 0 tensors");
    assert_null(tarn_concat((tarn_tensor *[]){tarn_full(TARN_SCALAR, 1, TARN_F32, CPU)}, 1, 0));
    assert_error(TARN_ERROR_SHAPE, "rank 0");
    assert_null(tarn_concat(&a, 1, 2));
    assert_error(TARN_ERROR_SHAPE, "concat: axis 2");
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

static void writing_to_a_leaf_is_seen_by_what_saved_a_view_of_it(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 2)), *y = tarn_square(tarn_transpose(x, 0, 1));
    tarn_no_grad_open();
    assert_non_null(tarn_fill_inplace(x, 3));
    tarn_no_grad_close();
    assert_false(tarn_backward_from(y, tarn_ones(TARN_SHAPE(2, 2), TARN_F32, CPU), NULL));
    assert_error(TARN_ERROR_ARGUMENT, "overwritten in place");
}

/* The gradient of a sum is one value, expanded. Accumulating a second gradient must not write through the view. */
static void gradients_that_are_expanded_views_are_not_added_to_in_place(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3)), *inner = tarn_mul(x, tarn_scalar(1));
    tarn_tensor *last = tarn_sum(tarn_mul(inner, count_up(TARN_SHAPE(2, 3))), TARN_ALL_AXES, false);
    tarn_tensor *first = tarn_sum(tarn_permute(inner, TARN_AXES(1, 0)), TARN_ALL_AXES, false);
    /* a gradient of its own for each sum */
    tarn_tensor *both = tarn_add(tarn_mul(first, tarn_scalar(1)), tarn_mul(last, tarn_scalar(2)));
    assert_true(tarn_backward(both));
    expect(tarn_grad(x), TARN_SHAPE(2, 3), VALUES(1, 3, 5, 7, 9, 11));
}

static void calls_by_name_reach_every_movement(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3)), *y[8];
    assert_true(tarn_apply("transpose", &x, 1, NULL, 0, y, 1));
    expect(y[0], TARN_SHAPE(3, 2), VALUES(0, 3, 1, 4, 2, 5));
    assert_true(
        tarn_apply("slice", &x, 1, (tarn_attribute[]){{"axis", .integer = 1}, {"begin", .integer = 2}}, 2, y, 1));
    expect(y[0], TARN_SHAPE(2, 1), VALUES(2, 5));
    assert_true(tarn_apply("split", &x, 1,
                           (tarn_attribute[]){{"axis", .integer = 1}, {"sizes", .list = {1, 2}, .count = 2}}, 2, y, 8));
    expect(y[1], TARN_SHAPE(2, 2), VALUES(1, 2, 4, 5));
    assert_null(y[2]);
    assert_true(tarn_apply("concat", (tarn_tensor *[]){x, x}, 2, NULL, 0, y, 1));
    assert_int_equal(tarn_size(y[0], 0), 4);
    tarn_attribute around[] = {
        {"before", .list = {0, 1}, .count = 2}, {"after", .list = {0, 0}, .count = 2}, {"value", .number = 8}};
    assert_true(tarn_apply("pad", &x, 1, around, 3, y, 1));
    expect(y[0], TARN_SHAPE(2, 4), VALUES(8, 0, 1, 2, 8, 3, 4, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(reshape_of_a_dense_tensor_is_a_view),
        in_scope(reshape_of_a_permuted_view_is_a_view_where_strides_allow_it),
        in_scope(reshape_of_expanded_and_flipped_views_reads_them_in_order),
        in_scope(reshape_of_empty_tensors_and_of_rank_0_works),
        in_scope(reshape_refuses_sizes_that_do_not_fit),
        in_scope(random_reshapes_of_views_of_views_hold_the_right_elements),
        in_scope(gradients_go_back_through_reshape_squeeze_and_unsqueeze),
        in_scope(unsqueeze_and_squeeze_take_negative_axes_and_rank_0),
        in_scope(permute_and_transpose_are_views_with_gradients),
        in_scope(expand_repeats_without_a_copy_and_sums_its_gradient),
        in_scope(flip_reverses_the_axes_it_is_given),
        in_scope(shrink_slice_and_stride_are_windows_that_share_memory),
        in_scope(windows_refuse_ranges_outside_the_axis),
        in_scope(gradients_of_windows_land_among_zeros_and_add_up),
        in_scope(a_bf16_leaf_collects_the_gradients_of_its_windows_in_f32),
        in_scope(split_makes_views_and_one_node_for_all_of_them),
        in_scope(split_into_more_parts_than_a_call_by_name_returns_works),
        in_scope(split_refuses_sizes_that_do_not_add_up),
        in_scope(pad_surrounds_with_a_value_and_passes_the_inner_gradient),
        in_scope(concat_joins_any_layouts_and_hands_out_the_gradient),
        in_scope(stack_joins_along_a_new_axis),
        in_scope(joining_refuses_operands_that_do_not_fit),
        in_scope(writing_to_a_leaf_is_seen_by_what_saved_a_view_of_it),
        in_scope(gradients_that_are_expanded_views_are_not_added_to_in_place),
        in_scope(calls_by_name_reach_every_movement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_layouts.c: copies and elementwise operations over layouts, by the GPU kernels: TARN_OPENCL_LOCAL_MEM=1 selects
 * them on any device. Shapes are at the thresholds of a variant and just below. Everything is bitwise identical with
 * the CPU.
 * */
#include "support/opencl.h"
#include "support/pools.h"

#include <tarn/profile.h>

typedef tarn_tensor *(*operation_fn)(tarn_tensor *x);

static tarn_tensor *numbers(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_cast(tarn_normal(shape, 0, 30, TARN_F32, tarn_device_cpu()), dtype));
}

/* The operation has the same result on both devices, and no kernel is missing. */
static void compare(operation_fn operation, tarn_shape shape, tarn_dtype dtype)
{
    tarn_tensor *x = numbers(shape, dtype), *there = good(tarn_to(x, opencl));
    tarn_tensor *expected = good(tarn_contiguous(operation(x)));
    tarn_stats_reset();
    tarn_tensor *result = good(tarn_contiguous(operation(there)));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_close_for_size(good(tarn_to(result, tarn_device_cpu())), expected, 0);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static tarn_tensor *swapped(tarn_tensor *x)
{
    return tarn_permute(x, TARN_AXES(0, 2, 1));
}

static tarn_tensor *turned(tarn_tensor *x)
{
    return tarn_permute(x, TARN_AXES(2, 0, 1));
}

/* Tiles that are full and cut, of elements of every size; and a side too short for them. */
static void axes_are_transposed(void **state)
{
    NEEDS_OPENCL();
    compare(swapped, TARN_SHAPE(3, 64, 96), TARN_F32);
    compare(swapped, TARN_SHAPE(2, 65, 130), TARN_BF16);
    compare(swapped, TARN_SHAPE(2, 33, 31), TARN_I64);
    compare(turned, TARN_SHAPE(5, 17, 70), TARN_U8);
    compare(turned, TARN_SHAPE(2, 40, 50), TARN_F32);
    compare(swapped, TARN_SHAPE(4, 15, 64), TARN_F32);
}

static tarn_tensor *part(tarn_tensor *x)
{
    return tarn_slice(tarn_slice(x, 1, 2, 5), 2, 8, 40);
}

static tarn_tensor *odd_part(tarn_tensor *x)
{
    return tarn_slice(tarn_slice(x, 1, 1, 4), 2, 3, 44);
}

static tarn_tensor *padded(tarn_tensor *x)
{
    return tarn_pad(x, TARN_SHAPE(1, 0, 8), TARN_SHAPE(0, 2, 16), 2);
}

static tarn_tensor *edged(tarn_tensor *x)
{
    return tarn_pad(x, TARN_SHAPE(0, 1, 1), TARN_SHAPE(0, 1, 1), -3);
}

static tarn_tensor *led(tarn_tensor *x)
{
    return tarn_pad(tarn_permute(x, TARN_AXES(1, 0, 2)), TARN_SHAPE(2, 0, 0), TARN_SHAPE(0, 0, 0), 1);
}

static tarn_tensor *without(tarn_tensor *x)
{
    return tarn_pad(tarn_slice(x, 2, 4, 4), TARN_SHAPE(0, 1, 4), TARN_SHAPE(0, 0, 4), 1);
}

static tarn_tensor *repeated(tarn_tensor *x)
{
    return tarn_expand(tarn_slice(x, 1, 2, 3), TARN_SHAPE(3, 7, 48));
}

static tarn_tensor *flipped(tarn_tensor *x)
{
    return tarn_flip(x, TARN_AXES(0, 2));
}

/* What arrives at the parts of a tensor goes back to where they were. */
static tarn_tensor *put_back(tarn_tensor *g, tarn_shape shape, operation_fn part_of)
{
    tarn_tensor *x = good(tarn_requires_grad(tarn_zeros(shape, tarn_dtype_of(g), tarn_device_of(g)), true));
    assert_true(tarn_backward_from(good(part_of(x)), g, NULL));
    return good(tarn_grad(x));
}

static tarn_tensor *thinned(tarn_tensor *x)
{
    return tarn_stride(x, TARN_SHAPE(1, 2, 3));
}

static tarn_tensor *thinned_everywhere(tarn_tensor *x)
{
    return tarn_stride(x, TARN_SHAPE(2, 2, 2));
}

static tarn_tensor *unthinned(tarn_tensor *g)
{
    return put_back(g, TARN_SHAPE(3, 26, 48), thinned);
}
static tarn_tensor *unthinned_everywhere(tarn_tensor *g)
{
    return put_back(g, TARN_SHAPE(5, 25, 32), thinned_everywhere);
}
static tarn_tensor *odd_part_back(tarn_tensor *g)
{
    return put_back(g, TARN_SHAPE(3, 5, 46), odd_part);
}

/* Parts that lie in steps, or where nothing is a multiple of anything. */
static void slices_are_padded_back(void **state)
{
    NEEDS_OPENCL();
    for (int i = 0; i < 4; i++) {
        const tarn_dtype dtype = (tarn_dtype[]){TARN_F32, TARN_F64, TARN_F16, TARN_BF16}[i];
        compare(unthinned, TARN_SHAPE(3, 13, 16), dtype);
        compare(unthinned_everywhere, TARN_SHAPE(3, 13, 16), dtype);
        compare(odd_part_back, TARN_SHAPE(3, 3, 41), dtype);
        compare(odd_part, TARN_SHAPE(40, 5, 46), dtype);
        compare(edged, TARN_SHAPE(3, 67, 130), dtype);
    }
    compare(odd_part, TARN_SHAPE(9, 7, 46), TARN_U8);
    compare(edged, TARN_SHAPE(3, 9, 46), TARN_U8);
}

/* Neighbours move together, by 16 bytes and by fewer, or one by one. */
static void adjacent_elements_move_as_vectors(void **state)
{
    NEEDS_OPENCL();
    for (int i = 0; i < 4; i++) {
        const tarn_dtype dtype = (tarn_dtype[]){TARN_F32, TARN_F64, TARN_F16, TARN_U8}[i];
        compare(part, TARN_SHAPE(3, 5, 48), dtype);
        compare(padded, TARN_SHAPE(3, 5, 24), dtype);
        compare(edged, TARN_SHAPE(3, 6, 24), dtype);
        compare(led, TARN_SHAPE(3, 5, 24), dtype);
        compare(without, TARN_SHAPE(3, 5, 24), dtype);
        compare(repeated, TARN_SHAPE(3, 5, 48), dtype);
    }
    compare(padded, TARN_SHAPE(3, 300, 400), TARN_F32);
    compare(edged, TARN_SHAPE(1, 1, 1), TARN_BF16);
    compare(odd_part, TARN_SHAPE(3, 5, 47), TARN_F32);
    compare(flipped, TARN_SHAPE(3, 5, 40), TARN_F32);
    compare(part, TARN_SHAPE(3, 5, 46), TARN_F32);
}

static tarn_tensor *looked_up(tarn_tensor *x)
{
    const int64_t which[] = {4, 0, 2, 2, 6, 1, 3};
    return tarn_embedding(x, good(tarn_from_i64(which, TARN_SHAPE(7), tarn_device_of(x))));
}

static void rows_are_gathered(void **state)
{
    NEEDS_OPENCL();
    compare(looked_up, TARN_SHAPE(7, 48), TARN_F32);
    compare(looked_up, TARN_SHAPE(7, 50), TARN_BF16);
    compare(looked_up, TARN_SHAPE(7, 33), TARN_F32);
}

static tarn_tensor *sorted(tarn_tensor *x)
{
    tarn_tensor *values = NULL, *indices;
    assert_true(tarn_sort(x, -1, false, &values, &indices));
    return values;
}

/* Rows that indices name twice are added in the order of the source. */
static tarn_tensor *added_at(tarn_tensor *x)
{
    const int64_t which[] = {4, 0, 2, 2, 6, 4, 2};
    tarn_tensor *index = good(tarn_from_i64(which, TARN_SHAPE(7, 1), tarn_device_of(x)));
    return tarn_scatter_add(x, 0, good(tarn_contiguous(tarn_expand(index, TARN_SHAPE(7, 33)))), tarn_square(x));
}

static void pairs_are_sorted(void **state)
{
    NEEDS_OPENCL();
    compare(sorted, TARN_SHAPE(3, 300), TARN_F32);
    compare(sorted, TARN_SHAPE(5, 20), TARN_I32);
    compare(added_at, TARN_SHAPE(7, 33), TARN_F32);
}

/* Pooling and its gradient, as one sum: which elements are meant shows in the gradient. */
static tarn_tensor *pooled(tarn_tensor *x, const tarn_pool2d_options *options, bool is_average, tarn_device device)
{
    tarn_tensor *there = good(tarn_requires_grad(good(tarn_detach(tarn_to(x, device))), true));
    tarn_tensor *y = good(is_average ? tarn_avg_pool2d(there, options) : tarn_max_pool2d(there, options));
    assert_true(tarn_backward_from(y, good(tarn_detach(y)), NULL));
    return good(tarn_to(tarn_grad(there), tarn_device_cpu()));
}

static void check_pools(tarn_shape shape, tarn_dtype dtype, tarn_pool2d_options options, bool channels_last)
{
    tarn_tensor *x = numbers(shape, dtype);
    if (channels_last)
        x = good(tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2)));
    for (int average = 0; average < 2; average++) {
        tarn_tensor *here = pooled(x, &options, average, tarn_device_cpu());
        tarn_stats_reset();
        assert_close_for_size(pooled(x, &options, average, opencl), here, dtype == TARN_F32 ? 1e-6 : 1e-2);
        assert_int_equal(tarn_stats().fallbacks, 0);
    }
}

/* Windows side by side, of two columns and others, with rows and columns behind the last of them; and windows that
 * overlap. */
static void disjoint_windows_are_pooled(void **state)
{
    NEEDS_OPENCL();
    const tarn_pool2d_options twos = {.kernel = {2, 2}}, threes = {.kernel = {3, 3}}, flat = {.kernel = {1, 2}},
                              more = {.kernel = {2, 2}, .ceil_mode = true};
    check_pools(TARN_SHAPE(2, 3, 8, 10), TARN_F32, twos, false);
    check_pools(TARN_SHAPE(2, 3, 9, 12), TARN_BF16, twos, false);
    check_pools(TARN_SHAPE(2, 3, 9, 11), TARN_F32, twos, false);
    check_pools(TARN_SHAPE(2, 3, 9, 11), TARN_F32, more, false);
    check_pools(TARN_SHAPE(2, 3, 9, 12), TARN_F16, more, false);
    check_pools(TARN_SHAPE(2, 6, 8, 10), TARN_F32, twos, true);
    check_pools(TARN_SHAPE(2, 8, 8, 10), TARN_F32, twos, true); /* channels in fours */
    check_pools(TARN_SHAPE(2, 8, 9, 11), TARN_BF16, more, true);
    check_pools(TARN_SHAPE(2, 8, 9, 11), TARN_F32,
                (tarn_pool2d_options){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, true);
    check_pools(TARN_SHAPE(2, 3, 8, 12), TARN_F16, twos, false); /* two windows at once */
    check_pools(TARN_SHAPE(2, 3, 9, 12), TARN_F32, more, false);
    check_pools(TARN_SHAPE(2, 3, 10, 11), TARN_F32, threes, false);
    check_pools(TARN_SHAPE(2, 3, 5, 8), TARN_F32, flat, false);
    check_pools(TARN_SHAPE(2, 3, 8, 10), TARN_F32, (tarn_pool2d_options){.kernel = {2, 2}, .stride = {1, 2}}, false);
    check_pools(TARN_SHAPE(2, 3, 8, 10), TARN_F32, (tarn_pool2d_options){.kernel = {2, 2}, .padding = {1, 0}}, false);
}

static void windows_of_all_sizes_have_their_maxima(void **state)
{
    NEEDS_OPENCL();
    tarn_stats_reset();
    check_windows(opencl, false);
    assert_int_equal(tarn_stats().fallbacks, 0);
}

static void disjoint_windows_have_their_averages(void **state)
{
    NEEDS_OPENCL();
    tarn_stats_reset();
    check_averages(opencl, false);
    assert_int_equal(tarn_stats().fallbacks, 0);
}

/* The gradient of the largest along an axis; whole numbers, of which some are the largest together. */
static tarn_tensor *grad_of_max(tarn_tensor *x, int axis, tarn_device device)
{
    tarn_tensor *there = good(tarn_requires_grad(good(tarn_detach(tarn_to(x, device))), true)),
                *most = good(tarn_max(there, TARN_AXES(axis), false));
    tarn_seed(5);
    assert_true(tarn_backward_from(most, tarn_to(numbers(tarn_shape_of(most), tarn_dtype_of(x)), device), NULL));
    return good(tarn_to(tarn_grad(there), tarn_device_cpu()));
}

/* One element: a NaN, which equals nothing, wins where it is. */
static tarn_tensor *corner(tarn_tensor *x)
{
    return good(tarn_slice(tarn_slice(x, 0, 3, 4), tarn_rank(x) - 1, 7, 8));
}

static void check_largest(tarn_shape shape, int axis, tarn_dtype dtype)
{
    tarn_tensor *whole = good(tarn_cast(tarn_normal(shape, 0, 2, TARN_F32, tarn_device_cpu()), TARN_I32)),
                *x = good(tarn_cast(whole, dtype)), *at = corner(x);
    assert_true(tarn_copy(at, tarn_full(tarn_shape_of(at), (double)NAN, dtype, tarn_device_cpu())));
    tarn_tensor *here = grad_of_max(x, axis, tarn_device_cpu());
    tarn_stats_reset();
    /* no gradient is that */
    tarn_tensor *there = grad_of_max(x, axis, opencl),
                *beyond = good(tarn_full(TARN_SCALAR, 1e4, tarn_dtype_of(there), tarn_device_cpu()));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_close_for_size(tarn_where(tarn_eq(there, there), there, beyond),
                          tarn_where(tarn_eq(here, here), here, beyond), 1e-6);
    assert_true(isnan(tarn_item(tarn_sum(corner(there), TARN_ALL_AXES, false))));
}

/* Rows that a group holds, by few and many elements of a work-item, and one that it reads twice; too few rows, and
 * short ones; and rows of fours. */
static void ties_of_a_row_share_its_gradient(void **state)
{
    NEEDS_OPENCL();
    check_largest(TARN_SHAPE(300, 129), 1, TARN_F32);
    check_largest(TARN_SHAPE(256, 1001), 1, TARN_BF16);
    check_largest(TARN_SHAPE(257, 3001), 1, TARN_F32);
    check_largest(TARN_SHAPE(256, 5001), 1, TARN_F32);
    check_largest(TARN_SHAPE(255, 200), 1, TARN_F32);
    check_largest(TARN_SHAPE(300, 127), 1, TARN_F16);
    check_largest(TARN_SHAPE(300, 128), 1, TARN_F32);
    check_largest(TARN_SHAPE(256, 1000), 1, TARN_BF16);
    check_largest(TARN_SHAPE(256, 5000), 1, TARN_F16);
    check_largest(TARN_SHAPE(256, 8200), 1, TARN_F32);
}

/* Columns in fours, in one chunk and in several, of a matrix and between other axes; and columns that are none. */
static void ties_of_a_column_share_its_gradient(void **state)
{
    NEEDS_OPENCL();
    check_largest(TARN_SHAPE(300, 128), 0, TARN_F32);
    check_largest(TARN_SHAPE(63, 132), 0, TARN_BF16);
    check_largest(TARN_SHAPE(5, 131, 40), 1, TARN_F16);
    check_largest(TARN_SHAPE(40, 131, 8), 1, TARN_F32);
    check_largest(TARN_SHAPE(300, 130), 0, TARN_F32);
    check_largest(TARN_SHAPE(64, 64), 0, TARN_F32);
}

/* What `count` indices into 7 rows add: whole numbers, which have one sum in any order. Twice, into a fresh gradient
 * and on top of it; then by lines of their own. */
static tarn_tensor *sums_at(const int64_t *which, int64_t count, tarn_tensor *source, tarn_device device)
{
    tarn_tensor *x = good(tarn_requires_grad(tarn_zeros(TARN_SHAPE(7, 33), TARN_F32, device), true)),
                *index = good(tarn_from_i64(which, TARN_SHAPE(count), device));
    tarn_tensor *there = good(tarn_to(source, device)),
                *lines = good(
                    tarn_contiguous(tarn_expand(tarn_reshape(index, TARN_SHAPE(count, 1)), TARN_SHAPE(count, 33))));
    for (int i = 0; i < 2; i++)
        assert_true(tarn_backward_from(good(tarn_index_select(x, 0, index)), there, NULL));
    return good(tarn_to(tarn_scatter_add(tarn_grad(x), 0, lines, there), tarn_device_cpu()));
}

/* Stretches of the same index that end with a piece of 32, just before or behind it, or go on over several. */
static void frequent_indices_are_added_in_pieces(void **state)
{
    NEEDS_OPENCL();
    static const int64_t counts[] = {1, 31, 32, 33, 64, 65, 96, 300, 700};
    int64_t which[700];
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (int pattern = 0; pattern < 4; pattern++) {
            for (int i = 0; i < 700; i++)
                which[i] = pattern == 0   ? 4
                           : pattern == 1 ? i % 7
                           : pattern == 2 ? (i % 3 ? 4 : i % 7)
                                          : (i * i) % 5 + 2 * (i > 60);
            tarn_tensor *source = good(tarn_cast(numbers(TARN_SHAPE(counts[c], 33), TARN_I32), TARN_F32));
            tarn_tensor *here = sums_at(which, counts[c], source, tarn_device_cpu());
            assert_close_for_size(sums_at(which, counts[c], source, opencl), here, 0);
        }
}

/* ---- broadcasts -------------------------------------------------------------------------------------------------- */

static tarn_tensor *plus_row(tarn_tensor *x)
{
    return tarn_add(x, tarn_slice(tarn_slice(x, 0, 1, 2), 1, 1, 2));
}

static tarn_tensor *by_column(tarn_tensor *x)
{
    return tarn_mul(x, tarn_slice(x, 2, 3, 4));
}

static tarn_tensor *by_both(tarn_tensor *x)
{
    return tarn_where(tarn_gt(x, tarn_slice(x, 2, 3, 4)), x, tarn_slice(x, 0, 0, 1));
}

static tarn_tensor *doubled(tarn_tensor *x)
{
    return tarn_add(x, x);
}

static void elements_are_broadcast(void **state)
{
    NEEDS_OPENCL();
    for (int i = 0; i < 3; i++) {
        const tarn_dtype dtype = (tarn_dtype[]){TARN_F32, TARN_BF16, TARN_I32}[i];
        compare(plus_row, TARN_SHAPE(3, 5, 40), dtype);
        compare(by_column, TARN_SHAPE(3, 5, 40), dtype);
        compare(by_both, TARN_SHAPE(3, 5, 40), dtype);
        compare(by_column, TARN_SHAPE(3, 5, 41), dtype);
    }
    compare(doubled, TARN_SHAPE(3, 5, 400), TARN_BF16);
    compare(plus_row, TARN_SHAPE(3, 5, 4), TARN_F16);
}

/* The gradients of both operands in one launch. */
static void gradients_of_a_broadcast_are_the_same(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = numbers(TARN_SHAPE(30, 40), TARN_F32), *w = numbers(TARN_SHAPE(30, 40), TARN_F32);
    tarn_tensor *grads[2][2];
    for (int i = 0; i < 2; i++) {
        tarn_device device = i == 0 ? tarn_device_cpu() : opencl;
        tarn_tensor *a = good(tarn_to(tarn_detach(x), device)), *b = good(tarn_to(tarn_detach(w), device));
        good(tarn_requires_grad(a, true));
        good(tarn_requires_grad(b, true));
        tarn_tensor *up = good(tarn_expand(tarn_slice(tarn_detach(b), 1, 5, 6), TARN_SHAPE(30, 40)));
        assert_true(tarn_backward_from(good(tarn_mul(a, b)), up, NULL));
        grads[i][0] = good(tarn_to(tarn_grad(a), tarn_device_cpu()));
        grads[i][1] = good(tarn_to(tarn_grad(b), tarn_device_cpu()));
    }
    assert_close_for_size(grads[1][0], grads[0][0], 0);
    assert_close_for_size(grads[1][1], grads[0][1], 0);
}

/* The gradient of one number for each row is the sum over it. Whole numbers, which have one sum in any order. */
static void check_scaled(int64_t rows, int64_t length, tarn_dtype dtype)
{
    tarn_tensor *all[3] = {numbers(TARN_SHAPE(rows, length), TARN_I32), numbers(TARN_SHAPE(rows, 1), TARN_I32),
                           numbers(TARN_SHAPE(rows, length), TARN_I32)},
                *grads[2][2];
    for (int i = 0; i < 2; i++) {
        tarn_device device = i == 0 ? tarn_device_cpu() : opencl;
        tarn_tensor *there[3];
        for (int k = 0; k < 3; k++)
            there[k] = good(tarn_to(
                tarn_cast(tarn_mod(all[k], tarn_full(TARN_SCALAR, 3, TARN_I32, tarn_device_cpu())), dtype), device));
        good(tarn_requires_grad(there[0], true));
        good(tarn_requires_grad(there[1], true));
        tarn_stats_reset();
        assert_true(tarn_backward_from(good(tarn_mul(there[0], there[1])), there[2], NULL));
        assert_int_equal(tarn_stats().fallbacks, 0);
        for (int k = 0; k < 2; k++)
            grads[i][k] = good(tarn_to(tarn_grad(there[k]), tarn_device_cpu()));
    }
    for (int k = 0; k < 2; k++)
        assert_close_for_size(grads[1][k], grads[0][k], 0);
}

/* Rows of fours, and rows that are too short, too few or none of fours. */
static void rows_are_scaled(void **state)
{
    NEEDS_OPENCL();
    check_scaled(256, 256, TARN_F32);
    check_scaled(300, 1100, TARN_BF16);
    check_scaled(256, 5000, TARN_F32);
    check_scaled(256, 258, TARN_F32);
    check_scaled(255, 256, TARN_F16);
    check_scaled(256, 128, TARN_F32);
}

/* Rows without elements are chosen, and have a gradient without elements. */
static void empty_rows_are_gathered(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_requires_grad(tarn_zeros(TARN_SHAPE(5, 0), TARN_F32, opencl), true));
    tarn_tensor *y = good(tarn_index_select(x, 0, tarn_from_i64((const int64_t[]){1, 4, 1}, TARN_SHAPE(3), opencl)));
    assert_true(tarn_backward_from(y, good(tarn_zeros(TARN_SHAPE(3, 0), TARN_F32, opencl)), NULL));
    assert_int_equal(tarn_size(good(tarn_grad(x)), 0), 5);
}

int main(void)
{
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 0);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(axes_are_transposed),
        ON_OPENCL(adjacent_elements_move_as_vectors),
        ON_OPENCL(slices_are_padded_back),
        ON_OPENCL(rows_are_gathered),
        ON_OPENCL(pairs_are_sorted),
        ON_OPENCL(frequent_indices_are_added_in_pieces),
        ON_OPENCL(ties_of_a_row_share_its_gradient),
        ON_OPENCL(ties_of_a_column_share_its_gradient),
        ON_OPENCL(disjoint_windows_are_pooled),
        ON_OPENCL(windows_of_all_sizes_have_their_maxima),
        ON_OPENCL(disjoint_windows_have_their_averages),
        ON_OPENCL(empty_rows_are_gathered),
        ON_OPENCL(elements_are_broadcast),
        ON_OPENCL(gradients_of_a_broadcast_are_the_same),
        ON_OPENCL(rows_are_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

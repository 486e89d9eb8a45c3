/* test_transformer.c: fused operations of language models against the operations they fuse: residual_norm,
 * linear_cross_entropy, rope. TARN_TEST_DEVICE names the device; default: the CPU. */
#include "ops/internal.h"
#include "support/check.h"

static tarn_device device;

/* The largest difference, as a share of the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 0;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return size > 0 ? most / size : most;
}

static tarn_tensor *leaf(tarn_shape shape, double deviation, tarn_dtype dtype)
{
    return tarn_requires_grad(good(tarn_normal(shape, 0, deviation, dtype, device)), true);
}

/* ---- residual_norm ----------------------------------------------------------------------------------------------- */

enum { X, DELTA, WEIGHT, BIAS, OPERANDS };

static void make_operands(tarn_dtype dtype, bool rms, tarn_tensor **o)
{
    tarn_seed(8);
    o[X] = leaf(TARN_SHAPE(9, 130), 1, dtype);
    o[DELTA] = leaf(TARN_SHAPE(9, 130), 1, dtype);
    o[WEIGHT] = leaf(TARN_SHAPE(130), 1, dtype);
    o[BIAS] = rms ? NULL : leaf(TARN_SHAPE(130), 1, dtype);
}

/* The norm and the sum have the bits of the two operations; gradients of x and delta are rounded once, where the two
 * would round twice. */
static void check_residual_norm(tarn_dtype dtype, bool rms, double tolerance)
{
    tarn_tensor *one[OPERANDS], *other[OPERANDS], *sum = NULL;
    make_operands(dtype, rms, one);
    make_operands(dtype, rms, other);
    tarn_tensor *norm = good(tarn_residual_norm(one[X], one[DELTA], one[WEIGHT], one[BIAS], rms, 1e-5, &sum));
    tarn_tensor *added = good(tarn_add(other[X], other[DELTA]));
    tarn_tensor *steps =
        good(rms ? tarn_rmsnorm(added, other[WEIGHT], 1e-5) : tarn_layernorm(added, other[WEIGHT], other[BIAS], 1e-5));
    assert_true(apart(good(sum), added) == 0);
    assert_true(apart(norm, steps) <= (device.backend == tarn_device_cpu().backend ? 0 : tolerance));
    tarn_tensor *g = good(tarn_normal_like(norm, 0, 1)), *through = good(tarn_normal_like(norm, 0, 1));
    tarn_tensor *total = tarn_sum(tarn_add(tarn_mul(norm, g), tarn_mul(sum, through)), TARN_ALL_AXES, false);
    tarn_tensor *total_of_steps =
        tarn_sum(tarn_add(tarn_mul(steps, g), tarn_mul(added, through)), TARN_ALL_AXES, false);
    assert_true(tarn_backward(total) && tarn_backward(total_of_steps));
    for (int i = 0; i < (rms ? BIAS : OPERANDS); i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) <= tolerance);
    assert_ok();
}

static void residual_norm_is_a_sum_and_its_norm(void **state)
{
    (void)state;
    for (int rms = 0; rms < 2; rms++) {
        check_residual_norm(TARN_F64, rms, 1e-14);
        check_residual_norm(TARN_F32, rms, 1e-6);
        check_residual_norm(TARN_BF16, rms, 1e-2);
        check_residual_norm(TARN_F16, rms, 2e-3);
    }
}

static void residual_norm_with_one_tensor_twice(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(TARN_SHAPE(3, 40), 1, TARN_F32), *sum = NULL;
    tarn_tensor *norm = good(tarn_residual_norm(x, x, NULL, NULL, true, 1e-5, &sum));
    tarn_backward_options keep = {.retain = true};
    assert_true(tarn_backward_from(norm, tarn_ones_like(norm), &keep) &&
                tarn_backward_from(sum, tarn_ones_like(sum), NULL));
    tarn_tensor *other = tarn_requires_grad(good(tarn_clone(tarn_detach(x))), true);
    tarn_tensor *steps = good(tarn_rmsnorm(tarn_add(other, other), NULL, 1e-5));
    assert_true(tarn_backward_from(steps, tarn_ones_like(steps), NULL));
    assert_true(apart(tarn_grad(x), good(tarn_add(tarn_grad(other), tarn_scalar(2)))) < 1e-6);
}

/* ---- residual_norm of what is dropped out ------------------------------------------------------------------------ */

typedef struct dropping {
    tarn_tensor *x, *delta, *weight, *bias, *norm, *sum;
} dropping;

static dropping drop_and_add(tarn_shape shape, tarn_dtype dtype, double p, bool at_once)
{
    int64_t length = shape.size[shape.rank - 1];
    tarn_seed(12);
    dropping d = {leaf(shape, 1, dtype),
                  leaf(shape, 1, dtype),
                  leaf(TARN_SHAPE(length), 1, dtype),
                  leaf(TARN_SHAPE(length), 1, dtype),
                  NULL,
                  NULL};
    tarn_seed(13);
    d.norm = at_once ? tarn__dropout_residual_norm(d.x, d.delta, p, d.weight, d.bias, false, 0, 1e-5, &d.sum)
                     : tarn_residual_norm(d.x, tarn_dropout(d.delta, p), d.weight, d.bias, false, 1e-5, &d.sum);
    good(d.norm);
    return d;
}

/* Every bit of results and gradients, with both gradients, with that of the norm alone and with that of the sum alone.
 */
static void check_dropping(tarn_shape shape, tarn_dtype dtype, double p)
{
    for (int which = 1; which < 4; which++) {
        dropping one = drop_and_add(shape, dtype, p, true), other = drop_and_add(shape, dtype, p, false);
        tarn_tensor *g = good(tarn_normal_like(one.norm, 0, 1)), *through = good(tarn_normal_like(one.norm, 0, 1));
        assert_true(apart(one.sum, other.sum) == 0 && apart(one.norm, other.norm) == 0);
        for (int fused = 0; fused < 2; fused++) {
            dropping *d = fused ? &one : &other;
            tarn_backward_options keep = {.retain = which == 3};
            assert_true(!(which & 1) || tarn_backward_from(d->norm, g, &keep));
            assert_true(!(which & 2) || tarn_backward_from(d->sum, through, NULL));
        }
        tarn_tensor *a[] = {one.x, one.delta, one.weight, one.bias},
                    *b[] = {other.x, other.delta, other.weight, other.bias};
        for (int i = 0; i < (which == 2 ? 2 : 4); i++)
            if (apart(good(tarn_grad(a[i])), good(tarn_grad(b[i]))) != 0)
                fail_msg("dtype %d, rows of %lld: gradient %d differs", (int)dtype,
                         (long long)shape.size[shape.rank - 1], i);
    }
}

static void residual_norm_drops_out_as_dropout_does(void **state)
{
    (void)state;
    static const int64_t lengths[] = {7, 32, 33, 130, 384, 384, 512, 768, 1000, 2056, 9000, 40000};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (size_t k = 0; k < sizeof(dtypes) / sizeof(dtypes[0]); k++)
            check_dropping(TARN_SHAPE(3, 5, lengths[i]), dtypes[k], i % 2 ? 0.3 : 0.2);
    check_dropping(TARN_SHAPE(9, 384), TARN_BF16, 0.3);
}

static void gradients_come_together_before_what_was_dropped_out(void **state)
{
    (void)state;
    tarn_tensor *total[2], *slope[2];
    for (int fused = 0; fused < 2; fused++) { /* both gradients at once, as in a model */
        dropping d = drop_and_add(TARN_SHAPE(6, 5, 384), TARN_BF16, 0.3, fused);
        total[fused] =
            good(tarn_sum(tarn_add(tarn_mul(d.norm, tarn_scalar(0.7)), tarn_square(d.sum)), TARN_ALL_AXES, false));
        assert_true(tarn_backward(total[fused]));
        slope[fused] = good(tarn_grad(d.delta));
    }
    assert_true(apart(total[0], total[1]) == 0 && apart(slope[0], slope[1]) == 0);
}

/* ---- linear_cross_entropy ---------------------------------------------------------------------------------------- */

static void check_linear_loss(tarn_dtype dtype, const tarn_cross_entropy_options *o, double tolerance)
{
    int64_t targets[14];
    for (int i = 0; i < 14; i++)
        targets[i] = i * 11 % 50;
    tarn_seed(4);
    tarn_tensor *x = leaf(TARN_SHAPE(2, 7, 24), 1, dtype), *weight = leaf(TARN_SHAPE(50, 24), 0.3, dtype);
    tarn_tensor *target = good(tarn_from_i64(targets, TARN_SHAPE(2, 7), device));
    tarn_tensor *x2 = tarn_requires_grad(good(tarn_clone(tarn_detach(x))), true),
                *weight2 = tarn_requires_grad(good(tarn_clone(tarn_detach(weight))), true);
    tarn_tensor *fused = good(tarn_linear_cross_entropy(x, weight, target, o));
    tarn_tensor *steps = good(tarn_cross_entropy(tarn_linear_apply(x2, weight2, NULL), target, o));
    assert_int_equal(tarn_dtype_of(fused), tarn_dtype_of(steps));
    assert_true(apart(fused, steps) < tolerance);
    tarn_tensor *g = good(tarn_normal_like(fused, 0, 1));
    for (int twice = 0; twice < 2; twice++) { /* a second backward adds the same again */
        tarn_backward_options keep = {.retain = twice == 0};
        assert_true(tarn_backward_from(fused, g, &keep) && tarn_backward_from(steps, g, &keep));
    }
    assert_true(apart(tarn_grad(x), tarn_grad(x2)) < tolerance);
    assert_true(apart(tarn_grad(weight), tarn_grad(weight2)) < tolerance);
    assert_ok();
}

static void linear_cross_entropy_is_both_at_once(void **state)
{
    (void)state;
    const int64_t ignored = 22;
    static const tarn_dtype dtypes[] = {TARN_F64, TARN_F32, TARN_BF16, TARN_F16};
    static const double tolerance[] = {1e-13, 1e-5, 2e-2, 4e-3};
    for (int i = 0; i < 4; i++)
        for (int reduction = TARN_REDUCE_MEAN; reduction <= TARN_REDUCE_NONE; reduction++) {
            check_linear_loss(dtypes[i], &(tarn_cross_entropy_options){.reduction = (tarn_reduction)reduction},
                              tolerance[i]);
            check_linear_loss(dtypes[i],
                              &(tarn_cross_entropy_options){.reduction = (tarn_reduction)reduction,
                                                            .label_smoothing = 0.1,
                                                            .ignore_index = &ignored},
                              tolerance[i]);
            check_linear_loss(dtypes[i],
                              &(tarn_cross_entropy_options){
                                  .reduction = (tarn_reduction)reduction, .ignore_index = &ignored, .softcap = 2},
                              tolerance[i]);
        }
}

/* More logits than are made at once: the sum of two halves, and never all logits in memory, with a soft cap either. */
static void check_chunks(int64_t rows, double softcap)
{
    const int64_t words = (int64_t)1 << 21, half = rows / 2,
                  targets[] = {5, 1, 2097151, 77, 1000000, 0, 3, 8, 2097150, 9, 1000001, 6};
    tarn_seed(6);
    tarn_tensor *x = leaf(TARN_SHAPE(rows, 1), 1, TARN_F64), *weight = leaf(TARN_SHAPE(words, 1), 1, TARN_F64);
    tarn_tensor *target = good(tarn_from_i64(targets, TARN_SHAPE(rows), device));
    tarn_cross_entropy_options sum = {.reduction = TARN_REDUCE_SUM, .softcap = softcap};
    tarn_stats_reset();
    int64_t before = tarn_memory_of(device).used;
    tarn_tensor *whole = good(tarn_linear_cross_entropy(x, weight, target, &sum));
    assert_true(tarn_memory_of(device).peak_used - before < rows * words * 8);
    assert_true(tarn_backward(whole));
    tarn_tensor *gx = good(tarn_clone(tarn_grad(x))), *gweight = good(tarn_clone(tarn_grad(weight)));
    tarn_zero_grad(x);
    tarn_zero_grad(weight);
    double total = 0;
    for (int64_t begin = 0; begin < rows; begin += half) {
        tarn_tensor *part = good(tarn_linear_cross_entropy(tarn_slice(x, 0, begin, begin + half), weight,
                                                           tarn_slice(target, 0, begin, begin + half), &sum));
        total += tarn_item(part);
        assert_true(tarn_backward(part));
    }
    assert_true(fabs(tarn_item(whole) - total) < 1e-9);
    assert_true(apart(gx, tarn_grad(x)) < 1e-12 && apart(gweight, tarn_grad(weight)) < 1e-12);
}

static void linear_cross_entropy_goes_in_chunks(void **state)
{
    (void)state;
    if (device.backend != tarn_device_cpu().backend)
        skip();
    check_chunks(6, 0);
    check_chunks(12, 3);
}

/* Vocabularies in packs, odd ones, and rows that do not fit in a multiprocessor's memory: with a target that is left
 * out, and smoothed labels. */
static void vocabularies_of_any_size_agree_with_f64(void **state)
{
    (void)state;
    const struct {
        int64_t classes;
        tarn_dtype dtype;
        double tolerance;
    } cases[] = {{24, TARN_F32, 2e-6},    {1000, TARN_F32, 2e-6},   {1001, TARN_F32, 2e-6}, {30000, TARN_F32, 2e-6},
                 {4096, TARN_BF16, 2e-2}, {50304, TARN_BF16, 2e-2}, {4096, TARN_F16, 3e-3}, {60000, TARN_F16, 3e-3}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t C = cases[i].classes, ignored = 3, numbers[6] = {0, C - 1, 3, C / 2, 7, C - 2};
        tarn_seed(31);
        tarn_tensor *x = leaf(TARN_SHAPE(6, 16), 1, cases[i].dtype),
                    *weight = leaf(TARN_SHAPE(C, 16), 0.5, cases[i].dtype);
        tarn_tensor *wide_x = tarn_requires_grad(good(tarn_detach(tarn_cast(x, TARN_F64))), true);
        tarn_tensor *wide_weight = tarn_requires_grad(good(tarn_detach(tarn_cast(weight, TARN_F64))), true);
        tarn_tensor *target = good(tarn_from(numbers, TARN_SHAPE(6), TARN_I64, device));
        tarn_cross_entropy_options o = {
            .ignore_index = &ignored, .label_smoothing = i % 2 ? 0.1 : 0, .softcap = i / 2 % 2 ? 5 : 0};
        tarn_tensor *loss = good(tarn_linear_cross_entropy(x, weight, target, &o));
        tarn_tensor *wide =
            good(tarn_cross_entropy(tarn_matmul(wide_x, tarn_transpose(wide_weight, 0, 1)), target, &o));
        assert_true(tarn_backward(loss) && tarn_backward(wide));
        assert_true(apart(loss, wide) < cases[i].tolerance &&
                    apart(tarn_grad(x), tarn_grad(wide_x)) < cases[i].tolerance &&
                    apart(tarn_grad(weight), tarn_grad(wide_weight)) < cases[i].tolerance);
    }
    assert_ok();
}

static void no_gradients_are_made_that_nobody_wants(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(5, 8), 0, 1, TARN_F32, device)),
                *weight = leaf(TARN_SHAPE(12, 8), 1, TARN_F32);
    tarn_tensor *target = good(tarn_from_i64((const int64_t[]){1, 2, 3, 4, 11}, TARN_SHAPE(5), device));
    tarn_no_grad_open();
    tarn_stats_reset();
    good(tarn_linear_cross_entropy(x, weight, target, NULL));
    assert_int_equal(tarn_stats().kernels, 3); /* product, losses, mean */
    tarn_stats_reset();
    good(tarn_linear_cross_entropy(x, weight, target, &(tarn_cross_entropy_options){.softcap = 30}));
    assert_int_equal(tarn_stats().kernels, 6); /* and the cap: two factors, tanh */
    tarn_no_grad_close();
    tarn_tensor *loss = good(tarn_linear_cross_entropy(x, weight, target, NULL));
    assert_true(tarn_backward(loss));
    assert_non_null(tarn_grad(weight));
    assert_null(tarn_grad(x));
    tarn_tensor *wrong = good(tarn_from_i64((const int64_t[]){1, 2, 3, 4, 12}, TARN_SHAPE(5), device));
    tarn_linear_cross_entropy(x, weight, wrong, NULL);
    tarn_synchronize(device);
    assert_error_about(TARN_ERROR_ARGUMENT, "linear_cross_entropy", "12");
}

/* ---- rope -------------------------------------------------------------------------------------------------------- */

/* A vector keeps its length, and products of two turned vectors depend on how far they are apart. */
static void rope_makes_products_relative(void **state)
{
    (void)state;
    tarn_tensor *a = good(tarn_normal(TARN_SHAPE(1, 1, 1, 16), 0, 1, TARN_F64, device)),
                *b = good(tarn_normal(TARN_SHAPE(1, 1, 1, 16), 0, 1, TARN_F64, device));
    double product[2];
    for (int i = 0; i < 2; i++) {
        tarn_tensor *at = good(tarn_from_i64((const int64_t[]){1000 * i + 3}, TARN_SHAPE(1), device));
        tarn_tensor *later = good(tarn_from_i64((const int64_t[]){1000 * i + 10}, TARN_SHAPE(1), device));
        product[i] = tarn_item(
            good(tarn_sum(tarn_mul(tarn_rope(a, at, NULL), tarn_rope(b, later, NULL)), TARN_ALL_AXES, false)));
    }
    assert_true(fabs(product[0] - product[1]) < 1e-11);
}

static void rope_turns_pairs_by_their_angle(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_reshape(tarn_to(vector(1, 2, 3, 4), device), TARN_SHAPE(1, 1, 1, 4)));
    tarn_tensor *three = good(tarn_from_i64((const int64_t[]){3}, TARN_SHAPE(1), device));
    double c = cos(3), s = sin(3), d = cos(0.03), t = sin(0.03);
    assert_values(tarn_rope(x, three, NULL), 1e-6, c - 3 * s, 2 * d - 4 * t, 3 * c + s, 4 * d + 2 * t);
    assert_values(tarn_rope(x, three, &(tarn_rope_options){.interleaved = true}), 1e-6, c - 2 * s, 2 * c + s,
                  3 * d - 4 * t, 4 * d + 3 * t);
    assert_values(tarn_rope(x, three, &(tarn_rope_options){.dims = 2}), 1e-6, c - 2 * s, 2 * c + s, 3, 4);
    assert_values(tarn_rope(x, NULL, NULL), 1e-7, 1, 2, 3, 4);
}

/* longrope divides by a pair's own factors, short or long by the length, and multiplies by its magnitude. */
static void rope_divides_pairs_by_their_factors(void **state)
{
    (void)state;
    static const float close[] = {2, 5}, far[] = {4, 10};
    tarn_tensor *x = good(tarn_reshape(tarn_to(vector(1, 2, 3, 4), device), TARN_SHAPE(1, 1, 1, 4)));
    tarn_tensor *three = good(tarn_from_i64((const int64_t[]){3}, TARN_SHAPE(1), device));
    tarn_rope_options o = {.pair_factors = close, .pair_factor_count = 2};
    double c = cos(1.5), s = sin(1.5), d = cos(0.006), t = sin(0.006);
    assert_values(tarn_rope(x, three, &o), 1e-6, c - 3 * s, 2 * d - 4 * t, 3 * c + s, 4 * d + 2 * t);
    o.long_pair_factors = far;
    o.scaling = TARN_ROPE_LONGROPE, o.factor = 16, o.original_context = 256, o.length = 257;
    double m = sqrt(1.5);
    c = m * cos(0.75), s = m * sin(0.75), d = m * cos(0.003), t = m * sin(0.003);
    assert_values(tarn_rope(x, three, &o), 1e-6, c - 3 * s, 2 * d - 4 * t, 3 * c + s, 4 * d + 2 * t);
    o.length = 256, o.attention_factor = 2;
    c = 2 * cos(1.5), s = 2 * sin(1.5), d = 2 * cos(0.006), t = 2 * sin(0.006);
    assert_values(tarn_rope(x, three, &o), 1e-6, c - 3 * s, 2 * d - 4 * t, 3 * c + s, 4 * d + 2 * t);
}

/* [B, H, T, D] with axis 2 is [B, T, H, D] permuted. */
static void rope_takes_either_order_of_axes(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 5, 3, 8), 0, 1, TARN_F32, device));
    tarn_tensor *turned = good(tarn_permute(tarn_rope(x, NULL, NULL), TARN_AXES(0, 2, 1, 3)));
    assert_true(apart(good(tarn_rope(tarn_permute(x, TARN_AXES(0, 2, 1, 3)), NULL, &(tarn_rope_options){.axis = 2})),
                      turned) == 0);
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(residual_norm_is_a_sum_and_its_norm),
        in_scope(residual_norm_with_one_tensor_twice),
        in_scope(residual_norm_drops_out_as_dropout_does),
        in_scope(gradients_come_together_before_what_was_dropped_out),
        in_scope(linear_cross_entropy_is_both_at_once),
        in_scope(linear_cross_entropy_goes_in_chunks),
        in_scope(vocabularies_of_any_size_agree_with_f64),
        in_scope(no_gradients_are_made_that_nobody_wants),
        in_scope(rope_makes_products_relative),
        in_scope(rope_turns_pairs_by_their_angle),
        in_scope(rope_takes_either_order_of_axes),
        in_scope(rope_divides_pairs_by_their_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_loss.c: cross entropy against naive loops, and the composed losses. */
#include "../support/check.h"

static tarn_tensor *normal(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_normal(shape, 0, 2, dtype, tarn_device_cpu()));
}

#define ROWS 12
#define IGNORED -100

static const int64_t targets[ROWS] = {0, 3, 6, IGNORED, 2, 2, 1, 5, IGNORED, 4, 6, 0};

static tarn_tensor *target_tensor(void)
{
    return good(tarn_from_i64(targets, TARN_SHAPE(ROWS), tarn_device_cpu()));
}

/* The loss of each row. */
static void losses_by_hand(const double *x, int64_t classes, double smoothing, double *loss)
{
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, mean = 0;
        for (int64_t i = 0; i < classes; i++) {
            sum += exp(x[r * classes + i]);
            mean += x[r * classes + i] / (double)classes;
        }
        loss[r] = targets[r] == IGNORED
                      ? 0
                      : (1 - smoothing) * (log(sum) - x[r * classes + targets[r]]) + smoothing * (log(sum) - mean);
    }
}

static void cross_entropy_counts_targets_smooths_labels_and_reduces(void **state)
{
    (void)state;
    static const double tolerance[] = {1e-6, 1e-14, 1e-6, 1e-6}; /* the loss of 16-bit logits is f32 */
    int64_t ignore = IGNORED;
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
        for (int smooth = 0; smooth < 2; smooth++) {
            tarn_tensor *logits = normal(TARN_SHAPE(ROWS, 7), dtype);
            double *x = values_of(logits), loss[ROWS], sum = 0;
            losses_by_hand(x, 7, smooth * 0.3, loss);
            for (int r = 0; r < ROWS; r++)
                sum += loss[r];
            tarn_cross_entropy_options options = {.label_smoothing = smooth * 0.3, .ignore_index = &ignore};
            tarn_tensor *mean = good(tarn_cross_entropy(logits, target_tensor(), &options));
            assert_int_equal(tarn_dtype_of(mean), dtype == TARN_F64 ? TARN_F64 : TARN_F32);
            assert_values(mean, tolerance[dtype], sum / 10);
            options.reduction = TARN_REDUCE_SUM;
            assert_values(good(tarn_cross_entropy(logits, target_tensor(), &options)), tolerance[dtype], sum);
            options.reduction = TARN_REDUCE_NONE;
            check_values(good(tarn_cross_entropy(logits, target_tensor(), &options)), loss, ROWS, tolerance[dtype],
                         __FILE__, __LINE__);
            free(x);
        }
}

static void cross_entropy_takes_i32_targets_any_rank_and_any_layout(void **state)
{
    (void)state;
    int32_t few[] = {0, 2, 1, 1, 0, 2};
    tarn_tensor *target = good(tarn_from_i32(few, TARN_SHAPE(2, 3), tarn_device_cpu()));
    tarn_tensor *logits = good(tarn_transpose(normal(TARN_SHAPE(3, 2, 5), TARN_F64), 0, 1));
    tarn_cross_entropy_options none = {.reduction = TARN_REDUCE_NONE};
    tarn_tensor *each = good(tarn_cross_entropy(logits, target, &none));
    assert_shape(each, 2, 3);
    tarn_tensor *picked = good(
        tarn_gather(good(tarn_log_softmax(logits, 2)), 2, good(tarn_unsqueeze(good(tarn_cast(target, TARN_I64)), 2))));
    assert_close(each, good(tarn_neg(good(tarn_squeeze(picked, 2)))), 1e-14);
    assert_close(good(tarn_cross_entropy(logits, target, NULL)), good(tarn_mean(each, TARN_ALL_AXES, false)), 1e-14);
    tarn_tensor *one = good(tarn_reshape(good(tarn_slice(good(tarn_slice(target, 0, 0, 1)), 1, 1, 2)), TARN_SCALAR));
    assert_values(good(tarn_cross_entropy(vector(0, 0, 0, 0), one, NULL)), 1e-6, log(4));
}

static tarn_tensor *cross_entropy(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count;
    return tarn_cross_entropy(in[0], target_tensor(), ctx);
}

static void gradients_of_cross_entropy_agree_with_differences(void **state)
{
    (void)state;
    int64_t ignore = IGNORED;
    for (int reduction = TARN_REDUCE_MEAN; reduction <= TARN_REDUCE_NONE; reduction++)
        for (int smooth = 0; smooth < 3; smooth++) {
            tarn_cross_entropy_options options = {
                .label_smoothing = smooth * 0.5, .ignore_index = &ignore, .reduction = (tarn_reduction)reduction};
            tarn_tensor *x = good(tarn_requires_grad(normal(TARN_SHAPE(ROWS, 7), TARN_F64), true));
            tarn_gradcheck(cross_entropy, &options, &x, 1, NULL);
            assert_ok();
        }
}

static void a_mean_over_no_targets_is_nan_with_a_gradient_of_zero(void **state)
{
    (void)state;
    int64_t ignore = IGNORED, all[] = {IGNORED, IGNORED};
    tarn_tensor *x = good(tarn_requires_grad(good(tarn_ones(TARN_SHAPE(2, 3), TARN_F32, tarn_device_cpu())), true));
    tarn_tensor *target = good(tarn_from_i64(all, TARN_SHAPE(2), tarn_device_cpu()));
    tarn_cross_entropy_options options = {.ignore_index = &ignore};
    tarn_tensor *loss = good(tarn_cross_entropy(x, target, &options));
    assert_values(loss, 0, NAN);
    assert_true(tarn_backward(loss));
    assert_values(good(tarn_grad(x)), 0, 0, 0, 0, 0, 0, 0);
}

static void a_target_outside_the_classes_is_an_error_that_names_it(void **state)
{
    (void)state;
    int64_t high[] = {1, 7, 9}, low[] = {0, -1, 0};
    tarn_tensor *logits = normal(TARN_SHAPE(3, 7), TARN_F32);
    assert_null(tarn_cross_entropy(logits, good(tarn_from_i64(high, TARN_SHAPE(3), tarn_device_cpu())), NULL));
    assert_error(TARN_ERROR_ARGUMENT, "cross_entropy: index 7 is outside the axis, which has 7 elements");
    assert_null(tarn_cross_entropy(logits, good(tarn_from_i64(low, TARN_SHAPE(3), tarn_device_cpu())), NULL));
    assert_error(TARN_ERROR_ARGUMENT, "index -1");
}

static void wrong_operands_and_options_are_errors(void **state)
{
    (void)state;
    tarn_tensor *logits = normal(TARN_SHAPE(ROWS, 7), TARN_F32);
    assert_null(tarn_cross_entropy(logits, vector(1, 2), NULL));
    assert_error(TARN_ERROR_DTYPE, "cross_entropy: target is f32");
    assert_null(tarn_cross_entropy(normal(TARN_SHAPE(5, 7), TARN_F32), target_tensor(), NULL));
    assert_error(TARN_ERROR_SHAPE, "logits [5, 7] and target [12] do not fit");
    tarn_cross_entropy_options options = {.label_smoothing = 2};
    assert_null(tarn_cross_entropy(logits, target_tensor(), &options));
    assert_error(TARN_ERROR_ARGUMENT, "label_smoothing 2");
    assert_null(tarn_mse_loss(vector(1, 2, 3), vector(1, 2)));
    assert_error(TARN_ERROR_SHAPE, "mse_loss: [3] and [2] do not broadcast");
    assert_null(tarn_huber_loss(vector(1, 2), vector(1, 2), 0));
    assert_error(TARN_ERROR_ARGUMENT, "huber_loss: delta 0 is not positive");
    assert_null(tarn_l1_loss(NULL, vector(1)));
    assert_error(TARN_ERROR_ARGUMENT, "l1_loss: the prediction is NULL");
}

static void options_of_an_older_caller_have_defaults_for_what_they_lack(void **state)
{
    (void)state;
    tarn_cross_entropy_options options = {.label_smoothing = 0.1, .reduction = TARN_REDUCE_NONE};
    int64_t zeros[ROWS] = {0};
    tarn_tensor *target = good(tarn_from_i64(zeros, TARN_SHAPE(ROWS), tarn_device_cpu()));
    tarn_tensor *y =
        good(tarn_cross_entropy_sized(normal(TARN_SHAPE(ROWS, 7), TARN_F32), target, &options, sizeof(double)));
    assert_int_equal(tarn_rank(y), 0);
}

/* ---- composed losses --------------------------------------------------------------------------------------------- */

static void composed_losses_are_the_means_of_their_formulas(void **state)
{
    (void)state;
    tarn_tensor *p = vector(0, 1, 2, -3), *t = vector(0.5, 1, 0, 1);
    assert_values(good(tarn_mse_loss(p, t)), 1e-6, (0.25 + 0 + 4 + 16) / 4);
    assert_values(good(tarn_l1_loss(p, t)), 1e-6, (0.5 + 0 + 2 + 4) / 4);
    assert_values(good(tarn_huber_loss(p, t, 1.5)), 1e-6, (0.125 + 0 + 1.5 * 1.25 + 1.5 * 3.25) / 4);
    double expected = 0;
    double logits[] = {0, 1, 2, -3}, wanted[] = {0.5, 1, 0, 1};
    for (int i = 0; i < 4; i++) {
        double s = 1 / (1 + exp(-logits[i]));
        expected -= (wanted[i] * log(s) + (1 - wanted[i]) * log(1 - s)) / 4;
    }
    assert_values(good(tarn_bce_with_logits_loss(p, t)), 1e-6, expected);
    assert_values(good(tarn_bce_with_logits_loss(vector(1000, -1000), vector(1, 0))), 0, 0);
}

static tarn_tensor *composed(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count;
    switch (*(const int *)ctx) {
    case 0: return tarn_mse_loss(in[0], in[1]);
    case 1: return tarn_l1_loss(in[0], in[1]);
    case 2: return tarn_huber_loss(in[0], in[1], 0.7);
    default: return tarn_bce_with_logits_loss(in[0], in[1]);
    }
}

static void gradients_of_composed_losses_agree_with_differences(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        tarn_tensor *in[] = {good(tarn_requires_grad(normal(TARN_SHAPE(3, 5), TARN_F64), true)),
                             good(tarn_requires_grad(normal(TARN_SHAPE(5), TARN_F64), true))};
        tarn_gradcheck(composed, &which, in, 2, NULL);
        assert_ok();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(cross_entropy_counts_targets_smooths_labels_and_reduces),
        in_scope(cross_entropy_takes_i32_targets_any_rank_and_any_layout),
        in_scope(gradients_of_cross_entropy_agree_with_differences),
        in_scope(a_mean_over_no_targets_is_nan_with_a_gradient_of_zero),
        in_scope(a_target_outside_the_classes_is_an_error_that_names_it),
        in_scope(wrong_operands_and_options_are_errors),
        in_scope(options_of_an_older_caller_have_defaults_for_what_they_lack),
        in_scope(composed_losses_are_the_means_of_their_formulas),
        in_scope(gradients_of_composed_losses_agree_with_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_rows.c: norms, softmax, losses, RoPE and optimizers by the GPU kernels, and without f64: TARN_OPENCL_LOCAL_MEM=1
 * and TARN_OPENCL_FP64=0 select them on any device. Shapes are at the thresholds of variants, beyond those of
 * test_cases; results are compared with the CPU's.
 * */
#include "support/opencl.h"

#include <tarn/profile.h>

#define MOST_OPERANDS 4
#define TOLERANCE 2e-5 /* of f32: sums are in f32, too */

/* The operation on operands of some device. */
typedef tarn_tensor *(*operation_fn)(tarn_tensor *const *in);

typedef struct operands {
    int count;
    tarn_tensor *at[MOST_OPERANDS];
} operands;

/* Normal numbers, a little off 0, on the CPU. */
static tarn_tensor *numbers(tarn_shape shape)
{
    return good(tarn_normal(shape, 0.3, 1.5, TARN_F32, tarn_device_cpu()));
}

/* The same operands as leaves on a device; what is no float has no gradient. */
static operands leaves_on(const operands *from, tarn_device device)
{
    operands made = {.count = from->count};
    for (int i = 0; i < from->count; i++) {
        made.at[i] = good(tarn_to(tarn_detach(from->at[i]), device));
        if (tarn_dtype_of(made.at[i]) == TARN_F32 || tarn_dtype_of(made.at[i]) == TARN_BF16)
            good(tarn_requires_grad(made.at[i], true));
    }
    return made;
}

/* Result and gradients are the CPU's, and no kernel was missing. */
static void compare(operation_fn operation, const operands *from, double tolerance)
{
    operands here = leaves_on(from, tarn_device_cpu()), there = leaves_on(from, opencl);
    tarn_tensor *expected = good(operation(here.at));
    tarn_tensor *upstream = good(
        tarn_cast(tarn_normal(tarn_shape_of(expected), 0.1, 1, TARN_F32, tarn_device_cpu()), tarn_dtype_of(expected)));
    tarn_tensor *upstream_there = good(tarn_to(upstream, opencl));
    tarn_stats_reset();
    tarn_tensor *result = good(operation(there.at));
    assert_true(tarn_backward_from(result, upstream_there, NULL));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_true(tarn_backward_from(expected, upstream, NULL));
    assert_close_for_size(good(tarn_to(result, tarn_device_cpu())), expected, tolerance);
    for (int i = 0; i < from->count; i++)
        if (tarn_grad(here.at[i]))
            assert_close_for_size(good(tarn_to(tarn_grad(there.at[i]), tarn_device_cpu())), tarn_grad(here.at[i]),
                                  tolerance);
    assert_ok();
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

static tarn_tensor *layernorm(tarn_tensor *const *in)
{
    return tarn_layernorm(in[0], in[1], in[2], 1e-5);
}

static tarn_tensor *rmsnorm(tarn_tensor *const *in)
{
    return tarn_rmsnorm(in[0], in[1], 1e-5);
}

static tarn_tensor *rmsnorm_offset(tarn_tensor *const *in)
{
    return tarn_rmsnorm_offset(in[0], in[1], 1, 1e-5);
}

static tarn_tensor *residual_rmsnorm(tarn_tensor *const *in)
{
    tarn_tensor *sum, *normed = tarn_residual_rmsnorm(in[0], in[1], in[2], 1, 1e-5, &sum);
    return normed ? tarn_add(sum, normed) : NULL;
}

static tarn_tensor *residual_norm(tarn_tensor *const *in)
{
    tarn_tensor *sum, *normed = tarn_residual_norm(in[0], in[1], in[2], in[3], false, 1e-5, &sum);
    return normed ? tarn_add(sum, normed) : NULL;
}

/* A work-item, a small group and a large one have a row. */
static void rows_of_every_length_are_normalized(void **state)
{
    NEEDS_OPENCL();
    compare(layernorm,
            &(operands){3, {numbers(TARN_SHAPE(2, 21, 32)), numbers(TARN_SHAPE(32)), numbers(TARN_SHAPE(32))}},
            TOLERANCE);
    compare(residual_norm,
            &(operands){4,
                        {numbers(TARN_SHAPE(7, 100)), numbers(TARN_SHAPE(7, 100)), numbers(TARN_SHAPE(100)),
                         numbers(TARN_SHAPE(100))}},
            TOLERANCE);
    compare(rmsnorm, &(operands){2, {numbers(TARN_SHAPE(300, 1500)), numbers(TARN_SHAPE(1500))}}, TOLERANCE);
    compare(rmsnorm_offset, &(operands){2, {numbers(TARN_SHAPE(300, 1500)), numbers(TARN_SHAPE(1500))}}, TOLERANCE);
}

/* Rows that work-items keep, one after the other in several chunks: of the smallest group, of a larger one, and in 16
 * bits. */
static void rows_in_registers_are_normalized(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = numbers(TARN_SHAPE(3, 7, 384)), *weight = numbers(TARN_SHAPE(384)),
                *bias = numbers(TARN_SHAPE(384));
    compare(layernorm, &(operands){3, {x, weight, bias}}, TOLERANCE);
    compare(rmsnorm, &(operands){2, {numbers(TARN_SHAPE(10, 768)), numbers(TARN_SHAPE(768))}}, TOLERANCE);
    compare(residual_rmsnorm, &(operands){3, {x, numbers(TARN_SHAPE(3, 7, 384)), weight}}, TOLERANCE);
    compare(residual_norm, &(operands){4, {x, numbers(TARN_SHAPE(3, 7, 384)), weight, bias}}, TOLERANCE);
    compare(rmsnorm, &(operands){2, {good(tarn_cast(x, TARN_BF16)), good(tarn_cast(weight, TARN_BF16))}}, 1e-2);
}

static tarn_tensor *batchnorm_relu(tarn_tensor *const *in)
{
    return tarn_batchnorm_relu(in[0], in[3], in[1], in[2], NULL, NULL, &(tarn_batchnorm_options){.training = true});
}

static tarn_tensor *groupnorm(tarn_tensor *const *in)
{
    return tarn_groupnorm(in[0], 2, in[1], in[2], 1e-5);
}

/* Several chunks of a channel and lines that are cut; NHWC; lines in vectors of four, long and short. */
static void channels_are_normalized(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *weight = numbers(TARN_SHAPE(6)), *bias = numbers(TARN_SHAPE(6)),
                *wide = numbers(TARN_SHAPE(3, 6, 45, 45));
    tarn_tensor *last = good(tarn_permute(numbers(TARN_SHAPE(4, 20, 20, 6)), TARN_AXES(0, 3, 1, 2)));
    compare(batchnorm_relu, &(operands){4, {wide, weight, bias, numbers(TARN_SHAPE(3, 6, 45, 45))}}, TOLERANCE);
    compare(groupnorm, &(operands){3, {last, weight, bias}}, TOLERANCE);
    compare(groupnorm, &(operands){3, {numbers(TARN_SHAPE(2, 6, 70, 64)), weight, bias}}, TOLERANCE);
    /* lines that a group holds */
    compare(groupnorm, &(operands){3, {numbers(TARN_SHAPE(2, 6, 50, 40)), weight, bias}}, TOLERANCE);
    compare(batchnorm_relu,
            &(operands){4, {numbers(TARN_SHAPE(2, 6, 64, 64)), weight, bias, numbers(TARN_SHAPE(2, 6, 64, 64))}},
            TOLERANCE);
    compare(batchnorm_relu,
            &(operands){4, {numbers(TARN_SHAPE(5, 6, 8, 6)), weight, bias, numbers(TARN_SHAPE(5, 6, 8, 6))}},
            TOLERANCE);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static tarn_tensor *sum_of_all(tarn_tensor *const *in)
{
    return tarn_sum(in[0], TARN_ALL_AXES, false);
}

static tarn_tensor *largest(tarn_tensor *const *in)
{
    return tarn_max(in[0], TARN_AXES(1), false);
}

/* So many chunks that a group merges them; and gradients where several elements are the maximum. */
static void many_chunks_and_ties_are_reduced(void **state)
{
    NEEDS_OPENCL();
    compare(sum_of_all, &(operands){1, {numbers(TARN_SHAPE(100003))}}, TOLERANCE);
    compare(largest, &(operands){1, {good(tarn_cast(tarn_cast(numbers(TARN_SHAPE(9, 700)), TARN_I32), TARN_F32))}},
            TOLERANCE);
}

/* ---- softmax and losses ------------------------------------------------------------------------------------------ */

static tarn_tensor *softmax(tarn_tensor *const *in)
{
    return tarn_softmax(in[0], -1);
}

static tarn_tensor *softmax_of_columns(tarn_tensor *const *in)
{
    return tarn_softmax(in[0], 0);
}

static tarn_tensor *log_softmax(tarn_tensor *const *in)
{
    return tarn_log_softmax(in[0], -1);
}

static void softmax_of_rows_and_columns_agrees(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = numbers(TARN_SHAPE(5, 100)), *wide = numbers(TARN_SHAPE(3, 1500)),
                *half = good(tarn_cast(wide, TARN_BF16));
    compare(softmax, &(operands){1, {half}}, 1e-2);
    compare(softmax_of_columns, &(operands){1, {x}}, TOLERANCE);
    compare(log_softmax, &(operands){1, {wide}}, TOLERANCE);
    compare(log_softmax, &(operands){1, {good(tarn_slice(wide, 1, 1, 1500))}}, TOLERANCE); /* not in fours */
}

/* Work-items that have nothing but -infinity beside others that have not, in a row far below 0; and rows that become
 * NaN. */
static void softmax_of_infinities_agrees(void **state)
{
    NEEDS_OPENCL();
    enum { ROWS = 4, LENGTH = 512 };
    static float x[ROWS][LENGTH], here[ROWS][LENGTH], there[ROWS][LENGTH];
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < LENGTH; i++)
            x[row][i] = row == 1 || i % 7 != 3 ? -INFINITY : -2000 - (float)i / 100;
    x[2][40] = INFINITY;
    x[3][41] = NAN;
    tarn_tensor *rows = good(tarn_from_f32(&x[0][0], TARN_SHAPE(ROWS, LENGTH), tarn_device_cpu()));
    assert_true(tarn_read(good(tarn_softmax(rows, -1)), here, sizeof(here)) &&
                tarn_read(good(tarn_softmax(tarn_to(rows, opencl), -1)), there, sizeof(there)));
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < LENGTH; i++)
            assert_true(isnan(here[row][i]) ? isnan(there[row][i]) : fabsf(here[row][i] - there[row][i]) <= 1e-7f);
}

static tarn_tensor *cross_entropy(tarn_tensor *const *in)
{
    static const int64_t ignored = 3;
    return tarn_cross_entropy(in[0], in[1],
                              &(tarn_cross_entropy_options){.label_smoothing = 0.1, .ignore_index = &ignored});
}

static void a_loss_has_its_gradient(void **state)
{
    NEEDS_OPENCL();
    const int64_t target[] = {0, 1499, 3, 63, 64};
    compare(
        cross_entropy,
        &(operands){2, {numbers(TARN_SHAPE(5, 1500)), good(tarn_from_i64(target, TARN_SHAPE(5), tarn_device_cpu()))}},
        TOLERANCE);
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

static tarn_tensor *rope(tarn_tensor *const *in)
{
    return tarn_rope(in[0], in[1], &(tarn_rope_options){.dims = 130});
}

/* Angles of far positions keep their digits; more pairs than one launch has. */
static void far_positions_are_rotated(void **state)
{
    NEEDS_OPENCL();
    const int64_t positions[] = {0, 1, 4095, 100003};
    compare(
        rope,
        &(operands){
            2, {numbers(TARN_SHAPE(1, 4, 2, 136)), good(tarn_from_i64(positions, TARN_SHAPE(4), tarn_device_cpu()))}},
        TOLERANCE);
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

/* Two steps of AdamW with clipped gradients; the weight after them, on the CPU. */
static tarn_tensor *weight_after_steps(tarn_device device, tarn_tensor *start, tarn_tensor *x, double *norm)
{
    tarn_module *layer = tarn_linear(700, 50, device);
    tarn_tensor *weight = tarn_module_parameter(layer, 0);
    assert_true(tarn_copy(weight, tarn_to(start, device)) &&
                tarn_copy(tarn_module_parameter(layer, 1), tarn_zeros(TARN_SHAPE(50), TARN_F32, device)));
    tarn_optimizer *optimizer = tarn_adamw(layer, &(tarn_adamw_options){.lr = 1e-2, .weight_decay = 0.1});
    assert_non_null(optimizer);
    for (int step = 0; step < 2; step++) {
        assert_true(
            tarn_backward(tarn_mean(tarn_square(tarn_forward(layer, tarn_to(x, device))), TARN_ALL_AXES, false)));
        tarn_tensor *length = good(tarn_optimizer_clip_norm(optimizer, 0.5));
        *norm = tarn_item(length);
        assert_true(tarn_optimizer_step(optimizer));
    }
    tarn_tensor *after = good(tarn_clone(tarn_to(weight, tarn_device_cpu())));
    tarn_optimizer_free(optimizer);
    tarn_module_free(layer);
    return after;
}

static void clipped_steps_are_the_same(void **state)
{
    NEEDS_OPENCL();
    double norm, expected;
    tarn_tensor *start = numbers(TARN_SHAPE(50, 700)), *x = numbers(TARN_SHAPE(8, 700));
    tarn_tensor *there = weight_after_steps(opencl, start, x, &norm),
                *here = weight_after_steps(tarn_device_cpu(), start, x, &expected);
    assert_true(fabs(norm - expected) <= TOLERANCE * expected);
    assert_close_for_size(there, here, TOLERANCE);
}

/* Else a root of it is NaN, and its gradient noise. */
static void the_variance_of_equal_elements_is_0(void **state)
{
    NEEDS_OPENCL();
    static const int64_t counts[] = {3, 5, 7, 49, 700, 2991, 100003};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (int k = 1; k <= 20; k++) {
            tarn_tensor *x =
                good(tarn_requires_grad(tarn_full(TARN_SHAPE(counts[i]), 0.37 * k, TARN_F32, opencl), true));
            tarn_tensor *y = good(tarn_var(x, TARN_ALL_AXES, 0, false));
            assert_true(tarn_item(y) == 0);
            assert_true(tarn_backward(y));
            assert_true(tarn_item(tarn_max(tarn_abs(tarn_grad(x)), TARN_ALL_AXES, false)) == 0);
        }
}

int main(void)
{
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 0);
    setenv("TARN_OPENCL_FP64", "0", 0);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(rows_of_every_length_are_normalized),
        ON_OPENCL(rows_in_registers_are_normalized),
        ON_OPENCL(channels_are_normalized),
        ON_OPENCL(many_chunks_and_ties_are_reduced),
        ON_OPENCL(softmax_of_rows_and_columns_agrees),
        ON_OPENCL(softmax_of_infinities_agrees),
        ON_OPENCL(a_loss_has_its_gradient),
        ON_OPENCL(far_positions_are_rotated),
        ON_OPENCL(clipped_steps_are_the_same),
        ON_OPENCL(the_variance_of_equal_elements_is_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_bad_input_norm.c: invalid arguments to batchnorm and groupnorm. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static void norms(void **state)
{
    (void)state;
    tarn_batchnorm_options training = {.training = true};
    tarn_tensor *x = tarn_ones(TARN_SHAPE(4, 3, 2), TARN_F32, CPU), *three = vector(1, 2, 3),
                *four = vector(1, 2, 3, 4);
    tarn_tensor *wide = tarn_cast(three, TARN_F64), *whole = tarn_ones(TARN_SHAPE(4, 3), TARN_I64, CPU);
    tarn_tensor *elsewhere = tarn_ones(TARN_SHAPE(3), TARN_F32, tarn_device_parse("mirror:1"));
    tarn_tensor *recorded = tarn_square(tarn_requires_grad(vector(1, 2, 3), true));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(NULL, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(three, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(whole, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(tarn_scalar(1), NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, four, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, tarn_scalar(1), NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, wide, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, elsewhere, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, NULL, three, elsewhere, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, NULL, three, recorded, &training));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, NULL, three, four, NULL));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, NULL, NULL, three, NULL));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, NULL, NULL, NULL, NULL));
    REFUSE(tarn_batchnorm_sized, tarn_batchnorm(x, NULL, NULL, tarn_scalar(1), tarn_scalar(1), &training));
    REFUSE(tarn_batchnorm_sized,
           tarn_batchnorm(x, NULL, NULL, NULL, NULL, &(tarn_batchnorm_options){.training = true, .epsilon = -1}));
    REFUSE(tarn_batchnorm_sized,
           tarn_batchnorm(x, NULL, NULL, NULL, NULL, &(tarn_batchnorm_options){.training = true, .epsilon = NAN}));
    REFUSE(tarn_batchnorm_sized,
           tarn_batchnorm(x, NULL, NULL, NULL, NULL, &(tarn_batchnorm_options){.training = true, .momentum = 2}));
    REFUSE(tarn_batchnorm_sized,
           tarn_batchnorm(x, NULL, NULL, NULL, NULL, &(tarn_batchnorm_options){.training = true, .momentum = NAN}));
    REFUSE(tarn_batchnorm_sized,
           tarn_batchnorm(tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, CPU), NULL, NULL, NULL, NULL, &training));
    ACCEPT(tarn_batchnorm(x, three, three, NULL, NULL, &training));
    tarn_tensor *far = tarn_ones(TARN_SHAPE(4, 3, 2), TARN_F32, tarn_device_parse("mirror:1")),
                *scalar = tarn_scalar(1);
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(NULL, NULL, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(x, three, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(x, scalar, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(x, far, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized,
           tarn_batchnorm_relu(x, tarn_cast(x, TARN_F64), NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(whole, NULL, NULL, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(x, x, four, NULL, NULL, NULL, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(x, x, NULL, NULL, NULL, NULL, NULL));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu(x, x, NULL, NULL, three, recorded, &training));
    REFUSE(tarn_batchnorm_relu_sized, tarn_batchnorm_relu_sized(x, NULL, NULL, NULL, NULL, NULL, NULL, 0));
    ACCEPT(tarn_batchnorm_relu(x, x, three, three, NULL, NULL, &training));
    REFUSE(tarn_groupnorm, tarn_groupnorm(NULL, 1, NULL, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(three, 1, NULL, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(whole, 1, NULL, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 0, NULL, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, -3, NULL, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 2, NULL, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 3, four, NULL, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 3, NULL, wide, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 3, NULL, elsewhere, 1e-5));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 3, NULL, NULL, -1));
    REFUSE(tarn_groupnorm, tarn_groupnorm(x, 3, NULL, NULL, NAN));
    ACCEPT(tarn_groupnorm(x, 3, three, three, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(norms, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

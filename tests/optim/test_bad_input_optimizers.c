/* test_bad_input_optimizers.c: SGD, AdamW and what every optimizer has are given what they do not take. */
#include "support/operands.h"

static void optimizers(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(3, 2, cpu), *nothing = tarn_activation(TARN_RELU);
    assert_ok();
    tarn_sgd_options rate = {.lr = 0.1f};
    REFUSE(tarn_sgd_sized, tarn_sgd(NULL, &rate));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, NULL));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = 0}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = -1}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = (float)NAN}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = 1, .momentum = -1}));
    REFUSE(tarn_sgd_sized, tarn_sgd(linear, &(tarn_sgd_options){.lr = 1, .nesterov = true}));
    REFUSE(tarn_sgd_sized, tarn_sgd(nothing, &rate));
    REFUSE(tarn_adamw_sized, tarn_adamw(NULL, &(tarn_adamw_options){.lr = 1}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, NULL));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 0}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1, .beta1 = 1}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1, .beta2 = (float)NAN}));
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1, .epsilon = -1}));
    tarn_optimizer *sgd = tarn_sgd(linear, &rate);
    assert_ok();
    REFUSE(tarn_adamw_sized, tarn_adamw(linear, &(tarn_adamw_options){.lr = 1})); /* it has an optimizer */
    REFUSE(tarn_optimizer_step, tarn_optimizer_step(NULL));
    REFUSE(tarn_optimizer_zero_grad, tarn_optimizer_zero_grad(NULL));
    REFUSE(tarn_optimizer_set_lr, tarn_optimizer_set_lr(NULL, 1));
    REFUSE(tarn_optimizer_set_lr, tarn_optimizer_set_lr(sgd, NAN));
    REFUSE(tarn_optimizer_set_lr, tarn_optimizer_set_lr(sgd, -1));
    REFUSE(tarn_optimizer_lr, tarn_optimizer_lr(NULL));
    ACCEPT(tarn_optimizer_step(sgd)); /* no gradients: nothing to do */
    ACCEPT(tarn_optimizer_free(NULL));
    tarn_optimizer_free(sgd);
    tarn_module_free(linear);
    tarn_module_free(nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(optimizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

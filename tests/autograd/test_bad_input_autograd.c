/* test_bad_input_autograd.c: invalid arguments to gradients, user-defined operations and gradcheck. */
#include "support/operands.h"

static tarn_tensor *identity(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    return inputs[0];
}

static bool no_rule(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx)
{
    (void)output_grads, (void)input_grads, (void)ctx;
    return true;
}

static bool no_saved_rule(tarn_tensor *const *output_grads, tarn_tensor *const *saved, tarn_tensor **input_grads,
                          void *ctx)
{
    (void)output_grads, (void)saved, (void)input_grads, (void)ctx;
    return true;
}

static void gradients(void **state)
{
    (void)state;
    tarn_tensor *in[] = {f}, *missing[] = {NULL}, *ended[] = {freed}, *leaf = tarn_requires_grad(vector(1, 2, 3), true);
    REFUSE(tarn_requires_grad, tarn_requires_grad(NULL, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(freed, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(i64, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(recorded, true));
    REFUSE(tarn_requires_grad, tarn_requires_grad(tarn_scalar(1), true));
    REFUSE(tarn_needs_grad, tarn_needs_grad(NULL));
    REFUSE(tarn_needs_grad, tarn_needs_grad(freed));
    REFUSE(tarn_backward, tarn_backward(NULL));
    REFUSE(tarn_backward, tarn_backward(freed));
    REFUSE(tarn_backward, tarn_backward(f));
    REFUSE(tarn_backward, tarn_backward(recorded));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(NULL, NULL, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(freed, NULL, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, NULL, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, f23, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, freed, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, d, NULL));
    REFUSE(tarn_backward_from_sized, tarn_backward_from(recorded, elsewhere, NULL));
    REFUSE(tarn_backward_from_sized,
           tarn_backward_from(tarn_mul(leaf, tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, cpu)), NULL, NULL));
    REFUSE(tarn_grad, tarn_grad(NULL));
    REFUSE(tarn_grad, tarn_grad(freed));
    ACCEPT(tarn_grad(f));
    REFUSE(tarn_zero_grad, tarn_zero_grad(NULL));
    REFUSE(tarn_zero_grad, tarn_zero_grad(freed));
    ACCEPT(tarn_zero_grad(f));
    REFUSE(tarn_no_grad_close, tarn_no_grad_close());
    ACCEPT(tarn_no_grad_open(), tarn_no_grad_close());
    ACCEPT(tarn_grad_enabled());
    ACCEPT(tarn_set_anomaly(false));
    REFUSE(tarn_checkpoint, tarn_checkpoint(NULL, NULL, in, 1));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, NULL, 1));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, in, 0));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, missing, 1));
    REFUSE(tarn_checkpoint, tarn_checkpoint(identity, NULL, ended, 1));
    REFUSE(tarn_function, tarn_function(NULL, 1, in, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, -1, in, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, 1, missing, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(ended, 1, in, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, 1, ended, 1, no_rule, NULL, NULL));
    REFUSE(tarn_function, tarn_function(in, 1, in, 1, NULL, NULL, NULL));
    REFUSE(tarn_function_save, tarn_function_save(NULL, 1, in, 1, in, 1, no_saved_rule, NULL, NULL));
    REFUSE(tarn_function_save, tarn_function_save(&leaf, 1, in, 1, in, 1, NULL, NULL, NULL));
    REFUSE(tarn_function_save, tarn_function_save(&leaf, 1, in, 1, in, -1, no_saved_rule, NULL, NULL));
    REFUSE(tarn_function_save, tarn_function_save(&leaf, 1, in, 1, ended, 1, no_saved_rule, NULL, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(NULL, NULL, in, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, NULL, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, in, 0, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, missing, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, ended, 1, NULL));
    REFUSE(tarn_gradcheck_sized, tarn_gradcheck(identity, NULL, &leaf, 1, NULL)); /* not f64 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

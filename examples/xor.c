/* xor.c: the smallest network that has to be trained: "exclusive or" of two bits.
 *
 *   build/release/examples/xor
 *
 * Everything a larger program does is here: data on a device, a network, an optimizer, a loop of forward, backward and
 * step, and one look at the error at the end. Tensors created between tarn_scope_open() and tarn_scope_close() are
 * freed by the close. */
#include <stdio.h>
#include <tarn/tarn.h>

int main(void)
{
    tarn_device device = tarn_device_auto(); /* the best there is; "cpu" on a machine without a GPU backend */
    float points[] = {0, 0, 0, 1, 1, 0, 1, 1}, answers[] = {0, 1, 1, 0};
    double loss_now = 1;

    tarn_scope *program = tarn_scope_open();
    tarn_tensor *x = tarn_from_f32(points, TARN_SHAPE(4, 2), device);
    tarn_tensor *y = tarn_from_f32(answers, TARN_SHAPE(4, 1), device);
    tarn_module *net =
        tarn_sequential(tarn_linear(2, 16, device), tarn_activation(TARN_TANH), tarn_linear(16, 1, device), NULL);
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.05f});

    /* Once something fails, every call does nothing: it is enough to ask in the loop's condition. */
    for (int step = 0; step <= 200 && !tarn_failed(); step++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *loss = tarn_mse_loss(tarn_forward(net, x), y);
        tarn_backward(loss);
        tarn_optimizer_step(adam);
        loss_now = tarn_item(loss);
        if (step % 50 == 0)
            printf("step %3d  loss %.6f\n", step, loss_now);
        tarn_scope_close(scope);
    }

    float said[4] = {0};
    tarn_no_grad_open(); /* nothing to learn from here on, so nothing is recorded */
    tarn_read_f32(tarn_forward(net, x), said, 4);
    tarn_no_grad_close();
    for (int i = 0; i < 4 && !tarn_failed(); i++)
        printf("%g xor %g = %d  (%.4f)\n", (double)points[2 * i], (double)points[2 * i + 1], said[i] > 0.5f,
               (double)said[i]);

    if (tarn_failed())
        fprintf(stderr, "%s\n", tarn_error());
    tarn_optimizer_free(adam);
    tarn_module_free(net);
    tarn_scope_close(program);
    return tarn_failed() || !(loss_now <= 0.01); /* NaN counts as not converged */
}

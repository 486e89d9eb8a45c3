/* parallel.c: data-parallel training: every rank computes the gradients of its share of a batch, and all ranks take the
 * same step. The weights do not depend on the number of ranks, bit for bit.
 *
 *   build/release/examples/parallel
 *   mpirun -np 4 build/release/examples/parallel
 *
 * A batch is cut into PARTS parts, more than there are ranks or as many. tarn_comm_sum() adds the gradients of all
 * parts in one order, whichever rank has computed them. */
#include <stdio.h>
#include <tarn/tarn.h>

enum { PARTS = 8, ROWS = 16, STEPS = 100 }; /* parts of a batch, samples of a part */

/* Gradients of a part, points of a parabola that depend on step and part alone: gradients[k] of parameter k, copies in
 * the open scope. Returns the loss. */
static double part_gradients(tarn_module *net, tarn_optimizer *optimizer, int step, int part, tarn_tensor **gradients)
{
    float x[ROWS], y[ROWS];
    for (int i = 0; i < ROWS; i++) {
        x[i] = (float)((step * 7919 + part * 613 + i * 101) % 1000) / 500 - 1;
        y[i] = x[i] * x[i];
    }
    tarn_device cpu = tarn_device_cpu();
    tarn_tensor *output = tarn_forward(net, tarn_from_f32(x, TARN_SHAPE(ROWS, 1), cpu));
    tarn_tensor *loss = tarn_div(tarn_mse_loss(output, tarn_from_f32(y, TARN_SHAPE(ROWS, 1), cpu)), tarn_scalar(PARTS));
    tarn_backward(loss);
    for (int k = 0; k < tarn_module_parameter_count(net); k++)
        gradients[k] = tarn_clone(tarn_grad(tarn_module_parameter(net, k)));
    tarn_optimizer_zero_grad(optimizer);
    return tarn_item(loss);
}

int main(void)
{
    tarn_comm *comm = NULL;
    if (tarn_comm_launched() > 1) /* by mpirun or srun; else this process is rank 0 of 1 */
        comm = tarn_comm_mpi();
    else
        tarn_comm_threads(1, &comm);
    int rank = tarn_comm_rank(comm), share = tarn_failed() ? 0 : PARTS / tarn_comm_size(comm);
    double loss = 0;

    tarn_seed(1); /* the same initial weights on all ranks */
    tarn_device cpu = tarn_device_cpu();
    tarn_module *net =
        tarn_sequential(tarn_linear(1, 32, cpu), tarn_activation(TARN_TANH), tarn_linear(32, 1, cpu), NULL);
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.02f});
    for (int step = 0; step < STEPS && !tarn_failed(); step++) {
        tarn_tensor *gradients[PARTS][4], *parts[PARTS];
        tarn_scope *scope = tarn_scope_open();
        loss = 0;
        for (int i = 0; i < share; i++)
            loss += part_gradients(net, adam, step, rank * share + i, gradients[i]);
        for (int k = 0; k < tarn_module_parameter_count(net) && !tarn_failed(); k++) {
            tarn_tensor *parameter = tarn_module_parameter(net, k);
            for (int i = 0; i < share; i++)
                parts[i] = gradients[i][k];
            tarn_comm_sum(comm, parts, share, parts[0]);
            tarn_backward_from(parameter, parts[0], NULL); /* the sum becomes the gradient */
        }
        tarn_optimizer_step(adam);
        tarn_scope_close(scope);
    }
    if (tarn_failed())
        tarn_comm_abort(comm, tarn_error()); /* the other ranks must not wait */
    if (rank == 0 && !tarn_failed())
        printf("%d ranks, loss of rank 0: %.6f\n", tarn_comm_size(comm), loss * PARTS / share);
    else if (tarn_failed() && (!comm || tarn_comm_is_reporter(comm)))
        fprintf(stderr, "%s\n", tarn_error());
    tarn_optimizer_free(adam);
    tarn_module_free(net);
    tarn_comm_free(comm);
    return tarn_failed() || !(loss * PARTS < 0.1 * share);
}

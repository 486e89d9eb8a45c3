/* custom_op.c: an operation of your own: forward, backward, a gradient check, and on a GPU a kernel of your own.
 *
 *   build/release/examples/custom_op            on the CPU
 *
 * docs/guide/your-own-operation.md explains this file and custom_op.cu, which has the CUDA kernels, and how to build
 * both.
 *
 * The operation is squareplus, a smooth relu: y = (x + sqrt(x² + b)) / 2 for a number b. Its gradient is
 * dy/dx = (1 + x / sqrt(x² + b)) / 2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tarn/tarn.h>

#include "custom_op.h"

/* ---- the kernels: plain loops on the CPU, custom_op.cu on CUDA devices ------------------------------------------- */

static double forward_of(double x, double b)
{
    return (x + sqrt(x * x + b)) / 2;
}

static double backward_of(double x, double b)
{
    return (1 + x / sqrt(x * x + b)) / 2;
}

/* to[i] = f(x[i]), or f'(x[i]) · g[i] where g is given; all of them contiguous, of one dtype. */
static void run_on_cpu(const squareplus_job *job)
{
    for (int64_t i = 0; i < job->count; i++) {
        double x = job->is_f64 ? ((const double *)job->x)[i] : (double)((const float *)job->x)[i];
        double value = job->g ? backward_of(x, job->b) : forward_of(x, job->b);
        if (job->is_f64)
            ((double *)job->to)[i] = job->g ? value * ((const double *)job->g)[i] : value;
        else
            ((float *)job->to)[i] = (float)(job->g ? value * (double)((const float *)job->g)[i] : value);
    }
}

/* Fills `to` from x, and from the gradient g in backward. False with an error set. */
static bool run(tarn_tensor *to, tarn_tensor *x, tarn_tensor *g, double b)
{
    squareplus_job job = {.to = tarn_data(to),
                          .x = tarn_data(x),
                          .g = g ? tarn_data(g) : NULL,
                          .count = tarn_count(x),
                          .b = b,
                          .is_f64 = tarn_dtype_of(x) == TARN_F64};
    if (tarn_failed())
        return false;
    void *stream = tarn_native_stream(tarn_device_of(x)); /* NULL on the CPU */
    if (!stream) {
        run_on_cpu(&job);
        return true;
    }
    const char *problem = squareplus_cuda(&job, stream);
    if (problem)
        tarn_set_error(TARN_ERROR_DEVICE, "squareplus: %s", problem);
    return problem == NULL;
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

/* Runs unrecorded, in a scope of its own: whatever it makes besides the gradients is freed. */
static bool squareplus_backward(tarn_tensor *const *output_grads, tarn_tensor *const *saved, tarn_tensor **input_grads,
                                void *ctx)
{
    const double *b = ctx;
    tarn_tensor *x = saved[0], *g = tarn_contiguous(output_grads[0]), *grad = tarn_empty_like(x);
    if (!grad || !run(grad, x, g, *b))
        return false;
    input_grads[0] = grad;
    return true;
}

/* The result belongs to the open scope; NULL with an error. */
static tarn_tensor *squareplus(tarn_tensor *input, double b)
{
    tarn_dtype dtype = tarn_dtype_of(input);
    if (tarn_failed())
        return NULL;
    if ((dtype != TARN_F32 && dtype != TARN_F64) || !(b > 0)) {
        tarn_set_error(TARN_ERROR_ARGUMENT, "squareplus: x is %s and b %g; x must be f32 or f64, and b above 0",
                       tarn_dtype_name(dtype), b);
        return NULL;
    }
    tarn_no_grad_open(); /* what happens in here is not recorded: the record is made below, as one operation */
    tarn_tensor *x = tarn_contiguous(input), *y = x ? tarn_empty_like(x) : NULL;
    bool good = y && run(y, x, NULL, b);
    tarn_no_grad_close();
    double *ctx = good ? malloc(sizeof(*ctx)) : NULL;
    if (good && !ctx)
        tarn_set_error(TARN_ERROR_MEMORY, "squareplus: out of memory");
    if (!ctx)
        return NULL;
    *ctx = b;
    return tarn_function_save(&input, 1, &y, 1, &x, 1, squareplus_backward, ctx, free) ? y : NULL;
}

/* ---- trying it --------------------------------------------------------------------------------------------------- */

static tarn_tensor *block(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count;
    return squareplus(inputs[0], *(const double *)ctx);
}

/* The largest difference from the same formula, composed of tarn's own operations. */
static double compare(tarn_tensor *x, double b)
{
    tarn_tensor *root = tarn_sqrt(tarn_add(tarn_square(x), tarn_scalar(b)));
    tarn_tensor *composed = tarn_mul(tarn_add(x, root), tarn_scalar(0.5));
    return tarn_item(tarn_max(tarn_abs(tarn_sub(squareplus(x, b), composed)), TARN_ALL_AXES, false));
}

int main(int argc, char **argv)
{
    tarn_device device = tarn_device_parse(argc > 1 ? argv[1] : "cpu");
    double b = 0.5;
    char name[32];
    tarn_scope *scope = tarn_scope_open();
    tarn_seed(1);

    /* A gradient check in f64: backward against differences of forward. */
    tarn_tensor *x = tarn_requires_grad(tarn_normal(TARN_SHAPE(4, 5), 0, 2, TARN_F64, device), true);
    tarn_tensor *rows = tarn_normal(TARN_SHAPE(3, 2), 0, 2, TARN_F64, device);
    tarn_tensor *across = tarn_requires_grad(tarn_transpose(rows, 0, 1), true); /* not contiguous */
    bool good = tarn_gradcheck(block, &b, &x, 1, NULL) && tarn_gradcheck(block, &b, &across, 1, NULL);
    if (good)
        printf("squareplus on %s: the gradient is right\n", tarn_device_name(device, name, sizeof(name)));

    /* In f32, between operations of the library. */
    tarn_tensor *w = tarn_requires_grad(tarn_normal(TARN_SHAPE(1000, 100), 0, 1, TARN_F32, device), true);
    double difference = compare(w, b);
    tarn_tensor *mean = tarn_mean(squareplus(w, b), TARN_ALL_AXES, false);
    good = good && tarn_backward(mean) && tarn_grad(w) && difference < 1e-5;
    if (good)
        printf("100000 elements: at most %.1g from the composed formula\n", difference);

    if (tarn_failed())
        fprintf(stderr, "%s\n", tarn_error());
    tarn_scope_close(scope);
    return good ? 0 : 1;
}

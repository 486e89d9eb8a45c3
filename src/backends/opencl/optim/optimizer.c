/* optimizer.c: optimizer steps: the launchers of optimizer.cl. Steps are not captured on these devices, so `live` is
 * unused. */
#include <stdio.h>

#include "backends/opencl/common/rows.h"

enum { PARAMETER, FIRST, SECOND, GRADIENT, OPERANDS }; /* as in optimizer.cl; moments may be absent */

/* A rule of optimizer.def, and its scalars as arguments. */
typedef struct rule {
    const char *name;
    int states;
    void (*set_scalars)(tarn__cl_launch *launch, const tarn__optimizer_step *step);
} rule;

/* Scalars go in the order of optimizer.def, which generates the kernel's parameters from the same list. */
#define REAL(name, value) tarn__cl_arg_real(launch, value);
#define FLAG(name, value) tarn__cl_arg_int(launch, value);
#define RULE(name, count, reads, first, second, parameter) \
    static void set_##name(tarn__cl_launch *launch, const tarn__optimizer_step *step) \
    { \
        const tarn__optimizer_step s = *step; \
        const tarn__step_scalars now = s.now; \
        OPTIMIZER_SCALARS_##name(REAL, FLAG) \
    } \
    static const rule name = {#name, count, set_##name};
#include "base/kernel/optimizer.def"

/* One element per work-item. Bytes: all operands read, all but the gradient written, once. */
static void update(const tarn__call *call, const rule *r)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    /* Missing moments have no view; the kernel's code for them is left out by STATES. */
    const tarn__view *views[OPERANDS] = {[GRADIENT] = call->in[0]};
    const char *type[OPERANDS];
    /* An index is a plain sum then; other layouts pass theirs as an argument. */
    bool is_contiguous = true;
    char options[160];
    tarn__nest nest;
    for (int k = 0; k < call->outputs; k++)
        views[k] = call->out[k];
    for (int k = 0; k < OPERANDS; k++) {
        is_contiguous = is_contiguous && (!views[k] || tarn__view_is_contiguous(views[k]));
        type[k] = tarn__cl_dtype_name(views[k] ? views[k]->dtype : call->in[0]->dtype);
    }
    tarn__nest_make(&nest, OPERANDS, views);
    /* A program for each combination that occurs; programs are cached by their options. */
    snprintf(options, sizeof(options), "-DUPDATE=%s -DSTATES=%d%s -DT_P=%s -DT_M=%s -DT_V=%s -DT_G=%s", r->name,
             r->states, is_contiguous ? " -DCONTIGUOUS" : "", type[PARAMETER], type[FIRST], type[SECOND],
             type[GRADIENT]);
    tarn__cl_launch launch = tarn__cl_begin(call, "optimizer", "update", options);
    if (!is_contiguous)
        tarn__cl_arg_value(&launch, &nest, sizeof(nest));
    tarn__cl_arg_long(&launch, nest.count);
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(&launch, views[k]);
    tarn__cl_arg_view(&launch, call->in[1]);
    r->set_scalars(&launch, call->params);
    tarn__cl_enqueue_independent(&launch, 1, (size_t[]){(size_t)nest.count}, device->is_cpu ? 1024 : 256);
}

/* Without a momentum buffer plain SGD. */
static void run_sgd(const tarn__call *call)
{
    update(call, call->outputs > 1 && call->out[1] ? &momentum : &sgd);
}

/* Adam too: decay and bias corrections are in the scalars of the step. */
static void run_adamw(const tarn__call *call)
{
    update(call, &adamw);
}

/* Parameters of 16 bits are updated through their f32 master weights, so gradients are f32 or f64. */
void tarn__cl_register_optimizer(tarn__kernel_row *rows)
{
    uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64); /* of the gradient */
    rows[TARN__K_sgd] = tarn__row(run_sgd, dtypes);
    rows[TARN__K_adamw] = tarn__row(run_adamw, dtypes);
}

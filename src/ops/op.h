/* op.h: what the implementations of operations share: unifying operands, creating results, running kernels,
 * recording, and the registry of operations by name.
 *
 * An operation is one public function: check, shape rule, kernel, tarn__finish(). Arguments are borrowed; results
 * belong to the open scope. */
#ifndef TARN__OP_H
#define TARN__OP_H

#include "autograd/tape.h"

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Checks that operands are given, of one dtype and on one device. Constants (tarn_scalar()) fit any; if all are
 * constants they count as tensors. With TARN_CROSS_DEVICE_MOVE, CPU operands are moved and replaced in the list. A
 * NULL entry is an error naming `roles[i]`. */
bool tarn__unify_operands(const char *function, tarn_tensor **operand, const char *const *roles, int count);

/* Checks (or moves) devices only, for operands whose dtypes differ by design (indices, conditions). NULL entries are
 * skipped. */
bool tarn__unify_devices(const char *function, tarn_tensor **operand, int count);

/* The broadcast shape of the operands; an error with both shapes when there is none. NULL entries are skipped. */
bool tarn__broadcast(const char *function, tarn_tensor *const *operand, int count, tarn_shape *shape);

/* A new result with the memory layout (order of axes) of the first operand that has `shape` without gaps. */
tarn_tensor *tarn__result_like(const char *function, tarn_tensor *const *operand, int count, tarn_shape shape,
                               tarn_dtype dtype, tarn_device device);

/* x, or for a constant a tensor of that dtype and device: only elementwise kernels take constants. */
tarn_tensor *tarn__materialize(const char *function, tarn_tensor *x, tarn_dtype dtype, tarn_device device);

/* x, or for a constant an f32 tensor on the CPU. NULL with an error for an invalid x. The second form accepts
 * quantized x. */
tarn_tensor *tarn__operand(const char *function, tarn_tensor *x);
tarn_tensor *tarn__operand_any(const char *function, tarn_tensor *x);

/* Axes as a bit mask, negative ones resolved; an empty list means all. False with an error for a bad or repeated
 * axis. */
bool tarn__axes_mask(const char *function, tarn_axes axes, int rank, uint32_t *mask);

/* ---- running ----------------------------------------------------------------------------------------------------- */

#define TARN__COUNT_OF(...) ((int)(sizeof((tarn_tensor *[]){__VA_ARGS__}) / sizeof(tarn_tensor *)))

/* tarn__kernel_call(K, function, params, TARN__IN(a, b), TARN__OUT(y)): runs a kernel; `params` is a struct, not a
 * pointer. */
#define TARN__IN(...) .inputs = TARN__COUNT_OF(__VA_ARGS__), .in = {__VA_ARGS__}
#define TARN__OUT(...) .outputs = TARN__COUNT_OF(__VA_ARGS__), .out = {__VA_ARGS__}
#define tarn__kernel_call(which, name, values, ...) \
    tarn__run(&(tarn__launch){ \
        .kernel = (which), .function = (name), .params = &(values), .params_bytes = sizeof(values), __VA_ARGS__})

/* tarn__finish(function, rule, params, TARN__INPUTS(a, b), TARN__OUTPUTS(y), TARN__SAVED(a)): records the operation. */
#define TARN__INPUTS(...) .inputs = (tarn_tensor *[]){__VA_ARGS__}, .input_count = TARN__COUNT_OF(__VA_ARGS__)
#define TARN__OUTPUTS(...) .outputs = (tarn_tensor *[]){__VA_ARGS__}, .output_count = TARN__COUNT_OF(__VA_ARGS__)
#define TARN__SAVED(...) .saved = (tarn_tensor *[]){__VA_ARGS__}, .saved_count = TARN__COUNT_OF(__VA_ARGS__)
#define tarn__finish(name, how, values, ...) \
    tarn__record(&(tarn__recording){ \
        .function = (name), .rule = (how), .params = &(values), .params_bytes = sizeof(values), __VA_ARGS__})

/* True when f32 matmuls may use TF32: tarn_set_tf32(). */
bool tarn__tf32(void);

/* ---- operations by name ------------------------------------------------------------------------------------------ */

/* Arguments of tarn_apply(), checked against the operation's row. */
typedef struct tarn__invocation {
    const char *name;
    tarn_tensor *const *in; /* NULL beyond `inputs` */
    int inputs;
    const tarn_attribute *attributes;
    int attribute_count;
} tarn__invocation;

/* An attribute, or `default_value` if it was not given. */
int64_t tarn__attribute_int(const tarn__invocation *v, const char *name, int64_t default_value);
/* saturated to int, so that a huge axis does not wrap into range */
int tarn__attribute_int_clamped(const tarn__invocation *v, const char *name, int default_value);
double tarn__attribute_real(const tarn__invocation *v, const char *name, double default_value);
tarn_axes tarn__attribute_axes(const tarn__invocation *v, const char *name);
tarn_shape tarn__attribute_shape(const tarn__invocation *v, const char *name);

typedef bool (*tarn__apply_fn)(const tarn__invocation *v, tarn_tensor **out);

typedef struct tarn__op_row {
    const char *name;
    int min_inputs, max_inputs, outputs;
    bool differentiable;
    const char *attributes; /* "axis:int keepdim:bool" */
    const char *forward;    /* kernels of forward, separated by spaces */
    const char *backward;   /* kernels of backward, besides fill, copy, add and sum, which gradient accumulation uses */
    tarn__apply_fn apply;
} tarn__op_row;

/* Limits of operations called by name. */
#define TARN__MAX_OP_INPUTS 64
#define TARN__MAX_OP_OUTPUTS 8

/* The row of an operation called by name with these numbers of inputs and outputs; NULL with an error naming
 * `function`. */
const tarn__op_row *tarn__check_call(const char *function, const char *name, int inputs, bool has_inputs, int outputs,
                                     bool has_outputs);

/* The rows, for tests that compare the kernels an operation lists with those it runs. */
const tarn__op_row *tarn__op_row_at(int index);
bool tarn__op_lists_kernel(const tarn__op_row *row, tarn__kernel kernel, bool backward);

/* Adapters from tarn_apply() to the public functions, each defined next to its operation. */
#define UNARY(name, ...) bool tarn__apply_##name(const tarn__invocation *v, tarn_tensor **out);
#define BINARY(name, ...) bool tarn__apply_##name(const tarn__invocation *v, tarn_tensor **out);
#define COMPARE(name, ...) bool tarn__apply_##name(const tarn__invocation *v, tarn_tensor **out);
#define OP(name, ...) bool tarn__apply_##name(const tarn__invocation *v, tarn_tensor **out);
#include "base/kernel/elementwise.def"
#include "ops/ops.def"
#undef UNARY
#undef BINARY
#undef COMPARE
#undef OP

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* Sizes beyond this are rejected, so that sums of a few of them cannot overflow. */
#define TARN__IMAGE_LIMIT ((int64_t)1 << 31)

/* Raises unless x is a float tensor [N, C, H, W] with non-empty C, H and W. */
bool tarn__check_image(const char *function, const tarn_tensor *x, const char *role);

/* Raises unless both values are from `low` to TARN__IMAGE_LIMIT. `word` names the option. */
bool tarn__check_pair(const char *function, const char *word, const int64_t *value, int64_t low);

/* Raises unless the options of an upsampling are valid for some image. */
bool tarn__upsample_check(const char *function, const tarn_upsample_options *options);

/* An attribute of two values, or of one for both axes. False with an error for any other count. */
bool tarn__attribute_pair(const tarn__invocation *v, const char *name, int64_t default_value, int64_t *pair);

/* True when x is NHWC in memory (channels last): its result gets the same layout. */
bool tarn__channels_last(const tarn_tensor *x);

/* A new tensor [N, C, H, W] with the layout (NCHW or NHWC) of `like`, in the open scope. */
tarn_tensor *tarn__image_like(const char *function, const tarn_tensor *like, tarn_shape shape, tarn_dtype dtype,
                              tarn_device device);

/* Gradient of a bias of channels, input number `input`: g [N, O, H, W] summed over N, H and W. */
bool tarn__channel_bias_backward(const tarn__backward *b, int input, tarn_tensor *g);

/* ---- losses ------------------------------------------------------------------------------------------------------ */

/* Checks x [..., C], called `role` in errors, targets [...] and options. */
bool tarn__check_losses(const char *function, const char *role, tarn_tensor **operand,
                        const tarn_cross_entropy_options *o);

/* The number of targets that are not ignored, rank 0, in the loss's dtype; NULL without an error where none is
 * ignored. In the open scope. */
tarn_tensor *tarn__count_targets(tarn_tensor *target, const tarn_cross_entropy_options *o, tarn_dtype dtype);

/* Reduces the losses of rows [rows]; a mean divides by `counted`, or by the number of rows if NULL. Borrows both. */
tarn_tensor *tarn__reduce_losses(tarn_tensor *losses, tarn_tensor *counted, tarn_reduction reduction);

/* ---- broadcast-multiply gradient --------------------------------------------------------------------------------- */

/* True when one kernel can compute the gradients of a recorded a · b: one operand is broadcast along rows or
 * columns. */
bool tarn__scale_fits(const tarn__backward *b);

/* The backward rule for that case: both gradients, or that of the broadcast operand alone. */
bool tarn__scale_backward(const tarn__backward *b);

#endif

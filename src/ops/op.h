/* op.h: what the faces of operations share: bringing operands together, making results, and the list of operations by
 * name. */
#ifndef TARN__OP_H
#define TARN__OP_H

#include "autograd/tape.h"

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Checks that operands are there, of one dtype and on one device. Constants (tarn_scalar) fit any; where all are
 * constants they count as tensors. In mixed mode CPU operands are moved and replaced in the list. NULL entries are an
 * error naming `roles[i]`. */
bool tarn__unify_operands(const char *function, tarn_tensor **operand, const char *const *roles, int count);

/* Checks one device only: for operands whose dtypes differ by design (indices, conditions). NULL entries are skipped.
 */
bool tarn__unify_devices(const char *function, tarn_tensor **operand, int count);

/* The shape that operands broadcast to; an error naming both shapes when they do not. NULL entries are skipped. */
bool tarn__broadcast(const char *function, tarn_tensor *const *operand, int count, tarn_shape *shape);

/* A new result of `shape` whose axes lie in memory in the order of the first operand that has that shape without gaps.
 */
tarn_tensor *tarn__result_like(const char *function, tarn_tensor *const *operand, int count, tarn_shape shape,
                               tarn_dtype dtype, tarn_device device);

/* An operand that kernels other than element-wise ones can read: a constant becomes a tensor of that dtype and device.
 */
tarn_tensor *tarn__materialize(const char *function, tarn_tensor *x, tarn_dtype dtype, tarn_device device);

/* Operand x of an operation that only moves elements: itself, or a constant as an f32 tensor. NULL with an error when
 * there is none. */
tarn_tensor *tarn__operand(const char *function, tarn_tensor *x);
tarn_tensor *tarn__operand_any(const char *function, tarn_tensor *x); /* which may hold blocks */

/* Axes as a mask, negative ones resolved; an empty list is all of them. False with an error on a bad or repeated axis.
 */
bool tarn__axes_mask(const char *function, tarn_axes axes, int rank, uint32_t *mask);

/* ---- running ----------------------------------------------------------------------------------------------------- */

#define TARN__COUNT_OF(...) ((int)(sizeof((tarn_tensor *[]){__VA_ARGS__}) / sizeof(tarn_tensor *)))

/* tarn__kernel_call(K, function, TARN__IN(a, b), TARN__OUT(y), params): runs a kernel; `params` is a struct, not a
 * pointer. */
#define TARN__IN(...) .inputs = TARN__COUNT_OF(__VA_ARGS__), .in = {__VA_ARGS__}
#define TARN__OUT(...) .outputs = TARN__COUNT_OF(__VA_ARGS__), .out = {__VA_ARGS__}
#define tarn__kernel_call(which, name, tail, ...) \
    tarn__run(&(tarn__launch){ \
        .kernel = (which), .function = (name), .params = &(tail), .params_bytes = sizeof(tail), __VA_ARGS__})

/* tarn__finish(function, rule, params, TARN__INPUTS(a, b), TARN__OUTPUTS(y), TARN__SAVED(a)): records the operation. */
#define TARN__INPUTS(...) .inputs = (tarn_tensor *[]){__VA_ARGS__}, .input_count = TARN__COUNT_OF(__VA_ARGS__)
#define TARN__OUTPUTS(...) .outputs = (tarn_tensor *[]){__VA_ARGS__}, .output_count = TARN__COUNT_OF(__VA_ARGS__)
#define TARN__SAVED(...) .saved = (tarn_tensor *[]){__VA_ARGS__}, .saved_count = TARN__COUNT_OF(__VA_ARGS__)
#define tarn__finish(name, how, tail, ...) \
    tarn__record(&(tarn__recording){ \
        .function = (name), .rule = (how), .params = &(tail), .params_bytes = sizeof(tail), __VA_ARGS__})

/* True when products of f32 tensors may be made in TF32: tarn_set_tf32(). */
bool tarn__tf32(void);

/* ---- operations by name ------------------------------------------------------------------------------------------ */

/* A call by name: what tarn_apply() was given, checked against the operation's row. */
typedef struct tarn__invocation {
    const char *name;
    tarn_tensor *const *in; /* NULL beyond `inputs` */
    int inputs;
    const tarn_attribute *attributes;
    int attribute_count;
} tarn__invocation;

/* Attributes, or their default where they were not given. */
int64_t tarn__attribute_int(const tarn__invocation *v, const char *name, int64_t otherwise);
/* held within int, so that no axis wraps into range */
int tarn__attribute_int_clamped(const tarn__invocation *v, const char *name, int otherwise);
double tarn__attribute_real(const tarn__invocation *v, const char *name, double otherwise);
tarn_axes tarn__attribute_axes(const tarn__invocation *v, const char *name);
tarn_shape tarn__attribute_shape(const tarn__invocation *v, const char *name);

typedef bool (*tarn__apply_fn)(const tarn__invocation *v, tarn_tensor **out);

typedef struct tarn__op_row {
    const char *name;
    int min_inputs, max_inputs, outputs;
    bool differentiable;
    const char *attributes; /* "axis:int keep:bool" */
    const char *forward;    /* the kernels it uses, separated by spaces */
    const char *backward;   /* those of its backward, beside fill, copy, add and sum, which gradients' sinks use */
    tarn__apply_fn apply;
} tarn__op_row;

/* As many as an operation called by name can have. */
#define TARN__MAX_OP_INPUTS 64
#define TARN__MAX_OP_OUTPUTS 8

/* The row of an operation that is called by name with these numbers of inputs and outputs; NULL with an error of
 * `function`. */
const tarn__op_row *tarn__check_call(const char *function, const char *name, int inputs, bool has_inputs, int outputs,
                                     bool has_outputs);

/* The rows, for tests that hold operations to the kernels they list. */
const tarn__op_row *tarn__op_row_at(int index);
bool tarn__op_lists_kernel(const tarn__op_row *row, tarn__kernel kernel, bool backward);

/* Every apply function is defined in its family's file. */
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

/* Sizes beyond this are mistakes, and sums of a few of them do not overflow. */
#define TARN__IMAGE_LIMIT ((int64_t)1 << 31)

/* Raises unless x is there, of floats and of rank 4, with channels, rows and columns. */
bool tarn__check_image(const char *function, const tarn_tensor *x, const char *role);

/* Raises unless low <= value[0], value[1] <= TARN__IMAGE_LIMIT. `word` names the option. */
bool tarn__check_pair(const char *function, const char *word, const int64_t *value, int64_t low);

/* An attribute of two numbers, or of one that counts for both; `otherwise` where it was not given. False with an error
 * on another count. */
bool tarn__attribute_pair(const tarn__invocation *v, const char *name, int64_t otherwise, int64_t *pair);

/* True when x's channels lie next to each other and its columns do not: a result gets the same layout. */
bool tarn__channels_last(const tarn_tensor *x);

/* A new tensor [N, C, H, W], its channels last where `like`'s are. In the open scope. */
tarn_tensor *tarn__image_like(const char *function, const tarn_tensor *like, tarn_shape shape, tarn_dtype dtype,
                              tarn_device device);

/* ---- losses ------------------------------------------------------------------------------------------------------ */

/* Checks x [..., C], called `role`, and its targets [...], the two operands, and the options. */
bool tarn__check_losses(const char *function, const char *role, tarn_tensor **operand,
                        const tarn_cross_entropy_options *o);

/* How many targets count, as a rank-0 tensor of the loss's dtype; NULL without an error where all of them do. In the
 * open scope. */
tarn_tensor *tarn__count_targets(tarn_tensor *target, const tarn_cross_entropy_options *o, tarn_dtype dtype);

/* The losses of rows as the reduction asks for them; `counted` divides a mean, NULL: all rows do. Borrows both. */
tarn_tensor *tarn__reduce_losses(tarn_tensor *losses, tarn_tensor *counted, tarn_reduction reduction);

/* ---- broadcast-multiply gradient --------------------------------------------------------------------------------- */

/* Whether a recorded a · b is one whose gradients a single pass can make. */
bool tarn__scale_fits(const tarn__backward *b);

/* Its rule: both gradients, or that of the repeated operand alone. */
bool tarn__scale_backward(const tarn__backward *b);

#endif

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

#endif

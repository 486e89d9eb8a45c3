/* autograd.h: gradients. What is computed from a tensor that requires a gradient is recorded; tarn_backward() walks the
 * record back. */
#ifndef TARN_AUTOGRAD_H
#define TARN_AUTOGRAD_H

#include <tarn/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says whether gradients are to flow into this tensor; only for float tensors that no recorded operation made. Returns
 * the tensor. */
TARN_API tarn_tensor *tarn_requires_grad(tarn_tensor *tensor, bool required);
/* True when gradients flow into or through this tensor. */
TARN_API bool tarn_needs_grad(const tarn_tensor *tensor);

/* Computes the gradients of a tensor with one element with respect to all that it was computed from and that requires
 * one, and adds them to theirs. Activations are released on the way: the same record serves once. */
TARN_API bool tarn_backward(tarn_tensor *loss);

/* Options of tarn_backward_from(); zero is every field's default. */
typedef struct tarn_backward_options {
    bool retain; /* keep the record, so that it can be walked again */
} tarn_backward_options;

/* The same from any tensor, given the gradient that arrives there (NULL: ones, for one element only). `...` is a const
 * tarn_backward_options *, or NULL. */
TARN_API bool tarn_backward_from_sized(tarn_tensor *tensor, tarn_tensor *upstream, const tarn_backward_options *options,
                                       size_t options_size);
#define tarn_backward_from(tensor, upstream, ...) \
    tarn_backward_from_sized(tensor, upstream, __VA_ARGS__, sizeof(tarn_backward_options))

/* The gradient that backward left in a tensor that requires one; NULL (no error) if there is none yet. It belongs to
 * the tensor: read it before the next step or tarn_zero_grad(), or clone it. A bf16 or f16 tensor has an f32 gradient.
 */
TARN_API tarn_tensor *tarn_grad(const tarn_tensor *tensor);
/* Forgets the gradient of a tensor. */
TARN_API void tarn_zero_grad(tarn_tensor *tensor);

/* The same values without their record. */
TARN_API tarn_tensor *tarn_detach(tarn_tensor *tensor);

/* Between open and close nothing is recorded on this thread; pairs nest. */
TARN_API void tarn_no_grad_open(void);
TARN_API void tarn_no_grad_close(void);
/* True when operations are being recorded on this thread. */
TARN_API bool tarn_grad_enabled(void);

/* In anomaly mode every operation, forward and backward, is checked on this thread: the first that makes a non-finite
 * value from finite operands is an error naming it. Slow: it waits for every result. */
TARN_API void tarn_set_anomaly(bool on);

/* A part of a model: makes one tensor from `count` inputs. Runs in a scope of its own; the result is passed out. */
typedef tarn_tensor *(*tarn_checkpoint_fn)(tarn_tensor *const *inputs, int count, void *ctx);

/* Runs `block` without storing what it computes on the way; backward runs it a second time. The block must compute the
 * same both times (dropout does). `ctx` must live until backward has run; recorded tensors are passed as inputs, not
 * through it. A batchnorm inside it moves its running statistics both times, as in PyTorch. */
TARN_API tarn_tensor *tarn_checkpoint(tarn_checkpoint_fn block, void *ctx, tarn_tensor *const *inputs, int count);

/* The backward of a user's own operation: given the gradients of the outputs (NULL where none arrived), put those of
 * the inputs into `input_grads` (NULL where there is none). Runs in a scope of its own, unrecorded. False, with an
 * error set, on failure. */
typedef bool (*tarn_backward_fn)(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx);

/* Makes tensors that a user's code computed (unrecorded) from `inputs` differentiable: `outputs` are recorded as made
 * from `inputs`, with `backward` as rule. `release` (may be NULL) is called with ctx when the record is gone, also if
 * this call fails. */
TARN_API bool tarn_function(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs, int output_count,
                            tarn_backward_fn backward, void *ctx, void (*release)(void *ctx));

/* The same with the tensors that tarn_function_save() saved, in their order. */
typedef bool (*tarn_backward_saved_fn)(tarn_tensor *const *output_grads, tarn_tensor *const *saved,
                                       tarn_tensor **input_grads, void *ctx);

/* As tarn_function(), and saves tensors for backward: inputs, outputs or intermediate results (NULL entries are
 * allowed). The record holds them and releases them, the caller keeps nothing; `backward` gets them. One that is
 * overwritten in place before backward is an error that names it, as for the library's own operations. */
TARN_API bool tarn_function_save(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs,
                                 int output_count, tarn_tensor *const *saved, int saved_count,
                                 tarn_backward_saved_fn backward, void *ctx, void (*release)(void *ctx));

/* Options of tarn_gradcheck(); zero is every field's default. */
typedef struct tarn_gradcheck_options {
    double step;      /* of the central difference; default 1e-4, relative to 1 + |x| */
    double tolerance; /* on |a - b| / max(|b|, rms(b)); default 1e-5 */
    uint64_t seed;    /* of the random upstream gradient */
} tarn_gradcheck_options;

/* Compares the gradients of `block` with central differences, for all f64 inputs that require a gradient. False, with
 * an error naming the input, the element and both numbers, where they differ. `...` is a const tarn_gradcheck_options
 * *, or NULL. */
TARN_API bool tarn_gradcheck_sized(tarn_checkpoint_fn block, void *ctx, tarn_tensor *const *inputs, int count,
                                   const tarn_gradcheck_options *options, size_t options_size);
#define tarn_gradcheck(block, ctx, inputs, count, ...) \
    tarn_gradcheck_sized(block, ctx, inputs, count, __VA_ARGS__, sizeof(tarn_gradcheck_options))

#ifdef __cplusplus
}
#endif
#endif

/* autograd.h: gradients. Operations on tensors that require a gradient are recorded on a tape; tarn_backward() runs
 * the tape in reverse. */
#ifndef TARN_AUTOGRAD_H
#define TARN_AUTOGRAD_H

#include <tarn/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets whether a gradient is accumulated for this tensor. Only for float tensors that are not the result of a
 * recorded operation. Returns the tensor. */
TARN_API tarn_tensor *tarn_requires_grad(tarn_tensor *tensor, bool required);
/* True if gradients flow into or through this tensor. */
TARN_API bool tarn_needs_grad(const tarn_tensor *tensor);

/* Computes the gradients of a one-element tensor with respect to every tensor it depends on that requires one, and
 * accumulates them there. Frees activations on the way: a tape can be used once. */
TARN_API bool tarn_backward(tarn_tensor *loss);

/* Options of tarn_backward_from(); zero is every field's default. */
typedef struct tarn_backward_options {
    bool retain; /* keep the tape, so that backward can run again */
} tarn_backward_options;

/* The same from any tensor, given the gradient of that tensor (NULL: ones, for one element only). `...` is a const
 * tarn_backward_options *, or NULL. */
TARN_API bool tarn_backward_from_sized(tarn_tensor *tensor, tarn_tensor *upstream, const tarn_backward_options *options,
                                       size_t options_size);
#define tarn_backward_from(tensor, upstream, ...) \
    tarn_backward_from_sized(tensor, upstream, __VA_ARGS__, sizeof(tarn_backward_options))

/* The accumulated gradient of a tensor that requires one; NULL, without an error, if there is none yet. It belongs
 * to the tensor: read it before the next step or tarn_zero_grad(), or clone it. The gradient of a bf16 or f16 tensor
 * is f32. */
TARN_API tarn_tensor *tarn_grad(const tarn_tensor *tensor);
/* Drops the gradient of a tensor. */
TARN_API void tarn_zero_grad(tarn_tensor *tensor);

/* The same values without a tape. */
TARN_API tarn_tensor *tarn_detach(tarn_tensor *tensor);

/* Between open and close nothing is recorded on this thread; pairs nest. */
TARN_API void tarn_no_grad_open(void);
TARN_API void tarn_no_grad_close(void);
/* True if operations are recorded on this thread. */
TARN_API bool tarn_grad_enabled(void);

/* Anomaly mode of this thread: every operation, forward and backward, is checked, and the first that computes a
 * non-finite value from finite operands is an error that names it. Slow: waits for every result. */
TARN_API void tarn_set_anomaly(bool on);

/* Part of a model: computes one tensor from `count` inputs. Runs in its own scope; the result is returned from it. */
typedef tarn_tensor *(*tarn_checkpoint_fn)(tarn_tensor *const *inputs, int count, void *ctx);

/* Runs `block` without storing its activations; backward runs it again (activation checkpointing). Both runs must
 * compute the same values; dropout does. `ctx` must live until backward has run; recorded tensors are passed as
 * inputs, not through `ctx`. A batchnorm inside updates its running statistics in both runs, as in PyTorch. */
TARN_API tarn_tensor *tarn_checkpoint(tarn_checkpoint_fn block, void *ctx, tarn_tensor *const *inputs, int count);

/* Backward of a custom operation: given the gradients of the outputs (NULL where there is none), sets those of the
 * inputs in `input_grads` (NULL for none). Runs in its own scope, unrecorded. False, with an error set, on failure. */
typedef bool (*tarn_backward_fn)(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx);

/* Makes a custom operation differentiable: `outputs`, which user code computed (unrecorded) from `inputs`, are
 * recorded with `backward` as their gradient. `release` (may be NULL) is called with `ctx` when the record is freed,
 * and if this call fails. */
TARN_API bool tarn_function(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs, int output_count,
                            tarn_backward_fn backward, void *ctx, void (*release)(void *ctx));

/* The same with the tensors saved by tarn_function_save(), in their order. */
typedef bool (*tarn_backward_saved_fn)(tarn_tensor *const *output_grads, tarn_tensor *const *saved,
                                       tarn_tensor **input_grads, void *ctx);

/* As tarn_function(), and saves tensors for backward: inputs, outputs or intermediate results (NULL entries are
 * allowed). The tape retains and releases them; `backward` gets them. Overwriting one in place before backward is an
 * error that names it, as for the library's own operations. */
TARN_API bool tarn_function_save(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs,
                                 int output_count, tarn_tensor *const *saved, int saved_count,
                                 tarn_backward_saved_fn backward, void *ctx, void (*release)(void *ctx));

/* Options of tarn_gradcheck(); zero is every field's default. */
typedef struct tarn_gradcheck_options {
    double step;      /* of the central difference, relative to 1 + |x|; default 1e-4 */
    double tolerance; /* on |a - b| / max(|b|, rms(b)); default 1e-5 */
    uint64_t seed;    /* of the random upstream gradient */
} tarn_gradcheck_options;

/* Compares the gradients of `block` with central differences, for all f64 inputs that require a gradient. False,
 * with an error that names the input, the element and both values, where they differ. `...` is a const
 * tarn_gradcheck_options *, or NULL. */
TARN_API bool tarn_gradcheck_sized(tarn_checkpoint_fn block, void *ctx, tarn_tensor *const *inputs, int count,
                                   const tarn_gradcheck_options *options, size_t options_size);
#define tarn_gradcheck(block, ctx, inputs, count, ...) \
    tarn_gradcheck_sized(block, ctx, inputs, count, __VA_ARGS__, sizeof(tarn_gradcheck_options))

#ifdef __cplusplus
}
#endif
#endif

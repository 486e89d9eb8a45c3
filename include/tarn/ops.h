/* ops.h: the operations. Each makes its result on the device of its operands and, where a gradient is needed, records
 * itself on the tape.
 *
 * Operands are borrowed; the result belongs to the open scope. Operands of one operation have one dtype (tarn_cast()
 * converts; tarn_scalar() fits any) and broadcast against each other as in NumPy. Axes may be negative. */
#ifndef TARN_OPS_H
#define TARN_OPS_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- element by element, one operand ----------------------------------------------------------------------------- */

/* -x. */
TARN_API tarn_tensor *tarn_neg(tarn_tensor *x);
/* The absolute value; its gradient at 0 is 0. */
TARN_API tarn_tensor *tarn_abs(tarn_tensor *x);
/* -1, 0 or 1; 0 for NaN. The gradient is 0. */
TARN_API tarn_tensor *tarn_sign(tarn_tensor *x);
/* x². */
TARN_API tarn_tensor *tarn_square(tarn_tensor *x);
/* The square root; NaN below 0. */
TARN_API tarn_tensor *tarn_sqrt(tarn_tensor *x);
/* 1 / sqrt(x). */
TARN_API tarn_tensor *tarn_rsqrt(tarn_tensor *x);
/* 1 / x. */
TARN_API tarn_tensor *tarn_recip(tarn_tensor *x);
/* e to the x. */
TARN_API tarn_tensor *tarn_exp(tarn_tensor *x);
/* 2 to the x. */
TARN_API tarn_tensor *tarn_exp2(tarn_tensor *x);
/* The natural logarithm. */
TARN_API tarn_tensor *tarn_log(tarn_tensor *x);
/* The logarithm to base 2. */
TARN_API tarn_tensor *tarn_log2(tarn_tensor *x);
/* The sine, x in radians. */
TARN_API tarn_tensor *tarn_sin(tarn_tensor *x);
/* The cosine, x in radians. */
TARN_API tarn_tensor *tarn_cos(tarn_tensor *x);
/* The hyperbolic tangent. */
TARN_API tarn_tensor *tarn_tanh(tarn_tensor *x);
/* The error function. */
TARN_API tarn_tensor *tarn_erf(tarn_tensor *x);
/* 1 / (1 + exp(-x)). */
TARN_API tarn_tensor *tarn_sigmoid(tarn_tensor *x);
/* max(x, 0); its gradient at 0 is 0. */
TARN_API tarn_tensor *tarn_relu(tarn_tensor *x);
/* x where x is positive, slope · x elsewhere. */
TARN_API tarn_tensor *tarn_leaky_relu(tarn_tensor *x, double slope);
/* The Gaussian error linear unit in its tanh form, as GPT-2 uses it. */
TARN_API tarn_tensor *tarn_gelu(tarn_tensor *x);
/* The Gaussian error linear unit in its exact form, x · Φ(x). */
TARN_API tarn_tensor *tarn_gelu_erf(tarn_tensor *x);
/* x · sigmoid(x). */
TARN_API tarn_tensor *tarn_silu(tarn_tensor *x);
/* log(1 + exp(x)), without overflow. */
TARN_API tarn_tensor *tarn_softplus(tarn_tensor *x);
/* x held between low and high; NaN stays NaN. The gradient is 1 strictly between low and high, 0 elsewhere. */
TARN_API tarn_tensor *tarn_clamp(tarn_tensor *x, double low, double high);
/* Converts to another dtype: to integers by cutting off the fraction, to bool by x ≠ 0. Differentiable between float
 * dtypes. The same tensor if it has that dtype already. Blocks are made of finite floats below 2^18, not
 * differentiably, and become floats. */
TARN_API tarn_tensor *tarn_cast(tarn_tensor *x, tarn_dtype dtype);

/* ---- element by element, two and three operands ------------------------------------------------------------------ */

/* a + b. */
TARN_API tarn_tensor *tarn_add(tarn_tensor *a, tarn_tensor *b);
/* a - b. */
TARN_API tarn_tensor *tarn_sub(tarn_tensor *a, tarn_tensor *b);
/* a · b. */
TARN_API tarn_tensor *tarn_mul(tarn_tensor *a, tarn_tensor *b);
/* a / b. Float dtypes only: cast integers first. */
TARN_API tarn_tensor *tarn_div(tarn_tensor *a, tarn_tensor *b);
/* The larger of both; NaN wins. Equal operands share the gradient. */
TARN_API tarn_tensor *tarn_maximum(tarn_tensor *a, tarn_tensor *b);
/* The smaller of both; NaN wins. Equal operands share the gradient. */
TARN_API tarn_tensor *tarn_minimum(tarn_tensor *a, tarn_tensor *b);
/* The remainder with the sign of b, as torch.remainder. An integer b of 0 gives 0. */
TARN_API tarn_tensor *tarn_mod(tarn_tensor *a, tarn_tensor *b);
/* a to the power b. Float dtypes only. */
TARN_API tarn_tensor *tarn_pow(tarn_tensor *a, tarn_tensor *b);

/* Comparisons: the result is bool, and has no gradient. */
TARN_API tarn_tensor *tarn_eq(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_ne(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_lt(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_le(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_gt(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_ge(tarn_tensor *a, tarn_tensor *b);

/* a where the bool tensor `condition` holds, b elsewhere. */
TARN_API tarn_tensor *tarn_where(tarn_tensor *condition, tarn_tensor *a, tarn_tensor *b);

/* In-place forms: they overwrite the first operand and return it. Off the tape: a tensor that needs a gradient or was
 * recorded with one is an error, and backward refuses whatever saved the old values. The second operand broadcasts to
 * the first. */
TARN_API tarn_tensor *tarn_neg_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_abs_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_sign_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_square_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_sqrt_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_rsqrt_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_recip_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_exp_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_exp2_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_log_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_log2_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_sin_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_cos_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_tanh_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_erf_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_sigmoid_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_relu_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_leaky_relu_inplace(tarn_tensor *x, double slope);
TARN_API tarn_tensor *tarn_gelu_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_gelu_erf_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_silu_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_softplus_inplace(tarn_tensor *x);
TARN_API tarn_tensor *tarn_clamp_inplace(tarn_tensor *x, double low, double high);
TARN_API tarn_tensor *tarn_add_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_sub_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_mul_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_div_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_maximum_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_minimum_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_mod_inplace(tarn_tensor *a, tarn_tensor *b);
TARN_API tarn_tensor *tarn_pow_inplace(tarn_tensor *a, tarn_tensor *b);
/* Sets every element to a value, in place. */
TARN_API tarn_tensor *tarn_fill_inplace(tarn_tensor *x, double value);

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* The sum over the given axes; with `keep` they stay as axes of size 1. Integers and bool are summed in i64. */
TARN_API tarn_tensor *tarn_sum(tarn_tensor *x, tarn_axes axes, bool keep);
/* The mean over the given axes; NaN over no elements. Float dtypes only. */
TARN_API tarn_tensor *tarn_mean(tarn_tensor *x, tarn_axes axes, bool keep);
/* The product over the given axes. Integers and bool are multiplied in i64. */
TARN_API tarn_tensor *tarn_prod(tarn_tensor *x, tarn_axes axes, bool keep);
/* The largest element over the given axes; NaN wins. Equal elements share the gradient. */
TARN_API tarn_tensor *tarn_max(tarn_tensor *x, tarn_axes axes, bool keep);
/* The smallest element over the given axes; NaN wins. Equal elements share the gradient. */
TARN_API tarn_tensor *tarn_min(tarn_tensor *x, tarn_axes axes, bool keep);
/* The index of the largest element along one axis, the first of equal ones, as i64; NaN wins. */
TARN_API tarn_tensor *tarn_argmax(tarn_tensor *x, int axis, bool keep);
/* The index of the smallest element along one axis, the first of equal ones, as i64; NaN wins. */
TARN_API tarn_tensor *tarn_argmin(tarn_tensor *x, int axis, bool keep);
/* The variance over the given axes: squared distances from the mean, summed, divided by count - correction (1:
 * unbiased). */
TARN_API tarn_tensor *tarn_var(tarn_tensor *x, tarn_axes axes, double correction, bool keep);
/* Running sums along an axis. Integers and bool are summed in i64. */
TARN_API tarn_tensor *tarn_cumsum(tarn_tensor *x, int axis);

/* ---- movement: most of these copy nothing ------------------------------------------------------------------------ */

/* The same elements in another shape; one size may be -1 and is worked out. Copies only when the strides leave no other
 * way. */
TARN_API tarn_tensor *tarn_reshape(tarn_tensor *x, tarn_shape shape);
/* The axes in another order: axis i of the result is axis axes[i] of x. */
TARN_API tarn_tensor *tarn_permute(tarn_tensor *x, tarn_axes axes);
/* Two axes exchanged. */
TARN_API tarn_tensor *tarn_transpose(tarn_tensor *x, int a, int b);
/* Axes of size 1 (and new leading axes) repeated to `shape`, without a copy; -1 leaves a size as it is. */
TARN_API tarn_tensor *tarn_expand(tarn_tensor *x, tarn_shape shape);
/* A new axis of size 1 before `axis`; or an axis of size 1 taken out. */
TARN_API tarn_tensor *tarn_unsqueeze(tarn_tensor *x, int axis);
TARN_API tarn_tensor *tarn_squeeze(tarn_tensor *x, int axis);
/* Elements of `value` put before and after each axis. */
TARN_API tarn_tensor *tarn_pad(tarn_tensor *x, tarn_shape before, tarn_shape after, double value);
/* The part from begin[i] up to, not including, end[i] of every axis i. */
TARN_API tarn_tensor *tarn_shrink(tarn_tensor *x, tarn_shape begin, tarn_shape end);
/* The part from `begin` up to, not including, `end` of one axis. */
TARN_API tarn_tensor *tarn_slice(tarn_tensor *x, int axis, int64_t begin, int64_t end);
/* Every steps[i]-th element of each axis i, beginning with the first. */
TARN_API tarn_tensor *tarn_stride(tarn_tensor *x, tarn_shape steps);
/* The given axes reversed. */
TARN_API tarn_tensor *tarn_flip(tarn_tensor *x, tarn_axes axes);
/* The same elements, row-major without gaps; x itself if it lies so already. */
TARN_API tarn_tensor *tarn_contiguous(tarn_tensor *x);
/* Tensors joined along an axis that exists. */
TARN_API tarn_tensor *tarn_concat(tarn_tensor *const *tensors, int count, int axis);
/* Tensors of one shape joined along a new axis. */
TARN_API tarn_tensor *tarn_stack(tarn_tensor *const *tensors, int count, int axis);
/* x cut along an axis into `count` parts of the given sizes, which add up to the axis; the parts are views, put into
 * `parts`. */
TARN_API bool tarn_split(tarn_tensor *x, int axis, const int64_t *sizes, int count, tarn_tensor **parts);

/* ---- indexing and sorting ---------------------------------------------------------------------------------------- */

/* result[i][j] = x[index[i][j]][j] for axis 0, and so on: as torch.gather. `index` is i64 (or i32) of x's rank. An
 * index outside the axis is an error. */
TARN_API tarn_tensor *tarn_gather(tarn_tensor *x, int axis, tarn_tensor *index);
/* A copy of x with source[i][j] added at [index[i][j]][j] for axis 0, and so on, in a fixed order. */
TARN_API tarn_tensor *tarn_scatter_add(tarn_tensor *x, int axis, tarn_tensor *index, tarn_tensor *source);
/* The slices of x along an axis that a 1-D index lists; of blocks, along any axis but the last. */
TARN_API tarn_tensor *tarn_index_select(tarn_tensor *x, int axis, tarn_tensor *index);
/* A new last axis of `classes` zeros with a one where the index says; in `dtype`. */
TARN_API tarn_tensor *tarn_one_hot(tarn_tensor *index, int64_t classes, tarn_dtype dtype);
/* The rows of weight [V, C] that the index lists: result shape is index's shape and C. Rows of blocks become f32. */
TARN_API tarn_tensor *tarn_embedding(tarn_tensor *weight, tarn_tensor *index);
/* The k largest (or smallest) elements along an axis, sorted, and their i64 indices. Either result may be NULL where it
 * is not wanted. */
TARN_API bool tarn_topk(tarn_tensor *x, int64_t k, int axis, bool largest, tarn_tensor **values, tarn_tensor **indices);
/* The elements along an axis sorted (stably; NaN counts as the largest), and their i64 indices. Either result may be
 * NULL. */
TARN_API bool tarn_sort(tarn_tensor *x, int axis, bool descending, tarn_tensor **values, tarn_tensor **indices);

/* ---- products, normalisation ------------------------------------------------------------------------------------- */

/* The matrix product of the last two axes, as in NumPy: vectors, matrices, batches, [B,M,K] @ [K,N], broadcast batches.
 * Transposed views are used as they are. */
TARN_API tarn_tensor *tarn_matmul(tarn_tensor *a, tarn_tensor *b);
/* Lets products of f32 tensors, forward and backward, be made from operands cut to 10 bits after the point (TF32) on
 * devices that are faster so, or (the default) not. For all threads; no effect on the CPU and on other dtypes. */
TARN_API void tarn_set_tf32(bool on);
/* x · weightᵀ + bias, with weight [out, in] and bias [out] or NULL, over the last axis of x. A weight that has no
 * gradient may hold blocks (x and bias of f32 or 16 bits), or 16 bits where x is f32 (bias of any of these): it is used
 * as it lies. Kernels for blocks round x to 8 bits, 32 elements with one scale: the result is within the sum of
 * |weight| · scale / 2 of the product with the elements that the blocks stand for; an x that is not finite makes its
 * row infinite or NaN. */
TARN_API tarn_tensor *tarn_linear_apply(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);
/* gelu(x · upᵀ + up_bias) · downᵀ + down_bias over the last axis of x, the block between a transformer's attentions: up
 * is [hidden, in], down [out, hidden], biases [hidden] and [out] or NULL. The same as two tarn_linear_apply() with
 * tarn_gelu() between them, with fewer passes over memory. */
TARN_API tarn_tensor *tarn_mlp(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                               tarn_tensor *down_bias);
/* silu(gate) · up, which have one shape: what a gated mlp (Llama's) has between its layers. The same as tarn_mul() of
 * tarn_silu(), in one pass, and rounded once. */
TARN_API tarn_tensor *tarn_swiglu(tarn_tensor *gate, tarn_tensor *up);

/* Options of attention; zero is every field's default. */
typedef struct tarn_attention_options {
    bool causal;    /* a row attends to the keys up to its own position only */
    double scale;   /* of the products of q and k; 0: 1 / sqrt(D) */
    double dropout; /* each weight is zeroed with this probability, from 0 up to but not 1, rounded to 1 to 65535 of
                     * 65536 where it is not 0, the others divided by 1 minus it; the same in backward */
    /* i32 or i64, [B], or [1] or rank 0 for all: how many of the S keys and values are there, as in a cache that is
     * being filled; NULL: all */
    tarn_tensor *lengths;
    /* i32 or i64, [B, T]: row t attends to no key before starts[b, t], so that documents beside each other stay apart;
     * NULL: from the first */
    tarn_tensor *document_starts;
} tarn_attention_options;

/* softmax(q · kᵀ · scale) · v for queries q [B, H, T, D] and keys and values k, v [B, KV, S, D]; H is a multiple of KV,
 * and H / KV neighbouring heads of q share a head of k and v. Queries stand at the end: of the valid keys (S, or
 * lengths[b]), row t is at position valid - T + t; so T = 1 with a cache is the newest token, and `causal` with S = T
 * the usual triangle. (PyTorch's is_causal aligns at the beginning where S > T.) A row with nothing to attend to is 0,
 * and so is one whose scores are all -infinity, as in PyTorch. With `starts`, a device without a kernel for them
 * (`attention_starts`) makes attention of other operations, which takes memory for T × S weights; starts outside the
 * keys are an error on the CPU, and elsewhere count as the nearest bound. Views are taken as they are: [B, T, H, D]
 * permuted costs no copy. The result is [B, H, T, D] and lies in memory as [B, T, H, D], so that
 * tarn_reshape(tarn_permute(y, TARN_AXES(0, 2, 1, 3)), …) merges the heads for nothing. By its kernels no T × S weights
 * are ever stored. Sums of bf16 and f16 run in f32. `...` is a const tarn_attention_options *, or NULL. */
TARN_API tarn_tensor *tarn_attention_sized(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v,
                                           const tarn_attention_options *options, size_t options_size);
#define tarn_attention(q, k, v, ...) tarn_attention_sized(q, k, v, __VA_ARGS__, sizeof(tarn_attention_options))
/* The same for queries, keys and values side by side, as one linear layer makes them: qkv [B, T, (heads + 2 · kv_heads)
 * · D], first all heads of q, then those of k, then those of v. The result is [B, T, heads · D]; the gradient is
 * written in the packed form. kv_heads 0: as many as heads. */
TARN_API tarn_tensor *tarn_attention_packed_sized(tarn_tensor *qkv, int64_t heads, int64_t kv_heads,
                                                  const tarn_attention_options *options, size_t options_size);
#define tarn_attention_packed(qkv, heads, kv_heads, ...) \
    tarn_attention_packed_sized(qkv, heads, kv_heads, __VA_ARGS__, sizeof(tarn_attention_options))

/* How rotary frequencies are changed for texts longer than a model was trained on: linear divides all of them by a
 * factor; llama3 those of wavelengths beyond original / low, leaves those below original / high, and blends in between.
 */
typedef enum tarn_rope_scaling { TARN_ROPE_DEFAULT = 0, TARN_ROPE_LINEAR, TARN_ROPE_LLAMA3 } tarn_rope_scaling;

/* Options of tarn_rope(); zero is every field's default. */
typedef struct tarn_rope_options {
    int axis;     /* along which positions go: 1 (also 0), x being [B, T, H, D]; 2: [B, H, T, D] */
    double base;  /* default 10000 */
    int64_t dims; /* how many elements at the start of D are turned, an even number up to 512; 0: D */
    /* neighbours (2 i, 2 i + 1) are a pair, as in GPT-J; default: (i, i + dims / 2), as in Llama's weights at Hugging
     * Face */
    bool interleaved;
    tarn_rope_scaling scaling;
    double factor;    /* of linear and llama3; default 8 */
    double low, high; /* of llama3; default 1 and 4 */
    int64_t original; /* of llama3: positions the model was trained on; default 8192 */
} tarn_rope_options;

/* Rotary positions: pair i of the last axis of x is turned by the angle position · base^(-2 i / dims). `positions` is
 * i32 or i64, [T] or [B, T], or NULL: 0, 1, 2 … Angles are computed in f64. `...` is a const tarn_rope_options *, or
 * NULL. */
TARN_API tarn_tensor *tarn_rope_sized(tarn_tensor *x, tarn_tensor *positions, const tarn_rope_options *options,
                                      size_t options_size);
#define tarn_rope(x, positions, ...) tarn_rope_sized(x, positions, __VA_ARGS__, sizeof(tarn_rope_options))

/* Images are [N, C, H, W]: N images of C channels, H rows and W columns. Strides carry the layout: an image whose
 * channels lie next to each other (channels last) is a tensor [N, H, W, C] seen through tarn_permute(x, TARN_AXES(0, 3,
 * 1, 2)), and results keep the layout of x. */

/* Options of tarn_conv2d(), rows before columns; zero is every field's default. */
typedef struct tarn_conv2d_options {
    int64_t stride[2];   /* 0: 1 */
    int64_t padding[2];  /* zeros around the image, on each side */
    int64_t dilation[2]; /* distance of neighbouring taps; 0: 1 */
    int64_t groups;      /* channels fall into so many groups that do not see each other; 0: 1 */
} tarn_conv2d_options;

/* The convolution (as networks call it: the kernel is not turned around) of images x [N, C, H, W] with weight [O, C /
 * groups, KH, KW], plus bias [O], which may be NULL: [N, O, OH, OW] with OH = (H + 2 · padding - dilation · (KH - 1) -
 * 1) / stride + 1, rounded down. `...` is a const tarn_conv2d_options *, or NULL. bf16 and f16 are summed in f32. */
TARN_API tarn_tensor *tarn_conv2d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                        const tarn_conv2d_options *options, size_t options_size);
#define tarn_conv2d(x, weight, bias, ...) tarn_conv2d_sized(x, weight, bias, __VA_ARGS__, sizeof(tarn_conv2d_options))

/* Options of pooling, rows before columns. */
typedef struct tarn_pool2d_options {
    int64_t kernel[2];   /* the window; required */
    int64_t stride[2];   /* 0: the kernel's size */
    int64_t padding[2];  /* at most half of the kernel */
    int64_t dilation[2]; /* distance of neighbouring elements of a window, 0: 1; of maxima only */
    /* round the number of windows up, where the last one still begins inside the image or in front of it */
    bool ceil_mode;
    bool exclude_padding; /* averages only: divide by the number of elements inside the image */
} tarn_pool2d_options;

/* The largest element of each window. The first of equal ones gets the gradient, NaN is larger than everything, padding
 * is -infinity. */
TARN_API tarn_tensor *tarn_max_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size);
#define tarn_max_pool2d(x, ...) tarn_max_pool2d_sized(x, __VA_ARGS__, sizeof(tarn_pool2d_options))
/* The average of each window; padding counts as zeros unless it is excluded. */
TARN_API tarn_tensor *tarn_avg_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size);
#define tarn_avg_pool2d(x, ...) tarn_avg_pool2d_sized(x, __VA_ARGS__, sizeof(tarn_pool2d_options))
/* The average of each channel of each image: [N, C, 1, 1]. */
TARN_API tarn_tensor *tarn_global_avg_pool2d(tarn_tensor *x);

/* exp(x) divided by its sum along an axis; a row of -infinity gives NaN. */
TARN_API tarn_tensor *tarn_softmax(tarn_tensor *x, int axis);
/* The logarithm of the softmax, computed without losing digits. */
TARN_API tarn_tensor *tarn_log_softmax(tarn_tensor *x, int axis);
/* (x - mean) / sqrt(variance + epsilon) over the last axis, times weight, plus bias; either may be NULL. */
TARN_API tarn_tensor *tarn_layernorm(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, double epsilon);
/* x / sqrt(mean of squares + epsilon) over the last axis, times weight, which may be NULL. */
TARN_API tarn_tensor *tarn_rmsnorm(tarn_tensor *x, tarn_tensor *weight, double epsilon);
/* What stands between the blocks of a transformer, in one pass: *sum = x + delta, of one shape, and as the result the
 * norm of that sum: tarn_layernorm(), or tarn_rmsnorm() where `rms` is set (bias is NULL then). Both belong to the open
 * scope. */
TARN_API tarn_tensor *tarn_residual_norm(tarn_tensor *x, tarn_tensor *delta, tarn_tensor *weight, tarn_tensor *bias,
                                         bool rms, double epsilon, tarn_tensor **sum);
/* Options of tarn_batchnorm() and tarn_batchnorm_relu(); zero is every field's default. */
typedef struct tarn_batchnorm_options {
    /* use the batch's own statistics and let the running ones take them in; default: use the running ones */
    bool training;
    double momentum; /* running = (1 - momentum) · running + momentum · the batch's; default 0.1 */
    double epsilon;  /* default 1e-5 */
} tarn_batchnorm_options;

/* (x - mean) / sqrt(variance + epsilon) for each channel of x [N, C, ...], times weight, plus bias; as torch's
 * batch_norm. weight, bias and the running statistics are [C], of x's dtype or f32, or NULL. In training mean and
 * variance are those of x, and running_mean and running_var (with the divisor count - 1) are changed in place, off the
 * tape; else they are the running ones. `...` is a const tarn_batchnorm_options *, or NULL. */
TARN_API tarn_tensor *tarn_batchnorm_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                           tarn_tensor *running_mean, tarn_tensor *running_var,
                                           const tarn_batchnorm_options *options, size_t options_size);
#define tarn_batchnorm(x, weight, bias, running_mean, running_var, ...) \
    tarn_batchnorm_sized(x, weight, bias, running_mean, running_var, __VA_ARGS__, sizeof(tarn_batchnorm_options))
/* relu(tarn_batchnorm(x) + residual), what a block of a ResNet ends with, in as few passes as batchnorm alone, forward
 * and backward. residual has x's shape and dtype; NULL: nothing is added. The sum is rounded once where x is 16-bit.
 * The rest is as for tarn_batchnorm(), and so are the options. */
TARN_API tarn_tensor *tarn_batchnorm_relu_sized(tarn_tensor *x, tarn_tensor *residual, tarn_tensor *weight,
                                                tarn_tensor *bias, tarn_tensor *running_mean, tarn_tensor *running_var,
                                                const tarn_batchnorm_options *options, size_t options_size);
#define tarn_batchnorm_relu(x, residual, weight, bias, running_mean, running_var, ...) \
    tarn_batchnorm_relu_sized(x, residual, weight, bias, running_mean, running_var, __VA_ARGS__, \
                              sizeof(tarn_batchnorm_options))
/* tarn_batchnorm() with the mean and variance of each group of C / groups neighbouring channels in each of the N parts
 * of x [N, C, ...]; weight and bias are [C] or NULL. */
TARN_API tarn_tensor *tarn_groupnorm(tarn_tensor *x, int64_t groups, tarn_tensor *weight, tarn_tensor *bias,
                                     double epsilon);
/* Each element zeroed with probability p, the others divided by 1 - p; the same mask in backward. */
TARN_API tarn_tensor *tarn_dropout(tarn_tensor *x, double p);

/* ---- losses ------------------------------------------------------------------------------------------------------ */

/* How a loss over many elements becomes the result. */
typedef enum tarn_reduction { TARN_REDUCE_MEAN = 0, TARN_REDUCE_SUM, TARN_REDUCE_NONE } tarn_reduction;

/* Options of tarn_cross_entropy(); zero is every field's default. */
typedef struct tarn_cross_entropy_options {
    double label_smoothing;      /* 0 to 1, spread over all classes */
    const int64_t *ignore_index; /* targets of this value do not count; NULL: all count */
    tarn_reduction reduction;    /* the mean is over the targets that count */
} tarn_cross_entropy_options;

/* The cross entropy of logits [..., C] against i64 (or i32) class indices [...]. `...` is a const
 * tarn_cross_entropy_options *, or NULL. Loss and gradient are computed in one pass. The loss of bf16 and f16 logits is
 * f32. */
TARN_API tarn_tensor *tarn_cross_entropy_sized(tarn_tensor *logits, tarn_tensor *target,
                                               const tarn_cross_entropy_options *options, size_t options_size);
#define tarn_cross_entropy(logits, target, ...) \
    tarn_cross_entropy_sized(logits, target, __VA_ARGS__, sizeof(tarn_cross_entropy_options))

/* tarn_cross_entropy(tarn_linear_apply(x, weight, NULL), target, options) for x [..., C] and weight [V, C], a language
 * model's last layer and loss, a few rows at a time: all logits never exist. Where the loss is recorded (and not for
 * each row), the gradients are made in the forward pass, while the logits are there, and backward scales them. */
TARN_API tarn_tensor *tarn_linear_cross_entropy_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *target,
                                                      const tarn_cross_entropy_options *options, size_t options_size);
#define tarn_linear_cross_entropy(x, weight, target, ...) \
    tarn_linear_cross_entropy_sized(x, weight, target, __VA_ARGS__, sizeof(tarn_cross_entropy_options))

/* The mean of squared differences. */
TARN_API tarn_tensor *tarn_mse_loss(tarn_tensor *prediction, tarn_tensor *target);
/* The mean of absolute differences. */
TARN_API tarn_tensor *tarn_l1_loss(tarn_tensor *prediction, tarn_tensor *target);
/* The mean of the Huber loss: quadratic up to a difference of `delta`, linear beyond. */
TARN_API tarn_tensor *tarn_huber_loss(tarn_tensor *prediction, tarn_tensor *target, double delta);
/* The mean binary cross entropy of logits against targets from 0 to 1, without overflow. */
TARN_API tarn_tensor *tarn_bce_with_logits_loss(tarn_tensor *logits, tarn_tensor *target);

/* ---- any operation by name --------------------------------------------------------------------------------------- */

/* One attribute of an operation, by name: {"axis", .integer = 1}, {"axes", .list = {0, 2}, .count = 2}, {"epsilon",
 * .number = 1e-5}. */
typedef struct tarn_attribute {
    const char *name;
    double number;
    int64_t integer;
    int64_t list[TARN_MAX_RANK];
    int count;
} tarn_attribute;

/* What is known of one operation; tarn_op_at() fills it in. */
typedef struct tarn_op_info {
    const char *name;
    const char *attributes; /* "axis:int keep:bool", in order; "" for none */
    int min_inputs;
    int max_inputs;
    int outputs;
    bool differentiable;
} tarn_op_info;

/* How many operations there are. */
TARN_API int tarn_op_count(void);
/* Describes operation number `index`. */
TARN_API bool tarn_op_at(int index, tarn_op_info *info);
/* The number of the operation of that name, -1 (no error) if there is none. */
TARN_API int tarn_op_find(const char *name);
/* True when a backend ("cpu", "cuda" …) has every kernel that the operation's forward (or backward) uses; also where it
 * finds no device. */
TARN_API bool tarn_op_on(int index, const char *backend, bool backward);

/* Runs any operation by its name on device tensors. Attributes that are not given have their defaults; one that the
 * operation does not have is an error. `outputs` receives as many tensors as the operation has outputs; they belong to
 * the open scope. */
TARN_API bool tarn_apply(const char *name, tarn_tensor *const *inputs, int input_count,
                         const tarn_attribute *attributes, int attribute_count, tarn_tensor **outputs,
                         int output_count);

/* A host array, row-major. As an output, `data` and `shape` are filled in by the call and `data` is released with
 * tarn_array_free(). */
typedef struct tarn_array {
    void *data;
    tarn_shape shape;
    tarn_dtype dtype;
} tarn_array;

/* Runs any operation by its name on host arrays on a device: uploads, computes, copies back, and frees everything, on
 * failure too. */
TARN_API bool tarn_apply_host(const char *name, tarn_device device, const tarn_array *inputs, int input_count,
                              const tarn_attribute *attributes, int attribute_count, tarn_array *outputs,
                              int output_count);

/* The backward of tarn_apply_host(): runs the operation on host arrays and takes the gradients of its outputs back to
 * its inputs. `output_grads` has an array of the shape and dtype of each output; one whose data is NULL means that none
 * arrives. `wanted` has bit i set for each input whose gradient is computed; 0 means every input of a float dtype.
 * `input_grads` receives an array per input, released with tarn_array_free(); data is NULL where no gradient was wanted
 * or none arrived. The gradient of a bf16 or f16 input is f32. False, with an error, on failure: then nothing is left
 * behind. */
TARN_API bool tarn_apply_host_backward(const char *name, tarn_device device, const tarn_array *inputs, int input_count,
                                       const tarn_attribute *attributes, int attribute_count,
                                       const tarn_array *output_grads, int output_count, uint64_t wanted,
                                       tarn_array *input_grads);

/* Releases the data of an array that tarn_apply_host() or tarn_apply_host_backward() made, and clears it. */
TARN_API void tarn_array_free(tarn_array *array);

#ifdef __cplusplus
}
#endif
#endif

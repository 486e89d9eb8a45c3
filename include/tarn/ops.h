/* ops.h: operations. Each computes its result on the device of its operands and, where a gradient is needed, records
 * itself on the tape.
 *
 * Operands are borrowed; the result belongs to the open scope. The operands of one operation have one dtype
 * (tarn_cast() converts; tarn_scalar() adapts) and broadcast as in NumPy. Axes may be negative. */
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
/* x clamped to [low, high]; NaN stays NaN. The gradient is 1 strictly between low and high, 0 elsewhere. */
TARN_API tarn_tensor *tarn_clamp(tarn_tensor *x, double low, double high);
/* Converts to another dtype: to integers by truncation, to bool by x ≠ 0. Differentiable between float dtypes.
 * Returns the same tensor if it already has that dtype. Casting to a quantized dtype quantizes, which takes finite
 * floats below 2^18 and is not differentiable; casting from one dequantizes. */
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
/* The larger operand; NaN propagates. Equal operands share the gradient. */
TARN_API tarn_tensor *tarn_maximum(tarn_tensor *a, tarn_tensor *b);
/* The smaller operand; NaN propagates. Equal operands share the gradient. */
TARN_API tarn_tensor *tarn_minimum(tarn_tensor *a, tarn_tensor *b);
/* Remainder with the sign of b, as torch.remainder. An integer b of 0 gives 0. */
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

/* In-place forms: overwrite the first operand and return it. Not recorded: a tensor that needs a gradient, or was
 * recorded with one, is an error, and backward fails if it needs the overwritten values. The second operand
 * broadcasts to the first. */
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

/* Sum over the given axes; with `keepdim` they stay as axes of size 1. Integers and bool are summed in i64. */
TARN_API tarn_tensor *tarn_sum(tarn_tensor *x, tarn_axes axes, bool keepdim);
/* Mean over the given axes; NaN over no elements. Float dtypes only. */
TARN_API tarn_tensor *tarn_mean(tarn_tensor *x, tarn_axes axes, bool keepdim);
/* Product over the given axes. Integers and bool are multiplied in i64. */
TARN_API tarn_tensor *tarn_prod(tarn_tensor *x, tarn_axes axes, bool keepdim);
/* Maximum over the given axes; NaN propagates. Equal maxima share the gradient. */
TARN_API tarn_tensor *tarn_max(tarn_tensor *x, tarn_axes axes, bool keepdim);
/* Minimum over the given axes; NaN propagates. Equal minima share the gradient. */
TARN_API tarn_tensor *tarn_min(tarn_tensor *x, tarn_axes axes, bool keepdim);
/* Index of the maximum along one axis, the first of equal ones, as i64; NaN propagates. */
TARN_API tarn_tensor *tarn_argmax(tarn_tensor *x, int axis, bool keepdim);
/* Index of the minimum along one axis, the first of equal ones, as i64; NaN propagates. */
TARN_API tarn_tensor *tarn_argmin(tarn_tensor *x, int axis, bool keepdim);
/* Variance over the given axes: sum of squared distances from the mean, divided by count - correction (1: unbiased). */
TARN_API tarn_tensor *tarn_var(tarn_tensor *x, tarn_axes axes, double correction, bool keepdim);
/* Prefix sums along an axis. Integers and bool are summed in i64. */
TARN_API tarn_tensor *tarn_cumsum(tarn_tensor *x, int axis);

/* ---- movement: most of these copy nothing ------------------------------------------------------------------------ */

/* The same elements in another shape; one size may be -1 and is inferred. Copies only if the strides require it. */
TARN_API tarn_tensor *tarn_reshape(tarn_tensor *x, tarn_shape shape);
/* Permuted axes: axis i of the result is axis axes[i] of x. */
TARN_API tarn_tensor *tarn_permute(tarn_tensor *x, tarn_axes axes);
/* Two axes exchanged. */
TARN_API tarn_tensor *tarn_transpose(tarn_tensor *x, int a, int b);
/* Axes of size 1, and new leading axes, repeated to `shape`, without a copy; -1 keeps a size. */
TARN_API tarn_tensor *tarn_expand(tarn_tensor *x, tarn_shape shape);
/* A new axis of size 1 before `axis`; or an axis of size 1 removed. */
TARN_API tarn_tensor *tarn_unsqueeze(tarn_tensor *x, int axis);
TARN_API tarn_tensor *tarn_squeeze(tarn_tensor *x, int axis);
/* `value` padded before and after each axis. */
TARN_API tarn_tensor *tarn_pad(tarn_tensor *x, tarn_shape before, tarn_shape after, double value);
/* The slice [begin[i], end[i]) of every axis i. */
TARN_API tarn_tensor *tarn_shrink(tarn_tensor *x, tarn_shape begin, tarn_shape end);
/* The slice [begin, end) of one axis. */
TARN_API tarn_tensor *tarn_slice(tarn_tensor *x, int axis, int64_t begin, int64_t end);
/* Every steps[i]-th element of each axis i, starting with the first. */
TARN_API tarn_tensor *tarn_stride(tarn_tensor *x, tarn_shape steps);
/* The given axes reversed. */
TARN_API tarn_tensor *tarn_flip(tarn_tensor *x, tarn_axes axes);
/* The same elements, row-major without gaps; x itself if it is contiguous. */
TARN_API tarn_tensor *tarn_contiguous(tarn_tensor *x);
/* Tensors concatenated along an existing axis. */
TARN_API tarn_tensor *tarn_concat(tarn_tensor *const *tensors, int count, int axis);
/* Tensors of one shape concatenated along a new axis. */
TARN_API tarn_tensor *tarn_stack(tarn_tensor *const *tensors, int count, int axis);
/* Splits x along an axis into `count` views of the given sizes, which add up to the axis; puts them into `parts`. */
TARN_API bool tarn_split(tarn_tensor *x, int axis, const int64_t *sizes, int count, tarn_tensor **parts);

/* ---- indexing and sorting ---------------------------------------------------------------------------------------- */

/* result[i][j] = x[index[i][j]][j] for axis 0, and so on: as torch.gather. `index` is i64 (or i32) of x's rank. An
 * index out of range is an error. */
TARN_API tarn_tensor *tarn_gather(tarn_tensor *x, int axis, tarn_tensor *index);
/* A copy of x with source[i][j] added at [index[i][j]][j] for axis 0, and so on, in a deterministic order. */
TARN_API tarn_tensor *tarn_scatter_add(tarn_tensor *x, int axis, tarn_tensor *index, tarn_tensor *source);
/* The slices of x along an axis that a 1-D index lists; of a quantized x, along any axis but the last. */
TARN_API tarn_tensor *tarn_index_select(tarn_tensor *x, int axis, tarn_tensor *index);
/* A new last axis of `classes` zeros with a one at the index, in `dtype`. */
TARN_API tarn_tensor *tarn_one_hot(tarn_tensor *index, int64_t classes, tarn_dtype dtype);
/* The rows of weight [V, C] that the index lists; the result has index's shape and C. Rows of a quantized weight
 * become f32. */
TARN_API tarn_tensor *tarn_embedding(tarn_tensor *weight, tarn_tensor *index);
/* The k largest (or smallest) elements along an axis, sorted, and their i64 indices. Either result may be NULL. */
TARN_API bool tarn_topk(tarn_tensor *x, int64_t k, int axis, bool largest, tarn_tensor **values, tarn_tensor **indices);
/* The elements along an axis, sorted stably (NaN is the largest), and their i64 indices. Either result may be NULL. */
TARN_API bool tarn_sort(tarn_tensor *x, int axis, bool descending, tarn_tensor **values, tarn_tensor **indices);

/* ---- products, normalisation ------------------------------------------------------------------------------------- */

/* Matrix product of the last two axes, as in NumPy: vectors, matrices, batches, [B,M,K] @ [K,N], broadcast batches.
 * Transposed views need no copy. */
TARN_API tarn_tensor *tarn_matmul(tarn_tensor *a, tarn_tensor *b);
/* Allows TF32 (10-bit mantissa) for matmuls, convolutions and attention of f32 tensors, forward and backward, on
 * devices where it is faster; off by default. For all threads; no effect on the CPU and on other dtypes. */
TARN_API void tarn_set_tf32(bool on);
/* x · weightᵀ + bias over the last axis of x, with weight [out, in] and bias [out] or NULL. A weight without a
 * gradient may be quantized (x and bias f32 or 16-bit), or 16-bit where x is f32 (bias of any of these); it is used
 * without conversion. Kernels for quantized weights round x to 8 bits, with one scale per 32 elements: the result is
 * within sum(|weight|) · scale / 2 of the product with the dequantized weight. A non-finite x makes its row infinite
 * or NaN. */
TARN_API tarn_tensor *tarn_linear_apply(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);
/* gelu(x · upᵀ + up_bias) · downᵀ + down_bias over the last axis of x, the MLP of a transformer layer: up is
 * [hidden, in], down [out, hidden], biases [hidden] and [out] or NULL. Equal to two tarn_linear_apply() with
 * tarn_gelu() between them, with fewer passes over memory. */
TARN_API tarn_tensor *tarn_mlp(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                               tarn_tensor *down_bias);

/* Activations of a layer. */
typedef enum tarn_activation_kind {
    TARN_RELU = 0,
    TARN_LEAKY_RELU, /* slope 0.01 */
    TARN_GELU,       /* tanh form */
    TARN_GELU_ERF,
    TARN_SILU,
    TARN_TANH,
    TARN_SIGMOID,
    TARN_SOFTPLUS
} tarn_activation_kind;

/* tarn_mlp() with another activation: relu, gelu (the tanh form), gelu_erf or silu. */
TARN_API tarn_tensor *tarn_mlp_with(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                                    tarn_tensor *down_bias, tarn_activation_kind activation);
/* activation(gate) · up, of one shape: the gated activation of an MLP (SwiGLU, GeGLU, ReGLU), one of those of
 * tarn_mlp_with(). Equal to tarn_mul() of the activation, in one pass, rounded once. */
TARN_API tarn_tensor *tarn_gated(tarn_tensor *gate, tarn_tensor *up, tarn_activation_kind activation);
/* silu(gate) · up: tarn_gated() with TARN_SILU, as in Llama's MLP. */
TARN_API tarn_tensor *tarn_swiglu(tarn_tensor *gate, tarn_tensor *up);

/* Options of attention; zero is every field's default. */
typedef struct tarn_attention_options {
    bool causal;  /* a row attends to keys up to its own position only */
    double scale; /* of q · kᵀ; 0: 1 / sqrt(D) */
    /* probability of zeroing a weight, in [0, 1), rounded to 1/65536 to 65535/65536 where it is not 0; the others
     * are divided by 1 - dropout; the same mask in backward */
    double dropout;
    /* i32 or i64, [B], or [1] or rank 0 for all: number of valid keys and values of the S, as in a KV cache; NULL:
     * all */
    tarn_tensor *lengths;
    /* i32 or i64, [B, T]: row t attends to no key before document_starts[b, t], which separates packed documents;
     * NULL: none */
    tarn_tensor *document_starts;
    /* sliding window: a row attends to the last `window` keys up to its own position, itself included; needs `causal`;
     * 0: no window */
    int64_t window;
    double softcap; /* a score s, scaled, becomes softcap · tanh(s / softcap) before masks and softmax; 0: none */
} tarn_attention_options;

/* softmax(q · kᵀ · scale) · v for queries q [B, H, T, D] and keys and values k, v [B, KV, S, D]; H is a multiple of
 * KV, and H / KV neighbouring heads of q share a head of k and v. Queries are aligned at the end: of the valid keys
 * (S, or lengths[b]), row t is at position valid - T + t; so T = 1 with a KV cache is the newest token, and `causal`
 * with S = T the usual triangle. (PyTorch's is_causal aligns at the beginning where S > T.) A row with no key to
 * attend to is 0, and so is one whose scores are all -infinity, as in PyTorch. With `document_starts`, a device
 * without a kernel for them (`attention_documents`) composes attention from other operations, which takes memory for
 * T × S weights; values out of range are an error on the CPU, and are clamped elsewhere. Devices without a kernel for
 * `window` or `softcap` compose them, too. Kernels skip the keys before a window, so that time falls with it.
 *
 * Views need no copy: [B, T, H, D] permuted is used as it is. The result is [B, H, T, D] with the layout of [B, T,
 * H, D], so that tarn_reshape(tarn_permute(y, TARN_AXES(0, 2, 1, 3)), …) merges the heads without a copy. Fused
 * kernels never store T × S weights. bf16 and f16 accumulate in f32. `...` is a const tarn_attention_options *, or
 * NULL. */
TARN_API tarn_tensor *tarn_attention_sized(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v,
                                           const tarn_attention_options *options, size_t options_size);
#define tarn_attention(q, k, v, ...) tarn_attention_sized(q, k, v, __VA_ARGS__, sizeof(tarn_attention_options))
/* The same for packed queries, keys and values of one linear layer: qkv [B, T, (heads + 2 · kv_heads) · D], all
 * heads of q, then those of k, then those of v. The result is [B, T, heads · D]; the gradient is packed as well.
 * kv_heads 0: as many as heads. */
TARN_API tarn_tensor *tarn_attention_packed_sized(tarn_tensor *qkv, int64_t heads, int64_t kv_heads,
                                                  const tarn_attention_options *options, size_t options_size);
#define tarn_attention_packed(qkv, heads, kv_heads, ...) \
    tarn_attention_packed_sized(qkv, heads, kv_heads, __VA_ARGS__, sizeof(tarn_attention_options))

/* Scaling of RoPE frequencies for contexts longer than those of training, with the formulas of transformers. linear
 * divides all by a factor; llama3 divides frequencies of wavelengths above original_context / low_freq_factor, leaves
 * those below original_context / high_freq_factor, and interpolates between; dynamic (NTK) raises the base with the
 * length beyond original_context; yarn interpolates between frequencies of beta_fast and beta_slow rotations within
 * original_context and multiplies cos and sin by a factor; longrope divides each pair by a factor of its own and
 * multiplies cos and sin, too. */
typedef enum tarn_rope_scaling {
    TARN_ROPE_DEFAULT = 0,
    TARN_ROPE_LINEAR,
    TARN_ROPE_LLAMA3,
    TARN_ROPE_DYNAMIC,
    TARN_ROPE_YARN,
    TARN_ROPE_LONGROPE,
} tarn_rope_scaling;

/* Options of tarn_rope(); zero is every field's default. */
typedef struct tarn_rope_options {
    int axis;    /* axis of the positions: 1 (also 0), x being [B, T, H, D]; 2: [B, H, T, D] */
    double base; /* default 10000 */
    /* number of elements at the start of D to rotate, an even number up to 512; 0: D */
    int64_t dims;
    /* pairs are neighbours (2 i, 2 i + 1), as in GPT-J; default: (i, i + dims / 2), as in Hugging Face's Llama
     * weights */
    bool interleaved;
    tarn_rope_scaling scaling;
    double factor;                            /* of all scalings; default 8 */
    double low_freq_factor, high_freq_factor; /* of llama3; default 1 and 4 */
    int64_t original_context;                 /* of all but linear: context length of training; default 8192 */
    /* factor of cos and sin; default: 1; of yarn m(1), or m(mscale) / m(mscale_all_dim) if both are given, with m(s) =
     * 0.1 · s · ln(factor) + 1; of longrope sqrt(1 + ln(factor) / ln(original_context)); 1 for factors up to 1 */
    double attention_factor;
    double mscale, mscale_all_dim; /* of yarn */
    double beta_fast, beta_slow;   /* of yarn; default 32 and 1 */
    bool untruncated;              /* of yarn: bounds of the interpolation are not rounded to whole pairs */
    int64_t length;                /* of dynamic and longrope: current length; 0: length of x */
    /* divisors of the frequencies, pair_factor_count = dims / 2 of them, or NULL; with longrope, which needs both,
     * those of a length up to original_context (short) and beyond (long). Read in the call alone. */
    const float *pair_factors, *long_pair_factors;
    int64_t pair_factor_count;
} tarn_rope_options;

/* Rotary position embedding (RoPE): rotates pair i of the last axis of x by the angle position · base^(-2 i / dims),
 * scaled. `positions` is i32 or i64, [T] or [B, T], or NULL: 0, 1, 2 … Angles are computed in f64. `...` is a const
 * tarn_rope_options *, or NULL. */
TARN_API tarn_tensor *tarn_rope_sized(tarn_tensor *x, tarn_tensor *positions, const tarn_rope_options *options,
                                      size_t options_size);
#define tarn_rope(x, positions, ...) tarn_rope_sized(x, positions, __VA_ARGS__, sizeof(tarn_rope_options))

/* Images are [N, C, H, W]: N images of C channels, H rows and W columns. Strides carry the layout: an image whose
 * channels are adjacent (channels last) is a tensor [N, H, W, C] seen through tarn_permute(x, TARN_AXES(0, 3,
 * 1, 2)), and results keep the layout of x. */

/* Options of tarn_conv2d(), rows before columns; zero is every field's default. */
typedef struct tarn_conv2d_options {
    int64_t stride[2];   /* 0: 1 */
    int64_t padding[2];  /* zeros around the image, on each side */
    int64_t dilation[2]; /* 0: 1 */
    int64_t groups;      /* 0: 1 */
} tarn_conv2d_options;

/* 2-D convolution (cross-correlation) of images x [N, C, H, W] with weight [O, C / groups, KH, KW], plus bias [O] or
 * NULL: [N, O, OH, OW] with OH = (H + 2 · padding - dilation · (KH - 1) - 1) / stride + 1, rounded down. `...` is a
 * const tarn_conv2d_options *, or NULL. bf16 and f16 accumulate in f32. */
TARN_API tarn_tensor *tarn_conv2d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                        const tarn_conv2d_options *options, size_t options_size);
#define tarn_conv2d(x, weight, bias, ...) tarn_conv2d_sized(x, weight, bias, __VA_ARGS__, sizeof(tarn_conv2d_options))

/* Options of tarn_conv_transpose2d(), rows before columns; zero is every field's default. */
typedef struct tarn_conv_transpose2d_options {
    int64_t stride[2];         /* 0: 1 */
    int64_t padding[2];        /* rows and columns cut off on each side */
    int64_t output_padding[2]; /* rows and columns added at the end; less than the stride */
    int64_t dilation[2];       /* 0: 1 */
    int64_t groups;            /* 0: 1 */
} tarn_conv_transpose2d_options;

/* Transposed 2-D convolution of images x [N, C, H, W] with weight [C, O / groups, KH, KW], plus bias [O] or NULL: the
 * gradient of tarn_conv2d() to its image. [N, O, OH, OW] with OH = (H - 1) · stride - 2 · padding + dilation ·
 * (KH - 1) + output_padding + 1. `...` is a const tarn_conv_transpose2d_options *, or NULL. */
TARN_API tarn_tensor *tarn_conv_transpose2d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                                  const tarn_conv_transpose2d_options *options, size_t options_size);
#define tarn_conv_transpose2d(x, weight, bias, ...) \
    tarn_conv_transpose2d_sized(x, weight, bias, __VA_ARGS__, sizeof(tarn_conv_transpose2d_options))

/* Options of tarn_conv1d(); zero is every field's default. */
typedef struct tarn_conv1d_options {
    int64_t stride;   /* 0: 1 */
    int64_t padding;  /* zeros on each side */
    int64_t dilation; /* 0: 1 */
    int64_t groups;   /* 0: 1 */
} tarn_conv1d_options;

/* 1-D convolution (cross-correlation) of sequences x [N, C, L] with weight [O, C / groups, K], plus bias [O] or NULL:
 * [N, O, OL] with OL = (L + 2 · padding - dilation · (K - 1) - 1) / stride + 1, rounded down. `...` is a const
 * tarn_conv1d_options *, or NULL. */
TARN_API tarn_tensor *tarn_conv1d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                        const tarn_conv1d_options *options, size_t options_size);
#define tarn_conv1d(x, weight, bias, ...) tarn_conv1d_sized(x, weight, bias, __VA_ARGS__, sizeof(tarn_conv1d_options))

/* Options of pooling, rows before columns. */
typedef struct tarn_pool2d_options {
    int64_t kernel[2];   /* window size; required */
    int64_t stride[2];   /* 0: the kernel's size */
    int64_t padding[2];  /* at most half of the kernel */
    int64_t dilation[2]; /* of max pooling; 0: 1 */
    /* rounds the number of windows up; the last one still begins inside the image or before it */
    bool ceil_mode;
    bool exclude_padding; /* of average pooling: divide by the number of elements inside the image */
} tarn_pool2d_options;

/* Maximum of each window. The first of equal maxima gets the gradient, NaN is the largest, padding is -infinity. */
TARN_API tarn_tensor *tarn_max_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size);
#define tarn_max_pool2d(x, ...) tarn_max_pool2d_sized(x, __VA_ARGS__, sizeof(tarn_pool2d_options))
/* Average of each window; padding counts as zeros unless it is excluded. */
TARN_API tarn_tensor *tarn_avg_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size);
#define tarn_avg_pool2d(x, ...) tarn_avg_pool2d_sized(x, __VA_ARGS__, sizeof(tarn_pool2d_options))
/* Average of each channel of each image: [N, C, 1, 1]. */
TARN_API tarn_tensor *tarn_global_avg_pool2d(tarn_tensor *x);

/* How tarn_upsample() computes a pixel: from the one at its coordinate, or the four around it. */
typedef enum tarn_upsample_mode { TARN_UPSAMPLE_NEAREST = 0, TARN_UPSAMPLE_BILINEAR } tarn_upsample_mode;

/* Options of tarn_upsample(), rows before columns: a size or a scale is required. Bilinear with align_corners: the
 * corners of both images coincide, not the edges of their pixels. */
typedef struct tarn_upsample_options {
    int64_t size[2]; /* of the result */
    double scale[2]; /* factors of the size, which is rounded down; they need not be integers */
    tarn_upsample_mode mode;
    bool align_corners;
} tarn_upsample_options;

/* Images [N, C, H, W] of another size, larger or smaller, as torch.nn.functional.interpolate. `...` is a const
 * tarn_upsample_options *. */
TARN_API tarn_tensor *tarn_upsample_sized(tarn_tensor *x, const tarn_upsample_options *options, size_t options_size);
#define tarn_upsample(x, ...) tarn_upsample_sized(x, __VA_ARGS__, sizeof(tarn_upsample_options))

/* exp(x) divided by its sum along an axis; a row of -infinity gives NaN. */
TARN_API tarn_tensor *tarn_softmax(tarn_tensor *x, int axis);
/* Logarithm of the softmax, without loss of precision. */
TARN_API tarn_tensor *tarn_log_softmax(tarn_tensor *x, int axis);
/* (x - mean) / sqrt(variance + epsilon) over the last axis, times weight, plus bias; either may be NULL. */
TARN_API tarn_tensor *tarn_layernorm(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, double epsilon);
/* x / sqrt(mean of squares + epsilon) over the last axis, times weight, which may be NULL. */
TARN_API tarn_tensor *tarn_rmsnorm(tarn_tensor *x, tarn_tensor *weight, double epsilon);
/* tarn_rmsnorm() with weights relative to `offset`: the factor is offset + weight, added in f32 (f64 for f64), where a
 * 16-bit sum would round. Gemma's norms have offset 1. Without a weight the factor is 1. */
TARN_API tarn_tensor *tarn_rmsnorm_offset(tarn_tensor *x, tarn_tensor *weight, double offset, double epsilon);
/* Residual addition and the norm of the next layer in one pass: *sum = x + delta, of one shape; returns the norm of
 * the sum, tarn_layernorm(), or tarn_rmsnorm() where `rms` is set (bias is NULL then). Both belong to the open
 * scope. */
TARN_API tarn_tensor *tarn_residual_norm(tarn_tensor *x, tarn_tensor *delta, tarn_tensor *weight, tarn_tensor *bias,
                                         bool rms, double epsilon, tarn_tensor **sum);
/* tarn_residual_norm() with tarn_rmsnorm_offset(). */
TARN_API tarn_tensor *tarn_residual_rmsnorm(tarn_tensor *x, tarn_tensor *delta, tarn_tensor *weight, double offset,
                                            double epsilon, tarn_tensor **sum);
/* Options of tarn_batchnorm() and tarn_batchnorm_relu(); zero is every field's default. */
typedef struct tarn_batchnorm_options {
    /* use the batch statistics and update the running ones; default: use the running ones */
    bool training;
    double momentum; /* running = (1 - momentum) · running + momentum · the batch's; default 0.1 */
    double epsilon;  /* default 1e-5 */
} tarn_batchnorm_options;

/* (x - mean) / sqrt(variance + epsilon) per channel of x [N, C, ...], times weight, plus bias; as torch's
 * batch_norm. weight, bias and the running statistics are [C], of x's dtype or f32, or NULL. In training the
 * statistics are those of x, and running_mean and running_var (with the divisor count - 1) are updated in place,
 * unrecorded; else the running ones are used. `...` is a const tarn_batchnorm_options *, or NULL. */
TARN_API tarn_tensor *tarn_batchnorm_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                           tarn_tensor *running_mean, tarn_tensor *running_var,
                                           const tarn_batchnorm_options *options, size_t options_size);
#define tarn_batchnorm(x, weight, bias, running_mean, running_var, ...) \
    tarn_batchnorm_sized(x, weight, bias, running_mean, running_var, __VA_ARGS__, sizeof(tarn_batchnorm_options))
/* relu(tarn_batchnorm(x) + residual), the end of a ResNet block, in as few passes as batchnorm alone, forward and
 * backward. residual has x's shape and dtype; NULL: none. The sum is rounded once where x is 16-bit. Otherwise as
 * tarn_batchnorm(). */
TARN_API tarn_tensor *tarn_batchnorm_relu_sized(tarn_tensor *x, tarn_tensor *residual, tarn_tensor *weight,
                                                tarn_tensor *bias, tarn_tensor *running_mean, tarn_tensor *running_var,
                                                const tarn_batchnorm_options *options, size_t options_size);
#define tarn_batchnorm_relu(x, residual, weight, bias, running_mean, running_var, ...) \
    tarn_batchnorm_relu_sized(x, residual, weight, bias, running_mean, running_var, __VA_ARGS__, \
                              sizeof(tarn_batchnorm_options))
/* tarn_batchnorm() with the statistics of each group of C / groups neighbouring channels in each of the N samples of
 * x [N, C, ...]; weight and bias are [C] or NULL. */
TARN_API tarn_tensor *tarn_groupnorm(tarn_tensor *x, int64_t groups, tarn_tensor *weight, tarn_tensor *bias,
                                     double epsilon);
/* Each element zeroed with probability p, the others divided by 1 - p; the same mask in backward. */
TARN_API tarn_tensor *tarn_dropout(tarn_tensor *x, double p);

/* ---- losses ------------------------------------------------------------------------------------------------------ */

/* Reduction of a loss over many elements. */
typedef enum tarn_reduction { TARN_REDUCE_MEAN = 0, TARN_REDUCE_SUM, TARN_REDUCE_NONE } tarn_reduction;

/* Options of tarn_cross_entropy(); zero is every field's default. */
typedef struct tarn_cross_entropy_options {
    double label_smoothing;      /* 0 to 1, distributed over all classes */
    const int64_t *ignore_index; /* targets of this value are ignored; NULL: none */
    tarn_reduction reduction;    /* the mean is over targets that are not ignored */
    double softcap;              /* a logit z becomes softcap · tanh(z / softcap) first; 0: none */
} tarn_cross_entropy_options;

/* Cross entropy of logits [..., C] and i64 (or i32) class indices [...]. `...` is a const tarn_cross_entropy_options
 * *, or NULL. Loss and gradient are computed in one pass; a `softcap` adds elementwise passes. The loss of bf16 and f16
 * logits is f32. */
TARN_API tarn_tensor *tarn_cross_entropy_sized(tarn_tensor *logits, tarn_tensor *target,
                                               const tarn_cross_entropy_options *options, size_t options_size);
#define tarn_cross_entropy(logits, target, ...) \
    tarn_cross_entropy_sized(logits, target, __VA_ARGS__, sizeof(tarn_cross_entropy_options))

/* tarn_cross_entropy(tarn_linear_apply(x, weight, NULL), target, options) for x [..., C] and weight [V, C], the head
 * and loss of a language model, in chunks of rows: the whole logits never exist. Where the loss is recorded (unless
 * per row), the forward pass computes the gradients as well, and backward scales them. */
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

/* Properties of one operation; tarn_op_at() fills it in. */
typedef struct tarn_op_info {
    const char *name;
    const char *attributes; /* "axis:int keepdim:bool", in order; "" for none */
    int min_inputs;
    int max_inputs;
    int outputs;
    bool differentiable;
} tarn_op_info;

/* Number of operations. */
TARN_API int tarn_op_count(void);
/* Fills in the properties of operation number `index`. */
TARN_API bool tarn_op_at(int index, tarn_op_info *info);
/* Number of the operation of that name; -1, without an error, if there is none. */
TARN_API int tarn_op_find(const char *name);
/* True if a backend ("cpu", "cuda" …) has every kernel that the operation's forward (or backward) uses, even if it
 * finds no device. */
TARN_API bool tarn_op_on(int index, const char *backend, bool backward);

/* Kernels are what operations run on a device; a backend has one or several variants of each. Number of kernels, and
 * name of one ("matmul"; a literal). */
TARN_API int tarn_kernel_count(void);
TARN_API const char *tarn_kernel_name(int index);

/* A variant of a kernel. */
typedef struct tarn_kernel_variant {
    const char *name; /* "simt", as in profiles; "": unnamed */
    uint32_t dtypes;  /* bit d: supports tarn_dtype d, of the first input, or of the output if there is no input */
    bool fits_all;    /* every call of these dtypes; else those whose shapes, strides and sizes fit */
} tarn_kernel_variant;

/* Fills in variant number `number` of a kernel on a backend, even if it finds no device. The first variant that fits a
 * call runs it. False, without an error, after the last one. */
TARN_API bool tarn_kernel_variant_at(int index, const char *backend, int number, tarn_kernel_variant *variant);

/* Runs an operation by name on device tensors. Missing attributes have their defaults; an unknown one is an error.
 * `outputs` receives as many tensors as the operation has outputs; they belong to the open scope. */
TARN_API bool tarn_apply(const char *name, tarn_tensor *const *inputs, int input_count,
                         const tarn_attribute *attributes, int attribute_count, tarn_tensor **outputs,
                         int output_count);

/* A host array, row-major. As an output, the call fills in `data` and `shape`; release `data` with
 * tarn_array_free(). */
typedef struct tarn_array {
    void *data;
    tarn_shape shape;
    tarn_dtype dtype;
} tarn_array;

/* Runs an operation by name on host arrays: uploads, computes, downloads, and frees everything, on failure too. */
TARN_API bool tarn_apply_host(const char *name, tarn_device device, const tarn_array *inputs, int input_count,
                              const tarn_attribute *attributes, int attribute_count, tarn_array *outputs,
                              int output_count);

/* The backward of tarn_apply_host(): runs the operation on host arrays and propagates the gradients of its outputs
 * to its inputs. `output_grads` has an array of the shape and dtype of each output; data NULL: no gradient. `wanted`
 * has bit i set for each input whose gradient is computed; 0: every float input. `input_grads` receives an array per
 * input, released with tarn_array_free(); data is NULL where no gradient was wanted or none arrived. The gradient of
 * a bf16 or f16 input is f32. False, with an error, on failure: then nothing is allocated. */
TARN_API bool tarn_apply_host_backward(const char *name, tarn_device device, const tarn_array *inputs, int input_count,
                                       const tarn_attribute *attributes, int attribute_count,
                                       const tarn_array *output_grads, int output_count, uint64_t wanted,
                                       tarn_array *input_grads);

/* Frees the data of an array returned by tarn_apply_host() or tarn_apply_host_backward(), and clears it. */
TARN_API void tarn_array_free(tarn_array *array);

#ifdef __cplusplus
}
#endif
#endif

/* internal.h: operations without a public name: fused and quantized forms that models, nn and generate call.
 *
 * All borrow their operands; results belong to the open scope. NULL or false with an error. */
#ifndef TARN__OPS_INTERNAL_H
#define TARN__OPS_INTERNAL_H

#include "ops/op.h"

/* ---- decode step: one token of a few sequences ------------------------------------------------------------------- */

/* A norm over the last axis of x: rmsnorm, or layernorm. */
typedef struct tarn__decode_norm {
    tarn_tensor *weight; /* NULL: no norm */
    double epsilon;
    double offset; /* of the weight, as in tarn_rmsnorm_offset() */
    bool is_layernorm;
    tarn_tensor *bias; /* of layernorm, or NULL */
} tarn__decode_norm;

/* y[i] = norm(x) @ weights[i]ᵀ + biases[i] for up to three layers: x [..., in], weights [out, in], floats or
 * quantized, biases NULL or [out]. y[i] is [..., out]. A weight stored as [in, out] is given as a transposed view. */
bool tarn__norm_linear(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                       tarn_tensor *const *biases, int count, tarn_tensor **y);

/* act(norm(x) @ upᵀ + bias), the first half of an MLP without a gate; bias may be NULL. Activations are those of
 * tarn_gated(). */
tarn_tensor *tarn__norm_up(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *up, tarn_tensor *bias,
                           tarn_activation_kind activation);

/* act(norm(x) @ gateᵀ) · (norm(x) @ upᵀ) */
tarn_tensor *tarn__norm_gate_up(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *gate, tarn_tensor *up,
                                tarn_activation_kind activation);

/* sum + scale · (x @ weightᵀ + bias), the end of a residual branch; bias may be NULL. */
tarn_tensor *tarn__linear_residual(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *sum,
                                   double scale);

/* True if the device's kernels support this many rows of x with this weight. x has the dtype of `norm`, which is that
 * of the residual stream. */
bool tarn__decode_rows_fit(int64_t rows, tarn_tensor *norm, tarn_tensor *weight);

/* sum + scale · norm(x), the end of a residual branch with a post-norm; x and sum [..., n]. */
tarn_tensor *tarn__norm_residual(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *sum, double scale);

/* The residual stream. A branch with a post-norm is added by the operation that next reads the stream, since kernels
 * normalize what they multiply: then the stream is sum + scale · post(branch). */
typedef struct tarn__decode_stream {
    tarn_tensor *sum;
    tarn_tensor *branch; /* NULL: the stream is sum */
    tarn__decode_norm post;
    double scale;
} tarn__decode_stream;

/* Adds the branch, if there is one: the stream as a tensor. */
tarn_tensor *tarn__stream_sum(tarn__decode_stream *stream);

/* tarn__norm_linear() and tarn__norm_gate_up() of the stream; they add the branch. */
bool tarn__stream_norm_linear(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                              tarn_tensor *const *biases, int count, tarn_tensor **y);
tarn_tensor *tarn__stream_norm_gate_up(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *gate,
                                       tarn_tensor *up, tarn_activation_kind activation);

/* Logits of the stream: tarn__norm_linear() of one weight, then tarn__scale_and_cap(). */
tarn_tensor *tarn__stream_logits(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *weight,
                                 tarn_tensor *bias, double scale, double softcap);

/* A layer's cached keys or values [B, KV, S, D], and the scales of quantized rows, else NULL. Keys and values have
 * one layout. */
typedef struct tarn__decode_kv {
    tarn_tensor *rows, *scale;
} tarn__decode_kv;

/* Options of one token's attention; zero is every field's default. */
typedef struct tarn__decode_attention_options {
    const tarn_rope_options *rope; /* rotation of q and k; NULL: none */
    double scale;                  /* 0: 1 / sqrt(D) */
    int64_t window;                /* as in tarn_attention_options */
    double softcap;
} tarn__decode_attention_options;

/* True when the device has attention_decode for a query [B, 1, H, D], a cache of this dtype and layout, and these
 * options. */
bool tarn__attention_decode_fits(tarn_tensor *q, const tarn__decode_kv *keys,
                                 const tarn__decode_attention_options *options);

/* Attention of one token, where tarn__attention_decode_fits(): rotates q [B, 1, H, D] and k [B, 1, KV, D] by the
 * token's position (i32 or i64 [B]), writes k and v to the caches at that position, and attends to the keys up to
 * it: [B, 1, H, D]. Not recorded. */
tarn_tensor *tarn__decode_attention(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *position,
                                    const tarn__decode_attention_options *options, const tarn__decode_kv *keys,
                                    const tarn__decode_kv *values);

/* y = scale · x, then softcap · tanh(y / softcap); 0 for either: without it. */
tarn_tensor *tarn__scale_and_cap(tarn_tensor *x, double scale, double softcap);

/* Greedy token: i64 [rows, 1], the argmax of each row of x [rows, n], n at least 1; -1 where the maximum is NaN or
 * infinite. */
tarn_tensor *tarn__argmax_finite(tarn_tensor *x);

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

/* x with its last two axes swapped: a view in the open scope; NULL for NULL. */
tarn_tensor *tarn__transposed(tarn_tensor *x);

/* x [..., in] as a matrix (rows, in): a view, or a copy where the strides do not allow one. */
tarn_tensor *tarn__rows_of(const char *function, tarn_tensor *x);

/* to = a @ b + beta · to + bias (or NULL). False where an operand is NULL, too, so that calls can be nested. */
bool tarn__gemm(const char *function, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to);

/* Batch invariance of this thread's matmuls, from open to close; pairs nest. A row of a result is then bitwise
 * identical for any number of rows: kernels do not choose by it. Without it, few rows are faster. */
void tarn__batch_invariant_open(void);
void tarn__batch_invariant_close(void);

/* The same, but for up to TARN__ALONE_ROWS rows, whose bits are those that each of them has alone without any
 * invariance. On the CPU alone. */
void tarn__rows_alone_open(void);
void tarn__rows_alone_close(void);

/* The thread's invariance, for tarn__matmul. */
tarn__invariance tarn__batch_invariant(void);

/* The weight, transposed if `transpose` is true. */
tarn_tensor *tarn__transposed_if(tarn_tensor *weight, bool transpose);

/* Accumulates the gradients of a weight [out, in], gᵀ @ x (with `in_out` of one [in, out], xᵀ @ g), and of its bias,
 * g summed over rows. g is (rows, out), x (rows, in). `weight` and `bias` are input indices; a gradient not needed
 * is skipped. */
bool tarn__weight_backward(const tarn__backward *b, int weight, int bias, tarn_tensor *g, tarn_tensor *x, bool in_out);

/* tarn_linear_apply() and tarn_mlp_with() for weights [in, out], as in transformers' Conv1D. A transposed view would do
 * in forward, but its gradient would be transposed once more, and rounded on the way for 16-bit weights. */
tarn_tensor *tarn__linear_in_out(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);
tarn_tensor *tarn__mlp_in_out(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                              tarn_tensor *down_bias, tarn_activation_kind activation);

/* ---- LoRA linear layers ------------------------------------------------------------------------------------------ */

#define TARN__MAX_LORA_LINEARS 3 /* layers with the same input */

typedef struct tarn__lora_linear {
    tarn_tensor *weight, *bias; /* [out, in], or [in, out] with `in_out`; frozen; bias may be NULL */
    tarn_tensor *a, *b;         /* [rank, in] and [out, rank], or both NULL: no adapter */
    double scale;
} tarn__lora_linear;

/* y[i] = x · weightᵀ + bias + scale · (x · aᵀ) · bᵀ for layers with the same input x [..., in], at least one of
 * which has an adapter; all of one dtype on one device. One operation, so that x is read once for all adapters. */
bool tarn__lora_linears(tarn_tensor *x, const tarn__lora_linear *layers, int count, bool in_out, tarn_tensor **y);

/* y += scale · (x · aᵀ) · bᵀ in place, for x [rows, in] and y [rows, out] of one dtype; a [rank, in] and b [out, rank],
 * of one dtype too, which may be another: then the sum is taken in the wider one. Not recorded. */
bool tarn__lora_add(tarn_tensor *x, tarn_tensor *a, tarn_tensor *b, double scale, tarn_tensor *y);

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* True when the device has a kernel for keys and values of a dtype other than the queries'. */
bool tarn__attention_quant_kv_fits(tarn_tensor *q, const tarn_tensor *k);

/* tarn_attention() with k and v [B, KV, S, D] in another float dtype, or quantized with their scales (else NULL),
 * where tarn__attention_quant_kv_fits(). Nothing larger than a head is dequantized at a time. Forward only, not
 * recorded. */
tarn_tensor *tarn__attention_quant_kv(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *k_scale,
                                      tarn_tensor *v_scale, const tarn_attention_options *options);

/* Keys or values of one layer in pages [pages, TARN__KV_PAGE, KV, D], and the f16 scales of quantized rows [pages,
 * TARN__KV_PAGE, KV, groups of D], else NULL. */
typedef struct tarn__kv_page_rows {
    tarn_tensor *rows, *scale;
} tarn__kv_page_rows;

/* The sequences of a packed batch, on the device. Queries of sequence n are rows row_starts[n] … row_starts[n + 1] - 1:
 * the last of its lengths[n] tokens. */
typedef struct tarn__packed_sequences {
    tarn_tensor *table;      /* i32 [N, pages of the longest]: pages of each sequence in order */
    tarn_tensor *row_starts; /* i32 [N + 1] */
    tarn_tensor *lengths;    /* i32 [N] */
} tarn__packed_sequences;

/* Options of attention over pages; zero is every field's default. */
typedef struct tarn__paged_options {
    double scale; /* 0: 1 / sqrt(D) */
    int64_t window;
    double softcap;
} tarn__paged_options;

/* Causal attention over a paged KV cache for many sequences at once, decode rows and prompt chunks alike: q [tokens, H,
 * D] -> [tokens, H, D]. Keys of all rows are in the pages already. Batch invariant: the bits of a row depend on its
 * query and its keys alone, neither on the other rows nor on how its prompt was cut. Not recorded. */
tarn_tensor *tarn__attention_paged(tarn_tensor *q, const tarn__kv_page_rows *keys, const tarn__kv_page_rows *values,
                                   const tarn__packed_sequences *sequences, const tarn__paged_options *options);

/* Writes rows x [tokens, KV, D] to pages, converted or quantized: row i to slot slots[i] (i32 or i64 [tokens] on the
 * device), which is page · TARN__KV_PAGE + row of the page. Slots differ, or a row among equal ones is written. Not
 * recorded. */
bool tarn__write_pages(const tarn__kv_page_rows *pages, tarn_tensor *slots, tarn_tensor *x);

/* tarn_attention() as matmuls, a mask and a softmax, for document starts, windows and soft caps; materializes all T × S
 * weights. Operands and options are checked by the caller. Its dropout mask differs from the kernel's. */
tarn_tensor *tarn__attention_composed(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v,
                                      const tarn_attention_options *options);

/* ---- RoPE -------------------------------------------------------------------------------------------------------- */

/* Kernel params of RoPE options, defaults resolved, for a head_dim of which at most 2 · TARN__ROPE_PAIRS elements
 * are rotated. Options are not checked; a `length` of 0 is within original_context. */
tarn__rope tarn__rope_params(const tarn_rope_options *options, int64_t head_dim);

/* Factor of cos and sin; the scaling's own, if the options give none. */
double tarn__rope_magnitude(const tarn_rope_options *options);

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

/* tarn_cast() to a quantized dtype: x must be finite floats. Not differentiable. */
tarn_tensor *tarn__cast_to_quantized(tarn_tensor *x, tarn_dtype dtype);

/* True when a linear layer multiplies x by a weight of fewer bits without converting it: a quantized weight, or a
 * 16-bit one that needs no gradient with f32 x. */
bool tarn__is_narrow(const tarn_tensor *x, const tarn_tensor *weight);

/* tarn_linear_apply() with such a weight. */
tarn_tensor *tarn__linear_narrow(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);

/* tarn_embedding() with a quantized weight, the result in a float dtype. */
tarn_tensor *tarn__embedding_quantized(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype);

/* tarn_index_select() of a quantized tensor, along any axis but the last. */
tarn_tensor *tarn__index_select_quantized(const char *function, tarn_tensor *x, int axis, tarn_tensor *index);

/* ---- quantized KV rows ------------------------------------------------------------------------------------------- */

/* Number of scales of a row. */
int64_t tarn__kv_q8_scales(int64_t width);

/* Quantizes x [B, heads, T, D], floats, to u8 of the same shape and f16 scales [B, heads, T, scales of D]. A
 * group with NaN or infinity gets such a scale. Not recorded. */
tarn_tensor *tarn__quantize_kv(tarn_tensor *x, tarn_tensor **scales);

/* Dequantizes such rows to a float dtype. */
tarn_tensor *tarn__dequantize_kv(tarn_tensor *q8, tarn_tensor *scales, tarn_dtype dtype);

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* Dropout of contiguous x with given counters; the same call applied to a gradient is its backward. */
tarn_tensor *tarn__dropout_with(tarn_tensor *x, const tarn__random *random);

/* tarn_residual_norm(), or with an offset tarn_residual_rmsnorm(), after dropout of delta with probability p, in one
 * pass; bitwise identical to the two operations. */
tarn_tensor *tarn__dropout_residual_norm(tarn_tensor *x, tarn_tensor *delta, double p, tarn_tensor *weight,
                                         tarn_tensor *bias, bool rms, double offset, double epsilon, tarn_tensor **sum);

/* ---- gather and scatter ------------------------------------------------------------------------------------------ */

/* y[b, index[b] + t along `axis`] = x[b, t] for all t of x; `axis` is not the first. index is i32 or i64 [B] on the
 * device, so the host does not wait for it. x has y's dtype and sizes, except along the axis. Not recorded. */
bool tarn__write_rows(const char *function, tarn_tensor *y, int axis, tarn_tensor *index, tarn_tensor *x);

/* tarn_embedding(); a quantized weight gives `dtype` instead of f32. */
tarn_tensor *tarn__embedding_as(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype);

/* ---- gated activations ------------------------------------------------------------------------------------------- */

/* An activation of fused operations: its name for kernels, its own kernels and operation. */
typedef struct tarn__act_row {
    tarn_activation_kind kind;
    tarn__act act;
    tarn__kernel value, grad;
    tarn_tensor *(*apply)(tarn_tensor *x);
} tarn__act_row;

/* The row of relu, gelu, gelu_erf or silu; NULL with an error for others. */
const tarn__act_row *tarn__act_row_of(const char *function, tarn_activation_kind kind);

/* gate = act(gate) · up, in place; gate may be a view. False where an operand is NULL, too. Not recorded. */
bool tarn__gated_inplace(tarn_tensor *gate, tarn_tensor *up, tarn_activation_kind activation);

#endif

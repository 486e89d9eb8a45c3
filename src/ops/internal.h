/* internal.h: what a step of decoding is made of: one token of a few sequences. Each is an operation made of others; a
 * device with a kernel for it does it in one.
 *
 * Borrows all operands; results belong to the open scope. NULL or false with an error. */
#ifndef TARN__OPS_STEP_H
#define TARN__OPS_STEP_H

#include "ops/op.h"

/* The most rows of x that kernels of a step take. */
#define TARN__MAX_DECODE_ROWS 8

/* A norm over the last axis of x. */
typedef struct tarn__decode_norm {
    tarn_tensor *weight; /* NULL: x is taken as it is */
    double epsilon;
} tarn__decode_norm;

/* y[i] = norm(x) @ weights[i]ᵀ + biases[i], up to three of them; x is [..., in], a weight [out, in] of floats or
 * blocks, a bias NULL or [out]. */
bool tarn__norm_linear(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                       tarn_tensor *const *biases, int count, tarn_tensor **y);

/* silu(norm(x) @ gateᵀ) · (norm(x) @ upᵀ) */
tarn_tensor *tarn__norm_gate_up(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *gate, tarn_tensor *up);

/* sum + (x @ weightᵀ + bias); a bias may be NULL. */
tarn_tensor *tarn__linear_residual(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *sum);

/* Keys or values that came before, [B, KV, S, D], with scales where they are codes of 8 bits, as codes.h has them, else
 * NULL. Values lie as keys do. */
typedef struct tarn__decode_kv {
    tarn_tensor *rows, *scale;
} tarn__decode_kv;

/* True when a device turns, stores and attends in one, for a query [B, 1, H, D] of a token and keys that are stored so.
 */
bool tarn__attention_decode_fits(tarn_tensor *q, const tarn__decode_kv *keys, const tarn_rope_options *rope);

/* Queries [B, 1, H, D] and keys [B, 1, KV, D] of one token are turned by its position, i32 or i64 [B]; keys and values
 * are put there into the past, and the queries attend to all up to there: [B, 1, H, D]. Where
 * tarn__attention_decode_fits(); nothing is recorded. A `scale` of 0 is 1 / sqrt(D). */
tarn_tensor *tarn__decode_attention(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *position,
                                    const tarn_rope_options *rope, double scale, const tarn__decode_kv *keys,
                                    const tarn__decode_kv *values);

/* i64 [rows, 1]: where the largest of x [rows, n] is, of floats, n at least 1; -1 where it is NaN or infinite. */
tarn_tensor *tarn__argmax_finite(tarn_tensor *x);

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

/* x with its last two axes exchanged. A view in the open scope; NULL for NULL. */
tarn_tensor *tarn__transposed(tarn_tensor *x);

/* x [..., in] as (rows, in): a view, or a copy where rows do not lie evenly. */
tarn_tensor *tarn__rows_of(const char *function, tarn_tensor *x);

/* to = a @ b + beta · to + bias. False, too, where an operand is NULL because it could not be made. */
bool tarn__gemm(const char *function, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to);

/* A weight [out, in] as [in, out], or the other way round, where `turn` says so. */
tarn_tensor *tarn__transposed_if(tarn_tensor *weight, bool turn);

/* The gradients of a weight [out, in], gᵀ @ x, or, with `in_out`, of one [in, out], xᵀ @ g, and of its bias, g summed
 * over rows: g is (rows, out), x (rows, in). `weight` and `bias` are the inputs' numbers; whichever is not wanted is
 * left out. */
bool tarn__weight_backward(const tarn__backward *b, int weight, int bias, tarn_tensor *g, tarn_tensor *x, bool in_out);

/* tarn_linear_apply() and tarn_mlp() for weights that lie as [in, out], as transformers' Conv1D has them. A transposed
 * view would do forward, but its gradient would be turned once more, and rounded on the way where the weight has 16
 * bits. */
tarn_tensor *tarn__linear_in_out(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);
tarn_tensor *tarn__mlp_in_out(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                              tarn_tensor *down_bias);

/* ---- LoRA linear layers ------------------------------------------------------------------------------------------ */

#define TARN__MAX_LORA_LINEARS 3 /* layers that share x */

typedef struct tarn__lora_linear {
    tarn_tensor *weight, *bias; /* [out, in] or [in, out]; frozen; bias may be NULL */
    tarn_tensor *a, *b;         /* [rank, in] and [out, rank], or both NULL: no adapter */
    double scale;
} tarn__lora_linear;

/* y[i] = x · weightᵀ + bias + scale · (x · aᵀ) · bᵀ for layers that share x [..., in], of which one has an adapter; all
 * of one dtype and on one device. Borrows all; the results belong to the open scope. False with an error raised. */
bool tarn__lora_linears(tarn_tensor *x, const tarn__lora_linear *layers, int count, bool in_out, tarn_tensor **y);

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* True when a device attends to keys of that dtype, other than the queries', as they lie. */
bool tarn__attention_quant_kv_fits(tarn_tensor *q, const tarn_tensor *k);

/* tarn_attention() of k and v [B, KV, S, D] in another float dtype, or in codes of 8 bits with their scales, as codes.h
 * has them (NULL: there are none), where tarn__attention_quant_kv_fits(). Nothing is expanded but a head at a time.
 * Forward alone: nothing is recorded. Borrows all; the result belongs to the open scope. */
tarn_tensor *tarn__attention_quant_kv(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *k_scale,
                                      tarn_tensor *v_scale, const tarn_attention_options *options);

/* tarn_attention() with starts, all T × S weights in memory: operands and options fit, and lie on one device. Borrows
 * its operands; the result belongs to the open scope. Its weights are dropped out by other numbers than the kernel's.
 */
tarn_tensor *tarn__attention_composed(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v,
                                      const tarn_attention_options *options);

/* ---- RoPE -------------------------------------------------------------------------------------------------------- */

/* Options, with their defaults, for heads of `width` elements, of which at most 2 · TARN__ROPE_PAIRS are turned. */
tarn__rope tarn__rope_params(const tarn_rope_options *options, int64_t width);

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

/* tarn_cast() to blocks: x of a float dtype, finite. Not differentiable. */
tarn_tensor *tarn__cast_to_quantized(tarn_tensor *x, tarn_dtype dtype);

/* True when a linear layer's weight has fewer bits than what it is multiplied by, and stays as it is: blocks, or 16
 * bits for an x of f32. */
bool tarn__is_narrow(const tarn_tensor *x, const tarn_tensor *weight);

/* tarn_linear_apply() with such a weight. */
tarn_tensor *tarn__linear_narrow(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);

/* tarn_embedding() with a weight of blocks, in a float dtype. */
tarn_tensor *tarn__embedding_quantized(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype);

/* tarn_index_select() of blocks along an axis that is not the last. */
tarn_tensor *tarn__index_select_quantized(const char *function, tarn_tensor *x, int axis, tarn_tensor *index);

/* ---- quantized KV rows ------------------------------------------------------------------------------------------- */

/* Scales of a row of so many elements. */
int64_t tarn__kv_q8_scales(int64_t width);

/* The codes of x [B, heads, T, D], of a float dtype, and their scales [B, heads, T, scales of D]. A group that is not
 * finite has a scale that is not. Borrows x; both results belong to the open scope. Nothing is recorded. NULL with an
 * error. */
tarn_tensor *tarn__quantize_kv(tarn_tensor *x, tarn_tensor **scales);

/* The numbers that codes stand for, in a float dtype. Borrows both; the result belongs to the open scope. */
tarn_tensor *tarn__dequantize_kv(tarn_tensor *codes, tarn_tensor *scales, tarn_dtype dtype);

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* x, dense, dropped out by these numbers; the same call gives a gradient's. A new tensor in the open scope. */
tarn_tensor *tarn__dropout_with(tarn_tensor *x, const tarn__random *random);

/* tarn_residual_norm() of delta dropped out with probability p, from 0 to 1: the bits of both in one pass. Borrows its
 * operands; the results belong to the open scope. */
tarn_tensor *tarn__dropout_residual_norm(tarn_tensor *x, tarn_tensor *delta, double p, tarn_tensor *weight,
                                         tarn_tensor *bias, bool rms, double epsilon, tarn_tensor **sum);

/* ---- gather and scatter ------------------------------------------------------------------------------------------ */

/* y[b, index[b] + t along the axis, which is not the first] = x[b, t] for all t of x; index is i32 or i64 [B], on the
 * device, so that nobody waits for it. x has y's dtype, rank and sizes, but for the axis. Nothing is recorded. Borrows
 * all three. False with an error. */
bool tarn__write_rows(const char *function, tarn_tensor *y, int axis, tarn_tensor *index, tarn_tensor *x);

/* tarn_embedding(); of a weight of blocks in that float dtype, rather than f32. Borrows both; the result belongs to the
 * open scope. */
tarn_tensor *tarn__embedding_as(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype);

/* ---- gated activations ------------------------------------------------------------------------------------------- */

/* silu(gate) · up in gate's place, which may be a part of a tensor. Borrows both. False with an error, also where one
 * is NULL because it could not be made. */
bool tarn__swiglu_inplace(tarn_tensor *gate, tarn_tensor *up);

#endif

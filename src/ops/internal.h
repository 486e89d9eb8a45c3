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

#endif

/* decode.c: the operations of a decode step: linear layers with norm and residual, post-norms, attention of one token,
 * greedy argmax.
 *
 * The composed forms define the results; a fused kernel differs only in what it does not round in between. Which calls
 * a kernel takes (few rows, aligned weights) is its row's `fits` on each device; weights of several dtypes get a call
 * each.
 *
 * Why fused: a decode step reads each weight once for few rows, so it is bound by memory and by launch overhead;
 * norm, GEMV, activation and residual in one kernel save launches and round trips. Nothing is recorded
 * here; with gradients the composed form runs. */
#include <math.h>
#include <string.h>

#include "ops/internal.h"

/* ---- operands of the fused kernels ------------------------------------------------------------------------------- */

/* A weight [out, in] of x's dtype or narrower. Shapes, alignment and limits of the device are the kernel's business:
 * tarn__kernel_fits(). */
static bool weight_matches(tarn__kernel kernel, const tarn_tensor *x, const tarn_tensor *weight)
{
    const tarn__view *view = &weight->view;
    return (view->dtype == x->view.dtype || tarn__is_narrow(x, weight)) && !weight->is_constant && view->rank == 2 &&
           view->shape[1] == x->view.shape[x->view.rank - 1] &&
           tarn__has_kernel(tarn__device(x), kernel, view->dtype) &&
           tarn__same_device(tarn__device(x), tarn__device(weight));
}

/* A bias [out] of x's dtype, or any float but f64 with a narrow weight. */
static bool bias_matches(const tarn_tensor *x, const tarn_tensor *weight, const tarn_tensor *bias)
{
    return !bias ||
           ((bias->view.dtype == x->view.dtype || tarn__is_narrow(x, weight)) && !bias->is_constant &&
            bias->view.rank == 1 && bias->view.shape[0] == weight->view.shape[0] && tarn__is_float(bias->view.dtype) &&
            bias->view.dtype != TARN_F64 && tarn__same_device(tarn__device(weight), tarn__device(bias)));
}

/* A new result [..., out] for x [..., in]. */
static tarn_tensor *result_for(const char *function, const tarn_tensor *x, const tarn_tensor *weight)
{
    tarn_shape shape = tarn__shape_of(x);
    shape.size[shape.rank - 1] = weight->view.shape[0];
    return tarn__tensor_new(function, shape, x->view.dtype, tarn__device(x));
}

/* ---- norm and linear layers ------------------------------------------------------------------------------------ */

/* x with its norm, or x itself. */
static tarn_tensor *normed(tarn_tensor *x, const tarn__decode_norm *norm)
{
    if (!norm->weight)
        return x;
    return norm->is_layernorm ? tarn_layernorm(x, norm->weight, norm->bias, norm->epsilon)
                              : tarn_rmsnorm_offset(x, norm->weight, norm->offset, norm->epsilon);
}

/* A vector of the norm: NULL, or [in] of x's dtype. */
static bool vector_matches(const tarn_tensor *x, const tarn_tensor *vector)
{
    return !vector || (vector->view.dtype == x->view.dtype && vector->view.rank == 1 &&
                       vector->view.shape[0] == x->view.shape[x->view.rank - 1]);
}

/* Params of a norm and an activation. */
static tarn__decode_linear params_of(const tarn__decode_norm *norm, tarn__act act)
{
    return (tarn__decode_linear){.epsilon = norm->epsilon,
                                 .offset = norm->is_layernorm ? 0 : norm->offset,
                                 .centred = norm->is_layernorm,
                                 .act = (int32_t)act,
                                 .scale = 1};
}

/* x as (rows, in) where the kernel takes these operands; NULL, without an error, where they must be composed: other
 * dtypes, or something is recorded, because the fused kernels have no backward. */
static tarn_tensor *rows_for(tarn__kernel kernel, const char *function, tarn_tensor *x, const tarn__decode_norm *norm,
                             tarn_tensor *const *weights, tarn_tensor *const *biases, int count)
{
    if (!x || x->is_constant || x->view.rank < 1 ||
        tarn__recording_needed((tarn_tensor *[]){x, norm->weight, norm->bias}, 3) ||
        !tarn__has_kernel(tarn__device(x), kernel, x->view.dtype))
        return NULL;
    bool good = vector_matches(x, norm->weight) && vector_matches(x, norm->bias);
    for (int i = 0; good && i < count; i++)
        good = weights[i] && !tarn__recording_needed((tarn_tensor *[]){weights[i], biases ? biases[i] : NULL}, 2) &&
               weight_matches(kernel, x, weights[i]) && bias_matches(x, weights[i], biases ? biases[i] : NULL);
    return good ? tarn__rows_of(function, x) : NULL;
}

/* True where the device's kernel takes these inputs. */
static bool fits(tarn__kernel kernel, tarn_tensor *const *inputs, int count)
{
    tarn__launch launch = {.kernel = kernel, .inputs = count};
    memcpy(launch.in, inputs, sizeof(launch.in[0]) * (size_t)count);
    return tarn__kernel_fits(tarn__device(inputs[0]), &launch);
}

/* Asks with an x allocated for the question, in the dtype of the residual stream, which is that of the norm. */
bool tarn__decode_rows_fit(int64_t rows, tarn_tensor *norm, tarn_tensor *weight)
{
    const bool is_normed = weight->view.rank == 2 && weight->view.shape[1] == norm->view.shape[0];
    tarn_tensor *x = weight->view.rank == 2 ? tarn__tensor_new("norm_linear", TARN_SHAPE(rows, weight->view.shape[1]),
                                                               norm->view.dtype, tarn__device(weight))
                                            : NULL;
    const bool good = x && weight_matches(TARN__K_norm_linear, x, weight) &&
                      fits(TARN__K_norm_linear, (tarn_tensor *[]){x, is_normed ? norm : NULL, weight}, 3);
    if (x)
        tarn_free(x);
    return good;
}

/* Operands of a kernel call that adds the branch of the stream; all NULL: there is none. */
typedef struct branch_rows {
    tarn_tensor *post, *sum, *new_sum; /* rows of the sums */
    double epsilon, offset, scale;
} branch_rows;

/* What is done to a result in the same kernel. */
typedef struct epilogue {
    tarn__act act;
    double scale, softcap; /* 0: none */
} epilogue;

/* One kernel call for `count` weights of one dtype. */
static bool call_norm_linear(tarn_tensor *rows, tarn_tensor *x, const tarn__decode_norm *norm,
                             tarn_tensor *const *weights, tarn_tensor *const *biases, int count, const epilogue *end,
                             const branch_rows *branch, tarn_tensor **y)
{
    tarn_tensor *w[3] = {0}, *b[3] = {0}, *to[3] = {0};
    tarn__decode_linear params = params_of(norm, end->act);
    params.scale = end->scale > 0 ? end->scale : 1, params.softcap = end->softcap;
    params.post_epsilon = branch->epsilon, params.post_offset = branch->offset, params.post_scale = branch->scale;
    for (int i = 0; i < count; i++) {
        w[i] = weights[i], b[i] = biases ? biases[i] : NULL;
        if (!(y[i] = result_for("norm_linear", x, weights[i])) || !(to[i] = tarn__rows_of("norm_linear", y[i])))
            return false;
    }
    return tarn__kernel_call(
        TARN__K_norm_linear, "norm_linear", params,
        TARN__IN(rows, norm->weight, w[0], w[1], w[2], b[0], b[1], b[2], norm->bias, branch->post, branch->sum),
        TARN__OUT(to[0], to[1], to[2], branch->new_sum));
}

/* Consecutive weights of one dtype share a call (q, k and v): the end of that from weight `first` on. */
static int end_of_call(tarn_tensor *const *weights, int first, int count)
{
    int end = first + 1;
    while (end < count && weights[end]->view.dtype == weights[first]->view.dtype)
        end++;
    return end;
}

/* x as rows if the kernel norm_linear supports all weights; else NULL. */
static tarn_tensor *rows_of_linears(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                                    tarn_tensor *const *biases, int count)
{
    tarn_tensor *rows = rows_for(TARN__K_norm_linear, "norm_linear", x, norm, weights, biases, count);
    for (int i = 0, end; rows && i < count; i = end) {
        tarn_tensor *inputs[9] = {rows, norm->weight, [8] = norm->bias};
        end = end_of_call(weights, i, count);
        for (int k = i; k < end; k++)
            inputs[2 + k - i] = weights[k], inputs[5 + k - i] = biases ? biases[k] : NULL;
        rows = fits(TARN__K_norm_linear, inputs, 9) ? rows : NULL;
    }
    return rows;
}

/* `act` NULL: none. */
static bool norm_linear(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                        tarn_tensor *const *biases, int count, const tarn__act_row *act, tarn_tensor **y)
{
    tarn_tensor *rows = rows_of_linears(x, norm, weights, biases, count);
    bool good = !tarn_failed();
    /* The composed form: the norm once, then a matmul per weight. */
    if (!rows) {
        tarn_tensor *h = normed(x, norm);
        for (int i = 0; good && i < count; i++)
            good = h && (y[i] = tarn_linear_apply(h, weights[i], biases ? biases[i] : NULL)) != NULL &&
                   (!act || (y[i] = act->apply(y[i])) != NULL);
        return good;
    }
    for (int i = 0, end; good && i < count; i = end) {
        end = end_of_call(weights, i, count);
        good = call_norm_linear(rows, x, norm, weights + i, biases ? biases + i : NULL, end - i,
                                &(epilogue){act ? act->act : TARN__ACT_NONE, 0, 0}, &(branch_rows){0}, y + i);
    }
    return good;
}

/* q, k and v of a layer are one call with three weights. */
bool tarn__norm_linear(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                       tarn_tensor *const *biases, int count, tarn_tensor **y)
{
    return norm_linear(x, norm, weights, biases, count, NULL, y);
}

/* The FFN without a gate, as GPT-2's. */
tarn_tensor *tarn__norm_up(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *up, tarn_tensor *bias,
                           tarn_activation_kind activation)
{
    const tarn__act_row *act = tarn__act_row_of("norm_up", activation);
    tarn_tensor *y = NULL;
    return act && norm_linear(x, norm, &up, &bias, 1, act, &y) ? y : NULL;
}

/* One kernel call for gate and up. */
static tarn_tensor *call_norm_gate_up(tarn_tensor *rows, tarn_tensor *x, const tarn__decode_norm *norm,
                                      tarn_tensor *gate, tarn_tensor *up, tarn__act act, const branch_rows *branch)
{
    tarn__decode_linear params = params_of(norm, act);
    params.post_epsilon = branch->epsilon, params.post_offset = branch->offset, params.post_scale = branch->scale;
    tarn_tensor *y = result_for("norm_gate_up", x, gate), *to = y ? tarn__rows_of("norm_gate_up", y) : NULL;
    return to && tarn__kernel_call(TARN__K_norm_gate_up, "norm_gate_up", params,
                                   TARN__IN(rows, norm->weight, gate, up, norm->bias, branch->post, branch->sum),
                                   TARN__OUT(to, branch->new_sum))
               ? y
               : NULL;
}

/* Both projections and the activation in one kernel: the hidden activation is never written before it is gated. */
tarn_tensor *tarn__norm_gate_up(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *gate, tarn_tensor *up,
                                tarn_activation_kind activation)
{
    const tarn__act_row *act = tarn__act_row_of("norm_gate_up", activation);
    if (!act)
        return NULL;
    tarn_tensor *weights[] = {gate, up};
    tarn_tensor *rows = rows_for(TARN__K_norm_gate_up, "norm_gate_up", x, norm, weights, NULL, 2);
    if (!rows || !tarn__same_shape(&gate->view, &up->view) || gate->view.dtype != up->view.dtype ||
        !fits(TARN__K_norm_gate_up, (tarn_tensor *[]){rows, norm->weight, gate, up, norm->bias}, 5)) {
        tarn_tensor *h = normed(x, norm), *gated = h ? tarn_linear_apply(h, gate, NULL) : NULL,
                    *y = gated ? tarn_linear_apply(h, up, NULL) : NULL;
        return y ? tarn_mul(act->apply(gated), y) : NULL;
    }
    return call_norm_gate_up(rows, x, norm, gate, up, act->act, &(branch_rows){0});
}

/* The residual is read in the layout of x's rows; else linear and add run separately. */
tarn_tensor *tarn__linear_residual(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *sum,
                                   double scale)
{
    const tarn__decode_norm none = {0};
    tarn_tensor *rows = NULL, *from = NULL;
    if (sum && !sum->is_constant && !tarn__recording_needed(&sum, 1) && weight && x &&
        sum->view.dtype == x->view.dtype && tarn__same_device(tarn__device(x), tarn__device(sum)) &&
        sum->view.rank == x->view.rank)
        rows = rows_for(TARN__K_linear_residual, "linear_residual", x, &none, &weight, &bias, 1);
    if (rows &&
        tarn__view_count(&sum->view) / weight->view.shape[0] * weight->view.shape[1] == tarn__view_count(&x->view) &&
        sum->view.shape[sum->view.rank - 1] == weight->view.shape[0])
        from = tarn__rows_of("linear_residual", sum);
    if (from && !fits(TARN__K_linear_residual, (tarn_tensor *[]){rows, weight, bias, from}, 4))
        from = NULL;
    if (!from) {
        tarn_tensor *y = tarn_linear_apply(x, weight, bias);
        y = y && scale != 1 ? tarn_mul(y, tarn_scalar(scale)) : y;
        return y ? tarn_add(sum, y) : NULL;
    }
    tarn__decode_linear params = {.scale = scale};
    tarn_tensor *y = result_for("linear_residual", x, weight), *to = y ? tarn__rows_of("linear_residual", y) : NULL;
    return to && tarn__kernel_call(TARN__K_linear_residual, "linear_residual", params,
                                   TARN__IN(rows, weight, bias, from), TARN__OUT(to))
               ? y
               : NULL;
}

/* sum as rows of x's shape and dtype where the kernel takes both; NULL, without an error, where they must be
 * composed. */
static tarn_tensor *rows_of_sum(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *sum)
{
    if (!x || !sum || x->is_constant || sum->is_constant || x->view.rank < 1 || !norm->weight ||
        sum->view.dtype != x->view.dtype || !tarn__same_shape(&x->view, &sum->view) ||
        !tarn__same_device(tarn__device(x), tarn__device(sum)) ||
        tarn__recording_needed((tarn_tensor *[]){x, sum, norm->weight, norm->bias}, 4) ||
        !vector_matches(x, norm->weight) || !vector_matches(x, norm->bias) ||
        !tarn__has_kernel(tarn__device(x), TARN__K_norm_residual, x->view.dtype))
        return NULL;
    return tarn__rows_of("norm_residual", sum);
}

/* Post-norm, as Gemma's: sum + scale * norm(x). */
tarn_tensor *tarn__norm_residual(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *sum, double scale)
{
    tarn_tensor *from = rows_of_sum(x, norm, sum), *rows = from ? tarn__rows_of("norm_residual", x) : NULL;
    if (!rows || !fits(TARN__K_norm_residual, (tarn_tensor *[]){rows, norm->weight, norm->bias, from}, 4)) {
        tarn_tensor *y = tarn_failed() ? NULL : normed(x, norm);
        y = y && scale != 1 ? tarn_mul(y, tarn_scalar(scale)) : y;
        return y ? tarn_add(sum, y) : NULL;
    }
    tarn__decode_linear params = params_of(norm, TARN__ACT_NONE);
    params.scale = scale;
    tarn_tensor *y = tarn__tensor_new("norm_residual", tarn__shape_of(x), x->view.dtype, tarn__device(x)),
                *to = y ? tarn__rows_of("norm_residual", y) : NULL;
    return to && tarn__kernel_call(TARN__K_norm_residual, "norm_residual", params,
                                   TARN__IN(rows, norm->weight, norm->bias, from), TARN__OUT(to))
               ? y
               : NULL;
}

/* ---- the residual stream ------------------------------------------------------------------------------------------
 */

tarn_tensor *tarn__stream_sum(tarn__decode_stream *stream)
{
    if (stream->branch)
        stream->sum = tarn__norm_residual(stream->branch, &stream->post, stream->sum, stream->scale);
    stream->branch = NULL;
    return stream->sum;
}

/* The branch as (rows, in), where a kernel may add it, and its other operands but the new sum; NULL, without an error,
 * where the branch must be added first: kernels have rmsnorms alone here. */
static tarn_tensor *rows_of_branch(tarn__kernel kernel, const tarn__decode_stream *stream,
                                   const tarn__decode_norm *norm, tarn_tensor *const *weights,
                                   tarn_tensor *const *biases, int count, branch_rows *to)
{
    *to = (branch_rows){0};
    if (!stream->branch || norm->is_layernorm || stream->post.is_layernorm)
        return NULL;
    tarn_tensor *rows = rows_for(kernel, "norm_linear", stream->branch, norm, weights, biases, count),
                *sum = rows ? rows_of_sum(stream->branch, &stream->post, stream->sum) : NULL;
    for (int i = 1; i < count; i++)
        if (sum && weights[i]->view.dtype != weights[0]->view.dtype)
            sum = NULL;
    *to = (branch_rows){stream->post.weight, sum, NULL, stream->post.epsilon, stream->post.offset, stream->scale};
    return sum ? rows : NULL;
}

/* A new sum of the stream, which a kernel with these operands writes. */
static tarn_tensor *new_sum_of(const tarn__decode_stream *stream, branch_rows *rows)
{
    tarn_tensor *sum = tarn__tensor_new("norm_residual", tarn__shape_of(stream->branch), stream->branch->view.dtype,
                                        tarn__device(stream->branch));
    rows->new_sum = sum ? tarn__rows_of("norm_residual", sum) : NULL;
    return rows->new_sum ? sum : NULL;
}

/* One kernel call for the branch and all weights. False, without an error, where it does not fit. */
static bool run_norm_linear(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                            tarn_tensor *const *biases, int count, const epilogue *end, tarn_tensor **y)
{
    branch_rows branch;
    tarn_tensor *rows = rows_of_branch(TARN__K_norm_linear, stream, norm, weights, biases, count, &branch),
                *in[11] = {rows, norm->weight};
    for (int i = 0; i < count; i++)
        in[2 + i] = weights[i], in[5 + i] = biases ? biases[i] : NULL;
    in[9] = branch.post, in[10] = branch.sum;
    if (!rows || !fits(TARN__K_norm_linear, in, 11))
        return false;
    tarn_tensor *sum = new_sum_of(stream, &branch);
    bool good = sum && call_norm_linear(rows, stream->branch, norm, weights, biases, count, end, &branch, y);
    stream->sum = sum, stream->branch = NULL;
    return good;
}

/* The kernel adds the branch where it fits; else norm_residual does. */
bool tarn__stream_norm_linear(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                              tarn_tensor *const *biases, int count, tarn_tensor **y)
{
    if (run_norm_linear(stream, norm, weights, biases, count, &(epilogue){0}, y))
        return true;
    tarn_tensor *x = tarn_failed() ? NULL : tarn__stream_sum(stream);
    return x && tarn__norm_linear(x, norm, weights, biases, count, y);
}

tarn_tensor *tarn__stream_norm_gate_up(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *gate,
                                       tarn_tensor *up, tarn_activation_kind activation)
{
    const tarn__act_row *act = tarn__act_row_of("norm_gate_up", activation);
    if (!act)
        return NULL;
    branch_rows branch;
    tarn_tensor *weights[] = {gate, up},
                *rows = rows_of_branch(TARN__K_norm_gate_up, stream, norm, weights, NULL, 2, &branch);
    if (!rows || !tarn__same_shape(&gate->view, &up->view) ||
        !fits(TARN__K_norm_gate_up, (tarn_tensor *[]){rows, norm->weight, gate, up, NULL, branch.post, branch.sum},
              7)) {
        tarn_tensor *x = tarn_failed() ? NULL : tarn__stream_sum(stream);
        return x ? tarn__norm_gate_up(x, norm, gate, up, activation) : NULL;
    }
    tarn_tensor *sum = new_sum_of(stream, &branch),
                *y = sum ? call_norm_gate_up(rows, stream->branch, norm, gate, up, act->act, &branch) : NULL;
    stream->sum = sum, stream->branch = NULL;
    return y;
}

tarn_tensor *tarn__scale_and_cap(tarn_tensor *x, double scale, double softcap)
{
    if (x && scale > 0)
        x = tarn_mul(x, tarn_scalar(scale));
    if (!x || !(softcap > 0))
        return x;
    tarn_tensor *cap = tarn_scalar(softcap);
    return tarn_mul(tarn_tanh(tarn_div(x, cap)), cap);
}

/* Scale and soft cap are in the kernel of the head where it fits. */
tarn_tensor *tarn__stream_logits(tarn__decode_stream *stream, const tarn__decode_norm *norm, tarn_tensor *weight,
                                 tarn_tensor *bias, double scale, double softcap)
{
    const epilogue end = {TARN__ACT_NONE, scale, softcap};
    tarn_tensor *y = NULL;
    if (run_norm_linear(stream, norm, &weight, &bias, 1, &end, &y))
        return y;
    tarn_tensor *x = tarn_failed() ? NULL : tarn__stream_sum(stream),
                *rows = x ? rows_for(TARN__K_norm_linear, "norm_linear", x, norm, &weight, &bias, 1) : NULL;
    if (rows && fits(TARN__K_norm_linear,
                     (tarn_tensor *[]){rows, norm->weight, weight, NULL, NULL, bias, NULL, NULL, norm->bias}, 9))
        return call_norm_linear(rows, x, norm, &weight, &bias, 1, &end, &(branch_rows){0}, &y) ? y : NULL;
    return x && tarn__norm_linear(x, norm, &weight, &bias, 1, &y) ? tarn__scale_and_cap(y, scale, softcap) : NULL;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Kernel params for a query [B, 1, H, D] and a cache of `keys` rows. A window of all keys is none. */
static tarn__attention_decode decode_params(const tarn_tensor *q, const tarn__decode_kv *keys,
                                            const tarn__decode_attention_options *o)
{
    int64_t head_dim = q->view.shape[3];
    tarn__attention_decode params = {.scale = o->scale != 0 ? o->scale : 1 / sqrt((double)head_dim),
                                     .window = o->window < keys->rows->view.shape[2] ? o->window : 0,
                                     .softcap = o->softcap};
    if (o->rope)
        params.rope = tarn__rope_params(o->rope, head_dim);
    return params;
}

static bool kernel_fits_decode(tarn_tensor *q, const tarn__decode_kv *keys,
                               const tarn__decode_attention_options *options)
{
    /* the rotation is not asked about: its frequencies take longer than the answer */
    tarn__decode_attention_options unrotated = *options;
    unrotated.rope = NULL;
    tarn__attention_decode params = decode_params(q, keys, &unrotated);
    tarn__launch launch = {.kernel = TARN__K_attention_decode,
                           .inputs = 1,
                           .outputs = 2,
                           .in = {q},
                           .out = {NULL, keys->rows},
                           .params = &params,
                           .params_bytes = sizeof(params)};
    return tarn__kernel_fits(tarn__device(q), &launch);
}

/* Asks the kernel with q and the cache; k, v and the result have the layout of q. */
bool tarn__attention_decode_fits(tarn_tensor *q, const tarn__decode_kv *keys,
                                 const tarn__decode_attention_options *options)
{
    const tarn_rope_options *rope = options->rope;
    const tarn__view *a = &q->view, *k = &keys->rows->view;
    tarn_device device = tarn__device(q);
    return tarn__has_kernel(device, TARN__K_attention_decode, a->dtype) &&
           tarn__has_kernel(device, TARN__K_attention_decode, k->dtype) && a->dtype != TARN_U8 && a->rank == 4 &&
           a->shape[1] == 1 && (!rope || (rope->dims % 2 == 0 && rope->dims <= a->shape[3])) && k->rank == 4 &&
           k->shape[2] > 0 && !tarn__recording_needed(&q, 1) && kernel_fits_decode(q, keys, options);
}

/* All operands are used in place; caches and scales are outputs that are also read. */
tarn_tensor *tarn__decode_attention(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *position,
                                    const tarn__decode_attention_options *options, const tarn__decode_kv *keys,
                                    const tarn__decode_kv *values)
{
    tarn__attention_decode params = decode_params(q, keys, options);
    tarn_tensor *y = tarn__tensor_new("attention", tarn__shape_of(q), q->view.dtype, tarn__device(q));
    bool good = y && tarn__kernel_call(TARN__K_attention_decode, "attention", params, TARN__IN(q, k, v, position),
                                       TARN__OUT(y, keys->rows, values->rows, keys->scale, values->scale),
                                       .reads_output = 0x1e);
    return good ? y : NULL;
}

/* ---- greedy sampling ------------------------------------------------------------------------------------------- */

/* The kernel, or max, argmax and where: a maximum that is not finite must not pick a token. */
tarn_tensor *tarn__argmax_finite(tarn_tensor *x)
{
    const tarn__view *view = &x->view;
    tarn__along along = {.axis = 1};
    if (view->rank == 2 && fits(TARN__K_argmax_finite, &x, 1)) {
        tarn_tensor *y = tarn__tensor_new("argmax_finite", TARN_SHAPE(view->shape[0], 1), TARN_I64, tarn__device(x));
        return y && tarn__kernel_call(TARN__K_argmax_finite, "argmax_finite", along, TARN__IN(x), TARN__OUT(y)) ? y
                                                                                                                : NULL;
    }
    /* max - max: 0, or NaN where the maximum is not finite */
    tarn_tensor *largest = tarn_max(x, TARN_AXES(1), true), *gap = tarn_sub(largest, largest);
    return tarn_where(tarn_eq(gap, tarn_scalar(0)), tarn_argmax(x, 1, true), tarn_scalar(-1));
}

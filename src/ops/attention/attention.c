/* attention.c: attention, forward and backward, each in one kernel. Of the T × S weights only the logsumexp of each
 * row is stored; backward recomputes them from it. Strides carry the layout: the heads of a packed QKV tensor are
 * views into it, and so are their gradients. Document starts have kernels of their own; on a device without these, or
 * whose kernels do not fit a window or soft cap, attention is composed of matmuls, a mask and a softmax (at the end of
 * this file).
 *
 * Backward of a row, with p = exp(s - lse) recomputed per tile and δ = Σ g · y:
 *   gv += pᵀ g        gs = p · (g vᵀ - δ)        gq = gs k · scale        gk += gsᵀ q · scale
 * A soft cap c gives s = c · tanh(r / c) of the scaled score r, and gs · (1 - tanh²) in place of gs.
 * The kernels keep no state between calls. Dropout's mask is recomputed from its counters, as everywhere.
 *
 * Masks: causal, its window, lengths (valid keys per sequence) and document starts combine; a row without any key
 * gives 0 and passes no gradient. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/tensor/random.h"
#include "ops/internal.h"

static const char *const roles[] = {"q", "k", "v"};

/* Memory layout [B, T, heads, D] of a result [B, heads, T, D]: the operation after it merges the heads. */
static const int heads_inner[] = {0, 2, 1, 3};

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* q [B, H, T, D], k and v [B, KV, S, D]; KV divides H (grouped-query attention). */
static bool check_operands(const tarn_tensor *q, const tarn_tensor *k, const tarn_tensor *v)
{
    const tarn__view *a = &q->view, *b = &k->view;
    bool fits = a->rank == 4 && b->rank == 4 && tarn__same_shape(b, &v->view) && a->shape[0] == b->shape[0] &&
                a->shape[3] == b->shape[3];
    if (!fits)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "attention: q %s, k %s and v %s do not fit: q is [B, H, T, D], k and v are [B, KV, S, D]",
                           TARN__SHAPE_STRING(q), TARN__SHAPE_STRING(k), TARN__SHAPE_STRING(v));
    if (b->shape[1] < 1 || a->shape[1] < 1 || a->shape[1] % b->shape[1] != 0)
        return tarn__raise(TARN_ERROR_SHAPE, "attention: q %s has %lld heads, not a multiple of the %lld of k %s",
                           TARN__SHAPE_STRING(q), (long long)a->shape[1], (long long)b->shape[1],
                           TARN__SHAPE_STRING(k));
    return a->shape[3] > 0 ||
           tarn__raise(TARN_ERROR_SHAPE, "attention: q %s has no elements along its last axis", TARN__SHAPE_STRING(q));
}

/* Document starts: one per row of each sequence, i32 or i64 [B, T]. */
static bool check_starts(const char *function, const tarn_tensor *document_starts, int64_t batches, int64_t rows)
{
    if (!document_starts)
        return true;
    if (!tarn__check_dtype(function, document_starts, TARN__INDEXES, "document_starts"))
        return false;
    const tarn__view *view = &document_starts->view;
    return (view->rank == 2 && view->shape[0] == batches && view->shape[1] == rows) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: document_starts %s do not fit: expected one per row, [%lld, %lld]",
                       function, TARN__SHAPE_STRING(document_starts), (long long)batches, (long long)rows);
}

/* Checks the options against x, whose first axis is B, and the number of rows (queries). */
static bool check_options(const char *function, const tarn_tensor *x, int64_t rows, const tarn_attention_options *o)
{
    if (!isfinite(o->scale))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: scale %g is not finite", function, o->scale);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: dropout is %g; expected at least 0 and below 1", function,
                           o->dropout);
    if (o->window < 0 || (o->window > 0 && !o->causal))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: window is %lld; expected 0, or more together with causal",
                           function, (long long)o->window);
    if (!(o->softcap >= 0 && isfinite(o->softcap)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: softcap is %g; expected a finite number, at least 0", function,
                           o->softcap);
    const tarn_tensor *lengths = o->lengths;
    if (!check_starts(function, o->document_starts, x->view.shape[0], rows) || !lengths)
        return !tarn_failed();
    if (!tarn__check_dtype(function, lengths, TARN__INDEXES, "lengths"))
        return false;
    const tarn__view *view = &lengths->view;
    bool fits = !lengths->is_constant &&
                (view->rank == 0 || (view->rank == 1 && (view->shape[0] == 1 || view->shape[0] == x->view.shape[0])));
    return fits ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: lengths %s do not fit: expected one value, or one per batch, %lld",
                       function, TARN__SHAPE_STRING(lengths), (long long)x->view.shape[0]);
}

/* Kernel params, without the counters of dropout. A window of all keys is none. */
static tarn__attention params_of(const tarn_attention_options *o, const tarn_tensor *q, const tarn_tensor *k)
{
    return (tarn__attention){.scale = o->scale != 0 ? o->scale : 1 / sqrt((double)q->view.shape[3]),
                             .causal = o->causal,
                             .tf32 = tarn__tf32(),
                             .random.a = o->dropout,
                             .window = o->window < k->view.shape[2] ? o->window : 0,
                             .softcap = o->softcap};
}

/* Dropout reserves Philox counters for whole rows of S keys: one counter, four words, per 8 keys. */
static void reserve_dropout(tarn__attention *params, const tarn_attention_options *o, const tarn_tensor *q,
                            const tarn_tensor *k)
{
    const int64_t *a = q->view.shape;
    if (o->dropout > 0) {
        params->random = tarn__random_reserve(tarn__device(q), a[0] * a[1] * a[2] * ((k->view.shape[2] + 7) / 8) * 4);
        params->random.a = o->dropout;
    }
}

/* Options of an older caller may be shorter: missing fields are 0. */
static tarn_attention_options options_of(const tarn_attention_options *options, size_t size)
{
    tarn_attention_options o = {0};
    if (options)
        memcpy(&o, options, size < sizeof(o) ? size : sizeof(o));
    return o;
}

/* Allocates the logsumexp (B, H, T) if something will be recorded, else NULL. */
static bool new_logsumexp(const char *function, const tarn_tensor *q, bool wanted, tarn_tensor **to)
{
    const int64_t *size = q->view.shape;
    *to = NULL;
    return !wanted || (*to = tarn__tensor_new(function, TARN_SHAPE(size[0], size[1], size[2]),
                                              tarn__acc_dtype(q->view.dtype), tarn__device(q))) != NULL;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* True when the device has no kernel for document starts, a window or a soft cap, so that attention is composed. A
 * device whose kernel fits has a gradient that fits. Without any of the three, the CPU takes over instead. */
static bool needs_composing(const tarn__attention *params, tarn_tensor *const *part, const tarn_attention_options *o)
{
    if (!o->document_starts && params->window == 0 && params->softcap == 0)
        return false;
    tarn__launch launch = {.kernel = o->document_starts ? TARN__K_attention_documents : TARN__K_attention,
                           .inputs = o->document_starts ? 5 : 4,
                           .outputs = 2,
                           .in = {part[0], part[1], part[2], o->lengths, o->document_starts},
                           .params = params,
                           .params_bytes = sizeof(*params)};
    return !tarn__kernel_fits(tarn__device(part[0]), &launch);
}

/* Forward kernel: q, k, v (part[0..2]) to y and the logsumexp. */
static bool attend(const char *function, const tarn__attention *params, tarn_tensor *const *part,
                   const tarn_attention_options *o, tarn_tensor *y, tarn_tensor *lse)
{
    return o->document_starts ? tarn__kernel_call(TARN__K_attention_documents, function, *params,
                                                  TARN__IN(part[0], part[1], part[2], o->lengths, o->document_starts),
                                                  TARN__OUT(y, lse))
                              : tarn__kernel_call(TARN__K_attention, function, *params,
                                                  TARN__IN(part[0], part[1], part[2], o->lengths), TARN__OUT(y, lse));
}

/* Operands of the gradient besides q, k and v. */
typedef struct grad_operands {
    tarn_tensor *lengths, *document_starts, *y, *lse, *g;
} grad_operands;

/* Backward kernel: gradients of q, k and v into to[0..2], NULL where not needed. */
static bool attend_back(const char *function, const tarn__attention *params, tarn_tensor *const *part,
                        const grad_operands *t, tarn_tensor *const *to)
{
    return t->document_starts ? tarn__kernel_call(TARN__K_attention_documents_grad, function, *params,
                                                  TARN__IN(part[0], part[1], part[2], t->lengths, t->y, t->lse, t->g,
                                                           t->document_starts),
                                                  TARN__OUT(to[0], to[1], to[2]))
                              : tarn__kernel_call(TARN__K_attention_grad, function, *params,
                                                  TARN__IN(part[0], part[1], part[2], t->lengths, t->y, t->lse, t->g),
                                                  TARN__OUT(to[0], to[1], to[2]));
}

/* ---- separate q, k and v --------------------------------------------------------------------------------------- */

/* In the order in which tensors are saved for backward; the first five are the operands too. */
enum { Q, K, V, LENGTHS, STARTS, RESULT, LSE };

/* gq, gk and gv in one kernel, in the layout of the result. */
static bool attention_backward(const tarn__backward *b)
{
    tarn_tensor *const *s = b->saved, *to[3] = {0};
    for (int i = 0; i < 3; i++) {
        const tarn__tensor_spec *spec = tarn__input_spec(b, i);
        if (tarn__needs_grad(b, i) &&
            !(to[i] = tarn__tensor_new_ordered(b->function, spec->shape, tarn__grad_dtype(b, i), spec->device,
                                               heads_inner)))
            return false;
    }
    if (!attend_back(b->function, b->params, s, &(grad_operands){s[LENGTHS], s[STARTS], s[RESULT], s[LSE], b->grads[0]},
                     to))
        return false;
    for (int i = 0; i < 3; i++)
        if (to[i] && !tarn__accumulate_grad(b, i, to[i]))
            return false;
    return true;
}

/* softmax(q kᵀ · scale + mask) v -> y [B, H, T, D]. Saves q, k, v, y and the logsumexp: O(T) instead of O(T · S)
 * memory. FLOPs: 4 · B · H · T · S · D, half of that if causal. */
tarn_tensor *tarn_attention_sized(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, const tarn_attention_options *options,
                                  size_t options_size)
{
    tarn_attention_options o = options_of(options, options_size);
    tarn_tensor *in[] = {q, k, v, o.lengths, o.document_starts}, *lse;
    if (!tarn__unify_operands("attention", in, roles, 3) || !tarn__unify_devices("attention", in, 5) ||
        !tarn__check_dtype("attention", in[Q], TARN__FLOATS, "q") || !check_operands(in[Q], in[K], in[V]))
        return NULL;
    o.lengths = in[LENGTHS], o.document_starts = in[STARTS];
    if (!check_options("attention", in[Q], in[Q]->view.shape[2], &o))
        return NULL;
    tarn__attention params = params_of(&o, in[Q], in[K]);
    if (needs_composing(&params, in, &o))
        return tarn__attention_composed(in[Q], in[K], in[V], &o);
    tarn_tensor *y = tarn__tensor_new_ordered("attention", tarn__shape_of(in[Q]), in[Q]->view.dtype,
                                              tarn__device(in[Q]), heads_inner);
    if (!y || !new_logsumexp("attention", in[Q], tarn__recording_needed(in, 3), &lse))
        return NULL;
    reserve_dropout(&params, &o, in[Q], in[K]);
    if (!attend("attention", &params, in, &o, y, lse))
        return NULL;
    bool good = tarn__finish("attention", attention_backward, params, TARN__INPUTS(in[Q], in[K], in[V]),
                             TARN__OUTPUTS(y), TARN__SAVED(in[Q], in[K], in[V], o.lengths, o.document_starts, y, lse));
    return good ? y : NULL;
}

/* ---- quantized KV cache ---------------------------------------------------------------------------------------- */

/* Two lookups: the kernel's mask covers q's and k's dtypes. */
bool tarn__attention_quant_kv_fits(tarn_tensor *q, const tarn_tensor *k)
{
    tarn_device device = tarn__device(q);
    return tarn__has_kernel(device, TARN__K_attention_quant_kv, q->view.dtype) &&
           tarn__has_kernel(device, TARN__K_attention_quant_kv, k->view.dtype);
}

tarn_tensor *tarn__attention_quant_kv(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *k_scale,
                                      tarn_tensor *v_scale, const tarn_attention_options *options)
{
    if (!check_operands(q, k, v) || !check_options("attention", q, q->view.shape[2], options))
        return NULL;
    if (options->document_starts) {
        tarn__raise(TARN_ERROR_UNSUPPORTED, "attention: document_starts are not supported with a quantized KV cache");
        return NULL;
    }
    tarn_tensor *y =
        tarn__tensor_new_ordered("attention", tarn__shape_of(q), q->view.dtype, tarn__device(q), heads_inner);
    tarn__attention params = params_of(options, q, k);
    reserve_dropout(&params, options, q, k);
    bool good = y && tarn__kernel_call(TARN__K_attention_quant_kv, "attention", params,
                                       TARN__IN(q, k, v, options->lengths, k_scale, v_scale), TARN__OUT(y));
    return good ? y : NULL;
}

/* Options from the attributes of a call by name. */
static tarn_attention_options named_options(const tarn__invocation *v, tarn_tensor *lengths,
                                            tarn_tensor *document_starts)
{
    return (tarn_attention_options){.causal = tarn__attribute_int(v, "causal", 0) != 0,
                                    .scale = tarn__attribute_real(v, "scale", 0),
                                    .dropout = tarn__attribute_real(v, "dropout", 0),
                                    .lengths = lengths,
                                    .document_starts = document_starts,
                                    .window = tarn__attribute_int(v, "window", 0),
                                    .softcap = tarn__attribute_real(v, "softcap", 0)};
}

/* By name, as custom graphs and tests call operations. */
bool tarn__apply_attention(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_attention_options o = named_options(v, v->in[3], v->in[4]);
    return (out[0] = tarn_attention(v->in[0], v->in[1], v->in[2], &o)) != NULL;
}

/* ---- packed QKV [B, T, (H + 2 KV) · D] ----------------------------------------------------------------------- */

/* Params of packed attention: `depth` is the head_dim. */
typedef struct packed_record {
    tarn__attention params;
    int64_t heads, kv_heads, depth;
} packed_record;

/* Heads `first` to `first + count` of x [B, T, heads · D] as [B, count, T, D]: a view in the open scope. */
static tarn_tensor *heads_of(tarn_tensor *x, int64_t first, int64_t count, int64_t depth)
{
    tarn_tensor *heads = x ? tarn__tensor_view(x) : NULL;
    if (!heads)
        return NULL;
    const tarn__view *from = &x->view;
    int64_t shape[] = {from->shape[0], count, from->shape[1], depth};
    int64_t stride[] = {from->stride[0], depth * from->stride[2], from->stride[1], from->stride[2]};
    heads->view.rank = 4;
    memcpy(heads->view.shape, shape, sizeof(shape));
    memcpy(heads->view.stride, stride, sizeof(stride));
    tarn__tensor_set_start(heads, x->start + first * depth * from->stride[2]);
    return heads;
}

/* Views of q, k and v in a packed tensor. */
static bool unpack(tarn_tensor *packed, const packed_record *r, tarn_tensor **part)
{
    part[Q] = heads_of(packed, 0, r->heads, r->depth);
    part[K] = heads_of(packed, r->heads, r->kv_heads, r->depth);
    part[V] = heads_of(packed, r->heads + r->kv_heads, r->kv_heads, r->depth);
    return part[Q] && part[K] && part[V];
}

/* The gradients of q, k and v are written into one packed tensor through views. */
static bool packed_backward(const tarn__backward *b)
{
    const packed_record *r = b->params;
    tarn_tensor *qkv = b->saved[0], *part[3], *to[3];
    tarn_tensor *whole = tarn__tensor_new(b->function, tarn__shape_of(qkv), tarn__grad_dtype(b, 0), tarn__device(qkv));
    tarn_tensor *y = heads_of(b->saved[3], 0, r->heads, r->depth), *g = heads_of(b->grads[0], 0, r->heads, r->depth);
    return whole && y && g && unpack(qkv, r, part) && unpack(whole, r, to) &&
           attend_back(b->function, &r->params, part, &(grad_operands){b->saved[1], b->saved[2], y, b->saved[4], g},
                       to) &&
           tarn__accumulate_grad(b, 0, whole);
}

/* The composed form; its gradients flow through recorded views. */
static tarn_tensor *packed_composed(tarn_tensor *qkv, const packed_record *r, const tarn_attention_options *o)
{
    tarn_tensor *part[3];
    int64_t B = qkv->view.shape[0], T = qkv->view.shape[1], heads[] = {r->heads, r->kv_heads, r->kv_heads};
    if (!tarn_split(qkv, 2, (const int64_t[]){heads[Q] * r->depth, heads[K] * r->depth, heads[V] * r->depth}, 3, part))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (!(part[i] =
                  tarn_permute(tarn_reshape(part[i], TARN_SHAPE(B, T, heads[i], r->depth)), TARN_AXES(0, 2, 1, 3))))
            return NULL;
    tarn_tensor *y = tarn__attention_composed(part[Q], part[K], part[V], o);
    return tarn_reshape(tarn_permute(y, TARN_AXES(0, 2, 1, 3)), TARN_SHAPE(B, T, r->heads * r->depth));
}

/* qkv [B, T, (H + 2 KV) · D]; kv_heads divides heads. */
static bool check_packed(tarn_tensor *qkv, int64_t heads, int64_t kv_heads)
{
    if (!tarn__check("attention_packed", qkv, "qkv") ||
        !tarn__check_dtype("attention_packed", qkv, TARN__FLOATS, "qkv"))
        return false;
    if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "attention_packed: heads is %lld, not a multiple of kv_heads, %lld",
                           (long long)heads, (long long)kv_heads);
    const tarn__view *view = &qkv->view;
    bool fits = view->rank == 3 && view->shape[2] > 0 && heads <= view->shape[2] &&
                view->shape[2] % (heads + 2 * kv_heads) == 0;
    return fits || tarn__raise(TARN_ERROR_SHAPE, "attention_packed: qkv %s is not [B, T, (%lld + 2 * %lld) * D]",
                               TARN__SHAPE_STRING(qkv), (long long)heads, (long long)kv_heads);
}

/* qkv [B, T, (H + 2 KV) · D] -> y [B, T, H · D]: no transposes and no splits, only views. */
tarn_tensor *tarn_attention_packed_sized(tarn_tensor *qkv, int64_t heads, int64_t kv_heads,
                                         const tarn_attention_options *options, size_t options_size)
{
    tarn_attention_options o = options_of(options, options_size);
    packed_record r = {.heads = heads, .kv_heads = kv_heads == 0 ? heads : kv_heads};
    tarn_tensor *in[] = {qkv, o.lengths, o.document_starts}, *part[3], *lse;
    if (!check_packed(qkv, r.heads, r.kv_heads) || !tarn__unify_devices("attention_packed", in, 3))
        return NULL;
    qkv = in[0], o.lengths = in[1], o.document_starts = in[2];
    if (!check_options("attention_packed", qkv, qkv->view.shape[1], &o))
        return NULL;
    const int64_t *size = qkv->view.shape;
    r.depth = size[2] / (r.heads + 2 * r.kv_heads);
    if (!unpack(qkv, &r, part))
        return NULL;
    r.params = params_of(&o, part[Q], part[K]);
    if (needs_composing(&r.params, part, &o))
        return packed_composed(qkv, &r, &o);
    tarn_tensor *y = tarn__tensor_new("attention_packed", TARN_SHAPE(size[0], size[1], r.heads * r.depth),
                                      qkv->view.dtype, tarn__device(qkv));
    tarn_tensor *to = heads_of(y, 0, r.heads, r.depth);
    if (!to || !new_logsumexp("attention_packed", part[Q], tarn__recording_needed(&qkv, 1), &lse))
        return NULL;
    reserve_dropout(&r.params, &o, part[Q], part[K]);
    if (!attend("attention_packed", &r.params, part, &o, to, lse))
        return NULL;
    return tarn__finish("attention_packed", packed_backward, r, TARN__INPUTS(qkv), TARN__OUTPUTS(y),
                        TARN__SAVED(qkv, o.lengths, o.document_starts, y, lse))
               ? y
               : NULL;
}

bool tarn__apply_attention_packed(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_attention_options o = named_options(v, v->in[1], v->in[2]);
    return (out[0] = tarn_attention_packed(v->in[0], tarn__attribute_int(v, "heads", 1),
                                           tarn__attribute_int(v, "kv_heads", 0), &o)) != NULL;
}

/* ---- composed attention ------------------------------------------------------------------------------------------ */

/* The last key of each row, i32 [B or 1, 1, 1, T or 1, 1]: its position if causal, else the last valid key. */
static tarn_tensor *last_keys(const tarn_attention_options *o, int64_t rows, int64_t keys, tarn_device device)
{
    tarn_tensor *last = tarn_arange((double)(o->causal ? keys - rows : keys - 1), (double)keys, 1, TARN_I32, device);
    last = tarn_reshape(last, TARN_SHAPE(o->causal ? rows : 1, 1));
    /* Queries are the last rows of the keys: with a cache, T < S, row t is at position S - T + t. */
    if (!o->lengths)
        return last;
    tarn_tensor *lengths =
        tarn_reshape(tarn_cast(o->lengths, TARN_I32), TARN_SHAPE(tarn_count(o->lengths), 1, 1, 1, 1));
    tarn_tensor *missing = tarn_sub(lengths, tarn_scalar((double)keys));
    return tarn_minimum(tarn_add(last, missing), tarn_sub(lengths, tarn_scalar(1)));
}

/* Mask [B or 1, 1, 1, T or 1, S], or without leading ones: the keys each row attends to. first <= key <= last is tested
 * as max(key, first) == min(key, last), one comparison instead of two and an AND. */
static tarn_tensor *allowed(const tarn_attention_options *o, int64_t batches, int64_t rows, int64_t keys,
                            tarn_device device)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *key = tarn_arange(0, (double)keys, 1, TARN_I32, device), *from = key;
    tarn_tensor *last = last_keys(o, rows, keys, device);
    if (o->document_starts)
        from = tarn_maximum(from,
                            tarn_reshape(tarn_cast(o->document_starts, TARN_I32), TARN_SHAPE(batches, 1, 1, rows, 1)));
    if (o->window > 0 && o->window < keys)
        from = tarn_maximum(from, tarn_sub(last, tarn_scalar((double)(o->window - 1))));
    tarn_tensor *mask = tarn_eq(from, tarn_minimum(key, last));
    if (mask)
        tarn_scope_return(scope, mask);
    tarn_scope_close(scope);
    return mask;
}

/* Queries are grouped as [B, KV, H / KV, T, D], so that keys and values broadcast over the heads of a group. */
tarn_tensor *tarn__attention_composed(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v,
                                      const tarn_attention_options *options)
{
    tarn_dtype dtype = q->view.dtype, wide = tarn__acc_dtype(dtype);
    int64_t B = q->view.shape[0], H = q->view.shape[1], T = q->view.shape[2], D = q->view.shape[3],
            KV = k->view.shape[1], S = k->view.shape[2];
    double scale = options->scale != 0 ? options->scale : 1 / sqrt((double)D),
           none = wide == TARN_F64 ? -DBL_MAX : -FLT_MAX;
    tarn_tensor *mask = allowed(options, B, T, S, tarn__device(q));
    tarn_tensor *queries =
        tarn_mul(tarn_reshape(tarn_cast(q, wide), TARN_SHAPE(B, KV, H / KV, T, D)), tarn_scalar(scale));
    tarn_tensor *transposed_k = tarn_unsqueeze(tarn_transpose(tarn_cast(k, wide), -1, -2), 2);
    /* [B, KV, H / KV, T, S], in the accumulation dtype: this is the memory that the kernels avoid. */
    tarn_tensor *scores = tarn_matmul(queries, transposed_k);
    if (options->softcap > 0)
        scores =
            tarn_mul(tarn_tanh(tarn_mul(scores, tarn_scalar(1 / options->softcap))), tarn_scalar(options->softcap));
    /* A finite number, not -inf: a row of -inf only would be NaN. */
    tarn_tensor *weights = tarn_softmax(tarn_where(mask, scores, tarn_scalar(none)), -1);
    /* 0 for rows without keys, where softmax gives equal weights */
    weights = tarn_where(mask, weights, tarn_scalar(0));
    if (options->dropout > 0)
        weights = tarn_dropout(weights, options->dropout);
    tarn_tensor *y = tarn_matmul(weights, tarn_unsqueeze(tarn_cast(v, wide), 2));
    return tarn_cast(tarn_reshape(y, TARN_SHAPE(B, H, T, D)), dtype);
}

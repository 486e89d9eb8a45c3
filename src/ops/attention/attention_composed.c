/* attention_composed.c: attention that begins at a start of each row's own, as products, a softmax and a choice of
 * keys. */
#include <float.h>
#include <math.h>

#include "ops/attention.h"

/* Positions up to which rows attend, i32 [B or 1, 1, 1, T or 1, 1]. */
static tarn_tensor *last_keys(const tarn_attention_options *o, int64_t rows, int64_t keys, tarn_device device)
{
    tarn_tensor *last = tarn_arange((double)(o->causal ? keys - rows : keys - 1), (double)keys, 1, TARN_I32, device);
    last = tarn_reshape(last, TARN_SHAPE(o->causal ? rows : 1, 1));
    if (!o->lengths)
        return last;
    tarn_tensor *lengths =
        tarn_reshape(tarn_cast(o->lengths, TARN_I32), TARN_SHAPE(tarn_count(o->lengths), 1, 1, 1, 1));
    tarn_tensor *missing = tarn_sub(lengths, tarn_scalar((double)keys));
    return tarn_minimum(tarn_add(last, missing), tarn_sub(lengths, tarn_scalar(1)));
}

/* bool [B, 1, 1, T, S]: which keys each row attends to. A key lies between two bounds where the larger of it and the
 * lower is the smaller of it and the upper. */
static tarn_tensor *allowed(const tarn_attention_options *o, int64_t batches, int64_t rows, int64_t keys,
                            tarn_device device)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *key = tarn_arange(0, (double)keys, 1, TARN_I32, device);
    tarn_tensor *first = tarn_reshape(tarn_cast(o->document_starts, TARN_I32), TARN_SHAPE(batches, 1, 1, rows, 1));
    tarn_tensor *last = last_keys(o, rows, keys, device);
    tarn_tensor *mask = tarn_eq(tarn_maximum(key, first), tarn_minimum(key, last));
    if (mask)
        tarn_scope_return(scope, mask);
    tarn_scope_close(scope);
    return mask;
}

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
    tarn_tensor *turned = tarn_unsqueeze(tarn_transpose(tarn_cast(k, wide), -1, -2), 2);
    tarn_tensor *weights = tarn_softmax(tarn_where(mask, tarn_matmul(queries, turned), tarn_scalar(none)), -1);
    weights = tarn_where(mask, weights, tarn_scalar(0)); /* of rows that attend to nothing */
    if (options->dropout > 0)
        weights = tarn_dropout(weights, options->dropout);
    tarn_tensor *y = tarn_matmul(weights, tarn_unsqueeze(tarn_cast(v, wide), 2));
    return tarn_cast(tarn_reshape(y, TARN_SHAPE(B, H, T, D)), dtype);
}

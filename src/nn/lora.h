/* lora.h: LoRA adapters of linear layers: y + scale · B(A(dropout(x))), A (rank, in), B (out, rank).
 *
 * A layer that can have one names the layout of its weight (tarn_module.linear) and computes its output with
 * tarn__lora_forward(). A and B are its children "lora_A" and "lora_B", each with the parameter "weight", so that
 * walks, moves, optimizers and state dicts treat them like any parameter. */
#ifndef TARN__NN_LORA_H
#define TARN__NN_LORA_H

#include "nn/module.h"

typedef struct tarn__adapter {
    int64_t rank;
    double alpha, dropout;
    bool rslora;
    double scale; /* alpha / rank, or with rslora alpha / sqrt(rank) */
} tarn__adapter;

/* Children of a layer that has an adapter. */
enum { TARN__ADAPTER_A, TARN__ADAPTER_B };

/* Input and output features of a layer, by the layout of its weight. */
int64_t tarn__linear_in(const tarn_module *layer);
int64_t tarn__linear_out(const tarn_module *layer);

/* The output of a layer for x with its adapter's term, if it has one, in the dtype of the layer's own output. Where the
 * adapter has another dtype x is cast to it, and the sum is taken in the wider of the two. Borrows all; the result
 * belongs to the open scope. NULL with an error. */
tarn_tensor *tarn__lora_forward(const tarn_module *layer, tarn_tensor *x);

/* The same for up to TARN__MAX_LORA_LINEARS layers of one layout that share x, as q, k and v do: one fused operation
 * where possible, else layer by layer. False with an error. */
bool tarn__lora_forward_shared(tarn_module *const *layer, int count, tarn_tensor *x, tarn_tensor **y);

/* Adds an adapter to a layer. Takes the tensors, on failure too; then the layer is unchanged. */
bool tarn__adapter_add(tarn_module *layer, const tarn__adapter *settings, tarn_tensor *a, tarn_tensor *b);

/* Removes a layer's adapter, if it has one. */
void tarn__adapter_remove(tarn_module *layer);

/* A or B of a layer that has an adapter. Borrowed. */
tarn_tensor *tarn__adapter_weight(const tarn_module *layer, int which);

#endif

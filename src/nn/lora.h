/* lora.h: adapters of linear layers: y + scale · B(A(dropout(x))), A [rank, in], B [out, rank].
 *
 * A layer that can have one says how its weight lies (tarn_module.linear), and computes what it gives by
 * tarn__lora_forward(). A and B are its children "lora_A" and "lora_B", each with the parameter "weight", so that they
 * are moved, listed, trained and saved as all parameters are. */
#ifndef TARN__NN_LORA_H
#define TARN__NN_LORA_H

#include "nn/module.h"

typedef struct tarn__adapter {
    int64_t rank;
    double alpha, dropout;
    bool rslora;
    double scale; /* what follows from alpha and rank */
} tarn__adapter;

/* Children of a layer that has an adapter. */
enum { TARN__ADAPTER_A, TARN__ADAPTER_B };

/* What a layer takes and gives, by its weight's form. */
int64_t tarn__linear_in(const tarn_module *layer);
int64_t tarn__linear_out(const tarn_module *layer);

/* What a layer makes of x, and what its adapter, where it has one, adds to that. In the dtype of what the layer itself
 * makes; where the adapter's is another, x is cast to that, and the sum is taken in the wider of the two. Borrows all;
 * the result belongs to the open scope. NULL with an error. */
tarn_tensor *tarn__lora_forward(const tarn_module *layer, tarn_tensor *x);

/* The same of layers of one form that share x, at most TARN__MAX_LORA_LINEARS: with adapters as one operation, else one
 * after the other. False with an error. */
bool tarn__lora_forward_shared(tarn_module *const *layer, int count, tarn_tensor *x, tarn_tensor **y);

/* Gives a layer an adapter. Takes the tensors, on failure too; then the layer is as it was. */
bool tarn__adapter_add(tarn_module *layer, const tarn__adapter *settings, tarn_tensor *a, tarn_tensor *b);

/* Takes a layer's adapter away; one that has none stays as it is. */
void tarn__adapter_remove(tarn_module *layer);

/* A or B of a layer that has an adapter. Borrowed. */
tarn_tensor *tarn__adapter_weight(const tarn_module *layer, int which);

#endif

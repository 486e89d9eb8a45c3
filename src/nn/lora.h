/* lora.h: LoRA adapters of linear layers: y + scale · B(A(dropout(x))), A (rank, in), B (out, rank); and of embeddings:
 * y + scale · Aᵀ[index] · Bᵀ, A (rank, rows), B (columns, rank).
 *
 * A layer that can have one names the layout of its weight (tarn_module.linear) and computes its output with
 * tarn__lora_forward(), an embedding with tarn__lora_embedding(). A and B of a layer are its children "lora_A" and
 * "lora_B", each with the parameter "weight"; those of an embedding are its parameters "lora_embedding_A" and
 * "lora_embedding_B". So the names are PEFT's, and walks, moves, optimizers and state dicts treat them like any
 * parameter.
 *
 * DoRA scales the sum of a layer's weight and its adapter's to given norms of its rows, which are the parameter
 * "lora_magnitude_vector" (out). The factor, magnitude / norm, is the buffer "lora_magnitude_factor": it holds for
 * fixed weights, so such adapters are not trained. */
#ifndef TARN__NN_LORA_H
#define TARN__NN_LORA_H

#include "nn/module.h"

typedef struct tarn__adapter {
    int64_t rank;
    double alpha, dropout;
    bool rslora;
    bool is_embedding, has_magnitude; /* set by tarn__adapter_add() and tarn__adapter_add_magnitude() */
    double scale;                     /* alpha / rank, or with rslora alpha / sqrt(rank) */
    bool is_tokens;                   /* no LoRA: rows of a weight are replaced (token_adapter.c) */
    bool is_tied;                     /* these rows are those of the embedding whose weight the head shares */
    int64_t *token, tokens;           /* ids of the rows, owned, and their number */
} tarn__adapter;

/* Children of a layer that has an adapter. */
enum { TARN__ADAPTER_A, TARN__ADAPTER_B };

/* Input and output features of a layer, by the layout of its weight; (out, in) where it names none. */
int64_t tarn__linear_in(const tarn_module *layer);
int64_t tarn__linear_out(const tarn_module *layer);

/* The output of a layer for x with its adapter's term, if it has one, in the dtype of the layer's own output. Where the
 * adapter has another dtype x is cast to it, and the sum is taken in the wider of the two. Borrows all; the result
 * belongs to the open scope. NULL with an error. */
tarn_tensor *tarn__lora_forward(const tarn_module *layer, tarn_tensor *x);

/* The same for up to TARN__MAX_LORA_LINEARS layers of one layout that share x, as q, k and v do: one fused operation
 * where possible, else layer by layer. False with an error. */
bool tarn__lora_forward_shared(tarn_module *const *layer, int count, tarn_tensor *x, tarn_tensor **y);

/* y, the rows of an embedding by index, plus its adapter's term, if it has one; the dtypes as above. NULL, for a y that
 * is NULL too, with an error. */
tarn_tensor *tarn__lora_embedding(const tarn_module *embedding, tarn_tensor *index, tarn_tensor *y);

/* Parts of these for one adapter (lora_groups.h): the layer's own output for x, with a bias or NULL; scale · B(A(x)) in
 * the dtype of A; y + h in the wider dtype of both, times `factor` unless that is NULL, in y's dtype; and scale ·
 * Aᵀ[index] · Bᵀ. The results belong to the open scope. NULL with an error. */
tarn_tensor *tarn__lora_base(const tarn_module *layer, tarn_tensor *x, tarn_tensor *bias);
tarn_tensor *tarn__lora_low_rank(tarn_tensor *x, tarn_tensor *a, tarn_tensor *b, double scale);
tarn_tensor *tarn__lora_add_wide(tarn_tensor *y, tarn_tensor *h, tarn_tensor *factor);
tarn_tensor *tarn__lora_embedding_update(tarn_tensor *index, tarn_tensor *a, tarn_tensor *b, double scale);

/* True for an embedding, by its kind. */
bool tarn__is_embedding(const tarn_module *module);

/* Adds an adapter to a layer. Takes the tensors, on failure too; then the layer is unchanged. */
bool tarn__adapter_add(tarn_module *layer, const tarn__adapter *settings, tarn_tensor *a, tarn_tensor *b);

/* Adds DoRA's magnitude [out] to a layer that has an adapter, and computes the factor. Takes the tensor, on failure
 * too; then the layer has lost its adapter. */
bool tarn__adapter_add_magnitude(tarn_module *layer, tarn_tensor *magnitude);

/* A layer's weight with its adapter, scale · B @ A added and scaled by DoRA's factor, in the layout of the weight and
 * in f32, or f64 if either is. Belongs to the open scope. NULL with an error. */
tarn_tensor *tarn__adapter_merged(const tarn_module *layer);

/* Replaces a parameter or buffer of a module by a parameter. Takes the tensor, which belongs to the open scope. False
 * with an error. */
bool tarn__module_replace(tarn_module *module, const char *name, tarn_tensor *tensor);

/* The same with a tensor that another module has: the module takes over a reference. */
void tarn__module_retarget(tarn_module *module, const char *name, tarn_tensor *tensor);

/* Removes a layer's adapter, if it has one. */
void tarn__adapter_remove(tarn_module *layer);

/* Frees an adapter's settings. NULL is allowed. */
void tarn__adapter_free(tarn__adapter *adapter);

/* Trained rows of a token embedding or head (token_adapter.c): adding them, for `count` different tokens below the
 * weight's rows, [count, columns], and for a head that shares its weight with an embedding that has them. Takes the
 * tensor, on failure too; the layer, which has no adapter, is then unchanged. */
bool tarn__tokens_add(tarn_module *layer, const int64_t *token, int64_t count, tarn_tensor *rows);
bool tarn__tokens_share(tarn_module *head, const tarn_module *embedding);

/* Of a layer with trained rows: the rows, borrowed; the output y of an embedding and of a head with them; and the whole
 * weight with them in a float dtype, through which gradients reach them. The results belong to the open scope. NULL,
 * for a y that is NULL too, with an error. */
tarn_tensor *tarn__tokens_rows(const tarn_module *layer);
tarn_tensor *tarn__tokens_embedding(const tarn_module *embedding, tarn_tensor *index, tarn_tensor *y);
tarn_tensor *tarn__tokens_logits(const tarn_module *head, tarn_tensor *x, tarn_tensor *y);
tarn_tensor *tarn__tokens_weight(const tarn_module *layer, tarn_dtype dtype);

/* A or B of a layer or an embedding that has an adapter, and DoRA's factor of one that has it. Borrowed. */
tarn_tensor *tarn__adapter_weight(const tarn_module *layer, int which);
tarn_tensor *tarn__adapter_factor(const tarn_module *layer);

#endif

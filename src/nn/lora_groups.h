/* lora_groups.h: LoRA adapters of single rows: one forward pass over rows of several requests, of which each has an
 * adapter of its own or none.
 *
 * Such adapters are not modules of the model: a set has the matrices of one adapter by layer. While groups are open,
 * layers compute all rows with their own weights and then add each group's update to its rows. A row is
 * bitwise identical to that of a model with this adapter alone, where matmuls are batch invariant
 * (tarn__batch_invariant_open()). */
#ifndef TARN__NN_LORA_GROUPS_H
#define TARN__NN_LORA_GROUPS_H

#include "nn/lora.h"

/* The adapter of one layer. */
typedef struct tarn__lora_entry {
    const tarn_module *layer; /* borrowed */
    double scale;
    tarn_tensor *a, *b;
    tarn_tensor *factor; /* of DoRA; NULL: none. References of the set's own, as a and b */
} tarn__lora_entry;

/* One adapter, by address of the layers. */
typedef struct tarn__lora_set {
    tarn__lora_entry *entry;
    int count, capacity;
} tarn__lora_set;

/* Rows [first, end) of a forward pass with one adapter: of its tokens, and of its logits. */
typedef struct tarn__lora_group {
    const tarn__lora_set *set;
    int64_t first, end, first_logit, end_logit;
} tarn__lora_group;

typedef struct tarn__lora_groups {
    const tarn__lora_group *group;
    int count;
    tarn__lora_set *const *set; /* all that any pass may have: they decide which operations are fused */
    int sets;
} tarn__lora_groups;

/* Moves the adapter of a layer, A, B and DoRA's factor, to a set: the layer has none afterwards. False with an error;
 * the layer then has it still. */
bool tarn__lora_set_take(tarn__lora_set *set, tarn_module *layer);

/* Releases the tensors of a set. Closing an all-zero set is allowed. */
void tarn__lora_set_close(tarn__lora_set *set);

/* Opens groups for the layers that this thread computes, with the rows of their tokens or of their logits; borrowed
 * until they are closed. NULL: none. They do not nest. */
void tarn__lora_groups_open(const tarn__lora_groups *groups, bool of_logits);
void tarn__lora_groups_close(void);

/* True if a layer may have an adapter in any pass: what it computes must not be fused with others. */
bool tarn__lora_groups_touch(const tarn_module *layer);

/* y, a layer's output for x, or an embedding's rows by index, with the updates of the open groups, in place. Returns y,
 * or NULL, for a y that is NULL too, with an error. */
tarn_tensor *tarn__lora_groups_add(const tarn_module *layer, tarn_tensor *x, tarn_tensor *y);
tarn_tensor *tarn__lora_groups_add_embedding(const tarn_module *embedding, tarn_tensor *index, tarn_tensor *y);

#endif

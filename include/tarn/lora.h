/* lora.h: adapters of low rank (LoRA) in a language model: small matrices beside frozen weights, which are all that is
 * trained.
 *
 * A linear layer with an adapter computes y = linear(x) + scale · B(A(dropout(x))), A [rank, in], B [out, rank]. Names,
 * files and defaults are those of PEFT: the parameters are called "….q_proj.lora_A.weight" and
 * "….q_proj.lora_B.weight", and a folder that one writes the other reads. The weights below may be of any dtype, blocks
 * (Q8_0, Q4_K …) included: with those it is called QLoRA. */
#ifndef TARN_LORA_H
#define TARN_LORA_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of tarn_lora_add(); zero is the default of every field but the first. */
typedef struct tarn_lora_options {
    int64_t rank;        /* required: from 1 to 65536 */
    double alpha;        /* the scale is alpha / rank; 0: 8, as PEFT has it */
    double dropout;      /* the share of x that is dropped on its way to A in training mode, from 0 and below 1 */
    const char *targets; /* names of linear layers, "q_proj,v_proj": all that are called so, or whose path ends so;
                            NULL: all but the head */
    uint64_t seed;       /* that A is drawn from, without touching the thread's own generator */
    tarn_dtype dtype;    /* of A and B; default f32 */
    bool rslora;         /* the scale is alpha / sqrt(rank) instead */
} tarn_lora_options;

/* Gives linear layers of a model adapters, and freezes every parameter there is: from now on A and B are trained, and
 * nothing else has gradients. A is uniform in ±1/sqrt(in), B zeros, so that the model computes what it did before. A
 * model that has adapters, a name that no linear layer has, and the head are refused; so is a model that an optimizer
 * trains. `...` is a const tarn_lora_options *. */
TARN_API bool tarn_lora_add_sized(tarn_module *model, const tarn_lora_options *options, size_t options_size);
#define tarn_lora_add(model, ...) tarn_lora_add_sized(model, __VA_ARGS__, sizeof(tarn_lora_options))

/* True when a model has adapters. */
TARN_API bool tarn_lora_has(const tarn_module *model);

/* Adds what the adapters do to the weights below them, weight + scale · B @ A, rounded once, and takes the adapters
 * away. Weights in blocks become numbers of the model's dtype where they had an adapter; the others stay as they are.
 * Parameters stay frozen. Refused while an optimizer trains the adapters. */
TARN_API bool tarn_lora_merge(tarn_module *model);

/* Writes the adapters to a folder, which is made if it is not there, as PEFT reads them: adapter_config.json and
 * adapter_model.safetensors. `base_model` is the name or the path of the model below that is noted there; NULL: none.
 * What was in the folder stays until both new files are complete beside them; then its adapter_config.json goes first,
 * so that a kill leaves the old adapters, the new ones, or a folder that does not open. Needs jansson, as all of
 * safetensors.h. */
TARN_API bool tarn_lora_save(const tarn_module *model, const char *folder, const char *base_model);

/* Gives a model the adapters of a folder that PEFT or tarn_lora_save() wrote, of the dtype that they have there, and
 * freezes the rest as tarn_lora_add() does. What the folder asks for and tarn does not compute (DoRA, layers of their
 * own in modules_to_save, ranks of single layers …) is an error that names it; then the model is as it was. */
TARN_API bool tarn_lora_load(tarn_module *model, const char *folder);

#ifdef __cplusplus
}
#endif
#endif

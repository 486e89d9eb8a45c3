/* gguf_arch.h: kinds of language models in GGUF files: what their tensors are called there and how they lie, and what
 * becomes of their configuration.
 *
 * What the kinds have in common is done once (gguf_names.c, gguf_keys.c, gguf_open.c and convert_*.c); each has a row
 * with the rest. A configuration is the kind's own struct, with defaults replaced by what they stand for. */
#ifndef TARN__GGUF_ARCH_H
#define TARN__GGUF_ARCH_H

#include <tarn/gguf.h>

#include "models/convert/weight_rows.h"
#include "models/lm/arch.h"

/* Room for the longest name of a tensor, in either world. */
#define TARN__GGUF_NAME_CAPACITY 128

/* How a tensor differs in the two worlds. */
typedef enum tarn__gguf_layout {
    TARN__GGUF_SAME,
    TARN__GGUF_QUERIES,    /* rows of pairs of heads, in another order where the architecture has that */
    TARN__GGUF_KEYS,       /* the same, of the heads of keys */
    TARN__GGUF_TRANSPOSED, /* rows are inputs in folders, outputs in GGUF files and in blocks */
    TARN__GGUF_F32_TABLE   /* a table that is f32 in GGUF files, never blocks */
} tarn__gguf_layout;

/* When a model has a tensor. */
typedef enum tarn__gguf_condition {
    TARN__GGUF_NEVER,
    TARN__GGUF_ALWAYS,
    TARN__GGUF_UNTIED,
    TARN__GGUF_QKV_BIAS,
    TARN__GGUF_QK_NORM
} tarn__gguf_condition;

/* What comes before "weight" or "bias" in both worlds. */
typedef struct tarn__gguf_tensor_name {
    const char *folder, *gguf;
    tarn__gguf_condition weight, bias;
    tarn__gguf_layout layout;
} tarn__gguf_tensor_name;

/* The tokens that begin and end texts. */
typedef struct tarn__gguf_bos_eos {
    bool has_bos;
    int64_t bos;
    int eos_count;
    int64_t eos[TARN_MODEL_MAX_EOS];
} tarn__gguf_bos_eos;

/* What a configuration says to those who know no kind. */
typedef struct tarn__gguf_traits {
    const char *arch; /* its model_type */
    int64_t vocab_size, layers, heads, kv_heads;
    bool tie_embeddings, qkv_bias, qk_norm;
    bool has_neighbours; /* queries and keys have another order in GGUF files */
    tarn__gguf_bos_eos tokens;
} tarn__gguf_traits;

/* Room for a configuration of any kind. */
typedef union tarn__any_config {
    tarn_llama_config llama;
    tarn_gpt2_config gpt2;
} tarn__any_config;

typedef struct tarn__gguf_arch {
    const char *const *architectures; /* NULL ends them */
    const char *body;                 /* what names in folders may lack at their beginning; NULL: nothing */
    const char *block;                /* before the number of a block in folders, "model.layers." */
    /* a tensor that follows from the metadata, and is for other programs; NULL: none */
    const char *derived;
    /* outside of layers, the tokens' table first, and inside; a folder of NULL ends them */
    const tarn__gguf_tensor_name *tops, *parts;

    void (*traits)(const void *config, tarn__gguf_traits *traits);

    /* A configuration from config.json, and into it. */
    bool (*read)(const char *function, const tarn__json_file *document, tarn_dtype dtype, void *config);
    bool (*write)(const void *config, tarn__json_file *document);

    /* The same from the metadata of a file, and into it, but for the tokens. What tarn does not compute is refused by
     * its name. */
    bool (*get)(const char *function, const tarn_gguf *file, tarn_dtype dtype, void *config);
    bool (*put)(const void *config, tarn_gguf_writer *writer);

    /* A model whose parameters come from a source. The caller owns it. NULL with an error. */
    tarn_module *(*make)(const char *function, const void *config, const tarn__device_map *where,
                         const tarn__model_source *source);
} tarn__gguf_arch;

extern const tarn__gguf_arch tarn__llama_gguf, tarn__gpt2_gguf;

/* The kind of an open file, by its architecture. NULL with an error. */
const tarn__gguf_arch *tarn__gguf_arch_of(const char *function, const tarn_gguf *file);

/* ---- names (gguf_names.c) ---------------------------------------------------------------------------------------- */

/* What the other world calls a tensor: "model.layers.0.mlp.up_proj.weight" is "blk.0.ffn_up.weight". False, which is no
 * error: nothing. */
bool tarn__gguf_name_of(const tarn__gguf_arch *kind, const char *folder_name, char *to);
bool tarn__gguf_folder_name_of(const tarn__gguf_arch *kind, const char *gguf_name, char *to);

/* How a tensor of GGUF's name, or of a folder's, lies. */
tarn__gguf_layout tarn__gguf_layout_of(const tarn__gguf_arch *kind, const char *gguf_name);
tarn__gguf_layout tarn__gguf_folder_layout_of(const tarn__gguf_arch *kind, const char *folder_name);

/* True for a tensor of a file that is no parameter. */
bool tarn__gguf_is_derived(const tarn__gguf_arch *kind, const char *gguf_name);

/* Shows the names, as folders have them, of all tensors that a model has. False as soon as `visit` is. */
bool tarn__gguf_each_name(const tarn__gguf_arch *kind, const tarn__gguf_traits *traits,
                          bool (*visit)(void *ctx, const char *name), void *ctx);

/* Completes rows that come from the one world for the other: their order, and the shape that they get. `gguf_name` is
 * the tensor's there, `name` where it comes from. False with an error: they are no pairs of heads. */
bool tarn__gguf_set_layout(const tarn__gguf_arch *kind, const tarn__gguf_traits *traits, const char *gguf_name,
                           const char *name, bool to_gguf, tarn__weight_rows *rows);

/* ---- opening (gguf_open.c) --------------------------------------------------------------------------------------- */

/* The model of an open file, its weights as they are stored: blocks stay blocks, other types become `dtype`. On the CPU
 * they lie in the mapped file where nothing must change. The caller owns it. NULL with an error. */
tarn_module *tarn__model_from_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype,
                                   const tarn__device_map *where);

#endif

/* gguf_arch.h: architectures of language models in GGUF files: tensor names and layouts, and configurations as
 * metadata.
 *
 * Common code is in gguf_names.c, gguf_keys.c, gguf_open.c and convert/; an architecture has a row with the rest. A
 * configuration is the architecture's own struct, with defaults resolved. */
#ifndef TARN__GGUF_ARCH_H
#define TARN__GGUF_ARCH_H

#include <tarn/gguf.h>

#include "models/convert/weight_rows.h"
#include "models/lm/arch.h"

/* Capacity for the longest tensor name, in GGUF files and in folders. */
#define TARN__GGUF_NAME_CAPACITY 128

/* Layout of a tensor in a GGUF file relative to a Hugging Face folder. */
typedef enum tarn__gguf_layout {
    TARN__GGUF_SAME,
    TARN__GGUF_QUERIES,    /* rows of RoPE pairs, interleaved where the architecture has that */
    TARN__GGUF_KEYS,       /* the same, for key heads */
    TARN__GGUF_TRANSPOSED, /* [in, out] in folders, [out, in] in GGUF files and quantized */
    TARN__GGUF_F32_TABLE   /* f32 in GGUF files, never quantized */
} tarn__gguf_layout;

/* When a model has a tensor. */
typedef enum tarn__gguf_condition {
    TARN__GGUF_NEVER,
    TARN__GGUF_ALWAYS,
    TARN__GGUF_UNTIED,
    TARN__GGUF_QKV_BIAS,
    TARN__GGUF_QK_NORM
} tarn__gguf_condition;

/* Tensor name without "weight" or "bias", in folders and in GGUF files. */
typedef struct tarn__gguf_tensor_name {
    const char *folder, *gguf;
    tarn__gguf_condition weight, bias;
    tarn__gguf_layout layout;
} tarn__gguf_tensor_name;

/* BOS and EOS tokens. */
typedef struct tarn__gguf_bos_eos {
    bool has_bos;
    int64_t bos;
    int eos_count;
    int64_t eos[TARN_MODEL_MAX_EOS];
} tarn__gguf_bos_eos;

/* Properties of a configuration of any architecture. */
typedef struct tarn__gguf_traits {
    const char *arch; /* its model_type */
    int64_t vocab_size, layers, heads, kv_heads;
    bool tie_embeddings, qkv_bias, qk_norm;
    bool is_interleaved; /* RoPE pairs of queries and keys are interleaved in GGUF files */
    tarn__gguf_bos_eos tokens;
} tarn__gguf_traits;

/* A configuration of any architecture. */
typedef union tarn__any_config {
    tarn_llama_config llama;
    tarn_gpt2_config gpt2;
} tarn__any_config;

/* One architecture in GGUF files. */
typedef struct tarn__gguf_arch {
    const char *const *architectures; /* NULL-terminated */
    const char *body;                 /* prefix that names in folders may lack; NULL: none */
    const char *block;                /* prefix of a layer's number in folders, "model.layers." */
    const char *derived_tensor;       /* a tensor that follows from the metadata, for other programs; NULL: none */
    /* outside of layers, the token embedding first, and inside; terminated by a NULL folder */
    const tarn__gguf_tensor_name *top_names, *layer_names;

    /* Extracts the properties that the common code needs. */
    void (*traits)(const void *config, tarn__gguf_traits *traits);

    /* Reads and writes the configuration of a config.json. */
    bool (*read)(const char *function, const tarn__json_file *document, tarn_dtype dtype, void *config);
    bool (*write)(const void *config, tarn__json_file *document);

    /* The same for the metadata of a GGUF file, tokens excepted. Unsupported settings are errors that name them. */
    bool (*get)(const char *function, const tarn_gguf *file, tarn_dtype dtype, void *config);
    bool (*put)(const void *config, tarn_gguf_writer *writer);

    /* Creates a model with parameters from a source. The caller owns it. NULL with an error. */
    tarn_module *(*make)(const char *function, const void *config, const tarn__device_map *map,
                         const tarn__model_source *source);
} tarn__gguf_arch;

/* The rows. */
extern const tarn__gguf_arch tarn__llama_gguf, tarn__gpt2_gguf;

/* The row of an open file, by its architecture. NULL with an error. */
const tarn__gguf_arch *tarn__gguf_arch_of(const char *function, const tarn_gguf *file);

/* ---- names (gguf_names.c) ---------------------------------------------------------------------------------------- */

/* Translates a tensor name: "model.layers.0.mlp.up_proj.weight" is "blk.0.ffn_up.weight". False, without an error,
 * for an unknown name. */
bool tarn__gguf_name_of(const tarn__gguf_arch *arch, const char *folder_name, char *to);
bool tarn__gguf_folder_name_of(const tarn__gguf_arch *arch, const char *gguf_name, char *to);

/* Layout of a tensor, by its name in GGUF files or in folders. */
tarn__gguf_layout tarn__gguf_layout_of(const tarn__gguf_arch *arch, const char *gguf_name);
tarn__gguf_layout tarn__gguf_folder_layout_of(const tarn__gguf_arch *arch, const char *folder_name);

/* True for a tensor of a file that is not a parameter. */
bool tarn__gguf_is_derived(const tarn__gguf_arch *arch, const char *gguf_name);

/* Visits the folder names of all tensors of a model. Stops, and returns false, when `visit` does. */
bool tarn__gguf_each_name(const tarn__gguf_arch *arch, const tarn__gguf_traits *traits,
                          bool (*visit)(void *ctx, const char *name), void *ctx);

/* Sets order and shape of rows that are converted between a folder and a GGUF file. `gguf_name` is the tensor's name
 * there, `name` that of its source. False with an error if rows are not pairs of heads. */
bool tarn__gguf_set_layout(const tarn__gguf_arch *arch, const tarn__gguf_traits *traits, const char *gguf_name,
                           const char *name, bool to_gguf, tarn__weight_rows *rows);

/* ---- opening (gguf_open.c) --------------------------------------------------------------------------------------- */

/* The model of an open file, its weights as stored: quantized ones stay quantized, others are converted to `dtype`.
 * On the CPU unconverted weights are views of the mapped file. The caller owns it. NULL with an error. */
tarn_module *tarn__model_from_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype,
                                   const tarn__device_map *map);

/* ---- keys (gguf_keys.c) ------------------------------------------------------------------------------------------ */

/* Metadata common to all architectures in GGUF files: keys under the architecture's prefix, and BOS and EOS tokens. */

/* Largest size that is accepted. */
#define TARN__GGUF_MAX_INT INT32_MAX
#define TARN__GGUF_ARCHITECTURE "general.architecture"

/* Capacity for a key. */
typedef struct tarn__gguf_path {
    char text[96];
} tarn__gguf_path;

/* "llama.block_count" */
const char *tarn__gguf_key_of(const char *architecture, const char *rest, tarn__gguf_path *to);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Add a value under ARCHITECTURE.rest, or under a full key. */
bool tarn__gguf_put_int(tarn_gguf_writer *writer, const char *architecture, const char *rest, int64_t value);
bool tarn__gguf_put_real(tarn_gguf_writer *writer, const char *architecture, const char *rest, double value);
bool tarn__gguf_put_string(tarn_gguf_writer *writer, const char *key, const char *text);

/* `has_tokenizer`: a tokenizer is added too, and has the standard keys of BOS and EOS. */
bool tarn__gguf_put_bos_eos(const tarn__gguf_bos_eos *tokens, bool has_tokenizer, tarn_gguf_writer *writer);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* State of one read. Borrows everything. */
typedef struct tarn__gguf_reader {
    const char *function, *architecture;
    const tarn_gguf *file;
} tarn__gguf_reader;

/* Raises an unsupported setting. Always false. */
bool tarn__gguf_unsupported(const tarn__gguf_reader *reader, const char *what);

/* True if the file has ARCHITECTURE.rest. */
bool tarn__gguf_has_key(const tarn__gguf_reader *reader, const char *rest);

/* An integer from 1, or a number above 0. `default_value` is used if the key is missing; 0: it is required. */
bool tarn__gguf_get_int(const tarn__gguf_reader *reader, const char *rest, int64_t default_value, int64_t *value);
bool tarn__gguf_get_real(const tarn__gguf_reader *reader, const char *rest, double default_value, double *value);

/* Rows of the token embedding, which vocab_size must equal if it is given. */
bool tarn__gguf_get_vocab(const tarn__gguf_reader *reader, int64_t *vocab_size);

/* BOS and EOS tokens within a vocabulary. */
bool tarn__gguf_get_bos_eos(const tarn__gguf_reader *reader, int64_t vocab_size, tarn__gguf_bos_eos *tokens);

#endif

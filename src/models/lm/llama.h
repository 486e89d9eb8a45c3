/* llama.h: the Llama family: its module tree and what its files share.
 *
 * One implementation serves Llama, Mistral, Qwen2 and Qwen3: they differ in a few switches of the configuration and
 * in their model_type. Names and order are those of transformers' LlamaForCausalLM. The ctx of every module is a
 * copy of the model's configuration, with defaults resolved. */
#ifndef TARN__LLAMA_H
#define TARN__LLAMA_H

#include "models/lm/arch.h"

/* Children by index. Of the body: embed_tokens, layers, norm. */
enum { TARN__LLAMA_TOKEN_EMBEDDING, TARN__LLAMA_LAYERS, TARN__LLAMA_NORM };
/* Of a layer: self_attn, mlp, and their norms. */
enum { TARN__LLAMA_ATTENTION, TARN__LLAMA_MLP, TARN__LLAMA_NORM_1, TARN__LLAMA_NORM_2 };
enum {
    TARN__LLAMA_Q,
    TARN__LLAMA_K,
    TARN__LLAMA_V,
    TARN__LLAMA_O,
    TARN__LLAMA_Q_NORM,
    TARN__LLAMA_K_NORM
};                                                           /* of self_attn; norms only with qk_norm */
enum { TARN__LLAMA_GATE, TARN__LLAMA_UP, TARN__LLAMA_DOWN }; /* of mlp */

/* A variant of the family: names, switches, and transformers' defaults for keys that a config.json lacks. */
typedef struct tarn__llama_variant {
    const char *type, *architecture;
    bool qkv_bias, qk_norm;
    int64_t kv_heads; /* 0: as many as heads */
    int64_t head_dim; /* 0: hidden_size / heads */
    int64_t window;   /* 0: none */
} tarn__llama_variant;

/* The row of a model_type; NULL, without an error, if there is none (llama_config.c). */
const tarn__llama_variant *tarn__llama_variant_of(const char *type);

/* Raises an invalid configuration, and resolves its defaults. */
bool tarn__llama_complete(const char *function, tarn_llama_config *config);

/* Members of the row in arch.h for training. */
extern const char *const tarn__llama_types[], *const tarn__llama_names[];
bool tarn__llama_complete_sizes(const char *function, const char *name, tarn__model_sizes *sizes);
double tarn__llama_parameter_count(const char *name, const tarn__model_sizes *sizes);
tarn_module *tarn__llama_create(const char *function, const char *name, const tarn__model_sizes *sizes,
                                tarn_device device, uint64_t seed);

/* Forward functions (llama_forward.c). tarn__llama_forward_cached() returns logits [B, vocab_size] of the last
 * token. */
tarn_tensor *tarn__llama_model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx);
tarn_tensor *tarn__llama_body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx);
tarn_tensor *tarn__llama_layer_forward(tarn_module *layer, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__llama_attention_forward(tarn_module *attention, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__llama_mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__llama_linear_forward(tarn_module *linear, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__llama_norm_forward(tarn_module *norm, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__llama_embedding_forward(tarn_module *embedding, tarn_tensor *index, void *ctx);
tarn_tensor *tarn__llama_documents_forward(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents);
tarn_tensor *tarn__llama_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* Queries, keys or values [B, T, heads, head_dim], by their index among the children of self_attn: normalized if the
 * model has qk_norm. And the options of its RoPE. */
tarn_tensor *tarn__llama_norm_heads(const tarn_module *attention, int part, tarn_tensor *heads);
tarn_rope_options tarn__llama_rope(const tarn_llama_config *config);

/* The fused decode step of a few sequences (llama_decode.c): whether it applies (one token each, all layers on one
 * device, no adapters); and the step. */
bool tarn__llama_can_decode(const tarn_module *model, const tarn_tensor *tokens, const tarn__kv_cache *cache);
tarn_tensor *tarn__llama_decode(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* config.json and model.safetensors (llama_hf.c). The first two convert configurations alone. */
bool tarn__llama_read_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                             tarn_llama_config *to);
bool tarn__llama_write_config(const tarn_llama_config *c, tarn__json_file *config);
tarn_module *tarn__llama_from_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                                     const tarn__device_map *map);
bool tarn__llama_describe(const tarn_module *model, tarn__json_file *config);
bool tarn__llama_load(const char *function, tarn_module *model, const char *path);
bool tarn__llama_ignores(const char *name);

/* Creates a model from a configuration, which is checked and completed here (llama.c). Parameters come from the
 * source; NULL: uninitialized. The caller owns it. */
tarn_module *tarn__llama_make(const char *function, const tarn_llama_config *config, const tarn__device_map *map,
                              const tarn__model_source *source);

#endif

/* gpt2.h: GPT-2: its module tree and what its files share.
 *
 * Names and order are those of transformers' GPT2LMHeadModel. The ctx of every module but the norms is a copy of the
 * model's configuration, with defaults resolved. */
#ifndef TARN__GPT2_H
#define TARN__GPT2_H

#include "models/lm/arch.h"

/* Children by index. Of the body: wte, wpe, h, ln_f. */
enum { TARN__GPT2_TOKEN_EMBEDDING, TARN__GPT2_POSITION_EMBEDDING, TARN__GPT2_LAYERS, TARN__GPT2_NORM };
/* Of a layer: ln_1, attn, ln_2, mlp. */
enum { TARN__GPT2_NORM_1, TARN__GPT2_ATTENTION, TARN__GPT2_NORM_2, TARN__GPT2_MLP };
/* Of attn: c_attn, c_proj; of mlp: c_fc, c_proj. */
enum { TARN__GPT2_IN, TARN__GPT2_OUT };

/* Forward functions (gpt2_forward.c). tarn__gpt2_forward_cached() returns logits [B, vocab_size] of the last token. */
tarn_tensor *tarn__gpt2_model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx);
tarn_tensor *tarn__gpt2_body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx);
tarn_tensor *tarn__gpt2_layer_forward(tarn_module *layer, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__gpt2_attention_forward(tarn_module *attention, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__gpt2_mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__gpt2_projection_forward(tarn_module *projection, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__gpt2_embedding_forward(tarn_module *embedding, tarn_tensor *index, void *ctx);
tarn_tensor *tarn__gpt2_head_forward(tarn_module *head, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__gpt2_documents_forward(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents);
tarn_tensor *tarn__gpt2_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* Configurations (gpt2_config.c). Raises an invalid one, and resolves its defaults. */
bool tarn__gpt2_complete(const char *function, tarn_gpt2_config *config);

/* A dropout probability, or the common one where it is 0; none is -1, so that completing a configuration twice
 * changes nothing. */
double tarn__gpt2_dropout(double own, double common);

/* Functions of the row in arch.h for training. */
bool tarn__gpt2_complete_sizes(const char *function, const char *name, tarn__model_sizes *sizes);
double tarn__gpt2_parameter_count(const char *name, const tarn__model_sizes *sizes);
tarn_module *tarn__gpt2_create(const char *function, const char *name, const tarn__model_sizes *sizes,
                               tarn_device device, uint64_t seed);

/* config.json and tensor names (gpt2_hf.c). The first two convert configurations alone. */
bool tarn__gpt2_read_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                            tarn_gpt2_config *to);
bool tarn__gpt2_write_config(const tarn_gpt2_config *c, tarn__json_file *config);
tarn_module *tarn__gpt2_from_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                                    const tarn__device_map *map);
bool tarn__gpt2_describe(const tarn_module *model, tarn__json_file *config);
bool tarn__gpt2_load(const char *function, tarn_module *model, const char *path);
bool tarn__gpt2_ignores(const char *name);

/* Creates a model from a configuration, which is checked and completed here (gpt2.c). Parameters come from the
 * source; NULL: they are initialized from the thread's generator if `draw`, else uninitialized. The caller owns it. */
tarn_module *tarn__gpt2_make(const char *function, const tarn_gpt2_config *config, const tarn__device_map *map,
                             bool draw, const tarn__model_source *source);

#endif

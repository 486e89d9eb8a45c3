/* arch.h: language models: one transformer, driven by the row of an architecture and a configuration.
 *
 * A row (archs.c) holds what is fixed for an architecture: its names in files, which norms and parts a layer has, and
 * how weights are stored. A configuration (tarn_lm_config) holds what config.json may vary. Construction (build.c),
 * forward pass (forward.c, layer.c), decode step (decode.c) and files (config_*.c) know no architecture by its name.
 *
 * The children of every model are its body, which maps tokens [B, T] to hidden states [B, T, hidden_size], and its
 * head, whose parameter "weight" is [vocab_size, hidden_size]. */
#ifndef TARN__ARCH_H
#define TARN__ARCH_H

#include <tarn/gguf.h>
#include <tarn/model.h>

#include "formats/json_file.h"
#include "models/hf/weights.h"
#include "models/lm/device_map.h"
#include "models/lm/kv_cache.h"
#include "models/lm/kv_pages.h"
#include "nn/module.h"

/* Children of a language model. */
enum { TARN__MODEL_BODY, TARN__MODEL_HEAD };

#define TARN__GENERATION_EOS \
    "generation_eos_token_ids" /* in an opened config.json: a list of those in generation_config.json */

/* ---- architectures (archs.c) ------------------------------------------------------------------------------------- */

/* Modules of a model by what they do. A group of several (attention, mlp) has a role in its layer. */
typedef enum tarn__role {
    TARN__ROLE_TOKENS,    /* token embedding */
    TARN__ROLE_POSITIONS, /* position embedding */
    TARN__ROLE_LAYERS,
    TARN__ROLE_NORM, /* after the last layer */
    TARN__ROLE_HEAD,
    TARN__ROLE_ATTENTION,
    TARN__ROLE_MLP,
    TARN__ROLE_ATTENTION_NORM, /* before attention */
    TARN__ROLE_ATTENTION_POST, /* after attention, before the residual addition */
    TARN__ROLE_MLP_NORM,
    TARN__ROLE_MLP_POST,
    TARN__ROLE_Q,
    TARN__ROLE_K,
    TARN__ROLE_V,
    TARN__ROLE_QKV, /* the three in one layer */
    TARN__ROLE_O,
    TARN__ROLE_Q_NORM,
    TARN__ROLE_K_NORM,
    TARN__ROLE_GATE,
    TARN__ROLE_UP,
    TARN__ROLE_GATE_UP, /* both in one layer */
    TARN__ROLE_DOWN,
    TARN__ROLE_COUNT
} tarn__role;

/* Layout of a tensor in a GGUF file relative to a Hugging Face folder. */
typedef enum tarn__gguf_layout {
    TARN__GGUF_SAME,
    TARN__GGUF_QUERIES,     /* rows of RoPE pairs, interleaved where the architecture has that */
    TARN__GGUF_KEYS,        /* the same, for key heads */
    TARN__GGUF_TRANSPOSED,  /* [in, out] in folders, [out, in] in GGUF files and quantized */
    TARN__GGUF_F32_TABLE,   /* f32 in GGUF files, never quantized */
    TARN__GGUF_QKV_BY_HEAD, /* rows of q, k and v of each head in folders; all q, all k, all v in GGUF files */
    TARN__GGUF_PLUS_1       /* GGUF files hold weight + 1 */
} tarn__gguf_layout;

/* A module's name in folders and in GGUF files, inside the body or inside a layer; a dot separates it from its group.
 * A table lists all that some model of the architecture has, in the order of transformers; tarn__model_has() tells
 * which of them one has. */
typedef struct tarn__module_name {
    tarn__role role;
    const char *folder, *gguf;
    tarn__gguf_layout layout;
} tarn__module_name;

/* Names of an architecture. */
typedef struct tarn__model_names {
    const char *body;               /* "model" */
    const char *head;               /* "lm_head" */
    const char *layers;             /* of the body's children: "layers" */
    bool may_lack_body;             /* files of the body alone exist, whose names lack its prefix */
    const tarn__module_name *top;   /* in the body; terminated by a NULL folder */
    const tarn__module_name *layer; /* in a layer; terminated likewise */
    const char *const *ignored;     /* suffixes of tensors without effect; NULL-terminated, or NULL */
} tarn__model_names;

/* Keys of config.json that differ between architectures; NULL: the architecture has no such setting. */
typedef struct tarn__config_keys {
    const char *context, *layers, *heads, *hidden_size, *ffn_size, *epsilon, *activation;
    const char *dropout, *attention_dropout, *embedding_dropout;
    const char *attention_bias, *mlp_bias;
    const char *rope_base, *rotary_factor; /* outside of RoPE's parameters; NULL: rope_theta, partial_rotary_factor */
    const char *const *refused;            /* must be off or 0; NULL-terminated, or NULL */
} tarn__config_keys;

typedef enum tarn__norm_kind { TARN__NORM_LAYER, TARN__NORM_RMS, TARN__NORM_RMS_PLUS_1 } tarn__norm_kind;
typedef enum tarn__qk_norm { TARN__QK_NORM_NONE, TARN__QK_NORM_HEAD, TARN__QK_NORM_FULL } tarn__qk_norm;

/* Bits of tarn__arch.norms, .biases and .fused. */
enum { TARN__NORMS_PRE = 1, TARN__NORMS_POST = 2 };
enum { TARN__BIAS_QKV = 1, TARN__BIAS_O = 2, TARN__BIAS_MLP = 4 };
enum { TARN__FUSED_QKV = 1, TARN__FUSED_GATE_UP = 2, TARN__FUSED_BY_HEAD = 4 };

/* One architecture. */
typedef struct tarn__arch {
    const char *type;     /* model_type of config.json */
    const char *hf_class; /* "LlamaForCausalLM" */
    const char *gguf;     /* architecture in GGUF files */
    const char *label;    /* in messages; NULL: type */
    const tarn__model_names *names;
    const tarn__config_keys *keys;
    const char *const *sizes; /* names of published sizes; NULL-terminated, or NULL */
    tarn__linear_form linear; /* layout of its linear weights, unless quantized */
    tarn__norm_kind norm;
    uint8_t norms;   /* TARN__NORMS_… */
    uint8_t biases;  /* that every model has: TARN__BIAS_… */
    bool has_biases; /* default of biases that config.json switches */
    uint8_t fused;   /* weights stored as one: TARN__FUSED_… */
    tarn__qk_norm qk_norm;
    const char *activation; /* default */
    bool is_gated;
    bool has_rope;            /* else learned positions */
    bool has_gqa;             /* kv_heads may be fewer than heads */
    bool is_interleaved;      /* RoPE pairs of queries and keys are interleaved in GGUF files */
    bool has_window;          /* config.json may have a sliding window */
    bool is_window_switched;  /* … only with use_sliding_window */
    bool is_embedding_scaled; /* by sqrt(hidden_size) */
    bool is_parallel;         /* attention and MLP may read the same x */
    bool is_sequential;       /* … but do not by default */
    bool has_one_norm;        /* … and then read the same norm of x */
    bool is_o_unbiased;       /* attention_bias is that of queries, keys and values alone */
    bool is_scale_switched;   /* config.json may switch the scale of attention */
    bool has_multipliers;     /* Granite's */
    bool has_softcaps;
    bool has_local_rope; /* layers with a window have a RoPE base of their own */
    bool has_longrope;   /* RoPE scalings su and yarn mean longrope; past the short context the cache is recomputed */
    bool is_legacy_gelu; /* the activation gelu means its tanh form */
    bool is_eos_bos;     /* BOS is EOS */
    bool is_tied;        /* default of tie_word_embeddings */
    int64_t kv_heads;    /* default of num_key_value_heads; 0: as many as heads */
    int64_t head_dim;    /* default; 0: hidden_size / heads */
    int64_t window;      /* default of sliding_window; 0: none */
    int64_t window_pattern;                                    /* every n-th layer has no window; 0: all have it */
    int64_t nope_interval;                                     /* every n-th layer has no RoPE; 0: all have it */
    double epsilon, rope_base, rope_local_base, rotary_factor; /* defaults */
    double dropout;                                            /* default of the three probabilities */
    double attention_softcap, logit_softcap;                   /* defaults */
    double query_scalar;                                       /* default of query_pre_attn_scalar; 0: no such key */
} tarn__arch;

/* The row of a module, and of a model_type. NULL with an error. */
const tarn__arch *tarn__arch_of(const char *function, const tarn_module *module);
const tarn__arch *tarn__arch_named(const char *function, const char *path, const char *type);

/* The row of an architecture in GGUF files. NULL with an error. */
const tarn__arch *tarn__arch_in_gguf(const char *function, const char *path, const char *architecture);

/* The row of a model_type, and of a name for training; NULL, without an error, if there is none. */
const tarn__arch *tarn__arch_find(const char *type);
const tarn__arch *tarn__arch_find_trainable(const char *name);

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* Opens the config.json of a folder, puts its path into `where`, and adds the EOS tokens of generation_config.json.
 * The caller owns the file. NULL with an error. */
tarn__json_file *tarn__model_config_open(const char *function, const char *folder, tarn__model_path *where);

/* The public struct, under an internal name for functions that fill it in. */
typedef tarn_model_info tarn__model_info;

/* Sizes of a new model by the options of a run; 0: not given. */
typedef struct tarn__model_sizes {
    int64_t vocab_size, context, layers, heads, kv_heads, hidden_size, ffn_size;
    double dropout;
    tarn_dtype dtype;
    bool has_eos;
    int64_t eos;
    tarn_recompute recompute;
    int64_t max_context; /* of complete sizes: maximum context length of such a model */
} tarn__model_sizes;

/* Documents packed into the rows of a batch: both i32 [B, T]. A token attends to its own document only. */
typedef struct tarn__documents {
    tarn_tensor *positions;       /* of a token in its document */
    tarn_tensor *document_starts; /* index in the row where its document begins */
} tarn__documents;

/* Source of parameters: `give` returns the parameter of that full name and shape on that device, in the open scope.
 * One of a quantized dtype becomes a buffer, which is not trained; a quantized weight of a linear layer is [out,
 * in]. NULL with an error. */
typedef struct tarn__model_source {
    tarn_tensor *(*give)(void *ctx, const char *name, tarn_shape shape, tarn_device device);
    void *ctx;
} tarn__model_source;

/* The ctx of the model, its body, layers, attentions and MLPs. */
typedef struct tarn__model_ctx {
    tarn_lm_config config; /* defaults resolved */
    const tarn__arch *arch;
    tarn_activation_kind activation;
    int64_t layer;                  /* of a layer and its parts */
    int8_t child[TARN__ROLE_COUNT]; /* index of the child in a role; -1: none */
} tarn__model_ctx;

/* The configuration of a model, body, layer, attention or MLP. Borrowed. */
const tarn_lm_config *tarn__model_config(const tarn_module *model);

/* The child of such a module in a role; NULL: none. Borrowed. */
tarn_module *tarn__model_child(const tarn_module *module, tarn__role role);

/* ---- configurations (config.c) ----------------------------------------------------------------------------------- */

/* Raises an invalid configuration, and resolves its defaults. */
bool tarn__model_complete(const char *function, tarn_lm_config *config);

/* The row of a complete configuration. */
const tarn__arch *tarn__arch_of_config(const tarn_lm_config *config);

/* The activation of that name in config.json, and its name with static storage; false, without an error, for an
 * unknown name. */
bool tarn__activation_named(const char *name, tarn_activation_kind *kind, const char **static_name);

/* Sets of layers: membership; adding one, or of `layers` layers every n-th (`is_nth`), or all others. 0: every layer.
 */
bool tarn__layers_have(const tarn_lm_layers *set, int64_t layer);
void tarn__layers_add(tarn_lm_layers *set, int64_t layer);
void tarn__layers_add_pattern(tarn_lm_layers *set, int64_t layers, int64_t n, bool is_nth);

/* True if a layer has a sliding window; if it rotates queries and keys. */
bool tarn__layer_has_window(const tarn_lm_config *config, int64_t layer);
bool tarn__layer_has_rope(const tarn_lm_config *config, int64_t layer);

/* Which modules a model of a complete configuration has, and which of those have a bias. */
bool tarn__model_has(const tarn_lm_config *config, tarn__role role);
bool tarn__model_has_bias(const tarn_lm_config *config, tarn__role role);

/* A dropout probability, or the common one where it is 0; none is -1, so that completing a configuration twice
 * changes nothing. */
double tarn__model_dropout(double own, double common);

/* ---- sizes (sizes.c) --------------------------------------------------------------------------------------------- */

/* A published configuration; false, without an error, for another name. */
bool tarn__model_config_named(const char *name, tarn_lm_config *config);

/* Fills in sizes that are 0 with those of the named model. Sizes that such a model lacks are an error. */
bool tarn__model_complete_sizes(const char *function, const char *name, tarn__model_sizes *sizes);

/* Number of parameters of a model of complete sizes, without norms and biases. */
double tarn__model_parameter_count(const char *name, const tarn__model_sizes *sizes);

/* A new model of complete sizes, initialized from the seed. The caller owns it. NULL with an error. */
tarn_module *tarn__model_create(const char *function, const char *name, const tarn__model_sizes *sizes,
                                tarn_device device, uint64_t seed);

/* The sizes of a model. */
void tarn__model_sizes_of(const tarn_module *model, tarn__model_sizes *sizes);

/* ---- construction (build.c) -------------------------------------------------------------------------------------- */

/* Creates a model from a configuration, which is checked and completed here. Parameters come from the source; NULL:
 * they are initialized from the thread's generator if `draw`, else uninitialized. The caller owns it. NULL with an
 * error. */
tarn_module *tarn__model_make(const char *function, const tarn_lm_config *config, const tarn__device_map *map,
                              bool draw, const tarn__model_source *source);

/* tarn__model_make() with initialization from a seed. */
tarn_module *tarn__model_new(const char *function, const tarn_lm_config *config, tarn_device device, uint64_t seed);

/* Sets dropout and recomputation of an opened model; the caller checks that one without dropout gets 0. */
void tarn__model_tune(tarn_module *model, double dropout, tarn_recompute recompute);

/* Notes in the configuration of a model that its embeddings were resized, or no longer share a weight. */
void tarn__model_set_embeddings(tarn_module *model, int64_t vocab_size, bool tie_embeddings);

void tarn__model_describe(const tarn_module *model, tarn__model_info *info);

/* Length up to which longrope has its short factors, and beyond which its long ones; 0: lengths do not matter. */
int64_t tarn__model_short_context(const tarn_module *model);

/* Window of a model whose layers all have one; 0: some layer attends to every token. */
int64_t tarn__model_window(const tarn_module *model);

/* ---- forward pass (forward.c, layer.c, decode.c) ----------------------------------------------------------------- */

/* Context of a forward pass; all NULL: one document per row, from position 0. */
typedef struct tarn__forward_ctx {
    tarn__kv_cache *cache;
    const tarn__page_batch *pages;            /* instead of `cache`: tokens [1, T] of many sequences */
    tarn_tensor *positions, *document_starts; /* of packed documents */
} tarn__forward_ctx;

/* Forward functions of the modules. */
tarn_tensor *tarn__model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx);
tarn_tensor *tarn__body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx);
tarn_tensor *tarn__layer_forward(tarn_module *layer, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__attention_forward(tarn_module *attention, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__linear_forward(tarn_module *linear, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__norm_forward(tarn_module *norm, tarn_tensor *x, void *ctx);
tarn_tensor *tarn__token_embedding_forward(tarn_module *embedding, tarn_tensor *index, void *ctx);

/* The ctx of a norm. */
typedef struct tarn__norm_ctx {
    tarn__norm_kind kind;
    double epsilon;
} tarn__norm_ctx;

/* What is added to the weight of a norm. */
double tarn__norm_offset(const tarn__norm_ctx *norm);

/* Token embeddings, plus learned positions: [B, T, hidden_size]. */
tarn_tensor *tarn__model_embed(tarn_module *body, tarn_tensor *tokens, const tarn__forward_ctx *p);

/* Attention of x [B, T, hidden_size]; appends keys and values to the cache, if there is one. */
tarn_tensor *tarn__attention_with(tarn_module *attention, tarn_tensor *x, const tarn__forward_ctx *p);

/* Queries, keys or values y [B, T, heads · head_dim] as [B, T, heads, head_dim], normalized if the model has q/k
 * norms. `role` is that of the linear layer. */
tarn_tensor *tarn__attention_heads(const tarn_module *attention, tarn__role role, tarn_tensor *y);

/* The three of one layer, which has no q/k norms. */
bool tarn__attention_split(const tarn_module *attention, tarn_tensor *packed, tarn_tensor **part);

/* Attention options of a layer, its rotation in `rope`. `length`: keys at most, which some RoPE scalings depend on. */
tarn__decode_attention_options tarn__attention_options(const tarn__model_ctx *ctx, int64_t length,
                                                       tarn_rope_options *rope);

/* Logits scaled and capped, where the model has that; NULL for NULL. */
tarn_tensor *tarn__model_finish_logits(const tarn_lm_config *config, tarn_tensor *logits);

/* Hidden states [B, T, hidden_size] of packed documents, equal to those of each document alone. */
tarn_tensor *tarn__model_hidden(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents);

/* Hidden states [B, T, hidden_size] of tokens that follow those in the cache and fit, after the last norm. Called
 * within a step of the cache. */
tarn_tensor *tarn__model_hidden_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* Logits [B, vocab_size] after the last of tokens [B, T], which follow those in the cache and fit. Called within a
 * step of the cache, whose positions and attention it uses. */
tarn_tensor *tarn__model_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* True if attention and MLP of a layer read the same x. */
bool tarn__layer_is_parallel(const tarn_module *layer);

/* Logits [rows, vocab_size] after the given rows, i64 [rows], of a packed batch of tokens [1, T]. */
tarn_tensor *tarn__model_forward_paged(tarn_module *model, tarn_tensor *tokens, const tarn__page_batch *batch,
                                       tarn_tensor *rows);

/* The fused decode step of a few sequences: whether it applies (one token each, all layers on one device, no
 * adapters; a device without its kernels composes the simple architectures only); and the step, for any model. */
bool tarn__model_can_decode(const tarn_module *model, const tarn_tensor *tokens, const tarn__kv_cache *cache);
tarn_tensor *tarn__model_decode(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* tarn_model_loss() for a checked model. */
tarn_tensor *tarn__model_loss(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

/* The same for packed documents. `documents` may be NULL: one per row. */
tarn_tensor *tarn__model_loss_of(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets,
                                 const tarn__documents *documents);

/* ---- files (config_read.c, config_write.c, config_gguf.c) -------------------------------------------------------- */

/* Reads and writes the configuration of a config.json. A read one is complete. Unsupported settings are errors that
 * name them: a model must never be computed as something else than it is. */
bool tarn__model_read_config(const char *function, const tarn__json_file *document, tarn_dtype dtype,
                             tarn_lm_config *config);
bool tarn__model_write_config(const tarn_lm_config *config, tarn__json_file *document);

/* The model of a config.json, its parameters uninitialized. The caller owns it. NULL with an error. */
tarn_module *tarn__model_from_config(const char *function, const tarn__json_file *document, tarn_dtype dtype,
                                     const tarn__device_map *map);

/* Loads the parameters from a safetensors file, or from the shards of an index. */
bool tarn__model_load(const char *function, tarn_module *model, const char *path);

/* The same for the metadata of a GGUF file, tokens excepted on writing. */
bool tarn__model_get_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype, tarn_lm_config *config);
bool tarn__model_put_gguf(const tarn_lm_config *config, tarn_gguf_writer *writer);

/* Name of a dtype in config.json's torch_dtype. */
const char *tarn__torch_name(tarn_dtype dtype);

#endif

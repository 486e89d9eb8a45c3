/* model.h: whole networks as modules. Parameters have the names of the reference implementations, so that their
 * weights load by name. */
#ifndef TARN_MODEL_H
#define TARN_MODEL_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Multilayer perceptron (MLP): x [N, ...] of `inputs` elements per sample is flattened; then linear layers of the
 * `hidden` sizes, each with a ReLU, and one of `classes`. `hidden` is read during the call and may be NULL if
 * `hidden_count` is 0. The caller owns the module. */
TARN_API tarn_module *tarn_model_mlp(int64_t inputs, const int64_t *hidden, int hidden_count, int64_t classes,
                                     tarn_device device);

/* A small convolutional network like LeNet, for images [N, channels, height, width] with sides from 4 to 65536: two
 * 5 × 5 convolutions (16 and 32 channels, same padding), each with a ReLU and 2 × 2 max pooling, then a linear
 * layer. The caller owns the module. */
TARN_API tarn_module *tarn_model_lenet(int64_t channels, int64_t height, int64_t width, int64_t classes,
                                       tarn_device device);

/* ResNet-20 for small images [N, 3, H, W] (He et al. 2015, section 4.2; shortcuts without parameters). Names are
 * those of PyTorch implementations: "conv1.weight", "layer2.0.bn1.running_mean", "linear.bias". Their files may lack
 * the unused "num_batches_tracked" of each norm: load them with .allow_missing. The caller owns the module. */
TARN_API tarn_module *tarn_model_resnet20(int64_t classes, tarn_device device);

/* Options of tarn_model_resnet20_with(); zero is every field's default. */
typedef struct tarn_resnet20_options {
    int64_t channels; /* of the images; default 3 */
} tarn_resnet20_options;

/* The same with options. `...` is a const tarn_resnet20_options *, or NULL. */
TARN_API tarn_module *tarn_model_resnet20_with_sized(int64_t classes, tarn_device device,
                                                     const tarn_resnet20_options *options, size_t options_size);
#define tarn_model_resnet20_with(classes, device, ...) \
    tarn_model_resnet20_with_sized(classes, device, __VA_ARGS__, sizeof(tarn_resnet20_options))

/* Options of tarn_model_resnet(); zero is every field's default. */
typedef struct tarn_resnet_options {
    int64_t channels; /* of the images; default 3 */
} tarn_resnet_options;

/* ResNet-18, ResNet-34 or ResNet-50 for images of 32 pixels and more per side, made for 224: [N, channels, H, W] →
 * [N, classes]. Architecture and parameter names are torchvision's, so that its weights load by tarn_module_load();
 * a ResNet-50 has the stride in its 3 × 3 convolutions. Initialization: convolutions normal by Kaiming (fan out), the
 * linear layer uniform. `...` is a const tarn_resnet_options *, or NULL. The caller owns the module. */
TARN_API tarn_module *tarn_model_resnet_sized(int layers, int64_t classes, tarn_device device,
                                              const tarn_resnet_options *options, size_t options_size);
#define tarn_model_resnet(layers, classes, device, ...) \
    tarn_model_resnet_sized(layers, classes, device, __VA_ARGS__, sizeof(tarn_resnet_options))

/* ---- language models --------------------------------------------------------------------------------------------- */

/* Activation recomputation in backward: less memory, more time. */
typedef enum tarn_recompute {
    TARN_RECOMPUTE_NONE = 0,
    /* cheap ones: outputs of norms and the activation inside an MLP. On the CPU gradients stay bitwise identical */
    TARN_RECOMPUTE_SELECTIVE,
    TARN_RECOMPUTE_FULL /* all activations of a layer: only its input is stored */
} tarn_recompute;

/* Mean cross entropy of a language model's logits for tokens [B, T] and targets [B, T], i32 or i64: the next tokens.
 * Targets of -100 are ignored, as in PyTorch. The whole logits are never stored. */
TARN_API tarn_tensor *tarn_model_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

/* Maximum number of EOS tokens. */
enum { TARN_MODEL_MAX_EOS = 8 }; /* the most tokens that end a model's texts */

/* Properties of a language model. */
typedef struct tarn_model_info {
    const char *type;            /* model_type of its config.json: "gpt2", "llama", "qwen2" …; static storage */
    int64_t vocab_size, context; /* vocabulary size and context length */
    int64_t layers, hidden_size; /* number of layers and hidden size (d_model) */
    int64_t heads, kv_heads;     /* query heads, and key and value heads */
    int64_t head_dim;            /* size of a head */
    tarn_dtype dtype;            /* of the norms and the residual stream */
    tarn_device device;          /* of the parameters */
    bool has_bos;
    int64_t bos; /* BOS token, if has_bos is set */
    int eos_count;
    int64_t eos[TARN_MODEL_MAX_EOS]; /* EOS tokens */
    int64_t device_layers;           /* leading layers on that device; the remaining ones are on others */
} tarn_model_info;

/* Fills in the properties of a language model. Fields of a newer header's struct that this library does not know
 * become zero. */
TARN_API bool tarn_model_query_sized(const tarn_module *model, tarn_model_info *info, size_t info_size);
#define tarn_model_query(model, info) tarn_model_query_sized(model, info, sizeof(tarn_model_info))

/* Moves the first `layers` layers (0: all), the token and position embeddings, the last norm and the head of a
 * language model to a device, and the remaining layers to the CPU. The residual stream is then transferred once each
 * way per forward pass. More layers than the model has are an error. */
TARN_API bool tarn_model_offload(tarn_module *model, tarn_device device, int64_t layers);

/* Maximum number of devices of a split. */
enum { TARN_SPLIT_MAX_DEVICES = 16 };

/* A language model's layers on several devices, in order: the first layers[0] on device[0], the next layers[1] on
 * device[1], and so on; together all layers of the model. A device may have none. The token and position embeddings,
 * the last norm and the head are on device[0]. tarn_model_plan_split() (tarn/generate.h) fills in the other members,
 * which are not read. */
typedef struct tarn_model_split {
    int count; /* devices, from 1 to TARN_SPLIT_MAX_DEVICES */
    tarn_device device[TARN_SPLIT_MAX_DEVICES];
    int64_t layers[TARN_SPLIT_MAX_DEVICES];
    int64_t weight_bytes[TARN_SPLIT_MAX_DEVICES];
    int64_t kv_bytes[TARN_SPLIT_MAX_DEVICES];
    int64_t free_bytes[TARN_SPLIT_MAX_DEVICES]; /* of the device when the split was planned; 0: unknown */
} tarn_model_split;

/* Moves the layers of a language model to the devices of a split. The residual stream is then transferred between
 * adjacent layers on different devices, and between the first device and another one that has the first or the last
 * layer. Results are those of one device if the devices compute bitwise identically. A split of more or fewer layers
 * than the model has is an error. Borrows the split. */
TARN_API bool tarn_model_split_layers(tarn_module *model, const tarn_model_split *split);

/* ---- any architecture -------------------------------------------------------------------------------------------- */

/* Largest number of layers, and of rotated pairs with a factor of their own. */
enum { TARN_LM_MAX_LAYERS = 1024, TARN_LM_MAX_PAIRS = 256 };

/* A set of layers, as bits: layer i is bit i % 64 of word i / 64. */
typedef struct tarn_lm_layers {
    uint64_t bits[TARN_LM_MAX_LAYERS / 64];
} tarn_lm_layers;

/* Configuration of a language model of any supported architecture: a superset of their config.json files. Sizes up to
 * ffn_size are required; zero is the default of the others: of sizes and numbers the architecture's, of switches off.
 * tarn_lm_config_named() fills in the switches of an architecture. Settings that it does not have are an error. */
typedef struct tarn_lm_config {
    const char *arch;       /* model_type of its config.json: "gpt2", "llama", "qwen2" …; NULL: "llama" */
    int64_t vocab_size;     /* vocabulary size */
    int64_t context;        /* context length: maximum number of positions */
    int64_t layers;         /* from 1 to TARN_LM_MAX_LAYERS */
    int64_t heads;          /* query heads */
    int64_t hidden_size;    /* hidden size (d_model) */
    int64_t ffn_size;       /* FFN size; 0: 4 · hidden_size where the MLP has no gate */
    int64_t kv_heads;       /* key and value heads; must divide heads; 0: as many as heads */
    int64_t head_dim;       /* 0: hidden_size / heads */
    const char *activation; /* of the MLP, as in config.json: "silu", "gelu_pytorch_tanh", "gelu" (erf), "relu" … */
    double epsilon;         /* of the norms */
    bool attention_bias;    /* queries, keys, values and outputs (StableLM: not these) of attention have a bias */
    bool mlp_bias;
    bool tie_embeddings; /* the head shares the token embedding */
    bool sequential;     /* of an architecture with a parallel residual: attention and MLP one after the other */
    tarn_dtype dtype;    /* of the parameters; default f32 */

    /* Positions. Members `axis`, `interleaved`, `length` and the pointers of `rope` are not used; pair factors are
     * below. A base of 0 is the architecture's; `dims` 0: its part of head_dim */
    tarn_rope_options rope;
    double rope_local_base;                   /* of layers with a window; 0: as the others, or the architecture's */
    float rope_factors[2][TARN_LM_MAX_PAIRS]; /* of longrope: up to the context of training, and beyond */
    tarn_lm_layers no_rope;                   /* layers without RoPE */
    int64_t window;                           /* sliding window of attention; 0: none */
    tarn_lm_layers windows;                   /* layers that have it */

    /* Scales; 0: none */
    double attention_scale;   /* of q · k; 0: 1 / sqrt(head_dim) */
    bool scale_by_layer;      /* attention_scale is divided by the layer's number, from 1 */
    double attention_softcap; /* soft cap of attention scores */
    double logit_softcap;     /* soft cap of logits */
    double embedding_scale;   /* of token embeddings */
    double residual_scale;    /* of attention and MLP outputs, before they are added */
    double logit_scale;       /* of logits */

    /* Training mode: probabilities below 1 */
    double dropout;           /* of attention and MLP outputs */
    double attention_dropout; /* of attention weights; 0: as dropout, negative: none */
    double embedding_dropout; /* of the embeddings; 0: as dropout, negative: none */
    tarn_recompute recompute; /* in backward; default: none */

    bool has_bos;
    int64_t bos; /* BOS token, if has_bos is set */
    int eos_count;
    int64_t eos[TARN_MODEL_MAX_EOS]; /* EOS tokens; Llama 3 has several */
} tarn_lm_config;

/* Fills in the configuration of an architecture without its sizes ("llama", "gemma2" …: its defaults), or a published
 * one: those of tarn_gpt2_config_named() and tarn_llama_config_named(). */
TARN_API bool tarn_lm_config_named_sized(const char *name, tarn_lm_config *config, size_t config_size);
#define tarn_lm_config_named(name, config) tarn_lm_config_named_sized(name, config, sizeof(tarn_lm_config))

/* A language model as Hugging Face's class of that architecture. Parameters have transformers' names and shapes.
 * Initialization: normal with std 0.02 (of a GPT-2 divided by sqrt(2 · layers) for projections into the residual
 * stream), norms the identity, biases 0, from `seed`; the thread's generator is not used. tarn_forward() takes i32 or
 * i64 tokens [B, T] and returns logits [B, T, vocab_size]. `config` is read during the call. The caller owns the
 * module. */
TARN_API tarn_module *tarn_model_lm_sized(const tarn_lm_config *config, size_t config_size, tarn_device device,
                                          uint64_t seed);
#define tarn_model_lm(config, device, seed) tarn_model_lm_sized(config, sizeof(tarn_lm_config), device, seed)

/* Fills in the configuration of any language model, with defaults resolved; .arch has static storage. Fields of a newer
 * header's struct that this library does not know become zero, here as in tarn_lm_config_named(). */
TARN_API bool tarn_lm_config_of_sized(const tarn_module *model, tarn_lm_config *config, size_t config_size);
#define tarn_lm_config_of(model, config) tarn_lm_config_of_sized(model, config, sizeof(tarn_lm_config))

/* ---- GPT-2 ------------------------------------------------------------------------------------------------------- */

/* Configuration of a GPT-2. The first five fields are required; zero is the default of the others. */
typedef struct tarn_gpt2_config {
    int64_t vocab_size;       /* vocabulary size */
    int64_t context;          /* context length: maximum number of positions */
    int64_t layers;           /* from 1 to 1024 */
    int64_t heads;            /* attention heads; must divide hidden_size */
    int64_t hidden_size;      /* hidden size (d_model) */
    int64_t ffn_size;         /* FFN size; 0: 4 · hidden_size */
    double dropout;           /* of attention and MLP outputs, in training mode; below 1 */
    double attention_dropout; /* of attention weights; 0: as dropout, negative: none */
    double embedding_dropout; /* of the embeddings; 0: as dropout, negative: none */
    double epsilon;           /* of the norms; 0: 1e-5 */
    tarn_dtype dtype;         /* of the parameters; default f32 */
    bool has_eos;             /* the model has an EOS token */
    int64_t eos;              /* EOS token, if has_eos is set */
    tarn_recompute recompute; /* in backward; default: none */
    bool untie_embeddings;    /* the head has its own weight; default: it shares the token embedding */
} tarn_gpt2_config;

/* Fills in a published configuration: "gpt2" ("gpt2-124m"), "gpt2-medium" ("gpt2-350m", "gpt2-355m"), "gpt2-large"
 * ("gpt2-774m") or "gpt2-xl" ("gpt2-1.5b", "gpt2-1558m"), without dropout. */
TARN_API bool tarn_gpt2_config_named_sized(const char *name, tarn_gpt2_config *config, size_t config_size);
#define tarn_gpt2_config_named(name, config) tarn_gpt2_config_named_sized(name, config, sizeof(tarn_gpt2_config))

/* A GPT-2 as Hugging Face's GPT2LMHeadModel: learned position embeddings, pre-norm, tanh GELU, biases, and tied
 * embeddings. Parameters have transformers' names and shapes ("transformer.h.0.attn.c_attn.weight" is [in, out]).
 * Initialization is GPT-2's: normal with std 0.02, divided by sqrt(2 · layers) for projections into the residual
 * stream, biases 0, from `seed`; the thread's generator is not used. tarn_forward() takes i32 or i64 tokens [B, T]
 * and returns logits [B, T, vocab_size]. `config` is read during the call. The caller owns the module. */
TARN_API tarn_module *tarn_model_gpt2_sized(const tarn_gpt2_config *config, size_t config_size, tarn_device device,
                                            uint64_t seed);
#define tarn_model_gpt2(config, device, seed) tarn_model_gpt2_sized(config, sizeof(tarn_gpt2_config), device, seed)

/* tarn_model_loss() of a GPT-2; a model of another architecture is an error. */
TARN_API tarn_tensor *tarn_gpt2_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

/* Fills in the configuration of a GPT-2, with defaults resolved. Fields of a newer header's struct that this library
 * does not know become zero, here as in tarn_gpt2_config_named(). */
TARN_API bool tarn_gpt2_config_of_sized(const tarn_module *model, tarn_gpt2_config *config, size_t config_size);
#define tarn_gpt2_config_of(model, config) tarn_gpt2_config_of_sized(model, config, sizeof(tarn_gpt2_config))

/* ---- the Llama family -------------------------------------------------------------------------------------------- */

/* Configuration of a model of the Llama family. The first six fields are required; zero is the default of the
 * others. */
typedef struct tarn_llama_config {
    int64_t vocab_size;             /* vocabulary size */
    int64_t context;                /* context length: maximum number of positions */
    int64_t layers;                 /* from 1 to 1024 */
    int64_t heads;                  /* query heads */
    int64_t hidden_size;            /* hidden size (d_model) */
    int64_t ffn_size;               /* FFN size */
    int64_t kv_heads;               /* key and value heads; must divide heads; 0: as many as heads */
    int64_t head_dim;               /* an even number up to 512; 0: hidden_size / heads */
    double epsilon;                 /* of the norms; 0: 1e-5 */
    double rope_theta;              /* base of RoPE; 0: 10000 */
    tarn_rope_scaling rope_scaling; /* the next four are as in tarn_rope_options */
    double rope_factor;             /* of linear and llama3; 0: 8 */
    double rope_low_freq_factor, rope_high_freq_factor; /* of llama3; 0: 1 and 4 */
    int64_t rope_original_context;                      /* of llama3: context length of training; 0: 8192 */
    bool qkv_bias;                                      /* queries, keys and values have a bias: Qwen2 */
    bool qk_norm;                                       /* each head of queries and keys is normalized: Qwen3 */
    bool tie_embeddings;                                /* the head shares the token embedding */
    /* model_type: "llama", "mistral", "qwen2" or "qwen3"; NULL: "llama". Qwen2 implies qkv_bias, Qwen3 qk_norm */
    const char *arch;
    tarn_dtype dtype; /* of the parameters; default f32 */
    bool has_bos;
    int64_t bos; /* BOS token, if has_bos is set */
    int eos_count;
    int64_t eos[TARN_MODEL_MAX_EOS]; /* EOS tokens; Llama 3 has several */
    tarn_recompute recompute;        /* in backward; default: none */

} tarn_llama_config;

/* Fills in a published configuration: "llama-1b" or "llama-3b" (Llama 3.2), or "smollm-135m". */
TARN_API bool tarn_llama_config_named_sized(const char *name, tarn_llama_config *config, size_t config_size);
#define tarn_llama_config_named(name, config) tarn_llama_config_named_sized(name, config, sizeof(tarn_llama_config))

/* A model of the Llama family as Hugging Face's LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or
 * Qwen3ForCausalLM: RMSNorm before attention and MLP, RoPE on split halves, grouped-query attention, an MLP of
 * down(silu(gate(x)) · up(x)). Parameters have transformers' names and shapes
 * ("model.layers.0.self_attn.q_proj.weight" is [out, in]). Initialization: normal with std 0.02, norms 1, biases 0,
 * from `seed`; the thread's generator is not used. tarn_forward() takes i32 or i64 tokens [B, T] and returns logits
 * [B, T, vocab_size]. `config` is read during the call. The caller owns the module. */
TARN_API tarn_module *tarn_model_llama_sized(const tarn_llama_config *config, size_t config_size, tarn_device device,
                                             uint64_t seed);
#define tarn_model_llama(config, device, seed) tarn_model_llama_sized(config, sizeof(tarn_llama_config), device, seed)

/* Fills in the configuration of a model of the Llama family, with defaults resolved; .arch has static storage.
 * Fields of a newer header's struct that this library does not know become zero, here as in
 * tarn_llama_config_named(). */
TARN_API bool tarn_llama_config_of_sized(const tarn_module *model, tarn_llama_config *config, size_t config_size);
#define tarn_llama_config_of(model, config) tarn_llama_config_of_sized(model, config, sizeof(tarn_llama_config))

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* Options of tarn_model_open(); zero is every field's default. */
typedef struct tarn_model_open_options {
    tarn_dtype dtype; /* dtype that parameters are converted to; default f32 */
    bool as_stored;   /* keep the dtype of the file instead; an error if its weights have several */
    /* layers on the device, the remaining ones on the CPU: see tarn_model_offload(). 0: all */
    int64_t device_layers;
    /* of a folder: q8_0, q4_0, q4_k or q6_k, to which linear layers are quantized on load; the head and everything
     * else are not. Quantized weights are not trained. Default (f32): none */
    tarn_dtype quantize;
    /* layers on several devices, of which the call's device is the first. Borrowed for the call. NULL: none */
    const tarn_model_split *split;
} tarn_model_open_options;

/* Opens a language model, out of training mode, as in transformers; tarn_module_train() enables dropout. The path is
 * one of: a GGUF file, by the suffix ".gguf", or any shard of several (tarn/gguf.h), whose quantized weights stay
 * quantized and are not trained; a Hugging Face folder (config.json, weights in model.safetensors, or in the shards of
 * model.safetensors.index.json; names of a GPT-2 may lack the prefix "transformer."); or a folder of adapters alone
 * (tarn/lora.h, PEFT), which opens as the base model that its adapter_config.json names, with the adapters.
 *
 * Unsupported settings of config.json (an activation, a kind of RoPE scaling …) are an error that names them. If
 * the device lacks memory, the error says how much is missing and how many layers would fit. `...` is a const
 * tarn_model_open_options *, or NULL. The caller owns the module. Needs jansson, as all of safetensors.h. */
TARN_API tarn_module *tarn_model_open_sized(const char *folder, tarn_device device,
                                            const tarn_model_open_options *options, size_t options_size);
#define tarn_model_open(folder, device, ...) \
    tarn_model_open_sized(folder, device, __VA_ARGS__, sizeof(tarn_model_open_options))

/* Writes config.json and model.safetensors of a language model to a folder, created if needed, in transformers'
 * format. Each file is written atomically, config.json last. An existing model stays until both new files are
 * complete next to it, as config.json.new and model.safetensors.new; then its config.json is removed first. So a
 * kill leaves the old model, the new one, or a folder without config.json, which does not open: never the
 * configuration of one with the weights of another. Quantized weights are dequantized to the model's dtype. A model
 * with adapters (tarn/lora.h) is an error. */
TARN_API bool tarn_model_write(const tarn_module *model, const char *folder);

#ifdef __cplusplus
}
#endif
#endif

/* model.h: whole networks, as modules: what they are made of is in their names, so weights of other programs load by
 * name. */
#ifndef TARN_MODEL_H
#define TARN_MODEL_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A perceptron: x [N, ...] of `inputs` numbers a sample is flattened, then come linear layers of the `hidden` sizes,
 * each with a ReLU, and one of `classes` numbers. `hidden` is read during the call and may be NULL when `hidden_count`
 * is 0. The caller owns the module. */
TARN_API tarn_module *tarn_model_mlp(int64_t inputs, const int64_t *hidden, int hidden_count, int64_t classes,
                                     tarn_device device);

/* A small convolutional network in the manner of LeNet, for images [N, channels, height, width] with sides from 4 to
 * 65536: twice a convolution of 5 × 5 taps (16 and 32 channels, the size kept), ReLU and a maximum over 2 × 2, then a
 * linear layer. The caller owns the module. */
TARN_API tarn_module *tarn_model_lenet(int64_t channels, int64_t height, int64_t width, int64_t classes,
                                       tarn_device device);

/* ResNet-20 for small images [N, 3, H, W] (He and others 2015, section 4.2; shortcuts without parameters). Names are
 * those of PyTorch programs: "conv1.weight", "layer2.0.bn1.running_mean", "linear.bias". Files of such programs may
 * lack the "num_batches_tracked" of each norm, which nothing reads: load them with .allow_missing. The caller owns the
 * module. */
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

/* ---- language models --------------------------------------------------------------------------------------------- */

/* What backward makes again instead of finding it stored: less memory, more time. */
typedef enum tarn_recompute {
    TARN_RECOMPUTE_NONE = 0,
    TARN_RECOMPUTE_SELECTIVE, /* what costs next to nothing: the results of norms, and of what an mlp has between its
                             layers. On the CPU the gradients have the same bits */
    TARN_RECOMPUTE_FULL       /* all that happens in a block: only what enters it is stored */
} tarn_recompute;

/* The mean cross entropy of a language model's logits for tokens [B, T] against targets [B, T], i32 or i64: the tokens
 * that follow. Targets of -100 do not count, as in PyTorch. All logits at once never exist. */
TARN_API tarn_tensor *tarn_model_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

enum { TARN_MODEL_MAX_EOS = 8 }; /* the most tokens that end a model's texts */

/* What is known of any language model. */
typedef struct tarn_model_info {
    const char *type; /* the model_type of its config.json: "gpt2", "llama", "qwen2" …; lives as long as the library */
    int64_t vocab, context;  /* tokens that there are, and the most it can look at */
    int64_t layers, width;   /* blocks, and numbers for each token between them */
    int64_t heads, kv_heads; /* of attention: of queries, and of keys and values */
    int64_t head_dim;        /* numbers for each token in a head */
    tarn_dtype dtype;        /* of its norms, and of what passes between the blocks */
    tarn_device device;      /* where its parameters are */
    bool has_bos, has_eos;   /* there is a token that texts begin with, and one that ends them */
    int64_t begin, end;      /* those tokens, where they are there */
    int also_end_count;      /* further tokens that end a text */
    int64_t also_end[TARN_MODEL_MAX_EOS - 1];
    int64_t device_layers; /* blocks that lie on that device; those after them lie on the CPU */
} tarn_model_info;

/* Fills in what is known of a language model. Fields of a newer header's struct that this library does not know become
 * zero. */
TARN_API bool tarn_model_query_sized(const tarn_module *model, tarn_model_info *info, size_t facts_size);
#define tarn_model_query(model, info) tarn_model_query_sized(model, info, sizeof(tarn_model_info))

/* Moves a language model: its first `layers` blocks (0: all), the tables of tokens and positions, the last norm and the
 * head to a device, the other blocks to the CPU. What passes between blocks then crosses once each way for each step.
 * More layers than it has are an error. */
TARN_API bool tarn_model_offload(tarn_module *model, tarn_device device, int64_t layers);

/* ---- GPT-2 ------------------------------------------------------------------------------------------------------- */

/* What a GPT-2 is. The first five are required; zero is the default of the others. */
typedef struct tarn_gpt2_config {
    int64_t vocab;            /* tokens that there are */
    int64_t context;          /* the most tokens it can look at */
    int64_t layers;           /* from 1 to 1024 */
    int64_t heads;            /* of attention; they divide the width */
    int64_t width;            /* numbers for each token between the layers */
    int64_t inner;            /* numbers for each token inside an mlp; 0: 4 · width */
    double dropout;           /* of what attention and mlp add, while the model is in training mode; below 1 */
    double attention_dropout; /* of the weights of attention; 0: as dropout, negative: none */
    double embedding_dropout; /* of what enters the first layer; 0: as dropout, negative: none */
    double epsilon;           /* of the norms; 0: 1e-5 */
    tarn_dtype dtype;         /* of the parameters; default f32 */
    bool has_eos;             /* there is a token that ends a text */
    int64_t end;              /* that token, where there is one */
    tarn_recompute recompute; /* in backward; default: nothing */
    bool untie_embeddings;    /* the head has a weight of its own; default: it shares the tokens' */
} tarn_gpt2_config;

/* Fills in the published sizes: "gpt2" ("gpt2-124m"), "gpt2-medium" ("gpt2-350m", "gpt2-355m"), "gpt2-large"
 * ("gpt2-774m") and "gpt2-xl"
 * ("gpt2-1.5b", "gpt2-1558m"), without dropout. */
TARN_API bool tarn_gpt2_config_named_sized(const char *name, tarn_gpt2_config *config, size_t config_size);
#define tarn_gpt2_config_named(name, config) tarn_gpt2_config_named_sized(name, config, sizeof(tarn_gpt2_config))

/* A GPT-2 as Hugging Face's GPT2LMHeadModel: learned positions, norms before attention and mlp, GELU in its tanh form,
 * biases, and a head that shares the tokens' embedding. Parameters have the names and shapes that transformers gives
 * them ("transformer.h.0.attn.c_attn.weight" is [in, out]). They begin as GPT-2's: normal with deviation 0.02, divided
 * by sqrt(2 · layers) where a layer adds to what passes by, biases 0, drawn from `seed` without touching the thread's
 * own generator. tarn_forward() takes i32 or i64 tokens [B, T] and gives logits [B, T, vocab]. `config` is read during
 * the call. The caller owns the module. */
TARN_API tarn_module *tarn_model_gpt2_sized(const tarn_gpt2_config *config, size_t config_size, tarn_device device,
                                            uint64_t seed);
#define tarn_model_gpt2(config, device, seed) tarn_model_gpt2_sized(config, sizeof(tarn_gpt2_config), device, seed)

/* tarn_model_loss() of a GPT-2; a model of another kind is an error. */
TARN_API tarn_tensor *tarn_gpt2_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

/* Fills in what a GPT-2 is, all defaults replaced by what they stand for. Fields of a newer header's struct that this
 * library does not know become zero, here as in tarn_gpt2_config_named(). */
TARN_API bool tarn_gpt2_config_of_sized(const tarn_module *model, tarn_gpt2_config *config, size_t config_size);
#define tarn_gpt2_config_of(model, config) tarn_gpt2_config_of_sized(model, config, sizeof(tarn_gpt2_config))

/* ---- the Llama family -------------------------------------------------------------------------------------------- */

/* What a model of the Llama family is. The first six are required; zero is the default of the others. */
typedef struct tarn_llama_config {
    int64_t vocab;                  /* tokens that there are */
    int64_t context;                /* the most tokens it can look at */
    int64_t layers;                 /* from 1 to 1024 */
    int64_t heads;                  /* of the queries of attention */
    int64_t width;                  /* numbers for each token between the layers */
    int64_t inner;                  /* numbers for each token inside an mlp */
    int64_t kv_heads;               /* of keys and values; they divide the heads; 0: as many as heads */
    int64_t head_dim;               /* numbers for each token in a head, an even number up to 512; 0: width / heads */
    double epsilon;                 /* of the norms; 0: 1e-5 */
    double rope_theta;              /* the base of the rotary positions; 0: 10000 */
    tarn_rope_scaling rope_scaling; /* the next four are as tarn_rope_options has them */
    double rope_factor;             /* of linear and llama3; 0: 8 */
    double rope_low_freq_factor, rope_high_freq_factor; /* of llama3; 0: 1 and 4 */
    int64_t rope_original_context;                      /* of llama3: positions it was trained on; 0: 8192 */
    bool qkv_bias;                                      /* queries, keys and values have a bias: Qwen2 */
    bool qk_norm;                                       /* each head of queries and keys is normalised: Qwen3 */
    bool tie_embeddings;                                /* the head shares the tokens' embedding */
    const char *family; /* "llama", "mistral", "qwen2" or "qwen3": its model_type; NULL: "llama". Qwen2 means qkv_bias,
                           Qwen3 qk_norm */
    tarn_dtype dtype;   /* of the parameters; default f32 */
    bool has_bos, has_eos;    /* there is a token that texts begin with, and one that ends them */
    int64_t begin, end;       /* those tokens, where they are there */
    tarn_recompute recompute; /* in backward; default: nothing */
    int also_end_count;       /* further tokens that end a text, as Llama 3 has them; only where there is .end */
    int64_t also_end[TARN_MODEL_MAX_EOS - 1];
} tarn_llama_config;

/* Fills in published sizes: "llama-1b" and "llama-3b" (Llama 3.2) and "smollm-135m". */
TARN_API bool tarn_llama_config_named_sized(const char *name, tarn_llama_config *config, size_t config_size);
#define tarn_llama_config_named(name, config) tarn_llama_config_named_sized(name, config, sizeof(tarn_llama_config))

/* A model of the Llama family as Hugging Face's LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or
 * Qwen3ForCausalLM: RMSNorm before attention and mlp, rotary positions of split halves, heads that share keys and
 * values, an mlp of down(silu(gate(x)) · up(x)). Parameters have the names and shapes that transformers gives them
 * ("model.layers.0.self_attn.q_proj.weight" is [out, in]). They begin normal with deviation 0.02, norms at 1, biases at
 * 0, drawn from `seed` without touching the thread's own generator. tarn_forward() takes i32 or i64 tokens [B, T] and
 * gives logits [B, T, vocab]. `config` is read during the call. The caller owns the module. */
TARN_API tarn_module *tarn_model_llama_sized(const tarn_llama_config *config, size_t config_size, tarn_device device,
                                             uint64_t seed);
#define tarn_model_llama(config, device, seed) tarn_model_llama_sized(config, sizeof(tarn_llama_config), device, seed)

/* Fills in what a model of the Llama family is, all defaults replaced by what they stand for; .family lives as long as
 * the library. Fields of a newer header's struct that this library does not know become zero, here as in
 * tarn_llama_config_named(). */
TARN_API bool tarn_llama_config_of_sized(const tarn_module *model, tarn_llama_config *config, size_t config_size);
#define tarn_llama_config_of(model, config) tarn_llama_config_of_sized(model, config, sizeof(tarn_llama_config))

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* Options of tarn_model_open(); zero is every field's default. */
typedef struct tarn_model_open_options {
    tarn_dtype dtype; /* that parameters are converted to; default f32 */
    bool as_stored;   /* instead: the one that the file has. An error where its weights are of several */
    /* so many of its first blocks lie on the device, the others on the CPU: see tarn_model_offload(). 0: all */
    int64_t device_layers;
    tarn_dtype
        blocks; /* of a folder: q8_0, q4_0, q4_k or q6_k, which the weights of linear layers become while they are read;
                   the head and all else stay elements. They are not trained. Default (f32): no blocks */
} tarn_model_open_options;

/* Opens a GGUF file (architecture "gpt2", "llama", "qwen2" or "qwen3"), whose name ends in ".gguf": weights in blocks
 * stay as they are stored, and are not trained. Or a Hugging Face model folder: what it is stands in config.json
 * (model_type "gpt2", "llama", "mistral", "qwen2" or "qwen3"), its weights in model.safetensors, or in several files
 * that model.safetensors.index.json names. Of a GPT-2 they may lack the prefix "transformer." in their names. What
 * config.json asks for and tarn does not compute (another scaling of rotary positions, a sliding window, another
 * activation …) is an error that names it. A folder that holds adapters alone (tarn/lora.h, PEFT) opens as the model
 * that its adapter_config.json names, with them. Where the device has too little memory the error says how much is
 * missing, and how many layers would fit. The model is out of training mode, as in transformers: tarn_module_train()
 * turns dropout on. `...` is a const tarn_model_open_options *, or NULL. The caller owns the module. Needs jansson, as
 * all of safetensors.h. */
TARN_API tarn_module *tarn_model_open_sized(const char *folder, tarn_device device,
                                            const tarn_model_open_options *options, size_t options_size);
#define tarn_model_open(folder, device, ...) \
    tarn_model_open_sized(folder, device, __VA_ARGS__, sizeof(tarn_model_open_options))

/* Writes config.json and model.safetensors of a language model to a folder, which is made if it is not there, as
 * transformers reads them. Each file appears whole or not at all, config.json last. Over a model that is there: its
 * files stay until both new ones are complete beside them, as config.json.new and model.safetensors.new; then its
 * config.json goes first. So a kill leaves the old model, the new one, or a folder without config.json, which does not
 * open: never one model's configuration with the weights of another. Weights in blocks become numbers of the model's
 * dtype. A model that has adapters (tarn/lora.h) is refused. */
TARN_API bool tarn_model_write(const tarn_module *model, const char *folder);

#ifdef __cplusplus
}
#endif
#endif

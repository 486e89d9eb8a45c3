/* hf.h: model folders of Hugging Face: memory of weights, and quantization on load. */
#ifndef TARN__HF_H
#define TARN__HF_H

#include <tarn/gguf.h>
#include <tarn/safetensors.h>

#include "models/gguf/gguf_arch.h"
#include "models/lm/device_map.h"

/* Bytes of a model's weights once they are loaded. */
typedef struct tarn__weight_bytes {
    int64_t other;                    /* outside of layers */
    int64_t layers, layer;            /* number of layers, and average bytes of one */
    int64_t each[TARN_LM_MAX_LAYERS]; /* of every layer */
} tarn__weight_bytes;

/* Bytes of a file's tensors where those that are not quantized become `dtype`; of matrices in layers of safetensors
 * `quantize`, unless it is f32, as far as their rows allow. Names that the architecture ignores are skipped. */
tarn__weight_bytes tarn__safetensors_weight_bytes(const tarn_safetensors *file, const tarn__arch *arch,
                                                  tarn_dtype dtype, tarn_dtype quantize);
tarn__weight_bytes tarn__gguf_weight_bytes(const tarn_gguf *file, tarn_dtype dtype);

/* What tarn_model_open() would load from a path by these options: its configuration, with the dtype, and the bytes of
 * its weights, without adapters. Reads headers only. False with an error. */
bool tarn__open_sizes(const char *function, const char *path, const tarn_model_open_options *options,
                      tarn_lm_config *config, tarn__weight_bytes *bytes);

/* Raises TARN_ERROR_MEMORY for weights that do not fit a device: how much is missing, and how many layers would fit.
 * Replaces the pending error, unless the free memory is unknown. */
void tarn__model_out_of_memory(const char *function, const tarn__weight_bytes *bytes, const tarn__device_map *where);

/* ---- quantization on load (quantize_on_load.c) ------------------------------------------------------------------- */

/* Index of a tensor in a folder's files, by its full name or without the body's prefix; -1 if there is none. */
int tarn__hf_find_tensor(const tarn__arch *arch, const tarn_safetensors *file, const char *name);

/* Some programs save a copy of tied embeddings as the head: raises if it is not a copy, since it would be dropped. */
bool tarn__hf_check_head(const char *function, const tarn__arch *arch, const tarn_safetensors *file, const char *path,
                         int head);

/* The model of a folder, with the weights of its linear layers, the head excepted, quantized to options->quantize as
 * they are read from `path`. Out of training mode; the caller owns it. NULL with an error. */
tarn_module *tarn__hf_quantize_on_load(const char *function, const tarn__arch *arch, const tarn__json_file *config,
                                       const char *path, const tarn_model_open_options *options,
                                       const tarn__device_map *where);

#endif

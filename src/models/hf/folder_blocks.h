/* folder_blocks.h: a folder whose linear layers become blocks while they are read. */
#ifndef TARN__FOLDER_BLOCKS_H
#define TARN__FOLDER_BLOCKS_H

#include <tarn/safetensors.h>

#include "models/gguf/gguf_arch.h"

/* Where a tensor of a folder is, by its name or by what is left of it without the body's; -1: nowhere. */
int tarn__hf_find_tensor(const tarn__gguf_arch *kind, const tarn_safetensors *file, const char *name);

/* A head beside the table that it shares, which some programs write: raises unless it is a copy, or it would be lost in
 * silence. */
bool tarn__hf_check_head(const char *function, const tarn__gguf_arch *kind, const tarn_safetensors *file,
                         const char *path, int head);

/* The model of a folder of that kind, the weights of its linear layers but the head made blocks (options->blocks) as
 * they are read. `path` is where its weights are. Out of training mode; the caller owns it. NULL with an error. */
tarn_module *tarn__hf_quantize_on_load(const char *function, const tarn__arch *kind, const tarn__json_file *config,
                                       const char *path, const tarn_model_open_options *options,
                                       const tarn__device_map *where);

#endif

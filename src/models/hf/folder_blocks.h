/* folder_blocks.h: a folder whose linear layers become blocks while they are read. */
#ifndef TARN__FOLDER_BLOCKS_H
#define TARN__FOLDER_BLOCKS_H

#include <tarn/safetensors.h>

#include "models/gguf/gguf_arch.h"

/* Where a tensor of a folder is, by its name or by what is left of it without the body's; -1: nowhere. */
int tarn__folder_find(const tarn__gguf_kind *kind, const tarn_safetensors *file, const char *name);

/* A head beside the table that it shares, which some programs write: raises unless it is a copy, or it would be lost in
 * silence. */
bool tarn__folder_check_head(const char *function, const tarn__gguf_kind *kind, const tarn_safetensors *file,
                             const char *path, int head);

/* The model of a folder of that kind, the weights of its linear layers but the head made blocks (options->blocks) as
 * they are read. `path` is where its weights are. Out of training mode; the caller owns it. NULL with an error. */
tarn_module *tarn__folder_in_blocks(const char *function, const tarn__model_kind *kind, const tarn__document *config,
                                    const char *path, const tarn_model_open_options *options,
                                    const tarn__placement *where);

#endif

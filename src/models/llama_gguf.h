/* llama_gguf.h: the Llama family in GGUF files: names, metadata, and the order of rows. */
#ifndef TARN__LLAMA_GGUF_H
#define TARN__LLAMA_GGUF_H

#include <tarn/gguf.h>
#include <tarn/model.h>

#include "models/placement.h"

#define TARN__GGUF_FREQUENCIES "rope_freqs.weight" /* a tensor: what llama3's scaling divides each frequency by */

/* Room for the longest name of a tensor, in either world. */
#define TARN__LLAMA_NAME 128

/* What general.architecture calls a family. */
const char *tarn__llama_architecture(const char *family);

/* What the other world calls a tensor: "model.layers.0.mlp.up_proj.weight" is "blk.0.ffn_up.weight". False, which is no error: nothing. */
bool tarn__llama_name_in_gguf(const char *name, char *to);
bool tarn__llama_name_in_folder(const char *name, char *to);

/* Shows the names, as folders have them, of all tensors that a model of a complete configuration has. False as soon as `visit` is. */
bool tarn__llama_each_name(const tarn_llama_config *config, bool (*visit)(void *ctx, const char *name), void *ctx);

/* The heads whose rows have another order in GGUF files: of queries and keys, unless the architecture keeps transformers'. 0: the order is the same. `name` is
 * GGUF's. */
int64_t tarn__llama_turned_heads(const tarn_llama_config *config, const char *name);

/* Adds what a model is to a file's metadata; and what llama3's scaling does to frequencies as a tensor, for other programs. `has_tokenizer`: one
 * is added, too, which says what tokens begin and end a text. */
bool tarn__llama_put_metadata(const tarn_llama_config *config, bool has_tokenizer, tarn_gguf_writer *writer);

/* What the model of a file is; its dtype is the caller's. What tarn does not compute is refused by its name. */
bool tarn__llama_get_metadata(const char *function, const tarn_gguf *file, tarn_llama_config *config);

/* The model of an open file, its weights as they are stored: blocks stay blocks, other types become `dtype`. On the CPU they lie in the mapped file where
 * nothing must change. The caller owns it. NULL with an error. */
tarn_module *tarn__llama_from_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype, const tarn__placement *where);

#endif

/* gguf_arch.h: language models in GGUF files: tensor names and layouts (gguf_names.c), opening (gguf_open.c), and
 * keys of metadata (gguf_keys.c). Names come from the architecture's row, conditions from the configuration. */
#ifndef TARN__GGUF_ARCH_H
#define TARN__GGUF_ARCH_H

#include <tarn/gguf.h>

#include "models/convert/weight_rows.h"
#include "models/lm/arch.h"

/* Capacity for the longest tensor name, in GGUF files and in folders. */
#define TARN__GGUF_NAME_CAPACITY 128

/* Tensors that are settings rather than parameters: divisors of RoPE's frequencies, of llama3 and of longrope. */
#define TARN__GGUF_FREQUENCIES "rope_freqs.weight"
#define TARN__GGUF_SHORT_FACTORS "rope_factors_short.weight"
#define TARN__GGUF_LONG_FACTORS "rope_factors_long.weight"

/* BOS and EOS tokens. */
typedef struct tarn__gguf_bos_eos {
    bool has_bos;
    int64_t bos;
    int eos_count;
    int64_t eos[TARN_MODEL_MAX_EOS];
} tarn__gguf_bos_eos;

/* ---- names (gguf_names.c) ---------------------------------------------------------------------------------------- */

/* Translates a tensor name: "model.layers.0.mlp.up_proj.weight" is "blk.0.ffn_up.weight". False, without an error,
 * for an unknown name. */
bool tarn__gguf_name_of(const tarn__arch *arch, const char *folder_name, char *to);
bool tarn__gguf_folder_name_of(const tarn__arch *arch, const char *gguf_name, char *to);

/* Layout of a tensor, by its name in GGUF files or in folders. */
tarn__gguf_layout tarn__gguf_layout_of(const tarn__arch *arch, const char *gguf_name);
tarn__gguf_layout tarn__gguf_folder_layout_of(const tarn__arch *arch, const char *folder_name);

/* True for a tensor of a file that is not a parameter. */
bool tarn__gguf_is_derived(const char *gguf_name);

/* Visits the folder names of all tensors of a model. Stops, and returns false, when `visit` does. */
bool tarn__gguf_each_name(const tarn_lm_config *config, bool (*visit)(void *ctx, const char *name), void *ctx);

/* Sets order and shape of rows that are converted between a folder and a GGUF file. `gguf_name` is the tensor's name
 * there, `name` that of its source. False with an error if rows are not pairs of heads. */
bool tarn__gguf_set_layout(const tarn_lm_config *config, const char *gguf_name, const char *name, bool to_gguf,
                           tarn__weight_rows *rows);

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

/* BOS and EOS tokens of a configuration. */
tarn__gguf_bos_eos tarn__gguf_bos_eos_of(const tarn_lm_config *config);

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

/* ---- RoPE (../lm/config_gguf_rope.c) ------------------------------------------------------------------------------
 */

/* State of reading a configuration. */
typedef struct tarn__gguf_model_reader {
    tarn__gguf_reader of;
    const tarn__arch *arch;
    tarn_lm_config *c;
} tarn__gguf_model_reader;

bool tarn__gguf_put_rope(const tarn_lm_config *config, const tarn__arch *arch, tarn_gguf_writer *writer);

/* Needs the configuration's context and rope.dims. */
bool tarn__gguf_get_rope(const tarn__gguf_model_reader *reader);

#endif

/* gguf_keys.h: the metadata that GGUF files have of every kind of model: keys that begin with the architecture, and the
 * tokens that begin and end texts. */
#ifndef TARN__GGUF_KEYS_H
#define TARN__GGUF_KEYS_H

#include "models/gguf/gguf_arch.h"

#define TARN__GGUF_MAX_INT INT32_MAX
#define TARN__GGUF_ARCHITECTURE "general.architecture"

typedef struct tarn__gguf_path {
    char text[96];
} tarn__gguf_path;

/* "llama.block_count" */
const char *tarn__gguf_key_of(const char *architecture, const char *rest, tarn__gguf_path *to);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

bool tarn__gguf_put_int(tarn_gguf_writer *writer, const char *architecture, const char *rest, int64_t value);
bool tarn__gguf_put_real(tarn_gguf_writer *writer, const char *architecture, const char *rest, double value);
bool tarn__gguf_put_string(tarn_gguf_writer *writer, const char *key, const char *text);

/* `has_tokenizer`: one is added, too, which has the keys for what begins and ends a text. */
bool tarn__gguf_put_bos_eos(const tarn__gguf_bos_eos *tokens, bool has_tokenizer, tarn_gguf_writer *writer);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct tarn__gguf_reader {
    const char *function, *architecture;
    const tarn_gguf *file;
} tarn__gguf_reader;

/* Raises that a file asks for what tarn does not compute. Is false. */
bool tarn__gguf_unsupported(const tarn__gguf_reader *reading, const char *what);

bool tarn__gguf_has_key(const tarn__gguf_reader *reading, const char *rest);

/* A whole number from 1, or a number above 0; `otherwise` where the key is missing; 0: it must be there. */
bool tarn__gguf_get_int(const tarn__gguf_reader *reading, const char *rest, int64_t default_value, int64_t *value);
bool tarn__gguf_get_real(const tarn__gguf_reader *reading, const char *rest, double default_value, double *value);

/* The rows of the table of tokens, which vocab_size must be where it is said. */
bool tarn__gguf_get_vocab(const tarn__gguf_reader *reading, int64_t *vocab_size);

/* Those of a vocabulary. */
bool tarn__gguf_get_bos_eos(const tarn__gguf_reader *reading, int64_t vocab_size, tarn__gguf_bos_eos *tokens);

#endif

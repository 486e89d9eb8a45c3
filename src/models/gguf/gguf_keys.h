/* gguf_keys.h: metadata common to all architectures in GGUF files: keys under the architecture's prefix, and BOS and
 * EOS tokens. */
#ifndef TARN__GGUF_KEYS_H
#define TARN__GGUF_KEYS_H

#include "models/gguf/gguf_arch.h"

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

#endif

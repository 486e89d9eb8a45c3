/* hf_write.h: the parts of tokenizer.json, for the files that write them. All return false with an error of no memory.
 */
#ifndef TARN__HF_WRITE_H
#define TARN__HF_WRITE_H

#include "text/tokenizer/tokenizer.h"

/* Short pieces of the file, as printf() makes them; a text in quotes, which is valid UTF-8; a piece of the vocabulary
 * as files write it. */
bool tarn__hf_put(tarn__buffer *out, const char *format, ...) TARN_PRINTF(2, 3);
bool tarn__json_string(tarn__buffer *out, const char *text, size_t length);
bool tarn__hf_put_piece(tarn__buffer *out, const tarn_tokenizer *t, int32_t id);

/* What SentencePiece's BPE has in place of others: how spaces are changed (normalizer and pre-tokenizer), and back
 * (decoder); merges, which are made of scores where there are any, and the scores. */
bool tarn__hf_put_spm_normalizer(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_spm_decoder(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_spm_merges(tarn__buffer *out, const tarn_tokenizer *t);

/* The whole of a tokenizer_config.json. */
bool tarn__hf_put_config(tarn__buffer *out, const tarn_tokenizer *t);

/* How tokenizer.json says that several spaces are one and those at the ends none, as SentencePiece may do. tarn writes
 * it, and reads what it wrote: the first replaces by nothing, the second by a space. */
#define TARN__REGEX_OUTER_SPACES "\\A +|[ \xE2\x96\x81]+\\z"
#define TARN__REGEX_EXTRA_SPACES " {2,}"

#endif

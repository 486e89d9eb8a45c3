/* hf_write.h: parts of tokenizer.json, for the files that write them. All functions append to `out` and return false
 * with an error: no memory. */
#ifndef TARN__HF_WRITE_H
#define TARN__HF_WRITE_H

#include "text/tokenizer/tokenizer.h"

/* put: formatted text of less than 512 bytes. put_string: a quoted JSON string of valid UTF-8. put_piece: a piece of
 * the vocabulary, escaped and quoted. */
bool tarn__hf_put(tarn__buffer *out, const char *format, ...) TARN_PRINTF(2, 3);
bool tarn__hf_put_string(tarn__buffer *out, const char *text, size_t length);
bool tarn__hf_put_piece(tarn__buffer *out, const tarn_tokenizer *t, int32_t id);

/* Members of SentencePiece's BPE: normalizer and pre-tokenizer, which change spaces; decoder, which restores them;
 * merges derived from scores, with the scores. */
bool tarn__hf_put_spm_normalizer(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_spm_decoder(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_spm_merges(tarn__buffer *out, const tarn_tokenizer *t);

/* Members of a pipeline: normalizer and pre-tokenizer; decoder; the whole model. */
bool tarn__hf_put_pipeline_steps(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_pipeline_decoder(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_pipeline_model(tarn__buffer *out, const tarn_tokenizer *t);

/* Members of a model: "vocab" as an object, and "merges" after a comma. */
bool tarn__hf_put_vocabulary(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_merges(tarn__buffer *out, const tarn_tokenizer *t);

/* A complete tokenizer.json; a complete tokenizer_config.json. */
bool tarn__hf_put_tokenizer(tarn__buffer *out, const tarn_tokenizer *t);
bool tarn__hf_put_config(tarn__buffer *out, const tarn_tokenizer *t);

/* SentencePiece's remove_extra_whitespaces as two Replace steps of a normalizer: the first by nothing, the second by a
 * space. hf_read_spm.c recognizes exactly these. */
#define TARN__REGEX_OUTER_SPACES "\\A +|[ \xE2\x96\x81]+\\z"
#define TARN__REGEX_EXTRA_SPACES " {2,}"

#endif

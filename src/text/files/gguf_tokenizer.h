/* gguf_tokenizer.h: tokenizers in GGUF files: the keys tokenizer.ggml.* and tokenizer.chat_template. */
#ifndef TARN__GGUF_TOKENIZER_H
#define TARN__GGUF_TOKENIZER_H

#include <tarn/gguf.h>

#include "text/tokenizer/tokenizer.h"

/* How text falls into words, by the name that GGUF files have for it ("tokenizer.ggml.pre"). */
typedef struct tarn__gguf_pre_tokenizer {
    const char *name, *others[3]; /* the name that is written, and others for the same; NULL: no more */
    const char *pattern[2];       /* NULL: no more */
    bool uses_regex;              /* the last is GPT-2's own, inside the byte-level step */
    bool nfc, ignore_merges;
    bool begins; /* a text gets the token that begins one, where the file does not say */
} tarn__gguf_pre_tokenizer;

/* The kinds that tarn has; a name of NULL ends them. */
extern const tarn__gguf_pre_tokenizer tarn__gguf_pre_tokenizers[];

/* The kind of a file's tokenizer, and what stands there in one without. */
#define TARN__GGUF_TOKENIZER "tokenizer.ggml.model"
#define TARN__GGUF_NO_TOKENIZER "none"

/* A key of tarn's own: how the pre-tokenizer Metaspace puts spaces ("first", "always", "never"), which the format's own
 * keys cannot say. */
#define TARN__GGUF_METASPACE "tarn.tokenizer.metaspace"

/* Makes a tokenizer of a file's metadata; `path` is its name, for errors. The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__tokenizer_from_gguf(const char *function, const char *path, const tarn_gguf *file);

/* What a model says of its tokens. */
typedef struct tarn__gguf_model {
    int64_t rows;       /* that it has for tokens; 0: as many as there are */
    int32_t begin, end; /* a text; -1: none */
} tarn__gguf_model;

/* Adds a tokenizer's metadata to a file that is being written. Rows without a token become unused ones; the model's
 * tokens that begin and end a text are those of a tokenizer that has none. What the format cannot say of it is an
 * error. */
bool tarn__tokenizer_to_gguf(const char *function, const tarn_tokenizer *tokenizer, const tarn__gguf_model *model,
                             tarn_gguf_writer *writer);

#endif

/* gguf_tokenizer.h: tokenizers in GGUF files: the keys tokenizer.ggml.* and tokenizer.chat_template. */
#ifndef TARN__GGUF_TOKENIZER_H
#define TARN__GGUF_TOKENIZER_H

#include <tarn/gguf.h>

#include "text/tokenizer/tokenizer.h"

/* A pre-tokenizer, by its name in GGUF files ("tokenizer.ggml.pre"). GGUF stores no pattern: readers know them by
 * name. */
#define TARN__GGUF_PRE_ALIASES 6
#define TARN__GGUF_PRE_REGEXES 6
typedef struct tarn__gguf_pre_tokenizer {
    const char *name, *aliases[TARN__GGUF_PRE_ALIASES]; /* the name that is written, and aliases; NULL ends them */
    const char *regex[TARN__GGUF_PRE_REGEXES];          /* applied in turn; NULL ends them */
    bool uses_regex;                                    /* the last is GPT-2's, implied by ByteLevel */
    bool nfc, ignore_merges;                            /* settings of the tokenizer that the name implies */
    bool adds_bos;                                      /* default of add_bos_token */
    bool joins_lines;                                   /* a word may go on after the end of a line */
    const tarn__pipeline_step *steps;                   /* of a pipeline, instead of regexes; NULL: none */
    int step_count;
} tarn__gguf_pre_tokenizer;

/* The tokens of a file; everything is borrowed. scores is NULL where there are none. */
typedef struct tarn__gguf_pieces {
    const char *function, *path; /* for errors */
    const tarn_gguf *file;
    int64_t count;
    const char *const *pieces; /* not terminated */
    const size_t *lengths;
    const float *scores;
    const int32_t *types; /* tarn__token_type; -1: unknown */
} tarn__gguf_pieces;

/* Tokenizers of "t5" and "bert"; ids are -1 for none. The caller owns them. NULL with an error. */
tarn_tokenizer *tarn__gguf_unigram(const tarn__gguf_pieces *pieces, int64_t bos, int64_t eos, int64_t unknown);
tarn_tokenizer *tarn__gguf_wordpiece(const tarn__gguf_pieces *pieces, int64_t bos, int64_t eos, int64_t unknown);

/* The key of a whole tokenizer.json, for tokenizers whose steps the other keys cannot express. */
#define TARN__GGUF_HUGGINGFACE "tokenizer.huggingface.json"

/* The pre-tokenizers that tarn has (gguf_pre_tokenizers.c); a row without a name ends them. */
extern const tarn__gguf_pre_tokenizer tarn__gguf_pre_tokenizers[];

/* The name of a tokenizer's regexes and settings; NULL: the format has none. */
const char *tarn__gguf_pre_tokenizer_name(const tarn_tokenizer *tokenizer);

/* True if the end of a line ends a word, so that a text may be cut there. */
bool tarn__pre_tokenizer_ends_words(const tarn_tokenizer *tokenizer);

/* The keys of the default chat template, and of the names of the others, whose keys are the first, a dot and the name;
 * writing them all. False with an error. */
#define TARN__GGUF_CHAT "tokenizer.chat_template"
#define TARN__GGUF_CHAT_NAMES "tokenizer.chat_templates"
bool tarn__gguf_put_templates(const tarn_tokenizer *tokenizer, tarn_gguf_writer *writer);

/* Special tokens but BOS, EOS and the unknown one: transformers' name and the key of the id. A row without a name ends
 * them. */
typedef struct tarn__gguf_special {
    const char *name, *key;
} tarn__gguf_special;
extern const tarn__gguf_special tarn__gguf_specials[];

/* The key of the tokenizer's kind, and its value in a file without one. */
#define TARN__GGUF_TOKENIZER "tokenizer.ggml.model"
#define TARN__GGUF_NO_TOKENIZER "none"

/* A key of tarn's own: the prepend_scheme of a Metaspace pre-tokenizer ("first", "always", "never"), for which the
 * format has no key. */
#define TARN__GGUF_METASPACE "tarn.tokenizer.metaspace"

/* Builds a tokenizer from a file's metadata; `path` is for errors. The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__tokenizer_from_gguf(const char *function, const char *path, const tarn_gguf *file);

/* Facts of the model that the tokenizer's metadata must fit. */
typedef struct tarn__gguf_model {
    int64_t rows;     /* of the token embedding; 0: as many as tokens */
    int32_t bos, eos; /* tokens by the model's config; -1: none */
    bool has_json;    /* the caller writes TARN__GGUF_HUGGINGFACE */
} tarn__gguf_model;

/* Adds a tokenizer's metadata to a file being written. Embedding rows without a token become unused tokens; the model's
 * BOS and EOS apply where the tokenizer has none. A tokenizer that the format cannot express is an error. */
bool tarn__tokenizer_to_gguf(const char *function, const tarn_tokenizer *tokenizer, const tarn__gguf_model *model,
                             tarn_gguf_writer *writer);

#endif

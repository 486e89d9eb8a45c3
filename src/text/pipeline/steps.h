/* steps.h: the steps of a general tokenizer: normalizers, pre-tokenizers and decoders as lists of records, in the words
 * of Hugging Face's tokenizer.json.
 *
 * Byte-level BPE and SentencePiece's BPE in their common forms have code of their own (bpe.c, spm.c). Everything else
 * is a pipeline: normalizer steps change a text (normalizer.c), pre-tokenizer steps split it into words and may change
 * them (pre_tokenizer.c), the model gives the ids of a word (unigram.c, wordpiece.c, bpe_chars.c), decoder steps turn
 * pieces into text (decoder.c). Pieces are stored as the file writes them. */
#ifndef TARN__STEPS_H
#define TARN__STEPS_H

#include "base/buffer.h"

typedef struct tarn__regex tarn__regex;

/* Which texts get a space prepended, in the words of the Metaspace pre-tokenizer: with FIRST only the beginning of the
 * whole input, with ALWAYS also the text after an added token. */
typedef enum tarn__prepend_scheme {
    TARN__PREPEND_NEVER,
    TARN__PREPEND_FIRST,
    TARN__PREPEND_ALWAYS
} tarn__prepend_scheme;

#define TARN__MAX_STEPS 24 /* of a list */

typedef enum tarn__step_type {
    /* normalizers */
    TARN__STEP_NFC,
    TARN__STEP_NFD,
    TARN__STEP_NFKC,
    TARN__STEP_NFKD,
    TARN__STEP_LOWERCASE,
    TARN__STEP_STRIP, /* whitespace: `left`, `right` */
    TARN__STEP_STRIP_ACCENTS,
    TARN__STEP_REPLACE, /* a decoder too, there without a regex */
    TARN__STEP_PREPEND,
    TARN__STEP_PRECOMPILED, /* SentencePiece's character map, grapheme by grapheme as Hugging Face's tokenizers do */
    TARN__STEP_BERT_NORMALIZER,
    TARN__STEP_SPM_NORMALIZER, /* SentencePiece's own normalizer: the map by longest match, then spaces */
    /* pre-tokenizers */
    TARN__STEP_SPLIT,
    TARN__STEP_PUNCTUATION,
    TARN__STEP_DIGITS, /* `single`: one by one */
    TARN__STEP_WHITESPACE,
    TARN__STEP_WHITESPACE_SPLIT,
    TARN__STEP_BERT_PRE_TOKENIZER,
    TARN__STEP_CHAR_DELIMITER_SPLIT,
    TARN__STEP_METASPACE,  /* a decoder too */
    TARN__STEP_BYTE_LEVEL, /* a decoder too */
    /* decoders */
    TARN__STEP_BYTE_FALLBACK,
    TARN__STEP_FUSE,
    TARN__STEP_STRIP_CONTENT, /* one character, at most `start` and `stop` times */
    TARN__STEP_WORDPIECE_DECODER,
    TARN__STEP_BPE_DECODER
} tarn__step_type;

/* What becomes of the matches of a split. */
typedef enum tarn__split_behavior {
    TARN__SPLIT_ISOLATED,
    TARN__SPLIT_REMOVED,
    TARN__SPLIT_MERGED_WITH_PREVIOUS,
    TARN__SPLIT_MERGED_WITH_NEXT,
    TARN__SPLIT_CONTIGUOUS
} tarn__split_behavior;

/* A step; which fields count depends on its type. */
typedef struct tarn__pipeline_step {
    tarn__step_type type;
    tarn__split_behavior behavior;
    tarn__prepend_scheme prepend; /* Metaspace; the SentencePiece normalizer: never or always */
    bool invert;                  /* split: the text between matches counts as the match */
    bool left, right;             /* strip */
    bool is_regex;                /* `text` is a regex, not a string */
    bool prefix_space, use_regex; /* ByteLevel */
    bool splits;                  /* Metaspace: one word per space */
    bool single;                  /* digits */
    bool cleanup;                 /* WordPiece decoder */
    bool remove_extra_spaces;     /* the SentencePiece normalizer */
    bool clean_text, chinese, lowercase, strip_accents, has_strip_accents; /* BertNormalizer */
    size_t start, stop;                                                    /* StripContent */
    char *text, *content; /* pattern, prefix, suffix or delimiter; the replacement. Owned; NULL: none */
    size_t text_length, content_length;
    char *map; /* compiled character map, as in files; owned; NULL: none */
    size_t map_bytes;
    tarn__regex *regex, *other; /* owned; compiled from `text`, or implied by the type */
} tarn__pipeline_step;

typedef struct tarn__pipeline {
    bool is_used;
    bool joins_by_space;                                /* no decoder in the file: pieces are joined by spaces */
    tarn__buffer normalizers, pre_tokenizers, decoders; /* tarn__pipeline_step */
} tarn__pipeline;

/* Appends a step, whose memory the list takes in any case, and compiles its regexes. `function` and `name` are for
 * errors. False with an error. */
bool tarn__steps_add(tarn__buffer *steps, tarn__pipeline_step step, const char *function, const char *name);
const tarn__pipeline_step *tarn__steps_at(const tarn__buffer *steps, size_t index); /* borrowed */
void tarn__steps_free(tarn__buffer *steps);

void tarn__step_free(tarn__pipeline_step *step); /* one that is in no list */

/* Copies a string into a step's field. False with an error. */
bool tarn__step_copy(char **field, size_t *length, const char *text, size_t bytes);

/* A hash of everything that the lists of a pipeline decide. */
uint64_t tarn__pipeline_hash(const tarn__pipeline *pipeline, uint64_t hash);

/* ---- character maps (charsmap.c) --------------------------------------------------------------------------------- */

/* Checks the sizes in a compiled character map: a double-array trie, then strings that end in a 0. */
bool tarn__charsmap_valid(const char *map, size_t bytes);

/* The replacement of the first key that is a prefix of the text, of the shortest or the longest: its bytes in
 * *replacement, borrowed from the map, and their number in *count. Returns the bytes of the key; 0: none. */
size_t tarn__charsmap_find(const char *map, size_t bytes, const char *text, size_t length, bool longest,
                           const char **replacement, size_t *count);

#endif

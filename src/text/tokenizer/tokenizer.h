/* tokenizer.h: what a tokenizer is made of, for the files that make, use and write one.
 *
 * A text goes through three steps, each a file: special tokens are cut out of it (added_tokens.c), what is between them
 * is normalised (nfc.c), and the kind of the tokenizer (bpe.c, spm.c, bytes_chars.c) turns it into ids. Only a coder
 * changes while that happens, and every thread has its own. */
#ifndef TARN__TOKENIZER_H
#define TARN__TOKENIZER_H

#include <tarn/text.h>

#include "text/tokenizer/vocab.h"

/* ---- regex.c ----------------------------------------------------------------------------------------------------- */

/* The patterns of tokenizers that come without a tokenizer.json, as their authors published them. */
#define TARN__REGEX_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TARN__REGEX_QWEN2 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TARN__REGEX_LLAMA3 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct tarn__regex tarn__regex;
typedef struct tarn__matcher tarn__matcher;

/* A pattern as Hugging Face's files write it. The caller owns it; any number of threads may use it, each with a matcher
 * of its own. NULL with an error that begins with `function`, names `name` (a file) and says what PCRE2 found wrong. */
tarn__regex *tarn__regex_new(const char *function, const char *name, const char *text);
const char *tarn__regex_source(const tarn__regex *pattern); /* as it was given; borrowed */
void tarn__regex_free(tarn__regex *pattern);                /* NULL is allowed */

/* Memory for matching with any pattern. The caller owns it. NULL with an error. */
tarn__matcher *tarn__matcher_new(void);
void tarn__matcher_free(tarn__matcher *matcher); /* NULL is allowed */

/* The next match in valid UTF-8, from a place on: 1 with where it lies (it is not empty), 0 for none, -1 with an error.
 */
int tarn__regex_next(const tarn__regex *pattern, tarn__matcher *matcher, const char *text, size_t length, size_t from,
                     size_t *begin, size_t *end);

/* ---- bpe_merge.c ------------------------------------------------------------------------------------------------- */

/* A part of a word: a token, or a text that is none. */
typedef struct tarn__symbol {
    int32_t id;            /* -1: no token has this text */
    int32_t before, after; /* -1: none */
    int32_t begin, length; /* in the word's bytes; length 0: became part of the one before it */
    bool is_frozen;        /* merges with nothing */
} tarn__symbol;

/* Whether two neighbours make a token, its rank (the lowest merges first) and its id. */
typedef bool (*tarn__pair_fn)(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                              int32_t *made);

/* Merges symbols, 0 to count - 1 in a list, until no pair makes a token; of pairs with the same rank the leftmost is
 * first. In n log n, so that a megabyte without a space is no trouble. `heap` is scratch. False with an error. */
bool tarn__merge_symbols(tarn__pair_fn find, const void *ctx, tarn__symbol *symbols, int32_t count, tarn__buffer *heap);
void tarn__merge_heap_free(tarn__buffer *heap);

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

#define TARN__MAX_REGEXES 16

/* A token that is found in a text before anything else is done to it. */
typedef struct tarn__added_token {
    char *text; /* owned */
    size_t length;
    int32_t id;
    bool special;                 /* may be left as text */
    bool normalized;              /* looked for in the normalised text */
    bool strip_left, strip_right; /* takes the spaces beside it */
} tarn__added_token;

typedef struct tarn__added {
    tarn__buffer tokens; /* tarn__added_token; sorted by first byte, then the longest first, once all are there */
    uint16_t first[257]; /* of the tokens that begin with a byte: from first[b] to first[b + 1] */
} tarn__added;

/* Two tokens beside each other that become one. */
typedef struct tarn__merge {
    int32_t left, right, made;
} tarn__merge;

/* Merges by their pair: open addressing. */
typedef struct tarn__merge_slot {
    uint64_t key; /* left and right, and one more; 0: free */
    int32_t rank, made;
} tarn__merge_slot;

typedef struct tarn__bpe {
    tarn__buffer merges; /* tarn__merge; by rank */
    tarn__merge_slot *slot;
    size_t slots;         /* a power of two */
    int32_t byte_id[256]; /* -1: the vocabulary lacks it */
    int32_t unknown;      /* for those; -1: none */
    bool ignore_merges;   /* a word that is a token is that token */
    bool prefix_space;    /* a text gets a space before it */
    /* the pattern is GPT-2's, inside the byte-level step: how the file is written */
    bool uses_regex;
    tarn__regex *pattern[TARN__MAX_REGEXES]; /* applied one after the other; none: a text is one word */
    int pattern_count;
} tarn__bpe;

/* What a piece of SentencePiece is; the numbers are those of tokenizer.model and of GGUF. */
typedef enum tarn__token_type {
    TARN__TOKEN_NORMAL = 1,
    TARN__TOKEN_UNKNOWN, /* stands for what has no token */
    TARN__TOKEN_CONTROL,
    TARN__TOKEN_USER, /* found in a text before anything is merged */
    TARN__TOKEN_UNUSED,
    TARN__TOKEN_BYTE
} tarn__token_type;

/* Which texts get a space before them. */
typedef enum tarn__prepend_scheme {
    TARN__PREPEND_NEVER,
    TARN__PREPEND_FIRST,
    TARN__PREPEND_ALWAYS
} tarn__prepend_scheme;

/* SentencePiece's BPE (spm.c). Pieces are kept with spaces, where files have U+2581. */
typedef struct tarn__spm {
    float *scores;                /* by id; the best merges first. NULL: merges have ranks, in tarn__bpe */
    uint8_t *types;               /* by id; tarn__token_type */
    int32_t *rank;                /* by id: the place of its score among all; equal scores have one */
    size_t count;                 /* of these three */
    size_t longest, longest_user; /* bytes of a piece that merges; of one that is found before; 0: none */
    int32_t byte_id[256];         /* -1: none, then all are */
    bool has_bytes;               /* what has no token becomes its bytes; else tarn__bpe's unknown */
    tarn__prepend_scheme prefix;
    bool prefix_if_missing; /* only before texts that do not begin with a space */
    bool squeezes;          /* several spaces are one, and those at the ends none */
    /* spaces are changed behind the search for tokens in normalised text: a pre-tokenizer, not a normalizer */
    bool is_late;
    bool strips;    /* decoding leaves out a space at the beginning */
    bool has_words; /* no piece has a space behind something else: words are encoded one by one */
} tarn__spm;

typedef struct tarn__encoder tarn__encoder;

/* What kinds of tokenizers do differently. */
typedef struct tarn__tokenizer_kind {
    const char *name;
    /* Appends the ids of a text without special tokens. False with an error. */
    bool (*encode)(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text, size_t length,
                   tarn__buffer *ids);
} tarn__tokenizer_kind;

extern const tarn__tokenizer_kind tarn__kind_bpe, tarn__kind_spm, tarn__kind_bytes, tarn__kind_characters;

struct tarn_tokenizer {
    const tarn__tokenizer_kind *kind;
    tarn__vocab pieces;
    tarn__added added;
    tarn__bpe bpe; /* of SentencePiece too: merges with ranks, `unknown` and `ignore_merges` */
    tarn__spm spm;
    bool nfc;                   /* normalises to Unicode's form C */
    int32_t unknown;            /* characters: what stands for those that are missing; -1: none */
    tarn__buffer before, after; /* ids that add_special adds */
    int32_t begin, end;         /* what the file says begins and ends a text; -1: nothing */
    char *chat;                 /* its chat template, as it stands in the file; NULL: none; owned */
    uint64_t hash;
};

/* What one thread needs to encode: memory of words met before, and scratch. All zero is ready. */
struct tarn__encoder {
    tarn__matcher *matcher;
    struct tarn__cached_word *word; /* open addressing; 0 length: free */
    size_t words, word_slots;
    tarn__buffer word_bytes, word_ids;
    tarn__buffer symbols, heap;
    tarn__buffer normal, spaced;
    bool continues; /* the next text goes on where another ended: it gets no space before it */
    bool is_inside; /* the next text is not the beginning of the whole */
};
void tarn__encoder_free(tarn__encoder *coder);

/* An empty tokenizer of a kind; and what must be done once all is in it: NULL or false with an error. */
tarn_tokenizer *tarn__tokenizer_new(const tarn__tokenizer_kind *kind);
bool tarn__tokenizer_finish(tarn_tokenizer *tokenizer, const char *function, const char *name);

/* Appends the ids of a text with what stands around it; of a text alone, which may be a part of a whole. False with an
 * error. */
bool tarn__tokenizer_append_section(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text,
                                    size_t length, bool with_special, bool is_inside, tarn__buffer *ids);
bool tarn__tokenizer_append(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text, size_t length,
                            const tarn_encode_options *options, tarn__buffer *ids);

/* Adds a token to be found in texts, and to the vocabulary where that lacks it. `name` is the file's, for errors. The
 * text is copied. */
bool tarn__added_add(tarn_tokenizer *tokenizer, const char *function, const char *name, const tarn__added_token *token);
bool tarn__added_sort(tarn__added *added);
void tarn__added_free(tarn__added *added);

/* The first token in a text from a place on, of those looked for in the normalised text or of the others; NULL: none.
 * *at is where it lies. */
const tarn__added_token *tarn__added_next(const tarn__added *added, bool normalized, bool with_special,
                                          const char *text, size_t length, size_t from, size_t *at);

/* Adds a merge at the end; all pieces are in the vocabulary. A pair that is there already gets the new rank. False with
 * an error. */
bool tarn__bpe_add(tarn__bpe *bpe, tarn__merge merge);

/* The same for pieces as files write them; `number` is the merge's, `name` the file's, for errors. */
bool tarn__bpe_add_escaped(tarn_tokenizer *tokenizer, const char *function, const char *name, size_t number,
                           const char *left, size_t left_length, const char *right, size_t right_length);
const tarn__merge_slot *tarn__bpe_find(const tarn__bpe *bpe, int32_t left, int32_t right); /* NULL: no merge */
void tarn__bpe_free(tarn__bpe *bpe);

/* Calls `see` for every word of a text, in order; false ends. */
typedef bool (*tarn__word_fn)(const char *word, size_t length, void *ctx);
bool tarn__bpe_pretokenize(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text, size_t length,
                           tarn__word_fn see, void *ctx);

/* Appends the ids of a word: those that are remembered, or what `encode` gives. False with an error. */
typedef bool (*tarn__word_encode_fn)(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *word,
                                     size_t length, tarn__buffer *ids);
bool tarn__word_cache_encode(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *word, size_t length,
                             tarn__word_encode_fn encode, tarn__buffer *ids);

/* A text with its spaces as SentencePiece has them: one before it, U+2581 as a space. Appends to `out`. False with an
 * error. */
bool tarn__spm_normalize(const tarn__spm *spm, const tarn__encoder *coder, const char *text, size_t length,
                         tarn__buffer *out);

/* What is known once all pieces are there. False with an error. */
bool tarn__spm_finish(tarn_tokenizer *tokenizer, const char *function, const char *name);
void tarn__spm_free(tarn__spm *spm);

/* A text in Unicode's normalisation form C. Valid UTF-8 is changed; what is none passes. False with an error. */
bool tarn__nfc(tarn__buffer *out, const char *text, size_t length);

/* What a vocabulary of SentencePiece consists of. Everything is borrowed. */
typedef struct tarn__spm_spec {
    const char *function, *name; /* for errors: who asks, and the file */
    const char *const *pieces;   /* as files write them: U+2581 for spaces, <0x0A> for bytes */
    const size_t *lengths;
    const float *scores;
    const int32_t *types; /* tarn__token_type */
    int64_t count;
    int64_t begin, end, unknown; /* ids; -1: none */
    bool has_bytes;              /* what has no token becomes its bytes */
    bool user_is_added;          /* pieces of users are looked for like added tokens; else as SentencePiece does */
    tarn__spm settings;          /* of these `prefix`, `prefix_if_missing`, `squeezes` and `strips` */
} tarn__spm_spec;

/* A tokenizer without what comes before and after a text. It is finished: but tokens may be added, and
 * tarn__tokenizer_finish() called again. The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__spm_build(const tarn__spm_spec *parts);

/* Puts what a file gave into a tokenizer. NULL with an error. */
tarn_tokenizer *tarn__tokenizer_read_spm(const char *path); /* a tokenizer.model */
tarn_tokenizer *tarn__tokenizer_read_json(const char *path);
tarn_tokenizer *tarn__tokenizer_read_vocab(const char *vocabulary, const char *merges,
                                           const char *config); /* config: NULL where there is none */

/* Takes what lies beside a tokenizer: its tokenizer_config.json and its chat_template.jinja (NULL: there is none).
 * `is_model`: beside a tokenizer.model, which leaves more to it. False with an error. */
bool tarn__tokenizer_read_config(tarn_tokenizer *tokenizer, const char *config, const char *chat, bool is_model);

/* add_special adds the token that begins a text, where there is one, and the one that ends it; nothing else. False with
 * an error. */
bool tarn__tokenizer_set_add_bos_eos(tarn_tokenizer *tokenizer, bool begins, bool ends);

#endif

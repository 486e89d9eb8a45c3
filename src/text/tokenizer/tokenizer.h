/* tokenizer.h: the parts of a tokenizer, for the files that create, use and write one.
 *
 * Encoding has three steps, each in a file of its own: added tokens are cut out of the text (added_tokens.c), the text
 * between them is normalized (nfc.c, spm.c, normalizer.c), and the kind of tokenizer (bpe.c, spm.c, bytes_chars.c, or a
 * pipeline: steps.h) turns it into ids.
 * A tokenizer is immutable once finished: threads share it. All state that changes while encoding is in a
 * tarn__encoder, and each thread has its own. */
#ifndef TARN__TOKENIZER_H
#define TARN__TOKENIZER_H

#include <tarn/text.h>

#include "text/pipeline/steps.h"
#include "text/tokenizer/vocab.h"

/* ---- regex.c ----------------------------------------------------------------------------------------------------- */

/* Pre-tokenizer patterns of models that come without a tokenizer.json, as published. */
#define TARN__REGEX_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TARN__REGEX_QWEN2 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TARN__REGEX_LLAMA3 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* A word character as Rust's \w: the word boundary of added tokens. */
#define TARN__REGEX_WORD_CHARACTERS \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}" \
    "\\x{1F170}-\\x{1F189}"
#define TARN__REGEX_WORD "[" TARN__REGEX_WORD_CHARACTERS "]"

typedef struct tarn__matcher tarn__matcher;

/* Compiles a pattern in the syntax of Hugging Face's files. The caller owns the result; threads may share it, each with
 * a matcher of its own. NULL with an error that begins with `function`, names the file `name` and gives PCRE2's
 * reason. */
tarn__regex *tarn__regex_new(const char *function, const char *name, const char *text);
const char *tarn__regex_source(const tarn__regex *pattern); /* the pattern as given; borrowed */
void tarn__regex_free(tarn__regex *pattern);                /* NULL is allowed */

/* Scratch for matching, for use with any regex. The caller owns it. NULL with an error. */
tarn__matcher *tarn__matcher_new(void);
void tarn__matcher_free(tarn__matcher *matcher); /* NULL is allowed */

/* Finds the next match at or after `from`, in valid UTF-8: 1 with *begin < *end, 0 for none, -1 with an error. */
int tarn__regex_next(const tarn__regex *pattern, tarn__matcher *matcher, const char *text, size_t length, size_t from,
                     size_t *begin, size_t *end);

/* ---- bpe_merge.c ------------------------------------------------------------------------------------------------- */

/* An element of the list being merged: a token, or text that is not one. Elements are linked by index. */
typedef struct tarn__symbol {
    int32_t id;            /* -1: not a token */
    int32_t prev, next;    /* -1: none */
    int32_t begin, length; /* bytes of the word; length 0: merged into the one before */
    bool is_frozen;        /* never merges */
} tarn__symbol;

/* Tells whether two neighbours merge, with the rank of the merge (lowest first) and the resulting id. */
typedef bool (*tarn__pair_fn)(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                              int32_t *merged);

/* Merges symbols 0 … count - 1 until no pair merges; of pairs with equal rank the leftmost goes first. O(n log n): a
 * word of a megabyte is no problem. `heap` is scratch. False with an error. */
bool tarn__merge_symbols(tarn__pair_fn find, const void *ctx, tarn__symbol *symbols, int32_t count, tarn__buffer *heap);
void tarn__merge_heap_free(tarn__buffer *heap);

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

#define TARN__MAX_REGEXES 16

/* An added token: found in the text before it is split or merged. */
typedef struct tarn__added_token {
    char *text; /* owned */
    size_t length;
    char *form; /* the normalized text, which is searched; owned; NULL: the text itself */
    size_t form_length;
    int32_t id;
    bool special;                 /* tarn_encode_options.special_as_text leaves it as text */
    bool normalized;              /* searched in the normalized text, not in the original */
    bool strip_left, strip_right; /* absorbs adjacent whitespace */
    bool single_word;             /* not found inside a word */
} tarn__added_token;

typedef struct tarn__added {
    tarn__buffer tokens; /* tarn__added_token; once sorted: by first byte of the form, then longest first */
    uint16_t first[257]; /* tokens that begin with byte b: first[b] … first[b + 1] - 1 */
    tarn__regex *word;   /* a word character; NULL: no token is a single word */
    bool has_forms;      /* of a token normalization changes the text */
} tarn__added;

/* A merge rule: two adjacent tokens and their result. */
typedef struct tarn__merge {
    int32_t left, right, merged;
} tarn__merge;

/* A slot of the hash table of merges, by pair; open addressing. */
typedef struct tarn__merge_slot {
    uint64_t key; /* left and right, plus 1; 0: free */
    int32_t rank, merged;
} tarn__merge_slot;

typedef struct tarn__bpe {
    tarn__buffer merges; /* tarn__merge, in order of rank */
    tarn__merge_slot *slot;
    size_t slots;         /* a power of two */
    int32_t byte_id[256]; /* -1: not in the vocabulary */
    int32_t unknown;      /* token of missing bytes; -1: none */
    bool ignore_merges;   /* a word in the vocabulary becomes its token without merging */
    bool prefix_space;    /* prepend a space to a text */
    /* the last regex is GPT-2's, implied by ByteLevel in the file */
    bool uses_regex;
    tarn__regex *regex[TARN__MAX_REGEXES]; /* applied in turn; none: a text is one word */
    int regex_count;
} tarn__bpe;

/* Types of SentencePiece's pieces; the values are those of tokenizer.model and GGUF. */
typedef enum tarn__token_type {
    TARN__TOKEN_NORMAL = 1,
    TARN__TOKEN_UNKNOWN, /* <unk> */
    TARN__TOKEN_CONTROL,
    TARN__TOKEN_USER, /* user defined: found before anything is merged */
    TARN__TOKEN_UNUSED,
    TARN__TOKEN_BYTE
} tarn__token_type;

/* SentencePiece's BPE (spm.c). In memory a space is a space; files write it as U+2581. */
typedef struct tarn__spm {
    float *scores;                    /* by id; the highest merges first. NULL: tarn__bpe has merges with ranks */
    uint8_t *types;                   /* by id; tarn__token_type */
    int32_t *rank;                    /* by id: rank of its score; equal scores share one */
    size_t count;                     /* of scores, types and rank */
    size_t max_piece, max_user_piece; /* longest in bytes: pieces that merge, user pieces; 0: none */
    int32_t byte_id[256];             /* -1: no byte pieces at all */
    bool has_bytes;                   /* byte fallback; else tarn__bpe's unknown */
    tarn__prepend_scheme prepend;
    bool prepend_if_missing;  /* prepend only if the text does not begin with a space */
    bool remove_extra_spaces; /* collapse runs of spaces, strip both ends */
    /* spaces change after the search for normalized added tokens */
    bool in_pre_tokenizer;
    bool strip_prefix; /* decoding drops the prepended space */
    bool splits_words; /* no piece crosses a word boundary: words are encoded and cached one by one */
} tarn__spm;

/* A node of a trie (trie.c); node 0 is the root, which is nobody's child. */
typedef struct tarn__trie_node {
    uint32_t first; /* of its children, which are adjacent and sorted by byte */
    int32_t id;     /* -1: no piece ends here */
    uint16_t count; /* of children */
    uint8_t byte;
} tarn__trie_node;

/* Builds the trie of all pieces of the model's own vocabulary that `counts` accepts (NULL: all). False with an
 * error. */
bool tarn__trie_build(tarn__buffer *nodes, const tarn__vocab *vocab, bool (*counts)(const void *, int32_t),
                      const void *ctx);
uint32_t tarn__trie_next(const tarn__buffer *nodes, uint32_t node, unsigned char byte); /* a child; 0: none */

/* The Unigram model (unigram.c). */
typedef struct tarn__unigram {
    double *scores; /* by id */
    uint8_t *types; /* by id; tarn__token_type */
    size_t count;   /* of scores and types */
    int32_t unknown;
    bool byte_fallback;
    bool is_spm;    /* as SentencePiece encodes; else as Hugging Face's tokenizers */
    bool has_bytes; /* from here on: computed by tarn__unigram_finish() */
    int32_t byte_id[256];
    double unknown_score, max_score;
    tarn__buffer trie; /* tarn__trie_node */
} tarn__unigram;

/* WordPiece (wordpiece.c). */
typedef struct tarn__wordpiece {
    char *prefix; /* of pieces that continue a word; owned */
    size_t prefix_length;
    size_t max_characters; /* longer words are unknown */
    tarn__buffer trie;     /* tarn__trie_node */
    uint32_t prefix_node;  /* the prefix in the trie; 0: no piece has it, or it is empty */
} tarn__wordpiece;

/* BPE on characters (bpe_chars.c); merges are tarn__bpe's. */
typedef struct tarn__bpe_chars {
    char *prefix, *suffix; /* of characters that continue, and that end a word; owned; NULL: none */
    size_t prefix_length, suffix_length;
    bool fuse_unknown, byte_fallback;
    int32_t byte_id[256]; /* -1: none */
} tarn__bpe_chars;

typedef struct tarn__encoder tarn__encoder;
typedef bool (*tarn__word_encode_fn)(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *word,
                                     size_t length, tarn__buffer *ids);

/* The part of a tokenizer that depends on its kind. */
typedef struct tarn__tokenizer_kind {
    const char *name;
    /* Appends the ids of normalized text without added tokens. False with an error. */
    bool (*encode)(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                   tarn__buffer *ids);
    tarn__word_encode_fn word; /* appends the ids of a word of a pipeline; NULL: the kind has none */
} tarn__tokenizer_kind;

extern const tarn__tokenizer_kind tarn__kind_bpe, tarn__kind_spm, tarn__kind_bytes, tarn__kind_characters;
/* Pipelines; tarn__kind_bpe is one too where its steps need it. */
extern const tarn__tokenizer_kind tarn__kind_unigram, tarn__kind_wordpiece, tarn__kind_words, tarn__kind_bpe_chars;

struct tarn_tokenizer {
    const tarn__tokenizer_kind *kind;
    tarn__vocab vocab;
    tarn__added added;
    tarn__bpe bpe; /* SentencePiece uses merges, `unknown` and `ignore_merges` of it */
    tarn__spm spm;
    tarn__pipeline pipeline;
    tarn__unigram unigram;
    tarn__wordpiece wordpiece;
    tarn__bpe_chars bpe_chars;
    bool nfc;                   /* normalize to Unicode's NFC */
    int32_t unknown;            /* characters, words, WordPiece: token of missing ones; -1: none */
    tarn__buffer before, after; /* int32_t: ids that add_special adds */
    int32_t bos, eos;           /* BOS and EOS token named by the file; -1: none */
    tarn__buffer chats;         /* tarn__chat_source: chat templates as in the files */
    const char *chat;           /* the one named "default"; NULL: none */
    tarn__buffer special;       /* tarn__special_token: special tokens that the files name */
    bool is_generic;            /* a class of transformers without special tokens but those that its config names */
    uint64_t hash;              /* equal for tokenizers that give equal ids; stored in token files */
};

/* Per-thread state of encoding: a cache of words (word_cache.c) and scratch. All zero is ready. */
struct tarn__encoder {
    tarn__matcher *matcher;
    struct tarn__cached_word *word; /* hash table, open addressing; length 0: free */
    size_t words, word_slots;
    tarn__buffer word_bytes, word_ids; /* of the cached words */
    tarn__buffer symbols, heap;        /* scratch of tarn__merge_symbols() */
    tarn__buffer normal, spaced;       /* normalized text; text with spaces prepended or changed */
    bool continues;                    /* the next text continues another: no space is prepended */
    bool is_inside;                    /* the next text is not the beginning of the whole input */
    /* pipelines: normalizers take turns with two buffers, each pre-tokenizer has its own */
    tarn__buffer step[2], level[TARN__MAX_STEPS], escaped[TARN__MAX_STEPS + 1], unescaped, dressed;
    tarn__buffer paths, ends; /* of Unigram's search */
    bool has_moved;           /* normalization removed the beginning of the text */
    size_t first_bytes;       /* that normalization made of the first character, where it added to it; else 1 */
};
void tarn__encoder_free(tarn__encoder *encoder);

/* An empty tokenizer of a kind; the caller owns it. finish() validates a filled one and computes its tables and hash;
 * it may be called again after tokens were added. NULL or false with an error. */
tarn_tokenizer *tarn__tokenizer_new(const tarn__tokenizer_kind *kind);
bool tarn__tokenizer_finish(tarn_tokenizer *tokenizer, const char *function, const char *name);

/* Appends a text as it is searched for normalized added tokens and encoded, where normalizes() says that there is a
 * normalizer. False with an error. */
bool tarn__tokenizer_normalizes(const tarn_tokenizer *tokenizer);
bool tarn__tokenizer_normalize(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                               tarn__buffer *form);

/* append: appends the ids of a text, with the special tokens around it that the options ask for. append_section: of a
 * text alone; `is_inside`: it is not the beginning of the whole input. False with an error. */
bool tarn__tokenizer_append_section(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text,
                                    size_t length, bool with_special, bool is_inside, tarn__buffer *ids);
bool tarn__tokenizer_append(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                            const tarn_encode_options *options, tarn__buffer *ids);

/* Adds a token to search for, and to the vocabulary unless it is there. The text is copied; `name` is the file, for
 * errors. sort() is called after the last one: false for duplicates. */
bool tarn__added_add(tarn_tokenizer *tokenizer, const char *function, const char *name, const tarn__added_token *token);
bool tarn__added_sort(tarn__added *added);
void tarn__added_free(tarn__added *added);

/* The first added token in a text at or after `from`, among the normalized ones or the others; *at is its offset. NULL:
 * none. Borrowed. */
const tarn__added_token *tarn__added_next(const tarn__added *added, bool normalized, bool with_special,
                                          const char *text, size_t length, size_t from, size_t *at);

/* The bytes that are searched for a token: its form, or its text. */
static inline const char *tarn__added_form(const tarn__added_token *token, size_t *length)
{
    *length = token->form ? token->form_length : token->length;
    return token->form ? token->form : token->text;
}

/* Appends a merge of ids in the vocabulary. A pair that already has one gets the new rank. False with an error. */
bool tarn__bpe_add(tarn__bpe *bpe, tarn__merge merge);

/* The same for pieces as escaped in files. `number` (the merge's) and `name` (the file) are for errors. */
bool tarn__bpe_add_escaped(tarn_tokenizer *tokenizer, const char *function, const char *name, size_t number,
                           const char *left, size_t left_length, const char *right, size_t right_length);
const tarn__merge_slot *tarn__bpe_find(const tarn__bpe *bpe, int32_t left, int32_t right); /* NULL: no merge */
void tarn__bpe_free(tarn__bpe *bpe);

/* Splits a text by the regexes and calls `see` for every word, in order. False from `see` ends the walk. */
typedef bool (*tarn__word_fn)(const char *word, size_t length, void *ctx);
bool tarn__bpe_pretokenize(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                           tarn__word_fn see, void *ctx);

/* Appends the ids of a word: from the encoder's cache, else by `encode`, whose result is cached. False with an
 * error. */
bool tarn__word_cache_encode(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *word, size_t length,
                             tarn__word_encode_fn encode, tarn__buffer *ids);

/* Appends the text with spaces as SentencePiece wants them: one prepended, U+2581 as a space, extra ones removed. False
 * with an error. */
bool tarn__spm_normalize(const tarn__spm *spm, const tarn__encoder *encoder, const char *text, size_t length,
                         tarn__buffer *out);

/* Computes the tables that depend on all pieces. Part of tarn__tokenizer_finish(). False with an error. */
bool tarn__spm_finish(tarn_tokenizer *tokenizer, const char *function, const char *name);
void tarn__spm_free(tarn__spm *spm);

/* Appends a text in Unicode's normalization form C, or another form. Bytes that are not UTF-8 are copied. False with an
 * error. */
typedef enum tarn__form { TARN__FORM_NFC, TARN__FORM_NFD, TARN__FORM_NFKC, TARN__FORM_NFKD } tarn__form;
bool tarn__nfc(tarn__buffer *out, const char *text, size_t length);
bool tarn__normal_form(tarn__buffer *out, const char *text, size_t length, tarn__form form);

/* Pipelines. normalize: appends the normalized text. encode: tarn__tokenizer_kind.encode, on normalized text. finish:
 * tables of a model, part of tarn__tokenizer_finish(). False with an error. */
bool tarn__pipeline_matcher(const tarn_tokenizer *tokenizer,
                            tarn__encoder *encoder); /* makes it, where steps need it */
bool tarn__pipeline_normalize(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                              tarn__buffer *out);
bool tarn__pipeline_encode(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                           tarn__buffer *ids);
bool tarn__unigram_finish(tarn_tokenizer *tokenizer, const char *function, const char *name);
/* Makes a Unigram tokenizer encode as SentencePiece: with its normalizer, around the rules of a Precompiled step if
 * there is one, and its decoder. False with an error. */
bool tarn__unigram_set_spm(tarn_tokenizer *tokenizer, bool prepends, bool removes_extra_spaces, const char *function,
                           const char *name);
bool tarn__wordpiece_finish(tarn_tokenizer *tokenizer);
void tarn__bpe_chars_finish(tarn_tokenizer *tokenizer);
void tarn__unigram_free(tarn__unigram *unigram);
void tarn__unigram_paths_free(tarn__buffer *paths);
void tarn__wordpiece_free(tarn__wordpiece *wordpiece);
void tarn__bpe_chars_free(tarn__bpe_chars *chars);

/* Decoding a pipeline's ids one by one. All zero is the beginning of a text; index 1: the text continues another. */
typedef struct tarn__decode_state {
    int64_t index;            /* of the next id */
    bool has_space, has_text; /* a word has ended; a character was output */
    size_t stripped, waiting; /* characters dropped at the beginning, and held back at the end */
    tarn__buffer buffer[2];
} tarn__decode_state;
bool tarn__pipeline_decode(const tarn_tokenizer *tokenizer, tarn__decode_state *state, int32_t id, tarn__buffer *out);
void tarn__decode_state_free(tarn__decode_state *state);

/* The bytes of an id as decoding gives them: its piece, or the form of an added token. Borrowed. */
const char *tarn__decoded_bytes(const tarn_tokenizer *tokenizer, int32_t id, size_t *length);
bool tarn__decodes_pieces(const tarn_tokenizer *tokenizer); /* false: ids are decoded by the pipeline's steps */

/* A SentencePiece vocabulary, as tokenizer.model and GGUF store it. Everything is borrowed. */
typedef struct tarn__spm_spec {
    const char *function, *name; /* for errors: the public function, and the file */
    const char *const *pieces;   /* as escaped in files: U+2581 for spaces, <0x0A> for bytes */
    const size_t *lengths;
    const float *scores;
    const int32_t *types; /* tarn__token_type */
    int64_t count;
    int64_t bos, eos, unknown; /* ids; -1: none */
    bool has_bytes;            /* byte fallback */
    bool user_is_added;        /* user pieces are added tokens; else matched as SentencePiece does */
    tarn__spm settings;        /* only the settings of spaces are used */
    const char *map;           /* Unigram: the normalization rules; map_bytes is 0 without any */
    size_t map_bytes;
} tarn__spm_spec;

/* Builds a tokenizer that adds no special tokens around a text. It is finished; tokens may be added before another call
 * of tarn__tokenizer_finish(). The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__spm_build(const tarn__spm_spec *spec);
tarn_tokenizer *tarn__unigram_build(const tarn__spm_spec *spec);

/* Readers (text/files): tokenizer.model, tokenizer.json, vocab.json with merges.txt. The caller owns the tokenizer.
 * NULL with an error. */
tarn_tokenizer *tarn__tokenizer_read_spm(const char *path); /* a tokenizer.model */
tarn_tokenizer *tarn__tokenizer_read_json(const char *path);
/* the same from memory; `name` is for errors */
tarn_tokenizer *tarn__tokenizer_parse_json(const char *name, const char *text, size_t length);
tarn_tokenizer *tarn__tokenizer_read_vocab(const char *vocabulary, const char *merges,
                                           const char *config); /* config: NULL if there is none */

/* A file of tiktoken, and BERT's vocab.txt; `config` is tokenizer_config.json, NULL if there is none. is_tiktoken: by
 * the first line; false, with an error, for a file that cannot be read. */
bool tarn__tokenizer_is_tiktoken(const char *path);
tarn_tokenizer *tarn__tokenizer_read_tiktoken(const char *path, const char *config);
tarn_tokenizer *tarn__tokenizer_read_bert(const char *path, const char *config);

/* Applies tokenizer_config.json and chat_template.jinja or .json (NULL: no such file). `is_model`: they accompany a
 * tokenizer.model, which leaves more settings to them. False with an error. */
bool tarn__tokenizer_read_config(tarn_tokenizer *tokenizer, const char *config, const char *chat, bool is_model);

/* Sets what add_special adds: the BOS token, the EOS token, where they exist, and nothing else. False with an error. */
bool tarn__tokenizer_set_add_bos_eos(tarn_tokenizer *tokenizer, bool begins, bool ends);

/* A chat template. Both are owned by the tokenizer. */
typedef struct tarn__chat_source {
    char *name; /* "default", or as in the file: "tool_use", "rag" */
    char *text;
} tarn__chat_source;

/* Adds a chat template in place of another of the same name; the text is copied. False with an error without a
 * function's name. */
bool tarn__tokenizer_add_chat(tarn_tokenizer *tokenizer, const char *name, const char *text, size_t length);
const tarn__chat_source *tarn__tokenizer_chat(const tarn_tokenizer *tokenizer, const char *name); /* NULL: none */
void tarn__tokenizer_clear_chats(tarn_tokenizer *tokenizer);

/* A special token by its name ("pad_token"), for chat templates. Both are owned by the tokenizer. */
typedef struct tarn__special_token {
    char *name, *text;
} tarn__special_token;

/* The names that every tokenizer of transformers may have; NULL ends them. */
extern const char *const tarn__special_names[];
bool tarn__is_special_name(const char *name);

/* Names a special token in place of another of the same name; name and text are copied. By id: nothing for -1. False
 * with an error without a function's name. */
bool tarn__tokenizer_name_special(tarn_tokenizer *tokenizer, const char *name, const char *text, size_t length);
bool tarn__tokenizer_name_special_id(tarn_tokenizer *tokenizer, const char *name, int64_t id);
const char *tarn__tokenizer_special(const tarn_tokenizer *tokenizer, const char *name); /* NULL: none; borrowed */
void tarn__tokenizer_free_special(tarn_tokenizer *tokenizer);

/* The token of what the vocabulary lacks; -1: none. */
int32_t tarn__tokenizer_unknown(const tarn_tokenizer *tokenizer);

/* Appends the ids (int64_t) of the tokens of a list, as tarn_tokenizer_add_tokens() takes it, each once. False with an
 * error, also for one that the tokenizer lacks. */
bool tarn__tokenizer_listed(const char *function, const tarn_tokenizer *tokenizer, const char *tokens,
                            tarn__buffer *ids);

/* Memory for a result that the caller frees with tarn_tokenizer_release(); its size is stored before it, since the
 * library's allocator wants it back. NULL with an error. */
void *tarn__result_new(size_t bytes);

#endif

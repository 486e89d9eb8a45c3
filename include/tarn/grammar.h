/* grammar.h: structured output: grammars that constrain generated text.
 *
 * A grammar is compiled from GBNF, a regular expression or a JSON Schema to a pushdown automaton over bytes. A matcher
 * follows one text through it and computes the mask of tokens that may come next. Whatever cannot be enforced is an
 * error when the grammar is compiled, with a sentence that names the construct and its position. */
#ifndef TARN_GRAMMAR_H
#define TARN_GRAMMAR_H

#include <tarn/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- vocabularies ------------------------------------------------------------------------------------------------ */

/* The tokens of a tokenizer in a trie of their bytes: created once per model, used by all its grammars. Immutable: any
 * number of threads may use it. */
typedef struct tarn_grammar_vocab tarn_grammar_vocab;

/* Options of tarn_grammar_vocab_new(); zero is every field's default. */
typedef struct tarn_grammar_vocab_options {
    int64_t vocab_size; /* bits of a mask: the model's vocabulary, which may be padded; default: the tokenizer's */
    const int32_t *eos; /* tokens that end a text; default: those of tarn_tokenizer_eos() and _end_of_text() */
    int eos_count;
} tarn_grammar_vocab_options;

/* The trie of a tokenizer. Special tokens and unused ids are in no mask, except the EOS tokens where the grammar may
 * end. A tokenizer whose tokens have no fixed bytes, because they depend on their neighbours, is an error. Does not
 * keep the tokenizer. `...` is a const tarn_grammar_vocab_options *, or NULL. The caller owns it. */
TARN_API tarn_grammar_vocab *tarn_grammar_vocab_new_sized(const tarn_tokenizer *tokenizer,
                                                          const tarn_grammar_vocab_options *options,
                                                          size_t options_size);
#define tarn_grammar_vocab_new(tokenizer, ...) \
    tarn_grammar_vocab_new_sized(tokenizer, __VA_ARGS__, sizeof(tarn_grammar_vocab_options))

/* Bits of a mask; -1 on error. */
TARN_API int64_t tarn_grammar_vocab_size(const tarn_grammar_vocab *vocab);

/* Frees a vocabulary; grammars that use it keep it until they are freed. NULL is allowed; works while an error is
 * pending. */
TARN_API void tarn_grammar_vocab_free(tarn_grammar_vocab *vocab);

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

/* A compiled grammar with the masks computed so far. Any number of threads may use it at once. */
typedef struct tarn_grammar tarn_grammar;

/* Compiles a grammar in llama.cpp's GBNF; its first symbol is `root`. Left recursion is an error. `vocab` may be NULL
 * here and below: the grammar then follows bytes and has no masks. Texts are UTF-8 with a length. The caller owns the
 * result. NULL with an error that names the line. */
TARN_API tarn_grammar *tarn_grammar_gbnf(tarn_grammar_vocab *vocab, const char *text, size_t length);

/* Compiles a regular expression that the whole text matches: literals, classes, \d \w \s (ASCII digits and word
 * characters, Unicode spaces, as in ECMAScript), groups, alternation, greedy and lazy quantifiers, which are equal
 * here, and anchors at the ends. Back references, look-around, word boundaries and flags are errors. */
TARN_API tarn_grammar *tarn_grammar_regex(tarn_grammar_vocab *vocab, const char *pattern, size_t length);

/* Compiles a JSON Schema, as text. Accepted values are in canonical form: members in the order of the schema, only the
 * short escapes in strings with a pattern or format, no exponents in numbers with bounds, and between tokens at most a
 * space, or a newline and its indentation. A keyword that cannot be enforced is an error with its JSON pointer;
 * docs/guide/structured.md lists the others. */
TARN_API tarn_grammar *tarn_grammar_json_schema(tarn_grammar_vocab *vocab, const char *schema, size_t length);

/* Any JSON object. */
TARN_API tarn_grammar *tarn_grammar_json(tarn_grammar_vocab *vocab);

/* ---- matchers ---------------------------------------------------------------------------------------------------- */

/* The position of one text in a grammar. One thread at a time. */
typedef struct tarn_matcher tarn_matcher;

/* A matcher at the beginning of a text, and a copy with its history. The grammar may be freed before its matchers. The
 * caller owns the result. */
TARN_API tarn_matcher *tarn_matcher_new(tarn_grammar *grammar);
TARN_API tarn_matcher *tarn_matcher_clone(const tarn_matcher *matcher);

/* Words of a mask: 32 tokens each. */
#define TARN_MASK_WORDS(vocab_size) (((vocab_size) + 31) / 32)

/* Writes the mask of the next token: bit i % 32 of word i / 32 is set if token i may come next. `words` must be
 * TARN_MASK_WORDS(tarn_grammar_vocab_size()). */
TARN_API bool tarn_matcher_mask(tarn_matcher *matcher, uint32_t *mask, int64_t words);

/* Appends a token, or bytes of text. False, without an error and without a change, if the grammar does not allow
 * them. */
TARN_API bool tarn_matcher_accept(tarn_matcher *matcher, int32_t token);
TARN_API bool tarn_matcher_accept_bytes(tarn_matcher *matcher, const char *bytes, size_t length);

/* True if the text may end here: EOS tokens are in the mask. */
TARN_API bool tarn_matcher_may_end(const tarn_matcher *matcher);

/* True if the text must end here: nothing may follow, or an EOS token was accepted. */
TARN_API bool tarn_matcher_is_done(const tarn_matcher *matcher);

/* Takes back the last `count` calls of accept that returned true. */
TARN_API bool tarn_matcher_rollback(tarn_matcher *matcher, int64_t count);

/* Frees a matcher or a grammar. NULL is allowed; works while an error is pending. */
TARN_API void tarn_matcher_free(tarn_matcher *matcher);
TARN_API void tarn_grammar_free(tarn_grammar *grammar);

#ifdef __cplusplus
}
#endif

#endif

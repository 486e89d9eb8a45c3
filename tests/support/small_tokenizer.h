/* small_tokenizer.h: a tokenizer that is small enough to be written in a test. */
#ifndef TESTS_SMALL_TOKENIZER_H
#define TESTS_SMALL_TOKENIZER_H

/* A tokenizer.json: the 256 bytes under their own numbers, "he" 256, "ll" 257, "llo" 258, " w" 259 by four merges, and
 * the added tokens
 * <|endoftext|> 260, <pad> 261 (which takes the spaces beside it) and <tag> 262 (not special). <|endoftext|> comes
 * before a text. Uses its memory again at the next call. */
const char *small_tokenizer_text(void);

/* A tokenizer.json of Unigram (0), WordPiece (1) or BPE on characters (2). */
#define SMALL_PIPELINES 3
const char *small_pipeline_text(int kind);

/* A text with the first `from` replaced, which must be there. The caller frees it. */
char *replaced(const char *text, const char *from, const char *to);

#endif

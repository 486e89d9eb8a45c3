/* pattern.h: how a text falls into words: a regular expression, run by PCRE2. Without PCRE2 making one raises an error
 * that says so. */
#ifndef TARN__REGEX_H
#define TARN__REGEX_H

#include <stdbool.h>
#include <stddef.h>

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

#endif

/* hf_read_common.h: shared parts of the readers of Hugging Face's tokenizer files, on jansson.
 *
 * Files are not trusted: a member that is missing, of another type or out of range is an error that names the file. A
 * setting that tarn would handle differently from Hugging Face's tokenizers is an error too, never ignored. */
#ifndef TARN__HF_READ_COMMON_H
#define TARN__HF_READ_COMMON_H

#include <jansson.h>

#include "base/os/files.h"
#include "text/tokenizer/tokenizer.h"

/* A tokenizer being read. Both are borrowed. */
typedef struct tarn__hf_reader {
    tarn_tokenizer *tokenizer;
    const char *name; /* path of the file, for errors */
} tarn__hf_reader;

/* Raises an error about the file: "tokenizer_open: 'NAME': …". Returns false. */
bool tarn__hf_raise(const tarn__hf_reader *reader, tarn_code code, const char *format, ...) TARN_PRINTF(3, 4);

/* Parses a file whose root is an object. The caller owns the result. NULL with an error. */
json_t *tarn__hf_load_json(const char *path);

/* Members: a bool that may be missing or null, then it is the default; a string that is required and has no NUL. False
 * or NULL with an error. */
bool tarn__hf_bool(const tarn__hf_reader *reader, json_t *object, const char *key, bool default_value, bool *value);
/* borrowed from the object */
const char *tarn__hf_string(const tarn__hf_reader *reader, json_t *object, const char *key);

/* Parts of tokenizer.json and its companions. False with an error. */
bool tarn__hf_read_vocab(const tarn__hf_reader *reader, json_t *vocabulary, bool byte_level);
bool tarn__hf_read_merge(const tarn__hf_reader *reader, size_t number, const char *left, size_t left_length,
                         const char *right, size_t right_length);
bool tarn__hf_read_merges(const tarn__hf_reader *reader, json_t *merges);
bool tarn__hf_read_spm(const tarn__hf_reader *reader, json_t *root,
                       json_t *model); /* a BPE with byte_fallback, without "unk_token" */
/* A model of a pipeline, with its steps: into tokenizer->pipeline and the part of its kind. */
bool tarn__hf_read_pipeline(const tarn__hf_reader *reader, json_t *root);
bool tarn__hf_read_general(const tarn__hf_reader *reader, json_t *root, json_t *model);
bool tarn__hf_read_added_token(const tarn__hf_reader *reader, json_t *about, int64_t id);
bool tarn__hf_read_pre_tokenizer(const tarn__hf_reader *reader, json_t *pre_tokenizer); /* into bpe.regex */
bool tarn__hf_read_post_processor(const tarn__hf_reader *reader,
                                  json_t *post_processor); /* into tokenizer->before and after */
bool tarn__hf_add_regex(const tarn__hf_reader *reader, const char *pattern);

/* Reads {"50256": {"content": "<|endoftext|>", …}}: calls `read` for each member; a key that is not an integer gives id
 * -1. */
typedef bool (*tarn__hf_token_fn)(const tarn__hf_reader *reader, json_t *about, int64_t id);
bool tarn__hf_read_added_tokens_decoder(const tarn__hf_reader *reader, json_t *list, tarn__hf_token_fn read);

/* A vocabulary of lines and the tokenizer_config.json next to it, whose path is NULL where there is none; `settings` is
 * its content. `read` fills the tokenizer from both. The caller owns the result. NULL with an error. */
typedef bool (*tarn__hf_lines_fn)(const tarn__hf_reader *reader, const tarn__map *map, const char *config,
                                  json_t *settings);
tarn_tokenizer *tarn__hf_read_lines(const tarn__tokenizer_kind *kind, const char *path, const char *config,
                                    tarn__hf_lines_fn read);

/* The length of the line at `at`, without its end; *next is where the next begins. */
size_t tarn__hf_line_at(const tarn__map *map, size_t at, size_t *next);

#endif

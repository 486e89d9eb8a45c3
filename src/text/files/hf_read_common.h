/* hf_read_common.h: reading tokenizers from JSON, on jansson. */
#ifndef TARN__HF_READ_COMMON_H
#define TARN__HF_READ_COMMON_H

#include <jansson.h>

#include "text/tokenizer/tokenizer.h"

/* A tokenizer that is being read. */
typedef struct tarn__hf_reader {
    tarn_tokenizer *tokenizer;
    const char *name; /* of the file, for errors */
} tarn__hf_reader;

/* Raises what is wrong with the file: "tokenizer_open: 'NAME': …". Is false. */
bool tarn__hf_raise(const tarn__hf_reader *reading, tarn_code code, const char *format, ...) TARN_PRINTF(3, 4);

/* The object in a file. The caller owns it. NULL with an error. */
json_t *tarn__hf_load_json(const char *path);

/* A member that must be a text, true or false, or a number where it is there. False with an error. */
bool tarn__hf_bool(const tarn__hf_reader *reading, json_t *object, const char *key, bool otherwise, bool *value);
/* NULL with an error where it is missing */
const char *tarn__hf_string(const tarn__hf_reader *reading, json_t *object, const char *key);

/* Parts of files. False with an error. */
bool tarn__hf_read_vocab(const tarn__hf_reader *reading, json_t *vocabulary, bool byte_level);
bool tarn__hf_read_merge(const tarn__hf_reader *reading, size_t number, const char *left, size_t left_length,
                         const char *right, size_t right_length);
bool tarn__hf_read_merges(const tarn__hf_reader *reading, json_t *merges);
bool tarn__hf_read_spm(const tarn__hf_reader *reading, json_t *root,
                       json_t *model); /* all but "unk_token" and what all models have */
bool tarn__hf_read_added_token(const tarn__hf_reader *reading, json_t *about, int64_t id);
bool tarn__hf_read_pre_tokenizer(const tarn__hf_reader *reading,
                                 json_t *pre_tokenizer); /* what cuts a text into words */
bool tarn__hf_read_post_processor(const tarn__hf_reader *reading, json_t *post_processor); /* what add_special adds */
bool tarn__hf_add_regex(const tarn__hf_reader *reading, const char *pattern);

/* {"50256": {"content": "<|endoftext|>", …}}: each by `read`, with an id of -1 where the text is no number. */
typedef bool (*tarn__hf_token_fn)(const tarn__hf_reader *reading, json_t *about, int64_t id);
bool tarn__hf_read_added_tokens_decoder(const tarn__hf_reader *reading, json_t *list, tarn__hf_token_fn read);

#endif

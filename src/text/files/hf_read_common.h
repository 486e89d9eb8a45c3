/* hf_read_common.h: reading tokenizers from JSON, on jansson. */
#ifndef TARN__TEXT_READ_H
#define TARN__TEXT_READ_H

#include <jansson.h>

#include "text/tokenizer/tokenizer.h"

/* A tokenizer that is being read. */
typedef struct tarn__reading {
    tarn_tokenizer *tokenizer;
    const char *name; /* of the file, for errors */
} tarn__reading;

/* Raises what is wrong with the file: "tokenizer_open: 'NAME': …". Is false. */
bool tarn__read_wrong(const tarn__reading *reading, tarn_code code, const char *format, ...) TARN_PRINTF(3, 4);

/* The object in a file. The caller owns it. NULL with an error. */
json_t *tarn__read_json(const char *path);

/* A member that must be a text, true or false, or a number where it is there. False with an error. */
bool tarn__read_flag(const tarn__reading *reading, json_t *object, const char *key, bool otherwise, bool *value);
/* NULL with an error where it is missing */
const char *tarn__read_text(const tarn__reading *reading, json_t *object, const char *key);

/* Parts of files. False with an error. */
bool tarn__read_vocabulary(const tarn__reading *reading, json_t *vocabulary, bool byte_level);
bool tarn__read_merge(const tarn__reading *reading, size_t number, const char *left, size_t left_length,
                      const char *right, size_t right_length);
bool tarn__read_merges(const tarn__reading *reading, json_t *merges);
bool tarn__read_spm(const tarn__reading *reading, json_t *root,
                    json_t *model); /* all but "unk_token" and what all models have */
bool tarn__read_added(const tarn__reading *reading, json_t *about, int64_t id);
bool tarn__read_splits(const tarn__reading *reading, json_t *pre_tokenizer);  /* what cuts a text into words */
bool tarn__read_around(const tarn__reading *reading, json_t *post_processor); /* what add_special adds */
bool tarn__read_pattern(const tarn__reading *reading, const char *pattern);

/* {"50256": {"content": "<|endoftext|>", …}}: each by `read`, with an id of -1 where the text is no number. */
typedef bool (*tarn__read_token_fn)(const tarn__reading *reading, json_t *about, int64_t id);
bool tarn__read_decoder(const tarn__reading *reading, json_t *list, tarn__read_token_fn read);

#endif

/* ids.h: checks of tokenizers: text to ids and back. */
#ifndef TESTS_IDS_H
#define TESTS_IDS_H

#include <tarn/text.h>

#include "support/check.h"

/* The text has exactly these ids. */
void expect_ids(const tarn_tokenizer *t, const char *text, size_t length, const tarn_encode_options *options,
                const int32_t *ids, int64_t n);
#define EXPECT(tokenizer, text, options, ...) \
    expect_ids(tokenizer, text, sizeof(text) - 1, options, (const int32_t[]){__VA_ARGS__}, \
               (int64_t)(sizeof((const int32_t[]){__VA_ARGS__}) / 4))

/* Its ids give the same bytes back. */
void round_trip(const tarn_tokenizer *t, const char *text, size_t length, const tarn_encode_options *options);

#endif

/* prompt.h: what a language model goes on with: words, a file, standard input, or numbers of tokens. */
#ifndef TARN__PROMPT_H
#define TARN__PROMPT_H

#include <tarn/generate.h>

#include "cli/cli.h"

typedef struct tarn__prompt {
    char *text; /* NULL: there is none, only tokens */
    size_t length;
    int32_t *tokens;
    int64_t count;
} tarn__prompt;

/* Reads the prompt that the options name; the tokenizer is NULL with --ids. An exit status, with a sentence on standard
 * error where it is not TARN__DONE. What is there is freed by tarn__prompt_free() in any case. */
int tarn__prompt_read(tarn__prompt *prompt, const tarn__options *options, const tarn_tokenizer *tokenizer,
                      const tarn_model_info *info);
void tarn__prompt_free(tarn__prompt *prompt);

#endif

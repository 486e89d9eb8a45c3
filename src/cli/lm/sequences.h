/* sequences.h: where the outputs of `tarn generate` come from: a generator, or an engine for several sequences. */
#ifndef TARN__SEQUENCES_H
#define TARN__SEQUENCES_H

#include <tarn/engine.h>

#include "cli/lm/lm_common.h"

/* One of both is NULL; owned. */
typedef struct tarn__sequences {
    tarn_generator *generator;
    tarn_engine *engine;
} tarn__sequences;

/* What is generated; all pointers are borrowed, those of `generator` and `each` by their own rules. */
typedef struct tarn__sequences_plan {
    tarn_module *model;
    const tarn_tokenizer *tokenizer; /* NULL: token ids only */
    const tarn_model_info *info;
    const tarn__prompt *prompt;
    tarn_generator_options generator; /* .context: capacity for prompt and new tokens */
    tarn_generate_options each;       /* .seed is that of the first sequence */
} tarn__sequences_plan;

/* Submits the prompt once per sequence, with consecutive seeds. False with an error. */
bool tarn__sequences_begin(tarn__sequences *s, const tarn__sequences_plan *plan);

/* The next output of any sequence, as of tarn_generator_next(), and how many tokens of its prompt were not computed for
 * it. False when all have ended, or with an error. */
bool tarn__sequences_next(tarn__sequences *s, tarn_output *output, int64_t *cached);

void tarn__sequences_free(tarn__sequences *s);

#endif

/* generate_options.h: what generators and engines make of tarn_generate_options. */
#ifndef TARN__GENERATE_OPTIONS_H
#define TARN__GENERATE_OPTIONS_H

#include <tarn/generate.h>

#include "models/lm/arch.h"

#define TARN__MAX_TOP_LOGPROBS 100

/* Copies the caller's options: fields that an older header lacks are zero. */
tarn_generate_options tarn__generate_options_of(const tarn_generate_options *options, size_t size);

/* Raises invalid stop tokens, stop strings, log probabilities, grammars and biased tokens; the caller adds the
 * function's name. The sampler checks its own options. `tokenizer` may be NULL. */
bool tarn__generate_options_check(const tarn_generate_options *options, const tarn__model_info *info,
                                  const tarn_tokenizer *tokenizer);

/* The options of the sampler. */
tarn_sampler_options tarn__sampler_options_of(const tarn_generate_options *options);

#endif

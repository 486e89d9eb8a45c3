/* lm_common.h: what generate, chat, eval and bench decode share: options that say how a language model is opened. */
#ifndef TARN__CLI_LANGUAGE_H
#define TARN__CLI_LANGUAGE_H

#include <tarn/generate.h>

#include "cli/checkpoint.h"

/* Reads --kv, where it is given, and refuses a --gpu-layers without a device. TARN__DONE, or TARN__MISUSED with a
 * sentence on standard error. */
int tarn__lm_options(const char *command, const tarn__options *options, tarn_kv_type *kv_type);

/* The model whose weights are given, of the first word (cli/checkpoint.h), on --device with --gpu-layers, in --dtype or
 * as it is stored, with its --adapter. The caller owns it. NULL with an error. */
tarn_module *tarn__lm_model(const tarn__options *options, const tarn_run_weights *weights);

/* The tokenizer of the --adapter's folder, where it has one, with the chat template that the adapters were trained
 * with; else the model's. The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__lm_tokenizer(const tarn__options *options);

#endif

/* lm_common.h: shared by generate, chat, eval and bench decode: opening a language model by the options, and reading a
 * prompt. */
#ifndef TARN__LM_COMMON_H
#define TARN__LM_COMMON_H

#include <tarn/generate.h>

#include "cli/cli.h"

/* Parses --kv-type, if given, and checks --gpu-layers. TARN__DONE, or TARN__MISUSED with a message on standard error.
 */
int tarn__lm_options(const char *command, const tarn__options *options, tarn_kv_type *kv_type);

/* Opens the model of the first argument at `weights` (cli/cli.h), on --device with --gpu-layers, in
 * --dtype or as stored, with its --adapter. The caller owns it. NULL with an error. */
tarn_module *tarn__lm_model(const tarn__options *options, const tarn_run_weights *weights);

/* Opens the tokenizer of the --adapter folder, if it has one (with the chat template of its training), else the
 * model's. The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__lm_tokenizer(const tarn__options *options);

/* Bytes of the keys and values of a token in a KV cache. */
int64_t tarn__lm_token_bytes(const tarn_model_info *info, tarn_kv_type kv_type);

/* Checks the options of grammars against each other. TARN__DONE, or TARN__MISUSED with a message on standard error. */
int tarn__lm_grammar_options(const char *command, const tarn__options *options);

/* Compiles the grammar of --grammar, --json-schema, --regex or --json-object for a model; *grammar stays NULL without
 * one of them. The caller owns it. Returns an exit status, with a message on standard error if it is not TARN__DONE. */
int tarn__lm_grammar(const char *command, const tarn__options *options, const tarn_tokenizer *tokenizer,
                     const tarn_model_info *info, tarn_grammar **grammar);

/* Parses --speculate, and checks it against --draft-model and --draft-tokens. TARN__DONE, or TARN__MISUSED with a
 * message on standard error. */
int tarn__lm_speculate_options(const char *command, const tarn__options *options, tarn_speculate *speculate);

/* The options with which --draft-model is opened: the model's, but for what belongs to that one alone. They point to
 * `*word`, which must outlive them. */
tarn__options tarn__lm_draft_options(const tarn__options *options, const char **word);

/* Opens the model and the tokenizer of --draft-model; both stay NULL without it. The caller owns them, after a failure
 * too. Returns an exit status, with a message on standard error if it is not TARN__DONE. */
int tarn__lm_draft(const char *command, const tarn__options *options, tarn_module **draft, tarn_tokenizer **tokenizer);

/* Prints on standard error how many proposed tokens were accepted. */
void tarn__lm_print_speculation(const tarn_generator *generator);

/* A prompt; owns its arrays. */
typedef struct tarn__prompt {
    tarn__input text; /* empty: tokens only */
    int32_t *tokens;
    int64_t count;
} tarn__prompt;

/* Reads the prompt of the options; the tokenizer is NULL with --ids. Returns an exit status, with a message on standard
 * error if it is not TARN__DONE. Call tarn__prompt_free() in any case. */
int tarn__prompt_read(tarn__prompt *prompt, const tarn__options *options, const tarn_tokenizer *tokenizer,
                      const tarn_model_info *info);
void tarn__prompt_free(tarn__prompt *prompt);

#endif

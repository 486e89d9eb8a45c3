/* lm_common.h: shared by generate, chat, eval and bench decode: opening a language model by the options, and reading a
 * prompt. */
#ifndef TARN__LM_COMMON_H
#define TARN__LM_COMMON_H

#include <tarn/engine.h>
#include <tarn/generate.h>

#include "cli/cli.h"

/* Parses --kv-type, if given, and checks --gpu-layers and --tensor-split. TARN__DONE, or TARN__MISUSED with a message
 * on standard error.
 */
int tarn__lm_options(const char *command, const tarn__options *options, tarn_kv_type *kv_type);

/* Opens the model of the first argument at `weights` (cli/cli.h), on --device with --gpu-layers or --tensor-split, in
 * --dtype or as stored, with its --adapter. `cache`: the KV cache, which several devices have room for; only its
 * members are read. The caller owns the model. NULL with an error. */
tarn_module *tarn__lm_model(const tarn__options *options, const tarn_run_weights *weights,
                            const tarn_model_split_options *cache);

/* Checks --tensor-split against --device and --gpu-layers. TARN__DONE, or TARN__MISUSED with a message on standard
 * error. */
int tarn__lm_split_options(const char *command, const tarn__options *options);

/* Plans and prints, on standard error, which layers of the model at `path` go to which of several devices. False with
 * an error. */
bool tarn__lm_split(const tarn__options *options, const char *path, const tarn_model_open_options *how,
                    const tarn_model_split_options *cache, tarn_model_split *split);

/* True if the CPU is the only device. */
bool tarn__lm_on_cpu(const tarn__options *options);

/* Opens the tokenizer of the --adapter folder, if it has one (with the chat template of its training), else the
 * model's. The caller owns it. NULL with an error. */
tarn_tokenizer *tarn__lm_tokenizer(const tarn__options *options);

/* Bytes of the keys and values of a token in a KV cache. */
int64_t tarn__lm_token_bytes(const tarn_model_info *info, tarn_kv_type kv_type);

#define TARN__ENGINE_CONTEXT 8192    /* tokens of a request, for models with more */
#define TARN__ENGINE_KV_TOKENS 65536 /* of all sequences, if --sequences contexts are more */

/* Sets the context, and a KV cache of the engine's type for all its sequences at full length, at most for 65,536
 * tokens, but always for one context. --context and --kv-memory override these. */
void tarn__lm_size_engine(const tarn__options *options, const tarn_model_info *info, tarn_engine_options *engine);

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

/* speculate_options.c: --speculate, --draft-model and --draft-tokens of generate, chat and serve. */
#include <string.h>

#include "cli/lm/lm_common.h"

/* Raises nothing: prints what is wrong. */
static int misuse(const char *command, const char *sentence)
{
    fprintf(stderr, "tarn %s: %s\n", command, sentence);
    return TARN__MISUSED;
}

/* --draft-model alone means --speculate draft. */
int tarn__lm_speculate_options(const char *command, const tarn__options *o, tarn_speculate *speculate)
{
    const char *word = o->speculate;
    bool is_off = word && strcmp(word, "off") == 0, is_ngram = word && strcmp(word, "ngram") == 0,
         is_draft = word ? strcmp(word, "draft") == 0 : o->draft_model != NULL;
    *speculate = is_ngram ? TARN_SPECULATE_NGRAM : is_draft ? TARN_SPECULATE_DRAFT : TARN_SPECULATE_OFF;
    if (word && !is_off && !is_ngram && !is_draft) {
        fprintf(stderr, "tarn %s: --speculate: '%s' must be off, ngram or draft\n", command, tarn__escaped(word));
        return TARN__MISUSED;
    }
    if (is_draft && !o->draft_model)
        return misuse(command, "--speculate draft needs --draft-model");
    if (!is_draft && o->draft_model)
        return misuse(command, "--draft-model needs --speculate draft, or no --speculate");
    if (o->draft_tokens && *speculate == TARN_SPECULATE_OFF)
        return misuse(command, "--draft-tokens needs --speculate ngram or --draft-model");
    return TARN__DONE;
}

tarn__options tarn__lm_draft_options(const tarn__options *o, const char **word)
{
    *word = o->draft_model;
    tarn__options own = *o;
    own.words = (char **)(uintptr_t)word, own.word_count = 1;
    own.adapter = NULL, own.checkpoint = NULL, own.gpu_layers = 0, own.device_count = 1;
    return own;
}

int tarn__lm_draft(const char *command, const tarn__options *o, tarn_module **draft, tarn_tokenizer **tokenizer)
{
    tarn_run_weights weights;
    if (!o->draft_model)
        return TARN__DONE;
    const char *word;
    const tarn__options own = tarn__lm_draft_options(o, &word);
    int status = tarn__checkpoint_use(command, &own, &weights);
    if (status != TARN__DONE)
        return status;
    *draft = tarn__lm_model(&own, &weights, NULL);
    if (*draft && !o->ids)
        *tokenizer = tarn__lm_tokenizer(&own);
    return tarn_failed() ? tarn__print_error(command) : TARN__DONE;
}

/* To standard error, next to the text on standard output. */
void tarn__lm_print_speculation(const tarn_generator *generator)
{
    tarn_generator_stats stats;
    if (generator && tarn_generator_query(generator, &stats))
        fprintf(stderr, "(%lld of %lld proposed tokens accepted, %lld steps)\n", (long long)stats.accepted_tokens,
                (long long)stats.proposed_tokens, (long long)stats.steps);
}

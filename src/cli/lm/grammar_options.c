/* grammar_options.c: the options of generate and chat that constrain the text. */
#include <stdlib.h>
#include <string.h>

#include "cli/lm/lm_common.h"

/* Reads a file and compiles it. */
static int compile_file(const char *command, const char *path, tarn_grammar_vocab *vocab,
                        tarn_grammar *(*compile)(tarn_grammar_vocab *, const char *, size_t), tarn_grammar **grammar)
{
    tarn__input text = {0};
    int status = tarn__input_file(&text, command, path);
    if (status == TARN__DONE)
        *grammar = compile(vocab, text.text ? text.text : "", text.length);
    free(text.text);
    return status;
}

/* A wrong --regex is a wrong argument; a wrong file is a failure. */
static int compile(const char *command, const tarn__options *o, tarn_grammar_vocab *vocab, tarn_grammar **grammar)
{
    int status = TARN__DONE;
    if (o->grammar)
        status = compile_file(command, o->grammar, vocab, tarn_grammar_gbnf, grammar);
    else if (o->json_schema)
        status = compile_file(command, o->json_schema, vocab, tarn_grammar_json_schema, grammar);
    else
        *grammar = o->regex ? tarn_grammar_regex(vocab, o->regex, strlen(o->regex)) : tarn_grammar_json(vocab);
    if (status == TARN__DONE && !*grammar) {
        bool misused = o->regex != NULL;
        tarn__print_error(command);
        return misused ? TARN__MISUSED : TARN__FAILED;
    }
    return status;
}

static int misuse(const char *command, const char *sentence)
{
    fprintf(stderr, "tarn %s: %s\n", command, sentence);
    return TARN__MISUSED;
}

static int count_given(const tarn__options *o)
{
    return (o->grammar != NULL) + (o->json_schema != NULL) + (o->regex != NULL) + o->json_object;
}

/* Checked before the model is opened, which may take long. */
int tarn__lm_grammar_options(const char *command, const tarn__options *o)
{
    int given = count_given(o);
    if (given > 1)
        return misuse(command, "more than one grammar; give one of: --grammar, --json-schema, --regex, --json-object");
    if (given && o->ids)
        return misuse(command, "a grammar needs a tokenizer, and --ids uses none; give one of them");
    if (given && o->ignore_eos)
        return misuse(command, "--ignore-eos and a grammar exclude each other: the text ends with the grammar");
    return TARN__DONE;
}

int tarn__lm_grammar(const char *command, const tarn__options *o, const tarn_tokenizer *tokenizer,
                     const tarn_model_info *info, tarn_grammar **grammar)
{
    if (count_given(o) == 0)
        return TARN__DONE;
    tarn_grammar_vocab *vocab =
        tarn_grammar_vocab_new(tokenizer, &(tarn_grammar_vocab_options){.vocab_size = info->vocab_size});
    int status = vocab ? compile(command, o, vocab, grammar) : tarn__print_error(command);
    tarn_grammar_vocab_free(vocab);
    return status;
}

/* steps.c: lists of steps: their memory, the regexes that their types imply, and their hash. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

/* Unicode's punctuation, and the ASCII signs that are symbols in Unicode. */
#define PUNCTUATION "[!-\\/:-@\\[-`{-~\\p{P}]"
/* Characters that BertNormalizer removes: NUL, U+FFFD, and category C but for tab and line ends. */
#define CONTROL "(?![\\t\\n\\r])[\\x{FFFD}\\p{Cc}\\p{Cf}\\p{Co}]"

/* The regex that a type implies; NULL: none. */
static const char *implied(const tarn__pipeline_step *step)
{
    switch (step->type) {
    case TARN__STEP_STRIP_ACCENTS: return "\\p{M}+";
    case TARN__STEP_PRECOMPILED: return "\\X";
    case TARN__STEP_BERT_NORMALIZER: return CONTROL;
    case TARN__STEP_PUNCTUATION: return PUNCTUATION;
    case TARN__STEP_DIGITS: return "\\p{N}";
    case TARN__STEP_WHITESPACE: return "[" TARN__REGEX_WORD_CHARACTERS "]+|[^" TARN__REGEX_WORD_CHARACTERS "\\s]+";
    case TARN__STEP_WHITESPACE_SPLIT:
    case TARN__STEP_BERT_PRE_TOKENIZER: return "\\s";
    case TARN__STEP_BYTE_LEVEL: return step->use_regex ? TARN__REGEX_GPT2 : NULL;
    default: return step->is_regex ? step->text : NULL;
    }
}

/* The second regex of a type that needs two. */
static const char *implied_other(const tarn__pipeline_step *step)
{
    return step->type == TARN__STEP_BERT_NORMALIZER      ? "\\p{Mn}+"
           : step->type == TARN__STEP_BERT_PRE_TOKENIZER ? PUNCTUATION
                                                         : NULL;
}

/* The step itself is the caller's, or in a list. */
void tarn__step_free(tarn__pipeline_step *step)
{
    tarn__release(step->text, step->text_length + 1);
    tarn__release(step->content, step->content_length + 1);
    tarn__release(step->map, step->map_bytes);
    tarn__regex_free(step->regex);
    tarn__regex_free(step->other);
}

/* The step's strings are freed with an error too. */
bool tarn__steps_add(tarn__buffer *steps, tarn__pipeline_step step, const char *function, const char *name)
{
    const char *regex = implied(&step), *other = implied_other(&step);
    bool good = !tarn_failed() &&
                (steps->count < TARN__MAX_STEPS ||
                 tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': more than %d steps", function, name, TARN__MAX_STEPS));
    if (good && regex)
        good = (step.regex = tarn__regex_new(function, name, regex)) != NULL;
    if (good && other)
        good = (step.other = tarn__regex_new(function, name, other)) != NULL;
    if (good && tarn__buffer_add(steps, &step, 1, sizeof(step)))
        return true;
    tarn__step_free(&step);
    return false;
}

const tarn__pipeline_step *tarn__steps_at(const tarn__buffer *steps, size_t index)
{
    return (const tarn__pipeline_step *)(const void *)steps->data + index;
}

void tarn__steps_free(tarn__buffer *steps)
{
    for (size_t i = 0; i < steps->count; i++)
        tarn__step_free((tarn__pipeline_step *)(void *)steps->data + i);
    tarn__buffer_free(steps, sizeof(tarn__pipeline_step));
}

bool tarn__step_copy(char **field, size_t *length, const char *text, size_t bytes)
{
    if (!(*field = tarn__alloc(bytes + 1)))
        return false;
    memcpy(*field, text, bytes);
    *length = bytes;
    return true;
}

/* Fields that a type does not use are zero, so that all of them can enter. */
static uint64_t hash_steps(const tarn__buffer *steps, uint64_t hash)
{
    for (size_t i = 0; i < steps->count; i++) {
        const tarn__pipeline_step *s = tarn__steps_at(steps, i);
        const unsigned char flags[] = {(unsigned char)s->type,
                                       (unsigned char)s->behavior,
                                       (unsigned char)s->prepend,
                                       s->invert,
                                       s->left,
                                       s->right,
                                       s->is_regex,
                                       s->prefix_space,
                                       s->use_regex,
                                       s->splits,
                                       s->single,
                                       s->cleanup,
                                       s->remove_extra_spaces,
                                       s->clean_text,
                                       s->chinese,
                                       s->lowercase,
                                       s->strip_accents,
                                       (unsigned char)s->start,
                                       (unsigned char)s->stop};
        hash = tarn__hash(flags, sizeof(flags), hash);
        hash = tarn__hash(s->text ? s->text : "", s->text_length, hash);
        hash = tarn__hash(s->content ? s->content : "", s->content_length, hash);
        hash = tarn__hash(s->map ? s->map : "", s->map_bytes, hash);
    }
    return hash;
}

/* Asked for each text: lists have TARN__MAX_STEPS steps at most. */
static bool has_regex(const tarn__buffer *steps)
{
    for (size_t i = 0; i < steps->count; i++)
        if (tarn__steps_at(steps, i)->regex)
            return true;
    return false;
}

/* A build without PCRE2 has no matcher, and needs none for steps without a regex. */
bool tarn__pipeline_matcher(const tarn_tokenizer *t, tarn__encoder *encoder)
{
    bool is_needed = has_regex(&t->pipeline.normalizers) || has_regex(&t->pipeline.pre_tokenizers);
    return encoder->matcher || !is_needed || (encoder->matcher = tarn__matcher_new()) != NULL;
}

/* Decoders do not decide ids. */
uint64_t tarn__pipeline_hash(const tarn__pipeline *pipeline, uint64_t hash)
{
    return hash_steps(&pipeline->pre_tokenizers, hash_steps(&pipeline->normalizers, hash));
}

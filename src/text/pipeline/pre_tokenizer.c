/* pre_tokenizer.c: the pre-tokenizer steps of a pipeline. Each splits a text, or changes it, and hands the parts to the
 * next step; a part that has passed all of them is a word, of which the model gives the ids. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* The arguments of one call, shared by all steps. */
typedef struct walking {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *encoder;
    tarn__buffer *ids;
} walking;

/* `first`: leading bytes of the text that stem from the first character of the input; 0: none. Normalizers may make
 * several words of it. */
static bool walk(const walking *w, size_t level, const char *text, size_t length, size_t first);

/* What is left of `first` in a part that begins at `begin`. */
static size_t first_after(size_t first, size_t begin)
{
    return first > begin ? first - begin : 0;
}

/* ---- splits ------------------------------------------------------------------------------------------------------ */

/* A split in progress. The last part waits, since the next may join it. */
typedef struct splitting {
    const walking *w;
    size_t level; /* of the next step */
    const char *text;
    size_t first; /* see walk() */
    tarn__split_behavior behavior;
    bool waits, was_match;
    size_t begin, end; /* of the waiting part */
} splitting;

static bool flush(splitting *s)
{
    bool waited = s->waits;
    s->waits = false;
    return !waited || walk(s->w, s->level, s->text + s->begin, s->end - s->begin, first_after(s->first, s->begin));
}

/* True if a part joins the waiting one. "a-b" split by "-": Isolated a | - | b, MergedWithPrevious a- | b,
 * MergedWithNext a | -b, Removed a | b; Contiguous joins neighbouring matches. */
static bool joins(const splitting *s, bool is_match)
{
    switch (s->behavior) {
    case TARN__SPLIT_CONTIGUOUS: return is_match == s->was_match;
    case TARN__SPLIT_MERGED_WITH_PREVIOUS: return is_match && !s->was_match;
    case TARN__SPLIT_MERGED_WITH_NEXT: return !is_match && s->was_match;
    default: return false;
    }
}

/* Adds the next part, a match or the text between two. */
static bool add_part(splitting *s, size_t begin, size_t end, bool is_match)
{
    if (begin == end || (is_match && s->behavior == TARN__SPLIT_REMOVED))
        return flush(s);
    bool is_joined = s->waits && joins(s, is_match);
    if (!is_joined && !flush(s))
        return false;
    s->begin = is_joined ? s->begin : begin;
    s->end = end;
    s->was_match = is_match;
    s->waits = true;
    return true;
}

/* With `invert` what lies between matches counts as the match. Nothing is copied: parts point into the text, which
 * lives in a buffer of the level above. */
static bool split(const walking *w, size_t level, const tarn__regex *regex, tarn__split_behavior behavior, bool invert,
                  const char *text, size_t length, size_t first)
{
    splitting s = {.w = w, .level = level, .text = text, .first = first, .behavior = behavior};
    size_t at = 0, begin, end;
    int found = 0;
    while (at < length && (found = tarn__regex_next(regex, w->encoder->matcher, text, length, at, &begin, &end)) == 1) {
        if ((at < begin && !add_part(&s, at, begin, invert)) || !add_part(&s, begin, end, !invert))
            return false;
        at = end;
    }
    return found >= 0 && (at == length || add_part(&s, at, length, invert)) && flush(&s);
}

/* Splits by a string. Matches do not overlap and are found from the left. */
static bool split_string(const walking *w, size_t level, const tarn__pipeline_step *step, const char *text,
                         size_t length, size_t first)
{
    splitting s = {.w = w, .level = level, .text = text, .first = first, .behavior = step->behavior};
    size_t done = 0, size = step->text_length;
    for (size_t at = 0; size > 0 && at + size <= length;) {
        if (memcmp(text + at, step->text, size) != 0) {
            at++;
            continue;
        }
        if ((done < at && !add_part(&s, done, at, step->invert)) || !add_part(&s, at, at + size, !step->invert))
            return false;
        done = at += size;
    }
    return (done == length || add_part(&s, done, length, step->invert)) && flush(&s);
}

/* ---- steps that change text -------------------------------------------------------------------------------------- */

/* Spaces become `replacement`, one is prepended, and the text is split before each. "a b" is "▁a▁b", as words "▁a" and
 * "▁b". FIRST prepends at the beginning of the input only, ALWAYS after added tokens too, but not where a text
 * continues another. */
static bool metaspace(const walking *w, size_t level, const tarn__pipeline_step *step, const char *text, size_t length,
                      size_t first)
{
    tarn__buffer *out = &w->encoder->level[level];
    size_t size = step->text_length;
    bool has_space = length > 0 && (text[0] == ' ' || (length >= size && memcmp(text, step->text, size) == 0));
    bool prepends =
        !has_space && (step->prepend == TARN__PREPEND_ALWAYS ? !w->encoder->continues
                                                             : step->prepend == TARN__PREPEND_FIRST && first > 0);
    out->count = 0;
    bool good = !prepends || tarn__buffer_add(out, step->text, size, 1);
    for (size_t i = 0; good && i < length; i++)
        good = text[i] == ' ' ? tarn__buffer_add(out, step->text, size, 1) : tarn__buffer_add(out, text + i, 1, 1);
    if (!good || !step->splits)
        return good && walk(w, level + 1, out->data, out->count, first > 0);
    const tarn__pipeline_step by = {.behavior = TARN__SPLIT_MERGED_WITH_NEXT, .text = step->text, .text_length = size};
    return split_string(w, level + 1, &by, out->data, out->count, first > 0);
}

/* The words of ByteLevel, each with its bytes as visible characters, for the next step. */
static bool escape_word(const walking *w, size_t level, const char *text, size_t length, size_t first)
{
    tarn__buffer *out = &w->encoder->escaped[level]; /* of the next step, which may escape again */
    /* The last step of a byte-level vocabulary: its words are bytes already, so they are not escaped to be unescaped
     * again. */
    if (level == w->tokenizer->pipeline.pre_tokenizers.count && w->tokenizer->kind == &tarn__kind_bpe)
        return tarn__word_cache_encode(w->tokenizer, w->encoder, text, length, w->tokenizer->kind->word, w->ids);
    out->count = 0;
    return tarn__bytes_to_unicode(out, text, length) && walk(w, level, out->data, out->count, first > 0);
}

/* ByteLevel: GPT-2's regex, if it is used, on text; then bytes as characters. A space is prepended to text that does
 * not begin with one (add_prefix_space). */
static bool byte_level(const walking *w, size_t level, const tarn__pipeline_step *step, const char *text, size_t length,
                       size_t first)
{
    tarn__buffer *out = &w->encoder->level[level];
    if (step->prefix_space && !w->encoder->continues && length > 0 && text[0] != ' ') {
        out->count = 0;
        if (!tarn__buffer_add(out, " ", 1, 1) || !tarn__buffer_add(out, text, length, 1))
            return false;
        text = out->data;
        length = out->count;
    }
    size_t at = 0, begin = 0, end = 0;
    int found = 0;
    while (step->regex && at < length &&
           (found = tarn__regex_next(step->regex, w->encoder->matcher, text, length, at, &begin, &end)) == 1) {
        if ((at < begin && !escape_word(w, level + 1, text + at, begin - at, first_after(first, at))) ||
            !escape_word(w, level + 1, text + begin, end - begin, first_after(first, begin)))
            return false;
        at = end;
    }
    return found >= 0 && (at == length || escape_word(w, level + 1, text + at, length - at, first_after(first, at)));
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* BERT's second split, after whitespace is removed: punctuation. The level's own buffer is free here. */
static bool bert(const walking *w, size_t level, const tarn__pipeline_step *step, const char *text, size_t length,
                 size_t first)
{
    size_t at = 0, begin = 0, end = 0;
    int found = 0;
    while (at < length &&
           (found = tarn__regex_next(step->regex, w->encoder->matcher, text, length, at, &begin, &end)) == 1) {
        if (at < begin && !split(w, level + 1, step->other, TARN__SPLIT_ISOLATED, false, text + at, begin - at,
                                 first_after(first, at)))
            return false;
        at = end;
    }
    return found >= 0 && (at == length || split(w, level + 1, step->other, TARN__SPLIT_ISOLATED, false, text + at,
                                                length - at, first_after(first, at)));
}

/* A word: byte-level vocabularies have bytes, the others text as in the file. */
static bool encode_word(const walking *w, const char *text, size_t length)
{
    const tarn_tokenizer *t = w->tokenizer;
    /* The word was escaped by a ByteLevel step before others. */
    if (t->kind == &tarn__kind_bpe) {
        tarn__buffer *bytes = &w->encoder->unescaped;
        bytes->count = 0;
        if (!tarn__buffer_reserve(bytes, length, 1))
            return false;
        if (!tarn__unicode_to_bytes(bytes->data, &bytes->count, text, length))
            return tarn__raise(TARN_ERROR_INTERNAL, "tokenizer_encode: a word that ByteLevel has not escaped");
        return tarn__word_cache_encode(t, w->encoder, bytes->data, bytes->count, t->kind->word, w->ids);
    }
    return tarn__word_cache_encode(t, w->encoder, text, length, t->kind->word, w->ids);
}

static bool walk(const walking *w, size_t level, const char *text, size_t length, size_t first)
{
    const tarn__buffer *steps = &w->tokenizer->pipeline.pre_tokenizers;
    if (length == 0)
        return true;
    if (level == steps->count)
        return encode_word(w, text, length);
    const tarn__pipeline_step *s = tarn__steps_at(steps, level);
    switch (s->type) {
    case TARN__STEP_METASPACE: return metaspace(w, level, s, text, length, first);
    case TARN__STEP_BYTE_LEVEL: return byte_level(w, level, s, text, length, first);
    case TARN__STEP_BERT_PRE_TOKENIZER: return bert(w, level, s, text, length, first);
    case TARN__STEP_WHITESPACE_SPLIT:
        return split(w, level + 1, s->regex, TARN__SPLIT_REMOVED, false, text, length, first);
    case TARN__STEP_WHITESPACE: return split(w, level + 1, s->regex, TARN__SPLIT_REMOVED, true, text, length, first);
    case TARN__STEP_DIGITS:
        return split(w, level + 1, s->regex, s->single ? TARN__SPLIT_ISOLATED : TARN__SPLIT_CONTIGUOUS, false, text,
                     length, first);
    default:
        return s->regex ? split(w, level + 1, s->regex, s->behavior, s->invert, text, length, first)
                        : split_string(w, level + 1, s, text, length, first);
    }
}

/* Regexes need valid UTF-8. The normalizer has replaced other bytes, but for byte-level vocabularies, where each is a
 * word. */
bool tarn__pipeline_encode(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                           tarn__buffer *ids)
{
    const walking w = {t, encoder, ids};
    size_t first = !encoder->is_inside && !encoder->continues && !encoder->has_moved ? encoder->first_bytes : 0;
    if (!tarn__pipeline_matcher(t, encoder))
        return false;
    for (size_t at = 0; at < length;) {
        size_t valid = tarn__utf8_prefix(text + at, length - at);
        if (!walk(&w, 0, text + at, valid, first_after(first, at)))
            return false;
        at += valid;
        if (at < length && !tarn__word_cache_encode(t, encoder, text + at, 1, t->kind->word, ids))
            return false;
        at += at < length;
    }
    return true;
}

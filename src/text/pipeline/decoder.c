/* decoder.c: the decoder steps of a pipeline, token by token, so that a stream gives the text that a whole list of ids
 * gives. A step before Fuse sees one piece, and whether it is the first; Strip after Fuse sees the whole text, so that
 * its beginning is dropped as it comes and its end waits. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* ---- one piece --------------------------------------------------------------------------------------------------- */

/* The piece being decoded: two buffers take turns. */
typedef struct piece {
    tarn__buffer *now, *other;
} piece;

static bool add(piece *p, const char *bytes, size_t count)
{
    return tarn__buffer_add(p->other, bytes, count, 1);
}

/* What was written becomes the piece; the other buffer is free for the next step. */
static void turn(piece *p)
{
    tarn__buffer *done = p->other;
    p->other = p->now;
    p->now = done;
    p->other->count = 0;
}

/* Replaces every occurrence of a string. */
static bool replace(piece *p, const char *from, size_t from_count, const char *to, size_t to_count)
{
    const char *text = p->now->data;
    size_t length = p->now->count;
    bool good = true;
    /* Matches do not overlap and are searched from the left. An empty string is found nowhere. */
    for (size_t at = 0; good && at < length;) {
        bool is_match = from_count > 0 && length - at >= from_count && memcmp(text + at, from, from_count) == 0;
        good = is_match ? add(p, to, to_count) : add(p, text + at, 1);
        at += is_match ? from_count : 1;
    }
    turn(p);
    return good;
}

static bool replace_word(piece *p, const char *from, const char *to)
{
    return replace(p, from, strlen(from), to, strlen(to));
}

/* The spaces that clean-up removes, in the order of Hugging Face's tokenizers. */
static bool clean_up(piece *p)
{
    static const char *const pairs[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    bool good = true;
    for (size_t i = 0; good && i < sizeof(pairs) / sizeof(pairs[0]); i++)
        good = replace_word(p, pairs[i][0], pairs[i][1]);
    return good;
}

/* A piece that begins with the prefix continues a word; another begins one. WordPiece: "token", "##izer" is
 * "tokenizer"; "a", "b" is "a b". */
static bool join_word(piece *p, const tarn__pipeline_step *s, bool is_first)
{
    size_t count = s->text_length;
    bool continues = p->now->count >= count && memcmp(p->now->data, s->text, count) == 0;
    bool good = true;
    if (!is_first) {
        good = continues ? add(p, p->now->data + count, p->now->count - count)
                         : add(p, " ", 1) && add(p, p->now->data, p->now->count);
        turn(p);
    }
    return good && (!s->cleanup || clean_up(p));
}

/* The first piece has no spaces for U+2581 where encoding prepends one. */
static bool from_metaspace(piece *p, const tarn__pipeline_step *s, bool is_first)
{
    bool drops = is_first && s->prepend != TARN__PREPEND_NEVER;
    return replace(p, s->text, s->text_length, " ", drops ? 0 : 1);
}

/* <0x0A> is the byte 10. */
static bool from_byte_piece(piece *p)
{
    int byte = p->now->count == 6 ? tarn__byte_of_piece(p->now->data, 6) : -1;
    if (byte < 0)
        return true;
    bool good = add(p, &(char){(char)byte}, 1);
    turn(p);
    return good;
}

/* A text with a character that escapes no byte stays. */
static bool from_byte_level(piece *p)
{
    size_t count;
    if (!tarn__buffer_reserve(p->other, p->now->count, 1) ||
        !tarn__unicode_to_bytes(p->other->data, &count, p->now->data, p->now->count))
        return !tarn_failed();
    p->other->count = count;
    turn(p);
    return true;
}

/* Drops the step's character from both ends of a piece. */
static bool strip(piece *p, const tarn__pipeline_step *s)
{
    size_t begin = 0, end = p->now->count, size = s->text_length;
    for (size_t i = 0; i < s->start && end - begin >= size && memcmp(p->now->data + begin, s->text, size) == 0; i++)
        begin += size;
    for (size_t i = 0; i < s->stop && end - begin >= size && memcmp(p->now->data + end - size, s->text, size) == 0; i++)
        end -= size;
    bool good = add(p, p->now->data + begin, end - begin);
    turn(p);
    return good;
}

/* The end of a word is a space before the next piece. */
static bool end_word(piece *p, const tarn__pipeline_step *s, tarn__decode_state *state)
{
    bool had_space = state->has_space;
    size_t count = p->now->count, size = s->text_length;
    state->has_space = size > 0 && count >= size && memcmp(p->now->data + count - size, s->text, size) == 0;
    if (state->has_space)
        p->now->count -= size;
    bool good = (!had_space || add(p, " ", 1)) && add(p, p->now->data, p->now->count);
    turn(p);
    return good && replace(p, s->text, size, " ", 1);
}

/* A step that decodes nothing here, such as Fuse, leaves the piece as it is. */
static bool run(piece *p, const tarn__pipeline_step *s, tarn__decode_state *state)
{
    bool is_first = state->index == 0;
    switch (s->type) {
    case TARN__STEP_REPLACE: return replace(p, s->text, s->text_length, s->content, s->content_length);
    case TARN__STEP_METASPACE: return from_metaspace(p, s, is_first);
    case TARN__STEP_WORDPIECE_DECODER: return join_word(p, s, is_first);
    case TARN__STEP_BYTE_FALLBACK: return from_byte_piece(p);
    case TARN__STEP_BYTE_LEVEL: return from_byte_level(p);
    case TARN__STEP_STRIP_CONTENT: return strip(p, s);
    case TARN__STEP_BPE_DECODER: return end_word(p, s, state);
    default: return true;
    }
}

/* ---- the whole text ---------------------------------------------------------------------------------------------- */

/* The Strip after Fuse; NULL: none. */
static const tarn__pipeline_step *outer_strip(const tarn__pipeline *pipeline, size_t *fuse)
{
    *fuse = pipeline->decoders.count;
    for (size_t i = 0; i < pipeline->decoders.count; i++)
        if (tarn__steps_at(&pipeline->decoders, i)->type == TARN__STEP_FUSE)
            *fuse = i < *fuse ? i : *fuse;
    return *fuse + 1 < pipeline->decoders.count ? tarn__steps_at(&pipeline->decoders, *fuse + 1) : NULL;
}

/* Appends bytes to the text, but for characters that the strip drops or that wait. Bytes at the end that still wait are
 * dropped with the state: they are what Strip removes. */
static bool add_text(const tarn__pipeline_step *s, tarn__decode_state *state, const char *bytes, size_t count,
                     tarn__buffer *out)
{
    bool good = true;
    if (!s)
        return tarn__buffer_add(out, bytes, count, 1);
    for (size_t at = 0, size = s->text_length; good && at < count;) {
        bool is_it = count - at >= size && memcmp(bytes + at, s->text, size) == 0;
        if (is_it && !state->has_text && state->stripped < s->start) {
            state->stripped++;
            at += size;
            continue;
        }
        state->has_text = true;
        if (is_it && state->waiting < s->stop) {
            state->waiting++;
            at += size;
            continue;
        }
        /* A character of the run that waits may be output once another follows it: they are equal. */
        for (; good && !is_it && state->waiting > 0; state->waiting--)
            good = tarn__buffer_add(out, s->text, size, 1);
        good = good && tarn__buffer_add(out, bytes + at, is_it ? size : 1, 1);
        at += is_it ? size : 1;
    }
    return good;
}

/* Without a decoder in the file pieces are joined by spaces. */
bool tarn__pipeline_decode(const tarn_tokenizer *t, tarn__decode_state *state, int32_t id, tarn__buffer *out)
{
    size_t length, fuse;
    const char *bytes = tarn__decoded_bytes(t, id, &length);
    const tarn__pipeline_step *outer = outer_strip(&t->pipeline, &fuse);
    piece p = {&state->buffer[0], &state->buffer[1]};
    p.now->count = p.other->count = 0;
    bool good = (!t->pipeline.joins_by_space || state->index == 0 || tarn__buffer_add(p.now, " ", 1, 1)) &&
                tarn__buffer_add(p.now, bytes, length, 1);
    for (size_t i = 0; good && i < fuse; i++)
        good = run(&p, tarn__steps_at(&t->pipeline.decoders, i), state);
    state->index++;
    return good && add_text(outer, state, p.now->data, p.now->count, out);
}

void tarn__decode_state_free(tarn__decode_state *state)
{
    tarn__buffer_free(&state->buffer[0], 1);
    tarn__buffer_free(&state->buffer[1], 1);
    *state = (tarn__decode_state){0};
}

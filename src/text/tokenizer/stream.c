/* stream.c: text from ids as they come. A token may hold a part of a character: it waits for the rest, so that what
 * goes out is whole characters, and valid UTF-8. What cannot become a character goes out as U+FFFD, once for as many
 * bytes as could have begun one. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

#define REPLACEMENT "\xEF\xBF\xBD"

struct tarn_text_stream {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn_stream_options options;
    tarn__buffer out;
    char waiting[4]; /* the beginning of a character */
    size_t waits;
    bool is_begun; /* a byte has come */
};

tarn_text_stream *tarn_text_stream_new_sized(const tarn_tokenizer *tokenizer, const tarn_stream_options *options,
                                             size_t options_size)
{
    if (tarn_failed())
        return NULL;
    if (!tokenizer) {
        tarn__raise(TARN_ERROR_ARGUMENT, "text_stream_new: a tokenizer is required, not NULL");
        return NULL;
    }
    tarn_text_stream *stream = tarn__alloc(sizeof(*stream));
    if (!stream)
        return NULL;
    stream->tokenizer = tokenizer;
    if (options)
        memcpy(&stream->options, options, options_size < sizeof(*options) ? options_size : sizeof(*options));
    stream->is_begun = stream->options.continues;
    return stream;
}

void tarn_text_stream_free(tarn_text_stream *stream)
{
    if (!stream)
        return;
    tarn__buffer_free(&stream->out, 1);
    tarn__release(stream, sizeof(*stream));
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

typedef enum reach { WHOLE, CUT, WRONG } reach;

/* Whether a byte may be number `place` behind the one that begins a character. */
static bool may_follow(unsigned char first, size_t place, unsigned char byte)
{
    unsigned char least = place > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char most = place > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return byte >= least && byte <= most;
}

/* What bytes begin with: a character, the beginning of one, or bytes (how many) that are none. */
static reach look(const char *bytes, size_t length, size_t *size)
{
    unsigned char first = (unsigned char)bytes[0];
    size_t need = first < 0x80                     ? 1
                  : first >= 0xC2 && first <= 0xDF ? 2
                  : first >= 0xE0 && first <= 0xEF ? 3
                  : first >= 0xF0 && first <= 0xF4 ? 4
                                                   : 0;
    for (*size = 1; *size < need; ++*size) {
        if (*size == length)
            return CUT;
        if (!may_follow(first, *size, (unsigned char)bytes[*size]))
            return WRONG;
    }
    return need ? WHOLE : WRONG;
}

/* A byte comes: it goes out with those that waited, or waits too. */
static bool take(tarn_text_stream *s, char byte)
{
    s->waiting[s->waits++] = byte;
    for (size_t size; s->waits > 0;) {
        reach found = look(s->waiting, s->waits, &size);
        if (found == CUT)
            return true;
        if (!tarn__buffer_add(&s->out, found == WHOLE ? s->waiting : REPLACEMENT,
                              found == WHOLE ? size : strlen(REPLACEMENT), 1))
            return false;
        s->waits -= size;
        memmove(s->waiting, s->waiting + size, s->waits);
    }
    return true;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

/* What is ready, with a 0 behind it. */
static const char *ready(tarn_text_stream *stream, size_t *length)
{
    if (!tarn__buffer_add(&stream->out, "", 1, 1))
        return NULL;
    *length = stream->out.count - 1;
    return stream->out.data;
}

static bool begin(tarn_text_stream *stream, const char *function, size_t *length)
{
    if (length)
        *length = 0;
    if (tarn_failed())
        return false;
    if (!stream || !length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a stream and a place for the length are required, not NULL",
                           function);
    stream->out.count = 0;
    return true;
}

const char *tarn_text_stream_push(tarn_text_stream *stream, int32_t id, size_t *length)
{
    size_t bytes;
    if (!begin(stream, "text_stream_push", length))
        return NULL;
    if (!tarn__vocab_has(&stream->tokenizer->pieces, id)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "text_stream_push: the vocabulary, 0 to %d, has no token for the id %d",
                    (int)stream->tokenizer->pieces.count - 1, (int)id);
        return NULL;
    }
    const char *piece = tarn__vocab_bytes(&stream->tokenizer->pieces, id, &bytes);
    if (stream->options.skip_special && tarn_tokenizer_is_special(stream->tokenizer, id))
        return ready(stream, length);
    size_t at = bytes > 0 && !stream->is_begun && stream->tokenizer->spm.strips && piece[0] == ' ';
    stream->is_begun = stream->is_begun || bytes > 0;
    for (; at < bytes; at++)
        if (!take(stream, piece[at]))
            return NULL;
    return ready(stream, length);
}

const char *tarn_text_stream_end(tarn_text_stream *stream, size_t *length)
{
    if (!begin(stream, "text_stream_end", length))
        return NULL;
    if (stream->waits > 0 && !tarn__buffer_add(&stream->out, REPLACEMENT, strlen(REPLACEMENT), 1))
        return NULL;
    stream->waits = 0;
    stream->is_begun = stream->options.continues;
    return ready(stream, length);
}

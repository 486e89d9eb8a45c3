/* stream.c: text from ids as they are generated. A token may end inside a character: those bytes wait for the rest, so
 * that every output is whole characters and valid UTF-8. Bytes that cannot become a character are replaced by U+FFFD,
 * one per maximal invalid prefix, as Unicode recommends. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

#define REPLACEMENT "\xEF\xBF\xBD"

struct tarn_text_stream {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn_stream_options options;
    tarn__buffer out;
    char waiting[4]; /* bytes of an incomplete character */
    size_t waiting_count;
    bool has_output;          /* a byte was pushed: a leading space is no longer stripped */
    tarn__decode_state state; /* of a pipeline's decoder */
    tarn__buffer decoded;
};

/* A stream that continues other text counts as begun: its leading space is kept. */
tarn_text_stream *tarn_text_stream_new_sized(const tarn_tokenizer *tokenizer, const tarn_stream_options *options,
                                             size_t options_size)
{
    if (tarn_failed())
        return NULL;
    if (!tokenizer) {
        tarn__raise(TARN_ERROR_ARGUMENT, "text_stream_new: tokenizer is NULL");
        return NULL;
    }
    tarn_text_stream *stream = tarn__alloc(sizeof(*stream));
    if (!stream)
        return NULL;
    stream->tokenizer = tokenizer;
    if (options)
        memcpy(&stream->options, options, options_size < sizeof(*options) ? options_size : sizeof(*options));
    stream->has_output = stream->options.continues;
    stream->state.index = stream->options.continues;
    return stream;
}

void tarn_text_stream_free(tarn_text_stream *stream)
{
    if (!stream)
        return;
    tarn__buffer_free(&stream->out, 1);
    tarn__buffer_free(&stream->decoded, 1);
    tarn__decode_state_free(&stream->state);
    tarn__release(stream, sizeof(*stream));
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* What the bytes at hand are. */
typedef enum sequence { COMPLETE, INCOMPLETE, INVALID } sequence;

/* True if a byte may stand at `position` after the first byte. The second byte excludes overlong forms, surrogates and
 * code points above U+10FFFF. */
static bool may_follow(unsigned char first, size_t position, unsigned char byte)
{
    unsigned char low = position > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = position > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return byte >= low && byte <= high;
}

/* Classifies the beginning of bytes: a complete character, an incomplete one, or *size invalid bytes. */
static sequence classify(const char *bytes, size_t length, size_t *size)
{
    unsigned char first = (unsigned char)bytes[0];
    size_t need = first < 0x80                     ? 1
                  : first >= 0xC2 && first <= 0xDF ? 2
                  : first >= 0xE0 && first <= 0xEF ? 3
                  : first >= 0xF0 && first <= 0xF4 ? 4
                                                   : 0;
    for (*size = 1; *size < need; ++*size) {
        if (*size == length)
            return INCOMPLETE;
        if (!may_follow(first, *size, (unsigned char)bytes[*size]))
            return INVALID;
    }
    return need ? COMPLETE : INVALID;
}

/* Adds a byte: it completes or invalidates the waiting ones, which are then output, or waits too. */
static bool push_byte(tarn_text_stream *s, char byte)
{
    s->waiting[s->waiting_count++] = byte;
    for (size_t size; s->waiting_count > 0;) {
        sequence found = classify(s->waiting, s->waiting_count, &size);
        if (found == INCOMPLETE)
            return true;
        if (!tarn__buffer_add(&s->out, found == COMPLETE ? s->waiting : REPLACEMENT,
                              found == COMPLETE ? size : strlen(REPLACEMENT), 1))
            return false;
        s->waiting_count -= size;
        memmove(s->waiting, s->waiting + size, s->waiting_count);
    }
    return true;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

/* The output so far, terminated; borrowed until the next call. NULL with an error. */
static const char *ready(tarn_text_stream *stream, size_t *length)
{
    if (!tarn__buffer_add(&stream->out, "", 1, 1))
        return NULL;
    *length = stream->out.count - 1;
    return stream->out.data;
}

/* Checks the arguments and empties the output of the last call. */
static bool start(tarn_text_stream *stream, const char *function, size_t *length)
{
    if (length)
        *length = 0;
    if (tarn_failed())
        return false;
    if (!stream || !length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: stream or length is NULL", function);
    stream->out.count = 0;
    return true;
}

/* The first leading space is dropped as in tarn_tokenizer_decode(), unless the stream continues other text. */
const char *tarn_text_stream_push(tarn_text_stream *stream, int32_t id, size_t *length)
{
    size_t bytes;
    if (!start(stream, "text_stream_push", length))
        return NULL;
    if (!tarn__vocab_has(&stream->tokenizer->vocab, id)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "text_stream_push: the vocabulary, 0 to %d, has no token for the id %d",
                    (int)stream->tokenizer->vocab.count - 1, (int)id);
        return NULL;
    }
    const char *piece = tarn__decoded_bytes(stream->tokenizer, id, &bytes);
    if (stream->options.skip_special && tarn_tokenizer_is_special(stream->tokenizer, id))
        return ready(stream, length);
    if (!tarn__decodes_pieces(stream->tokenizer)) {
        stream->decoded.count = 0;
        if (!tarn__pipeline_decode(stream->tokenizer, &stream->state, id, &stream->decoded))
            return NULL;
        piece = stream->decoded.data;
        bytes = stream->decoded.count;
    }
    size_t at = bytes > 0 && !stream->has_output && stream->tokenizer->spm.strip_prefix && piece[0] == ' ';
    stream->has_output = stream->has_output || bytes > 0;
    for (; at < bytes; at++)
        if (!push_byte(stream, piece[at]))
            return NULL;
    return ready(stream, length);
}

/* Waiting bytes cannot be completed any more: they become one U+FFFD. The stream can then be used for another text. */
const char *tarn_text_stream_end(tarn_text_stream *stream, size_t *length)
{
    if (!start(stream, "text_stream_end", length))
        return NULL;
    if (stream->waiting_count > 0 && !tarn__buffer_add(&stream->out, REPLACEMENT, strlen(REPLACEMENT), 1))
        return NULL;
    stream->waiting_count = 0;
    stream->has_output = stream->options.continues;
    tarn__decode_state_free(&stream->state);
    stream->state.index = stream->options.continues;
    return ready(stream, length);
}

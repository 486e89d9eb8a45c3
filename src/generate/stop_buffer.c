/* stop_buffer.c: text output with stop strings: text that may be the beginning of a stop string is buffered until it
 * is decided.
 *
 * `text` holds `length` bytes, of which the first `ready` were output by the last settle and are dropped by the next
 * add. */
#include "generate/stop_buffer.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool tarn__stop_buffer_open(tarn__stop_buffer *buffer, const char *const *stops, int count)
{
    *buffer = (tarn__stop_buffer){.stop_count = count};
    if (count == 0)
        return true;
    buffer->stops = tarn__alloc(sizeof(*buffer->stops) * (size_t)count);
    bool good = buffer->stops != NULL;
    for (int i = 0; good && i < count; i++) {
        buffer->stops[i].text = tarn__string_copy(stops[i]);
        buffer->stops[i].length = strlen(stops[i]);
        good = buffer->stops[i].text != NULL;
    }
    if (!good)
        tarn__stop_buffer_close(buffer);
    return good;
}

void tarn__stop_buffer_close(tarn__stop_buffer *buffer)
{
    for (int i = 0; buffer->stops && i < buffer->stop_count; i++)
        tarn__string_free(buffer->stops[i].text);
    tarn__release(buffer->stops, sizeof(*buffer->stops) * (size_t)buffer->stop_count);
    tarn__release(buffer->text, buffer->capacity);
    *buffer = (tarn__stop_buffer){0};
}

#define FIRST_CAPACITY 256

/* Drops the bytes already output and reserves capacity for `more`. */
static bool reserve(tarn__stop_buffer *buffer, size_t more)
{
    size_t left = buffer->length - buffer->ready;
    if (buffer->ready > 0)
        memmove(buffer->text, buffer->text + buffer->ready, left);
    buffer->ready = 0;
    buffer->length = left;
    return tarn__array_reserve(&buffer->text, left, &buffer->capacity, more, 1, FIRST_CAPACITY);
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

/* Offset of the first stop string; buffer->length if there is none. */
static size_t find_stop(const tarn__stop_buffer *buffer)
{
    for (size_t at = 0; at < buffer->length; at++)
        for (int i = 0; i < buffer->stop_count; i++)
            if (buffer->stops[i].length <= buffer->length - at &&
                memcmp(buffer->text + at, buffer->stops[i].text, buffer->stops[i].length) == 0)
                return at;
    return buffer->length;
}

/* Offset of the first suffix that is a proper prefix of a stop string; buffer->length if there is none. */
static size_t find_beginning(const tarn__stop_buffer *buffer)
{
    for (size_t at = 0; at < buffer->length; at++)
        for (int i = 0; i < buffer->stop_count; i++)
            if (buffer->length - at < buffer->stops[i].length &&
                memcmp(buffer->text + at, buffer->stops[i].text, buffer->length - at) == 0)
                return at;
    return buffer->length;
}

/* Text after a stop string is dropped. */
bool tarn__stop_buffer_add(tarn__stop_buffer *buffer, const char *bytes, size_t count)
{
    if (!reserve(buffer, count))
        return false;
    if (count > 0 && !buffer->is_over)
        memcpy(buffer->text + buffer->length, bytes, count);
    buffer->length += buffer->is_over ? 0 : count;
    return true;
}

/* A complete stop string wins over the beginning of another. */
void tarn__stop_buffer_settle(tarn__stop_buffer *buffer, bool is_end)
{
    size_t stop = find_stop(buffer);
    if (stop < buffer->length) {
        buffer->is_over = true;
        buffer->ready = buffer->length = stop;
        return;
    }
    buffer->ready = is_end ? buffer->length : find_beginning(buffer);
}

/* A vocabulary may be padded with tokens without text, or have gaps. */
bool tarn__stop_buffer_add_token(tarn__stop_buffer *buffer, const tarn_tokenizer *tokenizer, tarn_text_stream *stream,
                                 int32_t token, bool is_end)
{
    size_t length = 0;
    const char *text = "";
    if (token >= 0 && token < tarn_tokenizer_count(tokenizer) && tarn_tokenizer_piece(tokenizer, token, NULL))
        text = tarn_text_stream_push(stream, token, &length);
    if (!text || !tarn__stop_buffer_add(buffer, text, length))
        return false;
    if (is_end && (!(text = tarn_text_stream_end(stream, &length)) || !tarn__stop_buffer_add(buffer, text, length)))
        return false;
    tarn__stop_buffer_settle(buffer, is_end);
    return true;
}

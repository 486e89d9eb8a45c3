/* stop_buffer.c: text that is held back until it is certain. */
#include "generate/held.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool tarn__stop_buffer_open(tarn__stop_buffer *held, const char *const *stops, int count)
{
    *held = (tarn__stop_buffer){.stop_count = count};
    if (count == 0)
        return true;
    held->stops = tarn__alloc(sizeof(*held->stops) * (size_t)count);
    bool good = held->stops != NULL;
    for (int i = 0; good && i < count; i++) {
        held->stops[i].text = tarn__string_copy(stops[i]);
        held->stops[i].length = strlen(stops[i]);
        good = held->stops[i].text != NULL;
    }
    if (!good)
        tarn__stop_buffer_close(held);
    return good;
}

void tarn__stop_buffer_close(tarn__stop_buffer *held)
{
    for (int i = 0; held->stops && i < held->stop_count; i++)
        tarn__string_free(held->stops[i].text);
    tarn__release(held->stops, sizeof(*held->stops) * (size_t)held->stop_count);
    tarn__release(held->text, held->capacity);
    *held = (tarn__stop_buffer){0};
}

/* Drops what was given out, and makes room for `more` bytes. */
static bool make_room(tarn__stop_buffer *held, size_t more)
{
    size_t left = held->length - held->given, needed = left + more;
    if (held->given > 0)
        memmove(held->text, held->text + held->given, left);
    held->given = 0;
    held->length = left;
    if (needed <= held->capacity)
        return true;
    size_t capacity = needed < 128 ? 256 : 2 * needed;
    char *text = tarn__alloc(capacity);
    if (!text)
        return false;
    if (left > 0)
        memcpy(text, held->text, left);
    tarn__release(held->text, held->capacity);
    held->text = text;
    held->capacity = capacity;
    return true;
}

/* ---- what is certain --------------------------------------------------------------------------------------------- */

/* Where a stop text begins first; held->length where there is none. */
static size_t find_stop(const tarn__stop_buffer *held)
{
    for (size_t at = 0; at < held->length; at++)
        for (int i = 0; i < held->stop_count; i++)
            if (held->stops[i].length <= held->length - at &&
                memcmp(held->text + at, held->stops[i].text, held->stops[i].length) == 0)
                return at;
    return held->length;
}

/* Where something begins, first, that may become a stop text. */
static size_t find_beginning(const tarn__stop_buffer *held)
{
    for (size_t at = 0; at < held->length; at++)
        for (int i = 0; i < held->stop_count; i++)
            if (held->length - at < held->stops[i].length &&
                memcmp(held->text + at, held->stops[i].text, held->length - at) == 0)
                return at;
    return held->length;
}

bool tarn__stop_buffer_add(tarn__stop_buffer *held, const char *bytes, size_t count)
{
    if (!make_room(held, count))
        return false;
    if (count > 0 && !held->is_over)
        memcpy(held->text + held->length, bytes, count);
    held->length += held->is_over ? 0 : count;
    return true;
}

void tarn__stop_buffer_settle(tarn__stop_buffer *held, bool is_end)
{
    size_t stop = find_stop(held);
    if (stop < held->length) {
        held->is_over = true;
        held->given = held->length = stop;
        return;
    }
    held->given = is_end ? held->length : find_beginning(held);
}

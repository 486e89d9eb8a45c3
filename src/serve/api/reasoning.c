/* reasoning.c: finds the thinking of an answer whose text comes in parts.
 *
 * All text is kept until the content begins, so that a marker in parts is compared as a whole: "</th" at the end of
 * a part stays back until "ink>" or something else comes. From then on texts pass through without a copy. */
#include "serve/api/reasoning.h"

#include <stdlib.h>
#include <string.h>

static const char open_marker[] = "<think>", close_marker[] = "</think>";
enum { OPEN_LENGTH = sizeof(open_marker) - 1, CLOSE_LENGTH = sizeof(close_marker) - 1 };

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool append(tarn__reasoning *r, const char *text, size_t length)
{
    if (r->length + length > r->capacity) {
        size_t capacity = 2 * (r->length + length);
        char *grown = realloc(r->text, capacity);
        if (!grown)
            return false;
        r->text = grown;
        r->capacity = capacity;
    }
    if (length)
        memcpy(r->text + r->length, text, length);
    r->length += length;
    return true;
}

static void skip_space(tarn__reasoning *r)
{
    while (r->at < r->length && is_space(r->text[r->at]))
        r->at++;
}

/* Decides whether the answer thinks, as soon as it can be known. */
static void find_open(tarn__reasoning *r, bool is_last)
{
    size_t begin = r->at;
    while (begin < r->length && is_space(r->text[begin]))
        begin++;
    size_t left = r->length - begin;
    if (memcmp(r->text + begin, open_marker, left < OPEN_LENGTH ? left : OPEN_LENGTH) != 0 ||
        (left < OPEN_LENGTH && is_last)) {
        r->state = TARN__REASONING_NONE;
    } else if (left >= OPEN_LENGTH) {
        r->state = TARN__REASONING_INSIDE;
        r->at = begin + OPEN_LENGTH;
    }
}

/* The end of the thinking that is final: before the marker, or before what may begin one. */
static size_t find_close(const tarn__reasoning *r, bool is_last, bool *is_closed)
{
    for (size_t i = r->at; i < r->length; i++) {
        size_t left = r->length - i;
        if (memcmp(r->text + i, close_marker, left < CLOSE_LENGTH ? left : CLOSE_LENGTH) != 0)
            continue;
        *is_closed = left >= CLOSE_LENGTH;
        return *is_closed || !is_last ? i : r->length;
    }
    return r->length;
}

/* Passes the thinking on that is final; white space only before more of it. */
static void take_inside(tarn__reasoning *r, bool is_last, tarn__reasoning_parts *parts)
{
    bool is_closed = false;
    parts->is_reasoning = true;
    if (!r->has_text) {
        skip_space(r);
        /* nothing of it was passed on so far */
        r->begin = r->end = r->at;
    }
    size_t marker = find_close(r, is_last, &is_closed), end = marker;
    while (end > r->at && is_space(r->text[end - 1]))
        end--;
    if (end > r->at) {
        r->has_text = true;
        parts->reasoning = r->text + r->at;
        parts->reasoning_length = end - r->at;
        r->at = r->end = end;
    }
    if (is_closed) {
        r->at = marker + CLOSE_LENGTH;
        r->state = TARN__REASONING_AFTER;
    }
}

bool tarn__reasoning_push(tarn__reasoning *r, const char *text, size_t length, bool is_last,
                          tarn__reasoning_parts *parts)
{
    *parts = (tarn__reasoning_parts){.content = text, .content_length = length};
    if (r->state == TARN__REASONING_NONE)
        return true;
    *parts = (tarn__reasoning_parts){.reasoning = "", .content = ""};
    if (!append(r, text, length))
        return false;
    if (r->length == 0)
        return true;
    if (r->state == TARN__REASONING_START)
        find_open(r, is_last);
    if (r->state == TARN__REASONING_INSIDE)
        take_inside(r, is_last, parts);
    if (r->state == TARN__REASONING_AFTER) {
        skip_space(r);
        if (r->at < r->length)
            r->state = TARN__REASONING_NONE;
    }
    if (r->state == TARN__REASONING_NONE) {
        parts->content = r->text + r->at;
        parts->content_length = r->length - r->at;
        r->at = r->length;
    }
    return true;
}

bool tarn__reasoning_is_open(const char *text, size_t length)
{
    while (length && is_space(text[length - 1]))
        length--;
    return length >= OPEN_LENGTH && memcmp(text + length - OPEN_LENGTH, open_marker, OPEN_LENGTH) == 0;
}

void tarn__reasoning_close(tarn__reasoning *r)
{
    free(r->text);
    *r = (tarn__reasoning){0};
}

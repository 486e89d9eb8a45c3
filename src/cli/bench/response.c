/* response.c: an HTTP/1.1 response with a stream of events, read as it comes.
 *
 * Buffers are kept over the responses of a connection. `line` collects a line of the head or of the body, `framing`
 * one of the chunks: an event may be cut by chunks at any byte, so the two must not mix. `left` counts bytes of the
 * body or chunk, -1: up to the end of the connection. */
#include "cli/bench/response.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include <jansson.h>

#define LINE_MAX_BYTES ((size_t)1 << 22)

void tarn__response_begin(tarn__response *r, void (*token)(void *ctx), void *ctx)
{
    tarn__input line = r->line, framing = r->framing;
    line.length = framing.length = 0;
    *r = (tarn__response){.line = line, .framing = framing, .left = -1, .token = token, .ctx = ctx, .tokens = -1};
}

void tarn__response_free(tarn__response *r)
{
    free(r->line.text);
    free(r->framing.text);
    r->line = r->framing = (tarn__input){0};
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Of the event before [DONE]; those before it have "usage": null and are not parsed. */
static void read_usage(tarn__response *r, const char *data, size_t length)
{
    json_t *root = json_loadb(data, length, 0, NULL), *usage = json_object_get(root, "usage");
    if (json_is_integer(json_object_get(usage, "completion_tokens"))) {
        r->tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
        r->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
        r->cached =
            json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    json_decref(root);
}

/* True for an event whose member "text" is not empty: most events are not parsed, as there are many. Quotes inside a
 * string follow a backslash. */
static bool has_text(const char *data)
{
    for (const char *at = data; (at = strstr(at, "\"text\"")) != NULL; at += 6) {
        const char *value = at + 6 + strspn(at + 6, " :");
        if (at[-1] != '\\' && value[0] == '"')
            return value[1] != '"';
    }
    return false;
}

/* "data: {…}" or "data: [DONE]"; comments and empty lines are not for us. Only a body of type text/event-stream has
 * events. */
static void read_line(tarn__response *r, const char *line, size_t length)
{
    if (length && line[length - 1] == '\r')
        length--;
    if (!r->is_stream || strncmp(line, "data: ", 6) != 0)
        return;
    const char *data = line + 6;
    if (length == 12 && memcmp(data, "[DONE]", 6) == 0)
        r->is_done = true;
    else if (strncmp(data, "{\"error\"", 8) == 0)
        r->has_error = true;
    else if (has_text(data) && r->token)
        r->token(r->ctx);
    if (strstr(data, "\"usage\":{") || strstr(data, "\"usage\": {"))
        read_usage(r, data, length - 6);
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static void end_head(tarn__response *r)
{
    if (r->status >= 100 && r->status < 200)
        r->status = 0; /* another head follows */
    else if (r->is_chunked)
        r->state = TARN__RESPONSE_CHUNK_SIZE;
    else
        r->state = r->left == 0 ? TARN__RESPONSE_COMPLETE : TARN__RESPONSE_BODY;
}

static void read_header(tarn__response *r, const char *line)
{
    size_t name = strcspn(line, ":");
    const char *value = line[name] ? line + name + 1 + strspn(line + name + 1, " \t") : "";
    if (name == 14 && strncasecmp(line, "Content-Length", name) == 0)
        r->left = strtoll(value, NULL, 10);
    else if (name == 17 && strncasecmp(line, "Transfer-Encoding", name) == 0)
        r->is_chunked = strcasecmp(value, "chunked") == 0;
    else if (name == 10 && strncasecmp(line, "Connection", name) == 0)
        r->closes = strcasecmp(value, "close") == 0;
    else if (name == 11 && strncasecmp(line, "Retry-After", name) == 0)
        r->retry_after = strtoll(value, NULL, 10);
    else if (name == 12 && strncasecmp(line, "Content-Type", name) == 0)
        r->is_stream = strncasecmp(value, "text/event-stream", 17) == 0;
}

/* "HTTP/1.1 200 OK", then headers, then an empty line. */
static void read_head_line(tarn__response *r, char *line)
{
    line[strcspn(line, "\r")] = 0;
    if (!line[0] && r->status)
        end_head(r);
    else if (r->status)
        read_header(r, line);
    else if (strncmp(line, "HTTP/1.", 7) == 0 && strlen(line) >= 12)
        r->status = (int)strtol(line + 9, NULL, 10);
    if (!r->status && line[0])
        r->state = TARN__RESPONSE_MALFORMED;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* The line before a chunk: its size in hexadecimal. */
static void read_size(tarn__response *r, const char *line)
{
    char *end;
    r->left = strtoll(line, &end, 16);
    if (end == line || r->left < 0)
        r->state = TARN__RESPONSE_MALFORMED;
    else
        r->state = r->left ? TARN__RESPONSE_CHUNK : TARN__RESPONSE_TRAILER;
}

static void read_framing(tarn__response *r, char *line)
{
    line[strcspn(line, "\r")] = 0;
    if (r->state == TARN__RESPONSE_CHUNK_SIZE)
        read_size(r, line);
    else if (r->state == TARN__RESPONSE_CHUNK_END)
        r->state = line[0] ? TARN__RESPONSE_MALFORMED : TARN__RESPONSE_CHUNK_SIZE;
    else if (!line[0])
        r->state = TARN__RESPONSE_COMPLETE;
}

/* Adds bytes to the line; true when a line break ended it. `*used` is the number of bytes taken. */
static bool take_line(tarn__response *r, tarn__input *line, const char *bytes, size_t count, size_t *used)
{
    const char *end = memchr(bytes, '\n', count);
    *used = end ? (size_t)(end - bytes) + 1 : count;
    if (line->length + *used > LINE_MAX_BYTES || !tarn__input_add(line, bytes, *used - (end != NULL)))
        r->state = TARN__RESPONSE_MALFORMED;
    return end != NULL;
}

/* Up to the next line break or the end of the chunk, whichever comes first. */
static size_t push_body(tarn__response *r, const char *bytes, size_t count)
{
    size_t used = 0, most = r->left >= 0 && (size_t)r->left < count ? (size_t)r->left : count;
    if (take_line(r, &r->line, bytes, most, &used)) {
        read_line(r, r->line.text, r->line.length);
        r->line.length = 0;
    }
    if (r->left >= 0)
        r->left -= (int64_t)used;
    if (r->left == 0)
        r->state = r->state == TARN__RESPONSE_CHUNK ? TARN__RESPONSE_CHUNK_END : TARN__RESPONSE_COMPLETE;
    return used;
}

/* Stops behind the response, so that bytes of a next one are left to the caller. */
size_t tarn__response_push(tarn__response *r, const char *bytes, size_t count)
{
    size_t at = 0, used;
    while (at < count && r->state < TARN__RESPONSE_COMPLETE) {
        if (r->state == TARN__RESPONSE_BODY || r->state == TARN__RESPONSE_CHUNK) {
            at += push_body(r, bytes + at, count - at);
            continue;
        }
        tarn__input *line = r->state == TARN__RESPONSE_HEAD ? &r->line : &r->framing;
        if (take_line(r, line, bytes + at, count - at, &used)) {
            (r->state == TARN__RESPONSE_HEAD ? read_head_line : read_framing)(r, line->text);
            line->length = 0;
        }
        at += used;
    }
    return at;
}

void tarn__response_end(tarn__response *r)
{
    if (r->state == TARN__RESPONSE_BODY && r->left < 0)
        r->state = TARN__RESPONSE_COMPLETE;
}

#endif

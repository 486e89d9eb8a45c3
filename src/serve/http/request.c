/* request.c: the parser of HTTP requests: request line, headers, bodies by length or in chunks.
 *
 * A state machine that may be given one byte at a time; it takes every byte once, and what follows the request
 * stays with the caller. The head is collected whole and then cut into strings in place; a body by length or in chunks
 * is appended as it comes, so that a large Content-Length alone reserves nothing.
 *
 * Statuses: 400 malformed, 413 body too large, 417 unknown expectation, 421 another scheme than http, 431 head too
 * large, 501 unknown coding, 503 no memory, 505 not HTTP/1. */
#include "serve/http/request.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Parts of a chunked body. "4\r\nWiki\r\n0\r\n\r\n" goes through SIZE, SIZE_LF, DATA, DATA_CR, DATA_LF, SIZE,
 * SIZE_LF, TRAILER and TRAILER_LF. */
enum { CHUNK_SIZE = 0, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_DATA_CR, CHUNK_DATA_LF, TRAILER, TRAILER_LF };

static void refuse(tarn__http_request *r, int status, const char *reason)
{
    r->state = TARN__HTTP_REFUSED;
    r->status = status;
    r->reason = reason;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A character of a method or a header's name, by RFC 9110. */
static bool is_token(char c)
{
    return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Visible, or beyond ASCII. */
static bool is_visible(char c)
{
    unsigned char u = (unsigned char)c;
    return u > 0x20 && u != 0x7f;
}

/* -1: no hexadecimal digit. */
static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* ---- head -------------------------------------------------------------------------------------------------------- */

/* The end of the line that begins at `line`: its CR, which becomes 0. NULL: a CR or LF by itself, or a 0. */
static char *end_line(char *line, char *end)
{
    for (char *c = line; c + 1 < end; c++) {
        if (*c == '\r' && c[1] == '\n') {
            *c = 0;
            return c;
        }
        if (*c == '\r' || *c == '\n' || *c == 0)
            return NULL;
    }
    return NULL;
}

/* A character of a host and port: neither of a path nor the '@' after a user's name, which RFC 9110 (4.2.4) has
 * refused. */
static bool is_authority(char c)
{
    return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("-._~%!$&'()*+,;=:[]", c));
}

/* A target with a whole URL, as to proxies, which every server has to take (RFC 9112, 3.2.2):
 * "http://localhost:80/a" has authority "localhost:80", moved by a character for its end, and path "/a". Returns the
 * path; NULL with or without a refusal. */
static char *read_absolute(tarn__http_request *r, char *target)
{
    static const char scheme[] = "http://";
    size_t length = strlen(scheme), letters = strcspn(target, ":");
    if (strncasecmp(target, scheme, length) != 0) {
        if (letters > 0 && strncmp(target + letters, "://", 3) == 0)
            refuse(r, 421, "the only scheme here is http");
        return NULL;
    }
    char *begin = target + length, *end = begin;
    while (is_authority(*end))
        end++;
    if (end == begin || (*end && *end != '/' && *end != '?'))
        return NULL;
    memmove(begin - 1, begin, (size_t)(end - begin));
    end[-1] = 0;
    r->authority = begin - 1;
    return end;
}

/* Splits a target, which is terminated: a path, a URL, or "*" of OPTIONS. False without a refusal: malformed. */
static bool read_target(tarn__http_request *r, char *target)
{
    bool is_options = strcmp(r->method, "OPTIONS") == 0;
    if (*target != '/' && !(is_options && strcmp(target, "*") == 0) && !(target = read_absolute(r, target)))
        return false;
    size_t length = strcspn(target, "?");
    r->query = target[length] ? target + length + 1 : target + length;
    target[length] = 0;
    r->path = length ? target : "/"; /* "http://localhost?a" */
    return true;
}

/* "GET /a?b=1 HTTP/1.1": method "GET", path "/a", query "b=1", minor 1. False without a refusal: malformed. */
static bool read_request_line(tarn__http_request *r, char *line)
{
    char *c = line;
    while (is_token(*c))
        c++;
    if (c == line || c - line > 16 || *c != ' ')
        return false;
    *c++ = 0;
    r->method = line;
    char *target = c;
    while (is_visible(*c) && *c != '#')
        c++;
    if (*c != ' ')
        return false;
    *c++ = 0;
    if (!read_target(r, target))
        return false;
    if (strncmp(c, "HTTP/", 5) != 0 || !is_digit(c[5]) || c[6] != '.' || !is_digit(c[7]) || c[8])
        return false;
    if (c[5] != '1') {
        refuse(r, 505, "this server speaks HTTP/1.1");
        return false;
    }
    r->minor = c[7] - '0';
    return true;
}

/* "Name: value" between `line` and its end. A space before the colon, or at the line's beginning, is refused rather
 * than removed: servers and proxies that read it in different ways disagree about the request. */
static bool read_header(tarn__http_request *r, char *line, char *end)
{
    char *c = line;
    while (is_token(*c))
        c++;
    if (c == line || *c != ':') {
        refuse(r, 400, "a header is not well-formed");
        return false;
    }
    *c++ = 0;
    while (*c == ' ' || *c == '\t')
        c++;
    while (end > c && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    for (const char *v = c; *v; v++)
        if (!is_visible(*v) && *v != ' ' && *v != '\t') {
            refuse(r, 400, "a header holds a control character");
            return false;
        }
    if (r->header_count == TARN__HTTP_HEADERS_MAX) {
        refuse(r, 431, "the request has too many headers");
        return false;
    }
    r->header[r->header_count++] = (tarn__http_header){line, c};
    return true;
}

static int count_of(const tarn__http_request *r, const char *name)
{
    int count = 0;
    for (int i = 0; i < r->header_count; i++)
        count += strcasecmp(r->header[i].name, name) == 0;
    return count;
}

/* True where a comma-separated list names the token. "keep-alive, Upgrade" names "upgrade": case does not matter. */
static bool list_has(const char *list, const char *token)
{
    size_t length = strlen(token);
    while (list && *list) {
        list += strspn(list, " \t,");
        size_t part = strcspn(list, " \t,");
        if (part == length && strncasecmp(list, token, length) == 0)
            return true;
        list += part;
    }
    return false;
}

/* Digits alone: neither a sign nor "5, 5", which others may take for 5. */
static bool read_length(tarn__http_request *r, const char *text, size_t limit)
{
    size_t length = 0;
    if (!*text) {
        refuse(r, 400, "Content-Length is not a number");
        return false;
    }
    for (; *text; text++) {
        if (!is_digit(*text)) {
            refuse(r, 400, "Content-Length is not a number");
            return false;
        }
        if (length <= limit) /* more digits cannot make it smaller */
            length = length * 10 + (size_t)(*text - '0');
    }
    if (length > limit) {
        refuse(r, 413, "the body is larger than this server takes");
        return false;
    }
    r->remaining = length;
    return true;
}

/* How the body is delimited. False: refused. Without either header there is none. A request with both is how one is
 * smuggled past a proxy that believes the other (RFC 9112, 6.1). */
static bool frame_body(tarn__http_request *r, size_t limit)
{
    const char *length = tarn__http_request_header(r, "Content-Length");
    const char *coding = tarn__http_request_header(r, "Transfer-Encoding");
    if (coding) {
        if (length || r->minor == 0 || count_of(r, "Transfer-Encoding") > 1) {
            refuse(r, 400, "Transfer-Encoding stands beside another length of the body");
            return false;
        }
        if (strcasecmp(coding, "chunked") != 0) {
            refuse(r, 501, "the only Transfer-Encoding here is chunked");
            return false;
        }
        r->is_chunked = true;
        return true;
    }
    if (count_of(r, "Content-Length") > 1) {
        refuse(r, 400, "the request has two Content-Length headers");
        return false;
    }
    return !length || read_length(r, length, limit);
}

/* HTTP/1.1 keeps a connection open unless told otherwise, 1.0 closes it; "close" wins over anything else. HTTP/1.1
 * demands exactly one Host, by which access.h decides. */
static bool read_connection(tarn__http_request *r)
{
    if (r->minor >= 1 && count_of(r, "Host") != 1) {
        refuse(r, 400, "the request needs one Host header");
        return false;
    }
    if (count_of(r, "Host") > 1) {
        refuse(r, 400, "the request has two Host headers");
        return false;
    }
    r->keeps_alive = r->minor >= 1;
    for (int i = 0; i < r->header_count; i++)
        if (strcasecmp(r->header[i].name, "Connection") == 0) {
            if (list_has(r->header[i].value, "close"))
                r->keeps_alive = false;
            else if (r->minor == 0 && list_has(r->header[i].value, "keep-alive"))
                r->keeps_alive = true;
        }
    const char *expect = tarn__http_request_header(r, "Expect");
    if (expect && strcasecmp(expect, "100-continue") != 0) {
        refuse(r, 417, "the only expectation here is 100-continue");
        return false;
    }
    r->expects_continue = expect && r->minor >= 1;
    return true;
}

/* The head is complete: lines become strings of it. `head` never moves again, so pointers into it stay valid. */
static void read_head(tarn__http_request *r, const tarn__http_limits *limits)
{
    char *line = r->head, *all = r->head + r->head_size, *end = end_line(line, all);
    if (!end || !read_request_line(r, line)) {
        if (r->state != TARN__HTTP_REFUSED)
            refuse(r, 400, "the request line is not well-formed");
        return;
    }
    for (line = end + 2; (end = end_line(line, all)) && end != line; line = end + 2)
        if (!read_header(r, line, end))
            return;
    if (!end) {
        refuse(r, 400, "a header holds a control character");
        return;
    }
    if (!read_connection(r) || !frame_body(r, limits->body))
        return;
    r->state = r->is_chunked || r->remaining ? TARN__HTTP_BODY : TARN__HTTP_COMPLETE;
}

/* At least doubles, up to `limit`, which `size` never exceeds. */
static bool reserve(char **buffer, size_t *capacity, size_t size, size_t limit)
{
    if (size <= *capacity)
        return true;
    size_t larger = *capacity < 1024 ? 1024 : *capacity * 2;
    larger = larger < size ? size : larger > limit ? limit : larger;
    char *grown = realloc(*buffer, larger);
    if (!grown)
        return false;
    *buffer = grown;
    *capacity = larger;
    return true;
}

/* Appends up to the empty line that ends the head. An empty line before the request is skipped. Such an empty line
 * is one that an old client sends behind a body (RFC 9112, 2.2). */
static size_t feed_head(tarn__http_request *r, const char *bytes, size_t count, const tarn__http_limits *limits)
{
    size_t used = 0;
    while (used < count) {
        char c = bytes[used];
        if (r->head_size == limits->head) {
            refuse(r, 431, "the headers are larger than this server takes");
            return used;
        }
        if (!reserve(&r->head, &r->head_capacity, r->head_size + 1, limits->head)) {
            refuse(r, 503, "no memory for the request");
            return used;
        }
        used++;
        r->head[r->head_size++] = c;
        if (r->head_size == 2 && memcmp(r->head, "\r\n", 2) == 0)
            r->head_size = 0;
        if (r->head_size >= 4 && memcmp(r->head + r->head_size - 4, "\r\n\r\n", 4) == 0) {
            read_head(r, limits);
            return used;
        }
    }
    return used;
}

/* ---- body -------------------------------------------------------------------------------------------------------- */

/* One byte more than the body, for the 0 behind it. */
static bool append_body(tarn__http_request *r, const char *bytes, size_t count, size_t limit)
{
    if (!reserve(&r->body, &r->body_capacity, r->body_size + count + 1, limit + 1)) {
        refuse(r, 503, "no memory for the request");
        return false;
    }
    memcpy(r->body + r->body_size, bytes, count);
    r->body_size += count;
    r->body[r->body_size] = 0;
    return true;
}

/* The rest of a body or chunk, or as much of it as has come. */
static size_t feed_data(tarn__http_request *r, const char *bytes, size_t count, size_t limit)
{
    size_t part = count < r->remaining ? count : r->remaining;
    if (part && append_body(r, bytes, part, limit))
        r->remaining -= part;
    return part;
}

/* "1f" or "1f;name=value": the size of a chunk. 31, in both cases: extensions are dropped. Digits after the limit
 * are read but no longer counted, so that no number of them overflows. */
static void read_chunk_size(tarn__http_request *r, const tarn__http_limits *limits)
{
    size_t size = 0, digits = 0, at = 0;
    for (; at < r->line_size && hex_value(r->line[at]) >= 0; at++, digits++)
        if (size <= limits->body)
            size = size * 16 + (size_t)hex_value(r->line[at]);
    if (!digits || (at < r->line_size && r->line[at] != ';')) {
        refuse(r, 400, "the size of a chunk is not a hexadecimal number");
        return;
    }
    if (size > limits->body || r->body_size > limits->body - size) {
        refuse(r, 413, "the body is larger than this server takes");
        return;
    }
    r->remaining = size;
    r->line_size = 0;
    r->chunk_state = size ? CHUNK_DATA : TRAILER;
}

/* One byte of a chunk's or trailer's line. */
static void feed_chunk_line(tarn__http_request *r, char c, const tarn__http_limits *limits)
{
    const bool wants_lf =
        r->chunk_state == CHUNK_SIZE_LF || r->chunk_state == CHUNK_DATA_LF || r->chunk_state == TRAILER_LF;
    if (wants_lf ? c != '\n' : r->chunk_state == CHUNK_DATA_CR ? c != '\r' : (c == '\n' || c == 0)) {
        refuse(r, 400, "a chunk is not well-formed");
        return;
    }
    switch (r->chunk_state) {
    case CHUNK_SIZE:
        if (c == '\r')
            r->chunk_state = CHUNK_SIZE_LF;
        else if (r->line_size < sizeof(r->line))
            r->line[r->line_size++] = c;
        else
            refuse(r, 400, "the line of a chunk is too long");
        break;
    case CHUNK_SIZE_LF: read_chunk_size(r, limits); break;
    case CHUNK_DATA_CR: r->chunk_state = CHUNK_DATA_LF; break;
    case CHUNK_DATA_LF: r->chunk_state = CHUNK_SIZE; break;
    case TRAILER: /* trailers are read and dropped */
        if (c == '\r')
            r->chunk_state = TRAILER_LF;
        else if (r->line_size++, r->trailer_size++ > limits->head)
            refuse(r, 431, "the trailers are larger than this server takes");
        break;
    default: /* TRAILER_LF */
        if (!r->line_size)
            r->state = TARN__HTTP_COMPLETE;
        r->line_size = 0;
        r->chunk_state = TRAILER;
    }
}

static size_t feed_chunks(tarn__http_request *r, const char *bytes, size_t count, const tarn__http_limits *limits)
{
    size_t used = 0;
    while (used < count && r->state == TARN__HTTP_BODY) {
        if (r->chunk_state != CHUNK_DATA) {
            feed_chunk_line(r, bytes[used++], limits);
            continue;
        }
        used += feed_data(r, bytes + used, count - used, limits->body);
        if (!r->remaining)
            r->chunk_state = CHUNK_DATA_CR;
    }
    return used;
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

size_t tarn__http_request_feed(tarn__http_request *r, const char *bytes, size_t count, const tarn__http_limits *limits)
{
    size_t used = 0;
    if (r->state == TARN__HTTP_HEAD)
        used = feed_head(r, bytes, count, limits);
    if (r->state != TARN__HTTP_BODY)
        return used;
    if (r->is_chunked)
        return used + feed_chunks(r, bytes + used, count - used, limits);
    used += feed_data(r, bytes + used, count - used, limits->body);
    if (r->state == TARN__HTTP_BODY && !r->remaining)
        r->state = TARN__HTTP_COMPLETE;
    return used;
}

const char *tarn__http_request_host(const tarn__http_request *r)
{
    return r->authority ? r->authority : tarn__http_request_header(r, "Host");
}

const char *tarn__http_request_header(const tarn__http_request *r, const char *name)
{
    for (int i = 0; i < r->header_count; i++)
        if (strcasecmp(r->header[i].name, name) == 0)
            return r->header[i].value;
    return NULL;
}

/* Decodes up to `end` or the end of the text. "a%20b+c" is "a b+c", or "a b c" with has_plus, which holds in queries
 * but not in paths. */
static bool decode(const char *text, char end, bool has_plus, char *value, size_t size)
{
    size_t length = 0;
    for (; *text && *text != end; text++) {
        int c = (unsigned char)(has_plus && *text == '+' ? ' ' : *text);
        if (*text == '%') {
            int high = hex_value(text[1]), low = high < 0 ? -1 : hex_value(text[2]);
            if (low < 0)
                return false;
            c = high * 16 + low;
            text += 2;
        }
        if (!c || length + 1 >= size)
            return false;
        value[length++] = (char)c;
    }
    value[length] = 0;
    return true;
}

bool tarn__http_decode(const char *text, char *value, size_t size)
{
    return decode(text, 0, false, value, size);
}

bool tarn__http_request_parameter(const tarn__http_request *r, const char *name, char *value, size_t size)
{
    size_t length = strlen(name);
    for (const char *at = r->query; at && *at;) {
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return decode(at + length + 1, '&', true, value, size);
        at = strchr(at, '&');
        at = at ? at + 1 : NULL;
    }
    return false;
}

void tarn__http_request_clear(tarn__http_request *r)
{
    free(r->head);
    free(r->body);
    *r = (tarn__http_request){0};
}

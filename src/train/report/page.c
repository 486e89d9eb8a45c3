/* page.c: buffered output of a page.
 *
 * All untrusted strings go through tarn__page_text(), which escapes them: titles, names of data and keys of metrics
 * come from users and files. The first error sets `good` to false and makes all later calls no-ops. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "train/report/report.h"

void tarn__page_flush(tarn__page *page)
{
    page->good = page->good && tarn__output_write(&page->output, page->buffer, page->count);
    page->count = 0;
}

static void put(tarn__page *page, const char *bytes, size_t count)
{
    while (count > 0 && page->good) {
        size_t room = sizeof(page->buffer) - page->count, now = count < room ? count : room;
        memcpy(page->buffer + page->count, bytes, now);
        page->count += now;
        bytes += now;
        count -= now;
        if (page->count == sizeof(page->buffer))
            tarn__page_flush(page);
    }
}

void tarn__page_html(tarn__page *page, const char *html)
{
    put(page, html, strlen(html));
}

void tarn__page_format(tarn__page *page, const char *format, ...)
{
    char text[512];
    /* a fragment that does not fit is a bug, and would break the HTML if truncated */
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    if (length < 0 || (size_t)length >= sizeof(text))
        page->good =
            tarn__raise(TARN_ERROR_INTERNAL,
                        "report_write: a fragment of the page has %d bytes; at most 511 are supported", length);
    else
        put(page, text, (size_t)length);
}

/* Entity of an ASCII character with a meaning in HTML or in attributes, U+FFFD for a control character other than those
 * of lines and tabs; NULL: none. */
static const char *escape_of(char c)
{
    bool is_control = ((unsigned char)c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
    return c == '&'     ? "&amp;"
           : c == '<'   ? "&lt;"
           : c == '>'   ? "&gt;"
           : c == '"'   ? "&quot;"
           : c == '\''  ? "&#39;"
           : is_control ? "\xEF\xBF\xBD"
                        : NULL;
}

/* Invalid UTF-8 becomes U+FFFD, byte by byte. */
void tarn__page_text(tarn__page *page, const char *text)
{
    while (*text) {
        size_t bytes = tarn__utf8_code_point_bytes(text);
        const char *escape = bytes == 0 ? "\xEF\xBF\xBD" : bytes == 1 ? escape_of(*text) : NULL;
        put(page, escape ? escape : text, escape ? strlen(escape) : bytes);
        text += bytes ? bytes : 1;
    }
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* In a box of its own that scrolls sideways: a wide table must not widen the page on a phone. */
void tarn__table_begin(tarn__page *page, const char *title, const char *const *columns, int count)
{
    tarn__page_html(page, "<section class=\"table card\"><h2>");
    tarn__page_text(page, title);
    tarn__page_html(page, "</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for (int i = 0; i < count; i++) {
        tarn__page_format(page, "<th scope=\"col\"><i class=\"c%d\"></i>", i % TARN__COLOURS);
        tarn__page_text(page, columns[i]);
        tarn__page_html(page, "</th>");
    }
    tarn__page_html(page, "</tr></thead>\n<tbody>\n");
}

void tarn__table_end(tarn__page *page)
{
    tarn__page_html(page, "</tbody></table></div></section>\n");
}

/* ---- the frame of a page ----------------------------------------------------------------------------------------- */

/* On the heap: the buffer is too large for small stacks. */
tarn__page *tarn__page_open(const char *path, const char *title, const char *date)
{
    tarn__page *page = tarn__alloc(sizeof(*page));
    if (!page)
        return NULL;
    page->good = tarn__output_open(&page->output, "report_write", path);
    if (!page->good) {
        tarn__release(page, sizeof(*page));
        return NULL;
    }
    tarn__page_html(page, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                          "content=\"width=device-width,initial-scale=1\">\n<title>");
    tarn__page_text(page, title);
    tarn__page_html(page, "</title>\n<style>\n");
    tarn__page_html(page, tarn__page_style);
    tarn__page_html(page, tarn__page_text_style);
    tarn__page_html(page, "</style></head>\n<body><main>\n<h1>");
    tarn__page_text(page, title);
    tarn__page_html(page, "</h1>\n");
    if (date) {
        tarn__page_html(page, "<p class=\"date\">");
        tarn__page_text(page, date);
        tarn__page_html(page, "</p>\n");
    }
    return page;
}

/* An atomic write: readers see the old page or the new one. */
bool tarn__page_close(tarn__page *page)
{
    tarn__page_format(page, "<footer>tarn %s</footer>\n</main>\n<script>\n", tarn_version());
    tarn__page_html(page, tarn__page_script);
    tarn__page_html(page, "</script>\n</body></html>\n");
    tarn__page_flush(page);
    bool good = page->good && tarn__output_commit(&page->output);
    if (!page->good)
        tarn__output_discard(&page->output);
    tarn__release(page, sizeof(*page));
    return good;
}

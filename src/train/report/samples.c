/* samples.c: texts that a language model generated during a run: samples.jsonl, and the section of the page with them.
 *
 * A line is {"step": 500, "text": "…"}; others are left out: a page is not worth the end of a run. The page shows the
 * first sample, the last one, and some evenly spaced between them, so that its size does not grow with the run. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "formats/json_file.h"
#include "train/report/report.h"

#define MAX_SHOWN 8
#define MAX_BYTES 2000 /* of a sample that are shown */
#define REPLACEMENT "\xEF\xBF\xBD"

/* ---- writing samples.jsonl --------------------------------------------------------------------------------------- */

/* A copy of the text as valid UTF-8 without zeros, of up to 3 * length + 1 bytes: a sample may end within a code
 * point. */
static void copy_valid(const char *text, size_t length, char *to)
{
    for (size_t at = 0; at < length;) {
        uint32_t code;
        size_t bytes = tarn__utf8_decode(text + at, length - at, &code);
        bool is_good = bytes > 0 && code != 0;
        memcpy(to, is_good ? text + at : REPLACEMENT, is_good ? bytes : strlen(REPLACEMENT));
        to += is_good ? bytes : strlen(REPLACEMENT);
        at += bytes > 0 ? bytes : 1;
    }
    *to = 0;
}

bool tarn__samples_append(const char *function, const char *path, int64_t step, const char *text, size_t length)
{
    size_t size = strlen(REPLACEMENT) * length + 1;
    char *valid = tarn_failed() ? NULL : tarn__alloc(size);
    if (!valid)
        return false;
    copy_valid(text, length, valid);
    tarn__json_file *line = tarn__json_file_new(function);
    bool good = line && tarn__json_file_set_int(line, "step", step) &&
                tarn__json_file_set_string(line, "text", valid) && tarn__json_file_append(line, path);
    tarn__json_file_free(line);
    tarn__release(valid, size);
    return good;
}

/* ---- the section of the page ------------------------------------------------------------------------------------- */

/* The text, cut between two code points if it is long. */
static void write_text(tarn__page *page, const char *text)
{
    char cut[MAX_BYTES + 8];
    size_t length = strlen(text);
    if (length > MAX_BYTES) {
        length = MAX_BYTES;
        while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
            length--;
        memcpy(cut, text, length);
        strcpy(cut + length, " …");
        text = cut;
    }
    tarn__page_html(page, "<pre>");
    tarn__page_text(page, text);
    tarn__page_html(page, "</pre>");
}

static void write_sample(tarn__page *page, const char *path, const char *line, size_t length)
{
    int64_t step;
    char number[64];
    tarn__json_file *sample = tarn__json_file_parse("report_write", path, line, length);
    const char *text = sample && tarn__json_file_int(sample, "step", 0, INT64_MAX, &step)
                           ? tarn__json_file_string(sample, "text")
                           : NULL;
    if (text) {
        tarn__step_text((double)step, number, sizeof(number));
        tarn__page_format(page, "<li><h3>step %s</h3>", number);
        write_text(page, text);
        tarn__page_html(page, "</li>\n");
    } else if (tarn_error_code() == TARN_ERROR_MEMORY) {
        page->good = false;
    } else {
        tarn_clear_error();
    }
    tarn__json_file_free(sample);
}

/* Complete lines; a last one without a newline is truncated. */
static int64_t count_lines(const tarn__map *map)
{
    int64_t count = 0;
    for (size_t i = 0; i < map->bytes; i++)
        count += map->memory[i] == '\n';
    return count;
}

/* Line i of n is shown if it is the first of those that fall on one of the MAX_SHOWN positions; the last one always. */
static bool is_shown(int64_t i, int64_t count)
{
    return count <= MAX_SHOWN || i == 0 || i * (MAX_SHOWN - 1) / (count - 1) != (i - 1) * (MAX_SHOWN - 1) / (count - 1);
}

void tarn__samples_write(tarn__page *page, const char *path)
{
    tarn__map map;
    if (!path || !page->good || !tarn__path_exists(path))
        return;
    page->good = tarn__map_open(&map, "report_write", path);
    if (!page->good)
        return;
    int64_t count = count_lines(&map);
    const char *at = map.memory;
    tarn__page_html(page, count ? "<section class=\"samples card\"><h2>Samples</h2>\n<ol>\n" : "");
    for (int64_t i = 0; i < count && page->good; i++) {
        const char *end = memchr(at, '\n', map.bytes - (size_t)(at - map.memory));
        if (is_shown(i, count))
            write_sample(page, path, at, (size_t)(end - at));
        at = end + 1;
    }
    tarn__page_html(page, count ? "</ol></section>\n" : "");
    tarn__map_close(&map);
}

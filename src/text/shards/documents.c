/* documents.c: iterates over the documents of a file. Files are mapped: a text file is passed on without a copy. */
#include "text/shards/shards.h"

#include <string.h>

#include "base/os/files.h"

bool tarn__is_jsonl(const char *path, bool all)
{
    size_t length = strlen(path);
    return all || (length > 6 && strcmp(path + length - 6, ".jsonl") == 0);
}

size_t tarn__line_length(const char *text, size_t length)
{
    const char *end = memchr(text, '\n', length);
    return end ? (size_t)(end - text) : length;
}

/* Lines of Windows files end in \r\n: a \r alone is blank. */
bool tarn__is_blank_line(const char *line, size_t length)
{
    while (length > 0 && (*line == ' ' || *line == '\t' || *line == '\r'))
        line++, length--;
    return length == 0;
}

/* Documents of JSON lines; blank lines are skipped but counted. */
static bool each_line(const char *function, const char *path, const char *field, const tarn__map *map,
                      tarn__document_fn take, void *ctx)
{
    tarn__buffer text = {0};
    const char *lines = map->memory;
    int64_t number = 1;
    bool good = true;
    for (size_t at = 0, length; good && at < map->bytes; at += length + 1, number++) {
        length = tarn__line_length(lines + at, map->bytes - at);
        if (tarn__is_blank_line(lines + at, length))
            continue;
        text.count = 0;
        good = tarn__jsonl_text(function, &text, lines + at, length, field, path, number) &&
               take(ctx, text.data ? text.data : "", text.count);
    }
    tarn__buffer_free(&text, 1);
    return good;
}

bool tarn__each_document(const char *function, const char *path, const char *field, bool all_lines,
                         tarn__document_fn take, void *ctx)
{
    tarn__map map;
    if (!tarn__map_open(&map, function, path))
        return false;
    bool good = tarn__is_jsonl(path, all_lines) ? each_line(function, path, field ? field : "text", &map, take, ctx)
                                                : take(ctx, map.bytes ? map.memory : "", map.bytes);
    tarn__map_close(&map);
    return good;
}

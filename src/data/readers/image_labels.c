/* image_labels.c: labels.csv: an image file and its class per line.
 *
 * Fields are separated by a comma and may be quoted, with "" for a quote; lines end in LF or CRLF. A first line whose
 * first field has no ending of an image is a header. */
#include <string.h>

#include "data/readers/image_folder.h"

enum { MAX_FIELD = 4096 }; /* bytes of a path or a class name */

typedef struct reader {
    tarn__data_input input;
    int64_t line;
    size_t at, count;
    unsigned char buffer[4096];
    char field[2][MAX_FIELD]; /* file and label of the line */
} reader;

/* The next byte, consumed; -1 at the end or with an error. */
static int next(reader *r)
{
    if (r->at == r->count) {
        int64_t got = tarn__data_input_read_some(&r->input, r->buffer, sizeof(r->buffer));
        if (got <= 0)
            return -1;
        r->at = 0;
        r->count = (size_t)got;
    }
    return r->buffer[r->at++];
}

static bool bad(const reader *r, const char *what)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: line %lld %s", r->input.function, r->input.path, (long long)r->line,
                       what);
}

/* Adds a byte to field `index`; fields after the second are read and dropped. */
static bool put(reader *r, int index, size_t *length, int c)
{
    if (c == 0)
        return bad(r, "has a byte 0");
    if (index > 1)
        return true;
    if (*length + 1 >= MAX_FIELD)
        return bad(r, "has a field of more than 4095 bytes");
    r->field[index][(*length)++] = (char)c;
    r->field[index][*length] = 0;
    return true;
}

/* Reads a line into r->field. Returns the number of its fields, 0 for an empty line; -1 at the end or with an error. */
static int read_line(reader *r)
{
    int index = 0, c;
    size_t length = 0;
    bool is_quoted = false, is_empty = true;
    r->field[0][0] = r->field[1][0] = 0;
    r->line++;
    while ((c = next(r)) >= 0 && (is_quoted || c != '\n')) {
        if (c == '\r' && !is_quoted)
            continue;
        is_empty = false;
        if (c == '"' && (is_quoted || length == 0)) {
            is_quoted = !is_quoted;
            if (is_quoted || r->at == r->count || r->buffer[r->at] != '"')
                continue;
            is_quoted = true; /* a doubled quote inside quotes; across two buffers it ends them, and is then an error */
            c = next(r);
        } else if (c == ',' && !is_quoted) {
            index++;
            length = 0;
            continue;
        }
        if (!put(r, index, &length, c))
            return -1;
    }
    if (tarn_failed() || (is_quoted && !bad(r, "has a quote that does not end")))
        return -1;
    return c < 0 && is_empty ? -1 : is_empty ? 0 : index + 1;
}

static bool read_lines(reader *r, tarn__image_folder *folder)
{
    for (int fields = read_line(r); fields >= 0; fields = read_line(r)) {
        const char *file = r->field[0], *label = r->field[1], *ending = strrchr(file, '.');
        if (fields == 0 || (r->line == 1 && !ending))
            continue;
        if (fields < 2 || !file[0] || !label[0])
            return bad(r, "needs an image file and its class: file,label");
        if (!tarn__image_folder_add(folder, file, label))
            return false;
    }
    return !tarn_failed();
}

bool tarn__image_labels_read(tarn__image_folder *folder, const char *path)
{
    reader *r = tarn__alloc(sizeof(*r));
    if (!r)
        return false;
    bool good = tarn__data_input_open(&r->input, "dataset_images", path) && read_lines(r, folder);
    tarn__data_input_close(&r->input);
    tarn__release(r, sizeof(*r));
    return good;
}

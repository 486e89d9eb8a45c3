/* input.c: plain files, and the face of compressed ones. */
#include "data/readers/input.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/os/files.h"
#include "base/os/platform.h"

#define MOST_INFLATION 1032 /* deflate makes at most so many bytes of one */

bool tarn__data_input_raise(const tarn__data_input *source, int64_t byte, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: byte %lld%s: %s", source->function, source->path, (long long)byte,
                       source->gzip ? " of the contents" : "", text);
}

static bool raise_io(const tarn__data_input *source, const char *what, int error)
{
    return tarn__raise(TARN_ERROR_IO, "%s: %s: %s: %s", source->function, source->path, what, strerror(error));
}

bool tarn__data_input_open(tarn__data_input *source, const char *function, const char *path)
{
    unsigned char magic[2];
    *source = (tarn__data_input){.function = function, .path = path ? path : "?"};
    if (tarn_failed())
        return false;
    if (!path)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the path is NULL", function);
    source->file_bytes = tarn__platform_file_bytes(path);
    if (source->file_bytes < 0)
        return source->file_bytes == -1 ? raise_io(source, "cannot be read", errno)
                                        : tarn__raise(TARN_ERROR_IO, "%s: %s is no plain file", function, path);
    source->file = tarn__file_open(path);
    if (!source->file)
        return raise_io(source, "cannot be opened", errno);
    bool is_gzip = fread(magic, 1, 2, source->file) == 2 && magic[0] == 0x1F && magic[1] == 0x8B;
    rewind(source->file);
    if (is_gzip)
        source->gzip = tarn__gzip_open(source);
    return !is_gzip || source->gzip;
}

void tarn__data_input_close(tarn__data_input *source)
{
    tarn__gzip_close(source->gzip);
    if (source->file)
        fclose(source->file);
    source->gzip = NULL;
    source->file = NULL;
}

int64_t tarn__data_input_remaining(const tarn__data_input *source)
{
    int64_t most = source->file_bytes;
    if (source->gzip)
        most = most > INT64_MAX / MOST_INFLATION ? INT64_MAX : most * MOST_INFLATION;
    return most > source->at ? most - source->at : 0;
}

int64_t tarn__data_input_read_some(tarn__data_input *source, void *memory, size_t bytes)
{
    int64_t got;
    if (source->gzip) {
        got = tarn__gzip_read(source->gzip, source, memory, bytes);
    } else {
        got = (int64_t)fread(memory, 1, bytes, source->file);
        if (ferror(source->file)) {
            raise_io(source, "cannot be read", errno);
            return -1;
        }
    }
    if (got > 0)
        source->at += got;
    return got;
}

bool tarn__data_input_read(tarn__data_input *source, void *memory, size_t bytes, const char *what)
{
    int64_t got = tarn__data_input_read_some(source, memory, bytes);
    if (got < 0)
        return false;
    return got == (int64_t)bytes ||
           tarn__data_input_bad(source, source->at, "the file ends here, inside %s (%lld of %zu bytes)", what,
                                (long long)got, bytes);
}

bool tarn__data_input_fits(const tarn__data_input *source, tarn_shape shape, size_t element_bytes)
{
    uint64_t left = (uint64_t)tarn__data_input_remaining(source) / element_bytes;
    for (int i = 0; i < shape.rank; i++)
        if (shape.size[i] == 0)
            return true;
    for (int i = 0; i < shape.rank; i++)
        left /= (uint64_t)shape.size[i]; /* whole numbers: 0 as soon as the product is too large */
    return left > 0;
}

bool tarn__data_input_expect_end(tarn__data_input *source, const char *what)
{
    char more;
    int64_t got = tarn__data_input_read_some(source, &more, 1);
    return got == 0 ||
           (got > 0 && tarn__data_input_bad(source, source->at - 1, "%s end here, but the file goes on", what));
}

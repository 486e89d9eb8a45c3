/* input.c: plain files, and the interface to gzip.c for compressed ones. A compressed file is known by its first two
 * bytes; readers see its contents only. Positions count bytes of the contents, so that errors name what a reader
 * sees. */
#include "data/readers/input.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/os/files.h"
#include "base/os/platform.h"

#define MAX_INFLATION 1032 /* deflate's maximum ratio: bytes out per byte in */

/* The position is that of the contents: for gzip it is not the position in the file, and the message says so. */
bool tarn__data_input_raise(const tarn__data_input *input, int64_t byte, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: byte %lld%s: %s", input->function, input->path, (long long)byte,
                       input->gzip ? " of the contents" : "", text);
}

/* Raises an error of the operating system. Returns false. */
static bool raise_io(const tarn__data_input *input, const char *what, int error)
{
    return tarn__raise(TARN_ERROR_IO, "%s: %s: %s: %s", input->function, input->path, what, strerror(error));
}

/* With an error too the caller closes the input. */
bool tarn__data_input_open(tarn__data_input *input, const char *function, const char *path)
{
    unsigned char magic[2];
    *input = (tarn__data_input){.function = function, .path = path ? path : "?"};
    if (tarn_failed())
        return false;
    if (!path)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: path is NULL", function);
    input->file_bytes = tarn__platform_file_bytes(path);
    if (input->file_bytes < 0)
        return input->file_bytes == -1 ? raise_io(input, "cannot be read", errno)
                                       : tarn__raise(TARN_ERROR_IO, "%s: %s is not a regular file", function, path);
    input->file = tarn__file_open(path);
    if (!input->file)
        return raise_io(input, "cannot be opened", errno);
    bool is_gzip = fread(magic, 1, 2, input->file) == 2 && magic[0] == 0x1F && magic[1] == 0x8B;
    rewind(input->file);
    if (is_gzip)
        input->gzip = tarn__gzip_open(input);
    return !is_gzip || input->gzip;
}

void tarn__data_input_close(tarn__data_input *input)
{
    tarn__gzip_close(input->gzip);
    if (input->file)
        fclose(input->file);
    input->gzip = NULL;
    input->file = NULL;
}

/* `at` counts decompressed bytes, so the bound of a gzip file shrinks as it is read. */
int64_t tarn__data_input_remaining(const tarn__data_input *input)
{
    int64_t bound = input->file_bytes;
    if (input->gzip)
        bound = bound > INT64_MAX / MAX_INFLATION ? INT64_MAX : bound * MAX_INFLATION;
    return bound > input->at ? bound - input->at : 0;
}

/* Fewer bytes than asked for only at the end; -1 with an error. */
int64_t tarn__data_input_read_some(tarn__data_input *input, void *memory, size_t bytes)
{
    int64_t got;
    if (input->gzip) {
        got = tarn__gzip_read(input->gzip, input, memory, bytes);
    } else {
        got = (int64_t)fread(memory, 1, bytes, input->file);
        if (ferror(input->file)) {
            raise_io(input, "cannot be read", errno);
            return -1;
        }
    }
    if (got > 0)
        input->at += got;
    return got;
}

bool tarn__data_input_read(tarn__data_input *input, void *memory, size_t bytes, const char *what)
{
    int64_t got = tarn__data_input_read_some(input, memory, bytes);
    if (got < 0)
        return false;
    return got == (int64_t)bytes ||
           tarn__data_input_bad(input, input->at, "the file ends here, inside %s (%lld of %zu bytes)", what,
                                (long long)got, bytes);
}

/* Asked before memory is allocated by sizes that a file claims. */
bool tarn__data_input_fits(const tarn__data_input *input, tarn_shape shape, size_t element_bytes)
{
    uint64_t left = (uint64_t)tarn__data_input_remaining(input) / element_bytes;
    for (int i = 0; i < shape.rank; i++)
        if (shape.size[i] == 0)
            return true;
    for (int i = 0; i < shape.rank; i++)
        left /= (uint64_t)shape.size[i]; /* cannot overflow, unlike the product; 0 once the product is too large */
    return left > 0;
}

bool tarn__data_input_expect_end(tarn__data_input *input, const char *what)
{
    char more;
    int64_t got = tarn__data_input_read_some(input, &more, 1);
    return got == 0 ||
           (got > 0 && tarn__data_input_bad(input, input->at - 1, "%s end here, but more bytes follow", what));
}

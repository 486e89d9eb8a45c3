/* gzip.c: gzip files through zlib, and stubs that raise an error in a build without it.
 *
 * A file is one gzip member or several in a row, as `cat a.gz b.gz` writes them; other bytes after a member are an
 * error. */
#include "data/readers/input.h"
#include "tarn_features.h"

#if TARN__HAVE_ZLIB

#include <zlib.h>

#define INPUT_BYTES ((size_t)64 << 10)
#define MAX_ROUND ((size_t)1 << 30) /* bytes per call: zlib counts in unsigned int */

struct tarn__gzip {
    z_stream stream;
    bool is_between; /* a member has ended: the file may end here */
    unsigned char input[INPUT_BYTES];
};

/* Position in the compressed file of the next byte that zlib reads. */
static int64_t position(const struct tarn__gzip *gzip, const tarn__data_input *input_file)
{
    return (int64_t)ftell(input_file->file) - (int64_t)gzip->stream.avail_in;
}

struct tarn__gzip *tarn__gzip_open(const tarn__data_input *input_file)
{
    struct tarn__gzip *gzip = tarn__alloc(sizeof(*gzip));
    /* 16: expect gzip headers; each member's checksum is verified by inflate(). */
    if (gzip && inflateInit2(&gzip->stream, 16 + MAX_WBITS) == Z_OK)
        return gzip;
    tarn__raise(TARN_ERROR_MEMORY, "%s: %s: no memory for the decompressor", input_file->function, input_file->path);
    tarn__release(gzip, sizeof(*gzip));
    return NULL;
}

void tarn__gzip_close(struct tarn__gzip *gzip)
{
    if (!gzip)
        return;
    inflateEnd(&gzip->stream);
    tarn__release(gzip, sizeof(*gzip));
}

/* Refills the input buffer if it is empty. False at the end of the file, or with an error. */
static bool refill(struct tarn__gzip *gzip, const tarn__data_input *input_file)
{
    if (gzip->stream.avail_in > 0)
        return true;
    gzip->stream.next_in = gzip->input;
    gzip->stream.avail_in = (unsigned)fread(gzip->input, 1, INPUT_BYTES, input_file->file);
    if (ferror(input_file->file))
        return tarn__raise(TARN_ERROR_IO, "%s: %s cannot be read", input_file->function, input_file->path);
    return gzip->stream.avail_in > 0;
}

/* One call of inflate(). False at the end of the contents, or with an error. */
static bool step(struct tarn__gzip *gzip, const tarn__data_input *input_file)
{
    if (!refill(gzip, input_file)) {
        if (!gzip->is_between && !tarn_failed())
            tarn__raise(TARN_ERROR_FORMAT, "%s: %s: byte %lld: the file ends inside compressed data; is it complete?",
                        input_file->function, input_file->path, (long long)position(gzip, input_file));
        return false;
    }
    if (gzip->is_between) /* bytes follow: another member must begin here */
        inflateReset(&gzip->stream);
    gzip->is_between = false;
    int result = inflate(&gzip->stream, Z_NO_FLUSH);
    gzip->is_between = result == Z_STREAM_END;
    if (result == Z_OK || result == Z_STREAM_END)
        return true;
    return tarn__raise(result == Z_MEM_ERROR ? TARN_ERROR_MEMORY : TARN_ERROR_FORMAT,
                       "%s: %s: byte %lld: the compressed data is damaged: %s", input_file->function, input_file->path,
                       (long long)position(gzip, input_file), gzip->stream.msg ? gzip->stream.msg : "no reason given");
}

int64_t tarn__gzip_read(struct tarn__gzip *gzip, const tarn__data_input *input_file, void *memory, size_t bytes)
{
    size_t got = 0;
    while (got < bytes) {
        size_t capacity = bytes - got < MAX_ROUND ? bytes - got : MAX_ROUND;
        gzip->stream.next_out = (unsigned char *)memory + got;
        gzip->stream.avail_out = (unsigned)capacity;
        bool continues = step(gzip, input_file);
        got += capacity - gzip->stream.avail_out;
        if (!continues)
            break;
    }
    return tarn_failed() ? -1 : (int64_t)got;
}

#else

struct tarn__gzip *tarn__gzip_open(const tarn__data_input *input_file)
{
    tarn__raise(TARN_ERROR_UNSUPPORTED,
                "%s: %s is compressed, but tarn was built without zlib; install zlib1g-dev and build again, or unpack "
                "the file with gunzip",
                input_file->function, input_file->path);
    return NULL;
}

int64_t tarn__gzip_read(struct tarn__gzip *gzip, const tarn__data_input *input_file, void *memory, size_t bytes)
{
    (void)gzip, (void)input_file, (void)memory, (void)bytes;
    return -1;
}

void tarn__gzip_close(struct tarn__gzip *gzip)
{
    (void)gzip;
}

#endif

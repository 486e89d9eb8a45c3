/* gzip.c: compressed files, through zlib. A file is one or several gzip members and nothing else: what follows them
 * must be another one. */
#include "data/readers/input.h"
#include "tarn_features.h"

#if TARN__HAVE_ZLIB

#include <zlib.h>

#define INPUT_BYTES ((size_t)64 << 10)
#define ROUND_BYTES ((size_t)1 << 30) /* zlib counts in unsigned int */

struct tarn__gzip {
    z_stream stream;
    bool is_between; /* a member has ended */
    unsigned char input[INPUT_BYTES];
};

static int64_t position(const struct tarn__gzip *gzip, const tarn__data_input *source)
{
    return (int64_t)ftell(source->file) - (int64_t)gzip->stream.avail_in;
}

struct tarn__gzip *tarn__gzip_open(const tarn__data_input *source)
{
    struct tarn__gzip *gzip = tarn__alloc(sizeof(*gzip));
    if (gzip && inflateInit2(&gzip->stream, 16 + MAX_WBITS) == Z_OK)
        return gzip;
    tarn__raise(TARN_ERROR_MEMORY, "%s: %s: no memory for the decompressor", source->function, source->path);
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

/* Makes sure that there is input. False at the end of the file, or with an error raised. */
static bool refill(struct tarn__gzip *gzip, const tarn__data_input *source)
{
    if (gzip->stream.avail_in > 0)
        return true;
    gzip->stream.next_in = gzip->input;
    gzip->stream.avail_in = (unsigned)fread(gzip->input, 1, INPUT_BYTES, source->file);
    if (ferror(source->file))
        return tarn__raise(TARN_ERROR_IO, "%s: %s cannot be read", source->function, source->path);
    return gzip->stream.avail_in > 0;
}

/* One step of decompression. False at the proper end of the contents, or with an error raised. */
static bool step(struct tarn__gzip *gzip, const tarn__data_input *source)
{
    if (!refill(gzip, source)) {
        if (!gzip->is_between && !tarn_failed())
            tarn__raise(TARN_ERROR_FORMAT, "%s: %s: byte %lld: the file ends inside compressed data; is it complete?",
                        source->function, source->path, (long long)position(gzip, source));
        return false;
    }
    if (gzip->is_between)
        inflateReset(&gzip->stream);
    gzip->is_between = false;
    int result = inflate(&gzip->stream, Z_NO_FLUSH);
    gzip->is_between = result == Z_STREAM_END;
    if (result == Z_OK || result == Z_STREAM_END)
        return true;
    return tarn__raise(result == Z_MEM_ERROR ? TARN_ERROR_MEMORY : TARN_ERROR_FORMAT,
                       "%s: %s: byte %lld: the compressed data are damaged: %s", source->function, source->path,
                       (long long)position(gzip, source), gzip->stream.msg ? gzip->stream.msg : "no reason given");
}

int64_t tarn__gzip_read(struct tarn__gzip *gzip, const tarn__data_input *source, void *memory, size_t bytes)
{
    size_t got = 0;
    while (got < bytes) {
        size_t room = bytes - got < ROUND_BYTES ? bytes - got : ROUND_BYTES;
        gzip->stream.next_out = (unsigned char *)memory + got;
        gzip->stream.avail_out = (unsigned)room;
        bool goes_on = step(gzip, source);
        got += room - gzip->stream.avail_out;
        if (!goes_on)
            break;
    }
    return tarn_failed() ? -1 : (int64_t)got;
}

#else

struct tarn__gzip *tarn__gzip_open(const tarn__data_input *source)
{
    tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: %s is compressed, and tarn was built without zlib; install zlib1g-dev and build again, or unpack the file "
        "with gunzip",
        source->function, source->path);
    return NULL;
}

int64_t tarn__gzip_read(struct tarn__gzip *gzip, const tarn__data_input *source, void *memory, size_t bytes)
{
    (void)gzip, (void)source, (void)memory, (void)bytes;
    return -1;
}

void tarn__gzip_close(struct tarn__gzip *gzip)
{
    (void)gzip;
}

#endif

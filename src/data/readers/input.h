/* input.h: the bytes of a file, plain or gzip, read from front to end. What a file says of itself is checked against
 * what can still follow before anything is allocated. */
#ifndef TARN__SOURCE_H
#define TARN__SOURCE_H

#include <stdio.h>
#include <tarn/tensor.h>

#include "base/error.h"
#include "base/memory.h"

struct tarn__gzip;

typedef struct tarn__source {
    const char *function, *path; /* for errors; borrowed */
    FILE *file;
    int64_t file_bytes;      /* on disk */
    int64_t at;              /* bytes of the contents that were read */
    struct tarn__gzip *gzip; /* NULL: plain */
} tarn__source;

/* Opens a file, and sees by its first bytes whether it is compressed. Closed with tarn__source_close(), also after a
 * failure. */
bool tarn__source_open(tarn__source *source, const char *function, const char *path);
void tarn__source_close(tarn__source *source);

/* The most bytes that can still follow: exact for a plain file, a bound for a compressed one. */
int64_t tarn__source_left(const tarn__source *source);

/* Reads exactly so many bytes. `what` they are stands in the error. */
bool tarn__source_read(tarn__source *source, void *memory, size_t bytes, const char *what);

/* Reads up to so many bytes, fewer only at the end; -1 with an error raised. */
int64_t tarn__source_some(tarn__source *source, void *memory, size_t bytes);

/* True when an array of elements of so many bytes fits into what can still follow; one that has an axis without
 * elements always does. */
bool tarn__source_holds(const tarn__source *source, tarn_shape shape, size_t element_bytes);

/* Raises unless the contents end here. */
bool tarn__source_end(tarn__source *source, const char *what);

/* Raises "function: path: byte N: ...", of a byte of the contents. Is false. */
#define tarn__source_bad(source, byte, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), \
     tarn__source_raise((source), (byte), __VA_ARGS__))
bool tarn__source_raise(const tarn__source *source, int64_t byte, const char *format, ...) TARN_PRINTF(3, 4);

/* gzip.c: a reader of the compressed file; NULL with an error raised. */
struct tarn__gzip *tarn__gzip_open(const tarn__source *source);
int64_t tarn__gzip_some(struct tarn__gzip *gzip, const tarn__source *source, void *memory, size_t bytes);
void tarn__gzip_close(struct tarn__gzip *gzip);

#endif

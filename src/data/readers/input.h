/* input.h: the bytes of a file, plain or gzip, read from front to end. What a file says of itself is checked against
 * what can still follow before anything is allocated. */
#ifndef TARN__DATA_INPUT_H
#define TARN__DATA_INPUT_H

#include <stdio.h>
#include <tarn/tensor.h>

#include "base/error.h"
#include "base/memory.h"

struct tarn__gzip;

typedef struct tarn__data_input {
    const char *function, *path; /* for errors; borrowed */
    FILE *file;
    int64_t file_bytes;      /* on disk */
    int64_t at;              /* bytes of the contents that were read */
    struct tarn__gzip *gzip; /* NULL: plain */
} tarn__data_input;

/* Opens a file, and sees by its first bytes whether it is compressed. Closed with tarn__data_input_close(), also after
 * a failure. */
bool tarn__data_input_open(tarn__data_input *source, const char *function, const char *path);
void tarn__data_input_close(tarn__data_input *source);

/* The most bytes that can still follow: exact for a plain file, a bound for a compressed one. */
int64_t tarn__data_input_remaining(const tarn__data_input *source);

/* Reads exactly so many bytes. `what` they are stands in the error. */
bool tarn__data_input_read(tarn__data_input *source, void *memory, size_t bytes, const char *what);

/* Reads up to so many bytes, fewer only at the end; -1 with an error raised. */
int64_t tarn__data_input_read_some(tarn__data_input *source, void *memory, size_t bytes);

/* True when an array of elements of so many bytes fits into what can still follow; one that has an axis without
 * elements always does. */
bool tarn__data_input_fits(const tarn__data_input *source, tarn_shape shape, size_t element_bytes);

/* Raises unless the contents end here. */
bool tarn__data_input_expect_end(tarn__data_input *source, const char *what);

/* Raises "function: path: byte N: ...", of a byte of the contents. Is false. */
#define tarn__data_input_bad(source, byte, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), \
     tarn__data_input_raise((source), (byte), __VA_ARGS__))
bool tarn__data_input_raise(const tarn__data_input *source, int64_t byte, const char *format, ...) TARN_PRINTF(3, 4);

/* gzip.c: a reader of the compressed file; NULL with an error raised. */
struct tarn__gzip *tarn__gzip_open(const tarn__data_input *source);
int64_t tarn__gzip_read(struct tarn__gzip *gzip, const tarn__data_input *source, void *memory, size_t bytes);
void tarn__gzip_close(struct tarn__gzip *gzip);

#endif

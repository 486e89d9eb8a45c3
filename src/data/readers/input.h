/* input.h: a file's contents, plain or gzip, read from front to end.
 *
 * Files are not trusted: sizes that a header claims are checked against the bytes that can still follow before memory
 * is allocated, so that a damaged file of 100 bytes cannot ask for gigabytes. Errors name function, path and byte. */
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
    int64_t at;              /* bytes of the contents read so far, after decompression */
    struct tarn__gzip *gzip; /* NULL: plain */
} tarn__data_input;

/* Opens a file; its first two bytes tell whether it is gzip. The caller calls tarn__data_input_close(), also after a
 * failure. `function` and `path` are borrowed until then. False with an error. */
bool tarn__data_input_open(tarn__data_input *input, const char *function, const char *path);
void tarn__data_input_close(tarn__data_input *input);

/* Upper bound of the bytes that can still follow: exact for a plain file, by deflate's maximum ratio for gzip. */
int64_t tarn__data_input_remaining(const tarn__data_input *input);

/* Reads exactly `bytes` bytes. `what` names them in the error: "the header of an idx file". */
bool tarn__data_input_read(tarn__data_input *input, void *memory, size_t bytes, const char *what);

/* Reads up to `bytes` bytes, fewer only at the end of the contents; -1 with an error. */
int64_t tarn__data_input_read_some(tarn__data_input *input, void *memory, size_t bytes);

/* True when the elements of a shape fit into the bytes that can still follow. Empty shapes always do. */
bool tarn__data_input_fits(const tarn__data_input *input, tarn_shape shape, size_t element_bytes);

/* Raises an error unless the contents end here; `what` (plural) names the bytes before. */
bool tarn__data_input_expect_end(tarn__data_input *input, const char *what);

/* Raises "function: path: byte N: ...", N counted in the contents. Returns false. An empty format does not compile. */
#define tarn__data_input_bad(input, byte, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), \
     tarn__data_input_raise((input), (byte), __VA_ARGS__))
bool tarn__data_input_raise(const tarn__data_input *input, int64_t byte, const char *format, ...) TARN_PRINTF(3, 4);

/* gzip.c: the decompressor of an open file. The input owns it; it reads input->file. NULL with an error. */
struct tarn__gzip *tarn__gzip_open(const tarn__data_input *input);
int64_t tarn__gzip_read(struct tarn__gzip *gzip, const tarn__data_input *input, void *memory, size_t bytes);
void tarn__gzip_close(struct tarn__gzip *gzip);

#endif

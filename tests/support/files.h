/* files.h: files that tests write into their scratch folder: plain and gzip. */
#ifndef TESTS_FILES_H
#define TESTS_FILES_H

#include "support/check.h"
#include "support/scratch.h"

/* Writes a file there and returns its path. */
const char *write_file(const char *name, const void *bytes, size_t count);
const char *write_text(const char *name, const char *text);

/* The same as a gzip member: stored blocks, so that no compressor is needed. */
const char *write_gzip(const char *name, const void *bytes, size_t count);

/* A file of that name has the same bytes in both folders. */
void assert_same_file(const char *folder, const char *other, const char *name);

/* Makes a file of a run, JSON or safetensors, one without checksums, as earlier versions wrote it: what is changed in
 * it is then read. */
void drop_checksums(const char *path);

/* A growing piece of memory. */
typedef struct bytes {
    unsigned char data[1 << 16];
    size_t count;
} bytes;
void put(bytes *b, const void *from, size_t count);
void put_text(bytes *b, const char *text);
void put_big32(bytes *b, uint32_t value);
void put_gzip(bytes *b, const void *from, size_t count);

/* As zlib's crc32(). */
uint32_t checksum(uint32_t before, const void *from, size_t count);

/* The folder of real data, with a name below it; NULL without TARN_TEST_DATA. */
const char *real_data(const char *name);

#endif

/* shards.h: token files for training, and the documents they are made from. A file is a header of 64 bytes, then ids of
 * 2 or 4 bytes, all little-endian:
 *
 *   0   "TARNTOKS"
 *   8   version, 4 bytes
 *   12  bytes per id, 4
 *   16  number of ids, 8
 *   24  vocabulary size, 8
 *   32  the tokenizer's hash, 8
 *   40  zeros
 *
 * A folder has train-00000.bin …, valid-00000.bin … and index.json, which lists them. */
#ifndef TARN__SHARDS_H
#define TARN__SHARDS_H

#include "base/os/files.h"
#include "text/tokenizer/tokenizer.h"

#define TARN__SHARD_MAGIC "TARNTOKS"
#define TARN__SHARD_VERSION 1
#define TARN__SHARD_HEADER_BYTES 64
#define TARN__MAX_SHARDS 100000
#define TARN__SHARD_INDEX "index.json"

typedef struct tarn__shard_header {
    uint32_t version, width;
    uint64_t count, vocabulary, hash;
} tarn__shard_header;

/* Conversion between the struct and TARN__SHARD_HEADER_BYTES bytes. read: false if the magic differs. */
void tarn__shard_header_write(unsigned char *bytes, const tarn__shard_header *header);
bool tarn__shard_header_read(const unsigned char *bytes, tarn__shard_header *header);

/* Writes the files of one split, one at a time. Every file is written atomically. */
typedef struct tarn__shard_writer {
    const char *folder, *split; /* borrowed */
    tarn__shard_header header;  /* of the open file */
    int64_t max_ids;            /* per file */
    int64_t total;
    tarn__buffer counts; /* int64_t: ids of each finished file */
    tarn__output output;
    bool is_open;
} tarn__shard_writer;

/* Writes "folder/train-00000.bin", without the folder if that is NULL. */
void tarn__shard_name(char *path, size_t size, const char *folder, const char *split, int number);

/* write: appends ids and starts new files as needed. finish: completes the last file. False with an error. */
bool tarn__shard_write(tarn__shard_writer *writer, const int32_t *ids, size_t count);
bool tarn__shard_finish(tarn__shard_writer *writer);

/* Frees the writer's memory and discards an open file; with `remove`, deletes the finished files too. */
void tarn__shard_writer_free(tarn__shard_writer *writer, bool remove);

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* True for a file of JSON lines: `all`, or a name that ends in .jsonl. */
bool tarn__is_jsonl(const char *path, bool all);

/* Bytes up to the end of a line, without it; whether a line is blank. */
size_t tarn__line_length(const char *text, size_t length);
bool tarn__is_blank_line(const char *line, size_t length);

/* Appends the string under a field of a JSON line to `text` (text/files/jsonl_read.c). `path` and `number`, the line's,
 * are for errors. False with an error. */
bool tarn__jsonl_text(const char *function, tarn__buffer *text, const char *line, size_t length, const char *field,
                      const char *path, int64_t number);

/* Calls `take` for every document of a file, until it returns false: a text file is one document, of JSON lines each
 * line is one. `field` NULL: "text". The text is valid during the call. */
typedef bool (*tarn__document_fn)(void *ctx, const char *text, size_t length);
bool tarn__each_document(const char *function, const char *path, const char *field, bool all_lines,
                         tarn__document_fn take, void *ctx);

#endif

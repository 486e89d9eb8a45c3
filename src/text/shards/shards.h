/* shards.h: files of tokens. One is a head of 64 bytes, then ids of 2 or 4 bytes, all little-endian:
 *
 *   0  "TARNTOKS"    8  version, 4 bytes    12  bytes of an id, 4    16  how many ids, 8    24  the vocabulary's size,
 * 8 32  the tokenizer's hash, 8    40  zeros
 *
 * A folder has train-00000.bin …, valid-00000.bin … and index.json, which names them. */
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

/* Between the struct and the bytes; the second is false where the magic is another. */
void tarn__shard_header_write(unsigned char *bytes, const tarn__shard_header *head);
bool tarn__shard_header_read(const unsigned char *bytes, tarn__shard_header *head);

/* Writes the files of one split, one after the other. */
typedef struct tarn__shard_writer {
    const char *folder, *split; /* borrowed */
    tarn__shard_header head;    /* of the file that is open */
    int64_t most;               /* ids of a file */
    int64_t total;
    tarn__buffer counts; /* int64_t: ids of each file that is finished */
    tarn__output output;
    bool is_open;
} tarn__shard_writer;

/* "folder/train-00000.bin", or without the folder where that is NULL. */
void tarn__shard_name(char *path, size_t size, const char *folder, const char *split, int number);

/* Appends ids; and finishes the last file. False with an error. */
bool tarn__shard_write(tarn__shard_writer *writer, const int32_t *ids, size_t count);
bool tarn__shard_finish(tarn__shard_writer *writer);

/* Frees the writer's memory; with `remove`, the files too. */
void tarn__shard_writer_free(tarn__shard_writer *writer, bool remove);

/* ---- documents.c ------------------------------------------------------------------------------------------------- */

/* Whether a file has JSON lines: all have, or its name ends in .jsonl. */
bool tarn__is_jsonl(const char *path, bool all);

/* Bytes up to the end of a line, without it; and whether a line has nothing but spaces. */
size_t tarn__line_length(const char *text, size_t length);
bool tarn__is_blank_line(const char *line, size_t length);

/* The text in a line of JSON, under a field. False with an error that names the file and the line. Without jansson an
 * error says so. */
bool tarn__jsonl_text(const char *function, tarn__buffer *text, const char *line, size_t length, const char *field,
                      const char *path, int64_t number);

/* Hands every document of a file to `take`, until that is false. `field` may be NULL: "text". */
typedef bool (*tarn__document_fn)(void *ctx, const char *text, size_t length);
bool tarn__each_document(const char *function, const char *path, const char *field, bool all_lines,
                         tarn__document_fn take, void *ctx);

#endif

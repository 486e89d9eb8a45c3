/* shard_writer.c: writes token files. Bytes are written little-endian on every machine. The header is written first
 * with a count of 0 and replaced when the file is finished. */
#include <stdio.h>
#include <string.h>

#include "text/shards/shards.h"

#define CHUNK 16384 /* ids per write */

static void put_int(unsigned char *bytes, uint64_t number, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)(number >> (8 * i));
}

static uint64_t get_int(const unsigned char *bytes, int count)
{
    uint64_t number = 0;
    for (int i = 0; i < count; i++)
        number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

void tarn__shard_header_write(unsigned char *bytes, const tarn__shard_header *header)
{
    memset(bytes, 0, TARN__SHARD_HEADER_BYTES);
    memcpy(bytes, TARN__SHARD_MAGIC, 8);
    put_int(bytes + 8, header->version, 4);
    put_int(bytes + 12, header->width, 4);
    put_int(bytes + 16, header->count, 8);
    put_int(bytes + 24, header->vocabulary, 8);
    put_int(bytes + 32, header->hash, 8);
}

bool tarn__shard_header_read(const unsigned char *bytes, tarn__shard_header *header)
{
    *header = (tarn__shard_header){(uint32_t)get_int(bytes + 8, 4), (uint32_t)get_int(bytes + 12, 4),
                                   get_int(bytes + 16, 8), get_int(bytes + 24, 8), get_int(bytes + 32, 8)};
    return memcmp(bytes, TARN__SHARD_MAGIC, 8) == 0;
}

/* Five digits: readers and `ls` list the files in order. */
void tarn__shard_name(char *path, size_t size, const char *folder, const char *split, int number)
{
    snprintf(path, size, "%s%s%s-%05d.bin", folder ? folder : "", folder ? "/" : "", split, number);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Starts the next file of the split. */
static bool open_next(tarn__shard_writer *writer)
{
    char path[4096];
    unsigned char header[TARN__SHARD_HEADER_BYTES];
    tarn__shard_name(path, sizeof(path), writer->folder, writer->split, (int)writer->counts.count);
    writer->header.count = 0;
    tarn__shard_header_write(header, &writer->header);
    writer->is_open = tarn__output_open(&writer->output, "shards_prepare", path);
    return writer->is_open && tarn__output_write(&writer->output, header, sizeof(header));
}

/* The header is rewritten with the count, then the file gets its name. */
bool tarn__shard_finish(tarn__shard_writer *writer)
{
    unsigned char header[TARN__SHARD_HEADER_BYTES];
    int64_t count = (int64_t)writer->header.count;
    if (!writer->is_open)
        return true;
    tarn__shard_header_write(header, &writer->header);
    if (!tarn__output_write_at(&writer->output, 0, header, sizeof(header)) ||
        !tarn__buffer_reserve(&writer->counts, 1, sizeof(count)))
        return false;
    writer->is_open = false; /* a failed commit discards the file */
    if (!tarn__output_commit(&writer->output))
        return false;
    return tarn__buffer_add(&writer->counts, &count, 1, sizeof(count));
}

/* Converts ids to bytes of the file's width and writes them. */
static bool write_chunk(tarn__shard_writer *writer, const int32_t *ids, size_t count)
{
    unsigned char bytes[4 * CHUNK];
    size_t width = writer->header.width;
    for (size_t i = 0; i < count; i++)
        put_int(bytes + i * width, (uint32_t)ids[i], (int)width);
    return tarn__output_write(&writer->output, bytes, count * width);
}

/* A document may span files: they are cut by the number of ids alone. */
bool tarn__shard_write(tarn__shard_writer *writer, const int32_t *ids, size_t count)
{
    while (count > 0) {
        if (!writer->is_open && !open_next(writer))
            return false;
        size_t remaining = (size_t)writer->max_ids - (size_t)writer->header.count, now = count < CHUNK ? count : CHUNK;
        now = now < remaining ? now : remaining;
        if (!write_chunk(writer, ids, now))
            return false;
        writer->header.count += now;
        writer->total += (int64_t)now;
        ids += now;
        count -= now;
        if ((int64_t)writer->header.count == writer->max_ids && !tarn__shard_finish(writer))
            return false;
    }
    return true;
}

void tarn__shard_writer_free(tarn__shard_writer *writer, bool remove)
{
    if (writer->is_open)
        tarn__output_discard(&writer->output);
    for (int i = 0; remove && i < (int)writer->counts.count; i++) {
        char path[4096];
        tarn__shard_name(path, sizeof(path), writer->folder, writer->split, i);
        tarn__file_remove(path);
    }
    tarn__buffer_free(&writer->counts, sizeof(int64_t));
    writer->is_open = false;
}

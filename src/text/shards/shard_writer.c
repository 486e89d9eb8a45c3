/* shard_writer.c: writing files of tokens. */
#include <stdio.h>
#include <string.h>

#include "text/shards/shards.h"

#define AT_ONCE 16384 /* ids that are turned into bytes at a time */

static void put_number(unsigned char *bytes, uint64_t number, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)(number >> (8 * i));
}

static uint64_t get_number(const unsigned char *bytes, int count)
{
    uint64_t number = 0;
    for (int i = 0; i < count; i++)
        number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

void tarn__shard_header_write(unsigned char *bytes, const tarn__shard_header *head)
{
    memset(bytes, 0, TARN__SHARD_HEADER_BYTES);
    memcpy(bytes, TARN__SHARD_MAGIC, 8);
    put_number(bytes + 8, head->version, 4);
    put_number(bytes + 12, head->width, 4);
    put_number(bytes + 16, head->count, 8);
    put_number(bytes + 24, head->vocabulary, 8);
    put_number(bytes + 32, head->hash, 8);
}

bool tarn__shard_header_read(const unsigned char *bytes, tarn__shard_header *head)
{
    *head = (tarn__shard_header){(uint32_t)get_number(bytes + 8, 4), (uint32_t)get_number(bytes + 12, 4),
                                 get_number(bytes + 16, 8), get_number(bytes + 24, 8), get_number(bytes + 32, 8)};
    return memcmp(bytes, TARN__SHARD_MAGIC, 8) == 0;
}

void tarn__shard_name(char *path, size_t size, const char *folder, const char *split, int number)
{
    snprintf(path, size, "%s%s%s-%05d.bin", folder ? folder : "", folder ? "/" : "", split, number);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool open_next(tarn__shard_writer *writer)
{
    char path[4096];
    unsigned char head[TARN__SHARD_HEADER_BYTES];
    tarn__shard_name(path, sizeof(path), writer->folder, writer->split, (int)writer->counts.count);
    writer->head.count = 0;
    tarn__shard_header_write(head, &writer->head);
    writer->is_open = tarn__output_open(&writer->output, "shards_prepare", path);
    return writer->is_open && tarn__output_write(&writer->output, head, sizeof(head));
}

bool tarn__shard_finish(tarn__shard_writer *writer)
{
    unsigned char head[TARN__SHARD_HEADER_BYTES];
    int64_t count = (int64_t)writer->head.count;
    if (!writer->is_open)
        return true;
    tarn__shard_header_write(head, &writer->head);
    if (!tarn__output_write_at(&writer->output, 0, head, sizeof(head)) ||
        !tarn__buffer_reserve(&writer->counts, 1, sizeof(count)))
        return false;
    writer->is_open = false; /* a commit that fails discards */
    if (!tarn__output_commit(&writer->output))
        return false;
    return tarn__buffer_add(&writer->counts, &count, 1, sizeof(count));
}

static bool write_some(tarn__shard_writer *writer, const int32_t *ids, size_t count)
{
    unsigned char bytes[4 * AT_ONCE];
    size_t width = writer->head.width;
    for (size_t i = 0; i < count; i++)
        put_number(bytes + i * width, (uint32_t)ids[i], (int)width);
    return tarn__output_write(&writer->output, bytes, count * width);
}

bool tarn__shard_write(tarn__shard_writer *writer, const int32_t *ids, size_t count)
{
    while (count > 0) {
        if (!writer->is_open && !open_next(writer))
            return false;
        size_t room = (size_t)writer->most - (size_t)writer->head.count, now = count < AT_ONCE ? count : AT_ONCE;
        now = now < room ? now : room;
        if (!write_some(writer, ids, now))
            return false;
        writer->head.count += now;
        writer->total += (int64_t)now;
        ids += now;
        count -= now;
        if ((int64_t)writer->head.count == writer->most && !tarn__shard_finish(writer))
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

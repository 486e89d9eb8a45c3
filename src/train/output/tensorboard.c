/* tensorboard.c: TensorBoard event files. A file is a sequence of records: length (64 bits), its checksum, that many
 * bytes, their checksum; all little-endian. The bytes of a record are one protobuf message:
 *
 *     Event      { 1: wall_time double; 2: step int64; 3: file_version string; 5: summary Summary;
 *                  7: session_log SessionLog }
 *     Summary    { 1: value Value }
 *     Value      { 1: tag string; 2: simple_value float }
 *     SessionLog { 1: status (1: the run starts at `step`) }
 *
 * The first record holds the file version alone. Checksums are CRC-32C, rotated by 15 bits plus a constant ("masked"),
 * so that checksums of data with embedded checksums stay strong. A killed program leaves a partial last record, which
 * readers ignore. */
#include "train/output/tensorboard.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "base/utf8.h"

#define VERSION "brain.Event:2"
#define MAX_TAG 1024             /* bytes of a tag */
#define MAX_EVENT (MAX_TAG + 64) /* bytes of a message */
#define MAX_FILES 1000           /* files created within one second */

struct tarn__tensorboard {
    char *path; /* owned */
    FILE *file;
    uint32_t crc[256]; /* table of CRC-32C */
};

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* A protobuf message under construction. Tags are limited to MAX_TAG bytes, so everything fits. */
typedef struct message {
    unsigned char data[MAX_EVENT];
    size_t count;
} message;

static void put(message *to, const void *from, size_t count)
{
    memcpy(to->data + to->count, from, count);
    to->count += count;
}

/* The low bytes of a number, little-endian. */
static void put_little(message *to, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to->data[to->count++] = (unsigned char)(number >> 8 * i);
}

/* Varint: seven bits per byte, lowest first; the top bit marks that another byte follows. */
static void put_varint(message *to, uint64_t number)
{
    for (; number >= 0x80; number >>= 7)
        to->data[to->count++] = (unsigned char)(number | 0x80);
    to->data[to->count++] = (unsigned char)number;
}

/* Protobuf wire types. */
enum { VARINT = 0, EIGHT_BYTES = 1, LENGTH = 2, FOUR_BYTES = 5 };

/* All field numbers are below 16, so a key is one byte. */
static void put_key(message *to, int field, int kind)
{
    to->data[to->count++] = (unsigned char)(field << 3 | kind);
}

static void put_bytes(message *to, int field, const void *from, size_t count)
{
    put_key(to, field, LENGTH);
    put_varint(to, count);
    put(to, from, count);
}

/* An event with the fields that all have: wall time and step. */
static message event_at(int64_t step)
{
    message event;
    double now = tarn__platform_wall_clock();
    uint64_t bits;
    memcpy(&bits, &now, sizeof(bits));
    event.count = 0;
    put_key(&event, 1, EIGHT_BYTES);
    put_little(&event, bits, 8);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    return event;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Polynomial 0x1EDC6F41, reflected. */
static void make_table(uint32_t *table)
{
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] & 1 ? 0x82F63B78u ^ table[i] >> 1 : table[i] >> 1;
    }
}

static uint32_t masked_crc(const uint32_t *table, const unsigned char *from, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++)
        crc = table[(crc ^ from[i]) & 0xFF] ^ crc >> 8;
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static bool write_error(const char *function, const tarn__tensorboard *events, int error)
{
    return tarn__raise(TARN_ERROR_IO, "%s: '%s' cannot be written: %s", function, events->path, strerror(error));
}

/* Not flushed: tarn__tensorboard_flush() is called once per group of points. */
static bool write_record(const char *function, tarn__tensorboard *events, const message *event)
{
    message head = {.count = 0}, tail = {.count = 0};
    put_little(&head, event->count, 8);
    put_little(&head, masked_crc(events->crc, head.data, 8), 4);
    put_little(&tail, masked_crc(events->crc, event->data, event->count), 4);
    bool good = fwrite(head.data, head.count, 1, events->file) == 1 &&
                fwrite(event->data, event->count, 1, events->file) == 1 &&
                fwrite(tail.data, tail.count, 1, events->file) == 1;
    return good || write_error(function, events, errno);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Creates the file under the first free name: a second one in the same second gets ".001", which sorts after the
 * first for viewers. */
static bool create_file(tarn__tensorboard *events, const char *folder)
{
    char host[256], path[4096];
    tarn__platform_host_name(host, sizeof(host));
    for (int number = 0; number < MAX_FILES; number++) {
        char ending[16] = "";
        if (number > 0)
            snprintf(ending, sizeof(ending), ".%03d", number);
        int length = snprintf(path, sizeof(path), "%s/events.out.tfevents.%010lld.%s%s", folder,
                              (long long)tarn__platform_wall_clock(), host, ending);
        if (length < 0 || (size_t)length >= sizeof(path))
            return tarn__raise(TARN_ERROR_ARGUMENT, "tensorboard_open: the folder name is too long; at most %zu bytes",
                               sizeof(path) - sizeof(host));
        events->file = fopen(path, "wbx");
        if (events->file)
            return (events->path = tarn__string_copy(path)) != NULL;
        if (errno != EEXIST)
            return tarn__raise(TARN_ERROR_IO, "tensorboard_open: '%s' cannot be created: %s", path, strerror(errno));
    }
    return tarn__raise(TARN_ERROR_IO, "tensorboard_open: %d files like '%s' already exist; wait a second", MAX_FILES,
                       path);
}

/* The version record is flushed at once, so that the file is valid from the start. */
static bool open_file(tarn__tensorboard *events, const char *folder)
{
    if (!create_file(events, folder))
        return false;
    message version = event_at(0);
    version.count -= 2; /* without the step: its key and the varint 0 */
    put_bytes(&version, 3, VERSION, strlen(VERSION));
    return write_record("tensorboard_open", events, &version) && tarn__tensorboard_flush(events);
}

tarn__tensorboard *tarn__tensorboard_open(const char *folder)
{
    if (tarn_failed())
        return NULL;
    if (!folder || !folder[0]) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tensorboard_open: the folder is %s", folder ? "empty" : "NULL");
        return NULL;
    }
    tarn__tensorboard *events = tarn__alloc(sizeof(*events));
    if (!events)
        return NULL;
    make_table(events->crc);
    if (open_file(events, folder))
        return events;
    tarn__tensorboard_close(events);
    return NULL;
}

static bool check(const char *function, const tarn__tensorboard *events, int64_t step)
{
    if (tarn_failed())
        return false;
    if (!events)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the events are NULL", function);
    return step >= 0 || tarn__raise(TARN_ERROR_ARGUMENT, "%s: step %lld is below 0", function, (long long)step);
}

bool tarn__tensorboard_resume(tarn__tensorboard *events, int64_t step)
{
    if (!check("tensorboard_resume", events, step))
        return false;
    message event = event_at(step);
    put_bytes(&event, 7, (const unsigned char[]){1 << 3 | VARINT, 1}, 2);
    return write_record("tensorboard_resume", events, &event);
}

bool tarn__tensorboard_scalar(tarn__tensorboard *events, const char *tag, int64_t step, double value)
{
    const char *function = "tensorboard_scalar";
    if (!check(function, events, step))
        return false;
    size_t length = tag ? strlen(tag) : 0;
    if (length < 1 || length > MAX_TAG || !tarn__utf8_valid(tag))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the tag is %s", function,
                           !tag               ? "NULL"
                           : length < 1       ? "empty"
                           : length > MAX_TAG ? "longer than 1024 bytes"
                                              : "not valid UTF-8");
    message point = {.count = 0}, summary = {.count = 0}, event = event_at(step);
    /* simple_value is an f32 */
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof(bits));
    put_bytes(&point, 1, tag, length);
    put_key(&point, 2, FOUR_BYTES);
    put_little(&point, bits, 4);
    put_bytes(&summary, 1, point.data, point.count);
    put_bytes(&event, 5, summary.data, summary.count);
    return write_record(function, events, &event);
}

bool tarn__tensorboard_flush(tarn__tensorboard *events)
{
    if (!check("tensorboard_flush", events, 0))
        return false;
    return fflush(events->file) == 0 || write_error("tensorboard_flush", events, errno);
}

bool tarn__tensorboard_close(tarn__tensorboard *events)
{
    if (!events)
        return true;
    bool good = !events->file || fclose(events->file) == 0 || write_error("tensorboard_close", events, errno);
    tarn__string_free(events->path);
    tarn__release(events, sizeof(*events));
    return good;
}

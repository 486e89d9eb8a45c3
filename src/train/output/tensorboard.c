/* tensorboard.c: TensorBoard's event files. A file is a row of records, each a length (64 bits), its checksum, that
 * many bytes and their checksum, all little-endian. A record's bytes are one protobuf message:
 *
 *     Event   { 1: wall_time double; 2: step int64; 3: file_version string; 5: summary Summary; 7: session_log
 * SessionLog } Summary { 1: value Value }     Value { 1: tag string; 2: simple_value float }     SessionLog { 1: status
 * (1: the run starts at `step`) }
 *
 * The first record holds the version and nothing else. Checksums are CRC-32C, turned by 15 bits and moved by a constant
 * ("masked"), so that a checksum of data that hold checksums stays a good one. Who is stopped in the middle leaves half
 * a record at the end, which readers leave out. */
#include "train/output/tensorboard.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "base/utf8.h"

#define VERSION "brain.Event:2"
#define MOST_TAG 1024              /* bytes of a tag */
#define MOST_EVENT (MOST_TAG + 64) /* bytes of a message */
#define MOST_NAMES 1000            /* files begun in one second */

struct tarn__tensorboard {
    char *path; /* owned */
    FILE *file;
    uint32_t crc[256]; /* the checksum's table */
};

/* ---- a message --------------------------------------------------------------------------------------------------- */

/* Bytes as they grow; what is put in is known to fit. */
typedef struct message {
    unsigned char data[MOST_EVENT];
    size_t count;
} message;

static void put(message *to, const void *from, size_t count)
{
    memcpy(to->data + to->count, from, count);
    to->count += count;
}

/* The low bytes of a number, the lowest first. */
static void put_little(message *to, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to->data[to->count++] = (unsigned char)(number >> 8 * i);
}

/* Seven bits a byte, the lowest first; the top bit says that another follows. */
static void put_varint(message *to, uint64_t number)
{
    for (; number >= 0x80; number >>= 7)
        to->data[to->count++] = (unsigned char)(number | 0x80);
    to->data[to->count++] = (unsigned char)number;
}

/* How a field's value is stored. */
enum { VARINT = 0, EIGHT_BYTES = 1, LENGTH = 2, FOUR_BYTES = 5 };

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

/* The fields that every event has. */
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

/* ---- a record ---------------------------------------------------------------------------------------------------- */

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

static bool refused(const char *function, const tarn__tensorboard *events, int error)
{
    return tarn__raise(TARN_ERROR_IO, "%s: '%s' cannot be written: %s", function, events->path, strerror(error));
}

static bool write_record(const char *function, tarn__tensorboard *events, const message *event)
{
    message head = {.count = 0}, tail = {.count = 0};
    put_little(&head, event->count, 8);
    put_little(&head, masked_crc(events->crc, head.data, 8), 4);
    put_little(&tail, masked_crc(events->crc, event->data, event->count), 4);
    bool good = fwrite(head.data, head.count, 1, events->file) == 1 &&
                fwrite(event->data, event->count, 1, events->file) == 1 &&
                fwrite(tail.data, tail.count, 1, events->file) == 1;
    return good || refused(function, events, errno);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Makes the file under the first name that is free: a second run in the same second gets ".001", which viewers read
 * after the first. */
static bool make_file(tarn__tensorboard *events, const char *folder)
{
    char host[256], path[4096];
    tarn__platform_host_name(host, sizeof(host));
    for (int number = 0; number < MOST_NAMES; number++) {
        char ending[16] = "";
        if (number > 0)
            snprintf(ending, sizeof(ending), ".%03d", number);
        int length = snprintf(path, sizeof(path), "%s/events.out.tfevents.%010lld.%s%s", folder,
                              (long long)tarn__platform_wall_clock(), host, ending);
        if (length < 0 || (size_t)length >= sizeof(path))
            return tarn__raise(TARN_ERROR_ARGUMENT, "events_open: the folder's name is longer than %zu bytes",
                               sizeof(path) - sizeof(host));
        events->file = fopen(path, "wbx");
        if (events->file)
            return (events->path = tarn__string_copy(path)) != NULL;
        if (errno != EEXIST)
            return tarn__raise(TARN_ERROR_IO, "events_open: '%s' cannot be made: %s", path, strerror(errno));
    }
    return tarn__raise(TARN_ERROR_IO, "events_open: there are %d files like '%s' already; wait a second", MOST_NAMES,
                       path);
}

static bool begin_file(tarn__tensorboard *events, const char *folder)
{
    if (!make_file(events, folder))
        return false;
    message version = event_at(0);
    version.count -= 2; /* without a step */
    put_bytes(&version, 3, VERSION, strlen(VERSION));
    return write_record("events_open", events, &version) && tarn__tensorboard_flush(events);
}

tarn__tensorboard *tarn__tensorboard_open(const char *folder)
{
    if (tarn_failed())
        return NULL;
    if (!folder || !folder[0]) {
        tarn__raise(TARN_ERROR_ARGUMENT, "events_open: the folder is %s", folder ? "empty" : "NULL");
        return NULL;
    }
    tarn__tensorboard *events = tarn__alloc(sizeof(*events));
    if (!events)
        return NULL;
    make_table(events->crc);
    if (begin_file(events, folder))
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
    if (!check("events_resume", events, step))
        return false;
    message event = event_at(step);
    put_bytes(&event, 7, (const unsigned char[]){1 << 3 | VARINT, 1}, 2);
    return write_record("events_resume", events, &event);
}

bool tarn__tensorboard_scalar(tarn__tensorboard *events, const char *tag, int64_t step, double value)
{
    const char *function = "events_scalar";
    if (!check(function, events, step))
        return false;
    size_t length = tag ? strlen(tag) : 0;
    if (length < 1 || length > MOST_TAG || !tarn__utf8_valid(tag))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the tag is %s", function,
                           !tag                ? "NULL"
                           : length < 1        ? "empty"
                           : length > MOST_TAG ? "longer than 1024 bytes"
                                               : "no valid UTF-8");
    message point = {.count = 0}, summary = {.count = 0}, event = event_at(step);
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
    if (!check("events_flush", events, 0))
        return false;
    return fflush(events->file) == 0 || refused("events_flush", events, errno);
}

bool tarn__tensorboard_close(tarn__tensorboard *events)
{
    if (!events)
        return true;
    bool good = !events->file || fclose(events->file) == 0 || refused("events_close", events, errno);
    tarn__string_free(events->path);
    tarn__release(events, sizeof(*events));
    return good;
}

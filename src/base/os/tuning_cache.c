/* tuning_cache.c: records of equal size in memory, and their lines in a file; see tuning_cache.h. */
#include "base/os/tuning_cache.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/platform.h"

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Bytes of a record, without its used flag. */
static size_t bytes_of(const tarn__tuning_cache *cache)
{
    return cache->key_bytes + cache->value_bytes;
}

static char *record_at(const tarn__tuning_cache *cache, int i)
{
    return cache->records + (bytes_of(cache) + 1) * (size_t)i;
}

/* The last record of a key, or NULL. A choice that became unusable has a newer record after it. */
static char *find_record(const tarn__tuning_cache *cache, const void *key)
{
    for (int i = cache->count - 1; i >= 0; i--)
        if (memcmp(record_at(cache, i), key, cache->key_bytes) == 0)
            return record_at(cache, i);
    return NULL;
}

/* Out of memory: not kept, so the next process chooses again. By realloc() and not tarn__array_reserve(): a failure
 * must raise no error, and the records outlive a caller's allocator. */
static void add_record(tarn__tuning_cache *cache, const void *record, bool is_used)
{
    size_t bytes = bytes_of(cache);
    char *more = realloc(cache->records, (bytes + 1) * (size_t)(cache->count + 1));
    if (!more)
        return;
    cache->records = more;
    char *at = record_at(cache, cache->count++);
    memcpy(at, record, bytes);
    at[bytes] = is_used;
}

bool tarn__tuning_cache_find(tarn__tuning_cache *cache, const void *key, void *value, bool marks)
{
    char *record = find_record(cache, key);
    if (record)
        memcpy(value, record + cache->key_bytes, cache->value_bytes);
    if (record && marks)
        record[bytes_of(cache)] = true;
    return record != NULL;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Bytes to hexadecimal digits. */
static void write_hex(const void *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
}

/* And back. False unless there are exactly `count` bytes, then `end`. */
static bool read_hex(const char *text, char end, void *bytes, size_t count)
{
    if (strspn(text, "0123456789abcdef") != 2 * count || text[2 * count] != end)
        return false;
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1)
            return false;
        ((unsigned char *)bytes)[i] = (unsigned char)value;
    }
    return true;
}

static void read_file(tarn__tuning_cache *cache)
{
    char line[2 * TARN__TUNING_MAX_BYTES + 16], record[TARN__TUNING_MAX_BYTES];
    FILE *from = cache->path[0] ? fopen(cache->path, "re") : NULL;
    while (from && fgets(line, sizeof(line), from)) {
        cache->is_cut = strchr(line, '\n') == NULL;
        if (read_hex(line, '\n', record, bytes_of(cache)))
            add_record(cache, record, false);
    }
    if (from)
        fclose(from);
}

void tarn__tuning_cache_open(tarn__tuning_cache *cache, const char *below, const char *name)
{
    char folder[640];
    snprintf(cache->name, sizeof(cache->name), "%s", name);
    if (name[0] && tarn__platform_cache_folder(below, folder, sizeof(folder)))
        snprintf(cache->path, sizeof(cache->path), "%s/%s", folder, cache->name);
    read_file(cache);
    cache->is_open = true;
}

void tarn__tuning_cache_close(tarn__tuning_cache *cache)
{
    free(cache->records);
    *cache = (tarn__tuning_cache){.key_bytes = cache->key_bytes, .value_bytes = cache->value_bytes};
}

/* Candidates whose result is not written are timed again. */
static void append(const char *path, const char *line)
{
    int file = path[0] ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        ssize_t written = write(file, line, strlen(line));
        (void)written;
        close(file);
    }
}

void tarn__tuning_cache_store(tarn__tuning_cache *cache, const void *key, const void *value)
{
    char line[2 * TARN__TUNING_MAX_BYTES + 3], record[TARN__TUNING_MAX_BYTES];
    memcpy(record, key, cache->key_bytes);
    memcpy(record + cache->key_bytes, value, cache->value_bytes);
    line[0] = '\n'; /* ends a line that was cut off */
    write_hex(record, bytes_of(cache), line + 1);
    strcat(line, "\n");
    add_record(cache, record, true);
    append(cache->path, cache->is_cut ? line : line + 1);
    cache->is_cut = false;
}

/* ---- export and import ------------------------------------------------------------------------------------------- */

void tarn__tuning_cache_export(const tarn__tuning_cache *cache, void (*take)(void *ctx, const char *line), void *ctx)
{
    char line[sizeof(cache->name) + 2 * TARN__TUNING_MAX_BYTES + 2];
    for (int i = 0; i < cache->count && cache->name[0]; i++) {
        const char *record = record_at(cache, i);
        if (!record[bytes_of(cache)] || find_record(cache, record) != record)
            continue;
        int length = snprintf(line, sizeof(line), "%s ", cache->name);
        write_hex(record, bytes_of(cache), line + length);
        take(ctx, line);
    }
}

void tarn__tuning_cache_import(tarn__tuning_cache *cache, const char *line)
{
    char record[TARN__TUNING_MAX_BYTES];
    size_t length = strlen(cache->name);
    if (length == 0 || strncmp(line, cache->name, length) != 0 || line[length] != ' ' ||
        !(read_hex(line + length + 1, 0, record, bytes_of(cache)) ||
          read_hex(line + length + 1, '\n', record, bytes_of(cache))))
        return;
    const char *known = find_record(cache, record);
    if (!known || memcmp(known, record, bytes_of(cache)) != 0)
        add_record(cache, record, false);
}

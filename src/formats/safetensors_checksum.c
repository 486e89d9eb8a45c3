/* safetensors_checksum.c: checksums of a file's header and tensors: computed, stored, verified. */
#include "formats/safetensors_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/os/thread.h"

#define ALGORITHM "xxh64"

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The values are written as zeros first: the header's length must be known before any checksum is. */
bool tarn__checksums_reserve(json_t *metadata, int tensors)
{
    size_t length = TARN__CHECKSUM_PITCH * ((size_t)tensors + 1) - 1;
    char *zeros = tarn__alloc(length + 1);
    if (!zeros)
        return false;
    memset(zeros, '0', length);
    for (size_t at = TARN__CHECKSUM_DIGITS; at < length; at += TARN__CHECKSUM_PITCH)
        zeros[at] = ' ';
    bool good = json_object_set_new(metadata, TARN__CHECKSUM_KEY, json_string(ALGORITHM)) == 0 &&
                json_object_set_new(metadata, TARN__CHECKSUM_VALUES, json_stringn(zeros, length)) == 0;
    tarn__release(zeros, length + 1);
    return good;
}

void tarn__checksum_put(char *values, int index, uint64_t sum)
{
    char digits[TARN__CHECKSUM_DIGITS + 1];
    snprintf(digits, sizeof(digits), "%016" PRIx64, sum);
    memcpy(values + (size_t)index * TARN__CHECKSUM_PITCH, digits, TARN__CHECKSUM_DIGITS);
}

uint64_t tarn__checksum_of_header(const char *header, size_t length, size_t digits)
{
    tarn__xxh64 sum;
    tarn__xxh64_begin(&sum);
    tarn__xxh64_add(&sum, header, digits);
    tarn__xxh64_add(&sum, "0000000000000000", TARN__CHECKSUM_DIGITS);
    tarn__xxh64_add(&sum, header + digits + TARN__CHECKSUM_DIGITS, length - digits - TARN__CHECKSUM_DIGITS);
    return tarn__xxh64_end(&sum);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The value of one of the two keys, where the other exists. NULL with an error. */
static const char *value_of(const tarn_safetensors *file, const char *key, const char *other)
{
    const char *text = json_string_value(json_object_get(file->metadata, key));
    if (!text)
        tarn__raise(TARN_ERROR_FORMAT,
                    "safetensors_open: '%s': the header is damaged: its metadata has the key '%s' but not '%s'; "
                    "restore the file from a copy",
                    file->path, other, key);
    return text;
}

/* Parses value `index`: lower-case digits only, as they are written. False: not a value. */
static bool parse(const char *values, int index, uint64_t *sum)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = values + (size_t)index * TARN__CHECKSUM_PITCH;
    *sum = 0;
    for (int i = 0; i < TARN__CHECKSUM_DIGITS; i++) {
        const char *digit = strchr(digits, at[i]);
        if (!digit)
            return false;
        *sum = *sum << 4 | (uint64_t)(digit - digits);
    }
    return true;
}

/* Parses the values of all entries, and the header's into *header. */
static bool parse_all(tarn_safetensors *file, const char *values, uint64_t *header)
{
    size_t needed = TARN__CHECKSUM_PITCH * ((size_t)file->count + 1) - 1;
    if (strlen(values) != needed)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "safetensors_open: '%s': the header is damaged: '" TARN__CHECKSUM_VALUES
                           "' has %zu characters; %d tensors need %zu; restore the file from a copy",
                           file->path, strlen(values), file->count, needed);
    bool good = parse(values, 0, header);
    for (int i = 0; good && i < file->count; i++)
        good = parse(values, i + 1, &file->entry[i].sum);
    for (int i = 0; good && i < file->count; i++)
        file->entry[i].has_sum = true;
    return good || tarn__raise(TARN_ERROR_FORMAT,
                               "safetensors_open: '%s': the header is damaged: '" TARN__CHECKSUM_VALUES
                               "' is not a list of checksums of 16 hexadecimal digits; restore the file from a copy",
                               file->path);
}

/* Offset of the values in the header's bytes: digits and spaces are not escaped in JSON. 0: another program has
 * rewritten the header in a different form. */
static size_t find_values(const tarn_safetensors *file, const char *values)
{
    size_t length = strlen(values), end = (size_t)file->data;
    for (size_t at = 8; at + length <= end; at++)
        if (file->map.memory[at] == values[0] && memcmp(file->map.memory + at, values, length) == 0)
            return at;
    return 0;
}

/* Verifies the header's checksum. Damage and a rewrite by another program look alike, so the message names both. */
static bool check_header(const tarn_safetensors *file, const char *values, uint64_t stored)
{
    size_t digits = find_values(file, values);
    uint64_t sum = digits ? tarn__checksum_of_header(file->map.memory, (size_t)file->data, digits) : 0;
    return (digits && sum == stored) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "safetensors_open: '%s': the header is damaged: its checksum is %016" PRIx64 ", but %016" PRIx64
                       " is stored; restore the file from a copy, or, if another program has rewritten it, remove "
                       "'" TARN__CHECKSUM_KEY "' and '" TARN__CHECKSUM_VALUES "' from its metadata",
                       file->path, sum, stored);
}

bool tarn__checksums_read(tarn_safetensors *file)
{
    uint64_t header = 0;
    if (!json_object_get(file->metadata, TARN__CHECKSUM_KEY) && !json_object_get(file->metadata, TARN__CHECKSUM_VALUES))
        return true;
    const char *algorithm = value_of(file, TARN__CHECKSUM_KEY, TARN__CHECKSUM_VALUES);
    const char *values = algorithm ? value_of(file, TARN__CHECKSUM_VALUES, TARN__CHECKSUM_KEY) : NULL;
    if (!values)
        return false;
    if (strcmp(algorithm, ALGORITHM) != 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "safetensors_open: '%s': the header is damaged: '" TARN__CHECKSUM_KEY
                           "' is '%.40s'; it must be '" ALGORITHM "'",
                           file->path, algorithm);
    return parse_all(file, values, &header) && check_header(file, values, header);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* xxh64 of an entry's elements. */
static uint64_t sum_of(const tarn__safetensors_entry *e)
{
    return tarn__xxh64_of(e->part->map.memory + e->part->data + e->begin, (size_t)(e->end - e->begin));
}

/* Two threads may verify the same entry at the same time: both compute the same sum and store the same flag. */
bool tarn__checksum_check(const char *function, tarn__safetensors_entry *e)
{
    if (!e->has_sum || atomic_load(&e->is_checked))
        return true;
    uint64_t sum = sum_of(e);
    if (sum != e->sum)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': tensor '%.*s' is damaged: its checksum is %016" PRIx64 ", but %016" PRIx64
                           " is stored; restore the file from a copy",
                           function, e->part->path, TARN__NAME_SHOWN, e->name, sum, e->sum);
    atomic_store(&e->is_checked, true);
    return true;
}

/* Body of a parallel loop. Worker threads raise no errors: entries that do not match stay unverified and are reported
 * by the caller, in order. */
static void verify_range(int64_t begin, int64_t end, void *ctx)
{
    tarn__safetensors_entry *entry = ctx;
    for (int64_t i = begin; i < end; i++)
        if (entry[i].has_sum && !atomic_load(&entry[i].is_checked) && sum_of(&entry[i]) == entry[i].sum)
            atomic_store(&entry[i].is_checked, true);
}

/* Threads verify in parallel; the caller's thread then reports the first mismatch, in the order of the data. */
bool tarn__safetensors_verify(const char *function, const tarn_safetensors *file)
{
    if (tarn_failed())
        return false;
    tarn__parallel_for(file->count, 1, verify_range, file->entry);
    for (int i = 0; i < file->count; i++)
        if (!tarn__checksum_check(function, &file->entry[i]))
            return false;
    return true;
}

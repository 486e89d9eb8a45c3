/* frozen_hash.c: hashes of all frozen tensors of a model.
 *
 * Elements are read some rows at a time, so that an embedding of gigabytes on a GPU needs little host memory; the split
 * depends on the shape alone, so the hash does not depend on the device. Four independent accumulators keep the
 * multiplier busy, so that memory bandwidth is the limit. The hash guards against mistakes and damage, not against
 * malice. */
#include "train/tasks/frozen_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "formats/json_file.h"
#include "nn/module.h"

enum { CHUNK_BYTES = 8 << 20 }; /* bytes read at once; a longer row is read whole */
#define FORMAT 1                /* of frozen.json */
#define PRIME UINT64_C(0x9e3779b97f4a7c15)

/* ---- hashing ----------------------------------------------------------------------------------------------------- */

/* Finalizer: spreads each input bit over the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 29);
}

/* Hashes 32 bytes per round in four accumulators, then the remainder bytewise. The length is part of the hash. Words
 * are read in host byte order. */
static uint64_t hash_of(uint64_t seed, const unsigned char *bytes, size_t count)
{
    uint64_t acc[4] = {seed, seed ^ PRIME, seed + PRIME, ~seed}, word[4];
    size_t at = 0;
    for (; at + sizeof(word) <= count; at += sizeof(word)) {
        memcpy(word, bytes + at, sizeof(word));
        for (int i = 0; i < 4; i++) {
            acc[i] = (acc[i] ^ word[i]) * PRIME;
            acc[i] ^= acc[i] >> 31;
        }
    }
    for (; at < count; at++)
        acc[0] = (acc[0] ^ bytes[at]) * PRIME;
    uint64_t hash = count;
    for (int i = 0; i < 4; i++)
        hash = mix(hash * PRIME ^ acc[i]);
    return hash;
}

/* Rows per read: about PART bytes, at least 1. */
static int64_t rows_per_chunk(const tarn_tensor *tensor, int64_t rows)
{
    int64_t row_bytes = (int64_t)tarn_bytes(tensor) / (rows > 0 ? rows : 1),
            part = row_bytes > 0 ? CHUNK_BYTES / row_bytes : rows;
    return part < 1 ? 1 : part < rows ? part : rows;
}

/* Dtype and shape are hashed first, so that equal bytes of another type differ. False with an error. */
static bool hash_tensor(tarn_tensor *tensor, uint64_t *hash)
{
    int64_t rows = tensor->view.rank ? tensor->view.shape[0] : 1, step = rows_per_chunk(tensor, rows);
    size_t buffer_bytes = rows > 0 ? (size_t)((int64_t)tarn_bytes(tensor) / rows * step) : 0;
    unsigned char *bytes = tarn__alloc(buffer_bytes ? buffer_bytes : 1);
    bool good = bytes != NULL;
    *hash = hash_of(tensor->view.dtype, (const unsigned char *)tensor->view.shape,
                    sizeof(*tensor->view.shape) * (size_t)tensor->view.rank);
    for (int64_t at = 0; good && buffer_bytes && at < rows; at += step) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *part = tensor->view.rank ? tarn_slice(tensor, 0, at, at + step < rows ? at + step : rows) : tensor;
        size_t count = part ? (size_t)tarn_bytes(part) : 0;
        good = part && tarn_read(part, bytes, count);
        *hash = hash_of(*hash, bytes, good ? count : 0);
        tarn_scope_close(scope);
    }
    tarn__release(bytes, buffer_bytes ? buffer_bytes : 1);
    return good;
}

/* ---- all of a model ---------------------------------------------------------------------------------------------- */

/* Appends a hash with a copy of its name, and updates the hash of all. False without memory; earlier entries stay
 * valid. */
static bool add(tarn__frozen_hash *f, const char *name, uint64_t hash)
{
    if (!tarn__list_reserve(&f->tensor, f->count, &f->capacity, sizeof(*f->tensor)))
        return false;
    tarn__frozen_tensor added = {tarn__string_copy(name), hash};
    if (!added.name)
        return false;
    f->all = hash_of(mix(f->all ^ hash), (const unsigned char *)name, strlen(name)) | 1; /* 0 is none */
    f->tensor[f->count++] = added;
    return true;
}

/* Context of the walk over a model. */
typedef struct hash_walk {
    const tarn_module *model;
    tarn__frozen_hash *frozen;
    bool good;
} hash_walk;

/* Everything that the optimizer does not change: buffers, and parameters without a gradient. */
static bool hash_one(const tarn__parameter *parameter, void *ctx)
{
    hash_walk *t = ctx;
    uint64_t hash;
    if (!parameter->is_buffer && parameter->tensor->requires_grad)
        return true;
    t->good = hash_tensor(parameter->tensor, &hash) && add(t->frozen, tarn__name_from(t->model, parameter), hash);
    return t->good;
}

bool tarn__frozen_hash_compute(const char *function, const tarn_module *model, tarn__frozen_hash *frozen)
{
    *frozen = (tarn__frozen_hash){0};
    hash_walk t = {model, frozen, !tarn_failed()};
    if (t.good)
        tarn__module_walk_over(model, TARN__MODULE_STATE, hash_one, &t);
    return t.good || tarn__raise_within(function);
}

void tarn__frozen_hash_free(tarn__frozen_hash *f)
{
    for (int i = 0; i < f->count; i++)
        tarn__string_free(f->tensor[i].name);
    tarn__release(f->tensor, sizeof(*f->tensor) * (size_t)f->capacity);
    *f = (tarn__frozen_hash){0};
}

bool tarn__frozen_hash_check(const char *function, const tarn__frozen_hash *now, const tarn__frozen_hash *before,
                             const char *where, const char *against)
{
    for (int i = 0; i < now->count && i < before->count; i++) {
        if (strcmp(now->tensor[i].name, before->tensor[i].name) != 0)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has the frozen tensor '%.200s' where %s has '%.200s'",
                               function, where, now->tensor[i].name, against, before->tensor[i].name);
        if (now->tensor[i].hash != before->tensor[i].hash)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: the frozen tensor '%.200s' of '%s' has changed: its hash is %016" PRIx64
                               ", but %s has %016" PRIx64,
                               function, now->tensor[i].name, where, now->tensor[i].hash, against,
                               before->tensor[i].hash);
    }
    return now->count == before->count ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %d frozen tensors, but %s has %d", function, where, now->count,
                       against, before->count);
}

/* ---- frozen.json ------------------------------------------------------------------------------------------------- */

bool tarn__frozen_hash_write(const char *function, const tarn__frozen_hash *f, const char *path)
{
    char text[24];
    tarn__json_file *document = tarn__json_file_new(function);
    bool good = document && tarn__json_file_set_int(document, "format", FORMAT);
    for (int i = 0; good && i < f->count; i++) {
        snprintf(text, sizeof(text), "%016" PRIx64, f->tensor[i].hash);
        good = tarn__json_file_add_string(document, "tensors", f->tensor[i].name) &&
               tarn__json_file_add_string(document, "hashes", text);
    }
    good = good && tarn__json_file_save(document, path);
    tarn__json_file_free(document);
    return good;
}

/* strtoull() accepts signs and spaces, hence the check of the first character. */
static bool read_one(const char *function, const char *path, const tarn__json_file *document, size_t index,
                     tarn__frozen_hash *f)
{
    const char *name = tarn__json_file_string_at(document, "tensors", index),
               *text = name ? tarn__json_file_string_at(document, "hashes", index) : NULL;
    char *end;
    if (!text)
        return false;
    uint64_t hash = strtoull(text, &end, 16);
    if (strlen(text) != 16 || *end || !((text[0] >= '0' && text[0] <= '9') || (text[0] >= 'a' && text[0] <= 'f')))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%.32s' is not a hash of 16 hexadecimal digits", function,
                           path, text);
    return add(f, name, hash);
}

bool tarn__frozen_hash_read(const char *function, const char *path, tarn__frozen_hash *f)
{
    size_t names, hashes;
    int64_t format;
    *f = (tarn__frozen_hash){0};
    tarn__json_file *document = tarn__json_file_open(function, path);
    bool good = document && tarn__json_file_int(document, "format", FORMAT, FORMAT, &format) &&
                tarn__json_file_count(document, "tensors", 1 << 20, &names) &&
                tarn__json_file_count(document, "hashes", 1 << 20, &hashes) &&
                (names == hashes || tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %zu tensors and %zu hashes", function,
                                                path, names, hashes));
    for (size_t i = 0; good && i < names; i++)
        good = read_one(function, path, document, i, f);
    tarn__json_file_free(document);
    return good;
}

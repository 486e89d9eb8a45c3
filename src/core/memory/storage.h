/* storage.h: a block of memory on exactly one device, counted by reference. */
#ifndef TARN__STORAGE_H
#define TARN__STORAGE_H

#include <stdatomic.h>

#include "core/device/device.h"
#include "core/memory/pool.h"

/* What a block is for, in reports of memory. */
typedef enum tarn__purpose {
    TARN__FOR_VALUES,
    TARN__FOR_PARAMETERS,
    TARN__FOR_GRADIENTS,
    TARN__FOR_STATE,
    TARN__PURPOSES
} tarn__purpose;

typedef struct tarn__storage {
    _Atomic int references;
    _Atomic uint32_t version; /* raised by every in-place write; what backward saved compares it */
    tarn_device device;
    void *memory;
    int64_t offset; /* in bytes, a multiple of 256 */
    size_t bytes;
    tarn__pool_block *block;      /* of its own, or */
    struct tarn__storage *parent; /* a part of another storage, which it keeps alive; or */
    void (*release)(void *owner); /* memory of someone else, who is told when it is no longer used */
    void *owner;
    char *name;          /* NULL: none */
    _Atomic int purpose; /* a tarn__purpose */
} tarn__storage;

/* A new storage with one reference; NULL with an error raised. */
tarn__storage *tarn__storage_new(tarn_device device, size_t bytes);

/* A part of `parent`, with a version of its own: a segment of a flat buffer. `offset` is a multiple of 256. */
tarn__storage *tarn__storage_slice(tarn__storage *parent, int64_t offset, size_t bytes);

/* A storage on memory of someone else, on a device whose memory is the host's: `release` is called with `owner` when
 * the last reference is gone, but not on failure, when the result is NULL with an error raised. */
tarn__storage *tarn__storage_borrow(tarn_device device, void *memory, size_t bytes, void (*release)(void *owner),
                                    void *owner);

void tarn__storage_retain(tarn__storage *storage);
void tarn__storage_release(tarn__storage *storage);

/* Copies the name; a failure to do so is silent, names are for reports. */
void tarn__storage_set_name(tarn__storage *storage, const char *name);

/* Copies between a storage and host memory, counted. `offset` is in bytes from the storage's start. False with an error
 * raised. */
bool tarn__storage_upload(tarn__storage *to, int64_t offset, const void *host, size_t bytes);
bool tarn__storage_download(const tarn__storage *from, int64_t offset, void *host, size_t bytes);

/* Copies bytes from a storage to one on another device. */
bool tarn__storage_transfer(tarn__storage *to, int64_t to_offset, const tarn__storage *from, int64_t from_offset,
                            size_t bytes);

#endif

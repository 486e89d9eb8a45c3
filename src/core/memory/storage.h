/* storage.h: a block of memory on exactly one device, reference-counted. Several tensors (views) share a storage;
 * its version tells backward whether a saved tensor was overwritten. */
#ifndef TARN__STORAGE_H
#define TARN__STORAGE_H

#include <stdatomic.h>

#include "core/device/device.h"
#include "core/memory/pool.h"

/* Use of a storage, for memory reports. */
typedef enum tarn__purpose {
    TARN__FOR_VALUES,
    TARN__FOR_PARAMETERS,
    TARN__FOR_GRADIENTS,
    TARN__FOR_STATE,
    TARN__PURPOSES
} tarn__purpose;

typedef struct tarn__storage {
    _Atomic int references;
    _Atomic uint32_t version; /* incremented by every in-place write; compared with the version saved for backward */
    tarn_device device;
    void *memory;
    int64_t offset; /* in bytes, a multiple of 256 */
    size_t bytes;
    tarn__pool_block *block;      /* its own pool block, or */
    struct tarn__storage *parent; /* a slice of another storage, which it retains; or */
    void (*release)(void *owner); /* borrowed memory, whose owner is called back on release */
    void *owner;
    char *name;          /* NULL: none */
    _Atomic int purpose; /* a tarn__purpose */
} tarn__storage;

/* A new storage with one reference; NULL with an error raised. */
tarn__storage *tarn__storage_new(tarn_device device, size_t bytes);

/* A slice of `parent`, retained, with its own version: a segment of a flat buffer. `offset` is a multiple of 256. */
tarn__storage *tarn__storage_slice(tarn__storage *parent, int64_t offset, size_t bytes);

/* A storage on borrowed host-accessible memory. `release` is called with `owner` when the last reference is dropped,
 * but not on failure (NULL with an error). */
tarn__storage *tarn__storage_borrow(tarn_device device, void *memory, size_t bytes, void (*release)(void *owner),
                                    void *owner);

void tarn__storage_retain(tarn__storage *storage);
void tarn__storage_release(tarn__storage *storage);

/* Copies the name. Out of memory is ignored: names are for reports. */
void tarn__storage_set_name(tarn__storage *storage, const char *name);

/* Copies between a storage and host memory; counted as a transfer off the CPU. `offset` is in bytes from the
 * storage's start. False with an error. */
bool tarn__storage_upload(tarn__storage *to, int64_t offset, const void *host, size_t bytes);
bool tarn__storage_download(const tarn__storage *from, int64_t offset, void *host, size_t bytes);

/* Copies bytes between storages on two devices: peer copy within a backend, else staged through the host. */
bool tarn__storage_transfer(tarn__storage *to, int64_t to_offset, const tarn__storage *from, int64_t from_offset,
                            size_t bytes);

#endif

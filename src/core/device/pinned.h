/* pinned.h: host memory from which tensors are filled, on devices that can do so beside their other work; elsewhere by
 * a plain copy.
 *
 * The order of use: write the memory, send parts of it to tensors, join before the tensors are used, wait before the
 * memory is written again. */
#ifndef TARN__PINNED_H
#define TARN__PINNED_H

#include "core/profile/profiler.h"

typedef struct tarn__pinned {
    tarn_device device;
    void *memory; /* for the caller to fill; aligned as storages are */
    size_t bytes;
    void *handle;           /* the backend's; NULL: plain memory */
    tarn__timing under_way; /* what was sent and not joined, where a profile is taken and the device has no clock */
} tarn__pinned;

/* Makes memory of at least one byte; false with an error. tarn__pinned_free() works after that too. */
bool tarn__pinned_new(const char *function, tarn__pinned *lane, tarn_device device, size_t bytes);

/* Copies the bytes of a whole dense tensor from `from`, counted as an upload. */
bool tarn__pinned_upload(const char *function, tarn__pinned *lane, size_t from, tarn_tensor *to);

/* What is enqueued on the device from here on sees what was sent. */
bool tarn__pinned_join(const char *function, tarn__pinned *lane);

/* Waits until the memory may be written again. Any thread may. */
bool tarn__pinned_wait(const char *function, tarn__pinned *lane);

/* Waits for what is under way and gives the memory back. Works while an error is pending. */
void tarn__pinned_free(tarn__pinned *lane);

#endif

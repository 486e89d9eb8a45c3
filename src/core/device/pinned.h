/* pinned.h: pinned host buffers, from which tensors are uploaded while the device does other work; plain memory and
 * a synchronous copy on devices without them.
 *
 * Order of use: write the buffer, upload slices of it to tensors, join before the tensors are used, wait before the
 * buffer is written again. One thread at a time, except where stated. */
#ifndef TARN__PINNED_H
#define TARN__PINNED_H

#include "core/profile/profiler.h"

typedef struct tarn__pinned {
    tarn_device device;
    void *memory; /* for the caller to fill; aligned to TARN__ALIGNMENT */
    size_t bytes;
    void *handle;           /* the backend's buffer; NULL: plain host memory */
    tarn__timing under_way; /* uploads not yet joined, while profiling a device without copy events */
} tarn__pinned;

/* Allocates a buffer of at least one byte; false with an error. tarn__pinned_free() is allowed in both cases. */
bool tarn__pinned_new(const char *function, tarn__pinned *pinned, tarn_device device, size_t bytes);

/* Uploads a whole contiguous tensor from offset `from` of the buffer, asynchronously where possible. */
bool tarn__pinned_upload(const char *function, tarn__pinned *pinned, size_t from, tarn_tensor *to);

/* Work enqueued on the device after this sees the uploaded data. */
bool tarn__pinned_join(const char *function, tarn__pinned *pinned);

/* Waits until the buffer may be written again. Any thread may call it. */
bool tarn__pinned_wait(const char *function, tarn__pinned *pinned);

/* Waits for uploads in flight and frees the buffer. Works while an error is pending. */
void tarn__pinned_free(tarn__pinned *pinned);

#endif

/* transfer.c: uploads and downloads.
 *
 * Pageable host memory would make a driver copy piece by piece and block the caller. It goes through a ring of pinned
 * pieces instead: an upload returns when its last piece is in pinned memory, and the device fetches it in queue order.
 * A piece is reused once its copy has completed. The ring is created by the first transfer and shared by all threads.
 *
 * A device that shares memory with the host needs no second copy: its buffers are mapped and accessed in place. Mapping
 * waits for everything enqueued, so small uploads (a learning rate, some indices) use the ring there too. */
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

#define PIECES 4
#define PIECE_BYTES ((size_t)4 << 20)
#define SMALL_BYTES ((size_t)64 << 10) /* largest upload through the ring, and its piece, where memory is shared */

struct tarn__cl_staging {
    pthread_mutex_t lock;
    size_t piece_bytes;
    cl_mem memory[PIECES];
    char *piece[PIECES];
    cl_event done[PIECES]; /* of the last copy; NULL: free */
    int next;
};
typedef struct tarn__cl_staging staging;

char *tarn__cl_alloc_pinned(tarn__cl_device *d, size_t bytes, cl_mem *memory)
{
    cl_int error;
    *memory = clCreateBuffer(d->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, NULL, &error);
    if (!tarn__cl_check(error, "pinned host memory"))
        return NULL;
    char *host =
        clEnqueueMapBuffer(d->queue, *memory, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, NULL, NULL, &error);
    if (tarn__cl_check(error, "mapping host memory"))
        return host;
    clReleaseMemObject(*memory);
    *memory = NULL;
    return NULL;
}

/* Borrowed; NULL when pinned memory cannot be allocated. */
static staging *staging_of(tarn__cl_device *d)
{
    pthread_mutex_lock(&d->lock);
    staging *s = d->staging ? d->staging : calloc(1, sizeof(*s));
    bool good = s != NULL;
    if (s && !d->staging) {
        s->piece_bytes = d->shares_memory ? SMALL_BYTES : PIECE_BYTES;
        pthread_mutex_init(&s->lock, NULL);
        d->staging = s; /* pieces that exist stay; the next transfer tries the others again */
    }
    for (int i = 0; good && i < PIECES; i++)
        good = s->piece[i] || (s->piece[i] = tarn__cl_alloc_pinned(d, s->piece_bytes, &s->memory[i])) != NULL;
    pthread_mutex_unlock(&d->lock);
    return good ? s : NULL;
}

/* Waits until a piece is free. False when its copy failed. */
static bool wait_free(staging *s, int i)
{
    bool good = !s->done[i] || tarn__cl_check(clWaitForEvents(1, &s->done[i]), "waiting for a copy");
    if (s->done[i])
        clReleaseEvent(s->done[i]);
    s->done[i] = NULL;
    return good;
}

/* ---- ring -------------------------------------------------------------------------------------------------------- */

/* Blocks only while all pieces are in flight. */
static bool upload_pieces(tarn__cl_device *d, cl_mem memory, size_t offset, const char *host, size_t bytes,
                          cl_command_queue queue)
{
    staging *s = staging_of(d);
    bool good = s != NULL;
    if (!good)
        return false;
    pthread_mutex_lock(&s->lock);
    for (size_t done = 0; good && done < bytes; done += s->piece_bytes) {
        size_t now = bytes - done < s->piece_bytes ? bytes - done : s->piece_bytes;
        int i = s->next;
        s->next = (i + 1) % PIECES;
        good = wait_free(s, i);
        if (good)
            memcpy(s->piece[i], host + done, now);
        good = good && tarn__cl_check(clEnqueueWriteBuffer(queue, memory, CL_FALSE, offset + done, now, s->piece[i], 0,
                                                           NULL, &s->done[i]),
                                      "an upload");
    }
    pthread_mutex_unlock(&s->lock);
    return good && tarn__cl_check(clFlush(queue), "flushing the queue");
}

/* Up to PIECES reads are in flight while the host copies out the oldest. */
static bool download_pieces(tarn__cl_device *d, cl_mem memory, size_t offset, char *host, size_t bytes,
                            cl_command_queue queue)
{
    staging *s = staging_of(d);
    bool good = s != NULL;
    size_t requested = 0, copied = 0;
    if (!good)
        return false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; good && i < PIECES; i++)
        good = wait_free(s, i);
    for (int ahead = 0, at = 0; good && copied < bytes; at = (at + 1) % PIECES, ahead--) {
        for (; good && requested < bytes && ahead < PIECES; ahead++) {
            size_t now = bytes - requested < s->piece_bytes ? bytes - requested : s->piece_bytes;
            int i = (at + ahead) % PIECES;
            good = tarn__cl_check(clEnqueueReadBuffer(queue, memory, CL_FALSE, offset + requested, now, s->piece[i], 0,
                                                      NULL, &s->done[i]),
                                  "a download");
            requested += now;
        }
        size_t here = bytes - copied < s->piece_bytes ? bytes - copied : s->piece_bytes;
        good = wait_free(s, at) && good;
        if (good)
            memcpy(host + copied, s->piece[at], here);
        copied += here;
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

/* ---- mapped ------------------------------------------------------------------------------------------------------ */

/* `to` NULL: an upload from `from`; else a download. */
static bool copy_mapped(cl_mem memory, size_t offset, void *to, const void *from, size_t bytes, cl_command_queue queue)
{
    cl_int error;
    cl_map_flags flags = to ? CL_MAP_READ : CL_MAP_WRITE_INVALIDATE_REGION;
    void *here = clEnqueueMapBuffer(queue, memory, CL_TRUE, flags, offset, bytes, 0, NULL, NULL, &error);
    if (!tarn__cl_check(error, "mapping device memory"))
        return false;
    memcpy(to ? to : here, to ? here : from, bytes);
    return tarn__cl_check(clEnqueueUnmapMemObject(queue, memory, here, 0, NULL, NULL), "unmapping device memory");
}

bool tarn__cl_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    if (!d)
        return false;
    bool good = d->shares_memory && bytes > SMALL_BYTES ? copy_mapped(memory, (size_t)offset, NULL, host, bytes, stream)
                                                        : upload_pieces(d, memory, (size_t)offset, host, bytes, stream);
    return good || tarn__cl_check_lost(d);
}

/* Waits for the data. A deferred fault read is enqueued first, so that the poll after this download sees the faults of
 * the kernels that computed it. */
bool tarn__cl_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    if (!d)
        return false;
    bool good = tarn__cl_flush_faults(d) &&
                (d->shares_memory ? copy_mapped((cl_mem)memory, (size_t)offset, host, NULL, bytes, stream)
                                  : download_pieces(d, (cl_mem)memory, (size_t)offset, host, bytes, stream));
    return good || tarn__cl_check_lost(d);
}

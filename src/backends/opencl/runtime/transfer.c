/* transfer.c: copies between host and device.
 *
 * Host memory that a program hands over is pageable: a driver would copy it piece by piece and hold the caller until it
 * is done. Here it goes through pinned pieces of our own, a ring of them. An upload returns when its last piece is in
 * pinned memory; the device takes it from there in the queue's order. A piece is used again when its copy has passed.
 *
 * A device that shares the host's memory needs no copy of a copy: what it holds is mapped, and read or written in
 * place. That waits for what is enqueued, so small uploads, of a learning rate or some indexes, take the pieces there
 * too. */
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

#define PIECES 4
#define PIECE_BYTES ((size_t)4 << 20)
#define SMALL_BYTES ((size_t)64 << 10) /* a piece's, where memory is shared */

struct tarn__cl_staging {
    pthread_mutex_t lock;
    size_t piece_bytes;
    cl_mem memory[PIECES];
    char *piece[PIECES];
    cl_event done[PIECES]; /* NULL: free */
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

/* Made at the first transfer; lives as long as the device. */
static staging *staging_of(tarn__cl_device *d)
{
    pthread_mutex_lock(&d->lock);
    staging *s = d->staging ? d->staging : calloc(1, sizeof(*s));
    bool good = s != NULL;
    if (s && !d->staging) {
        s->piece_bytes = d->shares_memory ? SMALL_BYTES : PIECE_BYTES;
        pthread_mutex_init(&s->lock, NULL);
        d->staging = s; /* what is made of it stays, and is tried again */
    }
    for (int i = 0; good && i < PIECES; i++)
        good = s->piece[i] || (s->piece[i] = tarn__cl_alloc_pinned(d, s->piece_bytes, &s->memory[i])) != NULL;
    pthread_mutex_unlock(&d->lock);
    return good ? s : NULL;
}

/* Waits until a piece is free. */
static bool is_free(staging *s, int i)
{
    bool good = !s->done[i] || tarn__cl_check(clWaitForEvents(1, &s->done[i]), "waiting for a copy");
    if (s->done[i])
        clReleaseEvent(s->done[i]);
    s->done[i] = NULL;
    return good;
}

/* ---- through pieces ---------------------------------------------------------------------------------------------- */

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
        good = is_free(s, i);
        if (good)
            memcpy(s->piece[i], host + done, now);
        good = good && tarn__cl_check(clEnqueueWriteBuffer(queue, memory, CL_FALSE, offset + done, now, s->piece[i], 0,
                                                           NULL, &s->done[i]),
                                      "a copy to the device");
    }
    pthread_mutex_unlock(&s->lock);
    return good && tarn__cl_check(clFlush(queue), "sending work to the device");
}

/* Pieces are filled ahead while the host empties the one before. */
static bool download_pieces(tarn__cl_device *d, cl_mem memory, size_t offset, char *host, size_t bytes,
                            cl_command_queue queue)
{
    staging *s = staging_of(d);
    bool good = s != NULL;
    size_t asked = 0, taken = 0;
    if (!good)
        return false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; good && i < PIECES; i++)
        good = is_free(s, i);
    for (int ahead = 0, at = 0; good && taken < bytes; at = (at + 1) % PIECES, ahead--) {
        for (; good && asked < bytes && ahead < PIECES; ahead++) {
            size_t now = bytes - asked < s->piece_bytes ? bytes - asked : s->piece_bytes;
            int i = (at + ahead) % PIECES;
            good = tarn__cl_check(
                clEnqueueReadBuffer(queue, memory, CL_FALSE, offset + asked, now, s->piece[i], 0, NULL, &s->done[i]),
                "a copy from the device");
            asked += now;
        }
        size_t here = bytes - taken < s->piece_bytes ? bytes - taken : s->piece_bytes;
        good = is_free(s, at) && good;
        if (good)
            memcpy(host + taken, s->piece[at], here);
        taken += here;
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

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

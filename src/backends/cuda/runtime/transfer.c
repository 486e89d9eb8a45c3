/* transfer.c: copies between host and device.
 *
 * Host memory that a program hands over is pageable: the driver would copy it piece by piece and hold the caller until
 * it is done. Here it goes through pinned pieces of our own. An upload returns when its last piece is in pinned memory;
 * the device takes it from there in the stream's order. A piece is used again when the event recorded behind its copy
 * has passed. */
#include "backends/cuda/runtime/cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PIECES 4
#define PIECE_BYTES ((size_t)4 << 20)

typedef struct staging {
    pthread_mutex_t lock;
    char *piece[PIECES];
    cudaEvent_t done[PIECES];
    int next;
} staging;

/* Made at the first transfer; lives as long as the device. */
static staging *staging_of(tarn__cuda_device *d)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    staging *s = d->staging ? d->staging : calloc(1, sizeof(*s));
    bool good = s != NULL;
    for (int i = 0; good && !d->staging && i < PIECES; i++)
        good = tarn__cuda_good(cudaHostAlloc((void **)&s->piece[i], PIECE_BYTES, cudaHostAllocPortable),
                               "pinned host memory") &&
               tarn__cuda_good(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming), "making an event");
    if (good && !d->staging) {
        pthread_mutex_init(&s->lock, NULL);
        d->staging = s;
    }
    pthread_mutex_unlock(&lock);
    return good ? s : NULL;
}

static tarn__cuda_device *open_device(int index, const char *what)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !d->is_capturing)
        return d;
    tarn__cuda_fail("%s inside a step that is being captured", what);
    return NULL;
}

bool tarn__cuda_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    tarn__cuda_device *d = open_device(index, "a copy from the host");
    staging *s = d ? staging_of(d) : NULL;
    if (!s)
        return false;
    bool good = true;
    pthread_mutex_lock(&s->lock);
    for (size_t done = 0; good && done < bytes; done += PIECE_BYTES) {
        size_t now = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        int i = s->next;
        s->next = (i + 1) % PIECES;
        good = tarn__cuda_good(cudaEventSynchronize(s->done[i]), "waiting for a copy");
        if (good)
            memcpy(s->piece[i], (const char *)host + done, now);
        good = good &&
               tarn__cuda_good(
                   cudaMemcpyAsync((char *)memory + offset + done, s->piece[i], now, cudaMemcpyHostToDevice, stream),
                   "a copy to the device") &&
               tarn__cuda_good(cudaEventRecord(s->done[i], stream), "recording an event");
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

/* Pieces are filled ahead while the host empties the one before. */
bool tarn__cuda_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    tarn__cuda_device *d = open_device(index, "a copy to the host");
    staging *s = d ? staging_of(d) : NULL;
    if (!s)
        return false;
    bool good = true;
    size_t asked = 0, taken = 0;
    pthread_mutex_lock(&s->lock);
    int first = s->next;
    for (int i = 0; good && i < PIECES; i++)
        good = tarn__cuda_good(cudaEventSynchronize(s->done[i]), "waiting for a copy");
    for (int ahead = 0, at = first; good && taken < bytes;) {
        while (good && asked < bytes && ahead < PIECES) {
            size_t now = bytes - asked < PIECE_BYTES ? bytes - asked : PIECE_BYTES;
            int i = (at + ahead++) % PIECES;
            good = tarn__cuda_good(cudaMemcpyAsync(s->piece[i], (const char *)memory + offset + asked, now,
                                                   cudaMemcpyDeviceToHost, stream),
                                   "a copy from the device") &&
                   tarn__cuda_good(cudaEventRecord(s->done[i], stream), "recording an event");
            asked += now;
        }
        size_t here = bytes - taken < PIECE_BYTES ? bytes - taken : PIECE_BYTES;
        good = good && tarn__cuda_good(cudaEventSynchronize(s->done[at]), "waiting for the device");
        if (good)
            memcpy((char *)host + taken, s->piece[at], here);
        taken += here;
        at = (at + 1) % PIECES;
        ahead--;
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

bool tarn__cuda_peer(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                     size_t bytes, void *stream)
{
    tarn__cuda_device *source = open_device(from_index, "a copy between devices");
    cudaEvent_t event;
    if (!source || !tarn__cuda_good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"))
        return false;
    /* What makes the source comes first; what uses the source's memory next, comes after. */
    bool good = tarn__cuda_good(cudaEventRecord(event, source->stream), "recording an event") &&
                open_device(to_index, "a copy between devices") &&
                tarn__cuda_good(cudaStreamWaitEvent(stream, event, 0), "ordering streams") &&
                tarn__cuda_good(cudaMemcpyPeerAsync((char *)to + to_offset, to_index, (const char *)from + from_offset,
                                                    from_index, bytes, stream),
                                "a copy between devices");
    cudaEventDestroy(event);
    cudaEvent_t after;
    if (!good || !tarn__cuda_good(cudaEventCreateWithFlags(&after, cudaEventDisableTiming), "making an event"))
        return false;
    good = tarn__cuda_good(cudaEventRecord(after, stream), "recording an event") &&
           tarn__cuda_good(cudaStreamWaitEvent(source->stream, after, 0), "ordering streams");
    cudaEventDestroy(after);
    return good;
}

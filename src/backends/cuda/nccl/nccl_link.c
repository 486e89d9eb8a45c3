/* nccl_link.c: the device link of CUDA: NCCL's communicator of a rank, on a stream of its own beside that of the
 * device. Events order the two.
 *
 * The communicator does not block: a call that needs other ranks returns "in progress", and a thread of NCCL goes on
 * with it. Its work is on the stream only once state() is READY. The order of additions of NCCL's reductions depends on
 * the algorithm and on the number of ranks: all_reduce() is for runs that allow that. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/cuda/nccl/nccl.h"

#define FINALIZE_TIME 5.0 /* seconds that the end of a communicator may take, until it is aborted */

struct tarn__link {
    const tarn__nccl *nccl;
    void *comm;
    int index, rank, size;
    cudaStream_t stream, device_stream; /* own; borrowed */
    cudaEvent_t event, forked, joined;
    bool is_recorded; /* the event, since the last call */
};

static bool is_off(void)
{
    const char *name = getenv("TARN_NCCL");
    return name && strcmp(name, "off") == 0;
}

static const char *link_name(void)
{
    return tarn__nccl_open() ? tarn__nccl_about() : NULL;
}

/* True for a call that has been accepted. */
static bool is_good(const tarn__nccl *nccl, void *comm, int status, const char *what)
{
    if (status == TARN__NCCL_SUCCESS || status == TARN__NCCL_IN_PROGRESS)
        return true;
    const char *more = comm ? nccl->last_error(comm) : "";
    tarn__cuda_fail("%s: %s: %s%s%.120s", tarn__nccl_about(), what, nccl->status_text(status),
                    more && more[0] ? ": " : "", more ? more : "");
    return false;
}

static bool new_id(char id[TARN__LINK_ID])
{
    tarn__nccl_id made;
    const tarn__nccl *nccl = tarn__nccl_open();
    if (!nccl || !is_good(nccl, NULL, nccl->new_id(&made), "the id of the ranks cannot be created"))
        return false;
    memcpy(id, made.bytes, sizeof(made.bytes));
    return true;
}

/* NCCL takes ranks with different NCCL_HOSTID for ranks on different machines: they may share a GPU. */
static bool gpu(int index, char text[TARN__LINK_GPU])
{
    char bus[20] = "";
    const char *host = getenv("NCCL_HOSTID");
    if (!tarn__cuda_at(index) ||
        !tarn__cuda_good(cudaDeviceGetPCIBusId(bus, (int)sizeof(bus), index), "cannot query the device"))
        return false;
    snprintf(text, TARN__LINK_GPU, "%s %.40s", bus, host ? host : "");
    return true;
}

/* ---- start and end ----------------------------------------------------------------------------------------------- */

static bool new_event(cudaEvent_t *event)
{
    return tarn__cuda_good(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cannot create an event");
}

static bool open_stream(tarn__link *link)
{
    return tarn__cuda_good(cudaStreamCreateWithFlags(&link->stream, cudaStreamNonBlocking), "cannot create a stream") &&
           new_event(&link->event) && new_event(&link->forked) && new_event(&link->joined);
}

/* Also one that was opened in part. */
static void close_stream(tarn__link *link)
{
    cudaEvent_t events[] = {link->event, link->forked, link->joined};
    for (int i = 0; i < 3; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    if (link->stream)
        cudaStreamDestroy(link->stream);
}

static tarn__link *open_link(int index, int rank, int size, const char id[TARN__LINK_ID])
{
    tarn__nccl_id own;
    tarn__nccl_config config = TARN__NCCL_CONFIG;
    const tarn__nccl *nccl = tarn__nccl_open();
    tarn__cuda_device *device = nccl ? tarn__cuda_at(index) : NULL;
    tarn__link *link = device ? calloc(1, sizeof(*link)) : NULL;
    if (!link)
        return NULL;
    *link = (tarn__link){.nccl = nccl, .index = index, .rank = rank, .size = size, .device_stream = device->stream};
    memcpy(own.bytes, id, sizeof(own.bytes));
    if (open_stream(link) &&
        is_good(nccl, NULL, nccl->open(&link->comm, size, own, rank, &config), "the ranks cannot be connected"))
        return link;
    close_stream(link);
    free(link);
    return NULL;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Whether all ranks have come here in time. */
static bool finalize(tarn__link *link)
{
    int status = TARN__NCCL_IN_PROGRESS;
    double begin = seconds_now();
    if (!is_good(link->nccl, link->comm, link->nccl->finalize(link->comm), "the ranks cannot be disconnected"))
        return false;
    while (link->nccl->async_error(link->comm, &status) == TARN__NCCL_SUCCESS && status == TARN__NCCL_IN_PROGRESS &&
           seconds_now() - begin < FINALIZE_TIME)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return status == TARN__NCCL_SUCCESS;
}

static void free_link(tarn__link *link, bool aborts)
{
    tarn__cuda_at(link->index);
    if (!aborts && finalize(link))
        link->nccl->destroy(link->comm);
    else
        link->nccl->abort(link->comm);
    close_stream(link);
    free(link);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static tarn__link_state state(tarn__link *link)
{
    int status = TARN__NCCL_SUCCESS;
    int asked = link->nccl->async_error(link->comm, &status);
    if (!is_good(link->nccl, link->comm, asked, "the connection cannot be checked") ||
        !is_good(link->nccl, link->comm, status, "the connection has failed"))
        return TARN__LINK_FAILED;
    return status == TARN__NCCL_SUCCESS ? TARN__LINK_READY : TARN__LINK_BUSY;
}

/* The event is recorded after the last call, once all of them are on the stream. */
static tarn__link_state finished(tarn__link *link)
{
    if (!tarn__cuda_at(link->index))
        return TARN__LINK_FAILED;
    if (!link->is_recorded) {
        if (!tarn__cuda_good(cudaEventRecord(link->event, link->stream), "cannot record an event"))
            return TARN__LINK_FAILED;
        link->is_recorded = true;
    }
    cudaError_t status = cudaEventQuery(link->event);
    if (status != cudaErrorNotReady)
        return tarn__cuda_good(status, "waiting for the other ranks failed") ? TARN__LINK_READY : TARN__LINK_FAILED;
    return state(link) == TARN__LINK_FAILED ? TARN__LINK_FAILED : TARN__LINK_BUSY;
}

/* Begins a call: the device becomes current. */
static bool begin(tarn__link *link)
{
    link->is_recorded = false;
    return tarn__cuda_at(link->index) != NULL;
}

/* Work that is put on `behind` from now on runs after what is on `front` by now. */
static bool order(cudaStream_t front, cudaStream_t behind, cudaEvent_t event)
{
    return tarn__cuda_good(cudaEventRecord(event, front), "cannot record an event") &&
           tarn__cuda_good(cudaStreamWaitEvent(behind, event, 0), "a stream cannot wait for another");
}

static bool fork_link(tarn__link *link)
{
    return begin(link) && order(link->device_stream, link->stream, link->forked);
}

static bool join_link(tarn__link *link)
{
    return begin(link) && order(link->stream, link->device_stream, link->joined);
}

static bool exchange(tarn__link *link, const tarn__message *messages, int count)
{
    const tarn__nccl *n = link->nccl;
    if (!begin(link) || !is_good(n, link->comm, n->group_start(), "messages cannot be started"))
        return false;
    bool good = true;
    for (int i = 0; good && i < count; i++) {
        const tarn__message *m = &messages[i];
        int status = m->is_send ? n->send(m->memory, m->bytes, TARN__NCCL_UINT8, m->peer, link->comm, link->stream)
                                : n->receive(m->memory, m->bytes, TARN__NCCL_UINT8, m->peer, link->comm, link->stream);
        good = is_good(n, link->comm, status, "a message cannot be started");
    }
    return is_good(n, link->comm, n->group_end(), "messages cannot be started") && good;
}

static bool copy(tarn__link *link, void *to, const void *from, size_t bytes)
{
    return begin(link) && tarn__cuda_good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, link->stream),
                                          "cannot copy device memory");
}

static bool all_reduce(tarn__link *link, float *memory, int64_t elements)
{
    const tarn__nccl *n = link->nccl;
    return begin(link) && is_good(n, link->comm,
                                  n->all_reduce(memory, memory, (size_t)elements, TARN__NCCL_F32, TARN__NCCL_SUM,
                                                link->comm, link->stream),
                                  "a sum cannot be started");
}

static bool sum(tarn__link *link, const tarn__link_sum *given)
{
    return begin(link) && tarn__nccl_tree_sum(given, link->stream);
}

/* Pieces of one size are one call of NCCL, others a broadcast of each. */
static bool gather(tarn__link *link, void *all, const size_t *bytes)
{
    const tarn__nccl *n = link->nccl;
    char *at = all;
    bool is_even = true, good = begin(link);
    for (int i = 1; i < link->size; i++)
        is_even = is_even && bytes[i] == bytes[0];
    if (good && is_even)
        return is_good(n, link->comm,
                       n->all_gather(at + bytes[0] * (size_t)link->rank, all, bytes[0], TARN__NCCL_UINT8, link->comm,
                                     link->stream),
                       "a gather cannot be started");
    good = good && is_good(n, link->comm, n->group_start(), "a gather cannot be started");
    if (!good)
        return false;
    for (int i = 0; good && i < link->size; at += bytes[i++])
        good = bytes[i] == 0 ||
               is_good(n, link->comm, n->broadcast(at, at, bytes[i], TARN__NCCL_UINT8, i, link->comm, link->stream),
                       "a gather cannot be started");
    return is_good(n, link->comm, n->group_end(), "a gather cannot be started") && good;
}

static const tarn__link_row row = {.is_off = is_off,
                                   .between = tarn__gpu_link,
                                   .name = link_name,
                                   .new_id = new_id,
                                   .gpu = gpu,
                                   .open = open_link,
                                   .fork = fork_link,
                                   .join = join_link,
                                   .exchange = exchange,
                                   .copy = copy,
                                   .all_reduce = all_reduce,
                                   .sum = sum,
                                   .gather = gather,
                                   .state = state,
                                   .finished = finished,
                                   .failure = tarn__cuda_failure,
                                   .free = free_link};

TARN_API const tarn__link_row *tarn_link_entry(void);

const tarn__link_row *tarn_link_entry(void)
{
    return &row;
}

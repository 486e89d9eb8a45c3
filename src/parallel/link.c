/* link.c: devices of ranks that are connected (base/kernel/device_link.h): opening, waiting, and the end.
 *
 * The link itself never waits, so that this rank can look at the clock and at the others: the communicator below knows
 * at once of a rank that has ended, and what it has said. A link that has failed, or times out, is aborted: kernels
 * on the device end, and the rank can report. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "core/device/device.h"
#include "parallel/comm.h"

enum { SPINS = 2000 }; /* of a wait before its first pause */
#define LATE_TIME 0.5  /* seconds for another rank to say why a link has failed */
#define PAUSE 20000    /* nanoseconds */

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* The reason of a link is weaker than that of another rank, which may be its cause. `rank` is -1 where it is not known
 * which one has failed. */
static bool fail(const char *function, tarn_comm *comm, int rank, const char *text)
{
    double begin = tarn__platform_seconds();
    bool is_quiet = true;
    comm->failure = (tarn__comm_failure){.rank = -1};
    while (is_quiet && tarn__platform_seconds() - begin < LATE_TIME) {
        is_quiet = comm->row->poll(comm, &comm->failure);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
    }
    if (is_quiet) {
        comm->failure.rank = rank;
        snprintf(comm->failure.text, sizeof(comm->failure.text), "%s", text);
    }
    comm->is_broken = true;
    tarn__link_free(comm);
    return tarn__comm_break(function, comm);
}

bool tarn__link_fail(const char *function, tarn_comm *comm)
{
    char text[256];
    snprintf(text, sizeof(text), "%s", comm->link_row->failure());
    return fail(function, comm, comm->rank, text);
}

static bool wait_for(const char *function, tarn_comm *comm, tarn__link_state (*ask)(tarn__link *link))
{
    char text[256], step[40];
    double begin = tarn__platform_seconds(), limit = tarn__comm_limit(comm);
    tarn__comm_failure failure = {.rank = -1};
    for (int64_t spins = 0;; spins++) {
        tarn__link_state state = ask(comm->link);
        if (state == TARN__LINK_READY)
            return true;
        if (state == TARN__LINK_FAILED)
            return tarn__link_fail(function, comm);
        if (spins % 64 == 63 && !comm->row->poll(comm, &failure))
            return fail(function, comm, failure.rank, failure.text);
        if (spins % 64 == 63 && limit > 0 && tarn__platform_seconds() - begin > limit) {
            snprintf(text, sizeof(text), "%s%s: a rank has ended or does not answer; waited %.3g s",
                     tarn__comm_step(comm, step, sizeof(step)), comm->link_row->name(), comm->timeout);
            return fail(function, comm, -1, text);
        }
        if (spins > SPINS)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
    }
}

bool tarn__link_wait(const char *function, tarn_comm *comm)
{
    return wait_for(function, comm, comm->link_row->state);
}

bool tarn__link_finish(const char *function, tarn_comm *comm)
{
    return wait_for(function, comm, comm->link_row->finished);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* What ranks tell each other before they connect. */
typedef struct offer {
    char name[32]; /* of the link; "": none */
    char gpu[TARN__LINK_GPU];
    char id[TARN__LINK_ID]; /* of rank 0 */
    char failure[256];      /* "": none */
} offer;

/* The link of a device's backend; NULL: it has none. */
static const tarn__link_row *find_row(tarn_device device)
{
    char path[2304], why[512] = "";
    bool has_backend = !tarn__is_meta(device) && !tarn__is_cpu(device);
    const tarn__backend *backend = has_backend ? tarn__backend_at(device.backend) : NULL;
    if (!backend || !tarn__plugin_find(backend->name, path, sizeof(path)))
        return NULL;
    /* dlsym() returns a function as an object pointer; POSIX guarantees equal representations. */
    union {
        void *object;
        tarn__link_entry_fn call;
    } entry = {tarn__platform_symbol(path, TARN__LINK_SYMBOL, why, sizeof(why))};
    return entry.object ? entry.call() : NULL;
}

static offer offer_of(const tarn__link_row *row, const tarn_comm *comm, tarn_device device)
{
    offer own = {.name = ""};
    if (!row)
        return own;
    const char *name = row->name();
    if (name && row->gpu(device.index, own.gpu) && (comm->rank != 0 || row->new_id(own.id)))
        snprintf(own.name, sizeof(own.name), "%s", name);
    else
        snprintf(own.failure, sizeof(own.failure), "%s", row->failure());
    return own;
}

/* All ranks see all offers, so that all fail alike. */
static bool check_offers(const char *function, const tarn_comm *comm, const offer *all)
{
    for (int i = 0; i < comm->size; i++) {
        if (all[i].failure[0])
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: rank %d on %s: NCCL cannot be used: %s; TARN_NCCL=off sums through host memory",
                               function, i, comm->host[i], all[i].failure);
        if (strcmp(all[i].name, all[0].name) != 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: rank %d on %s has %s, rank 0 %s; all ranks need the same",
                               function, i, comm->host[i], all[i].name[0] ? all[i].name : "no NCCL",
                               all[0].name[0] ? all[0].name : "none");
        for (int k = 0; k < i && all[i].name[0]; k++)
            if (strcmp(all[i].gpu, all[k].gpu) == 0 && strcmp(comm->host[i], comm->host[k]) == 0)
                return tarn__raise(TARN_ERROR_ARGUMENT,
                                   "%s: ranks %d and %d share the GPU %s of %s; each needs one of its own", function, k,
                                   i, all[i].gpu, comm->host[i]);
    }
    return true;
}

static bool gather_offers(tarn_comm *comm, const offer *own, offer *all)
{
    size_t list_bytes = sizeof(size_t) * (size_t)comm->size, *sizes = tarn__alloc(list_bytes);
    for (int i = 0; sizes && i < comm->size; i++)
        sizes[i] = sizeof(*own);
    bool good = sizes && tarn_comm_all_gather(comm, own, all, sizes);
    tarn__release(sizes, list_bytes);
    return good;
}

/* The id is rank 0's. */
static bool open_link(const char *function, tarn_comm *comm, const tarn__link_row *row, tarn_device device,
                      const char *id)
{
    comm->link_row = row;
    comm->link_device = device;
    comm->link = row->open(device.index, comm->rank, comm->size, id);
    return comm->link ? tarn__link_wait(function, comm) : tarn__link_fail(function, comm);
}

bool tarn_comm_connect(tarn_comm *comm, tarn_device device)
{
    static const char *const function = "comm_connect";
    if (tarn_failed())
        return false;
    if (!comm)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the communicator is NULL", function);
    if (comm->size == 1 || (comm->link && tarn__same_device(comm->link_device, device)))
        return true;
    if (comm->link)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the ranks are already connected by other devices", function);
    const tarn__link_row *row = find_row(device);
    row = row && !row->is_off() ? row : NULL;
    size_t bytes = sizeof(offer) * (size_t)comm->size;
    offer own = offer_of(row, comm, device), *all = tarn__alloc(bytes);
    bool good = all && gather_offers(comm, &own, all) && check_offers(function, comm, all) &&
                (!row || open_link(function, comm, row, device, all[0].id));
    tarn__release(all, bytes);
    return good;
}

void tarn__link_free(tarn_comm *comm)
{
    if (comm->link)
        comm->link_row->free(comm->link, comm->is_broken);
    comm->link = NULL;
}

bool tarn_device_link(tarn_device a, tarn_device b, char *buffer, size_t size)
{
    static const char *const function = "device_link";
    if (tarn_failed() || !tarn__backend_of(a, function) || !tarn__backend_of(b, function))
        return false;
    if (!buffer || !size)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the buffer is NULL or empty", function);
    const tarn__link_row *row = a.backend == b.backend && a.index != b.index ? find_row(a) : NULL;
    if (!row)
        buffer[0] = 0;
    return !row || row->between(a.index, b.index, buffer, size) ||
           tarn__raise(TARN_ERROR_DEVICE, "%s: %s", function, row->failure());
}

/* comm.c: communicators: collectives over the exchange of a row, and failures.
 *
 * A collective is a few exchanges in which a rank posts all its sends and receives at once: no order of ranks can
 * deadlock, and a peer that does not answer is known by its pending message. The first failure breaks the
 * communicator; its text is kept, so that every later call raises it again. */
#include "parallel/comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"

#define DEFAULT_TIMEOUT 120.0 /* seconds */

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* With an error `state` stays the caller's, as does the row's end. */
tarn_comm *tarn__comm_new(const char *function, const tarn__comm_row *row, void *state, int rank, int size)
{
    tarn_comm *comm = tarn__alloc(sizeof(*comm));
    if (!comm)
        return NULL;
    *comm = (tarn_comm){.row = row, .state = state, .rank = rank, .size = size, .timeout = DEFAULT_TIMEOUT};
    comm->is_reporter = rank == 0;
    comm->host = tarn__alloc(sizeof(*comm->host) * (size_t)size);
    if (comm->host)
        return comm;
    tarn__raise_within(function);
    tarn__comm_release(comm);
    return NULL;
}

void tarn__comm_release(tarn_comm *comm)
{
    tarn__release(comm->host, sizeof(*comm->host) * (size_t)comm->size);
    tarn__release(comm, sizeof(*comm));
}

void tarn_comm_free(tarn_comm *comm)
{
    if (!comm)
        return;
    tarn__link_free(comm);
    comm->row->free(comm);
    tarn__comm_release(comm);
}

static bool check_comm(const char *function, const tarn_comm *comm)
{
    return comm || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the communicator is NULL", function);
}

int tarn_comm_rank(const tarn_comm *comm)
{
    return !tarn_failed() && check_comm("comm_rank", comm) ? comm->rank : -1;
}

int tarn_comm_size(const tarn_comm *comm)
{
    return !tarn_failed() && check_comm("comm_size", comm) ? comm->size : -1;
}

static bool check_rank(const char *function, const tarn_comm *comm, int rank)
{
    return (rank >= 0 && rank < comm->size) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: rank %d is out of range; there are %d, from 0", function, rank,
                       comm->size);
}

/* Borrowed from the communicator. */
const char *tarn_comm_host(const tarn_comm *comm, int rank)
{
    if (tarn_failed() || !check_comm("comm_host", comm) || !check_rank("comm_host", comm, rank))
        return NULL;
    return comm->host[rank];
}

const char *tarn_comm_transport(const tarn_comm *comm)
{
    if (tarn_failed() || !check_comm("comm_transport", comm))
        return NULL;
    return comm->link ? comm->link_row->name() : comm->row->name;
}

bool tarn_comm_set_timeout(tarn_comm *comm, double seconds)
{
    if (tarn_failed() || !check_comm("comm_set_timeout", comm))
        return false;
    if (!(seconds >= 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, "comm_set_timeout: %g seconds; must be at least 0 (no limit)", seconds);
    comm->timeout = seconds;
    return true;
}

/* srun sets SLURM_STEP_NUM_TASKS for a step; SLURM_NTASKS is also set in a batch script, which is one process. */
int tarn_comm_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        long size = text ? strtol(text, NULL, 10) : 0;
        if (size > 1 && size <= INT32_MAX)
            return (int)size;
    }
    return 1;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

const char *tarn__comm_step(const tarn_comm *comm, char *text, size_t size)
{
    text[0] = 0;
    if (comm->step > 0)
        snprintf(text, size, "step %lld: ", (long long)comm->step);
    return text;
}

/* Raises the failure of a broken communicator. Returns false. */
static bool raise_failure(const char *function, const tarn_comm *comm)
{
    const tarn__comm_failure *f = &comm->failure;
    if (f->rank < 0 || f->rank >= comm->size)
        return tarn__raise(TARN_ERROR_IO, "%s: %s", function, f->text[0] ? f->text : "the communicator has failed");
    return tarn__raise(TARN_ERROR_IO, "rank %d on %s: %s", f->rank, comm->host[f->rank], f->text);
}

/* A failure without a text is silence: what is known is the peer and how long it was waited for. */
bool tarn__comm_break(const char *function, tarn_comm *comm)
{
    char step[40];
    tarn__comm_failure *f = &comm->failure;
    f->is_silent = f->rank >= 0 && !f->text[0];
    if (f->is_silent)
        snprintf(f->text, sizeof(f->text), "%sit has ended or does not answer; waited %.3g s",
                 tarn__comm_step(comm, step, sizeof(step)), comm->timeout);
    comm->is_broken = true;
    return raise_failure(function, comm);
}

/* The others wait longer than rank 0, and then longer by their rank: one of them finds a hung rank first and tells the
 * others, so that one sentence is reported. */
double tarn__comm_limit(const tarn_comm *comm)
{
    int steps = comm->rank < 20 ? comm->rank : 20;
    return comm->timeout > 0 ? comm->timeout + 0.25 * steps : 0;
}

bool tarn__comm_exchange(const char *function, tarn_comm *comm, const tarn__message *messages, int count)
{
    if (comm->is_broken)
        return raise_failure(function, comm);
    comm->failure = (tarn__comm_failure){.rank = -1};
    if (count == 0 || (!atomic_load(&comm->is_cancelled) &&
                       comm->row->exchange(comm, messages, count, tarn__comm_limit(comm), &comm->failure)))
        return true;
    return atomic_load(&comm->is_cancelled)
               ? tarn__raise(TARN_ERROR_IO, "%s: another thread of this rank has failed", function)
               : tarn__comm_break(function, comm);
}

void tarn__comm_cancel(tarn_comm *comm)
{
    atomic_store(&comm->is_cancelled, true);
}

bool tarn_comm_poll(tarn_comm *comm)
{
    if (tarn_failed() || !check_comm("comm_poll", comm))
        return false;
    if (comm->is_broken)
        return raise_failure("comm_poll", comm);
    comm->failure = (tarn__comm_failure){.rank = -1};
    return comm->row->poll(comm, &comm->failure) || tarn__comm_break("comm_poll", comm);
}

/* The text of a communicator that is broken already is that of its first failure, which is what the others are told. */
void tarn_comm_abort(tarn_comm *comm, const char *text)
{
    if (!comm || comm->is_aborted)
        return;
    comm->is_aborted = true;
    if (!comm->is_broken) {
        comm->failure.rank = comm->rank;
        snprintf(comm->failure.text, sizeof(comm->failure.text), "%s", text && text[0] ? text : "it has failed");
    }
    comm->is_broken = true;
    if (!comm->row->abort(comm, text && text[0] ? text : "it has failed"))
        comm->is_reporter = true;
}

/* Rank 0 reports, so that one sentence is printed; a rank that could not reach it reports too. */
bool tarn_comm_is_reporter(const tarn_comm *comm)
{
    return comm && comm->is_reporter;
}

bool tarn_comm_set_notice(tarn_comm *comm, tarn_comm_notice_fn notice, void *ctx)
{
    if (tarn_failed() || !check_comm("comm_set_notice", comm))
        return false;
    comm->notice = notice;
    comm->notice_ctx = ctx;
    return true;
}

/* One rank tells of a wait: several would print the same. */
void tarn__comm_notice(tarn_comm *comm, int peer)
{
    char step[40], text[256];
    if (peer < 0 || comm->rank != (peer == 0))
        return;
    comm->noticed = comm->step + 1;
    snprintf(text, sizeof(text), "%swaiting for rank %d on %s, which has ended or is not ready",
             tarn__comm_step(comm, step, sizeof(step)), peer, comm->host[peer]);
    if (comm->notice)
        comm->notice(text, comm->notice_ctx);
    else
        tarn__log(TARN_LOG_NOTICE, "%s", text);
}

void tarn__comm_hurry(tarn_comm *comm)
{
    if (comm)
        atomic_store(&comm->is_hurried, true);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Checks a call, and allocates capacity for the messages of a collective, two per rank. NULL with an error. */
static tarn__message *open_messages(const char *function, const tarn_comm *comm, const void *needed)
{
    if (tarn_failed() || !check_comm(function, comm))
        return NULL;
    if (!needed) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the sizes are NULL", function);
        return NULL;
    }
    return tarn__alloc(sizeof(tarn__message) * 2 * (size_t)comm->size);
}

/* Messages are few: two per rank. They are freed with an error too. */
static void close_messages(const tarn_comm *comm, tarn__message *messages)
{
    tarn__release(messages, sizeof(tarn__message) * 2 * (size_t)comm->size);
}

/* Raises where bytes are to be moved and memory is NULL. */
static bool check_memory(const char *function, const void *memory, size_t bytes)
{
    return memory || bytes == 0 || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the memory is NULL", function);
}

/* Where the part of rank `count` begins: parts lie one after another, of any size. */
static size_t sum_bytes(const size_t *bytes, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += bytes[i];
    return sum;
}

/* Ranks are visited from the next one on, so that not all of them begin with rank 0. */
bool tarn_comm_all_to_all(tarn_comm *comm, const void *in, const size_t *in_bytes, void *out, const size_t *out_bytes)
{
    static const char *const function = "comm_all_to_all";
    tarn__message *messages = open_messages(function, comm, in_bytes && out_bytes ? in_bytes : NULL);
    if (!messages)
        return false;
    int count = 0, own = comm->rank;
    bool good = check_memory(function, in, sum_bytes(in_bytes, comm->size)) &&
                check_memory(function, out, sum_bytes(out_bytes, comm->size)) &&
                (in_bytes[own] == out_bytes[own] ||
                 tarn__raise(TARN_ERROR_ARGUMENT, "%s: rank %d sends itself %zu bytes and receives %zu", function, own,
                             in_bytes[own], out_bytes[own]));
    for (int i = 1; good && i < comm->size; i++) {
        /* In step i each rank sends i ranks up and receives from i ranks down. */
        int to = (own + i) % comm->size, from = (own + comm->size - i) % comm->size;
        char *source = (char *)in + sum_bytes(in_bytes, to), *target = (char *)out + sum_bytes(out_bytes, from);
        if (in_bytes[to])
            messages[count++] = (tarn__message){source, in_bytes[to], to, true};
        if (out_bytes[from])
            messages[count++] = (tarn__message){target, out_bytes[from], from, false};
    }
    if (good && in_bytes[own])
        memcpy((char *)out + sum_bytes(out_bytes, own), (const char *)in + sum_bytes(in_bytes, own), in_bytes[own]);
    good = good && tarn__comm_exchange(function, comm, messages, count);
    close_messages(comm, messages);
    return good;
}

/* `in` may be its own place in `out`, hence the memmove(). */
bool tarn_comm_all_gather(tarn_comm *comm, const void *in, void *out, const size_t *bytes)
{
    static const char *const function = "comm_all_gather";
    tarn__message *messages = open_messages(function, comm, bytes);
    if (!messages)
        return false;
    int count = 0, own = comm->rank;
    bool good = check_memory(function, in, bytes[own]) && check_memory(function, out, sum_bytes(bytes, comm->size));
    for (int i = 1; good && i < comm->size; i++) {
        int to = (own + i) % comm->size, from = (own + comm->size - i) % comm->size;
        if (bytes[own])
            messages[count++] = (tarn__message){(void *)in, bytes[own], to, true};
        if (bytes[from])
            messages[count++] = (tarn__message){(char *)out + sum_bytes(bytes, from), bytes[from], from, false};
    }
    if (good && bytes[own])
        memmove((char *)out + sum_bytes(bytes, own), in, bytes[own]);
    good = good && tarn__comm_exchange(function, comm, messages, count);
    close_messages(comm, messages);
    return good;
}

/* A binomial tree over the ranks counted from the root: a rank receives from the one without its lowest bit, then sends
 * to those with one more, lower bit. */
bool tarn_comm_broadcast(tarn_comm *comm, int root, void *memory, size_t bytes)
{
    static const char *const function = "comm_broadcast";
    tarn__message *messages = open_messages(function, comm, function);
    if (!messages)
        return false;
    bool good = check_rank(function, comm, root) && check_memory(function, memory, bytes);
    /* The rank as counted from the root. */
    int number = good ? (comm->rank - root + comm->size) % comm->size : 0, bit = 1, count = 0;
    while (bit < comm->size && !(number & bit))
        bit <<= 1;
    if (good && bytes && number)
        good = tarn__comm_exchange(function, comm,
                                   &(tarn__message){memory, bytes, (number - bit + root) % comm->size, false}, 1);
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (number + bit < comm->size)
            messages[count++] = (tarn__message){memory, bytes, (number + bit + root) % comm->size, true};
    good = good && (bytes == 0 || tarn__comm_exchange(function, comm, messages, count));
    close_messages(comm, messages);
    return good;
}

/* All ranks hear of all: each knows which one is missing. */
bool tarn_comm_barrier(tarn_comm *comm)
{
    static const char *const function = "comm_barrier";
    tarn__message *messages = open_messages(function, comm, function);
    if (!messages)
        return false;
    size_t size = (size_t)comm->size;
    char *bytes = tarn__alloc(size);
    int count = 0, own = comm->rank;
    if (bytes)
        memset(bytes, 0, size);
    for (int i = 1; bytes && i < comm->size; i++) {
        int to = (own + i) % comm->size, from = (own + comm->size - i) % comm->size;
        messages[count++] = (tarn__message){&bytes[own], 1, to, true};
        messages[count++] = (tarn__message){&bytes[from], 1, from, false};
    }
    bool good = bytes && tarn__comm_exchange(function, comm, messages, count);
    tarn__release(bytes, size);
    close_messages(comm, messages);
    return good;
}

/* ---- single messages --------------------------------------------------------------------------------------------- */

/* A message of no bytes is none. */
static bool single(const char *function, tarn_comm *comm, void *memory, size_t bytes, int peer, bool is_send)
{
    if (tarn_failed() || !check_comm(function, comm) || !check_rank(function, comm, peer) ||
        !check_memory(function, memory, bytes))
        return false;
    if (peer == comm->rank)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: rank %d is this rank; must be another one", function, peer);
    return tarn__comm_exchange(function, comm, &(tarn__message){memory, bytes, peer, is_send}, bytes > 0);
}

bool tarn_comm_send(tarn_comm *comm, int to, const void *memory, size_t bytes)
{
    return single("comm_send", comm, (void *)memory, bytes, to, true);
}

bool tarn_comm_receive(tarn_comm *comm, int from, void *memory, size_t bytes)
{
    return single("comm_receive", comm, memory, bytes, from, false);
}

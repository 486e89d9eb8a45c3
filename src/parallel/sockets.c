/* sockets.c: the communicator between processes of one machine, connected by pairs of local sockets.
 *
 * Every pair of ranks has two pairs of sockets: a stream for data, and one for control records: a rank has aborted,
 * waits for a peer, or leaves. A record is sent whole or not at all, so that an abort arrives in the middle of any
 * message. When a rank ends without a record, its sockets close, and the others know at once. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "parallel/comm.h"

enum { MAX_RANKS = 1024, WAIT = 50 /* milliseconds */ };
/* Max bytes of unread records before a wait is sent, so that an abort and a leave still have space. */
enum { MAX_UNREAD = 32 << 10 };
#define LATE_TIME 0.5 /* seconds that messages sent before an abort may come after it */

typedef enum record_kind { RECORD_ABORT = 1, RECORD_LEAVE, RECORD_WAIT } record_kind;

typedef struct record {
    int32_t kind, rank; /* of an abort: the rank that failed; of a wait: the peer, or -1: the wait has ended */
    char text[TARN__COMM_TEXT];
} record;

typedef struct peer {
    int data, control; /* -1: the own rank */
    bool has_ended;    /* its sockets are closed */
    bool has_aborted;  /* and told so */
    bool has_left;
    bool is_told; /* the last record sent to it is a wait that has not ended */
} peer;

typedef struct group {
    peer *peer; /* [size] */
    struct pollfd *wait;
    int *waits_for; /* [size] the peer that a rank waits for; -1: none */
    bool is_aborted;
    tarn__comm_failure failure;
} group;

/* ---- control ----------------------------------------------------------------------------------------------------- */

/* Reads the records of a rank that have arrived. The first abort is kept. */
static void hear(group *g, int rank)
{
    record r;
    peer *p = &g->peer[rank];
    while (p->control >= 0 && !p->has_ended) {
        ssize_t got = recv(p->control, &r, sizeof(r), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got < 0 && errno == EINTR)
            continue;
        p->has_ended = got != (ssize_t)sizeof(r);
        if (p->has_ended)
            return;
        p->has_aborted = p->has_aborted || r.kind == RECORD_ABORT;
        p->has_left = p->has_left || r.kind == RECORD_LEAVE;
        if (r.kind == RECORD_WAIT)
            g->waits_for[rank] = r.rank;
        if (r.kind == RECORD_ABORT && !g->is_aborted) {
            g->is_aborted = true;
            g->failure = (tarn__comm_failure){.rank = r.rank};
            memcpy(g->failure.text, r.text, sizeof(r.text));
            g->failure.text[sizeof(r.text) - 1] = 0;
        }
    }
}

static void hear_all(const tarn_comm *comm)
{
    for (int i = 0; i < comm->size; i++)
        hear(comm->state, i);
}

/* Tells a rank, unless it has ended. Aborts and leaves are few: a socket has space for them. */
static void tell(const group *g, int rank, record_kind kind, int about, const char *text)
{
    record r = {.kind = (int32_t)kind, .rank = about};
    snprintf(r.text, sizeof(r.text), "%s", text);
    if (g->peer[rank].control >= 0 && !g->peer[rank].has_ended &&
        send(g->peer[rank].control, &r, sizeof(r), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* it has ended: the next read of its sockets says so */
}

/* Tells the other ranks which peer this rank waits for; -1: none any more. A rank reads records only while it waits
 * itself: others are sent waits only as long as few records are unread. */
static void tell_wait(const tarn_comm *comm, int waits_for)
{
    group *g = comm->state;
    for (int i = 0; i < comm->size; i++) {
        peer *p = &g->peer[i];
        int unread = 0;
        bool has_space = p->control >= 0 && ioctl(p->control, TIOCOUTQ, &unread) == 0 && unread < MAX_UNREAD;
        if (waits_for >= 0 ? !has_space : !p->is_told)
            continue;
        tell(g, i, RECORD_WAIT, waits_for, "");
        p->is_told = waits_for >= 0;
    }
}

/* A rank that ends without a word has been killed. */
static bool fail_ended(const tarn_comm *comm, int rank, tarn__comm_failure *failure)
{
    char step[40];
    hear_all(comm); /* its last words, or those of a rank that ended because of another one */
    group *g = comm->state;
    if (g->is_aborted) {
        *failure = g->failure;
        return false;
    }
    failure->rank = rank;
    snprintf(failure->text, sizeof(failure->text), "%sit has ended", tarn__comm_step(comm, step, sizeof(step)));
    return false;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Bytes of a message that are done. */
typedef struct progress {
    size_t done;
} progress;

typedef enum moved { MOVED_NONE, MOVED_SOME, MOVED_ENDED } moved;

/* Moves what the socket takes or has. */
static moved move(const group *g, const tarn__message *m, progress *p)
{
    int socket = g->peer[m->peer].data;
    bool has_moved = false;
    while (p->done < m->bytes) {
        char *at = (char *)m->memory + p->done;
        ssize_t count = m->is_send ? send(socket, at, m->bytes - p->done, MSG_DONTWAIT | MSG_NOSIGNAL)
                                   : recv(socket, at, m->bytes - p->done, MSG_DONTWAIT);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (count <= 0)
            return MOVED_ENDED;
        p->done += (size_t)count;
        has_moved = true;
    }
    return has_moved ? MOVED_SOME : MOVED_NONE;
}

/* True for the first pending message of its rank and direction: the others wait, so that order is kept. */
static bool is_next(const tarn__message *messages, const progress *p, int i)
{
    for (int k = 0; k < i; k++)
        if (p[k].done < messages[k].bytes && messages[k].peer == messages[i].peer &&
            messages[k].is_send == messages[i].is_send)
            return false;
    return true;
}

/* State of an exchange after a round over its messages. */
typedef struct round {
    int left;    /* messages that are not done */
    int pending; /* the rank of the first of them; of a receive where there is one */
    int ended;   /* a rank that has ended; -1: none */
    bool has_moved;
} round;

static round advance(const group *g, const tarn__message *messages, progress *p, int count)
{
    round r = {.pending = -1, .ended = -1};
    bool is_receive = false;
    for (int i = 0; i < count; i++) {
        const tarn__message *m = &messages[i];
        if (p[i].done == m->bytes)
            continue;
        moved how = is_next(messages, p, i) ? move(g, m, &p[i]) : MOVED_NONE;
        r.has_moved = r.has_moved || how == MOVED_SOME;
        r.ended = how == MOVED_ENDED ? m->peer : r.ended;
        if (p[i].done == m->bytes)
            continue;
        if (r.left++ == 0 || (!is_receive && !m->is_send)) {
            r.pending = m->peer;
            is_receive = !m->is_send;
        }
    }
    return r;
}

/* Waits until a pending message can move, a rank speaks, or a moment has passed. */
static void wait_for(const tarn_comm *comm, const tarn__message *messages, const progress *p, int count)
{
    group *g = comm->state;
    nfds_t used = 0;
    for (int i = 0; i < comm->size; i++) {
        short events = 0;
        for (int k = 0; k < count; k++)
            if (messages[k].peer == i && p[k].done < messages[k].bytes)
                events = (short)(events | (messages[k].is_send ? POLLOUT : POLLIN));
        if (events)
            g->wait[used++] = (struct pollfd){.fd = g->peer[i].data, .events = events};
        if (g->peer[i].control >= 0 && !g->peer[i].has_ended)
            g->wait[used++] = (struct pollfd){.fd = g->peer[i].control, .events = POLLIN};
    }
    poll(g->wait, used, WAIT);
}

/* An abort may overtake messages: where all come within LATE_TIME, the next call reports it. So a mistake that every
 * rank finds by itself is not reported as that of the rank which found it first. */
static bool run(tarn_comm *comm, const tarn__message *messages, progress *p, int count, double seconds,
                tarn__comm_wait *wait, tarn__comm_failure *failure)
{
    group *g = comm->state;
    double aborted = 0;
    bool was_aborted = g->is_aborted;
    for (;;) {
        round r = advance(g, messages, p, count);
        if (r.left == 0)
            return true;
        if (r.ended >= 0)
            return fail_ended(comm, r.ended, failure);
        double waited = tarn__comm_waited(wait, tarn__platform_seconds());
        if (r.has_moved) {
            wait->waited = aborted = 0; /* on the same clock */
            continue;
        }
        hear_all(comm);
        if (g->is_aborted && !was_aborted) {
            was_aborted = true;
            aborted = waited;
        }
        if (g->is_aborted && waited - aborted > LATE_TIME) {
            *failure = g->failure;
            return false;
        }
        if (atomic_load(&comm->is_cancelled))
            return false;
        if (seconds > 0 && waited > seconds) {
            failure->rank = tarn__comm_culprit(comm, g->waits_for, r.pending);
            return false;
        }
        if (tarn__comm_tell_is_due(comm, wait, r.pending))
            tell_wait(comm, wait->told = r.pending);
        if (tarn__comm_notice_is_due(comm, waited))
            tarn__comm_notice(comm, tarn__comm_culprit(comm, g->waits_for, r.pending));
        wait_for(comm, messages, p, count);
    }
}

static bool exchange(tarn_comm *comm, const tarn__message *messages, int count, double seconds,
                     tarn__comm_failure *failure)
{
    size_t bytes = sizeof(progress) * (size_t)count;
    progress *p = tarn__alloc(bytes);
    if (!p) {
        snprintf(failure->text, sizeof(failure->text), "out of memory");
        return false;
    }
    memset(p, 0, bytes);
    tarn__comm_wait wait = {.last = tarn__platform_seconds(), .told = -1};
    bool good = run(comm, messages, p, count, seconds, &wait, failure);
    hear_all(comm); /* a rank that never waits reads its records here */
    if (good && wait.told >= 0)
        tell_wait(comm, -1);
    tarn__release(p, bytes);
    return good;
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

static bool poll_group(tarn_comm *comm, tarn__comm_failure *failure)
{
    group *g = comm->state;
    hear_all(comm);
    for (int i = 0; !g->is_aborted && i < comm->size; i++)
        if (g->peer[i].has_ended && !g->peer[i].has_aborted && !g->peer[i].has_left)
            return fail_ended(comm, i, failure);
    if (g->is_aborted)
        *failure = g->failure;
    return !g->is_aborted;
}

/* The first rank that is there, or has failed and told so, reports. A rank that has left, or does not answer, is none.
 */
static bool abort_group(tarn_comm *comm, const char *text)
{
    group *g = comm->state;
    tarn__comm_failure own = comm->failure;
    if (!own.text[0])
        snprintf(own.text, sizeof(own.text), "%s", text);
    hear_all(comm);
    for (int i = 0; i < comm->size; i++)
        tell(g, i, RECORD_ABORT, own.rank, own.text);
    for (int i = 0; i < comm->rank; i++) {
        const peer *p = &g->peer[i];
        bool is_silent = comm->failure.is_silent && comm->failure.rank == i;
        if (p->has_aborted || (!p->has_ended && !p->has_left && !is_silent))
            return true;
    }
    return comm->rank == 0;
}

static void free_group(group *g, int size, bool closes)
{
    for (int i = 0; closes && g->peer && i < size; i++)
        if (g->peer[i].data >= 0) {
            close(g->peer[i].data);
            close(g->peer[i].control);
        }
    tarn__release(g->peer, sizeof(*g->peer) * (size_t)size);
    tarn__release(g->wait, sizeof(*g->wait) * 2 * (size_t)size);
    tarn__release(g->waits_for, sizeof(*g->waits_for) * (size_t)size);
    tarn__release(g, sizeof(*g));
}

static void free_rank(tarn_comm *comm)
{
    for (int i = 0; !comm->is_broken && i < comm->size; i++)
        tell(comm->state, i, RECORD_LEAVE, comm->rank, "");
    free_group(comm->state, comm->size, true);
}

static const tarn__comm_row row = {"sockets", exchange, poll_group, abort_group, free_rank};

static group *new_group(int rank, int size, const int *sockets)
{
    group *g = tarn__alloc(sizeof(*g));
    if (!g)
        return NULL;
    *g = (group){.peer = tarn__alloc(sizeof(*g->peer) * (size_t)size),
                 .wait = tarn__alloc(sizeof(*g->wait) * 2 * (size_t)size),
                 .waits_for = tarn__alloc(sizeof(*g->waits_for) * (size_t)size)};
    if (!g->peer || !g->wait || !g->waits_for) {
        free_group(g, size, false);
        return NULL;
    }
    for (int i = 0; i < size; i++)
        g->waits_for[i] = -1;
    for (int i = 0; i < size; i++)
        g->peer[i] = i == rank ? (peer){.data = -1, .control = -1}
                               : (peer){.data = sockets[2 * i], .control = sockets[2 * i + 1]};
    return g;
}

tarn_comm *tarn_comm_sockets(int rank, int size, const int *sockets)
{
    static const char *const function = "comm_sockets";
    if (tarn_failed())
        return NULL;
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size || !sockets) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "%s: rank %d of %d%s; expected a rank from 0 to size - 1 and a size from 1 to %d", function, rank,
                    size, sockets ? "" : ", and `sockets` is NULL", MAX_RANKS);
        return NULL;
    }
    group *g = new_group(rank, size, sockets);
    tarn_comm *comm = g ? tarn__comm_new(function, &row, g, rank, size) : NULL;
    if (g && !comm)
        free_group(g, size, false);
    for (int i = 0; comm && i < size; i++)
        tarn__platform_host_name(comm->host[i], sizeof(comm->host[i]));
    return comm;
}

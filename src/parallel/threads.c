/* threads.c: the communicator between threads of one process.
 *
 * One lock guards the group. A send is queued per pair of ranks and stays where its sender has it: the receiver copies
 * from there, without the lock, and the sender waits for that. So a message is copied once, and an exchange that fails
 * removes its own sends, but waits for a copy that has begun. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "parallel/comm.h"

enum { MAX_RANKS = 1024 };

/* A queued send. It belongs to the exchange of its sender. */
typedef struct parcel {
    const tarn__message *message;
    struct parcel *next;
    bool is_taken, is_done;
} parcel;

typedef struct group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, users; /* ranks, and those whose handle is not freed */
    parcel **queue;  /* [from · size + to], first in first out */
    int *waits_for;  /* [size]: the peer that a rank waits for; -1: none */
    bool is_aborted;
    tarn__comm_failure failure;
} group;

/* ---- queues, under the lock -------------------------------------------------------------------------------------- */

static parcel **queue_of(group *g, int from, int to)
{
    return &g->queue[(size_t)from * (size_t)g->size + (size_t)to];
}

/* Queues are as long as one exchange posts to one rank: a few. */
static void append(parcel **queue, parcel *p)
{
    while (*queue)
        queue = &(*queue)->next;
    *queue = p;
}

/* A parcel that is not in the queue was taken. */
static void remove_parcel(parcel **queue, parcel *p)
{
    while (*queue && *queue != p)
        queue = &(*queue)->next;
    if (*queue)
        *queue = p->next;
}

/* Copies a waiting parcel to its receiver; the lock is released meanwhile. False: none waits. */
static bool receive(group *g, int rank, const tarn__message *to)
{
    parcel **queue = queue_of(g, to->peer, rank), *p = *queue;
    if (!p)
        return false;
    *queue = p->next;
    p->is_taken = true;
    pthread_mutex_unlock(&g->lock);
    memcpy(to->memory, p->message->memory, to->bytes < p->message->bytes ? to->bytes : p->message->bytes);
    pthread_mutex_lock(&g->lock);
    p->is_done = true;
    pthread_cond_broadcast(&g->changed);
    return true;
}

/* Waits for a change, at most a moment: callers look at their clock. */
static void wait_a_moment(group *g)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

/* Receives what has arrived; messages of a pair in their order. Returns the number of messages that are not done, the
 * peer of the first one, and whether one was copied: others may have come meanwhile, without the lock. */
static int advance(group *g, int rank, const tarn__message *messages, parcel *parcels, int count, int *peer,
                   bool *has_moved)
{
    int left = 0;
    *has_moved = false;
    for (int i = 0; i < count; i++) {
        if (!messages[i].is_send && !parcels[i].is_done) {
            bool is_first = true;
            for (int k = 0; k < i && is_first; k++)
                is_first = messages[k].is_send || parcels[k].is_done || messages[k].peer != messages[i].peer;
            parcels[i].is_done = is_first && receive(g, rank, &messages[i]);
            *has_moved = *has_moved || parcels[i].is_done;
        }
        if (!parcels[i].is_done && left++ == 0)
            *peer = messages[i].peer;
    }
    return left;
}

/* Takes the own sends back, and waits for those that are being copied. */
static void take_back(group *g, int rank, const tarn__message *messages, parcel *parcels, int count)
{
    for (int i = 0; i < count; i++) {
        if (!messages[i].is_send)
            continue;
        if (!parcels[i].is_taken)
            remove_parcel(queue_of(g, rank, messages[i].peer), &parcels[i]);
        while (parcels[i].is_taken && !parcels[i].is_done)
            wait_a_moment(g);
    }
}

/* The lock is held, but for the time of copies and waits. */
static bool run(tarn_comm *comm, const tarn__message *messages, parcel *parcels, int count, double seconds,
                tarn__comm_failure *failure)
{
    group *g = comm->state;
    tarn__comm_wait wait = {.last = tarn__platform_seconds(), .told = -1};
    int peer = -1;
    bool has_moved, good = true;
    for (int i = 0; i < count; i++) {
        parcels[i] = (parcel){.message = &messages[i]};
        if (messages[i].is_send)
            append(queue_of(g, comm->rank, messages[i].peer), &parcels[i]);
    }
    pthread_cond_broadcast(&g->changed);
    while (good && advance(g, comm->rank, messages, parcels, count, &peer, &has_moved) > 0) {
        double waited = tarn__comm_waited(&wait, tarn__platform_seconds());
        if (has_moved) {
            wait.waited = 0;
            continue;
        }
        g->waits_for[comm->rank] = peer;
        int culprit = tarn__comm_culprit(comm, g->waits_for, peer);
        good = !g->is_aborted && !atomic_load(&comm->is_cancelled) && (seconds <= 0 || waited <= seconds);
        if (!good) {
            *failure = g->is_aborted ? g->failure : (tarn__comm_failure){.rank = culprit};
            take_back(g, comm->rank, messages, parcels, count);
        } else {
            if (tarn__comm_notice_is_due(comm, waited))
                tarn__comm_notice(comm, culprit);
            wait_a_moment(g);
        }
    }
    g->waits_for[comm->rank] = -1;
    return good;
}

/* The parcels are of this call alone: none is left in a queue when it returns. */
static bool exchange(tarn_comm *comm, const tarn__message *messages, int count, double seconds,
                     tarn__comm_failure *failure)
{
    group *g = comm->state;
    size_t bytes = sizeof(parcel) * (size_t)count;
    parcel *parcels = tarn__alloc(bytes);
    if (!parcels) {
        snprintf(failure->text, sizeof(failure->text), "out of memory");
        return false;
    }
    pthread_mutex_lock(&g->lock);
    bool good = run(comm, messages, parcels, count, seconds, failure);
    pthread_mutex_unlock(&g->lock);
    tarn__release(parcels, bytes);
    return good;
}

/* An exchange finds an abort by itself; this is for ranks between exchanges. */
static bool poll(tarn_comm *comm, tarn__comm_failure *failure)
{
    group *g = comm->state;
    pthread_mutex_lock(&g->lock);
    bool is_aborted = g->is_aborted;
    if (is_aborted)
        *failure = g->failure;
    pthread_mutex_unlock(&g->lock);
    return !is_aborted;
}

/* The first failure is the group's. */
static bool abort_group(tarn_comm *comm, const char *text)
{
    group *g = comm->state;
    pthread_mutex_lock(&g->lock);
    if (!g->is_aborted) {
        g->failure.rank = comm->failure.rank;
        snprintf(g->failure.text, sizeof(g->failure.text), "%s", comm->failure.text[0] ? comm->failure.text : text);
    }
    g->is_aborted = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return true;
}

/* After the last handle: no thread can hold the lock. */
static void destroy(group *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    tarn__release(g->queue, sizeof(*g->queue) * (size_t)g->size * (size_t)g->size);
    tarn__release(g->waits_for, sizeof(*g->waits_for) * (size_t)g->size);
    tarn__release(g, sizeof(*g));
}

static void free_rank(tarn_comm *comm)
{
    group *g = comm->state;
    pthread_mutex_lock(&g->lock);
    bool is_last = --g->users == 0;
    pthread_mutex_unlock(&g->lock);
    if (is_last)
        destroy(g);
}

static const tarn__comm_row row = {"threads", exchange, poll, abort_group, free_rank};

/* A handle for each rank; any may be freed first. */
static group *new_group(int size)
{
    group *g = tarn__alloc(sizeof(*g));
    if (!g)
        return NULL;
    *g = (group){.size = size};
    g->queue = tarn__alloc(sizeof(*g->queue) * (size_t)size * (size_t)size);
    g->waits_for = tarn__alloc(sizeof(*g->waits_for) * (size_t)size);
    if (!g->queue || !g->waits_for) {
        tarn__release(g->queue, sizeof(*g->queue) * (size_t)size * (size_t)size);
        tarn__release(g->waits_for, sizeof(*g->waits_for) * (size_t)size);
        tarn__release(g, sizeof(*g));
        return NULL;
    }
    for (int i = 0; i < size; i++)
        g->waits_for[i] = -1;
    memset(g->queue, 0, sizeof(*g->queue) * (size_t)size * (size_t)size);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    return g;
}

bool tarn_comm_threads(int size, tarn_comm **ranks)
{
    static const char *const function = "comm_threads";
    if (tarn_failed())
        return false;
    if (!ranks)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: `ranks` is NULL", function);
    if (size < 1 || size > MAX_RANKS)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %d ranks; must be from 1 to %d", function, size, MAX_RANKS);
    char host[TARN__COMM_HOST];
    tarn__platform_host_name(host, sizeof(host));
    group *g = new_group(size);
    for (int i = 0; g && i < size; i++) {
        ranks[i] = tarn__comm_new(function, &row, g, i, size);
        if (!ranks[i]) {
            while (i-- > 0)
                tarn__comm_release(ranks[i]);
            destroy(g);
            return false;
        }
        for (int k = 0; k < size; k++)
            memcpy(ranks[i]->host[k], host, sizeof(host));
        g->users++;
    }
    return g != NULL;
}

/* comm.h: communicators, for the files of parallel: a table of functions per transport, as a backend is.
 *
 * A row has one data function: exchange() runs sends and receives together. Collectives are built on it (comm.c), so
 * that a new transport is four functions. Messages of a pair of ranks arrive in the order in which they were sent. */
#ifndef TARN__COMM_H
#define TARN__COMM_H

#include <float.h>
#include <stdatomic.h>
#include <tarn/parallel.h>

#include "base/kernel/device_link.h"

enum { TARN__COMM_HOST = 64, TARN__COMM_TEXT = 768 };

/* Why an exchange has failed. */
typedef struct tarn__comm_failure {
    int rank;                   /* that failed, ended or does not answer; -1: unknown */
    bool is_silent;             /* it does not answer; found by this rank */
    char text[TARN__COMM_TEXT]; /* "": it does not answer */
} tarn__comm_failure;

typedef struct tarn__comm_row {
    const char *name;
    /* Runs all messages and waits for them, at most `seconds` (0: no limit) for each peer. False with `failure`. Tells
     * the other ranks which peer it waits for when tarn__comm_tell_is_due(), calls tarn__comm_notice() with the culprit
     * of the wait when tarn__comm_notice_is_due(), and fails without a failure once comm->is_cancelled. */
    bool (*exchange)(tarn_comm *comm, const tarn__message *messages, int count, double seconds,
                     tarn__comm_failure *failure);
    /* False with `failure` if a rank has aborted. Does not wait. */
    bool (*poll)(tarn_comm *comm, tarn__comm_failure *failure);
    /* Tells the others. True: rank 0 has answered, or is this rank. */
    bool (*abort)(tarn_comm *comm, const char *text);
    void (*free)(tarn_comm *comm); /* everything but the struct */
} tarn__comm_row;

struct tarn_comm {
    const tarn__comm_row *row;
    void *state; /* of the row */
    int rank, size;
    char (*host)[TARN__COMM_HOST]; /* [size] */
    double timeout;                /* seconds */
    atomic_bool is_hurried;        /* the user wants the run to stop; set by a signal handler */
    atomic_bool is_cancelled;      /* this rank is about to abort: its exchanges on other threads fail at once */
    bool is_single_threaded;       /* all calls come from the thread that created it */
    int64_t step;                  /* of a run, for messages; 0: none */
    int64_t noticed;               /* the last step with a notice, + 1; 0: none */
    tarn_comm_notice_fn notice;    /* NULL: the log */
    void *notice_ctx;
    bool is_broken, is_aborted;
    bool is_reporter;
    tarn__comm_failure failure; /* of a broken communicator */
    /* Between the devices of the ranks; NULL: tensors go through host memory. */
    const tarn__link_row *link_row;
    tarn__link *link;
    tarn_device link_device; /* of this rank */
};

/* A communicator with a row, its state, rank and size. The caller owns it. NULL with an error. */
tarn_comm *tarn__comm_new(const char *function, const tarn__comm_row *row, void *state, int rank, int size);

/* Frees the struct alone. */
void tarn__comm_release(tarn_comm *comm);

/* Runs messages together. Breaks the communicator where that fails. False with an error. */
bool tarn__comm_exchange(const char *function, tarn_comm *comm, const tarn__message *messages, int count);

/* Makes an exchange that runs on another thread of this rank fail at once, and all later ones. The caller then aborts.
 */
void tarn__comm_cancel(tarn_comm *comm);

/* Breaks the communicator with comm->failure and raises that. Returns false. */
bool tarn__comm_break(const char *function, tarn_comm *comm);

/* Seconds that this rank waits for others; 0: no limit. */
double tarn__comm_limit(const tarn_comm *comm);

/* Writes "step 12: ", or "" outside of a run, and returns `text`. */
const char *tarn__comm_step(const tarn_comm *comm, char *text, size_t size);

#define TARN__COMM_HURRY 0.25 /* seconds of a wait until its notice, once the user wants the run to stop */
#define TARN__COMM_SLOW 0.25  /* fraction of the time limit of a wait until its notice */

#define TARN__COMM_PAUSE 0.1 /* max seconds counted per round of a wait: this process may have been stopped */

/* A wait of an exchange. */
typedef struct tarn__comm_wait {
    double last, waited; /* seconds: the clock at the last round; sum of rounds without progress */
    int told;            /* the peer that the other ranks know of; -1: none */
} tarn__comm_wait;

/* Adds a round to a wait. Time in which this rank was stopped, or had no core, does not count as silence of others. */
static inline double tarn__comm_waited(tarn__comm_wait *wait, double now)
{
    double round = now - wait->last;
    wait->last = now;
    return wait->waited += round < TARN__COMM_PAUSE ? round : TARN__COMM_PAUSE;
}

/* Seconds of a wait until its notice; DBL_MAX: never. */
static inline double tarn__comm_notice_time(const tarn_comm *comm)
{
    double slow = comm->timeout > 0 ? TARN__COMM_SLOW * comm->timeout : DBL_MAX;
    return atomic_load(&comm->is_hurried) && TARN__COMM_HURRY < slow ? TARN__COMM_HURRY : slow;
}

/* True when the other ranks must be told which peer this rank waits for: before any of them names a culprit. */
static inline bool tarn__comm_tell_is_due(const tarn_comm *comm, const tarn__comm_wait *wait, int peer)
{
    double slow = comm->timeout > 0 ? TARN__COMM_SLOW * comm->timeout : TARN__COMM_HURRY;
    return wait->told != peer && wait->waited > 0.5 * (TARN__COMM_HURRY < slow ? TARN__COMM_HURRY : slow);
}

/* The rank that causes a wait for `peer`: the end of the chain of ranks that wait for one another; `peer` itself if the
 * chain is a cycle. waits_for: the peer that each rank waits for; -1: none. */
static inline int tarn__comm_culprit(const tarn_comm *comm, const int *waits_for, int peer)
{
    int at = peer;
    for (int i = 0; i < comm->size && at >= 0; i++) {
        int next = waits_for[at];
        if (next < 0 || next >= comm->size)
            return at;
        at = next == comm->rank ? -1 : next;
    }
    return peer;
}

/* True when a wait is to be told to the user: it is long, or the user wants the run to stop, and there was none in this
 * step. */
static inline bool tarn__comm_notice_is_due(const tarn_comm *comm, double waited)
{
    return comm->noticed != comm->step + 1 && waited > tarn__comm_notice_time(comm);
}

/* Tells the user that rank 0 waits for another one, or rank 1 for rank 0. */
void tarn__comm_notice(tarn_comm *comm, int peer);

/* The user wants the run to stop: a wait for a peer is told at once. Async-signal-safe. */
void tarn__comm_hurry(tarn_comm *comm);

/* ---- device links (link.c) --------------------------------------------------------------------------------------- */

/* Waits until the last call is on the device's stream; all work of the link has ended. A rank that fails, and time that
 * runs out, abort the link and break the communicator. False with an error. */
bool tarn__link_wait(const char *function, tarn_comm *comm);
bool tarn__link_finish(const char *function, tarn_comm *comm);

/* The same for a call that has failed at once. Returns false. */
bool tarn__link_fail(const char *function, tarn_comm *comm);

/* Frees the link of a communicator; NULL is allowed. */
void tarn__link_free(tarn_comm *comm);

/* ---- the MPI library (mpi/) -------------------------------------------------------------------------------------- */

#define TARN__MPI_SYMBOL "tarn_mpi_entry"

/* What libtarn tells the library: `version` is its own, `notice` is called during an exchange. */
typedef struct tarn__mpi_host {
    const char *version;
    size_t comm_bytes; /* sizeof(tarn_comm): differs between builds that do not belong together */
    void (*notice)(tarn_comm *comm, int peer);
} tarn__mpi_host;

/* The place of this process, and whether MPI allows its main thread alone. */
typedef struct tarn__mpi_job {
    int rank, size;
    bool is_single_threaded;
} tarn__mpi_job;

/* Entry of libtarn-mpi.so. Sets `job`. NULL with the reason in `why`. */
typedef const tarn__comm_row *(*tarn__mpi_entry_fn)(const tarn__mpi_host *host, tarn__mpi_job *job, char *why,
                                                    size_t why_size);

#endif

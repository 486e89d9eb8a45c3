/* plugin.c: libtarn-mpi.so: the exchange of a communicator over MPI.
 *
 * All messages are non-blocking and tested in a loop, which also looks for the abort of another rank and at the clock:
 * a call never hangs because a peer has ended. Messages above CHUNK bytes are cut, since MPI counts in int. MPI is
 * used from one thread at a time; where the library allows no other thread than the main one, the communicator says
 * so. A communicator of its own keeps messages apart from those of the program, which may have
 * started MPI before. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "parallel/comm.h"

/* SPINS: tests of a wait before its first pause. */
enum { DATA_TAG = 1, ABORT_TAG = 2, WAIT_TAG = 3, SPINS = 2000 };
#define CHUNK ((size_t)1 << 30)
#define LATE_TIME 0.5     /* seconds that messages sent before an abort may come after it */
#define ANSWER_TIME 5.0   /* seconds that an abort waits for rank 0 */
#define FAREWELL_TIME 2.0 /* seconds that a broken communicator waits for the others before it ends the job */

static MPI_Comm world = MPI_COMM_NULL;
static bool is_ours; /* MPI was started here */
static tarn__mpi_host host;
static bool is_aborted;                       /* an abort has come */
static tarn__comm_failure abort_failure;      /* what it says */
static bool has_answered;                     /* rank 0 has sent an abort: it knows of the failure */
static char abort_text[TARN__COMM_TEXT + 16]; /* stays valid while it is being sent */
static int *waits_for;                        /* [size] the peer that a rank waits for, as it has told; -1: none */
static int *numbers;                          /* [1 + size] -1, 0, 1, …: never change while they are being sent */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Ranks may share cores: a wait that lasts gives its core to the others. */
static void pause_after(int64_t spins)
{
    if (spins > SPINS)
        nanosleep(&(struct timespec){.tv_nsec = spins > 10 * SPINS ? 200000 : 20000}, NULL);
}

/* ---- aborts ------------------------------------------------------------------------------------------------------ */

/* Receives an abort: "RANK TEXT" with the rank that has failed. False: none has arrived. */
static bool receive_abort(tarn__comm_failure *failure)
{
    int has_arrived = 0;
    MPI_Status status;
    char text[sizeof(abort_text)] = "";
    if (MPI_Iprobe(MPI_ANY_SOURCE, ABORT_TAG, world, &has_arrived, &status) != MPI_SUCCESS || !has_arrived)
        return false;
    MPI_Recv(text, sizeof(text), MPI_CHAR, status.MPI_SOURCE, ABORT_TAG, world, MPI_STATUS_IGNORE);
    text[sizeof(text) - 1] = 0;
    char *rest = text;
    failure->rank = (int)strtol(text, &rest, 10);
    snprintf(failure->text, sizeof(failure->text), "%s", rest[0] ? rest + 1 : rest);
    has_answered = has_answered || status.MPI_SOURCE == 0;
    return true;
}

/* An abort is kept: it is received once and holds for all later calls. */
static bool poll(tarn_comm *comm, tarn__comm_failure *failure)
{
    (void)comm;
    is_aborted = is_aborted || receive_abort(&abort_failure);
    if (is_aborted)
        *failure = abort_failure;
    return !is_aborted;
}

/* Every rank that fails, or hears of a failure, sends it on: the message of rank 0 is its answer. */
static bool abort_job(tarn_comm *comm, const char *text)
{
    double begin = seconds_now();
    tarn__comm_failure other;
    bool is_first = comm->rank == 0, waits = !is_first && !(comm->failure.is_silent && comm->failure.rank == 0);
    snprintf(abort_text, sizeof(abort_text), "%d %s", comm->failure.rank,
             comm->failure.text[0] ? comm->failure.text : text);
    for (int i = 0; i < comm->size; i++) {
        MPI_Request request;
        if (i != comm->rank &&
            MPI_Isend(abort_text, (int)sizeof(abort_text), MPI_CHAR, i, ABORT_TAG, world, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
    for (int64_t spins = 0; waits && !has_answered && seconds_now() - begin < ANSWER_TIME; spins++) {
        receive_abort(&other);
        pause_after(spins);
    }
    return is_first || has_answered;
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Tells the other ranks which peer this rank waits for; -1: none any more. */
static void tell_wait(const tarn_comm *comm, int peer)
{
    for (int i = 0; i < comm->size; i++) {
        MPI_Request request;
        if (i != comm->rank && MPI_Isend(&numbers[1 + peer], 1, MPI_INT, i, WAIT_TAG, world, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

/* Receives which peers the other ranks wait for. */
static void receive_waits(void)
{
    int has_arrived = 0;
    MPI_Status status;
    while (MPI_Iprobe(MPI_ANY_SOURCE, WAIT_TAG, world, &has_arrived, &status) == MPI_SUCCESS && has_arrived)
        MPI_Recv(&waits_for[status.MPI_SOURCE], 1, MPI_INT, status.MPI_SOURCE, WAIT_TAG, world, MPI_STATUS_IGNORE);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* MPI keeps the order of messages of a pair and tag, so pieces arrive in theirs. */
static int pieces_of(const tarn__message *m)
{
    return (int)((m->bytes + CHUNK - 1) / CHUNK);
}

/* Starts all pieces. `owner` has the message of each request. Returns their number; -1: MPI has failed. */
static int start(const tarn__message *messages, int count, MPI_Request *requests, int *owner)
{
    int started = 0;
    for (int i = 0; i < count; i++)
        for (size_t begin = 0; begin < messages[i].bytes; begin += CHUNK) {
            char *memory = (char *)messages[i].memory + begin;
            int bytes = (int)(messages[i].bytes - begin < CHUNK ? messages[i].bytes - begin : CHUNK);
            owner[started] = i;
            int problem =
                messages[i].is_send
                    ? MPI_Isend(memory, bytes, MPI_BYTE, messages[i].peer, DATA_TAG, world, &requests[started])
                    : MPI_Irecv(memory, bytes, MPI_BYTE, messages[i].peer, DATA_TAG, world, &requests[started]);
            if (problem != MPI_SUCCESS)
                return -1;
            started++;
        }
    return started;
}

/* The peer of the first message that is not done; receives first: a peer that is alive may be waiting itself. */
static int pending_peer(const tarn__message *messages, MPI_Request *requests, const int *owner, int started)
{
    int found = -1;
    for (int pass = 0; pass < 2 && found < 0; pass++)
        for (int i = 0; i < started && found < 0; i++) {
            int is_done = 1;
            const tarn__message *m = &messages[owner[i]];
            if (m->is_send == (pass == 1) && requests[i] != MPI_REQUEST_NULL)
                MPI_Request_get_status(requests[i], &is_done, MPI_STATUS_IGNORE);
            found = is_done ? -1 : m->peer;
        }
    return found;
}

/* Ends receives that nothing has arrived for: their memory is the caller's again. */
static void cancel(const tarn__message *messages, MPI_Request *requests, const int *owner, int started)
{
    int is_done = 0;
    for (int i = 0; i < started; i++)
        if (!messages[owner[i]].is_send && requests[i] != MPI_REQUEST_NULL)
            MPI_Cancel(&requests[i]);
    for (int64_t spins = 0; !is_done && spins < 3 * SPINS; spins++) {
        MPI_Testall(started, requests, &is_done, MPI_STATUSES_IGNORE);
        pause_after(spins);
    }
}

/* An abort may overtake messages: where all come within LATE_TIME, the next call reports it. So a mistake that every
 * rank finds by itself is not reported as that of the rank which found it first. */
static bool wait_all(tarn_comm *comm, const tarn__message *messages, MPI_Request *requests, const int *owner,
                     int started, double seconds, tarn__comm_wait *wait, tarn__comm_failure *failure)
{
    double aborted = 0;
    for (int64_t spins = 0;; spins++) {
        int is_done = 0;
        int problem = MPI_Testall(started, requests, &is_done, MPI_STATUSES_IGNORE);
        if (problem == MPI_SUCCESS && is_done)
            return true;
        if (problem != MPI_SUCCESS) {
            failure->rank = pending_peer(messages, requests, owner, started);
            return false;
        }
        /* Clocks and probes cost more than a test of the messages. */
        if (spins % 64 == 63 || spins > SPINS) {
            double waited = tarn__comm_waited(wait, seconds_now());
            if (!is_aborted && receive_abort(&abort_failure)) {
                is_aborted = true;
                aborted = waited;
            }
            if (is_aborted && waited - aborted > LATE_TIME) {
                *failure = abort_failure;
                return false;
            }
            if (atomic_load(&comm->is_cancelled))
                return false;
            bool is_over = seconds > 0 && waited > seconds;
            if (is_over || tarn__comm_tell_is_due(comm, wait, -2) || tarn__comm_notice_is_due(comm, waited)) {
                int peer = pending_peer(messages, requests, owner, started);
                if (peer >= 0 && tarn__comm_tell_is_due(comm, wait, peer))
                    tell_wait(comm, wait->told = peer);
                receive_waits();
                peer = peer < 0 ? peer : tarn__comm_culprit(comm, waits_for, peer);
                if (is_over) {
                    failure->rank = peer;
                    return false;
                }
                if (tarn__comm_notice_is_due(comm, waited))
                    host.notice(comm, peer);
            }
        }
        pause_after(spins);
    }
}

/* malloc(), as the plugin does not link libtarn; + 1 since a size of 0 may give NULL. */
static bool exchange(tarn_comm *comm, const tarn__message *messages, int count, double seconds,
                     tarn__comm_failure *failure)
{
    int pieces = 0;
    for (int i = 0; i < count; i++)
        pieces += pieces_of(&messages[i]);
    MPI_Request *requests = malloc(sizeof(*requests) * (size_t)pieces + 1);
    int *owner = malloc(sizeof(*owner) * (size_t)pieces + 1);
    int started = requests && owner ? start(messages, count, requests, owner) : -1;
    tarn__comm_wait wait = {.last = seconds_now(), .told = -1};
    bool good = started >= 0 && wait_all(comm, messages, requests, owner, started, seconds, &wait, failure);
    receive_waits(); /* a rank that never waits receives these here */
    if (good && wait.told >= 0)
        tell_wait(comm, -1);
    if (started < 0)
        snprintf(failure->text, sizeof(failure->text), "MPI could not start a message");
    else if (!good)
        cancel(messages, requests, owner, started);
    free(requests);
    free(owner);
    return good;
}

/* ---- start and end ----------------------------------------------------------------------------------------------- */

/* After a failure MPI ends well only if all ranks come here; else the job is ended, hung ranks included. */
static void end(tarn_comm *comm)
{
    int is_done = !comm->is_broken;
    if (comm->is_broken) {
        double begin = seconds_now();
        MPI_Request request;
        bool good = MPI_Ibarrier(world, &request) == MPI_SUCCESS;
        for (int64_t spins = 0; good && !is_done && seconds_now() - begin < FAREWELL_TIME; spins++) {
            good = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
            pause_after(spins);
        }
        if (!is_done)
            MPI_Abort(world, 1);
    }
    receive_waits();
    free(waits_for);
    MPI_Comm_free(&world);
    if (is_ours)
        MPI_Finalize(); /* completes sends */
    free(numbers);
    waits_for = numbers = NULL;
}

static const tarn__comm_row row = {"mpi", exchange, poll, abort_job, end};

/* MPI starts once per process and never again. */
static bool start_mpi(int *provided, char *why, size_t why_size)
{
    int is_started = 0, is_ended = 0;
    MPI_Initialized(&is_started);
    MPI_Finalized(&is_ended);
    if (is_ended || world != MPI_COMM_NULL) {
        snprintf(why, why_size, is_ended ? "MPI has ended in this process" : "the process has a communicator already");
        return false;
    }
    is_ours = !is_started;
    if (is_ours && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, provided) != MPI_SUCCESS) {
        snprintf(why, why_size, "MPI could not be started");
        return false;
    }
    if (!is_ours && MPI_Query_thread(provided) != MPI_SUCCESS)
        *provided = MPI_THREAD_SINGLE;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &world) != MPI_SUCCESS) {
        snprintf(why, why_size, "MPI has no communicator left");
        return false;
    }
    /* Errors are values: the default handler ends the job. */
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    return true;
}

TARN_API const tarn__comm_row *tarn_mpi_entry(const tarn__mpi_host *given, tarn__mpi_job *job, char *why,
                                              size_t why_size);

const tarn__comm_row *tarn_mpi_entry(const tarn__mpi_host *given, tarn__mpi_job *job, char *why, size_t why_size)
{
    int provided = MPI_THREAD_SINGLE;
    if (strcmp(given->version, TARN__VERSION) != 0 || given->comm_bytes != sizeof(tarn_comm)) {
        snprintf(why, why_size, "it is of version " TARN__VERSION ", this library of %s; install both together",
                 given->version);
        return NULL;
    }
    host = *given;
    if (!start_mpi(&provided, why, why_size))
        return NULL;
    MPI_Comm_rank(world, &job->rank);
    MPI_Comm_size(world, &job->size);
    waits_for = malloc(sizeof(*waits_for) * (size_t)job->size);
    numbers = malloc(sizeof(*numbers) * (size_t)(1 + job->size));
    if (!waits_for || !numbers) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    for (int i = 0; i <= job->size; i++)
        numbers[i] = i - 1;
    for (int i = 0; i < job->size; i++)
        waits_for[i] = -1;
    job->is_single_threaded = provided < MPI_THREAD_SERIALIZED;
    return &row;
}

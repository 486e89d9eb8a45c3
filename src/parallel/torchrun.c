/* torchrun.c: the communicator between processes that torchrun has started on one machine, without MPI.
 *
 * Rank 0 listens on a Unix-domain socket in Linux's abstract namespace, whose name has the user and MASTER_PORT: it is
 * gone with the process, so nothing stale is left. The others connect and say who they are. Both sides check by the
 * kernel's credentials that the other belongs to the same user. Then rank 0 makes the two pairs of sockets that connect
 * two ranks (sockets.c), for every two of them, and passes the ends on by SCM_RIGHTS. */
#define _GNU_SOURCE /* accept4(), struct ucred */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "parallel/comm.h"

#define MAGIC 0x7461726eu /* "tarn" */
#define WAIT_SECONDS 120  /* for ranks that have not begun yet; TARN_RANK_WAIT is for tests */
#define HELLO_SECONDS 5   /* for a process that has connected */

enum { MAX_RANKS = 1024 };

static const char *const function = "comm_torchrun";

/* The variables of torchrun. */
typedef struct place {
    int rank, size;
    struct sockaddr_un address;
    socklen_t address_length;
} place;

/* What a rank says when it has connected. */
typedef struct hello {
    uint32_t magic;
    int32_t rank, size;
} hello;

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* An integer variable of the environment. False with an error. */
static bool read_variable(const char *name, long low, long high, long *value)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (!text)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is not set; torchrun sets it for each process", function, name);
    *value = strtol(text, &end, 10);
    return (end != text && !*end && *value >= low && *value <= high) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is '%.32s'; it must be from %ld to %ld", function, name, text, low,
                       high);
}

/* Nothing of tarn's own goes over a network: MPI does. */
static bool read_place(place *p)
{
    long rank, size, local_size, port;
    if (!read_variable("WORLD_SIZE", 1, MAX_RANKS, &size) || !read_variable("RANK", 0, size - 1, &rank) ||
        !read_variable("LOCAL_WORLD_SIZE", 1, size, &local_size) || !read_variable("MASTER_PORT", 1, 65535, &port))
        return false;
    if (local_size != size)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: torchrun has started %ld of %ld processes on this machine; between machines tarn needs "
                           "MPI: start the job with mpirun, or with srun --mpi=pmix",
                           function, local_size, size);
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    *p = (place){.rank = (int)rank, .size = (int)size, .address = {.sun_family = AF_UNIX}};
    /* the first byte is 0: no file */
    int length = snprintf(p->address.sun_path + 1, sizeof(p->address.sun_path) - 1, "tarn-ranks-%ld-%ld-%.8s",
                          (long)geteuid(), port, restart ? restart : "0");
    p->address_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return true;
}

static double wait_seconds(void)
{
    const char *text = getenv("TARN_RANK_WAIT");
    double given = text ? strtod(text, NULL) : 0;
    return given > 0 ? given : WAIT_SECONDS;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

#ifdef __linux__

/* True if the process at the other end of a socket belongs to this user. */
static bool is_own(int socket)
{
    struct ucred other;
    socklen_t size = sizeof(other);
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == geteuid();
}

/* Sends two sockets and the rank that they lead to. */
static bool send_pair(int to, int32_t peer, const int pair[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof(control));
    struct iovec data = {&peer, sizeof(peer)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(head), pair, 2 * sizeof(int));
    ssize_t sent;
    do
        sent = sendmsg(to, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(peer);
}

/* Receives them; -1: the other end has ended, or sent something else. */
static int32_t receive_pair(int from, int pair[2])
{
    int32_t peer = -1;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec data = {&peer, sizeof(peer)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t got;
    do
        got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *head = got == (ssize_t)sizeof(peer) ? CMSG_FIRSTHDR(&message) : NULL;
    if (!head || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(2 * sizeof(int)))
        return -1;
    memcpy(pair, CMSG_DATA(head), 2 * sizeof(int));
    return peer;
}

/* Waits until a socket can be read. False after `seconds`. */
static bool wait_readable(int socket, double seconds)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    return seconds > 0 && poll(&wait, 1, (int)(1000 * seconds) + 1) > 0;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

static int open_listener(const place *p)
{
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener >= 0 && bind(listener, (const struct sockaddr *)&p->address, p->address_length) == 0 &&
        listen(listener, p->size) == 0)
        return listener;
    if (errno == EADDRINUSE)
        tarn__raise(TARN_ERROR_IO,
                    "%s: another job of this user has MASTER_PORT %s; start this one with another --master-port",
                    function, getenv("MASTER_PORT"));
    else
        tarn__raise(TARN_ERROR_IO, "%s: cannot listen for the other ranks: %s", function, strerror(errno));
    if (listener >= 0)
        close(listener);
    return -1;
}

/* Takes a connection as that of a rank. What another user, or no rank of this job, has opened is closed. */
static void take(const place *p, int connection, int *line)
{
    hello h = {0};
    bool good = is_own(connection) && wait_readable(connection, HELLO_SECONDS) &&
                recv(connection, &h, sizeof(h), 0) == (ssize_t)sizeof(h) && h.magic == MAGIC && h.size == p->size &&
                h.rank > 0 && h.rank < p->size && line[h.rank] < 0;
    if (good)
        line[h.rank] = connection;
    else
        close(connection);
}

/* Waits for a connection of every other rank. */
static bool gather(const place *p, int *line)
{
    double end = tarn__platform_seconds() + wait_seconds();
    int listener = open_listener(p), missing = 1;
    while (listener >= 0 && missing > 0) {
        missing = 0;
        for (int i = p->size - 1; i > 0; i--)
            missing = line[i] < 0 ? i : missing;
        if (missing == 0)
            break;
        int connection =
            wait_readable(listener, end - tarn__platform_seconds()) ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (connection >= 0)
            take(p, connection, line);
        else if (tarn__platform_seconds() >= end) {
            tarn__raise(TARN_ERROR_IO, "%s: rank %d of %d has not connected; waited %g s", function, missing, p->size,
                        wait_seconds());
            break;
        }
    }
    if (listener >= 0)
        close(listener);
    return listener >= 0 && missing == 0;
}

/* Gives one end of a pair of sockets to a rank; rank 0 keeps its own. */
static bool give(const place *p, const int *line, int *sockets, int rank, int peer, const int ends[2])
{
    (void)p;
    if (rank == 0) {
        sockets[2 * peer] = ends[0];
        sockets[2 * peer + 1] = ends[1];
        return true;
    }
    bool good = send_pair(line[rank], peer, ends);
    close(ends[0]);
    close(ends[1]);
    return good || tarn__raise(TARN_ERROR_IO, "%s: rank %d has ended: %s", function, rank, strerror(errno));
}

/* Connects two ranks. */
static bool connect_two(const place *p, const int *line, int *sockets, int a, int b)
{
    int data[2], control[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) != 0)
        return tarn__raise(TARN_ERROR_IO, "%s: no socket for ranks %d and %d: %s", function, a, b, strerror(errno));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) {
        close(data[0]);
        close(data[1]);
        return tarn__raise(TARN_ERROR_IO, "%s: no socket for ranks %d and %d: %s", function, a, b, strerror(errno));
    }
    bool first = give(p, line, sockets, a, b, (const int[]){data[0], control[0]});
    return give(p, line, sockets, b, a, (const int[]){data[1], control[1]}) && first;
}

static bool lead(const place *p, int *sockets)
{
    int *line = tarn__alloc(sizeof(int) * (size_t)p->size);
    for (int i = 0; line && i < p->size; i++)
        line[i] = -1;
    bool good = line && gather(p, line);
    for (int a = 0; good && a < p->size; a++)
        for (int b = a + 1; good && b < p->size; b++)
            good = connect_two(p, line, sockets, a, b);
    for (int i = 1; line && i < p->size; i++)
        if (line[i] >= 0)
            close(line[i]);
    tarn__release(line, sizeof(int) * (size_t)p->size);
    return good;
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */

/* Connects to rank 0, which may not have begun yet. -1 with an error. */
static int find_first(const place *p)
{
    double end = tarn__platform_seconds() + wait_seconds();
    for (;;) {
        int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (line >= 0 && connect(line, (const struct sockaddr *)&p->address, p->address_length) == 0) {
            if (is_own(line))
                return line;
            close(line);
            tarn__raise(TARN_ERROR_IO, "%s: the process that waits at MASTER_PORT %s belongs to another user", function,
                        getenv("MASTER_PORT"));
            return -1;
        }
        int why = errno;
        if (line >= 0)
            close(line);
        if (tarn__platform_seconds() >= end) {
            tarn__raise(TARN_ERROR_IO, "%s: rank 0 does not answer: %s; waited %g s", function, strerror(why),
                        wait_seconds());
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static bool follow(const place *p, int *sockets)
{
    const hello h = {MAGIC, p->rank, p->size};
    int line = find_first(p), missing = p->size - 1;
    double end = tarn__platform_seconds() + wait_seconds();
    if (line < 0)
        return false;
    bool good = send(line, &h, sizeof(h), MSG_NOSIGNAL) == (ssize_t)sizeof(h);
    for (; good && missing > 0; missing--) {
        int pair[2];
        int32_t peer = wait_readable(line, end - tarn__platform_seconds()) ? receive_pair(line, pair) : -1;
        good = peer >= 0 && peer < p->size && peer != p->rank && sockets[2 * peer] < 0;
        if (good)
            memcpy(&sockets[2 * peer], pair, sizeof(pair));
    }
    close(line);
    return good || tarn__raise(TARN_ERROR_IO,
                               "%s: rank 0 has ended, or waits for others, before rank %d was connected to all ranks",
                               function, p->rank);
}

static bool meet(const place *p, int *sockets)
{
    return p->rank == 0 ? lead(p, sockets) : follow(p, sockets);
}

#else

static bool meet(const place *p, int *sockets)
{
    (void)p;
    (void)sockets;
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: this needs Linux; start the ranks with mpirun", function);
}

#endif

tarn_comm *tarn_comm_torchrun(void)
{
    place p;
    if (tarn_failed() || !read_place(&p))
        return NULL;
    size_t bytes = sizeof(int) * 2 * (size_t)p.size;
    int *sockets = tarn__alloc(bytes);
    for (int i = 0; sockets && i < 2 * p.size; i++)
        sockets[i] = -1;
    tarn_comm *comm = sockets && meet(&p, sockets) ? tarn_comm_sockets(p.rank, p.size, sockets) : NULL;
    for (int i = 0; !comm && sockets && i < 2 * p.size; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
    tarn__release(sockets, bytes);
    return comm;
}

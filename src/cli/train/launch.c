/* launch.c: `--ranks N` and `--gpus N` of `tarn train`, `tarn eval` and `tarn bench comm`: starts the ranks on this
 * machine, and watches them.
 *
 * Every rank is this command again, with the same arguments, connected to all others by two pairs of sockets, whose
 * numbers are in TARN_RANK_SOCKETS. This process has opened no device: a rank starts as a new program, so that CUDA
 * begins there. Signals go on to all ranks; once one of them has failed, the others, which hear of it by their sockets,
 * have a few seconds to end. Where this process is killed, Linux ends the ranks. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tarn/parallel.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "cli/cli.h"
#include "cli/train/train.h"

#define SOCKETS "TARN_RANK_SOCKETS" /* "RANK SIZE DATA CONTROL DATA CONTROL …": two sockets per rank */
#define GRACE 3.0                   /* seconds from a failure to SIGTERM, and from that to SIGKILL */
#define LAST_GRACE 60.0             /* seconds from a failure to SIGKILL of rank 0 */

enum { MAX_RANKS = 1024 };

typedef struct job {
    const char *command; /* for messages */
    int size;
    bool has_gpus;
    char program[4096], *text, **arguments; /* this command; its arguments, owned */
    int *sockets;                           /* [size][size][2]: of the rank in front, to the other one */
} job;

/* Of the ranks, for the signal handler; 0: ended. */
static volatile pid_t process[MAX_RANKS];
static int processes;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Finds the arguments of this process, as the system has them; argv[0] is its program. False: unknown. */
static bool read_arguments(job *j)
{
    size_t length = 0, capacity = 1 << 20;
    j->text = malloc(capacity);
    FILE *file = fopen("/proc/self/cmdline", "r");
    ssize_t path_length = readlink("/proc/self/exe", j->program, sizeof(j->program) - 1);
    int count = 0;
    if (file && j->text)
        length = fread(j->text, 1, capacity, file);
    if (file)
        fclose(file);
    for (size_t i = 0; i < length; i++)
        count += j->text[i] == 0;
    if (count > 0 && path_length > 0 && length < capacity)
        j->arguments = calloc((size_t)count + 1, sizeof(char *));
    char *next = j->text;
    for (int i = 0; j->arguments && i < count; i++) {
        j->arguments[i] = i ? next : j->program;
        next += strlen(next) + 1;
    }
    return j->arguments != NULL;
}

static void free_arguments(job *j)
{
    free(j->arguments);
    free(j->text);
}

/* ---- sockets ----------------------------------------------------------------------------------------------------- */

static int *socket_of(const job *j, int rank, int peer, int kind)
{
    return &j->sockets[((size_t)rank * (size_t)j->size + (size_t)peer) * 2 + (size_t)kind];
}

/* Two sockets per pair of ranks and side: many ranks need more files than a process usually may open. */
static void raise_limit(const job *j)
{
    struct rlimit limit;
    rlim_t needed = (rlim_t)j->size * (rlim_t)j->size * 2 + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
        limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* All are closed in a new program, but for those that a rank keeps. */
static bool open_sockets(job *j)
{
    static const int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET};
    j->sockets = calloc((size_t)j->size * (size_t)j->size * 2, sizeof(int));
    raise_limit(j);
    for (int a = 0; j->sockets && a < j->size; a++)
        for (int b = a + 1; b < j->size; b++)
            for (int kind = 0; kind < 2; kind++) {
                int pair[2];
                if (socketpair(AF_UNIX, kinds[kind] | SOCK_CLOEXEC, 0, pair) != 0)
                    return false;
                *socket_of(j, a, b, kind) = pair[0];
                *socket_of(j, b, a, kind) = pair[1];
            }
    return j->sockets != NULL;
}

static void close_sockets(const job *j)
{
    for (int a = 0; a < j->size; a++)
        for (int b = 0; b < j->size; b++)
            for (int kind = 0; a != b && kind < 2; kind++)
                close(*socket_of(j, a, b, kind));
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* The sockets of a rank as text, kept over the start of the new program. */
static bool name_sockets(const job *j, int rank)
{
    size_t capacity = 32 + (size_t)j->size * 24, used;
    char *text = malloc(capacity);
    if (!text)
        return false;
    used = (size_t)snprintf(text, capacity, "%d %d", rank, j->size);
    for (int i = 0; i < j->size; i++)
        for (int kind = 0; kind < 2; kind++) {
            int socket = i == rank ? -1 : *socket_of(j, rank, i, kind);
            used += (size_t)snprintf(text + used, capacity - used, " %d", socket);
            if (socket >= 0)
                fcntl(socket, F_SETFD, 0);
        }
    bool good = setenv(SOCKETS, text, 1) == 0;
    free(text);
    return good;
}

/* The threads of this machine are divided among the ranks, unless the user has set them. NCCL tells machines apart by
 * NCCL_HOSTID: where the user has set it, each rank gets one of its own, and ranks may share a GPU. */
static void set_variables(const job *j, int rank)
{
    char text[300];
    long cores = sysconf(_SC_NPROCESSORS_ONLN) / j->size;
    snprintf(text, sizeof(text), "%ld", cores > 1 ? cores : 1);
    setenv("TARN_THREADS", text, 0);
    const char *host = getenv("NCCL_HOSTID");
    if (j->has_gpus && host && host[0]) {
        snprintf(text, sizeof(text), "%.250s.%d", host, rank);
        setenv("NCCL_HOSTID", text, 1);
    }
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static const int passed[] = {SIGINT, SIGTERM, SIGHUP};
enum { PASSED = sizeof(passed) / sizeof(passed[0]) };

/* To all ranks that have not ended. Async-signal-safe. */
static void pass_on(int number)
{
    for (int i = 0; i < processes; i++)
        if (process[i] > 0)
            kill(process[i], number);
}

/* A terminal sends Ctrl-C to the ranks as well; they count two signals at once as one. A parent that ignores SIGCHLD
 * would take the ends of the ranks away. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    signal(SIGCHLD, SIG_DFL);
    for (int i = 0; i < PASSED; i++) {
        struct sigaction before;
        if (sigaction(passed[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN)
            continue; /* by nohup: the ranks inherit that */
        sigaction(passed[i], &action, NULL);
    }
}

/* In a rank: its signals are its own again, also those that have come since it was forked. */
static void release_signals(const sigset_t *before)
{
    for (int i = 0; i < PASSED; i++) {
        struct sigaction action;
        if (sigaction(passed[i], NULL, &action) == 0 && action.sa_handler == pass_on)
            signal(passed[i], SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, before, NULL);
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* In the child; returns on failure only. */
static void become_rank(const job *j, int rank, pid_t launcher, const sigset_t *before)
{
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher)
        return; /* it has ended before that */
#else
    (void)launcher;
#endif
    set_variables(j, rank);
    release_signals(before);
    if (name_sockets(j, rank))
        execv(j->arguments[0], j->arguments);
    fprintf(stderr, "tarn %s: rank %d cannot be started: %s\n", j->command, rank, strerror(errno));
}

/* Signals wait meanwhile: one that comes goes on to all ranks. */
static bool start(const job *j)
{
    pid_t launcher = getpid();
    sigset_t all, before;
    bool good = true;
    fflush(NULL);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    for (int i = 0; good && i < j->size; i++) {
        pid_t child = fork();
        if (child == 0) {
            become_rank(j, i, launcher, &before);
            _exit(TARN__FAILED);
        }
        good = child > 0;
        process[i] = good ? child : 0;
        processes = i + good;
    }
    int why = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return good;
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

/* How a job ended. */
typedef struct outcome {
    int status;    /* of the first rank that failed by itself */
    int killed_by; /* the signal that ended a rank first; 0: none */
    int killed;    /* that rank */
    double since;  /* when the first failed; 0: none has */
    int sent;      /* the last signal that was sent for that reason */
    bool is_lost;  /* rank 0, which reports, had to be killed */
} outcome;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void count_end(outcome *o, pid_t pid, int status)
{
    int rank = 0;
    while (rank < processes && process[rank] != pid)
        rank++;
    if (rank == processes)
        return;
    process[rank] = 0;
    /* The rank that reports an error may end with TARN__MISUSED; the silent ones end with TARN__FAILED, which is less.
     */
    if (WIFEXITED(status) && WEXITSTATUS(status) > o->status)
        o->status = WEXITSTATUS(status);
    if (WIFSIGNALED(status) && !o->killed_by) {
        o->killed_by = WTERMSIG(status);
        o->killed = rank;
    }
    if (!o->since && (o->status || o->killed_by))
        o->since = now();
}

/* Ranks that do not end by themselves after a failure, because they hang or cannot hear, are ended. Rank 0 has longer:
 * it may be writing a checkpoint, and reports. */
static void end_others(outcome *o)
{
    int next = !o->sent ? SIGTERM : SIGKILL;
    if (o->since && !o->is_lost && process[0] > 0 && now() - o->since > LAST_GRACE) {
        o->is_lost = true;
        kill(process[0], SIGKILL);
    }
    if (!o->since || o->sent == SIGKILL || now() - o->since < GRACE * (o->sent ? 2 : 1))
        return;
    o->sent = next;
    for (int i = next == SIGKILL; i < processes; i++)
        if (process[i] > 0)
            kill(process[i], next);
}

static int count_running(void)
{
    int running = 0;
    for (int i = 0; i < processes; i++)
        running += process[i] > 0;
    return running;
}

static outcome wait_all(outcome o)
{
    while (count_running() > 0) {
        int status;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0)
            count_end(&o, ended, status);
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        end_others(&o);
    }
    return o;
}

/* A rank that fails by itself has been reported by one of them; one that was killed may have left none to do so. A
 * user who presses Ctrl-C twice knows. */
static int report(const job *j, const outcome *o)
{
    if (o->is_lost)
        fprintf(stderr, "tarn %s: rank 0 did not end within %g s of a failure and was killed\n", j->command,
                LAST_GRACE);
    if (o->status || !o->killed_by)
        return o->status;
    if (o->killed_by != SIGINT && o->killed_by != SIGTERM)
        fprintf(stderr, "tarn %s: rank %d was ended by signal %d (%s)\n", j->command, o->killed, o->killed_by,
                strsignal(o->killed_by));
    return 128 + o->killed_by;
}

static int run_job(job *j)
{
    const char *option = j->has_gpus ? "--gpus" : "--ranks";
    if (!read_arguments(j)) {
        fprintf(stderr, "tarn %s: %s: the arguments of this process cannot be read; start it with mpirun -np %d\n",
                j->command, option, j->size);
        return TARN__FAILED;
    }
    if (!open_sockets(j)) {
        fprintf(stderr, "tarn %s: %s %d: the ranks cannot be connected: %s\n", j->command, option, j->size,
                strerror(errno));
        return TARN__FAILED;
    }
    outcome o = {0};
    catch_signals();
    if (!start(j)) {
        fprintf(stderr, "tarn %s: %s %d: a rank cannot be started: %s\n", j->command, option, j->size, strerror(errno));
        o = (outcome){.status = TARN__FAILED, .since = now(), .sent = SIGTERM};
        pass_on(SIGTERM);
    }
    close_sockets(j);
    o = wait_all(o);
    return report(j, &o);
}

int tarn__launch(const char *command, const tarn__options *options)
{
    job j = {.command = command,
             .size = (int)(options->gpus ? options->gpus : options->ranks),
             .has_gpus = options->gpus > 0};
    int status = run_job(&j);
    free(j.sockets);
    free_arguments(&j);
    return status;
}

/* ---- the place of a rank ----------------------------------------------------------------------------------------- */

bool tarn__is_launched(void)
{
    return getenv(SOCKETS) != NULL;
}

/* Programs that this one starts are no ranks. */
tarn_comm *tarn__launched_comm(void)
{
    const char *text = getenv(SOCKETS);
    char *rest = NULL;
    int rank = text ? (int)strtol(text, &rest, 10) : -1, size = text ? (int)strtol(rest, &rest, 10) : 0, count = 0;
    int *sockets = size > 0 && size <= MAX_RANKS ? calloc((size_t)size * 2, sizeof(int)) : NULL;
    for (; sockets && count < 2 * size && *rest; count++) {
        sockets[count] = (int)strtol(rest, &rest, 10);
        if (sockets[count] >= 0)
            fcntl(sockets[count], F_SETFD, FD_CLOEXEC);
    }
    tarn_comm *comm = tarn_comm_sockets(rank, count == 2 * size ? size : 0, sockets);
    free(sockets);
    unsetenv(SOCKETS);
    return comm;
}

/* --gpus and --ranks start ranks here; mpirun and srun have done so already, as many as are asked for. */
int tarn__check_ranks(const char *command, const tarn__options *options)
{
    if (tarn__is_launched())
        return TARN__DONE;
    const char *name = options->gpus ? "gpus" : "ranks";
    int64_t asked = options->gpus ? options->gpus : options->ranks;
    if (options->gpus && options->ranks) {
        fprintf(stderr, "tarn %s: --gpus starts a rank for each GPU; remove --ranks\n", command);
        return TARN__MISUSED;
    }
    if (asked && tarn_comm_launched() > 1 && asked != tarn_comm_launched()) {
        fprintf(stderr, "tarn %s: --%s is %lld, but %d processes were launched\n", command, name, (long long)asked,
                tarn_comm_launched());
        return TARN__MISUSED;
    }
    return TARN__DONE;
}

bool tarn__is_launcher(const tarn__options *o)
{
    return !tarn__is_launched() && tarn_comm_launched() == 1 && (o->ranks > 1 || o->gpus);
}

bool tarn__is_rank(void)
{
    return tarn__is_launched() || tarn_comm_launched() > 1;
}

/* True under torchrun: mpirun and srun, which have variables of their own, may pass torchrun's on. */
static bool is_torchrun(void)
{
    static const char *const others[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (getenv(others[i]) && strtol(getenv(others[i]), NULL, 10) > 1)
            return false;
    return true;
}

tarn_comm *tarn__rank_comm(void)
{
    return tarn__is_launched() ? tarn__launched_comm() : is_torchrun() ? tarn_comm_torchrun() : tarn_comm_mpi();
}

/* The first of these variables that is set, of which the last one is torchrun's. Under torchrun that one counts: those
 * of Slurm are of the process that has started torchrun. NULL: none. */
static const char *find_variable(const char *const names[4])
{
    const char *text = is_torchrun() ? getenv(names[3]) : NULL;
    for (int i = 0; !text && i < 4; i++)
        text = getenv(names[i]);
    return text;
}

bool tarn__is_first_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"};
    const char *text = find_variable(names);
    return !text || strcmp(text, "0") == 0;
}

/* The number of this rank among those of its machine; -1: unknown. */
static int local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"};
    const char *text = find_variable(names);
    return text ? (int)strtol(text, NULL, 10) : -1;
}

/* The backend whose devices the ranks share: that of `--device` where it has no number, else of the automatic
 * device. False where the device is one, or the CPU. */
static bool choose_backend(const char *device, char *name, size_t size)
{
    bool is_auto = !device[0] || strcmp(device, "auto") == 0;
    if (is_auto)
        tarn_device_name(tarn_device_auto(), name, size);
    else
        snprintf(name, size, "%s", device);
    if (is_auto)
        name[strcspn(name, ":")] = 0;
    return !strchr(name, ':') && (is_auto || strcmp(name, "cpu") != 0);
}

/* The others are told first: they may have no reason to end themselves. Of all ranks one prints. */
static bool is_reporter_of(tarn_comm *comm, const char *text)
{
    if (comm)
        tarn_comm_abort(comm, text);
    return !comm || tarn_comm_is_reporter(comm);
}

int tarn__rank_misuse(const char *command, tarn_comm *comm, const char *format, ...)
{
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (is_reporter_of(comm, text))
        fprintf(stderr, "tarn %s: %s\n", command, text);
    return TARN__MISUSED;
}

bool tarn__rank_reports(tarn_comm *comm)
{
    const char *error = tarn_error();
    return is_reporter_of(comm, error + (strncmp(error, "tarn: ", 6) == 0 ? 6 : 0));
}

/* Rank 0 prints everything but this: it is the one that is waited for. */
static void print_wait(const char *text, void *ctx)
{
    (void)ctx;
    fprintf(stderr, "tarn: %s\n", text);
}

void tarn__rank_mute(tarn_comm *comm, bool is_quiet)
{
    if (tarn_comm_rank(comm) == 0)
        return;
    tarn_set_log(NULL, NULL);
    if (!is_quiet)
        tarn_comm_set_notice(comm, print_wait, NULL);
}

/* Slurm may show each rank its own GPU only; ranks that share one are refused when they are connected. */
int tarn__place_rank(const char *command, tarn__options *options, tarn_comm *comm)
{
    char *device = options->train.device, name[32];
    const char *host = getenv("NCCL_HOSTID");
    bool is_free = choose_backend(device, name, sizeof(name)), is_shared = host && host[0];
    if (options->resume && !device[0] && !options->gpus)
        return TARN__DONE; /* the run's own device */
    if (!is_free)
        return !options->gpus ? TARN__DONE
                              : tarn__rank_misuse(command, comm, "--gpus chooses the devices; remove --device %s",
                                                  tarn__escaped(device));
    int local = options->gpus ? tarn_comm_rank(comm) : local_rank(),
        count = strcmp(name, "cpu") != 0 && local >= 0 ? tarn_device_count(name) : 0;
    if (options->gpus && (count == 0 || (count < options->gpus && !is_shared)))
        return tarn__rank_misuse(
            command, comm, "--gpus %lld: this machine has %d GPU%s, and each rank needs one; tarn info lists them",
            (long long)options->gpus, count, count == 1 ? "" : "s");
    if (count > 0)
        snprintf(device, sizeof(options->train.device), "%s:%d", name, local % count);
    return TARN__DONE;
}

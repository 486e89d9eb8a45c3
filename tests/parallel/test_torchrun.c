/* test_torchrun.c: processes that find each other by torchrun's variables, without MPI; what does not belong to the job
 * is turned away; processes that are missing, taken ports and several machines are one sentence. */
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <tarn/parallel.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"

enum { MAX_RANKS = 5 };

static int port;

static void set(const char *name, long value)
{
    char text[32];
    snprintf(text, sizeof(text), "%ld", value);
    setenv(name, text, 1);
}

/* The variables that torchrun sets. */
static void set_variables(int rank, int size, int local_size)
{
    set("RANK", rank);
    set("LOCAL_RANK", rank);
    set("WORLD_SIZE", size);
    set("LOCAL_WORLD_SIZE", local_size);
    set("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

static void clear_variables(void)
{
    static const char *const names[] = {"RANK",        "LOCAL_RANK",   "WORLD_SIZE",          "LOCAL_WORLD_SIZE",
                                        "MASTER_PORT", "MASTER_ADDR",  "TARN_RANK_WAIT",      "OMPI_COMM_WORLD_SIZE",
                                        "PMI_SIZE",    "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

/* A port of this test alone: tests run side by side. */
static int setup(void **state)
{
    (void)state;
    clear_variables();
    port = 1024 + (int)((getpid() * 7 + port) % 60000);
    tarn_clear_error();
    return 0;
}

/* In a child: connects, and exchanges something with all. */
static void run_rank(int rank, int size)
{
    int32_t own[2] = {rank, size}, all[2 * MAX_RANKS];
    size_t bytes[MAX_RANKS];
    set_variables(rank, size, size);
    tarn_comm *comm = tarn_comm_torchrun();
    bool good = comm && tarn_comm_rank(comm) == rank && tarn_comm_size(comm) == size;
    for (int i = 0; i < size; i++)
        bytes[i] = sizeof(own);
    good = good && tarn_comm_all_gather(comm, own, all, bytes);
    for (int i = 0; good && i < size; i++)
        good = all[2 * i] == i && all[2 * i + 1] == size;
    good = good && tarn_comm_barrier(comm);
    if (!good)
        fprintf(stderr, "rank %d of %d: %s\n", rank, size, tarn_error());
    tarn_comm_free(comm);
    _exit(good ? 0 : 1);
}

static pid_t start(int rank, int size)
{
    pid_t child = fork();
    if (child == 0)
        run_rank(rank, size);
    assert_true(child > 0);
    return child;
}

static void assert_good(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The socket of rank 0; -1: connecting failed. */
static int open_socket(bool binds)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "tarn-ranks-%ld-%d-0", (long)geteuid(), port);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const struct sockaddr *to = (const struct sockaddr *)&address;
    if (line >= 0 && (binds ? bind(line, to, size) : connect(line, to, size)) == 0)
        return line;
    close(line);
    return -1;
}

static void processes_find_each_other(void **state)
{
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size += 2) {
        pid_t child[MAX_RANKS];
        for (int i = size - 1; i >= 0; i--) /* rank 0 last: the others wait for it */
            child[i] = start(i, size);
        for (int i = 0; i < size; i++)
            assert_good(child[i]);
    }
}

/* A process of this user that is no rank, and one that says nothing. */
static void others_are_turned_away(void **state)
{
    (void)state;
    pid_t first = start(0, 2);
    int line = -1;
    for (int i = 0; line < 0 && i < 500; i++) {
        line = open_socket(false);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_true(line >= 0);
    assert_int_equal(send(line, "GET / HTTP/1.0", 14, MSG_NOSIGNAL), 14);
    int silent = open_socket(false);
    close(silent);
    pid_t second = start(1, 2);
    assert_good(first);
    assert_good(second);
    char byte;
    assert_int_equal(recv(line, &byte, 1, 0), 0); /* closed */
    close(line);
    assert_int_equal(open_socket(false), -1); /* nothing is left */
}

static void missing_ranks_are_one_sentence(void **state)
{
    (void)state;
    setenv("TARN_RANK_WAIT", "0.2", 1);
    set_variables(0, 3, 3);
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_IO, "comm_torchrun: rank 1 of 3 has not connected; waited 0.2 s");
    set_variables(1, 3, 3);
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_IO, "comm_torchrun: rank 0 does not answer: Connection refused; waited 0.2 s");
    int taken = open_socket(true);
    assert_true(taken >= 0);
    set_variables(0, 2, 2);
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_IO, "comm_torchrun: another job of this user has MASTER_PORT");
    close(taken);
}

static void wrong_variables_are_one_sentence(void **state)
{
    (void)state;
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_ARGUMENT, "comm_torchrun: WORLD_SIZE is not set; torchrun sets it for each process");
    set_variables(0, 16, 8);
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_UNSUPPORTED,
                 "comm_torchrun: torchrun has started 8 of 16 processes on this machine; between machines tarn needs "
                 "MPI: start the job with mpirun, or with srun --mpi=pmix");
    set_variables(2, 2, 2);
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_ARGUMENT, "comm_torchrun: RANK is '2'; it must be from 0 to 1");
    set_variables(0, 2, 2);
    setenv("MASTER_PORT", "29500x", 1);
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_ARGUMENT, "comm_torchrun: MASTER_PORT is '29500x'; it must be from 1 to 65535");
    unsetenv("LOCAL_WORLD_SIZE");
    assert_null(tarn_comm_torchrun());
    assert_error(TARN_ERROR_ARGUMENT, "comm_torchrun: LOCAL_WORLD_SIZE is not set");
}

/* SLURM_NTASKS alone is a batch script, which is one process. */
static void every_launcher_is_recognized(void **state)
{
    (void)state;
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"};
    assert_int_equal(tarn_comm_launched(), 1);
    set("SLURM_NTASKS", 4);
    assert_int_equal(tarn_comm_launched(), 1);
    for (int i = 0; i < 4; i++) {
        clear_variables();
        set(names[i], 3 + i);
        assert_int_equal(tarn_comm_launched(), 3 + i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(processes_find_each_other, setup),
        cmocka_unit_test_setup(others_are_turned_away, setup),
        cmocka_unit_test_setup(missing_ranks_are_one_sentence, setup),
        cmocka_unit_test_setup(wrong_variables_are_one_sentence, setup),
        cmocka_unit_test_setup(every_launcher_is_recognized, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

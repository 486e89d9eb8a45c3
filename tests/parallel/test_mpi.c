/* The communicator over MPI: this program starts itself through mpirun, and every rank checks what it receives. Skipped
 * where libtarn-mpi.so or mpirun is missing. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"

enum { MAX_RANKS = 8, COUNT = 5000, LEAVES = 8 };

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* A checksum of the sum of LEAVES tensors that the ranks share. */
static bool sum_hash(tarn_comm *comm, uint32_t *hash)
{
    int rank = tarn_comm_rank(comm), parts = LEAVES / tarn_comm_size(comm);
    tarn_tensor *part[LEAVES];
    static float values[COUNT];
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < parts; k++) {
        for (int i = 0; i < COUNT; i++)
            values[i] = 1.0f / (float)(1 + (i * 31 + (rank * parts + k) * 7919) % 1013);
        part[k] = tarn_from_f32(values, TARN_SHAPE(COUNT), tarn_device_cpu());
    }
    bool good = tarn_comm_sum(comm, part, parts, part[0]) && tarn_read_f32(part[0], values, COUNT);
    *hash = 2166136261u;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        *hash = (*hash ^ bits) * 16777619u;
    }
    tarn_scope_close(scope);
    return good;
}

static bool exchange(tarn_comm *comm)
{
    int rank = tarn_comm_rank(comm), size = tarn_comm_size(comm), in[MAX_RANKS], out[MAX_RANKS], value = rank;
    size_t bytes[MAX_RANKS];
    for (int i = 0; i < size; i++) {
        in[i] = 100 * rank + i;
        bytes[i] = sizeof(int);
    }
    bool good = tarn_comm_all_to_all(comm, in, bytes, out, bytes);
    for (int i = 0; i < size; i++)
        good = good && out[i] == 100 * i + rank;
    good = good && tarn_comm_all_gather(comm, &rank, out, bytes);
    for (int i = 0; i < size; i++)
        good = good && out[i] == i;
    good = good && tarn_comm_broadcast(comm, size - 1, &value, sizeof(value)) && value == size - 1;
    if (size > 1 && rank < 2)
        good = good && (rank == 0 ? tarn_comm_send(comm, 1, in, 0) && tarn_comm_send(comm, 1, &rank, sizeof(rank))
                                  : tarn_comm_receive(comm, 0, &value, sizeof(value)) && value == 0);
    return good && tarn_comm_barrier(comm) && tarn_comm_poll(comm);
}

/* Rank 0 waits for 1, which waits for 2, which stops. */
static bool wait_in_a_chain(tarn_comm *comm)
{
    int value = 0, rank = tarn_comm_rank(comm);
    if (rank == 2)
        raise(SIGSTOP);
    return rank < 2 && tarn_comm_receive(comm, rank + 1, &value, sizeof(value));
}

/* Rank 1 fails, is killed, or stops while the others wait for it. */
static bool fail_as(tarn_comm *comm, const char *how)
{
    tarn_comm_set_timeout(comm, strcmp(how, "abort") == 0 ? 30 : 3); /* all ranks wait, or have failed, long before */
    if (strcmp(how, "chain") == 0)
        return wait_in_a_chain(comm);
    if (tarn_comm_rank(comm) == 1) {
        if (strcmp(how, "abort") == 0)
            tarn_comm_abort(comm, "step 12: the loss is not finite");
        else if (strcmp(how, "stop") == 0)
            raise(SIGSTOP);
        return false;
    }
    return tarn_comm_barrier(comm);
}

static int run_rank(const char *how)
{
    uint32_t hash = 0;
    tarn_comm *comm = tarn_comm_mpi();
    bool good = comm && (strcmp(how, "exchange") == 0 ? exchange(comm) && sum_hash(comm, &hash) : fail_as(comm, how));
    if (!good && comm)
        tarn_comm_abort(comm, tarn_error());
    if (good && tarn_comm_rank(comm) == 0)
        printf("hash %08x of %d ranks\n", hash, tarn_comm_size(comm));
    else if (!good && (!comm || tarn_comm_is_reporter(comm)))
        printf("error: %s\n", tarn_error());
    fflush(stdout);
    tarn_comm_free(comm);
    return !good;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static const char *program;
static char output[1 << 16];

/* Runs this program on `ranks` ranks and returns the status of mpirun; the output is that of all ranks. */
static int run_job(int ranks, const char *how)
{
    char line[2048];
    snprintf(line, sizeof(line),
             "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 TARN_BACKEND_PATH=%s timeout 60 mpirun --allow-run-as-root "
             "--oversubscribe --bind-to none "
             "--mca btl self,vader,tcp --mca btl_base_warn_component_unused 0 -np %d %s --rank %s 2>&1",
             getenv("TARN_BUILD_DIR"), ranks, program, how);
    FILE *job = popen(line, "r");
    assert_non_null(job);
    size_t length = fread(output, 1, sizeof(output) - 1, job);
    output[length] = 0;
    int status = pclose(job);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool is_missing(void)
{
    char path[1024];
    const char *folder = getenv("TARN_BUILD_DIR");
    snprintf(path, sizeof(path), "%s/libtarn-mpi.so", folder ? folder : "");
#ifdef __SANITIZE_THREAD__
    print_message("skipped: MPI is not compiled for the thread sanitizer\n");
    return true;
#endif
    if (folder && access(path, R_OK) == 0 && system("command -v mpirun > /dev/null") == 0)
        return false;
    print_message("skipped: libtarn-mpi.so or mpirun is missing (libopenmpi-dev and openmpi-bin bring MPI)\n");
    return true;
}

static void ranks_of_a_job_exchange_and_sum_bitwise_identically(void **state)
{
    (void)state;
    char expected[64] = "";
    if (is_missing())
        skip();
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        unsigned hash = 0;
        int status = run_job(ranks, "exchange");
        const char *found = strstr(output, "hash ");
        if (status != 0 || !found || sscanf(found, "hash %x", &hash) != 1)
            fail_msg("%d ranks end with status %d:\n%s", ranks, status, output);
        char text[64];
        snprintf(text, sizeof(text), "%08x", hash);
        if (expected[0])
            assert_string_equal(text, expected);
        snprintf(expected, sizeof(expected), "%s", text);
    }
}

/* How often a text occurs in the output. */
static int count_of(const char *text)
{
    int count = 0;
    for (const char *at = output; (at = strstr(at, text)) != NULL; at++)
        count++;
    return count;
}

static void a_rank_that_fails_ends_the_job_with_one_sentence(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    assert_int_not_equal(run_job(3, "abort"), 0);
    if (count_of("error: ") != 1 || count_of("step 12: the loss is not finite") != 1 || count_of("rank 1 on ") != 1)
        fail_msg("%s", output);
}

static void a_rank_that_hangs_ends_the_job_with_one_sentence(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    time_t begin = time(NULL);
    assert_int_not_equal(run_job(3, "stop"), 0);
    assert_true(time(NULL) - begin < 30);
    if (count_of("error: ") != 1 || count_of("does not answer") != 1 || count_of("rank 1 on ") != 1)
        fail_msg("%s", output);
}

static void the_last_rank_of_a_chain_of_waits_is_named(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    assert_int_not_equal(run_job(3, "chain"), 0);
    if (count_of("error: ") != 1 || count_of("does not answer") != 1 || count_of("rank 2 on ") != 1)
        fail_msg("%s", output);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3 && strcmp(argv[1], "--rank") == 0)
        return run_rank(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_job_exchange_and_sum_bitwise_identically),
        cmocka_unit_test(a_rank_that_fails_ends_the_job_with_one_sentence),
        cmocka_unit_test(a_rank_that_hangs_ends_the_job_with_one_sentence),
        cmocka_unit_test(the_last_rank_of_a_chain_of_waits_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_nccl.c: ranks whose devices NCCL connects: sums with the bits of the CPU's tree, and failures that end all
 * ranks. Every rank is this program again. The ranks share the GPUs that are here, which NCCL allows where each has its
 * own NCCL_HOSTID. Skipped without a device or NCCL. */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/gpu.h"

enum { MAX_RANKS = 4, LEAVES = 24, MAX_COUNT = 100003 };

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* Values of very different magnitudes, denormal ones among them: another order of additions gives other bits. */
static float value_of(int leaf, int i)
{
    uint32_t x = (uint32_t)(leaf * 7919 + i) * 2654435761u;
    int exponent = i % 97 == 0 ? -145 : (int)(x % 24) - 30;
    return ldexpf((float)(x >> 8) - 8388608.0f, exponent);
}

/* The definition: a node of the tree is the sum of its halves. */
static float tree_sum(int begin, int end, int i)
{
    int half = 1;
    if (end - begin == 1)
        return value_of(begin, i);
    while (2 * half < end - begin)
        half *= 2;
    return tree_sum(begin, begin + half, i) + tree_sum(begin + half, end, i);
}

static bool sum_once(tarn_comm *comm, int leaves, int count)
{
    static float values[MAX_COUNT];
    int rank = tarn_comm_rank(comm), parts = leaves / tarn_comm_size(comm), wrong = 0;
    tarn_tensor *part[LEAVES];
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < parts; k++) {
        for (int i = 0; i < count; i++)
            values[i] = value_of(rank * parts + k, i);
        part[k] = tarn_from_f32(values, TARN_SHAPE(count), gpu);
    }
    bool good = tarn_comm_sum(comm, part, parts, part[0]) && tarn_read_f32(part[0], values, count);
    for (int i = 0; good && i < count; i++) {
        float expected = tree_sum(0, leaves, i);
        wrong += memcmp(&values[i], &expected, sizeof(expected)) != 0;
    }
    if (good && wrong)
        printf("rank %d: %d of %d elements of the sum of %d leaves differ\n", rank, wrong, count, leaves);
    tarn_scope_close(scope);
    return good && !wrong;
}

static bool sum(tarn_comm *comm)
{
    static const int leaf_counts[] = {1, 2, 3, 4, 6, 8, 12, 24}, counts[] = {1, 7, 1000, MAX_COUNT};
    bool good = true;
    for (size_t l = 0; l < sizeof(leaf_counts) / sizeof(leaf_counts[0]); l++)
        for (size_t c = 0; good && c < sizeof(counts) / sizeof(counts[0]); c++)
            good = leaf_counts[l] % tarn_comm_size(comm) != 0 || sum_once(comm, leaf_counts[l], counts[c]);
    return good;
}

/* Rank 1 ends, or stops, between two sums; the others are on the device or wait for it. */
static bool sum_until_it_fails(tarn_comm *comm, const char *how)
{
    bool good = tarn_comm_set_timeout(comm, 2);
    for (int i = 0; good && i < 100000; i++) {
        if (i == 20 && tarn_comm_rank(comm) == 1)
            raise(strcmp(how, "kill") == 0 ? SIGKILL : SIGSTOP);
        good = sum_once(comm, 12, 1000);
    }
    return good;
}

static int run_rank(const char *how, int rank, int size, char **sockets)
{
    int list[2 * MAX_RANKS];
    for (int i = 0; i < 2 * size; i++)
        list[i] = atoi(sockets[i]);
    alarm(50);
    char name[16];
    snprintf(name, sizeof(name), "cuda:%d", rank % tarn_device_count("cuda"));
    gpu = tarn_device_parse(name);
    tarn_comm *comm = tarn_comm_sockets(rank, size, list);
    bool good = comm && tarn_comm_connect(comm, gpu);
    if (good)
        good = strcmp(how, "sum") == 0 ? sum(comm) : sum_until_it_fails(comm, how);
    if (good && rank == 0)
        printf("good: %d ranks by %s\n", size, tarn_comm_transport(comm));
    if (!good)
        tarn_comm_abort(comm, tarn_failed() ? tarn_error() : "wrong sums");
    if (!good && tarn_failed())
        printf("error of rank %d: %s\n", rank, tarn_error());
    fflush(stdout);
    tarn_comm_free(comm);
    return !good;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static const char *program;
static char output[1 << 16];
static pid_t process[MAX_RANKS];

/* Only the sockets of the rank stay open in it. */
static void become_rank(const char *how, int rank, int size, int sockets[MAX_RANKS][MAX_RANKS][2], bool has_own_host)
{
    char text[2 * MAX_RANKS][16], numbers[2][16], host[32], *arguments[5 + 2 * MAX_RANKS + 1] = {0};
    int used = 0;
    snprintf(numbers[0], sizeof(numbers[0]), "%d", rank);
    snprintf(numbers[1], sizeof(numbers[1]), "%d", size);
    arguments[used++] = (char *)program;
    arguments[used++] = (char *)"--rank";
    arguments[used++] = (char *)how;
    arguments[used++] = numbers[0];
    arguments[used++] = numbers[1];
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            for (int kind = 0; kind < 2; kind++) {
                if (a == rank) {
                    snprintf(text[2 * b + kind], sizeof(text[0]), "%d", a == b ? -1 : sockets[a][b][kind]);
                    arguments[used++] = text[2 * b + kind];
                } else if (a != b) {
                    close(sockets[a][b][kind]);
                }
            }
    snprintf(host, sizeof(host), "test.%d", has_own_host ? rank : 0);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    execv(program, arguments);
    _exit(127);
}

/* Runs a job and returns how many of its ranks have failed; the output is that of all ranks. */
static int run_job(int size, const char *how, bool has_own_host)
{
    int sockets[MAX_RANKS][MAX_RANKS][2], out[2], failed = 0, status;
    size_t used = 0;
    assert_int_equal(pipe(out), 0);
    for (int a = 0; a < size; a++)
        for (int b = a + 1; b < size; b++)
            for (int kind = 0; kind < 2; kind++) {
                int pair[2];
                assert_int_equal(socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_STREAM, 0, pair), 0);
                sockets[a][b][kind] = pair[0];
                sockets[b][a][kind] = pair[1];
            }
    fflush(NULL);
    for (int i = 0; i < size; i++)
        if ((process[i] = fork()) == 0) {
            dup2(out[1], STDOUT_FILENO);
            dup2(out[1], STDERR_FILENO);
            close(out[0]);
            close(out[1]);
            become_rank(how, i, size, sockets, has_own_host);
        }
    close(out[1]);
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            for (int kind = 0; a != b && kind < 2; kind++)
                close(sockets[a][b][kind]);
    if (strcmp(how, "stop") == 0) /* it ends no more by itself: the others are waited for */
        for (int i = 0; i < size; i++)
            if (i != 1)
                failed += waitpid(process[i], &status, 0) == process[i] && status != 0;
    if (strcmp(how, "stop") == 0)
        kill(process[1], SIGKILL);
    for (ssize_t got = 1; got > 0 && used + 1 < sizeof(output); used += got > 0 ? (size_t)got : 0)
        got = read(out[0], output + used, sizeof(output) - 1 - used);
    output[used] = 0;
    close(out[0]);
    for (int i = 0; i < size; i++)
        if (strcmp(how, "stop") != 0 || i == 1)
            failed += waitpid(process[i], &status, 0) == process[i] && status != 0;
    return failed;
}

static bool is_missing(void)
{
    if (tarn_device_count("cuda") == 0)
        return true;
    if (getenv("TARN_NCCL") || dlopen("libnccl.so.2", RTLD_NOW))
        return false;
    print_message("skipped: libnccl.so.2 is missing (libnccl2 brings NCCL)\n");
    return true;
}

static int count_of(const char *text)
{
    int count = 0;
    for (const char *at = output; (at = strstr(at, text)) != NULL; at++)
        count++;
    return count;
}

static void sums_of_ranks_are_those_of_the_cpu(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    for (int size = 1; size <= MAX_RANKS; size++) {
        int failed = run_job(size, "sum", true);
        if (failed || count_of("good: ") != 1 || (size > 1 && count_of(" ranks by NCCL 2.") != 1))
            fail_msg("%d of %d ranks have failed:\n%s", failed, size, output);
    }
}

static void a_rank_that_is_killed_or_hangs_ends_the_others(void **state)
{
    (void)state;
    static const char *const hows[] = {"kill", "stop"};
    if (is_missing())
        skip();
    for (int i = 0; i < 2; i++) {
        time_t begin = time(NULL);
        int failed = run_job(3, hows[i], true);
        if (failed != 3 || count_of("error of rank ") != 2 || time(NULL) - begin > 25)
            fail_msg("%s: %d ranks have failed in %d s:\n%s", hows[i], failed, (int)(time(NULL) - begin), output);
        print_message("%s: %d s\n%s", hows[i], (int)(time(NULL) - begin), output);
    }
}

static void ranks_that_share_a_gpu_are_refused(void **state)
{
    (void)state;
    if (is_missing() || tarn_device_count("cuda") > 1)
        skip();
    assert_int_equal(run_job(2, "sum", false), 2);
    if (count_of("ranks 0 and 1 share the GPU ") != 2)
        fail_msg("%s", output);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc >= 5 && strcmp(argv[1], "--rank") == 0)
        return run_rank(argv[2], atoi(argv[3]), atoi(argv[4]), argv + 5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_ranks_are_those_of_the_cpu),
        cmocka_unit_test(a_rank_that_is_killed_or_hangs_ends_the_others),
        cmocka_unit_test(ranks_that_share_a_gpu_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Communicators between threads, by memory and by sockets: what every rank receives, sums that do not depend on the
 * number of ranks, and failures that reach all ranks. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"
#include "tarn_features.h"

enum { MAX_RANKS = 8 };

/* One rank: what it runs, and what it has found. Assertions of cmocka work on the main thread only. */
typedef struct rank_run {
    pthread_t thread;
    tarn_comm *comm;
    bool (*run)(tarn_comm *comm, void *ctx);
    void *ctx;
    bool good;
    char error[1024];
} rank_run;

static bool has_sockets; /* the ranks are connected by sockets */

static int use_memory(void **state)
{
    (void)state;
    has_sockets = false;
    return 0;
}

static int use_sockets(void **state)
{
    (void)state;
    has_sockets = true;
    return 0;
}

static void connect_ranks(int size, tarn_comm **comms)
{
    static int sockets[MAX_RANKS][MAX_RANKS][2];
    if (!has_sockets) {
        assert_true(tarn_comm_threads(size, comms));
        return;
    }
    for (int a = 0; a < size; a++)
        for (int b = a + 1; b < size; b++)
            for (int kind = 0; kind < 2; kind++) {
                int pair[2];
                assert_int_equal(socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_STREAM, 0, pair), 0);
                sockets[a][b][kind] = pair[0];
                sockets[b][a][kind] = pair[1];
            }
    for (int i = 0; i < size; i++) {
        comms[i] = tarn_comm_sockets(i, size, &sockets[i][0][0]);
        assert_non_null(comms[i]);
    }
}

static void *run_rank(void *argument)
{
    rank_run *r = argument;
    r->good = r->run(r->comm, r->ctx);
    snprintf(r->error, sizeof(r->error), "%s", tarn_error());
    tarn_clear_error();
    return NULL;
}

static void start_ranks(int size, bool (*run)(tarn_comm *comm, void *ctx), void *ctx, rank_run *ranks)
{
    tarn_comm *comms[MAX_RANKS];
    connect_ranks(size, comms);
    for (int i = 0; i < size; i++) {
        ranks[i] = (rank_run){.comm = comms[i], .run = run, .ctx = ctx};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
}

static void end_ranks(int size, rank_run *ranks)
{
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++)
        tarn_comm_free(ranks[i].comm);
}

static void run_ranks(int size, bool (*run)(tarn_comm *comm, void *ctx), void *ctx, rank_run *ranks)
{
    start_ranks(size, run, ctx, ranks);
    end_ranks(size, ranks);
}

static void assert_all_good(int size, const rank_run *ranks)
{
    for (int i = 0; i < size; i++)
        if (!ranks[i].good)
            fail_msg("rank %d of %d: %s", i, size, ranks[i].error);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Rank a sends rank b (a + 2 b) % 5 bytes of value 16 a + b: some pieces are empty. */
static size_t piece(int from, int to)
{
    return (size_t)((from + 2 * to) % 5);
}

static bool all_to_all(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    int rank = tarn_comm_rank(comm), size = tarn_comm_size(comm);
    unsigned char in[64], out[64];
    size_t in_bytes[MAX_RANKS], out_bytes[MAX_RANKS], at = 0;
    for (int i = 0; i < size; i++) {
        in_bytes[i] = piece(rank, i);
        out_bytes[i] = piece(i, rank);
        memset(in + at, 16 * rank + i, in_bytes[i]);
        at += in_bytes[i];
    }
    bool good = tarn_comm_all_to_all(comm, in, in_bytes, out, out_bytes);
    at = 0;
    for (int i = 0; i < size; i++)
        for (size_t k = 0; k < out_bytes[i]; k++)
            good = good && out[at++] == 16 * i + rank;
    return good;
}

/* In place, and with pieces of different lengths. */
static bool all_gather(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    int rank = tarn_comm_rank(comm), size = tarn_comm_size(comm);
    unsigned char out[64] = {0};
    size_t bytes[MAX_RANKS], at = 0, own = 0;
    for (int i = 0; i < size; i++) {
        bytes[i] = (size_t)(i % 3);
        own = i == rank ? at : own;
        at += bytes[i];
    }
    memset(out + own, rank + 1, bytes[rank]);
    bool good = tarn_comm_all_gather(comm, out + own, out, bytes);
    at = 0;
    for (int i = 0; i < size; i++)
        for (size_t k = 0; k < bytes[i]; k++)
            good = good && out[at++] == i + 1;
    return good;
}

static bool broadcast(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    bool good = true;
    for (int root = 0; root < tarn_comm_size(comm); root++) {
        int value = tarn_comm_rank(comm) == root ? 100 + root : -1;
        good = good && tarn_comm_broadcast(comm, root, &value, sizeof(value)) && value == 100 + root &&
               tarn_comm_barrier(comm);
    }
    return good;
}

/* Two messages of a pair arrive in order; a ring does not deadlock where even ranks send first. */
static bool ring(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    int rank = tarn_comm_rank(comm), size = tarn_comm_size(comm), to = (rank + 1) % size,
        from = (rank + size - 1) % size, first = -1, second = -1, next = rank + 10;
    if (size == 1)
        return true;
    bool good = rank % 2 == 1 ||
                (tarn_comm_send(comm, to, &rank, sizeof(rank)) && tarn_comm_send(comm, to, &next, sizeof(next)));
    good = good && tarn_comm_receive(comm, from, &first, sizeof(first)) &&
           tarn_comm_receive(comm, from, &second, sizeof(second)) && first == from && second == from + 10;
    return good && (rank % 2 == 0 ||
                    (tarn_comm_send(comm, to, &rank, sizeof(rank)) && tarn_comm_send(comm, to, &next, sizeof(next))));
}

static void every_rank_receives_what_the_others_send(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    bool (*const runs[])(tarn_comm * comm, void *ctx) = {all_to_all, all_gather, broadcast, ring};
    for (size_t k = 0; k < sizeof(runs) / sizeof(runs[0]); k++)
        for (int size = 1; size <= MAX_RANKS; size++) {
            if (runs[k] == ring && size % 2 == 1)
                continue;
            run_ranks(size, runs[k], NULL, ranks);
            assert_all_good(size, ranks);
        }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

enum { LEAVES = 24, MAX_COUNT = 1000 };

typedef struct summing {
    int leaves, count;
    float sum[MAX_RANKS][MAX_COUNT]; /* of each rank */
} summing;

/* Values of very different magnitudes: another order of additions gives other bits. */
static float value_of(int leaf, int i)
{
    uint32_t x = (uint32_t)(leaf * 7919 + i) * 2654435761u;
    return ldexpf((float)(x >> 8) - 8388608.0f, (int)(x % 24) - 30);
}

static bool sum_parts(tarn_comm *comm, void *ctx)
{
    summing *s = ctx;
    int rank = tarn_comm_rank(comm), parts = s->leaves / tarn_comm_size(comm);
    tarn_tensor *part[LEAVES];
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < parts; k++) {
        float values[MAX_COUNT];
        for (int i = 0; i < s->count; i++)
            values[i] = value_of(rank * parts + k, i);
        part[k] = tarn_from_f32(values, TARN_SHAPE(s->count), tarn_device_cpu());
    }
    bool good = tarn_comm_sum(comm, part, parts, part[0]) && tarn_read_f32(part[0], s->sum[rank], s->count);
    tarn_scope_close(scope);
    return good;
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

static void a_sum_is_bitwise_identical_for_any_number_of_ranks(void **state)
{
    (void)state;
    static const int leaf_counts[] = {1, 2, 3, 5, 6, 8, 12, 24}, counts[] = {1, 7, 1000};
    static summing s;
    rank_run ranks[MAX_RANKS];
    for (size_t l = 0; l < sizeof(leaf_counts) / sizeof(leaf_counts[0]); l++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
            for (int size = 1; size <= MAX_RANKS; size++) {
                s.leaves = leaf_counts[l];
                s.count = counts[c];
                if (s.leaves % size != 0)
                    continue;
                run_ranks(size, sum_parts, &s, ranks);
                assert_all_good(size, ranks);
                for (int r = 0; r < size; r++)
                    for (int i = 0; i < s.count; i++) {
                        float expected = tree_sum(0, s.leaves, i);
                        if (memcmp(&s.sum[r][i], &expected, sizeof(expected)) != 0)
                            fail_msg("element %d of %d, %d leaves on %d ranks: rank %d has %a, not %a", i, s.count,
                                     s.leaves, size, r, (double)s.sum[r][i], (double)expected);
                    }
            }
}

enum { LARGE = 400000 };

/* Three leaves of a rank are two nodes: two messages of a pair in one exchange, each larger than a socket holds. */
static bool sum_large(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    int rank = tarn_comm_rank(comm), wrong = 0;
    float *values = malloc(sizeof(*values) * LARGE);
    tarn_tensor *part[3];
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < 3; k++) {
        int weight = (3 * rank + k + 1) * (3 * rank + k + 1);
        for (int i = 0; i < LARGE; i++)
            values[i] = (float)(weight * (i % 1009));
        part[k] = tarn_from_f32(values, TARN_SHAPE(LARGE), tarn_device_cpu());
    }
    bool good = tarn_comm_sum(comm, part, 3, part[0]) && tarn_read_f32(part[0], values, LARGE);
    for (int i = 0; i < LARGE; i++)
        wrong += values[i] != (float)((1 + 4 + 9 + 16 + 25 + 36) * (i % 1009));
    free(values);
    tarn_scope_close(scope);
    return good && !wrong;
}

static void messages_of_a_pair_keep_their_order(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    for (int i = 0; i < 20; i++) { /* a message that overtakes another one needs an unlucky moment */
        run_ranks(2, sum_large, NULL, ranks);
        assert_all_good(2, ranks);
    }
}

/* Devices without a link stay as they are. */
static bool connect_cpu(tarn_comm *comm, void *ctx)
{
    return tarn_comm_connect(comm, tarn_device_cpu()) && strcmp(tarn_comm_transport(comm), ctx) == 0 &&
           tarn_comm_barrier(comm);
}

static void ranks_on_the_cpu_need_no_link(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    run_ranks(3, connect_cpu, (char *)(has_sockets ? "sockets" : "threads"), ranks);
    assert_all_good(3, ranks);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Rank 2 fails; the others wait for it. */
static bool fail_or_wait(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    if (tarn_comm_rank(comm) == 2) {
        tarn_comm_abort(comm, "step 7: out of memory");
        return false;
    }
    return tarn_comm_barrier(comm);
}

static void a_failed_rank_ends_the_calls_of_all_others_with_its_text(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    run_ranks(4, fail_or_wait, NULL, ranks);
    for (int i = 0; i < 4; i++) {
        assert_false(ranks[i].good);
        if (i != 2 && (!strstr(ranks[i].error, "rank 2 on ") || !strstr(ranks[i].error, ": step 7: out of memory")))
            fail_msg("rank %d: %s", i, ranks[i].error);
    }
}

/* Rank 1 never comes. */
static bool wait_in_vain(tarn_comm *comm, void *ctx)
{
    int value = 0;
    (void)ctx;
    if (tarn_comm_rank(comm) == 1)
        return true;
    return tarn_comm_set_timeout(comm, 0.1) && tarn_comm_receive(comm, 1, &value, sizeof(value));
}

static void a_rank_that_does_not_answer_is_named(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    run_ranks(3, wait_in_vain, NULL, ranks);
    assert_true(ranks[1].good);
    assert_false(ranks[0].good);
    assert_non_null(strstr(ranks[0].error, "rank 1 on "));
    assert_non_null(strstr(ranks[0].error, "does not answer"));
}

/* Ranks give up long after all of them wait: a rank whose thread has no core yet would be named, and rightly. Tests run
 * all their groups at once. */
#define PATIENCE 3 /* seconds */

/* The first rank that gives up tells the others. */
static bool meet_in_vain(tarn_comm *comm, void *ctx)
{
    if (tarn_comm_rank(comm) == *(int *)ctx || (tarn_comm_set_timeout(comm, PATIENCE) && tarn_comm_barrier(comm)))
        return true;
    tarn_comm_abort(comm, tarn_error());
    return false;
}

/* Whichever rank is missing, none is taken for it that waits itself. */
static void a_rank_that_is_missing_at_a_barrier_is_named(void **state)
{
    (void)state;
    rank_run ranks[4][4];
    int missing[4];
    for (int m = 0; m < 4; m++) {
        missing[m] = m;
        start_ranks(4, meet_in_vain, &missing[m], ranks[m]);
    }
    for (int m = 0; m < 4; m++)
        end_ranks(4, ranks[m]);
    for (int m = 0; m < 4; m++) {
        char name[32];
        snprintf(name, sizeof(name), "rank %d on ", m);
        for (int i = 0; i < 4; i++)
            if (i != m && (ranks[m][i].good || !strstr(ranks[m][i].error, name)))
                fail_msg("rank %d without rank %d: '%s'", i, m, ranks[m][i].error);
    }
}

/* Rank 0 waits for 1, which waits for 2, and so on; the last one does something else. */
static bool wait_in_a_chain(tarn_comm *comm, void *ctx)
{
    int value = 0, rank = tarn_comm_rank(comm);
    (void)ctx;
    if (rank == tarn_comm_size(comm) - 1)
        return true; /* it sends nothing; its sockets stay open */
    bool good = tarn_comm_set_timeout(comm, PATIENCE) && tarn_comm_receive(comm, rank + 1, &value, sizeof(value));
    if (!good)
        tarn_comm_abort(comm, tarn_error());
    return good;
}

/* A rank that waits itself is not named as the one that does not answer. */
static void the_last_rank_of_a_chain_of_waits_is_named(void **state)
{
    (void)state;
    static const int sizes[] = {3, 5};
    rank_run ranks[2][5];
    for (int k = 0; k < 2; k++)
        start_ranks(sizes[k], wait_in_a_chain, NULL, ranks[k]);
    for (int k = 0; k < 2; k++)
        end_ranks(sizes[k], ranks[k]);
    for (int k = 0; k < 2; k++) {
        char name[32];
        snprintf(name, sizeof(name), "rank %d on ", sizes[k] - 1);
        for (int i = 0; i + 1 < sizes[k]; i++)
            if (ranks[k][i].good || !strstr(ranks[k][i].error, name))
                fail_msg("rank %d of %d: '%s'", i, sizes[k], ranks[k][i].error);
    }
}

/* A notice is due after a quarter of the time limit. */
#define SLOW_LIMIT 4.0
#define SLOW_NOTICE (SLOW_LIMIT / 4)

typedef struct told {
    atomic_int count[3]; /* per rank */
    char text[256];
} told;

typedef struct told_rank {
    told *told;
    int rank;
} told_rank;

static void tell(const char *text, void *ctx)
{
    const told_rank *t = ctx;
    snprintf(t->told->text, sizeof(t->told->text), "%s", text);
    t->told->count[t->rank]++;
}

/* A slow rank works until it is told of; not for ever, so that a test without a notice fails by its counts. */
static void work_until_told(const told *all)
{
    for (int i = 0; i < 300 && all->count[0] + all->count[1] + all->count[2] == 0; i++)
        usleep(10000);
}

/* All wait for a slow rank, twice: rank 0 tells, and rank 1 where it is rank 0 itself. */
static bool wait_for_the_slow(tarn_comm *comm, int slow, told *all)
{
    told_rank own = {all, tarn_comm_rank(comm)};
    int value = 0;
    bool good = tarn_comm_set_timeout(comm, SLOW_LIMIT) && tarn_comm_set_notice(comm, tell, &own);
    for (int i = 0; good && i < 2; i++) {
        if (own.rank == slow && i == 0)
            work_until_told(all);
        else if (own.rank == slow)
            usleep((useconds_t)(1.3e6 * SLOW_NOTICE)); /* another notice would be due */
        good = tarn_comm_broadcast(comm, slow, &value, sizeof(value));
    }
    return good && tarn_comm_set_notice(comm, NULL, NULL);
}

/* Rank 0 waits for 1, which waits for 2. */
static bool wait_for_the_last(tarn_comm *comm, void *ctx)
{
    int value = 0, rank = tarn_comm_rank(comm);
    told_rank own = {ctx, rank};
    bool good = tarn_comm_set_timeout(comm, SLOW_LIMIT) && tarn_comm_set_notice(comm, tell, &own);
    if (rank == 2)
        work_until_told(ctx);
    good = good && (rank == 2 || tarn_comm_receive(comm, rank + 1, &value, sizeof(value))) &&
           (rank == 0 || tarn_comm_send(comm, rank - 1, &value, sizeof(value)));
    return good && tarn_comm_set_notice(comm, NULL, NULL);
}

static bool wait_for_rank_0(tarn_comm *comm, void *ctx)
{
    return wait_for_the_slow(comm, 0, ctx);
}

static bool wait_for_rank_2(tarn_comm *comm, void *ctx)
{
    return wait_for_the_slow(comm, 2, ctx);
}

static void assert_told(const told *all, int by, const char *text)
{
    for (int i = 0; i < 3; i++)
        if (all->count[i] != (i == by) || !strstr(all->text, text))
            fail_msg("%d, %d, %d: '%s'", all->count[0], all->count[1], all->count[2], all->text);
}

static void a_long_wait_is_told_once_by_one_rank(void **state)
{
    (void)state;
    static told all[2];
    rank_run ranks[2][3];
    memset(all, 0, sizeof(all));
    start_ranks(3, wait_for_rank_0, &all[0], ranks[0]);
    start_ranks(3, wait_for_rank_2, &all[1], ranks[1]);
    for (int k = 0; k < 2; k++)
        end_ranks(3, ranks[k]);
    for (int k = 0; k < 2; k++)
        assert_all_good(3, ranks[k]);
    assert_told(&all[0], 1, "waiting for rank 0 on ");
    assert_told(&all[1], 0, "waiting for rank 2 on ");
}

static void a_long_wait_names_the_last_rank_of_its_chain(void **state)
{
    (void)state;
    static told all;
    rank_run ranks[MAX_RANKS];
    memset(&all, 0, sizeof(all));
    run_ranks(3, wait_for_the_last, &all, ranks);
    assert_all_good(3, ranks);
    assert_told(&all, 0, "waiting for rank 2 on ");
}

/* After an abort poll() fails without waiting, and so does every later call, with the same text. */
static void a_broken_communicator_stays_broken(void **state)
{
    (void)state;
    tarn_comm *comms[2];
    int value = 0;
    connect_ranks(2, comms);
    assert_true(tarn_comm_poll(comms[0]));
    tarn_comm_abort(comms[1], "the disk is full");
    for (int i = 0; i < 2; i++) {
        assert_false(tarn_comm_poll(comms[0]));
        assert_non_null(strstr(tarn_error(), "the disk is full"));
        tarn_clear_error();
    }
    assert_false(tarn_comm_send(comms[0], 1, &value, sizeof(value)));
    assert_non_null(strstr(tarn_error(), "the disk is full"));
    tarn_clear_error();
    assert_true(tarn_comm_is_reporter(comms[0]));
    assert_false(tarn_comm_is_reporter(comms[1]));
    tarn_comm_free(comms[0]);
    tarn_comm_free(comms[1]);
}

/* Megabytes in both directions at once: more than a socket holds. */
static bool exchange_much(tarn_comm *comm, void *ctx)
{
    enum { BYTES = 3 << 20 };
    (void)ctx;
    int rank = tarn_comm_rank(comm), size = tarn_comm_size(comm);
    size_t bytes[MAX_RANKS];
    unsigned char *in = malloc((size_t)size * BYTES), *out = malloc((size_t)size * BYTES);
    bool good = in && out;
    for (int i = 0; good && i < size; i++) {
        bytes[i] = BYTES;
        memset(in + (size_t)i * BYTES, 16 * rank + i, BYTES);
    }
    good = good && tarn_comm_all_to_all(comm, in, bytes, out, bytes);
    for (int i = 0; good && i < size; i++)
        good = out[(size_t)i * BYTES] == 16 * i + rank && out[(size_t)(i + 1) * BYTES - 1] == 16 * i + rank;
    free(in);
    free(out);
    return good;
}

static void messages_may_be_larger_than_a_socket_holds(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    run_ranks(3, exchange_much, NULL, ranks);
    assert_all_good(3, ranks);
}

/* Rank 1 leaves without a word, as a process that is killed does; its sockets are closed. */
static void a_rank_that_ends_is_named_at_once(void **state)
{
    (void)state;
    int pair[2][2], sockets[4] = {-1, -1}, value;
    for (int kind = 0; kind < 2; kind++) {
        assert_int_equal(socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_STREAM, 0, pair[kind]), 0);
        sockets[2 + kind] = pair[kind][0];
    }
    tarn_comm *comm = tarn_comm_sockets(0, 2, sockets);
    assert_non_null(comm);
    assert_true(tarn_comm_poll(comm));
    for (int kind = 0; kind < 2; kind++)
        shutdown(pair[kind][1], SHUT_RDWR);
    assert_false(tarn_comm_poll(comm));
    assert_non_null(strstr(tarn_error(), "rank 1 on "));
    assert_non_null(strstr(tarn_error(), ": it has ended"));
    tarn_clear_error();
    assert_false(tarn_comm_receive(comm, 1, &value, sizeof(value)));
    assert_non_null(strstr(tarn_error(), ": it has ended"));
    tarn_clear_error();
    tarn_comm_free(comm);
}

enum { WAITS = 20 };

/* Rank 0 waits for each message long enough to tell; rank 1 only sends, and reads records at the end. */
static bool leave_after_waits(tarn_comm *comm, void *ctx)
{
    (void)ctx;
    int value = 0;
    bool good = tarn_comm_set_timeout(comm, 30);
    for (int i = 0; good && i < WAITS; i++) {
        if (tarn_comm_rank(comm) == 1)
            usleep(200000); /* rank 0 tells after 0.125 s, in rounds of 0.05 s */
        good = tarn_comm_rank(comm) == 0 ? tarn_comm_receive(comm, 1, &value, sizeof(value))
                                         : tarn_comm_send(comm, 0, &value, sizeof(value));
    }
    return good;
}

/* Unread records of waits leave space for the record of a rank that leaves. */
static void a_rank_may_leave_after_many_waits(void **state)
{
    (void)state;
    tarn_comm *comms[2];
    rank_run ranks[2];
    int space = 40000; /* the system doubles it; still fewer records than waits */
    has_sockets = true;
    int sockets[2][2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[0]), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets[1]), 0);
    assert_int_equal(setsockopt(sockets[1][0], SOL_SOCKET, SO_SNDBUF, &space, sizeof(space)), 0);
    for (int i = 0; i < 2; i++) {
        int own[4] = {-1, -1, -1, -1};
        own[2 * !i] = sockets[0][i], own[2 * !i + 1] = sockets[1][i];
        assert_non_null(comms[i] = tarn_comm_sockets(i, 2, own));
        ranks[i] = (rank_run){.comm = comms[i], .run = leave_after_waits};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
    assert_true(ranks[0].good && ranks[1].good);
    tarn_comm_free(comms[0]);
    assert_true(tarn_comm_poll(comms[1]));
    tarn_comm_free(comms[1]);
    assert_ok();
}

#define LONG_WAIT 4.0 /* seconds */

typedef struct abort_times {
    atomic_bool is_aborted;
    double aborted, reported; /* by rank 2; by rank 0: seconds of the clock */
} abort_times;

static double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Rank 2 aborts while rank 0 waits for it, and its sockets stay open; a message of rank 1 comes just after. */
static bool abort_late(tarn_comm *comm, void *ctx)
{
    abort_times *times = ctx;
    int value = 0, all[3], rank = tarn_comm_rank(comm);
    size_t bytes[3] = {sizeof(int), sizeof(int), sizeof(int)};
    if (rank == 2) {
        usleep((useconds_t)(1e6 * LONG_WAIT));
        times->aborted = clock_seconds();
        tarn_comm_abort(comm, "it has had enough");
        times->is_aborted = true;
        return false;
    }
    while (rank == 1 && !times->is_aborted)
        usleep(10000);
    if (rank == 1)
        usleep(100000);
    bool good = tarn_comm_all_gather(comm, &value, all, bytes);
    if (rank == 0)
        times->reported = clock_seconds();
    return good;
}

/* A message that arrives after an abort does not delay its report by the time of the wait before. */
static void an_abort_is_reported_soon_though_messages_come(void **state)
{
    (void)state;
    rank_run ranks[MAX_RANKS];
    abort_times times = {0};
    has_sockets = true;
    run_ranks(3, abort_late, &times, ranks);
    assert_false(ranks[0].good);
    assert_non_null(strstr(ranks[0].error, "it has had enough"));
    double seconds = times.reported - times.aborted;
    if (!TARN__SANITIZE[0] && seconds > 0.8 * LONG_WAIT) /* 0.6 with a core; 0.6 + LONG_WAIT with the time before */
        fail_msg("reported after %.2f s", seconds);
}

/* Rank 0 leaves: rank 1, which waits for it in vain, reports. Rank 2 leaves that to rank 1. */
static void a_rank_that_has_left_reports_nothing(void **state)
{
    (void)state;
    int value;
    tarn_comm *comms[3];
    has_sockets = true;
    connect_ranks(3, comms);
    tarn_comm_free(comms[0]);
    assert_false(tarn_comm_receive(comms[1], 0, &value, sizeof(value)));
    tarn_comm_abort(comms[1], tarn_error());
    tarn_clear_error();
    assert_true(tarn_comm_is_reporter(comms[1]));
    tarn_comm_free(comms[1]);
    assert_false(tarn_comm_poll(comms[2]));
    tarn_comm_abort(comms[2], tarn_error());
    tarn_clear_error();
    assert_false(tarn_comm_is_reporter(comms[2]));
    tarn_comm_free(comms[2]);
}

#define OF_BOTH(test) \
    {#test, test, use_memory, NULL, NULL}, \
    { \
#test "_by_sockets", test, use_sockets, NULL, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OF_BOTH(every_rank_receives_what_the_others_send),
        OF_BOTH(messages_may_be_larger_than_a_socket_holds),
        OF_BOTH(a_sum_is_bitwise_identical_for_any_number_of_ranks),
        OF_BOTH(messages_of_a_pair_keep_their_order),
        OF_BOTH(ranks_on_the_cpu_need_no_link),
        OF_BOTH(a_failed_rank_ends_the_calls_of_all_others_with_its_text),
        OF_BOTH(a_rank_that_does_not_answer_is_named),
        OF_BOTH(a_rank_that_is_missing_at_a_barrier_is_named),
        OF_BOTH(a_long_wait_is_told_once_by_one_rank),
        OF_BOTH(the_last_rank_of_a_chain_of_waits_is_named),
        OF_BOTH(a_long_wait_names_the_last_rank_of_its_chain),
        OF_BOTH(a_broken_communicator_stays_broken),
        cmocka_unit_test(a_rank_that_ends_is_named_at_once),
        cmocka_unit_test(a_rank_that_has_left_reports_nothing),
        cmocka_unit_test(a_rank_may_leave_after_many_waits),
        cmocka_unit_test(an_abort_is_reported_soon_though_messages_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

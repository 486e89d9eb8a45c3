/* bench_comm.c: `tarn bench comm`: what the connection of ranks moves: all-to-all and all-gather of host memory, and
 * the tree sum of tensors on the ranks' devices, by size.
 *
 * The command starts its ranks itself, or has been started by mpirun. Every rank times the same calls; those of rank 0
 * are printed: all ranks leave a call together. Bandwidths count the bytes that a rank sends, so that they compare with
 * that of a link, whatever the number of ranks. */
#include <stdlib.h>
#include <string.h>
#include <tarn/parallel.h>

#include "cli/bench/timer.h"
#include "cli/train/train.h"

enum { MAX_TURNS = 1000 };
#define RUN_LENGTH 50000 /* microseconds of a run */

/* Buffers of one size. */
typedef struct buffers {
    tarn_comm *comm;
    size_t bytes, *piece; /* [ranks] */
    char *in, *out;
    tarn_tensor *part, *sum;
} buffers;

static bool all_to_all(void *ctx, int i)
{
    const buffers *b = ctx;
    (void)i;
    return tarn_comm_all_to_all(b->comm, b->in, b->piece, b->out, b->piece);
}

static bool all_gather(void *ctx, int i)
{
    const buffers *b = ctx;
    (void)i;
    return tarn_comm_all_gather(b->comm, b->in, b->out, b->piece);
}

static bool sum(void *ctx, int i)
{
    const buffers *b = ctx;
    (void)i;
    return tarn_comm_sum(b->comm, &b->part, 1, b->sum);
}

/* `factor`: how often a rank sends its part of the bytes that belong to other ranks. */
static const struct {
    const char *name;
    tarn__work_fn run;
    double factor;
    bool on_device;
} kinds[] = {{"all-to-all", all_to_all, 1, false}, {"all-gather", all_gather, 1, false}, {"sum", sum, 2, true}};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of `turns` calls, begun together. */
static double time_run(buffers *b, tarn__work_fn run, int turns, bool *good)
{
    *good = *good && tarn_comm_barrier(b->comm);
    double begin = tarn__clock();
    for (int i = 0; *good && i < turns; i++)
        *good = run(b, i);
    *good = *good && (!b->part || tarn_synchronize(tarn_device_of(b->part)));
    return tarn__clock() - begin;
}

/* The median of the runs, in microseconds per call. The number of calls is rank 0's. */
static double measure(buffers *b, tarn__work_fn run, int64_t runs, bool *good)
{
    static double times[TARN__MAX_RUNS];
    time_run(b, run, 1, good);
    double once = time_run(b, run, 1, good), wanted = RUN_LENGTH / (once > 1 ? once : 1);
    int turns = wanted < 1 ? 1 : wanted > MAX_TURNS ? MAX_TURNS : (int)wanted;
    *good = *good && tarn_comm_broadcast(b->comm, 0, &turns, sizeof(turns));
    for (int64_t i = 0; *good && i < runs; i++)
        times[i] = time_run(b, run, turns, good) / turns;
    qsort(times, (size_t)runs, sizeof(times[0]), by_value);
    return times[runs / 2];
}

/* Whole elements for every rank. */
static bool open_buffers(buffers *b, tarn_comm *comm, int64_t bytes, tarn_device device)
{
    int size = tarn_comm_size(comm);
    int64_t count = (bytes / 4 + size - 1) / size * size;
    *b = (buffers){.comm = comm, .bytes = (size_t)count * 4, .piece = calloc((size_t)size, sizeof(size_t))};
    b->in = calloc(b->bytes, 1);
    b->out = calloc(b->bytes, 1);
    for (int i = 0; b->piece && i < size; i++)
        b->piece[i] = b->bytes / (size_t)size;
    b->part = tarn_ones(TARN_SHAPE(count), TARN_F32, device);
    b->sum = tarn_zeros(TARN_SHAPE(count), TARN_F32, device);
    if (!tarn_failed() && !(b->piece && b->in && b->out))
        tarn_set_error(TARN_ERROR_MEMORY, "bench comm: no memory for messages of %zu bytes", b->bytes);
    return !tarn_failed();
}

static void close_buffers(buffers *b)
{
    free(b->piece);
    free(b->in);
    free(b->out);
}

static void print_row(const tarn__options *options, const buffers *b, int kind, tarn_device device, double time)
{
    char name[32];
    int size = tarn_comm_size(b->comm);
    double sent = kinds[kind].factor * (double)b->bytes * (size - 1) / size;
    tarn_device_name(kinds[kind].on_device ? device : tarn_device_cpu(), name, sizeof(name));
    const char *transport = strcmp(name, "cpu") != 0 ? tarn_comm_transport(b->comm) : NULL;
    if (!options->json) {
        printf("%-12s %-10s %10s %12.1f %10.2f\n", kinds[kind].name, name, tarn__bytes_text((int64_t)b->bytes), time,
               sent / time / 1e3);
        fflush(stdout);
        return;
    }
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "operation", kinds[kind].name);
    tarn__json_string(&json, "memory", name);
    tarn__json_int(&json, "ranks", size);
    if (transport)
        tarn__json_string(&json, "transport", transport);
    tarn__json_int(&json, "bytes", (int64_t)b->bytes);
    tarn__json_real(&json, "microseconds", time, 1);
    tarn__json_real(&json, "gigabytes_per_second", sent / time / 1e3, 3);
    tarn__json_end(&json);
}

static bool measure_size(const tarn__options *options, tarn_comm *comm, int64_t bytes, tarn_device device)
{
    buffers b;
    tarn_scope *scope = tarn_scope_open();
    bool good = open_buffers(&b, comm, bytes, device);
    for (int i = 0; good && i < KINDS; i++) {
        double time = measure(&b, kinds[i].run, options->runs, &good);
        if (good && tarn_comm_rank(comm) == 0)
            print_row(options, &b, i, device, time);
    }
    close_buffers(&b);
    tarn_scope_close(scope);
    return good;
}

static void print_head(const tarn__options *options, const tarn_comm *comm)
{
    if (tarn_comm_rank(comm) != 0 || options->json)
        return;
    tarn__heading("%d ranks, connected by %s", tarn_comm_size(comm), tarn_comm_transport(comm));
    printf("%-12s %-10s %10s %12s %10s\n", "operation", "memory", "bytes", "us", "GB/s sent");
}

static int run_rank(const tarn__options *options, tarn_comm *comm)
{
    tarn__options own = *options;
    int status = own.gpus ? tarn__place_rank("bench comm", &own, comm) : TARN__DONE;
    if (status != TARN__DONE)
        return status;
    tarn__rank_mute(comm, own.quiet);
    tarn_device device = own.gpus ? tarn_device_parse(own.train.device) : tarn_device_cpu();
    bool good = !tarn_failed() && tarn_comm_connect(comm, device);
    if (good)
        print_head(options, comm);
    for (int i = 0; good && i < options->size_count; i++)
        good = measure_size(options, comm, options->sizes[i], device);
    if (good)
        return TARN__DONE;
    return tarn__rank_reports(comm) ? tarn__print_error("bench comm") : TARN__FAILED;
}

/* Two ranks, unless the user or mpirun has said how many. */
int tarn__bench_comm(const tarn__options *options)
{
    tarn__options own = *options;
    if (options->gpus && options->ranks) {
        fprintf(stderr, "tarn bench comm: --gpus starts a rank for each GPU; remove --ranks\n");
        return TARN__MISUSED;
    }
    int64_t asked = options->gpus ? options->gpus : options->ranks;
    if (!tarn__is_launched() && asked && tarn_comm_launched() > 1 && asked != tarn_comm_launched()) {
        fprintf(stderr, "tarn bench comm: --%s is %lld, but %d processes were launched\n",
                options->gpus ? "gpus" : "ranks", (long long)asked, tarn_comm_launched());
        return TARN__MISUSED;
    }
    if (!tarn__is_launched() && tarn_comm_launched() == 1) {
        own.ranks = options->gpus || options->ranks ? options->ranks : 2;
        return tarn__launch("bench comm", &own);
    }
    tarn_comm *comm = tarn__rank_comm();
    int status = comm                        ? run_rank(options, comm)
                 : tarn__is_first_launched() ? tarn__print_error("bench comm")
                                             : TARN__FAILED;
    tarn_comm_free(comm);
    return status;
}

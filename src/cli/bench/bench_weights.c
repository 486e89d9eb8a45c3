/* bench_weights.c: `tarn bench weights`: matmuls of 1 and of 128 rows with the weights of a language model of a billion
 * parameters, in the dtypes of files.
 *
 * One row, a decode step (GEMV), is compared with a read of the same bytes, its lower bound; 128 rows are a prefill.
 * Weights rotate through more memory than caches have. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/ops.h>
#include <time.h>

#include "cli/bench/bench_case.h"

#define POOL_BYTES ((int64_t)640 << 20)
#define MAX_SETS 512
#define PATTERN_ROWS 64 /* distinct rows; the others repeat them */

static const tarn_dtype dtypes[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_1, TARN_Q5_0,   TARN_Q5_1,   TARN_Q2_K, TARN_Q3_K,
                                    TARN_Q4_K, TARN_Q5_K, TARN_Q6_K, TARN_IQ4_NL, TARN_IQ4_XS, TARN_BF16, TARN_F32};
/* [out, in] of the linear layers: attention, FFN up, FFN down, head. */
static const int64_t shapes[][2] = {{2048, 2048}, {8192, 2048}, {2048, 8192}, {128256, 2048}};
enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]), SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* On the heap; its tensors belong to the scope of measure_shape(). */
typedef struct job {
    tarn_tensor *weights[MAX_SETS], *x, *f32_bytes; /* `f32_bytes` has the bytes of all weights, as f32 */
    int sets;
} job;

typedef struct result {
    tarn_dtype dtype;
    int64_t out, in, rows;
    double time, spread, read; /* microseconds; read: of the weight's bytes, NaN for many rows */
} result;

static bool run_matmul(void *ctx, int i)
{
    const job *work = ctx;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_linear_apply(work->x, work->weights[i], NULL) != NULL;
    tarn_scope_close(scope);
    return good;
}

/* The maximum over the bytes of one weight: reads them all and writes one value. */
static bool run_read(void *ctx, int i)
{
    const job *work = ctx;
    tarn_scope *scope = tarn_scope_open();
    int64_t count = tarn_size(work->f32_bytes, 0) / work->sets;
    bool good = tarn_max(tarn_slice(work->f32_bytes, 0, i * count, (i + 1) * count), TARN_ALL_AXES, false) != NULL;
    tarn_scope_close(scope);
    return good;
}

/* Weights as slices of one tensor, with rows repeated from a pattern: quantizing all of them would take minutes. */
static bool create_weights(job *work, tarn_dtype dtype, int64_t out, int64_t in, tarn_device device)
{
    tarn_tensor *some = tarn_cast(tarn_normal(TARN_SHAPE(PATTERN_ROWS, in), 0, 0.02, TARN_F32, device), dtype);
    int64_t bytes = some ? tarn_bytes(some) / PATTERN_ROWS * out : 1;
    work->sets = (int)(POOL_BYTES / bytes < 1 ? 1 : POOL_BYTES / bytes > MAX_SETS ? MAX_SETS : POOL_BYTES / bytes);
    tarn_tensor *all = tarn_empty(TARN_SHAPE(work->sets * out, in), dtype, device);
    for (int64_t row = 0; row < work->sets * out && !tarn_failed(); row += PATTERN_ROWS)
        tarn_copy(tarn_slice(all, 0, row, row + PATTERN_ROWS), some);
    for (int i = 0; i < work->sets; i++)
        work->weights[i] = tarn_slice(all, 0, i * out, (i + 1) * out);
    return !tarn_failed();
}

/* A single CPU thread is timed by its CPU time, which other programs do not affect. */
static bool is_cpu_timed(tarn_device device)
{
    return tarn_threads() == 1 && tarn_device_equal(device, tarn_device_cpu());
}

static double thread_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* The timer's own time, by events, is replaced by CPU time where that applies. */
static bool run_timer(tarn__timer *timer, tarn_device device)
{
    double start = thread_clock();
    if (!tarn__timer_run(timer, device))
        return false;
    if (is_cpu_timed(device))
        timer->times[timer->runs - 1] = (thread_clock() - start) / timer->turns;
    return true;
}

/* Matmul and read in turn; the read only for one row. */
static bool measure(job *work, tarn_device device, int64_t runs, result *r)
{
    tarn__timer *timers = calloc(2, sizeof(*timers));
    if (!timers)
        return tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the timers");
    timers[0] = (tarn__timer){.work = run_matmul, .ctx = work, .sets = work->sets, .length = 15000};
    timers[1] = (tarn__timer){.work = run_read, .ctx = work, .sets = work->sets, .length = 15000};
    int count = r->rows == 1 ? 2 : 1;
    bool good = true;
    for (int k = 0; good && k < count; k++)
        good = tarn__timer_start(&timers[k], device);
    for (int64_t i = 0; good && i < runs; i++)
        for (int k = 0; good && k < count; k++)
            good = run_timer(&timers[k], device);
    r->time = tarn__timer_median(&timers[0]);
    r->spread = tarn__timer_spread(&timers[0]);
    r->read = tarn__timer_median(&timers[1]);
    free(timers);
    return good;
}

/* `bytes` are of one weight in its dtype: activations are small next to it. */
static void print_result(const result *r, int64_t bytes, bool json)
{
    double flops = 2.0 * (double)r->out * (double)r->in * (double)r->rows;
    if (!json) {
        printf("%-6s %8lld x %-6lld %5lld %10.1f %8.2f %8s %8s %9.1f %7.0f%%\n", tarn_dtype_name(r->dtype),
               (long long)r->out, (long long)r->in, (long long)r->rows, r->time, (double)bytes / r->time / 1e3,
               tarn__cell((double)bytes / r->read / 1e3, 2), tarn__cell(r->read / r->time, 2), flops / r->time / 1e3,
               100 * r->spread);
        fflush(stdout);
        return;
    }
    tarn__json line = {stdout, false};
    tarn__json_open(&line, NULL, '{');
    tarn__json_string(&line, "op", "weights");
    tarn__json_string(&line, "dtype", tarn_dtype_name(r->dtype));
    tarn__json_shape(&line, "shape", TARN_SHAPE(r->rows, r->out, r->in));
    tarn__json_int(&line, "threads", tarn_threads());
    tarn__json_real(&line, "fwd_us", r->time, 2);
    tarn__json_real(&line, "fwd_spread", r->spread, 3);
    tarn__json_real(&line, "gb_per_s", (double)bytes / r->time / 1e3, 3);
    tarn__json_real(&line, "read_us", r->read, 2);
    tarn__json_real(&line, "fwd_of_read", r->read / r->time, 3);
    tarn__json_real(&line, "gflops", flops / r->time / 1e3, 2);
    tarn__json_end(&line);
}

/* Weights of one dtype and shape, with one row and with many. */
static bool measure_shape(const tarn__options *options, tarn_dtype dtype, const int64_t *shape)
{
    job *work = calloc(1, sizeof(*work));
    tarn_scope *scope = tarn_scope_open();
    tarn_dtype of_x = dtype == TARN_BF16 ? TARN_BF16 : TARN_F32;
    bool good = work ? create_weights(work, dtype, shape[0], shape[1], options->device)
                     : tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the timers");
    int64_t bytes = good ? tarn_bytes(work->weights[0]) : 0;
    good =
        good && (work->f32_bytes = tarn_zeros(TARN_SHAPE(bytes / 4 * work->sets), TARN_F32, options->device)) != NULL;
    for (int64_t rows = 1; good && rows <= 128; rows += 127) {
        result r = {.dtype = dtype, .out = shape[0], .in = shape[1], .rows = rows};
        work->x = tarn_normal(TARN_SHAPE(rows, shape[1]), 0, 1, of_x, options->device);
        good = work->x && measure(work, options->device, options->runs, &r);
        if (good)
            print_result(&r, bytes, options->json);
    }
    tarn_scope_close(scope);
    free(work);
    return good && !tarn_failed();
}

/* --only names dtypes here. */
static bool is_wanted(const tarn__options *options, tarn_dtype dtype)
{
    bool wanted = options->only_count == 0;
    for (int i = 0; i < options->only_count; i++)
        wanted = wanted || strcmp(options->only[i], tarn_dtype_name(dtype)) == 0;
    return wanted;
}

/* A name after --only that is not a row; NULL: none. */
static const char *unknown_name(const tarn__options *options)
{
    for (int i = 0; i < options->only_count; i++) {
        bool known = false;
        for (int k = 0; k < DTYPES; k++)
            known = known || strcmp(options->only[i], tarn_dtype_name(dtypes[k])) == 0;
        if (!known)
            return options->only[i];
    }
    return NULL;
}

int tarn__bench_weights(const tarn__options *options)
{
    char name[32];
    if (unknown_name(options)) {
        fprintf(stderr, "tarn bench weights: --only: '%s' must be a quantized type, bf16 or f32\n",
                unknown_name(options));
        return TARN__MISUSED;
    }
    if (!options->json) {
        printf("weights on %s, %d threads, median of %lld runs%s; GB/s of the weight's bytes, and of reading them\n\n",
               tarn_device_name(options->device, name, sizeof(name)), tarn_threads(), (long long)options->runs,
               is_cpu_timed(options->device) ? ", CPU time" : "");
        tarn__heading("%-6s %8s x %-6s %5s %10s %8s %8s %8s %9s %8s", "dtype", "out", "in", "rows", "us", "GB/s",
                      "read", "of read", "GFLOP/s", "spread");
    }
    for (int k = 0; k < DTYPES; k++)
        for (int i = 0; i < SHAPES && is_wanted(options, dtypes[k]); i++)
            if (!measure_shape(options, dtypes[k], shapes[i]))
                return tarn__print_error("bench weights");
    return TARN__DONE;
}

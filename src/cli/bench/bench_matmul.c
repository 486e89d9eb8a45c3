/* bench_matmul.c: `tarn bench matmul`: square matmuls by a naive loop, by BLAS called directly with all threads, and by
 * tarn.
 *
 * BLAS and tarn run in turn. The naive loop runs afterwards, a few times only: it is orders of magnitude slower, and
 * its noise does not matter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/ops.h>
#include <time.h>

#include "cli/bench/timer.h"
#include "cli/blas.h"

/* Larger naive matmuls would take seconds per run. */
#define MAX_NAIVE 1024

/* Row-major [n, n] on the device; they belong to the scope of tarn__measure_matmul(). */
typedef struct operands {
    int64_t n;
    tarn_dtype dtype;
    tarn_tensor *a, *b, *c; /* c is the output of BLAS and of the loop */
} operands;

static bool run_tarn(void *ctx, int i)
{
    operands *p = ctx;
    (void)i;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_matmul(p->a, p->b) != NULL;
    tarn_scope_close(scope);
    return good;
}

/* The three textbook loops: rows, columns, sum. */
#define NAIVE(type) \
    static void naive_##type(int64_t n, const type *a, const type *b, type *c) \
    { \
        for (int64_t i = 0; i < n; i++) \
            for (int64_t j = 0; j < n; j++) { \
                type sum = 0; \
                for (int64_t k = 0; k < n; k++) \
                    sum += a[i * n + k] * b[k * n + j]; \
                c[i * n + j] = sum; \
            } \
    }
NAIVE(float)
NAIVE(double)

static bool run_naive(void *ctx, int i)
{
    operands *p = ctx;
    (void)i;
    if (p->dtype == TARN_F32)
        naive_float(p->n, tarn_data(p->a), tarn_data(p->b), tarn_data(p->c));
    else
        naive_double(p->n, tarn_data(p->a), tarn_data(p->b), tarn_data(p->c));
    return true;
}

static bool run_blas(void *ctx, int i)
{
    operands *p = ctx;
    (void)i;
    if (p->dtype == TARN_F32)
        tarn__blas_square_f32(p->n, tarn_data(p->a), tarn_data(p->b), tarn_data(p->c));
    else
        tarn__blas_square_f64(p->n, tarn_data(p->a), tarn_data(p->b), tarn_data(p->c));
    return true;
}

/* BLAS gets all threads while it is measured, then the single one that tarn uses it with. Its threads spin for a while
 * after a matmul and would take cores from the next measurement, hence the pause. */
static bool with_blas_threads(tarn__timer *timer, bool (*step)(tarn__timer *, tarn_device), tarn_device device)
{
    tarn__blas_set_threads(tarn_threads());
    bool good = step(timer, device);
    tarn__blas_set_threads(1);
    nanosleep(&(struct timespec){0, 60 * 1000 * 1000}, NULL);
    return good;
}

/* BLAS and the loop need host memory and f32 or f64. A missing baseline is NaN. */
static bool measure(operands *p, tarn_device device, int64_t runs, tarn__matmul_times *found)
{
    bool on_cpu = tarn_device_equal(device, tarn_device_cpu()) && (p->dtype == TARN_F32 || p->dtype == TARN_F64);
    bool has_blas = on_cpu && !tarn__blas_missing() && tarn__blas_fits(tarn_threads()),
         has_naive = on_cpu && p->n <= MAX_NAIVE;
    tarn__timer *timers = calloc(3, sizeof(*timers)), *own = timers, *blas = timers + 1, *naive = timers + 2;
    if (!timers)
        return tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the timers");
    *own = (tarn__timer){.work = run_tarn, .ctx = p, .sets = 1};
    *blas = (tarn__timer){.work = run_blas, .ctx = p, .sets = 1};
    *naive = (tarn__timer){.work = run_naive, .ctx = p, .sets = 1, .turns = 1};
    bool good = tarn__timer_start(own, device) && (!has_blas || with_blas_threads(blas, tarn__timer_start, device));
    for (int64_t i = 0; good && i < runs; i++)
        good = (!has_blas || with_blas_threads(blas, tarn__timer_run, device)) && tarn__timer_run(own, device);
    for (int i = 0; good && has_naive && i < (p->n <= 256 ? 5 : 1); i++)
        good = tarn__timer_run(naive, device);
    *found = (tarn__matmul_times){tarn__timer_median(own), tarn__timer_median(blas), tarn__timer_median(naive),
                                  tarn__timer_spread(own), tarn__timer_spread(blas)};
    free(timers);
    return good;
}

bool tarn__measure_matmul(int64_t n, tarn_dtype dtype, tarn_device device, int64_t runs, tarn__matmul_times *found)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_shape shape = TARN_SHAPE(n, n);
    operands p = {.n = n, .dtype = dtype};
    p.a = tarn_normal(shape, 0, 1, dtype, device);
    p.b = tarn_normal(shape, 0, 1, dtype, device);
    p.c = tarn_zeros(shape, dtype, device);
    bool good = !tarn_failed() && measure(&p, device, runs, found);
    tarn_scope_close(scope);
    return good;
}

/* GFLOP/s of each; ratios above 1 mean that tarn is faster. */
static void print_row(int64_t n, tarn_dtype dtype, const tarn__matmul_times *r)
{
    double flops = 2.0 * (double)n * (double)n * (double)n / 1e3;
    printf("%6lld %-6s %12s %12s %12.1f %12s %12s %7.0f%%\n", (long long)n, tarn_dtype_name(dtype),
           tarn__cell(flops / r->naive, 2), tarn__cell(flops / r->blas, 1), flops / r->tarn,
           tarn__cell(r->blas / r->tarn, 3), tarn__cell(r->naive / r->tarn, 1), 100 * r->tarn_spread);
    fflush(stdout);
}

/* NaN, a missing baseline, becomes null. */
static void print_json(int64_t n, tarn_dtype dtype, const tarn__matmul_times *r)
{
    double flops = 2.0 * (double)n * (double)n * (double)n;
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "op", "matmul");
    tarn__json_string(&json, "dtype", tarn_dtype_name(dtype));
    tarn__json_shape(&json, "shape", TARN_SHAPE(n, n, n));
    tarn__json_int(&json, "threads", tarn_threads());
    tarn__json_real(&json, "fwd_us", r->tarn, 2);
    tarn__json_real(&json, "fwd_spread", r->tarn_spread, 3);
    tarn__json_real(&json, "tflops", flops / r->tarn / 1e6, 4);
    tarn__json_real(&json, "gflops", flops / r->tarn / 1e3, 2);
    tarn__json_real(&json, "blas_us", r->blas, 2);
    tarn__json_real(&json, "blas_spread", r->blas_spread, 3);
    tarn__json_real(&json, "blas_gflops", flops / r->blas / 1e3, 2);
    tarn__json_real(&json, "fwd_of_blas", r->blas / r->tarn, 3);
    tarn__json_real(&json, "naive_us", r->naive, 2);
    tarn__json_real(&json, "naive_gflops", flops / r->naive / 1e3, 2);
    tarn__json_real(&json, "fwd_of_naive", r->naive / r->tarn, 2);
    tarn__json_end(&json);
}

int tarn__bench_matmul(const tarn__options *options)
{
    char name[32];
    if (!options->json) {
        printf("matmuls on %s, %d threads, %s; median of %lld runs, GFLOP/s\n\n",
               tarn_device_name(options->device, name, sizeof(name)), tarn_threads(),
               tarn__blas_missing() ? "no BLAS" : "OpenBLAS", (long long)options->runs);
        tarn__heading("%6s %-6s %12s %12s %12s %12s %12s %8s", "size", "dtype", "naive loop", "BLAS", "tarn",
                      "tarn/BLAS", "tarn/loop", "spread");
    }
    for (int i = 0; i < options->size_count; i++) {
        tarn__matmul_times found;
        tarn_dtype dtype = options->dtypes[0].dtype;
        if (!tarn__measure_matmul(options->sizes[i], dtype, options->device, options->runs, &found))
            return tarn__print_error("bench matmul");
        if (options->json)
            print_json(options->sizes[i], dtype, &found);
        else
            print_row(options->sizes[i], dtype, &found);
    }
    return TARN__DONE;
}

/* roofline.c: reachable throughput of a device: a large square matmul and a large copy, and the vendor's peak FLOP/s.
 *
 * The sizes follow from the kind of device alone, so that results of different machines compare. TF32 is process-wide
 * and off afterwards. */
#include "cli/bench/timer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/ops.h>

#include "cli/bench/bench_case.h"

enum { RUNS = 5 };

typedef struct operands {
    tarn_tensor *a, *b;
} operands;

/* The result is freed at once by its scope: memory is reused from call to call. */
static bool run_matmul(void *ctx, int i)
{
    const operands *f = ctx;
    (void)i;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_matmul(f->a, f->b) != NULL;
    tarn_scope_close(scope);
    return good;
}

/* FLOP/s of a square matmul; NaN with an error pending. */
static double measure_matmul(int64_t rows, tarn_dtype dtype, tarn_device device)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *timer = calloc(1, sizeof(*timer));
    operands f = {tarn_normal(TARN_SHAPE(rows, rows), 0, 1, dtype, device),
                  tarn_normal(TARN_SHAPE(rows, rows), 0, 1, dtype, device)};
    bool good = timer && f.a && f.b;
    if (good) {
        *timer = (tarn__timer){.work = run_matmul, .ctx = &f, .sets = 1};
        good = tarn__timer_start(timer, device);
    }
    for (int i = 0; good && i < RUNS; i++)
        good = tarn__timer_run(timer, device);
    double time = good ? tarn__timer_median(timer) : (double)NAN;
    free(timer);
    tarn_scope_close(scope);
    return 2e6 * pow((double)rows, 3) / time;
}

/* Large enough to saturate the device, small enough to take a moment, also on a CPU through another backend. */
bool tarn__roofline_measure(tarn_device device, const char *precision, tarn__roofline *r)
{
    /* one size only, so nothing is shared; the type is for tarn__copy_time() */
    tarn__copy_times copies = {.device = device, .runs = RUNS};
    tarn_device_info info;
    if (!tarn_device_query(device, &info))
        return false;
    bool on_cpu = strcmp(info.type, "cpu") == 0;
    int64_t bytes = on_cpu ? (int64_t)32 << 20 : (int64_t)1 << 30;
    double peak = tarn_device_peak_flops(device, precision);
    r->peak = peak > 0 ? peak : (double)NAN;
    r->rows = on_cpu ? 1024 : 8192;
    tarn_set_tf32(strcmp(precision, "tf32") == 0);
    r->matmul = measure_matmul(r->rows, strcmp(precision, "bf16") == 0 ? TARN_BF16 : TARN_F32, device);
    tarn_set_tf32(false);
    r->copy = tarn_failed() ? (double)NAN : (double)bytes * 1e6 / tarn__copy_time(&copies, bytes);
    return !tarn_failed();
}

void tarn__print_memory_kinds(const tarn_memory_kinds *m)
{
    printf("  %-10s %s at most:", "memory", tarn__bytes_text(m->peak));
    printf(" parameters %s, gradients %s, optimizer %s, activations %s, workspace %s\n",
           tarn__bytes_text(m->parameters), tarn__bytes_text(m->gradients), tarn__bytes_text(m->state),
           tarn__bytes_text(m->activations), tarn__bytes_text(m->workspace));
}

void tarn__json_memory_kinds(tarn__json *json, const tarn_memory_kinds *m)
{
    tarn__json_open(json, "memory", '{');
    tarn__json_int(json, "peak", m->peak);
    tarn__json_int(json, "parameters", m->parameters);
    tarn__json_int(json, "gradients", m->gradients);
    tarn__json_int(json, "optimizer", m->state);
    tarn__json_int(json, "activations", m->activations);
    tarn__json_int(json, "workspace", m->workspace);
    tarn__json_close(json, '}');
}

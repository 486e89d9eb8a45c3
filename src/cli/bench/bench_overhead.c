/* bench_overhead.c: rows of `tarn bench ops` without a case: the overhead of a call, an AdamW step, and the copy that
 * all other rows are compared with.
 *
 * Timers are on the heap: each holds a thousand times. Tensors belong to the scope of their function. */
#include <math.h>
#include <stdlib.h>
#include <tarn/optim.h>

#include "cli/bench/bench_case.h"

/* ---- copies ------------------------------------------------------------------------------------------------------ */

#define MAX_PAIRS 6
#define PAIR_BYTES \
    ((int64_t)400000000) /* bytes of all buffers together: several pairs for small copies, so that they do not stay \
                            cached */
#define COPY_RUN 15000   /* microseconds of a run */

/* Source and destination of each copy, u8 [half]. */
typedef struct pairs {
    tarn_tensor *from[MAX_PAIRS], *to[MAX_PAIRS];
} pairs;

static bool run_copy(void *ctx, int i)
{
    const pairs *p = ctx;
    return tarn_copy(p->to[i], p->from[i]);
}

/* Microseconds of a copy of `half` bytes; NaN with an error pending. */
static double measure(const tarn__copy_times *copies, int64_t half)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *timer = calloc(1, sizeof(*timer));
    pairs p;
    int64_t count = PAIR_BYTES / half < 1 ? 1 : PAIR_BYTES / half > MAX_PAIRS ? MAX_PAIRS : PAIR_BYTES / half;
    for (int i = 0; i < count; i++) {
        p.from[i] = tarn_zeros(TARN_SHAPE(half), TARN_U8, copies->device);
        p.to[i] = tarn_zeros(TARN_SHAPE(half), TARN_U8, copies->device);
    }
    bool good = timer && !tarn_failed();
    if (good) {
        *timer = (tarn__timer){.work = run_copy, .ctx = &p, .sets = (int)count, .length = COPY_RUN};
        good = tarn__timer_start(timer, copies->device);
    }
    for (int64_t i = 0; good && i < copies->runs; i++)
        good = tarn__timer_run(timer, copies->device);
    double time = good ? tarn__timer_median(timer) : (double)NAN;
    free(timer);
    tarn_scope_close(scope);
    return time;
}

/* Found by its bytes, else measured and stored; beyond TARN__MAX_COPY_TIMES it is measured each time. */
double tarn__copy_time(tarn__copy_times *copies, int64_t bytes)
{
    int64_t half = bytes / 2 / 16 * 16; /* whole 16-byte vectors */
    half = half < 16 ? 16 : half;
    for (int i = 0; i < copies->count; i++)
        if (copies->bytes[i] == half)
            return copies->times[i];
    double time = measure(copies, half);
    if (!isnan(time) && copies->count < TARN__MAX_COPY_TIMES) {
        copies->bytes[copies->count] = half;
        copies->times[copies->count++] = time;
    }
    return time;
}

/* The members that all rows share. */
static void open_row(tarn__json *json, const char *op, const char *dtype, int64_t count)
{
    tarn__json_open(json, NULL, '{');
    tarn__json_string(json, "op", op);
    tarn__json_string(json, "dtype", dtype);
    tarn__json_shape(json, "shape", TARN_SHAPE(count));
}

/* ---- one element ------------------------------------------------------------------------------------------------- */

typedef struct pair {
    tarn_tensor *a, *b;
} pair;

static bool run_tiny(void *ctx, int i)
{
    const pair *p = ctx;
    (void)i;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_mul(p->a, p->b) != NULL;
    tarn_scope_close(scope);
    return good;
}

static void print_tiny(const tarn__timer *timer, bool as_json)
{
    double time = tarn__timer_median(timer);
    tarn__json json = {stdout, false};
    if (!as_json) {
        printf("%-18s %-5s %-19s %11.3f %6.0f%%   (multiplication of one element, with tape and scope: %.0f ns)\n",
               "tiny", "f32", "1", time, 100 * tarn__timer_spread(timer), 1000 * time);
        return;
    }
    open_row(&json, "tiny", "f32", 1);
    tarn__json_int(&json, "threads", tarn_threads());
    tarn__json_real(&json, "fwd_us", time, 4);
    tarn__json_real(&json, "host_us", time, 4);
    tarn__json_real(&json, "fwd_spread", tarn__timer_spread(timer), 3);
    tarn__json_end(&json);
}

/* Host overhead of a call: one operation on one element, recorded on the tape, with its scope. */
bool tarn__bench_tiny(const tarn__options *options)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *timer = calloc(1, sizeof(*timer));
    pair p = {tarn_ones(TARN_SHAPE(1), TARN_F32, options->device), tarn_ones(TARN_SHAPE(1), TARN_F32, options->device)};
    bool good = timer && tarn_requires_grad(p.a, true) && tarn_requires_grad(p.b, true);
    if (good) {
        *timer = (tarn__timer){.work = run_tiny, .ctx = &p, .sets = 1};
        good = tarn__timer_start(timer, options->device);
    }
    for (int64_t i = 0; good && i < options->runs; i++)
        good = tarn__timer_run(timer, options->device);
    if (good)
        print_tiny(timer, options->json);
    free(timer);
    tarn_scope_close(scope);
    return good;
}

/* ---- AdamW ------------------------------------------------------------------------------------------------------- */

#define PARAMETERS ((int64_t)124000000) /* GPT-2's */
#define WARM_UP 3

/* The module only carries the parameter for the optimizer. */
static tarn_tensor *no_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return x;
}

/* A step clears the gradients, so each one gets a new gradient first; only the step is timed. */
static bool time_step(tarn_optimizer *optimizer, tarn_tensor *parameter, tarn_tensor *gradient, tarn_device device,
                      double *microseconds)
{
    tarn_event *end = NULL, *start = tarn_backward_from(parameter, gradient, NULL) ? tarn_event_record(device) : NULL;
    if (start && tarn_optimizer_step(optimizer) && (end = tarn_event_record(device)) != NULL)
        *microseconds = tarn_event_elapsed(start, end);
    tarn_event_free(end);
    tarn_event_free(start);
    return !tarn_failed();
}

/* Warm-up steps are measured into times[0], which the first run overwrites. */
static bool time_steps(tarn_optimizer *optimizer, tarn_tensor *parameter, tarn_device device, tarn__timer *timer,
                       int64_t runs)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *gradient = tarn_normal(TARN_SHAPE(PARAMETERS), 0, 1, TARN_F32, device);
    bool good = optimizer && parameter && gradient;
    for (int64_t i = -WARM_UP; good && i < runs; i++)
        good = time_step(optimizer, parameter, gradient, device, &timer->times[i < 0 ? 0 : timer->runs++]);
    tarn_scope_close(scope);
    return good;
}

static void print_step(const tarn__timer *timer, double copy, bool as_json)
{
    double time = tarn__timer_median(timer), gbps = 7 * 4 * (double)PARAMETERS / time / 1e3;
    tarn__json json = {stdout, false};
    if (!as_json) {
        printf("%-18s %-5s %-19lld %11.2f %6.0f%% %7.1f G %8.2f\n", "adamw", "f32", (long long)PARAMETERS, time,
               100 * tarn__timer_spread(timer), gbps, copy / time);
        return;
    }
    open_row(&json, "adamw", "f32", PARAMETERS);
    tarn__json_real(&json, "fwd_us", time, 2);
    tarn__json_real(&json, "fwd_spread", tarn__timer_spread(timer), 3);
    tarn__json_real(&json, "gbps", gbps, 1);
    tarn__json_real(&json, "fwd_of_copy", copy / time, 3);
    tarn__json_end(&json);
}

/* 7 · 4 bytes per parameter: a step reads gradient, parameter and two moments, and writes all but the gradient. */
bool tarn__bench_adamw(const tarn__options *options, tarn__copy_times *copies)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *timer = calloc(1, sizeof(*timer));
    tarn_module *module = tarn_module_new("parameters", no_forward, NULL, NULL);
    tarn_tensor *parameter = tarn_normal(TARN_SHAPE(PARAMETERS), 0, 1, TARN_F32, options->device);
    parameter = tarn_module_add_parameter(module, "weight", parameter);
    tarn_optimizer *optimizer =
        tarn_adamw(module, &(tarn_adamw_options){.lr = 1e-3f, .weight_decay = 0.01f, .decay_all = true});
    bool good = timer && time_steps(optimizer, parameter, options->device, timer, options->runs);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    tarn_scope_close(scope);
    double copy = good ? tarn__copy_time(copies, 7 * 4 * PARAMETERS) : 0;
    good = good && !tarn_failed();
    if (good)
        print_step(timer, copy, options->json);
    free(timer);
    return good;
}

/* ---- the copy ---------------------------------------------------------------------------------------------------- */

/* 2 * bytes: a copy reads and writes each byte. */
bool tarn__bench_copy(const tarn__options *options, tarn__copy_times *copies)
{
    int64_t bytes = (int64_t)4 << 30;
    double time = tarn__copy_time(copies, 2 * bytes), gbps = 2 * (double)bytes / time / 1e3;
    tarn__json json = {stdout, false};
    if (tarn_failed())
        return false;
    if (!options->json) {
        printf("%-18s %-5s %-19lld %11.2f %7s %7.1f G\n", "copy", "u8", (long long)bytes, time, "", gbps);
        return true;
    }
    open_row(&json, "copy", "u8", bytes);
    tarn__json_real(&json, "fwd_us", time, 2);
    tarn__json_real(&json, "gbps", gbps, 1);
    tarn__json_end(&json);
    return true;
}

/* bench_overhead.c: rows of `tarn bench ops` that are no case: the cost of a call itself, an optimizer's step, and the
 * copy that all else is measured against. */
#include <stdlib.h>
#include <tarn/optim.h>

#include "cli/bench/bench_case.h"

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

static void print_tiny(const tarn__timer *meter, bool as_json)
{
    double time = tarn__timer_median(meter);
    tarn__json json = {stdout, false};
    if (!as_json) {
        printf("%-18s %-5s %-19s %11.3f %6.0f%%   (a product of one element, with tape and scope: %.0f ns)\n", "tiny",
               "f32", "1", time, 100 * tarn__timer_spread(meter), 1000 * time);
        return;
    }
    open_row(&json, "tiny", "f32", 1);
    tarn__json_int(&json, "threads", tarn_threads());
    tarn__json_real(&json, "fwd_us", time, 4);
    tarn__json_real(&json, "host_us", time, 4);
    tarn__json_real(&json, "fwd_spread", tarn__timer_spread(meter), 3);
    tarn__json_end(&json);
}

/* One operation on one element, recorded on the tape, its scope opened and closed. */
bool tarn__bench_tiny(const tarn__options *options)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *meter = calloc(1, sizeof(*meter));
    pair p = {tarn_ones(TARN_SHAPE(1), TARN_F32, options->device), tarn_ones(TARN_SHAPE(1), TARN_F32, options->device)};
    bool good = meter && tarn_requires_grad(p.a, true) && tarn_requires_grad(p.b, true);
    if (good) {
        *meter = (tarn__timer){.work = run_tiny, .ctx = &p, .sets = 1};
        good = tarn__timer_start(meter, options->device);
    }
    for (int64_t i = 0; good && i < options->runs; i++)
        good = tarn__timer_run(meter, options->device);
    if (good)
        print_tiny(meter, options->json);
    free(meter);
    tarn_scope_close(scope);
    return good;
}

/* ---- a step of AdamW --------------------------------------------------------------------------------------------- */

#define PARAMETERS ((int64_t)124000000) /* GPT-2's */
#define WARM_UP 3

static tarn_tensor *no_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return x;
}

/* A step clears the gradients, so each gets its own anew; only the step is timed. */
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

static bool time_steps(tarn_optimizer *optimizer, tarn_tensor *parameter, tarn_device device, tarn__timer *meter,
                       int64_t runs)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *gradient = tarn_normal(TARN_SHAPE(PARAMETERS), 0, 1, TARN_F32, device);
    bool good = optimizer && parameter && gradient;
    for (int64_t i = -WARM_UP; good && i < runs; i++)
        good = time_step(optimizer, parameter, gradient, device, &meter->figures[i < 0 ? 0 : meter->runs++]);
    tarn_scope_close(scope);
    return good;
}

static void print_step(const tarn__timer *meter, double copy, bool as_json)
{
    double time = tarn__timer_median(meter), gbps = 7 * 4 * (double)PARAMETERS / time / 1e3;
    tarn__json json = {stdout, false};
    if (!as_json) {
        printf("%-18s %-5s %-19lld %11.2f %6.0f%% %7.1f G %8.2f\n", "adamw", "f32", (long long)PARAMETERS, time,
               100 * tarn__timer_spread(meter), gbps, copy / time);
        return;
    }
    open_row(&json, "adamw", "f32", PARAMETERS);
    tarn__json_real(&json, "fwd_us", time, 2);
    tarn__json_real(&json, "fwd_spread", tarn__timer_spread(meter), 3);
    tarn__json_real(&json, "gbps", gbps, 1);
    tarn__json_real(&json, "fwd_of_copy", copy / time, 3);
    tarn__json_end(&json);
}

/* A step reads gradient, parameter and two states, and writes all but the gradient. */
bool tarn__bench_adamw(const tarn__options *options, tarn__copy_times *copies)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__timer *meter = calloc(1, sizeof(*meter));
    tarn_module *module = tarn_module_new("parameters", no_forward, NULL, NULL);
    tarn_tensor *parameter = tarn_normal(TARN_SHAPE(PARAMETERS), 0, 1, TARN_F32, options->device);
    parameter = tarn_module_add_parameter(module, "weight", parameter);
    tarn_optimizer *optimizer =
        tarn_adamw(module, &(tarn_adamw_options){.lr = 1e-3f, .weight_decay = 0.01f, .decay_all = true});
    bool good = meter && time_steps(optimizer, parameter, options->device, meter, options->runs);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    tarn_scope_close(scope);
    double copy = good ? tarn__copy_time(copies, 7 * 4 * PARAMETERS) : 0;
    good = good && !tarn_failed();
    if (good)
        print_step(meter, copy, options->json);
    free(meter);
    return good;
}

/* ---- the copy ---------------------------------------------------------------------------------------------------- */

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

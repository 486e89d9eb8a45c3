/* bench_case.c: measurement of one case of `tarn bench ops`.
 *
 * Inputs rotate through several buffers, so that they are not all cached. Forward is timed without a tape. Backward
 * alone is timed from a gradient of the result to the gradients of the inputs, in their own dtypes: inputs are outputs
 * of a function whose backward does nothing, so that no leaf accumulates. Forward plus backward is timed with a tape,
 * because an operation may do work in a recorded forward that saves work in its backward.
 *
 * Timers that are compared run in turn, one run each, so that clock changes and other load affect all of them. A job is
 * on the heap: its timers hold thousands of times. Its tensors belong to the scope of tarn__bench_case_measure(). */
#include "cli/bench/bench_case.h"

#include <math.h>
#include <stdlib.h>
#include <tarn/autograd.h>

#define MAX_SETS 4
#define SET_BYTES ((int64_t)256 << 20)  /* inputs rotate through sets up to about this many bytes */
#define LARGE_RESULT ((int64_t)1 << 30) /* evicts the inputs from any cache: one set is enough */
#define SHORT_FORWARD 200               /* microseconds; a longer forward hides its enqueueing */

/* Microseconds of a run at model sizes. Matmuls run longer: they heat the device, and the sustained clock counts. */
#define MODEL_RUN 15000
#define MODEL_MATMUL_RUN 25000
#define MODEL_BOTH_RUN 8000

/* Buffers of one call. */
typedef struct set {
    tarn_tensor *in[TARN__CASE_INPUTS];
    tarn_tensor *out, *upstream; /* for backward */
    tarn_tensor *from, *to;      /* of the baseline copy */
} set;

enum { FORWARD, BACKWARD, BOTH, COPY, TIMERS };

/* One row while it is measured. The plan is borrowed. */
typedef struct job {
    const tarn__bench_case *plan;
    tarn__case one;
    tarn__case_fn call;
    set sets[MAX_SETS];
    int count;
    tarn__timer timer[TIMERS];
} job;

/* ---- the work ---------------------------------------------------------------------------------------------------- */

/* A view costs nothing; rows that are measured with their copy (permute-copy) are made contiguous. */
static tarn_tensor *call_once(const job *work, const set *s)
{
    tarn_tensor *out = work->call(&work->one, s->in);
    return work->one.copied ? tarn_contiguous(out) : out;
}

static bool run_forward(void *ctx, int i)
{
    const job *work = ctx;
    tarn_scope *scope = tarn_scope_open();
    bool good = call_once(work, &work->sets[i]) != NULL;
    tarn_scope_close(scope);
    return good;
}

/* `retain` keeps the tape for the next call. */
static bool run_backward(void *ctx, int i)
{
    const set *s = &((const job *)ctx)->sets[i];
    return tarn_backward_from(s->out, s->upstream, &(tarn_backward_options){.retain = true});
}

/* The tape of the inputs is reused by the next call, hence `retain`. */
static bool run_both(void *ctx, int i)
{
    const job *work = ctx;
    const set *s = &work->sets[i];
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *out = call_once(work, s);
    bool good = out && tarn_backward_from(out, s->upstream, &(tarn_backward_options){.retain = true});
    tarn_scope_close(scope);
    return good;
}

static bool run_copy(void *ctx, int i)
{
    const job *work = ctx;
    return tarn_copy(work->sets[i].to, work->sets[i].from);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* Sets of inputs until they exceed SET_BYTES, at most MAX_SETS; at least two, whatever their size. False with an
 * error. */
static bool make_sets(job *work)
{
    int64_t bytes = 0;
    work->count = MAX_SETS;
    for (int i = 0; i < work->count; i++) {
        if (!tarn__case_random_inputs(&work->one, work->plan->element.dtype, work->plan->device, work->sets[i].in))
            return false;
        for (int k = 0; k < work->one.inputs; k++)
            bytes += tarn_bytes(work->sets[i].in[k]);
        if (i > 0 && bytes > SET_BYTES)
            work->count = i + 1;
    }
    return true;
}

/* Buffers for a copy that reads half of the bytes and writes half of them. */
static bool make_copies(job *work, int64_t bytes)
{
    int64_t half = bytes / 2 < 1 ? 1 : bytes / 2;
    for (int i = 0; i < work->count; i++) {
        work->sets[i].from = tarn_zeros(TARN_SHAPE(half), TARN_U8, work->plan->device);
        work->sets[i].to = tarn_zeros(TARN_SHAPE(half), TARN_U8, work->plan->device);
    }
    return !tarn_failed();
}

/* Leaves all input gradients NULL: nothing flows further back. */
static bool no_gradients(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx)
{
    (void)output_grads, (void)input_grads, (void)ctx;
    return true;
}

/* Turns differentiable inputs into outputs of a function that drops their gradients. */
static bool give_history(const job *work, set *s)
{
    tarn_tensor *leaf = tarn_requires_grad(tarn_zeros(TARN_SHAPE(1), TARN_F32, work->plan->device), true);
    tarn_tensor *outputs[TARN__CASE_INPUTS];
    int count = 0;
    for (int k = 0; k < work->one.inputs; k++)
        if (tarn__case_flows(&work->one, k))
            outputs[count++] = s->in[k];
    return leaf && (count == 0 || tarn_function(&leaf, 1, outputs, count, no_gradients, NULL, NULL));
}

/* A random gradient of a result in the result's layout, which may be channels last: hence abs() instead of empty. */
static tarn_tensor *gradient_at(tarn_tensor *out)
{
    tarn_no_grad_open();
    tarn_tensor *g = out ? tarn_abs(out) : NULL, *drawn = g ? tarn_uniform_like(out, 0.5, 1.5) : NULL;
    bool good = drawn && tarn_copy(g, drawn);
    tarn_free(drawn);
    if (!good) {
        tarn_free(g);
        g = NULL;
    }
    tarn_no_grad_close();
    return g;
}

/* Records a forward per set, and draws the gradient of its result. */
static bool record(job *work)
{
    for (int i = 0; i < work->count; i++) {
        set *s = &work->sets[i];
        s->out = call_once(work, s);
        s->upstream = gradient_at(s->out);
    }
    return !tarn_failed();
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

/* 0 is the timer's default. */
static double run_length(const job *work, int timer)
{
    if (work->plan->size != TARN__MODEL_SIZE)
        return 0;
    return timer == BOTH ? MODEL_BOTH_RUN : tarn__case_is_compute_bound(&work->one) ? MODEL_MATMUL_RUN : MODEL_RUN;
}

/* Runs the timers from `first` up to, but not including, `end` in turn, together with that of a copy of `bytes`; 0: no
 * copy. */
static bool measure_in_turn(job *work, int first, int end, int64_t bytes)
{
    static const tarn__work_fn works[TIMERS] = {run_forward, run_backward, run_both, run_copy};
    tarn_device device = work->plan->device;
    int order[TIMERS], count = 0;
    for (int m = first; m < end; m++)
        order[count++] = m;
    if (bytes > 0)
        order[count++] = COPY;
    bool good = bytes == 0 || make_copies(work, bytes);
    work->timer[COPY].runs = 0;
    for (int i = 0; good && i < count; i++) {
        tarn__timer *timer = &work->timer[order[i]];
        *timer = (tarn__timer){
            .work = works[order[i]], .ctx = work, .sets = work->count, .length = run_length(work, order[i])};
        good = tarn__timer_start(timer, device);
    }
    for (int64_t run = 0; run < work->plan->runs; run++)
        for (int i = 0; good && i < count; i++)
            good = tarn__timer_run(&work->timer[order[i]], device);
    return good;
}

/* The same with the baseline of the plan: `*copy` is the time of a copy of `bytes`. */
static bool measure_with_baseline(job *work, int first, int end, int64_t bytes, double *copy)
{
    tarn__baseline baseline = bytes > 0 ? work->plan->baseline : TARN__BASELINE_NONE;
    bool good = measure_in_turn(work, first, end, baseline == TARN__BASELINE_COPY ? bytes : 0);
    *copy = baseline == TARN__BASELINE_SHARED && good ? tarn__copy_time(work->plan->copies, bytes)
                                                      : tarn__timer_median(&work->timer[COPY]);
    return good && !tarn_failed();
}

/* Both are NaN for a timer without a run. */
static tarn__bench_time time_of(const tarn__timer *timer)
{
    return (tarn__bench_time){tarn__timer_median(timer), tarn__timer_spread(timer)};
}

/* Host time of one forward, recorded if differentiable, without waiting for the device: median of three rounds. The
 * timer of the copy is free by then and is reused. */
static double host_time(job *work, double forward)
{
    enum { ROUNDS = 3, CALLS = 100 };
    tarn__timer *rounds = &work->timer[COPY];
    rounds->runs = 0;
    for (int r = 0; r < ROUNDS && forward < SHORT_FORWARD; r++) {
        double start = tarn__clock();
        for (int i = 0; i < CALLS; i++)
            if (!run_forward(work, i % work->count))
                return NAN;
        rounds->times[rounds->runs++] = (tarn__clock() - start) / CALLS;
        if (!tarn_synchronize(work->plan->device))
            return NAN;
    }
    return tarn__timer_median(rounds);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* Bytes for the comparison with a copy; matmuls at model sizes are compute-bound and have none. */
static void count_work(job *work, tarn__bench_row *row, tarn_tensor *result)
{
    tarn_tensor *out[TARN__CASE_OUTPUTS] = {result};
    tarn_tensor *const *in = work->sets[0].in;
    bool by_bytes = !(work->plan->size == TARN__MODEL_SIZE && tarn__case_is_compute_bound(&work->one));
    row->result = tarn_shape_of(result);
    row->flops = tarn__case_flops(&work->one, in, out);
    row->forward_bytes = by_bytes ? tarn__case_forward_bytes(&work->one, in, out) : 0;
    if (by_bytes && tarn__case_smooth(&work->one, 0))
        row->backward_bytes = tarn__case_backward_bytes(&work->one, in, out);
}

/* The first call also gives the result's shape and size, from which the baseline follows. */
static bool measure_forward(job *work, tarn__bench_row *row)
{
    tarn_no_grad_open();
    tarn_scope *scope = NULL;
    tarn_tensor *result = NULL;
    bool good =
        make_sets(work) && (scope = tarn_scope_open()) != NULL && (result = call_once(work, &work->sets[0])) != NULL;
    if (good)
        count_work(work, row, result);
    if (good && tarn_bytes(result) > LARGE_RESULT)
        work->count = 1;
    tarn_scope_close(scope);
    good = good && measure_with_baseline(work, FORWARD, FORWARD + 1, row->forward_bytes, &row->forward_copy);
    tarn_no_grad_close();
    row->forward = time_of(&work->timer[FORWARD]);
    return good;
}

/* Backward and forward plus backward in turn, with one copy as the baseline of both. */
static bool measure_backward(job *work, tarn__bench_row *row)
{
    bool good =
        record(work) && measure_with_baseline(work, BACKWARD, BOTH + 1, row->backward_bytes, &row->backward_copy);
    row->backward = time_of(&work->timer[BACKWARD]);
    row->both = time_of(&work->timer[BOTH]);
    return good;
}

bool tarn__bench_case_measure(const tarn__bench_case *plan, tarn__bench_row *row)
{
    static const tarn__bench_time none = {(double)NAN, (double)NAN};
    job *work = calloc(1, sizeof(*work));
    if (!work)
        return tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the timers");
    work->plan = plan;
    work->one = tarn__case_resolve(plan->letters, &plan->scale, plan->element.dtype);
    work->call = tarn__case_direct(plan->letters);
    *row = (tarn__bench_row){.one = work->one,
                             .element = plan->element,
                             .device = plan->device,
                             .size = plan->size,
                             .host = (double)NAN,
                             .forward = none,
                             .backward = none,
                             .both = none,
                             .forward_copy = (double)NAN,
                             .backward_copy = (double)NAN};
    /* process-wide: reset below, after a failure too */
    tarn_set_tf32(plan->element.tf32);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && measure_forward(work, row);
    for (int i = 0; good && i < work->count; i++)
        good = give_history(work, &work->sets[i]);
    row->host = good ? host_time(work, row->forward.median) : (double)NAN;
    if (good && tarn__case_smooth(&work->one, 0))
        good = measure_backward(work, row);
    tarn_scope_close(scope);
    tarn_set_tf32(false);
    free(work);
    return good && !tarn_failed();
}

/* bench_case.c: measuring one case.
 *
 * Inputs rotate through several buffers, so that they do not all lie in the cache. Forward is timed unrecorded.
 * Backward alone is timed from a gradient given at the result to the gradients of the inputs, in their own dtypes,
 * which nobody keeps: inputs are results of a function whose backward does nothing, so no leaf accumulates. Both
 * together are timed recorded, because an operation may do work in a recorded forward that its backward then has no
 * need of. */
#include "cli/bench/bench_case.h"

#include <math.h>
#include <stdlib.h>
#include <tarn/autograd.h>

#define MOST_SETS 4
#define SET_BYTES ((int64_t)256 << 20)  /* inputs take turns until they fill about this much */
#define LARGE_RESULT ((int64_t)1 << 30) /* leaves nothing of the inputs in a cache: one buffer is enough */
#define SHORT_FORWARD 200               /* microseconds; a longer one hides the time to enqueue it */

/* Microseconds of a run at a model's sizes. Products heat the device up, and are held to what it can keep up for
 * longer. */
#define MODEL_RUN 15000
#define MODEL_PRODUCT_RUN 25000
#define MODEL_BOTH_RUN 8000

typedef struct set {
    tarn_tensor *in[TARN__CASE_INPUTS];
    tarn_tensor *out, *upstream; /* for backward */
    tarn_tensor *from, *to;      /* of the copy that moves as many bytes */
} set;

enum { FORWARD, BACKWARD, BOTH, COPY, METERS };

typedef struct job {
    const tarn__bench_case *plan;
    tarn__case one;
    tarn__case_fn call;
    set sets[MOST_SETS];
    int count;
    tarn__timer meter[METERS];
} job;

/* ---- the work ---------------------------------------------------------------------------------------------------- */

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

static bool run_backward(void *ctx, int i)
{
    const set *s = &((const job *)ctx)->sets[i];
    return tarn_backward_from(s->out, s->upstream, &(tarn_backward_options){.retain = true});
}

/* The inputs' own record has to serve again, so nothing is released before the scope closes. */
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

/* ---- what it works on -------------------------------------------------------------------------------------------- */

static bool make_sets(job *work)
{
    int64_t bytes = 0;
    work->count = MOST_SETS;
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

static bool no_gradients(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx)
{
    (void)output_grads, (void)input_grads, (void)ctx;
    return true;
}

/* Makes the inputs that gradients flow into results of a function that drops their gradients. */
static bool give_history(const job *work, set *s)
{
    tarn_tensor *leaf = tarn_requires_grad(tarn_zeros(TARN_SHAPE(1), TARN_F32, work->plan->device), true);
    tarn_tensor *made[TARN__CASE_INPUTS];
    int count = 0;
    for (int k = 0; k < work->one.inputs; k++)
        if (tarn__case_flows(&work->one, k))
            made[count++] = s->in[k];
    return leaf && (count == 0 || tarn_function(&leaf, 1, made, count, no_gradients, NULL, NULL));
}

/* A gradient that arrives at a result, and lies as the result does: channels last where that has them last. */
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

/* Records a forward for each set, and the gradient that arrives at its result. */
static bool record(job *work)
{
    for (int i = 0; i < work->count; i++) {
        set *s = &work->sets[i];
        s->out = call_once(work, s);
        s->upstream = gradient_at(s->out);
    }
    return !tarn_failed();
}

/* ---- the figures ------------------------------------------------------------------------------------------------- */

static double run_length(const job *work, int meter)
{
    if (work->plan->size != TARN__MODEL_SIZE)
        return 0;
    return meter == BOTH ? MODEL_BOTH_RUN : tarn__case_is_compute_bound(&work->one) ? MODEL_PRODUCT_RUN : MODEL_RUN;
}

/* Runs the meters from `first` up to, not including, `end` in turn, and one of a copy of `bytes` with them where they
 * are not 0. */
static bool measure_in_turn(job *work, int first, int end, int64_t bytes)
{
    static const tarn__work_fn works[METERS] = {run_forward, run_backward, run_both, run_copy};
    tarn_device device = work->plan->device;
    int order[METERS], count = 0;
    for (int m = first; m < end; m++)
        order[count++] = m;
    if (bytes > 0)
        order[count++] = COPY;
    bool good = bytes == 0 || make_copies(work, bytes);
    work->meter[COPY].runs = 0;
    for (int i = 0; good && i < count; i++) {
        tarn__timer *meter = &work->meter[order[i]];
        *meter = (tarn__timer){
            .work = works[order[i]], .ctx = work, .sets = work->count, .length = run_length(work, order[i])};
        good = tarn__timer_start(meter, device);
    }
    for (int64_t run = 0; run < work->plan->runs; run++)
        for (int i = 0; good && i < count; i++)
            good = tarn__timer_run(&work->meter[order[i]], device);
    return good;
}

/* The same, and what the copy of `bytes` takes. */
static bool measure_beside(job *work, int first, int end, int64_t bytes, double *copy)
{
    tarn__baseline beside = bytes > 0 ? work->plan->beside : TARN__BASELINE_NONE;
    bool good = measure_in_turn(work, first, end, beside == TARN__BASELINE_COPY ? bytes : 0);
    *copy = beside == TARN__BASELINE_SHARED && good ? tarn__copy_time(work->plan->copies, bytes)
                                                    : tarn__timer_median(&work->meter[COPY]);
    return good && !tarn_failed();
}

static tarn__bench_time figure_of(const tarn__timer *meter)
{
    return (tarn__bench_time){tarn__timer_median(meter), tarn__timer_spread(meter)};
}

/* How long the caller is held by one forward, recorded where gradients flow, without waiting for the device: the median
 * of three rounds. */
static double host_time(job *work, double forward)
{
    enum { ROUNDS = 3, CALLS = 100 };
    tarn__timer *rounds = &work->meter[COPY];
    rounds->runs = 0;
    for (int r = 0; r < ROUNDS && forward < SHORT_FORWARD; r++) {
        double start = tarn__clock();
        for (int i = 0; i < CALLS; i++)
            if (!run_forward(work, i % work->count))
                return NAN;
        rounds->figures[rounds->runs++] = (tarn__clock() - start) / CALLS;
        if (!tarn_synchronize(work->plan->device))
            return NAN;
    }
    return tarn__timer_median(rounds);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* The bytes that count: products at a model's sizes are judged by their arithmetic alone. */
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
    good = good && measure_beside(work, FORWARD, FORWARD + 1, row->forward_bytes, &row->forward_copy);
    tarn_no_grad_close();
    row->forward = figure_of(&work->meter[FORWARD]);
    return good;
}

static bool measure_backward(job *work, tarn__bench_row *row)
{
    bool good = record(work) && measure_beside(work, BACKWARD, BOTH + 1, row->backward_bytes, &row->backward_copy);
    row->backward = figure_of(&work->meter[BACKWARD]);
    row->both = figure_of(&work->meter[BOTH]);
    return good;
}

bool tarn__bench_case_measure(const tarn__bench_case *plan, tarn__bench_row *row)
{
    static const tarn__bench_time none = {(double)NAN, (double)NAN};
    job *work = calloc(1, sizeof(*work));
    if (!work)
        return tarn_set_error(TARN_ERROR_MEMORY, "no memory for the figures");
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

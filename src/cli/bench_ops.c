/* bench_ops.c: `tarn bench ops`: the measured cases forward and backward, beside a plain copy of the same number of bytes.
 *
 * What is compared is run in turn. Inputs rotate through several buffers, so that they do not all lie in the cache. Forward is timed
 * unrecorded; backward alone, from a gradient given at the result into leaves whose gradients were cleared; and both together, recorded,
 * because an operation may do work in a recorded forward that its backward then has no need of. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/autograd.h>

#include "cases/cases.h"
#include "cli/bench.h"

#define MOST_SETS 4
#define SET_BYTES ((int64_t)256 << 20) /* inputs take turns until they fill about this much */

typedef struct set {
    tarn_tensor *in[TARN__CASE_INPUTS];
    tarn_tensor *out, *upstream; /* for backward */
    tarn_tensor *from, *to;      /* of the copy that moves as many bytes */
} set;

typedef struct job {
    tarn__case one;
    tarn__case_fn call;
    set sets[MOST_SETS];
    int count;
} job;

enum { FORWARD, FORWARD_COPY, BACKWARD, BACKWARD_COPY, BOTH, METERS };

typedef struct result {
    tarn_shape shape; /* of the result */
    int64_t forward_bytes, backward_bytes;
    double flops; /* of a product's forward; 0 for what is measured by its bytes */
    double host;  /* microseconds to enqueue a short forward; NaN for a long one */
    tarn__meter meter[METERS];
} result;

/* ---- the work -------------------------------------------------------------------------------------------------------------- */

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
    const job *work = ctx;
    const set *s = &work->sets[i];
    for (int k = 0; k < work->one.inputs; k++)
        if (tarn__case_flows(&work->one, k))
            tarn_zero_grad(s->in[k]);
    return tarn_backward_from(s->out, s->upstream, &(tarn_backward_options){.retain = true});
}

static bool run_both(void *ctx, int i)
{
    const job *work = ctx;
    const set *s = &work->sets[i];
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < work->one.inputs; k++)
        if (tarn__case_flows(&work->one, k))
            tarn_zero_grad(s->in[k]);
    tarn_tensor *out = call_once(work, s);
    bool good = out && tarn_backward_from(out, s->upstream, NULL);
    tarn_scope_close(scope);
    return good;
}

static bool run_copy(void *ctx, int i)
{
    const job *work = ctx;
    return tarn_copy(work->sets[i].to, work->sets[i].from);
}

/* ---- one row --------------------------------------------------------------------------------------------------------------- */

/* Buffers for a copy that reads half of the bytes and writes half of them. */
static bool make_copies(job *work, int64_t bytes, tarn_device device)
{
    int64_t half = bytes / 2 < 1 ? 1 : bytes / 2;
    for (int i = 0; i < work->count; i++) {
        work->sets[i].from = tarn_zeros(TARN_SHAPE(half), TARN_U8, device);
        work->sets[i].to = tarn_zeros(TARN_SHAPE(half), TARN_U8, device);
    }
    return !tarn_failed();
}

static bool make_sets(job *work, tarn_dtype dtype, tarn_device device)
{
    int64_t bytes = 0;
    work->count = MOST_SETS;
    for (int i = 0; i < work->count; i++) {
        if (!tarn__case_draw(&work->one, dtype, device, work->sets[i].in))
            return false;
        for (int k = 0; k < work->one.inputs; k++)
            bytes += tarn_bytes(work->sets[i].in[k]);
        if (i > 0 && bytes > SET_BYTES)
            work->count = i + 1;
    }
    return true;
}

/* Records a forward for each set, and the gradient that arrives at its result. */
static bool record(job *work)
{
    for (int i = 0; i < work->count; i++) {
        set *s = &work->sets[i];
        for (int k = 0; k < work->one.inputs; k++)
            if (tarn__case_flows(&work->one, k))
                tarn_requires_grad(s->in[k], true);
        s->out = call_once(work, s);
        s->upstream = s->out ? tarn_uniform_like(s->out, 0.5, 1.5) : NULL;
    }
    return !tarn_failed();
}

/* Runs the meters from `first` up to, not including, `end` in turn, one of them a copy of `bytes`. */
static bool measure_in_turn(job *work, result *found, int first, int end, int64_t bytes, const tarn__options *options)
{
    static const tarn__work_fn works[METERS] = {run_forward, run_copy, run_backward, run_copy, run_both};
    bool good = make_copies(work, bytes, options->device);
    for (int m = first; good && m < end; m++) {
        found->meter[m].work = works[m];
        found->meter[m].ctx = work;
        found->meter[m].sets = work->count;
        good = tarn__meter_start(&found->meter[m], options->device);
    }
    for (int i = 0; i < options->runs; i++)
        for (int m = first; good && m < end; m++)
            good = tarn__meter_run(&found->meter[m], options->device);
    return good;
}

/* How long the caller is held by one forward, without waiting for the device. */
static double host_time(job *work, double forward, tarn_device device)
{
    if (forward > 200)
        return NAN;
    double start = tarn__clock();
    for (int i = 0; i < 200; i++)
        if (!run_forward(work, i % work->count))
            return NAN;
    double host = (tarn__clock() - start) / 200;
    return tarn_synchronize(device) ? host : NAN;
}

static bool measure(job *work, tarn_dtype dtype, const tarn__options *options, result *found)
{
    tarn_scope *scope = tarn_scope_open();
    bool backward = work->one.backward > 0 && tarn__case_smooth(&work->one, 0);
    tarn_tensor *out[TARN__CASE_OUTPUTS] = {0};
    tarn_no_grad_open();
    bool good = make_sets(work, dtype, options->device) && (out[0] = call_once(work, &work->sets[0])) != NULL;
    if (good) {
        found->shape = tarn_shape_of(out[0]);
        found->forward_bytes = tarn__case_forward_bytes(&work->one, work->sets[0].in, out);
        found->backward_bytes = backward ? tarn__case_backward_bytes(&work->one, work->sets[0].in, out) : 0;
        found->flops = tarn__case_flops(&work->one, work->sets[0].in, out);
        good = measure_in_turn(work, found, FORWARD, BACKWARD, found->forward_bytes, options);
    }
    found->host = good ? host_time(work, tarn__meter_median(&found->meter[FORWARD]), options->device) : NAN;
    tarn_no_grad_close();
    if (good && backward)
        good = record(work) && measure_in_turn(work, found, BACKWARD, METERS, found->backward_bytes, options);
    tarn_scope_close(scope);
    return good && !tarn_failed();
}

/* ---- printing -------------------------------------------------------------------------------------------------------------- */

static bool same_shape(tarn_shape a, tarn_shape b)
{
    return a.rank == b.rank && memcmp(a.size, b.size, sizeof(int64_t) * (size_t)a.rank) == 0;
}

/* The shapes of a broadcast; else the first input's, with the number of indices behind it for a look-up. */
static void write_shape(tarn__json *json, const tarn__case *one)
{
    tarn_shape first = one->input[0].shape;
    if (one->moves == TARN__MOVES_ROWS) {
        int64_t indices = 1;
        for (int i = 0; i < one->input[1].shape.rank; i++)
            indices *= one->input[1].shape.size[i];
        first.size[first.rank++] = indices;
    }
    if (strstr(one->bench, "broadcast") && !same_shape(first, one->input[1].shape)) {
        tarn__json_open(json, "shape", '[');
        tarn__json_shape(json, NULL, first);
        tarn__json_shape(json, NULL, one->input[1].shape);
        tarn__json_close(json, ']');
    } else {
        tarn__json_shape(json, "shape", first);
    }
}

static void print_json(const tarn__case *one, tarn_dtype dtype, int64_t size, const result *r)
{
    double forward = tarn__meter_median(&r->meter[FORWARD]), forward_copy = tarn__meter_median(&r->meter[FORWARD_COPY]);
    double backward = tarn__meter_median(&r->meter[BACKWARD]), backward_copy = tarn__meter_median(&r->meter[BACKWARD_COPY]);
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "op", one->bench);
    tarn__json_text(&json, "dtype", tarn_dtype_name(dtype));
    write_shape(&json, one);
    tarn__json_shape(&json, "result", r->shape);
    tarn__json_whole(&json, "size", size);
    tarn__json_whole(&json, "threads", tarn_threads());
    tarn__json_real(&json, "fwd_us", forward, 3);
    tarn__json_real(&json, "bwd_us", backward, 3);
    tarn__json_real(&json, "both_us", tarn__meter_median(&r->meter[BOTH]), 3);
    tarn__json_real(&json, "host_us", r->host, 3);
    tarn__json_real(&json, "fwd_spread", tarn__meter_spread(&r->meter[FORWARD]), 3);
    tarn__json_real(&json, "bwd_spread", tarn__meter_spread(&r->meter[BACKWARD]), 3);
    tarn__json_whole(&json, "fwd_bytes", r->forward_bytes);
    tarn__json_real(&json, "gbps", (double)r->forward_bytes / forward / 1e3, 2);
    tarn__json_real(&json, "fwd_copy_us", forward_copy, 3);
    tarn__json_real(&json, "fwd_of_copy", forward_copy / forward, 3);
    if (r->flops > 0)
        tarn__json_real(&json, "tflops", r->flops / forward / 1e6, 4);
    if (r->backward_bytes) {
        tarn__json_whole(&json, "bwd_bytes", r->backward_bytes);
        tarn__json_real(&json, "bwd_copy_us", backward_copy, 3);
        tarn__json_real(&json, "bwd_of_copy", backward_copy / backward, 3);
    }
    tarn__json_end(&json);
}

static const char *shape_text(tarn_shape shape, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < shape.rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? "x" : "", (long long)shape.size[i]);
    return text;
}

static void print_text(const tarn__case *one, tarn_dtype dtype, const result *r)
{
    double forward = tarn__meter_median(&r->meter[FORWARD]), forward_copy = tarn__meter_median(&r->meter[FORWARD_COPY]);
    double backward = tarn__meter_median(&r->meter[BACKWARD]), backward_copy = tarn__meter_median(&r->meter[BACKWARD_COPY]);
    char shape[64];
    printf("%-18s %-5s %-16s %11.2f %6.0f%% %8.2f %8.2f", one->bench, tarn_dtype_name(dtype),
           shape_text(one->input[0].shape, shape, sizeof(shape)), forward, 100 * tarn__meter_spread(&r->meter[FORWARD]),
           (double)r->forward_bytes / forward / 1e3, forward_copy / forward);
    if (r->backward_bytes)
        printf(" %11.2f %6.0f%% %8.2f %11.2f\n", backward, 100 * tarn__meter_spread(&r->meter[BACKWARD]), backward_copy / backward,
               tarn__meter_median(&r->meter[BOTH]));
    else
        printf(" %11s %7s %8s %11s\n", "-", "-", "-", "-");
    fflush(stdout);
}

/* ---- the cost of a call itself --------------------------------------------------------------------------------------------- */

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

/* One operation on one element, recorded on the tape, its scope opened and closed. */
static bool measure_tiny(const tarn__options *options)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__meter *meter = calloc(1, sizeof(*meter));
    pair p = {tarn_ones(TARN_SHAPE(1), TARN_F32, options->device), tarn_ones(TARN_SHAPE(1), TARN_F32, options->device)};
    bool good = meter && tarn_requires_grad(p.a, true) && tarn_requires_grad(p.b, true);
    if (good) {
        *meter = (tarn__meter){.work = run_tiny, .ctx = &p, .sets = 1};
        good = tarn__meter_start(meter, options->device);
    }
    for (int i = 0; good && i < options->runs; i++)
        good = tarn__meter_run(meter, options->device);
    if (good && options->json) {
        tarn__json json = {stdout, false};
        tarn__json_open(&json, NULL, '{');
        tarn__json_text(&json, "op", "tiny");
        tarn__json_text(&json, "dtype", "f32");
        tarn__json_shape(&json, "shape", TARN_SHAPE(1));
        tarn__json_whole(&json, "threads", tarn_threads());
        tarn__json_real(&json, "fwd_us", tarn__meter_median(meter), 4);
        tarn__json_real(&json, "host_us", tarn__meter_median(meter), 4);
        tarn__json_real(&json, "fwd_spread", tarn__meter_spread(meter), 3);
        tarn__json_end(&json);
    } else if (good) {
        printf("%-18s %-5s %-16s %11.3f %6.0f%%   (a product of one element, with tape and scope: %.0f ns)\n", "tiny", "f32", "1",
               tarn__meter_median(meter), 100 * tarn__meter_spread(meter), 1000 * tarn__meter_median(meter));
    }
    free(meter);
    tarn_scope_close(scope);
    return good;
}

/* ---- the rows ---------------------------------------------------------------------------------------------------------------- */

static bool is_wanted(const tarn__options *options, const char *row, const char *operation)
{
    for (int i = 0; i < options->only_count; i++)
        if (strcmp(options->only[i], row) == 0 || strcmp(options->only[i], operation) == 0)
            return true;
    return options->only_count == 0;
}

/* Every name after --only must be one. */
static int check_names(const tarn__options *options)
{
    const char *names[512];
    int count = 0;
    names[count++] = "tiny";
    for (int i = 0; i < tarn__case_count() && count < 510; i++)
        if (tarn__case_at(i)->bench) {
            names[count++] = tarn__case_at(i)->bench;
            names[count++] = tarn__case_at(i)->operation;
        }
    for (int i = 0; i < options->only_count; i++) {
        bool found = false;
        for (int k = 0; k < count && !found; k++)
            found = strcmp(options->only[i], names[k]) == 0;
        if (found)
            continue;
        const char *near = tarn__nearest(options->only[i], names, count);
        fprintf(stderr, "tarn bench ops: --only: no measured row or operation is called '%s'%s%s%s\n", options->only[i],
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        return TARN__MISUSED;
    }
    return TARN__DONE;
}

static bool bench_row(const tarn__case *letters, tarn_dtype dtype, int64_t size, const tarn__options *options)
{
    tarn__scale scale = tarn__scale_of(size / (int64_t)tarn_dtype_size(dtype));
    result *found = calloc(1, sizeof(*found));
    job work = {.one = tarn__case_resolve(letters, &scale, dtype), .call = tarn__case_direct(letters)};
    bool good = found ? measure(&work, dtype, options, found) : tarn_set_error(TARN_ERROR_MEMORY, "no memory for the figures");
    if (good && options->json)
        print_json(&work.one, dtype, size, found);
    else if (good)
        print_text(&work.one, dtype, found);
    free(found);
    return good;
}

int tarn__bench_ops(const tarn__options *options)
{
    char name[32];
    int status = check_names(options);
    if (status != TARN__DONE)
        return status;
    if (!options->json) {
        printf("operations on %s, %d threads; median of %lld runs in microseconds, and the share of a plain copy of the same bytes\n",
               tarn_device_name(options->device, name, sizeof(name)), tarn_threads(), (long long)options->runs);
    }
    for (int s = 0; s < options->size_count; s++) {
        if (!options->json) {
            printf("\n");
            tarn__heading("%-18s %-5s %-16s %11s %7s %8s %8s %11s %7s %8s %11s", tarn__bytes_text(options->sizes[s]), "dtype", "shape",
                          "forward", "spread", "GB/s", "of copy", "backward", "spread", "of copy", "both");
        }
        for (int d = 0; d < options->dtype_count; d++)
            for (int i = 0; i < tarn__case_count(); i++) {
                const tarn__case *letters = tarn__case_at(i);
                if (letters->bench && is_wanted(options, letters->bench, letters->operation) &&
                    !bench_row(letters, options->dtypes[d], options->sizes[s], options))
                    return tarn__complain("bench ops");
            }
    }
    return !is_wanted(options, "tiny", "tiny") || measure_tiny(options) ? TARN__DONE : tarn__complain("bench ops");
}

/* rope.c: rotary position embeddings (RoPE): the launchers of rope.cl. A first kernel computes sine and cosine of each
 * position and pair once; a second rotates all heads. ops/attention/rope.c computes the frequencies, with their
 * scaling, and the factor of cos and sin. */
#include <stdio.h>

#include "backends/opencl/runtime/opencl.h"

#define PIECE 64 /* frequencies per launch, as in rope.cl: 512 bytes of arguments */

/* The struct `shape` of rope.cl. */
typedef struct shape {
    int64_t batches, length, heads, depth, pairs;
    int64_t x[4], y[4]; /* strides along batch, position, head, element */
} shape;

/* A double where the device has them, else the sum of two floats. */
typedef union frequency {
    double value;
    float part[2];
} frequency;

/* A call described for launch. */
typedef struct job {
    shape shape;
    int64_t rows; /* of the table of sines and cosines */
} job;

/* True when all sequences have the same positions, so that one table serves the batch. */
static bool is_shared(const tarn__call *call)
{
    return !call->in[1] || call->in[1]->rank == 1;
}

/* Sizes and strides in the order batch, position, head, element, whatever the axis of positions. */
static shape shape_of(const tarn__call *call)
{
    const tarn__rope *params = call->params;
    const tarn__view *x = call->in[0], *y = call->out[0];
    const int order[4] = {0, params->axis, 3 - params->axis, 3};
    shape s = {.batches = x->shape[0],
               .length = x->shape[params->axis],
               .heads = x->shape[3 - params->axis],
               .depth = x->shape[3],
               .pairs = params->dims / 2};
    for (int i = 0; i < 4; i++) {
        s.x[i] = x->stride[order[i]];
        s.y[i] = y->stride[order[i]];
    }
    return s;
}

/* Scratch: sine and cosine of each pair at each position, in the type computed in: f32, or f64 for f64. */
static tarn__plan_status prepare_rope(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    j->shape = shape_of(call);
    j->rows = is_shared(call) ? j->shape.length : j->shape.batches * j->shape.length;
    plan->scratch_bytes = (size_t)(2 * j->rows * j->shape.pairs) * (call->in[0]->dtype == TARN_F64 ? 8 : 4);
    return TARN__PLAN_READY;
}

/* Sine and cosine of pairs [first, first + count): a work-item per pair of each position. */
static void compute_angles(const tarn__call *call, const job *j, int64_t first, int64_t count)
{
    const shape *s = &j->shape;
    const tarn__rope *params = call->params;
    const tarn__view *positions = call->in[1];
    const bool is_f64 = tarn__cl_device_at(call->device)->has_f64;
    frequency given[PIECE] = {{0}};
    char options[96];
    for (int64_t i = 0; i < count; i++) {
        double value = params->frequency[first + i];
        float high = (float)value;
        given[i] = is_f64 ? (frequency){.value = value} : (frequency){.part = {high, (float)(value - (double)high)}};
    }
    snprintf(options, sizeof(options), "-DANGLES -DT_X=%s -DT_POSITION=%s",
             call->in[0]->dtype == TARN_F64 ? "f64" : "f32",
             tarn__cl_dtype_name(positions ? positions->dtype : TARN_I64));
    tarn__cl_launch launch = tarn__cl_begin(call, "rope", "angles", options);
    tarn__cl_arg_value(&launch, given, sizeof(given));
    const int64_t numbers[] = {first, count, j->rows, s->length, s->pairs};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        tarn__cl_arg_long(&launch, numbers[i]);
    tarn__cl_arg_view(&launch, positions);
    tarn__cl_arg_long(&launch, positions && positions->rank == 2 ? positions->stride[0] : 0);
    tarn__cl_arg_long(&launch, positions ? positions->stride[positions->rank - 1] : 0);
    tarn__cl_arg_int(&launch, params->inverse);
    const frequency magnitude =
        is_f64 ? (frequency){.value = params->magnitude} : (frequency){.part = {(float)params->magnitude, 0}};
    tarn__cl_arg_value(&launch, &magnitude, is_f64 ? sizeof(double) : sizeof(float));
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)(j->rows * count)}, NULL);
}

/* A work-item per pair, and per element after the rotated ones. */
static void rotate(const tarn__call *call, const shape *s)
{
    const tarn__rope *params = call->params;
    const int64_t items = s->batches * s->length * s->heads * (s->depth - s->pairs);
    char options[96];
    snprintf(options, sizeof(options), "-DROTATE -DT_X=%s -DT_Y=%s -DINDEX=%s", tarn__cl_dtype_name(call->in[0]->dtype),
             tarn__cl_dtype_name(call->out[0]->dtype), items < (INT64_C(1) << 30) ? "int" : "long");
    tarn__cl_launch launch = tarn__cl_begin(call, "rope", "rope", options);
    tarn__cl_arg_value(&launch, s, sizeof(*s));
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_int(&launch, is_shared(call));
    tarn__cl_arg_int(&launch, params->interleaved);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)items}, NULL);
}

/* Frequencies go as kernel arguments, 64 per launch; then one launch rotates. */
static void run_rope(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    const int64_t pairs = j->shape.pairs;
    if (tarn__view_count(call->in[0]) == 0)
        return;
    for (int64_t first = 0; first < pairs; first += PIECE)
        compute_angles(call, j, first, pairs - first < PIECE ? pairs - first : PIECE);
    rotate(call, &j->shape);
}

void tarn__cl_register_rope(tarn__kernel_row *rows)
{
    rows[TARN__K_rope] = tarn__row_planned(prepare_rope, run_rope, TARN__FLOATS);
}

/* conv.c: conv2d, its dgrad and its wgrad: plans, tables and kernels. conv.h explains the algorithm.
 *
 * A plan depends on shapes, strides and parameters only. Weights are packed once per call into scratch, tables of
 * tap offsets likewise. A task of forward and dgrad is one band of one image; a task of wgrad is one split of all
 * bands, with partial sums of its own that are added in order afterwards. */
#include "backends/cpu/conv/conv.h"

#define MAX_SPLITS 16
#define SPLITS_BYTES (INT64_C(64) << 20) /* bytes of wgrad's partial sums, at most */
#define FEW_OUTPUTS 4                    /* output channels below which wgrad runs as dot products along rows */
/* channels of several groups loaded together: a cache line of channels-last images */
#define CHANNELS_PER_LOAD 16

/* Output rows stored in panels of MR, the last of which may be padded; a remainder of at most FEW_ROWS is stored row
 * by row. */
static int64_t panel_rows(int64_t rows)
{
    return rows % MR <= FEW_ROWS ? rows / MR * MR : ceil_div(rows, MR) * MR;
}

/* Rows of packed weights including the padding of the last panel. */
static int64_t packed_rows(int64_t rows)
{
    return max_i64(rows, panel_rows(rows));
}

/* Tasks of forward and dgrad. */
static int64_t units_of(const job *s)
{
    return s->images * s->bands * ceil_div(s->groups, s->groups_per_load);
}

/* ---- description ------------------------------------------------------------------------------------------------- */

/* dgrad: source row (or column) that output 0 of phase `at` reads at tap `k`; false where that tap does not reach
 * the phase. */
static bool gradient_tap(const job *s, int axis, int64_t at, int64_t k, int64_t *position)
{
    int64_t distance = at + s->padding[axis] - k * s->dilation[axis];
    *position = quotient_of(distance, s->stride[axis]);
    return remainder_of(distance, s->stride[axis]) == 0;
}

/* Forward: one plane per remainder of the stride. */
static void describe_forward_axis(job *s, int axis, int64_t *halo)
{
    int64_t last = (s->kernel[axis] - 1) * s->dilation[axis];
    s->step[axis] = s->stride[axis];
    s->remainders[axis] = min_i64(s->stride[axis], last + 1);
    s->pad_before[axis] = s->padding[axis];
    s->out_step[axis] = s->phase_count[axis] = 1;
    *halo = last / s->stride[axis];
}

/* dgrad: one phase per remainder of the stride; all phases read the same planes, which must cover every position
 * they reach. */
static void describe_gradient_axis(job *s, int axis, int64_t *halo)
{
    int64_t low = 0, high = 0, position;
    bool any = false;
    s->step[axis] = s->remainders[axis] = 1;
    s->out_step[axis] = s->stride[axis];
    s->phase_count[axis] = min_i64(s->stride[axis], s->to->shape[2 + axis]);
    for (int64_t at = 0; at < s->phase_count[axis]; at++)
        for (int64_t k = 0; k < s->kernel[axis]; k++)
            if (gradient_tap(s, axis, at, k, &position)) {
                low = any ? min_i64(low, position) : position;
                high = any ? max_i64(high, position) : position;
                any = true;
            }
    s->pad_before[axis] = -low;
    *halo = high - low;
}

/* Zero padding after a row doubles as the padding before the next one, as far as both have some: rows get shorter
 * and fewer outputs are computed for nothing. Valid outputs never reach into the next row. */
static void share_zeros(job *s, int64_t halo)
{
    int64_t shared = halo, low, high;
    for (int64_t b = 0; b < s->remainders[1]; b++) {
        inside_range(s->from->shape[3], s->step[1], b - s->pad_before[1], s->width, &low, &high);
        shared = min_i64(shared, min_i64(low, s->width - high));
    }
    s->width -= shared;
}

/* Bands whose planes fit the cache, and enough of them for several threads where there is work. */
static void choose_bands(job *s, int64_t size)
{
    int64_t row = s->groups_per_load * s->in * s->remainders[0] * s->remainders[1] * s->width;
    int64_t fit = PLANES_BYTES / size / row - s->halo, sets = s->images * ceil_div(s->groups, s->groups_per_load);
    s->band = max_i64(1, max_i64(min_i64(s->rows, 2 * s->halo), min_i64(s->rows, fit)));
    int64_t work = s->out * s->in * tap_count(s) * s->width;
    while (s->band > 1 && sets * ceil_div(s->rows, s->band) < ENOUGH_UNITS && s->band * work > 2 * UNIT_WORK)
        s->band = ceil_div(s->band, 2);
    s->bands = ceil_div(s->rows, s->band);
    s->plane = (s->band + s->halo) * s->width;
    s->channel = s->remainders[0] * s->remainders[1] * s->plane;
}

/* Of `to` = conv2d of `from`; or, for dgrad, of the input gradient `to` from the output gradient `from`. */
static job describe(const tarn__call *call, const tarn__view *from, const tarn__view *weight, const tarn__view *to,
                    bool gradient)
{
    const tarn__conv2d *params = call->params;
    job s = {.from = from,
             .to = to,
             .weight = weight,
             .gradient = gradient,
             .images = to->shape[0],
             .groups = params->groups};
    int64_t halo[2], size = from->dtype == TARN_F64 ? 8 : 4;
    s.in = from->shape[1] / s.groups;
    s.out = to->shape[1] / s.groups;
    s.groups_per_load = max_i64(1, min_i64(s.groups, CHANNELS_PER_LOAD / s.in));
    for (int axis = 0; axis < 2; axis++) {
        s.kernel[axis] = weight->shape[2 + axis];
        s.stride[axis] = params->stride[axis];
        s.padding[axis] = params->padding[axis];
        s.dilation[axis] = params->dilation[axis];
        (gradient ? describe_gradient_axis : describe_forward_axis)(&s, axis, &halo[axis]);
    }
    s.halo = halo[0];
    s.width = ceil_div(to->shape[3], s.out_step[1]) + halo[1];
    share_zeros(&s, halo[1]);
    s.rows = ceil_div(to->shape[2], s.out_step[0]);
    choose_bands(&s, size);
    return s;
}

/* ---- tables of phases and taps ----------------------------------------------------------------------------------- */

static void reserve_tables(job *s, arena *c)
{
    size_t taps = (size_t)tap_count(s) * sizeof(int64_t), phases = (size_t)(s->phase_count[0] * s->phase_count[1]);
    s->phases_at = arena_reserve(c, sizeof(phase) * phases);
    s->positions_at = arena_reserve(c, taps + sizeof(int64_t) * (K_BLOCK + 2) * phases); /* upper bound */
    s->offsets_at = arena_reserve(c, taps);
    s->tap_phase_at = arena_reserve(c, taps);
    s->tap_index_at = arena_reserve(c, taps);
}

static void bind_scratch(job *s, char *scratch)
{
    s->phases = (void *)(scratch + s->phases_at);
    s->positions = (void *)(scratch + s->positions_at);
    s->offsets = (void *)(scratch + s->offsets_at);
    s->tap_phase = (void *)(scratch + s->tap_phase_at);
    s->tap_index = (void *)(scratch + s->tap_index_at);
    s->weights = scratch + s->weights_at;
    s->biases = scratch + s->biases_at;
    slots_init(&s->plane_slots, scratch);
}

/* Offset of a tap in a channel's planes; false where the tap does not belong to the phase. */
static bool tap_offset(const job *s, const phase *f, int64_t tap, int64_t *offset)
{
    int64_t k[2] = {tap / s->kernel[1], tap % s->kernel[1]}, position[2], part[2] = {0};
    for (int axis = 0; axis < 2; axis++) {
        int64_t distance = k[axis] * s->dilation[axis];
        position[axis] = distance / s->stride[axis];
        part[axis] = distance % s->stride[axis];
        if (!s->gradient)
            continue;
        if (!gradient_tap(s, axis, f->at[axis], k[axis], &position[axis]))
            return false;
        position[axis] += s->pad_before[axis];
        part[axis] = 0;
    }
    *offset = (part[0] * s->remainders[1] + part[1]) * s->plane + position[0] * s->width + position[1];
    return true;
}

/* Fills in the positions of a phase's terms; returns the end of what it wrote. Two extra entries let AArch64 load
 * addresses ahead. */
static int64_t *fill_positions(const job *s, phase *f, int64_t *position)
{
    f->position = position;
    for (int64_t c = 0; c < channels_per_step(s, f); c++)
        for (int64_t t = 0; t < f->taps; t++)
            *position++ = c * s->channel + f->offset[t];
    *position++ = 0;
    *position++ = 0;
    return position;
}

/* Runs on the calling thread before any task: O(taps) work. */
static void fill_tables(job *s)
{
    int64_t used = 0, *position = s->positions;
    for (int64_t tap = 0; tap < tap_count(s); tap++)
        s->tap_phase[tap] = -1;
    for (int64_t k = 0; k < s->phase_count[0] * s->phase_count[1]; k++) {
        phase *f = &s->phases[k];
        *f =
            (phase){.at = {k / s->phase_count[1], k % s->phase_count[1]}, .offset = s->offsets + used, .earlier = used};
        for (int axis = 0; axis < 2; axis++)
            f->size[axis] = ceil_div(s->to->shape[2 + axis] - f->at[axis], s->out_step[axis]);
        for (int64_t tap = 0; tap < tap_count(s); tap++)
            if (tap_offset(s, f, tap, &s->offsets[used])) {
                s->tap_phase[tap] = k;
                s->tap_index[tap] = f->taps++;
                used++;
            }
        position = fill_positions(s, f, position);
    }
}

/* ---- wgrad ------------------------------------------------------------------------------------------------------- */

/* wgrad: forward's description for loading x, and how sums are split. */
typedef struct wgrad_job {
    job s; /* of forward: the planes of x */
    double beta;
    bool direct;                     /* few output channels */
    int64_t ld;                      /* output channels per group, padded to whole vectors */
    int64_t splits, bands_per_split; /* splits of the bands of all images */
    int64_t blocks, block;           /* blocks of a group's input channels */
    size_t sums_at;                  /* offset in scratch */
    /* addresses */
    const tarn__view *g, *to;
    void *sums;
} wgrad_job;

static int64_t splits_of(const wgrad_job *w)
{
    return w->splits * ceil_div(w->s.groups, w->s.groups_per_load) * w->blocks;
}

/* Splits are limited by the memory of their partial sums, blocks of channels make up for it where there are few
 * splits. */
static wgrad_job describe_wgrad(const tarn__call *call)
{
    const tarn__conv2d *params = call->params;
    wgrad_job w = {.s = describe(call, call->in[0], call->out[0], call->in[1], false),
                   .g = call->in[1],
                   .to = call->out[0],
                   .beta = params->beta};
    int64_t size = call->in[0]->dtype == TARN_F64 ? 8 : 4, lanes = VECTOR_BYTES / size, bands = w.s.images * w.s.bands;
    w.direct = w.s.out < FEW_OUTPUTS;
    w.ld = w.direct ? w.s.out : ceil_div(w.s.out, lanes) * lanes;
    int64_t bytes = w.s.groups * (w.s.in * tap_count(&w.s) + MR) * w.ld * size;
    w.splits = max_i64(1, min_i64(min_i64(bands, MAX_SPLITS), SPLITS_BYTES / bytes));
    w.bands_per_split = max_i64(1, ceil_div(bands, w.splits));
    w.splits = max_i64(1, ceil_div(bands, w.bands_per_split));
    int64_t sets = w.splits * ceil_div(w.s.groups, w.s.groups_per_load);
    w.block = w.s.groups_per_load > 1 ? w.s.in
                                      : max_i64(min_i64(w.s.in, 8), ceil_div(w.s.in, ceil_div(ENOUGH_UNITS / 2, sets)));
    w.blocks = ceil_div(w.s.in, w.block);
    return w;
}

#define T float
#define COMPUTE COMPUTE_F32
#define NATIVE TARN_F32
#define SQUARE 4
#define NAMED(x) x##_f32
/* Order matters: each uses what the ones before define. */
/* clang-format off */
#include "backends/cpu/conv/conv_planes.inc"
#include "backends/cpu/conv/conv_tile.inc"
#include "backends/cpu/conv/conv_wgrad.inc"
/* clang-format on */

#define T double
#define COMPUTE COMPUTE_F64
#define NATIVE TARN_F64
#define SQUARE 2
#define NAMED(x) x##_f64
/* Order matters: each uses what the ones before define. */
/* clang-format off */
#include "backends/cpu/conv/conv_planes.inc"
#include "backends/cpu/conv/conv_tile.inc"
#include "backends/cpu/conv/conv_wgrad.inc"
/* clang-format on */

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* dgrad swaps the roles: its source is g, its output gx. */
static void bind(job *s, const tarn__call *call)
{
    s->from = call->in[0];
    s->weight = call->in[1];
    s->to = call->out[0];
    s->bias = !s->gradient && call->inputs > 2 ? call->in[2] : NULL;
    bind_scratch(s, call->scratch);
}

static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan, bool gradient)
{
    arena c = {0};
    job *s = tarn__plan_reserve(plan, sizeof(*s));
    if (!s)
        return TARN__PLAN_FAILED;
    if (tarn__view_count(call->out[0]) == 0)
        return TARN__PLAN_READY;
    *s = describe(call, call->in[0], call->in[1], call->out[0], gradient);
    (call->in[0]->dtype == TARN_F64 ? reserve_f64 : reserve_f32)(s, &c);
    s->from = s->weight = s->to = NULL; /* a plan has no addresses */
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

static tarn__plan_status prepare_conv2d(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, false);
}

static tarn__plan_status prepare_conv2d_grad_x(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, true);
}

/* conv2d and conv2d_grad_x. */
static void kernel_conv2d(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    job s = *(const job *)tarn__plan_job(call->plan);
    bind(&s, call);
    (call->in[0]->dtype == TARN_F64 ? run_f64 : run_f32)(&s);
}

static tarn__plan_status prepare_conv2d_grad_weight(const tarn__call *call, tarn__plan *plan)
{
    arena c = {0};
    wgrad_job *w = tarn__plan_reserve(plan, sizeof(*w));
    if (!w)
        return TARN__PLAN_FAILED;
    *w = describe_wgrad(call);
    (call->in[0]->dtype == TARN_F64 ? reserve_wgrad_f64 : reserve_wgrad_f32)(w, &c);
    w->s.from = w->s.weight = w->s.to = w->g = w->to = NULL;
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

static void kernel_conv2d_grad_weight(const tarn__call *call)
{
    wgrad_job w = *(const wgrad_job *)tarn__plan_job(call->plan);
    w.s.from = call->in[0];
    w.s.weight = w.to = call->out[0];
    w.s.to = w.g = call->in[1];
    bind_scratch(&w.s, call->scratch);
    w.sums = (char *)call->scratch + w.sums_at;
    (call->in[0]->dtype == TARN_F64 ? run_wgrad_f64 : run_wgrad_f32)(&w);
}

void TARN__AT_LEVEL(tarn__cpu_register_conv)(tarn__kernel_row *rows)
{
    rows[TARN__K_conv2d] = tarn__row_planned(prepare_conv2d, kernel_conv2d, TARN__FLOATS);
    rows[TARN__K_conv2d_grad_x] = tarn__row_planned(prepare_conv2d_grad_x, kernel_conv2d, TARN__FLOATS);
    rows[TARN__K_conv2d_grad_weight] =
        tarn__row_planned(prepare_conv2d_grad_weight, kernel_conv2d_grad_weight, TARN__FLOATS);
}

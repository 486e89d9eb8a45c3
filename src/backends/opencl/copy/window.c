/* window.c: x laid into a window of y with one number around it, and copies whose rows do not lie alike, in one pass on
 * GPUs; see window.cl. */
#include "backends/opencl/common/element.h"

#define TURNS 8 /* as window.cl has it */

/* As window.cl has them. */
typedef struct window_axis {
    uint32_t size, size_factor, step, step_factor;
    int32_t size_shift, step_shift;
    uint32_t begin, span;
    int32_t to, from;
} window_axis;

typedef struct window {
    window_axis last, outer[TARN_MAX_RANK];
    uint32_t units, turn, size;
    int32_t turn_to, turn_from;
} window;

static void set_size(window_axis *axis, int64_t size)
{
    axis->size = (uint32_t)size;
    if (size > 1)
        tarn__cl_fast_divisor(size, &axis->size_factor, &axis->size_shift);
}

static window_axis axis_for(const tarn__cl_pad_axis *axis)
{
    window_axis made = {.step = (uint32_t)axis->step,
                        .begin = (uint32_t)axis->begin,
                        .span = (uint32_t)((axis->count - 1) * axis->step + 1)};
    set_size(&made, axis->size);
    if (axis->step > 1)
        tarn__cl_fast_divisor(axis->step, &made.step_factor, &made.step_shift);
    made.to = (int32_t)axis->to;
    made.from = (int32_t)axis->from;
    return made;
}

static int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* True where every place fits in 31 bits, some room left at the top, and there is something of x. */
static bool is_small(const tarn__cl_pad_axis *axis, int rank)
{
    const int64_t most = INT32_MAX - 65536;
    int64_t count = 1, to = 0, from = 0;
    for (int i = 0; i < rank; i++) {
        count *= axis[i].size;
        to += (axis[i].size - 1) * distance(axis[i].to);
        from += (axis[i].count - 1) * distance(axis[i].from);
        if (axis[i].count < 1 || axis[i].begin < 0 || axis[i].step >= most ||
            axis[i].begin + axis[i].count * axis[i].step >= most || count >= most || to >= most || from >= most)
            return false;
    }
    return true;
}

/* How many neighbours of y, up to 8 bytes, its rows are made of. */
static int unit_of(const tarn__cl_pad_axis *axis, int rank, int64_t offset, int bytes)
{
    for (int n = bytes == 4 ? 2 : bytes < 4 ? 4 : 1; n > 1; n /= 2) {
        bool fits = axis[rank - 1].to == 1 && axis[rank - 1].size % n == 0 && offset % n == 0;
        for (int i = 0; i < rank - 1; i++)
            fits = fits && axis[i].to % n == 0;
        if (fits)
            return n;
    }
    return 1;
}

/* The longest axis before the last that has no steps is walked in turns; else one of a single place is. Gives which. */
static int take_outer(window *w, const tarn__cl_pad_axis *axis, int rank, int *outer)
{
    int turning = -1;
    *outer = 0;
    for (int i = 0; i < rank - 1; i++) {
        if (axis[i].step == 1 && (turning < 0 || axis[i].size > w->outer[turning].size))
            turning = *outer;
        w->outer[(*outer)++] = axis_for(&axis[i]);
    }
    if (turning < 0)
        w->outer[turning = (*outer)++] = axis_for(&(tarn__cl_pad_axis){1, 0, 1, 1, 0, 0});
    window_axis *t = &w->outer[turning];
    w->size = t->size;
    w->turn = (t->size + TURNS - 1) / TURNS;
    w->turn_to = (int32_t)w->turn * t->to;
    w->turn_from = (int32_t)((int64_t)w->turn * t->from);
    set_size(t, w->turn);
    return turning;
}

/* How many neighbours, of at least 8 bytes and up to 16, are moved as one element; else 1. */
static int64_t wide_unit(const tarn__call *call, const tarn__cl_pad_axis *axis, int rank, int64_t bytes)
{
    const tarn__cl_pad_axis *last = &axis[rank - 1];
    for (int64_t n = 16 / bytes; n * bytes >= 8 && n > 1; n /= 2) {
        bool fits = last->to == 1 && last->from == 1 && last->step == 1 &&
                    (last->size | last->begin | last->count) % n == 0 && call->out[0]->offset % n == 0 &&
                    call->in[0]->offset % n == 0;
        for (int i = 0; i < rank - 1; i++)
            fits = fits && axis[i].to % n == 0 && axis[i].from % n == 0;
        if (fits)
            return n;
    }
    return 1;
}

/* The axes counted in such units. */
static void count_in_units(const tarn__cl_pad_axis *axis, int rank, int64_t unit, tarn__cl_pad_axis *to)
{
    for (int i = 0; i < rank; i++) {
        to[i] = axis[i];
        if (i < rank - 1) {
            to[i].to /= unit;
            to[i].from /= unit;
        } else {
            to[i].size /= unit;
            to[i].begin /= unit;
            to[i].count /= unit;
        }
    }
}

/* The window's places; `n` neighbours of y are written at once. Gives how many axes there are before the last, and
 * which of them is walked in turns. */
static window make_window(const tarn__cl_pad_axis *axis, int rank, int n, int *outer, int *turning)
{
    window w = {.units = 1};
    *turning = take_outer(&w, axis, rank, outer);
    w.last = axis_for(&axis[rank - 1]);
    set_size(&w.last, axis[rank - 1].size / n);
    w.units = w.last.size;
    for (int i = 0; i < *outer; i++)
        w.units *= w.outer[i].size;
    return w;
}

bool tarn__cl_window(const tarn__call *call, const tarn__cl_pad_axis *all, int rank, const tarn__scalar *value)
{
    const size_t size = tarn__dtype_bytes(call->out[0]->dtype);
    unsigned char bits[16];
    tarn__cl_pad_axis axis[TARN_MAX_RANK];
    bool has_steps = false;
    int outer, turning;
    if (!tarn__cl_device_at(call->device)->in_lockstep || rank < 1 || rank > TARN_MAX_RANK || size > 8 ||
        !is_small(all, rank))
        return false;
    const int64_t unit = wide_unit(call, all, rank, (int64_t)size);
    count_in_units(all, rank, unit, axis);
    for (int i = 0; i < rank; i++)
        has_steps = has_steps || axis[i].step != 1;
    const tarn__view to = tarn__cl_view_in_vecs(call->out[0], unit), from = tarn__cl_view_in_vecs(call->in[0], unit);
    const int n = unit > 1 ? 1 : unit_of(axis, rank, to.offset, (int)size);
    const window w = make_window(axis, rank, n, &outer, &turning);
    for (int64_t i = 0; i < unit; i++)
        tarn__cl_write_element(call->out[0]->dtype, value, bits + (size_t)i * size);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option(&options, "-DBITS=%s -DN=%d -DOUTER=%d -DTURNING=%d%s", tarn__cl_bits(size * (size_t)unit), n,
                    outer, turning, has_steps ? " -DHAS_STEPS" : "");
    tarn__cl_launch launch = tarn__cl_begin(call, "window", "lay", options.text);
    tarn__cl_arg_value(&launch, &w, sizeof(w));
    tarn__cl_arg_view(&launch, &to);
    tarn__cl_arg_view(&launch, &from);
    tarn__cl_arg_value(&launch, bits, size * (size_t)unit);
    tarn__cl_enqueue_elements(&launch, w.units);
    return true;
}

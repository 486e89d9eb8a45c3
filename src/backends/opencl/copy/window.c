/* window.c: padded copies (x inside y with one value around it), and copies of misaligned rows, in one pass on GPUs;
 * see window.cl. */
#include "backends/opencl/common/element.h"

#define UNROLL 8 /* as in window.cl */

/* The structs of window.cl. */
typedef struct window_axis {
    uint32_t size, size_factor, step, step_factor; /* of y; distance of x's elements in it; factors divide by them */
    int32_t size_shift, step_shift;
    uint32_t begin, span; /* positions of x in y: [begin, begin + span) */
    int32_t to, from;     /* strides */
} window_axis;

typedef struct window {
    window_axis last, outer[TARN_MAX_RANK]; /* the contiguous axis, and those before it */
    uint32_t units, unroll_step, size;      /* work-items; distance of unrolled positions; size of that axis */
    int32_t unroll_to, unroll_from;         /* their strides in y and x */
} window;

static void set_size(window_axis *axis, int64_t size)
{
    axis->size = (uint32_t)size;
    if (size > 1)
        tarn__cl_fast_divisor(size, &axis->size_factor, &axis->size_shift);
}

/* An axis for the kernel: sizes in 32 bits, divisors as multiplications. */
static window_axis axis_for(const tarn__pad_axis *axis)
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

static int64_t abs_stride(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* True where every offset fits 31 bits with a margin, and x is not empty. */
static bool is_small(const tarn__pad_axis *axis, int rank)
{
    /* The margin covers a grid that is rounded up to whole work-groups. */
    const int64_t limit = INT32_MAX - 65536;
    int64_t count = 1, to = 0, from = 0;
    for (int i = 0; i < rank; i++) {
        count *= axis[i].size;
        to += (axis[i].size - 1) * abs_stride(axis[i].to);
        from += (axis[i].count - 1) * abs_stride(axis[i].from);
        if (axis[i].count < 1 || axis[i].begin < 0 || axis[i].step >= limit ||
            axis[i].begin + axis[i].count * axis[i].step >= limit || count >= limit || to >= limit || from >= limit)
            return false;
    }
    return true;
}

/* Elements of y per store, up to 8 bytes, that its rows are multiples of. */
static int store_width(const tarn__pad_axis *axis, int rank, int64_t offset, int bytes)
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

/* Chooses the longest outer axis without steps for unrolling, or adds one of size 1. Returns its index. */
static int take_outer(window *w, const tarn__pad_axis *axis, int rank, int *outer)
{
    int unroll_axis = -1;
    *outer = 0;
    for (int i = 0; i < rank - 1; i++) {
        if (axis[i].step == 1 && (unroll_axis < 0 || axis[i].size > w->outer[unroll_axis].size))
            unroll_axis = *outer;
        w->outer[(*outer)++] = axis_for(&axis[i]);
    }
    if (unroll_axis < 0)
        w->outer[unroll_axis = (*outer)++] = axis_for(&(tarn__pad_axis){1, 0, 1, 1, 0, 0});
    window_axis *t = &w->outer[unroll_axis];
    w->size = t->size;
    w->unroll_step = (t->size + UNROLL - 1) / UNROLL;
    w->unroll_to = (int32_t)w->unroll_step * t->to;
    w->unroll_from = (int32_t)((int64_t)w->unroll_step * t->from);
    /* The grid counts the first of each UNROLL positions alone. */
    set_size(t, w->unroll_step);
    return unroll_axis;
}

/* Elements that can be moved as one of 8 to 16 bytes; else 1. */
static int64_t move_width(const tarn__call *call, const tarn__pad_axis *axis, int rank, int64_t bytes)
{
    const tarn__pad_axis *last = &axis[rank - 1];
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

/* The axes in units of such vectors. */
static void count_in_vectors(const tarn__pad_axis *axis, int rank, int64_t width, tarn__pad_axis *to)
{
    for (int i = 0; i < rank; i++) {
        to[i] = axis[i];
        if (i < rank - 1) {
            to[i].to /= width;
            to[i].from /= width;
        } else {
            to[i].size /= width;
            to[i].begin /= width;
            to[i].count /= width;
        }
    }
}

/* Describes the window for stores of `n` elements. Sets the number of outer axes, and which one is unrolled. */
static window make_window(const tarn__pad_axis *axis, int rank, int n, int *outer, int *unroll_axis)
{
    window w = {.units = 1};
    *unroll_axis = take_outer(&w, axis, rank, outer);
    w.last = axis_for(&axis[rank - 1]);
    /* A work-item has `n` elements of the last axis. */
    set_size(&w.last, axis[rank - 1].size / n);
    w.units = w.last.size;
    for (int i = 0; i < *outer; i++)
        w.units *= w.outer[i].size;
    return w;
}

/* One launch; y is written once, x read once. */
bool tarn__cl_window(const tarn__call *call, const tarn__pad_axis *all, int rank, const tarn__scalar *value)
{
    const size_t size = tarn__dtype_bytes(call->out[0]->dtype);
    unsigned char bits[16];
    tarn__pad_axis axis[TARN_MAX_RANK];
    bool has_steps = false;
    int outer, unroll_axis;
    if (!tarn__cl_device_at(call->device)->in_lockstep || rank < 1 || rank > TARN_MAX_RANK || size > 8 ||
        !is_small(all, rank))
        return false;
    const int64_t width = move_width(call, all, rank, (int64_t)size);
    count_in_vectors(all, rank, width, axis);
    for (int i = 0; i < rank; i++)
        has_steps = has_steps || axis[i].step != 1;
    const tarn__view to = tarn__cl_view_in_vecs(call->out[0], width), from = tarn__cl_view_in_vecs(call->in[0], width);
    const int n = width > 1 ? 1 : store_width(axis, rank, to.offset, (int)size);
    const window w = make_window(axis, rank, n, &outer, &unroll_axis);
    /* the padding value, repeated to the width of a move */
    for (int64_t i = 0; i < width; i++)
        tarn__cl_write_element(call->out[0]->dtype, value, bits + (size_t)i * size);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option(&options, "-DBITS=%s -DN=%d -DOUTER=%d -DUNROLL_AXIS=%d%s", tarn__cl_bits(size * (size_t)width), n,
                    outer, unroll_axis, has_steps ? " -DHAS_STEPS" : "");
    tarn__cl_launch launch = tarn__cl_begin(call, "window", "copy_window", options.text);
    tarn__cl_arg_value(&launch, &w, sizeof(w));
    tarn__cl_arg_view(&launch, &to);
    tarn__cl_arg_view(&launch, &from);
    tarn__cl_arg_value(&launch, bits, size * (size_t)width);
    tarn__cl_enqueue_elements(&launch, w.units);
    return true;
}

/* moves.c: numbers in steps, and x laid into a window of y with one number around it. */
#include "backends/opencl/element.h"

#define PER 4 /* elements of a work-item, as moves.cl has them */

static void kernel_arange(const tarn__call *call)
{
    const tarn__fill *fill = call->params;
    const tarn__view *y = call->out[0];
    bool is_whole = !tarn__is_float(y->dtype) && fill->step.real == (double)fill->step.integer;
    tarn__cl_compute compute = is_whole ? TARN__CL_I64 : tarn__cl_at(call->device)->has_f64 ? TARN__CL_F64 : TARN__CL_F32;
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, compute);
    tarn__cl_option(&options, " -DT=%s", tarn__cl_type(y->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "moves", "arange", options.text);
    tarn__cl_view(&launch, y);
    tarn__cl_long(&launch, y->shape[0]);
    tarn__cl_long(&launch, y->stride[0]);
    tarn__cl_number(&launch, compute, fill->value);
    tarn__cl_number(&launch, compute, fill->step);
    tarn__cl_over(&launch, y->shape[0]);
}

static void fill(const tarn__call *call)
{
    tarn__call part = *call;
    tarn__fill fill = {.value = ((const tarn__spread *)call->params)->value};
    part.inputs = 0;
    part.params = &fill;
    part.params_bytes = sizeof(fill);
    tarn__cl_rows()[TARN__K_fill].run(&part);
}

/* Which part of each axis of y is x, as moves.cl has it. */
typedef struct window {
    int32_t begin[TARN_MAX_RANK], size[TARN_MAX_RANK];
} window;

/* y and x over the axes of y, of which neighbours that are x from end to end are one. */
static void make_window(const tarn__call *call, tarn__nest *nest, window *w)
{
    const tarn__spread *spread = call->params;
    const tarn__view *y = call->out[0], *x = call->in[0];
    *nest = (tarn__nest){.operands = 2, .count = tarn__view_count(y)};
    *w = (window){{0}, {0}};
    for (int i = 0; i < y->rank; i++) {
        const int last = nest->rank - 1;
        const bool is_whole = x->shape[i] == y->shape[i];
        if (y->shape[i] == 1)
            continue;
        if (is_whole && last >= 0 && w->size[last] == nest->shape[last] && nest->stride[0][last] == y->stride[i] * y->shape[i] &&
            nest->stride[1][last] == x->stride[i] * x->shape[i]) {
            nest->shape[last] *= y->shape[i];
            w->size[last] = (int32_t)nest->shape[last];
            nest->stride[0][last] = y->stride[i];
            nest->stride[1][last] = x->stride[i];
            continue;
        }
        w->begin[nest->rank] = (int32_t)spread->begin[i];
        w->size[nest->rank] = (int32_t)x->shape[i];
        nest->shape[nest->rank] = y->shape[i];
        nest->stride[0][nest->rank] = y->stride[i];
        nest->stride[1][nest->rank++] = x->stride[i];
    }
}

/* Neighbours that are moved together are as many around x as in it. */
static int64_t in_units(const tarn__call *call, tarn__nest *nest, window *w)
{
    const tarn__view *views[] = {call->out[0], call->in[0]};
    const int last = nest->rank - 1;
    const int64_t unit = last < 0 ? 1 : tarn__cl_unit(nest, 3, views, w->begin[last] | w->size[last], tarn__dtype_bytes(views[0]->dtype));
    tarn__cl_in_units(nest, 3, unit);
    if (last >= 0) {
        w->begin[last] /= (int32_t)unit;
        w->size[last] /= (int32_t)unit;
    }
    return unit;
}

/* On a GPU, each element of y once: from x or the number. False, and nothing is done, where x has other steps or sizes are large. */
static bool spread_once(const tarn__call *call)
{
    const tarn__spread *spread = call->params;
    const size_t size = tarn__dtype_bytes(call->out[0]->dtype);
    unsigned char bits[16];
    tarn__nest nest;
    window w;
    bool is_good = tarn__cl_at(call->device)->in_lockstep && tarn__view_count(call->out[0]) < INT32_MAX && tarn__view_count(call->in[0]) > 0 &&
                   call->in[0]->dtype == call->out[0]->dtype;
    for (int i = 0; i < call->out[0]->rank; i++)
        is_good = is_good && (spread->step[i] == 1 || call->in[0]->shape[i] == 1);
    if (!is_good)
        return false;
    make_window(call, &nest, &w);
    const int64_t unit = in_units(call, &nest, &w);
    const tarn__view to = tarn__cl_view_in_units(call->out[0], unit), from = tarn__cl_view_in_units(call->in[0], unit);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, TARN__CL_F32);
    tarn__cl_option(&options, " -DBITS=%s", tarn__cl_bits(size * (size_t)unit));
    if (!tarn__cl_option_index(&options, &nest))
        return false;
    for (int64_t i = 0; i < unit; i++)
        tarn__cl_write_element(call->out[0]->dtype, &spread->value, bits + (size_t)i * size);
    tarn__cl_launch launch = tarn__cl_begin(call, "moves", "spread", options.text);
    tarn__cl_places(&launch, true, &nest);
    tarn__cl_value(&launch, &w, sizeof(w));
    tarn__cl_int(&launch, (int32_t)nest.count);
    tarn__cl_view(&launch, &to);
    tarn__cl_view(&launch, &from);
    tarn__cl_value(&launch, bits, size * (size_t)unit);
    tarn__cl_over(&launch, (nest.count + PER - 1) / PER);
    return true;
}

/* In one pass, or the number everywhere first, then the elements. */
static void kernel_spread(const tarn__call *call)
{
    const tarn__spread *spread = call->params;
    tarn__view part_of_y = *call->out[0];
    if (tarn__view_count(&part_of_y) == 0 || spread_once(call))
        return;
    for (int i = 0; i < part_of_y.rank; i++) {
        part_of_y.offset += spread->begin[i] * part_of_y.stride[i];
        part_of_y.shape[i] = call->in[0]->shape[i];
        part_of_y.stride[i] *= spread->step[i];
    }
    fill(call);
    tarn__call part = *call;
    part.out[0] = &part_of_y;
    if (tarn__view_count(&part_of_y) > 0)
        tarn__cl_rows()[TARN__K_copy].run(&part);
}

void tarn__cl_moves(tarn__kernel_row *rows)
{
    rows[TARN__K_arange] = (tarn__kernel_row){kernel_arange, TARN__NUMBERS, NULL};
    rows[TARN__K_spread] = (tarn__kernel_row){kernel_spread, TARN__ALL, NULL};
}

/* copy.c: copies with any strides and dtypes, and fill.
 *
 * Copies within a dtype move bits: contiguous ones by the driver's copy, transposed ones on a GPU through tiles
 * (transpose.c), misaligned rows by window.c, all others by copy.cl. */
#include <string.h>

#include "backends/opencl/common/element.h"
#include "base/half.h"

#define RUN 256 /* elements per work-item, as in copy.cl: of a row, */
#define PER 4   /* or in lockstep */

/* In lockstep work-items have PER elements each and may index with 32 bits; else each has a run of the last axis, and
 * indexes with 64. */
static bool option_index(const tarn__call *call, const tarn__nest *nest, tarn__cl_options *options)
{
    return tarn__cl_device_at(call->device)->in_lockstep && tarn__cl_option_index(options, nest);
}

/* The first arguments of all kernels of copy.cl. */
static void arg_indexer(tarn__cl_launch *launch, bool is_small, const tarn__nest *nest)
{
    tarn__cl_arg_indexer(launch, is_small, nest);
    tarn__cl_arg_index(launch, is_small, nest->count);
}

/* The grid that matches copy.cl: PER elements per work-item, or runs of RUN along the last axis. */
static void enqueue_runs(tarn__cl_launch *launch, const tarn__nest *nest)
{
    int64_t size = nest->rank > 0 ? nest->shape[nest->rank - 1] : 1;
    bool in_lockstep = launch->good && launch->device->in_lockstep;
    tarn__cl_enqueue_elements(launch, in_lockstep ? (nest->count + PER - 1) / PER
                                                  : nest->count / size * ((size + RUN - 1) / RUN));
}

/* Options of a converting copy. One into f64, where the device has none, is made not to compile. */
static void option_kinds(const tarn__call *call, tarn__cl_options *options)
{
    tarn_dtype from = call->in[0]->dtype, to = call->out[0]->dtype;
    const tarn__cl_device *d = tarn__cl_device_at(call->device);
    tarn__cl_option(options, "-DFROM=%s -DKIND=%s%s%s", tarn__cl_dtype_name(from),
                    from == TARN_F64       ? "double"
                    : tarn__is_float(from) ? "float"
                                           : "long",
                    from == TARN_F64 ? " -DFROM_F64" : "", to == TARN_F64 && d && !d->has_f64 ? " -DTO_F64" : "");
}

/* On a GPU adjacent elements are moved as one vector where both sides allow. */
static void move(const tarn__call *call, tarn__nest *nest)
{
    const tarn__view *views[] = {call->out[0], call->in[0]};
    const size_t size = tarn__dtype_bytes(views[0]->dtype);
    int64_t width = tarn__cl_device_at(call->device)->in_lockstep ? tarn__cl_vec_width(nest, 3, views, 0, size) : 1;
    tarn__cl_nest_in_vecs(nest, 3, width);
    tarn__view to = tarn__cl_view_in_vecs(views[0], width), from = tarn__cl_view_in_vecs(views[1], width);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option(&options, "-DBITS=%s", tarn__cl_bits(size * (size_t)width));
    bool is_small = option_index(call, nest, &options);
    tarn__cl_launch launch = tarn__cl_begin(call, "copy", "move", options.text);
    arg_indexer(&launch, is_small, nest);
    tarn__cl_arg_view(&launch, &to);
    tarn__cl_arg_view(&launch, &from);
    enqueue_runs(&launch, nest);
}

/* Contiguous rows whose alignment does not allow vectors of 8 bytes, on a GPU. False, and nothing is done, for others.
 */
static bool move_misaligned(const tarn__call *call, const tarn__nest *nest)
{
    const tarn__view *views[] = {call->out[0], call->in[0]};
    const size_t size = tarn__dtype_bytes(views[0]->dtype);
    tarn__pad_axis axis[TARN_MAX_RANK];
    int last = nest->rank - 1;
    if (last < 0 || nest->stride[0][last] != 1 || nest->stride[1][last] != 1 ||
        (size_t)tarn__cl_vec_width(nest, 3, views, 0, size) * size >= 8)
        return false;
    for (int i = 0; i <= last; i++)
        axis[i] = (tarn__pad_axis){nest->shape[i], 0, nest->shape[i], 1, nest->stride[0][i], nest->stride[1][i]};
    return tarn__cl_window(call, axis, nest->rank, &(tarn__scalar){0, 0});
}

/* A copy between dtypes, by way of the compute type of the source. */
static void convert(const tarn__call *call, const tarn__nest *nest)
{
    tarn__cl_options options = {.length = 0};
    option_kinds(call, &options);
    bool is_small = option_index(call, nest, &options);
    tarn__cl_launch launch = tarn__cl_begin(call, "copy", "convert", options.text);
    arg_indexer(&launch, is_small, nest);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_int(&launch, (int32_t)call->out[0]->dtype);
    enqueue_runs(&launch, nest);
}

/* Bytes: the source read once, the target written once. */
static void kernel_copy(const tarn__call *call)
{
    const tarn__view *to = call->out[0], *from = call->in[0], *views[] = {to, from};
    int64_t size = (int64_t)tarn__dtype_bytes(to->dtype);
    tarn__nest nest;
    tarn__nest_make(&nest, 2, views);
    if (nest.count == 0)
        return;
    /* from the most specialized to the most general */
    if (from->dtype != to->dtype)
        convert(call, &nest);
    else if (tarn__nest_is_contiguous(&nest, 0) && tarn__nest_is_contiguous(&nest, 1))
        tarn__cl_copy_bytes(call, to->memory, to->offset * size, from->memory, from->offset * size,
                            (size_t)(nest.count * size));
    else if (!tarn__cl_transpose(call, &nest) && !move_misaligned(call, &nest))
        move(call, &nest);
}

void tarn__cl_write_element(tarn_dtype dtype, const tarn__scalar *value, void *bits)
{
    float f32 = (float)value->real;
    uint16_t half = dtype == TARN_BF16 ? tarn__f32_to_bf16(f32) : tarn__f32_to_f16(f32);
    int32_t i32 = (int32_t)(uint32_t)(uint64_t)value->integer;
    uint8_t byte = dtype == TARN_BOOL ? value->real != 0 : (uint8_t)value->integer;
    const void *from = dtype == TARN_F32                         ? (const void *)&f32
                       : dtype == TARN_F64                       ? (const void *)&value->real
                       : dtype == TARN_I32                       ? (const void *)&i32
                       : dtype == TARN_I64                       ? (const void *)&value->integer
                       : dtype == TARN_BF16 || dtype == TARN_F16 ? (const void *)&half
                                                                 : (const void *)&byte;
    memcpy(bits, from, tarn__dtype_bytes(dtype));
}

/* The value is passed as bits of one element or vector. */
static void kernel_fill(const tarn__call *call)
{
    const tarn__fill *fill = call->params;
    const tarn__view *to = call->out[0];
    unsigned char bits[16];
    tarn__nest nest;
    tarn__nest_make(&nest, 1, &to);
    if (nest.count == 0)
        return;
    size_t size = tarn__dtype_bytes(to->dtype);
    int64_t width = tarn__cl_device_at(call->device)->in_lockstep ? tarn__cl_vec_width(&nest, 1, &to, 0, size) : 1;
    tarn__cl_nest_in_vecs(&nest, 1, width);
    tarn__view whole = tarn__cl_view_in_vecs(to, width);
    for (int64_t i = 0; i < width; i++)
        tarn__cl_write_element(to->dtype, &fill->value, bits + (size_t)i * size);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option(&options, "-DBITS=%s", tarn__cl_bits(size * (size_t)width));
    bool is_small = option_index(call, &nest, &options);
    tarn__cl_launch launch = tarn__cl_begin(call, "copy", "fill", options.text);
    arg_indexer(&launch, is_small, &nest);
    tarn__cl_arg_view(&launch, &whole);
    tarn__cl_arg_value(&launch, bits, size * (size_t)width);
    enqueue_runs(&launch, &nest);
}

void tarn__cl_register_copy(tarn__kernel_row *rows)
{
    rows[TARN__K_copy] = tarn__row(kernel_copy, TARN__ALL);
    rows[TARN__K_fill] = tarn__row(kernel_fill, TARN__ALL);
}

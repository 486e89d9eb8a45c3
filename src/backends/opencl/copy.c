/* copy.c: copies with any strides and dtypes, and one number everywhere. Copies within one dtype move bits: where both sides lie in one piece, by the
 * driver's copy; else by rows (copy.cl). */
#include <string.h>

#include "backends/opencl/element.h"
#include "base/half.h"

#define RUN 256 /* elements a work-item moves, as copy.cl has them: of a row, */
#define PER 4   /* and where work-items run in lockstep */

static const char *bits_of_size(size_t bytes)
{
    return bytes == 8 ? "-DBITS=ulong" : bytes == 4 ? "-DBITS=uint" : bytes == 2 ? "-DBITS=ushort" : "-DBITS=uchar";
}

/* True when operand k's elements lie in one piece, in the nest's order. */
static bool is_piece(const tarn__nest *nest, int k)
{
    int64_t expected = 1;
    for (int i = nest->rank - 1; i >= 0; i--) {
        if (nest->stride[k][i] != expected)
            return false;
        expected *= nest->shape[i];
    }
    return true;
}

/* One item a run of the last axis, or some elements. */
static void go_in_runs(tarn__cl_launch *launch, const tarn__nest *nest)
{
    int64_t size = nest->rank > 0 ? nest->shape[nest->rank - 1] : 1;
    bool in_lockstep = launch->good && launch->device->in_lockstep;
    tarn__cl_over(launch, in_lockstep ? (nest->count + PER - 1) / PER : nest->count / size * ((size + RUN - 1) / RUN));
}

/* Where work-items divide places out for each element they do it in 32 bits, if those are enough. */
static void name_index(const tarn__call *call, const tarn__nest *nest, tarn__cl_options *options)
{
    if (tarn__cl_at(call->device)->in_lockstep)
        tarn__cl_option_index(options, nest);
}

/* The options of a copy that converts. One into f64, where the device has none, is made not to compile. */
static void name_kinds(const tarn__call *call, tarn__cl_options *options)
{
    tarn_dtype from = call->in[0]->dtype, to = call->out[0]->dtype;
    const tarn__cl_device *d = tarn__cl_at(call->device);
    tarn__cl_option(options, "-DFROM=%s -DKIND=%s%s%s", tarn__cl_type(from), from == TARN_F64 ? "double" : tarn__is_float(from) ? "float" : "long",
             from == TARN_F64 ? " -DFROM_F64" : "", to == TARN_F64 && d && !d->has_f64 ? " -DTO_F64" : "");
}

static void kernel_copy(const tarn__call *call)
{
    const tarn__view *to = call->out[0], *from = call->in[0], *views[] = {to, from};
    size_t size = tarn__dtype_bytes(to->dtype);
    tarn__cl_options options = {.length = 0};
    tarn__nest nest;
    tarn__nest_make(&nest, 2, views);
    if (nest.count == 0)
        return;
    if (from->dtype == to->dtype && is_piece(&nest, 0) && is_piece(&nest, 1)) {
        tarn__cl_copy_bytes(call, to->memory, to->offset * (int64_t)size, from->memory, from->offset * (int64_t)size, (size_t)nest.count * size);
        return;
    }
    if (from->dtype == to->dtype)
        tarn__cl_option(&options, "%s", bits_of_size(size));
    else
        name_kinds(call, &options);
    name_index(call, &nest, &options);
    tarn__cl_launch launch = tarn__cl_begin(call, "copy", from->dtype == to->dtype ? "move" : "convert", options.text);
    tarn__cl_value(&launch, &nest, sizeof(nest));
    tarn__cl_view(&launch, to);
    tarn__cl_view(&launch, from);
    if (from->dtype != to->dtype)
        tarn__cl_int(&launch, (int32_t)to->dtype);
    go_in_runs(&launch, &nest);
}

/* The bits of one element; 16-bit floats by way of f32, as on the CPU. */
static void write_element(tarn_dtype dtype, const tarn__number *value, void *bits)
{
    float f32 = (float)value->real;
    uint16_t half = dtype == TARN_BF16 ? tarn__f32_to_bf16(f32) : tarn__f32_to_f16(f32);
    int32_t i32 = (int32_t)(uint32_t)(uint64_t)value->integer;
    uint8_t byte = dtype == TARN_BOOL ? value->real != 0 : (uint8_t)value->integer;
    const void *from = dtype == TARN_F32 ? (const void *)&f32 : dtype == TARN_F64 ? (const void *)&value->real : dtype == TARN_I32 ? (const void *)&i32 :
                       dtype == TARN_I64 ? (const void *)&value->integer : dtype == TARN_BF16 || dtype == TARN_F16 ? (const void *)&half : (const void *)&byte;
    memcpy(bits, from, tarn__dtype_bytes(dtype));
}

static void kernel_fill(const tarn__call *call)
{
    const tarn__fill *fill = call->params;
    const tarn__view *to = call->out[0];
    unsigned char bits[8];
    tarn__nest nest;
    tarn__nest_make(&nest, 1, &to);
    if (nest.count == 0)
        return;
    size_t size = tarn__dtype_bytes(to->dtype);
    write_element(to->dtype, &fill->value, bits);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option(&options, "%s", bits_of_size(size));
    name_index(call, &nest, &options);
    tarn__cl_launch launch = tarn__cl_begin(call, "copy", "fill", options.text);
    tarn__cl_value(&launch, &nest, sizeof(nest));
    tarn__cl_view(&launch, to);
    tarn__cl_value(&launch, bits, size);
    go_in_runs(&launch, &nest);
}

void tarn__cl_copy(tarn__kernel_row *rows)
{
    rows[TARN__K_copy] = (tarn__kernel_row){kernel_copy, TARN__ALL, NULL};
    rows[TARN__K_fill] = (tarn__kernel_row){kernel_fill, TARN__ALL, NULL};
}

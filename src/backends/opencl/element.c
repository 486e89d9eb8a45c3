/* element.c: options and arguments that kernels over elements share. */
#include "backends/opencl/element.h"

#include <stdarg.h>
#include <stdio.h>

void tarn__cl_option(tarn__cl_options *options, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof(options->text) - options->length;
    int written = vsnprintf(options->text + options->length, room, format, arguments);
    va_end(arguments);
    if (written > 0)
        options->length += (size_t)written < room ? (size_t)written : room - 1;
}

tarn__cl_compute tarn__cl_compute_of(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? TARN__CL_F64 : tarn__is_float(dtype) ? TARN__CL_F32 : TARN__CL_I64;
}

void tarn__cl_option_compute(tarn__cl_options *options, tarn__cl_compute compute)
{
    static const char *const text[] = {"-DC=float -DCOMPUTES_F32", "-DC=double -DCOMPUTES_F64", "-DC=long -DCOMPUTES_I64"};
    tarn__cl_option(options, "%s", text[compute]);
}

static int64_t reach(const tarn__nest *nest, int operand)
{
    int64_t far = 0;
    for (int i = 0; i < nest->rank; i++) {
        int64_t stride = nest->stride[operand][i];
        far += (nest->shape[i] - 1) * (stride < 0 ? -stride : stride);
    }
    return far;
}

/* Some room is left at the top, so that sums of an index and a group's size do not overflow. */
bool tarn__cl_option_index(tarn__cl_options *options, const tarn__nest *nest)
{
    const int64_t most = INT32_MAX - 65536;
    bool is_small = nest->count < most;
    for (int k = 0; k < nest->operands; k++)
        is_small = is_small && reach(nest, k) < most;
    tarn__cl_option(options, " -DINDEX=%s", is_small ? "int" : "long");
    return is_small;
}

void tarn__cl_nest_in_order(tarn__nest *nest, int operands, const tarn__view *const *views)
{
    *nest = (tarn__nest){.operands = operands, .count = tarn__view_count(views[0])};
    for (int i = 0; i < views[0]->rank; i++) {
        if (views[0]->shape[i] == 1)
            continue;
        nest->shape[nest->rank] = views[0]->shape[i];
        for (int k = 0; k < operands; k++)
            nest->stride[k][nest->rank] = views[k] ? views[k]->stride[i] : 0;
        nest->rank++;
    }
}

void tarn__cl_number(tarn__cl_launch *launch, tarn__cl_compute compute, tarn__number value)
{
    float narrow = (float)value.real;
    if (compute == TARN__CL_F32)
        tarn__cl_value(launch, &narrow, sizeof(narrow));
    else if (compute == TARN__CL_F64)
        tarn__cl_value(launch, &value.real, sizeof(value.real));
    else
        tarn__cl_long(launch, value.integer);
}

void tarn__cl_index(tarn__cl_launch *launch, bool is_small, int64_t value)
{
    if (is_small)
        tarn__cl_int(launch, (int32_t)value);
    else
        tarn__cl_long(launch, value);
}

void tarn__cl_over(tarn__cl_launch *launch, int64_t count)
{
    size_t global = (size_t)count;
    tarn__cl_go(launch, 1, &global, NULL);
}

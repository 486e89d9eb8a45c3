/* element.c: options and arguments shared by kernels over elements; see element.h. */
#include "backends/opencl/common/element.h"

#include <stdarg.h>
#include <stdio.h>

/* snprintf() at the end of the options so far. */
void tarn__cl_option(tarn__cl_options *options, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t space = sizeof(options->text) - options->length;
    int written = vsnprintf(options->text + options->length, space, format, arguments);
    va_end(arguments);
    if (written > 0)
        options->length += (size_t)written < space ? (size_t)written : space - 1;
}

tarn__cl_compute tarn__cl_compute_of(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? TARN__CL_F64 : tarn__is_float(dtype) ? TARN__CL_F32 : TARN__CL_I64;
}

void tarn__cl_option_compute(tarn__cl_options *options, tarn__cl_compute compute)
{
    static const char *const text[] = {"-DC=float -DCOMPUTES_F32", "-DC=double -DCOMPUTES_F64",
                                       "-DC=long -DCOMPUTES_I64"};
    tarn__cl_option(options, "%s", text[compute]);
}

/* The largest distance of an element from the first, whatever the signs of strides. */
static int64_t max_offset(const tarn__nest *nest, int operand)
{
    int64_t offset = 0;
    for (int i = 0; i < nest->rank; i++) {
        int64_t stride = nest->stride[operand][i];
        offset += (nest->shape[i] - 1) * (stride < 0 ? -stride : stride);
    }
    return offset;
}

/* The limit leaves a margin below 2^31, so that an index plus a group size does not overflow. */
bool tarn__cl_nest_is_small(const tarn__nest *nest)
{
    const int64_t limit = INT32_MAX - 65536;
    bool is_small = nest->count < limit;
    for (int k = 0; k < nest->operands; k++)
        is_small = is_small && max_offset(nest, k) < limit;
    return is_small;
}

void tarn__cl_option_small(tarn__cl_options *options, bool is_small)
{
    tarn__cl_option(options, " -DINDEX=%s", is_small ? "int -DIS_SMALL" : "long");
}

bool tarn__cl_option_index(tarn__cl_options *options, const tarn__nest *nest)
{
    const bool is_small = tarn__cl_nest_is_small(nest);
    tarn__cl_option_small(options, is_small);
    return is_small;
}

/* Unlike tarn__nest_make() it neither reorders nor merges axes: random numbers and one_hot depend on the order. */
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

void tarn__cl_arg_scalar(tarn__cl_launch *launch, tarn__cl_compute compute, tarn__scalar value)
{
    float narrow = (float)value.real;
    if (compute == TARN__CL_F32)
        tarn__cl_arg_value(launch, &narrow, sizeof(narrow));
    else if (compute == TARN__CL_F64)
        tarn__cl_arg_value(launch, &value.real, sizeof(value.real));
    else
        tarn__cl_arg_long(launch, value.integer);
}

void tarn__cl_arg_index(tarn__cl_launch *launch, bool is_small, int64_t value)
{
    if (is_small)
        tarn__cl_arg_int(launch, (int32_t)value);
    else
        tarn__cl_arg_long(launch, value);
}

/* The struct `indexer` of prelude.cl with IS_SMALL. */
typedef struct small_indexer {
    int32_t rank;
    int32_t shape[TARN_MAX_RANK];
    uint32_t factor[TARN_MAX_RANK];
    int32_t shift[TARN_MAX_RANK];
    int32_t stride[TARN__MAX_OPERANDS][TARN_MAX_RANK];
} small_indexer;

/* With 2^s the smallest power of two not below size, factor = floor(2^(31 + s) / size) + 1 < 2^32. It exceeds the exact
 * quotient by at most 1, so that n times the excess is below 2^31 <= 2^(31 + s) / size. */
void tarn__cl_fast_divisor(int64_t size, uint32_t *factor, int32_t *shift)
{
    int s = 1;
    while ((INT64_C(1) << s) < size)
        s++;
    *factor = (uint32_t)((UINT64_C(1) << (31 + s)) / (uint64_t)size + 1);
    *shift = s - 1;
}

void tarn__cl_arg_indexer(tarn__cl_launch *launch, bool is_small, const tarn__nest *nest)
{
    small_indexer p = {.rank = nest->rank};
    if (!is_small) {
        tarn__cl_arg_value(launch, nest, sizeof(*nest));
        return;
    }
    for (int i = 0; i < nest->rank; i++) {
        p.shape[i] = (int32_t)nest->shape[i];
        tarn__cl_fast_divisor(nest->shape[i], &p.factor[i], &p.shift[i]);
        for (int k = 0; k < nest->operands; k++)
            p.stride[k][i] = (int32_t)nest->stride[k][i];
    }
    tarn__cl_arg_value(launch, &p, sizeof(p));
}

/* ---- vectors ---------------------------------------------------------------------------------------------------- */

/* True when moved operands have unit stride and aligned offsets for this width, and the others do not change. */
static bool is_vector(const tarn__nest *nest, unsigned moved, const tarn__view *const *views, int64_t width)
{
    int last = nest->rank - 1;
    for (int k = 0; k < nest->operands; k++) {
        bool is_moved = moved >> k & 1;
        if (nest->stride[k][last] != is_moved || (is_moved && views[k]->offset % width != 0))
            return false;
        for (int i = 0; i < last && is_moved; i++)
            if (nest->stride[k][i] % width != 0)
                return false;
    }
    return nest->shape[last] % width == 0;
}

int64_t tarn__cl_vec_width(const tarn__nest *nest, unsigned moved, const tarn__view *const *views, int64_t step,
                           size_t bytes)
{
    int64_t width = nest->rank > 0 ? 16 / (int64_t)bytes : 1;
    while (width > 1 && (step % width != 0 || !is_vector(nest, moved, views, width)))
        width /= 2;
    return width;
}

/* Strides of moved operands are divided by the width; others keep theirs, since they do not move along the axis. */
void tarn__cl_nest_in_vecs(tarn__nest *nest, unsigned moved, int64_t width)
{
    int last = nest->rank - 1;
    if (width == 1)
        return;
    nest->count /= width;
    nest->shape[last] /= width;
    for (int k = 0; k < nest->operands; k++)
        for (int i = 0; i < last && (moved >> k & 1); i++)
            nest->stride[k][i] /= width;
    nest->rank -= nest->shape[last] == 1;
}

tarn__view tarn__cl_view_in_vecs(const tarn__view *view, int64_t width)
{
    tarn__view in_vectors = *view;
    in_vectors.offset /= width;
    return in_vectors;
}

const char *tarn__cl_bits(size_t bytes)
{
    return bytes == 16 ? "uint4" : bytes == 8 ? "ulong" : bytes == 4 ? "uint" : bytes == 2 ? "ushort" : "uchar";
}

void tarn__cl_enqueue_elements(tarn__cl_launch *launch, int64_t count)
{
    size_t global = (size_t)count;
    tarn__cl_enqueue(launch, 1, &global, NULL);
}

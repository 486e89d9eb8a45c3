/* transpose.c: copies that permute axes: the launcher of transpose.cl. */
#include "backends/opencl/common/element.h"
#include "backends/opencl/common/rows.h"

#define GROUP 256
#define MIN_SIDE 16 /* of a matrix worth a tile: less would leave most of it empty */

/* The axis along which the source is contiguous, if long enough; -1: none. */
static int source_axis(const tarn__nest *nest)
{
    int last = nest->rank - 1;
    if (nest->rank < 2 || nest->stride[0][last] != 1 || nest->stride[1][last] == 1 || nest->shape[last] < MIN_SIDE)
        return -1;
    for (int i = 0; i < last; i++)
        if (nest->stride[1][i] == 1 && nest->shape[i] >= MIN_SIDE)
            return i;
    return -1;
}

/* The nest without that axis and the last one. */
static tarn__nest others_of(const tarn__nest *nest, int axis)
{
    tarn__nest others = {.operands = 2, .count = nest->count / nest->shape[axis] / nest->shape[nest->rank - 1]};
    for (int i = 0; i < nest->rank - 1; i++) {
        if (i == axis)
            continue;
        others.shape[others.rank] = nest->shape[i];
        for (int k = 0; k < 2; k++)
            others.stride[k][others.rank] = nest->stride[k][i];
        others.rank++;
    }
    return others;
}

/* a / b, rounded up. */
static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Not good where the driver limits groups below one work-item per element of a tile's side. */
static tarn__cl_launch try_tile(const tarn__call *call, const tarn__nest *nest, size_t bytes, size_t side,
                                size_t *group)
{
    tarn__cl_launch launch = {.good = false};
    for (*group = tarn__cl_group_size(tarn__cl_device_at(call->device), GROUP); !launch.good && *group >= side;) {
        tarn__cl_options options = {.length = 0};
        tarn__cl_option(&options, "-DBITS=%s -DSIDE=%zu -DGROUP=%zu", tarn__cl_bits(bytes), side, *group);
        if (!tarn__cl_option_index(&options, nest))
            return launch;
        launch = tarn__cl_try(call, "transpose", "transpose", options.text, *group);
        *group = launch.good ? *group : tarn__cl_max_group(&launch);
    }
    return launch;
}

/* A tile per work-group: 32 by 32 elements, or 64 by 64 below 4 bytes. Bytes: read once, written once. */
bool tarn__cl_transpose(const tarn__call *call, const tarn__nest *nest)
{
    const size_t bytes = tarn__dtype_bytes(call->out[0]->dtype), side = bytes < 4 ? 64 : 32;
    const int axis = source_axis(nest), last = nest->rank - 1;
    size_t group;
    if (!tarn__cl_device_at(call->device)->has_local_memory || axis < 0)
        return false;
    tarn__cl_launch launch = try_tile(call, nest, bytes, side, &group);
    if (!launch.good)
        return false;
    /* a grid of tiles over the two axes, times the others */
    tarn__nest others = others_of(nest, axis);
    const int64_t across = ceiling(nest->shape[last], (int64_t)side), down = ceiling(nest->shape[axis], (int64_t)side);
    tarn__cl_arg_indexer(&launch, true, &others);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_int(&launch, (int32_t)nest->shape[last]);
    tarn__cl_arg_int(&launch, (int32_t)nest->shape[axis]);
    tarn__cl_arg_int(&launch, (int32_t)across);
    tarn__cl_arg_int(&launch, (int32_t)down);
    tarn__cl_arg_int(&launch, (int32_t)nest->stride[0][axis]);
    tarn__cl_arg_int(&launch, (int32_t)nest->stride[1][last]);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)(across * down * others.count) * group}, &group);
    return true;
}

/* shard.c: ranges of ranks in flat tensors, and their exchange (shard.h). */
#include "parallel/shard.h"

#include <tarn/ops.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "core/device/device.h"
#include "core/tensor/tensor.h"

/* Computed without units * rank, which could overflow. */
int64_t tarn__shard_begin(const tarn_comm *comm, int64_t count, int rank)
{
    int64_t size = comm ? comm->size : 1, units = (count + TARN__SHARD_UNIT - 1) / TARN__SHARD_UNIT,
            begin = (units / size * rank + units % size * rank / size) * TARN__SHARD_UNIT;
    return begin < count ? begin : count;
}

int tarn__shard_neighbour(const tarn_comm *comm, int64_t count, int direction)
{
    for (int rank = comm->rank + direction; rank >= 0 && rank < comm->size; rank += direction)
        if (tarn__shard_begin(comm, count, rank) < tarn__shard_begin(comm, count, rank + 1))
            return rank;
    return -1;
}

/* `whole` is on the host. */
static bool gather(tarn_comm *comm, tarn_tensor *whole)
{
    size_t bytes = sizeof(size_t) * (size_t)comm->size, *sizes = tarn__alloc(bytes);
    int64_t count = tarn_count(whole), element = (int64_t)tarn__dtype_bytes(tarn_dtype_of(whole));
    char *memory = sizes ? tarn_data(whole) : NULL;
    for (int i = 0; sizes && i < comm->size; i++)
        sizes[i] = (size_t)((tarn__shard_begin(comm, count, i + 1) - tarn__shard_begin(comm, count, i)) * element);
    bool good = memory && tarn_comm_all_gather(comm, memory + tarn__shard_begin(comm, count, comm->rank) * element,
                                               memory, sizes);
    tarn__release(sizes, bytes);
    return good;
}

bool tarn__shard_gather(const char *function, tarn_comm *comm, tarn_tensor *whole)
{
    if (!comm || comm->size == 1 || tarn_count(whole) == 0 || tarn__is_meta(tarn_device_of(whole)))
        return true;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *on_host = scope ? tarn_to(whole, tarn_device_cpu()) : NULL;
    bool good = on_host && gather(comm, on_host) && (on_host == whole || tarn_copy(whole, on_host));
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}

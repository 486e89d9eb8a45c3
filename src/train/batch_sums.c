/* batch_sums.c: sums over batches that ranks share (batch_sums.h). */
#include "train/batch_sums.h"

#include <string.h>
#include <tarn/ops.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/prefetch.h"
#include "train/trainer.h"

static int size_of(const tarn__ranks *ranks)
{
    return ranks && ranks->size > 1 ? ranks->size : 1;
}

/* Batches of a rank: those whose number leaves it as the remainder. */
static int64_t batches_of(const tarn__batch_sums *s, int rank)
{
    return (s->batches - rank + size_of(s->ranks) - 1) / size_of(s->ranks);
}

static int64_t own_batches(const tarn__batch_sums *s)
{
    return batches_of(s, s->ranks ? s->ranks->rank : 0);
}

bool tarn__batch_sums_open(tarn__batch_sums *sums, const tarn__ranks *ranks, tarn_loader *loader, int columns,
                           tarn_device device)
{
    *sums = (tarn__batch_sums){.ranks = ranks, .columns = columns, .batches = tarn_loader_batches(loader)};
    if (tarn_failed())
        return false;
    int64_t own = own_batches(sums);
    if (size_of(ranks) > 1)
        tarn__loader_select(loader, sums->batches, ranks->size, ranks->rank, ranks->rank + 1);
    sums->values = tarn_zeros(TARN_SHAPE(own > 0 ? own : 1, columns), TARN_F64, device);
    return sums->values != NULL;
}

bool tarn__batch_sums_add(tarn__batch_sums *sums, tarn_tensor *const *values)
{
    bool good = true;
    tarn_tensor *row = tarn_slice(sums->values, 0, sums->added, sums->added + 1);
    for (int i = 0; good && i < sums->columns; i++)
        good = tarn_copy(tarn_slice(row, 1, i, i + 1), tarn_reshape(values[i], TARN_SHAPE(1, 1)));
    sums->added++;
    return good;
}

/* Gives all ranks the rows of all, one rank after the other. */
static bool gather(const tarn__batch_sums *s, const double *own, double *all)
{
    int size = size_of(s->ranks);
    size_t bytes = sizeof(size_t) * (size_t)size, *sizes = tarn__alloc(bytes);
    for (int i = 0; sizes && i < size; i++)
        sizes[i] = sizeof(double) * (size_t)(batches_of(s, i) * s->columns);
    bool good = sizes && tarn__ranks_gather(s->ranks, own, all, sizes);
    tarn__release(sizes, bytes);
    return good;
}

/* Row of a batch among the gathered ones. */
static int64_t row_of(const tarn__batch_sums *s, int64_t batch)
{
    int rank = (int)(batch % size_of(s->ranks));
    int64_t row = batch / size_of(s->ranks);
    for (int i = 0; i < rank; i++)
        row += batches_of(s, i);
    return row;
}

bool tarn__batch_sums_read(const tarn__batch_sums *sums, double *sum)
{
    int64_t rows = tarn_size(sums->values, 0), columns = sums->columns,
            all_rows = sums->batches > rows ? sums->batches : rows;
    size_t bytes = sizeof(double) * (size_t)(all_rows * columns), own_bytes = sizeof(double) * (size_t)(rows * columns);
    double *all = tarn__alloc(bytes), *own = tarn__alloc(own_bytes);
    bool good = all && own && tarn_read_f64(sums->values, own, rows * columns);
    if (good && size_of(sums->ranks) > 1)
        good = gather(sums, own, all);
    else if (good)
        memcpy(all, own, own_bytes);
    memset(sum, 0, sizeof(double) * (size_t)columns);
    for (int64_t i = 0; good && i < sums->batches; i++)
        for (int64_t k = 0; k < columns; k++)
            sum[k] += all[row_of(sums, i) * columns + k];
    tarn__release(all, bytes);
    tarn__release(own, own_bytes);
    return good;
}

int64_t tarn__evaluation_batch(const tarn_trainer *t)
{
    return t->ranks.virtual_ranks > 1 ? t->micro_batch : t->batch_size;
}

bool tarn__ranks_add(const tarn__ranks *ranks, int64_t *values, int64_t count)
{
    int size = size_of(ranks);
    if (size == 1)
        return true;
    size_t own = sizeof(*values) * (size_t)count, list_bytes = sizeof(size_t) * (size_t)size,
           *sizes = tarn__alloc(list_bytes);
    int64_t *all = tarn__alloc(own * (size_t)size);
    for (int i = 0; sizes && i < size; i++)
        sizes[i] = own;
    bool good = sizes && all && tarn__ranks_gather(ranks, values, all, sizes);
    for (int64_t k = 0; good && k < count; k++) {
        values[k] = 0;
        for (int i = 0; i < size; i++)
            values[k] += all[i * count + k];
    }
    tarn__release(all, own * (size_t)size);
    tarn__release(sizes, list_bytes);
    return good;
}

/* safetensors_ranks.c: a safetensors file that several ranks write together.
 *
 * All ranks compute the same layout. Rank 0 creates the temporary file, whose name the others open; each writes its
 * ranges of the tensors. The checksum of a tensor that several ranks have is passed on: the rank of its first elements
 * begins it and the rank of its last ones ends it. Ranks go through the tensors in the same order, so that one which
 * waits for a checksum waits for a rank that is ahead. Last, ranks sync the file and send rank 0 the checksums that
 * they have ended: it writes those into the header and renames the file. */
#include <string.h>

#include "base/memory.h"
#include "core/tensor/tensor.h"
#include "formats/safetensors_writer.h"

enum { MAX_PATH = 4096 };

/* A checksum that a rank has ended. */
typedef struct ended_sum {
    uint64_t value, is_set;
} ended_sum;

typedef struct job {
    const tarn_safetensors_writer *writer;
    const tarn__file_ranks *ranks;
    tarn__output output;
    tarn__safetensors_head head;
    ended_sum *sums; /* [writer->count] */
} job;

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Rank 0 broadcasts the name of the temporary file; the others open it. */
static bool open_output(job *j)
{
    static const char *const function = "safetensors_finish";
    char path[MAX_PATH] = "";
    bool is_first = j->ranks->rank == 0;
    if (is_first && !tarn__output_open(&j->output, function, j->writer->path))
        return false;
    if (is_first && (j->output.memfile || strlen(j->output.temporary) >= sizeof(path))) {
        tarn__output_discard(&j->output);
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%s': several ranks can write files on disk only, with paths under %d bytes", function,
                           j->writer->path, MAX_PATH);
    }
    if (is_first)
        memcpy(path, j->output.temporary, strlen(j->output.temporary) + 1);
    if (j->ranks->broadcast(j->ranks->ctx, path, sizeof(path)))
        return is_first || tarn__output_join(&j->output, function, path);
    if (is_first)
        tarn__output_discard(&j->output);
    return false;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Bytes [*begin, *end) of an item that this rank writes; none: false. Whole tensors, and those without elements, are of
 * rank 0. */
static bool own_range(const job *j, const tarn__safetensors_item *one, int64_t *begin, int64_t *end)
{
    int64_t bytes = tarn__safetensors_item_bytes(one), unit = (int64_t)tarn__dtype_bytes(one->dtype);
    *begin = one->is_part ? one->begin * unit : 0;
    *end = !one->is_part ? bytes : one->tensor ? *begin + tarn_bytes(one->tensor) : *begin;
    if (!one->is_part || bytes == 0)
        return j->ranks->rank == 0;
    return *end > *begin;
}

/* Writes the own range of item `index`, which begins at `offset` of the file. */
static bool write_item(job *j, int index, int64_t offset)
{
    const tarn__safetensors_item *one = &j->writer->item[index];
    tarn__xxh64 sum;
    int64_t begin, end, bytes = tarn__safetensors_item_bytes(one);
    if (!own_range(j, one, &begin, &end))
        return true;
    tarn__xxh64_begin(&sum);
    if (begin > 0 && !j->ranks->receive(j->ranks->ctx, one->previous, &sum, sizeof(sum)))
        return false;
    bool good = tarn__output_seek(&j->output, offset + begin);
    j->output.sum = &sum;
    good = good && (one->tensor  ? tarn__write_tensor_bytes("safetensors_finish", one->tensor, &j->output)
                    : one->write ? one->write(&j->output, one->ctx)
                                 : true);
    j->output.sum = NULL;
    if (good && end < bytes)
        return j->ranks->send(j->ranks->ctx, one->next, &sum, sizeof(sum));
    j->sums[index] = (ended_sum){tarn__xxh64_end(&sum), 1};
    return good;
}

static bool write_items(job *j)
{
    int64_t offset = (int64_t)j->head.length;
    bool good = j->ranks->rank > 0 || tarn__output_write(&j->output, j->head.bytes, j->head.length);
    for (int i = 0; good && i < j->writer->count; i++) {
        good = write_item(j, i, offset);
        offset += tarn__safetensors_item_bytes(&j->writer->item[i]);
    }
    return good;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* A rank has ended a sum or not; sums of all ranks together are those of all items. */
static bool receive_sums(job *j)
{
    size_t bytes = sizeof(ended_sum) * (size_t)j->writer->count;
    ended_sum *theirs = tarn__alloc(bytes);
    bool good = theirs != NULL;
    for (int rank = 1; good && rank < j->ranks->size; rank++) {
        good = j->ranks->receive(j->ranks->ctx, rank, theirs, bytes);
        for (int i = 0; good && i < j->writer->count; i++)
            if (theirs[i].is_set)
                j->sums[i] = theirs[i];
    }
    for (int i = 0; good && j->head.values && i < j->writer->count; i++)
        tarn__checksum_put(j->head.bytes + j->head.values, i + 1, j->sums[i].value);
    tarn__release(theirs, bytes);
    return good;
}

/* The message of the others is the barrier: their ranges are on disk. */
static bool end_output(job *j)
{
    if (j->ranks->rank > 0)
        return tarn__output_close(&j->output) &&
               j->ranks->send(j->ranks->ctx, 0, j->sums, sizeof(ended_sum) * (size_t)j->writer->count);
    if (receive_sums(j) && tarn__safetensors_write_sums(&j->output, &j->head))
        return tarn__output_commit(&j->output);
    tarn__output_discard(&j->output);
    return false;
}

static bool write_file(job *j)
{
    if (!open_output(j))
        return false;
    if (write_items(j))
        return end_output(j);
    tarn__output_discard(&j->output);
    return false;
}

bool tarn__safetensors_finish_ranks(tarn_safetensors_writer *writer, const tarn__file_ranks *ranks)
{
    job j = {.writer = writer, .ranks = ranks};
    bool good = !tarn_failed() && writer && tarn__safetensors_lay_out(writer, &j.head);
    size_t bytes = good ? sizeof(*j.sums) * (size_t)writer->count : 0;
    if (good && (j.sums = tarn__alloc(bytes))) {
        memset(j.sums, 0, bytes);
        good = write_file(&j);
    }
    tarn__release(j.sums, j.sums ? bytes : 0);
    tarn__release(j.head.bytes, j.head.length);
    tarn_safetensors_cancel(writer);
    return good && !tarn_failed();
}

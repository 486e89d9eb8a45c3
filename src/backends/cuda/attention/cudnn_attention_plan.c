/* cudnn_attention_plan.c: attention plans, built once and cached in a list per device, and their execution chunk by
 * chunk.
 *
 * Engines are filtered by their numerical notes, as for convolutions: none that is not deterministic or that
 * down-converts operands or sums. The cuDNN lock guards the lists. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/attention/cudnn_attention.h"

#define MAX_ENGINES 64

static tarn__cudnn_attention_plan *lists[TARN__CUDA_MAX_DEVICES];

/* A plan, or a record that there is none; NULL if cuDNN itself fails. Not inside a capture: selecting an engine runs
 * and loads it. */
static tarn__cudnn_attention_plan *make_plan(int index, const tarn__cudnn_attention *a)
{
    tarn__cudnn_engine engines[MAX_ENGINES];
    tarn__cuda_device *device = tarn__cuda_at(index);
    if (!device)
        return NULL;
    if (device->is_capturing) {
        tarn__cuda_fail(
            "attention is not tuned: it was first called inside a capture; run the step once before capturing it");
        return NULL;
    }
    void *handle = tarn__cudnn_handle(index, device->stream);
    tarn__cudnn_attention_plan *plan = handle ? calloc(1, sizeof(*plan)) : NULL;
    if (!plan)
        return NULL;
    plan->attention = *a;
    plan->scale = (float)a->scale, plan->masked = -INFINITY, plan->one = 1;
    uint32_t excluded =
        TARN__CUDNN_NOT_DETERMINISTIC | TARN__CUDNN_DOWN_CONVERT_INPUTS | TARN__CUDNN_REDUCED_PRECISION_REDUCTION;
    int count = tarn__cudnn_attention_describe(&plan->graph, handle, a)
                    ? tarn__cudnn_find_engines(&plan->graph, excluded, engines, MAX_ENGINES)
                    : 0;
    plan->use_native = !tarn__cudnn_attention_tune(index, handle, plan, engines, count);
    tarn__cudnn_free_engines(engines, count);
    if (plan->use_native)
        tarn__cudnn_free_graph(&plan->graph);
    return plan;
}

/* A linear list: a model has few attention shapes. Call with the lock held. */
static tarn__cudnn_attention_plan *find_plan(int index, const tarn__cudnn_attention *a)
{
    tarn__cudnn_attention_plan *plan = lists[index];
    while (plan && memcmp(&plan->attention, a, sizeof(*a)) != 0)
        plan = plan->next;
    return plan;
}

tarn__cudnn_attention_plan *tarn__cudnn_attention_find_plan(int index, const tarn__cudnn_attention *a)
{
    tarn__cudnn_lock();
    tarn__cudnn_attention_plan *plan = find_plan(index, a);
    tarn__cudnn_unlock();
    return plan;
}

tarn__cudnn_attention_plan *tarn__cudnn_attention_plan_of(int index, const tarn__cudnn_attention *a)
{
    tarn__cudnn_lock();
    tarn__cudnn_attention_plan *plan = find_plan(index, a);
    if (!plan && (plan = make_plan(index, a)) != NULL) {
        plan->next = lists[index];
        lists[index] = plan;
    }
    tarn__cudnn_unlock();
    return plan;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Address of a 16-bit tensor from a batch and a KV head on. */
static void *chunk_of(const tarn__cudnn_attention *a, void *whole, int which, int64_t batch, int64_t kv_head)
{
    bool is_kv = tarn__attention_is_kv(which);
    int64_t head = is_kv ? kv_head : kv_head * (a->heads / a->kv_heads);
    return (uint16_t *)whole + batch * a->stride[which][0] + head * a->stride[which][1];
}

/* Executes one chunk with the tensors of the graph, in the order of their ids. */
static bool run_chunk(void *handle, tarn__cudnn_attention_plan *of, tarn__cudnn_plan *plan,
                      const tarn__cudnn_attention_operands *operands, int64_t batch, int64_t kv_head)
{
    const tarn__cudnn_attention *a = &of->attention;
    int64_t ids[TARN__ATTENTION_OPERANDS];
    void *addresses[TARN__ATTENTION_OPERANDS];
    int count = 0, last = a->is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y;
    for (int i = 0; i <= last; i++, count++)
        ids[count] = TARN__ATTENTION_ID(i), addresses[count] = chunk_of(a, operands->tensor[i], i, batch, kv_head);
    int64_t head = batch * a->heads + kv_head * (a->heads / a->kv_heads);
    ids[count] = TARN__ATTENTION_ID(TARN__ATTENTION_LSE), addresses[count++] = operands->lse + head * a->rows;
    ids[count] = TARN__ATTENTION_ID(TARN__ATTENTION_SCALE), addresses[count++] = &of->scale;
    if (a->causal)
        ids[count] = TARN__ATTENTION_ID(TARN__ATTENTION_MASKED), addresses[count++] = &of->masked;
    if (a->is_backward) {
        ids[count] = TARN__ATTENTION_ID(TARN__ATTENTION_DELTA), addresses[count++] = operands->delta;
        ids[count] = TARN__ATTENTION_ID(TARN__ATTENTION_ONE), addresses[count++] = &of->one;
    }
    return tarn__cudnn_run_plan(handle, plan, count, ids, addresses, operands->workspace);
}

/* Start of a chunk: the last one ends with the tensor, and recomputes its overlap with the one before it. */
static int64_t begin_of(int64_t at, int64_t chunk, int64_t all)
{
    return at + chunk > all ? all - chunk : at;
}

/* All chunks in order, on the handle's stream. */
bool tarn__cudnn_attention_try(void *handle, tarn__cudnn_attention_plan *of, tarn__cudnn_plan *plan,
                               const tarn__cudnn_attention_operands *operands)
{
    const tarn__cudnn_attention *a = &of->attention;
    for (int64_t batch = 0; batch < a->batches; batch += a->chunk_batches)
        for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head += a->chunk_kv_heads)
            if (!run_chunk(handle, of, plan, operands, begin_of(batch, a->chunk_batches, a->batches),
                           begin_of(kv_head, a->chunk_kv_heads, a->kv_heads)))
                return false;
    return true;
}

bool tarn__cudnn_attention_run(int index, tarn__cudnn_attention_plan *plan,
                               const tarn__cudnn_attention_operands *operands, cudaStream_t stream)
{
    tarn__cudnn_lock(); /* guards the handle, and the plan's variant pack */
    void *handle = tarn__cudnn_handle(index, stream);
    bool is_ok = handle && tarn__cudnn_attention_try(handle, plan, &plan->plan, operands);
    tarn__cudnn_unlock();
    return is_ok;
}

/* decode_attention.c: attention of one token per sequence to its KV cache: the launchers of decode_attention.cl. They
 * need local memory, as decode_gemv.c does; CPUs compose the operation. */
#include <math.h>
#include <stdio.h>

#include "backends/opencl/runtime/opencl.h"

#define MAX_GROUP 512
#define MAX_HEAD_DIM 128 /* elements: the frequencies of 64 pairs are a kernel argument */
#define MIN_SPLIT 512    /* keys */
#define MAX_SPLITS 64

/* The struct `decode_args` of decode_attention.cl. */
typedef struct decode_args {
    int64_t q, k, v, y, key, value, key_scale, value_scale, position;
    int64_t q_stride[2], k_stride[2], v_stride[2], y_stride[2];
    int64_t cache_stride[3], scale_stride[3];
    int64_t position_stride, capacity, window, partial;
    int32_t heads, group, pairs, is_interleaved, splits, split_keys;
    float scale, cap, magnitude;
} decode_args;

/* Turns per position of each pair, as sums of two floats. */
typedef struct frequencies {
    float at[MAX_HEAD_DIM / 2][2];
} frequencies;

typedef struct job {
    const tarn__cl_kernel *attend, *merge;
    int64_t splits;
    size_t group;
} job;

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Keys per tile: as many as fit in three quarters of local memory, of which at most 48 KiB count. */
static int64_t tile_of(const tarn__cl_device *device, int64_t depth)
{
    const int64_t bytes = device->local_bytes < 48 << 10 ? (int64_t)device->local_bytes : 48 << 10;
    int64_t tile = 1024;
    while (tile > 64 && tile * (depth / 8 + 1) * 4 > bytes / 4 * 3)
        tile /= 2;
    return tile;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Number of splits of the keys; above 1 if there are too few heads to occupy the device, and enough keys. */
static int64_t splits_of(const tarn__call *call)
{
    const tarn__attention_decode *params = call->params;
    const tarn__view *q = call->in[0];
    const int64_t capacity = call->out[1]->shape[2],
                  keys = params->window > 0 ? min_i64(params->window, capacity) : capacity,
                  groups = q->shape[0] * q->shape[2], units = (int64_t)tarn__cl_device_at(call->device)->compute_units;
    const int64_t splits = min_i64(keys / MIN_SPLIT, min_i64(2 * units / (groups + 1), MAX_SPLITS));
    return splits > 1 ? splits : 1;
}

/* Finds the kernel with the largest work-group that the device allows. */
static bool find(const tarn__call *call, job *j)
{
    const tarn__attention_decode *params = call->params;
    const tarn__view *q = call->in[0], *key = call->out[1];
    const bool is_quantized = key->dtype == TARN_U8;
    const long long depth = (long long)q->shape[3];
    char options[256];
    for (j->group = MAX_GROUP; j->group >= 64; j->group /= 2) {
        snprintf(options, sizeof(options),
                 "-DT=%s -DT_KV=%s%s -DT_POSITION=%s -DDEPTH=%lld -DGROUP=%zu -DTILE=%lld%s%s",
                 tarn__cl_dtype_name(q->dtype), tarn__cl_dtype_name(key->dtype), is_quantized ? " -DQUANTIZED" : "",
                 tarn__cl_dtype_name(call->inputs > 3 ? call->in[3]->dtype : TARN_I64), depth, j->group,
                 (long long)tile_of(tarn__cl_device_at(call->device), depth), j->splits > 1 ? " -DSPLIT" : "",
                 params->softcap > 0 ? " -DSOFTCAP" : "");
        j->attend = tarn__cl_find(call, "decode_attention", "attend", options);
        if (tarn__cl_allows(j->attend, j->group))
            break;
    }
    if (j->group < 64 || j->splits == 1)
        return j->group >= 64;
    snprintf(options, sizeof(options), "-DMERGE -DT=%s -DT_KV=%s -DDEPTH=%lld -DGROUP=64 -DTILE=64",
             tarn__cl_dtype_name(q->dtype), tarn__cl_dtype_name(q->dtype), depth);
    j->merge = tarn__cl_find(call, "decode_attention", "merge", options);
    return tarn__cl_allows(j->merge, 1);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Scratch: partial results of all splits. */
static tarn__plan_status prepare_attention_decode(const tarn__call *call, tarn__plan *plan)
{
    const int64_t *q = call->in[0]->shape;
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    *j = (job){.splits = splits_of(call)};
    plan->scratch_bytes = j->splits > 1 ? (size_t)(q[0] * q[2] * j->splits * (q[3] + 2)) * sizeof(float) : 0;
    return call->is_meta ? TARN__PLAN_READY : tarn__cl_ready(call, find(call, j));
}

static void set_token(const tarn__view *x, int64_t *offset, int64_t *stride)
{
    *offset = x->offset, stride[0] = x->stride[0], stride[1] = x->stride[2];
}

/* Inputs q, k, v, position; outputs y, keys, values and, for an 8-bit cache, their scales. */
static decode_args args_of(const tarn__call *call, const job *j)
{
    const tarn__attention_decode *params = call->params;
    const tarn__view *q = call->in[0], *position = call->in[3], *key = call->out[1], *value = call->out[2],
                     *key_scale = call->outputs > 3 ? call->out[3] : NULL,
                     *value_scale = call->outputs > 4 ? call->out[4] : NULL;
    decode_args a = {.key = key->offset,
                     .value = value->offset,
                     .key_scale = key_scale ? key_scale->offset : 0,
                     .value_scale = value_scale ? value_scale->offset : 0,
                     .position = position->offset,
                     .position_stride = position->stride[0],
                     .capacity = key->shape[2],
                     .window = params->window,
                     .partial = j->splits > 1 ? call->scratch_offset / (int64_t)sizeof(float) : 0,
                     .heads = (int32_t)q->shape[2],
                     .group = (int32_t)(q->shape[2] / key->shape[1]),
                     .pairs = (int32_t)(params->rope.dims / 2),
                     .is_interleaved = params->rope.interleaved != 0,
                     .splits = (int32_t)j->splits,
                     .scale = (float)params->scale,
                     .cap = (float)params->softcap,
                     .magnitude = (float)params->rope.magnitude};
    const int64_t keys = params->window > 0 ? min_i64(params->window, a.capacity) : a.capacity;
    a.split_keys = (int32_t)((keys + j->splits - 1) / j->splits);
    set_token(q, &a.q, a.q_stride), set_token(call->in[1], &a.k, a.k_stride), set_token(call->in[2], &a.v, a.v_stride);
    set_token(call->out[0], &a.y, a.y_stride);
    for (int i = 0; i < 3; i++) {
        a.cache_stride[i] = key->stride[i];
        a.scale_stride[i] = key_scale ? key_scale->stride[i] : 0;
    }
    return a;
}

static frequencies frequencies_of(const tarn__rope *rope)
{
    frequencies f = {{{0}}};
    for (int64_t i = 0; i < rope->dims / 2; i++) {
        const double turns = rope->frequency[i] / (2 * 3.14159265358979323846);
        f.at[i][0] = (float)turns, f.at[i][1] = (float)(turns - (double)f.at[i][0]);
    }
    return f;
}

static void arg_memory(tarn__cl_launch *l, const void *memory)
{
    cl_mem buffer = (cl_mem)memory;
    tarn__cl_arg_value(l, memory ? &buffer : NULL, sizeof(buffer));
}

/* A work-group per head of q and split. Bytes: keys and values, once per head of q. */
static void kernel_attention_decode(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    const tarn__view *q = call->in[0];
    if (tarn__view_count(q) == 0)
        return;
    const decode_args a = args_of(call, j);
    const frequencies f = frequencies_of(&((const tarn__attention_decode *)call->params)->rope);
    tarn__cl_launch l = tarn__cl_begin_kernel(call, j->attend);
    tarn__cl_arg_value(&l, &a, sizeof(a));
    tarn__cl_arg_value(&l, &f, sizeof(f));
    for (int i = 0; i < 4; i++)
        arg_memory(&l, call->in[i]->memory);
    for (int i = 1; i < 5; i++)
        arg_memory(&l, i < call->outputs && call->out[i] ? call->out[i]->memory : NULL);
    arg_memory(&l, j->splits > 1 ? call->scratch : call->out[0]->memory);
    tarn__cl_arg_fault_later(&l, call);
    tarn__cl_enqueue(&l, 3, (size_t[]){(size_t)j->splits * j->group, (size_t)q->shape[2], (size_t)q->shape[0]},
                     (size_t[]){j->group, 1, 1});
    if (j->splits == 1)
        return;
    l = tarn__cl_begin_kernel(call, j->merge);
    tarn__cl_arg_value(&l, &a, sizeof(a));
    arg_memory(&l, call->scratch);
    arg_memory(&l, call->out[0]->memory);
    tarn__cl_enqueue_independent(&l, 3, (size_t[]){(size_t)q->shape[3], (size_t)q->shape[2], (size_t)q->shape[0]}, 64);
}

/* True if heads are whole vectors of eight elements, also in the cache. */
static bool fits(const tarn__call *call)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const tarn__view *q = call->in[0], *keys = call->out[1];
    if (!device || !device->has_local_memory || q->stride[3] != 1 || q->shape[3] % 8 != 0 ||
        q->shape[3] > MAX_HEAD_DIM || keys->stride[3] != 1 || keys->offset % 8 != 0)
        return false;
    for (int i = 0; i < 3; i++)
        if (keys->shape[i] > 1 && keys->stride[i] % 8 != 0)
            return false;
    job j = {.splits = 1};
    return find(call, &j);
}

/* u8 is the 8-bit cache. */
void tarn__cl_register_decode_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention_decode] = tarn__row_fits(
        tarn__row_planned(prepare_attention_decode, kernel_attention_decode,
                          TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BIT(TARN_U8)),
        fits);
}

/* attention.c: attention and its gradients: tile sizes, and the launches of attention.cl and attention_grad.cl.
 *
 * attention_documents has one input more, the start of each row's document; the kernels are the same. */
#include <stdio.h>

#include "backends/opencl/matmul/gemm.h"
#include "base/philox.h"

enum { Q, K, V, Y, LSE, G, GQ, GK, GV, TENSORS }; /* as in attention_tiles.cl */

/* The struct `attention` of attention_tiles.cl, whose comments explain the fields. */
typedef struct attention {
    int64_t heads, kv_heads, group, rows, keys, depth; /* H, KV, H / KV, T, S, D */
    int64_t blocks, windows;
    int64_t length_stride, start_stride[2];
    int64_t stride[TENSORS][4];
    uint64_t seed, offset; /* of dropout's Philox */
    uint32_t limit;
    float keep_scale;
    int32_t causal, last_first;
    int64_t sliding_window;
} attention;

/* Tiles of a work-group. */
typedef struct tile {
    int across, rows_each, lanes, vectors, step, window,
        registers; /* ACROSS, M, LANES, VECTORS, STEP, WINDOW, REGISTERS of attention_tiles.cl */
} tile;

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Strides of a tensor; those of an absent one stay 0 and are not used. */
static void set_strides(attention *a, int tensor, const tarn__view *view)
{
    for (int i = 0; view && i < view->rank; i++)
        a->stride[tensor][i] = view->stride[i];
}

/* Document starts, after the other inputs; NULL: every row starts at key 0. */
static const tarn__view *starts_of(const tarn__call *call, bool backward)
{
    const int others = backward ? 7 : 4;
    return call->inputs > others ? call->in[others] : NULL;
}

/* Inputs q (B, H, T, D), k and v (B, KV, S, D), lengths (B) or NULL; for the gradient y, LSE (B, H, T) and gy; then
 * starts. */
static attention describe(const tarn__call *call, bool backward)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *lengths = call->in[3], *starts = starts_of(call, backward);
    attention a = {.heads = q->shape[1],
                   .kv_heads = k->shape[1],
                   .group = q->shape[1] / k->shape[1],
                   .rows = q->shape[2],
                   .keys = k->shape[2],
                   .depth = q->shape[3],
                   .causal = params->causal,
                   .sliding_window = params->window,
                   .seed = params->random.seed,
                   .offset = params->random.offset};
    a.length_stride = lengths && lengths->rank > 0 && lengths->shape[0] > 1 ? lengths->stride[0] : 0;
    if (starts)
        a.start_stride[0] = starts->stride[0], a.start_stride[1] = starts->stride[1];
    if (params->random.a > 0) {
        a.limit = tarn__limit_16(params->random.a);
        a.keep_scale = (float)(0x1p16 / (0x1p16 - a.limit));
    }
    set_strides(&a, Q, q), set_strides(&a, K, k), set_strides(&a, V, call->in[2]);
    set_strides(&a, LSE, backward ? call->in[5] : call->out[1]);
    if (!backward) {
        set_strides(&a, Y, call->out[0]);
        return a;
    }
    set_strides(&a, G, call->in[6]);
    set_strides(&a, GQ, call->out[0]), set_strides(&a, GK, call->out[1]), set_strides(&a, GV, call->out[2]);
    return a;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

#define MAX_ACROSS 16
#define FEW_ROWS 8
#define LARGE_BYTES (48 << 10) /* of local memory, for 256 work-items */

/* Tile of a GPU group: 64 by 64 weights, or 32 by 32 with few work-items or little local memory. A CPU work-item, or a
 * GPU limited to small groups, has 32 by 32 alone, or 8 rows where there are no more or no memory for more.
 * `max_across` limits the work-group's side; 0: the smallest tile. */
static tile tile_of(const tarn__cl_device *device, tarn_dtype dtype, const attention *a, int max_across)
{
    int window = a->depth <= 64 ? 64 : 128;
    bool is_f64 = dtype == TARN_F64;
    if (!device->has_local_memory || max_across < 8)
        return (tile){
            1, a->rows <= FEW_ROWS || max_across == 0 ? FEW_ROWS : 32, is_f64 ? 8 : 16, is_f64 ? 4 : 2, 32, window, 8};
    if (max_across >= MAX_ACROSS && !is_f64 && !device->is_cpu && device->max_group >= 256 &&
        device->local_bytes >= LARGE_BYTES)
        return (tile){16, 4, 4, 1, 16, window, 4};
    return (tile){8, 4, 4, 1, 16, window, 4};
}

static int side_of(const tile *t)
{
    return t->across * t->rows_each;
}

/* True when rows are contiguous, and they and D are whole vec4s. */
static bool is_vec4(const tarn__view *x)
{
    int64_t odd = x->offset | x->shape[3];
    for (int i = 0; i < 3; i++)
        odd |= x->shape[i] > 1 ? x->stride[i] : 0;
    return x->stride[3] == 1 && odd % 4 == 0;
}

static bool are_vec4(const tarn__call *call, bool backward)
{
    return is_vec4(call->in[0]) && is_vec4(call->in[1]) && is_vec4(call->in[2]) && (!backward || is_vec4(call->in[6]));
}

/* Options of all kernels; `own` are the kernel's. */
static void write_options(const tarn__call *call, const tile *t, bool backward, const char *own, char *options,
                          size_t size)
{
    tarn_dtype dtype = call->in[0]->dtype, g = backward ? call->in[6]->dtype : dtype;
    const tarn__attention *params = call->params;
    const tarn__view *starts = starts_of(call, backward);
    snprintf(options, size,
             "-DREAL=%s -DT=%s -DT_G=%s -DLENGTH=%s%s%s -DACROSS=%d -DM=%d -DLANES=%d -DVECTORS=%d -DSTEP=%d "
             "-DWINDOW=%d -DREGISTERS=%d%s%s%s %s",
             dtype == TARN_F64 ? "double" : "float", tarn__cl_dtype_name(dtype), tarn__cl_dtype_name(g),
             call->in[3] ? tarn__cl_dtype_name(call->in[3]->dtype) : "i64", starts ? " -DSTART=" : "",
             starts ? tarn__cl_dtype_name(starts->dtype) : "", t->across, t->rows_each, t->lanes, t->vectors, t->step,
             t->window, t->registers, t->across > 1 && are_vec4(call, backward) ? " -DVEC4_ROWS" : "",
             params->window > 0 ? " -DSLIDING" : "", params->softcap > 0 ? " -DSOFTCAP" : "", own);
}

/* Begins the kernel with the largest tile for which the device has resources. */
static tarn__cl_launch begin(const tarn__call *call, const attention *a, tile *t, const char *kernel, bool backward,
                             const char *own)
{
    const char *source = backward ? "attention_grad" : "attention";
    char options[352];
    *t = tile_of(tarn__cl_device_at(call->device), call->in[0]->dtype, a, MAX_ACROSS);
    while (t->across > 1 || t->rows_each > FEW_ROWS) {
        write_options(call, t, backward, own, options, sizeof(options));
        tarn__cl_launch l = tarn__cl_try(call, source, kernel, options, (size_t)(t->across * t->across));
        if (l.good)
            return l;
        *t = tile_of(tarn__cl_device_at(call->device), call->in[0]->dtype, a, t->across / 2);
    }
    write_options(call, t, backward, own, options, sizeof(options));
    return tarn__cl_begin(call, source, kernel, options);
}

/* The last arguments of all kernels. Heads have `lines` rows or keys, in blocks of one work-group each, or one per
 * window of D. */
static void arg_shape(tarn__cl_launch *l, const tarn__call *call, attention *a, const tile *t, int64_t lines,
                      bool has_windows, bool last_first)
{
    const tarn__attention *params = call->params;
    a->blocks = ceiling(lines, side_of(t));
    a->windows = has_windows ? ceiling(a->depth, t->window) : 1;
    a->last_first = last_first;
    tarn__cl_arg_value(l, a, sizeof(*a));
    tarn__cl_arg_real(l, params->scale);
    if (params->softcap > 0)
        tarn__cl_arg_real(l, params->softcap);
}

/* Enqueues groups for `heads` heads of all sequences. */
static void launch(tarn__cl_launch *l, const tarn__call *call, const attention *a, const tile *t, int64_t heads)
{
    size_t groups = (size_t)(call->in[0]->shape[0] * heads * a->blocks * a->windows), across = (size_t)t->across;
    tarn__cl_enqueue(l, 2, (size_t[]){groups * across, across}, (size_t[]){across, across});
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* y (B, H, T, D), and LSE (B, H, T) where backward will need it. 4 · T · S · D operations per head, half of that where
 * causal. */
static void kernel_attention(const tarn__call *call)
{
    attention a = describe(call, false);
    if (!tarn__cl_device_at(call->device) || tarn__view_count(call->out[0]) == 0)
        return;
    tile t;
    char own[32];
    snprintf(own, sizeof(own), "-DT_LSE=%s",
             tarn__cl_dtype_name(call->out[1] ? call->out[1]->dtype : tarn__acc_dtype(call->in[0]->dtype)));
    tarn__cl_launch l = begin(call, &a, &t, "forward", false, own);
    for (int i = 0; i < 4; i++)
        tarn__cl_arg_view(&l, call->in[i]);
    tarn__cl_arg_view(&l, starts_of(call, false));
    tarn__cl_arg_view(&l, call->out[0]);
    tarn__cl_arg_view(&l, call->out[1]);
    arg_shape(&l, call, &a, &t, a.rows, true, a.causal);
    tarn__cl_arg_fault(&l, call);
    l.has_fault = l.has_fault && (call->in[3] || starts_of(call, false)); /* only lengths and starts can be wrong */
    launch(&l, call, &a, &t, a.heads);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Scratch: the statistics of rows, (B, H, T, 3) in the compute type. */
static tarn__plan_status prepare_attention_grad(const tarn__call *call, tarn__plan *plan)
{
    const tarn__view *q = call->in[0];
    plan->scratch_bytes = (size_t)(q->shape[0] * q->shape[1] * q->shape[2] * 3) * (q->dtype == TARN_F64 ? 8 : 4);
    return TARN__PLAN_READY;
}

static const char *type_of(const tarn__view *view)
{
    return tarn__cl_dtype_name(view ? view->dtype : TARN_F32);
}

/* A launch with the common operands: q, k, v, gy, lengths, starts. */
static tarn__cl_launch begin_grad(const tarn__call *call, const attention *a, tile *t, const char *kernel,
                                  const char *own)
{
    tarn__cl_launch l = begin(call, a, t, kernel, true, own);
    for (int i = 0; i < 3; i++)
        tarn__cl_arg_view(&l, call->in[i]);
    tarn__cl_arg_view(&l, call->in[6]);
    tarn__cl_arg_view(&l, call->in[3]);
    tarn__cl_arg_view(&l, starts_of(call, true));
    return l;
}

/* First pass of the gradient: statistics of rows into scratch. q, k, v and gy are read, nothing else is written. */
static void run_sums(const tarn__call *call, attention *a, const tarn__view *sums)
{
    char own[48];
    tile t;
    snprintf(own, sizeof(own), "-DSUMS -DT_LSE=%s", type_of(call->in[5]));
    tarn__cl_launch l = begin_grad(call, a, &t, "row_sums", own);
    tarn__cl_arg_view(&l, call->in[5]);
    tarn__cl_arg_view(&l, sums);
    arg_shape(&l, call, a, &t, a->rows, false, a->causal);
    launch(&l, call, a, &t, a->heads);
}

/* gq (B, H, T, D), a work-group per block of rows. */
static void run_grad_q(const tarn__call *call, attention *a, const tarn__view *sums)
{
    char own[48];
    tile t;
    snprintf(own, sizeof(own), "-DROWS -DT_GQ=%s", type_of(call->out[0]));
    tarn__cl_launch l = begin_grad(call, a, &t, "grad_q", own);
    tarn__cl_arg_view(&l, sums);
    tarn__cl_arg_view(&l, call->out[0]);
    arg_shape(&l, call, a, &t, a->rows, true, a->causal);
    launch(&l, call, a, &t, a->heads);
}

/* gk and gv (B, KV, S, D), a work-group per block of keys of a KV head; either may be NULL. */
static void run_grad_kv(const tarn__call *call, attention *a, const tarn__view *sums)
{
    char own[64];
    tile t;
    snprintf(own, sizeof(own), "-DKEYS -DT_GK=%s -DT_GV=%s", type_of(call->out[1]), type_of(call->out[2]));
    tarn__cl_launch l = begin_grad(call, a, &t, "grad_kv", own);
    tarn__cl_arg_view(&l, sums);
    tarn__cl_arg_view(&l, call->out[1]);
    tarn__cl_arg_view(&l, call->out[2]);
    arg_shape(&l, call, a, &t, a->keys, true, false);
    launch(&l, call, a, &t, a->kv_heads);
}

/* Up to three launches in queue order; only the gradients asked for are computed. */
static void kernel_attention_grad(const tarn__call *call)
{
    attention a = describe(call, true);
    if (!tarn__cl_device_at(call->device))
        return;
    tarn__view sums = tarn__cl_scratch_view(call, 0, call->in[0]->dtype == TARN_F64 ? TARN_F64 : TARN_F32);
    run_sums(call, &a, &sums);
    if (call->out[0])
        run_grad_q(call, &a, &sums);
    if (call->out[1] || call->out[2])
        run_grad_kv(call, &a, &sums);
}

void tarn__cl_register_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention] = tarn__row(kernel_attention, TARN__FLOATS);
    rows[TARN__K_attention_grad] = tarn__row_planned(prepare_attention_grad, kernel_attention_grad, TARN__FLOATS);
    rows[TARN__K_attention_documents] = rows[TARN__K_attention];
    rows[TARN__K_attention_documents_grad] = rows[TARN__K_attention_grad];
}

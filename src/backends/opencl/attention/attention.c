/* attention.c: attention and its gradients: the shapes of their tiles, and the launches. */
#include <stdio.h>

#include "backends/opencl/matmul/gemm.h"
#include "base/philox.h"

enum { Q, K, V, Y, LOGS, G, GQ, GK, GV, CUBES };

/* `attention` of attention_tiles.cl. */
typedef struct attention {
    int64_t heads, kv_heads, group, rows, keys, depth;
    int64_t blocks, windows;
    int64_t length_stride, start_stride[2];
    int64_t stride[CUBES][4];
    uint64_t seed, offset;
    uint32_t limit;
    float kept;
    int32_t causal, last_first;
} attention;

/* Tiles of a group. */
typedef struct tile {
    int across, rows_each, lanes, vectors, step, window, registers;
} tile;

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void place_cube(attention *a, int cube, const tarn__view *view)
{
    for (int i = 0; view && i < view->rank; i++)
        a->stride[cube][i] = view->stride[i];
}

/* Where rows begin, behind the other inputs; NULL where they begin at the first key. */
static const tarn__view *starts_of(const tarn__call *call, bool backward)
{
    const int others = backward ? 7 : 4;
    return call->inputs > others ? call->in[others] : NULL;
}

/* Inputs q, k, v, lengths and for the gradient y, logarithms, g; behind them starts. */
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
                   .seed = params->random.seed,
                   .offset = params->random.offset};
    a.length_stride = lengths && lengths->rank > 0 && lengths->shape[0] > 1 ? lengths->stride[0] : 0;
    if (starts)
        a.start_stride[0] = starts->stride[0], a.start_stride[1] = starts->stride[1];
    if (params->random.a > 0) {
        a.limit = tarn__limit_16(params->random.a);
        a.kept = (float)(0x1p16 / (0x1p16 - a.limit));
    }
    place_cube(&a, Q, q), place_cube(&a, K, k), place_cube(&a, V, call->in[2]);
    place_cube(&a, LOGS, backward ? call->in[5] : call->out[1]);
    if (!backward) {
        place_cube(&a, Y, call->out[0]);
        return a;
    }
    place_cube(&a, G, call->in[6]);
    place_cube(&a, GQ, call->out[0]), place_cube(&a, GK, call->out[1]), place_cube(&a, GV, call->out[2]);
    return a;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

#define MOST_ACROSS 16
#define FEW_ROWS 8
#define WIDE_BYTES (48 << 10) /* of a group's memory, for one of 256 items */

/* A GPU's group has 64 by 64 weights, or 32 by 32 where it may have few items or little memory; an item of a processor,
 * and of a GPU whose groups may not have so many, 32 by 32 alone, or 8 rows of them where there are no more, or no
 * memory for more. `most` is what a group may have across; 0: the least. */
static tile tile_of(const tarn__cl_device *device, tarn_dtype dtype, const attention *a, int most)
{
    int window = a->depth <= 64 ? 64 : 128;
    bool wide = dtype == TARN_F64;
    if (!device->has_local_memory || most < 8)
        return (tile){1, a->rows <= FEW_ROWS || most == 0 ? FEW_ROWS : 32, wide ? 8 : 16, wide ? 4 : 2, 32, window, 8};
    if (most >= MOST_ACROSS && !wide && !device->is_cpu && device->max_group >= 256 &&
        device->local_bytes >= WIDE_BYTES)
        return (tile){16, 4, 4, 1, 16, window, 4};
    return (tile){8, 4, 4, 1, 16, window, 4};
}

static int side_of(const tile *t)
{
    return t->across * t->rows_each;
}

/* True when rows are dense, and they and D are made of whole fours. */
static bool is_in_fours(const tarn__view *x)
{
    int64_t odd = x->offset | x->shape[3];
    for (int i = 0; i < 3; i++)
        odd |= x->shape[i] > 1 ? x->stride[i] : 0;
    return x->stride[3] == 1 && odd % 4 == 0;
}

static bool are_in_fours(const tarn__call *call, bool backward)
{
    return is_in_fours(call->in[0]) && is_in_fours(call->in[1]) && is_in_fours(call->in[2]) &&
           (!backward || is_in_fours(call->in[6]));
}

/* What all of them are given; `own` is the kernel's. */
static void write_options(const tarn__call *call, const tile *t, bool backward, const char *own, char *options,
                          size_t size)
{
    tarn_dtype dtype = call->in[0]->dtype, g = backward ? call->in[6]->dtype : dtype;
    const tarn__view *starts = starts_of(call, backward);
    snprintf(options, size,
             "-DREAL=%s -DT=%s -DT_G=%s -DLENGTH=%s%s%s -DACROSS=%d -DM=%d -DLANES=%d -DVECTORS=%d -DSTEP=%d "
             "-DWINDOW=%d -DREGISTERS=%d%s %s",
             dtype == TARN_F64 ? "double" : "float", tarn__cl_dtype_name(dtype), tarn__cl_dtype_name(g),
             call->in[3] ? tarn__cl_dtype_name(call->in[3]->dtype) : "i64", starts ? " -DSTART=" : "",
             starts ? tarn__cl_dtype_name(starts->dtype) : "", t->across, t->rows_each, t->lanes, t->vectors, t->step,
             t->window, t->registers, t->across > 1 && are_in_fours(call, backward) ? " -DIN_FOURS" : "", own);
}

/* The kernel with the largest tile that the device has room for. */
static tarn__cl_launch begin(const tarn__call *call, const attention *a, tile *t, const char *kernel, bool backward,
                             const char *own)
{
    const char *source = backward ? "attention_grad" : "attention";
    char options[320];
    *t = tile_of(tarn__cl_device_at(call->device), call->in[0]->dtype, a, MOST_ACROSS);
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

/* The last arguments of all of them: heads have `lines` rows or keys in blocks, each with one group, or one for each
 * window of D. */
static void give_shape(tarn__cl_launch *l, const tarn__call *call, attention *a, const tile *t, int64_t lines,
                       bool has_windows, bool last_first)
{
    const tarn__attention *params = call->params;
    a->blocks = ceiling(lines, side_of(t));
    a->windows = has_windows ? ceiling(a->depth, t->window) : 1;
    a->last_first = last_first;
    tarn__cl_arg_value(l, a, sizeof(*a));
    tarn__cl_arg_real(l, params->scale);
}

/* Groups for `heads` heads of all batches. */
static void launch(tarn__cl_launch *l, const tarn__call *call, const attention *a, const tile *t, int64_t heads)
{
    size_t groups = (size_t)(call->in[0]->shape[0] * heads * a->blocks * a->windows), across = (size_t)t->across;
    tarn__cl_enqueue(l, 2, (size_t[]){groups * across, across}, (size_t[]){across, across});
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void kernel_attention(const tarn__call *call)
{
    attention a = describe(call, false);
    if (!tarn__cl_device_at(call->device) || tarn__view_count(call->out[0]) == 0)
        return;
    tile t;
    char own[32];
    snprintf(own, sizeof(own), "-DT_L=%s",
             tarn__cl_dtype_name(call->out[1] ? call->out[1]->dtype : tarn__acc_dtype(call->in[0]->dtype)));
    tarn__cl_launch l = begin(call, &a, &t, "forward", false, own);
    for (int i = 0; i < 4; i++)
        tarn__cl_arg_view(&l, call->in[i]);
    tarn__cl_arg_view(&l, starts_of(call, false));
    tarn__cl_arg_view(&l, call->out[0]);
    tarn__cl_arg_view(&l, call->out[1]);
    give_shape(&l, call, &a, &t, a.rows, true, a.causal);
    tarn__cl_arg_fault(&l, call);
    l.has_fault = l.has_fault && (call->in[3] || starts_of(call, false)); /* only lengths and starts can be wrong */
    launch(&l, call, &a, &t, a.heads);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* (B, H, T, 3) of what is computed in. */
static size_t grad_scratch(const tarn__call *call)
{
    const tarn__view *q = call->in[0];
    return (size_t)(q->shape[0] * q->shape[1] * q->shape[2] * 3) * (q->dtype == TARN_F64 ? 8 : 4);
}

static const char *type_of(const tarn__view *view)
{
    return tarn__cl_dtype_name(view ? view->dtype : TARN_F32);
}

/* A launch with the operands that all have: q, k, v, g, lengths, starts. */
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

static void run_sums(const tarn__call *call, attention *a, const tarn__view *sums)
{
    char own[48];
    tile t;
    snprintf(own, sizeof(own), "-DSUMS -DT_L=%s", type_of(call->in[5]));
    tarn__cl_launch l = begin_grad(call, a, &t, "row_sums", own);
    tarn__cl_arg_view(&l, call->in[5]);
    tarn__cl_arg_view(&l, sums);
    give_shape(&l, call, a, &t, a->rows, false, a->causal);
    launch(&l, call, a, &t, a->heads);
}

static void run_rows(const tarn__call *call, attention *a, const tarn__view *sums)
{
    char own[48];
    tile t;
    snprintf(own, sizeof(own), "-DROWS -DT_GQ=%s", type_of(call->out[0]));
    tarn__cl_launch l = begin_grad(call, a, &t, "row_slopes", own);
    tarn__cl_arg_view(&l, sums);
    tarn__cl_arg_view(&l, call->out[0]);
    give_shape(&l, call, a, &t, a->rows, true, a->causal);
    launch(&l, call, a, &t, a->heads);
}

static void run_keys(const tarn__call *call, attention *a, const tarn__view *sums)
{
    char own[64];
    tile t;
    snprintf(own, sizeof(own), "-DKEYS -DT_GK=%s -DT_GV=%s", type_of(call->out[1]), type_of(call->out[2]));
    tarn__cl_launch l = begin_grad(call, a, &t, "key_slopes", own);
    tarn__cl_arg_view(&l, sums);
    tarn__cl_arg_view(&l, call->out[1]);
    tarn__cl_arg_view(&l, call->out[2]);
    give_shape(&l, call, a, &t, a->keys, true, false);
    launch(&l, call, a, &t, a->kv_heads);
}

static void kernel_attention_grad(const tarn__call *call)
{
    attention a = describe(call, true);
    if (!tarn__cl_device_at(call->device))
        return;
    tarn__view sums = tarn__cl_scratch_view(call, 0, call->in[0]->dtype == TARN_F64 ? TARN_F64 : TARN_F32);
    run_sums(call, &a, &sums);
    if (call->out[0])
        run_rows(call, &a, &sums);
    if (call->out[1] || call->out[2])
        run_keys(call, &a, &sums);
}

void tarn__cl_register_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention] = (tarn__kernel_row){kernel_attention, TARN__FLOATS, NULL};
    rows[TARN__K_attention_grad] = (tarn__kernel_row){kernel_attention_grad, TARN__FLOATS, grad_scratch};
    rows[TARN__K_attention_documents] = rows[TARN__K_attention];
    rows[TARN__K_attention_documents_grad] = rows[TARN__K_attention_grad];
}

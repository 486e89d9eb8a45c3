/* attention.c: attention and its gradients: the shapes of their tiles, and the launches. */
#include <stdio.h>

#include "backends/opencl/product.h"
#include "base/philox.h"

enum { Q, K, V, Y, LOGS, G, GQ, GK, GV, CUBES };

/* `attention` of attention_tiles.cl. */
typedef struct attention {
    int64_t heads, kv_heads, group, rows, keys, depth;
    int64_t blocks, windows;
    int64_t length_stride;
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

/* Inputs q, k, v, lengths and for the gradient y, logarithms, g. */
static attention describe(const tarn__call *call, bool backward)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *lengths = call->in[3];
    attention a = {.heads = q->shape[1], .kv_heads = k->shape[1], .group = q->shape[1] / k->shape[1], .rows = q->shape[2], .keys = k->shape[2],
                   .depth = q->shape[3], .causal = params->causal, .seed = params->random.seed, .offset = params->random.offset};
    a.length_stride = lengths && lengths->rank > 0 && lengths->shape[0] > 1 ? lengths->stride[0] : 0;
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

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

/* A GPU's group has 64 by 64 weights, or 32 by 32 where it may have few items or little memory; an item of a processor 32 by 32 alone, or fewer rows where there
 * are no more. */
static tile tile_of(const tarn__cl_device *device, tarn_dtype dtype, const attention *a)
{
    int window = a->depth <= 64 ? 64 : 128;
    bool wide = dtype == TARN_F64;
    if (!device->local_is_real)
        return (tile){1, a->rows <= 8 ? 8 : 32, wide ? 8 : 16, wide ? 4 : 2, 32, window, 8};
    if (!wide && !device->is_cpu && device->max_group >= 256 && device->local_bytes >= 48 << 10)
        return (tile){16, 4, 4, 1, 16, window, 4};
    return (tile){8, 4, 4, 1, 16, window, 4};
}

static int side_of(const tile *t)
{
    return t->across * t->rows_each;
}

typedef struct program {
    const char *source, *kernel;
    char options[320];
} program;

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
    return is_in_fours(call->in[0]) && is_in_fours(call->in[1]) && is_in_fours(call->in[2]) && (!backward || is_in_fours(call->in[6]));
}

/* What all of them are given; `own` is the kernel's. */
static program program_of(const char *source, const char *kernel, const tarn__call *call, const tile *t, bool backward, const char *own)
{
    program p = {.source = source, .kernel = kernel};
    tarn_dtype dtype = call->in[0]->dtype, g = backward ? call->in[6]->dtype : dtype;
    snprintf(p.options, sizeof(p.options),
             "-DREAL=%s -DT=%s -DT_G=%s -DLENGTH=%s -DACROSS=%d -DM=%d -DLANES=%d -DVECTORS=%d -DSTEP=%d -DWINDOW=%d -DREGISTERS=%d%s %s",
             dtype == TARN_F64 ? "double" : "float", tarn__cl_type(dtype), tarn__cl_type(g), call->in[3] ? tarn__cl_type(call->in[3]->dtype) : "i64",
             t->across, t->rows_each, t->lanes, t->vectors, t->step, t->window, t->registers,
             t->across > 1 && are_in_fours(call, backward) ? " -DIN_FOURS" : "", own);
    return p;
}

/* The last arguments of all of them: heads have `lines` rows or keys in blocks, each with one group, or one for each window of D. */
static void give_shape(tarn__cl_launch *l, const tarn__call *call, attention *a, const tile *t, int64_t lines, bool has_windows, bool last_first)
{
    const tarn__attention *params = call->params;
    a->blocks = ceiling(lines, side_of(t));
    a->windows = has_windows ? ceiling(a->depth, t->window) : 1;
    a->last_first = last_first;
    tarn__cl_value(l, a, sizeof(*a));
    tarn__cl_real(l, params->scale);
}

/* Groups for `heads` heads of all batches. */
static void launch(tarn__cl_launch *l, const tarn__call *call, const attention *a, const tile *t, int64_t heads)
{
    size_t groups = (size_t)(call->in[0]->shape[0] * heads * a->blocks * a->windows), across = (size_t)t->across;
    tarn__cl_go(l, 2, (size_t[]){groups * across, across}, (size_t[]){across, across});
}

/* ---- forward --------------------------------------------------------------------------------------------------------------- */

static void kernel_attention(const tarn__call *call)
{
    attention a = describe(call, false);
    const tarn__cl_device *device = tarn__cl_at(call->device);
    if (!device || tarn__view_count(call->out[0]) == 0)
        return;
    tile t = tile_of(device, call->in[0]->dtype, &a);
    char own[32];
    snprintf(own, sizeof(own), "-DT_L=%s", tarn__cl_type(call->out[1] ? call->out[1]->dtype : tarn__wide_dtype(call->in[0]->dtype)));
    program p = program_of("attention", "forward", call, &t, false, own);
    tarn__cl_launch l = tarn__cl_begin(call, p.source, p.kernel, p.options);
    for (int i = 0; i < 4; i++)
        tarn__cl_view(&l, call->in[i]);
    tarn__cl_view(&l, call->out[0]);
    tarn__cl_view(&l, call->out[1]);
    give_shape(&l, call, &a, &t, a.rows, true, a.causal);
    tarn__cl_fault(&l, call);
    l.has_fault = l.has_fault && call->in[3]; /* only lengths can be wrong */
    launch(&l, call, &a, &t, a.heads);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------- */

/* (B, H, T, 3) of what is computed in. */
static size_t grad_scratch(const tarn__call *call)
{
    const tarn__view *q = call->in[0];
    return (size_t)(q->shape[0] * q->shape[1] * q->shape[2] * 3) * (q->dtype == TARN_F64 ? 8 : 4);
}

typedef struct programs {
    program sums, rows, keys;
} programs;

static const char *type_of(const tarn__view *view)
{
    return tarn__cl_type(view ? view->dtype : TARN_F32);
}

static programs programs_of(const tarn__call *call, const tile *t)
{
    char own[64];
    programs p;
    snprintf(own, sizeof(own), "-DSUMS -DT_L=%s", type_of(call->in[5]));
    p.sums = program_of("attention_grad", "row_sums", call, t, true, own);
    snprintf(own, sizeof(own), "-DROWS -DT_GQ=%s", type_of(call->out[0]));
    p.rows = program_of("attention_grad", "row_slopes", call, t, true, own);
    snprintf(own, sizeof(own), "-DKEYS -DT_GK=%s -DT_GV=%s", type_of(call->out[1]), type_of(call->out[2]));
    p.keys = program_of("attention_grad", "key_slopes", call, t, true, own);
    return p;
}

/* A launch with the operands that all have: q, k, v, g, lengths. */
static tarn__cl_launch begin(const tarn__call *call, const program *p)
{
    tarn__cl_launch l = tarn__cl_begin(call, p->source, p->kernel, p->options);
    for (int i = 0; i < 3; i++)
        tarn__cl_view(&l, call->in[i]);
    tarn__cl_view(&l, call->in[6]);
    tarn__cl_view(&l, call->in[3]);
    return l;
}

static void run_sums(const tarn__call *call, attention *a, const tile *t, const program *p, const tarn__view *sums)
{
    tarn__cl_launch l = begin(call, p);
    tarn__cl_view(&l, call->in[5]);
    tarn__cl_view(&l, sums);
    give_shape(&l, call, a, t, a->rows, false, a->causal);
    launch(&l, call, a, t, a->heads);
}

static void run_rows(const tarn__call *call, attention *a, const tile *t, const program *p, const tarn__view *sums)
{
    tarn__cl_launch l = begin(call, p);
    tarn__cl_view(&l, sums);
    tarn__cl_view(&l, call->out[0]);
    give_shape(&l, call, a, t, a->rows, true, a->causal);
    launch(&l, call, a, t, a->heads);
}

static void run_keys(const tarn__call *call, attention *a, const tile *t, const program *p, const tarn__view *sums)
{
    tarn__cl_launch l = begin(call, p);
    tarn__cl_view(&l, sums);
    tarn__cl_view(&l, call->out[1]);
    tarn__cl_view(&l, call->out[2]);
    give_shape(&l, call, a, t, a->keys, true, false);
    launch(&l, call, a, t, a->kv_heads);
}

static void kernel_attention_grad(const tarn__call *call)
{
    attention a = describe(call, true);
    const tarn__cl_device *device = tarn__cl_at(call->device);
    if (!device)
        return;
    tile t = tile_of(device, call->in[0]->dtype, &a);
    programs p = programs_of(call, &t);
    bool has_keys = call->out[1] || call->out[2];
    tarn__view sums = tarn__cl_scratch_view(call, 0, call->in[0]->dtype == TARN_F64 ? TARN_F64 : TARN_F32);
    run_sums(call, &a, &t, &p.sums, &sums);
    if (call->out[0])
        run_rows(call, &a, &t, &p.rows, &sums);
    if (has_keys)
        run_keys(call, &a, &t, &p.keys, &sums);
}

void tarn__cl_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention] = (tarn__kernel_row){kernel_attention, TARN__FLOATS, NULL};
    rows[TARN__K_attention_grad] = (tarn__kernel_row){kernel_attention_grad, TARN__FLOATS, grad_scratch};
}

/* max_grad.c: gradients of max and min on GPUs for rows or columns of aligned vec4s; see max_grad.cl. */
#include "backends/opencl/reduce/reduce.h"

#define MIN_ROWS 256        /* fewer would leave the device idle */
#define MIN_VECS 32         /* of a row */
#define MIN_COLUMNS 32      /* vec4s of them */
#define TARGET_ITEMS 131072 /* of columns, where there are enough elements */
#define MIN_CHUNK 64

typedef tarn__cl_max_grad_job job;

/* Axes of x where y has size 1 are reduced. */
void tarn__cl_max_grad_axes(const tarn__call *call, bool reduced, tarn__nest *nest)
{
    const tarn__view *x = call->in[0], *y = call->in[1], *all[] = {call->out[0], x, call->in[2], y}, *views[4];
    tarn__view part[4];
    for (int k = 0; k < 4; k++) {
        part[k] = (tarn__view){.rank = 0};
        views[k] = &part[k];
        for (int i = 0; i < x->rank; i++)
            if ((y->shape[i] == 1) == reduced) {
                part[k].shape[part[k].rank] = x->shape[i];
                part[k].stride[part[k].rank++] = all[k]->shape[i] == 1 ? 0 : all[k]->stride[i];
            }
    }
    tarn__nest_make(nest, 4, views);
}

/* Dtypes that vec4.cl loads, starting at a multiple of four elements. */
static bool is_vec4(const tarn__view *view)
{
    return (view->dtype == TARN_F32 || view->dtype == TARN_BF16 || view->dtype == TARN_F16) && view->offset % 4 == 0;
}

/* True where strides are multiples of four except on the last axis, which `along` asks to be contiguous. */
static bool are_vec4(const tarn__nest *nest, int operands, bool along)
{
    const int last = nest->rank - 1;
    bool is_good = !along || (last >= 0 && nest->shape[last] % 4 == 0);
    for (int k = 0; k < operands; k++)
        for (int i = 0; i <= last; i++)
            is_good = is_good && (along && i == last ? nest->stride[k][i] == 1 : nest->stride[k][i] % 4 == 0);
    return is_good;
}

/* The last axis in units of vec4s; dropped where one remains. */
static void count_in_vec4(tarn__nest *nest)
{
    const int last = nest->rank - 1;
    nest->count /= 4;
    nest->shape[last] /= 4;
    for (int k = 0; k < nest->operands; k++)
        nest->stride[k][last] *= 4;
    nest->rank -= nest->shape[last] == 1;
}

/* Chunks of columns, for TARGET_ITEMS work-items; scratch has totals, then counts of chunks. */
static void cut(job *p)
{
    const int64_t most = (p->reduced.count + MIN_CHUNK - 1) / MIN_CHUNK,
                  wanted = (TARGET_ITEMS + p->kept.count - 1) / p->kept.count;
    p->chunks = most < wanted ? most : wanted;
    p->chunk = (p->reduced.count + p->chunks - 1) / p->chunks;
    p->chunks = (p->reduced.count + p->chunk - 1) / p->chunk;
    p->found = (p->kept.count * 4 * (int64_t)sizeof(int32_t) + 255) / 256 * 256;
}

/* False where neither rows nor columns are aligned vec4s, or there are too few. */
static bool describe(job *p, const tarn__call *call)
{
    const tarn__view *x = call->in[0], *all[] = {call->out[0], x, call->in[2], call->in[1]};
    tarn__nest whole;
    if (!tarn__cl_device_at(call->device)->has_local_memory || call->in[1]->rank != x->rank ||
        call->in[2]->rank != x->rank || tarn__view_count(x) == 0)
        return false;
    *p = (job){.chunks = 1};
    tarn__nest_make(&whole, 4, all);
    tarn__cl_max_grad_axes(call, true, &p->reduced);
    tarn__cl_max_grad_axes(call, false, &p->kept);
    p->is_columns = are_vec4(&p->kept, 4, true);
    for (int k = 0; k < (p->is_columns ? 4 : 2); k++)
        if (!is_vec4(all[k]))
            return false;
    if (p->reduced.rank != 1 || !are_vec4(&p->reduced, 2, !p->is_columns) ||
        (!p->is_columns && !are_vec4(&p->kept, 2, false)))
        return false;
    count_in_vec4(p->is_columns ? &p->kept : &p->reduced);
    if (p->is_columns ? p->kept.count < MIN_COLUMNS : p->kept.count < MIN_ROWS || p->reduced.count < MIN_VECS)
        return false;
    if (p->is_columns)
        cut(p);
    return tarn__cl_nest_is_small(&whole);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Dtypes of all operands, and 32-bit offsets. */
static void write_options(const tarn__call *call, tarn__cl_options *options)
{
    tarn__cl_option(options, " -DT_GX=%s -DT_X=%s -DT_G=%s -DT_Y=%s", tarn__cl_dtype_name(call->out[0]->dtype),
                    tarn__cl_dtype_name(call->in[0]->dtype), tarn__cl_dtype_name(call->in[2]->dtype),
                    tarn__cl_dtype_name(call->in[1]->dtype));
    tarn__cl_option_small(options, true);
}

/* Rows take one launch: a work-group repeats its row where the speculation failed. */
static bool find_kernels(const tarn__call *call, job *p)
{
    tarn__cl_options options = {.length = 0};
    write_options(call, &options);
    if (p->is_columns) {
        p->clear = tarn__cl_find(call, "max_grad", "clear_totals", options.text);
        p->speculate = tarn__cl_find(call, "max_grad", "speculate_columns", options.text);
        p->fix = tarn__cl_find(call, "max_grad", "fix_columns", options.text);
        return tarn__cl_allows(p->clear, 1) && tarn__cl_allows(p->speculate, 1) && tarn__cl_allows(p->fix, 1);
    }
    p->group = p->reduced.count >= 2048 ? 256 : p->reduced.count >= 1024 ? 128 : 64;
    tarn__cl_option(&options, " -DGROUP=%zu", p->group);
    p->speculate = tarn__cl_find(call, "max_grad", "speculate_rows", options.text);
    return tarn__cl_allows(p->speculate, p->group);
}

bool tarn__cl_max_grad_prepare(const tarn__call *call, job *p, size_t *bytes)
{
    *bytes = 0;
    if (!describe(p, call))
        return false;
    if (p->is_columns)
        *bytes = (size_t)(p->found + p->kept.count * p->chunks * 4 * (int64_t)sizeof(int32_t));
    return find_kernels(call, p);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* gx, x, g, y: the order of the kernels. */
static void arg_operands(tarn__cl_launch *launch, const tarn__call *call)
{
    tarn__cl_arg_view(launch, call->out[0]);
    tarn__cl_arg_view(launch, call->in[0]);
    tarn__cl_arg_view(launch, call->in[2]);
    tarn__cl_arg_view(launch, call->in[1]);
}

static void run_rows(const job *p, const tarn__call *call)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, p->speculate);
    arg_operands(&launch, call);
    tarn__cl_arg_int(&launch, (int32_t)p->reduced.count);
    tarn__cl_arg_indexer(&launch, true, &p->kept);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)p->kept.count * p->group}, &p->group);
}

/* Totals and counts in scratch, and the number of vec4 columns. */
static void arg_counts(tarn__cl_launch *launch, const job *p, const tarn__call *call)
{
    tarn__cl_arg_scratch(launch, call, 0);
    tarn__cl_arg_long(launch, call->scratch_offset + p->found);
    tarn__cl_arg_int(launch, (int32_t)p->kept.count);
}

/* A pass over all chunks of columns. */
static void walk(const job *p, const tarn__call *call, const tarn__cl_kernel *kernel)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, kernel);
    arg_operands(&launch, call);
    arg_counts(&launch, p, call);
    tarn__cl_arg_int(&launch, (int32_t)p->reduced.count);
    tarn__cl_arg_int(&launch, (int32_t)p->chunk);
    tarn__cl_arg_int(&launch, (int32_t)p->reduced.stride[0][0]);
    tarn__cl_arg_int(&launch, (int32_t)p->reduced.stride[1][0]);
    tarn__cl_arg_indexer(&launch, true, &p->kept);
    tarn__cl_enqueue_independent(&launch, 2, (size_t[]){(size_t)p->kept.count, (size_t)p->chunks}, 128);
}

/* Bytes: x read once and gx written once, unless there are ties. */
void tarn__cl_max_grad(const tarn__call *call, const job *p)
{
    if (!p->is_columns) {
        run_rows(p, call);
        return;
    }
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, p->clear);
    arg_counts(&launch, p, call);
    tarn__cl_enqueue_elements(&launch, p->kept.count * 4);
    walk(p, call, p->speculate);
    walk(p, call, p->fix);
}

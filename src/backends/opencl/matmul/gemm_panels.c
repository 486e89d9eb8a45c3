/* gemm_panels.c: GEMM without local memory: operands are packed into panels (gemm_pack.cl), and a work-item computes a
 * tile from two of them (gemm_panels.cl).
 *
 * Scratch holds the packed a, then the packed b, then partial sums. Packing is bounded: b is packed and multiplied in
 * pieces of up to PIECE_BYTES, whole batches or, of a large one, some columns. */
#include "backends/opencl/matmul/gemm.h"

#include <stdio.h>
#include <string.h>

#define PIECE_BYTES (INT64_C(64) << 20) /* of packed operands at a time */
#define PACK_STEP 64                    /* STEP of gemm_pack.cl */

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t tarn__cl_gemm_packed_count(int64_t lines, int64_t depth, int64_t width)
{
    return ceiling(lines, width) * width * depth;
}

/* ---- plan -------------------------------------------------------------------------------------------------------- */

/* True when an operand broadcasts over all batches. */
static bool is_shared(const tarn__nest *nest, int operand)
{
    for (int i = 0; i < nest->rank; i++)
        if (nest->stride[operand][i] != 0)
            return false;
    return true;
}

/* Chooses pieces of whole batches or, where one is large, of columns. Split-K needs all of c at once: then everything
 * is one piece. Splits and tile are set. */
void tarn__cl_gemm_panels_describe(const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    int64_t size = (int64_t)tarn__dtype_bytes(tarn__cl_accum_dtype(p->a.dtype));
    tarn__cl_gemm_sizes *s = &plan->sizes;
    plan->a_is_shared = is_shared(&p->batches, 1);
    plan->b_is_shared = is_shared(&p->batches, 2);
    int64_t a = tarn__cl_gemm_packed_count(s->m, s->k, plan->tile.rows),
            b = tarn__cl_gemm_packed_count(s->n, s->k, plan->tile.width);
    s->a_batch_stride = plan->a_is_shared ? 0 : a;
    s->b_batch_stride = p->b_is_packed ? s->b_batch_stride : plan->b_is_shared ? 0 : b;
    int64_t each = ((plan->a_is_shared ? 0 : a) + (plan->b_is_shared || p->b_is_packed ? 0 : b)) * size;
    plan->batches = max_i64(1, min_i64(p->batches.count, each > 0 ? PIECE_BYTES / each : p->batches.count));
    plan->columns = s->n;
    if (!p->b_is_packed && plan->batches == 1 && b * size > PIECE_BYTES)
        plan->columns = max_i64(1, PIECE_BYTES / (s->k * size) / plan->tile.width) * plan->tile.width;
    if (s->splits > 1)
        plan->batches = p->batches.count, plan->columns = s->n;
    plan->a_bytes = a * size * (plan->a_is_shared ? 1 : plan->batches);
    plan->b_bytes = p->b_is_packed ? 0
                                   : tarn__cl_gemm_packed_count(plan->columns, s->k, plan->tile.width) * size *
                                         (plan->b_is_shared ? 1 : plan->batches);
    const int64_t parts = s->splits > 1 ? s->splits * p->batches.count * s->m * s->n * size : 0;
    plan->scratch_bytes = (size_t)(plan->a_bytes + plan->b_bytes + parts);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static const tarn__cl_kernel *find_pack(const tarn__call *call, const tarn__cl_gemm *p, const tarn__view *x)
{
    char options[64];
    snprintf(options, sizeof(options), "-DREAL=%s -DT_X=%s",
             tarn__cl_accum_dtype(p->a.dtype) == TARN_F64 ? "double" : "float", tarn__cl_dtype_name(x->dtype));
    return tarn__cl_find(call, "gemm_pack", "pack", options);
}

bool tarn__cl_gemm_panels_find(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    tarn__cl_gemm_program g = tarn__cl_gemm_program_of(p, "gemm_panels", "tile", plan->sizes.splits > 1);
    size_t length = strlen(g.options);
    snprintf(g.options + length, sizeof(g.options) - length, " -DROWS=%d -DLANES=%d", plan->tile.rows,
             plan->tile.lanes);
    plan->multiply = tarn__cl_gemm_find(call, &g);
    plan->pack_a = find_pack(call, p, &p->a);
    plan->pack_b = p->b_is_packed ? NULL : find_pack(call, p, &p->b);
    return tarn__cl_allows(plan->multiply, 1) && tarn__cl_allows(plan->pack_a, 1) &&
           (p->b_is_packed || tarn__cl_allows(plan->pack_b, 1));
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Packs an operand `x` into panels at `to`. */
static void pack(const tarn__call *call, const tarn__cl_kernel *kernel, const tarn__view *x, const tarn__view *to,
                 const tarn__nest *batches, const tarn__cl_gemm_packing *packing, int64_t batch_count)
{
    tarn__cl_launch l = tarn__cl_begin_kernel(call, kernel);
    tarn__cl_arg_view(&l, x);
    tarn__cl_arg_view(&l, to);
    tarn__cl_arg_value(&l, batches, sizeof(*batches));
    tarn__cl_arg_value(&l, packing, sizeof(*packing));
    size_t panels = (size_t)ceiling(packing->lines, packing->width);
    tarn__cl_enqueue(&l, 3, (size_t[]){(size_t)ceiling(packing->depth, PACK_STEP), panels, (size_t)batch_count},
                     (size_t[]){1, 1, 1});
}

/* Rows of a, in panels of the tile's height. */
static void pack_a(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan, int64_t first,
                   int64_t batches, const tarn__view *to)
{
    const tarn__cl_gemm_sizes *s = &plan->sizes;
    tarn__cl_gemm_packing packing = {.lines = s->m,
                                     .depth = s->k,
                                     .first = plan->a_is_shared ? 0 : first,
                                     .line_stride = s->a_row_stride,
                                     .term_stride = s->a_col_stride,
                                     .batch_stride = s->a_batch_stride,
                                     .width = plan->tile.rows,
                                     .operand = 1};
    pack(call, plan->pack_a, &p->a, to, &p->batches, &packing, plan->a_is_shared ? 1 : batches);
}

/* Columns [column, column + columns) of b, in panels of the tile's width. */
static void pack_b(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan, int64_t first,
                   int64_t batches, int64_t column, int64_t columns, const tarn__view *to)
{
    const tarn__cl_gemm_sizes *s = &plan->sizes;
    tarn__cl_gemm_packing packing = {.lines = columns,
                                     .depth = s->k,
                                     .first = plan->b_is_shared ? 0 : first,
                                     .line_stride = s->b_col_stride,
                                     .term_stride = s->b_row_stride,
                                     .batch_stride = s->b_batch_stride,
                                     .width = plan->tile.width,
                                     .operand = 2};
    tarn__view from = p->b;
    from.offset += column * s->b_col_stride;
    pack(call, plan->pack_b, &from, to, &p->batches, &packing, plan->b_is_shared ? 1 : batches);
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

/* Multiplies `columns` columns from `column` of `batches` batches from `first`, whose panels are packed. */
static void run_piece(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan, int64_t first,
                      int64_t batches, int64_t column, int64_t columns, const tarn__view *a, const tarn__view *b,
                      const tarn__view *parts)
{
    tarn__cl_gemm_sizes s = plan->sizes;
    bool is_split = s.splits > 1;
    tarn__cl_gemm piece = *p;
    piece.c.offset += column * s.c_col_stride;
    piece.bias.offset += column * s.bias_col_stride;
    s.n = columns;
    s.first = first;
    if (is_split)
        s.c_row_stride = s.n, s.c_col_stride = 1;
    tarn__cl_launch l = tarn__cl_gemm_begin(call, plan->multiply, a, b);
    tarn__cl_gemm_arg_result(&l, &piece, is_split ? parts : &piece.c, &s, is_split);
    tarn__cl_enqueue(&l, 3,
                     (size_t[]){(size_t)ceiling(s.m, plan->tile.rows), (size_t)ceiling(columns, plan->tile.width),
                                (size_t)(batches * s.splits)},
                     (size_t[]){1, 1, 1});
}

/* A shared operand is packed once; b again for every piece of columns. */
void tarn__cl_gemm_panels_run(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan,
                              int64_t scratch)
{
    tarn_dtype sums = tarn__cl_accum_dtype(p->a.dtype);
    tarn__view a = tarn__cl_scratch_view(call, scratch, sums),
               b = tarn__cl_scratch_view(call, scratch + plan->a_bytes, sums);
    tarn__view parts = tarn__cl_scratch_view(call, scratch + plan->a_bytes + plan->b_bytes, sums);
    for (int64_t first = 0; first < p->batches.count; first += plan->batches) {
        int64_t batches = min_i64(plan->batches, p->batches.count - first);
        if (first == 0 || !plan->a_is_shared)
            pack_a(call, p, plan, first, batches, &a);
        for (int64_t column = 0; column < plan->sizes.n; column += plan->columns) {
            int64_t columns = min_i64(plan->columns, plan->sizes.n - column);
            tarn__view own = p->b_is_packed ? p->b : b;
            own.offset += p->b_is_packed ? first * plan->sizes.b_batch_stride : 0;
            if (!p->b_is_packed && (first == 0 || !plan->b_is_shared || plan->columns < plan->sizes.n))
                pack_b(call, p, plan, first, batches, column, columns, &b);
            run_piece(call, p, plan, first, batches, column, columns, &a, &own, &parts);
        }
    }
    if (plan->sizes.splits > 1)
        tarn__cl_gemm_add_splits(call, p, plan, &parts);
}

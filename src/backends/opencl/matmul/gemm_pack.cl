/* gemm_pack.cl: an operand of a product laid in panels.
 *
 * A panel is `width` lines (rows of a, columns of b) by k: element (line, k) lies at k · width + line; what is beyond
 * the last line is 0. Packing brings every dtype and every stride to what sums are made in. With one panel as wide as
 * there are lines it makes a dense matrix.
 *
 * Options: REAL, what sums are made in; T_X, the operand's dtype. */

/* tarn__cl_gemm_packing of gemm.h. */
typedef struct packing {
    long lines, depth, first;
    long line_stride, term_stride;
    long room; /* elements from one batch to the next */
    int width, operand;
} packing;

#define STEP 64 /* terms of a panel that a work-item packs */

/* A work-item goes along memory: (depth / STEP, panels, batches). */
__kernel void pack(const __global void *x, long x_place, __global void *to, long to_place, nest batches, packing p)
{
    long begin = get_global_id(0) * STEP, end = min(begin + STEP, p.depth), panel = get_global_id(1),
         batch = get_global_id(2);
    int width = p.width, lines = (int)min((long)width, p.lines - panel * width);
    __global REAL *panels = (__global REAL *)to + to_place + batch * p.room + panel * width * p.depth;
    x_place += nest_at(&batches, p.first + batch, p.operand) + panel * width * p.line_stride;
    for (long k = begin; lines < width && k < end; k++)
        for (int i = lines; i < width; i++)
            panels[k * width + i] = 0;
    if (p.term_stride == 1) {
        for (int i = 0; i < lines; i++)
            for (long k = begin; k < end; k++)
                panels[k * width + i] = LOAD(T_X, x, x_place + i * p.line_stride + k);
        return;
    }
    for (long k = begin; k < end; k++) {
        long at = x_place + k * p.term_stride;
        if (p.line_stride == 1)
            for (int i = 0; i < lines; i++)
                panels[k * width + i] = LOAD(T_X, x, at + i);
        else
            for (int i = 0; i < lines; i++)
                panels[k * width + i] = LOAD(T_X, x, at + i * p.line_stride);
    }
}

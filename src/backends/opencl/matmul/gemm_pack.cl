/* gemm_pack.cl: packs an operand of a GEMM into panels.
 *
 * A panel is `width` lines (rows of a, columns of b) by k: element (line, k) is at k · width + line, and lines beyond
 * the last are 0. Packing converts every dtype and stride to the type of sums, so that gemm_panels.cl reads
 * contiguously. With one panel as wide as there are lines the result is a contiguous (k, lines) matrix.
 *
 * Options: REAL, the type of sums; T_X, the operand's dtype. */

/* tarn__cl_gemm_packing of gemm.h, passed by value. */
typedef struct packing {
    long lines, depth, first;
    long line_stride, term_stride;
    long batch_stride; /* of the packed operand */
    int width, operand;
} packing;

#define STEP 64 /* terms per work-item; PACK_STEP of gemm_panels.c */

/* Grid (depth / STEP, panels, batches). The inner loop follows the operand's contiguous axis. */
__kernel void pack(const __global void *x, long x_offset, __global void *to, long to_offset, nest batches, packing p)
{
    long begin = get_global_id(0) * STEP, end = min(begin + STEP, p.depth), panel = get_global_id(1),
         batch = get_global_id(2);
    int width = p.width, lines = (int)min((long)width, p.lines - panel * width);
    __global REAL *panels = (__global REAL *)to + to_offset + batch * p.batch_stride + panel * width * p.depth;
    x_offset += nest_at(&batches, p.first + batch, p.operand) + panel * width * p.line_stride;
    for (long k = begin; lines < width && k < end; k++)
        for (int i = lines; i < width; i++)
            panels[k * width + i] = 0;
    if (p.term_stride == 1) {
        for (int i = 0; i < lines; i++)
            for (long k = begin; k < end; k++)
                panels[k * width + i] = LOAD(T_X, x, x_offset + i * p.line_stride + k);
        return;
    }
    for (long k = begin; k < end; k++) {
        long at = x_offset + k * p.term_stride;
        if (p.line_stride == 1)
            for (int i = 0; i < lines; i++)
                panels[k * width + i] = LOAD(T_X, x, at + i);
        else
            for (int i = 0; i < lines; i++)
                panels[k * width + i] = LOAD(T_X, x, at + i * p.line_stride);
    }
}

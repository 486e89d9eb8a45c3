/* gemm.cl: shared by all GEMM kernels: the sizes, and the epilogue that turns a sum into an element of c.
 *
 * Options: REAL, the type of sums (float, double, or long for integers); T_C and T_BIAS, dtypes of result and bias. */

/* tarn__cl_gemm_sizes of gemm.h, passed by value. */
typedef struct sizes {
    long m, n, k;
    long first;        /* first batch of the nest in this launch */
    long splits, part; /* split-K: number of parts, and terms per part */
    long c_row_stride, c_col_stride, a_row_stride, a_col_stride, b_row_stride, b_col_stride;
    long a_batch_stride, b_batch_stride; /* of packed operands; 0: all batches share one */
    long bias_row_stride, bias_col_stride;
} sizes;

/* Writes c[row, column] = alpha · sum + beta · c + bias for the batch of c that begins at `offset`. c is read only
 * where beta is not 0: it may be uninitialized. */
void finish(__global void *c, long offset, const __global void *bias, long bias_offset, const sizes *s, long row,
            long column, REAL sum, REAL alpha, REAL beta)
{
    long at = offset + row * s->c_row_stride + column * s->c_col_stride;
    sum *= alpha;
    if (beta != 0)
        sum += beta * LOAD(T_C, c, at);
    if (bias)
        sum += LOAD(T_BIAS, bias, bias_offset + row * s->bias_row_stride + column * s->bias_col_stride);
    STORE(T_C, c, at, sum);
}

/* gemm.cl: what the kernels of matrix products share: the sizes of a product, and how a sum becomes an element of the
 * result.
 *
 * Options: REAL, float or double, what sums are made in; T_C and T_BIAS, the dtypes of the result and of its bias. */

/* tarn__cl_gemm_sizes of gemm.h. */
typedef struct sizes {
    long m, n, k;
    long first;        /* of the nest's batches */
    long splits, part; /* of k: each sums up this many terms */
    long c_row_stride, c_col_stride, a_row_stride, a_col_stride, b_row_stride, b_col_stride;
    long a_batch_stride, b_batch_stride; /* packed: elements from one batch to the next; 0: all have one */
    long bias_row_stride, bias_col_stride;
} sizes;

/* Element (row, column) of a batch of c that begins at `place`: alpha · sum + beta · what is there + bias. */
void finish(__global void *c, long place, const __global void *bias, long bias_place, const sizes *s, long row,
            long column, REAL sum, REAL alpha, REAL beta)
{
    long at = place + row * s->c_row_stride + column * s->c_col_stride;
    sum *= alpha;
    if (beta != 0)
        sum += beta * LOAD(T_C, c, at);
    if (bias)
        sum += LOAD(T_BIAS, bias, bias_place + row * s->bias_row_stride + column * s->bias_col_stride);
    STORE(T_C, c, at, sum);
}

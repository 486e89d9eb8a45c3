/* gemm.cl: what the kernels of matrix products share: the sizes of a product, and how a sum becomes an element of the
 * result.
 *
 * Options: REAL, float or double, what sums are made in; T_C and T_BIAS, the dtypes of the result and of its bias. */

/* tarn__cl_sizes of gemm.h. */
typedef struct sizes {
    long m, n, k;
    long first;        /* of the nest's batches */
    long splits, part; /* of k: each sums up this many terms */
    long c_down, c_across, a_down, a_across, b_down, b_across;
    long a_room, b_room; /* packed: elements from one batch to the next; 0: all have one */
    long bias_down, bias_across;
} sizes;

/* Element (row, column) of a batch of c that begins at `place`: alpha · sum + beta · what is there + bias. */
void finish(__global void *c, long place, const __global void *bias, long bias_place, const sizes *s, long row,
            long column, REAL sum, REAL alpha, REAL beta)
{
    long at = place + row * s->c_down + column * s->c_across;
    sum *= alpha;
    if (beta != 0)
        sum += beta * LOAD(T_C, c, at);
    if (bias)
        sum += LOAD(T_BIAS, bias, bias_place + row * s->bias_down + column * s->bias_across);
    STORE(T_C, c, at, sum);
}

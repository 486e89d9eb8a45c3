/* gemm_panels.cl: matrix products on processors without fast memory for a group, as PoCL has them: a work-item makes a
 * tile of the result, ROWS by two vectors, in its registers from a panel of each operand (gemm_pack.cl). Both are read
 * once, from end to end.
 *
 * Options: gemm.cl's, ROWS, LANES of a vector. */
#include "backends/opencl/matmul/gemm.cl"

#define VECTOR JOIN(REAL, LANES)
#define LOAD_VECTOR JOIN(vload, LANES)
#define STORE_VECTOR JOIN(vstore, LANES)
#define WIDTH (2 * LANES)
#define STRETCH 512 /* terms that are summed up before they are added to the others: long sums stay exact */
#define EACH_ROW _Pragma("unroll") for (int i = 0; i < ROWS; i++)

/* The sums of a tile, a line of WIDTH for each of its rows. */
void sum_tile(const __global REAL *a, const __global REAL *b, long k, REAL *sums)
{
    for (long begin = 0; begin < k; begin += STRETCH) {
        int terms = (int)min(k - begin, (long)STRETCH);
        VECTOR left[ROWS], right[ROWS];
        EACH_ROW left[i] = right[i] = 0;
        for (; terms > 0; terms--, a += ROWS, b += WIDTH) {
            VECTOR x = LOAD_VECTOR(0, b), y = LOAD_VECTOR(1, b);
            EACH_ROW
            {
                left[i] += x * a[i];
                right[i] += y * a[i];
            }
        }
        EACH_ROW
        {
            if (begin > 0) {
                left[i] += LOAD_VECTOR(2 * i, sums);
                right[i] += LOAD_VECTOR(2 * i + 1, sums);
            }
            STORE_VECTOR(left[i], 2 * i, sums);
            STORE_VECTOR(right[i], 2 * i + 1, sums);
        }
    }
}

/* One work-item a tile: (tiles down, tiles across, batches · splits). */
__attribute__((reqd_work_group_size(1, 1, 1))) __kernel void
tile(const __global void *a, long a_place, const __global void *b, long b_place, __global void *c, long c_place,
     const __global void *bias, long bias_place, nest batches, sizes s, real alpha, real beta)
{
    long row = get_global_id(0) * ROWS, column = get_global_id(1) * WIDTH, batch = get_global_id(2) / s.splits,
         split = get_global_id(2) % s.splits;
    long begin = split * s.part, terms = min(s.part, s.k - begin);
    const __global REAL *left =
        (const __global REAL *)a + a_place + batch * s.a_batch_stride + row * s.k + begin * ROWS;
    const __global REAL *right =
        (const __global REAL *)b + b_place + batch * s.b_batch_stride + column * s.k + begin * WIDTH;
    REAL sums[ROWS * WIDTH];
    sum_tile(left, right, terms, sums);
    c_place += s.splits > 1 ? get_global_id(2) * s.m * s.n : nest_at(&batches, s.first + batch, 0);
    bias_place += nest_at(&batches, s.first + batch, 3);
    int rows = (int)min((long)ROWS, s.m - row), columns = (int)min((long)WIDTH, s.n - column);
    /* constants here let the compiler make vectors of it */
    if (s.c_col_stride == 1 && s.bias_row_stride == 0 && s.bias_col_stride <= 1) {
        s.c_col_stride = 1;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++)
                finish(c, c_place, bias, bias_place, &s, row + i, column + j, sums[i * WIDTH + j], (REAL)alpha,
                       (REAL)beta);
        return;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            finish(c, c_place, bias, bias_place, &s, row + i, column + j, sums[i * WIDTH + j], (REAL)alpha, (REAL)beta);
}

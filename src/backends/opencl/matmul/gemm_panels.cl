/* gemm_panels.cl: GEMM on CPUs (PoCL): a work-item computes a tile of ROWS by two vectors in registers from one panel
 * of each operand (gemm_pack.cl). Both panels are read once, front to back: (ROWS + WIDTH) elements per 2 · ROWS ·
 * WIDTH operations.
 *
 * Options: those of gemm.cl; ROWS; LANES of a vector. */
#include "backends/opencl/matmul/gemm.cl"

#define VECTOR JOIN(REAL, LANES)
#define LOAD_VECTOR JOIN(vload, LANES)
#define STORE_VECTOR JOIN(vstore, LANES)
#define WIDTH (2 * LANES)
#define BLOCK_TERMS 512 /* summed before they are added to the total: bounds the rounding error of long sums */
#define EACH_ROW _Pragma("unroll") for (int i = 0; i < ROWS; i++)

/* The sums of a tile (ROWS, WIDTH), row after row. */
void sum_tile(const __global REAL *a, const __global REAL *b, long k, REAL *sums)
{
    for (long begin = 0; begin < k; begin += BLOCK_TERMS) {
        int terms = (int)min(k - begin, (long)BLOCK_TERMS);
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

/* Grid (tiles down, tiles across, batches · splits). */
__attribute__((reqd_work_group_size(1, 1, 1))) __kernel void
tile(const __global void *a, long a_offset, const __global void *b, long b_offset, __global void *c, long c_offset,
     const __global void *bias, long bias_offset, nest batches, sizes s, real alpha, real beta)
{
    long row = get_global_id(0) * ROWS, column = get_global_id(1) * WIDTH, batch = get_global_id(2) / s.splits,
         split = get_global_id(2) % s.splits;
    long begin = split * s.part, terms = min(s.part, s.k - begin);
    const __global REAL *left =
        (const __global REAL *)a + a_offset + batch * s.a_batch_stride + row * s.k + begin * ROWS;
    const __global REAL *right =
        (const __global REAL *)b + b_offset + batch * s.b_batch_stride + column * s.k + begin * WIDTH;
    REAL sums[ROWS * WIDTH];
    sum_tile(left, right, terms, sums);
    c_offset += s.splits > 1 ? get_global_id(2) * s.m * s.n : nest_at(&batches, s.first + batch, 0);
    bias_offset += nest_at(&batches, s.first + batch, 3);
    int rows = (int)min((long)ROWS, s.m - row), columns = (int)min((long)WIDTH, s.n - column);
    /* a constant stride lets the compiler vectorize the stores */
    if (s.c_col_stride == 1 && s.bias_row_stride == 0 && s.bias_col_stride <= 1) {
        s.c_col_stride = 1;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++)
                finish(c, c_offset, bias, bias_offset, &s, row + i, column + j, sums[i * WIDTH + j], (REAL)alpha,
                       (REAL)beta);
        return;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            finish(c, c_offset, bias, bias_offset, &s, row + i, column + j, sums[i * WIDTH + j], (REAL)alpha,
                   (REAL)beta);
}

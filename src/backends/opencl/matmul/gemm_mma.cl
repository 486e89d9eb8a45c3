/* gemm_mma.cl: GEMM of 16-bit floats by the tensor cores of NVIDIA GPUs (HAS_MMA: probed), which OpenCL C reaches only
 * through inline PTX. A work-group of eight warps computes a tile of SIDE_M by SIDE_N, each warp TILES_M by TILES_N
 * tiles of 16 by 8.
 *
 * Both operands are contiguous along k (terms). They go through local memory, DEPTH terms at a time: while one of two
 * stages is multiplied, the next terms are fetched into registers and then stored to the other stage. Sums are f32, in
 * the order of the terms.
 *
 * Options: those of gemm.cl; T_A, dtype of both operands; SIDE_M, SIDE_N; WARPS_M, warps along a tile's rows. With
 * MMA_EMULATED work-items compute their sums of a tile from local memory, so that all else can be tested on devices
 * without tensor cores. */
#include "backends/opencl/matmul/gemm.cl"

#define GROUP 256
#define DEPTH 32
#define PITCH (DEPTH / 2 + 4) /* words of a line in local memory: adjacent lines begin 20 banks apart */
#define WARPS_N (8 / WARPS_M)
#define TILES_M (SIDE_M / WARPS_M / 16)
#define TILES_N (SIDE_N / WARPS_N / 8)
#define VECS(side) ((side)*DEPTH / 8 / GROUP) /* of eight elements, per work-item and stage */
#ifdef IS_CPU                                 /* PoCL takes minutes over unrolled loops */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif

#ifdef MMA_EMULATED
#define FLOAT_OF(T, x) JOIN(float_of_, T)(x)
float float_of_bf16(ushort x)
{
    return bf16_to_f32(x);
}
float float_of_f16(ushort x)
{
    return vload_half(0, (const half *)&x);
}
#else
#define MMA_(type, c, a, b) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3]) \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#define MMA_bf16(c, a, b) MMA_("bf16", c, a, b)
#define MMA_f16(c, a, b) MMA_("f16", c, a, b)
#define MMA(T, c, a, b) JOIN(MMA_, T)(c, a, b)
#endif

/* Eight terms of line `line`, zeros where there are none. */
uint4 fetch(const __global ushort *x, long at, bool is_there)
{
    return is_there ? *(const __global uint4 *)(x + at) : (uint4)0;
}

/* Grid (tiles across · GROUP, tiles down, batches · splits). */
__attribute__((reqd_work_group_size(GROUP, 1, 1))) __kernel void
mma(const __global void *a, long a_offset, const __global void *b, long b_offset, __global void *c, long c_offset,
    const __global void *bias, long bias_offset, nest batches, sizes s, real alpha, real beta)
{
    __local uint stage_a[2][SIDE_M * PITCH] __attribute__((aligned(16)));
    __local uint stage_b[2][SIDE_N * PITCH] __attribute__((aligned(16)));
    const int item = (int)get_local_id(0), warp = item / 32, lane = item % 32, line = lane / 4, pair = lane % 4;
    const int warp_row = warp % WARPS_M * (TILES_M * 16), warp_column = warp / WARPS_M * (TILES_N * 8);
    const long row = get_group_id(1) * SIDE_M, column = get_group_id(0) * SIDE_N;
    const long batch = s.first + get_global_id(2) / s.splits, begin = get_global_id(2) % s.splits * s.part,
               end = min(begin + s.part, s.k);
    const __global ushort *from_a = (const __global ushort *)a + a_offset + nest_at(&batches, batch, 1),
                          *from_b = (const __global ushort *)b + b_offset + nest_at(&batches, batch, 2);
    uint4 next_a[VECS(SIDE_M)], next_b[VECS(SIDE_N)];
    float sum[TILES_M][TILES_N][4];
    EACH(i, TILES_M)
    EACH(j, TILES_N)
    EACH(e, 4) sum[i][j][e] = 0;

/* A work-item's i-th vec8 of a stage: line and term. */
#define LINE_OF(i) ((item + (i)*GROUP) / (DEPTH / 8))
#define TERM_OF(i) ((item + (i)*GROUP) % (DEPTH / 8) * 8)
#define FETCH_NEXT(term) \
    EACH(i, VECS(SIDE_M)) \
    next_a[i] = fetch(from_a, (row + LINE_OF(i)) * s.a_row_stride + (term) + TERM_OF(i), \
                      row + LINE_OF(i) < s.m && (term) + TERM_OF(i) < end); \
    EACH(i, VECS(SIDE_N)) \
    next_b[i] = fetch(from_b, (column + LINE_OF(i)) * s.b_col_stride + (term) + TERM_OF(i), \
                      column + LINE_OF(i) < s.n && (term) + TERM_OF(i) < end);
#define STORE_STAGE(slot) \
    EACH(i, VECS(SIDE_M)) * (__local uint4 *)&stage_a[slot][LINE_OF(i) * PITCH + TERM_OF(i) / 2] = next_a[i]; \
    EACH(i, VECS(SIDE_N)) * (__local uint4 *)&stage_b[slot][LINE_OF(i) * PITCH + TERM_OF(i) / 2] = next_b[i];

    int slot = 0;
    FETCH_NEXT(begin)
    STORE_STAGE(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    for (long term = begin; term < end; term += DEPTH) {
        if (term + DEPTH < end) {
            FETCH_NEXT(term + DEPTH)
        }
#ifdef MMA_EMULATED
        EACH(i, TILES_M)
        EACH(j, TILES_N)
        EACH(e, 4)
        {
            const __local ushort
                *left = (const __local ushort *)&stage_a[slot][(warp_row + i * 16 + line + e / 2 * 8) * PITCH],
                *right = (const __local ushort *)&stage_b[slot][(warp_column + j * 8 + pair * 2 + e % 2) * PITCH];
            for (int k = 0; k < DEPTH; k++)
                sum[i][j][e] += FLOAT_OF(T_A, left[k]) * FLOAT_OF(T_A, right[k]);
        }
#else
        EACH(step, DEPTH / 16)
        {
            uint left[TILES_M][4], right[TILES_N][2];
            EACH(i, TILES_M)
            {
                const __local uint *at = &stage_a[slot][(warp_row + i * 16 + line) * PITCH + step * 8 + pair];
                left[i][0] = at[0], left[i][1] = at[8 * PITCH], left[i][2] = at[4], left[i][3] = at[8 * PITCH + 4];
            }
            EACH(j, TILES_N)
            {
                const __local uint *at = &stage_b[slot][(warp_column + j * 8 + line) * PITCH + step * 8 + pair];
                right[j][0] = at[0], right[j][1] = at[4];
            }
            EACH(i, TILES_M)
            EACH(j, TILES_N) MMA(T_A, sum[i][j], left[i], right[j]);
        }
#endif
        slot ^= 1;
        if (term + DEPTH < end) {
            STORE_STAGE(slot)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    bias_offset += nest_at(&batches, batch, 3);
    c_offset += s.splits > 1 ? get_global_id(2) * s.m * s.n : nest_at(&batches, batch, 0);
    EACH(i, TILES_M)
    EACH(j, TILES_N)
    EACH(e, 4)
    {
        const long at = row + warp_row + i * 16 + line + e / 2 * 8,
                   to = column + warp_column + j * 8 + pair * 2 + e % 2;
        if (at < s.m && to < s.n)
            finish(c, c_offset, bias, bias_offset, &s, at, to, sum[i][j][e], (REAL)alpha, (REAL)beta);
    }
}

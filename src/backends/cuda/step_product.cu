/* step_product.cu: products of a few rows of x, as decoding has them: bound by the weights' bytes. A norm of x before, and a sum or a gate after them, are part of the kernel.
 *
 * A warp takes two rows of the weights at a time, neighbours or those of gate and up, so that what it reads of x and what it does around a row is shared. Pieces of both go to a ring in the
 * warp's own shared memory, as many ahead as it has places for; all blocks together have megabytes under way, and go on asking while they compute. x stands in the block's
 * shared memory, as f32 for weights of floats, else rounded to bytes: see step_x.cuh. Where there are fewer rows than warps, several warps share their pieces. Sums are added in an
 * order given by the shape and the number of multiprocessors. */
#include "backends/cuda/step_pieces.cuh"

#define STEP_WARPS 8
#define BLOCKS_AT_ONCE 2 /* of a multiprocessor: enough to have memory busy, and so few that those of the next kernel find room beside them */
#define ROWS_AT_ONCE 4   /* of x, where there are several */

/* ---- jobs ------------------------------------------------------------------------------------------------------------------ */

struct step_weight {
    const char *base;
    int64_t pitch, out; /* bytes from row to row */
    const void *bias;   /* NULL: none */
    tarn_dtype bias_dtype;
    int64_t bias_across;
    void *y;
    int64_t y_down;
};

struct step_args {
    step_x x;
    step_weight weight[3];
    int end[3]; /* number of the job behind the last of each weight; a job is two rows */
    int jobs, row_bytes;
    int pieces;      /* of a row */
    int split;       /* warps that share the pieces of a job; where they are several, a warp has one job at most */
    bool is_gated;   /* y = silu(first) · second, which are a row of two weights each */
    const void *sum; /* to which the product is added; NULL: none */
    int64_t sum_down;
};

/* The weight that a job is of, and the first of its rows there. */
__device__ __forceinline__ int weight_of_job(const step_args &a, int job, int *row)
{
    int which = a.is_gated ? 0 : (job >= a.end[0]) + (job >= a.end[1]);
    *row = a.is_gated ? job : PAIR * (job - (which ? a.end[which - 1] : 0));
    return which;
}

/* Where the rows of a job begin. A second row that is not there is the first once more. */
__device__ __forceinline__ void rows_of_job(const step_args &a, int job, const char **from)
{
    int row, which = weight_of_job(a, job, &row);
    from[0] = a.weight[which].base + row * a.weight[which].pitch;
    from[1] = a.is_gated ? a.weight[1].base + row * a.weight[1].pitch : row + 1 < (int)a.weight[which].out ? from[0] + a.weight[which].pitch : from[0];
}

/* What a warp asks for next. */
struct asking {
    int job, piece;
    const char *from[PAIR];
};

/* Where a warp's jobs are after one another. */
__device__ __forceinline__ int jobs_at_once(const step_args &a)
{
    return gridDim.x * STEP_WARPS / a.split;
}

/* Asks for a piece of each row, if there is one, and goes on; bytes before its begin that share its first 16 come along. The group of copies ends in any case. */
template <tarn_dtype Q> __device__ __forceinline__ void ask(const step_args &a, asking &next, char *place)
{
    const int lane = threadIdx.x % WARP, left = min(a.row_bytes - next.piece * (int)piece_of<Q>::bytes, (int)piece_of<Q>::bytes);
    if (next.job < a.jobs) {
#pragma unroll
        for (int n = 0; n < PAIR; n++) {
            const int shift = piece_of<Q>::is_aligned ? 0 : (int)((uintptr_t)next.from[n] & 15), whole = left + shift;
            const char *from = next.from[n] - shift;
#pragma unroll
            for (int i = 0; i < (piece_of<Q>::place + 511) / 512; i++) {
                int at = (i * WARP + lane) * 16;
                if (at < whole)
                    copy_pack(place + n * piece_of<Q>::place + at, from + at, piece_of<Q>::is_aligned ? 16 : min(whole - at, 16));
            }
            next.from[n] += a.split * piece_of<Q>::bytes;
        }
        if ((next.piece += a.split) >= a.pieces) {
            next.piece = 0;
            next.job += jobs_at_once(a);
            if (next.job < a.jobs)
                rows_of_job(a, next.job, next.from);
        }
    }
    end_copies();
}

/* ---- results --------------------------------------------------------------------------------------------------------------- */

/* Lanes 0 to 15 get the sum of the first row over the warp, the others that of the second. */
__device__ __forceinline__ float join_pair(float first, float second)
{
    const bool is_second = threadIdx.x % WARP >= 16;
    float sum = (is_second ? second : first) + __shfl_xor_sync(FULL_WARP, is_second ? first : second, 16);
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, step);
    return sum;
}

/* Lane r, of row r of x, gets the first row's sum, lane 16 + r the second's. */
template <int R> __device__ __forceinline__ float value_of(const float (*sums)[R])
{
    float value = 0;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float sum = join_pair(sums[0][r], sums[1][r]);
        value = threadIdx.x % 16 == r ? sum : value;
    }
    return value;
}

/* y of a job from such values. */
__device__ __forceinline__ void write_job(const step_args &a, int job, int64_t first, int rows, float value)
{
    int row, lane = threadIdx.x % WARP, number = lane % 16;
    const step_weight &w = a.weight[weight_of_job(a, job, &row)];
    if (a.is_gated) {
        float up = __shfl_xor_sync(FULL_WARP, value, 16);
        value = value / (1 + expf(-value)) * up;
    } else {
        row += lane / 16;
    }
    if (number >= rows || row >= (int)w.out || (a.is_gated && lane >= 16))
        return;
    if (w.bias)
        value += load_float(w.bias, w.bias_dtype, row * w.bias_across);
    if (a.sum)
        value += load_float(a.sum, a.x.dtype, (first + number) * a.sum_down + row);
    store_float(w.y, a.x.dtype, (first + number) * w.y_down + row, value);
}

/* The same where several warps, neighbours, have a part each. All of the block come here; `job` may be none. */
__device__ __forceinline__ void write_shared(const step_args &a, int job, int64_t first, int rows, float value)
{
    __shared__ float parts[STEP_WARPS][WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    parts[warp][lane] = value;
    __syncthreads();
    if (warp % a.split != 0 || job >= a.jobs)
        return;
    for (int i = 1; i < a.split; i++)
        value += parts[warp + i][lane];
    write_job(a, job, first, rows, value);
}

template <tarn_dtype Q, int R> static __global__ void __launch_bounds__(STEP_WARPS *WARP, BLOCKS_AT_ONCE + 1) step_kernel(const __grid_constant__ step_args a)
{
    extern __shared__ __align__(16) char space[];
    enum { places = piece_of<Q>::places, room = PAIR * piece_of<Q>::place };
    const int64_t first = (int64_t)blockIdx.y * R;
    const int rows = (int)min(a.x.rows - first, (int64_t)R), warp = threadIdx.x / WARP, part = warp % a.split;
    const held_x x = held_at(space + STEP_WARPS * places * room, a.x.in, piece_of<Q>::is_bytes);
    char *ring = space + warp * places * room;
    const int first_job = (blockIdx.x * STEP_WARPS + warp) / a.split;
    int job = first_job, number = part;
    asking next = {job, part, {}};
    some_groups of_norm;
    call_next();
    if (job < a.jobs)
        rows_of_job(a, job, next.from);
    next.from[0] += part * piece_of<Q>::bytes, next.from[1] += part * piece_of<Q>::bytes;
    for (int i = 0; i < places; i++)
        ask<Q>(a, next, ring + i * room);
    if (a.x.norm)
        of_norm.load(a.x.norm, a.x.dtype, 0, 0, a.x.in / 8);
    wait_for_front();
    hold_rows<piece_of<Q>::is_bytes>(a.x, first, rows, of_norm, x);
    __syncthreads();
    float sums[PAIR][R] = {}, value = 0;
    for (int at = 0; job < a.jobs; at = at + 1 < places ? at + 1 : 0) {
        int shift[PAIR] = {};
        if (!piece_of<Q>::is_aligned) {
            const char *from[PAIR];
            rows_of_job(a, job, from);
            shift[0] = (int)((uintptr_t)from[0] & 15), shift[1] = (int)((uintptr_t)from[1] & 15);
        }
        wait_for_copies<places - 1>();
        __syncwarp();
        add_piece<Q, R>(a.x.in, number, ring + at * room, shift, x, sums);
        __syncwarp();
        ask<Q>(a, next, ring + at * room);
        if ((number += a.split) < a.pieces)
            continue;
        number = 0;
        value = value_of<R>(sums);
        if (a.split == 1)
            write_job(a, job, first, rows, value);
        job += jobs_at_once(a);
#pragma unroll
        for (int r = 0; r < R; r++)
            sums[0][r] = sums[1][r] = 0;
    }
    if (a.split > 1)
        write_shared(a, first_job, first, rows, value);
}

/* ---- starting it ----------------------------------------------------------------------------------------------------------- */

/* How many warps share a job: as many as let all jobs be under way at once. */
static int split_for(const step_args &a, int64_t room)
{
    int split = 1;
    while (split < STEP_WARPS && 2 * split <= a.pieces && 2 * split * (int64_t)a.jobs <= room * STEP_WARPS)
        split *= 2;
    return split;
}

/* Grid: as many blocks as there is room for at once, or fewer, with the same number of jobs each; y: groups of rows of x, for each of which the weights are read. Bytes:
 * the weights'. */
template <tarn_dtype Q, int R> static void launch(const tarn__call *call, step_args &a)
{
    size_t shared = (size_t)(STEP_WARPS * piece_of<Q>::places * PAIR * piece_of<Q>::place + R * held_pitch(a.x.in, piece_of<Q>::is_bytes));
    int at_once = 0;
    cudaFuncSetAttribute(step_kernel<Q, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, step_kernel<Q, R>, STEP_WARPS * WARP, shared);
    int64_t room = (int64_t)(at_once > BLOCKS_AT_ONCE ? BLOCKS_AT_ONCE : at_once > 0 ? at_once : 1) * tarn__cuda_at(call->device)->multiprocessors;
    a.split = split_for(a, room);
    int64_t needed = ((int64_t)a.jobs * a.split + STEP_WARPS - 1) / STEP_WARPS, rounds = (needed + room - 1) / room;
    launch_step(call, step_kernel<Q, R>, dim3(blocks_for(needed, rounds), blocks_for(a.x.rows, R)), STEP_WARPS * WARP, shared, a);
}

/* Several rows of x share what is read of the weights, where their shared memory is enough. */
template <tarn_dtype Q> static void launch_rows(const tarn__call *call, step_args &a)
{
    a.row_bytes = (int)tarn__bytes_of(Q, a.x.in);
    a.pieces = (a.x.in + piece_of<Q>::elements - 1) / piece_of<Q>::elements;
    int64_t shared = STEP_WARPS * piece_of<Q>::places * PAIR * piece_of<Q>::place + (int64_t)ROWS_AT_ONCE * held_pitch(a.x.in, piece_of<Q>::is_bytes);
    if (a.x.rows > 1 && shared <= tarn__cuda_at(call->device)->shared_bytes)
        launch<Q, ROWS_AT_ONCE>(call, a);
    else
        launch<Q, 1>(call, a);
}

static void launch_dtype(const tarn__call *call, step_args &a, tarn_dtype dtype)
{
    if (a.jobs == 0 || a.x.rows == 0)
        return;
    switch (dtype) {
    case TARN_F32: launch_rows<TARN_F32>(call, a); break;
    case TARN_BF16: launch_rows<TARN_BF16>(call, a); break;
    case TARN_F16: launch_rows<TARN_F16>(call, a); break;
    case TARN_Q8_0: launch_rows<TARN_Q8_0>(call, a); break;
    case TARN_Q4_0: launch_rows<TARN_Q4_0>(call, a); break;
    case TARN_Q4_K: launch_rows<TARN_Q4_K>(call, a); break;
    default: launch_rows<TARN_Q6_K>(call, a); break;
    }
}

static step_x x_of(const tarn__call *call, const tarn__view *norm)
{
    const tarn__view *x = call->in[0];
    return step_x{tarn__view_at(x), x->dtype, x->stride[0], data_of<void>(norm), ((const tarn__norm *)call->params)->epsilon, (int)x->shape[1],
                  (int)x->shape[0]};
}

static step_weight weight_of(const tarn__view *weight, const tarn__view *bias, const tarn__view *y)
{
    step_weight w = {};
    int64_t down = weight->stride[0];
    w.base = (const char *)tarn__view_at(weight), w.out = weight->shape[0];
    w.pitch = down < 0 ? -tarn__bytes_of(weight->dtype, -down) : tarn__bytes_of(weight->dtype, down);
    if (bias)
        w.bias = tarn__view_at(bias), w.bias_dtype = bias->dtype, w.bias_across = bias->stride[0];
    if (y)
        w.y = tarn__view_at(y), w.y_down = y->stride[0];
    return w;
}

static void kernel_norm_linear(const tarn__call *call)
{
    step_args a = {};
    a.x = x_of(call, call->in[1]);
    for (int i = 0; i < 3 && call->in[2 + i]; i++) {
        a.weight[i] = weight_of(call->in[2 + i], call->in[5 + i], call->out[i]);
        a.jobs += (int)((a.weight[i].out + PAIR - 1) / PAIR);
        for (int k = i; k < 3; k++)
            a.end[k] = a.jobs;
    }
    launch_dtype(call, a, call->in[2]->dtype);
}

static void kernel_norm_gated(const tarn__call *call)
{
    step_args a = {};
    a.x = x_of(call, call->in[1]);
    a.weight[0] = weight_of(call->in[2], NULL, call->out[0]);
    a.weight[1] = weight_of(call->in[3], NULL, NULL);
    a.jobs = (int)a.weight[0].out, a.is_gated = true;
    launch_dtype(call, a, call->in[2]->dtype);
}

static void kernel_linear_sum(const tarn__call *call)
{
    step_args a = {};
    a.x = x_of(call, NULL);
    a.weight[0] = weight_of(call->in[1], call->in[2], call->out[0]);
    a.sum = tarn__view_at(call->in[3]), a.sum_down = call->in[3]->stride[0];
    a.jobs = (int)((a.weight[0].out + PAIR - 1) / PAIR);
    a.end[0] = a.end[1] = a.end[2] = a.jobs;
    launch_dtype(call, a, call->in[1]->dtype);
}

void tarn__cuda_step_product(tarn__kernel_row *rows)
{
    const uint32_t takes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BLOCKS;
    rows[TARN__K_norm_linear] = tarn__kernel_row{kernel_norm_linear, takes, NULL};
    rows[TARN__K_norm_gated] = tarn__kernel_row{kernel_norm_gated, takes, NULL};
    rows[TARN__K_linear_sum] = tarn__kernel_row{kernel_linear_sum, takes, NULL};
}

/* decode_mma.cu: the linear layers of a decode step for a few rows of x, on tensor cores: the weight is the left
 * operand of mma, rows of x are columns of the right one.
 *
 * A block computes tiles of 16 rows of a weight (8 of gate and 8 of up), one per group of warps. Each warp of a group
 * has a slice of the columns, which goes through a ring in the warp's own shared memory, as deep as fits. With a norm x
 * is staged once per block as fragments (decode_mma_x.cuh); without one each warp loads the elements that it needs
 * next. Sums of slices are added in order. No sum depends on the number of rows of x: the result of a row is bitwise
 * identical whatever the other rows are. */
#include "backends/cuda/decode/decode_mma_x.cuh"

#define MAX_MMA_WARPS 16
#define MAX_MMA_ROWS (2 * COLUMNS) /* of x */

/* gemv_args, and the distribution of tiles over warps. */
struct gemm_args {
    gemv_args s;
    int end[2];         /* first tile after the first weight, and after the second */
    int tiles, units;   /* tiles of all weights; units per row */
    int slices, groups; /* warps per tile; tiles that a block computes at a time */
    bool is_general;
};

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A tile: its weight, its first row there; gated: eight rows of both weights. */
struct tile_at {
    int which, row;
};

__device__ __forceinline__ tile_at find_tile(const gemm_args &a, int tile)
{
    if (a.s.is_gated)
        return tile_at{0, tile * (TILE / 2)};
    const int which = (tile >= a.end[0]) + (tile >= a.end[1]);
    return tile_at{which, (tile - (which ? a.end[which - 1] : 0)) * TILE};
}

/* Bytes from the aligned vector in which a unit of a row begins to the unit. */
template <tarn_dtype Q> __device__ __forceinline__ int shift_of(const gemm_args &a, int unit, int row)
{
    if (Q == TARN_Q8_0)
        return unit % 2 * 8;
    return Q == TARN_Q6_K ? (unit * tile_format<Q>::bytes + (int)a.s.weight[0].pitch % 16 * (row % 2)) & 15 : 0;
}

/* The next unit that a warp loads. Rows past the end repeat the last row. */
template <tarn_dtype Q> struct tile_loader {
    typedef tile_format<Q> format;
    enum { vecs = TILE * format::vecs, copies = (vecs + WARP - 1) / WARP };

    const char *low, *high; /* the first row, and the ninth */
    int tile, unit, begin, end;
    bool is_part;       /* the tile has fewer than 16 rows */
    int offset[copies]; /* of a lane's vectors from the first row of their half: less than 2 GiB */

    __device__ __forceinline__ void find_offsets(const gemm_args &a, int rows)
    {
#pragma unroll
        for (int i = 0; i < copies; i++) {
            const int at = i * WARP + (int)(threadIdx.x % WARP), r = at / format::vecs,
                      last = a.s.is_gated || r < 8 ? rows - 1 : rows - 9;
            offset[i] = min(r % 8, last) * (int)a.s.weight[0].pitch + at % format::vecs * 16;
        }
    }
    __device__ __forceinline__ void find(const gemm_args &a)
    {
        if (tile >= a.tiles)
            return;
        const tile_at at = find_tile(a, tile);
        const gemv_weight &w = a.s.weight[at.which];
        low = w.base + at.row * w.pitch;
        high = a.s.is_gated ? a.s.weight[1].base + at.row * w.pitch : low + 8 * w.pitch;
        const bool was_part = is_part;
        const int rows = (int)w.out - at.row;
        is_part = rows < (a.s.is_gated ? TILE / 2 : TILE);
        if (is_part || was_part)
            find_offsets(a, rows);
    }
    __device__ __forceinline__ void start(const gemm_args &a, int first, int slice)
    {
        begin = slice * a.units / a.slices, end = (slice + 1) * a.units / a.slices;
        unit = begin, tile = first, is_part = false;
        find_offsets(a, TILE);
        find(a);
    }
    __device__ __forceinline__ void load(const gemm_args &a, uint32_t slot, int step)
    {
        if (tile < a.tiles) {
            const char *first = low + unit * format::bytes, *ninth = high + unit * format::bytes;
#pragma unroll
            for (int i = 0; i < copies; i++) {
                const int at = i * WARP + (int)(threadIdx.x % WARP), r = at / format::vecs, v = at % format::vecs;
                if (vecs % WARP != 0 && at >= vecs)
                    break;
                const char *from = (at < 8 * format::vecs ? first : ninth) + offset[i] - shift_of<Q>(a, unit, r);
                if (format::is_float)
                    copy_async16_at(slot + r * format::pitch + (v ^ (r % 2 * 4)) * 16, from);
                else if (format::pitch == format::vecs * 16)
                    copy_async16_at(slot + at * 16, from);
                else
                    copy_async16_at(slot + r * format::pitch + v * 16, from);
            }
            if (++unit == end) {
                unit = begin;
                tile += step;
                find(a);
            }
        }
        commit_copies();
    }
};

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* The element of y in a tile that a thread of the group writes. */
struct tile_element {
    int at, column;
    int64_t row;
    const gemv_weight *w; /* NULL: not to be written */
    addend extra;

    __device__ __forceinline__ void begin(const gemm_args &a, int tile, int index)
    {
        const int lane = index % WARP, per = a.s.is_gated ? 2 : 4, c = index / WARP & (per - 1), n = index / WARP / per;
        w = NULL;
        at = (n * 4 + c) * WARP + lane;
        column = n * COLUMNS + lane % 4 * 2 + c % 2;
        if (tile >= a.tiles || column >= a.s.x.rows)
            return;
        const tile_at where = find_tile(a, tile);
        row = where.row + lane / 4 + c / 2 * 8;
        if (row >= a.s.weight[where.which].out)
            return;
        w = &a.s.weight[where.which];
        if (!a.s.is_gated)
            extra.load(a.s, *w, row, column);
    }
    __device__ __forceinline__ void write(const gemm_args &a, const float *parts, int pitch) const
    {
        if (!w)
            return;
        float value = 0, up = 0;
        for (int i = 0; i < a.slices; i++)
            value += parts[i * pitch + at];
        if (a.s.is_gated) {
            for (int i = 0; i < a.slices; i++)
                up += parts[i * pitch + at + 2 * WARP];
            value = up * (a.is_general ? activate(a.s.act, value) : value / (1 + expf(-value)));
        } else {
            value = a.is_general ? extra.add_general(a.s, *w, value) : extra.add_to(a.s, *w, value);
        }
        store_float(w->y, a.s.x.dtype, column * w->y_down + row, value);
    }
};

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

/* Shared memory of a block in bytes: rings, fragments of x, partial sums. */
template <tarn_dtype Q, int NT, int SLOTS, bool is_direct> struct gemm_space {
    int ring, x, scales, sums, parts;

    __host__ __device__ __forceinline__ gemm_space(int in, int warps)
    {
        typedef tile_format<Q> format;
        const int staged = is_direct ? warps * format::unit : in;
        x = is_direct && format::is_float ? 0 : staged * NT * COLUMNS * (format::is_float ? 2 : 1);
        scales = format::is_float ? 0 : staged / 32 * NT * COLUMNS * 4;
        sums = format::has_sums ? staged / 256 * NT * WARP * 16 : 0;
        parts = 2 * warps * NT * 4 * WARP * 4;
        ring = warps * SLOTS * TILE * format::pitch;
    }
    __host__ __device__ __forceinline__ int all(void) const
    {
        return ring + x + scales + sums + parts;
    }
};

/* The fragments of a block, or of one of its warps. */
template <tarn_dtype Q, int NT, bool is_direct, typename S>
__device__ __forceinline__ x_stage<NT> stage_of(const S &size, char *space, int warp)
{
    typedef tile_format<Q> format;
    const int steps = is_direct ? warp * (format::unit / 32) : 0;
    char *base = space + size.ring;
    return x_stage<NT>{base + steps * NT * WARP * (format::is_float ? 16 : 8),
                       (float *)(base + size.x) + steps * NT * COLUMNS,
                       format::has_sums ? (float *)(base + size.x + size.scales) + steps / 8 * NT * WARP * 4 : NULL, 0};
}

/* Adds the products of a unit in shared memory. */
template <tarn_dtype Q, int NT>
__device__ __forceinline__ void add_quants(const char *rows, const x_fragments<NT> &x, int step, sums_of_tile<NT> &sums)
{
    if constexpr (Q == TARN_Q8_0)
        add_q8_0<NT>(rows, x, step, sums);
    else if constexpr (Q == TARN_Q4_K)
        add_q4_k<NT>(rows, x, step, sums);
    else
        add_q6_k<NT>(rows, x, step, sums);
}

/* Q: dtype of the weight; T: of x; NT: rows of x / 8; is_direct: x has no norm. */
template <tarn_dtype Q, typename T, int NT, int SLOTS, bool is_direct>
static __global__ void __launch_bounds__(MAX_MMA_WARPS *WARP, 1) gemm_kernel(const __grid_constant__ gemm_args a)
{
    typedef tile_format<Q> format;
    typedef x_batch<T, NT, format::is_float> batch;
    enum { slots = SLOTS, slot_bytes = TILE * format::pitch };
    extern __shared__ __align__(128) char space[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slice = warp % a.slices, group = warp / a.slices,
              step = gridDim.x * a.groups, first = blockIdx.x + group * gridDim.x, warps = blockDim.x / WARP,
              threads = a.slices * WARP;
    const gemm_space<Q, NT, SLOTS, is_direct> size(a.s.x.in, warps);
    char *ring = space + warp * slots * slot_bytes;
    float *parts = (float *)(space + size.ring + size.x + size.scales + size.sums);
    x_stage<NT> stage = stage_of<Q, NT, is_direct>(size, space, warp);
    const x_fragments<NT> x = {stage.base, stage.scale, (const float4 *)stage.sum};
    const uint32_t ring_address = (uint32_t)__cvta_generic_to_shared(ring);
    const x_pieces pieces(a.s.x.rows);
    /* pieces of a unit of x from `id` on */
    const auto range_of = [&](int unit, int id) {
        return x_range<NT>(pieces, id, 1, unit * (format::unit / 32), (unit + 1) * (format::unit / 32));
    };
    tile_loader<Q> next;
    batch some;
    x_ahead<T, NT> ahead;
    pdl_launch_dependents();
    next.start(a, first, slice);
#pragma unroll 1
    for (int i = 0; i < slots; i++)
        next.load(a, ring_address + i * slot_bytes, step);
    if (!is_direct)
        some.load(a.s.x, pieces, x_range<NT>(pieces, warp, warps, 0, a.s.x.in / 32), a.s.x.norm, 0);
    /* weights are in flight; x is written by the previous kernel */
    pdl_wait();
    int index = (int)threadIdx.x % threads; /* of the element of y that the thread writes: other threads in each tile */
    tile_element mine = {};
    mine.begin(a, first, index);
    if constexpr (!is_direct) {
        stage_x<T, NT, format::is_float>(a.s.x, pieces, some, stage, parts);
        __syncthreads();
    } else if constexpr (format::is_float) {
        ahead.start(a.s.x);
        ahead.load(next.begin);
    } else {
        some.load(a.s.x, pieces, range_of(next.begin, 0), a.s.x.base, a.s.x.down);
    }
    int slot = 0, buffer = 0;
    const int outputs = NT * WARP * (a.s.is_gated ? 2 : 4);
    for (int tile = first; tile - group * (int)gridDim.x < a.tiles; tile += step) {
        sums_of_tile<NT> sums = {};
        for (int unit = next.begin; unit < next.end && tile < a.tiles; unit++) {
            const char *rows = ring + slot * slot_bytes + lane / 4 * format::pitch;
            const int after = unit + 1 < next.end ? unit + 1 : next.begin;
            uint4 now[2 * NT];
            if constexpr (is_direct && format::is_float) {
#pragma unroll
                for (int i = 0; i < 2 * NT; i++)
                    now[i] = ahead.next[i];
                ahead.load(after);
            } else if constexpr (is_direct) {
                const int pieces_of_unit = range_of(unit, 0).count;
                stage.first = unit * (format::unit / 32);
#pragma unroll 1
                for (int id = 0; id < pieces_of_unit; id += BATCH) {
                    const batch held = some;
                    some.load(a.s.x, pieces,
                              id + BATCH < pieces_of_unit ? range_of(unit, id + BATCH) : range_of(after, 0), a.s.x.base,
                              a.s.x.down);
                    held.put(a.s.x, pieces, range_of(unit, id), stage);
                }
            }
            wait_for_copies<slots - 1>();
            __syncwarp();
            if constexpr (format::is_float && is_direct)
                add_floats<T, NT>(
                    rows, [&](int s, int n) { return now[s * NT + n]; }, sums);
            else if constexpr (format::is_float)
                add_floats<T, NT>(
                    rows, [&](int s, int n) { return x.floats(unit * 2 + s, n); }, sums);
            else
                add_quants<Q, NT>(rows + shift_of<Q>(a, unit, lane / 4), x, is_direct ? 0 : unit * (format::unit / 32),
                                  sums);
            __syncwarp();
            next.load(a, ring_address + slot * slot_bytes, step);
            slot = slot + 1 < slots ? slot + 1 : 0;
        }
        float *to = parts + (buffer * warps + warp) * (NT * 4 * WARP);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                to[(n * 4 + c) * WARP + lane] = sums.at[n][c];
        __syncthreads();
        const float *from = parts + (buffer * warps + group * a.slices) * (NT * 4 * WARP);
        for (int i = index; i < outputs; i += threads) {
            if (i >= threads)
                mine.begin(a, tile, i);
            mine.write(a, from, NT * 4 * WARP);
        }
        index = index >= outputs ? index - outputs : index + threads - outputs;
        if (outputs >= threads)
            index = (int)threadIdx.x % threads;
        mine.begin(a, tile + step, index);
        buffer ^= 1;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Sets the warps per tile. With many tiles these are few: a block then computes several tiles at a time and adds fewer
 * sums. Else as many warps as share the units of a row evenly. */
static void share_out(gemm_args *a, int multiprocessors)
{
    if (a->tiles >= 4 * multiprocessors && a->units >= 4) {
        a->slices = a->groups = 4;
        return;
    }
    a->groups = 1, a->slices = a->units < MAX_MMA_WARPS ? a->units : MAX_MMA_WARPS;
    for (int slices = MAX_MMA_WARPS; slices >= 8 && a->units % a->slices != 0; slices--)
        if (a->units % slices == 0)
            a->slices = slices;
    if (a->tiles >= 2 * multiprocessors && a->units >= 8)
        a->slices = 8, a->groups = 2;
}

/* Grid: as many blocks as are resident at once, or fewer; tiles go to blocks in turn. Bytes: the weights'. FLOPs: 2 ·
 * rows · in · out, in tiles of eight rows. */
template <tarn_dtype Q, typename T, int NT, int SLOTS, bool is_direct>
static bool launch_slots(const tarn__call *call, const gemm_args &a, bool is_launched)
{
    void (*kernel)(gemm_args) = gemm_kernel<Q, T, NT, SLOTS, is_direct>;
    const tarn__cuda_device *device = tarn__cuda_at(call->device);
    const int warps = a.slices * a.groups, shared = gemm_space<Q, NT, SLOTS, is_direct>(a.s.x.in, warps).all(),
              needed = (a.tiles + a.groups - 1) / a.groups;
    int per_sm = 0;
    /* independent of the number of tiles, so that several weights fit if each of them fits */
    if (gemm_space<Q, NT, SLOTS, is_direct>(a.s.x.in, MAX_MMA_WARPS).all() > device->shared_bytes)
        return false;
    if (!is_launched)
        return true;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, warps * WARP, (size_t)shared);
    const int resident = (per_sm > 0 ? per_sm : 1) * device->multiprocessors;
    launch_decode(call, kernel, dim3((unsigned)(needed < resident ? needed : resident)), (unsigned)(warps * WARP),
                  (size_t)shared, a);
    return true;
}

/* Launches with the deepest ring that fits the shared memory. */
template <tarn_dtype Q, typename T, int NT, bool is_direct>
static bool launch_form(const tarn__call *call, const gemm_args &a, bool is_launched)
{
    if constexpr (tile_format<Q>::is_float || NT == 1)
        if (launch_slots<Q, T, NT, 3, is_direct>(call, a, is_launched))
            return true;
    if constexpr (tile_format<Q>::is_float || NT == 2 || Q == TARN_Q6_K)
        return launch_slots<Q, T, NT, 2, is_direct>(call, a, is_launched);
    return false;
}

template <tarn_dtype Q, typename T>
static bool launch_rows(const tarn__call *call, const gemm_args &a, bool is_launched)
{
    if (a.s.x.rows <= COLUMNS)
        return a.s.x.norm ? launch_form<Q, T, 1, false>(call, a, is_launched)
                          : launch_form<Q, T, 1, true>(call, a, is_launched);
    return a.s.x.norm ? launch_form<Q, T, 2, false>(call, a, is_launched)
                      : launch_form<Q, T, 2, true>(call, a, is_launched);
}

template <tarn_dtype Q> static bool launch(const tarn__call *call, gemm_args &a, bool is_launched)
{
    typedef tile_format<Q> format;
    /* sums of squares share memory with the partial sums of at least eight warps */
    if (a.s.x.in % format::unit != 0 || (a.s.x.norm && a.s.x.in > 8192))
        return false;
    a.units = a.s.x.in / format::unit;
    share_out(&a, tarn__cuda_at(call->device)->multiprocessors);
    if constexpr (Q == TARN_BF16)
        return a.s.x.dtype == Q && launch_rows<Q, bf16>(call, a, is_launched);
    else if constexpr (Q == TARN_F16)
        return a.s.x.dtype == Q && launch_rows<Q, f16>(call, a, is_launched);
    else if (a.s.x.dtype == TARN_BF16)
        return launch_rows<Q, bf16>(call, a, is_launched);
    else
        return a.s.x.dtype == TARN_F16 && launch_rows<Q, f16>(call, a, is_launched);
}

/* Rows must be whole vectors, and offsets fit 32 bits. In Q6_K every second row may begin eight bytes past a vector.
 * Then all tiles must be whole: a row's index in the tile tells where it begins; the last row ends with a vector. */
static bool weight_fits(const gemv_args &args, const gemv_weight &w, tarn_dtype dtype)
{
    const bool is_dense = w.pitch == tarn__bytes_of(dtype, args.x.in);
    return w.out < INT32_MAX / TILE && (uintptr_t)w.base % 16 == 0 && w.pitch == args.weight[0].pitch && w.pitch > 0 &&
           w.pitch < INT32_MAX / TILE &&
           (w.pitch % 16 == 0 || (dtype == TARN_Q6_K && w.pitch % 8 == 0 && w.out % TILE == 0 && is_dense));
}

/* Fills in all but what depends on the format; false if the operands are not supported. */
static bool fill(gemm_args *a, const gemv_args &args, tarn_dtype dtype)
{
    bool is_good = args.x.rows <= MAX_MMA_ROWS && !args.x.post;
    a->s = args, a->is_general = is_general(args);
    for (int i = 0; i < 3; i++) {
        const gemv_weight &w = args.weight[i];
        if (w.out > 0)
            is_good = is_good && weight_fits(args, w, dtype);
        if (!args.is_gated)
            a->tiles += (int)((w.out + TILE - 1) / TILE);
        else if (i == 0)
            a->tiles = (int)((w.out + TILE / 2 - 1) / (TILE / 2));
        if (i < 2)
            a->end[i] = a->tiles;
    }
    return is_good;
}

bool tarn__cuda_decode_mma(const tarn__call *call, const gemv_args &args, tarn_dtype dtype, bool is_launched)
{
    gemm_args a = {};
    if (!fill(&a, args, dtype) || !tarn__cuda_at(call->device))
        return false;
    switch (dtype) {
    case TARN_BF16: return launch<TARN_BF16>(call, a, is_launched);
    case TARN_F16: return launch<TARN_F16>(call, a, is_launched);
    case TARN_Q8_0: return launch<TARN_Q8_0>(call, a, is_launched);
    case TARN_Q4_K: return launch<TARN_Q4_K>(call, a, is_launched);
    case TARN_Q6_K: return launch<TARN_Q6_K>(call, a, is_launched);
    default: return false;
    }
}

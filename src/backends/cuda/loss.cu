/* loss.cu: the cross entropy of rows of logits, and its gradient with respect to them.
 *
 * A block has a row. One pass finds the largest logit and the sum of exponentials together and leaves the row in shared memory, where it
 * fits (a row of 50304 f32 is 197 KiB); the gradient is made from there. So logits are read once and the gradient is written once; a
 * row that does not fit is read again, mostly from the second-level cache. */
#include "backends/cuda/rows.cuh"

enum { LOGITS, SLOPES, TARGET, LOSS, OPERANDS };

#define LARGE_ROW (110 << 10) /* bytes from which on only one row fits a multiprocessor: its block is larger */

struct loss_args {
    row_set<OPERANDS> rows; /* logits, glogits or nothing, target, loss */
    fault_place faults;
    double smoothing;
    int64_t ignore;
    bool has_ignore, target_is_long, is_held;
};

/* A row whose target does not count. */
template <typename W> __device__ __forceinline__ void clear_row(const loss_args &a, const int64_t *offset)
{
    typename W::real none[W::width] = {};
    if (threadIdx.x == 0)
        store_any(a.rows.operand[LOSS].base, a.rows.operand[LOSS].dtype, offset[LOSS], 0.0);
    for (int64_t at = threadIdx.x; a.rows.operand[SLOPES].base && at < a.rows.length / W::width; at += blockDim.x)
        W::store(a.rows.operand[SLOPES], offset[SLOPES], at, none);
}

/* softmax - smoothing / C for the whole row, and at the target 1 - smoothing less, from f64 by the thread that owns it. */
template <typename R, typename W, typename I>
__device__ __forceinline__ void write_slopes(const loss_args &a, const typename R::raw *held, const int64_t *offset, typename R::real most, double sum,
                                             int64_t target, double value)
{
    typedef typename R::real C;
    const double even = a.smoothing / (double)a.rows.length;
    const C factor = (C)(1 / sum), less = (C)even;
    const I packs = (I)(a.rows.length / R::width);
#pragma unroll 4
    for (I at = threadIdx.x; at < packs; at += (I)blockDim.x) {
        typename R::raw x = a.is_held ? held[at] : R::fetch(a.rows.operand[LOGITS], offset[LOGITS], at);
        C y[R::width];
#pragma unroll
        for (int i = 0; i < R::width; i++)
            y[i] = exponential(R::element(x, i) - most) * factor - less;
        W::store(a.rows.operand[SLOPES], offset[SLOPES], at, y);
    }
    if (target / R::width % blockDim.x == threadIdx.x)
        store_any(a.rows.operand[SLOPES].base, a.rows.operand[SLOPES].dtype, offset[SLOPES] + target * a.rows.operand[SLOPES].along,
                  exp(value - (double)most) / sum - even - (1 - a.smoothing));
}

/* R reads logits, W writes their gradient, as many elements at a time, counted in type I. What a thread puts into shared memory only it reads. */
template <typename R, typename W, typename I> static __global__ void __launch_bounds__(1024) loss_kernel(const __grid_constant__ loss_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, U = sizeof(C) == 8 ? 4 : sizeof(typename R::raw) < 8 ? 8 : 64 / (int)sizeof(typename R::raw); /* packs in flight */
    constexpr int G = U * N < 16 ? U : 16 / N; /* and those that are added up together */
    extern __shared__ __align__(16) unsigned char shared[];
    typename R::raw *held = (typename R::raw *)shared;
    const I packs = (I)(a.rows.length / N), threads = (I)blockDim.x;
    int64_t offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    const int64_t target = index_at(a.rows.operand[TARGET].base, a.target_is_long, offset[TARGET]);
    const bool is_ignored = a.has_ignore && target == a.ignore, is_outside = target < 0 || target >= a.rows.length;
    if (is_ignored || is_outside) {
        if (!is_ignored && threadIdx.x == 0)
            report_fault(a.faults, target, a.rows.length);
        clear_row<W>(a, offset);
        return;
    }
    running<C> run = {minus_infinity<C>(), 0};
    double all = 0;
    for (I at = threadIdx.x; at < packs; at += U * threads) {
        typename R::raw raw[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at + u * threads < packs)
                raw[u] = R::fetch(a.rows.operand[LOGITS], offset[LOGITS], at + u * threads);
#pragma unroll
        for (int first = 0; first < U; first += G) {
            C x[G * N], part = 0;
#pragma unroll
            for (int u = 0; u < G; u++) {
                bool is_there = at + (first + u) * threads < packs;
                if (is_there && a.is_held)
                    held[at + (first + u) * threads] = raw[first + u];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[u * N + i] = is_there ? R::element(raw[first + u], i) : minus_infinity<C>();
                    part += is_there ? x[u * N + i] : (C)0;
                }
            }
            run.template take<G * N>(x);
            if (a.smoothing > 0)
                all += (double)part;
        }
    }
    const C most = over_row<false, take_larger>(run.most, minus_infinity<C>());
    run.raise_to(most);
    const double sum = over_row<false, add_up>(run.sum, 0.0);
    if (a.smoothing > 0)
        all = over_row<false, add_up>(all, 0.0);
    const double value = load_any<double>(a.rows.operand[LOGITS].base, a.rows.operand[LOGITS].dtype,
                                          offset[LOGITS] + target * a.rows.operand[LOGITS].along);
    if (threadIdx.x == 0) {
        double log_sum = log(sum), loss = log_sum - (value - (double)most);
        if (a.smoothing > 0)
            loss = (1 - a.smoothing) * loss + a.smoothing * (log_sum - (all / (double)a.rows.length - (double)most));
        store_any(a.rows.operand[LOSS].base, a.rows.operand[LOSS].dtype, offset[LOSS], loss);
    }
    if (a.rows.operand[SLOPES].base)
        write_slopes<R, W, I>(a, held, offset, most, sum, target, value);
}

/* ---- starting it ------------------------------------------------------------------------------------------------------------ */

/* Shared memory that a block may have, beside the little that sums need. */
static size_t room_of(const tarn__cuda_device *d)
{
    size_t kib = d->major >= 9 && d->major < 12 ? 227 : d->major == 8 && (d->minor == 0 || d->minor == 7) ? 163 : 99;
    return (kib - 2) << 10;
}

/* Grid: a block a row, of a size that depends on the row alone, so that the order of sums is the same on every device.
 * Bytes: logits read, gradient written. */
template <typename R, typename W, typename I> static void launch(const tarn__call *call, loss_args a)
{
    static uint64_t allowed; /* devices on which the kernel may have all the shared memory */
    size_t bytes = (size_t)a.rows.length * (sizeof(typename R::raw) / R::width), room = room_of(tarn__cuda_at(call->device));
    unsigned threads = bytes > LARGE_ROW ? 1024 : warps_for(a.rows.length, 16, 512);
    a.is_held = a.rows.operand[SLOPES].base && bytes <= room;
    uint64_t mark = (uint64_t)1 << (call->device & 63);
    if (a.is_held && bytes > 48 << 10 && (call->device > 63 || !(__atomic_load_n(&allowed, __ATOMIC_RELAXED) & mark))) {
        cudaFuncSetAttribute(loss_kernel<R, W, I>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room);
        __atomic_fetch_or(&allowed, mark, __ATOMIC_RELAXED);
    }
    loss_kernel<R, W, I><<<blocks_for(a.rows.count, 1), threads, a.is_held ? bytes : 0, stream_of(call)>>>(a);
}

/* The gradient of 16-bit logits is f32: 4 elements are 16 bytes of it. */
template <typename T> static void launch_typed(const tarn__call *call, const loss_args &a)
{
    if (has_packs(a.rows, LOGITS, 4) && has_packs(a.rows, SLOPES, 4))
        launch<typed<T, 4>, typed<float, 4>, int32_t>(call, a);
    else
        launch<typed<T, 1>, typed<float, 1>, int32_t>(call, a);
}

/* A view of one number a row as (rows, 1). */
static tarn__view as_column(const tarn__view *view)
{
    tarn__view column = *view;
    column.rank = 2;
    column.shape[1] = 1;
    column.stride[1] = 0;
    return column;
}

static void run_cross_entropy(const tarn__call *call)
{
    const tarn__cross_entropy *params = (const tarn__cross_entropy *)call->params;
    tarn__view target = as_column(call->in[1]), loss = as_column(call->out[0]);
    const tarn__view *views[OPERANDS] = {call->in[0], call->out[1], &target, &loss};
    tarn__nest nest;
    loss_args a = {};
    a.rows = rows_of<OPERANDS>(1, views, &nest);
    if (a.rows.count == 0)
        return;
    a.faults = faults_of(call);
    a.smoothing = params->smoothing;
    a.ignore = params->ignore;
    a.has_ignore = params->has_ignore;
    a.target_is_long = target.dtype == TARN_I64;
    tarn_dtype dtype = call->in[0]->dtype;
    bool is_usual = (!call->out[1] || call->out[1]->dtype == TARN_F32) && a.rows.length < (int64_t)1 << 30;
    if (dtype == TARN_F64)
        launch<untyped<double>, untyped<double>, int64_t>(call, a);
    else if (!is_usual)
        launch<untyped<float>, untyped<float>, int64_t>(call, a);
    else if (dtype == TARN_F32)
        launch_typed<float>(call, a);
    else if (dtype == TARN_BF16)
        launch_typed<bf16>(call, a);
    else
        launch_typed<f16>(call, a);
}

void tarn__cuda_loss(tarn__kernel_row *rows)
{
    rows[TARN__K_cross_entropy] = tarn__kernel_row{run_cross_entropy, TARN__FLOATS, NULL};
}

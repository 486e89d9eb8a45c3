/* argmax.cu: argmax and argmin.
 *
 * A state is a value and its index; the first of equal values wins, and NaN beats everything but NaN. argmin is the
 * argmax of negated elements. Bytes: x once; 16 bytes per chunk and output twice. */
#include "backends/cuda/reduce/reduce_loops.cuh"

template <typename C> struct index_state {
    C value;
    int64_t at;
};

/* The index is i64: 16 bytes of state for 32-bit elements. */
template <typename C> struct argmax_op {
    typedef index_state<C> state;
    typedef index_state<C> batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ bool is_better(C x, C a)
    {
        return x > a || (x != x && a == a);
    }
    /* Index 0 is right even if no element beats this: all are equal then. */
    static __device__ __forceinline__ state start(void)
    {
        return state{lowest<C>(), 0};
    }
    static __device__ __forceinline__ C aux(const reduce_args &a, int64_t)
    {
        return flip_of<C>(a);
    }
    /* A thread's elements come in index order. */
    static __device__ __forceinline__ void take(batch &b, C x, C flip, int64_t at)
    {
        x = flipped(x, flip);
        if (is_better(x, b.value))
            b = batch{x, at};
    }
    static __device__ __forceinline__ void merge(state &s, const state &other)
    {
        /* states merge in any order: ties by index */
        if (is_better(other.value, s.value) || (!is_better(s.value, other.value) && other.at < s.at))
            s = other;
    }
    static __device__ __forceinline__ int64_t result(const state &s, const reduce_args &)
    {
        return s.at;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
};

/* flip -1: argmin. */
static void run_argmax_of(const tarn__call *call, double flip)
{
    reduce_args a;
    if (!args_of_call(&a, call))
        return;
    a.flip = flip;
    reduce_any<argmax_op>(a, stream_of(call));
}

static void run_argmax(const tarn__call *call)
{
    run_argmax_of(call, 1);
}

static void run_argmin(const tarn__call *call)
{
    run_argmax_of(call, -1);
}

void tarn__cuda_register_argmax(tarn__kernel_row *rows)
{
    rows[TARN__K_argmax] = tarn__row_planned(prepare_call, run_argmax, TARN__ALL);
    rows[TARN__K_argmin] = tarn__row_planned(prepare_call, run_argmin, TARN__ALL);
}

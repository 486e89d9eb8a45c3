/* conv.c: conv2d, dgrad and wgrad: selects the algorithm of each convolution.
 *
 * The candidates: cuDNN as requested, in the other channel order, with a flipped weight, in TF32; im2col plus GEMM
 * (conv_im2col.c); and for wgrad our tensor-core kernel (conv_wgrad.h). The choice is autotuned per shape and stored
 * (autotune.h). It decides among the rows: "cudnn", "direct", "im2col". */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"
#include "backends/cuda/runtime/autotune.h"

#define BUCKETS 256
#define MAX_ALGOS 12

/* How an algorithm differs from the requested convolution, as bits. Stored on disk: values are fixed. */
enum {
    OTHER_LAYOUT = 1, /* x and y are copied to the other channel order */
    FLIPPED = 2,      /* dgrad as a forward convolution with the flipped weight */
    AS_TF32 = 4,      /* 16-bit operands as TF32, which holds them exactly */
    BIAS_AFTER = 8,   /* bias added to f32 sums in a second pass */
    IM2COL = 16,
    IDENTITY_EPILOGUE = 32, /* 16-bit wgrad: f32 sums pass an identity operation */
    DIRECT = 64,            /* wgrad by our own kernel */
};

static tarn__conv_algo *tables[TARN__CUDA_MAX_DEVICES][BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Results tuned without our own kernel among the candidates are kept apart. */
static tarn__cuda_tuning *tuning(void)
{
    static tarn__cuda_tuning all = {
        .family = "conv-form-3", .key_bytes = sizeof(tarn__cudnn_conv), .value_bytes = sizeof(uint64_t)};
    static tarn__cuda_tuning without_direct = {
        .family = "conv-form-2", .key_bytes = sizeof(tarn__cudnn_conv), .value_bytes = sizeof(uint64_t)};
    tarn__cuda_tuning *used = tarn__wgrad_is_off() ? &without_direct : &all;
    used->version = tarn__cudnn_open() ? tarn__cudnn_open()->version() : 0;
    return used;
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

/* True if dgrad is itself a convolution: stride 1, one group, and no padding beyond the kernel. */
static bool can_flip(const tarn__cudnn_conv *v)
{
    bool can = v->what == TARN__CONV_DGRAD && v->groups == 1;
    for (int i = 0; i < 2; i++)
        can = can && v->stride[i] == 1 && v->padding[i] <= v->dilation[i] * (v->kernel[i] - 1);
    return can;
}

/* True if the engines with an identity epilogue may be used. They are written for NHWC, and gave wrong gradients for a
 * 3×1 kernel with stride 3 and dilation 3. Allowed are the shapes that networks use and the tests cover. */
static bool supports_identity_epilogue(const tarn__cudnn_conv *v)
{
    bool can = v->what == TARN__CONV_WGRAD && v->groups == 1 && v->in % 8 == 0 && v->out % 8 == 0 &&
               v->kernel[0] == v->kernel[1];
    for (int i = 0; i < 2; i++)
        can = can && (v->kernel[i] == 1 || v->kernel[i] == 3) && v->padding[i] == v->kernel[i] / 2 &&
              v->dilation[i] == 1 && v->stride[i] <= 2;
    return can && v->stride[0] == v->stride[1];
}

static bool is_f32(const tarn__cudnn_conv *v)
{
    return v->in_dtype == TARN_F32;
}

/* The convolution that cuDNN is given for the requested one. */
static tarn__cudnn_conv apply_code(const tarn__cudnn_conv *requested, uint64_t algo)
{
    tarn__cudnn_conv v = *requested;
    if (algo & OTHER_LAYOUT)
        v.channels_last = !v.channels_last;
    if (algo & AS_TF32)
        v.in_dtype = v.out_dtype = TARN_F32, v.tf32 = 1;
    if (algo & BIAS_AFTER)
        v.adds_bias = 0;
    if (algo & IDENTITY_EPILOGUE)
        v.identity_epilogue = 1;
    if (algo & FLIPPED) {
        v.what = TARN__CONV_FORWARD;
        v.in = requested->out, v.out = requested->in;
        for (int i = 0; i < 2; i++) {
            v.size[i] = requested->result[i], v.result[i] = requested->size[i];
            v.padding[i] = v.dilation[i] * (v.kernel[i] - 1) - v.padding[i];
        }
    }
    return v;
}

/* Fills in the algorithm and its plan. False if cuDNN has no engine for it or is not installed; *has_failed if cuDNN
 * itself fails. */
static bool find_plan(int index, const tarn__cudnn_conv *requested, uint64_t code, tarn__conv_algo *algo,
                      bool *has_failed)
{
    tarn__cudnn_conv v = apply_code(requested, code);
    bool is_im2col = code & IM2COL;
    *algo = (tarn__conv_algo){.requested = *requested, .code = code, .is_flipped = code & FLIPPED};
    if (code & DIRECT)
        return algo->is_direct = tarn__wgrad_plan_of(index, &v, &algo->weight);
    if (!is_im2col && !tarn__cudnn_open())
        return false;
    algo->plan = is_im2col ? NULL : tarn__cudnn_conv_plan_of(index, &v);
    *has_failed = *has_failed || (!algo->plan && !is_im2col);
    return is_im2col || (algo->plan && !algo->plan->use_native);
}

/* The first of these with an engine: as requested, then without loss of precision. 16-bit sums must not be rounded
 * before the bias is added. */
static bool find_closest(int index, const tarn__cudnn_conv *requested, uint64_t code, tarn__conv_algo *algo,
                         bool *has_failed)
{
    static const uint64_t more[] = {0, AS_TF32, BIAS_AFTER, AS_TF32 | BIAS_AFTER};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        bool upcasts = more[i] & AS_TF32, adds_after = more[i] & BIAS_AFTER;
        if ((upcasts && is_f32(requested)) ||
            (adds_after && (!requested->adds_bias || (!upcasts && !is_f32(requested)))))
            continue;
        if (find_plan(index, requested, code | more[i], algo, has_failed))
            return true;
        if (*has_failed)
            return false;
    }
    return false;
}

static bool contains(const tarn__conv_algo *algos, int count, uint64_t code)
{
    for (int i = 0; i < count; i++)
        if (algos[i].code == code)
            return true;
    return false;
}

/* Adds the ways from 16 bits to f32 that are not yet in the list. */
static int find_upcasts(int index, const tarn__cudnn_conv *requested, tarn__conv_algo *algos, int count,
                        bool *has_failed)
{
    const uint64_t codes[] = {requested->channels_last ? IDENTITY_EPILOGUE : IDENTITY_EPILOGUE | OTHER_LAYOUT, AS_TF32,
                              AS_TF32 | OTHER_LAYOUT};
    bool has_identity = supports_identity_epilogue(requested);
    for (size_t i = 0;
         i < sizeof(codes) / sizeof(codes[0]) && requested->in_dtype != requested->out_dtype && !*has_failed; i++)
        if ((has_identity || !(codes[i] & IDENTITY_EPILOGUE)) && !contains(algos, count, codes[i]))
            count += find_plan(index, requested, codes[i], &algos[count], has_failed);
    return count;
}

/* Our kernel needs NHWC. */
static bool find_direct(int index, const tarn__cudnn_conv *requested, tarn__conv_algo *algo, bool *has_failed)
{
    return find_plan(index, requested, requested->channels_last ? DIRECT : DIRECT | OTHER_LAYOUT, algo, has_failed);
}

/* All algorithms that can run: the requested one first, im2col last. */
static int find_all(int index, const tarn__cudnn_conv *requested, tarn__conv_algo *algos, bool *has_failed)
{
    static const uint64_t codes[] = {0, FLIPPED, OTHER_LAYOUT, OTHER_LAYOUT | FLIPPED};
    int count = 0;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]) && !*has_failed; i++)
        if (!(codes[i] & FLIPPED) || can_flip(requested))
            count += find_closest(index, requested, codes[i], &algos[count], has_failed);
    count = find_upcasts(index, requested, algos, count, has_failed);
    count += !*has_failed && find_direct(index, requested, &algos[count], has_failed);
    if (count > 0)
        find_plan(index, requested, IM2COL, &algos[count++], has_failed);
    return count;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* State of one tuning run. */
typedef struct bench {
    const tarn__cudnn_conv *requested;
    const tarn__conv_algo *algos;
    int count;
    char *memory;
    void *results[2];
    size_t result_bytes;
    int *differ;
    tarn__conv_call conv; /* x and y in the requested order, w in NCHW */
} bench;

static size_t bytes_of(const tarn__view *v)
{
    return tarn__cuda_align((size_t)tarn__view_count(v) * tarn__dtype_bytes(v->dtype));
}

/* Device memory, freed by the caller: x, w, y and bias with random values, a second result, and the largest scratch. */
static bool alloc_bench(bench *t, cudaStream_t stream)
{
    tarn__view *views[] = {&t->conv.x, &t->conv.w, &t->conv.y, &t->conv.bias};
    size_t operands = 0, scratch = 0;
    for (int i = 0; i < 4; i++)
        operands += bytes_of(views[i]);
    for (int i = 0; i < t->count; i++) {
        tarn__plan_buffer memory;
        tarn__plan *plan = tarn__plan_begin(&memory);
        if (tarn__conv_algo_prepare(&t->conv.call, &t->algos[i], plan) == TARN__PLAN_READY)
            scratch = plan->scratch_bytes > scratch ? plan->scratch_bytes : scratch;
    }
    t->result_bytes = bytes_of(t->conv.call.out[0]);
    if (cudaMalloc((void **)&t->memory, operands + t->result_bytes + 256 + scratch) != cudaSuccess) {
        cudaGetLastError();
        t->memory = NULL;
        return false;
    }
    char *at = t->memory;
    for (int i = 0; i < 4; at += bytes_of(views[i++]))
        views[i]->memory = at;
    t->results[0] = t->conv.call.out[0]->memory;
    t->results[1] = at;
    t->differ = (int *)(void *)(at + t->result_bytes);
    t->conv.call.scratch = at + t->result_bytes + 256;
    t->conv.call.scratch_bytes = scratch;
    return tarn__cuda_noise(t->memory, operands, (tarn_dtype)t->requested->in_dtype, stream);
}

/* A candidate that fails only loses: the device's failure flag is restored. */
static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    tarn__view to = *t->conv.call.out[0];
    tarn__call call = t->conv.call;
    tarn__plan_buffer memory;
    to.memory = t->results[result];
    call.out[0] = &to;
    call.plan = tarn__plan_begin(&memory);
    if (tarn__conv_algo_prepare(&call, &t->algos[candidate], &memory.plan) != TARN__PLAN_READY)
        return false;
    tarn__cuda_device *device = tarn__cuda_at(call.device);
    bool had_failed = device->has_failed;
    device->has_failed = false;
    tarn__conv_algo_run(&call);
    bool is_good = !device->has_failed;
    device->has_failed = had_failed;
    return is_good;
}

/* The fastest deterministic algorithm; im2col if none is; the first if there is no memory for timing. */
static int fastest(int index, const tarn__cudnn_conv *requested, const tarn__conv_algo *algos, int count)
{
    cudaStream_t stream = tarn__cuda_at(index)->stream;
    bench t = {.requested = requested, .algos = algos, .count = count};
    int best = 0;
    tarn__conv_describe_call(&t.conv, requested, index, stream);
    tarn__view_set_row_major(&t.conv.w);
    if (alloc_bench(&t, stream)) {
        best = tarn__cuda_autotune_run(&(tarn__cuda_autotune){.count = count,
                                                              .context = &t,
                                                              .run = run_candidate,
                                                              .results = {t.results[0], t.results[1]},
                                                              .result_bytes = t.result_bytes,
                                                              .differ = t.differ,
                                                              .stream = stream});
        best = best < 0 ? count - 1 : best;
    }
    if (t.memory)
        cudaFree(t.memory);
    cudaGetLastError();
    return best;
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* The stored algorithm, the fastest, or the closest to the request. False if cuDNN fails. */
static bool choose(int index, const tarn__cudnn_conv *requested, tarn__conv_algo *chosen)
{
    tarn__conv_algo algos[MAX_ALGOS];
    uint64_t code;
    bool has_failed = false;
    if (tarn__wgrad_is_forced() && find_direct(index, requested, chosen, &has_failed))
        return true;
    if (!tarn__cudnn_conv_must_tune(requested)) {
        if (!find_closest(index, requested, 0, chosen, &has_failed) && !has_failed)
            find_plan(index, requested, IM2COL, chosen, &has_failed);
        return !has_failed;
    }
    if (tarn__cuda_tuning_find(tuning(), index, requested, &code) &&
        find_plan(index, requested, code, chosen, &has_failed))
        return true;
    int count = has_failed ? 0 : find_all(index, requested, algos, &has_failed),
        best = count > 1 ? fastest(index, requested, algos, count) : 0;
    if (has_failed)
        return false;
    if (count == 0)
        return find_plan(index, requested, IM2COL, chosen, &has_failed);
    *chosen = algos[best];
    tarn__cuda_tuning_store(tuning(), index, requested, &chosen->code);
    return true;
}

/* No selection inside a capture: it runs the candidates. */
static tarn__conv_algo *make_algo(int index, const tarn__cudnn_conv *requested)
{
    tarn__cuda_device *device = tarn__cuda_at(index);
    if (device && device->is_capturing) {
        tarn__cuda_fail(
            "convolution is not tuned: it was first called inside a capture; run the step once before capturing it");
        return NULL;
    }
    tarn__conv_algo *algo = device ? calloc(1, sizeof(*algo)) : NULL;
    if (algo && choose(index, requested, algo))
        return algo;
    free(algo);
    return NULL;
}

/* Call with the lock held. */
static tarn__conv_algo *find_algo(int index, const tarn__cudnn_conv *requested)
{
    tarn__conv_algo *algo = tables[index][tarn__cuda_hash(requested, sizeof(*requested)) % BUCKETS];
    while (algo && memcmp(&algo->requested, requested, sizeof(*requested)) != 0)
        algo = algo->next;
    return algo;
}

tarn__conv_algo *tarn__conv_find_algo(int index, const tarn__cudnn_conv *requested)
{
    pthread_mutex_lock(&lock);
    tarn__conv_algo *algo = find_algo(index, requested);
    pthread_mutex_unlock(&lock);
    return algo;
}

tarn__conv_algo *tarn__conv_algo_of(int index, const tarn__cudnn_conv *requested)
{
    pthread_mutex_lock(&lock);
    tarn__conv_algo *algo = find_algo(index, requested);
    if (!algo && (algo = make_algo(index, requested)) != NULL) {
        tarn__conv_algo **bucket = &tables[index][tarn__cuda_hash(requested, sizeof(*requested)) % BUCKETS];
        algo->next = *bucket;
        *bucket = algo;
    }
    pthread_mutex_unlock(&lock);
    return algo;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The row that runs an algorithm. */
typedef enum row_kind { CUDNN, DIRECT_ROW, IM2COL_ROW } row_kind;

static row_kind kind_of(const tarn__conv_algo *algo)
{
    return algo->is_direct ? DIRECT_ROW : algo->plan ? CUDNN : IM2COL_ROW;
}

/* Declines what another row was selected for. On a meta device a convolution that is not tuned yet counts as im2col,
 * whose matrix is the largest scratch of all candidates. */
static tarn__plan_status prepare(const tarn__call *call, int what, row_kind kind, tarn__plan *plan)
{
    if (tarn__cudnn_is_unusable())
        return TARN__PLAN_FAILED;
    tarn__cudnn_conv requested = tarn__conv_requested_by(call, what);
    const tarn__conv_algo *algo =
        call->is_meta ? tarn__conv_find_algo(call->device, &requested) : tarn__conv_algo_of(call->device, &requested);
    if (!algo)
        return call->is_meta ? TARN__PLAN_DECLINED : TARN__PLAN_FAILED;
    return kind_of(algo) == kind ? tarn__conv_algo_prepare(call, algo, plan) : TARN__PLAN_DECLINED;
}

#define KERNEL(name, what) \
    static bool fits_##name(const tarn__call *call) \
    { \
        return call->out[0] && tarn__conv_has_choice(call, what); \
    } \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return prepare(call, what, CUDNN, plan); \
    } \
    static tarn__plan_status prepare_##name##_im2col(const tarn__call *call, tarn__plan *plan) \
    { \
        return tarn__cuda_conv_im2col_prepare(call, what, plan); \
    } \
    static void kernel_##name##_im2col(const tarn__call *call) \
    { \
        tarn__cuda_conv_im2col_run(call, what); \
    }
KERNEL(conv2d, TARN__CONV_FORWARD)
KERNEL(conv2d_grad_x, TARN__CONV_DGRAD)
KERNEL(conv2d_grad_weight, TARN__CONV_WGRAD)

static tarn__plan_status prepare_direct(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, TARN__CONV_WGRAD, DIRECT_ROW, plan);
}

/* A row ahead of those of a kernel, for the selected algorithm. */
static void push(tarn__kernel_row *rows, tarn__kernel kernel, const char *variant, bool (*fits)(const tarn__call *),
                 tarn__plan_status (*prepare_fn)(const tarn__call *, tarn__plan *), tarn__kernel_row *storage)
{
    uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16);
    tarn__kernel_row row = tarn__row_fits(tarn__row_planned(prepare_fn, tarn__conv_algo_run, dtypes), fits);
    tarn__push_row(rows, kernel, tarn__row_named(row, variant), storage);
}

#define IM2COL_OF(name) \
    tarn__row_named(tarn__row_planned(prepare_##name##_im2col, kernel_##name##_im2col, TARN__FLOATS), "im2col")

/* im2col runs every call. */
void tarn__cuda_register_conv(tarn__kernel_row *rows)
{
    static tarn__kernel_row next[4];
    rows[TARN__K_conv2d] = IM2COL_OF(conv2d);
    rows[TARN__K_conv2d_grad_x] = IM2COL_OF(conv2d_grad_x);
    rows[TARN__K_conv2d_grad_weight] = IM2COL_OF(conv2d_grad_weight);
    push(rows, TARN__K_conv2d, "cudnn", fits_conv2d, prepare_conv2d, &next[0]);
    push(rows, TARN__K_conv2d_grad_x, "cudnn", fits_conv2d_grad_x, prepare_conv2d_grad_x, &next[1]);
    push(rows, TARN__K_conv2d_grad_weight, "direct", fits_conv2d_grad_weight, prepare_direct, &next[2]);
    push(rows, TARN__K_conv2d_grad_weight, "cudnn", fits_conv2d_grad_weight, prepare_conv2d_grad_weight, &next[3]);
}

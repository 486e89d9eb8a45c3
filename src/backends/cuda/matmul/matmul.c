/* matmul.c: matmul on cuBLASLt: 2·M·N·K FLOPs, at least (M·K + K·N + M·N) elements moved.
 *
 * Operands with contiguous rows or columns are used in place, transposed or not; others, and batches of a flipped view,
 * are packed into scratch first. Batches with a single stride are one call; otherwise one call per step of the outer
 * batch axes.
 *
 * matmul with bias, GELU or a bias gradient is fused into the epilogue where cuBLASLt supports it and is not slower,
 * else composed of two kernels (base/kernel/compose.h). */
#include "backends/cuda/matmul/matmul.h"

#include <stdlib.h>
#include <string.h>

#include "base/kernel/compose.h"

/* One operand as a matrix with contiguous rows or columns. */
typedef struct matrix {
    char *base;
    int64_t line; /* leading dimension, in elements */
    bool is_transposed;
    bool is_packed;      /* packed into scratch */
    tarn__view view;     /* of the packed copy: contiguous, the operand's shape */
    size_t packed_bytes; /* 0: used in place */
} matrix;

/* Batch axes of a, b and c, collapsed; cuBLASLt handles the last one. */
typedef struct batch_nest {
    int rank;
    int64_t shape[TARN_MAX_RANK], stride[3][TARN_MAX_RANK];
} batch_nest;

/* A call, described once for scratch() and once for run(): both see the same plan. */
typedef struct job {
    int64_t m, n, k;
    matrix a, b, c;
    batch_nest batches;
    tarn__kernel kernel; /* matmul, or a fused variant of it */
    const tarn__view *bias;
    const tarn__view *aux;  /* GELU's input */
    const tarn__view *sums; /* row sums of a: the bias gradient */
    bool presets_bias;      /* copied into c first, then accumulated onto with beta = 1 */
    const tarn__matmul *params;
} job;

/* ---- describing a call ------------------------------------------------------------------------------------------- */

/* Rows contiguous and not overlapping; *line is the leading dimension. */
static bool is_row_major(const tarn__view *v, int64_t *line)
{
    int64_t rows = v->shape[v->rank - 2], columns = v->shape[v->rank - 1], down = v->stride[v->rank - 2],
            across = v->stride[v->rank - 1];
    if ((columns > 1 && across != 1) || (rows > 1 && down < (columns > 1 ? columns : 1)))
        return false;
    *line = rows > 1 ? down : columns > 1 ? columns : 1;
    return true;
}

/* The last two axes exchanged; same memory. */
static tarn__view transposed(const tarn__view *v)
{
    tarn__view t = *v;
    t.shape[v->rank - 1] = v->shape[v->rank - 2], t.shape[v->rank - 2] = v->shape[v->rank - 1];
    t.stride[v->rank - 1] = v->stride[v->rank - 2], t.stride[v->rank - 2] = v->stride[v->rank - 1];
    return t;
}

/* cuBLASLt does not specify negative batch strides, and kernels that use the tensor memory accelerator cannot encode
 * them. */
static bool has_negative_batch_stride(const tarn__view *v)
{
    for (int i = 0; i < v->rank - 2; i++)
        if (v->shape[i] > 1 && v->stride[i] < 0)
            return true;
    return false;
}

/* How the operand is passed: as is, transposed, or packed. */
static matrix matrix_of(const tarn__view *v, bool may_transpose)
{
    matrix x = {.base = tarn__view_at(v)};
    tarn__view flipped = transposed(v);
    bool is_ascending = !has_negative_batch_stride(v);
    if (is_ascending && is_row_major(v, &x.line))
        return x;
    if (is_ascending && may_transpose && is_row_major(&flipped, &x.line)) {
        x.is_transposed = true;
        return x;
    }
    /* neither rows nor columns are contiguous */
    x.is_packed = true;
    x.view = *v;
    x.view.offset = 0;
    for (int i = 0; i < v->rank - 2; i++) /* an operand broadcast over batches is packed once */
        if (v->stride[i] == 0)
            x.view.shape[i] = 1;
    tarn__view_set_row_major(&x.view);
    x.packed_bytes = tarn__cuda_align((size_t)tarn__view_count(&x.view) * tarn__dtype_bytes(v->dtype));
    x.line = x.view.shape[v->rank - 1] > 1 ? x.view.shape[v->rank - 1] : 1;
    return x;
}

/* 0 for a broadcast axis. */
static int64_t batch_stride(const matrix *x, const tarn__view *v, int axis)
{
    const tarn__view *used = x->is_packed ? &x->view : v;
    return used->shape[axis] == 1 ? 0 : used->stride[axis];
}

/* Merges batch axes that all three operands walk with one stride: fewer calls. */
static void collapse_batches(job *j, const tarn__call *call)
{
    const tarn__view *views[] = {call->in[0], call->in[1], call->out[0]};
    const matrix *matrices[] = {&j->a, &j->b, &j->c};
    batch_nest *nest = &j->batches;
    for (int axis = 0; axis < call->out[0]->rank - 2; axis++) {
        int64_t size = call->out[0]->shape[axis], stride[3];
        if (size == 1)
            continue;
        bool merges = nest->rank > 0;
        for (int k = 0; k < 3; k++) {
            stride[k] = batch_stride(matrices[k], views[k], axis);
            merges = merges && nest->stride[k][nest->rank - 1] == stride[k] * size;
        }
        int at = merges ? nest->rank - 1 : nest->rank++;
        nest->shape[at] = merges ? nest->shape[at] * size : size;
        for (int k = 0; k < 3; k++)
            nest->stride[k][at] = stride[k];
    }
}

/* Fills in everything that depends on shapes and strides alone. */
static job describe(const tarn__call *call, tarn__kernel kernel)
{
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0];
    job j = {
        .m = a->shape[a->rank - 2], .n = b->shape[b->rank - 1], .k = a->shape[a->rank - 1], .params = call->params};
    j.kernel = kernel;
    j.bias = (kernel == TARN__K_matmul || kernel == TARN__K_matmul_gelu) && call->inputs > 2 ? call->in[2] : NULL;
    j.aux = kernel == TARN__K_matmul_gelu ? call->out[1] : kernel == TARN__K_matmul_gelu_grad ? call->in[2] : NULL;
    j.sums = kernel == TARN__K_matmul_bias_grad ? call->out[1] : NULL;
    j.a = matrix_of(a, true);
    j.b = matrix_of(b, true);
    j.c = matrix_of(c, false);
    collapse_batches(&j, call);
    return j;
}

/* TARN_CUBLASLT=off selects the naive kernels, for tests. */
static bool has_library(void)
{
    static _Atomic int answer = -1; /* -1: environment not read yet */
    if (answer < 0) {
        const char *text = getenv("TARN_CUBLASLT");
        answer = !(text && strcmp(text, "off") == 0);
    }
    return answer;
}

/* True if cuBLASLt supports the dtypes: one float dtype in, the same or f32 out. */
static bool is_supported(const tarn__call *call, const job *j)
{
    tarn_dtype in = call->in[0]->dtype, out = call->out[0]->dtype;
    if (!tarn__is_float(in) || call->in[1]->dtype != in || j->k == 0 || !has_library())
        return false;
    if (out != in && !(out == TARN_F32 && in != TARN_F64))
        return false;
    return !j->bias || j->bias->dtype == out;
}

/* cuBLASLt adds a bias before rounding only if everything is 16-byte aligned; otherwise a second pass would add it to
 * the rounded product. */
static bool fuses_bias(const job *j, const tarn__cuda_gemm *p)
{
    return p->align_a >= 16 && p->align_b >= 16 && p->align_c >= 16 && j->bias->stride[0] == 1 &&
           (uintptr_t)tarn__view_at(j->bias) % 16 == 0;
}

/* Largest power of 2, up to 256, that divides the address and both strides. */
static int32_t alignment_of(const void *address, int64_t line, int64_t batch, size_t size)
{
    uintptr_t all = (uintptr_t)address | (uintptr_t)((uint64_t)line * size) | (uintptr_t)((uint64_t)batch * size) | 256;
    return (int32_t)(all & (~all + 1));
}

/* BGRADB: the bias gradient along cuBLASLt's second operand, our a. */
static cublasLtEpilogue_t epilogue_of(const job *j)
{
    switch (j->kernel) {
    case TARN__K_matmul_gelu: return j->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case TARN__K_matmul_gelu_grad: return CUBLASLT_EPILOGUE_DGELU;
    case TARN__K_matmul_bias_grad: return CUBLASLT_EPILOGUE_BGRADB;
    default: return j->bias && !j->presets_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* The plan's key. memset first: it is compared as bytes. */
static tarn__cuda_gemm gemm_of(const tarn__call *call, job *j)
{
    size_t in = tarn__dtype_bytes(call->in[0]->dtype), out = tarn__dtype_bytes(call->out[0]->dtype);
    int last = j->batches.rank - 1;
    tarn__cuda_gemm p;
    memset(&p, 0, sizeof(p));
    p.m = j->m, p.n = j->n, p.k = j->k;
    p.batches = last >= 0 ? j->batches.shape[last] : 1;
    p.lda = j->a.line, p.ldb = j->b.line, p.ldc = j->c.line;
    if (last >= 0)
        p.batch_a = j->batches.stride[0][last], p.batch_b = j->batches.stride[1][last],
        p.batch_c = j->batches.stride[2][last];
    p.ldx = j->aux ? j->aux->stride[j->aux->rank - 2] : 0;
    p.a_transposed = j->a.is_transposed, p.b_transposed = j->b.is_transposed;
    p.in_dtype = (int32_t)call->in[0]->dtype, p.out_dtype = (int32_t)call->out[0]->dtype;
    p.tf32 = j->params->tf32 && call->in[0]->dtype == TARN_F32;
    p.accumulates = j->params->beta != 0;
    p.max_workspace = (int64_t)(j->params->limits_scratch ? TARN__CUDA_SMALL_WORKSPACE : TARN__CUDA_WORKSPACE);
    p.align_a =
        j->a.is_packed ? alignment_of(NULL, p.lda, p.batch_a, in) : alignment_of(j->a.base, p.lda, p.batch_a, in);
    p.align_b =
        j->b.is_packed ? alignment_of(NULL, p.ldb, p.batch_b, in) : alignment_of(j->b.base, p.ldb, p.batch_b, in);
    p.align_c =
        j->c.is_packed ? alignment_of(NULL, p.ldc, p.batch_c, out) : alignment_of(j->c.base, p.ldc, p.batch_c, out);
    for (int i = 0; i < last; i++) /* the alignment must hold for every batch of the loop */
        if ((uint64_t)j->batches.stride[0][i] * in % 256 || (uint64_t)j->batches.stride[1][i] * in % 256 ||
            (uint64_t)j->batches.stride[2][i] * out % 256) {
            p.align_a = p.align_b = (int32_t)in;
            p.align_c = (int32_t)out;
        }
    if (j->bias && j->kernel == TARN__K_matmul && !fuses_bias(j, &p)) {
        j->presets_bias = true;
        p.accumulates = 1;
        /* the library's kernels for aligned operands round a 16-bit product before they accumulate: exclude them */
        p.align_a = p.align_b = (int32_t)in;
        p.align_c = (int32_t)out;
    }
    p.epilogue = (int32_t)epilogue_of(j);
    return p;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The copy kernel, on the call's stream. */
static void copy_view(const tarn__call *call, const tarn__view *from, const tarn__view *to)
{
    const tarn__kernel_row *rows = tarn__cuda_rows();
    tarn__fill none = {0};
    tarn__call copy = {.inputs = 1,
                       .outputs = 1,
                       .in = {from},
                       .out = {to},
                       .device = call->device,
                       .stream = call->stream,
                       .function = call->function,
                       .params = &none,
                       .params_bytes = sizeof(none)};
    rows[TARN__K_copy].run(&copy);
}

/* The part of the operand that its packed copy holds: broadcast axes once. */
static tarn__view source_of(const tarn__view *v, const matrix *x)
{
    tarn__view from = *v;
    memcpy(from.shape, x->view.shape, sizeof(from.shape));
    return from;
}

/* `is_read` false: the result, which is only written. */
static void pack_operand(const tarn__call *call, const tarn__view *v, matrix *x, char *scratch, bool is_read)
{
    if (!x->is_packed)
        return;
    x->base = scratch;
    x->view.memory = scratch;
    x->view.dtype = v->dtype;
    tarn__view from = source_of(v, x);
    if (is_read)
        copy_view(call, &from, &x->view);
}

/* Broadcasts the bias over every row of the result, or of its packed copy. */
static void preset_bias(const tarn__call *call, const job *j)
{
    const tarn__view *to = j->c.is_packed ? &j->c.view : call->out[0];
    tarn__view from = *to;
    from.memory = j->bias->memory;
    from.offset = j->bias->offset;
    for (int i = 0; i < from.rank; i++)
        from.stride[i] = i == from.rank - 1 ? j->bias->stride[0] : 0;
    copy_view(call, &from, to);
}

/* One cuBLASLt call per step of the outer batch axes; stops at the first failure. */
static void run_batches(const tarn__call *call, const job *j, tarn__cuda_matmul_plan *plan,
                        const tarn__cuda_gemm_operands *first)
{
    const batch_nest *nest = &j->batches;
    int64_t in = (int64_t)tarn__dtype_bytes(call->in[0]->dtype), out = (int64_t)tarn__dtype_bytes(call->out[0]->dtype),
            steps = 1;
    for (int i = 0; i < nest->rank - 1; i++)
        steps *= nest->shape[i];
    for (int64_t step = 0; step < steps; step++) {
        int64_t offset[3] = {0}, rest = step;
        for (int i = nest->rank - 2; i >= 0; i--) {
            for (int k = 0; k < 3; k++)
                offset[k] += rest % nest->shape[i] * nest->stride[k][i];
            rest /= nest->shape[i];
        }
        tarn__cuda_gemm_operands operands = *first;
        operands.a = (const char *)first->a + offset[0] * in;
        operands.b = (const char *)first->b + offset[1] * in;
        operands.c = (char *)first->c + offset[2] * out;
        if (!tarn__cuda_matmul_plan_run(call->device, plan, &operands, j->params->alpha,
                                        j->presets_bias ? 1 : j->params->beta, call->stream)) {
            tarn__cuda_set_failed(call->device);
            return;
        }
    }
}

/* Packs operands that cuBLASLt cannot read, and unpacks a result it cannot write. Scratch: workspace, a, b, c. */
static void run_plan(const tarn__call *call, job *j, tarn__cuda_matmul_plan *plan)
{
    char *scratch = (char *)call->scratch + tarn__cuda_align(plan->workspace);
    pack_operand(call, call->in[0], &j->a, scratch, true);
    pack_operand(call, call->in[1], &j->b, scratch + j->a.packed_bytes, true);
    pack_operand(call, call->out[0], &j->c, scratch + j->a.packed_bytes + j->b.packed_bytes, j->params->beta != 0);
    if (j->presets_bias)
        preset_bias(call, j);
    const tarn__view *bias = j->sums ? j->sums : j->presets_bias ? NULL : j->bias;
    tarn__cuda_gemm_operands operands = {.a = j->a.base,
                                         .b = j->b.base,
                                         .c = j->c.base,
                                         .bias = bias ? tarn__view_at(bias) : NULL,
                                         .aux = j->aux ? tarn__view_at(j->aux) : NULL,
                                         .workspace = call->scratch};
    run_batches(call, j, plan, &operands);
    /* the result was computed in scratch */
    if (j->c.is_packed)
        copy_view(call, &j->c.view, call->out[0]);
}

/* Also builds, and perhaps tunes, the plan: before any launch of the call. */
static size_t matmul_scratch(const tarn__call *call)
{
    job j = describe(call, TARN__K_matmul);
    if (tarn__view_count(call->out[0]) == 0 || !is_supported(call, &j))
        return 0;
    tarn__cuda_gemm product = gemm_of(call, &j);
    tarn__cuda_matmul_plan *plan = tarn__cuda_matmul_plan_of(call->device, &product);
    return (plan ? tarn__cuda_align(plan->workspace) : 0) + j.a.packed_bytes + j.b.packed_bytes + j.c.packed_bytes;
}

/* cuBLASLt or the naive kernel. */
static void kernel_matmul(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    job j = describe(call, TARN__K_matmul);
    if (!is_supported(call, &j)) {
        tarn__cuda_matmul_naive(call);
        return;
    }
    tarn__cuda_gemm product = gemm_of(call, &j);
    tarn__cuda_matmul_plan *plan = tarn__cuda_matmul_plan_of(call->device, &product);
    if (!plan)
        tarn__cuda_set_failed(call->device);
    else
        run_plan(call, &j, plan);
}

/* ---- fused epilogues --------------------------------------------------------------------------------------------- */

/* The plan of a fused variant: 16-bit row-major operands, 16-byte aligned. NULL: compose it. */
static tarn__cuda_matmul_plan *fused_plan(const tarn__call *call, job *j)
{
    const tarn__view *side = j->aux ? j->aux : j->sums;
    tarn_dtype in = call->in[0]->dtype;
    if ((in != TARN_BF16 && in != TARN_F16) || !is_supported(call, j) || call->out[0]->rank != 2 || j->c.is_packed ||
        j->n < 8 || j->m < 8)
        return NULL;
    if (j->sums ? j->sums->stride[0] != 1
                : (side->stride[1] != 1 || side->dtype != call->out[0]->dtype || side->stride[0] % 8 != 0))
        return NULL;
    if ((uintptr_t)tarn__view_at(side) % 16 != 0 ||
        (j->bias && (j->bias->stride[0] != 1 || (uintptr_t)tarn__view_at(j->bias) % 16 != 0)))
        return NULL;
    /* Measured on H200: bias gradients are free where N > M (768 × 3072: 7 % less for both), and slow the GEMM down
     * elsewhere (50304 × 768: 19 % more than a separate pass). */
    if (j->sums && (j->sums->dtype != call->out[0]->dtype || j->n <= j->m))
        return NULL;
    tarn__cuda_gemm product = gemm_of(call, j);
    if (product.align_a < 16 || product.align_b < 16 || product.align_c < 16)
        return NULL;
    tarn__cuda_matmul_plan *plan = tarn__cuda_matmul_plan_of(call->device, &product);
    return plan && !plan->is_slower ? plan : NULL;
}

/* Declines what the composed row, the next one, runs as fast or alone. */
static tarn__plan_status prepare_fused(const tarn__call *call, tarn__kernel kernel, tarn__plan *plan)
{
    job j = describe(call, kernel);
    tarn__cuda_matmul_plan *fused = tarn__view_count(call->out[0]) == 0 ? NULL : fused_plan(call, &j);
    if (!fused)
        return TARN__PLAN_DECLINED;
    plan->shared = fused;
    plan->scratch_bytes = tarn__cuda_align(fused->workspace) + j.a.packed_bytes + j.b.packed_bytes;
    return TARN__PLAN_READY;
}

static void run_fused(const tarn__call *call, tarn__kernel kernel)
{
    job j = describe(call, kernel);
    run_plan(call, &j, fused_plan(call, &j));
}

#define FUSED(name) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return prepare_fused(call, TARN__K_##name, plan); \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        run_fused(call, TARN__K_##name); \
    } \
    static tarn__plan_status prepare_composed_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return tarn__compose_prepare(tarn__cuda_rows(), TARN__K_##name, call, plan); \
    } \
    static void kernel_composed_##name(const tarn__call *call) \
    { \
        tarn__compose_run(TARN__K_##name, call); \
    }
FUSED(matmul_gelu)
FUSED(matmul_gelu_grad)
FUSED(matmul_bias_grad)

#define FUSED_ROWS(name, dtypes) \
    do { \
        static tarn__kernel_row composed; \
        rows[TARN__K_##name] = \
            tarn__row_named(tarn__row_planned(prepare_composed_##name, kernel_composed_##name, dtypes), "composed"); \
        tarn__push_row(rows, TARN__K_##name, \
                       tarn__row_named(tarn__row_planned(prepare_##name, kernel_##name, TARN__FLOATS), "cublaslt"), \
                       &composed); \
    } while (0)

void tarn__cuda_register_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul] = tarn__row(kernel_matmul, TARN__NUMBERS, matmul_scratch);
    FUSED_ROWS(matmul_gelu, TARN__FLOATS);
    FUSED_ROWS(matmul_gelu_grad, TARN__FLOATS);
    FUSED_ROWS(matmul_bias_grad, TARN__NUMBERS);
}

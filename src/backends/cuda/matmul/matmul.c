/* matmul.c: matmul on cuBLASLt: 2·M·N·K FLOPs, at least (M·K + K·N + M·N) elements moved.
 *
 * Operands with contiguous rows or columns are used in place, transposed or not; others, and batches of a flipped view,
 * are packed into scratch first. Batches with a single stride are one call; otherwise one call per step of the outer
 * batch axes.
 *
 * Rows: "cublaslt", then "naive" for the dtypes it lacks (matmul_naive.cu). matmul with GELU or a bias gradient is
 * fused into the epilogue ("cublaslt") where the library supports it and is not slower, else composed of two kernels
 * ("composed", base/kernel/compose.h); GELU's gradient with column sums is a kernel of our own on compute
 * capability 9 where that is faster ("wgmma", matmul_wgmma.c). */
#include "backends/cuda/matmul/matmul.h"

#include <stdlib.h>
#include <string.h>

#include "base/kernel/compose.h"

/* One operand as a matrix with contiguous rows or columns. */
typedef struct matrix {
    int64_t line; /* leading dimension, in elements */
    bool is_transposed;
    bool is_packed;  /* packed into scratch */
    size_t packed;   /* its offset there */
    tarn__view view; /* of the packed copy, without memory: contiguous, the operand's shape */
} matrix;

/* Batch axes of a, b and c, collapsed; cuBLASLt handles the last one. */
typedef struct batch_nest {
    int rank;
    int64_t shape[TARN_MAX_RANK], stride[3][TARN_MAX_RANK];
} batch_nest;

/* A described call; plan->shared is its tarn__cuda_matmul_plan, NULL for an empty result. */
typedef struct job {
    tarn__kernel kernel; /* matmul, or a fused variant of it */
    matrix a, b, c;
    batch_nest batches;
    bool presets_bias; /* copied into c first, then accumulated onto with beta = 1 */
} job;

/* Operands of an epilogue; NULL: none. */
typedef struct extras {
    const tarn__view *bias;
    const tarn__view *aux;  /* GELU's input */
    const tarn__view *sums; /* row sums of a: the bias gradient */
} extras;

static extras extras_of(const tarn__call *call, tarn__kernel kernel)
{
    return (extras){
        .bias = (kernel == TARN__K_matmul || kernel == TARN__K_matmul_gelu) && call->inputs > 2 ? call->in[2] : NULL,
        .aux = kernel == TARN__K_matmul_gelu        ? call->out[1]
               : kernel == TARN__K_matmul_gelu_grad ? call->in[2]
                                                    : NULL,
        .sums = kernel == TARN__K_matmul_bias_grad ? call->out[1] : NULL};
}

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
static void describe_matrix(matrix *x, const tarn__view *v, bool may_transpose)
{
    tarn__view flipped = transposed(v);
    bool is_ascending = !has_negative_batch_stride(v);
    x->is_transposed = x->is_packed = false;
    if (is_ascending && is_row_major(v, &x->line))
        return;
    if (is_ascending && may_transpose && is_row_major(&flipped, &x->line)) {
        x->is_transposed = true;
        return;
    }
    /* neither rows nor columns are contiguous */
    x->is_packed = true;
    x->view = *v;
    x->view.memory = NULL;
    x->view.offset = 0;
    for (int i = 0; i < v->rank - 2; i++) /* an operand broadcast over batches is packed once */
        if (v->stride[i] == 0)
            x->view.shape[i] = 1;
    tarn__view_set_row_major(&x->view);
    x->line = x->view.shape[v->rank - 1] > 1 ? x->view.shape[v->rank - 1] : 1;
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
    nest->rank = 0;
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
static void describe(job *j, const tarn__call *call, tarn__kernel kernel)
{
    j->kernel = kernel;
    j->presets_bias = false;
    describe_matrix(&j->a, call->in[0], true);
    describe_matrix(&j->b, call->in[1], true);
    describe_matrix(&j->c, call->out[0], false);
    collapse_batches(j, call);
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

/* One float dtype in, the same or f32 out. A result that is not allocated yet counts as supported. */
static bool fits_library(const tarn__call *call)
{
    const tarn__view *a = call->in[0], *bias = call->inputs > 2 ? call->in[2] : NULL;
    tarn_dtype in = a->dtype, out = call->out[0] ? call->out[0]->dtype : in;
    if (!tarn__is_float(in) || call->in[1]->dtype != in || a->shape[a->rank - 1] == 0 || !has_library())
        return false;
    if (out != in && !(out == TARN_F32 && in != TARN_F64))
        return false;
    return !bias || bias->dtype == out;
}

/* cuBLASLt adds a bias before rounding only if everything is 16-byte aligned; otherwise a second pass would add it to
 * the rounded product. */
static bool fuses_bias(const tarn__view *bias, const tarn__cuda_gemm *p)
{
    return p->align_a >= 16 && p->align_b >= 16 && p->align_c >= 16 && bias->stride[0] == 1 &&
           (uintptr_t)tarn__view_at(bias) % 16 == 0;
}

/* Largest power of 2, up to 256, that divides the address (a packed copy has any) and both strides. */
static int32_t alignment_of(const matrix *x, const tarn__view *v, int64_t batch)
{
    size_t size = tarn__dtype_bytes(v->dtype);
    uintptr_t address = x->is_packed ? 0 : (uintptr_t)tarn__view_at(v),
              all = address | (uintptr_t)((uint64_t)x->line * size) | (uintptr_t)((uint64_t)batch * size) | 256;
    return (int32_t)(all & (~all + 1));
}

/* BGRADB: the bias gradient along cuBLASLt's second operand, our a. */
static cublasLtEpilogue_t epilogue_of(const job *j, bool has_bias)
{
    switch (j->kernel) {
    case TARN__K_matmul_gelu: return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case TARN__K_matmul_gelu_grad: return CUBLASLT_EPILOGUE_DGELU;
    case TARN__K_matmul_bias_grad: return CUBLASLT_EPILOGUE_BGRADB;
    default: return has_bias && !j->presets_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* The plan's key. memset first: it is compared as bytes. */
static tarn__cuda_gemm gemm_of(const tarn__call *call, job *j)
{
    const tarn__matmul *params = call->params;
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0];
    extras extra = extras_of(call, j->kernel);
    size_t in = tarn__dtype_bytes(a->dtype), out = tarn__dtype_bytes(c->dtype);
    int last = j->batches.rank - 1;
    tarn__cuda_gemm p;
    memset(&p, 0, sizeof(p));
    p.m = a->shape[a->rank - 2], p.n = b->shape[b->rank - 1], p.k = a->shape[a->rank - 1];
    p.batches = last >= 0 ? j->batches.shape[last] : 1;
    p.lda = j->a.line, p.ldb = j->b.line, p.ldc = j->c.line;
    if (last >= 0)
        p.batch_a = j->batches.stride[0][last], p.batch_b = j->batches.stride[1][last],
        p.batch_c = j->batches.stride[2][last];
    p.ldx = extra.aux ? extra.aux->stride[extra.aux->rank - 2] : 0;
    p.a_transposed = j->a.is_transposed, p.b_transposed = j->b.is_transposed;
    p.in_dtype = (int32_t)a->dtype, p.out_dtype = (int32_t)c->dtype;
    p.tf32 = params->tf32 && a->dtype == TARN_F32;
    p.accumulates = params->beta != 0;
    p.max_workspace = (int64_t)(params->limits_scratch ? TARN__CUDA_SMALL_WORKSPACE : TARN__CUDA_WORKSPACE);
    p.align_a = alignment_of(&j->a, a, p.batch_a);
    p.align_b = alignment_of(&j->b, b, p.batch_b);
    p.align_c = alignment_of(&j->c, c, p.batch_c);
    for (int i = 0; i < last; i++) /* the alignment must hold for every batch of the loop */
        if ((uint64_t)j->batches.stride[0][i] * in % 256 || (uint64_t)j->batches.stride[1][i] * in % 256 ||
            (uint64_t)j->batches.stride[2][i] * out % 256) {
            p.align_a = p.align_b = (int32_t)in;
            p.align_c = (int32_t)out;
        }
    if (extra.bias && j->kernel == TARN__K_matmul && !fuses_bias(extra.bias, &p)) {
        j->presets_bias = true;
        p.accumulates = 1;
        /* the library's kernels for aligned operands round a 16-bit product before they accumulate: exclude them */
        p.align_a = p.align_b = (int32_t)in;
        p.align_c = (int32_t)out;
    }
    p.epilogue = (int32_t)epilogue_of(j, extra.bias != NULL);
    return p;
}

/* Scratch: the library's workspace, then packed copies of a, b and c. */
static void layout_scratch(job *j, tarn__plan *plan, size_t workspace)
{
    matrix *all[] = {&j->a, &j->b, &j->c};
    plan->scratch_bytes = tarn__cuda_align(workspace);
    for (int i = 0; i < 3; i++)
        if (all[i]->is_packed) {
            const tarn__view *v = &all[i]->view;
            all[i]->packed = plan->scratch_bytes;
            plan->scratch_bytes += tarn__cuda_align((size_t)tarn__view_count(v) * tarn__dtype_bytes(v->dtype));
        }
}

/* Finds the library's plan; may create and tune it. On a meta device only its workspace is counted. */
static tarn__plan_status prepare_product(const tarn__call *call, tarn__plan *plan, job *j,
                                         const tarn__cuda_gemm *product)
{
    size_t workspace = 0;
    if (call->is_meta) {
        if (!tarn__cuda_matmul_workspace_of(call->device, product, &workspace))
            return TARN__PLAN_DECLINED;
    } else {
        const tarn__cuda_matmul_plan *found = tarn__cuda_matmul_plan_of(call->device, product);
        if (!found)
            return TARN__PLAN_FAILED;
        if (found->is_slower)
            return TARN__PLAN_DECLINED;
        plan->shared = found;
        workspace = found->workspace;
    }
    layout_scratch(j, plan, workspace);
    return TARN__PLAN_READY;
}

/* Before any launch of the call: tuning runs kernels of its own. */
static tarn__plan_status prepare_matmul(const tarn__call *call, tarn__plan *plan)
{
    if (tarn__view_count(call->out[0]) == 0)
        return TARN__PLAN_READY;
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call, TARN__K_matmul);
    tarn__cuda_gemm product = gemm_of(call, j);
    return prepare_product(call, plan, j, &product);
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

/* The operand in memory: its view, or its packed copy in scratch. */
static tarn__view operand_of(const tarn__call *call, const tarn__view *v, const matrix *x)
{
    if (!x->is_packed)
        return *v;
    tarn__view copy = x->view;
    copy.memory = (char *)call->scratch + x->packed;
    return copy;
}

/* operand_of(), with the values copied. */
static tarn__view pack_operand(const tarn__call *call, const tarn__view *v, const matrix *x)
{
    tarn__view copy = operand_of(call, v, x);
    if (x->is_packed) {
        tarn__view from = source_of(v, x);
        copy_view(call, &from, &copy);
    }
    return copy;
}

/* Broadcasts the bias over every row of the result, or of its packed copy. */
static void preset_bias(const tarn__call *call, const tarn__view *bias, const tarn__view *to)
{
    tarn__view from = *to;
    from.memory = bias->memory;
    from.offset = bias->offset;
    for (int i = 0; i < from.rank; i++)
        from.stride[i] = i == from.rank - 1 ? bias->stride[0] : 0;
    copy_view(call, &from, to);
}

/* Addresses live in the descriptor, not in the call: hence the lock. */
static void set_address(const tarn__cuda_matmul_plan *plan, cublasLtMatmulDescAttributes_t which, const void *address)
{
    if (address)
        cublasLtMatmulDescSetAttribute(plan->desc, which, &address, sizeof(address));
}

/* alpha and beta in the scale type: f64 for f64, else f32. */
cublasStatus_t tarn__cuda_matmul_enqueue(const tarn__cuda_matmul_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                                         size_t workspace, const tarn__cuda_gemm_operands *operands, double alpha,
                                         double beta, cudaStream_t stream)
{
    float f32[] = {(float)alpha, (float)beta};
    double f64[] = {alpha, beta};
    bool is_f64 = plan->product.in_dtype == TARN_F64;
    set_address(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands->bias);
    set_address(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands->aux);
    return cublasLtMatmul(plan->handle, plan->desc, is_f64 ? (void *)&f64[0] : (void *)&f32[0], operands->b, plan->a,
                          operands->a, plan->b, is_f64 ? (void *)&f64[1] : (void *)&f32[1], operands->c, plan->c,
                          operands->c, plan->c, algorithm, operands->workspace, workspace, stream);
}

/* Steps of the outer batch axes, one cuBLASLt call each. */
static int64_t steps_of(const batch_nest *nest)
{
    int64_t steps = 1;
    for (int i = 0; i < nest->rank - 1; i++)
        steps *= nest->shape[i];
    return steps;
}

/* The operands of a step. */
static tarn__cuda_gemm_operands operands_at(const batch_nest *nest, const tarn__cuda_gemm *p,
                                            const tarn__cuda_gemm_operands *first, int64_t step)
{
    int64_t in = (int64_t)tarn__dtype_bytes((tarn_dtype)p->in_dtype),
            out = (int64_t)tarn__dtype_bytes((tarn_dtype)p->out_dtype), offset[3] = {0};
    for (int i = nest->rank - 2; i >= 0; i--) {
        for (int k = 0; k < 3; k++)
            offset[k] += step % nest->shape[i] * nest->stride[k][i];
        step /= nest->shape[i];
    }
    tarn__cuda_gemm_operands operands = *first;
    operands.a = (const char *)first->a + offset[0] * in;
    operands.b = (const char *)first->b + offset[1] * in;
    operands.c = (char *)first->c + offset[2] * out;
    return operands;
}

/* Packs operands that cuBLASLt cannot read, and unpacks a result it cannot write. Runs matmul and its fused variants.
 */
static void kernel_library(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    const tarn__cuda_matmul_plan *plan = call->plan->shared;
    const tarn__matmul *params = call->params;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (!plan) /* an empty result */
        return;
    extras extra = extras_of(call, j->kernel);
    bool reads_c = params->beta != 0;
    tarn__view a = pack_operand(call, call->in[0], &j->a), b = pack_operand(call, call->in[1], &j->b),
               c = reads_c ? pack_operand(call, call->out[0], &j->c) : operand_of(call, call->out[0], &j->c);
    if (j->presets_bias)
        preset_bias(call, extra.bias, &c);
    const tarn__view *bias = extra.sums ? extra.sums : j->presets_bias ? NULL : extra.bias;
    tarn__cuda_gemm_operands operands = {.a = tarn__view_at(&a),
                                         .b = tarn__view_at(&b),
                                         .c = tarn__view_at(&c),
                                         .bias = bias ? tarn__view_at(bias) : NULL,
                                         .aux = extra.aux ? tarn__view_at(extra.aux) : NULL,
                                         .workspace = call->scratch};
    int64_t steps = steps_of(&j->batches);
    tarn__cuda_matmul_lock();
    for (int64_t step = 0; step < steps && status == CUBLAS_STATUS_SUCCESS; step++) {
        tarn__cuda_gemm_operands at = operands_at(&j->batches, &plan->product, &operands, step);
        status = tarn__cuda_matmul_enqueue(plan, &plan->algorithm, plan->workspace, &at, params->alpha,
                                           j->presets_bias ? 1 : params->beta, call->stream);
    }
    tarn__cuda_matmul_unlock();
    if (status != CUBLAS_STATUS_SUCCESS) {
        tarn__cuda_fail("matmul failed: %s", cublasLtGetStatusString(status));
        tarn__cuda_set_failed(call->device);
    }
    if (j->c.is_packed) /* the result was computed in scratch */
        copy_view(call, &c, call->out[0]);
}

/* ---- fused epilogues --------------------------------------------------------------------------------------------- */

static bool is_aligned(const tarn__view *v)
{
    return (uintptr_t)tarn__view_at(v) % 16 == 0;
}

/* 16-bit row-major operands, 16-byte aligned. */
static bool fits_epilogue(const tarn__call *call, tarn__kernel kernel)
{
    extras extra = extras_of(call, kernel);
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0], *side = extra.aux ? extra.aux : extra.sums;
    int64_t m = a->shape[a->rank - 2], n = b->shape[b->rank - 1], line;
    if ((a->dtype != TARN_BF16 && a->dtype != TARN_F16) || !c || !side || c->rank != 2 || n < 8 || m < 8 ||
        !is_row_major(c, &line))
        return false;
    if (extra.sums ? side->stride[0] != 1
                   : (side->stride[1] != 1 || side->dtype != c->dtype || side->stride[0] % 8 != 0))
        return false;
    if (!is_aligned(side) || (extra.bias && (extra.bias->stride[0] != 1 || !is_aligned(extra.bias))))
        return false;
    /* Measured on H200: bias gradients are free where N > M (768 × 3072: 7 % less for both), and slow the GEMM down
     * elsewhere (50304 × 768: 19 % more than a separate pass). */
    if (extra.sums && (side->dtype != c->dtype || n <= m))
        return false;
    tarn__call product = *call; /* the library's limits are those of the GEMM and its bias */
    product.inputs = kernel == TARN__K_matmul_gelu ? call->inputs : 2;
    return fits_library(&product);
}

/* DECLINED where the library has no such plan, or a slower one. */
static tarn__plan_status prepare_epilogue(const tarn__call *call, tarn__plan *plan, tarn__kernel kernel)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call, kernel);
    tarn__cuda_gemm product = gemm_of(call, j);
    if (product.align_a < 16 || product.align_b < 16 || product.align_c < 16)
        return TARN__PLAN_DECLINED;
    tarn__plan_status status = prepare_product(call, plan, j, &product);
    return status == TARN__PLAN_FAILED ? TARN__PLAN_DECLINED : status;
}

bool tarn__cuda_fused_gemm_of(const tarn__call *call, tarn__kernel kernel, tarn__cuda_gemm *product)
{
    job j;
    if (!fits_epilogue(call, kernel))
        return false;
    describe(&j, call, kernel);
    *product = gemm_of(call, &j);
    return !j.a.is_packed && !j.b.is_packed && !j.c.is_packed;
}

tarn__cuda_gemm_operands tarn__cuda_fused_operands_of(const tarn__call *call, tarn__kernel kernel)
{
    extras extra = extras_of(call, kernel);
    return (tarn__cuda_gemm_operands){.a = tarn__view_at(call->in[0]),
                                      .b = tarn__view_at(call->in[1]),
                                      .c = tarn__view_at(call->out[0]),
                                      .bias = extra.bias ? tarn__view_at(extra.bias) : NULL,
                                      .aux = extra.aux ? tarn__view_at(extra.aux) : NULL,
                                      .workspace = call->scratch};
}

/* Column sums of GELU's gradient: the library has no such epilogue. */
static bool has_gelu_sums(const tarn__call *call, tarn__kernel kernel)
{
    return kernel == TARN__K_matmul_gelu_grad && call->outputs > 1 && call->out[1];
}

#define FUSED(name) \
    static bool fits_##name(const tarn__call *call) \
    { \
        return !has_gelu_sums(call, TARN__K_##name) && fits_epilogue(call, TARN__K_##name); \
    } \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return prepare_epilogue(call, plan, TARN__K_##name); \
    } \
    TARN__COMPOSED(name, tarn__cuda_rows())
FUSED(matmul_gelu)
FUSED(matmul_gelu_grad)
FUSED(matmul_bias_grad)

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void kernel_naive(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) > 0)
        tarn__cuda_matmul_naive(call);
}

/* Prepares a matmul in `memory`; NULL if that fails. */
static const tarn__kernel_row *prepare_gemm(const tarn__call *gemm, tarn__plan_buffer *memory)
{
    tarn__plan_status status;
    const tarn__kernel_row *row =
        tarn__prepare(&tarn__cuda_rows()[TARN__K_matmul], gemm, tarn__plan_begin(memory), &status);
    return status == TARN__PLAN_READY ? row : NULL;
}

bool tarn__cuda_gemm_scratch(const tarn__call *gemm, size_t *bytes)
{
    tarn__plan_buffer memory;
    if (!prepare_gemm(gemm, &memory))
        return false;
    *bytes = memory.plan.scratch_bytes;
    return true;
}

void tarn__cuda_gemm_run(tarn__call *gemm)
{
    tarn__plan_buffer memory;
    const tarn__kernel_row *row = prepare_gemm(gemm, &memory);
    if (!row) {
        tarn__cuda_set_failed(gemm->device);
        return;
    }
    gemm->plan = &memory.plan;
    gemm->scratch_bytes = memory.plan.scratch_bytes;
    row->run(gemm);
}

/* Puts the library's row ahead of the one that runs every other call. */
static void add_library(tarn__kernel_row *rows, tarn__kernel kernel, bool (*fits)(const tarn__call *),
                        tarn__plan_status (*prepare)(const tarn__call *, tarn__plan *), tarn__kernel_row *storage)
{
    tarn__kernel_row row = tarn__row_fits(tarn__row_planned(prepare, kernel_library, TARN__FLOATS), fits);
    tarn__push_row(rows, kernel, tarn__row_named(row, "cublaslt"), storage);
}

#define ADD_FUSED(name, dtypes) \
    static tarn__kernel_row composed_##name; \
    rows[TARN__K_##name] = \
        tarn__row_named(tarn__row_planned(prepare_composed_##name, kernel_composed_##name, dtypes), "composed"); \
    add_library(rows, TARN__K_##name, fits_##name, prepare_##name, &composed_##name);

void tarn__cuda_register_matmul(tarn__kernel_row *rows)
{
    static tarn__kernel_row naive;
    rows[TARN__K_matmul] = tarn__row_named(tarn__row(kernel_naive, TARN__NUMBERS), "naive");
    add_library(rows, TARN__K_matmul, fits_library, prepare_matmul, &naive);
    ADD_FUSED(matmul_gelu, TARN__FLOATS)
    ADD_FUSED(matmul_gelu_grad, TARN__FLOATS)
    ADD_FUSED(matmul_bias_grad, TARN__NUMBERS)
    tarn__cuda_add_matmul_wgmma(rows);
}

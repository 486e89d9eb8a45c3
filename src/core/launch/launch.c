/* launch.c: from tensors to a kernel call: choice of the row, scratch, faults, and the fallback to the CPU.
 *
 * Scratch comes from the device's pool and is returned right after the launch: the stream orders its reuse. The
 * fallback downloads the operands, runs the CPU's kernel and uploads the results; it is counted and warned about
 * once per kernel.
 *
 * Order of a call: find the first row that fits and prepare it; on a meta device only account for scratch; else
 * allocate scratch, run, free scratch, poll. A kernel never sees an operand it does not list, so the CPU's table
 * decides whether an operation is supported at all. */
#include "core/launch/launch.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/stats.h"
#include "core/profile/profiler.h"
#include "core/tensor/tensor.h"

/* The kernel's view of a launch: pointers are borrowed for the call. Filled in place: compilers build a result in
 * memory of their own, then copy it. */
static void make_call(tarn__call *call, const tarn__launch *launch, tarn_device device)
{
    memset(call, 0, sizeof(*call));
    call->inputs = launch->inputs;
    call->outputs = launch->outputs;
    call->reads_output = launch->reads_output;
    call->device = device.index;
    call->function = launch->function;
    call->params = launch->params;
    call->params_bytes = launch->params_bytes;
    for (int i = 0; i < launch->inputs; i++)
        call->in[i] = launch->in[i] ? &launch->in[i]->view : NULL;
    for (int i = 0; i < launch->outputs; i++)
        call->out[i] = launch->out[i] ? &launch->out[i]->view : NULL;
}

/* Why a backend could not prepare or run a call. */
static bool raise_failure(const tarn__backend *backend, tarn_device device, const char *function)
{
    char name[32];
    return tarn__raise(TARN_ERROR_DEVICE, "%s: %s failed: %s", function, tarn_device_name(device, name, sizeof(name)),
                       backend->failure());
}

/* plan NULL: none. Asynchronous devices are polled after the launch, without waiting: a fault of an earlier call may
 * surface here. */
static bool run_row(const tarn__backend *backend, const tarn__kernel_row *row, tarn_device device, tarn__call *call,
                    const tarn__plan *plan)
{
    tarn__fault fault = {.function = call->function};
    call->stream = backend->stream ? backend->stream(device.index) : NULL;
    call->fault = &fault;
    call->plan = plan;
    tarn__pool_block *scratch = NULL;
    if (plan && (call->scratch_bytes = plan->scratch_bytes) > 0) {
        scratch = tarn__pool_alloc(device, call->scratch_bytes, NULL);
        if (!scratch)
            return tarn__raise_within(call->function);
        call->scratch = tarn__pool_block_memory(scratch);
        call->scratch_offset = tarn__pool_block_offset(scratch);
    }
    row->run(call);
    tarn__pool_free(scratch);
    return (backend->poll ? tarn__device_poll(device, call->function) : tarn__fault_check(&fault)) && !tarn_failed();
}

/* Begins the profile record of a row; `device` is where it runs. */
static void begin_record(tarn__timing *timing, const tarn__kernel_row *row, tarn_device device,
                         const tarn__launch *launch, bool is_fallback)
{
    tarn__timing_begin(timing, tarn__kernel_kind(launch->kernel), tarn__kernel_names[launch->kernel], launch->function,
                       device);
    timing->record.is_fallback = is_fallback;
    timing->record.variant = row->variant;
    tarn__timing_describe(timing, launch);
}

/* Runs the first row, from `row` on, that is ready. DECLINED: none is; FAILED: with an error. Kernels whose rows have
 * nothing to describe, the element-wise ones, run without a plan: their calls are the cheapest. Preparing counts as
 * host time before the kernel: tuning would spoil its record. */
static tarn__plan_status run_kernel(const tarn__backend *backend, const tarn__kernel_row *row, tarn_device device,
                                    tarn__call *call, const tarn__launch *launch, bool is_fallback)
{
    tarn__plan_buffer memory;
    tarn__plan *plan = NULL;
    if (!row->prepare && !(row = tarn__find_row(row, call)))
        return TARN__PLAN_DECLINED;
    if (row->prepare) {
        tarn__plan_status status;
        plan = tarn__plan_begin(&memory);
        row = tarn__prepare(row, call, plan, &status);
        if (status == TARN__PLAN_FAILED)
            raise_failure(backend, device, call->function);
        if (status != TARN__PLAN_READY)
            return status;
    }
    tarn__timing timing;
    bool is_recorded = tarn__is_profiling();
    if (is_recorded)
        begin_record(&timing, row, device, launch, is_fallback);
    bool good = run_row(backend, row, device, call, plan);
    if (is_recorded)
        tarn__timing_end(&timing);
    if (good && backend->declined && backend->declined(device.index))
        return TARN__PLAN_DECLINED;
    return good ? TARN__PLAN_READY : TARN__PLAN_FAILED;
}

/* On a meta device no kernel runs; its scratch is allocated and freed, so that the pool's peak includes it. */
static bool count_scratch(const tarn__backend *backend, const tarn__kernel_row *row, tarn_device device,
                          tarn__call *call)
{
    tarn__plan_buffer memory;
    tarn__plan *plan = tarn__plan_begin(&memory);
    tarn__plan_status status;
    call->is_meta = true;
    tarn__prepare(row, call, plan, &status);
    if (status == TARN__PLAN_FAILED)
        return raise_failure(backend, device, call->function);
    tarn__pool_block *scratch = plan->scratch_bytes > 0 ? tarn__pool_alloc(device, plan->scratch_bytes, NULL) : NULL;
    tarn__pool_free(scratch);
    return plan->scratch_bytes == 0 || scratch || tarn__raise_within(call->function);
}

/* ---- fallback to the CPU --------------------------------------------------------------------------------------- */

/* One warning per backend and kernel: a fallback in a training loop would flood the log. */
static void warn_once(tarn__kernel kernel, tarn_device device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool warned[TARN__MAX_BACKENDS][TARN__KERNEL_COUNT];
    char name[32];
    pthread_mutex_lock(&lock);
    bool first = !warned[device.backend][kernel];
    warned[device.backend][kernel] = true;
    pthread_mutex_unlock(&lock);
    if (first)
        tarn__log(TARN_LOG_WARNING, "%s has no kernel '%s' for this call; the CPU runs it, with copies both ways",
                  tarn_device_name(device, name, sizeof(name)), tarn__kernel_names[kernel]);
}

/* The offsets of a view's lowest and highest element, relative to its first. */
static void span_of(const tarn__view *view, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (int i = 0; i < view->rank; i++) {
        int64_t reach = view->shape[i] > 0 ? (view->shape[i] - 1) * view->stride[i] : 0;
        *(reach < 0 ? low : high) += reach;
    }
}

/* A host copy of a slice of a storage. */
typedef struct host_copy {
    void *memory;
    int64_t first, end; /* bytes of the storage; equal: empty */
} host_copy;

/* Extends a slice to cover a tensor. It starts at a multiple of 8 bytes, so that elements of any size stay aligned. */
static void cover(host_copy *copy, const tarn_tensor *tensor)
{
    tarn_dtype dtype = tensor->view.dtype;
    int64_t low, high, block = tarn__dtypes[dtype].block_elements;
    if (tarn__view_count(&tensor->view) == 0)
        return;
    span_of(&tensor->view, &low, &high);
    int64_t first = tarn__bytes_of(dtype, tensor->start + low),
            end = tarn__bytes_of(dtype, tensor->start + high + block);
    first = block == 1 ? first / 8 * 8 : first;
    bool is_empty = copy->first == copy->end;
    copy->first = is_empty || first < copy->first ? first : copy->first;
    copy->end = is_empty || end > copy->end ? end : copy->end;
}

/* Allocates the host copy and fills it from the storage. */
static bool download(host_copy *copy, tarn__storage *storage)
{
    size_t bytes = (size_t)(copy->end - copy->first);
    copy->memory = tarn__alloc(bytes);
    return copy->memory && tarn__storage_download(storage, copy->first, copy->memory, bytes);
}

/* The tensor's view within the copy. */
static tarn__view view_in(const host_copy *copy, const tarn_tensor *tensor)
{
    tarn__view view = tensor->view;
    view.memory = copy->memory;
    view.base = 0;
    const tarn__dtype *row = &tarn__dtypes[view.dtype];
    view.offset = tensor->start - copy->first / row->block_bytes * row->block_elements;
    return view;
}

/* Host copies of a call's tensors. Outputs in one storage share one copy, so that the upload contains all of them. */
typedef struct host_call {
    host_copy copies[TARN__MAX_INPUTS + TARN__MAX_OUTPUTS]; /* inputs, then outputs */
    tarn__view views[TARN__MAX_INPUTS + TARN__MAX_OUTPUTS];
    tarn__call call; /* on these views */
} host_call;

/* The output whose copy contains output `i`: the first with the same storage. */
static int holder_of(const tarn__launch *launch, int i)
{
    int k = 0;
    while (!launch->out[k] || launch->out[k]->storage != launch->out[i]->storage)
        k++;
    return k;
}

/* Inputs are not shared: each has its own copy, read-only. */
static bool download_inputs(host_call *call, const tarn__launch *launch)
{
    for (int i = 0; i < launch->inputs; i++) {
        if (!launch->in[i])
            continue;
        cover(&call->copies[i], launch->in[i]);
        if (!download(&call->copies[i], launch->in[i]->storage))
            return false;
        call->views[i] = view_in(&call->copies[i], launch->in[i]);
        call->call.in[i] = &call->views[i];
    }
    return true;
}

/* Outputs are downloaded, too: an upload covers whole slices, and elements the kernel does not write must stay. */
static bool download_outputs(host_call *call, const tarn__launch *launch)
{
    host_copy *copies = call->copies + TARN__MAX_INPUTS;
    tarn__view *views = call->views + TARN__MAX_INPUTS;
    for (int i = 0; i < launch->outputs; i++)
        if (launch->out[i])
            cover(&copies[holder_of(launch, i)], launch->out[i]);
    for (int i = 0; i < launch->outputs; i++) {
        if (!launch->out[i])
            continue;
        int holder = holder_of(launch, i);
        if (holder == i && !download(&copies[i], launch->out[i]->storage))
            return false;
        views[i] = view_in(&copies[holder], launch->out[i]);
        call->call.out[i] = &views[i];
    }
    return true;
}

/* Only the slices that outputs cover. */
static bool upload_outputs(const host_call *call, const tarn__launch *launch)
{
    const host_copy *copies = call->copies + TARN__MAX_INPUTS;
    for (int i = 0; i < launch->outputs; i++)
        if (launch->out[i] && holder_of(launch, i) == i &&
            !tarn__storage_upload(launch->out[i]->storage, copies[i].first, copies[i].memory,
                                  (size_t)(copies[i].end - copies[i].first)))
            return false;
    return true;
}

/* For quantized tensors that reach an operation without support for them. */
static bool raise_quantized(const tarn__launch *launch, const tarn_tensor *tensor)
{
    return tarn__raise(TARN_ERROR_DTYPE,
                       "%s: %s is a quantized dtype, which kernel '%s' does not support; convert with tarn_cast()",
                       launch->function, tarn_dtype_name(tensor->view.dtype), tarn__kernel_names[launch->kernel]);
}

/* Raises instead where fallbacks are errors, inside a captured step, and where the CPU lacks the kernel, too. */
static bool run_on_cpu(const tarn__launch *launch, tarn_device device)
{
    char name[32];
    const tarn__backend *cpu = tarn__cpu_backend();
    host_call host = {0};
    make_call(&host.call, launch, tarn_device_cpu());
    const tarn__kernel_row *row = tarn__find_row(&cpu->kernels[launch->kernel], &host.call);
    const tarn_tensor *first = launch->inputs > 0 && launch->in[0] ? launch->in[0] : launch->out[0];
    if (!row && first && tarn__is_quantized(first->view.dtype))
        return raise_quantized(launch, first);
    if (!row)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: no backend here has kernel '%s' for this dtype",
                           launch->function, tarn__kernel_names[launch->kernel]);
    if (tarn__fallback_is_error())
        return tarn__raise(
            TARN_ERROR_UNSUPPORTED, "%s: %s has no kernel '%s', and fallbacks are errors (TARN_FALLBACK=error)",
            launch->function, tarn_device_name(device, name, sizeof(name)), tarn__kernel_names[launch->kernel]);
    if (!tarn__not_captured(launch->function, device, "a kernel that only the CPU has"))
        return false;
    warn_once(launch->kernel, device);
    tarn__count(TARN__FALLBACKS, 1);
    bool good = download_inputs(&host, launch) && download_outputs(&host, launch) &&
                run_kernel(cpu, row, tarn_device_cpu(), &host.call, launch, true) == TARN__PLAN_READY;
    tarn__count_kernel(TARN__CPU_SLOT, launch->kernel);
    good = good && upload_outputs(&host, launch);
    for (int i = 0; i < TARN__MAX_INPUTS + TARN__MAX_OUTPUTS; i++)
        tarn__release(host.copies[i].memory, (size_t)(host.copies[i].end - host.copies[i].first));
    return good;
}

bool tarn__has_kernel(tarn_device device, tarn__kernel kernel, tarn_dtype dtype)
{
    const tarn__kernel_row *row = &tarn__backend_at(device.backend)->kernels[kernel];
    while (row && !(row->run && ((row->dtypes >> dtype) & 1)))
        row = row->next;
    return row != NULL;
}

bool tarn__kernel_fits(tarn_device device, const tarn__launch *launch)
{
    tarn__call call;
    make_call(&call, launch, device);
    return tarn__find_row(&tarn__backend_at(device.backend)->kernels[launch->kernel], &call) != NULL;
}

static _Thread_local tarn__observe_fn observer;
static _Thread_local void *observer_ctx;

void tarn__launch_observe(tarn__observe_fn observe, void *ctx)
{
    observer = observe;
    observer_ctx = ctx;
}

/* The device is that of the first output. Where no row is ready, the CPU runs the kernel. */
bool tarn__run(const tarn__launch *launch)
{
    if (observer)
        observer(launch, observer_ctx);
    if (tarn_failed())
        return false;
    const tarn_tensor *place = launch->out[0];
    for (int i = 1; !place && i < launch->outputs; i++)
        place = launch->out[i];
    tarn_device device = tarn__device(place);
    const tarn__backend *backend = tarn__backend_at(device.backend);
    tarn__call call;
    make_call(&call, launch, device);
    const tarn__kernel_row *rows = &backend->kernels[launch->kernel];
    if (tarn__is_meta(device))
        return count_scratch(backend, rows, device, &call);
    tarn__plan_status status = run_kernel(backend, rows, device, &call, launch, false);
    if (status == TARN__PLAN_DECLINED)
        return run_on_cpu(launch, device);
    tarn__count_kernel(device.backend, launch->kernel);
    return status == TARN__PLAN_READY;
}

/* ---- copy and fill --------------------------------------------------------------------------------------------- */

/* Quantized tensors take their own path. */
static bool copy_on_device(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    tarn__fill none = {0};
    if (tarn__is_quantized(from->view.dtype) || tarn__is_quantized(to->view.dtype))
        return tarn__quant_copy(function, to, from);
    return tarn__run(&(tarn__launch){.kernel = TARN__K_copy,
                                     .function = function,
                                     .inputs = 1,
                                     .outputs = 1,
                                     .in = {from},
                                     .out = {to},
                                     .params = &none,
                                     .params_bytes = sizeof(none)});
}

/* Counted, so that tests and the profiler notice hidden copies. */
tarn_tensor *tarn__contiguous(const char *function, tarn_tensor *x)
{
    if (tarn__view_is_contiguous(&x->view))
        return x;
    tarn__count(TARN__LAYOUT_COPIES, 1);
    tarn_tensor *copy = tarn__tensor_new(function, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    return copy && copy_on_device(function, copy, x) ? copy : NULL;
}

/* Between devices: transfers a contiguous source; layout and dtype are converted on the target. */
static bool copy_across(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    if (!tarn__not_captured(function, tarn__device(to), "a copy between devices") ||
        !tarn__not_captured(function, tarn__device(from), "a copy between devices"))
        return false;
    tarn_tensor *source = tarn__contiguous(function, from);
    if (!source)
        return false;
    bool direct = tarn__view_is_contiguous(&to->view) && to->view.dtype == source->view.dtype;
    tarn_tensor *received =
        direct ? to : tarn__tensor_new(function, tarn__shape_of(source), source->view.dtype, tarn__device(to));
    if (!received)
        return false;
    tarn_dtype dtype = source->view.dtype;
    return tarn__storage_transfer(received->storage, tarn__bytes_of(dtype, received->start), source->storage,
                                  tarn__bytes_of(dtype, source->start),
                                  (size_t)tarn__bytes_of(dtype, tarn__view_count(&source->view))) &&
           (direct || copy_on_device(function, to, received));
}

/* Temporaries of a copy between devices are in a scope of their own. */
bool tarn__copy_elements(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    if (tarn__same_device(tarn__device(to), tarn__device(from)))
        return copy_on_device(function, to, from);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && copy_across(function, to, from);
    tarn_scope_close(scope);
    return good;
}

tarn__scalar tarn__scalar_of(double value)
{
    return (tarn__scalar){value, value >= 0x1p63    ? INT64_MAX
                                 : value <= -0x1p63 ? INT64_MIN
                                 : value == value   ? (int64_t)value
                                                    : 0};
}

bool tarn__fill_with(const char *function, tarn_tensor *x, double value)
{
    tarn__fill fill = {.value = tarn__scalar_of(value)};
    return tarn__run(&(tarn__launch){.kernel = TARN__K_fill,
                                     .function = function,
                                     .outputs = 1,
                                     .out = {x},
                                     .params = &fill,
                                     .params_bytes = sizeof(fill)});
}

/* launch.c: from tensors to a kernel call: which table, which row, scratch, faults, and the fallback to the CPU. */
#include "core/launch.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "core/graph.h"
#include "core/stats.h"

static bool row_fits(const tarn__kernel_row *row, const tarn__launch *launch)
{
    if (!row->run)
        return false;
    const tarn_tensor *first = launch->inputs > 0 && launch->in[0] ? launch->in[0] : launch->out[0];
    for (int i = 1; !first && i < launch->inputs; i++)
        first = launch->in[i];
    return !first || ((row->dtypes >> first->view.dtype) & 1);
}

static bool run_row(const tarn__backend *backend, const tarn__launch *launch, tarn_device device, const tarn__view *const *in,
                    const tarn__view *const *out)
{
    const tarn__kernel_row *row = &backend->kernels[launch->kernel];
    tarn__fault fault = {.function = launch->function};
    tarn__call call = {.inputs = launch->inputs, .outputs = launch->outputs, .reads_output = launch->reads_output, .device = device.index,
                       .stream = backend->stream ? backend->stream(device.index) : NULL, .function = launch->function, .fault = &fault,
                       .params = launch->params, .params_bytes = launch->params_bytes};
    memcpy(call.in, in, sizeof(call.in[0]) * (size_t)launch->inputs);
    memcpy(call.out, out, sizeof(call.out[0]) * (size_t)launch->outputs);
    tarn__block *scratch = NULL;
    if (row->scratch && (call.scratch_bytes = row->scratch(&call)) > 0) {
        scratch = tarn__pool_take(device, call.scratch_bytes, NULL);
        if (!scratch)
            return tarn__raise_within(launch->function);
        call.scratch = tarn__block_memory(scratch);
    }
    row->run(&call);
    tarn__pool_give(scratch);
    return backend->poll ? tarn__device_poll(device, launch->function) : tarn__fault_check(&fault);
}

/* ---- the fallback ---------------------------------------------------------------------------------------------------------- */

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

/* The elements between a view's first and last address, relative to its first element. */
static void span_of(const tarn__view *view, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (int i = 0; i < view->rank; i++) {
        int64_t reach = view->shape[i] > 0 ? (view->shape[i] - 1) * view->stride[i] : 0;
        *(reach < 0 ? low : high) += reach;
    }
}

/* A host copy of the memory a view spans, with the same strides. */
typedef struct host_copy {
    tarn__view view;
    void *memory;
    size_t bytes;
    int64_t first; /* byte offset of the span in the storage */
} host_copy;

static bool copy_to_host(host_copy *copy, const tarn_tensor *tensor)
{
    int64_t low, high, size = (int64_t)tarn__dtype_bytes(tensor->view.dtype);
    span_of(&tensor->view, &low, &high);
    copy->view = tensor->view;
    copy->bytes = tarn__view_count(&tensor->view) ? (size_t)((high - low + 1) * size) : 0;
    copy->memory = tarn__alloc(copy->bytes);
    copy->view.memory = copy->memory;
    copy->view.offset = -low;
    copy->first = (tensor->start + low) * size;
    return copy->memory && tarn__storage_download(tensor->storage, copy->first, copy->memory, copy->bytes);
}

static bool run_on_cpu(const tarn__launch *launch, tarn_device device)
{
    char name[32];
    const tarn__kernel_row *row = &tarn__cpu_backend()->kernels[launch->kernel];
    if (!row_fits(row, launch))
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: no backend here has kernel '%s' for this dtype", launch->function,
                           tarn__kernel_names[launch->kernel]);
    if (tarn__fallback_is_error())
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: %s has no kernel '%s', and fallbacks are errors (TARN_FALLBACK=error)",
                           launch->function, tarn_device_name(device, name, sizeof(name)), tarn__kernel_names[launch->kernel]);
    if (!tarn__not_captured(launch->function, device, "a kernel that only the CPU has"))
        return false;
    warn_once(launch->kernel, device);
    tarn__count(TARN__FALLBACKS, 1);
    host_copy copies[TARN__MAX_INPUTS + TARN__MAX_OUTPUTS] = {0};
    const tarn__view *in[TARN__MAX_INPUTS] = {0}, *out[TARN__MAX_OUTPUTS] = {0};
    bool good = true;
    int used = 0;
    for (int i = 0; good && i < launch->inputs; i++)
        if (launch->in[i]) {
            in[i] = &copies[used].view;
            good = copy_to_host(&copies[used++], launch->in[i]);
        }
    int first_output = used;
    for (int i = 0; good && i < launch->outputs; i++)
        if (launch->out[i]) {
            out[i] = &copies[used].view;
            good = copy_to_host(&copies[used++], launch->out[i]);
        }
    good = good && run_row(tarn__cpu_backend(), launch, tarn_device_cpu(), in, out);
    tarn__count_kernel(TARN__CPU_SLOT, launch->kernel);
    for (int i = 0, k = first_output; good && i < launch->outputs; i++)
        if (launch->out[i]) {
            good = tarn__storage_upload(launch->out[i]->storage, copies[k].first, copies[k].memory, copies[k].bytes);
            k++;
        }
    for (int i = 0; i < used; i++)
        tarn__release(copies[i].memory, copies[i].bytes);
    return good;
}

bool tarn__run(const tarn__launch *launch)
{
    if (tarn_failed())
        return false;
    const tarn_tensor *place = launch->out[0];
    for (int i = 1; !place && i < launch->outputs; i++)
        place = launch->out[i];
    tarn_device device = tarn__device(place);
    const tarn__backend *backend = tarn__backend_at(device.backend);
    if (!row_fits(&backend->kernels[launch->kernel], launch))
        return run_on_cpu(launch, device);
    const tarn__view *in[TARN__MAX_INPUTS], *out[TARN__MAX_OUTPUTS];
    for (int i = 0; i < launch->inputs; i++)
        in[i] = launch->in[i] ? &launch->in[i]->view : NULL;
    for (int i = 0; i < launch->outputs; i++)
        out[i] = launch->out[i] ? &launch->out[i]->view : NULL;
    tarn__count_kernel(device.backend, launch->kernel);
    return run_row(backend, launch, device, in, out);
}

/* ---- the two calls that the core itself needs ------------------------------------------------------------------------------ */

static bool copy_on_device(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    tarn__fill none = {0};
    return tarn__run(&(tarn__launch){.kernel = TARN__K_copy, .function = function, .inputs = 1, .outputs = 1, .in = {from}, .out = {to},
                                     .params = &none, .params_bytes = sizeof(none)});
}

tarn_tensor *tarn__dense(const char *function, tarn_tensor *x)
{
    if (tarn__view_dense(&x->view))
        return x;
    tarn__count(TARN__LAYOUT_COPIES, 1);
    tarn_tensor *copy = tarn__tensor_new(function, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    return copy && copy_on_device(function, copy, x) ? copy : NULL;
}

/* Across devices: a dense source of the target's bytes travels; what the target's layout or dtype needs is done on the target. */
static bool copy_across(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    if (!tarn__not_captured(function, tarn__device(to), "a copy between devices") ||
        !tarn__not_captured(function, tarn__device(from), "a copy between devices"))
        return false;
    tarn_tensor *source = tarn__dense(function, from);
    if (!source)
        return false;
    bool direct = tarn__view_dense(&to->view) && to->view.dtype == source->view.dtype;
    tarn_tensor *landing = direct ? to : tarn__tensor_new(function, tarn__shape_of(source), source->view.dtype, tarn__device(to));
    if (!landing)
        return false;
    int64_t size = (int64_t)tarn__dtype_bytes(source->view.dtype);
    return tarn__storage_transfer(landing->storage, landing->start * size, source->storage, source->start * size,
                                  (size_t)(tarn__view_count(&source->view) * size)) &&
           (direct || copy_on_device(function, to, landing));
}

bool tarn__copy_elements(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    if (tarn__same_device(tarn__device(to), tarn__device(from)))
        return copy_on_device(function, to, from);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && copy_across(function, to, from);
    tarn_scope_close(scope);
    return good;
}

tarn__number tarn__number_of(double value)
{
    return (tarn__number){value, value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : value == value ? (int64_t)value : 0};
}

bool tarn__fill_with(const char *function, tarn_tensor *x, double value)
{
    tarn__fill fill = {.value = tarn__number_of(value)};
    return tarn__run(&(tarn__launch){.kernel = TARN__K_fill, .function = function, .outputs = 1, .out = {x}, .params = &fill,
                                     .params_bytes = sizeof(fill)});
}

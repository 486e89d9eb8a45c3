/* clip.c: the global gradient norm, clipping by norm and by value, and the search for non-finite gradients.
 *
 * Nothing here waits for the device: sums of squares, norm and factor stay there, and the step's kernels read the
 * factor. So a step with clipping can be captured, and reading the norm is the caller's choice.
 *
 * Sums are deterministic: each segment is cut into chunks of a fixed size, which are summed one by one, then those of a
 * segment in order. Padding between segments is never read.
 *
 * A factor that is pending belongs to the gradients as they were when the norm was taken: their versions are kept,
 * and a gradient that changes before the step is an error, since it would be scaled by a factor that is not its own. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "optim/optimizer.h"

#define CHUNK 16384 /* elements per partial sum */

/* Of the last one a part; none for a segment without elements. */
static int64_t chunks_of(const tarn__flat_segment *segment)
{
    return (segment->count + CHUNK - 1) / CHUNK;
}

/* Segments without a gradient since the last step take no part in norms and updates. */
bool tarn__next_run(const tarn_optimizer *optimizer, const tarn__flat_group *group, int *begin, int *end)
{
    const tarn__flat_segment *segment = &optimizer->flats.segment[group->first];
    while (*begin < group->segments && !segment[*begin].parameter->grad_is_set)
        ++*begin;
    *end = *begin;
    while (*end < group->segments && segment[*end].parameter->grad_is_set)
        ++*end;
    return *end > *begin;
}

/* ---- chunk tables ------------------------------------------------------------------------------------------------ */

/* Moves a tensor from the open scope to the optimizer. NULL stays NULL. */
static tarn_tensor *retained(tarn_tensor *tensor)
{
    if (tensor) {
        tarn__tensor_retain(tensor);
        tarn_free(tensor);
    }
    return tensor;
}

/* Uploads the tables of a group: chunks (chunks, 2) with begin and end of each in elements, and firsts (segments + 1),
 * the first chunk of each segment. */
static bool upload_chunks(const tarn_optimizer *o, tarn__flat_group *group)
{
    const tarn__flat_segment *segment = &o->flats.segment[group->first];
    tarn_device device = tarn__device(group->buffer[TARN__GRADIENT]);
    int64_t chunks = 0;
    for (int i = 0; i < group->segments; i++)
        chunks += chunks_of(&segment[i]);
    size_t bytes = sizeof(int64_t) * (size_t)(2 * chunks + group->segments + 1);
    int64_t *table = tarn__alloc(bytes), *first = table + 2 * chunks, at = 0;
    if (!table)
        return false;
    for (int i = 0; i < group->segments; i++) {
        first[i] = at;
        for (int64_t begin = 0; begin < segment[i].count; begin += CHUNK, at++) {
            table[2 * at] = segment[i].begin + begin;
            table[2 * at + 1] =
                segment[i].begin + (segment[i].count - begin < CHUNK ? segment[i].count : begin + CHUNK);
        }
    }
    first[group->segments] = at;
    group->chunks = retained(tarn_from(table, TARN_SHAPE(chunks, 2), TARN_I64, device));
    group->firsts =
        group->chunks ? retained(tarn_from(first, TARN_SHAPE(group->segments + 1), TARN_I64, device)) : NULL;
    tarn__release(table, bytes);
    return group->firsts != NULL;
}

/* Creates the tensors of clipping for the first norm. */
static bool prepare(tarn_optimizer *o, const char *function)
{
    if (o->clipping.factor)
        return true;
    tarn_device device = tarn__device(o->flats.group[0].buffer[TARN__GRADIENT]);
    o->clipping.sums = retained(tarn__tensor_new(function, TARN_SHAPE(o->flats.segments), TARN_F64, device));
    bool good = o->clipping.sums && tarn__fill_with(function, o->clipping.sums, 0);
    for (int g = 0; good && g < o->flats.groups; g++)
        good = upload_chunks(o, &o->flats.group[g]);
    o->clipping.factor = good ? retained(tarn__tensor_new(function, TARN_SCALAR, TARN_F64, device)) : NULL;
    if (!o->clipping.factor) {
        tarn__clip_release(o);
        return tarn__raise_within(function);
    }
    return true;
}

void tarn__clip_release(tarn_optimizer *o)
{
    tarn__tensor_release(o->clipping.sums);
    tarn__tensor_release(o->clipping.factor);
    o->clipping = (tarn__clipping){0};
    for (int g = 0; g < o->flats.groups; g++) {
        tarn__flat_group *group = &o->flats.group[g];
        tarn__tensor_release(group->chunks);
        tarn__tensor_release(group->firsts);
        tarn__tensor_release(group->factor);
        group->chunks = group->firsts = group->factor = NULL;
    }
}

/* ---- norm -------------------------------------------------------------------------------------------------------- */

/* Rows [begin, end) of a tensor, as a view of the open scope. */
static tarn_tensor *rows(tarn_tensor *table, int64_t begin, int64_t end)
{
    tarn_tensor *range = tarn__tensor_view(table);
    if (range) {
        range->view.shape[0] = end - begin;
        tarn__tensor_set_start(range, begin * table->view.stride[0]);
    }
    return range;
}

/* Writes the sums of squares of segments [begin, end) to `sums`, which has one element per segment of the group. */
static bool sum_run(const tarn_optimizer *o, const tarn__flat_group *group, tarn_tensor *sums, int begin, int end,
                    const char *function)
{
    const tarn__flat_segment *segment = &o->flats.segment[group->first];
    int64_t first = 0, last;
    for (int i = 0; i < begin; i++)
        first += chunks_of(&segment[i]);
    last = first;
    for (int i = begin; i < end; i++)
        last += chunks_of(&segment[i]);
    tarn__fill none = {0};
    tarn__launch launch = {
        .kernel = TARN__K_square_sums,
        .function = function,
        .inputs = 3,
        .outputs = 1,
        .in = {group->buffer[TARN__GRADIENT], rows(group->chunks, first, last), rows(group->firsts, begin, end + 1)},
        .out = {rows(sums, begin, end)},
        .params = &none,
        .params_bytes = sizeof(none)};
    return !tarn_failed() && tarn__run(&launch);
}

/* The sums of a group, computed on its own device and copied to that of clipping.sums. Segments without a gradient: 0.
 */
static bool sum_group(tarn_optimizer *o, const tarn__flat_group *group, const char *function)
{
    tarn_tensor *to = rows(o->clipping.sums, group->first, group->first + group->segments), *sums = to;
    tarn_device device = tarn__device(group->buffer[TARN__GRADIENT]);
    bool is_local = to && tarn__same_device(device, tarn__device(to));
    if (to && !is_local)
        sums = tarn__tensor_new(function, TARN_SHAPE(group->segments), TARN_F64, device);
    if (!to || !sums || !tarn__fill_with(function, sums, 0))
        return false;
    for (int begin = 0, end; tarn__next_run(o, group, &begin, &end); begin = end)
        if (!sum_run(o, group, sums, begin, end, function))
            return false;
    return is_local || tarn__copy_elements(function, to, sums);
}

/* All groups, whatever their dtypes and devices: the norm is global. The sums of one come together on the device of
 * the first. */
static bool sum_all(tarn_optimizer *o, const char *function)
{
    bool good = prepare(o, function);
    for (int g = 0; good && g < o->flats.groups; g++)
        good = sum_group(o, &o->flats.group[g], function);
    return good;
}

/* Computes norm, the result, and factor from the sums. A factor that is pending is multiplied in (.again). The norm
 * is f64 only where some gradient is; the factor is f64 always. */
static tarn_tensor *compute_factor(tarn_optimizer *o, double max_norm)
{
    static const char *const function = "optimizer_clip_norm";
    tarn_dtype dtype = TARN_F32;
    for (int g = 0; g < o->flats.groups; g++)
        if (o->flats.group[g].buffer[TARN__GRADIENT]->view.dtype == TARN_F64)
            dtype = TARN_F64;
    tarn__clip clip = {.max_norm = max_norm, .again = o->clipping.is_pending};
    tarn_tensor *norm = tarn__tensor_new(function, TARN_SCALAR, dtype, tarn__device(o->clipping.sums));
    tarn__launch launch = {.kernel = TARN__K_clip_factor,
                           .function = function,
                           .inputs = 1,
                           .outputs = 2,
                           .in = {o->clipping.sums},
                           .out = {norm, o->clipping.factor},
                           .reads_output = clip.again ? 2 : 0,
                           .params = &clip,
                           .params_bytes = sizeof(clip)};
    return norm && tarn__run(&launch) ? norm : NULL;
}

/* Copies the factor to the device of each group, and records the versions of the gradients it belongs to. */
static bool publish_factor(tarn_optimizer *o)
{
    for (int g = 0; g < o->flats.groups; g++) {
        tarn__flat_group *group = &o->flats.group[g];
        tarn_tensor *factor = tarn_to(o->clipping.factor, tarn__device(group->buffer[TARN__GRADIENT]));
        if (!factor)
            return false;
        tarn__tensor_retain(factor);
        tarn__tensor_release(group->factor);
        group->factor = factor;
    }
    for (int i = 0; i < o->flats.segments; i++)
        o->flats.segment[i].clipped_version = o->flats.segment[i].parameter->grad->storage->version;
    o->clipping.is_pending = true;
    o->clipping.is_captured = tarn__is_capturing(tarn__device(o->clipping.factor));
    return true;
}

tarn_tensor *tarn_optimizer_clip_norm(tarn_optimizer *optimizer, double max_norm)
{
    static const char *const function = "optimizer_clip_norm";
    if (tarn_failed() || !tarn__check_optimizer(function, optimizer))
        return NULL;
    if (!(max_norm > 0)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: max_norm is %g; must be above 0 (INFINITY only measures)", function,
                    max_norm);
        return NULL;
    }
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && (!optimizer->clipping.is_pending || tarn__clip_is_current(optimizer, function)) &&
                sum_all(optimizer, function);
    tarn_tensor *norm = good ? compute_factor(optimizer, max_norm) : NULL;
    if (norm && publish_factor(optimizer))
        tarn_scope_return(scope, norm);
    else
        norm = NULL;
    tarn_scope_close(scope);
    return norm;
}

bool tarn__clip_is_current(const tarn_optimizer *o, const char *function)
{
    bool captured = o->clipping.is_pending && tarn__is_capturing(tarn__device(o->clipping.factor));
    if (captured != o->clipping.is_captured)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: the gradients were clipped %s the captured step; clip and step together", function,
                           captured ? "before" : "inside");
    for (int i = 0; i < o->flats.segments; i++) {
        const tarn__flat_segment *segment = &o->flats.segment[i];
        if (segment->parameter->grad->storage->version != segment->clipped_version)
            return tarn__raise(
                TARN_ERROR_ARGUMENT,
                "%s: the gradient of '%s' has changed since tarn_optimizer_clip_norm(); clip after the last backward",
                function, tarn_name(segment->parameter));
    }
    return true;
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* Runs an elementwise kernel in place over all gradients of a group; `by` is its second operand or NULL. */
static bool in_place(const tarn_optimizer *o, const tarn__flat_group *group, tarn__kernel kernel, tarn_tensor *by,
                     const tarn__elementwise *tail, const char *function)
{
    const tarn__flat_segment *segment = &o->flats.segment[group->first];
    for (int begin = 0, end; tarn__next_run(o, group, &begin, &end); begin = end) {
        tarn_tensor *range = tarn__flat_range(group->buffer[TARN__GRADIENT], segment[begin].begin,
                                              segment[end - 1].begin + segment[end - 1].count);
        tarn__launch launch = {.kernel = kernel,
                               .function = function,
                               .inputs = by ? 2 : 1,
                               .outputs = 1,
                               .in = {range, by},
                               .out = {range},
                               .params = tail,
                               .params_bytes = sizeof(*tail)};
        if (!range || !tarn__run(&launch))
            return false;
    }
    return true;
}

bool tarn__clip_now(tarn_optimizer *o, const char *function)
{
    tarn__elementwise none = {0};
    if (!o->clipping.is_pending)
        return true;
    if (!tarn__clip_is_current(o, function))
        return false;
    for (int g = 0; g < o->flats.groups; g++) {
        const tarn__flat_group *group = &o->flats.group[g];
        tarn_tensor *by = tarn_cast(group->factor, group->buffer[TARN__GRADIENT]->view.dtype);
        if (!by || !in_place(o, group, TARN__K_mul, by, &none, function))
            return false;
    }
    o->clipping.is_pending = false;
    return true;
}

bool tarn_optimizer_clip_value(tarn_optimizer *optimizer, double limit)
{
    static const char *const function = "optimizer_clip_value";
    if (tarn_failed() || !tarn__check_optimizer(function, optimizer))
        return false;
    if (!(limit > 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the limit is %g; must be above 0", function, limit);
    tarn__elementwise tail = {.p0 = -limit, .p1 = limit};
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && tarn__clip_now(optimizer, function);
    for (int g = 0; good && g < optimizer->flats.groups; g++)
        good = in_place(optimizer, &optimizer->flats.group[g], TARN__K_clamp, NULL, &tail, function);
    tarn_scope_close(scope);
    return good;
}

/* ---- non-finite gradients -----------------------------------------------------------------------------------------
 */

static bool has_gradients(const tarn_optimizer *o)
{
    for (int i = 0; i < o->flats.segments; i++)
        if (o->flats.segment[i].parameter->grad_is_set)
            return true;
    return false;
}

/* The first parameter in the module's order whose sum is not finite. */
static const tarn_tensor *first_of(const tarn_optimizer *o, const double *sums)
{
    const tarn__flat_segment *found = NULL;
    for (int i = 0; i < o->flats.segments; i++)
        if (!isfinite(sums[i]) && (!found || o->flats.segment[i].order < found->order))
            found = &o->flats.segment[i];
    return found ? found->parameter : NULL;
}

/* Waits for the device. A pending norm has computed the sums already. The name is borrowed from the parameter. */
const char *tarn_optimizer_nonfinite(tarn_optimizer *optimizer)
{
    static const char *const function = "optimizer_nonfinite";
    if (tarn_failed() || !tarn__check_optimizer(function, optimizer))
        return NULL;
    const tarn_tensor *found = NULL;
    size_t bytes = sizeof(double) * (size_t)optimizer->flats.segments;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && (optimizer->clipping.is_pending || !has_gradients(optimizer) || sum_all(optimizer, function));
    if (good && optimizer->clipping.sums) {
        double *sums = tarn__alloc(bytes);
        if (sums && tarn_read_f64(optimizer->clipping.sums, sums, optimizer->flats.segments))
            found = first_of(optimizer, sums);
        tarn__release(sums, bytes);
    }
    tarn_scope_close(scope);
    if (tarn_failed())
        tarn__raise_within(function);
    return found ? tarn_name(found) : NULL;
}

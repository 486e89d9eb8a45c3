/* flat.c: laying parameters, gradients and state out in flat buffers, and moving them into new ones.
 *
 * The first build moves the parameters first, one by one, and returns their old memory to the device before it
 * allocates gradients and state: at no time do two copies of the weights coexist with those. If it fails later, the
 * parameters keep their values in the flat buffer.
 *
 * A later build, to other devices, first creates everything that can fail (buffers, copies of all values, storage
 * parts, gradient tensors) and then moves the parameters, which cannot fail. */
#include "optim/optimizer.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch/launch.h"
#include "core/memory/pool.h"

/* The new storage of one parameter, until everything has been created. */
typedef struct target {
    /* parts of the new buffers, one reference each; parameter NULL: already moved */
    tarn__storage *parameter, *gradient;
    tarn_tensor *new_gradient; /* retained; for a parameter without a gradient tensor */
} target;

tarn_tensor *tarn__flat_range(tarn_tensor *buffer, int64_t begin, int64_t end)
{
    if (begin == 0 && end == buffer->view.shape[0])
        return buffer;
    tarn_tensor *range = tarn__tensor_view(buffer);
    if (!range)
        return NULL;
    range->view.shape[0] = end - begin;
    tarn__tensor_set_start(range, begin);
    return range;
}

tarn_tensor *tarn__flat_shaped(tarn_tensor *buffer, const tarn__flat_segment *segment)
{
    tarn_tensor *view = tarn__tensor_view(buffer);
    if (!view)
        return NULL;
    view->view.rank = segment->parameter->view.rank;
    memcpy(view->view.shape, segment->parameter->view.shape, sizeof(view->view.shape));
    tarn__view_set_row_major(&view->view);
    tarn__tensor_set_start(view, segment->begin);
    return view;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

tarn_tensor *tarn__flat_elements(const tarn__flat_group *group, int b, int64_t begin, int64_t end)
{
    int64_t first = b >= TARN__MASTER ? group->begin : 0;
    return tarn__flat_range(group->buffer[b], begin - first, end - first);
}

bool tarn__flat_narrow(const tarn__flat_group *group, int64_t *begin, int64_t *end)
{
    *begin = *begin > group->begin ? *begin : group->begin;
    *end = *end < group->end ? *end : group->end;
    return *begin < *end;
}

bool tarn__flat_part(const tarn__flat_buffers *flats, const tarn__flat_group *group, const tarn__flat_segment *segment,
                     tarn_tensor *state, tarn__tensor_part *part)
{
    int64_t begin = segment->begin, end = segment->begin + segment->count;
    *part = (tarn__tensor_part){.dtype = state->view.dtype,
                                .shape = tarn__shape_of(segment->parameter),
                                .previous = -1,
                                .next = -1,
                                .is_whole = !flats->comm};
    if (part->is_whole) {
        part->elements = tarn__flat_shaped(state, segment);
        return part->elements != NULL;
    }
    if (!tarn__flat_narrow(group, &begin, &end))
        return true;
    part->begin = begin - segment->begin;
    part->previous = tarn__shard_neighbour(flats->comm, group->count, -1);
    part->next = tarn__shard_neighbour(flats->comm, group->count, 1);
    part->elements = tarn__flat_range(state, begin - group->begin, end - group->begin);
    return part->elements != NULL;
}

bool tarn__flat_round(const char *function, const tarn__flat_buffers *flats, const tarn__flat_group *group,
                      tarn_tensor *state)
{
    tarn_tensor *own = NULL, *from = state ? state : group->buffer[TARN__MASTER];
    if (group->begin < group->end && (!(own = tarn__flat_elements(group, TARN__PARAMETER, group->begin, group->end)) ||
                                      !tarn__copy_elements(function, own, from)))
        return false;
    return tarn__flat_gather(function, flats, group);
}

bool tarn__flat_gather(const char *function, const tarn__flat_buffers *flats, const tarn__flat_group *group)
{
    return tarn__shard_gather(function, flats->comm, group->buffer[TARN__PARAMETER]);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static bool in_one_group(const tarn__flat_segment *list, const tarn_device *device, int i, int k)
{
    return list[k].parameter->view.dtype == list[i].parameter->view.dtype && tarn__same_device(device[k], device[i]);
}

/* Appends the segments of i's group that have its rates. */
static void append(tarn__flat_buffers *flats, tarn__flat_group *group, const tarn__flat_segment *list,
                   const tarn_device *device, int count, int i)
{
    tarn_dtype dtype = list[i].parameter->view.dtype;
    /* then a multiple of 256 bytes in f32 buffers too */
    int64_t unit = TARN__ALIGNMENT / (int64_t)tarn__dtype_bytes(dtype);
    for (int k = i; k < count; k++) {
        if (!in_one_group(list, device, i, k) || !tarn__same_rates(list[k].rates, list[i].rates))
            continue;
        tarn__flat_segment *segment = &flats->segment[flats->segments++];
        *segment = list[k];
        segment->begin = group->count;
        segment->count = tarn__view_count(&segment->parameter->view);
        group->count += (segment->count + unit - 1) / unit * unit;
        group->segments++;
    }
}

/* True for the first segment of its group or, by_rates, of its group and rates. */
static bool is_first(const tarn__flat_segment *list, const tarn_device *device, int i, bool by_rates)
{
    for (int k = 0; k < i; k++)
        if (in_one_group(list, device, i, k) && (!by_rates || tarn__same_rates(list[k].rates, list[i].rates)))
            return false;
    return true;
}

/* Appends all segments of i's group by rates, those with decay first. Quadratic in the number of parameters, which is
 * at most some thousands. */
static void append_all(tarn__flat_buffers *flats, tarn__flat_group *group, const tarn__flat_segment *list,
                       const tarn_device *device, int count, int i)
{
    for (int pass = 0; pass < 2; pass++)
        for (int k = i; k < count; k++)
            if (in_one_group(list, device, i, k) && (list[k].rates.decay == 0) == (pass == 1) &&
                is_first(list, device, k, true))
                append(flats, group, list, device, count, k);
}

static tarn_tensor *new_buffer(const tarn__method *method, int b, int64_t count, tarn_dtype dtype, tarn_device device)
{
    static const char *const names[] = {"parameters", "gradients", "master weights", "state", "second state"};
    char name[64];
    tarn_tensor *buffer = tarn__tensor_new(method->name, TARN_SHAPE(count), dtype, device);
    if (!buffer || !tarn__fill_with(method->name, buffer, 0))
        return NULL;
    snprintf(name, sizeof(name), "%s: %s", method->name, names[b]);
    tarn__storage_set_name(buffer->storage, name);
    buffer->storage->purpose = b == TARN__PARAMETER  ? TARN__FOR_PARAMETERS
                               : b == TARN__GRADIENT ? TARN__FOR_GRADIENTS
                                                     : TARN__FOR_STATE;
    tarn__tensor_retain(buffer);
    tarn_free(buffer);
    return buffer;
}

/* Creates buffers `first` to TARN__BUFFERS of a group: parameters in their dtype, the others in the accumulation dtype.
 */
static bool make_buffers(const tarn__method *method, tarn__flat_group *group, int first, tarn_dtype dtype)
{
    tarn_dtype wide = tarn__acc_dtype(dtype);
    for (int b = first; b < TARN__BUFFERS; b++) {
        if ((b == TARN__MASTER && wide == dtype) || b >= TARN__STATE + method->states)
            continue;
        int64_t count = b >= TARN__MASTER ? group->end - group->begin : group->count;
        group->buffer[b] = new_buffer(method, b, count, b == TARN__PARAMETER ? dtype : wide, group->device);
        if (!group->buffer[b])
            return false;
    }
    return true;
}

/* Orders segments into groups and assigns offsets; no buffers yet. */
static bool arrange(tarn__flat_buffers *flats, const tarn__flat_segment *list, const tarn_device *device, int count)
{
    flats->capacity = count;
    flats->group = tarn__alloc(sizeof(*flats->group) * (size_t)count);
    flats->segment = flats->group ? tarn__alloc(sizeof(*flats->segment) * (size_t)count) : NULL;
    for (int i = 0; flats->segment && i < count; i++) {
        if (!is_first(list, device, i, false))
            continue;
        tarn__flat_group *group = &flats->group[flats->groups++];
        group->first = flats->segments;
        group->device = device[i];
        append_all(flats, group, list, device, count, i);
        int rank = flats->comm ? flats->comm->rank : 0;
        group->begin = tarn__shard_begin(flats->comm, group->count, rank);
        group->end = tarn__shard_begin(flats->comm, group->count, rank + 1);
    }
    return flats->segment != NULL;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The segment of a parameter in old buffer `b`, as a view of the open scope; NULL: no old buffers, values are zero. */
static tarn_tensor *source_of(const tarn__flat_buffers *old, const tarn_tensor *parameter, int b)
{
    for (int g = 0; old && g < old->groups; g++)
        for (int i = 0; i < old->group[g].segments; i++) {
            const tarn__flat_segment *segment = &old->segment[old->group[g].first + i];
            if (segment->parameter == parameter)
                return tarn__flat_shaped(old->group[g].buffer[b], segment);
        }
    return NULL;
}

/* Copies the own elements of a parameter to its master weights. */
static bool copy_master(const tarn__method *method, const tarn__flat_group *group, const tarn__flat_segment *segment)
{
    int64_t begin = segment->begin, end = segment->begin + segment->count;
    if (!tarn__flat_narrow(group, &begin, &end))
        return true;
    tarn_tensor *master = tarn__flat_elements(group, TARN__MASTER, begin, end),
                *parameter = tarn__flat_elements(group, TARN__PARAMETER, begin, end);
    return master && parameter && tarn__copy_elements(method->name, master, parameter);
}

/* Fills a segment of the new buffers. In a first build the parameters themselves have been gathered already. */
static bool copy_values(const tarn__method *method, const tarn__flat_group *group, const tarn__flat_segment *segment,
                        const tarn__flat_buffers *old)
{
    tarn_tensor *parameter = segment->parameter;
    for (int b = old ? TARN__PARAMETER : TARN__GRADIENT; b < TARN__BUFFERS; b++) {
        if (!group->buffer[b])
            continue;
        tarn_tensor *from = parameter;
        if (b == TARN__MASTER && !old) { /* the parameters are in their buffer by now */
            if (!copy_master(method, group, segment))
                return false;
            continue;
        }
        if (b == TARN__GRADIENT)
            from = parameter->grad_is_set ? parameter->grad : NULL;
        else if (b == TARN__MASTER)
            from = source_of(old, parameter, b);
        else if (b >= TARN__STATE)
            from = source_of(old, parameter, b);
        if (!from)
            continue;
        tarn_tensor *to = tarn__flat_shaped(group->buffer[b], segment);
        if (!to || !tarn__copy_elements(method->name, to, from))
            return false;
    }
    return !tarn_failed();
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

static tarn__storage *part_of(const tarn_tensor *buffer, const tarn__flat_segment *segment)
{
    int64_t size = (int64_t)tarn__dtype_bytes(buffer->view.dtype);
    return tarn__storage_slice(buffer->storage, segment->begin * size, (size_t)(segment->count * size));
}

/* Creates the storage parts of a parameter and its gradient. `is_in_place`: the parameter itself has been moved. */
static bool prepare(target *h, const tarn__flat_group *group, const tarn__flat_segment *segment, bool is_in_place)
{
    if (!is_in_place && !(h->parameter = part_of(group->buffer[TARN__PARAMETER], segment)))
        return false;
    h->gradient = part_of(group->buffer[TARN__GRADIENT], segment);
    if (!h->gradient || segment->parameter->grad)
        return h->gradient != NULL;
    h->new_gradient = tarn__flat_shaped(group->buffer[TARN__GRADIENT], segment);
    if (!h->new_gradient)
        return false;
    tarn__tensor_retain(h->new_gradient);
    tarn_free(h->new_gradient);
    return true;
}

static void move_parameter(tarn__flat_segment *segment, tarn__storage *place)
{
    tarn_tensor *parameter = segment->parameter;
    place->version = parameter->storage->version; /* so that tensors saved for backward stay valid */
    segment->version = place->version;
    tarn__tensor_set_storage(parameter, place);
    tarn__storage_set_name(parameter->storage, parameter->name);
}

/* Cannot fail. */
static void move_in(target *h, tarn__flat_segment *segment)
{
    tarn_tensor *parameter = segment->parameter;
    if (h->parameter)
        move_parameter(segment, h->parameter);
    if (h->new_gradient)
        parameter->grad = h->new_gradient;
    tarn__tensor_set_storage(parameter->grad, h->gradient);
}

static void release_target(target *h)
{
    tarn__storage_release(h->parameter);
    tarn__storage_release(h->gradient);
    tarn__tensor_release(h->new_gradient);
}

/* Copies one parameter into its segment and releases its old storage. */
static bool gather_one(const tarn__method *method, const tarn__flat_group *group, tarn__flat_segment *segment)
{
    tarn_tensor *to = tarn__flat_shaped(group->buffer[TARN__PARAMETER], segment);
    if (!to || !tarn__copy_elements(method->name, to, segment->parameter))
        return false;
    tarn__storage *place = part_of(group->buffer[TARN__PARAMETER], segment);
    if (place)
        move_parameter(segment, place);
    return place != NULL;
}

/* The first build: moves the parameters of each group into its parameter buffer. */
static bool gather(tarn__flat_buffers *flats, const tarn__method *method)
{
    for (int g = 0; g < flats->groups; g++) {
        tarn__flat_group *group = &flats->group[g];
        tarn_dtype dtype = flats->segment[group->first].parameter->view.dtype;
        group->buffer[TARN__PARAMETER] = new_buffer(method, TARN__PARAMETER, group->count, dtype, group->device);
        if (!group->buffer[TARN__PARAMETER])
            return false;
        for (int i = group->first; i < group->first + group->segments; i++)
            if (!gather_one(method, group, &flats->segment[i]))
                return false;
        /* smaller blocks are reused by the pool */
        if (group->count * (int64_t)tarn__dtype_bytes(dtype) >= (int64_t)TARN__POOL_SEGMENT)
            tarn_empty_cache(group->device);
    }
    return true;
}

static bool make_all_buffers(tarn__flat_buffers *flats, const tarn__method *method, int first)
{
    for (int g = 0; g < flats->groups; g++)
        if (!make_buffers(method, &flats->group[g], first, flats->segment[flats->group[g].first].parameter->view.dtype))
            return false;
    return true;
}

/* Copies values and prepares targets: the last steps that can fail. */
static bool fill_in(tarn__flat_buffers *flats, const tarn__method *method, target *targets, tarn__flat_buffers *old)
{
    if (old && !tarn__flat_refresh_master(method, old))
        return false;
    for (int g = 0; g < flats->groups; g++)
        for (int i = flats->group[g].first; i < flats->group[g].first + flats->group[g].segments; i++)
            if (!copy_values(method, &flats->group[g], &flats->segment[i], old) ||
                !prepare(&targets[i], &flats->group[g], &flats->segment[i], !old))
                return false;
    return true;
}

bool tarn__flat_build(tarn__flat_buffers *flats, const tarn__method *method, tarn_comm *comm,
                      const tarn__flat_segment *list, const tarn_device *device, int count, tarn__flat_buffers *old)
{
    *flats = (tarn__flat_buffers){.comm = comm};
    target *targets = tarn__alloc(sizeof(*targets) * (size_t)count);
    tarn_scope *scope = targets ? tarn_scope_open() : NULL;
    bool good = scope && arrange(flats, list, device, count) && (old || gather(flats, method)) &&
                make_all_buffers(flats, method, old ? TARN__PARAMETER : TARN__GRADIENT) &&
                fill_in(flats, method, targets, old);
    for (int i = 0; targets && i < count; i++)
        if (good)
            move_in(&targets[i], &flats->segment[i]);
        else
            release_target(&targets[i]);
    tarn_scope_close(scope);
    tarn__release(targets, sizeof(*targets) * (size_t)count);
    if (!good || old)
        tarn__flat_release(good ? old : flats);
    return good;
}

void tarn__flat_release(tarn__flat_buffers *flats)
{
    for (int g = 0; g < flats->groups; g++)
        for (int b = 0; b < TARN__BUFFERS; b++)
            tarn__tensor_release(flats->group[g].buffer[b]);
    tarn__release(flats->group, sizeof(*flats->group) * (size_t)flats->capacity);
    tarn__release(flats->segment, sizeof(*flats->segment) * (size_t)flats->capacity);
    *flats = (tarn__flat_buffers){0};
}

bool tarn__flat_refresh_master(const tarn__method *method, tarn__flat_buffers *flats)
{
    for (int g = 0; g < flats->groups; g++) {
        tarn__flat_group *group = &flats->group[g];
        for (int i = group->first; group->buffer[TARN__MASTER] && i < group->first + group->segments; i++) {
            tarn__flat_segment *segment = &flats->segment[i];
            uint32_t version = segment->parameter->storage->version;
            if (segment->version == version)
                continue;
            if (!copy_master(method, group, segment))
                return false;
            segment->version = version;
        }
    }
    return true;
}

/* rows.c: description of rows, and the choice of a form for a device; see rows.h. */
#include "backends/opencl/common/rows.h"

#include <stdio.h>

#define MANY_LANES 16
#define ROWS_PER_GROUP 64 /* work-group size where each work-item has a row */
#define LONG_ROW 1024     /* longer rows get groups of 256 */
#define FEW_VECS 4        /* vec4s per work-item in registers before the work-group grows, */
#define MAX_VECS 8        /* and at most */
#define SMALL (INT64_C(1) << 30)

/* The axis is cut to size 1 in copies of the views; the nest over them enumerates rows. */
void tarn__cl_row_set_describe(tarn__cl_row_set *rows, int axis, int count, const tarn__view *const *views)
{
    tarn__view view[TARN__MAX_OPERANDS];
    const tarn__view *views_without[TARN__MAX_OPERANDS];
    *rows = (tarn__cl_row_set){.length = views[0]->rank > 0 ? views[0]->shape[axis] : 1};
    for (int k = 0; k < count; k++) {
        views_without[k] = NULL;
        if (!views[k])
            continue;
        view[k] = *views[k];
        rows->along[k] = 1;
        if (view[k].rank > 0) {
            rows->along[k] = view[k].stride[axis];
            view[k].shape[axis] = 1;
        }
        views_without[k] = &view[k];
    }
    tarn__nest_make(&rows->nest, count, views_without);
    rows->count = rows->length > 0 ? rows->nest.count : 0;
}

/* True for operands with elements along the axis, false for per-row values and absent ones. */
static bool has_elements(const tarn__view *view, int axis, int64_t length)
{
    return view && view->rank > 0 && view->shape[axis] == length;
}

size_t tarn__cl_group_size(const tarn__cl_device *device, size_t most)
{
    size_t group = 1;
    while (2 * group <= most && 2 * group <= device->max_group)
        group *= 2;
    return group;
}

/* One row per work-item, without a work-group. */
static void use_one_item(tarn__cl_row_form *form)
{
    form->group = form->local = 1;
    form->lanes = form->is_contiguous ? MANY_LANES : 1;
    form->has_vec4 = false;
}

/* A work-group shares the row where the device has local memory. */
static void use_group(tarn__cl_row_form *form, const tarn__cl_device *device, size_t most)
{
    form->lanes = 1;
    form->group = form->local = device->has_local_memory ? tarn__cl_group_size(device, most) : 1;
    if (form->group == 1)
        use_one_item(form);
}

tarn__cl_row_form tarn__cl_group_form(const tarn__cl_device *device, size_t most, bool is_contiguous)
{
    tarn__cl_row_form form = {.is_contiguous = is_contiguous};
    use_group(&form, device, most);
    return form;
}

/* Short rows, and strided rows that are adjacent in memory, are best left to one work-item each. */
static void choose_sharing(const tarn__cl_device *device, const tarn__cl_row_set *rows, tarn__cl_row_form *form)
{
    const tarn__nest *nest = &rows->nest;
    bool are_adjacent = nest->rank > 0 && nest->stride[0][nest->rank - 1] == 1 && nest->shape[nest->rank - 1] >= 8 &&
                        !form->is_contiguous;
    form->group = form->lanes = 1;
    form->local = tarn__cl_group_size(device, ROWS_PER_GROUP);
    if (!are_adjacent && rows->length > TARN__CL_SHORT_ROW)
        use_group(form, device, rows->length > LONG_ROW ? 256 : 64);
}

tarn__cl_row_form tarn__cl_row_form_of(const tarn__cl_device *device, const tarn__cl_row_set *rows, int axis, int count,
                                       const tarn__view *const *views)
{
    tarn__cl_row_form form = {.is_small = rows->count < SMALL, .is_contiguous = true};
    for (int k = 0; k < count; k++) {
        if (!has_elements(views[k], axis, rows->length))
            continue;
        form.is_contiguous = form.is_contiguous && (rows->length == 1 || rows->along[k] == 1);
        int64_t step = rows->along[k] < 0 ? -rows->along[k] : rows->along[k];
        form.is_small = form.is_small && rows->length < SMALL && (step == 0 || rows->length < SMALL / step);
    }
    choose_sharing(device, rows, &form);
    return form;
}

/* Dtypes that are computed as float4, so not f64, at an aligned offset. */
static bool is_vec4(const tarn__view *view)
{
    return (view->dtype == TARN_F32 || view->dtype == TARN_BF16 || view->dtype == TARN_F16) && view->offset % 4 == 0;
}

/* All operands with elements: aligned vec4s with unit stride, in every row. */
static bool are_vec4(const tarn__cl_row_set *rows, int axis, int count, const tarn__view *const *views)
{
    bool is_good =
        rows->length > TARN__CL_SHORT_ROW && rows->length % 4 == 0 && rows->length < SMALL && rows->count < SMALL;
    for (int k = 0; k < count && is_good; k++) {
        if (!has_elements(views[k], axis, rows->length))
            continue;
        is_good = is_vec4(views[k]) && rows->along[k] == 1;
        for (int i = 0; i < rows->nest.rank; i++)
            is_good = is_good && rows->nest.stride[k][i] % 4 == 0;
    }
    return is_good;
}

/* The smallest group for which a work-item has at most FEW_VECS vec4s; more, up to MAX_VECS, where the row does not
 * divide. */
int tarn__cl_row_registers(const tarn__cl_device *device, const tarn__cl_row_set *rows, tarn__cl_row_form *form,
                           int axis, int count, const tarn__view *const *views)
{
    const int64_t vecs = rows->length / 4;
    size_t group = 32;
    while (group < 256 && (vecs / (int64_t)group > FEW_VECS || vecs % (int64_t)group != 0) &&
           vecs % (2 * (int64_t)group) == 0)
        group *= 2;
    const int64_t view = vecs / (int64_t)group;
    if (form->group == 1 || group > device->max_group || vecs % (int64_t)group != 0 || view > MAX_VECS ||
        !are_vec4(rows, axis, count, views))
        return 0;
    form->group = form->local = group;
    return (int)view;
}

void tarn__cl_row_vec4(const tarn__cl_row_set *rows, tarn__cl_row_form *form, int axis, int count,
                       const tarn__view *const *views)
{
    if (form->group == 1 || !are_vec4(rows, axis, count, views))
        return;
    form->lanes = 4;
    form->has_vec4 = true;
}

bool tarn__cl_is_vec4(const tarn__view *vector)
{
    return !vector || (is_vec4(vector) && vector->rank == 1 && vector->stride[0] == 1);
}

void tarn__cl_row_options(const tarn__cl_row_form *form, const char *own, char *options, size_t size)
{
    snprintf(options, size, "-DGROUP=%zu -DLANES=%zu -DINDEX=%s%s%s%s", form->group, form->lanes,
             form->is_small ? "int" : "long", form->is_contiguous ? " -DCONTIGUOUS" : "",
             form->has_vec4 ? " -DVEC4" : "", own);
}

/* Shrinks the work-group until the driver accepts the kernel; 1 always does, or it does not compile. */
const tarn__cl_kernel *tarn__cl_find_rows(const tarn__call *call, const char *source, const char *kernel,
                                          tarn__cl_row_form *form, const char *own)
{
    char options[384];
    while (form->group > 1) {
        tarn__cl_row_options(form, own, options, sizeof(options));
        const tarn__cl_kernel *found = tarn__cl_find(call, source, kernel, options);
        if (tarn__cl_allows(found, form->group))
            return found;
        form->group = form->local = tarn__cl_group_of(found);
        if (form->group == 1)
            use_one_item(form);
    }
    tarn__cl_row_options(form, own, options, sizeof(options));
    return tarn__cl_find(call, source, kernel, options);
}

tarn__cl_launch tarn__cl_begin_rows(const tarn__call *call, const char *source, const char *kernel,
                                    tarn__cl_row_form *form, const char *own)
{
    return tarn__cl_begin_kernel(call, tarn__cl_find_rows(call, source, kernel, form, own));
}

/* Rows of one work-item each need no barriers, so their group size is free. */
void tarn__cl_enqueue_rows(tarn__cl_launch *launch, const tarn__cl_row_form *form, int64_t count)
{
    if (form->group == 1)
        tarn__cl_enqueue_independent(launch, 1, (size_t[]){(size_t)count}, form->local);
    else
        tarn__cl_enqueue(launch, 1, (size_t[]){(size_t)count * form->group}, &form->group);
}

void tarn__cl_arg_vector(tarn__cl_launch *launch, const tarn__view *vector)
{
    tarn__cl_arg_view(launch, vector);
    tarn__cl_arg_long(launch, vector && vector->rank > 0 ? vector->stride[vector->rank - 1] : 0);
}

tarn__view tarn__cl_as_column(const tarn__view *view)
{
    tarn__view column = {0};
    if (view) {
        column = *view;
        column.rank = 2;
        column.shape[1] = 1;
        column.stride[1] = 0;
    }
    return column;
}

/* print.c: tensors as text, laid out like NumPy's. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch.h"

#define EDGE 3          /* elements shown at each end of a shortened axis */
#define SHORTEN 1000    /* tensors above this many elements are shortened */

typedef struct writer {
    char *buffer;
    size_t size, used;
} writer;

static void put(writer *w, const char *text)
{
    for (; *text; text++, w->used++)
        if (w->used + 1 < w->size)
            w->buffer[w->used] = *text;
}

/* How one element is written: the same for all, so that columns line up. */
typedef struct style {
    tarn_dtype dtype;
    bool scientific;
    int decimals, width;
} style;

static void element_text(const style *how, double value, char *text, size_t size)
{
    if (how->dtype == TARN_BOOL)
        snprintf(text, size, "%*s", how->width, value != 0 ? "true" : "false");
    else if (!tarn__is_float(how->dtype))
        snprintf(text, size, "%*.0f", how->width, value);
    else if (!isfinite(value))
        snprintf(text, size, "%*s", how->width, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    else
        snprintf(text, size, how->scientific ? "%*.*e" : "%*.*f", how->width, how->decimals, value);
}

typedef struct printed {
    const tarn_tensor *tensor;
    const double *values; /* dense, of the shown part's shape */
    int64_t shown[TARN_MAX_RANK];
    bool cut[TARN_MAX_RANK];
    style how;
} printed;

static style choose_style(const printed *p, int64_t count)
{
    style how = {.dtype = p->tensor->view.dtype, .decimals = 0};
    double low = INFINITY, high = 0;
    bool whole = true;
    for (int64_t i = 0; i < count; i++) {
        double size = fabs(p->values[i]);
        if (!isfinite(size))
            continue;
        whole = whole && size == floor(size);
        high = size > high ? size : high;
        low = size > 0 && size < low ? size : low;
    }
    if (tarn__is_float(how.dtype)) {
        how.scientific = high >= 1e8 || (low < 1e-4 && low < INFINITY) || (low < INFINITY && high / low > 1e6 && !whole);
        how.decimals = whole && !how.scientific ? 0 : 4;
    }
    char text[64];
    for (int64_t i = 0; i < count; i++) {
        element_text(&how, p->values[i], text, sizeof(text));
        how.width = (int)strlen(text) > how.width ? (int)strlen(text) : how.width;
    }
    return how;
}

static void put_axis(writer *w, const printed *p, int axis, const double **next)
{
    char text[64];
    int rank = p->tensor->view.rank;
    if (axis == rank) {
        element_text(&p->how, *(*next)++, text, sizeof(text));
        put(w, text);
        return;
    }
    put(w, "[");
    for (int64_t i = 0; i < p->shown[axis]; i++) {
        if (i > 0 && axis == rank - 1)
            put(w, ", ");
        if (i > 0 && axis < rank - 1)
            put(w, ",");
        for (int k = axis; i > 0 && k < rank - 1; k++)
            put(w, "\n");
        for (int k = 0; i > 0 && axis < rank - 1 && k <= axis; k++)
            put(w, " ");
        if (p->cut[axis] && i == EDGE)
            put(w, axis == rank - 1 ? "..., " : "...,\n");
        for (int k = 0; p->cut[axis] && i == EDGE && axis < rank - 1 && k <= axis; k++)
            put(w, " ");
        put_axis(w, p, axis + 1, next);
    }
    put(w, "]");
}

/* Reads the first and last EDGE elements of every cut axis into `values`, walking the shown part in order. */
static bool read_shown(printed *p, double *values, int64_t count)
{
    const tarn__view *view = &p->tensor->view;
    bool any = false;
    for (int i = 0; i < view->rank; i++)
        any = any || p->cut[i];
    if (!any)
        return tarn_read_f64(p->tensor, values, count);
    int64_t index[TARN_MAX_RANK] = {0};
    for (int64_t k = 0; k < count; k++) {
        tarn_shape at = {.rank = view->rank};
        for (int i = 0; i < view->rank; i++)
            at.size[i] = p->cut[i] && index[i] >= EDGE ? view->shape[i] - 2 * EDGE + index[i] : index[i];
        values[k] = tarn_item_at(p->tensor, at);
        for (int i = view->rank - 1; i >= 0 && ++index[i] == p->shown[i]; i--)
            index[i] = 0;
    }
    return !tarn_failed();
}

size_t tarn_format(const tarn_tensor *tensor, char *buffer, size_t size)
{
    if (buffer && size)
        buffer[0] = 0;
    if (!tarn__check("format", tensor, "the tensor"))
        return 0;
    if (!buffer && size) {
        tarn__raise(TARN_ERROR_ARGUMENT, "format: the buffer is NULL");
        return 0;
    }
    printed p = {.tensor = tensor};
    int64_t count = 1;
    for (int i = 0; i < tensor->view.rank; i++) {
        p.cut[i] = tarn__view_count(&tensor->view) > SHORTEN && tensor->view.shape[i] > 2 * EDGE;
        p.shown[i] = p.cut[i] ? 2 * EDGE : tensor->view.shape[i];
        count *= p.shown[i];
    }
    double *values = tarn__alloc((size_t)count * sizeof(double));
    if (!values || !read_shown(&p, values, count)) {
        tarn__release(values, (size_t)count * sizeof(double));
        return 0;
    }
    p.values = values;
    p.how = choose_style(&p, count);
    writer w = {buffer, size, 0};
    const double *next = values;
    put_axis(&w, &p, 0, &next);
    if (size)
        buffer[w.used < size ? w.used : size - 1] = 0;
    tarn__release(values, (size_t)count * sizeof(double));
    return w.used;
}

void tarn_print(const tarn_tensor *tensor)
{
    size_t length = tarn_format(tensor, NULL, 0);
    if (tarn_failed())
        return;
    char *text = tarn__alloc(length + 1), device[32];
    if (text && tarn_format(tensor, text, length + 1) == length)
        printf("%s  %s %s on %s\n", text, tarn_dtype_name(tensor->view.dtype), TARN__SHAPE_TEXT(tensor),
               tarn_device_name(tarn__device(tensor), device, sizeof(device)));
    tarn__release(text, length + 1);
}

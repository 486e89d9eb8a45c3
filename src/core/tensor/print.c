/* print.c: tensors as strings, character by character as NumPy prints arrays: the fewest digits that distinguish a
 * value from its neighbours in its dtype, at most PRECISION after the point; aligned columns; lines wrapped at LINE
 * characters; the middle of large tensors omitted.
 *
 * Large tensors are read corner by corner, so printing one never downloads all of it. Values are formatted in f64,
 * and compared with the spacing of their own dtype to find the shortest digits. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch/launch.h"

#define EDGE 3       /* elements shown at each end of an abbreviated axis */
#define SHORTEN 1000 /* tensors with more elements are abbreviated */
#define LINE 75
#define PRECISION 8

/* ---- the values that are shown ----------------------------------------------------------------------------------- */

typedef struct printed {
    tarn_tensor *tensor;
    tarn_shape shown;
    bool cut[TARN_MAX_RANK];
    tarn_tensor *values; /* the shown elements on the host, contiguous, f64 or i64 */
} printed;

/* One corner of x: the first or (bit set) the last EDGE elements of every cut axis. */
static tarn_tensor *corner_of(tarn_tensor *x, const printed *p, unsigned corner)
{
    tarn_tensor *view = tarn__tensor_view(x);
    if (!view)
        return NULL;
    int64_t start = x->start;
    for (int i = 0; i < x->view.rank; i++) {
        if (!p->cut[i])
            continue;
        if ((corner >> i) & 1)
            start += (x->view.shape[i] - EDGE) * x->view.stride[i];
        view->view.shape[i] = EDGE;
    }
    tarn__tensor_set_start(view, start);
    return view;
}

/* Downloads only the shown corners of a large tensor. */
static bool read_shown(printed *p)
{
    const tarn__view *view = &p->tensor->view;
    bool large = tarn__view_count(view) > SHORTEN;
    p->shown = tarn__shape_of(p->tensor);
    unsigned cuts = 0;
    for (int i = 0; i < view->rank; i++) {
        p->cut[i] = large && view->shape[i] > 2 * EDGE;
        p->shown.size[i] = p->cut[i] ? 2 * EDGE : view->shape[i];
        cuts |= p->cut[i] ? 1u << i : 0;
    }
    tarn_dtype dtype = tarn__is_float(view->dtype) ? TARN_F64 : TARN_I64;
    p->values = tarn__tensor_new("format", p->shown, dtype, tarn_device_cpu());
    if (!p->values)
        return false;
    for (unsigned corner = 0; corner <= cuts; corner++) {
        if (corner & ~cuts)
            continue;
        tarn_tensor *from = corner_of(p->tensor, p, corner), *to = from ? corner_of(p->values, p, corner) : NULL;
        if (!to || !tarn__copy_elements("format", to, from))
            return false;
    }
    return tarn_synchronize(tarn__device(p->values));
}

/* ---- one number -------------------------------------------------------------------------------------------------- */

/* True when `text_value` rounds to `value` in that dtype: within half a unit in the last place, ties to even. */
static bool reads_back(tarn_dtype dtype, double text_value, double value)
{
    static const struct {
        int bits, lowest;
    } format[] = {[TARN_F32] = {24, -149}, [TARN_F64] = {53, -1074}, [TARN_BF16] = {8, -133}, [TARN_F16] = {11, -24}};
    int exponent, bits = format[dtype].bits, lowest = format[dtype].lowest;
    double fraction = frexp(fabs(value), &exponent);
    double unit = ldexp(1, exponent - bits > lowest ? exponent - bits : lowest);
    double apart = fabs(text_value - value), half = unit / 2;
    if (fraction == 0.5 && exponent - bits > lowest && fabs(text_value) < fabs(value))
        half /= 2; /* below a power of two the spacing is half as large */
    return apart == 0 || apart < half || (apart == half && fmod(value / unit, 2) == 0);
}

/* Writes "-d.ddde+xx" with as few digits as read back, at most `max_digits`; returns the digits after the point. */
static int shortest(tarn_dtype dtype, double value, int max_digits, char *text, size_t size)
{
    int decimals = 0;
    for (; decimals < max_digits - 1; decimals++) {
        snprintf(text, size, "%.*e", decimals, value);
        if (reads_back(dtype, strtod(text, NULL), value))
            return decimals;
        /* an exact half, rounded the other way */
        snprintf(text, size, "%.*e", decimals, nextafter(value, copysign(INFINITY, value)));
        if (reads_back(dtype, strtod(text, NULL), value))
            return decimals;
    }
    snprintf(text, size, "%.*e", decimals, value);
    return decimals;
}

/* The format of all floats of one tensor, so that columns line up. */
typedef struct style {
    tarn_dtype dtype;
    bool scalar; /* rank 0: as Python prints a number */
    bool scientific;
    int left, right; /* characters before and after the point */
    int exponent;    /* digits of it */
    int min_digits;  /* min digits after the point */
    int precision;   /* max digits after the point */
} style;

/* "12.5": as many digits after the point as the value needs, at most `precision`. */
static void positional_text(const style *how, double value, char *text, size_t size)
{
    char digits[64];
    int decimals = shortest(how->dtype, value, 17, digits, sizeof(digits));
    int needed = value == 0 ? 0 : decimals - (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    /* further digits are zeros */
    double shown = needed <= how->precision ? strtod(digits, NULL) : value;
    needed = needed < how->min_digits ? how->min_digits : needed > how->precision ? how->precision : needed;
    snprintf(text, size, "%.*f", needed, shown);
    size_t length = strlen(text);
    if (needed > how->min_digits)
        while (length > 1 && text[length - 1] == '0' && (int)(text + length - strchr(text, '.')) > how->min_digits + 1)
            text[--length] = 0;
    if (!strchr(text, '.'))
        snprintf(text + length, size - length, ".");
}

/* "1.25e+08": the digits that the value needs, and exact ones beyond them up to `min_digits`. */
static void scientific_text(const style *how, double value, char *text, size_t size)
{
    char digits[64];
    int decimals = shortest(how->dtype, value, how->precision + 1, digits, sizeof(digits));
    if (decimals < how->min_digits)
        snprintf(digits, sizeof(digits), "%.*e", decimals = how->min_digits, value);
    char *mark = strchr(digits, 'e'), sign = mark[1];
    int exponent = (int)strtol(mark + 2, NULL, 10);
    while (decimals > how->min_digits && mark[-1] == '0') /* rounding may leave trailing zeros */
        mark--, decimals--;
    *mark = 0;
    snprintf(text, size, "%s%se%c%0*d", digits, strchr(digits, '.') || how->scalar ? "" : ".", sign, how->exponent,
             exponent);
}

/* One element, padded to the column's width. */
static void element_text(const style *how, const void *element, char *text, size_t size)
{
    if (how->dtype == TARN_BOOL) {
        snprintf(text, size, "%s", *(const int64_t *)element ? how->scalar ? "True" : " True" : "False");
        return;
    }
    if (!tarn__is_float(how->dtype)) {
        snprintf(text, size, "%*" PRId64, how->left, *(const int64_t *)element);
        return;
    }
    double value = *(const double *)element;
    char plain[512]; /* the largest f64 has 309 digits */
    int width = how->scalar ? 0 : how->left + how->right + 1;
    if (!isfinite(value)) {
        snprintf(text, size, "%*s", width, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    (how->scientific ? scientific_text : positional_text)(how, value, plain, sizeof(plain));
    int before = how->scalar ? how->left : (int)strcspn(plain, "."); /* decimal points are aligned */
    snprintf(text, size, "%*s%-*s", how->left - before, "", width - (how->left - before), plain);
}

/* ---- choosing the style ------------------------------------------------------------------------------------------ */

/* NumPy's rule: the largest magnitude, the smallest, or their ratio leaves the range of positional notation. */
static bool is_scientific(tarn_dtype dtype, const double *value, int64_t count, bool scalar)
{
    static const double highest[] = {[TARN_F32] = 1e6, [TARN_F64] = 1e8, [TARN_BF16] = 1e3, [TARN_F16] = 1e3};
    double low = INFINITY, high = 0;
    for (int64_t i = 0; i < count; i++) {
        double size = fabs(value[i]);
        if (!isfinite(size) || size == 0)
            continue;
        high = size > high ? size : high;
        low = size < low ? size : low;
    }
    double lowest = dtype == TARN_F32 && !scalar ? 1e-4f : 1e-4;
    return high > 0 &&
           (high >= (scalar && dtype == TARN_F64 ? 1e16 : highest[dtype]) || low < lowest || high / low > 1000);
}

/* Widens the columns to fit this element. */
static void widen(style *how, style *wanted, double value)
{
    char text[512];
    if (!isfinite(value))
        return;
    (how->scientific ? scientific_text : positional_text)(how, value, text, sizeof(text));
    char *mark = strchr(text, 'e');
    int exponent = mark ? (int)strlen(mark + 2) : 0, left = (int)strcspn(text, ".");
    int right = (int)strlen(text) - left - 1 - (mark ? exponent + 2 : 0);
    wanted->left = left > wanted->left ? left : wanted->left;
    wanted->right = right > wanted->right ? right : wanted->right;
    wanted->exponent = exponent > wanted->exponent ? exponent : wanted->exponent;
}

/* Measures every shown element once to find the widths of the columns. */
static style float_style(tarn_dtype dtype, const double *value, int64_t count, bool scalar)
{
    style how = {.dtype = dtype, .scalar = scalar, .exponent = 2, .precision = scalar ? 40 : PRECISION};
    how.scientific = is_scientific(dtype, value, count, scalar);
    how.min_digits = scalar && !how.scientific ? 1 : 0;
    style wanted = how;
    for (int64_t i = 0; i < count; i++)
        widen(&how, &wanted, value[i]);
    if (scalar)
        return how;
    if (wanted.scientific) {
        wanted.min_digits = wanted.right;
        wanted.right += wanted.exponent + 2;
    }
    for (int64_t i = 0; i < count; i++) {
        int length = isnan(value[i]) ? 3 : isinf(value[i]) ? value[i] > 0 ? 3 : 4 : 0;
        wanted.left = length - wanted.right - 1 > wanted.left ? length - wanted.right - 1 : wanted.left;
    }
    return wanted;
}

/* Integers are right-aligned to the longest; floats are formatted alike. */
static style choose_style(const printed *p)
{
    tarn_dtype dtype = p->tensor->view.dtype;
    int64_t count = tarn__view_count(&p->values->view);
    const void *values = tarn__view_at(&p->values->view);
    if (tarn__is_float(dtype))
        return float_style(dtype, values, count, p->shown.rank == 0);
    style how = {.dtype = dtype, .scalar = p->shown.rank == 0};
    for (int64_t i = 0; dtype != TARN_BOOL && i < count; i++) {
        char text[32];
        int length = snprintf(text, sizeof(text), "%" PRId64, ((const int64_t *)values)[i]);
        how.left = length > how.left ? length : how.left;
    }
    return how;
}

/* ---- the layout -------------------------------------------------------------------------------------------------- */

typedef struct writer {
    char *buffer;
    size_t size, used;
    int column, spaces; /* columns written on this line, and trailing spaces among them */
    const printed *p;
    style how;
    const char *next; /* element */
} writer;

/* Counts every character, writes those that fit. */
static void put(writer *w, const char *text)
{
    for (; *text; text++, w->used++) {
        if (w->used + 1 < w->size)
            w->buffer[w->used] = *text;
        w->column = *text == '\n' ? 0 : w->column + 1;
        w->spaces = *text == ' ' ? w->spaces + 1 : 0;
    }
}

static void put_spaces(writer *w, int count)
{
    for (; count > 0; count--)
        put(w, " ");
}

/* One element of the innermost axis, on a new line where it does not fit. */
static void put_word(writer *w, const char *word, bool first)
{
    int indent = w->p->shown.rank, width = LINE - indent;
    if (!first && w->column + 1 + (int)strlen(word) > width) {
        w->used -= (size_t)w->spaces;
        put(w, "\n");
        put_spaces(w, indent);
    } else if (!first) {
        put(w, " ");
    }
    put(w, word);
}

static void put_element(writer *w, bool first)
{
    char text[640];
    element_text(&w->how, w->next, text, sizeof(text));
    w->next += sizeof(double); /* f64 or i64 */
    put_word(w, text, first);
}

/* Recurses over the axes; blank lines between the blocks of outer axes, as NumPy prints them. */
static void put_axis(writer *w, int axis)
{
    int rank = w->p->shown.rank;
    if (axis == rank) {
        put_element(w, true);
        return;
    }
    put(w, "[");
    for (int64_t i = 0; i < w->p->shown.size[axis]; i++) {
        bool gap = w->p->cut[axis] && i == EDGE;
        if (axis == rank - 1) {
            if (gap)
                put_word(w, "...", false);
            put_element(w, i == 0);
            continue;
        }
        for (int part = gap ? 0 : 1; i > 0 && part < 2; part++) {
            for (int k = axis; k < rank - 1; k++)
                put(w, "\n");
            put_spaces(w, axis + 1);
            put(w, part == 0 ? "..." : "");
        }
        put_axis(w, axis + 1);
    }
    put(w, "]");
}

/* Like snprintf(): returns the length the whole string needs. */
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
    printed p = {.tensor = (tarn_tensor *)tensor}; /* only read */
    writer w = {.buffer = buffer, .size = size, .p = &p};
    tarn_scope *scope = tarn_scope_open();
    if (scope && tarn__view_count(&tensor->view) == 0) {
        put(&w, "[]");
    } else if (scope && read_shown(&p)) {
        w.how = choose_style(&p);
        w.next = tarn__view_at(&p.values->view);
        put_axis(&w, 0);
    }
    tarn_scope_close(scope);
    if (size)
        buffer[w.used < size ? w.used : size - 1] = 0;
    return w.used;
}

/* To standard output, with dtype, shape and device. */
void tarn_print(const tarn_tensor *tensor)
{
    if (!tarn__check("print", tensor, "the tensor"))
        return;
    size_t length = tarn_format(tensor, NULL, 0);
    char *text = tarn_failed() ? NULL : tarn__alloc(length + 1), device[32];
    if (text && tarn_format(tensor, text, length + 1) == length)
        printf("%s  %s %s on %s\n", text, tarn_dtype_name(tensor->view.dtype), TARN__SHAPE_STRING(tensor),
               tarn_device_name(tarn__device(tensor), device, sizeof(device)));
    tarn__release(text, length + 1);
}

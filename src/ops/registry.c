/* registry.c: all operations by name: the table behind `tarn ops`, tarn_apply() and the tests.
 *
 * A row of ops.def or elementwise.def gives the limits of an operation, its attributes, and the kernels that its
 * forward and backward may use. The tests run every operation and compare the kernels that ran with this list, so
 * `tarn ops` cannot claim support that is not there. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/kernel/row_default.h"
#include "base/memory.h"
#include "ops/op.h"

#define PARAMETERS_leaky_relu "slope:real"
#define PARAMETERS_clamp "min:real max:real"

/* Kernels that gradients of binary operations use besides their own; default: none. */
#define ALSO_sub , " neg"
#define ALSO_mul , " scale_grad"
#define BINARY_GRADS(name) #name "_grad " #name "_grad_a " #name "_grad_b" TARN__ROW_DEFAULT(ALSO_##name, "")

static const tarn__op_row rows[] = {
#define UNARY(name, ...) {#name, 1, 1, 1, true, "", #name, #name "_grad", tarn__apply_##name},
#define UNARY_P(name, ...) {#name, 1, 1, 1, true, PARAMETERS_##name, #name, #name "_grad", tarn__apply_##name},
#define BINARY(name, ...) {#name, 2, 2, 1, true, "", #name, BINARY_GRADS(name), tarn__apply_##name},
#define COMPARE(name, ...) {#name, 2, 2, 1, false, "", #name, "", tarn__apply_##name},
#include "base/kernel/elementwise.def"
#undef UNARY
#undef UNARY_P
#undef BINARY
#undef COMPARE
#define OP(name, min_in, most, outputs, smooth, attributes, forward, backward) \
    {#name, min_in, most, outputs, smooth, attributes, forward, backward, tarn__apply_##name},
#include "ops/ops.def"
#undef OP
};

#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

int tarn_op_count(void)
{
    return ROWS;
}

static bool check_index(const char *function, int index)
{
    return (index >= 0 && index < ROWS) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: operation %d is outside 0 to %d", function, index, ROWS - 1);
}

bool tarn_op_at(int index, tarn_op_info *info)
{
    if (!info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "op_at: info is NULL");
    if (!check_index("op_at", index))
        return false;
    const tarn__op_row *row = &rows[index];
    *info =
        (tarn_op_info){row->name, row->attributes, row->min_inputs, row->max_inputs, row->outputs, row->differentiable};
    return true;
}

int tarn_op_find(const char *name)
{
    for (int i = 0; name && i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return i;
    return -1;
}

const tarn__op_row *tarn__op_row_at(int index)
{
    return &rows[index];
}

/* ---- support by backend ---------------------------------------------------------------------------------------- */

/* A linear search: called by tests and `tarn ops` only. */
static tarn__kernel kernel_named(const char *name, size_t length)
{
    for (int i = 0; i < TARN__KERNEL_COUNT; i++)
        if (strlen(tarn__kernel_names[i]) == length && memcmp(tarn__kernel_names[i], name, length) == 0)
            return (tarn__kernel)i;
    return TARN__KERNEL_COUNT;
}

bool tarn__op_lists_kernel(const tarn__op_row *row, tarn__kernel kernel, bool backward)
{
    const char *list = backward ? row->backward : row->forward;
    for (size_t length; *list; list += length + (list[length] == ' ')) {
        length = strcspn(list, " ");
        if (kernel_named(list, length) == kernel)
            return true;
    }
    return false;
}

/* True when the backend has every kernel the operation lists; composed alternatives are not considered. */
bool tarn_op_on(int index, const char *backend_name, bool backward)
{
    if (!check_index("op_on", index))
        return false;
    const tarn__kernel_row *kernels = tarn__backend_kernels(backend_name);
    if (!kernels || (backward && !rows[index].differentiable))
        return false;
    const char *list = backward ? rows[index].backward : rows[index].forward;
    for (size_t length; *list; list += length + (list[length] == ' ')) {
        length = strcspn(list, " ");
        tarn__kernel kernel = kernel_named(list, length);
        if (kernel == TARN__KERNEL_COUNT || !kernels[kernel].run)
            return false;
    }
    return true;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

int tarn_kernel_count(void)
{
    return TARN__KERNEL_COUNT;
}

static bool check_kernel(const char *function, int index)
{
    return (index >= 0 && index < TARN__KERNEL_COUNT) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: kernel %d is outside 0 to %d", function, index,
                       TARN__KERNEL_COUNT - 1);
}

const char *tarn_kernel_name(int index)
{
    return check_kernel("kernel_name", index) ? tarn__kernel_names[index] : NULL;
}

bool tarn_kernel_variant_at(int index, const char *backend, int number, tarn_kernel_variant *variant)
{
    if (!variant)
        return tarn__raise(TARN_ERROR_ARGUMENT, "kernel_variant_at: the result is NULL");
    if (!check_kernel("kernel_variant_at", index))
        return false;
    const tarn__kernel_row *kernels = tarn__backend_kernels(backend), *row = kernels ? &kernels[index] : NULL;
    for (int i = 0; row && i < number; i++)
        row = row->next;
    if (number < 0 || !row || !row->run)
        return false;
    *variant = (tarn_kernel_variant){row->variant ? row->variant : "", row->dtypes, !row->fits};
    return true;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

/* Earlier spellings, which stay accepted. One may have several meanings: no operation has two of them. */
static const struct {
    const char *name, *earlier;
} spellings[] = {{"keepdim", "keep"},
                 {"min", "low"},
                 {"max", "high"},
                 {"low_freq_factor", "low"},
                 {"high_freq_factor", "high"},
                 {"original_context", "original"}};
#define SPELLINGS ((int)(sizeof(spellings) / sizeof(spellings[0])))

/* True when `given` is the attribute `name`, in its present or an earlier spelling. */
static bool is_spelling_of(const char *given, const char *name)
{
    bool is_same = strcmp(given, name) == 0;
    for (int i = 0; i < SPELLINGS && !is_same; i++)
        is_same = strcmp(spellings[i].name, name) == 0 && strcmp(spellings[i].earlier, given) == 0;
    return is_same;
}

static const tarn_attribute *find(const tarn__invocation *v, const char *name)
{
    for (int i = 0; i < v->attribute_count; i++)
        if (is_spelling_of(v->attributes[i].name, name))
            return &v->attributes[i];
    return NULL;
}

int64_t tarn__attribute_int(const tarn__invocation *v, const char *name, int64_t default_value)
{
    const tarn_attribute *a = find(v, name);
    return a ? a->integer : default_value;
}

static int saturate(int64_t value)
{
    return value > INT_MAX ? INT_MAX : value < INT_MIN ? INT_MIN : (int)value;
}

int tarn__attribute_int_clamped(const tarn__invocation *v, const char *name, int default_value)
{
    return saturate(tarn__attribute_int(v, name, default_value));
}

double tarn__attribute_real(const tarn__invocation *v, const char *name, double default_value)
{
    const tarn_attribute *a = find(v, name);
    return a ? a->number : default_value;
}

tarn_axes tarn__attribute_axes(const tarn__invocation *v, const char *name)
{
    const tarn_attribute *a = find(v, name);
    tarn_axes axes = {0};
    axes.count = a ? a->count : 0;
    for (int i = 0; i < axes.count; i++)
        axes.axis[i] = saturate(a->list[i]);
    return axes;
}

tarn_shape tarn__attribute_shape(const tarn__invocation *v, const char *name)
{
    const tarn_attribute *a = find(v, name);
    tarn_shape shape = {0};
    shape.rank = a ? a->count : 0;
    for (int i = 0; i < shape.rank; i++)
        shape.size[i] = a->list[i];
    return shape;
}

/* True when "axis:int keepdim:bool" lists `name`. */
static bool lists_attribute(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, name, length) == 0 && at[length] == ':')
            return true;
    return false;
}

/* The same for an earlier spelling of a listed attribute. */
static bool lists_earlier_spelling(const char *list, const char *name)
{
    bool is_listed = false;
    for (int i = 0; i < SPELLINGS && !is_listed; i++)
        is_listed = strcmp(spellings[i].earlier, name) == 0 && lists_attribute(list, spellings[i].name);
    return is_listed;
}

/* Unknown attributes are errors, never ignored. */
static bool check_attributes(const tarn__op_row *row, const tarn_attribute *attributes, int count)
{
    if (count < 0 || (count > 0 && !attributes))
        return tarn__raise(TARN_ERROR_ARGUMENT, "apply: %s: a list of %d attributes that is NULL or of negative length",
                           row->name, count);
    for (int i = 0; i < count; i++) {
        const tarn_attribute *a = &attributes[i];
        if (!a->name ||
            !(lists_attribute(row->attributes, a->name) || lists_earlier_spelling(row->attributes, a->name)))
            return tarn__raise(TARN_ERROR_ARGUMENT, "apply: %s has no attribute '%s'; it has: %s", row->name,
                               a->name ? a->name : "NULL", row->attributes[0] ? row->attributes : "none");
        if (a->count < 0 || a->count > TARN_MAX_RANK)
            return tarn__raise(TARN_ERROR_ARGUMENT, "apply: %s: attribute '%s' has %d values; at most %d fit",
                               row->name, a->name, a->count, TARN_MAX_RANK);
    }
    return true;
}

/* ---- calling by name --------------------------------------------------------------------------------------------- */

const tarn__op_row *tarn__check_call(const char *function, const char *name, int inputs, bool has_inputs, int outputs,
                                     bool has_outputs)
{
    int index = tarn_op_find(name);
    if (index < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: operation '%s' not found", function, name ? name : "NULL");
        return NULL;
    }
    const tarn__op_row *row = &rows[index];
    if (inputs < row->min_inputs || inputs > row->max_inputs || !has_inputs) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s expects %d to %d inputs, %d given%s", function, name, row->min_inputs,
                    row->max_inputs, inputs, has_inputs ? "" : " as NULL");
        return NULL;
    }
    if (outputs != row->outputs || !has_outputs) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s has %d outputs, space for %d given%s", function, name, row->outputs,
                    outputs, has_outputs ? "" : " as NULL");
        return NULL;
    }
    return row;
}

/* Optional inputs beyond `input_count` are NULL for the operation. */
bool tarn_apply(const char *name, tarn_tensor *const *inputs, int input_count, const tarn_attribute *attributes,
                int attribute_count, tarn_tensor **outputs, int output_count)
{
    if (tarn_failed())
        return false;
    const tarn__op_row *row =
        tarn__check_call("apply", name, input_count, inputs != NULL, output_count, outputs != NULL);
    if (!row || !check_attributes(row, attributes, attribute_count))
        return false;
    tarn_tensor *in[TARN__MAX_OP_INPUTS] = {0};
    for (int i = 0; i < output_count; i++)
        outputs[i] = NULL;
    for (int i = 0; i < input_count; i++) {
        in[i] = inputs[i];
        if (i < row->min_inputs && !tarn__check_any(name, in[i], "an input"))
            return false;
    }
    tarn__invocation v = {name, in, input_count, attributes, attribute_count};
    return row->apply(&v, outputs);
}

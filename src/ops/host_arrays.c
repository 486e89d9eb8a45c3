/* host_arrays.c: operations and their gradients on host arrays, by name. */
#include <string.h>

#include "base/memory.h"
#include "ops/op.h"

/* The public type says nothing of who frees an output; the size is known from shape and dtype. */
void tarn_array_free(tarn_array *array)
{
    if (!array || !array->data)
        return;
    int64_t count = 1;
    for (int i = 0; i < array->shape.rank; i++)
        count *= array->shape.size[i];
    tarn__release(array->data, (size_t)tarn__bytes_of(array->dtype, count));
    *array = (tarn_array){0};
}

static bool read_back(tarn_tensor *tensor, tarn_array *array)
{
    if (!tensor)
        return true;
    size_t bytes = (size_t)tarn_bytes(tensor);
    *array = (tarn_array){tarn__alloc(bytes), tarn__shape_of(tensor), tensor->view.dtype};
    return array->data && tarn_read(tensor, array->data, bytes);
}

static bool upload(const tarn_array *arrays, int count, tarn_device device, tarn_tensor **tensors)
{
    bool good = true;
    for (int i = 0; good && i < count; i++)
        good = (tensors[i] = tarn_from(arrays[i].data, arrays[i].shape, arrays[i].dtype, device)) != NULL;
    return good;
}

bool tarn_apply_host(const char *name, tarn_device device, const tarn_array *inputs, int input_count,
                     const tarn_attribute *attributes, int attribute_count, tarn_array *outputs, int output_count)
{
    if (tarn_failed() ||
        !tarn__check_call("apply_host", name, input_count, inputs != NULL, output_count, outputs != NULL))
        return false;
    tarn_tensor *in[TARN__MAX_OP_INPUTS] = {0}, *out[TARN__MAX_OP_OUTPUTS] = {0};
    memset(outputs, 0, sizeof(*outputs) * (size_t)output_count);
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    bool good = scope != NULL;
    good = good && upload(inputs, input_count, device, in);
    good = good && tarn_apply(name, in, input_count, attributes, attribute_count, out, output_count);
    for (int i = 0; good && i < output_count; i++)
        good = read_back(out[i], &outputs[i]);
    for (int i = 0; !good && i < output_count; i++)
        tarn_array_free(&outputs[i]);
    if (!good)
        tarn__raise_within("apply_host");
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static bool want_gradients(tarn_tensor **in, int count, uint64_t wanted)
{
    if (count < TARN__MAX_OP_INPUTS && wanted >> count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "wanted has bits beyond the %d inputs given", count);
    bool good = true;
    for (int i = 0; good && i < count; i++)
        if (wanted ? (wanted >> i) & 1 : tarn__is_float(in[i]->view.dtype))
            good = tarn_requires_grad(in[i], true) != NULL;
    return good;
}

/* The gradient that arrives at output `i`, on the device; NULL with an error. */
static tarn_tensor *upstream_of(const char *name, const tarn_array *array, tarn_tensor *out, int i)
{
    if (!out || !tarn_needs_grad(out)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "no gradient flows through output %d of %s", i, name);
        return NULL;
    }
    tarn_tensor *grad = tarn_from(array->data, array->shape, array->dtype, tarn__device(out));
    if (!grad || (tarn__same_shape(&grad->view, &out->view) && array->dtype == out->view.dtype))
        return grad;
    tarn__raise(TARN_ERROR_SHAPE, "the gradient of output %d is %s %s; the output is %s %s", i,
                tarn_dtype_name(array->dtype), TARN__SHAPE_STRING(grad), tarn_dtype_name(out->view.dtype),
                TARN__SHAPE_STRING(out));
    return NULL;
}

/* Several outputs are walked back at once, from the sum of their products with the gradients: each gets its own,
 * unchanged. */
static bool walk_back(const char *name, const tarn_array *grads, tarn_tensor **out, int count)
{
    tarn_tensor *end = NULL, *upstream = NULL;
    bool is_sum = false;
    for (int i = 0; i < count; i++) {
        if (!grads[i].data)
            continue;
        tarn_tensor *grad = upstream_of(name, &grads[i], out[i], i);
        if (!grad)
            return false;
        if (end) {
            tarn_tensor *before = is_sum ? end : tarn_sum(tarn_mul(end, upstream), TARN_ALL_AXES, false);
            end = tarn_add(before, tarn_sum(tarn_mul(out[i], grad), TARN_ALL_AXES, false));
            is_sum = true;
        } else {
            end = out[i];
            upstream = grad;
        }
        if (!end)
            return false;
    }
    if (!end)
        return tarn__raise(TARN_ERROR_ARGUMENT, "no gradient of an output is given");
    return tarn_backward_from(end, is_sum ? NULL : upstream, NULL);
}

bool tarn_apply_host_backward(const char *name, tarn_device device, const tarn_array *inputs, int input_count,
                              const tarn_attribute *attributes, int attribute_count, const tarn_array *output_grads,
                              int output_count, uint64_t wanted, tarn_array *input_grads)
{
    const char *function = "apply_host_backward";
    if (tarn_failed() ||
        !tarn__check_call(function, name, input_count, inputs != NULL, output_count, output_grads != NULL))
        return false;
    if (!input_grads)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the array for the gradients is NULL", function);
    tarn_tensor *in[TARN__MAX_OP_INPUTS] = {0}, *out[TARN__MAX_OP_OUTPUTS] = {0};
    memset(input_grads, 0, sizeof(*input_grads) * (size_t)input_count);
    tarn_scope *scope = tarn_scope_open();
    int depth = tarn__grad_force();
    bool good = scope && upload(inputs, input_count, device, in) && want_gradients(in, input_count, wanted) &&
                tarn_apply(name, in, input_count, attributes, attribute_count, out, output_count) &&
                walk_back(name, output_grads, out, output_count);
    tarn__grad_unforce(depth);
    for (int i = 0; good && i < input_count; i++)
        good = read_back(tarn_grad(in[i]), &input_grads[i]);
    for (int i = 0; !good && i < input_count; i++)
        tarn_array_free(&input_grads[i]);
    if (!good)
        tarn__raise_within(function);
    tarn_scope_close(scope);
    return good;
}

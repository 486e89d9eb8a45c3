/* move.c: tarn_module_to(): a module tree to another device; and to another dtype.
 *
 * All copies are created before the first tensor changes, so that a failure, as out of memory, leaves the module where
 * it was. Tensors in an optimizer's flat buffers are moved by the optimizer, which has state beside them. */
#include "base/dtype.h"
#include "base/memory.h"
#include "core/launch/launch.h"
#include "core/tensor/tensor.h"
#include "nn/module.h"

/* A copy of `tensor` on another device; belongs to the open scope. */
static tarn_tensor *copy_on(tarn_tensor *tensor, tarn_device device)
{
    tarn_tensor *copy = tarn__tensor_new("module_to", tarn__shape_of(tensor), tensor->view.dtype, device);
    return copy && tarn__copy_elements("module_to", copy, tensor) ? copy : NULL;
}

/* Gives the tensor the storage of its copy. The version carries over: backward compares it with what it saved. */
static void move_into(tarn_tensor *tensor, const tarn_tensor *copy)
{
    tarn__storage_retain(copy->storage);
    copy->storage->version = tensor->storage->version;
    tarn__tensor_set_storage(tensor, copy->storage);
    tarn__storage_set_name(tensor->storage, tensor->name);
}

/* On another device, and not in the flat buffer of an optimizer. */
static bool is_to_move(const tarn_tensor *tensor, tarn_device device)
{
    return !tensor->optimizer && !tarn__same_device(tarn__device(tensor), device);
}

/* copy[2 i] and copy[2 i + 1]: the copies of tensor i and of its gradient. First everything that can fail, then the
 * moves. A gradient that is not set is dropped: backward allocates another. */
static bool move_all(const tarn__tensors *list, tarn_tensor **copy, tarn_device device)
{
    for (int i = 0; i < list->count; i++) {
        tarn_tensor *tensor = list->tensor[i];
        if (!is_to_move(tensor, device))
            continue;
        copy[2 * i] = copy_on(tensor, device);
        copy[2 * i + 1] = copy[2 * i] && tensor->grad_is_set ? copy_on(tensor->grad, device) : NULL;
        if (!copy[2 * i] || (tensor->grad_is_set && !copy[2 * i + 1]))
            return false;
    }
    for (int i = 0; i < list->count; i++) {
        tarn__optimizer_base *optimizer = list->tensor[i]->optimizer;
        if (optimizer && !tarn__same_device(tarn__device(list->tensor[i]), device) &&
            !optimizer->move(optimizer, list, device))
            return false;
    }
    for (int i = 0; i < list->count; i++) {
        tarn_tensor *tensor = list->tensor[i];
        if (!copy[2 * i])
            continue;
        move_into(tensor, copy[2 * i]);
        if (copy[2 * i + 1]) {
            move_into(tensor->grad, copy[2 * i + 1]);
        } else {
            tarn__tensor_release(tensor->grad);
            tensor->grad = NULL;
        }
    }
    return true;
}

/* Tensors stay the same objects, so that handles and tied weights stay valid. */
bool tarn_module_to(tarn_module *module, tarn_device device)
{
    tarn__tensors list;
    if (tarn_failed() || !tarn__check_module("module_to", module) || !tarn__backend_of(device, "module_to") ||
        !tarn__module_tensors_of(module, TARN__MODULE_STATE, &list))
        return false;
    size_t bytes = sizeof(tarn_tensor *) * 2 * (size_t)list.count;
    tarn_tensor **copy = tarn__alloc(bytes);
    tarn_scope *scope = copy ? tarn_scope_open() : NULL;
    bool good = scope && move_all(&list, copy, device);
    tarn_scope_close(scope);
    tarn__release(copy, bytes);
    tarn__tensors_release(&list);
    return good;
}

/* ---- dtype ------------------------------------------------------------------------------------------------------- */

/* Parameters of a module tree rounded to another float dtype, for models opened in 16 bits. */

/* The tensor object stays and gets new storage, so that tied weights and handles stay valid. */
static bool cast_one(const tarn__parameter *parameter, void *ctx)
{
    tarn_dtype dtype = *(const tarn_dtype *)ctx;
    tarn_tensor *tensor = parameter->tensor;
    if (!tarn__is_float(tensor->view.dtype) || tensor->view.dtype == dtype)
        return true;
    tarn_tensor *copy = tarn_cast(tarn_detach(tensor), dtype);
    if (!copy)
        return false;
    tarn__storage_retain(copy->storage);
    copy->storage->version = tensor->storage->version;
    tensor->view.dtype = dtype;
    tarn__tensor_set_storage(tensor, copy->storage);
    tarn__storage_set_name(tensor->storage, tensor->name);
    return true;
}

/* A failure may leave some parameters cast: the caller frees the module then. */
bool tarn__module_cast(tarn_module *module, tarn_dtype dtype)
{
    tarn_scope *scope = tarn_scope_open();
    if (scope)
        tarn__module_walk(module, cast_one, &dtype);
    tarn_scope_close(scope);
    return !tarn_failed();
}

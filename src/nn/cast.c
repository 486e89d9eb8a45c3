/* cast.c: parameters of a module tree rounded to another float dtype, for models opened in 16 bits. */
#include "base/dtype.h"
#include "core/tensor/tensor.h"
#include "nn/module.h"

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

/* create.c: tensors created directly on a device, and the random number generator.
 *
 * Values are produced on the device itself; only tarn_from() transfers. Random values depend on the thread's seed,
 * the device and the order of calls, not on threads or layouts: bitwise identical on all backends for uniform bits.
 *
 * Public functions raise errors under their own names; the *_like forms take shape, dtype and device of a tensor,
 * not its layout. */
#include <math.h>
#include <string.h>

#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "core/tensor/random.h"

static _Thread_local tarn__rng_state generator;

/* Resets the counters of all devices. */
void tarn_seed(uint64_t seed)
{
    memset(&generator, 0, sizeof(generator));
    generator.seed = seed;
}

tarn__rng_state tarn__random_save(void)
{
    return generator;
}

void tarn__random_restore(const tarn__rng_state *saved)
{
    generator = *saved;
}

uint64_t *tarn__random_offset(tarn_device device)
{
    return &generator.offset[device.backend][device.index % TARN__RANDOM_DEVICES];
}

/* Counters advance even if the kernel fails later, so a retry draws other numbers. */
tarn__random tarn__random_reserve(tarn_device device, int64_t count)
{
    uint64_t *offset = tarn__random_offset(device);
    tarn__random random = {.seed = generator.seed, .offset = *offset};
    /* seed and offset are read on the device, so that each run of the graph draws new numbers */
    if (tarn__is_capturing(device))
        random.live = tarn__graph_random();
    *offset += (uint64_t)(count + 3) / 4;
    return random;
}

/* ---- filled with one value --------------------------------------------------------------------------------------- */

tarn_tensor *tarn_empty(tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    return tarn__tensor_new("empty", shape, dtype, device);
}

/* A new tensor filled by one kernel. */
static tarn_tensor *full(const char *function, tarn_shape shape, double value, tarn_dtype dtype, tarn_device device)
{
    tarn_tensor *tensor = tarn__tensor_new(function, shape, dtype, device);
    return tensor && tarn__fill_with(function, tensor, value) ? tensor : NULL;
}

tarn_tensor *tarn_zeros(tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    return full("zeros", shape, 0, dtype, device);
}

tarn_tensor *tarn_ones(tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    return full("ones", shape, 1, dtype, device);
}

tarn_tensor *tarn_full(tarn_shape shape, double value, tarn_dtype dtype, tarn_device device)
{
    return full("full", shape, value, dtype, device);
}

tarn_tensor *tarn_empty_like(const tarn_tensor *like)
{
    return tarn__check_any("empty_like", like, "like")
               ? tarn__tensor_new("empty_like", tarn__shape_of(like), like->view.dtype, tarn__device(like))
               : NULL;
}

tarn_tensor *tarn_zeros_like(const tarn_tensor *like)
{
    return tarn__check("zeros_like", like, "like")
               ? full("zeros_like", tarn__shape_of(like), 0, like->view.dtype, tarn__device(like))
               : NULL;
}

tarn_tensor *tarn_ones_like(const tarn_tensor *like)
{
    return tarn__check("ones_like", like, "like")
               ? full("ones_like", tarn__shape_of(like), 1, like->view.dtype, tarn__device(like))
               : NULL;
}

tarn_tensor *tarn_full_like(const tarn_tensor *like, double value)
{
    return tarn__check("full_like", like, "like")
               ? full("full_like", tarn__shape_of(like), value, like->view.dtype, tarn__device(like))
               : NULL;
}

/* An f64 tensor on the CPU that operations treat as a constant of any dtype and device. */
tarn_tensor *tarn_scalar(double value)
{
    tarn_tensor *tensor = tarn__tensor_new("scalar", TARN_SCALAR, TARN_F64, tarn_device_cpu());
    if (!tensor)
        return NULL;
    *(double *)tarn__view_at(&tensor->view) = value;
    tensor->is_constant = true;
    tensor->constant = value;
    return tensor;
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

/* Integers are exact: value and step are also passed as i64. */
tarn_tensor *tarn_arange(double begin, double end, double step, tarn_dtype dtype, tarn_device device)
{
    double count = ceil((end - begin) / step);
    if (tarn_failed())
        return NULL;
    if (!(step != 0) || !(fabs(count) < 9e15) || !(fabs(begin) < 9e18) || !(fabs(step) < 9e18)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "arange: %g to %g in steps of %g is not a finite sequence", begin, end, step);
        return NULL;
    }
    if (dtype == TARN_BOOL) {
        tarn__raise(TARN_ERROR_DTYPE, "arange: bool is not supported");
        return NULL;
    }
    tarn_tensor *tensor = tarn__tensor_new("arange", TARN_SHAPE(count > 0 ? (int64_t)count : 0), dtype, device);
    tarn__fill fill = {{begin, (int64_t)begin}, {step, (int64_t)step}};
    bool good = tensor && tarn__run(&(tarn__launch){.kernel = TARN__K_arange,
                                                    .function = "arange",
                                                    .outputs = 1,
                                                    .out = {tensor},
                                                    .params = &fill,
                                                    .params_bytes = sizeof(fill)});
    return good ? tensor : NULL;
}

/* The diagonal is a view of the zeros with a stride of one row and one element. */
tarn_tensor *tarn_eye(int64_t rows, int64_t columns, tarn_dtype dtype, tarn_device device)
{
    tarn_tensor *tensor = full("eye", TARN_SHAPE(rows, columns), 0, dtype, device);
    if (!tensor || rows == 0 || columns == 0)
        return tensor;
    tarn_tensor *diagonal = tarn__tensor_view(tensor);
    if (!diagonal)
        return NULL;
    diagonal->view.rank = 1;
    diagonal->view.shape[0] = rows < columns ? rows : columns;
    diagonal->view.stride[0] = columns + 1;
    bool good = tarn__fill_with("eye", diagonal, 1);
    tarn_free(diagonal);
    return good ? tensor : NULL;
}

/* ---- random ------------------------------------------------------------------------------------------------------ */

/* uniform and normal: reserves one counter per four values and runs the kernel. */
static tarn_tensor *draw(const char *function, tarn__kernel kernel, tarn_shape shape, double a, double b,
                         tarn_dtype dtype, tarn_device device)
{
    tarn_tensor *tensor = tarn__tensor_new(function, shape, dtype, device);
    if (!tensor || !tarn__check_dtype(function, tensor, TARN__FLOATS, "the result"))
        return NULL;
    if (!isfinite(a) || !isfinite(b)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the parameters %g and %g must be finite", function, a, b);
        return NULL;
    }
    if (kernel == TARN__K_uniform ? a > b : b < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: %g and %g: %s", function, a, b,
                    kernel == TARN__K_uniform ? "low is above high" : "std is negative");
        return NULL;
    }
    tarn__random random = tarn__random_reserve(device, tarn__view_count(&tensor->view));
    if (tarn_failed())
        return NULL;
    random.a = a;
    random.b = b;
    bool good = tarn__run(&(tarn__launch){.kernel = kernel,
                                          .function = function,
                                          .outputs = 1,
                                          .out = {tensor},
                                          .params = &random,
                                          .params_bytes = sizeof(random)});
    return good ? tensor : NULL;
}

tarn_tensor *tarn_uniform(tarn_shape shape, double low, double high, tarn_dtype dtype, tarn_device device)
{
    return draw("uniform", TARN__K_uniform, shape, low, high, dtype, device);
}

tarn_tensor *tarn_normal(tarn_shape shape, double mean, double std, tarn_dtype dtype, tarn_device device)
{
    return draw("normal", TARN__K_normal, shape, mean, std, dtype, device);
}

tarn_tensor *tarn_uniform_like(const tarn_tensor *like, double low, double high)
{
    return tarn__check("uniform_like", like, "like") ? draw("uniform_like", TARN__K_uniform, tarn__shape_of(like), low,
                                                            high, like->view.dtype, tarn__device(like))
                                                     : NULL;
}

tarn_tensor *tarn_normal_like(const tarn_tensor *like, double mean, double std)
{
    return tarn__check("normal_like", like, "like") ? draw("normal_like", TARN__K_normal, tarn__shape_of(like), mean,
                                                           std, like->view.dtype, tarn__device(like))
                                                    : NULL;
}

/* ---- from the host ----------------------------------------------------------------------------------------------- */

/* Copies host values: the caller's buffer may be reused at once. */
tarn_tensor *tarn_from(const void *values, tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    tarn_tensor *tensor = tarn__tensor_new("from", shape, dtype, device);
    if (!tensor)
        return NULL;
    size_t bytes = (size_t)tarn__bytes_of(dtype, tarn__view_count(&tensor->view));
    if (!values && bytes > 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "from: the values are NULL");
        return NULL;
    }
    return tarn__not_captured("from", device, "a copy from the host") &&
                   tarn__storage_upload(tensor->storage, 0, values, bytes)
               ? tensor
               : NULL;
}

tarn_tensor *tarn_from_f32(const float *values, tarn_shape shape, tarn_device device)
{
    return tarn_from(values, shape, TARN_F32, device);
}

tarn_tensor *tarn_from_f64(const double *values, tarn_shape shape, tarn_device device)
{
    return tarn_from(values, shape, TARN_F64, device);
}

tarn_tensor *tarn_from_i32(const int32_t *values, tarn_shape shape, tarn_device device)
{
    return tarn_from(values, shape, TARN_I32, device);
}

tarn_tensor *tarn_from_i64(const int64_t *values, tarn_shape shape, tarn_device device)
{
    return tarn_from(values, shape, TARN_I64, device);
}

tarn_tensor *tarn_from_u8(const uint8_t *values, tarn_shape shape, tarn_device device)
{
    return tarn_from(values, shape, TARN_U8, device);
}

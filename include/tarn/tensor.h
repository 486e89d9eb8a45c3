/* tensor.h: tensors: dtypes, shapes, ownership, creation and host access.
 *
 * A tensor is a view of a storage on one device. Scopes own tensors: a result belongs to the innermost open scope of
 * the calling thread, or to that thread's root scope. tarn_keep() returns a handle that the caller owns; tarn_free()
 * releases it. Use of a freed tensor is an error that names it: the last 65,536 freed headers are remembered. */
#ifndef TARN_TENSOR_H
#define TARN_TENSOR_H

#include <tarn/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of axes. */
#define TARN_MAX_RANK 8

/* Element types. Those from TARN_Q8_0 are quantized, in the block formats of GGUF: a block of 32 or 256 elements of the
 * last axis (tarn_dtype_block_size()) shares its scales. Quantized tensors can be copied, moved, cast, read,
 * gathered by rows, sliced along the other axes, and used as the weight of tarn_linear_apply(). */
typedef enum tarn_dtype {
    TARN_F32 = 0,
    TARN_F64,
    TARN_BF16,
    TARN_F16,
    TARN_I32,
    TARN_I64,
    TARN_U8,
    TARN_BOOL,
    TARN_Q8_0,   /* 32 elements in 34 bytes */
    TARN_Q4_0,   /* 32 elements in 18 bytes */
    TARN_Q4_K,   /* 256 elements in 144 bytes */
    TARN_Q6_K,   /* 256 elements in 210 bytes */
    TARN_Q4_1,   /* 32 elements in 20 bytes */
    TARN_Q5_0,   /* 32 elements in 22 bytes */
    TARN_Q5_1,   /* 32 elements in 24 bytes */
    TARN_Q2_K,   /* 256 elements in 84 bytes */
    TARN_Q3_K,   /* 256 elements in 110 bytes */
    TARN_Q5_K,   /* 256 elements in 176 bytes */
    TARN_IQ4_NL, /* 32 elements in 18 bytes */
    TARN_IQ4_XS, /* 256 elements in 136 bytes */
    TARN_DTYPE_COUNT
} tarn_dtype;

/* Size per axis; rank 0 is a single value. */
typedef struct tarn_shape {
    int rank;
    int64_t size[TARN_MAX_RANK];
} tarn_shape;

/* A list of axes; negative ones count from the last. An empty list means all axes. */
typedef struct tarn_axes {
    int count;
    int axis[TARN_MAX_RANK];
} tarn_axes;

/* TARN_SHAPE(4, 2), TARN_AXES(0, -1): shape and axes literals. */
#ifdef __cplusplus
extern "C++" {
template <typename... T> constexpr tarn_shape tarn__shape_list(T... sizes)
{
    return tarn_shape{(int)sizeof...(T), {static_cast<int64_t>(sizes)...}};
}
template <typename... T> constexpr tarn_axes tarn__axes_list(T... axes)
{
    return tarn_axes{(int)sizeof...(T), {static_cast<int>(axes)...}};
}
}
#define TARN_SHAPE(...) tarn__shape_list(__VA_ARGS__)
#define TARN_AXES(...) tarn__axes_list(__VA_ARGS__)
#define TARN_SCALAR (tarn_shape{0, {0}})
#define TARN_ALL_AXES (tarn_axes{0, {0}})
#else
#define TARN_SHAPE(...) ((tarn_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define TARN_AXES(...) ((tarn_axes){(int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), {__VA_ARGS__}})
#define TARN_SCALAR ((tarn_shape){0, {0}})
#define TARN_ALL_AXES ((tarn_axes){0, {0}})
#endif

typedef struct tarn_tensor tarn_tensor;
typedef struct tarn_scope tarn_scope;

/* Name of a dtype ("bf16"); "?" for an invalid value. */
TARN_API const char *tarn_dtype_name(tarn_dtype dtype);

/* Parses the name of a dtype ("f32"); TARN_DTYPE_COUNT, with an error, if there is none of that name. */
TARN_API tarn_dtype tarn_dtype_parse(const char *text);

/* Bytes of one element, or of one block of a quantized dtype; 0 for an invalid value. */
TARN_API size_t tarn_dtype_size(tarn_dtype dtype);

/* Elements of one quant block: 32 or 256; 1 for dtypes that are not quantized, 0 for an invalid value. The last axis
 * of a quantized tensor is a multiple of it. */
TARN_API int64_t tarn_dtype_block_size(tarn_dtype dtype);

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/* Opens a scope on this thread: tensors created from now on are freed when it closes. */
TARN_API tarn_scope *tarn_scope_open(void);

/* Closes a scope of this thread and frees its tensors; scopes opened inside it that are still open are closed as
 * well. NULL is allowed. Works while an error is pending. */
TARN_API void tarn_scope_close(tarn_scope *scope);

/* Moves a tensor from `scope` to the enclosing scope, so that it survives the close. Returns the tensor. */
TARN_API tarn_tensor *tarn_scope_return(tarn_scope *scope, tarn_tensor *tensor);

/* Returns a new handle of a tensor, which the caller owns and releases with tarn_free(); `tensor` itself stays with
 * its scope. Both handles are the same tensor: they share elements, name, autograd record and gradient, and either
 * outlives the other. NULL with an error. */
TARN_API tarn_tensor *tarn_keep(tarn_tensor *tensor);

/* Releases a handle of tarn_keep(), or a scope's tensor before its scope closes. NULL is allowed; works while an
 * error is pending. Freeing a tensor twice, or one that the library owns, is an error. */
TARN_API void tarn_free(tarn_tensor *tensor);

/* ---- making tensors ---------------------------------------------------------------------------------------------- */

/* Create a tensor on a device: uninitialized, zeros, ones, or filled with a value. */
TARN_API tarn_tensor *tarn_empty(tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_zeros(tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_ones(tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_full(tarn_shape shape, double value, tarn_dtype dtype, tarn_device device);

/* The same with the shape, dtype and device of another tensor. */
TARN_API tarn_tensor *tarn_empty_like(const tarn_tensor *like);
TARN_API tarn_tensor *tarn_zeros_like(const tarn_tensor *like);
TARN_API tarn_tensor *tarn_ones_like(const tarn_tensor *like);
TARN_API tarn_tensor *tarn_full_like(const tarn_tensor *like, double value);
TARN_API tarn_tensor *tarn_uniform_like(const tarn_tensor *like, double low, double high);
TARN_API tarn_tensor *tarn_normal_like(const tarn_tensor *like, double mean, double std);

/* The values begin, begin + step … below `end`, in one axis. */
TARN_API tarn_tensor *tarn_arange(double begin, double end, double step, tarn_dtype dtype, tarn_device device);

/* A rows × columns matrix with ones on its diagonal. */
TARN_API tarn_tensor *tarn_eye(int64_t rows, int64_t columns, tarn_dtype dtype, tarn_device device);

/* Random values from the device's generator: uniform in [low, high), or normal. Float dtypes only. */
TARN_API tarn_tensor *tarn_uniform(tarn_shape shape, double low, double high, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_normal(tarn_shape shape, double mean, double std, tarn_dtype dtype, tarn_device device);

/* Seeds the generators of all devices for this thread and sets them to offset 0. Every thread starts with seed 0. */
TARN_API void tarn_seed(uint64_t seed);

/* Copies a host array of `dtype`, row-major, to a device. Quantized elements are given byte for byte as in GGUF
 * files. */
TARN_API tarn_tensor *tarn_from(const void *values, tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_from_f32(const float *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_f64(const double *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_i32(const int32_t *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_i64(const int64_t *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_u8(const uint8_t *values, tarn_shape shape, tarn_device device);

/* A scalar operand: rank 0, takes the dtype and device of the tensor it is combined with, costs no transfer.
 * tarn_mul(x, tarn_scalar(2)). */
TARN_API tarn_tensor *tarn_scalar(double value);

/* ---- asking ------------------------------------------------------------------------------------------------------ */

/* Properties of a tensor. A negative axis counts from the last. Strides count elements. */
TARN_API tarn_dtype tarn_dtype_of(const tarn_tensor *tensor);
TARN_API int tarn_rank(const tarn_tensor *tensor);
TARN_API tarn_shape tarn_shape_of(const tarn_tensor *tensor);
TARN_API int64_t tarn_size(const tarn_tensor *tensor, int axis);
TARN_API int64_t tarn_stride_of(const tarn_tensor *tensor, int axis);
TARN_API int64_t tarn_count(const tarn_tensor *tensor);
TARN_API int64_t tarn_bytes(const tarn_tensor *tensor);
TARN_API tarn_device tarn_device_of(const tarn_tensor *tensor);

/* True if the layout is row-major without gaps. */
TARN_API bool tarn_is_contiguous(const tarn_tensor *tensor);

/* Name of a tensor, "" if it has none; errors, memory tables and traces show it. tarn_set_name() copies the string. */
TARN_API const char *tarn_name(const tarn_tensor *tensor);
TARN_API tarn_tensor *tarn_set_name(tarn_tensor *tensor, const char *name);

/* ---- reading and writing on the host ----------------------------------------------------------------------------- */

/* Waits for the tensor and copies its elements, row-major and in its own dtype, to `values` of `bytes` bytes, which
 * must equal tarn_bytes(). To read a slice, read a view: tarn_read(tarn_shrink(x, …)). */
TARN_API bool tarn_read(const tarn_tensor *tensor, void *values, size_t bytes);

/* The same, converted to f32 or f64; `count` must equal tarn_count(). */
TARN_API bool tarn_read_f32(const tarn_tensor *tensor, float *values, int64_t count);
TARN_API bool tarn_read_f64(const tarn_tensor *tensor, double *values, int64_t count);

/* Value of a tensor with one element; NaN on error. */
TARN_API double tarn_item(const tarn_tensor *tensor);

/* Value at an index, one number per axis: tarn_item_at(x, TARN_SHAPE(2, 3)); NaN on error. */
TARN_API double tarn_item_at(const tarn_tensor *tensor, tarn_shape index);

/* Copies a host array of the tensor's dtype, row-major, into the tensor, in place. */
TARN_API bool tarn_write(tarn_tensor *tensor, const void *values, size_t bytes);

/* Address of the first element on the tensor's device; NULL, with an error, where device memory has no address.
 * Valid while the tensor lives. */
TARN_API void *tarn_data(const tarn_tensor *tensor);

/* Writes the tensor as NumPy prints it, large ones abbreviated, into `buffer`, always terminated. Returns the length
 * of the whole text. */
TARN_API size_t tarn_format(const tarn_tensor *tensor, char *buffer, size_t size);

/* Prints the tensor to standard output, with shape, dtype and device. */
TARN_API void tarn_print(const tarn_tensor *tensor);

/* ---- moving ------------------------------------------------------------------------------------------------------ */

/* The tensor on another device: the same tensor if it is on that device, else a copy. Differentiable. */
TARN_API tarn_tensor *tarn_to(tarn_tensor *tensor, tarn_device device);

/* A contiguous copy with its own storage. Differentiable. */
TARN_API tarn_tensor *tarn_clone(tarn_tensor *tensor);

/* Copies the elements of `from` into `to`, in place, converting the dtype and transferring between devices as
 * needed. Shapes must be equal. */
TARN_API bool tarn_copy(tarn_tensor *to, const tarn_tensor *from);

/* What happens when operands are on different devices. */
typedef enum tarn_cross_device {
    TARN_CROSS_DEVICE_ERROR = 0, /* an error that names both devices (the default) */
    TARN_CROSS_DEVICE_MOVE = 1   /* the CPU operand is uploaded to the other device, counted as a transfer */
} tarn_cross_device;

/* Sets, for this thread, what happens when operands are on different devices. */
TARN_API void tarn_set_cross_device(tarn_cross_device mixed);

#ifdef __cplusplus
}
#endif
#endif

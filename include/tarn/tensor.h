/* tensor.h: tensors, their element types and shapes, who owns them, how they are made and read.
 *
 * A tensor is a view of a storage on one device. Ownership is by scope: a result belongs to the innermost open scope of
 * the calling thread, or to that thread's root scope. tarn_keep() returns a handle of the caller's own; tarn_free()
 * releases it. Using a tensor that was freed is an error that names it: the last 65,536 freed headers are remembered.
 */
#ifndef TARN_TENSOR_H
#define TARN_TENSOR_H

#include <tarn/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The largest number of axes. */
#define TARN_MAX_RANK 8

/* Element types. The last ones hold blocks, as GGUF files do: some elements of the last axis (tarn_dtype_block_size()
 * says how many) share scales and have a few bits each. Their tensors can be copied, moved, cast, read, gathered by
 * rows, seen in parts along the other axes, and be the weight of tarn_linear_apply(). */
typedef enum tarn_dtype {
    TARN_F32 = 0,
    TARN_F64,
    TARN_BF16,
    TARN_F16,
    TARN_I32,
    TARN_I64,
    TARN_U8,
    TARN_BOOL,
    TARN_Q8_0, /* 32 elements in 34 bytes */
    TARN_Q4_0, /* 32 in 18 */
    TARN_Q4_K, /* 256 in 144 */
    TARN_Q6_K, /* 256 in 210 */
    TARN_DTYPE_COUNT
} tarn_dtype;

/* Sizes, one for each axis; rank 0 is a single value. */
typedef struct tarn_shape {
    int rank;
    int64_t size[TARN_MAX_RANK];
} tarn_shape;

/* A list of axes; negative ones count from the last. An empty list means all axes. */
typedef struct tarn_axes {
    int count;
    int axis[TARN_MAX_RANK];
} tarn_axes;

/* TARN_SHAPE(4, 2), TARN_AXES(0, -1): lists written where they are used. */
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

/* The name of an element type ("bf16"), or "?" for a value that is none. */
TARN_API const char *tarn_dtype_name(tarn_dtype dtype);

/* The element type a text names ("f32"); TARN_DTYPE_COUNT, with an error, if there is none of that name. */
TARN_API tarn_dtype tarn_dtype_parse(const char *text);

/* Bytes of one element, or of one block of a type that holds blocks; 0 for a value that is no element type. */
TARN_API size_t tarn_dtype_size(tarn_dtype dtype);

/* Elements of one block: 32 or 256, 1 for types without blocks, 0 for a value that is no element type. The last axis of
 * a tensor has a multiple of it. */
TARN_API int64_t tarn_dtype_block_size(tarn_dtype dtype);

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/* Opens a scope on this thread: what is made from now on is freed at its close. */
TARN_API tarn_scope *tarn_scope_open(void);

/* Closes a scope of this thread and frees what belongs to it; scopes opened inside it that are still open are closed
 * too. NULL is allowed. Works while an error is pending. */
TARN_API void tarn_scope_close(tarn_scope *scope);

/* Moves a tensor out of `scope` to the scope around it, so that it survives the close. Returns the tensor. */
TARN_API tarn_tensor *tarn_scope_return(tarn_scope *scope, tarn_tensor *tensor);

/* A new handle on a tensor, which the caller owns and releases with tarn_free(); `tensor` itself stays with its scope.
 * Both are the same tensor: they share elements, name, record and gradient, and either lives on when the other is
 * freed. NULL with an error. */
TARN_API tarn_tensor *tarn_keep(tarn_tensor *tensor);

/* Releases a handle from tarn_keep(), or a scope's tensor before its scope closes. NULL is allowed; works while an
 * error is pending. A tensor that was freed before, or that belongs to the library, is an error. */
TARN_API void tarn_free(tarn_tensor *tensor);

/* ---- making tensors ---------------------------------------------------------------------------------------------- */

/* Makes a tensor directly on a device: uninitialised, zeros, ones, or filled with a value. */
TARN_API tarn_tensor *tarn_empty(tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_zeros(tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_ones(tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_full(tarn_shape shape, double value, tarn_dtype dtype, tarn_device device);

/* Makes a tensor of another's shape, dtype and device. */
TARN_API tarn_tensor *tarn_empty_like(const tarn_tensor *like);
TARN_API tarn_tensor *tarn_zeros_like(const tarn_tensor *like);
TARN_API tarn_tensor *tarn_ones_like(const tarn_tensor *like);
TARN_API tarn_tensor *tarn_full_like(const tarn_tensor *like, double value);
TARN_API tarn_tensor *tarn_uniform_like(const tarn_tensor *like, double low, double high);
TARN_API tarn_tensor *tarn_normal_like(const tarn_tensor *like, double mean, double std);

/* The values begin, begin + step … before `end`, on one axis. */
TARN_API tarn_tensor *tarn_arange(double begin, double end, double step, tarn_dtype dtype, tarn_device device);

/* A rows × columns matrix with ones on its diagonal. */
TARN_API tarn_tensor *tarn_eye(int64_t rows, int64_t columns, tarn_dtype dtype, tarn_device device);

/* Random values from the device's generator: uniform in [low, high), or normal. Float dtypes only. */
TARN_API tarn_tensor *tarn_uniform(tarn_shape shape, double low, double high, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_normal(tarn_shape shape, double mean, double std, tarn_dtype dtype, tarn_device device);

/* Seeds the generators of all devices of this thread and starts them at offset 0. Every thread starts with seed 0. */
TARN_API void tarn_seed(uint64_t seed);

/* Copies a host array of `dtype`, row-major, to a device. Blocks are given as GGUF files hold them, byte for byte. */
TARN_API tarn_tensor *tarn_from(const void *values, tarn_shape shape, tarn_dtype dtype, tarn_device device);
TARN_API tarn_tensor *tarn_from_f32(const float *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_f64(const double *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_i32(const int32_t *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_i64(const int64_t *values, tarn_shape shape, tarn_device device);
TARN_API tarn_tensor *tarn_from_u8(const uint8_t *values, tarn_shape shape, tarn_device device);

/* A number to compute with: rank 0, takes the dtype and device of the tensor it meets, costs no transfer. tarn_mul(x,
 * tarn_scalar(2)). */
TARN_API tarn_tensor *tarn_scalar(double value);

/* ---- asking ------------------------------------------------------------------------------------------------------ */

/* A tensor's element type, rank, sizes and place. A negative axis counts from the last. */
TARN_API tarn_dtype tarn_dtype_of(const tarn_tensor *tensor);
TARN_API int tarn_rank(const tarn_tensor *tensor);
TARN_API tarn_shape tarn_shape_of(const tarn_tensor *tensor);
TARN_API int64_t tarn_size(const tarn_tensor *tensor, int axis);
TARN_API int64_t tarn_stride_of(const tarn_tensor *tensor, int axis);
TARN_API int64_t tarn_count(const tarn_tensor *tensor);
TARN_API int64_t tarn_bytes(const tarn_tensor *tensor);
TARN_API tarn_device tarn_device_of(const tarn_tensor *tensor);

/* True when the elements lie row-major without gaps. */
TARN_API bool tarn_is_contiguous(const tarn_tensor *tensor);

/* A tensor's name ("" if it has none); errors, memory tables and traces use it. The text is copied. */
TARN_API const char *tarn_name(const tarn_tensor *tensor);
TARN_API tarn_tensor *tarn_set_name(tarn_tensor *tensor, const char *name);

/* ---- reading and writing on the host ----------------------------------------------------------------------------- */

/* Waits for the tensor and copies its elements, row-major and in its own dtype, to `values`, which holds `bytes` bytes:
 * exactly tarn_bytes(). To read a slice, read a view: tarn_read(tarn_shrink(x, …)). */
TARN_API bool tarn_read(const tarn_tensor *tensor, void *values, size_t bytes);

/* The same, converted to f32 or f64; `count` is exactly tarn_count(). */
TARN_API bool tarn_read_f32(const tarn_tensor *tensor, float *values, int64_t count);
TARN_API bool tarn_read_f64(const tarn_tensor *tensor, double *values, int64_t count);

/* The value of a tensor with one element; NaN on error. */
TARN_API double tarn_item(const tarn_tensor *tensor);

/* The value at an index, one number for each axis: tarn_item_at(x, TARN_SHAPE(2, 3)); NaN on error. */
TARN_API double tarn_item_at(const tarn_tensor *tensor, tarn_shape index);

/* Copies a host array in the tensor's dtype, row-major, into the tensor, in place. */
TARN_API bool tarn_write(tarn_tensor *tensor, const void *values, size_t bytes);

/* The address of the first element on the tensor's device; NULL, with an error, where memory has no plain address.
 * Valid while the tensor lives. */
TARN_API void *tarn_data(const tarn_tensor *tensor);

/* Writes the tensor as NumPy prints it, large ones shortened, into `buffer`, always terminated. Returns the length the
 * whole text has. */
TARN_API size_t tarn_format(const tarn_tensor *tensor, char *buffer, size_t size);

/* Prints the tensor on standard output, with shape, dtype and device. */
TARN_API void tarn_print(const tarn_tensor *tensor);

/* ---- moving ------------------------------------------------------------------------------------------------------ */

/* The tensor on another device: the same tensor if it is there already, else a copy. Differentiable. */
TARN_API tarn_tensor *tarn_to(tarn_tensor *tensor, tarn_device device);

/* A copy with its own storage, dense. Differentiable. */
TARN_API tarn_tensor *tarn_clone(tarn_tensor *tensor);

/* Copies the elements of `from` into `to`, in place, converting dtype and crossing devices as needed; shapes must be
 * equal. */
TARN_API bool tarn_copy(tarn_tensor *to, const tarn_tensor *from);

/* What happens when operands lie on different devices. */
typedef enum tarn_cross_device {
    TARN_CROSS_DEVICE_ERROR = 0, /* an error that names both devices (the default) */
    TARN_CROSS_DEVICE_MOVE = 1   /* the CPU operand is copied to the other one's device, counted as a transfer */
} tarn_cross_device;

/* Says, for this thread, what happens when operands lie on different devices. */
TARN_API void tarn_set_cross_device(tarn_cross_device mixed);

#ifdef __cplusplus
}
#endif
#endif

/* gguf.h: files of named tensors and typed metadata in the GGUF format (version 3; version 2 can be read): a model,
 * its configuration and its tokenizer in one file, with weights that may be quantized.
 *
 * A file is memory-mapped: opening one of many gigabytes reads its header only. It must not be truncated while it or
 * a tensor of it is in use: the system then ends the program (SIGBUS) when a missing page is read. Replacing it by
 * rename, as tarn does, is safe. Files are not trusted: the whole header is validated on open.
 *
 * A model in shards ("name-00001-of-00003.gguf" …) opens as one file: by the path of any of its shards, which are in
 * one folder, with the metadata of the first and the tensors of all. A missing shard, or one of another model, is an
 * error. */
#ifndef TARN_GGUF_H
#define TARN_GGUF_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Metadata types, with their numbers in files. */
typedef enum tarn_gguf_type {
    TARN_GGUF_U8 = 0,
    TARN_GGUF_I8,
    TARN_GGUF_U16,
    TARN_GGUF_I16,
    TARN_GGUF_U32,
    TARN_GGUF_I32,
    TARN_GGUF_F32,
    TARN_GGUF_BOOL, /* one byte, 0 or 1 */
    TARN_GGUF_STRING,
    TARN_GGUF_ARRAY, /* of one type, which may be an array again */
    TARN_GGUF_U64,
    TARN_GGUF_I64,
    TARN_GGUF_F64,
    TARN_GGUF_TYPE_COUNT
} tarn_gguf_type;

/* Name of a metadata type ("u32"); "?" for an invalid value. */
TARN_API const char *tarn_gguf_type_name(tarn_gguf_type type);

/* Name of a value of the key general.file_type, the mixture of a file's types ("Q4_K_M"); NULL for an unknown one. */
TARN_API const char *tarn_gguf_file_type_name(int64_t file_type);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_gguf tarn_gguf;

/* Header entry of one tensor. Strings live as long as the file is open. */
typedef struct tarn_gguf_entry {
    const char *name;
    const char *dtype_name;  /* as the format calls it: "Q4_K" */
    tarn_dtype dtype;        /* TARN_DTYPE_COUNT: not a dtype of tarn */
    tarn_shape shape;        /* row-major: the last axis is contiguous (the format lists it first) */
    int64_t position, bytes; /* offset of its elements from the beginning of the file (of several: of its own) */
} tarn_gguf_entry;

/* Header entry of one metadata key. */
typedef struct tarn_gguf_value {
    const char *key;
    tarn_gguf_type type;
    tarn_gguf_type element; /* of an array; else equal to `type` */
    int64_t count;          /* of an array; else 1 */
} tarn_gguf_value;

/* Opens a file, with all shards of a sharded model, and validates its header. The caller owns it and closes it. */
TARN_API tarn_gguf *tarn_gguf_open(const char *path);

/* Closes a file; tensors taken from it stay valid. NULL is allowed; works while an error is pending. */
TARN_API void tarn_gguf_close(tarn_gguf *file);

/* Number of tensors, and name of one of them, in header order, shard by shard. Borrowed from the file. */
TARN_API int tarn_gguf_count(const tarn_gguf *file);
TARN_API const char *tarn_gguf_name(const tarn_gguf *file, int index);

/* Fills in the header entry of tensor number `index`. */
TARN_API bool tarn_gguf_info(const tarn_gguf *file, int index, tarn_gguf_entry *entry);

/* Number of the tensor of that name; -1, without an error, if there is none. */
TARN_API int tarn_gguf_find(const tarn_gguf *file, const char *name);

/* Tensor number `index` in its stored dtype; it belongs to the open scope. On the CPU it is a view of the mapped
 * file, which stays mapped while the tensor lives, even after the close; writes stay in memory and never reach the
 * file. On another device it is a copy. IQ1, IQ2 and IQ3 types, TQ1_0, TQ2_0, MXFP4 and NVFP4, which have no dtype, are
 * dequantized to f32; other types without one are an error. */
TARN_API tarn_tensor *tarn_gguf_tensor(const tarn_gguf *file, int index, tarn_device device);

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* Number of metadata keys, and the entry of key number `index`, in file order. */
TARN_API int tarn_gguf_metadata_count(const tarn_gguf *file);
TARN_API bool tarn_gguf_metadata_at(const tarn_gguf *file, int index, tarn_gguf_value *value);

/* Fills in the entry of a key; false, without an error, if there is none. `value` may be NULL. */
TARN_API bool tarn_gguf_has(const tarn_gguf *file, const char *key, tarn_gguf_value *value);

/* Value of a required key: an integer of any width from `low` to `high`; a real number or integer; a bool. False,
 * with an error that names the key, if it is missing or of another type. */
TARN_API bool tarn_gguf_int(const tarn_gguf *file, const char *key, int64_t low, int64_t high, int64_t *value);
TARN_API bool tarn_gguf_real(const tarn_gguf *file, const char *key, double *value);
TARN_API bool tarn_gguf_bool(const tarn_gguf *file, const char *key, bool *value);

/* String of a required key, terminated by 0; its length goes to `length` unless that is NULL (the string may contain
 * zero bytes). Borrowed from the file. NULL with an error. */
TARN_API const char *tarn_gguf_string(const tarn_gguf *file, const char *key, size_t *length);

/* Copy the `count` numbers of an array (tarn_gguf_has() gives the count): integers; real numbers or integers. Bools
 * count as 0 and 1. */
TARN_API bool tarn_gguf_ints(const tarn_gguf *file, const char *key, int64_t *values, int64_t count);
TARN_API bool tarn_gguf_reals(const tarn_gguf *file, const char *key, double *values, int64_t count);

/* String number `index` of an array of strings, with its length: it is NOT terminated by 0. Borrowed from the file.
 * NULL with an error. */
TARN_API const char *tarn_gguf_string_at(const tarn_gguf *file, const char *key, int64_t index, size_t *length);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_gguf_writer tarn_gguf_writer;

/* Creates a writer of version 3. Nothing is written before tarn_gguf_finish(). The caller owns the writer and ends
 * it with that or with tarn_gguf_cancel(). */
TARN_API tarn_gguf_writer *tarn_gguf_create(const char *path);

/* Add a key with one number or bool, which `value` points to; a string; an array of numbers or bools; an array of
 * strings (`lengths` may be NULL: they are terminated by 0). Everything is copied. "general.alignment", a u32, sets
 * the alignment of tensors: a power of two from 8 to 65536; default 32. */
TARN_API bool tarn_gguf_add_value(tarn_gguf_writer *writer, const char *key, tarn_gguf_type type, const void *value);
TARN_API bool tarn_gguf_add_string(tarn_gguf_writer *writer, const char *key, const char *text, size_t length);
TARN_API bool tarn_gguf_add_array(tarn_gguf_writer *writer, const char *key, tarn_gguf_type type, const void *values,
                                  int64_t count);
TARN_API bool tarn_gguf_add_strings(tarn_gguf_writer *writer, const char *key, const char *const *texts,
                                    const size_t *lengths, int64_t count);

/* Adds key number `index` of another file, byte for byte. The keys that describe the shards of a sharded model
 * ("split.count" and others) are skipped: the new file is whole. */
TARN_API bool tarn_gguf_add_from(tarn_gguf_writer *writer, const tarn_gguf *file, int index);

/* Adds a tensor of any device and layout under a name: f32, f16, bf16 or quantized. The writer retains it and writes
 * the elements it has at the finish. */
TARN_API bool tarn_gguf_add(tarn_gguf_writer *writer, const char *name, tarn_tensor *tensor);

/* Writes the file and frees the writer, on failure too. Atomic write, as tarn_safetensors_finish(). */
TARN_API bool tarn_gguf_finish(tarn_gguf_writer *writer);

/* Frees a writer without writing. NULL is allowed; works while an error is pending. */
TARN_API void tarn_gguf_cancel(tarn_gguf_writer *writer);

#ifdef __cplusplus
}
#endif
#endif

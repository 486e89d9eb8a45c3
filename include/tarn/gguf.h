/* gguf.h: files of named tensors and typed metadata, in the GGUF format (version 3; version 2 is read, too): a model,
 * its configuration and its tokenizer in one file, the weights perhaps in blocks.
 *
 * A file is mapped, not read: opening one of many gigabytes costs its header. It must not be made shorter while it or a
 * tensor of it is in use: the system then ends the program (SIGBUS) when the missing part is touched. Replacing it by
 * rename, as tarn does when it writes, is safe. Files are not trusted: everything in the header is checked when one is
 * opened. */
#ifndef TARN_GGUF_H
#define TARN_GGUF_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of metadata, by their numbers in files. */
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
    TARN_GGUF_ARRAY, /* of one type, which may be a list again */
    TARN_GGUF_U64,
    TARN_GGUF_I64,
    TARN_GGUF_F64,
    TARN_GGUF_TYPE_COUNT
} tarn_gguf_type;

/* The name of a type of metadata ("u32"), or "?" for a value that is none. */
TARN_API const char *tarn_gguf_type_name(tarn_gguf_type type);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_gguf tarn_gguf;

/* What a file says of one tensor. Texts live as long as the file is open. */
typedef struct tarn_gguf_entry {
    const char *name;
    const char *dtype_name; /* as the format calls it: "Q4_K" */
    tarn_dtype dtype;       /* TARN_DTYPE_COUNT: an element type that tarn cannot load */
    /* row-major, the last axis is the one whose elements lie side by side (the format lists it first) */
    tarn_shape shape;
    int64_t position, bytes; /* where its elements lie, from the beginning of the file */
} tarn_gguf_entry;

/* What a file says of one key of its metadata. */
typedef struct tarn_gguf_value {
    const char *key;
    tarn_gguf_type type;
    tarn_gguf_type element; /* of a list; else as `type` */
    int64_t count;          /* of a list; else 1 */
} tarn_gguf_value;

/* Opens a file and checks all of its header. The caller owns it and closes it. */
TARN_API tarn_gguf *tarn_gguf_open(const char *path);

/* Closes a file; tensors taken from it stay. NULL is allowed; works while an error is pending. */
TARN_API void tarn_gguf_close(tarn_gguf *file);

/* How many tensors there are, and the name of one of them, in the order of the header. Borrowed from the file. */
TARN_API int tarn_gguf_count(const tarn_gguf *file);
TARN_API const char *tarn_gguf_name(const tarn_gguf *file, int index);

/* Fills in what the file says of tensor number `index`. */
TARN_API bool tarn_gguf_info(const tarn_gguf *file, int index, tarn_gguf_entry *entry);

/* The number of the tensor of that name; -1, which is no error, when there is none. */
TARN_API int tarn_gguf_find(const tarn_gguf *file, const char *name);

/* Tensor number `index`, in the element type that it is stored in; it belongs to the open scope. On the CPU it lies in
 * the mapped file, which stays mapped while the tensor lives, even closed; what is written into it stays in memory and
 * never reaches the file. On another device it is a copy. An element type that tarn lacks is an error. */
TARN_API tarn_tensor *tarn_gguf_tensor(const tarn_gguf *file, int index, tarn_device device);

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* How many keys there are, and what number `index` is, in the order of the file. */
TARN_API int tarn_gguf_metadata_count(const tarn_gguf *file);
TARN_API bool tarn_gguf_metadata_at(const tarn_gguf *file, int index, tarn_gguf_value *value);

/* Fills in what the file says of a key; false, which is no error, when it has none like it. `value` may be NULL. */
TARN_API bool tarn_gguf_has(const tarn_gguf *file, const char *key, tarn_gguf_value *value);

/* The value of a key that must be there: a whole number of any width from `low` to `high`; a real or whole number; a
 * bool. False with an error that names the key. */
TARN_API bool tarn_gguf_int(const tarn_gguf *file, const char *key, int64_t low, int64_t high, int64_t *value);
TARN_API bool tarn_gguf_real(const tarn_gguf *file, const char *key, double *value);
TARN_API bool tarn_gguf_bool(const tarn_gguf *file, const char *key, bool *value);

/* The text of a key that must be there, ended by a zero byte; its length goes to `length` unless that is NULL (a text
 * may have zero bytes inside). Borrowed from the file. NULL with an error. */
TARN_API const char *tarn_gguf_string(const tarn_gguf *file, const char *key, size_t *length);

/* Copies the numbers of a list, of which there must be `count` (tarn_gguf_has() says how many): whole ones; real or
 * whole ones. Bools count as 0 and 1. */
TARN_API bool tarn_gguf_ints(const tarn_gguf *file, const char *key, int64_t *values, int64_t count);
TARN_API bool tarn_gguf_reals(const tarn_gguf *file, const char *key, double *values, int64_t count);

/* Text number `index` of a list of texts, with its length: it does NOT end in a zero byte. Borrowed from the file. NULL
 * with an error. */
TARN_API const char *tarn_gguf_string_at(const tarn_gguf *file, const char *key, int64_t index, size_t *length);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_gguf_writer tarn_gguf_writer;

/* Begins a file of version 3. Nothing is written before tarn_gguf_finish(). The caller owns the writer and ends it with
 * that or with tarn_gguf_cancel(). */
TARN_API tarn_gguf_writer *tarn_gguf_create(const char *path);

/* Adds a key with one number or bool, of which `value` points to; with a text; with a list of numbers or bools; with a
 * list of texts (`lengths` may be NULL: they end in a zero byte). All is copied. "general.alignment", a u32, is heeded:
 * a power of two from 8 to 65536; 32 unless given. */
TARN_API bool tarn_gguf_add_value(tarn_gguf_writer *writer, const char *key, tarn_gguf_type type, const void *value);
TARN_API bool tarn_gguf_add_string(tarn_gguf_writer *writer, const char *key, const char *text, size_t length);
TARN_API bool tarn_gguf_add_array(tarn_gguf_writer *writer, const char *key, tarn_gguf_type type, const void *values,
                                  int64_t count);
TARN_API bool tarn_gguf_add_strings(tarn_gguf_writer *writer, const char *key, const char *const *texts,
                                    const size_t *lengths, int64_t count);

/* Adds key number `index` of another file as it is, byte for byte. */
TARN_API bool tarn_gguf_add_from(tarn_gguf_writer *writer, const tarn_gguf *file, int index);

/* Adds a tensor of any device and layout under a name: f32, f16, bf16 or blocks. The writer holds it until the end: the
 * elements written are those it has then. */
TARN_API bool tarn_gguf_add(tarn_gguf_writer *writer, const char *name, tarn_tensor *tensor);

/* Writes the file and frees the writer, on failure too. The file appears whole or not at all, as
 * tarn_safetensors_finish() has it. */
TARN_API bool tarn_gguf_finish(tarn_gguf_writer *writer);

/* Frees a writer without writing. NULL is allowed; works while an error is pending. */
TARN_API void tarn_gguf_cancel(tarn_gguf_writer *writer);

#ifdef __cplusplus
}
#endif
#endif

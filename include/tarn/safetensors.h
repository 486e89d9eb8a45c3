/* safetensors.h: files of named tensors in the safetensors format: a JSON header, then the elements.
 *
 * A file is memory-mapped: opening one of many gigabytes reads its header only, and tensors are uploaded straight
 * from the map. It must not be truncated while it is open: the system then ends the program (SIGBUS) when a missing
 * page is read. Replacing it by rename, as tarn and the safetensors package do, is safe. Files are not trusted: the
 * whole header is validated on open.
 *
 * These functions need jansson (Debian's libjansson-dev) at build time; without it they raise an error that says so. */
#ifndef TARN_SAFETENSORS_H
#define TARN_SAFETENSORS_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_safetensors tarn_safetensors;

/* Header entry of one tensor. Strings live as long as the file is open. */
typedef struct tarn_safetensors_entry {
    const char *name;
    const char *dtype_name; /* as in the file: "BF16" */
    tarn_dtype dtype;       /* TARN_DTYPE_COUNT: not supported by tarn */
    tarn_shape shape;
    /* offset of its elements from the beginning of the file (of several: of its own) */
    int64_t position, bytes;
} tarn_safetensors_entry;

/* Opens a file and validates its header. A path that ends in ".safetensors.index.json" is the index of a sharded
 * model: its files are opened as one, without metadata, and every tensor must be in the file that the index names,
 * none twice. The caller owns the file and closes it. */
TARN_API tarn_safetensors *tarn_safetensors_open(const char *path);

/* Closes a file; tensors read from it stay valid. NULL is allowed; works while an error is pending. */
TARN_API void tarn_safetensors_close(tarn_safetensors *file);

/* Number of tensors, and name of one of them, in the order of their elements in the file. Borrowed from the file. */
TARN_API int tarn_safetensors_count(const tarn_safetensors *file);
TARN_API const char *tarn_safetensors_name(const tarn_safetensors *file, int index);

/* Fills in the header entry of tensor number `index`. */
TARN_API bool tarn_safetensors_info(const tarn_safetensors *file, int index, tarn_safetensors_entry *entry);

/* Number of the tensor of that name; -1, without an error, if there is none. */
TARN_API int tarn_safetensors_find(const tarn_safetensors *file, const char *name);

/* The tensor of that name, on a device; it belongs to the open scope. A missing name and a dtype that tarn lacks are
 * errors; so is a checksum mismatch, where the file has checksums. */
TARN_API tarn_tensor *tarn_safetensors_read(const tarn_safetensors *file, const char *name, tarn_device device);

/* Copies the tensor of that name into `tensor`, in place. Shapes must be equal; float dtypes are converted, others
 * must be equal. */
TARN_API bool tarn_safetensors_read_into(const tarn_safetensors *file, const char *name, tarn_tensor *tensor);

/* Metadata string of a key; NULL, without an error, if there is none. Borrowed from the file. */
TARN_API const char *tarn_safetensors_metadata(const tarn_safetensors *file, const char *key);

/* Number of metadata keys, and key and string number `index`; `key` and `value` may be NULL. Borrowed from the file. */
TARN_API int tarn_safetensors_metadata_count(const tarn_safetensors *file);
TARN_API bool tarn_safetensors_metadata_at(const tarn_safetensors *file, int index, const char **key,
                                           const char **value);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_safetensors_writer tarn_safetensors_writer;

/* Creates a writer. Nothing is written before tarn_safetensors_finish(). The caller owns the writer and ends it with
 * that or with tarn_safetensors_cancel(). */
TARN_API tarn_safetensors_writer *tarn_safetensors_create(const char *path);

/* Adds a tensor of any device, dtype and layout under a name. The writer retains it and writes the elements it has
 * at the finish. */
TARN_API bool tarn_safetensors_add(tarn_safetensors_writer *writer, const char *name, tarn_tensor *tensor);

/* Adds a metadata string. Both arguments are copied. */
TARN_API bool tarn_safetensors_add_metadata(tarn_safetensors_writer *writer, const char *key, const char *value);

/* Adds an XXH64 checksum per tensor and one of the header to the metadata, computed during the write: the keys
 * "tarn.checksum" and "tarn.checksum.values". Readers of such a file report corruption and name the tensor. All
 * files that tarn saves have checksums. */
TARN_API bool tarn_safetensors_add_checksums(tarn_safetensors_writer *writer);

/* Writes the file and frees the writer, on failure too. Atomic write: a temporary file in the same folder is synced
 * to disk and renamed; an existing file stays until then. */
TARN_API bool tarn_safetensors_finish(tarn_safetensors_writer *writer);

/* Frees a writer without writing. NULL is allowed; works while an error is pending. */
TARN_API void tarn_safetensors_cancel(tarn_safetensors_writer *writer);

#ifdef __cplusplus
}
#endif
#endif

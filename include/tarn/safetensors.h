/* safetensors.h: files of named tensors, in the format of the safetensors package: a header in JSON, then the elements.
 *
 * A file is mapped, not read: opening one of many gigabytes costs its header, and tensors go straight from the map to
 * their device. It must not be made shorter while it is open: the system then ends the program (SIGBUS) when the
 * missing part is touched. Replacing it by rename, as tarn and the package do when they write, is safe. Files are not
 * trusted: everything in the header is checked when one is opened.
 *
 * These functions need jansson (Debian's libjansson-dev) when tarn is built; without it they raise an error that says
 * so. */
#ifndef TARN_SAFETENSORS_H
#define TARN_SAFETENSORS_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_safetensors tarn_safetensors;

/* What a file says of one tensor. Texts live as long as the file is open. */
typedef struct tarn_safetensors_entry {
    const char *name;
    const char *dtype_name; /* as the file has it: "BF16" */
    tarn_dtype dtype;       /* TARN_DTYPE_COUNT: an element type that tarn cannot load */
    tarn_shape shape;
    int64_t position, bytes; /* where its elements lie, from the beginning of the file (of several: of its own) */
} tarn_safetensors_entry;

/* Opens a file and checks all of its header. A path that ends in ".safetensors.index.json" is an index of several files
 * beside it, as large models have them: they are opened as one, without metadata, and every tensor must be in the file
 * that the index names, none twice. The caller owns the file and closes it. */
TARN_API tarn_safetensors *tarn_safetensors_open(const char *path);

/* Closes a file; tensors read from it stay. NULL is allowed; works while an error is pending. */
TARN_API void tarn_safetensors_close(tarn_safetensors *file);

/* How many tensors there are, and the name of one of them: 0 is the one whose elements come first. Borrowed from the
 * file. */
TARN_API int tarn_safetensors_count(const tarn_safetensors *file);
TARN_API const char *tarn_safetensors_name(const tarn_safetensors *file, int index);

/* Fills in what the file says of tensor number `index`. */
TARN_API bool tarn_safetensors_info(const tarn_safetensors *file, int index, tarn_safetensors_entry *entry);

/* The number of the tensor of that name; -1, which is no error, when there is none. */
TARN_API int tarn_safetensors_find(const tarn_safetensors *file, const char *name);

/* The tensor of that name, on a device; it belongs to the open scope. A name that is not there and an element type that
 * tarn lacks are errors; so are elements that do not have their checksum, where the file has checksums. */
TARN_API tarn_tensor *tarn_safetensors_read(const tarn_safetensors *file, const char *name, tarn_device device);

/* Copies the tensor of that name into `tensor`, in place. Shapes must be equal; float dtypes are converted, others must
 * be equal too. */
TARN_API bool tarn_safetensors_read_into(const tarn_safetensors *file, const char *name, tarn_tensor *tensor);

/* The text that the file's metadata has for a key; NULL, which is no error, when there is none. Borrowed from the file.
 */
TARN_API const char *tarn_safetensors_metadata(const tarn_safetensors *file, const char *key);

/* How many keys the metadata has, and key and text number `index`; `key` and `value` may be NULL. Borrowed from the
 * file. */
TARN_API int tarn_safetensors_metadata_count(const tarn_safetensors *file);
TARN_API bool tarn_safetensors_metadata_at(const tarn_safetensors *file, int index, const char **key,
                                           const char **value);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct tarn_safetensors_writer tarn_safetensors_writer;

/* Begins a file. Nothing is written before tarn_safetensors_finish(). The caller owns the writer and ends it with that
 * or with tarn_safetensors_cancel(). */
TARN_API tarn_safetensors_writer *tarn_safetensors_create(const char *path);

/* Adds a tensor of any device, dtype and layout under a name. The writer holds it until the end: the elements written
 * are those it has then. */
TARN_API bool tarn_safetensors_add(tarn_safetensors_writer *writer, const char *name, tarn_tensor *tensor);

/* Adds a text to the file's metadata. Both are copied. */
TARN_API bool tarn_safetensors_add_metadata(tarn_safetensors_writer *writer, const char *key, const char *value);

/* Adds to the metadata an XXH64 checksum for each tensor and one for the header, computed as the file is written: the
 * keys "tarn.checksum" and "tarn.checksum.values". Readers of such a file refuse what is damaged and name it.
 * Everything that tarn itself saves has them. */
TARN_API bool tarn_safetensors_add_checksums(tarn_safetensors_writer *writer);

/* Writes the file and frees the writer, on failure too. The file appears whole or not at all: it is written beside its
 * place under another name, brought to the disk and renamed; a file that was there before stays until then. */
TARN_API bool tarn_safetensors_finish(tarn_safetensors_writer *writer);

/* Frees a writer without writing. NULL is allowed; works while an error is pending. */
TARN_API void tarn_safetensors_cancel(tarn_safetensors_writer *writer);

#ifdef __cplusplus
}
#endif
#endif

/* gguf.h: the element types of the format, and what its parts share. */
#ifndef TARN__GGUF_H
#define TARN__GGUF_H

#include <tarn/gguf.h>

#include "formats/tensor_bytes.h"

#define TARN__GGUF_ALIGNMENT 32 /* of elements, unless the metadata has another */
#define TARN__GGUF_MAX_ALIGNMENT 65536
#define TARN__GGUF_MAX_NAME 65535  /* the longest key or name, in bytes */
#define TARN__GGUF_SHOWN_BYTES 200 /* bytes of a name that an error shows */

/* An element type, by its number in files. */
typedef struct tarn__gguf_dtype {
    const char *name; /* NULL: the format has none of that number */
    int block_elements, block_bytes;
    tarn_dtype dtype; /* TARN_DTYPE_COUNT: tarn cannot load it */
} tarn__gguf_dtype;

#define TARN__GGUF_DTYPES 42
extern const tarn__gguf_dtype tarn__gguf_dtypes[TARN__GGUF_DTYPES];

/* The number of the row that holds a dtype of tarn's; -1: the format's files written here hold none. */
int tarn__gguf_dtype_of(tarn_dtype dtype);

/* ---- an open file ------------------------------------------------------------------------------------------------ */

/* The mapped bytes, shared with the tensors that lie in them. */
typedef struct tarn__gguf_map {
    _Atomic int references;
    tarn__map map;
} tarn__gguf_map;

typedef struct tarn__gguf_key {
    char *name; /* owned */
    tarn_gguf_type type, element;
    int64_t count;
    int64_t begin, end; /* its value's bytes, from the beginning of the file; a list's without its type and count */
    char *text;         /* of a text: a copy that ends in a zero byte; owned */
    size_t length;      /* of that */
    int64_t *texts;     /* of a list of texts: where each begins, by its length; owned */
} tarn__gguf_key;

typedef struct tarn__gguf_tensor {
    char *name; /* owned */
    int type;   /* row of tarn__gguf_dtypes */
    tarn_shape shape;
    int64_t begin, bytes; /* from the beginning of the file */
} tarn__gguf_tensor;

/* A name and the number of what has it: lists of these are sorted by name. */
typedef struct tarn__gguf_named {
    const char *name;
    int index;
} tarn__gguf_named;

struct tarn_gguf {
    char *path;
    tarn__gguf_map *map;
    const char *memory; /* the map's */
    int64_t size;
    int64_t alignment;
    tarn__gguf_key *key;
    tarn__gguf_tensor *tensor;
    tarn__gguf_named *key_named, *tensor_named;
    int keys, tensors;
};

/* The number of what has that name in a sorted list; -1: nothing. */
int tarn__gguf_find(const tarn__gguf_named *list, int count, const char *name);

void tarn__gguf_map_release(void *map);

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

/* Bytes of one value of a type of metadata; 0 for texts and lists, whose size is their own. */
int tarn__gguf_type_bytes(tarn_gguf_type type);

/* Adds a tensor whose elements `write` writes, in the file's order and exactly as many bytes as dtype and shape need.
 * `ctx` is borrowed until the end. */
bool tarn__gguf_add_streamed(tarn_gguf_writer *writer, const char *name, tarn_dtype dtype, tarn_shape shape,
                             tarn__write_fn write, void *ctx);

#endif

/* gguf.h: element types of GGUF, and the parts shared by its reader, queries and writer.
 *
 * An open file is immutable: threads may query it at the same time. Its map is counted by reference, since tensors that
 * are views of the map outlive the file. The file of a sharded model is its first shard, with the tensors of all. */
#ifndef TARN__GGUF_H
#define TARN__GGUF_H

#include <tarn/gguf.h>

#include "base/quant/quant.h"
#include "formats/tensor_bytes.h"

#define TARN__GGUF_ALIGNMENT 32 /* of tensor data, unless general.alignment says otherwise */
#define TARN__GGUF_MAX_ALIGNMENT 65536
#define TARN__GGUF_MAX_NAME 65535      /* bytes of a key or name */
#define TARN__GGUF_MAX_COUNT (1 << 20) /* keys or tensors: a sparse file costs nothing, records in memory do */
#define TARN__GGUF_SHOWN_BYTES 200     /* bytes of a name shown in errors */

/* An element type; its index in the table is its number in files. */
typedef struct tarn__gguf_dtype {
    const char *name;                /* NULL: unassigned */
    int block_elements, block_bytes; /* of a quant block; 1 and the element's size for unquantized types */
    tarn_dtype dtype;                /* TARN_DTYPE_COUNT: there is none for it */
    tarn__iquant iquant;             /* without a dtype: how it is dequantized; TARN__NO_IQUANT: tarn cannot load it */
} tarn__gguf_dtype;

#define TARN__GGUF_DTYPES 42
extern const tarn__gguf_dtype tarn__gguf_dtypes[TARN__GGUF_DTYPES];

/* Types that tarn_gguf_tensor() has, for errors. */
#define TARN__GGUF_SUPPORTED \
    "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS and, dequantized, IQ1_S IQ1_M " \
    "IQ2_XXS " \
    "IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 MXFP4 NVFP4"

/* The number of a dtype in GGUF; -1: tarn does not write it. */
int tarn__gguf_dtype_of(tarn_dtype dtype);

/* ---- an open file ------------------------------------------------------------------------------------------------ */

/* The mapped file, shared with the tensors that are views of it. */
typedef struct tarn__gguf_map {
    _Atomic int references;
    tarn__map map;
} tarn__gguf_map;

/* A key of the metadata. Numbers and bools are decoded from the map when they are asked for. */
typedef struct tarn__gguf_key {
    char *name;                   /* owned */
    tarn_gguf_type type, element; /* element: of an array, else as type */
    int64_t count;                /* of an array, else 1 */
    int64_t begin, end;           /* bytes of the value in the file; an array's without type and count */
    char *text;                   /* of a string: a terminated copy; owned */
    size_t length;                /* of that */
    int64_t *texts;               /* of an array of strings: offset of each one's length field; owned */
} tarn__gguf_key;

/* A tensor's description. */
typedef struct tarn__gguf_tensor {
    char *name;           /* owned */
    int type;             /* row of tarn__gguf_dtypes */
    tarn_shape shape;     /* row-major: the file lists the innermost size first */
    int64_t begin, bytes; /* offset in its file: */
    const tarn_gguf *file;
} tarn__gguf_tensor;

/* A name and the index of its key or tensor. Arrays of these are sorted by name, for bsearch(). */
typedef struct tarn__gguf_named {
    const char *name;
    int index;
} tarn__gguf_named;

struct tarn_gguf {
    char *path;                                 /* for errors; owned */
    tarn__gguf_map *map;                        /* one reference */
    const char *memory;                         /* of the map */
    int64_t size;                               /* of the file */
    int64_t alignment;                          /* of the data */
    tarn__gguf_key *key;                        /* [keys], in file order; owned */
    tarn__gguf_tensor *tensor;                  /* [tensors], in file order; owned */
    tarn__gguf_named *key_named, *tensor_named; /* sorted by name; owned */
    int keys, tensors;
    tarn_gguf **shard; /* [shards], those after the first, in order; owned; `tensor` has their tensors */
    int shards;
};

/* The format of a tensor that has no dtype but can be dequantized; TARN__NO_IQUANT for all others. */
tarn__iquant tarn__gguf_iquant(const tarn_gguf *file, int index);

/* The elements of a tensor in the mapped file; borrowed until the file is closed. */
const char *tarn__gguf_elements(const tarn_gguf *file, int index);

/* The index of a name in a sorted array; -1: not found. */
int tarn__gguf_find(const tarn__gguf_named *list, int count, const char *name);

/* Drops a reference to the map; the last one unmaps the file. The signature is that of tarn__storage_borrow()'s
 * release. */
void tarn__gguf_map_release(void *map);

/* ---- shards ------------------------------------------------------------------------------------------------------ */

#define TARN__GGUF_SPLIT_NO "split.no"                 /* from 0 */
#define TARN__GGUF_SPLIT_COUNT "split.count"           /* 0 or 1: not sharded */
#define TARN__GGUF_SPLIT_TENSORS "split.tensors.count" /* of all shards */

/* Opens one file and validates its header, whether it is a shard or not. The caller owns it. NULL with an error. */
tarn_gguf *tarn__gguf_open_file(const char *path);

/* Builds file->tensor_named anew. False with an error that names the file, or both, of a duplicate name. */
bool tarn__gguf_index_tensors(tarn_gguf *file);

/* Opens the other shards of *file, if it is one, and gathers their tensors; *file is the first shard then, another one
 * is closed. False with an error. */
bool tarn__gguf_open_shards(tarn_gguf **file);

/* True for a key that describes a shard of a sharded file. */
bool tarn__gguf_is_split_key(const tarn_gguf *file, const char *key);

/* ---- reading and writing ----------------------------------------------------------------------------------------- */

/* Bytes of a metadata value; 0 for strings and arrays, whose size varies. */
int tarn__gguf_type_bytes(tarn_gguf_type type);

/* Adds a tensor whose elements `write` writes when its turn comes: exactly as many bytes as dtype and shape need. `ctx`
 * is borrowed until tarn_gguf_finish() or tarn_gguf_cancel(). */
bool tarn__gguf_add_streamed(tarn_gguf_writer *writer, const char *name, tarn_dtype dtype, tarn_shape shape,
                             tarn__write_fn write, void *ctx);

#endif

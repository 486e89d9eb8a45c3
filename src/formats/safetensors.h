/* safetensors.h: element types of safetensors, for its reader and its writer. */
#ifndef TARN__SAFETENSORS_H
#define TARN__SAFETENSORS_H

#include <tarn/safetensors.h>

#include "formats/tensor_bytes.h"

/* The maximum header length of the reference implementation. */
#define TARN__SAFETENSORS_MAX_HEADER 100000000

/* Rows are in the reference implementation's order: its writer puts tensors of later rows first. */
typedef struct tarn__safetensors_type {
    const char *name; /* in the header */
    int bits;         /* per element; F4 and F6 pack several into bytes */
    tarn_dtype dtype; /* TARN_DTYPE_COUNT: tarn cannot load it */
} tarn__safetensors_type;

#define TARN__SAFETENSORS_TYPES 22
extern const tarn__safetensors_type tarn__safetensors_types[TARN__SAFETENSORS_TYPES];

/* The elements of a tensor in the mapped file; borrowed until the file is closed. Checksums are not verified. */
const void *tarn__safetensors_data(const tarn_safetensors *file, int index);

/* Verifies the checksums of all tensors, in parallel; true for a file without any. False with an error that names
 * tensor and file. Reading a tensor verifies that tensor alone: this is for readers that must know before they change
 * anything, or that use tarn__safetensors_data(). */
bool tarn__safetensors_verify(const char *function, const tarn_safetensors *file);

/* Adds a tensor whose elements `write` writes when its turn comes: exactly as many bytes as dtype and shape need. `ctx`
 * is borrowed until tarn_safetensors_finish() or tarn_safetensors_cancel(). */
bool tarn__safetensors_add_streamed(tarn_safetensors_writer *writer, const char *name, tarn_dtype dtype,
                                    tarn_shape shape, tarn__write_fn write, void *ctx);

/* ---- files of several ranks -------------------------------------------------------------------------------------- */

/* The elements of a tensor that one rank has. */
typedef struct tarn__tensor_part {
    tarn_dtype dtype;
    tarn_shape shape;      /* of the whole tensor */
    tarn_tensor *elements; /* the own ones, contiguous; NULL: none */
    int64_t begin;         /* of them in the tensor */
    int previous, next;    /* ranks that have the elements before and after the own ones; -1: none */
    bool is_whole;         /* every rank has all elements: rank 0 writes them */
} tarn__tensor_part;

/* How ranks exchange bytes; formats has no communicator. */
typedef struct tarn__file_ranks {
    void *ctx;
    int rank, size;
    bool (*send)(void *ctx, int to, const void *memory, size_t bytes);
    bool (*receive)(void *ctx, int from, void *memory, size_t bytes);
    bool (*broadcast)(void *ctx, void *memory, size_t bytes); /* of rank 0 */
} tarn__file_ranks;

/* Adds a tensor whose elements the ranks of tarn__safetensors_finish_ranks() have; a whole one is as
 * tarn_safetensors_add(). The elements are retained. */
bool tarn__safetensors_add_part(tarn_safetensors_writer *writer, const char *name, const tarn__tensor_part *part);

/* tarn_safetensors_finish() on all ranks, which have added the same tensors in parts: each rank writes its ranges of
 * one file, and rank 0 all other tensors. Rank 0 renames the file once the ranges of all are on disk; the file is that
 * of a single rank, byte for byte. Frees the writer in any case. */
bool tarn__safetensors_finish_ranks(tarn_safetensors_writer *writer, const tarn__file_ranks *ranks);

/* Reads the own elements of a tensor; shape and dtype have been checked. */
bool tarn__safetensors_read_part(const tarn_safetensors *file, const char *name, const tarn__tensor_part *part);

#endif

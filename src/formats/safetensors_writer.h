/* safetensors_writer.h: a file being written, for the parts of the writer. */
#ifndef TARN__SAFETENSORS_WRITER_H
#define TARN__SAFETENSORS_WRITER_H

#include "formats/safetensors_file.h"

/* A tensor to be written: one that exists, or a callback that writes its elements. */
typedef struct tarn__safetensors_item {
    char *name;       /* owned */
    tarn_dtype dtype; /* never quantized: the format has no such type */
    tarn_shape shape;
    tarn_tensor *tensor; /* retained; or NULL: */
    tarn__write_fn write;
    void *ctx;
    /* of a part: `tensor` has the elements from `begin` on, NULL: none, and these ranks those beside them */
    bool is_part;
    int64_t begin;
    int previous, next;
} tarn__safetensors_item;

struct tarn_safetensors_writer {
    char *path;                   /* owned */
    tarn__safetensors_item *item; /* [count]; sorted by tarn__safetensors_lay_out() */
    int count, capacity;
    json_t *names;    /* a set of names: an object with their keys */
    json_t *metadata; /* an object of strings */
    bool has_sums;    /* add checksums */
};

/* The bytes before the data: 8 bytes of length, the header, its padding. */
typedef struct tarn__safetensors_head {
    char *bytes; /* owned */
    size_t length;
    size_t values; /* offset of the checksums; 0: none */
} tarn__safetensors_head;

/* Sorts the items and builds the header, with zeros for checksums; the caller releases its bytes. */
bool tarn__safetensors_lay_out(tarn_safetensors_writer *writer, tarn__safetensors_head *head);

/* Bytes of a whole tensor's elements. */
int64_t tarn__safetensors_item_bytes(const tarn__safetensors_item *item);

/* Computes the header's own checksum and writes the header again. No-op without checksums. */
bool tarn__safetensors_write_sums(tarn__output *output, tarn__safetensors_head *head);

#endif

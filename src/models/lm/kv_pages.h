/* kv_pages.h: the paged KV cache: keys and values of many sequences in pages of TARN__KV_PAGE tokens, and a forward
 * pass over a packed batch of them. Which page holds what is the caller's (generate/engine/page_pool.h). */
#ifndef TARN__KV_PAGES_H
#define TARN__KV_PAGES_H

#include "models/lm/device_map.h"
#include "ops/internal.h"

typedef struct tarn__kv_pages_shape {
    int64_t layers, pages, heads, head_dim;
    tarn_dtype dtype;     /* of keys and values; TARN_U8: quantized, with scales */
    tarn__device_map map; /* of the layers: pages are on the device of their layer, with the same numbers on all */
} tarn__kv_pages_shape;

typedef struct tarn__kv_pages {
    tarn__kv_pages_shape shape;
    tarn__kv_page_rows *rows; /* [2 · layers]: keys of all layers, then their values; owned */
} tarn__kv_pages;

/* Where the tokens of a batch are, on one device. Tensors are borrowed for the forward pass. */
typedef struct tarn__page_index {
    tarn__packed_sequences sequences; /* lengths include the batch's own tokens */
    tarn_tensor *slots;               /* i64 [T]: where their keys and values go */
    tarn_tensor *positions;           /* i64 [1, T] */
} tarn__page_index;

/* A packed batch: T tokens of some sequences, those of one adjacent and in order. */
typedef struct tarn__page_batch {
    const tarn__kv_pages *pages;
    const tarn__page_index *index;            /* the same on each device of the pages' map */
    int64_t context;                          /* maximum length of a sequence; some RoPE scalings depend on it */
    const struct tarn__lora_groups *adapters; /* of rows (nn/lora_groups.h); NULL: none */
} tarn__page_batch;

/* Bytes of one page in all layers. */
int64_t tarn__kv_pages_page_bytes(const tarn__kv_pages_shape *shape);

/* Allocates the pages, zeroed. False with an error; then there is nothing to release. Closing all-zero pages is
 * allowed. */
bool tarn__kv_pages_open(const char *function, tarn__kv_pages *pages, const tarn__kv_pages_shape *shape);
void tarn__kv_pages_close(tarn__kv_pages *pages);

/* Copy one page of all layers to and from host memory of tarn__kv_pages_page_bytes(). False with an error. */
bool tarn__kv_pages_read(const tarn__kv_pages *pages, int32_t page, void *host);
bool tarn__kv_pages_write(const tarn__kv_pages *pages, int32_t page, void *host);

/* Rotates queries [1, T, H, D] and keys [1, T, KV, D] of a layer, writes keys and values to their slots, and attends:
 * [1, T, H · D]. Borrows all three; the result belongs to the open scope. */
tarn_tensor *tarn__kv_pages_attend(const tarn__page_batch *batch, int64_t layer, tarn_tensor *queries,
                                   tarn_tensor *keys, tarn_tensor *values, const tarn__decode_attention_options *how);

#endif

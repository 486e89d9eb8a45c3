/* decoder.h: what a decoder is. */
#ifndef TARN__DECODER_H
#define TARN__DECODER_H

#include <tarn/generate.h>

#include "generate/captured.h"
#include "models/lm/arch.h"

struct tarn_decoder {
    const tarn__arch *kind;
    tarn_module *model; /* borrowed */
    tarn__model_info info;
    int64_t batch, prefill_chunk;
    tarn__kv_cache cache;
    tarn__decode_graph captured;
};

/* A step of the model, out of training mode, whatever the model's is: nothing is dropped out of what is written. Logits
 * in the open scope; NULL with an error. */
tarn_tensor *tarn__decoder_forward(tarn_decoder *decoder, tarn_tensor *tokens);

/* Raises that the cache of a decoder found no room: how much is missing, and what would fit. Replaces the pending
 * error, which says where memory ran out. */
bool tarn__decoder_out_of_memory(const char *function, const tarn__kv_cache_shape *shape, const tarn_module *model,
                                 const tarn__model_info *info);

#endif

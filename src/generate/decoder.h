/* decoder.h: what a decoder is. */
#ifndef TARN__DECODER_H
#define TARN__DECODER_H

#include <tarn/generate.h>

#include "models/kinds.h"

struct tarn_decoder {
    const tarn__model_kind *kind;
    tarn_module *model; /* borrowed */
    tarn__model_facts facts;
    int64_t batch;
    tarn__cache cache;
};

#endif

/* kinds.h: the kinds of language models, by the model_type of their config.json. Folders and decoders know a model by its row here. */
#ifndef TARN__KINDS_H
#define TARN__KINDS_H

#include <tarn/model.h>

#include "formats/document.h"
#include "models/cache.h"
#include "nn/module.h"

/* What whoever decodes must know of a model. */
typedef struct tarn__model_facts {
    int64_t vocab, context, layers, kv_heads, head_width;
    tarn_dtype dtype;
    tarn_device device;
    bool has_end; /* there is a token that ends a text */
    int64_t end;
} tarn__model_facts;

typedef struct tarn__model_kind {
    const char *name;        /* its model_type */
    tarn_forward_fn forward; /* that its modules have, and no others */

    /* A model as config.json says, its parameters without values. The caller owns it. NULL with an error. */
    tarn_module *(*make)(const char *function, const tarn__document *config, tarn_dtype dtype, tarn_device device);

    /* Reads the parameters from a safetensors file. */
    bool (*load)(const char *function, tarn_module *model, const char *path);

    /* Writes what make() reads. */
    bool (*describe)(const tarn_module *model, tarn__document *config);

    void (*facts)(const tarn_module *model, tarn__model_facts *facts);

    /* Logits [B, vocab] of what follows the last of the tokens [B, T], which come after those in the cache, within a step of it: their positions are
     * tarn__cache_positions(), and what attends is tarn__cache_attend(). They fit. */
    tarn_tensor *(*step)(tarn_module *model, tarn_tensor *tokens, tarn__cache *cache);
} tarn__model_kind;

extern const tarn__model_kind tarn__gpt2_kind;

/* The row of a module, and the row of a name. NULL with an error. */
const tarn__model_kind *tarn__model_kind_of(const char *function, const tarn_module *module);
const tarn__model_kind *tarn__model_kind_named(const char *function, const char *path, const char *name);

#endif

/* memory_fit.c: bytes of a model's weights by its file header, and the error for weights that do not fit a device. */
#include "models/hf/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/dtype.h"
#include "base/error.h"

/* Layer number of a tensor by its name, in any of the files; -1: none. */
static int64_t layer_of(const char *name)
{
    static const char *const prefixes[] = {"model.layers.", "transformer.h.", "h.", "blk."};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0)
            return strtoll(name + length, NULL, 10);
    }
    return -1;
}

/* Sums over the tensors of a file. */
typedef struct counting {
    tarn__weight_bytes sum;
    int64_t in_layers; /* bytes of all layers */
} counting;

/* Counts one tensor. */
static void add(counting *w, const char *name, int64_t bytes)
{
    int64_t layer = layer_of(name);
    if (layer < 0)
        w->sum.other += bytes;
    else
        w->in_layers += bytes;
    w->sum.layers = layer + 1 > w->sum.layers ? layer + 1 : w->sum.layers;
}

/* The sums, with the average of a layer rounded up. */
static tarn__weight_bytes total(const counting *w)
{
    /* Layers of one model differ little, so that an average suffices for the advice. */
    tarn__weight_bytes sum = w->sum;
    sum.layer = sum.layers > 0 ? (w->in_layers + sum.layers - 1) / sum.layers : 0;
    return sum;
}

static int64_t elements(const tarn_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= shape->size[i];
    return count;
}

/* safetensors has no quantized types: all tensors become `dtype`. */
tarn__weight_bytes tarn__safetensors_weight_bytes(const tarn_safetensors *file, tarn_dtype dtype,
                                                  const char *const *ignored)
{
    counting w = {{0}, 0};
    tarn_safetensors_entry e;
    for (int i = 0; i < tarn_safetensors_count(file); i++)
        if (tarn_safetensors_info(file, i, &e) && !tarn__has_ending(e.name, ignored))
            add(&w, e.name, elements(&e.shape) * (int64_t)tarn_dtype_size(dtype));
    return total(&w);
}

/* Quantized matrices stay as they are; all else is converted to `dtype`. */
tarn__weight_bytes tarn__gguf_weight_bytes(const tarn_gguf *file, tarn_dtype dtype)
{
    counting w = {{0}, 0};
    tarn_gguf_entry e;
    for (int i = 0; i < tarn_gguf_count(file); i++)
        if (tarn_gguf_info(file, i, &e)) {
            bool is_quantized = e.dtype != TARN_DTYPE_COUNT && tarn__is_quantized(e.dtype) && e.shape.rank > 1;
            add(&w, e.name, is_quantized ? (int64_t)e.bytes : elements(&e.shape) * (int64_t)tarn_dtype_size(dtype));
        }
    return total(&w);
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* On the CPU, or if weights are not in layers, the pending error is all there is to say. */
void tarn__model_out_of_memory(const char *function, const tarn__weight_bytes *b, const tarn__device_map *map)
{
    tarn_device_info info = {0};
    char advice[160], device[32];
    tarn__error_record why;
    tarn__error_save(&why);
    tarn_empty_cache(map->device); /* what was allocated of the model is there */
    bool known = tarn_device_query(map->device, &info) && info.memory_total > 0;
    tarn__error_restore(&why);
    int64_t layers = map->layers ? map->layers : b->layers, needed = b->other + layers * b->layer;
    if (!known || needed <= info.memory_free || b->layer == 0 || tarn_device_equal(map->device, tarn_device_cpu()))
        return; /* the pending error says all that is known */
    int64_t fits = info.memory_free > b->other ? (info.memory_free - b->other) / b->layer : 0;
    if (fits > 0)
        snprintf(advice, sizeof(advice),
                 "%lld of %lld layers would fit (.device_layers, --gpu-layers) and leave %.1f MiB for the KV cache; "
                 "fewer leave more",
                 (long long)fits, (long long)b->layers, mebibytes(info.memory_free - b->other - fits * b->layer));
    else
        snprintf(advice, sizeof(advice),
                 "none of its %lld layers would fit next to the %.1f MiB of other weights; run it on the CPU",
                 (long long)b->layers, mebibytes(b->other));
    tarn_clear_error();
    tarn__raise(TARN_ERROR_MEMORY, "%s: the weights, with %lld layers, take %.1f MiB, %.1f more than %s has free; %s",
                function, (long long)layers, mebibytes(needed), mebibytes(needed - info.memory_free),
                tarn_device_name(map->device, device, sizeof(device)), advice);
}

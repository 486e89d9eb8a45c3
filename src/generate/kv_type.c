/* kv_type.c: names of KV cache types, and the error for a KV cache that does not fit in memory. */
#include <stdio.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "generate/decoder.h"

static const char *const names[] = {"model", "f32", "bf16", "f16", "q8_0"};
#define NAMES ((int)(sizeof(names) / sizeof(names[0])))

const char *tarn_kv_type_name(tarn_kv_type kv_type)
{
    if ((unsigned)kv_type < (unsigned)NAMES)
        return names[kv_type];
    tarn__raise(TARN_ERROR_ARGUMENT, "kv_type_name: %d is not a tarn_kv_type", (int)kv_type);
    return NULL;
}

bool tarn_kv_type_parse(const char *text, tarn_kv_type *kv_type)
{
    if (tarn_failed())
        return false;
    for (int i = 0; text && kv_type && i < NAMES; i++)
        if (strcmp(text, names[i]) == 0) {
            *kv_type = (tarn_kv_type)i;
            return true;
        }
    if (!text || !kv_type)
        return tarn__raise(TARN_ERROR_ARGUMENT, "kv_type_parse: the %s is NULL", text ? "result" : "text");
    return tarn__raise(TARN_ERROR_ARGUMENT, "kv_type_parse: '%.32s'; it must be model, f32, bf16, f16 or q8_0", text);
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Layers on a device of the map. */
static int64_t layers_on(const tarn__kv_cache_shape *shape, int index)
{
    return shape->map.layers[index];
}

/* Bytes on a device of the map per token, over all sequences. */
static int64_t bytes_on(const tarn__kv_cache_shape *shape, int index)
{
    return tarn__kv_cache_token_bytes(shape, layers_on(shape, index)) * shape->batch;
}

/* Number of layers that could stay on the device so that their keys and values fit: offloading a layer frees its
 * weights as well. 0: none. */
static int64_t layers_that_fit(const tarn__kv_cache_shape *shape, const tarn_module *model, int64_t free)
{
    const tarn_module *layer = tarn__model_layers(model)->child[0];
    int64_t layers = layers_on(shape, 0), weights = 0, keys = bytes_on(shape, 0) / layers * shape->capacity;
    for (int i = 0; i < tarn_module_parameter_count(layer); i++)
        weights += tarn_bytes(tarn_module_parameter(layer, i));
    for (int i = 0; i < tarn_module_buffer_count(layer); i++) /* quantized weights */
        weights += tarn_bytes(tarn_module_buffer(layer, i));
    while (layers > 0 && layers * keys > free + (layers_on(shape, 0) - layers) * weights)
        layers--;
    return layers;
}

/* True if the layers of a device could be offloaded to the CPU: there is no other device. */
static bool can_offload(const tarn__kv_cache_shape *shape)
{
    return !tarn__is_cpu(shape->map.device[0]) &&
           (shape->map.count == 1 || (shape->map.count == 2 && tarn__is_cpu(shape->map.device[1])));
}

/* "q8_0 would hold 2048 tokens; …": settings that fit `free` bytes of a device of the map. */
static void advise(char *text, size_t size, const tarn__kv_cache_shape *shape, int index, const tarn_module *model,
                   int64_t free)
{
    static const tarn_dtype types[] = {TARN_BF16, TARN_U8};
    size_t used = (size_t)snprintf(text, size, ".context = %lld would fit", (long long)(free / bytes_on(shape, index)));
    for (int i = 0; i < 2; i++) {
        tarn__kv_cache_shape other = *shape;
        other.dtype = types[i];
        int64_t each = bytes_on(&other, index), fits = free / each;
        if (each < bytes_on(shape, index) && used < size)
            used += (size_t)snprintf(text + used, size - used, "; with .kv_type = %s %s%lld tokens would",
                                     i ? "q8_0" : "bf16 or f16", fits >= shape->capacity ? "all " : "",
                                     (long long)(fits >= shape->capacity ? shape->capacity : fits));
    }
    int64_t layers = can_offload(shape) ? layers_that_fit(shape, model, free) : 0;
    if (layers > 0 && used < size)
        snprintf(text + used, size - used,
                 "; with %lld of %lld layers on the device (.device_layers, --gpu-layers) all would", (long long)layers,
                 (long long)shape->layers);
}

/* Raises for one device of the map. False, with the pending error, if its free memory is unknown or would suffice. */
static bool explain(const char *function, const tarn__kv_cache_shape *shape, int index, const tarn_module *model,
                    const tarn__model_info *model_info)
{
    tarn_device_info info = {0};
    char advice[384], device[32];
    tarn__error_record why;
    tarn__error_save(&why);
    tarn_empty_cache(shape->map.device[index]); /* what was allocated of the cache is there */
    bool known = tarn_device_query(shape->map.device[index], &info) && info.memory_total > 0;
    tarn__error_restore(&why);
    int64_t needed = bytes_on(shape, index) * shape->capacity;
    if (!known || needed <= info.memory_free)
        return false;
    tarn_clear_error();
    advise(advice, sizeof(advice), shape, index, model, info.memory_free);
    tarn__raise(
        TARN_ERROR_MEMORY,
        "%s: a KV cache of %lld tokens takes %.1f MiB, %.1f more than %s has free; %s (the model's context is %lld)",
        function, (long long)(shape->capacity * shape->batch), mebibytes(needed), mebibytes(needed - info.memory_free),
        tarn_device_name(shape->map.device[index], device, sizeof(device)), advice, (long long)model_info->context);
    return true;
}

/* Names the first device that lacks memory. */
bool tarn__decoder_out_of_memory(const char *function, const tarn__kv_cache_shape *shape, const tarn_module *model,
                                 const tarn__model_info *model_info)
{
    for (int i = 0; i < shape->map.count; i++)
        if (layers_on(shape, i) > 0 && explain(function, shape, i, model, model_info))
            break;
    return false; /* else the pending error says all that is known */
}

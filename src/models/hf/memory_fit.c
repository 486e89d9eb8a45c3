/* memory_fit.c: bytes of a model's weights by its file header, and the error for weights that do not fit a device. */
#include "models/hf/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/dtype.h"
#include "base/error.h"
#include "core/device/device.h"
#include "models/hf/weights.h"

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

/* Counts one tensor. */
static void add(tarn__weight_bytes *sum, const char *name, int64_t bytes)
{
    int64_t layer = layer_of(name);
    if (layer < 0 || layer >= TARN_LM_MAX_LAYERS) {
        sum->other += bytes;
        return;
    }
    sum->each[layer] += bytes;
    sum->layers = layer + 1 > sum->layers ? layer + 1 : sum->layers;
}

/* Sets the average of a layer, rounded up. */
static void average(tarn__weight_bytes *sum)
{
    int64_t all = 0;
    for (int64_t i = 0; i < sum->layers; i++)
        all += sum->each[i];
    sum->layer = sum->layers > 0 ? (all + sum->layers - 1) / sum->layers : 0;
}

static int64_t bytes_of(tarn_dtype dtype, int64_t elements)
{
    return elements / tarn_dtype_block_size(dtype) * (int64_t)tarn_dtype_size(dtype);
}

static int64_t elements(const tarn_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= shape->size[i];
    return count;
}

/* dtype of a tensor of safetensors once it is loaded: only matrices in layers are quantized, by rows of inputs. */
static tarn_dtype loaded_dtype(const tarn_safetensors_entry *e, const tarn__arch *arch, tarn_dtype dtype,
                               tarn_dtype quantize)
{
    if (!tarn__is_quantized(quantize) || e->shape.rank != 2 || layer_of(e->name) < 0)
        return dtype;
    return tarn__quant_type_for_row(e->shape.size[arch->linear == TARN__LINEAR_IN_OUT ? 0 : 1], quantize, dtype);
}

/* safetensors has no quantized types. */
tarn__weight_bytes tarn__safetensors_weight_bytes(const tarn_safetensors *file, const tarn__arch *arch,
                                                  tarn_dtype dtype, tarn_dtype quantize)
{
    tarn__weight_bytes sum = {0};
    tarn_safetensors_entry e;
    for (int i = 0; i < tarn_safetensors_count(file); i++)
        if (tarn_safetensors_info(file, i, &e) && !tarn__has_ending(e.name, arch->names->ignored))
            add(&sum, e.name, bytes_of(loaded_dtype(&e, arch, dtype, quantize), elements(&e.shape)));
    average(&sum);
    return sum;
}

/* Quantized matrices stay as they are; all else is converted to `dtype`. */
tarn__weight_bytes tarn__gguf_weight_bytes(const tarn_gguf *file, tarn_dtype dtype)
{
    tarn__weight_bytes sum = {0};
    tarn_gguf_entry e;
    for (int i = 0; i < tarn_gguf_count(file); i++)
        if (tarn_gguf_info(file, i, &e)) {
            bool is_quantized = e.dtype != TARN_DTYPE_COUNT && tarn__is_quantized(e.dtype) && e.shape.rank > 1;
            add(&sum, e.name, is_quantized ? (int64_t)e.bytes : bytes_of(dtype, elements(&e.shape)));
        }
    average(&sum);
    return sum;
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* "mirror:0 needs 12.0 MiB of 8.0 MiB free": appends one device of a map. Returns whether it is known to lack memory.
 */
static bool append_need(char *text, size_t size, const tarn__weight_bytes *b, const tarn__device_map *map, int index)
{
    tarn_device_info info = {0};
    char device[32];
    int64_t needed = index == 0 ? b->other : 0;
    for (int64_t i = 0; i < b->layers; i++)
        needed += tarn__device_map_index(map, i) == index ? b->each[i] : 0;
    tarn_empty_cache(map->device[index]); /* what was allocated of the model is there */
    bool known = tarn_device_query(map->device[index], &info) && info.memory_total > 0;
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s needs %.1f MiB of %.1f MiB free", used ? ", " : "",
             tarn_device_name(map->device[index], device, sizeof(device)), mebibytes(needed),
             mebibytes(info.memory_free));
    return known && needed > info.memory_free;
}

/* Of a model on several devices: what each needs and has. */
static void explain_split(const char *function, const tarn__weight_bytes *b, const tarn__device_map *map)
{
    char needs[TARN_SPLIT_MAX_DEVICES * 80] = "";
    bool is_short = false;
    tarn__error_record why;
    tarn__error_save(&why);
    for (int i = 0; i < map->count; i++)
        is_short |= append_need(needs, sizeof(needs), b, map, i);
    tarn__error_restore(&why);
    if (!is_short)
        return; /* the pending error says all that is known */
    tarn_clear_error();
    tarn__raise(TARN_ERROR_MEMORY, "%s: the weights do not fit: %s", function, needs);
}

/* On the CPU, or if weights are not in layers, the pending error is all there is to say. */
void tarn__model_out_of_memory(const char *function, const tarn__weight_bytes *b, const tarn__device_map *map)
{
    tarn_device_info info = {0};
    char advice[160], device[32];
    tarn__error_record why;
    if (map->is_whole) {
        explain_split(function, b, map);
        return;
    }
    tarn__error_save(&why);
    tarn_empty_cache(map->device[0]); /* what was allocated of the model is there */
    bool known = tarn_device_query(map->device[0], &info) && info.memory_total > 0;
    tarn__error_restore(&why);
    int64_t layers = map->count > 1 ? map->layers[0] : b->layers, needed = b->other + layers * b->layer;
    if (!known || needed <= info.memory_free || b->layer == 0 || tarn__is_cpu(map->device[0]))
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
                tarn_device_name(map->device[0], device, sizeof(device)), advice);
}

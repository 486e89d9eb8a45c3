/* split_plan.c: which layers of a language model go to which of several devices: tarn_model_plan_split().
 *
 * Weights are counted from the headers of the files, the KV cache from the configuration; what a forward pass needs
 * beside them is not. */
#include <stdio.h>
#include <string.h>
#include <tarn/generate.h>
#include <tarn/profile.h>

#include "core/device/device.h"
#include "models/hf/hf.h"
#include "models/lm/kv_cache.h"

static const char *const function = "model_plan_split";

/* What is planned with. */
typedef struct planner {
    tarn_model_split_options options;
    tarn_lm_config config;
    tarn__weight_bytes weights;
    int64_t kv_layer; /* bytes of the KV cache per layer */
} planner;

static bool check_devices(const tarn_device *devices, int count)
{
    char name[32];
    if (!devices || count < 1 || count > TARN_SPLIT_MAX_DEVICES)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s; expected 1 to %d of them", function,
                           devices ? "the number of devices is out of range" : "the devices are NULL",
                           TARN_SPLIT_MAX_DEVICES);
    for (int i = 0; i < count; i++) {
        if (!tarn__backend_of(devices[i], function))
            return false;
        for (int k = 0; k < i; k++)
            if (tarn_device_equal(devices[i], devices[k]))
                return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is given twice; name each device once", function,
                                   tarn_device_name(devices[i], name, sizeof(name)));
    }
    return true;
}

static bool check_options(const tarn_model_split_options *o, int count)
{
    double sum = 0;
    if (o->context < 0 || o->sequences < 0 || o->kv_bytes < 0 || o->kv_tokens < -1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is negative; expected 0 or more", function,
                           o->context < 0     ? ".context"
                           : o->sequences < 0 ? ".sequences"
                           : o->kv_bytes < 0  ? ".kv_bytes"
                                              : ".kv_tokens");
    for (int i = 0; o->tensor_split && i < count; i++) {
        if (!(o->tensor_split[i] >= 0 && o->tensor_split[i] <= 1e6))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .tensor_split[%d] is %g; it must be from 0 to 1000000",
                               function, i, o->tensor_split[i]);
        sum += o->tensor_split[i];
    }
    return !o->tensor_split || sum > 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .tensor_split has only zeros; one device at least needs layers",
                       function);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* dtype of the cached keys and values; TARN_U8: quantized rows. */
static tarn_dtype cached_dtype(tarn_kv_type kv_type, tarn_dtype of_model)
{
    static const tarn_dtype dtypes[] = {
        [TARN_KV_F32] = TARN_F32, [TARN_KV_BF16] = TARN_BF16, [TARN_KV_F16] = TARN_F16, [TARN_KV_Q8_0] = TARN_U8};
    return kv_type == TARN_KV_MODEL ? of_model : dtypes[kv_type];
}

/* Bytes of the KV cache per layer. */
static int64_t kv_layer_bytes(const planner *p)
{
    const tarn_model_split_options *o = &p->options;
    const tarn_lm_config *c = &p->config;
    if (o->kv_tokens < 0)
        return 0;
    if (o->kv_bytes > 0)
        return (o->kv_bytes + c->layers - 1) / c->layers;
    const tarn__kv_cache_shape shape = {
        .heads = c->kv_heads, .head_dim = c->head_dim, .dtype = cached_dtype(o->kv_type, c->dtype)};
    int64_t context = o->context > 0 && o->context < c->context ? o->context : c->context;
    int64_t tokens = context * (o->sequences > 0 ? o->sequences : 1);
    if (o->kv_tokens > 0 && tokens > o->kv_tokens)
        tokens = o->kv_tokens > context ? o->kv_tokens : context;
    return tokens * tarn__kv_cache_token_bytes(&shape, 1);
}

/* Free memory of a device, the pool's cache included; what is not known is taken from its size. 0: unknown. */
static int64_t free_of(tarn_device device)
{
    tarn_device_info info = {0};
    if (!tarn_device_query(device, &info))
        return 0;
    return info.memory_free > 0 ? info.memory_free + tarn_memory_of(device).cached : info.memory_total;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Fills in the free memory, and partitions the layers. */
static bool partition(const planner *p, tarn_model_split *split)
{
    int64_t bytes[TARN_LM_MAX_LAYERS];
    char name[32];
    const double *shares = p->options.tensor_split;
    tarn__partition d = {
        .layers = p->config.layers, .other = shares ? 0 : p->weights.other, .bytes = bytes, .count = split->count};
    for (int64_t i = 0; i < d.layers; i++)
        bytes[i] = shares ? 1 : p->weights.each[i] + p->kv_layer;
    for (int i = 0; i < d.count; i++) {
        split->free_bytes[i] = free_of(split->device[i]);
        d.is_host[i] = !shares && tarn__is_cpu(split->device[i]);
        d.weight[i] = shares ? shares[i] : (double)split->free_bytes[i];
        if (!shares && split->free_bytes[i] == 0)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: the free memory of %s is unknown; set .tensor_split (--tensor-split)", function,
                               tarn_device_name(split->device[i], name, sizeof(name)));
    }
    return !tarn_failed() && tarn__partition_layers(function, &d, split->layers);
}

/* Bytes of each device by its layers. */
static void count_bytes(const planner *p, tarn_model_split *split)
{
    int64_t layer = 0;
    split->weight_bytes[0] = p->weights.other;
    for (int i = 0; i < split->count; i++) {
        split->kv_bytes[i] = split->layers[i] * p->kv_layer;
        for (int64_t end = layer + split->layers[i]; layer < end; layer++)
            split->weight_bytes[i] += p->weights.each[layer];
    }
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Raises where a device needs more than is free, with the figures of all. */
static bool check_fit(const tarn_model_split *split)
{
    char text[TARN_SPLIT_MAX_DEVICES * 112] = "", name[32];
    size_t used = 0;
    bool fits = true;
    for (int i = 0; i < split->count; i++) {
        int64_t needed = split->weight_bytes[i] + split->kv_bytes[i];
        fits = fits && (split->free_bytes[i] == 0 || needed <= split->free_bytes[i]);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s needs %.1f MiB for %lld layers, %.1f MiB free",
                                 i ? "; " : "", tarn_device_name(split->device[i], name, sizeof(name)),
                                 mebibytes(needed), (long long)split->layers[i], mebibytes(split->free_bytes[i]));
    }
    return fits || tarn__raise(TARN_ERROR_MEMORY,
                               "%s: the model does not fit: %s; use more devices, a shorter context, or a smaller KV "
                               "cache type",
                               function, text);
}

bool tarn_model_plan_split_sized(const char *path, const tarn_device *devices, int count, tarn_model_split *split,
                                 size_t split_size, const tarn_model_split_options *options, size_t options_size)
{
    planner p = {.options = {0}};
    tarn_model_split own = {.count = count};
    if (options)
        memcpy(&p.options, options, options_size < sizeof(p.options) ? options_size : sizeof(p.options));
    if (tarn_failed())
        return false;
    if (!split)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result is NULL", function);
    if (!check_devices(devices, count) || !check_options(&p.options, count) || !tarn_kv_type_name(p.options.kv_type))
        return false;
    memcpy(own.device, devices, sizeof(*devices) * (size_t)count);
    const tarn_model_open_options how = {
        .dtype = p.options.dtype, .as_stored = p.options.as_stored, .quantize = p.options.quantize};
    if (!tarn__open_sizes(function, path, &how, &p.config, &p.weights))
        return false;
    p.kv_layer = kv_layer_bytes(&p);
    if (!partition(&p, &own))
        return false;
    count_bytes(&p, &own);
    memset(split, 0, split_size);
    memcpy(split, &own, split_size < sizeof(own) ? split_size : sizeof(own));
    return check_fit(&own);
}

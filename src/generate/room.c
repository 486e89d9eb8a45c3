/* room.c: the kinds of numbers that a cache holds, and what to say when there is no memory for one. */
#include <stdio.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "generate/decoder.h"

static const char *const names[] = {"model", "f32", "bf16", "f16", "int8"};
#define NAMES ((int)(sizeof(names) / sizeof(names[0])))

const char *tarn_kv_name(tarn_kv kv)
{
    if ((unsigned)kv < (unsigned)NAMES)
        return names[kv];
    tarn__raise(TARN_ERROR_ARGUMENT, "kv_name: %d is none of tarn_kv", (int)kv);
    return NULL;
}

bool tarn_kv_parse(const char *text, tarn_kv *kv)
{
    if (tarn_failed())
        return false;
    for (int i = 0; text && kv && i < NAMES; i++)
        if (strcmp(text, names[i]) == 0) {
            *kv = (tarn_kv)i;
            return true;
        }
    if (!text || !kv)
        return tarn__raise(TARN_ERROR_ARGUMENT, "kv_parse: the %s is NULL", text ? "result" : "text");
    return tarn__raise(TARN_ERROR_ARGUMENT, "kv_parse: '%.32s' is none of model, f32, bf16, f16 and int8", text);
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* "in int8 2048 tokens would fit; …": what would fit in `free` bytes. */
static void advise(char *text, size_t size, const tarn__cache_shape *shape, int64_t free)
{
    static const tarn_dtype kinds[] = {TARN_BF16, TARN_U8};
    size_t used = (size_t)snprintf(text, size, ".context = %lld would fit",
                                   (long long)(free / (tarn__cache_token_bytes(shape) * shape->batch)));
    for (int i = 0; i < 2; i++) {
        tarn__cache_shape other = *shape;
        other.dtype = kinds[i];
        int64_t each = tarn__cache_token_bytes(&other) * shape->batch, fits = free / each;
        if (each < tarn__cache_token_bytes(shape) * shape->batch && used < size)
            used += (size_t)snprintf(text + used, size - used, "; with .kv = %s %s%lld tokens would", i ? "int8" : "bf16 or f16",
                                     fits >= shape->room ? "all " : "", (long long)(fits >= shape->room ? shape->room : fits));
    }
}

bool tarn__decoder_no_room(const char *function, const tarn__cache_shape *shape, const tarn__model_facts *facts)
{
    tarn_device_info info = {0};
    char advice[256], device[32];
    tarn__error_record why;
    tarn__error_save(&why);
    tarn_empty_cache(shape->device); /* what the cache had got so far lies there */
    bool known = tarn_device_query(shape->device, &info) && info.memory_total > 0;
    tarn__error_restore(&why);
    int64_t needed = tarn__cache_token_bytes(shape) * shape->batch * shape->room;
    if (!known || needed <= info.memory_free)
        return false; /* the sentence that is there says all that is known */
    tarn_clear_error();
    advise(advice, sizeof(advice), shape, info.memory_free);
    return tarn__raise(TARN_ERROR_MEMORY,
                       "%s: keys and values of %lld tokens take %.1f MiB, %.1f more than %s has free; %s (the model's context is %lld)",
                       function, (long long)(shape->room * shape->batch), mebibytes(needed), mebibytes(needed - info.memory_free),
                       tarn_device_name(shape->device, device, sizeof(device)), advice, (long long)facts->context);
}

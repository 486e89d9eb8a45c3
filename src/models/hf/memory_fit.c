/* memory_fit.c: how much memory the weights of a file take, and what to say when a device has less. */
#include "models/hf/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/dtype.h"
#include "base/error.h"

/* The number of the block that a tensor belongs to, by its name in any of the files; -1: none. */
static int64_t block_of(const char *name)
{
    static const char *const marks[] = {"model.layers.", "transformer.h.", "h.", "blk."};
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        size_t length = strlen(marks[i]);
        if (strncmp(name, marks[i], length) == 0)
            return strtoll(name + length, NULL, 10);
    }
    return -1;
}

typedef struct weighing {
    tarn__weight_bytes sum;
    int64_t in_blocks; /* bytes of all of them */
} weighing;

static void add(weighing *w, const char *name, int64_t bytes)
{
    int64_t block = block_of(name);
    if (block < 0)
        w->sum.rest += bytes;
    else
        w->in_blocks += bytes;
    w->sum.blocks = block + 1 > w->sum.blocks ? block + 1 : w->sum.blocks;
}

static tarn__weight_bytes total(const weighing *w)
{
    tarn__weight_bytes sum = w->sum;
    sum.block = sum.blocks > 0 ? (w->in_blocks + sum.blocks - 1) / sum.blocks : 0;
    return sum;
}

static int64_t elements(const tarn_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= shape->size[i];
    return count;
}

tarn__weight_bytes tarn__safetensors_weight_bytes(const tarn_safetensors *file, tarn_dtype dtype,
                                                  bool (*ignores)(const char *name))
{
    weighing w = {{0}, 0};
    tarn_safetensors_entry e;
    for (int i = 0; i < tarn_safetensors_count(file); i++)
        if (tarn_safetensors_info(file, i, &e) && !ignores(e.name))
            add(&w, e.name, elements(&e.shape) * (int64_t)tarn_dtype_size(dtype));
    return total(&w);
}

tarn__weight_bytes tarn__gguf_weight_bytes(const tarn_gguf *file, tarn_dtype dtype)
{
    weighing w = {{0}, 0};
    tarn_gguf_entry e;
    for (int i = 0; i < tarn_gguf_count(file); i++)
        if (tarn_gguf_info(file, i, &e)) {
            bool stays = e.dtype != TARN_DTYPE_COUNT && tarn__is_quantized(e.dtype) && e.shape.rank > 1;
            add(&w, e.name, stays ? (int64_t)e.bytes : elements(&e.shape) * (int64_t)tarn_dtype_size(dtype));
        }
    return total(&w);
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

void tarn__model_out_of_memory(const char *function, const tarn__weight_bytes *b, const tarn__device_map *where)
{
    tarn_device_info info = {0};
    char advice[160], device[32];
    tarn__error_record why;
    tarn__error_save(&why);
    tarn_empty_cache(where->device); /* what the model had got so far lies there */
    bool known = tarn_device_query(where->device, &info) && info.memory_total > 0;
    tarn__error_restore(&why);
    int64_t layers = where->layers ? where->layers : b->blocks, needed = b->rest + layers * b->block;
    if (!known || needed <= info.memory_free || b->block == 0 || tarn_device_equal(where->device, tarn_device_cpu()))
        return; /* the sentence that is there says all that is known */
    int64_t fits = info.memory_free > b->rest ? (info.memory_free - b->rest) / b->block : 0;
    if (fits > 0)
        snprintf(advice, sizeof(advice),
                 "%lld of %lld layers would fit (.device_layers, --gpu-layers) and leave %.1f MiB for keys and values; "
                 "fewer leave more",
                 (long long)fits, (long long)b->blocks, mebibytes(info.memory_free - b->rest - fits * b->block));
    else
        snprintf(advice, sizeof(advice),
                 "not one of its %lld layers would fit beside the %.1f MiB of all else; run it on the CPU",
                 (long long)b->blocks, mebibytes(b->rest));
    tarn_clear_error();
    tarn__raise(TARN_ERROR_MEMORY,
                "%s: the weights of %lld layers and all else take %.1f MiB, %.1f more than %s has free; %s", function,
                (long long)layers, mebibytes(needed), mebibytes(needed - info.memory_free),
                tarn_device_name(where->device, device, sizeof(device)), advice);
}

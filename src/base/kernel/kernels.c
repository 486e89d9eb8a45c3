/* kernels.c: kernel names, and the hash by which the library rejects a backend compiled against other headers. */
#include "base/kernel/backend.h"

const char *const tarn__kernel_names[TARN__KERNEL_COUNT] = {
#define UNARY(name, ...) #name, #name "_grad",
#define BINARY(name, ...) #name, #name "_grad", #name "_grad_a", #name "_grad_b",
#define COMPARE(name, ...) #name,
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
    "where",
#define KERNEL(name, ...) #name,
#include "base/kernel/kernels.def"
#undef KERNEL
};

/* FNV-1a, which is enough to tell builds apart. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

uint64_t tarn__kernels_hash(void)
{
    static const size_t layouts[] = {
        sizeof(tarn__backend), sizeof(tarn__kernel_row),  sizeof(tarn__plan), sizeof(tarn__view),
        sizeof(tarn__call),    sizeof(tarn__elementwise), TARN_DTYPE_COUNT,   TARN_MAX_RANK,
#define KERNEL(name, params, ...) sizeof(tarn__##params),
#include "base/kernel/kernels.def"
#undef KERNEL
    };
    uint64_t hash = mix(0xcbf29ce484222325u, layouts, sizeof(layouts));
    for (int i = 0; i < TARN__KERNEL_COUNT; i++)
        for (const char *c = tarn__kernel_names[i]; *c; c++)
            hash = mix(hash, c, 1);
    return hash;
}

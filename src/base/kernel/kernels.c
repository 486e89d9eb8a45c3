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

/* The dtypes a row must support: that of the first operand, and all quantized ones, because a kernel that does not list
 * them would read blocks as elements. */
static uint32_t dtypes_of(const tarn__call *call)
{
    const tarn__view *first = call->inputs > 0 && call->in[0] ? call->in[0] : call->outputs > 0 ? call->out[0] : NULL;
    uint32_t used = 0;
    for (int i = 0; i < call->inputs; i++)
        if (call->in[i]) {
            first = first ? first : call->in[i];
            used |= TARN__BIT(call->in[i]->dtype) & TARN__QUANTIZED;
        }
    for (int i = 0; i < call->outputs; i++)
        used |= call->out[i] ? TARN__BIT(call->out[i]->dtype) & TARN__QUANTIZED : 0;
    return first ? used | TARN__BIT(first->dtype) : used;
}

const tarn__kernel_row *tarn__find_row(const tarn__kernel_row *row, const tarn__call *call)
{
    uint32_t used = dtypes_of(call);
    while (row && (!row->run || (used & ~row->dtypes) != 0 || (row->fits && !row->fits(call))))
        row = row->next;
    return row;
}

void tarn__push_row(tarn__kernel_row *rows, tarn__kernel kernel, tarn__kernel_row row, tarn__kernel_row *storage)
{
    *storage = rows[kernel];
    row.next = storage->run ? storage : NULL;
    rows[kernel] = row;
}

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

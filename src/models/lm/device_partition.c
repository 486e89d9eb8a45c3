/* device_partition.c: partitioning adjacent layers over devices by their memory (device_map.h).
 *
 * Dynamic programming over devices and layers: best[i][n] is the best partition of the first n layers over the first i
 * devices. Of two partitions the one with fewer bytes on the CPU is better, then the one whose fullest device is less
 * full. At most 16 devices and 1024 layers: 16 million steps, some milliseconds. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/device/device.h"
#include "models/lm/device_map.h"

/* Part of a device's free memory that layers may take where the CPU takes the rest: activations need some. */
#define FILL 0.9

typedef struct way {
    double on_cpu;   /* bytes; INFINITY: no partition */
    double fullness; /* of the fullest device */
    int64_t layers;  /* of the last device */
} way;

static bool is_better(const way *a, const way *b)
{
    return a->on_cpu < b->on_cpu || (a->on_cpu <= b->on_cpu && a->fullness < b->fullness);
}

/* `before`, with `layers` layers of `bytes` in sum on one more device. */
static way extend(const tarn__partition *p, int device, const way *before, int64_t layers, double bytes, bool has_limit)
{
    double all = bytes + (device == 0 ? (double)p->other : 0), weight = p->weight[device];
    double fullness = weight > 0 ? all / weight : layers > 0 || all > 0 ? INFINITY : 0;
    double limit = p->is_host[device] ? 1 : FILL;
    way now = {before->on_cpu + (p->is_host[device] ? bytes : 0),
               fullness > before->fullness ? fullness : before->fullness, layers};
    if (isinf(fullness) || (has_limit && fullness > limit))
        now.on_cpu = INFINITY;
    return now;
}

/* Best partitions with one more device, for every number of layers. */
static void add_device(const tarn__partition *p, int device, const way *before, way *after, bool has_limit)
{
    for (int64_t n = 0; n <= p->layers; n++) {
        double bytes = 0;
        after[n] = (way){INFINITY, INFINITY, 0};
        for (int64_t own = 0; own <= n; own++) {
            bytes += own > 0 ? (double)p->bytes[n - own] : 0;
            way now = extend(p, device, &before[n - own], own, bytes, has_limit);
            if (is_better(&now, &after[n]))
                after[n] = now;
        }
    }
}

/* False, without an error, if there is no partition. */
static bool solve(const tarn__partition *p, way *ways, bool has_limit, int64_t *layers)
{
    int64_t width = p->layers + 1, left = p->layers;
    for (int64_t n = 0; n <= p->layers; n++)
        ways[n] = (way){n ? INFINITY : 0, 0, 0};
    for (int i = 0; i < p->count; i++)
        add_device(p, i, ways + i * width, ways + (i + 1) * width, has_limit);
    if (isinf(ways[p->count * width + left].on_cpu))
        return false;
    for (int i = p->count; i > 0; i--) {
        layers[i - 1] = ways[i * width + left].layers;
        left -= layers[i - 1];
    }
    return true;
}

/* The limits matter beside a CPU only: without one the layers have no other place, and what does not fit is for the
 * caller to say. */
bool tarn__partition_layers(const char *function, const tarn__partition *p, int64_t *layers)
{
    bool has_host = false, has_other = false;
    for (int i = 0; i < p->count; i++)
        *(p->is_host[i] ? &has_host : &has_other) = true;
    size_t bytes = sizeof(way) * (size_t)((p->count + 1) * (p->layers + 1));
    way *ways = tarn__alloc(bytes);
    if (!ways)
        return false;
    bool good = (has_host && has_other && solve(p, ways, true, layers)) || solve(p, ways, false, layers);
    tarn__release(ways, bytes);
    return good || tarn__raise(TARN_ERROR_MEMORY, "%s: none of the devices has memory for layers", function);
}

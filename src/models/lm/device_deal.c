/* device_deal.c: dealing adjacent layers to devices by their memory (device_map.h).
 *
 * Dynamic programming over devices and layers: best[i][n] is the best way to deal the first n layers to the first i
 * devices. Of two ways the one with fewer bytes on the CPU is better, then the one whose fullest device is less full.
 * At most 16 devices and 1024 layers: 16 million steps, some milliseconds. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/device/device.h"
#include "models/lm/device_map.h"

/* Part of a device's free memory that layers may take where the CPU takes the rest: activations need some. */
#define FILL 0.9

typedef struct way {
    double on_cpu;   /* bytes; INFINITY: there is no way */
    double fullness; /* of the fullest device */
    int64_t layers;  /* of the last device */
} way;

static bool is_better(const way *a, const way *b)
{
    return a->on_cpu < b->on_cpu || (a->on_cpu <= b->on_cpu && a->fullness < b->fullness);
}

/* `before`, with `layers` layers of `bytes` in sum on one more device. */
static way extend(const tarn__deal *deal, int device, const way *before, int64_t layers, double bytes, bool has_limit)
{
    double all = bytes + (device == 0 ? (double)deal->other : 0), weight = deal->weight[device];
    double fullness = weight > 0 ? all / weight : layers > 0 || all > 0 ? INFINITY : 0;
    double limit = deal->is_host[device] ? 1 : FILL;
    way now = {before->on_cpu + (deal->is_host[device] ? bytes : 0),
               fullness > before->fullness ? fullness : before->fullness, layers};
    if (isinf(fullness) || (has_limit && fullness > limit))
        now.on_cpu = INFINITY;
    return now;
}

/* Best ways to deal to one more device, for every number of layers. */
static void deal_to(const tarn__deal *deal, int device, const way *before, way *after, bool has_limit)
{
    for (int64_t n = 0; n <= deal->layers; n++) {
        double bytes = 0;
        after[n] = (way){INFINITY, INFINITY, 0};
        for (int64_t own = 0; own <= n; own++) {
            bytes += own > 0 ? (double)deal->bytes[n - own] : 0;
            way now = extend(deal, device, &before[n - own], own, bytes, has_limit);
            if (is_better(&now, &after[n]))
                after[n] = now;
        }
    }
}

/* False, without an error, if there is no way. */
static bool deal_with(const tarn__deal *deal, way *ways, bool has_limit, int64_t *layers)
{
    int64_t width = deal->layers + 1, left = deal->layers;
    for (int64_t n = 0; n <= deal->layers; n++)
        ways[n] = (way){n ? INFINITY : 0, 0, 0};
    for (int i = 0; i < deal->count; i++)
        deal_to(deal, i, ways + i * width, ways + (i + 1) * width, has_limit);
    if (isinf(ways[deal->count * width + left].on_cpu))
        return false;
    for (int i = deal->count; i > 0; i--) {
        layers[i - 1] = ways[i * width + left].layers;
        left -= layers[i - 1];
    }
    return true;
}

/* The limits matter beside a CPU only: without one the layers have no other place, and what does not fit is for the
 * caller to say. */
bool tarn__deal_layers(const char *function, const tarn__deal *deal, int64_t *layers)
{
    bool has_host = false, has_other = false;
    for (int i = 0; i < deal->count; i++)
        *(deal->is_host[i] ? &has_host : &has_other) = true;
    size_t bytes = sizeof(way) * (size_t)((deal->count + 1) * (deal->layers + 1));
    way *ways = tarn__alloc(bytes);
    if (!ways)
        return false;
    bool good = (has_host && has_other && deal_with(deal, ways, true, layers)) || deal_with(deal, ways, false, layers);
    tarn__release(ways, bytes);
    return good || tarn__raise(TARN_ERROR_MEMORY, "%s: none of the devices has memory for layers", function);
}

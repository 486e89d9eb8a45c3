/* graph.h: what core must know while a step is captured into a graph. */
#ifndef TARN__GRAPH_H
#define TARN__GRAPH_H

#include <tarn/graph.h>

#include "core/device/device.h"

/* True when the device supports graph capture. */
bool tarn__can_capture(tarn_device device);

/* True while this thread captures the device's work instead of running it. */
bool tarn__is_capturing(tarn_device device);

/* True when the device is not being captured; else raises "function: what inside a captured step". */
bool tarn__not_captured(const char *function, tarn_device device, const char *what);

/* Live values: `bytes` bytes of device memory that each run of the graph fills from refresh(ctx, values) before the
 * step. `ctx` is copied. Returns the device address, or NULL with an error. Only while capturing. */
typedef void (*tarn__refresh_fn)(void *ctx, void *values);
#define TARN__LIVE_CTX 64
const void *tarn__graph_live(size_t bytes, tarn__refresh_fn refresh, const void *ctx, size_t ctx_bytes);

/* The live seed and counter offset of the random number generator. Only while capturing. */
const uint64_t *tarn__graph_random(void);

#endif

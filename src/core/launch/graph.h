/* graph.h: what the core must know while a step is being captured. */
#ifndef TARN__GRAPH_H
#define TARN__GRAPH_H

#include <tarn/graph.h>

#include "core/device/device.h"

/* True when a device that exists can record its work. */
bool tarn__can_capture(tarn_device device);

/* True while this device's work is recorded instead of run. */
bool tarn__is_capturing(tarn_device device);

/* True when nothing is being captured on the device; else an error: "item: ... inside a captured step". */
bool tarn__not_captured(const char *function, tarn_device device, const char *what);

/* Values that change from run to run: `bytes` bytes of device memory that each run fills from refresh(ctx, values)
 * before the step. A copy of ctx is kept. The device address, or NULL with an error raised. Only while capturing. */
typedef void (*tarn__refresh_fn)(void *ctx, void *values);
#define TARN__LIVE_CTX 64
const void *tarn__graph_live(size_t bytes, tarn__refresh_fn refresh, const void *ctx, size_t ctx_bytes);

/* The live seed and offset of random numbers. Only while capturing. */
const uint64_t *tarn__graph_random(void);

#endif

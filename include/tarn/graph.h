/* graph.h: a step that is recorded once and then run as a whole, without the host's work for each of its operations. */
#ifndef TARN_GRAPH_H
#define TARN_GRAPH_H

#include <tarn/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_graph tarn_graph;

/* One step: forward, backward, update, whatever is to be repeated. It reads its batch from tensors that the caller
 * fills between runs (tarn_write, tarn_copy) and leaves its results in tensors made before. False, or an error raised,
 * stops the capture. */
typedef bool (*tarn_step_fn)(void *ctx);

/* Records what `step` enqueues on the device, without running it. Run the step a few times before, so that buffers
 * exist and matrix products have their algorithms. Inside, a value read or written by the host, a copy to or from
 * another device, a kernel that falls back to the CPU and a measurement are errors that name the operation. What
 * changes from step to step is brought up to date at each run: learning rate and step count of optimizers, random
 * numbers. Memory taken inside belongs to the graph; no other thread may use the device meanwhile. On a device that
 * cannot record (the CPU) a run of the graph calls `step` again. Borrows ctx until the graph is freed; the caller owns
 * the graph. */
TARN_API tarn_graph *tarn_graph_capture(tarn_device device, tarn_step_fn step, void *ctx);

/* Enqueues the recorded step once more. Returns before it has finished, like any operation. */
TARN_API bool tarn_graph_run(tarn_graph *graph);

/* Frees a graph. Tensors made inside the step that are still alive keep their memory. NULL is allowed; works while an
 * error is pending. */
TARN_API void tarn_graph_free(tarn_graph *graph);

#ifdef __cplusplus
}
#endif
#endif

/* graph.h: captured graphs: a step is captured once and then launched as a whole, without host work per operation. */
#ifndef TARN_GRAPH_H
#define TARN_GRAPH_H

#include <tarn/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_graph tarn_graph;

/* One step: forward, backward, update, or any work to repeat. Reads its batch from tensors that the caller fills
 * between runs (tarn_write(), tarn_copy()) and leaves its results in tensors created beforehand. False, or a raised
 * error, stops the capture. */
typedef bool (*tarn_step_fn)(void *ctx);

/* Captures the work that `step` enqueues on the device, without running it. Run the step a few times before, so that
 * buffers exist and matmuls have chosen their algorithms. Inside the step host reads and writes, transfers from or
 * to another device, kernels that fall back to the CPU, and timing are errors that name the operation. Per-step
 * values are updated at each run: learning rate and step count of optimizers, offsets of random generators. Memory
 * allocated inside belongs to the graph until it is freed. The step reuses what it frees, and memory cached from its
 * earlier runs: captured it takes no more than before. No other thread may use the device during the capture. On a
 * device without graphs (the CPU) a run of the graph calls `step` again. Borrows `ctx` until the graph is freed; the
 * caller owns the graph. */
TARN_API tarn_graph *tarn_graph_capture(tarn_device device, tarn_step_fn step, void *ctx);

/* Enqueues the captured step once. Asynchronous, like any operation. */
TARN_API bool tarn_graph_run(tarn_graph *graph);

/* Frees a graph. Live tensors created inside the step keep their memory. NULL is allowed; works while an error is
 * pending. */
TARN_API void tarn_graph_free(tarn_graph *graph);

#ifdef __cplusplus
}
#endif
#endif

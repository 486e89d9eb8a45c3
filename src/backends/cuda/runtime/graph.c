/* graph.c: CUDA graphs: captures a device's stream once, then launches the graph per step.
 *
 * During a capture nothing runs: no synchronization, no host copy, no tuning. The graph keeps the addresses of the
 * captured calls; the caller keeps that memory alive. Graphs are owned by the caller and freed with
 * tarn__cuda_graph_free(). */
#include <string.h>

#include "backends/cuda/runtime/cuda.h"

/* Relaxed mode: other threads may allocate and copy while this stream is captured. */
bool tarn__cuda_capture_begin(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d)
        return false;
    if (d->is_capturing) {
        tarn__cuda_fail("the device is already capturing");
        return false;
    }
    d->is_capturing =
        tarn__cuda_good(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed), "cannot begin a capture");
    return d->is_capturing;
}

/* Returns the executable graph, or NULL. The captured graph itself is not kept. */
void *tarn__cuda_capture_end(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (!d || !d->is_capturing)
        return NULL;
    d->is_capturing = false;
    if (!tarn__cuda_good(cudaStreamEndCapture(d->stream, &graph), "cannot end the capture"))
        return NULL;
    if (!tarn__cuda_good(cudaGraphInstantiate(&ready, graph, 0), "cannot instantiate the graph"))
        ready = NULL;
    cudaGraphDestroy(graph);
    return ready;
}

bool tarn__cuda_graph_launch(int index, void *graph, void *stream)
{
    return tarn__cuda_at(index) &&
           tarn__cuda_good(cudaGraphLaunch((cudaGraphExec_t)graph, stream), "cannot launch the graph");
}

void tarn__cuda_graph_free(int index, void *graph)
{
    if (tarn__cuda_at(index))
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

/* Inside a capture only: outside, launch latency is hidden by the queue, and an edge of programmatic dependent launch
 * costs a little. */
bool tarn__cuda_uses_pdl(int index)
{
    const tarn__cuda_device *d = tarn__cuda_at(index);
    const char *text = tarn__cuda_env("TARN_CUDA_PDL", "TARN_CUDA_OVERLAP");
    return d && d->is_capturing && d->major >= 9 && !(text && strcmp(text, "off") == 0);
}

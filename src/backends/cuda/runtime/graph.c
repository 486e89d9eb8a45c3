/* graph.c: a device's stream recorded as a graph, and the graph enqueued again. */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/runtime/cuda.h"

bool tarn__cuda_capture_begin(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d)
        return false;
    if (d->is_capturing) {
        tarn__cuda_fail("this device is capturing already");
        return false;
    }
    d->is_capturing =
        tarn__cuda_good(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed), "beginning a capture");
    return d->is_capturing;
}

void *tarn__cuda_capture_end(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (!d || !d->is_capturing)
        return NULL;
    d->is_capturing = false;
    if (!tarn__cuda_good(cudaStreamEndCapture(d->stream, &graph), "ending a capture"))
        return NULL;
    if (!tarn__cuda_good(cudaGraphInstantiate(&ready, graph, 0), "making the graph"))
        ready = NULL;
    cudaGraphDestroy(graph);
    return ready;
}

bool tarn__cuda_graph_launch(int index, void *graph, void *stream)
{
    return tarn__cuda_at(index) &&
           tarn__cuda_good(cudaGraphLaunch((cudaGraphExec_t)graph, stream), "running the graph");
}

void tarn__cuda_graph_free(int index, void *graph)
{
    if (tarn__cuda_at(index))
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

bool tarn__cuda_uses_pdl(int index)
{
    const tarn__cuda_device *d = tarn__cuda_at(index);
    const char *text = getenv("TARN_CUDA_OVERLAP");
    return d && d->is_capturing && d->major >= 9 && !(text && strcmp(text, "off") == 0);
}

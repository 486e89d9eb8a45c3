/* captured.h: the step of one token for every sequence of a decoder, recorded and repeated where the device can do
 * that. */
#ifndef TARN__DECODE_GRAPH_H
#define TARN__DECODE_GRAPH_H

#include <tarn/generate.h>
#include <tarn/graph.h>

typedef struct tarn__decode_graph {
    bool is_wanted;
    int warm_steps;
    int64_t reach;                /* keys that the step looks at, at most */
    tarn_graph *graph;            /* NULL: not recorded yet */
    tarn_tensor *tokens, *logits; /* i64 [batch, 1] and [batch, vocab], kept: where the step finds and leaves them */
} tarn__decode_graph;

void tarn__decode_graph_init(tarn__decode_graph *captured, tarn_device device, bool is_wanted);
void tarn__decode_graph_close(tarn__decode_graph *captured);

/* Logits [batch, vocab] of what follows tokens [batch, 1], which fit. In the open scope. NULL with an error. */
tarn_tensor *tarn__decode_graph_feed(tarn_decoder *decoder, tarn_tensor *tokens);

#endif

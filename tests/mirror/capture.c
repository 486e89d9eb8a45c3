/* capture.c: kernels that the mirror writes down instead of running them, and runs as often as the graph is launched.
 *
 * As on a real device, what the host decided while a step was recorded stays so: scalars, addresses, scratch. What is
 * meant to change is read from device memory by every run: params with a `live` pointer are brought up to date
 * just before their kernel. */
#include <stdlib.h>
#include <string.h>

#include "mirror.h"

typedef struct node {
    struct node *next;
    tarn__kernel kernel;
    mirror_call s;
    void *recorded, *now; /* the tail, as it was given and as a run uses it */
    tarn__plan *plan;     /* a copy: the launch's own is gone by then */
} node;

typedef struct graph {
    node *first, **last;
    bool complete; /* memory was there for every node */
} graph;

static graph *recording[MIRROR_DEVICES];

bool mirror_is_capturing(int index)
{
    return recording[index] != NULL;
}

static void free_node(node *n)
{
    free(n->recorded);
    free(n->now);
    free(n->plan);
    free(n);
}

void mirror_graph_free(int index, void *pointer)
{
    graph *g = pointer;
    (void)index;
    for (node *n = g->first, *next; n; n = next) {
        next = n->next;
        free_node(n);
    }
    free(g);
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

bool mirror_capture_begin(int index)
{
    graph *g = recording[index] ? NULL : calloc(1, sizeof(*g));
    if (!g)
        return false;
    g->last = &g->first;
    g->complete = true;
    recording[index] = g;
    return true;
}

void *mirror_capture_end(int index)
{
    graph *g = recording[index];
    recording[index] = NULL;
    if (!g || g->complete)
        return g;
    mirror_graph_free(index, g);
    return NULL;
}

void mirror_capture(tarn__kernel kernel, const tarn__call *call)
{
    graph *g = recording[call->device];
    node *n = calloc(1, sizeof(*n));
    size_t plan_bytes = sizeof(*call->plan) + call->plan->used;
    if (!n || !(n->recorded = malloc(call->params_bytes)) || !(n->now = malloc(call->params_bytes)) ||
        !(n->plan = malloc(plan_bytes))) {
        g->complete = false;
        if (n)
            free_node(n);
        return;
    }
    n->kernel = kernel;
    mirror_shift_back(&n->s, call);
    memcpy(n->recorded, call->params, call->params_bytes);
    memcpy(n->plan, call->plan, plan_bytes);
    n->s.call.params = n->now;
    n->s.call.plan = n->plan;
    *g->last = n;
    g->last = &n->next;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void refresh_random(tarn__random *random)
{
    if (!random->live)
        return;
    const uint64_t *live = (const uint64_t *)(const void *)mirror_real(random->live);
    random->seed = live[0];
    random->offset += live[1];
    random->live = NULL;
}

static void refresh_step(tarn__optimizer_step *step)
{
    if (!step->live)
        return;
    memcpy(&step->now, mirror_real(step->live), sizeof(step->now));
    step->live = NULL;
}

static void refresh(tarn__kernel kernel, void *tail)
{
    switch (kernel) {
    case TARN__K_uniform:
    case TARN__K_normal:
    case TARN__K_dropout: refresh_random(tail); break;
    case TARN__K_attention:
    case TARN__K_attention_documents:
    case TARN__K_attention_documents_grad:
    case TARN__K_attention_grad: refresh_random(&((tarn__attention *)tail)->random); break;
    case TARN__K_dropout_residual_norm:
    case TARN__K_dropout_residual_norm_grad: refresh_random(&((tarn__residual_norm *)tail)->random); break;
    case TARN__K_sgd:
    case TARN__K_adamw: refresh_step(tail); break;
    default: break;
    }
}

bool mirror_graph_launch(int index, void *pointer, void *stream)
{
    const graph *g = pointer;
    (void)stream;
    mirror_catch_up(index);
    for (node *n = g->first; n; n = n->next) {
        memcpy(n->now, n->recorded, n->s.call.params_bytes);
        refresh(n->kernel, n->now);
        mirror_run_kernel(&n->s.call);
    }
    return true;
}

bool mirror_write_inline(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream)
{
    (void)stream;
    mirror_catch_up(index);
    memcpy(mirror_real(memory) + offset, bytes, count);
    return true;
}

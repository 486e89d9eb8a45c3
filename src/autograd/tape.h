/* tape.h: the tape: a record of the computation, and the interface of backward rules.
 *
 * A node stands for one operation. It has, per input, where its gradient goes (the producing node, or a leaf), the
 * tensors its rule needs, and a copy of the operation's params. Tensors retain the node that produced them; nodes
 * never retain their own outputs (a saved output is an alias without grad_fn), so there are no reference cycles.
 *
 * Threads: each thread records its own operations; a tape may be walked by one thread at a time. */
#ifndef TARN__TAPE_H
#define TARN__TAPE_H

#include <tarn/autograd.h>

#include "core/launch/launch.h"

typedef struct tarn__node tarn__node;

/* Arguments of a backward rule. It runs unrecorded, in its own scope; everything is borrowed. */
typedef struct tarn__backward {
    tarn__node *node;
    const char *function;      /* the operation's name */
    tarn_tensor *const *grads; /* of the outputs; NULL where none arrived, but never all NULL */
    tarn_tensor *const *saved; /* in the order given to tarn__record() */
    const void *params;
} tarn__backward;

/* A backward rule: accumulates a gradient for every input that needs one. False with an error. */
typedef bool (*tarn__rule)(const tarn__backward *b);

/* Recomputes output 0 of a node from its saved tensors, bitwise identical, in the scope of the rule that needs it.
 * NULL with an error. */
typedef tarn_tensor *(*tarn__recompute_fn)(const tarn__backward *b);

/* ---- recording --------------------------------------------------------------------------------------------------- */

typedef struct tarn__recording {
    const char *function;
    tarn__rule rule; /* NULL: not differentiable */
    tarn_tensor *const *inputs;
    int input_count;
    tarn_tensor *const *outputs;
    int output_count;
    tarn_tensor *const *saved; /* NULL entries are allowed */
    int saved_count;
    const void *params; /* copied */
    size_t params_bytes;
    void (*params_release)(void *params); /* called on the copy when the node is freed; NULL: nothing to do */
    /* record even if no input needs a gradient: parameters inside a checkpointed function may */
    bool always;
    /* inside tarn__recompute_open(), a rule that saves output 0 gets it recomputed; NULL: it is stored */
    tarn__recompute_fn recompute;
} tarn__recording;

/* Ends an operation: adds a node to the tape if a gradient is needed, and checks for non-finite values in anomaly
 * mode. Every operation calls it exactly once, after its kernels. False with an error. */
bool tarn__record(const tarn__recording *recording);

/* True when tarn__record() will add a node for these inputs: results needed only for backward are computed only
 * then. */
bool tarn__recording_needed(tarn_tensor *const *inputs, int count);

/* Records even inside tarn_no_grad_open(); returns the depth to restore. */
int tarn__grad_force(void);
void tarn__grad_unforce(int depth);

/* Selective recompute: between open and close, which nest, cheap results (norms, GELU, SwiGLU) are not stored for
 * backward. */
void tarn__recompute_open(void);
void tarn__recompute_close(void);
bool tarn__is_recomputing(void);

/* Anomaly mode. Between open and close a rule runs: its result is checked, its inner operations are not. */
bool tarn__anomaly(void);
void tarn__anomaly_rule_open(void);
void tarn__anomaly_rule_close(void);

/* Anomaly mode: checks a gradient that a rule computed; raises unless it is finite or an operand was not. */
bool tarn__check_gradient(const tarn__backward *b, tarn_tensor *grad);

/* ---- in a rule --------------------------------------------------------------------------------------------------- */

/* True when input `i` needs a gradient. */
bool tarn__needs_grad(const tarn__backward *b, int i);

/* Accumulates the gradient of input `i`: undoes broadcasting, converts the dtype, adds to what has arrived. Borrows
 * `grad`. Does nothing where none is needed. */
bool tarn__accumulate_grad(const tarn__backward *b, int i, tarn_tensor *grad);

/* The dtype for the gradient of input `i`: f32 for a 16-bit leaf, else the input's. */
tarn_dtype tarn__grad_dtype(const tarn__backward *b, int i);

/* A buffer for the whole gradient of input `i`: the leaf's own gradient where nothing has arrived yet, which saves a
 * copy, else a new tensor of this dtype. Written completely by the rule, then passed to tarn__accumulate_grad().
 * Belongs to the leaf or to the open scope; NULL with an error. */
tarn_tensor *tarn__grad_buffer(const tarn__backward *b, int i, tarn_dtype dtype);

/* A gradient accumulator: a tensor of the input's shape into which a kernel with a beta parameter accumulates
 * directly: tensor = matmul + beta · tensor. Saves a temporary and a pass. Close it after the kernel. */
typedef struct tarn__grad_acc {
    tarn_tensor *tensor;
    double beta;
    tarn_tensor *leaf; /* the leaf whose gradient it is; internal */
} tarn__grad_acc;
bool tarn__grad_acc_open(const tarn__backward *b, int i, tarn__grad_acc *acc);
bool tarn__grad_acc_close(const tarn__backward *b, int i, tarn__grad_acc *acc);

/* Tensor spec: shape, dtype and device of an input, which itself may have been freed. */
typedef struct tarn__tensor_spec {
    tarn_shape shape;
    tarn_dtype dtype;
    tarn_device device;
} tarn__tensor_spec;
const tarn__tensor_spec *tarn__input_spec(const tarn__backward *b, int i);

/* ---- gradients that are complete --------------------------------------------------------------------------------- */

/* A watch tells which gradients are complete while a backward pass runs. It is opened before the forward pass: from
 * then on every leaf notes the first node that uses it. Nodes run by descending sequence number, so once all nodes from
 * `sequence` on have run, nothing is added any more to a leaf that was first used there, or not at all. That holds for
 * parameters of checkpointed functions too: their first use is before the node of the function, in which all later uses
 * run again. */
typedef struct tarn__grad_watch {
    /* Called after each node of the pass: those with at least this sequence number have run. 0: the pass has ended.
     * False with an error: the pass fails. */
    bool (*passed)(void *ctx, uint64_t sequence);
    void *ctx;
    uint64_t begin;  /* the first sequence number of the watch */
    bool has_passed; /* the pass has ended; a second one is an error */
    bool is_inside;  /* a pass runs: those of checkpointed functions in it are not watched */
} tarn__grad_watch;

/* Opens a watch on this thread; one at a time. The caller owns it and keeps it until it is closed. */
void tarn__grad_watch_open(tarn__grad_watch *watch);
void tarn__grad_watch_close(void);

/* The watch of this thread; NULL: none. */
tarn__grad_watch *tarn__grad_watch_of_thread(void);

/* True once nothing is added to the leaf's gradient after nodes from `sequence` on have run. */
static inline bool tarn__grad_is_complete(const tarn__grad_watch *watch, const tarn_tensor *leaf, uint64_t sequence)
{
    return leaf->first_use < watch->begin || leaf->first_use >= sequence;
}

/* ---- nodes, for the backward pass -------------------------------------------------------------------------------- */

typedef struct tarn__edge {
    tarn__node *node;  /* the producing node, retained; or */
    tarn_tensor *leaf; /* the leaf itself, retained; or neither: no gradient needed */
    int output;
    tarn__tensor_spec spec;
} tarn__edge;

typedef struct tarn__saved {
    tarn_tensor *tensor;  /* retained; NULL where none was given, or */
    tarn__node *producer; /* the node whose output 0 it is, retained: it is recomputed */
    uint32_t version;
} tarn__saved;

struct tarn__node {
    tarn__grad_fn base; /* first: the grad_fn of a tensor is its node */
    const char *function;
    tarn__rule rule;
    tarn__recompute_fn recompute; /* NULL: outputs are stored */
    uint64_t sequence;
    int inputs, outputs, saves;
    bool queued;   /* in the heap of a backward pass */
    bool released; /* backward has run and freed its saved tensors */
    tarn__edge *edge;
    tarn__saved *saved;
    tarn_tensor **grad; /* gradients of the outputs that have arrived, retained */
    tarn__tensor_spec *output_spec;
    void *params;
    size_t params_bytes;
    void (*params_release)(void *params);
    size_t bytes; /* allocation size, lists and params included */
    tarn__node *next_dead;
};

/* Releases everything a node retains; the node itself stays. */
void tarn__node_release(tarn__node *node);

/* Accumulates a gradient at an edge. Borrows `grad`. */
bool tarn__edge_accumulate(const char *function, tarn__edge *edge, tarn_tensor *grad);

#endif

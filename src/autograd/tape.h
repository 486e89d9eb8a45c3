/* tape.h: the record of what was computed, and what a backward rule gets to work with.
 *
 * A node stands for one operation. It holds, for each input, where its gradient goes (the node that made it, or a
 * leaf), the tensors the rule needs, and a copy of the operation's scalars. Tensors hold the node that made them; nodes
 * never hold their own outputs (a saved output is an alias without history), so there are no cycles. */
#ifndef TARN__TAPE_H
#define TARN__TAPE_H

#include <tarn/autograd.h>

#include "core/launch/launch.h"

typedef struct tarn__node tarn__node;

/* What a backward rule sees. It runs unrecorded, in a scope of its own. */
typedef struct tarn__backward {
    tarn__node *node;
    const char *function;      /* the operation's name */
    tarn_tensor *const *grads; /* of the outputs; NULL where none arrived, never all NULL */
    tarn_tensor *const *saved; /* in the order they were given to tarn__record() */
    const void *params;
} tarn__backward;

/* Puts a gradient into the sink of every input that wants one. False with an error raised. */
typedef bool (*tarn__rule)(const tarn__backward *b);

/* Makes output 0 of a node again, with the bits it had, from what the node saved: in the scope of the rule that needs
 * it. NULL with an error. */
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
    void (*params_release)(void *params); /* called on the copy when the node goes; NULL: nothing to do */
    /* record even where no input wants a gradient: parameters inside a block do */
    bool always;
    /* in a thrifty section whoever saves output 0 has it made again; NULL: it is stored */
    tarn__recompute_fn recompute;
} tarn__recording;

/* Ends an operation: puts a node on the tape when a gradient is needed, and looks for non-finite values in anomaly
 * mode. Every operation calls it, exactly once, after its kernels. False with an error raised. */
bool tarn__record(const tarn__recording *recording);

/* True when tarn__record() will put a node on the tape for these inputs: what is only needed for backward is computed
 * only then. */
bool tarn__recording_needed(tarn_tensor *const *inputs, int count);

/* Records for a while even inside tarn_no_grad_open(): returns the depth to give back. */
int tarn__grad_force(void);
void tarn__grad_unforce(int depth);

/* Between open and close, which nest, what is cheap to make again for backward (norms, GELU) is not stored for it. */
void tarn__recompute_open(void);
void tarn__recompute_close(void);
bool tarn__is_recomputing(void);

/* Anomaly mode. Between open and close a rule runs: what it hands on is checked against what it was given, its steps
 * are not. */
bool tarn__anomaly(void);
void tarn__anomaly_rule_open(void);
void tarn__anomaly_rule_close(void);

/* Anomaly mode's check of a gradient that a rule made from the gradients it was given and what was saved. */
bool tarn__check_gradient(const tarn__backward *b, tarn_tensor *grad);

/* ---- in a rule --------------------------------------------------------------------------------------------------- */

/* True when input `i` wants a gradient. */
bool tarn__needs_grad(const tarn__backward *b, int i);

/* Gives input `i` its gradient: sums over broadcast axes, converts, and adds to what is there already. Borrows `grad`.
 */
bool tarn__accumulate_grad(const tarn__backward *b, int i, tarn_tensor *grad);

/* The dtype in which input `i`'s gradient is best made: a leaf of 16 bits has an f32 gradient. */
tarn_dtype tarn__grad_dtype(const tarn__backward *b, int i);

/* A place for all of input `i`'s gradient, of its shape: the leaf's own where nothing has arrived there yet, which
 * spares a copy, else a new tensor of this dtype. It is written whole, and then given to tarn__accumulate_grad(). It
 * belongs to the leaf or to the open scope; NULL with an error. */
tarn_tensor *tarn__grad_buffer(const tarn__backward *b, int i, tarn_dtype dtype);

/* The other way: a place of exactly the input's shape where the rule writes itself: to = (its product) + beta · to.
 * Close it afterwards. */
typedef struct tarn__grad_acc {
    tarn_tensor *to;
    double beta;
    tarn_tensor *leaf; /* private */
} tarn__grad_acc;
bool tarn__grad_acc_open(const tarn__backward *b, int i, tarn__grad_acc *sink);
bool tarn__grad_acc_close(const tarn__backward *b, int i, tarn__grad_acc *sink);

/* The shape, dtype and device of input `i`, which itself may be gone. */
typedef struct tarn__tensor_spec {
    tarn_shape shape;
    tarn_dtype dtype;
    tarn_device device;
} tarn__tensor_spec;
const tarn__tensor_spec *tarn__input_spec(const tarn__backward *b, int i);

/* ---- the node, for the walk -------------------------------------------------------------------------------------- */

typedef struct tarn__edge {
    tarn__node *node;  /* the node that made the input, held; or */
    tarn_tensor *leaf; /* the leaf itself, held; or neither: no gradient wanted */
    int output;
    tarn__tensor_spec spec;
} tarn__edge;

typedef struct tarn__saved {
    tarn_tensor *tensor; /* held; NULL where none was given, or */
    tarn__node *maker;   /* the node whose output 0 it is, held: it is made again */
    uint32_t version;
} tarn__saved;

struct tarn__node {
    tarn__history history;
    const char *function;
    tarn__rule rule;
    tarn__recompute_fn recompute; /* NULL: its outputs are stored where they are needed */
    uint64_t sequence;
    int inputs, outputs, saves;
    bool queued;   /* in the walk's heap */
    bool released; /* walked already, what it held is gone */
    tarn__edge *edge;
    tarn__saved *saved;
    tarn_tensor **grad;      /* gradients of the outputs that arrived in the walk, held */
    tarn__tensor_spec *made; /* of the outputs */
    void *params;
    size_t params_bytes;
    void (*params_release)(void *params);
    size_t bytes; /* of the whole record */
    tarn__node *next_dead;
};

/* Lets go of what a node holds; the node itself stays. */
void tarn__node_release(tarn__node *node);

/* Adds a gradient to what arrived at an edge so far. */
bool tarn__edge_accumulate(const char *function, tarn__edge *edge, tarn_tensor *grad);

#endif

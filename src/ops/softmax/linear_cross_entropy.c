/* linear_cross_entropy.c: a language model's output layer and its loss as one operation over chunks of rows: logits,
 * losses, the gradient of the logits in place, and its products with x and the weight. The full logits (rows, V)
 * never exist.
 *
 * With a mean or sum, the upstream gradient is one factor for all rows, so the gradients of x and weight are
 * computed in forward, while the logits exist, for an upstream gradient of 1, and scaled in backward; 16-bit logits
 * keep their precision this way. Without a reduction, backward recomputes the logits.
 *
 * With a soft cap, y = cap · tanh(u), u = z / cap, for logits z. Then dz = dy · (1 - tanh²(u)): u is kept beside y,
 * which dy overwrites, so a chunk has two copies of its logits. */
#include <string.h>

#include "ops/internal.h"

/* Policies of speed and memory, not limits of a device. */
#define HOST_CHUNK (INT64_C(64) << 20)    /* bytes of logits per chunk on the CPU */
#define DEVICE_CHUNK (INT64_C(512) << 20) /* and on devices, where larger GEMMs are faster */
#define WHOLE_TILES 256 /* rows of a chunk are a multiple of this, so that no tensor-core tile is nearly empty */

static const char function[] = "linear_cross_entropy";

/* One pass over all rows. */
typedef struct pass {
    tarn_tensor *x, *weight, *target; /* (rows, C), (V, C), (rows) */
    tarn_tensor *losses;              /* (rows) */
    tarn_tensor *g;                   /* (rows), upstream gradient; NULL: no gradients */
    tarn_tensor *gx, *gweight;        /* (rows, C), (V, C); NULL where not needed */
    tarn__cross_entropy params;
    double softcap; /* 0: none */
} pass;

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Rows `begin` to `begin + count`: a view in the open scope; NULL for NULL. */
static tarn_tensor *rows_from(tarn_tensor *x, int64_t begin, int64_t count)
{
    tarn_tensor *rows = x ? tarn__tensor_view(x) : NULL;
    if (rows) {
        rows->view.shape[0] = count;
        tarn__tensor_set_start(rows, x->start + begin * x->view.stride[0]);
    }
    return rows;
}

/* gx = glogits @ weight, gweight += glogitsᵀ @ x. */
static bool add_gradients(const pass *p, int64_t begin, int64_t count, tarn_tensor *glogits)
{
    return (!p->gx || tarn__gemm(function, glogits, p->weight, NULL, 0, rows_from(p->gx, begin, count))) &&
           (!p->gweight || tarn__gemm(function, tarn__transposed(glogits), rows_from(p->x, begin, count), NULL,
                                      begin > 0, p->gweight));
}

static tarn_tensor *chunk_of_logits(const pass *p, int64_t count)
{
    return tarn__tensor_new(function, TARN_SHAPE(count, p->weight->view.shape[0]), p->x->view.dtype,
                            tarn__device(p->x));
}

/* x *= factor. */
static bool scale(tarn_tensor *x, double factor)
{
    tarn__elementwise params = {.constants = 2, .constant[1].real = factor};
    return tarn__kernel_call(TARN__K_mul, function, params, TARN__IN(x, NULL), TARN__OUT(x), .reads_output = 1);
}

/* u = u / cap, y = cap · tanh(u); both may be one tensor. */
static bool cap_logits(double cap, tarn_tensor *u, tarn_tensor *y)
{
    tarn__elementwise none = {0};
    return scale(u, 1 / cap) &&
           tarn__kernel_call(TARN__K_tanh, function, none, TARN__IN(u), TARN__OUT(y), .reads_output = u == y) &&
           scale(y, cap);
}

/* g *= 1 - tanh²(u). */
static bool uncap_gradient(tarn_tensor *u, tarn_tensor *g)
{
    tarn__elementwise none = {0};
    return tarn__kernel_call(TARN__K_tanh_grad, function, none, TARN__IN(u, g), TARN__OUT(g), .reads_output = 1);
}

/* One chunk: logits = x @ weightᵀ, capped if asked for; loss and glogits in place of them, then both gradient GEMMs. */
static bool run_chunk(const pass *p, int64_t begin, int64_t count)
{
    bool is_capped = p->softcap > 0;
    tarn_tensor *u = chunk_of_logits(p, count), *logits = is_capped && p->g ? chunk_of_logits(p, count) : u;
    tarn_tensor *target = rows_from(p->target, begin, count), *losses = rows_from(p->losses, begin, count),
                *g = rows_from(p->g, begin, count);
    if (!u || !logits || !target || !losses ||
        !tarn__gemm(function, rows_from(p->x, begin, count), tarn__transposed(p->weight), NULL, 0, u) ||
        (is_capped && !cap_logits(p->softcap, u, logits)))
        return false;
    if (!p->g)
        return tarn__kernel_call(TARN__K_cross_entropy, function, p->params, TARN__IN(logits, target),
                                 TARN__OUT(losses, NULL));
    return g &&
           tarn__kernel_call(TARN__K_cross_entropy_with_grad, function, p->params, TARN__IN(logits, target, g),
                             TARN__OUT(losses, logits)) &&
           (!is_capped || uncap_gradient(u, logits)) && add_gradients(p, begin, count, logits);
}

/* Chunks run one after the other in their own scopes: peak memory is one chunk of logits, two with a soft cap. gweight
 * accumulates over chunks. */
static bool run_pass(const pass *p)
{
    int64_t rows = p->x->view.shape[0],
            row_bytes = p->weight->view.shape[0] * (int64_t)tarn__dtype_bytes(p->x->view.dtype);
    int64_t chunk = (tarn__is_cpu(tarn__device(p->x)) ? HOST_CHUNK : DEVICE_CHUNK) / (row_bytes > 0 ? row_bytes : 1);
    bool good = rows > 0 || !p->gweight || tarn__fill_with(function, p->gweight, 0);
    chunk = chunk > WHOLE_TILES ? chunk / WHOLE_TILES * WHOLE_TILES : chunk > 0 ? chunk : 1;
    for (int64_t begin = 0; good && begin < rows; begin += chunk) {
        tarn_scope *scope = tarn_scope_open();
        good = scope && run_chunk(p, begin, rows - begin < chunk ? rows - begin : chunk);
        tarn_scope_close(scope);
    }
    return good;
}

/* Allocates the gradients of x (rows, C) and weight (V, C), in f32 for 16-bit operands. */
static bool new_gradients(pass *p, bool of_x, bool of_weight)
{
    tarn_dtype wide = tarn__acc_dtype(p->x->view.dtype);
    tarn_device device = tarn__device(p->x);
    return (!of_x || (p->gx = tarn__tensor_new(function, tarn__shape_of(p->x), wide, device))) &&
           (!of_weight || (p->gweight = tarn__tensor_new(function, tarn__shape_of(p->weight), wide, device)));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct linear_loss_record {
    tarn__cross_entropy params; /* its scale is 1 / rows for a mean over all rows */
    tarn_reduction reduction;
    double softcap;
} linear_loss_record;

static bool accumulate_gradients(const tarn__backward *b, tarn_tensor *gx, tarn_tensor *gweight)
{
    if (gx && tarn__needs_grad(b, 0) &&
        !((gx = tarn_reshape(gx, tarn__input_spec(b, 0)->shape)) && tarn__accumulate_grad(b, 0, gx)))
        return false;
    return !gweight || !tarn__needs_grad(b, 1) || tarn__accumulate_grad(b, 1, gweight);
}

/* The weight's gradient times g, computed in the leaf's own memory: it may be the largest tensor of all. */
static tarn_tensor *scaled_weight(const tarn__backward *b, tarn_tensor *gweight, tarn_tensor *g)
{
    tarn__elementwise none = {0};
    tarn_tensor *to = tarn__needs_grad(b, 1) ? tarn__grad_buffer(b, 1, gweight->view.dtype) : NULL;
    return to && tarn__kernel_call(TARN__K_mul, b->function, none, TARN__IN(gweight, g), TARN__OUT(to)) ? to : NULL;
}

/* The gradients for an upstream gradient of 1, times the actual one. */
static bool scaled_backward(const tarn__backward *b)
{
    const linear_loss_record *r = b->params;
    tarn_tensor *gx = b->saved[0], *gweight = b->saved[1], *counted = b->saved[2], *g = b->grads[0];
    /* 0 if no target counts, although the mean is NaN */
    g = counted ? tarn_div(g, tarn_maximum(counted, tarn_scalar(1))) : tarn_mul(g, tarn_scalar(r->params.scale));
    return g && accumulate_gradients(b, gx ? tarn_mul(gx, g) : NULL, gweight ? scaled_weight(b, gweight, g) : NULL) &&
           !tarn_failed();
}

static bool each_backward(const tarn__backward *b)
{
    const linear_loss_record *r = b->params;
    pass p = {.x = tarn__rows_of(function, b->saved[0]),
              .weight = b->saved[1],
              .target = b->saved[2],
              .g = b->grads[0],
              .params = r->params,
              .softcap = r->softcap};
    p.losses = tarn__tensor_new(function, tarn__shape_of(p.target), tarn__acc_dtype(p.weight->view.dtype),
                                tarn__device(p.weight));
    return p.x && p.losses && new_gradients(&p, tarn__needs_grad(b, 0), tarn__needs_grad(b, 1)) && run_pass(&p) &&
           accumulate_gradients(b, p.gx, p.gweight);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bool check(tarn_tensor **o, const tarn_cross_entropy_options *options)
{
    static const char *const roles[] = {"x", "weight"};
    tarn_tensor *products[] = {o[0], o[1]}, *pair[] = {o[0], o[2]};
    if (!tarn__unify_operands(function, products, roles, 2) || !tarn__check_losses(function, "x", pair, options) ||
        !tarn__unify_devices(function, o, 3))
        return false;
    const tarn__view *x = &o[0]->view, *weight = &o[1]->view;
    return (weight->rank == 2 && x->shape[x->rank - 1] == weight->shape[1]) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: x %s and weight %s do not fit: weight is [V, C], and x ends in C",
                       function, TARN__SHAPE_STRING(o[0]), TARN__SHAPE_STRING(o[1]));
}

/* A gradient of 1 for each row, as a view of one number. */
static tarn_tensor *ones(int64_t rows, tarn_dtype dtype, tarn_device device)
{
    tarn_tensor *one = tarn__tensor_new(function, TARN_SHAPE(1), dtype, device),
                *all = one ? tarn__tensor_view(one) : NULL;
    if (!all || !tarn__fill_with(function, one, 1))
        return NULL;
    all->view.shape[0] = rows;
    all->view.stride[0] = 0;
    return all;
}

/* Targets [rows]; x is given as it came and as rows. */
static tarn_tensor *losses_of(tarn_tensor *x, pass *p, const tarn_cross_entropy_options *o)
{
    tarn_dtype wide = tarn__acc_dtype(x->view.dtype);
    int64_t rows = p->x->view.shape[0];
    bool each = o->reduction == TARN_REDUCE_NONE, records = tarn__recording_needed((tarn_tensor *[]){x, p->weight}, 2);
    if (records && !each &&
        (!(p->g = ones(rows, wide, tarn__device(x))) ||
         !new_gradients(p, tarn_needs_grad(x), tarn_needs_grad(p->weight))))
        return NULL;
    if (!(p->losses = tarn__tensor_new(function, TARN_SHAPE(rows), wide, tarn__device(x))) || !run_pass(p))
        return NULL;
    tarn_tensor *counted = o->reduction == TARN_REDUCE_MEAN ? tarn__count_targets(p->target, o, wide) : NULL;
    tarn_tensor *y = tarn_failed() ? NULL : tarn__reduce_losses(p->losses, counted, o->reduction);
    linear_loss_record r = {.params = p->params, .reduction = o->reduction, .softcap = o->softcap};
    if (o->reduction == TARN_REDUCE_MEAN && rows > 0)
        r.params.scale = 1 / (double)rows;
    tarn_tensor *saved[] = {each ? x : p->gx, each ? p->weight : p->gweight, each ? p->target : counted};
    return y && tarn__finish(function, each ? each_backward : scaled_backward, r, TARN__INPUTS(x, p->weight),
                             TARN__OUTPUTS(y), TARN__SAVED(saved[0], saved[1], saved[2]))
               ? y
               : NULL;
}

/* x […, C], weight [V, C], target […] -> cross_entropy(x @ weightᵀ, target). FLOPs: 2 · rows · V · C forward, twice
 * that backward, done in forward for a mean or sum. */
tarn_tensor *tarn_linear_cross_entropy_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *target,
                                             const tarn_cross_entropy_options *options, size_t options_size)
{
    tarn_cross_entropy_options o = {0};
    tarn_tensor *operand[] = {x, weight, target};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (!check(operand, &o))
        return NULL;
    tarn_shape shape = tarn__shape_of(operand[2]);
    pass p = {.x = tarn__rows_of(function, operand[0]),
              .weight = operand[1],
              .target = operand[2],
              .params = {.smoothing = o.label_smoothing,
                         .scale = 1,
                         .has_ignore = o.ignore_index != NULL,
                         .ignore = o.ignore_index ? *o.ignore_index : 0},
              .softcap = o.softcap};
    if (shape.rank != 1)
        p.target = tarn_reshape(p.target, TARN_SHAPE(tarn__view_count(&p.target->view)));
    tarn_tensor *y = p.x && p.target ? losses_of(operand[0], &p, &o) : NULL;
    return y && o.reduction == TARN_REDUCE_NONE && shape.rank != 1 ? tarn_reshape(y, shape) : y;
}

bool tarn__apply_linear_cross_entropy(const tarn__invocation *v, tarn_tensor **out)
{
    int64_t ignore = tarn__attribute_int(v, "ignore_index", INT64_MIN);
    tarn_cross_entropy_options o = {.label_smoothing = tarn__attribute_real(v, "label_smoothing", 0),
                                    .ignore_index = ignore == INT64_MIN ? NULL : &ignore,
                                    .reduction = (tarn_reduction)tarn__attribute_int(v, "reduction", TARN_REDUCE_MEAN),
                                    .softcap = tarn__attribute_real(v, "softcap", 0)};
    return (out[0] = tarn_linear_cross_entropy(v->in[0], v->in[1], v->in[2], &o)) != NULL;
}

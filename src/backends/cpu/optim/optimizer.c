/* optimizer.c: SGD and AdamW updates. Each element is read and written once (28 bytes per f32 parameter for AdamW); the
 * formulas are documented in optim/sgd.c and optim/adam.c.
 *
 * Optimizers pass flat contiguous buffers, which are updated in place; any other layout goes through tiles of TILE
 * elements on the stack. */
#include <math.h>
#include <string.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/runtime/level.h"

#define TILE 1024
#define GRAIN (16 * TILE)

/* Operands in nest order: outputs first. */
enum { PARAMETER, FIRST, SECOND, GRADIENT, OPERANDS };

/* Updates a tile of n elements; tile[k] is contiguous, in the compute type, NULL where absent. The gradient is
 * multiplied by `factor` (clipping) first. */
typedef void (*tile_fn)(int64_t n, void *const *tile, const tarn__optimizer_step *s, double factor);

/* m is the first moment, v the second; bias corrections are in s->now, computed once per step. Weight decay is added
 * to the gradient (SGD, Adam) or applied through `keep` (AdamW). */
#define TILES(type, root) \
    static void sgd_##type(int64_t n, void *const *tile, const tarn__optimizer_step *s, double factor) \
    { \
        type *restrict p = tile[PARAMETER]; \
        const type *restrict gradient = tile[GRADIENT]; \
        type lr = (type)s->now.lr, decay = (type)s->decay, by = (type)factor; \
        for (int64_t i = 0; i < n; i++) \
            p[i] -= lr * (decay != 0 ? by * gradient[i] + decay * p[i] : by * gradient[i]); \
    } \
    static void momentum_##type(int64_t n, void *const *tile, const tarn__optimizer_step *s, double factor) \
    { \
        type *restrict p = tile[PARAMETER], *restrict m = tile[FIRST]; \
        const type *restrict gradient = tile[GRADIENT]; \
        bool first = s->now.step == 1, nesterov = s->nesterov; \
        type lr = (type)s->now.lr, decay = (type)s->decay, momentum = (type)s->beta1, take = (type)(1 - s->dampening), \
             by = (type)factor; \
        for (int64_t i = 0; i < n; i++) { \
            type g = decay != 0 ? by * gradient[i] + decay * p[i] : by * gradient[i]; \
            m[i] = first ? g : momentum * m[i] + take * g; \
            p[i] -= lr * (nesterov ? g + momentum * m[i] : m[i]); \
        } \
    } \
    static void adamw_##type(int64_t n, void *const *tile, const tarn__optimizer_step *s, double factor) \
    { \
        type *restrict p = tile[PARAMETER], *restrict m = tile[FIRST], *restrict v = tile[SECOND]; \
        const type *restrict gradient = tile[GRADIENT]; \
        type take1 = (type)(1 - s->beta1), beta2 = (type)s->beta2, take2 = (type)(1 - s->beta2), \
             epsilon = (type)s->epsilon; \
        type keep = (type)s->now.keep, size = (type)s->now.size, scale = (type)s->now.scale, decay = (type)s->decay, \
             by = (type)factor; \
        for (int64_t i = 0; i < n; i++) { \
            type g = decay != 0 ? by * gradient[i] + decay * p[i] : by * gradient[i]; \
            m[i] += (g - m[i]) * take1; \
            v[i] = beta2 * v[i] + take2 * g * g; \
            p[i] = keep * p[i] - size * m[i] / (root(v[i]) * scale + epsilon); \
        } \
    }
TILES(float, sqrtf)
TILES(double, sqrt)

/* One step over one buffer; views of absent operands are NULL. */
typedef struct work {
    const tarn__view *view[OPERANDS];
    tarn__nest nest;
    int compute;
    tile_fn tile;
    const tarn__optimizer_step *step;
    double factor;
} work;

/* Offset of element `at` of operand k, in elements; *left: elements to the end of its row. */
static int64_t locate(const work *w, int k, int64_t at, int64_t *left)
{
    int64_t offset = 0;
    *left = w->nest.rank ? w->nest.shape[w->nest.rank - 1] - at % w->nest.shape[w->nest.rank - 1] : 1;
    for (int i = w->nest.rank - 1; i >= 0; i--) {
        offset += at % w->nest.shape[i] * w->nest.stride[k][i];
        at /= w->nest.shape[i];
    }
    return offset;
}

/* A task: elements [begin, end) in tiles, operands in place where they are contiguous in the compute type. */
static void update_range(int64_t begin, int64_t end, void *ctx)
{
    const work *w = ctx;
    _Alignas(64) char buffer[OPERANDS][TILE * 8];
    for (int64_t n; begin < end; begin += n) {
        char *address[OPERANDS];
        void *tile[OPERANDS] = {0};
        n = end - begin < TILE ? end - begin : TILE;
        for (int k = 0; k < OPERANDS; k++) {
            const tarn__view *view = w->view[k];
            if (!view)
                continue;
            int64_t left, inner = w->nest.rank ? w->nest.stride[k][w->nest.rank - 1] : 1;
            address[k] =
                (char *)tarn__view_at(view) + locate(w, k, begin, &left) * (int64_t)tarn__dtype_bytes(view->dtype);
            n = left < n ? left : n;
            /* Contiguous in the compute type: no copy. */
            bool in_place = inner == 1 && view->dtype == (w->compute == COMPUTE_F64 ? TARN_F64 : TARN_F32);
            tile[k] = in_place ? address[k] : buffer[k];
            if (!in_place)
                tarn__load[view->dtype][w->compute](address[k], inner, buffer[k], n);
        }
        w->tile(n, tile, w->step, w->factor);
        for (int k = 0; k < GRADIENT; k++)
            if (tile[k] == buffer[k])
                tarn__store[w->view[k]->dtype][w->compute](tile[k], address[k],
                                                           w->nest.rank ? w->nest.stride[k][w->nest.rank - 1] : 1, n);
    }
}

/* The compute type follows the gradient's dtype. The clip factor, if any, is one f64 on the device. */
static void update(const tarn__call *call, tile_fn f32, tile_fn f64)
{
    work w = {.step = call->params, .factor = call->in[1] ? *(const double *)tarn__view_at(call->in[1]) : 1};
    w.view[GRADIENT] = call->in[0];
    for (int k = 0; k < call->outputs; k++)
        w.view[k] = call->out[k];
    w.compute = w.view[GRADIENT]->dtype == TARN_F64 ? COMPUTE_F64 : COMPUTE_F32;
    w.tile = w.compute == COMPUTE_F64 ? f64 : f32;
    tarn__nest_make(&w.nest, OPERANDS, w.view);
    tarn__parallel_for(w.nest.count, GRAIN, update_range, &w);
}

/* 8 bytes read and 4 written per f32 parameter, 4 more each with momentum. */
static void kernel_sgd(const tarn__call *call)
{
    bool has_momentum = call->outputs > 1 && call->out[1];
    update(call, has_momentum ? momentum_float : sgd_float, has_momentum ? momentum_double : sgd_double);
}

/* 16 bytes read and 12 written per f32 parameter; about 12 operations. */
static void kernel_adamw(const tarn__call *call)
{
    update(call, adamw_float, adamw_double);
}

void TARN__AT_LEVEL(tarn__cpu_register_optimizer)(tarn__kernel_row *rows)
{
    uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64); /* of the gradient */
    rows[TARN__K_sgd] = tarn__row(kernel_sgd, dtypes, NULL);
    rows[TARN__K_adamw] = tarn__row(kernel_adamw, dtypes, NULL);
}

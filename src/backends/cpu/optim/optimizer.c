/* optimizer.c: SGD and AdamW updates by base/kernel/optimizer.def. Each element is read and written once (28 bytes per
 * f32 parameter for AdamW).
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

/* The update of a rule's states. */
#define UPDATE_0(type, first, second)
#define UPDATE_1(type, first, second) \
    type m = firsts[i]; \
    firsts[i] = m = first;
#define UPDATE_2(type, first, second) \
    UPDATE_1(type, first, second) \
    type v = seconds[i]; \
    seconds[i] = v = second;

#define SCALAR_float(name, value) const float name = (float)(value);
#define SCALAR_double(name, value) const double name = value;
#define FLAG(name, value) const bool name = value;
#define SQRT(x) _Generic((x), float : sqrtf, double : sqrt)(x)

#define TILE_FN(name, type, states, first, second, parameter) \
    static void name##_##type(int64_t n, void *const *tile, const tarn__optimizer_step *step, double factor) \
    { \
        type *restrict parameters = tile[PARAMETER], *restrict firsts = tile[FIRST], *restrict seconds = tile[SECOND]; \
        const type *restrict gradients = tile[GRADIENT]; \
        const tarn__optimizer_step s = *step; \
        const tarn__step_scalars now = s.now; \
        const type by = (type)factor; \
        OPTIMIZER_SCALARS_##name(SCALAR_##type, FLAG)(void) firsts, (void)seconds; \
        for (int64_t i = 0; i < n; i++) { \
            const type raw = by * gradients[i], p = parameters[i], g = OPTIMIZER_GRADIENT; \
            UPDATE_##states(type, first, second) parameters[i] = parameter; \
        } \
    }
#define RULE(name, states, reads, first, second, parameter) \
    TILE_FN(name, float, states, first, second, parameter) \
    TILE_FN(name, double, states, first, second, parameter)
#include "base/kernel/optimizer.def"

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
    rows[TARN__K_sgd] = tarn__row(kernel_sgd, dtypes);
    rows[TARN__K_adamw] = tarn__row(kernel_adamw, dtypes);
}

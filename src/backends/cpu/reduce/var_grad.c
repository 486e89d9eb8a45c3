/* var_grad.c: the gradient of var: (x - mean) · g, where g already includes the factor 2 / (count - correction). Two
 * passes: means in f64, by the sum kernel, then one over x. */
#include <pthread.h>

#include "backends/cpu/elementwise/elementwise_loops.h"
#include "backends/cpu/reduce/reduce_grad_rows.h"
#include "backends/cpu/runtime/level.h"

static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A kernel table of this level's own, for the sum kernel: the registered table may hold another level's. */
static void fill_rows(void)
{
    TARN__AT_LEVEL(tarn__cpu_register_reduce)(rows);
}

static const tarn__kernel_row *sum_row(void)
{
    pthread_once(&once, fill_rows);
    return &rows[TARN__K_sum];
}

/* Means are computed by the sum kernel: f64, in g's shape, at the start of scratch; the sum's own scratch follows. */
typedef struct job {
    size_t means_bytes;
    tarn__part sum;
} job;

/* The call of the sum kernel. */
typedef struct means {
    tarn__view view;
    tarn__reduce params;
    tarn__call call;
} means;

/* mean = sum with scale outputs / inputs. Fills in a call on copies of the views; the caller provides scratch. */
static void describe_means(means *m, const tarn__call *call)
{
    m->view = *call->in[1];
    m->view.memory = call->scratch;
    m->view.offset = 0;
    m->view.dtype = TARN_F64;
    tarn__view_set_row_major(&m->view);
    int64_t outputs = tarn__view_count(&m->view);
    /* Divides by the number of elements per output. */
    m->params = (tarn__reduce){.scale = outputs > 0 ? (double)outputs / (double)tarn__view_count(call->in[0]) : 0};
    m->call = *call;
    m->call.inputs = m->call.outputs = 1;
    m->call.reads_output = 0;
    m->call.out[0] = &m->view;
    m->call.params = &m->params;
    m->call.params_bytes = sizeof(m->params);
}

static tarn__plan_status prepare_var_grad(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    means m;
    if (!j)
        return TARN__PLAN_FAILED;
    describe_means(&m, call);
    tarn__plan_status status = tarn__part_prepare(plan, &j->sum, sum_row(), &m.call);
    j->means_bytes = sizeof(double) * (size_t)tarn__view_count(&m.view);
    plan->scratch_bytes = j->means_bytes + j->sum.scratch_bytes;
    return status;
}

/* in: x, g, mean. Tiles, and the same for a contiguous row. tile_: operands broadcast by the engine; dense_: one row
 * with scalar g and mean. */
#define TILE(name, T) \
    static void tile_##name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        const T *x = in[0], *g = in[1], *mean = in[2]; \
        T *y = out[0]; \
        (void)params; \
        TARN__INDEPENDENT \
        for (int64_t i = 0; i < n; i++) \
            y[i] = (x[i] - mean[i]) * g[i]; \
    } \
    static void dense_##name(char *const *at, int64_t n) \
    { \
        const T *x = (const T *)(const void *)at[1], g = *(const T *)(const void *)at[2], \
                mean = (T) * (const double *)(const void *)at[3]; \
        T *y = (T *)(void *)at[0]; \
        TARN__INDEPENDENT \
        for (int64_t i = 0; i < n; i++) \
            y[i] = (x[i] - mean) * g; \
    }

TILE(f32, float)
TILE(f64, double)

/* Contiguous rows take one pass with a scalar mean and g per row. */
static void kernel_var_grad(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    means m;
    if (tarn__view_count(call->out[0]) == 0)
        return;
    describe_means(&m, call);
    m.call.scratch = (char *)call->scratch + j->means_bytes;
    tarn__part_run(call, &j->sum, &m.call);
    int compute = tarn__compute_of(call->in[0]->dtype);
    grad_rows dense;
    if ((call->in[0]->dtype == TARN_F32 || call->in[0]->dtype == TARN_F64) &&
        grad_rows_make(&dense, 4, (const tarn__view *[]){call->out[0], call->in[0], call->in[1], &m.view})) {
        grad_rows_run(&dense, compute == COMPUTE_F32 ? dense_f32 : dense_f64);
        return;
    }
    tarn__elementwise none = {0};
    tarn__call tiles = {
        .inputs = 3, .outputs = 1, .in = {call->in[0], call->in[1], &m.view}, .out = {call->out[0]}, .params = &none};
    TARN__AT_LEVEL(tarn__run_tiles)
    (&tiles, &(tarn__tile_job){.tile = compute == COMPUTE_F32 ? tile_f32 : tile_f64, .compute = compute});
}

void TARN__AT_LEVEL(tarn__cpu_register_var_grad)(tarn__kernel_row *table)
{
    table[TARN__K_var_grad] = tarn__row_planned(prepare_var_grad, kernel_var_grad, TARN__FLOATS);
}

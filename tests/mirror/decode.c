/* decode.c: the kernels of a decode step for the mirror, by their definitions in kernels.def: f64 inside, floats
 * outside. The CPU has none of them; with them a test sees which kernels a decode step is made of where a device has
 * them all. */
#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "mirror.h"

enum { MAX_IN = 4096, MAX_HEAD = 256 };

#define FLOATS (TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16))

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static double get(const tarn__view *view, int64_t at)
{
    const char *from = (const char *)tarn__view_at(view) + tarn__bytes_of(view->dtype, 1) * at;
    return view->dtype == TARN_F32    ? (double)*(const float *)(const void *)from
           : view->dtype == TARN_BF16 ? (double)tarn__bf16_to_f32(*(const uint16_t *)(const void *)from)
                                      : (double)tarn__f16_to_f32(*(const uint16_t *)(const void *)from);
}

static void put(const tarn__view *view, int64_t at, double value)
{
    char *to = (char *)tarn__view_at(view) + tarn__bytes_of(view->dtype, 1) * at;
    if (view->dtype == TARN_F32)
        *(float *)(void *)to = (float)value;
    else
        *(uint16_t *)(void *)to =
            view->dtype == TARN_BF16 ? tarn__f32_to_bf16((float)value) : tarn__f32_to_f16((float)value);
}

static double get2(const tarn__view *view, int64_t row, int64_t column)
{
    return get(view, row * view->stride[0] + column * view->stride[1]);
}

static double get4(const tarn__view *view, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return get(view, a * view->stride[0] + b * view->stride[1] + c * view->stride[2] + d * view->stride[3]);
}

static void put4(const tarn__view *view, int64_t a, int64_t b, int64_t c, int64_t d, double value)
{
    put(view, a * view->stride[0] + b * view->stride[1] + c * view->stride[2] + d * view->stride[3], value);
}

/* ---- linear layers ----------------------------------------------------------------------------------------------- */

/* A row of x after its norm; weight NULL: as it is. */
static void normalize(const tarn__view *x, int64_t row, const tarn__view *weight, const tarn__view *bias,
                      const tarn__decode_linear *p, double *y)
{
    int64_t in = x->shape[1];
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < in; i++)
        mean += y[i] = get2(x, row, i);
    mean = p->centred ? mean / (double)in : 0;
    for (int64_t i = 0; i < in; i++)
        squares += (y[i] - mean) * (y[i] - mean);
    for (int64_t i = 0; weight && i < in; i++)
        y[i] =
            (y[i] - mean) / sqrt(squares / (double)in + p->epsilon) * (get(weight, i * weight->stride[0]) + p->offset) +
            (bias ? get(bias, i * bias->stride[0]) : 0);
}

/* x, or with a post-norm the new sum of the stream, which it writes. */
static const tarn__view *stream_of(const tarn__call *call, int64_t row, int post, int new_sum)
{
    const tarn__decode_linear *p = call->params;
    const tarn__decode_linear of_post = {.epsilon = p->post_epsilon, .offset = p->post_offset};
    double x[MAX_IN];
    if (call->inputs <= post || !call->in[post])
        return call->in[0];
    const tarn__view *to = call->out[new_sum];
    normalize(call->in[0], row, call->in[post], NULL, &of_post, x);
    for (int64_t i = 0; i < to->shape[1]; i++)
        put(to, row * to->stride[0] + i * to->stride[1], get2(call->in[post + 1], row, i) + p->post_scale * x[i]);
    return to;
}

static double dot(const double *x, const tarn__view *weight, int64_t row)
{
    double sum = 0;
    for (int64_t i = 0; i < weight->shape[1]; i++)
        sum += x[i] * get2(weight, row, i);
    return sum;
}

static double activate(int32_t act, double x)
{
    switch (act) {
    case TARN__ACT_SILU: return x / (1 + exp(-x));
    case TARN__ACT_GELU: return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
    case TARN__ACT_GELU_ERF: return x * erfc(-x / sqrt(2)) / 2;
    case TARN__ACT_RELU: return x < 0 ? 0 : x;
    default: return x;
    }
}

static void norm_linear(const tarn__call *call)
{
    const tarn__decode_linear *p = call->params;
    double x[MAX_IN];
    for (int64_t row = 0; row < call->in[0]->shape[0]; row++) {
        normalize(stream_of(call, row, 9, 3), row, call->in[1], call->in[8], p, x);
        for (int k = 0; k < 3 && call->in[2 + k]; k++)
            for (int64_t i = 0; i < call->in[2 + k]->shape[0]; i++) {
                const tarn__view *bias = call->in[5 + k], *y = call->out[k];
                double value = dot(x, call->in[2 + k], i) + (bias ? get(bias, i * bias->stride[0]) : 0);
                value = p->scale * activate(p->act, value);
                value = p->softcap > 0 ? p->softcap * tanh(value / p->softcap) : value;
                put(y, row * y->stride[0] + i * y->stride[1], value);
            }
    }
}

static void norm_gate_up(const tarn__call *call)
{
    const tarn__decode_linear *p = call->params;
    const tarn__view *y = call->out[0];
    double x[MAX_IN];
    for (int64_t row = 0; row < y->shape[0]; row++) {
        normalize(stream_of(call, row, 5, 1), row, call->in[1], call->in[4], p, x);
        for (int64_t i = 0; i < y->shape[1]; i++)
            put(y, row * y->stride[0] + i * y->stride[1],
                activate(p->act, dot(x, call->in[2], i)) * dot(x, call->in[3], i));
    }
}

static void linear_residual(const tarn__call *call)
{
    const tarn__decode_linear *p = call->params;
    const tarn__view *y = call->out[0], *bias = call->in[2];
    double x[MAX_IN];
    for (int64_t row = 0; row < y->shape[0]; row++) {
        normalize(call->in[0], row, NULL, NULL, p, x);
        for (int64_t i = 0; i < y->shape[1]; i++) {
            double value = dot(x, call->in[1], i) + (bias ? get(bias, i * bias->stride[0]) : 0);
            put(y, row * y->stride[0] + i * y->stride[1], get2(call->in[3], row, i) + p->scale * value);
        }
    }
}

static void norm_residual(const tarn__call *call)
{
    const tarn__decode_linear *p = call->params;
    const tarn__view *y = call->out[0];
    double x[MAX_IN];
    for (int64_t row = 0; row < y->shape[0]; row++) {
        normalize(call->in[0], row, call->in[1], call->in[2], p, x);
        for (int64_t i = 0; i < y->shape[1]; i++)
            put(y, row * y->stride[0] + i * y->stride[1], get2(call->in[3], row, i) + p->scale * x[i]);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* One head of x (B, 1, H, D), rotated if it has RoPE. */
static void head_of(const tarn__view *x, int64_t b, int64_t h, const tarn__rope *rope, int64_t position, double *y)
{
    int64_t pairs = rope ? rope->dims / 2 : 0;
    for (int64_t i = 0; i < x->shape[3]; i++)
        y[i] = get4(x, b, 0, h, i);
    for (int64_t i = 0; i < pairs; i++) {
        int64_t one = rope->interleaved ? 2 * i : i, two = rope->interleaved ? 2 * i + 1 : i + pairs;
        double angle = (double)position * rope->frequency[i], c = cos(angle) * rope->magnitude,
               s = sin(angle) * rope->magnitude, a = y[one], b2 = y[two];
        y[one] = a * c - b2 * s;
        y[two] = a * s + b2 * c;
    }
}

static void attend(const tarn__attention_decode *p, const tarn__view *const *caches, int64_t b, int64_t kv,
                   int64_t last, const double *q, double *y)
{
    int64_t depth = caches[0]->shape[3], first = p->window > 0 && last + 1 > p->window ? last + 1 - p->window : 0;
    double total = 0, largest = -INFINITY, *weight = malloc(sizeof(*weight) * (size_t)(last + 1));
    for (int64_t s = first; s <= last; s++) {
        weight[s] = 0;
        for (int64_t i = 0; i < depth; i++)
            weight[s] += q[i] * get4(caches[0], b, kv, s, i);
        weight[s] *= p->scale;
        weight[s] = p->softcap > 0 ? p->softcap * tanh(weight[s] / p->softcap) : weight[s];
        largest = weight[s] > largest ? weight[s] : largest;
    }
    for (int64_t i = 0; i < depth; i++)
        y[i] = 0;
    for (int64_t s = first; s <= last; s++) {
        total += weight[s] = exp(weight[s] - largest);
        for (int64_t i = 0; i < depth; i++)
            y[i] += weight[s] * get4(caches[1], b, kv, s, i);
    }
    for (int64_t i = 0; i < depth; i++)
        y[i] /= total;
    free(weight);
}

static void attention_decode(const tarn__call *call)
{
    const tarn__attention_decode *p = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *at = call->in[3], *caches[] = {call->out[1], call->out[2]};
    double row[MAX_HEAD], y[MAX_HEAD];
    for (int64_t b = 0; b < q->shape[0]; b++) {
        const char *from = (const char *)tarn__view_at(at) + tarn__bytes_of(at->dtype, 1) * b * at->stride[0];
        int64_t position =
            at->dtype == TARN_I64 ? *(const int64_t *)(const void *)from : *(const int32_t *)(const void *)from;
        for (int64_t h = 0; h < k->shape[2]; h++)
            for (int part = 0; part < 2; part++) {
                head_of(call->in[1 + part], b, h, part ? NULL : &p->rope, position, row);
                for (int64_t i = 0; i < q->shape[3]; i++)
                    put4(caches[part], b, h, position, i, row[i]);
            }
        for (int64_t h = 0; h < q->shape[2]; h++) {
            head_of(q, b, h, &p->rope, position, row);
            attend(p, caches, b, h * k->shape[2] / q->shape[2], position, row, y);
            for (int64_t i = 0; i < q->shape[3]; i++)
                put4(call->out[0], b, 0, h, i, y[i]);
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Floats of rows that a buffer holds. */
static bool rows_fit(const tarn__call *call)
{
    bool good = call->in[0]->rank == 2 && call->in[0]->shape[1] <= MAX_IN;
    for (int i = 1; good && i < call->inputs; i++)
        good = !call->in[i] || ((FLOATS >> call->in[i]->dtype) & 1);
    return good;
}

static bool heads_fit(const tarn__call *call)
{
    return call->in[0]->rank == 4 && call->in[0]->shape[3] <= MAX_HEAD;
}

void mirror_add_decode(tarn__kernel_row *rows)
{
    static const struct {
        tarn__kernel kernel;
        tarn__kernel_fn run;
    } linears[] = {{TARN__K_norm_linear, norm_linear},
                   {TARN__K_norm_gate_up, norm_gate_up},
                   {TARN__K_linear_residual, linear_residual},
                   {TARN__K_norm_residual, norm_residual}};
    for (size_t i = 0; i < sizeof(linears) / sizeof(linears[0]); i++)
        rows[linears[i].kernel] = tarn__row_fits(tarn__row(linears[i].run, FLOATS), rows_fit);
    rows[TARN__K_attention_decode] = tarn__row_fits(tarn__row(attention_decode, FLOATS), heads_fit);
}

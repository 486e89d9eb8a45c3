/* gradcheck.c: gradients from backward against central differences, in f64. The function is called with the same
 * random numbers each time; its result is reduced to a scalar by a random upstream gradient.
 *
 * Cost: two evaluations per element of every input that requires a gradient. */
#include <math.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/memory.h"
#include "base/philox.h"
#include "core/tensor/random.h"

typedef struct check {
    tarn_checkpoint_fn function;
    void *ctx;
    tarn_tensor *const *inputs;
    int count;
    tarn_gradcheck_options options;
    tarn__rng_state generator;
    double *upstream; /* random upstream gradient of the result */
    int64_t results;
} check;

/* The function's result, always with the same random numbers. In the open scope. */
static tarn_tensor *evaluate(check *c)
{
    tarn__random_restore(&c->generator);
    tarn_tensor *result = c->function(c->inputs, c->count, c->ctx);
    if (!result)
        tarn__raise(TARN_ERROR_ARGUMENT, "gradcheck: the function returned NULL");
    return tarn_failed() || !tarn__check_dtype("gradcheck", result, TARN__BIT(TARN_F64), "the result") ? NULL : result;
}

/* The scalar that both methods differentiate: sum of upstream · result. */
static double objective(check *c)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    tarn_tensor *result = scope ? evaluate(c) : NULL;
    double sum = NAN;
    double *values = result ? tarn__alloc(sizeof(double) * (size_t)c->results) : NULL;
    if (values && tarn_read_f64(result, values, c->results)) {
        sum = 0;
        for (int64_t i = 0; i < c->results; i++)
            sum += values[i] * c->upstream[i];
    }
    tarn__release(values, sizeof(double) * (size_t)c->results);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return sum;
}

/* Runs backward once and leaves the gradients in the inputs. */
static bool analytic(check *c)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *result = scope ? evaluate(c) : NULL;
    if (result) {
        c->results = tarn_count(result);
        c->upstream = tarn__alloc(sizeof(double) * (size_t)c->results);
    }
    bool good = result && c->upstream;
    for (int64_t i = 0; good && i < c->results; i++) {
        uint32_t word[4];
        tarn__philox(c->options.seed + 0x7a72u, (uint64_t)i, word);
        c->upstream[i] = 0.5 + (double)word[0] * 0x1p-32 * ((word[1] & 1) ? 1 : -1);
    }
    if (good && !tarn_needs_grad(result))
        good = tarn__raise(TARN_ERROR_ARGUMENT,
                           "gradcheck: the result does not depend on an input that requires a gradient");
    tarn_tensor *upstream = good ? tarn_from_f64(c->upstream, tarn_shape_of(result), tarn_device_of(result)) : NULL;
    good = upstream && tarn_backward_from(result, upstream, NULL);
    tarn_scope_close(scope);
    return good;
}

/* Central difference d objective / d values[k]. */
static double difference(check *c, tarn_tensor *input, double *values, int64_t count, int64_t k)
{
    double x = values[k], step = c->options.step * (1 + fabs(x)), side[2];
    for (int i = 0; i < 2; i++) {
        values[k] = i == 0 ? x - step : x + step;
        side[i] = tarn_write(input, values, sizeof(double) * (size_t)count) ? objective(c) : NAN;
    }
    double width = (x + step) - (x - step);
    values[k] = x;
    tarn__error_record failure; /* the input is restored even if the function failed */
    tarn__error_save(&failure);
    bool good = tarn_write(input, values, sizeof(double) * (size_t)count);
    tarn__error_restore(&failure);
    return good ? (side[1] - side[0]) / width : NAN;
}

/* The tolerance is relative to the larger of the value and the RMS of all, so that zeros among large gradients pass. */
static bool compare(check *c, int which, const double *found, const double *expected, int64_t count)
{
    double squares = 0;
    for (int64_t k = 0; k < count; k++)
        squares += expected[k] * expected[k];
    double rms = count ? sqrt(squares / (double)count) : 0;
    for (int64_t k = 0; k < count; k++) {
        double scale = fmax(fmax(fabs(expected[k]), rms), 1e-3);
        if (!(fabs(found[k] - expected[k]) <= c->options.tolerance * scale))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "gradcheck: input %d, element %lld: backward gives %.12g, differences %.12g", which,
                               (long long)k, found[k], expected[k]);
    }
    return true;
}

/* Perturbs every element of one input: two evaluations each, so inputs should be small. */
static bool check_input(check *c, int which)
{
    tarn_tensor *input = c->inputs[which];
    int64_t count = tarn_count(input);
    size_t bytes = sizeof(double) * (size_t)count;
    double *values = tarn__alloc(bytes), *found = tarn__alloc(bytes), *expected = tarn__alloc(bytes);
    bool good = values && found && expected && tarn_read_f64(input, values, count);
    if (good && tarn_grad(input))
        good = tarn_read_f64(tarn_grad(input), found, count);
    for (int64_t k = 0; good && k < count; k++) {
        expected[k] = difference(c, input, values, count, k);
        good = !tarn_failed();
    }
    good = good && compare(c, which, found, expected, count);
    tarn__release(values, bytes);
    tarn__release(found, bytes);
    tarn__release(expected, bytes);
    return good;
}

/* Inputs that require gradients must be f64; others are passed through. Leaves the generator where the last call put
 * it. */
bool tarn_gradcheck_sized(tarn_checkpoint_fn function, void *ctx, tarn_tensor *const *inputs, int count,
                          const tarn_gradcheck_options *options, size_t options_size)
{
    check c = {.function = function, .ctx = ctx, .inputs = inputs, .count = count};
    if (tarn_failed())
        return false;
    if (!function || !inputs || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gradcheck: a function and at least one input are required");
    for (int i = 0; i < count; i++) {
        if (!tarn__check_any("gradcheck", inputs[i], "an input"))
            return false;
        if (inputs[i]->origin->requires_grad &&
            !tarn__check_dtype("gradcheck", inputs[i], TARN__BIT(TARN_F64), "an input"))
            return false;
        tarn_zero_grad(inputs[i]);
    }
    if (options)
        memcpy(&c.options, options, options_size < sizeof(c.options) ? options_size : sizeof(c.options));
    c.options.step = c.options.step > 0 ? c.options.step : 1e-4;
    c.options.tolerance = c.options.tolerance > 0 ? c.options.tolerance : 1e-5;
    c.generator = tarn__random_save();
    bool good = analytic(&c);
    for (int i = 0; good && i < count; i++)
        if (inputs[i]->origin->requires_grad)
            good = check_input(&c, i);
    tarn__release(c.upstream, sizeof(double) * (size_t)c.results);
    return good;
}

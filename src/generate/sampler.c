/* sampler.c: choosing tokens from logits, on their device.
 *
 * A token is drawn by a race: each gets a random time from an exponential distribution, divided by its probability, and the first one wins; the
 * winner is i with probability p[i], and tokens of probability 0 never win. Where only the likeliest tokens may win the logits are sorted, so
 * that the likeliest comes first: the one that is taken when all times are infinite. */
#include <math.h>
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/generate.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/random.h"
#include "core/tensor.h"

#define COLDEST 1e-4 /* temperature */
#define HOTTEST 100.0

struct tarn_sampler {
    tarn_sampler_options options;
    tarn__generator generator;
};

static bool check_options(const tarn_sampler_options *o)
{
    if (o->temperature != 0 && !(o->temperature >= COLDEST && o->temperature <= HOTTEST))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .temperature is %g; it must be 0, or from %g to %g", o->temperature, COLDEST,
                           HOTTEST);
    if (o->top_k < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .top_k is %lld; it must be at least 0", (long long)o->top_k);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .top_p is %g; it must be from 0 to 1", o->top_p);
    return true;
}

tarn_sampler *tarn_sampler_new_sized(const tarn_sampler_options *options, size_t options_size)
{
    tarn_sampler_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !check_options(&chosen))
        return NULL;
    tarn_sampler *sampler = tarn__alloc(sizeof(*sampler));
    if (sampler)
        *sampler = (tarn_sampler){.options = chosen, .generator = {.seed = chosen.seed}};
    return sampler;
}

void tarn_sampler_free(tarn_sampler *sampler)
{
    tarn__release(sampler, sizeof(*sampler));
}

/* The place of the winner in each row of probabilities [B, N]: [B, 1]. */
static tarn_tensor *race(tarn_sampler *sampler, tarn_tensor *probability)
{
    tarn__generator callers = tarn__random_save();
    tarn__random_restore(&sampler->generator);
    tarn_tensor *uniform = tarn_uniform_like(probability, 0, 1);
    sampler->generator = tarn__random_save();
    tarn__random_restore(&callers);
    return tarn_argmax(tarn_div(probability, tarn_neg(tarn_log(uniform))), 1, true);
}

/* Sorted probabilities [B, N] without those that come after the sum has reached top_p. */
static tarn_tensor *nucleus(tarn_tensor *probability, double top_p)
{
    tarn_tensor *before = tarn_sub(tarn_cumsum(probability, 1), probability);
    return tarn_where(tarn_lt(before, tarn_scalar(top_p)), probability, tarn_scalar(0));
}

/* i64 [B, 1] from f32 or f64 logits [B, V]. */
static tarn_tensor *draw(tarn_sampler *sampler, tarn_tensor *logits)
{
    const tarn_sampler_options *o = &sampler->options;
    int64_t vocab = tarn_size(logits, 1), most = o->top_k > 0 && o->top_k < vocab ? o->top_k : vocab;
    bool by_sum = o->top_p > 0 && o->top_p < 1;
    tarn_tensor *index = NULL;
    if (o->temperature == 0)
        return tarn_argmax(logits, 1, true);
    if ((most < vocab || by_sum) && !tarn_topk(logits, most, 1, true, &logits, &index))
        return NULL;
    tarn_tensor *cool = tarn_mul(tarn_sub(logits, tarn_max(logits, TARN_AXES(1), true)), tarn_scalar(1 / o->temperature));
    tarn_tensor *probability = tarn_softmax(cool, 1);
    if (by_sum)
        probability = nucleus(probability, o->top_p);
    tarn_tensor *winner = race(sampler, probability);
    return index ? tarn_gather(index, 1, winner) : winner;
}

/* -1 in the place of tokens whose logits are NaN or all infinite. */
static tarn_tensor *marked(tarn_tensor *token, tarn_tensor *logits)
{
    tarn_tensor *largest = tarn_max(logits, TARN_AXES(1), true), *gap = tarn_sub(largest, largest); /* 0, or NaN */
    return tarn_where(tarn_eq(gap, tarn_scalar(0)), token, tarn_scalar(-1));
}

static bool check_logits(const tarn_tensor *logits)
{
    const tarn__view *view = &logits->view;
    if (view->rank != 2 || view->shape[0] < 1 || view->shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "sampler_draw: the logits are %s; they must be [batch, vocab], at least one of each",
                           TARN__SHAPE_TEXT(logits));
    return tarn__check_dtype("sampler_draw", logits, TARN__FLOATS, "the logits");
}

tarn_tensor *tarn_sampler_draw(tarn_sampler *sampler, tarn_tensor *logits)
{
    const char *function = "sampler_draw";
    if (tarn_failed())
        return NULL;
    if (!sampler) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the sampler is NULL", function);
        return NULL;
    }
    if (!tarn__check(function, logits, "the logits") || !check_logits(logits))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    tarn_no_grad_open();
    tarn_tensor *wide = logits->view.dtype == TARN_F64 ? logits : tarn_cast(logits, TARN_F32);
    tarn_tensor *token = wide ? marked(draw(sampler, wide), wide) : NULL;
    tarn_no_grad_close();
    token = token ? tarn_scope_return(scope, token) : NULL;
    tarn_scope_close(scope);
    if (!token)
        tarn__raise_within(function);
    return token;
}

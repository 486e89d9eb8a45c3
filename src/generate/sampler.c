/* sampler.c: sampling of tokens from logits, on their device.
 *
 * Logits are processed in the order of transformers and vLLM: mask, logit bias, repetition penalty, frequency and
 * presence penalty, temperature, top_k, top_p, min_p. The token history of the repetition penalty is on the device too;
 * it is scattered into a row of the vocabulary. Bias and counts of sampled tokens are such rows.
 *
 * Sampling uses exponential races (equivalent to the Gumbel-max trick): every token gets a random time from an
 * exponential distribution, divided by its probability, and the first one wins; the winner is i with probability
 * p[i], and tokens of probability 0 never win. With top_k or top_p the logits are sorted, so that the most likely
 * token comes first: it is taken if all times are infinite.
 *
 * Nothing here waits for the device: a row without a valid token gives -1, which the caller finds when it reads the
 * token. */
#include <math.h>
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/generate.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/tensor/random.h"
#include "core/tensor/tensor.h"
#include "ops/internal.h"

#define MIN_TEMPERATURE 1e-4 /* temperature */
#define MAX_TEMPERATURE 100.0

#define MIN_PENALTY 0.01 /* repetition penalty */
#define MAX_PENALTY 100.0

#define MAX_SHIFT 100.0 /* frequency and presence penalty, logit bias: either sign */

struct tarn_sampler {
    tarn_sampler_options options;
    tarn__rng_state generator;
    tarn_tensor *history;  /* i64 [batch, n], retained: tokens that are penalized; NULL: none */
    tarn_logit_bias *bias; /* owned copy of options.logit_bias */
    tarn_tensor *bias_row; /* f32 [1, vocab_size], retained: all of it; NULL until the first sample */
    tarn_tensor *counts;   /* f32 [batch, vocab_size], retained: how often each token was sampled; NULL: never */
    uint32_t *masks;       /* [mask_rows, mask_words]: of the next sample; NULL: none */
    int64_t mask_rows, mask_words;
};

/* Raises values out of range that are added to logits. */
static bool check_shifts(const tarn_sampler_options *o)
{
    if (!(fabs(o->frequency_penalty) <= MAX_SHIFT) || !(fabs(o->presence_penalty) <= MAX_SHIFT))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "sampler_new: .frequency_penalty is %g and .presence_penalty %g; they must be from %g to %g",
                           o->frequency_penalty, o->presence_penalty, -MAX_SHIFT, MAX_SHIFT);
    if (o->logit_bias_count < 0 || (o->logit_bias_count > 0 && !o->logit_bias))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .logit_bias_count is %d%s", o->logit_bias_count,
                           o->logit_bias ? "" : ", but .logit_bias is NULL");
    for (int i = 0; i < o->logit_bias_count; i++)
        if (o->logit_bias[i].token < 0 || !(fabs(o->logit_bias[i].bias) <= MAX_SHIFT))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "sampler_new: .logit_bias[%d] is %g for token %d; it must be from %g to %g, for a token "
                               "of at least 0",
                               i, o->logit_bias[i].bias, (int)o->logit_bias[i].token, -MAX_SHIFT, MAX_SHIFT);
    return true;
}

/* Raises options out of range. NaN fails every comparison and is raised too. */
static bool check_options(const tarn_sampler_options *o)
{
    if (o->temperature != 0 && !(o->temperature >= MIN_TEMPERATURE && o->temperature <= MAX_TEMPERATURE))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .temperature is %g; it must be 0, or from %g to %g",
                           o->temperature, MIN_TEMPERATURE, MAX_TEMPERATURE);
    if (o->top_k < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .top_k is %lld; it must be at least 0",
                           (long long)o->top_k);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .top_p is %g; it must be from 0 to 1", o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .min_p is %g; it must be from 0 to 1", o->min_p);
    if (o->repeat_penalty != 0 && !(o->repeat_penalty >= MIN_PENALTY && o->repeat_penalty <= MAX_PENALTY))
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .repeat_penalty is %g; it must be 0, or from %g to %g",
                           o->repeat_penalty, MIN_PENALTY, MAX_PENALTY);
    if (o->repeat_last_n < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "sampler_new: .repeat_last_n is %lld; it must be at least 0",
                           (long long)o->repeat_last_n);
    return check_shifts(o);
}

tarn_sampler *tarn_sampler_new_sized(const tarn_sampler_options *options, size_t options_size)
{
    tarn_sampler_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !check_options(&chosen))
        return NULL;
    tarn_sampler *sampler = tarn__alloc(sizeof(*sampler));
    if (!sampler)
        return NULL;
    *sampler = (tarn_sampler){.options = chosen, .generator = {.seed = chosen.seed}};
    size_t bytes = sizeof(*sampler->bias) * (size_t)chosen.logit_bias_count;
    if (bytes > 0 && !(sampler->bias = tarn__alloc(bytes))) {
        tarn_sampler_free(sampler);
        return NULL;
    }
    if (bytes > 0)
        memcpy(sampler->bias, chosen.logit_bias, bytes);
    return sampler;
}

static void drop_masks(tarn_sampler *sampler)
{
    tarn__release(sampler->masks, sizeof(*sampler->masks) * (size_t)(sampler->mask_rows * sampler->mask_words));
    sampler->masks = NULL;
}

void tarn_sampler_free(tarn_sampler *sampler)
{
    if (sampler) {
        tarn_free(sampler->history);
        tarn_free(sampler->counts);
        tarn_free(sampler->bias_row);
        tarn__release(sampler->bias, sizeof(*sampler->bias) * (size_t)sampler->options.logit_bias_count);
        drop_masks(sampler);
    }
    tarn__release(sampler, sizeof(*sampler));
}

/* Raises if the sampler is NULL. */
static bool check_sampler(const char *function, const tarn_sampler *sampler)
{
    if (tarn_failed())
        return false;
    return sampler || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the sampler is NULL", function);
}

/* ---- token history ----------------------------------------------------------------------------------------------- */

/* A penalty of 1 changes nothing: history and masks are skipped. */
static bool has_penalty(const tarn_sampler *sampler)
{
    return sampler->options.repeat_penalty != 0 && sampler->options.repeat_penalty != 1;
}

/* Appends i64 tokens [batch, T] to the history, and drops all but the last repeat_last_n. */
static bool append_history(tarn_sampler *sampler, tarn_tensor *tokens)
{
    int64_t window = sampler->options.repeat_last_n;
    tarn_tensor *both[] = {sampler->history, tokens};
    tarn_tensor *all = sampler->history ? tarn_concat(both, 2, 1) : tokens;
    int64_t length = all ? tarn_size(all, 1) : 0;
    if (all && window > 0 && length > window)
        all = tarn_slice(all, 1, length - window, length);
    tarn_tensor *kept = all ? tarn__scope_take(tarn_clone(all)) : NULL;
    if (!kept)
        return false;
    tarn_free(sampler->history);
    sampler->history = kept;
    return true;
}

/* Raises unless tokens are [batch, T] integers. */
static bool check_tokens(const char *function, const tarn_tensor *tokens)
{
    const tarn__view *view = &tokens->view;
    if (view->rank != 2 || view->shape[0] < 1 || view->shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: the tokens are %s; they must be [batch, T], at least one of each",
                           function, TARN__SHAPE_STRING(tokens));
    return tarn__check_dtype(function, tokens, TARN__INDEXES, "the tokens");
}

/* Without a penalty the tokens are checked and dropped. */
bool tarn_sampler_accept(tarn_sampler *sampler, tarn_tensor *tokens)
{
    const char *function = "sampler_accept";
    if (!check_sampler(function, sampler) || !tarn__check(function, tokens, "the tokens") ||
        !check_tokens(function, tokens))
        return false;
    if (sampler->history && tarn_size(sampler->history, 0) != tokens->view.shape[0])
        return tarn__raise(TARN_ERROR_SHAPE, "%s: the tokens are %s; the history has %lld sequences", function,
                           TARN__SHAPE_STRING(tokens), (long long)tarn_size(sampler->history, 0));
    if (!has_penalty(sampler))
        return true;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && append_history(sampler, tarn_cast(tokens, TARN_I64));
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}

bool tarn_sampler_reset(tarn_sampler *sampler)
{
    if (!check_sampler("sampler_reset", sampler))
        return false;
    tarn_free(sampler->history);
    tarn_free(sampler->counts);
    sampler->history = sampler->counts = NULL;
    return true;
}

/* Logits [B, V] with the penalty on tokens of the history: positive ones divided, negative ones multiplied. */
static tarn_tensor *penalize(const tarn_sampler *sampler, tarn_tensor *logits)
{
    double penalty = sampler->options.repeat_penalty;
    if (!has_penalty(sampler) || !sampler->history)
        return logits;
    tarn_tensor *none = tarn_zeros_like(logits),
                *marks = tarn_full(tarn_shape_of(sampler->history), 1, tarn_dtype_of(logits), tarn_device_of(logits));
    tarn_tensor *history = tarn_gt(tarn_scatter_add(none, 1, sampler->history, marks), tarn_scalar(0));
    tarn_tensor *smaller = tarn_where(tarn_lt(logits, tarn_scalar(0)), tarn_mul(logits, tarn_scalar(penalty)),
                                      tarn_div(logits, tarn_scalar(penalty)));
    return tarn_where(history, smaller, logits);
}

/* ---- bias and counts --------------------------------------------------------------------------------------------- */

static bool has_counts(const tarn_sampler *sampler)
{
    return sampler->options.frequency_penalty != 0 || sampler->options.presence_penalty != 0;
}

/* The row of all biases, f32 [1, vocab_size]; borrowed. NULL with an error. */
static tarn_tensor *bias_row(tarn_sampler *sampler, int64_t vocab_size, tarn_device device)
{
    if (sampler->bias_row && tarn_size(sampler->bias_row, 1) == vocab_size)
        return sampler->bias_row;
    float *values = tarn__alloc(sizeof(*values) * (size_t)vocab_size);
    bool good = values != NULL;
    for (int i = 0; good && i < sampler->options.logit_bias_count; i++) {
        const tarn_logit_bias *bias = &sampler->bias[i];
        good = bias->token < vocab_size ||
               tarn__raise(TARN_ERROR_ARGUMENT, ".logit_bias[%d] is for token %d; it must be from 0 to %lld", i,
                           (int)bias->token, (long long)vocab_size - 1);
        if (good)
            values[bias->token] += (float)bias->bias;
    }
    tarn_tensor *row = good ? tarn__scope_take(tarn_from_f32(values, TARN_SHAPE(1, vocab_size), device)) : NULL;
    tarn__release(values, sizeof(*values) * (size_t)vocab_size);
    if (!row)
        return NULL;
    tarn_free(sampler->bias_row);
    return sampler->bias_row = row;
}

static tarn_tensor *add_bias(tarn_sampler *sampler, tarn_tensor *logits)
{
    if (sampler->options.logit_bias_count == 0 || !logits)
        return logits;
    tarn_tensor *row = bias_row(sampler, tarn_size(logits, 1), tarn_device_of(logits));
    return row ? tarn_add(logits, tarn_cast(row, tarn_dtype_of(logits))) : NULL;
}

/* Logits less the frequency and presence penalties. */
static tarn_tensor *subtract_counts(const tarn_sampler *sampler, tarn_tensor *logits)
{
    const tarn_sampler_options *o = &sampler->options;
    if (!has_counts(sampler) || !sampler->counts || !logits)
        return logits;
    tarn_tensor *presence =
        tarn_where(tarn_gt(sampler->counts, tarn_scalar(0)), tarn_scalar(o->presence_penalty), tarn_scalar(0));
    tarn_tensor *penalty = tarn_add(tarn_mul(sampler->counts, tarn_scalar(o->frequency_penalty)), presence);
    return tarn_sub(logits, tarn_cast(penalty, tarn_dtype_of(logits)));
}

/* Counts the sampled tokens, i64 [B, 1], of logits [B, vocab_size]. */
static bool count_tokens(tarn_sampler *sampler, tarn_tensor *tokens, const tarn_tensor *logits)
{
    if (!has_counts(sampler))
        return true;
    tarn_device device = tarn_device_of(tokens);
    tarn_tensor *before = sampler->counts;
    if (!before)
        before = tarn_zeros(TARN_SHAPE(logits->view.shape[0], logits->view.shape[1]), TARN_F32, device);
    tarn_tensor *one = tarn_full(tarn_shape_of(tokens), 1, TARN_F32, device);
    tarn_tensor *counts = before ? tarn_scatter_add(before, 1, tokens, one) : NULL;
    tarn_tensor *kept = counts ? tarn__scope_take(counts) : NULL;
    if (!kept)
        return false;
    tarn_free(sampler->counts);
    sampler->counts = kept;
    return true;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

#define MAX_MASK_WORDS ((int64_t)1 << 26)

bool tarn_sampler_mask(tarn_sampler *sampler, const uint32_t *masks, int64_t rows, int64_t words)
{
    if (!check_sampler("sampler_mask", sampler))
        return false;
    if (masks && (rows < 1 || words < 1 || words > MAX_MASK_WORDS || rows > MAX_MASK_WORDS))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "sampler_mask: rows is %lld and words %lld; they must be from 1 to %lld", (long long)rows,
                           (long long)words, (long long)MAX_MASK_WORDS);
    drop_masks(sampler);
    if (!masks)
        return true;
    sampler->masks = tarn__alloc(sizeof(*masks) * (size_t)(rows * words));
    if (!sampler->masks)
        return tarn__raise_within("sampler_mask");
    memcpy(sampler->masks, masks, sizeof(*masks) * (size_t)(rows * words));
    sampler->mask_rows = rows;
    sampler->mask_words = words;
    return true;
}

/* Logits [B, V] with -infinity where the mask is 0. The bits are expanded on the host and uploaded, one byte each. */
static tarn_tensor *apply_masks(const tarn_sampler *sampler, tarn_tensor *logits)
{
    int64_t rows = tarn_size(logits, 0), vocab_size = tarn_size(logits, 1);
    if (!sampler->masks)
        return logits;
    if (sampler->mask_rows != rows || sampler->mask_words != TARN_MASK_WORDS(vocab_size)) {
        tarn__raise(TARN_ERROR_SHAPE, "the masks are [%lld, %lld] words; the logits are %s",
                    (long long)sampler->mask_rows, (long long)sampler->mask_words, TARN__SHAPE_STRING(logits));
        return NULL;
    }
    uint8_t *bytes = tarn__alloc((size_t)(rows * vocab_size));
    for (int64_t r = 0; bytes && r < rows; r++)
        for (int64_t i = 0; i < vocab_size; i++)
            bytes[r * vocab_size + i] = (sampler->masks[r * sampler->mask_words + i / 32] >> (i % 32)) & 1;
    tarn_tensor *mask = bytes ? tarn_from_u8(bytes, TARN_SHAPE(rows, vocab_size), tarn_device_of(logits)) : NULL;
    tarn__release(bytes, (size_t)(rows * vocab_size));
    return mask ? tarn_where(tarn_gt(mask, tarn_scalar(0)), logits, tarn_scalar(-INFINITY)) : NULL;
}

/* ---- sampling -----------------------------------------------------------------------------------------------------
 */

/* Index of the winner in each row of probabilities [B, N]: [B, 1]. Uses the sampler's random state, not the
 * thread's. */
static tarn_tensor *sample_row(tarn_sampler *sampler, tarn_tensor *probability)
{
    tarn__rng_state callers = tarn__random_save();
    tarn__random_restore(&sampler->generator);
    tarn_tensor *uniform = tarn_uniform_like(probability, 0, 1);
    sampler->generator = tarn__random_save();
    tarn__random_restore(&callers);
    return tarn_argmax(tarn_div(probability, tarn_neg(tarn_log(uniform))), 1, true);
}

/* Sorted probabilities [B, N] without those after the cumulative sum has reached top_p. */
static tarn_tensor *nucleus(tarn_tensor *probability, double top_p)
{
    tarn_tensor *before = tarn_sub(tarn_cumsum(probability, 1), probability);
    return tarn_where(tarn_lt(before, tarn_scalar(top_p)), probability, tarn_scalar(0));
}

/* i64 [B, 1] from f32 or f64 logits [B, V]. */
static tarn_tensor *sample_float(tarn_sampler *sampler, tarn_tensor *logits)
{
    const tarn_sampler_options *o = &sampler->options;
    int64_t vocab_size = tarn_size(logits, 1), most = o->top_k > 0 && o->top_k < vocab_size ? o->top_k : vocab_size;
    bool has_top_p = o->top_p > 0 && o->top_p < 1;
    tarn_tensor *index = NULL;
    if (o->temperature == 0)
        return tarn_argmax(logits, 1, true);
    if ((most < vocab_size || has_top_p) && !tarn_topk(logits, most, 1, true, &logits, &index))
        return NULL;
    tarn_tensor *scaled =
        tarn_mul(tarn_sub(logits, tarn_max(logits, TARN_AXES(1), true)), tarn_scalar(1 / o->temperature));
    tarn_tensor *probability = tarn_softmax(scaled, 1);
    if (has_top_p)
        probability = nucleus(probability, o->top_p);
    if (o->min_p > 0)
        probability = tarn_where(tarn_ge(scaled, tarn_scalar(log(o->min_p))), probability, tarn_scalar(0));
    tarn_tensor *winner = sample_row(sampler, probability);
    return index ? tarn_gather(index, 1, winner) : winner;
}

/* Replaces tokens by -1 where the logits hold NaN or +infinity, or are all -infinity: only then max - max is not 0. */
static tarn_tensor *mark_nonfinite(tarn_tensor *token, tarn_tensor *logits)
{
    tarn_tensor *largest = tarn_max(logits, TARN_AXES(1), true), *gap = tarn_sub(largest, largest); /* 0, or NaN */
    return tarn_where(tarn_eq(gap, tarn_scalar(0)), token, tarn_scalar(-1));
}

/* The same from logits of any float dtype; 16-bit ones are computed in f32. */
static tarn_tensor *sample_any(tarn_sampler *sampler, tarn_tensor *logits)
{
    tarn_tensor *compute = logits->view.dtype == TARN_F64 ? logits : tarn_cast(logits, TARN_F32);
    tarn_tensor *biased = add_bias(sampler, compute);
    tarn_tensor *penalized = biased ? subtract_counts(sampler, penalize(sampler, biased)) : NULL;
    return penalized ? mark_nonfinite(sample_float(sampler, penalized), compute) : NULL;
}

/* Raises unless logits are [batch, vocab_size] floats. */
static bool check_logits(const char *function, const tarn_tensor *logits)
{
    const tarn__view *view = &logits->view;
    if (view->rank != 2 || view->shape[0] < 1 || view->shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: the logits are %s; they must be [batch, vocab_size], at least one of each", function,
                           TARN__SHAPE_STRING(logits));
    return tarn__check_dtype(function, logits, TARN__FLOATS, "the logits");
}

/* Raises if the history or the counts are of another batch. */
static bool check_rows(const tarn_sampler *sampler, const tarn_tensor *logits)
{
    int64_t rows = logits->view.shape[0], vocab_size = logits->view.shape[1];
    if (sampler->history && tarn_size(sampler->history, 0) != rows)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "sampler_sample: the logits have %lld rows; the history has %lld sequences", (long long)rows,
                           (long long)tarn_size(sampler->history, 0));
    const tarn_tensor *counts = sampler->counts;
    return !counts || (tarn_size(counts, 0) == rows && tarn_size(counts, 1) == vocab_size) ||
           tarn__raise(TARN_ERROR_SHAPE, "sampler_sample: the logits are %s; those sampled before were %s",
                       TARN__SHAPE_STRING(logits), TARN__SHAPE_STRING(counts));
}

/* True if an option changes the logits themselves. */
static bool changes_logits(const tarn_sampler *sampler)
{
    return has_penalty(sampler) || has_counts(sampler) || sampler->options.logit_bias_count > 0;
}

/* The sampled tokens join the history and the counts; -1 joins as token 0, a valid index. */
static bool remember(tarn_sampler *sampler, tarn_tensor *token, const tarn_tensor *logits)
{
    if (!has_penalty(sampler) && !has_counts(sampler))
        return true;
    tarn_tensor *valid = tarn_maximum(token, tarn_scalar(0));
    return valid && (!has_penalty(sampler) || append_history(sampler, valid)) && count_tokens(sampler, valid, logits);
}

/* Greedy sampling of unchanged logits is one fused kernel. */
tarn_tensor *tarn_sampler_sample(tarn_sampler *sampler, tarn_tensor *logits)
{
    const char *function = "sampler_sample";
    if (!check_sampler(function, sampler) || !tarn__check(function, logits, "the logits") ||
        !check_logits(function, logits) || !check_rows(sampler, logits))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    tarn_no_grad_open();
    logits = apply_masks(sampler, logits);
    tarn_tensor *token = NULL;
    if (logits)
        token = sampler->options.temperature == 0 && !changes_logits(sampler) ? tarn__argmax_finite(logits)
                                                                              : sample_any(sampler, logits);
    drop_masks(sampler);
    if (token && !remember(sampler, token, logits))
        token = NULL;
    tarn_no_grad_close();
    token = token ? tarn_scope_return(scope, token) : NULL;
    tarn_scope_close(scope);
    if (!token)
        tarn__raise_within(function);
    return token;
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* f64 [B, 1 + 2 · top] from f32 or f64 logits [B, V]: exact for token ids up to 2^53. */
static tarn_tensor *logprobs(tarn_tensor *logits, tarn_tensor *tokens, int64_t top)
{
    tarn_tensor *all = tarn_log_softmax(logits, 1), *value = NULL, *index = NULL;
    tarn_tensor *part[3] = {tarn_cast(tarn_gather(all, 1, tokens), TARN_F64)};
    if (top == 0 || !part[0])
        return part[0];
    if (!tarn_topk(all, top, 1, true, &value, &index))
        return NULL;
    part[1] = tarn_cast(index, TARN_F64);
    part[2] = tarn_cast(value, TARN_F64);
    return tarn_concat(part, 3, 1);
}

tarn_tensor *tarn_token_logprobs(tarn_tensor *logits, tarn_tensor *tokens, int64_t top)
{
    const char *function = "token_logprobs";
    if (!tarn__check(function, logits, "the logits") || !check_logits(function, logits) ||
        !tarn__check(function, tokens, "the tokens") || !check_tokens(function, tokens))
        return NULL;
    if (tokens->view.shape[0] != logits->view.shape[0] || tokens->view.shape[1] != 1 || top < 0 ||
        top > logits->view.shape[1]) {
        tarn__raise(TARN_ERROR_SHAPE,
                    "%s: tokens %s and top %lld do not match logits %s; tokens must be [batch, 1], and top from 0 to "
                    "the vocabulary size",
                    function, TARN__SHAPE_STRING(tokens), (long long)top, TARN__SHAPE_STRING(logits));
        return NULL;
    }
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    tarn_no_grad_open();
    tarn_tensor *compute = logits->view.dtype == TARN_F64 ? logits : tarn_cast(logits, TARN_F32);
    tarn_tensor *found = compute ? logprobs(compute, tokens, top) : NULL;
    tarn_no_grad_close();
    found = found ? tarn_scope_return(scope, found) : NULL;
    tarn_scope_close(scope);
    if (!found)
        tarn__raise_within(function);
    return found;
}

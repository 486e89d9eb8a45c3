/* generate_options.c: checks of tarn_generate_options that generators and engines have in common. */
#include "generate/generate_options.h"

#include <string.h>

#include "base/error.h"
#include "generate/constrain.h"

tarn_generate_options tarn__generate_options_of(const tarn_generate_options *options, size_t size)
{
    tarn_generate_options o = {0};
    if (options)
        memcpy(&o, options, size < sizeof(o) ? size : sizeof(o));
    return o;
}

/* Raises invalid stop strings; an empty one would end every sequence at once. */
static bool check_stop_strings(const tarn_generate_options *o, const tarn_tokenizer *tokenizer)
{
    if (o->stop_string_count < 0 || (o->stop_string_count > 0 && !o->stop_strings))
        return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_string_count is %d%s", o->stop_string_count,
                           o->stop_strings ? "" : ", but .stop_strings is NULL");
    if (o->stop_string_count > 0 && !tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_strings needs a tokenizer; use .stop for tokens");
    for (int i = 0; i < o->stop_string_count; i++)
        if (!o->stop_strings[i] || !o->stop_strings[i][0])
            return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_strings[%d] is %s", i,
                               o->stop_strings[i] ? "empty" : "NULL");
    return true;
}

/* Raises biased tokens outside the vocabulary; the sampler checks the rest. */
static bool check_logit_bias(const tarn_generate_options *o, const tarn__model_info *info)
{
    for (int i = 0; o->logit_bias && i < o->logit_bias_count; i++)
        if (o->logit_bias[i].token < 0 || o->logit_bias[i].token >= info->vocab_size)
            return tarn__raise(TARN_ERROR_ARGUMENT, ".logit_bias[%d] is for token %d; it must be from 0 to %lld", i,
                               (int)o->logit_bias[i].token, (long long)info->vocab_size - 1);
    return true;
}

bool tarn__generate_options_check(const tarn_generate_options *o, const tarn__model_info *info,
                                  const tarn_tokenizer *tokenizer)
{
    if (o->stop_count < 0 || (o->stop_count > 0 && !o->stop))
        return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_count is %d%s", o->stop_count,
                           o->stop ? "" : ", but .stop is NULL");
    if (o->top_logprobs < 0 || o->top_logprobs > TARN__MAX_TOP_LOGPROBS || o->top_logprobs > info->vocab_size)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           ".top_logprobs is %d; it must be from 0 to %d, and at most the vocabulary size, %lld",
                           o->top_logprobs, TARN__MAX_TOP_LOGPROBS, (long long)info->vocab_size);
    return check_stop_strings(o, tokenizer) && check_logit_bias(o, info) && tarn__constraint_check(info, o);
}

tarn_sampler_options tarn__sampler_options_of(const tarn_generate_options *o)
{
    return (tarn_sampler_options){.temperature = o->temperature,
                                  .top_k = o->top_k,
                                  .top_p = o->top_p,
                                  .seed = o->seed,
                                  .min_p = o->min_p,
                                  .repeat_penalty = o->repeat_penalty,
                                  .repeat_last_n = o->repeat_last_n,
                                  .frequency_penalty = o->frequency_penalty,
                                  .presence_penalty = o->presence_penalty,
                                  .logit_bias = o->logit_bias,
                                  .logit_bias_count = o->logit_bias_count};
}

/* generate.c: tarn_generate(): one prompt in, tokens out: a generator without a tokenizer, in one call. */
#include "generate/generator.h"

/* Passes the tokens on as they arrive. Returns their number, -1 on error. */
static int64_t collect(tarn_generator *generator, const tarn_generate_options *o, int32_t *tokens)
{
    tarn_output output;
    int64_t generated = 0;
    for (bool wanted = true; wanted && tarn__generator_next(generator, &output) && output.token >= 0;) {
        if (tokens)
            tokens[generated] = output.token;
        generated++;
        wanted = !o->on_token || o->on_token(output.token, o->ctx);
    }
    return tarn_failed() ? -1 : generated;
}

/* Raises if prompt and max_tokens exceed the context. The generator checks its own, smaller capacity; this message
 * names the model's context. */
static bool check_length(const tarn__model_info *info, int64_t count, const tarn_generate_options *o)
{
    if (o->slide)
        return true;
    if (count >= info->context)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "generate: the prompt has %lld tokens; it must be shorter than the model's context of %lld",
                           (long long)count, (long long)info->context);
    if (o->max_tokens > info->context - count)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "generate: a prompt of %lld tokens and %lld new ones exceed the model's context of %lld; "
                           ".max_tokens must be at most %lld",
                           (long long)count, (long long)o->max_tokens, (long long)info->context,
                           (long long)(info->context - count));
    return true;
}

/* The cache gets the capacity of prompt and max_tokens, not of the whole context. Errors name this function, not the
 * generator's. */
int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens,
                            const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generate";
    tarn_generate_options o = tarn__generate_options_of(options, options_size);
    tarn__model_info info;
    if (!tarn__arch_of(function, model))
        return -1;
    tarn__model_describe(model, &info);
    if (!check_length(&info, count, &o))
        return -1;
    int64_t capacity = o.max_tokens > 0 && count > 0 && count <= info.context && o.max_tokens < info.context - count
                           ? count + o.max_tokens
                           : info.context;
    tarn_generator *generator =
        tarn_generator_new(model, NULL, &(tarn_generator_options){.context = capacity, .no_capture = o.no_capture});
    int64_t generated =
        generator && tarn__generator_prompt(generator, 0, prompt, count, &o) ? collect(generator, &o, tokens) : -1;
    tarn_generator_free(generator);
    if (generated < 0)
        tarn__raise_within(function);
    return generated;
}

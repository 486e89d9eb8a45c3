/* generate.c: a prompt goes in, tokens come out, until the text ends: a writer without a tokenizer, in one call. */
#include <string.h>

#include "generate/generator.h"

/* Hands the tokens on as they come: how many there were, -1 on error. */
static int64_t take_all(tarn_generator *writer, const tarn_generate_options *o, int32_t *tokens)
{
    tarn_output piece;
    int64_t made = 0;
    for (bool wanted = true; wanted && tarn__generator_next(writer, &piece) && piece.token >= 0;) {
        if (tokens)
            tokens[made] = piece.token;
        made++;
        wanted = !o->on_token || o->on_token(piece.token, o->ctx);
    }
    return tarn_failed() ? -1 : made;
}

static bool check_room(const tarn__model_info *info, int64_t count, const tarn_generate_options *o)
{
    if (o->slide)
        return true;
    if (count >= info->context)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "generate: a prompt of %lld tokens leaves no room in the model's context of %lld",
                           (long long)count, (long long)info->context);
    if (o->max_tokens > info->context - count)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "generate: a prompt of %lld tokens and %lld more do not fit into the model's context of "
                           "%lld; ask for %lld at most",
                           (long long)count, (long long)o->max_tokens, (long long)info->context,
                           (long long)(info->context - count));
    return true;
}

int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens,
                            const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generate";
    tarn_generate_options o = {0};
    tarn__model_info info;
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    const tarn__arch *kind = tarn__arch_of(function, model);
    if (!kind)
        return -1;
    kind->info(model, &info);
    if (!check_room(&info, count, &o))
        return -1;
    int64_t capacity = o.max_tokens > 0 && count > 0 && count <= info.context && o.max_tokens < info.context - count
                           ? count + o.max_tokens
                           : info.context;
    tarn_generator *writer =
        tarn_generator_new(model, NULL, &(tarn_generator_options){.context = capacity, .no_capture = o.no_capture});
    int64_t made = writer && tarn__generator_prompt(writer, 0, prompt, count, &o) ? take_all(writer, &o, tokens) : -1;
    tarn_generator_free(writer);
    if (made < 0)
        tarn__raise_within(function);
    return made;
}

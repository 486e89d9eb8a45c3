/* generate.c: a prompt goes in, tokens come out, until the text ends: a writer without a tokenizer, in one call. */
#include <string.h>

#include "generate/generator.h"

/* Hands the tokens on as they come: how many there were, -1 on error. */
static int64_t take_all(tarn_writer *writer, const tarn_generate_options *o, int32_t *tokens)
{
    tarn_piece piece;
    int64_t made = 0;
    for (bool wanted = true; wanted && tarn__writer_next(writer, &piece) && piece.token >= 0;) {
        if (tokens)
            tokens[made] = piece.token;
        made++;
        wanted = !o->on_token || o->on_token(piece.token, o->ctx);
    }
    return tarn_failed() ? -1 : made;
}

static bool check_room(const tarn__model_facts *facts, int64_t count, const tarn_generate_options *o)
{
    if (o->slide)
        return true;
    if (count >= facts->context)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "generate: a prompt of %lld tokens leaves no room in the model's context of %lld",
                           (long long)count, (long long)facts->context);
    if (o->tokens > facts->context - count)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "generate: a prompt of %lld tokens and %lld more do not fit into the model's context of "
                           "%lld; ask for %lld at most",
                           (long long)count, (long long)o->tokens, (long long)facts->context,
                           (long long)(facts->context - count));
    return true;
}

int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens,
                            const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generate";
    tarn_generate_options o = {0};
    tarn__model_facts facts;
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    const tarn__model_kind *kind = tarn__model_kind_of(function, model);
    if (!kind)
        return -1;
    kind->facts(model, &facts);
    if (!check_room(&facts, count, &o))
        return -1;
    int64_t room = o.tokens > 0 && count > 0 && count <= facts.context && o.tokens < facts.context - count
                       ? count + o.tokens
                       : facts.context;
    tarn_writer *writer =
        tarn_writer_new(model, NULL, &(tarn_writer_options){.context = room, .no_capture = o.no_capture});
    int64_t made = writer && tarn__writer_prompt(writer, 0, prompt, count, &o) ? take_all(writer, &o, tokens) : -1;
    tarn_writer_free(writer);
    if (made < 0)
        tarn__raise_within(function);
    return made;
}

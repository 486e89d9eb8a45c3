/* generate.c: a prompt goes into the decoder, and what the sampler makes of its logits goes in after it, until the text ends. Tokens stay on
 * the device; the host reads each one to see whether it ends the text. */
#include <string.h>

#include "generate/decoder.h"

typedef struct generation {
    tarn_generate_options options;
    tarn_decoder *decoder;
    tarn_sampler *sampler;
    int64_t most; /* tokens to make */
    int32_t *tokens;
    int64_t made;
} generation;

static bool check_prompt(const tarn__model_facts *facts, const int32_t *prompt, int64_t count)
{
    if (!prompt || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "generate: the prompt %s; it must have at least one token",
                           prompt ? "is empty" : "is NULL");
    for (int64_t i = 0; i < count && i <= facts->context; i++)
        if (prompt[i] < 0 || prompt[i] >= facts->vocab)
            return tarn__raise(TARN_ERROR_ARGUMENT, "generate: token %lld of the prompt is %d; the model's go from 0 to %lld", (long long)i,
                               (int)prompt[i], (long long)facts->vocab - 1);
    return count < facts->context ||
           tarn__raise(TARN_ERROR_SHAPE, "generate: a prompt of %lld tokens leaves no room in the model's context of %lld",
                       (long long)count, (long long)facts->context);
}

static bool check_options(const tarn__model_facts *facts, int64_t count, const tarn_generate_options *o)
{
    if (o->tokens < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "generate: .tokens is %lld; it must be at least 0", (long long)o->tokens);
    if (o->tokens > facts->context - count)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "generate: a prompt of %lld tokens and %lld more do not fit into the model's context of %lld; ask for %lld at most",
            (long long)count, (long long)o->tokens, (long long)facts->context, (long long)(facts->context - count));
    if (o->stop_count < 0 || (o->stop_count > 0 && !o->stop))
        return tarn__raise(TARN_ERROR_ARGUMENT, "generate: .stop_count is %d%s", o->stop_count, o->stop ? "" : ", but .stop is NULL");
    return true;
}

static bool ends_text(const generation *g, int64_t token)
{
    const tarn__model_facts *facts = &g->decoder->facts;
    for (int i = 0; i < g->options.stop_count; i++)
        if (g->options.stop[i] == token)
            return true;
    return !g->options.ignore_end && facts->has_end && facts->end == token;
}

/* Takes a token that was drawn. True: the text goes on. */
static bool take(generation *g, tarn_tensor *drawn)
{
    double token = tarn_item(drawn);
    if (tarn_failed())
        return false;
    if (token < 0)
        return tarn__raise(TARN_ERROR_FORMAT, "the logits of token %lld are not finite: the model's weights, or its dtype, are wrong",
                           (long long)tarn_decoder_length(g->decoder));
    if (ends_text(g, (int64_t)token))
        return false;
    if (g->tokens)
        g->tokens[g->made] = (int32_t)token;
    g->made++;
    bool wanted = !g->options.on_token || g->options.on_token((int32_t)token, g->options.ctx);
    return wanted && g->made < g->most && !tarn_failed();
}

static void go_on(generation *g, tarn_tensor *next)
{
    for (bool more = next != NULL; more;) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *drawn = scope ? tarn_sampler_draw(g->sampler, tarn_decoder_feed(g->decoder, next)) : NULL;
        more = drawn && take(g, drawn);
        tarn_tensor *before = next;
        next = more ? tarn_keep(drawn) : NULL;
        tarn_scope_close(scope);
        tarn_free(before);
    }
}

static bool begin(generation *g, tarn_module *model, const int32_t *prompt, int64_t count)
{
    const tarn_generate_options *o = &g->options;
    const tarn__model_kind *kind = tarn__model_kind_of("generate", model);
    tarn__model_facts facts;
    if (!kind)
        return false;
    kind->facts(model, &facts);
    if (!check_prompt(&facts, prompt, count) || !check_options(&facts, count, o))
        return false;
    g->most = o->tokens ? o->tokens : facts.context - count;
    g->sampler =
        tarn_sampler_new(&(tarn_sampler_options){.temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p, .seed = o->seed});
    g->decoder = g->sampler ? tarn_decoder_new(model, &(tarn_decoder_options){.context = count + g->most}) : NULL;
    if (!g->decoder)
        return tarn__raise_within("generate");
    tarn_tensor *first = tarn_from_i32(prompt, TARN_SHAPE(1, count), facts.device);
    go_on(g, first ? tarn_keep(first) : NULL);
    return !tarn_failed() || tarn__raise_within("generate");
}

int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens, const tarn_generate_options *options,
                            size_t options_size)
{
    generation g = {.tokens = tokens};
    if (options)
        memcpy(&g.options, options, options_size < sizeof(g.options) ? options_size : sizeof(g.options));
    bool good = !tarn_failed() && begin(&g, model, prompt, count);
    tarn_decoder_free(g.decoder);
    tarn_sampler_free(g.sampler);
    return good ? g.made : -1;
}

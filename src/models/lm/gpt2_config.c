/* gpt2_config.c: configurations of GPT-2: checks, published sizes, and sizes of new models. */
#include <math.h>
#include <string.h>

#include "models/lm/gpt2.h"

#define MAX_SIZE INT32_MAX /* products of two sizes fit 64 bits */
#define MAX_LAYERS 1024

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Raises sizes out of range. */
static bool check_sizes(const char *function, const tarn_gpt2_config *c)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } sizes[] = {{"vocab_size", c->vocab_size, 1, MAX_SIZE},   {"context", c->context, 1, MAX_SIZE},
                 {"layers", c->layers, 1, MAX_LAYERS},         {"heads", c->heads, 1, MAX_SIZE},
                 {"hidden_size", c->hidden_size, 1, MAX_SIZE}, {"ffn_size", c->ffn_size, 0, MAX_SIZE}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].value < sizes[i].low || sizes[i].value > sizes[i].high)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: .%s is %lld; it must be from %lld to %lld", function,
                               sizes[i].name, (long long)sizes[i].value, (long long)sizes[i].low,
                               (long long)sizes[i].high);
    if (c->hidden_size % c->heads)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: .heads is %lld; it must divide .hidden_size, which is %lld", function,
                           (long long)c->heads, (long long)c->hidden_size);
    return true;
}

/* Raises invalid settings. Comparisons are written so that NaN fails them. */
static bool check_config(const char *function, const tarn_gpt2_config *c)
{
    if (!check_sizes(function, c))
        return false;
    if (!(c->dropout >= 0 && c->dropout < 1) || !(c->attention_dropout < 1) || !(c->embedding_dropout < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .dropout is %g, .attention_dropout %g, .embedding_dropout %g; they must be below 1, "
                           "the first at least 0",
                           function, c->dropout, c->attention_dropout, c->embedding_dropout);
    if (!(c->epsilon >= 0) || !isfinite(c->epsilon))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .epsilon is %g; it must be at least 0", function, c->epsilon);
    if ((int)c->recompute < TARN_RECOMPUTE_NONE || (int)c->recompute > TARN_RECOMPUTE_FULL)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .recompute is %d; it must be TARN_RECOMPUTE_NONE, _SELECTIVE or _FULL", function,
                           (int)c->recompute);
    if (c->has_eos && (c->eos < 0 || c->eos >= c->vocab_size))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .eos is token %lld; the vocabulary has %lld", function,
                           (long long)c->eos, (long long)c->vocab_size);
    return tarn__check_parameter_dtype(function, c->dtype);
}

double tarn__gpt2_dropout(double own, double common)
{
    double p = own == 0 ? common : own;
    return p > 0 ? p : -1;
}

bool tarn__gpt2_complete(const char *function, tarn_gpt2_config *c)
{
    if (!check_config(function, c))
        return false;
    c->ffn_size = c->ffn_size ? c->ffn_size : 4 * c->hidden_size;
    c->epsilon = c->epsilon > 0 ? c->epsilon : 1e-5;
    c->attention_dropout = tarn__gpt2_dropout(c->attention_dropout, c->dropout);
    c->embedding_dropout = tarn__gpt2_dropout(c->embedding_dropout, c->dropout);
    return true;
}

bool tarn_gpt2_config_named_sized(const char *name, tarn_gpt2_config *config, size_t config_size)
{
    static const struct {
        const char *names[3];
        int64_t layers, heads, hidden_size;
    } sizes[] = {{{"gpt2", "gpt2-124m", "gpt2-small"}, 12, 12, 768},
                 {{"gpt2-medium", "gpt2-350m", "gpt2-355m"}, 24, 16, 1024},
                 {{"gpt2-large", "gpt2-774m", "gpt2-762m"}, 36, 20, 1280},
                 {{"gpt2-xl", "gpt2-1.5b", "gpt2-1558m"}, 48, 25, 1600}};
    if (tarn_failed())
        return false;
    if (!name || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gpt2_config_named: the %s is NULL", name ? "configuration" : "name");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int k = 0; k < 3; k++)
            if (strcmp(name, sizes[i].names[k]) == 0) {
                tarn_gpt2_config c = {.vocab_size = 50257,
                                      .context = 1024,
                                      .layers = sizes[i].layers,
                                      .heads = sizes[i].heads,
                                      .hidden_size = sizes[i].hidden_size,
                                      .has_eos = true,
                                      .eos = 50256};
                memset(config, 0, config_size); /* fields of a newer header become zero */
                memcpy(config, &c, config_size < sizeof(c) ? config_size : sizeof(c));
                return true;
            }
    return tarn__raise(TARN_ERROR_ARGUMENT,
                       "gpt2_config_named: '%.64s' not found; it must be gpt2, gpt2-medium, gpt2-large or gpt2-xl",
                       name);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* The context of a GPT-2 is its number of position embeddings: max_context equals it. */
bool tarn__gpt2_complete_sizes(const char *function, const char *name, tarn__model_sizes *s)
{
    tarn_gpt2_config named;
    if (!tarn_gpt2_config_named(name, &named))
        return tarn__raise_within(function);
    s->vocab_size = s->vocab_size ? s->vocab_size : named.vocab_size;
    s->context = s->max_context = s->context ? s->context : named.context;
    s->layers = s->layers ? s->layers : named.layers;
    s->heads = s->heads ? s->heads : named.heads;
    s->hidden_size = s->hidden_size ? s->hidden_size : named.hidden_size;
    s->ffn_size = s->ffn_size ? s->ffn_size : 4 * s->hidden_size;
    if (s->kv_heads && s->kv_heads != s->heads)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: kv_heads is for Llama models; a %s has as many key and value heads as query heads",
                           function, name);
    s->kv_heads = s->heads;
    return true;
}

double tarn__gpt2_parameter_count(const char *name, const tarn__model_sizes *s)
{
    (void)name;
    double hidden_size = (double)s->hidden_size;
    return hidden_size * (double)(s->vocab_size + s->context) +
           (double)s->layers * (4 * hidden_size * hidden_size + 2 * hidden_size * (double)s->ffn_size);
}

tarn_module *tarn__gpt2_create(const char *function, const char *name, const tarn__model_sizes *s, tarn_device device,
                               uint64_t seed)
{
    (void)name;
    tarn_gpt2_config config = {.vocab_size = s->vocab_size,
                               .context = s->context,
                               .layers = s->layers,
                               .heads = s->heads,
                               .hidden_size = s->hidden_size,
                               .ffn_size = s->ffn_size,
                               .dropout = s->dropout,
                               .dtype = s->dtype,
                               .has_eos = s->has_eos,
                               .eos = s->eos,
                               .recompute = s->recompute};
    tarn_module *model = tarn_model_gpt2(&config, device, seed);
    if (!model)
        tarn__raise_within(function);
    return model;
}

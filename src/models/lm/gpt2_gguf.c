/* gpt2_gguf.c: GPT-2 in GGUF files: tensor names, and its configuration as metadata.
 *
 * Keys are those of llama.cpp. Dropout probabilities, which it does not use, have a key of tarn's own. */
#include <math.h>

#include "formats/gguf.h"
#include "models/gguf/gguf_arch.h"
#include "models/lm/gpt2.h"

#define NAME "gpt2"
#define DROPOUT "tarn.gpt2.dropout" /* resid, attn, embd */

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const tarn__gguf_tensor_name top_names[] = {
    {"transformer.wte.", "token_embd.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"transformer.wpe.", "position_embd.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_F32_TABLE},
    {"transformer.ln_f.", "output_norm.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_SAME},
    {"lm_head.", "output.", TARN__GGUF_UNTIED, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {0}};

static const tarn__gguf_tensor_name layer_names[] = {
    {"ln_1.", "attn_norm.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_SAME},
    {"attn.c_attn.", "attn_qkv.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_TRANSPOSED},
    {"attn.c_proj.", "attn_output.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_TRANSPOSED},
    {"ln_2.", "ffn_norm.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_SAME},
    {"mlp.c_fc.", "ffn_up.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_TRANSPOSED},
    {"mlp.c_proj.", "ffn_down.", TARN__GGUF_ALWAYS, TARN__GGUF_ALWAYS, TARN__GGUF_TRANSPOSED},
    {0}};

/* Properties of a configuration that the common code needs. */
static void traits(const void *config, tarn__gguf_traits *t)
{
    const tarn_gpt2_config *c = config;
    *t =
        (tarn__gguf_traits){.arch = NAME,
                            .vocab_size = c->vocab_size,
                            .layers = c->layers,
                            .heads = c->heads,
                            .kv_heads = c->heads,
                            .tie_embeddings = !c->untie_embeddings,
                            /* GPT-2 uses EOS as BOS */
                            .tokens = {.has_bos = c->has_eos, .bos = c->eos, .eos = {c->eos}, .eos_count = c->has_eos}};
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* Writes the metadata of a configuration. */
static bool put(const void *config, tarn_gguf_writer *writer)
{
    const tarn_gpt2_config *c = config;
    const struct {
        const char *rest;
        int64_t value;
    } ints[] = {{"vocab_size", c->vocab_size},        {"context_length", c->context},
                {"embedding_length", c->hidden_size}, {"block_count", c->layers},
                {"feed_forward_length", c->ffn_size}, {"attention.head_count", c->heads}};
    const double dropouts[] = {c->dropout, fmax(c->attention_dropout, 0), fmax(c->embedding_dropout, 0)};
    bool good = tarn__gguf_put_string(writer, TARN__GGUF_ARCHITECTURE, NAME);
    for (size_t i = 0; good && i < sizeof(ints) / sizeof(ints[0]); i++)
        good = tarn__gguf_put_int(writer, NAME, ints[i].rest, ints[i].value);
    return good && tarn__gguf_put_real(writer, NAME, "attention.layer_norm_epsilon", c->epsilon) &&
           tarn_gguf_add_array(writer, DROPOUT, TARN_GGUF_F64, dropouts, 3);
}

/* Dropout probabilities, or transformers' default. */
static bool get_dropouts(const tarn__gguf_reader *r, tarn_gpt2_config *c)
{
    double dropouts[3] = {0.1, 0.1, 0.1}; /* transformers' default */
    if (tarn_gguf_has(r->file, DROPOUT, NULL) && !tarn_gguf_reals(r->file, DROPOUT, dropouts, 3))
        return tarn__raise_within(r->function);
    for (int i = 0; i < 3; i++)
        if (!(dropouts[i] >= 0 && dropouts[i] < 1))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '" DROPOUT "' has %g; they must be from 0 to below 1",
                               r->function, r->file->path, dropouts[i]);
    c->dropout = dropouts[0];
    c->attention_dropout = dropouts[1] > 0 ? dropouts[1] : -1;
    c->embedding_dropout = dropouts[2] > 0 ? dropouts[2] : -1;
    return true;
}

/* Reads a configuration from metadata. Unsupported settings are errors that name them. */
static bool get(const char *function, const tarn_gguf *file, tarn_dtype dtype, void *config)
{
    const tarn__gguf_reader r = {function, NAME, file};
    tarn_gpt2_config *c = config;
    tarn__gguf_bos_eos tokens;
    int64_t kv_heads = 0;
    if (!tarn__gguf_get_int(&r, "context_length", 0, &c->context) ||
        !tarn__gguf_get_int(&r, "embedding_length", 0, &c->hidden_size) ||
        !tarn__gguf_get_int(&r, "block_count", 0, &c->layers) ||
        !tarn__gguf_get_int(&r, "feed_forward_length", 0, &c->ffn_size) ||
        !tarn__gguf_get_int(&r, "attention.head_count", 0, &c->heads) ||
        !tarn__gguf_get_int(&r, "attention.head_count_kv", c->heads, &kv_heads) ||
        !tarn__gguf_get_real(&r, "attention.layer_norm_epsilon", 0, &c->epsilon) ||
        !tarn__gguf_get_vocab(&r, &c->vocab_size) || !tarn__gguf_get_bos_eos(&r, c->vocab_size, &tokens) ||
        !get_dropouts(&r, c))
        return false;
    if (kv_heads != c->heads)
        return tarn__gguf_unsupported(&r, "a GPT-2 with grouped-query attention");
    c->has_eos = tokens.eos_count > 0;
    c->eos = tokens.eos[0];
    c->dtype = dtype;
    c->untie_embeddings = tarn_gguf_find(file, "output.weight") >= 0;
    return !tarn_failed() && tarn__gpt2_complete(function, c);
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

static bool read_config(const char *function, const tarn__json_file *document, tarn_dtype dtype, void *config)
{
    return tarn__gpt2_read_config(function, document, dtype, config) && tarn__gpt2_complete(function, config);
}

static bool write_config(const void *config, tarn__json_file *document)
{
    return tarn__gpt2_write_config(config, document);
}

static tarn_module *make(const char *function, const void *config, const tarn__device_map *map,
                         const tarn__model_source *source)
{
    return tarn__gpt2_make(function, config, map, false, source);
}

static const char *const architectures[] = {NAME, NULL};

const tarn__gguf_arch tarn__gpt2_gguf = {
    .architectures = architectures,
    .body = "transformer.",
    .block = "transformer.h.",
    .top_names = top_names,
    .layer_names = layer_names,
    .traits = traits,
    .read = read_config,
    .write = write_config,
    .get = get,
    .put = put,
    .make = make,
};

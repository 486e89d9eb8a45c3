/* test_bad_input_llama.c: invalid arguments and configurations of the Llama family and of language models in general.
 */
#include "support/files.h"
#include "support/refuse.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static const tarn_device nowhere = {6, 0};
static const tarn_llama_config small = {
    .vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4, .ffn_size = 3};

/* Configuration number `i`, each with one thing wrong; false: there are no more. */
static bool spoil(int i, tarn_llama_config *c)
{
    *c = small;
    switch (i) {
    case 0: c->vocab_size = 0; return true;
    case 1: c->vocab_size = INT64_MAX; return true;
    case 2: c->context = -1; return true;
    case 3: c->layers = 0; return true;
    case 4: c->layers = 1025; return true;
    case 5: c->heads = 0; return true;
    case 6: c->heads = 3; return true; /* which do not divide the width */
    case 7: c->hidden_size = 0; return true;
    case 8: c->hidden_size = 6; return true; /* an odd head_dim */
    case 9: c->ffn_size = 0; return true;
    case 10: c->ffn_size = INT64_MIN; return true;
    case 11: c->kv_heads = -1; return true;
    case 12: c->kv_heads = 3; return true;
    case 13: c->head_dim = 3; return true;
    case 14: c->head_dim = 514; return true;
    case 15: c->head_dim = -2; return true;
    case 16: c->epsilon = -1; return true;
    case 17: c->epsilon = INFINITY; return true;
    case 18: c->rope_theta = NAN; return true;
    case 19: c->rope_theta = -10000; return true;
    case 20: c->rope_scaling = (tarn_rope_scaling)6; return true;
    case 21: c->rope_scaling = (tarn_rope_scaling)-1; return true;
    case 22: c->rope_factor = -1; return true;
    case 23: c->rope_scaling = TARN_ROPE_LLAMA3, c->rope_low_freq_factor = 5; return true;
    case 24: c->rope_high_freq_factor = INFINITY; return true;
    case 25: c->rope_original_context = -1; return true;
    case 26: c->qkv_bias = true; return true; /* a Llama has none */
    case 27: c->qk_norm = true; return true;
    case 28: c->arch = "qwen2"; return true; /* which has */
    case 29: c->arch = "qwen3"; return true;
    case 30: c->arch = "mixtral"; return true;
    case 31: c->arch = ""; return true;
    case 32: c->dtype = TARN_I32; return true;
    case 33: c->dtype = (tarn_dtype)99; return true;
    case 34: c->eos_count = 1, c->eos[0] = 7; return true;
    case 35: c->has_bos = true, c->bos = -1; return true;
    case 36: c->eos_count = 9; return true;
    case 37: c->eos_count = -1; return true;
    case 38: c->eos_count = 2, c->eos[1] = 7; return true;
    case 39: c->eos_count = 3, c->eos[2] = -1; return true;
    case 40: c->recompute = (tarn_recompute)3; return true;
    case 41: c->recompute = (tarn_recompute)-1; return true;
    default: return false;
    }
}

static void configurations(void **state)
{
    (void)state;
    tarn_llama_config c;
    REFUSE(tarn_llama_config_named, tarn_llama_config_named(NULL, &c));
    REFUSE(tarn_llama_config_named, tarn_llama_config_named("llama-1b", NULL));
    REFUSE(tarn_llama_config_named, tarn_llama_config_named("llama", &c));
    REFUSE(tarn_llama_config_named, tarn_llama_config_named_sized("", &c, sizeof(c)));
    REFUSE(tarn_model_llama, tarn_model_llama(NULL, CPU, 1));
    REFUSE(tarn_model_llama, tarn_model_llama(&(tarn_llama_config){0}, CPU, 1));
    REFUSE(tarn_model_llama, tarn_model_llama_sized(&small, 0, CPU, 1)); /* a header from before all fields */
    REFUSE(tarn_model_llama, tarn_model_llama(&small, nowhere, 1));
    for (int i = 0; spoil(i, &c); i++)
        REFUSE(tarn_model_llama, tarn_model_llama(&c, CPU, (uint64_t)i));
}

/* The same of any architecture. */
static void any_architecture(void **state)
{
    (void)state;
    tarn_lm_config c = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 8, .ffn_size = 4}, none;
    tarn_module *other = tarn_linear(2, 2, CPU);
    REFUSE(tarn_lm_config_named, tarn_lm_config_named(NULL, &none));
    REFUSE(tarn_lm_config_named, tarn_lm_config_named("llama", NULL));
    REFUSE(tarn_lm_config_named, tarn_lm_config_named_sized("llama-2b", &none, sizeof(none)));
    REFUSE(tarn_model_lm, tarn_model_lm(NULL, CPU, 1));
    REFUSE(tarn_model_lm, tarn_model_lm(&(tarn_lm_config){0}, CPU, 1));
    REFUSE(tarn_model_lm, tarn_model_lm_sized(&c, 0, CPU, 1));
    REFUSE(tarn_model_lm, tarn_model_lm(&c, nowhere, 1));
    REFUSE(tarn_lm_config_of, tarn_lm_config_of(NULL, &none));
    REFUSE(tarn_lm_config_of, tarn_lm_config_of_sized(other, &none, sizeof(none)));
    /* settings that an architecture lacks */
    const struct {
        const char *arch;
        tarn_lm_config config;
    } wrong[] = {
        {"mistral", {.attention_bias = true}}, {"mistral", {.mlp_bias = true}},     {"llama", {.window = 2}},
        {"llama", {.logit_softcap = 30}},      {"llama", {.residual_scale = 2}},    {"llama", {.sequential = true}},
        {"llama", {.dropout = 0.5}},           {"llama", {.scale_by_layer = true}}, {"lama", {0}},
        {"llama", {.activation = "tanh"}},     {"llama", {.attention_softcap = -1}}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_lm_config bad = wrong[i].config;
        bad.arch = wrong[i].arch;
        bad.vocab_size = 7, bad.context = 5, bad.layers = 1, bad.heads = 2, bad.hidden_size = 8, bad.ffn_size = 4;
        REFUSE(tarn_model_lm, tarn_model_lm(&bad, CPU, i));
    }
    tarn_module_free(other);
}

static void models(void **state)
{
    (void)state;
    tarn_llama_config c;
    tarn_gpt2_config other_config;
    tarn_model_info info;
    tarn_module *model = tarn_model_llama(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    const tarn_gpt2_config small_gpt2 = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 1, .hidden_size = 2};
    tarn_module *gpt2 = tarn_model_gpt2(&small_gpt2, CPU, 1);
    const int32_t ids[] = {0, 1, 2, 3, 4, 5}, outside[] = {0, 7};
    tarn_tensor *two = tarn_from_i32(ids, TARN_SHAPE(1, 2), CPU), *six = tarn_from_i32(ids, TARN_SHAPE(1, 6), CPU);
    REFUSE(tarn_llama, tarn_forward(model, six)); /* more than the context */
    REFUSE(tarn_llama, tarn_forward(model, tarn_reshape(two, TARN_SHAPE(2))));
    REFUSE(tarn_llama, tarn_forward(model, tarn_reshape(two, TARN_SHAPE(1, 1, 2))));
    REFUSE(tarn_llama, tarn_forward(model, tarn_zeros(TARN_SHAPE(1, 0), TARN_I32, CPU)));
    REFUSE(tarn_llama, tarn_forward(model, tarn_zeros(TARN_SHAPE(0, 2), TARN_I32, CPU)));
    REFUSE(tarn_embedding, tarn_forward(model, tarn_cast(two, TARN_F32)));
    REFUSE(tarn_embedding, tarn_forward(model, tarn_from_i32(outside, TARN_SHAPE(1, 2), CPU)));
    REFUSE(tarn_model_loss, tarn_model_loss(NULL, two, two));
    REFUSE(tarn_model_loss, tarn_model_loss(other, two, two));
    REFUSE(tarn_model_loss, tarn_model_loss(model, NULL, two));
    REFUSE(tarn_model_loss, tarn_model_loss(model, two, NULL));
    REFUSE(tarn_model_loss, tarn_model_loss(model, six, six));
    REFUSE(tarn_model_loss, tarn_model_loss(model, two, six));
    REFUSE(tarn_model_loss, tarn_model_loss(gpt2, two, tarn_cast(two, TARN_F32)));
    REFUSE(tarn_model_loss, tarn_model_loss(model, two, tarn_from_i32(outside, TARN_SHAPE(1, 2), CPU)));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, two, two));
    REFUSE(tarn_llama_config_of, tarn_llama_config_of(NULL, &c));
    REFUSE(tarn_llama_config_of, tarn_llama_config_of(other, &c));
    REFUSE(tarn_llama_config_of, tarn_llama_config_of(gpt2, &c));
    REFUSE(tarn_llama_config_of, tarn_llama_config_of_sized(model, NULL, sizeof(c)));
    REFUSE(tarn_gpt2_config_of, tarn_gpt2_config_of(model, &other_config));
    REFUSE(tarn_model_query, tarn_model_query(NULL, &info));
    REFUSE(tarn_model_query, tarn_model_query(other, &info));
    REFUSE(tarn_model_query, tarn_model_query_sized(model, NULL, sizeof(info)));
    tarn_module_free(model);
    tarn_module_free(other);
    tarn_module_free(gpt2);
}

static void folders(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_llama(&small, CPU, 1);
    if (TARN__HAVE_JANSSON) {
        ACCEPT(tarn_model_write(model, scratch("out")));
        REFUSE(tarn_model_open, tarn_model_open(scratch("out"), nowhere, NULL));
        REFUSE(tarn_model_open,
               tarn_model_open(scratch("out"), CPU, &(tarn_model_open_options){.dtype = TARN_BF16, .as_stored = true}));
    } else {
        REFUSE(tarn_model_write, tarn_model_write(model, scratch("out")));
    }
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(configurations, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(any_architecture, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(models, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(folders, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

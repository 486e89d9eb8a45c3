/* arch_models.c: see arch_models.h. */
#include "support/arch_models.h"

#include <string.h>

#include "support/check.h"

/* 5: projections, attention, output, hidden activations, output. 2 more for q/k norms, 1 for a gate
 * with biases. */
const arch_case arch_cases[ARCH_CASES] = {{"gpt2", false, 5},     {"llama", false, 5},      {"llama", true, 6},
                                          {"mistral", false, 5},  {"qwen2", false, 5},      {"qwen3", false, 7},
                                          {"phi3", false, 5},     {"smollm3", false, 5},    {"granite", false, 5},
                                          {"olmo2", false, 7},    {"gpt_neox", false, 5},   {"gpt_neox", true, 5},
                                          {"gemma", false, 5},    {"gemma2", false, 5},     {"stablelm", true, 5},
                                          {"stablelm", false, 5}, {"starcoder2", false, 5}, {"gemma3_text", false, 7}};

static void draw(tarn_module *model)
{
    tarn_seed(4);
    tarn_no_grad_open();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        assert_true(
            tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal(tarn_shape_of(p), 0, 0.2, TARN_F32, tarn_device_cpu()))));
    }
    tarn_no_grad_close();
}

tarn_module *arch_model(const arch_case *row, int64_t layers)
{
    const bool is_mha = strcmp(row->arch, "gpt2") == 0 || strcmp(row->arch, "gpt_neox") == 0;
    tarn_lm_config c;
    assert_true(tarn_lm_config_named(row->arch, &c));
    c.vocab_size = ARCH_VOCAB, c.context = ARCH_CONTEXT, c.layers = layers, c.heads = ARCH_HEADS;
    c.hidden_size = ARCH_HIDDEN, c.ffn_size = 96;
    c.kv_heads = is_mha ? 0 : 2, c.head_dim = is_mha ? 0 : ARCH_HIDDEN / ARCH_HEADS;
    c.has_bos = false, c.bos = 0, c.eos_count = 0;
    c.window = c.window ? 5 : 0;
    c.attention_softcap = c.attention_softcap > 0 ? 2 : 0;
    if (strcmp(row->arch, "granite") == 0)
        c.residual_scale = 0.3, c.logit_scale = 0.5, c.attention_scale = 0.2, c.embedding_scale = 3;
    if (row->is_other && strcmp(row->arch, "llama") == 0)
        c.attention_bias = c.mlp_bias = true;
    else if (row->is_other)
        c.sequential = !c.sequential;
    tarn_module *model = tarn_model_lm(&c, tarn_device_cpu(), 7);
    assert_ok();
    assert_true(tarn_module_train(model, false));
    draw(model);
    return model;
}

tarn_tensor *arch_tokens(int64_t batch, int64_t count)
{
    int32_t list[256];
    for (int64_t i = 0; i < batch * count; i++)
        list[i] = (int32_t)((i * 29 + i * i * 3) % ARCH_VOCAB);
    return good(tarn_from_i32(list, TARN_SHAPE(batch, count), tarn_device_cpu()));
}

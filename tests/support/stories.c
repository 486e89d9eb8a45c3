/* stories.c: stories260K as a model, from the file of the program that trained it. */
#include "support/stories.h"

#include "support/files.h"

/* Copies values of the file into a parameter. The file interleaves the rows of q and k that RoPE rotates together, 2 i
 * and 2 i + 1 of a head; the model has them in halves. */
static const float *copy_parameter(tarn_module *model, const char *name, const float *at, int64_t head_dim)
{
    tarn_tensor *parameter = good(tarn_module_find(model, name)),
                *values = tarn_from_f32(at, tarn_shape_of(parameter), tarn_device_cpu());
    if (head_dim) {
        int64_t rows = tarn_size(parameter, 0), hidden_size = tarn_size(parameter, 1);
        values = tarn_reshape(values, TARN_SHAPE(rows / head_dim, head_dim / 2, 2, hidden_size));
        values = tarn_reshape(tarn_permute(values, TARN_AXES(0, 2, 1, 3)), TARN_SHAPE(rows, hidden_size));
    }
    assert_true(tarn_copy(parameter, values));
    return at + tarn_count(parameter);
}

tarn_module *open_stories(void)
{
    static const struct {
        const char *name;
        bool interleaved;
    } parts[] = {{"input_layernorm", false},  {"self_attn.q_proj", true},  {"self_attn.k_proj", true},
                 {"self_attn.v_proj", false}, {"self_attn.o_proj", false}, {"post_attention_layernorm", false},
                 {"mlp.gate_proj", false},    {"mlp.down_proj", false},    {"mlp.up_proj", false}};
    size_t count;
    char *file = get_file(real_data("stories260K/stories260K.bin"), &count);
    int32_t h[7]; /* dim, hidden, layers, heads, kv heads, vocab, context */
    assert_true(count > sizeof(h));
    memcpy(h, file, sizeof(h));
    const tarn_llama_config config = {.vocab_size = h[5],
                                      .context = h[6],
                                      .layers = h[2],
                                      .heads = h[3],
                                      .hidden_size = h[0],
                                      .ffn_size = h[1],
                                      .kv_heads = h[4],
                                      .tie_embeddings = true};
    tarn_module *model = tarn_model_llama(&config, tarn_device_cpu(), 0);
    const float *at =
        copy_parameter(model, "model.embed_tokens.weight", (const float *)(const void *)(file + sizeof(h)), 0);
    for (size_t p = 0; p < sizeof(parts) / sizeof(parts[0]); p++)
        for (int i = 0; i < h[2]; i++) {
            char name[96];
            snprintf(name, sizeof(name), "model.layers.%d.%s.weight", i, parts[p].name);
            at = copy_parameter(model, name, at, parts[p].interleaved ? h[0] / h[3] : 0);
        }
    at = copy_parameter(model, "model.norm.weight", at, 0);
    assert_int_equal((const char *)at - file + (ptrdiff_t)h[6] * (h[0] / h[3]) * (ptrdiff_t)sizeof(float),
                     count); /* two tables of angles follow */
    free(file);
    return model;
}

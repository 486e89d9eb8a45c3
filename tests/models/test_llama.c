/* test_llama.c: the Llama family: shapes, names, first values, gradients, decoding with a cache, threads and devices.
 * Its folders are in test_llama_files.c. */
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 19, CONTEXT = 24 };

/* Heads that do not fill the width, and two of them for each of keys. */
static const tarn_llama_config small = {.vocab_size = VOCAB,
                                        .context = CONTEXT,
                                        .layers = 2,
                                        .heads = 4,
                                        .hidden_size = 12,
                                        .ffn_size = 20,
                                        .kv_heads = 2,
                                        .head_dim = 6};

/* One of each family, with every kind of rotary positions. */
static const tarn_llama_config families[] = {
    {.vocab_size = VOCAB,
     .context = CONTEXT,
     .layers = 2,
     .heads = 4,
     .hidden_size = 12,
     .ffn_size = 20,
     .kv_heads = 2,
     .head_dim = 6},
    {.vocab_size = VOCAB,
     .context = CONTEXT,
     .layers = 3,
     .heads = 2,
     .hidden_size = 8,
     .ffn_size = 10,
     .tie_embeddings = true,
     .rope_scaling = TARN_ROPE_LINEAR,
     .rope_factor = 4,
     .arch = "mistral"},
    {.vocab_size = VOCAB,
     .context = CONTEXT,
     .layers = 1,
     .heads = 3,
     .hidden_size = 12,
     .ffn_size = 7,
     .kv_heads = 1,
     .qkv_bias = true,
     .arch = "qwen2",
     .tie_embeddings = true},
    {.vocab_size = VOCAB,
     .context = CONTEXT,
     .layers = 2,
     .heads = 2,
     .hidden_size = 6,
     .ffn_size = 9,
     .kv_heads = 1,
     .head_dim = 10,
     .qk_norm = true,
     .arch = "qwen3",
     .rope_scaling = TARN_ROPE_LLAMA3,
     .rope_original_context = 16,
     .rope_theta = 300},
};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

static tarn_module *make(const tarn_llama_config *config, uint64_t seed)
{
    tarn_module *model = tarn_model_llama(config, CPU, seed);
    assert_ok();
    return model;
}

/* Tokens [rows, columns] that depend on nothing but their place. */
static tarn_tensor *tokens_of(int64_t rows, int64_t columns, int64_t vocab_size)
{
    int32_t values[8 * CONTEXT];
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (int32_t)((7 * i + i * i / 3) % vocab_size);
    return good(tarn_from_i32(values, TARN_SHAPE(rows, columns), CPU));
}

/* Weights far from zero, so that every sub-module affects the results. */
static tarn_module *with_random_weights_of_std(const tarn_llama_config *config, double std)
{
    tarn_module *model = make(config, 3);
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, std)));
    }
    assert_ok();
    return model;
}

static tarn_module *with_random_weights(const tarn_llama_config *config)
{
    return with_random_weights_of_std(config, 0.25);
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

static int64_t numbers_of(const tarn_llama_config *c)
{
    int64_t head = c->head_dim ? c->head_dim : c->hidden_size / c->heads;
    int64_t block =
        2 * c->hidden_size * head * (c->heads + c->kv_heads) + 3 * c->hidden_size * c->ffn_size + 2 * c->hidden_size;
    return c->vocab_size * c->hidden_size * (c->tie_embeddings ? 1 : 2) + c->layers * block + c->hidden_size;
}

static void the_published_sizes_have_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } sizes[] = {{"llama-1b", 1235814400}, {"llama-3b", 3212749824}, {"smollm-135m", 134515008}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_llama_config c;
        assert_true(tarn_llama_config_named(sizes[i].name, &c));
        assert_int_equal(numbers_of(&c), sizes[i].parameters);
        assert_true(c.tie_embeddings && c.has_bos && c.eos_count == 1);
    }
}

static void published_sizes_of_other_architectures_have_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name, *arch;
        int64_t norms, parameters, windows; /* norms of a layer; windows of the first four layers, as bits */
    } sizes[] = {{"gemma-2-2b", "gemma2", 4, 2614341888, 5}, {"phi-3-mini", "phi3", 2, 3821079552, 0}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_lm_config c;
        assert_true(tarn_lm_config_named(sizes[i].name, &c));
        assert_string_equal(c.arch, sizes[i].arch);
        int64_t layer = 2 * c.hidden_size * c.head_dim * (c.heads + c.kv_heads) + 3 * c.hidden_size * c.ffn_size +
                        sizes[i].norms * c.hidden_size;
        assert_int_equal(c.vocab_size * c.hidden_size * (c.tie_embeddings ? 1 : 2) + c.layers * layer + c.hidden_size,
                         sizes[i].parameters);
        assert_true(c.window > 0);
        assert_int_equal(c.windows.bits[0] & 15, sizes[i].windows); /* none named: every layer */
    }
}

static void names_and_shapes_are_those_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        tarn_shape shape;
    } expected[] = {{"model.embed_tokens.weight", {2, {19, 12}}},
                    {"model.layers.0.self_attn.q_proj.weight", {2, {24, 12}}},
                    {"model.layers.0.self_attn.k_proj.weight", {2, {12, 12}}},
                    {"model.layers.0.self_attn.v_proj.weight", {2, {12, 12}}},
                    {"model.layers.0.self_attn.o_proj.weight", {2, {12, 24}}},
                    {"model.layers.0.mlp.gate_proj.weight", {2, {20, 12}}},
                    {"model.layers.0.mlp.up_proj.weight", {2, {20, 12}}},
                    {"model.layers.0.mlp.down_proj.weight", {2, {12, 20}}},
                    {"model.layers.0.input_layernorm.weight", {1, {12}}},
                    {"model.layers.0.post_attention_layernorm.weight", {1, {12}}},
                    {"model.layers.1.self_attn.q_proj.weight", {2, {24, 12}}}};
    tarn_module *model = make(&small, 1);
    assert_int_equal(tarn_module_parameter_count(model), 1 + 2 * 9 + 2);
    assert_int_equal(tarn_module_buffer_count(model), 0);
    for (int i = 0; i < (int)(sizeof(expected) / sizeof(expected[0])); i++) {
        assert_string_equal(tarn_module_parameter_name(model, i), expected[i].name);
        check_shape(tarn_module_parameter(model, i), expected[i].shape, __FILE__, __LINE__);
    }
    assert_string_equal(tarn_module_parameter_name(model, 19), "model.norm.weight");
    assert_string_equal(tarn_module_parameter_name(model, 20), "lm_head.weight");
    assert_shape(good(tarn_forward(model, tokens_of(3, 5, VOCAB))), 3, 5, VOCAB);
    assert_shape(good(tarn_forward(model, tarn_cast(tokens_of(1, CONTEXT, VOCAB), TARN_I64))), 1, CONTEXT, VOCAB);
    tarn_module_free(model);
}

static void architectures_have_their_own_parts(void **state)
{
    (void)state;
    tarn_module *mistral = make(&families[1], 1), *qwen2 = make(&families[2], 1), *qwen3 = make(&families[3], 1);
    assert_int_equal(tarn_module_parameter_count(mistral), 1 + 3 * 9 + 1); /* the head is the tokens' table */
    assert_int_equal(tarn_module_parameter_count(qwen2), 1 + (9 + 3) + 1);
    assert_int_equal(tarn_module_parameter_count(qwen3), 1 + 2 * (9 + 2) + 2);
    assert_shape(good(tarn_module_find(qwen2, "model.layers.0.self_attn.q_proj.bias")), 12);
    assert_shape(good(tarn_module_find(qwen2, "model.layers.0.self_attn.k_proj.bias")), 4);
    assert_shape(good(tarn_module_find(qwen2, "model.layers.0.self_attn.v_proj.bias")), 4);
    assert_shape(good(tarn_module_find(qwen3, "model.layers.1.self_attn.q_norm.weight")), 10);
    assert_shape(good(tarn_module_find(qwen3, "model.layers.1.self_attn.k_norm.weight")), 10);
    tarn_module_free(mistral);
    tarn_module_free(qwen2);
    tarn_module_free(qwen3);
}

static double deviation_of(tarn_module *model, const char *name)
{
    tarn_tensor *values = tarn_detach(tarn_module_find(model, name));
    return sqrt(tarn_item(tarn_mean(tarn_square(values), TARN_ALL_AXES, false)));
}

static void first_values_follow_from_the_seed_alone(void **state)
{
    (void)state;
    const tarn_llama_config config = {.vocab_size = 300,
                                      .context = 64,
                                      .layers = 2,
                                      .heads = 4,
                                      .hidden_size = 64,
                                      .ffn_size = 160,
                                      .qkv_bias = true,
                                      .arch = "qwen2"};
    tarn_seed(3);
    double drawn = tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F64, CPU));
    tarn_seed(3);
    tarn_module *a = make(&config, 5);
    /* the thread's generator did not move */
    assert_true(tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F64, CPU)) == drawn);
    tarn_module *b = make(&config, 5), *c = make(&config, 6);
    static const char *const drawn_names[] = {"model.embed_tokens.weight", "lm_head.weight",
                                              "model.layers.1.self_attn.o_proj.weight",
                                              "model.layers.1.mlp.down_proj.weight"};
    for (int i = 0; i < 4; i++)
        assert_true(fabs(deviation_of(a, drawn_names[i]) - 0.02) < 0.001);
    assert_true(deviation_of(a, "model.layers.1.self_attn.q_proj.bias") == 0);
    assert_true(deviation_of(a, "model.layers.1.post_attention_layernorm.weight") == 1);
    assert_close(tarn_module_find(a, drawn_names[3]), tarn_module_find(b, drawn_names[3]), 0);
    assert_true(tarn_item_at(tarn_module_find(a, drawn_names[3]), TARN_SHAPE(0, 0)) !=
                tarn_item_at(tarn_module_find(c, drawn_names[3]), TARN_SHAPE(0, 0)));
    tarn_module_free(a);
    tarn_module_free(b);
    tarn_module_free(c);
}

/* Every part written out with plain operations: no heads share anything but what is said here, and nothing is fused. */
static void the_model_is_its_parts(void **state)
{
    (void)state;
    tarn_module *model = with_random_weights(&small);
    tarn_tensor *tokens = tokens_of(2, 7, VOCAB),
                *x = tarn_embedding(tarn_module_find(model, "model.embed_tokens.weight"), tokens);
    for (int i = 0; i < 2; i++) {
        char name[80];
#define PART(part) (snprintf(name, sizeof(name), "model.layers.%d.%s.weight", i, part), tarn_module_find(model, name))
#define TURNED(x, part) tarn_matmul(x, tarn_transpose(PART(part), 0, 1))
        tarn_tensor *y = tarn_rmsnorm(x, PART("input_layernorm"), 1e-5), *heads[4];
        tarn_tensor *q = tarn_rope(tarn_reshape(TURNED(y, "self_attn.q_proj"), TARN_SHAPE(2, 7, 4, 6)), NULL, NULL);
        tarn_tensor *k = tarn_rope(tarn_reshape(TURNED(y, "self_attn.k_proj"), TARN_SHAPE(2, 7, 2, 6)), NULL, NULL);
        tarn_tensor *v = tarn_reshape(TURNED(y, "self_attn.v_proj"), TARN_SHAPE(2, 7, 2, 6));
        tarn_tensor *at = tarn_arange(0, 7, 1, TARN_F32, CPU),
                    *future = tarn_gt(tarn_unsqueeze(at, 0), tarn_unsqueeze(at, 1));
        for (int h = 0; h < 4; h++) {
            tarn_tensor *own = tarn_squeeze(tarn_slice(q, 2, h, h + 1), 2),
                        *shared = tarn_squeeze(tarn_slice(k, 2, h / 2, h / 2 + 1), 2);
            tarn_tensor *p = tarn_mul(tarn_matmul(own, tarn_transpose(shared, 1, 2)), tarn_scalar(1 / sqrt(6)));
            p = tarn_softmax(tarn_where(future, tarn_scalar(-1e30), p), 2);
            heads[h] = tarn_matmul(p, tarn_squeeze(tarn_slice(v, 2, h / 2, h / 2 + 1), 2));
        }
        x = tarn_add(x, TURNED(tarn_concat(heads, 4, 2), "self_attn.o_proj"));
        y = tarn_rmsnorm(x, PART("post_attention_layernorm"), 1e-5);
        tarn_tensor *gate = TURNED(y, "mlp.gate_proj");
        y = tarn_mul(tarn_mul(gate, tarn_sigmoid(gate)), TURNED(y, "mlp.up_proj"));
        x = tarn_add(x, TURNED(y, "mlp.down_proj"));
#undef PART
#undef TURNED
    }
    x = tarn_rmsnorm(x, tarn_module_find(model, "model.norm.weight"), 1e-5);
    tarn_tensor *logits = good(tarn_matmul(x, tarn_transpose(tarn_module_find(model, "lm_head.weight"), 0, 1)));
    assert_close(good(tarn_forward(model, tokens)), logits, 1e-5);
    tarn_module_free(model);
}

/* Every field of the rotary positions moves the logits. */
static void rope_follows_the_configuration(void **state)
{
    (void)state;
    tarn_tensor *tokens = tokens_of(1, CONTEXT, VOCAB), *before = NULL;
    for (int i = 0; i < 7; i++) {
        tarn_llama_config c = small;
        c.rope_theta = i >= 1 ? 500 : 0;
        c.rope_scaling = i >= 3 ? TARN_ROPE_LLAMA3 : i == 2 ? TARN_ROPE_LINEAR : TARN_ROPE_DEFAULT;
        c.rope_factor = i >= 4 ? 20 : 0;
        c.rope_original_context = i >= 3 ? (i >= 5 ? 12 : 16) : 0;
        c.rope_high_freq_factor = i >= 6 ? 2.5 : 0;
        tarn_module *model = with_random_weights(&c);
        tarn_tensor *logits = good(tarn_forward(model, tokens));
        if (before && tarn_item(tarn_max(tarn_abs(tarn_sub(logits, before)), TARN_ALL_AXES, false)) < 1e-6)
            fail_msg("case %d changes nothing", i);
        before = tarn_detach(logits);
        tarn_module_free(model);
    }
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

typedef struct problem {
    tarn_module *model;
    tarn_tensor *tokens, *targets;
} problem;

static tarn_tensor *loss_of(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)inputs, (void)count;
    problem *p = ctx;
    return tarn_model_loss(p->model, p->tokens, p->targets);
}

static void every_gradient_is_that_of_differences(void **state)
{
    (void)state;
    for (int f = 0; f < FAMILIES; f++)
        for (int recompute = TARN_RECOMPUTE_NONE; recompute <= TARN_RECOMPUTE_FULL; recompute++) {
            tarn_llama_config tiny = families[f];
            tiny.vocab_size = 5, tiny.hidden_size = 4, tiny.ffn_size = 3, tiny.layers = f == 0 ? 2 : 1, tiny.heads = 2,
            tiny.head_dim = f % 2 ? 4 : 0, tiny.kv_heads = 1;
            tiny.dtype = TARN_F64;
            tiny.recompute = (tarn_recompute)recompute;
            /* the curvature of a norm near 0 is too large for differences */
            tarn_module *model = with_random_weights_of_std(&tiny, 0.8);
            problem p = {model, tokens_of(2, 3, 5), tokens_of(2, 3, 5)};
            tarn_tensor *inputs[40];
            int count = tarn_module_parameter_count(model);
            for (int i = 0; i < count; i++)
                inputs[i] = tarn_module_parameter(model, i);
            tarn_gradcheck(loss_of, &p, inputs, count, NULL);
            assert_ok();
            tarn_module_free(model);
        }
}

static void the_loss_ignores_targets_of_minus_100(void **state)
{
    (void)state;
    tarn_module *model = with_random_weights(&small);
    tarn_tensor *tokens = tokens_of(2, 3, VOCAB);
    const int64_t targets[] = {1, -100, 3, 4, 5, -100}, kept[] = {1, 3, 4, 5}, places[] = {0, 2, 3, 4};
    tarn_tensor *rows = tarn_index_select(tarn_reshape(tarn_forward(model, tokens), TARN_SHAPE(6, VOCAB)), 0,
                                          tarn_from_i64(places, TARN_SHAPE(4), CPU));
    assert_close(good(tarn_model_loss(model, tokens, tarn_from_i64(targets, TARN_SHAPE(2, 3), CPU))),
                 good(tarn_cross_entropy(rows, tarn_from_i64(kept, TARN_SHAPE(4), CPU), NULL)), 1e-6);
    tarn_module_free(model);
}

static void it_learns_a_text_by_heart(void **state)
{
    (void)state;
    tarn_module *model = make(&small, 1);
    tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.02f});
    int32_t text[13];
    for (int i = 0; i < 13; i++)
        text[i] = (i * i + 3) % VOCAB;
    tarn_tensor *tokens = tarn_from_i32(text, TARN_SHAPE(1, 12), CPU),
                *targets = tarn_from_i32(text + 1, TARN_SHAPE(1, 12), CPU);
    double first = 0, last = 0;
    for (int step = 0; step < 80; step++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *loss = tarn_model_loss(model, tokens, targets);
        tarn_backward(loss);
        tarn_optimizer_step(adam);
        last = tarn_item(loss);
        first = step ? first : last;
        tarn_scope_close(scope);
    }
    assert_ok();
    assert_true(fabs(first - log(VOCAB)) < 0.1); /* it begins without an opinion */
    if (!(last < 0.3))
        fail_msg("the loss went from %g to %g only", first, last);
    tarn_optimizer_free(adam);
    tarn_module_free(model);
}

/* Gradients of all parameters, concatenated. */
static tarn_tensor *all_gradients(const tarn_llama_config *config)
{
    tarn_module *model = with_random_weights(config);
    tarn_tensor *parts[64];
    int count = tarn_module_parameter_count(model);
    tarn_backward(tarn_model_loss(model, tokens_of(3, 11, VOCAB), tokens_of(3, 11, VOCAB)));
    for (int i = 0; i < count; i++)
        parts[i] = tarn_cast(tarn_reshape(good(tarn_grad(tarn_module_parameter(model, i))), TARN_SHAPE(-1)), TARN_F64);
    tarn_tensor *all = good(tarn_clone(tarn_concat(parts, count, 0)));
    tarn_module_free(model);
    return all;
}

static void recomputation_gives_the_same_gradients(void **state)
{
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        tarn_llama_config c = families[f];
        tarn_tensor *stored = all_gradients(&c);
        c.recompute = TARN_RECOMPUTE_SELECTIVE;
        assert_close(all_gradients(&c), stored, 0);
        c.recompute = TARN_RECOMPUTE_FULL;
        assert_close(all_gradients(&c), stored, 1e-5);
    }
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    tarn_llama_config c = {.vocab_size = VOCAB,
                           .context = CONTEXT,
                           .layers = 2,
                           .heads = 8,
                           .hidden_size = 128,
                           .ffn_size = 320,
                           .kv_heads = 2};
    tarn_tensor *first = NULL;
    for (int threads = 1; threads <= 4; threads *= 2) {
        tarn_set_threads(threads);
        tarn_tensor *found = all_gradients(&c);
        if (first)
            assert_close(found, first, 0);
        first = found;
    }
}

static void parameters_may_be_of_any_float_dtype(void **state)
{
    (void)state;
    tarn_module *exact = make(&small, 1);
    tarn_tensor *tokens = tokens_of(1, CONTEXT, VOCAB), *logits = tarn_forward(exact, tokens);
    for (int i = 0; i < 3; i++) {
        static const tarn_dtype dtypes[] = {TARN_F64, TARN_BF16, TARN_F16};
        tarn_llama_config config = small;
        config.dtype = dtypes[i];
        tarn_module *model = make(&config, 1);
        tarn_tensor *found = good(tarn_forward(model, tokens));
        assert_true(tarn_dtype_of(found) == dtypes[i]);
        assert_close(tarn_cast(found, TARN_F32), logits, i == 0 ? 1e-6 : 0.01);
        tarn_backward(tarn_model_loss(model, tokens, tokens));
        assert_ok();
        tarn_module_free(model);
    }
    tarn_module_free(exact);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Sequences are split at random into chunks of one or several tokens. */
static void chunks_give_the_logits_of_the_whole_sequence(void **state)
{
    (void)state;
    uint64_t seed = test_seed(31);
    for (int f = 0; f < FAMILIES; f++)
        for (int64_t batch = 1; batch <= 3; batch += 2) {
            tarn_scope *scope = tarn_scope_open();
            tarn_llama_config c = families[f];
            c.dtype = TARN_F64;
            tarn_module *model = with_random_weights(&c);
            tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = batch});
            tarn_tensor *tokens = tokens_of(batch, CONTEXT, VOCAB), *logits = good(tarn_forward(model, tokens));
            for (int64_t from = 0, to; from < CONTEXT; from = to) {
                to = from + 1 + (random_below(&seed, 2) ? random_below(&seed, CONTEXT - from) : 0);
                tarn_tensor *last = good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, from, to)));
                assert_false(tarn_needs_grad(last));
                assert_close(last, tarn_squeeze(tarn_slice(logits, 1, to - 1, to), 1), 1e-12);
            }
            tarn_decoder_free(decoder);
            tarn_module_free(model);
            tarn_scope_close(scope);
        }
}

static void a_step_of_training_and_one_of_decoding_stay_on_the_device(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    for (int f = 0; f < FAMILIES; f++) {
        tarn_module *here = make(&families[f], 4), *model = tarn_model_llama(&families[f], there, 4);
        tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f});
        tarn_tensor *tokens = tokens_of(2, 6, VOCAB), *moved = good(tarn_to(tokens, there)),
                    *next = good(tarn_to(tokens_of(2, 1, VOCAB), there));
        assert_close(good(tarn_to(tarn_forward(model, moved), CPU)), good(tarn_forward(here, tokens)), 1e-6);
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = 2});
        good(tarn_decoder_feed(decoder, moved));
        tarn_counters before = tarn_stats();
        good(tarn_decoder_feed(decoder, next));
        assert_true(tarn_backward(tarn_model_loss(model, moved, moved)) && tarn_optimizer_step(adam));
        tarn_counters after = tarn_stats();
        assert_int_equal(after.uploads, before.uploads);
        assert_int_equal(after.downloads, before.downloads);
        assert_int_equal(after.fallbacks, before.fallbacks);
        tarn_decoder_free(decoder);
        tarn_optimizer_free(adam);
        tarn_module_free(here);
        tarn_module_free(model);
    }
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

static void the_configuration_can_be_queried_and_reused(void **state)
{
    (void)state;
    tarn_llama_config found, again;
    tarn_model_info info;
    tarn_module *model = make(&families[2], 1);
    assert_true(tarn_llama_config_of(model, &found));
    assert_true(found.head_dim == 4 && found.epsilon == 1e-5 && found.rope_theta == 10000 &&
                found.rope_original_context == 8192 && found.rope_factor == 8);
    assert_string_equal(found.arch, "qwen2");
    tarn_module *second = make(&found, 1);
    assert_true(tarn_llama_config_of(second, &again));
    assert_true(again.vocab_size == found.vocab_size && again.kv_heads == 1 && again.ffn_size == found.ffn_size &&
                again.qkv_bias && again.tie_embeddings);
    assert_true(tarn_model_query(model, &info));
    assert_string_equal(info.type, "qwen2");
    assert_true(info.vocab_size == VOCAB && info.context == CONTEXT && info.layers == 1 && info.heads == 3 &&
                info.kv_heads == 1 && info.head_dim == 4 && info.hidden_size == 12 && info.dtype == TARN_F32 &&
                !info.has_bos && !info.eos_count);
    tarn_module_free(model);
    tarn_module_free(second);
}

/* As a program that was built with a newer header asks: what this library does not know of is zero. */
static void fields_of_a_newer_header_become_zero(void **state)
{
    (void)state;
    struct {
        tarn_llama_config known;
        unsigned char more[24];
    } newer;
    struct {
        tarn_model_info known;
        unsigned char more[24];
    } info;
    const unsigned char zeros[sizeof(newer.more)] = {0};
    tarn_module *model = make(&small, 1);
    memset(&newer, 0xAA, sizeof(newer));
    memset(&info, 0xAA, sizeof(info));
    assert_true(tarn_llama_config_of_sized(model, &newer.known, sizeof(newer)) && newer.known.vocab_size == VOCAB);
    assert_memory_equal(newer.more, zeros, sizeof(zeros));
    memset(&newer, 0xAA, sizeof(newer));
    assert_true(tarn_llama_config_named_sized("llama-1b", &newer.known, sizeof(newer)) &&
                newer.known.vocab_size == 128256);
    assert_memory_equal(newer.more, zeros, sizeof(zeros));
    assert_true(tarn_model_query_sized(model, &info.known, sizeof(info)) && info.known.vocab_size == VOCAB);
    assert_memory_equal(info.more, zeros, sizeof(zeros));
    tarn_module_free(model);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    bool made = false;
    for (int room = 0; !made && room < 20000; room++) {
        allocations_left = room;
        tarn_module *model = tarn_model_llama(&families[2], CPU, 1);
        made = model != NULL;
        tarn_code code = tarn_error_code();
        allocations_left = 1000000;
        tarn_clear_error();
        assert_true(made || code == TARN_ERROR_MEMORY);
        tarn_module_free(model);
        tarn_empty_cache(CPU);
    }
    assert_true(made);
    if (!tarn_set_allocator(NULL)) /* which it refuses while memory is out */
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(the_published_sizes_have_the_published_numbers_of_parameters),
        in_scope(published_sizes_of_other_architectures_have_the_published_numbers_of_parameters),
        in_scope(names_and_shapes_are_those_of_transformers),
        in_scope(architectures_have_their_own_parts),
        in_scope(first_values_follow_from_the_seed_alone),
        in_scope(the_model_is_its_parts),
        in_scope(rope_follows_the_configuration),
        in_scope(every_gradient_is_that_of_differences),
        in_scope(the_loss_ignores_targets_of_minus_100),
        in_scope(it_learns_a_text_by_heart),
        in_scope(recomputation_gives_the_same_gradients),
        in_scope(threads_change_no_bit),
        in_scope(parameters_may_be_of_any_float_dtype),
        in_scope(chunks_give_the_logits_of_the_whole_sequence),
        in_scope(a_step_of_training_and_one_of_decoding_stay_on_the_device),
        in_scope(the_configuration_can_be_queried_and_reused),
        in_scope(fields_of_a_newer_header_become_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

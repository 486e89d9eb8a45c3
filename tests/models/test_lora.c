/* test_lora.c: adapters in GPT-2 and the Llama family: names, what is frozen, gradients, training, decoding, devices
 * and merging. Their folders are in test_lora_files.c. */
#include "support/check.h"
#include "support/scratch.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 17, CONTEXT = 12 };

/* A GPT-2, a Llama whose heads share keys, and a Qwen2, which has biases. */
enum { GPT2, LLAMA, QWEN, KINDS };

static tarn_module *make_as(int kind, tarn_dtype dtype, tarn_recompute recompute, tarn_device device)
{
    const tarn_gpt2_config gpt2 = {.vocab_size = VOCAB,
                                   .context = CONTEXT,
                                   .layers = 2,
                                   .heads = 2,
                                   .hidden_size = 8,
                                   .ffn_size = 12,
                                   .dtype = dtype,
                                   .recompute = recompute};
    tarn_llama_config llama = {.vocab_size = VOCAB,
                               .context = CONTEXT,
                               .layers = 2,
                               .heads = 4,
                               .hidden_size = 12,
                               .ffn_size = 10,
                               .kv_heads = 2,
                               .head_dim = 4,
                               .dtype = dtype,
                               .recompute = recompute};
    if (kind == QWEN) {
        llama.arch = "qwen2";
        llama.qkv_bias = llama.tie_embeddings = true;
    }
    tarn_module *model = kind == GPT2 ? tarn_model_gpt2(&gpt2, device, 3) : tarn_model_llama(&llama, device, 3);
    assert_ok();
    return model;
}

static tarn_module *make(int kind, tarn_dtype dtype)
{
    return make_as(kind, dtype, TARN_RECOMPUTE_NONE, CPU);
}

static bool is_adapter(const char *name)
{
    return strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
}

/* Numbers far from the beginning's in all parameters that are trained, so that every part counts. */
static void stir(tarn_module *model)
{
    tarn_seed(5);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        if (tarn_needs_grad(p))
            tarn_copy(p, tarn_normal_like(p, 0, 0.3));
    }
    assert_ok();
}

static tarn_module *adapted(int kind, tarn_dtype dtype, const char *targets)
{
    tarn_module *model = make(kind, dtype);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 3, .alpha = 5, .targets = targets, .dtype = dtype}));
    stir(model);
    return model;
}

static tarn_tensor *tokens_of(int64_t rows, int64_t columns)
{
    int32_t values[8 * CONTEXT];
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (int32_t)((7 * i + i * i / 3) % VOCAB);
    return good(tarn_from_i32(values, TARN_SHAPE(rows, columns), CPU));
}

/* ---- what there is ----------------------------------------------------------------------------------------------- */

static void names_and_shapes_are_those_of_peft(void **state)
{
    (void)state;
    tarn_module *model = make(LLAMA, TARN_F32);
    assert_false(tarn_lora_has(model));
    int before = tarn_module_parameter_count(model);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 3}));
    assert_true(tarn_lora_has(model));
    assert_int_equal(tarn_module_parameter_count(model), before + 2 * 2 * 7);
    assert_shape(good(tarn_module_find(model, "model.layers.0.self_attn.q_proj.lora_A.weight")), 3, 12);
    assert_shape(good(tarn_module_find(model, "model.layers.0.self_attn.q_proj.lora_B.weight")), 16, 3);
    assert_shape(good(tarn_module_find(model, "model.layers.1.mlp.down_proj.lora_A.weight")), 3, 10);
    assert_shape(good(tarn_module_find(model, "model.layers.1.self_attn.k_proj.lora_B.weight")), 8, 3);
    tarn_module_free(model);
    model = make(GPT2, TARN_F32); /* whose weights are [in, out] */
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 2, .targets = "c_attn, mlp.c_proj"}));
    assert_shape(good(tarn_module_find(model, "transformer.h.0.attn.c_attn.lora_A.weight")), 2, 8);
    assert_shape(good(tarn_module_find(model, "transformer.h.1.attn.c_attn.lora_B.weight")), 24, 2);
    assert_shape(good(tarn_module_find(model, "transformer.h.1.mlp.c_proj.lora_A.weight")), 2, 12);
    assert_null(tarn_module_find(model, "transformer.h.0.attn.c_proj.lora_A.weight"));
    assert_error(TARN_ERROR_ARGUMENT, "not found");
    tarn_module_free(model);
}

/* A is uniform in ±1/sqrt(in), B zero: the outputs do not change. */
static void adapters_are_initialized_as_in_peft(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        tarn_module *model = make(kind, TARN_F32);
        tarn_tensor *tokens = tokens_of(2, CONTEXT), *before = good(tarn_forward(model, tokens));
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 64, .seed = 9}));
        assert_close(good(tarn_forward(model, tokens)), before, 0);
        for (int i = 0; i < tarn_module_parameter_count(model); i++) {
            tarn_tensor *p = tarn_module_parameter(model, i);
            const char *name = tarn_module_parameter_name(model, i);
            double most = is_adapter(name) ? tarn_item(tarn_max(tarn_abs(p), TARN_ALL_AXES, false)) : 0;
            if (strstr(name, "lora_A")) {
                double bound = 1 / sqrt((double)tarn_size(p, 1));
                assert_true(most <= bound && most > 0.95 * bound);
                assert_true(fabs(tarn_item(tarn_mean(p, TARN_ALL_AXES, false))) < 0.1 * bound);
            } else if (is_adapter(name)) {
                assert_true(most == 0);
            }
        }
        tarn_module_free(model);
    }
}

static void a_seed_means_the_same_and_leaves_the_threads_generator_alone(void **state)
{
    (void)state;
    tarn_seed(1);
    tarn_tensor *alone = good(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, CPU)), *drawn[3];
    for (int i = 0; i < 3; i++) {
        tarn_module *model = make(LLAMA, TARN_F32);
        tarn_seed(1);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 2, .seed = (uint64_t)(i / 2)}));
        assert_close(good(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, CPU)), alone, 0);
        drawn[i] = good(tarn_clone(tarn_module_find(model, "model.layers.1.mlp.up_proj.lora_A.weight")));
        tarn_module_free(model);
    }
    assert_close(drawn[0], drawn[1], 0);
    assert_true(tarn_item(tarn_max(tarn_abs(tarn_sub(drawn[2], drawn[1])), TARN_ALL_AXES, false)) > 0);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void the_scale_is_alpha_over_rank_or_over_its_root(void **state)
{
    (void)state;
    static const tarn_lora_options options[] = {{.rank = 4, .alpha = 2, .dtype = TARN_F64},
                                                {.rank = 4, .alpha = 1, .rslora = true, .dtype = TARN_F64},
                                                {.rank = 4, .alpha = 0, .dtype = TARN_F64}}; /* 8 */
    tarn_tensor *tokens = tokens_of(1, CONTEXT), *found[3];
    for (int i = 0; i < 3; i++) {
        tarn_module *model = make(GPT2, TARN_F64);
        assert_true(tarn_lora_add(model, &options[i]));
        stir(model);
        if (i == 2) /* four times the scale, a quarter of A */
            for (int k = 0; k < tarn_module_parameter_count(model); k++)
                if (strstr(tarn_module_parameter_name(model, k), "lora_A"))
                    tarn_copy(tarn_module_parameter(model, k),
                              tarn_mul(tarn_detach(tarn_module_parameter(model, k)), tarn_scalar(0.25)));
        found[i] = good(tarn_forward(model, tokens));
        tarn_module_free(model);
    }
    assert_close(found[1], found[0], 1e-12);
    assert_close(found[2], found[0], 1e-12);
}

static tarn_tensor *loss_of(tarn_tensor *const *inputs, int count, void *model)
{
    (void)inputs, (void)count;
    tarn_tensor *tokens = tokens_of(2, 5);
    return tarn_model_loss(model, tokens, tokens_of(2, 5));
}

static void gradients_of_adapters_are_correct(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        tarn_module *model = adapted(kind, TARN_F64, NULL);
        tarn_tensor *inputs[64];
        int count = 0;
        for (int i = 0; i < tarn_module_parameter_count(model); i++)
            if (is_adapter(tarn_module_parameter_name(model, i)))
                inputs[count++] = tarn_module_parameter(model, i);
        assert_int_equal(count, kind == GPT2 ? 16 : 28);
        tarn_gradcheck(loss_of, model, inputs, count, &(tarn_gradcheck_options){.step = 1e-5});
        assert_ok();
        tarn_module_free(model);
    }
}

/* All gradients of adapters, one after the other. */
static tarn_tensor *all_gradients(int kind, tarn_recompute recompute, double dropout)
{
    tarn_module *model = make_as(kind, TARN_F32, recompute, CPU);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 3, .dropout = dropout}));
    stir(model);
    tarn_tensor *list[64], *tokens = tokens_of(2, CONTEXT);
    int count = 0;
    tarn_seed(8);
    assert_true(tarn_backward(tarn_model_loss(model, tokens, tokens)));
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *g = tarn_grad(tarn_module_parameter(model, i));
        assert_true(is_adapter(tarn_module_parameter_name(model, i)) == (g != NULL));
        if (g)
            list[count++] = tarn_reshape(g, TARN_SHAPE(-1));
    }
    tarn_tensor *all = good(tarn_concat(list, count, 0));
    tarn_module_free(model);
    return all;
}

static void recomputation_gives_the_same_gradients(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (int drops = 0; drops < 2; drops++) {
            tarn_tensor *stored = all_gradients(kind, TARN_RECOMPUTE_NONE, drops * 0.3);
            assert_close(all_gradients(kind, TARN_RECOMPUTE_SELECTIVE, drops * 0.3), stored, 0);
            assert_close(all_gradients(kind, TARN_RECOMPUTE_FULL, drops * 0.3), stored, 1e-5);
        }
}

static void dropout_is_for_training_alone(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *model = make(kind, TARN_F64);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 3, .dropout = 0.5, .dtype = TARN_F64}));
        stir(model);
        tarn_tensor *tokens = tokens_of(1, CONTEXT);
        tarn_tensor *first = good(tarn_forward(model, tokens)), *second = good(tarn_forward(model, tokens));
        assert_true(tarn_item(tarn_max(tarn_abs(tarn_sub(first, second)), TARN_ALL_AXES, false)) > 1e-6);
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = 1});
        tarn_tensor *decoded = good(tarn_decoder_feed(decoder, tokens)); /* decoding has no dropout */
        assert_true(tarn_module_is_training(model));
        tarn_module_train(model, false);
        first = good(tarn_forward(model, tokens));
        assert_close(good(tarn_forward(model, tokens)), first, 0);
        assert_close(decoded, tarn_squeeze(tarn_slice(first, 1, CONTEXT - 1, CONTEXT), 1), 1e-12);
        tarn_decoder_free(decoder);
        tarn_module_free(model);
    }
}

/* The weights and the adapters may be of different dtypes; the result is that of the weights. */
static void dtypes_may_differ(void **state)
{
    (void)state;
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
    tarn_tensor *tokens = tokens_of(2, CONTEXT);
    for (int i = 0; i < 16 * KINDS; i++) {
        tarn_dtype below = dtypes[i / 4 % 4], above = dtypes[i % 4];
        tarn_module *model = make(i / 16, below), *exact = adapted(i / 16, TARN_F64, NULL);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 3, .alpha = 5, .dtype = above}));
        stir(model);
        for (int k = 0; k < tarn_module_parameter_count(model); k++)
            tarn_copy(tarn_module_parameter(exact, k), tarn_module_parameter(model, k));
        tarn_tensor *found = good(tarn_forward(model, tokens)), *logits = good(tarn_forward(exact, tokens));
        assert_true(tarn_dtype_of(found) == below);
        double off =
            tarn_item(tarn_mean(tarn_abs(tarn_sub(tarn_cast(found, TARN_F64), logits)), TARN_ALL_AXES, false)) /
            tarn_item(tarn_mean(tarn_abs(logits), TARN_ALL_AXES, false));
        bool is_coarse = below == TARN_BF16 || above == TARN_BF16, is_half = below == TARN_F16 || above == TARN_F16;
        assert_true(off < (is_coarse ? 0.04 : is_half ? 0.006 : 2e-6)); /* some ten steps of the coarser dtype */
        assert_true(tarn_backward(tarn_model_loss(model, tokens, tokens)));
        tarn_module_free(model);
        tarn_module_free(exact);
    }
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Copies of all parameters and buffers but the adapters. */
static int copy_frozen(const tarn_module *model, tarn_tensor **copy)
{
    int count = 0;
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        if (!is_adapter(tarn_module_parameter_name(model, i)))
            copy[count++] = good(tarn_clone(tarn_module_parameter(model, i)));
    for (int i = 0; i < tarn_module_buffer_count(model); i++)
        copy[count++] = good(tarn_clone(tarn_module_buffer(model, i)));
    return count;
}

static void assert_same_bits(const tarn_tensor *a, const tarn_tensor *b)
{
    assert_int_equal(tarn_bytes(a), tarn_bytes(b));
    assert_memory_equal(tarn_data((tarn_tensor *)a), tarn_data((tarn_tensor *)b), (size_t)tarn_bytes(a));
}

/* Trains, and says how far the loss fell; frozen stays frozen, bit for bit, has no gradient and no state. */
static double train(tarn_module *model, int steps, float lr)
{
    tarn_tensor *before[64], *after[64], *tokens = tokens_of(2, CONTEXT - 1), *targets = tokens_of(2, CONTEXT - 1);
    int frozen = copy_frozen(model, before);
    tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = lr, .weight_decay = 0.1f});
    double first = 0, last = 0;
    for (int i = 0; i < steps; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *loss = good(tarn_model_loss(model, tokens, targets));
        last = tarn_item(loss);
        first = i ? first : last;
        tarn_backward(loss);
        for (int k = 0; k < tarn_module_parameter_count(model); k++)
            assert_true(is_adapter(tarn_module_parameter_name(model, k)) ==
                        (tarn_grad(tarn_module_parameter(model, k)) != NULL));
        tarn_optimizer_step(adam);
        tarn_scope_close(scope);
    }
    assert_true(tarn_optimizer_save(adam, scratch("state.safetensors")));
    tarn_optimizer_free(adam);
    tarn_safetensors *file = tarn_safetensors_open(scratch("state.safetensors"));
    for (int i = 0; i < tarn_safetensors_count(file); i++)
        assert_true(is_adapter(tarn_safetensors_name(file, i)) || !strchr(tarn_safetensors_name(file, i), '.'));
    tarn_safetensors_close(file);
    assert_int_equal(copy_frozen(model, after), frozen);
    for (int i = 0; i < frozen; i++)
        assert_same_bits(after[i], before[i]);
    assert_ok();
    return first - last;
}

static void only_adapters_are_trained(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int kind = 0; kind < KINDS; kind++) {
        tarn_module *model = make(kind, TARN_F32);
        stir(model); /* a head that can tell tokens apart */
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 4, .alpha = 16}));
        assert_true(train(model, 40, 0.03f) > 0.3);
        tarn_module_free(model);
    }
}

/* Memory of training, the model's own excepted, does not grow with the frozen weights. */
static void frozen_parameters_take_no_memory_in_training(void **state)
{
    (void)state;
    const tarn_llama_config wide = {
        .vocab_size = 2000, .context = 8, .layers = 1, .heads = 4, .hidden_size = 256, .ffn_size = 1024};
    tarn_module *model = tarn_model_llama(&wide, CPU, 1);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .targets = "q_proj"}));
    int64_t held = tarn_memory_of(CPU).used;
    tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f});
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *tokens = tokens_of(1, 4);
    tarn_backward(tarn_model_loss(model, tokens, tokens));
    tarn_optimizer_step(adam);
    tarn_scope_close(scope);
    assert_ok();
    assert_true(tarn_memory_of(CPU).used - held < 64 * 1024); /* the smallest frozen matrix has 256 KiB */
    tarn_optimizer_free(adam);
    tarn_module_free(model);
}

/* ---- a quantized base -------------------------------------------------------------------------------------------- */

static tarn_module *quantized(tarn_dtype type, tarn_dtype dtype)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .hidden_size = 256,
                                      .ffn_size = 256,
                                      .kv_heads = 2};
    tarn_module *model = tarn_model_llama(&config, CPU, 6);
    assert_true(tarn_model_write(model, scratch("plain")));
    tarn_module_free(model);
    assert_true(tarn_model_convert(scratch("plain"), scratch("blocks.gguf"), NULL,
                                   &(tarn_convert_options){.quantize = true, .type = type, .replace = true}));
    model = tarn_model_open(scratch("blocks.gguf"), CPU, &(tarn_model_open_options){.dtype = dtype});
    assert_ok();
    return model;
}

static void adapters_train_on_a_quantized_base(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const tarn_dtype types[] = {TARN_Q8_0, TARN_Q4_K}, dtypes[] = {TARN_F32, TARN_BF16};
    for (int i = 0; i < 4; i++) {
        tarn_module *model = quantized(types[i / 2], dtypes[i % 2]);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 8, .alpha = 16, .dtype = TARN_BF16}));
        /* three times the rate is too much here: the loss swings between 0.1 and 2.7 */
        assert_true(train(model, 20, 0.01f) > 1.5);
        tarn_tensor *tokens = tokens_of(1, CONTEXT), *logits = good(tarn_forward(model, tokens));
        assert_true(tarn_lora_merge(model));
        tarn_tensor *weight = tarn_module_find(model, "model.layers.0.self_attn.q_proj.weight");
        assert_true(tarn_dtype_of(weight) == dtypes[i % 2] && !tarn_needs_grad(weight));
        assert_string_equal(tarn_name(weight), "model.layers.0.self_attn.q_proj.weight");
        /* x has 8 bits no more */
        assert_close_for_size(tarn_cast(good(tarn_forward(model, tokens)), TARN_F32), tarn_cast(logits, TARN_F32), 0.1);
        tarn_module_free(model);
    }
}

/* ---- decoding and devices ---------------------------------------------------------------------------------------- */

static void chunks_give_the_logits_of_the_whole_sequence(void **state)
{
    (void)state;
    uint64_t seed = test_seed(31);
    for (int kind = 0; kind < KINDS; kind++) {
        tarn_module *model = adapted(kind, TARN_F64, NULL);
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = 2});
        tarn_tensor *tokens = tokens_of(2, CONTEXT), *logits = good(tarn_forward(model, tokens));
        for (int64_t from = 0, to; from < CONTEXT; from = to) {
            to = from + 1 + random_below(&seed, CONTEXT - from) / 2;
            tarn_tensor *last = good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, from, to)));
            assert_close(last, tarn_squeeze(tarn_slice(logits, 1, to - 1, to), 1), 1e-12);
        }
        tarn_decoder_free(decoder);
        tarn_module_free(model);
    }
}

/* Captured decode steps, as in generation, and training: no transfers. */
static void steps_stay_on_the_device(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    for (int kind = 0; kind < KINDS; kind++) {
        tarn_module *here = make(kind, TARN_F32), *model = make_as(kind, TARN_F32, TARN_RECOMPUTE_NONE, there);
        assert_true(tarn_lora_add(here, &(tarn_lora_options){.rank = 3}) &&
                    tarn_lora_add(model, &(tarn_lora_options){.rank = 3}));
        int count = tarn_module_parameter_count(here);
        stir(here);
        for (int i = 0; i < count; i++)
            tarn_copy(tarn_module_parameter(model, i), tarn_module_parameter(here, i));
        tarn_tensor *tokens = tokens_of(1, 6), *moved = good(tarn_to(tokens, there));
        assert_close(good(tarn_to(tarn_forward(model, moved), CPU)), good(tarn_forward(here, tokens)), 1e-5);
        int32_t prompt[] = {1, 2, 3}, one[6], other[6];
        assert_int_equal(tarn_generate(here, prompt, 3, one, &(tarn_generate_options){.max_tokens = 6}), 6);
        assert_int_equal(tarn_generate(model, prompt, 3, other, &(tarn_generate_options){.max_tokens = 6}), 6);
        assert_memory_equal(one, other, sizeof(one));
        tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f});
        tarn_stats_reset();
        tarn_backward(tarn_model_loss(model, moved, moved));
        tarn_optimizer_step(adam);
        tarn_counters counters = tarn_stats();
        assert_true(counters.fallbacks == 0 && counters.downloads == 0);
        tarn_optimizer_free(adam);
        assert_true(tarn_lora_merge(model));
        assert_ok();
        tarn_module_free(model);
        tarn_module_free(here);
    }
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

static void merged_weights_compute_the_same(void **state)
{
    (void)state;
    static const struct {
        tarn_dtype dtype;
        double tolerance;
    } rows[] = {{TARN_F64, 1e-12}, {TARN_F32, 1e-4}, {TARN_BF16, 0.1}};
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 3; i++) {
            tarn_module *model = adapted(kind, rows[i].dtype, kind == GPT2 ? "c_attn,mlp.c_proj" : NULL);
            int before = tarn_module_parameter_count(model);
            tarn_tensor *tokens = tokens_of(2, CONTEXT), *logits = good(tarn_forward(model, tokens));
            assert_true(tarn_lora_merge(model));
            assert_false(tarn_lora_has(model));
            assert_int_equal(tarn_module_parameter_count(model), before - (kind == GPT2 ? 8 : 28));
            assert_close_for_size(tarn_cast(good(tarn_forward(model, tokens)), TARN_F64), tarn_cast(logits, TARN_F64),
                                  rows[i].tolerance);
            assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 1})); /* a second time */
            tarn_module_free(model);
        }
}

static void a_model_with_adapters_is_not_written_as_one(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_module *model = adapted(LLAMA, TARN_F32, NULL);
    assert_false(tarn_model_write(model, scratch("whole")));
    assert_error_about(TARN_ERROR_ARGUMENT, "model_write", "has adapters");
    assert_true(tarn_lora_merge(model) && tarn_model_write(model, scratch("whole")));
    tarn_module_free(model);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void targets_are_layers_by_name(void **state)
{
    (void)state;
    static const struct {
        int kind;
        const char *targets, *part;
    } wrong[] = {
        {LLAMA, "q_proj,c_attn",
         "layer 'c_attn' not found; there are embed_tokens, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
         "down_proj, lm_head"},
        {GPT2, "proj", "'proj' not found; there are wte, c_attn, c_proj, c_fc, lm_head"},
        {GPT2, "", "empty name"},
        {LLAMA, "q_proj,", "empty name"},
        {LLAMA, "q_proj, ,v_proj", "empty name"},
        {LLAMA, "norm", "layer 'norm' not found"},
        {GPT2, "ln_f", "layer 'ln_f' not found"},
        {GPT2, "wpe", "layer 'wpe' not found"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_module *model = make(wrong[i].kind, TARN_F32);
        assert_false(tarn_lora_add(model, &(tarn_lora_options){.rank = 2, .targets = wrong[i].targets}));
        tarn_code code = tarn_error_code();
        assert_error_about(code, "lora_add", wrong[i].part);
        assert_false(tarn_lora_has(model));
        assert_true(tarn_needs_grad(tarn_module_parameter(model, 0))); /* as it was */
        tarn_module_free(model);
    }
}

static void a_model_in_training_cannot_get_adapters(void **state)
{
    (void)state;
    tarn_module *model = make(LLAMA, TARN_F32);
    tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f});
    assert_false(tarn_lora_add(model, &(tarn_lora_options){.rank = 2}));
    assert_error_about(TARN_ERROR_ARGUMENT, "lora_add", "is trained by an optimizer");
    assert_false(tarn_lora_has(model));
    tarn_optimizer_free(adam);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 2}));
    assert_false(tarn_lora_add(model, &(tarn_lora_options){.rank = 2}));
    assert_error_about(TARN_ERROR_ARGUMENT, "lora_add", "already has adapters");
    adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f});
    assert_false(tarn_lora_merge(model));
    assert_error_about(TARN_ERROR_ARGUMENT, "lora_merge", "free that first");
    assert_true(tarn_lora_has(model));
    tarn_optimizer_free(adam);
    assert_true(tarn_lora_merge(model));
    assert_false(tarn_lora_merge(model));
    assert_error_about(TARN_ERROR_ARGUMENT, "lora_merge", "no adapters");
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(names_and_shapes_are_those_of_peft),
        in_scope(adapters_are_initialized_as_in_peft),
        in_scope(a_seed_means_the_same_and_leaves_the_threads_generator_alone),
        in_scope(the_scale_is_alpha_over_rank_or_over_its_root),
        in_scope(gradients_of_adapters_are_correct),
        in_scope(recomputation_gives_the_same_gradients),
        in_scope(dropout_is_for_training_alone),
        in_scope(dtypes_may_differ),
        in_scope(only_adapters_are_trained),
        in_scope(frozen_parameters_take_no_memory_in_training),
        in_scope(adapters_train_on_a_quantized_base),
        in_scope(chunks_give_the_logits_of_the_whole_sequence),
        in_scope(steps_stay_on_the_device),
        in_scope(merged_weights_compute_the_same),
        in_scope(a_model_with_adapters_is_not_written_as_one),
        in_scope(targets_are_layers_by_name),
        in_scope(a_model_in_training_cannot_get_adapters),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

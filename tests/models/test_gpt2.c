/* test_gpt2.c: GPT-2: its shapes, names, first values and gradients, what dropout does, that it learns, and its
 * folders. */
#include <sys/stat.h>
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static const tarn_gpt2_config small = {.vocab_size = 17, .context = 12, .layers = 2, .heads = 2, .hidden_size = 8};

static tarn_module *make(const tarn_gpt2_config *config, uint64_t seed)
{
    tarn_module *model = tarn_model_gpt2(config, CPU, seed);
    assert_ok();
    return model;
}

/* Tokens [rows, columns] that depend on nothing but their place. */
static tarn_tensor *tokens_of(int64_t rows, int64_t columns, int64_t vocab_size)
{
    int32_t *values = malloc(sizeof(int32_t) * (size_t)(rows * columns));
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (int32_t)((7 * i + i * i / 3) % vocab_size);
    tarn_tensor *tokens = tarn_from_i32(values, TARN_SHAPE(rows, columns), CPU);
    free(values);
    return good(tokens);
}

/* Weights far from zero, so that every sub-module affects the results. */
static void stir(tarn_module *model)
{
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.3)));
    }
    assert_ok();
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

static void the_published_sizes_have_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } sizes[] = {{"gpt2", 124439808},      {"gpt2-124m", 124439808},  {"gpt2-medium", 354823168},
                 {"gpt2-350m", 354823168}, {"gpt2-large", 774030080}, {"gpt2-774m", 774030080},
                 {"gpt2-xl", 1557611200},  {"gpt2-1.5b", 1557611200}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_gpt2_config c;
        assert_true(tarn_gpt2_config_named(sizes[i].name, &c));
        int64_t norm = 2 * c.hidden_size, block = 2 * norm + c.hidden_size * 3 * c.hidden_size + 3 * c.hidden_size +
                                                  c.hidden_size * c.hidden_size + c.hidden_size +
                                                  2 * 4 * c.hidden_size * c.hidden_size + 4 * c.hidden_size +
                                                  c.hidden_size;
        assert_int_equal(c.vocab_size * c.hidden_size + c.context * c.hidden_size + c.layers * block + norm,
                         sizes[i].parameters);
        assert_true(c.has_eos && c.eos == 50256 && c.context == 1024 && c.hidden_size % c.heads == 0);
    }
}

static void names_and_shapes_are_those_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        tarn_shape shape;
    } expected[] = {{"transformer.wte.weight", {2, {17, 8}}},
                    {"transformer.wpe.weight", {2, {12, 8}}},
                    {"transformer.h.0.ln_1.weight", {1, {8}}},
                    {"transformer.h.0.ln_1.bias", {1, {8}}},
                    {"transformer.h.0.attn.c_attn.weight", {2, {8, 24}}},
                    {"transformer.h.0.attn.c_attn.bias", {1, {24}}},
                    {"transformer.h.0.attn.c_proj.weight", {2, {8, 8}}},
                    {"transformer.h.0.attn.c_proj.bias", {1, {8}}},
                    {"transformer.h.0.ln_2.weight", {1, {8}}},
                    {"transformer.h.0.ln_2.bias", {1, {8}}},
                    {"transformer.h.0.mlp.c_fc.weight", {2, {8, 32}}},
                    {"transformer.h.0.mlp.c_fc.bias", {1, {32}}},
                    {"transformer.h.0.mlp.c_proj.weight", {2, {32, 8}}},
                    {"transformer.h.0.mlp.c_proj.bias", {1, {8}}},
                    {"transformer.h.1.ln_1.weight", {1, {8}}}};
    tarn_module *model = make(&small, 1);
    assert_int_equal(tarn_module_parameter_count(model), 2 + 2 * 12 + 2);
    assert_int_equal(tarn_module_buffer_count(model), 0);
    for (int i = 0; i < (int)(sizeof(expected) / sizeof(expected[0])); i++) {
        assert_string_equal(tarn_module_parameter_name(model, i), expected[i].name);
        assert_string_equal(tarn_name(tarn_module_parameter(model, i)), expected[i].name);
        check_shape(tarn_module_parameter(model, i), expected[i].shape, __FILE__, __LINE__);
    }
    assert_string_equal(tarn_module_parameter_name(model, 27), "transformer.ln_f.bias");
    assert_shape(good(tarn_forward(model, tokens_of(3, 5, 17))), 3, 5, 17);
    assert_shape(good(tarn_forward(model, tarn_cast(tokens_of(1, 12, 17), TARN_I64))), 1, 12, 17);
    tarn_module_free(model);
}

static double deviation_of(tarn_module *model, const char *name)
{
    tarn_tensor *values = tarn_detach(tarn_module_find(model, name));
    return sqrt(tarn_item(tarn_mean(tarn_square(values), TARN_ALL_AXES, false)));
}

static void first_values_are_gpt2_s_and_follow_from_the_seed_alone(void **state)
{
    (void)state;
    const tarn_gpt2_config config = {.vocab_size = 300, .context = 64, .layers = 8, .heads = 4, .hidden_size = 64};
    tarn_seed(3);
    double drawn = tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F64, CPU));
    tarn_seed(3);
    tarn_module *a = make(&config, 5);
    /* the thread's generator did not move */
    assert_true(tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F64, CPU)) == drawn);
    tarn_module *b = make(&config, 5), *c = make(&config, 6);
    assert_true(fabs(deviation_of(a, "transformer.wte.weight") - 0.02) < 0.0005);
    assert_true(fabs(deviation_of(a, "transformer.wpe.weight") - 0.02) < 0.001);
    assert_true(fabs(deviation_of(a, "transformer.h.3.attn.c_attn.weight") - 0.02) < 0.0005);
    assert_true(fabs(deviation_of(a, "transformer.h.3.attn.c_proj.weight") - 0.005) < 0.0003);
    assert_true(fabs(deviation_of(a, "transformer.h.7.mlp.c_proj.weight") - 0.005) < 0.0002);
    assert_true(deviation_of(a, "transformer.h.7.mlp.c_fc.bias") == 0);
    assert_true(deviation_of(a, "transformer.h.7.ln_2.weight") == 1);
    const char *name = "transformer.h.7.mlp.c_proj.weight";
    assert_close(tarn_module_find(a, name), tarn_module_find(b, name), 0);
    assert_true(tarn_item_at(tarn_module_find(a, name), TARN_SHAPE(0, 0)) !=
                tarn_item_at(tarn_module_find(c, name), TARN_SHAPE(0, 0)));
    tarn_module_free(a);
    tarn_module_free(b);
    tarn_module_free(c);
}

/* Whatever comes later changes nothing, and what comes before changes something. */
static void a_token_sees_itself_and_those_before_it(void **state)
{
    (void)state;
    int32_t first[] = {1, 2, 3, 4, 5, 6}, second[] = {1, 2, 3, 9, 5, 6};
    tarn_module *model = make(&small, 1);
    stir(model);
    tarn_tensor *a = tarn_forward(model, tarn_from_i32(first, TARN_SHAPE(1, 6), CPU));
    tarn_tensor *b = tarn_forward(model, tarn_from_i32(second, TARN_SHAPE(1, 6), CPU));
    assert_close(tarn_slice(a, 1, 0, 3), tarn_slice(b, 1, 0, 3), 0);
    tarn_tensor *gap = tarn_max(tarn_abs(tarn_sub(a, b)), TARN_AXES(0, 2), false);
    for (int i = 3; i < 6; i++)
        assert_true(tarn_item_at(gap, TARN_SHAPE(i)) > 1e-3);
    tarn_module_free(model);
}

static bool find_blocks(tarn_module *module, const char *path, void *ctx)
{
    if (strcmp(path, "transformer.h") == 0)
        *(tarn_module **)ctx = module;
    return true;
}

/* Every part written out with plain operations; the blocks alone, as modules of their own, give what lies between
 * embeddings and last norm. */
static void the_model_is_its_parts(void **state)
{
    (void)state;
    tarn_module *model = make(&small, 1);
    stir(model);
    tarn_tensor *tokens = tokens_of(2, 7, 17);
    tarn_tensor *table = tarn_module_find(model, "transformer.wte.weight");
    tarn_tensor *x =
        tarn_add(tarn_embedding(table, tokens), tarn_slice(tarn_module_find(model, "transformer.wpe.weight"), 0, 0, 7));
    tarn_module *blocks = NULL;
    assert_true(tarn_module_visit(model, find_blocks, &blocks));
    tarn_tensor *through = good(tarn_forward(blocks, x));
    for (int i = 0; i < 2; i++) {
        char name[80];
#define PART(part) (snprintf(name, sizeof(name), "transformer.h.%d.%s", i, part), tarn_module_find(model, name))
        tarn_tensor *y = tarn_layernorm(x, PART("ln_1.weight"), PART("ln_1.bias"), 1e-5), *qkv[3], *heads[2];
        y = tarn_add(tarn_matmul(y, PART("attn.c_attn.weight")), PART("attn.c_attn.bias"));
        tarn_split(y, 2, (const int64_t[]){8, 8, 8}, 3, qkv);
        for (int h = 0; h < 2; h++) {
            tarn_tensor *q = tarn_slice(qkv[0], 2, 4 * h, 4 * h + 4), *k = tarn_slice(qkv[1], 2, 4 * h, 4 * h + 4);
            tarn_tensor *p = tarn_mul(tarn_matmul(q, tarn_transpose(k, 1, 2)), tarn_scalar(0.5));
            tarn_tensor *future = tarn_gt(tarn_unsqueeze(tarn_arange(0, 7, 1, TARN_F32, CPU), 0),
                                          tarn_unsqueeze(tarn_arange(0, 7, 1, TARN_F32, CPU), 1));
            p = tarn_softmax(tarn_where(future, tarn_scalar(-1e30), p), 2);
            heads[h] = tarn_matmul(p, tarn_slice(qkv[2], 2, 4 * h, 4 * h + 4));
        }
        y = tarn_matmul(tarn_concat(heads, 2, 2), PART("attn.c_proj.weight"));
        x = tarn_add(x, tarn_add(y, PART("attn.c_proj.bias")));
        y = tarn_layernorm(x, PART("ln_2.weight"), PART("ln_2.bias"), 1e-5);
        y = tarn_gelu(tarn_add(tarn_matmul(y, PART("mlp.c_fc.weight")), PART("mlp.c_fc.bias")));
        x = tarn_add(x, tarn_add(tarn_matmul(y, PART("mlp.c_proj.weight")), PART("mlp.c_proj.bias")));
#undef PART
    }
    assert_close(through, good(x), 1e-5);
    x = tarn_layernorm(x, tarn_module_find(model, "transformer.ln_f.weight"),
                       tarn_module_find(model, "transformer.ln_f.bias"), 1e-5);
    assert_close(good(tarn_forward(model, tokens)), good(tarn_matmul(x, tarn_transpose(table, 0, 1))), 1e-5);
    tarn_module_free(model);
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
    return tarn_gpt2_loss(p->model, p->tokens, p->targets);
}

static void check_gradients(const tarn_gpt2_config *config)
{
    tarn_module *model = make(config, 2);
    stir(model);
    problem p = {model, tokens_of(2, 3, config->vocab_size), tokens_of(2, 3, config->vocab_size)};
    tarn_tensor *inputs[40];
    int count = tarn_module_parameter_count(model);
    assert_true(count <= 40);
    for (int i = 0; i < count; i++)
        inputs[i] = tarn_module_parameter(model, i);
    tarn_gradcheck(loss_of, &p, inputs, count, NULL);
    assert_ok();
    tarn_module_free(model);
}

static void every_gradient_is_that_of_differences(void **state)
{
    (void)state;
    tarn_gpt2_config tiny = {
        .vocab_size = 5, .context = 4, .layers = 2, .heads = 2, .hidden_size = 4, .ffn_size = 6, .dtype = TARN_F64};
    check_gradients(&tiny);
    tiny.layers = 1;
    tiny.dropout = 0.3; /* the same masks in forward and backward */
    check_gradients(&tiny);
}

static void the_loss_is_the_cross_entropy_of_the_logits_and_ignores_targets_of_minus_100(void **state)
{
    (void)state;
    tarn_module *model = make(&small, 1);
    stir(model);
    tarn_tensor *tokens = tokens_of(2, 3, 17);
    const int64_t targets[] = {1, -100, 3, 4, 5, -100}, kept[] = {1, 3, 4, 5}, places[] = {0, 2, 3, 4};
    tarn_tensor *rows = tarn_index_select(tarn_reshape(tarn_forward(model, tokens), TARN_SHAPE(6, 17)), 0,
                                          tarn_from_i64(places, TARN_SHAPE(4), CPU));
    assert_close(good(tarn_gpt2_loss(model, tokens, tarn_from_i64(targets, TARN_SHAPE(2, 3), CPU))),
                 good(tarn_cross_entropy(rows, tarn_from_i64(kept, TARN_SHAPE(4), CPU), NULL)), 1e-6);
    tarn_module_free(model);
}

static void it_learns_a_text_by_heart(void **state)
{
    (void)state;
    tarn_module *model = make(&small, 1);
    tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f});
    int32_t text[13];
    for (int i = 0; i < 13; i++)
        text[i] = (i * i + 3) % 17;
    tarn_tensor *tokens = tarn_from_i32(text, TARN_SHAPE(1, 12), CPU),
                *targets = tarn_from_i32(text + 1, TARN_SHAPE(1, 12), CPU);
    double first = 0, last = 0;
    for (int step = 0; step < 60; step++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *loss = tarn_gpt2_loss(model, tokens, targets);
        tarn_backward(loss);
        tarn_optimizer_step(adam);
        last = tarn_item(loss);
        first = step ? first : last;
        tarn_scope_close(scope);
    }
    assert_ok();
    assert_true(fabs(first - log(17)) < 0.1); /* it begins without an opinion */
    if (!(last < 0.3))
        fail_msg("the loss went from %g to %g only", first, last);
    tarn_optimizer_free(adam);
    tarn_module_free(model);
}

/* ---- dropout and dtypes ------------------------------------------------------------------------------------------ */

static double distance(tarn_module *model, tarn_tensor *tokens, tarn_tensor *from)
{
    return tarn_item(tarn_max(tarn_abs(tarn_sub(tarn_forward(model, tokens), from)), TARN_ALL_AXES, false));
}

/* Each of the three kinds alone moves the logits in training mode, and none outside it. */
static void dropout_is_for_training(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        tarn_gpt2_config config = small;
        config.dropout = kind == 0 ? 0.2 : 0;
        config.attention_dropout = kind == 1 ? 0.2 : -1;
        config.embedding_dropout = kind == 2 ? 0.2 : -1;
        tarn_module *with = make(&config, 1), *without = make(&small, 1);
        tarn_tensor *tokens = tokens_of(2, 9, 17), *plain = tarn_forward(without, tokens);
        tarn_seed(11);
        if (kind < 3)
            assert_true(distance(with, tokens, plain) > 1e-4);
        else
            assert_true(distance(with, tokens, plain) == 0);
        tarn_module_train(with, false);
        assert_true(distance(with, tokens, plain) == 0);
        tarn_module_free(with);
        tarn_module_free(without);
    }
}

static void parameters_may_be_of_any_float_dtype(void **state)
{
    (void)state;
    tarn_module *exact = make(&small, 1);
    tarn_tensor *tokens = tokens_of(1, 12, 17), *logits = tarn_forward(exact, tokens);
    for (int i = 0; i < 3; i++) {
        static const tarn_dtype dtypes[] = {TARN_F64, TARN_BF16, TARN_F16};
        tarn_gpt2_config config = small;
        config.dtype = dtypes[i];
        tarn_module *model = make(&config, 1);
        tarn_tensor *found = good(tarn_forward(model, tokens));
        assert_true(tarn_dtype_of(found) == dtypes[i]);
        assert_close(tarn_cast(found, TARN_F32), logits, i == 0 ? 1e-6 : 0.01);
        tarn_backward(tarn_gpt2_loss(model, tokens, tokens));
        assert_ok();
        tarn_module_free(model);
    }
    tarn_module_free(exact);
}

/* Optimizers keep 32 bits of such weights, and need as much of their gradients. */
static void gradients_of_16_bit_weights_are_not_rounded(void **state)
{
    (void)state;
    static const char *const names[] = {
        "transformer.wte.weight",          "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight",  "transformer.h.1.mlp.c_proj.bias"};
    tarn_gpt2_config config = small;
    config.dtype = TARN_BF16;
    tarn_module *model = make(&config, 1);
    stir(model);
    tarn_backward(tarn_gpt2_loss(model, tokens_of(2, 12, 17), tokens_of(2, 12, 17)));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        tarn_tensor *grad = good(tarn_grad(tarn_module_find(model, names[i])));
        tarn_tensor *rounded = tarn_cast(tarn_cast(grad, TARN_BF16), TARN_F32);
        assert_true(tarn_dtype_of(grad) == TARN_F32);
        if (tarn_item(tarn_sum(tarn_ne(grad, rounded), TARN_ALL_AXES, false)) == 0)
            fail_msg("all elements of the gradient of %s were rounded", names[i]);
    }
    tarn_module_free(model);
}

/* Field by field: padding is undefined. */
static void assert_same_config(const tarn_gpt2_config *a, const tarn_gpt2_config *b)
{
    assert_true(a->vocab_size == b->vocab_size && a->context == b->context && a->layers == b->layers &&
                a->heads == b->heads);
    assert_true(a->hidden_size == b->hidden_size && a->ffn_size == b->ffn_size && a->dropout == b->dropout &&
                a->epsilon == b->epsilon);
    assert_true(a->attention_dropout == b->attention_dropout && a->embedding_dropout == b->embedding_dropout);
    assert_true(a->dtype == b->dtype && a->has_eos == b->has_eos && a->eos == b->eos);
}

static void the_configuration_can_be_queried_and_reused(void **state)
{
    (void)state;
    tarn_gpt2_config config = small, found, again;
    config.dropout = 0.1;
    config.embedding_dropout = -1;
    tarn_module *model = make(&config, 1);
    assert_true(tarn_gpt2_config_of(model, &found));
    assert_true(found.ffn_size == 32 && found.epsilon == 1e-5 && found.attention_dropout == 0.1 &&
                found.embedding_dropout < 0);
    tarn_module *second = make(&found, 1);
    assert_true(tarn_gpt2_config_of(second, &again));
    assert_same_config(&found, &again);
    tarn_module_free(model);
    tarn_module_free(second);
}

/* As a program that was built with a newer header asks: what this library does not know of is zero. */
static void fields_of_a_newer_header_become_zero(void **state)
{
    (void)state;
    struct {
        tarn_gpt2_config known;
        unsigned char more[24];
    } newer;
    const unsigned char zeros[sizeof(newer.more)] = {0};
    tarn_module *model = make(&small, 1);
    memset(&newer, 0xAA, sizeof(newer));
    assert_true(tarn_gpt2_config_of_sized(model, &newer.known, sizeof(newer)));
    assert_true(newer.known.vocab_size == small.vocab_size);
    assert_memory_equal(newer.more, zeros, sizeof(zeros));
    memset(&newer, 0xAA, sizeof(newer));
    assert_true(tarn_gpt2_config_named_sized("gpt2", &newer.known, sizeof(newer)));
    assert_true(newer.known.vocab_size == 50257);
    assert_memory_equal(newer.more, zeros, sizeof(zeros));
    tarn_module_free(model);
}

static void it_runs_on_other_devices(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    tarn_module *here = make(&small, 4), *model = tarn_model_gpt2(&small, there, 4);
    assert_ok();
    tarn_tensor *tokens = tokens_of(2, 6, 17);
    assert_close(good(tarn_to(tarn_forward(model, tarn_to(tokens, there)), CPU)), good(tarn_forward(here, tokens)),
                 1e-6);
    tarn_module_free(here);
    tarn_module_free(model);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static const char *in_folder(const char *name, const char *file)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", name, file);
    return scratch(path);
}

static void a_folder_keeps_all_of_a_model(void **state)
{
    (void)state;
    tarn_gpt2_config config = {.vocab_size = 17,
                               .context = 12,
                               .layers = 2,
                               .heads = 2,
                               .hidden_size = 8,
                               .ffn_size = 20,
                               .dropout = 0.25,
                               .attention_dropout = -1,
                               .embedding_dropout = 0.5,
                               .epsilon = 1e-3,
                               .has_eos = true,
                               .eos = 0},
                     found;
    tarn_module *model = make(&config, 1);
    stir(model);
    assert_true(tarn_model_write(model, scratch("new/deep")));
    tarn_module *opened = tarn_model_open(scratch("new/deep"), CPU, NULL);
    assert_ok();
    assert_false(tarn_module_is_training(opened));
    assert_true(tarn_gpt2_config_of(model, &config) && tarn_gpt2_config_of(opened, &found));
    assert_same_config(&config, &found);
    tarn_module_train(model, false);
    assert_close(tarn_forward(opened, tokens_of(2, 9, 17)), tarn_forward(model, tokens_of(2, 9, 17)), 0);
    tarn_module_free(opened);

    opened = tarn_model_open(scratch("new/deep"), CPU, &(tarn_model_open_options){.dtype = TARN_BF16});
    assert_true(tarn_dtype_of(good(tarn_module_parameter(opened, 0))) == TARN_BF16);
    assert_true(tarn_model_write(opened, scratch("new/deep"))); /* over an existing model */
    tarn_module_free(opened);
    tarn_safetensors *file = tarn_safetensors_open(in_folder("new/deep", "model.safetensors"));
    tarn_safetensors_entry entry;
    assert_int_equal(tarn_safetensors_count(file), 28); /* the head is the tokens' table */
    assert_true(tarn_safetensors_info(file, tarn_safetensors_find(file, "transformer.wte.weight"), &entry) &&
                entry.dtype == TARN_BF16);
    tarn_safetensors_close(file);
    tarn_module_free(model);
}

/* A write that fails leaves the model that was there; one that stops between the two files leaves none that opens. */
static void a_write_that_fails_mixes_nothing(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_module *model = make(&small, 1);
    assert_true(tarn_model_write(model, scratch("over")));
    assert_int_not_equal(access(in_folder("over", "model.safetensors.new"), F_OK), 0);
    assert_int_not_equal(access(in_folder("over", "config.json.new"), F_OK), 0);
    assert_int_equal(mkdir(in_folder("over", "config.json.new"), 0700), 0);
    assert_false(tarn_model_write(model, scratch("over")));
    assert_error(TARN_ERROR_IO, "config.json.new");
    assert_int_equal(rmdir(in_folder("over", "config.json.new")), 0);
    tarn_module *opened = tarn_model_open(scratch("over"), CPU, NULL);
    assert_ok();
    tarn_module_free(opened);
    assert_int_equal(remove(in_folder("over", "model.safetensors")), 0);
    assert_int_equal(mkdir(in_folder("over", "model.safetensors"), 0700), 0);
    assert_false(tarn_model_write(model, scratch("over")));
    assert_error(TARN_ERROR_IO, "model.safetensors");
    assert_int_not_equal(access(in_folder("over", "config.json"), F_OK), 0);
    assert_int_equal(rmdir(in_folder("over", "model.safetensors")), 0);
    tarn_module_free(model);
}

/* A copy of a file under other names: from + name becomes to + name. `more` is an additional tensor, NULL: none. */
static void rename_in(const char *path, const char *prefix, const char *more_name, tarn_tensor *more)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    size_t skip = strlen("transformer.");
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        char name[128];
        snprintf(name, sizeof(name), "%s%s", prefix, tarn_safetensors_name(file, i) + skip);
        tarn_safetensors_add(writer, name, tarn_safetensors_read(file, tarn_safetensors_name(file, i), CPU));
    }
    if (more)
        tarn_safetensors_add(writer, more_name, more);
    assert_true(tarn_safetensors_finish(writer));
    tarn_safetensors_close(file);
}

static tarn_module *written(const char *name)
{
    tarn_module *model = make(&small, 1);
    stir(model);
    assert_true(tarn_model_write(model, scratch(name)));
    return model;
}

static void names_without_their_prefix_masks_and_a_tied_head_are_read(void **state)
{
    (void)state;
    tarn_module *model = written("names");
    tarn_tensor *tokens = tokens_of(2, 9, 17), *table = tarn_module_find(model, "transformer.wte.weight");
    tarn_tensor *mask = tarn_ones(TARN_SHAPE(1, 1, 12, 12), TARN_F32, CPU);
    const struct {
        const char *prefix, *name;
        tarn_tensor *tensor;
    } files[] = {{"", NULL, NULL},
                 {"", "h.0.attn.bias", mask},
                 {"transformer.", "lm_head.weight", table},
                 {"transformer.", "transformer.h.1.attn.masked_bias", tarn_full(TARN_SCALAR, -1e4, TARN_F32, CPU)}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        assert_true(tarn_model_write(model, scratch("names")));
        rename_in(in_folder("names", "model.safetensors"), files[i].prefix, files[i].name, files[i].tensor);
        tarn_module *opened = tarn_model_open(scratch("names"), CPU, NULL);
        assert_ok();
        assert_close(tarn_forward(opened, tokens), tarn_forward(model, tokens), 0);
        tarn_module_free(opened);
    }
    tarn_module_free(model);
}

static void mismatched_weights_are_errors(void **state)
{
    (void)state;
    tarn_module *model = written("misfits");
    const struct {
        const char *name, *sentence;
        tarn_tensor *tensor;
    } files[] = {{"transformer.h.2.ln_1.weight", "unknown tensor", tarn_ones(TARN_SHAPE(8), TARN_F32, CPU)},
                 {"lm_head.weight", "differ", tarn_ones(TARN_SHAPE(17, 8), TARN_F32, CPU)},
                 {"lm_head.weight", "do not fit", tarn_ones(TARN_SHAPE(16, 8), TARN_F32, CPU)},
                 {"transformer.h.0.attn.bias.more", "unknown tensor", tarn_ones(TARN_SHAPE(8), TARN_F32, CPU)},
                 {"wte.weight", "unknown tensor", tarn_ones(TARN_SHAPE(17, 8), TARN_F32, CPU)}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        assert_true(tarn_model_write(model, scratch("misfits")));
        rename_in(in_folder("misfits", "model.safetensors"), "transformer.", files[i].name, files[i].tensor);
        assert_null(tarn_model_open(scratch("misfits"), CPU, NULL));
        assert_error_about(TARN_ERROR_FORMAT, "model_open", files[i].sentence);
    }
    tarn_safetensors_writer *writer = tarn_safetensors_create(in_folder("misfits", "model.safetensors"));
    tarn_safetensors_add(writer, "transformer.wte.weight", tarn_ones(TARN_SHAPE(17, 8), TARN_F32, CPU));
    assert_true(tarn_safetensors_finish(writer));
    assert_null(tarn_model_open(scratch("misfits"), CPU, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "27 missing", "transformer.wpe.weight");
    tarn_module_free(model);
}

static void folders_without_weights_say_what_to_do(void **state)
{
    (void)state;
    tarn_module *model = written("bare");
    tarn_module_free(model);
    remove(in_folder("bare", "model.safetensors"));
    assert_null(tarn_model_open(scratch("bare"), CPU, NULL));
    assert_error(TARN_ERROR_IO, "it has no weights");
    put_file(in_folder("bare", "pytorch_model.bin"), "x", 1);
    assert_null(tarn_model_open(scratch("bare"), CPU, NULL));
    assert_error(TARN_ERROR_IO, "safe_serialization=True");
    put_file(in_folder("bare", "model.safetensors.index.json"), "{}", 2);
    assert_null(tarn_model_open(scratch("bare"), CPU, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "model_open", "weight_map");
    put_file(in_folder("bare", "model.safetensors"), "x", 1);
    assert_null(tarn_model_open(scratch("bare"), CPU, NULL));
    assert_error(TARN_ERROR_FORMAT, "model_open");
    assert_null(tarn_model_open(scratch("nowhere"), CPU, NULL));
    assert_error(TARN_ERROR_IO, "nowhere' not found");
}

#define SIZES "\"vocab_size\": 17, \"n_positions\": 12, \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8"
#define GPT2 "{\"model_type\": \"gpt2\", "

/* What config.json may say, and the end of the sentence where it may not ("": it may). */
static void every_invalid_config_is_an_error_that_names_it(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } files[] = {
        {GPT2 SIZES "}", ""},
        {GPT2 SIZES ", \"n_inner\": null, \"eos_token_id\": null, \"unknown\": [1]}", ""},
        {GPT2 SIZES ", \"n_inner\": 32, \"eos_token_id\": 50256, \"activation_function\": \"gelu_pytorch_tanh\"}", ""},
        {GPT2 SIZES ", \"resid_pdrop\": 0, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.5, \"layer_norm_epsilon\": 1e-5}",
         ""},
        {"", "is an empty file"},
        {"[]", "not an object"},
        {"{}", "\"model_type\" is missing"},
        {"{\"model_type\": 3}", "\"model_type\" is not a string"},
        {"{\"model_type\": \"lenet\", " SIZES "}", "'lenet'"},
        {"{\"model_type\": \"GPT2\", " SIZES "}", "is not supported"},
        {GPT2 SIZES ", \"n_layer\": 2}", "duplicate"},
        {GPT2 "\"vocab_size\": 17}", "\"n_positions\" is missing"},
        {GPT2 "\"vocab_size\": \"17\"}", "\"vocab_size\" is not an integer"},
        {GPT2 "\"vocab_size\": 17.0}", "\"vocab_size\" is not an integer"},
        {GPT2 "\"vocab_size\": 0}", "\"vocab_size\" is 0"},
        {GPT2 "\"vocab_size\": 17, \"n_positions\": 99999999999}", "\"n_positions\" is 99999999999"},
        {GPT2 "\"vocab_size\": 17, \"n_positions\": 12, \"n_layer\": 1025, \"n_head\": 2, \"n_embd\": 8}",
         ".layers is 1025"},
        {GPT2 "\"vocab_size\": 17, \"n_positions\": 12, \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 8}", "must divide"},
        {GPT2 "\"vocab_size\": 17, \"n_positions\": 12, \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 10}", "do not fit"},
        {GPT2 "\"vocab_size\": 17, \"n_positions\": 12, \"n_layer\": 3, \"n_head\": 2, \"n_embd\": 8}", "missing"},
        {GPT2 "\"vocab_size\": 17, \"n_positions\": 12, \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8}",
         "unknown tensor"},
        {GPT2 "\"vocab_size\": 2000000000, \"n_positions\": 12, \"n_layer\": 2, \"n_head\": 1, \"n_embd\": 2000000000}",
         "model_open"},
        {GPT2 SIZES ", \"n_inner\": 0}", "\"n_inner\" is 0"},
        {GPT2 SIZES ", \"n_inner\": 32.5}", "\"n_inner\" is not an integer"},
        {GPT2 SIZES ", \"n_inner\": \"32\"}", "\"n_inner\" is not an integer"},
        {GPT2 SIZES ", \"n_inner\": 30}", "do not fit"},
        {GPT2 SIZES ", \"resid_pdrop\": 1}", "\"resid_pdrop\" is 1"},
        {GPT2 SIZES ", \"attn_pdrop\": -0.1}", "\"attn_pdrop\" is -0.1"},
        {GPT2 SIZES ", \"embd_pdrop\": null}", "\"embd_pdrop\" is nan"},
        {GPT2 SIZES ", \"layer_norm_epsilon\": 0}", "\"layer_norm_epsilon\" is 0"},
        {GPT2 SIZES ", \"eos_token_id\": [1]}", ""},
        {GPT2 SIZES ", \"activation_function\": \"relu\"}", ""},
        {GPT2 SIZES ", \"activation_function\": \"quick_gelu\"}", "'quick_gelu' is not supported"},
        {GPT2 SIZES ", \"activation_function\": null}", "\"activation_function\" is not a string"},
        {GPT2 SIZES ", \"scale_attn_weights\": false}", ""},
        {GPT2 SIZES ", \"scale_attn_by_inverse_layer_idx\": true}", ""},
        {GPT2 SIZES ", \"scale_attn_by_inverse_layer_idx\": 2}", "neither true nor false"},
        {GPT2 SIZES ", \"add_cross_attention\": true}", "\"add_cross_attention\": true is not supported"},
        {GPT2 SIZES ", \"tie_word_embeddings\": false}", "1 missing: 'lm_head.weight'"},
        {GPT2 SIZES ", \"tie_word_embeddings\": 1}", "neither true nor false"},
    };
    tarn_module *model = written("configs");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        put_file(in_folder("configs", "config.json"), files[i].text, strlen(files[i].text));
        tarn_module *opened = tarn_model_open(scratch("configs"), CPU, NULL);
        if (!files[i].sentence[0])
            assert_ok();
        else if (opened || !strstr(tarn_error(), files[i].sentence) || !strstr(tarn_error(), "model_open"))
            fail_msg("%s: '%s' and not '%s'", files[i].text, tarn_error(), files[i].sentence);
        tarn_clear_error();
        tarn_module_free(opened);
    }
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
        tarn_module *model = tarn_model_gpt2(&small, CPU, 1);
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
        in_scope(names_and_shapes_are_those_of_transformers),
        in_scope(first_values_are_gpt2_s_and_follow_from_the_seed_alone),
        in_scope(a_token_sees_itself_and_those_before_it),
        in_scope(the_model_is_its_parts),
        in_scope(every_gradient_is_that_of_differences),
        in_scope(the_loss_is_the_cross_entropy_of_the_logits_and_ignores_targets_of_minus_100),
        in_scope(it_learns_a_text_by_heart),
        in_scope(dropout_is_for_training),
        in_scope(parameters_may_be_of_any_float_dtype),
        in_scope(gradients_of_16_bit_weights_are_not_rounded),
        in_scope(the_configuration_can_be_queried_and_reused),
        in_scope(fields_of_a_newer_header_become_zero),
        in_scope(it_runs_on_other_devices),
    };
    const struct CMUnitTest folders[] = {
        in_scope(a_folder_keeps_all_of_a_model),
        in_scope(names_without_their_prefix_masks_and_a_tied_head_are_read),
        in_scope(mismatched_weights_are_errors),
        in_scope(folders_without_weights_say_what_to_do),
        in_scope(every_invalid_config_is_an_error_that_names_it),
        in_scope(a_write_that_fails_mixes_nothing),
    };
    int failures = cmocka_run_group_tests_name("model", tests, NULL, NULL);
    return failures +
           (TARN__HAVE_JANSSON ? cmocka_run_group_tests_name("folders", folders, make_scratch, remove_scratch) : 0);
}

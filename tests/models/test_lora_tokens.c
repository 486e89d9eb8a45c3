/* test_lora_tokens.c: trained tokens, PEFT's trainable_token_indices: rows of embedding and head that are trained next
 * to adapters, saved, loaded and merged. tests/parity/lora.py does so with PEFT. */
#include "models/lora/lora.h"
#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 40, CONTEXT = 10 };

static tarn_module *make(bool is_gpt2, int64_t vocab)
{
    const tarn_gpt2_config gpt2 = {.vocab_size = vocab, .context = CONTEXT, .layers = 1, .heads = 2, .hidden_size = 32};
    const tarn_llama_config llama = {.vocab_size = vocab,
                                     .context = CONTEXT,
                                     .layers = 1,
                                     .heads = 4,
                                     .hidden_size = 32,
                                     .ffn_size = 32,
                                     .kv_heads = 2};
    tarn_module *model = is_gpt2 ? tarn_model_gpt2(&gpt2, CPU, 3) : tarn_model_llama(&llama, CPU, 3);
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.2)));
    }
    assert_true(tarn_module_train(model, false));
    return model;
}

static void stir(tarn_module *model)
{
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        if (tarn_needs_grad(p))
            assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.3)));
    }
}

static tarn_tensor *logits_with(tarn_module *model, int32_t last)
{
    const int32_t ids[] = {1, 17, 39, 0, 24, 24, 3, last};
    tarn_no_grad_open();
    tarn_tensor *logits = good(tarn_cast(tarn_forward(model, tarn_from_i32(ids, TARN_SHAPE(1, 8), CPU)), TARN_F32));
    tarn_no_grad_close();
    return logits;
}

static const int64_t some[] = {24, 3, 39};
static const tarn_lora_options of_some = {.rank = 2, .trained_tokens = some, .trained_token_count = 3};

/* The trained rows of embedding or head; the head of GPT-2 shares those of its embedding. */
static tarn_tensor *rows_of(tarn_module *model, bool is_head)
{
    const char *name = is_head ? "lm_head.token_adapter.trainable_tokens_delta"
                       : tarn_module_find(model, "transformer.wte.weight")
                           ? "transformer.wte.token_adapter.trainable_tokens_delta"
                           : "model.embed_tokens.token_adapter.trainable_tokens_delta";
    tarn_clear_error();
    return good(tarn_module_find(model, name));
}

static void new_rows_change_nothing_and_are_trained_alone(void **state)
{
    (void)state;
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_module *model = make(is_gpt2, VOCAB);
        tarn_tensor *before = logits_with(model, 12);
        assert_true(tarn_lora_add(model, &of_some) && tarn_lora_has(model));
        assert_close(logits_with(model, 12), before, 1e-6);
        assert_true(tarn_size(rows_of(model, false), 0) == 3);
        int trained = 0;
        for (int i = 0; i < tarn_module_parameter_count(model); i++) {
            const char *name = tarn_module_parameter_name(model, i);
            bool is_adapter = strstr(name, "lora_") || strstr(name, "trainable_tokens_delta");
            assert_true(is_adapter == tarn_needs_grad(tarn_module_parameter(model, i)));
            trained += strstr(name, "trainable_tokens_delta") != NULL;
        }
        assert_int_equal(trained, is_gpt2 ? 1 : 2); /* GPT-2's head is tied */
        tarn_module_free(model);
    }
}

/* The chunked loss and its gradient are those of all logits. */
static void the_loss_is_that_of_the_logits(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 24, 39, 0, 3, 24, 3, 12}, targets[] = {24, 39, 0, 3, 24, 3, 12, 5};
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_module *model = make(is_gpt2, VOCAB);
        assert_true(tarn_lora_add(model, &of_some));
        stir(model);
        tarn_tensor *x = tarn_from_i32(ids, TARN_SHAPE(1, 8), CPU), *y = tarn_from_i32(targets, TARN_SHAPE(1, 8), CPU);
        tarn_tensor *loss = good(tarn_model_loss(model, x, y)),
                    *composed = good(tarn_cross_entropy(tarn_forward(model, x), y, NULL));
        assert_close(loss, composed, 1e-5);
        tarn_tensor *rows[] = {rows_of(model, false), is_gpt2 ? rows_of(model, false) : rows_of(model, true)},
                    *wanted[2];
        assert_true(tarn_backward(composed));
        for (int i = 0; i < 2; i++)
            wanted[i] = good(tarn_clone(tarn_grad(rows[i])));
        for (int i = 0; i < 2; i++)
            tarn_zero_grad(rows[i]);
        assert_true(tarn_backward(loss));
        for (int i = 0; i < 2; i++)
            assert_close(tarn_grad(rows[i]), wanted[i], 1e-5);
        tarn_module_free(model);
    }
}

static void saved_rows_load_and_merge(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_module *model = make(is_gpt2, VOCAB);
        assert_true(tarn_model_write(model, scratch("base")) && tarn_lora_add(model, &of_some));
        stir(model);
        assert_true(tarn_lora_save(model, scratch("adapter"), "base"));
        assert_false(tarn_lora_save(model, scratch("adapter.gguf"), "base"));
        assert_error_about(TARN_ERROR_UNSUPPORTED, "lora_save", "has trained tokens");
        tarn_tensor *logits = logits_with(model, 12);
        tarn_module_free(model);

        char *config = get_file(scratch("adapter/adapter_config.json"), &(size_t){0});
        assert_contains(config, is_gpt2 ? "\"trainable_token_indices\": [" : "\"embed_tokens\": [");
        free(config);
        model = tarn_model_open(scratch("base"), CPU, NULL);
        assert_true(tarn_lora_load(model, scratch("adapter")));
        assert_close(logits_with(model, 12), logits, 0);
        assert_true(tarn_lora_merge(model) && !tarn_lora_has(model));
        assert_close_for_size(logits_with(model, 12), logits, 1e-5);
        tarn_model_info info;
        assert_true(tarn_model_query(model, &info) && info.vocab_size == VOCAB);
        tarn_module *base = make(is_gpt2, VOCAB);
        assert_int_equal(tarn_module_parameter_count(model), tarn_module_parameter_count(base)); /* tied as before */
        tarn_module_free(base);
        tarn_module_free(model);
    }
}

/* Rows of a quantized weight that is tied: merged, the weight is unquantized and still tied. */
static void rows_of_quantized_weights_merge(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_module *model = make(is_gpt2, VOCAB);
        tarn_convert_options how = {.quantize = true, .type = TARN_Q8_0, .replace = true};
        assert_true(tarn_model_write(model, scratch("base")));
        tarn_module_free(model);
        assert_true(tarn_model_convert(scratch("base"), scratch("blocks.gguf"), NULL, &how));
        model = tarn_model_open(scratch("blocks.gguf"), CPU, &(tarn_model_open_options){.dtype = TARN_F32});
        assert_true(tarn_lora_add(model, &of_some));
        stir(model);
        tarn_tensor *logits = logits_with(model, 12);
        assert_true(tarn_lora_merge(model));
        assert_close_for_size(logits_with(model, 12), logits, 0.1); /* Q8_0 matmuls round x */
        tarn_module_free(model);
    }
}

/* Tokens above the base's: the adapters' rows are all that the new tokens have. */
static void tokens_above_the_model_grow_it(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const int64_t added[] = {VOCAB, VOCAB + 1};
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_module *small = make(is_gpt2, VOCAB), *large = make(is_gpt2, VOCAB + 2);
        assert_true(tarn_model_write(small, scratch("small")));
        assert_true(
            tarn_lora_add(large, &(tarn_lora_options){.rank = 2, .trained_tokens = added, .trained_token_count = 2}));
        stir(large);
        assert_true(tarn_lora_save(large, scratch("adapter"), NULL));
        tarn_module_free(large);
        assert_true(tarn_lora_load(small, scratch("adapter")));
        tarn_model_info info;
        assert_true(tarn_model_query(small, &info) && info.vocab_size == VOCAB + 2);
        tarn_tensor *logits = logits_with(small, VOCAB + 1);
        assert_true(tarn_size(logits, -1) == VOCAB + 2);
        tarn_module_free(small);
        char adapter[512];
        snprintf(adapter, sizeof(adapter), "%s", scratch("adapter"));
        const tarn_convert_options how = {.adapter = adapter, .replace = true};
        assert_true(tarn_model_convert(scratch("small"), scratch("merged"), NULL, &how));
        tarn_module *merged = tarn_model_open(scratch("merged"), CPU, NULL);
        assert_ok();
        assert_close_for_size(logits_with(merged, VOCAB + 1), logits, 1e-5);
        tarn_module_free(merged);
    }
}

static void invalid_tokens_are_named(void **state)
{
    (void)state;
    static const struct {
        int64_t token[2];
        int64_t count;
        const char *part;
    } wrong[] = {{{3, 3}, 2, "has the token 3 twice"},
                 {{-1, 3}, 2, "has the token -1"},
                 {{3, VOCAB}, 2, "the trained token 40 is not one of the 40"},
                 {{3, 4}, -1, ".trained_token_count is -1"}};
    tarn_module *model = make(false, VOCAB);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_false(tarn_lora_add(
            model,
            &(tarn_lora_options){.rank = 1, .trained_tokens = wrong[i].token, .trained_token_count = wrong[i].count}));
        assert_error_about(TARN_ERROR_ARGUMENT, "lora_add", wrong[i].part);
        assert_false(tarn_lora_has(model));
    }
    assert_false(tarn_lora_add(
        model, &(tarn_lora_options){
                   .rank = 1, .trained_tokens = some, .trained_token_count = 3, .modules_to_save = "embed_tokens"}));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "lora_add", "and is also one of the modules to save");
    assert_false(tarn_lora_add(
        model,
        &(tarn_lora_options){.rank = 1, .trained_tokens = some, .trained_token_count = 3, .targets = "lm_head"}));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "lora_add", "and is also a target of adapters");
    tarn_module_free(model);
}

static void invalid_files_are_named(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const struct {
        const char *member, *part;
    } wrong[] = {{"3", "must be an array of token ids"},
                 {"[3, \"x\"]", "not an integer in range"},
                 {"[3, -1]", "not an integer in range"},
                 {"[3, 3, 4]", "has the token 3 twice"},
                 {"[24, 3]", "is [3, 32], but must be [2, 32]"},
                 {"[24, 3, 43]", "the trained token 43 of 'transformer.wte' is far above the 40 tokens"},
                 {"{\"wpe\": [1]}", "neither the token embedding nor the head"},
                 {"{\"nosuch\": [1]}", "'nosuch' matches no module"},
                 {"{\"wte\": 3}", "not an array of integers"},
                 {"null", "unknown tensor"}};
    tarn_module *model = make(true, VOCAB);
    assert_true(tarn_lora_add(model, &of_some) && tarn_lora_save(model, scratch("adapter"), NULL));
    tarn_module_free(model);
    model = make(true, VOCAB);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[400];
        snprintf(text, sizeof(text),
                 "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"c_attn\", \"c_proj\", \"c_fc\"], "
                 "\"trainable_token_indices\": %s}",
                 wrong[i].member);
        write_text("adapter/adapter_config.json", text);
        assert_false(tarn_lora_load(model, scratch("adapter")));
        assert_contains(tarn_error(), wrong[i].part);
        tarn_clear_error();
        assert_false(tarn_lora_has(model));
    }
    tarn_module_free(model);
}

/* New rows have the mean of the others and 1e-9 of their covariance, as transformers draws them. */
static void added_rows_are_drawn_like_the_others(void **state)
{
    (void)state;
    enum { ADDED = 2000, COLUMNS = 32 };
    tarn_module *model = make(true, VOCAB);
    tarn_no_grad_open();
    tarn_tensor *old = good(tarn_clone(tarn_module_find(model, "transformer.wte.weight")));
    /* columns of different spread that are correlated */
    old = good(tarn_matmul(old, tarn_uniform(TARN_SHAPE(COLUMNS, COLUMNS), 0, 2, TARN_F32, CPU)));
    assert_true(tarn_copy(tarn_module_find(model, "transformer.wte.weight"), old));
    assert_true(tarn__lora_add_tokens("test", model, VOCAB + ADDED, &(uint64_t){7}));
    tarn_tensor *all = good(tarn_module_find(model, "transformer.wte.weight"));
    assert_true(tarn_size(all, 0) == VOCAB + ADDED);
    assert_close(tarn_slice(all, 0, 0, VOCAB), old, 0);
    tarn_tensor *mean = good(tarn_mean(old, TARN_AXES(0), true)), *centred = good(tarn_sub(old, mean)),
                *drawn = good(tarn_sub(tarn_slice(all, 0, VOCAB, VOCAB + ADDED), mean));
    tarn_tensor *wanted =
                    good(tarn_mul(tarn_matmul(tarn_transpose(centred, 0, 1), centred), tarn_scalar(1 / (double)VOCAB))),
                *found =
                    good(tarn_mul(tarn_matmul(tarn_transpose(drawn, 0, 1), drawn), tarn_scalar(1e9 / (double)ADDED)));
    assert_close_for_size(found, wanted, 0.15);
    tarn_no_grad_close();
    tarn_module_free(model);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static bool try_with(int room)
{
    allocations_left = 1000000;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *model = make(true, VOCAB);
    tarn_tensor *logits = logits_with(model, 12);
    allocations_left = room;
    bool done = tarn_lora_add(model, &of_some);
    allocations_left = 1000000;
    if (!done) {
        assert_error(TARN_ERROR_MEMORY, "memory");
        assert_true(!tarn_lora_has(model) && tarn_needs_grad(tarn_module_parameter(model, 0)));
        assert_close(logits_with(model, 12), logits, 0);
    }
    tarn_module_free(model);
    tarn_scope_close(scope);
    return done;
}

static void a_failed_allocation_leaves_the_model(void **state)
{
    (void)state;
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    int64_t held = tarn_memory_of(CPU).used;
    for (int room = 0; !try_with(room); room++) {
        assert_true(room < 3000);
        tarn_empty_cache(CPU);
        assert_int_equal(tarn_memory_of(CPU).used, held);
    }
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(NULL))
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_leaves_the_model, clear_error), /* first: nothing holds memory yet */
        in_scope(new_rows_change_nothing_and_are_trained_alone),
        in_scope(the_loss_is_that_of_the_logits),
        in_scope(saved_rows_load_and_merge),
        in_scope(rows_of_quantized_weights_merge),
        in_scope(tokens_above_the_model_grow_it),
        in_scope(added_rows_are_drawn_like_the_others),
        in_scope(invalid_tokens_are_named),
        in_scope(invalid_files_are_named),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

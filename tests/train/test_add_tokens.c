/* test_add_tokens.c: fine-tuning with tokens that tokenizer and base model lack (add_tokens): both grow, adapters train
 * the new rows, and run folder, best weights and merged model have them. tests/parity/lora.py opens such a run in
 * transformers and PEFT. */
#include <tarn/convert.h>
#include <tarn/lora.h>
#include <tarn/model.h>
#include <tarn/train.h>

#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()
#define TOKENS "<|im_start|>, <|im_end|>"
enum { VOCAB = 256 };

static const char *path_in(const char *folder, const char *name)
{
    static char path[4][1300];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

static const char *make_base(const char *name, bool is_tied)
{
    static char folder[1200];
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 32,
                                      .layers = 1,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .hidden_size = 32,
                                      .ffn_size = 32,
                                      .tie_embeddings = is_tied};
    snprintf(folder, sizeof(folder), "%s", scratch(name));
    tarn_module *model = tarn_model_llama(&config, CPU, 3);
    tarn_tokenizer *tokenizer = tarn_tokenizer_bytes();
    assert_true(tarn_model_write(model, folder) && tarn_tokenizer_save(tokenizer, folder));
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(model);
    return folder;
}

static tarn_train_options small(const char *base, int64_t rank, const char *folder)
{
    static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                               "\"content\": \"b\"}]}\n";
    char text[20 * sizeof(line)] = "";
    for (int i = 0; i < 20; i++)
        memcpy(text + strlen(text), line, sizeof(line));
    tarn_train_options options = {
        .lora = rank, .context = 32, .batch_size = 4, .steps = 6, .lr = 0.01, .device = "cpu", .eval_every = 3};
    snprintf(options.data, sizeof(options.data), "chats:%s", write_text("chats.jsonl", text));
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    snprintf(options.add_tokens, sizeof(options.add_tokens), TOKENS);
    snprintf(options.chat_template, sizeof(options.chat_template), "chatml");
    assert_true(tarn_train_options_set(&options, "model", base));
    return options;
}

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at;
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    const story *s = ctx;
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

static void run(tarn_trainer *trainer, int64_t stop_at)
{
    story s = {trainer, stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
}

/* Opens a folder: its tokenizer has the tokens, and its model as many rows. */
static tarn_tensor *logits_of(const char *folder)
{
    tarn_tokenizer *t = tarn_tokenizer_open(folder);
    assert_ok();
    assert_int_equal(tarn_tokenizer_count(t), VOCAB + 2);
    assert_int_equal(tarn_tokenizer_find(t, "<|im_start|>", 12), VOCAB);
    assert_string_equal(tarn_chat_name(t), "chatml");
    assert_int_equal(tarn_chat_eot(t), VOCAB + 1);
    tarn_tokenizer_free(t);
    tarn_module *model = tarn_model_open(folder, CPU, NULL);
    tarn_model_info info;
    assert_true(tarn_model_query(model, &info));
    assert_int_equal(info.vocab_size, VOCAB + 2);
    const int32_t ids[] = {VOCAB, 97, VOCAB + 1, 10};
    tarn_no_grad_open();
    tarn_tensor *logits = good(tarn_cast(tarn_forward(model, tarn_from_i32(ids, TARN_SHAPE(1, 4), CPU)), TARN_F32));
    tarn_no_grad_close();
    tarn_module_free(model);
    return logits;
}

static void adapters_train_the_new_rows(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || !TARN__HAVE_PCRE2)
        skip();
    for (int is_tied = 0; is_tied < 2; is_tied++) {
        const char *base = make_base("base", is_tied);
        tarn_train_options options = small(base, 2, is_tied ? "tied" : "untied");
        snprintf(options.merge, sizeof(options.merge), "folder");
        run(tarn_trainer_new(&options), 0);
        char *config = get_file(path_in(options.out, "adapter_config.json"), &(size_t){0});
        assert_contains(config, is_tied ? "\"trainable_token_indices\": [" : "\"lm_head\": [");
        assert_null(strstr(config, "\"modules_to_save\": ["));
        free(config);
        logits_of(options.out);
        tarn_tensor *logits = logits_of(path_in(options.out, "best"));
        assert_close_for_size(logits_of(path_in(options.out, "merged")), logits, 1e-4);
    }
}

static void all_weights_are_trained_without_adapters(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || !TARN__HAVE_PCRE2)
        skip();
    const char *base = make_base("base", true);
    tarn_train_options options = small(base, 0, "whole");
    run(tarn_trainer_new(&options), 0);
    logits_of(options.out);
    logits_of(path_in(options.out, "best"));
    options = small(base, 2, "saved");
    snprintf(options.lora_modules_to_save, sizeof(options.lora_modules_to_save), "embed_tokens,lm_head");
    run(tarn_trainer_new(&options), 0);
    logits_of(options.out);
}

static void a_stopped_run_resumes_bitwise_identically(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || !TARN__HAVE_PCRE2)
        skip();
    char base[1200];
    snprintf(base, sizeof(base), "%s", make_base("base", true));
    for (int64_t rank = 0; rank < 3; rank += 2) {
        tarn_train_options once = small(base, rank, rank ? "once" : "once-whole"),
                           twice = small(base, rank, rank ? "twice" : "twice-whole");
        char file[1100];
        snprintf(file, sizeof(file), "%s", write_text("tokens.txt", "<|im_start|>\r\n\n <|im_end|>\n"));
        snprintf(twice.add_tokens, sizeof(twice.add_tokens), "text:%.1000s", file); /* the same tokens */
        run(tarn_trainer_new(&once), 0);
        run(tarn_trainer_new(&twice), 2);
        run(tarn_trainer_resume(twice.out, NULL), 0);
        const char *name = rank ? "adapter_model.safetensors" : "model.safetensors";
        size_t lengths[2];
        char *a = get_file(path_in(once.out, name), &lengths[0]), *b = get_file(path_in(twice.out, name), &lengths[1]);
        assert_int_equal(lengths[0], lengths[1]);
        assert_memory_equal(a, b, lengths[0]);
        free(a);
        free(b);
    }
}

static void invalid_tokens_are_named(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || !TARN__HAVE_PCRE2)
        skip();
    char base[1200];
    snprintf(base, sizeof(base), "%s", make_base("base", true));
    static const struct {
        const char *tokens, *saved, *part;
    } wrong[] = {{"<a>,,<b>", "", "has an empty token"},
                 {"<|im_start|>", "", "has the token '<|im_end|>', which the tokenizer lacks"},
                 {"text:/no/such/file", "", "/no/such/file"},
                 {TOKENS ",\xFF", "", "not valid UTF-8"},
                 {TOKENS, "lm_head", "and is also one of the modules to save"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_train_options options = small(base, 2, "wrong");
        snprintf(options.add_tokens, sizeof(options.add_tokens), "%s", wrong[i].tokens);
        snprintf(options.lora_modules_to_save, sizeof(options.lora_modules_to_save), "%s", wrong[i].saved);
        tarn_trainer *trainer = tarn_trainer_new(&options);
        assert_null(trainer);
        assert_contains(tarn_error(), wrong[i].part);
        tarn_clear_error();
    }
    tarn_train_options options = small(base, 2, "wrong");
    snprintf(options.data, sizeof(options.data), "text:%s",
             write_text("text.txt", "some text to train on, long enough"));
    options.chat_template[0] = 0;
    assert_null(tarn_trainer_new(&options));
    assert_contains(tarn_error(), "add_tokens");
    tarn_clear_error();
}

/* ---- the tokenizer alone ----------------------------------------------------------------------------------------- */

static void a_tokenizer_keeps_the_ids_it_has(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    uint64_t before = tarn_tokenizer_hash(t);
    assert_int_equal(tarn_tokenizer_add_tokens(t, "<x>"), 1);
    assert_int_equal(tarn_tokenizer_add_tokens(t, "<y>,<x>,<y>"), 1);
    assert_int_equal(tarn_tokenizer_find(t, "<x>", 3), VOCAB);
    assert_int_equal(tarn_tokenizer_find(t, "<y>", 3), VOCAB + 1);
    assert_true(tarn_tokenizer_hash(t) != before);
    int64_t count;
    int32_t *ids = tarn_tokenizer_encode(t, "a<y>b", 5, NULL, &count);
    assert_true(count == 3 && ids[1] == VOCAB + 1);
    tarn_tokenizer_release(ids);
    assert_int_equal(tarn_tokenizer_add_tokens(t, ""), -1);
    assert_error_about(TARN_ERROR_ARGUMENT, "tokenizer_add_tokens", "empty token");
    assert_int_equal(tarn_tokenizer_add_tokens(NULL, "<x>"), -1);
    assert_error_about(TARN_ERROR_ARGUMENT, "tokenizer_add_tokens", "NULL");
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(adapters_train_the_new_rows),
        in_scope(all_weights_are_trained_without_adapters),
        in_scope(a_stopped_run_resumes_bitwise_identically),
        in_scope(invalid_tokens_are_named),
        in_scope(a_tokenizer_keeps_the_ids_it_has),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

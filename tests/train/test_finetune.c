/* test_finetune.c: fine-tuning runs: of all weights, of adapters, of adapters on quantized weights. Frozen weights do
 * not change, resumed runs are bitwise identical, and an invalid or a changed base model is an error. */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <tarn/convert.h>
#include <tarn/generate.h>
#include <tarn/gguf.h>
#include <tarn/lora.h>
#include <tarn/model.h>
#include <tarn/safetensors.h>
#include <tarn/train.h>
#include <unistd.h>

#include "support/files.h"

#define CPU tarn_device_cpu()

/* ---- a base ------------------------------------------------------------------------------------------------------ */

static const char *path_in(const char *folder, const char *name)
{
    static char path[4][1300];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

static void save_base(tarn_module *model, const char *folder)
{
    tarn_tokenizer *tokenizer = tarn_tokenizer_bytes();
    assert_true(tarn_model_write(model, folder) && tarn_tokenizer_save(tokenizer, folder));
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(model);
    assert_ok();
}

static const char *llama_base(const char *name)
{
    static char folder[1200];
    const tarn_llama_config config = {.vocab_size = 256,
                                      .context = 32,
                                      .layers = 2,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .hidden_size = 32,
                                      .ffn_size = 64,
                                      .tie_embeddings = true};
    snprintf(folder, sizeof(folder), "%s", scratch(name));
    save_base(tarn_model_llama(&config, CPU, 3), folder);
    return folder;
}

static const char *gpt2_base(const char *name)
{
    static char folder[1200];
    const tarn_gpt2_config config = {
        .vocab_size = 256, .context = 32, .layers = 2, .heads = 2, .hidden_size = 16, .dropout = 0.1};
    snprintf(folder, sizeof(folder), "%s", scratch(name));
    save_base(tarn_model_gpt2(&config, CPU, 3), folder);
    return folder;
}

static const char *make_text(void)
{
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    char text[2401];
    for (int i = 0; i < 2400; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    text[2400] = 0;
    return write_text("text.txt", text);
}

/* 12 steps on windows of 12 bytes, evaluated after every fourth. */
static tarn_train_options small(const char *base, int64_t rank, const char *folder)
{
    tarn_train_options options = {.lora = rank,
                                  .context = 12,
                                  .batch_size = 8,
                                  .steps = 12,
                                  .lr = 0.01,
                                  .clip_norm = 1,
                                  .device = "cpu",
                                  .eval_every = 4,
                                  .log_every = 3,
                                  .seed = 5};
    snprintf(options.data, sizeof(options.data), "text:%s", make_text());
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    assert_true(tarn_train_options_set(&options, "model", base));
    return options;
}

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    double first_loss, last_loss;
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    if (report->kind == TARN_REPORT_TRAINING) {
        s->first_loss = s->first_loss > 0 ? s->first_loss : report->loss;
        s->last_loss = report->loss;
    }
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

static story run(tarn_trainer *trainer, int64_t stop_at)
{
    story s = {.trainer = trainer, .stop_at = stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
    return s;
}

static bool is_there(const char *folder, const char *name)
{
    struct stat about;
    return stat(path_in(folder, name), &about) == 0;
}

/* ---- all weights ------------------------------------------------------------------------------------------------- */

static void all_weights_are_trained_from_a_folder(void **state)
{
    (void)state;
    tarn_train_plan plan;
    tarn_train_options options = small(llama_base("base"), 0, "full");
    assert_string_equal(options.model, "");
    options.steps = 40;
    options.eval_every = 20;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(tarn_trainer_plan(trainer, &plan));
    assert_string_equal(plan.options.model, "llama");
    assert_int_equal(plan.options.layers, 2);
    assert_int_equal(plan.options.vocab_size, 256);
    assert_int_equal(plan.frozen, 0);
    assert_int_equal(plan.trained, tarn_module_element_count(tarn_trainer_model(trainer)));
    assert_int_equal(plan.memory_needed,
                     plan.weight_bytes + plan.gradient_bytes + plan.state_bytes + plan.activation_bytes);
    assert_int_equal(plan.weight_bytes, 4 * plan.trained);
    assert_int_equal(plan.state_bytes, 8 * plan.trained);
    story s = run(trainer, 0);
    assert_true(s.last_loss < 0.7 * s.first_loss);
    assert_true(is_there(options.out, "model.safetensors") && !is_there(options.out, "adapter_config.json"));
    tarn_run *made = tarn_run_open(options.out, CPU);
    assert_string_equal(tarn_run_kind(made), "llama");
    tarn_run_close(made);
    assert_ok();
}

/* A run of all weights has all it needs by itself: its base may go. */
static void a_stopped_run_of_all_weights_resumes_without_its_base(void **state)
{
    (void)state;
    char base[1200];
    snprintf(base, sizeof(base), "%s", llama_base("gone"));
    for (int kind = 0; kind < 2; kind++) {
        tarn_train_options whole = small(base, 0, kind ? "full-whole-bf16" : "full-whole"),
                           options = small(base, 0, kind ? "full-stopped-bf16" : "full-stopped");
        if (kind) {
            snprintf(whole.precision, sizeof(whole.precision), "bf16");
            snprintf(options.precision, sizeof(options.precision), "bf16");
        }
        run(tarn_trainer_new(&whole), 0);
        run(tarn_trainer_new(&options), 5);
        rename(path_in(base, "model.safetensors"), path_in(base, "away"));
        run(tarn_trainer_resume(options.out, NULL), 0);
        rename(path_in(base, "away"), path_in(base, "model.safetensors"));
        assert_same_file(whole.out, options.out, "model.safetensors");
        assert_same_file(whole.out, options.out, "optimizer.safetensors");
        assert_same_file(whole.out, options.out, "best/model.safetensors");
    }
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

static void adapters_are_trained_and_nothing_else(void **state)
{
    (void)state;
    static const char *const names[] = {"adapter_config.json",
                                        "adapter_model.safetensors",
                                        "frozen.json",
                                        "optimizer.safetensors",
                                        "trainer.json",
                                        "config.json",
                                        "tokenizer.json",
                                        "best/adapter_config.json",
                                        "best/adapter_model.safetensors",
                                        "best/tokenizer.json"};
    const char *const bases[] = {llama_base("base-llama"), gpt2_base("base-gpt2")};
    for (int i = 0; i < 2; i++) {
        tarn_train_plan plan;
        tarn_text_evaluation before, after;
        tarn_train_options options = small(bases[i], 4, i ? "lora-gpt2" : "lora-llama");
        options.steps = 60;
        options.eval_every = 30;
        options.lr = 0.02;
        tarn_trainer *trainer = tarn_trainer_new(&options);
        assert_true(tarn_trainer_plan(trainer, &plan));
        assert_true(plan.trained > 0 && plan.frozen > plan.trained);
        assert_int_equal(plan.options.lora_alpha, 8);
        assert_int_equal(plan.gradient_bytes, 4 * plan.trained);
        run(trainer, 0);
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
            if (!is_there(options.out, names[k]))
                fail_msg("%s is missing", names[k]);
        assert_false(is_there(options.out, "model.safetensors"));
        tarn_run *base = tarn_run_open(bases[i], CPU), *tuned = tarn_run_open(options.out, CPU);
        assert_ok();
        assert_true(tarn_lora_has(tarn_run_model(tuned)) && !tarn_lora_has(tarn_run_model(base)));
        assert_true(tarn_run_evaluate_text(base, options.data, 8, &before) &&
                    tarn_run_evaluate_text(tuned, NULL, 8, &after));
        if (!(after.loss < before.loss - 0.1)) /* the head, which is drawn at random, stays as it is */
            fail_msg("loss %g, before %g", after.loss, before.loss);
        tarn_run_close(base);
        tarn_run_close(tuned);
    }
}

/* The bits of a checkpoint, whatever the way to it: stopped once and again, with dropout, micro-batches and
 * recomputation. */
static void a_stopped_run_of_adapters_resumes_bitwise_identically(void **state)
{
    (void)state;
    static const struct {
        const char *name, *precision, *quantize;
        double dropout;
        int64_t micro;
    } kinds[] = {{"plain", "f32", "", 0.1, 0},          {"micro", "f32", "", 0, 2},
                 {"bf16", "bf16", "", 0.1, 4},          {"blocks", "f32", "q8_0", 0, 0},
                 {"blocks-bf16", "bf16", "q8_0", 0, 2}, {"saved", "f32", "", 0, 0},
                 {"saved-blocks", "bf16", "q8_0", 0, 2}};
    char base[1200];
    snprintf(base, sizeof(base), "%s", llama_base("base-again"));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char names[2][40];
        snprintf(names[0], sizeof(names[0]), "whole-%s", kinds[i].name);
        snprintf(names[1], sizeof(names[1]), "stopped-%s", kinds[i].name);
        tarn_train_options runs[2];
        for (int k = 0; k < 2; k++) {
            runs[k] = small(base, 3, names[k]);
            runs[k].lora_dropout = kinds[i].dropout;
            runs[k].micro_batch = kinds[i].micro;
            snprintf(runs[k].precision, sizeof(runs[k].precision), "%s", kinds[i].precision);
            snprintf(runs[k].quantize, sizeof(runs[k].quantize), "%s", kinds[i].quantize);
            if (strncmp(kinds[i].name, "saved", 5) == 0)
                snprintf(runs[k].lora_modules_to_save, sizeof(runs[k].lora_modules_to_save),
                         "embed_tokens,lm_head,norm");
        }
        story s = run(tarn_trainer_new(&runs[0]), 0);
        assert_true(s.last_loss < s.first_loss);
        run(tarn_trainer_new(&runs[1]), 2);
        run(tarn_trainer_resume(runs[1].out, &(tarn_train_options){.workers = 2}), 7);
        run(tarn_trainer_resume(runs[1].out, NULL), 0);
        assert_same_file(runs[0].out, runs[1].out, "adapter_model.safetensors");
        assert_same_file(runs[0].out, runs[1].out, "optimizer.safetensors");
        assert_same_file(runs[0].out, runs[1].out, "frozen.json");
        assert_same_file(runs[0].out, runs[1].out, "best/adapter_model.safetensors");
    }
}

/* Less memory is not another run: on the CPU micro-batches of windows and recomputed blocks give nearly or exactly the
 * same numbers. */
static void recomputed_blocks_give_the_same_adapters(void **state)
{
    (void)state;
    const char *base = llama_base("base-recompute");
    tarn_train_options stored = small(base, 3, "stored"), again = small(base, 3, "again");
    stored.lora_dropout = again.lora_dropout = 0.1;
    snprintf(again.recompute, sizeof(again.recompute), "full");
    story a = run(tarn_trainer_new(&stored), 0), b = run(tarn_trainer_new(&again), 0);
    assert_true(fabs(a.last_loss - b.last_loss) < 1e-5 * a.last_loss);
}

/* The file of a checkpoint is the one that tarn_lora_save() writes. */
static void a_checkpoint_is_a_folder_of_adapters(void **state)
{
    (void)state;
    const char *base = llama_base("base-folder");
    tarn_train_options options = small(base, 2, "folder");
    options.keep = 1;
    snprintf(options.lora_targets, sizeof(options.lora_targets), "q_proj,v_proj");
    run(tarn_trainer_new(&options), 0);
    tarn_module *model = tarn_model_open(base, CPU, NULL), *whole = tarn_model_open(options.out, CPU, NULL);
    assert_true(tarn_lora_load(model, options.out) && tarn_lora_has(whole));
    assert_true(tarn_lora_save(model, scratch("saved-again"), base));
    assert_same_file(options.out, scratch("saved-again"), "adapter_model.safetensors");
    assert_same_file(options.out, scratch("saved-again"), "adapter_config.json");
    assert_same_file(options.out, path_in(options.out, "step-12"), "adapter_model.safetensors");
    tarn_train_options repeated = {0}; /* by the run's own config.json */
    assert_true(tarn_train_options_load(&repeated, path_in(options.out, "config.json")));
    snprintf(repeated.out, sizeof(repeated.out), "%s", scratch("folder-repeated"));
    run(tarn_trainer_new(&repeated), 0);
    assert_same_file(options.out, repeated.out, "adapter_model.safetensors");
    tarn_module_free(model);
    tarn_module_free(whole);
    assert_ok();
}

/* Embedding and head grow, tied or not, and the run's folder opens with them. */
static void a_larger_vocabulary_adds_tokens(void **state)
{
    (void)state;
    for (int64_t rank = 0; rank < 3; rank += 2) {
        const char *base = rank ? llama_base("base-grown") : gpt2_base("base-grown");
        char names[2][40];
        tarn_train_options runs[2];
        for (int k = 0; k < 2; k++) {
            snprintf(names[k], sizeof(names[k]), "grown-%d-%d", (int)rank, k);
            runs[k] = small(base, rank, names[k]);
            runs[k].vocab_size = 259;
            if (rank)
                snprintf(runs[k].lora_modules_to_save, sizeof(runs[k].lora_modules_to_save), "embed_tokens,lm_head");
        }
        run(tarn_trainer_new(&runs[0]), 0);
        run(tarn_trainer_new(&runs[1]), 5);
        run(tarn_trainer_resume(runs[1].out, NULL), 0);
        assert_same_file(runs[0].out, runs[1].out, rank ? "adapter_model.safetensors" : "model.safetensors");
        tarn_module *model = tarn_model_open(runs[0].out, CPU, NULL);
        tarn_model_info info;
        assert_true(tarn_model_query(model, &info));
        assert_int_equal(info.vocab_size, 259);
        const int32_t ids[] = {258, 1};
        tarn_no_grad_open();
        assert_int_equal(tarn_size(good(tarn_forward(model, tarn_from_i32(ids, TARN_SHAPE(1, 2), CPU))), 2), 259);
        tarn_no_grad_close();
        tarn_module_free(model);
    }
}

/* ---- what is frozen ---------------------------------------------------------------------------------------------- */

/* Changes one number of a tensor in a safetensors file. */
static void damage(const char *path, const char *name)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("damaged.safetensors"));
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        const char *own = tarn_safetensors_name(file, i);
        tarn_tensor *tensor = tarn_safetensors_read(file, own, CPU);
        if (strcmp(own, name) == 0) {
            tarn_tensor *one = tarn_slice(tarn_slice(tensor, 0, 1, 2), 1, 1, 2);
            tarn_copy(one, tarn_add(one, tarn_scalar(1)));
        }
        assert_true(tarn_safetensors_add(writer, own, tensor));
    }
    assert_true(tarn_safetensors_add_metadata(writer, "format", "pt") && tarn_safetensors_finish(writer));
    tarn_safetensors_close(file);
    assert_int_equal(rename(scratch("damaged.safetensors"), path), 0);
}

static void another_base_is_refused_by_the_name_of_the_tensor(void **state)
{
    (void)state;
    const char *base = llama_base("base-other");
    tarn_train_options options = small(base, 2, "other");
    run(tarn_trainer_new(&options), 5);
    damage(path_in(base, "model.safetensors"), "model.layers.1.mlp.up_proj.weight");
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error(TARN_ERROR_FORMAT, "the frozen tensor 'model.layers.1.mlp.up_proj.weight' of");
    rename(path_in(base, "model.safetensors"), path_in(base, "away"));
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error(TARN_ERROR_IO, "has no model.safetensors");
}

static void spoil(const tarn_train_report *report, void *ctx)
{
    if (report->step == 8 && report->kind == TARN_REPORT_EVALUATION)
        tarn_fill_inplace(tarn_module_find(tarn_trainer_model(ctx), "model.norm.weight"), 2);
}

static void what_changes_on_the_way_is_found_at_the_end(void **state)
{
    (void)state;
    tarn_train_options options = small(llama_base("base-spoilt"), 2, "spoilt");
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_false(tarn_trainer_run(trainer, spoil, trainer, NULL));
    assert_error(TARN_ERROR_FORMAT, "the frozen tensor 'model.norm.weight' of");
    tarn_trainer_free(trainer);
}

static void frozen_files_that_are_none_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } files[] = {{"{}", "format"},
                 {"{\"format\": 1, \"tensors\": [\"a\"], \"hashes\": []}", "1 tensors and 0 hashes"},
                 {"{\"format\": 1, \"tensors\": [\"a\"], \"hashes\": [\"xyz\"]}", "is not a hash"},
                 {"{\"format\": 1, \"tensors\": [\"a\"], \"hashes\": [\"0123456789abcdef\"]}", "where"}};
    tarn_train_options options = small(llama_base("base-files"), 2, "files");
    run(tarn_trainer_new(&options), 5);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        write_text("files/frozen.json", files[i].text);
        assert_null(tarn_trainer_resume(options.out, NULL));
        assert_error(TARN_ERROR_FORMAT, files[i].says);
    }
    remove(scratch("files/frozen.json"));
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error(TARN_ERROR_IO, "frozen.json");
}

/* ---- what does not go together ----------------------------------------------------------------------------------- */

static void refused(const tarn_train_options *options, const char *says)
{
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (trainer)
        fail_msg("not refused: %s", says);
    if (!strstr(tarn_error(), says))
        fail_msg("'%s' does not say '%s'", tarn_error(), says);
    tarn_clear_error();
}

static void options_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const char *base = llama_base("base-refused");
    static const struct {
        const char *name, *value;
        int64_t rank;
        const char *says;
    } rows[] = {{"layers", "3", 2, "layers is 3, but the base model"},
                {"vocab_size", "200", 0, "vocab_size is 200, but the base model"},
                {"vocab_size", "300", 2, "lora_modules_to_save must have embed_tokens and lm_head"},
                {"tokenizer", "bytes", 0, "tokenizer does not apply to fine-tuning"},
                {"dropout", "0.1", 2, "a llama has no dropout"},
                {"context", "33", 2, "supports at most 32 tokens"},
                {"model", "gpt2", 2, "the model is gpt2, but"},
                {"lora_alpha", "4", 0, "lora_alpha applies to adapters only"},
                {"lora_dropout", "0.5", 0, "lora_dropout applies to adapters only"},
                {"lora_targets", "q_proj", 0, "lora_targets applies to adapters only"},
                {"lora_modules_to_save", "lm_head", 0, "lora_modules_to_save applies to adapters only"},
                {"quantize", "q8_0", 0, "quantize applies to adapters only"},
                {"merge", "gguf", 0, "merge applies to adapters only"},
                {"lora_modules_to_save", "nothing", 2, "module 'nothing' not found"},
                {"lora_targets", "nothing", 2, "layer 'nothing' not found"},
                {"quantize", "q4_k", 2, "q4_k needs a multiple of"},
                {"template", "chatml", 2, "template applies to chats"},
                {"val", "x.jsonl", 2, "val applies to chats"},
                {"val_fraction", "0.2", 2, "val_fraction applies to chats"},
                {"data", "digits", 2, "the data is 'digits'"},
                {"precision", "tf32", 2, "tf32 is not supported"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_train_options options = small(base, rows[i].rank, "refused");
        assert_true(tarn_train_options_set(&options, rows[i].name, rows[i].value));
        refused(&options, rows[i].says);
    }
    tarn_train_options options = small(base, 2, "refused");
    options.base[0] = 0;
    refused(&options, "lora needs a base model");
    snprintf(options.base, sizeof(options.base), "%s", scratch("nowhere"));
    refused(&options, "nowhere");
    assert_false(tarn_train_options_set(&options, "model", "nosuchmodel"));
    assert_error(TARN_ERROR_ARGUMENT, "must be one of mlp|lenet");
    assert_false(tarn_train_options_set(&options, "lora", "0"));
    assert_error(TARN_ERROR_ARGUMENT, "is out of range; must be from 1 to 65536");
    assert_false(tarn_train_options_set(&options, "quantize", "q5_0"));
    assert_error(TARN_ERROR_ARGUMENT, "must be one of q8_0");
}

static void adapters_are_no_base(void **state)
{
    (void)state;
    tarn_train_options first = small(llama_base("base-first"), 2, "first");
    run(tarn_trainer_new(&first), 0);
    tarn_train_options second = small(first.out, 2, "second");
    refused(&second, "has adapters only; merge them");
    assert_null(tarn_trainer_resume(path_in(first.out, "best"), NULL));
    tarn_clear_error();
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void linear_layers_of_a_folder_become_blocks(void **state)
{
    (void)state;
    const char *base = llama_base("base-blocks");
    tarn_module *plain = tarn_model_open(base, CPU, NULL),
                *packed = tarn_model_open(base, CPU, &(tarn_model_open_options){.quantize = TARN_Q8_0});
    assert_ok();
    const int32_t ids[] = {1, 2, 3, 4};
    tarn_tensor *tokens = tarn_from(ids, TARN_SHAPE(1, 4), TARN_I32, CPU);
    double a[4 * 256], b[4 * 256], worst = 0;
    assert_true(tarn_read_f64(tarn_forward(plain, tokens), a, 4 * 256) &&
                tarn_read_f64(tarn_forward(packed, tokens), b, 4 * 256));
    for (int i = 0; i < 4 * 256; i++)
        worst = fmax(worst, fabs(a[i] - b[i]));
    assert_true(worst > 0 && worst < 0.01);
    assert_null(tarn_module_find(packed, "model.layers.0.mlp.up_proj.bias"));
    tarn_clear_error();
    tarn_module_free(plain);
    tarn_module_free(packed);
    assert_null(tarn_model_open(base, CPU, &(tarn_model_open_options){.quantize = TARN_BF16}));
    assert_error(TARN_ERROR_DTYPE, "it must be q8_0");
    assert_null(tarn_model_open(base, CPU, &(tarn_model_open_options){.quantize = TARN_Q8_0, .as_stored = true}));
    assert_error(TARN_ERROR_ARGUMENT, ".as_stored keeps them");
    assert_null(tarn_model_open(base, CPU, &(tarn_model_open_options){.quantize = TARN_Q4_K}));
    assert_error(TARN_ERROR_SHAPE, "q8_0 needs one of 32");
    assert_null(tarn_model_open("x.gguf", CPU, &(tarn_model_open_options){.quantize = TARN_Q8_0}));
    assert_error(TARN_ERROR_ARGUMENT, "stay as they are stored");
    assert_null(tarn_model_open(gpt2_base("gpt2-blocks"), CPU, &(tarn_model_open_options){.quantize = TARN_Q8_0}));
    assert_error(TARN_ERROR_SHAPE, "the rows of 'transformer.h.0.attn.c_attn.weight' have 16 elements");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(all_weights_are_trained_from_a_folder),
        in_scope(a_stopped_run_of_all_weights_resumes_without_its_base),
        in_scope(adapters_are_trained_and_nothing_else),
        in_scope(a_stopped_run_of_adapters_resumes_bitwise_identically),
        in_scope(recomputed_blocks_give_the_same_adapters),
        in_scope(a_checkpoint_is_a_folder_of_adapters),
        in_scope(a_larger_vocabulary_adds_tokens),
        in_scope(another_base_is_refused_by_the_name_of_the_tensor),
        in_scope(what_changes_on_the_way_is_found_at_the_end),
        in_scope(frozen_files_that_are_none_are_refused),
        in_scope(options_that_cannot_be_are_refused),
        in_scope(adapters_are_no_base),
        in_scope(linear_layers_of_a_folder_become_blocks),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_plan.c: the plan of a run, which is made from shapes alone: that of the model itself, for any model, in a
 * moment, and before any memory is asked for. */
#define _GNU_SOURCE /* strtok_r */
#include <tarn/model.h>
#include <tarn/profile.h>
#include <tarn/train.h>
#include <time.h>

#include "core/memory/pool.h"
#include "support/files.h"
#include "tarn_features.h"
#include "train/trainer.h"

#define CPU tarn_device_cpu()

/* A folder that no run has yet. */
static const char *fresh_folder(void)
{
    static char name[32];
    static int runs;
    snprintf(name, sizeof(name), "run-%d", runs++);
    return scratch(name);
}

static const char *make_text(void)
{
    static char path[1200];
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    char text[6001];
    for (int i = 0; i < 6000; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    text[6000] = 0;
    snprintf(path, sizeof(path), "%s", write_text("text.txt", text));
    return path;
}

static tarn_train_options named(const char *model, const char *device)
{
    tarn_train_options options = {.batch_size = 4, .micro_batch = 2, .steps = 2, .eval_batches = 1};
    snprintf(options.model, sizeof(options.model), "%s", model);
    snprintf(options.device, sizeof(options.device), "%s", device);
    snprintf(options.tokenizer, sizeof(options.tokenizer), "bytes");
    snprintf(options.data, sizeof(options.data), "text:%s", make_text());
    snprintf(options.out, sizeof(options.out), "%s", fresh_folder());
    return options;
}

static tarn_train_plan plan_of(tarn_trainer *trainer)
{
    tarn_train_plan plan = {0};
    if (!trainer || !tarn_trainer_plan(trainer, &plan))
        fail_msg("%s", tarn_error());
    return plan;
}

static void assert_same_plan(const tarn_train_plan *a, const tarn_train_plan *b)
{
    assert_int_equal(a->trained, b->trained);
    assert_int_equal(a->frozen, b->frozen);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
    assert_int_equal(a->gradient_bytes, b->gradient_bytes);
    assert_int_equal(a->state_bytes, b->state_bytes);
    assert_int_equal(a->activation_bytes, b->activation_bytes);
    assert_int_equal(a->memory_needed, b->memory_needed);
    assert_int_equal(a->captures, b->captures);
    assert_string_equal(a->folder, b->folder);
    assert_string_equal(a->device, b->device);
}

static tarn__pool_peaks peaks_of(const char *device)
{
    return tarn__pool_peaks_of(tarn_device_parse(device));
}

/* The plan of a dry run is that of the run, and the run takes what it says: tensors at least what is the lower bound,
 * and the pool about what is the estimate, which may miss two of its segments. */
static void plans_hold(const tarn_train_options *options)
{
    const int64_t segment = INT64_C(2) << 20;
    tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, options);
    tarn_train_plan early = plan_of(dry_run);
    tarn_trainer_free(dry_run);
    tarn_empty_cache(tarn_device_parse(options->device));
    tarn_stats_reset();
    tarn__pool_peaks before = peaks_of(options->device);
    tarn_trainer *trainer = tarn_trainer_new(options);
    tarn_train_plan plan = plan_of(trainer);
    assert_same_plan(&early, &plan);
    assert_true(plan.activation_bytes > 0 && plan.weight_bytes > 0);
    if (!tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn__pool_peaks after = peaks_of(options->device);
    int64_t peak = after.reserved - before.reserved, tensors = after.tensors - before.tensors;
    tarn_trainer_free(trainer);
    const tarn_train_options *o = &plan.options;
    print_message("%-9s %-5s batch %lld of %lld, recompute %s: at least %lld, tensors %lld, peak %lld, plan %lld\n",
                  o->model, o->precision, (long long)o->micro_batch, (long long)o->batch_size, o->recompute,
                  (long long)plan.memory_min, (long long)tensors, (long long)peak, (long long)plan.memory_needed);
    assert_true(plan.memory_min <= tensors && plan.memory_min >= tensors - tensors / 20);
    assert_true(plan.memory_needed >= peak - 2 * segment && plan.memory_needed <= peak + peak / 20 + segment);
    assert_true(plan.memory_min > plan.weight_bytes + plan.gradient_bytes + plan.state_bytes &&
                plan.memory_min <= plan.memory_needed);
}

static void plans_are_those_of_the_model_itself(void **state)
{
    (void)state;
    static const char *const recompute[] = {"none", "selective", "full"}, *const models[] = {"gpt2", "llama", "qwen3"},
                             *const devices[] = {"cpu", "mirror"};
    for (int i = 0; i < 36; i++) {
        if (i % 2 && tarn_device_count("mirror") == 0)
            continue;
        tarn_train_options o = named(models[i / 2 % 3], devices[i % 2]);
        o.layers = 3, o.heads = 4, o.hidden_size = 64, o.context = 48;
        o.kv_heads = i / 2 % 3 ? 2 : 0;
        snprintf(o.recompute, sizeof(o.recompute), "%s", recompute[i / 6 % 3]);
        snprintf(o.precision, sizeof(o.precision), "%s", i / 18 ? "bf16" : "f32");
        plans_hold(&o);
    }
}

static void plans_of_classifiers_are_too(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp", "lenet", "resnet20"};
    for (int i = 0; i < 3; i++) {
        tarn_train_options o = {.batch_size = 5, .steps = 3, .device = "cpu"};
        snprintf(o.model, sizeof(o.model), "%s", models[i]);
        snprintf(o.data, sizeof(o.data), "digits:50");
        snprintf(o.out, sizeof(o.out), "%s", fresh_folder());
        plans_hold(&o);
    }
}

/* Of large layers and few samples most is weights; of small images and many samples most is activations. */
static void plans_of_large_classifiers_are_too(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t mlp_sizes, batch_size;
    } runs[] = {{"mlp", 800, 5}, {"lenet", 0, 400}, {"resnet20", 0, 64}};
    for (int i = 0; i < 3; i++) {
        tarn_train_options o = {.batch_size = runs[i].batch_size, .steps = 2, .device = "cpu", .data = "digits:450"};
        o.mlp_size_count = runs[i].mlp_sizes > 0 ? 2 : 0;
        o.mlp_sizes[0] = o.mlp_sizes[1] = runs[i].mlp_sizes;
        snprintf(o.model, sizeof(o.model), "%s", runs[i].model);
        snprintf(o.out, sizeof(o.out), "%s", fresh_folder());
        plans_hold(&o);
    }
}

/* With few tokens of many, the head, its gradient, a chunk of logits and what the products pack are nearly all. */
static void plans_of_large_vocabularies_are_too(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        tarn_train_options o = named(i % 2 ? "llama" : "gpt2", "cpu");
        o.layers = 1, o.heads = 2, o.hidden_size = 64, o.context = i < 4 ? 16 : 128,
        o.vocab_size = i < 4 ? 50304 : 20000, o.steps = 2, o.eval_batches = 1;
        o.micro_batch = i < 4 ? 1 : 4;
        snprintf(o.precision, sizeof(o.precision), "%s", i / 2 == 1 ? "bf16" : "f32");
        plans_hold(&o);
    }
}

/* At least, of tensors: what is needed in all comes in segments of the pool. */
static int64_t needed_by(int64_t batch_size)
{
    tarn_train_options o = named("gpt2", "cpu");
    o.layers = 2, o.heads = 2, o.hidden_size = 64, o.context = 64, o.vocab_size = 1 << 20,
    o.batch_size = o.micro_batch = batch_size;
    tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, &o);
    tarn_train_plan plan = plan_of(dry_run);
    tarn_trainer_free(dry_run);
    assert_true(plan.memory_needed >= plan.memory_min);
    return plan.memory_min;
}

/* 16 windows of these are tried as they are; more are taken to be as much more as the last ones were. */
static void large_batches_are_extrapolated(void **state)
{
    (void)state;
    int64_t each = (needed_by(16) - needed_by(8)) / 8, more = needed_by(4096) - needed_by(16);
    if (!(each > 64 * 64 * 4 * 2 * 10 && more > 4080 * each - 4080 * each / 50 &&
          more < 4080 * each + 4080 * each / 50))
        fail_msg("a window takes %lld bytes, 4080 of them %lld", (long long)each, (long long)more);
}

static void write_base(bool is_gpt2, const char *folder)
{
    const tarn_llama_config llama = {.vocab_size = 256,
                                     .context = 32,
                                     .layers = 2,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .hidden_size = 32,
                                     .ffn_size = 64,
                                     .tie_embeddings = true};
    const tarn_gpt2_config gpt2 = {
        .vocab_size = 256, .context = 32, .layers = 2, .heads = 2, .hidden_size = 32, .ffn_size = 64};
    tarn_module *model = is_gpt2 ? tarn_model_gpt2(&gpt2, CPU, 3) : tarn_model_llama(&llama, CPU, 3);
    tarn_tokenizer *tokenizer = tarn_tokenizer_bytes();
    assert_true(tarn_model_write(model, folder) && tarn_tokenizer_save(tokenizer, folder));
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(model);
}

/* Adapters on unquantized and on quantized weights. */
static void plans_of_fine_tuning_are_too(void **state)
{
    (void)state;
    char folder[1200];
    for (int i = 0; i < 6; i++) {
        snprintf(folder, sizeof(folder), "%s", scratch(i < 3 ? "base" : "base-gpt2"));
        write_base(i >= 3, folder);
        tarn_train_options o = named("", "cpu");
        o.tokenizer[0] = 0;
        o.lora = i % 3 ? 4 : 0;
        o.context = 16;
        snprintf(o.quantize, sizeof(o.quantize), "%s", i % 3 == 2 ? "q8_0" : "");
        assert_true(tarn_train_options_set(&o, "model", folder));
        plans_hold(&o);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* whatever else the machine does */
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Models of 6 and 11 GB of weights: nothing is filled, nothing is held. */
static void large_models_are_planned_in_a_moment(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2-1.5b", "llama-3b"};
    for (int i = 0; i < 2; i++) {
        tarn_train_options o = named(models[i], "cpu");
        double begin = seconds();
        int64_t before = tarn_memory_of(CPU).peak_used;
        o.context = 1024;
        o.batch_size = o.micro_batch = i ? 4 : 65536;
        tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, &o);
        tarn_train_plan plan = plan_of(dry_run);
        assert_true(plan.trained > INT64_C(1400) << 20 && plan.weight_bytes >= 4 * plan.trained &&
                    plan.memory_needed > 16 * plan.trained);
        assert_false(tarn_trainer_run(dry_run, NULL, NULL, NULL));
        assert_error(TARN_ERROR_ARGUMENT, "the trainer is a dry run");
        tarn_trainer_free(dry_run);
        assert_true(tarn_memory_of(CPU).peak_used - before < INT64_C(64) << 20);
        assert_true(seconds() - begin < 3 || getenv("TARN_TEST_QUICK")); /* under valgrind */
    }
}

/* ---- runs that do not fit ---------------------------------------------------------------------------------------- */

/* Sets "recompute=full micro_batch=4". */
static void set_all(tarn_train_options *o, const char *settings)
{
    char own[96], *rest = NULL;
    snprintf(own, sizeof(own), "%s", settings);
    for (char *word = strtok_r(own, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value = 0;
        if (!tarn_train_options_set(o, word, value + 1))
            fail_msg("%s", tarn_error());
    }
}

/* Each of the settings, planned as a run of its own, fits. */
static int check_fits(const tarn_train_options *options, const tarn_train_plan *plan)
{
    for (int i = 0; i < plan->fit_count; i++) {
        tarn_train_options o = *options;
        set_all(&o, plan->fits[i].settings);
        if (strncmp(plan->fits[i].settings, "batch_size", strlen("batch_size")) == 0)
            o.micro_batch = 0;
        tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, &o);
        tarn_train_plan other = plan_of(dry_run);
        print_message("%s: %lld of %lld\n", plan->fits[i].settings, (long long)other.memory_needed,
                      (long long)other.memory_free);
        assert_true(other.memory_needed <= plan->memory_free && other.fit_count == 0);
        assert_int_equal(other.memory_needed, plan->fits[i].memory_needed);
        tarn_trainer_free(dry_run);
    }
    return plan->fit_count;
}

/* The device has 4 GiB: the run is refused before it asks for any of them, and a smaller model is named. */
static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") == 0)
        skip();
    tarn_device mirror = tarn_device_parse("mirror");
    tarn_train_options o = named("gpt2-774m", "mirror");
    o.context = 1024;
    tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, &o);
    tarn_train_plan plan = plan_of(dry_run);
    assert_true(plan.memory_min > plan.memory_free && plan.memory_free > 0);
    tarn_trainer_free(dry_run);
    assert_int_equal(check_fits(&o, &plan), 1);
    tarn_stats_reset();
    int64_t before = tarn_memory_of(mirror).peak_used;
    assert_null(tarn_trainer_new(&o));
    assert_error_about(TARN_ERROR_MEMORY, "the run does not fit in memory; ignore_memory starts it anyway",
                       "with model=gpt2-");
    assert_int_equal(tarn_memory_of(mirror).peak_used, before);
}

/* Activations are too large: they can be made smaller in all ways, and the run begins with what was advised. */
static void settings_that_fit_are_found(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") == 0)
        skip();
    tarn_train_options o = named("gpt2", "mirror");
    o.layers = 24, o.heads = 4, o.hidden_size = 128, o.context = 256, o.batch_size = o.micro_batch = 96;
    tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, &o);
    tarn_train_plan plan = plan_of(dry_run);
    tarn_trainer_free(dry_run);
    assert_true(check_fits(&o, &plan) >= 4);
    assert_int_equal(strncmp(plan.fits[0].settings, "micro_batch=", strlen("micro_batch=")), 0);
    assert_null(tarn_trainer_new(&o));
    assert_error_about(TARN_ERROR_MEMORY, "the run does not fit in memory", plan.fits[0].settings);
    o.ignore_memory = true;
    tarn_trainer *regardless = tarn_trainer_new(&o);
    assert_non_null(regardless);
    tarn_trainer_free(regardless);
    o.ignore_memory = false;
    set_all(&o, plan.fits[0].settings);
    assert_int_equal(o.batch_size % o.micro_batch, 0);
    tarn_trainer *advised = tarn_trainer_new(&o);
    assert_non_null(advised);
    tarn_trainer_free(advised);
    tarn_train_options of_classes = {.model = "mlp",
                                     .mlp_sizes = {20000, 20000},
                                     .mlp_size_count = 2,
                                     .batch_size = 4,
                                     .device = "mirror",
                                     .data = "digits:50"};
    snprintf(of_classes.out, sizeof(of_classes.out), "%s", fresh_folder());
    dry_run = tarn_trainer_dry_run(NULL, &of_classes);
    plan = plan_of(dry_run);
    tarn_trainer_free(dry_run);
    assert_true(check_fits(&of_classes, &plan) >= 1);
}

/* A run's own tensors are none that another holds. */
static void free_memory_is_read_before_anything_is_allocated(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") == 0)
        skip();
    tarn_device_info info;
    tarn_train_options o = named("gpt2", "mirror");
    o.layers = 2, o.heads = 4, o.hidden_size = 256, o.context = 48;
    tarn_empty_cache(tarn_device_parse("mirror"));
    assert_true(tarn_device_query(tarn_device_parse("mirror"), &info));
    tarn_trainer *trainer = tarn_trainer_new(&o);
    assert_int_equal(plan_of(trainer).memory_free, info.memory_free);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    assert_int_equal(plan_of(trainer).memory_free, info.memory_free);
    tarn_trainer_free(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(plans_are_those_of_the_model_itself),  in_scope(plans_of_classifiers_are_too),
        in_scope(plans_of_large_classifiers_are_too),   in_scope(plans_of_fine_tuning_are_too),
        in_scope(large_models_are_planned_in_a_moment), in_scope(what_does_not_fit_is_refused),
        in_scope(plans_of_large_vocabularies_are_too),  in_scope(large_batches_are_extrapolated),
        in_scope(settings_that_fit_are_found),          in_scope(free_memory_is_read_before_anything_is_allocated),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}

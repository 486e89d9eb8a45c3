/* test_legacy.c: runs written before options, keys and variables got their present names resume as they would have.
 *
 * legacy/ holds four runs of 8 steps, stopped after step 4 at the instruction level avx2 of x86-64, with old keys in
 * config.json and trainer.json, their data, and expected.tsv: what the version that wrote them reached when it
 * resumed them. Weights depend on the instruction level and on BLAS, so the end is compared bit for bit only where
 * the first four steps give the bits of the stored checkpoint; elsewhere losses are compared. Everything that is
 * restored is compared everywhere. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tarn/train.h>

#include "support/files.h"
#include "tarn_features.h"

enum { STOPPED = 4, STEPS = 8 };

typedef struct expectation {
    char level[16], name[16];
    unsigned weights, optimizer; /* CRC-32 of the tensors' bytes after the last step */
    double loss[STEPS - STOPPED], val_loss;
} expectation;

static char start_folder[1024]; /* that the program was started in */

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void copy_folder(const char *from, const char *to)
{
    DIR *list = opendir(from);
    assert_non_null(list);
    mkdir(to, 0755);
    for (struct dirent *entry; (entry = readdir(list));) {
        char source[2400], target[2400];
        struct stat about;
        snprintf(source, sizeof(source), "%s/%s", from, entry->d_name);
        snprintf(target, sizeof(target), "%s/%s", to, entry->d_name);
        if (entry->d_name[0] == '.' || stat(source, &about) != 0)
            continue;
        if (S_ISDIR(about.st_mode)) {
            copy_folder(source, target);
            continue;
        }
        size_t count;
        char *content = get_file(source, &count);
        put_file(target, content, count);
        free(content);
    }
    closedir(list);
}

/* CRC-32 of all tensors of a safetensors file, without its header: metadata may change. */
static unsigned tensors_checksum(const char *folder, const char *name)
{
    char path[1200];
    size_t count;
    uint64_t header;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    char *content = get_file(path, &count);
    memcpy(&header, content, sizeof(header));
    assert_true(count > 8 + header);
    unsigned found = checksum(0, content + 8 + header, count - 8 - (size_t)header);
    free(content);
    return found;
}

static const char *weights_file(const char *name)
{
    return strcmp(name, "lora") == 0 ? "adapter_model.safetensors" : "model.safetensors";
}

static expectation expected(const char *name)
{
    size_t count;
    char *text = get_file("expected.tsv", &count), line[400];
    expectation e = {.name = ""};
    for (const char *at = text; at < text + count && strcmp(e.name, name) != 0; at += strcspn(at, "\n") + 1) {
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
        assert_int_equal(sscanf(line, "x86-64 %15s %15s %x %x %lf %lf %lf %lf %lf", e.level, e.name, &e.weights,
                                &e.optimizer, &e.loss[0], &e.loss[1], &e.loss[2], &e.loss[3], &e.val_loss),
                         9);
    }
    free(text);
    assert_string_equal(e.name, name);
    return e;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    double loss[STEPS + 1], val_loss;
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    if (report->kind == TARN_REPORT_TRAINING && report->step <= STEPS)
        s->loss[report->step] = report->loss;
    else if (report->kind == TARN_REPORT_EVALUATION)
        s->val_loss = report->loss;
    if (s->stop_at && report->step >= s->stop_at && report->kind == TARN_REPORT_TRAINING)
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

/* True when this machine computes the steps before the checkpoint as the one that wrote it did: a new run by the old
 * config.json is bitwise identical. */
static bool is_reproducible(const char *name)
{
    char config[64], out[64];
    tarn_train_options options = {0};
    snprintf(config, sizeof(config), "%s/config.json", name);
    snprintf(out, sizeof(out), "%s-again", name);
    if (!tarn_train_options_load(&options, config))
        fail_msg("%s", tarn_error());
    snprintf(options.out, sizeof(options.out), "%s", out);
    run(tarn_trainer_new(&options), STOPPED);
    return tensors_checksum(out, weights_file(name)) == tensors_checksum(name, weights_file(name)) &&
           tensors_checksum(out, "optimizer.safetensors") == tensors_checksum(name, "optimizer.safetensors");
}

/* Weights and plan of the resumed trainer, before its first step. */
static void check_restored(const char *name, tarn_trainer *trainer)
{
    tarn_train_plan plan;
    if (!trainer || !tarn_trainer_plan(trainer, &plan))
        fail_msg("%s: %s", name, tarn_error());
    assert_int_equal(plan.first_step, STOPPED);
    assert_int_equal(plan.steps, STEPS);
    if (strcmp(name, "lora") != 0) { /* whose folder has adapters alone */
        assert_true(tarn_module_save(tarn_trainer_model(trainer), "loaded.safetensors"));
        assert_int_equal(tensors_checksum(".", "loaded.safetensors"), tensors_checksum(name, weights_file(name)));
    }
}

static void check_loss(const char *name, double found, double wanted, bool is_exact)
{
    if (!(fabs(found - wanted) <= (is_exact ? 1e-8 : 1e-4) * wanted))
        fail_msg("%s: a loss of %.9g instead of %.9g", name, found, wanted);
}

static void resume(const char *name)
{
    expectation e = expected(name);
    tarn_device_info cpu;
    assert_true(tarn_device_query(tarn_device_cpu(), &cpu));
    bool is_exact = strncmp(cpu.detail, e.level, strlen(e.level)) == 0 && is_reproducible(name);
    tarn_trainer *trainer = tarn_trainer_resume(name, NULL);
    check_restored(name, trainer);
    story s = run(trainer, 0);
    unsigned weights = tensors_checksum(name, weights_file(name)),
             optimizer = tensors_checksum(name, "optimizer.safetensors");
    printf("%s: compared %s\n", name, is_exact ? "bit for bit" : "by its losses: this machine rounds differently");
    for (int i = 0; i < STEPS - STOPPED; i++)
        check_loss(name, s.loss[STOPPED + 1 + i], e.loss[i], is_exact);
    check_loss(name, s.val_loss, e.val_loss, is_exact);
    if (is_exact && (weights != e.weights || optimizer != e.optimizer))
        fail_msg("%s: other bits after the last step: %08x %08x instead of %08x %08x", name, weights, optimizer,
                 e.weights, e.optimizer);
}

static void a_gpt2_resumes(void **state)
{
    (void)state;
    resume("gpt2");
}

static void a_llama_resumes(void **state)
{
    (void)state;
    resume("llama");
}

static void an_mlp_resumes(void **state)
{
    (void)state;
    resume("mlp");
}

static void adapters_resume(void **state)
{
    (void)state;
    resume("lora");
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void old_names_and_words_set_the_present_options(void **state)
{
    (void)state;
    static const char *const old[][2] = {{"hidden", "12,8"},     {"drop-every", "3"},    {"drop_epochs", "2"},
                                         {"drop-factor", "0.5"}, {"width", "16"},        {"inner", "24"},
                                         {"vocab", "40"},        {"recompute", "cheap"}, {"val-share", "0.25"}};
    tarn_train_options o = {0};
    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++)
        if (!tarn_train_options_set(&o, old[i][0], old[i][1]))
            fail_msg("%s", tarn_error());
    assert_true(o.mlp_size_count == 2 && o.mlp_sizes[0] == 12 && o.mlp_sizes[1] == 8);
    assert_true(o.lr_step == 3 && o.lr_step_epochs == 2 && o.lr_gamma == 0.5);
    assert_true(o.hidden_size == 16 && o.ffn_size == 24 && o.vocab_size == 40 && o.val_fraction == 0.25);
    assert_string_equal(o.recompute, "selective");
    assert_true(tarn_train_options_set(&o, "recompute", "block"));
    assert_string_equal(o.recompute, "full");
    put_file("both.json", "{\"width\": 8, \"hidden_size\": 8}", strlen("{\"width\": 8, \"hidden_size\": 8}"));
    assert_false(tarn_train_options_load(&o, "both.json"));
    assert_error(TARN_ERROR_ARGUMENT, "hidden_size is given twice");
}

/* After a run was resumed its files have the present names alone. */
static void present_names_are_written(void **state)
{
    (void)state;
    static const char *const wanted[][3] = {
        {"gpt2/config.json", "\"hidden_size\": 16", "\"recompute\": \"full\""},
        {"llama/config.json", "\"lr_gamma\": 0.5", "\"recompute\": \"selective\""},
        {"mlp/config.json", "\"mlp_sizes\"", "\"std\""},
        {"lora/config.json", "\"val_fraction\": 0.25", "\"ffn_size\": 24"},
    };
    static const char *const old[] = {"\"width\"",     "\"inner\"", "\"hidden\"", "\"drop_",  "\"val_share\"",
                                      "\"deviation\"", "\"cheap\"", "\"block\"",  "\"vocab\""};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        size_t count;
        char *text = get_file(wanted[i][0], &count);
        text = realloc(text, count + 1);
        text[count] = 0;
        for (int k = 1; k < 3; k++)
            assert_contains(text, wanted[i][k]);
        for (size_t k = 0; k < sizeof(old) / sizeof(old[0]); k++)
            if (strstr(text, old[k]))
                fail_msg("%s has %s", wanted[i][0], old[k]);
        free(text);
    }
}

/* A C program may have put an old word into the struct. */
static void an_old_word_in_the_struct_is_understood(void **state)
{
    (void)state;
    tarn_train_plan plan;
    tarn_train_options o = {
        .layers = 1, .heads = 1, .hidden_size = 8, .context = 8, .device = "cpu", .recompute = "block"};
    snprintf(o.data, sizeof(o.data), "text:text.txt");
    tarn_trainer *trainer = tarn_trainer_dry_run(NULL, &o);
    assert_true(trainer && tarn_trainer_plan(trainer, &plan));
    assert_string_equal(plan.options.recompute, "full");
    tarn_trainer_free(trainer);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static void count_entry(const tarn_logged_run *entry, void *ctx)
{
    assert_string_equal(entry->end, "stopped");
    assert_int_equal(entry->step, STOPPED);
    ++*(int *)ctx;
}

static void the_log_of_runs_is_read(void **state)
{
    (void)state;
    int count = 0;
    char folder[1100];
    snprintf(folder, sizeof(folder), "%s/tests/train/legacy", getenv("TARN_SOURCE_DIR"));
    assert_true(tarn_runs_read(folder, count_entry, &count));
    assert_int_equal(count, 4);
}

/* Paths in the runs are relative to the folder that they are copied to. */
static int set_up(void **state)
{
    char from[1100];
    const char *source = getenv("TARN_SOURCE_DIR");
    if (!source || make_scratch(state) != 0 || !getcwd(start_folder, sizeof(start_folder)))
        return -1;
    snprintf(from, sizeof(from), "%s/tests/train/legacy", source);
    copy_folder(from, scratch("runs"));
    return chdir(scratch("runs"));
}

static int tear_down(void **state)
{
    return chdir(start_folder) == 0 ? remove_scratch(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_gpt2_resumes),
        in_scope(a_llama_resumes),
        in_scope(an_mlp_resumes),
        in_scope(adapters_resume),
        in_scope(present_names_are_written),
        in_scope(old_names_and_words_set_the_present_options),
        in_scope(an_old_word_in_the_struct_is_understood),
        in_scope(the_log_of_runs_is_read),
    };
#if defined(__x86_64__)
    setenv("TARN_CPU_LEVEL", "avx2", 0); /* the level that wrote the runs */
#endif
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, set_up, tear_down) : 0;
}

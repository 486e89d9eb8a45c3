/* test_bad_input_lm.c: runs of language models called wrongly, and their files damaged. */
#include <stdlib.h>
#include <tarn/train.h>

#include "support/files.h"
#include "support/refuse.h"
#include "support/small_tokenizer.h"

#define CPU tarn_device_cpu()

static void make_run(const char *folder)
{
    char text[601];
    for (int i = 0; i < 600; i++)
        text[i] = "to be, or not to be.\n"[i % 21];
    text[600] = 0;
    tarn_train_options options = {.layers = 1,
                                  .heads = 1,
                                  .hidden_size = 8,
                                  .context = 8,
                                  .batch_size = 4,
                                  .steps = 3,
                                  .eval_every = 3,
                                  .device = "cpu"};
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("text.txt", text));
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    tarn_trainer *trainer = tarn_trainer_new(&options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static void runs(void **state)
{
    (void)state;
    tarn_text_evaluation e;
    tarn_train_options classifier = {
        .model = "mlp", .data = "digits:40", .batch_size = 20, .steps = 1, .device = "cpu"};
    make_run("run");
    snprintf(classifier.out, sizeof(classifier.out), "%s", scratch("classifier"));
    tarn_trainer *trainer = tarn_trainer_new(&classifier);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    tarn_run *run = tarn_run_open(scratch("run"), CPU), *other = tarn_run_open(scratch("classifier"), CPU);
    REFUSE(tarn_run_task, tarn_run_task(NULL));
    REFUSE(tarn_run_tokenizer, tarn_run_tokenizer(NULL));
    REFUSE(tarn_run_tokenizer, tarn_run_tokenizer(other));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(NULL, NULL, 1, &e));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(other, NULL, 1, &e));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(run, NULL, 0, &e));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(run, NULL, 1, NULL));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(run, "digits", 1, &e));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(run, "text:", 1, &e));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(run, "text:/nosuch", 1, &e));
    REFUSE(tarn_run_evaluate_text, tarn_run_evaluate_text(run, "shards:/nosuch", 1, &e));
    ACCEPT(tarn_run_evaluate_text(run, NULL, 1, &e));
    tarn_run_close(run);
    tarn_run_close(other);
}

static void see(const tarn_logged_run *run, void *ctx)
{
    (void)run, (void)ctx;
}

static void logs(void **state)
{
    (void)state;
    REFUSE(tarn_runs_read, tarn_runs_read(NULL, see, NULL));
    REFUSE(tarn_runs_read, tarn_runs_read("", see, NULL));
    REFUSE(tarn_runs_read, tarn_runs_read("/nosuch", see, NULL));
    write_text("log.jsonl", "{}\n");
    REFUSE(tarn_runs_read, tarn_runs_read(scratch(""), NULL, NULL));
    REFUSE(tarn_runs_read, tarn_runs_read(scratch(""), see, NULL));
    const char *const folders[] = {"/nosuch/a", "/nosuch/b", NULL, ""};
    REFUSE(tarn_runs_compare, tarn_runs_compare(NULL, 2, scratch("page.html")));
    REFUSE(tarn_runs_compare, tarn_runs_compare(folders, 2, scratch("page.html")));
    REFUSE(tarn_runs_compare, tarn_runs_compare(folders, 2, NULL));
    REFUSE(tarn_runs_compare, tarn_runs_compare(folders, -1, scratch("page.html")));
    REFUSE(tarn_runs_compare, tarn_runs_compare(folders + 1, 2, scratch("page.html")));
    REFUSE(tarn_runs_compare, tarn_runs_compare(folders + 2, 2, scratch("page.html")));
}

/* A record of the run that lost a size, or describes a far larger model, is named before anything is made of it. */
static void sizes_that_are_not_the_checkpoints(void **state)
{
    (void)state;
    static const char *const bad[][3] = {{"\"hidden_size\": 8", "\"vast\": 8", "unknown option 'vast'"},
                                         {"\"context\": 8", "\"context\": 800000", "describes a model with"},
                                         {"\"layers\": 1,", "\"layers\": 1000,", "describes a model with"},
                                         {"    \"layers\": 1,\n", "", "lacks one of layers"}};
    make_run("sizes");
    drop_checksums(scratch("sizes/config.json"));
    size_t count;
    char *text = get_file(scratch("sizes/config.json"), &count);
    text = realloc(text, count + 1);
    text[count] = 0;
    for (int i = 0; i < 4; i++) {
        char *worse = replaced(text, bad[i][0], bad[i][1]);
        put_file(scratch("sizes/config.json"), worse, strlen(worse));
        free(worse);
        assert_null(tarn_trainer_resume(scratch("sizes"), NULL));
        assert_contains(tarn_error(), bad[i][2]);
        tarn_clear_error();
    }
    put_file(scratch("sizes/config.json"), text, count);
    free(text);
    ACCEPT(tarn_trainer_free(tarn_trainer_resume(scratch("sizes"), NULL)), true);
}

/* Every file of the run cut at some places, and with bytes changed: an error or a model, never anything worse. */
static void damaged_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json",           "trainer.json",   "model.safetensors",
                                        "optimizer.safetensors", "tokenizer.json", "best/config.json"};
    uint64_t random = test_seed(12);
    make_run("damaged");
    int rounds = getenv("TARN_TEST_LONG") ? 2000 : 60, refused = 0;
    for (int round = 0; round < rounds; round++) {
        char path[1200];
        size_t count;
        snprintf(path, sizeof(path), "%s/%s", scratch("damaged"), names[round % 6]);
        char *text = get_file(path, &count), *worse = malloc(count + 1);
        memcpy(worse, text, count);
        size_t left = random_below(&random, 2) ? count : (size_t)random_below(&random, (int64_t)count + 1);
        if (left == count && count > 0)
            worse[random_below(&random, (int64_t)(count < 600 ? count : 600))] ^=
                (char)(1 + random_below(&random, 255));
        put_file(path, worse, left);
        tarn_run *run = tarn_run_open(scratch("damaged"), CPU);
        tarn_clear_error();
        tarn_run_close(run);
        tarn_trainer *trainer = tarn_trainer_resume(scratch("damaged"), NULL);
        refused += tarn_failed();
        tarn_clear_error();
        tarn_trainer_free(trainer);
        put_file(path, text, count);
        free(text);
        free(worse);
    }
    assert_true(refused > rounds / 10);
}

#define refusing(test) cmocka_unit_test_setup_teardown(test, open_refusals, close_refusals)

/* What is wrong with a text is said of its file, before anything is written. */
static void texts_without_characters_are_refused_by_their_file(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *part;
        size_t count;
        tarn_code code;
    } texts[] = {{"", "a text with at least one character is required", 0, TARN_ERROR_ARGUMENT},
                 {"to be or not to be\xff\xfe", "byte 18, 0xFF, is not valid UTF-8", 20, TARN_ERROR_ARGUMENT},
                 {"to be or not to be, that is\0the question", "byte 27 is NUL", 40, TARN_ERROR_FORMAT}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        tarn_train_options options = {.layers = 1, .heads = 1, .hidden_size = 8, .context = 4, .device = "cpu"};
        snprintf(options.data, sizeof(options.data), "text:%s", write_file("odd.txt", texts[i].bytes, texts[i].count));
        assert_null(tarn_trainer_new(&options));
        assert_non_null(strstr(tarn_error(), "odd.txt'"));
        assert_error(texts[i].code, texts[i].part);
    }
    tarn_train_options options = {
        .layers = 1, .heads = 1, .hidden_size = 8, .context = 4, .device = "cpu", .tokenizer = "/nosuch"};
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("odd.txt", "to be or not to be"));
    assert_null(tarn_trainer_new(&options));
    assert_null(strstr(tarn_error(), "odd.txt'"));
    assert_error(TARN_ERROR_IO, "'/nosuch' not found; a model folder, a .gguf file or a tokenizer file is expected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {refusing(runs), refusing(sizes_that_are_not_the_checkpoints),
                                       refusing(damaged_runs), refusing(logs),
                                       in_scope(texts_without_characters_are_refused_by_their_file)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_bad_input_train.c: training and the use of runs are given what they do not take. */
#include "support/files.h"
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static void options(void **state)
{
    (void)state;
    tarn_train_options o = {0};
    tarn_option row;
    ACCEPT(tarn_train_option_count());
    REFUSE(tarn_train_option, tarn_train_option(-1, &row));
    REFUSE(tarn_train_option, tarn_train_option(1000, &row));
    REFUSE(tarn_train_option, tarn_train_option(0, NULL));
    REFUSE(tarn_train_option_applies, tarn_train_option_applies(NULL, "lm"));
    REFUSE(tarn_train_option_applies, tarn_train_option_applies("nosuch", "lm"));
    REFUSE(tarn_train_option_applies, tarn_train_option_applies("lr", NULL));
    REFUSE(tarn_train_option_applies, tarn_train_option_applies("lr", "text"));
    ACCEPT(tarn_train_option_applies("lr", "chat"));
    REFUSE(tarn_train_options_set, tarn_train_options_set(NULL, "lr", "1"));
    REFUSE(tarn_train_options_set, tarn_train_options_set(&o, NULL, "1"));
    REFUSE(tarn_train_options_set, tarn_train_options_set_sized(&o, sizeof(o), "lr", NULL));
    static const char *const bad[][2] = {{"nosuch", "1"},
                                         {"lr", "x"},
                                         {"lr", ""},
                                         {"lr", "nan"},
                                         {"lr", "inf"},
                                         {"lr", "0"},
                                         {"lr", "1 "},
                                         {"lr", " 1"},
                                         {"epochs", "0"},
                                         {"epochs", "1.5"},
                                         {"epochs", "1e3"},
                                         {"epochs", "99999999999999999999"},
                                         {"batch_size", "-1"},
                                         {"mlp_sizes", "1,,2"},
                                         {"mlp_sizes", "1,0"},
                                         {"mlp_sizes", ","},
                                         {"mlp_sizes", "1,2,"},
                                         {"mlp_sizes", "1,2,3,4,5,6,7,8,9"},
                                         {"optimizer", "adamx"},
                                         {"optimizer", "ada"},
                                         {"optimizer", "|"},
                                         {"augment", "1"},
                                         {"momentum", "1"},
                                         {"schedule", "cosine|"},
                                         {"label-smoothing", "1"},
                                         {"seed", "-1"},
                                         {"workers", "65"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        REFUSE(tarn_train_options_set, tarn_train_options_set(&o, bad[i][0], bad[i][1]));
    static char longer[2000];
    memset(longer, 'x', sizeof(longer) - 1);
    REFUSE(tarn_train_options_set, tarn_train_options_set(&o, "out", longer));
    assert_memory_equal(&o, &(tarn_train_options){0}, sizeof(o)); /* none of them changed anything */
}

static void files(void **state)
{
    (void)state;
    tarn_train_options o = {.epochs = 7};
    REFUSE(tarn_train_options_load, tarn_train_options_load(NULL, "x"));
    REFUSE(tarn_train_options_load, tarn_train_options_load(&o, NULL));
    REFUSE(tarn_train_options_load, tarn_train_options_load_sized(&o, sizeof(o), ""));
    REFUSE(tarn_train_options_load, tarn_train_options_load(&o, scratch("nosuch.json")));
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{\"epochs\": 3, \"nosuch\": 1}",
                                      "{\"epochs\": \"three\"}",
                                      "{\"epochs\": null}",
                                      "{\"epochs\": {}}",
                                      "{\"epochs\": 3, \"epochs\": 4}",
                                      "{\"epochs\": 3, \"lr\": -1}",
                                      "{\"hidden\": [[1]]}",
                                      "{\"hidden\": []}",
                                      "{\"train\": 3}",
                                      "{\"model\": \"lenet\\u0000x\"}",
                                      "{\"epochs\": 3} x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        REFUSE(tarn_train_options_load, tarn_train_options_load(&o, write_text("bad.json", bad[i])));
    assert_int_equal(o.epochs, 7);
    assert_true(tarn_train_options_load(
        &o, write_text("good.json",
                       "{\"epochs\": 3, \"hidden\": [8, 4], \"augment\": true, \"lr\": 0.5, \"model\": \"mlp\"}")));
    assert_int_equal(o.epochs, 3);
    assert_int_equal(o.mlp_size_count, 2);
    assert_int_equal(o.mlp_sizes[1], 4);
    assert_true(o.augment && o.lr == 0.5);
    assert_string_equal(o.model, "mlp");
}

static void trainers(void **state)
{
    (void)state;
    tarn_train_plan plan;
    tarn_train_options o = {.data = "digits:20", .device = "cpu"};
    snprintf(o.out, sizeof(o.out), "%s", scratch("trainer"));
#define WITH(...) (tarn_train_options){.data = "digits:20", .device = "cpu", __VA_ARGS__}
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.model = "vgg")));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.epochs = -1)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.lr = NAN)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.mlp_size_count = 9)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.mlp_size_count = -1)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.model = "mlp", .mlp_size_count = 1))); /* of size 0 */
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.model = "lenet", .mlp_sizes = {3}, .mlp_size_count = 1)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.momentum = 0.9)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&WITH(.warmup = 100)));
    REFUSE(tarn_trainer_new, tarn_trainer_new(&(tarn_train_options){.data = "digits:20", .device = "nosuch"}));
    REFUSE(tarn_trainer_new, tarn_trainer_new_sized(&WITH(.clip_norm = -1), sizeof(o)));
    REFUSE(tarn_trainer_resume, tarn_trainer_resume(NULL, NULL));
    REFUSE(tarn_trainer_resume, tarn_trainer_resume("", NULL));
    REFUSE(tarn_trainer_resume, tarn_trainer_resume_sized(scratch("nosuch"), NULL, 0));
    REFUSE(tarn_trainer_dry_run, tarn_trainer_dry_run("", NULL));
    REFUSE(tarn_trainer_dry_run, tarn_trainer_dry_run(NULL, &WITH(.clip_norm = -1)));
    REFUSE(tarn_trainer_dry_run,
           tarn_trainer_dry_run(NULL, &(tarn_train_options){.data = "digits:20", .device = "nosuch"}));
    REFUSE(tarn_trainer_dry_run, tarn_trainer_dry_run_sized(scratch("nosuch"), NULL, 0));
    REFUSE(tarn_trainer_plan, tarn_trainer_plan(NULL, &plan));
    REFUSE(tarn_trainer_progress, tarn_trainer_progress(NULL, &(tarn_train_progress){0}));
    REFUSE(tarn_trainer_run, tarn_trainer_run(NULL, NULL, NULL, NULL));
    REFUSE(tarn_trainer_model, tarn_trainer_model(NULL));
    ACCEPT(tarn_trainer_stop(NULL), 0);
    ACCEPT(tarn_trainer_free(NULL), 0);
    tarn_trainer *trainer = tarn_trainer_new(&o);
    REFUSE(tarn_trainer_plan, tarn_trainer_plan(trainer, NULL));
    REFUSE(tarn_trainer_progress, tarn_trainer_progress(trainer, NULL));
    put_file(o.out, "x", 1); /* something came there meanwhile */
    REFUSE(tarn_trainer_run, tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
}

/* A run of one step. */
static const char *make_run(const char *name)
{
    tarn_train_options o = {.data = "digits:20", .model = "mlp", .steps = 1, .device = "cpu"};
    snprintf(o.out, sizeof(o.out), "%s", scratch(name));
    tarn_trainer *trainer = tarn_trainer_new(&o);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    return scratch(name);
}

static bool write_nothing(const void *from, size_t count, void *ctx)
{
    (void)from, (void)count, (void)ctx;
    return true;
}

static bool receive(const tarn_prediction *prediction, void *ctx)
{
    (void)prediction, (void)ctx;
    return true;
}

static void runs(void **state)
{
    (void)state;
    tarn_shape shape;
    tarn_evaluation e;
    double p[10];
    uint8_t image[784] = {0};
    const tarn_array whole = {.data = image, .dtype = TARN_U8, .shape = TARN_SHAPE(1, 28, 28)},
                     i32 = {.data = image, .dtype = TARN_I32, .shape = TARN_SHAPE(1, 28, 28)},
                     flat = {.data = image, .dtype = TARN_U8, .shape = TARN_SHAPE(784)},
                     none = {.dtype = TARN_U8, .shape = TARN_SHAPE(1, 28, 28)};
    tarn_run_weights weights;
    REFUSE(tarn_run_weights_find, tarn_run_weights_find(NULL, TARN_RUN_BEST, &weights));
    REFUSE(tarn_run_weights_find, tarn_run_weights_find("", TARN_RUN_BEST, &weights));
    REFUSE(tarn_run_weights_find, tarn_run_weights_find("runs", TARN_RUN_BEST, NULL));
    REFUSE(tarn_run_weights_find, tarn_run_weights_find("runs", (tarn_run_checkpoint)7, &weights));
    REFUSE(tarn_run_open, tarn_run_open(NULL, CPU));
    REFUSE(tarn_run_open, tarn_run_open("", CPU));
    REFUSE(tarn_run_open, tarn_run_open(scratch("nosuch"), CPU));
    tarn_run *run = tarn_run_open(make_run("run"), CPU);
    REFUSE(tarn_run_open, tarn_run_open(scratch("run"), (tarn_device){6, 0}));
    REFUSE(tarn_run_model, tarn_run_model(NULL));
    REFUSE(tarn_run_kind, tarn_run_kind(NULL));
    REFUSE(tarn_run_data, tarn_run_data(NULL));
    REFUSE(tarn_run_input, tarn_run_input(NULL, &shape));
    REFUSE(tarn_run_input, tarn_run_input(run, NULL));
    REFUSE(tarn_run_classes, tarn_run_classes(NULL));
    REFUSE(tarn_run_class_name, tarn_run_class_name(NULL, 0));
    REFUSE(tarn_run_class_name, tarn_run_class_name(run, -1));
    REFUSE(tarn_run_class_name, tarn_run_class_name(run, 10));
    REFUSE(tarn_run_evaluate, tarn_run_evaluate(NULL, NULL, 1, &e, NULL, NULL));
    REFUSE(tarn_run_evaluate, tarn_run_evaluate(run, NULL, 0, &e, NULL, NULL));
    REFUSE(tarn_run_evaluate, tarn_run_evaluate(run, NULL, 1, NULL, NULL, NULL));
    REFUSE(tarn_run_evaluate, tarn_run_evaluate(run, "nosuch", 1, &e, NULL, NULL));
    tarn_array loaded;
    REFUSE(tarn_run_predict_data, tarn_run_predict_data(NULL, NULL, 1, receive, NULL));
    REFUSE(tarn_run_predict_data, tarn_run_predict_data(run, NULL, 0, receive, NULL));
    REFUSE(tarn_run_predict_data, tarn_run_predict_data(run, NULL, 1, NULL, NULL));
    REFUSE(tarn_run_predict_data, tarn_run_predict_data(run, "nosuch", 1, receive, NULL));
    REFUSE(tarn_run_load_image, tarn_run_load_image(NULL, "x.png", &loaded));
    REFUSE(tarn_run_load_image, tarn_run_load_image(run, NULL, &loaded));
    REFUSE(tarn_run_load_image, tarn_run_load_image(run, "/nosuch.png", &loaded));
    REFUSE(tarn_run_load_image, tarn_run_load_image(run, "/nosuch.png", NULL));
    REFUSE(tarn_run_predict, tarn_run_predict(NULL, &whole, p));
    REFUSE(tarn_run_predict, tarn_run_predict(run, NULL, p));
    REFUSE(tarn_run_predict, tarn_run_predict(run, &none, p));
    REFUSE(tarn_run_predict, tarn_run_predict(run, &whole, NULL));
    REFUSE(tarn_run_predict, tarn_run_predict(run, &i32, p));
    REFUSE(tarn_run_predict, tarn_run_predict(run, &flat, p));
    ACCEPT(tarn_run_predict(run, &whole, p));
    tarn_regression_evaluation errors;
    REFUSE(tarn_run_encoder, tarn_run_encoder(NULL));
    assert_null(tarn_run_encoder(run)); /* no table */
    REFUSE(tarn_run_evaluate_regression, tarn_run_evaluate_regression(NULL, NULL, 1, &errors));
    REFUSE(tarn_run_evaluate_regression, tarn_run_evaluate_regression(run, NULL, 1, NULL));
    REFUSE(tarn_run_evaluate_regression, tarn_run_evaluate_regression(run, NULL, 0, &errors));
    REFUSE(tarn_run_evaluate_regression, tarn_run_evaluate_regression(run, NULL, 1, &errors));
    REFUSE(tarn_run_predict_table, tarn_run_predict_table(NULL, "x.csv", write_nothing, NULL, NULL));
    REFUSE(tarn_run_predict_table, tarn_run_predict_table(run, NULL, write_nothing, NULL, NULL));
    REFUSE(tarn_run_predict_table, tarn_run_predict_table(run, "x.csv", NULL, NULL, NULL));
    REFUSE(tarn_run_predict_table, tarn_run_predict_table(run, "x.csv", write_nothing, NULL, NULL));
    ACCEPT(tarn_run_close(NULL), 0);
    tarn_run_close(run);
}

static void evaluations(void **state)
{
    (void)state;
    tarn_evaluation e;
    tarn_tensor *fields[2];
    tarn_module *model = tarn_model_mlp(784, NULL, 0, 10, CPU), *nothing = tarn_activation(TARN_RELU),
                *small = tarn_model_mlp(784, NULL, 0, 3, CPU);
    tarn_dataset *digits = tarn_dataset_digits(20, 1);
    tarn_loader *loader = tarn_loader_new(digits, &(tarn_loader_options){.batch_size = 8, .normalize = true});
    REFUSE(tarn_evaluate, tarn_evaluate(NULL, loader, 10, &e, NULL, NULL));
    REFUSE(tarn_evaluate, tarn_evaluate(model, NULL, 10, &e, NULL, NULL));
    REFUSE(tarn_evaluate, tarn_evaluate(model, loader, 10, NULL, NULL, NULL));
    REFUSE(tarn_evaluate, tarn_evaluate(model, loader, 0, &e, NULL, NULL));
    REFUSE(tarn_evaluate, tarn_evaluate(nothing, loader, 10, &e, NULL, NULL));
    REFUSE(tarn_evaluate, tarn_evaluate(small, loader, 3, &e, NULL, NULL)); /* labels beyond the classes */
    tarn_loader_seek(loader, (tarn_loader_state){0, 0});
    assert_true(tarn_loader_next(loader, fields));
    REFUSE(tarn_evaluate, tarn_evaluate(model, loader, 10, &e, NULL, NULL)); /* in the middle of an epoch */
    tarn_loader_free(loader);
    tarn_dataset_free(digits);
    tarn_module_free(model);
    tarn_module_free(nothing);
    tarn_module_free(small);
}

/* ---- files of a run that say something else ---------------------------------------------------------------------- */

/* Every file of the run cut at some places, and with bytes changed: an error or a model, never anything worse. */
static void damaged_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "trainer.json", "best.safetensors", "optimizer.safetensors",
                                        "metrics.jsonl"};
    uint64_t random = test_seed(11);
    make_run("damaged");
    int rounds = getenv("TARN_TEST_LONG") ? 2000 : 60, refused = 0;
    for (int round = 0; round < rounds; round++) {
        char path[1200];
        size_t count;
        snprintf(path, sizeof(path), "%s/%s", scratch("damaged"), names[round % 5]);
        char *text = get_file(path, &count), *worse = malloc(count + 1);
        memcpy(worse, text, count);
        size_t left = random_below(&random, 2) ? count : (size_t)random_below(&random, (int64_t)count + 1);
        if (left == count && count > 0)
            worse[random_below(&random, (int64_t)(count < 600 ? count : 600))] ^=
                (char)(1 + random_below(&random, 255));
        put_file(path, worse, left);
        tarn_run *run = tarn_run_open(scratch("damaged"), CPU);
        refused += tarn_failed();
        tarn_clear_error();
        tarn_run_close(run);
        tarn_trainer *trainer = tarn_trainer_resume(scratch("damaged"), NULL);
        tarn_clear_error();
        tarn_trainer_free(trainer);
        put_file(path, text, count);
        free(text);
        free(worse);
    }
    assert_true(refused > rounds / 10);
}

#define refusing(test) cmocka_unit_test_setup_teardown(test, open_refusals, close_refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {
        refusing(options), refusing(files),       refusing(trainers),
        refusing(runs),    refusing(evaluations), refusing(damaged_runs),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_data.c: a run's data: finite values, unchanged when the run is resumed, and of the same dtype when its model is
 * used. */
#include "support/files.h"

#define CPU tarn_device_cpu()

enum { COUNT = 60, SIDE = 4 };

/* A .npy file, version 1.0, of little-endian elements; its path stays valid. */
static const char *write_npy(const char *name, const char *type, const char *shape, const void *elements, size_t count)
{
    static char file[1 << 16];
    int head = snprintf(file + 10, 118, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    memset(file + 10 + head, ' ', (size_t)(118 - head));
    file[127] = '\n';
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(file + 128, elements, count);
    return write_file(name, file, 128 + count);
}

typedef struct images {
    float real[COUNT][SIDE * SIDE]; /* from 0 to 1 */
    uint8_t bytes[COUNT][SIDE * SIDE];
    int64_t label[COUNT];
} images;

/* Bright and dark ones. */
static images make_images(void)
{
    images all;
    uint64_t random = 7;
    for (int i = 0; i < COUNT; i++) {
        all.label[i] = i % 2;
        for (int k = 0; k < SIDE * SIDE; k++) {
            all.bytes[i][k] = (uint8_t)(random_below(&random, 128) + (i % 2 ? 127 : 0));
            all.real[i][k] = (float)all.bytes[i][k] / 255;
        }
    }
    return all;
}

/* "npy:REAL,LABELS" or "npy:BYTES,LABELS" */
static void name_images(const images *all, bool real, const char *name, char *data, size_t size)
{
    char file[2][64];
    snprintf(file[0], sizeof(file[0]), "%s-x.npy", name);
    snprintf(file[1], sizeof(file[1]), "%s-y.npy", name);
    snprintf(data, size, "npy:%s",
             real ? write_npy(file[0], "<f4", "60, 1, 4, 4", all->real, sizeof(all->real))
                  : write_npy(file[0], "|u1", "60, 1, 4, 4", all->bytes, sizeof(all->bytes)));
    size_t used = strlen(data);
    snprintf(data + used, size - used, ",%s", write_npy(file[1], "<i8", "60,", all->label, sizeof(all->label)));
}

static tarn_train_options options_of(const images *all, bool real, const char *name)
{
    tarn_train_options options = {.model = "mlp",
                                  .mlp_sizes = {8},
                                  .mlp_size_count = 1,
                                  .epochs = 20,
                                  .lr = 0.05,
                                  .batch_size = 18,
                                  .device = "cpu"};
    name_images(all, real, name, options.data, sizeof(options.data));
    snprintf(options.out, sizeof(options.out), "%s", scratch(name));
    return options;
}

static void train(const tarn_train_options *options)
{
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static void numbers_that_are_not_finite_are_refused_with_their_place(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        images all = make_images();
        all.real[17][5] = k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY;
        tarn_train_options options = options_of(&all, true, "holes");
        assert_null(tarn_trainer_new(&options));
        assert_non_null(strstr(tarn_error(), "holes-x.npy"));
        assert_error(TARN_ERROR_FORMAT, "sample 17, element 5 is not finite");
    }
}

static void a_run_is_resumed_with_the_data_it_began_with(void **state)
{
    (void)state;
    images all = make_images(), other = all;
    tarn_train_options options = options_of(&all, false, "again");
    const tarn_train_options more = {.epochs = 25};
    train(&options);
    other.bytes[31][3] ^= 1;
    name_images(&other, false, "again", options.data, sizeof(options.data));
    assert_null(tarn_trainer_resume(options.out, &more));
    assert_error(TARN_ERROR_FORMAT, "is not the data that the run was started with");
    other = all;
    other.label[2] = 1;
    name_images(&other, false, "again", options.data, sizeof(options.data));
    assert_null(tarn_trainer_resume(options.out, &more));
    assert_error(TARN_ERROR_FORMAT, "is not the data that the run was started with");
    name_images(&all, false, "again", options.data, sizeof(options.data));
    tarn_trainer *trainer = tarn_trainer_resume(options.out, &more);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
}

/* config.json of a run as it was before it noted its data. */
static void make_older(const char *folder)
{
    char path[1200], name[1200];
    size_t count;
    snprintf(path, sizeof(path), "%s/config.json", folder);
    drop_checksums(path);
    char *text = get_file(path, &count), *from = strstr(text, "\"training_samples\""),
         *to = strstr(text, "\"can_be_mirrored\"");
    assert_true(from && to && from < to);
    memmove(from, to, count - (size_t)(to - text));
    snprintf(name, sizeof(name), "%s/config.json", strrchr(folder, '/') + 1);
    write_file(name, text, count - (size_t)(to - from));
    free(text);
}

static void a_run_without_a_data_hash_resumes(void **state)
{
    (void)state;
    images all = make_images();
    tarn_train_options options = options_of(&all, false, "older");
    train(&options);
    make_older(options.out);
    for (int64_t epochs = 21; epochs < 23; epochs++) { /* the second time from what the first has written */
        tarn_trainer *trainer = tarn_trainer_resume(options.out, &(tarn_train_options){.epochs = epochs});
        if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
            fail_msg("%s", tarn_error());
        tarn_trainer_free(trainer);
    }
}

/* Resumes with the data at another path, and once more without naming it. */
static void resume_with(const char *folder, const char *data, int64_t steps)
{
    tarn_train_options changes = {.steps = steps};
    snprintf(changes.data, sizeof(changes.data), "%s", data);
    for (int i = 0; i < 2; i++) {
        tarn_trainer *trainer = tarn_trainer_resume(folder, &changes);
        if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
            fail_msg("%s", tarn_error());
        tarn_trainer_free(trainer);
        changes = (tarn_train_options){.steps = steps + 1};
    }
}

static void a_run_is_resumed_with_the_new_path_of_its_data(void **state)
{
    (void)state;
    images all = make_images(), other = all;
    tarn_train_options options = options_of(&all, false, "before"), changes = {.epochs = 21};
    train(&options);
    other.bytes[9][9] ^= 8;
    name_images(&other, false, "elsewhere", changes.data, sizeof(changes.data));
    assert_null(tarn_trainer_resume(options.out, &changes));
    assert_error(TARN_ERROR_FORMAT, "is not the data that the run was started with");
    snprintf(changes.data, sizeof(changes.data), "digits:60");
    assert_null(tarn_trainer_resume(options.out, &changes));
    assert_error(TARN_ERROR_SHAPE, "was trained on [1, 4, 4]");
    name_images(&all, false, "elsewhere", changes.data, sizeof(changes.data));
    assert_int_equal(remove(scratch("before-x.npy")), 0);
    resume_with(options.out, changes.data, 70);
    make_older(options.out);
    name_images(&all, false, "third", changes.data, sizeof(changes.data));
    assert_null(tarn_trainer_resume(options.out, &changes));
    assert_error(TARN_ERROR_ARGUMENT, "data cannot be changed");
}

static void a_language_model_resumes_with_its_text_moved(void **state)
{
    (void)state;
    static const char text[] = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
                               "fifteen sixteen seventeen eighteen";
    tarn_train_options options = {.layers = 1,
                                  .heads = 1,
                                  .hidden_size = 8,
                                  .context = 4,
                                  .batch_size = 2,
                                  .steps = 3,
                                  .device = "cpu"},
                       changes = {.steps = 5};
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("here.txt", text));
    snprintf(options.out, sizeof(options.out), "%s", scratch("moved"));
    train(&options);
    assert_int_equal(remove(scratch("here.txt")), 0);
    snprintf(changes.data, sizeof(changes.data), "text:%s",
             write_text("there.txt", "one two three four five six seven eight nine ten eleven twelve thirteen"));
    assert_null(tarn_trainer_resume(options.out, &changes));
    assert_error(TARN_ERROR_FORMAT, "is not the text that the run was started with");
    snprintf(changes.data, sizeof(changes.data), "text:%s", write_text("there.txt", text));
    resume_with(options.out, changes.data, 5);
    snprintf(changes.data, sizeof(changes.data), "digits");
    assert_null(tarn_trainer_resume(options.out, &changes));
    assert_error(TARN_ERROR_ARGUMENT, "is not text");
}

/* Rows that came later. */
static void a_table_that_has_grown_is_other_data(void **state)
{
    (void)state;
    static const char rows[] = "1,0,0\n2,1,1\n3,0,0\n4,1,1\n5,0,0\n6,1,1\n7,0,0\n8,1,1\n9,0,0\n10,1,1\n";
    char grown[sizeof(rows) + 16];
    tarn_train_options options = {.epochs = 2, .batch_size = 3, .device = "cpu"};
    snprintf(options.data, sizeof(options.data), "csv:%s", write_text("table.csv", rows));
    snprintf(options.out, sizeof(options.out), "%s", scratch("table"));
    train(&options);
    snprintf(grown, sizeof(grown), "%s11,0,7\n", rows);
    write_text("table.csv", grown);
    assert_null(tarn_trainer_resume(options.out, &(tarn_train_options){.epochs = 3}));
    assert_error(TARN_ERROR_FORMAT, "it had 9 training samples, and has 10");
}

/* 0.5 of a byte's 255 is a light grey, or nearly black. */
static void bytes_and_real_numbers_are_not_mixed_up(void **state)
{
    (void)state;
    images all = make_images();
    tarn_train_options of_bytes = options_of(&all, false, "bytes"), of_reals = options_of(&all, true, "reals");
    train(&of_bytes);
    train(&of_reals);
    tarn_run *eights = tarn_run_open(of_bytes.out, CPU), *floats = tarn_run_open(of_reals.out, CPU);
    tarn_evaluation found;
    assert_true(tarn_run_evaluate(eights, of_bytes.data, 16, &found, NULL, NULL) && found.accuracy > 0.9);
    assert_true(tarn_run_evaluate(floats, of_reals.data, 16, &found, NULL, NULL) && found.accuracy > 0.9);
    assert_false(tarn_run_evaluate(eights, of_reals.data, 16, &found, NULL, NULL));
    assert_error(TARN_ERROR_DTYPE, "samples of the data are f32, but the model was trained on u8");
    assert_false(tarn_run_evaluate(floats, of_bytes.data, 16, &found, NULL, NULL));
    assert_error(TARN_ERROR_DTYPE, "samples of the data are u8, but the model was trained on f32");
    double probability[2];
    tarn_array sample = {.data = all.bytes[1], .dtype = TARN_U8, .shape = TARN_SHAPE(1, SIDE, SIDE)};
    assert_true(tarn_run_predict(eights, &sample, probability) && probability[1] > 0.5);
    assert_false(tarn_run_predict(floats, &sample, probability));
    assert_error(TARN_ERROR_DTYPE, "the sample is u8");
    all.label[4] = 2;
    name_images(&all, false, "more", of_bytes.data, sizeof(of_bytes.data));
    assert_false(tarn_run_evaluate(eights, of_bytes.data, 16, &found, NULL, NULL));
    assert_error(TARN_ERROR_FORMAT, "a sample has the label 2, but the model has 2 classes");
    assert_false(tarn_run_evaluate(eights, "text:some.txt", 16, &found, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "is text; a classifier needs");
    tarn_run_close(eights);
    tarn_run_close(floats);
}

static void images_too_small_to_be_moved_are_not_augmented(void **state)
{
    (void)state;
    images all = make_images();
    tarn_train_options options = options_of(&all, false, "still");
    options.augment = true;
    assert_null(tarn_trainer_new(&options));
    assert_error(TARN_ERROR_ARGUMENT,
                 "augment shifts images by up to 1/8 of their height; it must be at least 8 pixels, and is 4");
}

static void an_option_given_twice_is_refused(void **state)
{
    (void)state;
    tarn_train_options options = {0};
    assert_false(tarn_train_options_load(&options, write_text("twice.json", "{\"batch-size\": 8, \"batch_size\": 9}")));
    assert_error(TARN_ERROR_ARGUMENT, "batch_size is given twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(numbers_that_are_not_finite_are_refused_with_their_place),
                                       in_scope(a_run_is_resumed_with_the_data_it_began_with),
                                       in_scope(a_run_without_a_data_hash_resumes),
                                       in_scope(a_run_is_resumed_with_the_new_path_of_its_data),
                                       in_scope(a_language_model_resumes_with_its_text_moved),
                                       in_scope(a_table_that_has_grown_is_other_data),
                                       in_scope(bytes_and_real_numbers_are_not_mixed_up),
                                       in_scope(images_too_small_to_be_moved_are_not_augmented),
                                       in_scope(an_option_given_twice_is_refused)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

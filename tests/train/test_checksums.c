/* test_checksums.c: a bit that a disk or a copy turned is found wherever it is: in weights, optimizer state, headers
 * and the records of a run. */
#include <stdlib.h>
#include <tarn/train.h>

#include "support/files.h"

#define CPU tarn_device_cpu()

static void make_run(tarn_train_options *options, const char *folder)
{
    snprintf(options->out, sizeof(options->out), "%s", scratch(folder));
    snprintf(options->device, sizeof(options->device), "cpu");
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static void make_classifier(const char *folder)
{
    make_run(&(tarn_train_options){.model = "mlp",
                                   .data = "digits:60",
                                   .mlp_sizes = {8},
                                   .mlp_size_count = 1,
                                   .batch_size = 20,
                                   .steps = 4,
                                   .eval_every = 2},
             folder);
}

static void make_language_model(const char *folder)
{
    char text[601];
    for (int i = 0; i < 600; i++)
        text[i] = "to be, or not to be.\n"[i % 21];
    text[600] = 0;
    tarn_train_options options = {
        .layers = 1, .heads = 1, .hidden_size = 8, .context = 8, .batch_size = 4, .steps = 3, .eval_every = 3};
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("text.txt", text));
    make_run(&options, folder);
}

/* An error that names the file, and nothing made. */
static void assert_refused(const void *made, const char *name, size_t bit)
{
    const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    if (made || !tarn_failed() || !strstr(tarn_error(), base))
        fail_msg("bit %zu of %s: %s", bit, name, made ? "accepted in silence" : tarn_error());
    tarn_clear_error();
}

typedef void (*use_fn)(const char *folder, const char *name, size_t bit);

static void resume(const char *folder, const char *name, size_t bit)
{
    tarn_trainer *trainer = tarn_trainer_resume(folder, NULL);
    assert_refused(trainer, name, bit);
}

static void open_it(const char *folder, const char *name, size_t bit)
{
    tarn_run *run = tarn_run_open(folder, CPU);
    assert_refused(run, name, bit);
}

/* Turns random bits of a file, one at a time: half of them among its first bytes, where a header is. */
static void turn_bits(const char *run, const char *name, use_fn use, int rounds, uint64_t *random)
{
    char folder[1200], path[1300];
    size_t count;
    snprintf(folder, sizeof(folder), "%s", scratch(run));
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    char *content = get_file(path, &count);
    for (int i = 0; i < rounds; i++) {
        size_t range = i % 2 && count > 700 ? 700 : count, bit = (size_t)random_below(random, (int64_t)(8 * range));
        content[bit / 8] ^= (char)(1u << bit % 8);
        put_file(path, content, count);
        use(folder, name, bit);
        content[bit / 8] ^= (char)(1u << bit % 8);
    }
    put_file(path, content, count);
    free(content);
}

static void no_bit_of_a_checkpoint_can_turn_in_silence(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "trainer.json"};
    uint64_t random = test_seed(22);
    int rounds = getenv("TARN_TEST_LONG") ? 3000 : 150;
    make_classifier("classifier");
    make_language_model("language");
    for (int i = 0; i < 3; i++) {
        turn_bits("classifier", names[i], resume, rounds, &random);
        turn_bits("language", names[i], resume, rounds, &random);
    }
    tarn_trainer *trainer = tarn_trainer_resume(scratch("classifier"), NULL); /* as it was: it goes on */
    assert_ok();
    tarn_trainer_free(trainer);
}

static void nor_one_of_the_weights_that_are_used(void **state)
{
    (void)state;
    uint64_t random = test_seed(23);
    int rounds = getenv("TARN_TEST_LONG") ? 3000 : 150;
    make_classifier("used");
    make_language_model("spoken");
    turn_bits("used", "best.safetensors", open_it, rounds, &random);
    turn_bits("spoken", "best/model.safetensors", open_it, rounds, &random);
    tarn_run *run = tarn_run_open(scratch("spoken"), CPU);
    assert_ok();
    tarn_run_close(run);
}

/* Puts a text in the place of another one in a file of a run. */
static void edit(const char *path, const char *text, const char *other)
{
    size_t count;
    char *content = get_file(path, &count);
    content = realloc(content, count + 1);
    content[count] = 0;
    const char *found = strstr(content, text);
    assert_non_null(found);
    char *changed = malloc(count + strlen(other) + 1);
    size_t head = (size_t)(found - content);
    memcpy(changed, content, head);
    strcpy(changed + head, other);
    strcat(changed, found + strlen(text));
    put_file(path, changed, strlen(changed));
    free(changed);
    free(content);
}

static void an_edited_config_says_how_to_resume(void **state)
{
    (void)state;
    make_classifier("edited");
    edit(scratch("edited/config.json"), "\"lr\": 0.001", "\"lr\": 0.003");
    assert_null(tarn_trainer_resume(scratch("edited"), NULL));
    assert_error_about(TARN_ERROR_FORMAT, "config.json' is damaged", "remove its line \"checksum\"");
    size_t count;
    char *text = get_file(scratch("edited/config.json"), &count), line[80];
    snprintf(line, sizeof(line), "%.*s", 39, strstr(text, "  \"checksum\""));
    free(text);
    edit(scratch("edited/config.json"), line, "");
    tarn_trainer *trainer = tarn_trainer_resume(scratch("edited"), NULL);
    assert_ok();
    tarn_trainer_free(trainer);
}

/* A record of an earlier version has no checksum, and counts. */
static void a_run_of_an_earlier_version_resumes(void **state)
{
    (void)state;
    make_classifier("earlier");
    size_t count;
    char *text = get_file(scratch("earlier/trainer.json"), &count), line[80];
    snprintf(line, sizeof(line), "%.*s", 39, strstr(text, "  \"checksum\""));
    free(text);
    edit(scratch("earlier/trainer.json"), line, "");
    assert_null(tarn_trainer_resume(scratch("earlier"), NULL));
    assert_error_about(TARN_ERROR_FORMAT, "trainer.json", "has no \"checksum\"");
    edit(scratch("earlier/trainer.json"), "\"format\": 2", "\"format\": 1");
    tarn_trainer *trainer = tarn_trainer_resume(scratch("earlier"), NULL);
    assert_ok();
    tarn_trainer_free(trainer);
}

static void a_run_that_lost_its_trainer_json_is_left_alone(void **state)
{
    (void)state;
    size_t before, after;
    make_classifier("lost");
    char *weights = get_file(scratch("lost/model.safetensors"), &before);
    assert_int_equal(remove(scratch("lost/trainer.json")), 0);
    assert_null(tarn_trainer_resume(scratch("lost"), NULL));
    assert_error_about(TARN_ERROR_IO, "has no trainer.json", "restore the file from a copy");
    char *same = get_file(scratch("lost/model.safetensors"), &after);
    assert_int_equal(before, after);
    assert_memory_equal(weights, same, before);
    free(weights);
    free(same);
    static const char *const files[] = {"lost/model.safetensors", "lost/optimizer.safetensors",
                                        "lost/best.safetensors"};
    for (int i = 0; i < 3; i++) { /* what is left is a run that was stopped before its first checkpoint */
        assert_null(tarn_trainer_resume(scratch("lost"), NULL));
        assert_error(TARN_ERROR_IO, "has no trainer.json");
        assert_int_equal(remove(scratch(files[i])), 0);
    }
    tarn_trainer *trainer = tarn_trainer_resume(scratch("lost"), NULL);
    assert_ok();
    tarn_trainer_free(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(no_bit_of_a_checkpoint_can_turn_in_silence),
        in_scope(nor_one_of_the_weights_that_are_used),
        in_scope(an_edited_config_says_how_to_resume),
        in_scope(a_run_of_an_earlier_version_resumes),
        in_scope(a_run_that_lost_its_trainer_json_is_left_alone),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

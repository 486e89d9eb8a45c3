/* test_log.c: the log of runs gets a line whenever a run ends, whatever made it end, and nothing that happens to it
 * harms a run. */
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tarn/train.h>
#include <unistd.h>

#include "base/os/files.h"
#include "support/files.h"

/* What a log said. */
typedef struct seen {
    int count;
    char ends[256], folder[256], device[32];
    tarn_logged_run last; /* its texts are gone */
} seen;

static void note(const tarn_logged_run *run, void *ctx)
{
    seen *s = ctx;
    s->count++;
    strcat(strcat(s->ends, run->end), " ");
    snprintf(s->folder, sizeof(s->folder), "%s", run->folder);
    snprintf(s->device, sizeof(s->device), "%s", run->device);
    s->last = *run;
    assert_true(strlen(run->date) == 20 && run->date[10] == 'T');
    assert_true(run->processor && run->precision && run->data && run->version);
}

static seen read_log(const char *folder)
{
    seen s = {0};
    if (!tarn_runs_read(folder, note, &s))
        fail_msg("%s", tarn_error());
    return s;
}

static tarn_train_options small(const char *out)
{
    tarn_train_options options = {.layers = 1,
                                  .heads = 1,
                                  .hidden_size = 8,
                                  .context = 8,
                                  .batch_size = 4,
                                  .steps = 20,
                                  .eval_every = 10,
                                  .log_every = 5,
                                  .device = "cpu"};
    snprintf(options.data, sizeof(options.data), "text:%s",
             write_text("text.txt", "a text that is long enough to learn from: one, two, three, four, five, six, "
                                    "seven, eight, nine, ten, and so "
                                    "on and on until there is enough of it for a tenth to be kept apart.\n"));
    snprintf(options.out, sizeof(options.out), "%s", out);
    return options;
}

static void stop_at_once(const tarn_train_report *report, void *trainer)
{
    (void)report;
    tarn_trainer_stop(trainer);
}

static bool run(tarn_trainer *trainer, bool stop)
{
    assert_ok();
    bool finished = tarn_trainer_run(trainer, stop ? stop_at_once : NULL, trainer, NULL);
    tarn_trainer_free(trainer);
    return finished;
}

static void every_end_of_a_run_is_a_line(void **state)
{
    (void)state;
    tarn_train_options options = small(scratch("runs/first")), bad = small(scratch("runs/bad/"));
    assert_true(run(tarn_trainer_new(&options), true));
    seen s = read_log(scratch("runs"));
    assert_string_equal(s.ends, "stopped ");
    assert_true(s.last.first_step == 0 && s.last.step == 5 && s.last.steps == 20 && s.last.best_step == 0);
    assert_true(isfinite(s.last.loss) && isnan(s.last.val_loss) && isnan(s.last.best_loss));

    assert_true(run(tarn_trainer_resume(options.out, NULL), false));
    s = read_log(scratch("runs"));
    assert_string_equal(s.ends, "stopped finished ");
    assert_string_equal(s.folder, options.out);
    assert_string_equal(s.device, "cpu");
    assert_true(s.last.first_step == 5 && s.last.step == 20 && s.last.batch_size == 4 && s.last.parameters > 500);
    assert_true(s.last.seconds > 0 &&
                fabs(s.last.seconds_per_1000_steps - s.last.seconds / 15 * 1000) < 1e-6 * s.last.seconds * 1000);
    assert_true(fabs(s.last.seconds_per_epoch - s.last.seconds / 15 * (double)s.last.steps_in_epoch) <
                1e-6 * s.last.seconds * 1000);
    assert_true(isfinite(s.last.val_loss) && isfinite(s.last.best_loss) && isnan(s.last.best_accuracy));

    snprintf(bad.optimizer, sizeof(bad.optimizer), "sgd");
    bad.lr = bad.weight_decay = 1e5;
    assert_false(run(tarn_trainer_new(&bad), false));
    assert_error(TARN_ERROR_ARGUMENT, "not finite"); /* the run's own error is the one that is left */
    assert_string_equal(read_log(scratch("runs")).ends, "stopped finished failed ");
    assert_null(tarn_trainer_new(&options)); /* no run at all */
    tarn_clear_error();
    assert_int_equal(read_log(scratch("runs")).count, 3);
}

static char warnings[4096];
static void hear(tarn_log_level level, const char *text, void *ctx)
{
    (void)level, (void)ctx;
    snprintf(warnings, sizeof(warnings), "%s", text);
}

static void a_log_that_cannot_be_written_is_a_warning(void **state)
{
    (void)state;
    tarn_train_options options = small(scratch("blocked/run"));
    mkdir(scratch("blocked"), 0777);
    mkdir(scratch("blocked/log.jsonl"), 0777);
    tarn_set_log(hear, NULL);
    assert_true(run(tarn_trainer_new(&options), false));
    tarn_set_log(NULL, NULL);
    assert_ok();
    assert_contains(warnings, "was not added to the log of runs");
    assert_contains(warnings, "blocked/log.jsonl");
}

/* A line as the library writes it, to be damaged. */
static char *good_line(size_t *length)
{
    tarn_train_options options = small(scratch("lines/run"));
    assert_true(run(tarn_trainer_new(&options), false));
    return get_file(scratch("lines/log.jsonl"), length);
}

static void damaged_lines_are_named_and_cut_ones_left_out(void **state)
{
    (void)state;
    size_t length;
    seen s = {0};
    char *line = good_line(&length), text[8192];
    snprintf(text, sizeof(text), "%.*s\n%.*s", (int)length, line, 40, line);
    put_file(scratch("lines/log.jsonl"), text, strlen(text));
    assert_int_equal(read_log(scratch("lines")).count, 1);

    tarn_train_options options = small(scratch("lines/other"));
    assert_true(run(tarn_trainer_new(&options), false)); /* gives the cut line an end, and does not mix with it */
    assert_false(tarn_runs_read(scratch("lines"), note, &s));
    assert_error(TARN_ERROR_FORMAT, "log.jsonl line 3");

    static const char *const bad[] = {"[]\n", "{}\n", "{\"date\": 5}\n", "null\n", "\xFF\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_file(scratch("lines/log.jsonl"), bad[i], strlen(bad[i]));
        assert_false(tarn_runs_read(scratch("lines"), note, &s));
        assert_error(TARN_ERROR_FORMAT, "log.jsonl line 1");
    }
    put_file(scratch("lines/log.jsonl"), "", 0);
    assert_int_equal(read_log(scratch("lines")).count, 0);
    free(line);
}

/* Several programs at once: every line is whole. */
static void lines_of_several_programs_do_not_mix(void **state)
{
    (void)state;
    enum { PROGRAMS = 4, LINES = 40, LENGTH = 700 };
    const char *path = scratch("together.jsonl");
    for (int i = 0; i < PROGRAMS; i++)
        if (fork() == 0) {
            char line[LENGTH];
            memset(line, 'a' + i, LENGTH - 1);
            line[LENGTH - 1] = '\n';
            bool good = true;
            for (int k = 0; good && k < LINES; k++)
                good = tarn__file_append("test", path, line, LENGTH);
            _exit(!good);
        }
    for (int i = 0; i < PROGRAMS; i++) {
        int status;
        assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    size_t count;
    char *text = get_file(path, &count);
    assert_int_equal(count, PROGRAMS * LENGTH * LINES);
    for (size_t at = 0; at < count; at += LENGTH)
        for (size_t k = 0; k < LENGTH; k++)
            assert_true(text[at + k] == (k == LENGTH - 1 ? '\n' : text[at]));
    free(text);
}

static void bad_input(void **state)
{
    (void)state;
    seen s = {0};
    char long_name[5000];
    memset(long_name, 'x', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = 0;
    const char *const folders[] = {NULL, "", "/nosuch", long_name};
    for (int i = 0; i < 4; i++) {
        assert_false(tarn_runs_read(folders[i], note, &s));
        assert_true(tarn_error_code() == (i == 2 ? TARN_ERROR_IO : TARN_ERROR_ARGUMENT));
        tarn_clear_error();
    }
    assert_false(tarn_runs_read(scratch("runs"), NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "function is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(every_end_of_a_run_is_a_line),
        in_scope(a_log_that_cannot_be_written_is_a_warning),
        in_scope(damaged_lines_are_named_and_cut_ones_left_out),
        in_scope(lines_of_several_programs_do_not_mix),
        in_scope(bad_input),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

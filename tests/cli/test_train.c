/* test_train.c: `tarn train`, `tarn eval` and `tarn predict`, end to end: output, exit status, and the folders of
 * stopped and killed runs. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"

#define SMALL \
    "--data digits:400 --model mlp --mlp-sizes 16 --batch-size 20 --epochs 4 --eval-every 9 --log-every 3 --lr 0.01 " \
    "--device cpu"

static bool is_there(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

static void assert_same_model(const char *folder, const char *other)
{
    static const char *const names[] = {"model.safetensors", "best.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 3; i++) {
        char path[2][1200];
        size_t count[2];
        snprintf(path[0], sizeof(path[0]), "%s/%s", folder, names[i]);
        snprintf(path[1], sizeof(path[1]), "%s/%s", other, names[i]);
        char *a = get_file(path[0], &count[0]), *b = get_file(path[1], &count[1]);
        if (count[0] != count[1] || memcmp(a, b, count[0]) != 0)
            fail_msg("%s and %s differ", path[0], path[1]);
        free(a);
        free(b);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void wrong_calls_say_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *text;
        int status;
    } calls[] = {
        {"train --lr x", "--lr: 'x' is not a number", 2},
        {"train --lr 0", "--lr: '0' is out of range", 2},
        {"train --lr", "--lr needs a value", 2},
        {"train --lr=", "--lr: the value is empty; expected", 2},
        {"train --augment=yes", "takes no value", 2},
        {"train --epocs 3", "did you mean --epochs?", 2},
        {"train --sizes 3", "--sizes is not an option of this command", 2},
        {"train --learning_rate 1", "unknown option --learning_rate; did you mean --lr?", 2},
        {"train --modle gpt2", "did you mean --model?", 2},
        {"train -lr 1", "unknown option -lr; did you mean --lr?", 2},
        {"train --n_layer 4", "did you mean --layers?", 2},
        {"train --n_head=4", "unknown option --n_head; did you mean --heads?", 2},
        {"train --n_embd 4", "did you mean --hidden-size?", 2},
        {"train --block_size 4", "did you mean --context?", 2},
        {"train --batch_size 4", "did you mean --batch-size?", 2},
        {"train --max_iters 4", "did you mean --steps?", 2},
        {"train --config x.json", "give it without a flag", 2},
        {"train --model gpt-2", "--model: 'gpt-2' must be one of mlp|", 2},
        {"train --model gpt-2", "did you mean 'gpt2'?", 2},
        {"train --model gpt2-xl", "did you mean 'gpt2-1.5b'?", 2},
        {"train --data minst:/nosuch --dry-run", "did you mean 'mnist'?", 2},
        {"train --model some-org/some-model --data text:/nosuch --dry-run", "tarn pull some-org/some-model", 1},
        {"bench train --batch-size 4", "unknown option --batch-size; did you mean --batch?", 2},
        {"train --optimizer adagrad", "must be one of sgd|adam|adamw", 2},
        {"train --batch-size 1.5", "--batch-size: '1.5' is not an integer", 2},
        {"train --data nosuch:x --dry-run", "unknown data", 2},
        {"train --data mnist:/nosuch --dry-run", "can be read in /nosuch", 1},
        {"train --momentum 0.9 --dry-run --data digits:50", "tarn train: --momentum applies to sgd only", 2},
        {"train --beta2 0.9 --optimizer sgd --dry-run --data digits:50", "tarn train: --beta2 applies to adam", 2},
        {"train --model mlp --data digits:50 --dry-run --device nosuch", "nosuch", 1},
        {"train --threads 999", "must be from 0 to 256", 2},
        {"train /nosuch.json", "/nosuch.json", 2},
        {"train --resume /nosuch", "/nosuch", 1},
        {"train --resume /nosuch --patience 0", "patience: a resumed run cannot be set to 0", 2},
        {"train --data digits:3 --dry-run", "train: 'digits:3'", 2},
        {"train --resume /nosuch --lr 1 x", "unexpected argument 'x'", 2},
        {"eval", "a run folder is missing", 2},
        {"eval --json /nosuch", "a run folder is missing before the options", 2},
        {"runs --compare", "--compare needs from 2 to 8 run folders", 2},
        {"runs --compare a", "--compare needs from 2 to 8 run folders", 2},
        {"runs --json --compare a b", "--json does not apply to it", 2},
        {"runs --out page.html", "--out applies to --compare only", 2},
        {"runs --compare /nosuch/a /nosuch/b", "/nosuch/a/config.json", 1},
        {"runs --json /nosuch", "unexpected argument '/nosuch'; give it before the options", 2},
        {"eval /nosuch", "/nosuch", 1},
        {"eval a b", "unexpected argument 'b'", 2},
        {"predict", "a run folder is missing", 2},
        {"predict run", "an image or a table is missing", 2},
        {"predict /nosuch image.png", "/nosuch", 1},
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        expect_command(command_line("%s 2>&1", calls[i].arguments), calls[i].status, calls[i].text);
    expect_command("train --help", 0, "--label-smoothing X");
    expect_command("help train", 0, "usage: tarn train [CONFIG.json] [OPTION...]");
    expect_command("eval --help", 0, "usage: tarn eval RUN [OPTION...]");
    expect_command("predict --help", 0, "usage: tarn predict RUN IMAGE|FOLDER...|ROWS.csv [OPTION...]");
}

static void a_dry_run_says_what_it_would_do_and_writes_nothing(void **state)
{
    (void)state;
    expect_command(command_line("train " SMALL " --out %s --dry-run", scratch("dry")), 0, "12730 trained, 0 frozen");
    assert_non_null(strstr(command_output, "cpu"));
    assert_non_null(strstr(command_output, "400 training samples of 1 × 28 × 28, 80 validation samples, 10 classes"));
    assert_non_null(strstr(command_output, "memory      about"));
    assert_null(strstr(command_output, "chosen by auto"));
    expect_command(command_line("train --data digits:50 --device auto --out %s --dry-run 2>&1", scratch("dry")), 0,
                   "; chosen by auto");
    assert_null(strstr(command_output, "libtarn")); /* the reasons are in `tarn info` */
    assert_null(strstr(command_output, "not here"));
    assert_false(is_there(scratch("dry")));
}

static void a_configuration_is_read_and_flags_come_after_it(void **state)
{
    (void)state;
    const char *file = write_text(
        "config.json",
        "{\"data\": \"digits:100\", \"model\": \"mlp\", \"epochs\": 3, \"batch_size\": 10, \"device\": \"cpu\"}");
    expect_command(command_line("train %s --dry-run --out %s", file, scratch("configured")), 0,
                   "0 to 30, 10 samples per step, 10 steps per epoch");
    expect_command(command_line("train %s --dry-run --epochs 2 --out %s", file, scratch("configured")), 0, "0 to 20, ");
    file = write_text("wrong.json", "{\"epocs\": 3}");
    expect_command(command_line("train %s 2>&1", file), 2, "unknown option 'epocs'");
    assert_non_null(strstr(command_output, "wrong.json"));
    assert_non_null(strstr(command_output, "did you mean 'epochs'?"));
    expect_command(command_line("train %s 2>&1", write_text("wrong.json", "{\"learning_rate\": 3}")), 2,
                   "unknown option 'learning_rate'; did you mean 'lr'?");
    expect_command(command_line("train %s 2>&1", write_text("wrong.json", "{\"n_embd\": 3}")), 2,
                   "did you mean 'hidden_size'?");
    expect_command(command_line("train %s --resume x 2>&1", write_text("good.json", "{}")), 2, "remove '");
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static void a_run_prints_plain_lines_in_a_pipe_and_objects_as_json(void **state)
{
    (void)state;
    expect_command(command_line("train " SMALL " --out %s", scratch("plain")), 0, "step 80 of 80  epoch 4 of 4  loss ");
    assert_null(strpbrk(command_output, "\r\033"));
    assert_non_null(strstr(command_output, "best: "));
    assert_non_null(strstr(command_output, " images/s  validation ")); /* all that is known, as of a language model */
    assert_non_null(strstr(command_output, "iB  0 s left\n"));
    int lines = command_objects(command_line("train " SMALL " --json --out %s", scratch("json")));
    assert_true(lines > 20);
    assert_non_null(strstr(command_output, "{\"event\": \"plan\", \"model\": \"mlp\""));
    assert_non_null(strstr(command_output, "{\"event\": \"evaluation\", \"step\": 9, \"epoch\": 1, "));
    assert_non_null(strstr(command_output, "{\"event\": \"finished\", \"step\": 80, "));
    assert_non_null(strstr(command_output, "\"val_loss\": null, \"mfu\": null, \"utilization\": "));
    assert_non_null(strstr(command_output, "\"eta\": 0.0"));
    assert_same_model(scratch("plain"), scratch("json"));
    assert_int_equal(
        run_command(command_line("train " SMALL " --quiet --threads 1 --workers 2 --out %s", scratch("quiet"))), 0);
    assert_string_equal(command_output, "");
    assert_same_model(scratch("plain"), scratch("quiet"));
    expect_command(command_line("train " SMALL " --out %s 2>&1", scratch("plain")), 1, "already exists");
}

/* 45 training samples of 3 values, 2 classes. */
static const char *make_table(void)
{
    static char path[600];
    char text[4096];
    int used = 0;
    for (int i = 0; i < 50; i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%d.5,%d,0.25,%d\n", i % 7, i % 2 ? 3 : -3, i % 2);
    snprintf(path, sizeof(path), "%s", write_text("table.csv", text));
    return path;
}

static int occurrences(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        count++;
    return count;
}

static void the_unit_of_the_speed_follows_the_data(void **state)
{
    (void)state;
    char path[600];
    size_t length;
    expect_command(command_line("train --data csv:%s --device cpu --epochs 30 --out %s", make_table(), scratch("rows")),
                   0, " rows/s");
    assert_null(strstr(command_output, "images"));
    snprintf(path, sizeof(path), "%s", scratch("rows/metrics.jsonl"));
    char *metrics = get_file(path, &length), *page;
    assert_contains(metrics, "\"rows_per_second\": ");
    snprintf(path, sizeof(path), "%s", scratch("rows/report.html"));
    page = get_file(path, &length);
    assert_contains(page, "Rows per second");
    assert_null(strstr(page, "mages per second"));
    free(metrics);
    free(page);
    assert_true(command_objects(command_line("train --data csv:%s --device cpu --json --out %s", make_table(),
                                             scratch("row_objects"))) > 2);
    assert_contains(command_output, "\"rows_per_second\": ");
    expect_command(command_line("train --data digits:400 --device cpu --epochs 1 --out %s", scratch("images")), 0,
                   " images/s");
}

static void mistakes_are_those_of_classifiers(void **state)
{
    (void)state;
    char folder[600];
    snprintf(folder, sizeof(folder), "%s", scratch("numbers"));
    expect_command(
        command_line("train --data csv:%s --task regress --device cpu --epochs 1 --out %s", make_table(), folder), 0,
        "RMSE");
    expect_command(command_line("eval %s --confusion 2>&1", folder), 2,
                   "tarn eval: --confusion applies to classifiers only");
    expect_command(command_line("eval %s --mistakes 3 2>&1", folder), 2,
                   "tarn eval: --mistakes applies to classifiers only");
}

/* One step per epoch. */
static void short_epochs_are_judged_together(void **state)
{
    (void)state;
    expect_command(
        command_line("train --data csv:%s --device cpu --epochs 45 --out %s", make_table(), scratch("together")), 0,
        "step 45  epoch 45 of 45  validation");
    assert_int_equal(occurrences(command_output, "validation loss "), 4); /* after 20, 40 and 45 steps, and the best */
    assert_int_equal(occurrences(command_output, "lr "), 3);
    expect_command(
        command_line("train --data csv:%s --device cpu --epochs 2000 --out %s", make_table(), scratch("many")), 0, "");
    assert_int_equal(occurrences(command_output, "validation loss "), 51);
    expect_command(command_line("train --data csv:%s --device cpu --epochs 5 --eval-every 1 --out %s", make_table(),
                                scratch("each")),
                   0, "");
    assert_int_equal(occurrences(command_output, "validation loss "), 6);
}

/* Starts a run that writes to a file; returns its process. */
static pid_t start(const char *arguments, const char *log)
{
    const char *command = getenv("TARN_COMMAND");
    if (!command)
        skip();
    char shell_line[4096];
    snprintf(shell_line, sizeof(shell_line), "exec \"%s\" %s > %s 2>&1", command, arguments, log);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", shell_line, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static void sleep_ms(int64_t milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, (long)(milliseconds % 1000) * 1000000}, NULL);
}

/* Waits until the run's folder holds a line of metrics: the run has started. */
static void wait_for_metrics(const char *folder, pid_t child)
{
    char path[1200];
    struct stat about = {0};
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    for (int i = 0; i < 3000 && !(stat(path, &about) == 0 && about.st_size > 0) && waitpid(child, NULL, WNOHANG) == 0;
         i++)
        sleep_ms(10);
    assert_true(about.st_size > 0);
}

/* A run long enough to be stopped; shorter under a sanitizer, which makes drawing digits many times slower. */
static const char *long_run(const char *folder)
{
    return command_line(
        "train --data digits:%d --steps %d --model mlp --mlp-sizes 16 --batch-size 10 --eval-every 50 --log-every "
        "5 --lr 0.003 --device cpu --out %s",
        getenv("TARN_TEST_QUICK") ? 200 : 1000, getenv("TARN_TEST_QUICK") ? 200 : 500, folder);
}

/* A run that gets a signal twice at once, as by `timeout`: the program, then its group. Returns its status. */
static int stop_run(const char *folder, const char *log, int number)
{
    int status;
    pid_t child = start(long_run(folder), log);
    wait_for_metrics(folder, child);
    kill(child, number);
    sleep_ms(2);
    kill(child, number);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_signal_saves_and_stops_and_the_run_resumes_bitwise_identically(void **state)
{
    (void)state;
    const int signals[] = {SIGTERM, SIGINT};
    expect_command(long_run(scratch("unstopped")), 0, "best: ");
    for (int i = 0; i < 2; i++) {
        char name[32], log[600], folder[600];
        int status = SIGKILL;
        /* signals that this process, or the run, was too slow for are not at once, and end the run */
        for (int attempt = 0; attempt < 4 && !WIFEXITED(status); attempt++) {
            snprintf(name, sizeof(name), "signal%d-%d", i, attempt);
            snprintf(folder, sizeof(folder), "%s", scratch(name));
            snprintf(log, sizeof(log), "%s.log", folder);
            status = stop_run(folder, log, signals[i]);
        }
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        size_t count;
        char *text = get_file(log, &count);
        assert_non_null(strstr(text, "checkpoint saved; resume with: tarn train --resume"));
        assert_int_equal(occurrences(text, "stopping after this step; press again to stop now\n"), 1);
        free(text);
        expect_command(command_line("train --resume %s", folder), 0, "resuming mlp");
        assert_same_model(scratch("unstopped"), folder);
    }
}

/* Fills a pipe to its last byte, so that a writer blocks. Returns its end for writing. */
static int fill_pipe(const char *path)
{
    static const char blanks[4096];
    int end = open(path, O_WRONLY | O_NONBLOCK);
    assert_true(end >= 0);
    for (size_t count = sizeof(blanks); count > 0; count /= 2)
        while (write(end, blanks, count) > 0)
            continue;
    return end;
}

/* SIGTERM every 20 ms until the run ends; returns its status and duration. Killed after 20 s. */
static int stop_again_and_again(pid_t child, double *seconds)
{
    struct timespec begin, now;
    int status, ended;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        kill(child, SIGTERM);
        sleep_ms(20);
        ended = waitpid(child, &status, WNOHANG);
        clock_gettime(CLOCK_MONOTONIC, &now);
        *seconds = (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) * 1e-9;
    } while (ended == 0 && *seconds < 20);
    if (ended == 0) {
        kill(child, SIGKILL);
        ended = waitpid(child, &status, 0);
    }
    assert_int_equal(ended, child);
    return status;
}

/* The output pipe is full, so the stopping run blocks on its last message. */
static void signals_of_one_second_are_one_request_and_the_next_ends_the_run(void **state)
{
    (void)state;
    char folder[600], output[600];
    double seconds;
    snprintf(folder, sizeof(folder), "%s", scratch("impatient"));
    snprintf(output, sizeof(output), "%s.pipe", folder);
    assert_int_equal(mkfifo(output, 0600), 0);
    pid_t child = start(
        command_line(
            "train --data digits:200 --steps 1000000 --model mlp --mlp-sizes 16 --log-every 5 --device cpu --out %s",
            folder),
        output);
    int reader = open(output, O_RDONLY | O_NONBLOCK);
    wait_for_metrics(folder, child);
    int writer = fill_pipe(output), status = stop_again_and_again(child, &seconds);
    close(reader);
    close(writer);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
    assert_true(seconds > 1);
}

static void a_killed_run_goes_on_from_its_last_checkpoint_bit_for_bit(void **state)
{
    (void)state;
    uint64_t random = test_seed(4);
    int rounds = getenv("TARN_TEST_LONG") ? 100 : 4;
    char folder[600], log[600];
    snprintf(folder, sizeof(folder), "%s", scratch("killed"));
    snprintf(log, sizeof(log), "%s.log", folder);
    pid_t child = start(long_run(folder), log);
    wait_for_metrics(folder, child);
    for (int i = 0; i < rounds; i++) {
        sleep_ms(random_below(&random, 80));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        child = start(command_line("train --resume %s", folder), log);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_same_model(scratch("unstopped"), folder);
}

static void a_loss_that_is_not_finite_is_a_failure_that_names_step_and_layer(void **state)
{
    (void)state;
    expect_command(
        command_line("train --data digits:100 --model mlp --mlp-sizes 16 --batch-size 10 --optimizer sgd --lr 1000 "
                     "--weight-decay 1000 --epochs 20 "
                     "--device cpu --out %s 2>&1",
                     scratch("nan")),
        1, "is not finite");
    assert_non_null(strstr(command_output, "step "));
    assert_true(is_there(scratch("nan/trainer.json")));
}

/* The second run diverged. */
static void the_log_of_runs_is_a_table(void **state)
{
    (void)state;
    static const char row[] =
        "{\"date\": \"2026-11-16T21:53:09Z\", \"end\": \"%s\", \"folder\": \"%s\", \"model\": \"lenet\", \"data\": "
        "\"digits:500\", "
        "\"device\": \"cpu\", \"processor\": \"one\", \"precision\": \"f32\", \"parameters\": 28938, \"batch_size\": "
        "64, "
        "\"steps_in_epoch\": 7, \"first_step\": 0, \"step\": 14, \"steps\": 14, \"seconds\": 0.5, "
        "\"seconds_per_1000_steps\": 41.5, \"seconds_per_epoch\": 0.25, \"loss\": %s, \"val_loss\": %s, "
        "\"best_step\": 14, \"best_loss\": 1.5, \"best_accuracy\": 0.5, \"version\": \"0.1.0\"}\n";
    char text[4096];
    int used = snprintf(text, sizeof(text), row, "finished", "r1", "1.89283267", "1.5");
    snprintf(text + used, sizeof(text) - (size_t)used, row, "failed", "r2", "1.04901365e+26", "null");
    mkdir(scratch("log"), 0777);
    write_text("log/log.jsonl", text);
    expect_command(command_line("runs %s", scratch("log")), 0,
                   "date              model  data        device  precision  step  s/1000 steps  s/epoch       loss  "
                   "val loss  ema  end       folder\n"
                   "2026-11-16 21:53  lenet  digits:500  cpu     f32          14          41.5      0.2     1.8928    "
                   "1.5000    -  finished  r1\n"
                   "2026-11-16 21:53  lenet  digits:500  cpu     f32          14          41.5      0.2  1.049e+26     "
                   "    -    -  failed    r2\n");
    assert_int_equal(command_objects(command_line("runs %s --json", scratch("log"))), 2);
    expect_command(command_line("runs %s 2>&1", scratch("nosuch")), 1, "no run has ended in this folder");
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

/* Plan, log and evaluation say which weights they mean. */
static void averaged_weights_are_named(void **state)
{
    (void)state;
    char folder[600];
    snprintf(folder, sizeof(folder), "%s", scratch("average/run"));
    expect_command(command_line("train " SMALL " --epochs 1 --ema 0.95 --out %s", folder), 0,
                   "decay 0.95; evaluations and the best weights are of the averaged weights");
    expect_command(command_line("eval %s 2>&1", folder), 0, "; a moving average with decay 0.95)");
    assert_int_equal(run_command(command_line("eval %s --checkpoint last 2>&1", folder)), 0);
    assert_null(strstr(command_output, "average"));
    expect_command(command_line("eval %s --json", folder), 0, "\"ema\": 0.95");
    expect_command(command_line("runs %s", scratch("average")), 0, "  0.95  finished");
    expect_command(command_line("runs %s --json", scratch("average")), 0, "\"ema\": 0.95");
}

static void eval_prints_a_table_of_classes(void **state)
{
    (void)state;
    expect_command(command_line("eval %s", scratch("plain")), 0, "class");
    assert_non_null(strstr(command_output, "% on 80 samples"));
    assert_int_equal(
        command_objects(command_line("eval %s --data digits:1000 --json --batch-size 7", scratch("plain"))), 1);
    assert_non_null(strstr(command_output, "\"samples\": 200, "));
    assert_non_null(strstr(command_output, "{\"name\": \"9\", \"samples\": "));
    expect_command(command_line("eval %s --data nosuch:1 2>&1", scratch("plain")), 2, "unknown data");
}

/* Writes a drawn digit as PGM and returns its label. */
static int draw(const char *name, int64_t index)
{
    static unsigned char pixels[28 * 28], file[28 * 28 + 32];
    int64_t label;
    tarn_dataset *digits = tarn_dataset_digits(20, 77);
    assert_true(tarn_dataset_read(digits, index, (void *const[]){pixels, &label}));
    tarn_dataset_free(digits);
    int head = snprintf((char *)file, sizeof(file), "P5 28 28 255\n");
    memcpy(file + head, pixels, sizeof(pixels));
    write_file(name, file, (size_t)head + sizeof(pixels));
    return (int)label;
}

static void predict_names_the_classes_of_images(void **state)
{
    (void)state;
    char first[600];
    int right = 0;
    expect_command(command_line("train --data digits:2000 --epochs 4 --quiet --device cpu --out %s", scratch("reader")),
                   0, "");
    for (int i = 0; i < 20; i++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "digit.pgm: %d ", draw("digit.pgm", i));
        snprintf(first, sizeof(first), "%s", scratch("digit.pgm"));
        assert_int_equal(run_command(command_line("predict %s %s --top 2", scratch("reader"), first)), 0);
        right += strstr(command_output, expected) != NULL;
    }
    print_message("%d of 20 right\n", right);
    assert_true(right >= 15);
    assert_int_equal(command_objects(command_line("predict %s %s %s --json", scratch("reader"), first, first)), 2);
    assert_non_null(strstr(command_output, "\"probability\": "));
    expect_command(command_line("predict %s %s %s 2>&1", scratch("reader"), scratch("nosuch.png"), first), 1,
                   "nosuch.png");
    assert_non_null(strstr(command_output, "digit.pgm: ")); /* the other image was still read */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(wrong_calls_say_what_is_wrong),
        in_scope(a_dry_run_says_what_it_would_do_and_writes_nothing),
        in_scope(a_configuration_is_read_and_flags_come_after_it),
        in_scope(a_run_prints_plain_lines_in_a_pipe_and_objects_as_json),
        in_scope(the_unit_of_the_speed_follows_the_data),
        in_scope(mistakes_are_those_of_classifiers),
        in_scope(short_epochs_are_judged_together),
        in_scope(a_signal_saves_and_stops_and_the_run_resumes_bitwise_identically),
        in_scope(signals_of_one_second_are_one_request_and_the_next_ends_the_run),
        in_scope(a_killed_run_goes_on_from_its_last_checkpoint_bit_for_bit),
        in_scope(a_loss_that_is_not_finite_is_a_failure_that_names_step_and_layer),
        in_scope(the_log_of_runs_is_a_table),
        in_scope(averaged_weights_are_named),
        in_scope(eval_prints_a_table_of_classes),
        in_scope(predict_names_the_classes_of_images),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

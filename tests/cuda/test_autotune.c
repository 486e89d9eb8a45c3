/* test_autotune.c: a resumed run keeps the algorithms that it began with, even with another tuning cache. Skipped
 * without a device. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tarn/train.h>
#include <unistd.h>

#include "support/files.h"
#include "support/gpu.h"

/* Trains in this process: 6 steps ("new"), 6 more ("more"), or 12 ("whole"). */
static int train(const char *folder, const char *what)
{
    tarn_train_options first = {.model = "mlp",
                                .data = "digits:600",
                                .mlp_sizes = {1024},
                                .mlp_size_count = 1,
                                .batch_size = 256,
                                .schedule = "constant",
                                .device = "cuda"};
    tarn_train_options more = {.steps = 12};
    tarn_train_result result;
    snprintf(first.out, sizeof(first.out), "%s", folder);
    first.steps = strcmp(what, "new") == 0 ? 6 : 12;
    tarn_trainer *trainer = strcmp(what, "more") == 0 ? tarn_trainer_resume(folder, &more) : tarn_trainer_new(&first);
    bool good = trainer && tarn_trainer_run(trainer, NULL, NULL, &result);
    if (!good)
        fprintf(stderr, "%s\n", tarn_error());
    tarn_trainer_free(trainer);
    return good ? 0 : 1;
}

/* Tuning files are read once per process, so each run is a process. */
static int train_in_a_program(const char *cache, const char *folder, const char *what)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("XDG_CACHE_HOME", cache, 1);
        execl("/proc/self/exe", "test_choices", what, folder, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Tuning files in a cache. */
static int count_files(const char *cache)
{
    char folder[1300];
    int files = 0;
    snprintf(folder, sizeof(folder), "%s/tarn", cache);
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        files += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return files;
}

static void a_resumed_run_keeps_its_algorithms(void **state)
{
    NEEDS_GPU();
    char folder[1200], whole[1200], first[1200], second[1200], path[1300];
    size_t length;
    snprintf(folder, sizeof(folder), "%s", scratch("run"));
    snprintf(whole, sizeof(whole), "%s", scratch("whole"));
    snprintf(first, sizeof(first), "%s", scratch("first"));
    snprintf(second, sizeof(second), "%s", scratch("second"));
    assert_int_equal(train_in_a_program(first, folder, "new"), 0);
    assert_true(count_files(first) > 0);
    snprintf(path, sizeof(path), "%s/trainer.json", folder);
    char *place = get_file(path, &length);
    assert_non_null(strstr(place, "\"matmul-"));
    free(place);
    assert_int_equal(train_in_a_program(second, folder, "more"), 0);
    assert_int_equal(count_files(second), 0); /* nothing was timed */
    assert_int_equal(train_in_a_program(first, whole, "whole"), 0);
    assert_same_file(folder, whole, "model.safetensors");
    assert_same_file(folder, whole, "optimizer.safetensors");
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_resumed_run_keeps_its_algorithms, open_gpu, close_gpu)};
    if (count == 3)
        return train(words[2], words[1]);
    unsetenv("TARN_AUTOTUNE");
    unsetenv("TARN_TUNE");
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

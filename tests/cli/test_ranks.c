/* test_ranks.c: `mpirun tarn train`: the same checkpoints on 1 and 4 processes, and a run that is resumed by
 * other processes after one was killed. Skipped where MPI is missing. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

static char output[1 << 16];

static bool is_missing(void)
{
    char path[1100];
    const char *folder = getenv("TARN_BUILD_DIR"), *command = getenv("TARN_COMMAND");
    snprintf(path, sizeof(path), "%s/libtarn-mpi.so", folder ? folder : "");
    if (folder && command && access(path, R_OK) == 0 && system("command -v mpirun > /dev/null") == 0)
        return false;
    print_message("skipped: libtarn-mpi.so or mpirun is missing (libopenmpi-dev and openmpi-bin bring MPI)\n");
    return true;
}

/* Starts `tarn train ARGUMENTS` on ranks, whose process ids are written to pid.RANK in the scratch folder. */
static FILE *start_job(int ranks, const char *arguments)
{
    char line[4096];
    snprintf(line, sizeof(line),
             "cd \"%s\" && ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 TARN_THREADS=1 timeout 120 mpirun "
             "--allow-run-as-root --oversubscribe --bind-to none -np %d "
             "sh -c 'echo $$ > pid.${OMPI_COMM_WORLD_RANK}; exec \"%s\" train %s' < /dev/null 2>&1",
             scratch("."), ranks, getenv("TARN_COMMAND"), arguments);
    FILE *job = popen(line, "r");
    assert_non_null(job);
    return job;
}

static int end_job(FILE *job)
{
    output[fread(output, 1, sizeof(output) - 1, job)] = 0;
    int status = pclose(job);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void run_job(int ranks, const char *format, const char *folder)
{
    char arguments[2048];
    snprintf(arguments, sizeof(arguments), format, folder);
    int status = end_job(start_job(ranks, arguments));
    if (status != 0)
        fail_msg("%d ranks of tarn train %s: status %d:\n%s", ranks, arguments, status, output);
}

#define RUN \
    "--data text:text.txt --model gpt2 --layers 2 --heads 2 --hidden-size 32 --context 32 --batch-size 16 " \
    "--micro-batch 2 --dropout 0.1 --clip-norm 0.5 --eval-batches 1 --seed 3 --virtual-ranks 4 --device cpu --quiet "

static void write_data(void)
{
    static char text[8000];
    for (size_t i = 0; i + 1 < sizeof(text); i++)
        text[i] = "the cat sat on a mat. "[(i * i / 7 + i) % 22];
    write_text("text.txt", text);
}

static void assert_same_run(const char *folder, const char *other)
{
    char own[1100];
    snprintf(own, sizeof(own), "%s", scratch(folder));
    assert_same_file(own, scratch(other), "model.safetensors");
    assert_same_file(own, scratch(other), "optimizer.safetensors");
}

static void processes_give_the_same_checkpoints_as_one(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    write_data();
    run_job(1, RUN "--steps 30 --eval-every 15 --out %s", "one");
    run_job(4, RUN "--steps 30 --eval-every 15 --out %s", "four");
    assert_same_run("one", "four");
}

static void wait_a_moment(void)
{
    usleep(20000);
}

/* The steps of a checkpoint; -1: none yet. */
static int step_of(const char *folder)
{
    char path[1100];
    int step = -1;
    size_t count;
    snprintf(path, sizeof(path), "%s/trainer.json", folder);
    if (access(path, R_OK) != 0)
        return -1;
    char *text = get_file(path, &count);
    const char *found = strstr(text, "\"step\":");
    if (found)
        step = atoi(found + strlen("\"step\":"));
    free(text);
    return step;
}

/* The rank is killed after a checkpoint, at no particular step. */
static void a_run_is_resumed_after_a_rank_was_killed(void **state)
{
    (void)state;
    int pid = 0;
    size_t count;
    if (is_missing() || TARN__SANITIZE[0]) /* nothing of it is left for a sanitizer after the first test */
        skip();
    write_data();
    run_job(1, RUN "--schedule constant --steps 40 --eval-every 10 --out %s", "whole");
    FILE *job = start_job(4, RUN "--schedule constant --steps 40 --eval-every 10 --out killed");
    for (int i = 0; i < 1500 && step_of(scratch("killed")) < 10; i++)
        wait_a_moment();
    char *text = get_file(scratch("pid.2"), &count);
    pid = atoi(text);
    free(text);
    assert_true(pid > 1);
    kill(pid, SIGKILL);
    int status = end_job(job);
    if (status == 0 && step_of(scratch("killed")) < 40)
        fail_msg("status 0 after a rank was killed:\n%s", output);
    run_job(2, "--resume %s --quiet", "killed");
    assert_same_run("whole", "killed");
}

static void a_number_of_processes_that_does_not_fit_is_one_sentence(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    write_data();
    assert_int_not_equal(end_job(start_job(3, RUN "--steps 1 --out three")), 0);
    const char *found = strstr(output, "3 ranks do not divide the run's --virtual-ranks, 4; start 1, 2 or 4");
    if (!found || strstr(found + strlen("3 ranks do not divide"), "do not divide"))
        fail_msg("%s", output);
}

/* --ranks starts mpirun itself. After the first test, whose run is compared with. */
static void the_command_starts_its_own_ranks(void **state)
{
    (void)state;
    char line[4096];
    if (is_missing() || TARN__SANITIZE[0])
        skip();
    snprintf(line, sizeof(line),
             "cd \"%s\" && ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 timeout 120 \"%s\" train " RUN
             "--steps 30 --eval-every 15 --out started --ranks 2 < /dev/null 2>&1",
             scratch("."), getenv("TARN_COMMAND"));
    FILE *job = popen(line, "r");
    assert_non_null(job);
    if (end_job(job) != 0)
        fail_msg("%s", output);
    assert_same_run("one", "started");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_give_the_same_checkpoints_as_one),
        cmocka_unit_test(a_run_is_resumed_after_a_rank_was_killed),
        cmocka_unit_test(a_number_of_processes_that_does_not_fit_is_one_sentence),
        cmocka_unit_test(the_command_starts_its_own_ranks),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_ranks.c: `tarn train` on several processes, started by mpirun or by the command itself: the same checkpoints on
 * 1, 2 and 4 of them, with and without ZeRO-1, and runs that are resumed by others after one was killed. Parts with
 * mpirun are skipped without MPI. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

static char output[1 << 16];
static size_t received; /* bytes of it that a job has written so far */

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

/* Reads what a job writes until it has written a string, for at most a minute. */
static void wait_for_output(FILE *job, const char *string)
{
    struct pollfd wait = {.fd = fileno(job), .events = POLLIN};
    output[received] = 0;
    while (!strstr(output, string)) {
        ssize_t count =
            poll(&wait, 1, 60000) == 1 ? read(wait.fd, output + received, sizeof(output) - 1 - received) : 0;
        if (count <= 0)
            fail_msg("no '%s' in: %s", string, output);
        output[received += (size_t)count] = 0;
    }
}

static int end_job(FILE *job)
{
    received += fread(output + received, 1, sizeof(output) - 1 - received, job);
    output[received] = 0;
    received = 0;
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

#define RUN_ALOUD \
    "--data text:text.txt --model gpt2 --layers 2 --heads 2 --hidden-size 32 --context 32 --batch-size 16 " \
    "--micro-batch 2 --dropout 0.1 --clip-norm 0.5 --eval-batches 1 --seed 3 --virtual-ranks 4 --device cpu "
#define RUN RUN_ALOUD "--quiet "

#define LONG_RUN \
    "--data text:text.txt --model gpt2 --layers 2 --heads 2 --hidden-size 32 --context 32 --batch-size 16 --ema 0.9 " \
    "--dropout 0.1 --clip-norm 0.5 --eval-batches 1 --eval-every 10 --seed 3 --virtual-ranks 8 --device cpu --quiet " \
    "--schedule constant "

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
    run_job(4, RUN "--steps 30 --eval-every 15 --out %s", "by-mpi");
    run_job(2, RUN "--steps 30 --eval-every 15 --zero 1 --out %s", "by-mpi-zero");
    assert_same_run("one", "by-mpi");
    assert_same_run("one", "by-mpi-zero");
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
    uint64_t rank = test_seed((uint64_t)getpid()) % 4;
    FILE *job = start_job(4, RUN "--schedule constant --steps 40 --eval-every 10 --zero 1 --out killed");
    for (int i = 0; i < 1500 && step_of(scratch("killed")) < 10; i++)
        wait_a_moment();
    char name[16];
    snprintf(name, sizeof(name), "pid.%d", (int)rank);
    char *text = get_file(scratch(name), &count);
    pid = atoi(text);
    free(text);
    assert_true(pid > 1);
    kill(pid, SIGKILL);
    int status = end_job(job);
    if (status == 0 && step_of(scratch("killed")) < 40)
        fail_msg("status 0 after a rank was killed:\n%s", output);
    run_job(2, "--resume %s --quiet --zero off", "killed");
    assert_same_run("whole", "killed");
}

/* Starts a run anew, or continues it, and kills a random rank at a random time. */
static void kill_one(const char *arguments, const char *run, int ranks, uint64_t *numbers)
{
    char name[16], folder[1100];
    snprintf(folder, sizeof(folder), "%s", scratch(run)); /* scratch() reuses its result */
    size_t count;
    int before = step_of(folder), rank = (int)random_below(numbers, ranks);
    snprintf(name, sizeof(name), "pid.%d", rank);
    unlink(scratch(name));
    FILE *job = start_job(ranks, arguments);
    for (int i = 0; i < 3000 && (access(scratch(name), R_OK) != 0 || step_of(folder) < 0); i++)
        wait_a_moment();
    usleep((unsigned)random_below(numbers, 1000000));
    char *text = get_file(scratch(name), &count);
    int pid = atoi(text);
    free(text);
    assert_true(pid > 1);
    kill(pid, SIGKILL);
    end_job(job);
    print_message("%d ranks, %d killed: step %d to %d\n", ranks, rank, before, step_of(folder));
}

/* Kills on up to 8 ranks, with ZeRO-1 on and off in turn, then a few steps more: the bits of a run that was never
 * stopped. */
static void a_run_that_is_killed_again_and_again_ends_as_any_other(void **state)
{
    (void)state;
    enum { KILLS = 20 };
    static const int sizes[] = {8, 4, 2, 8, 1};
    char line[2048];
    uint64_t numbers = test_seed(20251);
    if (is_missing() || TARN__SANITIZE[0])
        skip();
    if (!getenv("TARN_TEST_LONG")) {
        print_message("skipped: takes minutes; TARN_TEST_LONG=1 runs it\n");
        skip();
    }
    write_data();
    for (int i = 0; i < KILLS; i++) {
        const char *zero = i % 2 ? "off" : "1";
        if (step_of(scratch("often")) < 0)
            snprintf(line, sizeof(line), LONG_RUN "--steps 1000000 --zero %s --overwrite --out often", zero);
        else
            snprintf(line, sizeof(line), "--resume often --quiet --zero %s", zero);
        kill_one(line, "often", sizes[i % 5], &numbers);
    }
    int steps = step_of(scratch("often")) + 20;
    snprintf(line, sizeof(line), "--resume %%s --quiet --zero 1 --steps %d", steps);
    run_job(4, line, "often");
    snprintf(line, sizeof(line), LONG_RUN "--steps %d --out %%s", steps);
    run_job(2, line, "never");
    assert_same_run("never", "often");
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

/* ---- ranks that the command starts itself ------------------------------------------------------------------------ */

/* Starts `tarn COMMAND ARGUMENTS` alone. */
static FILE *start_alone(const char *command, const char *arguments)
{
    char line[4096];
    snprintf(line, sizeof(line), "cd \"%s\" && exec 2>&1 < /dev/null && TARN_THREADS=1 exec timeout 120 \"%s\" %s %s",
             scratch("."), getenv("TARN_COMMAND"), command, arguments);
    FILE *job = popen(line, "r");
    assert_non_null(job);
    return job;
}

static FILE *start_command(const char *arguments)
{
    return start_alone("train", arguments);
}

static void run_command(const char *arguments)
{
    int status = end_job(start_command(arguments));
    if (status != 0)
        fail_msg("tarn train %s: status %d:\n%s", arguments, status, output);
}

static void the_command_starts_its_own_ranks(void **state)
{
    (void)state;
    write_data();
    run_command(RUN "--steps 30 --eval-every 15 --out alone");
    run_command(RUN "--steps 30 --eval-every 15 --out two --ranks 2");
    assert_same_run("alone", "two");
    run_command(RUN "--steps 30 --eval-every 15 --out four --ranks 4");
    assert_same_run("alone", "four");
}

/* The process of a rank that the command has started, as Linux lists them; 0: unknown. */
static int process_of(int rank)
{
    char line[256], text[64] = "";
    snprintf(line, sizeof(line), "grep -lsz '^TARN_RANK_SOCKETS=%d 3 ' /proc/[0-9]*/environ | cut -d/ -f3", rank);
    FILE *list = popen(line, "r");
    assert_non_null(list);
    text[fread(text, 1, sizeof(text) - 1, list)] = 0;
    pclose(list);
    return atoi(text);
}

static int count_of(const char *text)
{
    int count = 0;
    for (const char *at = output; (at = strstr(at, text)) != NULL; at++)
        count++;
    return count;
}

/* Kills a rank of three in the middle of a run. Returns once the command has ended. */
static void kill_rank(int rank, int number, const char *folder)
{
    char arguments[1024];
    snprintf(arguments, sizeof(arguments),
             RUN
             "--virtual-ranks 6 --batch-size 24 --schedule constant --steps 100000 --eval-every 20 --rank-timeout 5 "
             "--ranks 3 --out %s",
             folder);
    FILE *job = start_command(arguments);
    for (int i = 0; i < 1500 && step_of(scratch(folder)) < 20; i++)
        wait_a_moment();
    int pid = process_of(rank);
    assert_true(pid > 1);
    kill(pid, number);
    assert_int_equal(end_job(job), 1);
    assert_int_equal(kill(pid, 0), -1);
    if (count_of("tarn train: ") != 1)
        fail_msg("%s", output);
}

/* No rank is left, one sentence is printed, and the run can be resumed by another number of ranks. */
static void a_rank_that_is_killed_or_hangs_ends_the_run_with_one_sentence(void **state)
{
    (void)state;
    if (TARN__SANITIZE[0])
        skip();
    write_data();
    kill_rank(1, SIGKILL, "lost");
    assert_int_equal(count_of("tarn train: rank 1 on "), 1);
    assert_int_equal(count_of("it has ended\n"), 1);
    kill_rank(0, SIGKILL, "first");
    assert_int_equal(count_of("tarn train: rank 0 on "), 1);
    kill_rank(2, SIGSTOP, "hung");
    assert_int_equal(count_of("tarn train: rank 2 on "), 1);
    assert_int_equal(count_of("does not answer; waited 5"), 1); /* 50 s where a checkpoint is written */
    int step = step_of(scratch("lost"));
    char arguments[256];
    snprintf(arguments, sizeof(arguments), "--resume lost --steps %d --ranks 2 --quiet", step + 5);
    run_command(arguments);
    assert_int_equal(step_of(scratch("lost")), step + 5);
}

/* The run takes steps: there is a line of metrics. */
static bool has_metrics(const char *folder)
{
    char path[1100];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "r");
    bool found = file && fgetc(file) != EOF;
    if (file)
        fclose(file);
    return found;
}

/* A rank stops until the others have told of their wait, or for as long, and goes on: the run goes on too, and ends by
 * a signal. The signal is not for rank 0, which tells of short waits, too, once it is to stop. */
static void stop_for_a_while(int rank, const char *folder, const char *options)
{
    char arguments[1024], told[64];
    bool is_quiet = strstr(options, "--quiet") != NULL;
    snprintf(arguments, sizeof(arguments),
             RUN_ALOUD "--virtual-ranks 6 --batch-size 24 --schedule constant --steps 1000000 --eval-every 1000000 "
                       "--log-every 100 --rank-timeout 8 --ranks 3 %s --out %s",
             options, folder);
    snprintf(told, sizeof(told), "waiting for rank %d on ", rank);
    FILE *job = start_command(arguments);
    for (int i = 0; i < 3000 && !has_metrics(scratch(folder)); i++)
        wait_a_moment();
    int pid = process_of(rank), last = process_of(2);
    assert_true(pid > 1 && last > 1);
    kill(pid, SIGSTOP);
    if (is_quiet)
        usleep(2500000); /* a notice would be due after 2 s */
    else
        wait_for_output(job, told);
    kill(pid, SIGCONT);
    usleep(100000);
    kill(last, SIGTERM);
    assert_int_equal(end_job(job), 0);
    const char *at = strstr(output, "tarn: step ");
    int expected = is_quiet ? 0 : 1;
    if (count_of("waiting for rank ") != expected || count_of(told) != expected ||
        (expected && (!at || atoi(at + strlen("tarn: step ")) < 1)))
        fail_msg("%s", output);
}

static void a_rank_that_others_wait_for_is_told_once(void **state)
{
    (void)state;
    if (TARN__SANITIZE[0])
        skip();
    write_data();
    stop_for_a_while(0, "waited-0", "");
    stop_for_a_while(2, "waited-2", "");
    stop_for_a_while(0, "waited-quiet", "--quiet");
}

static void ranks_that_cannot_be_started_are_one_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *text;
        int status;
    } cases[] = {
        {RUN "--steps 1 --out no --ranks 3", "3 ranks do not divide the run's --virtual-ranks, 4; start 1, 2 or 4", 2},
        {RUN "--steps 1 --out no --gpus 2", "--gpus chooses the devices; remove --device cpu", 2},
        {RUN "--steps 1 --out no --gpus 2 --ranks 2", "--gpus starts a rank for each GPU; remove --ranks", 2},
        {RUN "--steps 1 --out no --device auto --gpus 64", "--gpus 64: this machine has ", 2},
    };
    write_data();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int status = end_job(start_command(cases[i].arguments));
        if (status != cases[i].status || count_of(cases[i].text) != 1 || count_of("tarn train: ") != 1)
            fail_msg("tarn train %s: status %d:\n%s", cases[i].arguments, status, output);
    }
}

/* Starts two ranks as torchrun does within a job of Slurm, whose variables are those of torchrun itself. Rank 0 has the
 * GPU of the second: LOCAL_RANK decides. `second` are variables of rank 1. */
static int run_torchrun_with(const char *second, const char *arguments, int local_size)
{
    char line[4096];
    snprintf(line, sizeof(line),
             "cd \"%s\" && exec 2>&1; export WORLD_SIZE=2 LOCAL_WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d "
             "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 TARN_THREADS=1; "
             "RANK=1 LOCAL_RANK=0 %s timeout 60 \"%s\" %s & "
             "RANK=0 LOCAL_RANK=1 timeout 60 \"%s\" %s < /dev/null; status=$?; wait; exit $status",
             scratch("."), local_size, 1024 + (int)(getpid() % 60000), second, getenv("TARN_COMMAND"), arguments,
             getenv("TARN_COMMAND"), arguments);
    FILE *job = popen(line, "r");
    assert_non_null(job);
    return end_job(job);
}

static int run_torchrun(const char *arguments, int local_size)
{
    return run_torchrun_with("", arguments, local_size);
}

static void processes_of_torchrun_find_each_other_without_mpi(void **state)
{
    (void)state;
    write_data();
    run_command(RUN "--steps 10 --out single");
    int status = run_torchrun("train " RUN "--steps 10 --out torchrun", 2);
    if (status != 0)
        fail_msg("status %d:\n%s", status, output);
    assert_same_run("single", "torchrun");
    assert_int_equal(run_torchrun("eval single --json --device cpu", 2), 0);
    assert_int_equal(count_of("\"perplexity\""), 1);
    assert_int_equal(run_torchrun("train " RUN "--steps 10 --out no", 1), 1);
    assert_int_equal(count_of("torchrun has started 1 of 2 processes on this machine; between machines tarn needs MPI: "
                              "start the job with mpirun, or with srun --mpi=pmix"),
                     1);
    if (tarn_device_count("mirror") > 1) {
        assert_int_equal(run_torchrun("train --data text:text.txt --model gpt2 --layers 1 --heads 2 --hidden-size 16 "
                                      "--context 32 --batch-size 8 --steps 1 --device mirror --dry-run",
                                      2),
                         0);
        assert_int_equal(count_of("device      mirror:1"), 1);
    }
}

/* Rank 1 sees no GPU: rank 0 prints why the run ends. */
static void a_rank_without_a_gpu_tells_the_others(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 2)
        skip();
    write_data();
    int status = run_torchrun_with("TARN_BACKENDS=cpu",
                                   "train --data text:text.txt --model gpt2 --layers 1 --heads 2 --hidden-size 16 "
                                   "--context 32 --batch-size 8 --steps 1 --out no --device mirror --gpus 2",
                                   2);
    if (status != 1 || count_of("tarn train: ") != 1 || count_of("tarn train: rank 1 on ") != 1 ||
        count_of("--gpus 2: this machine has 0 GPUs, and each rank needs one") != 1)
        fail_msg("status %d:\n%s", status, output);
}

/* What all ranks find is printed once. */
static void errors_and_warnings_of_all_ranks_are_printed_once(void **state)
{
    (void)state;
    write_data();
    assert_int_equal(end_job(start_alone("eval", "nothing --ranks 3")), 1);
    if (count_of("tarn eval: ") != 1)
        fail_msg("%s", output);
    run_command("--data text:text.txt --model gpt2 --layers 1 --heads 2 --hidden-size 16 --context 32 --batch-size 12 "
                "--device cpu --quiet --reduce fast --steps 2 --out fast --ranks 3");
    run_command("--resume fast --steps 4 --ranks 2");
    if (count_of("will not be bitwise identical") != 1)
        fail_msg("%s", output);
}

/* Starts the command in a process of its own, whose output is in a file. */
static pid_t start_process(const char *arguments, bool ignores_children)
{
    char line[4096];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0)
        return child;
    if (ignores_children)
        signal(SIGCHLD, SIG_IGN);
    snprintf(line, sizeof(line), "cd \"%s\" && TARN_THREADS=1 exec \"%s\" train %s > process.log 2>&1 < /dev/null",
             scratch("."), getenv("TARN_COMMAND"), arguments);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* Fails, and ends the process, after half a minute. Its exit status; -1: a signal has ended it. */
static int end_process(pid_t process)
{
    int status;
    size_t count;
    for (int i = 0; i < 1500; i++) {
        pid_t ended = waitpid(process, &status, WNOHANG);
        assert_true(ended >= 0);
        if (ended == process) {
            char *text = get_file(scratch("process.log"), &count);
            snprintf(output, sizeof(output), "%.*s", (int)count, text);
            free(text);
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        }
        wait_a_moment();
    }
    kill(process, SIGKILL);
    waitpid(process, &status, 0);
    fail_msg("the process has not ended");
    return -1;
}

/* Some supervisors ignore SIGCHLD, which programs inherit. */
static void ranks_that_end_are_seen_where_sigchld_is_ignored(void **state)
{
    (void)state;
    write_data();
    if (end_process(start_process(RUN "--steps 1 --out ignored --ranks 2", true)) != 0)
        fail_msg("%s", output);
}

/* -1: Linux does not list them. */
static int has_children(pid_t process)
{
    char path[64], text[32] = "";
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)process, (int)process);
    FILE *file = fopen(path, "r");
    int found = file ? fread(text, 1, sizeof(text), file) > 0 : -1;
    if (file)
        fclose(file);
    return found;
}

/* The moment at which the first rank is there: the others are started after it, and end too. None catches signals
 * before it has read its data, which takes far longer. */
static void a_signal_reaches_ranks_that_are_not_started_yet(void **state)
{
    (void)state;
    static char text[1 << 20];
    if (TARN__SANITIZE[0] || has_children(getpid()) < 0)
        skip();
    memset(text, 'a', sizeof(text));
    write_data();
    FILE *file = fopen(scratch("text.txt"), "ab");
    assert_non_null(file);
    for (int i = 0; i < 16; i++)
        assert_int_equal(fwrite(text, 1, sizeof(text), file), sizeof(text));
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 8; i++) {
        pid_t process =
            start_process(RUN "--virtual-ranks 8 --ranks 8 --steps 100000 --overwrite --out started", false);
        for (int k = 0; k < 100000 && has_children(process) == 0; k++)
            ; /* it is a matter of milliseconds */
        kill(process, SIGTERM);
        int status = end_process(process);
        if (status != 128 + SIGTERM || output[0])
            fail_msg("start %d: status %d:\n%s", i, status, output);
    }
}

/* Three operations a size, each with a positive bandwidth. */
static void the_connection_of_ranks_is_measured(void **state)
{
    (void)state;
    char line[1200];
    static const char *const names[] = {"all-to-all", "all-gather", "sum"};
    snprintf(line, sizeof(line), "exec 2>&1; TARN_THREADS=1 timeout 60 \"%s\" bench comm --ranks 3 --sizes 4KiB --json",
             getenv("TARN_COMMAND"));
    FILE *job = popen(line, "r");
    assert_non_null(job);
    assert_int_equal(end_job(job), 0);
    assert_int_equal(count_of("\"ranks\": 3"), 3);
    assert_int_equal(count_of("\"bytes\": 4104"), 3);
    for (int i = 0; i < 3; i++) {
        double speed = 0;
        const char *row = strstr(output, names[i]), *at = row ? strstr(row, "\"gigabytes_per_second\": ") : NULL;
        if (!at || sscanf(at, "\"gigabytes_per_second\": %lf", &speed) != 1 || !(speed > 0))
            fail_msg("%s: %s", names[i], output);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_give_the_same_checkpoints_as_one),
        cmocka_unit_test(a_run_is_resumed_after_a_rank_was_killed),
        cmocka_unit_test(a_run_that_is_killed_again_and_again_ends_as_any_other),
        cmocka_unit_test(a_number_of_processes_that_does_not_fit_is_one_sentence),
        cmocka_unit_test(the_command_starts_its_own_ranks),
        cmocka_unit_test(a_rank_that_is_killed_or_hangs_ends_the_run_with_one_sentence),
        cmocka_unit_test(a_rank_that_others_wait_for_is_told_once),
        cmocka_unit_test(processes_of_torchrun_find_each_other_without_mpi),
        cmocka_unit_test(the_connection_of_ranks_is_measured),
        cmocka_unit_test(ranks_that_cannot_be_started_are_one_sentence),
        cmocka_unit_test(a_rank_without_a_gpu_tells_the_others),
        cmocka_unit_test(errors_and_warnings_of_all_ranks_are_printed_once),
        cmocka_unit_test(ranks_that_end_are_seen_where_sigchld_is_ignored),
        cmocka_unit_test(a_signal_reaches_ranks_that_are_not_started_yet),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

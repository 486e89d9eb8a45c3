/* test_machines.c: ranks on two machines: network namespaces with host names of their own, joined by a cable that loses
 * frames or is cut. The cable is a thread that carries frames between two TAP devices. Lost frames change only the time
 * of a run; a cut cable ends the ranks of both machines with a sentence. Skipped, with the reason, where namespaces
 * cannot be created. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

static char output[1 << 16];

/* ---- the cable --------------------------------------------------------------------------------------------------- */

static struct cable {
    int end[2]; /* a TAP device of each namespace; -1: none */
    pthread_t thread;
    atomic_int loss; /* of 1000 frames; 1000: it is cut */
    atomic_int carried, lost;
    atomic_bool is_ending, is_running;
} cable = {.end = {-1, -1}};

/* Every frame is lost or not by a generator with a seed: a run can be repeated. */
static void *carry(void *unused)
{
    static char frame[1 << 16];
    uint32_t random = 1;
    (void)unused;
    while (!atomic_load(&cable.is_ending)) {
        struct pollfd ready[2] = {{cable.end[0], POLLIN, 0}, {cable.end[1], POLLIN, 0}};
        if (poll(ready, 2, 100) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            ssize_t count = ready[i].revents & POLLIN ? read(cable.end[i], frame, sizeof(frame)) : 0;
            random = random * 1664525u + 1013904223u;
            bool is_lost = (int)(random >> 8) % 1000 < atomic_load(&cable.loss);
            if (count > 0 && (is_lost || write(cable.end[1 - i], frame, (size_t)count) != count))
                atomic_fetch_add(&cable.lost, 1);
            else if (count > 0)
                atomic_fetch_add(&cable.carried, 1);
        }
    }
    return NULL;
}

/* ---- the machines ------------------------------------------------------------------------------------------------ */

static char machine[2][32]; /* names of the namespaces */

static bool run(const char *format, const char *name)
{
    char line[256], text[512];
    snprintf(line, sizeof(line), format, name);
    snprintf(text, sizeof(text), "%s > /dev/null 2>&1", line);
    return system(text) == 0;
}

/* The TAP device "cable" of a namespace; -1: it cannot be created. */
static int open_end(const char *name)
{
    char path[64];
    snprintf(path, sizeof(path), "/var/run/netns/%s", name);
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), other = open(path, O_RDONLY | O_CLOEXEC), end = -1;
    if (own >= 0 && other >= 0 && setns(other, CLONE_NEWNET) == 0) {
        struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
        snprintf(request.ifr_name, sizeof(request.ifr_name), "cable");
        end = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (end >= 0 && ioctl(end, TUNSETIFF, &request) != 0) {
            close(end);
            end = -1;
        }
        if (setns(own, CLONE_NEWNET) != 0)
            abort();
    }
    close(own);
    close(other);
    return end;
}

static bool set_address(int i)
{
    char text[128];
    snprintf(text, sizeof(text), "ip -n %%s addr add 10.213.77.%d/24 dev cable", i + 1);
    return run(text, machine[i]) && run("ip -n %s link set cable up", machine[i]) &&
           run("ip -n %s link set lo up", machine[i]);
}

/* Both namespaces, joined by the cable. False: this system does not let us. */
static bool open_machines(void)
{
    for (int i = 0; i < 2; i++) {
        snprintf(machine[i], sizeof(machine[i]), "tarn-%d-%c", (int)getpid(), 'a' + i);
        if (!run("ip netns add %s", machine[i]) || (cable.end[i] = open_end(machine[i])) < 0 || !set_address(i))
            return false;
    }
    atomic_store(&cable.is_running, pthread_create(&cable.thread, NULL, carry, NULL) == 0);
    return cable.is_running;
}

static void close_machines(void)
{
    atomic_store(&cable.is_ending, true);
    if (cable.is_running)
        pthread_join(cable.thread, NULL);
    for (int i = 0; i < 2; i++) {
        if (cable.end[i] >= 0)
            close(cable.end[i]);
        if (machine[i][0])
            run("ip netns del %s", machine[i]);
    }
}

static bool is_missing(void)
{
    char path[1100];
    const char *folder = getenv("TARN_BUILD_DIR"), *command = getenv("TARN_COMMAND");
    snprintf(path, sizeof(path), "%s/libtarn-mpi.so", folder ? folder : "");
    if (!folder || !command || access(path, R_OK) != 0 || system("command -v mpirun > /dev/null") != 0)
        print_message("skipped: libtarn-mpi.so or mpirun is missing (libopenmpi-dev and openmpi-bin bring MPI)\n");
    else if (TARN__SANITIZE[0])
        print_message("skipped: processes of a job are not what a sanitizer looks for here\n");
    else if (!cable.is_running)
        print_message("skipped: two network namespaces with TAP devices need root, ip (iproute2) and /dev/net/tun\n");
    else
        return false;
    return true;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* mpirun reaches the second machine by this program instead of ssh. */
static void write_agent(void)
{
    char text[512];
    snprintf(
        text, sizeof(text),
        "#!/bin/sh\nshift\nexec ip netns exec %s unshare --uts sh -c 'hostname tarn-b; exec sh -c \"$0\"' \"$*\"\n",
        machine[1]);
    assert_int_equal(chmod(write_text("agent", text), 0755), 0);
}

#define RUN \
    "--data text:text.txt --model gpt2 --layers 2 --heads 2 --hidden-size 32 --context 32 --batch-size 16 " \
    "--micro-batch 2 --dropout 0.1 --clip-norm 0.5 --eval-batches 2 --seed 3 --virtual-ranks 4 --device cpu --quiet " \
    "--schedule constant "

/* A rank on each machine. Process ids are written to pid.RANK. */
static FILE *start_job(const char *arguments)
{
    char line[4096];
    snprintf(line, sizeof(line),
             "cd \"%s\" && TARN_THREADS=1 timeout -k 5 100 ip netns exec %s unshare --uts sh -c 'hostname tarn-a; exec "
             "mpirun --allow-run-as-root --oversubscribe --bind-to none -H tarn-a:1,10.213.77.2:1 -np 2 "
             "--mca plm_rsh_agent ./agent --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include 10.213.77.0/24 "
             "--mca oob_tcp_if_include 10.213.77.0/24 "
             "sh -c \"echo \\$\\$ > pid.\\${OMPI_COMM_WORLD_RANK}; exec \\\"%s\\\" train %s\"' < /dev/null 2>&1",
             scratch("."), machine[0], getenv("TARN_COMMAND"), arguments);
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

static void run_alone(const char *arguments)
{
    char line[4096];
    snprintf(line, sizeof(line), "cd \"%s\" && TARN_THREADS=1 \"%s\" train %s > /dev/null 2>&1", scratch("."),
             getenv("TARN_COMMAND"), arguments);
    assert_int_equal(system(line), 0);
}

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

static void lost_frames_change_only_the_time(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    write_data();
    write_agent();
    run_alone(RUN "--steps 12 --eval-every 6 --out alone");
    atomic_store(&cable.loss, 20);
    int status = end_job(start_job(RUN "--steps 12 --eval-every 6 --zero 1 --out lossy"));
    atomic_store(&cable.loss, 0);
    if (status != 0)
        fail_msg("status %d:\n%s", status, output);
    if (atomic_load(&cable.lost) < 10)
        fail_msg("%d of %d frames were lost", atomic_load(&cable.lost), atomic_load(&cable.carried));
    print_message("%d frames carried, %d lost\n", atomic_load(&cable.carried), atomic_load(&cable.lost));
    assert_same_run("alone", "lossy");
}

static bool is_alive(int rank)
{
    char name[16];
    size_t count;
    snprintf(name, sizeof(name), "pid.%d", rank);
    char *text = get_file(scratch(name), &count);
    int pid = atoi(text);
    free(text);
    return pid > 1 && kill(pid, 0) == 0;
}

/* How often a text occurs in the output. */
static int count_of(const char *text)
{
    int count = 0;
    for (const char *at = output; (at = strstr(at, text)) != NULL; at++)
        count++;
    return count;
}

/* The steps of a checkpoint; 0: none yet. */
static int step_of(const char *folder)
{
    char path[1100];
    size_t count;
    snprintf(path, sizeof(path), "%s/trainer.json", folder);
    if (access(path, R_OK) != 0)
        return 0;
    char *text = get_file(path, &count);
    const char *found = strstr(text, "\"step\":");
    int step = found ? atoi(found + strlen("\"step\":")) : 0;
    free(text);
    return step;
}

/* Continues the cut run from its checkpoint on one process, and compares it with a run that was never stopped. */
static void continue_run(void)
{
    char line[1024];
    int steps = step_of(scratch("cut")) + 6;
    snprintf(line, sizeof(line), "--resume cut --quiet --steps %d", steps);
    run_alone(line);
    snprintf(line, sizeof(line), RUN "--eval-every 6 --out whole --steps %d", steps);
    run_alone(line);
    assert_same_run("whole", "cut");
}

/* Each machine reports the other one: neither hears of what the other has found. The cable is cut after a checkpoint,
 * at no particular step. Both ranks end while it is cut; mpirun waits for its daemon on the other machine until the
 * cable is back. The run is then continued. */
static void a_cut_cable_ends_the_run_with_a_sentence(void **state)
{
    (void)state;
    if (is_missing())
        skip();
    if (!getenv("TARN_TEST_LONG")) {
        print_message("skipped: takes half a minute; TARN_TEST_LONG=1 runs it\n");
        skip();
    }
    write_data();
    write_agent();
    FILE *job = start_job(RUN "--steps 100000 --eval-every 6 --rank-timeout 2 --out cut");
    for (int i = 0; i < 1500 && step_of(scratch("cut")) < 6; i++)
        usleep(20000);
    time_t begin = time(NULL);
    atomic_store(&cable.loss, 1000);
    for (int i = 0; i < 2500 && (is_alive(0) || is_alive(1)); i++)
        usleep(20000);
    int seconds = (int)(time(NULL) - begin);
    bool is_left[2] = {is_alive(0), is_alive(1)};
    atomic_store(&cable.loss, 0);
    int status = end_job(job);
    if (status == 0 || count_of("rank 1 on tarn-b: step ") != 1 || count_of("rank 0 on tarn-a: step ") > 1 ||
        count_of("does not answer") > 2)
        fail_msg("status %d:\n%s", status, output);
    if (is_left[0] || is_left[1])
        fail_msg("after %d s rank 0 %s, rank 1 %s", seconds, is_left[0] ? "lives" : "has ended",
                 is_left[1] ? "lives" : "has ended");
    print_message("both ranks had ended after %d s\n", seconds);
    continue_run();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_frames_change_only_the_time),
        cmocka_unit_test(a_cut_cable_ends_the_run_with_a_sentence),
    };
    open_machines();
    int failures = cmocka_run_group_tests(tests, make_scratch, remove_scratch);
    close_machines();
    return failures;
}

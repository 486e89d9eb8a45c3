/* test_step_graph_memory.c: a run needs no more memory captured than eager: on a device that has just enough for its
 * steps, evaluations included, and by its plan. */
#include <stdlib.h>
#include <sys/wait.h>
#include <tarn/profile.h>
#include <tarn/train.h>
#include <unistd.h>

#include "core/memory/pool.h"
#include "support/files.h"

#define MIB ((int64_t)1 << 20)

static const char *make_text(void)
{
    static char path[1200];
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    static char text[20001];
    for (int i = 0; i < 20000; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    snprintf(path, sizeof(path), "%s", write_text("text.txt", text));
    return path;
}

static tarn_train_options options_of(const char *folder, const char *capture)
{
    tarn_train_options o = {.model = "gpt2",
                            .layers = 4,
                            .heads = 4,
                            .hidden_size = 64,
                            .context = 64,
                            .batch_size = 16,
                            .micro_batch = 16,
                            .steps = 9,
                            .eval_every = 5,
                            .eval_batches = 2,
                            .log_every = 1,
                            .lr = 0.01,
                            .clip_norm = 1,
                            .tokenizer = "bytes",
                            .precision = "f32",
                            .recompute = "none",
                            .device = "mirror:0",
                            .seed = 5};
    snprintf(o.data, sizeof(o.data), "text:%s", make_text());
    snprintf(o.out, sizeof(o.out), "%s", scratch(folder));
    snprintf(o.capture, sizeof(o.capture), "%s", capture);
    return o;
}

typedef struct run_memory {
    tarn_train_plan plan;
    int64_t used, reserved; /* peaks */
} run_memory;

static run_memory run(const tarn_train_options *options)
{
    run_memory m;
    tarn_device device = tarn_device_parse("mirror:0");
    assert_true(tarn_empty_cache(device));
    tarn_stats_reset();
    int64_t before = tarn__pool_peaks_of(device).reserved;
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_plan(trainer, &m.plan) || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    m.used = tarn__pool_peaks_of(device).used;
    m.reserved = tarn__pool_peaks_of(device).reserved - before;
    tarn_trainer_free(trainer);
    print_message("capture %-4s  plan %lld, uses %lld, takes %lld\n", options->capture, (long long)m.plan.memory_needed,
                  (long long)m.used, (long long)m.reserved);
    return m;
}

/* The device has TARN_MIRROR_MEMORY bytes, a segment of the pool more than the eager run takes: the graph has
 * segments of its own. */
static void a_captured_run_fits_where_an_eager_one_does(void **state)
{
    (void)state;
    tarn_train_options eager = options_of("eager", "off"), captured = options_of("captured", "on");
    run_memory a = run(&eager), b = run(&captured);
    assert_false(a.plan.captures);
    assert_true(b.plan.captures);
    tarn_train_options by_default = options_of("default", "auto"); /* captures at every size */
    tarn_train_plan plan;
    tarn_trainer *dry_run = tarn_trainer_dry_run(NULL, &by_default);
    assert_true(tarn_trainer_plan(dry_run, &plan) && plan.captures);
    tarn_trainer_free(dry_run);
    assert_true(a.plan.memory_needed > atoll(getenv("TARN_MIRROR_MEMORY")) - 6 * MIB); /* it is tight */
    assert_same_file(scratch("eager"), scratch("captured"), "model.safetensors");
    assert_same_file(scratch("eager"), scratch("captured"), "optimizer.safetensors");
}

/* Bytes in use, which the plan gives; what the pool reserves for them is rounded up to segments, twice with a graph. */
static void the_plan_of_a_captured_run_holds(void **state)
{
    (void)state;
    static const char *const recompute[] = {"none", "selective", "full", "none"};
    for (int i = 0; i < 4; i++) {
        run_memory m[2]; /* eager, captured */
        for (int captured = 0; captured < 2; captured++) {
            char name[32];
            snprintf(name, sizeof(name), "plan-%d-%d", i, captured);
            tarn_train_options o = options_of(name, captured ? "on" : "off");
            snprintf(o.recompute, sizeof(o.recompute), "%s", recompute[i]);
            o.eval_every = o.steps = 6;
            o.batch_size = 8, o.micro_batch = 4;
            o.virtual_ranks = i == 3 ? 2 : 0;
            m[captured] = run(&o);
            int64_t used = m[captured].used;
            assert_in_range(m[captured].plan.memory_needed, used, used + used / 20);
        }
        assert_in_range(m[1].used, m[0].used, m[0].used + m[0].used / 20);
        assert_true(m[1].reserved <= m[0].reserved + 2 * (int64_t)TARN__POOL_SEGMENT);
    }
}

/* What the eager run takes on a device without a limit, measured in a process of its own: the limit is read when the
 * backend is opened, and the scratch of kernels depends on the build (without OpenBLAS it is larger). */
static int64_t eager_memory(void)
{
    int64_t taken = 0;
    int ends[2], status = 1;
    if (pipe(ends) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        void *state = NULL;
        make_scratch(&state);
        tarn_train_options eager = options_of("eager", "off");
        taken = run(&eager).reserved;
        remove_scratch(&state);
        _exit(write(ends[1], &taken, sizeof(taken)) != sizeof(taken));
    }
    close(ends[1]);
    bool has_read = child > 0 && read(ends[0], &taken, sizeof(taken)) == sizeof(taken);
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 && has_read ? taken : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_captured_run_fits_where_an_eager_one_does),
        in_scope(the_plan_of_a_captured_run_holds),
    };
    char limit[32];
    int64_t taken = eager_memory();
    if (taken <= 0)
        return 1;
    /* one segment more: less than an evaluation beside a live graph takes */
    snprintf(limit, sizeof(limit), "%lld", (long long)(taken + (int64_t)TARN__POOL_SEGMENT));
    setenv("TARN_MIRROR_MEMORY", limit, 1);
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

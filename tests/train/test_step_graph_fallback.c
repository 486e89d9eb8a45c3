/* test_step_graph_fallback.c: a step that cannot be captured, here for a kernel that only the CPU has: the run
 * continues with eager steps, or fails where capture was asked for. */
#include <stdlib.h>
#include <tarn/train.h>

#include "support/files.h"

static int warnings;
static char last_warning[512];

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == TARN_LOG_WARNING && strstr(text, "could not be captured")) {
        warnings++;
        snprintf(last_warning, sizeof(last_warning), "%s", text);
    }
}

static tarn_trainer *start(const char *folder, const char *capture)
{
    tarn_train_options options = {.model = "mlp",
                                  .data = "digits:60",
                                  .batch_size = 6,
                                  .steps = 12,
                                  .device = "mirror:0",
                                  .clip_norm = 1,
                                  .seed = 5};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    snprintf(options.capture, sizeof(options.capture), "%s", capture);
    tarn_trainer *trainer = tarn_trainer_new(&options);
    if (!trainer)
        fail_msg("%s", tarn_error());
    return trainer;
}

static void a_run_continues_with_eager_steps(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        tarn_trainer *trainer = start(i ? "auto" : "off", i ? "auto" : "off");
        if (!tarn_trainer_run(trainer, NULL, NULL, NULL))
            fail_msg("%s", tarn_error());
        tarn_trainer_free(trainer);
        assert_int_equal(warnings, i);
    }
    assert_contains(last_warning, "relu: a kernel that only the CPU has inside a captured step");
    for (int i = 0; i < 2; i++) {
        char path[2][1200];
        size_t count[2];
        snprintf(path[0], sizeof(path[0]), "%s/%s", scratch("off"), files[i]);
        snprintf(path[1], sizeof(path[1]), "%s/%s", scratch("auto"), files[i]);
        char *bytes_of[2] = {get_file(path[0], &count[0]), get_file(path[1], &count[1])};
        assert_int_equal(count[0], count[1]);
        assert_memory_equal(bytes_of[0], bytes_of[1], count[0]);
        free(bytes_of[0]);
        free(bytes_of[1]);
    }
}

static void a_run_that_must_capture_fails(void **state)
{
    (void)state;
    tarn_trainer *trainer = start("on", "on");
    assert_false(tarn_trainer_run(trainer, NULL, NULL, NULL));
    assert_error(TARN_ERROR_UNSUPPORTED, "relu: a kernel that only the CPU has inside a captured step");
    tarn_trainer_free(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_run_continues_with_eager_steps),
        in_scope(a_run_that_must_capture_fails),
    };
    setenv("TARN_MIRROR_DISABLE", "relu", 1); /* read when the backend is opened */
    tarn_set_log(listen, NULL);
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

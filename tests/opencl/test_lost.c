/* test_lost.c: a device that its driver removes: every call on it fails with a reason, its tensors can be freed, other
 * devices continue.
 *
 * The program interposes between the backend and the driver: it defines OpenCL's functions, which the backend finds
 * before the loader's. They pass calls on until a device is to be lost: then they fail as a driver does. PoCL is asked
 * for several devices, since each can be lost once. */
#include "support/loader.h"
#include "support/opencl.h"

#include <tarn/profile.h>

#define OUT_OF_RESOURCES (-5)
#define EVENT_QUEUE 0x11D0u

static void *gone;          /* a queue; NULL: all are there */
static int commands_left;   /* that it still takes */
static int kernels_refused; /* launches that fail alone, while the queue goes on */

static bool is_gone(void *queue)
{
    if (!gone || queue != gone)
        return false;
    if (commands_left == 0)
        return true;
    commands_left--;
    return false;
}

/* A function of OpenCL's that gives an error back. */
#define HANDED_ON(name, fails, parameters, ...) \
    __attribute__((visibility("default"))) int name parameters; \
    int name parameters \
    { \
        union { \
            void *found; \
            int(*call) parameters; \
        } real = {in_loader(#name)}; \
        return (fails) ? OUT_OF_RESOURCES : real.call(__VA_ARGS__); \
    }

static bool is_refused(void)
{
    return kernels_refused > 0 && kernels_refused-- > 0;
}

HANDED_ON(clEnqueueNDRangeKernel, is_refused() || is_gone(queue),
          (void *queue, void *kernel, unsigned rank, const size_t *offset, const size_t *global, const size_t *local,
           unsigned waits, void *const *list, void **event),
          queue, kernel, rank, offset, global, local, waits, list, event)
HANDED_ON(clEnqueueReadBuffer, is_gone(queue),
          (void *queue, void *memory, unsigned blocks, size_t offset, size_t bytes, void *to, unsigned waits,
           void *const *list, void **event),
          queue, memory, blocks, offset, bytes, to, waits, list, event)
HANDED_ON(clEnqueueWriteBuffer, is_gone(queue),
          (void *queue, void *memory, unsigned blocks, size_t offset, size_t bytes, const void *from, unsigned waits,
           void *const *list, void **event),
          queue, memory, blocks, offset, bytes, from, waits, list, event)
HANDED_ON(clEnqueueCopyBuffer, is_gone(queue),
          (void *queue, void *from, void *to, size_t from_offset, size_t to_offset, size_t bytes, unsigned waits,
           void *const *list, void **event),
          queue, from, to, from_offset, to_offset, bytes, waits, list, event)
HANDED_ON(clEnqueueUnmapMemObject, is_gone(queue),
          (void *queue, void *memory, void *at, unsigned waits, void *const *list, void **event), queue, memory, at,
          waits, list, event)
HANDED_ON(clEnqueueMigrateMemObjects, is_gone(queue),
          (void *queue, unsigned count, void *const *memories, uint64_t flags, unsigned waits, void *const *list,
           void **event),
          queue, count, memories, flags, waits, list, event)
HANDED_ON(clEnqueueMarkerWithWaitList, is_gone(queue), (void *queue, unsigned waits, void *const *list, void **event),
          queue, waits, list, event)
HANDED_ON(clEnqueueBarrierWithWaitList, is_gone(queue), (void *queue, unsigned waits, void *const *list, void **event),
          queue, waits, list, event)
HANDED_ON(clFlush, is_gone(queue), (void *queue), queue)
HANDED_ON(clFinish, is_gone(queue), (void *queue), queue)

static void *queue_of(void *event)
{
    union {
        void *found;
        int (*call)(void *, unsigned, size_t, void *, size_t *);
    } real = {in_loader("clGetEventInfo")};
    void *queue = NULL;
    return real.call(event, EVENT_QUEUE, sizeof(queue), &queue, NULL) == 0 ? queue : NULL;
}

HANDED_ON(clWaitForEvents, is_gone(queue_of(list[0])), (unsigned waits, void *const *list), waits, list)

__attribute__((visibility("default"))) void *clEnqueueMapBuffer(void *queue, void *memory, unsigned blocks,
                                                                uint64_t flags, size_t offset, size_t bytes,
                                                                unsigned waits, void *const *list, void **event,
                                                                int *error);
void *clEnqueueMapBuffer(void *queue, void *memory, unsigned blocks, uint64_t flags, size_t offset, size_t bytes,
                         unsigned waits, void *const *list, void **event, int *error)
{
    union {
        void *found;
        void *(*call)(void *, void *, unsigned, uint64_t, size_t, size_t, unsigned, void *const *, void **, int *);
    } real = {in_loader("clEnqueueMapBuffer")};
    if (!is_gone(queue))
        return real.call(queue, memory, blocks, flags, offset, bytes, waits, list, event, error);
    *error = OUT_OF_RESOURCES;
    return NULL;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static int next_device = 1; /* one for each loss; the first stays */

/* Skips where no device is left to be lost. */
#define TAKE_DEVICE(device) \
    tarn_device device = take_device(); \
    if (tarn_device_equal(device, tarn_device_cpu())) \
        skip();

static tarn_device take_device(void)
{
    char name[32];
    if (tarn_device_count("opencl") <= next_device)
        return tarn_device_cpu();
    snprintf(name, sizeof(name), "opencl:%d", next_device++);
    return tarn_device_parse(name);
}

static void lose(tarn_device device, int commands)
{
    gone = tarn_native_stream(device);
    commands_left = commands;
    assert_non_null(gone);
}

static tarn_tensor *numbers(tarn_device device)
{
    return tarn_from_f32((const float[]){1, -2, 3, 4}, TARN_SHAPE(2, 2), device);
}

static void others_go_on(void)
{
    tarn_tensor *x = good(numbers(opencl)), *y = good(numbers(tarn_device_cpu()));
    assert_values(tarn_add(x, x), 0, 2, -4, 6, 8);
    assert_values(tarn_matmul(y, y), 0, -5, -10, 15, 10);
    assert_true(tarn_synchronize(opencl));
}

static void a_lost_device_fails_with_a_reason_at_every_call(void **state)
{
    NEEDS_OPENCL();
    TAKE_DEVICE(device)
    char name[32], told[96];
    tarn_device_info info;
    tarn_tensor *x = good(numbers(device));
    float read[4];
    tarn_device_name(device, name, sizeof(name));
    assert_values(tarn_add(x, x), 0, 2, -4, 6, 8);
    lose(device, 0);
    tarn_stats_reset();
    assert_null(tarn_mul(x, x));
    snprintf(told, sizeof(told), "mul: %s failed: ", name);
    assert_error_about(TARN_ERROR_DEVICE, told,
                       "is lost (kernel 'elementwise': out of resources (OpenCL -5)): its tensors are gone; restart");
    gone = NULL; /* what a driver says later changes nothing */
    for (int i = 0; i < 2; i++) {
        assert_null(tarn_add(x, x));
        snprintf(told, sizeof(told), "add: %s failed: ", name);
        assert_error_about(TARN_ERROR_DEVICE, told, "is lost (");
    }
    assert_false(tarn_read_f32(x, read, 4));
    assert_error_about(TARN_ERROR_DEVICE, name, "is lost (");
    assert_null(numbers(device));
    assert_error_about(TARN_ERROR_DEVICE, name, "is lost (");
    assert_null(tarn_empty(TARN_SHAPE(64 << 20), TARN_F32, device)); /* more than the pool keeps */
    assert_error_about(TARN_ERROR_DEVICE, name, "is lost (");
    assert_false(tarn_synchronize(device));
    assert_error_about(TARN_ERROR_DEVICE, name, "is lost (");
    assert_null(tarn_event_record(device));
    assert_error(TARN_ERROR_DEVICE, "is lost (");
    assert_false(tarn_device_query(device, &info));
    assert_error_about(TARN_ERROR_DEVICE, name, "is lost (");
    assert_int_equal(tarn_stats().fallbacks, 0);
    others_go_on();
}

/* A step of training, whose parameters and tape lie on the device. */
static bool train(tarn_device device)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *w = tarn_requires_grad(numbers(device), true),
                *index = tarn_from_i64((const int64_t[]){1, 0}, TARN_SHAPE(2), device);
    tarn_tensor *h = tarn_tanh(tarn_matmul(tarn_index_select(w, 0, index), w));
    bool good = tarn_backward(tarn_sum(tarn_softmax(h, 1), TARN_ALL_AXES, false)) &&
                !isnan(tarn_item(tarn_sum(tarn_grad(w), TARN_ALL_AXES, false))) && tarn_synchronize(device);
    tarn_scope_close(scope);
    return good;
}

/* Wherever it happens, freeing and closing come to their end. */
static void a_device_may_be_lost_at_any_command(void **state)
{
    NEEDS_OPENCL();
    for (int commands = 0; commands < 40; commands += 1 + commands / 3) {
        TAKE_DEVICE(device)
        tarn_tensor *kept = good(tarn_keep(numbers(device)));
        tarn_event *event = tarn_event_record(device);
        if (!train(device))
            fail_msg("%s", tarn_error());
        lose(device, commands);
        while (train(device))
            assert_true(commands_left > 0);
        assert_error(TARN_ERROR_DEVICE, "is lost (");
        assert_false(train(device));
        assert_error(TARN_ERROR_DEVICE, "is lost (");
        tarn_event_free(event);
        tarn_free(kept);
        tarn_empty_cache(device);
        assert_false(tarn_failed());
        gone = NULL;
        others_go_on();
    }
}

/* Drivers say the same of a group that is too large for them. */
static void a_refused_kernel_loses_no_device(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(numbers(opencl));
    assert_values(tarn_neg(x), 0, -1, 2, -3, -4);
    tarn_stats_reset();
    kernels_refused = 1;
    assert_values(tarn_neg(x), 0, -1, 2, -3, -4);
    assert_int_equal(kernels_refused, 0);
    assert_int_equal(tarn_stats().fallbacks, 1);
    others_go_on();
}

int main(void)
{
    setenv("POCL_DEVICES",
           "pthread pthread pthread pthread pthread pthread pthread pthread pthread pthread pthread pthread pthread",
           1);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(a_refused_kernel_loses_no_device),
        ON_OPENCL(a_lost_device_fails_with_a_reason_at_every_call),
        ON_OPENCL(a_device_may_be_lost_at_any_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_drivers.c: drivers that fail, or offer unusable devices, next to one that works: each is logged once, by name,
 * and the others' devices are found.
 *
 * The program interposes between the backend and the loader: to the loader's platforms it adds one that fails, one
 * without devices and one whose device has no compiler; and it cuts the list of drivers in the environment after the
 * first name, as the Khronos loader does. */
#include "support/loader.h"
#include "support/opencl.h"

enum { FAILING, EMPTY, MUTE, MADE_UP };
#define LIST "OCL_ICD_FILENAMES"
#define PLATFORM_NAME 0x0902u
#define DEVICE_NAME 0x102Bu
#define TYPE_GPU 4u
#define DEVICE_NOT_FOUND (-1)
#define OUT_OF_HOST_MEMORY (-6)

static char platforms[MADE_UP], mute_device; /* their addresses are what the backend gets */
static const char *const names[MADE_UP] = {"Failing", "Empty", "Mute"};

static int made_up(const void *platform)
{
    for (int i = 0; i < MADE_UP; i++)
        if (platform == &platforms[i])
            return i;
    return -1;
}

static int give_text(const char *text, size_t size, void *to)
{
    snprintf(to, size, "%s", text);
    return 0;
}

#define FUNCTION(name, parameters) \
    __attribute__((visibility("default"))) int name parameters; \
    int name parameters

/* Before the loader's own. */
FUNCTION(clGetPlatformIDs, (unsigned room, void **ids, unsigned *found))
{
    union {
        void *found;
        int (*call)(unsigned, void **, unsigned *);
    } real = {in_loader("clGetPlatformIDs")};
    assert_true(ids && found && room > MADE_UP);
    for (int i = 0; i < MADE_UP; i++)
        ids[i] = &platforms[i];
    int error = real.call(room - MADE_UP, ids + MADE_UP, found);
    char *list = getenv(LIST);
    assert_non_null(list);
    list[strcspn(list, ":")] = 0;
    *found += MADE_UP;
    return error;
}

FUNCTION(clGetDeviceIDs, (void *platform, uint64_t type, unsigned room, void **ids, unsigned *found))
{
    union {
        void *found;
        int (*call)(void *, uint64_t, unsigned, void **, unsigned *);
    } real = {in_loader("clGetDeviceIDs")};
    if (made_up(platform) < 0)
        return real.call(platform, type, room, ids, found);
    if (made_up(platform) != MUTE || type != TYPE_GPU)
        return made_up(platform) == FAILING ? OUT_OF_HOST_MEMORY : DEVICE_NOT_FOUND;
    ids[0] = &mute_device;
    *found = 1;
    return 0;
}

FUNCTION(clGetPlatformInfo, (void *platform, unsigned what, size_t size, void *to, size_t *needed))
{
    union {
        void *found;
        int (*call)(void *, unsigned, size_t, void *, size_t *);
    } real = {in_loader("clGetPlatformInfo")};
    if (made_up(platform) < 0)
        return real.call(platform, what, size, to, needed);
    assert_int_equal(what, PLATFORM_NAME);
    return give_text(names[made_up(platform)], size, to);
}

/* All that is asked for besides its name is 0: no compiler. */
FUNCTION(clGetDeviceInfo, (void *device, unsigned what, size_t size, void *to, size_t *needed))
{
    union {
        void *found;
        int (*call)(void *, unsigned, size_t, void *, size_t *);
    } real = {in_loader("clGetDeviceInfo")};
    if (device != &mute_device)
        return real.call(device, what, size, to, needed);
    if (what == DEVICE_NAME)
        return give_text("A mute GPU", size, to);
    memset(to, 0, size);
    return 0;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static int warnings;
static char heard[1024], drivers[1024]; /* the list as it was */

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != TARN_LOG_WARNING)
        return;
    warnings++;
    snprintf(heard + strlen(heard), sizeof(heard) - strlen(heard), "%s\n", text);
}

static void failing_drivers_are_logged_once_and_the_others_work(void **state)
{
    NEEDS_OPENCL();
    assert_int_equal(warnings, 2);
    assert_contains(heard, "opencl: driver Failing cannot list its devices: out of host memory (OpenCL -6)");
    assert_contains(heard, "opencl: A mute GPU is ignored: its driver has no compiler");
    tarn_device_info info;
    assert_true(tarn_device_query(opencl, &info));
    assert_null(strstr(info.description, "mute"));
    tarn_tensor *x = good(tarn_from_f32((const float[]){1, 2}, TARN_SHAPE(2), opencl));
    assert_values(tarn_add(x, x), 0, 2, 4);
}

/* Else a program that this one starts would have fewer devices. */
static void the_list_of_drivers_is_restored(void **state)
{
    NEEDS_OPENCL();
    assert_string_equal(getenv(LIST), drivers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON_OPENCL(failing_drivers_are_logged_once_and_the_others_work),
                                       ON_OPENCL(the_list_of_drivers_is_restored)};
    tarn_set_log(listen, NULL); /* before the first device is asked for */
    setenv(LIST, "libnone.so:libnone.so.1", 0);
    snprintf(drivers, sizeof(drivers), "%s", getenv(LIST));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_platform.c: services of the operating system. */
#include "base/os/platform.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/files.h"

/* The name that is found in a text such as /proc/cpuinfo. */
static void expect_name(const char *text, const char *name)
{
    char found[128];
    FILE *file = tmpfile();
    assert_non_null(file);
    fputs(text, file);
    rewind(file);
    tarn__platform_parse_cpu_name(file, found, sizeof(found));
    fclose(file);
    assert_string_equal(found, name);
}

static void processors_have_names(void **state)
{
    (void)state;
    expect_name("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Processor\n",
                "Intel(R) Xeon(R) Processor");
    expect_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n\nCPU implementer\t: "
                "0x41\nCPU part\t: 0xd0c\n",
                "Arm Neoverse-V1");
    expect_name("CPU implementer\t: 0x61\nCPU part\t: 0xd40\n", "processor 0xd40 of implementer 0x61");
    expect_name("CPU part\t: 0xd40\n", "");
    expect_name("", "");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A control group of a limit, with `used` bytes of which the kernel would take `cache` back. */
static void make_group(const char *folder, const char *of_limit, const char *limit, const char *of_used,
                       const char *used, const char *cache)
{
    char name[200];
    mkdir(scratch(folder), 0777);
    snprintf(name, sizeof(name), "%s/%s", folder, of_limit);
    write_text(name, limit);
    snprintf(name, sizeof(name), "%s/%s", folder, of_used);
    write_text(name, used);
    snprintf(name, sizeof(name), "%s/memory.stat", folder);
    write_text(name, cache);
}

static int64_t left_of(const char *groups)
{
    char mounted[1200];
    snprintf(mounted, sizeof(mounted), "%s", scratch("cgroup"));
    return tarn__platform_cgroup_memory(mounted, write_text("groups", groups));
}

/* The nearest limit counts, of a group or of one around it; a group that cannot be seen is that of a container's root.
 */
static void limits_of_control_groups_count(void **state)
{
    (void)state;
    mkdir(scratch("cgroup"), 0777);
    make_group("cgroup/a", "memory.max", "5000\n", "memory.current", "1500\n", "file 700\ninactive_file 500\n");
    make_group("cgroup/a/b", "memory.max", "max\n", "memory.current", "1000\n", "inactive_file 0\n");
    make_group("cgroup/a/c", "memory.max", "300\n", "memory.current", "400\n", "");
    make_group("cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n", "memory.usage_in_bytes", "10\n", "");
    make_group("cgroup/memory/d", "memory.limit_in_bytes", "2000\n", "memory.usage_in_bytes", "900\n",
               "total_inactive_file 100\n");
    assert_int_equal(left_of("0::/a\n"), 4000);
    assert_int_equal(left_of("0::/a/b\n"), 4000);
    assert_int_equal(left_of("0::/a/c\n"), 0);
    assert_true(left_of("0::/\n") == INT64_MAX);
    assert_int_equal(left_of("5:cpu:/a\n4:memory:/d/elsewhere\n0::/a\n"), 1200);
    assert_true(left_of("4:memory:/elsewhere\n") > INT64_MAX / 2);
    assert_true(left_of("nonsense\n") == INT64_MAX);
    make_group("cgroup", "memory.max", "700\n", "memory.current", "100\n", "");
    assert_int_equal(left_of("0::/machine/container\n"), 600);
}

static long long address_space(void)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%lld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Half a gigabyte more of address space is no more memory than that, whatever the machine has. */
static void limits_of_the_process_count(void **state)
{
    (void)state;
    const int64_t more = INT64_C(512) << 20;
    struct rlimit before, limit, now;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    if (address_space() == 0 || tarn__platform_memory_free() <= 2 * more)
        skip();
    limit = before;
    limit.rlim_cur = (rlim_t)(address_space() + more);
    bool is_set =
        setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &now) == 0 && now.rlim_cur == limit.rlim_cur;
    int64_t left = tarn__platform_memory_free();
    setrlimit(RLIMIT_AS, &before);
    if (!is_set) /* an emulator that keeps limits to itself */
        skip();
    assert_true(left > 0 && left <= more + (1 << 20));
    assert_true(tarn__platform_memory_free() > more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(processors_have_names), in_scope(limits_of_control_groups_count),
                                       in_scope(limits_of_the_process_count)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

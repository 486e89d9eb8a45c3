/* test_platform.c: what is asked of the operating system. */
#include "base/platform.h"
#include "support/check.h"

/* The name that is found in a text such as /proc/cpuinfo. */
static void expect_name(const char *text, const char *name)
{
    char found[128];
    FILE *file = tmpfile();
    assert_non_null(file);
    fputs(text, file);
    rewind(file);
    tarn__platform_name_cpu(file, found, sizeof(found));
    fclose(file);
    assert_string_equal(found, name);
}

static void processors_have_names(void **state)
{
    (void)state;
    expect_name("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Processor\n", "Intel(R) Xeon(R) Processor");
    expect_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Arm Neoverse-V1");
    expect_name("CPU implementer\t: 0x61\nCPU part\t: 0xd40\n", "processor 0xd40 of maker 0x61");
    expect_name("CPU part\t: 0xd40\n", "");
    expect_name("", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(processors_have_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

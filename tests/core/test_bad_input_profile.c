/* test_bad_input_profile.c: invalid calls of the profiler. */
#include <tarn/profile.h>

#include "support/check.h"
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static void profiles(void **state)
{
    (void)state;
    tarn_profile_record record;
    tarn_profile_summary sum;
    tarn_profile_row row;
    const tarn_device nowhere = {7, 3};
    REFUSE(tarn_profile_stop, tarn_profile_stop());
    REFUSE(tarn_profile_count, tarn_profile_count() >= 0);
    REFUSE(tarn_profile_get, tarn_profile_get(0, &record));
    REFUSE(tarn_profile_summarize, tarn_profile_summarize(&sum, NULL, 0));
    REFUSE(tarn_profile_write_trace, tarn_profile_write_trace("nowhere.json"));
    REFUSE(tarn_profile_start, tarn_profile_start(nowhere));
    assert_false(tarn_profile_is_on());
    ACCEPT(tarn_profile_start(CPU));
    REFUSE(tarn_profile_start, tarn_profile_start(CPU));
    REFUSE(tarn_profile_get, tarn_profile_get(0, &record));
    REFUSE(tarn_profile_count, tarn_profile_count() >= 0);
    tarn_profile_clear(); /* not while it goes on */
    tarn_profile_span_open(NULL);
    tarn_profile_span_close();
    tarn_profile_span_close();
    ACCEPT(tarn_profile_stop());
    REFUSE(tarn_profile_get, tarn_profile_get(-1, &record));
    REFUSE(tarn_profile_get, tarn_profile_get(0, NULL));
    REFUSE(tarn_profile_get, tarn_profile_get(INT64_MAX, &record));
    REFUSE(tarn_profile_summarize, tarn_profile_summarize(NULL, NULL, 0));
    REFUSE(tarn_profile_summarize, tarn_profile_summarize(&sum, NULL, 4));
    REFUSE(tarn_profile_summarize, tarn_profile_summarize(&sum, &row, -1));
    REFUSE(tarn_profile_write_trace, tarn_profile_write_trace(NULL));
    REFUSE(tarn_profile_write_trace, tarn_profile_write_trace(""));
    REFUSE(tarn_profile_write_trace, tarn_profile_write_trace("/nosuch/folder/trace.json"));
    REFUSE(tarn_profile_part_name, tarn_profile_part_name(TARN_PARTS));
    REFUSE(tarn_profile_part_name, tarn_profile_part_name((tarn_profile_part)-1));
    tarn_profile_clear();
    tarn_profile_clear();
}

static void figures(void **state)
{
    (void)state;
    const tarn_device nowhere = {7, 3};
    REFUSE(tarn_device_peak_flops, tarn_device_peak_flops(CPU, NULL) > 0);
    REFUSE(tarn_device_peak_flops, tarn_device_peak_flops(CPU, "f8") > 0);
    REFUSE(tarn_device_peak_flops, tarn_device_peak_flops(nowhere, "f32") > 0);
    REFUSE(tarn_memory_kinds_of, tarn_memory_kinds_of(nowhere).peak > 0);
    ACCEPT(tarn_device_peak_flops(CPU, "bf16") >= 0);
}

#define refusing(test) cmocka_unit_test_setup_teardown(test, open_refusals, close_refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {refusing(profiles), refusing(figures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

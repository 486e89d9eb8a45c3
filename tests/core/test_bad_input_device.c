/* test_bad_input_device.c: invalid arguments to devices, events, captured steps and settings. */
#include "support/operands.h"

/* A step that cannot be done. */
static bool refuse_step(void *ctx)
{
    (void)ctx;
    return false;
}

static void devices_and_settings(void **state)
{
    (void)state;
    tarn_device_info info;
    char text[32];
    REFUSE(tarn_device_parse, tarn_device_parse(NULL));
    REFUSE(tarn_device_parse, tarn_device_parse("nosuch"));
    REFUSE(tarn_device_parse, tarn_device_parse("cpu:1"));
    REFUSE(tarn_device_query, tarn_device_query(cpu, NULL));
    REFUSE(tarn_device_query, tarn_device_query(nowhere, &info));
    REFUSE(tarn_device_query, tarn_device_query(negative, &info));
    REFUSE(tarn_synchronize, tarn_synchronize(nowhere));
    REFUSE(tarn_synchronize, tarn_synchronize(second_cpu));
    REFUSE(tarn_native_stream, tarn_native_stream(nowhere));
    tarn_set_tf32(false);
    tarn_event *event = tarn_event_record(cpu);
    REFUSE(tarn_event_record, tarn_event_record(nowhere));
    REFUSE(tarn_event_wait, tarn_event_wait(NULL));
    REFUSE(tarn_event_elapsed, tarn_event_elapsed(event, NULL));
    REFUSE(tarn_event_elapsed, tarn_event_elapsed(NULL, event));
    tarn_event_free(event);
    tarn_event_free(NULL);
    tarn_graph *graph = tarn_graph_capture(cpu, refuse_step, NULL); /* nothing runs before the first run */
    REFUSE(tarn_graph_capture, tarn_graph_capture(cpu, NULL, NULL));
    REFUSE(tarn_graph_capture, tarn_graph_capture(nowhere, refuse_step, NULL));
    REFUSE(tarn_graph_run, tarn_graph_run(NULL));
    REFUSE(tarn_graph_run, tarn_graph_run(graph));
    tarn_graph_free(graph);
    tarn_graph_free(NULL);
    REFUSE(tarn_empty_cache, tarn_empty_cache(nowhere));
    REFUSE(tarn_empty_cache, tarn_empty_cache((tarn_device){1000, 1000}));
    REFUSE(tarn_memory_of, tarn_memory_of(nowhere));
    REFUSE(tarn_memory_table, tarn_memory_table(nowhere, text, sizeof(text)));
    ACCEPT(tarn_memory_table(cpu, NULL, 0));
    REFUSE(tarn_set_backend_path, tarn_set_backend_path(NULL));
    REFUSE(tarn_set_threads, tarn_set_threads(-1));
    REFUSE(tarn_set_threads, tarn_set_threads(257));
    REFUSE(tarn_set_allocator, tarn_set_allocator(&(tarn_allocator){0}));
    REFUSE(tarn_set_allocator, tarn_set_allocator(NULL)); /* tensors are alive */
    /* the compiler would not let a NULL format pass */
    bool (*unchecked)(tarn_code, const char *, ...) = tarn_set_error;
    REFUSE(tarn_set_error, unchecked(TARN_ERROR_IO, NULL));
    ACCEPT(!tarn_suggest(NULL, NULL, -1) && !tarn_suggest("lr", NULL, 1));
    ACCEPT(tarn_device_name(cpu, NULL, 0));
    ACCEPT(tarn_device_name(nowhere, text, 1));
    ACCEPT(tarn_device_count(NULL) == 0 && tarn_device_count("") == 0);
    ACCEPT(tarn_backend_missing(NULL));
    ACCEPT(!tarn_backend_name(-1) && !tarn_backend_name(8) && !tarn_backend_name(INT32_MAX));
    ACCEPT(!tarn_backend_preferred(NULL, cpu) && !tarn_backend_preferred("nosuch", nowhere));
    REFUSE(tarn_backend_preferred, tarn_backend_preferred("cuda", nowhere));
    ACCEPT(tarn_device_equal(nowhere, negative));
    ACCEPT(tarn_device_cpu());
    ACCEPT(tarn_device_auto());
    ACCEPT(tarn_set_fallback((tarn_fallback)9));
    ACCEPT(tarn_set_fallback(TARN_FALLBACK_WARN));
    ACCEPT(tarn_set_cross_device((tarn_cross_device)9));
    ACCEPT(tarn_set_cross_device(TARN_CROSS_DEVICE_ERROR));
    ACCEPT(tarn_set_pool(true));
    ACCEPT(tarn_set_log(NULL, NULL));
    ACCEPT(tarn_set_log(tarn_log_stderr, NULL));
    ACCEPT(tarn_log_stderr(TARN_LOG_WARNING, NULL, NULL));
    ACCEPT(tarn_code_name((tarn_code)-5));
    ACCEPT(tarn_string_escape(NULL, 9, "x", 1, false));
    ACCEPT(tarn_string_escape(NULL, 0, NULL, 9, true));
    ACCEPT(tarn_version());
    ACCEPT(tarn_threads());
    ACCEPT(tarn_stats());
    ACCEPT(tarn_stats_reset());
    ACCEPT(tarn_clear_error());
    ACCEPT(tarn_error());
    ACCEPT(tarn_error_code());
    ACCEPT(tarn_failed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(devices_and_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

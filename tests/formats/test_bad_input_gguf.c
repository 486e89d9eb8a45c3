/* test_bad_input_gguf.c: invalid arguments to the functions of gguf.h. */
#include "support/refuse.h"
#include "support/scratch.h"

#define CPU tarn_device_cpu()

static void writing(void **state)
{
    (void)state;
    const char *path = scratch("x.gguf");
    const uint32_t number = 7, odd = 24;
    const uint8_t bad = 2;
    const char *const texts[] = {"a", NULL};
    tarn_tensor *x = vector(1, 2, 3);
    REFUSE(tarn_gguf_create, tarn_gguf_create(NULL));
    REFUSE(tarn_gguf_create, tarn_gguf_create(""));
    tarn_gguf_writer *w = tarn_gguf_create(path);
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(NULL, "k", TARN_GGUF_U32, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, NULL, TARN_GGUF_U32, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "", TARN_GGUF_U32, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "\xff", TARN_GGUF_U32, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "k", TARN_GGUF_STRING, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "k", (tarn_gguf_type)99, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "k", TARN_GGUF_U32, NULL));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "k", TARN_GGUF_BOOL, &bad));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "general.alignment", TARN_GGUF_U32, &odd));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "general.alignment", TARN_GGUF_I32, &number));
    ACCEPT(tarn_gguf_add_value(w, "k", TARN_GGUF_U32, &number));
    REFUSE(tarn_gguf_add_value, tarn_gguf_add_value(w, "k", TARN_GGUF_U32, &number));
    REFUSE(tarn_gguf_add_string, tarn_gguf_add_string(NULL, "t", "", 0));
    REFUSE(tarn_gguf_add_string, tarn_gguf_add_string(w, "t", NULL, 1));
    REFUSE(tarn_gguf_add_string, tarn_gguf_add_string(w, "k", "", 0));
    REFUSE(tarn_gguf_add_string, tarn_gguf_add_string(w, "general.alignment", "32", 2));
    REFUSE(tarn_gguf_add_array, tarn_gguf_add_array(NULL, "l", TARN_GGUF_U32, &number, 1));
    REFUSE(tarn_gguf_add_array, tarn_gguf_add_array(w, "l", TARN_GGUF_ARRAY, &number, 1));
    REFUSE(tarn_gguf_add_array, tarn_gguf_add_array(w, "l", TARN_GGUF_U32, NULL, 1));
    REFUSE(tarn_gguf_add_array, tarn_gguf_add_array(w, "l", TARN_GGUF_U32, &number, -1));
    REFUSE(tarn_gguf_add_strings, tarn_gguf_add_strings(NULL, "l", texts, NULL, 1));
    REFUSE(tarn_gguf_add_strings, tarn_gguf_add_strings(w, "l", texts, NULL, 2));
    REFUSE(tarn_gguf_add_strings, tarn_gguf_add_strings(w, "l", NULL, NULL, 2));
    REFUSE(tarn_gguf_add_strings, tarn_gguf_add_strings(w, "l", texts, NULL, -1));
    ACCEPT(tarn_gguf_add_strings(w, "l", texts, NULL, 1)); /* what was refused left nothing */
    REFUSE(tarn_gguf_add, tarn_gguf_add(NULL, "x", x));
    REFUSE(tarn_gguf_add, tarn_gguf_add(w, NULL, x));
    REFUSE(tarn_gguf_add, tarn_gguf_add(w, "", x));
    REFUSE(tarn_gguf_add, tarn_gguf_add(w, "x", NULL));
    ACCEPT(tarn_gguf_add(w, "x", x));
    REFUSE(tarn_gguf_finish, tarn_gguf_finish(NULL));
    ACCEPT(tarn_gguf_finish(w));
    ACCEPT(tarn_gguf_cancel(NULL), true);
    ACCEPT(tarn_gguf_cancel(tarn_gguf_create(path)), true);
    REFUSE(tarn_gguf_finish, tarn_gguf_finish(tarn_gguf_create("/nonexistent-folder/x")));
    ACCEPT(tarn_gguf_type_name((tarn_gguf_type)99));
    assert_null(tarn_gguf_file_type_name(-1));
    assert_null(tarn_gguf_file_type_name(INT64_MAX));
}

static void reading(void **state)
{
    (void)state;
    int64_t whole;
    double real;
    bool yes;
    size_t length;
    tarn_gguf_entry entry;
    tarn_gguf_value value;
    REFUSE(tarn_gguf_open, tarn_gguf_open(NULL));
    REFUSE(tarn_gguf_open, tarn_gguf_open(""));
    REFUSE(tarn_gguf_open, tarn_gguf_open("/nonexistent-folder/x"));
    tarn_gguf *file = tarn_gguf_open(scratch("x.gguf"));
    REFUSE(tarn_gguf_count, tarn_gguf_count(NULL));
    REFUSE(tarn_gguf_name, tarn_gguf_name(NULL, 0));
    REFUSE(tarn_gguf_name, tarn_gguf_name(file, 1));
    REFUSE(tarn_gguf_info, tarn_gguf_info(file, -1, &entry));
    REFUSE(tarn_gguf_info, tarn_gguf_info(file, 0, NULL));
    REFUSE(tarn_gguf_find, tarn_gguf_find(NULL, "x"));
    REFUSE(tarn_gguf_find, tarn_gguf_find(file, NULL));
    REFUSE(tarn_gguf_tensor, tarn_gguf_tensor(NULL, 0, CPU));
    REFUSE(tarn_gguf_tensor, tarn_gguf_tensor(file, 1, CPU));
    REFUSE(tarn_gguf_tensor, tarn_gguf_tensor(file, 0, (tarn_device){6, 0}));
    REFUSE(tarn_gguf_metadata_count, tarn_gguf_metadata_count(NULL));
    REFUSE(tarn_gguf_metadata_at, tarn_gguf_metadata_at(file, 2, &value));
    REFUSE(tarn_gguf_metadata_at, tarn_gguf_metadata_at(file, 0, NULL));
    REFUSE(tarn_gguf_has, tarn_gguf_has(NULL, "k", &value));
    REFUSE(tarn_gguf_has, tarn_gguf_has(file, NULL, &value));
    ACCEPT(tarn_gguf_has(file, "no", NULL));
    REFUSE(tarn_gguf_int, tarn_gguf_int(NULL, "k", 0, 9, &whole));
    REFUSE(tarn_gguf_int, tarn_gguf_int(file, NULL, 0, 9, &whole));
    REFUSE(tarn_gguf_int, tarn_gguf_int(file, "k", 0, 9, NULL));
    REFUSE(tarn_gguf_int, tarn_gguf_int(file, "k", 0, 6, &whole));
    REFUSE(tarn_gguf_int, tarn_gguf_int(file, "no", 0, 9, &whole));
    REFUSE(tarn_gguf_real, tarn_gguf_real(file, "l", &real));
    REFUSE(tarn_gguf_bool, tarn_gguf_bool(file, "k", &yes));
    REFUSE(tarn_gguf_string, tarn_gguf_string(file, "k", NULL));
    REFUSE(tarn_gguf_string, tarn_gguf_string(file, NULL, NULL));
    REFUSE(tarn_gguf_ints, tarn_gguf_ints(file, "k", &whole, 1));
    REFUSE(tarn_gguf_ints, tarn_gguf_ints(file, "l", &whole, 1));
    REFUSE(tarn_gguf_reals, tarn_gguf_reals(file, "l", &real, 1));
    REFUSE(tarn_gguf_string_at, tarn_gguf_string_at(file, "l", 1, &length));
    REFUSE(tarn_gguf_string_at, tarn_gguf_string_at(file, "l", -1, &length));
    REFUSE(tarn_gguf_string_at, tarn_gguf_string_at(file, "l", 0, NULL));
    REFUSE(tarn_gguf_string_at, tarn_gguf_string_at(file, "k", 0, &length));
    tarn_gguf_writer *w = tarn_gguf_create(scratch("y.gguf"));
    REFUSE(tarn_gguf_add_from, tarn_gguf_add_from(NULL, file, 0));
    REFUSE(tarn_gguf_add_from, tarn_gguf_add_from(w, NULL, 0));
    REFUSE(tarn_gguf_add_from, tarn_gguf_add_from(w, file, 2));
    ACCEPT(tarn_gguf_add_from(w, file, 0));
    REFUSE(tarn_gguf_add_from, tarn_gguf_add_from(w, file, 0));
    tarn_gguf_cancel(w);
    ACCEPT(tarn_gguf_close(file), true);
    ACCEPT(tarn_gguf_close(NULL), true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writing, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(reading, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* test_bad_input_formats.c: invalid arguments to the functions of safetensors.h. */
#include "support/refuse.h"
#include "support/scratch.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static void safetensors(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip(); /* then all of them refuse everything */
    const char *path = scratch("x.safetensors");
    const tarn_device nowhere = {6, 0};
    tarn_tensor *x = vector(1, 2, 3), *recorded = tarn_square(tarn_requires_grad(vector(1, 2, 3), true));
    tarn_safetensors_entry entry;
    REFUSE(tarn_safetensors_create, tarn_safetensors_create(NULL));
    REFUSE(tarn_safetensors_create, tarn_safetensors_create(""));
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(NULL, "x", x));
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(writer, NULL, x));
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(writer, "", x));
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(writer, "__metadata__", x));
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(writer, "\xff", x));
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(writer, "x", NULL));
    ACCEPT(tarn_safetensors_add(writer, "x", x));
    REFUSE(tarn_safetensors_add, tarn_safetensors_add(writer, "x", x));
    REFUSE(tarn_safetensors_add_checksums, tarn_safetensors_add_checksums(NULL));
    REFUSE(tarn_safetensors_add_metadata, tarn_safetensors_add_metadata(NULL, "k", "v"));
    REFUSE(tarn_safetensors_add_metadata, tarn_safetensors_add_metadata(writer, NULL, "v"));
    REFUSE(tarn_safetensors_add_metadata, tarn_safetensors_add_metadata(writer, "k", NULL));
    REFUSE(tarn_safetensors_add_metadata, tarn_safetensors_add_metadata(writer, "k", "\xc3"));
    ACCEPT(tarn_safetensors_add_metadata(writer, "k", "v"));
    REFUSE(tarn_safetensors_add_metadata, tarn_safetensors_add_metadata(writer, "k", "w"));
    REFUSE(tarn_safetensors_finish, tarn_safetensors_finish(NULL));
    ACCEPT(tarn_safetensors_finish(writer));
    ACCEPT(tarn_safetensors_cancel(NULL), true);
    ACCEPT(tarn_safetensors_cancel(tarn_safetensors_create(path)), true);
    REFUSE(tarn_safetensors_finish, tarn_safetensors_finish(tarn_safetensors_create("/nonexistent-folder/x")));
    REFUSE(tarn_safetensors_open, tarn_safetensors_open(NULL));
    REFUSE(tarn_safetensors_open, tarn_safetensors_open(""));
    REFUSE(tarn_safetensors_open, tarn_safetensors_open("/nonexistent-folder/x"));
    tarn_safetensors *file = tarn_safetensors_open(path);
    REFUSE(tarn_safetensors_count, tarn_safetensors_count(NULL));
    REFUSE(tarn_safetensors_name, tarn_safetensors_name(NULL, 0));
    REFUSE(tarn_safetensors_name, tarn_safetensors_name(file, 1));
    REFUSE(tarn_safetensors_name, tarn_safetensors_name(file, -1));
    REFUSE(tarn_safetensors_info, tarn_safetensors_info(NULL, 0, &entry));
    REFUSE(tarn_safetensors_info, tarn_safetensors_info(file, 1, &entry));
    REFUSE(tarn_safetensors_info, tarn_safetensors_info(file, 0, NULL));
    REFUSE(tarn_safetensors_find, tarn_safetensors_find(NULL, "x"));
    REFUSE(tarn_safetensors_find, tarn_safetensors_find(file, NULL));
    ACCEPT(tarn_safetensors_find(file, "y"));
    REFUSE(tarn_safetensors_read, tarn_safetensors_read(NULL, "x", CPU));
    REFUSE(tarn_safetensors_read, tarn_safetensors_read(file, NULL, CPU));
    REFUSE(tarn_safetensors_read, tarn_safetensors_read(file, "y", CPU));
    REFUSE(tarn_safetensors_read, tarn_safetensors_read(file, "x", nowhere));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(NULL, "x", x));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, NULL, x));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, "y", x));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, "x", NULL));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, "x", vector(1, 2)));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, "x", tarn_zeros(TARN_SHAPE(3), TARN_I32, CPU)));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, "x", recorded));
    REFUSE(tarn_safetensors_read_into, tarn_safetensors_read_into(file, "x", tarn_expand(vector(1), TARN_SHAPE(3))));
    REFUSE(tarn_safetensors_metadata, tarn_safetensors_metadata(NULL, "k"));
    REFUSE(tarn_safetensors_metadata, tarn_safetensors_metadata(file, NULL));
    REFUSE(tarn_safetensors_metadata_count, tarn_safetensors_metadata_count(NULL));
    REFUSE(tarn_safetensors_metadata_at, tarn_safetensors_metadata_at(NULL, 0, NULL, NULL));
    REFUSE(tarn_safetensors_metadata_at, tarn_safetensors_metadata_at(file, 1, NULL, NULL));
    ACCEPT(tarn_safetensors_metadata_at(file, 0, NULL, NULL));
    ACCEPT(tarn_safetensors_close(file), true);
    ACCEPT(tarn_safetensors_close(NULL), true);
}

static void nothing_happens_while_an_error_is_pending(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *path = scratch("pending.safetensors");
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    assert_true(tarn_safetensors_add(writer, "x", vector(1)));
    tarn_set_error(TARN_ERROR_IO, "something before");
    assert_false(tarn_safetensors_finish(writer)); /* frees the writer all the same */
    assert_null(tarn_safetensors_open(path));
    assert_null(tarn_safetensors_create(path));
    assert_error(TARN_ERROR_IO, "something before");
    assert_null(tarn_safetensors_open(path));
    assert_error(TARN_ERROR_IO, "No such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(safetensors, open_refusals, close_refusals),
        in_scope(nothing_happens_while_an_error_is_pending),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

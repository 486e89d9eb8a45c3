/* Bad input to communicators: every function is an error that names it, and none crashes. */
#include "support/check.h"

static void calls_without_a_communicator_are_errors(void **state)
{
    (void)state;
    int value = 0;
    size_t bytes = sizeof(value);
    tarn_tensor *part = NULL;
    assert_int_equal(tarn_comm_rank(NULL), -1);
    assert_error(TARN_ERROR_ARGUMENT, "comm_rank");
    assert_int_equal(tarn_comm_size(NULL), -1);
    assert_error(TARN_ERROR_ARGUMENT, "comm_size");
    assert_null(tarn_comm_host(NULL, 0));
    assert_error(TARN_ERROR_ARGUMENT, "comm_host");
    assert_false(tarn_comm_set_timeout(NULL, 1));
    assert_error(TARN_ERROR_ARGUMENT, "comm_set_timeout");
    assert_false(tarn_comm_set_notice(NULL, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "comm_set_notice");
    assert_false(tarn_comm_all_to_all(NULL, &value, &bytes, &value, &bytes));
    assert_error(TARN_ERROR_ARGUMENT, "comm_all_to_all");
    assert_false(tarn_comm_all_gather(NULL, &value, &value, &bytes));
    assert_error(TARN_ERROR_ARGUMENT, "comm_all_gather");
    assert_false(tarn_comm_broadcast(NULL, 0, &value, bytes));
    assert_error(TARN_ERROR_ARGUMENT, "comm_broadcast");
    assert_false(tarn_comm_barrier(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "comm_barrier");
    assert_false(tarn_comm_send(NULL, 0, &value, bytes));
    assert_error(TARN_ERROR_ARGUMENT, "comm_send");
    assert_false(tarn_comm_receive(NULL, 0, &value, bytes));
    assert_error(TARN_ERROR_ARGUMENT, "comm_receive");
    assert_false(tarn_comm_poll(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "comm_poll");
    assert_false(tarn_comm_sum(NULL, &part, 1, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "comm_sum");
    assert_false(tarn_comm_connect(NULL, tarn_device_cpu()));
    assert_error(TARN_ERROR_ARGUMENT, "comm_connect");
    assert_null(tarn_comm_transport(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "comm_transport");
    assert_false(tarn_comm_is_reporter(NULL));
    tarn_comm_abort(NULL, "no one hears it");
    tarn_comm_free(NULL);
    assert_ok();
}

static void arguments_out_of_range_are_errors(void **state)
{
    (void)state;
    tarn_comm *comm;
    int value = 0, other = 0;
    size_t bytes = sizeof(value), fewer = 1;
    unsetenv("WORLD_SIZE");
    assert_null(tarn_comm_torchrun());
    assert_error_about(TARN_ERROR_ARGUMENT, "comm_torchrun: WORLD_SIZE", "");
    assert_false(tarn_comm_threads(0, &comm));
    assert_error(TARN_ERROR_ARGUMENT, "comm_threads: 0 ranks");
    assert_false(tarn_comm_threads(1025, &comm));
    assert_error(TARN_ERROR_ARGUMENT, "1024");
    assert_false(tarn_comm_threads(1, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "NULL");
    assert_null(tarn_comm_sockets(2, 2, (int[]){0, 0, 0, 0}));
    assert_error(TARN_ERROR_ARGUMENT, "comm_sockets: rank 2 of 2");
    assert_null(tarn_comm_sockets(0, 2, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "`sockets` is NULL");
    assert_true(tarn_comm_threads(1, &comm));
    assert_null(tarn_comm_host(comm, 1));
    assert_error(TARN_ERROR_ARGUMENT, "rank 1");
    assert_false(tarn_comm_set_timeout(comm, -1));
    assert_error(TARN_ERROR_ARGUMENT, "-1");
    assert_false(tarn_comm_send(comm, 0, &value, bytes));
    assert_error(TARN_ERROR_ARGUMENT, "this rank");
    assert_false(tarn_comm_receive(comm, 1, &value, bytes));
    assert_error(TARN_ERROR_ARGUMENT, "rank 1");
    assert_false(tarn_comm_broadcast(comm, -1, &value, bytes));
    assert_error(TARN_ERROR_ARGUMENT, "rank -1");
    assert_false(tarn_comm_all_gather(comm, &value, &other, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "sizes");
    assert_false(tarn_comm_all_gather(comm, NULL, &other, &bytes));
    assert_error(TARN_ERROR_ARGUMENT, "memory");
    assert_false(tarn_comm_all_to_all(comm, &value, &bytes, &other, &fewer));
    assert_error(TARN_ERROR_ARGUMENT, "itself");
    tarn_comm_free(comm);
}

/* Devices whose link is not known have none; the rest is refused. */
static void links_of_devices(void **state)
{
    (void)state;
    char text[64] = "before";
    tarn_device cpu = tarn_device_cpu(), nowhere = {.backend = 7, .index = 3};
    assert_true(tarn_device_link(cpu, cpu, text, sizeof(text)));
    assert_string_equal(text, "");
    assert_false(tarn_device_link(cpu, nowhere, text, sizeof(text)));
    assert_error(TARN_ERROR_DEVICE, "device_link");
    assert_false(tarn_device_link(cpu, cpu, NULL, 0));
    assert_error(TARN_ERROR_ARGUMENT, "device_link: the buffer");
}

static void only_f32_tensors_of_one_size_are_summed(void **state)
{
    (void)state;
    tarn_comm *comm;
    assert_true(tarn_comm_threads(1, &comm));
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = vector(1, 2, 3), *ids = tarn_zeros(TARN_SHAPE(3), TARN_I32, tarn_device_cpu()), *none = NULL;
    assert_false(tarn_comm_sum(comm, &x, 0, x));
    assert_error(TARN_ERROR_ARGUMENT, "below 1");
    assert_false(tarn_comm_sum(comm, NULL, 1, x));
    assert_error(TARN_ERROR_ARGUMENT, "parts");
    assert_false(tarn_comm_sum(comm, &none, 1, x));
    assert_error(TARN_ERROR_ARGUMENT, "a part is NULL");
    assert_false(tarn_comm_sum(comm, &ids, 1, x));
    assert_error(TARN_ERROR_DTYPE, "i32");
    assert_false(tarn_comm_sum(comm, &x, 1, vector(1, 2)));
    assert_error(TARN_ERROR_SHAPE, "3 elements");
    tarn_scope_close(scope);
    tarn_comm_free(comm);
}

/* The tests' search path has no libtarn-mpi.so. */
static void a_missing_mpi_library_is_an_error(void **state)
{
    (void)state;
    assert_true(tarn_comm_launched() >= 1);
    assert_null(tarn_comm_mpi());
    assert_error(TARN_ERROR_UNSUPPORTED, "libtarn-mpi.so not found");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_without_a_communicator_are_errors),
        cmocka_unit_test(arguments_out_of_range_are_errors),
        cmocka_unit_test(links_of_devices),
        cmocka_unit_test(only_f32_tensors_of_one_size_are_summed),
        cmocka_unit_test(a_missing_mpi_library_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_dlpack.c: tensors shared by DLPack's structs: layouts, dtypes, lifetimes in any order, refused memory. */
#include <pthread.h>
#include <tarn/autograd.h>
#include <tarn/dlpack.h>
#include <tarn/profile.h>

#include "support/check.h"

#define CPU tarn_device_cpu()

/* What consumers and producers declare, as DLPack's ABI fixes it. */
typedef struct {
    void *data;
    int32_t device_type, device_id, rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensor {
    dl_tensor tensor;
    void *ctx;
    void (*deleter)(struct DLManagedTensor *self);
};

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    dl_tensor tensor;
};

/* A producer on memory of the test, which counts how often it is deleted. */
typedef struct producer {
    struct DLManagedTensorVersioned managed;
    struct DLManagedTensor legacy;
    int deleted;
} producer;

static void count_deleted(struct DLManagedTensorVersioned *self)
{
    ((producer *)self->ctx)->deleted++;
}

static void count_deleted_legacy(struct DLManagedTensor *self)
{
    ((producer *)self->ctx)->deleted++;
}

static producer *produce(producer *made, void *data, int rank, int64_t *shape, int64_t *strides)
{
    dl_tensor tensor = {.data = data, .device_type = 1, .rank = rank, .code = 2, .bits = 32, .lanes = 1};
    tensor.shape = shape;
    tensor.strides = strides;
    *made = (producer){.managed = {.major = 1, .ctx = made, .deleter = count_deleted, .tensor = tensor},
                       .legacy = {.tensor = tensor, .ctx = made, .deleter = count_deleted_legacy}};
    return made;
}

static int64_t blocks(void)
{
    return tarn_memory_of(CPU).blocks;
}

static void an_export_has_the_layout_of_a_view(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_reshape(tarn_arange(0, 24, 1, TARN_F32, CPU), TARN_SHAPE(2, 3, 4)));
    tarn_tensor *y = good(tarn_flip(tarn_permute(x, TARN_AXES(2, 0, 1)), TARN_AXES(0)));
    struct DLManagedTensorVersioned *shared = tarn_dlpack_export(y);
    assert_ok();
    assert_int_equal(shared->major, 1);
    assert_int_equal(shared->flags, 0);
    const dl_tensor *t = &shared->tensor;
    assert_ptr_equal(t->data, (float *)tarn_data(x) + 3);
    assert_int_equal(t->device_type, 1);
    assert_true(t->code == 2 && t->bits == 32 && t->lanes == 1 && t->byte_offset == 0 && t->rank == 3);
    int64_t shape[] = {4, 2, 3}, strides[] = {-1, 12, 4};
    assert_memory_equal(t->shape, shape, sizeof(shape));
    assert_memory_equal(t->strides, strides, sizeof(strides));
    shared->deleter(shared);
    tarn_scope_close(scope);
}

static void dtypes_go_both_ways(void **state)
{
    (void)state;
    tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_I32, TARN_I64, TARN_U8, TARN_BOOL};
    for (int i = 0; i < 8; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = good(tarn_ones(TARN_SHAPE(2, 3), dtypes[i], CPU));
        struct DLManagedTensor *shared = tarn_dlpack_export_legacy(x);
        assert_ok();
        assert_int_equal(shared->tensor.bits, dtypes[i] == TARN_BOOL ? 8 : 8 * tarn_dtype_size(dtypes[i]));
        tarn_tensor *y = good(tarn_dlpack_import_legacy(shared));
        assert_int_equal(tarn_dtype_of(y), dtypes[i]);
        assert_ptr_equal(tarn_data(y), tarn_data(x));
        assert_values(y, 0, 1, 1, 1, 1, 1, 1);
        tarn_scope_close(scope);
    }
}

static void exported_memory_outlives_the_tensor(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *scope = tarn_scope_open();
    struct DLManagedTensorVersioned *shared = tarn_dlpack_export(good(tarn_full(TARN_SHAPE(3), 7, TARN_F32, CPU)));
    tarn_scope_close(scope);
    assert_int_equal(blocks(), before + 1);
    assert_true(((float *)shared->tensor.data)[2] == 7);
    shared->deleter(shared);
    assert_int_equal(blocks(), before);
    assert_ok();
}

static void imported_memory_lives_as_long_as_its_views(void **state)
{
    (void)state;
    producer made;
    float values[] = {1, 2, 3, 4, 5, 6};
    int64_t shape[] = {2, 3};
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_dlpack_import(&produce(&made, values, 2, shape, NULL)->managed));
    assert_ptr_equal(tarn_data(x), values);
    tarn_tensor *view = tarn_keep(good(tarn_slice(x, 1, 1, 3)));
    tarn_scope_close(scope);
    assert_int_equal(made.deleted, 0);
    values[1] = 20; /* the same memory */
    assert_values(view, 0, 20, 3, 5, 6);
    assert_true(tarn_write(view, (float[]){-1, -2, -3, -4}, 4 * sizeof(float)));
    assert_true(values[1] == -1 && values[5] == -4 && values[0] == 1);
    tarn_free(view);
    assert_int_equal(made.deleted, 1);
    assert_ok();
}

static void any_strides_are_imported(void **state)
{
    (void)state;
    producer made[3];
    float values[] = {0, 1, 2, 3, 4, 5};
    int64_t shape[] = {3, 2}, transposed[] = {1, 3}, back[] = {-2, -1}, expanded[] = {0, 1};
    tarn_scope *scope = tarn_scope_open();
    assert_values(good(tarn_dlpack_import(&produce(&made[0], values, 2, shape, transposed)->managed)), 0, 0, 3, 1, 4, 2,
                  5);
    assert_values(good(tarn_dlpack_import(&produce(&made[1], values + 5, 2, shape, back)->managed)), 0, 5, 4, 3, 2, 1,
                  0);
    producer *offset = produce(&made[2], values, 2, shape, expanded);
    offset->managed.tensor.byte_offset = 8;
    assert_values(good(tarn_dlpack_import(&offset->managed)), 0, 2, 3, 2, 3, 2, 3);
    tarn_scope_close(scope);
    for (int i = 0; i < 3; i++)
        assert_int_equal(made[i].deleted, 1);
}

static void read_only_memory_is_copied(void **state)
{
    (void)state;
    producer made;
    static const float values[] = {1, 2};
    int64_t shape[] = {2};
    tarn_scope *scope = tarn_scope_open();
    produce(&made, (float *)values, 1, shape, NULL)->managed.flags = 1;
    tarn_tensor *x = good(tarn_dlpack_import(&made.managed));
    assert_int_equal(made.deleted, 1);
    assert_ptr_not_equal(tarn_data(x), values);
    assert_values(good(tarn_fill_inplace(x, 3)), 0, 3, 3);
    tarn_scope_close(scope);
}

static void an_empty_tensor_needs_no_memory(void **state)
{
    (void)state;
    producer made;
    int64_t shape[] = {0, 3};
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_dlpack_import(&produce(&made, NULL, 2, shape, NULL)->managed));
    assert_shape(x, 0, 3);
    assert_int_equal(made.deleted, 1);
    struct DLManagedTensorVersioned *shared = tarn_dlpack_export(x);
    assert_ok();
    shared->deleter(shared);
    tarn_scope_close(scope);
}

static void *delete_on_a_thread(void *shared)
{
    ((struct DLManagedTensorVersioned *)shared)->deleter(shared);
    return NULL;
}

static void another_thread_may_delete_an_export(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *scope = tarn_scope_open();
    struct DLManagedTensorVersioned *shared = tarn_dlpack_export(good(tarn_ones(TARN_SHAPE(64), TARN_F32, CPU)));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, delete_on_a_thread, shared), 0);
    tarn_scope_close(scope);
    pthread_join(thread, NULL);
    assert_int_equal(blocks(), before);
}

/* The owner of memory that a module lets go frees a handle, which needs the lock of the lists of handles. */
static tarn_tensor *other_handle;

static void free_a_handle(struct DLManagedTensorVersioned *self)
{
    ((producer *)self->ctx)->deleted++;
    tarn_free(other_handle);
}

static void an_owner_may_free_tensors_while_a_parameter_moves(void **state)
{
    (void)state;
    producer made;
    float values[] = {1, 2};
    int64_t shape[] = {2};
    tarn_scope *scope = tarn_scope_open();
    other_handle = tarn_keep(good(tarn_ones(TARN_SHAPE(1), TARN_F32, CPU)));
    produce(&made, values, 1, shape, NULL)->managed.deleter = free_a_handle;
    tarn_tensor *x = tarn_keep(good(tarn_dlpack_import(&made.managed)));
    tarn_module *parent = tarn_sequential(tarn_linear(2, 1, CPU), NULL);
    assert_non_null(tarn_module_add_parameter(parent, "extra", x));
    tarn_optimizer *optimizer = tarn_sgd(parent, &(tarn_sgd_options){.lr = 0.1f});
    assert_ok();
    tarn_scope_close(scope);
    assert_int_equal(made.deleted, 1);
    assert_values(tarn_module_find(parent, "extra"), 0, 1, 2);
    tarn_optimizer_free(optimizer);
    tarn_module_free(parent);
    assert_ok();
}

/* The import of a struct that is changed like this is an error, and deletes it. */
#define refused(change, code_of, text) \
    do { \
        producer made; \
        float values[4] = {0}; \
        int64_t shape[] = {2, 2}; \
        struct DLManagedTensorVersioned *m = &produce(&made, values, 2, shape, NULL)->managed; \
        change; \
        assert_null(tarn_dlpack_import(m)); \
        assert_error(code_of, text); \
        assert_int_equal(made.deleted, 1); \
    } while (0)

static void memory_that_tarn_cannot_have_is_refused(void **state)
{
    (void)state;
    refused(m->major = 2, TARN_ERROR_UNSUPPORTED, "DLPack 2.0");
    refused((m->tensor.code = 0, m->tensor.bits = 16), TARN_ERROR_DTYPE, "int of 16 bits");
    refused((m->tensor.code = 5, m->tensor.bits = 64), TARN_ERROR_DTYPE, "complex of 64 bits");
    refused(m->tensor.lanes = 4, TARN_ERROR_DTYPE, "4 lanes");
    refused(m->tensor.device_type = 8, TARN_ERROR_UNSUPPORTED, "type 8");
    refused(m->tensor.rank = 9, TARN_ERROR_SHAPE, "9 axes");
    refused(m->tensor.rank = -1, TARN_ERROR_SHAPE, "-1 axes");
    refused(m->tensor.shape = NULL, TARN_ERROR_ARGUMENT, "shape is NULL");
    refused(shape[1] = -1, TARN_ERROR_SHAPE, "-1");
    refused(m->tensor.byte_offset = 2, TARN_ERROR_ARGUMENT, "not a multiple of 4 bytes");
    int64_t strides[] = {INT64_MAX, 1};
    refused(m->tensor.strides = strides, TARN_ERROR_SHAPE, "beyond any memory");
    assert_null(tarn_dlpack_import(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "NULL");
}

static void a_pending_error_deletes_what_was_given(void **state)
{
    (void)state;
    producer made;
    float value = 0;
    tarn_set_error(TARN_ERROR_IO, "pending");
    assert_null(tarn_dlpack_import(&produce(&made, &value, 0, NULL, NULL)->managed));
    assert_int_equal(made.deleted, 1);
    assert_null(tarn_dlpack_import_legacy(&produce(&made, &value, 0, NULL, NULL)->legacy));
    assert_int_equal(made.deleted, 1);
    assert_error(TARN_ERROR_IO, "pending");
}

static void tensors_that_cannot_be_shared_are_refused(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(2), TARN_F32, CPU), true));
    assert_null(tarn_dlpack_export(x));
    assert_error(TARN_ERROR_ARGUMENT, "detach");
    assert_null(tarn_dlpack_export(tarn_square(x)));
    assert_error(TARN_ERROR_ARGUMENT, "detach");
    assert_null(tarn_dlpack_export(tarn_cast(tarn_ones(TARN_SHAPE(32), TARN_F32, CPU), TARN_Q8_0)));
    assert_error(TARN_ERROR_DTYPE, "q8_0");
    struct DLManagedTensorVersioned *shared = tarn_dlpack_export(good(tarn_detach(x)));
    assert_ok();
    shared->deleter(shared);
    tarn_scope_close(scope);
}

/* A capsule of Python, as far as its destructor sees it: the functions below are PyCapsule_IsValid() and
 * PyCapsule_GetPointer(). */
typedef struct capsule {
    const char *name;
    void *pointer;
} capsule;

static int is_valid(void *given, const char *name)
{
    const capsule *seen = given;
    return seen->pointer && strcmp(seen->name, name) == 0;
}

static void *pointer_of(void *given, const char *name)
{
    assert_true(is_valid(given, name)); /* Python's raises for any other */
    return ((const capsule *)given)->pointer;
}

static void a_capsule_deletes_what_no_consumer_took(void **state)
{
    (void)state;
    assert_true(tarn_dlpack_set_capsule_functions(is_valid, pointer_of));
    int64_t before = blocks();
    for (int versioned = 0; versioned < 2; versioned++)
        for (int used = 0; used < 2; used++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *x = good(tarn_ones(TARN_SHAPE(3), TARN_F32, CPU));
            struct DLManagedTensorVersioned *shared = versioned ? tarn_dlpack_export(x) : NULL;
            struct DLManagedTensor *legacy = versioned ? NULL : tarn_dlpack_export_legacy(x);
            assert_ok();
            tarn_scope_close(scope);
            assert_int_equal(blocks(), before + 1);
            capsule made = {tarn_dlpack_capsule_name(versioned, used), versioned ? (void *)shared : (void *)legacy};
            tarn_set_error(TARN_ERROR_IO, "pending");
            tarn_dlpack_capsule_destroy(&made);
            assert_error(TARN_ERROR_IO, "pending");
            assert_int_equal(blocks(), used ? before + 1 : before);
            if (used && versioned)
                shared->deleter(shared);
            else if (used)
                legacy->deleter(legacy);
            assert_int_equal(blocks(), before);
        }
    capsule other = {"another", &other};
    tarn_dlpack_capsule_destroy(&other);
    assert_ok();
}

static void capsules_have_the_names_of_dlpack(void **state)
{
    (void)state;
    assert_string_equal(tarn_dlpack_capsule_name(false, false), "dltensor");
    assert_string_equal(tarn_dlpack_capsule_name(false, true), "used_dltensor");
    assert_string_equal(tarn_dlpack_capsule_name(true, false), "dltensor_versioned");
    assert_string_equal(tarn_dlpack_capsule_name(true, true), "used_dltensor_versioned");
    assert_false(tarn_dlpack_set_capsule_functions(is_valid, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "PyCapsule_GetPointer");
    assert_false(tarn_dlpack_set_capsule_functions(NULL, pointer_of));
    assert_error(TARN_ERROR_ARGUMENT, "PyCapsule_IsValid");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_export_has_the_layout_of_a_view),
        cmocka_unit_test(dtypes_go_both_ways),
        cmocka_unit_test(exported_memory_outlives_the_tensor),
        cmocka_unit_test(imported_memory_lives_as_long_as_its_views),
        cmocka_unit_test(any_strides_are_imported),
        cmocka_unit_test(read_only_memory_is_copied),
        cmocka_unit_test(an_empty_tensor_needs_no_memory),
        cmocka_unit_test(another_thread_may_delete_an_export),
        cmocka_unit_test(an_owner_may_free_tensors_while_a_parameter_moves),
        cmocka_unit_test(memory_that_tarn_cannot_have_is_refused),
        cmocka_unit_test(a_pending_error_deletes_what_was_given),
        cmocka_unit_test(tensors_that_cannot_be_shared_are_refused),
        cmocka_unit_test(a_capsule_deletes_what_no_consumer_took),
        cmocka_unit_test(capsules_have_the_names_of_dlpack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

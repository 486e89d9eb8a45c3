/* test_bad_input_tensor.c: invalid arguments to the creation, reading and ownership of tensors. */
#include "support/operands.h"

static void making(void **state)
{
    (void)state;
    float value = 1;
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(-1), TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(rank_9, TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(rank_minus, TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(INT64_MAX, INT64_MAX), TARN_F32, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(INT64_MAX), TARN_F64, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(HUGE_SIZE), TARN_U8, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), BAD_DTYPE, cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), TARN_F32, nowhere));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), TARN_F32, second_cpu));
    REFUSE(tarn_empty, tarn_empty(TARN_SHAPE(3), TARN_F32, negative));
    REFUSE(tarn_zeros, tarn_zeros(TARN_SHAPE(2, -3), TARN_F32, cpu));
    REFUSE(tarn_zeros, tarn_zeros(TARN_SHAPE(2), TARN_F32, nowhere));
    REFUSE(tarn_zeros, tarn_zeros(TARN_SHAPE(2), (tarn_dtype)-1, cpu));
    REFUSE(tarn_ones, tarn_ones(rank_9, TARN_F32, cpu));
    REFUSE(tarn_ones, tarn_ones(TARN_SHAPE(2), TARN_F32, nowhere));
    REFUSE(tarn_full, tarn_full(TARN_SHAPE(HUGE_SIZE, HUGE_SIZE), 1, TARN_F32, cpu));
    REFUSE(tarn_full, tarn_full(TARN_SHAPE(2), 1, BAD_DTYPE, cpu));
    REFUSE(tarn_dlpack_export, tarn_dlpack_export(NULL));
    REFUSE(tarn_dlpack_export, tarn_dlpack_export(freed));
    REFUSE(tarn_dlpack_export_legacy, tarn_dlpack_export_legacy(NULL));
    REFUSE(tarn_dlpack_export_legacy, tarn_dlpack_export_legacy(freed));
    REFUSE(tarn_dlpack_import, tarn_dlpack_import(NULL));
    REFUSE(tarn_dlpack_import_legacy, tarn_dlpack_import_legacy(NULL));
    REFUSE(tarn_dlpack_set_capsule_functions, tarn_dlpack_set_capsule_functions(NULL, NULL));
    ACCEPT(tarn_dlpack_capsule_name(true, true));
    ACCEPT(tarn_dlpack_capsule_destroy(NULL));
    REFUSE(tarn_empty_like, tarn_empty_like(NULL));
    REFUSE(tarn_empty_like, tarn_empty_like(freed));
    REFUSE(tarn_zeros_like, tarn_zeros_like(NULL));
    REFUSE(tarn_zeros_like, tarn_zeros_like(freed));
    REFUSE(tarn_ones_like, tarn_ones_like(NULL));
    REFUSE(tarn_ones_like, tarn_ones_like(freed));
    REFUSE(tarn_full_like, tarn_full_like(NULL, 1));
    REFUSE(tarn_full_like, tarn_full_like(freed, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(NULL, 0, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(freed, 0, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(i64, 0, 1));
    REFUSE(tarn_uniform_like, tarn_uniform_like(f, NAN, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(NULL, 0, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(freed, 0, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(boolean, 0, 1));
    REFUSE(tarn_normal_like, tarn_normal_like(f, 0, -1));
    REFUSE(tarn_arange, tarn_arange(0, 1, 0, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 1, NAN, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(NAN, 1, 1, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, INFINITY, 1, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 1e18, 1, TARN_F32, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 8e15, 1, TARN_F64, cpu));
    REFUSE(tarn_arange, tarn_arange(1e300, 1e300, 1, TARN_I64, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 3, 1, TARN_BOOL, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 3, 1, BAD_DTYPE, cpu));
    REFUSE(tarn_arange, tarn_arange(0, 3, 1, TARN_F32, nowhere));
    REFUSE(tarn_eye, tarn_eye(-1, 2, TARN_F32, cpu));
    REFUSE(tarn_eye, tarn_eye(HUGE_SIZE, HUGE_SIZE, TARN_F32, cpu));
    REFUSE(tarn_eye, tarn_eye(2, 2, BAD_DTYPE, cpu));
    REFUSE(tarn_eye, tarn_eye(2, 2, TARN_F32, nowhere));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 0, 1, TARN_I32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 0, INFINITY, TARN_F32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 2, 1, TARN_F32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(rank_minus, 0, 1, TARN_F32, cpu));
    REFUSE(tarn_uniform, tarn_uniform(TARN_SHAPE(2), 0, 1, TARN_F32, nowhere));
    REFUSE(tarn_normal, tarn_normal(TARN_SHAPE(2), 0, 1, TARN_U8, cpu));
    REFUSE(tarn_normal, tarn_normal(TARN_SHAPE(2), 0, -1, TARN_F32, cpu));
    REFUSE(tarn_normal, tarn_normal(TARN_SHAPE(2), NAN, 1, TARN_F32, cpu));
    REFUSE(tarn_from, tarn_from(NULL, TARN_SHAPE(1), TARN_F32, cpu));
    REFUSE(tarn_from, tarn_from(&value, TARN_SHAPE(-1), TARN_F32, cpu));
    REFUSE(tarn_from, tarn_from(&value, TARN_SHAPE(1), BAD_DTYPE, cpu));
    REFUSE(tarn_from, tarn_from(&value, TARN_SHAPE(1), TARN_F32, nowhere));
    REFUSE(tarn_from, tarn_from_f32(NULL, TARN_SHAPE(1), cpu));
    REFUSE(tarn_from, tarn_from_f64(NULL, TARN_SHAPE(1), cpu));
    REFUSE(tarn_from, tarn_from_i32(NULL, TARN_SHAPE(1), cpu));
    REFUSE(tarn_from, tarn_from_i64(NULL, rank_9, cpu));
    REFUSE(tarn_from, tarn_from_u8(NULL, TARN_SHAPE(1), nowhere));
    ACCEPT(tarn_scalar(NAN));
    ACCEPT(tarn_seed(UINT64_MAX));
}

static void asking_and_reading(void **state)
{
    (void)state;
    float values[6] = {0};
    double wide[6];
    char text[16];
    REFUSE(tarn_dtype_of, tarn_dtype_of(NULL));
    REFUSE(tarn_dtype_of, tarn_dtype_of(freed));
    REFUSE(tarn_rank, tarn_rank(NULL));
    REFUSE(tarn_rank, tarn_rank(freed));
    REFUSE(tarn_shape_of, tarn_shape_of(NULL));
    REFUSE(tarn_shape_of, tarn_shape_of(freed));
    REFUSE(tarn_size, tarn_size(NULL, 0));
    REFUSE(tarn_size, tarn_size(freed, 0));
    REFUSE(tarn_size, tarn_size(f, 1));
    REFUSE(tarn_size, tarn_size(scalar, 0));
    REFUSE(tarn_stride_of, tarn_stride_of(NULL, 0));
    REFUSE(tarn_stride_of, tarn_stride_of(freed, 0));
    REFUSE(tarn_stride_of, tarn_stride_of(f, -2));
    REFUSE(tarn_count, tarn_count(NULL));
    REFUSE(tarn_count, tarn_count(freed));
    REFUSE(tarn_bytes, tarn_bytes(NULL));
    REFUSE(tarn_bytes, tarn_bytes(freed));
    REFUSE(tarn_device_of, tarn_device_of(NULL));
    REFUSE(tarn_device_of, tarn_device_of(freed));
    REFUSE(tarn_is_contiguous, tarn_is_contiguous(NULL));
    REFUSE(tarn_is_contiguous, tarn_is_contiguous(freed));
    REFUSE(tarn_name, tarn_name(NULL));
    REFUSE(tarn_name, tarn_name(freed));
    REFUSE(tarn_set_name, tarn_set_name(NULL, "x"));
    REFUSE(tarn_set_name, tarn_set_name(freed, "x"));
    REFUSE(tarn_set_name, tarn_set_name(f, NULL));
    REFUSE(tarn_read, tarn_read(NULL, values, 12));
    REFUSE(tarn_read, tarn_read(freed, values, 12));
    REFUSE(tarn_read, tarn_read(f, NULL, 12));
    REFUSE(tarn_read, tarn_read(f, values, 11));
    REFUSE(tarn_read, tarn_read(f, values, 24));
    REFUSE(tarn_read_f32, tarn_read_f32(NULL, values, 3));
    REFUSE(tarn_read_f32, tarn_read_f32(freed, values, 3));
    REFUSE(tarn_read_f32, tarn_read_f32(f, NULL, 3));
    REFUSE(tarn_read_f32, tarn_read_f32(f, values, -3));
    REFUSE(tarn_read_f64, tarn_read_f64(NULL, wide, 3));
    REFUSE(tarn_read_f64, tarn_read_f64(freed, wide, 3));
    REFUSE(tarn_read_f64, tarn_read_f64(f, NULL, 3));
    REFUSE(tarn_read_f64, tarn_read_f64(f, wide, 2));
    REFUSE(tarn_item, tarn_item(NULL));
    REFUSE(tarn_item, tarn_item(freed));
    REFUSE(tarn_item, tarn_item(f));
    REFUSE(tarn_item, tarn_item(empty));
    REFUSE(tarn_item_at, tarn_item_at(NULL, TARN_SHAPE(0)));
    REFUSE(tarn_item_at, tarn_item_at(freed, TARN_SHAPE(0)));
    REFUSE(tarn_item_at, tarn_item_at(f, TARN_SHAPE(3)));
    REFUSE(tarn_item_at, tarn_item_at(f, TARN_SHAPE(INT64_MIN)));
    REFUSE(tarn_item_at, tarn_item_at(f, TARN_SCALAR));
    REFUSE(tarn_item_at, tarn_item_at(f, rank_9));
    REFUSE(tarn_write, tarn_write(NULL, values, 12));
    REFUSE(tarn_write, tarn_write(freed, values, 12));
    REFUSE(tarn_write, tarn_write(f, NULL, 12));
    REFUSE(tarn_write, tarn_write(f, values, 13));
    REFUSE(tarn_write, tarn_write(expanded, values, 24));
    REFUSE(tarn_write, tarn_write(recorded, values, 12));
    REFUSE(tarn_write, tarn_write(tarn_scalar(1), wide, 8));
    REFUSE(tarn_data, tarn_data(NULL));
    REFUSE(tarn_data, tarn_data(freed));
    REFUSE(tarn_format, tarn_format(NULL, text, sizeof(text)));
    REFUSE(tarn_format, tarn_format(freed, text, sizeof(text)));
    REFUSE(tarn_format, tarn_format(f, NULL, 3));
    REFUSE(tarn_print, tarn_print(NULL));
    REFUSE(tarn_print, tarn_print(freed));
    REFUSE(tarn_to, tarn_to(NULL, cpu));
    REFUSE(tarn_to, tarn_to(freed, cpu));
    REFUSE(tarn_to, tarn_to(f, nowhere));
    REFUSE(tarn_copy, tarn_copy(NULL, f));
    REFUSE(tarn_copy, tarn_copy(freed, f));
    REFUSE(tarn_copy, tarn_copy(f, NULL));
    REFUSE(tarn_copy, tarn_copy(f, freed));
    REFUSE(tarn_copy, tarn_copy(f, f23));
    REFUSE(tarn_copy, tarn_copy(expanded, f23));
    REFUSE(tarn_copy, tarn_copy(recorded, f));
    REFUSE(tarn_dtype_parse, tarn_dtype_parse(NULL));
    REFUSE(tarn_dtype_parse, tarn_dtype_parse("float"));
    ACCEPT(tarn_dtype_name(BAD_DTYPE));
    ACCEPT(tarn_dtype_size(BAD_DTYPE));
    ACCEPT(tarn_dtype_block_size(BAD_DTYPE));
}

static void scopes(void **state)
{
    (void)state;
    tarn_scope *closed = tarn_scope_open();
    tarn_scope_close(closed);
    ACCEPT(tarn_scope_close(NULL));
    REFUSE(tarn_scope_close, tarn_scope_close(closed));
    REFUSE(tarn_scope_return, tarn_scope_return(NULL, f));
    REFUSE(tarn_scope_return, tarn_scope_return(closed, f));
    tarn_scope *open = tarn_scope_open();
    REFUSE(tarn_scope_return, tarn_scope_return(open, NULL));
    REFUSE(tarn_scope_return, tarn_scope_return(open, freed));
    tarn_scope_close(open);
    REFUSE(tarn_keep, tarn_keep(NULL));
    REFUSE(tarn_keep, tarn_keep(freed));
    ACCEPT(tarn_free(NULL));
    REFUSE(tarn_free, tarn_free(freed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_operands(making),
        with_operands(asking_and_reading),
        with_operands(scopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

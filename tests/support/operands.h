/* operands.h: operands of all kinds, for tests of invalid arguments. */
#ifndef TESTS_OPERANDS_H
#define TESTS_OPERANDS_H

#include "support/refuse.h"

static tarn_tensor *f, *f23, *d, *i64, *u8, *boolean, *expanded, *empty, *scalar, *recorded, *elsewhere, *freed;
static tarn_device cpu, mirror;
static const tarn_device nowhere = {6, 0}, second_cpu = {0, 1}, negative = {0, -1};
static const tarn_shape rank_9 = {9, {1}}, rank_minus = {-1, {1}};

#define HUGE_SIZE ((int64_t)1 << 61)
#define BAD_DTYPE ((tarn_dtype)77)

static inline int make_operands(void **state)
{
    if (open_refusals(state) != 0)
        return -1;
    cpu = tarn_device_cpu();
    mirror = tarn_device_parse("mirror:1");
    f = vector(1, 2, 3);
    f23 = tarn_ones(TARN_SHAPE(2, 3), TARN_F32, cpu);
    d = tarn_ones(TARN_SHAPE(3), TARN_F64, cpu);
    i64 = tarn_arange(0, 3, 1, TARN_I64, cpu);
    u8 = tarn_cast(i64, TARN_U8);
    boolean = tarn_cast(f, TARN_BOOL);
    expanded = tarn_expand(tarn_ones(TARN_SHAPE(1, 3), TARN_F32, cpu), TARN_SHAPE(2, 3));
    empty = tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, cpu);
    scalar = tarn_zeros(TARN_SCALAR, TARN_F32, cpu);
    recorded = tarn_square(tarn_requires_grad(vector(1, 2, 3), true));
    freed = vector(1, 2, 3);
    tarn_free(freed);
    elsewhere = tarn_ones(TARN_SHAPE(3), TARN_F32, mirror);
    return tarn_failed() ? -1 : 0;
}

#define with_operands(test) cmocka_unit_test_setup_teardown(test, make_operands, close_refusals)

/* For tables of functions, whose rows have a name and a call. */
#define EACH(table) for (size_t n = 0; n < sizeof(table) / sizeof(table[0]); n++)
#define REFUSE_ROW(row, ...) \
    do { \
        (void)(row).call(__VA_ARGS__); \
        check_refused((row).name, (row).name, __LINE__); \
    } while (0)

#endif

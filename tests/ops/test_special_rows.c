/*
 * Operations along rows and conversions between types, with zeros, infinities, NaN and subnormals in every position of
 * rows of many lengths, at every instruction level: what a row gives does not depend on the rows beside it, a NaN is
 * never lost, the largest element is found wherever it stands, and an element alone converts bitwise identically.
 */
#include "base/half.h"
#include "support/check.h"
#include "support/levels.h"

enum { LONGEST = 261, ROWS = 21 };

static const int lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 129, 257, LONGEST};
static const uint32_t specials[] = {
    0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7fd2a000, 0xffe16000,
    0x00000001, 0x80000001, 0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x42b00000, 0xc2d20000,
    0x477fe000, 0xc77fe000, 0x47800000, 0x33800000, 0x33000000, 0xb8000000, 0x7f800001, 0xff812345,
};
enum { SPECIALS = sizeof(specials) / sizeof(specials[0]), LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Rows of ordinary numbers, all but every third with a special one in some place. */
static void fill_rows(float *x, int rows, int length)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < length; i++)
            x[r * length + i] = (float)((r * 31 + i * 17) % 97) * 0.11f - 4.0f;
        if (r % 3 != 2) {
            uint32_t bits = specials[(r * 5 + length) % SPECIALS];
            memcpy(&x[r * length + (r * 7 + length / 2) % length], &bits, sizeof(bits));
        }
    }
}

static tarn_tensor *layernorm(tarn_tensor *x, int axis)
{
    int64_t length = tarn_size(x, axis);
    return tarn_layernorm(x, tarn_ones(TARN_SHAPE(length), TARN_F32, tarn_device_cpu()),
                          tarn_zeros(TARN_SHAPE(length), TARN_F32, tarn_device_cpu()), 1e-5);
}

static tarn_tensor *rmsnorm(tarn_tensor *x, int axis)
{
    return tarn_rmsnorm(x, tarn_ones(TARN_SHAPE(tarn_size(x, axis)), TARN_F32, tarn_device_cpu()), 1e-5);
}

/* Along axis 1, where rows lie one after another, or along axis 0, where they are columns. */
#define LINE_OP(name, call) \
    static tarn_tensor *name##_of(tarn_tensor *x, int axis) \
    { \
        return call; \
    }
LINE_OP(softmax, tarn_softmax(x, axis))
LINE_OP(log_softmax, tarn_log_softmax(x, axis))
LINE_OP(sum, tarn_sum(x, TARN_AXES(axis), true))
LINE_OP(mean, tarn_mean(x, TARN_AXES(axis), true))
LINE_OP(max, tarn_max(x, TARN_AXES(axis), true))
LINE_OP(min, tarn_min(x, TARN_AXES(axis), true))
LINE_OP(prod, tarn_prod(x, TARN_AXES(axis), true))
LINE_OP(var, tarn_var(x, TARN_AXES(axis), 1, true))
LINE_OP(cumsum, tarn_cumsum(x, axis))

static const struct row_op {
    const char *name;
    tarn_tensor *(*run)(tarn_tensor *x, int axis);
    int axis;
    bool by_shape; /* the order of its sums depends on how many rows there are */
} row_ops[] = {
    {"layernorm", layernorm, 1, false},
    {"rmsnorm", rmsnorm, 1, false},
#define BOTH_AXES(name, by_shape) \
    {#name, name##_of, 1, by_shape}, \
    { \
#name " of columns", name##_of, 0, true \
    }
    BOTH_AXES(softmax, false),
    BOTH_AXES(log_softmax, false),
    BOTH_AXES(sum, true),
    BOTH_AXES(mean, true),
    BOTH_AXES(max, false),
    BOTH_AXES(min, false),
    BOTH_AXES(prod, false),
    BOTH_AXES(var, true),
    BOTH_AXES(cumsum, false),
};
enum { ROW_OPS = sizeof(row_ops) / sizeof(row_ops[0]) };

/* As the operation has it along its axis. */
static tarn_tensor *turned(const struct row_op *op, tarn_tensor *x)
{
    return op->axis == 1 ? x : good(tarn_contiguous(tarn_transpose(x, 0, 1)));
}

/* The result of (rows, length) numbers, in `y`, and its gradient, in `grad`. Gives the length of y's rows. */
static int run_rows(const struct row_op *op, const float *from, int rows, int length, float *y, float *grad)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = turned(op, good(tarn_from_f32(from, TARN_SHAPE(rows, length), tarn_device_cpu())));
    tarn_tensor *leaf = good(tarn_requires_grad(tarn_detach(x), true)), *result = good(op->run(leaf, op->axis));
    tarn_tensor *up = good(tarn_full(tarn_shape_of(result), 1.5, TARN_F32, tarn_device_cpu()));
    assert_true(tarn_backward_from(result, up, NULL));
    const int wide = (int)tarn_size(result, op->axis);
    assert_true(tarn_read_f32(turned(op, tarn_detach(result)), y, rows * wide));
    assert_true(tarn_read_f32(turned(op, tarn_grad(leaf)), grad, rows * length));
    tarn_scope_close(scope);
    assert_ok();
    return wide;
}

static int count_other(const float *a, const float *b, int n)
{
    int other = 0;
    for (int i = 0; i < n; i++)
        other += !is_same_float(&a[i], &b[i], sizeof(float));
    return other;
}

static int compare_row(const struct row_op *op, int r, int length, const char *where, int other_values, int other_grads)
{
    if (other_values + other_grads > 0)
        print_message("%s: row %d of %d elements has %d other elements %s, %d other gradients\n", op->name, r, length,
                      other_values, where, other_grads);
    return other_values + other_grads > 0;
}

static float x[ROWS * LONGEST], y[ROWS * LONGEST], grad[ROWS * LONGEST];

/* The same rows in other places: `by` rows further down. */
static int compare_places(const struct row_op *op, int length, int wide, int by)
{
    static float moved[ROWS * LONGEST], moved_y[ROWS * LONGEST], moved_grad[ROWS * LONGEST];
    int found = 0;
    for (int r = 0; r < ROWS; r++)
        memcpy(moved + (r + by) % ROWS * length, x + r * length, sizeof(float) * (size_t)length);
    run_rows(op, moved, ROWS, length, moved_y, moved_grad);
    for (int r = 0; r < ROWS; r++) {
        const int there = (r + by) % ROWS;
        found += compare_row(op, r, length, "in another place", count_other(moved_y + there * wide, y + r * wide, wide),
                             count_other(moved_grad + there * length, grad + r * length, length));
    }
    return found;
}

static int compare_alone(const struct row_op *op, int length, int wide)
{
    float own[LONGEST], own_grad[LONGEST];
    int found = 0;
    for (int r = 0; r < ROWS; r++) {
        run_rows(op, x + r * length, 1, length, own, own_grad);
        found += compare_row(op, r, length, "alone", count_other(own, y + r * wide, wide),
                             count_other(own_grad, grad + r * length, length));
    }
    return found;
}

static void no_row_depends_on_others(void **state)
{
    (void)state;
    int found = 0;
    for (size_t k = 0; k < ROW_OPS; k++)
        for (size_t l = 0; l < LENGTHS; l++) {
            fill_rows(x, ROWS, lengths[l]);
            const int wide = run_rows(&row_ops[k], x, ROWS, lengths[l], y, grad);
            for (int by = 1; by < ROWS; by += 6)
                found += compare_places(&row_ops[k], lengths[l], wide, by);
            found += row_ops[k].by_shape ? 0 : compare_alone(&row_ops[k], lengths[l], wide);
        }
    assert_int_equal(found, 0);
}

/* ---- the largest and the smallest -------------------------------------------------------------------------------- */

/* The index that wins among n numbers: the first NaN, else the first of the largest, or of the smallest. */
static int first_extreme(const float *from, int n, int sign)
{
    int best = 0;
    for (int i = 1; i < n && !isnan(from[best]); i++)
        if (isnan(from[i]) || (sign > 0 ? from[i] > from[best] : from[i] < from[best]))
            best = i;
    return best;
}

/* Rows along an axis of a matrix of `count` rows or columns: max, min and where they are. */
static void check_extremes(int count, int length, int axis)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *rows = good(tarn_from_f32(x, TARN_SHAPE(count, length), tarn_device_cpu()));
    tarn_tensor *from = axis == 1 ? rows : good(tarn_contiguous(tarn_transpose(rows, 0, 1)));
    for (int sign = -1; sign <= 1; sign += 2) {
        tarn_tensor *value =
            good(sign > 0 ? tarn_max(from, TARN_AXES(axis), false) : tarn_min(from, TARN_AXES(axis), false));
        tarn_tensor *at = good(sign > 0 ? tarn_argmax(from, axis, false) : tarn_argmin(from, axis, false));
        int64_t places[ROWS];
        assert_true(tarn_read_f32(value, y, count) && tarn_read(at, places, sizeof(int64_t) * (size_t)count));
        for (int r = 0; r < count; r++) {
            const int best = first_extreme(x + r * length, length, sign);
            const float want = x[r * length + best];
            if (places[r] != best || !(y[r] == want || (isnan(y[r]) && isnan(want))))
                fail_msg("%s of %d elements along axis %d, row %d of %d: %a at %d, not %a at %d",
                         sign > 0 ? "max" : "min", length, axis, r, count, (double)y[r], (int)places[r], (double)want,
                         best);
        }
    }
    tarn_scope_close(scope);
    assert_ok();
}

/* Each special number in each place, and before and behind another. */
static void the_largest_is_found_in_every_place(void **state)
{
    (void)state;
    for (size_t l = 0; l < LENGTHS - 2; l++)
        for (int place = 0; place < lengths[l]; place++)
            for (int first = 0; first < SPECIALS; first += ROWS - 2) {
                const int length = lengths[l], count = SPECIALS - first < ROWS ? SPECIALS - first : ROWS;
                for (int r = 0; r < count; r++) {
                    for (int i = 0; i < length; i++)
                        x[r * length + i] = (float)((r * 31 + i * 17) % 97) * 0.11f - 4.0f;
                    x[r * length + place] = float_of(specials[first + r]);
                    x[r * length + (place * 5 + 3) % length] = float_of(specials[(first + r * 7 + place) % SPECIALS]);
                }
                check_extremes(count, length, 1);
                check_extremes(count, length, 0);
            }
}

/* ---- conversions ------------------------------------------------------------------------------------------------- */

static const tarn_dtype types[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
enum { TYPES = sizeof(types) / sizeof(types[0]), NUMBERS = SPECIALS * 5 };

/* As the functions for one number of half.h have it, and the language for f64. */
static void convert_one(float from, tarn_dtype to, unsigned char *bytes)
{
    const double wide = (double)from;
    const uint16_t half = to == TARN_F16 ? tarn__f32_to_f16(from) : tarn__f32_to_bf16(from);
    if (to == TARN_F32)
        memcpy(bytes, &from, 4);
    else if (to == TARN_F64)
        memcpy(bytes, &wide, 8);
    else
        memcpy(bytes, &half, 2);
}

/* Elements [first, first + n) from f32 to a type and back, each with the bits that it has by itself. */
static void check_conversion(tarn_dtype to, int first, int n)
{
    static const int sizes[] = {4, 8, -2, 2};
    int t = 0;
    while (types[t] != to)
        t++;
    tarn_scope *scope = tarn_scope_open();
    unsigned char got[NUMBERS * 8], want[8];
    float back[NUMBERS];
    tarn_tensor *there = good(tarn_cast(tarn_from_f32(x + first, TARN_SHAPE(n), tarn_device_cpu()), to));
    assert_true(tarn_read(there, got, tarn_bytes(there)) && tarn_read_f32(good(tarn_cast(there, TARN_F32)), back, n));
    for (int i = 0; i < n; i++) {
        const int size = abs(sizes[t]);
        convert_one(x[first + i], to, want);
        if (!is_same_float(got + i * size, want, sizes[t]))
            fail_msg("%a to %s: element %d of %d from %d has other bits", (double)x[first + i], tarn_dtype_name(to), i,
                     n, first);
        const float again = to == TARN_F16 ? tarn__f16_to_f32(*(const uint16_t *)(const void *)(got + i * size)) : 0;
        if (to == TARN_F16 && !is_same_float(&back[i], &again, 4))
            fail_msg("%a from f16: element %d of %d from %d has other bits", (double)x[first + i], i, n, first);
        if (isnan(x[first + i]) != isnan(back[i]) || signbit(x[first + i]) != signbit(back[i]))
            fail_msg("%a to %s and back is %a", (double)x[first + i], tarn_dtype_name(to), (double)back[i]);
    }
    tarn_scope_close(scope);
    assert_ok();
}

static void a_conversion_is_bitwise_identical_at_every_position(void **state)
{
    (void)state;
    for (int i = 0; i < NUMBERS; i++)
        x[i] = i % 3 == 1 ? (float)i * 0.37f - 20.0f : float_of(specials[i * 7 % SPECIALS]);
    for (size_t t = 0; t < TYPES; t++) {
        check_conversion(types[t], 0, NUMBERS);
        for (int i = 0, n; i < NUMBERS; i += n) {
            n = i % 37 + 1 < NUMBERS - i ? i % 37 + 1 : NUMBERS - i;
            check_conversion(types[t], i, n);
        }
    }
}

static int run_here(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_row_depends_on_others),
        cmocka_unit_test(the_largest_is_found_in_every_place),
        cmocka_unit_test(a_conversion_is_bitwise_identical_at_every_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_at_every_level(run_here);
}

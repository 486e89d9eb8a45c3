/*
 * Every row of elementwise.def, `where` and gated activations, with zeros, infinities, NaN, subnormals, numbers at
 * bounds and ordinary ones, in f32, f64, bf16 and f16, with gradients: an element is bitwise identical in whole
 * vectors, in the tail and alone, whatever its neighbours are. Between instruction levels last bits of functions may
 * differ, but not what is NaN, infinite, zero or negative.
 */
#include <sys/mman.h>

#include "base/half.h"
#include "support/check.h"
#include "support/levels.h"

typedef struct row {
    const char *name;
    int operands;
    bool has_grad;
    tarn_activation_kind gate; /* of gated */
} row;

static const row rows[] = {
#define UNARY(name, ...) {#name, 1, true, TARN_RELU},
#define BINARY(name, ...) {#name, 2, true, TARN_RELU},
#define COMPARE(name, ...) {#name, 2, false, TARN_RELU},
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
    {"gated", 2, true, TARN_SILU}, {"gated", 2, true, TARN_GELU}, {"gated", 2, true, TARN_GELU_ERF},
    {"gated", 2, true, TARN_RELU}, {"where", 3, true, TARN_RELU},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]), OPERANDS = 4, MAX_COUNT = 640, MAX_OUTPUTS = 3, TYPES = 4 };

static const tarn_dtype types[TYPES] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
static const int sizes[TYPES] = {4, 8, -2, 2}; /* as is_same_float() takes them */

/* What the elements of a type are made of, as bits of f32; NaN of other types are made of these, too. */
static const uint32_t specials[] = {
    /* zeros, infinities, NaN */
    0x00000000,
    0x80000000,
    0x7f800000,
    0xff800000,
    0x7fc00000,
    0xffc00000,
    0x7fd2a000,
    0xffe16000,
    /* subnormals, the least and the largest of others */
    0x00000001,
    0x80000001,
    0x000116c2,
    0x807fffff,
    0x00800000,
    0x80800000,
    0x7f7fffff,
    0xff7fffff,
    /* 1, 1/2, roots of derivatives, pi, -3.5, 13 */
    0x3f800000,
    0xbf800000,
    0x3f000000,
    0xbf407569,
    0xbfa3a4ba,
    0x40490fdb,
    0xc0600000,
    0x41500000,
    /* bounds of exponentials and beside them */
    0x42800000,
    0xc2820000,
    0x42ae0000,
    0xc2b00000,
    0xc2cc0000,
    0x42fc0000,
    0xc2fe0000,
    0x43200000,
    /* bounds of f16; 2048, 1e9, 1e30, 1e-30, 1e-15 */
    0x477fe000,
    0xc77fe000,
    0x33800000,
    0xb8000000,
    0x45000000,
    0xc5012000,
    0x4e6e6b28,
    0x7149f2ca,
    0xf149f2ca,
    0x0da24260,
    0x8da24260,
    0x26901d7d,
};
enum { SPECIALS = sizeof(specials) / sizeof(specials[0]) };
static const uint32_t paired[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
                                  0x7fd2a000, 0xffe16000, 0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff,
                                  0xff7fffff, 0x3f800000, 0xbf800000, 0x3f000000, 0x40490fdb, 0xc0600000,
                                  0xc0000000, 0x41500000, 0x43200000, 0x4e6e6b28, 0xf149f2ca, 0x26901d7d};
enum { PAIRED = sizeof(paired) / sizeof(paired[0]) };
static const uint32_t grads[] = {0x3fc00000, 0x80000000, 0x7fc00000, 0xffd2a000, 0xff800000, 0x00000003, 0x70000000};
enum { GRADS = sizeof(grads) / sizeof(grads[0]) };

/* Elements of the operands and of the outputs, in the type that runs. */
static unsigned char operands[OPERANDS][MAX_COUNT * 8], results[MAX_OUTPUTS][MAX_COUNT * 8];

/* What each level gave for all elements together: [level][row][type][output][element]. */
typedef unsigned char kept_results[MAX_LEVELS][ROWS][TYPES][MAX_OUTPUTS][MAX_COUNT * 8];
static struct {
    bool is_here[MAX_LEVELS];
    kept_results values;
} * kept; /* shared by the processes of all levels */

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Element `at` of type number t from the bits of an f32. */
static void put(int t, unsigned char *to, int64_t at, uint32_t bits)
{
    const float x = float_of(bits);
    const double wide =
        (bits & 0x7fffffff) < 0x00800000 ? ldexp((double)x, -920) : (double)x; /* subnormals of its own */
    const uint16_t half = types[t] == TARN_F16 ? tarn__f32_to_f16(x) : (uint16_t)(bits >> 16);
    if (types[t] == TARN_F32)
        memcpy(to + at * 4, &bits, 4);
    else if (types[t] == TARN_F64)
        memcpy(to + at * 8, &wide, 8);
    else
        memcpy(to + at * 2, &half, 2);
}

/* Fills the operands and, as the last of them, the gradient of the result: all pairs, with each of the gradients in
 * turn. Gives how many. */
static int64_t fill(const row *r, int t)
{
    const int others = r->operands == 1 ? GRADS : PAIRED;
    int64_t count = 0;
    for (int i = 0; i < (r->operands == 1 ? SPECIALS : PAIRED); i++)
        for (int j = 0; j < others; j++, count++) {
            const uint32_t x = r->operands == 1 ? specials[i] : paired[i];
            put(t, operands[0], count, x);
            put(t, operands[1], count, r->operands == 1 ? 0 : paired[j]);
            put(t, operands[3], count, grads[r->operands == 1 ? j : (i + 3 * j) % GRADS]);
            operands[2][count] = (unsigned char)((i + j / 3) % 2);
        }
    return count;
}

/* Of output k, as is_same_float() takes it: comparisons have bytes, gradients of halves are f32. */
static int size_of(const row *r, int t, int k)
{
    return !r->has_grad ? 1 : k > 0 && abs(sizes[t]) == 2 ? 4 : sizes[t];
}

/* `count` elements from `first` on, as an operand that has a gradient. */
static tarn_tensor *operand(int k, int t, int64_t first, int64_t count)
{
    const size_t size = (size_t)abs(sizes[t]);
    tarn_tensor *x =
        good(tarn_from(operands[k] + (size_t)first * size, TARN_SHAPE(count), types[t], tarn_device_cpu()));
    return good(tarn_requires_grad(x, true));
}

static tarn_tensor *applied(const row *r, tarn_tensor *a, tarn_tensor *b, int64_t first, int64_t count)
{
    tarn_tensor *y = NULL, *in[3] = {a, b, NULL};
    tarn_attribute bounds[] = {{.name = "min", .number = -1}, {.name = "max", .number = 2}},
                   gate = {.name = "activation", .integer = r->gate}, *attributes = bounds;
    int attribute_count = strcmp(r->name, "clamp") ? 0 : 2;
    if (!strcmp(r->name, "gated"))
        attributes = &gate, attribute_count = 1;
    if (!strcmp(r->name, "where"))
        in[0] = good(tarn_from(operands[2] + first, TARN_SHAPE(count), TARN_BOOL, tarn_device_cpu())), in[1] = a,
        in[2] = b;
    assert_true(tarn_apply(r->name, in, r->operands, attributes, attribute_count, &y, 1));
    return good(y);
}

static void read_output(tarn_tensor *from, unsigned char *to, int64_t first, int size)
{
    good(from);
    assert_int_equal(tarn_bytes(from), tarn_size(from, 0) * abs(size));
    assert_true(tarn_read(from, to + first * abs(size), tarn_bytes(from)));
}

/* Runs elements [first, first + count); their results and gradients go to the same places of `to`. Gives the number
 * of outputs. */
static int run(const row *r, int t, int64_t first, int64_t count, unsigned char (*to)[MAX_COUNT * 8])
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *a = operand(0, t, first, count), *b = r->operands > 1 ? operand(1, t, first, count) : NULL,
                *y = applied(r, a, b, first, count);
    int outputs = 0;
    read_output(y, to[outputs++], first, size_of(r, t, 0));
    if (r->has_grad) {
        assert_true(tarn_backward_from(y, operand(3, t, first, count), NULL));
        read_output(tarn_grad(a), to[outputs++], first, size_of(r, t, 1));
        if (b)
            read_output(tarn_grad(b), to[outputs++], first, size_of(r, t, 2));
    }
    tarn_scope_close(scope);
    assert_ok();
    return outputs;
}

static void print_value(const char *what, const unsigned char *from, int64_t at, int size)
{
    print_message(" %s ", what);
    for (int k = abs(size) - 1; k >= 0; k--)
        print_message("%02x", from[at * abs(size) + k]);
}

/* How many elements of [first, first + count) differ; says the first of them. */
static int differences(const row *r, int t, int outputs, int64_t first, int64_t count,
                       unsigned char (*got)[MAX_COUNT * 8])
{
    int found = 0;
    for (int k = 0; k < outputs; k++)
        for (int64_t i = first; i < first + count; i++) {
            const int size = size_of(r, t, k);
            const int64_t at = i * abs(size);
            if (size == 1 ? got[k][at] == results[k][at] : is_same_float(got[k] + at, results[k] + at, size))
                continue;
            if (found++)
                continue;
            print_message("%s, %s, output %d of %d elements from %d:", r->name, tarn_dtype_name(types[t]), k,
                          (int)count, (int)first);
            print_value("a", operands[0], i, sizes[t]), print_value("b", operands[1], i, sizes[t]),
                print_value("gradient", operands[3], i, sizes[t]);
            print_value("together", results[k], i, size), print_value("here", got[k], i, size);
            print_message("\n");
        }
    return found;
}

/* Runs of `least` and more elements, up to `most`, one after another, against all of them at once. */
static int compare_runs(const row *r, int t, int outputs, int64_t count, int64_t least, int64_t most)
{
    static unsigned char got[MAX_OUTPUTS][MAX_COUNT * 8];
    int found = 0;
    for (int64_t i = 0, n; i < count && found == 0; i += n) {
        n = least + i % (most - least + 1);
        n = n < count - i ? n : count - i;
        run(r, t, i, n, got);
        found = differences(r, t, outputs, i, n, got);
    }
    return found;
}

static void keep(const row *r, int t, int outputs, int64_t count)
{
    const int level = current_level();
    kept->is_here[level] = true;
    for (int k = 0; k < outputs; k++)
        memcpy(kept->values[level][r - rows][t][k], results[k], (size_t)count * (size_t)abs(size_of(r, t, k)));
}

static void no_element_depends_on_its_place(void **state)
{
    (void)state;
    int found = 0;
    for (size_t k = 0; k < ROWS; k++)
        for (int t = 0; t < TYPES; t++) {
            const int64_t count = fill(&rows[k], t);
            const int outputs = run(&rows[k], t, 0, count, results);
            found += compare_runs(&rows[k], t, outputs, count, 1, 7) > 0;
            found += compare_runs(&rows[k], t, outputs, count, 17, 39) > 0;
            keep(&rows[k], t, outputs, count);
        }
    assert_int_equal(found, 0);
}

static int run_here(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_element_depends_on_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- between levels ---------------------------------------------------------------------------------------------- */

enum { A_NAN = 1, AN_INFINITY, A_ZERO, A_NUMBER, NEGATIVE = 8 };

/* What an element is, with its sign unless it is NaN. The two smallest numbers count as zero, from which last bits
 * keep them apart. */
static int class_of(const unsigned char *value, int size)
{
    uint64_t bits = 0;
    memcpy(&bits, value, (size_t)abs(size)); /* of a small-endian processor, as all with levels are */
    const int width = abs(size) * 8, exponent_bits = size == 8 ? 11 : size == 2 ? 5 : 8;
    const uint64_t magnitude = bits & ((UINT64_C(1) << (width - 1)) - 1),
                   infinity = ((UINT64_C(1) << exponent_bits) - 1) << (width - 1 - exponent_bits);
    const int sign = bits >> (width - 1) ? NEGATIVE : 0;
    return magnitude > infinity ? A_NAN
                                : sign + (magnitude == infinity ? AN_INFINITY
                                          : magnitude <= 2      ? A_ZERO
                                                                : A_NUMBER);
}

/* Gates of gelu: last bits of the smallest numbers differ, and up magnifies them. */
static bool is_magnified(const row *r)
{
    return strcmp(r->name, "gated") == 0 && (r->gate == TARN_GELU || r->gate == TARN_GELU_ERF);
}

static int compare_levels(const row *r, int t, int level, int widest)
{
    const int64_t count = fill(r, t);
    const int outputs = r->has_grad ? (r->operands > 1 ? 3 : 2) : 1;
    int found = 0;
    for (int k = 0; k < outputs; k++)
        for (int64_t i = 0; i < count; i++) {
            const unsigned char *mine = kept->values[level][r - rows][t][k],
                                *other = kept->values[widest][r - rows][t][k];
            const int size = size_of(r, t, k);
            const int64_t at = i * abs(size);
            if (size == 1 ? mine[at] == other[at] : class_of(mine + at, size) == class_of(other + at, size))
                continue;
            if (found++)
                continue;
            print_message("%s, %s, output %d:", r->name, tarn_dtype_name(types[t]), k);
            print_value("a", operands[0], i, sizes[t]), print_value("b", operands[1], i, sizes[t]),
                print_value("gradient", operands[3], i, sizes[t]);
            print_value(level_name(level), mine, i, size), print_value(level_name(widest), other, i, size);
            print_message("\n");
        }
    return found;
}

static void levels_agree_on_what_a_result_is(void **state)
{
    (void)state;
    int widest = level_count() - 1, found = 0;
    while (widest > 0 && !kept->is_here[widest])
        widest--;
    for (int level = 0; level < widest; level++)
        for (size_t k = 0; kept->is_here[level] && k < ROWS; k++)
            for (int t = 0; t < TYPES; t++)
                found += !is_magnified(&rows[k]) && compare_levels(&rows[k], t, level, widest) > 0;
    assert_int_equal(found, 0);
}

int main(void)
{
    kept = mmap(NULL, sizeof(*kept), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (kept == MAP_FAILED)
        return 1;
    const int failures = run_at_every_level(run_here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_agree_on_what_a_result_is),
    };
    return failures + cmocka_run_group_tests(tests, NULL, NULL);
}

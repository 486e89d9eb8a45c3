/* check.c: see check.h. */
#include "support/check.h"

void check_ok(const char *file, int line)
{
    if (!tarn_failed())
        return;
    print_error("an error is pending: %s\n", tarn_error());
    tarn_clear_error();
    _fail(file, line);
}

void check_contains(const char *text, const char *part, const char *file, int line)
{
    if (text && strstr(text, part))
        return;
    print_error("'%s' does not contain '%s'\n", text ? text : "NULL", part);
    _fail(file, line);
}

void check_error(tarn_code code, const char *text, const char *file, int line)
{
    check_error_about(code, text, "", file, line);
}

void check_error_about(tarn_code code, const char *part, const char *other, const char *file, int line)
{
    if (tarn_error_code() != code || !strstr(tarn_error(), part) || !strstr(tarn_error(), other)) {
        print_error("expected an error '%s' with '%s' and '%s', found '%s': %s\n", tarn_code_name(code), part, other,
                    tarn_code_name(tarn_error_code()), tarn_error());
        tarn_clear_error();
        _fail(file, line);
    }
    tarn_clear_error();
}

tarn_tensor *check_tensor(tarn_tensor *tensor, const char *expression, const char *file, int line)
{
    if (tensor && !tarn_failed())
        return tensor;
    print_error("%s failed: %s\n", expression, tarn_failed() ? tarn_error() : "NULL without an error");
    tarn_clear_error();
    _fail(file, line);
    return NULL;
}

double *values_of(const tarn_tensor *tensor)
{
    int64_t count = tarn_count(tensor);
    double *values = malloc(sizeof(double) * (size_t)(count > 0 ? count : 1));
    if (!values || !tarn_read_f64(tensor, values, count)) {
        print_error("reading a tensor failed: %s\n", tarn_error());
        tarn_clear_error();
        fail();
    }
    return values;
}

static bool near(double a, double b, double tolerance)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= tolerance * fmax(1, fabs(b));
}

static void compare(const double *found, const double *expected, int64_t count, double tolerance, const char *file,
                    int line)
{
    for (int64_t i = 0; i < count; i++)
        if (!near(found[i], expected[i], tolerance)) {
            print_error("element %lld is %.17g, expected %.17g\n", (long long)i, found[i], expected[i]);
            _fail(file, line);
        }
}

void check_values(const tarn_tensor *tensor, const double *expected, int count, double tolerance, const char *file,
                  int line)
{
    check_tensor((tarn_tensor *)tensor, "the tensor", file, line);
    if (tarn_count(tensor) != count) {
        print_error("the tensor has %lld elements, expected %d\n", (long long)tarn_count(tensor), count);
        _fail(file, line);
    }
    double *found = values_of(tensor);
    compare(found, expected, count, tolerance, file, line);
    free(found);
}

void check_close(const tarn_tensor *a, const tarn_tensor *b, double tolerance, const char *file, int line)
{
    check_tensor((tarn_tensor *)a, "the first tensor", file, line);
    check_tensor((tarn_tensor *)b, "the second tensor", file, line);
    check_shape(a, tarn_shape_of(b), file, line);
    double *left = values_of(a), *right = values_of(b);
    compare(left, right, tarn_count(a), tolerance, file, line);
    free(left);
    free(right);
}

void check_close_for_size(const tarn_tensor *a, const tarn_tensor *b, double tolerance, const char *file, int line)
{
    check_tensor((tarn_tensor *)a, "the first tensor", file, line);
    check_tensor((tarn_tensor *)b, "the second tensor", file, line);
    check_shape(a, tarn_shape_of(b), file, line);
    int64_t count = tarn_count(a);
    double *left = values_of(a), *right = values_of(b), squares = 0, worst = 0;
    for (int64_t i = 0; i < count; i++)
        squares += right[i] * right[i];
    double rms = count ? sqrt(squares / (double)count) : 0;
    bool all_near = true;
    for (int64_t i = 0; i < count; i++) {
        double size = fmax(fabs(right[i]), rms), difference = left[i] == right[i] ? 0 : fabs(left[i] - right[i]) / size;
        all_near = all_near && difference <= tolerance; /* NaN is not */
        worst = fmax(worst, difference);
    }
    free(left);
    free(right);
    if (all_near)
        return;
    print_error("elements differ by up to %.3g of their size, more than %.3g\n", worst, tolerance);
    _fail(file, line);
}

void check_shape(const tarn_tensor *tensor, tarn_shape expected, const char *file, int line)
{
    tarn_shape shape = tarn_shape_of(tensor);
    bool same = shape.rank == expected.rank;
    for (int i = 0; same && i < shape.rank; i++)
        same = shape.size[i] == expected.size[i];
    if (same)
        return;
    print_error("the shape is");
    for (int i = 0; i < shape.rank; i++)
        print_error(" %lld", (long long)shape.size[i]);
    print_error(", expected");
    for (int i = 0; i < expected.rank; i++)
        print_error(" %lld", (long long)expected.size[i]);
    print_error("\n");
    _fail(file, line);
}

void check_elements(const tarn_tensor *tensor, tarn_shape shape, const double *values, const char *file, int line)
{
    check_tensor((tarn_tensor *)tensor, "the tensor", file, line);
    check_shape(tensor, shape, file, line);
    check_values(tensor, values, (int)tarn_count(tensor), 0, file, line);
}

tarn_tensor *count_up(tarn_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    return tarn_reshape(tarn_arange(0, (double)count, 1, TARN_F32, tarn_device_cpu()), shape);
}

tarn_tensor *counted_leaf(tarn_shape shape)
{
    return tarn_requires_grad(tarn_clone(count_up(shape)), true);
}

tarn_tensor *grad_from(tarn_tensor *y, tarn_tensor *x)
{
    tarn_tensor *g =
        tarn_reshape(tarn_arange(1, (double)tarn_count(y) + 1, 1, TARN_F32, tarn_device_cpu()), tarn_shape_of(y));
    assert_true(tarn_backward_from(y, g, NULL));
    assert_non_null(tarn_grad(x));
    return tarn_grad(x);
}

tarn_tensor *unchanged(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    (void)ctx;
    return x;
}

_Atomic int allocations_left;

static void *scarce_alloc(size_t bytes, size_t alignment, void *ctx)
{
    (void)ctx;
    if (allocations_left-- <= 0)
        return NULL;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void scarce_release(void *memory, size_t bytes, void *ctx)
{
    (void)bytes;
    (void)ctx;
    free(memory);
}

const tarn_allocator scarce_allocator = {scarce_alloc, scarce_release, NULL};

int clear_error(void **state)
{
    (void)state;
    tarn_clear_error();
    return 0;
}

int open_test(void **state)
{
    tarn_clear_error();
    *state = tarn_scope_open();
    return *state ? 0 : -1;
}

int close_test(void **state)
{
    bool failed = tarn_failed();
    if (failed)
        print_error("an error is left pending: %s\n", tarn_error());
    tarn_clear_error();
    tarn_scope_close(*state);
    tarn_set_threads(0);
    int64_t used = tarn_memory_of(tarn_device_cpu()).used;
    if (used != 0)
        print_error("%lld bytes are still held after the test's scope was closed\n", (long long)used);
    return failed || used != 0 ? -1 : 0;
}

tarn_device test_device(const char *otherwise)
{
    const char *name = getenv("TARN_TEST_DEVICE");
    tarn_device device = tarn_device_parse(name ? name : otherwise);
    tarn_device_info info;
    if (name && tarn_device_query(device, &info))
        print_message("%s is %s\n", info.name, info.description);
    return device;
}

uint64_t test_seed(uint64_t otherwise)
{
    const char *text = getenv("TARN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : otherwise;
    print_message("TARN_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* xorshift64*, far from zero at the start. */
uint64_t random_bits(uint64_t *state)
{
    uint64_t x = *state ? *state : 0x9E3779B97F4A7C15u;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Du;
}

int64_t random_below(uint64_t *state, int64_t limit)
{
    return (int64_t)(random_bits(state) >> 16) % limit;
}

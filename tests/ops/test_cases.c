/* test_cases.c: every operation, by its cases. The list comes from the table the library is built from, so an
 * operation without a case, or a differentiable one without a gradient check, fails. TARN_TEST_DEVICE names the
 * device; default: the CPU. */
#include "cases/cases.h"
#include "core/device/device.h"
#include "core/launch/stats.h"
#include "ops/op.h"
#include "support/check.h"

#define SEED 20

static tarn_device device;

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

/* Stops the test with the case's name, what was being done, and the pending error if there is one. */
static void stop(const tarn__case *one, const char *doing)
{
    char error[1024];
    snprintf(error, sizeof(error), "%s", tarn_error());
    tarn_clear_error();
    fail_msg("%s (%s), %s, seed %d: %s", one->operation, one->variant, doing, SEED, error[0] ? error : "wrong");
}

static void require(bool good, const tarn__case *one, const char *doing)
{
    if (!good || tarn_failed())
        stop(one, doing);
}

/* The cases of one operation at a scale, one after the other: NULL when there are no more. */
static bool next_case(int op, int *at, const tarn__scale *scale, tarn_dtype dtype, tarn__case *one)
{
    for (; *at < tarn__case_count(); ++*at)
        if (strcmp(tarn__case_at(*at)->operation, tarn__op_row_at(op)->name) == 0) {
            *one = tarn__case_resolve(tarn__case_at((*at)++), scale, dtype);
            return true;
        }
    return false;
}

static bool has_gradient(const tarn__case *one)
{
    for (int i = 0; i < one->inputs; i++)
        if (tarn__case_flows(one, i))
            return true;
    return false;
}

static void ask_for_gradients(const tarn__case *one, tarn_tensor **in)
{
    for (int i = 0; i < one->inputs; i++)
        if (tarn__case_flows(one, i))
            tarn_requires_grad(in[i], true);
}

/* A gradient to arrive at an output: no two elements alike. */
static tarn_tensor *upstream_like(tarn_tensor *output)
{
    int64_t count = tarn_count(output);
    double *values = malloc(sizeof(double) * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++)
        values[i] = (i % 2 ? 1 : -1) * (0.5 + (double)((i * 7919 + 13) % 1021) / 1021);
    tarn_tensor *made =
        tarn_cast(tarn_from_f64(values, tarn_shape_of(output), tarn_device_cpu()), tarn_dtype_of(output));
    made = tarn_to(made, tarn_device_of(output));
    free(values);
    return made;
}

/* Walks back from every output that carries a gradient. */
static bool walk_back(const tarn__case *one, tarn_tensor *const *out, tarn_tensor *const *upstream)
{
    for (int i = 0; i < TARN__CASE_OUTPUTS; i++)
        if (out[i] && tarn__case_smooth(one, i) && tarn_needs_grad(out[i]) &&
            !tarn_backward_from(out[i], upstream[i], &(tarn_backward_options){.retain = true}))
            return false;
    return !tarn_failed();
}

static void make_upstreams(const tarn__case *one, tarn_tensor *const *out, tarn_tensor **upstream)
{
    for (int i = 0; i < TARN__CASE_OUTPUTS; i++)
        upstream[i] = out[i] && tarn__case_smooth(one, i) ? upstream_like(out[i]) : NULL;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void has_its_cases(void **state)
{
    int op = *(int *)*state, at = 0, cases = 0, gradients = 0;
    const tarn__op_row *row = tarn__op_row_at(op);
    tarn__scale small = tarn__scale_small();
    tarn__case one;
    while (next_case(op, &at, &small, TARN_F64, &one)) {
        cases++;
        for (int i = 0; i < one.inputs; i++)
            if (tarn__case_checkable(&one, i)) {
                gradients++;
                break;
            }
    }
    if (cases == 0)
        fail_msg("%s has no case in src/cases/list.c", row->name);
    if (row->differentiable && gradients == 0)
        fail_msg("%s is differentiable, but no case in src/cases/list.c checks its gradient", row->name);
}

/* ---- gradients against differences ------------------------------------------------------------------------------- */

/* One tensor from all outputs that carry a gradient. */
static tarn_tensor *run_block(tarn_tensor *const *in, int count, void *ctx)
{
    const tarn__case *one = ctx;
    tarn_tensor *out[TARN__CASE_OUTPUTS], *sum = NULL;
    (void)count;
    if (!tarn__case_run(one, in, out))
        return NULL;
    for (int i = 0; i < TARN__CASE_OUTPUTS; i++)
        if (out[i] && tarn__case_smooth(one, i) && (i > 0 || one->smooth > 1)) {
            tarn_tensor *part = tarn_sum(tarn_mul(out[i], upstream_like(out[i])), TARN_ALL_AXES, false);
            sum = sum ? tarn_add(sum, part) : part;
        }
    return tarn_cast(sum ? sum : out[0], TARN_F64);
}

static void gradients_agree_with_differences(void **state)
{
    int op = *(int *)*state, at = 0;
    tarn__scale small = tarn__scale_small();
    tarn__case one;
    while (next_case(op, &at, &small, TARN_F64, &one)) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *in[TARN__CASE_INPUTS];
        require(tarn__case_inputs(&one, TARN_F64, TARN__CONTIGUOUS, device, SEED, in), &one, "making inputs");
        bool any = false;
        for (int i = 0; i < one.inputs; i++)
            if (tarn__case_checkable(&one, i)) {
                tarn_requires_grad(in[i], true);
                any = true;
            }
        if (any)
            require(tarn_gradcheck(run_block, &one, in, one.inputs, &(tarn_gradcheck_options){.step = one.step}), &one,
                    "gradient check");
        tarn_scope_close(scope);
    }
}

/* ---- values and gradients in every dtype and layout -------------------------------------------------------------- */

/* How far a result of that dtype may be from the f64 one of a size: 2 units in the last place for 16 bits. Whole
 * numbers are exact. */
static double allowed(tarn_dtype dtype, double size)
{
    switch (dtype) {
    case TARN_F64: return 1e-12 * size;
    case TARN_F32: return 1e-5 * size;
    case TARN_F16: return ldexp(2, ilogb(size) - 10);
    case TARN_BF16: return ldexp(2, ilogb(size) - 7);
    default: return 0;
    }
}

/* The dtype with fewer digits, of the floats among the two. */
static tarn_dtype coarser(tarn_dtype a, tarn_dtype b)
{
    return allowed(a, 1) > allowed(b, 1) ? a : b;
}

/* Every |a - b| is allowed for the larger of |b| and rms(b), with the digits that `dtype` has; NaN equals NaN. */
static bool close_to(tarn_tensor *found, tarn_tensor *wanted, tarn_dtype dtype, char *text, size_t size)
{
    int64_t count = tarn_count(found);
    if (tarn_count(wanted) != count || tarn_rank(found) != tarn_rank(wanted)) {
        snprintf(text, size, "the shapes differ");
        return false;
    }
    double *a = malloc(sizeof(double) * (size_t)(count + 1)), *b = malloc(sizeof(double) * (size_t)(count + 1)),
           squares = 0;
    bool good = a && b && tarn_read_f64(found, a, count) && tarn_read_f64(wanted, b, count);
    for (int64_t i = 0; good && i < count; i++)
        squares += isfinite(b[i]) ? b[i] * b[i] : 0;
    double rms = count ? sqrt(squares / (double)count) : 0;
    bool whole = tarn_dtype_of(found) >= TARN_I32;
    for (int64_t i = 0; good && i < count; i++) {
        double bound = whole ? 0 : allowed(dtype, fmax(fmax(fabs(b[i]), rms), 1e-30));
        good = a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) || fabs(a[i] - b[i]) <= bound;
        if (!good)
            snprintf(text, size, "element %lld is %.9g, in f64 %.9g", (long long)i, a[i], b[i]);
    }
    free(a);
    free(b);
    return good;
}

/* The same values, dense and in f64 where they are floats, on the CPU. */
static tarn_tensor *reference_of(tarn_tensor *x)
{
    x = tarn_to(tarn_detach(x), tarn_device_cpu());
    return tarn_dtype_of(x) >= TARN_I32 ? tarn_clone(x) : tarn_clone(tarn_cast(x, TARN_F64));
}

static void check_against_f64(const tarn__case *letters, const tarn__scale *scale, tarn_dtype dtype,
                              tarn__layout layout)
{
    tarn__case one = tarn__case_resolve(letters, scale, dtype), wide = tarn__case_resolve(letters, scale, TARN_F64);
    tarn_tensor *in[TARN__CASE_INPUTS], *out[TARN__CASE_OUTPUTS], *up[TARN__CASE_OUTPUTS];
    tarn_tensor *in64[TARN__CASE_INPUTS], *out64[TARN__CASE_OUTPUTS], *up64[TARN__CASE_OUTPUTS] = {0};
    char text[200] = "", doing[300];
    snprintf(doing, sizeof(doing), "%s, %s", tarn_dtype_name(dtype), tarn__layout_name(layout));
    require(tarn__case_inputs(&one, dtype, layout, device, SEED, in), &one, doing);
    for (int i = 0; i < one.inputs; i++)
        in64[i] = reference_of(in[i]);
    ask_for_gradients(&one, in);
    ask_for_gradients(&wide, in64);
    require(tarn__case_run(&one, in, out) && tarn__case_run(&wide, in64, out64), &one, doing);
    make_upstreams(&one, out, up);
    for (int i = 0; i < TARN__CASE_OUTPUTS; i++) {
        if (up[i])
            up64[i] = tarn_cast(reference_of(up[i]), tarn_dtype_of(out64[i]));
        if (!out[i])
            continue;
        if (!close_to(out[i], out64[i], coarser(dtype, tarn_dtype_of(out[i])), text, sizeof(text)))
            fail_msg("%s (%s), %s, output %d, seed %d: %s", one.operation, one.variant, doing, i, SEED, text);
    }
    if (!has_gradient(&one))
        return;
    require(walk_back(&one, out, up) && walk_back(&wide, out64, up64), &one, doing);
    for (int i = 0; i < one.inputs; i++) {
        tarn_tensor *grad = tarn__case_flows(&one, i) ? tarn_grad(in[i]) : NULL,
                    *grad64 = grad ? tarn_grad(in64[i]) : NULL;
        tarn_dtype digits = coarser(dtype, tarn_dtype_of(out[0]));
        if (!grad != !tarn__case_flows(&one, i) ||
            (grad && (!grad64 || !close_to(grad, grad64, digits, text, sizeof(text)))))
            fail_msg("%s (%s), %s, gradient of input %d, seed %d: %s", one.operation, one.variant, doing, i, SEED,
                     grad ? text : "none came");
    }
}

static void every_layout_agrees_with_f64(int op, tarn_dtype dtype)
{
    tarn__scale small = tarn__scale_small();
    for (int at = 0; at < tarn__case_count(); at++) {
        const tarn__case *letters = tarn__case_at(at);
        if (strcmp(letters->operation, tarn__op_row_at(op)->name) != 0)
            continue;
        if (letters->chain && (dtype == TARN_BF16 || dtype == TARN_F16)) /* test_mlp.c has these */
            continue;
        for (int layout = 0; layout < TARN__LAYOUTS; layout++) {
            int64_t used = tarn_memory_of(device).used;
            tarn_scope *scope = tarn_scope_open();
            check_against_f64(letters, &small, dtype, (tarn__layout)layout);
            tarn_scope_close(scope);
            if (tarn_memory_of(device).used != used)
                fail_msg("%s (%s) leaves %lld bytes behind", letters->operation, letters->variant,
                         (long long)(tarn_memory_of(device).used - used));
        }
    }
}

/* A test for each dtype: under a tool that is slow they can be taken at once. */
#define LAYOUTS_OF(name, dtype) \
    static void layouts_of_##name(void **state) \
    { \
        every_layout_agrees_with_f64(*(int *)*state, dtype); \
    }
LAYOUTS_OF(f64, TARN_F64)
LAYOUTS_OF(f32, TARN_F32)
LAYOUTS_OF(bf16, TARN_BF16)
LAYOUTS_OF(f16, TARN_F16)

/* ---- bitwise identical with any number of threads ---------------------------------------------------------------- */

/* Appends a tensor's bytes to a buffer that grows. */
typedef struct bytes {
    char *data;
    size_t count;
} bytes;

static bool append(bytes *to, tarn_tensor *tensor)
{
    if (!tensor)
        return true;
    size_t size = (size_t)tarn_bytes(tensor);
    to->data = realloc(to->data, to->count + size + 1);
    bool good = tarn_read(tensor, to->data + to->count, size);
    to->count += size;
    return good;
}

static bool run_with_threads(const tarn__case *one, tarn_tensor **in, int threads, bytes *results)
{
    tarn_tensor *out[TARN__CASE_OUTPUTS], *up[TARN__CASE_OUTPUTS];
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_set_threads(threads) && tarn__case_run(one, in, out);
    if (good)
        make_upstreams(one, out, up);
    good = good && walk_back(one, out, up);
    for (int i = 0; good && i < TARN__CASE_OUTPUTS; i++)
        good = append(results, out[i]);
    for (int i = 0; good && i < one->inputs; i++) {
        good = append(results, tarn__case_flows(one, i) ? tarn_grad(in[i]) : NULL);
        tarn_zero_grad(in[i]);
    }
    tarn_scope_close(scope);
    return good && !tarn_failed();
}

static void check_threads(const tarn__case *one, tarn_dtype dtype, tarn__layout layout)
{
    static const int threads[] = {1, 2, 4};
    tarn_tensor *in[TARN__CASE_INPUTS];
    bytes first = {0};
    require(tarn__case_inputs(one, dtype, layout, device, SEED, in), one, "large inputs");
    ask_for_gradients(one, in);
    for (int i = 0; i < 3; i++) {
        bytes results = {0};
        require(run_with_threads(one, in, threads[i], &results), one, "large");
        if (i == 0)
            first = results;
        else if (results.count != first.count || memcmp(results.data, first.data, first.count) != 0)
            fail_msg("%s (%s), %s, %s, seed %d: other bits with %d threads than with 1", one->operation, one->variant,
                     tarn_dtype_name(dtype), tarn__layout_name(layout), SEED, threads[i]);
        if (i > 0)
            free(results.data);
    }
    free(first.data);
}

#ifdef __SANITIZE_ADDRESS__
#define IS_SLOW 1
#else
#define IS_SLOW 0
#endif

/* All of it takes a minute. The address sanitizer, many times slower, is given one dtype, dense and in general layout;
 * TARN_TEST_QUICK keeps one of both, and on a device, where a sanitizer takes minutes for the squares of these, fewer
 * and shorter texts. */
static void threads_do_not_change_a_bit(void **state)
{
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F64};
    int op = *(int *)*state, threads = tarn_threads(), quick = getenv("TARN_TEST_QUICK") != NULL;
    tarn__scale large = tarn__scale_chunked();
    if (quick && !tarn_device_equal(device, tarn_device_cpu())) {
        large.size[TARN__B / TARN__LETTER] = 2;
        large.size[TARN__R / TARN__LETTER] = large.size[TARN__T / TARN__LETTER] = 70;
    }
    tarn__case one;
    for (int d = 0; d < (quick || IS_SLOW ? 1 : 3); d++)
        for (int at = 0; next_case(op, &at, &large, dtypes[d], &one);)
            for (int layout = TARN__CONTIGUOUS; layout < (quick ? 1 : TARN__LAYOUTS);
                 layout += IS_SLOW ? TARN__GENERAL : 1) {
                tarn_scope *scope = tarn_scope_open();
                check_threads(&one, dtypes[d], (tarn__layout)layout);
                tarn_scope_close(scope);
            }
    tarn_set_threads(threads);
}

/* ---- the kernels that are listed --------------------------------------------------------------------------------- */

/* Gradient accumulation may use these; an operand that must be contiguous is copied. */
static bool is_sinks_own(tarn__kernel kernel)
{
    return kernel == TARN__K_fill || kernel == TARN__K_copy || kernel == TARN__K_add || kernel == TARN__K_sum;
}

static void check_kernels(const tarn__case *one, const tarn__op_row *row, bool backward, bool may_copy)
{
    for (int k = 0; k < TARN__KERNEL_COUNT; k++) {
        int64_t runs = 0;
        for (int slot = 0; slot < TARN__MAX_BACKENDS; slot++)
            runs += tarn__kernel_runs(slot, (tarn__kernel)k);
        bool listed = tarn__op_lists_kernel(row, (tarn__kernel)k, backward) ||
                      (backward && is_sinks_own((tarn__kernel)k)) || (may_copy && k == TARN__K_copy);
        if (runs > 0 && !listed)
            fail_msg("the %s of %s (%s) runs the kernel %s, which its row does not list",
                     backward ? "backward" : "forward", one->operation, one->variant, tarn__kernel_names[k]);
    }
}

static void runs_the_kernels_it_lists(void **state)
{
    int op = *(int *)*state, at = 0;
    const tarn__op_row *row = tarn__op_row_at(op);
    tarn__scale small = tarn__scale_small();
    tarn__case one;
    while (next_case(op, &at, &small, TARN_F32, &one))
        for (int general = 0; general < 2; general++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *in[TARN__CASE_INPUTS], *out[TARN__CASE_OUTPUTS], *up[TARN__CASE_OUTPUTS];
            require(tarn__case_inputs(&one, TARN_F32, general ? TARN__GENERAL : TARN__CONTIGUOUS, device, SEED, in),
                    &one, "making inputs");
            ask_for_gradients(&one, in);
            tarn_stats_reset();
            require(tarn__case_run(&one, in, out), &one, "forward");
            check_kernels(&one, row, false, general || one.copied);
            make_upstreams(&one, out, up);
            tarn_stats_reset();
            require(walk_back(&one, out, up), &one, "backward");
            check_kernels(&one, row, true, true);
            tarn_scope_close(scope);
        }
}

/* ---- the functions of elementwise.def ---------------------------------------------------------------------------- */

/* A row without its public prototypes does not compile. */
static const struct {
    const char *name;
    tarn_tensor *(*value)(tarn_tensor *x);
    tarn_tensor *(*inplace)(tarn_tensor *x);
} unary_functions[] = {
#define UNARY(name, ...) {#name, tarn_##name, tarn_##name##_inplace},
#define UNARY_P(name, ...)
#define BINARY(name, ...)
#define COMPARE(name, ...)
#include "base/kernel/elementwise.def"
#undef UNARY
#undef UNARY_P
#undef BINARY
};

static const struct {
    const char *name;
    tarn_tensor *(*value)(tarn_tensor *a, tarn_tensor *b);
    tarn_tensor *(*inplace)(tarn_tensor *a, tarn_tensor *b);
} binary_functions[] = {
#define UNARY(name, ...)
#define BINARY(name, ...) {#name, tarn_##name, tarn_##name##_inplace},
#include "base/kernel/elementwise.def"
#undef BINARY
#undef COMPARE
#define BINARY(name, ...)
#define COMPARE(name, ...) {#name, tarn_##name, NULL},
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
};

static tarn_tensor *some_values(double first)
{
    double values[12];
    for (int i = 0; i < 12; i++)
        values[i] = first + 0.1 * i;
    return tarn_cast(tarn_to(tarn_from_f64(values, TARN_SHAPE(3, 4), tarn_device_cpu()), device), TARN_F32);
}

static void assert_same_bits(tarn_tensor *a, tarn_tensor *b, const char *name)
{
    float x[12], y[12];
    bool read = a && b && tarn_read(a, x, sizeof(x)) && tarn_read(b, y, sizeof(y));
    if (!read || memcmp(x, y, sizeof(x)) != 0)
        fail_msg("%s_inplace: %s", name, read ? "other values than the form that makes a new tensor" : tarn_error());
}

static void inplace_forms_are_bitwise_identical(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    for (size_t i = 0; i < sizeof(unary_functions) / sizeof(unary_functions[0]); i++)
        assert_same_bits(unary_functions[i].value(some_values(0.3)), unary_functions[i].inplace(some_values(0.3)),
                         unary_functions[i].name);
    for (size_t i = 0; i < sizeof(binary_functions) / sizeof(binary_functions[0]); i++)
        if (binary_functions[i].inplace)
            assert_same_bits(binary_functions[i].value(some_values(0.3), some_values(-1.15)),
                             binary_functions[i].inplace(some_values(0.3), some_values(-1.15)),
                             binary_functions[i].name);
    assert_same_bits(tarn_leaky_relu(some_values(-1), 0.1), tarn_leaky_relu_inplace(some_values(-1), 0.1),
                     "leaky_relu");
    assert_same_bits(tarn_clamp(some_values(-1), -0.5, 0), tarn_clamp_inplace(some_values(-1), -0.5, 0), "clamp");
    tarn_scope_close(scope);
}

static void every_row_is_an_operation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(unary_functions) / sizeof(unary_functions[0]); i++)
        assert_true(tarn_op_find(unary_functions[i].name) >= 0);
    for (size_t i = 0; i < sizeof(binary_functions) / sizeof(binary_functions[0]); i++)
        assert_true(tarn_op_find(binary_functions[i].name) >= 0);
}

static void every_case_names_an_operation(void **state)
{
    (void)state;
    for (int i = 0; i < tarn__case_count(); i++) {
        const tarn__case *one = tarn__case_at(i);
        if (tarn_op_find(one->operation) < 0)
            fail_msg("the list has a case of '%s', which is no operation", one->operation);
        for (int k = 0; k < i; k++)
            if (strcmp(one->operation, tarn__case_at(k)->operation) == 0 &&
                strcmp(one->variant, tarn__case_at(k)->variant) == 0)
                fail_msg("%s has two cases named '%s'", one->operation, one->variant);
    }
}

/* What `tarn bench ops` calls is what the cases say. */
static void plain_calls_are_bitwise_identical(void **state)
{
    (void)state;
    tarn__scale small = tarn__scale_small();
    for (int i = 0; i < tarn__case_count(); i++) {
        tarn__case one = tarn__case_resolve(tarn__case_at(i), &small, TARN_F32);
        tarn__case_fn call = one.bench ? tarn__case_direct(&one) : NULL;
        tarn_tensor *in[TARN__CASE_INPUTS], *out[TARN__CASE_OUTPUTS];
        if (one.bench && !call)
            fail_msg("%s is measured, but has no plain call in src/cases/direct_calls.c", one.operation);
        if (!call)
            continue;
        tarn_scope *scope = tarn_scope_open();
        require(tarn__case_inputs(&one, TARN_F32, TARN__CONTIGUOUS, device, SEED, in) && tarn__case_run(&one, in, out),
                &one, "by name");
        tarn_tensor *plain = call(&one, in);
        char text[200];
        require(plain && close_to(plain, out[0], TARN_BOOL, text, sizeof(text)), &one, "plain call");
        tarn_scope_close(scope);
    }
}

/* ---- one test for each operation and question -------------------------------------------------------------------- */

/* A test that stopped half-way leaves its scopes and threads; the next one starts afresh. */
static int clean_up(void **state)
{
    (void)state;
    tarn_clear_error();
    tarn_set_threads(0);
    return 0;
}

static const struct {
    const char *text;
    CMUnitTestFunction run;
} questions[] = {
    {"has its cases", has_its_cases},
    {"gradients agree with differences", gradients_agree_with_differences},
    {"every layout of f64 agrees with f64", layouts_of_f64},
    {"every layout of f32 agrees with f64", layouts_of_f32},
    {"every layout of bf16 agrees with f64", layouts_of_bf16},
    {"every layout of f16 agrees with f64", layouts_of_f16},
    {"threads do not change a bit", threads_do_not_change_a_bit},
    {"runs the kernels it lists", runs_the_kernels_it_lists},
};
#define QUESTIONS ((int)(sizeof(questions) / sizeof(questions[0])))
#define MOST_OPERATIONS 256

/* TARN_TEST_PART=2/8: an eighth of the tests alone, so that slow tools can take the parts at once. */
static bool read_part(int *part, int *parts)
{
    const char *text = getenv("TARN_TEST_PART");
    *part = 0, *parts = 1;
    return !text || (sscanf(text, "%d/%d", part, parts) == 2 && *part >= 0 && *part < *parts);
}

int main(void)
{
    int part, parts;
    static struct CMUnitTest tests[MOST_OPERATIONS * QUESTIONS + 4];
    static char names[MOST_OPERATIONS * QUESTIONS][96];
    static int numbers[MOST_OPERATIONS];
    device = test_device("cpu");
    if (tarn_failed() || tarn_op_count() > MOST_OPERATIONS) {
        fprintf(stderr, "%s\n", tarn_failed() ? tarn_error() : "more operations than this test has room for");
        return 1;
    }
    if (!read_part(&part, &parts)) {
        fprintf(stderr, "TARN_TEST_PART is a part and how many there are: 0/8 to 7/8\n");
        return 1;
    }
    size_t count = 0;
    if (part == 0) {
        tests[count++] = (struct CMUnitTest)cmocka_unit_test(every_row_is_an_operation);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test(every_case_names_an_operation);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test(inplace_forms_are_bitwise_identical);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test(plain_calls_are_bitwise_identical);
    }
    for (int op = 0; op < tarn_op_count(); op++) {
        numbers[op] = op;
        for (int q = 0; q < QUESTIONS; q++) {
            char *name = names[op * QUESTIONS + q];
            /* + 1: every part has all questions, of different operations */
            if ((op * (QUESTIONS + 1) + q) % parts != part)
                continue;
            snprintf(name, sizeof(names[0]), "%s: %s", tarn__op_row_at(op)->name, questions[q].text);
            tests[count++] = (struct CMUnitTest){name, questions[q].run, NULL, clean_up, &numbers[op]};
        }
    }
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    cmocka_set_skip_filter(getenv("TARN_TEST_SKIP"));
    return _cmocka_run_group_tests("cases", tests, count, NULL, NULL) != 0; /* a count of 256 would read as success */
}

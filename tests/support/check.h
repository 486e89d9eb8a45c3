/* check.h: shared by the tests of tensors: cmocka with its includes, checks of errors, and comparisons of values. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tarn/tarn.h>
#include <cmocka.h>

/* No error is pending; fails with its sentence otherwise. */
#define assert_ok() check_ok(__FILE__, __LINE__)

/* An error of that code is pending and its sentence contains the text; clears it. */
#define assert_error(code, text) check_error((code), (text), __FILE__, __LINE__)

/* The same, with two parts of the sentence. */
#define assert_error_about(code, part, other) check_error_about((code), (part), (other), __FILE__, __LINE__)

/* The expression is a tensor or true, and no error is pending. Is the value. */
#define good(tensor) check_tensor((tensor), #tensor, __FILE__, __LINE__)

/* The tensor has these elements, row-major, each within `tolerance` · max(1, |expected|); NaN equals NaN. */
#define assert_values(tensor, tolerance, ...) \
    check_values((tensor), (const double[]){__VA_ARGS__}, \
                 (int)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)), (tolerance), __FILE__, __LINE__)

/* Two tensors of one shape have elements within `tolerance` · max(1, |b|) of each other. */
#define assert_close(a, b, tolerance) check_close((a), (b), (tolerance), __FILE__, __LINE__)

/* The same within `tolerance` · max(|b|, root of the mean square of b): the measure for sums of many products. Says the
 * largest difference when it fails. */
#define assert_close_for_size(a, b, tolerance) check_close_for_size((a), (b), (tolerance), __FILE__, __LINE__)

/* The tensor has exactly these sizes. */
#define assert_shape(tensor, ...) check_shape((tensor), TARN_SHAPE(__VA_ARGS__), __FILE__, __LINE__)

/* The tensor has exactly this shape and these elements, row-major: expect(y, TARN_SHAPE(2), VALUES(1, 2)). NaN equals
 * NaN. */
#define expect(tensor, shape, values) check_elements((tensor), (shape), (values), __FILE__, __LINE__)
#define VALUES(...) ((const double[]){__VA_ARGS__})

/* The text contains a part. */
#define assert_contains(text, part) check_contains((text), (part), __FILE__, __LINE__)

void check_ok(const char *file, int line);
void check_error(tarn_code code, const char *text, const char *file, int line);
void check_error_about(tarn_code code, const char *part, const char *other, const char *file, int line);
tarn_tensor *check_tensor(tarn_tensor *tensor, const char *expression, const char *file, int line);
void check_values(const tarn_tensor *tensor, const double *expected, int count, double tolerance, const char *file,
                  int line);
void check_close(const tarn_tensor *a, const tarn_tensor *b, double tolerance, const char *file, int line);
void check_close_for_size(const tarn_tensor *a, const tarn_tensor *b, double tolerance, const char *file, int line);
void check_shape(const tarn_tensor *tensor, tarn_shape expected, const char *file, int line);
void check_elements(const tarn_tensor *tensor, tarn_shape shape, const double *values, const char *file, int line);
void check_contains(const char *text, const char *part, const char *file, int line);

/* A small tensor on the CPU from numbers written where it is used: vector(1, 2, 3). */
#define vector(...) \
    tarn_from_f32((const float[]){__VA_ARGS__}, \
                  TARN_SHAPE((int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float))), tarn_device_cpu())

/* 0, 1, 2 … in a shape, in f32 on the CPU; and the same as a leaf that collects its gradient. */
tarn_tensor *count_up(tarn_shape shape);
tarn_tensor *counted_leaf(tarn_shape shape);

/* The gradient of x when y, in f32, gets 1, 2, 3 … */
tarn_tensor *grad_from(tarn_tensor *y, tarn_tensor *x);

/* The forward of a module that does nothing. */
tarn_tensor *unchanged(tarn_module *module, tarn_tensor *x, void *ctx);

/* Memory that runs out: after `allocations_left` more blocks, of all threads, there are none. */
extern _Atomic int allocations_left;
extern const tarn_allocator scarce_allocator;

/* The elements of a tensor as doubles; the caller frees them with free(). */
double *values_of(const tarn_tensor *tensor);

/* cmocka setup and teardown: every test runs in a scope of its own, begins and ends without an error, and leaves no
 * memory held on the CPU and the number of threads as it was. clear_error() is a setup alone: one test that fails
 * leaves its error to no other. */
int open_test(void **state);
int close_test(void **state);
int clear_error(void **state);
#define in_scope(test) cmocka_unit_test_setup_teardown(test, open_test, close_test)

/* The device that $TARN_TEST_DEVICE names, and says what it is; without one, that of this name. */
tarn_device test_device(const char *otherwise);

/* Numbers for random tests: the seed is $TARN_TEST_SEED or the default, and printed. */
uint64_t test_seed(uint64_t otherwise);
uint64_t random_bits(uint64_t *state);
int64_t random_below(uint64_t *state, int64_t limit);

#endif

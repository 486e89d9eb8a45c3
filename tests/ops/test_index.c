/* test_index.c: gather and scatter: values, gradients and errors on small cases, random cases against naive loops,
 * and bitwise identical results with any number of threads. */
#include "support/check.h"

#define CPU tarn_device_cpu()

#define INDEX(shape, ...) tarn_from_i64((const int64_t[]){__VA_ARGS__}, shape, CPU)

/* ---- gather, scatter_add ----------------------------------------------------------------------------------------- */

static void gather_reads_along_the_axis_and_scatters_its_gradient(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3)), *index = INDEX(TARN_SHAPE(2, 2), 2, 2, 0, 1);
    tarn_tensor *y = tarn_gather(x, -1, index);
    expect(y, TARN_SHAPE(2, 2), VALUES(2, 2, 3, 4));
    expect(grad_from(y, x), TARN_SHAPE(2, 3), VALUES(0, 0, 3, 3, 4, 0));
    expect(tarn_gather(x, 0, INDEX(TARN_SHAPE(1, 3), 1, 0, 1)), TARN_SHAPE(1, 3), VALUES(3, 1, 5));
    expect(tarn_gather(x, 1, tarn_cast(index, TARN_I32)), TARN_SHAPE(2, 2), VALUES(2, 2, 3, 4));
    expect(tarn_gather(x, 1, tarn_zeros(TARN_SHAPE(2, 0), TARN_I64, CPU)), TARN_SHAPE(2, 0), NULL);
    expect(tarn_gather(tarn_transpose(x, 0, 1), 0, tarn_transpose(index, 0, 1)), TARN_SHAPE(2, 2), VALUES(2, 3, 2, 4));
    expect(tarn_gather(tarn_full(TARN_SCALAR, 6, TARN_F32, CPU), 0, INDEX(TARN_SCALAR, 0)), TARN_SCALAR, VALUES(6));
}

static void scatter_add_adds_where_the_index_says_and_has_both_gradients(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(2, 3)), *source = counted_leaf(TARN_SHAPE(2, 2)),
                *index = INDEX(TARN_SHAPE(2, 2), 2, 2, 0, 1);
    tarn_tensor *y = tarn_scatter_add(x, 1, index, source);
    expect(y, TARN_SHAPE(2, 3), VALUES(0, 1, 2 + 0 + 1, 3 + 2, 4 + 3, 5));
    expect(x, TARN_SHAPE(2, 3), VALUES(0, 1, 2, 3, 4, 5)); /* a copy is written */
    expect(grad_from(y, x), TARN_SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6));
    expect(tarn_grad(source), TARN_SHAPE(2, 2), VALUES(3, 3, 4, 5));
}

static void a_source_beyond_the_index_gets_no_gradient(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(4)), *source = counted_leaf(TARN_SHAPE(3));
    tarn_tensor *y = tarn_scatter_add(x, 0, INDEX(TARN_SHAPE(2), 3, 3), source);
    expect(y, TARN_SHAPE(4), VALUES(0, 1, 2, 3 + 0 + 1));
    expect(grad_from(y, x), TARN_SHAPE(4), VALUES(1, 2, 3, 4));
    expect(tarn_grad(source), TARN_SHAPE(3), VALUES(4, 4, 0));
}

static void sums_of_short_floats_are_rounded_once(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_full(TARN_SHAPE(1), 256, TARN_BF16, CPU),
                *source = tarn_ones(TARN_SHAPE(100), TARN_BF16, CPU);
    /* 1 by 1: 256 */
    expect(tarn_scatter_add(x, 0, tarn_zeros(TARN_SHAPE(100), TARN_I64, CPU), source), TARN_SHAPE(1), VALUES(356));
}

static void integers_are_added_too(void **state)
{
    (void)state;
    const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_I32, TARN_I64, TARN_U8};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        tarn_tensor *x = tarn_full(TARN_SHAPE(3), 1, dtypes[i], CPU), *source = tarn_arange(0, 4, 1, dtypes[i], CPU);
        expect(tarn_scatter_add(x, 0, INDEX(TARN_SHAPE(4), 2, 0, 2, 2), source), TARN_SHAPE(3), VALUES(2, 1, 6));
    }
}

static void indices_outside_the_axis_are_errors_that_name_the_first(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3)), *index = INDEX(TARN_SHAPE(2, 2), 0, 3, -1, 7);
    assert_null(tarn_gather(x, 1, index));
    assert_error(TARN_ERROR_ARGUMENT, "gather: index 3 is outside the axis, which has 3 elements");
    assert_null(tarn_gather(tarn_transpose(x, 0, 1), 0, tarn_transpose(index, 0, 1)));
    assert_error(TARN_ERROR_ARGUMENT, "index -1 is outside"); /* row-major in the index as it is seen */
    assert_null(tarn_scatter_add(x, 1, index, tarn_zeros(TARN_SHAPE(2, 2), TARN_F32, CPU)));
    assert_error(TARN_ERROR_ARGUMENT, "scatter_add: index 3");
    assert_null(tarn_index_select(x, 0, INDEX(TARN_SHAPE(2), 1, 2)));
    assert_error(TARN_ERROR_ARGUMENT, "index_select: index 2 is outside the axis, which has 2 elements");
    assert_null(tarn_embedding(count_up(TARN_SHAPE(4, 64)), index));
    assert_error(TARN_ERROR_ARGUMENT, "embedding: index -1");
    assert_null(tarn_one_hot(index, 7, TARN_F32));
    assert_error(TARN_ERROR_ARGUMENT, "one_hot: index -1");
    assert_null(tarn_gather(tarn_zeros(TARN_SHAPE(0), TARN_F32, CPU), 0, INDEX(TARN_SHAPE(1), 0)));
    assert_error(TARN_ERROR_ARGUMENT, "which has 0 elements");
}

static void operands_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3)), *index = INDEX(TARN_SHAPE(2, 2), 0, 1, 0, 1),
                *list = INDEX(TARN_SHAPE(2), 0, 1);
    assert_null(tarn_gather(x, 0, list));
    assert_error(TARN_ERROR_SHAPE, "gather: x [2, 3] has rank 2, the index [2] has rank 1");
    assert_null(tarn_gather(x, 1, tarn_zeros(TARN_SHAPE(3, 1), TARN_I64, CPU)));
    assert_error(TARN_ERROR_SHAPE, "axis 0 has 3 against 2");
    assert_null(tarn_gather(x, 1, x));
    assert_error(TARN_ERROR_DTYPE, "the index is f32");
    assert_null(tarn_gather(x, 1, tarn_scalar(1)));
    assert_error(TARN_ERROR_DTYPE, "tarn_scalar()");
    assert_null(tarn_scatter_add(x, 0, index, tarn_zeros(TARN_SHAPE(1, 2), TARN_F32, CPU)));
    assert_error(TARN_ERROR_SHAPE, "the source [1, 2]");
    assert_null(tarn_scatter_add(x, 0, index, tarn_zeros(TARN_SHAPE(2, 2), TARN_F64, CPU)));
    assert_error(TARN_ERROR_DTYPE, "f32 and f64");
    assert_null(tarn_index_select(x, 0, index));
    assert_error(TARN_ERROR_SHAPE, "index_select: the index [2, 2] has rank 2, not 1");
    assert_null(tarn_embedding(tarn_zeros(TARN_SHAPE(3), TARN_F32, CPU), list));
    assert_error(TARN_ERROR_SHAPE, "the weight [3] has rank 1, not 2");
    assert_null(tarn_one_hot(list, 0, TARN_F32));
    assert_error(TARN_ERROR_SHAPE, "one_hot: 0 classes");
    assert_null(tarn_one_hot(list, INT64_MAX, TARN_F32));
    assert_error(TARN_ERROR_SHAPE, "more bytes");
    assert_null(tarn_embedding(NULL, list));
    assert_error(TARN_ERROR_ARGUMENT, "embedding: the weight is NULL");
    assert_null(tarn_index_select(x, 0, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "the index is NULL");
}

/* ---- index_select, embedding, one_hot ---------------------------------------------------------------------------- */

static void index_select_takes_slices_along_any_axis(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(3, 2)), *index = INDEX(TARN_SHAPE(3), 2, 0, 2);
    tarn_tensor *y = tarn_index_select(x, 0, index);
    expect(y, TARN_SHAPE(3, 2), VALUES(4, 5, 0, 1, 4, 5));
    expect(grad_from(y, x), TARN_SHAPE(3, 2), VALUES(3, 4, 0, 0, 1 + 5, 2 + 6));
    expect(tarn_index_select(x, -1, INDEX(TARN_SHAPE(1), 1)), TARN_SHAPE(3, 1), VALUES(1, 3, 5));
    expect(tarn_index_select(x, 0, tarn_zeros(TARN_SHAPE(0), TARN_I32, CPU)), TARN_SHAPE(0, 2), NULL);
    expect(tarn_index_select(tarn_transpose(x, 0, 1), 1, tarn_flip(index, TARN_AXES(0))), TARN_SHAPE(2, 3),
           VALUES(4, 0, 4, 5, 1, 5));
    tarn_tensor *one = tarn_requires_grad(tarn_full(TARN_SCALAR, 6, TARN_F32, CPU), true);
    y = tarn_index_select(one, 0, INDEX(TARN_SHAPE(1), 0));
    expect(y, TARN_SCALAR, VALUES(6));
    expect(grad_from(y, one), TARN_SCALAR, VALUES(1));
}

static void embedding_looks_up_rows_and_adds_its_gradient_to_what_is_there(void **state)
{
    (void)state;
    tarn_tensor *weight = counted_leaf(TARN_SHAPE(3, 2)), *index = INDEX(TARN_SHAPE(2, 2), 1, 2, 1, 1);
    tarn_tensor *y = tarn_embedding(weight, index);
    expect(y, TARN_SHAPE(2, 2, 2), VALUES(2, 3, 4, 5, 2, 3, 2, 3));
    expect(grad_from(y, weight), TARN_SHAPE(3, 2), VALUES(0, 0, 1 + 5 + 7, 2 + 6 + 8, 3, 4));
    expect(grad_from(tarn_embedding(weight, tarn_transpose(index, 0, 1)), weight), TARN_SHAPE(3, 2),
           VALUES(0, 0, 13 + 1 + 3 + 7, 16 + 2 + 4 + 8, 3 + 5, 4 + 6));
    expect(tarn_embedding(weight, INDEX(TARN_SCALAR, 2)), TARN_SHAPE(2), VALUES(4, 5));
    expect(tarn_embedding(weight, tarn_zeros(TARN_SHAPE(0), TARN_I64, CPU)), TARN_SHAPE(0, 2), NULL);
}

static void a_bf16_embedding_has_an_f32_gradient(void **state)
{
    (void)state;
    tarn_tensor *weight = tarn_requires_grad(tarn_zeros(TARN_SHAPE(2, 32), TARN_BF16, CPU), true);
    tarn_tensor *y = tarn_embedding(weight, tarn_zeros(TARN_SHAPE(300), TARN_I64, CPU));
    assert_true(tarn_backward_from(y, tarn_ones_like(y), NULL));
    assert_int_equal(tarn_dtype_of(tarn_grad(weight)), TARN_F32);
    assert_true(tarn_item_at(tarn_grad(weight), TARN_SHAPE(0, 31)) == 300);
    assert_true(tarn_item_at(tarn_grad(weight), TARN_SHAPE(1, 0)) == 0);
}

static void one_hot_puts_a_one_into_a_new_last_axis(void **state)
{
    (void)state;
    tarn_tensor *index = INDEX(TARN_SHAPE(2, 2), 0, 2, 1, 0);
    for (int dtype = 0; dtype <= TARN_BOOL; dtype++)
        expect(tarn_one_hot(tarn_transpose(index, 0, 1), 3, (tarn_dtype)dtype), TARN_SHAPE(2, 2, 3),
               VALUES(1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0));
    expect(tarn_one_hot(INDEX(TARN_SCALAR, 1), 2, TARN_F32), TARN_SHAPE(2), VALUES(0, 1));
    expect(tarn_one_hot(tarn_zeros(TARN_SHAPE(0), TARN_I32, CPU), 2, TARN_F32), TARN_SHAPE(0, 2), NULL);
}

/* ---- random, against plain loops --------------------------------------------------------------------------------- */

typedef struct random_case {
    int64_t size[3], index_size[3];
    int axis;
} random_case;

static random_case draw_case(bool slices)
{
    random_case c = {.axis = rand() % 3};
    for (int i = 0; i < 3; i++) {
        c.size[i] = 1 + rand() % (rand() % 4 ? 9 : 70);
        c.index_size[i] = i == c.axis ? 1 + rand() % 40 : slices ? c.size[i] : 1 + rand() % c.size[i];
    }
    return c;
}

static int64_t count_of(const int64_t *size)
{
    return size[0] * size[1] * size[2];
}

/* The tensor, or a view of another layout with the same elements. */
static tarn_tensor *shuffle_layout(tarn_tensor *x)
{
    switch (rand() % 4) {
    case 0: return x;
    case 1: return tarn_transpose(tarn_contiguous(tarn_transpose(x, 0, 2)), 0, 2);
    case 2: return tarn_flip(tarn_contiguous(tarn_flip(x, TARN_ALL_AXES)), TARN_ALL_AXES);
    default: {
        tarn_shape edge = TARN_SHAPE(2, 2, 2), end = tarn_shape_of(x);
        for (int i = 0; i < 3; i++)
            end.size[i] += 2;
        return tarn_shrink(tarn_pad(x, edge, edge, 77), edge, end);
    }
    }
}

static tarn_tensor *draw_index(const random_case *c, int64_t **values)
{
    int64_t count = count_of(c->index_size);
    *values = malloc(sizeof(int64_t) * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        (*values)[i] = rand() % c->size[c->axis];
    return tarn_from_i64(*values, TARN_SHAPE(c->index_size[0], c->index_size[1], c->index_size[2]), CPU);
}

/* Element [i, j, k] of the index refers to this element of a tensor of the case's size. */
static int64_t target(const random_case *c, const int64_t *at, int64_t index)
{
    int64_t place[3] = {at[0], at[1], at[2]};
    place[c->axis] = index;
    return (place[0] * c->size[1] + place[1]) * c->size[2] + place[2];
}

static void random_gathers_and_scatters_agree_with_loops(void **state)
{
    (void)state;
    srand(11);
    for (int round = 0; round < 200; round++) {
        tarn_scope *inner = tarn_scope_open();
        random_case c = draw_case(false);
        int64_t *index, count = count_of(c.size), many = count_of(c.index_size), n = 0, at[3];
        tarn_tensor *list = shuffle_layout(draw_index(&c, &index));
        tarn_tensor *x = tarn_normal(TARN_SHAPE(c.size[0], c.size[1], c.size[2]), 0, 1, TARN_F64, CPU);
        tarn_tensor *source =
            tarn_normal(TARN_SHAPE(c.index_size[0], c.index_size[1], c.index_size[2]), 0, 1, TARN_F64, CPU);
        double *values = malloc(sizeof(double) * (size_t)count), *added = malloc(sizeof(double) * (size_t)many);
        double *have = malloc(sizeof(double) * (size_t)(count > many ? count : many));
        assert_true(tarn_read_f64(x, values, count) && tarn_read_f64(source, added, many));
        assert_true(tarn_read_f64(tarn_gather(shuffle_layout(x), c.axis, list), have, many));
        for (at[0] = 0; at[0] < c.index_size[0]; at[0]++)
            for (at[1] = 0; at[1] < c.index_size[1]; at[1]++)
                for (at[2] = 0; at[2] < c.index_size[2]; at[2]++, n++)
                    assert_true(have[n] == values[target(&c, at, index[n])]);
        assert_true(
            tarn_read_f64(tarn_scatter_add(shuffle_layout(x), c.axis, list, shuffle_layout(source)), have, count));
        n = 0;
        for (at[0] = 0; at[0] < c.index_size[0]; at[0]++)
            for (at[1] = 0; at[1] < c.index_size[1]; at[1]++)
                for (at[2] = 0; at[2] < c.index_size[2]; at[2]++, n++)
                    values[target(&c, at, index[n])] += added[n];
        assert_memory_equal(have, values, sizeof(double) * (size_t)count);
        free(values), free(added), free(have), free(index);
        tarn_scope_close(inner);
    }
}

static void random_slices_and_their_gradients_agree_with_loops(void **state)
{
    (void)state;
    srand(12);
    for (int round = 0; round < 200; round++) {
        tarn_scope *inner = tarn_scope_open();
        random_case c = draw_case(true);
        int64_t count = count_of(c.size), many = count_of(c.index_size), n = 0, at[3], index[40];
        for (int64_t i = 0; i < c.index_size[c.axis]; i++)
            index[i] = rand() % c.size[c.axis];
        tarn_tensor *list = tarn_from_i64(index, TARN_SHAPE(c.index_size[c.axis]), CPU);
        tarn_tensor *x = tarn_normal(TARN_SHAPE(c.size[0], c.size[1], c.size[2]), 0, 1, TARN_F64, CPU);
        x = tarn_requires_grad(tarn_detach(shuffle_layout(x)), true);
        double *values = malloc(sizeof(double) * (size_t)count), *added = malloc(sizeof(double) * (size_t)many);
        double *have = malloc(sizeof(double) * (size_t)(count > many ? count : many));
        tarn_tensor *y = tarn_index_select(x, c.axis, list), *g = tarn_normal(tarn_shape_of(y), 0, 1, TARN_F64, CPU);
        assert_true(tarn_read_f64(x, values, count) && tarn_read_f64(g, added, many) && tarn_read_f64(y, have, many));
        for (at[0] = 0; at[0] < c.index_size[0]; at[0]++)
            for (at[1] = 0; at[1] < c.index_size[1]; at[1]++)
                for (at[2] = 0; at[2] < c.index_size[2]; at[2]++, n++)
                    assert_true(have[n] == values[target(&c, at, index[at[c.axis]])]);
        assert_true(tarn_backward_from(y, shuffle_layout(g), NULL) && tarn_read_f64(tarn_grad(x), have, count));
        memset(values, 0, sizeof(double) * (size_t)count);
        n = 0;
        for (at[0] = 0; at[0] < c.index_size[0]; at[0]++)
            for (at[1] = 0; at[1] < c.index_size[1]; at[1]++)
                for (at[2] = 0; at[2] < c.index_size[2]; at[2]++, n++)
                    values[target(&c, at, index[at[c.axis]])] += added[n];
        assert_memory_equal(have, values, sizeof(double) * (size_t)count);
        free(values), free(added), free(have);
        tarn_scope_close(inner);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void read_all(const tarn_tensor *x, float *values, size_t bytes)
{
    if (!x || !tarn_read(x, values, bytes))
        fail_msg("%s", tarn_error());
}

/* Sums in four ways: by element, rows and columns; by row, into a dense weight and into a transposed one. */
static tarn_tensor *sum_at_indices(int way, tarn_tensor *zeros, tarn_tensor *index, tarn_tensor *list,
                                   tarn_tensor *source)
{
    if (way == 0)
        return tarn_scatter_add(zeros, 0, index, source);
    tarn_tensor *turned = tarn_clone(tarn_transpose(zeros, 0, 1));
    if (way == 1)
        return tarn_scatter_add(turned, 1, tarn_transpose(index, 0, 1), tarn_transpose(source, 0, 1));
    tarn_tensor *weight = tarn_requires_grad(way == 2 ? tarn_clone(zeros) : tarn_transpose(turned, 0, 1), true);
    return tarn_backward_from(tarn_embedding(weight, list), source, NULL) ? tarn_grad(weight) : NULL;
}

static void scatter_add_is_bitwise_identical_with_any_number_of_threads(void **state)
{
    (void)state;
    enum { ROWS = 3000, COLUMNS = 300, SOURCES = 5000 };
    const int threads[] = {1, 2, 4};
    size_t bytes = sizeof(float) * ROWS * COLUMNS;
    float *first[4], *again = malloc(bytes);
    tarn_tensor *index = tarn_cast(tarn_uniform(TARN_SHAPE(SOURCES, COLUMNS), 0, 50, TARN_F32, CPU), TARN_I64);
    tarn_tensor *list = tarn_cast(tarn_uniform(TARN_SHAPE(SOURCES), 0, ROWS, TARN_F32, CPU), TARN_I32);
    tarn_tensor *source = tarn_normal(TARN_SHAPE(SOURCES, COLUMNS), 0, 1, TARN_F32, CPU);
    tarn_tensor *zeros = tarn_zeros(TARN_SHAPE(ROWS, COLUMNS), TARN_F32, CPU);
    for (int k = 0; k < 4; k++)
        first[k] = malloc(bytes);
    for (int i = 0; i < 3; i++) {
        assert_true(tarn_set_threads(threads[i]));
        for (int k = 0; k < 4; k++) {
            tarn_tensor *sum = sum_at_indices(k, zeros, index, list, source);
            read_all(sum, i == 0 ? first[k] : again, bytes);
            if (i > 0)
                assert_memory_equal(again, first[k], bytes);
        }
    }
    assert_memory_equal(first[2], first[3], bytes);
    for (int k = 0; k < 4; k++)
        free(first[k]);
    free(again);
}

static void the_gradient_of_a_large_embedding_agrees_with_a_loop(void **state)
{
    (void)state;
    enum { ROWS = 2500, COLUMNS = 520, SOURCES = 4000 };
    tarn_tensor *weight = tarn_requires_grad(tarn_zeros(TARN_SHAPE(ROWS, COLUMNS), TARN_F32, CPU), true);
    tarn_tensor *index =
        tarn_cast(tarn_square(tarn_uniform(TARN_SHAPE(4, SOURCES / 4), 0, 50, TARN_F32, CPU)), TARN_I64);
    tarn_tensor *g = tarn_normal(TARN_SHAPE(4, SOURCES / 4, COLUMNS), 0, 1, TARN_F32, CPU);
    assert_true(tarn_backward_from(tarn_embedding(weight, index), g, NULL));
    float *want = calloc(ROWS * COLUMNS, sizeof(float)), *have = malloc(sizeof(float) * ROWS * COLUMNS);
    float *added = malloc(sizeof(float) * SOURCES * COLUMNS);
    int64_t list[SOURCES];
    assert_true(tarn_read(index, list, sizeof(list)));
    read_all(g, added, sizeof(float) * SOURCES * COLUMNS);
    read_all(tarn_grad(weight), have, sizeof(float) * ROWS * COLUMNS);
    for (int64_t i = 0; i < SOURCES; i++)
        for (int64_t c = 0; c < COLUMNS; c++)
            want[list[i] * COLUMNS + c] += added[i * COLUMNS + c];
    assert_memory_equal(have, want, sizeof(float) * ROWS * COLUMNS);
    free(want), free(have), free(added);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(gather_reads_along_the_axis_and_scatters_its_gradient),
        in_scope(scatter_add_adds_where_the_index_says_and_has_both_gradients),
        in_scope(a_source_beyond_the_index_gets_no_gradient),
        in_scope(sums_of_short_floats_are_rounded_once),
        in_scope(integers_are_added_too),
        in_scope(indices_outside_the_axis_are_errors_that_name_the_first),
        in_scope(operands_that_do_not_fit_are_refused),
        in_scope(index_select_takes_slices_along_any_axis),
        in_scope(embedding_looks_up_rows_and_adds_its_gradient_to_what_is_there),
        in_scope(a_bf16_embedding_has_an_f32_gradient),
        in_scope(one_hot_puts_a_one_into_a_new_last_axis),
        in_scope(random_gathers_and_scatters_agree_with_loops),
        in_scope(random_slices_and_their_gradients_agree_with_loops),
        in_scope(scatter_add_is_bitwise_identical_with_any_number_of_threads),
        in_scope(the_gradient_of_a_large_embedding_agrees_with_a_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

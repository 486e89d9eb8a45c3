/* test_view.c: counting and ordering views, and the collapsed loop nest against a naive loop over all indices. */
#include "base/kernel/view.h"
#include "support/check.h"

/* A random view of at most `most` elements: permuted, strided, flipped, expanded, with empty and size-1 axes. */
static tarn__view random_view(uint64_t *seed, int rank, bool small)
{
    tarn__view view = {.rank = rank, .dtype = TARN_F32};
    int order[TARN_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        int64_t draw = random_below(seed, small ? 10 : 100);
        view.shape[i] = draw == 0 ? 0 : draw < 4 ? 1 : 2 + random_below(seed, 3);
        int k = (int)random_below(seed, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    int64_t next = 1;
    for (int i = 0; i < rank; i++) {
        int axis = order[i];
        view.stride[axis] = next * (random_below(seed, 4) == 0 ? -1 : 1);
        if (random_below(seed, 5) == 0)
            view.stride[axis] = 0;
        next *= (view.shape[axis] > 0 ? view.shape[axis] : 1) * (random_below(seed, 3) == 0 ? 2 : 1);
    }
    return view;
}

/* A view that broadcasts to `first`: leading axes dropped, some sizes 1, other strides. */
static tarn__view broadcast_view(uint64_t *seed, const tarn__view *first)
{
    int drop = (int)random_below(seed, first->rank + 1);
    if (random_below(seed, 2))
        drop = 0;
    tarn__view view = random_view(seed, first->rank - drop, false);
    bool same_layout = random_below(seed, 2) != 0;
    for (int i = 0; i < view.rank; i++) {
        view.shape[i] = random_below(seed, 4) == 0 ? 1 : first->shape[i + drop];
        if (same_layout)
            view.stride[i] = first->stride[i + drop];
    }
    return view;
}

static int64_t offset_at(const tarn__view *view, const int64_t *index, int rank)
{
    int64_t offset = 0;
    for (int i = 0; i < view->rank; i++)
        offset += view->shape[i] == 1 ? 0 : index[rank - view->rank + i] * view->stride[i];
    return offset;
}

enum { OPERANDS = 4, MOST = 1 << 13 };

typedef struct tuple {
    int64_t offset[OPERANDS];
} tuple;

static int compare_tuples(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(tuple));
}

static bool advance(int64_t *index, const int64_t *shape, int rank)
{
    for (int i = rank - 1; i >= 0; i--) {
        if (++index[i] < shape[i])
            return true;
        index[i] = 0;
    }
    return false;
}

static int64_t walk_views(const tarn__view *const *views, tuple *out)
{
    int64_t index[TARN_MAX_RANK] = {0}, count = 0;
    if (tarn__view_count(views[0]) == 0)
        return 0;
    do {
        memset(&out[count], 0, sizeof(out[count]));
        for (int k = 0; k < OPERANDS; k++)
            out[count].offset[k] = views[k] ? offset_at(views[k], index, views[0]->rank) : 0;
        count++;
    } while (advance(index, views[0]->shape, views[0]->rank));
    return count;
}

static int64_t walk_nest(const tarn__nest *nest, tuple *out)
{
    int64_t index[TARN_MAX_RANK] = {0}, count = 0;
    if (nest->count == 0)
        return 0;
    do {
        memset(&out[count], 0, sizeof(out[count]));
        for (int k = 0; k < OPERANDS; k++)
            for (int i = 0; i < nest->rank; i++)
                out[count].offset[k] += index[i] * nest->stride[k][i];
        count++;
    } while (advance(index, nest->shape, nest->rank));
    return count;
}

static void a_nest_visits_what_the_views_do(void **state)
{
    (void)state;
    uint64_t seed = test_seed(21);
    tuple *expected = malloc(sizeof(tuple) * MOST), *found = malloc(sizeof(tuple) * MOST);
    assert_true(expected && found);
    for (int round = 0; round < 4000; round++) {
        tarn__view view[OPERANDS] = {random_view(&seed, (int)random_below(&seed, TARN_MAX_RANK + 1), true)};
        if (tarn__view_count(&view[0]) > MOST)
            continue;
        const tarn__view *views[OPERANDS] = {&view[0]};
        for (int k = 1; k < OPERANDS; k++) {
            view[k] = broadcast_view(&seed, &view[0]);
            views[k] = random_below(&seed, 8) == 0 ? NULL : &view[k];
        }
        tarn__nest nest;
        tarn__nest_make(&nest, OPERANDS, views);
        assert_int_equal(nest.count, tarn__view_count(&view[0]));
        for (int i = 0; i < nest.rank; i++)
            assert_true(nest.shape[i] != 1 || nest.count == 0);
        int64_t count = walk_views(views, expected);
        assert_int_equal(walk_nest(&nest, found), count);
        qsort(expected, (size_t)count, sizeof(tuple), compare_tuples);
        qsort(found, (size_t)count, sizeof(tuple), compare_tuples);
        assert_memory_equal(expected, found, sizeof(tuple) * (size_t)count);
    }
    free(expected);
    free(found);
}

static tarn__view packed(int rank, const int64_t *shape)
{
    tarn__view view = {.rank = rank};
    memcpy(view.shape, shape, sizeof(int64_t) * (size_t)rank);
    tarn__view_set_row_major(&view);
    return view;
}

static void dense_views_of_any_rank_collapse_to_one_loop(void **state)
{
    (void)state;
    uint64_t seed = test_seed(22);
    for (int round = 0; round < 500; round++) {
        int64_t shape[TARN_MAX_RANK];
        int rank = (int)random_below(&seed, TARN_MAX_RANK + 1);
        for (int i = 0; i < rank; i++)
            shape[i] = 1 + random_below(&seed, 3);
        tarn__view view = packed(rank, shape);
        assert_true(tarn__view_is_contiguous(&view));
        tarn__nest nest;
        tarn__nest_make(&nest, 2, (const tarn__view *const[]){&view, &view});
        assert_int_equal(nest.rank, tarn__view_count(&view) == 1 ? 0 : 1);
        assert_true(nest.rank == 0 || (nest.stride[0][0] == 1 && nest.shape[0] == nest.count));
    }
}

static void permuted_operands_of_one_layout_collapse_too(void **state)
{
    (void)state;
    tarn__view view = packed(3, (const int64_t[]){2, 3, 4});
    tarn__view turned = {.rank = 3, .shape = {4, 2, 3}, .stride = {1, 12, 4}};
    tarn__nest nest;
    tarn__nest_make(&nest, 2, (const tarn__view *const[]){&turned, &turned});
    assert_int_equal(nest.rank, 1);
    assert_int_equal(nest.shape[0], 24);
    tarn__nest_make(&nest, 2, (const tarn__view *const[]){&view, &view});
    assert_int_equal(nest.rank, 1);
}

static void density_ignores_size_one_and_empty_axes(void **state)
{
    (void)state;
    tarn__view one = {.rank = 3, .shape = {2, 1, 3}, .stride = {3, 77, 1}};
    assert_true(tarn__view_is_contiguous(&one));
    tarn__view empty = {.rank = 2, .shape = {0, 5}, .stride = {99, 3}};
    assert_true(tarn__view_is_contiguous(&empty));
    assert_int_equal(tarn__view_count(&empty), 0);
    tarn__view gap = {.rank = 2, .shape = {2, 3}, .stride = {4, 1}};
    assert_false(tarn__view_is_contiguous(&gap));
    tarn__view flipped = {.rank = 1, .shape = {3}, .stride = {-1}};
    assert_false(tarn__view_is_contiguous(&flipped));
    tarn__view scalar = {.rank = 0};
    assert_true(tarn__view_is_contiguous(&scalar));
    assert_int_equal(tarn__view_count(&scalar), 1);
}

static void an_axis_is_taken_out_and_cut_to_another_views_sizes(void **state)
{
    (void)state;
    tarn__view view = {.offset = 7, .dtype = TARN_F32, .rank = 3, .shape = {4, 5, 6}, .stride = {60, -6, 1}},
               like = {.rank = 3, .shape = {2, 9, 3}}, scalar = {.rank = 0};
    tarn__view rest = tarn__view_across(&view, 1, &like);
    assert_int_equal(rest.rank, 2);
    assert_true(rest.shape[0] == 2 && rest.shape[1] == 3 && rest.stride[0] == 60 && rest.stride[1] == 1 &&
                rest.offset == 7);
    assert_int_equal(tarn__view_across(&scalar, 0, &scalar).rank, 0);
    assert_true(tarn__axis_size(&view, 1) == 5 && tarn__axis_stride(&view, 1) == -6);
    assert_true(tarn__axis_size(&scalar, 0) == 1 && tarn__axis_stride(&scalar, 0) == 0 &&
                tarn__axis_stride(NULL, 2) == 0);
}

static void an_index_along_an_axis_is_one_of_every_element(void **state)
{
    (void)state;
    int64_t places[8];
    tarn__view like = packed(3, (const int64_t[]){2, 3, 4}), index = {.memory = places,
                                                                      .offset = 1,
                                                                      .dtype = TARN_I64,
                                                                      .rank = 1,
                                                                      .shape = {3},
                                                                      .stride = {2},
                                                                      .base = 16};
    tarn__view wide = tarn__view_repeated(&index, &like, 1);
    assert_true(wide.memory == places && wide.offset == 1 && wide.dtype == TARN_I64 && wide.base == 16 &&
                wide.rank == 3);
    assert_true(wide.shape[0] == 2 && wide.shape[1] == 3 && wide.shape[2] == 4);
    assert_true(wide.stride[0] == 0 && wide.stride[1] == 2 && wide.stride[2] == 0);
}

static void neighbours_and_pieces_are_known_by_strides(void **state)
{
    (void)state;
    tarn__view view = packed(3, (const int64_t[]){2, 3, 4}),
               turned = {.rank = 3, .shape = {4, 3, 2}, .stride = {1, 4, 12}};
    tarn__view one = {.rank = 2, .shape = {3, 1}, .stride = {2, 1}},
               expanded = {.rank = 3, .shape = {2, 3, 4}, .stride = {0, 4, 1}};
    assert_int_equal(tarn__view_innermost(&view), 2);
    assert_int_equal(tarn__view_innermost(&turned), 0);
    assert_int_equal(tarn__view_innermost(&one), 0);
    tarn__nest nest;
    tarn__nest_make(&nest, 2, (const tarn__view *const[]){&view, &expanded});
    assert_true(tarn__nest_is_contiguous(&nest, 0));
    assert_false(tarn__nest_is_contiguous(&nest, 1));
}

static void one_stride_covers_axes_that_run_on(void **state)
{
    (void)state;
    tarn__view view = {.rank = 4, .shape = {3, 5, 1, 4}, .stride = {50, 8, 7, 2}};
    int64_t stride;
    assert_true(tarn__view_has_one_stride(&view, 1, 3, &stride) && stride == 2);
    assert_true(tarn__view_has_one_stride(&view, 0, 0, &stride) && stride == 50);
    assert_true(tarn__view_has_one_stride(&view, 2, 2, &stride) && stride == 1);
    assert_false(tarn__view_has_one_stride(&view, 0, 3, &stride));
    view.stride[0] = 40;
    assert_true(tarn__view_has_one_stride(&view, 0, 3, &stride) && stride == 2);
    view.stride[1] = -8;
    assert_false(tarn__view_has_one_stride(&view, 1, 3, &stride));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nest_visits_what_the_views_do),
        cmocka_unit_test(dense_views_of_any_rank_collapse_to_one_loop),
        cmocka_unit_test(permuted_operands_of_one_layout_collapse_too),
        cmocka_unit_test(density_ignores_size_one_and_empty_axes),
        cmocka_unit_test(an_axis_is_taken_out_and_cut_to_another_views_sizes),
        cmocka_unit_test(an_index_along_an_axis_is_one_of_every_element),
        cmocka_unit_test(neighbours_and_pieces_are_known_by_strides),
        cmocka_unit_test(one_stride_covers_axes_that_run_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

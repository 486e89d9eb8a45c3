/* test_capture.c: captured steps on a device with graph support: which values a run reads anew and which it keeps,
 * what cannot be captured, and who owns the memory. */
#include <math.h>
#include <pthread.h>
#include <tarn/graph.h>
#include <tarn/profile.h>

#include "support/check.h"

static tarn_device mirror(void)
{
    return tarn_device_parse("mirror:0");
}

/* ---- what a run does --------------------------------------------------------------------------------------------- */

typedef struct sums {
    tarn_tensor *x, *y;
} sums;

static bool double_and_add(void *ctx)
{
    sums *s = ctx;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_add_inplace(s->y, tarn_mul(s->x, tarn_scalar(2)));
    tarn_scope_close(scope);
    return good;
}

static void a_step_is_recorded_and_not_run_and_then_run_as_often_as_asked(void **state)
{
    (void)state;
    sums s = {tarn_from_f32((const float[]){1, 2}, TARN_SHAPE(2), mirror()),
              tarn_zeros(TARN_SHAPE(2), TARN_F32, mirror())};
    tarn_graph *graph = tarn_graph_capture(mirror(), double_and_add, &s);
    assert_ok();
    assert_values(s.y, 0, 0, 0);
    assert_true(tarn_graph_run(graph));
    assert_values(s.y, 0, 2, 4);
    assert_true(tarn_write(s.x, (const float[]){10, 20}, 2 * sizeof(float)));
    assert_true(tarn_graph_run(graph) && tarn_graph_run(graph));
    assert_values(s.y, 0, 42, 84);
    tarn_graph_free(graph);
}

typedef struct draws {
    tarn_tensor *x, *kept; /* [64]: what dropout leaves of ones, and its gradient: the same mask */
} draws;

static bool draw(void *ctx)
{
    draws *d = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_ones(TARN_SHAPE(64), TARN_F32, mirror());
    tarn_requires_grad(x, true);
    tarn_tensor *y = tarn_dropout(x, 0.5);
    bool good = tarn_copy(d->x, tarn_detach(y)) && tarn_backward(tarn_sum(y, TARN_ALL_AXES, false)) &&
                tarn_copy(d->kept, tarn_grad(x));
    tarn_scope_close(scope);
    return good;
}

static void random_numbers_go_on_from_run_to_run(void **state)
{
    (void)state;
    float eager[4][64], captured[64], kept[64];
    draws d = {tarn_zeros(TARN_SHAPE(64), TARN_F32, mirror()), tarn_zeros(TARN_SHAPE(64), TARN_F32, mirror())};
    tarn_seed(3);
    for (int i = 0; i < 4; i++)
        assert_true(draw(&d) && tarn_read(d.x, eager[i], sizeof(eager[i])));
    assert_memory_not_equal(eager[0], eager[1], sizeof(eager[0]));
    tarn_seed(4); /* the seed is read anew as well */
    tarn_graph *graph = tarn_graph_capture(mirror(), draw, &d);
    tarn_seed(3);
    for (int i = 0; i < 4; i++) {
        assert_true(i == 2 ? draw(&d) : tarn_graph_run(graph)); /* one in between that is not recorded */
        assert_true(tarn_read(d.x, captured, sizeof(captured)) && tarn_read(d.kept, kept, sizeof(kept)));
        assert_memory_equal(captured, eager[i], sizeof(captured));
        assert_memory_equal(captured, kept, sizeof(captured));
    }
    tarn_graph_free(graph);
}

/* ---- what cannot be ---------------------------------------------------------------------------------------------- */

static bool read_value(void *ctx)
{
    return isfinite(tarn_item(ctx));
}

static bool move_value(void *ctx)
{
    return tarn_to(ctx, tarn_device_cpu()) != NULL;
}

static bool bring_value(void *ctx)
{
    (void)ctx;
    return tarn_from_f32((const float[]){1}, TARN_SHAPE(1), mirror()) != NULL;
}

static bool give_up(void *ctx)
{
    (void)ctx;
    return false;
}

static void what_cannot_be_recorded_is_named(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_ones(TARN_SHAPE(1), TARN_F32, mirror());
    assert_null(tarn_graph_capture(mirror(), read_value, x));
    assert_error(TARN_ERROR_UNSUPPORTED, "item: a value read by the host inside a captured step");
    assert_null(tarn_graph_capture(mirror(), move_value, x));
    assert_error(TARN_ERROR_UNSUPPORTED, "inside a captured step");
    assert_null(tarn_graph_capture(mirror(), bring_value, x));
    assert_error(TARN_ERROR_UNSUPPORTED, "from: a copy from the host inside a captured step");
    assert_null(tarn_graph_capture(mirror(), give_up, x));
    assert_error(TARN_ERROR_ARGUMENT, "the step returned false");
    assert_values(tarn_add(x, x), 0, 2); /* and the device works on */
}

typedef struct lookup {
    tarn_tensor *table, *index, *y;
} lookup;

static bool look_up(void *ctx)
{
    lookup *l = ctx;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_copy(l->y, tarn_index_select(l->table, 0, l->index));
    tarn_scope_close(scope);
    return good;
}

static void an_index_that_is_nowhere_is_found_in_the_run_that_reads_it(void **state)
{
    (void)state;
    lookup l = {tarn_arange(0, 5, 1, TARN_F32, mirror()), tarn_zeros(TARN_SHAPE(2), TARN_I64, mirror()),
                tarn_zeros(TARN_SHAPE(2), TARN_F32, mirror())};
    tarn_graph *graph = tarn_graph_capture(mirror(), look_up, &l);
    assert_true(tarn_write(l.index, (const int64_t[]){4, 1}, 2 * sizeof(int64_t)));
    assert_true(tarn_graph_run(graph));
    assert_values(l.y, 0, 4, 1);
    assert_true(tarn_write(l.index, (const int64_t[]){5, 1}, 2 * sizeof(int64_t)));
    assert_false(tarn_graph_run(graph));
    assert_error(TARN_ERROR_ARGUMENT, "index_select: index 5 is outside the axis, which has 5 elements");
    tarn_graph_free(graph);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { LARGE = 1 << 20 };

static bool square_twice(void *ctx)
{
    sums *s = ctx;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_copy(s->y, tarn_square(tarn_square(s->x)));
    tarn_scope_close(scope);
    return good;
}

static void a_graph_keeps_its_memory_and_the_peak_counts_it_once(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    sums s = {tarn_full(TARN_SHAPE(LARGE), 2, TARN_F32, mirror()), tarn_zeros(TARN_SHAPE(LARGE), TARN_F32, mirror())};
    const int64_t bytes = (int64_t)LARGE * 4;
    tarn_stats_reset();
    tarn_memory before = tarn_memory_of(mirror());
    assert_true(square_twice(&s)); /* the peak of one step */
    int64_t eager = tarn_memory_of(mirror()).peak_used - before.used;
    tarn_graph *graph = tarn_graph_capture(mirror(), square_twice, &s);
    assert_ok();
    int64_t captured = tarn_memory_of(mirror()).peak_used - before.used;
    /* not both: the eager step is over */
    assert_true(eager >= 2 * bytes && captured >= eager && captured < eager + bytes / 2);

    tarn_tensor *more[4]; /* the recorded step's memory is nobody else's */
    for (int i = 0; i < 4; i++)
        more[i] = tarn_full(TARN_SHAPE(LARGE), 7, TARN_F32, mirror());
    assert_true(tarn_graph_run(graph));
    for (int i = 0; i < 4; i++)
        assert_true(tarn_item(tarn_max(more[i], TARN_ALL_AXES, false)) == 7 &&
                    tarn_item(tarn_min(more[i], TARN_ALL_AXES, false)) == 7);
    assert_true(tarn_item(tarn_max(s.y, TARN_ALL_AXES, false)) == 16);
    assert_true(tarn_memory_of(mirror()).peak_used - before.used >= captured + 4 * bytes);
    tarn_graph_free(graph);
    tarn_scope_close(scope);
    tarn_stats_reset();
    assert_true(tarn_memory_of(mirror()).peak_used <= before.used);
}

static bool is_all(tarn_tensor *x, double value)
{
    return tarn_item(tarn_max(x, TARN_ALL_AXES, false)) == value &&
           tarn_item(tarn_min(x, TARN_ALL_AXES, false)) == value;
}

/* y = x + 8: eight temporaries, of which two are alive at a time. */
static bool add_in_steps(void *ctx)
{
    sums *s = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = s->x;
    for (int i = 0; i < 8; i++) {
        tarn_tensor *next = tarn_add(x, tarn_scalar(1));
        tarn_free(i ? x : NULL);
        x = next;
    }
    bool good = tarn_copy(s->y, x);
    tarn_scope_close(scope);
    return good;
}

static sums large_sums(double value)
{
    return (sums){tarn_full(TARN_SHAPE(LARGE), value, TARN_F32, mirror()),
                  tarn_zeros(TARN_SHAPE(LARGE), TARN_F32, mirror())};
}

static void a_captured_step_takes_the_memory_of_an_eager_one(void **state)
{
    (void)state;
    sums s = large_sums(1);
    const int64_t bytes = (int64_t)LARGE * 4, segment = (int64_t)2 << 20;
    assert_true(tarn_empty_cache(mirror()));
    tarn_stats_reset();
    assert_true(add_in_steps(&s) && add_in_steps(&s));
    tarn_memory eager = tarn_memory_of(mirror());
    tarn_graph *graph = tarn_graph_capture(mirror(), add_in_steps, &s);
    assert_ok();
    tarn_memory captured = tarn_memory_of(mirror());
    assert_true(captured.cached >= 2 * bytes);
    assert_true(captured.peak_used - eager.peak_used <= 4096); /* the values that change */
    assert_true(captured.used + captured.cached - eager.used - eager.cached <= segment);
    assert_int_equal(tarn_memory_kinds_of(mirror()).peak, captured.peak_used); /* its memory counts once */
    for (int i = 0; i < 3; i++) {
        assert_true(tarn_copy(s.x, tarn_full(TARN_SHAPE(LARGE), i, TARN_F32, mirror())) && tarn_graph_run(graph));
        assert_true(is_all(s.y, i + 8));
    }
    tarn_graph_free(graph);
    tarn_stats_reset();
    assert_true(add_in_steps(&s)); /* with the memory of the graph */
    assert_int_equal(tarn_stats().system_allocations, 0);
}

static void graphs_do_not_share_their_memory(void **state)
{
    (void)state;
    sums s[3];
    tarn_graph *graph[3];
    for (int i = 0; i < 3; i++) {
        s[i] = large_sums(10 * i);
        graph[i] = tarn_graph_capture(mirror(), i % 2 ? square_twice : add_in_steps, &s[i]);
    }
    assert_ok();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            assert_true(!graph[i] || tarn_graph_run(graph[i]));
        assert_true(is_all(s[0].y, 8) && is_all(s[1].y, 1e4) && is_all(s[2].y, 28));
        tarn_graph_free(graph[round]); /* one after the other; the results stay */
        graph[round] = NULL;
    }
}

/* ---- tensors that come and go inside a step ---------------------------------------------------------------------- */

typedef struct exchange {
    tarn_tensor *y;        /* [LARGE], the result */
    tarn_tensor *old;      /* allocated before the capture, freed inside it */
    tarn_tensor *produced; /* allocated inside the capture, alive after it */
} exchange;

static bool exchange_tensors(void *ctx)
{
    exchange *e = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *sum = tarn_add(e->old, tarn_scalar(1));
    tarn_free(e->old);
    e->old = NULL;
    tarn_tensor *more = tarn_add(sum, sum); /* not into the memory of the old one, which the next run reads */
    e->produced = tarn_keep(tarn_add(more, tarn_scalar(0.5)));
    bool good = tarn_copy(e->y, more);
    tarn_scope_close(scope);
    return good;
}

static void tensors_come_and_go_inside_a_step(void **state)
{
    (void)state;
    exchange e = {.y = tarn_zeros(TARN_SHAPE(LARGE), TARN_F32, mirror()),
                  .old = tarn_full(TARN_SHAPE(LARGE), 3, TARN_F32, mirror())};
    tarn_graph *graph = tarn_graph_capture(mirror(), exchange_tensors, &e);
    assert_ok();
    for (int i = 0; i < 3; i++) {
        tarn_tensor *others[3];
        for (int k = 0; k < 3; k++)
            others[k] = tarn_full(TARN_SHAPE(LARGE), 70 + k, TARN_F32, mirror());
        assert_true(tarn_graph_run(graph));
        assert_true(is_all(e.y, 8) && is_all(e.produced, 8.5));
        for (int k = 0; k < 3; k++) {
            assert_true(is_all(others[k], 70 + k));
            tarn_free(others[k]);
        }
    }
    tarn_graph_free(graph);
    assert_true(is_all(tarn_full(TARN_SHAPE(LARGE), 1, TARN_F32, mirror()), 1));
    assert_true(is_all(e.produced, 8.5)); /* outlives the graph */
    tarn_free(e.produced);
}

/* ---- captures that fail ------------------------------------------------------------------------------------------ */

static bool fail_late(void *ctx)
{
    exchange *e = ctx;
    tarn_scope *scope = tarn_scope_open();
    e->produced = tarn_keep(tarn_add(e->y, tarn_scalar(1)));
    tarn_free(e->old);
    bool good = add_in_steps(&(sums){e->y, e->y}) && isfinite(tarn_item(tarn_sum(e->y, TARN_ALL_AXES, false)));
    tarn_scope_close(scope);
    return good;
}

static void a_failed_capture_leaves_the_pool_as_it_was(void **state)
{
    (void)state;
    const int64_t bytes = (int64_t)LARGE * 4;
    for (int i = 0; i < 3; i++) {
        exchange e = {.y = tarn_zeros(TARN_SHAPE(LARGE), TARN_F32, mirror()),
                      .old = tarn_full(TARN_SHAPE(LARGE), 3, TARN_F32, mirror())};
        tarn_memory before = tarn_memory_of(mirror());
        assert_null(tarn_graph_capture(mirror(), fail_late, &e));
        assert_error(TARN_ERROR_UNSUPPORTED, "item: a value read by the host inside a captured step");
        tarn_memory after = tarn_memory_of(mirror());
        assert_int_equal(after.used, before.used); /* `produced` for `old` */
        tarn_stats_reset();
        assert_int_equal(tarn_memory_of(mirror()).peak_used, after.used);
        tarn_free(e.produced);
        assert_int_equal(tarn_memory_of(mirror()).used, before.used - bytes);
        assert_true(add_in_steps(&(sums){e.y, e.y}) && is_all(e.y, 8));
        tarn_free(e.y);
    }
}

/* ---- threads and devices ----------------------------------------------------------------------------------------- */

typedef struct guest {
    sums s;
    tarn_tensor *written; /* by the other thread, during the capture */
    tarn_tensor *abroad;  /* on another device */
    bool has_captured;
    char error[128];
} guest;

static float sevens[LARGE];

static void *write_sevens(void *ctx)
{
    guest *g = ctx;
    tarn_scope *scope = tarn_scope_open();
    g->written = tarn_keep(tarn_empty(TARN_SHAPE(LARGE), TARN_F32, mirror()));
    tarn_write(g->written, sevens, sizeof(sevens));
    g->has_captured = tarn_graph_capture(mirror(), square_twice, &g->s) != NULL;
    snprintf(g->error, sizeof(g->error), "%s", tarn_error() ? tarn_error() : "");
    tarn_clear_error();
    tarn_scope_close(scope);
    return NULL;
}

static bool receive_a_guest(void *ctx)
{
    guest *g = ctx;
    pthread_t thread;
    bool good =
        add_in_steps(&g->s) && pthread_create(&thread, NULL, write_sevens, g) == 0 && pthread_join(thread, NULL) == 0;
    g->abroad = tarn_full(TARN_SHAPE(LARGE), 6, TARN_F32, tarn_device_parse("mirror:1"));
    return good && add_in_steps(&g->s);
}

static void other_threads_and_devices_keep_their_pools(void **state)
{
    (void)state;
    guest g = {.s = large_sums(1)};
    for (int i = 0; i < LARGE; i++)
        sevens[i] = 7;
    tarn_graph *graph = tarn_graph_capture(mirror(), receive_a_guest, &g);
    assert_ok();
    assert_false(g.has_captured);
    assert_contains(g.error, "graph_capture: another thread captures on the same device");
    assert_true(tarn_graph_run(graph) && tarn_graph_run(graph));
    assert_true(is_all(g.s.y, 9) && is_all(g.written, 7) && is_all(g.abroad, 6));
    tarn_free(g.written);
    tarn_graph_free(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_step_is_recorded_and_not_run_and_then_run_as_often_as_asked),
        in_scope(random_numbers_go_on_from_run_to_run),
        in_scope(what_cannot_be_recorded_is_named),
        in_scope(an_index_that_is_nowhere_is_found_in_the_run_that_reads_it),
        in_scope(a_graph_keeps_its_memory_and_the_peak_counts_it_once),
        in_scope(a_captured_step_takes_the_memory_of_an_eager_one),
        in_scope(graphs_do_not_share_their_memory),
        in_scope(tensors_come_and_go_inside_a_step),
        in_scope(a_failed_capture_leaves_the_pool_as_it_was),
        in_scope(other_threads_and_devices_keep_their_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_scope.c: ownership of tensors: scopes and their order, return, keep, free, threads. */
#include <pthread.h>
#include <tarn/profile.h>

#include "base/memory.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

static int64_t blocks(void)
{
    return tarn_memory_of(CPU).blocks;
}

static tarn_tensor *make(void)
{
    return good(tarn_full(TARN_SHAPE(3), 7, TARN_F32, CPU));
}

static void a_scope_frees_what_was_made_in_it(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *outer = tarn_scope_open();
    make();
    tarn_scope *inner = tarn_scope_open();
    make();
    make();
    assert_int_equal(blocks(), before + 3);
    tarn_scope_close(inner);
    assert_int_equal(blocks(), before + 1);
    make();
    tarn_scope_close(outer);
    assert_int_equal(blocks(), before);
    assert_ok();
}

static void closing_an_outer_scope_closes_the_inner_ones(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *outer = tarn_scope_open(), *inner = tarn_scope_open();
    make();
    tarn_scope_open();
    make();
    tarn_scope_close(outer);
    assert_int_equal(blocks(), before);
    assert_ok();
    tarn_scope_close(inner);
    assert_error(TARN_ERROR_ARGUMENT, "scope_close: the scope is not open");
    tarn_scope_close(NULL);
    assert_ok();
}

static void a_returned_tensor_survives_its_scope(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *outer = tarn_scope_open(), *inner = tarn_scope_open();
    tarn_tensor *x = make();
    assert_ptr_equal(tarn_scope_return(inner, x), x);
    tarn_scope_close(inner);
    assert_values(x, 0, 7, 7, 7);
    tarn_scope_close(outer);
    assert_int_equal(blocks(), before);
}

static void a_tensor_of_an_inner_scope_is_returned_from_the_outer_one(void **state)
{
    (void)state;
    tarn_scope *outer = tarn_scope_open();
    tarn_scope_open();
    tarn_tensor *x = make();
    assert_ptr_equal(tarn_scope_return(outer, x), x);
    tarn_scope_close(outer); /* closes both */
    assert_values(x, 0, 7, 7, 7);
}

static void returning_what_lives_longer_changes_nothing(void **state)
{
    (void)state;
    tarn_tensor *outside = make(), *kept = tarn_keep(make());
    tarn_scope *scope = tarn_scope_open();
    assert_ptr_equal(tarn_scope_return(scope, outside), outside);
    assert_ptr_equal(tarn_scope_return(scope, kept), kept);
    tarn_scope_close(scope);
    assert_values(outside, 0, 7, 7, 7);
    assert_values(kept, 0, 7, 7, 7);
    tarn_free(kept);
    assert_null(tarn_scope_return(NULL, outside));
    assert_error(TARN_ERROR_ARGUMENT, "scope_return: the scope is NULL");
    assert_null(tarn_scope_return(scope, outside));
    assert_error(TARN_ERROR_ARGUMENT, "scope_return: the scope is not open");
}

static void a_kept_tensor_is_the_callers(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = make(), *first = good(tarn_keep(x)), *second = good(tarn_keep(first));
    assert_true(first != x && second != x && second != first);
    tarn_scope_close(scope);
    assert_values(first, 0, 7, 7, 7);
    tarn_free(first);
    assert_int_equal(blocks(), before + 1);
    assert_values(second, 0, 7, 7, 7);
    tarn_free(second);
    assert_int_equal(blocks(), before);
    tarn_free(NULL);
    assert_ok();
}

static void a_kept_tensor_stays_with_its_scope(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = make();
    tarn_free(good(tarn_keep(x)));
    assert_values(x, 0, 7, 7, 7);
    tarn_scope_close(scope);
    assert_int_equal(blocks(), before);
    tarn_print(x);
    assert_error(TARN_ERROR_ARGUMENT, "print: the tensor was freed: f32 [3]; use it before tarn_free()");
}

static void a_kept_handle_is_the_same_leaf(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_set_name(vector(1, 2), "first")), *kept = good(tarn_keep(x));
    assert_string_equal(tarn_name(kept), "first");
    good(tarn_set_name(kept, "second"));
    assert_string_equal(tarn_name(x), "second");
    good(tarn_requires_grad(kept, true));
    assert_true(tarn_needs_grad(x));
    tarn_tensor *y = good(tarn_mul(x, kept)); /* both are the same parameter */
    assert_true(tarn_backward(tarn_sum(y, TARN_ALL_AXES, false)));
    assert_values(tarn_grad(x), 0, 2, 4);
    assert_ptr_equal(tarn_grad(kept), tarn_grad(x));
    tarn_zero_grad(kept);
    assert_null(tarn_grad(x));
    assert_null(tarn_add_inplace(kept, vector(1, 1)));
    assert_error(TARN_ERROR_ARGUMENT, "add_inplace: x is part of a recorded computation");
    tarn_free(kept);
}

static void a_kept_handle_shares_record_and_version(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_requires_grad(vector(1, 2), true)), *kept_x = good(tarn_keep(x));
    tarn_tensor *kept = good(tarn_keep(tarn_square(x))), *values = good(tarn_keep(vector(3, 4)));
    tarn_tensor *loss = good(tarn_keep(tarn_sum(tarn_mul(kept, values), TARN_ALL_AXES, false)));
    tarn_scope_close(scope);
    assert_true(tarn_write(values, (const float[]){5, 6}, 8));
    assert_false(tarn_backward(loss));
    assert_error(TARN_ERROR_ARGUMENT, "backward: mul needs a tensor [2] that was overwritten");
    assert_true(tarn_backward(tarn_sum(kept, TARN_ALL_AXES, false)));
    assert_values(tarn_grad(kept_x), 0, 2, 4);
    tarn_free(kept_x);
    tarn_free(kept);
    tarn_free(values);
    tarn_free(loss);
}

static void a_kept_parameter_follows_its_optimizer(void **state)
{
    (void)state;
    tarn_module *layer = tarn_module_new("mine", unchanged, NULL, NULL);
    tarn_tensor *w = good(tarn_module_add_parameter(layer, "w", vector(1, 2))), *kept = good(tarn_keep(w));
    tarn_optimizer *sgd = tarn_sgd(layer, &(tarn_sgd_options){.lr = 1}); /* moves w into a buffer of its own */
    assert_true(tarn_backward(tarn_sum(kept, TARN_ALL_AXES, false)) && tarn_optimizer_step(sgd));
    assert_values(w, 0, 0, 1);
    assert_values(kept, 0, 0, 1);
    tarn_optimizer_free(sgd);
    tarn_module_free(layer);
    assert_values(kept, 0, 0, 1);
    tarn_free(kept);
}

static void a_freed_tensor_is_named_where_it_is_used(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_set_name(make(), "weights")), *y = make();
    tarn_tensor *long_name =
        good(tarn_set_name(make(), "a name of more than sixty-three characters, of which the error has the beginning"));
    tarn_free(x);
    assert_null(tarn_add(y, x));
    assert_error(TARN_ERROR_ARGUMENT, "add: b was freed: 'weights' f32 [3]; use it before");
    tarn_free(x);
    assert_error(TARN_ERROR_ARGUMENT, "free: the tensor was freed: 'weights' f32 [3]");
    tarn_free(long_name);
    assert_null(tarn_relu(long_name));
    assert_error(TARN_ERROR_ARGUMENT,
                 "relu: x was freed: 'a name of more than sixty-three characters, of which the error ' f32 [3]");
    assert_values(y, 0, 7, 7, 7);
}

/* As many headers as the quarantine has room for come and go, and the first is still known. */
static void the_quarantine_holds_65536_headers(void **state)
{
    (void)state;
    tarn_tensor *first = make();
    int64_t held = tarn__memory_in_use();
    tarn_free(first);
    for (int i = 0; i < TARN__QUARANTINE - 64; i++) /* a thread takes 64 places at a time */
        tarn_free(tarn_scalar(i));
    assert_int_equal(tarn_rank(first), -1);
    assert_error(TARN_ERROR_ARGUMENT, "rank: the tensor was freed: f32 [3]");
    assert_true(tarn__memory_in_use() < held);
}

static void *make_and_free(void *failures)
{
    for (int i = 0; i < 40000; i++) {
        tarn_tensor *x = tarn_scalar(i), *kept = tarn_keep(x);
        tarn_free(i % 2 ? x : kept);
        *(int *)failures += tarn_item(i % 2 ? kept : x) != i;
        tarn_free(i % 2 ? kept : x);
    }
    return NULL;
}

static void headers_come_and_go_on_several_threads(void **state)
{
    (void)state;
    pthread_t thread[4];
    int failures[4] = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, make_and_free, &failures[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(failures[i], 0);
    }
}

static void a_tensor_can_be_freed_before_its_scope(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *a = make(), *b = make(), *c = make();
    tarn_free(b);
    assert_int_equal(blocks(), before + 2);
    tarn_free(a);
    tarn_free(c);
    assert_int_equal(blocks(), before);
    tarn_scope_close(scope);
    assert_int_equal(blocks(), before);
}

static void what_the_library_holds_is_not_the_callers_to_free(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(vector(1, 2), true));
    tarn_tensor *y = good(tarn_mul(x, x));
    tarn_free(x); /* the tape holds it as well, so it outlives the first free */
    tarn_free(x);
    assert_error(TARN_ERROR_ARGUMENT, "free: the tensor belongs to the library");
    assert_true(tarn_backward(tarn_sum(y, TARN_ALL_AXES, false)));
    tarn_tensor *z = good(tarn_requires_grad(vector(1, 2), true));
    assert_true(tarn_backward(tarn_sum(tarn_mul(z, z), TARN_ALL_AXES, false)));
    tarn_free(tarn_grad(z));
    assert_error(TARN_ERROR_ARGUMENT, "free: the tensor belongs to the library");
    assert_values(tarn_grad(z), 0, 2, 4);
    tarn_tensor *grad = tarn_keep(tarn_grad(z)); /* keeping it is allowed */
    tarn_free(grad);
    assert_values(tarn_grad(z), 0, 2, 4);
}

static void a_view_keeps_the_memory(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_tensor *x = make(), *view = good(tarn_detach(x));
    tarn_free(x);
    assert_int_equal(blocks(), before + 1);
    assert_values(view, 0, 7, 7, 7);
    tarn_free(view);
    assert_int_equal(blocks(), before);
}

static void freeing_and_closing_work_while_an_error_is_pending(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = make(), *kept = tarn_keep(make());
    make();
    tarn_set_error(TARN_ERROR_IO, "mine");
    assert_null(tarn_keep(x));
    tarn_free(x);
    tarn_free(kept);
    tarn_scope_close(scope);
    assert_int_equal(blocks(), before);
    assert_error(TARN_ERROR_IO, "mine");
}

static void many_scopes_in_a_loop_leak_nothing(void **state)
{
    (void)state;
    tarn_memory before = tarn_memory_of(CPU);
    for (int i = 0; i < 2000; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = make();
        for (int k = 0; k < 5; k++)
            x = tarn_add(x, x);
        tarn_scope_close(scope);
    }
    tarn_memory after = tarn_memory_of(CPU);
    assert_int_equal(after.used, before.used);
    assert_true(after.cached <= before.cached + (4 << 20));
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct exchange {
    tarn_tensor *from_main, *kept, *unkept;
    char error[3][128];
    bool read;
} exchange;

static void note(char *text)
{
    snprintf(text, 128, "%s", tarn_error());
    tarn_clear_error();
}

static void *other_thread(void *argument)
{
    exchange *e = argument;
    tarn_keep(e->from_main);
    note(e->error[0]);
    tarn_free(e->from_main);
    note(e->error[1]);
    tarn_scope *scope = tarn_scope_open();
    tarn_scope_return(scope, e->from_main);
    note(e->error[2]);
    e->read = tarn_item_at(e->from_main, TARN_SHAPE(0)) == 7; /* reading is allowed */
    e->kept = tarn_keep(tarn_full(TARN_SHAPE(3), 5, TARN_F32, CPU));
    tarn_full(TARN_SHAPE(3), 6, TARN_F32, CPU);
    tarn_scope_close(scope);
    tarn_full(TARN_SHAPE(3), 6, TARN_F32, CPU); /* in the thread's root scope */
    tarn_scope_open();
    tarn_full(TARN_SHAPE(3), 6, TARN_F32, CPU); /* in a scope nobody closes */
    return NULL;
}

static void a_threads_tensors_go_with_it(void **state)
{
    (void)state;
    exchange e = {.from_main = make()};
    int64_t before = blocks();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &e), 0);
    pthread_join(thread, NULL);
    assert_contains(e.error[0], "keep: the tensor belongs to a scope of another thread");
    assert_contains(e.error[1], "free: the tensor belongs to a scope of another thread");
    assert_contains(e.error[2], "scope_return: the tensor belongs to a scope of another thread");
    assert_true(e.read);
    assert_int_equal(blocks(), before + 1);
    assert_values(e.kept, 0, 5, 5, 5);
    tarn_free(e.kept);
    assert_int_equal(blocks(), before);
}

static void *close_foreign(void *argument)
{
    tarn_scope_close(argument);
    return tarn_error_code() == TARN_ERROR_ARGUMENT ? argument : NULL;
}

static void a_scope_belongs_to_its_thread(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = make();
    pthread_t thread;
    void *refused;
    assert_int_equal(pthread_create(&thread, NULL, close_foreign, scope), 0);
    pthread_join(thread, &refused);
    assert_ptr_equal(refused, scope);
    assert_values(x, 0, 7, 7, 7);
    tarn_scope_close(scope);
}

static void the_root_scope_takes_what_no_scope_does(void **state)
{
    (void)state;
    int64_t before = blocks();
    tarn_tensor *x = make(); /* no scope is open in this test */
    assert_values(x, 0, 7, 7, 7);
    assert_int_equal(blocks(), before + 1);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = tarn_scope_return(scope, make());
    tarn_scope_close(scope);
    assert_values(y, 0, 7, 7, 7);
    tarn_free(x);
    tarn_free(y);
    assert_int_equal(blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_scope_frees_what_was_made_in_it),
        in_scope(closing_an_outer_scope_closes_the_inner_ones),
        in_scope(a_returned_tensor_survives_its_scope),
        in_scope(a_tensor_of_an_inner_scope_is_returned_from_the_outer_one),
        in_scope(returning_what_lives_longer_changes_nothing),
        in_scope(a_kept_tensor_is_the_callers),
        in_scope(a_kept_tensor_stays_with_its_scope),
        in_scope(a_kept_handle_is_the_same_leaf),
        in_scope(a_kept_handle_shares_record_and_version),
        in_scope(a_kept_parameter_follows_its_optimizer),
        in_scope(a_freed_tensor_is_named_where_it_is_used),
        in_scope(the_quarantine_holds_65536_headers),
        in_scope(headers_come_and_go_on_several_threads),
        in_scope(a_tensor_can_be_freed_before_its_scope),
        in_scope(what_the_library_holds_is_not_the_callers_to_free),
        in_scope(a_view_keeps_the_memory),
        in_scope(freeing_and_closing_work_while_an_error_is_pending),
        in_scope(many_scopes_in_a_loop_leak_nothing),
        in_scope(a_threads_tensors_go_with_it),
        in_scope(a_scope_belongs_to_its_thread),
        cmocka_unit_test(the_root_scope_takes_what_no_scope_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

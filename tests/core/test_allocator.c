/* test_allocator.c: an allocator of the caller's, which fails at every allocation in turn: no crash, no leak, an error
 * of the right kind, and a library that works afterwards. */
#include <pthread.h>

#include "base/memory.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

typedef struct counting {
    pthread_mutex_t lock;
    int64_t calls, fail_at, held, misaligned; /* fail_at: the call that fails; -1: none */
    bool from_then_on;                        /* and all after it */
    int64_t failed;
} counting;

static void *count_alloc(size_t bytes, size_t alignment, void *ctx)
{
    counting *c = ctx;
    pthread_mutex_lock(&c->lock);
    int64_t call = c->calls++;
    bool fails = c->fail_at >= 0 && (call == c->fail_at || (c->from_then_on && call > c->fail_at));
    c->failed += fails;
    void *memory = NULL;
    if (!fails && posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) != 0)
        memory = NULL;
    if (memory) {
        memset(memory, 0xA5, bytes < 4096 ? bytes : 4096); /* nothing may count on zeros */
        c->held += (int64_t)bytes;
    }
    pthread_mutex_unlock(&c->lock);
    return memory;
}

static void count_release(void *memory, size_t bytes, void *ctx)
{
    counting *c = ctx;
    pthread_mutex_lock(&c->lock);
    c->held -= (int64_t)bytes;
    pthread_mutex_unlock(&c->lock);
    free(memory);
}

static counting counts = {.lock = PTHREAD_MUTEX_INITIALIZER, .fail_at = -1};

/* ---- scenarios: each must cope with NULL from everywhere --------------------------------------------------------- */

static void create(void)
{
    tarn_tensor *x = tarn_set_name(tarn_normal(TARN_SHAPE(20, 30), 0, 1, TARN_F32, CPU), "x");
    tarn_tensor *y = tarn_cast(tarn_eye(3, 4, TARN_F64, CPU), TARN_BF16);
    tarn_tensor *z = tarn_from_f32((const float[]){1, 2, 3}, TARN_SHAPE(3), CPU);
    tarn_free(tarn_keep(z));
    float values[600];
    tarn_read_f32(tarn_transpose(x, 0, 1), values, 600);
    tarn_write(tarn_slice(x, 1, 0, 1), values, 20 * sizeof(float));
    tarn_copy(tarn_full(TARN_SHAPE(3, 4), 2, TARN_I32, CPU), y);
    tarn_item_at(x, TARN_SHAPE(3, 4));
}

static void compute(void)
{
    tarn_tensor *x = tarn_uniform(TARN_SHAPE(8, 6), 0, 1, TARN_F32, CPU), *values, *indices, *parts[2];
    tarn_tensor *y = tarn_add(tarn_mul(x, tarn_scalar(2)), tarn_exp(x));
    y = tarn_where(tarn_gt(y, tarn_scalar(1)), y, tarn_scalar(0));
    tarn_sum(y, TARN_AXES(0), true);
    tarn_var(tarn_transpose(y, 0, 1), TARN_AXES(1), 1, false);
    tarn_argmax(y, 1, false);
    tarn_cumsum(y, 0);
    tarn_pad(tarn_flip(y, TARN_AXES(0)), TARN_SHAPE(1, 1), TARN_SHAPE(1, 1), 0);
    tarn_concat((tarn_tensor *[]){x, y}, 2, 1);
    tarn_stack((tarn_tensor *[]){x, y}, 2, 0);
    tarn_split(x, 0, (const int64_t[]){3, 5}, 2, parts);
    tarn_sort(x, 1, true, &values, &indices);
    tarn_topk(x, 2, 0, true, &values, &indices);
    tarn_index_select(x, 0, tarn_arange(0, 4, 1, TARN_I64, CPU));
    tarn_matmul(x, tarn_transpose(y, 0, 1));
    tarn_layernorm(x, tarn_ones(TARN_SHAPE(6), TARN_F32, CPU), NULL, 1e-5);
    tarn_softmax(x, -1);
    tarn_add_inplace(y, x);
    tarn_tensor *out[1];
    tarn_apply("tanh", &x, 1, NULL, 0, out, 1);
    float data[4] = {1, 2, 3, 4};
    tarn_array in = {data, TARN_SHAPE(4), TARN_F32}, result = {0};
    tarn_apply_host("square", CPU, &in, 1, NULL, 0, &result, 1);
    tarn_array_free(&result);
}

static void differentiate(void)
{
    tarn_tensor *w = tarn_requires_grad(tarn_normal(TARN_SHAPE(6, 4), 0, 1, TARN_F32, CPU), true);
    tarn_tensor *b = tarn_requires_grad(tarn_zeros(TARN_SHAPE(4), TARN_BF16, CPU), true);
    tarn_tensor *x = tarn_normal(TARN_SHAPE(5, 6), 0, 1, TARN_F32, CPU);
    for (int i = 0; i < 2; i++) {
        tarn_tensor *h = tarn_gelu(tarn_add(tarn_matmul(x, w), tarn_cast(b, TARN_F32)));
        tarn_tensor *loss = tarn_mean(tarn_square(tarn_sub(h, tarn_softmax(h, 1))), TARN_ALL_AXES, false);
        tarn_backward(loss);
    }
    tarn_grad(w);
    tarn_backward_from(tarn_max(tarn_reshape(w, TARN_SHAPE(3, 8)), TARN_AXES(0), false),
                       tarn_ones(TARN_SHAPE(8), TARN_F32, CPU), NULL);
}

static void train(void)
{
    tarn_module *model = tarn_sequential(tarn_linear(3, 8, CPU), tarn_activation(TARN_TANH), tarn_linear(8, 2, CPU));
    tarn_optimizer *optimizer = tarn_adamw(model, &(tarn_adamw_options){.lr = 0.01f, .weight_decay = 0.1f});
    for (int i = 0; i < 2; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = tarn_normal(TARN_SHAPE(4, 3), 0, 1, TARN_F32, CPU);
        tarn_backward(tarn_cross_entropy(tarn_forward(model, x), tarn_zeros(TARN_SHAPE(4), TARN_I64, CPU), NULL));
        tarn_optimizer_step(optimizer);
        tarn_scope_close(scope);
    }
    tarn_module_find(model, "0.weight");
    tarn_optimizer_free(optimizer);
    optimizer = tarn_sgd(model, &(tarn_sgd_options){.lr = 0.1f, .momentum = 0.9f});
    tarn_optimizer_step(optimizer);
    tarn_optimizer_free(optimizer);
    tarn_module_free(model);
}

static tarn_tensor *block(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count;
    return tarn_mul(tarn_dropout(tarn_tanh(inputs[0]), 0.3), ctx);
}

static void checkpoint(void)
{
    tarn_tensor *x = tarn_requires_grad(tarn_normal(TARN_SHAPE(9), 0, 1, TARN_F32, CPU), true);
    tarn_tensor *p = tarn_requires_grad(tarn_ones(TARN_SHAPE(9), TARN_F32, CPU), true);
    tarn_backward(tarn_sum(tarn_checkpoint(block, p, &x, 1), TARN_ALL_AXES, false));
}

static int released;

static void note_release(void *ctx)
{
    (void)ctx;
    released++;
}

static bool rule(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx)
{
    input_grads[0] = tarn_mul(output_grads[0], tarn_mul(ctx, tarn_scalar(2)));
    return input_grads[0] != NULL;
}

static void function(void)
{
    released = 0;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_requires_grad(tarn_normal(TARN_SHAPE(9), 0, 1, TARN_F32, CPU), true);
    tarn_no_grad_open();
    tarn_tensor *y = tarn_square(x);
    tarn_no_grad_close();
    tarn_function(&x, 1, &y, 1, rule, x, note_release);
    tarn_backward(tarn_sum(y, TARN_ALL_AXES, false));
    tarn_scope_close(scope);
    assert_int_equal(released, 1);
}

static tarn_tensor *cube(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    return tarn_mul(inputs[0], tarn_square(inputs[0]));
}

static void gradcheck(void)
{
    tarn_tensor *x = tarn_requires_grad(tarn_normal(TARN_SHAPE(2), 0, 1, TARN_F64, CPU), true);
    tarn_gradcheck(cube, NULL, &x, 1, NULL);
}

static void text(void)
{
    char buffer[256];
    tarn_tensor *x = tarn_arange(0, 2000, 1, TARN_F32, CPU);
    tarn_format(tarn_reshape(x, TARN_SHAPE(40, 50)), buffer, sizeof(buffer));
    tarn_memory_table(CPU, buffer, sizeof(buffer));
}

static void anomaly(void)
{
    tarn_set_anomaly(true);
    tarn_tensor *x = tarn_requires_grad(tarn_ones(TARN_SHAPE(3), TARN_F32, CPU), true);
    tarn_backward(tarn_sum(tarn_sqrt(x), TARN_ALL_AXES, false));
    tarn_set_anomaly(false);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {{"create", create},         {"compute", compute},   {"differentiate", differentiate}, {"train", train},
                 {"checkpoint", checkpoint}, {"function", function}, {"gradcheck", gradcheck},         {"text", text},
                 {"anomaly", anomaly}};

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void forget_everything(tarn_scope *scope)
{
    tarn_scope_close(scope);
    assert_true(tarn_empty_cache(CPU));
}

/* One run with the allocation number `fail_at` failing; true when it was reached. */
static bool run_failing(const char *name, void (*run)(void), int64_t fail_at, bool from_then_on)
{
    counts.calls = counts.failed = 0;
    counts.from_then_on = from_then_on;
    counts.fail_at = fail_at;
    tarn_seed(1);
    tarn_scope *scope = tarn_scope_open();
    run();
    counts.fail_at = -1;
    tarn_code code = tarn_error_code();
    if (code != TARN_OK && code != TARN_ERROR_MEMORY)
        print_error("%s, allocation %lld: %s\n", name, (long long)fail_at, tarn_error());
    assert_true(code == TARN_OK || code == TARN_ERROR_MEMORY);
    assert_true(counts.failed > 0 || code == TARN_OK);
    tarn_clear_error();
    assert_true(tarn_grad_enabled());
    forget_everything(scope);
    if (counts.held != 0)
        print_error("%s, allocation %lld: %lld bytes are lost\n", name, (long long)fail_at, (long long)counts.held);
    assert_int_equal(counts.held, 0);
    assert_int_equal(tarn__memory_in_use(), 0);
    return counts.failed > 0;
}

static void check_usable(void)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_requires_grad(vector(3), true));
    assert_true(tarn_backward(tarn_square(x)));
    assert_values(tarn_grad(x), 0, 6);
    forget_everything(scope);
}

static void every_allocation_fails_in_turn(void **state)
{
    (void)state;
    for (int pool = 1; pool >= 0; pool--) { /* without the pool every tensor is an allocation */
        tarn_set_pool(pool);
        for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
            for (int from_then_on = 0; from_then_on < 2; from_then_on++) {
                int64_t n = 0;
                while (run_failing(scenarios[i].name, scenarios[i].run, n, from_then_on))
                    n++;
                assert_true(n > 3);
                check_usable();
            }
    }
    tarn_set_pool(true);
}

static void the_allocator_is_used_and_aligned(void **state)
{
    (void)state;
    counts.calls = 0;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(1000), TARN_F32, CPU));
    assert_true(counts.calls > 0 && counts.held >= 4000);
    assert_int_equal((uintptr_t)tarn_data(x) % 256, 0);
    assert_int_equal(counts.held, tarn__memory_in_use());
    forget_everything(scope);
    assert_int_equal(counts.held, 0);
}

static void it_cannot_be_changed_while_memory_is_out(void **state)
{
    (void)state;
    tarn_scope *scope = tarn_scope_open();
    assert_false(tarn_set_allocator(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "set_allocator");
    assert_false(tarn_set_allocator(&(tarn_allocator){.alloc = count_alloc}));
    assert_error(TARN_ERROR_ARGUMENT, "set_allocator: both functions are required");
    forget_everything(scope);
    assert_true(tarn_set_allocator(NULL));
    assert_true(tarn_set_allocator(&(tarn_allocator){count_alloc, count_release, &counts}));
}

static int take_over(void **state)
{
    (void)state;
    return tarn_set_allocator(&(tarn_allocator){count_alloc, count_release, &counts}) ? 0 : -1;
}

static int hand_back(void **state)
{
    (void)state;
    return tarn_set_allocator(NULL) && counts.held == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_allocator_is_used_and_aligned),
        cmocka_unit_test(it_cannot_be_changed_while_memory_is_out),
        cmocka_unit_test(every_allocation_fails_in_turn),
    };
    return cmocka_run_group_tests(tests, take_over, hand_back);
}

/* test_sharded.c: optimizers whose state is divided among ranks, with threads as ranks: parameters, averages and files
 * are bitwise those of one rank, for sizes that the ranks do not divide and for more ranks than there is to divide. */
#include <pthread.h>
#include <sys/stat.h>
#include <tarn/parallel.h>

#include "support/files.h"
#include "tarn_features.h"

enum { MAX_RANKS = 7, STEPS = 5 };

/* What every rank does. */
typedef struct plan {
    const char *method; /* sgd, adam or adamw */
    tarn_dtype dtype;
    int64_t rows, columns;
    const char *folder; /* its files */
} plan;

typedef struct rank_run {
    pthread_t thread;
    tarn_comm *comm; /* NULL: one rank */
    plan plan;
    double *values; /* of all parameters at the end */
    int64_t count;
    char error[512];
} rank_run;

static tarn_module *module_of(const plan *p)
{
    tarn_device cpu = tarn_device_cpu();
    tarn_module *module = tarn_module_new("three", unchanged, NULL, NULL);
    tarn_module_add_parameter(module, "matrix",
                              tarn_cast(tarn_full(TARN_SHAPE(p->rows, p->columns), 0.7, TARN_F32, cpu), p->dtype));
    tarn_module_add_parameter(module, "vector", tarn_cast(tarn_full(TARN_SHAPE(3), -0.3, TARN_F32, cpu), p->dtype));
    tarn_module_add_parameter(module, "other", tarn_cast(tarn_full(TARN_SHAPE(129), 0.2, TARN_F32, cpu), p->dtype));
    return module;
}

static tarn_optimizer *optimizer_of(tarn_module *module, const plan *p, tarn_comm *comm)
{
    if (strcmp(p->method, "sgd") == 0)
        return tarn_sgd(module, &(tarn_sgd_options){.lr = 0.05f, .momentum = 0.9f, .comm = comm});
    if (strcmp(p->method, "adam") == 0)
        return tarn_adam(module, &(tarn_adam_options){.lr = 0.05f, .weight_decay = 0.1f, .comm = comm});
    return tarn_adamw(module, &(tarn_adamw_options){.lr = 0.05f, .weight_decay = 0.1f, .comm = comm});
}

/* The vector has a gradient in every other step only: segments have different step counts then. */
static bool take_step(tarn_module *module, tarn_optimizer *optimizer, int step)
{
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < 3; k++) {
        tarn_tensor *parameter = tarn_module_parameter(module, k);
        if (k == 1 && step % 2)
            continue;
        tarn_tensor *g =
            tarn_sin(tarn_add(tarn_arange(0, (double)tarn_count(parameter), 1, TARN_F32, tarn_device_cpu()),
                              tarn_scalar(0.7 * step + k)));
        tarn_backward_from(parameter, tarn_cast(tarn_reshape(g, tarn_shape_of(parameter)), tarn_dtype_of(parameter)),
                           NULL);
    }
    bool good = tarn_optimizer_clip_norm(optimizer, 2) && tarn_optimizer_step(optimizer);
    tarn_scope_close(scope);
    return good;
}

static const char *file_of(const rank_run *r, const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", r->plan.folder, name);
    return path;
}

/* Steps, saves, loads into other optimizer and average, and steps again. */
static bool train(rank_run *r, tarn_module *module)
{
    char state[1100], average[1100];
    file_of(r, "optimizer.safetensors", state, sizeof(state));
    file_of(r, "ema.safetensors", average, sizeof(average));
    tarn_optimizer *optimizer = optimizer_of(module, &r->plan, r->comm);
    tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.6});
    bool good = ema != NULL;
    for (int i = 0; good && i < STEPS; i++)
        good = take_step(module, optimizer, i) && tarn_ema_update(ema);
    good = good && tarn_optimizer_save(optimizer, state) && tarn_ema_save(ema, average);
    tarn_ema_free(ema);
    tarn_optimizer_free(optimizer);
    if (good && r->comm) /* the file is complete when rank 0 has it */
        good = tarn_comm_barrier(r->comm);
    optimizer = good ? optimizer_of(module, &r->plan, r->comm) : NULL;
    ema = optimizer ? tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.6}) : NULL;
    good = ema && tarn_optimizer_load(optimizer, state) && tarn_ema_load(ema, average) &&
           take_step(module, optimizer, STEPS) && tarn_ema_update(ema) && tarn_ema_apply(ema) &&
           tarn_ema_restore(ema) && tarn_ema_apply(ema);
    tarn_ema_free(ema);
    tarn_optimizer_free(optimizer);
    return good;
}

static void *run_rank(void *argument)
{
    rank_run *r = argument;
    tarn_module *module = module_of(&r->plan);
    if (train(r, module))
        for (int k = 0; k < 3; k++) {
            double *values = values_of(tarn_module_parameter(module, k));
            int64_t count = tarn_count(tarn_module_parameter(module, k));
            r->values = realloc(r->values, sizeof(double) * (size_t)(r->count + count));
            memcpy(r->values + r->count, values, sizeof(double) * (size_t)count);
            r->count += count;
            free(values);
        }
    snprintf(r->error, sizeof(r->error), "%s", tarn_error());
    if (tarn_failed())
        tarn_comm_abort(r->comm, r->error);
    tarn_clear_error();
    tarn_module_free(module);
    return NULL;
}

/* All ranks of a plan; the caller frees values. */
static void run_ranks(const plan *p, int size, rank_run *ranks)
{
    tarn_comm *comms[MAX_RANKS] = {0};
    if (size > 1)
        assert_true(tarn_comm_threads(size, comms));
    for (int i = 0; i < size; i++) {
        ranks[i] = (rank_run){.comm = comms[i], .plan = *p};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++)
        tarn_comm_free(comms[i]);
}

static void assert_same_values(const plan *p, int size, const rank_run *ranks, const rank_run *one)
{
    for (int i = 0; i < size; i++)
        if (ranks[i].error[0] || ranks[i].count != one->count ||
            memcmp(ranks[i].values, one->values, sizeof(double) * (size_t)one->count) != 0)
            fail_msg("%s of %s, %lld x %lld: rank %d of %d %s%s", p->method, tarn_dtype_name(p->dtype),
                     (long long)p->rows, (long long)p->columns, i, size, ranks[i].error[0] ? "fails: " : "differs",
                     ranks[i].error);
}

static void check_plan(const char *method, tarn_dtype dtype, int64_t rows, int64_t columns)
{
    static int number;
    char folders[2][1024];
    rank_run one, ranks[MAX_RANKS];
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof(name), "files-%d", number++);
        snprintf(folders[i], sizeof(folders[i]), "%s", scratch(name));
        assert_int_equal(mkdir(folders[i], 0777), 0);
    }
    plan p = {method, dtype, rows, columns, folders[0]};
    run_ranks(&p, 1, &one);
    p.folder = folders[1];
    for (int size = 2; size <= MAX_RANKS; size += size == 4 ? 3 : 1) {
        run_ranks(&p, size, ranks);
        assert_same_values(&p, size, ranks, &one);
        assert_same_file(folders[0], folders[1], "optimizer.safetensors");
        assert_same_file(folders[0], folders[1], "ema.safetensors");
        for (int i = 0; i < size; i++)
            free(ranks[i].values);
    }
    free(one.values);
}

static void shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const char *const methods[] = {"sgd", "adam", "adamw"};
    for (int m = 0; m < 3; m++) {
        check_plan(methods[m], TARN_F32, 31, 67);
        check_plan(methods[m], TARN_BF16, 31, 67);
    }
    check_plan("adamw", TARN_F64, 5, 101);
}

static void more_ranks_than_elements_to_divide_are_fine(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    check_plan("adamw", TARN_F32, 1, 1);
    check_plan("sgd", TARN_BF16, 2, 3);
}

static void a_sharded_module_cannot_be_moved(void **state)
{
    (void)state;
    tarn_comm *comms[2];
    plan p = {.method = "adamw", .dtype = TARN_F32, .rows = 2, .columns = 2};
    assert_true(tarn_comm_threads(2, comms));
    tarn_module *module = module_of(&p);
    tarn_optimizer *optimizer = optimizer_of(module, &p, comms[0]);
    assert_ok();
    assert_false(tarn_module_to(module, tarn_device_parse("mirror:0")));
    assert_error(TARN_ERROR_UNSUPPORTED, "the state of the optimizer is sharded over 2 ranks");
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    for (int i = 0; i < 2; i++)
        tarn_comm_free(comms[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_give_the_bits_of_the_whole),
        cmocka_unit_test(more_ranks_than_elements_to_divide_are_fine),
        in_scope(a_sharded_module_cannot_be_moved),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

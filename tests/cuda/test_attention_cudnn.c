/* test_attention_cudnn.c: attention by cuDNN on a CUDA device: against the CPU and our own kernels, forward and
 * gradients, with separate and packed q, k and v; bitwise identical runs and captured steps; memory linear in the rows;
 * tuning that runs once and is stored. All calls are large enough for cuDNN, and gradients stay in 16 bits: operands
 * are no leaves. Without cuDNN our own kernels run instead. Skipped without a device. */
#include "support/gpu.h"

#include <dirent.h>
#include <sys/wait.h>
#include <tarn/graph.h>
#include <unistd.h>

enum { Q, K, V, OPERANDS };

typedef struct sizes {
    int64_t batches, heads, kv_heads, rows, keys, depth;
} sizes;

/* The result of an attention, and the gradients of its leaves. */
typedef struct outcome {
    tarn_tensor *y, *grad[OPERANDS];
} outcome;

/* ---- three ways to the same values ------------------------------------------------------------------------------- */

/* f32 leaves whose values fit 16 bits. */
static void make_leaves(sizes s, tarn_dtype dtype, tarn_tensor **leaf)
{
    const tarn_shape shape[] = {TARN_SHAPE(s.batches, s.heads, s.rows, s.depth),
                                TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth)};
    for (int i = 0; i < OPERANDS; i++)
        leaf[i] = good(tarn_cast(good(tarn_normal(shape[i != Q], 0, 1, dtype, CPU)), TARN_F32));
}

/* On the leaves' device, in this dtype. Lengths that are all S change nothing but the path: cuDNN is not used. */
static outcome attend(tarn_tensor *const *leaf, tarn_dtype dtype, bool causal, bool own, tarn_tensor *g)
{
    tarn_tensor *of[OPERANDS], *in[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        of[i] = good(tarn_requires_grad(good(tarn_detach(leaf[i])), true));
        in[i] = good(tarn_cast(of[i], dtype));
    }
    tarn_attention_options o = {.causal = causal};
    if (own)
        o.lengths = good(tarn_full(TARN_SHAPE(1), (double)tarn_size(leaf[K], 2), TARN_I64, tarn_device_of(leaf[K])));
    outcome out = {.y = good(tarn_attention(in[Q], in[K], in[V], &o))};
    assert_true(tarn_backward_from(out.y, g, NULL));
    for (int i = 0; i < OPERANDS; i++)
        out.grad[i] = good(tarn_grad(of[i]));
    return out;
}

/* The largest difference, relative to the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 1e-30;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        most = isnan(x[i]) || isnan(y[i]) ? INFINITY : most;
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void assert_near(const outcome *found, const outcome *wanted, double tolerance, sizes s, bool causal,
                        const char *of)
{
    static const char *const names[] = {"y", "gq", "gk", "gv"};
    for (int i = 0; i < 4; i++) {
        double distance = i ? apart(found->grad[i - 1], wanted->grad[i - 1]) : apart(found->y, wanted->y);
        if (!(distance < tolerance))
            fail_msg("%s of %lld x %lld (%lld) x %lld (%lld) x %lld%s is %g away from %s", names[i],
                     (long long)s.batches, (long long)s.heads, (long long)s.kv_heads, (long long)s.rows,
                     (long long)s.keys, (long long)s.depth, causal ? ", causal," : "", distance, of);
    }
}

/* Compared to f32 sums of the same operands. */
static void agrees(sizes s, tarn_dtype dtype, bool causal, double tolerance)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *here[OPERANDS], *there[OPERANDS];
    make_leaves(s, dtype, here);
    tarn_tensor *g =
        good(tarn_cast(good(tarn_normal(TARN_SHAPE(s.batches, s.heads, s.rows, s.depth), 0, 1, dtype, CPU)), TARN_F32));
    for (int i = 0; i < OPERANDS; i++)
        there[i] = good(tarn_to(here[i], gpu));
    tarn_tensor *g_there = good(tarn_to(tarn_cast(g, dtype), gpu));
    outcome wanted = attend(here, TARN_F32, causal, false, g), own = attend(there, dtype, causal, true, g_there);
    outcome found = attend(there, dtype, causal, false, g_there);
    assert_near(&found, &wanted, tolerance, s, causal, "the CPU's");
    assert_near(&found, &own, tolerance, s, causal, "our own kernels'");
    assert_ok();
    tarn_scope_close(scope);
}

/* From one row to thousands, lengths that fill no tile, grouped-query heads. */
static void it_matches_the_cpu_and_our_own_kernels(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{64, 8, 8, 1, 640, 64},   {512, 8, 8, 32, 32, 128},  {4, 16, 16, 77, 77, 80},
                                {2, 8, 2, 333, 333, 64},  {16, 8, 8, 64, 65, 32},    {3, 4, 4, 255, 256, 96},
                                {8, 4, 4, 128, 128, 128}, {1, 6, 3, 1024, 1024, 32}, {1, 2, 2, 2048, 2048, 128},
                                {1, 4, 1, 511, 768, 80},  {2, 3, 3, 640, 640, 72},   {700, 2, 2, 17, 17, 64}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int causal = 0; causal < 2; causal++) {
            agrees(all[i], TARN_BF16, causal, 3e-2);
            if (i % 3 == 0)
                agrees(all[i], TARN_F16, causal, 4e-3);
        }
}

/* Workspaces larger than the budget of a chunk: chunks of batches, of heads, of grouped heads, with an overlap. */
static void chunks_match_our_own_kernels(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{5, 8, 8, 4096, 4096, 64}, {1, 9, 9, 8192, 8192, 32}, {2, 18, 9, 8064, 8064, 32}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        tarn_scope *scope = tarn_scope_open();
        const sizes s = all[i];
        tarn_tensor *leaf[OPERANDS];
        for (int k = 0; k < OPERANDS; k++)
            leaf[k] = good(tarn_normal(TARN_SHAPE(s.batches, k == Q ? s.heads : s.kv_heads, s.rows, s.depth), 0, 1,
                                       TARN_F32, gpu));
        tarn_tensor *g = good(tarn_normal(TARN_SHAPE(s.batches, s.heads, s.rows, s.depth), 0, 1, TARN_BF16, gpu));
        outcome own = attend(leaf, TARN_BF16, true, true, g), found = attend(leaf, TARN_BF16, true, false, g);
        assert_near(&found, &own, 3e-2, s, true, "our own kernels'");
        assert_ok();
        tarn_scope_close(scope);
    }
}

/* ---- packed ------------------------------------------------------------------------------------------------------ */

typedef struct packed {
    tarn_tensor *leaf, *upstream, *result, *grad;
    int64_t heads, kv_heads;
    bool causal;
} packed;

/* One step: forward, backward, results copied out. */
static bool step(void *ctx)
{
    packed *p = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_cast(p->leaf, TARN_BF16);
    tarn_tensor *y = tarn_attention_packed(x, p->heads, p->kv_heads, &(tarn_attention_options){.causal = p->causal});
    bool done =
        tarn_copy(p->result, y) && tarn_backward_from(y, p->upstream, NULL) && tarn_copy(p->grad, tarn_grad(p->leaf));
    tarn_zero_grad(p->leaf);
    tarn_scope_close(scope);
    return done;
}

static packed make_packed(tarn_device device, int64_t batches, int64_t rows, int64_t heads, int64_t kv_heads,
                          int64_t depth)
{
    const tarn_shape in = TARN_SHAPE(batches, rows, (heads + 2 * kv_heads) * depth),
                     out = TARN_SHAPE(batches, rows, heads * depth);
    tarn_seed(5);
    tarn_tensor *x = good(tarn_normal(in, 0, 1, TARN_BF16, CPU)), *g = good(tarn_normal(out, 0, 1, TARN_BF16, CPU));
    packed p = {.heads = heads, .kv_heads = kv_heads, .causal = true};
    p.leaf = good(tarn_requires_grad(good(tarn_to(tarn_cast(x, TARN_F32), device)), true));
    p.upstream = good(tarn_to(g, device));
    p.result = good(tarn_zeros(out, TARN_BF16, device));
    p.grad = good(tarn_zeros(in, TARN_F32, device));
    return p;
}

static void heads_of_a_packed_tensor_are_used_in_place(void **state)
{
    NEEDS_GPU();
    packed here = make_packed(CPU, 3, 384, 6, 2, 64), there = make_packed(gpu, 3, 384, 6, 2, 64);
    assert_true(step(&here));
    for (int run = 0; run < 2; run++) {
        tarn_stats_reset();
        assert_true(step(&there));
        assert_int_equal(tarn_stats().fallbacks, 0);
    }
    assert_ok();
    assert_true(apart(there.result, here.result) < 3e-2);
    assert_true(apart(there.grad, here.grad) < 3e-2);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void runs_and_captured_steps_are_bitwise_identical(void **state)
{
    NEEDS_GPU();
    static const int64_t rows[] = {257, 1024};
    for (int i = 0; i < 2; i++) {
        packed p = make_packed(gpu, 16, rows[i], 6, 6, 64);
        double *result[4], *grad[4];
        for (int run = 0; run < 4; run++) {
            assert_true(step(&p));
            tarn_graph *graph = run == 3 ? tarn_graph_capture(gpu, step, &p) : NULL;
            assert_true(run < 3 || tarn_graph_run(graph));
            result[run] = values_of(p.result);
            grad[run] = values_of(p.grad);
            tarn_graph_free(graph);
        }
        assert_ok();
        for (int run = 1; run < 4; run++) {
            assert_memory_equal(result[run], result[0], sizeof(double) * (size_t)tarn_count(p.result));
            assert_memory_equal(grad[run], grad[0], sizeof(double) * (size_t)tarn_count(p.grad));
        }
        for (int run = 0; run < 4; run++) {
            free(result[run]);
            free(grad[run]);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Eight heads of 8,192 rows have 1 GiB of weights, of 16,384 rows 4 GiB; a step may need tensors of its operands' size
 * and a workspace of a small fraction of the device's memory. */
static void memory_is_linear_in_the_rows(void **state)
{
    NEEDS_GPU();
    tarn_device_info info;
    assert_true(tarn_device_query(gpu, &info));
    for (int64_t rows = 2048; rows <= 16384; rows *= 2) {
        const int64_t bytes = rows * 8 * 64 * 2, workspace = info.memory_total / 128 * 9 / 8;
        tarn_scope *scope = tarn_scope_open();
        packed p = make_packed(gpu, 1, rows, 8, 8, 64);
        assert_true(step(&p)); /* memory of the tuning run does not count */
        tarn_stats_reset();
        int64_t before = tarn_memory_of(gpu).used;
        assert_true(step(&p));
        assert_true(tarn_memory_of(gpu).peak_used - before < 24 * bytes + workspace);
        assert_ok();
        tarn_scope_close(scope);
    }
}

/* ---- tuning ------------------------------------------------------------------------------------------------------ */

/* Tuning files of attention in the folder that XDG_CACHE_HOME names, and their lines. */
static int count_lines(const char *cache, int *files)
{
    char folder[512], path[1024], line[4096];
    int lines = 0;
    snprintf(folder, sizeof(folder), "%s/tarn", cache);
    DIR *dir = opendir(folder);
    *files = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "attention-", 10) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "r");
        for (*files += 1; file && fgets(line, sizeof(line), file);)
            lines++;
        if (file)
            fclose(file);
    }
    if (dir)
        closedir(dir);
    return lines;
}

/* What another process does with this cache: 0 if a step works. */
static int step_in_a_program(const char *cache, const char *cudnn)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("XDG_CACHE_HOME", cache, 1);
        unsetenv("TARN_AUTOTUNE");
        if (cudnn)
            setenv("TARN_CUDNN", cudnn, 1);
        execl("/proc/self/exe", "test_attention_cudnn", "step", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool has_cudnn(void)
{
    tarn_device_info info;
    return tarn_device_query(gpu, &info) && strstr(info.detail, "cuDNN 9");
}

static void tuning_runs_once_and_is_stored(void **state)
{
    NEEDS_GPU();
    char cache[] = "/tmp/tarn-choices-XXXXXX", line[600];
    int files = 0, lines[2];
    if (!has_cudnn())
        skip();
    assert_non_null(mkdtemp(cache));
    for (int run = 0; run < 2; run++) {
        assert_int_equal(step_in_a_program(cache, NULL), 0);
        lines[run] = count_lines(cache, &files);
        assert_int_equal(files, 1);
    }
    assert_in_range(lines[0], 1, 2); /* forward, and backward if cuDNN's is deterministic */
    assert_int_equal(lines[1], lines[0]);
    snprintf(line, sizeof(line), "rm -r '%s'", cache);
    assert_int_equal(system(line), 0);
}

static void without_cudnn_our_own_kernels_run(void **state)
{
    NEEDS_GPU();
    char cache[] = "/tmp/tarn-choices-XXXXXX", line[600];
    int files = 0;
    assert_non_null(mkdtemp(cache));
    assert_int_equal(step_in_a_program(cache, "off"), 0);
    assert_int_equal(count_lines(cache, &files), 0);
    assert_int_equal(step_in_a_program(cache, "/nowhere/libcudnn.so.9"), 3);
    snprintf(line, sizeof(line), "rm -r '%s'", cache);
    assert_int_equal(system(line), 0);
}

/* A step in this process: 0, or 3 if it fails because cuDNN cannot be opened. */
static int one_step(void)
{
    gpu = tarn_device_parse("cuda");
    tarn_scope *scope = tarn_scope_open();
    packed here = make_packed(CPU, 2, 384, 4, 4, 64), there = make_packed(gpu, 2, 384, 4, 4, 64);
    bool done = step(&here) && step(&there) && tarn_synchronize(gpu);
    if (!done && strstr(tarn_error(), "TARN_CUDNN must be off or the path of libcudnn.so.9: "))
        return 3;
    bool is_near = done && apart(there.result, here.result) < 3e-2 && apart(there.grad, here.grad) < 3e-2;
    tarn_scope_close(scope);
    return is_near ? 0 : 1;
}

static void an_untuned_attention_cannot_be_captured(void **state)
{
    NEEDS_GPU();
    if (!has_cudnn())
        skip();
    packed p = make_packed(gpu, 5, 301, 5, 5, 40);
    assert_null(tarn_graph_capture(gpu, step, &p));
    assert_error_about(TARN_ERROR_DEVICE,
                       "cuda:0 failed: attention is not tuned: ", "run the step once before capturing it");
    assert_true(step(&p)); /* the device still works */
    tarn_graph *graph = tarn_graph_capture(gpu, step, &p);
    assert_true(graph && tarn_graph_run(graph));
    tarn_graph_free(graph);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "step") == 0)
        return one_step();
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(it_matches_the_cpu_and_our_own_kernels),
        ON_GPU(chunks_match_our_own_kernels),
        ON_GPU(heads_of_a_packed_tensor_are_used_in_place),
        ON_GPU(runs_and_captured_steps_are_bitwise_identical),
        ON_GPU(memory_is_linear_in_the_rows),
        ON_GPU(tuning_runs_once_and_is_stored),
        ON_GPU(without_cudnn_our_own_kernels_run),
        ON_GPU(an_untuned_attention_cannot_be_captured),
    };
    setenv("TARN_AUTOTUNE", "off", 1); /* cuDNN's first engine, not the fastest candidate: cuDNN is what is tested */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

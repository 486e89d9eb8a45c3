/* gpu_tour.c: what a GPU is good for, shown by measuring: devices and memory, products checked and timed, two networks
 * on CPU and GPU.
 *
 *   build/release/examples/gpu_tour [DEVICE [WIDTH]]
 *
 * DEVICE is the best there is unless one is named. On a machine without a GPU the tour is the same with the CPU in both
 * columns. WIDTH is the side of the matrices, 1024 unless given; the large network is twice as wide. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tarn/tarn.h>

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void show_device(tarn_device device)
{
    tarn_device_info info;
    if (!tarn_device_query(device, &info))
        return;
    printf("  %-8s %s\n           %s; %.1f GiB of memory, %.1f GiB free\n", info.name, info.description, info.detail,
           (double)info.memory_total / (1 << 30), (double)info.memory_free / (1 << 30));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static bool small_product(tarn_device device)
{
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, expected[] = {19, 22, 43, 50};
    float c[4] = {0};
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *product =
        tarn_matmul(tarn_from_f32(a, TARN_SHAPE(2, 2), device), tarn_from_f32(b, TARN_SHAPE(2, 2), device));
    bool right = tarn_read_f32(product, c, 4);
    for (int i = 0; i < 4; i++)
        right = right && c[i] == expected[i];
    printf("  [1 2; 3 4] @ [5 6; 7 8] = [%g %g; %g %g]  %s\n", (double)c[0], (double)c[1], (double)c[2], (double)c[3],
           right ? "right" : "WRONG");
    tarn_scope_close(scope);
    return right;
}

/* Milliseconds of one product of two n × n matrices, after one that warms up. */
static double time_product(tarn_tensor *a, tarn_tensor *b, tarn_device device, int turns)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_matmul(a, b);
    tarn_event *begin = tarn_event_record(device);
    for (int i = 0; i < turns; i++)
        tarn_matmul(a, b);
    tarn_event *end = tarn_event_record(device);
    double took = tarn_event_elapsed(begin, end) / 1000 / turns;
    tarn_event_free(begin);
    tarn_event_free(end);
    tarn_scope_close(scope);
    return took;
}

/* The three loops as they are first written. */
static void naive_product(int n, const float *a, const float *b, float *c)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++)
                sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

static double largest_difference(const float *x, const float *y, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++)
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
    return most;
}

static bool large_product(tarn_device device, int n)
{
    size_t bytes = sizeof(float) * (size_t)n * (size_t)n;
    float *a = malloc(bytes), *b = malloc(bytes), *naive = malloc(bytes), *c = malloc(bytes);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_normal(TARN_SHAPE(n, n), 0, 1, TARN_F32, device),
                *y = tarn_normal(TARN_SHAPE(n, n), 0, 1, TARN_F32, device);
    bool good = a && b && naive && c && tarn_read_f32(x, a, n * n) && tarn_read_f32(y, b, n * n) &&
                tarn_read_f32(tarn_matmul(x, y), c, n * n);
    if (good) {
        tarn_event *begin = tarn_event_record(tarn_device_cpu());
        naive_product(n, a, b, naive);
        tarn_event *end = tarn_event_record(tarn_device_cpu());
        double loop = tarn_event_elapsed(begin, end) / 1000, off = largest_difference(c, naive, n * n);
        double cpu = time_product(tarn_to(x, tarn_device_cpu()), tarn_to(y, tarn_device_cpu()), tarn_device_cpu(), 10);
        double here = tarn_device_equal(device, tarn_device_cpu()) ? cpu : time_product(x, y, device, 200);
        good = off < 1e-2 && !tarn_failed();
        printf("  plain loop on the CPU %9.2f ms\n  tarn on the CPU       %9.2f ms\n  tarn on the device    %9.3f ms   "
               "(%.0f times the loop's speed)\n",
               loop, cpu, here, loop / here);
        printf("  largest difference to the loop %.1e  %s\n", off, good ? "right" : "WRONG");
        tarn_event_free(begin);
        tarn_event_free(end);
    }
    tarn_scope_close(scope);
    free(a), free(b), free(naive), free(c);
    return good;
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

typedef struct training {
    tarn_tensor *x, *y, *loss;
    tarn_module *net;
    tarn_optimizer *adam;
} training;

static bool step(void *ctx)
{
    training *t = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *loss = tarn_mse_loss(tarn_forward(t->net, t->x), t->y);
    bool done = tarn_backward(loss) && tarn_optimizer_step(t->adam) && tarn_copy(t->loss, loss);
    tarn_scope_close(scope);
    return done;
}

/* Milliseconds of a step; *last is the loss at the end. With `captured`, the step is recorded and run as a whole. */
static double train(training *t, tarn_device device, int steps, bool captured, double *last)
{
    for (int i = 0; i < 3; i++)
        step(t);
    tarn_graph *graph = captured ? tarn_graph_capture(device, step, t) : NULL;
    tarn_event *begin = tarn_event_record(device);
    for (int i = 0; i < steps && !tarn_failed(); i++)
        captured ? tarn_graph_run(graph) : step(t);
    tarn_event *end = tarn_event_record(device);
    double took = tarn_event_elapsed(begin, end) / 1000 / steps;
    *last = tarn_item(t->loss);
    tarn_event_free(begin);
    tarn_event_free(end);
    tarn_graph_free(graph);
    return took;
}

static double train_xor(tarn_device device, bool captured, double *last)
{
    const float points[] = {0, 0, 0, 1, 1, 0, 1, 1}, answers[] = {0, 1, 1, 0};
    tarn_seed(1);
    tarn_scope *scope = tarn_scope_open();
    training t = {.x = tarn_from_f32(points, TARN_SHAPE(4, 2), device),
                  .y = tarn_from_f32(answers, TARN_SHAPE(4, 1), device)};
    t.loss = tarn_zeros((tarn_shape){0, {0}}, TARN_F32, device);
    t.net = tarn_sequential(tarn_linear(2, 16, device), tarn_activation(TARN_TANH), tarn_linear(16, 1, device), NULL);
    t.adam = tarn_adamw(t.net, &(tarn_adamw_options){.lr = 0.05f});
    double took = train(&t, device, 300, captured, last);
    tarn_optimizer_free(t.adam);
    tarn_module_free(t.net);
    tarn_scope_close(scope);
    return took;
}

static double train_large(tarn_device device, int width, int steps, double *last)
{
    tarn_seed(1);
    tarn_scope *scope = tarn_scope_open();
    training t = {.x = tarn_normal(TARN_SHAPE(width, width), 0, 1, TARN_F32, device),
                  .y = tarn_normal(TARN_SHAPE(width, 16), 0, 1, TARN_F32, device)};
    t.loss = tarn_zeros((tarn_shape){0, {0}}, TARN_F32, device);
    t.net = tarn_sequential(tarn_linear(width, width, device), tarn_activation(TARN_GELU),
                            tarn_linear(width, width, device), tarn_activation(TARN_GELU),
                            tarn_linear(width, 16, device), NULL);
    t.adam = tarn_adamw(t.net, &(tarn_adamw_options){.lr = 1e-4f});
    double took = train(&t, device, steps, false, last);
    tarn_optimizer_free(t.adam);
    tarn_module_free(t.net);
    tarn_scope_close(scope);
    return took;
}

static bool networks(tarn_device device, int width)
{
    double loss_cpu, loss_here, loss_graph, large_cpu, large_here;
    bool is_cpu = tarn_device_equal(device, tarn_device_cpu());
    printf("  XOR, 4 points, a step            CPU %8.3f ms   ", train_xor(tarn_device_cpu(), false, &loss_cpu));
    printf("device %8.3f ms   ", train_xor(device, false, &loss_here));
    printf("captured %8.3f ms\n", train_xor(device, true, &loss_graph));
    printf("    losses after 300 steps             %.1e            %.1e              %.1e\n", loss_cpu, loss_here,
           loss_graph);
    double cpu = train_large(tarn_device_cpu(), width, 2, &large_cpu),
           here = is_cpu ? cpu : train_large(device, width, 50, &large_here);
    printf("  %d rows through %d x %d x 2, CPU %8.1f ms   device %8.3f ms   %.0f times as fast\n", width, width, width,
           cpu, here, cpu / here);
    return !tarn_failed() && loss_cpu < 0.01 && loss_here < 0.01 && loss_graph < 0.01;
}

int main(int argc, char **argv)
{
    char name[32];
    tarn_device device = argc > 1 ? tarn_device_parse(argv[1]) : tarn_device_auto();
    if (tarn_failed()) {
        fprintf(stderr, "gpu_tour: %s\n", tarn_error());
        return 2;
    }
    int width = argc > 2 ? atoi(argv[2]) : 1024;
    if (width < 1 || width > 8192) {
        fprintf(stderr, "gpu_tour: WIDTH must be from 1 to 8192, not %s\n", argv[2]);
        return 2;
    }
    printf("devices\n");
    show_device(tarn_device_cpu());
    if (!tarn_device_equal(device, tarn_device_cpu()))
        show_device(device);
    else
        printf("  no GPU: %s\n", tarn_backend_missing("cuda"));
    printf("\na small product on %s\n", tarn_device_name(device, name, sizeof(name)));
    bool good = small_product(device);
    printf("\n%d x %d x %d\n", width, width, width);
    good = large_product(device, width) && good;
    printf("\nnetworks\n");
    good = networks(device, 2 * width) && good;
    tarn_counters stats = tarn_stats();
    tarn_memory memory = tarn_memory_of(device);
    printf("\nstatistics\n  %lld kernels, %lld of them on the CPU; %lld copies to the device, %lld from it, %lld "
           "fallbacks\n",
           (long long)stats.kernels, (long long)stats.kernels_on[0], (long long)stats.uploads,
           (long long)stats.downloads, (long long)stats.fallbacks);
    printf("  memory on %s: %.1f MiB in use, %.1f MiB kept for later, %.1f MiB at most\n", name,
           (double)memory.used / (1 << 20), (double)memory.cached / (1 << 20), (double)memory.peak_used / (1 << 20));
    if (tarn_failed())
        fprintf(stderr, "gpu_tour: %s\n", tarn_error());
    return good && !tarn_failed() ? 0 : 1;
}

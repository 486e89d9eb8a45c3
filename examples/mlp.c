/* mlp.c: trains a network to separate two spirals, and draws its decision boundary.
 *
 *   build/release/examples/mlp
 *
 * Points of two classes lie on two spirals wound into each other, so no straight line separates them. A network with
 * two hidden layers is trained on some points and judged on others that it has never seen. On a terminal there is a
 * progress bar, and colours unless NO_COLOR is set; in a pipe there are plain lines. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/tarn.h>
#include <unistd.h>

#define POINTS 800 /* to learn from, and as many again to be judged by */
#define STEPS 600
#define HIDDEN 64
#define TURNS 1.75
#define NOISE 0.015
#define RATE 0.005 /* of learning, at the start */

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* A number in [0, 1), the same on every machine. */
static double chance(void)
{
    static uint64_t state = 0x2545f4914f6cdd1d;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

/* point (POINTS, 2) and label (POINTS): the class is the spiral of the point. */
static void make_spirals(float *point, int64_t *label)
{
    const double pi = 3.14159265358979323846;
    for (int i = 0; i < POINTS; i++) {
        label[i] = i % 2;
        double radius = 0.1 + 0.9 * chance(), angle = 2 * pi * TURNS * radius + pi * (double)label[i];
        point[2 * i] = (float)(radius * cos(angle) + NOISE * (2 * chance() - 1));
        point[2 * i + 1] = (float)(radius * sin(angle) + NOISE * (2 * chance() - 1));
    }
}

/* The share of points whose class the network gets right. */
static double accuracy(tarn_module *net, tarn_tensor *x, tarn_tensor *label)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    tarn_tensor *right = tarn_eq(tarn_argmax(tarn_forward(net, x), 1, false), label);
    double share = tarn_item(tarn_mean(tarn_cast(right, TARN_F32), TARN_ALL_AXES, false));
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return share;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void show_progress(int step, double loss, bool terminal)
{
    if (!terminal) {
        if (step % 100 == 0 || step == STEPS)
            printf("step %4d of %d  loss %.5f\n", step, STEPS, loss);
        return;
    }
    char bar[41];
    int filled = 40 * step / STEPS;
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(40 - filled));
    bar[40] = 0;
    printf("\r[%s] %4d of %d  loss %.5f ", bar, step, STEPS, loss);
    if (step == STEPS)
        printf("\n");
    fflush(stdout);
}

/* The losses over the steps, on a logarithmic scale. */
static void draw_curve(const double *loss)
{
    enum { WIDTH = 60, HEIGHT = 10 };
    double level[WIDTH], low = 1e9, high = -1e9;
    for (int column = 0; column < WIDTH; column++) {
        level[column] = log10(loss[column * (STEPS - 1) / (WIDTH - 1)] + 1e-9);
        low = fmin(low, level[column]);
        high = fmax(high, level[column]);
    }
    printf("\nloss\n");
    for (int row = 0; row < HEIGHT; row++) {
        double here = high - (high - low) * row / (HEIGHT - 1);
        char line[WIDTH + 1];
        for (int column = 0; column < WIDTH; column++)
            line[column] = (int)lround((high - level[column]) / (high - low + 1e-9) * (HEIGHT - 1)) == row ? '*' : ' ';
        line[WIDTH] = 0;
        printf("%9.5f |%s\n", pow(10, here), line);
    }
    printf("          +");
    for (int column = 0; column < WIDTH; column++)
        putchar('-');
    printf("\n           step 1 to %d\n", STEPS);
}

/* What the network says of every place between -1.1 and 1.1: '#' for one class, '.' for the other. */
static void draw_regions(tarn_module *net, tarn_device device, bool colour)
{
    enum { WIDTH = 60, HEIGHT = 28 };
    float place[WIDTH * HEIGHT * 2];
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        place[2 * i] = (float)(-1.1 + 2.2 * (i % WIDTH) / (WIDTH - 1));
        place[2 * i + 1] = (float)(1.1 - 2.2 * (i / WIDTH) / (HEIGHT - 1)); /* the first line is the top */
    }
    int64_t class_at[WIDTH * HEIGHT];
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    tarn_tensor *logits = tarn_forward(net, tarn_from_f32(place, TARN_SHAPE(WIDTH * HEIGHT, 2), device));
    bool good = tarn_read(tarn_argmax(logits, 1, false), class_at, sizeof(class_at));
    tarn_no_grad_close();
    tarn_scope_close(scope);

    printf("\ndecision regions\n");
    for (int i = 0; good && i < WIDTH * HEIGHT; i++) {
        if (i % WIDTH == 0)
            printf("%s           ", i ? "\n" : "");
        if (colour)
            printf("\033[%sm%c\033[0m", class_at[i] ? "33" : "34", class_at[i] ? '#' : '.');
        else
            putchar(class_at[i] ? '#' : '.');
    }
    printf("\n\n");
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

/* One step on all points; returns the loss. What it makes is freed when it returns. */
static double train_step(tarn_module *net, tarn_optimizer *adam, tarn_tensor *x, tarn_tensor *label)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *loss = tarn_cross_entropy(tarn_forward(net, x), label, NULL);
    tarn_backward(loss);
    tarn_optimizer_step(adam);
    double value = tarn_item(loss);
    tarn_scope_close(scope);
    return value;
}

int main(void)
{
    const char *no_colour = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO), colour = terminal && !(no_colour && no_colour[0]);
    tarn_device device = tarn_device_auto();
    static float point[2][POINTS * 2];
    static int64_t label[2][POINTS];
    static double losses[STEPS];

    tarn_seed(1);
    tarn_scope *program = tarn_scope_open();
    tarn_tensor *x[2], *y[2]; /* 0: to learn from, 1: to be judged by */
    for (int part = 0; part < 2; part++) {
        make_spirals(point[part], label[part]);
        x[part] = tarn_from_f32(point[part], TARN_SHAPE(POINTS, 2), device);
        y[part] = tarn_from_i64(label[part], TARN_SHAPE(POINTS), device);
    }
    tarn_module *net =
        tarn_sequential(tarn_linear(2, HIDDEN, device), tarn_activation(TARN_GELU), tarn_linear(HIDDEN, HIDDEN, device),
                        tarn_activation(TARN_GELU), tarn_linear(HIDDEN, 2, device), NULL);
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = RATE, .weight_decay = 0.01f});

    char name[32];
    printf("two spirals, %d points; %lld parameters, on %s\n", POINTS, (long long)tarn_module_element_count(net),
           tarn_device_name(device, name, sizeof(name)));
    for (int step = 0; step < STEPS && !tarn_failed(); step++) {
        tarn_optimizer_set_lr(adam, RATE * (1 - (double)step / STEPS)); /* ever smaller steps settle */
        losses[step] = train_step(net, adam, x[0], y[0]);
        if ((step + 1) % 10 == 0)
            show_progress(step + 1, losses[step], terminal);
    }
    double seen = accuracy(net, x[0], y[0]), unseen = accuracy(net, x[1], y[1]);
    if (!tarn_failed()) {
        draw_curve(losses);
        draw_regions(net, device, colour);
        printf("correct: %.1f %% of the training points, %.1f %% of new ones\n", 100 * seen, 100 * unseen);
    }

    if (tarn_failed())
        fprintf(stderr, "%s\n", tarn_error());
    tarn_optimizer_free(adam);
    tarn_module_free(net);
    tarn_scope_close(program);
    return tarn_failed() || !(unseen > 0.98);
}

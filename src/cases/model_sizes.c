/* model_sizes.c: the measured rows at the sizes of models: GPT-2 (768, 3072, a vocabulary of 50304 of which 50257
 * are used) with 32768 tokens, square matmuls, images for copies; then rows of sizes that no letter has: attention,
 * and images of CNNs.
 *
 * Rows refer to the list by their bench name, so a renamed or removed case is noticed: tarn__model_at() returns NULL
 * for it. */
#include <string.h>

#include "cases/case_macros.h"

/* Letters of the sizes in the list of cases; a scale has a number for each. 0 is no letter. */
enum { B = 1, S, R, C, K, T, V, H, W, U };

/* A row of the list, by its bench name, at a scale. */
typedef struct model_row {
    const char *row;
    tarn__scale scale;
} model_row;

/* Rows by the letters that they use: a product [R, K] x [K, C], the same in a batch, rows, activations of GPT-2's
 * FFN, and images [B, S, H, W]. */
#define PRODUCT(name, r, k, c) {name, {{[R] = r, [K] = k, [C] = c}}},
#define BATCHED(name, b, s, k, c) {name, {{[B] = b, [S] = s, [K] = k, [C] = c}}},
#define ROWS(name, r, c) {name, {{[R] = r, [C] = c}}},
#define HIDDEN(name) ROWS(name, 32768, 3072)
#define IMAGES(name) {name, {{[B] = 64, [S] = 64, [H] = 128, [W] = 128}}},

static const model_row rows[] = {
    PRODUCT("matmul", 128, 128, 128) PRODUCT("matmul", 256, 256, 256) PRODUCT("matmul", 512, 512, 512)
        PRODUCT("matmul", 1024, 1024, 1024) PRODUCT("matmul", 2048, 2048, 2048) PRODUCT("matmul", 4096, 4096, 4096)
            PRODUCT("matmul", 8192, 8192, 8192) BATCHED("matmul-batched", 384, 1024, 64, 1024)
                BATCHED("matmul-batched", 64, 512, 512, 512) BATCHED("matmul-3d-2d", 32, 1024, 768, 768)
                    PRODUCT("linear", 32768, 768, 2304) PRODUCT("linear", 32768, 768, 768)
                        PRODUCT("linear", 32768, 768, 3072) PRODUCT("linear", 32768, 3072, 768)
                            PRODUCT("linear", 32768, 768, 50304) ROWS("layernorm", 32768, 768)
                                ROWS("rmsnorm", 32768, 768)
                                    ROWS("residual_norm", 32768, 768){"attention", {{[B] = 96, [S] = 1024}}},
    {"attention_packed", {{[B] = 96, [S] = 1024}}},
    HIDDEN("neg") HIDDEN("exp") HIDDEN("log") HIDDEN("exp2") HIDDEN("log2") HIDDEN("sqrt") HIDDEN("recip") HIDDEN("abs")
        HIDDEN("square") HIDDEN("sin") HIDDEN("cos") HIDDEN("tanh") HIDDEN("sigmoid") HIDDEN("relu") HIDDEN("gelu")
            HIDDEN("silu") HIDDEN("add") HIDDEN("sub") HIDDEN("mul") HIDDEN("div") HIDDEN("maximum") HIDDEN("pow")
                HIDDEN("mod") HIDDEN("cmplt") HIDDEN("add-broadcast-row") HIDDEN("mul-broadcast-col")
                    ROWS("softmax", 32768, 1024) ROWS("log_softmax", 32768, 1024) HIDDEN("sum-last") HIDDEN("sum-first")
                        HIDDEN("mean-last") HIDDEN("mean-first") HIDDEN("max-last") HIDDEN("max-first")
                            HIDDEN("sum-all"){"permute-copy", {{[B] = 64, [S] = 512, [C] = 3072}}},
    {"expand-copy", {{[B] = 64, [S] = 512, [C] = 3072}}},
    IMAGES("batchnorm") IMAGES("batchnorm-running") IMAGES("batchnorm_relu") IMAGES("batchnorm_relu-residual")
        IMAGES("groupnorm") IMAGES("pad") IMAGES("shrink-copy") IMAGES("stride-copy") IMAGES("flip")
            IMAGES("concat"){"conv2d", {{[S] = 64, [B] = 64, [H] = 56, [W] = 56}}},
    {"conv2d-nhwc", {{[S] = 64, [B] = 64, [H] = 56, [W] = 56}}},
    IMAGES("max_pool2d") IMAGES("avg_pool2d"){"cross_entropy", {{[T] = 8192, [V] = 50304, [U] = 50257}}},
    {"linear_cross_entropy", {{[T] = 8192, [V] = 50304, [U] = 50257, [K] = 768}}},
    {"embedding", {{[V] = 50304, [C] = 768, [R] = 32768, [U] = 50257}}},
};
#define COUNT ((int)(sizeof(rows) / sizeof(rows[0])))

#define ATTENTION(b, h, t, d) \
    CASE("attention", "causal", {NORMAL(b, h, t, d), NORMAL(b, h, t, d), NORMAL(b, h, t, d)}, {ON("causal")}, \
         .bench = "attention-causal", .backward = 8),
#define CONVOLUTION(n, c, h, k, side, step) \
    CASE("conv2d", "rows", {NORMAL(n, c, h, h), NORMAL(k, c, side, side), NORMAL(k)}, \
         {LIST("padding", side / 2, side / 2), LIST("stride", step, step)}, .bench = "conv2d", .backward = 4), \
        CASE("conv2d", "channels last", {CHANNELS_LAST(NORMAL, n, c, h, h), NORMAL(k, c, side, side), NORMAL(k)}, \
             {LIST("padding", side / 2, side / 2), LIST("stride", step, step)}, .bench = "conv2d-nhwc", \
             .backward = 4),

#define NORM_LAST(n, c, h) \
    CASE("batchnorm", "channels last", {CHANNELS_LAST(NORMAL, n, c, h, h), NORMAL(c), NORMAL(c)}, {ON("training")}, \
         .bench = "batchnorm-nhwc", .forward = 3, .backward = 5), \
        CASE("batchnorm_relu", "channels last", {CHANNELS_LAST(NORMAL, n, c, h, h), NORMAL(c), NORMAL(c)}, \
             {ON("training")}, .bench = "batchnorm_relu-nhwc", .forward = 3, .backward = 5), \
        CASE("batchnorm_relu", "channels last, residual", \
             {CHANNELS_LAST(NORMAL, n, c, h, h), NORMAL(c), NORMAL(c), CHANNELS_LAST(NORMAL, n, c, h, h)}, \
             {ON("training"), ON("residual")}, .bench = "batchnorm_relu-residual-nhwc", .forward = 4, .backward = 7),

static const tarn__case sized[] = {
    ATTENTION(32, 12, 1024, 64) ATTENTION(8, 16, 4096, 64) ATTENTION(8, 16, 4096, 128) ATTENTION(2, 32, 16384, 128)
        CASE("rope", "heads", {NORMAL(32, 1024, 12, 64)}, .bench = "rope", .backward = 2),
    CONVOLUTION(64, 128, 28, 256, 3, 2) CONVOLUTION(128, 3, 32, 64, 3, 1) CONVOLUTION(64, 256, 14, 1024, 1, 1)
        CASE("max_pool2d", "halves", {NORMAL(128, 64, 64, 64)}, {LIST("kernel", 2, 2)}, .bench = "maxpool2d",
             .forward = 1.25, .backward = 1.25),
    CASE("max_pool2d", "channels last", {CHANNELS_LAST(NORMAL, 64, 64, 128, 128)}, {LIST("kernel", 2, 2)},
         .bench = "max_pool2d-nhwc", .forward = 1.25, .backward = 1.25),
    CASE("avg_pool2d", "channels last", {CHANNELS_LAST(NORMAL, 64, 64, 128, 128)}, {LIST("kernel", 2, 2)},
         .bench = "avg_pool2d-nhwc", .forward = 1.25, .backward = 1.25),
    CASE("batchnorm", "training", {NORMAL(128, 64, 32, 32), NORMAL(64), NORMAL(64)}, {ON("training")},
         .bench = "batchnorm2d", .forward = 3, .backward = 5),
    NORM_LAST(1024, 16, 32) NORM_LAST(1024, 32, 16) NORM_LAST(1024, 64, 8)};
#define SIZED ((int)(sizeof(sized) / sizeof(sized[0])))

static const tarn__scale scale_of_others = {{[B] = 64,
                                             [S] = 512,
                                             [R] = 32768,
                                             [C] = 3072,
                                             [K] = 768,
                                             [T] = 8192,
                                             [V] = 50304,
                                             [H] = 64,
                                             [W] = 48,
                                             [U] = 50257}};

/* True for a measured row of the list that has no entry above. So a new case is measured at some size without a line
 * here. */
static bool is_other(const tarn__case *one)
{
    for (int i = 0; one->bench && i < COUNT; i++)
        if (strcmp(one->bench, rows[i].row) == 0)
            return false;
    for (int i = 0; one->bench && i < SIZED; i++)
        if (strcmp(one->bench, sized[i].bench) == 0)
            return false;
    return one->bench != NULL;
}

/* Listed rows, sized rows, then the others. */
int tarn__model_count(void)
{
    int count = COUNT + SIZED;
    for (int i = 0; i < tarn__case_count(); i++)
        count += is_other(tarn__case_at(i));
    return count;
}

/* Indices run over the three kinds in order; those of others are counted down while the list is searched. */
const tarn__case *tarn__model_at(int index, tarn__scale *scale)
{
    bool is_listed = index < COUNT;
    int others = index - COUNT - SIZED;
    *scale = is_listed ? rows[index].scale : scale_of_others;
    if (!is_listed && others < 0)
        return &sized[index - COUNT];
    for (int i = 0; i < tarn__case_count(); i++) {
        const tarn__case *one = tarn__case_at(i);
        if (is_listed ? one->bench && strcmp(one->bench, rows[index].row) == 0 : is_other(one) && others-- == 0)
            return one;
    }
    return NULL;
}

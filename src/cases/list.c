/* list.c: the list of cases. Element-wise operations get theirs from elementwise.def, so a new row there has its cases at once; what has
 * kinks, poles or branches beyond that stands below with inputs of its own. */
#include <math.h>

#include "cases/cases.h"

#define B TARN__B
#define S TARN__S
#define R TARN__R
#define C TARN__C
#define K TARN__K
#define T TARN__T
#define V TARN__V
#define H TARN__H
#define W TARN__W

#define SIZES(...) {(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}}

/* Inputs. */
#define NORMAL(...) {TARN__NORMAL, SIZES(__VA_ARGS__), 0}
#define POSITIVE(...) {TARN__POSITIVE, SIZES(__VA_ARGS__), 0}
#define UNIT(...) {TARN__UNIT, SIZES(__VA_ARGS__), 0}
#define SMOOTH(...) {TARN__SMOOTH, SIZES(__VA_ARGS__), 0}
#define DISTINCT(...) {TARN__DISTINCT, SIZES(__VA_ARGS__), 0}
#define STEPS(...) {TARN__STEPS, SIZES(__VA_ARGS__), 0}
#define TRUTH(...) {TARN__TRUTH, SIZES(__VA_ARGS__), 0}
#define INDEX(limit, ...) {TARN__INDEX, SIZES(__VA_ARGS__), limit}
#define RANK0(kind) {TARN__##kind, {0, {0}}, 0}

/* Attributes. */
#define INT(word, value) {.name = word, .integer = value}
#define ON(word) {.name = word, .integer = 1}
#define REAL(word, value) {.name = word, .number = value}
#define LIST(word, ...) {.name = word, .list = {__VA_ARGS__}, .count = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))}

/* The ways two operands meet. The first is the one that is measured, with the row's own name. */
#define TWO_OPERANDS(name, kind, row, moves)                                                                                              \
    {name, "same shape", {kind(R, C), kind(R, C)}, .bench = row, .backward = moves},                                                      \
        {name, "row", {kind(R, C), kind(C)}}, {name, "row first", {kind(C), kind(R, C)}}, {name, "column", {kind(R, C), kind(R, 1)}},     \
        {name, "column first", {kind(R, 1), kind(R, C)}}, {name, "rank 0", {kind(R, C), {kind##_KIND, {0, {0}}, 0}}},                     \
        {name, "rank 0 first", {{kind##_KIND, {0, {0}}, 0}, kind(R, C)}}, {name, "both ways", {kind(R, 1), kind(1, C)}},                  \
        {name, "inner axis", {kind(B, S, C), kind(B, 1, C)}}, {name, "two of rank 0", {{kind##_KIND, {0, {0}}, 0}, {kind##_KIND, {0, {0}}, 0}}},
#define POSITIVE_KIND TARN__POSITIVE
#define STEPS_KIND TARN__STEPS

/* Sums and differences only pass the gradient on: one read, two results. */
#define BACKWARD_add 3
#define BACKWARD_sub 3

static const tarn__case list[] = {
/* ---- element by element ---------------------------------------------------------------------------------------------------- */
#define UNARY(name, ...) {#name, "positive", {POSITIVE(R, C)}, .bench = #name, .backward = 3},
#define BINARY(name, ...) TWO_OPERANDS(#name, POSITIVE, #name, 5)
#define COMPARE(name, ...) TWO_OPERANDS(#name, STEPS, "cmp" #name, 0)
#include "base/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE

    /* all of the line, rank 0, more axes */
    {"neg", "any", {NORMAL(R, C)}},
    {"abs", "any", {SMOOTH(R, C)}},
    {"sign", "any", {SMOOTH(R, C)}},
    {"square", "any", {NORMAL(B, S, C)}},
    {"recip", "any", {SMOOTH(R, C)}},
    {"exp", "any", {NORMAL(R, C)}},
    {"exp", "rank 0", {RANK0(NORMAL)}},
    {"exp2", "any", {NORMAL(R, C)}},
    {"sin", "any", {NORMAL(R, C)}},
    {"cos", "any", {NORMAL(R, C)}},
    {"tanh", "any", {NORMAL(B, S, H, W)}},
    {"erf", "any", {NORMAL(R, C)}},
    {"sigmoid", "any", {NORMAL(R, C)}},
    {"relu", "any", {SMOOTH(R, C)}},
    {"leaky_relu", "any", {SMOOTH(R, C)}, {REAL("slope", 0.2)}},
    {"gelu", "any", {NORMAL(R, C)}},
    {"gelu_erf", "any", {NORMAL(R, C)}},
    {"silu", "any", {NORMAL(R, C)}},
    {"softplus", "any", {NORMAL(R, C)}},
    {"clamp", "both bounds", {SMOOTH(R, C)}, {REAL("low", -0.6), REAL("high", 1.0)}},
    {"clamp", "below only", {SMOOTH(R, C)}, {REAL("low", 0.2)}},
    {"add", "any", {NORMAL(B, S, C), NORMAL(B, S, C)}},
    {"sub", "any", {NORMAL(B, S, C), NORMAL(S, C)}},
    {"mul", "any", {NORMAL(B, S, C), NORMAL(S, 1)}},
    {"div", "any", {NORMAL(R, C), SMOOTH(R, C)}},
    {"maximum", "any", {NORMAL(R, C), NORMAL(R, C)}},
    {"minimum", "any", {NORMAL(R, C), NORMAL(R, C)}},
    {"maximum", "ties", {STEPS(R, C), STEPS(R, C)}},
    {"minimum", "ties", {STEPS(R, C), STEPS(R, C)}},
    {"mod", "any", {NORMAL(R, C), SMOOTH(R, C)}},
    {"pow", "any", {POSITIVE(R, C), NORMAL(R, C)}},
    {"add", "broadcast row", {NORMAL(R, C), NORMAL(C)}, .bench = "add-broadcast-row", .backward = 2},
    {"mul", "broadcast column", {NORMAL(R, C), NORMAL(R, 1)}, .bench = "mul-broadcast-col", .backward = 3},
    {"where", "same shape", {TRUTH(R, C), NORMAL(R, C), NORMAL(R, C)}, .bench = "where", .backward = 3},
    {"where", "broadcast", {TRUTH(R, 1), NORMAL(C), NORMAL(R, C)}},
    {"where", "rank 0", {TRUTH(R, C), RANK0(NORMAL), NORMAL(R, C)}},
    {"where", "condition of rank 0", {RANK0(TRUTH), NORMAL(R, C), NORMAL(R, C)}},
    {"cast", "to f32", {NORMAL(R, C)}, {INT("dtype", TARN_F32)}, .step = 0.1},
    {"cast", "to another", {NORMAL(R, C)}, {INT("dtype", TARN__OTHER_DTYPE)}, .step = 0.1, .bench = "cast", .backward = 2},
    {"cast", "to i64", {SMOOTH(R, C)}, {INT("dtype", TARN_I64)}, .smooth = 2},
    {"cast", "to bool", {STEPS(R, C)}, {INT("dtype", TARN_BOOL)}},

/* ---- reductions ------------------------------------------------------------------------------------------------------------ */
#define REDUCTION(name, kind, moves)                                                                                                      \
    {name, "last", {kind(R, C)}, {LIST("axes", -1)}, .bench = name "-last", .backward = moves},                                           \
        {name, "first", {kind(R, C)}, {LIST("axes", 0)}, .bench = name "-first", .backward = moves},                                      \
        {name, "all", {kind(R, C)}, .bench = name "-all", .backward = moves}, {name, "all, kept", {kind(B, S, C)}, {ON("keep")}},         \
        {name, "middle", {kind(B, S, C)}, {LIST("axes", 1)}}, {name, "middle, kept", {kind(B, S, C)}, {LIST("axes", -2), ON("keep")}},    \
        {name, "outer two", {kind(B, S, C)}, {LIST("axes", 0, 2)}}, {name, "last two, kept", {kind(B, S, C)}, {LIST("axes", 1, 2), ON("keep")}}, \
        {name, "rank 0", {{kind##_KIND, {0, {0}}, 0}}}, {name, "of size 1", {kind(R, 1)}, {LIST("axes", 1)}},
#define NORMAL_KIND TARN__NORMAL
#define DISTINCT_KIND TARN__DISTINCT
    REDUCTION("sum", NORMAL, 1)
    REDUCTION("mean", NORMAL, 1)
    REDUCTION("prod", POSITIVE, 2)
    REDUCTION("max", DISTINCT, 2)
    REDUCTION("min", DISTINCT, 2)
    {"max", "ties", {STEPS(R, C)}, {LIST("axes", 1)}},
    {"min", "ties", {STEPS(R, C)}, {LIST("axes", 0)}},
    {"prod", "with zeros", {STEPS(R, C)}, {LIST("axes", 1)}},
    {"var", "last", {NORMAL(R, C)}, {LIST("axes", -1), REAL("correction", 1)}, .bench = "var-last", .backward = 2},
    {"var", "first, biased", {NORMAL(R, C)}, {LIST("axes", 0), REAL("correction", 0)}},
    {"var", "all", {NORMAL(B, S, C)}, {REAL("correction", 1)}},
    {"var", "middle, kept", {NORMAL(B, S, C)}, {LIST("axes", 1), REAL("correction", 1), ON("keep")}},
    {"var", "outer two", {NORMAL(B, S, C)}, {LIST("axes", 0, 2), REAL("correction", 0)}},
    {"argmax", "last", {DISTINCT(R, C)}, {INT("axis", -1)}, .bench = "argmax-last"},
    {"argmax", "first", {DISTINCT(R, C)}, {INT("axis", 0)}},
    {"argmax", "ties, kept", {STEPS(B, S, C)}, {INT("axis", 1), ON("keep")}},
    {"argmin", "last", {DISTINCT(R, C)}, {INT("axis", -1)}},
    {"argmin", "first", {DISTINCT(R, C)}, {INT("axis", 0)}},
    {"argmin", "ties, kept", {STEPS(B, S, C)}, {INT("axis", 2), ON("keep")}},
    {"cumsum", "last", {NORMAL(R, C)}, {INT("axis", -1)}, .bench = "cumsum-last", .backward = 2},
    {"cumsum", "first", {NORMAL(R, C)}, {INT("axis", 0)}},
    {"cumsum", "middle", {NORMAL(B, S, C)}, {INT("axis", 1)}},

    /* ---- movement -------------------------------------------------------------------------------------------------------------- */
    {"reshape", "split", {NORMAL(R, C)}, {LIST("shape", R, 1, C)}},
    {"reshape", "flat", {NORMAL(B, S, C)}, {LIST("shape", -1)}},
    {"reshape", "worked out", {NORMAL(B, S, C)}, {LIST("shape", C, -1)}},
    {"permute", "turned", {NORMAL(B, S, C)}, {LIST("axes", 2, 0, 1)}},
    {"permute", "copied", {NORMAL(B, S, C)}, {LIST("axes", 0, 2, 1)}, .copied = true, .bench = "permute-copy", .backward = 2},
    {"permute", "reversed, copied", {NORMAL(B, S, H, W)}, {LIST("axes", -1, -2, -3, -4)}, .copied = true},
    {"transpose", "matrix", {NORMAL(R, C)}, {INT("a", 0), INT("b", 1)}},
    {"transpose", "outer axes, copied", {NORMAL(B, S, C)}, {INT("a", 0), INT("b", -1)}, .copied = true},
    {"expand", "column", {NORMAL(R, 1)}, {LIST("shape", R, C)}},
    {"expand", "new axis, copied", {NORMAL(1, S, C)}, {LIST("shape", B, S, C)}, .copied = true, .bench = "expand-copy", .backward = 1},
    {"expand", "rank 0", {RANK0(NORMAL)}, {LIST("shape", R, C)}},
    {"unsqueeze", "front", {NORMAL(R, C)}, {INT("axis", 0)}},
    {"unsqueeze", "end", {NORMAL(R, C)}, {INT("axis", -1)}},
    {"squeeze", "middle", {NORMAL(R, 1, C)}, {INT("axis", 1)}},
    {"squeeze", "end", {NORMAL(R, C, 1)}, {INT("axis", -1)}},
    {"pad", "image", {NORMAL(B, S, H, W)}, {LIST("before", 0, 0, 1, 1), LIST("after", 0, 0, 1, 1)}, .bench = "pad", .backward = 2},
    {"pad", "one side, with a value", {NORMAL(R, C)}, {LIST("before", 2, 0), LIST("after", 0, 3), REAL("value", 1.5)}},
    {"shrink", "inside", {NORMAL(R, C)}, {LIST("begin", 1, 0), LIST("end", R - 1, C - 2)}},
    {"shrink", "copied", {NORMAL(B, S, H, W)}, {LIST("begin", 0, 0, 1, 1), LIST("end", B, S, H - 1, W - 1)}, .copied = true,
     .bench = "shrink-copy", .backward = 2},
    {"slice", "rows", {NORMAL(R, C)}, {INT("axis", 0), INT("begin", 2), INT("end", R - 1)}},
    {"slice", "columns", {NORMAL(B, S, C)}, {INT("axis", -1), INT("begin", 1), INT("end", C)}},
    {"stride", "both axes", {NORMAL(R, C)}, {LIST("steps", 2, 3)}},
    {"stride", "copied", {NORMAL(B, S, H, W)}, {LIST("steps", 1, 1, 2, 2)}, .copied = true, .bench = "stride-copy", .backward = 1.25},
    {"flip", "one axis", {NORMAL(R, C)}, {LIST("axes", 0)}},
    {"flip", "last axis, copied", {NORMAL(B, S, H, W)}, {LIST("axes", -1)}, .copied = true, .bench = "flip", .backward = 2},
    {"flip", "two axes", {NORMAL(B, S, C)}, {LIST("axes", 0, 2)}},
    {"contiguous", "matrix", {NORMAL(R, C)}},
    {"clone", "matrix", {NORMAL(R, C)}, .bench = "copy", .backward = 2},
    {"concat", "columns", {NORMAL(R, C), NORMAL(R, K)}, {INT("axis", 1)}},
    {"concat", "channels", {NORMAL(B, S, H, W), NORMAL(B, S, H, W)}, {INT("axis", 1)}, .bench = "concat", .backward = 4},
    {"concat", "three, last axis", {NORMAL(R, 1), NORMAL(R, C), NORMAL(R, 2)}, {INT("axis", -1)}},
    {"concat", "one", {NORMAL(R, C)}, {INT("axis", 0)}},
    {"stack", "front", {NORMAL(R, C), NORMAL(R, C)}, {INT("axis", 0)}},
    {"stack", "end", {NORMAL(R, C), NORMAL(R, C), NORMAL(R, C)}, {INT("axis", -1)}},
    {"split", "columns", {NORMAL(R, C)}, {INT("axis", 1), LIST("sizes", 2, C - 3, 1)}, .smooth = 7},
    {"split", "rows", {NORMAL(R, C)}, {INT("axis", 0), LIST("sizes", R - 1, 1)}, .smooth = 3},

    /* ---- indexing and sorting -------------------------------------------------------------------------------------------------- */
    {"gather", "last", {NORMAL(R, C), INDEX(C, R, K)}, {INT("axis", -1)}},
    {"gather", "first", {NORMAL(R, C), INDEX(R, R + 2, C)}, {INT("axis", 0)}},
    {"gather", "fewer rows", {NORMAL(B, S, C), INDEX(S, B, K, C - 1)}, {INT("axis", 1)}},
    {"scatter_add", "last", {NORMAL(R, C), INDEX(C, R, K), NORMAL(R, K)}, {INT("axis", 1)}},
    {"scatter_add", "first", {NORMAL(R, C), INDEX(R, R + 2, C), NORMAL(R + 2, C)}, {INT("axis", 0)}},
    {"index_select", "rows", {NORMAL(R, C), INDEX(R, R + 3)}, {INT("axis", 0)}},
    {"index_select", "columns", {NORMAL(B, S, C), INDEX(C, K)}, {INT("axis", -1)}},
    {"one_hot", "vector", {INDEX(V, T)}, {INT("classes", V), INT("dtype", TARN_F32)}},
    {"one_hot", "matrix", {INDEX(C, B, S)}, {INT("classes", C), INT("dtype", TARN_I64)}},
    {"embedding", "vector", {NORMAL(V, C), INDEX(V, R)}, .bench = "embedding", .backward = 1, .moves = TARN__MOVES_ROWS},
    {"embedding", "matrix", {NORMAL(V, C), INDEX(V, B, S)}},
    {"topk", "last", {DISTINCT(R, C)}, {INT("k", 3), INT("axis", -1), ON("largest")}},
    {"topk", "first, smallest", {DISTINCT(R, C)}, {INT("k", 2), INT("axis", 0), INT("largest", 0)}},
    {"topk", "middle, all", {DISTINCT(B, S, C)}, {INT("k", S), INT("axis", 1), ON("largest")}},
    {"sort", "last", {DISTINCT(R, C)}, {INT("axis", -1)}},
    {"sort", "first, falling", {DISTINCT(R, C)}, {INT("axis", 0), ON("descending")}},
    {"sort", "middle", {DISTINCT(B, S, C)}, {INT("axis", 1)}},
    {"sort", "ties", {STEPS(R, C)}, {INT("axis", -1)}},
    {"sort", "ties, falling", {STEPS(R, C)}, {INT("axis", -1), ON("descending")}},

    /* ---- products, normalisation ----------------------------------------------------------------------------------------------- */
    {"matmul", "matrices", {NORMAL(R, K), NORMAL(K, C)}},
    {"matmul", "batches", {NORMAL(B, S, K), NORMAL(B, K, C)}},
    {"matmul", "batch and matrix", {NORMAL(B, S, K), NORMAL(K, C)}},
    {"matmul", "matrix and batch", {NORMAL(S, K), NORMAL(B, K, C)}},
    {"matmul", "broadcast batches", {NORMAL(B, 1, S, K), NORMAL(1, 2, K, C)}},
    {"matmul", "two vectors", {NORMAL(K), NORMAL(K)}},
    {"matmul", "matrix and vector", {NORMAL(R, K), NORMAL(K)}},
    {"matmul", "vector and matrix", {NORMAL(K), NORMAL(K, C)}},
    {"matmul", "vector and batch", {NORMAL(K), NORMAL(B, K, C)}},
    {"matmul", "batch and vector", {NORMAL(B, S, K), NORMAL(K)}},
    {"matmul", "one row", {NORMAL(1, K), NORMAL(K, C)}},
    {"linear", "with bias", {NORMAL(R, K), NORMAL(C, K), NORMAL(C)}},
    {"linear", "without bias", {NORMAL(R, K), NORMAL(C, K)}},
    {"linear", "batch", {NORMAL(B, S, K), NORMAL(C, K), NORMAL(C)}},
    {"linear", "vector", {NORMAL(K), NORMAL(C, K), NORMAL(C)}},
#define ALONG(name)                                                                                                                       \
    {name, "last", {NORMAL(R, C)}, {INT("axis", -1)}, .bench = name, .backward = 3}, {name, "first", {NORMAL(R, C)}, {INT("axis", 0)}},  \
        {name, "middle", {NORMAL(B, S, C)}, {INT("axis", 1)}}, {name, "of size 1", {NORMAL(R, 1)}, {INT("axis", 1)}},
    ALONG("softmax")
    ALONG("log_softmax")
    {"layernorm", "weight and bias", {NORMAL(R, C), NORMAL(C), NORMAL(C)}, {REAL("epsilon", 1e-5)}, .bench = "layernorm", .backward = 3},
    {"layernorm", "weight", {NORMAL(B, S, C), NORMAL(C)}, {REAL("epsilon", 1e-5)}},
    {"layernorm", "plain", {NORMAL(R, C)}, {REAL("epsilon", 0.1)}},
    {"layernorm", "one row", {NORMAL(C), NORMAL(C), NORMAL(C)}, {REAL("epsilon", 1e-5)}},
    {"rmsnorm", "weight", {NORMAL(R, C), NORMAL(C)}, {REAL("epsilon", 1e-5)}, .bench = "rmsnorm", .backward = 3},
    {"rmsnorm", "plain", {NORMAL(B, S, C)}, {REAL("epsilon", 0.1)}},
    {"dropout", "some", {NORMAL(R, C)}, {REAL("p", 0.3)}},
    {"dropout", "none", {NORMAL(R, C)}, {REAL("p", 0)}},

    /* ---- losses ---------------------------------------------------------------------------------------------------------------- */
    {"cross_entropy", "mean", {NORMAL(T, V), INDEX(V, T)}, .bench = "cross_entropy", .backward = 2},
    {"cross_entropy", "sum, smoothed", {NORMAL(T, V), INDEX(V, T)}, {REAL("label_smoothing", 0.2), INT("reduction", TARN_REDUCE_SUM)}},
    {"cross_entropy", "each", {NORMAL(B, S, C), INDEX(C, B, S)}, {INT("reduction", TARN_REDUCE_NONE)}},
    {"cross_entropy", "ignore", {NORMAL(T, V), INDEX(V, T)}, {INT("ignore_index", 2)}},
    {"cross_entropy", "ignore, smoothed", {NORMAL(R, C), INDEX(C, R)}, {INT("ignore_index", 1), REAL("label_smoothing", 0.1)}},
    {"cross_entropy", "ignore, each", {NORMAL(R, C), INDEX(C, R)}, {INT("ignore_index", 0), INT("reduction", TARN_REDUCE_NONE)}},
    {"mse_loss", "matrix", {NORMAL(R, C), NORMAL(R, C)}},
    {"l1_loss", "matrix", {SMOOTH(R, C), STEPS(R, C)}},
    {"huber_loss", "both parts", {SMOOTH(R, C), STEPS(R, C)}, {REAL("delta", 1)}},
    {"huber_loss", "wide", {NORMAL(R, C), NORMAL(R, C)}, {REAL("delta", 20)}},
    {"bce_with_logits_loss", "matrix", {NORMAL(R, C), UNIT(R, C)}},
};

int tarn__case_count(void)
{
    return (int)(sizeof(list) / sizeof(list[0]));
}

const tarn__case *tarn__case_at(int index)
{
    return &list[index];
}

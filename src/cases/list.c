/* list.c: the list of cases. Elementwise operations get theirs from elementwise.def, so a new row there is tested at
 * once (bytes that its backward moves: below, where they differ); operations with kinks, poles or branches have further
 * cases with suitable inputs.
 *
 * Each operation has cases for: the common shape, broadcasts, rank 0, and its special paths. A case with .bench is
 * also measured.
 *
 * Sizes in a row are letters (cases.h) wherever a dimension should grow with the scale, numbers where the operation
 * needs one. */
#include "base/kernel/row_default.h"
#include "cases/case_macros.h"

#define B TARN__B
#define S TARN__S
#define R TARN__R
#define C TARN__C
#define K TARN__K
#define T TARN__T
#define V TARN__V
#define H TARN__H
#define W TARN__W
#define U TARN__U

/* Shapes of two operands. The first is measured under the operation's name. */
#define TWO_OPERANDS(name, kind, row, moves) \
    CASE(name, "same shape", {kind(R, C), kind(R, C)}, .bench = row, .backward = moves), \
        CASE(name, "row", {kind(R, C), kind(C)}), CASE(name, "row first", {kind(C), kind(R, C)}), \
        CASE(name, "column", {kind(R, C), kind(R, 1)}), CASE(name, "column first", {kind(R, 1), kind(R, C)}), \
        CASE(name, "rank 0", {kind(R, C), RANK0(kind)}), CASE(name, "rank 0 first", {RANK0(kind), kind(R, C)}), \
        CASE(name, "both ways", {kind(R, 1), kind(1, C)}), CASE(name, "inner axis", {kind(B, S, C), kind(B, 1, C)}), \
        CASE(name, "two of rank 0", {RANK0(kind), RANK0(kind)}),

/* Bytes of backward; default 5: operands and gradient read, two gradients written. add passes its gradient on, sub one
 * of two. */
#define BACKWARD_add , 0
#define BACKWARD_sub , 2

static const tarn__case list[] = {
/* ---- element by element ------------------------------------------------------------------------------------------ */
#define UNARY(name, ...) CASE(#name, "positive", {POSITIVE(R, C)}, .bench = #name, .backward = 3),
#define BINARY(name, ...) TWO_OPERANDS(#name, POSITIVE, #name, TARN__ROW_DEFAULT(BACKWARD_##name, 5))
#define COMPARE(name, ...) TWO_OPERANDS(#name, TIES, "cmp" #name, 0)
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE

    /* both signs, rank 0, more axes */
    CASE("neg", "any", {NORMAL(R, C)}),
    CASE("abs", "any", {SMOOTH(R, C)}),
    CASE("sign", "any", {SMOOTH(R, C)}),
    CASE("square", "any", {NORMAL(B, S, C)}),
    CASE("recip", "any", {SMOOTH(R, C)}),
    CASE("exp", "any", {NORMAL(R, C)}),
    CASE("exp", "rank 0", {RANK0(NORMAL)}),
    CASE("exp2", "any", {NORMAL(R, C)}),
    CASE("sin", "any", {NORMAL(R, C)}),
    CASE("cos", "any", {NORMAL(R, C)}),
    CASE("tanh", "any", {NORMAL(B, S, H, W)}),
    CASE("erf", "any", {NORMAL(R, C)}),
    CASE("sigmoid", "any", {NORMAL(R, C)}),
    CASE("relu", "any", {SMOOTH(R, C)}),
    CASE("leaky_relu", "any", {SMOOTH(R, C)}, {REAL("slope", 0.2)}),
    CASE("gelu", "any", {NORMAL(R, C)}),
    CASE("gelu_erf", "any", {NORMAL(R, C)}),
    CASE("silu", "any", {NORMAL(R, C)}),
    CASE("softplus", "any", {NORMAL(R, C)}),
    CASE("swiglu", "any", {NORMAL(R, C), NORMAL(R, C)}, .bench = "swiglu", .backward = 5),
    CASE("swiglu", "batch", {NORMAL(B, S, C), NORMAL(B, S, C)}),
    CASE("gated", "silu", {NORMAL(R, C), NORMAL(R, C)}),
    CASE("gated", "gelu", {NORMAL(R, C), NORMAL(R, C)}, {INT("activation", TARN_GELU)}, .bench = "gated-gelu",
         .backward = 5),
    CASE("gated", "gelu_erf", {NORMAL(B, S, C), NORMAL(B, S, C)}, {INT("activation", TARN_GELU_ERF)}),
    CASE("gated", "relu", {SMOOTH(R, C), NORMAL(R, C)}, {INT("activation", TARN_RELU)}),
    CASE("clamp", "both bounds", {SMOOTH(R, C)}, {REAL("low", -0.6), REAL("high", 1.0)}),
    CASE("clamp", "below only", {SMOOTH(R, C)}, {REAL("low", 0.2)}),
    CASE("add", "any", {NORMAL(B, S, C), NORMAL(B, S, C)}),
    CASE("sub", "any", {NORMAL(B, S, C), NORMAL(S, C)}),
    CASE("mul", "any", {NORMAL(B, S, C), NORMAL(S, 1)}),
    CASE("div", "any", {NORMAL(R, C), SMOOTH(R, C)}),
    CASE("maximum", "any", {NORMAL(R, C), NORMAL(R, C)}),
    CASE("minimum", "any", {NORMAL(R, C), NORMAL(R, C)}),
    CASE("maximum", "ties", {TIES(R, C), TIES(R, C)}),
    CASE("minimum", "ties", {TIES(R, C), TIES(R, C)}),
    CASE("mod", "any", {NORMAL(R, C), SMOOTH(R, C)}),
    CASE("pow", "any", {POSITIVE(R, C), NORMAL(R, C)}),
    CASE("add", "broadcast row", {NORMAL(R, C), NORMAL(C)}, .bench = "add-broadcast-row", .backward = 1),
    CASE("mul", "broadcast column", {NORMAL(R, C), NORMAL(R, 1)}, .bench = "mul-broadcast-col", .backward = 3),
    CASE("where", "same shape", {BOOLS(R, C), NORMAL(R, C), NORMAL(R, C)}, .bench = "where", .backward = 3),
    CASE("where", "broadcast", {BOOLS(R, 1), NORMAL(C), NORMAL(R, C)}),
    CASE("where", "rank 0", {BOOLS(R, C), RANK0(NORMAL), NORMAL(R, C)}),
    CASE("where", "condition of rank 0", {RANK0(BOOLS), NORMAL(R, C), NORMAL(R, C)}),
    CASE("cast", "to f32", {NORMAL(R, C)}, {INT("dtype", TARN_F32)}, .step = 0.1),
    CASE("cast", "to another", {NORMAL(R, C)}, {INT("dtype", TARN__OTHER_DTYPE)}, .step = 0.1, .bench = "cast",
         .backward = 1.5),
    CASE("cast", "to i64", {SMOOTH(R, C)}, {INT("dtype", TARN_I64)}, .smooth = TARN__NOT_SMOOTH),
    CASE("cast", "to bool", {TIES(R, C)}, {INT("dtype", TARN_BOOL)}, .smooth = TARN__NOT_SMOOTH),

/* ---- reductions -------------------------------------------------------------------------------------------------- */
#define REDUCTION(name, kind, moves) \
    CASE(name, "last", {kind(R, C)}, {LIST("axes", -1)}, .bench = name "-last", .backward = moves), \
        CASE(name, "first", {kind(R, C)}, {LIST("axes", 0)}, .bench = name "-first", .backward = moves), \
        CASE(name, "all", {kind(R, C)}, .bench = name "-all", .backward = moves), \
        CASE(name, "all, kept", {kind(B, S, C)}, {ON("keep")}), \
        CASE(name, "middle", {kind(B, S, C)}, {LIST("axes", 1)}), \
        CASE(name, "middle, kept", {kind(B, S, C)}, {LIST("axes", -2), ON("keep")}), \
        CASE(name, "outer two", {kind(B, S, C)}, {LIST("axes", 0, 2)}), \
        CASE(name, "last two, kept", {kind(B, S, C)}, {LIST("axes", 1, 2), ON("keep")}), \
        CASE(name, "rank 0", {RANK0(kind)}), CASE(name, "of size 1", {kind(R, 1)}, {LIST("axes", 1)}),
    REDUCTION("sum", NORMAL, 1) REDUCTION("mean", NORMAL, 1) REDUCTION("prod", POSITIVE, 2)
        REDUCTION("max", DISTINCT, 2) REDUCTION("min", DISTINCT, 2)
            CASE("max", "ties", {TIES(R, C)}, {LIST("axes", 1)}),
    CASE("min", "ties", {TIES(R, C)}, {LIST("axes", 0)}),
    CASE("prod", "with zeros", {TIES(R, C)}, {LIST("axes", 1)}),
    CASE("var", "last", {NORMAL(R, C)}, {LIST("axes", -1), REAL("correction", 1)}, .bench = "var-last", .backward = 2),
    CASE("var", "first, biased", {NORMAL(R, C)}, {LIST("axes", 0), REAL("correction", 0)}),
    CASE("var", "all", {NORMAL(B, S, C)}, {REAL("correction", 1)}),
    CASE("var", "middle, kept", {NORMAL(B, S, C)}, {LIST("axes", 1), REAL("correction", 1), ON("keep")}),
    CASE("var", "outer two", {NORMAL(B, S, C)}, {LIST("axes", 0, 2), REAL("correction", 0)}),
    CASE("argmax", "last", {DISTINCT(R, C)}, {INT("axis", -1)}, .bench = "argmax-last"),
    CASE("argmax", "first", {DISTINCT(R, C)}, {INT("axis", 0)}),
    CASE("argmax", "ties, kept", {TIES(B, S, C)}, {INT("axis", 1), ON("keep")}),
    CASE("argmin", "last", {DISTINCT(R, C)}, {INT("axis", -1)}),
    CASE("argmin", "first", {DISTINCT(R, C)}, {INT("axis", 0)}),
    CASE("argmin", "ties, kept", {TIES(B, S, C)}, {INT("axis", 2), ON("keep")}),
    CASE("cumsum", "last", {NORMAL(R, C)}, {INT("axis", -1)}, .bench = "cumsum-last", .backward = 2),
    CASE("cumsum", "first", {NORMAL(R, C)}, {INT("axis", 0)}),
    CASE("cumsum", "middle", {NORMAL(B, S, C)}, {INT("axis", 1)}),

    /* ---- movement
       -------------------------------------------------------------------------------------------------------------- */
    CASE("reshape", "split", {NORMAL(R, C)}, {LIST("shape", R, 1, C)}),
    CASE("reshape", "flat", {NORMAL(B, S, C)}, {LIST("shape", -1)}),
    CASE("reshape", "worked out", {NORMAL(B, S, C)}, {LIST("shape", C, -1)}),
    CASE("permute", "turned", {NORMAL(B, S, C)}, {LIST("axes", 2, 0, 1)}),
    CASE("permute", "copied", {NORMAL(B, S, C)}, {LIST("axes", 0, 2, 1)}, .copied = true, .bench = "permute-copy",
         .backward = 2),
    CASE("permute", "reversed, copied", {NORMAL(B, S, H, W)}, {LIST("axes", -1, -2, -3, -4)}, .copied = true),
    CASE("transpose", "matrix", {NORMAL(R, C)}, {INT("a", 0), INT("b", 1)}),
    CASE("transpose", "outer axes, copied", {NORMAL(B, S, C)}, {INT("a", 0), INT("b", -1)}, .copied = true),
    CASE("expand", "column", {NORMAL(R, 1)}, {LIST("shape", R, C)}),
    CASE("expand", "new axis, copied", {NORMAL(1, S, C)}, {LIST("shape", B, S, C)}, .copied = true,
         .bench = "expand-copy", .backward = 1),
    CASE("expand", "rank 0", {RANK0(NORMAL)}, {LIST("shape", R, C)}),
    CASE("unsqueeze", "front", {NORMAL(R, C)}, {INT("axis", 0)}),
    CASE("unsqueeze", "end", {NORMAL(R, C)}, {INT("axis", -1)}),
    CASE("squeeze", "middle", {NORMAL(R, 1, C)}, {INT("axis", 1)}),
    CASE("squeeze", "end", {NORMAL(R, C, 1)}, {INT("axis", -1)}),
    CASE("pad", "image", {NORMAL(B, S, H, W)}, {LIST("before", 0, 0, 1, 1), LIST("after", 0, 0, 1, 1)}, .bench = "pad",
         .backward = 2),
    CASE("pad", "one side, with a value", {NORMAL(R, C)},
         {LIST("before", 2, 0), LIST("after", 0, 3), REAL("value", 1.5)}),
    CASE("shrink", "inside", {NORMAL(R, C)}, {LIST("begin", 1, 0), LIST("end", R - 1, C - 2)}),
    CASE("shrink", "copied", {NORMAL(B, S, H, W)}, {LIST("begin", 0, 0, 1, 1), LIST("end", B, S, H - 1, W - 1)},
         .copied = true, .bench = "shrink-copy", .backward = 2),
    CASE("slice", "rows", {NORMAL(R, C)}, {INT("axis", 0), INT("begin", 2), INT("end", R - 1)}),
    CASE("slice", "columns", {NORMAL(B, S, C)}, {INT("axis", -1), INT("begin", 1), INT("end", C)}),
    CASE("stride", "both axes", {NORMAL(R, C)}, {LIST("steps", 2, 3)}),
    CASE("stride", "copied", {NORMAL(B, S, H, W)}, {LIST("steps", 1, 1, 2, 2)}, .copied = true, .bench = "stride-copy",
         .forward = 0.75, .backward = 1.25),
    CASE("flip", "one axis", {NORMAL(R, C)}, {LIST("axes", 0)}),
    CASE("flip", "last axis, copied", {NORMAL(B, S, H, W)}, {LIST("axes", -1)}, .copied = true, .bench = "flip",
         .backward = 2),
    CASE("flip", "two axes", {NORMAL(B, S, C)}, {LIST("axes", 0, 2)}),
    CASE("contiguous", "matrix", {NORMAL(R, C)}),
    CASE("clone", "matrix", {NORMAL(R, C)}, .bench = "clone"),
    CASE("concat", "columns", {NORMAL(R, C), NORMAL(R, K)}, {INT("axis", 1)}),
    CASE("concat", "channels", {NORMAL(B, S, H, W), NORMAL(B, S, H, W)}, {INT("axis", 1)}, .bench = "concat",
         .backward = 4),
    CASE("concat", "three, last axis", {NORMAL(R, 1), NORMAL(R, C), NORMAL(R, 2)}, {INT("axis", -1)}),
    CASE("concat", "one", {NORMAL(R, C)}, {INT("axis", 0)}),
    CASE("stack", "front", {NORMAL(R, C), NORMAL(R, C)}, {INT("axis", 0)}),
    CASE("stack", "end", {NORMAL(R, C), NORMAL(R, C), NORMAL(R, C)}, {INT("axis", -1)}),
    CASE("split", "columns", {NORMAL(R, C)}, {INT("axis", 1), LIST("sizes", 2, C - 3, 1)}, .smooth = 7),
    CASE("split", "rows", {NORMAL(R, C)}, {INT("axis", 0), LIST("sizes", R - 1, 1)}, .smooth = 3),

    /* ---- indexing and sorting
       -------------------------------------------------------------------------------------------------- */
    CASE("gather", "last", {NORMAL(R, C), INDEX(C, R, K)}, {INT("axis", -1)}),
    CASE("gather", "first", {NORMAL(R, C), INDEX(R, R + 2, C)}, {INT("axis", 0)}),
    CASE("gather", "fewer rows", {NORMAL(B, S, C), INDEX(S, B, K, C - 1)}, {INT("axis", 1)}),
    CASE("scatter_add", "last", {NORMAL(R, C), INDEX(C, R, K), NORMAL(R, K)}, {INT("axis", 1)}),
    CASE("scatter_add", "first", {NORMAL(R, C), INDEX(R, R + 2, C), NORMAL(R + 2, C)}, {INT("axis", 0)}),
    CASE("index_select", "rows", {NORMAL(R, C), INDEX(R, R + 3)}, {INT("axis", 0)}),
    CASE("index_select", "columns", {NORMAL(B, S, C), INDEX(C, K)}, {INT("axis", -1)}),
    CASE("one_hot", "vector", {INDEX(V, T)}, {INT("classes", V), INT("dtype", TARN_F32)}),
    CASE("one_hot", "matrix", {INDEX(C, B, S)}, {INT("classes", C), INT("dtype", TARN_I64)}),
    CASE("embedding", "vector", {NORMAL(V, C), INDEX(V, R)}),
    CASE("embedding", "words", {NORMAL(V, C), ZIPF(U, R)}, .bench = "embedding", .backward = 1,
         .moves = TARN__MOVES_ROWS),
    CASE("embedding", "matrix", {NORMAL(V, C), INDEX(V, B, S)}),
    CASE("topk", "last", {DISTINCT(R, C)}, {INT("k", 3), INT("axis", -1), ON("largest")}),
    CASE("topk", "first, smallest", {DISTINCT(R, C)}, {INT("k", 2), INT("axis", 0), INT("largest", 0)}),
    CASE("topk", "middle, all", {DISTINCT(B, S, C)}, {INT("k", S), INT("axis", 1), ON("largest")}),
    CASE("sort", "last", {DISTINCT(R, C)}, {INT("axis", -1)}),
    CASE("sort", "first, falling", {DISTINCT(R, C)}, {INT("axis", 0), ON("descending")}),
    CASE("sort", "middle", {DISTINCT(B, S, C)}, {INT("axis", 1)}),
    CASE("sort", "ties", {TIES(R, C)}, {INT("axis", -1)}),
    CASE("sort", "ties, falling", {TIES(R, C)}, {INT("axis", -1), ON("descending")}),

    /* ---- products, normalisation
       ----------------------------------------------------------------------------------------------- */
    CASE("matmul", "matrices", {NORMAL(R, K), NORMAL(K, C)}, .bench = "matmul", .backward = 3),
    CASE("matmul", "batches", {NORMAL(B, S, K), NORMAL(B, K, C)}, .bench = "matmul-batched", .backward = 3),
    CASE("matmul", "batch and matrix", {NORMAL(B, S, K), NORMAL(K, C)}, .bench = "matmul-3d-2d", .backward = 3),
    CASE("matmul", "matrix and batch", {NORMAL(S, K), NORMAL(B, K, C)}),
    CASE("matmul", "broadcast batches", {NORMAL(B, 1, S, K), NORMAL(1, 2, K, C)}),
    CASE("matmul", "two vectors", {NORMAL(K), NORMAL(K)}),
    CASE("matmul", "matrix and vector", {NORMAL(R, K), NORMAL(K)}),
    CASE("matmul", "vector and matrix", {NORMAL(K), NORMAL(K, C)}),
    CASE("matmul", "vector and batch", {NORMAL(K), NORMAL(B, K, C)}),
    CASE("matmul", "batch and vector", {NORMAL(B, S, K), NORMAL(K)}),
    CASE("matmul", "one row", {NORMAL(1, K), NORMAL(K, C)}),
    CASE("linear", "with bias", {NORMAL(R, K), NORMAL(C, K), NORMAL(C)}, .bench = "linear", .backward = 3),
    CASE("linear", "without bias", {NORMAL(R, K), NORMAL(C, K)}),
    CASE("linear", "batch", {NORMAL(B, S, K), NORMAL(C, K), NORMAL(C)}),
    CASE("mlp", "with biases", {NORMAL(R, K), NORMAL(C, K), NORMAL(K, C), NORMAL(C), NORMAL(K)}, .chain = true),
    CASE("mlp", "without", {NORMAL(R, K), NORMAL(C, K), NORMAL(K, C)}, .chain = true),
    CASE("mlp", "batch", {NORMAL(B, S, K), NORMAL(C, K), NORMAL(T, C), NORMAL(C), NORMAL(T)}, .chain = true),
    CASE("mlp", "vector", {NORMAL(K), NORMAL(C, K), NORMAL(T, C), NORMAL(C)}, .chain = true),
    CASE("mlp", "gelu_erf", {NORMAL(R, K), NORMAL(C, K), NORMAL(K, C), NORMAL(C), NORMAL(K)},
         {INT("activation", TARN_GELU_ERF)}, .chain = true),
    CASE("mlp", "silu", {NORMAL(R, K), NORMAL(C, K), NORMAL(K, C), NORMAL(C), NORMAL(K)},
         {INT("activation", TARN_SILU)}, .chain = true),
    CASE("linear", "vector", {NORMAL(K), NORMAL(C, K), NORMAL(C)}),

    /* images */
    CASE("conv2d", "padded", {NORMAL(S, B, H, W), NORMAL(B, B, 3, 3), NORMAL(B)}, {LIST("padding", 1, 1)},
         .bench = "conv2d", .backward = 4),
    CASE("conv2d", "channels last", {CHANNELS_LAST(NORMAL, S, B, H, W), NORMAL(B, B, 3, 3), NORMAL(B)},
         {LIST("padding", 1, 1)}, .bench = "conv2d-nhwc", .backward = 4),
    CASE("conv2d", "no bias", {NORMAL(B, 3, H, W), NORMAL(5, 3, 3, 2)}),
    CASE("conv2d", "one channel, many outputs", {NORMAL(B, 1, H, W), NORMAL(20, 1, 3, 3), NORMAL(20)}),
    CASE("conv2d", "strides", {NORMAL(B, 3, H, W), NORMAL(9, 3, 3, 3), NORMAL(9)},
         {LIST("stride", 2, 1), LIST("padding", 1, 2)}),
    CASE("conv2d", "stride beyond the kernel", {NORMAL(B, S, H, W), NORMAL(4, S, 1, 2)}, {LIST("stride", 3, 2)}),
    CASE("conv2d", "dilation", {NORMAL(B, 2, H, W), NORMAL(3, 2, 3, 2), NORMAL(3)},
         {LIST("dilation", 2, 3), LIST("padding", 2, 1), LIST("stride", 1, 2)}),
    CASE("conv2d", "groups", {NORMAL(B, 6, H, W), NORMAL(9, 2, 3, 3), NORMAL(9)},
         {INT("groups", 3), LIST("padding", 1, 0)}),
    CASE("conv2d", "depthwise", {NORMAL(B, S, H, W), NORMAL(S, 1, 3, 3), NORMAL(S)},
         {INT("groups", S), LIST("padding", 1, 1)}),
    CASE("conv2d", "depthwise, channels last", {CHANNELS_LAST(NORMAL, B, S, H, W), NORMAL(S, 1, 3, 3)},
         {INT("groups", S), LIST("padding", 1, 1), LIST("stride", 2, 2)}),
    CASE("conv2d", "1 by 1", {NORMAL(B, S, H, W), NORMAL(K, S, 1, 1), NORMAL(K)}),
    CASE("conv2d", "1 by 1, stride 2", {CHANNELS_LAST(NORMAL, B, S, H, W), NORMAL(K, S, 1, 1)}, {LIST("stride", 2, 2)}),
    CASE("conv2d", "whole image", {NORMAL(B, 3, 4, 5), NORMAL(K, 3, 4, 5), NORMAL(K)}),
    CASE("conv2d", "much padding", {NORMAL(B, 2, 3, 2), NORMAL(3, 2, 2, 2), NORMAL(3)},
         {LIST("padding", 4, 3), LIST("stride", 3, 2)}),
    CASE("conv_transpose2d", "doubled", {NORMAL(B, S, H, W), NORMAL(S, 4, 2, 2), NORMAL(4)}, {LIST("stride", 2, 2)}),
    CASE("conv_transpose2d", "channels last", {CHANNELS_LAST(NORMAL, B, S, H, W), NORMAL(S, 3, 3, 3), NORMAL(3)},
         {LIST("stride", 2, 1), LIST("padding", 1, 1), LIST("output_padding", 1, 0)}),
    CASE("conv_transpose2d", "no bias", {NORMAL(B, 3, H, W), NORMAL(3, 5, 3, 2)}),
    CASE("conv_transpose2d", "dilation", {NORMAL(B, 2, H, W), NORMAL(2, 3, 3, 2), NORMAL(3)},
         {LIST("dilation", 2, 3), LIST("padding", 2, 1), LIST("stride", 1, 2)}),
    CASE("conv_transpose2d", "groups", {NORMAL(B, 6, H, W), NORMAL(6, 2, 3, 3), NORMAL(6)},
         {INT("groups", 3), LIST("padding", 1, 0), LIST("stride", 2, 2)}),
    CASE("conv1d", "padded", {NORMAL(B, S, C), NORMAL(4, S, 3), NORMAL(4)}, {INT("padding", 1)}),
    CASE("conv1d", "strides, dilation, groups", {NORMAL(B, 6, C), NORMAL(4, 3, 2)},
         {INT("stride", 2), INT("dilation", 2), INT("groups", 2)}),
    CASE("max_pool2d", "halves", {DISTINCT(B, S, H, W)}, {LIST("kernel", 2, 2)}, .bench = "max_pool2d", .forward = 1.25,
         .backward = 1.25),
    CASE("max_pool2d", "channels last", {CHANNELS_LAST(DISTINCT, B, S, H, W)}, {LIST("kernel", 2, 2)}),
    CASE("max_pool2d", "overlapping", {DISTINCT(B, S, H, W)},
         {LIST("kernel", 3, 3), LIST("stride", 2, 2), LIST("padding", 1, 1)}),
    CASE("max_pool2d", "overlapping, channels last", {CHANNELS_LAST(DISTINCT, B, S, H, W)},
         {LIST("kernel", 3, 2), LIST("stride", 1, 2), LIST("padding", 1, 1), ON("ceil_mode")}),
    CASE("max_pool2d", "dilation", {DISTINCT(B, S, H, W)},
         {LIST("kernel", 2, 2), LIST("stride", 1, 1), LIST("dilation", 3, 2)}),
    CASE("max_pool2d", "ties", {TIES(B, S, H, W)}, {LIST("kernel", 3, 3), LIST("stride", 2, 2), ON("ceil_mode")}),
    CASE("avg_pool2d", "halves", {NORMAL(B, S, H, W)}, {LIST("kernel", 2, 2)}, .bench = "avg_pool2d", .forward = 1.25,
         .backward = 1.25),
    CASE("avg_pool2d", "channels last", {CHANNELS_LAST(NORMAL, B, S, H, W)}, {LIST("kernel", 2, 2)}),
    CASE("avg_pool2d", "padding counted", {NORMAL(B, S, H, W)},
         {LIST("kernel", 3, 3), LIST("stride", 2, 2), LIST("padding", 1, 1), ON("ceil_mode")}),
    CASE("avg_pool2d", "padding excluded", {NORMAL(B, S, H, W)},
         {LIST("kernel", 3, 2), LIST("stride", 2, 1), LIST("padding", 1, 1), ON("exclude_padding")}),
    CASE("avg_pool2d", "overlapping, channels last", {CHANNELS_LAST(NORMAL, B, S, H, W)},
         {LIST("kernel", 3, 3), LIST("stride", 1, 1), LIST("padding", 1, 1), ON("exclude_padding")}),
    CASE("global_avg_pool2d", "images", {NORMAL(B, S, H, W)}),
    CASE("global_avg_pool2d", "channels last", {CHANNELS_LAST(NORMAL, B, S, H, W)}),
    CASE("upsample", "doubled", {NORMAL(B, S, H, W)}, {REAL("scale_rows", 2), REAL("scale_columns", 2)}),
    CASE("upsample", "tripled rows, channels last", {CHANNELS_LAST(NORMAL, B, S, H, W)}, {LIST("size", 3 * 5, 11)}),
    CASE("upsample", "nearest, fractional", {NORMAL(B, S, H, W)},
         {REAL("scale_rows", 1.7), REAL("scale_columns", 0.6)}),
    CASE("upsample", "bilinear", {NORMAL(B, S, H, W)},
         {REAL("scale_rows", 2), REAL("scale_columns", 2), INT("mode", TARN_UPSAMPLE_BILINEAR)}),
    CASE("upsample", "bilinear, fractional, channels last", {CHANNELS_LAST(NORMAL, B, S, H, W)},
         {REAL("scale_rows", 1.3), REAL("scale_columns", 2.4), INT("mode", TARN_UPSAMPLE_BILINEAR)}),
    CASE("upsample", "bilinear, corners", {NORMAL(B, S, H, W)},
         {LIST("size", 7, 3), INT("mode", TARN_UPSAMPLE_BILINEAR), ON("align_corners")}),
#define ALONG(name) \
    CASE(name, "last", {NORMAL(R, C)}, {INT("axis", -1)}, .bench = name, .backward = 3), \
        CASE(name, "first", {NORMAL(R, C)}, {INT("axis", 0)}), \
        CASE(name, "middle", {NORMAL(B, S, C)}, {INT("axis", 1)}), \
        CASE(name, "of size 1", {NORMAL(R, 1)}, {INT("axis", 1)}),
    ALONG("softmax") ALONG("log_softmax") CASE("layernorm", "weight and bias", {NORMAL(R, C), NORMAL(C), NORMAL(C)},
                                               {REAL("epsilon", 1e-5)}, .bench = "layernorm", .backward = 3),
    CASE("layernorm", "weight", {NORMAL(B, S, C), NORMAL(C)}, {REAL("epsilon", 1e-5)}),
    CASE("layernorm", "plain", {NORMAL(R, C)}, {REAL("epsilon", 0.1)}),
    CASE("layernorm", "one row", {NORMAL(C), NORMAL(C), NORMAL(C)}, {REAL("epsilon", 1e-5)}),
    CASE("rmsnorm", "weight", {NORMAL(R, C), NORMAL(C)}, {REAL("epsilon", 1e-5)}, .bench = "rmsnorm", .backward = 3),
    CASE("rmsnorm", "plain", {NORMAL(B, S, C)}, {REAL("epsilon", 0.1)}),
    CASE("rmsnorm", "offset", {NORMAL(R, C), NORMAL(C)}, {REAL("epsilon", 1e-6), REAL("offset", 1)}),
    CASE("rmsnorm", "offset, long rows", {NORMAL(3, 2048), NORMAL(2048)}, {REAL("offset", 1)}),
    CASE("residual_norm", "weight and bias", {NORMAL(R, C), NORMAL(R, C), NORMAL(C), NORMAL(C)}, .smooth = 3,
         .bench = "residual_norm", .forward = 4, .backward = 3),
    CASE("residual_norm", "weight", {NORMAL(B, S, C), NORMAL(B, S, C), NORMAL(C)}, {REAL("epsilon", 0.1)}, .smooth = 3),
    CASE("residual_norm", "rms", {NORMAL(R, C), NORMAL(R, C), NORMAL(C)}, {ON("rms")}, .smooth = 3),
    CASE("residual_norm", "rms, offset", {NORMAL(R, C), NORMAL(R, C), NORMAL(C)}, {ON("rms"), REAL("offset", 1)},
         .smooth = 3),
    CASE("residual_norm", "the norm alone, plain", {NORMAL(R, C), NORMAL(R, C)}),
    CASE("residual_norm", "the sum alone", {NORMAL(R, C), NORMAL(R, C)}, {ON("rms")}, .smooth = 2),

    /* attention: [B, heads, T, D] */
    CASE("attention", "heads", {NORMAL(B, 4, S, 64), NORMAL(B, 4, S, 64), NORMAL(B, 4, S, 64)}, .bench = "attention",
         .backward = 8),
    CASE("attention", "causal", {NORMAL(B, 2, T, K), NORMAL(B, 2, T, K), NORMAL(B, 2, T, K)}, {ON("causal")}),
    CASE("attention", "causal, measured", {NORMAL(B, 4, S, 64), NORMAL(B, 4, S, 64), NORMAL(B, 4, S, 64)},
         {ON("causal")}, .bench = "attention-causal", .backward = 8),
    CASE("attention", "grouped, scaled", {NORMAL(B, 6, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K)},
         {REAL("scale", 0.3)}),
    CASE("attention", "more keys, causal", {NORMAL(B, 2, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K)},
         {ON("causal")}),
    CASE("attention", "more rows, causal", {NORMAL(B, 2, R, K), NORMAL(B, 1, S, K), NORMAL(B, 1, S, K)},
         {ON("causal")}),
    CASE("attention", "lengths", {NORMAL(B, 2, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K), INDEX(R, B)}),
    CASE("attention", "lengths, causal", {NORMAL(B, 4, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K), INDEX(R, B)},
         {ON("causal")}),
    CASE("attention", "one row, one length", {NORMAL(B, 2, 1, K), NORMAL(B, 1, T, K), NORMAL(B, 1, T, K), INDEX(T, 1)},
         {ON("causal")}),
    CASE("attention", "few heads", {NORMAL(1, 4, T, K), NORMAL(1, 2, T, K), NORMAL(1, 2, T, K)}, {ON("causal")}),
    CASE("attention", "dropout", {NORMAL(B, 2, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K)},
         {ON("causal"), REAL("dropout", 0.3)}),
    CASE("attention", "window", {NORMAL(B, 4, T, K), NORMAL(B, 2, T, K), NORMAL(B, 2, T, K)},
         {ON("causal"), INT("window", 3)}),
    CASE("attention", "window, measured", {NORMAL(B, 4, S, 64), NORMAL(B, 4, S, 64), NORMAL(B, 4, S, 64)},
         {ON("causal"), INT("window", 256)}, .bench = "attention-window", .backward = 8),
    CASE("attention", "window, more keys, lengths",
         {NORMAL(B, 2, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K), INDEX(R, B)}, {ON("causal"), INT("window", 2)}),
    CASE("attention", "window, dropout", {NORMAL(B, 2, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K)},
         {ON("causal"), INT("window", 2), REAL("dropout", 0.3)}),
    CASE("attention", "soft cap", {NORMAL(B, 4, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K)}, {REAL("softcap", 1.5)}),
    CASE("attention", "soft cap, window, lengths",
         {NORMAL(B, 4, S, K), NORMAL(B, 2, R, K), NORMAL(B, 2, R, K), INDEX(R, B)},
         {ON("causal"), INT("window", 3), REAL("softcap", 2), REAL("scale", 0.8)}),
    CASE("attention", "head_dim 256, window, soft cap",
         {NORMAL(1, 4, T, 256), NORMAL(1, 2, T, 256), NORMAL(1, 2, T, 256)},
         {ON("causal"), INT("window", 4), REAL("softcap", 3)}),
    CASE("attention_packed", "window, soft cap", {NORMAL(B, S, 24)},
         {INT("heads", 4), INT("kv_heads", 2), ON("causal"), INT("window", 2), REAL("softcap", 2)}),
    CASE("attention_packed", "heads", {NORMAL(B, S, 768)}, {INT("heads", 4)}, .bench = "attention_packed",
         .backward = 3),
    CASE("attention_packed", "grouped, causal", {NORMAL(B, S, 24)},
         {INT("heads", 4), INT("kv_heads", 2), ON("causal")}),
    CASE("attention_packed", "lengths", {NORMAL(B, S, 30), INDEX(S, B)},
         {INT("heads", 2), ON("causal"), REAL("scale", 0.7)}),
    CASE("attention_packed", "dropout", {NORMAL(B, S, 24)}, {INT("heads", 2), REAL("dropout", 0.2)}),
    /* attention_paged: q [tokens, heads, D], pages [pages, 64, heads, D], table, row starts, lengths */
    CASE("attention_paged", "decode rows",
         {NORMAL(B, 4, 64), NORMAL(16, 64, 4, 64), NORMAL(16, 64, 4, 64), INDEX(16, B, 4), STEPS(1, B + 1),
          INDEX(256, B)}),
    CASE("attention_paged", "chunks, grouped, scaled",
         {NORMAL(9, 6, K), NORMAL(3, 64, 2, K), NORMAL(3, 64, 2, K), INDEX(3, 3, 2), STEPS(3, 4), INDEX(128, 3)},
         {REAL("scale", 0.3)}),
    CASE("attention_paged", "window, soft cap, rows of no sequence",
         {NORMAL(11, 4, 40), NORMAL(3, 64, 2, 40), NORMAL(3, 64, 2, 40), INDEX(3, 2, 3), STEPS(4, 3), INDEX(192, 2)},
         {INT("window", 70), REAL("softcap", 2)}),
    CASE("rope", "all", {NORMAL(B, S, 4, 64)}, .bench = "rope", .backward = 2),
    CASE("rope", "interleaved, some", {NORMAL(B, S, 2, 10)}, {ON("interleaved"), INT("dims", 6), REAL("base", 500)}),
    CASE("rope", "positions", {NORMAL(B, S, 2, 8), INDEX(C, S)}, {INT("scaling", TARN_ROPE_LINEAR), REAL("factor", 3)}),
    CASE("rope", "heads first, positions of each", {NORMAL(B, 3, S, 32), INDEX(V, B, S)},
         {INT("axis", 2), INT("scaling", TARN_ROPE_LLAMA3), INT("original", 64), REAL("base", 500000)}),
    CASE("rope", "dynamic", {NORMAL(B, S, 2, 16), INDEX(V, S)},
         {INT("scaling", TARN_ROPE_DYNAMIC), REAL("factor", 2), INT("original_context", 4), INT("length", 30)}),
    CASE("rope", "yarn", {NORMAL(B, S, 2, 32), INDEX(V, S)},
         {INT("scaling", TARN_ROPE_YARN), REAL("factor", 4), INT("original_context", 64), REAL("base", 100)}),
    CASE("rope", "attention factor, interleaved, some", {NORMAL(B, S, 2, 10), INDEX(V, B, S)},
         {ON("interleaved"), INT("dims", 6), REAL("attention_factor", 1.25)}),
    CASE("batchnorm", "training", {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S)}, {ON("training")}, .bench = "batchnorm",
         .forward = 3, .backward = 5),
    CASE("batchnorm", "training, plain", {NORMAL(B, S, C)}, {ON("training"), REAL("epsilon", 0.1)}),
    CASE("batchnorm", "training, matrix", {NORMAL(R, C), NORMAL(C)}, {ON("training")}),
    CASE("batchnorm", "running statistics", {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S), NORMAL(S), POSITIVE(S)},
         {REAL("epsilon", 0.1)}, .fixed = 24, .bench = "batchnorm-running", .forward = 2, .backward = 3),
    CASE("batchnorm", "running statistics, matrix", {NORMAL(R, C), NORMAL(C), NORMAL(C), NORMAL(C), POSITIVE(C)},
         .fixed = 24),
    CASE("batchnorm_relu", "training", {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S)}, {ON("training")},
         .bench = "batchnorm_relu", .forward = 3, .backward = 5),
    CASE("batchnorm_relu", "training, residual", {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S), NORMAL(B, S, H, W)},
         {ON("training"), ON("residual")}, .bench = "batchnorm_relu-residual", .forward = 4, .backward = 7),
    CASE("batchnorm_relu", "training, plain", {NORMAL(B, S, C)}, {ON("training"), REAL("epsilon", 0.1)}),
    CASE("batchnorm_relu", "training, matrix, residual", {NORMAL(R, C), NORMAL(R, C)},
         {ON("training"), ON("residual")}),
    CASE("batchnorm_relu", "running statistics", {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S), NORMAL(S), POSITIVE(S)},
         {REAL("epsilon", 0.1)}, .fixed = 24),
    CASE("batchnorm_relu", "running statistics, residual",
         {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S), NORMAL(S), POSITIVE(S), NORMAL(B, S, H, W)},
         {REAL("epsilon", 0.1), ON("residual")}, .fixed = 24),
    CASE("groupnorm", "groups", {NORMAL(B, 8, H, W), NORMAL(8), NORMAL(8)}, {INT("groups", 4)}),
    CASE("groupnorm", "one group", {NORMAL(B, S, H, W), NORMAL(S), NORMAL(S)}, {INT("groups", 1)}, .bench = "groupnorm",
         .forward = 3, .backward = 5),
    CASE("groupnorm", "one group, plain", {NORMAL(B, S, C)}, {INT("groups", 1), REAL("epsilon", 0.1)}),
    CASE("groupnorm", "each channel", {NORMAL(B, S, H, W), NORMAL(S)}, {INT("groups", S)}),
    CASE("groupnorm", "matrix", {NORMAL(R, 6), NORMAL(6), NORMAL(6)}, {INT("groups", 2)}),
    CASE("dropout", "some", {NORMAL(R, C)}, {REAL("p", 0.3)}),
    CASE("dropout", "none", {NORMAL(R, C)}, {REAL("p", 0)}),

    /* ---- losses
       ----------------------------------------------------------------------------------------------------------------
     */
    CASE("cross_entropy", "mean", {NORMAL(T, V), INDEX(U, T)}, .bench = "cross_entropy", .backward = 2),
    CASE("cross_entropy", "sum, smoothed", {NORMAL(T, V), INDEX(V, T)},
         {REAL("label_smoothing", 0.2), INT("reduction", TARN_REDUCE_SUM)}),
    CASE("cross_entropy", "each", {NORMAL(B, S, C), INDEX(C, B, S)}, {INT("reduction", TARN_REDUCE_NONE)}),
    CASE("cross_entropy", "ignore", {NORMAL(T, V), INDEX(V, T)}, {INT("ignore_index", 2)}),
    CASE("cross_entropy", "ignore, smoothed", {NORMAL(R, C), INDEX(C, R)},
         {INT("ignore_index", 1), REAL("label_smoothing", 0.1)}),
    CASE("cross_entropy", "ignore, each", {NORMAL(R, C), INDEX(C, R)},
         {INT("ignore_index", 0), INT("reduction", TARN_REDUCE_NONE)}),
    CASE("cross_entropy", "soft cap", {NORMAL(T, V), INDEX(V, T)}, {REAL("softcap", 1.5), INT("ignore_index", 2)}),
    /* rows of the weight are distinct: otherwise the gradient would cancel */
    CASE("linear_cross_entropy", "mean", {NORMAL(T, K), DISTINCT(V, K), INDEX(U, T)}, .chain = true,
         .bench = "linear_cross_entropy", .backward = 2),
    CASE("linear_cross_entropy", "sum, smoothed", {NORMAL(R, K), DISTINCT(C, K), INDEX(C, R)},
         {REAL("label_smoothing", 0.2), INT("reduction", TARN_REDUCE_SUM)}, .chain = true),
    CASE("linear_cross_entropy", "each", {NORMAL(B, S, K), DISTINCT(C, K), INDEX(C, B, S)},
         {INT("reduction", TARN_REDUCE_NONE)}, .chain = true),
    CASE("linear_cross_entropy", "ignore", {NORMAL(B, S, K), DISTINCT(C, K), INDEX(C, B, S)}, {INT("ignore_index", 2)},
         .chain = true),
    CASE("linear_cross_entropy", "soft cap", {NORMAL(T, K), DISTINCT(V, K), INDEX(U, T)},
         {REAL("softcap", 1.5), REAL("label_smoothing", 0.1)}, .chain = true),
    CASE("linear_cross_entropy", "soft cap, each", {NORMAL(B, S, K), DISTINCT(C, K), INDEX(C, B, S)},
         {REAL("softcap", 4), INT("reduction", TARN_REDUCE_NONE)}, .chain = true),
    CASE("mse_loss", "matrix", {NORMAL(R, C), NORMAL(R, C)}),
    CASE("l1_loss", "matrix", {SMOOTH(R, C), TIES(R, C)}),
    CASE("l1_loss", "both", {NORMAL(R, C), NORMAL(R, C)}),
    CASE("huber_loss", "both parts", {SMOOTH(R, C), TIES(R, C)}, {REAL("delta", 1)}),
    CASE("huber_loss", "wide", {NORMAL(R, C), NORMAL(R, C)}, {REAL("delta", 20)}),
    CASE("bce_with_logits_loss", "matrix", {NORMAL(R, C), UNIT(R, C)}),
};

int tarn__case_count(void)
{
    return (int)(sizeof(list) / sizeof(list[0]));
}

const tarn__case *tarn__case_at(int index)
{
    return &list[index];
}

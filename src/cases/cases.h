/* cases.h: one list of operation cases, for the tests (values, gradients, layouts, threads, kernels) and for `tarn
 * bench ops`.
 *
 * A case is an operation, its attributes and its inputs. Sizes are written with letters, R rows of C columns and so
 * on, so that one row of the list serves at every scale: a few elements where a gradient is checked, millions where
 * time is measured. */
#ifndef TARN__CASES_H
#define TARN__CASES_H

#include <tarn/ops.h>

/* Symbolic sizes. A small offset may be added: TARN__C - 1. Numbers well below TARN__LETTER are literal sizes. */
#define TARN__LETTER ((int64_t)1 << 20)
enum { TARN__LETTERS = 11 };
#define TARN__B (1 * TARN__LETTER)  /* batch */
#define TARN__S (2 * TARN__LETTER)  /* sequence length; at benchmark scales B · S = R */
#define TARN__R (3 * TARN__LETTER)  /* rows */
#define TARN__C (4 * TARN__LETTER)  /* columns */
#define TARN__K (5 * TARN__LETTER)  /* inner size of a matmul */
#define TARN__T (6 * TARN__LETTER)  /* tokens; T · V is about R · C */
#define TARN__V (7 * TARN__LETTER)  /* vocabulary */
#define TARN__H (8 * TARN__LETTER)  /* height; H · W is about C */
#define TARN__W (9 * TARN__LETTER)  /* width */
#define TARN__U (10 * TARN__LETTER) /* tokens of the vocabulary in use: V, or fewer where V is padded */

/* The size of each letter; [0] is unused. */
typedef struct tarn__scale {
    int64_t size[TARN__LETTERS];
} tarn__scale;

/* Scales: a few elements, every letter a different size; large enough for several chunks, with odd sizes; a given
 * number of elements R · C; R rows of 1024, with matmuls of R × 1024 by 1024 × 1024. */
tarn__scale tarn__scale_small(void);
tarn__scale tarn__scale_chunked(void);
tarn__scale tarn__scale_of(int64_t elements);
tarn__scale tarn__scale_rows(int64_t rows);

/* Values of an input. Floats are representable in f32. */
typedef enum tarn__values {
    TARN__NO_INPUT = 0, /* ends a list of inputs */
    TARN__NORMAL,       /* around 0 */
    TARN__POSITIVE,     /* 0.5 to 1.5 */
    TARN__UNIT,         /* 0.05 to 0.95 */
    TARN__SMOOTH,       /* both signs, at least 0.05 from every multiple of 0.2, where kinks are */
    TARN__DISTINCT,     /* all different, shuffled: for sort, max and min */
    TARN__TIES,         /* integers from -2 to 2: many ties; gradients cannot be checked */
    TARN__INDEX,        /* i64 from 0 up to `below` */
    TARN__ZIPF,         /* the same with a Zipf-like distribution, as token frequencies have */
    TARN__STEPS,        /* i64: i · below, the bounds of rows of equal counts */
    TARN__BOOLS         /* bool */
} tarn__values;

typedef struct tarn__case_input {
    tarn__values values;
    tarn_shape shape;
    int64_t below;      /* of TARN__INDEX, TARN__ZIPF and TARN__STEPS */
    bool channels_last; /* an image [N, C, H, W] stored as NHWC where the layout is contiguous */
} tarn__case_input;

/* Bytes that must move: every operand read once, every result written once. */
typedef enum tarn__moves {
    TARN__MOVES_ALL = 0, /* by `forward` and `backward` */
    TARN__MOVES_ROWS     /* forward: the gathered rows, read and written; backward: these and the table */
} tarn__moves;

#define TARN__NOT_SMOOTH (1u << 31)
#define TARN__CASE_INPUTS 6
#define TARN__CASE_ATTRIBUTES 5
#define TARN__CASE_OUTPUTS 8

/* As the value of a "dtype" attribute: bf16 for f32, f32 for all others. */
#define TARN__OTHER_DTYPE 99

typedef struct tarn__case {
    const char *operation; /* its name for tarn_apply() */
    const char *variant;   /* distinguishes the cases of an operation */
    tarn__case_input input[TARN__CASE_INPUTS];
    tarn_attribute attribute[TARN__CASE_ATTRIBUTES];
    bool copied;     /* the result, a view, is copied to be contiguous */
    unsigned smooth; /* mask of outputs that carry a gradient; 0: the first only, TARN__NOT_SMOOTH: none */
    unsigned fixed;  /* mask of inputs without a gradient */
    /* intermediate results have the operands' dtype: 16-bit results are compared with the composed steps, not with
     * f64 */
    bool chain;
    double step;       /* step of gradcheck's differences; 0: default */
    const char *bench; /* name in `tarn bench ops`; NULL: not measured */
    double forward;    /* bytes of forward, in multiples of the largest operand; 0: all inputs and outputs */
    double backward;   /* the same for backward; 0: gradients are only passed on */
    tarn__moves moves;
    int inputs, attributes; /* counts, filled in by tarn__case_resolve() */
} tarn__case;

/* The list. */
int tarn__case_count(void);
const tarn__case *tarn__case_at(int index);

/* The rows measured at the sizes of GPT-2 with 32768 tokens: measured rows of the list, some at several scales,
 * matmuls first; then every other measured row at one scale. */
int tarn__model_count(void);
const tarn__case *tarn__model_at(int index, tarn__scale *scale);

/* A case with letters resolved to sizes, for tensors of `dtype`. */
tarn__case tarn__case_resolve(const tarn__case *letters, const tarn__scale *scale, tarn_dtype dtype);

/* True when input i gets a gradient; and when differences can check it, because ties and kinks are far. */
bool tarn__case_flows(const tarn__case *one, int input);
bool tarn__case_checkable(const tarn__case *one, int input);

/* True when output i carries a gradient. */
bool tarn__case_smooth(const tarn__case *one, int output);

/* Memory layouts of the inputs. */
typedef enum tarn__layout {
    TARN__CONTIGUOUS = 0,
    TARN__LAST_CONTIGUOUS, /* slices of wider tensors: last axis contiguous, gaps between rows */
    TARN__GENERAL,         /* permuted axes, every second element, one axis reversed */
    TARN__ZERO_STRIDE,     /* expanded along the first axis longer than 1; contiguous where values must be distinct */
    TARN__LAYOUTS
} tarn__layout;
const char *tarn__layout_name(tarn__layout layout);

/* Creates the inputs of a resolved case in the open scope; `dtype` is that of the floats. False with an error. */
bool tarn__case_inputs(const tarn__case *one, tarn_dtype dtype, tarn__layout layout, tarn_device device, uint64_t seed,
                       tarn_tensor **inputs);

/* The same for benchmarks: contiguous, random values generated on the device, without regard to kinks and ties. */
bool tarn__case_random_inputs(const tarn__case *one, tarn_dtype dtype, tarn_device device, tarn_tensor **inputs);

/* Runs a case with the same random seed every time. `outputs` has space for TARN__CASE_OUTPUTS; unused ones are
 * NULL. */
bool tarn__case_run(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor **outputs);

/* The direct function call of a measured case: its first output, before `copied`. NULL: only callable by name. */
typedef tarn_tensor *(*tarn__case_fn)(const tarn__case *one, tarn_tensor *const *inputs);
tarn__case_fn tarn__case_direct(const tarn__case *one);

/* Bytes that forward and backward of a resolved case must move; gradients have their operand's dtype. */
int64_t tarn__case_forward_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs);
int64_t tarn__case_backward_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs);

/* True for matmul, linear and convolution, which are measured in FLOP/s instead of bytes/s. */
bool tarn__case_is_compute_bound(const tarn__case *one);

/* FLOPs of forward; 0 where bytes are measured. */
double tarn__case_flops(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs);

#endif

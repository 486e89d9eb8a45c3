/* cases.h: one list of operation cases, for the tests (values, gradients, layouts, threads, kernels) and for `tarn
 * bench ops`.
 *
 * A case is an operation, its attributes and its inputs. Sizes are written with letters, R rows of C columns and so on,
 * so that one row of the list serves at every scale: a few elements where a gradient is checked, millions where time is
 * measured. */
#ifndef TARN__CASES_H
#define TARN__CASES_H

#include <tarn/ops.h>

/* Sizes that depend on the scale; a small number may be added or taken away: TARN__C - 1. Any smaller number is itself.
 */
#define TARN__LETTER ((int64_t)1 << 20)
enum { TARN__LETTERS = 11 };
#define TARN__B (1 * TARN__LETTER)  /* batch */
#define TARN__S (2 * TARN__LETTER)  /* sequence: B · S rows of C are as many as R rows at the scales of a benchmark */
#define TARN__R (3 * TARN__LETTER)  /* rows */
#define TARN__C (4 * TARN__LETTER)  /* columns */
#define TARN__K (5 * TARN__LETTER)  /* the inner size of a product */
#define TARN__T (6 * TARN__LETTER)  /* tokens: T · V is as large as R · C */
#define TARN__V (7 * TARN__LETTER)  /* vocabulary */
#define TARN__H (8 * TARN__LETTER)  /* height: H · W is as large as C */
#define TARN__W (9 * TARN__LETTER)  /* width */
#define TARN__U (10 * TARN__LETTER) /* words of the vocabulary that are used: V, or fewer where V is rounded up */

/* What each letter stands for; [0] is not used. */
typedef struct tarn__scale {
    int64_t size[TARN__LETTERS];
} tarn__scale;

/* A few elements, every letter another size; large enough to be cut into chunks, with odd sizes; R · C elements of a
 * given number; and R rows of 1024, with products of R × 1024 by 1024 × 1024. */
tarn__scale tarn__scale_small(void);
tarn__scale tarn__scale_chunked(void);
tarn__scale tarn__scale_of(int64_t elements);
tarn__scale tarn__scale_rows(int64_t rows);

/* What the elements of an input are. Float values are representable in f32. */
typedef enum tarn__values {
    TARN__NO_INPUT = 0, /* ends a list of inputs */
    TARN__NORMAL,       /* around 0 */
    TARN__POSITIVE,     /* 0.5 to 1.5 */
    TARN__UNIT,         /* 0.05 to 0.95 */
    TARN__SMOOTH,       /* both signs, at least 0.05 away from every multiple of 0.2: where kinks are */
    TARN__DISTINCT,     /* no two alike, in any order: for sorting and extrema */
    TARN__STEPS,        /* whole numbers from -2 to 2, so that there are ties; no gradient can be checked */
    TARN__INDEX,        /* i64 from 0 up to `below` */
    TARN__WORDS,        /* the same, small ones as much more frequent as frequent words are in a text */
    TARN__TRUTH         /* bool */
} tarn__values;

typedef struct tarn__case_input {
    tarn__values values;
    tarn_shape shape;
    int64_t below;      /* of TARN__INDEX */
    bool channels_last; /* an image [N, C, H, W] that lies in memory as [N, H, W, C] where the layout is dense */
} tarn__case_input;

/* What must move: every operand read once, every result written once. */
typedef enum tarn__moves {
    TARN__MOVES_ALL = 0, /* as `forward` and `backward` say */
    TARN__MOVES_ROWS     /* forward: the rows that are looked up, twice; backward: these and the table */
} tarn__moves;

#define TARN__NOT_SMOOTH (1u << 31)
#define TARN__CASE_INPUTS 6
#define TARN__CASE_ATTRIBUTES 5
#define TARN__CASE_OUTPUTS 8

/* A "dtype" attribute of this value: bf16 for f32, f32 for all others. */
#define TARN__OTHER_DTYPE 99

typedef struct tarn__case {
    const char *operation; /* as tarn_apply() knows it */
    const char *variant;   /* tells the cases of one operation apart */
    tarn__case_input input[TARN__CASE_INPUTS];
    tarn_attribute attribute[TARN__CASE_ATTRIBUTES];
    bool copied;     /* the result, a view, is made contiguous */
    unsigned smooth; /* outputs that carry a gradient, as a mask; 0: the first alone, TARN__NOT_SMOOTH: none */
    unsigned fixed;  /* inputs that no gradient flows into, as a mask */
    /* what lies between its steps has the operands' dtype: 16-bit ones are held against the steps one by one, not
     * against f64 */
    bool chain;
    double step;       /* of the gradient check's differences; 0: its default */
    const char *bench; /* the row's name in `tarn bench ops`; NULL: not measured */
    double forward;    /* bytes of its forward, in sizes of the largest operand; 0: all inputs and outputs */
    double backward;   /* the same of its backward; 0: gradients are only passed on */
    tarn__moves moves;
    int inputs, attributes; /* how many there are; filled in by tarn__case_resolve() */
} tarn__case;

/* The list. */
int tarn__case_count(void);
const tarn__case *tarn__case_at(int index);

/* The rows that are measured at the sizes of a model, GPT-2 with 32768 tokens: measured rows of the list, some at
 * several scales, products first; then every other measured row at one scale. */
int tarn__model_count(void);
const tarn__case *tarn__model_at(int index, tarn__scale *scale);

/* A case with numbers in place of letters, for tensors of `dtype`. */
tarn__case tarn__case_resolve(const tarn__case *letters, const tarn__scale *scale, tarn_dtype dtype);

/* True when gradients flow into input i; and when differences can check them too, because ties and kinks are far. */
bool tarn__case_flows(const tarn__case *one, int input);
bool tarn__case_checkable(const tarn__case *one, int input);

/* True when output i carries a gradient. */
bool tarn__case_smooth(const tarn__case *one, int output);

/* How the inputs of a case lie in memory. */
typedef enum tarn__layout {
    TARN__CONTIGUOUS = 0,
    TARN__LAST_CONTIGUOUS, /* slices of wider tensors: the last axis without gaps, the others with */
    TARN__GENERAL,         /* axes in another order, every second element, one axis reversed */
    TARN__ZERO_STRIDE, /* expanded along the first axis that is longer than 1; dense where values must be distinct */
    TARN__LAYOUTS
} tarn__layout;
const char *tarn__layout_name(tarn__layout layout);

/* Makes the inputs of a resolved case, in the open scope; `dtype` is that of the float ones. False with an error
 * pending. */
bool tarn__case_inputs(const tarn__case *one, tarn_dtype dtype, tarn__layout layout, tarn_device device, uint64_t seed,
                       tarn_tensor **inputs);

/* The same for measuring: dense, drawn on the device, without care for kinks and ties. */
bool tarn__case_random_inputs(const tarn__case *one, tarn_dtype dtype, tarn_device device, tarn_tensor **inputs);

/* Runs a case from the same random state every time. `outputs` has room for TARN__CASE_OUTPUTS and is NULL beyond those
 * there are. */
bool tarn__case_run(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor **outputs);

/* The plain function call behind a case that is measured: its first output, before `copied`. NULL for one that is only
 * called by name. */
typedef tarn_tensor *(*tarn__case_fn)(const tarn__case *one, tarn_tensor *const *inputs);
tarn__case_fn tarn__case_direct(const tarn__case *one);

/* The bytes that the forward and the backward of a resolved case must move, given its outputs; gradients have their
 * operand's dtype. */
int64_t tarn__case_forward_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs);
int64_t tarn__case_backward_bytes(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs);

/* True for a matrix product or a convolution, which is measured by its arithmetic rather than by its bytes. */
bool tarn__case_is_compute_bound(const tarn__case *one);

/* Floating-point operations of a product's forward; 0 for what is measured by its bytes. */
double tarn__case_flops(const tarn__case *one, tarn_tensor *const *inputs, tarn_tensor *const *outputs);

#endif

/* cudnn.h: binding to cuDNN's graph (backend) API.
 *
 * Neither a cuDNN header is needed to build nor the library to load the backend: it is opened on first use. The
 * constants below are those of the binary interface of version 9; a library of another major version is rejected by
 * name.
 *
 * Everything in the API is a descriptor: created for a kind, filled with attributes, finalized, then read-only. Tensors
 * and operations form a graph; heuristics propose engines for it; an engine configuration becomes a plan; a plan
 * executes on a variant pack of addresses. */
#ifndef TARN__CUDNN_H
#define TARN__CUDNN_H

#include "backends/cuda/runtime/cuda.h"

/* ---- constants of the binary interface --------------------------------------------------------------------------- */

#define TARN__CUDNN_MAJOR 9

/* Descriptor kinds. */
enum {
    TARN__CUDNN_POINTWISE = 0,
    TARN__CUDNN_CONVOLUTION = 1,
    TARN__CUDNN_ENGINE = 2,
    TARN__CUDNN_CONFIG = 3,
    TARN__CUDNN_HEURISTIC = 4,
    TARN__CUDNN_PLAN = 5,
    TARN__CUDNN_KNOB = 7,
    TARN__CUDNN_OPERATION_CONV = 10,
    TARN__CUDNN_OPERATION_WGRAD = 11,
    TARN__CUDNN_OPERATION_DGRAD = 12,
    TARN__CUDNN_OPERATION_POINTWISE = 13,
    TARN__CUDNN_GRAPH = 15,
    TARN__CUDNN_VARIANT_PACK = 16,
    TARN__CUDNN_TENSOR = 17,
    TARN__CUDNN_MATMUL = 18,
    TARN__CUDNN_OPERATION_MATMUL = 19,
    TARN__CUDNN_REDUCTION = 21,
    TARN__CUDNN_OPERATION_REDUCTION = 22,
    TARN__CUDNN_RESHAPE = 31,
};

/* Attribute types. */
enum {
    TARN__CUDNN_IS_HANDLE = 0,
    TARN__CUDNN_IS_DTYPE = 1,
    TARN__CUDNN_IS_BOOL = 2,
    TARN__CUDNN_IS_INT64 = 3,
    TARN__CUDNN_IS_FLOAT = 4,
    TARN__CUDNN_IS_POINTER = 6,
    TARN__CUDNN_IS_CONVOLUTION_MODE = 7,
    TARN__CUDNN_IS_HEURISTIC_MODE = 8,
    TARN__CUDNN_IS_KNOB_TYPE = 9,
    TARN__CUDNN_IS_NUMERICAL_NOTE = 11,
    TARN__CUDNN_IS_POINTWISE_MODE = 14,
    TARN__CUDNN_IS_DESCRIPTOR = 15,
    TARN__CUDNN_IS_REDUCTION_MODE = 18,
};

/* Attribute names, by descriptor kind. */
enum {
    TARN__CUDNN_POINTWISE_MODE = 0,
    TARN__CUDNN_POINTWISE_DTYPE = 1,
    TARN__CUDNN_POINTWISE_AXIS = 9,
    TARN__CUDNN_CONVOLUTION_DTYPE = 100,
    TARN__CUDNN_CONVOLUTION_MODE = 101,
    TARN__CUDNN_CONVOLUTION_DILATION = 102,
    TARN__CUDNN_CONVOLUTION_STRIDE = 103,
    TARN__CUDNN_CONVOLUTION_PADDING_AFTER = 104,
    TARN__CUDNN_CONVOLUTION_PADDING_BEFORE = 105,
    TARN__CUDNN_CONVOLUTION_RANK = 106,
    TARN__CUDNN_HEURISTIC_MODE = 200,
    TARN__CUDNN_HEURISTIC_GRAPH = 201,
    TARN__CUDNN_HEURISTIC_RESULTS = 202,
    TARN__CUDNN_CONFIG_ENGINE = 300,
    TARN__CUDNN_CONFIG_KNOBS = 302,
    TARN__CUDNN_PLAN_HANDLE = 400,
    TARN__CUDNN_PLAN_CONFIG = 401,
    TARN__CUDNN_PLAN_WORKSPACE = 402,
    TARN__CUDNN_KNOB_TYPE = 600,
    TARN__CUDNN_KNOB_VALUE = 601,
    TARN__CUDNN_OPERATION_CONV_FIRST = 700,  /* alpha, beta, convolution, w, x, y */
    TARN__CUDNN_OPERATION_DGRAD_FIRST = 706, /* alpha, beta, convolution, w, dx, dy */
    TARN__CUDNN_OPERATION_WGRAD_FIRST = 712, /* alpha, beta, convolution, dw, x, dy */
    TARN__CUDNN_OPERATION_POINTWISE_DESC = 750,
    TARN__CUDNN_OPERATION_POINTWISE_A = 751,
    TARN__CUDNN_OPERATION_POINTWISE_B = 752,
    TARN__CUDNN_OPERATION_POINTWISE_Y = 753,
    TARN__CUDNN_OPERATION_POINTWISE_PREDICATE = 758, /* of a select operation */
    TARN__CUDNN_GRAPH_HANDLE = 800,
    TARN__CUDNN_GRAPH_OPERATIONS = 801,
    TARN__CUDNN_TENSOR_ALIGNMENT = 900,
    TARN__CUDNN_TENSOR_DTYPE = 901,
    TARN__CUDNN_TENSOR_SHAPE = 902,
    TARN__CUDNN_TENSOR_STRIDE = 903,
    TARN__CUDNN_TENSOR_ID = 906,
    TARN__CUDNN_TENSOR_IS_VIRTUAL = 907,
    TARN__CUDNN_TENSOR_IS_BY_VALUE = 908,
    TARN__CUDNN_VARIANT_PACK_IDS = 1000,
    TARN__CUDNN_VARIANT_PACK_ADDRESSES = 1001,
    TARN__CUDNN_VARIANT_PACK_WORKSPACE = 1003,
    TARN__CUDNN_ENGINE_INDEX = 1301,
    TARN__CUDNN_ENGINE_NOTES = 1303,
    TARN__CUDNN_MATMUL_DTYPE = 1500,
    TARN__CUDNN_OPERATION_MATMUL_A = 1520,
    TARN__CUDNN_OPERATION_MATMUL_B = 1521,
    TARN__CUDNN_OPERATION_MATMUL_C = 1522,
    TARN__CUDNN_OPERATION_MATMUL_DESC = 1523,
    TARN__CUDNN_REDUCTION_MODE = 1600,
    TARN__CUDNN_REDUCTION_DTYPE = 1601,
    TARN__CUDNN_OPERATION_REDUCTION_X = 1610,
    TARN__CUDNN_OPERATION_REDUCTION_Y = 1611,
    TARN__CUDNN_OPERATION_REDUCTION_DESC = 1612,
    TARN__CUDNN_RESHAPE_X = 2200,
    TARN__CUDNN_RESHAPE_Y = 2201,
};

/* Attribute values. */
enum {
    TARN__CUDNN_F32 = 0,
    TARN__CUDNN_F16 = 2,
    TARN__CUDNN_I32 = 4,
    TARN__CUDNN_BF16 = 9,
    TARN__CUDNN_BOOL = 11,
    TARN__CUDNN_CROSS_CORRELATION = 1, /* kernels are not flipped */
    TARN__CUDNN_POINTWISE_ADD = 0,
    TARN__CUDNN_POINTWISE_MUL = 1,
    TARN__CUDNN_POINTWISE_DIV = 6,
    TARN__CUDNN_POINTWISE_SUB = 9,
    TARN__CUDNN_POINTWISE_EXP = 13,
    TARN__CUDNN_POINTWISE_LOG = 15,
    TARN__CUDNN_POINTWISE_IDENTITY = 21,
    TARN__CUDNN_POINTWISE_CMP_GE = 303,
    TARN__CUDNN_POINTWISE_GEN_INDEX = 501, /* along an axis */
    TARN__CUDNN_POINTWISE_BINARY_SELECT = 601,
    TARN__CUDNN_REDUCTION_SUM = 0,
    TARN__CUDNN_REDUCTION_MAX = 3,
    TARN__CUDNN_HEURISTIC_FALLBACK = 2,
    TARN__CUDNN_HEURISTIC_A = 3,
};

/* Numerical notes of an engine, as bits. */
enum {
    TARN__CUDNN_TENSOR_CORE = 1 << 0, /* with f32 operands: TF32 */
    TARN__CUDNN_DOWN_CONVERT_INPUTS = 1 << 1,
    TARN__CUDNN_REDUCED_PRECISION_REDUCTION = 1 << 2,
    TARN__CUDNN_FFT = 1 << 3,
    TARN__CUDNN_NOT_DETERMINISTIC = 1 << 4,
    TARN__CUDNN_WINOGRAD = 15 << 5, /* all Winograd notes */
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* Its functions. All but two return a status, 0 for success. */
typedef struct tarn__cudnn {
    size_t (*version)(void);
    const char *(*status_text)(int status);
    int (*create)(void **handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*create_descriptor)(int kind, void **descriptor);
    int (*free)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *values);
    int (*finalize)(void *descriptor);
    int (*get)(void *descriptor, int name, int type, int64_t capacity, int64_t *count, void *values);
    int (*run)(void *handle, void *plan, void *variant_pack);
} tarn__cudnn;

/* cudnn.c: the library, opened by the first call; NULL if it is not installed or TARN_CUDNN=off. */
const tarn__cudnn *tarn__cudnn_open(void);

/* "cuDNN 9.14.0", or a short reason why there is none. */
const char *tarn__cudnn_about(void);

/* True if TARN_CUDNN names a library that cannot be used: calls that need it fail, with tarn__cuda_failure(). */
bool tarn__cudnn_is_unusable(void);

/* The library's handle for a device, bound to this stream; NULL: see tarn__cuda_failure(). Use it, and cached plans,
 * between lock and unlock only. */
void *tarn__cudnn_handle(int index, cudaStream_t stream);
void tarn__cudnn_lock(void);
void tarn__cudnn_unlock(void);

/* True for status 0; else remembers `what` and the status, for this thread. */
bool tarn__cudnn_good(int status, const char *what);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Descriptors of one graph, owned by it. After a failure every call does nothing, and `status` stays set. */
#define TARN__CUDNN_MAX_DESCRIPTORS 96
typedef struct tarn__cudnn_graph {
    int count, status;
    void *descriptors[TARN__CUDNN_MAX_DESCRIPTORS];
    void *finalized; /* the finalized graph; NULL until then */
} tarn__cudnn_graph;

typedef struct tarn__cudnn_tensor {
    int64_t id;       /* key of its address in a variant pack */
    tarn_dtype dtype; /* f32, bf16 or f16; virtual ones also i32 or bool */
    int64_t rank;
    int64_t shape[TARN_MAX_RANK], stride[TARN_MAX_RANK];
    bool is_virtual;   /* between two operations: not in memory */
    bool is_by_value;  /* one scalar, in host memory */
    int64_t alignment; /* bytes; 0: TARN__CUDNN_ALIGNMENT */
} tarn__cudnn_tensor;

#define TARN__CUDNN_ALIGNMENT 16 /* default alignment of tensor addresses, in bytes */

/* cudnn_graph.c: descriptors belong to the graph. NULL after a failure. */
void *tarn__cudnn_create(tarn__cudnn_graph *graph, int kind);
void tarn__cudnn_set(tarn__cudnn_graph *graph, void *descriptor, int name, int type, int64_t count, const void *values);
void *tarn__cudnn_finalize(tarn__cudnn_graph *graph, void *descriptor);
void *tarn__cudnn_add_tensor(tarn__cudnn_graph *graph, const tarn__cudnn_tensor *tensor);
bool tarn__cudnn_finalize_graph(tarn__cudnn_graph *graph, void *handle, void *const *operations, int count);
void tarn__cudnn_free_graph(tarn__cudnn_graph *graph);
int tarn__cudnn_dtype(tarn_dtype dtype);
tarn__view tarn__cudnn_view(const tarn__cudnn_tensor *tensor, void *memory);

/* y = f(a), f(a, b), or a select of a and b by the predicate. */
typedef struct tarn__cudnn_pointwise {
    int mode;
    void *a, *b, *predicate, *y; /* NULL: none */
    int64_t axis;                /* of TARN__CUDNN_POINTWISE_GEN_INDEX */
} tarn__cudnn_pointwise;

/* cudnn_graph.c: operations on the graph's tensors, owned by it; NULL after a failure. A matmul is over the last two
 * axes. */
void *tarn__cudnn_add_pointwise(tarn__cudnn_graph *graph, const tarn__cudnn_pointwise *p);
void *tarn__cudnn_add_matmul(tarn__cudnn_graph *graph, void *a, void *b, void *c);
void *tarn__cudnn_add_reduction(tarn__cudnn_graph *graph, int mode, void *x, void *y);
void *tarn__cudnn_add_reshape(tarn__cudnn_graph *graph, void *x, void *y);

/* ---- engines and plans ------------------------------------------------------------------------------------------- */

typedef struct tarn__cudnn_engine {
    void *config;      /* owned; NULL once a plan owns it */
    uint64_t identity; /* hash of engine and settings: stable across runs with this version */
} tarn__cudnn_engine;

#define TARN__CUDNN_MAX_ADDRESSES 16

/* An executable plan; owns its descriptors. */
typedef struct tarn__cudnn_plan {
    void *plan, *config;
    size_t workspace;
    void *variant_pack;                             /* for the addresses used last */
    void *addresses[TARN__CUDNN_MAX_ADDRESSES + 1]; /* the last one is the workspace */
} tarn__cudnn_plan;

/* cudnn_engine.c: engines for a graph, the heuristic's favourite first, without those that have an excluded note. The
 * caller owns the result; free what is not used. */
int tarn__cudnn_find_engines(const tarn__cudnn_graph *graph, uint32_t excluded_notes, tarn__cudnn_engine *found,
                             int capacity);
void tarn__cudnn_free_engines(tarn__cudnn_engine *engines, int count);

/* Builds a plan, which takes ownership of the engine's configuration. False if the engine cannot: nothing has
 * changed. */
bool tarn__cudnn_build_plan(void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan);
void tarn__cudnn_free_plan(tarn__cudnn_plan *plan);

/* Enqueues the plan with the addresses of these tensor ids, and as much workspace as the plan needs. */
bool tarn__cudnn_run_plan(void *handle, tarn__cudnn_plan *plan, int count, const int64_t *ids, void *const *addresses,
                          void *workspace);

#endif

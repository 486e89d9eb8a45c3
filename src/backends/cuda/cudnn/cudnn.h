/* cudnn.h: what tarn uses of cuDNN's graph interface.
 *
 * Neither a header of cuDNN is needed to build nor the library to load the backend: it is opened when something first
 * asks for it. The numbers below are facts of the binary interface of version 9; a library of another major version is
 * refused by name.
 *
 * Everything is a descriptor there: made for a kind, filled with named attributes, finished, and read-only from then
 * on. Tensors and operations make a graph; heuristics name engines for a graph; an engine's configuration becomes a
 * plan; a plan runs on a pack of addresses. */
#ifndef TARN__CUDNN_H
#define TARN__CUDNN_H

#include "backends/cuda/runtime/cuda.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

#define TARN__CUDNN_MAJOR 9

/* Kinds of descriptors. */
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

/* Types of attributes. */
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

/* Names of attributes, by the kind that has them. */
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
    TARN__CUDNN_OPERATION_POINTWISE_PREDICATE = 758, /* of A and B, where one is chosen */
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

/* Values of attributes. */
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

/* What an engine's numbers are like, as bits. */
enum {
    TARN__CUDNN_TENSOR_CORE = 1 << 0, /* with f32 operands: TF32 */
    TARN__CUDNN_DOWN_CONVERT_INPUTS = 1 << 1,
    TARN__CUDNN_REDUCED_PRECISION_REDUCTION = 1 << 2,
    TARN__CUDNN_FFT = 1 << 3,
    TARN__CUDNN_NOT_DETERMINISTIC = 1 << 4,
    TARN__CUDNN_WINOGRAD = 15 << 5, /* and with tiles of three sizes */
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* Its functions, all but two giving a status that is 0 where all went well. */
typedef struct tarn__cudnn {
    size_t (*version)(void);
    const char *(*status_text)(int status);
    int (*create)(void **handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*make)(int kind, void **descriptor);
    int (*free)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *values);
    int (*finish)(void *descriptor);
    int (*get)(void *descriptor, int name, int type, int64_t room, int64_t *count, void *values);
    int (*run)(void *handle, void *plan, void *pack);
} tarn__cudnn;

/* cudnn.c: the library, opened at the first call; NULL when it is not there, or must not be used. */
const tarn__cudnn *tarn__cudnn_open(void);

/* "cuDNN 9.14.0", or why there is none, in a few words. */
const char *tarn__cudnn_about(void);

/* True when TARN_CUDNN names a library that cannot be used: what needs it fails, with tarn__cuda_failure(). */
bool tarn__cudnn_is_unusable(void);

/* The library's state for a device, for work on this stream; NULL: see tarn__cuda_failure(). Used between lock and
 * unlock, by one thread at a time; so are the plans that are kept. */
void *tarn__cudnn_handle(int index, cudaStream_t stream);
void tarn__cudnn_lock(void);
void tarn__cudnn_unlock(void);

/* True for 0; else remembers what failed, for this thread. */
bool tarn__cudnn_good(int status, const char *what);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* The descriptors of one graph. After the first failure nothing more is done, and `status` tells. */
#define TARN__CUDNN_MAX_DESCRIPTORS 96
typedef struct tarn__cudnn_graph {
    int count, status;
    void *descriptors[TARN__CUDNN_MAX_DESCRIPTORS];
    void *whole; /* the finished graph; NULL until then */
} tarn__cudnn_graph;

typedef struct tarn__cudnn_tensor {
    int64_t id;       /* by which a pack gives its address */
    tarn_dtype dtype; /* f32, bf16 or f16; between operations also i32 or bool */
    int64_t rank;
    int64_t shape[TARN_MAX_RANK], stride[TARN_MAX_RANK];
    bool is_virtual;   /* between two operations: in no memory */
    bool is_by_value;  /* one number, whose address is the host's */
    int64_t alignment; /* bytes; 0: TARN__CUDNN_ALIGNMENT */
} tarn__cudnn_tensor;

#define TARN__CUDNN_ALIGNMENT 16 /* bytes, of a tensor's address where nothing else is said */

/* cudnn_graph.c: descriptors of a graph belong to it. NULL after a failure. */
void *tarn__cudnn_create(tarn__cudnn_graph *graph, int kind);
void tarn__cudnn_set(tarn__cudnn_graph *graph, void *descriptor, int name, int type, int64_t count, const void *values);
void *tarn__cudnn_finalize(tarn__cudnn_graph *graph, void *descriptor);
void *tarn__cudnn_add_tensor(tarn__cudnn_graph *graph, const tarn__cudnn_tensor *tensor);
bool tarn__cudnn_finalize_graph(tarn__cudnn_graph *graph, void *handle, void *const *operations, int count);
void tarn__cudnn_free_graph(tarn__cudnn_graph *graph);
int tarn__cudnn_dtype(tarn_dtype dtype);
tarn__view tarn__cudnn_view(const tarn__cudnn_tensor *tensor, void *memory);

/* y = f(a), f(a, b), or of a and b the one that `which` says. */
typedef struct tarn__cudnn_pointwise {
    int mode;
    void *a, *b, *which, *y; /* NULL where there is none */
    int64_t axis;            /* of TARN__CUDNN_POINTWISE_GEN_INDEX */
} tarn__cudnn_pointwise;

/* cudnn_operations.c: operations on tensors of the graph. They belong to it; NULL after a failure. A product is over
 * the last two axes. */
void *tarn__cudnn_add_pointwise(tarn__cudnn_graph *graph, const tarn__cudnn_pointwise *p);
void *tarn__cudnn_add_matmul(tarn__cudnn_graph *graph, void *a, void *b, void *c);
void *tarn__cudnn_add_reduction(tarn__cudnn_graph *graph, int mode, void *x, void *y);
void *tarn__cudnn_add_reshape(tarn__cudnn_graph *graph, void *x, void *y);

/* ---- engines and plans ------------------------------------------------------------------------------------------- */

typedef struct tarn__cudnn_engine {
    void *config;      /* owned; NULL once a plan has taken it */
    uint64_t identity; /* of the engine and its settings: the same in every run with this version */
} tarn__cudnn_engine;

#define TARN__CUDNN_MAX_ADDRESSES 16

/* What is kept to run a graph. */
typedef struct tarn__cudnn_plan {
    void *plan, *config;
    size_t workspace;
    void *pack;                                     /* of the addresses that were used last */
    void *addresses[TARN__CUDNN_MAX_ADDRESSES + 1]; /* the last is the workspace's */
} tarn__cudnn_plan;

/* cudnn_engine.c: engines for a graph, those first that the library thinks fastest, without any that has one of the
 * notes. The caller owns what is found, and gives back what it does not use. */
int tarn__cudnn_find_engines(const tarn__cudnn_graph *graph, uint32_t refused_notes, tarn__cudnn_engine *found,
                             int room);
void tarn__cudnn_free_engines(tarn__cudnn_engine *engines, int count);

/* A plan of an engine, which it takes over; false when the engine cannot, and nothing has changed then. */
bool tarn__cudnn_build_plan(void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan);
void tarn__cudnn_free_plan(tarn__cudnn_plan *plan);

/* Enqueues it. The addresses of the tensors with these ids, and of as much workspace as the plan says. */
bool tarn__cudnn_run_plan(void *handle, tarn__cudnn_plan *plan, int count, const int64_t *ids, void *const *addresses,
                          void *workspace);

#endif

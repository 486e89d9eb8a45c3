/* opencl.h: the OpenCL backend on the host: devices, the launch API, programs and their cache, transfers.
 *
 * A family of kernels is a pair of files, layernorm.c and layernorm.cl. The .c file registers launchers in the kernel
 * table; a launcher uses the launch API below and checks nothing: the first failure is recorded, and the rest of that
 * launch does nothing.
 *
 * Kernels are C source in the library, compiled by the driver for a device and a set of -D options when first used, and
 * cached on disk. What cannot run here (a program that does not compile, a work-group that the driver refuses) makes
 * the core run the call on the CPU.
 *
 * Results are deterministic: sums run in an order fixed by shapes and the device, without atomics on floats. */
#ifndef TARN__OPENCL_H
#define TARN__OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>

#include "base/kernel/backend.h"

/* A kernel's report of an index outside its axis, in device memory; written by record_fault() of prelude.cl. */
typedef struct tarn__cl_fault_record {
    int64_t raised, function, value, limit;
} tarn__cl_fault_record;

/* One device, set up when first used and never freed. All work goes through one in-order queue: pool blocks can be
 * reused as soon as they are released, because whatever still reads them was enqueued before. */
typedef struct tarn__cl_device {
    cl_device_id id;
    cl_device_type type;
    cl_context context;
    cl_command_queue queue;
    bool has_f64;          /* cl_khr_fp64, unless TARN_OPENCL_FP64=0 */
    bool has_f16;          /* cl_khr_fp16, probed, unless TARN_OPENCL_FP16=0 */
    bool has_mma;          /* tensor cores by inline PTX, probed, unless TARN_OPENCL_MMA=0: NVIDIA GPUs */
    bool emulates_mma;     /* TARN_OPENCL_MMA=1: the same kernels without tensor cores, on any device */
    const char *subgroups; /* with shuffles, probed: "INTEL", "KHR", or "ONE" (each work-item is a subgroup) with
                              TARN_OPENCL_SUBGROUPS=1 where a device has none; NULL: none, or TARN_OPENCL_SUBGROUPS=0 */
    const char *language;  /* of programs with subgroups; others are CL1.2 */
    /* local memory is faster than a buffer, as on GPUs; false on PoCL unless TARN_OPENCL_LOCAL_MEM=1. It selects the
     * kernels in which a work-group shares a row or tile. */
    bool has_local_memory;
    bool is_cpu;
    /* adjacent work-items run together and should touch adjacent elements: a GPU, or a CPU used like one */
    bool in_lockstep;
    bool shares_memory; /* with the host */
    size_t max_group;   /* work-items per work-group of the device; a kernel may be limited to fewer */
    size_t group_limit; /* TARN_OPENCL_WORKGROUP; SIZE_MAX: none */
    size_t local_bytes; /* local memory per work-group */
    cl_uint compute_units;
    int index;
    char name[128], vendor[64], driver[64];
    char options[256]; /* of every program */
    size_t memory_total, memory_used;
    pthread_mutex_t tile_lock;             /* guards `tile` */
    const struct tarn__cl_gemm_tile *tile; /* of large f32 GEMMs, once tuned; see gemm_tune.c */
    pthread_mutex_t lock;                  /* guards kernel arguments, programs, and everything below */
    struct tarn__cl_staging *staging;      /* see transfer.c */
    cl_command_queue copy_queue;           /* see pinned.c; NULL until the first pinned buffer */
    struct tarn__cl_program *programs;     /* linked list */
    struct tarn__cl_kernel **kernels;      /* hash table, see program.c */
    size_t kernel_capacity, kernel_count;
    cl_mem fault_record;                /* a tarn__cl_fault_record on the device */
    cl_mem host_record_memory;          /* of host_record: pinned, since a read into pageable memory may block */
    tarn__cl_fault_record *host_record; /* the last one read; valid once `record_read` has completed */
    cl_event record_read;               /* NULL: no read is under way */
    bool is_unread;                     /* a kernel that may fault was enqueued after that read */
    bool is_deferred;                   /* the same; its record is read only before the host waits for the device */
    bool has_failed;                    /* since the last poll */
    char failure[256];
    bool is_lost; /* for good: see tarn__cl_check_lost(); atomic */
    char lost_reason[512];
} tarn__cl_device;

/* The device at `index`, borrowed; NULL when it cannot be set up: see tarn__cl_failure(). */
tarn__cl_device *tarn__cl_device_at(int index);
/* The same; NULL also when the device is lost. */
tarn__cl_device *tarn__cl_device_alive(int index);

/* A compiled kernel of a device; never freed. */
typedef struct tarn__cl_kernel {
    uint64_t hash;
    char *source, *function, *options; /* owned */
    cl_kernel kernel;                  /* NULL: the program does not compile */
    size_t max_items;                  /* per work-group; 0: it needs more local memory than there is */
} tarn__cl_kernel;

/* ---- for prepare() ----------------------------------------------------------------------------------------------- */

/* Reserves the job of a call. NULL, which prepare() answers with TARN__PLAN_FAILED, also where the device cannot be set
 * up. */
void *tarn__cl_reserve_job(const tarn__call *call, tarn__plan *plan, size_t bytes);

/* A kernel by file, function and options as for tarn__cl_begin(), compiled if need be. NULL where it does not compile,
 * on a lost device, and for meta devices, for which nothing is compiled. */
const tarn__cl_kernel *tarn__cl_find(const tarn__call *call, const char *source, const char *kernel,
                                     const char *options);
/* Whether a kernel was found, and may have `items` work-items per work-group. */
bool tarn__cl_allows(const tarn__cl_kernel *kernel, size_t items);
/* The largest power of two that a work-group of it may have; 1 where it was not found. */
size_t tarn__cl_group_of(const tarn__cl_kernel *kernel);
/* READY where the call's kernels were found, else DECLINED. READY for meta devices, which run none, and for a lost one,
 * which reports the loss when the call runs. */
tarn__plan_status tarn__cl_ready(const tarn__call *call, bool found);

/* ---- launch API -------------------------------------------------------------------------------------------------- */

/* A launch under construction. tarn__cl_begin() locks the device and tarn__cl_enqueue() unlocks it: between them come
 * only the tarn__cl_arg calls of this launch. A program that does not compile, or a work-group that the driver refuses,
 * declines the call, which the CPU then runs (`declined` of a backend); a failing argument or enqueue makes the
 * device's next poll fail. Kernels with a plan find their programs in prepare(), before they write anything; kernels of
 * one launch need no plan, and look up theirs here. */
typedef struct tarn__cl_launch {
    tarn__cl_device *device;
    cl_kernel kernel;
    cl_uint next;      /* index of the next argument */
    size_t max_items;  /* per work-group of this kernel */
    bool good;         /* the device is locked */
    bool has_fault;    /* the kernel may report one */
    bool defers_fault; /* the record is read only before the host next waits for the device */
    bool reads_output; /* of the call: it cannot be repeated once begun */
    const char *name;
} tarn__cl_launch;

/* `source` is a file name without ".cl", `kernel` its __kernel function, `options` are added to the compiler's
 * ("-DT=bf16 -DOP=tanh") or "". Strings are copied. Programs are compiled once per device and options, and cached in
 * memory and on disk. */
tarn__cl_launch tarn__cl_begin(const tarn__call *call, const char *source, const char *kernel, const char *options);

/* The same for a kernel with an alternative. Where it does not compile or cannot have `items` work-items per
 * work-group, the launch is not good, nothing is locked, and the call is not declined. */
tarn__cl_launch tarn__cl_try(const tarn__call *call, const char *source, const char *kernel, const char *options,
                             size_t items);
/* The largest power of two that a work-group of a tried kernel may have; 1 where it does not compile. */
size_t tarn__cl_max_group(const tarn__cl_launch *launch);

/* The same with a kernel that was found before; NULL declines the call. */
tarn__cl_launch tarn__cl_begin_kernel(const tarn__call *call, const tarn__cl_kernel *kernel);

/* TWO arguments: __global void * and a long, the offset of the view's first element in ELEMENTS; for quantized dtypes
 * in BYTES. NULL: a null pointer and 0. */
void tarn__cl_arg_view(tarn__cl_launch *launch, const tarn__view *view);
/* TWO arguments: __global void * and a long, the offset in BYTES of position `bytes` of the call's scratch. */
void tarn__cl_arg_scratch(tarn__cl_launch *launch, const tarn__call *call, int64_t bytes);
/* A scalar, or a struct by value; all arguments of a kernel have at most 1024 bytes, what OpenCL guarantees. */
void tarn__cl_arg_value(tarn__cl_launch *launch, const void *value, size_t bytes);
void tarn__cl_arg_int(tarn__cl_launch *launch, int32_t value);
void tarn__cl_arg_long(tarn__cl_launch *launch, int64_t value);
/* `real` in the kernel: a double where the device has f64, else a float. */
void tarn__cl_arg_real(tarn__cl_launch *launch, double value);
/* The LAST TWO arguments, FAULT_PARAMETERS in the kernel, of one that may find an index outside its axis. */
void tarn__cl_arg_fault(tarn__cl_launch *launch, const tarn__call *call);
/* The same for kernels of a decode step, deferred, since a read would take as long as a kernel. */
void tarn__cl_arg_fault_later(tarn__cl_launch *launch, const tarn__call *call);
/* Enqueues a deferred read of the fault record, if there is one: the first under the lock, the second takes it. */
bool tarn__cl_read_faults(tarn__cl_device *device);
bool tarn__cl_flush_faults(tarn__cl_device *device);

/* Enqueues the launch. `local` NULL: a default, for one dimension. `global` is rounded up to whole work-groups, so
 * kernels check their index; if a size is 0 nothing runs. Use few different work-group sizes: PoCL compiles a kernel
 * for each. */
void tarn__cl_enqueue(tarn__cl_launch *launch, int rank, const size_t *global, const size_t *local);
/* The same for kernels without barriers: work-groups of `most` along the first axis, a power of two, or fewer where the
 * kernel is limited. */
void tarn__cl_enqueue_independent(tarn__cl_launch *launch, int rank, const size_t *global, size_t most);

/* Copies bytes within the device, in queue order; the two ranges do not overlap. */
void tarn__cl_copy_bytes(const tarn__call *call, void *to, int64_t to_offset, const void *from, int64_t from_offset,
                         size_t bytes);

/* Returns and clears whether the calling thread's last call was declined. */
bool tarn__cl_declined(int index);

/* "f32", "f64", "bf16", "f16", "i32", "i64", "u8" or "boolean": the names of prelude.cl. */
const char *tarn__cl_dtype_name(tarn_dtype dtype);

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* True for CL_SUCCESS; else records the failure for this thread. */
bool tarn__cl_check(cl_int error, const char *what);
void tarn__cl_fail(const char *format, ...) TARN_PRINTF(1, 2);
const char *tarn__cl_failure(void);
const char *tarn__cl_error_name(cl_int error);

/* Reports the calling thread's last failure by the device's next poll. Under the lock. */
void tarn__cl_set_failed(tarn__cl_device *device);

/* Called after a failure. A device whose queue does not finish either is lost, as when a driver removes it: it gets no
 * more work, and every later call fails with the reason. Returns false. */
bool tarn__cl_check_lost(tarn__cl_device *device);
bool tarn__cl_is_lost(const tarn__cl_device *device);

/* Functions of the library that a backend may use. */
extern const tarn__host *tarn__cl_host;

/* ---- device.c, features.c ---------------------------------------------------------------------------------------- */

int tarn__cl_count(void);
/* Writes `options` of a device from its features. */
void tarn__cl_set_build_options(tarn__cl_device *device);
/* Runs probe.cl; drops has_f16 and subgroups where they do not work, and writes the options. */
void tarn__cl_probe_features(tarn__cl_device *device);
/* Lists devices, GPUs first, then accelerators, then CPUs. False with the reason in `why` when there is none. */
bool tarn__cl_find_devices(char *why, size_t why_size);
bool tarn__cl_device_query(int index, tarn_device_info *info);

/* An environment variable by its name, or by the name it had before; NULL or "" where it is not set. */
const char *tarn__cl_variable(const char *name);
/* False with the reason in `why` when a TARN_OPENCL_ variable has an invalid value. */
bool tarn__cl_check_variables(char *why, size_t why_size);

/* ---- program.c, cache.c ------------------------------------------------------------------------------------------ */

/* Under the device's lock. Borrowed; NULL when it does not compile, or host memory is exhausted. */
const tarn__cl_kernel *tarn__cl_get_kernel(tarn__cl_device *device, const char *source, const char *function,
                                           const char *options);

/* The source of a program: the prelude, then the file with its includes expanded; the caller frees it. NULL when the
 * file is not found. */
char *tarn__cl_program_source(const char *source);

/* True when TARN_OPENCL_DISABLE=tanh,gemm_panels lists the name: a kernel of the table, or a file of kernels. */
bool tarn__cl_is_disabled(const char *name);
/* False with the reason in `why` when the list has an unknown name. */
bool tarn__cl_check_disabled(char *why, size_t why_size);

/* The binary of a program from an earlier run, found by a hash of everything it depends on; NULL where there is none.
 * Storing never fails: what cannot be written is compiled again by the next run, after one warning per process. */
cl_program tarn__cl_cache_find(tarn__cl_device *device, const char *text, const char *options);
void tarn__cl_cache_store(tarn__cl_device *device, const char *text, const char *options, cl_program program);
/* False when the cache is off, or without a folder for it. */
bool tarn__cl_cache_is_on(void);

/* Logs once per process that kernels are being compiled, when that has taken over 2 s. */
void tarn__cl_log_compiling(const tarn__cl_device *device, double seconds);

/* Kernel sources embedded by the build (cmake/embed_files.cmake). */
typedef struct tarn__cl_file {
    const char *name; /* base name: "copy.cl", "elementwise.def" */
    const unsigned char *bytes;
    size_t length;
} tarn__cl_file;
extern const tarn__cl_file tarn__cl_files[];
extern const int tarn__cl_file_count;

/* ---- transfer.c, pinned.c ---------------------------------------------------------------------------------------- */

bool tarn__cl_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream);
bool tarn__cl_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream);

/* Pinned host memory, mapped for its whole life; the caller unmaps and releases `*memory`. NULL: see
 * tarn__cl_failure(). */
char *tarn__cl_alloc_pinned(tarn__cl_device *device, size_t bytes, cl_mem *memory);

/* Pinned buffers, as base/kernel/backend.h describes them. */
void *tarn__cl_pinned_new(int index, size_t bytes, void **host);
void tarn__cl_pinned_free(int index, void *buffer);
bool tarn__cl_pinned_upload(int index, void *buffer, size_t from, void *memory, int64_t offset, size_t bytes);
bool tarn__cl_pinned_join(int index, void *buffer);
bool tarn__cl_pinned_wait(int index, void *buffer);
void tarn__cl_pinned_set_events(int index, void *buffer, void *from, void *to);

/* ---- transpose.c ------------------------------------------------------------------------------------------------- */

/* Copies bits through tiles in local memory, where the device has it and the source is contiguous along another axis
 * than the target. False, and nothing is done, for other copies. */
bool tarn__cl_transpose(const tarn__call *call, const tarn__nest *nest);

/* ---- the kernel table -------------------------------------------------------------------------------------------- */

/* For kernels composed of others. */
const tarn__kernel_row *tarn__cl_kernel_table(void);

/* Registration: each unit of families.def writes its rows of the kernel table. */
#define TARN__CL_PROTOTYPE_YES(unit) void tarn__cl_register_##unit(tarn__kernel_row *rows);
#define TARN__CL_PROTOTYPE_NO(unit)
#define UNIT(family, unit, cpu, cuda, opencl) TARN__CL_PROTOTYPE_##opencl(unit)
#include "base/kernel/families.def"
#undef UNIT

#endif

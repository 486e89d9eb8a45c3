/* opencl.h: what the files of the OpenCL backend share on the host's side.
 *
 * A family of kernels is a pair of files, layernorm.c and layernorm.cl. The .c file enters launchers into the table; a
 * launcher makes calls of the launch API below and checks nothing: whatever fails is remembered, and the rest of that
 * launch does nothing. */
#ifndef TARN__OPENCL_H
#define TARN__OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>

#include "base/kernel/backend.h"

/* What a kernel reports of an index outside its axis, in the device's memory; prelude.cl writes it. */
typedef struct tarn__cl_fault_record {
    int64_t raised, function, value, limit;
} tarn__cl_fault_record;

/* One device, set up when it is first used. All work goes through its one queue, in order: the pool's blocks may then
 * be used again as soon as they are given back, because whatever still reads them was enqueued before. */
typedef struct tarn__cl_device {
    cl_device_id id;
    cl_device_type type;
    cl_context context;
    cl_command_queue queue;
    bool has_f64;          /* cl_khr_fp64, and not turned off by TARN_OPENCL_FP64=0 */
    bool has_f16;          /* cl_khr_fp16, tried, and not turned off by TARN_OPENCL_FP16=0 */
    const char *subgroups; /* that hand numbers over, tried: "INTEL", "KHR", or "ONE", each work-item alone, with
                              TARN_OPENCL_SUBGROUPS=1 where a device has none; NULL: none, or turned off by 0 */
    const char *language;  /* of programs with subgroups; others are in CL1.2 */
    /* memory of a group is faster than a buffer: a GPU; false on PoCL. TARN_OPENCL_LOCAL=1 makes it true */
    bool has_local_memory;
    bool is_cpu;
    /* neighbouring work-items run together, and should touch neighbours: a GPU, or what is used like one */
    bool in_lockstep;
    bool shares_memory; /* with the host */
    size_t max_group;   /* work-items in a group at most; a kernel may have fewer, */
    size_t group_limit; /* and with TARN_OPENCL_GROUP no more than these */
    size_t local_bytes; /* of a group at most */
    cl_uint units;      /* compute units */
    int index;
    char name[128], vendor[64], driver[64];
    char options[256]; /* of every program */
    size_t memory_total, memory_used;
    pthread_mutex_t choosing;              /* of `tile` */
    const struct tarn__cl_gemm_tile *tile; /* of large products of f32, once it is chosen: see gemm_tune.c */
    pthread_mutex_t lock;                  /* of kernels' arguments, programs, and what follows */
    struct tarn__cl_staging *staging;      /* see transfer.c */
    cl_command_queue copies;               /* see pinned.c; NULL until the first lane is made */
    struct tarn__cl_program *programs;
    struct tarn__cl_kernel **kernels; /* a table by hash, see program.c */
    size_t kernel_capacity, kernel_count;
    cl_mem record;               /* a tarn__cl_fault_record */
    cl_mem host_record_memory;   /* of the next, which is pinned: a read into any other memory may hold the host */
    tarn__cl_fault_record *seen; /* what was last read of it; valid when `reading` has passed */
    cl_event reading;            /* NULL: no read is under way */
    bool is_unread;              /* something that may have found a fault came behind that read */
    bool has_failed;             /* since the last poll */
    char failure[256];
    bool is_lost; /* for good: see tarn__cl_check_lost */
    char loss[512];
} tarn__cl_device;

/* The device at `index`; NULL when it cannot be set up: see tarn__cl_failure. */
tarn__cl_device *tarn__cl_device_at(int index);
/* The same; NULL, too, when it is lost. */
tarn__cl_device *tarn__cl_device_alive(int index);

/* ---- the launch API ---------------------------------------------------------------------------------------------- */

/* One launch in the making. Begin locks the device, go unlocks it: between them only the calls below, and none of
 * another launch. A program that does not compile, and a group that the device does not start, make the call one for
 * the CPU (see `declined` of a backend); an argument or an enqueue that fails makes the device's next poll fail. */
typedef struct tarn__cl_launch {
    tarn__cl_device *device;
    cl_kernel kernel;
    cl_uint next;     /* argument */
    size_t max_items; /* of a group of this kernel */
    bool good;        /* the device is locked */
    bool has_fault;
    bool reads_output; /* the call does */
    const char *name;
} tarn__cl_launch;

/* `source` is a file's name without ".cl"; `kernel` its __kernel function; `options` what is added to the compiler's
 * ("-DT=bf16 -DOP=tanh"), or "". Texts are copied. Programs are compiled once for a device and options, and kept, here
 * and on disk. */
tarn__cl_launch tarn__cl_begin(const tarn__call *call, const char *source, const char *kernel, const char *options);

/* The same for a kernel that has another form, where this one does not compile or the device has no room for a group of
 * `items`: then the launch is not good, nothing is locked, and the call stands as before. */
tarn__cl_launch tarn__cl_try(const tarn__call *call, const char *source, const char *kernel, const char *options,
                             size_t items);
/* The largest power of two that a group of a kernel that was tried may have; 1 where it does not compile. */
size_t tarn__cl_max_group(const tarn__cl_launch *launch);

/* TWO arguments: __global void *, and a long, the place of the view's first element, in ELEMENTS; of blocks, in BYTES.
 * NULL: a null pointer and 0. */
void tarn__cl_arg_view(tarn__cl_launch *launch, const tarn__view *view);
/* TWO arguments: __global void *, and a long, the place in BYTES of what lies `bytes` into the call's scratch. */
void tarn__cl_arg_scratch(tarn__cl_launch *launch, const tarn__call *call, int64_t bytes);
/* a scalar, or a struct by value; at most 1024 bytes in all */
void tarn__cl_arg_value(tarn__cl_launch *launch, const void *value, size_t bytes);
void tarn__cl_arg_int(tarn__cl_launch *launch, int32_t value);
void tarn__cl_arg_long(tarn__cl_launch *launch, int64_t value);
/* `real` in the kernel: a double where the device has it, else a float */
void tarn__cl_arg_real(tarn__cl_launch *launch, double value);
/* The LAST TWO arguments, FAULT_PARAMETERS in the kernel, of one that may find an index outside its axis. */
void tarn__cl_arg_fault(tarn__cl_launch *launch, const tarn__call *call);
/* Enqueues the read of faults that was put off, if one was: under the lock, or taking it. */
bool tarn__cl_read_faults(tarn__cl_device *device);
bool tarn__cl_flush_faults(tarn__cl_device *device);

/* Enqueues it. `local` NULL: of the core's choice, in one dimension. `global` is rounded up to a multiple of the group,
 * so kernels check their index against the size; where a size is 0 nothing runs. Few different group sizes: PoCL
 * compiles a kernel for each. */
void tarn__cl_enqueue(tarn__cl_launch *launch, int rank, const size_t *global, const size_t *local);
/* The same where work-items of a group do not meet: groups of `most` along the first axis, or as many as the kernel may
 * have; `most` is a power of two. */
void tarn__cl_enqueue_independent(tarn__cl_launch *launch, int rank, const size_t *global, size_t most);

/* Ends a launch that is not made: true where it could have been. */
bool tarn__cl_cancel(tarn__cl_launch *launch);
/* True when this program compiles; else the call is one for the CPU. Asked first, of all its programs, by a kernel of
 * several launches, so that it never stops half way. */
bool tarn__cl_compiles(const tarn__call *call, const char *source, const char *kernel, const char *options);

/* A plain copy of bytes within the device, in the queue's order; the two pieces do not overlap. */
void tarn__cl_copy_bytes(const tarn__call *call, void *to, int64_t to_offset, const void *from, int64_t from_offset,
                         size_t bytes);

/* Whether the calling thread's last call was declined, and forgets it. */
bool tarn__cl_declined(int index);

/* "f32", "f64", "bf16", "f16", "i32", "i64", "u8", "boolean": as prelude.cl names it. */
const char *tarn__cl_dtype_name(tarn_dtype dtype);

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* True for CL_SUCCESS; else remembers what failed, for this thread. */
bool tarn__cl_check(cl_int error, const char *what);
void tarn__cl_fail(const char *format, ...) TARN_PRINTF(1, 2);
const char *tarn__cl_failure(void);
const char *tarn__cl_error_name(cl_int error);

/* The calling thread's last failure becomes the device's, for its next poll. */
void tarn__cl_set_failed(tarn__cl_device *device);

/* After something on a device failed. One whose queue does not come to its end either is lost, as when a driver took it
 * away: it is given nothing more, and every later call fails with the sentence that says why. Returns false. */
bool tarn__cl_check_lost(tarn__cl_device *device);
bool tarn__cl_is_lost(const tarn__cl_device *device);

/* What the library lends. */
extern const tarn__host *tarn__cl_host;

/* ---- device.c ---------------------------------------------------------------------------------------------------- */

int tarn__cl_count(void);
/* `options` of a device, by what is known of it. */
void tarn__cl_set_build_options(tarn__cl_device *device);
/* features.c: drops of has_f16 and subgroups what does not work, and names the options. */
void tarn__cl_probe_features(tarn__cl_device *device);
/* Looks for devices: GPUs and accelerators first. False, with the reason in `why`, when there is none. */
bool tarn__cl_find_devices(char *why, size_t why_size);
bool tarn__cl_device_query(int index, tarn_device_info *info);

/* ---- program.c, cache.c ------------------------------------------------------------------------------------------ */

/* An entry of the table of kernels. */
typedef struct tarn__cl_kernel {
    uint64_t hash;
    char *source, *function, *options;
    cl_kernel kernel; /* NULL: the program does not compile */
    size_t max_items; /* of a group; 0: the memory of a group does not do */
} tarn__cl_kernel;

/* Under the device's lock. NULL when it does not compile, or memory is short. */
const tarn__cl_kernel *tarn__cl_get_kernel(tarn__cl_device *device, const char *source, const char *function,
                                           const char *options);

/* The text of a program: the prelude, then the file with its includes; the caller frees it. NULL when there is no such
 * file. */
char *tarn__cl_program_source(const char *source);

/* True when TARN_OPENCL_WITHOUT=tanh,panels names it: a kernel of the table, or a file. */
bool tarn__cl_is_disabled(const char *name);
/* False, with the word in `why`, when it names something that there is not. */
bool tarn__cl_check_disabled(char *why, size_t why_size);
/* False, with a sentence in `why`, when a variable TARN_OPENCL_… says what it may not. */
bool tarn__cl_check_variables(char *why, size_t why_size);

/* A program's binary of an earlier run, by the hash of everything that it depends on; NULL where there is none. Keeping
 * one never fails: what cannot be kept is compiled again by the next run, and the first of a process is told. */
cl_program tarn__cl_cache_find(tarn__cl_device *device, const char *text, const char *options);
void tarn__cl_cache_store(tarn__cl_device *device, const char *text, const char *options, cl_program program);

/* Any bytes by a key of text: those that were written last, which the caller frees; NULL where there are none. Without
 * a folder none are kept. */
unsigned char *tarn__cl_cache_read(const char *key, size_t *length);
void tarn__cl_cache_write(const char *key, const void *bytes, size_t length);
bool tarn__cl_cache_is_on(void);

/* That a device compiles what later runs will find: once, when it has taken some seconds. */
void tarn__cl_log_compiling(const tarn__cl_device *device, double seconds);

/* Files that the build put into the library. */
typedef struct tarn__cl_file {
    const char *name; /* "copy.cl", "elementwise.def" */
    const unsigned char *bytes;
    size_t length;
} tarn__cl_file;
extern const tarn__cl_file tarn__cl_files[];
extern const int tarn__cl_file_count;

/* ---- transfer.c, pinned.c ---------------------------------------------------------------------------------------- */

bool tarn__cl_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream);
bool tarn__cl_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream);

/* Host memory that the device reads by itself, mapped for as long as it lives; `memory` is what to unmap and release.
 * NULL: see tarn__cl_failure. */
char *tarn__cl_alloc_pinned(tarn__cl_device *device, size_t bytes, cl_mem *memory);

void *tarn__cl_pinned_new(int index, size_t bytes, void **host);
void tarn__cl_pinned_free(int index, void *lane);
bool tarn__cl_pinned_send(int index, void *lane, size_t from, void *memory, int64_t offset, size_t bytes);
bool tarn__cl_pinned_join(int index, void *lane);
bool tarn__cl_pinned_wait(int index, void *lane);
void tarn__cl_pinned_mark(int index, void *lane, void *from, void *to);

/* ---- transpose.c ------------------------------------------------------------------------------------------------- */

/* Copies bits by tiles in a group's memory, where the device's is real and the source's neighbours lie on another axis
 * of the nest than the target's. False, and nothing is done, where this is no such copy. */
bool tarn__cl_transpose(const tarn__call *call, const tarn__nest *nest);

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* For kernels made of others. */
const tarn__kernel_row *tarn__cl_kernel_table(void);

/* One function a family enters its kernels into the table. */
void tarn__cl_register_copy(tarn__kernel_row *rows);
void tarn__cl_register_elementwise(tarn__kernel_row *rows);
void tarn__cl_register_random(tarn__kernel_row *rows);
void tarn__cl_register_reduce(tarn__kernel_row *rows);
void tarn__cl_register_reduce_grad(tarn__kernel_row *rows);
void tarn__cl_register_gather(tarn__kernel_row *rows);
void tarn__cl_register_scatter(tarn__kernel_row *rows);
void tarn__cl_register_sort(tarn__kernel_row *rows);
void tarn__cl_register_pad(tarn__kernel_row *rows);
void tarn__cl_register_scan(tarn__kernel_row *rows);
void tarn__cl_register_quantize(tarn__kernel_row *rows);
void tarn__cl_register_kv_q8(tarn__kernel_row *rows);
void tarn__cl_register_matmul(tarn__kernel_row *rows);
void tarn__cl_register_attention(tarn__kernel_row *rows);
void tarn__cl_register_conv(tarn__kernel_row *rows);
void tarn__cl_register_layernorm(tarn__kernel_row *rows);
void tarn__cl_register_softmax(tarn__kernel_row *rows);
void tarn__cl_register_cross_entropy(tarn__kernel_row *rows);
void tarn__cl_register_optimizer(tarn__kernel_row *rows);
void tarn__cl_register_clip(tarn__kernel_row *rows);
void tarn__cl_register_rope(tarn__kernel_row *rows);
void tarn__cl_register_pool(tarn__kernel_row *rows);
void tarn__cl_register_batchnorm(tarn__kernel_row *rows);
void tarn__cl_register_groupnorm(tarn__kernel_row *rows);
void tarn__cl_register_quant_matmul(tarn__kernel_row *rows);
void tarn__cl_register_fused(tarn__kernel_row *rows);

#endif

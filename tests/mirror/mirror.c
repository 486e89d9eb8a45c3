/* mirror.c: a backend for tests: two devices that keep their memory apart from the host's and run the CPU's kernels on
 * it, or record them (capture.c).
 *
 * Addresses are handed out shifted, so that the host touching device memory is a crash and not a silent success. Every
 * kernel is wrapped: views are shifted back, the CPU's kernel runs, nothing else. Settings, read when the backend is
 * loaded:
 *   TARN_MIRROR_DISABLE=tanh,matmul   kernels this backend lacks
 *   TARN_MIRROR_DECODE=1              kernels of the decode step, which the CPU lacks (decode.c)
 *   TARN_MIRROR_MEMORY=1048576        bytes of memory per device
 *   TARN_MIRROR_GPU=1                 the devices report to be GPUs with tensor cores
 *   TARN_MIRROR_DEVICELESS=REASON     no devices
 *   TARN_MIRROR_UNUSABLE=1            the first N devices have no code
 *
 * An upload from a pinned buffer is delayed as long as a real device may delay it: until the host waits for it, or
 * until the buffer was joined and the device is used. A reader of the target that comes too early finds old bytes; a
 * writer of the host's memory too early finds those on the device. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mirror.h"

#define DEVICES MIRROR_DEVICES

const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size);

static const tarn__kernel_row *cpu;
static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t limit = (size_t)4 << 30, used[DEVICES];
static _Thread_local tarn__fault found[DEVICES]; /* by a kernel, since the last poll */

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

#define MAX_SENT 1024

typedef struct sent {
    const void *buffer;
    char *to;
    const char *from;
    size_t bytes;
} sent;

static sent queue[DEVICES][MAX_SENT];     /* copies that are put off, in the order in which they were sent */
static int queued[DEVICES], due[DEVICES]; /* how many; how many of them come before what the device does next */

static void *pinned_new(int index, size_t bytes, void **host)
{
    (void)index;
    return *host = aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void pinned_free(int index, void *buffer)
{
    (void)index;
    free(buffer);
}

static bool pinned_upload(int index, void *buffer, size_t from, void *memory, int64_t offset, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool fits = queued[index] < MAX_SENT;
    if (fits)
        queue[index][queued[index]++] =
            (sent){buffer, mirror_real(memory) + offset, (const char *)buffer + from, bytes};
    pthread_mutex_unlock(&lock);
    return fits;
}

/* Under the lock: up to and with the last copy of a buffer. */
static int end_of(int index, const void *buffer)
{
    int end = queued[index];
    while (end > 0 && queue[index][end - 1].buffer != buffer)
        end--;
    return end;
}

/* Under the lock: does the first `count` copies. */
static void do_copies(int index, int count)
{
    for (int i = 0; i < count; i++)
        memcpy(queue[index][i].to, queue[index][i].from, queue[index][i].bytes);
    queued[index] -= count;
    memmove(queue[index], queue[index] + count, sizeof(sent) * (size_t)queued[index]);
    due[index] = due[index] > count ? due[index] - count : 0;
}

static bool pinned_join(int index, void *buffer)
{
    pthread_mutex_lock(&lock);
    int end = end_of(index, buffer);
    due[index] = end > due[index] ? end : due[index];
    pthread_mutex_unlock(&lock);
    return true;
}

static bool pinned_wait(int index, void *buffer)
{
    pthread_mutex_lock(&lock);
    do_copies(index, end_of(index, buffer));
    pthread_mutex_unlock(&lock);
    return true;
}

/* Before anything that the device does. */
void mirror_catch_up(int index)
{
    pthread_mutex_lock(&lock);
    do_copies(index, due[index]);
    pthread_mutex_unlock(&lock);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

void mirror_shift_back(mirror_call *s, const tarn__call *call)
{
    s->call = *call;
    for (int i = 0; i < call->inputs; i++)
        if (call->in[i]) {
            s->in[i] = *call->in[i];
            s->in[i].memory = mirror_real(s->in[i].memory);
            s->call.in[i] = &s->in[i];
        }
    for (int i = 0; i < call->outputs; i++)
        if (call->out[i]) {
            s->out[i] = *call->out[i];
            s->out[i].memory = mirror_real(s->out[i].memory);
            s->call.out[i] = &s->out[i];
        }
    if (call->scratch)
        s->call.scratch = mirror_real(call->scratch);
}

void mirror_run_kernel(tarn__call *call)
{
    tarn__fault fault = {.function = call->function};
    call->fault = &fault;
    tarn__call composed = {.plan = call->plan};
    tarn__part_run(&composed, tarn__plan_job(composed.plan), call);
    call->plan = composed.plan; /* a captured call runs again */
    call->fault = NULL;
    if (fault.raised && !found[call->device].raised)
        found[call->device] = fault;
}

static bool poll_faults(int index, tarn__fault *fault)
{
    *fault = found[index];
    found[index] = (tarn__fault){0};
    return true;
}

static void run(tarn__kernel kernel, const tarn__call *call)
{
    mirror_call s;
    if (mirror_is_capturing(call->device)) {
        mirror_capture(kernel, call);
        return;
    }
    mirror_catch_up(call->device);
    mirror_shift_back(&s, call);
    mirror_run_kernel(&s.call);
}

/* The CPU's row and its plan are the one part of this plan. */
static tarn__plan_status prepare(tarn__kernel kernel, const tarn__call *call, tarn__plan *plan)
{
    mirror_call s;
    mirror_shift_back(&s, call);
    tarn__part *part = tarn__plan_reserve(plan, sizeof(*part));
    if (!part)
        return TARN__PLAN_FAILED;
    tarn__plan_status status = tarn__part_prepare(plan, part, &cpu[kernel], &s.call);
    plan->scratch_bytes = part->scratch_bytes;
    return status;
}

#define WRAP(name) \
    static void run_##name(const tarn__call *call) \
    { \
        run(TARN__K_##name, call); \
    } \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return prepare(TARN__K_##name, call, plan); \
    }
#define UNARY(name, ...) WRAP(name) WRAP(name##_grad)
#define BINARY(name, ...) WRAP(name) WRAP(name##_grad) WRAP(name##_grad_a) WRAP(name##_grad_b)
#define COMPARE(name, ...) WRAP(name)
#define KERNEL(name, ...) WRAP(name)
#include "base/kernel/elementwise.def"
WRAP(where)
#include "base/kernel/kernels.def"
#undef UNARY
#undef BINARY
#undef COMPARE
#undef KERNEL

static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && strncmp(at, name, length) == 0)
            return true;
    return false;
}

/* Of all rows of a kernel: run() picks among them. */
static uint32_t dtypes_of(const tarn__kernel_row *row)
{
    uint32_t dtypes = 0;
    for (; row; row = row->next)
        dtypes |= row->dtypes;
    return dtypes;
}

/* The CPU's rows and those of decode.c. */
static const tarn__kernel_row *with_decode(const tarn__kernel_row *table)
{
    static tarn__kernel_row all[TARN__KERNEL_COUNT];
    memcpy(all, table, sizeof(all));
    mirror_add_decode(all);
    return all;
}

/* What a kernel of one row fits; of several, prepare() decides. */
static bool (*own_fits(const tarn__kernel_row *row))(const tarn__call *)
{
    return row->next ? NULL : row->fits;
}

static void fill_rows(const char *without)
{
#define ROW(name) \
    if (!listed(without, #name)) \
        rows[TARN__K_##name] = \
            tarn__row_fits(tarn__row_planned(prepare_##name, cpu[TARN__K_##name].run ? run_##name : NULL, \
                                             dtypes_of(&cpu[TARN__K_##name])), \
                           own_fits(&cpu[TARN__K_##name]));
#define UNARY(name, ...) ROW(name) ROW(name##_grad)
#define BINARY(name, ...) ROW(name) ROW(name##_grad) ROW(name##_grad_a) ROW(name##_grad_b)
#define COMPARE(name, ...) ROW(name)
#define KERNEL(name, ...) ROW(name)
#include "base/kernel/elementwise.def"
    ROW(where)
#include "base/kernel/kernels.def"
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Leak checkers do not see shifted addresses, so what is out is listed in a header before each piece of memory. */
typedef struct piece {
    struct piece *previous, *next;
} piece;
#define HEADER ((size_t)256)

static piece *pieces;

static void *alloc(int index, size_t bytes)
{
    pthread_mutex_lock(&lock);
    piece *new_piece = used[index] + bytes <= limit ? aligned_alloc(256, HEADER + (bytes + 255) / 256 * 256) : NULL;
    if (new_piece) {
        used[index] += bytes;
        *new_piece = (piece){NULL, pieces};
        if (pieces)
            pieces->previous = new_piece;
        pieces = new_piece;
    }
    pthread_mutex_unlock(&lock);
    return new_piece ? mirror_shift((char *)new_piece + HEADER) : NULL;
}

static void release(int index, void *memory, size_t bytes)
{
    piece *old = (piece *)(void *)(mirror_real(memory) - HEADER);
    mirror_catch_up(index);
    pthread_mutex_lock(&lock);
    used[index] -= bytes;
    *(old->previous ? &old->previous->next : &pieces) = old->next;
    if (old->next)
        old->next->previous = old->previous;
    pthread_mutex_unlock(&lock);
    free(old);
}

static bool upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    (void)stream;
    mirror_catch_up(index);
    memcpy(mirror_real(memory) + offset, host, bytes);
    return true;
}

static bool download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    (void)stream;
    mirror_catch_up(index);
    memcpy(host, mirror_real(memory) + offset, bytes);
    return true;
}

static bool peer(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                 size_t bytes, void *stream)
{
    (void)stream;
    mirror_catch_up(to_index);
    mirror_catch_up(from_index);
    memcpy(mirror_real(to) + to_offset, mirror_real(from) + from_offset, bytes);
    return true;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static int device_count(void)
{
    return getenv("TARN_MIRROR_DEVICELESS") ? 0 : DEVICES;
}

static const char *unusable(int index)
{
    const char *text = getenv("TARN_MIRROR_UNUSABLE");
    return text && index < atoi(text) ? "it is of another kind than this build has code for" : NULL;
}

static bool device_query(int index, tarn_device_info *info)
{
    pthread_mutex_lock(&lock);
    snprintf(info->description, sizeof(info->description), "mirror of the CPU, number %d", index);
    snprintf(info->detail, sizeof(info->detail), "for tests");
    snprintf(info->type, sizeof(info->type), "%s", getenv("TARN_MIRROR_GPU") ? "gpu" : "");
    info->memory_total = (int64_t)limit;
    info->memory_free = (int64_t)(limit - used[index]);
    pthread_mutex_unlock(&lock);
    return true;
}

static bool synchronize(int index)
{
    mirror_catch_up(index);
    return true;
}

/* One choice for all devices, which is what was taken last. */
static char choice[64] = "mirror 1";

static void tuning_export(int index, void (*take)(void *ctx, const char *line), void *ctx)
{
    (void)index;
    take(ctx, choice);
}

static void tuning_import(int index, const char *line)
{
    (void)index;
    snprintf(choice, sizeof(choice), "%s", line);
}

static const char *failure(void)
{
    return "the mirror never fails";
}

__attribute__((visibility("default"))) const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why,
                                                                               size_t why_size)
{
    static tarn__backend backend = {
        .name = "mirror",
        .plain_addresses = true,
        .device_count = device_count,
        .device_query = device_query,
        .unusable = unusable,
        .alloc = alloc,
        .release = release,
        .upload = upload,
        .download = download,
        .peer = peer,
        .synchronize = synchronize,
        .poll = poll_faults,
        .capture_begin = mirror_capture_begin,
        .capture_end = mirror_capture_end,
        .graph_launch = mirror_graph_launch,
        .graph_free = mirror_graph_free,
        .write_inline = mirror_write_inline,
        .pinned_new = pinned_new,
        .pinned_free = pinned_free,
        .pinned_upload = pinned_upload,
        .pinned_join = pinned_join,
        .pinned_wait = pinned_wait,
        .tuning_export = tuning_export,
        .tuning_import = tuning_import,
        .failure = failure,
        .kernels = rows,
    };
    if (getenv("TARN_MIRROR_DEVICELESS"))
        snprintf(why, why_size, "%s", getenv("TARN_MIRROR_DEVICELESS"));
    if (getenv("TARN_MIRROR_REFUSE")) {
        snprintf(why, why_size, "%s", getenv("TARN_MIRROR_REFUSE"));
        return NULL;
    }
    backend.kernels_hash = tarn__kernels_hash() + (getenv("TARN_MIRROR_OLD") != NULL);
    backend.version = host->version;
    cpu = getenv("TARN_MIRROR_DECODE") ? with_decode(host->cpu_kernels) : host->cpu_kernels;
    backend.has_tf32 = backend.has_bf16 = getenv("TARN_MIRROR_GPU") != NULL;
    backend.auto_priority = backend.has_tf32;
    fill_rows(getenv("TARN_MIRROR_DISABLE"));
    if (getenv("TARN_MIRROR_MEMORY"))
        limit = (size_t)strtoull(getenv("TARN_MIRROR_MEMORY"), NULL, 10);
    return &backend;
}

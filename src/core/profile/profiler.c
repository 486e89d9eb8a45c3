/* profiler.c: the profiler: one list of timed records for all threads.
 *
 * A device with its own clock is measured by two events around each piece of work, read after the end. Work inside a
 * captured step cannot be told apart; the run of the step is one record. On synchronous devices the host's clock is
 * used.
 *
 * A record that cannot be stored is counted as lost and is never an error: profiling must not make the program fail.
 *
 * Threads: the list is guarded by one lock; spans and the backward flag are per thread. A record belongs to the
 * profile that was running when it began, so a profile never contains work it did not see from the start.
 *
 * A sample is a second, short profile: it swaps the list out and back, and only the time the device was busy is
 * kept. */
#include "core/profile/profiler.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/os/platform.h"
#include "core/launch/graph.h"

enum { MAX_RECORDS = 1 << 18, MAX_DEPTH = 16 };
#define LONG \
    2e5 /* microseconds; events further apart are not compared: CUDA gives their distance as f32 milliseconds */

_Atomic bool tarn__profiling;

static struct profiler {
    pthread_mutex_t lock;
    tarn_device device;
    const tarn__backend *backend;
    void *base; /* the event at the start; NULL: host clock */
    double begin;
    _Atomic uint32_t generation; /* number of the profile, samples included */
    tarn__timing *entry;         /* [capacity] */
    int64_t count, lost;
    int capacity;
    double microseconds;
    int threads;
    bool exists;         /* a profile is running or finished */
    tarn__profile aside; /* the profile that a sample replaced for a while */
    int aside_capacity;
    bool aside_exists;
} profiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Per-thread state. */
static _Thread_local struct {
    uint32_t generation;
    int number;
    bool is_backward;
    int depth; /* of open spans, those beyond MAX_DEPTH included */
    tarn__timing span[MAX_DEPTH];
} here;

/* Host clock in microseconds; records are made relative to the start at the end. */
static double now(void)
{
    return 1e6 * tarn__platform_seconds();
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Makes room for one more record. False at MAX_RECORDS and when out of memory, which is not an error here. */
static bool reserve(void)
{
    if (profiler.count < profiler.capacity)
        return true;
    if (profiler.count >= MAX_RECORDS)
        return false;
    tarn__error_record pending;
    tarn__error_save(&pending);
    bool good = tarn__list_reserve(&profiler.entry, (int)profiler.count, &profiler.capacity, sizeof(*profiler.entry));
    tarn_clear_error();
    tarn__error_restore(&pending);
    return good;
}

/* Returns the events of a record to the backend. */
static void free_events(tarn__timing *timing)
{
    const tarn__backend *backend = tarn__backend_at(timing->record.device.backend);
    if (timing->from)
        backend->event_free(timing->record.device.index, timing->from);
    if (timing->to)
        backend->event_free(timing->record.device.index, timing->to);
    timing->from = timing->to = NULL;
}

/* Adds a record. Work that began in an earlier profile, or ends after this one, is dropped. */
static void append(tarn__timing *timing)
{
    pthread_mutex_lock(&profiler.lock);
    bool counts = tarn__is_profiling() && timing->generation == profiler.generation;
    bool is_kept = counts && reserve();
    if (is_kept) {
        if (here.generation != profiler.generation) {
            here.generation = profiler.generation;
            here.number = profiler.threads++;
        }
        timing->record.thread = here.number;
        profiler.entry[profiler.count++] = *timing;
    }
    if (counts && !is_kept)
        profiler.lost++; /* after the end nothing is written, because the list is read without a lock */
    if (!is_kept)
        free_events(timing);
    pthread_mutex_unlock(&profiler.lock);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* True when the device's events are used: those of the profiled device, outside capture. */
static bool uses_events(tarn_device device)
{
    pthread_mutex_lock(&profiler.lock);
    bool has_clock = tarn__is_profiling() && profiler.base && tarn__same_device(device, profiler.device);
    pthread_mutex_unlock(&profiler.lock);
    return has_clock && !tarn__is_capturing(device);
}

/* Records an event; NULL where the device fails: its time stays unknown. */
static void *new_event(tarn_device device)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    void *event = backend->event_new(device.index);
    if (!event || backend->event_record(device.index, event, backend->stream(device.index)))
        return event;
    backend->event_free(device.index, event);
    return NULL;
}

/* Fills in the record and records the first event where the device has a clock. */
void tarn__timing_begin(tarn__timing *timing, tarn_profile_kind kind, const char *name, const char *function,
                        tarn_device device)
{
    *timing = (tarn__timing){.generation = atomic_load(&profiler.generation)};
    tarn_profile_record *r = &timing->record;
    *r = (tarn_profile_record){
        .kind = kind, .name = name, .function = function, .device = device, .is_backward = here.is_backward};
    r->device_start = r->device_end = (double)NAN;
    r->host_start = now();
    if (kind < TARN_PROFILE_WAIT && kind != TARN_PROFILE_LOADER_COPY && uses_events(device))
        timing->from = new_event(device);
}

/* On synchronous devices the device's times are the host's. */
void tarn__timing_end(tarn__timing *timing)
{
    tarn_profile_record *r = &timing->record;
    if (!timing->generation)
        return;
    if (timing->from && !timing->to)
        timing->to = new_event(r->device);
    r->host_end = now();
    /* NULL: the CPU before its first use */
    const tarn__backend *backend = tarn__backend_at(r->device.backend);
    bool is_synchronous = !backend || !backend->event_new;
    if (r->kind < TARN_PROFILE_WAIT && is_synchronous && !tarn__is_capturing(r->device)) {
        r->device_start = r->host_start;
        r->device_end = r->host_end;
    }
    append(timing);
    timing->generation = 0;
}

/* Uploads of the loader are recorded by events inside the backend, on its copy stream. */
void tarn__timing_pinned(tarn__timing *timing, void *pinned, tarn_device device, double bytes)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    timing->record.bytes = bytes;
    timing->is_under_way = !backend->pinned_set_events;
    if (!backend->pinned_set_events || !uses_events(device))
        return;
    timing->from = backend->event_new(device.index);
    timing->to = timing->from ? backend->event_new(device.index) : NULL;
    if (timing->to)
        backend->pinned_set_events(device.index, pinned, timing->from, timing->to);
    else
        free_events(timing);
}

bool tarn__profile_backward(bool is_backward)
{
    bool before = here.is_backward;
    here.is_backward = is_backward;
    return before;
}

/* ---- spans ------------------------------------------------------------------------------------------------------- */

/* Spans beyond MAX_DEPTH are counted, so that closes still match, but not recorded. */
void tarn_profile_span_open(const char *name)
{
    if (here.depth < MAX_DEPTH) {
        here.span[here.depth].generation = 0;
        if (tarn__is_profiling() && name)
            tarn__timing_begin(&here.span[here.depth], TARN_PROFILE_SPAN, name, NULL, tarn_device_cpu());
    }
    here.depth++;
}

void tarn_profile_span_close(void)
{
    if (here.depth == 0)
        return;
    if (--here.depth < MAX_DEPTH)
        tarn__timing_end(&here.span[here.depth]);
}

/* ---- from start to stop ------------------------------------------------------------------------------------------ */

bool tarn_profile_is_on(void)
{
    return tarn__is_profiling();
}

/* Waits for the device first, so that earlier work is not measured. */
bool tarn_profile_start(tarn_device device)
{
    const tarn__backend *backend = tarn_failed() ? NULL : tarn__backend_of(device, "profile_start");
    if (!backend)
        return false;
    if (tarn__is_profiling())
        return tarn__raise(TARN_ERROR_ARGUMENT, "profile_start: profiling is already on; stop it first");
    if (!tarn__not_captured("profile_start", device, "a profile") || !tarn_synchronize(device))
        return false;
    pthread_mutex_lock(&profiler.lock);
    uint32_t generation = atomic_load(&profiler.generation) + 1;
    profiler.device = device;
    profiler.backend = backend;
    profiler.count = profiler.lost = 0;
    profiler.threads = 1;
    profiler.base = NULL;
    profiler.exists = true;
    profiler.begin = now();
    here.generation = generation ? generation : 1;
    here.number = 0;
    atomic_store(&profiler.generation, here.generation);
    bool good = !backend->event_new || (profiler.base = new_event(device)) != NULL;
    atomic_store(&tarn__profiling, good);
    pthread_mutex_unlock(&profiler.lock);
    return good || tarn__raise(TARN_ERROR_DEVICE, "profile_start: %s", backend->failure());
}

/* Reads all events, each relative to the last one whose time is known, so that no distance is too long to be exact. */
static bool read_events(void)
{
    int index = profiler.device.index;
    double base_time = 0, before = 0, from, to;
    void *base = profiler.base;
    bool good = true;
    for (int64_t i = 0; i < profiler.count; i++) {
        tarn__timing *t = &profiler.entry[i];
        if (!t->from || !t->to)
            continue;
        if (!profiler.backend->event_elapsed(index, base, t->from, &from) ||
            !profiler.backend->event_elapsed(index, base, t->to, &to)) {
            good = false;
            continue;
        }
        t->record.device_start = base_time + from;
        t->record.device_end = base_time + to;
        if (t->record.kind == TARN_PROFILE_LOADER_COPY)
            continue;
        /* One stream: apparent overlaps are rounding of the clock. */
        t->record.device_start = fmax(t->record.device_start, before);
        before = t->record.device_end = fmax(t->record.device_end, t->record.device_start);
        if (to > LONG) {
            base = t->to;
            base_time = before;
        }
    }
    for (int64_t i = 0; i < profiler.count; i++)
        free_events(&profiler.entry[i]);
    return good;
}

/* Makes times relative to the start; device times, too, where they are the host's. */
static void count_from_beginning(void)
{
    for (int64_t i = 0; i < profiler.count; i++) {
        tarn_profile_record *r = &profiler.entry[i].record;
        r->host_start -= profiler.begin;
        r->host_end -= profiler.begin;
        r->device_start -= profiler.begin; /* NaN stays NaN */
        r->device_end -= profiler.begin;
    }
}

/* Waits for the device, ends recording, then reads all events at once. */
bool tarn_profile_stop(void)
{
    if (!tarn__is_profiling())
        return !tarn_failed() && tarn__raise(TARN_ERROR_ARGUMENT, "profile_stop: profiling is off");
    bool good = profiler.backend->synchronize(profiler.device.index);
    pthread_mutex_lock(&profiler.lock);
    profiler.microseconds = now() - profiler.begin;
    atomic_store(&tarn__profiling, false);
    count_from_beginning();
    if (profiler.base) {
        good = read_events() && good;
        profiler.backend->event_free(profiler.device.index, profiler.base);
        profiler.base = NULL;
    }
    pthread_mutex_unlock(&profiler.lock);
    if (!good && !tarn_failed())
        tarn__raise(TARN_ERROR_DEVICE, "profile_stop: %s", profiler.backend->failure());
    return good && !tarn_failed();
}

/* Frees the records; does nothing while a profile runs. */
void tarn_profile_clear(void)
{
    pthread_mutex_lock(&profiler.lock);
    if (!tarn__is_profiling()) {
        tarn__release(profiler.entry, sizeof(tarn__timing) * (size_t)profiler.capacity);
        profiler.entry = NULL;
        profiler.count = profiler.lost = 0;
        profiler.capacity = 0;
        profiler.exists = false;
    }
    pthread_mutex_unlock(&profiler.lock);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* For utilization in training reports: a profile of a few steps that must not disturb a user's own. */
bool tarn__sample_start(tarn_device device)
{
    if (tarn_failed() || tarn__is_profiling())
        return false;
    profiler.aside = (tarn__profile){profiler.entry,        profiler.count,  profiler.lost,
                                     profiler.microseconds, profiler.device, profiler.threads};
    profiler.aside_capacity = profiler.capacity;
    profiler.aside_exists = profiler.exists;
    profiler.entry = NULL;
    profiler.count = 0;
    profiler.capacity = 0;
    return tarn_profile_start(device);
}

/* Restores the profile that was put aside, on failure as well. */
bool tarn__sample_stop(double *busy_microseconds)
{
    tarn__profile sample;
    tarn_profile_summary summary = {0};
    const tarn__profile *aside = &profiler.aside;
    bool good =
        tarn_profile_stop() && tarn__profile_open("profile", &sample) && tarn__profile_fractions(&sample, &summary);
    *busy_microseconds = good ? summary.utilization * sample.microseconds : 0;
    pthread_mutex_lock(&profiler.lock);
    tarn__release(profiler.entry, sizeof(tarn__timing) * (size_t)profiler.capacity);
    profiler.entry = (tarn__timing *)aside->entry;
    profiler.count = aside->count;
    profiler.capacity = profiler.aside_capacity;
    profiler.lost = aside->lost;
    profiler.microseconds = aside->microseconds;
    profiler.device = aside->device;
    profiler.threads = aside->threads;
    profiler.exists = profiler.aside_exists;
    pthread_mutex_unlock(&profiler.lock);
    return good;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bool tarn__profile_open(const char *function, tarn__profile *profile)
{
    if (tarn_failed())
        return false;
    if (tarn__is_profiling() || !profiler.exists)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           tarn__is_profiling() ? "profiling is on; stop it first" : "no profile was recorded yet");
    *profile = (tarn__profile){profiler.entry,        profiler.count,  profiler.lost,
                               profiler.microseconds, profiler.device, profiler.threads};
    return true;
}

int64_t tarn_profile_count(void)
{
    tarn__profile profile;
    return tarn__profile_open("profile_count", &profile) ? profile.count : -1;
}

bool tarn_profile_get(int64_t index, tarn_profile_record *record)
{
    tarn__profile profile;
    if (!tarn__profile_open("profile_get", &profile))
        return false;
    if (index < 0 || index >= profile.count || !record)
        return tarn__raise(TARN_ERROR_ARGUMENT, "profile_get: %s, record %lld of %lld",
                           record ? "index out of range" : "the result is NULL", (long long)index,
                           (long long)profile.count);
    *record = profile.entry[index].record;
    return true;
}

/* profiler.c: what happened when: one list of records for all threads.
 *
 * A device with a clock of its own is asked by two events around each piece of work, which are read when everything is
 * over. What it does as part of a captured step cannot be told apart then; the run of the step is one record. Elsewhere
 * work is done when the call returns, and the host's clock serves.
 *
 * A record that could not be kept is counted, never an error: whoever is measured must not fail for it. */
#include "core/profile/profiler.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/os/platform.h"
#include "core/launch/graph.h"

enum { MOST_RECORDS = 1 << 18, MOST_DEEP = 16 };
#define LONG \
    2e5 /* microseconds; events further apart than this are not compared: their distance is a 32-bit number of \
           milliseconds */

_Atomic bool tarn__profiling;

static struct profiler {
    pthread_mutex_t lock;
    tarn_device device;
    const tarn__backend *backend;
    void *base; /* the event at the beginning; NULL: the host's clock serves */
    double begin;
    _Atomic uint32_t generation; /* counts the profiles, samples included */
    tarn__timing *entry;         /* [room] */
    int64_t count, room, lost;
    double microseconds;
    int threads;
    bool is_there;       /* a profile was taken, or is being */
    tarn__profile aside; /* what a sample has put aside */
    int64_t aside_room;
    bool aside_is_there;
} profiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What the profiler knows of a thread. */
static _Thread_local struct {
    uint32_t generation;
    int number;
    bool is_backward;
    int depth; /* of spans, those beyond MOST_DEEP included */
    tarn__timing span[MOST_DEEP];
} here;

/* Microseconds of the host's clock; records count from the beginning of the profile when it is over. */
static double now(void)
{
    return 1e6 * tarn__platform_seconds();
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static bool has_room(void)
{
    if (profiler.count < profiler.room)
        return true;
    int64_t room = profiler.room ? 2 * profiler.room : 4096;
    tarn__error_record pending;
    tarn__error_save(&pending);
    tarn__timing *grown = room <= MOST_RECORDS ? tarn__alloc(sizeof(*grown) * (size_t)room) : NULL;
    tarn_clear_error();
    tarn__error_restore(&pending);
    if (!grown)
        return false;
    if (profiler.count)
        memcpy(grown, profiler.entry, sizeof(*grown) * (size_t)profiler.count);
    tarn__release(profiler.entry, sizeof(*grown) * (size_t)profiler.room);
    profiler.entry = grown;
    profiler.room = room;
    return true;
}

static void free_events(tarn__timing *timing)
{
    const tarn__backend *backend = tarn__backend_at(timing->record.device.backend);
    if (timing->from)
        backend->event_free(timing->record.device.index, timing->from);
    if (timing->to)
        backend->event_free(timing->record.device.index, timing->to);
    timing->from = timing->to = NULL;
}

/* Work that began in an earlier profile, or is done after the end, belongs to none. */
static void append(tarn__timing *timing)
{
    pthread_mutex_lock(&profiler.lock);
    bool counts = tarn__is_profiling() && timing->generation == profiler.generation;
    bool is_kept = counts && has_room();
    if (is_kept) {
        if (here.generation != profiler.generation) {
            here.generation = profiler.generation;
            here.number = profiler.threads++;
        }
        timing->record.thread = here.number;
        profiler.entry[profiler.count++] = *timing;
    }
    if (counts && !is_kept)
        profiler.lost++; /* and nothing is written after the end, when the list is read */
    if (!is_kept)
        free_events(timing);
    pthread_mutex_unlock(&profiler.lock);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* True when the device's own clock is asked: that of the device whose profile is taken. */
static bool uses_events(tarn_device device)
{
    pthread_mutex_lock(&profiler.lock);
    bool has_clock = tarn__is_profiling() && profiler.base && tarn__same_device(device, profiler.device);
    pthread_mutex_unlock(&profiler.lock);
    return has_clock && !tarn__is_capturing(device);
}

/* NULL where the device fails: then its time is not known. */
static void *new_mark(tarn_device device)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    void *event = backend->event_new(device.index);
    if (!event || backend->event_record(device.index, event, backend->stream(device.index)))
        return event;
    backend->event_free(device.index, event);
    return NULL;
}

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
        timing->from = new_mark(device);
}

void tarn__timing_end(tarn__timing *timing)
{
    tarn_profile_record *r = &timing->record;
    if (!timing->generation)
        return;
    if (timing->from && !timing->to)
        timing->to = new_mark(r->device);
    r->host_end = now();
    /* NULL: the CPU, of which only the clock was used so far */
    const tarn__backend *backend = tarn__backend_at(r->device.backend);
    bool is_synchronous = !backend || !backend->event_new;
    if (r->kind < TARN_PROFILE_WAIT && is_synchronous && !tarn__is_capturing(r->device)) {
        r->device_start = r->host_start;
        r->device_end = r->host_end;
    }
    append(timing);
    timing->generation = 0;
}

void tarn__timing_pinned(tarn__timing *timing, void *lane, tarn_device device, double bytes)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    timing->record.bytes = bytes;
    timing->is_under_way = !backend->pinned_set_events;
    if (!backend->pinned_set_events || !uses_events(device))
        return;
    timing->from = backend->event_new(device.index);
    timing->to = timing->from ? backend->event_new(device.index) : NULL;
    if (timing->to)
        backend->pinned_set_events(device.index, lane, timing->from, timing->to);
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

void tarn_profile_span_open(const char *name)
{
    if (here.depth < MOST_DEEP) {
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
    if (--here.depth < MOST_DEEP)
        tarn__timing_end(&here.span[here.depth]);
}

/* ---- from start to stop ------------------------------------------------------------------------------------------ */

bool tarn_profile_is_on(void)
{
    return tarn__is_profiling();
}

bool tarn_profile_start(tarn_device device)
{
    const tarn__backend *backend = tarn_failed() ? NULL : tarn__backend_of(device, "profile_start");
    if (!backend)
        return false;
    if (tarn__is_profiling())
        return tarn__raise(TARN_ERROR_ARGUMENT, "profile_start: a profile is being taken already; stop it first");
    if (!tarn__not_captured("profile_start", device, "a profile") || !tarn_synchronize(device))
        return false;
    pthread_mutex_lock(&profiler.lock);
    uint32_t generation = atomic_load(&profiler.generation) + 1;
    profiler.device = device;
    profiler.backend = backend;
    profiler.count = profiler.lost = 0;
    profiler.threads = 1;
    profiler.base = NULL;
    profiler.is_there = true;
    profiler.begin = now();
    here.generation = generation ? generation : 1;
    here.number = 0;
    atomic_store(&profiler.generation, here.generation);
    bool good = !backend->event_new || (profiler.base = new_mark(device)) != NULL;
    atomic_store(&tarn__profiling, good);
    pthread_mutex_unlock(&profiler.lock);
    return good || tarn__raise(TARN_ERROR_DEVICE, "profile_start: %s", backend->failure());
}

/* Reads the device's clock: from the last event whose time is known, so that no distance is too long to be exact. */
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
        /* One stream: what seems to overlap is the clock's last digit. */
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

/* The host's times; the device's too, where they are the host's. */
static void count_from_beginning(void)
{
    for (int64_t i = 0; i < profiler.count; i++) {
        tarn_profile_record *r = &profiler.entry[i].record;
        r->host_start -= profiler.begin;
        r->host_end -= profiler.begin;
        r->device_start -= profiler.begin; /* NaN stays so */
        r->device_end -= profiler.begin;
    }
}

bool tarn_profile_stop(void)
{
    if (!tarn__is_profiling())
        return !tarn_failed() && tarn__raise(TARN_ERROR_ARGUMENT, "profile_stop: no profile is being taken");
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

void tarn_profile_clear(void)
{
    pthread_mutex_lock(&profiler.lock);
    if (!tarn__is_profiling()) {
        tarn__release(profiler.entry, sizeof(tarn__timing) * (size_t)profiler.room);
        profiler.entry = NULL;
        profiler.count = profiler.room = profiler.lost = 0;
        profiler.is_there = false;
    }
    pthread_mutex_unlock(&profiler.lock);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

bool tarn__sample_start(tarn_device device)
{
    if (tarn_failed() || tarn__is_profiling())
        return false;
    profiler.aside = (tarn__profile){profiler.entry,        profiler.count,  profiler.lost,
                                     profiler.microseconds, profiler.device, profiler.threads};
    profiler.aside_room = profiler.room;
    profiler.aside_is_there = profiler.is_there;
    profiler.entry = NULL;
    profiler.count = profiler.room = 0;
    return tarn_profile_start(device);
}

bool tarn__sample_stop(double *busy_microseconds)
{
    tarn__profile sample;
    tarn_profile_summary summary = {0};
    const tarn__profile *aside = &profiler.aside;
    bool good =
        tarn_profile_stop() && tarn__profile_open("profile", &sample) && tarn__profile_fractions(&sample, &summary);
    *busy_microseconds = good ? summary.utilization * sample.microseconds : 0;
    pthread_mutex_lock(&profiler.lock);
    tarn__release(profiler.entry, sizeof(tarn__timing) * (size_t)profiler.room);
    profiler.entry = (tarn__timing *)aside->entry;
    profiler.count = aside->count;
    profiler.room = profiler.aside_room;
    profiler.lost = aside->lost;
    profiler.microseconds = aside->microseconds;
    profiler.device = aside->device;
    profiler.threads = aside->threads;
    profiler.is_there = profiler.aside_is_there;
    pthread_mutex_unlock(&profiler.lock);
    return good;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bool tarn__profile_open(const char *function, tarn__profile *profile)
{
    if (tarn_failed())
        return false;
    if (tarn__is_profiling() || !profiler.is_there)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           tarn__is_profiling() ? "a profile is being taken; stop it first"
                                                : "no profile was taken yet");
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
        return tarn__raise(TARN_ERROR_ARGUMENT, "profile_get: %s %lld; there are %lld records",
                           record ? "there is no record" : "the result is NULL for record", (long long)index,
                           (long long)profile.count);
    *record = profile.entry[index].record;
    return true;
}

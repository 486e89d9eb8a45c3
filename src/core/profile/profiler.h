/* profiler.h: recording of timed work, for the code that does the work. */
#ifndef TARN__PROFILER_H
#define TARN__PROFILER_H

#include <stdatomic.h>
#include <tarn/profile.h>

#include "core/launch/launch.h"

extern _Atomic bool tarn__profiling;

/* The only cost of the profiler while it is off: one predictable branch. */
static inline bool tarn__is_profiling(void)
{
    return __builtin_expect(atomic_load_explicit(&tarn__profiling, memory_order_acquire), false);
}

/* One piece of work being timed. {0}: not recorded. */
typedef struct tarn__timing {
    tarn_profile_record record;
    void *from, *to;     /* the backend's events; NULL: host clock */
    uint32_t generation; /* the profile it belongs to; 0: none */
    bool is_under_way;   /* only bounds on the device's time are known */
} tarn__timing;

/* Called around the work. `begin` sets kind, name, function and device (strings are borrowed for good); the caller
 * may fill in the rest of the record before `end`. */
void tarn__timing_begin(tarn__timing *timing, tarn_profile_kind kind, const char *name, const char *function,
                        tarn_device device);
void tarn__timing_end(tarn__timing *timing);

/* Fills in FLOPs, bytes, dtype and shape of a launch. */
void tarn__timing_describe(tarn__timing *timing, const tarn__launch *launch);
tarn_profile_kind tarn__kernel_kind(tarn__kernel kernel);

/* An upload from a pinned buffer: begun before it is enqueued, ended after it where the device's clock is available,
 * else when the buffer is joined. */
void tarn__timing_pinned(tarn__timing *timing, void *pinned, tarn_device device, double bytes);

/* Sets whether this thread is inside backward; returns the old value. */
bool tarn__profile_backward(bool is_backward);

/* The finished records; borrowed until the next profile starts. */
typedef struct tarn__profile {
    const tarn__timing *entry;
    int64_t count, lost;
    double microseconds; /* from start to stop */
    tarn_device device;
    int threads;
} tarn__profile;

/* A short profile that measures how long the device was busy; a finished profile is put aside and restored. Start
 * returns false without an error while another profile runs. */
bool tarn__sample_start(tarn_device device);
bool tarn__sample_stop(double *busy_microseconds);

/* Fills in the fractions of time per category and the utilization. */
bool tarn__profile_fractions(const tarn__profile *profile, tarn_profile_summary *summary);

/* Gives access to the finished profile; raises while one is running and when there is none. */
bool tarn__profile_open(const char *function, tarn__profile *profile);

#endif

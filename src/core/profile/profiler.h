/* profiler.h: for those who do work that is to be recorded. */
#ifndef TARN__PROFILER_H
#define TARN__PROFILER_H

#include <stdatomic.h>
#include <tarn/profile.h>

#include "core/launch/launch.h"

extern _Atomic bool tarn__profiling;

/* The one branch that the profiler costs while it is off. */
static inline bool tarn__is_profiling(void)
{
    return __builtin_expect(atomic_load_explicit(&tarn__profiling, memory_order_acquire), false);
}

/* A piece of work under way. All zero: nobody records it. */
typedef struct tarn__timing {
    tarn_profile_record record;
    void *from, *to;     /* the backend's events; NULL: the host's clock serves */
    uint32_t generation; /* of the profile that it belongs to; 0: none */
    bool is_under_way;   /* the times are those between which a device may have done it, no more is known */
} tarn__timing;

/* Around the work. `begin` fills in kind, name, function and device; what else is known goes into the record between
 * the two. */
void tarn__timing_begin(tarn__timing *timing, tarn_profile_kind kind, const char *name, const char *function,
                        tarn_device device);
void tarn__timing_end(tarn__timing *timing);

/* What a launch computes and moves. */
void tarn__timing_describe(tarn__timing *timing, const tarn__launch *launch);
tarn_profile_kind tarn__kernel_kind(tarn__kernel kernel);

/* A copy through a lane: begun before it is sent; ended behind, where the device's clock can be asked, else when the
 * lane is joined. */
void tarn__timing_pinned(tarn__timing *timing, void *lane, tarn_device device, double bytes);

/* Whether this thread is inside backward; returns what was before. */
bool tarn__profile_backward(bool is_backward);

/* The records, for those who read them after the end. */
typedef struct tarn__profile {
    const tarn__timing *entry;
    int64_t count, lost;
    double microseconds; /* from start to stop */
    tarn_device device;
    int threads;
} tarn__profile;

/* A profile in between, of which one number counts: for how many microseconds the device worked. What was recorded
 * before stays. False from `start` without an error: a profile is being taken already. */
bool tarn__sample_start(tarn_device device);
bool tarn__sample_stop(double *busy_microseconds);

/* The shares of the time, and `busy`. */
bool tarn__profile_fractions(const tarn__profile *profile, tarn_profile_summary *summary);

/* Raises while something is being recorded, and where nothing ever was. */
bool tarn__profile_open(const char *function, tarn__profile *profile);

#endif

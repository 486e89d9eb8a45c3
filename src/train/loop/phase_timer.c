/* phase_timer.c: phases of a step on the device: events in its stream, which cost a step next to nothing, and spans of
 * the profiler. A phase lasts until the next one begins; nothing waits for the device before the times are read. */
#include "base/memory.h"
#include "train/trainer.h"

/* Start of a phase; the event is owned until it is read. */
typedef struct phase_start {
    tarn__phase phase;
    tarn_event *event;
} phase_start;

#define MAX_EVENTS 4096 /* later events are dropped: over a thousand micro-batches per step */

struct tarn__phase_timer {
    phase_start start[MAX_EVENTS];
    int count;
};

/* Also called without an open phase. */
void tarn__phase_end(tarn_trainer *t)
{
    if (t->in_phase)
        tarn_profile_span_close();
    t->in_phase = false;
}

void tarn__phase_begin(tarn_trainer *t, tarn__phase phase)
{
    static const char *const names[] = {"batch", "forward", "backward", "update"};
    tarn__phase_timer *timer = t->phase_timer;
    tarn__phase_end(t);
    if (phase < TARN__PHASES && tarn_profile_is_on()) {
        tarn_profile_span_open(names[phase]);
        t->in_phase = true;
    }
    if (!timer || timer->count == MAX_EVENTS)
        return;
    tarn_event *event = tarn_event_record(t->device); /* NULL: an error is pending, which ends the step */
    if (event)
        timer->start[timer->count++] = (phase_start){phase, event};
}

bool tarn__phase_timer_open(tarn_trainer *t)
{
    t->phase_timer = tarn__alloc(sizeof(*t->phase_timer));
    return t->phase_timer != NULL;
}

/* Frees the events. An event of TARN__PHASES is the end of the last phase, so that time between two reads is not
 * counted. */
bool tarn__phase_timer_read(tarn_trainer *t, double *milliseconds)
{
    tarn__phase_timer *timer = t->phase_timer;
    tarn__phase_begin(t, TARN__PHASES); /* the end of the last phase */
    for (int i = 0; i < TARN__PHASES; i++)
        milliseconds[i] = 0;
    for (int i = 0; i + 1 < timer->count; i++)
        if (timer->start[i].phase != TARN__PHASES)
            milliseconds[timer->start[i].phase] +=
                tarn_event_elapsed(timer->start[i].event, timer->start[i + 1].event) / 1e3;
    for (int i = 0; i < timer->count; i++)
        tarn_event_free(timer->start[i].event);
    timer->count = 0;
    return !tarn_failed();
}

void tarn__phase_timer_close(tarn_trainer *t)
{
    if (!t->phase_timer)
        return;
    for (int i = 0; i < t->phase_timer->count; i++)
        tarn_event_free(t->phase_timer->start[i].event);
    tarn__release(t->phase_timer, sizeof(*t->phase_timer));
    t->phase_timer = NULL;
}

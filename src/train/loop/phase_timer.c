/* phase_timer.c: phases of a step on the device: events in its stream, which cost a step next to nothing, and spans of
 * the profiler. */
#include "base/memory.h"
#include "train/trainer.h"

/* Start of a phase; the event is owned until it is read. */
typedef struct mark {
    tarn__phase phase;
    tarn_event *event;
} mark;

#define MOST_MARKS 4096 /* later marks are dropped: over a thousand micro-batches per step */

struct tarn__phase_timer {
    mark mark[MOST_MARKS];
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
    tarn__phase_timer *marks = t->marks;
    tarn__phase_end(t);
    if (phase < TARN__PHASES && tarn_profile_is_on()) {
        tarn_profile_span_open(names[phase]);
        t->in_phase = true;
    }
    if (!marks || marks->count == MOST_MARKS)
        return;
    tarn_event *event = tarn_event_record(t->device); /* NULL: an error is pending, which ends the step */
    if (event)
        marks->mark[marks->count++] = (mark){phase, event};
}

bool tarn__phase_timer_open(tarn_trainer *t)
{
    t->marks = tarn__alloc(sizeof(*t->marks));
    return t->marks != NULL;
}

/* Frees the events. The mark of TARN__PHASES is the end of the last phase, so that time between two reads is not
 * counted. */
bool tarn__phase_timer_read(tarn_trainer *t, double *milliseconds)
{
    tarn__phase_timer *marks = t->marks;
    tarn__phase_begin(t, TARN__PHASES); /* the end of the last part */
    for (int i = 0; i < TARN__PHASES; i++)
        milliseconds[i] = 0;
    for (int i = 0; i + 1 < marks->count; i++)
        if (marks->mark[i].phase != TARN__PHASES)
            milliseconds[marks->mark[i].phase] +=
                tarn_event_elapsed(marks->mark[i].event, marks->mark[i + 1].event) / 1e3;
    for (int i = 0; i < marks->count; i++)
        tarn_event_free(marks->mark[i].event);
    marks->count = 0;
    return !tarn_failed();
}

void tarn__phase_timer_close(tarn_trainer *t)
{
    if (!t->marks)
        return;
    for (int i = 0; i < t->marks->count; i++)
        tarn_event_free(t->marks->mark[i].event);
    tarn__release(t->marks, sizeof(*t->marks));
    t->marks = NULL;
}

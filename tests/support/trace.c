/* trace.c: see trace.h. An event stands on a line of its own. */
#include "support/trace.h"

#include "formats/json_file.h"
#include "support/check.h"
#include "support/scratch.h"

static bool read_event(const char *line, trace_event *e)
{
    double start, duration;
    const char *times = strstr(line, "\"ts\": ");
    if (sscanf(line, "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%63[^\"]\"", &e->process, &e->row,
               e->name) != 3 ||
        !times)
        return false;
    assert_int_equal(sscanf(times, "\"ts\": %lf, \"dur\": %lf", &start, &duration), 2);
    assert_true(duration >= 0);
    e->start = start;
    e->end = start + duration;
    return true;
}

trace read_trace(const char *path)
{
    size_t bytes, listed = 0;
    char *text = get_file(path, &bytes);
    tarn__json_file *document = tarn__json_file_parse("test", "trace.json", text, bytes);
    if (!document || !tarn__json_file_count(document, "traceEvents", 1000000, &listed))
        fail_msg("%s", tarn_error());
    tarn__json_file_free(document);
    trace t = {calloc(listed + 1, sizeof(trace_event)), 0};
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        t.count += read_event(line, &t.event[t.count]);
    free(text);
    assert_true(t.count > 0);
    return t;
}

void free_trace(trace *t)
{
    free(t->event);
}

void assert_nested(const trace *t)
{
    double rounding = 0.002; /* of the last digit written, twice */
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < i; k++) {
            const trace_event *a = &t->event[i], *b = &t->event[k];
            if (a->process != b->process || a->row != b->row)
                continue;
            bool apart = a->end <= b->start + rounding || b->end <= a->start + rounding;
            bool within = (a->start >= b->start - rounding && a->end <= b->end + rounding) ||
                          (b->start >= a->start - rounding && b->end <= a->end + rounding);
            if (!apart && !within)
                fail_msg("row %d of process %d: %s from %.3f to %.3f and %s from %.3f to %.3f", a->row, a->process,
                         a->name, a->start, a->end, b->name, b->start, b->end);
        }
}

int count_events(const trace *t, int process, const char *name)
{
    int count = 0;
    for (int i = 0; i < t->count; i++)
        count += t->event[i].process == process && strcmp(t->event[i].name, name) == 0;
    return count;
}

int count_overlaps(const trace *t, const char *step)
{
    int count = 0;
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < t->count; k++) {
            const trace_event *copy = &t->event[i], *s = &t->event[k];
            count += copy->process == TRACE_DEVICE && copy->row == TRACE_COPIES && s->process == TRACE_HOST &&
                     strcmp(s->name, step) == 0 && copy->start < s->end && copy->end > s->start;
        }
    return count;
}

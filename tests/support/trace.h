/* trace.h: reading trace files, for tests of the profiler. */
#ifndef TESTS_TRACE_H
#define TESTS_TRACE_H

#include <stdbool.h>

enum { TRACE_HOST = 1, TRACE_DEVICE = 2, TRACE_COPIES = 1 };

/* A complete event; times in microseconds. */
typedef struct trace_event {
    int process, row;
    char name[64];
    double start, end;
} trace_event;

typedef struct trace {
    trace_event *event;
    int count;
} trace;

/* Reads a file that must be JSON and hold a list "traceEvents". Fails the test otherwise. Free with free_trace(). */
trace read_trace(const char *path);
void free_trace(trace *t);

/* Fails the test unless any two events of a row lie within each other or apart. */
void assert_nested(const trace *t);

/* How many events a row has under a name. */
int count_events(const trace *t, int process, const char *name);

/* How many copies of batches are under way during a step that had begun before them or begins while they are. */
int count_overlaps(const trace *t, const char *step);

#endif

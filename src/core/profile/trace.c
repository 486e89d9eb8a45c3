/* trace.c: a profile in Chrome's trace event format: complete events ("ph": "X") with start and duration in
 * microseconds.
 *
 * Process 1 is the host with one row per thread: spans, and inside them the launches. Process 2 is the device: row 0
 * its kernels, row 1 the copies of batches, which may overlap them.
 *
 * Events are written through a fixed buffer, one per line, so a trace of any length needs little memory. The file
 * opens in Perfetto and chrome://tracing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/os/files.h"
#include "core/profile/profiler.h"

enum { HOST = 1, DEVICE = 2, WORK = 0, COPIES = 1 };

/* A buffered writer. */
typedef struct writer {
    tarn__output output;
    char text[8192];
    size_t used;
    bool good;
    bool needs_comma; /* before the next event */
} writer;

/* After the first failed write nothing more is written; the error is raised once. */
static void flush(writer *w)
{
    if (w->good && w->used)
        w->good = tarn__output_write(&w->output, w->text, w->used);
    w->used = 0;
}

static void put(writer *w, const char *text)
{
    for (; *text; text++) {
        if (w->used == sizeof(w->text))
            flush(w);
        w->text[w->used++] = *text;
    }
}

/* Names come from the caller: characters JSON cannot hold unescaped become '?'. */
static void put_name(writer *w, const char *name)
{
    char one[2] = {0};
    for (; *name; name++) {
        one[0] =
            (unsigned char)*name < ' ' || (unsigned char)*name > '~' || *name == '"' || *name == '\\' ? '?' : *name;
        put(w, one);
    }
}

static void begin_event(writer *w, char phase, int process, int row, const char *name)
{
    char text[96];
    put(w, w->needs_comma ? ",\n" : "\n");
    w->needs_comma = true;
    snprintf(text, sizeof(text), "{\"ph\": \"%c\", \"pid\": %d, \"tid\": %d, \"name\": \"", phase, process, row);
    put(w, text);
    put_name(w, name);
    put(w, "\"");
}

/* The name of a process or a row. */
static void put_title(writer *w, const char *kind, int process, int row, const char *title)
{
    begin_event(w, 'M', process, row, kind);
    put(w, ", \"args\": {\"name\": \"");
    put_name(w, title);
    put(w, "\"}}");
}

static void put_times(writer *w, double from, double to)
{
    char text[96];
    snprintf(text, sizeof(text), ", \"ts\": %.3f, \"dur\": %.3f", from, fmax(to - from, 0));
    put(w, text);
}

/* Bytes, FLOPs and rates of a record as the event's arguments. */
static void put_arguments(writer *w, const tarn_profile_record *r)
{
    char text[160];
    double seconds = (r->device_end - r->device_start) / 1e6;
    snprintf(text, sizeof(text), ", \"args\": {\"backward\": %s, \"fallback\": %s, \"bytes\": %.0f, \"flops\": %.0f",
             r->is_backward ? "true" : "false", r->is_fallback ? "true" : "false", r->bytes, r->flops);
    put(w, text);
    if (r->function) {
        put(w, ", \"for\": \"");
        put_name(w, r->function);
        put(w, "\"");
    }
    if (r->variant) {
        put(w, ", \"variant\": \"");
        put_name(w, r->variant);
        put(w, "\"");
    }
    if (r->kind <= TARN_PROFILE_KERNEL) {
        tarn__shape_buffer shape;
        put(w, ", \"dtype\": \"");
        put(w, tarn_dtype_name(r->dtype));
        put(w, "\", \"shape\": \"");
        put_name(w, tarn__shape_string(r->shape.size, r->shape.rank, &shape));
        put(w, "\"");
    }
    if (seconds > 0) {
        snprintf(text, sizeof(text), ", \"GB/s\": %.2f, \"TFLOP/s\": %.3f", r->bytes / seconds / 1e9,
                 r->flops / seconds / 1e12);
        put(w, text);
    }
    put(w, "}");
}

/* The host's and the device's event of a record. A prefetched copy has only the device's. */
static void put_record(writer *w, const tarn__profile *p, const tarn_profile_record *r)
{
    bool is_prefetch = r->kind == TARN_PROFILE_LOADER_COPY;
    if (!is_prefetch) {
        begin_event(w, 'X', HOST, r->thread, r->name);
        put_times(w, r->host_start, r->host_end);
        if (r->kind != TARN_PROFILE_SPAN)
            put_arguments(w, r);
        put(w, "}");
    }
    if (isnan(r->device_start) || !tarn__same_device(r->device, p->device))
        return;
    begin_event(w, 'X', DEVICE, is_prefetch ? COPIES : WORK, r->name);
    put_times(w, r->device_start, r->device_end);
    put_arguments(w, r);
    put(w, "}");
}

/* Names of processes and rows, as metadata events. */
static void put_titles(writer *w, const tarn__profile *p)
{
    char title[48], name[32];
    put_title(w, "process_name", HOST, 0, "host");
    put_title(w, "process_name", DEVICE, 0, tarn_device_name(p->device, name, sizeof(name)));
    for (int i = 0; i < p->threads; i++) {
        snprintf(title, sizeof(title), i ? "thread %d" : "main thread", i);
        put_title(w, "thread_name", HOST, i, title);
    }
    put_title(w, "thread_name", DEVICE, WORK, "kernels");
    put_title(w, "thread_name", DEVICE, COPIES, "copies of batches");
}

/* Written atomically: a viewer never sees half a file. */
bool tarn_profile_write_trace(const char *path)
{
    tarn__profile p;
    if (!tarn__profile_open("profile_write_trace", &p))
        return false;
    if (!path || !path[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "profile_write_trace: the path is %s", path ? "empty" : "NULL");
    writer *w = tarn__alloc(sizeof(*w));
    if (!w)
        return false;
    w->good = tarn__output_open(&w->output, "profile_write_trace", path);
    bool is_open = w->good;
    put(w, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    put_titles(w, &p);
    for (int64_t i = 0; i < p.count && w->good; i++)
        put_record(w, &p, &p.entry[i].record);
    put(w, "\n]}\n");
    flush(w);
    bool good = w->good && tarn__output_commit(&w->output);
    if (is_open && !w->good)
        tarn__output_discard(&w->output);
    tarn__release(w, sizeof(*w));
    return good;
}

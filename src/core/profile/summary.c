/* summary.c: summary of a profile: fractions of time by category, and records of one kind added up.
 *
 * Fractions add up to 1: overlapping work counts once, for the category listed first, and idle time counts as host
 * time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "core/profile/profiler.h"

static const char *const part_names[TARN_PARTS] = {
    [TARN_PART_MATMUL] = "matmul",         [TARN_PART_CONVOLUTION] = "convolution",
    [TARN_PART_ATTENTION] = "attention",   [TARN_PART_KERNELS] = "other kernels",
    [TARN_PART_GRAPHS] = "captured steps", [TARN_PART_TRANSFERS] = "transfers",
    [TARN_PART_WAITING] = "waiting",       [TARN_PART_HOST] = "host",
};

const char *tarn_profile_part_name(tarn_profile_part part)
{
    if ((int)part >= 0 && part < TARN_PARTS)
        return part_names[part];
    tarn__raise(TARN_ERROR_ARGUMENT, "profile_part_name: part is %d; must be from 0 to %d", (int)part, TARN_PARTS - 1);
    return NULL;
}

/* ---- fractions ------------------------------------------------------------------------------------------------- */

/* Start (change 1) or end (-1) of a category's work. */
typedef struct edge {
    double time;
    int part, change;
} edge;

static int earlier(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return (x->time > y->time) - (x->time < y->time);
}

/* The category and interval of a record; false: it counts for none. */
static bool part_of(const tarn__profile *p, const tarn__timing *t, int *part, double *from, double *to)
{
    static const int parts[] = {
        [TARN_PROFILE_MATMUL] = TARN_PART_MATMUL,         [TARN_PROFILE_CONVOLUTION] = TARN_PART_CONVOLUTION,
        [TARN_PROFILE_ATTENTION] = TARN_PART_ATTENTION,   [TARN_PROFILE_KERNEL] = TARN_PART_KERNELS,
        [TARN_PROFILE_GRAPH] = TARN_PART_GRAPHS,          [TARN_PROFILE_COPY] = TARN_PART_TRANSFERS,
        [TARN_PROFILE_LOADER_COPY] = TARN_PART_TRANSFERS, [TARN_PROFILE_WAIT] = TARN_PART_WAITING};
    const tarn_profile_record *r = &t->record;
    bool waits = r->kind == TARN_PROFILE_WAIT;
    if (r->kind == TARN_PROFILE_SPAN || t->is_under_way || (waits && r->thread != 0) ||
        (!waits && (isnan(r->device_start) || !tarn__same_device(r->device, p->device))))
        return false;
    *part = parts[r->kind];
    *from = fmax(waits ? r->host_start : r->device_start, 0);
    *to = fmin(waits ? r->host_end : r->device_end, p->microseconds);
    return *to > *from;
}

/* Sweeps over time; where several categories are active, the first one gets the interval. */
static void sweep(const edge *edges, int64_t count, double end, double *part)
{
    int64_t open[TARN_PARTS] = {0};
    double at = 0;
    for (int64_t i = 0; i <= count; i++) {
        double next = i < count ? edges[i].time : end;
        int first = 0;
        while (first < TARN_PART_HOST && open[first] == 0)
            first++;
        part[first] += next - at;
        at = next;
        if (i < count)
            open[edges[i].part] += edges[i].change;
    }
}

/* Sorts all starts and ends by time: O(n log n) in the number of records. */
bool tarn__profile_fractions(const tarn__profile *p, tarn_profile_summary *summary)
{
    size_t bytes = sizeof(edge) * (size_t)(2 * p->count + 1);
    edge *edges = tarn__alloc(bytes);
    if (!edges)
        return false;
    int64_t count = 0;
    for (int64_t i = 0; i < p->count; i++) {
        int part;
        double from, to;
        if (!part_of(p, &p->entry[i], &part, &from, &to))
            continue;
        edges[count++] = (edge){from, part, 1};
        edges[count++] = (edge){to, part, -1};
    }
    qsort(edges, (size_t)count, sizeof(*edges), earlier);
    sweep(edges, count, p->microseconds, summary->part);
    for (int i = 0; i < TARN_PARTS; i++)
        summary->part[i] /= fmax(p->microseconds, 1e-9);
    for (int i = 0; i <= TARN_PART_GRAPHS; i++)
        summary->utilization += summary->part[i];
    tarn__release(edges, bytes);
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { MAX_ROWS = 512 };

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Names are compared as strings: backends have their own literals. */
static bool belongs(const tarn_profile_row *row, const tarn_profile_record *r)
{
    return row->kind == r->kind && row->is_backward == r->is_backward && same_text(row->name, r->name) &&
           same_text(row->function, r->function) && same_text(row->variant, r->variant);
}

/* Copies in flight have no known duration: they count bytes only. */
static void add_to_row(tarn_profile_row *row, const tarn__timing *t)
{
    const tarn_profile_record *r = &t->record;
    double device = r->device_end - r->device_start;
    row->calls++;
    row->device_microseconds += isnan(device) || t->is_under_way ? 0 : device;
    row->host_microseconds += t->is_under_way ? 0 : r->host_end - r->host_start;
    row->bytes += r->bytes;
    row->flops += r->flops;
}

/* One row per (kind, name, variant, function, direction); records beyond MAX_ROWS kinds are dropped. */
static int64_t collect(const tarn__profile *p, tarn_profile_row *rows)
{
    int64_t count = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const tarn_profile_record *r = &p->entry[i].record;
        int64_t k = 0;
        if (r->kind == TARN_PROFILE_SPAN)
            continue;
        while (k < count && !belongs(&rows[k], r))
            k++;
        if (k == MAX_ROWS)
            continue;
        if (k == count)
            rows[count++] = (tarn_profile_row){.kind = r->kind,
                                               .name = r->name,
                                               .function = r->function,
                                               .variant = r->variant,
                                               .is_backward = r->is_backward};
        add_to_row(&rows[k], &p->entry[i]);
    }
    return count;
}

/* By device time, then host time, descending. */
static int longer(const void *a, const void *b)
{
    const tarn_profile_row *x = a, *y = b;
    if (x->device_microseconds != y->device_microseconds)
        return (x->device_microseconds < y->device_microseconds) - (x->device_microseconds > y->device_microseconds);
    return (x->host_microseconds < y->host_microseconds) - (x->host_microseconds > y->host_microseconds);
}

/* `rows` gets at most `capacity` rows; summary->rows says how many there are. */
bool tarn_profile_summarize(tarn_profile_summary *summary, tarn_profile_row *rows, int64_t capacity)
{
    tarn__profile p;
    if (!tarn__profile_open("profile_summarize", &p))
        return false;
    if (!summary || capacity < 0 || (capacity > 0 && !rows))
        return tarn__raise(TARN_ERROR_ARGUMENT, "profile_summarize: %s",
                           summary ? "the rows are NULL or their capacity is negative" : "the result is NULL");
    tarn_profile_summary found = {.microseconds = p.microseconds, .records = p.count, .lost = p.lost};
    size_t bytes = sizeof(tarn_profile_row) * MAX_ROWS;
    tarn_profile_row *all = tarn__alloc(bytes);
    bool good = all && tarn__profile_fractions(&p, &found);
    if (good) {
        found.rows = collect(&p, all);
        qsort(all, (size_t)found.rows, sizeof(*all), longer);
        for (int64_t i = 0; i < found.rows; i++)
            found.flops += all[i].flops;
        if (rows)
            memcpy(rows, all, sizeof(*rows) * (size_t)(found.rows < capacity ? found.rows : capacity));
        *summary = found;
    }
    tarn__release(all, bytes);
    return good;
}

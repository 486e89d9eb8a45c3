/* metrics.c: the metrics of a run: metrics.jsonl, one JSON object per line, TensorBoard events, and report.html.
 *
 * Lines are appended and flushed one by one. Lines after the last checkpoint are stale once a run is resumed from it:
 * they are removed when the file is opened, and written again by the repeated steps. report.html is rewritten from
 * metrics.jsonl at every checkpoint. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "train/output/tensorboard.h"
#include "train/report/report.h"
#include "train/tasks/task.h"

/* Owned by the trainer while it runs; used by its thread only. */
struct tarn__metrics {
    const tarn__task *task;
    FILE *lines;
    tarn__tensorboard *events;
    tarn__path path, report_path, samples_path;
    char title[sizeof(((tarn_train_options *)0)->model) + sizeof(((tarn_train_options *)0)->data) + 8];
    tarn__class_results *classes;   /* of a classifier that has ended; else NULL */
    tarn__report_settings settings; /* for the page; fixed for the run */
};

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

/* True for a complete line of a step up to `last`. */
static bool is_valid_up_to(const char *line, size_t length, int64_t last)
{
    int64_t step;
    tarn__error_record none;
    tarn__json_file *document = tarn__json_file_parse("trainer_run", "metrics.jsonl", line, length);
    bool good = document && tarn__json_file_int(document, "step", 0, last, &step);
    tarn__json_file_free(document);
    tarn__error_save(&none); /* a malformed line is dropped, not an error */
    return good;
}

/* Bytes of the leading lines up to step `last`. */
static size_t find_end(const tarn__map *map, int64_t last)
{
    size_t end = 0;
    while (end < map->bytes) {
        const char *line = map->memory + end, *newline = memchr(line, '\n', map->bytes - end);
        if (!newline || !is_valid_up_to(line, (size_t)(newline - line), last))
            break;
        end += (size_t)(newline - line) + 1;
    }
    return end;
}

/* Removes all lines after step `last`, with an atomic write. */
static bool truncate_after(const char *path, int64_t last)
{
    tarn__map map;
    tarn__output output;
    if (!tarn__path_exists(path))
        return true;
    if (!tarn__map_open(&map, "trainer_run", path))
        return false;
    size_t end = find_end(&map, last);
    bool good = end == map.bytes || tarn__output_open(&output, "trainer_run", path);
    if (good && end < map.bytes) {
        good = end == 0 || tarn__output_write(&output, map.memory, end);
        if (good)
            good = tarn__output_commit(&output);
        else
            tarn__output_discard(&output);
    }
    tarn__map_close(&map);
    return good;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

tarn__metrics *tarn__metrics_open(const tarn_trainer *t)
{
    tarn__metrics *metrics = tarn_failed() ? NULL : tarn__alloc(sizeof(*metrics));
    if (!metrics)
        return NULL;
    metrics->task = t->task;
    tarn__path_in(t->options.out, "metrics.jsonl", &metrics->path);
    tarn__path_in(t->options.out, "report.html", &metrics->report_path);
    tarn__path_in(t->options.out, "samples.jsonl", &metrics->samples_path);
    snprintf(metrics->title, sizeof(metrics->title), "%s on %s", t->options.model, t->options.data);
    /* by the file, not by the step: a program may have been killed before its first checkpoint */
    bool is_resumed = tarn__path_exists(metrics->path.text);
    if (tarn__report_settings_collect(t, &metrics->settings) && truncate_after(metrics->path.text, t->state.step) &&
        truncate_after(metrics->samples_path.text, t->state.step)) {
        metrics->lines = fopen(metrics->path.text, "a");
        if (!metrics->lines)
            tarn__raise(TARN_ERROR_IO, "trainer_run: '%s' cannot be opened for writing", metrics->path.text);
        metrics->events = metrics->lines ? tarn__tensorboard_open(t->options.out) : NULL;
        if (metrics->events && (!is_resumed || tarn__tensorboard_resume(metrics->events, t->state.step + 1)))
            return metrics;
    }
    tarn__metrics_close(metrics);
    return NULL;
}

/* JSON has no NaN and no infinity: null. Nine digits give an f32 back exactly. */
static const char *number_text(double value, int digits, char text[32])
{
    if (isfinite(value))
        snprintf(text, 32, "%.*g", digits, value);
    else
        snprintf(text, 32, "null");
    return text;
}

static const void *field_of(const tarn_train_report *r, const tarn__metric *m)
{
    return (const char *)r + m->offset;
}

/* "loss", or "images_per_second": returns the name, written to `text` if it has a unit. */
static const char *name_of(const tarn_train_report *r, const tarn__metric *m, const char *name, char text[48])
{
    if (!m->is_speed)
        return name;
    snprintf(text, 48, "%s%s", r->unit, name);
    return text;
}

/* Keys are read back by series.c and by users' scripts. */
static void write_line(FILE *to, const tarn_train_report *r, const tarn__metric *lines)
{
    char name[48], number[32];
    fprintf(to, "{\"step\": %" PRId64 ", \"epoch\": %" PRId64 ", ", r->step, r->epoch);
    for (const tarn__metric *m = lines; m->key; m++)
        if (m->digits)
            fprintf(to, "\"%s\": %s, ", name_of(r, m, m->key, name),
                    number_text(*(const double *)field_of(r, m), m->digits, number));
        else
            fprintf(to, "\"%s\": %" PRId64 ", ", name_of(r, m, m->key, name), *(const int64_t *)field_of(r, m));
    if (r->kind == TARN_REPORT_EVALUATION)
        fprintf(to, "\"best\": %s, ", r->is_best ? "true" : "false");
    fprintf(to, "\"seconds\": %.3f}\n", r->seconds);
}

/* Tags are stable: viewers compare runs by them. */
static bool add_events(tarn__tensorboard *events, const tarn_train_report *r, const tarn__metric *lines)
{
    char name[48];
    for (const tarn__metric *m = lines; m->key; m++)
        if (m->tag &&
            !tarn__tensorboard_scalar(events, name_of(r, m, m->tag, name), r->step, *(const double *)field_of(r, m)))
            return false;
    return tarn__tensorboard_flush(events);
}

/* Flushed per line: a kill loses at most the line being written. */
bool tarn__metrics_add(tarn__metrics *metrics, const tarn_train_report *report)
{
    if (tarn_failed())
        return false;
    const tarn__metric *lines =
        report->kind == TARN_REPORT_EVALUATION ? metrics->task->evaluation_lines : metrics->task->training_lines;
    write_line(metrics->lines, report, lines);
    if (fflush(metrics->lines) != 0)
        return tarn__raise(TARN_ERROR_IO, "trainer_run: '%s' could not be written; is the disk full?",
                           metrics->path.text);
    return add_events(metrics->events, report, lines);
}

bool tarn__metrics_add_sample(tarn__metrics *metrics, int64_t step, const char *text, size_t length)
{
    return tarn__samples_append("trainer_run", metrics->samples_path.text, step, text, length);
}

bool tarn__metrics_add_classes(tarn__metrics *metrics, const tarn_trainer *t)
{
    if (!t->task->predict || !t->state.best_step)
        return true;
    tarn__class_results_free(metrics->classes);
    metrics->classes = NULL;
    return tarn__class_results_collect(t, &metrics->classes);
}

/* Called at every checkpoint: the page and the checkpoint are of the same step. */
bool tarn__metrics_flush(tarn__metrics *metrics)
{
    char now[32] = "", date[64];
    tarn__platform_date(now, sizeof(now)); /* 2026-11-18T14:33:47Z */
    snprintf(date, sizeof(date), strlen(now) == 20 ? "%.10s %.8s UTC" : "%s", now, now + 11);
    const tarn__report report = {.title = metrics->title,
                                 .date = date,
                                 .settings = metrics->settings.row,
                                 .setting_count = metrics->settings.count,
                                 .samples = metrics->samples_path.text,
                                 .classes = metrics->classes,
                                 .has_perplexity = metrics->task->has_perplexity};
    return !tarn_failed() && tarn__tensorboard_flush(metrics->events) &&
           tarn__report_write_metrics(metrics->report_path.text, &report, metrics->path.text);
}

void tarn__metrics_close(tarn__metrics *metrics)
{
    if (!metrics)
        return;
    if (metrics->lines)
        fclose(metrics->lines);
    tarn__tensorboard_close(metrics->events);
    tarn__class_results_free(metrics->classes);
    tarn__release(metrics, sizeof(*metrics));
}

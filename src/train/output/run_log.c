/* run_log.c: the log of runs: log.jsonl next to the run folders, one JSON object per line for each segment of a run,
 * whether it finished, was stopped or failed. It outlives the run folders, so that runs on different devices can be
 * compared later. Lines are appended; a truncated last line is ignored by readers. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tarn/runs.h>

#include "base/error.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "train/tasks/task.h"

#define NAME "log.jsonl"

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* "runs/mnist" and "runs/mnist/" → "runs/log.jsonl" */
static const char *log_path(const char *folder, tarn__path *path)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    while (length > 0 && folder[length - 1] != '/')
        length--;
    snprintf(path->text, sizeof(path->text), "%.*s" NAME, (int)length, folder);
    return path->text;
}

/* The run: folder, model, data, device. A device that cannot be queried has an empty description. */
static bool write_run(const tarn_trainer *t, tarn__json_file *d)
{
    const tarn_train_options *o = &t->options;
    tarn_device_info info = {.description = ""};
    tarn_device_query(t->device, &info);
    return tarn__json_file_set_string(d, "folder", o->out) && tarn__json_file_set_string(d, "model", o->model) &&
           tarn__json_file_set_string(d, "data", o->data) && tarn__json_file_set_string(d, "device", o->device) &&
           tarn__json_file_set_string(d, "processor", info.description) &&
           tarn__json_file_set_string(d, "precision", o->precision) &&
           tarn__json_file_set_int(d, "parameters", tarn_module_element_count(t->model)) &&
           tarn__json_file_set_int(d, "batch_size", t->batch_size) &&
           tarn__json_file_set_int(d, "steps_in_epoch", t->steps_in_epoch);
}

/* This segment's steps and times; loss and val_loss are NaN, written as null, if it had none. */
static bool write_segment(const tarn_trainer *t, const tarn__run_segment *segment, tarn__json_file *d)
{
    const tarn__run_state *p = &t->state;
    double seconds = p->seconds - segment->seconds,
           per_step = p->step > segment->step ? seconds / (double)(p->step - segment->step) : NAN;
    return tarn__json_file_set_int(d, "first_step", segment->step) && tarn__json_file_set_int(d, "step", p->step) &&
           tarn__json_file_set_int(d, "steps", t->steps) && tarn__json_file_set_real(d, "seconds", seconds) &&
           tarn__json_file_set_real(d, "seconds_per_1000_steps", 1000 * per_step) &&
           tarn__json_file_set_real(d, "seconds_per_epoch", per_step * (double)t->steps_in_epoch) &&
           tarn__json_file_set_real(d, "loss", t->last_loss) &&
           tarn__json_file_set_real(d, "val_loss", t->last_val_loss) &&
           tarn__json_file_set_int(d, "best_step", p->best_step) &&
           tarn__json_file_set_real(d, "best_loss", p->best_step ? p->best_loss : NAN) &&
           tarn__json_file_set_real(d, "best_accuracy",
                                    p->best_step && t->task->has_accuracy ? p->best_accuracy : NAN) &&
           tarn__json_file_set_real(d, "ema", t->options.ema);
}

/* The pending error of the run survives; a failure to log is a warning only. */
void tarn__log_run(const tarn_trainer *t, const tarn__run_segment *segment, const char *end)
{
    char date[32];
    tarn__path path;
    tarn__error_record run_error, none;
    tarn__error_save(&run_error);
    tarn__platform_date(date, sizeof(date));
    tarn__json_file *d = tarn__json_file_new("trainer_run");
    bool good = d && tarn__json_file_set_string(d, "date", date) && tarn__json_file_set_string(d, "end", end) &&
                write_run(t, d) && write_segment(t, segment, d) &&
                tarn__json_file_set_string(d, "version", tarn_version()) &&
                tarn__json_file_append(d, log_path(t->options.out, &path));
    tarn__json_file_free(d);
    if (!good) /* a warning: the run itself is complete */
        tarn__log(TARN_LOG_WARNING, "the run in '%s' was not added to the log of runs: %s", t->options.out,
                  tarn_error());
    tarn__error_save(&none);
    tarn__error_restore(&run_error);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool read_strings(const tarn__json_file *d, tarn_logged_run *r)
{
    return (r->date = tarn__json_file_string(d, "date")) && (r->end = tarn__json_file_string(d, "end")) &&
           (r->folder = tarn__json_file_string(d, "folder")) && (r->model = tarn__json_file_string(d, "model")) &&
           (r->data = tarn__json_file_string(d, "data")) && (r->device = tarn__json_file_string(d, "device")) &&
           (r->processor = tarn__json_file_string(d, "processor")) &&
           (r->precision = tarn__json_file_string(d, "precision")) &&
           (r->version = tarn__json_file_string(d, "version"));
}

static bool read_numbers(const tarn__json_file *d, tarn_logged_run *r)
{
    return tarn__json_file_int(d, "parameters", 0, INT64_MAX, &r->parameters) &&
           tarn__json_file_int(d, "batch_size", 1, INT64_MAX, &r->batch_size) &&
           tarn__json_file_int(d, "steps_in_epoch", 1, INT64_MAX, &r->steps_in_epoch) &&
           tarn__json_file_int(d, "first_step", 0, INT64_MAX, &r->first_step) &&
           tarn__json_file_int(d, "step", 0, INT64_MAX, &r->step) &&
           tarn__json_file_int(d, "steps", 0, INT64_MAX, &r->steps) &&
           tarn__json_file_int(d, "best_step", 0, INT64_MAX, &r->best_step) &&
           tarn__json_file_real(d, "seconds", &r->seconds) &&
           tarn__json_file_real(d, "seconds_per_1000_steps", &r->seconds_per_1000_steps) &&
           tarn__json_file_real(d, "seconds_per_epoch", &r->seconds_per_epoch) &&
           tarn__json_file_real(d, "loss", &r->loss) && tarn__json_file_real(d, "val_loss", &r->val_loss) &&
           tarn__json_file_real(d, "best_loss", &r->best_loss) &&
           tarn__json_file_real(d, "best_accuracy", &r->best_accuracy) &&
           (!tarn__json_file_has(d, "ema") || tarn__json_file_real(d, "ema", &r->ema)); /* not in earlier versions */
}

/* Strings of the run belong to the parsed line: valid during visit() only. */
static bool read_line(const char *path, int64_t number, const char *line, size_t length, tarn_logged_run_fn visit,
                      void *ctx)
{
    tarn_logged_run run = {0};
    char name[sizeof(tarn__path) + 32];
    snprintf(name, sizeof(name), "%s line %lld", path, (long long)number);
    tarn__json_file *d = tarn__json_file_parse("runs_read", name, line, length);
    bool good = d && read_strings(d, &run) && read_numbers(d, &run);
    if (good)
        visit(&run, ctx);
    tarn__json_file_free(d);
    return good;
}

/* Ignores a last line without a newline: it is truncated. */
static bool read_lines(const char *path, const tarn__map *map, tarn_logged_run_fn visit, void *ctx)
{
    const char *at = map->memory, *end = at + map->bytes, *newline;
    bool good = true;
    for (int64_t number = 1; good && at < end && (newline = memchr(at, '\n', (size_t)(end - at))); number++) {
        good = newline == at || read_line(path, number, at, (size_t)(newline - at), visit, ctx);
        at = newline + 1;
    }
    return good;
}

bool tarn_runs_read(const char *folder, tarn_logged_run_fn visit, void *ctx)
{
    tarn__path path;
    tarn__map map;
    if (tarn_failed())
        return false;
    if (!folder || !folder[0] || !visit)
        return tarn__raise(TARN_ERROR_ARGUMENT, "runs_read: the %s is %s", folder && folder[0] ? "function" : "folder",
                           folder && !folder[0] ? "empty" : "NULL");
    if (strlen(folder) + sizeof("/" NAME) > sizeof(path.text))
        return tarn__raise(TARN_ERROR_ARGUMENT, "runs_read: the folder name is too long");
    if (!tarn__path_exists(tarn__path_in(folder, NAME, &path)))
        return tarn__raise(TARN_ERROR_IO, "runs_read: '%s' not found: no run has ended in this folder", path.text);
    if (!tarn__map_open(&map, "runs_read", path.text))
        return false;
    bool good = !map.memory || read_lines(path.text, &map, visit, ctx);
    tarn__map_close(&map);
    return good;
}

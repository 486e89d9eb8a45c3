/* runs.h: several training runs: the log of runs, and a page that compares them. */
#ifndef TARN_RUNS_H
#define TARN_RUNS_H

#include <stdint.h>
#include <tarn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One entry of the run log: a segment of a run that finished, was stopped or failed; a resumed run logs another.
 * Strings are valid during the call. Missing numbers are NaN. */
typedef struct tarn_logged_run {
    const char *date; /* of the end, "2026-11-15T13:25:00Z" */
    const char *end;  /* "finished", "stopped", "patience" or "failed" */
    const char *folder, *model, *data, *device, *precision;
    const char *processor; /* description of the device */
    const char *version;   /* of tarn */
    int64_t parameters, batch_size, steps_in_epoch;
    int64_t first_step, step, steps; /* first and last step of this segment, and total steps of the run */
    double seconds;                  /* of this segment, evaluations included */
    double seconds_per_1000_steps, seconds_per_epoch;
    double loss, val_loss; /* last ones of this segment */
    int64_t best_step;     /* 0: no evaluation yet */
    double best_loss, best_accuracy;
    double ema; /* decay of the moving average that val_loss and the best values are of; 0: the run's own weights */
} tarn_logged_run;

/* Visits one entry of the run log. */
typedef void (*tarn_logged_run_fn)(const tarn_logged_run *run, void *ctx);

/* Reads log.jsonl of a folder of runs ("runs"), oldest entry first. tarn_trainer_run() appends a line when it ends.
 * A missing file and a malformed line are errors; a truncated last line is ignored. */
TARN_API bool tarn_runs_read(const char *folder, tarn_logged_run_fn visit, void *ctx);

/* Maximum number of runs of a comparison. */
enum { TARN_MAX_COMPARED = 8 };

/* Writes a self-contained HTML page that compares 2 to TARN_MAX_COMPARED run folders: last and best values, the options
 * that differ, and a chart per metric with a curve per run. Runs may be of any tasks, and may be training. An existing
 * file is replaced. */
TARN_API bool tarn_runs_compare(const char *const *folders, int count, const char *path);

#ifdef __cplusplus
}
#endif
#endif

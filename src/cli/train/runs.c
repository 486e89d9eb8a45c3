/* runs.c: `tarn runs`: the log of runs (log.jsonl of a folder of runs) as a table, or with --json as one object per
 * run; with --compare a page that compares run folders.
 *
 * JSON is streamed, one run at a time. A table needs the widths of all rows first, so its rows are copied to memory:
 * the strings of a tarn_logged_run are valid during the callback only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/runs.h>

#include "cli/cli.h"

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

/* Values that a run does not have are NaN, which JSON prints as null. */
static void print_json(const tarn_logged_run *r, void *ctx)
{
    (void)ctx;
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "date", r->date);
    tarn__json_string(&json, "end", r->end);
    tarn__json_string(&json, "folder", r->folder);
    tarn__json_string(&json, "model", r->model);
    tarn__json_string(&json, "data", r->data);
    tarn__json_string(&json, "device", r->device);
    tarn__json_string(&json, "processor", r->processor);
    tarn__json_string(&json, "precision", r->precision);
    tarn__json_string(&json, "version", r->version);
    tarn__json_int(&json, "parameters", r->parameters);
    tarn__json_int(&json, "batch_size", r->batch_size);
    tarn__json_int(&json, "steps_in_epoch", r->steps_in_epoch);
    tarn__json_int(&json, "first_step", r->first_step);
    tarn__json_int(&json, "step", r->step);
    tarn__json_int(&json, "steps", r->steps);
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_real(&json, "seconds_per_1000_steps", r->seconds_per_1000_steps, 3);
    tarn__json_real(&json, "seconds_per_epoch", r->seconds_per_epoch, 3);
    tarn__json_real(&json, "loss", r->loss, 6);
    tarn__json_real(&json, "val_loss", r->val_loss, 6);
    tarn__json_int(&json, "best_step", r->best_step);
    tarn__json_real(&json, "best_loss", r->best_loss, 6);
    tarn__json_real(&json, "best_accuracy", r->best_accuracy, 6);
    tarn__json_real(&json, "ema", r->ema, 9);
    tarn__json_end(&json);
}

/* ---- as a table -------------------------------------------------------------------------------------------------- */

/* CELL_SIZE: bytes of a cell with its terminating 0; longer strings are truncated. */
enum { COLUMNS = 13, CELL_SIZE = 64 };

/* Columns of the table; numbers are aligned to the right. */
static const char *const headings[COLUMNS] = {"date", "model",        "data",    "device", "precision",
                                              "step", "s/1000 steps", "s/epoch", "loss",   "val loss",
                                              "ema",  "end",          "folder"};
static const bool is_right_aligned[COLUMNS] = {[5] = true, [6] = true, [7] = true, [8] = true, [9] = true, [10] = true};

typedef char cells[COLUMNS][CELL_SIZE];

typedef struct sheet {
    cells *row; /* owned; [rows], the first is the heading */
    int rows;
    size_t capacity;    /* of `row`, in elements */
    bool out_of_memory; /* no memory for more rows */
} sheet;

/* "text:a/long/path/valid.txt" → "text:valid.txt" */
static void short_data(const char *data, char *text)
{
    const char *colon = strchr(data, ':'), *slash = strrchr(data, '/');
    snprintf(text, CELL_SIZE, "%.*s%s", (int)(colon && slash ? colon + 1 - data : 0), data,
             colon && slash ? slash + 1 : data);
}

/* NaN, a value that the run does not have, becomes "-". */
static void number(double value, int digits, char *text)
{
    /* a diverged run must not widen the column */
    snprintf(text, CELL_SIZE, fabs(value) < 1e7 ? "%.*f" : "%.*g", digits, value);
    if (value != value)
        strcpy(text, "-");
}

/* NULL without memory; `out_of_memory` then stays set and the table is not printed. */
static cells *new_row(sheet *s)
{
    if (!tarn__input_reserve(&s->row, (size_t)s->rows, &s->capacity, 1, sizeof(*s->row))) {
        s->out_of_memory = true;
        return NULL;
    }
    return &s->row[s->rows++];
}

/* The columns in the order of `headings`. The date is cut to minutes. */
static void add_row(const tarn_logged_run *r, void *ctx)
{
    cells *row = new_row(ctx);
    if (!row)
        return;
    snprintf((*row)[0], CELL_SIZE, "%.10s %.5s", r->date, strlen(r->date) > 11 ? r->date + 11 : "");
    snprintf((*row)[1], CELL_SIZE, "%s", r->model);
    short_data(r->data, (*row)[2]);
    snprintf((*row)[3], CELL_SIZE, "%s", r->device);
    snprintf((*row)[4], CELL_SIZE, "%s", r->precision);
    snprintf((*row)[5], CELL_SIZE, "%lld", (long long)r->step);
    number(r->seconds_per_1000_steps, 1, (*row)[6]);
    number(r->seconds_per_epoch, 1, (*row)[7]);
    number(r->loss, 4, (*row)[8]);
    number(r->val_loss, 4, (*row)[9]);
    snprintf((*row)[10], CELL_SIZE, r->ema > 0 ? "%.9g" : "-", r->ema);
    snprintf((*row)[11], CELL_SIZE, "%s", r->end);
    snprintf((*row)[12], CELL_SIZE, "%s", r->folder);
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Widths are of the escaped strings, as they are printed. The last column is not padded. */
static void print_sheet(const sheet *s)
{
    int width[COLUMNS] = {0};
    for (int i = 0; i < s->rows; i++)
        for (int k = 0; k < COLUMNS; k++)
            width[k] = max_int(width[k], (int)strlen(tarn__escaped(s->row[i][k])));
    for (int i = 0; i < s->rows; i++)
        for (int k = 0; k < COLUMNS; k++)
            printf("%*s%s",
                   is_right_aligned[k] ? width[k]
                   : k + 1 < COLUMNS   ? -width[k]
                                       : 0,
                   tarn__escaped(s->row[i][k]), k + 1 < COLUMNS ? "  " : "\n");
}

/* ---- as a page --------------------------------------------------------------------------------------------------- */

/* The path of the page goes to standard output, for scripts that open it. */
static int compare(const tarn__options *options)
{
    const char *path = options->out ? options->out : "compare.html";
    if (options->json || options->word_count < 2 || options->word_count > TARN_MAX_COMPARED) {
        fprintf(stderr, options->json ? "tarn runs: --compare writes a page; --json does not apply to it\n"
                                      : "tarn runs: --compare needs from 2 to 8 run folders; see tarn runs --help\n");
        return TARN__MISUSED;
    }
    if (!tarn_runs_compare((const char *const *)options->words, options->word_count, path))
        return tarn__print_error("runs");
    printf("%s\n", tarn__escaped(path));
    return TARN__DONE;
}

/* The heading is row 0 of the sheet, so that it counts in the widths. A log that cannot be read is an error; an empty
 * one is not. */
int tarn__runs(const tarn__options *options)
{
    const char *folder = options->word_count ? options->words[0] : "runs";
    sheet s = {0};
    if (options->compare)
        return compare(options);
    if (options->out) {
        fprintf(stderr, "tarn runs: --out applies to --compare only\n");
        return TARN__MISUSED;
    }
    if (options->json)
        return tarn_runs_read(folder, print_json, NULL) ? TARN__DONE : tarn__print_error("runs");
    cells *head = new_row(&s);
    for (int k = 0; head && k < COLUMNS; k++)
        snprintf((*head)[k], CELL_SIZE, "%s", headings[k]);
    bool good = head && tarn_runs_read(folder, add_row, &s);
    if (good && !s.out_of_memory)
        print_sheet(&s);
    free(s.row);
    if (s.out_of_memory)
        fprintf(stderr, "tarn runs: out of memory for the table; --json needs none\n");
    return s.out_of_memory ? TARN__FAILED : good ? TARN__DONE : tarn__print_error("runs");
}

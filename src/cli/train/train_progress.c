/* train_progress.c: reports of a training run as they arrive: the progress line on a terminal, lines of their own in a
 * pipe, or JSON objects.
 *
 * Called by the trainer on the thread that trains, between steps. The progress line itself is drawn by progress.c,
 * which has a thread of its own; this file stops it while it prints. */

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/cli.h"

/* "accuracy 71.2 %": label, number, unit. Decimals below 0 are significant digits instead; a short text has one
 * decimal less of all but the most important metric (rank 0). */
const char *tarn__metric_text(const tarn_train_metric *m, bool is_short, char text[96])
{
    int decimals = m->decimals - (is_short && m->rank > 0 && m->decimals > 0);
    double value = strcmp(m->unit, "%") == 0 ? 100 * m->value : m->value;
    char number[32];
    if (decimals < 0)
        snprintf(number, sizeof(number), "%.*g", -decimals, value);
    else
        snprintf(number, sizeof(number), "%.*f", decimals, value);
    snprintf(text, 96, "%s%s%s%s%s", m->label, m->label[0] ? " " : "", number, m->unit[0] ? " " : "", m->unit);
    return text;
}

/* One object per report. Values that are not known are omitted or null; mfu and utilization of 0 mean not known.
 * "event" tells the kinds apart: training, evaluation and sample. */
static void print_report_json(const tarn_train_report *r)
{
    tarn__json json = {stdout, false};
    bool evaluation = r->kind == TARN_REPORT_EVALUATION;
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "event",
                      r->kind == TARN_REPORT_SAMPLE ? "sample"
                      : evaluation                  ? "evaluation"
                                                    : "training");
    tarn__json_int(&json, "step", r->step);
    tarn__json_int(&json, "epoch", r->epoch);
    if (r->kind == TARN_REPORT_SAMPLE) {
        tarn__json_bytes(&json, "text", r->text, r->text_length);
        tarn__json_end(&json);
        return;
    }
    for (int i = 0; i < r->metric_count; i++)
        tarn__json_real(&json, r->metrics[i].name, r->metrics[i].value, r->metrics[i].json_decimals);
    if (evaluation) {
        tarn__json_bool(&json, "best", r->is_best);
    } else {
        tarn__json_int(&json, "memory", r->memory);
        tarn__json_real(&json, "val_loss", r->val_loss, 6);
        tarn__json_real(&json, "mfu", r->mfu > 0 ? r->mfu : (double)NAN, 4);
        tarn__json_real(&json, "utilization", r->utilization > 0 ? r->utilization : (double)NAN, 4);
        tarn__json_real(&json, "eta", r->eta, 1);
    }
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_end(&json);
}

/* A line under construction; ASCII only, so bytes are columns. Longer lines are truncated. */
typedef struct text {
    char at[512];
    size_t used;
} text;

/* Appends to a line. */
static void add(text *to, const char *format, ...) TARN_PRINTF(2, 3);

static void add(text *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(to->at + to->used, sizeof(to->at) - to->used, format, arguments);
    va_end(arguments);
    to->used += length > 0 ? (size_t)length : 0;
    to->used = to->used < sizeof(to->at) ? to->used : sizeof(to->at) - 1;
}

/* The optional values: last validation loss, MFU, utilization; then memory, which is always known. */
static void add_known(text *to, const tarn_train_report *r)
{
    if (!isnan(r->val_loss))
        add(to, "  validation %.4f", r->val_loss);
    if (r->mfu > 0)
        add(to, "  MFU %.1f %%", 100 * r->mfu);
    if (r->utilization > 0)
        add(to, "  utilization %.0f %%", 100 * r->utilization);
    add(to, "  %s", tarn__bytes_text(r->memory));
}

/* A report on a line of its own; a sample takes several lines. */
static void print_report(const tarn_train_report *r)
{
    if (r->kind == TARN_REPORT_SAMPLE) {
        printf("--- sample ---\n");
        tarn__print_generated(r->text, r->text_length);
        printf("\n---\n");
        return;
    }
    char metric[96], left[32];
    text known = {.used = 0};
    for (int i = 0; i < r->metric_count; i++)
        add(&known, "  %s", tarn__metric_text(&r->metrics[i], false, metric));
    if (r->kind == TARN_REPORT_EVALUATION) {
        printf("step %lld  epoch %lld of %lld%s%s\n", (long long)r->step, (long long)r->epoch, (long long)r->epochs,
               known.at, r->is_best ? "  (best)" : "");
        return;
    }
    add_known(&known, r);
    printf("step %lld of %lld  epoch %lld of %lld%s  %s left\n", (long long)r->step, (long long)r->steps,
           (long long)r->epoch, (long long)r->epochs, known.at, tarn__time_text(r->eta, left));
}

/* On a terminal training reports only update the progress line; evaluations and samples are printed above it. */
void tarn__print_report(const tarn_train_report *r, void *ctx)
{
    const tarn__display *d = ctx;
    if (d->quiet)
        return;
    if (d->terminal && !d->json && r->kind == TARN_REPORT_TRAINING) {
        tarn__progress_report(r);
        return;
    }
    tarn__progress_pause();
    if (d->json)
        print_report_json(r);
    else
        print_report(r);
    tarn__progress_resume();
}

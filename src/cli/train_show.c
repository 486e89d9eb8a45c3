/* train_show.c: how a training run goes, as it is shown: a line that is written over on a terminal, lines in a pipe, or objects. */
#include "cli/train_show.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"

/* In what `unit` says, a second. */
static double speed_of(const tarn_train_report *r)
{
    return r->is_text ? r->tokens_per_second : r->images_per_second;
}

static void print_report_json(const tarn_train_report *r)
{
    tarn__json json = {stdout, false};
    bool evaluation = r->kind == TARN_REPORT_EVALUATION;
    char speed[32];
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "event", r->kind == TARN_REPORT_SAMPLE ? "sample" : evaluation ? "evaluation" : "training");
    tarn__json_whole(&json, "step", r->step);
    tarn__json_whole(&json, "epoch", r->epoch);
    if (r->kind == TARN_REPORT_SAMPLE) {
        tarn__json_bytes(&json, "text", r->text, r->text_length);
        tarn__json_end(&json);
        return;
    }
    tarn__json_real(&json, "loss", r->loss, 6);
    if (!r->is_text)
        tarn__json_real(&json, "accuracy", r->accuracy, 6);
    if (evaluation) {
        tarn__json_bool(&json, "best", r->is_best);
    } else {
        tarn__json_real(&json, "lr", r->lr, 9);
        if (r->is_text)
            tarn__json_real(&json, "gradient_norm", r->gradient_norm, 6);
        snprintf(speed, sizeof(speed), "%s_per_second", r->unit);
        tarn__json_real(&json, speed, speed_of(r), 1);
        tarn__json_whole(&json, "memory", r->memory);
        tarn__json_real(&json, "validation", r->validation, 6);
        tarn__json_real(&json, "of_peak", r->share_of_peak > 0 ? r->share_of_peak : (double)NAN, 4);
        tarn__json_real(&json, "busy", r->busy > 0 ? r->busy : (double)NAN, 4);
        tarn__json_real(&json, "seconds_left", r->seconds_left, 1);
    }
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_end(&json);
}

/* "1:05:09", or "65 s" below two minutes; in `text`. */
static const char *time_text(double seconds, char text[32])
{
    long long whole = (long long)(seconds + 0.5);
    if (whole < 120)
        snprintf(text, 32, "%lld s", whole);
    else
        snprintf(text, 32, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    return text;
}

/* A line as it grows, ASCII alone, so that bytes are columns. */
typedef struct text {
    char at[512];
    size_t used;
} text;

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

/* What is known of: the last validation, how near to the peak, how busy the device is; and the memory. */
static void add_known(text *to, const tarn_train_report *r)
{
    if (!isnan(r->validation))
        add(to, "  validation %.4f", r->validation);
    if (r->share_of_peak > 0)
        add(to, "  %.1f %% of peak", 100 * r->share_of_peak);
    if (r->busy > 0)
        add(to, "  %.0f %% busy", 100 * r->busy);
    add(to, "  %s", tarn__bytes_text(r->memory));
}

static int columns(void)
{
    struct winsize size = {0};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* One line that is written over and over, so it is no longer than the terminal is wide: first the bar gets shorter, then the end is cut. */
static void print_bar(const tarn_train_report *r)
{
    enum { WIDEST = 30, NARROWEST = 5, AROUND = 4 };
    char bar[WIDEST + 1], left[32];
    text line = {.used = 0};
    add(&line, "%lld of %lld  %s left  loss %.4f  ", (long long)r->step, (long long)r->steps, time_text(r->seconds_left, left), r->loss);
    if (r->is_text)
        add(&line, "lr %.3g  norm %.2f  %.0f tokens/s", r->lr, r->gradient_norm, r->tokens_per_second);
    else
        add(&line, "%.1f %% right  lr %.3g  %.0f %s/s", 100 * r->accuracy, r->lr, speed_of(r), r->unit);
    add_known(&line, r);
    int most = columns() - 1, width = most - (int)line.used - AROUND;
    width = width > WIDEST ? WIDEST : width;
    printf("\r");
    if (width >= NARROWEST) {
        int filled = (int)(width * r->step / r->steps);
        memset(bar, '#', (size_t)filled);
        memset(bar + filled, '.', (size_t)(width - filled));
        printf("[%.*s] ", width, bar);
    }
    printf("%.*s\033[K", most, line.at);
}

/* A report in a line of its own; a sample takes several. */
static void print_report(const tarn__display *d, const tarn_train_report *r)
{
    const char *clear = d->terminal ? "\r\033[K" : "";
    if (r->kind == TARN_REPORT_SAMPLE) {
        printf("%s--- sample ---\n", clear);
        fwrite(r->text, 1, r->text_length, stdout);
        printf("\n---\n");
        return;
    }
    char right[32] = "", left[32];
    text known = {.used = 0};
    if (!r->is_text)
        snprintf(right, sizeof(right), "  %.2f %% right", 100 * r->accuracy);
    if (r->kind == TARN_REPORT_EVALUATION) {
        printf("%sstep %lld  epoch %lld of %lld  validation loss %.4f%s%s\n", clear, (long long)r->step, (long long)r->epoch, (long long)r->epochs, r->loss,
               right, r->is_best ? "  (best)" : "");
        return;
    }
    if (r->is_text)
        add(&known, "  norm %.3f", r->gradient_norm);
    add(&known, "  %.0f %s/s", speed_of(r), r->unit);
    add_known(&known, r);
    printf("step %lld of %lld  epoch %lld of %lld  loss %.4f%s  lr %.3g%s  %s left\n", (long long)r->step, (long long)r->steps, (long long)r->epoch,
           (long long)r->epochs, r->loss, right, r->lr, known.at, time_text(r->seconds_left, left));
}

void tarn__train_show(const tarn_train_report *r, void *ctx)
{
    const tarn__display *d = ctx;
    if (d->quiet)
        return;
    if (d->json)
        print_report_json(r);
    else if (d->terminal && r->kind == TARN_REPORT_TRAINING)
        print_bar(r);
    else
        print_report(d, r);
    fflush(stdout);
}

/* progress.c: the progress line at the bottom of a terminal.
 *
 * A thread of its own redraws it, so that it moves however long a step takes. All output and all of `line` are under
 * one lock, which tarn__progress_pause() takes and tarn__progress_resume() releases. A signal handler may neither lock
 * nor wait for a terminal that blocks: it writes a byte to a pipe that the thread polls.
 *
 * A field that does not fit is omitted as a whole, the least important first; the bar fills the remaining columns. */

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

/* The thread formats one line: a small stack suffices. */
enum { STACK_BYTES = 1 << 18 };
#define SIGNS "|/-\\"
enum { REDRAW_MS = 200, MAX_FIELDS = 16, MIN_BAR = 7, MAX_BAR = 32 };

static struct {
    bool is_open, is_drawn, is_quiet, is_shown; /* is_shown: the line is on the terminal now */
    bool is_stopping;
    int wake[2]; /* pipe to the thread: 's' stopping, 'q' quit */
    pthread_t thread;
    char what[160];              /* current activity, before a trainer exists */
    char file[160];              /* of a transfer; "": none */
    int64_t done, total;         /* bytes of the transfer */
    int64_t first_done;          /* at its begin */
    const tarn_trainer *trainer; /* borrowed; NULL: none yet */
    tarn_train_progress first;   /* progress at the start, for the mean speed */
    tarn_train_report report;
    char memory[32]; /* of the report, formatted by its thread */
    bool has_report;
    double begin;  /* seconds: start of the current activity or run */
    unsigned turn; /* frame of the spinner */
} line = {.wake = {-1, -1}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* As tarn__bytes_text(), whose buffer is the main thread's. */
static const char *bytes_text(int64_t bytes, char text[32])
{
    bool is_large = bytes >= (int64_t)1 << 30;
    snprintf(text, 32, "%.1f %s", (double)bytes / (is_large ? 1 << 30 : 1 << 20), is_large ? "GiB" : "MiB");
    return text;
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

/* One field; ASCII only, so bytes are columns. */
typedef struct field {
    char text[64];
    int rank; /* 0 is the most important: omitted last */
    bool is_taken;
} field;

typedef struct fields {
    field field[MAX_FIELDS]; /* in the order of the line */
    int count;
} fields;

/* Longer text is truncated; fields beyond MAX_FIELDS are dropped. */
static void add(fields *f, int rank, const char *format, ...) TARN_PRINTF(3, 4);
static void add(fields *f, int rank, const char *format, ...)
{
    if (f->count == MAX_FIELDS)
        return;
    field *to = &f->field[f->count++];
    *to = (field){.rank = rank};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(to->text, sizeof(to->text), format, arguments);
    va_end(arguments);
}

/* Position and remaining time, at the mean speed since the start of this session of the run, evaluations and
 * checkpoints included. */
static void add_place(fields *f, const tarn_train_progress *p)
{
    static const char *const phases[] = {[TARN_TRAIN_PREPARING] = "preparing",
                                         [TARN_TRAIN_STEPS] = "",
                                         [TARN_TRAIN_EVALUATION] = "evaluating",
                                         [TARN_TRAIN_SAMPLE] = "writing a sample",
                                         [TARN_TRAIN_CHECKPOINT] = "saving"};
    char text[32];
    double at = (double)p->step + p->fraction, taken = at - (double)line.first.step, passed = now() - line.begin;
    double share = p->steps > 0 ? at / (double)p->steps : 0;
    add(f, 0, share < 0.1 ? "%.1f %%" : "%.0f %%", 100 * share);
    if (taken > 0 && at < (double)p->steps)
        add(f, 1, "%s left", tarn__time_text(passed / taken * ((double)p->steps - at), text));
    else
        add(f, 1, "%s", tarn__time_text(passed, text));
    if (p->phase != TARN_TRAIN_STEPS || line.is_stopping)
        add(f, 2, "%s", p->phase != TARN_TRAIN_STEPS ? phases[p->phase] : "stopping");
    add(f, 4, "step %lld of %lld",
        (long long)(p->step < p->steps && p->phase == TARN_TRAIN_STEPS ? p->step + 1 : p->step), (long long)p->steps);
}

/* The metrics of one rank. Fields of other kinds rank between them. */
static void add_ranked(fields *f, const tarn_train_report *r, int rank)
{
    char text[96];
    for (int i = 0; i < r->metric_count; i++)
        if (r->metrics[i].rank == rank)
            add(f, 3 + 2 * rank, "%s", tarn__metric_text(&r->metrics[i], true, text));
}

/* Values that are not known have no field. */
static void add_metrics(fields *f, const tarn_train_report *r)
{
    add_ranked(f, r, 0);
    add_ranked(f, r, 1);
    if (!isnan(r->val_loss))
        add(f, 6, "validation %.4f", r->val_loss);
    add_ranked(f, r, 2);
    add_ranked(f, r, 3);
    add(f, 10, "%s", line.memory);
    if (r->mfu > 0)
        add(f, 11, "MFU %.1f %%", 100 * r->mfu);
    if (r->utilization > 0)
        add(f, 12, "utilization %.0f %%", 100 * r->utilization);
}

/* Selects fields by rank while they fit. Returns the columns left. */
static int choose_fields(fields *f, int space)
{
    for (int rank = 0; rank <= 12; rank++)
        for (int i = 0; i < f->count; i++) {
            int length = (int)strlen(f->field[i].text) + 2;
            if (f->field[i].rank != rank)
                continue;
            if (length > space)
                return space;
            f->field[i].is_taken = true;
            space -= length;
        }
    return space;
}

/* Length of the whole words of a string that fit into `space` columns. */
static int whole_words(const char *text, int space)
{
    int length = (int)strlen(text);
    if (length <= space)
        return length;
    for (length = space > 0 ? space : 0; length > 0 && text[length] != ' '; length--)
        continue;
    return length;
}

/* Appends a bar as wide as the space allows, and the chosen fields. */
static void put_fields(char *text, size_t size, fields *f, int width, double share)
{
    char bar[MAX_BAR + 1] = "", sign = SIGNS[line.turn++ % 4];
    int around = 2 + MIN_BAR, space = choose_fields(f, width - around), length = MIN_BAR - 2 + (space > 0 ? space : 0);
    length = length < MAX_BAR - 2 ? length : MAX_BAR - 2;
    memset(bar, '.', (size_t)length);
    memset(bar, '#', (size_t)(length * (share < 1 ? share : 1)));
    size_t used = (size_t)snprintf(text, size, "%c [%s]", sign, bar);
    for (int i = 0; i < f->count; i++)
        if (f->field[i].is_taken && used < size)
            used += (size_t)snprintf(text + used, size - used, "  %s", f->field[i].text);
}

/* "/ [####......]  42 %  0:02:05 left  35.1 MiB/s  1.1 of 2.7 GiB  model.safetensors", at the mean speed */
static void make_transfer(char *text, size_t size, int width)
{
    char left[32], done[32], total[32];
    fields f = {.count = 0};
    double passed = now() - line.begin, share = line.total > 0 ? (double)line.done / (double)line.total : 0;
    double speed = passed > 0 ? (double)(line.done - line.first_done) / passed : 0;
    add(&f, 0, share < 0.1 ? "%.1f %%" : "%.0f %%", 100 * share);
    if (speed > 0)
        add(&f, 1, "%s left", tarn__time_text((double)(line.total - line.done) / speed, left));
    if (speed > 0)
        add(&f, 2, "%s/s", bytes_text((int64_t)speed, done));
    add(&f, 4, "%s of %s", bytes_text(line.done, done), bytes_text(line.total, total));
    add(&f, 3, "%s", line.file);
    put_fields(text, size, &f, width, share);
}

/* "/ [####......]  42 %  0:02:05 left  loss 1.9216" */
static void make_line(char *text, size_t size, int width)
{
    char passed[32];
    tarn_train_progress p;
    fields f = {.count = 0};
    if (line.file[0]) {
        make_transfer(text, size, width);
        return;
    }
    if (!line.trainer || !tarn_trainer_progress(line.trainer, &p)) {
        tarn__time_text(now() - line.begin, passed);
        snprintf(text, size, "%c %.*s  %s", SIGNS[line.turn++ % 4],
                 whole_words(line.what, width - 4 - (int)strlen(passed)), line.what, passed);
        return;
    }
    add_place(&f, &p);
    if (line.has_report)
        add_metrics(&f, &line.report);
    put_fields(text, size, &f, width, p.steps > 0 ? ((double)p.step + p.fraction) / (double)p.steps : 0);
}

/* ---- drawing, under the lock ------------------------------------------------------------------------------------- */

static void draw(void)
{
    char text[TARN__MAX_COLUMNS + 64];
    /* the last column stays free: some terminals wrap there */
    int width = tarn__columns() - 1;
    if (!line.is_open || !line.is_drawn || (!line.trainer && !line.what[0] && !line.file[0]))
        return;
    make_line(text, sizeof(text), width);
    printf("\r%.*s\033[K", width, text);
    fflush(stdout);
    line.is_shown = true;
}

static void erase(void)
{
    if (!line.is_shown)
        return;
    printf("\r\033[K");
    fflush(stdout);
    line.is_shown = false;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* A request to stop: confirms it above the line. */
static void answer(void)
{
    if (line.is_quiet)
        return;
    line.is_stopping = true;
    erase();
    fprintf(stderr, "stopping after this step; press again to stop now\n");
    draw();
}

/* Until 'q'. Without a terminal it only waits for requests. */
static void *keep_drawing(void *ctx)
{
    (void)ctx;
    for (;;) {
        struct pollfd wait = {.fd = line.wake[0], .events = POLLIN};
        char byte = 0;
        if (poll(&wait, 1, line.is_drawn ? REDRAW_MS : -1) > 0 && read(line.wake[0], &byte, 1) == 1 && byte == 'q')
            return NULL;
        pthread_mutex_lock(&lock);
        if (byte == 's')
            answer();
        else
            draw();
        pthread_mutex_unlock(&lock);
    }
}

/* The thread blocks all signals: the handler must run on the main thread. Without a pipe or thread there is no line,
 * and the run continues. */
void tarn__progress_open(bool is_drawn, bool quiet)
{
    sigset_t all, before;
    pthread_attr_t small;
    line.is_drawn = is_drawn;
    line.is_quiet = quiet;
    if (line.is_open || pipe(line.wake) != 0)
        return;
    fcntl(line.wake[1], F_SETFL, O_NONBLOCK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    line.is_open = pthread_create(&line.thread, &small, keep_drawing, NULL) == 0;
    pthread_attr_destroy(&small);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Copies a text that may contain any byte, such as a path. */
static void copy_ascii(char to[160], const char *text)
{
    size_t length = 0;
    for (; text[length] && length < 159; length++)
        to[length] = text[length] >= ' ' && text[length] < 0x7F ? text[length] : '?';
    to[length] = 0;
}

void tarn__progress_text(const char *what)
{
    pthread_mutex_lock(&lock);
    copy_ascii(line.what, what);
    line.begin = line.trainer ? line.begin : now();
    if (!line.trainer)
        draw();
    pthread_mutex_unlock(&lock);
}

void tarn__progress_transfer(const char *name, int64_t done, int64_t total)
{
    pthread_mutex_lock(&lock);
    if (!line.file[0] || done < line.first_done) {
        line.begin = now();
        line.first_done = done;
    }
    copy_ascii(line.file, name);
    line.done = done;
    line.total = total;
    pthread_mutex_unlock(&lock);
}

void tarn__progress_watch(const tarn_trainer *trainer)
{
    pthread_mutex_lock(&lock);
    line.has_report = false;
    line.begin = now();
    line.trainer = tarn_trainer_progress(trainer, &line.first) ? trainer : NULL;
    draw();
    pthread_mutex_unlock(&lock);
}

void tarn__progress_report(const tarn_train_report *report)
{
    pthread_mutex_lock(&lock);
    bool is_first = !line.has_report;
    line.report = *report;
    snprintf(line.memory, sizeof(line.memory), "%s", tarn__bytes_text(report->memory));
    line.has_report = true;
    if (is_first)
        draw();
    pthread_mutex_unlock(&lock);
}

void tarn__progress_pause(void)
{
    pthread_mutex_lock(&lock);
    erase();
}

void tarn__progress_resume(void)
{
    fflush(stdout);
    draw();
    pthread_mutex_unlock(&lock);
}

void tarn__progress_stopping(void)
{
    if (line.wake[1] >= 0 && write(line.wake[1], "s", 1) != 1)
        return; /* the pipe is full of such requests */
}

void tarn__progress_close(void)
{
    if (line.is_open) {
        /* blocking again: the quit byte must arrive, else the join would wait forever */
        fcntl(line.wake[1], F_SETFL, 0);
        if (write(line.wake[1], "q", 1) == 1)
            pthread_join(line.thread, NULL);
        line.is_open = false;
    }
    /* unset before closing: a signal handler may write at any time */
    int ends[2] = {line.wake[0], line.wake[1]};
    line.wake[0] = line.wake[1] = -1;
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    erase();
    line.trainer = NULL;
    line.is_stopping = false;
    line.what[0] = line.file[0] = 0;
}

/* cli.h: the sub-commands, one file each, and their shared terminal output.
 *
 * Results go to standard output, messages to standard error. Untrusted strings (names in files, model output) are
 * escaped before they reach a terminal. Functions that return a string of a rotating buffer are for the main thread;
 * the progress thread formats its own. */
#ifndef TARN__CLI_H
#define TARN__CLI_H

#include "cli/json.h"
#include "cli/options.h"

/* Each runs with its options and returns the exit status. */
int tarn__info(const tarn__options *options);
int tarn__ops(const tarn__options *options);
int tarn__bench_matmul(const tarn__options *options);
int tarn__bench_ops(const tarn__options *options);
int tarn__bench_decode(const tarn__options *options);
int tarn__bench_train(const tarn__options *options);
int tarn__bench_weights(const tarn__options *options);
int tarn__demo(const tarn__options *options);
int tarn__train(const tarn__options *options);
int tarn__runs(const tarn__options *options);
int tarn__eval(const tarn__options *options);
int tarn__predict(const tarn__options *options);
int tarn__chat(const tarn__options *options);
int tarn__generate(const tarn__options *options);
int tarn__tokenize(const tarn__options *options);
int tarn__inspect(const tarn__options *options);
int tarn__quantize(const tarn__options *options);
int tarn__convert(const tarn__options *options);
int tarn__data(const tarn__options *options);

/* Prints the profile of a run's last `steps` profiled steps as a table, if `prints`, and writes RUN/profile.json.
 * Returns the exit status. */
int tarn__train_profile(const tarn_train_plan *plan, int64_t steps, bool prints);

/* Prints the pending error of the library to standard error and clears it. Returns TARN__FAILED. */
int tarn__print_error(const char *command);

/* True when standard output is a terminal that shows colours, and NO_COLOR does not forbid them. */
bool tarn__in_colour(void);

/* An untrusted string on one line, such as a name in a file, escaped by tarn_string_escape(). The result is valid for
 * the next 7 calls. */
const char *tarn__escaped(const char *text);

/* Prints an untrusted text of several lines to standard output, escaped but for its line breaks. */
void tarn__print_lines(const char *text, size_t length);

/* Prints generated text: its exact bytes to a pipe or file, escaped on a terminal. */
void tarn__print_generated(const char *text, size_t length);

/* Prints a token's string on one line: invisible bytes as \n, \t or \xNN. */
void tarn__print_token(const char *piece, size_t length);

/* A heading line: bold on a terminal, plain in a pipe or with NO_COLOR. */
void tarn__heading(const char *format, ...) TARN_PRINTF(1, 2);

/* "1:05:09", or "65 s" below two minutes. Returns `text`. */
const char *tarn__time_text(double seconds, char text[32]);

/* Columns of the terminal, at most TARN__MAX_COLUMNS; 80 without a terminal. */
enum { TARN__MAX_COLUMNS = 400 };
int tarn__columns(void);

/* Prints lines of text, on a terminal wrapped at spaces to its width; continuation lines are indented by `indent`. */
void tarn__print_wrapped(const char *text, int indent);

/* True when standard output is a terminal that can redraw a line. */
bool tarn__on_terminal(void);

/* "64 MiB", "23.5 GiB". The result is valid for the next 7 calls. */
const char *tarn__bytes_text(int64_t bytes);

/* ---- reports of a training run (train/train_progress.c) ---------------------------------------------------------- */

/* How reports are shown; fixed for a run. */
typedef struct tarn__display {
    bool json, quiet, terminal;
} tarn__display;

/* "accuracy 97.25 %": label, value and unit. Short: one decimal fewer, except for the most important metric. Returns
 * `text`. */
const char *tarn__metric_text(const tarn_train_metric *metric, bool is_short, char text[96]);

/* Prints one report; `ctx` is a tarn__display. */
void tarn__print_report(const tarn_train_report *report, void *ctx);

#endif

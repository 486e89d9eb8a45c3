/* cli.h: the sub-commands, one file each, and what they share: terminal output, JSON, messages, input, --checkpoint,
 * the progress line.
 *
 * Results go to standard output, messages to standard error. Untrusted strings (names in files, model output) are
 * escaped before they reach a terminal. Functions that return a string of a rotating buffer are for the main thread;
 * the progress thread formats its own. */
#ifndef TARN__CLI_H
#define TARN__CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <tarn/table.h>
#include <tarn/tensor.h>
#include <tarn/train.h>

#include "cli/options.h"

/* Each runs with its options and returns the exit status. */
int tarn__info(const tarn__options *options);
int tarn__ops(const tarn__options *options);
int tarn__bench_comm(const tarn__options *options);
int tarn__bench_matmul(const tarn__options *options);
int tarn__bench_ops(const tarn__options *options);
int tarn__bench_decode(const tarn__options *options);
int tarn__bench_serve(const tarn__options *options);
int tarn__bench_train(const tarn__options *options);
int tarn__bench_weights(const tarn__options *options);
int tarn__demo(const tarn__options *options);
int tarn__train(const tarn__options *options);
int tarn__runs(const tarn__options *options);
int tarn__board(const tarn__options *options);
int tarn__eval(const tarn__options *options);
int tarn__predict(const tarn__options *options);
int tarn__chat(const tarn__options *options);
int tarn__generate(const tarn__options *options);
int tarn__serve(const tarn__options *options);
int tarn__tokenize(const tarn__options *options);
int tarn__inspect(const tarn__options *options);
int tarn__quantize(const tarn__options *options);
int tarn__convert(const tarn__options *options);
int tarn__data(const tarn__options *options);
int tarn__pull(const tarn__options *options);

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

/* Prints an option of --help in two columns: `left` with its value, then its help, `bounds` (may be "") and, in
 * brackets, its default; a help that ends with a default in brackets has its bounds before that. */
void tarn__print_option(const char *left, const char *help, const char *bounds, const char *default_value);

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

/* ---- JSON (json.c) ----------------------------------------------------------------------------------------------- */

/* Writes one JSON object per line. Values that JSON cannot represent (NaN, infinity) become null. */

typedef struct tarn__json {
    FILE *to;
    bool follows; /* a comma comes before the next member */
} tarn__json;

/* Opens and closes an object or array ('{' or '['); the key is NULL inside an array or at the top. tarn__json_end()
 * closes the outermost object, ends the line and flushes it. */
void tarn__json_open(tarn__json *json, const char *key, char bracket);
void tarn__json_close(tarn__json *json, char bracket);
void tarn__json_end(tarn__json *json);

/* Members; the key is NULL inside an array. A NULL text becomes null. */
void tarn__json_string(tarn__json *json, const char *key, const char *text);
/* any bytes: invalid UTF-8 becomes U+FFFD */
void tarn__json_bytes(tarn__json *json, const char *key, const char *text, size_t length);
void tarn__json_int(tarn__json *json, const char *key, int64_t number);
/* rounded to `digits` decimals, without trailing zeros but the first: 0.1, 2.0 */
void tarn__json_real(tarn__json *json, const char *key, double number, int digits);
/* rounded to `digits` significant digits: 1e-05 with one */
void tarn__json_precise(tarn__json *json, const char *key, double number, int digits);
void tarn__json_bool(tarn__json *json, const char *key, bool value);
void tarn__json_null(tarn__json *json, const char *key);
void tarn__json_shape(tarn__json *json, const char *key, tarn_shape shape);

/* Bytes of the first UTF-8 character of a string, 1 to 4; 0: invalid. */
size_t tarn__utf8_bytes(const char *text, size_t length);

/* ---- messages (messages.c) --------------------------------------------------------------------------------------- */

/* The library's messages as users of the command read them. */

#define TARN__MESSAGE_MAX 1400 /* bytes; fits any message of the library */

/* Rewrites a message of tarn_error() or of the log: without the C functions that raised it ("tarn: trainer_new: "),
 * with options as typed ("--batch-size" for "batch_size", "--context" for ".context"). Sizes of a model are options if
 * `command` trains one, else keys of its file. Writes at most `size` bytes to `text` and returns it. */
const char *tarn__user_message(const char *command, const char *from, char *text, size_t size);

/* Same for the pending error, which is cleared. */
const char *tarn__user_error(const char *command, char *text, size_t size);

/* ---- input (input.c) --------------------------------------------------------------------------------------------- */

/* Input of commands: files, standard input, pipes; the growing arrays that hold it. */

/* Limits in bytes: of a stream (a pipe, a device, standard input), and of one line. */
#define TARN__STREAM_MAX ((size_t)256 << 20)
#define TARN__LINE_MAX ((size_t)16 << 20)

/* Grows an array of `count` elements of `each` bytes, with space for *capacity, so that `more` elements fit; at least
 * doubles it. Updates *array (a pointer to a pointer) and *capacity. False without memory, and nothing changed. The
 * caller frees the array. Counterpart of tarn__array_reserve() in the library, which the command cannot include. */
bool tarn__input_reserve(void *array, size_t count, size_t *capacity, size_t more, size_t each);

/* A buffer with a terminating 0; zeroed at first. The caller frees `text`. */
typedef struct tarn__input {
    char *text;
    size_t length, capacity;
} tarn__input;

/* Appends bytes. False without memory. */
bool tarn__input_add(tarn__input *input, const char *bytes, size_t count);

/* Appends a whole file, or a stream, whose name is for errors. Returns an exit status; a failure prints a message. */
int tarn__input_file(tarn__input *input, const char *command, const char *path);
int tarn__input_stream(tarn__input *input, const char *command, FILE *from, const char *name);

/* Reads one line, with its line break, replacing the previous text. False at the end, after an error (errno), and with
 * errno EFBIG for a line longer than TARN__LINE_MAX. */
bool tarn__input_line(tarn__input *input, FILE *from);

/* Opens a regular file for reading; NULL for anything else. Never blocks. The caller closes it. */
FILE *tarn__input_regular(const char *path);

/* ---- --checkpoint (checkpoint_option.c) -------------------------------------------------------------------------- */

/* Finds the weights of the first argument, a run folder or another model. TARN__DONE, or an exit status with a message
 * on standard error: --checkpoint is an error for a model that is not a run. */
int tarn__checkpoint_find(const char *command, const tarn__options *options, tarn_run_weights *weights);

/* Same, and prints which weights of a run are used to standard error, unless --json or --quiet is given. */
int tarn__checkpoint_use(const char *command, const tarn__options *options, tarn_run_weights *weights);

/* Writes the members "checkpoint" and "checkpoint_step"; nothing for a model that is not a run. */
void tarn__checkpoint_json(tarn__json *json, const tarn__options *options);

/* ---- names of models (hub_names.c) ------------------------------------------------------------------------------- */

/* Replaces the arguments that are models in the cache of `tarn pull` by their paths: the first one of commands that
 * open a model, all of `serve`. `names` receives the NAME of each, cut out of the old argument, or NULL for paths and
 * GGUF files. False with an error. */
bool tarn__hub_words(tarn__command command, int count, char **words, const char *names[TARN__MODELS_MAX]);

/* Same for the options that name models. */
bool tarn__hub_options(tarn__options *options);

/* ---- progress line (progress.c) ---------------------------------------------------------------------------------- */

/* The progress line at the bottom of a terminal: current activity and progress, redrawn by a thread. One per process.
 * Open and close are for the main thread; the other functions lock, but for tarn__progress_stopping(). */

/* Starts the thread. It draws the line five times per second if `is_drawn` (standard output is a terminal), and
 * confirms requests to stop, unless `quiet`. */
void tarn__progress_open(bool is_drawn, bool quiet);

/* Sets the current activity, before there is a trainer. The string is copied. */
void tarn__progress_text(const char *what);

/* Shows the progress of a trainer from now on. It is borrowed until tarn__progress_close(). */
void tarn__progress_watch(const tarn_trainer *trainer);

/* Shows a transfer from now on: of the file `name`, with `done` of `total` bytes of all files. The name is copied. */
void tarn__progress_transfer(const char *name, int64_t done, int64_t total);

/* Sets the metrics of the line; the report is copied. */
void tarn__progress_report(const tarn_train_report *report);

/* Around any other output: the line is removed and redrawn below it. The lock is held in between, so no other function
 * of this section may be called there. */
void tarn__progress_pause(void);
void tarn__progress_resume(void);

/* Lets the thread print that the run stops after this step. Async-signal-safe. */
void tarn__progress_stopping(void);

/* Removes the line and joins the thread. Without effect if not open. */
void tarn__progress_close(void);

#endif

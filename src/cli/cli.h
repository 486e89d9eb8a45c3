/* cli.h: the sub-commands, one file each, and their shared terminal output. Untrusted strings (names in files, model
 * output) are escaped before they reach a terminal. */
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

/* What the profile of a run says: a table, unless it is not wanted, and RUN/profile.json. */
int tarn__train_profile(const tarn_train_plan *plan, int64_t steps, bool prints);

/* Says on standard error what went wrong in the library, clears it, and is TARN__FAILED. */
int tarn__print_error(const char *command);

/* True when standard output is a terminal that shows colours, and NO_COLOR does not forbid them. */
bool tarn__in_colour(void);

/* A text from outside on one line: a name in a file, or a file's: what a terminal would obey is escaped as
 * tarn_string_escape() does. In one of a few buffers that are used in turn. */
const char *tarn__escaped(const char *text);

/* The same of several lines, to standard output. */
void tarn__print_lines(const char *text, size_t length);

/* What a model wrote: its bytes in a pipe or a file, tarn__print_lines() on a terminal. */
void tarn__print_generated(const char *text, size_t length);

/* A piece of text on one line: what cannot be seen is written as \n, \t or \xNN. */
void tarn__print_token(const char *piece, size_t length);

/* A heading line: bold on a terminal, plain in a pipe or with NO_COLOR. */
void tarn__heading(const char *format, ...) TARN_PRINTF(1, 2);

/* "1:05:09", or "65 s" below two minutes; in `text`. */
const char *tarn__time_text(double seconds, char text[32]);

/* Columns of the terminal, 80 where there is none. */
enum { TARN__MAX_COLUMNS = 400 };
int tarn__columns(void);

/* Lines of text: on a terminal broken at spaces to fit it, what follows with `indent` spaces before it. */
void tarn__print_wrapped(const char *text, int indent);

/* True when standard output is a terminal on which a line can be written over. */
bool tarn__on_terminal(void);

/* "64 MiB", "23.5 GiB", in one of a few buffers that are used in turn. */
const char *tarn__bytes_text(int64_t bytes);

/* ---- reports of a training run (train/train_progress.c) ---------------------------------------------------------- */

typedef struct tarn__display {
    bool json, quiet, terminal;
} tarn__display;

/* Prints one report; `ctx` is a tarn__display. */
void tarn__print_report(const tarn_train_report *report, void *ctx);

#endif

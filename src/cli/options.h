/* options.h: the options of every sub-command, from one table: flags, --help and the errors for what is unknown or out
 * of bounds. */
#ifndef TARN__OPTIONS_H
#define TARN__OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <tarn/train.h>

/* The sub-commands, as a mask: an option says which of them take it. */
typedef enum tarn__command {
    TARN__INFO = 1 << 0,
    TARN__OPS = 1 << 1,
    TARN__BENCH_MATMUL = 1 << 2,
    TARN__BENCH_OPS = 1 << 3,
    TARN__TRAIN = 1 << 4,
    TARN__EVAL = 1 << 5,
    TARN__PREDICT = 1 << 6,
    TARN__TOKENIZE = 1 << 7,
    TARN__GENERATE = 1 << 8,
    TARN__DEMO = 1 << 9,
    TARN__BENCH_TRAIN = 1 << 10,
    TARN__RUNS = 1 << 11,
    TARN__BENCH_WEIGHTS = 1 << 20,
    TARN__BENCH_DECODE = 1 << 21,
    TARN__CHAT = 1 << 22,
    TARN__INSPECT = 1 << 24,
    TARN__QUANTIZE = 1 << 25,
    TARN__CONVERT = 1 << 26,
    TARN__DATA = 1 << 27
} tarn__command;

#define TARN__LIST_MAX 64
#define TARN__STOPS_MAX 16
#define TARN__MODEL_SIZE 0 /* in a list of sizes: "model", each row at the sizes it has in a model */

/* An element type to measure, and how its products are made. */
typedef struct tarn__element {
    tarn_dtype dtype;
    bool tf32; /* "tf32": f32 whose products may be cut to TF32 */
} tarn__element;

/* The name it was asked for by. */
const char *tarn__element_name(tarn__element element);

/* What was asked for; defaults where nothing was. Texts point into the arguments. */
typedef struct tarn__options {
    bool json;
    bool help;
    int64_t threads;
    int64_t runs;
    tarn_device device;     /* the first of them */
    tarn_device devices[2]; /* two to compare */
    int device_count;
    int64_t sizes[TARN__LIST_MAX];
    int size_count;
    tarn__element dtypes[TARN__LIST_MAX];
    int dtype_count;
    char only[TARN__LIST_MAX][32];
    int only_count;
    bool quiet, dry_run, profile, force;
    const char *type, *adapter, *checkpoint; /* NULL: not given */
    int64_t profile_steps;
    int64_t batch_size, top, steps, warmup;
    const char *data;   /* NULL: not given */
    const char *resume; /* NULL: not given */
    const char *ids;    /* NULL: not given */
    int64_t tokens, top_k, seed;
    double temperature, top_p;
    bool ignore_eos, echo, no_slide;
    const char *prompt_file, *kv_type, *model, *weights, *system, *on_full; /* NULL: not given */
    int64_t prompt_tokens;
    const char *stops[TARN__STOPS_MAX];
    int stop_count;
    int64_t sequences, repeat_last_n, logprobs, prefill_chunk, context, gpu_layers; /* the last is 0: not given */
    double min_p, repeat_penalty;
    const char *tokenizer, *text, *out, *prepare, *field, *separator; /* NULL: not given */
    bool decode, pieces, special_as_text, add_special, parse_special, no_separator, json_lines;
    int64_t vocabulary, shard_tokens; /* 0: not given */
    double val_fraction;
    const char *template_name, *val; /* NULL: not given */
    int64_t show;
    tarn_train_options train;
    /* an option of these that was given as 0, which they do not tell from one that was not; NULL: none */
    const char *zero;
    char *const *words; /* what is no option: a configuration, a run, images, texts, a model and a prompt */
    int word_count;
} tarn__options;

/* How the program ends. */
enum { TARN__DONE = 0, TARN__FAILED = 1, TARN__MISUSED = 2 };

/* Reads the arguments of a sub-command. TARN__DONE, or TARN__MISUSED (TARN__FAILED for a device that is not there) with
 * a sentence on standard error. */
int tarn__options_read(tarn__command command, const char *command_name, int count, char *const *arguments,
                       tarn__options *options);

/* Prints the options that a sub-command takes, with bounds and defaults. */
void tarn__options_help(tarn__command command);

#endif

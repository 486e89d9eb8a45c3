/* options.h: options of every sub-command, from one table: flags, --help, and errors for unknown options and values out
 * of bounds.
 *
 * tarn__options is plain data of main(); strings are borrowed from the arguments of the process. */
#ifndef TARN__OPTIONS_H
#define TARN__OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tarn/train.h>

/* The sub-commands, as a mask: a row of the table names the commands that have the option. */
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
    TARN__BOARD = 1 << 12,
    TARN__SERVE = 1 << 13,
    TARN__PULL = 1 << 15,
    TARN__BENCH_COMM = 1 << 16,
    TARN__BENCH_SERVE = 1 << 14,
    TARN__BENCH_WEIGHTS = 1 << 20,
    TARN__BENCH_DECODE = 1 << 21,
    TARN__CHAT = 1 << 22,
    TARN__INSPECT = 1 << 24,
    TARN__QUANTIZE = 1 << 25,
    TARN__CONVERT = 1 << 26,
    TARN__DATA = 1 << 27
} tarn__command;

/* Masks of commands. */
#define TARN__GENERATES (TARN__GENERATE | TARN__CHAT)
#define TARN__OPENS_LM (TARN__GENERATES | TARN__SERVE)
#define TARN__SERVES (TARN__SERVE | TARN__BENCH_SERVE)
#define TARN__ORIGINS_MAX 16
#define TARN__INCLUDES_MAX 16
#define TARN__LORAS_MAX 64
#define TARN__MODELS_MAX 64
#define TARN__EVERY (~0u)

#define TARN__LIST_MAX 64
#define TARN__DEVICES_MAX TARN_SPLIT_MAX_DEVICES
#define TARN__STOPS_MAX 16
#define TARN__MODEL_SIZE 0 /* in a list of sizes: "model", each row at the sizes it has in a model */

/* An element type to measure, and the precision of its matmuls. */
typedef struct tarn__element {
    tarn_dtype dtype;
    bool tf32; /* "tf32": f32 with matmuls that may round inputs to TF32 */
} tarn__element;

/* Name as typed: that of the dtype, or "tf32". */
const char *tarn__element_name(tarn__element element);

/* Options of a sub-command, with defaults. Strings point into the arguments; NULL, or 0 where noted: not given. */
typedef struct tarn__options {
    /* several commands */
    bool json, help, quiet, force;
    int64_t threads;
    tarn_device device;                     /* the first of `devices` */
    tarn_device devices[TARN__DEVICES_MAX]; /* several for a comparison (bench ops) or to share layers */
    int device_count;
    tarn__element dtypes[TARN__LIST_MAX];
    int dtype_count;
    const char *model, *data, *out, *adapter, *convert_base, *checkpoint, *template_name, *add_tokens, *tools;
    int64_t batch_size, steps, seed, context;
    const char *device_text; /* --device as typed, or its default */
    int64_t gpu_layers;      /* 0: not given */
    const char *tensor_split;
    int64_t port; /* board and serve */
    bool compare; /* runs */
    double val_fraction;
    const char *hub_names[TARN__MODELS_MAX]; /* of arguments ORG/NAME that are folders in the cache; else NULL */
    char *const *words; /* arguments before the options: a configuration, a run, images, a model and a prompt … */
    int word_count;

    bool variants; /* ops */
    bool chat;     /* demo */

    /* bench */
    int64_t runs, warmup, prompt_tokens;
    int64_t sizes[TARN__LIST_MAX];
    int size_count;
    char only[TARN__LIST_MAX][32];
    int only_count;
    const char *weights;       /* dtype of bench decode */
    int64_t clients, requests; /* bench serve; 0: not given */
    double rate, seconds;      /* same */
    bool engine_alone;         /* bench serve */

    /* train; eval and predict */
    tarn_train_options train;
    const char *zero; /* an option of `train` given as 0, where 0 means not given; NULL: none */
    const char *resume;
    bool dry_run, profile;
    int64_t profile_steps, top, mistakes;
    bool confusion;
    const char *output;
    int64_t ranks, gpus; /* processes that `tarn train` starts; 0: none */

    /* generate and chat */
    const char *ids, *prompt_file, *kv_type, *system, *on_full, *speculate, *draft_model;
    const char *stops[TARN__STOPS_MAX];
    int stop_count;
    int64_t max_tokens, sequences, top_k, top_logprobs, prefill_chunk, repeat_last_n, draft_tokens;
    double temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
    bool ignore_eos, echo, no_slide, json_object, no_history;
    const char *grammar, *json_schema, *regex;

    /* serve */
    const char *host, *api_key_file;
    const char *aliases[TARN__MODELS_MAX]; /* of the models, in their order */
    int alias_count;
    const char *origins[TARN__ORIGINS_MAX], *loras[TARN__LORAS_MAX];
    int origin_count, lora_count;
    int64_t queue, drain;
    int64_t kv_memory; /* MiB; 0: not given */
    int64_t swap_memory;

    /* pull */
    const char *revision;
    const char *includes[TARN__INCLUDES_MAX];
    int include_count;

    /* quantize, tokenize and data */
    const char *type, *imatrix, *tokenizer, *text, *prepare, *field, *separator, *val;
    bool decode, pieces, special_as_text, add_special, parse_special, no_separator, json_lines;
    int64_t vocab_size, shard_tokens; /* 0: not given */
    int64_t show;
} tarn__options;

/* Exit status. */
enum { TARN__DONE = 0, TARN__FAILED = 1, TARN__MISUSED = 2 };

/* Reads the arguments of a sub-command. TARN__DONE, or TARN__MISUSED (TARN__FAILED for a missing device) with a message
 * on standard error. */
int tarn__options_read(tarn__command command, const char *command_name, int count, char *const *arguments,
                       tarn__options *options);

/* Prints the options of a sub-command, with bounds and defaults. */
void tarn__options_help(tarn__command command);

/* ---- options of a training run (train_options.c) ----------------------------------------------------------------- */

/* They come from the library's table (tarn_train_option()), which also reads configuration files and writes the saved
 * record: --batch-size is "batch_size". */

#define TARN__MAX_TRAIN_OPTIONS 96

/* The option of a flag, by its name or its alias; false when the command has none: `train` has all of them, `bench
 * train` those of a step. */
bool tarn__train_option_find(tarn__command command, const char *flag, size_t length, tarn_option *option);

/* All names as flags, without dashes; returns their number. Static storage. */
int tarn__train_option_names(tarn__command command, const char **names);

/* Sets one option from a flag's value, or many from a file. TARN__DONE, or TARN__MISUSED with a message on standard
 * error. */
int tarn__train_option_set(const char *command_name, const tarn_option *option, const char *text,
                           tarn__options *options);
int tarn__train_options_file(const char *path, tarn__options *options);

/* Prints them with bounds and defaults. */
void tarn__train_options_help(tarn__command command);

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Shared by the table (option_table.c), the parser of values (option_values.c) and that of arguments (options.c). */

/* Types of options; the field in tarn__options is noted at tarn__option_read(). */
typedef enum tarn__option_type {
    TARN__OPT_FLAG,
    TARN__OPT_INT,
    TARN__OPT_REAL,   /* bounds are integers */
    TARN__OPT_ABOVE,  /* a REAL above `low` */
    TARN__OPT_INTS,   /* separated by commas */
    TARN__OPT_BYTES,  /* INTS with KiB, MiB and GiB, or "model" */
    TARN__OPT_DTYPES, /* element types, separated by commas, `high` at most; tf32 where several are allowed */
    TARN__OPT_WORDS,  /* any words, separated by commas */
    TARN__OPT_DEVICE, /* devices, separated by commas, `high` at most */
    TARN__OPT_STRING,
    TARN__OPT_STRINGS /* a STRING that may be repeated, `high` times at most */
} tarn__option_type;

/* All strings are literals. */
typedef struct tarn__option_row {
    const char *name;
    tarn__option_type type;
    int64_t low, high;
    const char *default_value; /* as it would be typed; "" or NULL: none */
    const char *value;         /* placeholder of the value in --help */
    unsigned commands;
    size_t offset; /* of its field in tarn__options */
    size_t count;  /* offset of the field's length, for lists */
    const char *help;
} tarn__option_row;

#define TARN__MAX_OPTIONS 160 /* rows of the table at most */

/* Row i in the order of --help; NULL after the last. */
const tarn__option_row *tarn__option_at(int i);

/* The row of a flag of any of the commands, by its name or the one it had in an earlier version; NULL: none. */
const tarn__option_row *tarn__option_find(const char *name, size_t length, unsigned commands);

/* Writes the field at the row's offset by its type: bool, const char *, an array of strings, double, int64_t, or a list
 * with its count. Strings are borrowed from the arguments. TARN__DONE, or TARN__MISUSED (TARN__FAILED for a missing
 * device) with a message on standard error. */
int tarn__option_read(const char *command, const tarn__option_row *row, const char *text, tarn__options *options);

#endif

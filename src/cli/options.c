/* options.c: the table of options, and reading arguments by it. */
#include "cli/options.h"

#include "cli/messages.h"
#include "cli/run_options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef enum kind {
    FLAG,
    WHOLE,  /* one number */
    REAL,   /* one number, with a fraction perhaps; bounds are whole ones */
    ABOVE,  /* the same, but `low` itself is outside */
    COUNTS, /* numbers, separated by commas */
    BYTES,  /* the same with KiB, MiB and GiB, or "model" */
    DTYPES, /* element types, separated by commas; `high` says how many; tf32 where there may be several */
    WORDS,  /* any words, separated by commas */
    DEVICE, /* devices, separated by commas; `high` says how many */
    TEXT,   /* anything */
    TEXTS   /* anything, and several times; `high` says how often */
} kind;

typedef struct option {
    const char *name;
    kind type;
    int64_t low, high;
    const char *default_value; /* the default, as it would be typed */
    const char *value;         /* what stands for the value in --help */
    unsigned commands;
    size_t offset; /* of its place in tarn__options */
    size_t count;  /* of its length there, for lists */
    const char *help;
} option;

#define AT(field) offsetof(tarn__options, field)
#define BENCH (TARN__BENCH_MATMUL | TARN__BENCH_OPS | TARN__BENCH_WEIGHTS)
#define RUNS (TARN__EVAL | TARN__PREDICT)
#define FILES (TARN__INSPECT | TARN__QUANTIZE | TARN__CONVERT)
#define WRITES (TARN__GENERATE | TARN__CHAT)
#define EVERY \
    (TARN__BENCH_DECODE | TARN__INFO | TARN__OPS | BENCH | TARN__TRAIN | RUNS | WRITES | TARN__TOKENIZE | TARN__DEMO | \
     TARN__BENCH_TRAIN | TARN__RUNS | FILES | TARN__DATA)
#define EXACT ((int64_t)1 << 53) /* whole numbers up to here are exact in JSON readers */

static const option table[] = {
    {"json", FLAG, 0, 1, NULL, NULL, EVERY & ~(unsigned)(TARN__DEMO | TARN__CHAT), AT(json), 0,
     "print one JSON object a line instead of a table"},
    {"threads", WHOLE, 0, 256, "0", "N", EVERY & ~(unsigned)(TARN__OPS | TARN__INSPECT | TARN__DATA), AT(threads), 0,
     "threads on the CPU; 0 means one for each core"},
    {"device", DEVICE, 1, 1, "auto", "DEVICE",
     TARN__BENCH_MATMUL | TARN__BENCH_WEIGHTS | TARN__BENCH_DECODE | RUNS | WRITES | TARN__DEMO, AT(devices),
     AT(device_count), "where to run: cpu, cuda:0, opencl:1 or auto"},
    {"device", DEVICE, 1, 2, "auto", "DEVICE", TARN__BENCH_OPS, AT(devices), AT(device_count),
     "where to run: cpu, cuda:0, opencl:1 or auto; two, as in cpu,cuda, are compared at 16, 128 and 1024 rows"},
    {"sizes", COUNTS, 1, 32768, "128,256,512,1024,2048,4096", "N,N", TARN__BENCH_MATMUL, AT(sizes), AT(size_count),
     "rows and columns of the matrices"},
    {"sizes", BYTES, 256, (int64_t)4 << 30, "", "N,N", TARN__BENCH_OPS, AT(sizes), AT(size_count),
     "bytes of the main operand, with KiB, MiB or GiB, or model: the sizes of GPT-2 [4KiB,1MiB,64MiB; on other devices "
     "than CPUs "
     "model]"},
    {"dtype", DTYPES, 1, 1, "f32", "DTYPE", TARN__BENCH_MATMUL, AT(dtypes), AT(dtype_count),
     "element type: f32, f64, bf16 or f16"},
    {"dtype", DTYPES, 1, 1, "", "DTYPE", WRITES, AT(dtypes), AT(dtype_count),
     "what weights that are no blocks become: f32, f64, bf16 or f16 [as they are stored; f32 where they are of several "
     "types]"},
    {"dtypes", DTYPES, 1, 5, "", "DTYPE,DTYPE", TARN__BENCH_OPS, AT(dtypes), AT(dtype_count),
     "element types: f32, f64, bf16 or f16, and tf32 for products of f32 [f32,bf16; on CUDA tf32 too]"},
    {"only", WORDS, 1, TARN__LIST_MAX, "", "NAME,NAME", TARN__BENCH_OPS, AT(only), AT(only_count),
     "measure only these rows or operations, such as add,sum-last,softmax"},
    {"only", WORDS, 1, TARN__LIST_MAX, "", "DTYPE,DTYPE", TARN__BENCH_WEIGHTS, AT(only), AT(only_count),
     "measure only weights of these element types: q8_0, q4_0, q4_k, q6_k, bf16 or f32"},
    {"runs", WHOLE, 5, 1000, "7", "N", BENCH, AT(runs), 0, "times each figure is measured; the median counts"},
    {"runs", WHOLE, 1, 100, "3", "N", TARN__BENCH_DECODE, AT(runs), 0,
     "times each figure is measured; the median counts"},
    {"model", TEXT, 0, 0, "gpt2-124m", "NAME", TARN__BENCH_DECODE, AT(model), 0,
     "the name of a size: gpt2-124m, llama-1b, llama-3b …"},
    {"dtype", TEXT, 0, 0, "f32", "DTYPE", TARN__BENCH_DECODE, AT(weights), 0,
     "element type of the weights: f32, bf16, f16; of Llama models also blocks: q8_0, q4_0, q4_k, q6_k"},
    {"prompt", WHOLE, 1, 1 << 20, "512", "N", TARN__BENCH_DECODE, AT(prompt_tokens), 0, "tokens of the prompt"},
    {"tokens", WHOLE, 1, 1000000, "64", "N", TARN__BENCH_DECODE, AT(tokens), 0, "tokens that are decoded after it"},
    {"n", WHOLE, 1, 1024, "1", "N", TARN__BENCH_DECODE, AT(sequences), 0, "texts at once"},
    {"kv", TEXT, 0, 0, NULL, "KIND", TARN__BENCH_DECODE, AT(kv_type), 0,
     "how keys and values are stored: f32, bf16, f16, q8_0, or model, as the model computes [model]"},
    {"chunk", WHOLE, 0, 1000000, "0", "N", TARN__BENCH_DECODE, AT(prefill_chunk), 0,
     "tokens of the prompt that are computed at a time; 0 means all"},
    {"batch", WHOLE, 1, 65536, NULL, "N", TARN__BENCH_TRAIN, AT(batch_size), 0,
     "windows or images in a step [32 windows, 128 images]"},
    {"steps", WHOLE, 1, 100000, "20", "N", TARN__BENCH_TRAIN, AT(steps), 0,
     "steps that are measured; the median counts"},
    {"warmup", WHOLE, 0, 100000, "5", "N", TARN__BENCH_TRAIN, AT(warmup), 0, "steps before them"},
    {"resume", TEXT, 0, 0, NULL, "FOLDER", TARN__TRAIN, AT(resume), 0,
     "go on with the run in a folder, from its last checkpoint"},
    {"dry-run", FLAG, 0, 1, NULL, NULL, TARN__TRAIN, AT(dry_run), 0, "say what would be done, and stop"},
    {"profile", FLAG, 0, 1, NULL, NULL, TARN__TRAIN, AT(profile), 0,
     "say where the time of a step goes, and write profile.json and trace.json (for Chrome or Perfetto) to the run's "
     "folder"},
    {"profile-steps", WHOLE, 1, 10000, NULL, "N", TARN__TRAIN, AT(profile_steps), 0,
     "with --profile: steps to look at, after the first ten; 10 unless given"},
    {"quiet", FLAG, 0, 1, NULL, NULL, TARN__TRAIN | TARN__TOKENIZE | TARN__QUANTIZE | TARN__CONVERT, AT(quiet), 0,
     "print nothing but errors"},
    {"type", TEXT, 0, 0, NULL, "TYPE", TARN__QUANTIZE, AT(type), 0,
     "what weights become: q8_0, q4_0, q4_k, q6_k, f16, bf16 or f32"},
    {"adapter", TEXT, 0, 0, NULL, "FOLDER", WRITES | TARN__EVAL, AT(adapter), 0,
     "adapters of the model (LoRA), in a folder that PEFT or tarn wrote"},
    {"adapter", TEXT, 0, 0, NULL, "FOLDER", TARN__QUANTIZE | TARN__CONVERT, AT(adapter), 0,
     "make adapters (LoRA) part of the weights, from a folder that PEFT or tarn wrote"},
    {"checkpoint", TEXT, 0, 0, NULL, "best|last", WRITES | TARN__EVAL | TARN__PREDICT | TARN__QUANTIZE | TARN__CONVERT,
     AT(checkpoint), 0, "of a run: the weights of the best evaluation, or the last ones [best]"},
    {"force", FLAG, 0, 1, NULL, NULL, TARN__QUANTIZE | TARN__CONVERT, AT(force), 0, "replace what is there already"},
    {"data", TEXT, 0, 0, NULL, "DATA", TARN__EVAL, AT(data), 0,
     "data to judge by, named as for train [the run's own validation data]"},
    {"batch-size", WHOLE, 1, 65536, "256", "N", TARN__EVAL, AT(batch_size), 0, "samples at a time"},
    {"top", WHOLE, 1, 65536, "3", "N", TARN__PREDICT, AT(top), 0, "how many of the likeliest classes to print"},
    {"ids", TEXT, 0, 0, NULL, "N,N", TARN__GENERATE, AT(ids), 0,
     "the prompt as numbers of tokens; then numbers are printed, too, and no tokenizer is needed"},
    {"tokens", WHOLE, 0, 1000000, "0", "N", TARN__GENERATE, AT(tokens), 0,
     "how many tokens to make at most; 0 means 100"},
    {"no-slide", FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(no_slide), 0,
     "stop when the context is full, instead of going on with BOS and the last half of it"},
    {"no-slide", FLAG, 0, 1, NULL, NULL, TARN__CHAT, AT(no_slide), 0,
     "stop when the context is full: the same as --on-full refuse"},
    {"temperature", REAL, 0, 100, "0.8", "X", WRITES, AT(temperature), 0,
     "how freely to choose; 0 takes the likeliest token always"},
    {"top-k", WHOLE, 0, 1000000, "40", "N", WRITES, AT(top_k), 0,
     "choose among so many of the likeliest tokens; 0 means all"},
    {"top-p", ABOVE, 0, 1, "1", "X", WRITES, AT(top_p), 0,
     "choose among the likeliest tokens that together reach this probability"},
    {"seed", WHOLE, 0, EXACT, "0", "N", WRITES | TARN__DEMO, AT(seed), 0,
     "of what is random; the same seed gives the same text"},
    {"min-p", REAL, 0, 1, "0", "X", WRITES, AT(min_p), 0,
     "choose among tokens at least X times as likely as the likeliest"},
    {"repeat-penalty", ABOVE, 0, 100, "1", "X", WRITES, AT(repeat_penalty), 0,
     "makes tokens less likely that the text has already; 1 means not"},
    {"repeat-window", WHOLE, 0, 1000000, "0", "N", WRITES, AT(repeat_last_n), 0,
     "with --repeat-penalty: how many of the last tokens count; 0 means all"},
    {"ignore-end", FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(ignore_eos), 0, "go on after the token that ends a text"},
    {"stop", TEXTS, 0, TARN__STOPS_MAX, NULL, "TEXT", TARN__GENERATE, AT(stops), AT(stop_count),
     "end before this text; may be given several times"},
    {"prompt-file", TEXT, 0, 0, NULL, "PATH", TARN__GENERATE, AT(prompt_file), 0,
     "take the prompt from a file; - is standard input"},
    {"echo", FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(echo), 0, "print the prompt first"},
    {"n", WHOLE, 1, 1024, "1", "N", TARN__GENERATE, AT(sequences), 0,
     "texts to write at once; the seed of each is one more than the last"},
    {"logprobs", WHOLE, 0, 100, "0", "N", TARN__GENERATE, AT(logprobs), 0,
     "with --json: how likely each token was, and the N likeliest in its place; 0 means not"},
    {"kv", TEXT, 0, 0, NULL, "KIND", WRITES, AT(kv_type), 0,
     "how keys and values are stored: f32, bf16, f16, q8_0, or model, as the model computes [model]"},
    {"gpu-layers", WHOLE, 1, 1024, NULL, "N", WRITES | TARN__EVAL | TARN__BENCH_DECODE, AT(gpu_layers), 0,
     "so many of the first layers lie on the device, the others on the CPU, for models that do not fit there [all]"},
    {"chunk", WHOLE, 1, 1000000, "512", "N", WRITES, AT(prefill_chunk), 0,
     "tokens of a prompt that are computed at a time"},
    {"context", WHOLE, 0, 1 << 30, "0", "N", TARN__GENERATE, AT(context), 0,
     "tokens to have room for; 0 means as many as the prompt and what is written need, at most the model's context"},
    {"tokenizer", TEXT, 0, 0, NULL, "PATH", TARN__TOKENIZE, AT(tokenizer), 0,
     "a model's folder, tokenizer.json, tokenizer.model, vocab.json or a .gguf file; bytes; or characters: those of "
     "the files"},
    {"text", TEXT, 0, 0, NULL, "TEXT", TARN__TOKENIZE, AT(text), 0, "take this instead of files or standard input"},
    {"decode", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(decode), 0, "read ids and write the text"},
    {"pieces", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(pieces), 0,
     "print each id with its piece of text, one a line"},
    {"special-as-text", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(special_as_text), 0,
     "special tokens in the input are text like any other"},
    {"add-special", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(add_special), 0,
     "add the tokens that the tokenizer puts around a text"},
    {"train", WHOLE, 256, 1 << 24, NULL, "N", TARN__TOKENIZE, AT(vocabulary), 0,
     "learn a BPE of N tokens from the files, for --out or --prepare"},
    {"out", TEXT, 0, 0, NULL, "FOLDER", TARN__TOKENIZE, AT(out), 0, "write tokenizer.json there"},
    {"out", TEXT, 0, 0, NULL, "FOLDER", TARN__DEMO, AT(out), 0,
     "the run's folder, a new one; FOLDER.txt is what it learns [runs/demo]"},
    {"steps", WHOLE, 1, 1000000, "800", "N", TARN__DEMO, AT(steps), 0, "steps of training"},
    {"prepare", TEXT, 0, 0, NULL, "FOLDER", TARN__TOKENIZE, AT(prepare), 0,
     "turn the files into tokens to train on, in a new folder"},
    {"validation", REAL, 0, 1, "0", "SHARE", TARN__TOKENIZE, AT(val_fraction), 0,
     "with --prepare: the share kept for validation"},
    {"shard-tokens", WHOLE, 1024, (int64_t)1 << 40, NULL, "N", TARN__TOKENIZE, AT(shard_tokens), 0,
     "with --prepare: most tokens of a file; 100 million unless given"},
    {"json-lines", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(json_lines), 0,
     "all files to learn from or prepare are JSON lines, not only *.jsonl"},
    {"field", TEXT, 0, 0, NULL, "NAME", TARN__TOKENIZE, AT(field), 0,
     "where JSON lines have their text; text unless given"},
    {"separator", TEXT, 0, 0, NULL, "TOKEN", TARN__TOKENIZE, AT(separator), 0,
     "with --prepare: the token behind a document; <|endoftext|> or its like unless given"},
    {"no-separator", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(no_separator), 0,
     "with --prepare: no token behind a document"},
    {"parse-special", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(parse_special), 0,
     "with --prepare: special tokens in the files become tokens"},
    {"tokens", WHOLE, 0, 1000000, "0", "N", TARN__CHAT, AT(tokens), 0,
     "tokens of an answer at most; 0 means as many as the context has"},
    {"context", WHOLE, 0, 1 << 30, "0", "N", TARN__CHAT, AT(context), 0,
     "tokens to have room for; 0 means 4096, or what the model has"},
    {"system", TEXT, 0, 0, NULL, "TEXT", TARN__CHAT, AT(system), 0, "what the model is told first"},
    {"on-full", TEXT, 0, 0, NULL, "WHAT", TARN__CHAT, AT(on_full), 0,
     "when the context is full: forget the oldest turns, or refuse [forget]"},
    {"model", TEXT, 0, 0, NULL, "MODEL", TARN__DATA, AT(model), 0,
     "the model to train: a folder or a .gguf file; its tokenizer and template are used"},
    {"context", WHOLE, 0, 1 << 24, "0", "N", TARN__DATA, AT(context), 0,
     "tokens of a row; 0 means what the model can look at, at most 2048"},
    {"template", TEXT, 0, 0, NULL, "NAME", TARN__DATA | TARN__CHAT | TARN__EVAL, AT(template_name), 0,
     "chatml, llama2, llama3 or mistral instead of the model's own chat template"},
    {"val", TEXT, 0, 0, NULL, "FILE", TARN__DATA, AT(val), 0, "JSON lines for validation alone"},
    {"val-share", REAL, 0, 1, "0", "SHARE", TARN__DATA, AT(val_fraction), 0,
     "the share of documents kept for validation, below 1"},
    {"seed", WHOLE, 0, EXACT, "0", "N", TARN__DATA, AT(seed), 0,
     "of which documents are for validation, and of the order of rows"},
    {"show", WHOLE, 0, 1 << 20, "1", "N", TARN__DATA, AT(show), 0,
     "how many of the first rows to print, token by token"},
    {"help", FLAG, 0, 1, NULL, NULL, EVERY, AT(help), 0, "explain the command"},
};
#define ROWS ((int)(sizeof(table) / sizeof(table[0])))

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int misuse(const char *command, const option *row, const char *text, const char *problem)
{
    fprintf(stderr, "tarn %s: --%s: '%s' %s\n", command, row->name, tarn__escaped(text), problem);
    return TARN__MISUSED;
}

/* Multiplies by the unit that follows a number; 0 for one that is none. */
static int64_t unit_of(const char *text)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(text, units[i].name) == 0)
            return units[i].bytes;
    return 0;
}

static int read_number(const char *command, const option *row, const char *text, int64_t *number)
{
    char *end, problem[96];
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (row->type == BYTES && strcmp(text, "model") == 0) {
        *number = TARN__MODEL_SIZE;
        return TARN__DONE;
    }
    int64_t unit = end == text || isspace((unsigned char)text[0]) ? 0 : row->type == BYTES ? unit_of(end) : *end == 0;
    if (unit == 0)
        return misuse(command, row, text,
                      row->type == BYTES ? "is no size; write 4096, 4KiB, 64MiB or model" : "is not a whole number");
    if (errno == ERANGE || value > row->high / unit || value * unit < row->low) {
        snprintf(problem, sizeof(problem), "is outside %lld to %lld", (long long)row->low, (long long)row->high);
        return misuse(command, row, text, problem);
    }
    *number = value * unit;
    return TARN__DONE;
}

static int read_real(const char *command, const option *row, const char *text, double *place)
{
    char *end, problem[96];
    double value = strtod(text, &end);
    if (end == text || *end || text[0] == ' ' || !isfinite(value))
        return misuse(command, row, text, "is not a number");
    bool is_low = row->type == ABOVE && value == (double)row->low;
    snprintf(problem, sizeof(problem), is_low ? "is not above %lld, up to %lld" : "is outside %lld to %lld",
             (long long)row->low, (long long)row->high);
    if (is_low || value < (double)row->low || value > (double)row->high)
        return misuse(command, row, text, problem);
    *place = value;
    return TARN__DONE;
}

const char *tarn__element_name(tarn__element element)
{
    return element.tf32 ? "tf32" : tarn_dtype_name(element.dtype);
}

static int read_element(const char *command, const option *row, const char *text, tarn__element *element)
{
    static const tarn__element elements[] = {
        {TARN_F32, false}, {TARN_F64, false}, {TARN_BF16, false}, {TARN_F16, false}, {TARN_F32, true}};
    int known = row->high > 1 ? 5 : 4;
    for (int i = 0; i < known; i++)
        if (strcmp(text, tarn__element_name(elements[i])) == 0) {
            *element = elements[i];
            return TARN__DONE;
        }
    return misuse(command, row, text,
                  known == 5 ? "is none of f32, f64, bf16, f16 and tf32" : "is none of f32, f64, bf16 and f16");
}

static int read_word(const char *command, const option *row, const char *text, char *word, size_t size)
{
    if (strlen(text) >= size)
        return misuse(command, row, text, "is too long for a name");
    snprintf(word, size, "%s", text);
    return TARN__DONE;
}

static int read_device(const char *command, const option *row, const char *text, tarn__options *options)
{
    tarn_device device = tarn_device_parse(text);
    if (tarn_failed()) {
        char sentence[TARN__MESSAGE_MAX];
        fprintf(stderr, "tarn %s: --device: %s\n", command, tarn__user_error(command, sentence, sizeof(sentence)));
        return TARN__FAILED;
    }
    if (options->device_count > 0 && tarn_device_equal(device, options->device))
        return misuse(command, row, text, "is the device that was named before");
    options->devices[options->device_count] = device;
    options->device = options->devices[0];
    return TARN__DONE;
}

/* What to say of a list that has more entries than the option takes. */
static const char *too_many(const option *row, int room)
{
    if (row->type == DEVICE)
        return room == 1 ? "is more than one device" : "is more than two devices";
    return row->type == DTYPES && room == 1 ? "is more than one element type" : "is too long a list";
}

static int read_list(const char *command, const option *row, const char *text, tarn__options *options)
{
    char copy[1024], *rest = copy;
    int *count = (int *)((char *)options + row->count), status = TARN__DONE;
    int room = row->type == DTYPES || row->type == DEVICE ? (int)row->high : TARN__LIST_MAX;
    if (strlen(text) >= sizeof(copy))
        return misuse(command, row, text, "is too long a list");
    snprintf(copy, sizeof(copy), "%s", text);
    *count = 0;
    for (char *part; status == TARN__DONE && text[0] && (part = strsep(&rest, ",")) != NULL;) {
        if (*count == room)
            return misuse(command, row, text, too_many(row, room));
        if (row->type == DTYPES)
            status = read_element(command, row, part, &options->dtypes[*count]);
        else if (row->type == DEVICE)
            status = read_device(command, row, part, options);
        else if (row->type == WORDS)
            status = read_word(command, row, part, options->only[*count], sizeof(options->only[0]));
        else
            status = read_number(command, row, part, &options->sizes[*count]);
        ++*count;
    }
    return status;
}

static int read_value(const char *command, const option *row, const char *text, tarn__options *options)
{
    char *place = (char *)options + row->offset;
    if (row->type == FLAG) {
        *(bool *)place = true;
        return TARN__DONE;
    }
    if (row->type == TEXT) {
        *(const char **)place = text;
        return TARN__DONE;
    }
    if (row->type == TEXTS) {
        int *count = (int *)((char *)options + row->count);
        if (*count == row->high)
            return misuse(command, row, text, "is one too many");
        ((const char **)place)[(*count)++] = text;
        return TARN__DONE;
    }
    if (row->type == REAL || row->type == ABOVE)
        return read_real(command, row, text, (double *)place);
    return row->type == WHOLE ? read_number(command, row, text, (int64_t *)place)
                              : read_list(command, row, text, options);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static const option *find(const char *name, size_t length, unsigned commands)
{
    for (int i = 0; i < ROWS; i++)
        if ((table[i].commands & commands) && strlen(table[i].name) == length &&
            memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

/* The names of the options that a command has; returns how many. */
static int names_of(tarn__command command, const char **names)
{
    int count = tarn__train_option_names(command, names);
    for (int i = 0; i < ROWS; i++)
        if (table[i].commands & command)
            names[count++] = table[i].name;
    return count;
}

/* True for what other programs have as an option, and is a word of this command. */
static bool is_word(tarn__command command, const char *typed)
{
    bool is_model = strcmp(typed, "model") == 0 || strcmp(typed, "m") == 0,
         is_prompt = strcmp(typed, "prompt") == 0 || strcmp(typed, "p") == 0;
    return ((command & WRITES) && is_model) || (command == TARN__GENERATE && is_prompt) ||
           (command == TARN__TRAIN && strcmp(typed, "config") == 0);
}

/* An option that is none, as it was typed, with its dashes. */
static int unknown(tarn__command command, const char *command_name, const char *word, size_t length)
{
    const char *names[ROWS + TARN__MAX_TRAIN_OPTIONS], *near;
    char typed[64];
    snprintf(typed, sizeof(typed), "%.*s", (int)length, word);
    const char *name = typed + strspn(typed, "-");
    tarn_option of_run;
    fprintf(stderr, "tarn %s: ", command_name);
    if (is_word(command, name))
        fprintf(stderr, "there is no option %s; it is given without a flag, before the options: see tarn %s --help\n",
                tarn__escaped(typed), command_name);
    else if ((near = tarn_suggest(name, names, names_of(command, names))) != NULL)
        fprintf(stderr, "there is no option %s; did you mean --%s?\n", tarn__escaped(typed), near);
    else if (find(name, strlen(name), EVERY) || tarn__train_option_find(TARN__TRAIN, name, strlen(name), &of_run))
        fprintf(stderr, "takes no --%s; see tarn %s --help\n", name, command_name);
    else
        fprintf(stderr, "there is no option %s; see tarn %s --help\n", tarn__escaped(typed), command_name);
    return TARN__MISUSED;
}

/* The value of an option: what follows an equals sign, or the next word. NULL, with a sentence, where there is none or
 * an empty one. */
static const char *find_value(const char *command_name, const char *name, size_t length, const char *stands_for,
                              int count, char *const *words, int *used)
{
    const char *text = name[length] == '=' ? name + length + 1 : count > 1 ? words[1] : NULL;
    *used = name[length] == '=' ? 1 : 2;
    if (!text)
        fprintf(stderr, "tarn %s: --%.*s needs a value: %s\n", command_name, (int)length, name, stands_for);
    else if (!text[0])
        fprintf(stderr, "tarn %s: --%.*s: '' is empty\n", command_name, (int)length, name);
    return text && text[0] ? text : NULL;
}

/* Words that a command takes before its options, of so many. */
static int most_words(tarn__command command, int count)
{
    bool takes_many = command == TARN__PREDICT || command == TARN__TOKENIZE;
    bool takes_two = command == TARN__QUANTIZE || command == TARN__CONVERT || command == TARN__GENERATE;
    bool takes_one = command == TARN__TRAIN || command == TARN__EVAL || command == TARN__RUNS ||
                     command == TARN__INSPECT || command == TARN__CHAT || command == TARN__DATA;
    return takes_two ? 2 : takes_one ? 1 : takes_many ? count : 0;
}

/* One argument, `--name`, `--name value` or `--name=value`; `*used` is how many words it took. */
static int read_argument(tarn__command command, const char *command_name, int count, char *const *words,
                         tarn__options *options, int *used)
{
    const char *word = words[0], *name = word + 2;
    *used = 1;
    if (strcmp(word, "-h") == 0) {
        options->help = true;
        return TARN__DONE;
    }
    if (word[0] == '-' && isalpha((unsigned char)word[1]))
        return unknown(command, command_name, word, strcspn(word, "="));
    if (strncmp(word, "--", 2) != 0 || !word[2]) {
        fprintf(stderr, "tarn %s: '%s' is not expected here%s; see tarn %s --help\n", command_name, tarn__escaped(word),
                most_words(command, 1) > options->word_count ? ", but before the options" : "", command_name);
        return TARN__MISUSED;
    }
    size_t length = strcspn(name, "=");
    const option *row = find(name, length, command);
    tarn_option of_run = {0};
    if (!row && !tarn__train_option_find(command, name, length, &of_run))
        return unknown(command, command_name, word, length + 2);
    bool is_flag = row ? row->type == FLAG : of_run.type == TARN_OPTION_FLAG;
    if (is_flag && name[length]) {
        fprintf(stderr, "tarn %s: --%.*s: '%s' is not expected: the option is on or absent\n", command_name,
                (int)length, name, tarn__escaped(name + length + 1));
        return TARN__MISUSED;
    }
    const char *text =
        is_flag ? "true" : find_value(command_name, name, length, row ? row->value : of_run.value, count, words, used);
    if (!text)
        return TARN__MISUSED;
    return row ? read_value(command_name, row, text, options)
               : tarn__train_option_set(command_name, &of_run, text, options);
}

/* Words before the options, where the command takes any; `*used` is how many there are. */
static int read_words(tarn__command command, const char *command_name, int count, char *const *words,
                      tarn__options *options, int *used)
{
    bool needs_two = command == TARN__QUANTIZE || command == TARN__CONVERT || command == TARN__PREDICT;
    bool needs_one = command == TARN__EVAL || (command & WRITES) || command == TARN__INSPECT || command == TARN__DATA;
    int most = most_words(command, count), least_words = needs_two ? 2 : needs_one ? 1 : 0;
    options->words = words;
    while (options->word_count < count && options->word_count < most &&
           (words[options->word_count][0] != '-' ||
            (command == TARN__GENERATE && options->word_count == 1 && !words[1][1])))
        options->word_count++; /* a prompt may be -: standard input */
    *used = options->word_count;
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0)
            return TARN__DONE;
    if (options->word_count < least_words) {
        bool has_one = options->word_count > 0;
        const char *what = command == TARN__INSPECT ? "a file or a model's folder"
                           : command == TARN__DATA  ? "a file of JSON lines"
                           : command == TARN__QUANTIZE || command == TARN__CONVERT
                               ? (has_one ? "the path to write to" : "a model's folder or GGUF file")
                           : has_one            ? "an image"
                           : (command & WRITES) ? "a model's folder"
                                                : "a run's folder";
        fprintf(stderr, "tarn %s: %s is missing%s; see tarn %s --help\n", command_name, what,
                count > *used ? " before the options" : "", command_name);
        return TARN__MISUSED;
    }
    return command == TARN__TRAIN && options->word_count ? tarn__train_options_file(words[0], options) : TARN__DONE;
}

/* Files may also come behind the options, as patterns of the shell like to. Returns how many there are. */
static int read_late_words(tarn__command command, int count, char *const *words, tarn__options *options)
{
    if (command != TARN__TOKENIZE)
        return 0;
    options->words = words;
    while (options->word_count < count && words[options->word_count][0] != '-')
        options->word_count++;
    return options->word_count;
}

/* Defaults are read by the same rules; the device is only looked for when it is not given. */
static int fill_in(tarn__command command, const char *command_name, tarn__options *options, bool device_given)
{
    int status = TARN__DONE;
    for (int i = 0; i < ROWS && status == TARN__DONE; i++)
        if ((table[i].commands & command) && table[i].default_value && !(table[i].type == DEVICE && device_given))
            status = read_value(command_name, &table[i], table[i].default_value, options);
    return status;
}

int tarn__options_read(tarn__command command, const char *command_name, int count, char *const *arguments,
                       tarn__options *options)
{
    bool device_given = false;
    for (int i = 0; i < count; i++)
        device_given = device_given || strncmp(arguments[i], "--device", 8) == 0 || strcmp(arguments[i], "--help") == 0;
    *options = (tarn__options){0};
    int used = 0, status = fill_in(command, command_name, options, device_given);
    if (status == TARN__DONE)
        status = read_words(command, command_name, count, arguments, options, &used);
    for (int i = used; i < count && status == TARN__DONE && !options->help; i += used) {
        used = options->word_count == 0 ? read_late_words(command, count - i, arguments + i, options) : 0;
        if (used == 0)
            status = read_argument(command, command_name, count - i, arguments + i, options, &used);
    }
    return status;
}

void tarn__options_help(tarn__command command)
{
    tarn__train_options_help(command);
    for (int i = 0; i < ROWS; i++) {
        const option *row = &table[i];
        char left[48], bounds[64] = "";
        if (!(row->commands & command))
            continue;
        snprintf(left, sizeof(left), "--%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        if (row->type == WHOLE || row->type == COUNTS || row->type == REAL || row->type == ABOVE)
            snprintf(bounds, sizeof(bounds), row->type == ABOVE ? ", above %lld to %lld" : ", from %lld to %lld",
                     (long long)row->low, (long long)row->high);
        printf("  %-22s %s%s", left, row->help, bounds);
        if (row->default_value && row->default_value[0])
            printf(" [%s]", row->default_value);
        printf("\n");
    }
}

/* options.c: the table of options, and parsing of arguments by it.
 *
 * A row declares an option for the commands of a mask; an option that differs between commands has several rows.
 * Defaults are parsed by the same rules as typed values, before the arguments. Options of a training run are not in
 * this table: they come from the library (train_options.c). Old names are looked up only when the typed name is not an
 * option, so a command may reuse one. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/messages.h"

/* Types of options; the field in tarn__options is noted in read_value(). */
typedef enum kind {
    FLAG,
    INT,
    REAL,   /* bounds are integers */
    ABOVE,  /* a REAL above `low` */
    INTS,   /* separated by commas */
    BYTES,  /* INTS with KiB, MiB and GiB, or "model" */
    DTYPES, /* element types, separated by commas, `high` at most; tf32 where several are allowed */
    WORDS,  /* any words, separated by commas */
    DEVICE, /* devices, separated by commas, `high` at most */
    STRING,
    STRINGS /* a STRING that may be repeated, `high` times at most */
} kind;

/* A row of the table; all strings are literals. */
typedef struct option {
    const char *name;
    kind type;
    int64_t low, high;
    const char *default_value; /* as it would be typed; "" or NULL: none */
    const char *value;         /* placeholder of the value in --help */
    unsigned commands;
    size_t offset; /* of its field in tarn__options */
    size_t count;  /* offset of the field's length, for lists */
    const char *help;
} option;

/* Masks of commands with common options. */
#define AT(field) offsetof(tarn__options, field)
#define BENCH (TARN__BENCH_MATMUL | TARN__BENCH_OPS | TARN__BENCH_WEIGHTS)
#define RUNS (TARN__EVAL | TARN__PREDICT)
#define FILES (TARN__INSPECT | TARN__QUANTIZE | TARN__CONVERT)
#define GENERATES (TARN__GENERATE | TARN__CHAT)
#define EVERY \
    (TARN__BENCH_DECODE | TARN__INFO | TARN__OPS | BENCH | TARN__TRAIN | RUNS | GENERATES | TARN__TOKENIZE | \
     TARN__DEMO | TARN__BENCH_TRAIN | TARN__RUNS | FILES | TARN__DATA)
#define EXACT ((int64_t)1 << 53) /* integers up to 2^53 are exact in JSON readers */

/* Order is that of --help. Bounds are inclusive, in the unit that is typed; for DTYPES, DEVICE and STRINGS `high` is
 * the maximum number of values. */
static const option table[] = {
    {"json", FLAG, 0, 1, NULL, NULL, EVERY & ~(unsigned)(TARN__DEMO | TARN__CHAT), AT(json), 0,
     "one JSON object per line instead of a table"},
    {"threads", INT, 0, 256, "0", "N", EVERY & ~(unsigned)(TARN__OPS | TARN__INSPECT | TARN__DATA), AT(threads), 0,
     "CPU threads; 0 = one per core"},
    {"device", DEVICE, 1, 1, "auto", "DEVICE",
     TARN__BENCH_MATMUL | TARN__BENCH_WEIGHTS | TARN__BENCH_DECODE | RUNS | GENERATES | TARN__DEMO, AT(devices),
     AT(device_count), "device: cpu, cuda:0, opencl:1 or auto"},
    {"device", DEVICE, 1, 2, "auto", "DEVICE", TARN__BENCH_OPS, AT(devices), AT(device_count),
     "device: cpu, cuda:0, opencl:1 or auto; two, as in cpu,cuda, are compared at 16, 128 and 1024 rows"},
    {"sizes", INTS, 1, 32768, "128,256,512,1024,2048,4096", "N,N", TARN__BENCH_MATMUL, AT(sizes), AT(size_count),
     "rows and columns of the matrices"},
    {"sizes", BYTES, 256, (int64_t)4 << 30, "", "N,N", TARN__BENCH_OPS, AT(sizes), AT(size_count),
     "bytes of the main operand, with KiB, MiB or GiB, or model: the sizes of GPT-2 [4KiB,1MiB,64MiB; model on GPUs]"},
    {"dtype", DTYPES, 1, 1, "f32", "DTYPE", TARN__BENCH_MATMUL, AT(dtypes), AT(dtype_count),
     "element type: f32, f64, bf16 or f16"},
    {"dtype", DTYPES, 1, 1, "", "DTYPE", GENERATES, AT(dtypes), AT(dtype_count),
     "dtype of unquantized weights: f32, f64, bf16 or f16 [as stored; f32 where they differ]"},
    {"dtypes", DTYPES, 1, 5, "", "DTYPE,DTYPE", TARN__BENCH_OPS, AT(dtypes), AT(dtype_count),
     "element types: f32, f64, bf16, f16, or tf32 for f32 matmuls [f32,bf16; on CUDA tf32 too]"},
    {"only", WORDS, 1, TARN__LIST_MAX, "", "NAME,NAME", TARN__BENCH_OPS, AT(only), AT(only_count),
     "rows or operations to measure, such as add,sum-last,softmax [all]"},
    {"only", WORDS, 1, TARN__LIST_MAX, "", "DTYPE,DTYPE", TARN__BENCH_WEIGHTS, AT(only), AT(only_count),
     "weight types to measure: q8_0, q4_0, q4_k, q6_k, bf16 or f32 [all]"},
    {"runs", INT, 5, 1000, "7", "N", BENCH, AT(runs), 0, "measurements per time, of which the median is printed"},
    {"runs", INT, 1, 100, "3", "N", TARN__BENCH_DECODE, AT(runs), 0,
     "measurements per time, of which the median is printed"},
    {"model", STRING, 0, 0, "gpt2-124m", "NAME", TARN__BENCH_DECODE, AT(model), 0,
     "model size by name: gpt2-124m, llama-1b, llama-3b …"},
    {"dtype", STRING, 0, 0, "f32", "DTYPE", TARN__BENCH_DECODE, AT(weights), 0,
     "dtype of the weights: f32, bf16, f16; for Llama models also q8_0, q4_0, q4_k, q6_k"},
    {"prompt", INT, 1, 1 << 20, "512", "N", TARN__BENCH_DECODE, AT(prompt_tokens), 0, "prompt length in tokens"},
    {"tokens", INT, 1, 1000000, "64", "N", TARN__BENCH_DECODE, AT(max_tokens), 0, "tokens to decode after the prompt"},
    {"n", INT, 1, 1024, "1", "N", TARN__BENCH_DECODE, AT(sequences), 0, "sequences in a batch"},
    {"kv-type", STRING, 0, 0, NULL, "TYPE", TARN__BENCH_DECODE, AT(kv_type), 0,
     "KV cache type: f32, bf16, f16, q8_0, or model for the model's compute dtype [model]"},
    {"prefill-chunk", INT, 0, 1000000, "0", "N", TARN__BENCH_DECODE, AT(prefill_chunk), 0,
     "prefill chunk in tokens; 0 = the whole prompt"},
    {"batch", INT, 1, 65536, NULL, "N", TARN__BENCH_TRAIN, AT(batch_size), 0,
     "batch size per step [32 windows, 128 images]"},
    {"steps", INT, 1, 100000, "20", "N", TARN__BENCH_TRAIN, AT(steps), 0,
     "steps to measure, of which the median is printed"},
    {"warmup", INT, 0, 100000, "5", "N", TARN__BENCH_TRAIN, AT(warmup), 0, "warm-up steps before them"},
    {"resume", STRING, 0, 0, NULL, "FOLDER", TARN__TRAIN, AT(resume), 0,
     "resume the run in FOLDER from its last checkpoint"},
    {"dry-run", FLAG, 0, 1, NULL, NULL, TARN__TRAIN, AT(dry_run), 0, "print the plan and exit"},
    {"profile", FLAG, 0, 1, NULL, NULL, TARN__TRAIN, AT(profile), 0,
     "step time breakdown; writes profile.json and trace.json (for Chrome or Perfetto) to the run folder"},
    {"profile-steps", INT, 1, 10000, NULL, "N", TARN__TRAIN, AT(profile_steps), 0,
     "with --profile: steps to profile, after the first ten [10]"},
    {"quiet", FLAG, 0, 1, NULL, NULL, TARN__TRAIN | TARN__TOKENIZE | TARN__QUANTIZE | TARN__CONVERT, AT(quiet), 0,
     "print errors only"},
    {"type", STRING, 0, 0, NULL, "TYPE", TARN__QUANTIZE, AT(type), 0,
     "weight type: q8_0, q4_0, q4_k, q6_k, f16, bf16 or f32"},
    {"adapter", STRING, 0, 0, NULL, "FOLDER", GENERATES | TARN__EVAL, AT(adapter), 0,
     "LoRA adapters for the model, in a folder written by PEFT or tarn"},
    {"adapter", STRING, 0, 0, NULL, "FOLDER", TARN__QUANTIZE | TARN__CONVERT, AT(adapter), 0,
     "LoRA adapters to merge into the weights, in a folder written by PEFT or tarn"},
    {"checkpoint", STRING, 0, 0, NULL, "best|last",
     GENERATES | TARN__EVAL | TARN__PREDICT | TARN__QUANTIZE | TARN__CONVERT, AT(checkpoint), 0,
     "weights of a run: those of the best evaluation, or the last ones [best]"},
    {"force", FLAG, 0, 1, NULL, NULL, TARN__QUANTIZE | TARN__CONVERT, AT(force), 0,
     "replace an existing file or folder"},
    {"data", STRING, 0, 0, NULL, "DATA", TARN__EVAL, AT(data), 0,
     "data to evaluate, named as for train [the run's validation set]"},
    {"batch-size", INT, 1, 65536, "256", "N", TARN__EVAL, AT(batch_size), 0, "batch size"},
    {"top", INT, 1, 65536, "3", "N", TARN__PREDICT, AT(top), 0, "number of most probable classes to print"},
    {"ids", STRING, 0, 0, NULL, "N,N", TARN__GENERATE, AT(ids), 0,
     "prompt as token ids; the output is token ids too, and no tokenizer is needed"},
    {"max-tokens", INT, 0, 1000000, "0", "N", TARN__GENERATE, AT(max_tokens), 0,
     "maximum number of tokens to generate; 0 = 100"},
    {"no-slide", FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(no_slide), 0,
     "stop at a full context, instead of continuing from BOS and its last half"},
    {"no-slide", FLAG, 0, 1, NULL, NULL, TARN__CHAT, AT(no_slide), 0, "same as --on-full refuse"},
    {"temperature", REAL, 0, 100, "0.8", "X", GENERATES, AT(temperature), 0, "sampling temperature; 0 = greedy"},
    {"top-k", INT, 0, 1000000, "40", "N", GENERATES, AT(top_k), 0, "top-k sampling; 0 = off"},
    {"top-p", ABOVE, 0, 1, "1", "X", GENERATES, AT(top_p), 0, "top-p (nucleus) sampling; 1 = off"},
    {"seed", INT, 0, EXACT, "0", "N", GENERATES | TARN__DEMO, AT(seed), 0,
     "random seed; the same seed gives the same text"},
    {"min-p", REAL, 0, 1, "0", "X", GENERATES, AT(min_p), 0,
     "minimum probability relative to the most probable token; 0 = off"},
    {"repeat-penalty", ABOVE, 0, 100, "1", "X", GENERATES, AT(repeat_penalty), 0, "repetition penalty; 1 = off"},
    {"repeat-last-n", INT, 0, 1000000, "0", "N", GENERATES, AT(repeat_last_n), 0,
     "last tokens for --repeat-penalty; 0 = all"},
    {"ignore-eos", FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(ignore_eos), 0, "continue after an EOS token"},
    {"stop", STRINGS, 0, TARN__STOPS_MAX, NULL, "TEXT", TARN__GENERATE, AT(stops), AT(stop_count),
     "stop string; may be given several times"},
    {"prompt-file", STRING, 0, 0, NULL, "PATH", TARN__GENERATE, AT(prompt_file), 0, "prompt file; - = standard input"},
    {"echo", FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(echo), 0, "print the prompt first"},
    {"n", INT, 1, 1024, "1", "N", TARN__GENERATE, AT(sequences), 0,
     "sequences to generate in one batch, with consecutive seeds"},
    {"top-logprobs", INT, 0, 100, "0", "N", TARN__GENERATE, AT(top_logprobs), 0,
     "with --json: log probability of each token and of the N most probable ones; 0 = off"},
    {"kv-type", STRING, 0, 0, NULL, "TYPE", GENERATES, AT(kv_type), 0,
     "KV cache type: f32, bf16, f16, q8_0, or model for the model's compute dtype [model]"},
    {"gpu-layers", INT, 1, 1024, NULL, "N", GENERATES | TARN__EVAL | TARN__BENCH_DECODE, AT(gpu_layers), 0,
     "layers to offload to the device, from the first; the others stay on the CPU [all]"},
    {"prefill-chunk", INT, 1, 1000000, "512", "N", GENERATES, AT(prefill_chunk), 0, "prefill chunk in tokens"},
    {"context", INT, 0, 1 << 30, "0", "N", TARN__GENERATE, AT(context), 0,
     "KV cache capacity in tokens; 0 = prompt plus --max-tokens, at most the model's context length"},
    {"tokenizer", STRING, 0, 0, NULL, "PATH", TARN__TOKENIZE, AT(tokenizer), 0,
     "model folder, tokenizer.json, tokenizer.model, vocab.json or .gguf file; bytes; or characters (of the files)"},
    {"text", STRING, 0, 0, NULL, "TEXT", TARN__TOKENIZE, AT(text), 0, "text instead of files or standard input"},
    {"decode", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(decode), 0, "token ids to text"},
    {"pieces", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(pieces), 0, "each id with its token string, one per line"},
    {"special-as-text", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(special_as_text), 0,
     "treat special tokens in the input as ordinary text"},
    {"add-special", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(add_special), 0,
     "add the tokenizer's special tokens around a text"},
    {"train", INT, 256, 1 << 24, NULL, "N", TARN__TOKENIZE, AT(vocab_size), 0,
     "train a BPE tokenizer with N tokens on the files, for --out or --prepare"},
    {"out", STRING, 0, 0, NULL, "FOLDER", TARN__TOKENIZE, AT(out), 0, "folder for tokenizer.json"},
    {"out", STRING, 0, 0, NULL, "FOLDER", TARN__DEMO, AT(out), 0,
     "new run folder; its text is written to FOLDER.txt [runs/demo]"},
    {"steps", INT, 1, 1000000, "800", "N", TARN__DEMO, AT(steps), 0, "training steps"},
    {"prepare", STRING, 0, 0, NULL, "FOLDER", TARN__TOKENIZE, AT(prepare), 0,
     "new folder for token shards of the files, to train on"},
    {"val-fraction", REAL, 0, 1, "0", "X", TARN__TOKENIZE, AT(val_fraction), 0,
     "with --prepare: fraction for validation"},
    {"shard-tokens", INT, 1024, (int64_t)1 << 40, NULL, "N", TARN__TOKENIZE, AT(shard_tokens), 0,
     "with --prepare: maximum tokens per file [100000000]"},
    {"json-lines", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(json_lines), 0,
     "read all files as JSON lines, not only *.jsonl"},
    {"field", STRING, 0, 0, NULL, "NAME", TARN__TOKENIZE, AT(field), 0, "text field of JSON lines [text]"},
    {"separator", STRING, 0, 0, NULL, "TOKEN", TARN__TOKENIZE, AT(separator), 0,
     "with --prepare: token after each document [the tokenizer's end of text]"},
    {"no-separator", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(no_separator), 0,
     "with --prepare: no token after a document"},
    {"parse-special", FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(parse_special), 0,
     "with --prepare: parse special tokens in the files"},
    {"max-tokens", INT, 0, 1000000, "0", "N", TARN__CHAT, AT(max_tokens), 0,
     "maximum tokens per answer; 0 = up to the context"},
    {"context", INT, 0, 1 << 30, "0", "N", TARN__CHAT, AT(context), 0,
     "KV cache capacity in tokens; 0 = 4096, or the model's context length"},
    {"system", STRING, 0, 0, NULL, "TEXT", TARN__CHAT, AT(system), 0, "system message"},
    {"on-full", STRING, 0, 0, NULL, "ACTION", TARN__CHAT, AT(on_full), 0,
     "at a full context: forget the oldest turns, or refuse [forget]"},
    {"model", STRING, 0, 0, NULL, "MODEL", TARN__DATA, AT(model), 0,
     "model to train: a folder or .gguf file, whose tokenizer and template are used"},
    {"context", INT, 0, 1 << 24, "0", "N", TARN__DATA, AT(context), 0,
     "tokens per row; 0 = the model's context length, at most 2048"},
    {"template", STRING, 0, 0, NULL, "NAME", TARN__DATA | TARN__CHAT | TARN__EVAL, AT(template_name), 0,
     "chat template: chatml, llama2, llama3 or mistral [the model's]"},
    {"val", STRING, 0, 0, NULL, "FILE", TARN__DATA, AT(val), 0, "JSON lines for validation"},
    {"val-fraction", REAL, 0, 1, "0", "X", TARN__DATA, AT(val_fraction), 0,
     "fraction of the documents for validation, below 1"},
    {"seed", INT, 0, EXACT, "0", "N", TARN__DATA, AT(seed), 0, "random seed of the split and of the row order"},
    {"show", INT, 0, 1 << 20, "1", "N", TARN__DATA, AT(show), 0, "first rows to print, token by token"},
    {"help", FLAG, 0, 1, NULL, NULL, EVERY, AT(help), 0, "this list"},
};
#define ROWS ((int)(sizeof(table) / sizeof(table[0])))

/* Flags of earlier versions, still accepted: the old name and the one that replaced it. */
static const char *const old_names[][2] = {{"tokens", "max-tokens"},      {"kv", "kv-type"},
                                           {"chunk", "prefill-chunk"},    {"repeat-window", "repeat-last-n"},
                                           {"ignore-end", "ignore-eos"},  {"logprobs", "top-logprobs"},
                                           {"val-share", "val-fraction"}, {"validation", "val-fraction"}};

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Prints the message of a wrong value: option as typed, value, problem. */
static int invalid(const char *command, const option *row, const char *text, const char *problem)
{
    fprintf(stderr, "tarn %s: --%s: '%s' %s\n", command, row->name, tarn__escaped(text), problem);
    return TARN__MISUSED;
}

/* Bytes of the unit after a number; 0: not a unit. */
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

/* Overflow is checked before the multiplication by the unit. */
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
        return invalid(command, row, text,
                       row->type == BYTES ? "is not a size; expected 4096, 4KiB, 64MiB or model" : "is not an integer");
    if (errno == ERANGE || value > row->high / unit || value * unit < row->low) {
        snprintf(problem, sizeof(problem), "is out of range; must be from %lld to %lld", (long long)row->low,
                 (long long)row->high);
        return invalid(command, row, text, problem);
    }
    *number = value * unit;
    return TARN__DONE;
}

/* NaN and infinity are rejected, though strtod() reads them. */
static int read_real(const char *command, const option *row, const char *text, double *place)
{
    char *end, problem[96];
    double value = strtod(text, &end);
    if (end == text || *end || text[0] == ' ' || !isfinite(value))
        return invalid(command, row, text, "is not a number");
    bool is_low = row->type == ABOVE && value == (double)row->low;
    snprintf(problem, sizeof(problem),
             row->type == ABOVE ? "is out of range; must be above %lld and at most %lld"
                                : "is out of range; must be from %lld to %lld",
             (long long)row->low, (long long)row->high);
    if (is_low || value < (double)row->low || value > (double)row->high)
        return invalid(command, row, text, problem);
    *place = value;
    return TARN__DONE;
}

const char *tarn__element_name(tarn__element element)
{
    return element.tf32 ? "tf32" : tarn_dtype_name(element.dtype);
}

/* tf32 is accepted only where several element types are. */
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
    return invalid(command, row, text,
                   known == 5 ? "must be f32, f64, bf16, f16 or tf32" : "must be f32, f64, bf16 or f16");
}

static int read_word(const char *command, const option *row, const char *text, char *word, size_t size)
{
    if (strlen(text) >= size)
        return invalid(command, row, text, "is too long for a name");
    snprintf(word, size, "%s", text);
    return TARN__DONE;
}

/* Opening a device may fail at run time, so this is FAILED, not MISUSED. */
static int read_device(const char *command, const option *row, const char *text, tarn__options *options)
{
    tarn_device device = tarn_device_parse(text);
    if (tarn_failed()) {
        char message[TARN__MESSAGE_MAX];
        fprintf(stderr, "tarn %s: --device: %s\n", command, tarn__user_error(command, message, sizeof(message)));
        return TARN__FAILED;
    }
    if (options->device_count > 0 && tarn_device_equal(device, options->device))
        return invalid(command, row, text, "is the device that was named before");
    options->devices[options->device_count] = device;
    options->device = options->devices[0];
    return TARN__DONE;
}

/* Problem of a list with more entries than the option allows. */
static const char *too_many(const option *row, int max_count)
{
    if (row->type == DEVICE)
        return max_count == 1 ? "is more than one device" : "is more than two devices";
    return row->type == DTYPES && max_count == 1 ? "is more than one element type" : "is too long a list";
}

/* Values separated by commas replace the default; an empty value is an empty list. */
static int read_list(const char *command, const option *row, const char *text, tarn__options *options)
{
    char copy[1024], *rest = copy;
    int *count = (int *)((char *)options + row->count), status = TARN__DONE;
    int max_count = row->type == DTYPES || row->type == DEVICE ? (int)row->high : TARN__LIST_MAX;
    if (strlen(text) >= sizeof(copy))
        return invalid(command, row, text, "is too long a list");
    snprintf(copy, sizeof(copy), "%s", text);
    *count = 0;
    for (char *part; status == TARN__DONE && text[0] && (part = strsep(&rest, ",")) != NULL;) {
        if (*count == max_count)
            return invalid(command, row, text, too_many(row, max_count));
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

/* Writes the field at the row's offset by its type: bool, const char *, an array of strings, double, int64_t, or a list
 * with its count. Strings are borrowed from the arguments. */
static int read_value(const char *command, const option *row, const char *text, tarn__options *options)
{
    char *place = (char *)options + row->offset;
    if (row->type == FLAG) {
        *(bool *)place = true;
        return TARN__DONE;
    }
    if (row->type == STRING) {
        *(const char **)place = text;
        return TARN__DONE;
    }
    if (row->type == STRINGS) {
        int *count = (int *)((char *)options + row->count);
        if (*count == row->high)
            return invalid(command, row, text, "is one too many");
        ((const char **)place)[(*count)++] = text;
        return TARN__DONE;
    }
    if (row->type == REAL || row->type == ABOVE)
        return read_real(command, row, text, (double *)place);
    return row->type == INT ? read_number(command, row, text, (int64_t *)place)
                            : read_list(command, row, text, options);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool is_name(const char *name, const char *typed, size_t length)
{
    return strlen(name) == length && memcmp(name, typed, length) == 0;
}

static const option *find_name(const char *name, size_t length, unsigned commands)
{
    for (int i = 0; i < ROWS; i++)
        if ((table[i].commands & commands) && is_name(table[i].name, name, length))
            return &table[i];
    return NULL;
}

/* The row of a flag, by its present name first: bench decode still has a --tokens of its own. */
static const option *find(const char *name, size_t length, unsigned commands)
{
    const option *found = find_name(name, length, commands);
    for (size_t i = 0; !found && i < sizeof(old_names) / sizeof(old_names[0]); i++)
        if (is_name(old_names[i][0], name, length))
            found = find_name(old_names[i][1], strlen(old_names[i][1]), commands);
    return found;
}

/* Collects the option names of a command; returns their number. */
static int names_of(tarn__command command, const char **names)
{
    int count = tarn__train_option_names(command, names);
    for (int i = 0; i < ROWS; i++)
        if (table[i].commands & command)
            names[count++] = table[i].name;
    return count;
}

/* True for a flag of other programs that is an argument of this command: --model, -p … */
static bool is_argument(tarn__command command, const char *typed)
{
    bool is_model = strcmp(typed, "model") == 0 || strcmp(typed, "m") == 0,
         is_prompt = strcmp(typed, "prompt") == 0 || strcmp(typed, "p") == 0;
    return ((command & GENERATES) && is_model) || (command == TARN__GENERATE && is_prompt) ||
           (command == TARN__TRAIN && strcmp(typed, "config") == 0);
}

/* Prints an error about an unknown option, typed with its dashes, with the best hint there is. */
static int unknown_option(tarn__command command, const char *command_name, const char *word, size_t length)
{
    const char *names[ROWS + TARN__MAX_TRAIN_OPTIONS], *suggestion;
    char typed[64]; /* truncated: a suggestion needs no more */
    snprintf(typed, sizeof(typed), "%.*s", (int)length, word);
    const char *name = typed + strspn(typed, "-");
    tarn_option of_run;
    fprintf(stderr, "tarn %s: ", command_name);
    if (is_argument(command, name))
        fprintf(stderr, "unknown option %s; give it without a flag, before the options: see tarn %s --help\n",
                tarn__escaped(typed), command_name);
    else if ((suggestion = tarn_suggest(name, names, names_of(command, names))) != NULL)
        fprintf(stderr, "unknown option %s; did you mean --%s?\n", tarn__escaped(typed), suggestion);
    else if (find(name, strlen(name), EVERY) || tarn__train_option_find(TARN__TRAIN, name, strlen(name), &of_run))
        fprintf(stderr, "--%s is not an option of this command; see tarn %s --help\n", name, command_name);
    else
        fprintf(stderr, "unknown option %s; see tarn %s --help\n", tarn__escaped(typed), command_name);
    return TARN__MISUSED;
}

/* The value of an option, after an equals sign or in the next word. NULL with a message if it is missing or empty. */
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

/* Maximum number of arguments before the options, of `count`. */
static int max_words(tarn__command command, int count)
{
    bool takes_many = command == TARN__PREDICT || command == TARN__TOKENIZE;
    bool takes_two = command == TARN__QUANTIZE || command == TARN__CONVERT || command == TARN__GENERATE;
    bool takes_one = command == TARN__TRAIN || command == TARN__EVAL || command == TARN__RUNS ||
                     command == TARN__INSPECT || command == TARN__CHAT || command == TARN__DATA;
    return takes_two ? 2 : takes_one ? 1 : takes_many ? count : 0;
}

/* Reads one option: `--name`, `--name value` or `--name=value`; `*used` is its number of words. */
static int read_argument(tarn__command command, const char *command_name, int count, char *const *words,
                         tarn__options *options, int *used)
{
    const char *word = words[0], *name = word + 2;
    *used = 1;
    if (strcmp(word, "-h") == 0) { /* the only short option */
        options->help = true;
        return TARN__DONE;
    }
    if (word[0] == '-' && isalpha((unsigned char)word[1]))
        return unknown_option(command, command_name, word, strcspn(word, "="));
    if (strncmp(word, "--", 2) != 0 || !word[2]) {
        fprintf(stderr, "tarn %s: '%s' is not expected here%s; see tarn %s --help\n", command_name, tarn__escaped(word),
                max_words(command, 1) > options->word_count ? ", but before the options" : "", command_name);
        return TARN__MISUSED;
    }
    size_t length = strcspn(name, "=");
    const option *row = find(name, length, command);
    tarn_option of_run = {0};
    if (!row && !tarn__train_option_find(command, name, length, &of_run))
        return unknown_option(command, command_name, word, length + 2);
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

/* Reads the arguments before the options; `*used` is their number. A configuration of `train` is loaded at once, so
 * that flags override it. */
static int read_words(tarn__command command, const char *command_name, int count, char *const *words,
                      tarn__options *options, int *used)
{
    bool needs_two = command == TARN__QUANTIZE || command == TARN__CONVERT || command == TARN__PREDICT;
    bool needs_one =
        command == TARN__EVAL || (command & GENERATES) || command == TARN__INSPECT || command == TARN__DATA;
    int max = max_words(command, count), min_words = needs_two ? 2 : needs_one ? 1 : 0;
    options->words = words;
    while (options->word_count < count && options->word_count < max &&
           (words[options->word_count][0] != '-' ||
            (command == TARN__GENERATE && options->word_count == 1 && !words[1][1])))
        options->word_count++; /* "-" may be a prompt: standard input */
    *used = options->word_count;
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0)
            return TARN__DONE;
    if (options->word_count < min_words) {
        bool has_one = options->word_count > 0;
        const char *what = command == TARN__INSPECT ? "a file or a model's folder"
                           : command == TARN__DATA  ? "a file of JSON lines"
                           : command == TARN__QUANTIZE || command == TARN__CONVERT
                               ? (has_one ? "the path to write to" : "a model's folder or GGUF file")
                           : has_one               ? "an image"
                           : (command & GENERATES) ? "a model's folder"
                                                   : "a run's folder";
        fprintf(stderr, "tarn %s: %s is missing%s; see tarn %s --help\n", command_name, what,
                count > *used ? " before the options" : "", command_name);
        return TARN__MISUSED;
    }
    return command == TARN__TRAIN && options->word_count ? tarn__train_options_file(words[0], options) : TARN__DONE;
}

/* Files may also follow the options, as with shell patterns. Returns their number. */
static int read_late_words(tarn__command command, int count, char *const *words, tarn__options *options)
{
    if (command != TARN__TOKENIZE)
        return 0;
    options->words = words;
    while (options->word_count < count && words[options->word_count][0] != '-')
        options->word_count++;
    return options->word_count;
}

/* Defaults, by the same rules. The device is searched for only if none is given: that loads backends. */
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
    bool device_given = false; /* opening the default device loads backends: avoided for --help too */
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
        if (row->type == INT || row->type == INTS || row->type == REAL || row->type == ABOVE)
            snprintf(bounds, sizeof(bounds), row->type == ABOVE ? ", above %lld to %lld" : ", from %lld to %lld",
                     (long long)row->low, (long long)row->high);
        printf("  %-22s %s%s", left, row->help, bounds);
        if (row->default_value && row->default_value[0])
            printf(" [%s]", row->default_value);
        printf("\n");
    }
}

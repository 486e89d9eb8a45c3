/* main.c: the command `tarn`: finds the sub-command, reads its options, runs it. Exit status 0: success, 1: failure, 2:
 * wrong usage.
 *
 * The command uses the library's public headers only. Sub-commands return a status and never exit, so that output is
 * flushed and checked in one place. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/blas.h"
#include "cli/cli.h"

/* A sub-command. All strings are literals. */
typedef struct command {
    const char *name; /* one word, or two */
    tarn__command bit;
    int (*run)(const tarn__options *options);
    const char *summary;
    const char *words; /* arguments before the options, for the usage line; "": none */
} command;

static const command commands[] = {
    {"info", TARN__INFO, tarn__info, "version, build, devices, accelerators and missing parts", ""},
    {"demo", TARN__DEMO, tarn__demo, "train a small GPT on tarn's source and generate text", ""},
    {"ops", TARN__OPS, tarn__ops, "operations, gradients and the backends that have them", ""},
    {"bench matmul", TARN__BENCH_MATMUL, tarn__bench_matmul, "matmul: a naive loop, BLAS called directly, and tarn",
     ""},
    {"bench ops", TARN__BENCH_OPS, tarn__bench_ops, "operations forward and backward, next to a memory copy", ""},
    {"bench weights", TARN__BENCH_WEIGHTS, tarn__bench_weights, "language model matmuls, next to reading their weights",
     ""},
    {"bench decode", TARN__BENCH_DECODE, tarn__bench_decode, "prefill and decode speed, with random weights", ""},
    {"bench serve", TARN__BENCH_SERVE, tarn__bench_serve, "load test of a server: throughput and latency",
     "URL|MODEL "},
    {"bench train", TARN__BENCH_TRAIN, tarn__bench_train, "training step: forward, backward, update, memory, MFU", ""},
    {"bench comm", TARN__BENCH_COMM, tarn__bench_comm, "all-to-all, all-gather and sums between ranks, by size", ""},
    {"train", TARN__TRAIN, tarn__train, "train or fine-tune a model; resume a run", "[CONFIG.json] "},
    {"runs", TARN__RUNS, tarn__runs, "log of runs; a page that compares runs", "[FOLDER | --compare RUN RUN...] "},
    {"board", TARN__BOARD, tarn__board, "live curves of all runs in the browser", "[FOLDER] "},
    {"eval", TARN__EVAL, tarn__eval, "loss, accuracy, perplexity or RMSE of a model", "RUN "},
    {"predict", TARN__PREDICT, tarn__predict, "classes of images, or a prediction per row of a table",
     "RUN IMAGE|FOLDER...|ROWS.csv "},
    {"generate", TARN__GENERATE, tarn__generate, "generate text with a language model", "MODEL [PROMPT] "},
    {"chat", TARN__CHAT, tarn__chat, "chat with a language model", "MODEL "},
    {"serve", TARN__SERVE, tarn__serve, "serve language models over HTTP, with OpenAI's API", "MODEL... "},
    {"pull", TARN__PULL, tarn__pull, "download a model from a Hugging Face hub", "ORG/NAME "},
    {"tokenize", TARN__TOKENIZE, tarn__tokenize, "text to tokens and back; train a tokenizer; token shards",
     "[FILE...] "},
    {"data", TARN__DATA, tarn__data, "tokens, loss mask and packed rows of chat data", "FILE.jsonl "},
    {"inspect", TARN__INSPECT, tarn__inspect, "contents of a model folder, GGUF or safetensors file", "PATH "},
    {"quantize", TARN__QUANTIZE, tarn__quantize, "quantize a model's weights to a GGUF file", "MODEL OUT.gguf "},
    {"convert", TARN__CONVERT, tarn__convert, "convert a Hugging Face folder to a GGUF file, or back", "FROM TO "},
};
#define COMMANDS ((int)(sizeof(commands) / sizeof(commands[0])))

static void print_usage(FILE *to)
{
    fprintf(to, "usage: tarn COMMAND [OPTION...]\n\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(to, "  tarn %-16s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "  tarn %-16s %s\n  tarn %-16s %s\n\n", "version", "print the version", "help [COMMAND]",
            "explain tarn or a command");
    fprintf(to, "tarn COMMAND --help lists the options of a command.\n");
}

/* The two words that are no sub-command, and what they do. */
static const char *const builtin_words[][2] = {
    {"version", "print the version; tarn --version does the same"},
    {"help", "explain tarn, or a command: tarn help train; tarn train --help does the same"}};

/* Explains `version` or `help`. False: the word is neither. */
static bool explain(const char *word)
{
    for (int i = 0; i < 2; i++)
        if (strcmp(word, builtin_words[i][0]) == 0)
            return printf("usage: tarn %s%s\n\n%s\n", word, i == 1 ? " [COMMAND]" : "", builtin_words[i][1]) > 0;
    return false;
}

static int print_help(const command *one)
{
    printf("usage: tarn %s %s[OPTION...]\n\n%s\n\n", one->name, one->words, one->summary);
    tarn__options_help(one->bit);
    return TARN__DONE;
}

/* The command named by the first one or two words; `*used` is their number. NULL: none. */
static const command *find(int count, char *const *words, int *used)
{
    char two[64];
    for (int i = 0; i < COMMANDS; i++) {
        *used = strchr(commands[i].name, ' ') ? 2 : 1;
        if (count < *used)
            continue;
        snprintf(two, sizeof(two), "%s%s%s", words[0], *used == 2 ? " " : "", *used == 2 ? words[1] : "");
        if (strcmp(two, commands[i].name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* True for the first word of a two-word command, such as bench. */
static bool begins(const char *name, const char *word)
{
    size_t length = strlen(word);
    return strncmp(name, word, length) == 0 && name[length] == ' ';
}

/* True for a word that starts commands of two words: bench. */
static bool is_family(const char *word)
{
    for (int i = 0; i < COMMANDS; i++)
        if (begins(commands[i].name, word))
            return true;
    return false;
}

static int print_family(const char *word, FILE *to)
{
    fprintf(to, "usage: tarn %s WHAT [OPTION...]\n\n", word);
    for (int i = 0; i < COMMANDS; i++)
        if (begins(commands[i].name, word))
            fprintf(to, "  tarn %-16s %s\n", commands[i].name, commands[i].summary);
    return TARN__DONE;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Verbs by which other programs download models: they get a hint. */
static bool fetches(const char *word)
{
    static const char *const verbs[] = {"download", "fetch", "get", "install", "clone"};
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (strcmp(word, verbs[i]) == 0)
            return true;
    return false;
}

/* Prints an error about an unknown command, with a suggestion. */
static int not_a_command(int count, char *const *words)
{
    const char *names[COMMANDS + 2];
    char typed[64];
    int known = 0;
    for (int i = 0; i < COMMANDS; i++)
        names[known++] = commands[i].name;
    names[known++] = "version";
    names[known++] = "help";
    bool family = is_family(words[0]);
    if (family && count < 2) {
        print_family(words[0], stderr);
        return TARN__MISUSED;
    }
    snprintf(typed, sizeof(typed), "%s%s%s", words[0], family ? " " : "", family ? words[1] : "");
    const char *suggestion = fetches(typed) ? NULL : tarn_suggest(typed, names, known);
    bool is_option = typed[0] == '-';
    fprintf(stderr, "tarn: unknown %s '%s'", is_option ? "option" : "command", tarn__escaped(typed));
    if (fetches(typed))
        fprintf(stderr, "; tarn pull ORG/NAME downloads a model\n");
    else if (suggestion)
        fprintf(stderr, "; did you mean '%s%s'?\n", is_option ? "tarn " : "", suggestion);
    else
        fprintf(stderr, "; see tarn help\n");
    return TARN__MISUSED;
}

/* `tarn help`, `tarn help COMMAND` and `tarn --help`. */
static int help(int count, char *const *words)
{
    int used;
    if (count == 0) {
        print_usage(stdout);
        return TARN__DONE;
    }
    const command *one = find(count, words, &used);
    if (one && count == used)
        return print_help(one);
    if (count == 1 && explain(words[0]))
        return TARN__DONE;
    return count == 1 && is_family(words[0]) ? print_family(words[0], stdout) : not_a_command(count, words);
}

static int version(int count, char *const *words)
{
    if (count > 0 && !is_help(words[0])) {
        fprintf(stderr, "tarn version: unexpected argument '%s'\n", tarn__escaped(words[0]));
        return TARN__MISUSED;
    }
    if (count > 0)
        return explain("version") ? TARN__DONE : TARN__FAILED;
    printf("tarn %s\n", tarn_version());
    return TARN__DONE;
}

/* Prints warnings and notices of the library's log; `ctx` is the name of the command. To standard error, so that
 * --json on standard output stays JSON. */
static void print_log(tarn_log_level level, const char *text, void *ctx)
{
    char sentence[TARN__MESSAGE_MAX];
    if (level >= TARN_LOG_NOTICE)
        fprintf(stderr, "tarn: %s\n", tarn__user_message(ctx ? ctx : "", text, sentence, sizeof(sentence)));
}

/* Options, threads and log, then the sub-command. */
static int run(const command *one, int count, char **words)
{
    tarn__options options;
    const char *hub_names[TARN__MODELS_MAX] = {NULL};
    /* models of the cache first: the words become paths, and everything after sees paths alone */
    if (!tarn__hub_words(one->bit, count, words, hub_names))
        return tarn__print_error(one->name);
    int status = tarn__options_read(one->bit, one->name, count, words, &options);
    if (status != TARN__DONE)
        return status;
    if (options.help)
        return print_help(one);
    /* names as typed, where a model of the cache stands in their place among the words now */
    memcpy(options.hub_names, hub_names, sizeof(hub_names));
    if (!tarn__hub_options(&options))
        return tarn__print_error(one->name);
    if (!tarn_set_threads((int)options.threads))
        return tarn__print_error(one->name);
    if (!options.quiet)
        tarn_set_log(print_log, (void *)(uintptr_t)one->name);
    return one->run(&options);
}

/* Order matters: `help` and `version` first, then commands of two words and of one, then hints. */
static int dispatch(int count, char **words)
{
    int used;
    if (count == 0) {
        print_usage(stderr);
        return TARN__MISUSED;
    }
    if (is_help(words[0]) || strcmp(words[0], "help") == 0)
        return help(count - 1, words + 1);
    if (strcmp(words[0], "version") == 0 || strcmp(words[0], "--version") == 0)
        return version(count - 1, words + 1);
    const command *one = find(count, words, &used);
    if (one)
        return run(one, count - used, words + used);
    if (count == 2 && is_help(words[1]) && is_family(words[0]))
        return print_family(words[0], stdout);
    return not_a_command(count, words);
}

/* Output that could not be written (full disk, closed pipe) is a failure too. Checked once, at the end: stdio keeps
 * the error, so no command looks at each printf(). */
int main(int count, char **words)
{
    tarn__blas_start_no_threads();
    signal(SIGXFSZ, SIG_IGN); /* beyond a file size limit (ulimit -f) the write fails, as on a full disk */
    int status = dispatch(count - 1, words + 1);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "tarn: cannot write the output: %s\n", strerror(errno));
        status = status == TARN__DONE ? TARN__FAILED : status;
    }
    return status;
}

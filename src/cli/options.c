/* options.c: parsing of the arguments of a sub-command by the table of options (option_table.c).
 *
 * Defaults are parsed by the same rules as typed values, before the arguments. An unknown option gets the best hint
 * there is: the nearest name, or that it belongs to another command.
 *
 * Arguments are ordered: words first (a model, files), then options. A word that begins with a dash is an option, so
 * a file of such a name is given as ./-name. */
#include "cli/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* Collects the option names of a command; returns their number. */
/* Those of a training run and those of the table, as hints are looked for in both. */
static int names_of(tarn__command command, const char **names)
{
    int count = tarn__train_option_names(command, names), i = 0;
    for (const tarn__option_row *row; (row = tarn__option_at(i)) != NULL; i++)
        if (row->commands & command)
            names[count++] = row->name;
    return count;
}

/* True for a flag of other programs that is an argument of this command: --model, -p … */
static bool is_argument(tarn__command command, const char *typed)
{
    bool is_model = strcmp(typed, "model") == 0 || strcmp(typed, "m") == 0,
         is_prompt = strcmp(typed, "prompt") == 0 || strcmp(typed, "p") == 0;
    return ((command & (TARN__OPENS_LM | TARN__BENCH_SERVE)) && is_model) || (command == TARN__GENERATE && is_prompt) ||
           (command == TARN__TRAIN && strcmp(typed, "config") == 0);
}

/* Prints an error about an unknown option, typed with its dashes, with the best hint there is. */
static int unknown_option(tarn__command command, const char *command_name, const char *word, size_t length)
{
    const char *names[TARN__MAX_OPTIONS + TARN__MAX_TRAIN_OPTIONS], *suggestion;
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
    else if (tarn__option_find(name, strlen(name), TARN__EVERY) ||
             tarn__train_option_find(TARN__TRAIN, name, strlen(name), &of_run))
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
        fprintf(stderr, "tarn %s: --%.*s: the value is empty; expected %s\n", command_name, (int)length, name,
                stands_for);
    return text && text[0] ? text : NULL;
}

/* Maximum number of arguments before the options, of `count`. */
static int max_words(tarn__command command, int count)
{
    /* exactly one of the three, or none for commands without arguments */
    bool takes_many = command == TARN__PREDICT || command == TARN__TOKENIZE || command == TARN__SERVE;
    bool takes_two = command == TARN__QUANTIZE || command == TARN__CONVERT || command == TARN__GENERATE;
    bool takes_one = command == TARN__TRAIN || command == TARN__EVAL || command == TARN__RUNS ||
                     command == TARN__BOARD || command == TARN__INSPECT || command == TARN__CHAT ||
                     command == TARN__BENCH_SERVE || command == TARN__DATA || command == TARN__PULL;
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
        fprintf(stderr, "tarn %s: unexpected argument '%s'%s; see tarn %s --help\n", command_name, tarn__escaped(word),
                max_words(command, options->word_count + 1) > options->word_count ? "; give it before the options" : "",
                command_name);
        return TARN__MISUSED;
    }
    size_t length = strcspn(name, "=");
    const tarn__option_row *row = tarn__option_find(name, length, command);
    tarn_option of_run = {0};
    if (!row && !tarn__train_option_find(command, name, length, &of_run))
        return unknown_option(command, command_name, word, length + 2);
    bool is_flag = row ? row->type == TARN__OPT_FLAG : of_run.type == TARN_OPTION_FLAG;
    if (is_flag && name[length]) {
        fprintf(stderr, "tarn %s: --%.*s takes no value: '%s'\n", command_name, (int)length, name,
                tarn__escaped(name + length + 1));
        return TARN__MISUSED;
    }
    const char *text =
        is_flag ? "true" : find_value(command_name, name, length, row ? row->value : of_run.value, count, words, used);
    if (!text)
        return TARN__MISUSED;
    return row ? tarn__option_read(command_name, row, text, options)
               : tarn__train_option_set(command_name, &of_run, text, options);
}

/* Reads the arguments before the options; `*used` is their number. A configuration of `train` is loaded at once, so
 * that flags override it. */
static int read_words(tarn__command command, const char *command_name, int count, char *const *words,
                      tarn__options *options, int *used)
{
    bool needs_two = command == TARN__QUANTIZE || command == TARN__CONVERT || command == TARN__PREDICT;
    bool needs_one = command == TARN__EVAL || (command & (TARN__OPENS_LM | TARN__BENCH_SERVE)) ||
                     command == TARN__INSPECT || command == TARN__DATA || command == TARN__PULL;
    int max = max_words(command, count), min_words = needs_two ? 2 : needs_one ? 1 : 0;
    options->words = words;
    while (options->word_count < count && options->word_count < max &&
           (words[options->word_count][0] != '-' ||
            (command == TARN__GENERATE && options->word_count == 1 && !words[1][1])))
        options->word_count++; /* "-" may be a prompt: standard input */
    *used = options->word_count;
    for (int i = 0; i < count; i++)
        /* help needs no arguments: a missing one is no error then */
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0)
            return TARN__DONE;
    if (options->word_count < min_words) {
        bool has_one = options->word_count > 0;
        const char *what = command == TARN__INSPECT ? "a file or model folder"
                           : command == TARN__DATA  ? "a file of JSON lines"
                           : command == TARN__PULL  ? "a model's name, ORG/NAME,"
                           : command == TARN__QUANTIZE || command == TARN__CONVERT
                               ? (has_one ? "the output path" : "a model folder or .gguf file")
                           : command == TARN__BENCH_SERVE ? "a URL, a model folder or a .gguf file"
                           : has_one                      ? "an image or a table"
                           : (command & TARN__OPENS_LM)   ? "a model folder or .gguf file"
                                                          : "a run folder";
        fprintf(stderr, "tarn %s: %s is missing%s; see tarn %s --help\n", command_name, what,
                count > *used ? " before the options" : "", command_name);
        return TARN__MISUSED;
    }
    return command == TARN__TRAIN && options->word_count ? tarn__train_options_file(words[0], options) : TARN__DONE;
}

/* Files may also follow the options, as with shell patterns, and runs follow --compare. Returns their number. */
static int read_late_words(tarn__command command, int count, char *const *words, tarn__options *options)
{
    if (command != TARN__TOKENIZE && !options->compare)
        return 0;
    options->words = words;
    while (options->word_count < count && words[options->word_count][0] != '-')
        options->word_count++;
    return options->word_count;
}

/* Defaults, by the same rules. The device is searched for only if none is given: that loads backends. */
static int fill_in(tarn__command command, const char *command_name, tarn__options *options, bool device_given)
{
    int status = TARN__DONE, i = 0;
    for (const tarn__option_row *row; status == TARN__DONE && (row = tarn__option_at(i)) != NULL; i++)
        if ((row->commands & command) && row->default_value && !(row->type == TARN__OPT_DEVICE && device_given))
            status = tarn__option_read(command_name, row, row->default_value, options);
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
    /* what comes after --help is not looked at */
    for (int i = used; i < count && status == TARN__DONE && !options->help; i += used) {
        used = options->word_count == 0 ? read_late_words(command, count - i, arguments + i, options) : 0;
        if (used == 0)
            status = read_argument(command, command_name, count - i, arguments + i, options, &used);
    }
    return status;
}
